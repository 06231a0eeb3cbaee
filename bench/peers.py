"""The peers: Spark Structured Streaming, Spark batch, DuckDB once.

Each is used as its own manual advises, with the types declared (no inference is
timed), on all cores and no more. None keeps anything between runs but a warm
process: a streaming run has a checkpoint of its own, DuckDB a fresh connection.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from typing import TYPE_CHECKING, cast

import duckdb
import pyarrow as pa

from bench.tpch import COLUMNS, DDL, Case
from headrace.settings import cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_spark() -> SparkSession:
    """One local session for Spark's own runs and for Headrace's tasks."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.appName("headrace-bench")
        .master(f"local[{cores()}]")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        # Spark's default of 200 is for clusters; with it every streaming run would pay for 200 state stores.
        .config("spark.sql.shuffle.partitions", str(cores()))
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


class StructuredStreaming:
    """A streaming query over the directory, availableNow, complete mode, into the memory sink."""

    name = "Spark Structured Streaming"

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def answer(self, case: Case) -> tuple[float, pa.Table]:
        spark = self._spark
        checkpoint = tempfile.mkdtemp(prefix="headrace-bench-")
        try:
            start = time.perf_counter()
            reader = spark.readStream.schema(DDL).format(case.format)
            if case.format == "csv":
                reader = reader.option("header", "true")
            reader.load(str(case.file.parent)).createOrReplaceTempView("lineitem")
            query = (
                spark.sql(case.sql)
                .writeStream.outputMode("complete")
                .format("memory")
                .queryName("answer")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            rows = cast(pa.Table, spark.table("answer").toArrow())
            return time.perf_counter() - start, rows
        finally:
            spark.catalog.dropTempView("answer")
            spark.catalog.dropTempView("lineitem")
            shutil.rmtree(checkpoint, ignore_errors=True)


class SparkBatch:
    """The query as a Spark batch over the file."""

    name = "Spark batch"

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def answer(self, case: Case) -> tuple[float, pa.Table]:
        spark = self._spark
        start = time.perf_counter()
        reader = spark.read.schema(DDL).format(case.format)
        if case.format == "csv":
            reader = reader.option("header", "true")
        reader.load(str(case.file.parent)).createOrReplaceTempView("lineitem")
        rows = cast(pa.Table, spark.sql(case.sql).toArrow())
        elapsed = time.perf_counter() - start
        spark.catalog.dropTempView("lineitem")
        return elapsed, rows


class DuckDBOnce:
    """The query by DuckDB over the file, once, with nothing kept."""

    name = "DuckDB once"

    def answer(self, case: Case) -> tuple[float, pa.Table]:
        # Its avg is a double: cheaper than Spark's decimal, and left so, in DuckDB's favour.
        start = time.perf_counter()
        with duckdb.connect(config={"threads": str(cores())}) as db:
            if case.format == "csv":
                types = {name: type.replace("STRING", "VARCHAR") for name, type in COLUMNS.items()}
                source = f"read_csv('{case.file}', header = true, delim = ',', quote = '\"', columns = {types})"
            else:
                source = f"read_parquet('{case.file}')"
            db.execute(f"CREATE VIEW lineitem AS SELECT * FROM {source}")
            rows = cast(pa.Table, db.sql(case.sql).to_arrow_table())
        return time.perf_counter() - start, rows
