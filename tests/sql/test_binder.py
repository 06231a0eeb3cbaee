"""Queries to plans: what names mean, what is refused and where; each plan is run natively over three rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from headrace.catalog import Catalog, Stream, Table, View
from headrace.engine.plan_sql import native_plan, quote_native
from headrace.errors import HeadraceError, Position
from headrace.plan.exprs import Agg, Call, Column, Literal
from headrace.plan.nodes import (
    ONE_ROW,
    Aggregate,
    Filter,
    InvalidPlan,
    Join,
    Node,
    Project,
    Sort,
    SortKey,
    SparkSql,
    UnionAll,
    Values,
    walk_plan,
)  # fmt: skip
from headrace.plan.nodes import Leaf as Scan
from headrace.plan.refs import TableRef
from headrace.sql.binder import Binder
from headrace.sql.statements import Insert, Query, parse
from headrace.types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    Field,
    Schema,
    Type,
    arrow_schema,
)  # fmt: skip

RELATIONS: dict[str, Schema] = {
    "s": (Field("a", INT), Field("b", STRING), Field("c", DOUBLE)),
    "t": (Field("a", INT), Field("e", STRING)),
    "wide": (Field("a", BIGINT), Field("Größe", INT), Field("select", INT), Field("x y", STRING)),
    "clock": (Field("at", TIMESTAMP), Field("n", INT)),
}
NOON = dt.datetime(2024, 1, 1, 12, 3, tzinfo=dt.UTC)
ROWS: dict[str, list[tuple[Any, ...]]] = {
    "s": [(1, "x", 1.0), (2, "y", 2.0), (2, None, None)],
    "t": [(1, "e"), (2, "g"), (3, "h")],
    "wide": [(1, 10, 100, "q")],
    "clock": [(NOON, 1), (NOON + dt.timedelta(minutes=5), 2), (NOON + dt.timedelta(minutes=9), 4), (None, 8)],
}
CATALOG = Catalog()
for _name, _fields in RELATIONS.items():
    CATALOG = CATALOG.with_relation((Stream if _name == "s" else Table)(_name, _fields))
CATALOG = CATALOG.with_relation(
    View("named", (Field("k", INT),), "CREATE VIEW named (k) AS SELECT a FROM t", False, ("t",))
)
CATALOG = CATALOG.with_relation(View("kept", (Field("k", INT), Field("n", BIGINT)), "", True, ("s",)))


class Asked(Exception):
    """The binder left something to Spark."""


class NoSpark:
    def scalar_type(self, template: str, args: tuple[Type, ...]) -> Type:
        raise Asked(template)

    def scalar_name(self, template: str, args: tuple[Type, ...]) -> str | None:
        raise Asked(template)

    def query_schema(self, text: str, inputs: Mapping[str, Schema]) -> Schema:
        raise Asked(text)

    def is_aggregate(self, function: str) -> bool:
        raise Asked(function)


class OneColumn(NoSpark):
    """Takes Spark's part for whole blocks."""

    def query_schema(self, text: str, inputs: Mapping[str, Schema]) -> Schema:
        self.inputs = dict(inputs)
        return (Field("x", BIGINT),)

    def relations_read(self, text: str, inputs: Mapping[str, Schema]) -> list[str]:
        return list(inputs)


def bind(text: str, analyzer: NoSpark | None = None) -> Node:
    statement = parse(text)
    assert isinstance(statement, Query)
    return Binder(CATALOG, analyzer or NoSpark()).query(statement.query)


def run(plan: Node) -> list[tuple[Any, ...]]:
    connection = duckdb.connect()
    connection.execute("SET TimeZone='UTC'; SET threads=1")
    for name, fields in RELATIONS.items():
        schema = arrow_schema(fields)
        arrays = [pa.array([r[i] for r in ROWS[name]], f.type) for i, f in enumerate(schema)]
        connection.register(name, pa.table(arrays, schema=schema))
    found = connection.execute(native_plan(plan, lambda scan: quote_native(scan.relation))).fetchall()
    connection.close()
    return found


def names(plan: Node) -> list[str]:
    return [c.name for c in plan.output]


def refusal(text: str) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        bind(text)
    return caught.value


# Names


ANSWERS: list[tuple[str, list[str], list[tuple[Any, ...]]]] = [
    ("SELECT S.A, `s`.`B` FROM s WHERE A = 1", ["A", "B"], [(1, "x")]),
    ("SELECT größe, `select`, `x y` FROM wide", ["größe", "select", "x y"], [(10, 100, "q")]),
    ("SELECT * FROM wide", ["a", "Größe", "select", "x y"], [(1, 10, 100, "q")]),
    ("SELECT a, a FROM t WHERE e = 'h'", ["a", "a"], [(3, 3)]),
    ("SELECT count(*) FROM (SELECT a AS x, b AS x FROM s)", ["count(1)"], [(3,)]),
    ("SELECT l.a FROM s l, s m WHERE l.b = m.b AND l.a > 1", ["a"], [(2,)]),
    ("SELECT k FROM named WHERE k > 2", ["k"], [(3,)]),
    ("SELECT 1, 'x' AS y", ["1", "y"], [(1, "x")]),
    # Stars
    ("SELECT t.*, c FROM s JOIN t ON s.a = t.a WHERE b = 'x'", ["a", "e", "c"], [(1, "e", 1.0)]),
    ("SELECT * EXCEPT (B) FROM s WHERE a = 1", ["a", "c"], [(1, 1.0)]),
    # USING and NATURAL
    ("SELECT * FROM s JOIN t USING (a) WHERE b = 'x'", ["a", "b", "c", "e"], [(1, "x", 1.0, "e")]),
    ("SELECT a, t.a FROM s JOIN t USING (a) WHERE b = 'x'", ["a", "a"], [(1, 1)]),
    ("SELECT * FROM t NATURAL JOIN wide", ["a", "e", "Größe", "select", "x y"], [(1, "e", 10, 100, "q")]),
    ("SELECT e FROM (SELECT a FROM s) NATURAL JOIN (SELECT a, e FROM t) WHERE a = 1", ["e"], [("e",)]),
    ("SELECT e FROM s l JOIN s m USING (a) JOIN t USING (a) WHERE l.b = 'x'", ["e"], [("e",)]),
    ("SELECT * FROM t LEFT SEMI JOIN s USING (a) WHERE a = 2", ["a", "e"], [(2, "g")]),
    ("SELECT * FROM t LEFT ANTI JOIN s ON s.a = t.a", ["a", "e"], [(3, "h")]),
    ("SELECT * FROM s RIGHT JOIN "
        "t ON s.a = t.a WHERE t.a > 2", ["a", "b", "c", "a", "e"], [(None, None, None, 3, "h")]),
    # GROUP BY
    ("SELECT a, count(*) FROM s GROUP BY 1 HAVING a = 2", ["a", "count(1)"], [(2, 2)]),
    ("SELECT a + 1 AS k, count(*) FROM s GROUP BY k HAVING k = 3", ["k", "count(1)"], [(3, 2)]),
    ("SELECT -a AS a, count(*) AS n FROM s GROUP BY a HAVING n > 1", ["a", "n"], [(-2, 2)]),
    ("SELECT a AS k, count(*) FROM s GROUP BY ALL ORDER BY k", ["k", "count(1)"], [(1, 1), (2, 2)]),
    ("SELECT a, a + 1, count(*) FROM s GROUP BY a, a HAVING count(*) = 2", ["a", "(a + 1)", "count(1)"], [(2, 3, 2)]),
    ("SELECT 1 FROM s HAVING true", ["1"], [(1,)]),
    ("SELECT 1 FROM s HAVING count(*) > 5", ["1"], []),
    # HAVING with aliases; inside an aggregate a name means the column below
    ("SELECT a, sum(c) AS n FROM s GROUP BY a HAVING n > 1 AND a = 2", ["a", "n"], [(2, 2.0)]),
    ("SELECT b, sum(a) AS a FROM s GROUP BY b HAVING sum(a) = 1", ["b", "a"], [("x", 1)]),
    ("SELECT count(*) AS c FROM s HAVING c > 1", ["c"], [(3,)]),
    # ORDER BY: outputs first, then what is below; NULLs as Spark orders them
    ("SELECT b FROM s ORDER BY b", ["b"], [(None,), ("x",), ("y",)]),
    ("SELECT b FROM s ORDER BY b DESC", ["b"], [("y",), ("x",), (None,)]),
    ("SELECT b FROM s ORDER BY b NULLS LAST", ["b"], [("x",), ("y",), (None,)]),
    ("SELECT b FROM s ORDER BY a DESC, c", ["b"], [(None,), ("y",), ("x",)]),
    ("SELECT a, b FROM s ORDER BY 1 DESC, 2", ["a", "b"], [(2, None), (2, "y"), (1, "x")]),
    ("SELECT a, b FROM s ORDER BY ALL", ["a", "b"], [(1, "x"), (2, None), (2, "y")]),
    ("SELECT -a AS a FROM t ORDER BY a LIMIT 1", ["a"], [(-3,)]),
    ("SELECT a FROM s GROUP BY a ORDER BY count(*) DESC, sum(c)", ["a"], [(2,), (1,)]),
    ("SELECT a FROM t ORDER BY a LIMIT 1 OFFSET 1", ["a"], [(2,)]),
    ("SELECT a FROM t LIMIT 0", ["a"], []),
    # DISTINCT, UNION, VALUES
    ("SELECT DISTINCT a FROM s ORDER BY a DESC", ["a"], [(2,), (1,)]),
    ("SELECT a AS q FROM t UNION SELECT a FROM s ORDER BY q", ["q"], [(1,), (2,), (3,)]),
    ("SELECT a FROM t UNION ALL SELECT c FROM s WHERE a = 1 ORDER BY a DESC LIMIT 2", ["a"], [(3.0,), (2.0,)]),
    ("VALUES (1, 'a'), (2, NULL)", ["col1", "col2"], [(1, "a"), (2, None)]),
    ("SELECT y FROM VALUES (1, 'a') AS v(x, y)", ["y"], [("a",)]),
    # CTEs: a name means the nearest
    ("WITH s AS (SELECT 7 AS one) SELECT * FROM s", ["one"], [(7,)]),
    ("WITH t AS (SELECT a FROM t WHERE a = 3) SELECT * FROM t", ["a"], [(3,)]),
    ("WITH x (p, q) AS (SELECT a, e FROM t) SELECT q FROM x WHERE p = 1", ["q"], [("e",)]),
    ("WITH x AS (SELECT 1 AS v), y AS (WITH x AS (SELECT "
        "2 AS v) SELECT * FROM x) SELECT y.v, x.v FROM y, x", ["v", "v"], [(2, 1)]),
    # Time windows leave rows without a time out
    (
        "SELECT window.start, window.end, sum(n) FROM clock GROUP BY window(at, '10 minutes') ORDER BY 1",
        ["start", "end", "sum(n)"],
        [(NOON.replace(minute=0), NOON.replace(minute=10), 3), (NOON.replace(minute=10), NOON.replace(minute=20), 4)],
    ),
    ("SELECT count(*) AS k, window(at, '1 hour').start AS "
        "h FROM clock GROUP BY window(at, '1 hour') ORDER BY 1", ["k", "h"], [(3, NOON.replace(minute=0))]),
]  # fmt: skip


@pytest.mark.parametrize(("query", "columns", "expected"), ANSWERS, ids=[q for q, _, _ in ANSWERS])
def test_oracle_what_a_query_means(query: str, columns: list[str], expected: list[tuple[Any, ...]]) -> None:
    plan = bind(query)
    assert names(plan) == columns
    found = run(plan)
    if "ORDER BY" in query:
        assert found == expected
    else:
        assert sorted(map(repr, found)) == sorted(map(repr, expected))


@pytest.mark.parametrize(
    ("query", "types"),
    [
        ("SELECT a FROM t UNION ALL SELECT a FROM wide", ["bigint"]),
        ("SELECT a FROM t UNION ALL SELECT 1.5", ["decimal(11,1)"]),
        ("SELECT a FROM t UNION ALL SELECT NULL", ["int"]),
        ("VALUES (1), (2.5)", ["decimal(11,1)"]),
        ("VALUES (NULL, 1L), (DATE '2024-01-01', 2)", ["date", "bigint"]),
        ("SELECT sum(a), avg(a), count(*), max(e) FROM t", ["bigint", "double", "bigint", "string"]),
    ],
)
def test_types(query: str, types: list[str]) -> None:
    assert [c.type.sql for c in bind(query).output] == types


def test_one_relation_is_one_scan_and_one_cte_one_node() -> None:
    plan = bind(
        "WITH x AS (SELECT a, count(*) AS n FROM s GROUP BY a) "
        "SELECT l.n FROM x l, x m, s WHERE l.a = m.a AND s.a = l.a"
    )
    nodes = list(walk_plan(plan))
    assert sum(isinstance(n, Aggregate) for n in nodes) == 1
    assert sum(isinstance(n, Scan) for n in nodes) == 1


def test_relations_by_kind() -> None:
    kinds = {n.relation: n.kind for n in walk_plan(bind("SELECT 1 FROM s, t, kept, named")) if isinstance(n, Scan)}
    assert kinds == {"s": "stream", "t": "table", "kept": "view"}, "an ordinary view is its query"


# Refusals


REFUSED = [
    ("UNRESOLVED_COLUMN", "SELECT a,\n  ^zz FROM s", "columns here: a, b, c"),
    ("UNRESOLVED_COLUMN", "SELECT ^größ FROM wide", "Größe"),
    ("UNRESOLVED_COLUMN", "SELECT ^x.a FROM s", "did you mean a"),
    ("UNRESOLVED_COLUMN", "SELECT a AS zz FROM s WHERE ^zz > 1", ""),
    ("UNRESOLVED_COLUMN", "SELECT ^t.a FROM s LEFT SEMI JOIN t USING (a)", ""),
    ("UNRESOLVED_COLUMN", "SELECT a FROM s ORDER BY ^zz", ""),
    ("UNRESOLVED_COLUMN", "SELECT b, count(*) AS n FROM s GROUP BY b HAVING ^zz > 1", ""),
    ("UNRESOLVED_COLUMN", "SELECT * EXCEPT (^zz) FROM s", ""),
    ("UNRESOLVED_USING_COLUMN_FOR_JOIN", "SELECT * FROM s JOIN t USING (^b)", "both sides"),
    ("AMBIGUOUS_REFERENCE", "SELECT ^a FROM s JOIN t ON s.a = t.a", "relation's name"),
    ("AMBIGUOUS_REFERENCE", "SELECT ^x FROM (SELECT a AS x, b AS x FROM s)", "alias"),
    ("AMBIGUOUS_REFERENCE", "SELECT ^s.a FROM s, s", "alias"),
    ("CANNOT_RESOLVE_STAR_EXPAND", "SELECT ^x.* FROM s", ""),
    ("TABLE_OR_VIEW_NOT_FOUND", "SELECT * FROM\n ^clok", "did you mean clock"),
    ("GROUP_BY_POS_OUT_OF_RANGE", "SELECT b, count(*) FROM s GROUP BY ^3", ""),
    ("ORDER_BY_POS_OUT_OF_RANGE", "SELECT b FROM s ORDER BY ^2", ""),
    ("ORDER_BY_POS_OUT_OF_RANGE", "SELECT b FROM s UNION ALL SELECT e FROM t ORDER BY ^0", ""),
    ("GROUP_BY_AGGREGATE", "SELECT count(*) FROM s GROUP BY ^sum(a)", ""),
    ("INVALID_WHERE_CONDITION", "SELECT count(*) FROM s WHERE ^sum(a) > 1", "HAVING"),
    ("MISSING_AGGREGATION", "SELECT ^a, b FROM s GROUP BY b", "add a to GROUP BY"),
    ("MISSING_GROUP_BY", "SELECT sum(a),\n ^b FROM s", "add b to GROUP BY"),
    ("MISSING_AGGREGATION", "SELECT ^a + 2, count(*) FROM s GROUP BY a + 1", ""),
    ("UNRESOLVED_COLUMN", "SELECT count(*) FROM s GROUP BY b ORDER BY ^a", "add a to GROUP BY"),
    ("NESTED_AGGREGATE_FUNCTION", "SELECT sum(^sum(a)) FROM s", "subquery"),
    ("DATATYPE_MISMATCH", "SELECT a FROM s WHERE ^b", "compare"),
    ("JOIN_CONDITION_IS_NOT_BOOLEAN_TYPE", "SELECT 1 FROM s JOIN t ON ^s.a", "compare"),
    ("WRONG_NUM_ARGS", "SELECT ^upper(b, b) FROM s", ""),
    ("NUM_COLUMNS_MISMATCH", "^SELECT a, b FROM s UNION ALL SELECT a FROM t", ""),
    ("INVALID_INLINE_TABLE", "VALUES (1), ^(1, 2)", ""),
    ("INVALID_INLINE_TABLE", "^VALUES (1), (true)", ""),
    ("ASSIGNMENT_ARITY_MISMATCH", "WITH ^x (p) AS (SELECT a, b FROM s) SELECT p FROM x", ""),
    ("DUPLICATED_CTE_NAMES", "WITH x AS (SELECT 1), ^x AS (SELECT 2) SELECT * FROM x", ""),
    ("UNRESOLVED_COLUMN", "SELECT DISTINCT b FROM s ORDER BY ^a", "select list"),
    ("INVALID_LIMIT_LIKE_EXPRESSION", "SELECT a FROM s LIMIT ^-1", ""),
    ("NOT_YET_SUPPORTED", "SELECT a FROM ^db.s", ""),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "text", "hint"), REFUSED, ids=[q for _, q, _ in REFUSED])
def test_refusals_name_condition_place_and_remedy(condition: str, text: str, hint: str) -> None:
    offset = text.index("^")
    place = Position(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))
    error = refusal(text.replace("^", "", 1))
    assert (error.condition, error.position) == (condition, place)
    assert hint in (error.hint or "")


def test_a_star_without_columns_is_refused() -> None:
    assert refusal("SELECT *").condition == "CANNOT_RESOLVE_STAR_EXPAND"
    assert refusal("SELECT * EXCEPT (a, e) FROM t").condition == "CANNOT_RESOLVE_STAR_EXPAND"


# INSERT


def assignment(text: str) -> Node:
    statement = parse(text)
    assert isinstance(statement, Insert)
    relation = CATALOG.get(statement.name)
    return Binder(CATALOG, NoSpark()).assignment(statement.query, relation, statement.columns, statement.position)


def test_an_insert_is_in_the_relations_own_columns() -> None:
    plan = assignment("INSERT INTO s (C, a) VALUES (1, 2L)")
    assert [(c.name, c.type.sql) for c in plan.output] == [("a", "int"), ("b", "string"), ("c", "double")]
    assert run(plan) == [(2, None, 1.0)]


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        ("INSERT_COLUMN_ARITY_MISMATCH", "INSERT INTO s VALUES (1, 'x')"),
        ("INSERT_COLUMN_ARITY_MISMATCH", "INSERT INTO s (a) VALUES (1, 'x')"),
        ("UNRESOLVED_COLUMN", "INSERT INTO s (a, zz) VALUES (1, 2)"),
        ("COLUMN_ALREADY_EXISTS", "INSERT INTO s (a, A) VALUES (1, 2)"),
        ("INCOMPATIBLE_DATA_FOR_TABLE", "INSERT INTO s (a) VALUES ('one')"),
        ("INCOMPATIBLE_DATA_FOR_TABLE", "INSERT INTO s (a) SELECT true"),
    ],
)
def test_inserts_that_do_not_fit(condition: str, text: str) -> None:
    with pytest.raises(HeadraceError) as caught:
        assignment(text)
    assert (caught.value.condition, caught.value.position) == (condition, Position(1, 13))


# Outside the algebra


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT collect_list(n) OVER (ORDER BY n) FROM g", "collect_list in a window"),
        ("SELECT a FROM g ORDER BY rank() OVER (ORDER BY n)", "a window function"),
        ("SELECT a FROM g WHERE n > 1 OR a IN (SELECT a FROM t)", "IN (subquery) inside a larger expression"),
        ("SELECT a FROM g WHERE n > (SELECT max(a) FROM t WHERE t.a < g.n)", "more than equality"),
        ("SELECT a FROM g WHERE n > (SELECT a FROM t WHERE t.a = g.a)", "without an aggregate"),
        ("SELECT a FROM g WHERE EXISTS (SELECT 1 FROM t WHERE t.a = g.a LIMIT 0)", "LIMIT"),
        (
            "SELECT a FROM g WHERE EXISTS (SELECT 1 FROM t WHERE EXISTS (SELECT 1 FROM t u WHERE u.a = g.a))",
            "correlated",
        ),
        ("SELECT (SELECT max(a) FROM t) FROM g", "without an alias"),
        ("FROM g |> SELECT a", "a pipe"),
    ],
)
def test_a_block_outside_the_algebra_is_sparks_over_inputs_inside_it(query: str, reason: str) -> None:
    analyzer = OneColumn()
    plan = bind(f"WITH g AS (SELECT a, count(*) AS n FROM s GROUP BY a) {query}", analyzer)
    assert isinstance(plan, SparkSql) and reason in plan.reason
    assert any(isinstance(n, Aggregate) for node in plan.inputs for n in walk_plan(node)), "the CTE stays a plan"
    assert all(name in plan.text for name in plan.names) and list(analyzer.inputs) == list(plan.names)
    assert [(c.name, c.type) for c in plan.output] == [("x", BIGINT)]


# A wrong plan cannot be built

A, B, TEXT = Column.fresh("a", INT), Column.fresh("b", INT), Column.fresh("t", STRING)
LEAF = Scan(TableRef("t"), ("a", "t"), (A, TEXT))
OTHER = Scan(TableRef("u"), ("b",), (B,))
IS_ONE = Call(BOOLEAN, "=", (A, Literal(INT, 1)))
TOTAL = Agg(BIGINT, "sum", (A,))


@pytest.mark.parametrize(
    "build",
    [
        lambda: Filter(OTHER, IS_ONE),
        lambda: Filter(LEAF, A),
        lambda: Filter(LEAF, Call(BOOLEAN, ">", (TOTAL, Literal(BIGINT, 1)))),
        lambda: Project(LEAF, ((B, B),)),
        lambda: Project(LEAF, ((Column.fresh("x", STRING), A),)),
        lambda: Project(LEAF, ((Column.fresh("x", BIGINT), TOTAL),)),
        lambda: Join("inner", LEAF, LEAF, IS_ONE),
        lambda: Join("inner", LEAF, OTHER, A),
        lambda: Join("inner", LEAF, ONE_ROW, Call(BOOLEAN, "=", (A, B))),
        lambda: Aggregate(LEAF, (), ()),
        lambda: Aggregate(LEAF, ((Column.fresh("k", STRING), A),), ()),
        lambda: Aggregate(LEAF, ((Column.fresh("k", BIGINT), TOTAL),), ()),
        lambda: Aggregate(LEAF, (), ((Column.fresh("n", INT), TOTAL),)),
        lambda: Aggregate(LEAF, (), ((Column.fresh("n", BIGINT), Agg(BIGINT, "sum", (TOTAL,))),)),
        lambda: Aggregate(OTHER, (), ((Column.fresh("n", BIGINT), TOTAL),)),
        lambda: Sort(OTHER, (SortKey(A, False, True),)),
        lambda: UnionAll((LEAF, OTHER), (Column.fresh("x", INT),)),
        lambda: UnionAll((OTHER, OTHER), (Column.fresh("x", STRING),)),
        lambda: Values((A,), ((Literal(STRING, "x"),),)),
        lambda: Values((A,), ((Literal(INT, 1), Literal(INT, 2)),)),
        lambda: Filter(LEAF, IS_ONE).with_children((OTHER,)),
    ],
)
def test_a_wrong_plan_cannot_be_built(build: Any) -> None:
    with pytest.raises(InvalidPlan):
        build()
