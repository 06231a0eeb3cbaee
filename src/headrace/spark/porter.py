"""The porter of an open database: takes what other processes put in its inbox, and answers what they ask.

A thread that listens for bells. A sink waits until its batch is in, or left for the next owner if there
is none, so whoever asks after a sink's commit has returned finds its rows: batches that were put
while nobody had the database open are taken before it counts as open.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from headrace.catalog import Stream
from headrace.errors import CatalogError, DataError, HeadraceError, Position
from headrace.spark import published
from headrace.statement.load import Loader, SentBatch
from headrace.store.directory import remove
from headrace.stream.inbox import INBOX, Ownership, Tray, bells, trays

if TYPE_CHECKING:
    from headrace.database import Database

_BRISK, _IDLE = 0.005, 0.1
"""Seconds between looks: after a bell, and when none rang for a while."""
_PATIENCE = 5.0
"""How many seconds stopping waits for a batch that is just being taken."""
_AT_OPEN, _LATER = 30.0, 1.0
"""Seconds to wait for a sink that has its tray locked; it holds the lock for an instant, unless it stands still."""


class Porter:
    """Takes batches and answers questions until it is stopped or its database is forgotten."""

    def __init__(self, db: Database, loader: Loader) -> None:
        self._db = weakref.ref(db)
        self._loader = loader
        self._ownership = Ownership(db.path)
        self._stopped = threading.Event()
        published.publish_catalog(db, whole=True)
        published.sweep(db.path)
        self.drain()
        self._thread = threading.Thread(target=_listen, args=(weakref.ref(self), self._stopped), daemon=True)
        self._thread.start()

    def drain(self) -> HeadraceError | None:
        """Take every batch that waits; the first reason why one could not be taken, if any."""
        db = self._db()
        failures = [self.take(tray) for tray in trays(db.path)] if db is not None else []
        return next((f for f in failures if f is not None), None)

    def take(self, tray: Tray, patience: float = _AT_OPEN) -> HeadraceError | None:
        """Take a query's batches in order, up to the first that cannot be; it stays, with the reason."""
        db = self._db()
        if db is None:
            return None
        with tray.locked(patience):
            try:
                waiting = tray.batches()
            except HeadraceError as error:
                return error
            for batch, manifest in waiting:
                try:
                    stream: Stream = db.catalog.get(manifest.stream, Stream)
                    self._loader.take(stream, tray.files(manifest), SentBatch(f"sink {tray.query}", batch))
                except HeadraceError as error:
                    if error.condition != "DATABASE_CLOSED":  # closed meanwhile: the next owner takes it
                        tray.fail(batch, error)
                    return error
                except FileNotFoundError as error:
                    lost = DataError(
                        "BATCH_INCOMPLETE",
                        f"batch {batch} of query {tray.query} has lost {error.filename}",
                        hint=f"files of {db.path / INBOX} were removed; start the query from an older checkpoint",
                    )
                    tray.fail(batch, lost)
                    return lost
                tray.remove(batch, manifest)
                tray.sweep(batch)
        tray.retire()
        return None

    def retry(self) -> None:
        """Definitions changed: what could not be taken may be now."""
        db = self._db()
        for path in (db.path / INBOX).glob("*/*.failed") if db is not None else ():
            Tray(path.parent.parent.parent, path.parent.name).ring()

    def require_idle(self, stream: str, position: Position | None = None) -> None:
        """Refuse to drop a stream for which batches wait."""
        db = self._db()
        for tray in trays(db.path) if db is not None else ():
            waiting = [batch for batch, manifest in tray.batches() if manifest.stream.lower() == stream.lower()]
            if waiting:
                raise CatalogError(
                    "STREAM_IN_USE",
                    f"{stream} has {len(waiting)} batches of query {tray.query} in the inbox",
                    position=position,
                    hint="db.drain() says why they could not be taken",
                )

    def stop(self) -> None:
        again = self._stopped.is_set()
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_PATIENCE)
        db = self._db()
        if db is not None and not again:
            with db.runtime.tidying.after("telling other processes of the definitions"):
                published.write_catalog(db)
        self._ownership.release()

    def look(self) -> bool:
        """Attend to every bell that rang; whether any did."""
        db = self._db()
        if db is None:
            self._stopped.set()
            return False
        rung = os.listdir(bells(db.path))
        for bell in rung:
            # Removed first: whatever is put from now on rings again.
            remove(bells(db.path) / bell)
            if self._stopped.is_set():
                break
            try:
                with db.in_use():
                    if published.is_ask(bell):
                        published.answer(db, bell)
                    else:
                        self.take(Tray(db.path, bell), _LATER)
            except HeadraceError as error:
                if error.condition == "LOCK_HELD":
                    Tray(db.path, bell).ring()  # to be looked at again
        return bool(rung)


def _listen(porter: weakref.ref[Porter], stopped: threading.Event) -> None:
    pause = _BRISK
    while not stopped.wait(pause):
        listening = porter()
        if listening is None:
            return
        try:
            rung = listening.look()
        except OSError:
            rung = False  # the directory went away, or is full: look again later
        del listening
        pause = _BRISK if rung else min(pause * 1.5, _IDLE)
