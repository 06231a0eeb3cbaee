"""What a statement looked up may be dropped while it runs: another one of that name is not what it meant."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

import headrace
from headrace import Database
from headrace.errors import CatalogError, ExecutionError


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect(None, engine="native") as db:
        yield db


def meanwhile(work: Callable[[], object]) -> Iterator[tuple[int]]:
    """Rows between which another thread works."""
    yield (1,)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    yield (2,)


@pytest.mark.parametrize("kind", ["STREAM", "TABLE"])
@pytest.mark.parametrize("again", [True, False])
def test_rows_for_what_was_dropped_go_nowhere_else(db: Database, kind: str, again: bool) -> None:
    db.sql(f"CREATE {kind} d (k INT)")

    def drop() -> None:
        db.sql(f"DROP {kind} d")
        if again:
            db.sql(f"CREATE {kind} d (k INT)")

    with pytest.raises(CatalogError, match="TABLE_OR_VIEW_NOT_FOUND"):
        db.insert("d", meanwhile(drop))
    if again:
        db.sql("CREATE VIEW v AS SELECT count(*) AS n FROM d")
        assert db.sql("SELECT n FROM v").rows() == [(0,)]
        db.insert("d", [(3,)])
        assert db.sql("SELECT n FROM v").rows() == [(1,)]


@pytest.mark.parametrize("columns", ["k INT, w INT", "z INT", "k INT, w STRING"])
def test_a_query_of_a_stream_does_not_read_another_table(db: Database, columns: str) -> None:
    db.sql("CREATE STREAM s (k INT)")
    db.sql("CREATE TABLE t (k INT, w BIGINT)")
    running = db.sql("SELECT a.k, a.n, t.w FROM (SELECT k, count(*) AS n FROM s GROUP BY k) a JOIN t ON a.k = t.k")
    db.insert("s", [(1,)])
    db.sql("DROP TABLE t")
    db.sql(f"CREATE TABLE t ({columns})")
    with pytest.raises(CatalogError, match="TABLE_OR_VIEW_NOT_FOUND"):
        running.finish().rows()


def test_rows_handed_out_as_batches_are_not_an_empty_answer(db: Database) -> None:
    db.sql("CREATE STREAM s (k INT)")
    running = db.sql("SELECT k FROM s")
    db.insert("s", [(1,), (2,)])
    running.finish()
    assert [batch.to_pylist() for batch in running.batches()] == [[{"k": 1}, {"k": 2}]]
    with pytest.raises(ExecutionError, match="RESULT_TAKEN"):
        running.rows()
    running = db.sql("SELECT k FROM s")
    db.insert("s", [(1,), (2,)])
    running.finish()
    assert running.rows() == [(1,), (2,)]
    assert [batch.to_pylist() for batch in running.batches()] == [[{"k": 1}, {"k": 2}]]


def test_refresh_takes_the_kind_at_its_word(db: Database) -> None:
    db.sql("CREATE STREAM s (k INT)")
    db.sql("CREATE VIEW v AS SELECT count(*) AS n FROM s")
    db.sql("CREATE SAMPLE m OF s SIZE 3")
    db.insert("s", [(1,)])
    for text in ("REFRESH SAMPLE v RESTART", "REFRESH VIEW m RESTART", "REFRESH SAMPLE v"):
        with pytest.raises(CatalogError, match="WRONG_COMMAND_FOR_OBJECT_TYPE"):
            db.sql(text)
    assert (db.sql("SELECT n FROM v").rows(), db.sql("SELECT k FROM m").rows()) == ([(1,)], [(1,)])
