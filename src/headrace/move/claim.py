"""Who may resume a ticket: one at a time, and whoever dies gives it back.

On this machine's filesystems the claim is a lock the kernel drops with its process. Elsewhere it is a lease: a
numbered file that only one can create, written again and again while its owner lives. A lease nobody has written
for a minute is over, and the next number may be taken.
"""

from __future__ import annotations

import os
import threading
import uuid
from pathlib import Path
from typing import Protocol

from headrace.errors import StoreError
from headrace.move.files import Folder
from headrace.store.directory import Lock

LEASE_SECONDS = 60.0
_NAME = "claim"


class Claim(Protocol):
    """The right to resume a ticket."""

    def release(self) -> None: ...


def claim(folder: Folder, lease_seconds: float = LEASE_SECONDS) -> Claim:
    """Take the right to resume the ticket in ``folder``, or say who has it."""
    local = folder.local
    return claim_local(local) if local is not None else Lease(folder, lease_seconds)


def in_use(where: str, who: str) -> StoreError:
    return StoreError(
        "TICKET_IN_USE", f"{where} is being resumed by {who}", hint="wait for it, or resume a ticket of your own"
    )


def claim_local(path: Path) -> Claim:
    """A claim on a folder of this machine."""
    try:
        return Lock(path / _NAME)
    except StoreError as error:
        raise in_use(str(path), error.message.rpartition("open in ")[2] or "another process") from None


class Lease:
    """A claim on a filesystem without locks."""

    def __init__(self, folder: Folder, seconds: float = LEASE_SECONDS) -> None:
        self._folder = folder
        self._seconds = seconds
        self._over = threading.Event()
        self._owner = uuid.uuid4().hex
        taken = [int(n.rpartition(".")[2]) for n in folder.names() if n.startswith(f"{_NAME}.") and n[-1].isdigit()]
        last = max(taken, default=0)
        self._name = f"{_NAME}.{last + 1}"
        try:
            folder.write(self._name, self._owner, overwrite=False)
        except StoreError:
            raise in_use(folder.address, "another process, which was faster") from None
        if last and self._age(f"{_NAME}.{last}") < seconds:
            folder.remove(self._name)
            raise in_use(folder.address, "another process")
        threading.Thread(target=self._keep, name="headrace-lease", daemon=True).start()

    def release(self) -> None:
        self._over.set()
        self._folder.remove(self._name)

    def _age(self, name: str) -> float:
        """Seconds since ``name`` was written, by the filesystem's own clock: our file was written just now."""
        return (self._folder.modified(self._name) - self._folder.modified(name)) / 1000

    def _keep(self) -> None:
        pid = os.getpid()
        while not self._over.wait(self._seconds / 4) and os.getpid() == pid:
            try:
                self._folder.write(self._name, self._owner)
            except Exception:
                return  # the session is gone, and the lease runs out
