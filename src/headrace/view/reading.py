"""Answers of continuous views: merge, run the upper pipeline, keep the result (000 §4.2.4-4.2.5).

A result is kept with the epoch of the last change to anything it rests on: the
view's states, and the tables and views of its upper pipeline. While none of them changes,
a query gets the kept rows.

States that fit are kept merged in memory (``resident.py``). A query takes the
view's lock, folds in what came since the last one, and runs the upper pipeline
over the columns; inserts take no lock at all: what they append to the store is
the queue of 000 §4.2.5, and its bound is compaction (``compaction.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from weakref import WeakKeyDictionary

import pyarrow as pa

from headrace import query, tables
from headrace.engine.columns import Unfoldable
from headrace.engine.plan_sql import quote_native
from headrace.engine.spark import Relation
from headrace.interrupts import Lock
from headrace.plan.pipelines import State
from headrace.runtime import Runtime
from headrace.store import Glance, Snapshot, Transaction
from headrace.view.compiled import ContinuousView
from headrace.view.lookup import Lookup
from headrace.view.resident import Resident, can_reside
from headrace.view.table_rows import TableRows

FEW = 2_048
"""State rows a lookup looks through rather than have them folded in."""

Views = Mapping[str, ContinuousView]
"""Continuous views by their names in lower case, as of one catalog version."""


@dataclass(frozen=True)
class Refresh:
    """What the last evaluation of a view did."""

    epoch: int
    rows: pa.Table
    seconds: float
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


class Answers:
    """The kept results of all continuous views, and their states in memory."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._kept: dict[str, Refresh] = {}
        self._locks: dict[str, Lock] = {}
        self._prepared: dict[str, tuple[ContinuousView, query.Prepared]] = {}
        self._residents = WeakKeyDictionary[ContinuousView, dict[str, Resident | None]]()
        self._merged: dict[str, int] = {}
        self._guard = threading.Lock()
        self._tables = TableRows(runtime)
        self.evaluations = 0
        """How often an upper pipeline really ran."""

    # Reading

    def rows(self, snapshot: Snapshot, view: ContinuousView, views: Views, *, patient: bool = False) -> pa.Table:
        """The view's rows as of the snapshot; ``views`` are those there were then.

        Raises :class:`~headrace.query.Again` where the state in memory is newer, unless the caller is patient
        enough for the store to merge it.
        """
        changed = self._changed(snapshot, view, views)
        kept = self._kept.get(view.name)
        if kept is not None and kept.epoch == changed:
            return kept.rows
        with self.lock(view.name):
            kept = self._kept.get(view.name)
            if kept is not None and kept.epoch == changed:
                return kept.rows
            started = time.perf_counter()
            rows = self._evaluate(snapshot, view, views, patient)
            if kept is None or kept.epoch < changed:
                self._kept[view.name] = Refresh(changed, rows, time.perf_counter() - started)
            return rows

    def is_fresh(self, snapshot: Snapshot, view: ContinuousView, views: Views) -> bool:
        """Whether the kept rows are the answer as of the snapshot."""
        kept = self._kept.get(view.name)
        return kept is not None and kept.epoch == self._changed(snapshot, view, views)

    def last(self, view: str) -> Refresh | None:
        return self._kept.get(view)

    def forget(self, view: ContinuousView) -> None:
        """Let go of everything kept for a view that is no more."""
        with self.lock(view.name):
            self._kept.pop(view.name, None)
            self._prepared.pop(view.name, None)
            self._tables.clear()
            with self._guard:
                self._residents.pop(view, None)

    def lock(self, name: str) -> Lock:
        """Held while a view's resident state is folded into or read."""
        with self._guard:
            return self._locks.get(name) or self._locks.setdefault(name, Lock())

    def states(self, snapshot: Snapshot, view: ContinuousView, *, patient: bool = False) -> query.Leaves:
        """The view's merged states as leaves of a query. Hold the view's lock while it runs."""
        merges: dict[Relation, str] = {}
        live: dict[Relation, pa.Table] = {}
        batches: dict[str, pa.Table] = {}
        for state in view.plan.states:
            relation = view.relation(state)
            if state.name not in self._held(view) and self._is_merged(snapshot, relation):
                columns = ", ".join(quote_native(f.name) for f in state.schema)
                merges["state", state.name] = f"SELECT {columns} FROM {snapshot.table(relation)}"
                continue
            resident = self._caught_up(snapshot, view, state, patient)
            if resident is None:
                name = f"__appended_{state.name}"
                source, batches[name] = snapshot.whole(relation, name)
                merges["state", state.name] = view.merge_sql(state, source)
            else:
                live["state", state.name] = resident.table()
        return query.Leaves({}, merges, live, batches)

    def find(self, snapshot: Snapshot, view: ContinuousView, lookup: Lookup, *, patient: bool) -> pa.Table | None:
        """The answer of a lookup; None if the state is not in memory, or if it takes a query to say what is wrong."""
        with self.lock(view.name):
            resident = self._caught_up(snapshot, view, lookup.state, patient)
            return None if resident is None else lookup.answer(resident.find(lookup.key))

    def glance(self, glance: Glance, view: ContinuousView, lookup: Lookup) -> pa.Table | None:
        """The same from memory alone; raises :class:`~headrace.store.NotInMemory` if that does not do."""
        with self.lock(view.name):
            resident = self._untouched(glance, view, lookup) or self._caught_up(glance, view, lookup.state, False)
            return None if resident is None else lookup.answer(resident.find(lookup.key))

    def _untouched(self, glance: Glance, view: ContinuousView, lookup: Lookup) -> Resident | None:
        """The state in memory, if what came since says nothing of the group that is asked for."""
        relation = view.relation(lookup.state)
        resident = self._held(view).get(lookup.state.name)
        if resident is None or not glance.rewritten(relation) <= resident.epoch <= glance.epoch:
            return None
        rows = glance.since(relation, resident.epoch, resident.schema)
        # Many are better folded in than looked through again and again.
        return resident if rows.num_rows <= FEW and not lookup.is_in(rows) else None

    def _changed(self, snapshot: Snapshot, view: ContinuousView, views: Views) -> int:
        relations = [view.relation(s) for s in view.plan.states] + [tables.tail_of(t) for t in view.upper_tables]
        below = [self._changed(snapshot, views[v.lower()], views) for v in view.upper_views]
        return max([*(snapshot.last_change(r) for r in relations), *below])

    def _evaluate(self, snapshot: Snapshot, view: ContinuousView, views: Views, patient: bool) -> pa.Table:
        below = {("view", v): self.rows(snapshot, views[v.lower()], views, patient=patient) for v in view.upper_views}
        if self._prepared.get(view.name, (None,))[0] is not view:
            self._prepared[view.name] = (view, query.Prepared(self._runtime, view.plan.upper))
        prepared = self._prepared[view.name][1]
        leaves = self.states(snapshot, view, patient=patient)
        beside = self._tables.of(snapshot, prepared, self._room()) if view.upper_tables else {}
        self.evaluations += 1
        return query.run(self._runtime, snapshot, prepared, replace(leaves, arrow={**below, **beside}))

    # States as they lie in the store

    def lies_merged(self, relation: str, epoch: int) -> None:
        """The whole of a state came in this epoch, one row a key."""
        self._merged[relation] = epoch

    def _is_merged(self, snapshot: Snapshot, relation: str) -> bool:
        """Whether the state is read where it lies: nothing has come since, so there is nothing to fold in yet."""
        epoch = self._merged.get(relation)
        return epoch is not None and epoch == snapshot.rewritten(relation) >= snapshot.last_change(relation)

    # Resident states

    def _caught_up(self, snapshot: Snapshot, view: ContinuousView, state: State, patient: bool) -> Resident | None:
        """The state in memory as of the snapshot; None if it cannot be held there."""
        relation = view.relation(state)
        held = self._held(view)
        resident = held.get(state.name)
        if resident is None:
            if state.name in held or not can_reside(state):
                return None
            resident = Resident(state)
        if resident.epoch > snapshot.epoch and snapshot.changed_since(relation, resident.epoch):
            if patient:
                return None
            raise query.Again
        if snapshot.rewritten(relation) > resident.epoch >= 0:
            resident = Resident(state)
        if not self._drain(snapshot, view, state, resident):
            return None
        held[state.name] = resident
        if self._room() < 0:
            self._tables.clear()  # states first: they are what changes
            if self._room() < 0:
                held[state.name] = None
        return held[state.name]

    def _drain(self, reading: Snapshot | Transaction, view: ContinuousView, state: State, resident: Resident) -> bool:
        """Fold in the rows that were appended since the resident's epoch; False if they cannot be."""
        relation = view.relation(state)
        if resident.epoch >= 0 and reading.last_change(relation) <= resident.epoch:
            resident.epoch = max(resident.epoch, reading.epoch)
            return True
        held = self._held(view)
        rows = reading.since(relation, resident.epoch, resident.schema)
        try:
            resident.fold(rows, reading.epoch)
        except Unfoldable:
            held[state.name] = None
            return False
        except BaseException:
            held.pop(state.name, None)  # some rows are in and some are not: it is read anew next time
            raise
        return True

    def _held(self, view: ContinuousView) -> dict[str, Resident | None]:
        with self._guard:
            return self._residents.setdefault(view, {})

    def _room(self) -> int:
        """The bytes of memory left for states and tables."""
        with self._guard:  # a view that is read for the first time would come in between
            every = {r for held in self._residents.values() for r in list(held.values()) if r is not None}
        return self._runtime.settings.state_memory - sum(r.bytes for r in every) - self._tables.bytes

    # Compaction

    @contextmanager
    def compacting(self, view: ContinuousView, *, wait: bool) -> Iterator[bool]:
        """Whether the view's states may be rewritten now: not while a query reads them, unless told to wait."""
        lock = self.lock(view.name)
        if not lock.acquire(blocking=wait):
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def merged(self, tx: Transaction, view: ContinuousView, state: State) -> pa.Table:
        """The state's merged rows as of a transaction that will replace its rows by them."""
        relation = view.relation(state)
        held = self._held(view)
        resident = held.get(state.name)
        if resident is None and state.name not in held and can_reside(state):
            resident = held[state.name] = Resident(state)
        fresh = resident is not None and (resident.epoch < 0 or tx.rewritten(relation) <= resident.epoch)
        if resident is not None and fresh and self._drain(tx, view, state, resident):
            # Until the rewrite is committed, the rows are those of the epoch before.
            resident.epoch = tx.epoch - 1
            if self._room() < 0:
                held[state.name] = None
            return resident.table()
        source, batches = tx.whole(relation, "__appended")
        return tx.query(view.merge_sql(state, source), __appended=batches)

    def rewritten(self, view: ContinuousView, state: State, epoch: int) -> None:
        """The rewrite begun by :meth:`merged` was committed in this epoch."""
        resident = self._held(view).get(state.name)
        if resident is not None and resident.epoch == epoch - 1:
            resident.epoch = epoch
