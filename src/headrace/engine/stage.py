"""A stage: what rows that come by a stream do to one kept relation's states.

Natively a stage is a fragment (``engine/work.py``), which runs wherever the input is. What has no native form runs as
Spark SQL over a DataFrame of the input. Both leave the same state rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.work import Fragment, Static
from headrace.plan.nodes import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.catalog import Stream

StateRows = dict[int, list[pa.Table]]
"""State rows by state."""


@dataclass(frozen=True)
class SparkSite:
    """Where Spark SQL runs a stage."""

    spark: SparkSession
    zone: str
    written: Callable[[Static], Path]
    """Has a build side lie in its file, where Spark can read it."""


class Stage(ABC):
    """One relation's share of an insert."""

    state: int
    """The state it changes, or the first of them: what the stage is known by."""
    plan: Node
    """What it computes of the stream's rows."""
    columns: tuple[str, ...]
    """The stream's columns it reads."""
    reason: str | None
    """Why it has no native form; None if it has one."""

    @property
    def together(self) -> Callable[[Stream, Sequence[Any], str], Fragment] | None:
        """What makes one fragment of native stages over a stream that all have it, in a time zone: what they have in
        common is done once. None if each runs alone."""
        return None

    @abstractmethod
    def fragment(self) -> Fragment:
        """Its native form, alone."""

    @abstractmethod
    def by_spark(self, site: SparkSite, frame: DataFrame) -> StateRows:
        """The state rows that a DataFrame's rows leave, computed by Spark SQL."""
