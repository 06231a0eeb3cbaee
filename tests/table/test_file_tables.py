"""Tables over existing files: read at each query, a change of the files is a change of the table."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import DataError, HeadraceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def db() -> Iterator[headrace.Database]:
    with headrace.connect(None) as found:
        yield found


def write(path: Path, *rows: tuple[int, str, str]) -> None:
    """The same rows in the format of the file's name."""
    if path.suffix == ".parquet":
        table = pa.table(
            {
                "id": pa.array([r[0] for r in rows], pa.int32()),
                "name": pa.array([r[1] for r in rows], pa.string()),
                "price": pa.array([Decimal(r[2]) for r in rows], pa.decimal128(6, 2)),
            }
        )
        pq.write_table(table, path)
    elif path.suffix == ".json":
        path.write_text("".join(f'{{"id": {i}, "name": "{n}", "price": {p}}}\n' for i, n, p in rows))
    else:
        path.write_text("id;name;price\n" + "".join(f"{i};{n};{p}\n" for i, n, p in rows))


DECLARED = {
    "csv": "(id INT, name STRING, price DECIMAL(6,2)) USING csv OPTIONS (header 'true', sep ';')",
    "json": "(id INT, name STRING, price DECIMAL(6,2)) USING JSON",
    "parquet": "USING PARQUET",
}
FORMATS = sorted(DECLARED)


@pytest.mark.parametrize("format", FORMATS)
def test_files_are_read_at_each_query(db: headrace.Database, tmp_path: Path, format: str) -> None:
    write(tmp_path / f"a.{format}", (1, "bolt", "1.50"), (2, "nut", "0.25"))
    write(tmp_path / f"b.{format}", (3, "gear", "9.00"))
    said = db.sql(f"CREATE TABLE item {DECLARED[format]} LOCATION '{tmp_path}/*.{format}'")
    assert said.message == "table item created over 2 files, read at each query"
    assert db.sql("SELECT count(*), sum(price) FROM item").rows() == [(3, Decimal("10.75"))]
    assert db.sql("SELECT count(*) FROM item a JOIN item b ON a.id <= b.id").rows() == [(6,)]
    assert db.sql("SELECT name FROM item WHERE id = 3").rows() == [("gear",)]
    assert db.sql("SHOW TABLES").rows() == [("item", None, "")]
    write(tmp_path / f"c.{format}", (4, "wheel", "1.00"))
    assert db.sql("SELECT count(*), sum(price) FROM item").rows() == [(4, Decimal("11.75"))]
    (tmp_path / f"a.{format}").unlink()
    assert db.sql("SELECT min(id), max(id) FROM item").rows() == [(3, 4)]
    assert ("id", "int", "") in db.sql("DESCRIBE item").rows()
    (note,) = [r for r in db.sql("DESCRIBE item").rows() if r[0] == "# files"]
    assert note[1] == f"{tmp_path}/*.{format}"
    assert note[2].startswith(format) and note[2].endswith("read at each query")


@pytest.mark.parametrize("format", FORMATS)
def test_kept_answers_follow_the_files_and_build_sides_do_as_they_are_told(
    db: headrace.Database, tmp_path: Path, format: str
) -> None:
    path = tmp_path / f"item.{format}"
    write(path, (1, "bolt", "1.50"), (2, "nut", "0.25"))
    db.sql(f"CREATE TABLE item {DECLARED[format]} LOCATION '{path}'")
    db.sql("CREATE STREAM used (item INT)")
    db.sql(
        "CREATE VIEW above AS SELECT i.name, u.n FROM (SELECT item, count(*) AS n FROM used GROUP BY item) u "
        "JOIN item i ON u.item = i.id"
    )
    joined = "SELECT i.name, count(*) AS n FROM used u JOIN item i ON u.item = i.id GROUP BY 1"
    said = db.sql(f"CREATE VIEW below WITH (tables = 'frozen') AS {joined}")
    assert "item read now, once" in said.message
    db.sql(f"CREATE VIEW beside AS {joined}")
    db.insert("used", [(1,), (1,), (2,)])
    answers = [("bolt", 2), ("nut", 1)]
    assert sorted(db.sql("SELECT * FROM above").rows()) == sorted(db.sql("SELECT * FROM below").rows()) == answers
    evaluations = db.keeper.answers.evaluations
    assert sorted(db.sql("SELECT * FROM above").rows()) == answers
    assert db.keeper.answers.evaluations == evaluations, "nothing changed, so the kept answer serves"
    write(path, (1, "BOLT", "1.50"), (2, "nut", "0.25"))
    os.utime(path, ns=(1, 1))  # as large as before, and another time
    assert sorted(db.sql("SELECT * FROM above").rows()) == [("BOLT", 2), ("nut", 1)]
    db.insert("used", [(1,)])
    assert sorted(db.sql("SELECT * FROM below").rows()) == [("bolt", 3), ("nut", 1)]
    write(path, (1, "wheel", "1.50"), (2, "nut", "0.25"))
    db.insert("used", [(1,), (2,)])  # nobody has looked at the files before it
    assert sorted(db.sql("SELECT * FROM beside").rows()) == [("BOLT", 1), ("bolt", 2), ("nut", 2), ("wheel", 1)]
    path.unlink()
    with pytest.raises(DataError, match=r"PATH_NOT_FOUND.*view beside cannot read item as of now"):
        db.insert("used", [(1,)])
    assert db.sql("SELECT sum(n) FROM beside").rows() == [(6,)]


def test_a_vanished_file_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "item.csv"
    write(path, (1, "bolt", "1.50"))
    with headrace.connect(tmp_path / "db") as db:
        db.sql(f"CREATE TABLE item {DECLARED['csv']} LOCATION '{path}'")
        db.sql("CREATE VIEW names AS SELECT name FROM item")
    text = path.read_text()
    path.unlink()
    with headrace.connect(tmp_path / "db") as db:
        for query in ("SELECT * FROM item", "SELECT * FROM names", "CREATE TABLE t AS SELECT * FROM item"):
            with pytest.raises(DataError, match="PATH_NOT_FOUND") as error:
                db.sql(query)
            assert str(path) in error.value.message and "item" in error.value.message
        assert sorted(db.catalog.relations) == ["item", "names"]
        path.write_text(text)
        assert db.sql("SELECT * FROM names").rows() == [("bolt",)]


def test_a_directory_and_a_relative_path(
    db: headrace.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "items").mkdir()
    write(tmp_path / "items" / "part-0.json", (1, "bolt", "1.50"))
    (tmp_path / "items" / "_SUCCESS").touch()
    monkeypatch.chdir(tmp_path)
    db.sql(f"CREATE TABLE item {DECLARED['json']} LOCATION 'items'")
    monkeypatch.chdir("/")
    assert db.sql("SELECT name FROM item").rows() == [("bolt",)]


def test_parquet_tells_its_columns_or_takes_declared_ones(db: headrace.Database, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(
        pa.table(
            {
                "N": pa.array([1, 2**40]),
                "at": pa.array([datetime.datetime(2024, 1, 2)], pa.timestamp("ns")).take([0, 0]),
            }
        ),
        path,
    )
    db.sql(f"CREATE TABLE own USING parquet LOCATION '{path}'")
    assert [r[:2] for r in db.sql("DESCRIBE own").rows()][:2] == [("N", "bigint"), ("at", "timestamp_ntz")]
    db.sql(f"CREATE TABLE narrow (n INT) USING parquet LOCATION '{path}'")
    with pytest.raises(DataError, match=r"PARQUET_BAD_VALUE.*x.parquet, row 2: column n: 1099511627776 is no int"):
        db.sql("SELECT sum(n) FROM narrow")


def test_bad_values_name_file_row_and_column(db: headrace.Database, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1,2\nx,3\n")
    db.sql(f"CREATE TABLE t (a INT, b INT) USING csv LOCATION '{tmp_path}/x.csv'")
    assert db.sql("SELECT sum(b) FROM t").rows() == [(5,)]
    with pytest.raises(DataError, match=r"CSV_BAD_VALUE.*x.csv, row 2: column a"):
        db.sql("SELECT sum(a) FROM t")


def test_rows_are_not_written_into_files(db: headrace.Database, tmp_path: Path) -> None:
    write(tmp_path / "a.json", (1, "bolt", "1.50"))
    db.sql(f"CREATE TABLE item {DECLARED['json']} LOCATION '{tmp_path}/a.json'")
    for run in (
        lambda: db.sql("INSERT INTO item VALUES (1, 'x', 1)"),
        lambda: db.sql(f"COPY item FROM '{tmp_path}/a.json'"),
        lambda: db.insert("item", [(1, "x", 1)]),
        lambda: db.copy("item", tmp_path / "a.json"),
    ):
        with pytest.raises(HeadraceError, match="CANNOT_INSERT_INTO_FILES"):
            run()
    db.sql("DROP TABLE item")
    assert (tmp_path / "a.json").exists()


@pytest.mark.parametrize(
    ("clause", "condition", "position"),
    [
        ("(a INT) USING orc LOCATION 'x'", "NOT_YET_SUPPORTED", (1, 30)),
        ("(a INT) USING csv", "NOT_YET_SUPPORTED", (1, 30)),
        ("USING delta AS SELECT 1 AS a", "NOT_YET_SUPPORTED", (1, 22)),
        ("(a INT) USING", "PARSE_SYNTAX_ERROR", None),
        ("(a INT) USING parquet OPTIONS (header 'true')", "PARSE_SYNTAX_ERROR", None),
        ("(a INT) USING parquet TBLPROPERTIES ('a' = 'b')", "PARSE_SYNTAX_ERROR", (1, 38)),
        ("(a INT) USING parquet AS SELECT 1 AS a", "SCHEMA_IN_CREATE_TABLE_AS", (1, 17)),
        ("(a INT) LOCATION 'x'", "NOT_YET_SUPPORTED", None),
        ("(a INT) USING csv LOCATION x", "PARSE_SYNTAX_ERROR", (1, 43)),
        ("(a INT) USING csv LOCATION 'nowhere/*.csv'", "PATH_NOT_FOUND", (1, 14)),
        ("(a INT) USING csv OPTIONS (colour 'red') LOCATION '{}/a.csv'", "COPY_OPTION_UNKNOWN", None),
        ("(a INT) USING json OPTIONS (header 'true') LOCATION '{}/a.json'", "OPTION_UNKNOWN", None),
        ("(a INT) USING csv OPTIONS (header 'true', HEADER true) LOCATION 'x'", "REPEATED_OPTION", (1, 58)),
        ("USING csv LOCATION '{}/a.csv'", "MISSING_COLUMNS", (1, 14)),
        ("(a INT PRIMARY KEY) USING csv LOCATION '{}/a.csv'", "FILES_WITH_KEY", (1, 17)),
        (
            "(id INT, nope INT) USING csv OPTIONS (header 'true', sep ';') LOCATION '{}/a.csv'",
            "UNKNOWN_COLUMN",
            (1, 14),
        ),
        ("USING parquet LOCATION '{}/a.csv'", "PARQUET_UNREADABLE", (1, 14)),
        ("USING s3 LOCATION 's3://x'", "NOT_YET_SUPPORTED", None),
        ("USING csv LOCATION 'x' AS SELECT 1", "PARSE_SYNTAX_ERROR", (1, 39)),
    ],
)
def test_what_is_refused_changes_nothing(
    db: headrace.Database, tmp_path: Path, clause: str, condition: str, position: tuple[int, int] | None
) -> None:
    write(tmp_path / "a.csv", (1, "x", "1"))
    write(tmp_path / "a.json", (1, "x", "1"))
    before = db.catalog
    with pytest.raises(HeadraceError) as error:
        db.sql("CREATE TABLE t " + clause.replace("{}", str(tmp_path)))
    assert error.value.condition == condition
    found = error.value.position
    assert position is None or (found is not None and (found.line, found.column) == position)
    assert db.catalog is before


@pytest.mark.spark
@pytest.mark.parametrize("format", FORMATS)
def test_differential_spark_sql_reads_them_too(tmp_path: Path, spark: SparkSession, format: str) -> None:
    path = tmp_path / f"item.{format}"
    write(path, (1, "bolt", "1.50"), (2, "nut", "0.25"), (3, "nut", "0.75"))
    with headrace.connect(None, spark=spark) as db:
        db.sql(f"CREATE TABLE item {DECLARED[format]} LOCATION '{path}'")
        query = "SELECT id, reverse(name) AS back FROM item"
        assert sorted(db.sql(query).rows()) == [(1, "tlob"), (2, "tun"), (3, "tun")]


def test_a_view_over_a_view_sees_the_files_below_it_change(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("1,a\n")
    with headrace.connect(engine="native") as db:
        db.sql(f"CREATE TABLE t (id INT, name STRING) USING csv LOCATION '{file}'")
        db.sql("CREATE STREAM s (id INT)")
        grouped = "(SELECT id, count(*) AS n FROM s GROUP BY id) g"
        db.sql(f"CREATE VIEW v AS SELECT t.name, g.n FROM {grouped} JOIN t ON g.id = t.id")
        db.sql("CREATE VIEW w AS SELECT v.name, v.n, c.m FROM v CROSS JOIN (SELECT count(*) AS m FROM s) c")
        db.insert("s", [(1,), (2,)])
        assert db.sql("SELECT * FROM w").rows() == [("a", 1, 2)]
        file.write_text("1,a\n2,bb\n")
        assert sorted(db.sql("SELECT * FROM w").rows()) == [("a", 1, 2), ("bb", 1, 2)]
