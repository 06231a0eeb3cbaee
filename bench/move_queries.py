"""The queries that are moved: TPC-H's and TPC-DS's, each over Parquet files in a session of their own.

>>> len(TPCH.queries(1.0)), len(TPCDS.queries(1.0))
(22, 103)
>>> TPCDS.query("q14a", 1.0).label
'TPC-DS Q14a'
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.settings import cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
_TESTS = ROOT / "tests"
_QUERY = re.compile(r"^-- (q\d+[ab]?)\n([^;]*);", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a suite, on data of some scale."""

    suite: str
    name: str
    text: str
    scale: float

    @property
    def label(self) -> str:
        return f"{self.suite} Q{self.name[1:]}"


@dataclass(frozen=True, slots=True)
class Suite:
    """A benchmark: where its queries are written, and what makes its data."""

    name: str
    files: tuple[Path, ...]
    generator: tuple[str, ...]
    tables: tuple[str, ...]

    def queries(self, scale: float) -> dict[str, Query]:
        found = (pair for file in self.files for pair in _QUERY.findall(file.read_text(encoding="utf-8")))
        return {name: Query(self.name, name, text, scale) for name, text in found}

    def query(self, name: str, scale: float) -> Query:
        return self.queries(scale)[name]

    def make_tables(self, query: Query) -> None:
        """Make the tables a query reads, unless they are there."""
        folder = self._folder(query.scale)
        named = [table for table in self.tables if re.search(rf"\b{table}\b", query.text)]
        missing = [table for table in named if not _file(folder, table).exists()]
        if missing:
            part = folder.with_name("whole.unfinished")
            program, *arguments = self.generator
            tool = str(Path(sys.executable).with_name(program))
            made = [tool, *arguments, "parquet", "-s", f"{query.scale:g}", f"--output-dir={part}"]
            subprocess.run([*made, f"--tables={','.join(missing)}"], check=True, capture_output=True)
            folder.mkdir(exist_ok=True)
            for table in missing:
                _file(part, table).rename(_file(folder, table))
            part.rmdir()

    def session(self, spark: SparkSession, scale: float) -> SparkSession:
        """A session in which the tables are temporary views; two suites have tables of the same name."""
        session = spark.newSession()
        for table in self.tables:
            file = _file(self._folder(scale), table)
            if file.exists():
                session.read.parquet(str(file)).createOrReplaceTempView(table)
        return session

    def _folder(self, scale: float) -> Path:
        return ROOT / "data" / f"{self.name.lower().replace('-', '')}-sf{scale:g}" / "whole"


def _file(folder: Path, table: str) -> Path:
    return folder / f"{table}.parquet"


TPCH = Suite(
    "TPC-H",
    (_TESTS / "tpch.sql", _TESTS / "move" / "moved.sql"),
    ("tpchgen-cli",),
    ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier"),
)
TPCDS = Suite(
    "TPC-DS",
    (_TESTS / "tpcds.sql",),
    ("tpcgen-cli", "tpcds"),
    (
        *("call_center", "catalog_page", "catalog_returns", "catalog_sales", "customer", "customer_address"),
        *("customer_demographics", "date_dim", "household_demographics", "income_band", "inventory", "item"),
        *("promotion", "reason", "ship_mode", "store", "store_returns", "store_sales", "time_dim", "warehouse"),
        *("web_page", "web_returns", "web_sales", "web_site"),
    ),
)
SUITES = {suite.name: suite for suite in (TPCH, TPCDS)}


def start_spark() -> SparkSession:
    """The same on both sides of a move."""
    from headrace.engine.session import start_spark

    return start_spark({"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": str(4 * cores())})
