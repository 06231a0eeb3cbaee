"""REFRESH: bringing a view up to date now, and beginning it again with its tables read anew (000 §4.2.7)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace import HeadraceError
from headrace.database import Database
from headrace.keep.keeper import Keeper
from headrace.view.continuous import ContinuousView

BELOW = "SELECT s.x, sum(w) AS w FROM s JOIN t ON s.x = t.x GROUP BY s.x"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with headrace.connect(tmp_path / "db", compact_rows=6) as db:
        db.sql("CREATE STREAM s (x STRING, n INT)")
        db.sql("CREATE TABLE t (x STRING, w INT)")
        db.sql("INSERT INTO t VALUES ('a', 10), ('b', 20)")
        yield db


def ask(db: Database, text: str) -> list[tuple[object, ...]]:
    return sorted(db.sql(text).rows(), key=repr)


def test_restart_reads_tables_anew_and_counts_from_now(db: Database, tmp_path: Path) -> None:
    db.sql(f"CREATE VIEW v WITH (tables = 'frozen') AS {BELOW}")
    db.insert("s", [("a", 1), ("c", 1)])
    db.sql("INSERT INTO t VALUES ('c', 5)")
    assert ask(db, "SELECT * FROM v") == [("a", 10)]
    message = db.sql("REFRESH VIEW v RESTART").message
    assert message.startswith("v counts from now; t read now, once")
    assert ask(db, "SELECT * FROM v") == []
    [(created, since, rows)] = db.sql("SELECT created_epoch, since_epoch, state_rows FROM headrace.views").rows()
    assert created < since and rows == 0
    assert any(f"as they were at epoch {since}" in note for _, _, note in db.sql("DESCRIBE v"))
    db.insert("s", [("a", 1), ("c", 1)])
    assert ask(db, "SELECT * FROM v") == [("a", 10), ("c", 5)]
    assert len(list((tmp_path / "db" / "segments").glob("static*"))) == 1
    db.close()
    with headrace.connect(tmp_path / "db") as again:
        again.insert("s", [("c", 1)])
        assert ask(again, "SELECT * FROM v") == [("a", 10), ("c", 10)]


def test_restart_keeps_other_views_and_reads_static_branches_again(db: Database) -> None:
    db.sql("CREATE VIEW both AS SELECT x, count(*) AS n FROM (SELECT x FROM s UNION ALL SELECT x FROM t) GROUP BY x")
    db.sql("CREATE VIEW other AS SELECT count(*) AS n FROM s")
    db.insert("s", [("a", 1), ("z", 1)])
    db.sql("INSERT INTO t VALUES ('b', 0)")
    assert ask(db, "SELECT * FROM both") == [("a", 2), ("b", 1), ("z", 1)]
    db.sql("REFRESH both RESTART")
    assert ask(db, "SELECT * FROM both") == [("a", 1), ("b", 2)]
    assert ask(db, "SELECT * FROM other") == [(2,)]


def test_refresh_brings_the_answer_up_to_date(db: Database) -> None:
    db.sql("CREATE VIEW v AS SELECT x, count(*) AS n FROM s GROUP BY x")
    db.insert("s", [("a", 1)])
    assert "v has 1 row as of epoch" in db.sql("REFRESH v").message
    done = db.keeper.answers.evaluations
    assert ask(db, "SELECT * FROM v") == [("a", 1)]
    assert db.keeper.answers.evaluations == done
    [(refreshed, changed)] = db.sql("SELECT last_refresh_epoch, last_change_epoch FROM headrace.views").rows()
    assert refreshed == changed


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("REFRESH nothing", "TABLE_OR_VIEW_NOT_FOUND"),
        ("REFRESH t RESTART", "WRONG_COMMAND_FOR_OBJECT_TYPE"),
        ("REFRESH VIEW o", "VIEW_KEEPS_NOTHING"),
        ("REFRESH VIEW o RESTART", "VIEW_KEEPS_NOTHING"),
        ("REFRESH VIEW o AGAIN", "PARSE_SYNTAX_ERROR"),
        ("REFRESH", "PARSE_SYNTAX_ERROR"),
    ],
)
def test_what_cannot_be_refreshed(db: Database, text: str, condition: str) -> None:
    db.sql("CREATE VIEW o AS SELECT * FROM t")
    with pytest.raises(HeadraceError) as refused:
        db.sql(text)
    assert refused.value.condition == condition


def test_a_restart_that_fails_leaves_the_view_as_it_was(db: Database, tmp_path: Path) -> None:
    shares = "(SELECT x, 100 / w AS w FROM t)"
    grouped = f"SELECT s.x, sum(u.w) AS w FROM s JOIN {shares} u ON s.x = u.x GROUP BY s.x"
    db.sql(f"CREATE VIEW v WITH (tables = 'frozen') AS {grouped}")
    db.insert("s", [("a", 1)])
    db.sql("INSERT INTO t VALUES ('c', 0)")
    with pytest.raises(HeadraceError, match="DIVIDE_BY_ZERO"):
        db.sql("REFRESH VIEW v RESTART")
    db.insert("s", [("a", 1), ("b", 1)])
    assert ask(db, "SELECT * FROM v") == [("a", 20.0), ("b", 5.0)]
    assert len(list((tmp_path / "db" / "segments").glob("static*"))) == 1


def test_inserts_beside_restarts_count_wholly_or_not_at_all(db: Database) -> None:
    """What was acknowledged before the last restart is gone, what came after counts; what ran beside it is whole."""
    db.sql("CREATE VIEW v AS SELECT s.x, count(*) AS n, sum(w) AS w FROM s JOIN t ON s.x = t.x GROUP BY s.x")
    stop, failures = threading.Event(), list[BaseException]()

    def insert() -> None:
        try:
            while not stop.is_set():
                db.insert("s", [("a", 1), ("a", 1), ("b", 1)])
        except BaseException as error:
            failures.append(error)

    def read() -> None:
        try:
            while not stop.is_set():
                found = {x: (n, w) for x, n, w in db.sql("SELECT * FROM v")}
                a, b = found.get("a", (0, 0)), found.get("b", (0, 0))
                assert a[0] == 2 * b[0] and a[1] == 10 * a[0] and b[1] == 20 * b[0]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for work in (insert, insert, read)]
    for thread in threads:
        thread.start()
    for _ in range(8):
        db.sql("REFRESH VIEW v RESTART")
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    db.sql("REFRESH VIEW v RESTART")
    assert ask(db, "SELECT * FROM v") == []
    db.insert("s", [("b", 1)])
    assert ask(db, "SELECT * FROM v") == [("b", 1, 20)]


def test_compaction_beside_a_restart_does_not_bring_old_groups_back(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.sql("CREATE VIEW v AS SELECT x, count(*) AS n FROM s GROUP BY x")
    db.insert("s", [("a", 1)])
    assert ask(db, "SELECT * FROM v") == [("a", 1)]  # in memory now
    enter = Keeper.enter
    # As after so many rows: it is due, and nobody waits for it.
    due = {db.catalog.find("v").owns["s0"]: 10_000}
    compaction = threading.Thread(target=db.keeper.compaction.after, args=(due, {}))

    def compact_first(keeper: Keeper, view: ContinuousView) -> None:
        compaction.start()
        while db.runtime.store._writer._queue.empty():  # until its commit waits for this one
            time.sleep(0.001)
        enter(keeper, view)

    monkeypatch.setattr(Keeper, "enter", compact_first)
    db.sql("REFRESH VIEW v RESTART")
    compaction.join()
    assert ask(db, "SELECT * FROM v") == []
