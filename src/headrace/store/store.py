"""The store: one directory, one writing process, whole epochs.

Everything that must change together (rows, state, catalog, source sequences, the manifest of files)
changes in one commit. docs/architecture.md, *Epochs and durability*.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TypeVar

import duckdb
import pyarrow as pa

from headrace.base.interrupts import shielded, stoppable
from headrace.base.private import inside
from headrace.base.temporary import ClaimedFolder, claim, keep, sweep
from headrace.errors import BatchError, HeadraceError, Position, StoreError
from headrace.store import format as file_format
from headrace.store.batch import OpenBatch, given_up
from headrace.store.directory import DATABASE, Directory, Marker, damaged, fault_of, remove, unwritable
from headrace.store.ledger import Ledger
from headrace.store.reading import Stored, key_of
from headrace.store.snapshot import Glance, NotInMemory, Readers, Snapshot
from headrace.store.transaction import Transaction
from headrace.store.writer import Writer, closed, load

T = TypeVar("T")

# How long close() waits for the threads of interrupted queries to let go.
_PATIENCE = 2.0


class Store:
    """An open database. Safe to use from many threads; closed by ``close``, by ``with``, or at exit."""

    path: Path
    scratch: Path
    settings: Mapping[str, str]

    def __init__(
        self,
        directory: Directory,
        root: duckdb.DuckDBPyConnection,
        settings: Mapping[str, str],
        head: Marker,
        *,
        durability: str,
        group_ms: int,
        claimed: ClaimedFolder | None,
    ) -> None:
        """Use :meth:`open`."""
        self.path = directory.path
        self.scratch = directory.scratch
        self.settings = MappingProxyType(dict(settings))
        self._segments = directory.segments
        self._pid = os.getpid()
        self._names = itertools.count()
        # Never executes anything after this: cursors are cut from it, by any thread.
        self._root = root
        self._readers = Readers()
        self._batches: dict[int, OpenBatch] = {}
        """By the threads that have them."""
        self._ledger: Ledger = load(root, head.epoch)
        schemas = {
            relation: pa.ipc.read_schema(pa.py_buffer(arrow))
            for relation, arrow in root.execute("SELECT relation, arrow FROM book.relations").fetchall()
        }
        found = root.execute("SELECT key, name, kind FROM book.definitions").fetchall()
        names = {key: (name, kind) for key, name, kind in found}
        self._numbers = itertools.count(_highest(root, self._ledger) + 1)
        folded = root.execute("SELECT min(epoch) FROM book.epochs").fetchall()[0][0]
        cursor = root.cursor()
        self._writer = Writer(
            cursor,
            directory,
            self._ledger,
            self._readers,
            schemas,
            names,
            head,
            folded,
            durability="none" if claimed is not None else durability,
            group_ms=group_ms,
        )
        # Also runs at interpreter exit: DuckDB's binding complains loudly about connections left open.
        self._finish = weakref.finalize(
            self, _shut, self._pid, self._writer, self._batches, self._readers, cursor, root, directory, claimed
        )

    @classmethod
    def open(
        cls,
        path: Path | None,
        *,
        settings: Mapping[str, str] | None = None,
        defaults: Mapping[str, str] | None = None,
        memory_limit: str = "4GB",
        threads: int | None = None,
        durability: str = "group",
        group_ms: int = 10,
        accept_state: bool = False,
        shared: bool = False,
    ) -> Store:
        """Open the database in a directory, making it if there is none; ``None`` is a temporary one.

        ``settings`` are pinned at creation: later they may be left out, but not differ. ``defaults`` are
        pinned at creation where ``settings`` says nothing, and ignored later.
        ``durability`` is one of :data:`headrace.store.durability.WAYS`; a temporary database has nothing to outlive.
        ``accept_state`` goes on from what is there when the marker says that epochs are missing. ``shared`` leaves the
        directory's mode as it is, for a group that may read or write it.
        """
        claimed: ClaimedFolder | None = None
        if path is None:
            try:
                claimed = claim()
            except OSError as error:
                raise unwritable(Path("the directory for temporary files"), error) from error
            place = claimed.folder
        else:
            place = Path(os.path.abspath(path))
            keep(place)
        sweep()
        try:
            return cls._open(
                place,
                settings or {},
                {**(defaults or {}), **(settings or {})},
                memory_limit=memory_limit,
                threads=threads or os.cpu_count() or 1,
                durability=durability,
                group_ms=group_ms,
                accept_state=accept_state,
                shared=shared,
                claimed=claimed,
            )
        except BaseException:
            if claimed is not None:
                claimed.remove()
            raise

    @classmethod
    def _open(
        cls,
        path: Path,
        given: Mapping[str, str],
        at_creation: Mapping[str, str],
        *,
        memory_limit: str,
        threads: int,
        durability: str,
        group_ms: int,
        accept_state: bool,
        shared: bool,
        claimed: ClaimedFolder | None,
    ) -> Store:
        directory = Directory(path, shared=shared)
        root: duckdb.DuckDBPyConnection | None = None
        try:
            directory.sweep_scratch()
            if not directory.database.exists():
                marker = directory.marker()
                if marker is not None and marker.epoch > 0 and not accept_state:
                    raise StoreError(
                        "STATE_LOST",
                        f"epoch {marker.epoch} was acknowledged, but {directory.database} is gone",
                        hint="restore the whole directory from one backup",
                    )
                file_format.create(directory, at_creation, memory_limit=memory_limit, threads=threads)
            open_file = partial(
                file_format.connect, directory.database, directory.scratch, memory_limit=memory_limit, threads=threads
            )
            try:
                root = open_file()
            except duckdb.Error as error:
                if not file_format.cut_torn_log(directory, error):
                    raise
                root = open_file()
            head = file_format.judge(root, directory, accept_state=accept_state)
            settings = file_format.pin(root, given)
            directory.mark(head)
            segments = dict(root.execute("SELECT file, bytes FROM book.segments").fetchall())
            directory.sweep_segments(set(segments))
            for file, size in segments.items():
                _check_size(inside(directory.segments, file), size)
            return cls(directory, root, settings, head, durability=durability, group_ms=group_ms, claimed=claimed)
        except BaseException as error:
            if root is not None:
                root.close()
            refusal = file_format.unopenable(directory, error) if isinstance(error, duckdb.Error) else None
            directory.release()
            if refusal is not None:
                raise refusal from error
            if isinstance(error, OSError):
                raise unwritable(path, error) from error
            raise

    def commit(
        self, work: Callable[[Transaction], T], *, label: str = "", settled: Callable[[T], None] | None = None
    ) -> T:
        """Run ``work`` on the writer thread as one epoch; when this returns, the epoch is durable.

        An exception of ``work`` rolls everything back and is raised here. Work that calls
        ``tx.unchanged()`` takes no epoch. ``settled`` is called with the result, by the writer, when the epoch is
        durable and before this returns: a caller that is interrupted meanwhile cannot miss it. It must not fail.

        In a batch of this thread ``work`` is run in the batch's transaction, and is durable with the batch.
        """
        self._usable()
        batch = self.batch
        return self._writer.commit(work, label, settled) if batch is None else batch.commit(work, label, settled)

    def read(self) -> AbstractContextManager[Snapshot]:
        """A snapshot of the newest epoch, until the block ends; in a batch of this thread, of the one it makes."""
        self._usable()
        batch = self.batch
        return self.newest() if batch is None else batch.read()

    @contextmanager
    def newest(self) -> Iterator[Snapshot]:
        """A snapshot of the newest epoch there is, with a cursor of its own, whatever this thread has begun."""
        self._usable()
        try:
            cursor = self._root.cursor()
        except duckdb.ConnectionException:
            raise closed() from None
        self._readers.enter(cursor, self._ledger)
        try:
            with stoppable(cursor.interrupt):
                yield Snapshot(cursor, self._segments, self._ledger)
        except duckdb.Error as error:
            if not self._finish.alive:
                raise closed() from error
            if fault := fault_of(self.path / DATABASE, error):
                raise fault from error
            raise
        finally:
            with suppress(duckdb.Error):
                cursor.close()
            self._readers.leave(cursor)

    @contextmanager
    def glance(self) -> Iterator[Glance]:
        """What is in memory of the newest epoch; see :class:`Glance`."""
        self._usable()
        if self.batch is not None:
            raise NotInMemory
        with self._readers.glancing(self._ledger) as epoch:
            yield Glance(epoch, self._segments, self._ledger)

    # Batches

    @property
    def batch(self) -> OpenBatch | None:
        """The batch this thread has begun and not left."""
        return self._batches.get(threading.get_ident()) if self._batches else None

    def begin_batch(self, seconds: float, let_go: Callable[[], None]) -> OpenBatch:
        """Have what this thread commits and reads from now on be parts of one epoch; see :class:`OpenBatch`."""
        batch = OpenBatch(seconds, let_go)
        try:
            self._usable()
            self._batches[batch.thread] = batch
            batch.begin(self._writer)
        except BaseException as error:
            batch.end(error if isinstance(error, HeadraceError) else given_up())
            self._batches.pop(batch.thread, None)
            raise
        return batch

    def leave_batch(self, batch: OpenBatch, reason: HeadraceError | None) -> int | None:
        """Commit the batch, or roll it back for a reason; returns its epoch, ``None`` if it makes none."""
        try:
            if reason is None:
                return batch.finish(self._writer)
            batch.abandon(reason)
            return None
        except BaseException:
            reason = reason or given_up()
            raise
        finally:
            self._batches.pop(batch.thread, None)
            for file in batch.segments if reason is not None else ():
                self.let_go(file)

    def refuse_in_batch(self, what: str, hint: str, position: Position | None = None) -> None:
        """Raise if this thread is in a batch."""
        if self.batch is not None:
            raise BatchError("NOT_IN_BATCH", f"{what} cannot be part of a batch", hint=hint, position=position)

    def end_batches(self) -> None:
        """Roll back what other threads have begun: the database is about to be closed."""
        _end(self._batches)

    def last_change(self, relation: Stored) -> int:
        """The epoch that last altered the relation's content, as of the newest commit, which may not be durable yet.

        Good for who commits what rests on it: that is durable only after what came before. In a batch, its own counts.
        """
        if (batch := self.batch) is not None:
            return batch.last_change(relation)
        return self._ledger.last_change(key_of(relation), self._ledger.epoch)

    def new_number(self) -> int:
        """A number that nothing of this database has or ever had, for a relation or what is stored of one."""
        return next(self._numbers)

    def new_segment(self, relation: Stored, suffix: str = ".parquet") -> Path:
        """A fresh path under ``segments/``. Swept at the next open unless an epoch names it by then."""
        self._usable()
        stem = re.sub(r"[^A-Za-z0-9_]", "_", key_of(relation))[:60]
        while True:
            path = self._segments / f"{stem}-e{self._ledger.epoch + 1}-{next(self._names)}{suffix}"
            if not path.exists():
                return path

    def discard(self, path: Path) -> None:
        """Delete a file of ``segments/`` or ``scratch/`` that no epoch names: cleanup after a failed commit."""
        if self._segments not in path.parents and self.scratch not in path.parents:
            raise StoreError(
                "SEGMENT_MISPLACED", f"{path} is not a file of this database", hint="pass new_segment()'s path"
            )
        with shielded(), self.newest() as snapshot:
            named = {file for (file,) in snapshot.cursor.execute("SELECT file FROM book.segments").fetchall()}
        if path.parent == self._segments and path.name in named:
            raise StoreError("SEGMENT_IN_USE", f"{path.name} is named by an epoch", hint="use remove_segments()")
        remove(path)

    def let_go(self, path: Path) -> None:
        """After a failure: delete a file of ``segments/`` or ``scratch/``, unless an epoch names it after all.

        Raises nothing: what is left is swept at the next open.
        """
        with suppress(HeadraceError, duckdb.Error, OSError):
            self.discard(path)

    def close(self) -> None:
        """Finish waiting commits, fold the log into the file and release the directory. Idempotent.

        Queries still running in other threads are interrupted.
        """
        if os.getpid() == self._pid:
            self._finish()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _usable(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(
                "DATABASE_IN_USE",
                f"{self.path} is open in the parent process {self._pid}",
                hint="a forked process cannot use its parent's database: open another one there",
            )
        if not self._finish.alive:
            raise closed()


def _highest(root: duckdb.DuckDBPyConnection, ledger: Ledger) -> int:
    """The highest number in use, or that was: whatever is dropped leaves a mark in the ledger."""
    numbers = "SELECT max(CASE WHEN json_valid(body) THEN try_cast(body ->> '$.number' AS BIGINT) END)"
    [(defined,)] = root.execute(f"{numbers} FROM book.definitions").fetchall()
    changed = (key.rpartition(" ")[2] for key, _ in ledger.changes())
    return max((defined or 0, *(int(key) for key in changed if key.isdigit())))


def _check_size(file: Path, size: int | None) -> None:
    """A segment that is gone or cut short is noticed at open; its bytes are looked at when it is first read."""
    try:
        found = file.stat().st_size
    except FileNotFoundError:
        raise damaged(file, "is gone") from None
    if size is not None and found != size:
        raise damaged(file, f"has {found:,} bytes, {size:,} were written")


def _end(batches: dict[int, OpenBatch]) -> None:
    for batch in list(batches.values()):
        batch.end(closed())


def _shut(
    pid: int,
    writer: Writer,
    batches: dict[int, OpenBatch],
    readers: Readers,
    cursor: duckdb.DuckDBPyConnection,
    root: duckdb.DuckDBPyConnection,
    directory: Directory,
    claimed: ClaimedFolder | None,
) -> None:
    """Undo :meth:`Store.open`, step by step; each step happens even if one before it fails."""
    if os.getpid() != pid:
        return  # a forked child at its exit: the database is its parent's
    with ExitStack() as steps:
        if claimed is not None:
            steps.callback(claimed.remove)
        steps.callback(directory.release)
        steps.callback(directory.sweep_scratch)
        steps.callback(root.close)
        steps.callback(cursor.close)
        steps.callback(readers.end, _PATIENCE)
        writer.stop(partial(_end, batches))
        if claimed is None:
            # Without it the log stays and is replayed at the next open: slower, not wrong.
            with suppress(duckdb.Error, OSError):
                writer.checkpoint()
