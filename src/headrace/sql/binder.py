"""Queries to plans: names resolved, types given, everything checked.

One query block becomes scan/join → filter → aggregate → window → project → sort. A
block that holds something outside the algebra (a generator, PIVOT, some subqueries …)
becomes a :class:`SparkSql` node: its text goes to Spark as written, over whatever of
its inputs *is* inside the algebra.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal as Choice

from sqlglot import exp

from headrace.catalog import Catalog, Relation, Stream, Table
from headrace.catalog.sample import Sample
from headrace.catalog.table import PLACE
from headrace.errors import NotYetSupported, Position, SqlError
from headrace.plan.exprs import Call, Column, Expr, Literal, all_of
from headrace.plan.nodes import (
    ONE_ROW,
    Aggregate,
    Join,
    JoinKind,
    Leaf,
    Node,
    Project,
    SetKind,
    SetOperation,
    Sort,
    SparkSql,
    UnionAll,
    Values,
    renaming,
)
from headrace.plan.refs import KeptRef, RelationRef, StreamRef, TableRef
from headrace.sql.blocks import Block, boolean, refuse_aggregates
from headrace.sql.changes import is_placed, spelled
from headrace.sql.coercion import cast, common_type
from headrace.sql.estimates import COUNTS, has_counts, with_estimates
from headrace.sql.expressions import OutsideAlgebra, bind_expr, position_of
from headrace.sql.grammar import Opaque, parse_expression
from headrace.sql.lexer import Kind, tokens
from headrace.sql.ordering import limit_of, means_all, ordinal, sort_key
from headrace.sql.sampling import drawn_from, is_reservoir
from headrace.sql.scope import Scope, Source
from headrace.sql.source import span_of, text_of
from headrace.sql.spark_blocks import QueryAnalyzer, named_input, opaque_block, spark_block
from headrace.sql.statements import CreateView as CreateViewStatement
from headrace.sql.statements import parse
from headrace.sql.store_assignment import stored, targets_of, with_defaults
from headrace.sql.subqueries import Around
from headrace.sql.system import System, is_system, name_of, system_scan
from headrace.sql.versions import version_scan
from headrace.types import BOOLEAN, STRING, VOID, Field, quote

Ctes = Mapping[str, Node]

_SELECT_PARTS = {
    "with_",
    "expressions",
    "from_",
    "joins",
    "where",
    "group",
    "having",
    "qualify",
    "windows",
    "distinct",
    "order",
    "limit",
    "offset",
}
_SET_PARTS = {"with_", "this", "expression", "distinct", "order", "limit", "offset"}
_QUERY_PARTS = {"this", "with_", "order", "limit", "offset"}
_TABLE_PARTS = {"this", "alias", "db", "catalog", "sample", "version"}
_ITEM_PARTS = {"this", "alias", "sample"}
_EXISTENCE: dict[str, JoinKind] = {"SEMI": "semi", "ANTI": "anti"}
_JOINS: dict[str, JoinKind | Choice["right"]] = {"": "inner", "LEFT": "left", "RIGHT": "right", "FULL": "full"}


class Binder:
    """Binds the queries of one statement against one catalog."""

    def __init__(self, catalog: Catalog, analyzer: QueryAnalyzer, system: System | None = None) -> None:
        self.catalog = catalog
        self.analyzer = analyzer
        self.system = system
        self._scans: dict[str, Node] = {}

    # Entry points

    def query(self, tree: exp.Expr) -> Node:
        """The plan of a query; its output columns carry the names the user sees."""
        return self._query(tree, {})

    def assignment(self, tree: exp.Expr, relation: Stream | Table, columns: tuple[str, ...], at: Position) -> Node:
        """The plan whose rows, in the relation's own columns and types, an INSERT stores."""
        with_defaults(tree, targets_of(relation, columns, at))
        return stored(self._query(tree, {}), relation, columns, at)

    # Queries

    def _query(self, tree: exp.Expr, ctes: Ctes) -> Node:
        ctes = self._ctes(tree, ctes)
        try:
            if isinstance(tree, exp.Select):
                return self._select(tree, ctes)
            if isinstance(tree, exp.SetOperation):
                return self._set_operation(tree, ctes)
            if isinstance(tree, exp.Subquery):
                return self._parenthesised(tree, ctes)
            if isinstance(tree, exp.Values):
                return self._values(tree)
            if isinstance(tree, Opaque):
                return self._opaque(tree, ctes)
        except OutsideAlgebra as outside:
            whole = tree if span_of(tree) is not None else spelled(tree)
            return self._spark_block(whole, ctes, outside.reason)
        raise AssertionError(f"{type(tree).__name__} is no query of the grammar")

    def _ctes(self, tree: exp.Expr, outer: Ctes) -> Ctes:
        clause = tree.args.get("with_")
        if clause is None:
            return outer
        known = dict(outer)
        here: set[str] = set()
        for cte in clause.expressions:
            alias = cte.args["alias"]
            if alias.name.lower() in here:
                raise SqlError(
                    "DUPLICATED_CTE_NAMES",
                    f"WITH names {alias.name} twice",
                    position=position_of(alias),
                    hint="rename one",
                )
            here.add(alias.name.lower())
            node = self._query(cte.this, known)
            names = [c.name for c in alias.args.get("columns") or ()]
            known[alias.name.lower()] = renaming(node, _column_names(node, names, alias)) if names else node
        return known

    def _select(self, tree: exp.Select, ctes: Ctes) -> Node:
        return self._block(tree, ctes, None).plan()

    def _block(self, tree: exp.Select, ctes: Ctes, outer: Scope | None) -> Block:
        """A SELECT with its FROM bound; a subquery's also sees the columns around it."""
        tree = with_estimates(tree, self.catalog, set(ctes))
        _only(tree, _SELECT_PARTS, "this clause")
        child, scope = self._from(tree, ctes)
        scope.outer = outer
        around = Around(
            lambda query: self._query(query, ctes),
            lambda query, scope: self._block(query, self._ctes(query, ctes), scope),
        )
        return Block(tree, child, scope, self.analyzer, around)

    def _parenthesised(self, tree: exp.Subquery, ctes: Ctes) -> Node:
        _only(tree, _QUERY_PARTS, "this clause after a subquery")
        return self._order_and_limit(tree, self._query(tree.this, ctes))

    def _set_operation(self, tree: exp.SetOperation, ctes: Ctes) -> Node:
        _only(tree, _SET_PARTS, "this clause of a set operation")
        word = type(tree).__name__.upper()
        left, right = self._query(tree.this, ctes), self._query(tree.expression, ctes)
        if len(left.output) != len(right.output):
            raise SqlError(
                "NUM_COLUMNS_MISMATCH",
                f"{word} joins {len(left.output)} columns with {len(right.output)}",
                position=position_of(tree),
            )
        types = []
        for a, b in zip(left.output, right.output, strict=True):
            both = common_type((a.type, b.type))
            if both is None or both.holds_maps:
                raise OutsideAlgebra(f"{word} of {a.type.sql} with {b.type.sql}", position_of(tree))
            types.append(both)
        inputs = tuple(
            Project(n, tuple((Column.fresh(c.name, t), cast(c, t)) for c, t in zip(n.output, types, strict=True)))
            for n in (left, right)
        )
        columns = tuple(Column.fresh(c.name, t) for c, t in zip(left.output, types, strict=True))
        distinct = bool(tree.args.get("distinct"))
        node: Node
        if isinstance(tree, exp.Union):
            node = UnionAll(inputs, columns)
            node = _distinct(node) if distinct else node
        elif distinct:
            # A stream is grouped by this, where ALL would have to keep its rows.
            first, second = map(_distinct, inputs)
            same = all_of([Call(BOOLEAN, "<=>", pair) for pair in zip(first.output, second.output, strict=True)])
            node = Join("semi" if isinstance(tree, exp.Intersect) else "anti", first, second, same)
        else:
            kind: SetKind = "intersect" if isinstance(tree, exp.Intersect) else "except"
            node = SetOperation(kind, inputs[0], inputs[1], columns)
        return self._order_and_limit(tree, node)

    def _order_and_limit(self, tree: exp.Expr, node: Node) -> Node:
        """ORDER BY and LIMIT over a whole query: keys name its output columns."""
        scope = Scope([Source("", node.output)])
        limit, offset = limit_of(tree, scope, self.analyzer)
        order = tree.args.get("order")
        if order is None and limit is None and not offset:
            return node
        keys = []
        for item in order.expressions if order is not None else ():
            if means_all(item.this, scope):
                keys += [sort_key(item, c) for c in node.output]
                continue
            column = ordinal(item.this, node.output, "ORDER_BY")
            key = column or bind_expr(item.this, scope, self.analyzer)
            refuse_aggregates(key, item.this, "the ORDER BY of a whole query")
            keys.append(sort_key(item, key))
        return Sort(node, tuple(keys), limit, offset)

    def _values(self, tree: exp.Values) -> Node:
        rows = [tuple(bind_expr(_unaliased(e), Scope(), self.analyzer) for e in _row(r)) for r in tree.expressions]
        width = len(rows[0])
        for row, item in zip(rows, tree.expressions, strict=True):
            if len(row) != width:
                raise SqlError(
                    "INVALID_INLINE_TABLE",
                    f"a VALUES row has {len(row)} values where the first has {width}",
                    position=position_of(item),
                )
        types = []
        for i in range(width):
            met = {r[i].type for r in rows} - {VOID}
            both = None if STRING in met and len(met) > 1 else common_type(r[i].type for r in rows)
            if both is None:
                raise SqlError(
                    "INVALID_INLINE_TABLE",
                    f"column {i + 1} of VALUES mixes {' and '.join(sorted(t.sql for t in met))}",
                    position=position_of(tree),
                    hint="CAST them to one type",
                )
            types.append(both)
        alias = tree.args.get("alias")
        names = [c.name for c in alias.args.get("columns") or ()] if alias is not None else []
        if names and len(names) != width:
            raise SqlError(
                "INVALID_INLINE_TABLE",
                f"{len(names)} column names are given for {width} columns",
                position=position_of(alias),
                hint="give each column one name",
            )
        columns = tuple(Column.fresh(names[i] if names else f"col{i + 1}", t) for i, t in enumerate(types))
        return Values(columns, tuple(tuple(cast(e, t) for e, t in zip(r, types, strict=True)) for r in rows))

    # FROM

    def _from(self, tree: exp.Select, ctes: Ctes) -> tuple[Node, Scope]:
        clause = tree.args.get("from_")
        if clause is None:
            return ONE_ROW, Scope()
        _only(clause, {"this"}, "this clause of FROM")
        return self._joined(clause.this, tree.args.get("joins") or (), ctes)

    def _joined(self, first: exp.Expr, joins: Sequence[exp.Join], ctes: Ctes) -> tuple[Node, Scope]:
        node, sources = self._item(first, ctes)
        scope = Scope(list(sources))
        for join in joins:
            node = self._join(node, scope, join, ctes)
        return node, scope

    def _item(self, item: exp.Expr, ctes: Ctes) -> tuple[Node, list[Source]]:
        """A FROM item under fresh columns, and the names they go by."""
        alias = item.args.get("alias")
        if isinstance(item, exp.Table):
            _only(item, _TABLE_PARTS, "this clause of a relation")
            node = renaming(self._relation(item, ctes))
        elif isinstance(item, exp.Subquery):
            _only(item, _ITEM_PARTS, "this clause after a subquery")
            node = renaming(drawn_from(self._query(item.this, ctes), item.args.get("sample")))
        elif isinstance(item, exp.Values):
            _only(item, {"expressions", "alias", "sample"}, "this clause after VALUES")
            node = renaming(drawn_from(self._values(item), item.args.get("sample")))
        elif isinstance(item, exp.Paren):
            _only(item, _ITEM_PARTS | {"joins"}, "this clause after a join in parentheses")
            joined, scope = self._joined(item.this, item.args.get("joins") or (), ctes)
            if alias is None and item.args.get("sample") is None:
                return joined, scope.sources
            visible = scope.star(None, None)
            taken = Project(joined, tuple((Column.fresh(c.name, c.type), c) for c in visible))
            node = renaming(drawn_from(taken, item.args.get("sample")))
        else:
            raise OutsideAlgebra(f"{type(item).__name__} in FROM", position_of(item))
        names = [c.name for c in alias.args.get("columns") or ()] if alias is not None else []
        if names:
            node = renaming(node.child, _column_names(node, names, item))
        placed = isinstance(item, exp.Table) and is_placed(item)
        secret = frozenset(c.id for c in node.output[-len(PLACE) :]) if placed else frozenset()
        return node, [Source(name_of(item), node.output, secret=secret)]

    def _relation(self, table: exp.Table, ctes: Ctes) -> Node:
        return drawn_from(self._whole_relation(table, ctes), table.args.get("sample"))

    def _whole_relation(self, table: exp.Table, ctes: Ctes) -> Node:
        if table.args.get("version") is not None:
            return self._version(table, ctes)
        if is_system(table):
            key = f"headrace.{text_of(table.this).lower()}"
            if key not in self._scans:
                self._scans[key] = system_scan(table, self.system)
            return self._scans[key]
        if not isinstance(table.this, exp.Identifier):
            raise OutsideAlgebra("a table-valued function", position_of(table))
        if table.args.get("db") or table.args.get("catalog"):
            raise NotYetSupported("names with a schema or catalog", position=position_of(table))
        name = table.name.lower()
        if name in ctes:
            return ctes[name]
        if is_placed(table):
            changed: Table = self.catalog.get(table.name, Table, position=position_of(table))
            return Leaf.of(_ref(changed), (*changed.columns, *PLACE), changed.primary_key)
        if has_counts(table):
            sample = self.catalog.get(table.name, Sample)
            return Leaf.of(_ref(sample), (*sample.columns, *COUNTS))
        plain, _, place = table.name.partition("@")
        relation = self.catalog.get(plain, position=position_of(table))
        if not place:
            return self._named(relation)
        if name not in self._scans:
            self._scans[name] = self._placed(relation, self._named(relation), place, position_of(table))
        return self._scans[name]

    def _version(self, table: exp.Table, ctes: Ctes) -> Node:
        """A table as it was."""
        version = table.args["version"]
        if table.args.get("db") or not isinstance(table.this, exp.Identifier) or table.name.lower() in ctes:
            raise SqlError(
                "UNSUPPORTED_FEATURE.TIME_TRAVEL",
                f"{text_of(version)} of {name_of(table)}, which is no table",
                position=position_of(version),
                hint="name a version of the tables that it reads",
            )
        relation = self.catalog.get(table.name.partition("@")[0], position=position_of(table))
        return version_scan(relation, version, self.analyzer, in_view=self.system is None)

    def _named(self, relation: Relation) -> Node:
        """The rows of a relation; the same node however often it is named."""
        name = relation.name.lower()
        if name not in self._scans:
            self._scans[name] = self._scan(relation)
        return self._scans[name]

    def _placed(self, relation: Relation, scan: Node, place: str, position: Position | None) -> Node:
        """A stream read from a place of its buffer."""
        if not relation.is_stream or not isinstance(scan, Leaf):
            raise SqlError(
                "POSITION_OF_NO_STREAM",
                f"{relation.name}@{place.upper()}: {relation.name} is no stream",
                position=position,
                hint="only a stream is read from a position; leave it out",
            )
        if self.system is None:
            raise SqlError(
                "STREAM_POSITION_IN_VIEW",
                f"{relation.name}@{place.upper()} in a view: a view reads what comes after it is made",
                position=position,
                hint="leave the position out",
            )
        return replace(scan, oldest=place == "oldest")

    def _scan(self, relation: Relation) -> Node:
        if relation.expansion is not None:
            statement = parse(relation.expansion)
            assert isinstance(statement, CreateViewStatement)
            plan = Binder(self.catalog.as_read_by(relation), self.analyzer).query(statement.query)
            return renaming(plan, [f.name for f in relation.columns])
        leaf = Leaf.of(_ref(relation), relation.columns, relation.primary_key)
        return replace(leaf, fields=relation.stored) if relation.stored else leaf

    def _join(self, left: Node, scope: Scope, join: exp.Join, ctes: Ctes) -> Node:
        _only(join, {"this", "side", "kind", "on", "using", "method"}, "this kind of join")
        right, sources = self._item(join.this, ctes)
        side, kind = (join.side or "").upper(), (join.kind or "").upper()
        name = (_EXISTENCE.get(kind) if side in ("", "LEFT") else None) or _JOINS.get(side)
        if name is None or kind not in ("", "INNER", "OUTER", "CROSS", "SEMI", "ANTI"):
            raise OutsideAlgebra(f"a {side} {kind} join".replace("  ", " "), position_of(join))
        both = Scope([*scope.sources, *sources], scope.extras)
        using = self._using(join, scope, Scope(sources))
        if using:
            condition = all_of([self._equal(*pair, position_of(join)) for pair in using])
        elif (on := join.args.get("on")) is not None:
            condition = boolean(on, both, self.analyzer, "JOIN_CONDITION_IS_NOT_BOOLEAN_TYPE")
            refuse_aggregates(condition, on, "a join's condition")
        else:
            condition = Literal(BOOLEAN, True)
        if name == "semi" or name == "anti":
            return Join(name, left, right, condition)
        scope.sources += sources
        joined: Node
        if name == "right":
            turned = Join("left", right, left, condition)
            joined = Project(turned, tuple((c, c) for c in (*left.output, *right.output)))
        else:
            joined = Join(name, left, right, condition)
        return self._merge_columns(joined, scope, using, name, join) if using else joined

    def _merge_columns(
        self, joined: Node, scope: Scope, using: list[tuple[Column, Column]], kind: str, join: exp.Join
    ) -> Node:
        """USING makes one column of two: it stands first, and each of the two needs its relation's name."""
        merged: list[Column] = []
        computed: list[tuple[Column, Expr]] = []
        for mine, theirs in using:
            if kind != "full":
                merged.append(theirs if kind == "right" else mine)
                continue
            if mine.type != theirs.type:
                raise OutsideAlgebra("USING in a FULL join of columns of different types", position_of(join))
            merged.append(Column.fresh(mine.name, mine.type))
            computed.append((merged[-1], Call(mine.type, "coalesce", (mine, theirs))))
        gone = {c.id for pair in using for c in pair}
        scope.sources[:] = [
            Source("", tuple(merged)),
            *(replace(s, hidden=s.hidden | (gone & {c.id for c in s.columns})) for s in scope.sources),
        ]
        if not computed:
            return joined
        return Project(joined, (*((c, c) for c in joined.output), *computed))

    def _using(self, join: exp.Join, scope: Scope, right: Scope) -> list[tuple[Column, Column]]:
        """The (left, right) columns that USING or NATURAL sets equal."""
        named = [(i.name, position_of(i)) for i in join.args.get("using") or ()]
        if (join.args.get("method") or "").upper() == "NATURAL":
            theirs = {c.name.lower() for c in right.star(None, None)}
            mine = dict.fromkeys(c.name.lower() for c in scope.star(None, None))
            named = [(name, position_of(join)) for name in mine if name in theirs]
        return [(_first_named(scope, n, at), _first_named(right, n, at)) for n, at in named]

    def _equal(self, left: Column, right: Column, at: Position | None) -> Expr:
        """``left = right`` with Spark's coercion, whatever their relations are called."""
        sides = Scope([Source("left", (left,)), Source("right", (right,))])
        equality = parse_expression(f"`left`.{quote(left.name)} = `right`.{quote(right.name)}")
        try:
            return boolean(equality, sides, self.analyzer)
        except SqlError as error:
            error.position = at  # that text is none of the statement's
            raise

    # Outside the algebra

    def _spark_block(self, tree: exp.Expr, ctes: Ctes, reason: str) -> Node:
        return spark_block(
            tree,
            reason,
            self.analyzer,
            relation=lambda table: (self._relation if is_reservoir(table.args.get("sample")) else self._whole_relation)(
                table, ctes
            ),
            alone=lambda query: self._bind_alone(query, ctes),
        )

    def _opaque(self, tree: Opaque, ctes: Ctes) -> Node:
        """A query in syntax that only Spark knows: it reads whatever relations its text names."""
        span = span_of(tree)
        assert span is not None
        text = span.text[span.start : span.end]
        words = {t.text.lower() for t in tokens(text) if t.kind in (Kind.WORD, Kind.NAME)}
        known = {name: tuple(Field(c.name, c.type) for c in named_input(node).output) for name, node in ctes.items()}
        relations = {name: relation for name, relation in self.catalog.relations.items() if name not in ctes}
        known |= {name: relation.columns for name, relation in relations.items()}
        block = opaque_block(
            text,
            tree.reason,
            self.analyzer,
            {name: columns for name, columns in known.items() if name in words},
            lambda name: ctes[name] if name in ctes else self._named(relations[name]),
        )
        tree.read = tuple(name for name in block.names if name not in ctes)
        return block

    def _bind_alone(self, tree: exp.Expr, ctes: Ctes) -> Node | None:
        """The subquery's plan if it stands alone (not correlated) inside the algebra."""
        sample = None
        if isinstance(tree, exp.Subquery):
            tree, sample = tree.this, tree.args.get("sample")
        try:
            node = drawn_from(self._query(tree, ctes), sample)
        except (SqlError, OutsideAlgebra):
            # Correlated, or wrong: Spark sees the text in its place and says which.
            return None
        return None if isinstance(node, SparkSql) and not isinstance(tree, Opaque) else node


def _first_named(scope: Scope, name: str, at: Position | None) -> Column:
    """The column USING means: where several relations have one of its name, the first."""
    found = [c for c in scope.star(None, None) if c.name.lower() == name.lower()]
    if not found:
        known = ", ".join(dict.fromkeys(c.name for c in scope.star(None, None)))
        raise SqlError(
            "UNRESOLVED_USING_COLUMN_FOR_JOIN",
            f"one side of the join has no column {name}",
            position=at,
            hint=f"USING takes names both sides have; that side has {known}",
        )
    return found[0]


def _row(tree: exp.Expr) -> list[exp.Expr]:
    """The values of a row: ``(1, 2)``, or one value alone."""
    tree = _unaliased(tree)
    return tree.expressions if isinstance(tree, exp.Tuple) else [tree]


def _unaliased(tree: exp.Expr) -> exp.Expr:
    """Values may have names, which say nothing: ``VALUES (1 AS id)`` has a column col1."""
    return tree.this if isinstance(tree, exp.Alias) else tree


def _distinct(node: Node) -> Node:
    return Aggregate(node, tuple((Column.fresh(c.name, c.type), c) for c in node.output), ())


def _only(tree: exp.Expr, known: set[str], what: str) -> None:
    """Leave the block to Spark if it has a part the binder does not look at."""
    for part, value in tree.args.items():
        if value and part not in known:
            word = {"laterals": "LATERAL VIEW", "pivots": "PIVOT", "windows": "a WINDOW clause"}.get(part)
            raise OutsideAlgebra(word or f"{part.strip('_').upper()} ({what})", position_of(tree))


def _column_names(node: Node, names: list[str], at: exp.Expr) -> list[str]:
    if len(names) != len(node.output):
        raise SqlError(
            "ASSIGNMENT_ARITY_MISMATCH",
            f"{len(names)} column names are given for {len(node.output)} columns",
            position=position_of(at),
        )
    return names


def _ref(relation: Relation) -> RelationRef:
    """What the leaf of a relation reads."""
    if relation.is_kept:
        return KeptRef(relation.name, number=relation.number, kind=relation.kind)
    return (StreamRef if relation.is_stream else TableRef)(relation.name, relation.number)
