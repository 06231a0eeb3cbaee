"""When an epoch is durable, and who waits for it.

DuckDB syncs its log inside COMMIT, or, with ``fsync_mode`` NONE, not at all. So there are three ways:

- ``commit``: DuckDB syncs each commit.
- ``group``: the writer commits whatever is waiting, each epoch for itself, syncs the log once, then
  acknowledges them all. A commit that comes alone waits for nobody.
- ``none``: the system writes the log when it likes. A killed process loses nothing, a power cut may.

Checkpoints are synced in all three, and so is a commit whose rows DuckDB writes into the database
file ahead of the log: a log that reached the disk must never name blocks that did not.
"""

from __future__ import annotations

import threading

from headrace.errors import StoreError

WAYS = ("commit", "group", "none")
BULK_ROWS = 65_536
"""A commit with this many rows is always synced. DuckDB writes rows ahead from 122,880 on."""


class Durability:
    """Which epochs a crash cannot take back. Readers wait here for an epoch they see before it is one of them.

    >>> durability = Durability(3)
    >>> durability.reached(4); durability.wait_for(4); durability.wanted
    False
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._changed = threading.Condition()
        self._waiting = 0
        self._writer = 0
        self._failure: StoreError | None = None

    @property
    def wanted(self) -> bool:
        """Whether a reader waits, so that the writer should not go on gathering commits."""
        return self._waiting > 0

    def written_by(self, thread: int) -> None:
        """Say which thread makes epochs durable: it cannot wait for itself."""
        self._writer = thread

    @property
    def epoch(self) -> int:
        """The last epoch that is durable."""
        return self._epoch

    def reached(self, epoch: int) -> None:
        """All epochs up to this one are durable."""
        with self._changed:
            self._epoch = epoch
            self._changed.notify_all()

    def failed(self, error: StoreError) -> None:
        """No further epoch will become durable."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def check(self) -> None:
        """Raise if the store can no longer make anything durable."""
        if self._failure is not None:
            raise StoreError(self._failure.condition, self._failure.message, hint=self._failure.hint)

    def wait_for(self, epoch: int) -> None:
        """Return when the epoch is durable."""
        if epoch <= self._epoch or threading.get_ident() == self._writer:
            return
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: epoch <= self._epoch or self._failure is not None)
            finally:
                self._waiting -= 1
            if epoch > self._epoch:
                self.check()
