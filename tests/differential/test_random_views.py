"""Random tables, batches, chunkings and queries: whatever comes, Headrace's answer is Spark's.

The grammar below says what the slice supports. Values include NULLs, duplicates,
empty and non-ASCII text, and extremes where a sum of them cannot overflow.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from harness import Case, Schedule, check
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles import examples

S = "k INT, g STRING, x INT, y BIGINT, d DECIMAL(12,3), f DOUBLE, b BOOLEAN, day DATE, \
p STRUCT<a: INT, l: ARRAY<STRING>>"
R = "k INT, g STRING, x INT"
T = "id INT, name STRING, w DECIMAL(5,1)"


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


ints = maybe(st.integers(-3, 6))
text = maybe(st.sampled_from(["", "a", "b", "ab", "ü", "it's", "x" * 300]))
wide = maybe(st.sampled_from([0, 1, -1, 7, 2**31, -(2**40), 2**55]))
decimals = maybe(st.decimals(-1000, 1000, places=3, allow_nan=False))
floats = maybe(st.sampled_from([0.0, -0.0, 1.5, -2.25, 1e-3, 1e12, float("inf"), float("nan")]))
days = maybe(
    st.dates(min_value=__import__("datetime").date(1900, 1, 1), max_value=__import__("datetime").date(2100, 1, 1))
)
nested = maybe(st.fixed_dictionaries({"a": ints, "l": maybe(st.lists(text, max_size=2))}))
s_rows = st.lists(st.tuples(ints, text, ints, wide, decimals, floats, maybe(st.booleans()), days, nested), max_size=25)
r_rows = st.lists(st.tuples(ints, text, ints), max_size=10)
t_rows = st.lists(
    st.tuples(ints, text, maybe(st.sampled_from([Decimal("1.5"), Decimal("-2.0"), Decimal("0.0")]))), max_size=6
)

predicates = st.sampled_from(
    [
        "TRUE", "s.x > 0", "s.x <= s.k", "s.g LIKE 'a%'", "s.g IS NOT NULL AND s.g <> 'b'", "NOT s.b", "s.d > 1.5",
        "s.x IN (1, 2, NULL)", "s.k <=> s.x", "s.y BETWEEN -5 AND 100", "coalesce(s.x, 0) % 2 = 0",
        "s.k IN (SELECT id FROM t)", "s.x NOT IN (SELECT id FROM t WHERE w > 0)", "s.g NOT IN (SELECT name FROM t)",
        "EXISTS (SELECT 1 FROM t WHERE t.id = s.k AND t.name >= s.g)",
        "NOT EXISTS (SELECT 1 FROM t WHERE t.id < s.x AND t.name = s.g) AND s.x > 0",
        "s.x > (SELECT min(id) FROM t)", "s.x >= (SELECT count(w) FROM t WHERE t.id = s.k)",
        "s.b OR EXISTS (SELECT 1 FROM t WHERE t.id = s.k)",
        "s.p.a > 0 OR s.p.l IS NULL",
        "CASE WHEN s.b THEN s.x > 1 ELSE s.k > 1 END", "length(s.g) > 1 OR s.day >= DATE '2000-01-01'",
    ]
)  # fmt: skip
keys = st.lists(
    st.sampled_from(
        [
            "s.g",
            "s.k",
            "s.b",
            "s.k + 1",
            "upper(substring(s.g, 1, 1))",
            "s.x % 3",
            "year(s.day)",
            "s.g IS NULL",
            "s.f",
            "s.p",
            "s.p.a",
        ]
    ),
    max_size=3,
    unique=True,
)
aggregates = st.lists(
    st.sampled_from(
        [
            "count(*)", "count(s.x)", "sum(s.x)", "sum(s.y)", "sum(s.d)", "avg(s.x)", "avg(s.d)", "avg(s.f)",
            "sum(s.f)", "min(s.f)", "max(s.f)", "min(s.g)", "max(s.d)", "max(s.day)", "min(s.b)", "bool_and(s.b)",
            "bool_or(s.x > 2)",
            "stddev(s.x)", "var_pop(s.d)", "count(DISTINCT s.g)", "count(DISTINCT s.x, s.g)", "sum(s.x * 2 - s.k)",
            "sum(s.d * s.d)", "count(*) FILTER (WHERE s.x > 1)", "max(length(s.g))", "sum(s.p.a)",
            "count(DISTINCT s.p.l)", "sum(s.d) + count(*)",
        ]
    ),
    min_size=1,
    max_size=4,
    unique=True,
)  # fmt: skip
joins = st.sampled_from(
    [
        "", " JOIN t ON s.k = t.id", " LEFT JOIN t ON s.k = t.id AND t.w > 0", " LEFT SEMI JOIN t ON s.k = t.id",
        " LEFT ANTI JOIN t ON s.k = t.id AND s.g = t.name", " JOIN t ON s.x < t.id",
    ]
)  # fmt: skip


@st.composite
def grouping(draw: st.DrawFn) -> tuple[str, int]:
    """A grouped block over stream s, and how many keys it has."""
    by, of = draw(keys), draw(aggregates)
    items = [f"{k} AS k{i}" for i, k in enumerate(by)] + [f"{a} AS a{i}" for i, a in enumerate(of)]
    sets = draw(st.sampled_from(["{}", "{}", "{}", "ROLLUP ({})", "CUBE ({})"]))
    group = f" GROUP BY {sets.format(', '.join(by))}" if by else ""
    having = draw(st.sampled_from(["", " HAVING count(*) > 1", " HAVING max(s.x) > 0 OR max(s.x) IS NULL"]))
    return f"SELECT {', '.join(items)} FROM s{draw(joins)} WHERE {draw(predicates)}{group}{having}", len(by)


@st.composite
def views(draw: st.DrawFn) -> str:
    """A view: a grouping, alone or under something."""
    block, by = draw(grouping())
    shape = draw(
        st.sampled_from(["plain", "nested", "joined", "top", "union", "table above", "twice", "set", "subquery"])
    )
    if shape == "nested":
        return f"SELECT count(*) AS n, count(DISTINCT a0) AS m, max(a0) AS o FROM ({block})"
    if shape == "joined" and by:
        other = "SELECT g, count(*) AS n, sum(x) AS t FROM r GROUP BY g"
        kind = draw(st.sampled_from(["JOIN", "LEFT JOIN", "FULL JOIN"]))
        return f"SELECT a.*, b.n, b.t FROM ({block}) a {kind} ({other}) b ON CAST(a.k0 AS STRING) = b.g"
    if shape == "top" and by:
        order = ", ".join([f"k{i}" for i in range(by)])
        return f"{block} ORDER BY {order} LIMIT {draw(st.integers(0, 3))}"
    if shape == "union":
        return f"SELECT a0 AS v FROM ({block}) UNION ALL SELECT max(x) FROM r"
    if shape == "table above" and by:
        return f"SELECT t.name, q.* FROM ({block}) q JOIN t ON length(t.name) >= 0 AND t.id > 0"
    if shape == "set":
        word = draw(st.sampled_from(["INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL"]))
        return f"SELECT CAST(a0 AS STRING) AS v FROM ({block}) {word} SELECT CAST(id AS STRING) FROM t"
    if shape == "subquery" and by:
        return f"SELECT * FROM ({block}) q WHERE EXISTS (SELECT 1 FROM r WHERE r.g = CAST(q.k0 AS STRING))"
    if shape == "twice" and by:
        return f"WITH q AS ({block}) SELECT a.a0, b.k0 FROM q a JOIN q b ON a.k0 = b.k0"
    return block


@st.composite
def cases(draw: st.DrawFn) -> tuple[Case, Schedule]:
    case = Case(draw(views()), {"s": (S, draw(s_rows)), "r": (R, draw(r_rows))}, {"t": (T, draw(t_rows))})
    cuts = tuple(draw(st.lists(st.integers(0, 25), max_size=4)))
    return case, Schedule(cuts, draw(st.integers(0, 3)), draw(st.one_of(st.none(), st.integers(0, 4))))


@pytest.mark.spark
@settings(max_examples=examples(10))
@given(drawn=cases())
def test_differential_random_native(drawn: tuple[Case, Schedule], spark: Any, tmp_path_factory: Any) -> None:
    case, schedule = drawn
    path: Path = tmp_path_factory.mktemp("db")
    path.rmdir()
    check(case, spark, [("native", schedule)], path=path, compact_rows=4)


@pytest.mark.spark
@settings(max_examples=examples(2))
@given(drawn=cases())
def test_differential_random_engines(drawn: tuple[Case, Schedule], spark: Any) -> None:
    case, schedule = drawn
    check(case, spark, [(engine, schedule) for engine in ("native", "tasks", "spark")])
