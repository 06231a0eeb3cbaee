"""Typed expressions as Spark SQL text.

Spark SQL is the meaning, so this printer is total: whatever the binder built,
Spark can run. Types are pinned where Spark would infer others from the text (a
literal's width, a sum's precision), because the native engine leaves state rows
of exactly the same types.

>>> from headrace.types import INT, STRING
>>> spark(Call(INT, "+", (Column(INT, 1, "a"), Literal(INT, 1))), lambda c: f"`{c.name}`")
'(`a` + 1)'
>>> spark(Literal(STRING, "it's a \\\\ here"), lambda c: c.name)
"'it\\\\'s a \\\\\\\\ here'"
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import replace

from headrace.engine.native_text import TOO_MANY_ROWS
from headrace.plan.exprs import Agg, Call, Case, Cast, Column, Expr, Literal, SparkExpr, WindowCall
from headrace.types import DOUBLE, Type, quote

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_INFIX = frozenset(("=", "<>", "<", "<=", ">", ">=", "<=>", "and", "or", "+", "-", "*", "/", "%", "div"))
_DAY, _HOUR, _MINUTE, _SECOND = 86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000


def spark(expr: Expr, column: Callable[[Column], str]) -> str:
    """Spark SQL for ``expr``; never refuses."""

    def text(part: Expr) -> str:
        return spark(part, column)

    match expr:
        case Column():
            return column(expr)
        case Literal():
            return literal(expr)
        case Cast():
            return "NULL" if expr.type.name == "void" else f"CAST({text(expr.arg)} AS {expr.type.sql})"
        case Case():
            branches = " ".join(f"WHEN {text(when)} THEN {text(then)}" for when, then in expr.branches)
            return f"CASE {branches} ELSE {text(expr.default)} END"
        case SparkExpr():
            return f"({expr.template.format(*(text(arg) for arg in expr.args))})"
        case Agg():
            return spark_agg(expr, column)
        case Call():
            return _call(expr, [text(arg) for arg in expr.args])
        case _:
            raise TypeError(f"not an expression: {expr!r}")


def spark_agg(agg: Agg, column: Callable[[Column], str]) -> str:
    """Spark SQL for an aggregate; primitive ones have exactly the type and value of their native form."""
    if agg.filter is not None and agg.template is None:
        # Under whole-stage code generation Spark may evaluate the argument of a row its own FILTER drops:
        # sum(a div b) FILTER (WHERE b <> 0) is safe, the same sum as a decimal raises. CASE keeps both safe.
        agg = replace(agg, args=tuple(_kept(arg, agg.filter) for arg in agg.args))
    args = [spark(arg, column) for arg in agg.args]
    where = "" if agg.filter is None else f" FILTER (WHERE {spark(agg.filter, column)})"
    distinct = "DISTINCT " if agg.distinct else ""
    if agg.template is not None:
        return agg.template.format(*args) + where
    match agg.fn:
        case "count":
            return f"count({distinct}{', '.join(args) or '*'}){where}"
        case "sum":
            return _sum(agg, distinct + _summand(agg, args[0]), where)
        case _:
            return f"{agg.fn}({distinct}{', '.join(args)}){where}"


def spark_window(call: WindowCall, column: Callable[[Column], str], over: str) -> str:
    """Spark SQL for a window function; ``over`` is its window, from OVER on."""
    args = ", ".join(spark(arg, column) for arg in call.args) or ("*" if call.fn == "count" else "")
    where = "" if call.filter is None else f" FILTER (WHERE {spark(call.filter, column)})"
    ignoring = " IGNORE NULLS" if call.ignore_nulls else ""
    return f"{call.fn}({args}){ignoring}{where} {over}"


def _kept(arg: Expr, condition: Expr) -> Expr:
    """The argument where the filter holds, else NULL, which no aggregate counts."""
    if isinstance(arg, Column | Literal):
        return arg
    return Case(arg.type, ((condition, arg),), Literal(arg.type, None))


def _summand(agg: Agg, text: str) -> str:
    kind = agg.args[0].type
    if kind.is_integer and agg.type.is_decimal:
        # sum(bigint) is a bigint, and overflows: decimals of 20 digits sum to 30.
        return f"CAST({text} AS decimal(20,0))"
    return f"CAST({text} AS double)" if kind.name == "float" and agg.type == DOUBLE else text


def _sum(agg: Agg, inner: str, where: str) -> str:
    total = f"sum({inner}){where}"
    return f"CAST({total} AS {agg.type.sql})" if agg.type.is_decimal else total


def _call(call: Call, args: list[str]) -> str:
    if call.fn in _INFIX:
        return "(" + f" {call.fn.upper()} ".join(args) + ")"
    match call.fn:
        case "not":
            return f"(NOT {args[0]})"
        case "isnull":
            return f"({args[0]} IS NULL)"
        case "isnotnull":
            return f"({args[0]} IS NOT NULL)"
        case "in":
            return f"({args[0]} IN ({', '.join(args[1:])}))"
        case "like":
            escape = f" ESCAPE {args[2]}" if len(args) == 3 else ""
            return f"({args[0]} LIKE {args[1]}{escape})"
        case "negative":
            return f"(- {args[0]})"
        case "trim" | "ltrim" | "rtrim" if len(args) == 2:
            side = {"trim": "BOTH", "ltrim": "LEADING", "rtrim": "TRAILING"}[call.fn]
            return f"trim({side} {args[1]} FROM {args[0]})"
        case "field":
            name = call.args[1]
            assert isinstance(name, Literal)
            return f"{args[0]}.{quote(name.value)}"
        case "window":  # its lengths are text to Spark
            lengths = [f"'{arg.value} microseconds'" for arg in call.args[1:] if isinstance(arg, Literal)]
            return f"window({', '.join([args[0], *lengths])})"
        case "window_struct":
            return f"named_struct('start', {args[0]}, 'end', {args[1]})"
        case "window_start":
            return _window_start(call, args[0])
        case "too_many_rows":
            return f"CAST(raise_error('{TOO_MANY_ROWS}') AS {call.type.sql})"
        case "sum_of_digits":  # overflows as a sum does, where a cast would have another name for it
            edge = "CASE WHEN {0} > 0 THEN 9223372036854775807L ELSE -9223372036854775807L - 1L END"
            inside = "CAST(try_cast({0} AS BIGINT) AS BIGINT)"
            beyond = f"({edge}) + CAST(signum({{0}}) AS BIGINT)"
            text = f"(CASE WHEN {{0}} IS NULL OR try_cast({{0}} AS BIGINT) IS NOT NULL THEN {inside} ELSE {beyond} END)"
            return text.format(args[0])
        case "avg_of_sum":
            return _average(call, args)
        case _:
            return f"{call.fn}({', '.join(args)})"


def _window_start(call: Call, ts: str) -> str:
    width = call.args[1]
    assert isinstance(width, Literal)
    if call.type.name == "timestamp":
        micros = f"unix_micros({ts})"
        return f"timestamp_micros({micros} - pmod({micros}, {int(width.value)}L))"
    # Without a zone there is no unix_micros; the distance from 1970 is the same number.
    since = f"({ts} - TIMESTAMP_NTZ '1970-01-01 00:00:00')"
    parts = (("DAY", _DAY), ("HOUR", _HOUR), ("MINUTE", _MINUTE))
    whole = " + ".join(f"extract({field} FROM {since}) * {factor}L" for field, factor in parts)
    micros = f"({whole} + CAST(extract(SECOND FROM {since}) * 1000000 AS bigint))"
    seconds = f"CAST(pmod({micros}, {int(width.value)}L) AS decimal(20,0)) / CAST(1000000 AS decimal(7,0))"
    return f"({ts} - make_dt_interval(0, 0, 0, CAST({seconds} AS decimal(18,6))))"


def _average(call: Call, args: list[str]) -> str:
    """Spark's avg of decimals from its sum and count, exact and HALF_UP.

    Dividing decimal(38,s) at once would leave six digits after the point. So the
    whole quotient and the remainder's quotient are taken apart: the first is exact,
    the second has digits enough.
    """
    total, kind = args[0], call.type.sql
    scale = call.args[0].type.scale
    count = f"CAST(nullif({args[1]}, 0) AS decimal(13,0))"
    rest = f"CAST({total} % {count} AS decimal({min(38, 13 + scale)},{scale}))"
    whole = f"CAST(({total} - {rest}) / {count} AS {kind})"
    return f"CAST({whole} + CAST({rest} / {count} AS {kind}) AS {kind})"


def literal(expr: Literal) -> str:
    """A constant of exactly the literal's type.

    >>> from headrace.types import BIGINT, DAY_TIME, decimal
    >>> literal(Literal(BIGINT, -7)), literal(Literal(decimal(3, 1), None))
    ("CAST('-7' AS bigint)", 'CAST(NULL AS decimal(3,1))')
    """
    value, kind = expr.value, expr.type
    if kind.name == "void":
        return "NULL"
    if value is None:
        return f"CAST(NULL AS {kind.sql})"
    match kind.name:
        case "boolean":
            return "true" if value else "false"
        case "int":
            return str(value) if value >= 0 else f"CAST('{value}' AS int)"
        case "float" | "double":
            return f"CAST('{_float(value)}' AS {kind.sql})"
        case "decimal":
            return f"CAST('{value:f}' AS {kind.sql})"
        case "string":
            return _string(value)
        case "binary":
            return f"X'{value.hex()}'"
        case "date":
            return f"DATE '{value.isoformat()}'"
        case "timestamp":
            return f"timestamp_micros({(value - _EPOCH) // dt.timedelta(microseconds=1)}L)"
        case "timestamp_ntz":
            return f"TIMESTAMP_NTZ '{value.isoformat(sep=' ')}'"
        case "interval_month":
            return f"make_ym_interval(0, {int(value)})"
        case "interval_time":
            return _day_time(int(value), kind)
        case _:
            return f"CAST('{value}' AS {kind.sql})"


def _day_time(micros: int, kind: Type) -> str:
    # `date + interval day` stays a date: the field in the type matters, not only the length.
    if kind.sql == "interval day" and micros % _DAY == 0:
        return f"INTERVAL '{micros // _DAY}' DAY"
    sign = "-" if micros < 0 else ""
    seconds, fraction = divmod(abs(micros), _SECOND)
    return f"INTERVAL '{sign}{seconds}.{fraction:06d}' SECOND"


def _float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\u0000", "\x1a": "\\u001A"}


def _string(text: str) -> str:
    return "'" + "".join(_ESCAPES.get(character, character) for character in text) + "'"
