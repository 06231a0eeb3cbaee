"""What a name means: a column, or a field of one; and who is asked.

``s.a.b`` is column ``a`` of relation ``s`` and its field ``b`` where there is such a relation, else
fields of a column ``s``, as in Spark.
"""

from __future__ import annotations

from typing import Protocol

from headrace.errors import Position, SqlError
from headrace.plan.exprs import Call, Column, Expr, Literal, SparkExpr
from headrace.types import STRING, Type, quote


class FieldScope(Protocol):
    """Where column names are looked up."""

    def column(self, parts: tuple[str, ...], position: Position | None) -> Column:
        """The column of this (qualified) name; SqlError UNRESOLVED_COLUMN or AMBIGUOUS_REFERENCE."""


class Analyzer(Protocol):
    """A real Spark, asked only for what is not known here (asking may start it)."""

    def scalar_type(self, template: str, args: tuple[Type, ...]) -> Type:
        """The type of ``template`` over columns of these types; SqlError if Spark refuses it."""

    def scalar_name(self, template: str, args: tuple[Type, ...]) -> str | None:
        """How Spark prints ``template``, itself a template; ``None`` if nobody is to be asked."""

    def is_aggregate(self, function: str) -> bool:
        """Whether the function aggregates; SqlError UNRESOLVED_ROUTINE if Spark has none of this name."""


CALLED_BARE = frozenset(("current_date", "current_timestamp", "current_time", "current_user", "user", "session_user"))
"""Functions that need no parentheses; a column of such a name comes first."""


def bind_name(parts: tuple[str, ...], scope: FieldScope, analyzer: Analyzer, position: Position | None) -> Expr:
    """The column of this name, or the field its last parts name."""
    try:
        return scope.column(parts, position)
    except SqlError as error:
        if error.condition != "UNRESOLVED_COLUMN" or len(parts) == 1:
            raise
        unresolved = error
    for length in range(len(parts) - 1, 0, -1):
        try:
            holder: Expr = scope.column(parts[:length], position)
        except SqlError as error:
            if error.condition != "UNRESOLVED_COLUMN":
                raise
            continue
        for name in parts[length:]:
            holder = bind_field(holder, name, analyzer)
        return holder
    raise unresolved


def depth_of(expr: Expr) -> int:
    """How many fields deep in a column an expression of :func:`bind_name` is; -1 for a call without parentheses."""
    if isinstance(expr, SparkExpr) and expr.template.removesuffix("()") in CALLED_BARE:
        return -1
    depth = 0
    while (isinstance(expr, Call) and expr.fn == "field") or (
        isinstance(expr, SparkExpr) and expr.template.startswith("{0}.`")
    ):
        depth += 1
        expr = expr.args[0]
    return depth


def bind_field(holder: Expr, name: str, analyzer: Analyzer) -> Expr:
    """A field of a struct; of anything else (an array of structs, a map) it is what Spark says it is."""
    found = holder.type.part(name)
    if found is not None:
        return Call(found.type, "field", (holder, Literal(STRING, found.name)))
    if holder.type.name == "struct":
        raise SqlError(
            "FIELD_NOT_FOUND",
            f"there is no field {name} in {holder.type.sql}",
            hint=f"its fields are {', '.join(p.name for p in holder.type.parts)}",
        )
    if holder.type.is_native:
        raise SqlError("INVALID_EXTRACT_BASE_FIELD_TYPE", f"{holder.type.sql} has no field {name}, nor any other")
    template = "{0}." + quote(name).replace("{", "{{").replace("}", "}}")
    return SparkExpr(analyzer.scalar_type(template, (holder.type,)), template, (holder,))
