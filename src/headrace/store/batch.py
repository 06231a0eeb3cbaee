"""A batch: one transaction of the writer's that a thread keeps over several statements.

The writer thread begins it as it begins any commit's, hands it over and waits. Until it has it back, whatever the
thread commits is done in it, and whatever the thread reads is read in it; all others see the epoch before. It ends
once, by whoever is first: its thread, which gives it back to be committed or gives it up; a statement whose work failed
half way, for DuckDB has no savepoints; the writer, when its time is up; or whoever closes the database.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb

from headrace.base.interrupts import Interrupted, asked, check, stoppable
from headrace.base.wording import counted
from headrace.errors import BatchError, HeadraceError, StoreError
from headrace.store.reading import Stored
from headrace.store.transaction import Transaction

if TYPE_CHECKING:
    from headrace.store.writer import Writer

T = TypeVar("T")
_WAKES = 0.05
"""Seconds between two looks at whether what is waited for will never come, and between two interrupts."""
_NAMED = 3
"""How many different statements an epoch's label names."""


def nested_commit() -> StoreError:
    """The refusal of a commit by a commit's own work."""
    return StoreError(
        "NESTED_COMMIT",
        "commit() was called by the work of another commit",
        hint="do it in the same transaction, or after the commit has returned",
    )


class OpenBatch:
    """A transaction on loan to the thread that made this object."""

    def __init__(self, seconds: float, let_go: Callable[[], None]) -> None:
        """It ends by itself after so many seconds; ``let_go`` is called when nobody need wait for it any more."""
        self.thread = threading.get_ident()
        self._seconds = seconds
        self._let_go = let_go
        self._guard = threading.Lock()
        self._in_use = threading.RLock()
        self._begun, self._over = threading.Event(), threading.Event()
        self._done: Future[int | None] | None = None
        self._tx: Transaction | None = None
        self._refusal: HeadraceError | None = None
        self._ended_by = 0
        self._working = self._takes_epoch = False
        self._labels: dict[str, None] = {}
        self._settled: list[Callable[[], object]] = []

    # The writer's side

    def work(self, tx: Transaction) -> int | None:
        """Lend the transaction, and return when it is back; its epoch, if it is to be one."""
        tx.shared = True
        self._tx = tx
        self._begun.set()
        if not self._over.wait(self._seconds):
            self.end(_too_long("was open for", self._seconds, "what it did is rolled back; give it a longer timeout"))
        while not self._in_use.acquire(timeout=_WAKES):
            tx.cursor.interrupt()  # again and again: DuckDB forgets one that comes between two statements
        self._in_use.release()
        self.check()
        tx.takes_epoch = self._takes_epoch
        names = list(self._labels)
        tx.label = f"batch: {', '.join(names[:_NAMED])}{', …' if len(names) > _NAMED else ''}"
        return tx.epoch if self._takes_epoch else None

    def settle(self, _: int | None) -> None:
        """It is durable."""
        for settled in self._settled:
            settled()

    # Begin and end

    def begin(self, writer: Writer) -> None:
        """Wait until the transaction is here, as long as it may be open."""
        until = time.monotonic() + self._seconds
        try:
            self._done = writer.lend(self)
            while not self._begun.wait(_WAKES):
                check()
                if self._done.done():
                    self._done.result()
                if time.monotonic() >= until:
                    raise not_begun(self._seconds)
        except BaseException:
            if self._done is not None:
                self._done.cancel()
            raise

    def end(self, refusal: HeadraceError | None) -> bool:
        """It is over, to be committed or for this reason not; False if it was before."""
        with self._guard:
            if self._over.is_set():
                return False
            self._refusal, self._ended_by = refusal, threading.get_ident()
            self._over.set()
        if refusal is not None:  # else only when it is in: what others do next must build on it
            self._let_go()
        return True

    def finish(self, writer: Writer) -> int | None:
        """Have it committed; returns its epoch when that is durable, ``None`` if nothing was changed."""
        assert self._done is not None
        if not self.end(None):
            self._await_end()
            self.check()
        try:
            return writer.outcome(self._done)
        finally:
            if self._refusal is None:
                self._let_go()

    def abandon(self, reason: HeadraceError) -> None:
        """Have it rolled back, if it is not over yet, and return when nothing is left of it."""
        self.end(reason)
        self._await_end()

    def _await_end(self) -> None:
        assert self._done is not None
        with suppress(Exception):
            self._done.result()

    @property
    def epoch(self) -> int:
        """The epoch that it will be."""
        assert self._tx is not None
        return self._tx.epoch

    def last_change(self, relation: Stored) -> int:
        """The epoch that last altered a relation's content, its own if it did."""
        assert self._tx is not None
        return self._tx.last_change(relation)

    @property
    def segments(self) -> list[Any]:
        """The files its statements have written."""
        return self._tx.added if self._tx is not None else []

    def check(self) -> None:
        """Raise if it has ended other than by being given back."""
        if self._refusal is not None:
            raise type(self._refusal)(self._refusal.condition, self._refusal.message, hint=self._refusal.hint)

    # Its thread's side

    @contextmanager
    def statement(self) -> Iterator[None]:
        """A statement of the batch: it begins only while the batch is open, and Ctrl-C ends both."""
        self.check()
        try:
            yield
        except KeyboardInterrupt:
            self.end(_failed("Ctrl-C"))
            raise Interrupted(False, "the batch") from None

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """The transaction, for a statement that reads what is there and what the batch has changed."""
        with self._using() as tx:
            try:
                yield tx
            except BaseException as error:
                self._look_after(tx, error)
                raise

    def commit(self, work: Callable[[Transaction], T], label: str, settled: Callable[[T], None] | None) -> T:
        """Do a commit's work as a part of the batch; what it settles waits for the whole."""
        with self._using() as tx:
            if self._working:
                raise nested_commit()
            self._working, tx.altered, tx.takes_epoch = True, False, True
            try:
                result = work(tx)
            except BaseException as error:
                self._look_after(tx, error)
                raise
            finally:
                self._working = False
            if tx.takes_epoch:
                self._takes_epoch = True
                self._labels[label] = None
            if settled is not None:
                self._settled.append(partial(settled, result))
            return result

    @contextmanager
    def _using(self) -> Iterator[Transaction]:
        with self._in_use:
            self.check()
            assert self._tx is not None
            try:
                with stoppable(self._tx.cursor.interrupt):
                    yield self._tx
            except Exception as error:
                if self._over.is_set() and self._ended_by != self.thread:
                    raise self._refused() from error  # interrupted by whoever ended it
                raise

    def _refused(self) -> HeadraceError:
        try:
            self.check()
        except HeadraceError as refusal:
            return refusal
        raise AssertionError("it was given back while it was in use")

    def _look_after(self, tx: Transaction, error: BaseException) -> None:
        """A statement failed: it has taken the batch with it, unless it had changed nothing yet."""
        sound = not (self._working and tx.altered)
        if sound:
            try:
                tx.cursor.execute("SELECT 1").fetchall()
            except duckdb.Error:
                sound = False  # by an error of the engine's
        if not sound:
            self.end(_failed("Ctrl-C" if asked() or isinstance(error, KeyboardInterrupt) else error))


_AGAIN = "nothing of the batch was kept; do all of it again"


def _failed(why: object) -> BatchError:
    said = f"{type(why).__name__}: {why}" if isinstance(why, BaseException) and not str(why).startswith("[") else why
    return BatchError("BATCH_FAILED", f"a statement of the batch was ended half way by {said}", hint=_AGAIN)


def given_up() -> BatchError:
    """The reason of a batch that its own program ended with an error."""
    return BatchError("BATCH_FAILED", "the batch was left with an error", hint=_AGAIN)


def not_begun(seconds: float) -> BatchError:
    """The refusal of a batch for which another, or a definition, left no room in time."""
    hint = "another batch or a definition is under way, or many inserts are: try again, or give a longer timeout"
    return _too_long("could not begin for", seconds, hint)


def _too_long(did: str, seconds: float, hint: str) -> BatchError:
    length = counted(int(seconds), "second") if seconds == int(seconds) else f"{seconds:g} seconds"
    return BatchError("BATCH_TIMED_OUT", f"the batch {did} {length}", hint=hint)
