"""Answers of kept relations: merge, evaluate, keep the result (000 §4.2.4-4.2.5).

A result is kept with the epoch of the last change to anything it rests on: the
relation's states, and the tables and kept relations it reads beside them. While none of them changes,
a query gets the kept rows.

States that fit are kept merged in memory (``resident.py``). A query takes the
relation's lock, folds in what came since the last one, and evaluates over the
columns; inserts take no lock at all: what they append to the store is
the queue of 000 §4.2.5, and its bound is compaction (``compaction.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

import duckdb
import pyarrow as pa

from headrace.base.interrupts import Lock
from headrace.base.native import conform
from headrace.engine.columns import Unfoldable
from headrace.engine.plan_sql import quote_native
from headrace.keep.kept import Kept, KeptState
from headrace.keep.lookup import Lookup
from headrace.keep.ordered import KeyRange
from headrace.keep.resident import Resident, can_reside
from headrace.keep.table_rows import TableRows
from headrace.plan.nodes import Node
from headrace.plan.refs import Ref, StateRef
from headrace.runtime import Runtime
from headrace.store import Glance, Snapshot, Transaction
from headrace.table import query
from headrace.types import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEW = 2_048
"""State rows a lookup looks through rather than have them folded in."""

Others = Mapping[int, Kept]
"""Kept relations by their numbers, as of one catalog version: those asked for, and those below them."""


@dataclass(frozen=True)
class Evaluated:
    """What the last evaluation of a relation did."""

    epoch: int
    rows: pa.Table
    seconds: float
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


class Evaluation:
    """What a kept relation is evaluated over: its states and what it reads beside them, as of one snapshot."""

    def __init__(self, answers: Answers, snapshot: Snapshot, kept: Kept, others: Others, patient: bool) -> None:
        self.snapshot = snapshot
        self._answers = answers
        self._kept = kept
        self._others = others
        self._patient = patient

    def merged(self, state: KeptState) -> pa.Table:
        """A state's rows, merged."""
        return state.home.merged(self.snapshot, state)

    def finished(self, plan: Node) -> pa.Table:
        """The rows of a plan over the relation's states, tables and what is below it."""
        return self._answers.finished(self.snapshot, self._kept, plan, self._others, self._patient)


class Answers:
    """The kept results of all kept relations, and their states in memory."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._refreshes: dict[str, Evaluated] = {}
        self._locks: dict[str, Lock] = {}
        self._prepared: dict[str, tuple[Kept, query.Prepared]] = {}
        self._residents = WeakKeyDictionary[Kept, dict[str, Resident | None]]()
        self._lying_merged: dict[int, int] = {}
        self._unfindable = WeakSet[KeptState]()
        """States that hold what no lookup can merge."""
        self._guard = threading.Lock()
        self._tables = TableRows(runtime)
        runtime.indexes.room = runtime.columns.room = self._room
        self.evaluations = 0
        """How often a relation really was evaluated."""

    # Reading

    def rows(self, snapshot: Snapshot, kept: Kept, others: Others, *, patient: bool = False) -> pa.Table:
        """The relation's rows as of the snapshot; ``others`` are those there were then.

        Raises :class:`~headrace.table.query.Again` where the state in memory is newer, unless the caller is patient
        enough for the store to merge it.
        """
        changed = self._changed(snapshot, kept, others)
        last = self._refreshes.get(kept.name)
        # In a batch what lags is computed from its tables, which nothing here tells of.
        lags = snapshot.is_draft and any(one.lags(snapshot) for one in (kept, *others.values()))
        if last is not None and last.epoch == changed and not lags:
            return last.rows
        if snapshot.is_draft:
            return kept.evaluate(Evaluation(self, snapshot, kept, others, patient))
        with self.lock(kept.name):
            last = self._refreshes.get(kept.name)
            if last is not None and last.epoch == changed:
                return last.rows
            started = time.perf_counter()
            self.evaluations += 1
            rows = kept.evaluate(Evaluation(self, snapshot, kept, others, patient))
            if last is None or last.epoch < changed:
                self._refreshes[kept.name] = Evaluated(changed, rows, time.perf_counter() - started)
            return rows

    def is_fresh(self, snapshot: Snapshot, kept: Kept, others: Others) -> bool:
        """Whether the kept rows are the answer as of the snapshot."""
        last = self._refreshes.get(kept.name)
        return last is not None and last.epoch == self._changed(snapshot, kept, others)

    def last(self, name: str) -> Evaluated | None:
        return self._refreshes.get(name)

    def forget(self, kept: Kept) -> None:
        """Let go of everything kept for a relation that is no more."""
        with self.lock(kept.name):
            self._refreshes.pop(kept.name, None)
            self._prepared.pop(kept.name, None)
            self._tables.clear()
            with self._guard:
                self._residents.pop(kept, None)

    def lock(self, name: str) -> Lock:
        """Held while a relation's resident state is folded into or read."""
        with self._guard:
            return self._locks.get(name) or self._locks.setdefault(name, Lock())

    def reading(self, snapshot: Snapshot, kept: Kept) -> AbstractContextManager[object]:
        """Held while the relation's states are read. A batch reads no memory, and must wait for nobody who may wait
        for it: whoever merges a state holds the lock until the writer has it."""
        return nullcontext() if snapshot.is_draft else self.lock(kept.name)

    def states(self, snapshot: Snapshot, kept: Kept, *, patient: bool = False) -> query.Leaves:
        """The merged states as leaves of a query. Hold what :meth:`reading` gives while it runs."""
        merges: dict[Ref, str] = {}
        live: dict[Ref, pa.Table] = {}
        batches: dict[str, pa.Table] = {}
        frames: dict[Ref, Callable[[], AbstractContextManager[DataFrame]]] = {}
        for state in kept.states:
            lies_merged = state.name not in self._held(kept) and self._is_merged(snapshot, state)
            in_store = lies_merged or snapshot.is_draft
            resident = None if in_store else self._caught_up(snapshot, kept, state, patient)
            if resident is not None:
                live[StateRef(state.name)] = resident.table()
                continue
            source, tables = state.home.native(snapshot, state, f"__appended_{state.name}")
            merges[StateRef(state.name)] = source if lies_merged else state.merge(source)
            frames[StateRef(state.name)] = partial(state.home.frame, snapshot, state, self._runtime)
            batches |= tables
        return query.Leaves({}, merges, live, batches, frames)

    def finished(self, snapshot: Snapshot, kept: Kept, plan: Node, others: Others, patient: bool) -> pa.Table:
        """The rows of a relation's own plan over its states, tables and what is below it."""
        below: dict[Ref, pa.Table] = {
            ref: self.rows(snapshot, others[ref.number], others, patient=patient) for ref in kept.below
        }
        if self._prepared.get(kept.name, (None,))[0] is not kept:
            self._prepared[kept.name] = (kept, query.Prepared(self._runtime, plan, again=True))
        prepared = self._prepared[kept.name][1]
        leaves = self.states(snapshot, kept, patient=patient)
        held = kept.tables and not snapshot.is_draft
        beside = self._tables.of(snapshot, prepared, self._room()) if held else {}
        return query.run(self._runtime, snapshot, prepared, replace(leaves, arrow={**below, **beside}))

    def own_rows(self, snapshot: Snapshot, kept: Kept) -> pa.Table | None:
        """All rows of a relation that keeps them as a state; None of another."""
        state = kept.answer
        if state is None:
            return None
        with self.reading(snapshot, kept):
            resident = None if snapshot.is_draft else self._caught_up(snapshot, kept, state, True)
            found = state.home.merged(snapshot, state) if resident is None else resident.table()
            *names, times = map(quote_native, found.column_names)
            each = f"SELECT *, unnest(range({times})) AS __nth FROM __found"
            rows = snapshot.query(f"SELECT {', '.join(names)} FROM ({each})", __found=found)
        wanted = arrow_schema(kept.relation.columns)
        return conform(rows.rename_columns(wanted.names), wanted)

    def find(self, snapshot: Snapshot, kept: Kept, lookup: Lookup, *, patient: bool) -> pa.Table | None:
        """The answer of a lookup; None if the state is not in memory, or if it takes a query to say what is wrong."""
        with self.lock(kept.name):
            resident = self._caught_up(snapshot, kept, kept.by_name[lookup.state.name], patient)
            if resident is not None:
                return lookup.answer(resident.find(lookup.key))
            state = kept.by_name[lookup.state.name]
            if state in self._unfindable:
                return None
            names = [key.name for key in lookup.state.keys]
            try:
                return lookup.answer(state.home.find(snapshot, state, dict(zip(names, lookup.key, strict=True))))
            except duckdb.Error:
                # A sum past 38 digits, say: a query words it better, in a new snapshot, for this one's is broken.
                self._unfindable.add(state)
                raise query.Again from None

    def find_span(
        self, snapshot: Snapshot, kept: Kept, state: KeptState, span: KeyRange, patient: bool
    ) -> pa.Table | None:
        """The merged rows of a range of a state's keys; None if it is as well to read all of them."""
        if snapshot.is_draft:
            return None
        with self.lock(kept.name):
            resident = self._caught_up(snapshot, kept, state, patient)
            return resident.find_span(span) if resident is not None else None

    def find_rows(
        self, snapshot: Snapshot, kept: Kept, state: KeptState, keys: pa.Table, *, patient: bool = True
    ) -> pa.Table:
        """The merged rows of a state whose columns are one of these keys, and perhaps some others."""
        if not snapshot.is_draft:
            with self.lock(kept.name):
                resident = self._caught_up(snapshot, kept, state, patient)
                if resident is not None:
                    return resident.find_each(keys.column_names, keys)
        source, tables = state.home.native(snapshot, state, "__appended")
        same = " AND ".join(f"s.{quote_native(k)} IS NOT DISTINCT FROM k.{quote_native(k)}" for k in keys.column_names)
        asked = f"(SELECT s.* FROM {source} AS s SEMI JOIN __keys AS k ON {same})"
        return snapshot.query(state.merge(asked), __keys=keys, **tables).cast(state.schema)

    def glance(self, glance: Glance, kept: Kept, lookup: Lookup) -> pa.Table | None:
        """The same from memory alone; raises :class:`~headrace.store.NotInMemory` if that does not do."""
        state = kept.by_name[lookup.state.name]
        with self.lock(kept.name):
            resident = self._untouched(glance, kept, state, lookup) or self._caught_up(glance, kept, state, False)
            return None if resident is None else lookup.answer(resident.find(lookup.key))

    def _untouched(self, glance: Glance, kept: Kept, state: KeptState, lookup: Lookup) -> Resident | None:
        """The state in memory, if what came since says nothing of the group that is asked for."""
        resident = self._held(kept).get(state.name)
        if resident is None or not state.home.last_rewrite(glance, state.ref) <= resident.epoch <= glance.epoch:
            return None
        rows = state.home.since(glance, state, resident.epoch)
        # Many are better folded in than looked through again and again.
        return resident if rows.num_rows <= FEW and not lookup.is_in(rows) else None

    def _changed(self, snapshot: Snapshot, kept: Kept, others: Others) -> int:
        own = [state.home.last_change(snapshot, state.ref) for state in kept.states]
        beside = [snapshot.last_change(table.number) for table in kept.tables]
        below = [self._changed(snapshot, others[ref.number], others) for ref in kept.below]
        return max([*own, *beside, *below])

    # States as they lie in the store

    def lies_merged(self, ref: int, epoch: int) -> None:
        """The whole of a state came in this epoch, one row a key."""
        self._lying_merged[ref] = epoch

    def _is_merged(self, snapshot: Snapshot, state: KeptState) -> bool:
        """Whether the state is read where it lies: nothing has come since, so there is nothing to fold in yet."""
        epoch = self._lying_merged.get(state.ref)
        home = state.home
        return epoch is not None and (
            epoch == home.last_rewrite(snapshot, state.ref) >= home.last_change(snapshot, state.ref)
        )

    # Resident states

    def _caught_up(self, snapshot: Snapshot, kept: Kept, state: KeptState, patient: bool) -> Resident | None:
        """The state in memory as of the snapshot; None if it cannot be held there."""
        held = self._held(kept)
        resident = held.get(state.name)
        if resident is None:
            resident = None if state.name in held else _resident(state)
            if resident is None:
                return None
        if resident.epoch > snapshot.epoch and snapshot.changed_since(state.ref, resident.epoch):
            if patient:
                return None
            raise query.Again
        if state.home.last_rewrite(snapshot, state.ref) > resident.epoch >= 0:
            resident = _resident(state)
            assert resident is not None
        if not self._drain(snapshot, kept, state, resident):
            return None
        held[state.name] = resident
        if self._room() < 0:
            self._tables.clear()  # states first: they are what changes
            self._runtime.columns.clear()
            if self._room() < 0:
                held[state.name] = None
        return held[state.name]

    def _drain(self, reading: Snapshot | Transaction, kept: Kept, state: KeptState, resident: Resident) -> bool:
        """Fold in the rows that were appended since the resident's epoch; False if they cannot be."""
        if resident.epoch >= 0 and state.home.last_change(reading, state.ref) <= resident.epoch:
            resident.epoch = max(resident.epoch, reading.settled)
            return True
        held = self._held(kept)
        rows = state.home.since(reading, state, resident.epoch)
        try:
            resident.fold(rows, reading.settled)
        except Unfoldable:
            held[state.name] = None
            return False
        except BaseException:
            held.pop(state.name, None)  # some rows are in and some are not: it is read anew next time
            raise
        return True

    def _held(self, kept: Kept) -> dict[str, Resident | None]:
        with self._guard:
            return self._residents.setdefault(kept, {})

    def _room(self) -> int:
        """The bytes of memory left for states, tables and indexes."""
        with self._guard:  # a relation that is read for the first time would come in between
            every = {r for held in self._residents.values() for r in list(held.values()) if r is not None}
        held = sum(r.bytes for r in every) + self._tables.bytes
        held += self._runtime.indexes.bytes + self._runtime.columns.bytes
        return self._runtime.settings.state_memory - held

    # Compaction

    @contextmanager
    def compacting(self, kept: Kept, *, wait: bool) -> Iterator[bool]:
        """Whether the states may be rewritten now: not while a query reads them, unless told to wait."""
        lock = self.lock(kept.name)
        if not lock.acquire(blocking=wait):
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def merged(self, tx: Transaction, kept: Kept, state: KeptState) -> pa.Table:
        """The state's merged rows as of a transaction that will replace its rows by them."""
        held = self._held(kept)
        resident = held.get(state.name)
        if resident is None and state.name not in held and (resident := _resident(state)) is not None:
            held[state.name] = resident
        fresh = resident is not None and (
            resident.epoch < 0 or state.home.last_rewrite(tx, state.ref) <= resident.epoch
        )
        if resident is not None and fresh and self._drain(tx, kept, state, resident):
            if self._room() < 0:
                held[state.name] = None
            return resident.table()
        return state.home.merged(tx, state)

    def rewritten(self, kept: Kept, state: KeptState, epoch: int) -> None:
        """The rewrite begun by :meth:`merged` was committed in this epoch."""
        resident = self._held(kept).get(state.name)
        if resident is not None and resident.epoch == epoch - 1:
            resident.epoch = epoch


def _resident(state: KeptState) -> Resident | None:
    return Resident(state.folds) if state.folds is not None and can_reside(state.folds) else None
