"""Queries to be stopped, and how tests take hold of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace
from headrace.errors import HeadraceError
from headrace.move import ticket as tickets
from headrace.move.query import RunningQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUPED = "SELECT k, sum(n) AS total FROM numbers GROUP BY k ORDER BY k"
TOTALS = [(k, 200 * k + 5 * 199 * 100) for k in range(5)]


def slow_program(path: str, seconds: float) -> Callable[[SparkSession], DataFrame]:
    """A grouping that is finished at once, and a Python function above it that takes its time."""

    def build(spark: SparkSession) -> DataFrame:
        from pyspark.sql.functions import col, sum, udf

        @udf("long")
        def slow(total: int) -> int:
            time.sleep(seconds)
            return total

        return spark.read.parquet(path).groupBy("k").agg(sum("n").alias("total")).select("k", slow(col("total")))

    return build


def after_one_stage(running: RunningQuery) -> RunningQuery:
    deadline = time.monotonic() + 500
    while running.progress().finished < 1:
        assert running.status == "running" and time.monotonic() < deadline
        time.sleep(0.05)
    return running


def taken(spark: SparkSession, path: Path, query: str = GROUPED) -> tickets.Ticket:
    """A ticket of a query with its first stage done, without the luck of catching it."""
    running = headrace.run(spark, query)
    running.result()
    return running._write(tickets.new_folder(spark, str(path)), running._planned.stages()[:1])


def refusal(what: Callable[[], Any]) -> str:
    with pytest.raises(HeadraceError) as caught:
        what()
    assert caught.value.hint
    return caught.value.condition
