"""``with db.batch():`` does what copying a dict and putting it back would do, and nobody sees the half of it."""

from __future__ import annotations

import multiprocessing
import os
import queue
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace import Database
from headrace.base.interrupts import Interrupted
from headrace.errors import BatchError, DataError, HeadraceError
from headrace.keep import keeper
from headrace.statement.batch import seconds_of
from headrace.store import batch as batches
from headrace.store import transaction
from headrace.store.batch import OpenBatch
from headrace.table import rows as tables
from profiles import examples

Row = tuple[int, int]
Model = dict[str, list[Row]]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with headrace.connect(tmp_path / "db", engine="native") as made:
        made.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
        made.sql("CREATE TABLE u (id INT, a INT)")
        made.sql("CREATE STREAM s (k INT, v INT)")
        made.sql("CREATE VIEW by_k AS SELECT k, count(*) AS n, sum(v) AS v FROM s GROUP BY k")
        made.sql("CREATE MATERIALIZED VIEW by_a AS SELECT a, count(*) AS n FROM t GROUP BY a")
        made.insert("t", [(1, 10), (2, 20)])
        made.insert("s", [(1, 1)])
        yield made


class Elsewhere:
    """Another thread, that does what it is told and says what came of it."""

    def __init__(self) -> None:
        self._todo = queue.Queue[Callable[[], Any] | None]()
        self._done = queue.Queue[Any]()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        _there_are.append(self)

    def _run(self) -> None:
        while (work := self._todo.get()) is not None:
            try:
                self._done.put(work())
            except BaseException as error:
                self._done.put(error)

    def begin(self, work: Callable[[], Any]) -> None:
        self._todo.put(work)

    def answer(self) -> Any:
        found = self._done.get(timeout=60)
        if isinstance(found, BaseException):
            raise found
        return found

    def __call__(self, work: Callable[[], Any]) -> Any:
        self.begin(work)
        return self.answer()

    @property
    def is_waiting(self) -> bool:
        return self._done.empty()

    def end(self) -> None:
        self._todo.put(None)
        self._thread.join()


_there_are: list[Elsewhere] = []


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    yield
    while _there_are:
        _there_are.pop().end()


@pytest.fixture
def elsewhere() -> Elsewhere:
    return Elsewhere()


def rows(db: Database, text: str) -> list[Any]:
    return sorted(db.sql(text).rows())


ALL = {
    "t": "SELECT * FROM t",
    "u": "SELECT * FROM u",
    "by_k": "SELECT * FROM by_k",
    "by_a": "SELECT * FROM by_a",
    "joined": "SELECT * FROM joined",
}


def everything(db: Database) -> dict[str, list[Any]]:
    return {name: rows(db, text) for name, text in ALL.items()}


def expected(model: Model) -> dict[str, list[Any]]:
    """What the queries of :data:`ALL` answer, computed from the rows."""
    by_k = [
        (k, len(vs := [v for key, v in model["s"] if key == k]), sum(vs), min(vs)) for k in {k for k, _ in model["s"]}
    ]
    by_a = [(a, len(ids := [i for i, b in model["t"] if a == b]), sum(ids)) for a in {a for _, a in model["t"]}]
    joined = [(k, n, a) for k, n, *_ in by_k for i, a in model["u"] if i == k]
    found = {"t": model["t"], "u": model["u"], "by_k": by_k, "by_a": by_a, "joined": joined}
    return {name: sorted(some) for name, some in found.items()}


# Statements, and what each does to the rows.

Do = Callable[[Database], Any]
Step = tuple[Do, Callable[[Model], None]]


def sql(text: str, **changes: Callable[[Model], list[Row]]) -> Step:
    def meant(model: Model) -> None:
        model.update({name: change(model) for name, change in changes.items()})

    return (lambda db: db.sql(text)), meant


def insertion(name: str, given: list[Row]) -> Step:
    return (lambda db: db.insert(name, given)), (lambda model: model[name].extend(given))


ROWS = st.lists(st.tuples(st.integers(0, 6), st.integers(-3, 5)), max_size=7)
N = st.integers(-2, 6)
MERGE = """
    MERGE INTO t USING (SELECT id, max(a) AS a FROM u GROUP BY id) AS x ON t.id = x.id
    WHEN MATCHED AND x.a < {n} THEN DELETE WHEN MATCHED THEN UPDATE SET a = x.a
    WHEN NOT MATCHED THEN INSERT (id, a) VALUES (x.id, x.a)
"""


def merged(n: int) -> Callable[[Model], list[Row]]:
    def meant(model: Model) -> list[Row]:
        source = {i: max(a for j, a in model["u"] if j == i) for i, _ in model["u"]}
        left = [(i, source.get(i, a)) for i, a in model["t"] if i not in source or source[i] >= n]
        known = {i for i, _ in model["t"]}
        return [*left, *((i, a) for i, a in source.items() if i not in known)]

    return meant


def steps() -> st.SearchStrategy[Step]:
    names = st.sampled_from(["t", "u"])
    return st.one_of(
        st.builds(insertion, st.sampled_from(["t", "u", "s"]), ROWS),
        st.builds(
            lambda x, n: sql(
                f"UPDATE {x} SET a = a + {n} WHERE id % 2 = 0",
                **{x: lambda m: [(i, a + n if i % 2 == 0 else a) for i, a in m[x]]},
            ),
            names,
            N,
        ),
        st.builds(
            lambda x, n: sql(f"DELETE FROM {x} WHERE a < {n}", **{x: lambda m: [r for r in m[x] if r[1] >= n]}),
            names,
            N,
        ),
        st.builds(lambda x: sql(f"TRUNCATE TABLE {x}", **{x: lambda m: []}), names),
        st.builds(
            lambda n: sql(
                f"INSERT OVERWRITE t SELECT id + 1, a FROM u WHERE id < {n}",
                t=lambda m: [(i + 1, a) for i, a in m["u"] if i < n],
            ),
            N,
        ),
        st.builds(
            lambda n: sql(
                f"INSERT INTO u SELECT id, a + {n} FROM t",
                u=lambda m: [*m["u"], *((i, a + n) for i, a in m["t"])],
            ),
            N,
        ),
        st.builds(lambda n: sql(MERGE.format(n=n), t=merged(n)), N),
        st.builds(lambda n: sql(f"INSERT INTO s VALUES (1, {n})", s=lambda m: [*m["s"], (1, n)]), N),
    )


class Unwanted(Exception):
    """The program's own error."""


FATES = ["is in", "is in", "raises", "fails", "fails unheard", "goes on"]
HALF_WAY = "SELECT a / (id - id) FROM t"
"""Fails if the table has rows, while it runs."""


@settings(max_examples=examples(25))
@given(
    first=ROWS,
    todo=st.lists(
        st.tuples(st.lists(st.tuples(steps(), st.booleans()), max_size=6), st.sampled_from(FATES), st.booleans()),
        max_size=4,
    ),
    keyed=st.booleans(),
)
def test_oracle_a_batch_is_a_copy_that_is_put_back_whole(
    first: list[Row], todo: list[tuple[list[tuple[Step, bool]], str, bool]], keyed: bool
) -> None:
    reader = Elsewhere()
    db: Database

    def seen_elsewhere() -> Any:
        return reader(lambda: everything(db))

    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr(tables, "TAIL_ROWS", 5)  # so that rows lie in segments and in the tail
        patched.setattr(transaction, "BATCH_ROWS", 3)  # and states in tables of their own and beside them
        patched.setattr(keeper, "BATCH_ROWS", 3)
        db = headrace.connect(Path(folder) / "db", engine="native", compact_rows=2)
        try:
            db.sql("CREATE TABLE t (id INT, a INT)")
            db.sql("CREATE TABLE u (id INT, a INT)")
            db.sql("CREATE STREAM s (k INT, v INT)")
            db.sql("CREATE VIEW by_k AS SELECT k, count(*) AS n, sum(v) AS v, min(v) AS lo FROM s GROUP BY k")
            db.sql("CREATE MATERIALIZED VIEW by_a AS SELECT a, count(*) AS n, sum(id) AS ids FROM t GROUP BY a")
            grouped = "SELECT k, count(*) AS n FROM s GROUP BY k"
            db.sql(f"CREATE VIEW joined AS SELECT g.k, g.n, u.a FROM ({grouped}) g JOIN u ON u.id = g.k")
            db.insert("t", first)
            model: Model = {"t": list(first), "u": [], "s": []}
            for batch, fate, again in todo:
                before = deepcopy(model)
                one = db.batch()
                try:
                    with one:
                        for (do, meant), look in batch:
                            do(db)
                            meant(model)
                            if look:
                                assert everything(db) == expected(model)
                                (k, n, *_) = next(iter(expected(model)["by_k"]), (1, 0, 0))
                                found = db.sql(f"SELECT n FROM by_k WHERE k = {k}").rows()
                                assert found == ([(n,)] if n else [])
                                assert seen_elsewhere() == expected(before)
                        if fate == "goes on":
                            with pytest.raises(HeadraceError, match="UNRESOLVED_COLUMN"):
                                db.sql("UPDATE t SET a = nope")
                            with pytest.raises(DataError):
                                db.insert("t", [("x", 1)])
                        if fate == "raises":
                            raise Unwanted
                        if fate == "fails":
                            db.sql(HALF_WAY)
                        if fate == "fails unheard" and model["t"]:
                            with pytest.raises(HeadraceError, match="DIVIDE_BY_ZERO"):
                                db.sql(HALF_WAY)
                            with pytest.raises(BatchError, match=r"BATCH_FAILED.*DIVIDE_BY_ZERO"):
                                db.sql("SELECT 1")
                except (Unwanted, HeadraceError) as error:
                    assert fate in ("raises", "fails", "fails unheard"), error
                    assert isinstance(error, Unwanted) == (fate == "raises")
                    model = before
                    assert one.epoch is None
                assert seen_elsewhere() == expected(model)
                if again:
                    db.close()
                    db = headrace.connect(Path(folder) / "db", engine="native", compact_rows=2)
                assert everything(db) == expected(model)
                with db.runtime.store.read() as snapshot:
                    named = {file.name for r in snapshot.relations() for file in snapshot.segments(r)}
                    assert one.epoch is None or one.epoch <= snapshot.epoch
                assert set(os.listdir(Path(folder) / "db" / "segments")) == named
        finally:
            db.close()


def test_a_batch_is_one_epoch_that_says_what_it_did(db: Database) -> None:
    with db.runtime.store.read() as snapshot:
        before = snapshot.epoch
    with db.batch() as batch:
        for n in range(1, 4):
            db.sql(f"UPDATE t SET a = a + {n} WHERE id = 1")
        db.insert("s", [(1, 1)])
        assert batch.epoch is None
    assert batch.epoch == before + 1
    (newest, *_) = db.sql("SELECT epoch, label, rows FROM headrace.epochs ORDER BY epoch DESC").rows()
    assert newest == (before + 1, "batch: UPDATE t, INSERT INTO s", 4)


def test_a_batch_that_changes_nothing_is_no_epoch(db: Database) -> None:
    with db.runtime.store.read() as snapshot:
        before = snapshot.epoch
    with db.batch() as batch:
        assert rows(db, "SELECT * FROM t") == [(1, 10), (2, 20)]
        db.sql("DELETE FROM t WHERE id = 9")
    with db.batch():
        pass
    with db.runtime.store.read() as snapshot:
        assert (batch.epoch, snapshot.epoch) == (None, before)


def test_an_exception_passes_on_unchanged(db: Database) -> None:
    error = Unwanted()
    with pytest.raises(Unwanted) as raised, db.batch():
        db.sql("DELETE FROM t")
        raise error
    assert raised.value is error and error.__cause__ is None
    assert rows(db, "SELECT * FROM t") == [(1, 10), (2, 20)]


def test_what_fails_before_it_changed_anything_leaves_the_batch_whole(db: Database) -> None:
    with db.batch():
        db.sql("UPDATE t SET a = 0 WHERE id = 1")
        for wrong, condition in {
            "SELECT": "PARSE_SYNTAX_ERROR",
            "UPDATE t SET a = 'x'": "INCOMPATIBLE_DATA_FOR_TABLE",
            "INSERT INTO t VALUES (1, 1)": "PRIMARY_KEY_VIOLATION",
            "INSERT INTO t VALUES (3, 1), (3, 1)": "PRIMARY_KEY_VIOLATION",
            "INSERT INTO u VALUES (1, CAST('x' AS INT))": "CAST_INVALID_INPUT",
            "BEGIN": "NOT_YET_SUPPORTED",
        }.items():
            with pytest.raises(HeadraceError) as refused:
                db.sql(wrong)
            assert refused.value.condition == condition
        assert "db.batch()" in (refused.value.hint or "")
        db.sql("UPDATE t SET a = 1 WHERE id = 2")
    assert rows(db, "SELECT * FROM t") == [(1, 0), (2, 1)]


def test_work_that_fails_half_way_takes_the_batch_with_it(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise DataError("NO_ROOM", "no room")

    with pytest.raises(BatchError, match=r"BATCH_FAILED.*NO_ROOM"), db.batch():
        db.sql("UPDATE t SET a = 0 WHERE id = 1")
        with monkeypatch.context() as patched, pytest.raises(DataError):
            patched.setattr(keeper.Keeper, "add", failing)  # after the table has its rows
            db.sql("INSERT INTO t VALUES (3, 30)")
        with pytest.raises(BatchError, match="BATCH_FAILED"):
            db.insert("u", [(1, 1)])
    assert rows(db, "SELECT * FROM t") == [(1, 10), (2, 20)]
    assert rows(db, "SELECT * FROM by_a") == [(10, 1), (20, 1)]


REFUSED: dict[str, Do] = {
    "CREATE TABLE": lambda db: db.sql("CREATE TABLE x (a INT)"),
    "CREATE TABLE AS": lambda db: db.sql("CREATE TABLE x AS SELECT 1 AS a"),
    "CREATE VIEW": lambda db: db.sql("CREATE VIEW x AS SELECT * FROM t"),
    "CREATE STREAM": lambda db: db.sql("CREATE STREAM x (a INT)"),
    "DROP": lambda db: db.sql("DROP TABLE t"),
    "REFRESH": lambda db: db.sql("REFRESH VIEW by_k RESTART"),
    "a query of a stream": lambda db: db.sql("SELECT * FROM s"),
    "what needs Spark": lambda db: db.sql("SELECT sentences('a b')"),
    "what needs Spark (": lambda db: db.table("t"),
    "needs Spark": lambda db: db.sql("SELECT * FROM t").spark(),
    "Spark": lambda db: db.spark,
    "another batch": lambda db: db.batch().__enter__(),
    "attach": lambda db: db.attach(None, "s"),  # type: ignore[arg-type]
    "export": lambda db: db.export("nowhere"),
    "drain": lambda db: db.drain(),
    "close": lambda db: db.close(),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_in_a_batch_is_refused_by_name(db: Database, what: str) -> None:
    with db.batch():
        db.sql("UPDATE t SET a = 0 WHERE id = 1")
        with pytest.raises(BatchError) as refused:
            REFUSED[what](db)
        assert refused.value.condition == "NOT_IN_BATCH" and what in refused.value.message and refused.value.hint
        db.sql("UPDATE t SET a = 0 WHERE id = 2")
    assert rows(db, "SELECT * FROM t") == [(1, 0), (2, 0)]
    assert db.sql("SELECT n FROM by_k").rows() == [(1,)]


def test_files_that_tasks_would_read_are_read_here(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1,2\n" * 100)
    with headrace.connect(None, task_bytes=10) as db:
        db.sql("CREATE STREAM s (k INT, v INT)")
        db.sql("CREATE VIEW n AS SELECT count(*) AS n, sum(v) AS v FROM s")
        with db.batch():
            db.copy("s", tmp_path / "rows.csv")
            assert db.sql("SELECT * FROM n").rows() == [(100, 200)]
        assert db.sql("SELECT * FROM n").rows() == [(100, 200)]
        assert not db.runtime.session.started


def test_files_for_a_stream_that_a_query_reads_are_refused(tmp_path: Path, db: Database) -> None:
    (tmp_path / "rows.csv").write_text("1,2\n")
    db.sql("CREATE STREAM r (k INT, v INT) WITH (timeout = '1000 seconds')")
    running = db.sql("SELECT * FROM r")
    with db.batch():
        with pytest.raises(BatchError, match="NOT_IN_BATCH"):
            db.copy("r", tmp_path / "rows.csv")
        db.insert("r", [(3, 4)])
    db.insert("r", [(5, 6)])
    assert running.finish().rows() == [(3, 4), (5, 6)]  # type: ignore[attr-defined]


def test_queries_of_a_stream_never_see_a_batch_that_failed(db: Database) -> None:
    db.sql("CREATE STREAM r (k INT, v INT) WITH (timeout = '1000 seconds')")
    running = db.sql("SELECT * FROM r")
    with pytest.raises(Unwanted), db.batch():
        db.insert("r", [(1, 2)])
        raise Unwanted
    db.insert("r", [(3, 4)])
    assert running.finish().rows() == [(3, 4)]  # type: ignore[attr-defined]


def test_a_batch_is_used_once_and_by_one_thread(db: Database, elsewhere: Elsewhere) -> None:
    with db.batch() as batch:
        db.sql("UPDATE t SET a = 0")
    with pytest.raises(BatchError, match="BATCH_USED"), batch:
        pass
    left = db.batch()
    left.__enter__()
    db.sql("UPDATE t SET a = 1")
    with pytest.raises(BatchError, match=r"BATCH_FAILED.*another thread"):
        elsewhere(lambda: left.__exit__(None, None, None))
    assert rows(db, "SELECT * FROM t") == [(1, 0), (2, 0)]
    db.sql("UPDATE t SET a = 2")
    assert rows(db, "SELECT * FROM t") == [(1, 2), (2, 2)]


@pytest.mark.parametrize("timeout", [0, -1, True, float("nan"), float("inf"), "soon", "1 month", None, 1e9])
def test_a_timeout_that_is_none(db: Database, timeout: Any) -> None:
    with pytest.raises(BatchError, match="INVALID_TIMEOUT"):
        db.batch(timeout=timeout)
    assert seconds_of("2 minutes") == 120


# Others


def test_others_read_what_was_and_writers_wait(db: Database, elsewhere: Elsewhere) -> None:
    writer, inserter = Elsewhere(), Elsewhere()
    with db.batch():
        db.sql("UPDATE t SET a = a + 1")
        db.insert("s", [(1, 5)])
        writer.begin(lambda: db.sql("UPDATE t SET a = a * 2"))
        inserter.begin(lambda: db.insert("s", [(2, 2)]))
        for _ in range(5):
            assert elsewhere(lambda: rows(db, "SELECT * FROM t")) == [(1, 10), (2, 20)]
            assert elsewhere(lambda: rows(db, "SELECT * FROM by_a")) == [(10, 1), (20, 1)]
            assert elsewhere(lambda: rows(db, "SELECT v FROM by_k WHERE k = 1")) == [(1,)]
        assert writer.is_waiting and inserter.is_waiting
        db.sql("UPDATE t SET a = a + 1")
    writer.answer()
    inserter.answer()
    assert rows(db, "SELECT * FROM t") == [(1, 24), (2, 44)]
    assert rows(db, "SELECT * FROM by_k") == [(1, 2, 6), (2, 1, 2)]


def test_a_read_waits_for_nobody_who_waits_for_the_batch(db: Database, elsewhere: Elsewhere) -> None:
    """Whoever merges a state holds the view until the writer has merged it."""
    held = threading.Event()

    def merge() -> None:
        with db.keeper.answers.lock("by_k"):
            held.set()
            db.runtime.store.commit(lambda tx: tx.unchanged())

    with db.batch(timeout=600):
        db.insert("s", [(1, 5)])
        elsewhere.begin(merge)
        held.wait()
        assert rows(db, "SELECT * FROM by_k") == [(1, 2, 6)]
        assert rows(db, "SELECT * FROM by_k WHERE k = 1") == [(1, 2, 6)]
    elsewhere.answer()


def test_what_is_kept_in_memory_knows_nothing_of_a_batch_that_failed(db: Database, elsewhere: Elsewhere) -> None:
    assert rows(db, "SELECT * FROM by_k") == [(1, 1, 1)]
    assert rows(db, "SELECT n FROM by_k WHERE k = 1") == [(1,)]
    with pytest.raises(Unwanted), db.batch():
        db.insert("s", [(1, 5), (2, 2)])
        assert rows(db, "SELECT n FROM by_k WHERE k = 1") == [(2,)]
        assert rows(db, "SELECT n FROM by_k WHERE k = 2") == [(1,)]
        assert rows(db, "SELECT * FROM by_k") == [(1, 2, 6), (2, 1, 2)]
        raise Unwanted
    assert rows(db, "SELECT * FROM by_k") == [(1, 1, 1)]
    with db.batch():
        assert rows(db, "SELECT * FROM by_k") == [(1, 1, 1)]  # at the epoch that the batch is about to change
        db.insert("s", [(1, 7)])
    assert rows(db, "SELECT * FROM by_k") == [(1, 2, 8)]
    db.insert("s", [(1, 1)])
    assert rows(db, "SELECT * FROM by_k WHERE k = 1") == [(1, 3, 9)]


def test_a_state_that_a_bulk_load_fills_may_get_more_in_the_same_batch(db: Database) -> None:
    db.sql("CREATE STREAM r (k INT)")
    db.sql("CREATE VIEW anew AS SELECT k, count(*) AS n FROM r GROUP BY k")
    with db.batch():
        db.insert("r", {"k": pa.array(np.arange(70_000), pa.int32())})
        db.insert("r", [(7,)])
        assert db.sql("SELECT count(*), sum(n), max(n) FROM anew").rows() == [(70_000, 70_001, 2)]
    assert db.sql("SELECT count(*), sum(n), max(n) FROM anew").rows() == [(70_000, 70_001, 2)]


def test_a_sample_that_a_failed_batch_drew_keeps_nothing_out(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db") as db:
        db.sql("CREATE STREAM s (k INT)")
        db.sql("CREATE SAMPLE few OF s SIZE 2")
    with headrace.connect(tmp_path / "db") as db:
        with pytest.raises(Unwanted), db.batch():
            for n in range(50):
                db.insert("s", [(n,)])
            assert len(db.sql("SELECT * FROM few").rows()) == 2
            raise Unwanted
        assert db.sql("SELECT * FROM few").rows() == []
        db.insert("s", [(1,), (2,)])
        assert rows(db, "SELECT k FROM few") == [(1,), (2,)]


def test_retention_goes_by_the_statements_of_a_batch(tmp_path: Path) -> None:
    answers = []
    for together in (False, True):
        with headrace.connect(tmp_path / f"{together}", engine="native") as db:
            db.sql("CREATE STREAM s (d DATE)")
            db.sql("CREATE VIEW v WITH (retain = '2 days') AS SELECT d, count(*) AS n FROM s GROUP BY d")
            days = [1, 2, 5, 3, 4, 9, 8, 1]
            if together:
                with pytest.raises(Unwanted), db.batch():
                    db.sql("INSERT INTO s VALUES (DATE '2030-01-01')")
                    raise Unwanted
                with db.batch():
                    late = [db.insert("s", {"d": [date(2024, 1, day)]}).late for day in days]
            else:
                late = [db.insert("s", {"d": [date(2024, 1, day)]}).late for day in days]
            answers.append((late, rows(db, "SELECT * FROM v")))
    assert answers[0] == answers[1] and answers[0][1]


def test_a_source_is_counted_once_in_a_batch_too(db: Database) -> None:
    store = db.runtime.store
    for wanted in (True, False):
        try:
            with db.batch():
                assert store.commit(lambda tx: tx.record("kafka", 7))
                with store.read() as snapshot:
                    assert snapshot.recorded("kafka", 7)
                assert not store.commit(lambda tx: tx.record("kafka", 7))
                if wanted:
                    raise Unwanted
        except Unwanted:
            with store.read() as snapshot:
                assert not snapshot.recorded("kafka", 7)
    with store.read() as snapshot:
        assert snapshot.recorded("kafka", 7)


def test_a_commit_within_a_commit_is_refused_in_a_batch(db: Database) -> None:
    store = db.runtime.store
    with db.batch(), pytest.raises(HeadraceError, match="NESTED_COMMIT"):
        store.commit(lambda _: store.commit(lambda tx: tx.unchanged()))


def test_files_of_a_table_that_changed_are_seen_when_the_batch_is_in(tmp_path: Path, db: Database) -> None:
    file = tmp_path / "names.csv"
    file.write_text("id,name\n1,one\n")
    db.sql(f"CREATE TABLE names (id INT, name STRING) USING csv OPTIONS (header 'true') LOCATION '{file}'")
    db.sql("CREATE VIEW named AS SELECT name, n FROM by_k JOIN names ON id = k")
    assert rows(db, "SELECT * FROM named") == [("one", 1)]
    file.write_text("id,name\n1,first\n")
    with pytest.raises(Unwanted), db.batch():
        assert rows(db, "SELECT * FROM named") == [("first", 1)]
        raise Unwanted
    assert rows(db, "SELECT * FROM named") == [("first", 1)]


def test_threads_that_move_money_in_batches_lose_none(db: Database, elsewhere: Elsewhere) -> None:
    def move(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(10):
            with db.batch():
                there, amount = dice.choice([(1, 2), (2, 1)]), dice.randrange(5)
                [(has,)] = db.sql(f"SELECT a FROM t WHERE id = {there[0]}").rows()
                db.sql(f"UPDATE t SET a = {has - amount} WHERE id = {there[0]}")
                db.sql(f"UPDATE t SET a = a + {amount} WHERE id = {there[1]}")

    movers = [Elsewhere(), Elsewhere()]
    for seed, mover in enumerate(movers):
        mover.begin(lambda seed=seed: move(seed))  # type: ignore[misc]
    while any(mover.is_waiting for mover in movers):
        assert db.sql("SELECT sum(a) FROM t").rows() == [(30,)]
        assert db.sql("SELECT sum(a * n) FROM by_a").rows() == [(30,)]
    for mover in movers:
        mover.answer()
    assert db.sql("SELECT sum(a) FROM t").rows() == [(30,)]


# Time


class Clock(threading.Event):
    """What waits for long waits until the test says that it was long enough."""

    up = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None or timeout < 1:
            return super().wait(timeout)
        while not super().wait(0.005):
            if Clock.up.is_set():
                return False
        return True


@contextmanager
def by_clock(db: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A batch whose time is up when the event is set."""
    Clock.up.clear()
    with monkeypatch.context() as patched:
        patched.setattr(batches.threading, "Event", Clock)
        batch = db.batch(timeout="1 minute 0.5 seconds").__enter__()
    try:
        yield Clock.up
    except BaseException as error:
        batch.__exit__(type(error), error, error.__traceback__)
        raise
    batch.__exit__(None, None, None)


def test_a_batch_that_is_open_too_long_is_rolled_back_though_its_thread_is_elsewhere(
    db: Database, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pytest.raises(BatchError, match=r"BATCH_TIMED_OUT.*open for 60.5 seconds"),
        by_clock(db, monkeypatch) as time_is_up,
    ):
        db.sql("UPDATE t SET a = 0")
        time_is_up.set()
        elsewhere(lambda: db.sql("UPDATE t SET a = a + 1"))  # waits for the batch, and so its thread for itself
        assert elsewhere(lambda: rows(db, "SELECT * FROM t")) == [(1, 11), (2, 21)]
        for text in ("SELECT 1", "SELECT n FROM by_k WHERE k = 1", "UPDATE t SET a = 5", "CREATE TABLE x (a INT)"):
            with pytest.raises(BatchError, match="BATCH_TIMED_OUT"):
                db.sql(text)
        with pytest.raises(BatchError, match="BATCH_TIMED_OUT"):
            db.insert("s", [(1, 1)])
    assert rows(db, "SELECT * FROM t") == [(1, 11), (2, 21)]
    with db.batch():
        db.sql("UPDATE t SET a = 0")
    assert elsewhere(lambda: rows(db, "SELECT * FROM t")) == [(1, 0), (2, 0)]


ENDLESS = "SELECT sum(x.a * y.a + z.a) AS s FROM big x, big y, big z"


def test_a_batch_whose_statement_runs_too_long(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.sql("CREATE TABLE big (a BIGINT)")
    db.insert("big", pa.table({"a": np.arange(200_000)}))
    with pytest.raises(BatchError, match="BATCH_TIMED_OUT"), by_clock(db, monkeypatch) as time_is_up:
        db.sql("UPDATE t SET a = 0")
        before = OpenBatch.read

        def read(self: OpenBatch) -> Any:
            time_is_up.set()
            return before(self)

        monkeypatch.setattr(OpenBatch, "read", read)
        db.sql(ENDLESS)
    assert rows(db, "SELECT * FROM t") == [(1, 10), (2, 20)]


def test_a_batch_that_cannot_begin(db: Database, elsewhere: Elsewhere) -> None:
    go, begun = threading.Event(), threading.Event()

    def batch() -> None:
        with db.batch(timeout=600):
            db.sql("UPDATE t SET a = 0")
            begun.set()
            go.wait()

    def commit() -> None:
        def work(tx: Any) -> None:
            begun.set()
            go.wait()
            tx.unchanged()

        db.runtime.store.commit(work)

    for other in (batch, commit):
        begun.clear()
        go.clear()
        elsewhere.begin(other)
        begun.wait()
        with pytest.raises(BatchError, match=r"BATCH_TIMED_OUT.*could not begin"), db.batch(timeout=0.05):
            raise AssertionError("it began")
        assert len(db.sql("SELECT * FROM t").rows()) == 2
        go.set()
        elsewhere.answer()
    with db.batch():
        db.sql("UPDATE t SET a = a + 1")
    assert rows(db, "SELECT * FROM t") == [(1, 1), (2, 1)]


def test_closing_ends_the_batches_of_other_threads(db: Database, elsewhere: Elsewhere) -> None:
    go, begun = threading.Event(), threading.Event()

    def batch() -> None:
        with db.batch(timeout=600):
            db.sql("UPDATE t SET a = 0")
            begun.set()
            go.wait()
            with pytest.raises(HeadraceError, match="DATABASE_CLOSED"):
                db.sql("SELECT * FROM t")

    elsewhere.begin(batch)
    begun.wait()
    db.close()
    go.set()
    with pytest.raises(HeadraceError, match="DATABASE_CLOSED"):
        elsewhere.answer()
    with headrace.connect(db.path, engine="native") as again:
        assert rows(again, "SELECT * FROM t") == [(1, 10), (2, 20)]


# Ctrl-C


def press_it() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_ctrl_c_between_statements_ends_the_batch(db: Database) -> None:
    with pytest.raises(Interrupted, match="the batch changed nothing") as caught, db.batch():
        db.sql("UPDATE t SET a = 0")
        press_it()
        threading.Event().wait(60)
    assert not caught.value.done
    assert rows(db, "SELECT * FROM t") == [(1, 10), (2, 20)]


def test_ctrl_c_in_a_statement_ends_the_batch(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.sql("CREATE TABLE big (a BIGINT)")
    db.insert("big", pa.table({"a": np.arange(200_000)}))
    caught = None
    with pytest.raises(BatchError, match=r"BATCH_FAILED.*Ctrl-C"), db.batch(timeout=600):
        db.sql("UPDATE t SET a = 0")
        before = OpenBatch.read
        timer = threading.Timer(0.01, press_it)

        def read(self: OpenBatch) -> Any:
            monkeypatch.undo()
            timer.start()
            return before(self)

        monkeypatch.setattr(OpenBatch, "read", read)
        try:
            db.sql(ENDLESS)
        except Interrupted as interrupt:  # which the program takes for nothing
            caught = interrupt
    assert caught is not None and str(caught) == "the batch changed nothing"
    assert rows(db, "SELECT * FROM t") == [(1, 10), (2, 20)]


def test_ctrl_c_as_soon_as_it_has_begun(db: Database, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(type(db.runtime.tidying), "hold", lambda _: press_it())
        with pytest.raises(Interrupted), db.batch(timeout=600):
            raise AssertionError("the block was entered")
    elsewhere(lambda: db.sql("UPDATE t SET a = 0"))
    assert db.sql("UPDATE t SET a = a + 1").rows() == [(2,)]
    assert elsewhere(lambda: rows(db, "SELECT * FROM t")) == [(1, 1), (2, 1)]


# Kills

LIVES = multiprocessing.get_context("forkserver")
LIVES.set_forkserver_preload(["headrace", "pyarrow.parquet", "sqlglot"])
STATEMENTS = 4


def live(path: Path, generation: int, sender: Connection) -> None:
    """Batches, each told by its number in every row it makes; a word when one is in, and in the middle of the first."""
    tables.TAIL_ROWS = 5
    db = headrace.connect(path, engine="native", compact_rows=3)
    if db.catalog.find("s") is None:
        db.sql("CREATE STREAM s (id BIGINT, n INT)")
        db.sql("CREATE TABLE t (id BIGINT, n INT)")
        db.sql("CREATE VIEW by_id AS SELECT id, count(*) AS c FROM s GROUP BY id")
        db.sql("CREATE MATERIALIZED VIEW of_t AS SELECT id, count(*) AS c, sum(n) AS n FROM t GROUP BY id")
    for k in range(10_000):
        number = generation * 10_000 + k
        with db.batch():
            for n in range(STATEMENTS):
                db.insert("t", [(number, 0)] * 2)
                db.insert("s", [(number, n)])
                os.write(sender.fileno(), b"middle\n")
            db.sql(f"UPDATE t SET n = 1 WHERE id = {number}")
        os.write(sender.fileno(), b"in %d\n" % number)


def test_oracle_a_batch_killed_at_any_instant_is_whole_or_not_there(tmp_path: Path) -> None:
    path, dice, acknowledged = tmp_path / "db", random.Random(7), set[int]()
    for generation in range(examples(3)):
        receiver, sender = LIVES.Pipe(duplex=False)
        process = LIVES.Process(target=live, args=(path, generation, sender))
        process.start()
        sender.close()
        text, until = b"", dice.randrange(1, 20)
        with os.fdopen(os.dup(receiver.fileno()), "rb", buffering=0) as said:
            receiver.close()
            while text.count(b"middle\n") < until:  # by what it has done, not by the clock
                text += said.read(65_536) or pytest.fail(f"the child ended by itself: {text!r}")
            time.sleep(dice.uniform(0, 0.02))
            process.kill()
            while more := said.read(65_536):
                text += more
        process.join()
        process.close()
        acknowledged |= {int(line[3:]) for line in text.decode().splitlines() if line.startswith("in ")}
        with headrace.connect(path, engine="native") as db:
            found = dict(db.sql("SELECT * FROM by_id").rows())
            assert acknowledged <= set(found)
            assert set(found.values()) <= {STATEMENTS}
            whole = [(number, 2 * STATEMENTS, 2 * STATEMENTS) for number in sorted(found)]
            assert rows(db, "SELECT * FROM of_t") == whole
            assert rows(db, "SELECT id, count(*), sum(n) FROM t GROUP BY id") == whole
            with db.runtime.store.read() as snapshot:
                named = {file.name for r in snapshot.relations() for file in snapshot.segments(r)}
            assert set(os.listdir(path / "segments")) == named
