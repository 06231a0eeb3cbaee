"""One SELECT block over its bound FROM clause.

Aggregate calls are bound in place with everything else, then *lifted*: what
equals a grouping expression becomes that key's column, an aggregate becomes the
grouping's column, and a column left over is neither: the query is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlglot import exp

from headrace.errors import NotYetSupported, SqlError
from headrace.plan.canonical import canonical
from headrace.plan.exprs import TRUE, Agg, Call, Column, Expr, SparkExpr, all_of, columns, substitute, walk
from headrace.plan.nodes import Aggregate, Filter, Node, Project, Sort, SortKey
from headrace.sql.coercion import can_cast, cast
from headrace.sql.expressions import Analyzer, OutsideAlgebra, bind_expr, check_inside_algebra, position_of
from headrace.sql.fields import depth_of
from headrace.sql.grouping import grouping_sets, is_grouping_call, key_trees, union_of_sets, with_grouping_id
from headrace.sql.lifting import Lift
from headrace.sql.naming import SparkName, output_name
from headrace.sql.ordering import limit_of, means_all, ordinal, sort_key
from headrace.sql.over import has_window, refuse_window_in, refuse_windows, with_named_windows, with_windows
from headrace.sql.scope import OutputScope, Scope, Source
from headrace.sql.source import replace, text_of
from headrace.sql.stars import is_star, star_items
from headrace.sql.subqueries import Around, Existence, Subqueries, and_parts, has_subquery
from headrace.sql.template import Left
from headrace.sql.time_windows import Windows, name_fields
from headrace.sql.tree import dotted
from headrace.types import BIGINT, BOOLEAN, TINYINT, VOID, Type


@dataclass(frozen=True)
class Item:
    """A select-list item after stars are expanded."""

    name: str
    expr: Expr
    tree: exp.Expr
    aliased: bool = False
    """Whether the name was given with AS."""
    lateral: bool = False
    """Whether it names an earlier item by its alias."""


def boolean(
    tree: exp.Expr, scope: Scope | OutputScope, analyzer: Analyzer, otherwise: str = "DATATYPE_MISMATCH"
) -> Expr:
    """A condition; anything but a boolean is an error."""
    expr = bind_expr(tree, scope, analyzer)
    if expr.type != BOOLEAN:
        raise SqlError(
            otherwise,
            f"a condition must be boolean, but this is {expr.type.sql}",
            position=position_of(tree),
            hint="compare it with something",
        )
    return expr


_NOT_THERE = ("MISSING_AGGREGATION", "MISSING_GROUP_BY", "FIELD_NOT_FOUND", "INVALID_EXTRACT_BASE_FIELD_TYPE")
"""What is wrong with a name in HAVING or ORDER BY: to Spark the groups have no such column."""
_OF_GROUPS = ("UNRESOLVED_COLUMN", "MISSING_AGGREGATION", "MISSING_GROUP_BY", "INVALID_WHERE_CONDITION")
"""What a subquery in HAVING may seem to do wrong that names aggregates of the groups around it."""


@contextmanager
def _as_unresolved(conditions: tuple[str, ...]) -> Iterator[None]:
    """Errors from within that Spark has no other name for than a column that is not there."""
    try:
        yield
    except SqlError as error:
        if error.condition in conditions:
            error.condition = "UNRESOLVED_COLUMN"
        raise


class Block:
    """Builds the plan of one SELECT."""

    def __init__(self, tree: exp.Select, child: Node, scope: Scope, analyzer: Analyzer, around: Around) -> None:
        self.tree = tree = with_named_windows(tree)
        self.child = child
        self.scope = scope
        self.analyzer = analyzer
        self.subqueries = Subqueries(around, scope, analyzer)
        self._sets: list[frozenset[int]] | None = None
        self._marks: dict[int, Column] = {}
        """Of a block with grouping sets: the columns that tell them apart, by id."""

    def plan(self) -> Node:
        self.where()
        return self.above_where()

    def above_where(self) -> Node:
        """The plan of the block, its WHERE applied already."""
        windows = self._windows()
        self._grouping_sets()
        items = self.items()
        keys = self._keys(items, windows)
        having = self.tree.args.get("having")
        aggregates = any(_has_aggregate(i.expr) for i in items)
        if keys is None and not aggregates and having is None:
            return self._finish(items, [i.expr for i in items], None, None)
        if having is not None:
            refuse_window_in(having, "HAVING")
        if having is not None and not has_subquery(having):
            check_inside_algebra(self._plain(having.this))  # what only Spark knows there, Spark refuses first
        lift = Lift(keys or [], windows.values, lambda c: c.id in self.subqueries.scalars or c.id in self._marks)
        lifted = [lift.expr(i.expr, i.tree) for i in items]
        having_parts = [] if having is None else self._having(having, items, lifted, lift)
        sorts = self._sort_exprs(items, lifted, lift)
        aggs = lift.aggs()
        if not lift.keys and not aggs:
            aggs = [(Column.fresh("count", BIGINT), Agg(BIGINT, "count", ()))]  # SELECT 1 … HAVING true: still one row
        # A subquery's value that is aggregated, or grouped by, is joined below; any other above the grouping.
        self.child = self.subqueries.join_used(self.child, [*(e for _, e in lift.keys), *(a for _, a in aggs)])
        rows = windows.rows(self.child)
        grouped: Node
        if self._sets is None:
            grouped = Aggregate(rows, tuple(lift.keys), tuple(aggs))
        else:
            *bits, number = self._marks.values()
            grouped = union_of_sets(rows, lift.keys, aggs, self._sets, bits, number)
        conditions = [p for p in having_parts if isinstance(p, Expr)]
        grouped = self.subqueries.join_used(grouped, conditions, lift)
        if (condition := all_of(conditions)) != TRUE:
            grouped = Filter(grouped, condition)
        for part in having_parts:
            if isinstance(part, Existence):
                grouped = part.join(grouped, lift)
        self.child = self.subqueries.join_used(grouped, [*lifted, *(k.expr for k in sorts)], lift)
        return self._finish(items, lifted, sorts, lift)

    # WHERE

    def where(self) -> list[Expr]:
        """Apply WHERE to the block's rows; what needs the outer query's row is returned instead."""
        clause = self.tree.args.get("where")
        if clause is None:
            return []
        refuse_window_in(clause, "WHERE")
        if self.scope.outer is None and not has_subquery(clause):
            self._filter([self._condition(clause.this, clause)])
            return []
        parts = and_parts(clause.this)
        bound = [self._condition(p, clause) for p in parts if not has_subquery(p)]
        correlated = [b for b in bound if self._is_correlated(b)]
        self._filter([b for b in bound if not self._is_correlated(b)])
        for part in parts:
            if not has_subquery(part):
                continue
            existence = self.subqueries.existence(part)
            if existence is not None:
                _not_aggregated(existence.condition, clause, "INVALID_WHERE_CONDITION")
                self._refuse_correlated(existence.condition, part)
                self.child = existence.join(self.child)
                continue
            condition = self._condition(self.subqueries.without(part), clause)
            self._refuse_correlated(condition, part)
            self.child = self.subqueries.join_used(self.child, [condition])
            self._filter([condition])
        return correlated

    def _condition(self, tree: exp.Expr, clause: exp.Expr) -> Expr:
        condition = boolean(tree, self.scope, self.analyzer)
        return _not_aggregated(condition, clause, "INVALID_WHERE_CONDITION")

    def _filter(self, conditions: list[Expr]) -> None:
        if (condition := all_of(conditions)) != TRUE:
            self.child = Filter(self.child, condition)

    def _is_correlated(self, expr: Expr) -> bool:
        return any(c.id in self.scope.seen_outside for c in columns(expr))

    def _refuse_correlated(self, expr: Expr, tree: exp.Expr) -> None:
        if self._is_correlated(expr):
            raise OutsideAlgebra("a subquery correlated two levels out", position_of(tree))

    def lifted_alone(self, item: Item) -> tuple[list[tuple[Column, Agg]], Expr]:
        """An item's aggregates, and its value over their columns, as if the block had no groups."""
        lift = Lift([], {}, lambda column: False)
        value = lift.expr(item.expr, item.tree)
        return lift.aggs(), value

    # The select list

    def items(self) -> list[Item]:
        """The select list."""
        items: list[Item] = []
        for tree in self.tree.expressions:
            if is_star(tree):
                items += [Item(name, expr, tree) for name, expr in star_items(tree, self.scope, self._bind)]
                continue
            inner = tree.this if isinstance(tree, exp.Alias) else tree
            if isinstance(tree, exp.Aliases):
                raise OutsideAlgebra("several aliases for one item", position_of(tree))
            if not isinstance(tree, exp.Alias) and has_subquery(tree):
                raise OutsideAlgebra("a subquery in an item without an alias", position_of(tree))
            named = isinstance(tree, exp.Alias)
            if before := self._aliases_named(inner, items):
                items.append(self._lateral(tree, inner, before))
                continue
            left: dict[int, Left] = {}
            expr = bind_expr(self._plain(inner), self.scope, self.analyzer, left=left, windows=True)
            name = tree.alias if named else output_name(tree, self._type_of, self._depth_of, self._spark_names(left))
            items.append(Item(name, expr, inner, named))
        return items

    # An item may name those before it by their aliases, where no column has such a name.

    def _aliases_named(self, tree: exp.Expr, items: list[Item]) -> dict[str, Expr]:
        """The earlier items that an item names."""
        found: dict[str, Expr] = {}
        aliased = {i.name.lower() for i in items if i.aliased}
        names = {c.parts[0].name.lower() for c in tree.find_all(exp.Column) if not isinstance(c.this, exp.Star)}
        for name in names & aliased:
            if self.scope.knows(name):
                continue
            exprs = [i.expr for i in items if i.aliased and i.name.lower() == name]
            if len(exprs) > 1:
                raise SqlError(
                    "AMBIGUOUS_LATERAL_COLUMN_ALIAS",
                    f"{name} could be more than one item of the select list",
                    position=position_of(tree),
                    hint="give each an alias of its own",
                )
            if any(isinstance(e, SparkExpr) for e in walk(exprs[0])):
                raise OutsideAlgebra("an alias of what only Spark knows, used again", position_of(tree))
            found[name] = exprs[0]
        return found

    def _lateral(self, tree: exp.Expr, inner: exp.Expr, named: dict[str, Expr]) -> Item:
        left: dict[int, Left] = {}

        def bound(part: exp.Expr) -> Expr:
            outputs = OutputScope(named, self.scope)
            found = bind_expr(self._plain(part), outputs, self.analyzer, left=left)
            for agg in (e for e in walk(found) if isinstance(e, Agg)):
                if {c.id for c in columns(agg)} & outputs.aliases.keys():
                    raise SqlError(
                        "UNSUPPORTED_FEATURE",
                        "an aggregate of another item, named by its alias",
                        position=position_of(part),
                        hint="write the expression itself, or name it in a subquery",
                    )
            return substitute(found, outputs.aliases)

        def depth(part: exp.Expr) -> int:
            return -2 if part.name.lower() in named and len(dotted(part) or ()) == 1 else depth_of(bound(part))

        expr = bound(inner)
        if isinstance(tree, exp.Alias):
            return Item(tree.alias, expr, inner, True, lateral=True)
        name = output_name(tree, lambda part: bound(part).type, depth, self._spark_names(left))
        return Item(name, expr, inner, lateral=True)

    def _bind(self, tree: exp.Expr, *, windows: bool = False) -> Expr:
        return bind_expr(self._plain(tree), self.scope, self.analyzer, windows=windows)

    def _plain(self, tree: exp.Expr) -> exp.Expr:
        """The tree with names for what is joined beside the block's rows, or tells its grouping sets apart."""
        tree = self.subqueries.without(tree)
        if not self._marks or not any("mark" in call.meta for call in tree.find_all(exp.Anonymous)):
            return tree
        holder = exp.Paren(this=tree.copy())
        for call in [c for c in holder.find_all(exp.Anonymous) if "mark" in c.meta]:
            replace(call, exp.column(f"__mark {call.meta['mark']}", quoted=True))
        inner = holder.this
        assert isinstance(inner, exp.Expr)
        return inner

    def _spark_names(self, left: dict[int, Left]) -> SparkName:
        """Spark's names for what was left to it."""

        def name(tree: exp.Expr) -> tuple[str, list[exp.Expr]] | None:
            if (part := left.get(id(tree))) is None:
                return None
            found = self.analyzer.scalar_name(part.template(), tuple(type_ for _, type_ in part.holes))
            return None if found is None else (found, [hole for hole, _ in part.holes])

        return name

    def _type_of(self, tree: exp.Expr) -> Type:
        return self._bind(tree, windows=True).type

    def _depth_of(self, tree: exp.Expr) -> int:
        return depth_of(self._bind(tree, windows=True))

    # GROUP BY

    def _keys(self, items: list[Item], windows: Windows) -> list[tuple[Column, Expr]] | None:
        group = self.tree.args.get("group")
        if group is None:
            return None
        sets = grouping_sets(group)
        if sets is not None:
            return self._keys_of_sets(group, sets, items, windows)
        aliased = {i.name.lower() for i in items if i.aliased}
        if len(group.expressions) == 1 and "all" not in aliased and means_all(group.expressions[0], self.scope):
            found = [i.expr for i in items if not _has_aggregate(i.expr)]
            if lateral := next((i for i in items if i.lateral), None):
                raise _lateral_key(lateral)
        else:
            found = [self._key(tree, items) for tree in group.expressions]
        if any(is_star(t) for t in self.tree.expressions) and any(
            ordinal(t, items, "GROUP_BY") is not None for t in group.expressions
        ):
            raise SqlError(
                "STAR_GROUP_BY_POS",
                "a * in the select list has no places to GROUP BY",
                position=position_of(group),
                hint="write the columns, in one of the two",
            )
        keys: list[tuple[Column, Expr]] = []
        for expr in found:
            expr = windows.key(refuse_windows(expr, group, "GROUP BY"))
            if not any(canonical(expr) == canonical(known) for _, known in keys):
                keys.append((Column.fresh(_key_name(expr, items), expr.type), expr))
        return keys

    # Grouping sets

    def _grouping_sets(self) -> None:
        """Give names to what grouping() and grouping_id() tell, before anything that calls them is bound."""
        group = self.tree.args.get("group")
        if group is None or (sets := grouping_sets(group)) is None:
            return
        trees = key_trees(group, sets)
        texts = [text_of(t) for t in trees]
        bits = [Column.fresh(f"grouping {i}", TINYINT) for i in range(len(trees))]
        number = Column.fresh("grouping_id", BIGINT)
        self._marks = {c.id: c for c in (*bits, number)}
        for column in self._marks.values():
            self.scope.extras[(f"__mark {column.id}",)] = column
        self.tree = with_grouping_id(self.tree, self.scope)
        for call in [c for c in self.tree.find_all(exp.Anonymous) if is_grouping_call(c)]:
            if call.find_ancestor(exp.Query) is not self.tree:
                continue
            args = [text_of(a) for a in call.expressions]
            if call.name.lower() == "grouping" and len(args) == 1 and args[0] in texts:
                call.meta["mark"] = bits[texts.index(args[0])].id
            elif call.name.lower() == "grouping_id" and args in ([], texts):
                call.meta["mark"] = number.id
            else:
                raise OutsideAlgebra("grouping() of something that is not a key", position_of(call))

    def _keys_of_sets(
        self, group: exp.Expr, sets: list[list[exp.Expr]], items: list[Item], windows: Windows
    ) -> list[tuple[Column, Expr]]:
        trees = key_trees(group, sets)
        place = {text_of(t): i for i, t in enumerate(trees)}
        keys: list[tuple[Column, Expr]] = []
        for tree in trees:
            expr = windows.key(refuse_windows(self._key(tree, items), group, "GROUP BY"))
            if any(canonical(expr) == canonical(known) for _, known in keys):
                raise OutsideAlgebra("grouping sets with one key written in two ways", position_of(group))
            keys.append((Column.fresh(_key_name(expr, items), expr.type), expr))
        self._sets = [frozenset(place[text_of(k)] for k in one) for one in sets]
        return keys

    def _key(self, tree: exp.Expr, items: list[Item]) -> Expr:
        item = ordinal(tree, items, "GROUP_BY")
        if item is not None and item.lateral:
            raise _lateral_key(item)
        if item is not None:
            return _not_aggregated(item.expr, tree, "GROUP_BY_POS_AGGREGATE")
        try:
            key = self._bind(tree)
        except SqlError as error:
            if error.condition != "UNRESOLVED_COLUMN":
                raise
            key = self._through_aliases(tree, items)
        return _not_aggregated(key, tree, "GROUP_BY_AGGREGATE")

    def _through_aliases(self, tree: exp.Expr, items: list[Item]) -> Expr:
        """A key that may name select items by their aliases, where no column has such a name."""
        named: dict[str, Expr] = {}
        for item in items:
            named.setdefault(item.name.lower(), item.expr)
        outputs = OutputScope(named, self.scope, columns_first=True)
        with _as_unresolved(("FIELD_NOT_FOUND", "INVALID_EXTRACT_BASE_FIELD_TYPE")):
            bound = bind_expr(self._plain(tree), outputs, self.analyzer)
        used = {stand_in.name.lower() for stand_in in columns(bound) if stand_in.id in outputs.aliases}
        for item in items:
            if item.lateral and item.name.lower() in used:
                raise _lateral_key(item)
        return substitute(bound, outputs.aliases)

    # Time windows

    def _windows(self) -> Windows:
        """GROUP BY window(ts, '10 minutes'): its names become columns of this block."""
        windows = Windows()
        group = self.tree.args.get("group")
        for tree in group.expressions if group is not None else ():
            if isinstance(tree, exp.Anonymous) and tree.name.lower() == "session_window":
                raise NotYetSupported(
                    "session_window(): a late row can merge two sessions, so every row's time would have to be kept",
                    position=position_of(tree),
                    hint="group by (key, ts), the state that would be kept, and build sessions with window functions "
                    "above it; window(ts, '10 minutes') makes fixed windows",
                )
            if not (isinstance(tree, exp.Anonymous) and tree.name.lower() == "window"):
                continue
            bound = bind_expr(tree, self.scope, self.analyzer)
            if not (isinstance(bound, Call) and bound.fn == "window"):
                raise NotYetSupported(
                    "this form of window()",
                    position=position_of(tree),
                    hint="window(timestamp_column, '10 minutes'[, '5 minutes']) groups by tumbling or sliding windows",
                )
            windows.add(bound, self.scope)
            self.tree = self.tree.copy() if windows.first else self.tree
            name_fields(self.tree, tree)
        return windows

    # HAVING, ORDER BY, DISTINCT, LIMIT

    def _having(self, clause: exp.Expr, items: list[Item], lifted: list[Expr], lift: Lift) -> list[Expr | Existence]:
        """The conditions on groups, and the joins that [NOT] IN and EXISTS among them are."""
        if not has_subquery(clause):
            return [self._group_condition(self._plain(clause.this), items, lifted, lift)]
        found: list[Expr | Existence] = []
        for part in and_parts(clause.this):
            if not has_subquery(part):
                found.append(self._group_condition(part, items, lifted, lift))
                continue
            try:
                existence = self.subqueries.existence(part)
                found.append(existence or self._group_condition(self._plain(part), items, lifted, lift))
            except SqlError as error:
                if error.condition not in _OF_GROUPS:
                    raise
                raise OutsideAlgebra("a subquery in HAVING that sees what is grouped", position_of(part)) from None
        return found

    def _group_condition(self, tree: exp.Expr, items: list[Item], lifted: list[Expr], lift: Lift) -> Expr:
        try:
            condition = lift.expr(bind_expr(tree, self.scope, self.analyzer), tree)
        except SqlError as error:
            if error.condition not in ("UNRESOLVED_COLUMN", *_NOT_THERE):
                raise
            with _as_unresolved(_NOT_THERE):
                condition = self._through_outputs(tree, items, lifted, lift)
        refuse_windows(condition, tree, "HAVING")
        if condition.type not in (BOOLEAN, VOID) and not can_cast(condition.type, BOOLEAN):
            raise OutsideAlgebra(f"HAVING of {condition.type.sql}", position_of(tree))
        return cast(condition, BOOLEAN)  # HAVING count(*) is HAVING count(*) <> 0, where WHERE would refuse a number

    def _through_outputs(
        self, tree: exp.Expr, items: list[Item], lifted: list[Expr], lift: Lift | None, *, windows: bool = False
    ) -> Expr:
        """An expression that may name select items by their aliases."""
        named: dict[str, Expr] = {}
        twice: set[str] = set()
        for item, expr in zip(items, lifted, strict=True):
            name = item.name.lower()
            if name in named and (item.aliased or expr != named[name]):
                twice.add(name)
            named.setdefault(name, expr)
        for part in tree.find_all(exp.Column):
            if len(part.parts) == 1 and part.name.lower() in twice:
                raise _ambiguous(part.name, part)
        outputs = OutputScope(named, self.scope)
        bound = bind_expr(tree, outputs, self.analyzer, windows=windows)
        stand_ins = {c.id for a in walk(bound) if isinstance(a, Agg) for c in walk(a) if isinstance(c, Column)}
        if stand_ins & outputs.aliases.keys():
            # Inside an aggregate a name means the column below, not the alias.
            bound = bind_expr(tree, self.scope, self.analyzer, windows=windows)
        if lift is None:
            return substitute(bound, outputs.aliases)
        return substitute(lift.expr(bound, tree, keep=outputs.aliases), outputs.aliases)

    def _sort_exprs(self, items: list[Item], lifted: list[Expr], lift: Lift | None) -> list[SortKey]:
        order = self.tree.args.get("order")
        if self.tree.args.get("distinct") is not None:
            return []  # of what is DISTINCT only what is selected can be meant
        keys: list[SortKey] = []
        for item in order.expressions if order is not None else ():
            if means_all(item.this, self.scope) and "all" not in {i.name.lower() for i in items}:
                keys += [sort_key(item, e) for e in lifted]
                continue
            if any(True for _ in _existences(item.this)):
                raise SqlError(
                    "UNSUPPORTED_SUBQUERY_EXPRESSION_CATEGORY",
                    "EXISTS and IN of a subquery cannot be ordered by",
                    position=position_of(item),
                    hint="select it under a name, and order by that",
                )
            expr = ordinal(item.this, lifted, "ORDER_BY")
            if expr is None:
                with _as_unresolved((*_NOT_THERE, "AMBIGUOUS_REFERENCE")):
                    expr = self._through_outputs(self._plain(item.this), items, lifted, lift)
            if lift is None:
                refuse_aggregates(expr, item.this, "the ORDER BY of rows that are not grouped")
            keys.append(sort_key(item, expr))
        return keys

    def _outputs(self, items: list[Item], columns: Sequence[Column]) -> Scope:
        """The columns a block gives, as clauses about all of it name them: one without an alias by its relation too."""
        sources: list[Source] = []
        known: dict[tuple[str, Expr], Column] = {}
        for item, column in zip(items, columns, strict=True):
            if known.setdefault((item.name.lower(), item.expr), column) is not column:
                continue  # the same once more
            holders = [s.name for s in self.scope.sources if item.expr in s.columns]
            bare = holders[-1] if holders and not item.aliased else ""
            sources.append(Source(bare, (column,)))
        return Scope(sources)

    def _sort_distinct(self, items: list[Item], columns: Sequence[Column]) -> list[SortKey]:
        """ORDER BY of SELECT DISTINCT, over the columns it gives."""
        order = self.tree.args.get("order")
        outputs = self._outputs(items, columns)
        keys: list[SortKey] = []
        for item in order.expressions if order is not None else ():
            if means_all(item.this, outputs):
                keys += [sort_key(item, c) for c in columns]
                continue
            try:
                expr = ordinal(item.this, columns, "ORDER_BY") or bind_expr(item.this, outputs, self.analyzer)
            except SqlError as error:
                if error.condition == "UNRESOLVED_COLUMN":
                    error.hint = "SELECT DISTINCT is ordered by what it selects: add it to the select list"
                raise
            refuse_aggregates(expr, item.this, "the ORDER BY of SELECT DISTINCT")
            keys.append(sort_key(item, expr))
        return keys

    def _qualified(self, items: list[Item], exprs: list[Expr], lift: Lift | None) -> list[Expr]:
        """QUALIFY: a condition on what is selected, and on columns below it where nothing is grouped."""
        clause = self.tree.args.get("qualify")
        if clause is None:
            return []
        if self.tree.args.get("distinct") is not None or has_subquery(clause):
            raise OutsideAlgebra("QUALIFY with DISTINCT or a subquery", position_of(clause))
        if lift is None:
            condition = self._through_outputs(self._plain(clause.this), items, exprs, None, windows=True)
        else:
            condition = self._of_outputs(clause.this, items, exprs)
        if condition.type != BOOLEAN or _has_aggregate(condition):
            raise OutsideAlgebra(f"QUALIFY of {condition.type.sql}", position_of(clause))
        if not any(map(has_window, (condition, *exprs))):
            raise SqlError(
                "QUALIFY_REQUIRES_WINDOW_FUNCTION",
                "QUALIFY filters by window functions, and there is none in it, nor in what is selected",
                position=position_of(clause.this),
                hint="write WHERE, or HAVING for groups",
            )
        return [condition]

    def _of_outputs(self, tree: exp.Expr, items: list[Item], exprs: list[Expr]) -> Expr:
        """An expression over what is selected of groups, and nothing else."""
        columns = [Column.fresh(i.name, e.type) for i, e in zip(items, exprs, strict=True)]
        try:
            bound = bind_expr(tree, self._outputs(items, columns), self.analyzer, windows=True)
        except SqlError:
            raise OutsideAlgebra("QUALIFY of what is not selected", position_of(tree)) from None
        return substitute(bound, {c.id: e for c, e in zip(columns, exprs, strict=True)})

    def _finish(self, items: list[Item], exprs: list[Expr], sorts: list[SortKey] | None, lift: Lift | None) -> Node:
        """Window functions, projection, DISTINCT, ORDER BY and LIMIT over the rows of the block."""
        if sorts is None:
            sorts = self._sort_exprs(items, exprs, None)
            self.child = self.subqueries.join_used(self.child, [*exprs, *(k.expr for k in sorts)])
        qualified = self._qualified(items, exprs, lift)
        self.child, found = with_windows(self.child, [*exprs, *(k.expr for k in sorts), *qualified])
        exprs, conditions = found[: len(exprs)], found[len(exprs) + len(sorts) :]
        sorts = [SortKey(e, k.descending, k.nulls_first) for k, e in zip(sorts, found[len(exprs) :], strict=False)]
        self._filter(conditions)
        outputs = [(Column.fresh(i.name, e.type), e) for i, e in zip(items, exprs, strict=True)]
        limit, offset = limit_of(self.tree, self._outputs(items, [c for c, _ in outputs]), self.analyzer)
        distinct = self.tree.args.get("distinct")
        if distinct is not None and distinct.args.get("on"):
            raise OutsideAlgebra("DISTINCT ON", position_of(distinct))
        if distinct is not None and any(e.type.holds_maps for e in exprs):
            raise OutsideAlgebra("DISTINCT of a map", position_of(distinct))
        keys: list[SortKey] = []
        hidden: list[tuple[Column, Expr]] = []
        for key in sorts:
            known = next((c for c, e in [*outputs, *hidden] if e == key.expr), None)
            if known is None:
                known = Column.fresh("sort", key.expr.type)
                hidden.append((known, key.expr))
            keys.append(SortKey(known, key.descending, key.nulls_first))
        node: Node = Project(self.child, (*outputs, *hidden))
        if distinct is not None:
            named = tuple((Column.fresh(c.name, c.type), c) for c, _ in outputs)
            node = Aggregate(node, named, ())
            keys = self._sort_distinct(items, [c for c, _ in named])
        if keys or limit is not None or offset:
            node = Sort(node, tuple(keys), limit, offset)
        if hidden:
            node = Project(node, tuple((Column.fresh(c.name, c.type), c) for c, _ in outputs))
        return node


def _lateral_key(item: Item) -> SqlError:
    return SqlError(
        "UNSUPPORTED_FEATURE",
        f"grouping by {item.name}, which names another item by its alias",
        position=position_of(item.tree),
        hint="write GROUP BY and the columns themselves",
    )


def _existences(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The EXISTS and IN of subqueries in an expression."""
    yield from tree.find_all(exp.Exists)
    yield from (part for part in tree.find_all(exp.In) if part.args.get("query") is not None)


def _ambiguous(name: str, tree: exp.Expr) -> SqlError:
    return SqlError(
        "AMBIGUOUS_REFERENCE",
        f"{name} could be more than one item of the select list",
        position=position_of(tree),
        hint="give each an alias of its own",
    )


def _has_aggregate(expr: Expr) -> bool:
    return any(isinstance(e, Agg) for e in walk(expr))


_INSTEAD = {
    "INVALID_WHERE_CONDITION": ("WHERE", "filter groups with HAVING"),
    "GROUP_BY_AGGREGATE": ("GROUP BY", "group by columns, not by what is computed of groups"),
    "GROUP_BY_POS_AGGREGATE": ("GROUP BY", "group by the places of columns, not of what is computed of groups"),
}
"""Where aggregates cannot stand, and what to do, by the error's name."""


def _not_aggregated(expr: Expr, tree: exp.Expr, otherwise: str) -> Expr:
    """The expression, which may hold no aggregate."""
    if _has_aggregate(expr):
        where, hint = _INSTEAD[otherwise]
        raise SqlError(otherwise, f"aggregates are not allowed in {where}", position=position_of(tree), hint=hint)
    return expr


def refuse_aggregates(expr: Expr, tree: exp.Expr, where: str) -> None:
    """An error if there is an aggregate where Spark's operator cannot compute one."""
    if _has_aggregate(expr):
        raise SqlError(
            "UNSUPPORTED_EXPR_FOR_OPERATOR",
            f"there is nothing to aggregate in {where}",
            position=position_of(tree),
            hint="aggregate in a subquery, and name its column here",
        )


def _key_name(expr: Expr, items: list[Item]) -> str:
    for item in items:
        if item.expr == expr:
            return item.name
    return expr.name if isinstance(expr, Column) else "key"
