"""GROUP BY with several grouping sets: ROLLUP, CUBE, GROUPING SETS, and any mix of them.

Each element of GROUP BY stands for a list of sets of keys, and a GROUP BY of several
elements for all combinations. The block becomes a UNION ALL of one grouping a set over
the same rows, with NULL for the keys a set leaves out. Over a stream the split keeps the
state of the finest set alone and rolls the others up from it at each query.

>>> from headrace.sql.grammar import parse_query
>>> group = parse_query("SELECT 1 FROM s GROUP BY a, ROLLUP (b, c)").args["group"]
>>> [[key.name for key in one] for one in grouping_sets(group)]
[['a', 'b', 'c'], ['a', 'b'], ['a']]
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from sqlglot import exp

from headrace.plan.exprs import Agg, Column, Expr, Literal
from headrace.plan.nodes import Aggregate, Node, Project, UnionAll
from headrace.sql.scope import Scope
from headrace.sql.source import replace, text_of
from headrace.sql.tree import OutsideAlgebra, function_name, position_of
from headrace.types import BIGINT, INT, TINYINT

Sets = list[list[exp.Expr]]
_MOST = 64
"""Grouping sets beyond which a block is left to Spark."""


def grouping_sets(group: exp.Expr) -> Sets | None:
    """The sets of a GROUP BY, each a list of key trees; ``None`` for a plain one."""
    whole: Sets | None = None
    for part, make in (("rollup", _rollup), ("cube", _cube)):
        for clause in group.args.get(part) or ():
            if clause.expressions:
                raise OutsideAlgebra(f"GROUP BY … {part.upper()} (…)", position_of(group))
            whole = make(group.expressions)  # GROUP BY a, b WITH ROLLUP
    for clause in group.args.get("grouping_sets") or ():
        whole = _of(clause)  # GROUP BY a, b GROUPING SETS (…)
    if group.args.get("totals"):
        raise OutsideAlgebra("GROUP BY WITH TOTALS", position_of(group))
    if whole is None:
        if not any(isinstance(e, exp.Rollup | exp.Cube | exp.GroupingSets) for e in group.expressions):
            return None
        whole = [[]]
        for element in group.expressions:
            whole = [[*a, *b] for a, b in itertools.product(whole, _of(element))]
    if len(whole) > _MOST:
        raise OutsideAlgebra(f"GROUP BY with {len(whole)} grouping sets", position_of(group))
    return whole


def key_trees(group: exp.Expr, sets: Sets) -> list[exp.Expr]:
    """All keys as written, in the order Spark numbers them."""
    found: dict[str, exp.Expr] = {}
    written = [key for e in group.expressions for key in _keys(e)]
    for key in [*written, *(k for one in sets for k in one)]:
        found.setdefault(text_of(key), key)
    return list(found.values())


def union_of_sets(
    child: Node,
    keys: Sequence[tuple[Column, Expr]],
    aggs: Sequence[tuple[Column, Agg]],
    sets: Sequence[frozenset[int]],
    bits: Sequence[Column],
    number: Column,
) -> Node:
    """One grouping a set, put together; ``bits`` say which keys a row leaves out, ``number`` is grouping_id()."""
    branches: list[Node] = []
    for chosen in sets:
        by = {i: (Column.fresh(c.name, c.type), e) for i, (c, e) in enumerate(keys) if i in chosen}
        own = [(Column.fresh(c.name, c.type), a) for c, a in aggs]
        # Beside other sets the set of nothing has no row over no rows: it groups by a constant. Alone it has one.
        alone = () if len(sets) == 1 and not keys else ((Column.fresh("all", INT), Literal(INT, 1)),)
        grouped = Aggregate(child, tuple(by.values()) or alone, tuple(own))
        left_out = [int(i not in chosen) for i in range(len(keys))]
        outputs: list[tuple[Column, Expr]] = []
        for i, (column, _) in enumerate(keys):
            value: Expr = by[i][0] if i in chosen else Literal(column.type, None)
            outputs.append((Column.fresh(column.name, column.type), value))
        outputs += [(Column.fresh(b.name, TINYINT), Literal(TINYINT, left_out[i])) for i, b in enumerate(bits)]
        id_ = sum(bit << (len(keys) - 1 - i) for i, bit in enumerate(left_out))
        outputs.append((Column.fresh(number.name, BIGINT), Literal(BIGINT, id_)))
        outputs += [(Column.fresh(c.name, c.type), c) for c, _ in own]
        branches.append(Project(grouped, tuple(outputs)))
    columns = (*(c for c, _ in keys), *bits, number, *(c for c, _ in aggs))
    return UnionAll(tuple(branches), columns)


def is_grouping_call(tree: exp.Expr) -> bool:
    """Whether the tree is ``grouping(…)`` or ``grouping_id(…)``."""
    return function_name(tree) in ("grouping", "grouping_id")


def with_grouping_id(tree: exp.Select, scope: Scope) -> exp.Select:
    """The block with Hive's ``grouping__id`` read as ``grouping_id()``, unless a column is called so."""
    name = "grouping__id"
    if scope.knows(name) or not any(c.name.lower() == name for c in tree.find_all(exp.Column)):
        return tree
    tree = tree.copy()
    for column in [c for c in tree.find_all(exp.Column) if c.name.lower() == name]:
        if column.find_ancestor(exp.Query) is tree:
            if column.parent is tree and column.arg_key == "expressions":
                alias = exp.Alias(alias=exp.to_identifier(column.name))
                replace(column, alias).set("this", exp.Anonymous(this="grouping_id", expressions=[]))
            else:
                replace(column, exp.Anonymous(this="grouping_id", expressions=[]))
    return tree


def _of(element: exp.Expr) -> Sets:
    if isinstance(element, exp.Rollup):
        return _rollup(element.expressions)
    if isinstance(element, exp.Cube):
        return _cube(element.expressions)
    if isinstance(element, exp.GroupingSets):
        return [one for part in element.expressions for one in _of_set(part)]
    return [_keys(element)]


def _of_set(part: exp.Expr) -> Sets:
    if isinstance(part, exp.Rollup | exp.Cube | exp.GroupingSets):
        return _of(part)
    return [_keys(part)]


def _rollup(elements: Sequence[exp.Expr]) -> Sets:
    return [[k for e in elements[:n] for k in _keys(e)] for n in range(len(elements), -1, -1)]


def _cube(elements: Sequence[exp.Expr]) -> Sets:
    chosen = itertools.product((True, False), repeat=len(elements))
    return [[k for e, on in zip(elements, some, strict=True) if on for k in _keys(e)] for some in chosen]


def _keys(element: exp.Expr) -> list[exp.Expr]:
    """The keys an element holds: ``(a, b)`` in a ROLLUP is one step of two keys."""
    if isinstance(element, exp.Tuple | exp.Rollup | exp.Cube | exp.GroupingSets):
        return [k for e in element.expressions for k in _keys(e)]
    return [element.this] if isinstance(element, exp.Paren) else [element]
