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
        if self._owner == me:  # nobody else can set it to that
            self._depth += 1
            return True
        with self._changing:
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
                self._hand_over()
            raise
        self._depth = 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._hand_over()

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

    def _hand_over(self) -> None:
        with self._changing:
            if self._queue:
                self._owner, turn = self._queue.popleft()
                turn.release()
            else:
                self._owner = None
