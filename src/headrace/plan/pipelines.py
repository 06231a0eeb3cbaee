"""What a view's plan is cut into: states, the pipelines that fill them, and the plan that reads them.

Values only; ``plan/split.py`` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal as Choice

from headrace.plan.aggregates import merge, without_zeros
from headrace.plan.exprs import Agg, Column
from headrace.plan.nodes import Leaf, Node
from headrace.plan.refs import GivenRef
from headrace.types import Field, Schema

StateKind = Choice["groups", "distinct", "multiset", "rows"]


@dataclass(frozen=True, eq=False)
class State:
    """A relation of mergeable rows a view keeps.

    ``groups``: one row a group with partial aggregates. ``distinct``: the distinct
    argument values of each group. ``multiset``: those values with multiplicities,
    for aggregates that have no fixed-size state. ``rows``: rows as they came, for an ad hoc query.
    """

    name: str
    kind: StateKind
    keys: tuple[Column, ...]
    partials: tuple[tuple[Column, Agg], ...]
    labels: tuple[str, ...]
    """What each column means, for people: the key's name, or ``sum(x)``."""
    grouping: str = ""
    """The ``groups`` state of the same grouping; that state's own name if it is one."""
    time: int | None = None
    """Which key says when a group was, if groups are kept for a time only."""
    monotone: bool = True
    """Whether rows only come. If not, they come with weights: partial columns add up, those of a group that is no
    more to 0, and so do multiplicities of values, for then there is no ``distinct`` (``plan/signed.py``)."""

    @property
    def schema(self) -> Schema:
        return tuple(Field(c.name, c.type) for c in (*self.keys, *(c for c, _ in self.partials)))

    def merged(self) -> Node:
        """The plan that merges this state's stored rows into one row a key."""
        rows = Leaf.of(GivenRef(self.name), self.schema)
        if self.kind == "rows":
            return rows
        by_name = {c.name: c for c in rows.output}
        keys = [by_name[k.name] for k in self.keys]
        merged = merge(rows, keys, [(by_name[c.name], a) for c, a in self.partials])
        return merged if self.monotone or not keys else without_zeros(merged, merged.output[len(keys) :])


@dataclass(frozen=True, eq=False)
class StreamPipeline:
    """What an insert into ``stream`` runs: its rows in, rows for ``state`` out.

    A state has at most one pipeline a stream. One without a stream comes from static
    branches of a UNION ALL: it runs once, when the view is made.
    """

    stream: str | None
    state: str
    plan: Node


@dataclass(frozen=True, eq=False)
class StaticPipeline:
    """A build side no stream reaches, probed by inserts."""

    name: str
    plan: Node

    @property
    def schema(self) -> Schema:
        return tuple(Field(f"c{i}", c.type) for i, c in enumerate(self.plan.output))


@dataclass(frozen=True, eq=False)
class SplitPlan:
    """A view's plan, cut at its breakers."""

    states: tuple[State, ...]
    streams: tuple[StreamPipeline, ...]
    statics: tuple[StaticPipeline, ...]
    upper: Node
    retain: int | None = None
    """For how many microseconds of the groups' own time they are kept; without it, for good."""
    sides: tuple[StaticPipeline, ...] = ()
    """Those of its build sides that follow what they are made of: run anew when that has changed."""

    def following(self) -> SplitPlan:
        """The same with build sides that follow what they are made of."""
        return replace(self, statics=(), sides=(*self.sides, *self.statics))

    def state(self, name: str) -> State:
        return next(s for s in self.states if s.name == name)
