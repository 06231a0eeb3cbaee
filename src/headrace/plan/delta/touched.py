"""Everything else, by touched key: with K the keys in the change of the input, the operator is run over the rows of K
as they are now, and as they were.

It is right for whatever treats rows of different keys apart and is an exact function of its input: groupings by their
keys, windows by their partitions, DISTINCT by all columns, INTERSECT and EXCEPT by all columns. What has no key - a
global aggregate, a window without PARTITION BY, a LIMIT - is run whole, twice. Ties of a LIMIT, or in a window, are
broken by all columns: both runs choose alike.

What is no exact function of its input (:func:`is_inexact`) is not run as it was: another run need not give what the
first one gave. What it *emitted* is kept, and its change is what it gives now without that (:func:`again`).

K is compared by ``<=>``: NULL is a key like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from headrace.plan.delta.changes import Delta, Deltas, Time, rule, together, weighed
from headrace.plan.exprs import Agg, Call, Column, Expr, Literal, SortKey, WindowCall, WindowFrame, all_of
from headrace.plan.nodes import Aggregate, Join, Node, Project, SetOperation, Sort, SparkSql, UnionAll, Window
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
    if isinstance(node, Window):
        return not all(_is_told(_by_rows(call)) for _, call in node.functions)
    return isinstance(node, SparkSql) or (isinstance(node, Sort) and node.limit is not None)


def _is_told(call: WindowCall) -> bool:
    """Whether a window function of a settled window gives the same again.

    Where a frame ends with all rows that tie with one, which of them is the last nobody says.
    """
    if call.fn in ("sum", "avg"):
        return not call.args[0].type.is_float
    return not (call.fn.endswith("_value") and call.frame is not None and call.frame.unit == "range")


def again(deltas: Deltas, node: Node, emitted: Node, times: Column) -> Delta | None:
    """The change of an inexact node: what it gives now, without what it emitted, which has so many ``times`` of each.

    ``emitted`` has the node's own columns. A grouping is run again for the keys that are touched, all else whole.
    """
    if not deltas.touches(node):
        return None
    if isinstance(node, Window):
        now = over_touched(deltas, settled(node), "now")
        if node.partition:
            below = deltas.of(node.child)
            assert below is not None
            emitted = among(emitted, node.partition, distinct(below.rows, node.partition))
        return _instead(node, now, emitted, times)
    now = deltas.at(settled(node), "now")
    if isinstance(node, Aggregate) and node.keys:
        below = deltas.of(node.child)
        assert below is not None
        columns = [c for c, _ in node.keys]
        keys = distinct(below.rows, [e for _, e in node.keys])
        now, emitted = among(now, columns, keys), among(emitted, columns, keys)
    return _instead(node, now, emitted, times)


def _instead(node: Node, now: Node, emitted: Node, times: Column) -> Delta | None:
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


@rule(Window)
def window(deltas: Deltas, node: Window) -> Delta | None:
    """The partitions of changed rows; without PARTITION BY all rows are one."""
    node = settled(node)
    branches = [weighed(over_touched(deltas, node, time), node, weight) for time, weight in BOTH]
    return together(node, branches)


def over_touched(deltas: Deltas, node: Window, time: Time) -> Node:
    """A window over the partitions of changed rows, as they are at a time."""
    rows = deltas.at(node.child, time)
    if node.partition:
        below = deltas.of(node.child)
        assert below is not None
        rows = among(rows, node.partition, distinct(below.rows, node.partition))
    return replace(node, child=rows)


@rule(Sort)
def sort(deltas: Deltas, node: Sort) -> Delta | None:
    """With a limit it is run twice, over all rows."""
    if node.limit is None and not node.offset:
        return deltas.of(node.child)
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
        return replace(call, frame=WindowFrame("rows", None, 0))
    if call.fn == "last_value" and frame.end is None and (frame.start is None or frame.start <= 0):
        return replace(call, frame=WindowFrame("rows", 0, None))
    return call


def distinct(rows: Node, exprs: Sequence[Expr]) -> Aggregate:
    """The values of some expressions over rows, each once."""
    return Aggregate(rows, tuple((Column.fresh(f"k{i}", e.type.plain), e) for i, e in enumerate(exprs)), ())


def among(rows: Node, columns: Sequence[Column], keys: Node) -> Join:
    """The rows whose columns are one of the keys."""
    pairs = zip(columns, keys.output, strict=True)
    return Join("semi", rows, keys, all_of([Call(BOOLEAN, "<=>", (c, k)) for c, k in pairs]))
