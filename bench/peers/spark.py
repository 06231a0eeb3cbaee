"""Spark Structured Streaming, on one session that Headrace's tasks share."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from bench.measure import Refused
from bench.tpch import LINEITEM, TABLES, Case, ddl
from headrace.settings import cores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def start_spark() -> SparkSession:
    """One local session for Spark's own runs and for Headrace's tasks."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.appName("headrace-bench")
        .master(f"local[{cores()}]")
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        # Spark's default of 200 is for clusters; with it every streaming run would pay for 200 state stores.
        .config("spark.sql.shuffle.partitions", str(cores()))
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def java_version(spark: SparkSession) -> str:
    return str(spark.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.version')").collect()[0][0])


class StructuredStreaming:
    """A streaming query over the directory, availableNow, complete mode.

    A query that ends at its grouping goes into the memory sink. What stands above the first
    grouping cannot be part of a streaming query; the manual's way is ``foreachBatch``, in which
    the groups are an ordinary DataFrame. Static tables are cached before the clock starts.
    """

    name = "Spark Structured Streaming"

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._cached: dict[str, DataFrame] = {}

    def answer(self, case: Case) -> tuple[float, pa.Table]:
        from pyspark.errors import AnalysisException

        spark = self._spark
        for name in case.query.tables:
            self._static(case, name)
        checkpoint = tempfile.mkdtemp(prefix="headrace-bench-")
        try:
            start = time.perf_counter()
            reader = spark.readStream.schema(ddl(LINEITEM)).format(case.format)
            if case.format == "csv":
                reader = reader.option("header", "true")
            reader.load(str(case.file.parent)).createOrReplaceTempView("lineitem")
            rows = self._by_batch(case, checkpoint) if case.query.upper else self._by_memory(case, checkpoint)
            return time.perf_counter() - start, rows
        except AnalysisException as error:
            raise Refused(error.getCondition() or str(error).splitlines()[0]) from None
        finally:
            spark.catalog.dropTempView("lineitem")
            shutil.rmtree(checkpoint, ignore_errors=True)

    def _static(self, case: Case, name: str) -> None:
        path = str(case.data.table(name))
        if path not in self._cached:
            frame = self._spark.read.schema(ddl(TABLES[name])).parquet(path).cache()
            frame.count()
            self._cached[path] = frame
        self._cached[path].createOrReplaceTempView(name)

    def _by_memory(self, case: Case, checkpoint: str) -> pa.Table:
        spark = self._spark
        try:
            spark.sql(case.sql).writeStream.outputMode("complete").format("memory").queryName("answer").option(
                "checkpointLocation", checkpoint
            ).trigger(availableNow=True).start().awaitTermination()
            return cast(pa.Table, spark.table("answer").toArrow())
        finally:
            spark.catalog.dropTempView("answer")

    def _by_batch(self, case: Case, checkpoint: str) -> pa.Table:
        upper, groups = case.query.upper, case.query.groups
        assert upper is not None
        answers: list[pa.Table] = []

        def finish(frame: DataFrame, _: int) -> None:
            kept = frame.persist()
            kept.createOrReplaceTempView(groups)
            answers.append(kept.sparkSession.sql(upper).toArrow())
            kept.unpersist()

        self._spark.sql(case.query.grouped).writeStream.outputMode("complete").foreachBatch(finish).option(
            "checkpointLocation", checkpoint
        ).trigger(availableNow=True).start().awaitTermination()
        return answers[-1]
