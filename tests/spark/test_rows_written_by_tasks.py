"""COPY and DataFrames into tables: rows are written where they are read, all of a statement's or none, each once."""

from __future__ import annotations

import csv
import datetime as dt
import json
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace import Database
from headrace.errors import HeadraceError
from headrace.runtime import Runtime
from headrace.stream import intake
from headrace.table import changing, writing
from headrace.table import rows as tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("csv", "json", "parquet")
ROWS = [(n, f'name {n}, "it\'s"\n' if n % 7 == 0 else f"n{n}", n * 1.5) for n in range(100)]
COLUMNS = "id BIGINT PRIMARY KEY, name STRING NOT NULL, x DOUBLE"


@pytest.fixture(params=["native", pytest.param("tasks", marks=pytest.mark.spark)])
def db(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """Rows are read by two threads, or by two tasks; ten are a segment."""
    monkeypatch.setattr(tables, "TAIL_ROWS", 10)
    monkeypatch.setattr(intake, "THREAD_BYTES", 0)
    monkeypatch.setattr(intake, "cores", lambda: 2)
    spark = request.getfixturevalue("spark") if request.param == "tasks" else None
    with headrace.connect(tmp_path / "db", spark=spark, engine=request.param) as db:
        db.sql(f"CREATE TABLE t ({COLUMNS})")
        yield db


def write(folder: Path, format: str, rows: list[tuple[Any, ...]], name: str = "rows") -> Path:
    file = folder / f"{name}.{format}"
    if format == "csv":
        with file.open("w", newline="") as text:
            csv.writer(text, lineterminator="\n").writerows([("id", "name", "x"), *rows])
    elif format == "json":
        file.write_text("".join(json.dumps(dict(zip(("id", "name", "x"), r, strict=True))) + "\n" for r in rows))
    else:
        columns = zip(*rows, strict=True)
        pq.write_table(pa.table(list(map(pa.array, columns)), ["id", "name", "x"]), file, row_group_size=20)
    return file


def files(db: Database) -> list[Path]:
    """Whatever lies in the folders of segments and of running statements."""
    return sorted(f for folder in ("segments", "scratch") for f in (db.path / folder).rglob("*"))


def ordered(rows: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows), key=repr)


@pytest.mark.parametrize("format", FORMATS)
def test_each_slice_is_a_segment(db: Database, tmp_path: Path, format: str) -> None:
    told: list[tuple[int, int]] = []
    source = write(tmp_path, format, ROWS)
    options = {"header": True} if format == "csv" else {}
    done = db.copy("t", source, progress=lambda done, all: told.append((done, all)), **options)
    assert str(done) == "100 rows copied into t"
    assert ordered(db.sql("SELECT * FROM t").rows()) == ordered(ROWS)
    assert told[-1][0] == told[-1][1] > 0
    assert 1 < len(files(db)) <= 2
    assert all(f.parent.name == "segments" and stat.S_IMODE(f.stat().st_mode) == 0o600 for f in files(db))


def bad(format: str) -> list[tuple[list[tuple[Any, ...]], str, str]]:
    broken = [(r[0] if r[0] != 77 else "x77", *r[1:]) for r in ROWS]
    holed = [(r[0], r[1] if r[0] != 77 else None, r[2]) for r in ROWS]
    found = [(holed, "NULL_IN_NOT_NULL", "name"), ([*ROWS, (5, "again", 0.0)], "PRIMARY_KEY_VIOLATION", "id = 5")]
    if format == "csv":
        found.append((broken, "CSV_BAD_VALUE", "x77"))
    if format == "json":
        found.append((broken, "JSON_BAD_VALUE", "x77"))
    return found


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_refused_leaves_nothing(db: Database, tmp_path: Path, format: str) -> None:
    options: dict[str, Any] = {"header": True} if format == "csv" else {}
    db.insert("t", [(1000, "there", 0.0)])
    against = write(tmp_path, format, [*ROWS, (1000, "again", 0.0)], "against")
    cases = [(against, "PRIMARY_KEY_VIOLATION", "id = 1000")]
    for n, (rows, condition, said) in enumerate(bad(format)):
        cases.append((write(tmp_path, format, rows, f"bad{n}"), condition, said))
    before = files(db)
    for file, condition, said in cases:
        with pytest.raises(HeadraceError) as refused:
            db.copy("t", file, **options)
        assert refused.value.condition == condition, refused.value
        assert said in refused.value.message
        if condition == "NULL_IN_NOT_NULL":
            assert f"bad0.{format}, row 78" in refused.value.message
        assert files(db) == before
        assert db.sql("SELECT * FROM t").rows() == [(1000, "there", 0.0)]


def test_few_rows_go_into_the_tail(db: Database, tmp_path: Path) -> None:
    db.copy("t", write(tmp_path, "parquet", ROWS[:9]))
    assert not files(db)
    assert len(db.sql("SELECT * FROM t").rows()) == 9


def test_large_slices_are_several_segments(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if db.runtime.settings.engine == "tasks":
        pytest.skip("a task's process has the size it was made with")
    monkeypatch.setattr(writing, "FILE_BYTES", 1)
    for n in range(3):
        write(tmp_path, "parquet", ROWS[n * 20 : n * 20 + 20], f"part{n}")
    db.copy("t", tmp_path / "part*.parquet")
    assert len(files(db)) >= 3
    assert ordered(db.sql("SELECT * FROM t").rows()) == ordered(ROWS[:60])


def test_views_of_the_table_follow(db: Database, tmp_path: Path) -> None:
    db.sql("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n, sum(id) AS s FROM t")
    db.copy("t", write(tmp_path, "parquet", ROWS))
    assert db.sql("SELECT * FROM v").rows() == [(100, sum(range(100)))]


def test_a_failing_commit_leaves_nothing(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    file = write(tmp_path, "parquet", ROWS)
    with monkeypatch.context() as patched, pytest.raises(HeadraceError):
        patched.setattr(changing, "commit", fail)
        db.copy("t", file)
    assert not files(db)
    db.copy("t", file)
    assert len(db.sql("SELECT * FROM t").rows()) == 100


def test_a_folder_out_of_reach_is_named(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def elsewhere(runtime: Runtime) -> Iterator[Path]:
        yield tmp_path / "not here"

    monkeypatch.setattr(writing, "folder_for", elsewhere)
    with pytest.raises(HeadraceError) as refused:
        db.copy("t", write(tmp_path, "parquet", ROWS))
    assert refused.value.condition == "SEGMENTS_OUT_OF_REACH"
    assert not files(db)


_KILLED = """
import os, signal, sys
import headrace
from headrace.table import changing, rows
rows.TAIL_ROWS = 10
db = headrace.connect(sys.argv[1], engine="native")
db.sql("CREATE TABLE t (id BIGINT, name STRING, x DOUBLE)")
changing.commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
db.copy("t", sys.argv[2])
"""


def test_a_kill_between_writing_and_the_commit_leaves_nothing(tmp_path: Path) -> None:
    source = write(tmp_path, "parquet", ROWS)
    program = [sys.executable, "-c", textwrap.dedent(_KILLED), str(tmp_path / "db"), str(source)]
    ended = subprocess.run(program, env={**os.environ}, timeout=300, check=False)
    assert ended.returncode == -9
    assert list((tmp_path / "db" / "segments").iterdir()), "killed when rows had been written"
    with headrace.connect(tmp_path / "db", engine="native") as db:
        assert not files(db)
        assert db.sql("SELECT * FROM t").rows() == []


# DataFrames


@pytest.fixture
def of_spark(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(tables, "TAIL_ROWS", 10)
    with headrace.connect(tmp_path / "db", spark=spark) as db:
        yield db


@pytest.mark.spark
def test_a_frame_of_many_partitions_is_few_segments(of_spark: Database, spark: SparkSession) -> None:
    db = of_spark
    db.sql("CREATE TABLE t (id BIGINT NOT NULL, a INT)")
    assert db.insert("t", spark.range(0, 1000, 1, 50).selectExpr("cast(id % 7 AS int) AS a", "id")) == 1000
    assert db.sql("SELECT count(*), count(DISTINCT id), sum(a) FROM t").rows() == [
        (1000, 1000, sum(n % 7 for n in range(1000)))
    ]
    assert 1 < len(files(db)) <= 4 * 2
    assert db.insert("t", spark.range(3).selectExpr("id", "cast(NULL AS int) AS a")) == 3
    assert db.insert("t", spark.range(0).selectExpr("id", "1 AS a")) == 0
    assert len(files(db)) <= 4 * 2


@pytest.mark.spark
def test_a_frame_that_does_not_fit_leaves_nothing(of_spark: Database, spark: SparkSession) -> None:
    db = of_spark
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, a VARCHAR(3))")
    db.insert("t", [(1000, "x")])
    frame = spark.range(0, 100, 1, 3)
    for text, condition in (
        ("CASE WHEN id = 77 THEN NULL ELSE id END AS id, 'x' AS a", "NULL_IN_NOT_NULL"),
        ("id % 50 AS id, 'x' AS a", "PRIMARY_KEY_VIOLATION"),
        ("id + 950 AS id, 'x' AS a", "PRIMARY_KEY_VIOLATION"),
        ("id, if(id = 77, 'much', 'x') AS a", "EXCEED_LIMIT_LENGTH"),
        ("id, left(1 / (id - 77), 3) AS a", "DIVIDE_BY_ZERO"),
    ):
        frame.createOrReplaceTempView("given")
        with pytest.raises(HeadraceError) as refused:
            db.insert("t", spark.sql(f"SELECT {text} FROM given"))
        assert refused.value.condition == condition
        assert db.sql("SELECT * FROM t").rows() == [(1000, "x")]
        assert not files(db)


@pytest.mark.spark
def test_all_types_of_a_frame(of_spark: Database, spark: SparkSession) -> None:
    db = of_spark
    columns = (
        "a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f FLOAT, g DOUBLE, h DECIMAL(38,10), i DECIMAL(5,2), "
        "j STRING, k BINARY, l DATE, m TIMESTAMP, n TIMESTAMP_NTZ, `o.p` ARRAY<STRUCT<x: INT, `y z`: STRING>>, "
        "q MAP<STRING, DOUBLE>, r CHAR(3)"
    )
    db.sql(f"CREATE TABLE t ({columns})")
    values = (
        "true, 1Y, 2S, 3, 4L, float('nan'), 1.5D, 12345678901234567890.5BD, 1.25BD, 'é', X'00FF', DATE '1500-01-02', "
        "TIMESTAMP '2024-03-31 01:30:00.123456Z', TIMESTAMP_NTZ '1600-01-01 00:00:00', "
        "array(named_struct('y z', 'w', 'x', 7), NULL), map('k', 0.1D), 'ab'"
    )
    names = [f.name for f in db.catalog.get("t").columns]
    one = spark.sql(f"SELECT {values}").toDF(*names)
    frame = (
        one.crossJoin(spark.range(0, 11, 1, 2))
        .drop("id")
        .unionByName(spark.sql(f"SELECT {', '.join(['NULL'] * len(names))}").toDF(*names))
    )
    assert db.insert("t", frame) == 12
    assert files(db)
    found = sorted(map(repr, db.sql("SELECT * FROM t").rows()))
    moment = dt.datetime(2024, 3, 31, 1, 30, 0, 123456, ZoneInfo("UTC"))
    full = (
        True, 1, 2, 3, 4, float("nan"), 1.5, Decimal("12345678901234567890.5000000000"), Decimal("1.25"), "é",
        b"\0\xff", dt.date(1500, 1, 2), moment, dt.datetime(1600, 1, 1), [{"x": 7, "y z": "w"}, None],
        [("k", 0.1)], "ab ",
    )  # fmt: skip
    assert found[1:] == [repr(full)] * 11
    assert found[0] == repr((None,) * len(names))


@pytest.mark.spark
def test_a_task_that_runs_twice_leaves_its_rows_once(
    of_spark: Database, spark: SparkSession, stopped: Callable[[DataFrame], DataFrame], tmp_path: Path
) -> None:
    db = of_spark
    db.sql("CREATE TABLE t (id BIGINT)")
    (tmp_path / "reached").touch()
    with _of_batches(spark, "150000"):  # of which two are written before the first attempt is stopped
        assert db.insert("t", stopped(spark.range(0, 1_200_000, 1, 2))) == 1_200_000
    assert db.sql("SELECT count(*), count(DISTINCT id) FROM t").rows() == [(1_200_000, 1_200_000)]
    assert len(files(db)) == 2


@contextmanager
def _of_batches(spark: SparkSession, rows: str) -> Iterator[None]:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    assert before is not None
    spark.conf.set(name, rows)
    try:
        yield
    finally:
        spark.conf.set(name, before)
