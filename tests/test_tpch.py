"""TPC-H Q1, Q3 and Q6 as continuous views: lineitem is the stream, the other tables stand still.

Whatever the engine, the file format and the way it is cut, the answer is Spark's own as a batch over
the same files: the same decimals to the last digit, in the same types.
"""

from __future__ import annotations

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
DDL = {"lineitem": LINEITEM, "orders": ORDERS, "customer": CUSTOMER}

QUERIES = {
    "q1": """
SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price,
       sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price,
       sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge,
       avg(l_quantity) AS avg_qty, avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc,
       count(*) AS count_order
FROM lineitem WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL '90' DAY
GROUP BY l_returnflag, l_linestatus""",
    "q3": """
SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
FROM customer, orders, lineitem
WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
  AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
GROUP BY l_orderkey, o_orderdate, o_shippriority
ORDER BY revenue DESC, o_orderdate LIMIT 10""",
    "q6": """
SELECT sum(l_extendedprice * l_discount) AS revenue
FROM lineitem
WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1994-01-01' + INTERVAL '1' YEAR
  AND l_discount BETWEEN 0.06 - 0.01 AND 0.06 + 0.01 AND l_quantity < 24""",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SF 0.01 as CSV and Parquet, lineitem in three files."""
    directory = tmp_path_factory.mktemp("tpch")
    program = str(Path(sys.executable).with_name("tpchgen-cli"))
    for format in ("csv", "parquet"):
        common = [program, format, "-s", "0.01", "--output-dir", str(directory / format)]
        subprocess.run([*common, "--tables=orders,customer"], check=True, capture_output=True)
        subprocess.run([*common, "--tables=lineitem", "--parts=3"], check=True, capture_output=True)
    return directory


@pytest.fixture(scope="module")
def expected(spark: SparkSession, data: Path) -> dict[str, pa.Table]:
    """Spark's own answers, as a batch over the Parquet files."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "2")
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
    with headrace.connect(spark=spark, engine=engine) as db:
        db.sql(f"CREATE STREAM lineitem ({LINEITEM})")
        for name in ("orders", "customer"):
            db.sql(f"CREATE TABLE {name} ({DDL[name]}, PRIMARY KEY ({name[0]}_{name[:4].replace('orde', 'order')}key))")
            db.copy(name, data / format / f"{name}.{format}", **header)
        for name, query in QUERIES.items():
            db.sql(f"CREATE VIEW {name} AS {query}")
        files = sorted((data / format / "lineitem").iterdir())
        db.copy("lineitem", files[0], **header)
        partial = db.sql("SELECT count_order FROM q1").rows()
        for file in files[1:]:
            db.copy("lineitem", file, **header)
        assert db.sql("SELECT count_order FROM q1").rows() != partial
        for name in QUERIES:
            found = db.sql(f"SELECT * FROM {name}").arrow()
            assert _types(found) == _types(expected[name]), name
            assert _multiset(found) == _multiset(expected[name]), name
            assert found.num_rows in (1, 4, 10)


def _types(table: pa.Table) -> list[tuple[str, pa.DataType]]:
    return [(f.name, f.type) for f in table.schema]


def _multiset(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))
