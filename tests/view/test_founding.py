"""Founding while changes go on: a view made over tables that others write is its query, none lost and none doubled."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_materialized import STATEMENT, TABLES, VIEWS, bag, check

import headrace
from headrace import Database
from headrace.base.interrupts import Interrupted
from headrace.errors import HeadraceError
from headrace.keep import founding
from headrace.keep.founding import Founding
from profiles import examples
from test_interrupts import press_it

Work = Callable[[], object]


def elsewhere(work: Work) -> None:
    """Do something in another thread, to its end."""
    failed: list[BaseException] = []

    def caught() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=caught)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Work], None]:
    """Have something done, once, at a point of the next founding: ``before`` or ``after`` its first states are
    computed, or before its notes are ``applied``, with everybody going on."""

    def hold(point: str, work: Work) -> None:
        name = "_catch_up" if point == "applied" else "_first"
        real, left = getattr(Founding, name), [work]

        def wrapped(self: Founding, *given: Any) -> Any:
            if point != "after" and left:
                elsewhere(left.pop())
            found = real(self, *given)
            if point == "after" and left:
                elsewhere(left.pop())
            return found

        monkeypatch.setattr(Founding, name, wrapped)

    return hold


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect(None, engine="native") as db:
        db.sql("CREATE TABLE t (id INT PRIMARY KEY, g STRING, v INT)")
        db.sql("INSERT INTO t VALUES (1, 'x', 1), (2, 'x', 2), (3, 'y', 3), (4, NULL, 4)")
        yield db


GROUPED = "SELECT g, count(*) AS n, sum(v) AS s, min(v) AS least FROM t GROUP BY g"


def is_its_query(db: Database, name: str = "v", query: str = GROUPED) -> None:
    assert bag(db.sql(f"SELECT * FROM {name}").rows()) == bag(db.sql(query).rows())


def leaves_nothing(db: Database) -> None:
    """Nothing of a founding is left, and everything goes on."""
    assert not db._keeper.foundings.open
    assert not list(db._runtime.store.scratch.glob("*.changes"))
    db.sql("INSERT INTO t VALUES (100, 'x', 7)")
    db.sql(f"CREATE MATERIALIZED VIEW again AS {GROUPED}")
    db.sql("UPDATE t SET v = v + 1 WHERE id = 100")
    is_its_query(db, "again")


@pytest.mark.parametrize("few", [0, 10_000])
@pytest.mark.parametrize("point", ["before", "after"])
def test_writers_go_on(
    db: Database, held: Callable[[str, Work], None], monkeypatch: pytest.MonkeyPatch, point: str, few: int
) -> None:
    """Every way in which rows come and go, while first states are computed; nobody waits for these."""
    monkeypatch.setattr(founding, "FEW", few)

    def work() -> None:
        db.sql("INSERT INTO t VALUES (5, 'x', 5), (6, 'z', 6)")
        db.sql("UPDATE t SET g = 'y', v = v * 2 WHERE id IN (1, 5)")
        db.sql("DELETE FROM t WHERE id = 3")
        with db.batch():
            db.sql("INSERT INTO t VALUES (7, 'z', 7)")
            db.sql("UPDATE t SET v = 70 WHERE id = 7")
        with pytest.raises(ZeroDivisionError), db.batch():
            db.sql("INSERT INTO t VALUES (8, 'lost', 8)")
            raise ZeroDivisionError
        with pytest.raises(HeadraceError, match="PRIMARY_KEY"):
            db.sql("INSERT INTO t VALUES (9, 'lost', 9), (1, 'lost', 1)")
        db.sql("MERGE INTO t USING (VALUES (2, 'm', 20), (10, 'm', 10) AS s(id, g, v)) AS s ON t.id = s.id "
               "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *")  # fmt: skip
        db.sql("OPTIMIZE t")

    held(point, work)
    db.sql(f"CREATE MATERIALIZED VIEW v AS {GROUPED}")
    is_its_query(db)
    assert ("lost",) not in db.sql("SELECT g FROM v").rows()
    db.sql("DELETE FROM t WHERE g = 'z'")
    is_its_query(db)
    leaves_nothing(db)


def test_a_table_that_is_emptied_and_filled(db: Database, held: Callable[[str, Work], None]) -> None:
    def work() -> None:
        db.sql("TRUNCATE TABLE t")
        db.sql("INSERT INTO t VALUES (1, 'new', 1)")

    held("after", work)
    db.sql(f"CREATE MATERIALIZED VIEW v AS {GROUPED}")
    assert db.sql("SELECT * FROM v").rows() == [("new", 1, 1, 1)]


def test_what_comes_while_notes_are_applied(
    db: Database, held: Callable[[str, Work], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(founding, "FEW", 0)
    db.sql("CREATE TABLE u (id INT, w INT)")
    db.sql("INSERT INTO u VALUES (1, 1), (2, 2)")
    query = "SELECT t.g, sum(u.w) AS s FROM t JOIN u ON t.id = u.id GROUP BY t.g"
    held("after", lambda: db.sql("INSERT INTO u VALUES (1, 10), (3, 30)"))
    held("applied", lambda: db.sql("UPDATE t SET g = 'q' WHERE id IN (1, 3)"))
    db.sql(f"CREATE MATERIALIZED VIEW v AS {query}")
    is_its_query(db, query=query)
    db.sql("DELETE FROM u WHERE w = 10")
    is_its_query(db, query=query)


def test_founded_again_while_changes_go_on(db: Database, held: Callable[[str, Work], None]) -> None:
    db.sql(f"CREATE MATERIALIZED VIEW v AS {GROUPED}")

    def work() -> None:
        db.sql("INSERT INTO t VALUES (5, 'x', 5)")
        is_its_query(db)  # the old one answers until the new one is there

    held("after", work)
    assert "computed anew" in db.sql("REFRESH VIEW v RESTART").message
    is_its_query(db)
    db.sql("DELETE FROM t WHERE id = 5")
    is_its_query(db)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD COLUMN w INT",
        "ALTER TABLE t RENAME TO u",
        "DROP TABLE t",
        "CREATE OR REPLACE TABLE t (g INT)",
    ],
)
@pytest.mark.parametrize("point", ["before", "after"])
def test_a_definition_that_changes_ends_it(
    db: Database, held: Callable[[str, Work], None], point: str, statement: str
) -> None:
    held(point, lambda: db.sql(statement))
    with pytest.raises(HeadraceError) as error:
        db.sql(f"CREATE MATERIALIZED VIEW v AS {GROUPED}")
    assert error.value.condition == "DEFINITION_CHANGED"
    assert db.catalog.find("v") is None
    assert not db._keeper.foundings.open


def test_another_of_its_name_that_is_quicker(db: Database, held: Callable[[str, Work], None]) -> None:
    for clause, said in (("", "TABLE_OR_VIEW_ALREADY_EXISTS"), ("IF NOT EXISTS ", "exists already")):
        held("after", lambda: db.sql("CREATE TABLE v (other INT)"))
        try:
            told = db.sql(f"CREATE MATERIALIZED VIEW {clause}v AS {GROUPED}").message
        except HeadraceError as error:
            told = error.condition
        assert said in told
        assert db.sql("SELECT * FROM v").columns == ["other"]
        db.sql("DROP TABLE v")
    leaves_nothing(db)


def test_two_at_once(db: Database, held: Callable[[str, Work], None]) -> None:
    def work() -> None:
        db.sql("INSERT INTO t VALUES (5, 'x', 5)")
        db.sql("CREATE MATERIALIZED VIEW w AS SELECT count(*) AS n FROM t")
        db.sql("INSERT INTO t VALUES (6, 'x', 6)")

    held("before", work)
    db.sql(f"CREATE MATERIALIZED VIEW v AS {GROUPED}")
    is_its_query(db)
    assert db.sql("SELECT n FROM w").rows() == [(6,)]


def test_an_error_leaves_nothing(db: Database, held: Callable[[str, Work], None]) -> None:
    query = "SELECT g, sum(10 div v) AS s FROM t GROUP BY g"
    held("after", lambda: db.sql("INSERT INTO t VALUES (5, 'x', 0)"))
    with pytest.raises(HeadraceError) as error:
        db.sql(f"CREATE MATERIALIZED VIEW v AS {query}")
    assert error.value.condition == "DIVIDE_BY_ZERO"
    leaves_nothing(db)


def test_ctrl_c_leaves_nothing(db: Database, held: Callable[[str, Work], None]) -> None:
    held("after", press_it)
    with pytest.raises(Interrupted) as caught:
        db.sql(f"CREATE MATERIALIZED VIEW v AS {GROUPED}")
    assert not caught.value.done
    leaves_nothing(db)


def test_a_disk_that_is_full_ends_it_and_no_writer(db: Database, held: Callable[[str, Work], None]) -> None:
    def work() -> None:
        def full(_: object) -> None:
            raise OSError(28, "No space left on device")

        db._keeper.foundings.open[0].notes._file = type("Full", (), {"tell": lambda _: 0, "write": lambda _, b: full(b),
                                                                      "close": lambda _: None})()  # fmt: skip
        db.sql("INSERT INTO t VALUES (5, 'x', 5)")

    held("before", work)
    with pytest.raises(HeadraceError) as error:
        db.sql(f"CREATE MATERIALIZED VIEW v AS {GROUPED}")
    assert error.value.condition == "NO_ROOM_FOR_CHANGES"
    assert db.sql("SELECT count(*) FROM t").rows() == [(5,)]
    leaves_nothing(db)


def test_a_database_that_is_closed_meanwhile(tmp_path: Path, held: Callable[[str, Work], None]) -> None:
    db = headrace.connect(tmp_path / "d.hr", engine="native")
    db.sql("CREATE TABLE t (id INT PRIMARY KEY, g STRING, v INT)")
    reached, errors = threading.Event(), list[HeadraceError]()
    closing = threading.Thread(target=db.close)

    def work() -> None:
        closing.start()
        while not db._closed:
            reached.wait(0.001)

    held("before", work)

    def create() -> None:
        try:
            db.sql(f"CREATE MATERIALIZED VIEW v AS {GROUPED}")
        except HeadraceError as error:
            errors.append(error)

    elsewhere(create)
    closing.join()
    with headrace.connect(tmp_path / "d.hr", engine="native") as db:
        # It ends before the database closes, or is ended by that.
        assert (db.catalog.find("v") is None) == bool(errors)
        db.sql("INSERT INTO t VALUES (1, 'x', 1)")
        if not errors:
            is_its_query(db)


CHILD = f"""
import sys, headrace
from headrace.keep.founding import Founding
db = headrace.connect(sys.argv[1], engine="native")
db.sql("CREATE TABLE t (id INT PRIMARY KEY, g STRING, v INT)")
db.sql("INSERT INTO t VALUES (1, 'x', 1)")
real = getattr(Founding, sys.argv[2])
def stop(self, *given):
    found = real(self, *given)
    import threading
    thread = threading.Thread(target=lambda: db.sql("INSERT INTO t VALUES (2, 'y', 2)"))
    if sys.argv[2] != "finish":
        thread.start()
        thread.join()
    print("here", flush=True)
    sys.stdin.read()
setattr(Founding, sys.argv[2], stop)
db.sql("CREATE MATERIALIZED VIEW v AS {GROUPED}")
"""


@pytest.mark.parametrize("point", ["_first", "finish"])
def test_killed_in_the_middle(tmp_path: Path, point: str) -> None:
    path = tmp_path / "d.hr"
    command = [sys.executable, "-c", CHILD, str(path), point]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"here\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with headrace.connect(path, engine="native") as db:
        assert db.catalog.find("v") is None
        assert db.sql("SELECT count(*) FROM t").rows() == [(2 if point == "_first" else 1,)]
        leaves_nothing(db)


SOME = st.lists(st.one_of(STATEMENT, st.lists(STATEMENT, min_size=2, max_size=3)), max_size=4)


@pytest.mark.parametrize("kind", VIEWS)
def test_oracle_views_founded_among_changes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is done to tables while a view is founded, it is its query when it is there, and after each change."""

    certain = [text for text in VIEWS[kind] if "ORDER BY w DESC LIMIT" not in text]  # of equal rows any may be chosen
    refused = "PRIMARY_KEY_VIOLATION", "DUPLICATE_KEY", "NOT_IN_BATCH", "NUMERIC_VALUE_OUT_OF_RANGE"

    def done(db: Database, steps: list[Any]) -> None:
        for step in steps:
            try:
                if isinstance(step, str):
                    db.sql(step)
                    continue
                with db.batch():
                    for statement in step:
                        db.sql(statement)
            except HeadraceError as error:
                assert error.condition in refused, error

    some = st.lists(st.sampled_from(certain), min_size=1, max_size=2)
    if kind == "views":  # of which each may read those before it
        some = st.integers(1, 3).map(lambda count: certain[:count])

    @settings(max_examples=examples(6))
    @given(some, st.lists(SOME, min_size=5, max_size=5))
    def hold(queries: list[str], phases: list[Any]) -> None:
        before, *meanwhile, after = phases
        with monkeypatch.context() as patched, headrace.connect(None, engine="native", durability="none") as db:
            patched.setattr(founding, "FEW", 0)
            for name, columns in TABLES.items():
                db.sql(f"CREATE TABLE {name} ({columns})")
            done(db, before)
            turns: list[list[Any]] = []
            real = {name: getattr(Founding, name) for name in ("_first", "_catch_up")}

            def turn() -> None:
                if turns:
                    steps = turns.pop()
                    elsewhere(lambda: done(db, steps))

            def first(self: Founding, *given: Any) -> Any:
                turn()
                found = real["_first"](self, *given)
                turn()
                return found

            def catch_up(self: Founding) -> None:
                turn()
                real["_catch_up"](self)

            patched.setattr(Founding, "_first", first)
            patched.setattr(Founding, "_catch_up", catch_up)
            for number, text in enumerate(queries):
                turns[:] = meanwhile
                names = ", ".join(f"c{i}" for i in range(len(db.sql(text).arrow().column_names)))
                db.sql(f"CREATE MATERIALIZED VIEW v{number} ({names}) AS {text}")
                check(db, queries[: number + 1], phases)
            for step in after:
                done(db, [step])
                check(db, queries, phases)

    hold()
