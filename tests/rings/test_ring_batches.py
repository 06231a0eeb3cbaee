"""Writers of other processes whose owner is killed: what they are told is true, and batches are in once."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import HeadraceError
from headrace.base.parquet_files import write_parquet
from headrace.stream.inbox import Tray
from headrace.stream.writer import InsertFailed

OWNER = textwrap.dedent("""
    import os, signal, sys, headrace
    from headrace.statement.load import Loader
    from headrace.stream.inbox import Tray
    from headrace.store.writer import Writer

    def dying(home, name, when, on):
        '''Kill this process when a function is called for the n-th time, before or after it does its work.'''
        whole, calls = getattr(home, name), []

        def call(*given, **named):
            calls.append(1)
            if len(calls) == on and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            found = whole(*given, **named)
            if len(calls) == on and when == "after":
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        setattr(home, name, call)

    path, place, when, on = sys.argv[1:]
    homes = {"take": Loader, "take_rows": Loader, "_commit": Loader, "remove": Tray, "sweep": Tray, "batches": Tray}
    db = headrace.connect(path)
    if place:
        dying(homes[place], place, when, int(on))
    print("open", flush=True)
    sys.stdin.read()
    db.close()
""")


class Owner:
    """A process that has the database open, until it is told to close it or dies at a place of its own code."""

    def __init__(self, path: Path, place: str = "", when: str = "", on: int = 1) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(path), place, when, str(on)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "open\n"

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "d"
    with headrace.connect(place) as db:
        db.sql("CREATE STREAM posts (batch INT, n INT) WITH (capacity = 1000)")
        db.sql("CREATE VIEW per_batch AS SELECT batch, count(*) AS rows, sum(n) AS n FROM posts GROUP BY batch")
    yield place


def content(path: Path) -> list[tuple[int, int, int]]:
    with headrace.connect(path) as db:
        return sorted(db.sql("SELECT * FROM per_batch").rows())


def test_a_batch_is_in_once_however_often_it_is_given(path: Path) -> None:
    with headrace.connect(path) as db:
        writer = headrace.ring(path, "posts", source="shop")
        seeing = db.sql("SELECT count(*) FROM posts")
        assert writer.insert([(0, n) for n in range(5000)], batch=0) == 5000  # longer than the ring
        assert writer.insert([(0, n) for n in range(5000)], batch=0) == 0
        assert writer.insert([(1, 7)], batch=1) == 1
        assert writer.insert([(0, 7)], batch=0) == 0
        other = headrace.ring(path, "posts", source="other")
        assert other.insert([(2, 7)], batch=0) == 1
        assert seeing.finish().rows() == [(5002,)]
    assert content(path) == [(0, 5000, 12497500), (1, 1, 7), (2, 1, 7)]


def test_a_batch_given_again_while_the_owner_sweeps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner sweeps after it has said that a batch is in: what is swept then was put before."""

    def swept(table: Any, file: Path, **how: Any) -> None:
        write_parquet(table, file, **how)
        Tray(path, "ring-shop").sweep(1)

    with headrace.connect(path):
        writer = headrace.ring(path, "posts", source="shop")
        assert [writer.insert([(n, 7)], batch=n) for n in range(2)] == [1, 1]
        monkeypatch.setattr("headrace.stream.writer.write_parquet", swept)
        assert [writer.insert([(n, 7)], batch=n) for n in range(2)] == [0, 0]
        assert writer.insert([(2, 7)], batch=2) == 1
    assert content(path) == [(n, 1, 7) for n in range(3)]


def test_what_a_batch_cannot_be(path: Path) -> None:
    with headrace.connect(path) as db:
        with pytest.raises(HeadraceError, match="NO_SOURCE"):
            headrace.ring(path, "posts").insert([(1, 1)], batch=1)
        with pytest.raises(HeadraceError, match="INVALID_SOURCE"):
            headrace.ring(path, "posts", source="a/b")
        writer = headrace.ring(path, "posts", source="shop")
        for number in (-1, 2**63, "x"):
            with pytest.raises(HeadraceError, match="INVALID_BATCH"):
                writer.insert([(1, 1)], batch=number)  # type: ignore[arg-type]
        db.sql("CREATE VIEW inverse AS SELECT sum(1 / n) AS s FROM posts")
        with pytest.raises(HeadraceError, match="DIVIDE_BY_ZERO"):
            writer.insert([(1, 1), (1, 0)], batch=1)
        assert db.sql("SELECT * FROM per_batch").rows() == []
        assert writer.insert([(1, 1)], batch=1) == 1, "a batch that was refused is not in"
        assert db.sql("SELECT * FROM per_batch").rows() == [(1, 1, 1)]


@pytest.mark.parametrize(
    ("place", "when"),
    [
        *(("take", "before"), ("take", "after"), ("_commit", "before"), ("_commit", "after")),
        *(("batches", "after"), ("remove", "before"), ("remove", "after"), ("sweep", "before")),
    ],
)
def test_batches_are_in_once_though_their_owner_is_killed(path: Path, place: str, when: str) -> None:
    """Killed at the second batch; the writer gives it again to the next owner."""
    owner = Owner(path, place, when, on=2)
    writer = headrace.ring(path, "posts", source="shop")
    assert writer.insert([(0, 1)] * 10, batch=0) == 10
    writer.insert([(1, 1)] * 10, batch=1)  # in the inbox at least
    if place == "batches":
        assert owner.end() in (0, -9)
    else:
        assert owner.process.wait() == -9
        owner.end()
    again = Owner(path)
    writer = headrace.ring(path, "posts", source="shop")
    assert writer.insert([(1, 1)] * 10, batch=1) == 0
    assert writer.insert([(2, 1)] * 10, batch=2) == 10
    assert again.end() == 0
    assert content(path) == [(0, 10, 10), (1, 10, 10), (2, 10, 10)]


@pytest.mark.parametrize(("place", "when"), [("take_rows", "before"), ("_commit", "after"), ("take_rows", "after")])
def test_a_writer_whose_owner_is_killed_is_told_what_nobody_knows(path: Path, place: str, when: str) -> None:
    owner = Owner(path, place, when, on=2)
    writer = headrace.ring(path, "posts")
    assert writer.insert([(0, 1)] * 10) == 10
    with pytest.raises(InsertFailed) as found:
        writer.insert([(1, 1)] * 10)
    assert owner.process.wait() == -9
    owner.end()
    assert (found.value.inserted, found.value.unknown) == (0, 10)
    assert "it is not known whether the first 10 of 10 rows are in" in found.value.message
    assert "none" not in found.value.message
    is_in = content(path) == [(0, 10, 10), (1, 10, 10)]
    assert is_in == (when == "after")


def test_what_is_known_is_told(path: Path) -> None:
    with headrace.connect(path) as db:
        db.sql("CREATE VIEW inverse AS SELECT sum(1 / n) AS s FROM posts")
        writer = headrace.ring(path, "posts")
        with pytest.raises(InsertFailed, match="none of 1 rows is in") as found:
            writer.insert([(1, 0)])
        assert (found.value.inserted, found.value.unknown) == (0, 0)
