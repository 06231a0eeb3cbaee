"""Which plans can be split between inserts and queries: the rules of 000 §4.2.2-4.2.3.

Each has its own condition when a plan breaks it:

* ``STREAM_NOT_GROUPED``: the first breaker of every stream is a grouping;
* ``STREAM_ON_BUILD_SIDE``: a join with one stream side has it on the probe side;
* ``STREAM_JOIN_NOT_GROUPED``: a join of two streams has groupings below it, on both sides;
* ``SORT_BELOW_GROUPING``: no ORDER BY … LIMIT over a stream that is not grouped yet.

000 §4.2.3 refuses any sort with limit below a grouping; one above the *first*
grouping runs in the upper pipeline, from scratch at each query, so it is allowed here.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import ViewRefused
from headrace.plan.nodes import (
    Aggregate,
    Join,
    Leaf,
    Node,
    SetOperation,
    Sort,
    SparkSql,
    UnionAll,
    Window,
    is_leaf,
    leaves,
    streams_in,
    walk_plan,
)
from headrace.plan.refs import KeptRef, StreamRef


def check(root: Node) -> None:
    """Raise :class:`ViewRefused` unless every rule of 000 §4.2.2 holds."""
    grouped: dict[int, bool] = {}
    for node in walk_plan(root):
        grouped[id(node)] = _check_node(node, {id(c): grouped[id(c)] for c in node.children})
    if not grouped[id(root)]:
        raise ViewRefused(
            "STREAM_NOT_GROUPED",
            f"the view keeps rows of stream {_named(root)} without grouping them, which would store the whole stream",
            hint="group the stream (GROUP BY … or an aggregate); a plain filter or map is a query on the stream "
            "itself, not a view",
        )


def _check_node(node: Node, grouped: dict[int, bool]) -> bool:
    """Whether every stream below ``node`` passes a grouping; raises where a rule is broken."""
    below = [grouped[id(c)] for c in node.children]
    if isinstance(node, Leaf):
        return not is_leaf(node, StreamRef)
    if isinstance(node, Aggregate):
        return True
    if isinstance(node, Sort) and not below[0]:
        raise ViewRefused(
            "SORT_BELOW_GROUPING",
            f"ORDER BY … LIMIT (or LIMIT) over stream {_named(node)} comes before any grouping",
            hint="group the stream first and sort the groups",
        )
    if isinstance(node, Window) and not all(below):
        raise ViewRefused(
            "STREAM_NOT_GROUPED",
            f"{node.functions[0][1].fn}() OVER … looks at other rows of stream {_named(node)}, "
            "so all of them would have to be kept",
            hint="group the stream in a subquery or CTE first, and use window functions above the grouping",
        )
    if isinstance(node, SparkSql) and not all(below):
        raise ViewRefused(
            "STREAM_NOT_GROUPED",
            f"{node.reason} stands between stream {_named(node)} and its first grouping",
            hint="group the stream in a subquery or CTE first and use this above the grouping; below it a subquery may "
            "be a condition of its own ([NOT] IN, [NOT] EXISTS) or a value, correlated by equality if it aggregates",
        )
    if isinstance(node, SetOperation) and not all(below):
        raise ViewRefused(
            "STREAM_NOT_GROUPED",
            f"{node.kind.upper()} ALL counts the rows of stream {_named(node)}, so all of them would have to be kept",
            hint=f"write {node.kind.upper()} without ALL, or group the stream first",
        )
    if isinstance(node, UnionAll) and not all(below):
        _check_union(node, below)
    if isinstance(node, Join) and not all(below):
        _check_join(node, *below)
    return all(below)


def _check_union(node: UnionAll, below: Sequence[bool]) -> None:
    """Rows of one branch are added up as they arrive, so those of another may not change later."""
    for branch, grouped in zip(node.inputs, below, strict=True):
        if grouped and _live(branch):
            raise ViewRefused(
                "STREAM_NOT_GROUPED",
                f"a UNION ALL puts rows of stream {_named(node)} beside groups of {', '.join(_live(branch))}, "
                "which change as rows come",
                hint="group every branch before the UNION ALL, or none",
            )


def _check_join(node: Join, left: bool, right: bool) -> None:
    if _live(node.left) and _live(node.right):
        raise ViewRefused(
            "STREAM_JOIN_NOT_GROUPED",
            f"{', '.join(_live(node.left))} and {', '.join(_live(node.right))} are joined before both are grouped",
            hint="group each stream in a subquery or CTE, then join the groups",
        )
    if not right or node.kind == "full":
        words = {"left": "LEFT", "full": "FULL", "semi": "SEMI or IN/EXISTS", "anti": "ANTI or NOT EXISTS"}
        raise ViewRefused(
            "STREAM_ON_BUILD_SIDE",
            f"stream {_named(node)} is the stored side of a {words.get(node.kind, node.kind.upper())} join, "
            "so all of it would have to be kept",
            hint="put the stream on the preserved (left) side, or group it before the join",
        )


def _named(node: Node) -> str:
    return ", ".join(sorted(streams_in(node)))


def _live(node: Node) -> list[str]:
    """The streams and continuous views a plan reads: what may change without a statement about a table."""
    return sorted({leaf.relation for leaf in leaves(node, StreamRef, KeptRef)})
