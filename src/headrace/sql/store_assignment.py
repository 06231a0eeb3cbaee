"""What an INSERT stores: the columns its rows go to, and Spark's ANSI store assignment to their types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlglot import exp

from headrace.base.lacking import lacking
from headrace.base.wording import counted
from headrace.catalog import Stream, Table
from headrace.errors import ExecutionError, Position, SqlError
from headrace.plan.exprs import Column, Expr, Literal
from headrace.plan.nodes import Node, Project
from headrace.sql.coercion import can_store, cast
from headrace.sql.grammar import parse_expression
from headrace.sql.source import position_of, replace
from headrace.types import Field, Schema, Type


def stored(source: Node, relation: Stream | Table, columns: tuple[str, ...], at: Position) -> Node:
    """The rows of ``source`` as an INSERT into these columns stores them; columns left out have their defaults."""
    targets = targets_of(relation, columns, at)
    if len(source.output) != len(targets):
        raise SqlError(
            "INSERT_COLUMN_ARITY_MISMATCH",
            f"{relation.name} takes {counted(len(targets), 'value')} ({', '.join(f.name for f in targets)}), "
            f"but {len(source.output)} are given",
            position=at,
        )
    given = {f.name: c for f, c in zip(targets, source.output, strict=True)}
    exprs: list[tuple[Column, Expr]] = []
    for column in relation.columns:
        out = Column.fresh(column.name, column.type)
        if column.name in given:
            exprs.append((out, cast_for_store(given[column.name], column.type, column.name, at)))
        else:
            exprs.append((out, Literal(column.type, lacking(column))))
    return Project(source, tuple(exprs))


def with_defaults(tree: exp.Expr, targets: Schema) -> None:
    """Put the defaults of columns where a query to be inserted says DEFAULT for a whole value."""
    rows: list[list[exp.Expr]] = []
    if isinstance(tree, exp.Values):
        rows = [row.expressions if isinstance(row, exp.Tuple) else [row.unnest()] for row in tree.expressions]
    elif isinstance(tree, exp.Select):
        rows = [tree.expressions]
    for row in rows:
        for value, column in zip(row, targets, strict=False):
            if _says_default(value):
                replace(value, parse_expression(_default_text(column)))
    for node in tree.find_all(exp.Column):
        if _says_default(node) and not tree.find(exp.From):
            raise SqlError(
                "DEFAULT_PLACEMENT_INVALID",
                "DEFAULT is a whole value, not a part of one",
                position=position_of(node),
                hint="write the value, or DEFAULT alone",
            )


def _default_text(column: Field) -> str:
    text = "NULL" if column.default is None else column.default.text
    if column.default is not None and column.default.zone:
        text = f"{column.type.sql.upper()} '{lacking(column)}'"
    return f"CAST((\n{text}\n) AS {column.type.sql})"


def _says_default(node: exp.Expr) -> bool:
    quoted = isinstance(node, exp.Column) and isinstance(node.this, exp.Identifier) and node.this.args.get("quoted")
    return isinstance(node, exp.Column) and not node.table and not quoted and node.name.upper() == "DEFAULT"


@contextmanager
def storing(query: exp.Expr | None = None) -> Iterator[None]:
    """A value too large for its column has a name of its own, unless the query says the cast itself."""
    try:
        yield
    except ExecutionError as error:
        if error.condition == "CAST_OVERFLOW" and (query is None or query.find(exp.Cast) is None):
            error.condition = "CAST_OVERFLOW_IN_TABLE_INSERT"
        raise


def targets_of(relation: Stream | Table, columns: tuple[str, ...], at: Position) -> Schema:
    """The columns an INSERT names, or all of the relation's."""
    if not columns:
        return relation.columns
    by_name = {f.name.lower(): f for f in relation.columns}
    found: list[Field] = []
    for name in columns:
        column = by_name.get(name.lower())
        if column is None:
            raise SqlError(
                "UNRESOLVED_COLUMN",
                f"{relation.name} has no column {name}",
                position=at,
                hint=f"it has {', '.join(f.name for f in relation.columns)}",
            )
        if column in found:
            raise SqlError("COLUMN_ALREADY_EXISTS", f"column {name} is named twice", position=at)
        found.append(column)
    return tuple(found)


def cast_for_store(expr: Expr, target: Type, column: str, position: Position | None) -> Expr:
    """``expr`` as INSERT stores it in ``column``: Spark's ANSI store assignment.

    A string does not go into a number; a bigint goes into an int and fails on the row that does not fit.
    """
    if can_store(expr.type, target):
        return cast(expr, target)
    raise SqlError(
        "INCOMPATIBLE_DATA_FOR_TABLE",
        f"cannot store {expr.type} in column {column} of type {target}",
        position=position,
        hint=f"write CAST(... AS {target.sql.upper()})",
    )
