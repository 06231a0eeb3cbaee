"""ORDER BY, LIMIT and OFFSET: Spark's order of NULLs, ordinals, constant limits."""

from __future__ import annotations

from sqlglot import exp

from headrace.errors import SqlError
from headrace.plan.exprs import Column, Expr, Literal
from headrace.plan.nodes import SortKey
from headrace.sql.expressions import Analyzer, OutsideAlgebra, bind_expr, position_of
from headrace.sql.scope import Scope


def limit_of(tree: exp.Expr, analyzer: Analyzer) -> tuple[int | None, int]:
    """LIMIT and OFFSET of a query, which must be constants."""

    def constant(part: str) -> int | None:
        clause = tree.args.get(part)
        if clause is None or (isinstance(clause.expression, exp.Var) and clause.expression.name.upper() == "ALL"):
            return None
        bound = bind_expr(clause.expression, Scope(), analyzer)
        if not isinstance(bound, Literal) or not isinstance(bound.value, int):
            raise OutsideAlgebra(f"a computed {part.upper()}", position_of(clause))
        if bound.value < 0:
            raise SqlError("INVALID_LIMIT_LIKE_EXPRESSION", f"{part.upper()} is negative", position=position_of(clause))
        return bound.value

    return constant("limit"), constant("offset") or 0


def bind_ordinal(node: exp.Expr, outputs: tuple[Column, ...]) -> Column | None:
    """``ORDER BY 2``: the second output column."""
    if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
        index = int(node.name)
        if not 1 <= index <= len(outputs):
            raise SqlError(
                "ORDER_BY_POS_OUT_OF_RANGE",
                f"position {index} is not in the select list (1 to {len(outputs)})",
                position=position_of(node),
            )
        return outputs[index - 1]
    return None


def sort_key(item: exp.Expr, expr: Expr) -> SortKey:
    """An ORDER BY item; Spark puts NULLs first ascending, last descending."""
    descending = bool(item.args.get("desc"))
    nulls_first = item.args.get("nulls_first")
    return SortKey(expr, descending, (not descending) if nulls_first is None else bool(nulls_first))
