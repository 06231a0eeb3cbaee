"""Which rows of a table a plan can only use: those of some keys, where it compares the whole primary key with constants.

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
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from headrace.plan.exprs import Call, Cast, Column, Expr, Literal, conjuncts
from headrace.plan.nodes import Filter, Leaf, Node, walk_plan
from headrace.plan.refs import Ref, TableRef

MOST = 10_000
"""More keys than these are no few."""

Keys = Sequence[Sequence[Expr]]
"""Constants for the columns of a primary key, in its order, of each key."""


def keys_asked(root: Node) -> Mapping[TableRef, Keys]:
    """Tables of whose rows only those of some keys can matter, and these keys: all the plan's reads of the table ask so."""
    readers = Counter(id(child) for node in walk_plan(root) for child in node.children)
    filters = {id(n.child): n for n in walk_plan(root) if isinstance(n, Filter) and readers[id(n.child)] == 1}
    found: dict[TableRef, list[Sequence[Expr]]] = {}
    others: set[Ref] = set()
    for node in walk_plan(root):
        if isinstance(node, Leaf):
            above = filters.get(id(node))
            keys = _keys(node, above.condition) if above is not None else None
            if keys is None or not isinstance(node.ref, TableRef):
                others.add(node.ref)
            else:
                found.setdefault(node.ref, []).extend(keys)
    return {ref: keys for ref, keys in found.items() if ref not in others and len(keys) <= MOST}


def _keys(leaf: Leaf, condition: Expr) -> Keys | None:
    """The keys of the rows a condition can be true for; None if they may be any."""
    columns = {c.id: f for f, c in zip(leaf.fields, leaf.scanned, strict=True)}
    allowed: dict[str, Sequence[Expr]] = {}
    for part in conjuncts(condition):
        for column, values in _compared(part):
            name = columns[column.id]
            if name not in allowed or len(values) < len(allowed[name]):
                allowed[name] = values
    each = [allowed[name] for name in leaf.key if name in allowed]
    if not leaf.key or len(each) < len(leaf.key) or prod(map(len, each)) > MOST:
        return None
    return list(itertools.product(*each))


def _compared(condition: Expr) -> Iterator[tuple[Column, Sequence[Expr]]]:
    """The column that a condition compares with constants, and these."""
    if not isinstance(condition, Call) or condition.fn not in ("=", "<=>", "in"):
        return
    column, *values = condition.args
    if condition.fn != "in" and not isinstance(column, Column):
        column, values = values[0], [column]
    if isinstance(column, Column) and all(_is_constant(v) for v in values):
        yield column, values


def _is_constant(expr: Expr) -> bool:
    while isinstance(expr, Cast) or (isinstance(expr, Call) and expr.fn == "negative"):
        expr = expr.children[0]
    return isinstance(expr, Literal)
