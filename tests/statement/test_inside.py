"""The schema ``headrace``: what a database says of itself, in any query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace
from headrace import HeadraceError
from headrace.database import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with headrace.connect(tmp_path / "db", compact_rows=4) as db:
        make(db)
        yield db


def make(db: Database) -> None:
    db.sql("CREATE STREAM Clicks (k INT, g STRING)")
    db.sql("CREATE STREAM idle (k INT)")
    db.sql("CREATE TABLE t (k INT)")
    db.sql("CREATE VIEW V AS SELECT g, sum(k) AS s, count(DISTINCT k) AS d FROM clicks GROUP BY g")
    db.sql("CREATE VIEW o AS SELECT k FROM t")


def one(db: Database, text: str) -> dict[str, Any]:
    [row] = db.sql(text).arrow().to_pylist()
    return dict(row)


def test_state_is_the_merged_rows_named_by_their_meaning(db: Database) -> None:
    db.insert("clicks", [(1, "a"), (2, "a"), (1, "b")])
    db.insert("clicks", [(1, "a")])
    found = db.sql("SELECT * FROM headrace.state('v') ORDER BY g")
    assert found.columns == ["g", "sum(k)"]
    assert found.rows() == [("a", 4), ("b", 1)]
    assert sorted(db.sql("SELECT g, k FROM headrace.state('V', 's1')")) == [("a", 1), ("a", 2), ("b", 1)]
    joined = "SELECT V.g, state.`sum(k)` = V.s AS same FROM V JOIN headrace.state('v') ON V.g = state.g"
    assert sorted(db.sql(joined)) == [("a", True), ("b", True)]


def test_equal_labels_are_told_apart(db: Database) -> None:
    db.sql(
        "CREATE VIEW w AS SELECT k % 2 AS p, count(*) FILTER (WHERE k > 1) AS a, count(*) AS b FROM clicks GROUP BY 1"
    )
    assert db.sql("SELECT * FROM headrace.state('w')").columns == ["p", "count(1) where (k > 1)", "count(1)"]
    db.sql("CREATE VIEW x AS SELECT sum(k) AS a, sum(k + 1) AS b FROM clicks")
    assert db.sql("SELECT * FROM headrace.state('x')").columns == ["sum(k)", "sum(k) 2"]


def test_views_say_what_they_keep_and_where_it_runs(db: Database) -> None:
    new = one(db, "SELECT * FROM headrace.views WHERE name = 'V'")
    assert (new["kind"], new["reads"], new["states"]) == ("continuous", "Clicks", "s0, s1")
    assert new["created_epoch"] == new["since_epoch"] == new["last_change_epoch"] == 4
    assert (new["state_rows"], new["queue_rows"], new["state_bytes"]) == (0, 0, 0)
    assert new["last_refresh"] is None and new["retain"] is None and new["late_rows"] is None
    db.insert("clicks", [(1, "a"), (2, "b")])
    db.insert("clicks", [(1, "a")])
    row = one(db, "SELECT * FROM headrace.views WHERE name = 'V'")
    # 8 bytes of a sum or 4 of an int, and the text
    assert (row["state_rows"], row["queue_rows"], row["state_bytes"]) == (6, 6, 3 * (8 + 1) + 3 * (4 + 1))
    assert (row["insert_place"], row["query_place"]) == ("native", "native")
    assert "task_bytes" in row["insert_reason"]
    db.insert("clicks", [(1, "a"), (1, "b"), (1, "c")])  # past compact_rows: merged
    assert one(db, "SELECT queue_rows FROM headrace.views WHERE name = 'V'") == {"queue_rows": 0}
    db.sql("SELECT * FROM v")
    row = one(db, "SELECT * FROM headrace.views WHERE name = 'V'")
    assert row["last_refresh_epoch"] == row["last_change_epoch"] and row["last_refresh_rows"] == 3
    assert row["last_refresh_seconds"] > 0 and row["last_refresh"] is not None
    ordinary = one(db, "SELECT * FROM headrace.views WHERE kind = 'ordinary'")
    assert (ordinary["name"], ordinary["reads"], ordinary["state_rows"]) == ("o", "t", None)
    assert db.sql("SHOW VIEWS").rows() == db.sql("SELECT name, kind, reads, state_rows FROM headrace.views").rows()


def test_streams_count_their_rows_for_good(db: Database, tmp_path: Path) -> None:
    db.insert("clicks", [(1, "a"), (2, "b")])
    db.sql("INSERT INTO clicks VALUES (3, 'c')")
    row = one(db, "SELECT * FROM headrace.streams WHERE name = 'Clicks'")
    assert (row["columns"], row["read_by"], row["rows"], row["rows_since_open"]) == (2, "V", 3, 3)
    assert row["rows_per_second"] == 3 / 60
    assert one(db, "SELECT rows, rows_per_second FROM headrace.streams WHERE name = 'idle'") == {
        "rows": 0,
        "rows_per_second": 0.0,
    }
    db.close()
    with headrace.connect(tmp_path / "db") as again:
        again.insert("clicks", [(1, "a")])
        asked = "SELECT rows, rows_since_open FROM headrace.streams WHERE name = 'Clicks'"
        assert again.sql(asked).rows() == [(4, 1)]
        for text in ("DROP VIEW v", "DROP STREAM clicks", "CREATE STREAM Clicks (k INT)"):
            again.sql(text)
        again.insert("clicks", [(1,), (2,)])
        assert again.sql(asked).rows() == [(2, 2)]


def test_epochs_say_what_was_done_to_what(db: Database) -> None:
    db.insert("clicks", [(1, "a"), (2, "b")])
    db.sql("INSERT INTO t VALUES (1)")
    found = db.sql("SELECT epoch, label, relations, rows, late_rows FROM headrace.epochs WHERE epoch > 3 ORDER BY 1")
    assert found.rows() == [
        (4, "CREATE VIEW V", "V", None, None),
        (5, "CREATE VIEW o", "", None, None),
        (6, "INSERT INTO Clicks", "Clicks, V", 2, None),
        (7, "INSERT INTO t", "t", 1, None),
    ]
    times = [t for (t,) in db.sql("SELECT time FROM headrace.epochs ORDER BY epoch")]
    assert times == sorted(times)
    db.sql("CREATE TABLE log (epoch BIGINT, label STRING)")
    db.sql("INSERT INTO log SELECT epoch, label FROM headrace.epochs WHERE rows > 1")
    assert db.sql("SELECT * FROM log").rows() == [(6, "INSERT INTO Clicks")]


def test_spark_sql_reads_them_too(spark: SparkSession) -> None:
    with headrace.connect(spark=spark) as db:
        make(db)
        db.insert("clicks", [(1, "a"), (2, "a"), (1, "b")])
        ranked = db.sql(
            "SELECT g, size(collect_list(g) OVER (ORDER BY g)) AS r, views.kind "
            "FROM headrace.state('v') s JOIN headrace.views ON views.name = 'V'"
        )
        assert sorted(ranked.rows()) == [("a", 1, "continuous"), ("b", 2, "continuous")]


@pytest.mark.parametrize(
    ("text", "condition", "says"),
    [
        ("SELECT * FROM headrace.view", "TABLE_OR_VIEW_NOT_FOUND", "headrace.views?"),
        ("SELECT * FROM headrace.parts('v')", "TABLE_OR_VIEW_NOT_FOUND", "headrace.state('view')"),
        ("SELECT * FROM headrace.state('w')", "TABLE_OR_VIEW_NOT_FOUND", "no relation w"),
        ("SELECT * FROM headrace.state('t')", "WRONG_COMMAND_FOR_OBJECT_TYPE", "t is a table"),
        ("SELECT * FROM headrace.state('o')", "VIEW_KEEPS_NOTHING", "ordinary view"),
        ("SELECT * FROM headrace.state('v', 's2')", "STATE_NOT_FOUND", "it keeps s0, s1"),
        ("SELECT * FROM headrace.state(v)", "INVALID_ARGUMENT", "in quotes"),
        ("SELECT * FROM headrace.state()", "WRONG_NUM_ARGS", "headrace.state('view')"),
        ("CREATE VIEW z AS SELECT * FROM headrace.views", "SYSTEM_RELATION_IN_VIEW", "query it directly"),
        ("SELECT * FROM elsewhere.views", "NOT_YET_SUPPORTED", "schema"),
        ("INSERT INTO headrace.views VALUES (1)", "NOT_YET_SUPPORTED", "schema"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_named(db: Database, text: str, condition: str, says: str) -> None:
    with pytest.raises(HeadraceError) as refused:
        db.sql(text)
    assert refused.value.condition == condition
    assert says in str(refused.value) and refused.value.position is not None
