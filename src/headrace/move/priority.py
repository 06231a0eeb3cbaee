"""Long queries that make room for short ones: they pause, keep what is finished, and go on after (000 §6.3.7)."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.move.query import RunningQuery


@dataclass(frozen=True, eq=False)
class _Yielding:
    query: RunningQuery
    to: str
    settling: threading.Lock = field(default_factory=threading.Lock)


_lock = threading.Lock()
_yielding: list[_Yielding] = []
_ahead: dict[str, list[RunningQuery]] = {}
"""The queries of each class, until they end. One that is paused is not waited for: two may yield to each other."""


def enter(query: RunningQuery, priority_class: str | None, yield_to: str | None) -> None:
    """Let ``query`` take its place among those that run in this process."""
    if yield_to is not None:
        entry = _Yielding(query, yield_to)
        with _lock:
            _yielding[:] = [each for each in _yielding if each.query.status in ("running", "paused")]
            _yielding.append(entry)
        _settle(entry)
    if priority_class is not None:
        with _lock:
            _ahead.setdefault(priority_class, []).append(query)
        # Before anybody is paused: whatever comes of that, those who wait for this query are told of its end.
        threading.Thread(target=_leave, args=(query, priority_class), name="headrace-priority", daemon=True).start()
        _settle_behind(priority_class)


def _leave(query: RunningQuery, name: str) -> None:
    query.wait()
    with _lock:
        _ahead[name].remove(query)
    _settle_behind(name)


def _settle_behind(name: str) -> None:
    with _lock:
        behind = [each for each in _yielding if each.to == name]
    for each in behind:
        _settle(each)


def _settle(entry: _Yielding) -> None:
    """Have a query pause or go on, as those ahead of it are by now: each change looks anew, one after the other."""
    with entry.settling:
        with _lock:
            busy = any(each.status == "running" for each in _ahead.get(entry.to, ()))
        try:
            if not busy:
                entry.query.proceed()
            elif entry.query.status == "running":
                entry.query.pause()
        except Exception:
            pass  # it has just finished, or cannot be moved, or Spark is gone: then both run, or none
