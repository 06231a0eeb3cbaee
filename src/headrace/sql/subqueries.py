"""Subqueries in expressions, as joins.

A subquery that stands where a value does is bound beside its block and joined to it:

* ``EXISTS (q)`` and ``x IN (q)`` as a condition of their own are semi joins, ``NOT EXISTS``
  an anti join. ``x NOT IN (q)`` is an anti join that minds NULL: a NULL on either side
  makes the condition unknown, unless ``q`` is empty.
* A scalar subquery is a join with one row; more than one is Spark's error.
* A correlated scalar aggregate is grouped by what it is correlated by, and left-joined. A row
  without a group gets the aggregate of nothing: NULL, but 0 from ``count``.
* ``EXISTS`` inside a larger expression is ``count(*) > 0``.

A subquery sees the columns of the block around it, in conjuncts of its WHERE. What is
correlated otherwise (in its select list, its ORDER BY, two levels out) is left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sqlglot import exp

from headrace.errors import SqlError
from headrace.plan.exprs import (
    Agg,
    Call,
    Case,
    Column,
    Expr,
    Literal,
    all_of,
    any_of,
    columns,
    conjuncts,
    substitute,
    walk,
)
from headrace.plan.nodes import (
    ALWAYS,
    ONE_ROW,
    Aggregate,
    Filter,
    InvalidPlan,
    Join,
    Node,
    Project,
    Sort,
    Values,
    renaming,
)
from headrace.sql.coercion import cast, common_type
from headrace.sql.expressions import Analyzer, OutsideAlgebra, bind_expr, position_of
from headrace.sql.over import has_window
from headrace.sql.scope import Scope
from headrace.sql.source import replace
from headrace.types import BIGINT, BOOLEAN

if TYPE_CHECKING:
    from headrace.sql.blocks import Block


@dataclass(frozen=True)
class Around:
    """What a block needs to bind the queries inside it."""

    query: Callable[[exp.Expr], Node]
    """The plan of a query that stands alone."""
    block: Callable[[exp.Select, Scope], Block]
    """A SELECT with its FROM bound, which sees the columns of the scope around it."""


class Lifting(Protocol):
    """Moves an expression from below a grouping to above it; columns in ``keep`` stay."""

    def expr(self, expr: Expr, tree: exp.Expr, keep: Mapping[int, Expr] | None = None) -> Expr: ...


@dataclass(frozen=True)
class Existence:
    """A semi or anti join with a subquery. ``guard`` is a one-row relation and what must hold of it."""

    negated: bool
    plan: Node
    condition: Expr
    tree: exp.Expr
    guard: tuple[Node, Expr] | None = None

    def join(self, node: Node, lift: Lifting | None = None) -> Node:
        """The rows of ``node`` the condition keeps."""
        outputs = node.output
        if self.guard is not None:
            row, holds = self.guard
            node = Filter(Join("inner", node, row, ALWAYS), self._over(row, holds, lift))
        kept = Join("anti" if self.negated else "semi", node, self.plan, self._over(self.plan, self.condition, lift))
        return kept if kept.output == outputs else Project(kept, tuple((c, c) for c in outputs))

    def _over(self, inner: Node, expr: Expr, lift: Lifting | None) -> Expr:
        return expr if lift is None else lift.expr(expr, self.tree, keep={c.id: c for c in inner.output})


@dataclass(frozen=True)
class Scalar:
    """A value from a subquery: ``value`` over the columns of ``plan``, known as ``stand_in`` outside."""

    stand_in: Column
    plan: Node
    condition: Expr
    value: Expr
    tree: exp.Expr

    def join(self, node: Node, lift: Lifting | None = None) -> Node:
        """``node`` with the subquery's value beside each row."""
        condition = self.condition
        if lift is not None:
            condition = lift.expr(condition, self.tree, keep={c.id: c for c in self.plan.output})
        joined = Join("inner" if _one_row(self.plan) and condition == ALWAYS else "left", node, self.plan, condition)
        return Project(joined, (*((c, c) for c in node.output), (self.stand_in, self.value)))


class Subqueries:
    """Binds the subqueries of one block's expressions."""

    def __init__(self, around: Around, scope: Scope, analyzer: Analyzer) -> None:
        self._around = around
        self._scope = scope
        self._analyzer = analyzer
        self.scalars: dict[int, Scalar] = {}
        """By the id of their stand-in column."""

    def existence(self, tree: exp.Expr) -> Existence | None:
        """The join a condition stands for, if it is [NOT] EXISTS or [NOT] IN."""
        negated = False
        while isinstance(tree, exp.Not | exp.Paren):
            negated ^= isinstance(tree, exp.Not)
            tree = tree.this
        if isinstance(tree, exp.Exists):
            plan, condition = self._exists(tree)
            return Existence(negated, plan, condition, tree)
        if isinstance(tree, exp.In) and tree.args.get("query") is not None:
            return self._in(tree, negated)
        return None

    def without(self, tree: exp.Expr) -> exp.Expr:
        """``tree`` with each subquery replaced by the name of its value's column."""
        if not has_subquery(tree):
            return tree
        holder = exp.Paren(this=tree.copy())
        for part in list(holder.find_all(exp.Subquery, exp.Exists, exp.Query)):
            if part.find_ancestor(exp.Subquery, exp.Exists, exp.Query) is not None:
                continue
            if isinstance(part.parent, exp.In) and part.arg_key == "query":
                raise OutsideAlgebra("IN (subquery) inside a larger expression", position_of(part))
            if isinstance(part.parent, exp.Any | exp.All):
                raise OutsideAlgebra("ANY or ALL of a subquery", position_of(part))
            scalar = self._counted(part) if isinstance(part, exp.Exists) else self._scalar(part)
            name = f"__subquery {scalar.stand_in.id}"
            self._scope.extras[(name,)] = scalar.stand_in
            self.scalars[scalar.stand_in.id] = scalar
            replace(part, exp.column(name, quoted=True))
        inner = holder.this
        assert isinstance(inner, exp.Expr)
        return inner

    def join_used(self, node: Node, exprs: list[Expr], lift: Lifting | None = None) -> Node:
        """``node`` joined with the scalars these expressions use, unless it is already."""
        known = {c.id for c in node.output}
        for column in dict.fromkeys(c for e in exprs for c in columns(e)):
            if column.id in self.scalars and column.id not in known:
                node = self.scalars[column.id].join(node, lift)
                known.add(column.id)
        return node

    # The kinds

    def _exists(self, tree: exp.Exists) -> tuple[Node, Expr]:
        block, correlated = self._open(tree.this)
        if block is None or not correlated:
            return self._alone(tree.this, block), ALWAYS
        _plain(block, tree)
        items = block.items()
        self._check_uncorrelated(block, tree)
        if any(_aggregates(i.expr) for i in items):
            return ONE_ROW, ALWAYS  # an aggregate of all rows is a row, also where there are none
        return block.child, all_of(correlated)

    def _in(self, tree: exp.In, negated: bool) -> Existence:
        query = tree.args["query"].this
        inputs = list(tree.this.expressions) if isinstance(tree.this, exp.Tuple) else [tree.this]
        if any(has_subquery(i) for i in inputs):
            raise OutsideAlgebra("a subquery inside IN", position_of(tree))
        outer = [bind_expr(i, self._scope, self._analyzer) for i in inputs]
        block, correlated = self._open(query)
        if block is None or not correlated:
            plan: Node = self._alone(query, block)
            inner: list[Expr] = list(plan.output)
        else:
            _plain(block, tree)
            inner = [i.expr for i in block.items()]
            self._check_uncorrelated(block, tree, inner)
            if any(map(_aggregates, inner)) or any(map(has_window, inner)):
                raise OutsideAlgebra("IN of a correlated aggregate or window function", position_of(tree))
            plan = block.child
        if len(outer) != len(inner):
            raise SqlError(
                "DATATYPE_MISMATCH",
                f"IN compares {len(outer)} values with {len(inner)} columns",
                position=position_of(tree),
                hint="select as many columns as stand before IN",
            )
        pairs = [_comparable(a, b, tree) for a, b in zip(outer, inner, strict=True)]
        if not negated:
            return Existence(False, plan, all_of([*correlated, *(_equal(a, b) for a, b in pairs)]), tree)
        if len(pairs) == 1 and not correlated:
            return self._not_in(plan, *pairs[0], tree)
        unknown = [any_of([_equal(a, b), _is_null(a), _is_null(b)]) for a, b in pairs]
        return Existence(True, plan, all_of([*correlated, *unknown]), tree)

    def _not_in(self, plan: Node, outer: Expr, inner: Expr, tree: exp.Expr) -> Existence:
        """NOT IN by a hash join: what NULLs decide is decided by two counts over the subquery."""
        rows, known = Column.fresh("rows", BIGINT), Column.fresh("known", BIGINT)
        value = Column.fresh("value", inner.type)
        shared = Project(plan, ((value, inner),))
        counts = Aggregate(shared, (), ((rows, Agg(BIGINT, "count", ())), (known, Agg(BIGINT, "count", (value,)))))
        zero = Literal(BIGINT, 0)
        decided = Call(BOOLEAN, "and", (Call(BOOLEAN, "isnotnull", (outer,)), Call(BOOLEAN, "=", (rows, known))))
        guard = Call(BOOLEAN, "or", (Call(BOOLEAN, "=", (rows, zero)), decided))
        side = renaming(shared)
        return Existence(True, side, _equal(outer, side.output[0]), tree, (counts, guard))

    def _scalar(self, tree: exp.Expr) -> Scalar:
        query = tree.this if isinstance(tree, exp.Subquery) else tree
        if isinstance(tree, exp.Subquery) and any(tree.args.get(p) for p in ("order", "limit", "offset", "with_")):
            raise OutsideAlgebra("a subquery with clauses of its own", position_of(tree))
        block, correlated = self._open(query)
        if block is None or not correlated:
            plan: Node = self._alone(query, block)
            if len(plan.output) != 1:
                raise _not_one_column(len(plan.output), tree)
            if not _at_most_one(plan):
                plan = _single(plan, tree)
            (value,) = plan.output
            return Scalar(Column.fresh(value.name, value.type), plan, ALWAYS, value, tree)
        _plain(block, tree, allow_distinct=False)
        items = block.items()
        if len(items) != 1:
            raise _not_one_column(len(items), tree)
        self._check_uncorrelated(block, tree, [items[0].expr])
        if not _aggregates(items[0].expr) or has_window(items[0].expr):
            raise OutsideAlgebra("a correlated scalar subquery without an aggregate", position_of(tree))
        aggs, value_ = block.lifted_alone(items[0])
        return self._grouped(block.child, correlated, aggs, value_, tree)

    def _counted(self, tree: exp.Exists) -> Scalar:
        plan, condition = self._exists(tree)
        count = Column.fresh("count", BIGINT)
        aggs = [(count, Agg(BIGINT, "count", ()))]
        found = Call(BOOLEAN, ">", (count, Literal(BIGINT, 0)))
        if condition == ALWAYS:
            alone = Aggregate(plan, (), tuple(aggs))
            return Scalar(Column.fresh("exists", BOOLEAN), alone, ALWAYS, found, tree)
        return self._grouped(plan, conjuncts(condition), aggs, found, tree)

    def _grouped(
        self, plan: Node, correlated: list[Expr], aggs: list[tuple[Column, Agg]], value: Expr, tree: exp.Expr
    ) -> Scalar:
        """A correlated aggregate: grouped by the inner sides of the equalities that correlate it."""
        mine = {c.id for c in plan.output}
        keys: list[tuple[Column, Expr]] = []
        conditions: list[Expr] = []
        for part in correlated:
            sides = _sides(part, mine)
            if sides is None:
                raise OutsideAlgebra("a scalar subquery correlated by more than equality", position_of(tree))
            fn, outer, inner = sides
            key = Column.fresh("key", inner.type)
            keys.append((key, inner))
            conditions.append(Call(BOOLEAN, fn, (outer, key)))
        empty: dict[int, Expr] = {}
        for column, agg in aggs:
            if agg.template is not None:
                raise OutsideAlgebra(f"a correlated scalar subquery with {agg.fn}", position_of(tree))
            if agg.fn == "count":
                empty[column.id] = Call(BIGINT, "coalesce", (column, Literal(BIGINT, 0)))
        grouped = Aggregate(plan, tuple(keys), tuple(aggs))
        value = substitute(value, empty)
        return Scalar(Column.fresh("value", value.type), grouped, all_of(conditions), value, tree)

    # Correlation

    def _alone(self, query: exp.Expr, block: Block | None) -> Node:
        """The plan of a query that sees nothing of the row around it; ``block`` is the query with its WHERE bound.

        What was bound is not bound again: subqueries in subqueries would take twice as long at each level.
        """
        plan: Node | None = None
        if block is not None:
            with suppress(OutsideAlgebra, InvalidPlan):  # a plan may not hold a column of the query around it
                plan = renaming(block.above_where())
            if block.scope.seen_outside:
                raise OutsideAlgebra("a subquery correlated outside its WHERE", position_of(query))
        if plan is not None:
            return plan
        try:
            return renaming(self._around.query(query))
        except SqlError as error:
            if error.condition != "UNRESOLVED_COLUMN" or isinstance(query, exp.Select):
                raise
            # An INTERSECT or a UNION may well be correlated: Spark knows how, and whether.
            raise OutsideAlgebra("a subquery correlated in this way", position_of(query)) from None

    def _open(self, query: exp.Expr) -> tuple[Block | None, list[Expr]]:
        """A subquery's block with its WHERE applied, and the conditions that need the outer row."""
        if not isinstance(query, exp.Select):
            return None, []
        try:
            block = self._around.block(query, self._scope)
            return block, block.where()
        except SqlError as error:
            if error.condition == "UNRESOLVED_COLUMN":
                raise OutsideAlgebra("a subquery correlated in this way", position_of(query)) from None
            raise

    def _check_uncorrelated(self, block: Block, tree: exp.Expr, exprs: list[Expr] | None = None) -> None:
        if any(c.id in block.scope.seen_outside for e in exprs or () for c in columns(e)):
            raise OutsideAlgebra("a subquery correlated outside its WHERE", position_of(tree))


def _aggregates(expr: Expr) -> bool:
    return any(isinstance(e, Agg) for e in walk(expr))


def has_subquery(tree: exp.Expr) -> bool:
    """Whether a query stands somewhere in the expression."""
    return tree.find(exp.Query, exp.Exists) is not None


def and_parts(tree: exp.Expr) -> list[exp.Expr]:
    """The conjuncts of a condition as written.

    >>> from headrace.sql.grammar import parse_expression
    >>> from headrace.sql.source import text_of
    >>> [text_of(p) for p in and_parts(parse_expression("a AND (b OR c) AND (d AND e)"))]
    ['a', '(b OR c)', 'd', 'e']
    """
    if isinstance(tree, exp.And):
        return [*and_parts(tree.this), *and_parts(tree.expression)]
    if isinstance(tree, exp.Paren) and isinstance(tree.this, exp.And | exp.Paren):
        return and_parts(tree.this)
    return [tree]


def _plain(block: Block, tree: exp.Expr, *, allow_distinct: bool = True) -> None:
    """A correlated subquery's block may not group, sort or limit: each outer row would do so anew."""
    refused = ["group", "having", "qualify", "order", "limit", "offset"] + ([] if allow_distinct else ["distinct"])
    for part in refused:
        if block.tree.args.get(part) is not None:
            raise OutsideAlgebra(f"a correlated subquery with {part.upper()}", position_of(tree))


def _sides(part: Expr, mine: set[int]) -> tuple[str, Expr, Expr] | None:
    """(operator, outer side, inner side) of an equality between the two."""
    if not isinstance(part, Call) or part.fn not in ("=", "<=>"):
        return None
    a, b = part.args
    a_ids, b_ids = ({c.id for c in columns(e)} for e in (a, b))
    if b_ids and b_ids <= mine and not a_ids & mine:
        return part.fn, a, b
    if a_ids and a_ids <= mine and not b_ids & mine:
        return part.fn, b, a
    return None


def _comparable(a: Expr, b: Expr, tree: exp.Expr) -> tuple[Expr, Expr]:
    """Both sides of an IN in one type, where the choice is beyond doubt."""
    if a.type == b.type:
        return a, b
    both = common_type((a.type, b.type)) if a.type.is_numeric and b.type.is_numeric else None
    if both is None:
        raise OutsideAlgebra(f"IN of {a.type.sql} and {b.type.sql}", position_of(tree))
    return cast(a, both), cast(b, both)


def _equal(a: Expr, b: Expr) -> Expr:
    return Call(BOOLEAN, "=", (a, b))


def _is_null(a: Expr) -> Expr:
    return Call(BOOLEAN, "isnull", (a,))


def _at_most_one(node: Node) -> bool:
    if isinstance(node, Project | Filter):
        return _at_most_one(node.child)
    if isinstance(node, Sort):
        return (node.limit is not None and node.limit <= 1) or _at_most_one(node.child)
    if isinstance(node, Values):
        return len(node.rows) <= 1
    return isinstance(node, Aggregate) and not node.keys


def _one_row(node: Node) -> bool:
    """Whether the plan gives exactly one row, whatever is below."""
    if isinstance(node, Project):
        return _one_row(node.child)
    if isinstance(node, Values):
        return len(node.rows) == 1
    return isinstance(node, Aggregate) and not node.keys


def _single(plan: Node, tree: exp.Expr) -> Node:
    """The one value of a one-column plan: NULL for no row, Spark's error for more than one."""
    (column,) = plan.output
    if not column.type.is_native:
        raise OutsideAlgebra(f"a scalar subquery of type {column.type.sql}", position_of(tree))
    rows, value = Column.fresh("rows", BIGINT), Column.fresh(column.name, column.type)
    aggs = ((rows, Agg(BIGINT, "count", ())), (value, Agg(column.type, "max", (column,))))
    several = Call(BOOLEAN, ">", (rows, Literal(BIGINT, 1)))
    checked = Case(column.type, ((several, Call(column.type, "too_many_rows", ())),), value)
    return Project(Aggregate(plan, (), aggs), ((Column.fresh(column.name, column.type), checked),))


def _not_one_column(n: int, tree: exp.Expr) -> SqlError:
    return SqlError(
        "INVALID_SUBQUERY_EXPRESSION",
        f"a subquery that stands for a value must have one column, but this has {n}",
        position=position_of(tree),
        hint="select one column",
    )


__all__ = ["Around", "Existence", "Scalar", "Subqueries", "and_parts", "has_subquery"]
