"""What is kept of a plan whose tables change: layers of states, each fed by the changes of what lies below it.

A grouping whose aggregates add up over rows that come and go (``plan/signed.py``) is kept as a state, wherever in the
plan it stands. What feeds it is the *input* below it: a plan over tables and the states of lower layers. Its changes
are found by ``plan/delta/``, and are taken up by the state as a stream's rows are (``plan/split.py``).

    tables ─ input ─ delta ─▶ state ─ finals ─ input ─ delta ─▶ state ─ upper ─▶ answer
             └──────────── each change of a table ───────────────┘      └─ each query ─┘

A node in between that may not give the same rows twice (``delta/touched.py:is_inexact``) is a layer, too: its state has
the rows it *emitted*, and its change is what it gives now without those.

At the top stands the grouping that gives the answer, whatever its aggregates; what sorts, filters and computes of its
groups is left to queries. A plan that has none there keeps its rows themselves, with how often each is there. Other
groupings in between, and whatever else has no state, are run again for the keys that a change touches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.plan.aggregates import is_mergeable
from headrace.plan.delta import Delta, Deltas
from headrace.plan.delta.changes import Time
from headrace.plan.delta.touched import again, is_inexact, settled
from headrace.plan.exprs import Agg, Column, Expr, Literal
from headrace.plan.nodes import (
    Aggregate,
    Filter,
    Leaf,
    Node,
    Project,
    Repeat,
    Sort,
    UnionAll,
    Window,
    leaves,
    map_children,
    rewrite_plan,
    walk_plan,
)
from headrace.plan.pipelines import SplitPlan, State, StreamPipeline
from headrace.plan.reasons import Reason, of_order
from headrace.plan.refs import ChangeRef, Ref, StateRef, TableRef
from headrace.plan.signed import WEIGHT
from headrace.plan.split import split
from headrace.plan.unique import key_of
from headrace.types import BIGINT


@dataclass(frozen=True, eq=False)
class Input:
    """Rows whose changes fill states."""

    name: str
    """The stream its changes come by as, in the pipelines."""
    rows: Node
    """Over tables, and over states of lower layers."""
    pipelines: tuple[StreamPipeline, ...]
    emitted: tuple[Node, Column] | None = None
    """The rows as they are in their own state, and how often each is there, if they are not an exact function of what
    they are of."""

    def delta(self, times: Mapping[Ref, Time]) -> Delta | None:
        """How they change when some references have changed, and lie so."""
        deltas = Deltas(times)
        return deltas.of(self.rows) if self.emitted is None else again(deltas, self.rows, *self.emitted)


@dataclass(frozen=True, eq=False)
class Step:
    """What a change does to one state."""

    state: str
    rows: Node
    """The rows to add to it, over the changes of tables and of lower states, and over what these are and were."""


@dataclass(frozen=True, eq=False)
class LayeredPlan:
    """A plan, cut into layers."""

    states: tuple[State, ...]
    inputs: tuple[Input, ...]
    """Lower ones first."""
    upper: Node
    order: tuple[Reason, ...] = ()
    """Whether some LIMIT leaves it open which rows it takes."""
    answer: str | None = None
    """The state that has the rows of the answer themselves, with how often each is there, if they are kept."""
    key: tuple[Column, ...] = ()
    """The columns of the answer no two rows share, if there are such."""

    def steps(self, changed: Collection[Ref], lie: Time = "before") -> list[Step]:
        """What a change of some tables does to states, in order; ``changed`` lie as they were before, or as they are
        now. States lie as they were."""
        times: dict[Ref, Time] = dict.fromkeys(changed, lie)
        found: list[Step] = []
        for one in self.inputs:
            delta = one.delta(times)
            if delta is None:
                continue
            for pipeline in one.pipelines:
                found.append(Step(pipeline.state, _over(pipeline.plan, one.name, delta)))
            times |= {StateRef(pipeline.state): "before" for pipeline in one.pipelines}
        return found

    def first_steps(self, changed: Collection[Ref] = ()) -> list[Step]:
        """What states begin with, in order: of all rows that there are, once tables are ``changed`` that lie as they
        were before."""
        found = []
        single = {state.name for state in self.states if not state.keys}
        deltas = Deltas(dict.fromkeys(changed, "before"))
        for one in self.inputs:
            weight = Column.fresh(WEIGHT, BIGINT)
            now = deltas.at(one.rows, "now") if changed else one.rows
            every = Project(now, (*((c, c) for c in now.output), (weight, Literal(BIGINT, 1))))
            for pipeline in one.pipelines:
                rows = _over(pipeline.plan, one.name, Delta(every, weight))
                if pipeline.state in single and isinstance(rows, Filter):
                    rows = rows.child  # one of nothing but zeros: a state without keys has a row, also of no rows
                found.append(Step(pipeline.state, rows))
        return found

    def as_split(self) -> SplitPlan:
        """Its states and what reads them."""
        return SplitPlan(self.states, (), (), self.upper)


def layered(root: Node, *, answer: bool = False) -> LayeredPlan:
    """Cut a plan over tables that change. Ties of a LIMIT are broken by all columns.

    With the ``answer`` its rows are kept beside what they are made of: what is added to that state is how they change.
    """
    found = _Layering(answer).run(rewrite_plan(root, settled))
    return replace(found, order=tuple(of_order(root)), key=key_of(root, {}) or ())


class _Layering:
    def __init__(self, answer: bool) -> None:
        self._answer = answer
        self._states: list[State] = []
        self._inputs: list[Input] = []

    def run(self, root: Node) -> LayeredPlan:
        body = _body(root)
        if isinstance(body, Aggregate) and not (self._answer and is_inexact(body)):
            upper = self._cut(_replaced(root, {id(body): replace(body, child=self._kept(body.child))}))
        else:
            rows = self._kept(body)
            upper = _replaced(root, {id(body): rows if _is_read(rows) else self._counted(rows)})
        answer = None
        if self._answer:
            self._with_times(upper)
            answer = self._states[-1].name
        return LayeredPlan(tuple(self._states), tuple(self._inputs), upper, answer=answer)

    def _kept(self, node: Node) -> Node:
        """The node with all groupings inside that can be states of their own, and all that is inexact."""
        while ready := _ready(node):
            groupings = [one for one in ready if isinstance(one, Aggregate) and _adds_up(one)]
            if groupings:
                node = self._cut(node, groupings)
            else:
                node = _replaced(node, {id(one): self._emitted(one) for one in ready})
        return node

    def _emitted(self, node: Node) -> Node:
        """An inexact node's rows, as they were emitted."""
        counted, outs = self._with_times(node)
        times = Column.fresh("times", BIGINT)
        emitted = Project(counted, (*outs, (times, counted.output[-1])))
        self._inputs[-1] = replace(self._inputs[-1], emitted=(emitted, times))
        each_once = isinstance(node, Aggregate)
        return Project(counted if each_once else Repeat(counted, counted.output[-1]), outs)

    def _counted(self, rows: Node) -> Node:
        """Rows as they are, kept with how often each is there."""
        counted, outs = self._with_times(rows)
        return Project(Repeat(counted, counted.output[-1]), outs)

    def _with_times(self, rows: Node) -> tuple[Node, tuple[tuple[Column, Expr], ...]]:
        """A state of rows, whose last column is how often each is there; and their columns from it."""
        keys = tuple((Column.fresh(c.name, c.type.plain), c) for c in rows.output)
        times = Column.fresh("times", BIGINT)
        counted = self._cut(Aggregate(rows, keys, ((times, Agg(BIGINT, "count", ())),)))
        return counted, tuple((c, k) for c, (k, _) in zip(rows.output, keys, strict=True))

    def _cut(self, root: Node, groupings: Sequence[Aggregate] | None = None) -> Node:
        """The plan with these groupings, or the lowest one of its top, as finals over states."""
        if groupings is None:
            groupings = [node for node in walk_plan(root) if isinstance(node, Aggregate)][-1:]
        named: dict[int, Leaf] = {}
        for grouping in groupings:
            if id(grouping.child) not in named:
                name = f"x{len(self._inputs) + len(named)}"
                fields = tuple(f"c{i}" for i in range(len(grouping.child.output)))
                named[id(grouping.child)] = Leaf(ChangeRef(name), fields, grouping.child.output)
        instead = {id(g): replace(g, child=named[id(g.child)]) for g in groupings}
        signed = {leaf.ref for leaf in named.values()}
        found = split(_replaced(root, instead), signed=signed, first=len(self._states))
        below = {named[id(g.child)].relation: g.child for g in groupings}
        for name, rows in below.items():
            pipelines = tuple(p for p in found.streams if p.stream == name)
            self._inputs.append(Input(name, rows, pipelines))
        self._states += found.states
        return found.upper


def _body(root: Node) -> Node:
    """What lies below that which sorts, filters and computes of an answer's rows.

    So does a window of all rows: it is computed when it is read, not at each change.
    """
    node = top = root
    while isinstance(node, Project | Sort | Filter) or (isinstance(node, Window) and not node.partition):
        top = node.child if isinstance(node, Window) else top
        node = node.child
    if isinstance(node, Aggregate):
        return node
    node = top  # filters stay with rows that are not grouped: fewer are kept
    while isinstance(node, Sort) or (isinstance(node, Project) and _sorts(node)):
        node = node.child
    return node


def _sorts(node: Node) -> bool:
    """Whether a sort stands below projections."""
    while isinstance(node, Project):
        node = node.child
    return isinstance(node, Sort)


def _is_read(rows: Node) -> bool:
    """Whether queries read rows from states as fast as from rows that are kept."""
    parts = (Leaf, Project, Filter, UnionAll, Repeat)
    return all(isinstance(node, parts) for node in walk_plan(rows)) and not leaves(rows, TableRef)


def _ready(root: Node) -> list[Node]:
    """What is to be a state of its own, and has nothing below it that is."""
    found: list[Node] = []
    done: dict[int, bool] = {}
    for node in walk_plan(root):
        below = any(done[id(child)] for child in node.children)
        is_one = (_adds_up(node) or is_inexact(node)) and _changes(node)
        if is_one and not below:
            found.append(node)
        done[id(node)] = below or is_one
    return found


def _changes(node: Node) -> bool:
    """Whether a node reads what changes."""
    return any(isinstance(leaf.ref, TableRef | StateRef) for leaf in leaves(node))


def _adds_up(node: Node) -> bool:
    """Whether a node is a grouping that is kept by adding up."""
    if not isinstance(node, Aggregate):
        return False
    plain = all(c.type.is_groupable for c, _ in node.keys)
    return plain and all(is_mergeable(agg, monotone=False) for _, agg in node.aggs)


def _over(pipeline: Node, name: str, delta: Delta) -> Node:
    """A pipeline over the change itself instead of the stream it comes by as."""
    (leaf,) = (leaf for leaf in leaves(pipeline, ChangeRef) if leaf.relation == name)
    given: list[Column] = [*delta.node_rows, delta.weight]
    by_field: Mapping[str, Expr] = {f"c{i}": c for i, c in enumerate(given[:-1])} | {WEIGHT: given[-1]}
    outs = tuple((c, by_field[f]) for f, c in zip(leaf.fields, leaf.scanned, strict=True))
    return _replaced(pipeline, {id(leaf): Project(delta.rows, outs)})


def _replaced(root: Node, instead: Mapping[int, Node]) -> Node:
    done: dict[int, Node] = dict(instead)

    def visit(node: Node) -> Node:
        if id(node) not in done:
            done[id(node)] = map_children(node, visit)
        return done[id(node)]

    return visit(root)
