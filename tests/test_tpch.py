"""TPC-H as continuous views (V21): lineitem is the stream, the other tables stand still.

Whatever the engine, the file format and the way it is cut, the answer is Spark's own as a batch over
the same files: the same decimals to the last digit, in the same types.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import headrace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LINEITEM = """l_orderkey BIGINT, l_partkey BIGINT, l_suppkey BIGINT, l_linenumber INT, l_quantity DECIMAL(15,2),
    l_extendedprice DECIMAL(15,2), l_discount DECIMAL(15,2), l_tax DECIMAL(15,2), l_returnflag STRING,
    l_linestatus STRING, l_shipdate DATE, l_commitdate DATE, l_receiptdate DATE, l_shipinstruct STRING,
    l_shipmode STRING, l_comment STRING"""
ORDERS = """o_orderkey BIGINT, o_custkey BIGINT, o_orderstatus STRING, o_totalprice DECIMAL(15,2), o_orderdate DATE,
    o_orderpriority STRING, o_clerk STRING, o_shippriority INT, o_comment STRING"""
CUSTOMER = """c_custkey BIGINT, c_name STRING, c_address STRING, c_nationkey BIGINT, c_phone STRING,
    c_acctbal DECIMAL(15,2), c_mktsegment STRING, c_comment STRING"""
SUPPLIER = """s_suppkey BIGINT, s_name STRING, s_address STRING, s_nationkey BIGINT, s_phone STRING,
    s_acctbal DECIMAL(15,2), s_comment STRING"""
PART = """p_partkey BIGINT, p_name STRING, p_mfgr STRING, p_brand STRING, p_type STRING, p_size INT,
    p_container STRING, p_retailprice DECIMAL(15,2), p_comment STRING"""
PARTSUPP = """ps_partkey BIGINT, ps_suppkey BIGINT, ps_availqty INT, ps_supplycost DECIMAL(15,2), ps_comment STRING"""
NATION = "n_nationkey BIGINT, n_name STRING, n_regionkey BIGINT, n_comment STRING"
REGION = "r_regionkey BIGINT, r_name STRING, r_comment STRING"
TABLES = {
    "orders": (ORDERS, "o_orderkey"),
    "customer": (CUSTOMER, "c_custkey"),
    "supplier": (SUPPLIER, "s_suppkey"),
    "part": (PART, "p_partkey"),
    "partsupp": (PARTSUPP, "ps_partkey, ps_suppkey"),
    "nation": (NATION, "n_nationkey"),
    "region": (REGION, "r_regionkey"),
}
DDL = {"lineitem": LINEITEM, **{name: ddl for name, (ddl, _) in TABLES.items()}}
QUERIES = dict(
    re.findall(r"^-- (q\d+)\n([^;]*);", (Path(__file__).parent / "tpch.sql").read_text(encoding="utf-8"), re.MULTILINE)
)
ABOVE = {"q4", "q15", "q20"}
"""The queries whose tables stand above the stream's grouping: they are read at each query."""
BY_SPARK = ("q1", "q3", "q6")
"""What the Spark SQL engine is tried with: it runs a job for each pipeline and file."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SF 0.01 as CSV and Parquet, lineitem in three files."""
    directory = tmp_path_factory.mktemp("tpch")
    program = str(Path(sys.executable).with_name("tpchgen-cli"))
    for format in ("csv", "parquet"):
        common = [program, format, "-s", "0.01", "--output-dir", str(directory / format)]
        subprocess.run([*common, f"--tables={','.join(TABLES)}"], check=True, capture_output=True)
        subprocess.run([*common, "--tables=lineitem", "--parts=3"], check=True, capture_output=True)
    return directory


@pytest.fixture(scope="module")
def expected(spark: SparkSession, data: Path) -> dict[str, pa.Table]:
    """Spark's own answers, as a batch over the Parquet files."""
    session = spark.newSession()
    for key, value in {"shuffle.partitions": 2, "adaptive.enabled": "false"}.items():
        session.conf.set(f"spark.sql.{key}", value)
    for name, ddl in DDL.items():
        path = data / "parquet" / (name if name == "lineitem" else f"{name}.parquet")
        columns = [part.split() for part in _columns(ddl)]
        casts = [f"CAST({column} AS {type}) AS {column}" for column, type in columns]
        session.read.parquet(str(path)).selectExpr(*casts).createOrReplaceTempView(name)
    return {name: session.sql(query).toArrow() for name, query in QUERIES.items()}


def _columns(ddl: str) -> list[str]:
    return [part.strip().replace("15;2", "15,2") for part in ddl.replace("15,2", "15;2").split(",")]


@pytest.mark.parametrize(("engine", "format"), [("native", "csv"), ("native", "parquet"), ("tasks", "csv"),
                                                ("tasks", "parquet"), ("spark", "parquet")])  # fmt: skip
def test_differential_continuous_views_equal_spark_batch(
    spark: SparkSession, data: Path, expected: dict[str, pa.Table], engine: str, format: str
) -> None:
    header: dict[str, Any] = {"header": True} if format == "csv" else {}
    queries = {n: q for n, q in QUERIES.items() if engine != "spark" or n in BY_SPARK}
    with headrace.connect(spark=spark, engine=engine) as db:
        db.sql(f"CREATE STREAM lineitem ({LINEITEM})")
        for name, (ddl, key) in TABLES.items():
            db.sql(f"CREATE TABLE {name} ({ddl}, PRIMARY KEY ({key}))")
            db.copy(name, data / format / f"{name}.{format}", **header)
        for name, query in queries.items():
            db.sql(f"CREATE VIEW {name} AS {query}")
        files = sorted((data / format / "lineitem").iterdir())
        db.copy("lineitem", files[0], **header)
        partial = db.sql("SELECT count_order FROM q1").rows()
        for file in files[1:]:
            db.copy("lineitem", file, **header)
        assert db.sql("SELECT count_order FROM q1").rows() != partial
        for name in queries:
            found = db.sql(f"SELECT * FROM {name}").arrow()
            assert _types(found) == _types(expected[name]), name
            assert _multiset(found) == _multiset(expected[name]), name
            assert found.num_rows > 0, name


def test_each_query_is_native_on_both_sides_and_joins_no_products(data: Path) -> None:
    """The stream is probed with a few build sides, joined with each other first where a key allows it."""
    with headrace.connect() as db:
        db.sql(f"CREATE STREAM lineitem ({LINEITEM})")
        for name, (ddl, key) in TABLES.items():
            db.sql(f"CREATE TABLE {name} ({ddl}, PRIMARY KEY ({key}))")
        sides: dict[str, list[str]] = {}
        for name, query in QUERIES.items():
            plan = db.sql(f"EXPLAIN CREATE VIEW v AS {query}").arrow()["plan"].to_pylist()
            left = [line for line in plan if "Spark SQL" in line]
            assert left == [], name
            assert not [line for line in plan if "inner on True" in line and name not in ("q15",)], name
            assert (": build side b0" in "".join(plan)) == (name not in ABOVE | {"q1", "q6"})
            sides[name] = [m[1] for line in plan if (m := re.match(r"Before an insert, when (.*) ha.* changed", line))]
    assert sides["q5"] == ["customer, orders", "nation, region, supplier"]
    assert sides["q7"] == ["nation, supplier", "customer, nation, orders"]
    assert sides["q8"] == ["part", "nation, supplier", "customer, nation, orders, region"]
    assert sides["q9"] == ["part", "nation, supplier", "partsupp", "orders"]
    assert sides["q10"] == ["customer, nation, orders"]


def _types(table: pa.Table) -> list[tuple[str, pa.DataType]]:
    return [(f.name, f.type) for f in table.schema]


def _multiset(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


RING_QUERIES = ("q1", "q3", "q4", "q6", "q7", "q9", "q10", "q12", "q14", "q15", "q19", "q20")
"""The twelve of 003 §4.1."""


@pytest.mark.parametrize(("format", "engine"), [("csv", "auto"), ("parquet", "tasks")])
def test_differential_queries_of_the_stream_itself_equal_spark_batch(
    spark: SparkSession, data: Path, expected: dict[str, pa.Table], format: str, engine: str
) -> None:
    """The twelve queries of 003, all at once, while lineitem is copied into a ring it does not fit into."""
    header: dict[str, Any] = {"header": True} if format == "csv" else {}
    with headrace.connect(spark=spark, engine=engine) as db:
        db.sql(f"CREATE STREAM lineitem ({LINEITEM}) WITH (capacity = 8192, timeout = '2 hours')")
        for name, (ddl, key) in TABLES.items():
            db.sql(f"CREATE TABLE {name} ({ddl}, PRIMARY KEY ({key}))")
            db.copy(name, data / format / f"{name}.{format}", **header)
        running = {name: db.sql(QUERIES[name]) for name in RING_QUERIES}
        for file in sorted((data / format / "lineitem").iterdir()):
            db.copy("lineitem", file, **header)
        for name, result in running.items():
            found = result.finish().arrow()
            assert _types(found) == _types(expected[name]), name
            assert _multiset(found) == _multiset(expected[name]), name
            assert found.num_rows > 0, name
