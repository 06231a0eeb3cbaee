"""Arrow values as Python's; a date or time that Python's calendar lacks is text, as Spark prints it.

Spark's calendar reaches from the year -290308 (dates from -5877641) far beyond Python's last year, 9999.

>>> python_values(pa.chunked_array([pa.array([0, 2932897, -735500], pa.date32())]))
[datetime.date(1970, 1, 1), '+10000-01-01', '-0044-04-09']
>>> python_values(pa.chunked_array([pa.array([[253402300800000000]], pa.list_(pa.timestamp("us", tz="UTC")))]))
[['+10000-01-01 00:00:00+00:00']]
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

_CYCLE = 146_097
"""Days after which the calendar repeats: 400 years."""
_ZERO = dt.date(1970, 1, 1).toordinal() - 1
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column."""
    try:
        found: list[Any] = column.to_pylist()
        return found
    except (OverflowError, ValueError):
        return [_value(scalar) for chunk in column.chunks for scalar in chunk]


def _value(scalar: pa.Scalar) -> Any:
    t, kind = pa.types, scalar.type
    if not scalar.is_valid:
        return None
    if t.is_struct(kind):
        return {name: _value(item) for name, item in scalar.items()}
    if t.is_map(kind):
        return [(_value(item["key"]), _value(item["value"])) for item in scalar.values]
    if hasattr(scalar, "values") and t.is_nested(kind):
        return [_value(item) for item in scalar.values]
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        if t.is_date32(kind):
            return date_text(scalar.value)
        if t.is_timestamp(kind):
            seconds, rest = divmod(scalar.value, _PER_SECOND[kind.unit])
            days, seconds = divmod(seconds, 86_400)
            micros = rest * 1_000_000 // _PER_SECOND[kind.unit]
            time = dt.time(seconds // 3600, seconds // 60 % 60, seconds % 60, micros)
            return f"{date_text(days)} {time}{'+00:00' if kind.tz is not None else ''}"
        raise


def date_text(days: int) -> str:
    """The day so many days after 1970-01-01, as Spark prints it.

    >>> date_text(0), date_text(2145042905), date_text(-719529)
    ('1970-01-01', '+5874897-12-31', '-0001-12-31')
    """
    cycles, day = divmod(days + _ZERO, _CYCLE)
    found = dt.date.fromordinal(day + 1)
    year = found.year + 400 * cycles
    return f"{'+' if year > 9999 else ''}{year:0{5 if year < 0 else 4}d}{found:-%m-%d}"
