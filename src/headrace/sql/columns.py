"""The column list of CREATE STREAM and CREATE TABLE: names, types, NOT NULL, PRIMARY KEY."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from sqlglot import exp

from headrace.errors import NotYetSupported, SqlError
from headrace.sql.parsing import Dialect, node_at, parse_tree, relation_name
from headrace.types import MAP_HINT, Field, Schema, Type, parse_type


@dataclass(frozen=True)
class Definition:
    """What a CREATE of a relation says of it."""

    name: str
    columns: Schema
    key: tuple[str, ...]
    key_tree: exp.Expr | None
    """Where the PRIMARY KEY was written, for an error about it."""


_TYPES = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s) with 1 <= p <= 38 and s <= p, string, "
    "binary, date, timestamp, timestamp_ntz, and array<…> and struct<name: …, …> of them"
)


def declaration(text: str) -> exp.Expr:
    """The tree of a CREATE with nothing but columns; what is not understood in it is likely a column's type."""
    try:
        return parse_tree(text)
    except SqlError as error:
        error.hint = error.hint or f"write (name TYPE, …); types: {_TYPES}"
        raise


def definition(tree: exp.Expr) -> Definition:
    """The relation a CREATE TABLE tree declares.

    >>> from headrace.sql.parsing import parse_tree
    >>> found = definition(parse_tree("CREATE TABLE t (id INT PRIMARY KEY, name STRING)"))
    >>> found.key, [(c.name, c.type.sql, c.nullable) for c in found.columns]
    (('id',), [('id', 'int', False), ('name', 'string', True)])
    """
    schema = tree.this
    if not isinstance(schema, exp.Schema) or not schema.expressions:
        table = schema.this if isinstance(schema, exp.Schema) else schema
        name = relation_name(table) if isinstance(table, exp.Table) else "it"
        raise SqlError(
            "MISSING_COLUMNS",
            f"{name} has no column list",
            position=node_at(table),
            hint="write (name TYPE, …) after the name, with types",
        )
    fields: list[Field] = []
    keys: list[tuple[tuple[str, ...], exp.Expr]] = []
    seen: set[str] = set()
    for part in schema.expressions:
        if isinstance(part, exp.PrimaryKey):
            keys.append((tuple(c.name for c in part.expressions), part))
        elif isinstance(part, exp.ColumnDef):
            column, is_key = _column(part)
            if column.name.lower() in seen:
                raise SqlError(
                    "COLUMN_ALREADY_EXISTS", f"column {column.name} is declared twice", position=node_at(part)
                )
            seen.add(column.name.lower())
            fields.append(column)
            keys += [((column.name,), part)] if is_key else []
        elif isinstance(part, exp.Identifier):
            raise _missing_type(part.name, part)
        else:
            raise NotYetSupported(f"{part.sql(Dialect)} in a column list", position=node_at(part))
    key, key_tree = _key(keys, seen)
    for f in fields:
        if f.type.is_nested and f.name.lower() in (k.lower() for k in key):
            raise NotYetSupported(
                f"a PRIMARY KEY of type {f.type.sql} ({f.name})",
                position=node_at(key_tree),
                hint="make plain columns the key",
            )
    not_null = {k.lower() for k in key}
    columns = tuple(replace(f, nullable=f.nullable and f.name.lower() not in not_null) for f in fields)
    return Definition(relation_name(schema.this), columns, key, key_tree)


def _key(keys: list[tuple[tuple[str, ...], exp.Expr]], columns: set[str]) -> tuple[tuple[str, ...], exp.Expr | None]:
    """The one primary key, its columns known and each named once."""
    if not keys:
        return (), None
    if len(keys) > 1:
        raise SqlError(
            "MULTIPLE_PRIMARY_KEYS",
            "a table has one PRIMARY KEY",
            position=node_at(keys[1][1]),
            hint="write PRIMARY KEY (a, b) once, after the columns",
        )
    key, tree = keys[0]
    for i, name in enumerate(key):
        if name.lower() not in columns:
            raise SqlError(
                "UNRESOLVED_COLUMN", f"PRIMARY KEY names {name}, which is not a column", position=node_at(tree)
            )
        if name.lower() in (n.lower() for n in key[:i]):
            raise SqlError("COLUMN_ALREADY_EXISTS", f"PRIMARY KEY names {name} twice", position=node_at(tree))
    return key, tree


def _column(part: exp.ColumnDef) -> tuple[Field, bool]:
    nullable, is_key = True, False
    for constraint in part.args.get("constraints") or ():
        kind = constraint.args.get("kind")
        if isinstance(kind, exp.NotNullColumnConstraint):
            nullable = bool(kind.args.get("allow_null"))
        elif isinstance(kind, exp.PrimaryKeyColumnConstraint):
            is_key = True
        else:
            raise NotYetSupported(f"{constraint.sql(Dialect)} on column {part.name}", position=node_at(part.this))
    return Field(part.name, _column_type(part), nullable), is_key


def _missing_type(column: str, at: exp.Expr) -> SqlError:
    hint = f"write {column} STRING, or another type"
    return SqlError("MISSING_TYPE", f"column {column} has no type", position=node_at(at), hint=hint)


def _column_type(part: exp.ColumnDef) -> Type:
    kind = part.args.get("kind")
    if kind is None:
        raise _missing_type(part.name, part.this)
    text = kind.sql(Dialect)
    found = parse_type(text)
    if found is None or not found.is_held:
        raise NotYetSupported(
            f"type {text} of column {part.name}",
            position=node_at(part.this),
            hint=MAP_HINT if re.search(r"\bmap\s*<", text, re.IGNORECASE) else f"types: {_TYPES}",
        )
    return found
