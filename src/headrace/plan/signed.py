"""Rows that may be taken back: they come with a weight, and what is kept of them can be left again.

A row of weight n is n equal rows; one of -n takes n of them back, and may come before them. So whatever is kept must
add up, in any order, to what the rows that are left would have left:

    kept(rows) + kept(taken back)  ==  kept(rows without those)

Counts and exact sums do (``plan/aggregates.py:decompose``). The least of some values does not, nor does a sum of
doubles, which keeps an error of what it no longer holds. For those the values themselves are kept with their
multiplicities, once for all aggregates of the same argument, and a query computes the aggregates of them. Of a value
that is there n times it makes the partial row n equal rows would have left, and merges these as it merges any others.

The weight is a column of the input, ``WEIGHT``, a bigint that is not NULL; :func:`with_weights` takes it up through
whatever treats each row by itself. Input without one is *monotone*: nothing here touches it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from headrace.catalog.table import WEIGHT
from headrace.plan.aggregates import MERGEABLE, decompose, merge
from headrace.plan.exprs import Agg, Call, Cast, Column, Expr, Literal
from headrace.plan.moments import VARIANCES
from headrace.plan.nodes import Filter, InvalidPlan, Join, Leaf, Node, Project, UnionAll, leaves
from headrace.plan.refs import Ref
from headrace.types import BIGINT, DOUBLE

_ONCE = Literal(BIGINT, 1)


def is_signed(node: Node, signed: Collection[Ref]) -> bool:
    """Whether a plan reads input that has weights."""
    return any(leaf.ref in signed for leaf in leaves(node))


def with_weights(rows: Node, signed: Collection[Ref], weight: Column) -> Node:
    """The rows of a plan below a grouping with the weight of each; that of rows that never change is 1."""
    done: dict[int, tuple[Node, Expr]] = {}

    def visit(node: Node) -> tuple[Node, Expr]:
        if id(node) not in done:
            done[id(node)] = carried(node) if is_signed(node, signed) else (node, _ONCE)
        return done[id(node)]

    def carried(node: Node) -> tuple[Node, Expr]:
        if isinstance(node, Leaf):
            own = Column.fresh(WEIGHT, BIGINT)
            return replace(node, fields=(*node.fields, WEIGHT), scanned=(*node.scanned, own)), own
        if isinstance(node, UnionAll):
            own = Column.fresh(WEIGHT, BIGINT)
            inputs = tuple(beside(b, Column.fresh(WEIGHT, BIGINT)) for b in node.inputs)
            return UnionAll(inputs, (*node.columns, own)), own
        if isinstance(node, Join) and not is_signed(node.right, signed):
            left, its = visit(node.left)
            return replace(node, left=left), its
        if isinstance(node, Filter):
            child, its = visit(node.child)
            return replace(node, child=child), its
        if isinstance(node, Project):
            child, its = visit(node.child)
            own = Column.fresh(WEIGHT, BIGINT)
            return Project(child, (*node.exprs, (own, its))), own
        raise InvalidPlan(f"{type(node).__name__} does not treat each row by itself, so weights do not pass it")

    def beside(node: Node, own: Column) -> Node:
        below, its = visit(node)
        return Project(below, (*((c, c) for c in node.output), (own, its)))

    return beside(rows, weight)


def values_of(agg: Agg) -> Agg:
    """Whose values an aggregate is computed of: those of one argument and filter have the values that count there."""
    if agg.template is None and agg.fn in MERGEABLE and (agg.distinct or is_of_each(agg) or is_of_many(agg)):
        return Agg(BIGINT, "count", agg.args, distinct=True, filter=agg.filter)
    return agg


def is_of_each(agg: Agg) -> bool:
    """Whether it is the same however often a value is there."""
    return agg.template is None and agg.fn in ("min", "max", "bool_and", "bool_or")


def is_of_many(agg: Agg) -> bool:
    """Whether :func:`of_many` says it. An exact sum that is not kept as one has too many digits to be multiplied."""
    if agg.template is not None or agg.distinct:
        return False
    return agg.fn in VARIANCES or (agg.fn in ("sum", "avg") and agg.args[0].type.is_float)


def of_many(rows: Node, keys: int, agg: Agg, out: Column) -> Node:
    """An aggregate of each group of a multiset's rows: so many keys, the value, how often it is there."""
    by, (value, times) = rows.output[:keys], rows.output[keys:]
    alone = decompose(replace(agg, args=(value,), filter=None))
    number, none = value if value.type == DOUBLE else Cast(DOUBLE, value), Literal(DOUBLE, 0.0)
    total = Call(DOUBLE, "*", (number, Cast(DOUBLE, times)))
    left: dict[str, Expr] = {"count": times, "sum": total, "mean": number, "m2": none, "rest": none}
    partials = [(Column.fresh(f"a{i}", p.type), p) for i, p in enumerate(alone.partials)]
    each = Project(rows, (*((c, c) for c in by), *((c, left[p.fn]) for c, p in partials)))
    merged = merge(each, by, partials)
    groups = tuple((Column.fresh(c.name, c.type), c) for c in merged.output[:keys])
    return Project(merged, (*groups, (out, alone.final(merged.output[keys:]))))
