"""Typing of arithmetic: numbers, and dates with intervals.

Integers and floats compute in the wider of the two types. Decimals keep their
own precisions and the result has Spark's (with precision loss allowed). Dates
and timestamps take days, intervals and each other. ANSI reads a string beside
an integer as a bigint, beside any other number as a double.

>>> from headrace.plan.exprs import Column
>>> price, discount = Column(decimal(15, 2), 1, "p"), Column(decimal(15, 2), 2, "d")
>>> arithmetic("*", price, arithmetic("-", Literal(INT, 1), discount)).type.sql
'decimal(32,4)'
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.plan.exprs import Call, Cast, Expr, Literal
from headrace.sql.coercion import cast, decimal_result, to_decimal_operand, wider_type
from headrace.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    MAX_PRECISION,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    Type,
    decimal,
    from_spark,
)

DATE_DIFFERENCE = from_spark("interval day")
TIMESTAMP_DIFFERENCE = from_spark("interval day to second")


class Mismatch(Exception):
    """Spark refuses these argument types; the message says why."""


def arithmetic(operator: str, a: Expr, b: Expr) -> Expr | None:
    """``a operator b`` with Spark's implicit casts, ``None`` where only Spark knows them."""
    if VOID in (a.type, b.type):
        # A bare NULL takes surprising types (a date plus NULL is a timestamp): Spark decides.
        return None
    if _is_temporal(a.type) or _is_temporal(b.type):
        return _temporal(operator, a, b)
    if not (a.type.is_native and b.type.is_native):
        return None
    for side in (a, b):
        if side.type in (BOOLEAN, BINARY):
            raise _refused(operator, a, b)
    if STRING in (a.type, b.type):
        if a.type == b.type:
            raise _refused(operator, a, b)
        target = wider_type(a.type, b.type)
        assert target is not None
        if operator == "div" and target == DOUBLE:
            raise _refused(operator, a, b)
        a, b = cast(a, target), cast(b, target)
    return _numeric(operator, a, b)


def _refused(operator: str, a: Expr, b: Expr) -> Mismatch:
    return Mismatch(f"{a.type} {operator} {b.type} is not defined")


def _numeric(operator: str, a: Expr, b: Expr) -> Expr:
    floating = a.type.is_float or b.type.is_float
    if (a.type.is_decimal or b.type.is_decimal) and not floating:
        a, b = to_decimal_operand(a), to_decimal_operand(b)
        result = BIGINT if operator == "div" else decimal_result(operator, a.type, b.type)
        return Call(result, operator, (a, b))
    if operator == "div" and floating:
        raise _refused(operator, a, b)
    target = {"/": DOUBLE, "div": BIGINT}.get(operator) or wider_type(a.type, b.type)
    assert target is not None
    return Call(target, operator, (cast(a, target), cast(b, target)))


# --- dates, timestamps, intervals -----------------------------------------------------------


def _is_temporal(type_: Type) -> bool:
    return type_ == DATE or type_.is_timestamp or _is_interval(type_)


def _is_interval(type_: Type) -> bool:
    return type_.name in ("interval_month", "interval_time")


def _temporal(operator: str, a: Expr, b: Expr) -> Expr | None:
    if operator == "+" and not (a.type == DATE or a.type.is_timestamp):
        a, b = b, a
    moment = a.type == DATE or a.type.is_timestamp
    if STRING in (a.type, b.type) or not moment:
        # Strings beside dates, intervals among themselves or times a number: left to Spark.
        return None
    if operator in ("+", "-"):
        if _is_interval(b.type):
            return _shifted(operator, a, b)
        if a.type == DATE and b.type.is_integer and b.type != BIGINT:
            return Call(DATE, "date_add" if operator == "+" else "date_sub", (a, cast(b, INT)))
    if operator == "-" and (b.type == DATE or b.type.is_timestamp):
        target = wider_type(a.type, b.type)
        assert target is not None
        result = DATE_DIFFERENCE if target == DATE else TIMESTAMP_DIFFERENCE
        return Call(result, "-", (cast(a, target), cast(b, target)))
    if not b.type.is_native and not _is_interval(b.type):
        return None
    raise _refused(operator, a, b)


def _shifted(operator: str, moment: Expr, by: Expr) -> Expr:
    """A date stays a date under months and whole days; smaller units make it a timestamp."""
    if moment.type == DATE and by.type.name == "interval_time" and by.type != DATE_DIFFERENCE:
        moment = cast(moment, TIMESTAMP)
    assert moment.type in (DATE, TIMESTAMP, TIMESTAMP_NTZ)
    return Call(moment.type, operator, (moment, by))


# --- one-argument functions -----------------------------------------------------------------


def _number(args: tuple[Expr, ...], name: str) -> Expr | None:
    """The argument as a number: a string becomes a double. ``None``: Spark decides."""
    value = args[0]
    if value.type == VOID or not value.type.is_native:
        return None
    if value.type == STRING:
        return cast(value, DOUBLE)
    if not value.type.is_numeric:
        raise Mismatch(f"{name} needs a number, not {value.type}")
    return value


def negative(args: tuple[Expr, ...]) -> Expr | None:
    value = _number(args, "unary minus")
    return value and Call(value.type, "negative", (value,))


def positive(args: tuple[Expr, ...]) -> Expr | None:
    value = _number(args, "unary plus")
    # A literal with a plus before it is none to Spark, whose least decimal would count.
    return Cast(value.type, value) if isinstance(value, Literal) else value


def absolute(args: tuple[Expr, ...]) -> Expr | None:
    value = _number(args, "abs")
    return value and Call(value.type, "abs", (value,))


def rounded(args: tuple[Expr, ...]) -> Expr | None:
    """``round(x [, places])``; the places must be a literal to be claimed. The call always has both."""
    value = _number(args, "round")
    places = args[1] if len(args) > 1 else Literal(INT, 0)
    if value is None or not isinstance(places, Literal) or places.type != INT or places.value is None:
        return None
    result = value.type
    if result.is_decimal:
        result = _rounded_decimal(result, places.value)
    return Call(result, "round", (value, places))


def _rounded_decimal(type_: Type, places: int) -> Type:
    """Rounding may carry into one more integral digit.

    >>> _rounded_decimal(decimal(5, 2), 1).sql, _rounded_decimal(decimal(5, 2), -7).sql
    ('decimal(5,1)', 'decimal(8,0)')
    """
    integral = type_.precision - type_.scale + 1
    if places < 0:
        return decimal(min(MAX_PRECISION, max(integral, 1 - places)), 0)
    scale = min(places, type_.scale)
    return decimal(min(MAX_PRECISION, integral + scale), scale)


def floor_or_ceil(name: str) -> Callable[[tuple[Expr, ...]], Expr | None]:
    """``floor``/``ceil`` of one argument: a bigint, or a decimal without places."""

    def rule(args: tuple[Expr, ...]) -> Expr | None:
        value = _number(args, name)
        if value is None or len(args) > 1:
            return None
        if value.type.is_decimal:
            integral = value.type.precision - value.type.scale + (value.type.scale > 0)
            return Call(decimal(integral, 0), name, (value,))
        return Call(BIGINT, name, (cast(value, BIGINT if value.type.is_integer else DOUBLE),))

    return rule
