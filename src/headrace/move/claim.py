"""Who may resume a ticket: one at a time, and whoever dies gives it back.

On this machine's filesystems the claim is a lock the kernel drops with its process. Elsewhere it is a lease: a
numbered file that only one can create, written again and again while its owner lives. A lease nobody has written
for a minute is over, and the next number may be taken.
"""

from __future__ import annotations

import math
import threading
import uuid
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.errors import StoreError
from headrace.move.files import Folder
from headrace.move.ticket import Ticket, finish
from headrace.store.directory import DirectoryLock

LEASE_SECONDS = 60.0
_RENEWALS = 6
"""How often a lease is written while it lasts."""
CLAIM = "claim"


class TicketClaim(Protocol):
    """The right to resume a ticket."""

    def release(self) -> None: ...


def claim(folder: Folder, lease_seconds: float = LEASE_SECONDS) -> TicketClaim:
    """Take the right to resume the ticket in ``folder``, or say who has it."""
    local = folder.local
    return claim_local(local) if local is not None else Lease(folder, lease_seconds)


def in_use(where: str, who: str) -> StoreError:
    return StoreError(
        "TICKET_IN_USE", f"{where} is being resumed by {who}", hint="wait for it, or resume a ticket of your own"
    )


def claim_local(path: Path) -> TicketClaim:
    """A claim on a folder of this machine."""
    try:
        return DirectoryLock(path / CLAIM)
    except StoreError as error:
        raise in_use(str(path), error.message.rpartition("open in ")[2] or "another process") from None
    except OSError as error:
        raise StoreError(
            "TICKET_NOT_WRITTEN",
            f"{path} cannot be claimed: {error.strerror or error}",
            hint="whoever resumes a ticket writes in its folder: copy it to where you may",
        ) from None


@dataclass(frozen=True, slots=True)
class Origin:
    """The ticket a query was resumed from."""

    folder: Folder
    ticket: Ticket
    claim: TicketClaim
    keep: bool

    def use_up(self) -> None:
        """Mark the ticket as used, unless it is kept. If that fails, what was made of it is there all the same."""
        if self.keep:
            return
        try:
            finish(self.folder)
        except Exception as error:
            warnings.warn(f"{self.folder.address} was not marked as used: {error}", RuntimeWarning, stacklevel=2)


class Lease:
    """A claim on a filesystem without locks."""

    def __init__(self, folder: Folder, seconds: float = LEASE_SECONDS) -> None:
        self._folder = folder
        self._seconds = seconds
        self._over = threading.Event()
        self._writing = threading.Lock()
        """Held while the lease is written or given up: nothing puts it back."""
        self._owner = uuid.uuid4().hex
        taken = [name for name in folder.names() if name.startswith(f"{CLAIM}.") and name[-1].isdigit()]
        last = max((int(name.rpartition(".")[2]) for name in taken), default=0)
        self._name = f"{CLAIM}.{last + 1}"
        try:
            folder.write(self._name, self._owner, overwrite=False)
        except StoreError:
            if not folder.exists(self._name):
                raise
            raise in_use(folder.address, "another process, which was faster") from None
        # Not the last one alone: it may be of somebody who only looked, as we do, and died.
        if any(self._age(name) < seconds for name in taken):
            folder.remove(self._name)
            raise in_use(folder.address, "another process")
        threading.Thread(target=self._keep, name="headrace-lease", daemon=True).start()

    def release(self) -> None:
        self._over.set()
        with self._writing:
            self._folder.remove(self._name)

    def _age(self, name: str) -> float:
        """Seconds since ``name`` was written, by the filesystem's own clock: our file was written just now."""
        ours, theirs = self._folder.modified(self._name), self._folder.modified(name)
        return math.inf if ours is None or theirs is None else (ours - theirs) / 1000

    def _keep(self) -> None:
        while not self._over.wait(self._seconds / _RENEWALS):
            # One that fails is made up for by the next; only if all do, the lease runs out.
            with self._writing, suppress(Exception):
                if not self._over.is_set():
                    self._folder.write(self._name, self._owner)
