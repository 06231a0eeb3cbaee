"""A lock that is taken in turn.

Python's own goes to whoever asks first when it is free, and a thread that lets go and asks again at once nearly always
does: an insert beside a program that makes and drops views waited for many of them. Here whoever has waited longest
is next, so nobody waits for more than one turn of each other thread.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType

from headrace.base.interrupts import waited_for


class Turns:
    """A re-entrant lock, best used in ``with`` blocks.

    >>> lock = Turns()
    >>> with lock, lock:
    ...     lock.waiting
    0
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._owner: int | None = None
        self._depth = 0
        self._queue: deque[tuple[int, threading.Lock]] = deque()

    @property
    def waiting(self) -> int:
        """How many threads wait for their turn."""
        return len(self._queue)

    def acquire(self, seconds: float | None = None) -> bool:
        """Take it, or give up after so many seconds; whether it was taken."""
        me = threading.get_ident()
        with self._changing:
            if self._owner == me:
                self._depth += 1
                return True
            if self._owner is None:
                self._owner, self._depth = me, 1
                return True
            turn = threading.Lock()
            turn.acquire()
            self._queue.append((me, turn))
        try:
            # until whoever has it hands it over
            if not waited_for(turn, seconds) and self._left(me, turn):
                return False
        except BaseException:
            if not self._left(me, turn):
                self.release()
            raise
        return True

    def release(self) -> None:
        """Let go of it once. Whoever ends what another thread holds it for may do so too."""
        with self._changing:
            self._depth -= 1
            if self._depth:
                return
            self._owner = None
            if self._queue:
                self._owner, turn = self._queue.popleft()
                self._depth = 1
                turn.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def _left(self, me: int, turn: threading.Lock) -> bool:
        """Whether this wait could be given up: the turn had not come yet."""
        with self._changing:
            if (me, turn) not in self._queue:
                return False
            self._queue.remove((me, turn))
            return True
