"""Aggregates as mergeable columns.

An aggregate is split in three: *partial* columns an insert computes over its
rows, a *merge* that folds partial rows into one, and a *final* expression a
query evaluates. Partial columns are plain typed values (principle 3: state is
tuples), so they can be stored, inspected, and merged in any order and grouping:

    final(merge(partial(a), partial(b))) == aggregate(a + b)

| aggregate            | partial columns                      | merge            |
|----------------------|--------------------------------------|------------------|
| count                | count                                | sum              |
| sum, avg             | exact sum (double for floats), count | sum              |
| min, max             | itself                               | min, max         |
| bool_and, bool_or    | itself                               | bool_and, bool_or |
| stddev, variance     | count, mean, m2, rest                | ``plan/moments.py`` |

Sums of bigints and decimals are kept in 38 digits, those of narrower integers in a
bigint: an intermediate sum never overflows where the final one would not,
whatever the order of arrival.

Rows that may be taken back come with a weight (``plan/signed.py``). Of them only what adds up exactly is kept so:

| aggregate            | partial columns over weights                   | merge |
|----------------------|------------------------------------------------|-------|
| count                | weights of the values                          | sum   |
| sum, avg             | weight times value, in 38 digits; their weights | sum   |

None of these is ever NULL in a group, and a group with nothing left has 0 in all of them: such a row says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from headrace.plan.exprs import TRUE, Agg, Call, Case, Cast, Column, Expr, Literal, WindowCall, all_of, any_of
from headrace.plan.moments import MOMENTS, VARIANCES, deviation, from_sums, lower, moments, variance, with_anchors
from headrace.plan.nodes import Aggregate, Filter, Join, Node, Project, Window
from headrace.types import BIGINT, BOOLEAN, DOUBLE, MAX_PRECISION, Type, decimal

_LONG = decimal(19, 0)
"""The digits of a bigint."""

MERGEABLE = {"count", "sum", "avg", "min", "max", "bool_and", "bool_or", *VARIANCES}


@dataclass(frozen=True, slots=True)
class Decomposition:
    """How one aggregate is kept: its partial columns, and its value from the merged ones."""

    partials: tuple[Agg, ...]
    final: Callable[[Sequence[Expr]], Expr]


def is_mergeable(agg: Agg, *, monotone: bool = True) -> bool:
    """Whether the aggregate has a fixed-size mergeable state of its own, also over rows that may be taken back."""
    if agg.template is not None or agg.distinct:
        return False
    return agg.fn in MERGEABLE if monotone else agg.fn == "count" or (agg.fn in ("sum", "avg") and _adds_up(agg))


def decompose(agg: Agg, weight: Column | None = None) -> Decomposition:
    """The partial columns of ``agg`` and its final expression; ``weight`` is how often each row counts, if not once.

    >>> from headrace.types import INT
    >>> d = decompose(Agg(DOUBLE, "avg", (Column(INT, 1, "x"),)))
    >>> [(p.fn, p.type.sql) for p in d.partials]
    [('sum', 'bigint'), ('count', 'bigint')]
    >>> d = decompose(Agg(DOUBLE, "avg", (Column(INT, 1, "x"),)), Column(BIGINT, 2, "w"))
    >>> [(p.fn, p.type.sql) for p in d.partials]
    [('sum', 'decimal(38,0)'), ('sum', 'bigint')]
    """
    if weight is not None:
        return _of_weights(agg, weight)
    if agg.fn == "count":
        return Decomposition((_count(agg),), lambda c: _or_zero(c[0]))
    if agg.fn == "sum":
        return Decomposition((_sum(agg),), lambda c: _total(agg.type, c[0]))
    if agg.fn == "avg":
        return Decomposition((_sum(agg), _count(agg)), lambda c: _average(agg.type, c[0], c[1]))
    if agg.fn in VARIANCES:
        return Decomposition((_count(agg), *moments(agg)), lambda c: variance(agg.fn, c[0], c[2]))
    if agg.fn in MERGEABLE:
        return Decomposition((agg,), lambda c: c[0])
    raise ValueError(f"{agg.fn} has no fixed-size state")


def expand(node: Aggregate) -> Node:
    """The same grouping with only primitive aggregates, finals computed above it.

    Aggregates only Spark knows stay as they are. Used where a grouping runs in
    one piece (not split), so that both engines share one set of primitives.
    """
    primitives: dict[Agg, Column] = {}
    finals: list[tuple[Column, Expr]] = [(c, c) for c, _ in node.keys]

    def column(agg: Agg) -> Column:
        return primitives.setdefault(agg, Column.fresh(agg.fn, agg.type))

    for out, agg in node.aggs:
        if agg.template is not None or agg.fn not in MERGEABLE or (agg.distinct and agg.fn in VARIANCES):
            finals.append((out, column(agg)))
        else:
            parts = decompose(agg)
            finals.append((out, parts.final([column(p) for p in parts.partials])))
    grouped = Aggregate(node.child, node.keys, tuple((c, a) for a, c in primitives.items()))
    return Project(lower(grouped), tuple(finals))


def expand_window(node: Window) -> Node:
    """The same window functions as primitive ones, which both engines compute alike, finals computed above."""
    primitives: dict[WindowCall, Column] = {}
    finals: list[tuple[Column, Expr]] = [(c, c) for c in node.child.output]

    def column(call: WindowCall, type: Type, fn: str) -> Column:
        return primitives.setdefault(replace(call, type=type, fn=fn), Column.fresh(fn, type))

    for out, call in node.functions:
        if call.fn in COUNTED:
            finals.append((out, Cast(out.type, column(call, BIGINT, call.fn))))
        elif call.fn in MERGEABLE:
            parts = decompose(Agg(call.type, call.fn, call.args, filter=call.filter))
            finals.append((out, parts.final([column(call, p.type, p.fn) for p in parts.partials])))
        else:
            finals.append((out, column(call, call.type, call.fn)))
    return Project(replace(node, functions=tuple((c, f) for f, c in primitives.items())), tuple(finals))


COUNTED = ("row_number", "rank", "dense_rank", "ntile")
"""Window functions that are ints, though engines count in bigints."""


def merge(rows: Node, keys: Sequence[Column], partials: Sequence[tuple[Column, Agg]]) -> Node:
    """One row for each key of ``rows``, whose columns are ``keys`` and ``partials``.

    The result's columns have the names and types of the rows', under fresh ids:
    merging is closed, so merged rows can be appended to and merged again.
    """
    plain = [(c, a) for c, a in partials if a.fn not in MOMENTS]
    found = moments_of(partials)
    anchors: tuple[Column, ...] = ()
    if found:
        rows, anchors = with_anchors(rows, keys, [(m.mean, m.count) for m in found])
    aggs: list[tuple[Column, Agg]] = []
    outputs: list[tuple[Column, Expr]] = []
    out_keys = tuple((Column.fresh(k.name, k.type), k) for k in keys)
    outputs += [(Column.fresh(k.name, k.type), k) for k, _ in out_keys]

    def add(type: Type, fn: str, arg: Expr) -> Column:
        out = Column.fresh(fn, type)
        aggs.append((out, Agg(type, fn, (arg,))))
        return out

    merged: dict[str, Expr] = {}
    for column, agg in plain:
        fn = "sum" if agg.fn in ("count", "sum") else agg.fn
        wide = _wide(column.type) if fn == "sum" else column.type
        merged[column.name] = _as(column.type, add(wide, fn, column))
    for m, anchor in zip(found, anchors, strict=True):
        n, offset = _as(DOUBLE, m.count), deviation(m.mean, m.rest, anchor)
        moved = Call(DOUBLE, "*", (n, offset))
        sums = (
            add(DOUBLE, "max", anchor),
            add(DOUBLE, "sum", n),
            add(DOUBLE, "sum", moved),
            add(DOUBLE, "sum", Call(DOUBLE, "+", (m.m2, Call(DOUBLE, "*", (moved, offset))))),
        )
        merged[m.mean.name], merged[m.m2.name], merged[m.rest.name] = from_sums(sums)
    grouped = Aggregate(rows, out_keys, tuple(aggs))
    outputs += [(Column.fresh(c.name, c.type), merged[c.name]) for c, _ in partials]
    return Project(grouped, tuple(outputs))


def without_zeros(rows: Node, partials: Sequence[Column]) -> Node:
    """The rows of weights that say something: one of all zeros is what is left of a group that is no more."""
    return Filter(rows, any_of([Call(BOOLEAN, "<>", (c, _zero(c.type))) for c in partials]))


def join_on_keys(left: Node, right: Node, pairs: Sequence[tuple[Column, Column]], kind: str = "left") -> Join:
    """The two relations joined on equal keys, NULL keys being equal to each other."""
    condition = all_of([Call(BOOLEAN, "<=>", pair) for pair in pairs])
    return Join("left" if kind == "left" else "inner", left, right, condition)


@dataclass(frozen=True, slots=True)
class Moments:
    """The partial columns of one variance."""

    count: Column
    mean: Column
    m2: Column
    rest: Column


def moments_of(partials: Sequence[tuple[Column, Agg]]) -> list[Moments]:
    """The columns of each variance among the partials."""
    by_agg = {a: c for c, a in partials}
    found = []
    for column, agg in partials:
        if agg.fn == "mean":
            count = next(c for c, a in partials if a.fn == "count" and a.filter == agg.filter and _same(a, agg))
            found.append(Moments(count, column, by_agg[replace(agg, fn="m2")], by_agg[replace(agg, fn="rest")]))
    return found


def _same(count: Agg, mean: Agg) -> bool:
    argument = mean.args[0]
    return count.args in (mean.args, (argument.arg,) if isinstance(argument, Cast) else mean.args)


def _wide(type: Type) -> Type:
    if type.is_decimal:
        return decimal(38, type.scale)
    return decimal(38, 0) if type.is_integer else DOUBLE


def _sum(agg: Agg) -> Agg:
    arg = agg.args[0].type
    # Four thousand million of the largest ints add up to a bigint.
    return replace(agg, type=BIGINT if arg.is_integer and arg != BIGINT else _wide(arg), fn="sum")


def _count(agg: Agg) -> Agg:
    return replace(agg, type=BIGINT, fn="count")


def _of_weights(agg: Agg, weight: Column) -> Decomposition:
    """How an aggregate is kept over rows with weights."""

    def summed(type: Type, each: Expr) -> Agg:
        """The sum of what each row adds: nothing where the filter drops it or an argument is NULL."""
        for condition in (all_of([Call(BOOLEAN, "isnotnull", (a,)) for a in agg.args]), agg.filter or TRUE):
            # One in the other: where the filter drops a row, its arguments are not computed.
            each = each if condition == TRUE else Case(each.type, ((condition, each),), _zero(each.type))
        return Agg(type, "sum", (each,))

    count = summed(BIGINT, weight)
    if agg.fn == "count":
        return Decomposition((count,), lambda c: _or_zero(c[0]))
    each = _weighed(agg.args[0], weight)
    partials = (summed(decimal(MAX_PRECISION, each.type.scale), each), count)
    if agg.fn == "avg":
        return Decomposition(partials, lambda c: _average(agg.type, c[0], c[1]))
    return Decomposition(partials, lambda c: _where_some(c[1], _total(agg.type, c[0])))


def _weighed(value: Expr, weight: Expr) -> Expr:
    """The product of an exact number and a weight, as Spark types it. That of two bigints has 38 digits."""
    factor = value if value.type.is_decimal else Cast(_LONG, value)
    precision = min(factor.type.precision + _LONG.precision + 1, MAX_PRECISION)
    return Call(decimal(precision, factor.type.scale), "*", (factor, Cast(_LONG, weight)))


def _adds_up(agg: Agg) -> bool:
    """Whether values times weights are exact: a product with too many digits loses some after the point in Spark."""
    type = agg.args[0].type
    return type.is_integer or (type.is_decimal and (type.precision <= MAX_PRECISION - 20 or type.scale <= 6))


def _zero(type: Type) -> Literal:
    return Literal(type, Decimal(0) if type.is_decimal else 0)


def _as(type: Type, expr: Expr) -> Expr:
    return expr if expr.type == type else Cast(type, expr)


def _total(type: Type, total: Expr) -> Expr:
    """A sum in its own type: one of bigints, kept in 38 digits, that does not fit overflows as a sum does."""
    return Call(BIGINT, "sum_of_digits", (total,)) if type == BIGINT != total.type else _as(type, total)


def _or_zero(count: Expr) -> Expr:
    return Call(BIGINT, "coalesce", (count, Literal(BIGINT, 0)))


def _ratio(total: Expr, n: Expr) -> Expr:
    return _where_some(n, Call(DOUBLE, "/", (_as(DOUBLE, total), _as(DOUBLE, n))))


def _where_some(n: Expr, value: Expr) -> Expr:
    """A value of so many others, NULL if there is none."""
    return Case(value.type, ((Call(BOOLEAN, ">", (n, Literal(n.type, 0))), value),), Literal(value.type, None))


def _average(type: Type, total: Expr, count: Expr) -> Expr:
    return Call(type, "avg_of_sum", (total, count)) if type.is_decimal else _ratio(total, count)
