"""The one thread that commits. One DuckDB transaction is one epoch; when a commit returns, it is durable.

DuckDB writes and syncs its log inside COMMIT. It would also checkpoint there, with the caller waiting;
instead the writer folds the log in between commits: early when nobody waits, at the latest when the
log is large. A checkpoint takes about 7 ms per MB of log on a small machine.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from headrace.errors import StoreError
from headrace.store.directory import Directory, Marker
from headrace.store.format import microseconds
from headrace.store.ledger import Ledger
from headrace.store.snapshot import Readers
from headrace.store.transaction import Transaction, writing

T = TypeVar("T")

LOG_SOFT = 4 << 20
"""Log size at which the writer checkpoints if no commit is waiting."""
LOG_HARD = 8 << 20
"""Log size at which it checkpoints even so."""
WAITING = 64
"""Commits that may wait; one more caller blocks until there is room."""
FOLD_EVERY = 65_536
"""Epoch rows kept as they are, and how many new ones call for folding."""


class Writer:
    """A thread with a queue. Holds no reference to the store, so that a forgotten store can be collected."""

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        directory: Directory,
        ledger: Ledger,
        readers: Readers,
        schemas: dict[str, pa.Schema],
        head: Marker,
        folded: int,
    ) -> None:
        self._cursor = cursor
        self._directory = directory
        self._ledger = ledger
        self._readers = readers
        self._schemas = schemas
        self._database = head.database
        self._folded = folded
        self._stopped = False
        self._gate = threading.Lock()
        self._running: Future[Any] | None = None
        self._queue: queue.Queue[tuple[Callable[[Transaction], Any], str, Future[Any]] | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._run, name="headrace-writer", daemon=True)
        self._thread.start()

    def commit(self, work: Callable[[Transaction], T], label: str) -> T:
        """Have the writer thread do ``work`` as one epoch, and wait until it is durable."""
        if threading.current_thread() is self._thread:
            raise StoreError(
                "NESTED_COMMIT",
                "commit() was called by the work of another commit",
                hint="do it in the same transaction, or after the commit has returned",
            )
        done: Future[T] = Future()
        with self._gate:
            if self._stopped:
                raise closed()
            self._queue.put((work, label, done))
        try:
            return done.result()
        except KeyboardInterrupt:
            # Ctrl-C while waiting: leave no commit behind whose outcome nobody will learn.
            if not done.cancel():
                with suppress(duckdb.Error):
                    if self._running is done:
                        self._cursor.interrupt()
                done.exception()
            raise
        finally:
            del done  # its exception's traceback refers to this frame

    def stop(self) -> None:
        """Finish the commits that are waiting, then end the thread."""
        if threading.current_thread() is self._thread:
            # The last reference to the store was let go by a commit's own work: nobody else can be waiting.
            self._stopped = True
            return
        with self._gate:
            if not self._stopped:
                self._stopped = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped or not self._queue.empty():
            item = self._queue.get()
            if item is None:
                return
            work, label, done = item
            if done.set_running_or_notify_cancel():
                self._running = done
                try:
                    done.set_result(self._commit(work, label))
                except BaseException as error:
                    done.set_exception(error)
                self._running = None
            # Nothing of a finished commit may live on while the thread waits for the next one.
            del item, work, label, done
            if not self._stopped:
                self._tend()

    def _commit(self, work: Callable[[Transaction], T], label: str) -> T:
        cursor, ledger, path = self._cursor, self._ledger, self._directory.path
        tx = Transaction(cursor, ledger.epoch + 1, self._directory.segments, ledger, self._schemas)
        with writing(path):
            cursor.execute("BEGIN")
        announced = False
        try:
            result = work(tx)
            if not tx.takes_epoch:
                cursor.execute("ROLLBACK")
                return result
            at = microseconds()
            ledger.announce(tx.epoch, tx.changed)
            announced = True
            with writing(path):
                cursor.execute(tx.epoch_row(at, label) + "; COMMIT")
        except BaseException:
            if announced:
                ledger.withdraw(tx.epoch, tx.changed)
            # A COMMIT that failed has ended the transaction itself.
            with suppress(duckdb.Error):
                cursor.execute("ROLLBACK")
            raise
        self._schemas = tx.schemas
        ledger.settle(tx.epoch, tx.recorded)
        # The epoch is durable whatever becomes of the marker; one that lags only notices less.
        with suppress(OSError):
            self._directory.mark(Marker(self._database, tx.epoch, at))
        self._readers.doom(tx.epoch, tx.doomed)
        ledger.trim(self._readers.oldest(tx.epoch), tx.changed)
        return result

    def _tend(self) -> None:
        """What can wait until the caller has its answer; a failure here is tried again after the next commit."""
        with suppress(duckdb.Error, OSError):
            self._readers.delete()
            if self._ledger.epoch - self._folded >= 2 * FOLD_EVERY:
                self._folded = fold(self._cursor, self._ledger)
            log = self._directory.log_bytes()
            if log >= LOG_HARD or (log >= LOG_SOFT and self._queue.empty()):
                self._cursor.execute("CHECKPOINT")


def fold(cursor: duckdb.DuckDBPyConnection, ledger: Ledger) -> int:
    """Fold old epoch rows into the summaries, which the ledger holds; returns the last epoch folded."""
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
        cursor.execute(f"DELETE FROM book.epochs WHERE epoch <= {last}")
        cursor.execute("CREATE OR REPLACE TABLE book.sequences AS SELECT * FROM runs")
        cursor.execute("CREATE OR REPLACE TABLE book.changes AS SELECT * FROM last_changes")
        cursor.execute(
            "CREATE OR REPLACE TABLE book.counts AS SELECT what, sum(rows)::BIGINT AS rows, max(epoch) AS epoch "
            f"FROM book.counts GROUP BY what, CASE WHEN epoch > {last} THEN epoch END"
        )
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
