"""Long queries that make room for short ones: they pause, keep what is finished, and go on after (000 §6.3.7)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.move.query import RunningQuery

_lock = threading.Lock()
_yielding: list[tuple[RunningQuery, str]] = []
_ahead: dict[str, int] = {}
"""How many queries of each class run now."""


def enter(query: RunningQuery, priority_class: str | None, yield_to: str | None) -> None:
    """Let ``query`` take its place among those that run in this process."""
    if yield_to is not None:
        with _lock:
            _yielding[:] = [(each, name) for each, name in _yielding if each.status in ("running", "paused")]
            _yielding.append((query, yield_to))
            busy = _ahead.get(yield_to, 0) > 0
        if busy:
            _pause(query)
    if priority_class is not None:
        with _lock:
            _ahead[priority_class] = _ahead.get(priority_class, 0) + 1
            behind = [each for each, name in _yielding if name == priority_class]
        for each in behind:
            _pause(each)
        threading.Thread(target=_leave, args=(query, priority_class), name="headrace-priority", daemon=True).start()


def _pause(query: RunningQuery) -> None:
    try:
        if query.status == "running":
            query.pause()
    except HeadraceError:
        pass  # it has just finished, or cannot be moved: then both run


def _leave(query: RunningQuery, name: str) -> None:
    query.wait()
    with _lock:
        _ahead[name] -= 1
        behind = [each for each, yields in _yielding if yields == name] if _ahead[name] == 0 else []
    for each in behind:
        each.proceed()
