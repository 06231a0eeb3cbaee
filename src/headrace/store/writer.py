"""The one thread that commits. One DuckDB transaction is one epoch; when a commit returns, it is durable.

How the log is synced is :mod:`headrace.store.durability`. DuckDB would also checkpoint inside COMMIT, with
the caller waiting; instead the writer folds the log in between commits: early when nobody waits, at the
latest when the log is large. A checkpoint takes about 7 ms per MB of log on a small machine.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from headrace.base.interrupts import Interrupted, came_late, stoppable
from headrace.errors import StoreError
from headrace.store.batch import OpenBatch, nested_commit
from headrace.store.directory import Directory, Marker, broken
from headrace.store.durability import BULK_ROWS
from headrace.store.format import COUNTED
from headrace.store.ledger import Ledger
from headrace.store.snapshot import Readers
from headrace.store.transaction import Transaction, writing

T = TypeVar("T")

LOG_SOFT = 4 << 20
"""Log size at which the writer checkpoints if no commit is waiting."""
LOG_HARD = 8 << 20
"""Log size at which it checkpoints even so."""
LOG_ROOM = 64 << 20
"""Free space without which, and twice the log, it does not: a checkpoint that fails would break the database."""
WAITING = 64
"""Commits that may wait; one more caller blocks until there is room."""
WAKES = 0.1
"""Seconds after which whoever waits for a commit looks for signals."""
FOLD_EVERY = 65_536
"""Epoch rows kept as they are, and how many new ones call for folding."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Work that waits for the writer, and where its outcome goes."""

    work: Callable[[Transaction], Any]
    label: str
    done: Future[Any]
    settled: Callable[[Any], None] | None = None
    lent: bool = False
    """Whether it takes as long as its caller likes: no commit before it waits for that."""


class Writer:
    """A thread with a queue. Holds no reference to the store, so that a forgotten store can be collected."""

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        directory: Directory,
        ledger: Ledger,
        readers: Readers,
        schemas: dict[str, pa.Schema],
        names: dict[str, tuple[str, str]],
        head: Marker,
        folded: int,
        *,
        durability: str,
        group_ms: int,
    ) -> None:
        self._cursor = cursor
        self._directory = directory
        self._ledger = ledger
        self._readers = readers
        self._schemas = schemas
        self._names = names
        self._head = head
        self._folded = folded
        self._durability = durability
        self._gather = group_ms / 1000
        self._log_is_new = True
        self._stopped = self._ended = False
        self._gate = threading.Lock()
        self._running: Future[Any] | None = None
        self._next: Commit | None = None
        """Taken from the queue, and to be begun when those before it have their answers."""
        self._interrupting = threading.Lock()
        self._queue: queue.Queue[Commit | None] = queue.Queue(WAITING)
        self._sync_commits(durability == "commit")
        self._thread = threading.Thread(target=self._run, name="headrace-writer", daemon=True)
        self._thread.start()

    def commit(self, work: Callable[[Transaction], T], label: str, settled: Callable[[T], None] | None = None) -> T:
        """Have the writer thread do ``work`` as one epoch, and wait until it is durable.

        An interrupt that comes too late to stop it ends the statement when it is over: what follows a commit is to be
        done all the same.
        """
        if threading.current_thread() is self._thread:
            raise nested_commit()
        done: Future[T] = Future()
        self._begin(Commit(work, label, done, settled))
        return self.outcome(done)

    def lend(self, batch: OpenBatch) -> Future[int | None]:
        """Have the writer thread lend its next transaction to a batch; what becomes of it is the outcome."""
        done: Future[int | None] = Future()
        self._begin(Commit(batch.work, "batch", done, batch.settle, lent=True))
        return done

    def _begin(self, item: Commit) -> None:
        self._ledger.durability.check()
        with self._gate:
            if self._stopped:
                raise closed()
            self._queue.put(item)

    def outcome(self, done: Future[T]) -> T:
        """What became of a commit, when that is durable."""
        try:
            with stoppable(partial(self._give_up, done)):
                return _outcome(done)
        except KeyboardInterrupt:
            # By a handler of the program's own: leave no commit behind whose outcome nobody will learn.
            # Again and again: DuckDB forgets an interrupt that comes between two statements.
            while not done.done():
                self._give_up(done)
                wait([done], timeout=0.1)
            if done.cancelled() or done.exception() is not None:
                raise
            came_late()
            return done.result()
        except CancelledError:
            raise Interrupted(False) from None
        finally:
            del done  # its exception's traceback refers to this frame

    def _give_up(self, done: Future[Any]) -> None:
        """Have a commit not happen, if that is still possible; its waiter learns what became of it."""
        if not done.cancel():
            with self._interrupting, suppress(duckdb.Error):
                if self._running is done:
                    self._cursor.interrupt()

    def stop(self, end_batches: Callable[[], object] = lambda: None) -> None:
        """Finish the commits that are waiting, but no batch, then end the thread."""
        if threading.current_thread() is self._thread:
            # The last reference to the store was let go by a commit's own work: nobody else can be waiting.
            self._stopped = True
            return
        with self._gate:
            if not self._stopped:
                self._stopped = True
                self._queue.put(None)
        end_batches()
        self._thread.join()

    def checkpoint(self) -> None:
        """Fold the log into the database file, synced whatever the way of committing. Once stopped, for any thread.

        On a disk nearly full the log stays as it is: it is replayed at the next open, slower but not wrong.
        """
        if self._directory.room() < LOG_ROOM + 2 * self._directory.log_bytes():
            return
        with self._synced():
            self._cursor.execute("CHECKPOINT")
        self._log_is_new = True
        # So that a power cut cannot bring back one from before the epochs that were folded.
        self._directory.sync_marker()

    def _run(self) -> None:
        self._ledger.durability.written_by(threading.get_ident())
        while not self._ended and (not self._stopped or self._next is not None or not self._queue.empty()):
            first, self._next = self._next or self._queue.get(), None
            if first is None:
                return
            self._serve(first)
            # Nothing of a finished commit may live on while the thread waits for the next one.
            del first
            if not self._stopped:
                self._tend()

    def _serve(self, first: Commit) -> None:
        """Commit ``first`` and what comes with it, make it durable, say so.

        Outcomes are held back until then, errors too: an error may tell of an epoch before it.
        """
        outcomes: list[tuple[Commit, Any, BaseException | None]] = []
        before = self._ledger.epoch
        for item in chain((first,), self._companions()):
            if item.done.set_running_or_notify_cancel():
                outcomes.append((item, *self._attempt(item)))
        failure = self._secure() if self._ledger.epoch > before else None
        for item, result, error in outcomes:
            if error or failure:
                item.done.set_exception(error or failure)
                continue
            if item.settled is not None:
                try:
                    item.settled(result)
                except Exception:
                    logging.getLogger("headrace").exception("after the commit of %s", item.label)
            item.done.set_result(result)

    def _companions(self) -> Iterator[Commit]:
        """Whoever waits already, and whoever comes in a while; nobody more once a reader waits."""
        if self._durability != "group":
            return
        until = time.monotonic() + self._gather
        while waiting := self._queue.qsize():
            for _ in range(waiting):
                item = self._queue.get()
                if item is None:
                    self._ended = True
                    return
                if item.lent:
                    self._next = item
                    return
                yield item
                if self._ledger.durability.wanted:
                    return
            if time.monotonic() >= until:
                return

    def _attempt(self, item: Commit) -> tuple[Any, BaseException | None]:
        def work(tx: Transaction) -> Any:
            with self._interruptible(item.done):
                return item.work(tx)

        try:
            return self._commit(work, item.label), None
        except BaseException as error:
            return None, error

    def _commit(self, work: Callable[[Transaction], T], label: str) -> T:
        cursor, ledger, path = self._cursor, self._ledger, self._directory.path
        ledger.durability.check()
        tx = Transaction(cursor, ledger.epoch + 1, self._directory.segments, ledger, self._schemas, self._names, label)
        with writing(path):
            cursor.execute("BEGIN")
        announced = False
        try:
            result = work(tx)
            if not tx.takes_epoch:
                self._roll_back()
                return result
            at = tx.moment
            batches = {key: pa.concat_tables(rows) for key, rows in tx.batches.items()}
            ledger.announce(tx.epoch, tx.changed)
            ledger.recent.note(tx.epoch, batches, tx.renewed, tx.made)
            announced = True
            statement = tx.epoch_row(at, tx.label) + "; COMMIT"
            with writing(path):
                # Files may be deleted only once no crash can bring back an epoch that names them.
                if tx.written >= BULK_ROWS or tx.doomed:
                    with self._synced():
                        cursor.execute(statement)
                else:
                    cursor.execute(statement)
        except BaseException:
            if announced:
                ledger.withdraw(tx.epoch, tx.changed)
                ledger.recent.withdraw(tx.epoch, tx.batches)
            self._roll_back()
            raise
        tx.schemas.settle()
        tx.names.settle()
        self._head = Marker(self._head.database, tx.epoch, at)
        ledger.settle(tx.epoch, tx.sequences)
        self._readers.doom(tx.epoch, tx.doomed)
        ledger.trim(self._readers.oldest(min(tx.epoch, ledger.durability.epoch)), tx.changed)
        return result

    @contextmanager
    def _interruptible(self, done: Future[Any]) -> Iterator[None]:
        """Only the work itself can be interrupted: BEGIN, COMMIT and ROLLBACK are done or not, and we know."""
        self._running = done
        try:
            yield
        finally:
            with self._interrupting:
                self._running = None

    def _roll_back(self) -> None:
        while True:
            try:
                self._cursor.execute("ROLLBACK")
                return
            except duckdb.InterruptException:
                continue  # by one that came when nothing ran any more
            except duckdb.Error:
                return  # a COMMIT that failed has ended the transaction itself

    def _secure(self) -> StoreError | None:
        """Make all that was committed durable and let readers have it."""
        durability = self._ledger.durability
        try:
            if self._durability == "group" or (self._durability == "commit" and self._log_is_new):
                self._directory.sync_log(name=self._log_is_new)
            if self._log_is_new:
                self._directory.protect_database()
            self._log_is_new = False
        except OSError as error:
            # What a failed sync leaves on the disk nobody knows, and a second one would not tell.
            failure = broken(self._directory.path, f"the write-ahead log could not be synced: {error}")
            durability.failed(failure)
            return failure
        # The epochs are durable whatever becomes of the marker; one that lags only notices less.
        with suppress(OSError):
            self._directory.mark(self._head)
        durability.reached(self._head.epoch)
        return None

    @contextmanager
    def _synced(self) -> Iterator[None]:
        """DuckDB syncs what it writes inside the block."""
        if self._durability == "commit":
            yield
            return
        self._sync_commits(True)
        try:
            yield
        finally:
            # Left on by a failure it would only be slower.
            with suppress(duckdb.Error):
                self._sync_commits(False)

    def _sync_commits(self, on: bool) -> None:
        self._cursor.execute(f"SET GLOBAL fsync_mode = '{'STANDARD' if on else 'NONE'}'")

    def _tend(self) -> None:
        """What can wait until the caller has its answer; a failure here is tried again after the next commit."""
        with suppress(Exception):  # nor may it end the thread
            self._readers.delete()
            if self._ledger.epoch - self._folded >= 2 * FOLD_EVERY:
                self._folded = fold(self._cursor, self._ledger)
            log = self._directory.log_bytes()
            if log >= LOG_HARD or (log >= LOG_SOFT and self._queue.empty()):
                self.checkpoint()


def _outcome(done: Future[T]) -> T:
    """What became of a commit. A signal that comes just before a thread begins to wait is heard when it wakes up."""
    while True:
        try:
            return done.result(WAKES)
        except TimeoutError:
            if done.done():  # now, or the error is the work's own
                return done.result()


def fold(cursor: duckdb.DuckDBPyConnection, ledger: Ledger) -> int:
    """Fold old epoch rows into the summaries; returns the last epoch folded."""
    last = ledger.epoch - FOLD_EVERY
    sequences = pa.array(
        [{"source": source, "low": low, "high": high} for source, low, high in ledger.sequences()],
        pa.struct([("source", pa.string()), ("low", pa.int64()), ("high", pa.int64())]),
    )
    changes = pa.array(
        [{"relation": relation, "epoch": epoch} for relation, epoch in ledger.changes()],
        pa.struct([("relation", pa.string()), ("epoch", pa.int64())]),
    )
    cursor.execute("BEGIN")
    try:
        cursor.register("runs", pa.Table.from_struct_array(sequences))
        cursor.register("last_changes", pa.Table.from_struct_array(changes))
        cursor.execute("CREATE OR REPLACE TABLE book.sequences AS SELECT * FROM runs")
        cursor.execute("CREATE OR REPLACE TABLE book.changes AS SELECT * FROM last_changes")
        cursor.execute(
            "CREATE OR REPLACE TABLE book.counts AS SELECT what, sum(rows)::BIGINT AS rows, max(epoch) AS epoch "
            f"FROM ({COUNTED}) WHERE epoch <= {last} GROUP BY what"
        )
        cursor.execute(f"DELETE FROM book.epochs WHERE epoch <= {last}")
        cursor.execute("COMMIT")
    except BaseException:
        with suppress(duckdb.Error):
            cursor.execute("ROLLBACK")
        raise
    finally:
        cursor.unregister("runs")
        cursor.unregister("last_changes")
    return last


def load(cursor: duckdb.DuckDBPyConnection, epoch: int) -> Ledger:
    """The ledger as the summaries and the epoch rows after them give it."""
    sequences = cursor.execute("""
        WITH every AS (
            SELECT entry.source, entry.sequence FROM (
                SELECT unnest(from_json(recorded, '[{"source": "VARCHAR", "sequence": "BIGINT"}]')) AS entry
                FROM book.epochs
            )
        ), islands AS (
            SELECT *, sequence::HUGEINT - row_number() OVER (PARTITION BY source ORDER BY sequence) AS island FROM every
        )
        SELECT source, min(sequence), max(sequence) FROM islands GROUP BY source, island
        UNION ALL SELECT source, low, high FROM book.sequences
    """).fetchall()
    changes = cursor.execute("""
        SELECT relation, max(epoch) FROM (
            SELECT unnest(from_json(changed, '["VARCHAR"]')) AS relation, epoch FROM book.epochs
            UNION ALL FROM book.changes
        ) GROUP BY relation
    """).fetchall()
    return Ledger(epoch, sequences, changes)


def closed() -> StoreError:
    """The refusal for a store that was closed."""
    return StoreError("DATABASE_CLOSED", "the database is closed", hint="open it again with connect()")
