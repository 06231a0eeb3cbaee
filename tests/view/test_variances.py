"""Variances of values that are large and alike: exact to twelve digits whichever engine, cut and order of merging."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.catalog import Stream
from headrace.database import Database
from headrace.engine.pipelines import Pipelines
from headrace.engine.spark import frame_of_rows, run_plan
from headrace.engine.work import Work
from headrace.keep.resident import Resident
from headrace.plan.aggregates import moments_of
from headrace.plan.nodes import leaves
from headrace.types import BIGINT, DOUBLE, Field, arrow_schema
from headrace.view.sharing import group
from profiles import examples

BOUND = 1e-12
"""How far squared deviations may be from the exact ones, as a share of them."""
SCHEMA = (Field("g", BIGINT), Field("x", DOUBLE))
Rows = Sequence[tuple[int, float | None]]
NAN, INF = math.nan, math.inf


class Engines:
    """The ways a batch becomes state rows, and the ways those are merged."""

    def __init__(self, db: Database, view: str = "v") -> None:
        self._worker = db.runtime.worker
        self.view = db.keeper.get(view)
        (self.state,) = self.view.plan.states
        (self._pipeline,) = self.view.pipelines["s"]
        assert self._pipeline.native is not None
        self._native = self._pipeline.native
        stream = db.catalog.find("s")
        assert isinstance(stream, Stream)
        self._loops = group(stream, [self._pipeline], "UTC")
        assert self._loops, "the view is plain enough for compiled loops"

    def by_text(self, rows: Rows) -> pa.Table:
        return self._run(Pipelines((self._native,)), rows)

    def by_loops(self, rows: Rows) -> pa.Table:
        alone = replace(self._native, sql="no text is run", narrow=None)
        return self._run(Pipelines((alone,), grouped=self._loops), rows) if rows else self.by_text(rows)

    def _run(self, fragment: Pipelines, rows: Rows) -> pa.Table:
        return self._worker.reduce(Work((fragment,), (), (), None, "UTC"), [batch(rows)])[1][self._native.state]

    def by_spark(self, spark: Any, rows: Rows) -> pa.Table:
        frame = frame_of_rows(spark, batch(rows), SCHEMA)
        return run_plan(
            spark, self._pipeline.plan, {leaf.ref: frame for leaf in leaves(self._pipeline.plan)}, primitive=True
        )

    def merged(self, tables: Sequence[pa.Table]) -> pa.Table:
        """By the store's own SQL."""
        return self._native.merged(self._worker, tables)

    def folded(self, tables: Sequence[pa.Table]) -> pa.Table:
        """In memory."""
        resident = Resident(self.state)
        for epoch, table in enumerate(tables):
            resident.fold(table, epoch)
        return pa.concat_tables([resident.table()]).combine_chunks()

    def moments(self, table: pa.Table) -> dict[int, tuple[Any, ...]]:
        """The count, mean, squared deviations and rest of each group."""
        (found,) = moments_of(self.state.partials)
        names = [c.name for c in (self.state.keys[0], found.count, found.mean, found.m2, found.rest)]
        return {key: tuple(parts) for key, *parts in zip(*(table[n].to_pylist() for n in names), strict=True)}


def batch(rows: Rows) -> pa.Table:
    return pa.table([[g for g, _ in rows], [x for _, x in rows]], schema=arrow_schema(SCHEMA))


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (g BIGINT, x DOUBLE)")
        db.sql("CREATE VIEW v AS SELECT g, var_pop(x), stddev(x) FROM s GROUP BY g")
        yield Engines(db)


def check(found: dict[int, tuple[Any, ...]], rows: Rows) -> None:
    """The moments are those of the rows, to the bound."""
    assert set(found) == {g for g, _ in rows}
    for key, (count, mean, m2, rest) in found.items():
        exact = [Fraction(x) for g, x in rows if g == key and x is not None]
        assert count == len(exact)
        if not exact:
            assert (mean, m2) == (None, None)
            continue
        centre = sum(exact) / len(exact)
        squares = sum((x - centre) ** 2 for x in exact)
        assert abs(Fraction(m2) - squares) <= Fraction(BOUND) * squares, (float(squares), m2)
        off = abs(Fraction(mean) + Fraction(rest) - centre)
        assert off**2 * len(exact) <= Fraction(BOUND) ** 2 * squares or off <= Fraction(math.ulp(mean)) ** 2, (
            mean,
            rest,
        )


def chunks(rows: Rows, cuts: Sequence[int]) -> list[Rows]:
    marks = sorted({0, len(rows), *(c % (len(rows) + 1) for c in cuts)})
    return [rows[a:b] for a, b in itertools.pairwise(marks)] or [rows]


OFFSETS = [0.0, 1.0, 1e8, -1e8, 100000004 / 3, 1e12, -1e15, 2.0**52]
SMALL = st.integers(-50, 50).map(float) | st.floats(-3, 3, width=32) | st.floats(-1e3, 1e3)


@st.composite
def alike(draw: st.DrawFn) -> Rows:
    """Groups of values that have an offset each, some far beyond what they differ by, and NULLs."""
    offsets = draw(st.lists(st.sampled_from(OFFSETS), min_size=3, max_size=3))
    given_ = draw(st.lists(st.tuples(st.integers(0, 2), st.none() | SMALL), min_size=1, max_size=40))
    return [(g, None if v is None else offsets[g] + v) for g, v in given_]


@settings(max_examples=examples(100))
@given(alike(), st.lists(st.integers(0, 40), max_size=12), st.randoms(use_true_random=False))
def test_oracle_any_chunking_merge_order_and_engine(
    engines: Engines, rows: Rows, cuts: list[int], dice: random.Random
) -> None:
    ways: list[Callable[[Rows], pa.Table]] = [engines.by_text, engines.by_loops]
    states = [dice.choice(ways)(part) for part in chunks(rows, cuts)]
    dice.shuffle(states)
    while len(states) > 1:
        taken = [states.pop(dice.randrange(len(states))) for _ in range(dice.randint(2, len(states)))]
        states.append(dice.choice([engines.merged, engines.folded])(taken))
    check(engines.moments(states[0]), rows)


GROUPS: list[list[float | None]] = [
    [100000003.0, 100000004.0, 100000006.0, 100000007.0],
    [1e15 + v for v in (0, 1, 1, 0, 2, 7, 3)],
    [2.0**53, 2.0**53 + 2, 2.0**53 + 4],
    [1e16, 1e16 + 2],
    [1e8 + v / 3 for v in range(30)],
    [1e8] * 7,
    [0.1] * 3,
    [None, None],
    [5.0],
    [None, -1e8, None],
    [1e-300, 3e-300, 2.0],
    [1e15, 1.0, 2.0, 3.0],
    [-1e100, 1e100, 1.0],
    [v * 1e-3 for v in range(100)],
    [1e308, 1e308],
]
NASTY: Rows = [(g, v) for at in range(100) for g, values in enumerate(GROUPS) for v in values[at : at + 1]]
CUTS = [[], [3], list(range(0, len(NASTY), 7)), list(range(len(NASTY)))]


@pytest.mark.parametrize("cuts", CUTS, ids=["whole", "two", "sevens", "single rows"])
@pytest.mark.parametrize("way", ["text", "loops"])
@pytest.mark.parametrize("merging", ["merged", "folded"])
def test_oracle_nasty_values(engines: Engines, cuts: list[int], way: str, merging: str) -> None:
    run = engines.by_text if way == "text" else engines.by_loops
    states = [run(part) for part in chunks(NASTY, cuts)]
    check(engines.moments(getattr(engines, merging)(states)), NASTY)


def test_states_merged_again_and_again_stay_exact(engines: Engines) -> None:
    rows = [(0, 1e12 + (i * 7 % 11) / 3) for i in range(100)]
    for merge in (engines.merged, engines.folded):
        state = engines.by_loops(rows[:1])
        for row in rows[1:]:
            state = merge([state, engines.by_loops([row])])
        check(engines.moments(state), rows)


ODD: list[list[float | None]] = [
    [NAN], [INF], [-INF], [1.0, INF], [-INF, 1.0, 2.0], [INF, -INF], [NAN, 1.0, None], [1.0, NAN, INF]
]  # fmt: skip


@pytest.mark.parametrize("values", ODD, ids=str)
def test_what_is_not_finite_has_no_deviation(engines: Engines, values: list[float | None]) -> None:
    """NaN, as Spark's own update gives it, however the rows are cut."""
    rows = [(0, v) for v in values]
    for run in (engines.by_text, engines.by_loops):
        for merge in (engines.merged, engines.folded):
            for parts in ([rows], [rows[:1], rows[1:]], [[r] for r in rows], [rows, [(0, 5.0)]]):
                ((_, _, m2, _),) = engines.moments(merge([run(p) for p in parts if p])).values()
                assert math.isnan(m2)


@pytest.mark.spark
def test_oracle_spark_leaves_the_same_states(engines: Engines, spark: Any) -> None:
    """Spark SQL's state rows, alone and merged with the others'; what is not finite is as in Spark's own answer."""
    half = len(NASTY) // 2
    check(engines.moments(engines.by_spark(spark, NASTY)), NASTY)
    first, second = engines.by_spark(spark, NASTY[:half]), engines.by_spark(spark, NASTY[half:])
    for states in ([first, second], [first, engines.by_loops(NASTY[half:])], [engines.by_text(NASTY[:half]), second]):
        check(engines.moments(engines.merged(states)), NASTY)
        check(engines.moments(engines.folded(states)), NASTY)
    odd = [(g, v) for g, values in enumerate(ODD) for v in values]
    frame_of_rows(spark, batch(odd), SCHEMA).createOrReplaceTempView("odd_values")
    theirs = {r.g: r.m for r in spark.sql("SELECT g, var_pop(x) AS m FROM odd_values GROUP BY g").collect()}
    for found in (engines.by_spark(spark, odd), engines.by_text(odd), engines.by_loops(odd)):
        assert [math.isnan(theirs[g]) for g in range(len(ODD))] == [
            math.isnan(engines.moments(found)[g][2]) for g in range(len(ODD))
        ]


KINDS = ["BIGINT", "INT", "DECIMAL(20,2)", "DOUBLE", "DECIMAL(38,0)"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [4, 3, 1], ids=["whole", "three and one", "one by one"])
def test_answers_are_exact(kind: str, rows: int) -> None:
    """The example, of every kind of number, in a view, a filtered one, a view of all, and a query."""
    values = [(1, 100000003), (1, 100000004), (1, 100000006), (1, 100000007)]
    small = [(2, 1), (2, 2), (2, 4), (2, 5)]
    with headrace.connect() as db:
        db.sql(f"CREATE STREAM s (g INT, x {kind})")
        db.sql(f"CREATE TABLE t (g INT, x {kind})")
        db.sql("CREATE VIEW v AS SELECT g, var_pop(x), var_samp(x), stddev_pop(x) FROM s GROUP BY g")
        db.sql("CREATE VIEW w AS SELECT var_pop(x) FILTER (WHERE g = 1), var_pop(x) FILTER (WHERE g = 2) FROM s")
        for at in range(0, 4, rows):
            db.insert("s", values[at : at + rows] + small[at : at + rows])
        db.insert("t", small + values)
        wanted = [(g, 2.5, 10 / 3, math.sqrt(2.5)) for g in (1, 2)]
        query = "SELECT g, var_pop(x), var_samp(x), stddev_pop(x) FROM t GROUP BY g ORDER BY g"
        for found in (db.sql("SELECT * FROM v ORDER BY g").rows(), db.sql(query).rows()):
            assert [pytest.approx(row, rel=BOUND) for row in found] == wanted
        assert db.sql("SELECT * FROM w").rows() == [pytest.approx((2.5, 2.5), rel=BOUND)]


def test_states_of_an_earlier_headrace_go_on(tmp_path: Path) -> None:
    """They had no rest of a mean: its columns are added, after those that were there, as zero."""
    rows = [(k, None if k == 3 else 1e8 + k + i) for k in (1, 2, 3) for i in (3, 4, 6, 7)]
    with headrace.connect(tmp_path / "db") as db:
        db.sql("CREATE STREAM s (g BIGINT, x DOUBLE)")
        db.sql("CREATE VIEW v AS SELECT g, var_pop(x) AS p, sum(x) AS t, count(*) AS n FROM s GROUP BY g")
        db.insert("s", rows)
        before = db.sql("SELECT * FROM v ORDER BY g").rows()
        view = db.keeper.get("v")
        (state,) = view.plan.states
        relation, kept = view.by_name[state.name].ref, [c.name for c, a in state.partials if a.fn != "rest"]
        assert kept == [f"a{i}" for i in range(len(kept))] and len(kept) < len(state.partials)

        def as_it_was(tx: Any) -> None:
            old = tx.scan(relation).select([*(k.name for k in state.keys), *kept])
            tx.drop_relation(relation)
            tx.create_relation(relation, old.schema)
            tx.append(relation, old)

        db.runtime.store.commit(as_it_was)
    for _ in range(2):
        with headrace.connect(tmp_path / "db") as db:
            assert db.sql("SELECT * FROM v ORDER BY g").rows() == before
    with headrace.connect(tmp_path / "db") as db:
        db.insert("s", rows)
        assert db.sql("SELECT p FROM v WHERE g < 3").rows() == [(2.5,), (2.5,)]
