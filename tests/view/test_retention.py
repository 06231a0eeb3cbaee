"""WITH (retain = …): groups of windows that are past go, rows for them are late; checked against the rule in Python.

The rule: a group is past when its window lies ``retain`` or more behind the newest window seen. Rows for groups that
were past before their statement are late. What is not past answers as a batch would over the rows that were not late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace import HeadraceError
from headrace.database import Database
from headrace.errors import InternalError
from headrace.store import Transaction
from profiles import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[datetime | None, str | None, int]

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
VIEW = (
    "SELECT window.start AS w, g, count(*) AS n, sum(x) AS s, avg(x) AS a, count(DISTINCT x) AS d "
    "FROM s GROUP BY window(ts, '1 hour'), g"
)


def at(hours: float) -> datetime:
    return START + hours * HOUR


class Model:
    """The rule, row by row."""

    def __init__(self, retain: timedelta) -> None:
        self.retain = retain
        self.rows: list[tuple[datetime, str | None, int]] = []
        self.newest: datetime | None = None
        self.late = 0

    def insert(self, rows: Sequence[Row]) -> int:
        before, late = self.newest, 0
        for ts, g, x in rows:
            if ts is None:
                continue
            window = START + (ts - START) // HOUR * HOUR
            if before is not None and window <= before - self.retain:
                late += 1
                continue
            self.newest = window if self.newest is None else max(window, self.newest)
            self.rows.append((window, g, x))
        if self.newest is not None:
            self.rows = [r for r in self.rows if r[0] > self.newest - self.retain]
        self.late += late
        return late

    def groups(self) -> set[tuple[Any, ...]]:
        found: dict[tuple[datetime, str | None], list[int]] = {}
        for window, g, x in self.rows:
            found.setdefault((window, g), []).append(x)
        return {(w, g, len(xs), sum(xs), sum(xs) / len(xs), len(set(xs))) for (w, g), xs in found.items()}


def assert_answer(db: Database, model: Model) -> None:
    def ordered(rows: Any) -> list[tuple[Any, ...]]:
        return sorted(rows, key=lambda r: (r[0], r[1] or ""))

    assert ordered(db.sql("SELECT * FROM v").rows()) == ordered(model.groups())


def assert_as(db: Database, model: Model) -> None:
    assert_answer(db, model)
    assert db.sql("SELECT late_rows FROM headrace.views").rows() == [(model.late,)]
    stored = {w for (w,) in db.sql("SELECT `window.start` FROM headrace.state('v')")}
    assert stored == {w for w, _, _ in model.rows}
    distinct = {(w, g, x) for w, g, x in db.sql("SELECT * FROM headrace.state('v', 's1')")}
    assert distinct == set(model.rows)


rows = st.lists(
    st.tuples(
        st.one_of(st.none(), st.floats(0, 30).map(at), st.integers(0, 30).map(at)),
        st.sampled_from(["a", "b", None]),
        st.integers(-3, 3),
    ),
    max_size=8,
)


@given(st.lists(rows, max_size=8), st.sampled_from([0.5, 1, 2, 2.5, 7, 100]), st.integers(0, 8), st.booleans())
@settings(max_examples=examples(20))
def test_what_is_kept_and_what_is_late_follows_the_rule(
    tmp_path_factory: pytest.TempPathFactory, inserts: list[list[Row]], hours: float, reopen: int, compact: bool
) -> None:
    path = tmp_path_factory.mktemp("retain") / "db"
    limit = 1 if compact else 8_192
    model = Model(hours * HOUR)
    db = headrace.connect(path, compact_rows=limit)
    try:
        db.sql("CREATE STREAM s (ts TIMESTAMP, g STRING, x INT)")
        db.sql(f"CREATE VIEW v WITH (retain = '{int(hours * 60)} minutes') AS {VIEW}")
        for number, batch in enumerate(inserts):
            if number == reopen:
                db.close()
                db = headrace.connect(path, compact_rows=limit)
            late = model.insert(batch)
            assert dict(db.insert("s", batch).late) == ({"v": late} if late else {})
            assert_answer(db, model)
        assert_as(db, model)
    finally:
        db.close()


@pytest.mark.parametrize("engine", ["native", "tasks", "spark"])
def test_every_engine_keeps_and_refuses_the_same_and_spark_agrees(spark: SparkSession, engine: str) -> None:
    inserts: list[list[Row]] = [
        [(at(1), "a", 1), (at(2.5), "b", 2), (None, "a", 3)],
        [(at(1.5), "a", 2), (at(0.2), None, 2)],
        [(at(4), "a", 5), (at(0.9), "a", 9)],
        [(at(1), "a", 7), (at(3), "b", 1), (at(9), "c", 1), (at(2), "c", 1)],
        [(at(6.99), "a", 7), (at(7), "b", 1), (at(7.5), "b", 1)],
    ]
    model = Model(3 * HOUR)
    with headrace.connect(spark=spark, engine=engine) as db:
        db.sql("CREATE STREAM s (ts TIMESTAMP, g STRING, x INT)")
        db.sql(f"CREATE VIEW v WITH (retain = '3 hours') AS {VIEW}")
        for batch in inserts:
            assert sum(db.insert("s", batch).late.values()) == model.insert(batch)
        assert_as(db, model)
        assert model.late == 2
        if engine == "native":
            kept = spark.createDataFrame([(w, g, x) for w, g, x in model.rows], "ts TIMESTAMP, g STRING, x INT")
            kept.createOrReplaceTempView("s")
            batch_rows = spark.sql(f"SELECT cast(w AS STRING), g, n, s, a, d FROM ({VIEW})").collect()
            mine = db.sql("SELECT cast(w AS STRING), g, n, s, a, d FROM v").rows()
            assert sorted(map(tuple, batch_rows)) == sorted(mine)
            spark.catalog.dropTempView("s")


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (ts TIMESTAMP, day DATE, g STRING, x INT)")
        yield db


def state_rows(db: Database) -> int:
    return int(db.sql("SELECT state_rows FROM headrace.views").rows()[0][0])


def test_state_shrinks_and_late_rows_are_told(db: Database) -> None:
    db.sql(
        "CREATE VIEW v WITH (retain = '1 day') AS SELECT window.start AS w, count(DISTINCT g) AS n FROM s "
        "GROUP BY window(ts, '1 hour')"
    )
    for hour in range(24):
        db.insert("s", [(at(hour), None, "a", 1)])
    assert state_rows(db) == 2 * 24
    assert db.sql("INSERT INTO s VALUES (TIMESTAMP '2026-01-02 12:00:00', NULL, 'a', 1)").message == (
        "1 row inserted into s"
    )
    assert state_rows(db) == 2 * 12
    message = db.sql("INSERT INTO s VALUES (TIMESTAMP '2026-01-01 12:59:59', NULL, 'a', 1)").message
    assert message == "1 row inserted into s; 1 row late for v"
    assert ("# retain", "1 day", "by window.start; 1 row came too late") in db.sql("DESCRIBE v").rows()
    assert db.sql("SELECT rows, late_rows FROM headrace.epochs ORDER BY epoch DESC LIMIT 1").rows() == [(1, 1)]
    db.sql("REFRESH VIEW v RESTART")
    assert db.sql("SELECT state_rows, late_rows FROM headrace.views").rows() == [(0, 0)]
    assert not db.insert("s", [(at(0), None, "a", 1)]).late


@pytest.mark.parametrize("key", ["day", "date_trunc('DAY', ts)", "day, ts"])
def test_a_date_or_timestamp_key_is_a_time_too(db: Database, key: str) -> None:
    db.sql(f"CREATE VIEW v WITH (retain = '2 days') AS SELECT count(*) AS n FROM s GROUP BY {key}")
    days = [(at(24 * d), date(2026, 1, 1) + timedelta(days=d), "a", 1) for d in range(5)]
    db.insert("s", days[:2])
    db.insert("s", [(None, None, "a", 1)])
    assert not db.insert("s", days[2:4]).late
    assert db.insert("s", [days[0], days[1], days[3]]).late == {"v": 2}
    assert sorted(db.sql("SELECT n FROM v")) == [(1,), (1,), (2,)]


def test_each_grouping_has_its_own_clock(db: Database) -> None:
    db.sql("CREATE STREAM r (ts TIMESTAMP)")
    db.sql(
        "CREATE VIEW v WITH (retain = '2 hours') AS SELECT a.w, a.n, b.n AS m FROM "
        "(SELECT window.start AS w, count(*) AS n FROM s GROUP BY window(ts, '1 hour')) a FULL JOIN "
        "(SELECT window.start AS w, count(*) AS n FROM r GROUP BY window(ts, '1 hour')) b ON a.w = b.w"
    )
    db.insert("s", [(at(9), None, "a", 1)])
    assert not db.insert("r", [(at(1),), (at(2),)]).late
    assert db.insert("s", [(at(1), None, "a", 1), (at(8), None, "a", 1)]).late == {"v": 1}
    assert len(db.sql("SELECT * FROM v").rows()) == 4


def test_far_off_times_do_not_overflow(db: Database) -> None:
    db.sql("CREATE VIEW v WITH (retain = '100000 days') AS SELECT ts, count(*) AS n FROM s GROUP BY ts")
    db.sql("CREATE VIEW w WITH (retain = '100000 days') AS SELECT day, count(*) AS n FROM s GROUP BY day")
    db.insert("s", [(datetime(1, 1, 1, tzinfo=UTC), date(1, 1, 1), "a", 1)])
    db.insert("s", [(datetime(9999, 12, 31, tzinfo=UTC), date(9999, 12, 31), "a", 1)])
    assert db.sql("SELECT count(*) FROM v").rows() == db.sql("SELECT count(*) FROM w").rows() == [(1,)]
    assert db.insert("s", [(at(0), date(2026, 1, 1), "a", 1)]).late == {"v": 1, "w": 1}


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("WITH (retain = '1 day') AS SELECT g, count(*) AS n FROM s GROUP BY g", "RETAIN_WITHOUT_TIME"),
        ("WITH (retain = '1 day') AS SELECT count(*) AS n FROM s", "RETAIN_WITHOUT_TIME"),
        ("WITH (retain = '1 day') AS SELECT 1 AS one", "RETAIN_WITHOUT_STREAM"),
        ("WITH (retain = '1 month') AS SELECT day, count(*) AS n FROM s GROUP BY day", "INVALID_RETAIN"),
        ("WITH (retain = '-1 day') AS SELECT day, count(*) AS n FROM s GROUP BY day", "INVALID_RETAIN"),
        ("WITH (retain = '0 days') AS SELECT day, count(*) AS n FROM s GROUP BY day", "INVALID_RETAIN"),
        ("WITH (retain = 7) AS SELECT day, count(*) AS n FROM s GROUP BY day", "INVALID_RETAIN"),
        ("WITH (retain = '1 day', retain = '1 day') AS SELECT day, count(*) AS n FROM s GROUP BY day",
         "VIEW_REPEATED_OPTION"),
        ("WITH (foo = '1 day') AS SELECT day, count(*) AS n FROM s GROUP BY day", "VIEW_OPTION_UNKNOWN"),
    ],
)  # fmt: skip
def test_what_cannot_be_retained_is_refused(db: Database, text: str, condition: str) -> None:
    with pytest.raises(HeadraceError) as refused:
        db.sql(f"CREATE VIEW v {text}")
    assert (refused.value.condition == condition and refused.value.hint is not None) or condition.endswith("OPTION")
    assert db.catalog.find("v") is None


def test_interval_and_properties_say_it_too(db: Database) -> None:
    db.sql("CREATE VIEW a WITH (retain = INTERVAL 90 MINUTES) AS SELECT ts, count(*) AS n FROM s GROUP BY ts")
    db.sql("CREATE VIEW b TBLPROPERTIES ('retain' = '90 minutes') AS SELECT ts, count(*) AS n FROM s GROUP BY ts")
    assert {r for (r,) in db.sql("SELECT retain FROM headrace.views")} == {"1 hour 30 minutes"}


def test_an_insert_that_fails_is_not_late_and_moves_no_clock(db: Database, tmp_path: Path) -> None:
    db.sql(
        "CREATE VIEW v WITH (retain = '1 hour') AS "
        "SELECT window.start AS w, sum(1 / x) AS n FROM s GROUP BY window(ts, '1 hour')"
    )
    db.insert("s", [(at(5), None, "a", 1)])
    with pytest.raises(HeadraceError):
        db.insert("s", [(at(1), None, "a", 1), (at(9), None, "a", 0)])
    assert db.sql("SELECT late_rows FROM headrace.views").rows() == [(0,)]
    assert not db.insert("s", [(at(5), None, "a", 1)]).late


def test_a_commit_that_fails_moves_no_clock(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.sql("CREATE VIEW v WITH (retain = '1 hour') AS SELECT ts, count(*) AS n FROM s GROUP BY ts")
    db.insert("s", [(at(5), None, "a", 1)])
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "append_batches", lambda tx, batches: 1 / 0)
        with pytest.raises(InternalError):
            db.insert("s", [(at(9), None, "a", 1)])
    assert not db.insert("s", [(at(4.5), None, "a", 1)]).late
    assert db.sql("SELECT * FROM v").rows() == [(at(5), 1), (at(4.5), 1)]
