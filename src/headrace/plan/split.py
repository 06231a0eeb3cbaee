"""Split a view's plan between inserts and queries (000 §4.2.2-4.2.4).

An insert runs a *stream pipeline*: from the stream's scan up to the first
breaker, which must be a grouping, leaving partial state rows. What no stream
reaches is a *static pipeline*, run once when the view is made. Everything above
the groupings is the *upper* pipeline, run by queries over the merged states.

    stream ─ filter ─ probe static ─ partial grouping ─▶ state ─ merge ─ upper ─▶ answer
             └────────── each insert ────────────────┘           └─ each query ─┘

Which plans can be cut at all, ``plan/splittable.py`` says.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from headrace.errors import NotYetSupported, ViewRefused
from headrace.plan.aggregates import decompose, is_mergeable, join_on_keys, merge, without_zeros
from headrace.plan.exprs import TRUE, Agg, Call, Column, Expr, Literal, all_of, fresh_id
from headrace.plan.keys import key_label, partial_label, time_key, value_name
from headrace.plan.nodes import (
    Aggregate,
    Filter,
    Join,
    Leaf,
    Node,
    Project,
    Repeat,
    UnionAll,
    Values,
    map_children,
    reads_ungrouped,
    streams_in,
    walk_plan,
    with_a_column,
)
from headrace.plan.pipelines import SplitPlan, State, StateKind, StaticPipeline, StreamPipeline
from headrace.plan.refs import BuildRef, Ref, StateRef
from headrace.plan.signed import WEIGHT, is_of_each, is_of_many, is_signed, of_many, values_of, with_weights
from headrace.plan.splittable import check
from headrace.types import BIGINT, BOOLEAN, INT


def split(root: Node, retain: int | None = None, signed: Collection[Ref] = (), first: int = 0) -> SplitPlan:
    """Cut a plan that reads streams; :class:`ViewRefused` names the rule it breaks.

    ``retain`` is for how long groups are kept, in microseconds: then each grouping needs a key that is a time.
    ``signed`` names those of the plan's streams whose rows may be taken back. Their batches have a column more than
    the plan reads, ``plan/signed.py:WEIGHT``, and the states of groupings of such rows are not monotone. States are
    numbered from ``first`` on.
    """
    if retain is not None and signed:
        raise NotYetSupported("to retain groups of rows that may be taken back", hint="leave retain out")
    return Splitter(retain, signed, first).run(root)


class Splitter:
    """One walk from the root: below a first grouping everything becomes pipelines."""

    def __init__(self, retain: int | None, signed: Collection[Ref] = (), first: int = 0) -> None:
        self._first = first
        self._retain = retain
        self._signed = signed
        self.states: list[State] = []
        self.streams: list[StreamPipeline] = []
        self.statics: list[StaticPipeline] = []
        self._cut: dict[int, Node] = {}
        self._static: dict[int, Leaf] = {}
        self._families: dict[int, _Family] = {}

    def run(self, root: Node) -> SplitPlan:
        self._check(root)
        self._families = _families(root, self._signed)
        upper = self._upper(root)
        return SplitPlan(tuple(self.states), tuple(self.streams), tuple(self.statics), upper, self._retain)

    def _check(self, root: Node) -> None:
        check(root)

    def _upper(self, node: Node) -> Node:
        if id(node) in self._cut:
            return self._cut[id(node)]
        if isinstance(node, Aggregate) and reads_ungrouped(node.child):
            done = self._break(node)
        else:
            done = map_children(node, self._upper)
        self._cut[id(node)] = done
        return done

    def _break(self, node: Aggregate) -> Node:
        """Replace a first grouping by its finals over merged states."""
        family = self._families[id(node)]
        if family.pieces is None:
            family.pieces = pieces_of(self._materialise_statics(node.child))
            if family.weight is not None:
                family.pieces = [p.weighted(self._signed, family.weight) for p in family.pieces]
            self._groups(family)
        assert family.groups is not None
        chosen = family.places(node)
        merged = family.rows(family.groups, chosen, keyed=bool(node.keys))
        by_name = {c.name: c for c in merged.output}
        keys = dict(zip(chosen, merged.output, strict=False))
        finals: dict[int, Expr] = {}
        for out, agg in node.aggs:
            if family.adds_up(agg):
                parts = decompose(agg, family.weight)
                finals[out.id] = parts.final([by_name[family.partials[p].name] for p in parts.partials])
        for out, agg in node.aggs:
            if not family.adds_up(agg):
                merged, finals[out.id] = self._values(family, chosen, merged, agg)
        outs = [(out, e if isinstance(e, Literal) else keys[family.place(e)]) for out, e in node.keys]
        return Project(merged, (*outs, *((out, finals[out.id]) for out, _ in node.aggs)))

    def _groups(self, family: _Family) -> None:
        """The state of one row a group of the finest keys, and its pipelines."""
        partials = family.partials
        for agg in family.aggs:
            for p in decompose(agg, family.weight).partials if family.adds_up(agg) else ():
                if p.fn != "rest":
                    partials.setdefault(p, Column(p.type, fresh_id(), f"a{len(partials)}"))
        if (not family.keys and not partials) or self._retain is not None or family.weight is not None:
            # A global aggregate must say that rows came even when no partial column does; rows that come too
            # late for a group are told by their number, and so is a group of which no row is left.
            partials.setdefault(family.counted, Column(BIGINT, fresh_id(), f"a{len(partials)}"))
        # Last, so that the others have the names they had in states of before there were such columns.
        for rest in [replace(p, fn="rest") for p in partials if p.fn == "mean"]:
            partials[rest] = Column(rest.type, fresh_id(), f"a{len(partials)}")
        family.groups = state = self._state(family, "groups", family.keys, partials)
        for piece in family.pieces or ():
            self.streams.append(StreamPipeline(piece.stream, state.name, piece.grouped(family.keys, partials, state)))

    def _values(self, family: _Family, chosen: Sequence[int], merged: Node, agg: Agg) -> tuple[Node, Expr]:
        """The value of an aggregate that needs its argument values, joined to the groups."""
        values = agg if family.weight is None else values_of(agg)
        if values not in family.values:
            family.values[values] = self._value_state(family, values)
        state, inputs = family.values[values]
        n = len(chosen)
        rows = family.rows(state, [*chosen, *range(len(family.keys), len(state.keys))])
        if not state.monotone:
            # Without any key there is a row, whatever it says.
            rows = Filter(rows, Call(BOOLEAN, ">", (rows.output[-1], Literal(BIGINT, 0))))
        out = Column.fresh(agg.fn, agg.type)
        grouped: Node
        if not state.monotone and is_of_many(agg):
            grouped = of_many(rows, n, agg, out)
        else:
            if not agg.distinct and not is_of_each(agg):
                rows = Repeat(rows, rows.output[-1])
            keys = tuple((Column.fresh(c.name, c.type), c) for c in rows.output[:n])
            args = tuple(rows.output[n : n + len(agg.args)])
            marked = rows.output[n + len(agg.args)] if inputs > len(agg.args) else None
            final = replace(agg, args=args, distinct=False, filter=marked)
            grouped = Aggregate(rows, keys, ((out, final),))
        joined = join_on_keys(merged, grouped, list(zip(merged.output[:n], grouped.output[:n], strict=True)))
        value: Expr = out
        if agg.fn == "count":
            value = Call(BIGINT, "coalesce", (out, Literal(BIGINT, 0)))
        return joined, value

    def _value_state(self, family: _Family, agg: Agg) -> tuple[State, int]:
        """A state of an aggregate's argument values, and how many columns they are."""
        condition: Expr = TRUE
        inputs = list(agg.args)
        if agg.distinct and agg.fn == "count":
            # Rows that do not count need not be kept: a group without any counts none.
            present: list[Expr] = [Call(BOOLEAN, "isnotnull", (a,)) for a in agg.args]
            condition = all_of([*([agg.filter] if agg.filter else []), *present])
        elif agg.filter is not None:
            # What the aggregate makes of no rows is its own to say, so they are kept, marked.
            inputs.append(agg.filter)
        if not inputs and agg.distinct:
            inputs.append(TRUE)  # of constants alone: a state has a column, and all its rows are marked
        values = tuple((Column.fresh(value_name(a, i), a.type), a) for i, a in enumerate(inputs))
        kind: StateKind = "distinct" if agg.distinct and family.weight is None else "multiset"
        partials = {} if kind == "distinct" else {family.counted: Column(BIGINT, fresh_id(), "a0")}
        state = self._state(family, kind, (*family.keys, *values), partials)
        for piece in family.pieces or ():
            plan = piece.filtered(condition).grouped((*family.keys, *values), partials, state)
            self.streams.append(StreamPipeline(piece.stream, state.name, plan))
        return state, len(inputs)

    def _state(
        self,
        family: _Family,
        kind: StateKind,
        keys: Sequence[tuple[Column, Expr]],
        partials: dict[Agg, Column],
    ) -> State:
        named = tuple(Column(c.type, fresh_id(), f"k{i}") for i, (c, _) in enumerate(keys))
        labels = (*(key_label(c, e) for c, e in keys), *(partial_label(a, family.weight) for a in partials))
        name = f"s{self._first + len(self.states)}"
        grouping = name if family.groups is None else family.groups.name
        time = None if self._retain is None else time_key(family.keys)
        kept = tuple((c, a) for a, c in partials.items())
        state = State(name, kind, named, kept, labels, grouping, time, monotone=family.weight is None)
        for column in (*named, *partials.values()):
            if not column.type.is_groupable:
                raise ViewRefused(
                    "STATE_TYPE_NOT_SUPPORTED",
                    f"the view would keep {column.type.sql} values in its state, and tell them apart there",
                    hint="group by and aggregate plain columns, or arrays and structs without floats or maps inside",
                )
        self.states.append(state)
        return state

    def _materialise_statics(self, node: Node) -> Node:
        """Replace each largest stream-free join input below the grouping by a scan of its result."""

        def visit(part: Node) -> Node:
            if not streams_in(part):
                return part  # a branch of a UNION ALL: run once, whole
            if isinstance(part, Join):
                left, right = (
                    self._static_scan(side) if not streams_in(side) else visit(side) for side in (part.left, part.right)
                )
                return part.with_children((left, right))
            return map_children(part, visit)

        return visit(node)

    def _static_scan(self, plan: Node) -> Node:
        if isinstance(plan, Values):
            return plan
        if id(plan) not in self._static:
            kept = with_a_column(plan)
            pipeline = StaticPipeline(f"b{len(self.statics)}", kept)
            self.statics.append(pipeline)
            self._static[id(plan)] = Leaf(
                BuildRef(pipeline.name), tuple(f.name for f in pipeline.schema), tuple(kept.output)
            )
        return self._static[id(plan)]


@dataclass(eq=False)
class _Family:
    """First groupings of the same rows that one set of states serves.

    The finest one's keys are kept; a coarser grouping's partial rows are those, merged further
    (merging is closed). Grouping sets are such a family.
    """

    keys: tuple[tuple[Column, Expr], ...]
    aggs: list[Agg]
    pieces: list[_Piece] | None = None
    groups: State | None = None
    partials: dict[Agg, Column] = field(default_factory=dict)
    values: dict[Agg, tuple[State, int]] = field(default_factory=dict)
    weight: Column | None = None
    """How often each row of the pieces counts, if some may be taken back."""

    @property
    def counted(self) -> Agg:
        """How many rows there are."""
        return decompose(Agg(BIGINT, "count", ()), self.weight).partials[0]

    def adds_up(self, agg: Agg) -> bool:
        """Whether an aggregate is kept in partial columns of the groups."""
        return is_mergeable(agg, monotone=self.weight is None)

    def place(self, key: Expr) -> int:
        return next(i for i, (_, e) in enumerate(self.keys) if e == key)

    def places(self, node: Aggregate) -> list[int]:
        """Where the keys of one of the family stand among the finest; constants are kept only for want of others."""
        wanted = _keys(node) or [e for _, e in node.keys[:1] if e in (k for _, k in self.keys)]
        return sorted(map(self.place, wanted))

    def rows(self, state: State, chosen: Sequence[int], *, keyed: bool = False) -> Node:
        """The state's rows merged to these of its keys; a ``keyed`` grouping of no rows has no row."""
        rows: Node = Leaf.of(StateRef(state.name), state.schema)
        if len(chosen) == len(state.keys):
            return rows
        keys = [rows.output[i] for i in chosen]
        partials = [(c, a) for c, (_, a) in zip(rows.output[len(state.keys) :], state.partials, strict=True)]
        if keys or not keyed:
            return merge(rows, keys, partials)
        one = Column.fresh("one", INT)
        rows = Project(rows, ((one, Literal(INT, 1)), *((c, c) for c, _ in partials)))
        merged = merge(rows, [one], partials)
        return Project(merged, tuple((Column.fresh(c.name, c.type), c) for c in merged.output[1:]))


def _families(root: Node, signed: Collection[Ref]) -> dict[int, _Family]:
    """The family of each first grouping, by the grouping's id."""
    by_input: dict[int, list[Aggregate]] = {}
    for node in walk_plan(root):
        if isinstance(node, Aggregate) and reads_ungrouped(node.child):
            by_input.setdefault(id(node.child), []).append(node)
    found: dict[int, _Family] = {}
    for group in by_input.values():
        finest = max(group, key=lambda n: len(_keys(n)))
        if len(group) > 1 and all(set(_keys(n)) <= set(_keys(finest)) for n in group):
            shared = _Family(_kept(finest), list(dict.fromkeys(a for n in group for _, a in n.aggs)))
            found.update((id(n), shared) for n in group)
        else:
            found.update((id(n), _Family(_kept(n), [a for _, a in n.aggs])) for n in group)
        if is_signed(finest.child, signed):
            for n in group:
                found[id(n)].weight = Column.fresh(WEIGHT, BIGINT)
    return found


def _keys(node: Aggregate) -> list[Expr]:
    """What a grouping is by, constants apart."""
    return [e for _, e in node.keys if not isinstance(e, Literal)]


def _kept(node: Aggregate) -> tuple[tuple[Column, Expr], ...]:
    """The keys a state has; for want of others a constant, so that no rows leave no group."""
    return tuple((c, e) for c, e in node.keys if not isinstance(e, Literal)) or node.keys[:1]


@dataclass(frozen=True, eq=False)
class _Piece:
    """What lies below a grouping of a single stream's rows, or of static rows."""

    stream: str | None
    plan: Node

    def filtered(self, condition: Expr) -> _Piece:
        return self if condition == TRUE else replace(self, plan=Filter(self.plan, condition))

    def weighted(self, signed: Collection[Ref], weight: Column) -> _Piece:
        return replace(self, plan=with_weights(self.plan, signed, weight))

    def grouped(self, keys: Sequence[tuple[Column, Expr]], partials: dict[Agg, Column], state: State) -> Node:
        """Partial grouping of the piece's rows, put out in the state's columns."""
        outs = tuple((Column.fresh(s.name, s.type), e) for s, (_, e) in zip(state.keys, keys, strict=True))
        aggs = tuple((Column.fresh(c.name, c.type), a) for a, c in partials.items())
        grouped = Aggregate(self.plan, outs, aggs)
        return grouped if state.monotone else without_zeros(grouped, [c for c, _ in aggs])


def pieces_of(lower: Node) -> list[_Piece]:
    """The branches of a grouping's input by stream, each stream once: one pipeline fills one state."""
    found: dict[str | None, list[Node]] = {}
    for piece in _branches(lower):
        found.setdefault(piece.stream, []).append(piece.plan)
    return [
        _Piece(stream, plans[0] if len(plans) == 1 else UnionAll(tuple(plans), plans[0].output))
        for stream, plans in found.items()
    ]


def _branches(lower: Node) -> list[_Piece]:
    """The branches of a grouping's input, one stream each (a UNION ALL breaks no pipeline)."""
    if len(streams_in(lower)) == 1 and not any(isinstance(n, UnionAll) for n in walk_plan(lower)):
        return [_Piece(next(iter(streams_in(lower))), lower)]
    # The outermost union first: taking a branch of an inner one would repeat the outer's other branches.
    for node in reversed(list(walk_plan(lower))):
        if isinstance(node, UnionAll) and streams_in(node):
            found = []
            for branch in node.inputs:
                aligned = Project(branch, tuple(zip(node.columns, branch.output, strict=True)))
                found += _branches(_replace(lower, node, aligned))
            return found
    streams = streams_in(lower)
    return [_Piece(next(iter(streams)) if streams else None, lower)]


def _replace(root: Node, old: Node, new: Node) -> Node:
    def visit(node: Node) -> Node:
        return new if node is old else map_children(node, visit)

    return visit(root)
