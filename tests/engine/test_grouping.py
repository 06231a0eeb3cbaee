"""Small batches grouped by compiled loops: the same state rows as the native engine's own texts give."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.database import Database
from headrace.engine import grouping
from headrace.engine.grouping import AskedAggregate, Grouped, Member, RowsToGroup
from headrace.engine.pipelines import PipelinesRun
from headrace.errors import HeadraceError
from headrace.types import BIGINT, STRING
from profiles import examples

SCHEMA = pa.schema([("t", pa.string()), ("n", pa.int64())])
COLUMNS = "i INT, b BIGINT, t STRING, d DECIMAL(7, 2), o BOOLEAN, day DATE, x DOUBLE"
VIEWS = [
    "SELECT i, count(*), count(b), sum(b), min(b), max(i) FROM s GROUP BY i",
    "SELECT t, o, sum(i), sum(d), min(d), max(day), min(x) FROM s GROUP BY t, o",
    "SELECT sum(x), count(t), max(d), bool_and(o), bool_or(o) FROM s",
    "SELECT d, day, b, count(*) FROM s GROUP BY d, day, b",
    "SELECT i, sum(b), count(*) FROM s WHERE x > 0 GROUP BY i",
    "SELECT i, avg(d), max(x) FROM s WHERE o OR b + 1 > i GROUP BY i",
    "SELECT i % 3, count(*), sum(i) FROM s WHERE t <> 'x' GROUP BY i % 3",
    "SELECT t, var_pop(i), stddev(x), sum(b) FROM s GROUP BY t",
    "SELECT i, var_samp(d), stddev_pop(i) FROM s WHERE o GROUP BY i",
    "SELECT DISTINCT t FROM s",
    "SELECT t, count(*) FROM s WHERE false GROUP BY t",
    "SELECT t, count(*) FROM s WHERE true AND NULL GROUP BY t",
]
ROW = st.tuples(
    st.none() | st.integers(-3, 3),
    st.none() | st.integers(-5, 5) | st.just(2**62) | st.just(-(2**63)),
    st.none() | st.sampled_from(["", "x", "ü", "longer than twelve bytes"]),
    st.none() | st.sampled_from([Decimal("0.00"), Decimal("1.50"), Decimal("-99999.99")]),
    st.none() | st.booleans(),
    st.none() | st.sampled_from([dt.date(1969, 12, 31), dt.date(2024, 2, 29)]),
    st.none() | st.sampled_from([0.0, -1.5, 2.25, float("inf"), float("nan")]),
)


def states(batches: list[list[Any]], views: list[str], rows: int) -> list[Any]:
    """The stored state rows of the views, where batches of up to so many rows are grouped by loops."""
    with pytest.MonkeyPatch.context() as patch, headrace.connect(engine="native") as db:
        patch.setattr(grouping, "ROWS", rows)
        patch.setattr(grouping, "VARIANCE_ROWS", rows)
        names = define(db, views)
        found: list[Any] = []
        for batch in batches:
            try:
                db.insert("s", batch)
                found.append("inserted")
            except HeadraceError as error:
                found.append(error.condition)
        return [found, *(sorted(map(repr, db.sql(f"SELECT * FROM headrace.state('{v}')").rows())) for v in names)]


def define(db: Database, views: list[str]) -> list[str]:
    db.sql(f"CREATE STREAM s ({COLUMNS})")
    for i, text in enumerate(views):
        columns = text.removeprefix("SELECT ").removeprefix("DISTINCT ").split(" FROM ")[0].split(", ")
        named = ", ".join(f"c{n}" for n in range(len(columns)))
        db.sql(f"CREATE VIEW v{i} ({named}) AS {text}")
    return [f"v{i}" for i in range(len(views))]


@settings(max_examples=examples(12))
@given(
    st.lists(st.lists(ROW, min_size=1, max_size=12), min_size=1, max_size=2),
    st.lists(st.sampled_from(VIEWS), min_size=1, max_size=4, unique=True),
)
def test_loops_leave_the_state_rows_of_the_texts(batches: list[list[Any]], views: list[str]) -> None:
    assert states(batches, views, grouping.ROWS) == states(batches, views, 0)


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_by_itself_and_beside_another(view: str) -> None:
    row = (1, 2, "x", Decimal("1.00"), True, dt.date(2020, 1, 1), 1.0)
    for views in ([view], [view, VIEWS[0]]):
        assert states([[row, row]], views, grouping.ROWS) == states([[row, row]], views, 0)


def test_plain_groupings_take_no_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    by_text: list[str] = []
    run = PipelinesRun._run
    monkeypatch.setattr(
        PipelinesRun, "_run", lambda self, c, p, b=None: (by_text.append(p.state), run(self, c, p, b))[1]
    )
    by_loops: list[int] = []
    group = RowsToGroup.states
    monkeypatch.setattr(RowsToGroup, "states", lambda self, g: (by_loops.append(len(g.members)), group(self, g))[1])
    row = (1, 2, "x", Decimal("1.00"), True, dt.date(2020, 1, 1), 1.0)
    with headrace.connect(engine="native") as db:
        define(db, VIEWS[:1])
        db.insert("s", [row])
    assert (by_text, by_loops) == ([], [1])
    with headrace.connect(engine="native") as db:
        define(db, [VIEWS[0], VIEWS[4], VIEWS[5]])
        db.insert("s", [row])
    assert (by_text, by_loops) == ([], [1, 3]), "one numbering for three views by the same key"
    with headrace.connect(engine="native") as db:
        define(db, VIEWS[4:5])
        db.insert("s", [row])
    assert len(by_text) == 1 and by_loops == [1, 3], "a filter of its own is its text's work"


def test_a_sum_beyond_its_type_is_the_texts_error() -> None:
    big = Decimal(10**38 - 1)
    for rows in (grouping.ROWS, 0):
        with pytest.MonkeyPatch.context() as patch, headrace.connect(engine="native") as db:
            patch.setattr(grouping, "ROWS", rows)
            db.sql("CREATE STREAM s (k INT, d DECIMAL(38, 0), b BIGINT)")
            db.sql("CREATE VIEW v AS SELECT k, sum(b) AS b FROM s GROUP BY k")
            db.insert("s", [(1, None, 2**63 - 1), (1, None, 2**63 - 1), (1, None, -(2**63))])
            db.insert("s", [(1, None, -(2**62))])
            assert db.sql("SELECT b FROM v").rows() == [(2**63 - 2 - 2**62,)]
            db.sql("CREATE VIEW w AS SELECT k, sum(d) AS d FROM s GROUP BY k")
            with pytest.raises(HeadraceError) as caught:
                db.insert("s", [(1, big, 0), (1, big, 0)])
            assert caught.value.condition == "ARITHMETIC_OVERFLOW"
            assert db.sql("SELECT * FROM w").rows() == []


def test_a_column_may_have_any_name() -> None:
    with headrace.connect(engine="native") as db:
        db.sql("CREATE STREAM s (`_0` INT, `__1` INT)")
        db.sql("CREATE VIEW a AS SELECT `_0`, count(*) AS n FROM s WHERE `__1` > 0 GROUP BY `_0`")
        db.sql("CREATE VIEW b AS SELECT `__1`, count(*) AS n FROM s WHERE `_0` > 1 GROUP BY `__1`")
        db.insert("s", [(1, 5), (2, -1), (2, 5)])
        assert sorted(db.sql("SELECT * FROM a").rows()) == [(1, 1), (2, 1)]
        assert sorted(db.sql("SELECT * FROM b").rows()) == [(-1, 1), (5, 1)]


def test_text_may_come_as_views() -> None:
    grouped = Grouped(None, (("t", STRING),), (Member("v", None, (AskedAggregate("count", None, BIGINT),), SCHEMA),))
    rows = pa.table({"t": pa.array(["a", None, "longer than twelve bytes", "a"], pa.string_view())})
    found = RowsToGroup(rows).states(grouped)["v"]
    assert found.schema == SCHEMA
    assert sorted(found.to_pylist(), key=repr) == sorted(
        [{"t": "a", "n": 2}, {"t": None, "n": 1}, {"t": "longer than twelve bytes", "n": 1}], key=repr
    )
