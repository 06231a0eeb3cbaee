"""Options of CREATE VIEW and CREATE STREAM: ``WITH (retain = '7 days')``, ``WITH (capacity = 1000000)``.

A length of time is days, hours, minutes, seconds: months and years are longer or shorter by turns.

>>> span_text(604_800_000_000), span_text(5_400_000_000), span_text(1)
('7 days', '1 hour 30 minutes', '0.000001 seconds')
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from sqlglot import exp

from headrace.catalog import Buffer
from headrace.errors import NotYetSupported, Position, SqlError
from headrace.sql.literals import interval_literal, interval_text
from headrace.sql.parsing import node_at

_OVERFLOWS = ("block", "overwrite", "error")
_DAY = 86_400_000_000
_UNITS = (("day", _DAY), ("hour", 3_600_000_000), ("minute", 60_000_000))
_EVER = (1 << 63) - 1
_LONGEST_WAIT = 36_500 * _DAY
"""A hundred years: clocks count nanoseconds in 64 bits."""


def retain_of(tree: exp.Expr, at: Position) -> int | None:
    """For how many microseconds a view keeps its groups, if its CREATE statement says so."""
    properties = tree.args.get("properties")
    found: int | None = None
    for option in properties.expressions if properties is not None else ():
        position = node_at(option) or at
        if type(option) is not exp.Property:  # those Spark has a word for are kinds of their own
            raise NotYetSupported("COMMENT and other properties of a view", position=position)
        if option.name.lower() != "retain":
            raise SqlError(
                "VIEW_OPTION_UNKNOWN",
                f"a view has no option {option.name}",
                position=position,
                hint="it has retain: WITH (retain = '7 days')",
            )
        if found is not None:
            raise SqlError("VIEW_REPEATED_OPTION", "retain is given twice", position=position)
        found = _span("retain", "7 days", option.args.get("value"), position)
    return found


def buffer_of(tree: exp.Expr, at: Position) -> Buffer | None:
    """What a CREATE STREAM statement says of the stream's buffer, if it says anything."""
    properties = tree.args.get("properties")
    if properties is None:
        return None
    buffer, given = Buffer(), set[str]()
    for option in properties.expressions:
        position, name = node_at(option) or at, option.name.lower()
        if type(option) is not exp.Property:
            raise NotYetSupported("COMMENT and other properties of a stream", position=position)
        if name not in ("capacity", "timeout", "overflow", "patience"):
            raise SqlError(
                "STREAM_OPTION_UNKNOWN",
                f"a stream has no option {option.name}",
                position=position,
                hint="it has capacity, timeout, overflow, patience: WITH (capacity = 1000000, timeout = '2 seconds')",
            )
        if name in given:
            raise SqlError("STREAM_REPEATED_OPTION", f"{name} is given twice", position=position)
        given.add(name)
        value = option.args.get("value")
        if name == "capacity":
            buffer = replace(buffer, capacity=_capacity(value, position))
        elif name == "overflow":
            buffer = replace(buffer, overflow=_overflow(value, position))
        elif name == "timeout":
            buffer = replace(buffer, timeout=_span(name, "2 seconds", value, position, _LONGEST_WAIT))
        else:
            buffer = replace(buffer, patience=_span(name, "2 seconds", value, position, _LONGEST_WAIT))
    return buffer


def _capacity(value: exp.Expr | None, position: Position) -> int:
    given = value.name if isinstance(value, exp.Literal) else ""
    if not given.isdigit() or not 0 < int(given) < 1 << 62:
        raise SqlError(
            "INVALID_CAPACITY",
            f"capacity is {value.sql() if value is not None else 'empty'}",
            position=position,
            hint="give how many rows are to be buffered, 1 or more: capacity = 1000000",
        )
    return int(given)


def _overflow(value: exp.Expr | None, position: Position) -> str:
    given = value.name.lower() if value is not None else ""
    if given not in _OVERFLOWS:
        raise SqlError(
            "INVALID_OVERFLOW",
            f"overflow is {value.sql() if value is not None else 'empty'}",
            position=position,
            hint="it is 'block', 'overwrite' or 'error'",
        )
    return given


def _span(name: str, example: str, value: exp.Expr | None, position: Position, longest: int = _EVER) -> int:
    length = None
    if isinstance(value, exp.Interval):
        length = interval_literal(value)
    elif isinstance(value, exp.Literal) and value.is_string:
        length = interval_text(value.name)
    if length is None or length.type.name != "interval_time" or not 0 < length.value <= longest:
        raise SqlError(
            f"INVALID_{name.upper()}",
            f"{name} is {value.sql() if value is not None else 'empty'}",
            position=position,
            hint=f"give a length of time in days (up to {longest // _DAY:,}), hours, minutes or seconds: "
            f"{name} = '{example}'",
        )
    return int(length.value)


def span_text(microseconds: int) -> str:
    """A length of time as a person would write it."""
    parts: list[str] = []
    for unit, size in _UNITS:
        count, microseconds = divmod(microseconds, size)
        if count:
            parts.append(f"{count} {unit}{'' if count == 1 else 's'}")
    if microseconds:
        seconds = (Decimal(microseconds) / 1_000_000).normalize()
        parts.append(f"{seconds:f} second{'' if seconds == 1 else 's'}")
    return " ".join(parts)
