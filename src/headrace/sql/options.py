"""Options of CREATE VIEW: ``WITH (retain = '7 days')``.

A length of time is days, hours, minutes, seconds: months and years are longer or shorter by turns.

>>> span_text(604_800_000_000), span_text(5_400_000_000), span_text(1)
('7 days', '1 hour 30 minutes', '0.000001 seconds')
"""

from __future__ import annotations

from decimal import Decimal

from sqlglot import exp

from headrace.errors import NotYetSupported, Position, SqlError
from headrace.sql.literals import interval_literal, interval_text
from headrace.sql.parsing import node_at

_UNITS = (("day", 86_400_000_000), ("hour", 3_600_000_000), ("minute", 60_000_000))


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
        found = _span(option.args.get("value"), position)
    return found


def _span(value: exp.Expr | None, position: Position) -> int:
    length = None
    if isinstance(value, exp.Interval):
        length = interval_literal(value)
    elif isinstance(value, exp.Literal) and value.is_string:
        length = interval_text(value.name)
    if length is None or length.type.name != "interval_time" or length.value <= 0:
        raise SqlError(
            "INVALID_RETAIN",
            f"retain is {value.sql() if value is not None else 'empty'}",
            position=position,
            hint="give a length of time in days, hours, minutes or seconds: retain = '7 days'",
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
