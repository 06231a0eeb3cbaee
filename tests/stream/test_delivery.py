"""Rows of a COPY on their way to queries of the stream: there once, or taken back whole."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.database import Database
from headrace.errors import HeadraceError
from headrace.rings import Ring
from headrace.rings.delivery import Delivery, put
from headrace.statement.load import Loader
from posts import fill, posts


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect() as db:
        fill(db)
        yield db


def test_a_failed_copy_fails_the_queries_that_saw_its_rows(db: Database, tmp_path: Path) -> None:
    file = tmp_path / "posts.csv"
    # Large enough to be read in two slices: the rows of the one that does not fail are taken back too.
    bad = "x,name,1,text\n"
    file.write_text(bad + "".join(f"{n % 3},name,{n},text that makes it longer\n" for n in range(260_000)))
    seeing = db.sql("SELECT count(*) FROM posts")
    with pytest.raises(HeadraceError, match="row 1:"):
        db.copy("posts", file)
    with pytest.raises(HeadraceError, match="STREAM_ROLLED_BACK"):
        seeing.finish().rows()
    after = db.sql("SELECT count(*) FROM posts")
    db.insert("posts", posts(0, 3))
    assert after.finish().rows() == [(3,)]


def copied_beside(db: Database, file: Path, monkeypatch: pytest.MonkeyPatch, *meanwhile: str) -> None:
    """COPY, with a statement run before each attempt to commit."""
    commit, left = Loader._commit, list(meanwhile)

    def committing(loader: Loader, *given: Any) -> Any:
        if left:
            db.sql(left.pop(0))
        return commit(loader, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Loader, "_commit", committing)
        db.copy("posts", file)


def test_a_copy_run_again_gives_queries_its_rows_once(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "posts.csv"
    file.write_text("".join(f"{n % 3},name,{n},text\n" for n in range(300)))
    running = db.sql("SELECT count(*) FROM posts")
    copied_beside(db, file, monkeypatch, "CREATE VIEW n AS SELECT count(*) AS n FROM posts", "DROP VIEW n")
    assert running.finish().rows() == [(300,)]
    seeing = db.sql("SELECT count(*) FROM posts")
    with pytest.raises(HeadraceError, match="DIVIDE_BY_ZERO"):
        copied_beside(db, file, monkeypatch, "CREATE VIEW q AS SELECT sum(score div uid) AS q FROM posts")
    with pytest.raises(HeadraceError, match="STREAM_ROLLED_BACK"):
        seeing.finish().rows()


@pytest.mark.parametrize("while_it_writes", [False, True])
def test_whoever_delivers_for_a_statement_that_has_ended_is_stopped(db: Database, while_it_writes: bool) -> None:
    """A task of a job that has failed, or a thread of a COPY that was interrupted, may go on for a while."""
    ring = db.runtime.rings.open(db.catalog.get("posts"))
    rows = pa.table({"score": pa.array([1, 2, 3], pa.int32())})
    first, other = db.sql("SELECT count(*) FROM posts"), Ring.open(ring.folder)
    delivery = Delivery(lambda: ring)
    assert delivery.begin() and not delivery.begin()
    address = delivery.address()
    put(address, rows)
    if while_it_writes:
        second, write = None, other.write

        def interrupted(*given: Any, **how: Any) -> Any:
            nonlocal second
            delivery.take_back()
            second = db.sql("SELECT count(*) FROM posts")
            return write(*given, **how)

        other.write = interrupted
        put(address, rows, other)
        with pytest.raises(HeadraceError, match="STREAM_ROLLED_BACK"):
            second.finish().rows()
    else:
        delivery.take_back()
        with pytest.raises(HeadraceError, match="STATEMENT_ENDED"):
            put(address, rows)
    with pytest.raises(HeadraceError, match="STREAM_ROLLED_BACK"):
        first.finish().rows()
    assert not list(ring.folder.glob("delivery-*"))


def test_a_copy_returns_when_its_rows_can_be_read(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another writer has claimed ids before them and not written yet."""
    ring = db.runtime.rings.open(db.catalog.get("posts"))
    other = ring.book.claim(1, lambda _: 0, ring.rounds.begin)
    assert other is not None
    delivery = Delivery(lambda: ring)
    delivery.begin()
    delivery.put(pa.table({"score": pa.array([1, 2, 3], pa.int32())}))
    wait, waits = ring.book.await_visible, threading.Event()
    monkeypatch.setattr(ring.book, "await_visible", lambda *given: (waits.set(), wait(*given))[1])
    settled = threading.Thread(target=delivery.settle)
    settled.start()
    assert waits.wait(500)
    assert settled.is_alive() and ring.usage().head == 0
    ring.book.publish(other)
    settled.join(500)
    assert not settled.is_alive() and ring.usage().head == 4
