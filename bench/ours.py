"""Headrace as a continuous view: created empty, fed by COPY, asked by SELECT.

Creating the database, the static tables, the stream and the view is not timed (a
view is created once and fed for years); everything from the first byte of input
to the answer in this process is, the durable commit included.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

import headrace
from bench.measure import Refused
from bench.tpch import LINEITEM, TABLES, Case, ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Each is told where to run, whatever the size: the figures are of the two paths, not of the choice between them.
BY_TASKS: dict[str, Any] = {"engine": "tasks"}
IN_PROCESS: dict[str, Any] = {"engine": "native"}


@contextmanager
def database(spark: SparkSession | None = None, **settings: Any) -> Iterator[headrace.Database]:
    """A database in a directory of its own, gone afterwards."""
    directory = tempfile.mkdtemp(prefix="headrace-bench-")
    try:
        with headrace.connect(f"{directory}/db", spark=spark, **settings) as db:
            yield db
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Headrace:
    """COPY and SELECT on a view made for the case, in a new database each run."""

    def __init__(self, name: str, spark: SparkSession | None, settings: dict[str, Any]) -> None:
        self.name = name
        self._spark = spark
        self._settings = settings

    def _wake(self) -> None:
        """A short COPY first. Spark ends its Python workers after an idle minute, which a peer's run may take: their
        start is no part of an insert into a system that is running, as the peers' processes are."""
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
            file = Path(directory, "wake.csv")
            file.write_text("1,2\n" * 500_000)
            with database(self._spark, **self._settings) as db:
                db.sql("CREATE STREAM s (a INT, b INT)")
                db.sql("CREATE VIEW v AS SELECT a, sum(b) AS total FROM s GROUP BY a")
                db.copy("s", file)

    def answer(self, case: Case) -> tuple[float, pa.Table]:
        self._wake()
        with database(self._spark, **self._settings) as db:
            for name in case.query.tables:
                db.sql(f"CREATE TABLE {name} ({ddl(TABLES[name])})")
                db.copy(name, case.data.table(name))
            db.sql(f"CREATE STREAM lineitem ({ddl(LINEITEM)})")
            try:
                db.sql(f"CREATE VIEW answer AS {case.sql}")
            except headrace.HeadraceError as error:
                raise Refused(error.condition) from None
            options: dict[str, Any] = {"header": True} if case.format == "csv" else {}
            start = time.perf_counter()
            db.copy("lineitem", case.file, **options)
            rows = cast(pa.Table, db.sql("SELECT * FROM answer").arrow())
            return time.perf_counter() - start, rows


def by_tasks(spark: SparkSession) -> Headrace:
    """The bulk path: native fragments inside Spark tasks, each reading its own slice."""
    return Headrace("Headrace by Spark tasks", spark, BY_TASKS)


def in_process(spark: SparkSession) -> Headrace:
    """The same fragments in this process; Spark is there for what only Spark SQL can finish."""
    return Headrace("Headrace in process", spark, IN_PROCESS)
