"""Long queries that make room for short ones: they pause, keep what is finished, and go on after (000 §6.3.7)."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.move.query import RunningQuery


@dataclass(frozen=True, eq=False)
class _Yielding:
    query: RunningQuery
    to: str
    settling: threading.Lock = field(default_factory=threading.Lock)


_lock = threading.Lock()
_yielding: list[_Yielding] = []
_ahead: dict[str, int] = {}
"""How many queries of each class run now."""


def enter(query: RunningQuery, priority_class: str | None, yield_to: str | None) -> None:
    """Let ``query`` take its place among those that run in this process."""
    if yield_to is not None:
        entry = _Yielding(query, yield_to)
        with _lock:
            _yielding[:] = [each for each in _yielding if each.query.status in ("running", "paused")]
            _yielding.append(entry)
        _settle(entry)
    if priority_class is not None:
        _count(priority_class, 1)
        threading.Thread(target=_leave, args=(query, priority_class), name="headrace-priority", daemon=True).start()


def _leave(query: RunningQuery, name: str) -> None:
    query.wait()
    _count(name, -1)


def _count(name: str, change: int) -> None:
    with _lock:
        _ahead[name] = _ahead.get(name, 0) + change
        behind = [each for each in _yielding if each.to == name]
    for each in behind:
        _settle(each)


def _settle(entry: _Yielding) -> None:
    """Have a query pause or go on, as those ahead of it are by now: each change looks anew, one after the other."""
    with entry.settling:
        with _lock:
            busy = _ahead.get(entry.to, 0) > 0
        try:
            if not busy:
                entry.query.proceed()
            elif entry.query.status == "running":
                entry.query.pause()
        except HeadraceError:
            pass  # it has just finished, or cannot be moved: then both run
