"""Expressions moved from below a grouping to above it.

What equals a key becomes the key's column, an aggregate becomes the grouping's column, and a column left over is
neither: the query is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlglot import exp

from headrace.errors import SqlError
from headrace.plan.canonical import canonical
from headrace.plan.exprs import Agg, Column, Expr, substitute
from headrace.sql.source import position_of


class Lift:
    """Moves expressions from below a grouping to above it."""

    def __init__(
        self, keys: list[tuple[Column, Expr]], windows: Mapping[int, Expr], beside: Callable[[Column], bool]
    ) -> None:
        self.keys = keys
        self._windows = windows
        self._beside = beside
        self._forms = [(column, canonical(key)) for column, key in keys]
        self._aggs: dict[Agg, Column] = {}

    def aggs(self) -> list[tuple[Column, Agg]]:
        return [(c, a) for a, c in self._aggs.items()]

    def expr(self, expr: Expr, tree: exp.Expr, keep: Mapping[int, Expr] | None = None) -> Expr:
        expr = substitute(expr, self._windows)
        return self._lift(expr, tree, keep or {})

    def _lift(self, expr: Expr, tree: exp.Expr, keep: Mapping[int, Expr]) -> Expr:
        form = canonical(expr)
        for column, key in self._forms:
            if form == key:
                return column
        if isinstance(expr, Agg):
            return self._aggs.setdefault(expr, Column.fresh(expr.fn, expr.type))
        if isinstance(expr, Column) and expr.id not in keep and not self._beside(expr):
            raise SqlError(
                "MISSING_AGGREGATION" if self.keys else "MISSING_GROUP_BY",
                f"column {expr.name} is neither grouped by nor inside an aggregate",
                position=position_of(tree),
                hint=f"add {expr.name} to GROUP BY, or aggregate it",
            )
        return expr.with_children(tuple(self._lift(c, tree, keep) for c in expr.children)) if expr.children else expr
