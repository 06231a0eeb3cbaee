"""A plan as one SQL statement, for either engine.

Columns are named by their ids, so nothing needs qualifying; a node read twice
becomes a CTE, everything else nests. The two engines differ in how they quote,
in the words for semi and anti joins, and in their expressions. The native text
first turns aggregates into primitive ones (``plan/aggregates.py``), which both
engines compute alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from headrace.engine.native_functions import can_raise
from headrace.engine.native_sql import NotNative, native, native_agg, native_window, nulls_last, range_key
from headrace.engine.spark_sql import spark, spark_agg, spark_window
from headrace.plan.aggregates import expand, expand_window
from headrace.plan.exprs import (
    TRUE,
    Agg,
    Call,
    Cast,
    Column,
    Expr,
    Literal,
    SortKey,
    WindowCall,
    WindowFrame,
    all_of,
    conjuncts,
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
    rewrite_plan,
    walk_plan,
)
from headrace.types import BIGINT, BOOLEAN, quote

Source = Callable[[Leaf], str]
"""The SQL relation a leaf is read from: a table name, or a parenthesised query."""


def native_plan(root: Node, source: Source, *, zone: str = "UTC", narrow: bool = False) -> str:
    """DuckDB SQL for the plan; :class:`NotNative` says why the native engine leaves it to Spark."""
    primitive = rewrite_plan(root, _primitive)
    return _Native(source, zone, narrow).statement(primitive)


def spark_plan(root: Node, source: Source, *, primitive: bool = False) -> str:
    """Spark SQL for the plan. ``primitive`` uses the native text's aggregates, for identical state rows."""
    if primitive:
        root = rewrite_plan(root, lambda n: expand(n) if isinstance(n, Aggregate) else n)
    return _Spark(source).statement(root)


def _primitive(node: Node) -> Node:
    """The node with aggregates and window functions as primitive ones."""
    if isinstance(node, Aggregate):
        return expand(node)
    if isinstance(node, Window):
        return expand_window(node)
    return _numbered(node) if isinstance(node, Filter) else node


_BOUNDS = {"<=": ">=", "<": ">", ">=": "<=", ">": "<", "=": "="}


def _numbered(node: Filter) -> Node:
    """The filter with what it says of row_number() asked below the cast that makes it an int: there DuckDB sees the
    first rows of partitions in it, and sorts none of them."""
    project = node.child
    if not isinstance(project, Project) or not isinstance(project.child, Window):
        return node
    numbers = {c.id for c, call in project.child.functions if call.fn == "row_number"}
    below = {c.id: e.arg for c, e in project.exprs if isinstance(e, Cast) and _is_one(e.arg, numbers)}
    moved: list[Expr] = []
    rest: list[Expr] = []
    for part in conjuncts(node.condition):
        if isinstance(part, Call) and part.fn in _BOUNDS:
            fn, one, other = part.fn, *part.args
            if isinstance(one, Literal):
                fn, one, other = _BOUNDS[fn], other, one
            if isinstance(one, Column) and one.id in below and isinstance(other, Literal) and other.value is not None:
                moved.append(Call(BOOLEAN, fn, (below[one.id], Literal(BIGINT, other.value))))
                continue
        rest.append(part)
    if not moved:
        return node
    numbered = replace(project, child=Filter(project.child, all_of(moved)))
    return Filter(numbered, all_of(rest)) if rest else numbered


def _is_one(expr: Expr, ids: set[int]) -> bool:
    return isinstance(expr, Column) and expr.id in ids


def why_not_native(root: Node, *, zone: str = "UTC") -> str | None:
    """The reason the native engine cannot run the plan, if there is one."""
    try:
        native_plan(root, lambda scan: "input", zone=zone)
    except NotNative as refusal:
        return refusal.reason
    return None


class _Text(ABC):
    """Prints nodes; a subclass knows one engine's words."""

    semi, anti = "SEMI JOIN", "ANTI JOIN"

    def __init__(self, source: Source) -> None:
        self.source = source
        self._names: dict[int, str] = {}
        self._shared: set[int] = set()
        self._ctes: list[str] = []
        self._nested = 0

    @abstractmethod
    def expr(self, expr: Expr) -> str: ...

    def condition(self, expr: Expr) -> str:
        """A WHERE or ON condition."""
        return self.expr(expr)

    @abstractmethod
    def agg(self, agg: Agg) -> str: ...

    @abstractmethod
    def window(self, call: WindowCall, over: str) -> str: ...

    @abstractmethod
    def quote(self, name: str) -> str: ...

    @abstractmethod
    def spark_sql(self, node: SparkSql) -> str: ...

    @abstractmethod
    def draw(self, node: Draw) -> str: ...

    @abstractmethod
    def repeat(self, node: Repeat) -> str: ...

    def statement(self, root: Node) -> str:
        """The whole plan, its output columns under their names for people."""
        readers = Counter(id(c) for n in walk_plan(root) for c in n.children)
        self._shared = {node for node, count in readers.items() if count > 1}
        # An ORDER BY must stand in the outermost query to be seen.
        body, order = (
            (self.relation(root.child), self.order(root)) if isinstance(root, Sort) else (self.relation(root), "")
        )
        outputs = ", ".join(f"{self.column(c)} AS {self.quote(c.name)}" for c in root.output) or "1 AS one"
        ctes = f"WITH {', '.join(self._ctes)} " if self._ctes else ""
        return f"{ctes}SELECT {outputs} FROM {body}{order}"

    def relation(self, node: Node) -> str:
        """The node as something to stand after FROM."""
        if id(node) in self._names:
            return self._names[id(node)]
        text = self.select(node)
        if self.is_shared(node):
            name = f"n{len(self._names)}"
            self._ctes.append(f"{name} AS ({text})")
            self._names[id(node)] = name
            return name
        self._nested += 1
        return f"({text}) AS t{self._nested}"

    def is_shared(self, node: Node) -> bool:
        """Whether several read it: then it is a CTE."""
        return id(node) in self._shared

    def column(self, column: Column) -> str:
        return f"c{column.id}"

    def outputs(self, pairs: Any) -> str:
        return ", ".join(f"{text} AS {self.column(column)}" for column, text in pairs) or "1 AS one"

    def passed(self, node: Node) -> str:
        return ", ".join(self.column(c) for c in node.output) or "1 AS one"

    def select(self, node: Node) -> str:
        if isinstance(node, Leaf):
            names = self.outputs((c, self.quote(f)) for f, c in zip(node.fields, node.scanned, strict=True))
            return f"SELECT {names} FROM {self.source(node)}"
        if isinstance(node, Values):
            return self.values(node)
        if isinstance(node, Filter):
            return f"SELECT {self.passed(node)} FROM {self.relation(node.child)} WHERE {self.condition(node.condition)}"
        if isinstance(node, Project):
            return f"SELECT {self.outputs((c, self.expr(e)) for c, e in node.exprs)} FROM {self.relation(node.child)}"
        if isinstance(node, Join):
            return self.join(node)
        if isinstance(node, Aggregate):
            return self.aggregate(node)
        if isinstance(node, Window):
            return self.windows(node)
        if isinstance(node, Sort):
            return f"SELECT {self.passed(node)} FROM {self.relation(node.child)}{self.order(node)}"
        if isinstance(node, Draw):
            return f"SELECT {self.passed(node)} FROM {self.relation(node.child)} {self.draw(node)}"
        if isinstance(node, Repeat):
            return self.repeat(node)
        if isinstance(node, UnionAll):
            return " UNION ALL ".join(
                f"SELECT {self.outputs(zip(node.columns, map(self.column, b.output), strict=True))} "
                f"FROM {self.relation(b)}"
                for b in node.inputs
            )
        if isinstance(node, SetOperation):
            sides = (f"SELECT {self.passed(side)} FROM {self.relation(side)}" for side in (node.left, node.right))
            names = self.outputs(zip(node.columns, map(self.column, node.left.output), strict=True))
            return f"SELECT {names} FROM ({f' {node.kind.upper()} ALL '.join(sides)}) AS o"
        assert isinstance(node, SparkSql)
        return self.spark_sql(node)

    def values(self, node: Values) -> str:
        if not node.columns:
            return "SELECT 1 AS one"
        if not node.rows:
            nulls = self.outputs((c, f"CAST(NULL AS {self.type(c)})") for c in node.columns)
            return f"SELECT {nulls} WHERE FALSE"
        rows = ", ".join(f"({', '.join(self.expr(e) for e in row)})" for row in node.rows)
        names = ", ".join(self.column(c) for c in node.columns)
        return f"SELECT {names} FROM (VALUES {rows}) AS v({names})"

    @abstractmethod
    def type(self, column: Column) -> str: ...

    def join(self, node: Join) -> str:
        words = {"inner": "JOIN", "left": "LEFT JOIN", "full": "FULL JOIN", "semi": self.semi, "anti": self.anti}
        left, right = self.relation(node.left), self.relation(node.right)
        condition = "TRUE" if node.condition == TRUE else self.condition(node.condition)
        return f"SELECT {self.passed(node)} FROM {left} {words[node.kind]} {right} ON {condition}"

    def aggregate(self, node: Aggregate) -> str:
        items = [(c, self.expr(e)) for c, e in node.keys] + [(c, self.agg(a)) for c, a in node.aggs]
        group = f" GROUP BY {', '.join(str(i + 1) for i in range(len(node.keys)))}" if node.keys else ""
        return f"SELECT {self.outputs(items)} FROM {self.relation(node.child)}{group}"

    def windows(self, node: Window) -> str:
        items = [(c, self.expr(c)) for c in node.child.output]
        items += [(c, self.window(call, self.over(node, call))) for c, call in node.functions]
        return f"SELECT {self.outputs(items)} FROM {self.window_rows(node)}"

    def window_rows(self, node: Window) -> str:
        """What functions of a window are computed over."""
        return self.relation(node.child)

    def over(self, node: Window, call: WindowCall) -> str:
        """The window of one of a node's functions."""
        words = [f"PARTITION BY {', '.join(map(self.column, node.partition))}"] if node.partition else []
        if not call.is_of_all and (keys := self.window_order(node, call)):
            words.append(f"ORDER BY {keys}")
        if (frame := call.frame) is not None:
            ends = (self.frame_end(frame, frame.start, "PRECEDING"), self.frame_end(frame, frame.end, "FOLLOWING"))
            words.append(f"{frame.unit.upper()} BETWEEN {ends[0]} AND {ends[1]}")
        return f"OVER ({' '.join(words)})"

    def window_order(self, node: Window, call: WindowCall) -> str:
        return self.keys((*node.order, *node.ties) if call.is_by_rows else node.order)

    def frame_end(self, frame: WindowFrame, at: int | None, last: str) -> str:
        if at is None:
            return f"UNBOUNDED {last}"
        return "CURRENT ROW" if at == 0 else f"{self.distance(frame, abs(at))} {'PRECEDING' if at < 0 else 'FOLLOWING'}"

    def distance(self, frame: WindowFrame, by: int) -> str:
        return str(by)

    def keys(self, keys: Iterable[SortKey]) -> str:
        return ", ".join(
            f"{self.expr(k.expr)} {'DESC' if k.descending else 'ASC'} NULLS {'FIRST' if k.nulls_first else 'LAST'}"
            for k in keys
        )

    def order(self, node: Sort) -> str:
        keys = self.keys(node.keys)
        return (
            (f" ORDER BY {keys}" if keys else "")
            + (f" LIMIT {node.limit}" if node.limit is not None else "")
            + (f" OFFSET {node.offset}" if node.offset else "")
        )


class _Native(_Text):
    def __init__(self, source: Source, zone: str, narrow: bool) -> None:
        super().__init__(source)
        self.zone = zone
        self.narrow = narrow

    def expr(self, expr: Expr) -> str:
        return native(expr, self.column, zone=self.zone)

    def condition(self, expr: Expr) -> str:
        """Conjuncts that cannot raise stand plain, for DuckDB to join and prune by; one that can is
        evaluated only where those before it hold, as Spark does."""
        texts: list[str] = []
        plain: list[str] = []
        for part in conjuncts(expr):
            text = self.expr(part)
            if can_raise(part) and texts:
                text = f"CASE WHEN {' AND '.join(plain) or 'TRUE'} THEN {text} ELSE FALSE END"
            elif not can_raise(part):
                plain.append(f"({text})")
            texts.append(f"({text})")
        return " AND ".join(texts) or "TRUE"

    def filtered(self, leaf: Leaf, condition: Expr) -> str:
        """A leaf's rows for which a condition holds. One that cannot raise is asked beside the source itself: DuckDB
        takes some for raising that never do (``a % 100 = 1``), and leaves those above whatever gives columns names."""
        if can_raise(condition):
            return f"SELECT {self.passed(leaf)} FROM {self.relation(leaf)} WHERE {self.condition(condition)}"
        there = {c.id: self.quote(f) for f, c in zip(leaf.fields, leaf.scanned, strict=True)}
        text = native(condition, lambda column: there[column.id], zone=self.zone)
        return f"{super().select(leaf)} WHERE {text}"

    def agg(self, agg: Agg) -> str:
        return native_agg(agg, self.column, zone=self.zone, narrow=self.narrow)

    def quote(self, name: str) -> str:
        return quote_native(name or "?")  # DuckDB has no empty names; whoever takes the rows names them by position

    def type(self, column: Column) -> str:
        return column.type.duckdb

    def select(self, node: Node) -> str:
        for column in node.output:
            if not column.type.is_held:
                raise NotNative(f"column {column.name} has type {column.type.sql}, which is Spark's own")
        if isinstance(node, Filter) and isinstance(node.child, Leaf) and not self.is_shared(node.child):
            return self.filtered(node.child, node.condition)
        if isinstance(node, Aggregate):
            _require_groupable(c for c, _ in node.keys)
        elif isinstance(node, SetOperation):
            _require_groupable(node.columns)
        elif isinstance(node, Window):
            _require_groupable(node.partition)
            _require_plain_order(node.order)
        return super().select(node)

    def order(self, node: Sort) -> str:
        _require_plain_order(node.keys)
        return super().order(node)

    def window(self, call: WindowCall, over: str) -> str:
        return native_window(call, self.column, over, zone=self.zone, narrow=self.narrow)

    def window_rows(self, node: Window) -> str:
        frames = [call.frame for _, call in node.functions if call.frame is not None and call.frame.has_distance]
        if not frames:
            return super().window_rows(node)
        reach = max(abs(end) for frame in frames for end in (frame.start, frame.end) if end is not None)
        near = range_key(self.expr(node.order[0].expr), node.order[0].expr.type, reach)
        return f"(SELECT *, {near} AS near FROM {super().window_rows(node)})"

    def window_order(self, node: Window, call: WindowCall) -> str:
        if call.fn == "row_number" and len(node.order) == 1 and not node.ties:
            (key,) = node.order
            found = nulls_last(self.expr(key.expr), key.expr.type, least=not key.descending)
            if key.nulls_first and found is not None:
                return f"{found} {'DESC' if key.descending else 'ASC'} NULLS LAST"
        if call.frame is None or not call.frame.has_distance:
            return super().window_order(node, call)
        key = node.order[0]
        return f"near {'DESC' if key.descending else 'ASC'} NULLS {'FIRST' if key.nulls_first else 'LAST'}"

    def distance(self, frame: WindowFrame, by: int) -> str:
        return f"'{by}'::BIGINT" if frame.unit == "range" else str(by)

    def spark_sql(self, node: SparkSql) -> str:
        raise NotNative(node.reason)

    def draw(self, node: Draw) -> str:
        return f"USING SAMPLE reservoir({node.size} ROWS)"

    def repeat(self, node: Repeat) -> str:
        repeated = f"SELECT *, unnest(range({self.column(node.times)})) FROM {self.relation(node.child)}"
        return f"SELECT {self.passed(node)} FROM ({repeated})"


class _Spark(_Text):
    semi, anti = "LEFT SEMI JOIN", "LEFT ANTI JOIN"

    def expr(self, expr: Expr) -> str:
        return spark(expr, self.column)

    def agg(self, agg: Agg) -> str:
        return spark_agg(agg, self.column)

    def window(self, call: WindowCall, over: str) -> str:
        return spark_window(call, self.column, over)

    def quote(self, name: str) -> str:
        return quote(name)

    def type(self, column: Column) -> str:
        return column.type.sql

    def draw(self, node: Draw) -> str:
        return f"ORDER BY rand() LIMIT {node.size}"

    def repeat(self, node: Repeat) -> str:
        times = self.column(node.times)  # a sequence to 0 would count down
        there = f"(SELECT * FROM {self.relation(node.child)} WHERE {times} > 0) AS n"
        return f"SELECT {self.passed(node)} FROM {there} LATERAL VIEW explode(sequence(1L, {times})) r AS i"

    def spark_sql(self, node: SparkSql) -> str:
        inputs = []
        for name, child in zip(node.names, node.inputs, strict=True):
            named = ", ".join(f"{self.column(c)} AS {quote(c.name)}" for c in child.output) or "1 AS one"
            inputs.append(f"{quote(name)} AS (SELECT {named} FROM {self.relation(child)})")
        ctes = f"WITH {', '.join(inputs)} " if inputs else ""
        names = ", ".join(self.column(c) for c in node.columns)
        return f"{ctes}SELECT * FROM ({node.text}\n) AS s({names})"


def _require_groupable(columns: Iterable[Column]) -> None:
    for column in columns:
        if not column.type.is_groupable:
            raise NotNative(f"equality of {column.type.sql} ({column.name}) is Spark's own")


def _require_plain_order(keys: Iterable[SortKey]) -> None:
    for key in keys:
        if key.expr.type.is_nested:
            raise NotNative(f"the order of {key.expr.type.sql} is Spark's own")


def quote_native(name: str) -> str:
    """An identifier in DuckDB's quoting.

    >>> quote_native('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def literal_native(text: str) -> str:
    """A string literal in DuckDB's quoting."""
    return "'" + text.replace("'", "''") + "'"


__all__ = ["NotNative", "Source", "literal_native", "native_plan", "quote_native", "spark_plan", "why_not_native"]
