"""``with db.batch():`` several statements, one epoch, all of them or none.

The thread that enters takes its turn with those who change tables and definitions, then has the writer's next
transaction to itself (``store/batch.py``) until the block ends. So in the block nobody can have changed what a
statement has read, and whoever else writes waits, no longer than the batch may be open.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from headrace.base.boundary import public
from headrace.base.interrupts import Interrupted, committed, interruptible
from headrace.base.wording import shown
from headrace.errors import BatchError, HeadraceError
from headrace.runtime import Runtime
from headrace.sql.literals import interval_text
from headrace.store.batch import OpenBatch, given_up, not_begun

LONGEST = 86_400.0
"""Seconds that a batch may be open at most: a day, for others wait for it."""


def seconds_of(timeout: object) -> float:
    """How long a batch may be open, of a number of seconds or an interval's text.

    >>> seconds_of(2.5), seconds_of("1 minute 30 seconds")
    (2.5, 90.0)
    """
    seconds = 0.0
    if isinstance(timeout, int | float) and not isinstance(timeout, bool):
        seconds = float(timeout)
    elif isinstance(timeout, str) and (length := interval_text(timeout)) and length.type.name == "interval_time":
        seconds = length.value / 1_000_000
    if 0 < seconds <= LONGEST:
        return seconds
    raise BatchError(
        "INVALID_TIMEOUT",
        f"a batch cannot be open for {shown(timeout)}",
        hint="give seconds or a length of time, up to a day: db.batch(timeout='30 seconds')",
    )


class Batch:
    """A batch, to be used in one ``with`` block by one thread."""

    def __init__(self, runtime: Runtime, in_use: Callable[[], AbstractContextManager[None]], seconds: float) -> None:
        self._runtime = runtime
        self._in_use = in_use
        self._seconds = seconds
        self._open: OpenBatch | None = None
        self.epoch: int | None = None
        """Its epoch, once it is in; ``None`` if nothing was changed."""

    @public
    def __enter__(self) -> Batch:
        store, lock = self._runtime.store, self._runtime.tables_lock
        store.refuse_in_batch("another batch", "end this one first; its statements are one batch already")
        if self._open is not None:
            raise BatchError("BATCH_USED", "a batch is used once", hint="make another: with db.batch(): …")
        try:
            with self._in_use():
                if not lock.acquire(self._seconds):
                    raise not_begun(self._seconds)
                self._open = store.begin_batch(self._seconds, lock.release)
                self._runtime.tidying.hold()
        except BaseException:
            if self._open is not None:  # interrupted as soon as it was begun: nobody will leave it
                self._runtime.tidying.let_go(self._open.thread)
                store.leave_batch(self._open, given_up())
            raise
        return self

    @public
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        open_, tidying = self._open, self._runtime.tidying
        assert open_ is not None
        reason: HeadraceError | None = given_up() if error is not None else None
        if threading.get_ident() != open_.thread:
            reason = BatchError(
                "BATCH_FAILED",
                "the batch was left by another thread than the one that began it",
                hint="nothing of it was kept; begin and end it in one thread",
            )
        after = []
        try:
            with interruptible():
                try:
                    self.epoch = self._runtime.store.leave_batch(open_, reason)
                finally:
                    after = tidying.let_go(open_.thread)
                if reason is None:
                    committed()
                    for doing, work in after:
                        tidying.then(doing, work)
        except Interrupted as interrupted:
            raise Interrupted(interrupted.done and reason is None, "the batch") from None
        if isinstance(error, KeyboardInterrupt) and not isinstance(error, Interrupted):
            raise Interrupted(False, "the batch") from error
        if reason is not None and error is None:
            raise reason
