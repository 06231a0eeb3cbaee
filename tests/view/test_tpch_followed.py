"""TPC-H's 22 queries as materialized views: the same as the queries after every change of the tables.

The changes are those of the benchmark's refresh functions - new orders with their lines, old ones that go - and updates
of every table that the benchmark never makes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_materialized import bag

import headrace
from headrace import Database
from headrace.keep.maintenance import reasons_of
from profiles import SOAK
from test_tpch import LINEITEM, TABLES

_CASE = re.compile(r"^-- (q\d+)\n([^;]*);", re.MULTILINE)
QUERIES = {
    name: text
    for file in ("tpch.sql", "tpch_more.sql")
    for name, text in _CASE.findall((Path(__file__).parent.parent / file).read_text(encoding="utf-8"))
}
QUOTIENTS = {"q8", "q14"}
"""Their last division is Spark's."""
FEW = ("q2", "q3", "q13", "q15", "q16", "q21", "q22")
NOT_INCREMENTAL = {
    "q11": {"partsupp": {"NON_EQUI_JOIN"}, "supplier": {"NON_EQUI_JOIN"}, "nation": {"NON_EQUI_JOIN"}},
    "q15": {"lineitem": {"COMPUTED_KEY", "NO_KEY"}, "supplier": {"NO_KEY"}},
    "q16": {"supplier": {"COMPUTED_KEY", "NON_EQUI_JOIN", "NO_KEY"}},
    "q22": {"customer": {"NON_EQUI_JOIN", "NO_KEY"}},
}
"""A sum, a most, a count or a mean of everything decides about each row."""
_OF_LINES = "l_partkey, l_suppkey, l_linenumber, l_quantity, l_extendedprice, l_discount, l_tax, l_returnflag, " + (
    "l_linestatus, l_shipdate, l_commitdate, l_receiptdate, l_shipinstruct, l_shipmode, l_comment"
)
_OF_ORDERS = "o_custkey, o_orderstatus, o_totalprice, o_orderdate, o_orderpriority, o_clerk, o_shippriority, o_comment"
CHANGES = [
    f"INSERT INTO orders SELECT o_orderkey + 100000, {_OF_ORDERS} FROM orders WHERE o_orderkey % 1000 IN (5, 6, 7)",
    f"INSERT INTO lineitem SELECT l_orderkey + 100000, {_OF_LINES} FROM lineitem WHERE l_orderkey % 1000 IN (5, 6, 7)",
    "DELETE FROM lineitem WHERE l_orderkey % 1000 < 4",
    "DELETE FROM orders WHERE o_orderkey % 1000 < 4",
    "UPDATE supplier SET s_nationkey = s_nationkey % 20, s_comment = 'Customer Complaints' WHERE s_suppkey % 9 = 3",
    "UPDATE supplier SET s_acctbal = -s_acctbal, s_comment = '' WHERE s_suppkey % 3 = 0",
    "UPDATE customer SET c_mktsegment = 'BUILDING', c_nationkey = 7, c_acctbal = -c_acctbal WHERE c_custkey % 50 = 1",
    "UPDATE part SET p_type = 'PROMO BRASS', p_size = 15, p_brand = 'Brand#12' WHERE p_partkey % 20 = 1",
    "UPDATE partsupp SET ps_supplycost = ps_supplycost / 2 WHERE ps_partkey % 20 = 7",
    "UPDATE lineitem SET l_quantity = l_quantity * 3, l_receiptdate = l_commitdate + INTERVAL 1 DAY "
    "WHERE l_orderkey % 500 = 3",
    "UPDATE nation SET n_name = 'FRANCE' WHERE n_nationkey = 3",
    "DELETE FROM region WHERE r_name = 'EUROPE'",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tpch_followed")
    program = str(Path(sys.executable).with_name("tpchgen-cli"))
    subprocess.run([program, "parquet", "-s", "0.01", "--output-dir", str(found)], check=True, capture_output=True)
    return found


@pytest.fixture
def db(folder: Path) -> Iterator[Database]:
    with headrace.connect(None, durability="none") as db:
        tables = {**TABLES, "lineitem": (LINEITEM, "l_orderkey, l_linenumber")}
        for name, (columns, key) in tables.items():
            db.sql(f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({key}))")
            db.copy(name, folder / f"{name}.parquet")
        yield db


def test_oracle_views_are_their_queries_after_every_change(db: Database) -> None:
    names = [name for name in QUERIES if name not in QUOTIENTS and (SOAK or name in FEW)]
    check(db, names, CHANGES)


@pytest.mark.spark
@pytest.mark.parametrize("name", sorted(QUOTIENTS))
def test_oracle_those_that_spark_ends_are_their_queries(db: Database, name: str) -> None:
    check(db, [name], CHANGES if SOAK else CHANGES[:3])


def check(db: Database, names: list[str], changes: list[str]) -> None:
    for name in names:
        db.sql(f"CREATE MATERIALIZED VIEW {name} AS {QUERIES[name]}")
    for change in ["SELECT 1", *changes]:
        db.sql(change)
        for name in names:
            found, wanted = (bag(db.sql(text).rows()) for text in (f"SELECT * FROM {name}", QUERIES[name]))
            assert found == wanted, (name, change)


def test_eighteen_of_them_are_incremental(db: Database) -> None:
    """Whichever table changes, no relation is read whole."""
    found: dict[str, dict[str, set[str]]] = {}
    for name, query in QUERIES.items():
        db.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        with db._runtime.store.read() as snapshot:
            reasons = reasons_of(db._runtime, snapshot, db._keeper.get(name).layers)
        if named := {table: {r.name for r in why} for table, why in reasons.items() if table}:
            found[name] = named
    assert found == NOT_INCREMENTAL
    assert len(QUERIES) == 22
