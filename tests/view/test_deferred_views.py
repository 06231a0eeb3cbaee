"""Materialized views that take changes in later: whatever is done, whenever they are read, they are of one epoch."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace import Database
from headrace.errors import HeadraceError
from headrace.keep import deferral, standing
from headrace.keep.costs import Costs
from headrace.keep.deferral import Deferral
from headrace.table import history
from profiles import examples
from view.test_materialized import STATEMENT, VIEWS, bag, define, run

CHOICES = {
    "IN": "strategy = 'IN'",
    "IN FULL": "strategy = 'IN'",
    "IMB": "strategy = 'IMB', batch_rows = 1000000",
    "IMB FULL": "strategy = 'IMB', batch_rows = 1000000",
    "SN": "strategy = 'SN'",
}


def policy(choice: str) -> str:
    return "REFRESH POLICY FULL " if "FULL" in choice else "REFRESH POLICY AUTO "


def text(name: str, choice: str, query: str, columns: int) -> str:
    names = ", ".join(f"c{i}" for i in range(columns))
    return f"CREATE MATERIALIZED VIEW {name} ({names}) {policy(choice)}WITH ({CHOICES[choice]}) AS {query}"


STEPS = st.lists(
    st.one_of(
        STATEMENT,
        STATEMENT,
        st.lists(STATEMENT, min_size=2, max_size=3),
        st.sampled_from(["reopen", "read", "read", "refresh"]),
        st.sampled_from(sorted(CHOICES)).map(lambda choice: ("alter", choice)),
    ),
    min_size=2,
    max_size=9,
)


class Kept:
    """One view, what it was told to be, and what it was when it was last brought up to date."""

    def __init__(self, name: str, query: str, choice: str) -> None:
        self.name, self.query, self.choice = name, query, choice
        self.seen: Any = None

    def check(self, db: Database, said: object, *, refreshed: bool = False) -> None:
        now = bag(db.sql(self.query).rows())
        if refreshed or self.choice != "SN":
            self.seen = now
        assert bag(db.sql(f"SELECT * FROM {self.name}").rows()) == self.seen, (self.query, self.choice, said)


@pytest.mark.parametrize("kind", [kind for kind in VIEWS if kind != "views"])
def test_oracle_views_are_what_their_strategy_says(kind: str) -> None:
    @settings(max_examples=examples(5))
    @given(st.data(), STEPS)
    def hold(data: st.DataObject, steps: list[Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "db"
            db = headrace.connect(place, engine="native", durability="none")
            try:
                define(db, [])
                views = []
                for number, query in enumerate(
                    data.draw(st.lists(st.sampled_from(VIEWS[kind]), max_size=3, min_size=1))
                ):
                    one = Kept(f"v{number}", query, data.draw(st.sampled_from(sorted(CHOICES))))
                    db.sql(text(one.name, one.choice, query, len(db.sql(query).columns)))
                    one.check(db, "at first", refreshed=True)
                    views.append(one)
                for step in steps:
                    said = (step, steps)
                    if step == "reopen":
                        db.close()
                        db = headrace.connect(place, engine="native", durability="none")
                    elif step == "read":
                        for one in views:
                            one.check(db, said)
                    elif step == "refresh":
                        for one in views:
                            db.sql(f"REFRESH MATERIALIZED VIEW {one.name}")
                            one.check(db, said, refreshed=True)
                    elif isinstance(step, tuple):
                        one = views[0]
                        moves = one.choice.split()[0] != step[1].split()[0]
                        one.choice = step[1]
                        db.sql(f"ALTER MATERIALIZED VIEW v0 {policy(step[1])}SET ({CHOICES[step[1]]})")
                        one.check(db, said, refreshed=moves)
                    elif isinstance(step, list):
                        try:
                            with db.batch():
                                for statement in step:
                                    db.sql(statement)
                                    for one in views:
                                        found = bag(db.sql(f"SELECT * FROM {one.name}").rows())
                                        assert found == bag(db.sql(one.query).rows()), (one.query, one.choice, said)
                        except HeadraceError as error:
                            assert error.condition in ("PRIMARY_KEY_VIOLATION", "NOT_IN_BATCH"), error
                    else:
                        run(db, step)
                for one in views:
                    one.check(db, steps)
                    db.sql(f"REFRESH MATERIALIZED VIEW {one.name}")
                    one.check(db, steps, refreshed=True)
                    db.sql(f"DROP MATERIALIZED VIEW {one.name}")
                assert not any(history.is_kept(table) for table in db.catalog.of_kind(headrace.catalog.Table))
            finally:
                db.close()

    hold()


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect(None, engine="native") as db:
        db.sql("CREATE TABLE t (id INT PRIMARY KEY, g STRING, v INT)")
        db.sql("INSERT INTO t VALUES (1, 'x', 2), (2, 'y', 3)")
        yield db


class Clock:
    """What time it is, as the test says."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.now = 1_800_000_000_000_000
        for module in (deferral, standing):
            patched.setattr(module, "microseconds", lambda: self.now)

    def pass_by(self, seconds: float) -> None:
        self.now += round(seconds * 1e6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody refreshes but who is asked to."""
    monkeypatch.setattr(deferral, "_tend", lambda *_: None)


def view(db: Database, name: str, with_: str, query: str = "SELECT g, sum(v) AS s FROM t GROUP BY g") -> None:
    db.sql(f"CREATE MATERIALIZED VIEW {name} {with_} AS {query}")


def rows(db: Database, query: str) -> list[tuple[Any, ...]]:
    return sorted(db.sql(query).rows())


def of(db: Database) -> Deferral:
    return db._deferral


@pytest.mark.usefixtures("still")
def test_views_of_different_strategies_agree_in_one_query(db: Database) -> None:
    view(db, "a", "")
    view(db, "b", "WITH (strategy = 'IMB')")
    view(db, "c", "WITH (strategy = 'SN')")
    db.sql("INSERT INTO t VALUES (3, 'x', 5)")
    assert rows(db, "SELECT * FROM c") == [("x", 2), ("y", 3)]
    assert rows(db, "SELECT * FROM b") == [("x", 7), ("y", 3)]
    both = "SELECT a.g, a.s, b.s, c.s FROM a JOIN b USING (g) JOIN c USING (g)"
    assert rows(db, both) == [("x", 7, 7, 7), ("y", 3, 3, 3)]
    db.sql("DELETE FROM t WHERE id = 2")
    assert rows(db, "SELECT c.g, c.s, (SELECT count(*) FROM t) FROM c") == [("x", 7, 2)]


@pytest.mark.usefixtures("still")
def test_two_that_may_be_stale_are_read_in_their_newest_common_epoch(db: Database) -> None:
    db.sql("CREATE TABLE u (v INT)")
    view(db, "c", "WITH (strategy = 'SN')")
    view(db, "d", "WITH (strategy = 'SN')", "SELECT count(*) AS n, sum(v) AS s FROM u")
    db.sql("INSERT INTO u VALUES (1)")
    db.sql("REFRESH MATERIALIZED VIEW d")
    db.sql("INSERT INTO t VALUES (3, 'x', 5)")
    # Up to the last change of t, c is what it was: both are of the epoch that d was refreshed at.
    assert rows(db, "SELECT c.s, d.n FROM c, d") == [(2, 1), (3, 1)]
    db.sql("INSERT INTO u VALUES (2)")
    db.sql("REFRESH MATERIALIZED VIEW d")
    # Now there is no such epoch: d is of one that is later than the change c has not seen.
    assert rows(db, "SELECT c.s, d.n FROM c, d") == [(3, 2), (7, 2)]


@pytest.mark.usefixtures("still")
def test_views_on_views_follow_in_their_own_way(db: Database) -> None:
    view(db, "c", "WITH (strategy = 'SN')")
    view(db, "b", "WITH (strategy = 'IMB')", "SELECT count(*) AS n, sum(s) AS s FROM c")
    view(db, "a", "", "SELECT max(s) AS s FROM b JOIN c USING (s)")
    db.sql("INSERT INTO t VALUES (3, 'z', 5)")
    db.sql("DELETE FROM t WHERE id < 3")
    assert rows(db, "SELECT * FROM c") == [("x", 2), ("y", 3)]
    assert rows(db, "SELECT * FROM b") == [(1, 5)]
    assert rows(db, "SELECT * FROM a") == [(5,)]
    assert rows(db, "SELECT a.s, b.s, c.s FROM a, b, c") == [(5, 5, 5)]


def test_a_stale_answer_is_no_older_than_it_may_be(db: Database, clock: Clock, still: None) -> None:
    view(db, "b", "WITH (strategy = 'IMB', staleness = '1 second')")
    clock.pass_by(0.5)
    db.sql("INSERT INTO t VALUES (3, 'x', 5)")
    assert rows(db, "SELECT * FROM b") == [("x", 2), ("y", 3)]
    assert "tables have changed since" in str(db.sql("DESCRIBE b"))
    clock.pass_by(0.6)
    assert rows(db, "SELECT * FROM b") == [("x", 7), ("y", 3)]
    assert rows(db, "SELECT * FROM b WHERE g = 'x'") == [("x", 7)]


def test_views_are_refreshed_when_they_are_due(db: Database, clock: Clock, still: None) -> None:
    view(db, "c", "SCHEDULE EVERY 10 MINUTES WITH (strategy = 'SN')")
    view(db, "b", "WITH (strategy = 'IMB', batch_rows = 3, staleness = '1 day')")
    db.sql("INSERT INTO t VALUES (3, 'x', 5), (4, 'x', 1)")
    of(db).turn()
    assert rows(db, "SELECT * FROM c") == rows(db, "SELECT * FROM b") == [("x", 2), ("y", 3)]
    db.sql("DELETE FROM t WHERE id = 2")
    of(db).turn()
    assert rows(db, "SELECT * FROM b") == [("x", 8)]
    clock.pass_by(601)
    of(db).turn()
    assert rows(db, "SELECT * FROM c") == [("x", 8)]
    done = [(r.view, r.trigger, r.how) for r in db.keeper.refreshes()]
    assert done == [("b", "batch_rows", "incremental"), ("c", "period", "full")]
    of(db).turn()
    assert len(db.keeper.refreshes()) == 2


def test_the_thread_refreshes_what_is_due_and_ends_with_the_database(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("CREATE TABLE t (id INT, g STRING, v INT)")
        view(db, "b", "WITH (strategy = 'IMB', batch_rows = 1, staleness = '1 day')")
        db.sql("INSERT INTO t VALUES (3, 'x', 5)")
        assert db.keeper.refreshes.wait_for(lambda r: r.view == "b" and r.trigger == "batch_rows", 600)
        assert rows(db, "SELECT * FROM b") == [("x", 5)]
        thread = of(db)._thread
        assert thread is not None
    thread.join(600)
    assert not thread.is_alive()
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("INSERT INTO t VALUES (4, 'x', 5)")
        assert db.keeper.refreshes.wait_for(lambda r: r.view == "b", 600)


def test_what_is_not_taken_in_is_kept_and_nothing_else(tmp_path: Path, still: None) -> None:
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("CREATE TABLE t (id INT, g STRING, v INT)")
        view(db, "b", "WITH (strategy = 'IMB')")
        view(db, "e", "WITH (strategy = 'IMB')", "SELECT max(v) AS m FROM t")
        for i in range(5):
            db.sql(f"INSERT INTO t VALUES ({i}, 'x', {i})")
        with pytest.raises(HeadraceError, match="keeps no changes"):
            db.sql("SELECT * FROM t VERSION AS OF 1")
        assert rows(db, "SELECT * FROM b") == [("x", 10)]
        assert _kept_rows(db) == 5
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("DELETE FROM t WHERE v = 4")
        assert rows(db, "SELECT * FROM e") == [(3,)]
        assert _kept_rows(db) == 1
        db.sql("ALTER TABLE t SET (keep_changes = '1 hour')")
        assert rows(db, "SELECT * FROM b") == [("x", 6)]
        db.sql("ALTER TABLE t UNSET (keep_changes)")
        db.sql("INSERT INTO t VALUES (9, 'y', 9)")
        assert rows(db, "SELECT * FROM b") == [("x", 6), ("y", 9)]
        db.sql("DROP TABLE t CASCADE")


def _kept_rows(db: Database) -> int:
    table = db.catalog.get("t")
    with db.runtime.store.read() as snapshot:
        return sum(snapshot.rows(table.owns[role]) for role in ("came", "went"))


def test_writers_go_on_while_views_are_read(db: Database) -> None:
    view(db, "b", "WITH (strategy = 'IMB')", "SELECT count(*) AS n, sum(v) AS s FROM t")
    view(db, "a", "", "SELECT count(*) AS n, sum(v) AS s FROM t")
    failures: list[BaseException] = []

    def write(first: int) -> None:
        try:
            for i in range(first, first + 25):
                db.sql(f"INSERT INTO t VALUES ({i}, 'z', 1)")
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(1000 * n,)) for n in (1, 2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        (found,) = db.sql("SELECT a.n, b.n, a.s, b.s, (SELECT count(*) FROM t) FROM a, b").rows()
        assert found[0] == found[1] == found[4]
        assert found[2] == found[3]
    assert not failures
    assert rows(db, "SELECT n FROM b") == [(52,)]


def test_a_view_that_fails_is_marked_and_recovers(db: Database) -> None:
    query = "SELECT g, sum(10 div v) AS s FROM t GROUP BY g"
    view(db, "a", "WITH (on_error = 'mark')", query)
    db.sql("INSERT INTO t VALUES (3, 'x', 0)")
    db.sql("INSERT INTO t VALUES (4, 'x', 1)")
    with pytest.raises(HeadraceError, match=r"(?s)a could not be computed.*DIVIDE_BY_ZERO") as error:
        db.sql("SELECT * FROM a")
    assert error.value.condition == "MATERIALIZED_VIEW_FAILED"
    with pytest.raises(HeadraceError, match="MATERIALIZED_VIEW_FAILED"):
        db.sql("SELECT * FROM a WHERE g = 'x'")
    assert "DIVIDE_BY_ZERO" in str(db.sql("DESCRIBE a"))
    assert any("DIVIDE_BY_ZERO" in (r[-1] or "") for r in db.sql("SHOW REFRESHES").rows())
    db.sql("DELETE FROM t WHERE id = 3")
    assert rows(db, "SELECT * FROM a") == rows(db, query)
    db.sql("UPDATE t SET v = v + 1")
    assert rows(db, "SELECT * FROM a") == rows(db, query)


@pytest.mark.parametrize("on_error", ["mark", "fail"])
def test_a_deferred_view_that_fails_keeps_its_last_good_state(db: Database, on_error: str, still: None) -> None:
    query = "SELECT g, sum(10 div v) AS s FROM t GROUP BY g"
    view(db, "b", f"WITH (strategy = 'IMB', on_error = '{on_error}')", query)
    db.sql("INSERT INTO t VALUES (3, 'x', 0)")
    for _ in range(2):
        with pytest.raises(HeadraceError, match=r"\bb\b"):
            db.sql("SELECT * FROM b")
    of(db).turn()
    db.sql("UPDATE t SET v = 5 WHERE id = 3")
    assert rows(db, "SELECT * FROM b") == rows(db, query)


def test_rows_by_key_are_of_one_epoch_too(db: Database, clock: Clock, still: None) -> None:
    view(db, "b", "WITH (strategy = 'IMB', staleness = '1 second')")
    view(db, "c", "WITH (strategy = 'SN')")
    assert db.get("b", "x") == db.get("c", "x") == {"g": "x", "s": 2}
    clock.pass_by(2)
    db.sql("INSERT INTO t VALUES (3, 'x', 5)")
    assert db.get_many("b", ["x", "z"]) == [{"g": "x", "s": 7}, None]
    assert db.get("c", "x") == {"g": "x", "s": 2}
    with db.batch():
        db.sql("INSERT INTO t VALUES (4, 'z', 5)")
        assert db.get("b", "z") == {"g": "z", "s": 5}
    assert db.get("b", "z") is None  # as it was less than a second ago
    clock.pass_by(2)
    assert db.get("b", "z") == {"g": "z", "s": 5}


def test_a_view_that_keeps_what_it_was_is_computed_anew_without_a_gap(db: Database) -> None:
    query = "SELECT g, sum(10 div v) AS s FROM t GROUP BY g"
    view(db, "a", "WITH (on_error = 'mark', keep_changes = '1 day')", query)
    changes = db.changes("a")
    held = [changes.read()]
    db.sql("INSERT INTO t VALUES (3, 'x', 0)")
    db.sql("INSERT INTO t VALUES (4, 'y', 1)")
    db.sql("DELETE FROM t WHERE id = 3")
    held.append(changes.read())
    db.sql("REFRESH MATERIALIZED VIEW a FULL")
    assert not changes.read().num_rows
    assert sorted((r["g"], r["s"], r["_weight"]) for r in held[1].to_pylist()) == [("y", 3, -1), ("y", 13, 1)]
    with pytest.raises(HeadraceError, match="VIEW_OPTIONS_CONFLICT"):
        db.sql("ALTER MATERIALIZED VIEW a SET (strategy = 'IMB')")


REFUSED = [
    ("WITH (strategy = 'IMB', keep_changes = '1 day')", "VIEW_OPTIONS_CONFLICT"),
    ("WITH (strategy = 'SC')", "STRATEGY_NEEDS_EXTERNAL_BASE"),
    ("WITH (strategy = 'SCIMB')", "STRATEGY_NEEDS_EXTERNAL_BASE"),
    ("WITH (strategy = 'IMBB')", "INVALID_STRATEGY"),
    ("WITH (strategy = 'IMB', batch_rows = 0)", "INVALID_BATCH_ROWS"),
    ("WITH (strategy = 'IMB', batch_rows = 'many')", "INVALID_BATCH_ROWS"),
    ("WITH (strategy = 'IMB', period = '1 month')", "INVALID_PERIOD"),
    ("WITH (strategy = 'IMB', staleness = 5)", "INVALID_STALENESS"),
    ("WITH (on_error = 'ignore')", "INVALID_ON_ERROR"),
    ("WITH (strategy = 'IMB', strategy = 'SN')", "VIEW_REPEATED_OPTION"),
    ("WITH (freshness = '1 second')", "VIEW_OPTION_UNKNOWN"),
    ("WITH (batch_rows = 5)", "VIEW_OPTIONS_CONFLICT"),
    ("WITH (staleness = '1 second')", "VIEW_OPTIONS_CONFLICT"),
    ("WITH (strategy = 'IN', period = '1 second')", "VIEW_OPTIONS_CONFLICT"),
    ("SCHEDULE EVERY 10 MINUTES WITH (strategy = 'IN')", "VIEW_OPTIONS_CONFLICT"),
    ("SCHEDULE EVERY 10 MINUTES WITH (period = '1 second')", "VIEW_OPTIONS_CONFLICT"),
    ("WITH (strategy = 'SN', batch_rows = 5)", "VIEW_OPTIONS_CONFLICT"),
    ("WITH (strategy = 'SN', staleness = '1 second')", "VIEW_OPTIONS_CONFLICT"),
    ("REFRESH POLICY INCREMENTAL WITH (strategy = 'SN')", "VIEW_OPTIONS_CONFLICT"),
    ("REFRESH POLICY SOMETIMES", "PARSE_SYNTAX_ERROR"),
    ("SCHEDULE EVERY 2 MONTHS", "INVALID_SCHEDULE"),
    ("SCHEDULE CRON '0 0 * * *'", "NOT_YET_SUPPORTED"),
    ("TRIGGER ON UPDATE", "NOT_YET_SUPPORTED"),
    ("REFRESH POLICY FULL REFRESH POLICY AUTO", "PARSE_SYNTAX_ERROR"),
]


@pytest.mark.parametrize(("said", "condition"), REFUSED)
def test_what_does_not_go_together_is_refused_by_name(db: Database, said: str, condition: str) -> None:
    with pytest.raises(HeadraceError) as error:
        view(db, "b", said)
    assert error.value.condition == condition, error.value
    assert error.value.position is not None
    assert db.catalog.find("b") is None


def test_a_policy_is_kept_or_refused_with_reasons(db: Database) -> None:
    db.sql("CREATE TABLE u (id INT PRIMARY KEY, w INT)")
    joined = "SELECT t.g, sum(u.w) AS s FROM t JOIN u ON t.id = u.id GROUP BY t.g"
    view(db, "a", "REFRESH POLICY INCREMENTAL STRICT", joined)
    view(db, "b", "REFRESH POLICY INCREMENTAL STRICT", "SELECT id, v FROM t ORDER BY v, id LIMIT 3")
    with pytest.raises(HeadraceError, match="NOT_DETERMINISTIC_ORDER"):
        view(db, "c", "REFRESH POLICY INCREMENTAL STRICT", "SELECT id, v FROM t ORDER BY v LIMIT 3")
    most = "SELECT t.g, count(*) AS n FROM t WHERE t.v < (SELECT sum(w) FROM u) GROUP BY t.g"
    with pytest.raises(HeadraceError, match="each change of u: NON_EQUI_JOIN") as error:
        view(db, "c", "REFRESH POLICY INCREMENTAL STRICT", most)
    assert error.value.condition == "MATERIALIZED_VIEW_NOT_INCREMENTAL"
    view(db, "c", "REFRESH POLICY INCREMENTAL", most)
    theta = "SELECT t.g, u.w FROM t JOIN u ON t.v < u.w"
    with pytest.raises(HeadraceError, match="MATERIALIZED_VIEW_NOT_INCREMENTAL"):
        view(db, "d", "REFRESH POLICY INCREMENTAL", theta)
    view(db, "d", "REFRESH POLICY AUTO", theta)
    with pytest.raises(HeadraceError, match="MATERIALIZED_VIEW_NOT_INCREMENTAL"):
        db.sql("ALTER MATERIALIZED VIEW d SET REFRESH POLICY INCREMENTAL")


@pytest.mark.parametrize(
    ("statement", "condition"),
    [
        ("ALTER MATERIALIZED VIEW b SET (strategy = 'ISC')", "STRATEGY_NEEDS_EXTERNAL_BASE"),
        ("ALTER MATERIALIZED VIEW b UNSET (strategy)", "VIEW_OPTION_UNKNOWN"),
        ("ALTER MATERIALIZED VIEW b SET (retain = '1 day')", "VIEW_OPTION_UNKNOWN"),
        ("ALTER MATERIALIZED VIEW s SET (strategy = 'SN')", "WRONG_COMMAND_FOR_OBJECT_TYPE"),
        ("REFRESH MATERIALIZED VIEW b ASYNC", "NOT_YET_SUPPORTED"),
        ("CREATE VIEW w WITH (strategy = 'SN') AS SELECT 1 AS a", "VIEW_OPTION_UNKNOWN"),
        ("CREATE VIEW w REFRESH POLICY FULL AS SELECT 1 AS a", "PARSE_SYNTAX_ERROR"),
    ],
)
def test_what_cannot_be_altered_or_refreshed_so(db: Database, statement: str, condition: str) -> None:
    view(db, "b", "WITH (strategy = 'IMB')")
    db.sql("CREATE VIEW s AS SELECT * FROM t")
    with pytest.raises(HeadraceError) as error:
        db.sql(statement)
    assert error.value.condition == condition, error.value


def ways(db: Database, view: str) -> list[tuple[str, bool]]:
    """How a view was refreshed each time, and whether it was said what that might take."""
    said = db.sql(f"SELECT how, estimated_seconds > 0 FROM headrace.refreshes WHERE view = '{view}'").rows()
    return [(how, bool(estimated)) for how, estimated in said]


@pytest.mark.parametrize("strategy", ["IN", "IMB"])
def test_auto_takes_the_cheaper_way_and_learns(db: Database, strategy: str, still: None) -> None:
    query = "SELECT t.g, count(*) AS n, min(t.v) AS least FROM fact t JOIN dim u ON t.g = u.g GROUP BY t.g"
    db.sql("CREATE TABLE fact (id INT PRIMARY KEY, g INT, v INT)")
    db.sql("CREATE TABLE dim (g INT, w INT)")
    db.sql("INSERT INTO dim VALUES (0, 1), (1, 1), (2, 2)")
    db.insert("fact", [(i, i % 4, i) for i in range(5_000)])
    db.sql(f"CREATE MATERIALIZED VIEW v WITH (strategy = '{strategy}') AS {query}")
    follow, anew = Costs(per_changed=1e-9, per_read=1.0), Costs(per_changed=1.0, per_read=1e-9)
    for costs, statement, way in (
        (follow, "UPDATE fact SET v = v + 1 WHERE id < 1500", "incremental"),
        (anew, "UPDATE fact SET v = -v, g = g + 1 WHERE id < 1500", "full"),
        (anew, "UPDATE fact SET v = 7 WHERE id < 10", "incremental"),  # too few to ask
        (anew, "DELETE FROM fact WHERE id % 2 = 0", "full"),
        (follow, "DELETE FROM fact", "incremental"),
    ):
        view = db._keeper.get("v")
        view.costs = replace(costs)
        db.sql(statement)
        assert bag(db.sql("SELECT * FROM v").rows()) == bag(db.sql(query).rows()), statement
        assert ways(db, "v")[-1] == (way, True), statement
        assert (view.costs == costs) == ("id < 10" in statement), "what many rows took is learnt"


def test_auto_leaves_alone_what_is_not_its_to_choose(db: Database) -> None:
    db.sql("CREATE TABLE fact (id INT PRIMARY KEY, v INT)")
    db.sql("CREATE MATERIALIZED VIEW fixed REFRESH POLICY INCREMENTAL AS SELECT v, count(*) AS n FROM fact GROUP BY v")
    db.sql(
        "CREATE MATERIALIZED VIEW past WITH (keep_changes = '1 day') AS SELECT v, count(*) AS n FROM fact GROUP BY v"
    )
    for name in ("fixed", "past"):
        db._keeper.get(name).costs = Costs(per_changed=1.0, per_read=1e-9)
    db.insert("fact", [(i, i % 7) for i in range(3_000)])
    db.sql("UPDATE fact SET v = v + 1")
    assert {how for name in ("fixed", "past") for how, _ in ways(db, name)} == {"incremental"}
    assert db.sql("SELECT sum(n) FROM past").rows() == [(3_000,)]


def test_names_of_strategies_that_say_how_a_view_is_founded(db: Database) -> None:
    """001 §6.3: every view is founded as of an epoch, and then takes in what came since."""
    db.sql("CREATE TABLE fact (id INT PRIMARY KEY, v INT)")
    for said, goes_on in (("SNI", "IN"), ("SNIMB", "IMB"), ("AUTO", "IN")):
        db.sql(f"CREATE MATERIALIZED VIEW v WITH (strategy = '{said}') AS SELECT v, count(*) AS n FROM fact GROUP BY v")
        assert f"strategy = '{goes_on}'" in db.sql("DESCRIBE v").text()
        db.sql("DROP VIEW v")


def test_explain_says_how_it_is_refreshed_and_what_that_may_take(db: Database) -> None:
    db.sql("CREATE TABLE fact (id INT PRIMARY KEY, v INT)")
    db.insert("fact", [(i, i % 7) for i in range(3_000)])
    query = "SELECT v, count(*) AS n FROM fact GROUP BY v"
    said = db.sql(f"EXPLAIN CREATE MATERIALIZED VIEW v WITH (strategy = 'IMB', period = '1 minute') AS {query}").text()
    assert "strategy = 'IMB', batch_rows = 100000, period = '1 minute'" in said
    assert "anew over 3,000 rows" in said
    assert "anew over" not in db.sql(f"EXPLAIN CREATE MATERIALIZED VIEW v REFRESH POLICY FULL AS {query}").text()


def test_an_option_that_there_is_not_says_which_there_are(db: Database) -> None:
    with pytest.raises(HeadraceError, match=r"a materialized view has no option nonsense.*strategy, batch_rows"):
        db.sql("CREATE MATERIALIZED VIEW v WITH (nonsense = 1) AS SELECT count(*) AS n FROM t")
    with pytest.raises(HeadraceError, match=r"a view has no option strategy.*retain, tables"):
        db.sql("CREATE VIEW v WITH (strategy = 'IN') AS SELECT count(*) AS n FROM t")
