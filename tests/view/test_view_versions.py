"""What materialized views were: versions, and changes, are those of their queries over the tables' versions."""

from __future__ import annotations

import re
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import headrace
from headrace import Database
from headrace.errors import HeadraceError
from profiles import examples
from view.test_materialized import HISTORY, TABLES, bag

VIEWS = [
    "SELECT a.id, b.w, c.v FROM a, b, c WHERE a.id = b.id AND b.g = c.g AND a.v < c.v",
    "SELECT a.g, b.w, c.v FROM a FULL JOIN b ON a.id = b.id FULL JOIN c ON c.g = b.g",
    "SELECT g, count(*), sum(v), min(m), avg(m), count(DISTINCT id) FROM a GROUP BY g",
    "SELECT g, sum(x), stddev_pop(x), max(x) FROM b GROUP BY g",
    "SELECT count(*), sum(v), min(m) FROM a JOIN b USING (id)",
    "SELECT g, sum(s) FROM (SELECT g, id, sum(v) AS s FROM a GROUP BY g, id) GROUP BY g HAVING sum(s) > 0",
    "SELECT id, v FROM a ORDER BY v DESC, id LIMIT 3",
    "SELECT g FROM a EXCEPT SELECT g FROM b",
]
KEEP = "WITH (keep_changes = '1 day')"


def define(db: Database, views: list[str]) -> None:
    for name, columns in TABLES.items():
        db.sql(f"CREATE TABLE {name} ({columns}) {KEEP}")
    db.sql("INSERT INTO a VALUES (1, 'x', 2, 0.50), (1, 'x', 2, 0.50), (2, NULL, 3, 1.00), (3, 'y', NULL, NULL)")
    db.sql("INSERT INTO b VALUES (1, 'x', 3, 0.1D), (2, 'y', 1, NULL)")
    for number, text in enumerate(views):
        names = ", ".join(f"c{i}" for i in range(len(db.sql(text).arrow().column_names)))
        db.sql(f"CREATE MATERIALIZED VIEW v{number} ({names}) {KEEP} AS {text}")


def epoch(db: Database) -> int:
    return int(db.sql("SELECT max(epoch) FROM headrace.epochs").rows()[0][0])


def at(query: str, version: int) -> str:
    """A query over a version of its tables."""
    return re.sub(r"(FROM|JOIN|,) ([abc])\b(?!\.)", rf"\1 \2 VERSION AS OF {version}", query)


def check(db: Database, first: list[int], said: object) -> None:
    """All versions at once: each view is its query over the tables as they were, and changes add up to it."""
    now = epoch(db)
    for number, text in enumerate(VIEWS):
        view = f"v{number}"
        listed = db.sql(f"SELECT version FROM headrace.versions WHERE `table` = '{view}' ORDER BY version").rows()
        assert listed[0] == (first[number],)
        log = db.sql(f"SELECT * FROM headrace.changes('{view}', {first[number]})").rows()
        assert {row[-2] for row in log} <= {version for (version,) in listed[1:]}
        total = Counter[tuple[Any, ...]](db.sql(f"SELECT * FROM {view} VERSION AS OF {first[number]}").rows())
        for version in range(first[number], now + 1):
            for row in log:
                if row[-2] == version:
                    total[row[:-2]] += row[-1]
            rows = db.sql(f"SELECT * FROM {view} VERSION AS OF {version}").rows()
            assert bag(rows) == bag(db.sql(at(text, version)).rows()), (text, version, said)
            assert min(total.values(), default=0) >= 0, (text, version, said)
            assert Counter(rows) == +total, (text, version, said)
        assert bag(rows) == bag(db.sql(f"SELECT * FROM {view}").rows())


def test_a_version_of_a_query_reads_that_of_its_tables() -> None:
    assert at("SELECT a.id FROM a, b JOIN c ON a.id = b.id", 7) == (
        "SELECT a.id FROM a VERSION AS OF 7, b VERSION AS OF 7 JOIN c VERSION AS OF 7 ON a.id = b.id"
    )


def test_oracle_versions_of_views_are_their_queries_over_versions_of_tables() -> None:
    @settings(max_examples=examples(8))
    @given(HISTORY)
    def hold(history: list[Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "db"
            db = headrace.connect(place, engine="native", durability="none")
            try:
                define(db, VIEWS)
                first = [
                    int(db.sql(f"SELECT min(version) FROM headrace.versions WHERE `table` = 'v{i}'").rows()[0][0])
                    for i in range(len(VIEWS))
                ]
                readers = [db.changes(f"v{i}") for i in range(len(VIEWS))]
                sums = [Counter[tuple[Any, ...]]() for _ in VIEWS]
                for step in history:
                    if step == "reopen":
                        positions = [reader.position for reader in readers]
                        db.close()
                        db = headrace.connect(place, engine="native", durability="none")
                        readers = [db.changes(f"v{i}", since=at) for i, at in enumerate(positions)]
                    elif isinstance(step, list):
                        try:
                            with db.batch():
                                for statement in step:
                                    db.sql(statement)
                        except HeadraceError as error:
                            assert error.condition in ("PRIMARY_KEY_VIOLATION", "NOT_IN_BATCH"), error
                    else:
                        try:
                            db.sql(step)
                        except HeadraceError as error:
                            assert error.condition in ("PRIMARY_KEY_VIOLATION", "DUPLICATE_KEY"), error
                    for i, reader in enumerate(readers):
                        for part in reader:
                            for row in part.to_pylist():
                                *values, _, weight = row.values()
                                sums[i][tuple(values)] += weight
                        assert reader.position is None or min(sums[i].values(), default=0) >= 0
                check(db, first, history)
                for i, (reader, counted) in enumerate(zip(readers, sums, strict=True)):
                    if reader.position is not None:
                        assert Counter(db.sql(f"SELECT * FROM v{i} VERSION AS OF {epoch(db)}").rows()) == +counted
            finally:
                db.close()

    hold()


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect(engine="native") as db:
        db.sql("CREATE TABLE t (k INT, v INT)")
        yield db


def test_only_what_changes_the_answer_is_a_version(db: Database) -> None:
    db.sql(f"CREATE MATERIALIZED VIEW v {KEEP} AS SELECT k, sum(v) AS s FROM t GROUP BY k HAVING sum(v) > 10")
    db.sql("INSERT INTO t VALUES (1, 5)")
    db.sql("INSERT INTO t VALUES (1, 7), (2, 1)")
    db.sql("UPDATE t SET v = 12 - v")
    listed = db.sql("SELECT statement, inserted, deleted FROM headrace.versions").rows()
    assert listed == [("CREATE VIEW v", 0, 0), ("INSERT INTO t", 1, 0), ("UPDATE t", 1, 0)]
    assert sorted(db.sql("SELECT * FROM v").rows()) == [(1, 12), (2, 11)]


def test_versions_that_are_over_are_let_go(db: Database) -> None:
    db.sql("CREATE MATERIALIZED VIEW v WITH (keep_changes = INTERVAL '1' SECOND) AS SELECT k, v FROM t")
    first = epoch(db)
    db.sql("INSERT INTO t VALUES (1, 1)")
    while True:
        db.sql("UPDATE t SET v = v + 1")
        if db.sql("SELECT min(version) FROM headrace.versions").rows()[0][0] > first:
            break
    with pytest.raises(HeadraceError, match="versions lists them") as error:
        db.sql(f"SELECT * FROM v VERSION AS OF {first}")
    assert error.value.condition == "VERSION_NOT_KEPT"
    newest = epoch(db)
    assert db.sql(f"SELECT * FROM v VERSION AS OF {newest}").rows() == db.sql("SELECT * FROM v").rows()


def test_a_view_begun_again_has_a_new_history(db: Database) -> None:
    db.sql("INSERT INTO t VALUES (1, 1)")
    db.sql(f"CREATE MATERIALIZED VIEW v {KEEP} AS SELECT k, v FROM t")
    before = epoch(db)
    db.sql("REFRESH MATERIALIZED VIEW v RESTART")
    db.sql("INSERT INTO t VALUES (2, 2)")
    with pytest.raises(HeadraceError, match="not kept"):
        db.sql(f"SELECT * FROM v VERSION AS OF {before}")
    assert db.sql(f"SELECT * FROM v VERSION AS OF {epoch(db) - 1}").rows() == [(1, 1)]
    db.sql("DROP MATERIALIZED VIEW v")
    assert db.sql("SELECT * FROM headrace.versions").rows() == []


@pytest.mark.parametrize(
    ("text", "condition", "said"),
    [
        ("SELECT * FROM plain VERSION AS OF 1", "UNSUPPORTED_FEATURE.TIME_TRAVEL", "MATERIALIZED VIEW … WITH"),
        ("SELECT * FROM headrace.changes('plain')", "UNSUPPORTED_FEATURE.TIME_TRAVEL", "keeps no changes"),
        ("CREATE VIEW w WITH (keep_changes = '1 day') AS SELECT * FROM t", "VIEW_OPTION_UNKNOWN", "materialized"),
        (
            "CREATE MATERIALIZED VIEW w WITH (keep_changes = '1 day') AS SELECT k AS _epoch FROM t",
            "COLUMN_ALREADY_EXISTS",
            "_epoch",
        ),
        ("SELECT * FROM v VERSION AS OF 999", "VERSION_NOT_YET", "newest epoch"),
        (
            "CREATE MATERIALIZED VIEW w WITH (keep_changes = 'a while') AS SELECT k FROM t",
            "INVALID_KEEP_CHANGES",
            "day",
        ),
    ],
)
def test_what_is_not_kept_is_named(db: Database, text: str, condition: str, said: str) -> None:
    db.sql("CREATE MATERIALIZED VIEW plain AS SELECT k FROM t")
    db.sql(f"CREATE MATERIALIZED VIEW v {KEEP} AS SELECT k FROM t")
    with pytest.raises(HeadraceError, match=said) as error:
        db.sql(text)
    assert error.value.condition == condition


def test_a_moment_is_the_version_that_stood_then(db: Database) -> None:
    db.sql(f"CREATE MATERIALIZED VIEW v {KEEP} AS SELECT k, sum(v) AS s FROM t GROUP BY k")
    db.sql("INSERT INTO t VALUES (1, 1)")
    db.sql("UPDATE t SET v = 5")
    moment = db.sql(
        "SELECT max(time) FROM headrace.versions WHERE version < (SELECT max(version) FROM headrace.versions)"
    )
    (said,) = moment.rows()[0]
    assert db.sql(f"SELECT * FROM v TIMESTAMP AS OF '{said.isoformat()}'").rows() == [(1, 1)]
    assert db.sql("SELECT * FROM v").rows() == [(1, 5)]


def test_versions_while_several_write(db: Database) -> None:
    db.sql(f"CREATE TABLE w (k INT, v INT) {KEEP}")
    query = "SELECT k, count(*) AS n, sum(v) AS s FROM w GROUP BY k HAVING sum(v) > 3"
    db.sql(f"CREATE MATERIALIZED VIEW v {KEEP} AS {query}")
    first = epoch(db)
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for turn in range(6):
                db.insert("w", [(turn % 3, number), (number, turn)])
                db.sql(f"DELETE FROM w WHERE v = {turn} AND k = {number}")
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in (1, 2, 3)]
    for writer in writers:
        writer.start()
    reader, total = db.changes("v"), Counter[tuple[Any, ...]]()
    while any(writer.is_alive() for writer in writers):
        for row in reader.read().to_pylist():
            total[row["k"], row["n"], row["s"]] += row["_weight"]
        assert min(total.values(), default=0) >= 0
    for writer in writers:
        writer.join()
    assert not failures
    for row in reader.read().to_pylist():
        total[row["k"], row["n"], row["s"]] += row["_weight"]
    assert +total == Counter(db.sql("SELECT * FROM v").rows())
    for version in range(first, epoch(db) + 1):
        wanted = db.sql(query.replace("FROM w", f"FROM w VERSION AS OF {version}")).rows()
        assert Counter(db.sql(f"SELECT * FROM v VERSION AS OF {version}").rows()) == Counter(wanted), version


@pytest.mark.spark
def test_spark_streams_the_changes_of_a_view(spark: Any, tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db", spark=spark) as db:
        db.sql("CREATE TABLE t (k INT, v INT)")
        db.sql("INSERT INTO t VALUES (1, 1), (1, 2), (2, 5)")
        db.sql(f"CREATE MATERIALIZED VIEW v {KEEP} AS SELECT k, sum(v) AS s FROM t GROUP BY k")
        read = spark.readStream.format("headrace").option("path", str(db.path)).option("changes", "v").load()

        def run() -> None:
            stream = read.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "c"))
            stream.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()

        run()
        db.sql("UPDATE t SET v = v + 10 WHERE k = 2")
        db.sql("DELETE FROM t WHERE k = 1")
        run()
        first, second, third = (row[0] for row in db.sql("SELECT version FROM headrace.versions").rows())
        found = [tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).collect()]
        assert sorted(found) == sorted(
            [(1, 3, first, 1), (2, 5, first, 1), (2, 5, second, -1), (2, 15, second, 1), (1, 3, third, -1)]
        )
