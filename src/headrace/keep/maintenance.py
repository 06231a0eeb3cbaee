"""What a change of tables does to the states of a relation that follows them (001 §4.3, §4.4).

The plan of a change begins with few rows, the change's own. What these meet in tables and lower states is looked up
through indexes (``plan/lookups.py``), step by step; then the rest runs natively over the rows that were found. So the
work follows the change and its fan-out, not the tables. A step that finds no index, or so many keys that a scan is
shorter, reads all rows.

    change ─ keys ─▶ index ─ rows ─ keys ─▶ index ─ rows ─▶ plan over these ─▶ state rows ─▶ their change ─▶ next layer

Nothing here writes: the rows are added in the commit that changes the tables (``stream/table_changes.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from headrace.base.native import conform
from headrace.base.standing import Standing
from headrace.catalog import Table
from headrace.engine.columns import is_key
from headrace.engine.key_index import Newer
from headrace.engine.plan_sql import quote_native
from headrace.keep.answers import Answers
from headrace.keep.kept import Kept, KeptState
from headrace.plan.delta import change_ref
from headrace.plan.delta.changes import Time
from headrace.plan.layers import LayeredPlan
from headrace.plan.lookups import LeafLookup, looked_up
from headrace.plan.nodes import Leaf, Node, SparkSql, walk_plan
from headrace.plan.nodes import leaves as leaves_of
from headrace.plan.reasons import Reason, only_spark, reason_of
from headrace.plan.refs import GivenRef, Ref, StateRef, TableRef
from headrace.plan.signed import WEIGHT
from headrace.runtime import Runtime
from headrace.store import Snapshot
from headrace.table import keys as indexes
from headrace.table import query
from headrace.table import rows as tables
from headrace.types import arrow_schema

FEW = 1_024
"""Rows of a table that is rather scanned."""
MANY = 8
"""A scan takes no longer than to find one row of so many by key."""


NO_CHANGES: Mapping[Ref, pa.Table] = MappingProxyType({})


@dataclass
class RowsRead:
    """How many rows were read for changes, so that a test can tell what they follow."""

    found: int = 0
    """By key."""
    scanned: int = 0


@dataclass(frozen=True, eq=False)
class LookedUp:
    """A step of a change: what it looks up, and its plan over what is found."""

    state: str
    lookups: tuple[LeafLookup, ...]
    rest: Node
    scanned: tuple[Leaf, ...]
    """Leaves of tables and states that are read whole, though they are not small."""

    @property
    def reasons(self) -> list[Reason]:
        """Why it reads more than the change leads to."""
        trees = (self.rest, *(one.keys for one in self.lookups))
        nodes = [node for tree in trees for node in walk_plan(tree)]
        found = [only_spark(node.reason) for node in nodes if isinstance(node, SparkSql)]
        whole = [leaf for leaf in self.scanned if leaf.ref != StateRef(self.state)] or self.scanned
        return [*found, *(reason_of(tree, leaf) for leaf in whole for tree in trees if leaf in leaves_of(tree))]


def tables_of(plan: LayeredPlan) -> list[TableRef]:
    """The tables a layered plan follows."""
    found = (leaf.ref for one in plan.inputs for leaf in leaves_of(one.rows))
    return list(dict.fromkeys(ref for ref in found if isinstance(ref, TableRef)))


def compiled(
    runtime: Runtime,
    snapshot: Snapshot,
    plan: LayeredPlan,
    changed: Collection[Ref],
    lie: Time = "before",
    *,
    whatever_size: bool = False,
) -> list[LookedUp]:
    """What a change of some tables does, which lie as they were or are; as if tables were large, if told so."""
    small = frozenset[Ref]() if whatever_size else _small(runtime, snapshot, plan, changed)
    small |= {StateRef(state.name) for state in plan.states if not state.keys}  # they have one row

    def is_few(leaf: Leaf) -> bool:
        return isinstance(leaf.ref, GivenRef) or leaf.ref in small

    found = []
    for step in plan.steps(changed, lie):
        rest, lookups = looked_up(step.rows, is_few, findable)
        scanned = (leaf for tree in (rest, *(one.keys for one in lookups)) for leaf in leaves_of(tree))
        left = tuple(leaf for leaf in scanned if not is_few(leaf))
        found.append(LookedUp(step.state, tuple(lookups), rest, left))
    return found


def why_not(
    runtime: Runtime, snapshot: Snapshot, plan: LayeredPlan, changed: Collection[Ref], *, whatever_size: bool = False
) -> list[Reason]:
    """Why the work of a change of some tables does not follow it: none if it is incremental."""
    steps = compiled(runtime, snapshot, plan, changed, whatever_size=whatever_size)
    return list(dict.fromkeys(reason for step in steps for reason in step.reasons))


def reasons_of(
    runtime: Runtime, snapshot: Snapshot, plan: LayeredPlan, *, whatever_size: bool = False
) -> Mapping[str, Sequence[Reason]]:
    """Why a plan is not incremental: by the names of what changes there, and by the empty name what a query leaves to
    chance.

    Empty if everything is: INCREMENTAL STRICT takes nothing else, ``whatever_size`` tables have today.
    """
    found = {ref.name: why_not(runtime, snapshot, plan, [ref], whatever_size=whatever_size) for ref in tables_of(plan)}
    return {name: reasons for name, reasons in (found | {"": list(plan.order)}).items() if reasons}


def _small(runtime: Runtime, snapshot: Snapshot, plan: LayeredPlan, changed: Collection[Ref]) -> frozenset[Ref]:
    """The tables that are better scanned, because they have few rows."""
    return frozenset(
        ref
        for ref in tables_of(plan)
        if ref not in changed and indexes.about(runtime, snapshot, _table(runtime, ref)) <= FEW
    )


def findable(leaf: Leaf, fields: Collection[str]) -> list[str] | None:
    """By which fields rows are looked up: by the whole key if that can be, else by all that are compared."""
    types = dict(zip(leaf.fields, (c.type for c in leaf.scanned), strict=True))
    found = [name for name in leaf.fields if name in fields and is_key(types[name])]
    if isinstance(leaf.ref, TableRef) and leaf.key and set(leaf.key) <= set(found):
        return list(leaf.key)
    return found or None


def _table(runtime: Runtime, ref: Ref) -> Table:
    assert isinstance(ref, TableRef)
    table = runtime.catalog.table_at(ref.number)
    assert table is not None
    return table


def as_read(snapshot: Snapshot, state: KeptState, rows: pa.Table) -> pa.Table:
    """All rows of a state as those above read it: one without keys has a row, also over nothing."""
    assert state.folds is not None
    if state.folds.keys or rows.num_rows:
        return rows
    return snapshot.query(state.merge("__rows"), __rows=rows).cast(state.schema)


@dataclass(frozen=True, eq=False)
class _Step:
    """A step, ready to run."""

    state: str
    rows: query.Prepared
    lookups: tuple[tuple[LeafLookup, query.Prepared], ...]
    changes: frozenset[Ref]
    """The changes it reads: while all are empty, it gives nothing."""
    reads_states: bool
    """Whether it reads some state whole."""
    tables: frozenset[TableRef]
    """The tables that it reads whole."""


@dataclass(frozen=True, eq=False)
class _Steps:
    """What a change of some tables runs, and which tables were small when that was decided."""

    steps: tuple[_Step, ...]
    small: frozenset[Ref]


@dataclass
class _Given:
    """The rows that are at hand while a change runs."""

    arrow: dict[Ref, pa.Table] = field(default_factory=dict)
    sql: dict[Ref, str] = field(default_factory=dict)
    goes_on: bool = False
    """Whether tables change meanwhile: then an index may be ahead of the snapshot."""

    def leaves(self, states: query.Leaves) -> query.Leaves:
        return replace(states, arrow={**states.arrow, **self.arrow}, sql={**states.sql, **self.sql})


class StatesBefore(ABC):
    """The states of a relation as they are before a change, as of a snapshot."""

    def reading(self) -> AbstractContextManager[object]:
        """Held while they are read."""
        return nullcontext()

    @abstractmethod
    def leaves(self) -> query.Leaves:
        """All their rows, merged."""

    @abstractmethod
    def find(self, state: KeptState, keys: pa.Table) -> pa.Table:
        """The merged rows whose columns are one of these keys, and perhaps some others."""

    @abstractmethod
    def merged(self, state: KeptState) -> pa.Table:
        """All rows of one."""


class Stored(StatesBefore):
    """Those that are kept."""

    def __init__(self, answers: Answers, snapshot: Snapshot, kept: Kept) -> None:
        self._answers = answers
        self._snapshot = snapshot
        self._kept = kept

    def reading(self) -> AbstractContextManager[object]:
        return self._answers.reading(self._snapshot, self._kept)

    def leaves(self) -> query.Leaves:
        return self._answers.states(self._snapshot, self._kept, patient=True)

    def find(self, state: KeptState, keys: pa.Table) -> pa.Table:
        return self._answers.find_rows(self._snapshot, self._kept, state, keys)

    def merged(self, state: KeptState) -> pa.Table:
        return state.home.merged(self._snapshot, state)


class Maintenance:
    """Follows the tables of one kept relation."""

    def __init__(self, runtime: Runtime, answers: Answers, plan: LayeredPlan) -> None:
        self._runtime = runtime
        self._answers = answers
        self._plan = plan
        self._compiled: dict[tuple[frozenset[Ref], Time], _Steps] = {}
        self._merges: dict[str, Standing] = {}
        self._few: dict[TableRef, tuple[int, pa.Table]] = {}
        """The rows of small tables, with the epochs that last changed these."""
        self.tables: Mapping[int, TableRef] = {ref.number: ref for ref in tables_of(plan)}
        self._fields: dict[Ref, set[str]] = {}
        for leaf in (leaf for one in plan.inputs for leaf in leaves_of(one.rows)):
            self._fields.setdefault(leaf.ref, set()).update(leaf.fields)
        self._changes = set(map(change_ref, self._fields))
        self._read_above = {leaf.ref for one in plan.inputs for leaf in leaves_of(one.rows, StateRef)}
        self.read = RowsRead()

    def state_rows(self, kept: Kept, changes: Mapping[Ref, pa.Table]) -> dict[int, pa.Table]:
        """The rows that changes of tables, which have weights, add to states. Hold ``tables_lock``."""
        while True:
            with self._runtime.store.read() as snapshot, suppress(query.Again):
                return self.run(snapshot, kept, changes, Stored(self._answers, snapshot, kept))

    def first_rows(self, kept: Kept, changes: Mapping[Ref, pa.Table] = NO_CHANGES) -> dict[int, pa.Table]:
        """The rows that states begin with: of all rows that tables have, or will have when these changes are in."""
        while True:
            with self._runtime.store.read() as snapshot, suppress(query.Again):
                return self.rows_anew(snapshot, kept, changes)

    def rows_anew(
        self, snapshot: Snapshot, kept: Kept, changes: Mapping[Ref, pa.Table] = NO_CHANGES
    ) -> dict[int, pa.Table]:
        """The same in a snapshot. Raises :class:`~headrace.table.query.Again`."""
        found = self._named_anew(snapshot, kept, changes)
        return {kept.by_name[name].ref: rows for name, rows in found.items()}

    def _named_anew(self, snapshot: Snapshot, kept: Kept, changes: Mapping[Ref, pa.Table]) -> dict[str, pa.Table]:
        found: dict[str, pa.Table] = {}
        changed: dict[Ref, pa.Table] = {change_ref(ref): rows for ref, rows in changes.items()}
        for step in self._plan.first_steps(changes.keys()):
            if step.state not in found:
                given: dict[Ref, pa.Table] = {
                    StateRef(name): as_read(snapshot, kept.by_name[name], rows) for name, rows in found.items()
                }
                leaves = query.Leaves({**given, **changed}, {})
                rows = query.run(self._runtime, snapshot, query.Prepared(self._runtime, step.rows), leaves)
                found[step.state] = rows.cast(kept.by_name[step.state].schema)
        return found

    def answer_anew(self, snapshot: Snapshot, kept: Kept) -> pa.Table:
        """The relation's rows, computed from what its tables have in a snapshot; its states are not looked at."""
        states: dict[Ref, pa.Table] = {
            StateRef(name): snapshot.query(kept.by_name[name].merge("__rows"), __rows=rows)
            for name, rows in self._named_anew(snapshot, kept, NO_CHANGES).items()
        }
        assert kept.upper is not None
        return query.run(self._runtime, snapshot, kept.upper, query.Leaves(states, {}))

    def fields(self, table: TableRef) -> set[str]:
        """The columns of a table that the plan reads."""
        return self._fields[table]

    def first_steps(self) -> list[tuple[str, query.Prepared]]:
        """What each state begins with, in order: of all rows that tables have."""
        return [(step.state, query.Prepared(self._runtime, step.rows)) for step in self._plan.first_steps()]

    # One change

    def run(
        self,
        snapshot: Snapshot,
        kept: Kept,
        changes: Mapping[Ref, pa.Table],
        before: StatesBefore,
        *,
        lie: Time = "before",
    ) -> dict[int, pa.Table]:
        """The rows that changes add to states, which are as before; tables ``lie`` as before, or as they are now.

        Raises :class:`~headrace.table.query.Again` if the snapshot cannot answer."""
        seen = {ref: self._seen(ref, rows) for ref, rows in changes.items()}
        arrow: dict[Ref, pa.Table] = {change_ref(ref): rows for ref, rows in seen.items() if rows is not None}
        given = _Given(arrow, goes_on=lie == "now")
        added: dict[int, pa.Table] = {}
        for step in self._steps(snapshot, [ref for ref, rows in seen.items() if rows is not None], lie):
            state = kept.by_name[step.state]
            # What is read as it is now shows a change that nothing else tells of.
            if lie == "now" or any(given.arrow[ref].num_rows for ref in step.changes):
                rows = self._step(snapshot, kept, step, given, before)
            else:
                rows = state.schema.empty_table()
            if rows.num_rows:
                added[state.ref] = rows.cast(state.schema)
            if StateRef(step.state) in self._read_above:
                given.arrow[change_ref(StateRef(step.state))] = self._change_of(
                    snapshot, kept, step.state, rows, before
                )
        return added

    def _seen(self, ref: Ref, rows: pa.Table) -> pa.Table | None:
        """What the plan reads of a table's change; None if it sees none, for other columns have changed."""
        fields = self._fields[ref]
        seen = rows.select([*(name for name in rows.column_names if name in fields), WEIGHT])
        return None if _cancels(seen) else seen

    def _step(self, snapshot: Snapshot, kept: Kept, step: _Step, given: _Given, before: StatesBefore) -> pa.Table:
        for ref in step.tables - given.arrow.keys():
            if (few := self._few_rows(snapshot, ref)) is not None:
                given.arrow[ref] = few
        with before.reading():
            states = before.leaves() if step.reads_states else query.NO_LEAVES
            for lookup, keys in step.lookups:
                if lookup.given not in given.arrow and lookup.given not in given.sql:
                    self._look_up(snapshot, kept, lookup, keys, given, states, before)
            rows = query.run(self._runtime, snapshot, step.rows, given.leaves(states))
            for lookup, _ in step.lookups:
                given.arrow.pop(lookup.given, None)
                given.sql.pop(lookup.given, None)
        return rows

    def _few_rows(self, snapshot: Snapshot, ref: TableRef) -> pa.Table | None:
        """The rows of a small table, read once until it changes: what is all given is not planned again."""
        table = _table(self._runtime, ref)
        if indexes.about(self._runtime, snapshot, table) > FEW:
            return None
        epoch, known = indexes.touched(snapshot, table), self._few.get(ref)
        if known is not None and known[0] == epoch and not snapshot.is_draft:
            return known[1]
        columns = tuple(c for c in table.columns if c.name in self._fields[ref])
        names = ", ".join(quote_native(c.name) for c in columns) or "1 AS one"
        rows = snapshot.query(f"SELECT {names} FROM {tables.source(snapshot, table, [c.name for c in columns])}")
        rows = conform(rows, arrow_schema(columns)) if columns else rows
        if not snapshot.is_draft:
            self._few[ref] = epoch, rows
        return rows

    def _look_up(
        self,
        snapshot: Snapshot,
        kept: Kept,
        lookup: LeafLookup,
        keys: query.Prepared,
        given: _Given,
        states: query.Leaves,
        before: StatesBefore,
    ) -> None:
        wanted = query.run(self._runtime, snapshot, keys, given.leaves(states))
        wanted = wanted.rename_columns(list(lookup.fields))
        ref = lookup.leaf.ref
        if isinstance(ref, StateRef):
            rows = before.find(kept.by_name[ref.name], wanted)
            given.arrow[lookup.given] = rows
            self.read.found += rows.num_rows
            return
        table = _table(self._runtime, ref)
        columns = tuple(table.stored_name(name) for name in lookup.fields)
        hashes = indexes.hashes_given(table, wanted.rename_columns(list(columns)), columns)
        found = None
        if len(hashes) * MANY <= max(indexes.about(self._runtime, snapshot, table), FEW * MANY):
            fields = lookup.leaf.fields
            try:
                found = indexes.rows_of(self._runtime, snapshot, table, hashes, fields, columns=columns, eager=True)
            except Newer:
                if not given.goes_on:
                    raise query.Again from None
        if found is None:
            given.sql[lookup.given] = f"SELECT * FROM {tables.source(snapshot, table, lookup.leaf.fields)}"
            self.read.scanned += indexes.about(self._runtime, snapshot, table)
        else:
            rows = found.rows
            if rows is None:
                wanted_of = arrow_schema(
                    tuple(c for name in lookup.leaf.fields for c in table.columns if c.name == name)
                )
                names = ", ".join(quote_native(name) for name in lookup.leaf.fields)
                rows = conform(snapshot.query(f"SELECT {names} FROM {found.sql}", **found.named), wanted_of)
            given.arrow[lookup.given] = rows.select(list(lookup.leaf.fields))
            self.read.found += rows.num_rows

    def _change_of(self, snapshot: Snapshot, kept: Kept, name: str, rows: pa.Table, before: StatesBefore) -> pa.Table:
        """How a state's merged rows change when rows are added to it: those that go and those that come."""
        state = kept.by_name[name]
        assert state.folds is not None
        if not rows.num_rows:
            return state.schema.empty_table().append_column(WEIGHT, pa.array([], pa.int64()))
        key = [c.name for c in state.folds.keys]
        if key:
            old = before.find(state, rows.select(key))
            self.read.found += old.num_rows
        else:
            old = before.merged(state)
        both = {"__both": pa.concat_tables([old.cast(state.schema), rows.cast(state.schema)])}
        if both["__both"].num_rows > query.STANDING:
            new = snapshot.query(state.merge("__both"), **both)
        else:
            if name not in self._merges:
                self._merges[name] = self._runtime.worker.standing(state.merge("__both"), both)
            new = self._merges[name].run(both)
        new = new.cast(state.schema)
        weights = np.concatenate([np.full(old.num_rows, -1), np.full(new.num_rows, 1)])
        return pa.concat_tables([old.cast(state.schema), new]).append_column(WEIGHT, pa.array(weights, pa.int64()))

    # Compiling

    def _steps(self, snapshot: Snapshot, changed: Collection[Ref], lie: Time) -> Sequence[_Step]:
        key = frozenset(changed), lie
        small = _small(self._runtime, snapshot, self._plan, key[0])
        found = self._compiled.get(key)
        if found is None or found.small != small:
            steps = compiled(self._runtime, snapshot, self._plan, key[0], lie)
            found = self._compiled[key] = _Steps(tuple(map(self._prepared, steps)), small)
        return found.steps

    def _prepared(self, step: LookedUp) -> _Step:
        lookups = tuple((one, query.Prepared(self._runtime, one.keys, again=True)) for one in step.lookups)
        rest = query.Prepared(self._runtime, step.rest, again=True)
        read = {leaf.ref for plan in (rest, *(keys for _, keys in lookups)) for leaf in plan.scans}
        reads_states = any(isinstance(ref, StateRef) for ref in read)
        whole = frozenset(ref for ref in read if isinstance(ref, TableRef))
        return _Step(step.state, rest, lookups, frozenset(read & self._changes), reads_states, whole)


def _cancels(rows: pa.Table) -> bool:
    """Whether the rows that go are, one by one, those that come. Zeros of floats may differ and be equal."""
    half, odd = divmod(rows.num_rows, 2)
    if odd or any(pa.types.is_floating(field.type) or pa.types.is_nested(field.type) for field in rows.schema):
        return False
    weights = rows.column(WEIGHT).to_numpy()
    if not ((weights[:half] == -1).all() and (weights[half:] == 1).all()):
        return False
    columns = [column for name, column in zip(rows.column_names, rows.columns, strict=True) if name != WEIGHT]
    return all(column.slice(0, half).equals(column.slice(half)) for column in columns)
