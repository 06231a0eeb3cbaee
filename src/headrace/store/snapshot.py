"""Readers: each with its own cursor and read transaction, so each sees whole epochs only.

A cursor per reader because a DuckDB connection shared by threads returns other threads' rows; a
read-only transaction because only the writer may make epochs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pyarrow as pa

from headrace.store.directory import remove
from headrace.store.ledger import CATALOG, Ledger
from headrace.store.reading import Reading, Stored, key_of


class Snapshot(Reading):
    """The database as of one epoch, for as long as it is open. For one thread at a time."""

    is_draft: ClassVar[bool] = False
    """Whether the epoch is only in the making: what it altered must be kept nowhere."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, segments: Path, ledger: Ledger) -> None:
        # DuckDB fixes what a transaction sees at its first access, not at BEGIN: reading the epoch is that
        # access. The acknowledged epoch bounds the scan to the newest rows.
        epochs = cursor.execute(
            f"BEGIN TRANSACTION READ ONLY; SELECT max(epoch) FROM book.epochs WHERE epoch >= {ledger.epoch}"
        ).fetchall()
        super().__init__(cursor, epochs[0][0], segments, ledger)
        # The database shows an epoch as soon as it is committed; nobody may act on one that a crash could take back.
        ledger.durability.wait_for(self.epoch)

    def changed_since(self, relation: Stored, epoch: int) -> bool:
        """Whether the relation's content was altered after this snapshot, by ``epoch`` at the latest."""
        return self._ledger.last_change(key_of(relation), epoch) > self.epoch

    @property
    def catalog_epoch(self) -> int:
        """The epoch that last put or dropped a definition."""
        return self._ledger.last_change(CATALOG, self.epoch)

    def recorded(self, source: str, sequence: int) -> bool:
        """Whether this source's sequence is committed by now (possibly by a later epoch than this one)."""
        found = self._ledger.committed(source, sequence)
        if found:
            self._ledger.durability.wait_for(self._ledger.epoch)
        return found


class NotInMemory(Exception):
    """What a glance was asked for is in the database file only."""


class Glance(Snapshot):
    """What memory alone tells of the newest epoch: no transaction, and so a fraction of a snapshot's cost.

    Raises :class:`NotInMemory` for anything else.
    """

    def __init__(self, epoch: int, segments: Path, ledger: Ledger) -> None:
        self.epoch = epoch
        self._segments = segments
        self._ledger = ledger
        ledger.durability.wait_for(epoch)

    def _fetch(self, sql: str) -> list[tuple[Any, ...]]:
        raise NotInMemory

    def query(self, sql: str, **relations: pa.Table) -> pa.Table:
        raise NotInMemory


class Readers:
    """The open snapshots, and the files that wait for the older of them to end."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: dict[duckdb.DuckDBPyConnection, tuple[int, int]] = {}
        self._glances: dict[object, int] = {}
        self._doomed: list[tuple[int, Path]] = []

    def enter(self, cursor: duckdb.DuckDBPyConnection, ledger: Ledger) -> None:
        """Note a reader *before* its transaction begins, at an epoch it cannot be older than."""
        with self._changed:
            self._open[cursor] = (ledger.epoch, threading.get_ident())

    def leave(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """A reader is done; files only it needed go."""
        with self._changed:
            self._open.pop(cursor, None)
            self._changed.notify_all()
        self.delete()

    @contextmanager
    def glancing(self, ledger: Ledger) -> Iterator[int]:
        """Note a reader that has no transaction, and the epoch it is at."""
        glance = object()
        with self._changed:
            # Under the lock: what the ledger forgets from here on is older. All that is acknowledged is durable: a
            # newer epoch would have to be waited for.
            self._glances[glance] = epoch = min(ledger.epoch, ledger.durability.epoch)
        try:
            yield epoch
        finally:
            with self._changed:
                del self._glances[glance]

    def oldest(self, head: int) -> int:
        """The oldest epoch an open snapshot may see; ``head`` if none is open."""
        with self._changed:
            return min((*(epoch for epoch, _ in self._open.values()), *self._glances.values()), default=head)

    def doom(self, epoch: int, files: Iterable[Path]) -> None:
        """Delete files once every snapshot older than ``epoch`` is closed."""
        with self._changed:
            self._doomed += [(epoch, file) for file in files]

    def delete(self) -> None:
        """Delete the doomed files nobody can need any more."""
        if not self._doomed:
            return
        with self._changed:
            oldest = min((epoch for epoch, _ in self._open.values()), default=None)
            ready = [file for epoch, file in self._doomed if oldest is None or oldest >= epoch]
            self._doomed = [(epoch, file) for epoch, file in self._doomed if oldest is not None and oldest < epoch]
        for file in ready:
            remove(file)

    def end(self, patience: float) -> None:
        """Interrupt running queries, wait for their threads to let go, then close whatever is left."""
        me = threading.get_ident()
        deadline = time.monotonic() + patience
        with self._changed:
            # A snapshot of the closing thread itself cannot end while that thread waits here.
            while any(owner != me for _, owner in self._open.values()) and time.monotonic() < deadline:
                # Again and again: DuckDB forgets an interrupt that comes between two statements.
                for cursor in self._open:
                    cursor.interrupt()
                self._changed.wait(0.05)
            for cursor in self._open:
                cursor.close()
            self._open.clear()
        self.delete()
