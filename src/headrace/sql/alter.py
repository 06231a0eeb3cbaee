"""ALTER: a relation is defined otherwise, and stays what it is.

``ALTER TABLE``, ``VIEW``, ``STREAM`` and ``SAMPLE`` name what is altered, as DROP does; which of the actions a kind has
is said where they are done (``statement/alter.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.catalog import KINDS
from headrace.errors import NotYetSupported, Position, SqlError
from headrace.sql.columns import Written, WrittenCheck, WrittenColumn, column, constraint
from headrace.sql.cursor import Cursor
from headrace.sql.options import keep_changes_of, option_list
from headrace.sql.refreshing import Wanted, refresh_clauses


@dataclass(frozen=True)
class RenameTo:
    """``RENAME TO u``."""

    name: str
    position: Position


@dataclass(frozen=True)
class AddColumns:
    """``ADD COLUMNS (a INT DEFAULT 0, …)``."""

    columns: tuple[WrittenColumn, ...]


@dataclass(frozen=True)
class DropColumns:
    """``DROP COLUMNS IF EXISTS (a, b)``."""

    names: tuple[tuple[str, Position], ...]
    if_exists: bool


@dataclass(frozen=True)
class RenameColumn:
    """``RENAME COLUMN a TO b``."""

    name: str
    position: Position
    new: str
    new_position: Position


@dataclass(frozen=True)
class SetDefault:
    """``ALTER COLUMN c SET DEFAULT e``, or ``DROP DEFAULT``."""

    column: str
    position: Position
    default: Written | None


@dataclass(frozen=True)
class AddCheck:
    """``ADD CONSTRAINT name CHECK (…)``."""

    check: WrittenCheck


@dataclass(frozen=True)
class DropCheck:
    """``DROP CONSTRAINT IF EXISTS name``."""

    name: str
    position: Position
    if_exists: bool


@dataclass(frozen=True)
class SetKeepChanges:
    """``SET (keep_changes = '1 day')``; None for ``UNSET (keep_changes)``."""

    microseconds: int | None


@dataclass(frozen=True)
class SetRefreshing:
    """``SET (strategy = 'IMB', …)`` of a materialized view, ``REFRESH POLICY …`` and ``SCHEDULE EVERY …``."""

    wanted: Wanted
    unset: tuple[tuple[str, Position], ...] = ()


Action = (
    RenameTo
    | AddColumns
    | DropColumns
    | RenameColumn
    | SetDefault
    | AddCheck
    | DropCheck
    | SetKeepChanges
    | SetRefreshing
)


@dataclass(frozen=True)
class Alter:
    """One action on one relation."""

    kind: str
    name: str
    if_exists: bool
    position: Position
    action: Action
    action_position: Position


_PLAIN = "in one commit, without its PRIMARY KEY, defaults and conditions"
_OTHERWISE = f"CREATE OR REPLACE TABLE t AS SELECT … FROM t makes it anew, {_PLAIN}"


def alter(read: Cursor) -> Alter:
    """``ALTER TABLE t …``."""
    read.expect("ALTER")
    materialized = read.take("MATERIALIZED")
    kind = read.word().lower()
    if kind not in KINDS or (materialized and kind != "view"):
        read.fail(" or ".join(map(str.upper, KINDS)))
    read.at += 1
    if_exists = read.take("IF", "EXISTS")
    position = read.position()
    name = read.name()
    at = read.position()
    action = (_refreshing(read) if materialized else None) or _action(read)
    read.end()
    return Alter(kind, name, if_exists, position, action, at)


def _refreshing(read: Cursor) -> SetRefreshing | None:
    """What is set of how a materialized view is refreshed, if that is next."""
    if read.word() == "UNSET" and read.word(1) in ("(", "TBLPROPERTIES"):
        read.at += 1
        read.take("TBLPROPERTIES")
        return SetRefreshing(Wanted(), tuple(read.listed(lambda: (read.name().lower(), position_before(read)))))
    if read.word() in ("ADD", "ALTER", "SET") and read.word(1) in ("SCHEDULE", "REFRESH", "TRIGGER"):
        read.at += 1
    clauses = refresh_clauses(read)
    is_set = read.word() == "SET" and read.word(1) in ("(", "TBLPROPERTIES")
    options = []
    if is_set:
        read.at += 1
        read.take("TBLPROPERTIES")
        options = option_list(read)
    return SetRefreshing(Wanted(options, clauses)) if is_set or clauses.policy or clauses.every else None


def _action(read: Cursor) -> Action:
    at = read.position()
    if read.take("RENAME", "TO"):
        position = read.position()
        return RenameTo(read.name(), position)
    if read.take("RENAME", "COLUMN"):
        old, name = read.position(), _column_name(read)
        if not read.take("TO"):
            read.fail("TO and the new name")
        new = read.position()
        return RenameColumn(name, old, read.name(), new)
    if read.word() == "ADD" and read.word(1) in ("CONSTRAINT", "CHECK"):
        read.at += 1
        return AddCheck(constraint(read))
    if read.take("ADD", "COLUMN") or read.take("ADD", "COLUMNS"):
        return AddColumns(
            tuple(read.listed(lambda: _new(read)) if read.word() == "(" else read.series(lambda: _new(read)))
        )
    if read.take("DROP", "CONSTRAINT"):
        if_exists = read.take("IF", "EXISTS")
        position = read.position()
        found = DropCheck(read.name(), position, if_exists)
        if read.take("CASCADE"):
            raise NotYetSupported("DROP CONSTRAINT … CASCADE", position=at, hint="leave CASCADE out")
        read.take("RESTRICT")
        return found
    if read.take("DROP", "COLUMN") or read.take("DROP", "COLUMNS"):
        if_exists = read.take("IF", "EXISTS")
        names = read.listed(lambda: _named(read)) if read.word() == "(" else read.series(lambda: _named(read))
        return DropColumns(tuple(names), if_exists)
    if read.take("ALTER", "COLUMN") or read.take("CHANGE", "COLUMN"):
        return _column_action(read)
    if read.word() in ("SET", "UNSET") and (read.word(1) == "(" or read.word(1) == "TBLPROPERTIES"):
        return _options(read)
    if read.word() in ("SET", "UNSET", "ADD", "DROP", "REPLACE", "RECOVER", "CLUSTER", "PARTITION", "RENAME", "AS"):
        words = " ".join(w for w in (read.word(), read.word(1)) if w)
        raise NotYetSupported(f"ALTER … {words}", position=at, hint=_OTHERWISE)
    return read.fail(
        "RENAME TO, RENAME COLUMN, ADD COLUMN, DROP COLUMN, ALTER COLUMN, ADD CONSTRAINT or DROP CONSTRAINT"
    )


def _new(read: Cursor) -> WrittenColumn:
    for ahead in range(len(read.tokens) - read.at):
        if read.word(ahead) in (",", ")"):
            break
        if read.word(ahead) in ("FIRST", "AFTER") and ahead > 1:
            raise NotYetSupported(
                "a place for a new column", position=read.position(read.at + ahead), hint="it becomes the last one"
            )
    found = column(read)
    if found.is_key:
        raise NotYetSupported("a new column in the PRIMARY KEY", position=found.position, hint=_OTHERWISE)
    return found


def _named(read: Cursor) -> tuple[str, Position]:
    position = read.position()
    return _column_name(read), position


def _column_name(read: Cursor) -> str:
    position = read.position()
    name = read.identifier("a column").name
    if read.word() == ".":
        raise NotYetSupported("ALTER of a field of a column", position=position, hint=_OTHERWISE)
    return name


def _column_action(read: Cursor) -> Action:
    name, position = _column_name(read), read.position(read.at - 1)
    if read.take("SET", "DEFAULT"):
        return SetDefault(name, position, Written.next(read))
    if read.take("DROP", "DEFAULT"):
        return SetDefault(name, position, None)
    at = read.position()
    if read.word() == "TYPE":
        raise NotYetSupported(
            f"another type of column {name}",
            position=at,
            hint=f"CREATE OR REPLACE TABLE t AS SELECT …, CAST({name} AS …) AS {name} FROM t makes it anew, {_PLAIN}",
        )
    if read.word() in ("SET", "DROP") and read.word(1) == "NOT":
        raise NotYetSupported(
            f"{read.word()} NOT NULL of column {name}",
            position=at,
            hint=f"ADD CONSTRAINT c CHECK ({name} IS NOT NULL) keeps NULLs out of it",
        )
    if read.word() in ("COMMENT", "FIRST", "AFTER"):
        raise NotYetSupported(f"ALTER COLUMN … {read.word()}", position=at, hint=_OTHERWISE)
    return read.fail("SET DEFAULT or DROP DEFAULT")


def _options(read: Cursor) -> Action:
    is_set = read.take("SET")
    if not is_set:
        read.at += 1
    read.take("TBLPROPERTIES")
    if is_set:
        found = keep_changes_of(option_list(read))
        return SetKeepChanges(found)
    for name, position in read.listed(lambda: (read.name(), position_before(read))):
        if name.lower() != "keep_changes":
            raise SqlError(
                "TABLE_OPTION_UNKNOWN",
                f"a table has no option {name}",
                position=position,
                hint="it has keep_changes",
            )
    return SetKeepChanges(None)


def position_before(read: Cursor) -> Position:
    """Where the token before the next one stands."""
    return read.position(read.at - 1)
