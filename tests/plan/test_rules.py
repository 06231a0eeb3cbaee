"""Each rule by its fixture file (SQL in, plan text out), and executed: a rule never changes an answer.

A fixture is a comment that says why, one query, and the plan after that one rule.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import RELATIONS, bag, bind, rows, run, table

from headrace.engine.plan_sql import native_plan
from headrace.errors import HeadraceError
from headrace.plan.exprs import Call, Cast, Expr, Literal
from headrace.plan.nodes import Aggregate, Filter, Leaf, Node, Project, Sort, SparkSql, walk_plan
from headrace.plan.render import render
from headrace.plan.rules import RULES, optimize
from headrace.plan.rules.drop_unlimited_sort import drop_root_sort
from headrace.plan.rules.fold_constants import fold
from headrace.types import BIGINT, INT, TINYINT, decimal

FIXTURES = Path(__file__).parent / "fixtures"
BY_NAME: dict[str, Callable[[Node], Node]] = {**{r.__name__: r for r in RULES}, "optimize": optimize}


def read(file: Path) -> list[tuple[str, str]]:
    """The (query, plan) pairs of a fixture file."""
    found = []
    for block in file.read_text().split("\n\n"):
        query, plan = block.strip().split(";\n", 1)
        found.append(("\n".join(line for line in query.splitlines() if not line.startswith("--")), plan))
    return found


PAIRS = [(file.stem, *pair) for file in sorted(FIXTURES.glob("*.sql")) for pair in read(file)]
QUERIES = sorted({query for _, query, _ in PAIRS})


def test_every_rule_has_its_fixtures() -> None:
    assert {file.stem for file in FIXTURES.glob("*.sql")} == set(BY_NAME)


@pytest.mark.parametrize(("rule", "query", "plan"), PAIRS)
def test_fixture(rule: str, query: str, plan: str) -> None:
    assert render(BY_NAME[rule](bind(query))) == plan


# Executed

INTS = st.one_of(st.none(), st.integers(-2, 4))
NAMES = st.sampled_from([None, "", "k", "q", "x", "y"])
CELLS: dict[str, st.SearchStrategy[Any]] = {
    "int": INTS,
    "bigint": INTS,
    "string": NAMES,
    "double": st.sampled_from([None, 0.0, 1.5, -2.0]),
}


@st.composite
def relations(draw: st.DrawFn) -> dict[str, Any]:
    """A few rows for each relation the fixtures read."""
    data = {}
    for name in ("s", "r", "t", "u"):
        cells = [CELLS[f.type.name] for f in RELATIONS[name]]
        data[name] = table(name, draw(st.lists(st.tuples(*cells), max_size=7)))
    data["many"] = table("many", [])
    return data


def outcome(plan: Node, data: dict[str, Any]) -> Any:
    """The rows as a multiset, or the kind of failure."""
    try:
        return bag(run(plan, data))
    except Exception as error:
        return type(error).__name__


@settings(max_examples=150)
@given(st.sampled_from(QUERIES), relations())
def test_differential_a_rule_never_changes_the_rows(query: str, data: dict[str, Any]) -> None:
    plan = bind(query)
    expected = outcome(plan, data)
    for name, rule in BY_NAME.items():
        assert outcome(rule(plan), data) == expected, name


@settings(max_examples=60)
@given(relations())
def test_differential_the_outermost_order_survives(data: dict[str, Any]) -> None:
    for query in (
        "SELECT a, e FROM (SELECT a, e FROM t ORDER BY e) ORDER BY a DESC, e",
        "SELECT e FROM t ORDER BY a, e",
    ):
        plan = bind(query)
        assert rows(run(optimize(plan), data)) == rows(run(plan, data))


@pytest.mark.parametrize("query", QUERIES)
def test_rules_keep_what_readers_of_the_root_see(query: str) -> None:
    plan = bind(query)
    for rule in BY_NAME.values():
        after = rule(plan)
        assert [(c.id, c.name, c.type) for c in after.output] == [(c.id, c.name, c.type) for c in plan.output]


TWICE = "WITH x AS (SELECT a, sum(c) AS n FROM s GROUP BY a ORDER BY 1) {}"
SHARED = [
    TWICE.format("SELECT * FROM x AS l JOIN x AS m ON l.a = m.a WHERE l.n > 1 AND m.a = 1 + 1"),
    TWICE.format("SELECT a FROM x WHERE n > 1 UNION ALL SELECT a FROM x WHERE n < 1"),
    TWICE.format("SELECT count(*) FROM x AS l LEFT JOIN (SELECT a FROM x WHERE a > 0) AS m ON l.a = m.a"),
    TWICE.format(
        ", y AS (SELECT a FROM x WHERE n > 0) SELECT * FROM y AS l JOIN y AS m ON l.a = m.a JOIN x ON x.a = l.a"
    ),
    "SELECT l.n FROM (SELECT count(*) AS n FROM s) AS l, (SELECT sum(a) AS n FROM s) AS m WHERE l.n = m.n",
]


@pytest.mark.parametrize("query", SHARED)
@pytest.mark.parametrize("rule", BY_NAME)
def test_a_node_read_twice_stays_one(query: str, rule: str) -> None:
    def shape(plan: Node) -> tuple[int, int]:
        nodes = list(walk_plan(plan))
        return sum(isinstance(n, Aggregate) for n in nodes), sum(isinstance(n, Leaf) for n in nodes)

    plan = bind(query)
    assert shape(BY_NAME[rule](plan)) == shape(plan)


# What only Spark knows


class Opaque:
    """Takes Spark's part for one function."""

    def scalar_type(self, template: str, args: tuple[Any, ...]) -> Any:
        return INT

    def is_aggregate(self, function: str) -> bool:
        return False


def test_nothing_moves_past_an_expression_only_spark_knows() -> None:
    plan = bind("SELECT y FROM (SELECT mystery(a) AS y, a FROM t) WHERE y > 1 AND a > 2", Opaque())  # type: ignore[arg-type]
    after = optimize(plan)
    filters = [n for n in walk_plan(after) if isinstance(n, Filter)]
    assert len(filters) == 1 and isinstance(filters[0].child, Project)
    assert "mystery" in render(filters[0].child).splitlines()[0]


def test_no_fixture_needs_spark() -> None:
    assert not any(isinstance(n, SparkSql) for query in QUERIES for n in walk_plan(bind(query)))


# Details of single rules


def test_a_view_has_no_outermost_order() -> None:
    for query in (
        "SELECT a FROM t ORDER BY a",
        "SELECT a FROM t ORDER BY e",
        "SELECT a FROM (SELECT a FROM t ORDER BY e) ORDER BY a",
    ):
        plan = drop_root_sort(bind(query))
        assert not any(isinstance(n, Sort) for n in walk_plan(plan))
    limited = drop_root_sort(bind("SELECT a FROM t ORDER BY e LIMIT 3"))
    assert sum(isinstance(n, Sort) for n in walk_plan(limited)) == 1


@given(st.integers(-130, 130), st.integers(-130, 130), st.sampled_from("+-*"))
def test_oracle_folding_keeps_to_the_type(a: int, b: int, fn: str) -> None:
    a, b = max(-128, min(a, 127)), max(-128, min(b, 127))
    before: Expr = Call(TINYINT, fn, (Literal(TINYINT, a), Literal(TINYINT, b)))
    exact = {"+": a + b, "-": a - b, "*": a * b}[fn]
    assert fold(before) == (Literal(TINYINT, exact) if -128 <= exact <= 127 else before)


def test_folding_a_cast_rounds_half_up_or_leaves_it() -> None:
    from decimal import Decimal

    half = Literal(decimal(4, 3), Decimal("-2.345"))
    assert fold(Cast(decimal(5, 2), half)) == Literal(decimal(5, 2), Decimal("-2.35"))
    too_wide = Cast(decimal(2, 2), half)
    assert fold(too_wide) == too_wide
    truncating = Cast(BIGINT, half)
    assert fold(truncating) == truncating


def test_a_constant_that_fails_fails_only_when_run() -> None:
    plan = optimize(bind("SELECT 1 / 0 AS x FROM t WHERE a > 0"))
    empty = {"t": table("t", [])}
    assert rows(run(plan, empty)) == []
    with pytest.raises((HeadraceError, Exception), match="DIVIDE_BY_ZERO"):
        run(plan, {"t": table("t", [(1, "x")])})


# Window functions


@pytest.mark.parametrize("order", ["d DESC", "a", "a DESC NULLS FIRST"])
@pytest.mark.parametrize("filter", ["n <= 2", "n = 1", "3 > n"])
def test_the_first_rows_of_partitions_are_found_without_a_sort(order: str, filter: str) -> None:
    """DuckDB takes a row_number() that is compared with a constant for the best few of each partition."""
    import duckdb

    query = f"SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY a % 7 ORDER BY {order}) AS n FROM r)"
    plan = optimize(bind(f"{query} WHERE {filter}"))
    connection = duckdb.connect()
    connection.execute("CREATE TABLE r AS SELECT i::INTEGER AS a, i AS d FROM range(10000) t(i)")
    ((_, said),) = connection.sql(f"EXPLAIN {native_plan(plan, lambda leaf: leaf.relation)}").fetchall()
    assert "arg_m" in said and "Window" not in said, said
