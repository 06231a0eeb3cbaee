"""What a column is in rows that come without it: its DEFAULT, or NULL.

A default is a constant, or the time of the statement: then one moment for all rows and columns of a statement, however
often it is asked for.

>>> from headrace.types import DATE, INT, TIMESTAMP, Default
>>> lacking(Field("a", INT, default=Default("1 + 1", 2))), lacking(Field("b", INT))
(2, None)
>>> at = Field("at", TIMESTAMP, default=Default("now()", zone="UTC"))
>>> with one_moment():
...     lacking(at) == lacking(at), lacking_rows(at, 2).type
(True, TimestampType(timestamp[us, tz=UTC]))
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from headrace.types import DATE, TIMESTAMP_NTZ, Field

_MOMENT: ContextVar[list[dt.datetime] | None] = ContextVar("the time of the running statement", default=None)


@contextmanager
def one_moment() -> Iterator[None]:
    """A statement: it is the same moment for all of it."""
    if _MOMENT.get() is not None:
        yield
        return
    before = _MOMENT.set([])
    try:
        yield
    finally:
        _MOMENT.reset(before)


def lacking(column: Field) -> Any:
    """The column's value in rows that come without it, as a literal has it."""
    if (default := column.default) is None:
        return None
    if not default.zone:
        return default.constant
    asked = _MOMENT.get()
    if not asked:
        now = dt.datetime.now(dt.UTC)
        if asked is None:
            asked = [now]
        else:
            asked.append(now)
    local = asked[0].astimezone(ZoneInfo(default.zone))
    if column.type == DATE:
        return local.date()
    return local.replace(tzinfo=None) if column.type == TIMESTAMP_NTZ else asked[0]


def lacking_rows(column: Field, rows: int) -> pa.Array:
    """So many of these values."""
    value = lacking(column)
    if value is None:
        return pa.nulls(rows, column.type.arrow)
    return pa.repeat(pa.scalar(value, column.type.arrow), rows)


def settled(column: Field) -> Field:
    """The column with what it is now, for whoever fills it in elsewhere."""
    if column.default is None or not column.default.zone:
        return column
    return replace(column, default=replace(column.default, constant=lacking(column), zone=""))
