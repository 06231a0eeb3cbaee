"""The column list of CREATE STREAM and CREATE TABLE: names, types, NOT NULL, PRIMARY KEY."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from headrace.errors import NotYetSupported, Position, SqlError
from headrace.sql.cursor import Cursor
from headrace.sql.lexer import tokens
from headrace.types import MAP_HINT, VOID, Field, Schema, Type, parse_type


@dataclass(frozen=True)
class Declaration:
    """What a CREATE of a relation says of it."""

    name: str
    position: Position
    columns: Schema
    key: tuple[str, ...]
    key_position: Position | None
    """Where the PRIMARY KEY was written, for an error about it."""


Key = list[tuple[str, Position]]
"""The columns of a key, and where each is named."""
_CONSTRAINTS = ("COMMENT", "DEFAULT", "GENERATED", "CHECK", "REFERENCES", "UNIQUE", "CONSTRAINT", "COLLATE", "NULL")


_TYPES = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s) with 1 <= p <= 38 and s <= p, string, "
    "varchar(n), char(n), binary, date, timestamp, timestamp_ntz, and array<…>, struct<name: …, …>, map<…, …> of them"
)


def definition(reader: Cursor) -> Declaration:
    """The relation a CREATE declares, from its name to the end of its column list.

    >>> from headrace.sql.lexer import tokens
    >>> text = "t (id INT PRIMARY KEY, name STRING)"
    >>> found = definition(Cursor(text, tokens(text)))
    >>> found.key, [(c.name, c.type.sql, c.nullable) for c in found.columns]
    (('id',), [('id', 'int', False), ('name', 'string', True)])
    """
    position = reader.position()
    name = reader.name()
    if reader.word() != "(" or reader.word(1) == ")":
        raise SqlError(
            "MISSING_COLUMNS",
            f"{name} has no column list",
            position=position,
            hint="write (name TYPE, …) after the name, with types",
        )
    fields: list[Field] = []
    keys: list[Key] = []
    try:
        reader.listed(lambda: _part(reader, fields, keys))
    except SqlError as error:
        if error.condition == "PARSE_SYNTAX_ERROR":
            error.hint = error.hint or f"write (name TYPE, …); types: {_TYPES}"
        raise
    key, key_position = _key(keys, {f.name.lower() for f in fields})
    for f in fields:
        if f.type.is_nested and f.name.lower() in (k.lower() for k in key):
            raise NotYetSupported(
                f"a PRIMARY KEY of type {f.type.sql} ({f.name})",
                position=key_position,
                hint="make plain columns the key",
            )
    not_null = {k.lower() for k in key}
    columns = tuple(replace(f, nullable=f.nullable and f.name.lower() not in not_null) for f in fields)
    return Declaration(name, position, columns, key, key_position)


def parse_columns(text: str) -> Schema:
    """The columns of a list such as ``uid INT, score INT``."""
    whole = f"t ({text})"
    reader = Cursor(whole, tokens(whole))
    found = definition(reader)
    reader.end()
    return found.columns


def _part(reader: Cursor, fields: list[Field], keys: list[Key]) -> None:
    """A column, or the table's key."""
    position = reader.position()
    if reader.word() == "PRIMARY" and reader.word(1) == "KEY":
        reader.at += 2
        at = reader.at
        keys.append([(name.name, reader.position(at + 1 + 2 * i)) for i, name in enumerate(reader.names())])
        return
    if reader.word() in ("CONSTRAINT", "CHECK", "FOREIGN", "UNIQUE") and reader.word(2) not in (",", ")"):
        raise NotYetSupported(f"{reader.word()} in a column list", position=position)
    if reader.word() == ")":
        reader.fail("a column")
    column, is_key = _column(reader, position)
    if column.name.lower() in {f.name.lower() for f in fields}:
        raise SqlError("COLUMN_ALREADY_EXISTS", f"column {column.name} is declared twice", position=position)
    fields.append(column)
    if is_key:
        keys.append([(column.name, position)])


def _column(reader: Cursor, position: Position) -> tuple[Field, bool]:
    name = reader.name()
    type_ = _column_type(reader, name, position)
    nullable, is_key = True, False
    while reader.word() not in (",", ")"):
        if reader.take("NOT", "NULL"):
            nullable = False
        elif reader.take("PRIMARY", "KEY"):
            is_key = True
        elif reader.word() in _CONSTRAINTS:
            raise NotYetSupported(f"{reader.word()} on column {name}", position=reader.position())
        else:
            reader.fail("',' or ')'")
    return Field(name, type_, nullable), is_key


def _column_type(reader: Cursor, column: str, position: Position) -> Type:
    if reader.word() in (",", ")"):
        hint = f"write {column} STRING, or another type"
        raise SqlError("PARSE_SYNTAX_ERROR", f"column {column} has no type", position=position, hint=hint)
    text = reader.type().name
    found = parse_type(text)
    if found is None or found == VOID or not found.is_held:
        raise NotYetSupported(
            f"type {text} of column {column}",
            position=position,
            hint=MAP_HINT if re.search(r"\bmap\s*<", text, re.IGNORECASE) else f"types: {_TYPES}",
        )
    return found


def _key(keys: list[Key], columns: set[str]) -> tuple[tuple[str, ...], Position | None]:
    """The one primary key, its columns known and each named once."""
    if not keys:
        return (), None
    if len(keys) > 1:
        raise SqlError(
            "MULTIPLE_PRIMARY_KEYS",
            "a table has one PRIMARY KEY",
            position=keys[1][0][1],
            hint="write PRIMARY KEY (a, b) once, after the columns",
        )
    key = keys[0]
    for i, (name, position) in enumerate(key):
        if name.lower() not in columns:
            raise SqlError("UNRESOLVED_COLUMN", f"PRIMARY KEY names {name}, which is not a column", position=position)
        if name.lower() in (n.lower() for n, _ in key[:i]):
            raise SqlError("COLUMN_ALREADY_EXISTS", f"PRIMARY KEY names {name} twice", position=position)
    return tuple(name for name, _ in key), key[0][1]
