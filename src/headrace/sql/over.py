"""Window functions: ``f(…) OVER (PARTITION BY … ORDER BY … ROWS …)``, WINDOW clauses, QUALIFY.

They are bound in place, like aggregates; then :func:`with_windows` takes them out of the expressions: one Window node
for all that share partition and order, the innermost below. What is not claimed here is Spark's, block and all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import inf
from typing import Protocol

from sqlglot import exp

from headrace.errors import SqlError
from headrace.plan.exprs import Agg, Column, Expr, Literal, Over, SortKey, WindowCall, WindowFrame, rewrite, walk
from headrace.plan.nodes import Node, Project, Window
from headrace.sql.coercion import cast
from headrace.sql.functions import AGGREGATES
from headrace.sql.source import position_of, text_of
from headrace.sql.tree import OutsideAlgebra, function_name
from headrace.types import BOOLEAN, DATE, DOUBLE, INT, VOID, Type

RANKS: Mapping[str, Type] = {
    "row_number": INT,
    "rank": INT,
    "dense_rank": INT,
    "percent_rank": DOUBLE,
    "cume_dist": DOUBLE,
    "ntile": INT,
}
OFFSETS = ("lag", "lead")
VALUES: Mapping[str, str] = {
    **dict.fromkeys(("first_value", "first", "any_value"), "first_value"),
    **dict.fromkeys(("last_value", "last"), "last_value"),
    "nth_value": "nth_value",
}
ONLY_OVER = frozenset((*RANKS, *OFFSETS, "nth_value"))
"""Functions that are nothing without OVER."""
_AGGREGATES = ("count", "sum", "avg", "min", "max", "bool_and", "bool_or")
_WHOLE = WindowFrame("rows", None, None)
_SO_FAR = WindowFrame("range", None, 0)


class Binding(Protocol):
    """The binder of the expression around."""

    within_aggregate: bool

    def bind(self, node: exp.Expr) -> Expr: ...

    def at(self, node: exp.Expr) -> AbstractContextManager[None]: ...


# Names


def with_named_windows(tree: exp.Select) -> exp.Select:
    """The block with what its WINDOW clause says in the place of the names, which tell capitals apart."""
    named: dict[str, exp.Window] = {}
    for window in tree.args.get("windows") or ():
        named.setdefault(window.this.name, window)
    uses = [w for w in tree.find_all(exp.Window) if _name(w) and w.find_ancestor(exp.Query) is tree]
    if not uses:
        return tree
    copy = tree.copy()
    for window in [w for w in copy.find_all(exp.Window) if _name(w) and w.find_ancestor(exp.Query) is copy]:
        found, seen = window, set[str]()
        while name := _name(found):
            if name not in named or name in seen:
                raise SqlError(
                    "MISSING_WINDOW_SPECIFICATION",
                    f"no WINDOW clause says what {name} is",
                    position=position_of(window.args["alias"]),
                    hint=f"write WINDOW {name} AS (…) after the block's other clauses; capitals count",
                )
            seen.add(name)
            found = named[name]
        window.set("alias", None)
        for part in ("partition_by", "order", "spec"):
            value = found.args.get(part)
            window.set(part, [v.copy() for v in value] if isinstance(value, list) else value and value.copy())
    return copy


def _name(window: exp.Window) -> str:
    alias = window.args.get("alias")
    return alias.name if alias is not None else ""


# Binding


def bind_over(binder: Binding, node: exp.Expr) -> Over:
    """The typed form of a window function's call."""
    if binder.within_aggregate:
        raise OutsideAlgebra("a window function inside an aggregate", position_of(node))
    partition = tuple(binder.bind(p) for p in node.args.get("partition_by") or ())
    order = tuple(_sort_key(binder, item) for item in _items(node))
    if any(e.type.holds_maps for e in (*partition, *(k.expr for k in order))):
        raise OutsideAlgebra("a window by a map", position_of(node))
    call = _call(binder, node, order)
    return Over(call.type, call, partition, order)


def _items(node: exp.Expr) -> Sequence[exp.Expr]:
    order = node.args.get("order")
    return order.expressions if order is not None else ()


def _sort_key(binder: Binding, item: exp.Expr) -> SortKey:
    descending = bool(item.args.get("desc"))
    nulls_first = item.args.get("nulls_first")
    return SortKey(binder.bind(item.this), descending, not descending if nulls_first is None else bool(nulls_first))


def _call(binder: Binding, node: exp.Expr, order: Sequence[SortKey]) -> WindowCall:
    inner, where, ignoring = node.this, None, False
    while not isinstance(inner, exp.Anonymous):
        if isinstance(inner, exp.Filter) and where is None:
            where = inner.expression.this
        elif isinstance(inner, exp.IgnoreNulls):
            ignoring = True
        elif not isinstance(inner, exp.RespectNulls):
            raise OutsideAlgebra(f"{text_of(inner)} in a window", position_of(node))
        inner = inner.this
    name, args = function_name(inner), list(inner.expressions)
    plain = where is None and inner is node.this
    if any(isinstance(a, exp.Distinct | exp.Kwarg | exp.Alias | exp.Aliases) for a in args):
        raise OutsideAlgebra(f"{name}(DISTINCT …) in a window", position_of(node))
    if name in ONLY_OVER and not order and (plain or name not in RANKS):
        raise SqlError(
            "WINDOW_FUNCTION_FRAME_NOT_ORDERED",
            f"{name} counts rows in an order, and this window has none",
            position=position_of(node),
            hint="write ORDER BY in OVER (…)",
        )
    if name in RANKS and plain:
        return _rank(binder, node, name, args, order)
    if name in OFFSETS and where is None:
        return _offset(binder, node, name, args, ignoring)
    if name in VALUES:
        value, ignoring = _value(binder, node, name, args, ignoring)
        return replace(value, filter=_filter(binder, where), ignore_nulls=ignoring, frame=_frame(node, order))
    if name in AGGREGATES and AGGREGATES[name].name in _AGGREGATES and not ignoring:
        return _aggregate(binder, inner, name, args, _filter(binder, where), _frame(node, order))
    raise OutsideAlgebra(f"{name} in a window", position_of(node))


def _rank(binder: Binding, node: exp.Expr, name: str, args: list[exp.Expr], order: Sequence[SortKey]) -> WindowCall:
    if node.args.get("spec") is not None and _frame(node, order) != WindowFrame(
        "range" if name == "cume_dist" else "rows", None, 0
    ):
        raise OutsideAlgebra(f"a frame for {name}", position_of(node.args["spec"]))
    if name != "ntile":
        if args and name in ("row_number", "cume_dist"):
            raise SqlError("WRONG_NUM_ARGS", f"{name} takes no argument", position=position_of(node))
        if args:
            raise OutsideAlgebra(f"{name} with arguments", position_of(node))
        return WindowCall(RANKS[name], name, ())
    buckets = [binder.bind(a) for a in args] or [Literal(INT, 1)]
    count = _constant(buckets[0]) if len(buckets) == 1 else None
    if count is None:
        raise OutsideAlgebra(f"{text_of(node.this)} in a window", position_of(node))
    if count <= 0:
        raise SqlError(
            "DATATYPE_MISMATCH",
            f"{text_of(node.this)} has {count} buckets, not one or more",
            position=position_of(node),
        )
    return WindowCall(INT, name, (Literal(INT, count),))


def _offset(binder: Binding, node: exp.Expr, name: str, args: list[exp.Expr], ignoring: bool) -> WindowCall:
    if node.args.get("spec") is not None or not 1 <= len(args) <= 3:
        raise OutsideAlgebra(f"{name} in this form", position_of(node))
    value, *rest = (binder.bind(a) for a in args)
    by = _constant(rest[0]) if rest else 1
    if by is None or value.type == VOID:
        raise OutsideAlgebra(f"{name} in this form", position_of(node))
    default = rest[1] if len(rest) > 1 else Literal(value.type, None)
    if default.type != value.type:
        numbers = isinstance(default, Literal) and default.type.is_numeric and value.type.is_numeric
        if not numbers and default.type != VOID:
            raise OutsideAlgebra(f"{name} of {value.type.sql} with {default.type.sql} as default", position_of(node))
        default = Literal(value.type, None) if default.type == VOID else cast(default, value.type)
    return WindowCall(value.type, name, (value, Literal(INT, by), default), ignore_nulls=ignoring)


def _value(binder: Binding, node: exp.Expr, name: str, args: list[exp.Expr], ignoring: bool) -> tuple[WindowCall, bool]:
    """first_value, last_value, nth_value, and whether they pass over NULLs."""
    least = 2 if name == "nth_value" else 1
    if len(args) not in (least, least + 1):
        raise OutsideAlgebra(f"{name} in this form", position_of(node))
    value = binder.bind(args[0])
    rest: tuple[Expr, ...] = ()
    if name == "nth_value":
        place = _constant(binder.bind(args[1]))
        if place is None or place < 1:
            raise OutsideAlgebra(f"{name} in this form", position_of(node))
        rest = (Literal(INT, place),)
    if len(args) > least:
        said = binder.bind(args[-1])
        if not isinstance(said, Literal) or said.type != BOOLEAN or said.value is None:
            raise OutsideAlgebra(f"{name} in this form", position_of(node))
        ignoring = ignoring or bool(said.value)
    if value.type == VOID:
        raise OutsideAlgebra(f"{name} of NULL", position_of(node))
    return WindowCall(value.type, VALUES[name], (value, *rest)), ignoring


def _aggregate(
    binder: Binding, node: exp.Expr, name: str, args: list[exp.Expr], where: Expr | None, frame: WindowFrame
) -> WindowCall:
    row = AGGREGATES[name]
    star = len(args) == 1 and isinstance(args[0], exp.Star)
    if (star and name != "count") or not row.takes(len(args)) or (name == "count" and not args):
        raise OutsideAlgebra(f"{text_of(node)} in a window", position_of(node))
    bound = () if star else tuple(binder.bind(a) for a in args)
    with binder.at(node):
        found = row.rule(bound)
    if found is None:
        raise OutsideAlgebra(f"{text_of(node)} in a window", position_of(node))
    return WindowCall(found[1], row.name, found[0], where, frame=frame)


def _filter(binder: Binding, where: exp.Expr | None) -> Expr | None:
    if where is None:
        return None
    bound = binder.bind(where)
    if bound.type != BOOLEAN or any(isinstance(e, Agg | Over) for e in walk(bound)):
        raise OutsideAlgebra("FILTER in this form in a window", position_of(where))
    return bound


def _constant(expr: Expr) -> int | None:
    """A whole number that was written, perhaps with its sign."""
    sign = 1
    while not isinstance(expr, Literal) and getattr(expr, "fn", "") == "negative":
        sign, expr = -sign, expr.children[0]
    return sign * expr.value if isinstance(expr, Literal) and expr.type == INT and expr.value is not None else None


# Frames


def _frame(node: exp.Expr, order: Sequence[SortKey]) -> WindowFrame:
    spec = node.args.get("spec")
    if spec is None:
        return _SO_FAR if order else _WHOLE
    start, end = _bound(spec, "start"), _bound(spec, "end") if spec.args.get("end") else 0
    if start == inf or end == -inf:
        raise _wrong_frame(spec, "it begins behind its end")
    if start > end:
        if start and end:
            raise _wrong_frame(spec, "it begins behind its end")
        raise OutsideAlgebra("a frame without rows", position_of(spec))
    first, last = None if start == -inf else int(start), None if end == inf else int(end)
    if spec.args["kind"] == "ROWS":
        return WindowFrame("rows", first, last)
    frame = WindowFrame("range", first, last)
    if frame.is_whole:
        return _WHOLE
    if not order:
        raise _wrong_frame(
            spec, "RANGE goes by the order of rows, and there is none", "write ORDER BY before it, or ROWS"
        )
    if frame.has_distance:
        if len(order) > 1:
            raise _wrong_frame(spec, "RANGE … PRECEDING adds to one key, and the order has several", "write ROWS")
        if not (order[0].expr.type.is_integer or order[0].expr.type == DATE):
            raise OutsideAlgebra(f"a RANGE frame over {order[0].expr.type.sql}", position_of(spec))
    return frame


def _bound(spec: exp.Expr, which: str) -> float:
    """How far from the row a frame ends."""
    value, sign = spec.args[which], -1 if spec.args.get(f"{which}_side") == "PRECEDING" else 1
    if isinstance(value, str):
        return 0 if value == "CURRENT ROW" else sign * inf
    if not (isinstance(value, exp.Literal) and not value.is_string and value.name.isdigit()):
        raise OutsideAlgebra("a frame that is computed", position_of(spec))
    if (count := int(value.name)) >= 2**31:
        raise OutsideAlgebra("a frame of so many rows", position_of(spec))
    return sign * count


def _wrong_frame(spec: exp.Expr, what: str, hint: str = "write the earlier end first") -> SqlError:
    return SqlError("DATATYPE_MISMATCH", f"wrong frame of a window: {what}", position=position_of(spec), hint=hint)


# Out of expressions, into the plan


def has_window(expr: Expr) -> bool:
    return any(isinstance(e, Over) for e in walk(expr))


def refuse_windows(expr: Expr, tree: exp.Expr, where: str) -> Expr:
    """The expression, which may hold no window function there; Spark says why."""
    if has_window(expr):
        raise OutsideAlgebra(f"a window function in {where}", position_of(tree))
    return expr


def refuse_window_in(clause: exp.Expr, word: str) -> None:
    """An error if WHERE or HAVING calls a window function itself."""
    for window in clause.find_all(exp.Window):
        if window.find_ancestor(exp.Query) is clause.find_ancestor(exp.Query):
            raise SqlError(
                "WINDOW_FUNCTION_NOT_ALLOWED_IN_CLAUSE",
                f"window functions are computed after {word}",
                position=position_of(window),
                hint="write QUALIFY, or select it in a subquery and filter that",
            )


def with_windows(child: Node, exprs: Sequence[Expr]) -> tuple[Node, list[Expr]]:
    """The rows with what window functions say of them, and the expressions with columns for the calls."""
    done: dict[Expr, Column] = {}
    while calls := list(dict.fromkeys(o for e in exprs for o in _innermost(e))):
        child = _windows(child, calls, done)
        exprs = [rewrite(e, lambda part: done.get(part, part) if isinstance(part, Over) else part) for e in exprs]
    return child, list(exprs)


def _innermost(expr: Expr) -> list[Over]:
    return [e for e in walk(expr) if isinstance(e, Over) and not any(map(has_window, e.children))]


def _windows(child: Node, calls: Sequence[Over], done: dict[Expr, Column]) -> Node:
    groups: dict[tuple[tuple[Expr, ...], tuple[SortKey, ...]], list[Over]] = {}
    for over in calls:
        groups.setdefault((over.partition, over.order), []).append(over)
    computed: dict[Expr, Column] = {}

    def column(expr: Expr) -> Column:
        if isinstance(expr, Column):
            return expr
        return computed.setdefault(expr, Column.fresh("key", expr.type))

    nodes: list[tuple[tuple[Column, ...], tuple[SortKey, ...], tuple[tuple[Column, WindowCall], ...]]] = []
    for (partition, order), members in groups.items():
        by = tuple(dict.fromkeys(column(p) for p in partition if not isinstance(p, Literal)))
        keys = tuple(replace(k, expr=column(k.expr)) for k in order)
        functions = []
        for over in members:
            call = over.call
            # What is computed is computed for all rows, as in Spark: a filter does not keep it from an error.
            args = tuple(a if isinstance(a, Literal) else column(a) for a in call.args)
            where = None if call.filter is None else column(call.filter)
            done[over] = Column.fresh(call.fn, over.type)
            functions.append((done[over], replace(call, args=args, filter=where)))
        nodes.append((by, keys, tuple(functions)))
    if computed:
        child = Project(child, (*((c, c) for c in child.output), *((c, e) for e, c in computed.items())))
    for by, keys, made in nodes:
        child = Window(child, by, keys, made)
    return child
