"""Rows of a stream see tables below a grouping as of their own commit, whatever comes between, in whatever order.

The oracle is plain: the rows of each batch are joined by DuckDB with the tables as they are then, and kept in a list.
"""

from __future__ import annotations

import itertools
import json
import random
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.catalog import View, from_json, to_json
from headrace.database import Database
from headrace.errors import HeadraceError
from headrace.stream.intake import Intake
from profiles import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOINED = "SELECT g AS x, count(*) AS c, sum(n) AS n FROM s JOIN dim ON s.k = dim.k GROUP BY g"
FROZEN = "WITH (tables = 'frozen')"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with headrace.connect(tmp_path / "db", engine="native") as db:
        define(db)
        yield db


def define(db: Database) -> None:
    db.sql("CREATE STREAM s (k INT, n INT)")
    db.sql("CREATE TABLE dim (k INT, g STRING, w INT)")
    db.sql("CREATE TABLE cap (k INT PRIMARY KEY, m INT)")
    db.sql("INSERT INTO dim VALUES (1, 'a', 1), (2, 'b', 2)")
    db.sql("INSERT INTO cap VALUES (1, 10)")
    db.sql("CREATE VIEW heavy AS SELECT k, g FROM dim WHERE w > 1")


def ask(db: Database, text: str) -> list[tuple[Any, ...]]:
    return sorted(db.sql(text).rows(), key=repr)


def note(db: Database, view: str, line: str) -> list[tuple[str, str]]:
    return [(what, remark) for name, what, remark in db.sql(f"DESCRIBE {view}").rows() if name == line]


# What is said, and what is refused


def test_a_new_view_follows_its_tables_and_says_so(db: Database) -> None:
    message = db.sql(f"CREATE VIEW v AS {JOINED}").message
    assert message.endswith("each row sees dim as of its own commit: later changes there show in later rows")
    assert note(db, "v", "# read as rows come") == [("dim", "each row sees them as of its commit")]
    assert not note(db, "v", "# read once")
    plan = [line for (line,) in db.sql(f"EXPLAIN CREATE VIEW w AS {JOINED}").rows()]
    assert "Before an insert, when dim has changed: build side b0, by native" in plan
    db.insert("s", [(1, 1), (2, 1), (3, 1)])
    assert ask(db, "SELECT * FROM v") == [("a", 1, 1), ("b", 1, 1)]
    db.sql("UPDATE dim SET g = 'z' WHERE k = 1")
    db.sql("DELETE FROM dim WHERE k = 2")
    db.sql("INSERT INTO dim VALUES (3, 'c', 0)")
    assert ask(db, "SELECT * FROM v") == [("a", 1, 1), ("b", 1, 1)], "what was counted stays"
    db.insert("s", [(1, 1), (2, 1), (3, 1)])
    assert ask(db, "SELECT * FROM v") == [("a", 1, 1), ("b", 1, 1), ("c", 1, 1), ("z", 1, 1)]
    assert db.sql("REFRESH VIEW v RESTART").message.startswith("v counts from now; each row sees dim")
    assert ask(db, "SELECT * FROM v") == []


def test_a_view_can_be_told_to_read_tables_once(db: Database) -> None:
    assert "dim read now, once" in db.sql(f"CREATE VIEW v {FROZEN} AS {JOINED}").message
    assert "Once, at creation: build side b0 of dim, by native" in [
        line for (line,) in db.sql(f"EXPLAIN CREATE VIEW w {FROZEN} AS {JOINED}").rows()
    ]
    db.sql(
        "CREATE VIEW w WITH (TABLES = 'Arrival', retain = '1 day') AS SELECT date_add(DATE '2026-01-01', n) AS day, "
        "count(*) AS c FROM s JOIN dim ON s.k = dim.k GROUP BY 1"
    )
    db.sql("UPDATE dim SET g = 'z'")
    db.insert("s", [(1, 1)])
    assert ask(db, "SELECT * FROM v") == [("a", 1, 1)]
    assert note(db, "v", "# read once")[0][0] == "dim" and not note(db, "v", "# read as rows come")
    assert note(db, "w", "# read as rows come") and note(db, "w", "# retain")


def test_a_definition_from_before_there_was_a_choice_is_frozen(db: Database) -> None:
    db.sql(f"CREATE VIEW v {FROZEN} AS {JOINED}")
    db.sql(f"CREATE VIEW w AS {JOINED}")
    stored = {name: json.loads(json.dumps(to_json(db.catalog.get(name)))) for name in "vw"}
    assert "tables" not in stored["v"], "as it was before"
    read = {name: from_json(name, "view", body) for name, body in stored.items()}
    assert [view.tables for view in read.values() if isinstance(view, View)] == ["frozen", "arrival"]


@pytest.mark.parametrize(
    ("statement", "condition"),
    [
        (f"CREATE VIEW v WITH (tables = 'now') AS {JOINED}", "NOT_YET_SUPPORTED"),
        (f"CREATE VIEW v WITH (tables = 'then') AS {JOINED}", "INVALID_TABLES"),
        (f"CREATE VIEW v WITH (tables = 1 + 1) AS {JOINED}", "INVALID_TABLES"),
        (f"CREATE VIEW v WITH (tables = 'frozen', tables = 'frozen') AS {JOINED}", "VIEW_REPEATED_OPTION"),
        (f"CREATE VIEW v WITH (table = 'frozen') AS {JOINED}", "VIEW_OPTION_UNKNOWN"),
        ("CREATE VIEW v WITH (tables = 'arrival') AS SELECT * FROM dim", "TABLES_WITHOUT_STREAM"),
        (
            "CREATE MATERIALIZED VIEW v WITH (tables = 'arrival') AS SELECT g, count(*) AS c FROM dim GROUP BY g",
            "TABLES_WITHOUT_STREAM",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(db: Database, statement: str, condition: str) -> None:
    epoch = db.sql("SELECT max(epoch) FROM headrace.epochs").rows()
    with pytest.raises(HeadraceError) as error:
        db.sql(statement)
    assert error.value.condition == condition and error.value.hint
    assert error.value.position is not None
    assert db.sql("SELECT max(epoch) FROM headrace.epochs").rows() == epoch


def test_a_tables_own_rows_beside_the_streams_are_counted_once_and_it_says_so(db: Database) -> None:
    union = (
        "SELECT x, count(*) AS c FROM (SELECT g AS x FROM s JOIN dim ON s.k = dim.k UNION ALL "
        "SELECT d.g FROM dim d JOIN cap ON d.k = cap.k) GROUP BY x"
    )
    message = db.sql(f"CREATE VIEW v AS {union}").message
    assert "each row sees dim as of its own commit" in message and "rows of cap, dim counted now, once" in message
    assert note(db, "v", "# counted once")[0][0] == "cap, dim"
    assert ask(db, "SELECT * FROM v") == [("a", 1)]
    db.sql("UPDATE dim SET g = upper(g)")
    db.insert("s", [(1, 0), (2, 0)])
    assert ask(db, "SELECT * FROM v") == [("A", 1), ("B", 1), ("a", 1)]
    assert "rows of cap, dim counted now, once" in db.sql(f"CREATE VIEW w {FROZEN} AS {union}").message


def test_a_build_side_that_fails_fails_the_insert_by_name_and_changes_nothing(db: Database) -> None:
    shares = (
        "SELECT x, count(m) AS c FROM (SELECT s.k AS x, m FROM s JOIN (SELECT k, 10 / m AS m FROM cap) u ON s.k = u.k)"
    )
    db.sql("CREATE VIEW plain AS SELECT count(*) AS c FROM s")
    db.sql(f"CREATE VIEW v AS {shares} GROUP BY x")
    db.insert("s", [(1, 0)])
    db.sql("UPDATE cap SET m = 0")
    for _ in range(2):
        with pytest.raises(HeadraceError, match=r"DIVIDE_BY_ZERO.*view v cannot read cap as of now"):
            db.insert("s", [(1, 0)])
    assert ask(db, "SELECT * FROM plain") == ask(db, "SELECT c FROM v") == [(1,)]
    with pytest.raises(HeadraceError, match=r"DIVIDE_BY_ZERO.*view w cannot read cap"):
        db.sql(f"CREATE VIEW w AS {shares} GROUP BY x")
    with pytest.raises(HeadraceError, match="DIVIDE_BY_ZERO"):
        db.sql("REFRESH VIEW v RESTART")
    assert db.catalog.find("w") is None and ask(db, "SELECT c FROM v") == [(1,)]
    db.sql("UPDATE cap SET m = 1")
    db.insert("s", [(1, 0)])
    assert ask(db, "SELECT * FROM plain") == ask(db, "SELECT c FROM v") == [(2,)]


def test_above_the_grouping_every_change_shows_at_once(db: Database) -> None:
    """Kept answers and rows of tables in memory do not outlive what they were made of."""
    counted = "SELECT k, count(*) AS c FROM s GROUP BY k"
    db.sql(f"CREATE VIEW counts AS {counted}")
    db.sql(f"CREATE VIEW v AS SELECT g.k, c, d.g, d.w FROM ({counted}) g LEFT JOIN dim d ON g.k = d.k")
    db.insert("s", [(1, 0), (1, 0), (2, 0), (3, 0)])
    seen = []
    for change in (
        "UPDATE dim SET w = w + 1 WHERE k = 1",
        "DELETE FROM dim WHERE k = 2",
        "MERGE INTO dim USING (VALUES (1, 'm'), (3, 'c')) AS u(k, g) ON dim.k = u.k "
        "WHEN MATCHED THEN UPDATE SET g = u.g WHEN NOT MATCHED THEN INSERT (k, g, w) VALUES (u.k, u.g, 0)",
        "INSERT INTO dim VALUES (2, 'again', 5)",
        "INSERT OVERWRITE dim VALUES (1, 'o', 1)",
        "TRUNCATE TABLE dim",
    ):
        db.sql(change)
        seen.append(ask(db, "SELECT * FROM v"))
        assert seen[-1] == ask(db, "SELECT counts.k, c, g, w FROM counts LEFT JOIN dim ON counts.k = dim.k"), change
    assert all(a != b for a, b in itertools.pairwise(seen)), "each of them shows"
    assert seen[0] == [(1, 2, "a", 2), (2, 1, "b", 2), (3, 1, None, None)]


# What is held


def sides(db: Database) -> list[str]:
    with db.runtime.worker.cursor() as cursor:
        held = [name for (name,) in cursor.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
    assert sorted(held) == sorted(db.runtime.worker._statics)
    assert {name for name in held if name.startswith("side_")} == set(db.keeper.sides._made)
    return held


def test_views_share_sides_that_compute_the_same_and_leave_nothing(db: Database, tmp_path: Path) -> None:
    for name in ("v", "w"):
        db.sql(f"CREATE VIEW {name} AS {JOINED}")
    db.sql(f"CREATE VIEW other AS {JOINED.replace('GROUP', 'WHERE w > 0 GROUP')}")
    db.sql(f"CREATE VIEW still {FROZEN} AS {JOINED}")
    made: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        real = db.runtime.worker.hold
        patch.setattr(db.runtime.worker, "hold", lambda static, rows: (made.append(static.name), real(static, rows)))
        db.insert("s", [(1, 1)])
        assert made == [], "made when the views were"
        db.sql("UPDATE dim SET g = 'z' WHERE k = 1")
        db.insert("s", [(1, 1)])
        db.insert("s", [(1, 1)])
        assert len(made) == len(set(made)) == 2, "each once a change, one for v and w"
        db.sql("UPDATE cap SET m = 3")
        db.insert("s", [(1, 1)])
        assert len(made) == 2, "nobody reads cap"
    assert ask(db, "SELECT * FROM v") == ask(db, "SELECT * FROM w") == [("a", 1, 1), ("z", 3, 3)]
    assert ask(db, "SELECT * FROM still") == [("a", 4, 4)]
    assert len(sides(db)) == 3
    for name, left in (("v", 3), ("other", 2), ("still", 1), ("w", 0)):
        db.sql(f"DROP VIEW {name}")
        assert len(sides(db)) == left
    assert not list((tmp_path / "db" / "scratch").iterdir())


def test_nothing_of_a_side_is_stored(db: Database, tmp_path: Path) -> None:
    db.sql(f"CREATE VIEW v AS {JOINED}")
    db.insert("s", [(1, 1)])
    assert set(db.catalog.get("v").owns) == {"s0"}
    assert not list((tmp_path / "db" / "segments").glob("*s*t*a*tic*"))
    db.sql("UPDATE dim SET g = 'z' WHERE k = 1")
    db.close()
    with headrace.connect(tmp_path / "db") as db:
        db.insert("s", [(1, 1), (2, 2)])
        assert ask(db, "SELECT * FROM v") == [("a", 1, 1), ("b", 1, 2), ("z", 1, 1)]


# Rows that a change overtakes


def overtake(monkeypatch: pytest.MonkeyPatch, *changes: Callable[[], object]) -> list[int]:
    """Each change happens once, between the work of an insert and its commit; returns how often inserts ran."""
    ran: list[int] = []
    real, left = Intake.state_rows, list(changes)

    def state_rows(self: Intake, *args: Any, **more: Any) -> Any:
        found = real(self, *args, **more)
        ran.append(1)
        if left:
            changer = threading.Thread(target=left.pop(0))  # not in the insert's thread: it may hold locks
            changer.start()
            changer.join(0.5 if len(ran) > 1 else None)
        return found

    monkeypatch.setattr(Intake, "state_rows", state_rows)
    return ran


def test_an_insert_that_a_change_overtakes_runs_again(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.sql(f"CREATE VIEW v AS {JOINED}")
    db.sql("CREATE VIEW plain AS SELECT count(*) AS c FROM s")
    ran = overtake(monkeypatch, lambda: db.sql("UPDATE dim SET g = 'z'"))
    db.insert("s", [(1, 1), (2, 1)])
    assert len(ran) == 2
    assert ask(db, "SELECT * FROM v") == [("z", 2, 2)] and ask(db, "SELECT * FROM plain") == [(2,)]


def test_an_insert_that_was_overtaken_is_not_overtaken_again(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second change waits for it: tables stand still while it runs again."""
    db.sql(f"CREATE VIEW v AS {JOINED}")
    changes = [lambda g=g: db.sql(f"UPDATE dim SET g = '{g}'") for g in "yz"]
    ran = overtake(monkeypatch, *changes)
    db.insert("s", [(1, 1), (2, 1)])
    assert len(ran) == 2 and ask(db, "SELECT * FROM v") == [("y", 2, 2)]


def test_an_insert_does_not_care_for_other_tables(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.sql(f"CREATE VIEW v AS {JOINED}")
    db.sql(f"CREATE VIEW w {FROZEN} AS SELECT count(*) AS c FROM s JOIN cap ON s.k = cap.k")
    ran = overtake(monkeypatch, lambda: db.sql("UPDATE cap SET m = m + 1"))
    db.insert("s", [(1, 1)])
    assert len(ran) == 1 and ask(db, "SELECT * FROM w") == [(1,)]


def test_what_failed_over_rows_that_are_no_more_is_tried_again(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.sql("CREATE VIEW v AS SELECT sum(n / m) AS x FROM s JOIN cap ON s.k = cap.k")
    db.sql("UPDATE cap SET m = 0")
    real = Intake.state_rows
    changed: list[str] = []

    def state_rows(self: Intake, *args: Any, **more: Any) -> Any:
        try:
            return real(self, *args, **more)
        finally:
            if not changed:
                changed.append(db.sql("UPDATE cap SET m = 2").message)

    monkeypatch.setattr(Intake, "state_rows", state_rows)
    db.insert("s", [(1, 4)])
    assert ask(db, "SELECT * FROM v") == [(2.0,)]
    db.sql("UPDATE cap SET m = 0")
    with pytest.raises(HeadraceError, match="DIVIDE_BY_ZERO"):
        db.insert("s", [(1, 4)])


# Any interleaving

SIDES = {
    "inner_": "SELECT g AS x, n FROM s JOIN dim ON s.k = dim.k",
    "filtered": "SELECT g AS x, n FROM s JOIN dim ON s.k = dim.k WHERE n > 0",
    "left_": "SELECT g AS x, n + coalesce(w, 0) AS n FROM s LEFT JOIN dim ON s.k = dim.k",
    "semi_": "SELECT CAST(s.k AS STRING) AS x, n FROM s WHERE k IN (SELECT k FROM dim WHERE w > 0)",
    "anti_": "SELECT CAST(s.k AS STRING) AS x, n FROM s WHERE NOT EXISTS (SELECT 1 FROM dim WHERE dim.k = s.k)",
    "not_in": "SELECT CAST(s.k AS STRING) AS x, n FROM s WHERE k NOT IN (SELECT k FROM dim)",
    "value_": "SELECT 'v' AS x, n FROM s WHERE n >= (SELECT coalesce(max(w), 0) FROM dim)",
    "grouped": "SELECT g AS x, n + m AS n FROM s JOIN (SELECT k, max(g) AS g, count(*) AS m FROM dim GROUP BY k) d "
    "ON s.k = d.k",
    "two_": "SELECT g AS x, m AS n FROM s JOIN dim ON s.k = dim.k JOIN cap ON s.k = cap.k",
    "by_view": "SELECT g AS x, n FROM s JOIN heavy ON s.k = heavy.k",
    "union_": "SELECT g AS x, n FROM s JOIN dim ON s.k = dim.k UNION ALL SELECT 'all' AS x, n FROM s",
}
KEY = st.integers(0, 3)
SMALL = st.integers(-2, 3)
NULLABLE = st.none() | KEY


def literal(value: int | None) -> str:
    return "NULL" if value is None else str(value)


CHANGES = st.one_of(
    st.builds(lambda k, w: f"INSERT INTO dim VALUES ({literal(k)}, 'n{k}', {w})", NULLABLE, SMALL),
    st.builds(lambda k, w: f"UPDATE dim SET w = w + {w}, g = concat(g, '{w}') WHERE k = {k}", KEY, SMALL),
    st.builds(lambda k: f"UPDATE dim SET k = k + 1 WHERE k = {k}", KEY),
    st.builds(lambda k: f"DELETE FROM dim WHERE k = {k}", KEY),
    st.builds(
        lambda k, w: (
            f"MERGE INTO cap USING (SELECT {k} AS k, {w} AS m) u ON cap.k = u.k WHEN MATCHED AND u.m < 0 THEN "
            "DELETE WHEN MATCHED THEN UPDATE SET m = u.m WHEN NOT MATCHED THEN INSERT (k, m) VALUES (u.k, u.m)"
        ),
        KEY,
        SMALL,
    ),
    st.sampled_from(["TRUNCATE TABLE dim", "DELETE FROM cap", "INSERT OVERWRITE dim VALUES (0, 'o', 1), (1, 'p', 3)"]),
)
BATCH = st.lists(st.tuples(NULLABLE, SMALL), min_size=1, max_size=4)
STEP = st.one_of(
    BATCH,
    BATCH,
    CHANGES,
    CHANGES,
    st.sampled_from(["copy", "reopen", "begin again"]),
)


def grouped(inner: str) -> str:
    return f"SELECT x, count(*) AS c, sum(n) AS n FROM ({inner}) GROUP BY x"


class Oracle:
    """What each view has counted, row by row."""

    def __init__(self) -> None:
        self._counted: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self._frozen: dict[str, dict[str, pa.Table]] = {}

    def made(self, view: str, tables: dict[str, pa.Table] | None) -> None:
        self._counted[view] = []
        if tables is not None:
            self._frozen[view] = tables

    def came(self, rows: list[tuple[Any, ...]], inner: dict[str, str], now: dict[str, pa.Table]) -> None:
        s = pa.table({"k": pa.array([k for k, _ in rows], pa.int32()), "n": pa.array([n for _, n in rows], pa.int32())})
        for view, text in inner.items():
            with duckdb.connect() as oracle:
                for name, table in {"s": s, **self._frozen.get(view, now)}.items():
                    oracle.register(name, table)
                oracle.execute("CREATE VIEW heavy AS SELECT k, g FROM dim WHERE w > 1")
                self._counted[view] += oracle.execute(text).fetchall()

    def answer(self, view: str) -> list[tuple[Any, ...]]:
        groups: dict[Any, list[int]] = defaultdict(list)
        for x, n in self._counted[view]:
            groups[x].append(n)
        found = [(x, len(ns), sum(n for n in ns if n is not None)) for x, ns in groups.items()]
        return sorted(found, key=repr)


@given(
    views=st.lists(st.sampled_from(sorted(SIDES)), min_size=2, max_size=5, unique=True),
    frozen=st.sets(st.integers(0, 4), max_size=2),
    steps=st.lists(STEP, min_size=4, max_size=14),
    seed=st.integers(0, 9),
)
@settings(max_examples=examples(12))
def test_oracle_any_interleaving(views: list[str], frozen: set[int], steps: list[Any], seed: int) -> None:
    draw = random.Random(seed)
    oracle = Oracle()
    inner = {f"{name}{i}": SIDES[name] for i, name in enumerate(views)} | {"again": SIDES[views[0]]}
    still = {name for i, name in enumerate(inner) if i in frozen}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "db")
        db = headrace.connect(path, engine="native", durability="none", compact_rows=8)
        try:
            define(db)

            def now() -> dict[str, pa.Table]:
                return {t: db.sql(f"SELECT * FROM {t}").arrow() for t in ("dim", "cap")}

            for name, text in inner.items():
                db.sql(f"CREATE VIEW {name} {FROZEN if name in still else ''} AS {grouped(text)}")
                oracle.made(name, now() if name in still else None)
            for number, step in enumerate([*steps, [(1, 1), (2, 2)]]):
                if isinstance(step, list):
                    db.insert("s", step)
                    oracle.came(step, inner, now())
                elif step == "copy":
                    rows = [(draw.choice([None, 0, 1, 2]), draw.randrange(-2, 4)) for _ in range(3)]
                    file = Path(folder, f"{number}.csv")
                    file.write_text("".join(f"{'' if k is None else k},{n}\n" for k, n in rows))
                    db.copy("s", file, header=False)
                    oracle.came(rows, inner, now())
                elif step == "reopen":
                    db.close()
                    db = headrace.connect(path, engine="native", durability="none", compact_rows=8)
                elif step == "begin again":
                    name = draw.choice(list(inner))
                    db.sql(f"REFRESH VIEW {name} RESTART")
                    oracle.made(name, now() if name in still else None)
                else:
                    db.sql(step)
            for name in inner:
                found = [(x, c, 0 if n is None else n) for x, c, n in db.sql(f"SELECT * FROM {name}").rows()]
                assert sorted(found, key=repr) == oracle.answer(name), name
        finally:
            db.close()


# Threads


def test_each_row_sees_one_version_the_one_before_its_commit(tmp_path: Path) -> None:
    """All rows of the table have one version at any time. An insert that sees two, or not what epochs say, is torn."""
    writers, each, width = 3, 12, 5
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("CREATE TABLE t (place INT, version INT)")
        db.insert("t", [(i, 0) for i in range(width)])
        for w in range(writers):
            db.sql(f"CREATE STREAM s{w} (id INT)")
            db.sql(f"CREATE VIEW v{w} AS SELECT id, version, count(*) AS c FROM s{w} CROSS JOIN t GROUP BY id, version")
            db.sql(  # another side of the same table in the same insert
                f"CREATE VIEW u{w} AS SELECT id, top, count(*) AS c FROM s{w} "
                "CROSS JOIN (SELECT max(version) AS top FROM t) GROUP BY id, top"
            )
        failures: list[BaseException] = []
        done = threading.Event()

        def insert(writer: int) -> None:
            try:
                for i in range(each):
                    db.insert(f"s{writer}", [(i,)])
            except BaseException as error:
                failures.append(error)

        def change() -> None:
            try:
                while not done.is_set():
                    db.sql("UPDATE t SET version = version + 1")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=insert, args=(w,)) for w in range(writers)]
        changers = [threading.Thread(target=change) for _ in range(2)]
        for thread in (*threads, *changers):
            thread.start()
        for thread in threads:
            thread.join()
        done.set()
        for thread in changers:
            thread.join()
        assert not failures
        log = db.sql("SELECT DISTINCT epoch, label FROM headrace.epochs ORDER BY epoch").rows()
        version, came, expected = 0, Counter[str](), dict[tuple[int, int], int]()
        for _, label in log:
            if label.startswith("UPDATE"):
                version += 1
            elif label.startswith("INSERT INTO s"):
                writer = label.removeprefix("INSERT INTO s")
                expected[int(writer), came[writer]] = version
                came[writer] += 1
        assert came == dict.fromkeys(map(str, range(writers)), each)
        assert len(set(expected.values())) > 2, "changes came between"
        for w in range(writers):
            want = sorted((i, expected[w, i]) for i in range(each))
            assert sorted(db.sql(f"SELECT id, version FROM v{w} WHERE c = {width}").rows()) == want
            assert sorted(db.sql(f"SELECT id, top FROM u{w}").rows()) == want
            assert db.sql(f"SELECT count(*) FROM v{w}").rows() == [(each,)]


def test_views_come_and_go_beside_inserts_and_changes(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db", engine="native", durability="none") as db:
        define(db)
        db.sql(f"CREATE VIEW v AS {JOINED}")
        failures: list[BaseException] = []
        done = threading.Event()
        counted = Counter[str]()

        def until_done(name: str, work: Callable[[], object]) -> threading.Thread:
            def run() -> None:
                try:
                    while not done.is_set():
                        work()
                        counted[name] += 1
                        if all(counted[n] >= 10 for n in ("insert", "change", "views")):
                            done.set()
                except BaseException as error:
                    failures.append(error)
                    done.set()

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        def views() -> None:
            db.sql(f"CREATE VIEW w AS {JOINED}")
            db.sql("REFRESH VIEW w RESTART")
            db.sql("DROP VIEW w")

        threads = [
            until_done("insert", lambda: db.insert("s", [(1, 1), (2, 1)])),
            until_done("change", lambda: db.sql("UPDATE dim SET w = w + 1, g = concat('g', w % 3)")),
            until_done("views", views),
        ]
        for thread in threads:
            thread.join()
        assert not failures
        assert db.sql("SELECT sum(c) FROM v").rows() == [(2 * counted["insert"],)]
        assert len(sides(db)) == 1


# Spark


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["tasks", "spark"])
def test_by_spark_too(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    with headrace.connect(tmp_path / "db", spark=spark, engine=engine) as db:
        define(db)
        db.sql(f"CREATE VIEW v AS {JOINED}")
        db.sql(f"CREATE VIEW w {FROZEN} AS {JOINED}")
        db.insert("s", [(1, 1), (2, 1)])
        db.sql("UPDATE dim SET g = 'z' WHERE k = 1")
        with pytest.MonkeyPatch.context() as patch:
            ran = overtake(patch, lambda: db.sql("UPDATE dim SET g = 'y' WHERE k = 1"))
            db.insert("s", [(1, 1), (2, 1)])
            assert len(ran) == 2
        file = tmp_path / "rows.csv"
        file.write_text("1,5\n2,6\n")
        db.sql("DELETE FROM dim WHERE k = 2")
        db.copy("s", file, header=False)
        db.insert("s", spark.createDataFrame([(1, 7), (2, 8)], "k INT, n INT"))
        assert ask(db, "SELECT * FROM v") == [("a", 1, 1), ("b", 2, 2), ("y", 3, 13)]
        assert ask(db, "SELECT * FROM w") == [("a", 4, 14), ("b", 4, 16)]
        left = list((tmp_path / "db" / "scratch").glob("*.parquet"))
        assert len(left) <= 1, "the one of now; those of before are gone"
        db.sql("DROP VIEW v")
        assert not list((tmp_path / "db" / "scratch").glob("*.parquet"))


@pytest.mark.spark
def test_a_side_that_only_spark_can_compute(spark: SparkSession, tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db", spark=spark) as db:
        define(db)
        side = "(SELECT k, soundex(g) AS g FROM dim)"
        plan = db.sql(
            f"EXPLAIN CREATE VIEW v AS SELECT d.g, count(*) AS c FROM s JOIN {side} d ON s.k = d.k GROUP BY d.g"
        )
        assert any("build side b0, by Spark SQL" in line for (line,) in plan.rows())
        db.sql(f"CREATE VIEW v AS SELECT d.g, count(*) AS c FROM s JOIN {side} d ON s.k = d.k GROUP BY d.g")
        db.insert("s", [(1, 1)])
        db.sql("UPDATE dim SET g = 'robert' WHERE k = 1")
        db.insert("s", [(1, 1)])
        assert ask(db, "SELECT * FROM v") == [("A000", 1), ("R163", 1)]
