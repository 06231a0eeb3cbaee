"""Compute what is constant: ``date '1994-01-01' + interval 1 year`` is a date.

A comparison of a column with a plain constant can be pushed into a Parquet
scan, and cannot raise; one with an expression can do neither. Only exact
arithmetic is folded here, and only where it succeeds: what would raise is left
for the engine to raise when, and if, it is evaluated.
"""

from __future__ import annotations

import calendar
import datetime as dt
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

from headrace.plan.exprs import Agg, Call, Cast, Expr, Literal, rewrite
from headrace.plan.nodes import Aggregate, Filter, Join, Node, Project, Sort, SortKey, rewrite_plan
from headrace.types import Type

_BITS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
_DAY = 86_400_000_000


def fold_constants(root: Node) -> Node:
    """The plan with constant sub-expressions computed."""
    return rewrite_plan(root, _fold_node)


def fold(expr: Expr) -> Expr:
    """
    >>> from headrace.types import DATE, Type
    >>> year = Literal(Type("interval_month", ddl="interval year"), 12)
    >>> fold(Call(DATE, "+", (Literal(DATE, dt.date(2024, 2, 29)), year))).value
    datetime.date(2025, 2, 28)
    """
    return rewrite(expr, _fold_one)


def _fold_node(node: Node) -> Node:
    if isinstance(node, Filter):
        return Filter(node.child, fold(node.condition))
    if isinstance(node, Project):
        return Project(node.child, tuple((c, fold(e)) for c, e in node.exprs))
    if isinstance(node, Join):
        return Join(node.kind, node.left, node.right, fold(node.condition))
    if isinstance(node, Aggregate):
        keys = tuple((c, fold(e)) for c, e in node.keys)
        return Aggregate(node.child, keys, tuple((c, _fold_agg(a)) for c, a in node.aggs))
    if isinstance(node, Sort):
        keys_ = tuple(SortKey(fold(k.expr), k.descending, k.nulls_first) for k in node.keys)
        return Sort(node.child, keys_, node.limit, node.offset)
    return node


def _fold_agg(agg: Agg) -> Agg:
    folded = agg.with_children(tuple(fold(c) for c in agg.children))
    assert isinstance(folded, Agg)
    return folded


def _fold_one(expr: Expr) -> Expr:
    if not expr.children or not all(isinstance(c, Literal) and c.value is not None for c in expr.children):
        return expr
    values = [c.value for c in expr.children if isinstance(c, Literal)]
    types = [c.type for c in expr.children]
    value: Any = None
    if isinstance(expr, Call) and expr.fn in ("+", "-") and types[0].name == "date" and expr.type.name == "date":
        value = _shifted(values[0], types[1], values[1] if expr.fn == "+" else -values[1])
    elif isinstance(expr, Call) and expr.fn in _ARITHMETIC and all(t.is_integer or t.is_decimal for t in types):
        value = _fitted(_exactly(expr.fn, values), expr.type)
    elif isinstance(expr, Cast) and (types[0].is_integer or types[0].is_decimal):
        grows = expr.type.is_decimal or (expr.type.is_integer and types[0].is_integer)
        value = _fitted(Decimal(values[0]), expr.type) if grows else None
    return expr if value is None else Literal(expr.type, value)


_ARITHMETIC: dict[str, Callable[..., Decimal]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "negative": lambda a: -a,
}


def _exactly(fn: str, values: list[Any]) -> Decimal:
    with localcontext(prec=200):
        return _ARITHMETIC[fn](*map(Decimal, values))


def _fitted(value: Decimal, type: Type) -> Any:
    """The value in ``type``, ``None`` if it does not fit."""
    with localcontext(prec=200):
        if type.is_decimal:
            rounded = value.quantize(Decimal(1).scaleb(-type.scale), ROUND_HALF_UP)
            return rounded if abs(rounded) < Decimal(10) ** (type.precision - type.scale) else None
        if type.is_integer and value == value.to_integral_value():
            limit = 1 << _BITS[type.name]
            return int(value) if -limit <= value < limit else None
    return None


def _shifted(day: dt.date, kind: Type, amount: int) -> dt.date | None:
    try:
        if kind.name == "interval_month":
            months = day.year * 12 + day.month - 1 + amount
            year, month = divmod(months, 12)
            return dt.date(year, month + 1, min(day.day, calendar.monthrange(year, month + 1)[1]))
        if kind.name == "interval_time" and amount % _DAY == 0:
            return day + dt.timedelta(days=amount // _DAY)
    except (ValueError, OverflowError):
        pass
    return None
