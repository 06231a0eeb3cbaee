"""The native list: Spark function or operator to DuckDB text.

One row a function. A row is added together with its differential test
(``tests/engine/test_native_matches_spark.py`` runs every row here over edge-case
columns by both engines). Arguments come coerced: see :mod:`headrace.plan.exprs`.

>>> {"=", "and", "div", "substring", "date_trunc"} <= FUNCTIONS.keys()
True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.engine import native_decimals as decimals
from headrace.engine import native_strings as strings
from headrace.engine.native_casts import can_raise as cast_can_raise
from headrace.engine.native_casts import cast, decimal_as_double
from headrace.engine.native_text import NotNative, cannot, fail, text_literal
from headrace.plan.exprs import Call, Case, Cast, Column, Expr, Literal, any_of
from headrace.types import BIGINT, BOOLEAN, DATE, DOUBLE

if TYPE_CHECKING:
    from headrace.engine.native_sql import Printer

Build = Callable[[Call, "Printer"], str]


# --- logic: lazy where Spark is lazy -------------------------------------------------------------

_NEVER_RAISE = {
    *("=", "<>", "<", "<=", ">", ">=", "<=>", "and", "or", "not", "isnull", "isnotnull", "in", "like", "coalesce"),
    *("nullif", "if", "concat", "length", "trim", "ltrim", "rtrim", "replace", "startswith", "endswith", "contains"),
    *("year", "month", "day", "hour", "minute", "second", "dayofweek", "date_trunc", "datediff", "sqrt", "field"),
    "window_struct",
}


def can_raise(expr: Expr) -> bool:
    """Whether evaluating ``expr`` natively may raise for some value."""
    match expr:
        case Column() | Literal():
            return False
        case Case():
            own = False
        case Cast():
            own = cast_can_raise(expr.arg.type, expr.type)
        case Call():
            own = expr.fn not in _NEVER_RAISE and not (
                (expr.type.is_float and expr.fn in ("+", "-", "*", "negative", "abs")) or _has_divisor(expr)
            )
        case _:
            own = True
    return own or any(can_raise(child) for child in expr.children)


def _has_divisor(call: Call) -> bool:
    """Whether it divides by a constant that every number can be divided by.

    >>> n = Column(BIGINT, 1, "n")
    >>> [_has_divisor(Call(BIGINT, "%", (n, Literal(BIGINT, by)))) for by in (100, 0, -1, None)]
    [True, False, False, False]
    """
    if call.fn not in ("/", "%", "div") or not all(a.type.is_integer or a.type.is_float for a in call.args):
        return False
    by = call.args[1]
    return isinstance(by, Literal) and by.value not in (None, 0, -1) and call.args[0].type == by.type


_MOST_GUARDED = 200
"""Parts of AND and OR that may raise: each nests in the one before it, and DuckDB takes a thousand levels."""


def _conjunction(call: Call, printer: Printer) -> str:
    return _connective(call, printer, stop="FALSE", go="TRUE")


def _disjunction(call: Call, printer: Printer) -> str:
    return _connective(call, printer, stop="TRUE", go="FALSE")


def _connective(call: Call, printer: Printer, *, stop: str, go: str) -> str:
    """AND or OR. DuckDB evaluates every operand; where a later one may raise, CASE keeps Spark's order."""
    parts = _flat(call)
    texts = [f"({printer(part)})" for part in parts]
    word = f" {call.fn.upper()} "
    if not any(can_raise(part) for part in parts[1:]):
        return "(" + word.join(texts) + ")"
    if len(parts) > _MOST_GUARDED:
        raise NotNative(f"a long chain of {call.fn.upper()} whose parts may raise")
    result = texts[-1]
    for text in reversed(texts[:-1]):
        condition = f"coalesce({text}, {go})" if go == "TRUE" else f"NOT coalesce({text}, {go})"
        result = f"CASE WHEN {condition} THEN ({text}{word}{result}) ELSE {stop} END"
    return result


def _flat(call: Call) -> list[Expr]:
    parts: list[Expr] = []
    for arg in call.args:
        parts += _flat(arg) if isinstance(arg, Call) and arg.fn == call.fn else [arg]
    return parts


def _coalesce(call: Call, printer: Printer) -> str:
    texts = [printer(arg) for arg in call.args]
    if not any(can_raise(arg) for arg in call.args):
        return f"coalesce({', '.join(texts)})"
    # DuckDB hoists common subexpressions out of COALESCE, never out of CASE.
    branches = " ".join(f"WHEN ({text}) IS NOT NULL THEN {text}" for text in texts[:-1])
    return f"CASE {branches} ELSE {texts[-1]} END" if branches else texts[0]


def _if(call: Call, printer: Printer) -> str:
    when, then, otherwise = (printer(arg) for arg in call.args)
    return f"CASE WHEN {when} THEN {then} ELSE {otherwise} END"


def _nullif(call: Call, printer: Printer) -> str:
    left, right = (printer(arg) for arg in call.args)
    return f"CASE WHEN {left} = {right} THEN NULL ELSE {left} END"


def _in(call: Call, printer: Printer) -> str:
    value, *items = call.args
    if any(can_raise(item) for item in items):
        result = any_of([Call(BOOLEAN, "=", (value, item)) for item in items])
        # Spark looks at no item when the value is NULL.
        return f"CASE WHEN ({printer(value)}) IS NULL THEN NULL ELSE {printer(result)} END"
    return f"({printer(value)} IN ({', '.join(printer(item) for item in items)}))"


def _infix(symbol: str) -> Build:
    def build(call: Call, printer: Printer) -> str:
        left, right = (printer(arg) for arg in call.args)
        return f"({left} {symbol} {right})"

    return build


def _around(before: str, after: str) -> Build:
    def build(call: Call, printer: Printer) -> str:
        (arg,) = call.args
        return f"({before}({printer(arg)}){after})"

    return build


# --- arithmetic ----------------------------------------------------------------------------------


def _plus_minus(call: Call, printer: Printer) -> str:
    left, right = call.args
    if right.type.name.startswith("interval"):
        return _shift(call, printer)
    if not call.type.is_numeric:
        raise NotNative(f"{left.type.sql} {call.fn} {right.type.sql} has no native form")
    return f"({printer(left)} {call.fn} {printer(right)})"


def _shift(call: Call, printer: Printer) -> str:
    """A date or timestamp plus or minus an interval."""
    left, right = call.args
    if left.type.name.startswith("interval"):
        raise NotNative("interval arithmetic without a date or timestamp")
    if not isinstance(right, Literal):
        raise NotNative("an interval that is not a literal")
    if left.type.name == "timestamp" and right.type.name == "interval_month" and not printer.utc:
        raise NotNative("months of a timestamp depend on the session time zone, which is not UTC")
    if left.type == DATE and right.type.name == "interval_time":
        if call.type != DATE or right.value is None or right.value % 86_400_000_000:
            raise NotNative("a date shifted by less than days")
        return f"({printer(left)} {call.fn} {right.value // 86_400_000_000})"
    shifted = f"({printer.instant(left)} {call.fn} {printer(right)})"
    if call.type.name == "timestamp" and left.type.name == "timestamp":
        if right.type.name == "interval_time":
            return f"({printer(left)} {call.fn} {printer(right)})"
        return f"timezone('UTC', {shifted})"
    if call.type != left.type:
        raise NotNative(f"{left.type.sql} {call.fn} {right.type.sql} has no native form")
    return f"CAST({shifted} AS DATE)" if call.type == DATE else shifted


def _times(call: Call, printer: Printer) -> str:
    if not call.type.is_numeric:
        raise NotNative(f"{call.type.sql} products have no native form")
    return f"({printer(call.args[0])} * {printer(call.args[1])})"


def _divide(call: Call, printer: Printer) -> str:
    if call.type.is_decimal:
        return decimals.divide(call, printer)
    if call.type != DOUBLE:
        raise NotNative(f"division as {call.type.sql} has no native form")
    left, right = (printer(arg) for arg in call.args)
    if _has_divisor(call):
        return f"({left} / {right})"
    guard = fail("DIVIDE_BY_ZERO", "Division by zero")
    return f"CASE WHEN {right} = 0 AND {left} IS NOT NULL THEN {guard} ELSE {left} / {right} END"


def _remainder(call: Call, printer: Printer) -> str:
    if call.type.is_decimal:
        return decimals.remainder(call, printer)
    left, right = (printer(arg) for arg in call.args)
    if _has_divisor(call):
        return f"({left} % {right})"
    guard = f"WHEN {right} = 0 AND {left} IS NOT NULL THEN {fail('REMAINDER_BY_ZERO', 'Remainder by zero')}"
    if call.type.is_integer:
        # The least integer % -1 overflows in DuckDB; it is 0.
        zero = f"CASE WHEN {left} IS NOT NULL THEN 0::{call.type.duckdb} END"
        return f"CASE {guard} WHEN {right} = -1 THEN {zero} ELSE {left} % {right} END"
    return f"CASE {guard} ELSE {left} % {right} END"


def _div(call: Call, printer: Printer) -> str:
    if call.args[0].type.is_decimal:
        return decimals.integral_divide(call, printer)
    if not call.args[0].type.is_integer:
        raise NotNative(f"div of {call.args[0].type.sql} has no native form")
    left, right = (printer(arg) for arg in call.args)
    # The quotient of two bigints; narrower ones are widened first, so that -128 div -1 is 128.
    wide = "" if call.args[0].type == BIGINT else "::BIGINT"
    return f"({left}{wide} // {right}{wide})"


def _negative(call: Call, printer: Printer) -> str:
    text = printer(call.args[0])
    # DuckDB widens -(least integer); zero minus it overflows, as in Spark. Floats need the minus, for -0.0.
    return f"(0::{call.type.duckdb} - {text})" if call.type.is_integer else f"(-{text})"


def _abs(call: Call, printer: Printer) -> str:
    return f"abs({printer(call.args[0])})"


def _digits(call: Call) -> int:
    if len(call.args) == 1:
        return 0
    digits = call.args[1]
    while isinstance(digits, Cast):
        digits = digits.arg
    if isinstance(digits, Call) and digits.fn == "negative" and isinstance(digits.args[0], Literal):
        return -int(digits.args[0].value)
    if not isinstance(digits, Literal) or digits.value is None:
        raise NotNative("rounding to a number of digits that is not a literal")
    return int(digits.value)


def _round(call: Call, printer: Printer) -> str:
    digits, arg = _digits(call), call.args[0]
    text = printer(arg)
    if arg.type.is_decimal:
        if call.type.scale == digits or digits >= arg.type.scale:
            return printer.number(arg).cast_to(call.type)
        if digits < 0 and call.type.scale == 0:
            return f"CAST(round({text}::DECIMAL(38,{arg.type.scale}), {digits}) AS {call.type.duckdb})"
        raise NotNative("this rounding of a decimal has no native form")
    if arg.type.is_integer:
        if digits >= 0:
            return text
        wide = f"round({text}::DECIMAL(38,0), {max(digits, -37)})"
        over = fail("ARITHMETIC_OVERFLOW", "Overflow in round")
        least, most = _bounds(call.type.duckdb)
        return (
            f"CASE WHEN {wide} NOT BETWEEN {least} AND {most} THEN {over} ELSE CAST({wide} AS {call.type.duckdb}) END"
        )
    if not -15 <= digits <= 20:
        raise NotNative("rounding a floating-point number to so many digits has no native form")
    # Spark rounds the shortest decimal text of the number, HALF_UP. From 2^53 on there is nothing after the point.
    x = f"{text}::DOUBLE"
    scale = digits if digits >= 0 else 20
    exact = f"CAST(CAST({x} AS VARCHAR) AS DECIMAL(38,{scale}))"
    rounded = exact if digits >= 0 else f"round({exact}, {digits})"
    whole = f"NOT isfinite({x}) OR abs({x}) >= 9007199254740992"
    large = x if digits >= 0 else cannot("rounding a large floating-point number left of the point")
    finite = f"NOT isfinite({x}) THEN {x} WHEN {whole} THEN {large}" if digits < 0 else f"{whole} THEN {x}"
    result = f"CASE WHEN {finite} ELSE {decimal_as_double(rounded, scale if digits >= 0 else 0)} END"
    return result if call.type == DOUBLE else f"CAST({result} AS {call.type.duckdb})"


def _bounds(kind: str) -> tuple[int, int]:
    bits = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}[kind]
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _whole(name: str) -> Build:
    """floor and ceil. Of a floating-point number they are bigint, 0 for NaN, or overflow."""

    def build(call: Call, printer: Printer) -> str:
        if len(call.args) != 1:
            raise NotNative(f"{name} to a scale has no native form")
        (arg,) = call.args
        text = printer(arg)
        if arg.type.is_integer:
            return text if arg.type == call.type else f"CAST({text} AS {call.type.duckdb})"
        if arg.type.is_decimal:
            # One digit more before the point: ceil(9.5) needs it.
            precision = min(38, arg.type.precision + 1)
            return f"CAST({name}({text}::DECIMAL({precision},{arg.type.scale})) AS {call.type.duckdb})"
        over = fail("ARITHMETIC_OVERFLOW", f"Overflow in {name}")
        inside = f"{name}({text}) >= -9223372036854775808::DOUBLE AND {name}({text}) < 9223372036854775808::DOUBLE"
        return f"CASE WHEN isnan({text}) THEN 0 WHEN NOT ({inside}) THEN {over} ELSE CAST({name}({text}) AS BIGINT) END"

    return build


def _sqrt(call: Call, printer: Printer) -> str:
    return f"sqrt({printer(call.args[0])})"


# --- time ----------------------------------------------------------------------------------------


def _part(name: str, offset: int = 0) -> Build:
    def build(call: Call, printer: Printer) -> str:
        field = f"{name}({printer.instant(call.args[0])})"
        return f"({field} + {offset})::INTEGER" if offset else f"{field}::INTEGER"

    return build


_UNITS = {
    **dict.fromkeys(("year", "yyyy", "yy"), "year"),
    "quarter": "quarter",
    **dict.fromkeys(("month", "mon", "mm"), "month"),
    "week": "week",
    **dict.fromkeys(("day", "dd"), "day"),
    **{unit: unit for unit in ("hour", "minute", "second", "millisecond", "microsecond")},
}


def _date_trunc(call: Call, printer: Printer) -> str:
    unit, arg = call.args
    if not isinstance(unit, Literal):
        raise NotNative("date_trunc to a unit that is not a literal")
    name = _UNITS.get(unit.value.lower()) if unit.value is not None else None
    if name is None:
        return f"NULL::{call.type.duckdb}"
    if not arg.type.is_timestamp:
        raise NotNative("date_trunc of what is not a timestamp")
    text = f"date_trunc('{name}', {printer.instant(arg)})"
    return f"timezone('UTC', {text})" if call.type.name == "timestamp" else text


def _date_add(sign: str) -> Build:
    def build(call: Call, printer: Printer) -> str:
        if not call.args[1].type.is_integer:
            raise NotNative("date_add of other than whole days")
        return f"({printer(call.args[0])} {sign} {printer(call.args[1])}::INTEGER)"

    return build


def _datediff(call: Call, printer: Printer) -> str:
    return f"({printer(call.args[0])} - {printer(call.args[1])})::INTEGER"


def _to_date(call: Call, printer: Printer) -> str:
    if len(call.args) != 1:
        raise NotNative("to_date with a format has no native form")
    return printer(call.args[0]) if call.args[0].type == DATE else cast(Cast(DATE, call.args[0]), printer)


def _window_start(call: Call, printer: Printer) -> str:
    ts, width = call.args
    if not isinstance(width, Literal) or not width.value:
        raise NotNative("a window whose length is not a literal")
    # Floor to a multiple of the width since 1970-01-01 UTC, also before it.
    micros = f"epoch_us({printer(ts)})"
    step = int(width.value)
    start = f"{micros} - (({micros} % {step}) + {step}) % {step}"
    return f"make_timestamptz({start})" if call.type.name == "timestamp" else f"make_timestamp({start})"


def _too_many_rows(call: Call, printer: Printer) -> str:
    message = "More than one row returned by a subquery used as an expression"
    return f"CAST({fail('SCALAR_SUBQUERY_TOO_MANY_ROWS', message)} AS {call.type.duckdb})"


def _field(call: Call, printer: Printer) -> str:
    inner, name = call.args
    assert isinstance(name, Literal)
    return f"struct_extract({printer(inner)}, {text_literal(name.value)})"


def _window_struct(call: Call, printer: Printer) -> str:
    start, end = call.args
    return f'struct_pack("start" := {printer(start)}, "end" := {printer(end)})'


_OF_NESTED = ("field", "isnull", "isnotnull", "coalesce", "if")
"""What is done to arrays and structs natively: it looks at none of their values, or takes one out."""


def require_plain(call: Call) -> None:
    """Raise :class:`NotNative` for a function that compares or computes with arrays or structs."""
    for arg in call.args:
        same = call.fn == "<=>" and arg.type.is_groupable
        if arg.type.is_nested and call.fn not in _OF_NESTED and not same:
            raise NotNative(f"{call.fn} of {arg.type.sql} has no native form")


FUNCTIONS: dict[str, Build] = {
    **{symbol: _infix(symbol) for symbol in ("=", "<>", "<", "<=", ">", ">=")},
    "<=>": _infix("IS NOT DISTINCT FROM"),
    "and": _conjunction,
    "or": _disjunction,
    "not": _around("NOT ", ""),
    "isnull": _around("", " IS NULL"),
    "isnotnull": _around("", " IS NOT NULL"),
    "in": _in,
    "coalesce": _coalesce,
    "nullif": _nullif,
    "if": _if,
    "+": _plus_minus,
    "-": _plus_minus,
    "*": _times,
    "/": _divide,
    "%": _remainder,
    "div": _div,
    "negative": _negative,
    "abs": _abs,
    "round": _round,
    "floor": _whole("floor"),
    "ceil": _whole("ceil"),
    "sqrt": _sqrt,
    "avg_of_sum": decimals.average,
    "sum_of_digits": decimals.total,
    "year": _part("year"),
    "month": _part("month"),
    "day": _part("day"),
    "hour": _part("hour"),
    "minute": _part("minute"),
    "second": _part("second"),
    "dayofweek": _part("dayofweek", 1),
    "date_trunc": _date_trunc,
    "date_add": _date_add("+"),
    "date_sub": _date_add("-"),
    "datediff": _datediff,
    "to_date": _to_date,
    "field": _field,
    **strings.FUNCTIONS,
    "window_start": _window_start,
    "window_struct": _window_struct,
    "too_many_rows": _too_many_rows,
}
