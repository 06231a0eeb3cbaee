"""The column list of CREATE STREAM and CREATE TABLE: names, types, NOT NULL, PRIMARY KEY, DEFAULT, CHECK.

What a default or a condition means is found out where the relation is made (``sql/rules.py``): here they are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from sqlglot import exp

from headrace.errors import NotYetSupported, Position, SqlError
from headrace.sql.cursor import Cursor
from headrace.sql.lexer import tokens
from headrace.sql.source import text_of
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
    rules: Rules


@dataclass(frozen=True)
class Written:
    """An expression of a definition, and where it stands."""

    tree: exp.Expr
    text: str
    position: Position

    @staticmethod
    def next(reader: Cursor) -> Written:
        position = reader.position()
        tree = reader.expression()
        return Written(tree, text_of(tree), position)


@dataclass(frozen=True)
class WrittenCheck:
    """``CONSTRAINT name CHECK (condition)``; without a name it gets one."""

    name: str
    condition: Written
    position: Position


@dataclass(frozen=True)
class Rules:
    """What is said of the rows of a relation: defaults by column, and conditions."""

    defaults: dict[str, Written] = field(default_factory=dict)
    checks: tuple[WrittenCheck, ...] = ()


Key = list[tuple[str, Position]]
"""The columns of a key, and where each is named."""
_CONSTRAINTS = ("COMMENT", "GENERATED", "REFERENCES", "UNIQUE", "COLLATE", "NULL", "MASK")


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
    defaults: dict[str, Written] = {}
    checks: list[WrittenCheck] = []
    try:
        reader.listed(lambda: _part(reader, fields, keys, defaults, checks))
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
    return Declaration(name, position, columns, key, key_position, Rules(defaults, tuple(checks)))


def parse_columns(text: str) -> Schema:
    """The columns of a list such as ``uid INT, score INT``."""
    whole = f"t ({text})"
    reader = Cursor(whole, tokens(whole))
    found = definition(reader)
    reader.end()
    return found.columns


def _part(
    reader: Cursor, fields: list[Field], keys: list[Key], defaults: dict[str, Written], checks: list[WrittenCheck]
) -> None:
    """A column, or the table's key, or a condition."""
    position = reader.position()
    if reader.word() == "PRIMARY" and reader.word(1) == "KEY":
        reader.at += 2
        at = reader.at
        keys.append([(name.name, reader.position(at + 1 + 2 * i)) for i, name in enumerate(reader.names())])
        return
    if _at_constraint(reader):
        checks.append(constraint(reader))
        return
    if reader.word() in ("FOREIGN", "UNIQUE") and reader.word(2) not in (",", ")"):
        raise NotYetSupported(f"{reader.word()} in a column list", position=position)
    if reader.word() == ")":
        reader.fail("a column")
    found = column(reader)
    if found.field.name.lower() in {f.name.lower() for f in fields}:
        raise SqlError("COLUMN_ALREADY_EXISTS", f"column {found.field.name} is declared twice", position=position)
    fields.append(found.field)
    checks.extend(found.checks)
    if found.default is not None:
        defaults[found.field.name] = found.default
    if found.is_key:
        keys.append([(found.field.name, position)])


def _at_constraint(reader: Cursor) -> bool:
    """Whether a condition is next, and no column of such a name."""
    if reader.word() == "CHECK":
        return reader.word(1) == "("
    return reader.word() == "CONSTRAINT" and reader.word(2) in ("CHECK", "PRIMARY", "FOREIGN", "UNIQUE")


def constraint(reader: Cursor) -> WrittenCheck:
    """``[CONSTRAINT name] CHECK (condition)``."""
    position = reader.position()
    name = ""
    if reader.take("CONSTRAINT"):
        position = reader.position()
        name = reader.name()
    if reader.word() in ("PRIMARY", "FOREIGN", "UNIQUE"):
        raise NotYetSupported(
            f"{reader.word()} KEY as a named constraint" if reader.word() != "UNIQUE" else "UNIQUE",
            position=reader.position(),
            hint="write PRIMARY KEY (a, b) when the table is made; conditions are CHECK (…)",
        )
    if not reader.take("CHECK"):
        reader.fail("CHECK and a condition")
    if reader.word() != "(":
        reader.fail("'(' and a condition")
    reader.at += 1
    condition = Written.next(reader)
    if not reader.take(")"):
        reader.fail("')'")
    if reader.word() in ("NOT", "ENFORCED", "RELY", "NORELY") and reader.word(1) != "NULL":
        if not (reader.word() == "ENFORCED"):
            raise NotYetSupported(
                "a CHECK that is not enforced", position=reader.position(), hint="leave it out: conditions are enforced"
            )
        reader.at += 1
    return WrittenCheck(name, condition, position)


@dataclass(frozen=True)
class WrittenColumn:
    """One column of a list."""

    field: Field
    is_key: bool
    default: Written | None
    checks: tuple[WrittenCheck, ...]
    position: Position


def column(reader: Cursor) -> WrittenColumn:
    """``name TYPE [NOT NULL] [DEFAULT value] [CHECK (…)] [PRIMARY KEY]``."""
    position = reader.position()
    name = reader.name()
    type_ = _column_type(reader, name, position)
    nullable, is_key = True, False
    default: Written | None = None
    checks: list[WrittenCheck] = []
    while reader.word() not in (",", ")", ""):
        if reader.take("NOT", "NULL"):
            nullable = False
        elif reader.take("PRIMARY", "KEY"):
            is_key = True
        elif reader.word() == "DEFAULT":
            at = reader.position()
            reader.at += 1
            if default is not None:
                raise SqlError("CREATE_TABLE_COLUMN_DESCRIPTOR_DUPLICATE", f"{name} has two defaults", position=at)
            default = Written.next(reader)
        elif reader.word() in ("CHECK", "CONSTRAINT"):
            checks.append(constraint(reader))
        elif reader.word() in _CONSTRAINTS:
            raise NotYetSupported(f"{reader.word()} on column {name}", position=reader.position())
        else:
            reader.fail("',' or ')'")
    return WrittenColumn(Field(name, type_, nullable), is_key, default, tuple(checks), position)


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
