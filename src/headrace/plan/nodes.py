"""The relational algebra: small, immutable, typed, and a DAG.

A plan is a graph of nodes. Every node says which columns it puts out; columns
are known by id, so a rewrite moves expressions about without renaming them. A
node checks itself when it is built: *a wrong plan cannot be constructed*. Two
references to one node object are one piece of work (a CTE used twice is one
node), so nodes compare by identity.

>>> from headrace.types import INT, Field
>>> s = Leaf.of(StreamRef("s"), (Field("a", INT),))
>>> Filter(s, Literal(BOOLEAN, True)).output == s.output
True
>>> Project(s, ((Column.fresh("b", INT), Column(INT, -1, "elsewhere")),))
Traceback (most recent call last):
    ...
headrace.plan.nodes.InvalidPlan: Project reads elsewhere, which its input does not have
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal as Choice
from typing import TypeGuard

from headrace.plan.exprs import TRUE, Agg, Column, Expr, Literal, Over, SortKey, WindowCall, columns, walk
from headrace.plan.refs import KeptRef, LogRef, Ref, RelationRef, StreamRef, TableRef, VersionRef
from headrace.types import BIGINT, BOOLEAN, INT, Schema

JoinKind = Choice["inner", "left", "full", "semi", "anti"]
SetKind = Choice["intersect", "except"]

__all__ = [
    "Aggregate",
    "Draw",
    "Filter",
    "InvalidPlan",
    "Join",
    "Leaf",
    "Literal",
    "Node",
    "Project",
    "Repeat",
    "SetKind",
    "SetOperation",
    "Sort",
    "SortKey",
    "SparkSql",
    "UnionAll",
    "Values",
    "Window",
    "rewrite_plan",
    "walk_plan",
]


class InvalidPlan(Exception):
    """A node was built over inputs it does not fit: a defect of Headrace, not of the query."""


@dataclass(frozen=True, eq=False)
class Node(ABC):
    """Any relational operator."""

    @property
    @abstractmethod
    def output(self) -> tuple[Column, ...]:
        """The columns it puts out."""

    @property
    def children(self) -> tuple[Node, ...]:
        return ()

    def with_children(self, children: tuple[Node, ...]) -> Node:
        """The same operator over other inputs (which must put out the columns it reads)."""
        assert not children
        return self

    def _check(self, exprs: Iterable[Expr], *inputs: Node) -> None:
        known = {c.id for node in inputs for c in node.output}
        for expr in exprs:
            for column in columns(expr):
                if column.id not in known:
                    raise InvalidPlan(f"{type(self).__name__} reads {column.name}, which its input does not have")


@dataclass(frozen=True, eq=False)
class Unary(Node):
    """An operator with one input."""

    child: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.child,)

    def with_children(self, children: tuple[Node, ...]) -> Node:
        return replace(self, child=children[0])


@dataclass(frozen=True, eq=False)
class Leaf(Node):
    """Columns of what a reference names."""

    ref: Ref
    fields: tuple[str, ...]
    """The relation's own name for each output column."""
    scanned: tuple[Column, ...]
    key: tuple[str, ...] = ()
    """The fields no two rows of the relation share, if it has a primary key."""
    oldest: bool = False
    """Of a stream: whether it is read from the oldest row that is still buffered, not from the newest."""

    @staticmethod
    def of(ref: Ref, schema: Schema, key: tuple[str, ...] = ()) -> Leaf:
        return Leaf(
            ref,
            tuple(f.name for f in schema),
            tuple(Column.fresh(f.name, f.type) for f in schema),
            key,
        )

    @property
    def relation(self) -> str:
        return self.ref.name

    @property
    def number(self) -> int:
        """The number of the relation it reads; 0 if that is none of the catalog."""
        return self.ref.number if isinstance(self.ref, RelationRef) else 0

    @property
    def kind(self) -> str:
        """What it reads, as people call it."""
        return self.ref.kind

    @property
    def output(self) -> tuple[Column, ...]:
        return self.scanned

    def keep(self, wanted: set[int]) -> Leaf:
        """The scan of only the wanted columns."""
        kept = [(f, c) for f, c in zip(self.fields, self.scanned, strict=True) if c.id in wanted]
        return replace(self, fields=tuple(f for f, _ in kept), scanned=tuple(c for _, c in kept))


@dataclass(frozen=True, eq=False)
class Values(Node):
    """Constant rows: ``VALUES``, or one row of no columns for a SELECT without FROM."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Expr, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if tuple(e.type for e in row) != tuple(c.type for c in self.columns):
                raise InvalidPlan("VALUES rows do not have their columns' types")
            self._check(row)

    @property
    def output(self) -> tuple[Column, ...]:
        return self.columns


@dataclass(frozen=True, eq=False)
class Filter(Unary):
    """The rows for which ``condition`` is true."""

    condition: Expr

    def __post_init__(self) -> None:
        _boolean(self, self.condition)
        self._check((self.condition,), self.child)

    @property
    def output(self) -> tuple[Column, ...]:
        return self.child.output


@dataclass(frozen=True, eq=False)
class Project(Unary):
    """Each output column computed from the input row."""

    exprs: tuple[tuple[Column, Expr], ...]

    def __post_init__(self) -> None:
        for column, expr in self.exprs:
            if column.type != expr.type:
                raise InvalidPlan(f"Project gives {column.name} {expr.type}, not {column.type}")
            _no_aggregate(self, expr)
        self._check((e for _, e in self.exprs), self.child)

    @property
    def output(self) -> tuple[Column, ...]:
        return tuple(c for c, _ in self.exprs)


@dataclass(frozen=True, eq=False)
class Join(Node):
    """A join; ``left`` is the probe side. Semi and anti joins put out the left columns alone."""

    kind: JoinKind
    left: Node
    right: Node
    condition: Expr

    def __post_init__(self) -> None:
        if {c.id for c in self.left.output} & {c.id for c in self.right.output}:
            raise InvalidPlan("both sides of a join put out the same column")
        _boolean(self, self.condition)
        self._check((self.condition,), self.left, self.right)

    @property
    def output(self) -> tuple[Column, ...]:
        return self.left.output if self.kind in ("semi", "anti") else (*self.left.output, *self.right.output)

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    def with_children(self, children: tuple[Node, ...]) -> Node:
        return replace(self, left=children[0], right=children[1])


@dataclass(frozen=True, eq=False)
class Aggregate(Unary):
    """GROUP BY ``keys``; with no keys, one row even over no input. With no aggs it is DISTINCT."""

    keys: tuple[tuple[Column, Expr], ...]
    aggs: tuple[tuple[Column, Agg], ...]

    def __post_init__(self) -> None:
        if not self.keys and not self.aggs:
            raise InvalidPlan("Aggregate has neither keys nor aggregates, so its one row would have no columns")
        for column, expr in self.keys:
            if column.type != expr.type:
                raise InvalidPlan(f"Aggregate gives key {column.name} {expr.type}, not {column.type}")
            _no_aggregate(self, expr)
        for column, agg in self.aggs:
            if column.type != agg.type:
                raise InvalidPlan(f"Aggregate gives {column.name} {agg.type}, not {column.type}")
            for child in agg.children:
                _no_aggregate(self, child)
        self._check((*(e for _, e in self.keys), *(a for _, a in self.aggs)), self.child)

    @property
    def output(self) -> tuple[Column, ...]:
        return (*(c for c, _ in self.keys), *(c for c, _ in self.aggs))


@dataclass(frozen=True, eq=False)
class Sort(Unary):
    """ORDER BY with an optional LIMIT; without keys, a bare LIMIT."""

    keys: tuple[SortKey, ...]
    limit: int | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        self._check((k.expr for k in self.keys), self.child)

    @property
    def output(self) -> tuple[Column, ...]:
        return self.child.output


@dataclass(frozen=True, eq=False)
class Window(Unary):
    """Each row with what functions say of it among the rows of its partition, in their order.

    Keys and arguments are columns or constants: what is to be computed first stands in a Project below. Rows that tie
    in the order are in any, unless ``ties`` says in which; what is the same for rows that tie (ranks, frames that end
    where they do) does not look at it.
    """

    partition: tuple[Column, ...]
    order: tuple[SortKey, ...]
    functions: tuple[tuple[Column, WindowCall], ...]
    ties: tuple[SortKey, ...] = ()

    def __post_init__(self) -> None:
        for column, call in self.functions:
            if column.type != call.type:
                raise InvalidPlan(f"Window gives {column.name} {call.type}, not {column.type}")
            for child in call.children:
                if not isinstance(child, Column | Literal):
                    raise InvalidPlan(f"Window computes an argument of {call.fn}")
        keys = [k.expr for k in (*self.order, *self.ties)]
        if not all(isinstance(k, Column) for k in keys):
            raise InvalidPlan("Window computes what it orders by")
        self._check((*self.partition, *keys, *(call for _, call in self.functions)), self.child)

    @property
    def output(self) -> tuple[Column, ...]:
        return (*self.child.output, *(c for c, _ in self.functions))


@dataclass(frozen=True, eq=False)
class Draw(Unary):
    """``TABLESAMPLE RESERVOIR``: so many rows of its input, any as likely as others; with a seed, always the same."""

    size: int
    seed: int | None = None

    @property
    def output(self) -> tuple[Column, ...]:
        return self.child.output


@dataclass(frozen=True, eq=False)
class Repeat(Unary):
    """Each row as often as one of its columns says, which is not put out; none where that is not above 0."""

    times: Column

    def __post_init__(self) -> None:
        if self.times.type != BIGINT:
            raise InvalidPlan(f"Repeat counts by {self.times.type}, not bigint")
        self._check((self.times,), self.child)

    @property
    def output(self) -> tuple[Column, ...]:
        return tuple(c for c in self.child.output if c.id != self.times.id)


@dataclass(frozen=True, eq=False)
class UnionAll(Node):
    """All rows of all inputs, matched by position."""

    inputs: tuple[Node, ...]
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        for node in self.inputs:
            if tuple(c.type for c in node.output) != tuple(c.type for c in self.columns):
                raise InvalidPlan("UNION ALL inputs do not have its columns' types")
        _forget_lengths(self)

    @property
    def output(self) -> tuple[Column, ...]:
        return self.columns

    @property
    def children(self) -> tuple[Node, ...]:
        return self.inputs

    def with_children(self, children: tuple[Node, ...]) -> Node:
        return replace(self, inputs=children)


@dataclass(frozen=True, eq=False)
class SetOperation(Node):
    """INTERSECT ALL or EXCEPT ALL, matched by position; NULLs are equal to each other."""

    kind: SetKind
    left: Node
    right: Node
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        for node in (self.left, self.right):
            if tuple(c.type for c in node.output) != tuple(c.type for c in self.columns):
                raise InvalidPlan(f"{self.kind} inputs do not have its columns' types")
        _forget_lengths(self)

    @property
    def output(self) -> tuple[Column, ...]:
        return self.columns

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    def with_children(self, children: tuple[Node, ...]) -> Node:
        return replace(self, left=children[0], right=children[1])


@dataclass(frozen=True, eq=False)
class SparkSql(Node):
    """What lies outside the algebra, as Spark SQL text over named inputs.

    ``text`` reads its inputs by ``names``; ``output`` has the types Spark's analyzer gave.
    """

    text: str
    names: tuple[str, ...]
    inputs: tuple[Node, ...]
    columns: tuple[Column, ...]
    reason: str

    @property
    def output(self) -> tuple[Column, ...]:
        return self.columns

    @property
    def children(self) -> tuple[Node, ...]:
        return self.inputs

    def with_children(self, children: tuple[Node, ...]) -> Node:
        return replace(self, inputs=children)


def _forget_lengths(node: UnionAll | SetOperation) -> None:
    """Text of several inputs has no length that all of it was declared with."""
    if any(c.type.is_limited for c in node.columns):
        object.__setattr__(node, "columns", tuple(replace(c, type=c.type.plain) for c in node.columns))


def _boolean(node: Node, condition: Expr) -> None:
    if condition.type != BOOLEAN:
        raise InvalidPlan(f"{type(node).__name__} condition is {condition.type}, not boolean")
    _no_aggregate(node, condition)


def _no_aggregate(node: Node, expr: Expr) -> None:
    if any(isinstance(e, Agg | Over | WindowCall) for e in walk(expr)):
        raise InvalidPlan(f"{type(node).__name__} holds the call of an aggregate or a window function")


def walk_plan(root: Node) -> Iterator[Node]:
    """Every node once, inputs before the nodes that read them."""
    seen: set[int] = set()

    def visit(node: Node) -> Iterator[Node]:
        if id(node) in seen:
            return
        seen.add(id(node))
        for child in node.children:
            yield from visit(child)
        yield node

    return visit(root)


def map_children(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node over its changed inputs; itself, if none of them is another."""
    children = tuple(change(c) for c in node.children)
    same = all(a is b for a, b in zip(children, node.children, strict=True))
    return node if same else node.with_children(children)


def rewrite_plan(root: Node, change: Callable[[Node], Node]) -> Node:
    """``change`` applied bottom-up to every node once; shared nodes stay shared."""
    done: dict[int, Node] = {}

    def visit(node: Node) -> Node:
        if id(node) not in done:
            done[id(node)] = change(map_children(node, visit))
        return done[id(node)]

    return visit(root)


def with_a_column(node: Node) -> Node:
    """The node; with a constant if it has no column, for rows that are written or held need one to be counted."""
    return node if node.output else Project(node, ((Column.fresh("one", INT), Literal(INT, 1)),))


def renaming(node: Node, names: Iterable[str] | None = None) -> Project:
    """The node under fresh column ids, so that one node can be read twice in a query."""
    wanted = [c.name for c in node.output] if names is None else list(names)
    return Project(node, tuple((Column.fresh(n, c.type), c) for n, c in zip(wanted, node.output, strict=True)))


def is_leaf(node: Node, *refs: type[Ref]) -> TypeGuard[Leaf]:
    """Whether a node reads what such a reference names."""
    return isinstance(node, Leaf) and isinstance(node.ref, refs)


def leaves(node: Node, *refs: type[Ref]) -> list[Leaf]:
    """The leaves of a plan, or those whose references are such."""
    return [n for n in walk_plan(node) if isinstance(n, Leaf) and isinstance(n.ref, refs or Ref)]


def streams_in(node: Node) -> set[str]:
    """The streams a plan reads."""
    return {leaf.relation for leaf in leaves(node, StreamRef)}


def reads_ungrouped(node: Node) -> bool:
    """Whether a stream reaches ``node`` without a grouping between."""
    if isinstance(node, Aggregate):
        return False
    if isinstance(node, Leaf):
        return is_leaf(node, StreamRef)
    return any(reads_ungrouped(c) for c in node.children)


def tables_in(node: Node) -> set[str]:
    """The tables a plan reads, as they are or were."""
    return {leaf.relation for leaf in leaves(node, TableRef, VersionRef, LogRef)}


def kept_in(node: Node) -> set[str]:
    """The kept relations a plan reads: continuous views, samples."""
    return {leaf.relation for leaf in leaves(node, KeptRef)}


ONE_ROW = Values((), ((),))
ALWAYS = TRUE
