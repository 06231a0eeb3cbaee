"""The car plant of 000 ch. 4 against Spark, and everything that goes in or out by Spark's tasks."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import headrace
from headrace import demo
from headrace.database import Database
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Rows = list[tuple[Any, ...]]


@pytest.fixture
def db(spark: SparkSession) -> Iterator[Database]:
    with headrace.connect(spark=spark) as database:
        yield database


def ask(db: Database, text: str) -> Rows:
    return sorted(db.sql(text).rows(), key=repr)


def plant_in(db: Database) -> None:
    for stream in demo.STREAMS:
        db.sql(f"CREATE STREAM {stream} ({demo.EVENT_COLUMNS})")
    db.sql(f"CREATE TABLE station ({demo.STATION_COLUMNS}, PRIMARY KEY (id))")
    db.insert("station", demo.station_table())
    db.sql(f"CREATE VIEW low_stock AS {demo.LOW_STOCK}")


def batch(spark: SparkSession, usage: pa.Table, restock: pa.Table) -> Rows:
    session = spark.newSession()
    for name, rows in (("part_usage", usage), ("part_restock", restock), ("station", demo.station_table())):
        session.createDataFrame(rows).createOrReplaceTempView(name)
    return sorted((tuple(row) for row in session.sql(demo.LOW_STOCK).collect()), key=repr)


def test_differential_the_running_example(spark: SparkSession, tmp_path: Path) -> None:
    """Figure 4.2 by every way in: files by tasks, inserts by hand, and a second opening."""
    plant = demo.Plant(seed=3)
    usage, restock = plant.history(6_000)
    pa_csv.write_csv(usage, tmp_path / "usage.csv")
    pq.write_table(restock, tmp_path / "restock.parquet", row_group_size=500)
    path = tmp_path / "plant.hr"
    with headrace.connect(path, spark=spark, engine="tasks") as db:
        plant_in(db)
        db.copy("part_usage", tmp_path / "usage.csv", header=True)
        db.copy("part_restock", tmp_path / "restock.parquet")
        assert ask(db, "SELECT * FROM low_stock") == batch(spark, usage, restock) != []
    with headrace.connect(path, spark=spark) as db:
        for _ in range(3):
            plant.change()
            more_restock, more_usage = plant.minute()
            db.insert("part_restock", more_restock)
            db.insert("part_usage", more_usage)
            usage, restock = pa.concat_tables([usage, more_usage]), pa.concat_tables([restock, more_restock])
        assert ask(db, "SELECT * FROM low_stock") == batch(spark, usage, restock)


# Spark DataFrames in and out

FRAME = "part STRING, n INT, price DECIMAL(8,2), at TIMESTAMP"
NOON = datetime.datetime(2024, 1, 2, 12)
ROWS: Rows = [("bolt", i % 5, Decimal(i) / 4, NOON) for i in range(1_000)] + [(None, None, None, None)]


@pytest.mark.parametrize("engine", ["auto", "spark"])
@pytest.mark.parametrize("kind", ["STREAM", "TABLE"])
def test_differential_a_dataframe_is_rows_like_any(spark: SparkSession, kind: str, engine: str) -> None:
    frame = spark.createDataFrame(ROWS, FRAME).repartition(3)
    answers = []
    for data in (frame.select("n", "at", "price", "part"), frame.toArrow()):
        with headrace.connect(spark=spark, engine=engine) as db:
            db.sql(f"CREATE {kind} s ({FRAME})")
            db.sql(
                "CREATE VIEW v AS SELECT part, n, sum(price) AS p, max(at) AS at, count(*) AS c FROM s GROUP BY 1, 2"
            )
            assert db.insert("s", data) == len(ROWS)
            answers.append(ask(db, "SELECT * FROM v"))
    assert answers[0] == answers[1] and len(answers[0]) == 6


@pytest.mark.parametrize(
    ("frame", "condition", "text"),
    [
        ("SELECT 1 AS a", "MISSING_COLUMN", "b"),
        ("SELECT 1 AS a, 'x' AS b, 2 AS z", "UNKNOWN_COLUMN", "z"),
        ("SELECT 'x' AS a, 'x' AS b", "INSERT_TYPE_MISMATCH", "column a is int"),
        ("SELECT array(1) AS a, 'x' AS b", "INSERT_TYPE_MISMATCH", "column a is int"),
        ("SELECT 3000000000 AS a, 'x' AS b", "CAST_OVERFLOW", "3000000000"),
        ("SELECT CAST(NULL AS INT) AS a, 'x' AS b", "NULL_IN_NOT_NULL", "a"),
    ],
)
@pytest.mark.parametrize("kind", ["STREAM", "TABLE"])
def test_a_dataframe_that_does_not_fit(
    spark: SparkSession, db: Database, frame: str, condition: str, text: str, kind: str
) -> None:
    db.sql(f"CREATE {kind} s (a INT NOT NULL, b STRING)")
    db.sql("CREATE VIEW v AS SELECT count(*) AS c, sum(a) AS a FROM s")
    with pytest.raises(HeadraceError) as error:
        db.insert("s", spark.sql(frame))
    assert error.value.condition == condition and text in str(error.value)
    assert ask(db, "SELECT * FROM v") == [(0, None)]


def test_an_error_in_a_dataframes_rows_fails_the_insert(spark: SparkSession, db: Database) -> None:
    db.sql("CREATE STREAM s (a INT)")
    db.sql("CREATE VIEW v AS SELECT sum(10 div a) AS q FROM s")
    with pytest.raises(HeadraceError, match="DIVIDE_BY_ZERO"):
        db.insert("s", spark.range(-2, 3).selectExpr("CAST(id AS INT) AS a"))
    assert ask(db, "SELECT * FROM v") == [(None,)]


def test_answers_as_dataframes(spark: SparkSession, db: Database) -> None:
    db.sql(f"CREATE STREAM s ({FRAME})")
    db.sql(f"CREATE TABLE t ({FRAME}, raw BINARY, local TIMESTAMP_NTZ, PRIMARY KEY (part))")
    db.sql("CREATE VIEW v AS SELECT part, count(*), avg(price), max(at) AS `odd name` FROM s GROUP BY part")
    db.insert("s", ROWS)
    db.insert("t", [("x", 1, Decimal("2.50"), NOON, b"\x00", NOON)])
    for name in ("v", "t"):
        frame, arrow = db.table(name), db.sql(f"SELECT * FROM {name}").arrow()
        assert frame.toArrow().schema.equals(arrow.schema)
        assert sorted(map(repr, frame.toArrow().to_pylist())) == sorted(map(repr, arrow.to_pylist()))
    assert db.table("v").columns == ["part", "count(1)", "avg(price)", "odd name"]
    result = db.sql("SELECT part, n AS m, n AS m FROM t")
    assert [tuple(r) for r in result.spark().collect()] == result.rows() == [("x", 1, 1)]
    assert db.table("s").count() == 0, "a stream itself: what comes while it is read"
    with pytest.raises(HeadraceError, match="TABLE_OR_VIEW_NOT_FOUND"):
        db.table("nowhere")
    frame = db.table("v")
    db.insert("s", ROWS)
    assert frame.count() == 2 and frame.selectExpr("sum(`count(1)`)").collect()[0][0] == len(ROWS), "as it was"


# Tasks


def test_differential_a_large_insert_goes_through_tasks(spark: SparkSession) -> None:
    rows = pa.table({"k": [i % 7 for i in range(5_000)], "x": [i / 8 for i in range(5_000)], "s": ["é"] * 5_000})
    answers, seen = [], []
    for size in (1, 1 << 40):
        with headrace.connect(spark=spark, task_bytes=size) as db:
            db.sql("CREATE STREAM r (k INT, x DOUBLE, s STRING)")
            db.sql("CREATE TABLE t (k INT, w INT)")
            db.insert("t", [(k, k * k) for k in range(5)])
            db.sql("CREATE VIEW v AS SELECT r.k, sum(x * w) AS a, count(DISTINCT x) AS d, max(s) AS s "
                   "FROM r JOIN t ON r.k = t.k GROUP BY r.k")  # fmt: skip
            for given in (rows, rows.to_reader(max_chunksize=333), rows.to_pandas()):
                assert db.insert("r", given) == 5_000
            seen.append(db.runtime.session.started)
            answers.append(ask(db, "SELECT * FROM v"))
    assert seen == [True, False]
    assert answers[0] == answers[1] and len(answers[0]) == 5


@pytest.mark.parametrize("engine", ["native", "tasks", "spark"])
def test_copy_names_the_row_whatever_reads_it(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    lines = [f"{i},row {i}" for i in range(1, 20_001)]
    lines[14_999] = "oops,row 15000"
    (tmp_path / "a.csv").write_text("".join(f"{i},x\n" for i in range(100)))
    (tmp_path / "b.csv").write_text("\n".join(lines))
    good = pa.table({"a": pa.array(range(20_000), pa.int64()), "b": ["x"] * 20_000})
    column = good["a"].to_pylist()
    column[12_345] = 2**31
    pq.write_table(good.set_column(0, "a", pa.array(column)), tmp_path / "c.parquet", row_group_size=1_000)
    with headrace.connect(spark=spark, engine=engine, tasks=4) as db:
        db.sql("CREATE STREAM s (a INT, b STRING)")
        db.sql("CREATE VIEW v AS SELECT count(*) AS c, sum(a) AS a FROM s")
        for pattern, condition, texts in (
            ("*.csv", "CSV_BAD_VALUE", ("b.csv", "row 15000", "column a", "oops")),
            ("c.parquet", "PARQUET_BAD_VALUE", ("c.parquet", "row 12346", "2147483648")),
        ):
            with pytest.raises(HeadraceError) as error:
                db.copy("s", tmp_path / pattern)
            if engine != "spark":
                assert error.value.condition == condition, str(error.value)
                assert all(text in str(error.value) for text in texts), str(error.value)
            assert ask(db, "SELECT * FROM v") == [(0, None)]
        lines[14_999] = '15000,"row\n15000"'
        (tmp_path / "b.csv").write_text("\n".join(lines))
        told: list[tuple[int, int]] = []
        message = db.copy("s", tmp_path / "*.csv", progress=lambda done, total: told.append((done, total))).message
        assert message == "20,100 rows copied into s"
        assert ask(db, "SELECT * FROM v") == [(20_100, sum(range(100)) + sum(range(1, 20_001)))]
        if engine != "spark":
            assert told and told[-1][0] == told[-1][1] and [d for d, _ in told] == sorted(d for d, _ in told)
