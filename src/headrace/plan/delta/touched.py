"""Everything else, by touched key: with K the keys in the change of the input, the operator is run over the rows of K
as they are now, and as they were.

It is right for whatever treats rows of different keys apart and is an exact function of its input: groupings by their
keys, DISTINCT by all columns, INTERSECT and EXCEPT by all columns. What has no key - a global aggregate, a LIMIT - is
run whole, twice. Ties of a LIMIT are broken by all columns: both runs choose alike.

What is no exact function of its input (:func:`is_inexact`) is not run as it was: another run need not give what the
first one gave. What it *emitted* is kept, and its change is what it gives now without that (:func:`again`).

K is compared by ``<=>``: NULL is a key like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.plan.delta.changes import Delta, Deltas, Time, rule, together, weighed
from headrace.plan.exprs import Agg, Call, Column, Expr, Literal, all_of
from headrace.plan.nodes import Aggregate, Join, Node, Project, SetOperation, Sort, SortKey, SparkSql, UnionAll
from headrace.types import BIGINT, BOOLEAN

BOTH: Sequence[tuple[Time, int]] = (("now", 1), ("before", -1))


_EXACT = {"count", "min", "max", "bool_and", "bool_or"}


def is_exact(agg: Agg) -> bool:
    """Whether an aggregate gives the same for the same rows, whatever their order."""
    if agg.template is not None:
        return False
    return agg.fn in _EXACT or (agg.fn in ("sum", "avg") and not agg.args[0].type.is_float)


def is_inexact(node: Node) -> bool:
    """Whether a node may give other rows when it is run again over the same ones: then what it emitted is kept."""
    if isinstance(node, Aggregate):
        return not all(is_exact(agg) for _, agg in node.aggs)
    return isinstance(node, SparkSql) or (isinstance(node, Sort) and node.limit is not None)


def again(deltas: Deltas, node: Node, emitted: Node, times: Column) -> Delta | None:
    """The change of an inexact node: what it gives now, without what it emitted, which has so many ``times`` of each.

    ``emitted`` has the node's own columns. A grouping is run again for the keys that are touched, all else whole.
    """
    if not deltas.touches(node):
        return None
    now = deltas.at(settled(node), "now")
    if isinstance(node, Aggregate) and node.keys:
        below = deltas.of(node.child)
        assert below is not None
        columns = [c for c, _ in node.keys]
        keys = distinct(below.rows, [e for _, e in node.keys])
        now, emitted = among(now, columns, keys), among(emitted, columns, keys)
    gone = Column.fresh("gone", BIGINT)
    less = Call(BIGINT, "*", (times, Literal(BIGINT, -1)))
    left = Project(emitted, (*((c, c) for c in node.output), (gone, less)))
    return together(node, [weighed(now, node, 1), weighed(left, node, gone)])


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


@rule(Sort)
def sort(deltas: Deltas, node: Sort) -> Delta | None:
    """With a limit it is run twice, over all rows."""
    if node.limit is None and not node.offset:
        return deltas.of(node.child)
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
