"""Bad input: each line of the table gives a named error that says what is wrong, and changes nothing."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.database import Database
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETUP = (
    "CREATE STREAM s (a INT, b STRING, d DATE, p DECIMAL(6,2))",
    "CREATE STREAM strict (a INT NOT NULL, b STRING)",
    "CREATE STREAM nested (p STRUCT<a: INT, w: ARRAY<DOUBLE>>, w ARRAY<DOUBLE>)",
    "CREATE TABLE t (k INT PRIMARY KEY, v STRING NOT NULL)",
    "INSERT INTO t VALUES (1, 'x'), (0, 'zero')",
    "CREATE VIEW v AS SELECT b, sum(a) AS a, max(d) AS d, sum(p) AS p, count(*) AS c FROM s GROUP BY b",
    "CREATE VIEW sv AS SELECT b, sum(a) AS a FROM strict GROUP BY b",
    "CREATE VIEW o AS SELECT k FROM t",
    "INSERT INTO s VALUES (1, 'x', DATE '2024-01-01', 1.5)",
)


@pytest.fixture(scope="module")
def db() -> Iterator[Database]:
    with headrace.connect() as database:
        for statement in SETUP:
            database.sql(statement)
        yield database
        assert not database.runtime.session.started, "nothing here needs Spark"


def contents(db: Database) -> tuple[Any, ...]:
    """All that a failed statement may not change: epoch, catalog, every stored row, every file."""
    with db.runtime.store.read() as snapshot:
        rows = {name: sorted(map(repr, snapshot.scan(name).to_pylist())) for name in snapshot.relations()}
        # Copies for Spark are kept for the next statement that reads the same.
        files = sorted(p.name for p in db.path.glob("s*/*") if not p.name.startswith("copy-"))
        return snapshot.epoch, db.catalog.version, rows, files


def refused(db: Database, use: Any, condition: str, *texts: str) -> HeadraceError:
    before = contents(db)
    with pytest.raises(HeadraceError) as error:
        use()
    assert error.value.condition == condition, str(error.value)
    for text in texts:
        assert text in str(error.value)
    assert contents(db) == before
    return error.value


STATEMENTS: list[tuple[str, str, str]] = [
    # malformed SQL
    ("", "PARSE_EMPTY_STATEMENT", ""),
    ("-- nothing", "PARSE_EMPTY_STATEMENT", ""),
    ("SELEC 1", "PARSE_SYNTAX_ERROR", ""),
    ("SELECT FROM WHERE", "PARSE_SYNTAX_ERROR", ""),
    ("SELECT (1", "PARSE_SYNTAX_ERROR", ""),
    ("SELECT 'open", "PARSE_SYNTAX_ERROR", "not closed"),
    ("SELECT `open", "PARSE_SYNTAX_ERROR", "not closed"),
    ("CREATE", "PARSE_SYNTAX_ERROR", "STREAM"),
    ("CREATE STREAM", "PARSE_SYNTAX_ERROR", ""),
    ("CREATE STREAM x (a", "PARSE_SYNTAX_ERROR", ""),
    ("CREATE VIEW x AS", "PARSE_SYNTAX_ERROR", ""),
    ("CREATE FOREIGN TABLE x (a INT) SERVER other", "PARSE_SYNTAX_ERROR", "SERVER stream"),
    ("DROP", "PARSE_SYNTAX_ERROR", "STREAM, TABLE, VIEW or SAMPLE"),
    ("DROP VIEW v extra", "PARSE_SYNTAX_ERROR", ""),
    ("INSERT INTO s", "PARSE_SYNTAX_ERROR", ""),
    ("COPY s FROM", "PARSE_SYNTAX_ERROR", "path"),
    ("COPY s 'x.csv'", "PARSE_SYNTAX_ERROR", "FROM"),
    ("SHOW THINGS", "PARSE_SYNTAX_ERROR", ""),
    # unknown and duplicate names
    ("SELECT * FROM nowhere", "TABLE_OR_VIEW_NOT_FOUND", "line 1, column 15"),
    ("SELECT * FROM vv", "TABLE_OR_VIEW_NOT_FOUND", "did you mean v?"),
    ("SELECT nothing FROM v", "UNRESOLVED_COLUMN", "line 1, column 8"),
    ("SELECT x.b FROM v", "UNRESOLVED_COLUMN", "line 1"),
    ("SELECT b FROM v a JOIN v b ON a.b = b.b", "AMBIGUOUS_REFERENCE", "b"),
    ("INSERT INTO nowhere VALUES (1)", "TABLE_OR_VIEW_NOT_FOUND", "nowhere"),
    ("INSERT INTO s (a, nothing) VALUES (1, 2)", "UNRESOLVED_COLUMN", "nothing"),
    ("INSERT INTO s (a, A) VALUES (1, 2)", "COLUMN_ALREADY_EXISTS", "A"),
    ("INSERT INTO v VALUES (1)", "CANNOT_INSERT_INTO_VIEW", "s"),
    ("COPY nowhere FROM 'x.csv'", "TABLE_OR_VIEW_NOT_FOUND", "nowhere"),
    ("COPY v FROM 'x.csv'", "CANNOT_INSERT_INTO_VIEW", "v"),
    ("DESCRIBE nowhere", "TABLE_OR_VIEW_NOT_FOUND", "nowhere"),
    ("DROP VIEW nowhere", "TABLE_OR_VIEW_NOT_FOUND", "nowhere"),
    ("DROP TABLE v", "WRONG_COMMAND_FOR_OBJECT_TYPE", "v is a view"),
    ("DROP STREAM s", "RELATION_IN_USE", "v"),
    ("DROP TABLE t", "RELATION_IN_USE", "o"),
    ("CREATE STREAM S (a INT)", "TABLE_OR_VIEW_ALREADY_EXISTS", "s exists already, as a stream"),
    ("CREATE TABLE v (a INT)", "TABLE_OR_VIEW_ALREADY_EXISTS", "as a view"),
    ("CREATE VIEW t AS SELECT 1", "TABLE_OR_VIEW_ALREADY_EXISTS", "as a table"),
    ("CREATE TABLE x (a INT, A INT)", "COLUMN_ALREADY_EXISTS", "A"),
    ("CREATE VIEW x AS SELECT b, B FROM v", "COLUMN_ALREADY_EXISTS", "alias"),
    ("CREATE TABLE x (a INT, PRIMARY KEY (b))", "UNRESOLVED_COLUMN", "b"),
    ("CREATE STREAM x (a INT PRIMARY KEY)", "STREAM_WITH_KEY", "x"),
    # wrong counts and types
    ("INSERT INTO s VALUES (1, 'x')", "INSERT_COLUMN_ARITY_MISMATCH", "2"),
    ("INSERT INTO s (a, b) VALUES (1)", "INSERT_COLUMN_ARITY_MISMATCH", ""),
    ("INSERT INTO s SELECT 1, 'x', NULL, 1.0, 2", "INSERT_COLUMN_ARITY_MISMATCH", "5"),
    ("INSERT INTO s VALUES (1, 'x', NULL, 1), (2)", "INVALID_INLINE_TABLE", ""),
    ("INSERT INTO s (a) VALUES ('x')", "INCOMPATIBLE_DATA_FOR_TABLE", "column a"),
    ("INSERT INTO s (d) VALUES (1)", "INCOMPATIBLE_DATA_FOR_TABLE", "column d"),
    ("INSERT INTO t VALUES (NULL, 'x')", "NULL_IN_NOT_NULL", "column k"),
    ("INSERT INTO t VALUES (7, NULL)", "NULL_IN_NOT_NULL", "column v"),
    ("INSERT INTO t VALUES (7, 'x'), (1, 'y')", "PRIMARY_KEY_VIOLATION", "k = 1"),
    ("INSERT INTO strict (b) VALUES ('x')", "NULL_IN_NOT_NULL", "column a"),
    ("SELECT * FROM v WHERE a", "DATATYPE_MISMATCH", ""),
    ("SELECT b FROM v GROUP BY a", "MISSING_AGGREGATION", "b"),
    ("SELECT k FROM t UNION ALL SELECT k, v FROM t", "NUM_COLUMNS_MISMATCH", ""),
    ("CREATE VIEW x (p, q) AS SELECT b FROM v", "CREATE_VIEW_COLUMN_ARITY_MISMATCH", "2"),
    ("CREATE TABLE x (a NOTYPE)", "UNSUPPORTED_DATATYPE", "NOTYPE"),
    ("CREATE TABLE x (a MAP<FLOAT, INT>)", "NOT_YET_SUPPORTED", "ARRAY<STRUCT<key"),
    ("CREATE TABLE x (a ARRAY<INT> PRIMARY KEY)", "NOT_YET_SUPPORTED", "plain columns"),
    ("CREATE VIEW x AS SELECT w, count(*) FROM nested GROUP BY w", "STATE_TYPE_NOT_SUPPORTED", "without floats"),
    ("CREATE VIEW x AS SELECT count(DISTINCT p.w) FROM nested", "STATE_TYPE_NOT_SUPPORTED", "without floats"),
    ("CREATE VIEW x AS SELECT p.z, count(*) FROM nested GROUP BY p.z", "FIELD_NOT_FOUND", "its fields are a, w"),
    ("CREATE VIEW x AS SELECT max(nested.p.a.z) FROM nested", "INVALID_EXTRACT_BASE_FIELD_TYPE", "int has no field z"),
    ("SELECT k.a FROM t", "INVALID_EXTRACT_BASE_FIELD_TYPE", "no field a"),
    ("CREATE TABLE x (a DECIMAL(39, 2))", "DECIMAL_PRECISION_EXCEEDS_MAX_PRECISION", "38 digits"),
    ("CREATE TABLE x", "MISSING_COLUMNS", "x"),
    # views the split rules refuse
    ("CREATE VIEW x AS SELECT a FROM s", "STREAM_NOT_GROUPED", "group the stream"),
    ("CREATE VIEW x AS SELECT s.a FROM s JOIN strict ON s.b = strict.b", "STREAM_JOIN_NOT_GROUPED", "group each"),
    (
        "CREATE VIEW x AS SELECT t.k, count(*) FROM t LEFT JOIN s ON s.a = t.k GROUP BY t.k",
        "STREAM_ON_BUILD_SIDE",
        "group it before",
    ),
    (
        "CREATE VIEW x AS SELECT b, count(*) FROM (SELECT b FROM s ORDER BY a LIMIT 3) g GROUP BY b",
        "SORT_BELOW_GROUPING",
        "sort the groups",
    ),
    ("CREATE VIEW x AS SELECT count(*) FROM s WHERE d < current_date()", "NONDETERMINISTIC_VIEW", "leave it out"),
    ("CREATE VIEW x AS SELECT sum(rand()) FROM s", "NONDETERMINISTIC_VIEW", "rand"),
    # what later brings
    ("CREATE MATERIALIZED VIEW x AS SELECT 1 AS one", "NOT_YET_SUPPORTED", "reads no table"),
    ("CREATE MATERIALIZED VIEW x AS SELECT d, count(*) FROM s GROUP BY d", "NOT_YET_SUPPORTED", "stream"),
    ("CREATE OR REPLACE STREAM s (a INT)", "NOT_YET_SUPPORTED", "CREATE OR REPLACE"),
    ("CREATE STREAM x AS SELECT 1", "NOT_YET_SUPPORTED", "CREATE STREAM"),
    ("ALTER TABLE t ALTER COLUMN k TYPE STRING", "NOT_YET_SUPPORTED", "another type"),
    ("DROP VIEW v CASCADE RESTRICT", "PARSE_SYNTAX_ERROR", "RESTRICT"),
    ("COPY t TO 'x.csv'", "NOT_YET_SUPPORTED", "COPY"),
    # values
    ("INSERT INTO s (a) VALUES (2147483647 + 1)", "ARITHMETIC_OVERFLOW", ""),
    ("INSERT INTO s (a) VALUES (3000000000)", "CAST_OVERFLOW_IN_TABLE_INSERT", "3000000000"),
    ("INSERT INTO s (p) VALUES (12345.6)", "NUMERIC_VALUE_OUT_OF_RANGE", ""),
    ("INSERT INTO s (a) VALUES (CAST('x' AS INT))", "CAST_INVALID_INPUT", "x"),
    ("INSERT INTO s (d) VALUES (DATE '2024-02-30')", "INVALID_TYPED_LITERAL", "2024-02-30"),
    ("INSERT INTO s (a) SELECT 1 div k FROM t", "DIVIDE_BY_ZERO", "nullif"),
    ("SELECT 1 / k FROM t", "DIVIDE_BY_ZERO", "nullif"),
    ("SELECT 5 % k FROM t", "REMAINDER_BY_ZERO", ""),
    ("SELECT CAST(v AS INT) FROM t", "CAST_INVALID_INPUT", "try_cast"),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "condition", "text"), STATEMENTS, ids=[x[0][:60] or "empty" for x in STATEMENTS])
def test_statements(db: Database, statement: str, condition: str, text: str) -> None:
    error = refused(db, lambda: db.sql(statement), condition.split(".")[0], text)
    assert type(error) is not HeadraceError or condition in ("USAGE",)
    if condition in ("TABLE_OR_VIEW_NOT_FOUND", "UNRESOLVED_COLUMN") and "PRIMARY KEY" not in statement:
        assert error.position is not None


@pytest.mark.spark
@pytest.mark.parametrize(
    ("statement", "condition"),
    [
        ("SELECT nofunction(b) FROM v", "UNRESOLVED_ROUTINE"),
        ("SELECT a FROM v WHERE b + DATE '2024-01-01' > 1", "DATATYPE_MISMATCH"),
        ("SELECT sum(a) OVER () + true FROM v", "DATATYPE_MISMATCH"),
        ("CREATE VIEW x AS SELECT nofunction(b), count(*) FROM s GROUP BY 1", "UNRESOLVED_ROUTINE"),
        ("SELECT assert_true(k > 5) FROM t", "USER_RAISED_EXCEPTION"),
    ],
)
def test_statements_that_spark_judges(spark: SparkSession, statement: str, condition: str) -> None:
    with headrace.connect(spark=spark) as db:
        for one in SETUP:
            db.sql(one)
        before = contents(db)
        with pytest.raises(HeadraceError) as error:
            db.sql(statement)
        assert error.value.condition.split(".")[0] == condition
        assert contents(db) == before


INSERTS: list[tuple[str, str, Any, str, str]] = [
    ("unknown relation", "nowhere", [(1,)], "TABLE_OR_VIEW_NOT_FOUND", "nowhere"),
    ("a view", "v", [(1,)], "CANNOT_INSERT_INTO_VIEW", "s"),
    ("too few values", "s", [(1, "x", None, None), (1,)], "INSERT_COLUMN_ARITY_MISMATCH", "row 2 has 1 values"),
    ("unknown key", "s", [{"a": 1, "z": 2}], "UNKNOWN_COLUMN", "z"),
    ("unknown column", "strict", pa.table({"a": [1], "b": ["x"], "z": [1]}), "UNKNOWN_COLUMN", "z"),
    ("missing column", "strict", pa.table({"a": [1]}), "MISSING_COLUMN", "b"),
    ("repeated column", "strict", pa.table([[1], ["x"], [2]], names=["a", "b", "A"]), "REPEATED_COLUMN", "a"),
    ("text for int", "strict", [("x", "y")], "INSERT_TYPE_MISMATCH", "column a is int"),
    ("int for text", "strict", [(1, 2)], "INSERT_TYPE_MISMATCH", "column b is string"),
    ("mixed types", "strict", [(1, "x"), (1, b"x")], "INSERT_BAD_VALUE", "row 2, column b"),
    ("too large", "strict", [(1, "x"), (2**31, "x")], "INSERT_BAD_VALUE", "row 2, column a: 2147483648"),
    ("fraction", "strict", [(1.5, "x")], "INSERT_BAD_VALUE", "row 1, column a"),
    ("too many digits", "s", [(1, "x", None, Decimal("1.234"))], "INSERT_BAD_VALUE", "column p"),
    ("past precision", "s", [(1, "x", None, Decimal("12345.6"))], "INSERT_BAD_VALUE", "column p"),
    ("not midnight", "s", [(1, "x", datetime.datetime(2024, 1, 1, 1), None)], "INSERT_BAD_VALUE", "column d"),
    ("null", "strict", [(1, "x"), (None, "x")], "NULL_IN_NOT_NULL", "row 2, column a"),
    ("no rows at all", "s", 17, "INSERT_UNKNOWN_INPUT", "int"),
    ("text", "s", "rows", "INSERT_UNKNOWN_INPUT", "str"),
    ("uneven columns", "strict", {"a": [1, 2], "b": ["x"]}, "INSERT_COLUMN_LENGTHS", "b has 1"),
    ("a dict of values", "strict", {"a": 1, "b": "x"}, "INSERT_UNKNOWN_INPUT", "one row"),
    ("key", "t", [(5, "x"), (5, "y")], "PRIMARY_KEY_VIOLATION", "k = 5"),
]


@pytest.mark.parametrize(("name", "data", "condition", "text"), [x[1:] for x in INSERTS], ids=[x[0] for x in INSERTS])
def test_rows_from_a_program(db: Database, name: str, data: Any, condition: str, text: str) -> None:
    refused(db, lambda: db.insert(name, data), condition, text)


# COPY

GOOD = "1,x,2024-01-01,1.5\n"
CSV: list[tuple[str, str, str, str, tuple[str, ...]]] = [
    ("int", GOOD + "one,x,2024-01-01,1\n", "", "CSV_BAD_VALUE", ("row 2", "column a", "one")),
    ("int range", "3000000000,x,,\n", "", "CSV_BAD_VALUE", ("row 1", "column a", "3000000000")),
    ("date", GOOD * 2 + "1,x,2024-02-30,1\n", "", "CSV_BAD_VALUE", ("row 3", "column d", "2024-02-30")),
    ("decimal", "1,x,2024-01-01,1.234\n", "", "CSV_BAD_VALUE", ("row 1", "column p", "1.234")),
    ("decimal range", "1,x,2024-01-01,12345\n", "", "CSV_BAD_VALUE", ("row 1", "column p", "12345")),
    ("too few", GOOD + "1,x\n", "", "CSV_COLUMN_COUNT", ("row 2", "2")),
    ("too many", GOOD + "1,x,,,9\n", "", "CSV_COLUMN_COUNT", ("row 2", "5")),
    ("quote", GOOD + '1,"x,,\n', "", "CSV_UNCLOSED_QUOTE", ("row 2",)),
    ("after a newline in quotes", '1,"x\ny",,\nz,x,,\n', "", "CSV_BAD_VALUE", ("row 2", "column a", "z")),
    ("header missing", "a,b,d\n1,x,\n", "HEADER", "MISSING_COLUMN", ("p",)),
    ("header unknown", "a,b,d,q\n", "HEADER", "UNKNOWN_COLUMN", ("q",)),
    ("header repeated", "a,b,d,A\n", "HEADER", "REPEATED_COLUMN", ("a",)),
    ("header row", "a,b,d,p\nx,x,,\n", "HEADER", "CSV_BAD_VALUE", ("row 1", "column a", "x")),
    ("header as data", "a,b,d,p\n" + GOOD, "", "CSV_BAD_VALUE", ("row 1", "column a")),
    ("wrong delimiter", GOOD, "DELIMITER ';'", "CSV_COLUMN_COUNT", ("row 1",)),
    ("bad delimiter", GOOD, "DELIMITER ';;'", "COPY_OPTION_INVALID", ("delimiter",)),
    ("unknown option", GOOD, "COMPRESSION 'x'", "COPY_OPTION_UNKNOWN", ("compression",)),
    ("null text", "NULL,x,,\n", "", "CSV_BAD_VALUE", ("column a", "NULL")),
]


@pytest.mark.parametrize("first", [True, False], ids=["one file", "second file"])
@pytest.mark.parametrize(("text", "options", "condition", "parts"), [x[1:] for x in CSV], ids=[x[0] for x in CSV])
def test_csv(
    db: Database, tmp_path: Path, first: bool, text: str, options: str, condition: str, parts: tuple[str, ...]
) -> None:
    bad = tmp_path / "b.csv"
    bad.write_text(text)
    if not first:
        (tmp_path / "a.csv").write_text(("a,b,d,p\n" if options == "HEADER" else "") + GOOD)
    named = () if "OPTION" in condition or (not first and "delimiter" in options.lower()) else (str(bad),)
    refused(db, lambda: db.sql(f"COPY s FROM '{tmp_path}/*.csv' {options}"), condition, *named, *parts)


def test_bytes_that_are_no_text(db: Database, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"1,x,,\n2,\xff\xfe,,\n")
    refused(db, lambda: db.copy("s", tmp_path / "x.csv"), "CSV_INVALID_UTF8", "x.csv", "row 2")


def test_files_that_are_not_there(db: Database, tmp_path: Path) -> None:
    (tmp_path / "x.dat").touch()
    for pattern, condition in (("no.csv", "PATH_NOT_FOUND"), ("*.csv", "PATH_NOT_FOUND"), ("", "PATH_IS_DIRECTORY"),
                               ("x.dat", "COPY_FORMAT_UNKNOWN")):  # fmt: skip
        refused(db, lambda p=pattern: db.copy("s", f"{tmp_path}/{p}"), condition, str(tmp_path))


ROW = {"a": [1], "b": ["x"], "d": pa.array([None], pa.date32()), "p": pa.array([None], pa.decimal128(6, 2))}
PARQUET: list[tuple[str, Any, str, tuple[str, ...]]] = [
    ("no parquet", b"PAR1 not really", "PARQUET_UNREADABLE", ()),
    ("empty file", b"", "PARQUET_UNREADABLE", ()),
    ("text for int", ROW | {"a": ["1"]}, "PARQUET_TYPE_MISMATCH", ("a",)),
    ("double for int", ROW | {"a": [1.0]}, "PARQUET_TYPE_MISMATCH", ("a",)),
    ("int for date", ROW | {"d": [1]}, "PARQUET_TYPE_MISMATCH", ("d",)),
    ("scale", ROW | {"p": pa.array([Decimal("1.234")], pa.decimal128(9, 3))}, "PARQUET_TYPE_MISMATCH", ("p",)),
    ("missing", {k: v for k, v in ROW.items() if k != "d"}, "MISSING_COLUMN", ("d",)),
    ("range", {k: pa.concat_arrays([pa.array(v)] * 3) for k, v in ROW.items()} | {"a": [1, 2, 2**31]},
     "PARQUET_BAD_VALUE", ("row 3", "a")),
]  # fmt: skip


@pytest.mark.parametrize(("data", "condition", "parts"), [x[1:] for x in PARQUET], ids=[x[0] for x in PARQUET])
def test_parquet(db: Database, tmp_path: Path, data: Any, condition: str, parts: tuple[str, ...]) -> None:
    pq.write_table(pa.table(ROW), tmp_path / "a.parquet")
    bad = tmp_path / "b.parquet"
    if isinstance(data, bytes):
        bad.write_bytes(data)
    else:
        pq.write_table(pa.table(data), bad)
    refused(db, lambda: db.copy("s", tmp_path / "*.parquet"), condition, str(bad), *parts)
    refused(db, lambda: db.copy("s", bad), condition, str(bad), *parts)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_refuse_nulls_and_keys_in_files(db: Database, tmp_path: Path, kind: str) -> None:
    def write(rows: list[tuple[Any, ...]]) -> Path:
        file = tmp_path / f"x.{kind}"
        if kind == "csv":
            file.write_text("".join(",".join("" if v is None else str(v) for v in r) + "\n" for r in rows))
        else:
            k, v = zip(*rows, strict=True)
            pq.write_table(pa.table({"k": pa.array(k, pa.int32()), "v": pa.array(v, pa.string())}), file)
        return file

    refused(db, lambda: db.copy("t", write([(5, "x"), (6, None)])), "NULL_IN_NOT_NULL", "x." + kind, "row 2", "v")
    refused(db, lambda: db.copy("t", write([(5, "x"), (5, "y")])), "PRIMARY_KEY_VIOLATION", "k = 5")
    refused(db, lambda: db.copy("t", write([(5, "x"), (1, "y")])), "PRIMARY_KEY_VIOLATION", "k = 1")
    refused(db, lambda: db.copy("strict", write([(5, "x")])), "MISSING_COLUMN") if kind == "parquet" else None
    (tmp_path / "n.csv").write_text("1,x\n,y\n")
    refused(db, lambda: db.copy("strict", tmp_path / "n.csv"), "NULL_IN_NOT_NULL", "n.csv", "row 2", "column a")
    refused(db, lambda: db.sql(f"COPY t (k) FROM '{tmp_path}/k.csv'"), "PATH_NOT_FOUND")
    (tmp_path / "k.csv").write_text("8\n9\n")
    refused(db, lambda: db.sql(f"COPY t (k) FROM '{tmp_path}/k.csv'"), "NULL_IN_NOT_NULL", "v")
    (tmp_path / "b.csv").write_text("x\ny\n")
    refused(db, lambda: db.sql(f"COPY strict (b) FROM '{tmp_path}/b.csv'"), "NULL_IN_NOT_NULL", "a")


# What is odd but right


def test_empty_files_and_headers_alone(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    (tmp_path / "header.csv").write_text("a,b\n")
    pq.write_table(pa.schema([("a", pa.int32()), ("b", pa.string())]).empty_table(), tmp_path / "none.parquet")
    for kind in ("STREAM", "TABLE"):
        with headrace.connect() as db:
            db.sql(f"CREATE {kind} s (a INT, b STRING)")
            db.sql("CREATE VIEW v AS SELECT count(*) AS c FROM s")
            before = contents(db)
            assert db.copy("s", tmp_path / "empty.csv").message == "0 rows copied into s"
            assert db.copy("s", tmp_path / "header.csv", header=True).message == "0 rows copied into s"
            assert db.copy("s", tmp_path / "none.parquet").message == "0 rows copied into s"
            assert contents(db) == before
            assert db.sql("SELECT * FROM v").rows() == [(0,)]


def test_differential_csv_reads_as_pythons_csv_does(tmp_path: Path) -> None:
    rows = [
        (1, "plain"), (2, "two\nlines"), (3, 'say "hi"'), (4, "a,b"), (5, "\r\nends\n"), (6, "größe 🚂"),
        (7, " spaced "), (8, "back\\slash"), (9, "'"), (10, '"'), (11, '""\n""'), (12, "x" * 100_000),
    ]  # fmt: skip
    file = tmp_path / "x.csv"
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows(rows)
    with file.open(newline="", encoding="utf-8") as text:
        expected = [(int(a), b) for a, b in csv.reader(text)]
    assert expected == rows
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (a INT, b STRING)")
        db.sql("CREATE TABLE t (a INT, b STRING)")
        db.sql("CREATE VIEW v AS SELECT a, b FROM s GROUP BY a, b")
        for target in ("s", "t"):
            assert db.copy(target, file).message == f"{len(rows)} rows copied into {target}"
        assert sorted(db.sql("SELECT * FROM v").rows()) == expected
        assert sorted(db.sql("SELECT * FROM t").rows()) == expected


def test_copy_with_a_column_list(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("x,1\ny,2\n")
    (tmp_path / "h.csv").write_text("c;a\nz;3\n")
    pq.write_table(pa.table({"b": ["p"], "a": [4], "extra": [0]}), tmp_path / "x.parquet")
    expected = [(1, "x", None), (2, "y", None), (3, None, "z"), (4, "p", None)]
    with headrace.connect() as db:
        for kind, name in (("STREAM", "s"), ("TABLE", "t")):
            db.sql(f"CREATE {kind} {name} (a INT, b STRING, c STRING)")
            if kind == "STREAM":
                db.sql("CREATE VIEW v AS SELECT a, b, c FROM s GROUP BY a, b, c")
            db.sql(f"COPY {name} (b, A) FROM '{tmp_path}/x.csv'")
            db.sql(f"COPY {name} (a, c) FROM '{tmp_path}/h.csv' WITH (HEADER, DELIMITER ';')")
            db.sql(f"COPY {name} (a, b) FROM '{tmp_path}/x.parquet'")
            found = db.sql(f"SELECT a, b, c FROM {'v' if kind == 'STREAM' else 't'}").rows()
            assert sorted(found, key=repr) == expected
            for columns, condition in (("a, z", "UNRESOLVED_COLUMN"), ("a, A", "REPEATED_COLUMN")):
                with pytest.raises(HeadraceError, match=condition):
                    db.sql(f"COPY {name} ({columns}) FROM '{tmp_path}/x.csv'")


def test_a_static_table_that_vanished(tmp_path: Path) -> None:
    """The rows a view read of a table when it was made are gone: named, nothing counted, and mended by a new view."""
    view = "CREATE VIEW v WITH (tables = 'frozen') AS SELECT w, count(*) AS n FROM s JOIN t ON s.k = t.k GROUP BY w"

    def lose() -> None:
        for file in (tmp_path / "segments").glob("static*"):
            file.unlink()

    with headrace.connect(tmp_path) as db:
        db.sql("CREATE STREAM s (k INT)")
        db.sql("CREATE TABLE t (k INT, w STRING)")
        db.sql("INSERT INTO t VALUES (1, 'a')")
        db.sql(view)
        lose()
        for _ in range(2):
            with pytest.raises(HeadraceError, match="STATE_LOST"):
                db.insert("s", [(1,)])
        assert db.sql("SELECT * FROM v").rows() == []
        db.sql("DROP VIEW v")
        db.sql(view)
        db.insert("s", [(1,)])
        assert db.sql("SELECT * FROM v").rows() == [("a", 1)]
    lose()
    with pytest.raises(HeadraceError, match=r"STATE_DAMAGED.*static.*is gone"):
        headrace.connect(tmp_path)
