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

from headrace.plan.delta.changes import Delta, Deltas, Time, rule, together, weighed
from headrace.plan.exprs import Call, Column, Expr, all_of
from headrace.plan.nodes import Aggregate, Join, Node, Project, SetOperation, Sort, SortKey, SparkSql, UnionAll
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


@rule(Sort, SparkSql)
def whole(deltas: Deltas, node: Node) -> Delta | None:
    """Run twice, over all rows."""
    branches = [weighed(deltas.at(settled(node), time), node, weight) for time, weight in BOTH]
    return together(node, branches)


def settled(node: Node) -> Node:
    """A sort that leaves nothing to chance: ties are broken by all columns."""
    if not isinstance(node, Sort):
        return node
    keys = {k.expr for k in node.keys}
    more = tuple(SortKey(c, False, True) for c in node.output if c not in keys and not c.type.is_nested)
    return replace(node, keys=(*node.keys, *more))


def distinct(rows: Node, exprs: Sequence[Expr]) -> Aggregate:
    """The values of some expressions over rows, each once."""
    return Aggregate(rows, tuple((Column.fresh(f"k{i}", e.type.plain), e) for i, e in enumerate(exprs)), ())


def among(rows: Node, columns: Sequence[Column], keys: Node) -> Join:
    """The rows whose columns are one of the keys."""
    pairs = zip(columns, keys.output, strict=True)
    return Join("semi", rows, keys, all_of([Call(BOOLEAN, "<=>", (c, k)) for c, k in pairs]))
