"""Options of CREATE VIEW, STREAM and TABLE: ``WITH (retain = '7 days', …)``, ``WITH (capacity = 1000000)``.

A length of time is days, hours, minutes, seconds: months and years are longer or shorter by turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from headrace.catalog import Buffer
from headrace.catalog.view import TABLES_SEEN
from headrace.errors import NotYetSupported, Position, SqlError
from headrace.sql.cursor import Cursor
from headrace.sql.literals import interval_literal, interval_text
from headrace.sql.source import text_of

_OVERFLOWS = ("block", "overwrite", "error")
_DAY = 86_400_000_000
_EVER = (1 << 63) - 1
_LONGEST_WAIT = 36_500 * _DAY
"""A hundred years: clocks count nanoseconds in 64 bits."""


@dataclass(frozen=True, slots=True)
class Option:
    """``name = value`` in a WITH clause."""

    name: str
    value: exp.Expr
    position: Position

    def refuse(self, condition: str, hint: str) -> SqlError:
        """The value is no good."""
        return SqlError(condition, f"{self.name} is {text_of(self.value)}", position=self.position, hint=hint)


def with_options(reader: Cursor) -> list[Option]:
    """``WITH (name = value, …)``, or Spark's ``TBLPROPERTIES (…)``, if that is next."""
    if reader.word() in ("COMMENT", "PARTITIONED", "CLUSTERED", "OPTIONS", "LOCATION"):
        raise NotYetSupported("COMMENT and other properties of a relation", position=reader.position())
    return option_list(reader) if reader.take("WITH") or reader.take("TBLPROPERTIES") else []


def option_list(reader: Cursor) -> list[Option]:
    """``(name = value, …)``."""
    return reader.listed(lambda: _option(reader))


def _option(reader: Cursor) -> Option:
    name = (reader.string("an option") if reader.at_string() else reader.name()).lower()
    if not reader.take("="):
        reader.fail("'='")
    position = reader.position()
    return Option(name, reader.expression(), position)


def view_options(options: list[Option], also: Sequence[str] = ()) -> tuple[int | None, str | None, int | None]:
    """For how many microseconds a view keeps its groups, which state of tables its rows see, and for how many
    microseconds it keeps its changes, if it says so. It ``also`` has others, which are read elsewhere."""
    given: dict[str, Option] = {}
    for option in options:
        if option.name not in ("retain", "tables", "keep_changes"):
            has = "it has retain, tables and keep_changes: WITH (retain = '7 days', tables = 'frozen')"
            raise SqlError(
                "VIEW_OPTION_UNKNOWN",
                f"a {'materialized ' if also else ''}view has no option {option.name}",
                position=option.position,
                hint=f"it has {', '.join(also)} and keep_changes: WITH (strategy = 'IMB')" if also else has,
            )
        if given.setdefault(option.name, option) is not option:
            raise SqlError(
                "VIEW_REPEATED_OPTION", f"{option.name} is given twice", position=option.position, hint="leave one out"
            )
    retain = span_of(given["retain"], "7 days") if "retain" in given else None
    tables = _tables(given["tables"]) if "tables" in given else None
    return retain, tables, span_of(given["keep_changes"], "1 day") if "keep_changes" in given else None


def _tables(option: Option) -> str:
    given = option.value.name.lower() if isinstance(option.value, exp.Literal | exp.Column) else ""
    if given == "now":
        raise NotYetSupported(
            "tables = 'now': to change what rows have added up to when a table changes",
            position=option.position,
            hint="let rows see the table as it is when they come, tables = 'arrival', or join it above the grouping",
        )
    if given not in TABLES_SEEN:
        raise option.refuse("INVALID_TABLES", f"it is {' or '.join(map(repr, TABLES_SEEN))}")
    return given


def keep_changes_of(options: list[Option]) -> int | None:
    """For how many microseconds a table keeps its changes, if a statement says so."""
    found: int | None = None
    for option in options:
        if option.name != "keep_changes":
            raise SqlError(
                "TABLE_OPTION_UNKNOWN",
                f"a table has no option {option.name}",
                position=option.position,
                hint="it has keep_changes: WITH (keep_changes = '1 day')",
            )
        if found is not None:
            raise SqlError("TABLE_REPEATED_OPTION", "keep_changes is given twice", position=option.position)
        found = span_of(option, "1 day")
    return found


def buffer_of(options: list[Option]) -> Buffer | None:
    """What a CREATE STREAM statement says of the stream's buffer, if it says anything."""
    if not options:
        return None
    buffer, given = Buffer(), set[str]()
    for option in options:
        name = option.name
        if name not in ("capacity", "timeout", "overflow", "patience"):
            raise SqlError(
                "STREAM_OPTION_UNKNOWN",
                f"a stream has no option {name}",
                position=option.position,
                hint="it has capacity, timeout, overflow, patience: WITH (capacity = 1000000, timeout = '2 seconds')",
            )
        if name in given:
            raise SqlError("STREAM_REPEATED_OPTION", f"{name} is given twice", position=option.position)
        given.add(name)
        if name == "capacity":
            buffer = replace(buffer, capacity=_capacity(option))
        elif name == "overflow":
            buffer = replace(buffer, overflow=_overflow(option))
        elif name == "timeout":
            buffer = replace(buffer, timeout=span_of(option, "2 seconds", _LONGEST_WAIT))
        else:
            buffer = replace(buffer, patience=span_of(option, "2 seconds", _LONGEST_WAIT))
    return buffer


def _capacity(option: Option) -> int:
    given = option.value.name if isinstance(option.value, exp.Literal) else ""
    if not given.isdigit() or not 0 < int(given) < 1 << 62:
        raise option.refuse("INVALID_CAPACITY", "give how many rows are to be buffered, 1 or more: capacity = 1000000")
    return int(given)


def _overflow(option: Option) -> str:
    given = option.value.name.lower() if isinstance(option.value, exp.Literal | exp.Column) else ""
    if given not in _OVERFLOWS:
        raise option.refuse("INVALID_OVERFLOW", "it is 'block', 'overwrite' or 'error'")
    return given


def span_of(option: Option, example: str, longest: int = _EVER) -> int:
    """A length of time, in microseconds."""
    length, value = None, option.value
    if isinstance(value, exp.Interval):
        length = interval_literal(value)
    elif isinstance(value, exp.Literal) and value.is_string:
        length = interval_text(value.name)
    if length is None or length.type.name != "interval_time" or not 0 < length.value <= longest:
        raise option.refuse(
            f"INVALID_{option.name.upper()}",
            f"give a length of time in days (up to {longest // _DAY:,}), hours, minutes or seconds: "
            f"{option.name} = '{example}'",
        )
    return int(length.value)
