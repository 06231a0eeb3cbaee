"""A file holds what was written into it, whatever the directories above it are called."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.base.native import native_connection
from headrace.base.parquet_files import native_scan, parquet_rows
from headrace.catalog import Table
from headrace.table import rewriting

SOURCE = Path(headrace.__file__).parent
READERS = {
    "base/parquet_files.py": r"(?i)\bread_parquet\(|parquet_scan|read_csv\(|read_json\(['\[{]|read_ndjson|read_text\('"
    r"|read_blob"
    r"|parquet_metadata\(|parquet_schema\(|read_table\(|read_metadata\(|pq\.ParquetFile\(|ParquetDataset|write_table\("
    r"|pyarrow\.dataset|pyarrow import dataset|\.readStream\b|\bread\.(parquet|csv|json|text|orc|load|format|schema)"
    r"|[sS]park\.read\b|sparkSession\.read\b|io\.read\b",
    "base/native.py": r"duckdb\.connect\(|duckdb\.sql\(|duckdb\.query\(|duckdb\.read_|to_arrow_reader",
}
"""What may stand in one file only."""
# Our own functions of such names, and writers that were opened there.
OTHERS = re.compile(
    r"def read_(csv|json)|return read_(csv|json)\(piece_of|pacsv\.read_csv\(|writer\.write_table"
    r"|made by spark\.readStream"
)
ODD = ["op=7", "a?b", "a*b", "a[b]", "{a,b}", "it's", "a\\b", "a\\?b", 'a"b', "a%20b", "a b#c", "x:y", "~", "$h"]


def _said(path: Path) -> list[tuple[int, str]]:
    """The lines of a module, without comments, docstrings and hints."""
    text = path.read_text()
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.keyword) and node.arg == "hint":
            prose.update(range(node.value.lineno, (node.value.end_lineno or node.value.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return [(n, line.partition("  #")[0]) for n, line in lines if n not in prose and not line.lstrip().startswith("#")]


@pytest.mark.parametrize("home", READERS)
def test_files_are_read_and_databases_opened_in_one_place(home: str) -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).as_posix() != home
        for number, line in _said(path)
        if re.search(READERS[home], OTHERS.sub("", line))
    ]
    assert not found, f"read files by {home}, which says how"


def test_every_option_of_the_native_reader_is_decided() -> None:
    """A new version's new option is looked at before it decides something by itself."""
    undecided = {"hive_types", "schema", "bound_schema", "encryption_config"}  # nothing unless they are given
    tuning = {"explicit_cardinality", "column_statistics", "prefetch_strategy", "debug_use_openssl"}
    writing = {"compression", "parquet_version"}
    with native_connection() as connection:
        [(names,)] = connection.execute(
            "SELECT parameters FROM duckdb_functions() WHERE function_name = 'read_parquet' AND parameters[1] = 'paths'"
        ).fetchall()
        [(automatic,)] = connection.execute(
            "SELECT count(*) FROM duckdb_settings() WHERE name LIKE 'auto%_known_extensions' AND value = 'true'"
        ).fetchall()
    spelled = set(re.findall(r"(\w+)=", native_scan(["x"])))
    assert set(names) - {"paths"} == spelled | undecided | tuning | writing
    assert not automatic


@pytest.mark.parametrize("name", ODD)
def test_a_path_is_read_as_it_is_written(tmp_path: Path, name: str) -> None:
    for at, other in enumerate([*ODD, "axb", "op=8", "a"]):
        (tmp_path / other).mkdir()
        pq.write_table(pa.table({"op": [100 + at]}), tmp_path / other / f"{other}.parquet")
    file = tmp_path / name / f"{name}.parquet"
    expected = 100 + ODD.index(name)
    assert parquet_rows(file).to_pydict() == {"op": [expected]}
    with native_connection() as connection:
        assert connection.execute(f"SELECT * FROM {native_scan([file])}").fetchall() == [(expected,)]


@pytest.fixture(params=["op=7", "[ab]*", "it's"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where a database is."""
    folder: Path = tmp_path / request.param
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", ["a?b", "a\\b"])
def test_a_database_cannot_be_where_duckdb_does_not_find_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(headrace.HeadraceError, match="INVALID_PATH"):
        headrace.connect(tmp_path / name / "plant.hr")
    assert not list(tmp_path.iterdir())


@pytest.fixture(params=["op=7", "a?b", "[ab]", "it's", "a\\?b"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where a user's files are."""
    folder: Path = tmp_path / request.param
    folder.mkdir()
    (tmp_path / "axb").mkdir()
    return folder


VALUES = "SELECT count(*) AS n, min(op) AS low, max(op) AS high FROM"
ALL = {"n": 100, "low": 0, "high": 99}


def _rows(db: Any, text: str) -> Any:
    return db.sql(text).arrow().to_pylist()[0]


def test_a_table_below_such_a_directory_keeps_its_values(home: Path) -> None:
    with headrace.connect(home / "plant.hr") as db:
        db.sql("CREATE TABLE t (op INT, file_row_number INT, filename STRING)")
        db.insert("t", {"op": range(100), "file_row_number": range(100), "filename": ["x"] * 100})
        table = db.catalog.get("t", Table)
        rewriting.flush(db.runtime, table)
        assert _rows(db, f"{VALUES} t") == ALL
        assert _rows(db, f"{VALUES} t TABLESAMPLE RESERVOIR (100 ROWS)") == ALL
        assert _rows(db, "SELECT max(file_row_number) AS n, max(filename) AS f FROM t") == {"n": 99, "f": "x"}
        db.sql("CREATE TABLE p (op INT PRIMARY KEY)")
        db.insert("p", {"op": range(100)})
        rewriting.flush(db.runtime, db.catalog.get("p", Table))
        with pytest.raises(headrace.HeadraceError, match="PRIMARY_KEY_VIOLATION"):
            db.insert("p", {"op": [42]})
        db.insert("p", {"op": [100]})
        assert _rows(db, "SELECT sum(op) AS s FROM p TABLESAMPLE RESERVOIR (200 ROWS)") == {"s": 5050}


def test_build_sides_below_such_a_directory_keep_their_values(home: Path) -> None:
    with headrace.connect(home / "plant.hr") as db:
        db.sql("CREATE STREAM s (op INT)")
        db.sql("CREATE TABLE t (op INT, name STRING)")
        db.insert("t", {"op": [1, 2], "name": ["one", "two"]})
        db.sql("CREATE VIEW v AS SELECT name, count(*) AS n FROM s JOIN t ON s.op = t.op GROUP BY name")
    with headrace.connect(home / "plant.hr") as db:  # whose build sides are read from their files
        db.insert("s", {"op": [1, 2, 2, 7]})
        assert sorted(db.sql("SELECT * FROM v").rows()) == [("one", 1), ("two", 2)]


def test_files_below_such_a_directory_keep_their_values(folder: Path) -> None:
    given = pa.table({"op": range(100)})
    pq.write_table(given, folder / "a.parquet")
    pq.write_table(pa.table({"op": [7]}), folder.parent / "axb" / "a.parquet")
    quoted = str(folder / "a.parquet").replace("\\", "\\\\").replace("'", "\\'")
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (op INT)")
        db.sql("CREATE TABLE t (op INT)")
        db.sql("CREATE VIEW v AS SELECT count(*) AS n, min(op) AS low, max(op) AS high FROM s")
        db.sql("CREATE SAMPLE kept OF s SIZE 100")
        for target in ("s", "t"):
            db.copy(target, str(folder / "a.parquet"))
        for relation in ("v", "t", "kept"):
            text = "SELECT * FROM v" if relation == "v" else f"{VALUES} {relation}"
            assert _rows(db, text) == ALL, relation
        for name, location in (("f", quoted), ("g", quoted.removesuffix("/a.parquet"))):
            db.sql(f"CREATE TABLE {name} USING parquet LOCATION '{location}'")
            assert _rows(db, f"{VALUES} {name}") == ALL
            assert _rows(db, f"{VALUES} {name} TABLESAMPLE RESERVOIR (100 ROWS)") == ALL


@pytest.mark.spark
@pytest.mark.parametrize(("database", "files"), [("op=7", "op=8"), ("[ab]*", "a?b"), ("it's", "[ab]\\")])
def test_spark_reads_such_paths_as_they_are_written(tmp_path: Path, spark: Any, database: str, files: str) -> None:
    file = tmp_path / files / "a.parquet"
    for folder in (database, files, "axb"):
        (tmp_path / folder).mkdir()
    pq.write_table(pa.table({"op": range(100), "name": ["n"] * 100}), file)
    pq.write_table(pa.table({"op": [7], "name": ["x"]}), tmp_path / "axb" / "a.parquet")
    with headrace.connect(tmp_path / database / "plant.hr", spark=spark, engine="spark") as db:
        db.sql("CREATE STREAM s (op INT, name STRING)")
        db.sql("CREATE TABLE t (op INT, name STRING)")
        db.insert("t", {"op": range(100), "name": ["n"] * 100})
        rewriting.flush(db.runtime, db.catalog.get("t", Table))
        numbers = "count(*) AS n, min(s.op) AS low, max(t.op) AS high"
        db.sql(f"CREATE VIEW v AS SELECT {numbers} FROM s JOIN t ON s.op = t.op")
        db.copy("s", str(file))
        assert _rows(db, "SELECT * FROM v") == ALL
        assert _rows(db, f"{VALUES} t") == ALL
        assert db.sql("SELECT op FROM t").spark().agg({"op": "max"}).collect()[0][0] == 99
        db.insert("s", db.sql("SELECT * FROM t").spark())
        assert _rows(db, "SELECT * FROM v")["n"] == 200
    frame = spark.read.option("__globPaths__", "false").parquet(str(file))
    assert sorted(row[0] for row in headrace.reservoir(frame, 100).collect()) == list(range(100))
    if files == "op=8":  # such a frame is read by its files
        plain = headrace.reservoir(spark.read.parquet(str(file)), 100)
        assert sorted(row[0] for row in plain.collect()) == list(range(100))
