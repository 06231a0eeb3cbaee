"""One SELECT block over its bound FROM clause.

Aggregate calls are bound in place with everything else, then *lifted*: what
equals a grouping expression becomes that key's column, an aggregate becomes the
grouping's column, and a column left over is neither: the query is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlglot import exp

from headrace.errors import NotYetSupported, SqlError
from headrace.plan.exprs import TRUE, Agg, Call, Column, Expr, Literal, all_of, columns, substitute, walk
from headrace.plan.nodes import Aggregate, Filter, Node, Project, Sort, SortKey
from headrace.sql.expressions import Analyzer, OutsideAlgebra, bind_expr, position_of
from headrace.sql.fields import depth_of
from headrace.sql.grouping import grouping_sets, is_grouping_call, key_trees, union_of_sets
from headrace.sql.naming import output_name
from headrace.sql.ordering import limit_of, ordinal, sort_key
from headrace.sql.scope import OutputScope, Scope
from headrace.sql.subqueries import Around, Existence, Subqueries, and_parts, has_subquery
from headrace.sql.time_windows import Windows, name_fields
from headrace.types import BIGINT, BOOLEAN, STRING, TINYINT, VOID, Type


@dataclass(frozen=True)
class Item:
    """A select-list item after stars are expanded."""

    name: str
    expr: Expr
    tree: exp.Expr


def boolean(tree: exp.Expr, scope: Scope | OutputScope, analyzer: Analyzer) -> Expr:
    """A condition; anything but a boolean is an error."""
    expr = bind_expr(tree, scope, analyzer)
    if expr.type == VOID:
        return Literal(BOOLEAN, None)
    if expr.type != BOOLEAN:
        raise SqlError(
            "DATATYPE_MISMATCH",
            f"a condition must be boolean, but this is {expr.type.sql}",
            position=position_of(tree),
            hint="compare it with something",
        )
    return expr


class Block:
    """Builds the plan of one SELECT."""

    def __init__(self, tree: exp.Select, child: Node, scope: Scope, analyzer: Analyzer, around: Around) -> None:
        self.tree = tree
        self.child = child
        self.scope = scope
        self.analyzer = analyzer
        self.subqueries = Subqueries(around, scope, analyzer)
        self._sets: list[frozenset[int]] | None = None
        self._marks: dict[int, Column] = {}
        """Of a block with grouping sets: the columns that tell them apart, by id."""

    def plan(self) -> Node:
        self.where()
        windows = self._windows()
        self._grouping_sets()
        items = self.items()
        keys = self._keys(items, windows)
        having = self.tree.args.get("having")
        order = self.tree.args.get("order")
        aggregates = any(_has_aggregate(i.expr) for i in items)
        if keys is None and not aggregates and having is None and not self._orders_by_aggregate(order):
            return self._finish(items, [i.expr for i in items], None)
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
        return self._finish(items, lifted, sorts)

    # WHERE

    def where(self) -> list[Expr]:
        """Apply WHERE to the block's rows; what needs the outer query's row is returned instead."""
        clause = self.tree.args.get("where")
        if clause is None:
            return []
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
        _refuse_aggregates(condition, clause, "WHERE")
        return condition

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
            if isinstance(tree, exp.Star) or (isinstance(tree, exp.Column) and isinstance(tree.this, exp.Star)):
                items += self._star(tree)
                continue
            inner = tree.this if isinstance(tree, exp.Alias) else tree
            if isinstance(tree, exp.Aliases):
                raise OutsideAlgebra("several aliases for one item", position_of(tree))
            if not isinstance(tree, exp.Alias) and has_subquery(tree):
                raise OutsideAlgebra("a subquery in an item without an alias", position_of(tree))
            named = isinstance(tree, exp.Alias)
            name = tree.alias if named else output_name(tree, self._type_of, self._depth_of)
            items.append(Item(name, self._bind(inner), inner))
        return items

    def _bind(self, tree: exp.Expr) -> Expr:
        return bind_expr(self._plain(tree), self.scope, self.analyzer)

    def _plain(self, tree: exp.Expr) -> exp.Expr:
        """The tree with names for what is joined beside the block's rows, or tells its grouping sets apart."""
        tree = self.subqueries.without(tree)
        if not self._marks or not any("mark" in call.meta for call in tree.find_all(exp.Anonymous)):
            return tree
        holder = exp.Paren(this=tree.copy())
        for call in [c for c in holder.find_all(exp.Anonymous) if "mark" in c.meta]:
            call.replace(exp.column(f"__mark {call.meta['mark']}", quoted=True))
        inner = holder.this
        assert isinstance(inner, exp.Expr)
        return inner

    def _type_of(self, tree: exp.Expr) -> Type:
        return self._bind(tree).type

    def _depth_of(self, tree: exp.Expr) -> int:
        return depth_of(self._bind(tree))

    def _star(self, tree: exp.Expr) -> list[Item]:
        star = tree if isinstance(tree, exp.Star) else tree.this
        if star.args.get("replace") or star.args.get("rename"):
            raise OutsideAlgebra("* with REPLACE or RENAME", position_of(tree))
        qualifier = tree.args["table"].name if isinstance(tree, exp.Column) else None
        try:
            columns = self.scope.star(qualifier, position_of(tree))
        except SqlError:
            return self._struct_star(tree)
        left_out = star.args.get("except_") or ()
        for name in left_out:
            if name.name.lower() not in {c.name.lower() for c in columns}:
                raise SqlError("UNRESOLVED_COLUMN", f"* has no column {name.name}", position=position_of(name))
        gone = {n.name.lower() for n in left_out}
        items = [Item(c.name, c, tree) for c in columns if c.name.lower() not in gone]
        if not items:
            raise SqlError("CANNOT_RESOLVE_STAR", "* stands for no column here", position=position_of(tree))
        return items

    def _struct_star(self, tree: exp.Expr) -> list[Item]:
        """``s.*``, s being no relation but a struct: its fields."""
        names = [part.name for part in tree.parts[:-1]] if isinstance(tree, exp.Column) else []
        try:
            struct = self._bind(exp.column(*reversed(names), quoted=True))
        except SqlError:
            struct = Literal(VOID, None)
        if struct.type.name != "struct" or any(tree.this.args.values()):
            raise SqlError(
                "CANNOT_RESOLVE_STAR", f"there is no relation {'.'.join(names)} in FROM", position=position_of(tree)
            )
        return [Item(p.name, Call(p.type, "field", (struct, Literal(STRING, p.name))), tree) for p in struct.type.parts]

    # GROUP BY

    def _keys(self, items: list[Item], windows: Windows) -> list[tuple[Column, Expr]] | None:
        group = self.tree.args.get("group")
        if group is None:
            return None
        sets = grouping_sets(group)
        if sets is not None:
            return self._keys_of_sets(group, sets, items, windows)
        if group.args.get("all"):
            found = [i.expr for i in items if not _has_aggregate(i.expr)]
        else:
            found = [self._key(tree, items) for tree in group.expressions]
        keys: list[tuple[Column, Expr]] = []
        for expr in found:
            expr = windows.key(expr)
            _refuse_aggregates(expr, group, "GROUP BY")
            if not any(expr == known for _, known in keys):
                keys.append((Column.fresh(_key_name(expr, items), expr.type), expr))
        return keys

    # Grouping sets

    def _grouping_sets(self) -> None:
        """Give names to what grouping() and grouping_id() tell, before anything that calls them is bound."""
        group = self.tree.args.get("group")
        if group is None or (sets := grouping_sets(group)) is None:
            return
        trees = key_trees(group, sets)
        texts = [t.sql() for t in trees]
        bits = [Column.fresh(f"grouping {i}", TINYINT) for i in range(len(trees))]
        number = Column.fresh("grouping_id", BIGINT)
        self._marks = {c.id: c for c in (*bits, number)}
        for column in self._marks.values():
            self.scope.extras[(f"__mark {column.id}",)] = column
        for call in [c for c in self.tree.find_all(exp.Anonymous) if is_grouping_call(c)]:
            if call.find_ancestor(exp.Query) is not self.tree:
                continue
            args = [a.sql() for a in call.expressions]
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
        place = {t.sql(): i for i, t in enumerate(trees)}
        keys: list[tuple[Column, Expr]] = []
        for tree in trees:
            expr = windows.key(self._key(tree, items))
            _refuse_aggregates(expr, group, "GROUP BY")
            if any(expr == known for _, known in keys):
                raise OutsideAlgebra("grouping sets with one key written in two ways", position_of(group))
            keys.append((Column.fresh(_key_name(expr, items), expr.type), expr))
        self._sets = [frozenset(place[k.sql()] for k in one) for one in sets]
        return keys

    def _key(self, tree: exp.Expr, items: list[Item]) -> Expr:
        item = ordinal(tree, items, "GROUP_BY")
        if item is not None:
            return item.expr
        try:
            return self._bind(tree)
        except SqlError as error:
            named = [i for i in items if isinstance(tree, exp.Column) and i.name.lower() == tree.name.lower()]
            if error.condition == "UNRESOLVED_COLUMN" and named:
                return named[0].expr
            raise

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
            existence = self.subqueries.existence(part) if has_subquery(part) else None
            found.append(existence or self._group_condition(self._plain(part), items, lifted, lift))
        return found

    def _group_condition(self, tree: exp.Expr, items: list[Item], lifted: list[Expr], lift: Lift) -> Expr:
        try:
            return lift.expr(boolean(tree, self.scope, self.analyzer), tree)
        except SqlError as error:
            if error.condition not in ("UNRESOLVED_COLUMN", "MISSING_AGGREGATION"):
                raise
            return self._through_outputs(tree, items, lifted, lift)

    def _through_outputs(self, tree: exp.Expr, items: list[Item], lifted: list[Expr], lift: Lift | None) -> Expr:
        """An expression that may name select items by their aliases."""
        named: dict[str, Expr] = {}
        for item, expr in zip(items, lifted, strict=True):
            named.setdefault(item.name.lower(), expr)
        outputs = OutputScope(named, self.scope)
        bound = bind_expr(tree, outputs, self.analyzer)
        stand_ins = {c.id for a in walk(bound) if isinstance(a, Agg) for c in walk(a) if isinstance(c, Column)}
        if stand_ins & outputs.aliases.keys():
            # Inside an aggregate a name means the column below, not the alias.
            bound = bind_expr(tree, self.scope, self.analyzer)
        if lift is None:
            return substitute(bound, outputs.aliases)
        return substitute(lift.expr(bound, tree, keep=outputs.aliases), outputs.aliases)

    def _orders_by_aggregate(self, order: exp.Expr | None) -> bool:
        """ORDER BY count(*) makes a block an aggregate even if nothing else does."""
        for item in order.expressions if order is not None else ():
            if isinstance(item.this, exp.Var) or has_subquery(item.this):
                continue  # ORDER BY ALL: the select list decides
            try:
                if _has_aggregate(self._bind(item.this)):
                    return True
            except SqlError:
                continue
        return False

    def _sort_exprs(self, items: list[Item], lifted: list[Expr], lift: Lift | None) -> list[SortKey]:
        order = self.tree.args.get("order")
        keys: list[SortKey] = []
        for item in order.expressions if order is not None else ():
            if isinstance(item.this, exp.Var) and item.this.name.upper() == "ALL":
                keys += [sort_key(item, e) for e in lifted]
                continue
            expr = ordinal(item.this, lifted, "ORDER_BY")
            if expr is None:
                expr = self._through_outputs(self._plain(item.this), items, lifted, lift)
            keys.append(sort_key(item, expr))
        return keys

    def _finish(self, items: list[Item], exprs: list[Expr], sorts: list[SortKey] | None) -> Node:
        """Projection, DISTINCT, ORDER BY and LIMIT over the rows of the block."""
        if sorts is None:
            sorts = self._sort_exprs(items, exprs, None)
            self.child = self.subqueries.join_used(self.child, [*exprs, *(k.expr for k in sorts)])
        limit, offset = limit_of(self.tree, self.analyzer)
        outputs = [(Column.fresh(i.name, e.type), e) for i, e in zip(items, exprs, strict=True)]
        for item, (column, _) in zip(items, outputs, strict=True):
            if column.type.name == "other" and isinstance(item.expr, Call) and item.expr.fn == "window":
                raise NotYetSupported(
                    "a window as one column", position=position_of(item.tree), hint="select window.start, window.end"
                )
        distinct = self.tree.args.get("distinct")
        if distinct is not None and distinct.args.get("on"):
            raise OutsideAlgebra("DISTINCT ON", position_of(distinct))
        keys: list[SortKey] = []
        hidden: list[tuple[Column, Expr]] = []
        for key in sorts:
            found = [c for c, e in [*outputs, *hidden] if e == key.expr]
            if not found:
                if distinct is not None:
                    raise SqlError(
                        "UNSUPPORTED_ORDER_BY_WITH_DISTINCT",
                        "SELECT DISTINCT can be ordered by its own columns only",
                        position=position_of(self.tree.args["order"]),
                        hint="add the expression to the select list",
                    )
                found = [Column.fresh("sort", key.expr.type)]
                hidden.append((found[0], key.expr))
            keys.append(SortKey(found[0], key.descending, key.nulls_first))
        node: Node = Project(self.child, (*outputs, *hidden))
        if distinct is not None:
            named = tuple((Column.fresh(c.name, c.type), c) for c, _ in outputs)
            renamed = {c.id: out for out, c in named}
            node = Aggregate(node, tuple((out, c) for out, c in named), ())
            keys = [SortKey(substitute(k.expr, renamed), k.descending, k.nulls_first) for k in keys]
        if keys or limit is not None or offset:
            node = Sort(node, tuple(keys), limit, offset)
        if hidden:
            node = Project(node, tuple((Column.fresh(c.name, c.type), c) for c, _ in outputs))
        return node


class Lift:
    """Moves expressions from below a grouping to above it."""

    def __init__(
        self, keys: list[tuple[Column, Expr]], windows: Mapping[int, Expr], beside: Callable[[Column], bool]
    ) -> None:
        self.keys = keys
        self._windows = windows
        self._beside = beside
        self._aggs: dict[Agg, Column] = {}

    def aggs(self) -> list[tuple[Column, Agg]]:
        return [(c, a) for a, c in self._aggs.items()]

    def expr(self, expr: Expr, tree: exp.Expr, keep: Mapping[int, Expr] | None = None) -> Expr:
        expr = substitute(expr, self._windows)
        return self._lift(expr, tree, keep or {})

    def _lift(self, expr: Expr, tree: exp.Expr, keep: Mapping[int, Expr]) -> Expr:
        for column, key in self.keys:
            if expr == key:
                return column
        if isinstance(expr, Agg):
            return self._aggs.setdefault(expr, Column.fresh(expr.fn, expr.type))
        if isinstance(expr, Column) and expr.id not in keep and not self._beside(expr):
            raise SqlError(
                "MISSING_AGGREGATION",
                f"column {expr.name} is neither grouped by nor inside an aggregate",
                position=position_of(tree),
                hint=f"add {expr.name} to GROUP BY, or aggregate it",
            )
        return expr.with_children(tuple(self._lift(c, tree, keep) for c in expr.children)) if expr.children else expr


def _has_aggregate(expr: Expr) -> bool:
    return any(isinstance(e, Agg) for e in walk(expr))


def _refuse_aggregates(expr: Expr, tree: exp.Expr, where: str) -> None:
    if _has_aggregate(expr):
        raise SqlError(
            f"{where.replace(' ', '_')}_AGGREGATE",
            f"aggregates are not allowed in {where}",
            position=position_of(tree),
            hint="filter groups with HAVING"
            if where == "WHERE"
            else "group by columns, not by what is computed of groups",
        )


def _key_name(expr: Expr, items: list[Item]) -> str:
    for item in items:
        if item.expr == expr:
            return item.name
    return expr.name if isinstance(expr, Column) else "key"
