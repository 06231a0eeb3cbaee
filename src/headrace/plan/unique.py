"""Which columns no two rows of a plan share: the key its rows are read by.

A state has one row for each value of its keys. What filters, sorts and computes of these rows keeps the key, as long as
it puts all its columns out; so does a join with what has at most one row for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.plan.exprs import Call, Column, conjuncts
from headrace.plan.nodes import Aggregate, Filter, Join, Leaf, Node, Project, Sort
from headrace.plan.pipelines import State
from headrace.plan.refs import StateRef


def key_of(node: Node, states: Mapping[str, State]) -> tuple[Column, ...] | None:
    """The columns of a plan's rows that are their key, none where there is one row; None if there is no key."""
    match node:
        case Leaf():
            named = dict(zip(node.fields, node.scanned, strict=True))
            if isinstance(node.ref, StateRef):
                keys = [k.name for k in states[node.relation].keys]
                return tuple(named[k] for k in keys) if all(k in named for k in keys) else None
            return tuple(named[k] for k in node.key) if node.key and all(k in named for k in node.key) else None
        case Filter() | Sort():
            return key_of(node.child, states)
        case Project():
            below = key_of(node.child, states)
            shown: dict[int, Column] = {}
            for column, expr in node.exprs:
                if isinstance(expr, Column):
                    shown.setdefault(expr.id, column)
            if below is None or any(c.id not in shown for c in below):
                return None
            return tuple(shown[c.id] for c in below)
        case Aggregate():
            return tuple(c for c, _ in node.keys)
        case Join(kind="semi" | "anti"):
            return key_of(node.left, states)
        case Join(kind="inner" | "left"):
            left, right = (key_of(side, states) for side in node.children)
            if left is not None and _is_met(node, right):
                return left
            return right if node.kind == "inner" and right is not None and _is_met(node, left) else None
        case _:
            return None


def _is_met(join: Join, key: tuple[Column, ...] | None) -> bool:
    """Whether a join meets at most one row of the side that has this key: it compares all of it."""
    sides = [{c.id for c in side.output} for side in join.children]
    compared: set[int] = set()
    for part in conjuncts(join.condition):
        if isinstance(part, Call) and part.fn in ("=", "<=>"):
            ids = {c.id for c in part.args if isinstance(c, Column)}
            if len(ids) == 2 and all(ids & side for side in sides):
                compared |= ids
    return key is not None and {c.id for c in key} <= compared
