"""Spark's literals as typed values.

A literal's type is read off its spelling: ``1`` is an int, ``3000000000`` a
bigint, ``1.50`` a decimal(3,2), ``1e3`` a double, ``1L`` a bigint. The sign
belongs to the number, or the least int could not be written:

>>> number("-2147483648").type.sql, number("2147483648").type.sql
('int', 'bigint')
>>> number("0.05").type.sql, number("1e2BD").type.sql
('decimal(2,2)', 'decimal(3,0)')

A function here returns ``None`` for a spelling it does not know: Spark decides then.
"""

from __future__ import annotations

import re
import struct
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal

from sqlglot import exp

from headrace.errors import SqlError
from headrace.plan.exprs import Cast, Expr, Literal
from headrace.types import (
    BIGINT,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    MAX_PRECISION,
    SMALLINT,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    Type,
    decimal,
    from_spark,
)

_NUMBER = re.compile(r"(-?(?:\d+\.?\d*|\.\d+)(E[+-]?\d+)?)(BD|[LSYDF])?", re.IGNORECASE)
_RANGE = {TINYINT: 1 << 7, SMALLINT: 1 << 15, INT: 1 << 31, BIGINT: 1 << 63}
_SUFFIX = {"L": BIGINT, "S": SMALLINT, "Y": TINYINT, "D": DOUBLE, "F": FLOAT}


def _fits(value: int, type_: Type) -> bool:
    return -_RANGE[type_] <= value < _RANGE[type_]


def _out_of_range(text: str) -> SqlError:
    return SqlError(
        "INVALID_NUMERIC_LITERAL_RANGE",
        f"the numeric literal {text} is outside its type's range",
        hint="write it with a wider type, e.g. as a decimal or a double",
    )


def number(text: str) -> Literal:
    """The literal a number's spelling means.

    >>> number("1.5F").value, number("12S").type.sql, number("5.").type.sql
    (1.5, 'smallint', 'decimal(1,0)')
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise SqlError("PARSE_SYNTAX_ERROR", f"{text} is not a number")
    digits, exponent, suffix = match[1], match[2], (match[3] or "").upper()
    if suffix == "BD":
        return _decimal(digits, text)
    if suffix in ("D", "F") or (exponent and not suffix):
        return _floating(digits, _SUFFIX.get(suffix, DOUBLE), text)
    if suffix:
        type_ = _SUFFIX[suffix]
        if "." in digits or exponent or not _fits(int(digits), type_):
            raise _out_of_range(text)
        return Literal(type_, int(digits))
    if "." in digits:
        return _decimal(digits, text)
    value = int(digits)
    for type_ in (INT, BIGINT):
        if _fits(value, type_):
            return Literal(type_, value)
    return _decimal(digits, text)


def _decimal(digits: str, text: str) -> Literal:
    value = Decimal(digits)
    _, unscaled, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    precision, scale = (len(unscaled), -exponent) if exponent <= 0 else (len(unscaled) + exponent, 0)
    precision = max(precision, scale)
    if precision > MAX_PRECISION:
        raise SqlError(
            "DECIMAL_PRECISION_EXCEEDS_MAX_PRECISION",
            f"{text} has more digits than the {MAX_PRECISION} of a decimal",
            hint="write it with an exponent, as a double",
        )
    return Literal(decimal(precision, scale), Decimal(format(value, "f")))


def _floating(digits: str, type_: Type, text: str) -> Literal:
    value = float(digits)
    if type_ == FLOAT:
        try:
            value = struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            raise _out_of_range(text) from None
    if value in (float("inf"), float("-inf")):
        raise _out_of_range(text)
    return Literal(type_, value)


# --- dates and timestamps -------------------------------------------------------------------

_DATE = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?")
_TIMESTAMP = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,6}))?)?)?"
    r"\s*(Z|UTC|[+-]\d{1,2}:\d{2})?"
)


def _invalid(text: str, type_: Type) -> SqlError:
    return SqlError(
        "INVALID_TYPED_LITERAL",
        f"'{text}' is not a valid {type_.sql}",
        hint="write DATE '2024-12-31' or TIMESTAMP '2024-12-31 23:59:59'",
    )


def date_literal(text: str) -> Literal | None:
    """``DATE '…'``.

    >>> date_literal("2024-2-29").value
    datetime.date(2024, 2, 29)
    """
    match = _DATE.fullmatch(text.strip())
    if match is None:
        return None
    try:
        return Literal(DATE, date(int(match[1]), int(match[2] or 1), int(match[3] or 1)))
    except ValueError:
        raise _invalid(text, DATE) from None


def timestamp_literal(text: str, type_: Type, zone: tzinfo | None) -> Expr | None:
    """``TIMESTAMP '…'`` and its kin. Text without a zone is in the session's ``zone``.

    With the zone unknown here the literal is a local time and a cast, which says the
    same and leaves the zone to whoever runs it.

    >>> timestamp_literal("2024-01-01 12:00:00.5+01:00", TIMESTAMP, None).value
    datetime.datetime(2024, 1, 1, 11, 0, 0, 500000, tzinfo=datetime.timezone.utc)
    """
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in match.group(1, 2, 3, 4, 5, 6))
    try:
        local = datetime(year, month, day, hour, minute, second, int((match[7] or "").ljust(6, "0")))
    except ValueError:
        raise _invalid(text, type_) from None
    if type_ == TIMESTAMP_NTZ:
        return Literal(TIMESTAMP_NTZ, local)
    if match[8]:
        return Literal(TIMESTAMP, local.replace(tzinfo=_offset(match[8])).astimezone(UTC))
    if zone is None:
        return Cast(TIMESTAMP, Literal(TIMESTAMP_NTZ, local))
    return Literal(TIMESTAMP, local.replace(tzinfo=zone).astimezone(UTC))


def _offset(text: str) -> tzinfo:
    if text in ("Z", "UTC"):
        return UTC
    hours, minutes = text[1:].split(":")
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    return timezone(-offset if text[0] == "-" else offset)


# --- intervals ------------------------------------------------------------------------------

_MONTHS = {"year": 12, "month": 1}
_MICROS = {
    "week": 7 * 86_400_000_000,
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
# The field a unit counts in: Spark has no interval type of weeks or of milliseconds.
_FIELD = {"week": "day", "millisecond": "second", "microsecond": "second"}
_FIELDS = ("year", "month", "day", "hour", "minute", "second")
_PART = re.compile(r"([+-]?\s*\d*\.?\d+)\s*([a-z]+)\s*", re.IGNORECASE)
_YEAR_TO_MONTH = re.compile(r"([+-]?)(\d+)-(\d+)")


def interval(parts: list[tuple[str, str]]) -> Literal | None:
    """An interval of several (count, unit) pairs; its type runs from its largest to its smallest unit.

    >>> found = interval([("1", "day"), ("2", "HOURS")])
    >>> found.type.sql, found.value == 26 * 3_600_000_000
    ('interval day to hour', True)
    >>> interval([("1", "month"), ("1", "day")]) is None
    True
    """
    months, micros, fields = 0, Decimal(0), set()
    for count, unit in parts:
        unit = unit.lower().removesuffix("s")
        amount = Decimal("".join(count.split()))
        if unit not in _MONTHS and unit not in _MICROS:
            return None
        if amount != int(amount) and unit != "second":
            return None
        if unit in _MONTHS:
            months += int(amount) * _MONTHS[unit]
        else:
            micros += amount * _MICROS[unit]
        fields.add(_FIELD.get(unit, unit))
    if not fields or (fields & set(_MONTHS) and fields - set(_MONTHS)) or micros != int(micros):
        return None
    ordered = sorted(fields, key=_FIELDS.index)
    ddl = f"interval {ordered[0]}" + (f" to {ordered[-1]}" if len(ordered) > 1 else "")
    return Literal(from_spark(ddl), months if ordered[0] in _MONTHS else int(micros))


def interval_text(text: str) -> Literal | None:
    """An interval in one string, as ``INTERVAL '1 day 2 hours'`` or ``window(ts, '10 minutes')`` has it.

    >>> interval_text("10 minutes").value
    600000000
    """
    text = text.strip().lower().removeprefix("interval ").strip()
    parts = _PART.findall(text)
    return interval(parts) if parts and not _PART.sub("", text) else None


def interval_span(text: str, first: str, last: str) -> Literal | None:
    """``INTERVAL '1-2' YEAR TO MONTH``, ``'1 02:03:04.5' DAY TO SECOND`` and the spans between.

    >>> interval_span("1-2", "YEAR", "MONTH").value, interval_span("1 02", "day", "hour").value // 3_600_000_000
    (14, 26)
    """
    first, last = first.lower(), last.lower()
    if (first, last) == ("year", "month"):
        match = _YEAR_TO_MONTH.fullmatch(text.strip())
        if match is None or int(match[3]) > 11:
            return None
        months = int(match[2]) * 12 + int(match[3])
        return Literal(from_spark("interval year to month"), -months if match[1] == "-" else months)
    if first not in _FIELDS[2:] or last not in _FIELDS[2:]:
        return None
    fields = _FIELDS[_FIELDS.index(first) : _FIELDS.index(last) + 1]
    body = text.strip()
    sign = -1 if body.startswith("-") else 1
    # A blank stands behind days and nowhere else.
    marks = [" " if field == "day" else ":" for field in fields[:-1]]
    numbers = re.split(r"[ :]", body.lstrip("+-"))
    if re.findall(r"[ :]", body) != marks or not all(re.fullmatch(r"\d+(\.\d{1,6})?", n) for n in numbers):
        return None
    if len(fields) < 2 or body[:2] in ("--", "++", "-+", "+-"):
        return None
    found = interval(list(zip(numbers, fields, strict=True)))
    if found is None or found.type.sql != f"interval {first} to {last}":
        return None
    return Literal(found.type, sign * found.value)


def interval_literal(node: exp.Interval) -> Literal | None:
    """The value of a parsed INTERVAL literal."""
    unit, value = node.args.get("unit"), node.this
    if not isinstance(value, exp.Literal):
        return None
    if isinstance(unit, exp.IntervalSpan):
        return interval_span(value.name, unit.this.name, unit.expression.name)
    return interval_text(value.name if unit is None else f"{value.name} {unit.name}")
