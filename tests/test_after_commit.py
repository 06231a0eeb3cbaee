"""A statement that is in has succeeded, whatever fails afterwards."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace import Database, HeadraceError, database
from headrace.base.interrupts import Interrupted
from headrace.catalog import Table
from headrace.engine.worker import Worker
from headrace.keep.answers import Answers
from headrace.keep.compaction import Compaction
from headrace.keep.keeper import Keeper
from headrace.rings import Ring
from headrace.rings.delivery import Delivery
from headrace.rings.home import Rings
from headrace.sample.kept import KeptSample
from headrace.spark.porter import Porter
from headrace.statement import load as loading
from headrace.store import writer


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with headrace.connect(tmp_path / "db", compact_rows=1) as made:
        made.sql("CREATE STREAM s (k INT)")
        made.sql("CREATE STREAM rung (k INT) WITH (capacity = 1000)")
        made.sql("CREATE TABLE t (k INT)")
        made.sql("CREATE TABLE names (k INT, name STRING)")
        made.insert("names", [(1, "one")])
        made.sql("CREATE VIEW v AS SELECT k, count(*) AS n FROM s GROUP BY k")
        made.sql("CREATE VIEW w AS SELECT name, count(*) AS n FROM s JOIN names ON s.k = names.k GROUP BY name")
        made.sql("CREATE SAMPLE drawn OF s SIZE 1")
        yield made


def insert(db: Database) -> None:
    for _ in range(20):  # often enough to call for a merge
        assert db.insert("s", {"k": [1] * 5}) == 5


def in_view(db: Database) -> bool:
    return db.sql("SELECT n FROM v").rows() == [(100,)]


def ddl(text: str) -> Callable[[Database], None]:
    return lambda db: db.sql(text) and None


def has(*names: str) -> Callable[[Database], bool]:
    return lambda db: all(db.catalog.find(name) is not None for name in names)


def lacks(*names: str) -> Callable[[Database], bool]:
    return lambda db: all(db.catalog.find(name) is None for name in names)


CREATE = ddl("CREATE VIEW x AS SELECT max(k) AS k FROM s")
PLACES: list[tuple[Any, str, Callable[[Database], None], Callable[[Database], bool]]] = [
    (Compaction, "after", insert, in_view),
    (Compaction, "_merge", insert, in_view),
    (Answers, "rewritten", insert, in_view),
    (Answers, "compacting", insert, in_view),
    (Keeper, "after", insert, in_view),
    (KeptSample, "merged", insert, in_view),
    (Delivery, "settle", insert, in_view),
    (database, "publish_catalog", CREATE, has("x")),
    (Porter, "retry", CREATE, has("x")),
    (Rings, "drop", ddl("DROP STREAM rung"), lacks("rung")),
    (Answers, "forget", ddl("DROP VIEW w"), lacks("w")),
    (Worker, "forget", ddl("DROP VIEW w"), lacks("w")),
    (Answers, "forget", ddl("REFRESH VIEW w RESTART"), has("w")),
]
IDS = [f"{getattr(home, '__name__', home)}.{name}-{i}" for i, (home, name, *_) in enumerate(PLACES)]


def breaking(monkeypatch: pytest.MonkeyPatch, home: Any, name: str, error: BaseException) -> list[int]:
    """Have the place fail each time, and count how often it did."""
    failed: list[int] = []

    def fail(*_: object, **__: object) -> None:
        failed.append(1)
        raise error

    monkeypatch.setattr(home, name, fail)
    return failed


@pytest.mark.parametrize(("home", "name", "run", "is_in"), PLACES, ids=IDS)
def test_what_fails_after_the_commit_is_noted_and_goes_no_further(
    db: Database,
    monkeypatch: pytest.MonkeyPatch,
    home: Any,
    name: str,
    run: Callable[[Database], None],
    is_in: Callable[[Database], bool],
) -> None:
    with monkeypatch.context() as patch:
        failed = breaking(patch, home, name, UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd"))
        run(db)
        assert failed
    assert is_in(db)
    errors = db.sql("SELECT error FROM headrace.failures").rows()
    assert errors and all("UnicodeDecodeError" in error for (error,) in errors)
    db.insert("s", {"k": [2]})
    db.sql("CREATE VIEW later AS SELECT min(k) AS k FROM s")
    path = db.path
    db.close()
    with headrace.connect(path) as again:
        assert is_in(again) or home in (Compaction, Answers, Keeper, KeptSample, Delivery)
        assert again.catalog.find("later") is not None


@pytest.mark.parametrize(("home", "name", "run", "is_in"), PLACES, ids=IDS)
def test_an_interrupt_after_the_commit_says_that_the_statement_is_in(
    db: Database,
    monkeypatch: pytest.MonkeyPatch,
    home: Any,
    name: str,
    run: Callable[[Database], None],
    is_in: Callable[[Database], bool],
) -> None:
    with monkeypatch.context() as patch:
        breaking(patch, home, name, KeyboardInterrupt())
        with pytest.raises(Interrupted) as found:
            run(db)
    assert found.value.done
    assert is_in(db) or run is insert  # which was interrupted in one of its rounds
    came = db.sql("SELECT rows FROM headrace.streams WHERE name = 's'").rows()[0][0]
    assert came == sum(n for (n,) in db.sql("SELECT n FROM v"))


def test_a_spooled_file_that_cannot_be_removed(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck() -> None:
        raise OSError("busy")

    of_reader = loading.of_reader
    monkeypatch.setattr(loading, "of_reader", lambda *given: (of_reader(*given)[0], stuck))
    assert db.insert("s", pa.table({"k": pa.array([1] * 100, pa.int32())}).to_reader()) == 100
    assert in_view(db)


def test_a_state_that_was_filled_whole(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, Answers, "lies_merged", ValueError("odd"))
    assert db.insert("s", {"k": range(70_000)}) == 70_000
    assert db.sql("SELECT count(*) AS n FROM v").rows() == [(70_000,)]


def test_rows_that_could_not_be_delivered_fail_the_queries_that_would_miss_them(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeing = db.sql("SELECT count(*) FROM rung")
    with monkeypatch.context() as patch:
        failed = breaking(patch, Ring, "write", ValueError("odd"))
        assert db.insert("rung", {"k": [1]}) == 1
        assert failed
    with pytest.raises(HeadraceError, match="STREAM_ROLLED_BACK"):
        seeing.finish().rows()
    assert "ValueError: odd" in str(db.sql("SELECT error FROM headrace.failures").rows())


class Late(Future[Any]):
    """Whoever waits for it is interrupted, just when it is done."""

    interrupted = False

    def result(self, timeout: float | None = None) -> Any:
        if not Late.interrupted:
            Late.interrupted = True
            wait([self])
            raise KeyboardInterrupt
        return super().result(timeout)


@pytest.mark.parametrize(
    ("run", "is_in"),
    [
        (lambda db: db.insert("s", {"k": [1] * 100}), in_view),
        (CREATE, has("x")),
        (ddl("DROP VIEW v"), lacks("v")),
        (ddl("CREATE STREAM y (k INT) WITH (capacity = 1000)"), has("y")),
        (ddl("CREATE TABLE z AS SELECT * FROM range(70000)"), has("z")),
        (ddl("REFRESH VIEW w RESTART"), has("w")),
        (
            lambda db: db.insert("t", {"k": range(70_000)}),
            lambda db: db.sql("SELECT count(*) FROM t").rows() == [(70_000,)],
        ),
    ],
)
def test_an_interrupt_that_comes_too_late_to_stop_a_commit(
    db: Database,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[[Database], None],
    is_in: Callable[[Database], bool],
) -> None:
    """What is stored and what the process knows stay one, and the caller learns that it is in."""
    monkeypatch.setattr(Late, "interrupted", False)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "Future", Late)
        with pytest.raises(Interrupted) as found:
            run(db)
    assert found.value.done
    assert is_in(db)
    db.insert("s", {"k": [7]})
    if db.catalog.find("x"):
        assert db.sql("SELECT * FROM x").rows() == [(7,)]
    if db.catalog.find("y"):
        db.insert("y", {"k": [1]})
    table = db.catalog.get("t", Table)
    assert table is not None


@pytest.mark.parametrize("own", [False, True])
def test_a_late_interrupt_elsewhere_than_in_the_main_thread_or_by_a_programs_own_handler(
    db: Database, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """Nothing of ours hears the signal there; what it raises is told at the end all the same, and once."""
    monkeypatch.setattr(Late, "interrupted", False)
    caught = list[KeyboardInterrupt]()

    def run() -> None:
        try:
            db.insert("s", {"k": [1] * 100})
        except KeyboardInterrupt as error:
            caught.append(error)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "Future", Late)
        if own:
            before = signal.signal(signal.SIGINT, lambda *_: None)
            try:
                run()
            finally:
                signal.signal(signal.SIGINT, before)
        else:
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
    assert isinstance(caught[0], Interrupted) and caught[0].done
    assert in_view(db)


def test_tidying_ends_no_thread(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer tends to its log after commits; whatever fails there, the next commit finds it alive."""
    with monkeypatch.context() as patch:
        failed = breaking(patch, db.runtime.store._writer._directory, "log_bytes", ValueError("odd"))
        insert(db)
        assert failed
    assert in_view(db)
