"""Rows that may be taken back: however they come and wherever states merge, the answer is that of the rows left."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from planning import RELATIONS, Answering, bind, rows, run, table
from pyspark.sql import SparkSession
from test_split import VIEWS

from headrace.catalog.table import WEIGHT
from headrace.engine.spark import frame_of_rows, run_plan
from headrace.errors import NotYetSupported
from headrace.keep.resident import Resident, can_reside
from headrace.plan.aggregates import MERGEABLE
from headrace.plan.nodes import Draw, InvalidPlan, Leaf, Node, leaves, rewrite_plan
from headrace.plan.pipelines import SplitPlan, State
from headrace.plan.refs import StreamRef
from headrace.plan.rules import optimize
from headrace.plan.rules.drop_unlimited_sort import drop_root_sort
from headrace.plan.split import split
from headrace.types import DOUBLE, Field, Type, arrow_schema, from_arrow
from profiles import examples

ADDED = "count(*), count(1), count(i), count(i, d), sum(i), sum(l), sum(m), sum(w), avg(i), avg(l), avg(m), avg(w)"
VALUES = (
    "min(i), max(d), min(d), min(f), max(k), min(m), max(w), max(day), min(b), bool_and(b), bool_or(b), "
    "sum(d), sum(f), avg(d), avg(f), stddev_samp(d), stddev_pop(f), var_samp(i), var_pop(m)"
)
DISTINCT = (
    "count(DISTINCT i), count(DISTINCT i, k), count(DISTINCT d), sum(DISTINCT i), sum(DISTINCT d), avg(DISTINCT m)"
)
FILTERED = ", ".join(
    f"{call} FILTER (WHERE b)" for call in ("count(*)", "sum(m)", "avg(d)", "min(i)", "sum(10 div i)", "var_pop(i)")
).replace("sum(10 div i) FILTER (WHERE b)", "sum(10 div i) FILTER (WHERE i > 0)")
OWN = [
    f"SELECT k, {ADDED} FROM v GROUP BY k",
    f"SELECT k, {VALUES} FROM v GROUP BY k",
    f"SELECT b, {DISTINCT}, {FILTERED} FROM v GROUP BY b",
    "SELECT count(*), sum(l), avg(m), min(i), sum(d), var_pop(f), bool_or(b), sum(DISTINCT i), "
    "avg(d) FILTER (WHERE b), count(DISTINCT i, k) FROM v",
    "SELECT g, count(*), sum(d), min(g), count(DISTINCT g) FROM v GROUP BY g",
    "SELECT k, b, count(*), sum(l), min(i), sum(d), var_pop(d), count(DISTINCT i) FROM v GROUP BY GROUPING SETS "
    "((k, b), (k), ())",
    "SELECT w, day, f, count(*) FROM v WHERE i > 0 OR i IS NULL GROUP BY w, day, f HAVING count(*) > 1",
    "SELECT 'a', count(*), max(i) FROM v GROUP BY 'a'",
    "SELECT e, sum(i), max(d) FROM (SELECT e, i, d FROM v JOIN t ON v.i = t.a UNION ALL SELECT k, i, d FROM v "
    "UNION ALL SELECT e, a, 1.5D FROM t) GROUP BY e",
]
BY_SPARK = [
    "SELECT k, count(*), count(i), sum(i), sum(l), sum(m), sum(w), avg(m), min(d), max(k), bool_and(b), sum(d), "
    "avg(f), stddev_samp(d), count(DISTINCT d), sum(DISTINCT i), sum(10 div i) FILTER (WHERE i > 0) FROM v GROUP BY k",
    "SELECT count(*), avg(i), max(g), var_pop(f), count(DISTINCT i, k), bool_or(b) FILTER (WHERE i > 0), "
    "percentile(7, 0.5) FROM v WHERE i > 2",
    "SELECT g, percentile(d, 0.5), count(*), sum(z), avg(z), min(z), percentile(i, 0.5) FILTER (WHERE b) "
    "FROM v GROUP BY g",
]
"""The last has aggregates that are not taken apart, and sums of too many digits to be multiplied."""
CELLS: dict[str, list[Any]] = {
    "string": ["", "x", "y"],
    "double": [0.0, -0.0, 1.5, -2.25, 0.1, 1e100, math.nan, math.inf],
    "int": [-3, 0, 1, 2, 2**31 - 2],
    "bigint": [-1, 0, 1, 7, 2**62, -(2**63)],
    "decimal(10,2)": [Decimal("-99999999.99"), Decimal("0.01"), Decimal("7.50")],
    "decimal(38,4)": [Decimal(-(10**19)), Decimal("0.0001"), Decimal(7)],
    "decimal(38,18)": [Decimal("-123456789012.000000000000000001"), Decimal("0.5")],
    "float": [0.0, 1.5, -0.25, math.nan],
    "boolean": [True, False],
    "date": [dt.date(1969, 12, 31), dt.date(2026, 2, 28)],
}
PHASES = [Phase.explicit, Phase.generate]
"""An example takes tens of queries: looking for a smaller one would take minutes."""
WEIGHTS = st.integers(-3, 3) | st.sampled_from([10**12, -(10**12)])


class Median(Answering):
    def scalar_type(self, template: str, args: tuple[Type, ...]) -> Type:
        return DOUBLE


@cache
def view(query: str) -> Node:
    return optimize(drop_root_sort(bind(query, Median())))


@cache
def cut(query: str) -> SplitPlan:
    return split(view(query), signed=[leaf.ref for leaf in leaves(view(query), StreamRef)])


# Changes: rows of each relation, what is left of them, and the pieces they come in


Changes = tuple[dict[str, pa.Table], dict[str, list[pa.Table]]]


def weighted(name: str, given: list[tuple[tuple[Any, ...], int]]) -> pa.Table:
    weights = pa.array([w for _, w in given], pa.int64())
    return table(name, [row for row, _ in given]).append_column(WEIGHT, weights)


def row_of(name: str) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*(st.none() | st.sampled_from(CELLS[f.type.sql]) for f in RELATIONS[name]))


@st.composite
def changes(draw: st.DrawFn, names: tuple[str, ...] = ("s", "r", "v")) -> Changes:
    """What is left of each relation, and the changes of the streams, cut into batches: in any order."""
    left: dict[str, pa.Table] = {}
    batches: dict[str, list[pa.Table]] = {}
    for name in ("t", "u"):
        left[name] = table(name, draw(st.lists(row_of(name), max_size=3)))
    for name in names:
        # Few rows, so that they meet again; a row's weights add up to how often it is left.
        came: list[tuple[tuple[Any, ...], int]] = []
        stay: list[tuple[Any, ...]] = []
        for row, weights, count in draw(
            st.lists(st.tuples(row_of(name), st.lists(WEIGHTS, max_size=3), st.integers(0, 2)), max_size=7)
        ):
            came += [(row, w) for w in (*weights, count - sum(weights)) if w]
            stay += [row] * count
        came = draw(st.permutations(came))
        marks = sorted(draw(st.lists(st.integers(0, len(came)), max_size=4)))
        left[name] = table(name, stay)
        batches[name] = [weighted(name, came[a:b]) for a, b in itertools.pairwise([0, *marks, len(came)])]
    return left, batches


Run = Callable[[Node, dict[str, pa.Table]], pa.Table]


def conformed(state: State, found: pa.Table) -> pa.Table:
    return found.cast(arrow_schema(state.schema))


def state_rows(plan: SplitPlan, given: Changes, run: Run) -> dict[str, list[pa.Table]]:
    """The state rows each batch leaves."""
    left, batches = given
    known = dict(left)
    for static in plan.statics:
        known[static.name] = run(static.plan, left).rename_columns([f.name for f in static.schema])
    found: dict[str, list[pa.Table]] = {s.name: [] for s in plan.states}
    for pipeline in plan.streams:
        for batch in [None] if pipeline.stream is None else batches[pipeline.stream]:
            data = known if batch is None else {**known, pipeline.stream: batch}
            partial = conformed(plan.state(pipeline.state), run(pipeline.plan, data))
            assert not said_nothing(plan.state(pipeline.state), partial)
            found[pipeline.state].append(partial)
    return found


def said_nothing(state: State, partial: pa.Table) -> bool:
    names = [c.name for c, _ in state.partials]
    return any(not any(row.values()) for row in partial.select(names).to_pylist())


@cache
def merge_plan(state: State) -> Node:
    return state.merged()


def merged_of(state: State, parts: list[pa.Table], run: Run) -> pa.Table:
    whole = pa.concat_tables([arrow_schema(state.schema).empty_table(), *parts])
    return conformed(state, run(merge_plan(state), {state.name: whole}))


def merged_somehow(state: State, parts: list[pa.Table], chance: random.Random, run: Run = run) -> pa.Table:
    """All of them merged, some of them with some others first."""
    parts = list(parts)
    while len(parts) > 2 and chance.random() < 0.7:
        chance.shuffle(parts)
        some = chance.randint(1, len(parts))
        parts = [merged_of(state, parts[:some], run), *parts[some:]]
    return merged_of(state, parts, run)


def folded(state: State, parts: list[pa.Table], chance: random.Random) -> pa.Table:
    assert can_reside(state)
    resident = Resident(state)
    for epoch, part in enumerate(chance.sample(parts, len(parts))):
        resident.fold(part, epoch)
    return resident.table()


def attempt(work: Callable[[], pa.Table]) -> pa.Table | None:
    """What it gives, or None where a sum is too large for its type."""
    try:
        return work()
    except duckdb.Error as error:
        assert "verflow" in str(error), error
        return None


def plain(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else float(f"{value + 0.0:.6g}")
    return value


def close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)


def same(found: pa.Table, expected: pa.Table) -> bool:
    ours, theirs = (sorted(rows(t), key=lambda row: repr(tuple(map(plain, row)))) for t in (found, expected))
    return len(ours) == len(theirs) and all(
        len(a) == len(b) and all(map(close, a, b)) for a, b in zip(ours, theirs, strict=True)
    )


def check(query: str, given: Changes, chance: random.Random) -> None:
    """By native merges and by folds in memory: the same state, and the answer over the rows that are left."""
    plan, (left, _) = cut(query), given
    found = state_rows(plan, given, run)
    merged, in_memory = {}, {}
    for state in plan.states:
        assert not state.monotone
        merged[state.name] = merged_somehow(state, found[state.name], chance)
        in_memory[state.name] = folded(state, found[state.name], chance)
        assert same(in_memory[state.name], merged[state.name]), state.labels
        assert not state.keys or not said_nothing(state, merged[state.name])
    expected = attempt(lambda: run(view(query), left))
    for states in (merged, in_memory):
        answer = attempt(lambda states=states: run(plan.upper, {**left, **states}))  # type: ignore[misc]
        if answer is None or expected is None:
            assert answer is expected, query
        else:
            assert same(answer, expected), (rows(answer), rows(expected))


@pytest.mark.parametrize("query", OWN)
@settings(max_examples=examples(8), phases=PHASES)
@given(given_=changes(("v",)), seed=st.integers(0, 2**32))
def test_oracle_the_answer_is_that_of_the_rows_left(query: str, given_: Changes, seed: int) -> None:
    check(query, given_, random.Random(seed))


@pytest.mark.parametrize("query", VIEWS)
@settings(max_examples=examples(3), phases=PHASES)
@given(given_=changes(("s", "r")), seed=st.integers(0, 2**32))
def test_oracle_whatever_a_view_of_streams_may_be(query: str, given_: Changes, seed: int) -> None:
    check(query, given_, random.Random(seed))


def test_every_aggregate_with_a_fixed_size_has_a_case() -> None:
    assert all(any(f"{fn}(" in query for query in OWN) for fn in MERGEABLE)


# What matters, one by one


def answered(query: str, *batches: list[tuple[tuple[Any, ...], int]]) -> list[tuple[Any, ...]]:
    """The answer after batches of rows (a, d) of r, or (a, b, c) of s, merged as they come."""
    plan, (name,) = cut(query), {p.stream for p in cut(query).streams}
    assert name is not None
    found = state_rows(plan, ({}, {name: [weighted(name, batch) for batch in batches]}), run)
    states: dict[str, pa.Table] = {}
    for state in plan.states:
        merged = arrow_schema(state.schema).empty_table()
        for part in found[state.name]:
            merged = merged_of(state, [merged, part], run)
        resident = Resident(state)
        for epoch, part in enumerate(found[state.name]):
            resident.fold(part, epoch)
        states[state.name] = merged
        assert same(resident.table(), merged)
    return sorted(rows(run(plan.upper, states)), key=repr)


def test_back_to_nothing() -> None:
    row = (1, "x", 2.5)
    grouped = "SELECT b, count(*), sum(a), min(c), avg(c), count(DISTINCT a) FROM s GROUP BY b"
    total = "SELECT count(*), sum(a), min(c), avg(c), stddev(c), count(DISTINCT a) FROM s"
    for batches in ([[(row, 2)], [(row, -2)]], [[(row, -1)], [(row, 3), (row, -2)]], [[(row, 1), (row, -1)]], [[]]):
        assert answered(grouped, *batches) == []
        assert answered(total, *batches) == [(0, None, None, None, None, 0)]
        for state in cut(grouped).states:
            parts = state_rows(cut(grouped), ({}, {"s": [weighted("s", b) for b in batches]}), run)[state.name]
            assert merged_of(state, parts, run).num_rows == 0, state.labels


def test_a_weight_of_zero_alone_says_nothing_yet() -> None:
    """A row taken back before it came and one that came in its place: the group's weight is 0, its sum is not."""
    query = "SELECT a, sum(d), count(d), count(*) FROM r GROUP BY a"
    assert answered(query, [((1, 5), -1)], [((1, 7), 1)], [((1, 5), 1)]) == [(1, 7, 1, 1)]
    assert answered(query, [((1, None), -1), ((1, 7), 1)], [((1, None), 2)]) == [(1, 7, 1, 2)]


def test_a_group_of_nulls_is_a_group() -> None:
    query = "SELECT a, sum(d), avg(d), count(d), max(d), count(*) FROM r GROUP BY a"
    rows_ = [((None, None), 1), ((None, 4), 2), ((None, 4), -2)]
    assert answered(query, rows_) == answered(query, *([row] for row in rows_)) == [(None, None, None, 0, None, 1)]


def test_what_a_filter_drops_is_not_computed() -> None:
    calls = ", ".join(f"{fn}(10 div a) FILTER (WHERE a <> 0)" for fn in ("sum", "count", "max"))
    assert answered(f"SELECT {calls} FROM r", [((0, 5), 1), ((2, 5), 3)], [((0, 5), -1), ((2, 5), -1)]) == [(10, 2, 5)]


def test_a_sum_may_pass_the_limit_on_its_way() -> None:
    top = 2**63 - 1
    query = "SELECT a, sum(d) FROM r GROUP BY a"
    assert answered(query, [((1, top), 10**15)], [((1, top), 1 - 10**15)]) == [(1, top)]
    assert answered(query, [((1, -top), -1), ((1, top), 1)], [((1, -top), 1)]) == [(1, top)]


def test_doubles_leave_nothing_behind() -> None:
    for large in (1e16, 1e300, math.inf, math.nan):
        query = "SELECT sum(c), avg(c), var_pop(c) FROM s"
        assert answered(query, [((1, "x", 0.1), 1), ((1, "x", large), 1)], [((1, "x", large), -1)]) == [(0.1, 0.1, 0.0)]


def test_streams_that_only_grow_keep_what_they_kept() -> None:
    for query in (*OWN, *VIEWS):
        alike = split(view(query))
        assert all(s.monotone for s in alike.states)
        assert not any(WEIGHT in leaf.fields for p in alike.streams for leaf in leaves(p.plan))
    both = view("SELECT l.a, n, m FROM (SELECT a, count(*) AS n FROM s GROUP BY a) l "
                "JOIN (SELECT a, sum(d) AS m FROM r GROUP BY a) k ON l.a = k.a")  # fmt: skip
    plan = split(both, signed=[leaf.ref for leaf in leaves(both, StreamRef) if leaf.relation == "r"])
    by_stream = {p.stream: plan.state(p.state) for p in plan.streams}
    assert by_stream["s"].monotone and not by_stream["r"].monotone


def test_what_is_kept() -> None:
    plan = cut(
        "SELECT b, min(c), max(c), sum(c), count(DISTINCT c), avg(a), count(*), bool_or(a > 0) FROM s GROUP BY b"
    )
    assert [(s.kind, s.labels) for s in plan.states] == [
        ("groups", ("b", "sum(a)", "count(a)", "count(1)")),
        ("multiset", ("b", "c", "count(1)")),
        ("multiset", ("b", "value 1", "count(1)")),
    ]


def test_what_does_not_treat_each_row_by_itself_is_refused() -> None:
    plan = view("SELECT a, count(*) FROM s GROUP BY a")
    (leaf,) = leaves(plan)
    drawn = rewrite_plan(plan, lambda n: Draw(n, 3) if n is leaf else n)
    with pytest.raises(InvalidPlan, match="Draw does not treat"):
        split(drawn, signed=[leaf.ref])
    with pytest.raises(NotYetSupported, match="retain"):
        split(plan, 1, signed=[leaf.ref])


# By Spark SQL


def spark_run(spark: SparkSession, *, primitive: bool) -> Run:
    def run_there(plan: Node, data: dict[str, pa.Table]) -> pa.Table:
        def frame(leaf: Leaf) -> Any:
            given = data[leaf.relation]
            return frame_of_rows(spark, given, tuple(Field(f.name, from_arrow(f.type)) for f in given.schema))

        return run_plan(spark, plan, {leaf.ref: frame(leaf) for leaf in leaves(plan)}, primitive=primitive)

    return run_there


@pytest.mark.spark
@pytest.mark.parametrize("query", BY_SPARK)
def test_differential_spark_keeps_the_same(spark: SparkSession, query: str) -> None:
    """The same state rows batch by batch and merged, and the answer of Spark's own aggregates over the rows left."""
    plan, chance, there = cut(query), random.Random(query), spark_run(spark, primitive=True)
    cells = [[None, *CELLS[f.type.sql]] for f in RELATIONS["v"]]
    some = [tuple(chance.choice(values) for values in cells) for _ in range(12)]
    some = [(*row[:3], 7 if row[3] is None else row[3] % 100, *row[4:]) for row in some]
    count = {row: chance.randint(0, 2) for row in some}
    gone = {row: chance.choice([-2, 1, 10**6]) for row in some}
    came = [(row, w) for row in some for w in (gone[row], count[row] - gone[row]) if w]
    chance.shuffle(came)
    given_ = ({"v": table("v", [row for row in some for _ in range(count[row])])},
              {"v": [weighted("v", came[:8]), weighted("v", came[8:9]), weighted("v", came[9:])]})  # fmt: skip
    ours, theirs = state_rows(plan, given_, run), state_rows(plan, given_, there)
    merged: dict[str, pa.Table] = {}
    for state in plan.states:
        assert all(map(same, ours[state.name], theirs[state.name])), state.labels
        parts = theirs[state.name]
        merged[state.name] = merged_of(state, [merged_of(state, parts[1:], there), parts[0]], there)
        assert same(merged[state.name], merged_of(state, ours[state.name], run)), state.labels
        assert same(merged[state.name], folded(state, parts, chance)), state.labels
    itself = spark_run(spark, primitive=False)
    assert same(itself(plan.upper, merged), itself(view(query), given_[0]))
