"""A state's columns as people see them: what they are called, and which key says when a group was."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import ViewRefused
from headrace.plan.exprs import Agg, Call, Column, Expr, columns
from headrace.plan.render import render_expr
from headrace.types import BIGINT


def time_key(keys: Sequence[tuple[Column, Expr]]) -> int:
    """Which key says when a group was: its window, else its first date or timestamp."""
    times = [i for i, (c, _) in enumerate(keys) if c.type.name in ("timestamp", "timestamp_ntz", "date")]
    windows = [i for i in times if isinstance(e := keys[i][1], Call) and e.fn == "window_start"]
    if not times:
        names = ", ".join(c.name for c, _ in keys)
        raise ViewRefused(
            "RETAIN_WITHOUT_TIME",
            f"retain keeps groups for a time, but {f'the grouping by {names}' if names else 'a total'} has no time",
            hint="GROUP BY window(ts, '1 hour') or by a date or timestamp too, or leave retain out",
        )
    return (windows or times)[0]


def partial_label(agg: Agg, weight: Column | None = None) -> str:
    """What a partial column means: ``sum(x)``. A bigint that weights add up to is a count."""
    inside = ", ".join(c.name for a in agg.args for c in columns(a) if c != weight) or "1"
    fn = "count" if weight is not None and agg.type == BIGINT else agg.fn
    return f"{fn}({inside})" + (f" where {render_expr(agg.filter)}" if agg.filter is not None else "")


def key_label(column: Column, expr: Expr) -> str:
    """What a key column means: its name, or the expression where nobody named it."""
    if isinstance(expr, Call) and expr.fn == "window_start":
        return "window.start"
    return column.name if isinstance(expr, Column) or column.name != "key" else render_expr(expr)


def value_name(expr: Expr, index: int) -> str:
    """The name of a column that keeps an aggregate's argument."""
    return expr.name if isinstance(expr, Column) else f"value {index + 1}"
