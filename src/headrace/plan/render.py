"""Plans as indented text, for EXPLAIN and for the rules' fixtures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headrace.plan.exprs import (
    Agg,
    Call,
    Case,
    Cast,
    Column,
    Expr,
    Literal,
    Over,
    SortKey,
    SparkExpr,
    WindowCall,
    WindowFrame,
)
from headrace.plan.nodes import (
    Aggregate,
    Draw,
    Filter,
    Join,
    Leaf,
    Node,
    Project,
    Repeat,
    SetOperation,
    Sort,
    SparkSql,
    UnionAll,
    Values,
    Window,
    walk_plan,
)

_INFIX = {"=", "<>", "<", "<=", ">", ">=", "<=>", "and", "or", "+", "-", "*", "/", "%", "div", "like"}


def render_expr(expr: Expr) -> str:
    """An expression as a person would write it.

    >>> from headrace.types import BOOLEAN, INT
    >>> render_expr(Call(BOOLEAN, "<", (Column(INT, 1, "a"), Literal(INT, 5))))
    '(a < 5)'
    """
    if isinstance(expr, Column):
        return expr.name
    if isinstance(expr, Literal):
        return "NULL" if expr.value is None else repr(expr.value) if isinstance(expr.value, str) else str(expr.value)
    if isinstance(expr, Cast):
        return f"cast({render_expr(expr.arg)} as {expr.type.sql})"
    if isinstance(expr, Case):
        whens = " ".join(f"when {render_expr(c)} then {render_expr(v)}" for c, v in expr.branches)
        return f"case {whens} else {render_expr(expr.default)} end"
    if isinstance(expr, SparkExpr):
        return expr.template.format(*map(render_expr, expr.args))
    if isinstance(expr, Agg):
        inside = ", ".join(map(render_expr, expr.args)) or "*"
        text = expr.template.format(*map(render_expr, expr.args)) if expr.template else f"{expr.fn}({inside})"
        text = text.replace("(", "(distinct ", 1) if expr.distinct else text
        return f"{text} filter ({render_expr(expr.filter)})" if expr.filter else text
    if isinstance(expr, WindowCall):
        inside = ", ".join(map(render_expr, expr.args)) or ("*" if expr.fn == "count" else "")
        text = f"{expr.fn}({inside})" + (" ignore nulls" if expr.ignore_nulls else "")
        text += f" filter ({render_expr(expr.filter)})" if expr.filter else ""
        return text if expr.frame is None or expr.frame.is_whole else f"{text} {_frame(expr.frame)}"
    if isinstance(expr, Over):
        return f"{render_expr(expr.call)} over ({_spec(expr.partition, expr.order)})"
    assert isinstance(expr, Call)
    args = [render_expr(a) for a in expr.args]
    if expr.fn == "field" and isinstance(expr.args[1], Literal):
        return f"{args[0]}.{expr.args[1].value}"
    if expr.fn in _INFIX and len(args) == 2:
        return f"({args[0]} {expr.fn} {args[1]})"
    return f"{expr.fn}({', '.join(args)})"


def render(root: Node) -> str:
    """The plan, one operator a line, inputs indented; a node read twice is printed once and named."""
    readers = Counter(id(c) for n in walk_plan(root) for c in n.children)
    names: dict[int, str] = {}
    lines: list[str] = []

    def visit(node: Node, depth: int) -> None:
        pad = "  " * depth
        if id(node) in names:
            lines.append(f"{pad}{names[id(node)]} (as above)")
            return
        mark = ""
        if readers[id(node)] > 1:
            names[id(node)] = f"#{len(names) + 1}"
            mark = f"{names[id(node)]} "
        lines.append(f"{pad}{mark}{_line(node)}")
        for child in node.children:
            visit(child, depth + 1)

    visit(root, 0)
    return "\n".join(lines)


def _line(node: Node) -> str:
    if isinstance(node, Leaf):
        return f"Scan {node.kind} {node.relation} [{', '.join(c.name for c in node.output)}]"
    if isinstance(node, Values):
        return f"Values {len(node.rows)} row{'' if len(node.rows) == 1 else 's'}"
    if isinstance(node, Filter):
        return f"Filter {render_expr(node.condition)}"
    if isinstance(node, Project):
        return f"Project [{', '.join(_bound(c, e) for c, e in node.exprs)}]"
    if isinstance(node, Join):
        return f"Join {node.kind} on {render_expr(node.condition)}"
    if isinstance(node, Aggregate):
        keys = ", ".join(_bound(c, e) for c, e in node.keys)
        aggs = ", ".join(render_expr(a) for _, a in node.aggs)
        return f"Aggregate by [{keys}] of [{aggs}]"
    if isinstance(node, Window):
        return f"Window {_spec(node.partition, node.order)} of [{', '.join(_bound(c, f) for c, f in node.functions)}]"
    if isinstance(node, Sort):
        keys = _ordered(node.keys)
        limit = "" if node.limit is None else f" limit {node.limit}"
        offset = f" offset {node.offset}" if node.offset else ""
        return f"Sort [{keys}]{limit}{offset}"
    if isinstance(node, Repeat):
        return f"Repeat {node.times.name} times"
    if isinstance(node, Draw):
        seed = "" if node.seed is None else f" repeatable {node.seed}"
        return f"Draw {node.size} row{'' if node.size == 1 else 's'}{seed}"
    if isinstance(node, UnionAll):
        return "UnionAll"
    if isinstance(node, SetOperation):
        return f"{node.kind.capitalize()}All"
    assert isinstance(node, SparkSql)
    return f"SparkSql ({node.reason})"


def _bound(column: Column, expr: Expr) -> str:
    text = render_expr(expr)
    return text if text == column.name else f"{text} as {column.name}"


def _spec(partition: Sequence[Expr], order: Sequence[SortKey]) -> str:
    by = f"by [{', '.join(map(render_expr, partition))}]"
    return f"{by} order [{_ordered(order)}]" if order else by


def _ordered(keys: Sequence[SortKey]) -> str:
    return ", ".join(f"{render_expr(k.expr)}{' desc' if k.descending else ''}" for k in keys)


def _frame(frame: WindowFrame) -> str:
    def end(at: int | None, unbounded: str) -> str:
        if at is None:
            return unbounded
        return "current row" if at == 0 else f"{abs(at)} {'preceding' if at < 0 else 'following'}"

    return f"{frame.unit} {end(frame.start, 'unbounded preceding')} to {end(frame.end, 'unbounded following')}"
