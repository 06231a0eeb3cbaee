"""ORDER BY, LIMIT and OFFSET: Spark's order of NULLs, ordinals, constant limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sqlglot import exp

from headrace.errors import SqlError
from headrace.plan.exprs import Agg, Column, Expr, Literal, walk
from headrace.plan.nodes import SortKey
from headrace.sql.expressions import Analyzer, OutsideAlgebra, bind_expr, position_of
from headrace.sql.scope import Scope
from headrace.types import INT

T = TypeVar("T")


def limit_of(tree: exp.Expr, outputs: Scope, analyzer: Analyzer) -> tuple[int | None, int]:
    """LIMIT and OFFSET of a query, which must be constants; they can name its output columns, to no avail."""

    def constant(part: str) -> int | None:
        clause = tree.args.get(part)
        if clause is None:
            return None

        def wrong(what: str) -> SqlError:
            hint = "write a whole number of rows, not negative"
            return SqlError(
                "INVALID_LIMIT_LIKE_EXPRESSION", f"{part.upper()} {what}", position=position_of(clause), hint=hint
            )

        bound = bind_expr(clause.expression, outputs, analyzer)
        if any(isinstance(e, Column | Agg) for e in walk(bound)):
            raise wrong("must be the same for all rows")
        if bound.type != INT:
            raise wrong(f"must be an int, not {bound.type}")
        if not isinstance(bound, Literal):
            raise OutsideAlgebra(f"a computed {part.upper()}", position_of(clause))
        if bound.value is None:
            raise wrong("is NULL")
        if bound.value < 0:
            raise wrong("is negative")
        found: int = bound.value
        return found

    limit, offset = constant("limit"), constant("offset") or 0
    if limit is not None and limit + offset > _MOST_ROWS:
        raise SqlError(
            "SUM_OF_LIMIT_AND_OFFSET_EXCEEDS_MAX_INT",
            f"LIMIT and OFFSET are more than {_MOST_ROWS} rows together",
            position=position_of(tree.args["limit"]),
            hint="leave LIMIT out to have all rows there are",
        )
    return limit, offset


_MOST_ROWS = 2**31 - 1
"""How many rows LIMIT and OFFSET may count, and places in a select list: an int's most."""


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
    while isinstance(node, exp.Paren):
        node = node.this
    if not isinstance(node, exp.Literal) or node.is_string or not node.name.removeprefix("-").isdigit():
        return None
    index = int(node.name)
    if abs(index) > _MOST_ROWS:
        return None  # to Spark a bigint is a value like any other
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
