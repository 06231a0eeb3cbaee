"""CREATE TABLE … AS: types from the query, definition and rows in one commit."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from unittest import mock

import pytest

import headrace
from headrace.errors import HeadraceError
from headrace.table import rows as tables


@pytest.fixture
def db() -> Iterator[headrace.Database]:
    with headrace.connect(None) as found:
        found.sql("CREATE TABLE t (id INT PRIMARY KEY, price DECIMAL(5,2) NOT NULL)")
        found.sql("INSERT INTO t VALUES (1, 1.50), (2, 2.25)")
        found.sql("CREATE STREAM s (k STRING, n INT)")
        found.sql("CREATE VIEW v AS SELECT k, sum(n) AS n FROM s GROUP BY k")
        found.sql("INSERT INTO s VALUES ('a', 1), ('a', 2), ('b', 3)")
        yield found


def described(db: headrace.Database, name: str) -> list[tuple[str, str]]:
    return [(r[0], r[1]) for r in db.sql(f"DESCRIBE {name}").rows() if not r[0].startswith("#")]


def test_types_and_rows_come_from_the_query(db: headrace.Database) -> None:
    said = db.sql("CREATE TABLE twice AS SELECT id + 1 AS next, price * 2 AS price, count(*) AS n FROM t GROUP BY ALL")
    assert said.message == "table twice created with 2 rows"
    assert described(db, "twice") == [("next", "int"), ("price", "decimal(7,2)"), ("n", "bigint")]
    assert sorted(db.sql("SELECT * FROM twice").rows()) == [(2, Decimal("3.00"), 1), (3, Decimal("4.50"), 1)]
    db.sql("INSERT INTO twice VALUES (9, 9, 9)")
    assert db.sql("SELECT count(*) FROM twice").rows() == [(3,)]


def test_from_views_values_and_tables_by_name(db: headrace.Database) -> None:
    db.sql("CREATE TABLE kept AS SELECT * FROM v")
    db.sql("INSERT INTO s VALUES ('a', 100)")
    assert sorted(db.sql("SELECT * FROM kept").rows()) == [("a", 3), ("b", 3)]
    db.sql("CREATE TABLE two AS VALUES (1, 'x'), (2, 'y')")
    assert db.sql("SELECT col2 FROM two WHERE col1 = 2").rows() == [("y",)]
    db.sql("CREATE TABLE copied AS TABLE t")
    assert db.sql("SELECT count(*), sum(price) FROM copied").rows() == [(2, Decimal("3.75"))]


def test_a_large_result_is_a_segment_and_survives_reopening(tmp_path: Path) -> None:
    with mock.patch.object(tables, "TAIL_ROWS", 3), headrace.connect(tmp_path / "db") as db:
        db.sql("CREATE TABLE few AS VALUES (1), (2)")
        db.sql("CREATE TABLE many AS SELECT a.col1 AS x, b.col1 AS y FROM few a CROSS JOIN few b")
        assert len(list((tmp_path / "db" / "segments").iterdir())) == 1
    with headrace.connect(tmp_path / "db") as db:
        assert db.sql("SELECT count(*) FROM many").rows() == [(4,)]
        assert db.sql("SHOW TABLES").rows() == [("few", 2, ""), ("many", 4, "")]


def test_if_not_exists_and_empty_results(db: headrace.Database) -> None:
    assert db.sql("CREATE TABLE none AS SELECT * FROM t WHERE id > 9").message == "table none created with 0 rows"
    said = db.sql("CREATE TABLE IF NOT EXISTS none AS SELECT * FROM nowhere")
    assert said.message == "none exists already"
    assert described(db, "none") == [("id", "int"), ("price", "decimal(5,2)")]


@pytest.mark.parametrize(
    ("text", "condition", "position"),
    [
        ("CREATE TABLE t AS SELECT 1 AS a", "TABLE_OR_VIEW_ALREADY_EXISTS", (1, 14)),
        ("CREATE TABLE x AS SELECT 1 AS a, 2 AS A", "COLUMN_ALREADY_EXISTS", (1, 14)),
        ("CREATE TABLE x AS SELECT NULL AS a", "NOT_YET_SUPPORTED", (1, 14)),
        ("CREATE TABLE x AS\nSELECT nope FROM t", "UNRESOLVED_COLUMN", (2, 8)),
        ("CREATE TABLE x (a INT) AS SELECT 1", "SCHEMA_IN_CREATE_TABLE_AS", (1, 17)),
        ("CREATE TABLE x AS SELECT 1 / 0 AS a", "DIVIDE_BY_ZERO", None),
        ("CREATE TABLE x AS TABLE", "PARSE_SYNTAX_ERROR", None),
    ],
)
def test_what_is_refused_changes_nothing(
    db: headrace.Database, text: str, condition: str, position: tuple[int, int] | None
) -> None:
    before = db.catalog
    with pytest.raises(HeadraceError) as error:
        db.sql(text)
    assert error.value.condition == condition
    found = error.value.position
    assert position is None or (found is not None and (found.line, found.column) == position)
    assert db.catalog is before


def test_a_view_as_a_table_by_name(db: headrace.Database) -> None:
    db.sql("CREATE VIEW all_of_t AS TABLE t")
    assert db.sql("SELECT count(*) FROM all_of_t").rows() == [(2,)]
    with pytest.raises(HeadraceError, match="STREAM_NOT_GROUPED"):
        db.sql("CREATE VIEW w AS TABLE s")


def explained(db: headrace.Database, statement: str) -> list[str]:
    return [line for (line,) in db.sql(f"EXPLAIN {statement}").rows()]


def test_explain_shows_the_query_and_makes_nothing(db: headrace.Database) -> None:
    lines = explained(db, "CREATE TABLE dear AS SELECT id, price * 2 AS twice FROM t WHERE price > 2")
    assert lines[0] == "Table dear (`id` int, `twice` decimal(7,2)), filled once, by native"
    assert any("Filter" in line for line in lines) and any("t" in line.split() for line in lines)
    assert db.catalog.find("dear") is None
    for statement, condition in (
        ("CREATE TABLE t AS SELECT 1 AS one", "TABLE_OR_VIEW_ALREADY_EXISTS"),
        ("CREATE TABLE x AS SELECT 1 AS one, 2 AS one", "COLUMN_ALREADY_EXISTS"),
    ):
        with pytest.raises(HeadraceError) as error:
            explained(db, statement)
        assert error.value.condition == condition


def test_explain_of_insert_shows_its_query_and_whom_it_feeds(db: headrace.Database) -> None:
    lines = explained(db, "INSERT INTO s SELECT CAST(id AS STRING), id FROM t WHERE id > 1")
    assert lines[0] == "Rows for s, by native" and lines[-1] == "  feeds v"
    assert any("Filter" in line for line in lines)
    assert db.sql("SELECT sum(n) FROM v").rows() == [(6,)], "nothing is inserted"
    for statement, condition in (
        ("INSERT INTO v SELECT 1, 2", "CANNOT_INSERT_INTO_VIEW"),
        ("INSERT INTO t SELECT 1", "INSERT_COLUMN_ARITY_MISMATCH"),
    ):
        with pytest.raises(HeadraceError) as error:
            explained(db, statement)
        assert error.value.condition == condition


@pytest.mark.parametrize("using", ["USING parquet", "using PARQUET"])
def test_a_table_using_parquet_keeps_its_own_rows(tmp_path: Path, using: str) -> None:
    with headrace.connect(tmp_path / "db.hr") as db:
        db.sql(f"CREATE TABLE t (a INT PRIMARY KEY, b STRING) {using}")
        db.sql(f"CREATE TABLE IF NOT EXISTS t (a INT) {using}")
        db.sql("INSERT INTO t VALUES (1, 'x')")
        db.sql(f"CREATE TABLE u {using} AS SELECT a + 1 AS a FROM t JOIN (SELECT 1 AS a) USING (a)")
        db.sql(f"CREATE TABLE w {using} AS TABLE u")
    with headrace.connect(tmp_path / "db.hr") as db:
        assert db.sql("SELECT t.a, b, u.a, w.a FROM t, u, w").rows() == [(1, "x", 2, 2)]
        db.sql("INSERT INTO u VALUES (3)")
