"""Views that join and group a stream alike share one join and one grouping, and nobody can tell from the answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.catalog import Stream
from headrace.database import Database
from headrace.engine import grouping
from headrace.engine.pipelines import PipelinesRun
from headrace.errors import HeadraceError, InternalError
from headrace.view.sharing import share
from profiles import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
JOINS = {
    "a": "SELECT g, count(*) AS c, sum(n) AS n FROM s JOIN dim ON s.k = dim.k GROUP BY g",
    "b": "SELECT g, sum(n) AS n, max(t) AS t FROM dim JOIN s ON dim.k = s.k WHERE n > 0 GROUP BY g",
    "c": "SELECT g, avg(n) AS n FROM (SELECT k AS i, n FROM s WHERE t <> 'x') x, dim WHERE k = i AND n < 3 GROUP BY g",
    "d": "SELECT g, sum(10 / n) AS r FROM s JOIN dim ON s.k = dim.k WHERE n <> 0 GROUP BY g",
    "e": "SELECT g, count(*) AS c FROM s LEFT JOIN dim ON s.k = dim.k GROUP BY g",
    "f": "SELECT g, count(dim.k) AS c, sum(n) AS n FROM s LEFT JOIN dim ON s.k = dim.k WHERE t = 'x' GROUP BY g",
    "g": "SELECT t, count(*) AS c FROM s LEFT SEMI JOIN dim ON s.k = dim.k GROUP BY t",
    "h": "SELECT t, sum(n) AS n FROM s WHERE k IN (SELECT k FROM dim) AND n > 0 GROUP BY t",
    "i": "SELECT t, count(*) AS c FROM s LEFT ANTI JOIN dim ON s.k = dim.k WHERE n > 0 GROUP BY t",
    "j": "SELECT t, sum(n) AS n FROM s WHERE NOT EXISTS (SELECT 1 FROM dim WHERE dim.k = s.k) AND n < 3 GROUP BY t",
    "k": "SELECT g, count(*) AS c FROM s JOIN dim ON s.k = dim.k AND s.n < dim.w GROUP BY g",
    "l": "SELECT g, count(*) AS c FROM s JOIN alt ON s.k = alt.k GROUP BY g",
    "m": "SELECT g, count(*) AS c FROM s JOIN dim ON s.k = dim.k WHERE n = 0 OR 10 / n > 2 GROUP BY g",
    "n": "SELECT g, count(*) AS c FROM s JOIN dim ON s.k + 1 = dim.k GROUP BY g",
    "o": "SELECT x.g, y.g AS h, sum(n) AS n FROM s JOIN dim x ON s.k = x.k JOIN dim y ON s.n = y.k GROUP BY x.g, y.g",
    "p": "SELECT x.g, y.g AS h, count(*) AS c FROM s JOIN dim x ON s.k = x.k JOIN dim y ON s.n = y.k WHERE t = 'x' "
    "GROUP BY x.g, y.g",
    "q": "SELECT count(*) AS c, sum(n) AS n FROM s JOIN dim ON s.k = dim.k",
    "r": "SELECT count(*) AS c, max(t) AS t FROM s JOIN dim ON s.k = dim.k WHERE n > 0",
    "s_": "SELECT t, max(g) AS g, count(*) AS c FROM s JOIN dim ON s.k = dim.k GROUP BY t",
    "t_": "SELECT t, g, sum(10 / n) AS r FROM s JOIN dim ON s.k = dim.k WHERE n <> 0 GROUP BY t, g",
}
FROZEN = "WITH (tables = 'frozen')"
TABLES = {
    "dim": [(1, "a", 2), (1, "b", 3), (2, "a", 0), (None, "c", 1), (3, None, 5)],
    "alt": [(1, "a", 2), (3, "b", 0)],
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
        pipelines = [p for v in VIEWS for p in db.keeper.get(v).pipelines["s"]]
        found = share(db.catalog.get("s", Stream), pipelines, "UTC")
        members = {frozenset(db.keeper.owner(p.state).name for p in s.parts) for s in found}
        assert members == {frozenset("abcgh"), frozenset("de")}


@pytest.mark.parametrize("loops", [True, False])
@given(batches=st.lists(st.lists(ROW, max_size=8), min_size=1, max_size=3))
@settings(max_examples=examples(4))
def test_shared_answers_are_each_views_own(loops: bool, batches: list[list[Any]]) -> None:
    with pytest.MonkeyPatch.context() as patch, headrace.connect() as together:
        if not loops:
            patch.setattr(grouping, "ROWS", 0)
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
    run = PipelinesRun._run

    def watched(self: PipelinesRun, cursor: Any, pipeline: Any, batch_rows: Any = None) -> Any:
        alone.append(pipeline.state)
        return run(self, cursor, pipeline, batch_rows)

    monkeypatch.setattr(PipelinesRun, "_run", watched)
    with headrace.connect() as db:
        define(db, "a", "g")
        db.insert("s", [(1, 0, "x"), (1, 5, "x")])
        assert answers(db, "a", "g") == {"a": [(1, 2, 5)], "g": [(1, 2.0)]}
        assert not alone, "both states come from one grouping"
        db.sql("CREATE VIEW z AS SELECT k, sum(10 / n) AS r FROM s GROUP BY k")
        with pytest.raises(HeadraceError, match="DIVIDE_BY_ZERO"):
            db.insert("s", [(1, 0, "x")])
        assert answers(db, "a", "g", "z") == {"a": [(1, 2, 5)], "g": [(1, 2.0)], "z": []}


# Joins


def tables(db: Database) -> None:
    for table, rows in TABLES.items():
        db.sql(f"CREATE TABLE {table} (k INT, g STRING, w INT)")
        db.insert(table, rows)


def define_joins(db: Database, *names: str, frozen: bool = False) -> None:
    db.sql("CREATE STREAM s (k INT, n INT, t STRING)")
    tables(db)
    for name in names:
        db.sql(f"CREATE VIEW {name} {FROZEN if frozen else ''} AS {JOINS[name]}")


def recomputed(queries: dict[str, str], rows: Sequence[Any]) -> dict[str, Any]:
    """The queries over a table of the rows."""
    with headrace.connect() as db:
        db.sql("CREATE TABLE s (k INT, n INT, t STRING)")
        tables(db)
        db.insert("s", rows)
        return {name: sorted(db.sql(text).rows(), key=repr) for name, text in queries.items()}


def test_which_joins_are_shared() -> None:
    with headrace.connect() as db:
        define_joins(db, *JOINS)
        pipelines = [p for v in JOINS for p in db.keeper.get(v).pipelines["s"]]
        found = share(db.catalog.get("s", Stream), pipelines, "UTC")
        members = {
            "".join(db.keeper.owner(p.state).name for p in s.parts): (s.over or s.sql).count(" JOIN ") for s in found
        }
        assert members == {"abcd": 1, "s_": 1, "t_": 1, "ef": 1, "gh": 1, "ij": 1, "op": 2, "qr": 1}
        overs = [s.over for s in found if s.over is not None]
        assert len(overs) == 3 and len(set(overs)) == 1, "other keys, the same join"


@given(batches=st.lists(st.lists(ROW, max_size=8), min_size=1, max_size=3))
@settings(max_examples=examples(4))
def test_oracle_shared_joins_answer_as_each_alone(batches: list[list[Any]]) -> None:
    with headrace.connect() as db:
        define_joins(db, *JOINS)
        for batch in batches:
            db.insert("s", batch)
        assert answers(db, *JOINS) == recomputed(JOINS, [row for batch in batches for row in batch])


FILTERS = ["TRUE", "n > 0", "n < 3", "t = 'x'", "t <> 'x'", "n > 0 AND t = 'x'", "n IS NULL", "n <> 0 AND 10 / n > 2"]
RANDOM_VIEW = st.builds(
    lambda join, keep, key, agg: f"SELECT {key} AS key, {agg} AS v FROM s {join} WHERE {keep} GROUP BY {key}",
    st.sampled_from(
        [
            "",
            *(f"{kind} JOIN dim ON s.k = dim.k" for kind in ("INNER", "LEFT", "LEFT SEMI", "LEFT ANTI")),
            "LEFT JOIN dim ON s.k = dim.k AND s.n > 1",
            "JOIN dim ON s.k = dim.k LEFT ANTI JOIN alt ON s.n = alt.k",
        ]
    ),
    st.sampled_from(FILTERS),
    st.sampled_from(["s.t", "s.k", "s.n, s.t", "coalesce(s.t, '-')"]),
    st.sampled_from(["count(*)", "sum(n)", "max(t)", "count(DISTINCT n)", "sum(CASE WHEN n <> 0 THEN 6 / n END)"]),
)


@given(
    views=st.lists(RANDOM_VIEW, min_size=2, max_size=6),
    batches=st.lists(st.lists(ROW, min_size=1, max_size=8), min_size=2, max_size=3),
    data=st.data(),
)
@settings(max_examples=examples(5))
def test_oracle_random_joins_and_filters(views: list[str], batches: list[list[Any]], data: st.DataObject) -> None:
    """A view begun again or dropped on the way leaves those that share with it alone."""
    queries = {f"v{i}": text for i, text in enumerate(views)}
    with headrace.connect() as db:
        define_joins(db)
        for name, text in queries.items():
            db.sql(f"CREATE VIEW {name} AS {text}")
        db.insert("s", batches[0])
        again, gone = data.draw(st.permutations(list(queries)))[:2]
        db.sql(f"REFRESH VIEW {again} RESTART")
        db.sql(f"DROP VIEW {gone}")
        for batch in batches[1:]:
            db.insert("s", batch)
        rest = [row for batch in batches[1:] for row in batch]
        want = recomputed(queries, [*batches[0], *rest]) | recomputed({again: queries[again]}, rest)
        left = [name for name in queries if name != gone]
        assert answers(db, *left) == {name: want[name] for name in left}


def test_shared_joins_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    run, run_shared = PipelinesRun._run, PipelinesRun._run_shared

    def watched(self: PipelinesRun, cursor: Any, pipeline: Any, batch_rows: Any = None) -> Any:
        ran.append(pipeline.state)
        return run(self, cursor, pipeline, batch_rows)

    def watched_shared(self: PipelinesRun, cursor: Any, shared: Any, batch_rows: Any = None) -> Any:
        ran.append(f"shared by {len(shared.parts)}")
        return run_shared(self, cursor, shared, batch_rows)

    monkeypatch.setattr(PipelinesRun, "_run", watched)
    monkeypatch.setattr(PipelinesRun, "_run_shared", watched_shared)
    with headrace.connect() as db:
        define_joins(db, "a", "b", "c", "d")
        rows = [(1, 0, "x"), (1, 5, "x"), (2, 2, "y"), (9, 0, "y")]
        db.insert("s", rows)
        assert answers(db, *"abcd") == recomputed({n: JOINS[n] for n in "abcd"}, rows)
        assert ran == ["shared by 4"], "a row with n = 0 is not d's, so it fails nobody"
        db.sql("CREATE VIEW z AS SELECT g, sum(10 / n) AS r FROM s JOIN dim ON s.k = dim.k GROUP BY g")
        before = answers(db, *"abcd")
        with pytest.raises(HeadraceError, match="DIVIDE_BY_ZERO"):
            db.insert("s", [(1, 0, "x")])
        assert answers(db, *"abcd", "z") == {**before, "z": []}
        db.insert("s", [(9, 0, "x")])  # finds no partner, so z never divides by it
        assert answers(db, *"abcd", "z") == {**before, "z": []}


def test_rows_are_joined_once_for_groupings_by_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    real = {name: getattr(PipelinesRun, name) for name in ("_run", "_run_shared", "_join")}
    for name in real:

        def watched(self: PipelinesRun, *args: Any, name: str = name) -> Any:
            ran.append(name)
            return real[name](self, *args)

        monkeypatch.setattr(PipelinesRun, name, watched)
    with headrace.connect() as db:
        names = ("a", "d", "s_", "t_")
        define_joins(db, *names)
        rows = [(1, 0, "x"), (1, 5, "x"), (2, 2, "y"), (9, 0, "y"), (None, 1, None)]
        db.insert("s", rows)
        assert answers(db, *names) == recomputed({n: JOINS[n] for n in names}, rows)
        assert ran == ["_join", "_run_shared", "_run_shared", "_run_shared"]
        with db.runtime.worker.cursor() as cursor:
            assert cursor.execute("SELECT count(*) FROM duckdb_tables() WHERE temporary").fetchall() == [(0,)]


def builds(db: Database) -> int:
    """How many build sides are loaded; there are as many files."""
    return len(db.runtime.worker._statics)


def test_views_over_the_same_rows_share_one_build_side(tmp_path: Path) -> None:
    def files() -> int:
        db.runtime.store.commit(lambda tx: tx.unchanged())  # what the last one left to be deleted is gone by then
        return len(list((tmp_path / "db" / "segments").glob("static*")))

    with headrace.connect(tmp_path / "db") as db:
        define_joins(db, "a", "b", "e", frozen=True)
        assert files() == 1
        db.insert("s", [(1, 1, "x")])
        assert builds(db) == 1
        db.sql("DROP VIEW a")
        db.insert("s", [(1, 1, "x")])
        assert (files(), builds(db)) == (1, 1) and answers(db, "b") == {"b": [("a", 2, "x"), ("b", 2, "x")]}
        db.sql("REFRESH VIEW b RESTART")  # the same rows again
        db.insert("s", [(1, 1, "x")])
        assert (files(), builds(db)) == (1, 1) and answers(db, "b") == {"b": [("a", 1, "x"), ("b", 1, "x")]}
        db.insert("dim", [(9, "z", 0)])
        db.sql("REFRESH VIEW b RESTART")  # other rows
        db.insert("s", [(9, 1, "x")])
        assert (files(), builds(db)) == (2, 2)
        assert answers(db, "b", "e") == {"b": [("z", 1, "x")], "e": [("a", 3), ("b", 3), (None, 1)]}
        with pytest.raises(HeadraceError):
            db.sql("CREATE VIEW b AS SELECT g, count(*) AS c FROM s JOIN dim ON s.k = dim.k GROUP BY g")
        assert files() == 2
    with headrace.connect(tmp_path / "db") as db:
        db.sql(f"CREATE VIEW a WITH (tables = 'frozen') AS {JOINS['a']}")
        db.insert("s", [(9, 1, "x")])
        assert (files(), builds(db)) == (2, 2), "what was there at open is found again"
        assert answers(db, "a", "b") == {"a": [("z", 1, 1)], "b": [("z", 2, "x")]}
        for name, left in (("a", 2), ("b", 1), ("e", 0)):
            db.sql(f"DROP VIEW {name}")
            assert files() == builds(db) == left


def test_a_view_that_fails_to_be_made_leaves_shared_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with headrace.connect(tmp_path / "db") as db:
        define_joins(db, "a", frozen=True)
        with monkeypatch.context() as patch:
            patch.setattr("headrace.store.transaction.Transaction.put", lambda *_: 1 / 0)
            for name in ("b", "l"):  # over a's build side, and over one of its own
                for frozen in ("", FROZEN):
                    with pytest.raises(InternalError):
                        db.sql(f"CREATE VIEW {name} {frozen} AS {JOINS[name]}")
        assert builds(db) == 0
        db.insert("s", [(1, 1, "x")])
        assert answers(db, "a") == {"a": [("a", 1, 1), ("b", 1, 1)]}
        assert len(list((tmp_path / "db" / "segments").glob("static*"))) == 1


def test_shared_joins_in_views_over_views_and_with_retention() -> None:
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (k INT, at TIMESTAMP)")
        tables(db)
        hours = "SELECT date_trunc('hour', at) AS h, g, count(*) AS c FROM s JOIN dim ON s.k = dim.k GROUP BY 1, 2"
        db.sql(f"CREATE VIEW whole AS {hours}")
        db.sql(f"CREATE VIEW short WITH (retain = '2 hours') AS {hours}")
        db.sql(
            "CREATE VIEW over AS SELECT w.g, w.c, n FROM (SELECT g, sum(c) AS c FROM whole GROUP BY g) w "
            "CROSS JOIN (SELECT count(*) AS n FROM s)"
        )
        pipelines = [p for v in ("whole", "short", "over") for p in db.keeper.get(v).pipelines["s"]]
        assert [len(x.parts) for x in share(db.catalog.get("s", Stream), pipelines, "UTC")] == [2]
        for hour in range(5):
            db.sql(
                f"INSERT INTO s VALUES (2, TIMESTAMP '2026-01-01 0{hour}:30:00'), (9, TIMESTAMP '2026-01-01 00:00:00')"
            )
        assert db.sql("SELECT count(*) FROM whole").rows() == [(5,)]
        assert db.sql("SELECT min(hour(h)), sum(c) FROM short").rows() == [(3, 2)]
        assert db.sql("SELECT * FROM over").rows() == [("a", 5, 10)]


@pytest.mark.spark
def test_differential_build_sides_by_spark_sql_are_each_views_own(spark: SparkSession) -> None:
    with headrace.connect(spark=spark, engine="spark") as db:
        define_joins(db, "l", "a")
        rows = [(1, 1, "x"), (3, 2, "y")]
        db.insert("s", rows)
        assert answers(db, "l", "a") == recomputed({n: JOINS[n] for n in "la"}, rows)
