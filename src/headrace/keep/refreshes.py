"""What was done to keep materialized views up to date, while the database is open: ``headrace.refreshes``."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from headrace.errors import HeadraceError
from headrace.keep.kept import Kept, Renewal

KEPT = 1000
"""Refreshes that are remembered."""


@dataclass(frozen=True)
class Refreshed:
    """One view taken on, or an attempt at it."""

    view: str
    epoch: int | None
    """The epoch it was committed in; none if it failed."""
    strategy: str
    trigger: str
    """What called for it."""
    how: str
    """By what work: ``incremental``, or ``full``."""
    changed_rows: int | None
    estimated_seconds: float | None
    seconds: float
    state_rows: int
    """Written."""
    error: str | None = None
    time: datetime = field(default_factory=lambda: datetime.now(UTC))


def refreshed(
    kept: Kept,
    trigger: str,
    renewal: Renewal | None,
    epoch: int | None,
    seconds: float,
    error: HeadraceError | None = None,
) -> Refreshed:
    """What was done to a view, or why it could not be."""
    return Refreshed(
        kept.name,
        epoch,
        kept.refreshing.strategy,
        trigger,
        "" if renewal is None else "full" if renewal.is_whole else "incremental",
        renewal.changed_rows if renewal is not None else None,
        renewal.estimated_seconds if renewal is not None else None,
        seconds,
        sum(rows.num_rows for rows in renewal.rows.values()) if renewal is not None else 0,
        None if error is None else f"[{error.condition}] {error.message}",
    )


class Refreshes:
    """The last of them, oldest first."""

    def __init__(self) -> None:
        self._last: deque[Refreshed] = deque(maxlen=KEPT)
        self._noted = threading.Condition()

    def note(self, refreshed: Refreshed) -> None:
        with self._noted:
            self._last.append(refreshed)
            self._noted.notify_all()

    def __call__(self) -> list[Refreshed]:
        with self._noted:
            return list(self._last)

    def wait_for(self, wanted: Callable[[Refreshed], bool], seconds: float) -> bool:
        """Until one is noted that is wanted; False if none is for so long."""
        with self._noted:
            return self._noted.wait_for(lambda: any(map(wanted, self._last)), seconds)
