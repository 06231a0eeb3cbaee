"""TPC-H's lineitem and its two scans, Q1 and Q6: the same text for every system.

The data is made once by tpchgen-cli into ``data/`` (git-ignored). ORDER BY is
left out of Q1: a continuous view is a relation, and answers are compared as
multisets. Dates are literals, not interval arithmetic, so that no system pays
for a different reading of it.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Format = Literal["csv", "parquet"]
FORMATS: tuple[Format, ...] = ("csv", "parquet")

# TPC-H's identifiers are integers and its DECIMALs have 15 digits, 2 of them after the point.
COLUMNS: dict[str, str] = {
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
DDL = ", ".join(f"{name} {type}" for name, type in COLUMNS.items())

Q1 = """
SELECT l_returnflag, l_linestatus,
       sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price,
       sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price,
       sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge,
       avg(l_quantity) AS avg_qty, avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc,
       count(*) AS count_order
FROM lineitem
WHERE l_shipdate <= DATE '1998-09-02'
GROUP BY l_returnflag, l_linestatus
"""
Q6 = """
SELECT sum(l_extendedprice * l_discount) AS revenue
FROM lineitem
WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
  AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24
"""
QUERIES: dict[str, str] = {"Q1": Q1, "Q6": Q6}


@dataclass(frozen=True, slots=True)
class Case:
    """One query over one file format: what every system is asked."""

    query: str
    format: Format
    file: Path

    @property
    def name(self) -> str:
        return f"{self.query} from {'CSV' if self.format == 'csv' else 'Parquet'}"

    @property
    def sql(self) -> str:
        return QUERIES[self.query]


def lineitem(cache: Path, scale: float, format: Format) -> Path:
    """The lineitem file of this scale and format, generated if the cache has none.

    It lies in a directory of its own: a streaming file source reads directories.
    """
    directory = cache / f"tpch-sf{scale:g}" / format
    file = directory / f"lineitem.{format}"
    if not file.exists():
        unfinished = directory.with_name(f"{format}.unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        tool = Path(sys.executable).with_name("tpchgen-cli")
        command = [str(tool), format, "-s", f"{scale:g}", "--tables=lineitem", f"--output-dir={unfinished}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        unfinished.rename(directory)
    return file


def cases(cache: Path, scale: float) -> list[Case]:
    """Q1 and Q6 from CSV and from Parquet."""
    files = {format: lineitem(cache, scale, format) for format in FORMATS}
    return [Case(query, format, files[format]) for format in FORMATS for query in QUERIES]
