"""Everything else, by touched key: with K the keys in the change of the input, the operator is run over the rows of K
as they are now, and as they were.

It is right for whatever treats rows of different keys apart and is an exact function of its input: groupings by their
keys, DISTINCT by all columns, INTERSECT and EXCEPT by all columns. What has no key - a global aggregate, a LIMIT - is
run whole, twice; so is what only Spark knows. Ties of a LIMIT are broken by all columns: both runs choose alike.

K is compared by ``<=>``: NULL is a key like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from headrace.plan.delta.changes import Delta, Deltas, Time, rule, together, weighed
from headrace.plan.exprs import Call, Column, Expr, Frame, SortKey, WindowCall, all_of
from headrace.plan.nodes import Aggregate, Join, Node, Project, SetOperation, Sort, SparkSql, UnionAll, Window
from headrace.types import BOOLEAN

BOTH: Sequence[tuple[Time, int]] = (("now", 1), ("before", -1))


@rule(Aggregate)
def aggregate(deltas: Deltas, node: Aggregate) -> Delta | None:
    below = deltas.of(node.child)
    assert below is not None
    keys = distinct(below.rows, [e for _, e in node.keys]) if node.keys else None
    branches = []
    for time, weight in BOTH:
        rows: Node = replace(node, child=deltas.at(node.child, time))
        if keys is not None:
            rows = among(rows, [c for c, _ in node.keys], keys)
        branches.append(weighed(rows, node, weight))
    return together(node, branches)


@rule(SetOperation)
def set_operation(deltas: Deltas, node: SetOperation) -> Delta | None:
    changes = [below for side in node.children if (below := deltas.of(side)) is not None]
    columns = tuple(Column.fresh(c.name, c.type.plain) for c in node.columns)
    parts = [Project(b.rows, tuple((Column.fresh(c.name, c.type), c) for c in b.node_rows)) for b in changes]
    keys = distinct(UnionAll(tuple(parts), columns), columns)
    branches = []
    for time, weight in BOTH:
        rows = replace(node, left=deltas.at(node.left, time), right=deltas.at(node.right, time))
        branches.append(weighed(among(rows, node.columns, keys), node, weight))
    return together(node, branches)


@rule(Window)
def window(deltas: Deltas, node: Window) -> Delta | None:
    """The partitions of changed rows; without PARTITION BY all rows are one."""
    node = settled(node)
    if not node.partition:
        return whole(deltas, node)
    below = deltas.of(node.child)
    assert below is not None
    keys = distinct(below.rows, node.partition)
    branches = []
    for time, weight in BOTH:
        rows = among(deltas.at(node.child, time), node.partition, keys)
        branches.append(weighed(replace(node, child=rows), node, weight))
    return together(node, branches)


@rule(Sort, SparkSql)
def whole(deltas: Deltas, node: Node) -> Delta | None:
    """Run twice, over all rows."""
    branches = [weighed(deltas.at(settled(node), time), node, weight) for time, weight in BOTH]
    return together(node, branches)


N = TypeVar("N", bound=Node)


def settled(node: N) -> N:
    """A sort, or a window, that leaves nothing to chance: ties are broken by all columns."""
    if isinstance(node, Sort):
        keys = {k.expr for k in node.keys}
        more = tuple(SortKey(c, False, True) for c in node.output if c not in keys and not c.type.is_nested)
        return replace(node, keys=(*node.keys, *more))
    if isinstance(node, Window) and not node.ties:
        told = {*node.partition, *(k.expr for k in node.order)}
        ties = tuple(SortKey(c, False, True) for c in node.child.output if c not in told)
        return replace(node, ties=ties, functions=tuple((c, _by_rows(f)) for c, f in node.functions))
    return node


def _by_rows(call: WindowCall) -> WindowCall:
    """The first value of a partition, or its last, is that whatever ties with a row."""
    frame = call.frame
    if frame is None or frame.unit == "rows" or call.ignore_nulls or call.filter is not None:
        return call
    if call.fn == "first_value" and frame.start is None and (frame.end is None or frame.end >= 0):
        return replace(call, frame=Frame("rows", None, 0))
    if call.fn == "last_value" and frame.end is None and (frame.start is None or frame.start <= 0):
        return replace(call, frame=Frame("rows", 0, None))
    return call


def distinct(rows: Node, exprs: Sequence[Expr]) -> Aggregate:
    """The values of some expressions over rows, each once."""
    return Aggregate(rows, tuple((Column.fresh(f"k{i}", e.type.plain), e) for i, e in enumerate(exprs)), ())


def among(rows: Node, columns: Sequence[Column], keys: Node) -> Join:
    """The rows whose columns are one of the keys."""
    pairs = zip(columns, keys.output, strict=True)
    return Join("semi", rows, keys, all_of([Call(BOOLEAN, "<=>", (c, k)) for c, k in pairs]))
