"""Is moving worth it? 004's finding: small states always are, large ones late in a query seldom.

Compared are three ways to the end, counted from now: going on elsewhere from the state as it is, doing so once the
next pipeline is finished, and starting again there. The rate at which state can be written is measured, once, by
writing a little where it would go.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.move.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROBE_ROWS = 200_000
_FIXED_SECONDS = 1.5
"""Planning again, checking and starting jobs on both sides, measured on 2 cores."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Seconds to the end in each way, and the best of them: ``now``, ``next stage`` or ``restart``."""

    now: float
    next_stage: float
    restart: float
    state_bytes: int
    bytes_per_second: float

    @property
    def best(self) -> str:
        ways = {"now": self.now, "next stage": self.next_stage, "restart": self.restart}
        return min(ways, key=lambda way: ways[way])

    def __str__(self) -> str:
        return (
            f"best: {self.best}. Seconds to the end elsewhere: {self.now:.1f} moved now, {self.next_stage:.1f} moved "
            f"after the next stage, {self.restart:.1f} started again. State: {self.state_bytes:,} bytes at "
            f"{self.bytes_per_second / 1e6:,.0f} MB/s"
        )


def estimate(progress: Progress, state_bytes: int, bytes_per_second: float) -> Advice:
    """The three ways, if pipelines take equally long.

    >>> from headrace.move.progress import Progress
    >>> estimate(Progress("running", 8, 10, (), 80.0), 10_000_000, 100e6).best
    'now'
    >>> estimate(Progress("running", 1, 10, (), 2.0), 9_000_000_000, 100e6).best
    'restart'
    """
    each = progress.seconds / max(1, progress.finished) if progress.finished else progress.seconds
    whole = max(each * progress.total, progress.seconds)
    left = max(whole - progress.seconds, each)
    moving = 2 * state_bytes / bytes_per_second + _FIXED_SECONDS
    grown = state_bytes * (1 + 1 / progress.total)
    later = 2 * grown / bytes_per_second + _FIXED_SECONDS
    return Advice(moving + left, later + left + each / 2, whole, state_bytes, bytes_per_second)


def advise(spark: SparkSession, progress: Progress, state_bytes: int) -> Advice:
    return estimate(progress, state_bytes, _bandwidth(spark))


_measured: dict[str, float] = {}


def _bandwidth(spark: SparkSession) -> float:
    """Bytes a second that Spark's tasks write as Parquet, measured once a process."""
    import tempfile

    key = str(spark.sparkContext.applicationId)
    if key not in _measured:
        with tempfile.TemporaryDirectory(prefix="headrace-probe-") as folder:
            session = spark.newSession()
            frame = session.range(_PROBE_ROWS).selectExpr("id", "hash(id) AS a", "hash(id, 1) AS b")
            frame.write.parquet(f"{folder}/warm")
            began = time.monotonic()
            frame.write.parquet(f"{folder}/probe")
            _measured[key] = _PROBE_ROWS * 16 / (time.monotonic() - began)
    return _measured[key]
