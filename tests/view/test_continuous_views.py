"""Continuous views as their readers meet them: what they see, when they are computed, what stays small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.database import Database
from headrace.errors import HeadraceError
from headrace.keep.compaction import WORTH

Rows = list[tuple[Any, ...]]


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect() as database:
        database.sql("CREATE STREAM s (x STRING, n INT)")
        database.sql("CREATE STREAM r (x STRING, n INT)")
        database.sql("CREATE TABLE t (x STRING, w INT)")
        database.sql("INSERT INTO t VALUES ('a', 10), ('b', 20)")
        yield database
        assert not database.runtime.session.started, "nothing here needs Spark"


def ask(db: Database, text: str) -> Rows:
    return sorted(db.sql(text).rows(), key=repr)


# What a view sees


def test_a_view_starts_at_its_creation(db: Database) -> None:
    """V19; every view sees each insert after it once, whatever other views there are."""
    for number in range(4):
        db.sql(f"CREATE VIEW v{number} AS SELECT x, sum(n) AS n, count(*) AS c FROM s GROUP BY x")
        db.insert("s", [("a", 10**number), ("a", 0)])
    assert [ask(db, f"SELECT n, c FROM v{i}") for i in range(4)] == [[(1111, 8)], [(1110, 6)], [(1100, 4)], [(1000, 2)]]


def test_different_views_on_one_stream(db: Database) -> None:
    db.sql("CREATE VIEW total AS SELECT sum(n) AS n FROM s")
    db.sql("CREATE VIEW large AS SELECT x, max(n) AS m FROM s WHERE n > 2 GROUP BY x HAVING count(*) > 1")
    db.sql("CREATE VIEW top AS SELECT x, sum(n) AS n FROM s GROUP BY x ORDER BY n DESC, x LIMIT 1")
    db.sql("CREATE VIEW sizes AS SELECT c, count(*) AS k FROM (SELECT x, count(*) AS c FROM s GROUP BY x) g GROUP BY c")
    db.sql("CREATE VIEW joined AS SELECT t.x, sum(n * w) AS v FROM t JOIN s ON s.x = t.x GROUP BY t.x")
    db.sql("CREATE VIEW pairs AS SELECT a.x, a.n - b.n AS d FROM (SELECT x, sum(n) AS n FROM s GROUP BY x) a "
           "JOIN (SELECT x, sum(n) AS n FROM r GROUP BY x) b ON a.x = b.x")  # fmt: skip
    db.sql("CREATE VIEW both AS SELECT sum(n) AS n, count(*) AS c FROM (SELECT n FROM s UNION ALL SELECT n FROM r) u")
    db.insert("s", [("a", 1), ("b", 3), ("b", 4), (None, 9)])
    db.insert("r", [("a", 5), ("c", 6)])
    db.insert("s", [("a", 5), ("c", None)])
    assert ask(db, "SELECT * FROM total") == [(22,)]
    assert ask(db, "SELECT * FROM large") == [("b", 4)]
    assert ask(db, "SELECT * FROM top") == [(None, 9)]
    assert ask(db, "SELECT * FROM sizes") == [(1, 2), (2, 2)]
    assert ask(db, "SELECT * FROM joined") == [("a", 60), ("b", 140)]
    assert ask(db, "SELECT * FROM pairs") == [("a", 1), ("c", None)]
    assert ask(db, "SELECT * FROM both") == [(33, 8)]


def test_over_nothing(db: Database) -> None:
    db.sql("CREATE VIEW all_of_it AS SELECT count(*) AS c, sum(n) AS s, avg(n) AS a, count(DISTINCT n) AS d FROM s")
    db.sql("CREATE VIEW grouped AS SELECT x, count(*) AS c FROM s GROUP BY x")
    db.sql("CREATE VIEW most AS SELECT max(c) AS m, count(*) AS k FROM (SELECT count(*) AS c FROM s GROUP BY x) g")
    nothing: tuple[Rows, ...] = ([(0, None, None, 0)], [], [(None, 0)])
    assert tuple(ask(db, f"SELECT * FROM {v}") for v in ("all_of_it", "grouped", "most")) == nothing
    db.insert("s", [])
    assert tuple(ask(db, f"SELECT * FROM {v}") for v in ("all_of_it", "grouped", "most")) == nothing
    db.insert("s", [(None, None)])
    assert tuple(ask(db, f"SELECT * FROM {v}") for v in ("all_of_it", "grouped", "most")) == (
        [(1, None, None, 0)], [(None, 1)], [(1, 1)]
    )  # fmt: skip


def test_queries_over_views_tables_and_each_other(db: Database) -> None:
    db.sql("CREATE VIEW v AS SELECT x, sum(n) AS n FROM s GROUP BY x")
    db.sql("CREATE VIEW o AS SELECT v.x, v.n, t.w FROM v LEFT JOIN t ON v.x = t.x")
    db.insert("s", [("a", 1), ("c", 2)])
    assert ask(db, "SELECT * FROM o") == [("a", 1, 10), ("c", 2, None)]
    assert ask(db, "SELECT a.x, b.n FROM v a JOIN v b ON a.n < b.n") == [("a", 2)]
    assert ask(db, "WITH w AS (SELECT x, n + 1 AS n FROM v) SELECT sum(n) FROM w") == [(5,)]
    db.sql("INSERT INTO t VALUES ('c', 30)")
    assert ask(db, "SELECT * FROM o") == [("a", 1, 10), ("c", 2, 30)]


# Tables above and below the grouping (000 §4.2.7)


def test_tables_below_the_grouping_stay_as_they_were_and_the_view_says_so(db: Database) -> None:
    frozen = "WITH (tables = 'frozen') AS SELECT s.x, sum(w) AS w FROM s JOIN t ON s.x = t.x GROUP BY s.x"
    message = db.sql(f"CREATE VIEW below {frozen}").message
    assert "t read now, once" in message
    [note] = [row for row in db.sql("DESCRIBE below").rows() if row[0] == "# read once"]
    assert note[1] == "t" and "REFRESH VIEW below RESTART" in note[2]
    db.sql("INSERT INTO t VALUES ('c', 30), ('a', 1000)")
    db.insert("s", [("a", 1), ("c", 1)])
    assert ask(db, "SELECT * FROM below") == [("a", 10)]
    db.sql(f"CREATE VIEW later {frozen}")
    db.insert("s", [("a", 1), ("c", 1)])
    assert ask(db, "SELECT * FROM below") == [("a", 20)]
    assert ask(db, "SELECT * FROM later") == [("a", 1010), ("c", 30)]


def test_tables_above_the_grouping_show_at_the_next_read(db: Database) -> None:
    message = db.sql(
        "CREATE VIEW above AS SELECT g.x, c * w AS v FROM (SELECT x, count(*) AS c FROM s GROUP BY x) g "
        "JOIN t ON g.x = t.x"
    ).message
    assert "read now" not in message
    assert ("# read at each query", "t", "changes show in the next query") in db.sql("DESCRIBE above").rows()
    db.insert("s", [("a", 1), ("c", 1), ("c", 1)])
    assert ask(db, "SELECT * FROM above") == [("a", 10)]
    db.sql("INSERT INTO t VALUES ('c', 30)")
    assert ask(db, "SELECT * FROM above") == [("a", 10), ("c", 60)]


def test_a_table_on_both_sides(db: Database) -> None:
    db.sql(
        "CREATE VIEW v WITH (tables = 'frozen') AS SELECT g.x, g.w, t.w AS now FROM "
        "(SELECT s.x, sum(t.w) AS w FROM s JOIN t ON s.x = t.x GROUP BY s.x) g JOIN t ON g.x = t.x"
    )
    db.insert("s", [("a", 1)])
    db.sql("INSERT INTO t VALUES ('a', 99)")
    assert ask(db, "SELECT * FROM v") == [("a", 10, 10), ("a", 10, 99)]
    notes = {note for note, _, _ in db.sql("DESCRIBE v").rows()}
    assert {"# read once", "# read at each query"} <= notes


# When a view is computed


def test_answers_are_kept_until_something_they_rest_on_changes(db: Database) -> None:
    db.sql("CREATE TABLE other (a INT)")
    db.sql("CREATE VIEW v AS SELECT x, sum(n) AS n FROM s GROUP BY x")
    db.sql("CREATE VIEW u AS SELECT g.x, w FROM (SELECT x FROM s GROUP BY x) g JOIN t ON g.x = t.x")

    def cost(view: str) -> int:
        before = db.keeper.answers.evaluations
        db.sql(f"SELECT * FROM {view}")
        return db.keeper.answers.evaluations - before

    assert [cost("v"), cost("v"), cost("u"), cost("u")] == [1, 0, 1, 0]
    steps: list[tuple[Callable[[], Any], int, int]] = [
        (lambda: db.insert("s", [("a", 1)]), 1, 1),
        (lambda: db.insert("s", []), 0, 0),
        (lambda: db.insert("r", [("a", 1)]), 0, 0),
        (lambda: db.sql("INSERT INTO other VALUES (1)"), 0, 0),
        (lambda: db.sql("INSERT INTO t VALUES ('z', 1)"), 0, 1),
        (lambda: db.sql("CREATE VIEW w AS SELECT count(*) FROM s"), 0, 0),
        (lambda: db.sql("DROP VIEW w"), 0, 0),
        (lambda: db.insert("s", [("b", 1)]), 1, 1),
    ]
    for number, (step, of_v, of_u) in enumerate(steps):
        step()
        assert (cost("v"), cost("u"), cost("v"), cost("u")) == (of_v, of_u, 0, 0), f"step {number}"
    assert ask(db, "SELECT x, n + 1 FROM v WHERE x = 'a'") == [("a", 2)]
    assert cost("v") == 0, "another query over the view's answer does not compute it again"


def test_a_query_computes_a_view_it_names_twice_once(db: Database) -> None:
    db.sql("CREATE VIEW v AS SELECT x, sum(n) AS n FROM s GROUP BY x")
    db.insert("s", [("a", 1), ("b", 2)])
    before = db.keeper.answers.evaluations
    assert db.sql("SELECT count(*) FROM v a CROSS JOIN v b").rows() == [(4,)]
    assert db.keeper.answers.evaluations == before + 1


# State


VIEW = """SELECT x, sum(n) AS s, avg(n) AS a, min(n) AS lo, max(n) AS hi, count(*) AS c, count(DISTINCT n) AS d
          FROM s GROUP BY x"""


def test_differential_compaction_changes_nothing_and_keeps_state_short() -> None:
    answers: dict[int, Rows] = {}
    rows: dict[int, int] = {}
    for limit in (3, 50, 1_000_000):
        with headrace.connect(compact_rows=limit) as db:
            db.sql("CREATE STREAM s (x STRING, n INT)")
            db.sql(f"CREATE VIEW v AS {VIEW}")
            epochs = []
            for i in range(24):
                db.insert("s", [("abc"[(i + j) % 3], (i * j) % 7) for j in range(5)])
                before = db.keeper.answers.evaluations
                answers.setdefault(i, ask(db, "SELECT * FROM v"))
                assert ask(db, "SELECT * FROM v") == answers[i], f"after insert {i}, compacting at {limit}"
                epochs.append(db.keeper.answers.evaluations - before)
            assert epochs == [1] * 24, "compaction is no news to readers"
            ((_, _, _, rows[limit]),) = db.sql("SHOW VIEWS").rows()
    # two states: one row a group (3), one row a group and distinct value (up to 21); and what waits to be merged
    assert rows[1_000_000] > 150 and rows[50] <= 2 * 65 and rows[3] <= (1 + WORTH) * 24


def test_compaction_keeps_up_with_growing_groups() -> None:
    with headrace.connect(compact_rows=10) as db:
        db.sql("CREATE STREAM s (x STRING, n INT)")
        db.sql("CREATE VIEW v AS SELECT n, count(*) AS c FROM s GROUP BY n")
        for i in range(20):
            db.insert("s", [("", i * 10 + j) for j in range(10)])
            ((_, _, _, rows),) = db.sql("SHOW VIEWS").rows()
            assert rows <= 2 * (i + 1) * 10 + 20
        assert db.sql("SELECT count(*), sum(c) FROM v").rows() == [(200, 200)]


def test_a_state_that_came_whole_is_read_where_it_lies(tmp_path: Path) -> None:
    """A large COPY into an empty state needs no merge; whatever comes later does, and so do views that share a text."""
    keys = 20_000
    files = []
    for turn in range(2):
        rows = range(turn * 5_000, turn * 5_000 + keys)  # the second has groups of the first, and others
        values = {"k": [*rows, *rows], "n": [turn + 1] * 2 * keys, "p": [0] * keys + [1] * keys}
        files.append(tmp_path / f"{turn}.parquet")
        pq.write_table(pa.table({name: pa.array(column, pa.int32()) for name, column in values.items()}), files[-1])
    question = "SELECT count(*), sum(c), sum(t), max(t) FROM v"
    with headrace.connect(tmp_path / "db") as db:
        db.sql("CREATE STREAM s (k INT, n INT, p INT)")
        db.sql("CREATE VIEW v AS SELECT k, count(*) AS c, sum(n) AS t FROM s GROUP BY k")
        db.copy("s", files[0])
        with db.runtime.store.read() as snapshot:
            state = db.catalog.find("v").owns["s0"]
            assert snapshot.rewritten(state) == snapshot.last_change(state) == snapshot.epoch
        assert db.sql(question).rows() == [(keys, 2 * keys, 2 * keys, 2)]
        for name, passes in (("low", "p >= 0"), ("high", "p > 0")):
            db.sql(f"CREATE VIEW {name} AS SELECT k, count(*) AS c FROM s WHERE {passes} GROUP BY k")
        db.copy("s", files[1])
        assert db.sql(question).rows() == [(keys + 5_000, 4 * keys, 6 * keys, 6)]
        assert db.sql("SELECT c, t FROM v WHERE k = 5007").rows() == [(4, 6)]
        assert db.sql("SELECT count(*), sum(c) FROM low").rows() == [(keys, 2 * keys)]
        assert db.sql("SELECT count(*), sum(c) FROM high").rows() == [(keys, keys)]
        db.insert("s", [(0, 10, 0)])
        db.sql("REFRESH VIEW high RESTART")
        assert db.sql("SELECT * FROM high").rows() == []
        assert db.sql("SELECT c, t FROM v WHERE k = 0").rows() == [(3, 12)]
    with headrace.connect(tmp_path / "db") as db:
        assert db.sql(question).rows() == [(keys + 5_000, 4 * keys + 1, 6 * keys + 10, 12)]


# Failing


@pytest.mark.parametrize(
    ("view", "rows", "condition"),
    [
        ("SELECT sum(100 / n) AS q FROM s", [("a", 1), ("b", 0)], "DIVIDE_BY_ZERO"),
        ("SELECT sum(n % (n - 1)) AS q FROM s", [("a", 5), ("b", 1)], "REMAINDER_BY_ZERO"),
        ("SELECT n + 2147483647 AS k, count(*) FROM s GROUP BY n + 2147483647", [("a", 1)], "ARITHMETIC_OVERFLOW"),
        ("SELECT sum(CAST(x AS INT)) AS q FROM s", [("1", 1), ("one", 1)], "CAST_INVALID_INPUT"),
        ("SELECT max(CAST(n AS TINYINT)) AS q FROM s", [("a", 128)], "CAST_OVERFLOW"),
        ("SELECT sum(CAST(n AS DECIMAL(3,1))) AS q FROM s", [("a", 100)], "NUMERIC_VALUE_OUT_OF_RANGE"),
    ],
)
def test_an_error_below_the_grouping_fails_the_insert(db: Database, view: str, rows: Rows, condition: str) -> None:
    db.sql("CREATE VIEW fine AS SELECT count(*) AS c FROM s")
    db.sql(f"CREATE VIEW v AS {view}")
    db.insert("s", [("7", 7)]) if condition != "ARITHMETIC_OVERFLOW" else db.insert("s", [("7", -7)])
    before = contents(db)
    for attempt in range(2):
        with pytest.raises(HeadraceError) as error:
            db.insert("s", [*rows[:1], ("7", 7 if condition != "ARITHMETIC_OVERFLOW" else -7), *rows[1:]])
        assert error.value.condition.startswith(condition), attempt
        assert contents(db) == before
    assert ask(db, "SELECT * FROM fine") == [(1,)]


def test_an_error_above_the_grouping_fails_the_read(db: Database) -> None:
    db.sql("CREATE VIEW v AS SELECT x, 100 div n AS q FROM (SELECT x, sum(n) AS n FROM s GROUP BY x) g")
    db.insert("s", [("a", 1), ("b", -1)])
    assert ask(db, "SELECT * FROM v") == [("a", 100), ("b", -100)]
    assert db.insert("s", [("b", 1)]) == 1
    before = contents(db)
    for _ in range(2):
        with pytest.raises(HeadraceError, match="DIVIDE_BY_ZERO"):
            db.sql("SELECT * FROM v")
    assert contents(db) == before
    db.insert("s", [("b", 1)])
    assert ask(db, "SELECT * FROM v") == [("a", 100), ("b", 100)]


def test_a_sum_that_overflows_fails_the_read_and_recovers() -> None:
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (n BIGINT)")
        db.sql("CREATE VIEW v AS SELECT sum(n) AS n FROM s")
        db.insert("s", [(2**63 - 1,)])
        db.insert("s", [(2**63 - 1,)])
        with pytest.raises(HeadraceError, match="OVERFLOW"):
            db.sql("SELECT * FROM v")
        db.sql("CREATE VIEW w AS SELECT count(*) AS c FROM s")
        assert db.sql("SELECT * FROM w").rows() == [(0,)]


def contents(db: Database) -> tuple[Any, ...]:
    """All that a failed statement may not change."""
    with db.runtime.store.read() as snapshot:
        rows = {name: sorted(map(repr, snapshot.scan(name).to_pylist())) for name in snapshot.relations()}
        return snapshot.epoch, db.catalog.version, rows
