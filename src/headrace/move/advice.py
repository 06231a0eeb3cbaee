"""Is moving worth it? 004's finding: small states always are, large ones late in a query seldom.

Compared are three ways to the end, counted from now: going on elsewhere from the state as it is, doing so once what is
in flight is finished, and starting again there. The rate at which files can be written and read is measured each time,
by a few megabytes where the state would go.
"""

from __future__ import annotations

import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.move import states
from headrace.move.files import Folder
from headrace.move.java_aid import java_aid
from headrace.move.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROBE_BYTES = 4 * 1024 * 1024
_FIXED_SECONDS = 1.5
"""Planning again, checking and starting jobs on both sides, measured on 2 cores."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Seconds to the end in each way, and the best of them: ``now``, ``next stage`` or ``restart``."""

    now: float
    """Moved with what is in flight given up: ``suspend(path, finish=False)``."""
    next_stage: float
    """Moved when what is in flight is finished: ``suspend(path, finish=True)``."""
    restart: float
    """Started again elsewhere."""
    state_bytes: int
    bytes_per_second: float
    """At which state is written and read again."""

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


def estimate(progress: Progress, state_bytes: int, bytes_per_second: float, in_flight: float = 0.0) -> Advice:
    """The three ways, if pipelines take equally long. What is in flight has run for ``in_flight`` seconds.

    >>> estimate(Progress("running", 8, 10, (), 80.0), 10_000_000, 100e6).best
    'now'
    >>> estimate(Progress("running", 8, 10, (), 89.0), 10_000_000, 100e6, in_flight=9.0).best
    'next stage'
    >>> estimate(Progress("running", 1, 10, (), 2.0), 9_000_000_000, 100e6).best
    'restart'
    """
    left = max(1, progress.total - progress.finished)
    each = max(0.0, progress.seconds - in_flight) / progress.finished if progress.finished else progress.seconds
    this = max(each, in_flight)  # the one in flight
    after = each * (left - 1)
    moving = state_bytes / bytes_per_second + _FIXED_SECONDS
    grown = state_bytes * (1 + 1 / progress.total)
    later = grown / bytes_per_second + _FIXED_SECONDS if left > 1 else 0.0  # after the last there is the answer
    return Advice(
        moving + this + after,
        this - in_flight + later + after,
        each * (progress.total - 1) + this,
        state_bytes,
        bytes_per_second,
    )


def rate(spark: SparkSession, to: str | None) -> float:
    """Bytes of state a second that are written and read again, if they go to ``to``: files and the work on rows."""
    folder = Folder(spark, to if to is not None else Path(tempfile.gettempdir()).as_uri())
    there = folder.exists()
    conf: Any = spark.sparkContext._jsc.hadoopConfiguration()
    try:
        with folder.written():
            took = java_aid(spark).probe(conf, f"{folder.address}/headrace-probe-{uuid.uuid4().hex}", _PROBE_BYTES)
    finally:
        if not there:
            folder.remove()
    return 1 / (int(took) / 1e9 / _PROBE_BYTES + states.seconds_a_byte(spark))
