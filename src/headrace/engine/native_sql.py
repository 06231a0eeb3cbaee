"""Typed expressions as DuckDB SQL whose values, types and errors are Spark's.

Spark SQL is the meaning (docs/architecture.md, *Seven principles*), so nothing here trusts that the
same spelling means the same thing. Each claimed function has a native form in
:mod:`~headrace.engine.native_functions`, decimals in
:mod:`~headrace.engine.native_decimals`, casts in
:mod:`~headrace.engine.native_casts`; what has no exact form raises
:class:`NotNative`, and what is exact for some values only asks at run time for a
rerun by Spark SQL (``NATIVE_CANNOT``, see :mod:`~headrace.engine.failures`).

Three facts about DuckDB shape the text. CASE is lazy row by row, while AND, OR and
COALESCE are not (common subexpressions are even hoisted out of COALESCE), so
whatever may raise stands under CASE. Decimal results have DuckDB's width, not
Spark's, so decimal terms are printed with the type DuckDB gives them and cast once,
at the end. Text is duplicated where a guard and its value share an operand, so an
expression nested absurdly deep is left to Spark.

>>> from headrace.types import DOUBLE
>>> x = Column(DOUBLE, 1, "x")
>>> native(Call(DOUBLE, "+", (x, Literal(DOUBLE, 1.5))), lambda c: c.name)
"(x + '1.5'::DOUBLE)"
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.engine.native_casts import cast
from headrace.engine.native_decimals import Number, number
from headrace.engine.native_functions import FUNCTIONS, can_raise, require_plain
from headrace.engine.native_text import NotNative, cannot, is_utc, text_literal
from headrace.plan.exprs import Agg, Call, Case, Cast, Column, Expr, Literal, SparkExpr, WindowCall, walk
from headrace.types import BIGINT, DATE, DOUBLE, Type

__all__ = ["NotNative", "native", "native_agg", "native_window", "nulls_last", "range_key"]

LONGEST = 100_000
"""Characters of SQL beyond which an expression is left to Spark, unless it has many parts: guards repeat operands."""

_EPOCH_DAY = dt.date(1970, 1, 1)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def native(expr: Expr, column: Callable[[Column], str], *, zone: str = "UTC", narrow: bool = False) -> str:
    """DuckDB SQL for ``expr``: value, Arrow type and error condition are Spark's.

    ``narrow`` prints decimal arithmetic optimistically in 64 bits: the text then
    either raises or has exactly the value of the wide text, at the same scale but
    perhaps with another precision. Run it first, and the wide text when it fails.
    """
    printer = Printer(column, is_utc(zone), narrow)
    return printer.loose(expr) if narrow else printer(expr)


def native_agg(
    agg: Agg, column: Callable[[Column], str], *, zone: str = "UTC", narrow: bool = False, over: str = ""
) -> str:
    """DuckDB SQL for a primitive aggregate; its type is ``agg.type`` also when ``narrow``.

    ``over`` is the window it is computed over, if there is one.
    """
    if agg.template is not None:
        raise NotNative(f"aggregate {agg.fn} is Spark's own")
    printer = Printer(column, is_utc(zone), narrow, over)
    build = _AGGREGATES.get(agg.fn)
    if build is None:
        raise NotNative(f"aggregate {agg.fn} has no native form")
    for arg in agg.args:
        if arg.type.is_nested and (agg.fn != "count" or (agg.distinct and not arg.type.is_groupable)):
            raise NotNative(f"{agg.fn} of {arg.type.sql} has no native form")
    if agg.filter is not None and any(can_raise(arg) for arg in agg.args):
        # DuckDB computes the arguments of all rows before it filters; NULL is what a filtered row adds.
        kept = tuple(Case(arg.type, ((agg.filter, arg),), Literal(arg.type, None)) for arg in agg.args)
        agg = replace(agg, args=kept)
    return build(agg, printer)


@dataclass(frozen=True, slots=True)
class Printer:
    """Prints one expression tree; what the function tables are given."""

    column: Callable[[Column], str]
    utc: bool
    narrow: bool = False
    over: str = ""
    """What follows the call of an aggregate."""

    def __call__(self, expr: Expr) -> str:
        """The text of ``expr``, of exactly its type."""
        if isinstance(expr, Call | Cast) and expr.type.is_decimal:
            return self.number(expr).cast_to(expr.type)
        return self._bounded(expr)

    def number(self, expr: Expr) -> Number:
        """A decimal expression with the type DuckDB really gives it."""
        found = number(expr, self)
        return found if found is not None else Number(self._bounded(expr), expr.type.precision, expr.type.scale)

    def loose(self, expr: Expr) -> str:
        """As a call, but a decimal may keep another precision (never another scale)."""
        if isinstance(expr, Call | Cast) and expr.type.is_decimal:
            return self.number(expr).at_scale(expr.type)
        return self._bounded(expr)

    def instant(self, expr: Expr) -> str:
        """A date or timestamp as DuckDB's zoneless type, whose fields are the session's."""
        if expr.type.name != "timestamp":
            return self(expr)
        if not self.utc:
            raise NotNative("fields of a timestamp depend on the session time zone, which is not UTC")
        return f"timezone('UTC', {self(expr)})"

    def _bounded(self, expr: Expr) -> str:
        text = self._text(expr)
        if len(text) > LONGEST and len(text) > LONGEST // 1000 * sum(1 for _ in walk(expr)):
            raise NotNative("the expression is nested too deep")
        return text

    def _text(self, expr: Expr) -> str:
        if not expr.type.is_held and expr.type.name not in ("interval_month", "interval_time"):
            raise NotNative(f"type {expr.type.sql} is Spark's own")
        match expr:
            case Column():
                return self.column(expr)
            case Literal():
                return literal(expr)
            case Cast():
                if expr.type.is_nested or expr.arg.type.is_nested:
                    raise NotNative(f"a cast of {expr.arg.type.sql} to {expr.type.sql} has no native form")
                return cast(expr, self)
            case Case():
                branches = " ".join(f"WHEN {self(when)} THEN {self(then)}" for when, then in expr.branches)
                return f"CASE {branches} ELSE {self(expr.default)} END"
            case Call():
                build = FUNCTIONS.get(expr.fn)
                if build is None:
                    raise NotNative(f"function {expr.fn} has no native form")
                require_plain(expr)
                return build(expr, self)
            case SparkExpr():
                raise NotNative("only Spark knows this expression")
            case _:
                raise NotNative(f"{type(expr).__name__} has no native form")


def literal(expr: Literal) -> str:
    """A constant of exactly the literal's type.

    >>> from headrace.types import BIGINT, STRING, decimal
    >>> literal(Literal(BIGINT, 7)), literal(Literal(decimal(3, 1), None)), literal(Literal(STRING, "a'b"))
    ("'7'::BIGINT", 'NULL::DECIMAL(3,1)', "'a''b'")
    """
    value, kind = expr.value, expr.type
    match kind.name:
        case "interval_month":
            return "NULL::INTERVAL" if value is None else f"to_months({int(value)})"
        case "interval_time":
            return "NULL::INTERVAL" if value is None else f"to_microseconds({int(value)})"
    if value is None:
        return f"NULL::{kind.duckdb}"
    match kind.name:
        case "boolean":
            return "TRUE" if value else "FALSE"
        case "string":
            return text_literal(value)
        case "binary":
            return f"unhex('{value.hex()}')"
        case "date":
            return f"(DATE '1970-01-01' + {(value - _EPOCH_DAY).days})"
        case "timestamp":
            return f"make_timestamptz({_micros(value)})"
        case "timestamp_ntz":
            return f"make_timestamp({_micros(value.replace(tzinfo=dt.UTC))})"
        case "float" | "double":
            return f"'{value!r}'::{kind.duckdb}"
        case "decimal":
            return f"'{value:f}'::{kind.duckdb}"
        case _:
            return f"'{int(value)}'::{kind.duckdb}"


def _micros(value: dt.datetime) -> int:
    return (value - _EPOCH) // dt.timedelta(microseconds=1)


def native_window(
    call: WindowCall, column: Callable[[Column], str], over: str, *, zone: str = "UTC", narrow: bool = False
) -> str:
    """DuckDB SQL for a primitive window function; ``over`` is its window, from OVER on."""
    if call.fn in _AGGREGATES:
        agg = Agg(call.type, call.fn, call.args, filter=call.filter)
        return native_agg(agg, column, zone=zone, narrow=narrow, over=f" {over}")
    if call.fn not in _WINDOWS:
        raise NotNative(f"window function {call.fn} has no native form")
    if call.filter is not None:
        raise NotNative(f"FILTER of window function {call.fn} is Spark's own")
    if call.type.is_nested:
        raise NotNative(f"{call.fn} of {call.type.sql} has no native form")
    printer = Printer(column, is_utc(zone), narrow)
    ignoring = " IGNORE NULLS" if call.ignore_nulls else ""
    return f"{call.fn}({', '.join(map(printer, call.args))}{ignoring}) {over}"


_BITS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}


def range_key(key: str, type: Type, reach: int) -> str:
    """A key that a RANGE frame adds up to ``reach`` to, as a bigint. Where Spark's own type might overflow, Spark runs:
    whether it gets that far depends on the rows around."""
    if type == DATE:
        if reach > 1_000_000:
            raise NotNative("a RANGE frame of so many days")
        return f"({key} - DATE '1970-01-01')::BIGINT"
    limit = 1 << _BITS[type.name]
    inside = f"{key} BETWEEN {reach - limit} AND {limit - 1 - reach}"
    beyond = cannot("a RANGE frame at the end of its key's type")
    return f"CASE WHEN {inside} OR {key} IS NULL THEN {key}::BIGINT ELSE {beyond} END"


def nulls_last(key: str, type: Type, *, least: bool) -> str | None:
    """A key whose NULLs are below, or above, all numbers, so that they may come last: the first rows of partitions are
    found without a sort then. None if there is no such key."""
    number = {
        **dict.fromkeys(("tinyint", "smallint", "int"), f"{key}::BIGINT"),
        "date": f"({key} - DATE '1970-01-01')::BIGINT",
    }.get(type.name)
    return number and f"coalesce({number}, '{-(1 << 63) if least else (1 << 63) - 1}'::BIGINT)"


_WINDOWS = frozenset(
    (
        *("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile"),
        *("lag", "lead", "first_value", "last_value", "nth_value"),
    )
)


# --- aggregates ---------------------------------------------------------------------------------


def _where(agg: Agg, printer: Printer, *also: str) -> str:
    parts = [*also] if agg.filter is None else [*also, f"({printer(agg.filter)})"]
    return (f" FILTER (WHERE {' AND '.join(parts)})" if parts else "") + printer.over


def _count(agg: Agg, printer: Printer) -> str:
    args = [printer(arg) for arg in agg.args]
    if not agg.distinct and len(args) <= 1:
        return f"count({args[0] if args else '*'}){_where(agg, printer)}"
    if not agg.distinct:
        known = " AND ".join(f"({arg}) IS NOT NULL" for arg in args)
        counted = f"CASE WHEN {known} THEN 1 END"
        return f"count({counted}){_where(agg, printer)}"
    if len(args) == 1:
        return f"count(DISTINCT {args[0]}){_where(agg, printer)}"
    known = " AND ".join(f"({arg}) IS NOT NULL" for arg in args)
    return f"count(DISTINCT CASE WHEN {known} THEN row({', '.join(args)}) END){_where(agg, printer)}"


def _sum(agg: Agg, printer: Printer) -> str:
    (arg,) = agg.args
    distinct = "DISTINCT " if agg.distinct else ""
    where = _where(agg, printer)
    if agg.type == DOUBLE:
        return f"sum({distinct}{printer(arg)}{'' if arg.type == DOUBLE else '::DOUBLE'}){where}"
    if not agg.type.is_decimal and agg.type != BIGINT:
        raise NotNative(f"sum as {agg.type.sql} is not a primitive aggregate")
    if arg.type.is_integer:
        return f"CAST(sum({distinct}{printer(arg)}){where} AS {agg.type.duckdb})"
    if not arg.type.is_decimal or arg.type.scale != agg.type.scale:
        raise NotNative(f"sum of {arg.type.sql} as {agg.type.sql} is not a primitive aggregate")
    total = f"sum({distinct}{printer.loose(arg)}){where}"
    return total if agg.type.precision == 38 else f"CAST({total} AS {agg.type.duckdb})"


def _plain(name: str) -> Callable[[Agg, Printer], str]:
    def build(agg: Agg, printer: Printer) -> str:
        (arg,) = agg.args
        # DISTINCT changes nothing for these, and costs a hash table.
        return f"{name}({printer(arg)}){_where(agg, printer)}"

    return build


_AGGREGATES: dict[str, Callable[[Agg, Printer], str]] = {
    "count": _count,
    "sum": _sum,
    "min": _plain("min"),
    "max": _plain("max"),
    "bool_and": _plain("bool_and"),
    "bool_or": _plain("bool_or"),
}
