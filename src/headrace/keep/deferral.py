"""Views that take changes in later: who is behind, how they catch up, and when without being asked.

A refresh is one commit. It reads one snapshot: the view's states, the epoch they stand at, and what its tables have
changed since; then it adds what that does to the states and moves the epoch to the snapshot's. Writers go on meanwhile:
what they commit comes after that epoch. It is committed only if nobody has moved the view or the definitions since.

    tables   ──┬──────┬────┬───▶ epochs       read:  all that is named is of one epoch
    view     ──┘ stands    └ refreshed               whoever lags is caught up first, unless all named may be stale

A read that writers overtake again and again takes its turn with them (``tables_lock``): then tables stand still.
In a batch nothing is refreshed, for its epoch may come to nothing: a view that is behind is computed anew
(``view/materialized.py``).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace

from headrace.base.interrupts import Lock
from headrace.catalog import Table, View
from headrace.catalog.refreshing import IMB, MARK
from headrace.errors import ExecutionError, HeadraceError
from headrace.keep.keeper import Keeper
from headrace.keep.kept import Kept
from headrace.keep.refreshes import Refreshed, refreshed
from headrace.keep.standing import StoodAt
from headrace.store import Transaction
from headrace.store.format import microseconds
from headrace.store.reading import Reading
from headrace.table import history, query

HASTY = 3
"""How often a refresh that writers overtake is tried before it takes its turn with them."""
_SHORTEST = 0.02
"""Seconds between two looks at who is due."""
_LONGEST = 3_600.0
_PATIENCE = 5.0
"""Seconds that stopping waits for a refresh that is under way."""


class _Overtaken(Exception):
    """Somebody moved the view, or the definitions."""


@dataclass(frozen=True)
class Level:
    """Whether relations that a read names are of one epoch."""

    behind: Sequence[Kept]
    """Those to be caught up first."""
    epoch: int | None = None
    """The epoch they are of, if that is not the newest."""


NEWEST = Level(())


def failed(kept: Kept, standing: StoodAt) -> ExecutionError:
    """What is said of a view that could not be computed."""
    return ExecutionError(
        "MATERIALIZED_VIEW_FAILED",
        f"{kept.name} could not be computed over its tables since epoch {standing.failed}: "
        f"[{standing.condition}] {standing.error}",
        hint=f"change the rows that it fails for, and it recovers; or REFRESH MATERIALIZED VIEW {kept.name} FULL",
    )


def level(reading: Reading, named: Iterable[Kept], *, alone: bool) -> Level:
    """Whether relations are of one epoch in a snapshot; ``alone``, if a read names nothing else."""
    every = list(named)
    apart = [kept for kept in every if kept.may_stand_apart]
    if not apart:
        return NEWEST
    for kept in apart:
        assert kept.standing is not None
        stands = kept.standing.of(reading)
        if stands.failed and not _may_recover(reading, kept, stands):
            raise failed(kept, stands)
    behind = [kept for kept in apart if kept.lags(reading) or _stands(reading, kept).failed]
    if not behind or getattr(reading, "is_draft", False):
        return NEWEST
    stale = alone and all(kept.refreshing.is_deferred and _may_be_read_so(reading, kept) for kept in every)
    if stale and (at := _common(reading, every)) is not None:
        return Level((), at)
    return Level(behind)


def _stands(reading: Reading, kept: Kept) -> StoodAt:
    assert kept.standing is not None
    return kept.standing.of(reading)


def _may_recover(reading: Reading, kept: Kept, stands: StoodAt) -> bool:
    """Whether a view that failed may be computed now: its tables have changed since."""
    return kept.refreshing.is_deferred and any(
        reading.last_change(number) > stands.failed for number in kept.tables_followed
    )


def _may_be_read_so(reading: Reading, kept: Kept) -> bool:
    refreshing, stands = kept.refreshing, _stands(reading, kept)
    if not kept.lags(reading):
        return True
    if stands.failed:
        return False
    if refreshing.staleness is not None:
        return microseconds() - stands.moment <= refreshing.staleness
    return refreshing.may_be_stale


def _common(reading: Reading, every: Sequence[Kept]) -> int | None:
    """The newest epoch that all of them are of: each is as it stands up to the next change of a table it follows."""
    newest = max(_stands(reading, kept).epoch for kept in every)
    for kept in every:
        since = _stands(reading, kept).epoch
        changes = (reading.next_change(number, since) for number in kept.tables_followed)
        if any(at is not None and at <= newest for at in changes):
            return None
    return newest


class Deferral:
    """Refreshes views, when they are asked for and when they are due."""

    def __init__(self, keeper: Keeper, in_use: Callable[[], AbstractContextManager[None]]) -> None:
        self._keeper = keeper
        self._runtime = keeper.runtime
        self._in_use = in_use
        self._locks: weakref.WeakKeyDictionary[Kept, Lock] = weakref.WeakKeyDictionary()
        self._guard = threading.Lock()
        self._stirred, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._runtime.needed_from = self.needed_from

    # Asked for

    @contextmanager
    def reading(self) -> Iterator[Callable[[Sequence[Kept]], None]]:
        """For a read that finds relations behind: gives what catches them up. Called too often it has tables stand
        still until the block ends."""
        attempts = 0
        with ExitStack() as held:

            def catch_up(behind: Sequence[Kept]) -> None:
                nonlocal attempts
                attempts += 1
                if attempts == HASTY:
                    held.enter_context(self._runtime.tables_lock)
                for kept in behind:
                    self.refresh(kept.name, "read", steady=attempts >= HASTY)

            yield catch_up

    def refresh(
        self, name: str, trigger: str, *, anew: bool = False, steady: bool = False, always: bool = False
    ) -> Refreshed | None:
        """Have a view stand at the newest epoch; None if it did. ``anew``, compute it from all rows of its tables;
        ``always``, also if they have not changed; ``steady``, if they stand still, for the caller has their lock."""
        attempts = 0
        while True:
            attempts += 1
            kept = self._keeper.get(name)
            with ExitStack() as held:
                if attempts > HASTY and not steady:
                    held.enter_context(self._runtime.tables_lock)
                held.enter_context(self._lock(kept))
                try:
                    return self._refresh(kept, trigger, anew, always)
                except (_Overtaken, query.Again):
                    time.sleep(0.001)

    def _lock(self, kept: Kept) -> Lock:
        with self._guard:
            return self._locks.setdefault(kept, Lock())

    def _refresh(self, kept: Kept, trigger: str, anew: bool, always: bool) -> Refreshed | None:
        runtime, version = self._runtime, self._runtime.catalog.version
        standing = kept.standing
        assert standing is not None
        started = time.perf_counter()
        with runtime.store.read() as snapshot:
            if runtime.writer_version != version or self._keeper.known(kept.relation) is not kept:
                raise _Overtaken
            moment, stood = microseconds(), standing.of(snapshot)
            if not (always or kept.lags(snapshot) or stood.failed):
                return None
            try:
                renewal = kept.renewed(snapshot, anew=anew or bool(stood.failed))
            except HeadraceError as error:
                self._failed(kept, trigger, stood, snapshot.epoch, error, time.perf_counter() - started)
                raise
            stands = StoodAt(snapshot.epoch, moment)
        followed = [table for n in kept.tables_followed if (table := runtime.catalog.table_at(n)) is not None]
        needed = {table.number: self.needed_from(table, kept, stands.epoch) for table in followed}

        def work(tx: Transaction) -> int:
            if runtime.writer_version != version or standing.of(tx) != stood:
                raise _Overtaken
            self._keeper.renew(tx, kept, renewal)
            standing.put(tx, stands)
            for table in followed:
                history.taken_in(tx, table, needed[table.number])
            return tx.epoch

        epoch = runtime.store.commit(work, label=f"REFRESH {kept.name}")
        found = refreshed(kept, trigger, renewal, epoch, time.perf_counter() - started)
        self._keeper.refreshes.note(found)
        rows = {state: [added] for state, added in renewal.rows.items()} if not renewal.is_whole else {}
        with runtime.tidying.after(f"merging states of {kept.name}"):
            self._keeper.compaction.after({state: sum(t.num_rows for t in ts) for state, ts in rows.items()}, {})
        return found

    def _failed(
        self, kept: Kept, trigger: str, stood: StoodAt, epoch: int, error: HeadraceError, seconds: float
    ) -> None:
        """Note that a view cannot be computed; and with it, if it is to be marked."""
        error.within(f"for materialized view {kept.name}")
        self._keeper.refreshes.note(refreshed(kept, trigger, None, None, seconds, error))
        standing = kept.standing
        if kept.refreshing.on_error != MARK or standing is None:
            return

        def mark(tx: Transaction) -> None:
            if standing.of(tx) != stood:
                tx.unchanged()
                return
            standing.put(tx, replace(stood, failed=epoch, condition=error.condition, error=error.message))

        if stood.failed != epoch and self._runtime.store.batch is None:
            self._runtime.store.commit(mark, label=f"{kept.name} failed")

    # What is kept of tables for views that take changes in later

    def needed_from(self, table: Table, of: Kept | None = None, stands: int = 0) -> int | None:
        """The epoch after which some view has still to take the table's changes in; of one it may be said where it
        stands."""
        found: list[int] = []
        for kept in self._followers(table):
            if not kept.refreshing.follows_log or kept.standing is None:
                continue
            if of is not None and kept.key == of.key:
                found.append(stands)
            else:
                with self._runtime.store.read() as snapshot:
                    if snapshot.has(kept.standing.ref):  # else it was dropped just now
                        found.append(kept.standing.of(snapshot).epoch)
        return min(found, default=None)

    def _followers(self, table: Table) -> list[Kept]:
        return [kept for kept in self._keeper.fed(table, self._runtime.catalog) if kept.follows(table)]

    # When they are due

    def stir(self) -> None:
        """Something was committed or defined that may make a view due."""
        if self._thread is None and not self._stopped.is_set() and any(map(_has_time, self._views())):
            with self._guard:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=_tend, args=(weakref.ref(self), self._stirred, self._stopped), daemon=True
                    )
                    self._thread.name = "headrace-refreshes"
                    self._thread.start()
        self._stirred.set()

    def stop(self) -> None:
        """Let the refresh that is under way end, and begin no other."""
        self._stopped.set()
        self._stirred.set()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(_PATIENCE)

    def _views(self) -> list[View]:
        return [v for v in self._runtime.catalog.of_kind(View) if v.materialized and v.refreshing.is_deferred]

    def turn(self) -> float:
        """Refresh the views that are due; returns in how many seconds the next one may be."""
        wait = _LONGEST
        for view in self._views():
            if self._stopped.is_set():
                break
            if not _has_time(view):
                continue
            try:
                trigger, seconds = self._due(view)
                if trigger is not None:
                    self.refresh(view.name, trigger)
                    seconds = view.refreshing.period / 1e6 if view.refreshing.period is not None else _LONGEST
            except Exception as error:  # the next view is refreshed all the same, and this one tried again
                if isinstance(error, HeadraceError) and error.condition == "DATABASE_CLOSED":
                    break
                if self._runtime.catalog.find(view.name) is view:  # else it was dropped or altered meanwhile
                    self._runtime.tidying.note(f"refreshing {view.name}", error)
                seconds = 1.0
            wait = min(wait, seconds)
        return max(wait, _SHORTEST)

    def _due(self, view: View) -> tuple[str | None, float]:
        """Why it is to be refreshed now, if it is; else in how many seconds it may be."""
        kept = self._keeper.get(view.name)
        refreshing = view.refreshing
        with self._runtime.store.read() as snapshot:
            stands = _stands(snapshot, kept)
            since = max(stands.epoch, stands.failed)
            changed = [n for n in kept.tables_followed if snapshot.last_change(n) > since]
            if not changed:
                return None, _LONGEST
            if refreshing.strategy == IMB and refreshing.batch_rows is not None:
                tables = (self._runtime.catalog.table_at(number) for number in changed)
                rows = sum(history.changed_rows(snapshot, table, since) for table in tables if table is not None)
                if rows >= refreshing.batch_rows:
                    return "batch_rows", 0.0
        if refreshing.period is None:
            return None, _LONGEST
        left = stands.moment + refreshing.period - microseconds()
        return ("period", 0.0) if left <= 0 else (None, left / 1e6)


def _has_time(view: View) -> bool:
    """Whether a view is refreshed without being asked."""
    return view.refreshing.period is not None or view.refreshing.batch_rows is not None


def _tend(deferral: weakref.ref[Deferral], stirred: threading.Event, stopped: threading.Event) -> None:
    wait = _SHORTEST
    while not stopped.is_set():
        if stirred.wait(wait):
            stirred.clear()
            if stopped.wait(_SHORTEST):
                return
        tending = deferral()
        if tending is None:
            return
        try:
            with tending._in_use():
                wait = tending.turn()
        except HeadraceError:
            wait = 1.0  # closed just now
        del tending
