"""Plans cut at their breakers: what becomes static, stream and upper (V1), what is refused (V2-V7),
and by execution that the cut changes no answer, however the rows arrive."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import RELATIONS, Answering, bag, bind, rows, run, schema, table

from headrace.catalog import Catalog, Stream, Table
from headrace.errors import ViewRefused
from headrace.plan.nodes import Aggregate, Join, Node, Sort, streams_in, tables_in, walk_plan
from headrace.plan.nodes import Leaf as Scan
from headrace.plan.pipelines import SplitPlan
from headrace.plan.rules import optimize
from headrace.plan.rules.drop_unlimited_sort import drop_root_sort
from headrace.plan.split import split
from headrace.sql.binder import Binder
from headrace.sql.statements import Query, parse
from headrace.types import INT, STRING, arrow_schema


@cache
def view(query: str) -> Node:
    return optimize(drop_root_sort(bind(query, Answering())))


@cache
def cut(query: str) -> SplitPlan:
    return split(view(query))


def scans(plan: Node, kind: str) -> list[str]:
    return [n.relation for n in walk_plan(plan) if isinstance(n, Scan) and n.kind == kind]


# V1: classification

PLANT = Catalog()
for _relation in (
    Stream("part_usage", schema(part=STRING, station=INT, worker=INT)),
    Stream("part_restock", schema(part=STRING, station=INT, worker=INT)),
    Table("station", schema(id=INT, location=STRING, supplier=STRING)),
):
    PLANT = PLANT.with_relation(_relation)

LOW_STOCK = """
WITH used AS (SELECT part, station, count(*) AS n FROM part_usage GROUP BY part, station),
     restocked AS (SELECT part, station, count(*) AS n FROM part_restock GROUP BY part, station)
SELECT r.part, s.location, s.supplier
FROM station s, used u, restocked r
WHERE s.id = u.station AND u.station = r.station AND u.part = r.part AND r.n - u.n < 5
"""


def test_the_running_example() -> None:
    """000 Figure 4.4: two stream pipelines end in groupings; everything that joins them is above."""
    statement = parse(LOW_STOCK)
    assert isinstance(statement, Query)
    plan = split(optimize(Binder(PLANT, Answering()).query(statement.query)))
    assert {p.stream for p in plan.streams} == {"part_usage", "part_restock"}
    assert [s.kind for s in plan.states] == ["groups", "groups"]
    for pipeline in plan.streams:
        nodes = list(walk_plan(pipeline.plan))
        assert isinstance(pipeline.plan, Aggregate) and not any(isinstance(n, Join) for n in nodes)
        (scan,) = (n for n in nodes if isinstance(n, Scan))
        assert scan.fields == ("part", "station"), "the worker is not read"
    assert plan.statics == (), "station is joined above the groupings: its changes show at the next query"
    assert tables_in(plan.upper) == {"station"} and not streams_in(plan.upper)
    assert sorted(scans(plan.upper, "state")) == ["s0", "s1"]
    assert [s.labels for s in plan.states] == [("part", "station", "count(1)")] * 2


def test_a_table_below_the_grouping_is_a_static_pipeline() -> None:
    plan = cut("SELECT u.f, sum(s.c) FROM s JOIN t ON s.a = t.a JOIN u ON t.e = u.e WHERE u.f > 1 GROUP BY u.f")
    assert [tables_in(p.plan) for p in plan.statics] == [{"t"}, {"u"}]
    assert "Filter" in {type(n).__name__ for n in walk_plan(plan.statics[1].plan)}, "filtered once, not at each insert"
    assert scans(plan.streams[0].plan, "static") == ["b0", "b1"]
    assert not tables_in(plan.streams[0].plan) and not tables_in(plan.upper)
    assert scans(plan.upper, "state") == ["s0"]


def test_a_joined_pair_of_tables_is_one_static_pipeline() -> None:
    plan = cut("SELECT count(*) FROM t JOIN u ON t.e = u.e JOIN s ON s.a = t.a")
    assert [tables_in(p.plan) for p in plan.statics] == [{"t", "u"}]


@pytest.mark.parametrize(
    "query", ["SELECT count(*) FROM t JOIN s ON t.a = s.a", "SELECT count(*) FROM t, s WHERE t.a = s.a"]
)
def test_the_stream_goes_to_the_probe_side(query: str) -> None:
    """V3."""
    plan = cut(query)
    (join,) = (n for n in walk_plan(plan.streams[0].plan) if isinstance(n, Join))
    assert streams_in(join.left) == {"s"} and scans(join.right, "static") == ["b0"]


def test_a_sort_without_limit_is_dropped() -> None:
    """V6: at the root, in a subquery, and even below the grouping."""
    plan = cut(
        "SELECT b, n FROM (SELECT b, count(*) AS n FROM (SELECT b FROM s ORDER BY c) GROUP BY b ORDER BY n) ORDER BY n"
    )
    assert not any(isinstance(n, Sort) for root in (plan.upper, plan.streams[0].plan) for n in walk_plan(root))


def test_a_sort_with_limit_above_the_grouping_is_the_querys() -> None:
    plan = cut("SELECT max(n) FROM (SELECT b, count(*) AS n FROM s GROUP BY b ORDER BY n, b LIMIT 3)")
    assert any(isinstance(n, Sort) for n in walk_plan(plan.upper))
    assert len(plan.states) == 1 and any(isinstance(n, Aggregate) for n in walk_plan(plan.upper))


def test_a_cte_used_twice_is_one_state() -> None:
    plan = cut(
        "WITH x AS (SELECT a, count(*) AS n FROM s GROUP BY a) SELECT l.a FROM x l JOIN x m ON l.n = m.n AND l.a > 1"
    )
    assert len(plan.states) == len(plan.streams) == 1
    assert scans(plan.upper, "state") == ["s0"]


def test_the_same_stream_twice_feeds_two_states() -> None:
    plan = cut(
        "SELECT l.n, m.n FROM (SELECT a, count(*) AS n FROM s GROUP BY a) "
        "l JOIN (SELECT a, sum(c) AS n FROM s GROUP BY a) m ON l.a = m.a"
    )
    assert [(p.stream, p.state) for p in plan.streams] == [("s", "s0"), ("s", "s1")]


def test_union_branches_feed_one_state() -> None:
    plan = cut(
        "SELECT x, count(*) FROM (SELECT a AS x FROM s UNION ALL SELECT d FROM "
        "r UNION ALL SELECT a FROM t UNION ALL SELECT a + 1 FROM s) GROUP BY x"
    )
    assert len(plan.states) == 1
    assert Counter(p.stream for p in plan.streams) == {"s": 1, "r": 1, None: 1}, "one pipeline a stream and state"
    for pipeline in plan.streams:
        assert len(streams_in(pipeline.plan)) == (pipeline.stream is not None)


def test_states_of_values() -> None:
    """Counting distinct values keeps them; what has no fixed-size state keeps a multiset."""
    plan = cut("SELECT b, count(DISTINCT a), percentile(c, 0.5), sum(c), avg(c) FROM s GROUP BY b")
    assert (plan.states[0].kind, plan.states[0].labels) == ("groups", ("b", "sum(c)", "count(c)"))
    assert [(s.kind, s.labels) for s in plan.states[1:]] == [
        ("distinct", ("b", "a")),
        ("multiset", ("b", "c", "count(1)")),
    ]
    assert len(plan.streams) == 3


def test_a_global_aggregate_always_has_a_state() -> None:
    plan = cut("SELECT count(DISTINCT a) FROM s")
    assert [(s.kind, s.labels) for s in plan.states] == [("groups", ("count(1)",)), ("distinct", ("a",))]


# V2, V4, V5, V7: refusals

REFUSED = [
    ("STREAM_NOT_GROUPED", "SELECT a FROM s WHERE a > 1", "GROUP BY"),
    ("STREAM_NOT_GROUPED", "SELECT a, b, a + 1 FROM s", "GROUP BY"),
    ("STREAM_NOT_GROUPED", "SELECT s.a FROM s JOIN t ON s.a = t.a", "GROUP BY"),
    ("STREAM_NOT_GROUPED", "SELECT a FROM s UNION ALL SELECT a FROM t", "GROUP BY"),
    ("STREAM_NOT_GROUPED", "SELECT a FROM s UNION ALL SELECT count(*) FROM r", "every branch"),
    ("STREAM_NOT_GROUPED", "SELECT count(*) FROM (SELECT a FROM s UNION ALL SELECT count(*) FROM r)", "every branch"),
    ("STREAM_NOT_GROUPED", "SELECT count(*) FROM (SELECT a FROM s UNION ALL SELECT n FROM kept)", "every branch"),
    ("STREAM_NOT_GROUPED", "SELECT sum(x) FROM (SELECT row_number() "
        "OVER (ORDER BY a) AS x FROM s)", "group the stream"),
    ("STREAM_NOT_GROUPED", "SELECT sum(x) FROM (SELECT a AS x FROM s INTERSECT ALL SELECT a FROM t)", "without ALL"),
    ("STREAM_NOT_GROUPED", "SELECT a FROM s EXCEPT ALL SELECT a FROM t", "without ALL"),
    ("STREAM_NOT_GROUPED", "SELECT count(*) FROM s WHERE a > 1 OR a IN (SELECT a FROM t)", "group the stream"),
    ("STREAM_NOT_GROUPED", "SELECT count(*) FROM s WHERE a > (SELECT max(a) FROM t WHERE t.a < s.c)", "by equality"),
    ("STREAM_ON_BUILD_SIDE", "SELECT count(*) FROM t LEFT JOIN s ON t.a = s.a", "left"),
    ("STREAM_ON_BUILD_SIDE", "SELECT count(*) FROM s RIGHT JOIN t ON t.a = s.a", "left"),
    ("STREAM_ON_BUILD_SIDE", "SELECT count(*) FROM t FULL JOIN s ON t.a = s.a", "left"),
    ("STREAM_ON_BUILD_SIDE", "SELECT count(*) FROM s FULL JOIN t ON t.a = s.a", "left"),
    ("STREAM_JOIN_NOT_GROUPED", "SELECT count(*) FROM s JOIN r ON s.a = r.a", "then join the groups"),
    ("STREAM_JOIN_NOT_GROUPED", "SELECT count(*) FROM s l JOIN s m ON l.a = m.a", "then join the groups"),
    ("STREAM_JOIN_NOT_GROUPED", "SELECT count(*) FROM s JOIN (SELECT "
        "a FROM r GROUP BY a) g ON s.a = g.a", "join the groups"),
    ("STREAM_JOIN_NOT_GROUPED", "SELECT count(*) FROM s WHERE a > (SELECT avg(a) FROM s)", "then join the groups"),
    ("STREAM_JOIN_NOT_GROUPED", "SELECT count(*) FROM s WHERE EXISTS (SELECT 1 FROM r WHERE r.a = s.a)", "the groups"),
    ("STREAM_JOIN_NOT_GROUPED", "SELECT count(*) FROM s JOIN kept ON s.a = kept.a", "then join the groups"),
    ("SORT_BELOW_GROUPING", "SELECT count(*) FROM (SELECT a FROM s ORDER BY a LIMIT 3)", "sort the groups"),
    ("SORT_BELOW_GROUPING", "SELECT count(*) FROM (SELECT a FROM s LIMIT 3)", "sort the groups"),
    ("SORT_BELOW_GROUPING", "SELECT a FROM s ORDER BY a LIMIT 3", "sort the groups"),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "query", "remedy"), REFUSED)
def test_refusals_name_the_rule_the_stream_and_the_remedy(condition: str, query: str, remedy: str) -> None:
    with pytest.raises(ViewRefused) as caught:
        cut(query)
    assert caught.value.condition == condition
    assert "s" in caught.value.message.replace(",", " ").split()
    assert remedy in (caught.value.hint or "")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT DISTINCT a FROM s",
        "SELECT a FROM s UNION SELECT a FROM t",
        "SELECT s.a, count(t.e) FROM s LEFT JOIN t ON t.a = s.a GROUP BY s.a",
        "SELECT count(*) FROM s LEFT SEMI JOIN t ON t.a = s.a",
        "SELECT g.a FROM t LEFT JOIN (SELECT a, count(*) AS n FROM s GROUP BY a) g ON t.a = g.a",
        "SELECT l.a FROM (SELECT DISTINCT a FROM s) l FULL JOIN (SELECT a FROM r GROUP BY a) m ON l.a = m.a",
        "SELECT rank() OVER (ORDER BY n) FROM (SELECT a, count(*) AS n FROM s GROUP BY a)",
        "SELECT a FROM s GROUP BY a UNION ALL SELECT a FROM t",
        "SELECT count(*) FROM s WHERE a NOT IN (SELECT a FROM t)",
        "SELECT count(*) FROM t LEFT SEMI JOIN s ON t.a = s.a",
        "SELECT count(*) FROM t WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.a = t.a AND s.b > t.e)",
        "SELECT a FROM s INTERSECT SELECT a FROM t",
        "SELECT a FROM t EXCEPT SELECT a FROM s",
    ],
)
def test_what_the_rules_allow(query: str) -> None:
    assert not streams_in(cut(query).upper)


def test_grouping_sets_keep_the_finest_alone() -> None:
    """Two states (groups, distinct values) whatever the sets; coarser ones are rolled up by the query."""
    plan = cut("SELECT a, b, count(*), avg(c), count(DISTINCT c) FROM s GROUP BY CUBE (a, b)")
    assert [(s.kind, s.labels[: len(s.keys)]) for s in plan.states] == [
        ("groups", ("a", "b")),
        ("distinct", ("a", "b", "c")),
    ]
    assert len(plan.streams) == 2


def test_existence_of_a_stream_keeps_what_is_compared() -> None:
    plan = cut("SELECT count(*) FROM t WHERE EXISTS (SELECT 1 FROM s WHERE s.a = t.a AND s.c > 1)")
    assert [s.labels for s in plan.states] == [("a",)] and tables_in(plan.upper) == {"t"}


# V11 without an engine around it: any chunking, any order of merging


def as_state(plan: SplitPlan, name: str, found: pa.Table) -> pa.Table:
    wanted = arrow_schema(plan.state(name).schema)
    return found.cast(wanted) if found.schema.names == wanted.names else found


def answer(plan: SplitPlan, data: dict[str, pa.Table], cuts: dict[str, list[int]], compact: bool) -> pa.Table:
    """The view's rows after the streams arrived in chunks; with ``compact`` states are merged now and then."""
    known = dict(data)
    for static in plan.statics:
        known[static.name] = run(static.plan, data).rename_columns([f.name for f in static.schema])
    states: dict[str, list[pa.Table]] = {s.name: [] for s in plan.states}
    for pipeline in plan.streams:
        given = [known]
        if pipeline.stream is not None:
            whole = data[pipeline.stream]
            marks = [0, *sorted(min(m, whole.num_rows) for m in cuts[pipeline.stream]), whole.num_rows]
            given = [{**known, pipeline.stream: whole.slice(a, b - a)} for a, b in itertools.pairwise(marks)]
        for batch in given:
            held = states[pipeline.state]
            held.append(as_state(plan, pipeline.state, run(pipeline.plan, batch)))
            if compact and len(held) > 1:
                merged = run(plan.state(pipeline.state).merged(), {pipeline.state: pa.concat_tables(held)})
                states[pipeline.state] = [as_state(plan, pipeline.state, merged)]
    merged_states = {}
    for state in plan.states:
        held = states[state.name] or [arrow_schema(state.schema).empty_table()]
        merged_states[state.name] = run(state.merged(), {state.name: pa.concat_tables(held)})
    return run(plan.upper, {**data, **merged_states})


VIEWS = [
    "SELECT b, count(*), count(a), sum(a), avg(a), min(c), max(b) FROM s GROUP BY b",
    "SELECT count(*), sum(a), avg(c), min(a), bool_and(a > 0), bool_or(a IS NULL) FROM s",
    "SELECT a, b FROM s GROUP BY a, b HAVING count(*) > 1",
    "SELECT DISTINCT b FROM s",
    "SELECT count(DISTINCT a) FROM s",
    "SELECT count(DISTINCT a, b), sum(DISTINCT a), count(*) FROM s",
    "SELECT b, count(DISTINCT a) FILTER (WHERE c > 0), sum(DISTINCT a) "
        "FILTER (WHERE c > 0), sum(a) FILTER (WHERE c > 0) FROM s GROUP BY b",
    "SELECT t.e, sum(s.a), count(*) FROM s LEFT JOIN t ON s.a = t.a GROUP BY t.e",
    "SELECT u.f, count(DISTINCT s.b) FROM t, u, s WHERE t.e = u.e AND s.a = t.a AND s.c > -3 GROUP BY u.f",
    "SELECT count(*) FROM s LEFT ANTI JOIN t ON s.a = t.a",
    "SELECT x, count(*) FROM (SELECT a AS x FROM s UNION ALL SELECT d FROM "
        "r UNION ALL SELECT a FROM t UNION ALL SELECT a + 1 FROM s) GROUP BY x",
    "SELECT count(*) FROM (SELECT t.e FROM (SELECT a FROM s UNION ALL SELECT a FROM r) q JOIN t ON q.a = t.a)",
    "SELECT sum(x) FROM (SELECT a AS x FROM t UNION ALL SELECT f FROM u UNION ALL SELECT a FROM s)",
    "SELECT max(n), count(*) FROM (SELECT b, count(*) AS n FROM s GROUP BY b)",
    "WITH x AS (SELECT a, count(*) AS n FROM s GROUP BY a) SELECT "
        "l.a, m.a FROM x l JOIN x m ON l.n = m.n WHERE l.a > 0",
    "SELECT l.a, n, m FROM (SELECT a, count(*) AS n FROM s GROUP BY a) l "
        "FULL JOIN (SELECT a, sum(d) AS m FROM r GROUP BY a) k ON l.a = k.a",
    "SELECT b, n FROM (SELECT b, count(*) AS n FROM s GROUP BY b) ORDER BY n DESC, b LIMIT 2",
    "SELECT 1 FROM s HAVING true",
    "SELECT a + 1, count(*) FROM s GROUP BY a + 1",
]  # fmt: skip

INTS = st.one_of(st.none(), st.integers(-2, 4))
CELLS: dict[str, st.SearchStrategy[Any]] = {
    "int": INTS,
    "bigint": INTS,
    "string": st.sampled_from([None, "", "x", "y"]),
    "double": st.sampled_from([None, 0.0, 1.5, -2.0]),
}


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[dict[str, pa.Table], dict[str, list[int]]]:
    """Rows of the streams and tables, and where the streams are cut into batches (some empty)."""
    data, cuts = {}, {}
    for name in ("s", "r", "t", "u"):
        cells = [CELLS[f.type.name] for f in RELATIONS[name]]
        data[name] = table(name, draw(st.lists(st.tuples(*cells), max_size=8)))
        cuts[name] = draw(st.lists(st.integers(0, 8), max_size=3))
    return data, cuts


@pytest.mark.parametrize("query", VIEWS)
@settings(max_examples=12)
@given(arrivals(), st.booleans())
def test_oracle_a_view_equals_its_query_over_all_rows(
    query: str, given_: tuple[dict[str, pa.Table], dict[str, list[int]]], compact: bool
) -> None:
    data, cuts = given_
    assert bag(answer(cut(query), data, cuts, compact)) == bag(run(view(query), data))


@pytest.mark.parametrize("offset", [0.0, 1e9, -1e12, 1e15])
@settings(max_examples=20)
@given(
    st.lists(st.one_of(st.none(), st.integers(-50, 50)), max_size=12),
    st.lists(st.integers(0, 12), max_size=4),
    st.booleans(),
)
def test_oracle_variance_does_not_cancel(
    offset: float, values: list[int | None], cuts: list[int], compact: bool
) -> None:
    """The deviations are small beside the values; squares of the values would lose them."""
    data = {"s": table("s", [(None, "x", None if v is None else offset + v) for v in values])}
    plan = cut("SELECT var_pop(c), var_samp(c), stddev_pop(c), stddev(c), count(c), avg(c) FROM s")
    ((pop, samp, stddev_pop, stddev, count, mean),) = rows(answer(plan, data, {"s": cuts}, compact))
    exact = [v for v in values if v is not None]
    assert count == len(exact)
    if not exact:
        assert (pop, samp, stddev_pop, stddev, mean) == (None,) * 5
        return
    centre = sum(exact) / len(exact)
    m2 = sum((v - centre) ** 2 for v in exact)
    tolerance = 1e-12 * m2
    assert math.isclose(mean, offset + centre, rel_tol=1e-12, abs_tol=1e-9)
    assert abs(pop - m2 / len(exact)) <= tolerance
    assert math.isclose(stddev_pop, math.sqrt(pop), abs_tol=1e-9)
    if len(exact) == 1:
        assert samp is None and stddev is None
    else:
        assert abs(samp - m2 / (len(exact) - 1)) <= tolerance and math.isclose(stddev, math.sqrt(samp), abs_tol=1e-9)


def test_a_sum_may_pass_the_limit_on_its_way() -> None:
    """Partial sums are wide: an overflow is the final sum's, whatever the order of arrival."""
    top = 2**63 - 1
    data = {"r": table("r", [(1, top), (1, top), (1, -top), (1, -top + 5)])}
    plan = cut("SELECT a, sum(d) FROM r GROUP BY a")
    assert rows(answer(plan, data, {"r": [1, 2, 3]}, True)) == [(1, 5)]


def test_a_global_aggregate_over_an_empty_stream_has_its_row() -> None:
    plan = cut("SELECT count(*), sum(a), count(DISTINCT b), stddev(c), min(b) FROM s")
    assert rows(answer(plan, {"s": table("s", [])}, {"s": []}, False)) == [(0, None, 0, None, None)]
    grouped = cut("SELECT b, count(*) FROM s GROUP BY b")
    assert rows(answer(grouped, {"s": table("s", [])}, {"s": [0]}, True)) == []
