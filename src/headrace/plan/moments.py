"""Variances as mergeable columns, exact also where values are large and alike.

The deviations of 100000003, 100000004 … are small beside the values, and whatever rounds at the size of the values
loses them: Σx² at once, a running mean a little with every row, and a mean kept as one double with every merge. So
deviations are taken from an *anchor*, a number among the values of the group, and the mean is kept as two doubles:

    count   mean   m2 (squared deviations from the mean)   rest (what rounding the mean left out)

Rows are read twice, for the anchors and for the deviations; partial rows are merged in two such steps (Chan et al.).
A group with a NaN or an infinity has NaN for its squared deviations, as in Spark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from headrace.plan.exprs import TRUE, Agg, Call, Case, Cast, Column, Expr, Literal, all_of
from headrace.plan.nodes import Aggregate, Join, Node, Project
from headrace.types import BIGINT, BOOLEAN, DOUBLE

VARIANCES = frozenset(("stddev_samp", "stddev_pop", "var_samp", "var_pop"))
MOMENTS = frozenset(("mean", "m2", "rest"))
"""The partial columns of a variance beside its count."""
Sums = tuple[Expr, Expr, Expr, Expr]
"""Of one group: the anchor, how many values there are, the sum of their deviations from it and of those squared."""


def moments(agg: Agg) -> tuple[Agg, Agg, Agg]:
    """The mean, squared deviations and rest a variance keeps."""
    (arg,) = agg.args
    mean = replace(agg, type=DOUBLE, fn="mean", args=(_double(arg),))
    return mean, replace(mean, fn="m2"), replace(mean, fn="rest")


def variance(fn: str, count: Expr, m2: Expr) -> Expr:
    """The value of a variance, from its merged columns."""
    least = 1 if fn.endswith("samp") else 0
    degrees = Call(BIGINT, "-", (count, Literal(BIGINT, least)))
    value = Call(DOUBLE, "/", (m2, Cast(DOUBLE, degrees)))
    result: Expr = Call(DOUBLE, "sqrt", (value,)) if fn.startswith("stddev") else value
    return Case(DOUBLE, ((_more(count, least), result),), _NULL)


def lower(node: Aggregate) -> Node:
    """The same grouping, its moments made of sums of deviations that any engine has."""
    values = dict.fromkeys(a.args[0] if a.filter is None else _where(a) for _, a in node.aggs if a.fn in MOMENTS)
    if not values:
        return node
    keys = [(Column.fresh(c.name, c.type), e) for c, e in node.keys]
    given = {v: Column.fresh("value", DOUBLE) for v in values}
    rows = Project(node.child, (*keys, *((c, c) for c in node.child.output), *((c, v) for v, c in given.items())))
    beside, anchors = with_anchors(rows, [c for c, _ in keys], [(c, None) for c in given.values()])
    deviations = [
        (Column.fresh("deviation", DOUBLE), _minus(v, a)) for v, a in zip(given.values(), anchors, strict=True)
    ]
    shifted = Project(beside, tuple((c, c) for c in beside.output) + tuple(deviations))
    aggs = [(c, a) for c, a in node.aggs if a.fn not in MOMENTS]
    found: dict[Expr, tuple[Expr, Expr, Expr]] = {}
    for value, anchor, (d, _) in zip(values, anchors, deviations, strict=True):
        sums = [
            Agg(DOUBLE, "max", (anchor,)),
            Agg(BIGINT, "count", (d,)),
            Agg(DOUBLE, "sum", (d,)),
            Agg(DOUBLE, "sum", (_times(d, d),)),
        ]
        columns = [Column.fresh(a.fn, a.type) for a in sums]
        aggs += zip(columns, sums, strict=True)
        found[value] = from_sums((columns[0], columns[1], columns[2], columns[3]))
    grouped = Aggregate(shifted, tuple((out, k) for (out, _), (k, _) in zip(node.keys, keys, strict=True)), tuple(aggs))

    def made(out: Column, agg: Agg) -> Expr:
        if agg.fn not in MOMENTS:
            return out
        mean, m2, rest = found[agg.args[0] if agg.filter is None else _where(agg)]
        return {"mean": mean, "m2": m2, "rest": rest}[agg.fn]

    return Project(grouped, (*((c, c) for c, _ in node.keys), *((out, made(out, a)) for out, a in node.aggs)))


def with_anchors(
    rows: Node, keys: Sequence[Column], values: Sequence[tuple[Expr, Expr | None]]
) -> tuple[Node, tuple[Column, ...]]:
    """The rows with an anchor of their group for each of these values (and how often each counts): about their mean."""
    aggs: list[tuple[Column, Agg]] = []
    found: list[tuple[Column, Expr]] = []
    for value, weight in values:
        total, least, most, n = (Column.fresh(fn, DOUBLE) for fn in ("sum", "min", "max", "n"))
        aggs += [(least, Agg(DOUBLE, "min", (value,))), (most, Agg(DOUBLE, "max", (value,)))]
        if weight is None:
            n = Column.fresh("n", BIGINT)
            aggs += [(total, Agg(DOUBLE, "sum", (value,))), (n, Agg(BIGINT, "count", (value,)))]
        else:
            times = _double(weight)
            aggs += [(total, Agg(DOUBLE, "sum", (_times(times, value),))), (n, Agg(DOUBLE, "sum", (times,)))]
        # A sum may overflow, and a long one be off by more than the values differ.
        mean = _ratio(total, n)
        inside = Case(DOUBLE, ((_less(mean, least), least), (_less(most, mean), most)), mean)
        found.append((Column.fresh("anchor", DOUBLE), inside))
    grouped = Aggregate(rows, tuple((Column.fresh(k.name, k.type), k) for k in keys), tuple(aggs))
    named = [(Column.fresh(k.name, k.type), k) for k, _ in grouped.keys]
    anchors = Project(grouped, (*named, *found))
    condition = all_of([Call(BOOLEAN, "<=>", (k, mine)) for k, (mine, _) in zip(keys, named, strict=True)])
    joined = Join("inner" if condition == TRUE else "left", rows, anchors, condition)
    # Rows that are not the same when read again may find no anchor; nor does a group without values have one.
    zero = Literal(DOUBLE, 0.0)
    out = tuple(Column.fresh("anchor", DOUBLE) for _ in found)
    sure = [(o, Call(DOUBLE, "coalesce", (c, zero))) for o, (c, _) in zip(out, found, strict=True)]
    return Project(joined, (*((c, c) for c in rows.output), *sure)), out


def from_sums(sums: Sums) -> tuple[Expr, Expr, Expr]:
    """The mean, squared deviations and rest of a group."""
    anchor, count, total, squares = sums
    shift = _ratio(total, count)
    mean = Call(DOUBLE, "+", (anchor, shift))
    rest = Call(DOUBLE, "+", (_minus(anchor, mean), shift))
    # An infinite square is one of finite values; an infinite or undefined sum is of values that were so.
    m2 = Case(
        DOUBLE,
        (
            (Call(BOOLEAN, "and", (_finite(total), _finite(squares))), _minus(squares, _times(total, shift))),
            (_finite(total), squares),
        ),
        _minus(total, total),
    )
    return mean, m2, rest


def deviation(mean: Expr, rest: Expr, anchor: Expr) -> Expr:
    """How far a mean is from an anchor, to all its digits."""
    return Call(DOUBLE, "+", (_minus(mean, anchor), rest))


_NULL = Literal(DOUBLE, None)


def _where(agg: Agg) -> Expr:
    """The argument where the filter holds, else NULL."""
    assert agg.filter is not None
    return Case(DOUBLE, ((agg.filter, agg.args[0]),), _NULL)


def _double(expr: Expr) -> Expr:
    return expr if expr.type == DOUBLE else Cast(DOUBLE, expr)


def _minus(a: Expr, b: Expr) -> Expr:
    return Call(DOUBLE, "-", (a, b))


def _times(a: Expr, b: Expr) -> Expr:
    return Call(DOUBLE, "*", (a, b))


def _less(a: Expr, b: Expr) -> Expr:
    return Call(BOOLEAN, "<", (a, b))


def _more(count: Expr, least: int) -> Expr:
    return Call(BOOLEAN, ">", (count, Literal(count.type, least)))


def _ratio(total: Expr, n: Expr) -> Expr:
    return Case(DOUBLE, ((_more(n, 0), Call(DOUBLE, "/", (total, _double(n)))),), _NULL)


def _finite(expr: Expr) -> Expr:
    """Whether a number is one; NaN is greater than any."""
    return _less(Call(DOUBLE, "abs", (expr,)), Literal(DOUBLE, math.inf))
