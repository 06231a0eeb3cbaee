"""TPC-H 1, 3, 6, 15 and 20 with lineitem as the stream (000 §4.3.2): the same text for every system.

The data is made once by tpchgen-cli into ``data/`` (git-ignored). ORDER BY and
LIMIT are left out, as in 000: a continuous view is a relation, and answers are
compared as multisets. Dates are literals, not interval arithmetic, so that no
system pays for a different reading of it. The static tables hold the columns
some query reads, for every system alike.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import duckdb

from headrace.settings import cores

Format = Literal["csv", "parquet"]
FORMATS: tuple[Format, ...] = ("csv", "parquet")

# TPC-H's identifiers are integers and its DECIMALs have 15 digits, 2 of them after the point.
LINEITEM: dict[str, str] = {
    "l_orderkey": "BIGINT",
    "l_partkey": "BIGINT",
    "l_suppkey": "BIGINT",
    "l_linenumber": "INT",
    "l_quantity": "DECIMAL(15,2)",
    "l_extendedprice": "DECIMAL(15,2)",
    "l_discount": "DECIMAL(15,2)",
    "l_tax": "DECIMAL(15,2)",
    "l_returnflag": "STRING",
    "l_linestatus": "STRING",
    "l_shipdate": "DATE",
    "l_commitdate": "DATE",
    "l_receiptdate": "DATE",
    "l_shipinstruct": "STRING",
    "l_shipmode": "STRING",
    "l_comment": "STRING",
}
TABLES: dict[str, dict[str, str]] = {
    "customer": {"c_custkey": "BIGINT", "c_mktsegment": "STRING"},
    "nation": {"n_nationkey": "BIGINT", "n_name": "STRING"},
    "orders": {"o_orderkey": "BIGINT", "o_custkey": "BIGINT", "o_orderdate": "DATE", "o_shippriority": "INT"},
    "part": {"p_partkey": "BIGINT", "p_name": "STRING"},
    "partsupp": {"ps_partkey": "BIGINT", "ps_suppkey": "BIGINT", "ps_availqty": "INT"},
    "supplier": {
        "s_suppkey": "BIGINT",
        "s_name": "STRING",
        "s_address": "STRING",
        "s_phone": "STRING",
        "s_nationkey": "BIGINT",
    },
}


def ddl(columns: dict[str, str]) -> str:
    """The columns as they stand in CREATE.

    >>> ddl(TABLES["nation"])
    'n_nationkey BIGINT, n_name STRING'
    """
    return ", ".join(f"{name} {type}" for name, type in columns.items())


@dataclass(frozen=True, slots=True)
class Query:
    """One query, cut at its first grouping: ``grouped`` reads the stream, ``upper`` reads the groups.

    Every system is given the whole text; only Structured Streaming, which cannot run what stands
    above the grouping as part of a streaming query, needs the two halves.
    """

    grouped: str
    upper: str | None = None
    groups: str = "grouped"
    """The name of the groups in ``upper``."""
    tables: tuple[str, ...] = ()

    @property
    def sql(self) -> str:
        return f"WITH {self.groups} AS ({self.grouped}) {self.upper}" if self.upper else self.grouped


QUERIES: dict[str, Query] = {
    "Q1": Query("""
SELECT l_returnflag, l_linestatus,
       sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price,
       sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price,
       sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge,
       avg(l_quantity) AS avg_qty, avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc,
       count(*) AS count_order
FROM lineitem
WHERE l_shipdate <= DATE '1998-09-02'
GROUP BY l_returnflag, l_linestatus
"""),
    "Q3": Query(
        """
SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
FROM customer, orders, lineitem
WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
  AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
GROUP BY l_orderkey, o_orderdate, o_shippriority
""",
        tables=("customer", "orders"),
    ),
    "Q6": Query("""
SELECT sum(l_extendedprice * l_discount) AS revenue
FROM lineitem
WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
  AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24
"""),
    "Q15": Query(
        """
SELECT l_suppkey AS supplier_no, sum(l_extendedprice * (1 - l_discount)) AS total_revenue
FROM lineitem
WHERE l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-04-01'
GROUP BY l_suppkey
""",
        """
SELECT s_suppkey, s_name, s_address, s_phone, total_revenue
FROM supplier, revenue
WHERE s_suppkey = supplier_no AND total_revenue = (SELECT max(total_revenue) FROM revenue)
""",
        groups="revenue",
        tables=("supplier",),
    ),
    "Q20": Query(
        """
SELECT l_partkey, l_suppkey, 0.5 * sum(l_quantity) AS half
FROM lineitem
WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
GROUP BY l_partkey, l_suppkey
""",
        """
SELECT s_name, s_address
FROM supplier, nation
WHERE s_nationkey = n_nationkey AND n_name = 'CANADA'
  AND s_suppkey IN (
    SELECT ps_suppkey
    FROM partsupp, shipped
    WHERE ps_partkey = l_partkey AND ps_suppkey = l_suppkey AND ps_availqty > half
      AND ps_partkey IN (SELECT p_partkey FROM part WHERE p_name LIKE 'forest%'))
""",
        groups="shipped",
        tables=("supplier", "nation", "partsupp", "part"),
    ),
}


@dataclass(frozen=True, slots=True)
class Data:
    """The files of one scale factor under ``data/``, each made when first asked for."""

    cache: Path
    scale: float

    @property
    def directory(self) -> Path:
        return self.cache / f"tpch-sf{self.scale:g}"

    def lineitem(self, format: Format) -> Path:
        """The lineitem file. It lies in a directory of its own: a streaming file source reads directories."""
        directory = _made(self.directory / format, lambda to: self._generate(format, "lineitem", to))
        return directory / f"lineitem.{format}"

    def table(self, name: str) -> Path:
        """A static table, as Parquet."""
        return _made(self.directory / "tables", self._project) / f"{name}.parquet"

    def whole(self, name: str) -> Path:
        """One of all eight tables, with all columns, as Parquet."""

        def make(to: Path) -> None:
            names = "customer,lineitem,nation,orders,part,partsupp,region,supplier"
            self._generate("parquet", names, to)

        return _made(self.directory / "whole", make) / f"{name}.parquet"

    def bare(self, name: str) -> Path:
        """A directory of CSV files without header, lineitem in four: a reader that takes whole files and
        no header (Flink's) can read them with every core."""
        if name == "lineitem":
            return _made(self.directory / "bare-lineitem", self._cut)
        return _made(self.directory / f"bare-{name}", lambda to: self._print(name, to))

    def _generate(self, format: Format, tables: str, to: Path) -> None:
        tool = Path(sys.executable).with_name("tpchgen-cli")
        command = [str(tool), format, "-s", f"{self.scale:g}", f"--tables={tables}", f"--output-dir={to}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _project(self, to: Path) -> None:
        whole = to / "whole"
        self._generate("parquet", ",".join(TABLES), whole)
        with duckdb.connect() as db:
            for name, columns in TABLES.items():
                source = whole / f"{name}.parquet"
                db.execute(f"COPY (SELECT {', '.join(columns)} FROM '{source}') TO '{to / f'{name}.parquet'}'")
                source.unlink()
        whole.rmdir()

    def _print(self, name: str, to: Path) -> None:
        with duckdb.connect() as db:
            db.execute(f"COPY (FROM '{self.table(name)}') TO '{to / f'{name}.csv'}' (FORMAT csv, HEADER false)")

    def _cut(self, to: Path) -> None:
        with self.lineitem("csv").open("rb") as source:
            source.readline()
            start = source.tell()
            end = source.seek(0, 2)
            source.seek(start)
            pieces = 2 * cores()
            for piece in range(pieces):
                stop = start + (end - start) * (piece + 1) // pieces
                with (to / f"lineitem-{piece}.csv").open("wb") as target:
                    while stop - source.tell() > 0:
                        target.write(source.read(min(stop - source.tell(), 1 << 24)))
                    target.write(source.readline())


def _made(directory: Path, make: Callable[[Path], None]) -> Path:
    """The directory, filled by ``make`` if it is not there; never left half filled."""
    if not directory.exists():
        unfinished = directory.with_name(f"{directory.name}.unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        make(unfinished)
        unfinished.rename(directory)
    return directory


@dataclass(frozen=True, slots=True)
class Case:
    """One query over one file format: what every system is asked."""

    name: str
    format: Format
    query: Query
    data: Data

    @property
    def sql(self) -> str:
        return self.query.sql

    @property
    def file(self) -> Path:
        return self.data.lineitem(self.format)


def cases(data: Data, format: Format) -> list[Case]:
    """The five queries from files of one format."""
    return [Case(name, format, query, data) for name, query in QUERIES.items()]
