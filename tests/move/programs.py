"""Queries to be stopped, and how tests take hold of them."""

from __future__ import annotations

import os
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


LIMIT = 500
"""Seconds until a test gives up waiting for what must come."""


def held_program(path: str, gate: Path) -> Callable[[SparkSession], DataFrame]:
    """A grouping that is finished at once, and a Python function above it that waits until the gate is open."""
    opened = str(gate)

    def build(spark: SparkSession) -> DataFrame:
        from pyspark.sql.functions import col, sum, udf

        @udf("long")
        def held(total: int) -> int:
            while not os.path.exists(opened):
                time.sleep(0.01)
            return total

        return spark.read.parquet(path).groupBy("k").agg(sum("n").alias("total")).select("k", held(col("total")))

    return build


def after_one_stage(running: RunningQuery) -> RunningQuery:
    deadline = time.monotonic() + LIMIT
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
