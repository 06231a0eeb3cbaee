"""ORDER BY, LIMIT and OFFSET: Spark's order of NULLs, ordinals, constant limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sqlglot import exp

from headrace.errors import SqlError
from headrace.plan.exprs import Expr, Literal
from headrace.plan.nodes import SortKey
from headrace.sql.expressions import Analyzer, OutsideAlgebra, bind_expr, position_of
from headrace.sql.scope import Scope

T = TypeVar("T")


def limit_of(tree: exp.Expr, analyzer: Analyzer) -> tuple[int | None, int]:
    """LIMIT and OFFSET of a query, which must be constants."""

    def constant(part: str) -> int | None:
        clause = tree.args.get(part)
        if clause is None:
            return None
        try:
            bound = bind_expr(clause.expression, Scope(), analyzer)
        except SqlError as error:
            if error.condition != "UNRESOLVED_COLUMN":
                raise
            raise SqlError(
                "INVALID_LIMIT_LIKE_EXPRESSION", f"{part.upper()} names a column", position=error.position
            ) from None
        if not isinstance(bound, Literal) or not isinstance(bound.value, int):
            raise OutsideAlgebra(f"a computed {part.upper()}", position_of(clause))
        if bound.value < 0:
            raise SqlError("INVALID_LIMIT_LIKE_EXPRESSION", f"{part.upper()} is negative", position=position_of(clause))
        return bound.value

    return constant("limit"), constant("offset") or 0


def means_all(node: exp.Expr, scope: Scope) -> bool:
    """Whether ``GROUP BY ALL`` or ``ORDER BY ALL`` is said, and no column is called so."""
    if not (isinstance(node, exp.Column) and len(node.parts) == 1 and node.name.lower() == "all"):
        return False
    try:
        scope.column(("all",), None)
    except SqlError as error:
        return error.condition == "UNRESOLVED_COLUMN"
    return False


def ordinal(node: exp.Expr, items: Sequence[T], clause: str) -> T | None:
    """``ORDER BY 2``, ``GROUP BY 2``: the second item of the select list."""
    if not isinstance(node, exp.Literal) or node.is_string or not node.name.removeprefix("-").isdigit():
        return None
    index = int(node.name)
    if not 1 <= index <= len(items):
        raise SqlError(
            f"{clause}_POS_OUT_OF_RANGE",
            f"position {index} is not in the select list (1 to {len(items)})",
            position=position_of(node),
        )
    return items[index - 1]


def sort_key(item: exp.Expr, expr: Expr) -> SortKey:
    """An ORDER BY item; Spark puts NULLs first ascending, last descending."""
    descending = bool(item.args.get("desc"))
    nulls_first = item.args.get("nulls_first")
    return SortKey(expr, descending, (not descending) if nulls_first is None else bool(nulls_first))
