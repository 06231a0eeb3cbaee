"""Rows of a kept relation by its key: what its answer has of some keys, without the rest of it.

The plan of its rows is joined with the keys, and what that needs of states is looked up (``plan/lookups.py``), all keys
at once, as a change of tables looks up what it meets (``maintenance.py``). So it takes the same work however many rows
there are. One key of plain columns is less than a query: a lookup in memory (``lookup.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.engine.columns import one_chunk
from headrace.keep.answers import Answers, Others
from headrace.keep.kept import Kept
from headrace.keep.lookup import Lookup, lookup_by
from headrace.keep.maintenance import findable
from headrace.plan.exprs import Call, Column, Expr, Literal, all_of
from headrace.plan.lookups import looked_up
from headrace.plan.nodes import Join, Leaf, Node, Project, Values
from headrace.plan.nodes import leaves as leaves_of
from headrace.plan.pipelines import State
from headrace.plan.refs import GivenRef, Ref, StateRef
from headrace.runtime import Runtime
from headrace.store import Snapshot
from headrace.table import query
from headrace.types import BIGINT, BOOLEAN, Field, Schema

NTH = "__nth"
"""Which of the keys a row is of."""
KEYS = GivenRef("keys", kind="given")


def joined_with_keys(body: Node, key: Sequence[Column], keys: pa.Table | None = None) -> Node:
    """The rows of a plan that have one of some keys, which are given when it runs or now, and which one: that comes
    first."""
    schema = (Field(NTH, BIGINT), *(Field(f"k{i}", c.type.plain) for i, c in enumerate(key)))
    given: Node = Leaf.of(KEYS, schema)
    if keys is not None:
        types = [f.type for f in schema]
        rows = zip(*(column.to_pylist() for column in numbered(keys).columns), strict=True)
        given = Values(given.output, tuple(tuple(map(Literal, types, row)) for row in rows))
    nth, *parts = given.output
    same: list[Expr] = [Call(BOOLEAN, "<=>", (k, c)) for k, c in zip(parts, key, strict=True)]
    outs = [(Column.fresh(c.name, c.type), c) for c in body.output]
    return Project(Join("inner", given, body, all_of(same)), ((Column.fresh(NTH, BIGINT), nth), *outs))


def numbered(keys: pa.Table) -> pa.Table:
    """Keys as :func:`joined_with_keys` reads them."""
    numbers = pa.array(np.arange(keys.num_rows))
    return pa.table([numbers, *keys.columns], names=[NTH, *(f"k{i}" for i in range(keys.num_columns))])


class ByKey:
    """A kept relation that is read by its key."""

    def __init__(self, runtime: Runtime, kept: Kept, body: Node, key: Sequence[Column]) -> None:
        self._runtime = runtime
        self.kept = kept
        self._body = body
        self._columns = key
        self.key: Schema = tuple(Field(c.name, c.type) for c in key)
        rest, lookups = looked_up(joined_with_keys(body, key), lambda leaf: isinstance(leaf.ref, GivenRef), findable)
        self._rest = query.Prepared(runtime, rest, again=True)
        self._lookups = [(one, query.Prepared(runtime, one.keys, again=True)) for one in lookups]
        plans = (rest, *(one.keys for one in lookups))
        self._reads_states = any(leaves_of(plan, StateRef) for plan in plans)

    @staticmethod
    def of(runtime: Runtime, kept: Kept) -> ByKey | None:
        """None if its rows have no key."""
        states = _states(kept)
        if kept.upper is None or len(states) < len(kept.states):
            return None
        names = [f.name for f in kept.relation.columns]
        columns = tuple(Column.fresh(n, c.type) for n, c in zip(names, kept.upper.output, strict=True))
        body = Project(kept.upper, tuple(zip(columns, kept.upper.output, strict=True)))
        key = {c.id for c in kept.row_key}
        if not key:
            return None
        return ByKey(
            runtime, kept, body, [c for c, own in zip(columns, kept.upper.output, strict=True) if own.id in key]
        )

    @cached_property
    def _lookup(self) -> tuple[Lookup, list[int]] | None:
        return lookup_by(self._body, self._columns, _states(self.kept))

    def lookup(self, key: pa.Table) -> Lookup | None:
        """The lookup of one key, if that is all it takes."""
        if self._lookup is None:
            return None
        lookup, order = self._lookup
        return lookup.by([one_chunk(key.column(i)) for i in order])

    def rows(self, answers: Answers, snapshot: Snapshot, others: Others, keys: pa.Table, *, patient: bool) -> pa.Table:
        """The rows of some keys, each with the number of its key first, in any order."""
        arrow: dict[Ref, pa.Table] = {KEYS: numbered(keys)}
        for ref in self.kept.below:
            arrow[ref] = answers.rows(snapshot, others[ref.number], others, patient=patient)
        with answers.reading(snapshot, self.kept):
            leaves = query.NO_LEAVES
            if self._reads_states:
                leaves = answers.states(snapshot, self.kept, patient=patient)
            for lookup, plan in self._lookups:
                wanted = query.run(self._runtime, snapshot, plan, replace(leaves, arrow=arrow))
                wanted = wanted.rename_columns(list(lookup.fields))
                state = self.kept.by_name[lookup.leaf.relation]
                arrow[lookup.given] = answers.find_rows(snapshot, self.kept, state, wanted, patient=patient)
            return query.run(self._runtime, snapshot, self._rest, replace(leaves, arrow=arrow))


def _states(kept: Kept) -> dict[str, State]:
    return {state.name: state.folds for state in kept.states if state.folds is not None}
