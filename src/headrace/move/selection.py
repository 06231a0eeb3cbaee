"""Which finished work of a query is to be taken along: what is still needed, topmost, and worth it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from headrace.move import states
from headrace.move.plan import Pipeline, extracted, placements, state_of, worth_moving
from headrace.move.planned import Planned
from headrace.move.spark_plans import SparkStage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def needed(planned: Planned, finished: Collection[Pipeline]) -> list[Pipeline]:
    """What is to be extracted, topmost first (Algorithms 6.5 and 6.6)."""
    return extracted(placements(planned.root, state_of(finished, planned.depends)))


def worth(
    spark: SparkSession, planned: Planned, held: Mapping[Pipeline, SparkStage], carried: Collection[Pipeline]
) -> list[Pipeline]:
    """What to extract, where some of it is better computed again.

    Not so state that came with a ticket, nor what finished work has read and might have other rows if it were run
    again: one part of the answer would rest on these, and another on those.
    """
    finished = held.keys() | set(carried)
    read = {below for reader in finished for below in planned.depends.get(reader, ())}
    settled = read & planned.choosing
    settled |= set(planned.scans.values())  # running these here was only to read what came from elsewhere
    kept = worth_moving(
        state_of(finished, planned.depends),
        finished,
        planned.depends,
        lambda p: states.cost_of_moving(spark, held[p]) if p in held else 0.0,
        lambda p: states.cost_of_running(spark, held[p]) if p in held and p not in settled else math.inf,
    )
    return extracted(placements(planned.root, kept))
