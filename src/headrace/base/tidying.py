"""What is done after a commit: merging states, telling other processes, letting go of files.

A statement that is in has succeeded, whatever becomes of that. So it is done under :meth:`Tidying.after`, which lets no
failure out: it goes to the log (the logger ``headrace``) and into ``headrace.failures``, and what was not done is done
by a later statement or at the next open. Nor can an interrupt end it: the caller's statement ends with that afterwards,
saying that it is in (:mod:`headrace.base.interrupts`). A statement of a batch is in when the batch is: what follows it
is held until then (:meth:`Tidying.then`), and forgotten if the batch fails.

>>> tidying = Tidying()
>>> logging.getLogger("headrace").disabled = True
>>> with tidying.after("merging v"):
...     raise OSError("no space left")
>>> logging.getLogger("headrace").disabled = False
>>> [(f.doing, f.error) for f in tidying.failures]
[('merging v', 'OSError: no space left')]
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType

from headrace.base.interrupts import came_late, committed, shielded

_log = logging.getLogger("headrace")
KEPT = 1000
"""Failures that are remembered."""


@dataclass(frozen=True)
class Failure:
    """What failed after a commit."""

    time: datetime
    doing: str
    error: str


class Tidying:
    """The failures after commits of one open database."""

    def __init__(self) -> None:
        self._failures: deque[Failure] = deque(maxlen=KEPT)
        self._held: dict[int, list[tuple[str, Callable[[], object]]]] = {}

    @property
    def failures(self) -> list[Failure]:
        """The last ones, oldest first."""
        return list(self._failures)

    def after(self, doing: str) -> _After:
        """A block whose failures are noted here and go no further; ``doing`` says what it does."""
        return _After(self, doing)

    def then(self, doing: str, work: Callable[[], object]) -> None:
        """This thread's statement is in: do what follows. In a batch, when that is in."""
        held = self._held.get(threading.get_ident()) if self._held else None
        if held is not None:
            held.append((doing, work))
            return
        committed()
        with self.after(doing):
            work()

    def hold(self) -> None:
        """From now on this thread's statements are in with their batch only."""
        self._held[threading.get_ident()] = []

    def let_go(self, thread: int) -> list[tuple[str, Callable[[], object]]]:
        """What was held for a thread's batch, which has ended."""
        return self._held.pop(thread, [])

    def note(self, doing: str, error: BaseException) -> None:
        self._failures.append(Failure(datetime.now(UTC), doing, f"{type(error).__name__}: {error}"))
        _log.warning("%s failed, after the statement was committed: %s", doing, error, exc_info=error)


class _After:
    __slots__ = ("_doing", "_shield", "_tidying")

    def __init__(self, tidying: Tidying, doing: str) -> None:
        self._tidying = tidying
        self._doing = doing
        self._shield = shielded()

    def __enter__(self) -> None:
        self._shield.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        self._shield.__exit__()
        if isinstance(error, KeyboardInterrupt):
            came_late()
            return True
        if isinstance(error, Exception):
            self._tidying.note(self._doing, error)
            return True
        return False
