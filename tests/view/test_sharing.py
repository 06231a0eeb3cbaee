"""Views that group a stream alike share one grouping, and nobody can tell from the answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from conftest import examples
from headrace.catalog import Stream
from headrace.database import Database
from headrace.engine.worker import Worker
from headrace.errors import HeadraceError
from headrace.view.sharing import share

VIEWS = {
    "a": "SELECT k, count(*) AS c, sum(n) AS n FROM s GROUP BY k",
    "b": "SELECT k, sum(n) AS n, max(t) AS t FROM s WHERE n > 0 GROUP BY k",
    "c": "SELECT g, min(n) AS n, avg(n) AS a FROM (SELECT k AS g, n, t FROM s WHERE t <> 'x') WHERE n < 3 GROUP BY g",
    "d": "SELECT sum(n) AS n, count(t) AS c FROM s",
    "e": "SELECT sum(n) FILTER (WHERE t = 'x') AS n, count(*) AS c FROM s WHERE k = 1",
    "f": "SELECT k % 2 AS odd, sum(n) AS n FROM s GROUP BY k % 2",
    "g": "SELECT k, sum(10 / n) AS r FROM s WHERE n <> 0 GROUP BY k",
    "h": "SELECT k, count(DISTINCT t) AS d FROM s WHERE n > 0 GROUP BY k",
    "i": "SELECT t, count(*) AS c FROM s GROUP BY t",
}
ROW = st.tuples(
    st.none() | st.integers(0, 3), st.none() | st.integers(-3, 4), st.none() | st.sampled_from(["", "x", "y"])
)


def define(db: Database, *names: str) -> None:
    db.sql("CREATE STREAM s (k INT, n INT, t STRING)")
    for name in names:
        db.sql(f"CREATE VIEW {name} AS {VIEWS[name]}")


def answers(db: Database, *names: str) -> dict[str, Any]:
    return {n: sorted(db.sql(f"SELECT * FROM {n}").rows(), key=repr) for n in names}


def test_which_pipelines_share() -> None:
    with headrace.connect() as db:
        define(db, *VIEWS)
        pipelines = [p for v in VIEWS for p in db.continuous(v).pipelines["s"]]
        found = share(db.catalog.get("s", Stream), pipelines, "UTC")
        members = {frozenset(p.state.split()[1] for p in s.parts) for s in found}
        assert members == {frozenset("abcgh"), frozenset("de")}


@given(batches=st.lists(st.lists(ROW, max_size=8), min_size=1, max_size=3))
@settings(max_examples=examples(6))
def test_shared_answers_are_each_views_own(batches: list[list[Any]]) -> None:
    with headrace.connect() as together:
        define(together, *VIEWS)
        for batch in batches:
            together.insert("s", batch)
        found = answers(together, *VIEWS)
    with headrace.connect() as alone:
        alone.sql("CREATE STREAM s (k INT, n INT, t STRING)")
        alone.sql("CREATE TABLE t (k INT, n INT, t STRING)")
        for batch in batches:
            alone.insert("t", batch)
        for name, text in VIEWS.items():
            assert found[name] == sorted(alone.sql(text.replace("FROM s", "FROM t")).rows(), key=repr), name


def test_a_row_another_view_filters_out_does_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[str] = []
    run = Worker._run

    def watched(self: Worker, cursor: Any, pipeline: Any, batch_rows: Any = None) -> Any:
        alone.append(pipeline.state)
        return run(self, cursor, pipeline, batch_rows)

    monkeypatch.setattr(Worker, "_run", watched)
    with headrace.connect() as db:
        define(db, "a", "g")
        db.insert("s", [(1, 0, "x"), (1, 5, "x")])
        assert answers(db, "a", "g") == {"a": [(1, 2, 5)], "g": [(1, 2.0)]}
        assert not alone, "both states come from one grouping"
        db.sql("CREATE VIEW z AS SELECT k, sum(10 / n) AS r FROM s GROUP BY k")
        with pytest.raises(HeadraceError, match="DIVIDE_BY_ZERO"):
            db.insert("s", [(1, 0, "x")])
        assert answers(db, "a", "g", "z") == {"a": [(1, 2, 5)], "g": [(1, 2.0)], "z": []}
