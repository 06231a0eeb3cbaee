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

    def queries(self, scale: float) -> dict[str, Query]:
        found = (pair for file in self.files for pair in _QUERY.findall(file.read_text(encoding="utf-8")))
        return {name: Query(self.name, name, text, scale) for name, text in found}

    def query(self, name: str, scale: float) -> Query:
        return self.queries(scale)[name]

    def data(self, scale: float) -> Path:
        """The tables under ``data/``, made when first asked for."""
        folder = ROOT / "data" / f"{self.name.lower().replace('-', '')}-sf{scale:g}" / "whole"
        if not folder.exists():
            part = folder.with_name("whole.unfinished")
            program, *arguments = self.generator
            tool = str(Path(sys.executable).with_name(program))
            made = [tool, *arguments, "parquet", "-s", f"{scale:g}", f"--output-dir={part}"]
            subprocess.run(made, check=True, capture_output=True)
            part.rename(folder)
        return folder

    def session(self, spark: SparkSession, scale: float) -> SparkSession:
        """A session in which the tables are temporary views; two suites have tables of the same name."""
        session = spark.newSession()
        for file in sorted(self.data(scale).glob("*.parquet")):
            session.read.parquet(str(file)).createOrReplaceTempView(file.stem)
        return session


TPCH = Suite("TPC-H", (_TESTS / "tpch.sql", _TESTS / "move" / "moved.sql"), ("tpchgen-cli",))
TPCDS = Suite("TPC-DS", (_TESTS / "tpcds.sql",), ("tpcgen-cli", "tpcds"))
SUITES = {suite.name: suite for suite in (TPCH, TPCDS)}


def start_spark() -> SparkSession:
    """The same on both sides of a move."""
    from headrace.engine.session import start_spark

    return start_spark({"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": str(4 * cores())})
