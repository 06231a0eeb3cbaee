"""The rows of one statement on their way into a ring: each once, and none that a query answers with if it fails.

A file may be longer than the ring, so its rows go there while they are read, by whoever reads them: threads, and
Spark's tasks here and on other hosts. Some of those outlive the statement, for Spark lets the tasks of a failed job run
on for a while. So a delivery has a *token*, a file beside the ring: who delivers looks for it before and after each
write, and who takes a delivery back removes it first. Whatever was written is then taken back by the one or the other.

A task that Spark runs again delivers nothing: what its first attempt delivered nobody knows. The statement goes on, and
the queries that read along fail.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.base.private import inside, new_file
from headrace.errors import ExecutionError
from headrace.rings.ring import Ring


@dataclass(frozen=True)
class Address:
    """What a worker must know to deliver: plain values that a Spark task can be sent."""

    stream: str
    folder: Path
    """The ring's."""
    token: str
    location: str = ""
    secret: str = ""
    """Where the ring's owner takes rows from other hosts, and what it asks for."""
    certificate: str = ""
    """The owner's, by which workers know it; nothing where it is asked on this host."""
    remote: bool = False
    """Whether to send rows to the owner even where the ring could be mapped (for tests)."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the ring is on another host."""
        return bool(self.location) and (self.remote or not self.folder.parent.exists())


class Delivery:
    """A statement's delivery, seen from the process that owns the ring.

    ``ring_of`` is asked which ring wants the rows, if any, when the statement's input is about to be read.
    """

    def __init__(self, ring_of: Callable[[], Ring | None]) -> None:
        self._ring_of = ring_of
        self.ring: Ring | None = None
        self._since = 0
        self._token = ""
        self._spoiled = False

    def begin(self) -> bool:
        """Whether whoever reads the input now is to deliver its rows. An input that is run again is there already."""
        if self.ring is not None or (ring := self._ring_of()) is None:
            return False
        self._token, self._spoiled = f"delivery-{uuid.uuid4().hex}", False
        try:
            new_file(ring.folder / self._token)
        except FileNotFoundError:  # the last query that read it has ended
            return False
        self.ring, self._since = ring, ring.end
        return True

    def address(self, location: str = "", secret: str = "", certificate: str = "", *, remote: bool = False) -> Address:
        assert self.ring is not None
        return Address(self.ring.stream, self.ring.folder, self._token, location, secret, certificate, remote)

    def put(self, rows: pa.Table) -> None:
        """Deliver rows from here."""
        put(self.address(), rows)

    def spoil(self) -> None:
        """Say that the delivery is not what the statement inserts: queries that have read it must fail."""
        self._spoiled = True

    def settle(self) -> None:
        """The statement is committed: return when its rows are visible, or take them back if they were spoiled."""
        if self._spoiled:
            self.take_back()
        elif self.ring is not None:
            ring, self.ring = self.ring, None
            (ring.folder / self._token).unlink(missing_ok=True)
            ring.book.await_visible(ring.end, ring.terms.patience)

    def take_back(self) -> None:
        """The rows are not to be in any answer; those who go on delivering are stopped."""
        if self.ring is not None:
            ring, self.ring = self.ring, None
            (ring.folder / self._token).unlink(missing_ok=True)
            if ring.end > self._since:
                ring.book.roll_back(self._since, ring.end)


def put(address: Address, rows: pa.Table, ring: Ring | None = None) -> Ring:
    """Put rows of a delivery into its ring, mapped here; returns the ring, for the next time."""
    if ring is None or ring.folder != address.folder:
        ring = Ring.open(address.folder)
    ring.check_open()
    token = inside(address.folder, address.token)
    if not token.exists():
        raise ExecutionError(
            "STATEMENT_ENDED", f"the insert into stream {ring.stream} has ended", hint="this is no error of its own"
        )
    written = ring.write(rows, wait=False)
    if not token.exists() and written.hi and not ring.book.is_closed:
        ring.book.roll_back(written.lo, written.hi)
    return ring
