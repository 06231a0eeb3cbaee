"""Time windows in GROUP BY: the key of ``window(ts, length[, slide[, offset]])``.

A tumbling window is a key computed from the row. A sliding one puts a row into each of
its windows: the block groups over one copy of its rows for each of them.
"""

from __future__ import annotations

from sqlglot import exp

from headrace.errors import NotYetSupported
from headrace.plan.exprs import Call, Column, Expr, Literal
from headrace.plan.nodes import Filter, Node, Project, UnionAll
from headrace.sql.scope import Scope
from headrace.sql.source import replace
from headrace.types import BOOLEAN, DAY_TIME, TIMESTAMP, TypePart, struct


class Windows:
    """The time windows a block groups by: their keys, and what ``window.start`` and ``.end`` mean."""

    def __init__(self) -> None:
        self.timestamps: list[Expr] = []
        self.values: dict[int, Expr] = {}
        self._starts: dict[Expr, Expr] = {}
        self.slides: tuple[Expr, Column, int, int, Expr] | None = None
        """Of a sliding window: the start of the last window a row is in, the column of starts, length, slide, time."""

    @property
    def first(self) -> bool:
        return len(self.timestamps) == 1

    def add(self, window: Call, scope: Scope) -> None:
        if self.timestamps:
            raise NotYetSupported("more than one window() in GROUP BY")
        timestamp, *literals = window.args
        length, slide, offset = (*_micros(literals), 0, 0)[:3]
        slide = slide or length
        moment = Call(timestamp.type, "-", (timestamp, Literal(DAY_TIME, offset))) if offset else timestamp
        last: Expr = Call(timestamp.type, "window_start", (moment, Literal(DAY_TIME, slide)))
        last = Call(timestamp.type, "+", (last, Literal(DAY_TIME, offset))) if offset else last
        key = last
        if slide < length:
            # Each row is in every window that began less than a length ago.
            begins = Column.fresh("start", timestamp.type)
            self.slides = (last, begins, length, slide, timestamp)
            key = begins
        start = Column.fresh("start", timestamp.type)
        end = Column.fresh("end", timestamp.type)
        self.timestamps.append(timestamp)
        self._starts[window] = key
        self.values[start.id] = key
        self.values[end.id] = Call(timestamp.type, "+", (key, Literal(DAY_TIME, length)))
        whole = Column.fresh("window", WINDOW)
        self.values[whole.id] = Call(WINDOW, "window_struct", (key, self.values[end.id]))
        scope.extras[("window",)] = whole
        scope.extras[("window", "start")] = start
        scope.extras[("window", "end")] = end

    def rows(self, node: Node) -> Node:
        """The rows that are in a window, once for each window they are in."""
        for timestamp in self.timestamps:
            node = Filter(node, Call(BOOLEAN, "isnotnull", (timestamp,)))
        if self.slides is None:
            return node
        last, begins, length, slide, timestamp = self.slides
        branches = []
        columns = (*(Column.fresh(c.name, c.type) for c in node.output), begins)
        for back in range(0, length, slide):
            begin: Expr = Call(begins.type, "-", (last, Literal(DAY_TIME, back))) if back else last
            branch: Node = Project(node, (*((c, c) for c in node.output), (Column.fresh("start", begins.type), begin)))
            if back + slide > length:
                until = Call(begins.type, "+", (branch.output[-1], Literal(DAY_TIME, length)))
                branch = Filter(branch, Call(BOOLEAN, "<", (timestamp, until)))
            branches.append(branch)
        return Project(
            UnionAll(tuple(branches), columns),
            (*((own, c) for own, c in zip(node.output, columns, strict=False)), (begins, begins)),
        )

    def key(self, expr: Expr) -> Expr:
        return self._starts.get(expr, expr)


WINDOW = struct(TypePart("start", TIMESTAMP), TypePart("end", TIMESTAMP))


def name_fields(tree: exp.Expr, window: exp.Expr) -> None:
    """Read ``window(ts, …).start`` as ``window.start``, and ``window(ts, …)`` as ``window``: both mean the key."""
    for dot in list(tree.find_all(exp.Dot)):
        if dot.this == window and isinstance(dot.expression, exp.Identifier):
            replace(dot, exp.column(dot.expression.name, table="window"))

    for call in list(tree.find_all(exp.Anonymous)):
        if call == window and call.find_ancestor(exp.Group, exp.Where) is None:
            replace(call, exp.column("window"))


def _micros(literals: list[Expr]) -> list[int]:
    return [e.value for e in literals if isinstance(e, Literal)]
