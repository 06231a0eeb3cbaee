"""ANSI casts as Spark makes them, in DuckDB text.

DuckDB rounds where Spark truncates, accepts numbers Spark refuses (``1_000``,
``0x1A``), and writes floating-point text its own way. A cast here either has the
same result for every value, or guards the values that differ: text outside the
plain form asks for a rerun by Spark SQL instead of a guess.

>>> from headrace.types import INT
>>> can_raise(INT, BIGINT), can_raise(BIGINT, INT), can_raise(STRING, INT)
(False, True, True)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.engine.native_text import NotNative, cannot, fail
from headrace.plan.exprs import Cast
from headrace.types import BIGINT, BINARY, BOOLEAN, DATE, DOUBLE, FLOAT, STRING, Type

if TYPE_CHECKING:
    from headrace.engine.native_sql import Printer

Build = Callable[[Cast, "Printer"], str]

_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
"""The decimal digits each integer type needs."""

_FIRST_DAY, _LAST_DAY = "DATE '0001-01-01'", "DATE '9999-12-31'"


def cast(expr: Cast, printer: Printer) -> str:
    """The text of an ANSI cast, of exactly the target type."""
    source, target = expr.arg.type, expr.type
    if source == target:
        return printer(expr.arg)
    if source.name == "void":
        printer(expr.arg)  # refuses what is of Spark's: raise_error('…') has this type, too, and is no NULL
        return f"NULL::{target.duckdb}"
    build = _BY_TARGET.get(_kind(target))
    if build is None:
        raise NotNative(f"cast to {target.sql} has no native form")
    return build(expr, printer)


def can_raise(source: Type, target: Type) -> bool:
    """Whether some value of ``source`` makes the cast raise (conservatively)."""
    if source == target or source.name == "void" or (target == BOOLEAN and source.is_numeric):
        return False
    if source == BOOLEAN:
        return target.is_decimal and target.precision == target.scale
    if source.is_integer and target.is_integer:
        return _DIGITS[source.name] > _DIGITS[target.name]
    if source.is_integer and target.is_decimal:
        return _DIGITS[source.name] > target.precision - target.scale
    if source.is_decimal and target.is_decimal:
        # A lost digit after the point may carry one more before it.
        carry = target.scale < source.scale
        return source.precision - source.scale + carry > target.precision - target.scale
    if source.is_integer or source.is_decimal or source == FLOAT:
        return not (target.is_float or (target == STRING and source != FLOAT))
    return not (source.is_timestamp and target == DATE)


def decimal_as_double(sql: str, scale: int, target: Type = DOUBLE) -> str:
    """A decimal as the nearest floating-point number.

    DuckDB divides the unscaled integer by a power of ten: correctly rounded only
    while both are exact doubles. Beyond, the decimal text is parsed, which is.
    """
    parsed = f"CAST(CAST({sql} AS VARCHAR) AS {target.duckdb})"
    if target != DOUBLE or scale > 15:
        return parsed
    exact = 2**53 // 10**scale
    return f"CASE WHEN {sql} BETWEEN -{exact} AND {exact} THEN CAST({sql} AS DOUBLE) ELSE {parsed} END"


def _kind(kind: Type) -> str:
    return "integer" if kind.is_integer else "float" if kind.is_float else kind.name


def _no_form(expr: Cast) -> NotNative:
    return NotNative(f"cast of {expr.arg.type.sql} to {expr.type.sql} has no native form")


def _parsed(text: str, pattern: str, value: str, expr: Cast, hopeless: str | None = None) -> str:
    """Text that fully matches ``pattern`` is ``value``; any other form is Spark's to judge.

    ``hopeless`` matches text Spark surely refuses, so that plain bad input needs no rerun.
    """
    refused = ""
    if hopeless:
        message = f" of the type STRING cannot be cast to {expr.type.sql.upper()} because it is malformed"
        refused = f"WHEN regexp_matches({text}, '{hopeless}') THEN {fail('CAST_INVALID_INPUT', message, text)} "
    guard = cannot(f"unusual text cast to {expr.type.sql}")
    return (
        f"CASE WHEN {text} IS NULL THEN NULL WHEN regexp_full_match({text}, '{pattern}') THEN {value} "
        f"{refused}ELSE {guard} END"
    )


def _to_string(expr: Cast, printer: Printer) -> str:
    source, text = expr.arg.type, printer(expr.arg)
    if source.is_integer or source == BOOLEAN:
        return f"CAST({text} AS VARCHAR)"
    if source.is_decimal:
        if source.precision > source.scale:
            return f"CAST({text} AS VARCHAR)"
        if source.precision == 38:
            raise _no_form(expr)
        # With no digit before the point DuckDB writes none, Spark a zero.
        return f"CAST({text}::DECIMAL({source.precision + 1},{source.scale}) AS VARCHAR)"
    if source.is_float:
        guard = cannot("a floating-point number whose text has an exponent or nine digits")
        odd = ""
        if source == FLOAT:
            # Of two texts that name the same float Java takes the shorter, DuckDB at nine digits may not.
            odd = f"WHEN length(ltrim(replace(CAST(abs({text}) AS VARCHAR), '.', ''), '0')) >= 9 THEN {guard} "
        return (
            f"CASE WHEN isnan({text}) THEN 'NaN' WHEN isinf({text}) THEN CASE WHEN {text} > 0 THEN 'Infinity' "
            f"ELSE '-Infinity' END WHEN abs({text}) >= 10000000 OR (abs({text}) < 0.001 AND {text} <> 0) THEN {guard} "
            f"{odd}ELSE CAST({text} AS VARCHAR) END"
        )
    if source == DATE or source.is_timestamp:
        fields = printer.instant(expr.arg)
        guard = cannot("the text of a year outside 0001 to 9999")
        outside = f"{fields} < {_FIRST_DAY} OR {fields} >= {_LAST_DAY} + 1"
        return f"CASE WHEN {outside} THEN {guard} ELSE CAST({fields} AS VARCHAR) END"
    if source == BINARY:
        return f"decode({text})"
    raise _no_form(expr)


def _to_binary(expr: Cast, printer: Printer) -> str:
    if expr.arg.type != STRING:
        raise _no_form(expr)
    return f"encode({printer(expr.arg)})"


def _to_boolean(expr: Cast, printer: Printer) -> str:
    text = printer(expr.arg)
    if expr.arg.type.is_numeric:
        return f"({text} <> 0)"
    if expr.arg.type != STRING:
        raise _no_form(expr)
    value = f"lower({text}) IN ('t', 'true', 'y', 'yes', '1')"
    return _parsed(text, "(?i)t|true|y|yes|1|f|false|n|no|0", value, expr, "[2-9.,;_]")


def _to_integer(expr: Cast, printer: Printer) -> str:
    source, target, text = expr.arg.type, expr.type, printer(expr.arg)
    if source.is_integer or source == BOOLEAN:
        return f"CAST({text} AS {target.duckdb})"
    if source.is_decimal:
        return f"CAST(trunc({text}) AS {target.duckdb})"
    if source.is_float:
        whole = f"CAST(trunc({text}) AS {target.duckdb})"
        if target != BIGINT:
            return whole
        # 2^63 is one past the largest bigint, yet Spark compares in doubles, lets it pass and saturates.
        return f"CASE WHEN {text} = 9223372036854775808::DOUBLE THEN 9223372036854775807 ELSE {whole} END"
    if source == STRING:
        # One digit less than the type's: what may not fit is left to Spark.
        pattern = f"[+-]?[0-9]{{1,{_DIGITS[target.name] - 1}}}"
        return _parsed(text, pattern, f"CAST({text} AS {target.duckdb})", expr, "[A-Za-z.,_]")
    if source.name == "timestamp":
        micros = f"epoch_us({text})"
        seconds = f"({micros} - ((({micros} % 1000000) + 1000000) % 1000000)) // 1000000"
        return f"CAST({seconds} AS {target.duckdb})"
    raise _no_form(expr)


def _to_float(expr: Cast, printer: Printer) -> str:
    source, target, text = expr.arg.type, expr.type, printer(expr.arg)
    if source.is_integer or source in (BOOLEAN, FLOAT):
        return f"CAST({text} AS {target.duckdb})"
    if source.is_decimal:
        return decimal_as_double(text, source.scale, target)
    if source == DOUBLE:
        guard = cannot("a double outside the range of float")
        finite = f"isfinite({text}) AND abs({text}) > 3.4028234e38"
        return f"CASE WHEN {finite} THEN {guard} ELSE CAST({text} AS FLOAT) END"
    if source == STRING:
        number = r"[+-]?([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][+-]?[0-9])?"
        return _parsed(text, number, f"CAST({text} AS {target.duckdb})", expr, "[G-HJ-KO-XZg-hj-kp-qsu-xz_,;:]")
    if source.name == "timestamp" and target == DOUBLE:
        return f"(epoch_us({text})::DOUBLE / 1000000)"
    raise _no_form(expr)


def _to_decimal(expr: Cast, printer: Printer) -> str:
    source, target, text = expr.arg.type, expr.type, printer(expr.arg)
    if source.is_integer or source.is_decimal:
        return f"CAST({text} AS {target.duckdb})"
    if source == BOOLEAN:
        # By way of an integer: DuckDB makes TRUE the smallest decimal of a type without whole digits.
        return f"CAST(CAST({text} AS INTEGER) AS {target.duckdb})"
    if source.is_float:
        # Spark takes the decimal text of the number, HALF_UP; DuckDB would scale the binary value.
        number = text if source == DOUBLE else f"{text}::DOUBLE"
        guard = cannot("a number that is not finite, or too large, as decimal")
        size = f"abs({number})"
        # Java writes some numbers from 2^53 on with more digits than needed, and Spark keeps those.
        limit = f"least(1e{target.precision - target.scale}::DOUBLE, 9007199254740992::DOUBLE)"
        if target.scale > 30:
            raise _no_form(expr)
        # At full width first: in '1e-07' DuckDB wants room for the 1 before it looks at the exponent.
        parsed = f"CAST(CAST(CAST({number} AS VARCHAR) AS DECIMAL(38,{target.scale})) AS {target.duckdb})"
        # DuckDB does not parse text with a large negative exponent; such numbers are zero.
        tiny = f"{size} < 1e-{target.scale + 2}::DOUBLE"
        return (
            f"CASE WHEN {text} IS NULL THEN NULL WHEN {tiny} THEN 0::{target.duckdb} "
            f"WHEN {size} < {limit} THEN {parsed} ELSE {guard} END"
        )
    if source == STRING:
        number = r"[+-]?([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})"
        return _parsed(text, number, f"CAST({text} AS {target.duckdb})", expr, "[A-DF-Za-df-z_,;:]")
    raise _no_form(expr)


_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"


def _to_date(expr: Cast, printer: Printer) -> str:
    text = printer(expr.arg)
    if expr.arg.type == STRING:
        return _parsed(text, _DAY, f"CAST({text} AS DATE)", expr, "^[A-SU-Za-su-z]")
    if expr.arg.type.is_timestamp:
        return f"CAST({printer.instant(expr.arg)} AS DATE)"
    raise _no_form(expr)


def _wall_clock(expr: Cast, printer: Printer) -> str | None:
    """Text or a date as DuckDB's zoneless timestamp."""
    text = printer(expr.arg)
    if expr.arg.type == STRING:
        pattern = f"{_DAY}([ T][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\\.[0-9]{{1,6}})?)?"
        return _parsed(text, pattern, f"CAST({text} AS TIMESTAMP)", expr, "^[A-SU-Za-su-z]")
    return f"CAST({text} AS TIMESTAMP)" if expr.arg.type == DATE else None


def _to_timestamp(expr: Cast, printer: Printer) -> str:
    source = expr.arg.type
    if source.is_integer:
        text = printer(expr.arg)
        guard = cannot("seconds outside the years 0001 to 9999")
        outside = f"{text} NOT BETWEEN -62135596800 AND 253402300799"
        return f"CASE WHEN {outside} THEN {guard} ELSE make_timestamptz({text}::BIGINT * 1000000) END"
    if not printer.utc:
        raise NotNative("a cast to timestamp depends on the session time zone, which is not UTC")
    wall = printer(expr.arg) if source.name == "timestamp_ntz" else _wall_clock(expr, printer)
    if wall is None:
        raise _no_form(expr)
    return f"timezone('UTC', {wall})"


def _to_timestamp_ntz(expr: Cast, printer: Printer) -> str:
    wall = printer.instant(expr.arg) if expr.arg.type.name == "timestamp" else _wall_clock(expr, printer)
    if wall is None:
        raise _no_form(expr)
    return wall


_BY_TARGET: dict[str, Build] = {
    "string": _to_string,
    "binary": _to_binary,
    "boolean": _to_boolean,
    "integer": _to_integer,
    "float": _to_float,
    "decimal": _to_decimal,
    "date": _to_date,
    "timestamp": _to_timestamp,
    "timestamp_ntz": _to_timestamp_ntz,
}
