"""Which rows of a table a plan can use: those of some keys, where it compares the whole primary key with constants.

>>> from headrace.plan.refs import TableRef
>>> from headrace.types import BOOLEAN, INT, Field
>>> t = Leaf.of(TableRef("t", 7), (Field("k", INT), Field("a", INT)), key=("k",))
>>> one = Call(BOOLEAN, "=", (t.scanned[0], Literal(INT, 5)))
>>> [[[v.value for v in key] for key in keys] for keys in keys_asked(Filter(t, one)).values()]
[[[5]]]
>>> keys_asked(t)
{}
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from headrace.plan.exprs import Call, Cast, Column, Expr, Literal, SparkExpr, conjuncts, walk
from headrace.plan.exprs import columns as uses
from headrace.plan.nodes import Filter, Join, Leaf, Node, Project, UnionAll, Values, walk_plan
from headrace.plan.refs import Ref, TableRef

MOST = 10_000
"""More keys than these are no few."""

Keys = Sequence[Sequence[Expr]]
"""Constants for the columns of a primary key, in its order, of each key."""


def keys_asked(root: Node) -> Mapping[TableRef, Keys]:
    """Tables of whose rows only those of some keys can matter, wherever the plan reads them, and these keys."""
    found: dict[TableRef, list[Sequence[Expr]]] = {}
    others: set[Ref] = set()
    for node in walk_plan(root):
        for leaf in node.children:
            if isinstance(leaf, Leaf):
                keys = _keys(leaf, node.condition) if isinstance(node, Filter) else None
                if keys is None or not isinstance(leaf.ref, TableRef):
                    others.add(leaf.ref)
                else:
                    found.setdefault(leaf.ref, []).extend(keys)
    return {ref: keys for ref, keys in found.items() if ref not in others and len(keys) <= MOST}


def _keys(leaf: Leaf, condition: Expr) -> Keys | None:
    """The keys of the rows a condition can be true for; None if they may be any."""
    columns = {c.id: f for f, c in zip(leaf.fields, leaf.scanned, strict=True)}
    allowed: dict[str, Sequence[Expr]] = {}
    for part in conjuncts(condition):
        for column, values in _compared(part).items():
            name = columns[column]
            if name not in allowed or len(values) < len(allowed[name]):
                allowed[name] = values
    each = [allowed[name] for name in leaf.key if name in allowed]
    if not leaf.key or len(each) < len(leaf.key) or prod(map(len, each)) > MOST:
        return None
    return list(itertools.product(*each))


def _compared(condition: Expr) -> Mapping[int, Sequence[Expr]]:
    """The columns that a condition compares with constants, by their ids, and these: it is true of no other value."""
    if not isinstance(condition, Call):
        return {}
    if condition.fn == "or":
        one, other = map(_compared, condition.args)
        return {column: [*one[column], *other[column]] for column in one.keys() & other.keys()}
    if condition.fn not in ("=", "<=>", "in"):
        return {}
    column, *values = condition.args
    if condition.fn != "in" and not isinstance(column, Column):
        column, values = values[0], [column]
    return {column.id: values} if isinstance(column, Column) and all(map(_is_constant, values)) else {}


def _is_constant(expr: Expr) -> bool:
    while isinstance(expr, Cast) or (isinstance(expr, Call) and expr.fn == "negative"):
        expr = expr.children[0]
    return isinstance(expr, Literal)


@dataclass(frozen=True)
class KeysJoined:
    """A plan whose rows are all keys of a table that some other plan can use rows of."""

    ref: TableRef
    keys: Node


def keys_joined(root: Node) -> list[KeysJoined]:
    """Tables that a plan reads once, and compares by their whole key with what is cheap to read twice."""
    edges = Counter(child.ref for node in walk_plan(root) for child in node.children if isinstance(child, Leaf))
    found = []
    for node in walk_plan(root):
        if isinstance(node, Join):
            sides = [(node.right, node.left)] if node.kind in ("inner", "left", "semi", "anti") else []
            if node.kind in ("inner", "semi"):
                sides.append((node.left, node.right))
            for side, other in sides:
                leaf, columns = _scanned(side)
                if leaf is not None and isinstance(leaf.ref, TableRef) and edges[leaf.ref] == 1 and _is_cheap(other):
                    keys = _joined(leaf, columns, node.condition, other)
                    found += [KeysJoined(leaf.ref, keys)] if keys is not None else []
    return found


def _scanned(node: Node) -> tuple[Leaf | None, Mapping[int, str]]:
    """The one leaf that a side of a join filters and picks columns of, and what it calls them by their ids."""
    if isinstance(node, Leaf):
        return node, {c.id: f for f, c in zip(node.fields, node.scanned, strict=True)}
    if not isinstance(node, Filter | Project):
        return None, {}
    leaf, below = _scanned(node.child)
    if isinstance(node, Filter):
        return leaf, below
    return leaf, {c.id: below[e.id] for c, e in node.exprs if isinstance(e, Column) and e.id in below}


def _joined(leaf: Leaf, columns: Mapping[int, str], condition: Expr, other: Node) -> Node | None:
    ids = {c.id for c in other.output}
    types = dict(zip(leaf.fields, (c.type for c in leaf.scanned), strict=True))
    equal: dict[str, Expr] = {}
    for part in conjuncts(condition):
        if isinstance(part, Call) and part.fn in ("=", "<=>"):
            for column, value in (part.args, part.args[::-1]):
                if isinstance(column, Column) and column.id in columns and {c.id for c in uses(value)} <= ids:
                    equal.setdefault(columns[column.id], value)
    if not leaf.key or not equal.keys() >= set(leaf.key) or any(equal[k].type != types[k].plain for k in leaf.key):
        return None
    return Project(other, tuple((Column.fresh(k, equal[k].type), equal[k]) for k in leaf.key))


def _is_cheap(node: Node) -> bool:
    exprs = [*(e for _, e in node.exprs)] if isinstance(node, Project) else []
    exprs += [node.condition] if isinstance(node, Filter) else []
    plain = isinstance(node, Leaf | Filter | Project | Values | UnionAll)
    opaque = any(isinstance(e, SparkExpr) for expr in exprs for e in walk(expr))
    return plain and not opaque and all(map(_is_cheap, node.children))
