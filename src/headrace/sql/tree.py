"""Questions about a parse tree: where it stands, what it calls, whether the algebra holds it."""

from __future__ import annotations

from sqlglot import exp

from headrace.errors import Position
from headrace.sql.functions import GENERATORS
from headrace.sql.source import position_of


class OutsideAlgebra(Exception):
    """The expression needs more than rows one at a time; the whole query block is Spark's."""

    def __init__(self, reason: str, position: Position | None = None) -> None:
        self.reason = reason
        self.position = position
        super().__init__(reason)


def dotted(node: exp.Expr) -> tuple[str, ...] | None:
    """The names of ``a.b.c.d.e``, which past four parts is no column to the parser; ``None`` for anything else."""
    if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
        return tuple(part.name for part in node.parts)
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
        before = dotted(node.this)
        return None if before is None else (*before, node.expression.name)
    return None


def function_name(node: exp.Expr) -> str:
    """The name of a called function as Spark knows it, in lower case; empty for anything but a call."""
    return node.name.lower() if isinstance(node, exp.Anonymous) else ""


def check_inside_algebra(node: exp.Expr, *, windows: bool = False) -> None:
    """Raise OutsideAlgebra if anything in ``node`` is more than a scalar expression or an aggregate.

    ``windows`` says that window functions may stand in it.
    """
    for part in node.walk():
        name = function_name(part)
        if isinstance(part, exp.Window) and not windows:
            raise OutsideAlgebra("a window function", position_of(part))
        if isinstance(part, exp.Query | exp.Exists):
            raise OutsideAlgebra("a subquery in an expression", position_of(part))
        if isinstance(part, exp.Star) and not _is_count_of_rows(part.parent):
            raise OutsideAlgebra("a star inside an expression", position_of(part))
        if isinstance(part, exp.Lambda):
            raise OutsideAlgebra("a lambda function", position_of(part))
        if name == "arrays_zip":  # its fields have the names of columns
            raise OutsideAlgebra("arrays_zip", position_of(part))
        if name in GENERATORS:
            raise OutsideAlgebra(f"the generator {name}", position_of(part))
        if name in ("grouping", "grouping_id"):
            raise OutsideAlgebra("grouping sets", position_of(part))


def _is_count_of_rows(call: exp.Expr | None) -> bool:
    """Whether this is count(*), the only call in which a star is not the columns it stands for."""
    return isinstance(call, exp.Anonymous) and function_name(call) == "count" and len(call.expressions) == 1


__all__ = ["OutsideAlgebra", "check_inside_algebra", "dotted", "function_name", "position_of"]
