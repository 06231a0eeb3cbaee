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
from collections.abc import Mapping, Sequence
from math import prod

from headrace.plan.exprs import Call, Cast, Column, Expr, Literal, conjuncts
from headrace.plan.nodes import Filter, Leaf, Node, walk_plan
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
