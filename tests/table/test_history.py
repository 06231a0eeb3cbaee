"""What a table was: every kept version, the changes between them, and what is let go or written anew."""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from test_changed_rows import ROWS, Rows, Step, done, steps

import headrace
from headrace import Database
from headrace.base.parquet_files import parquet_rows
from headrace.errors import HeadraceError, StoreError
from headrace.spark import published
from headrace.spark.changes import Chain
from headrace.spark.source import HeadraceSource
from headrace.statement import upkeep
from headrace.store import transaction
from headrace.table import net, query, rewriting
from headrace.table import rows as tables
from profiles import examples

HOUR = 3_600_000_000
DAY = 24 * HOUR


class Clock:
    """What time it is, as the test says."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.now = 1_800_000_000_000_000
        for module in (transaction, query, upkeep):
            patched.setattr(module, "microseconds", self.microseconds)

    def microseconds(self) -> int:
        self.now += 1_000
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect(None, engine="native") as db:
        yield db


def epoch_of(db: Database) -> int:
    with db.runtime.store.read() as snapshot:
        return snapshot.epoch


def exact(row: Any) -> Any:
    """A row that equals no other which differs in anything: 1.0 is not -0.0, and NaN is NaN."""
    return repr(row)


def multiset(rows: Any) -> Counter[Any]:
    return Counter(exact(tuple(row)) for row in rows)


def added_up(changes: list[tuple[Any, ...]], until: int) -> Counter[Any]:
    """What changes up to an epoch add up to; each epoch's is net."""
    found: Counter[Any] = Counter()
    signs: dict[Any, int] = {}
    for *row, epoch, weight in changes:
        assert weight in (1, -1) and signs.setdefault((epoch, exact(tuple(row))), weight) == weight
        if epoch <= until:
            found[exact(tuple(row))] += weight
    assert min(found.values(), default=0) >= 0
    return +found


def check(db: Database, versions: dict[int, Any], first: int) -> None:
    """Every kept version is what the list was, and the changes add up to each."""
    start = versions[max(e for e in versions if e <= first)]
    changes = db.sql(f"SELECT * FROM headrace.changes('t', {first})").rows()
    for epoch, rows in versions.items():
        if epoch < first:
            with pytest.raises(HeadraceError) as refused:
                db.sql(f"SELECT * FROM t VERSION AS OF {epoch}")
            assert refused.value.condition == "VERSION_NOT_KEPT"
            continue
        assert multiset(db.sql(f"SELECT * FROM t VERSION AS OF {epoch}").rows()) == multiset(rows), epoch
        gone = [row for row in changes if row[-2] <= epoch]
        total = multiset(start)
        for *row, _, weight in gone:
            total[exact(tuple(row))] += weight
        assert +total == multiset(rows) and min(total.values(), default=0) >= 0
    assert added_up([(*r, first, 1) for r in start] + changes, max(versions)) is not None


def named_files(db: Database) -> set[str]:
    with db.runtime.store.read() as snapshot:
        return {path.name for path in snapshot.files("")}


def files_there(db: Database) -> set[str]:
    """The files of segments, when the writer has removed what the last commit had it remove."""
    db.runtime.store.commit(lambda tx: tx.unchanged())
    return {file.name for file in (db.path / "segments").iterdir()}


Do = tuple[Step, Rows, int, str]
"""A statement, rows to insert before it, by how many hours the clock is put forward, and what else is done."""


@settings(max_examples=examples(12))
@given(
    keyed=st.booleans(),
    few=st.sampled_from([0, net.FEW]),
    source=ROWS,
    todo=st.lists(
        st.tuples(
            steps(), ROWS, st.sampled_from([0, 0, 5, 13]), st.sampled_from(["", "", "OPTIMIZE t", "reopen", "VACUUM t"])
        ),
        min_size=1,
        max_size=7,
    ),
)
def test_every_kept_version_is_what_a_list_was(keyed: bool, few: int, source: Rows, todo: list[Do]) -> None:
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr(tables, "TAIL_ROWS", 5)
        patched.setattr(rewriting, "TOGETHER", 3)
        patched.setattr(net, "FEW", few)
        clock, path = Clock(patched), Path(folder) / "db"
        db = headrace.connect(path, engine="native")
        try:
            key = "PRIMARY KEY" if keyed else ""
            db.sql(f"CREATE TABLE t (id INT {key}, a INT, b STRING) WITH (keep_changes = '1 day')")
            versions: dict[int, Rows] = {epoch_of(db): []}
            moments = dict.fromkeys(versions, clock.now)
            first = epoch_of(db)
            db.sql("CREATE TABLE s (id INT, a INT, b STRING)")
            db.insert("s", source)
            expected: Rows = []
            for (text, meant), more, hours, also in todo:
                for statement in ("", text):
                    before, rows, epoch = multiset(expected), None if statement else more, epoch_of(db)
                    meaning = meant if statement else lambda t, s, more=more: [*t, *more]  # type: ignore[misc]
                    expected = done(db, statement, meaning, expected, source, keyed, rows)
                    versions[epoch_of(db)] = expected
                    if multiset(expected) != before:
                        versions[epoch + 1] = expected  # segments may have been rewritten since
                        moments[epoch + 1] = clock.now
                        first = kept_from(moments, clock.now, first)
                    clock.now += hours * HOUR
                if also == "reopen":
                    db.close()
                    db = headrace.connect(path, engine="native")
                elif also:
                    db.sql(also)
                    first = kept_from(moments, clock.now, first) if also.startswith("VACUUM") else first
                    versions[epoch_of(db)] = expected
                assert multiset(db.sql("SELECT * FROM t").rows()) == multiset(expected)
            check(db, versions, first)
            assert [r[1] for r in db.sql("SELECT * FROM headrace.versions").rows()] == [
                m for m in moments if m >= first
            ]
            assert named_files(db) == files_there(db)
            db.sql("VACUUM t RETAIN 0 HOURS")
            assert db.sql("SELECT count(*) FROM headrace.versions").rows() == [(1,)]
            assert multiset(db.sql("SELECT * FROM t").rows()) == multiset(expected)
            assert named_files(db) == files_there(db)
            db.sql("DROP TABLE t")
            db.sql("DROP TABLE s")
            assert files_there(db) == set()
        finally:
            db.close()


def kept_from(moments: dict[int, int], now: int, before: int) -> int:
    """The version that stood a day ago."""
    late = [version for version, moment in moments.items() if moment > now - DAY]
    return max(before, max((v for v in moments if v < min(late, default=1 << 60)), default=before))


NAN, LIST = math.nan, "[0.0, -0.0]"
STRANGE = [
    (1, 0.0, [0.0, None], {"x": -0.0, "y": None}),
    (1, -0.0, [-0.0, None], {"x": -0.0, "y": None}),
    (1, NAN, [NAN], {"x": NAN, "y": "é"}),
    (None, None, None, None),
    (1, 0.0, [0.0, None], {"x": -0.0, "y": None}),
    (1, 0.0, [0.0, None], {"x": 0.0, "y": "NULL"}),
    (2, math.inf, [], {"x": None, "y": ""}),
]
TYPES = "id INT, d DOUBLE, l ARRAY<DOUBLE>, s STRUCT<x: DOUBLE, y: STRING>"


@settings(max_examples=examples(10))
@given(st.lists(st.lists(st.sampled_from(range(len(STRANGE))), max_size=6), min_size=2, max_size=4))
def test_rows_are_told_apart_by_all_that_can_be_seen_of_them(choices: list[list[int]]) -> None:
    with headrace.connect(None, engine="native") as db:
        db.sql(f"CREATE TABLE t ({TYPES}) WITH (keep_changes = '1 day')")
        db.sql(f"CREATE TABLE u (n INT, {TYPES})")
        versions: dict[int, Any] = {epoch_of(db): []}
        first = epoch_of(db)
        for n, chosen in enumerate(choices):
            rows = [STRANGE[i] for i in chosen]
            named = [dict(zip(("n", "id", "d", "l", "s"), (n, *row), strict=True)) for row in rows]
            if named:
                db.insert("u", named)
            db.sql(f"INSERT OVERWRITE t SELECT id, d, l, s FROM u WHERE n = {n}")
            versions[epoch_of(db)] = rows
        check(db, versions, first)


@pytest.mark.parametrize("few", [0, net.FEW])
def test_an_update_to_another_zero_is_a_change_and_one_to_the_same_nan_is_none(
    db: Database, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net, "FEW", few)
    db.sql("CREATE TABLE t (id INT, d DOUBLE) WITH (keep_changes = '1 day')")
    db.sql("CREATE TABLE z (id INT, d DOUBLE)")
    db.insert("t", [(1, 0.0), (2, NAN), (3, None)])
    db.insert("z", [(1, -0.0), (2, NAN), (3, None)])
    before = epoch_of(db)
    merge = "MERGE INTO t USING z ON t.id = z.id WHEN MATCHED THEN UPDATE SET d = z.d"
    assert str(db.sql(merge)) == "3 rows updated in t"
    changes = db.sql(f"SELECT * FROM headrace.changes('t', {before})").rows()
    assert multiset(changes) == multiset([(1, 0.0, before + 1, -1), (1, -0.0, before + 1, 1)])
    assert str(db.sql(merge)) == "3 rows updated in t"
    assert epoch_of(db) == before + 1  # nothing was changed


def test_what_follows_a_table_is_handed_net_changes(db: Database) -> None:
    db.sql("CREATE TABLE t (id INT, a INT)")
    db.sql("CREATE MATERIALIZED VIEW m AS SELECT id, count(*) AS n, sum(a) AS s FROM t GROUP BY id")
    db.sql("INSERT INTO t VALUES (1, 1), (2, 2), (2, 2)")
    seen: list[tuple[Any, ...]] = []
    hand_on = db.runtime.hand_on

    def noted(table: Any, parts: Any) -> Any:
        seen.extend((*row.values(), weight) for rows, weight in parts() for row in rows.to_pylist())
        return hand_on(table, parts)

    db.runtime.hand_on = noted
    db.sql("UPDATE t SET a = 2")
    db.sql("INSERT OVERWRITE t SELECT * FROM t WHERE id = 2 UNION ALL SELECT 3, 3")
    assert sorted(seen) == [(1, 1, -1), (1, 2, -1), (1, 2, 1), (3, 3, 1)]
    assert sorted(db.sql("SELECT * FROM m").rows()) == [(2, 2, 4), (3, 1, 3)]


def filled(db: Database, rows: int = 200_000) -> None:
    db.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT) WITH (keep_changes = '1 day')")
    db.insert("t", pa.table({"id": pa.array(range(rows), pa.int32()), "a": pa.array([0] * rows, pa.int32())}))


def test_a_file_is_shared_by_the_table_and_its_history(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db", engine="native") as db:
        filled(db)
        loaded = epoch_of(db)
        assert len(files_there(db)) == 1
        db.sql("TRUNCATE TABLE t")
        assert len(files_there(db)) == 1
        assert db.sql(f"SELECT count(*), sum(id) FROM t VERSION AS OF {loaded}").rows() == [(200_000, 19_999_900_000)]
        weights = f"SELECT _epoch, _weight, count(*) FROM headrace.changes('t', {loaded - 1}) GROUP BY ALL ORDER BY 1"
        assert db.sql(weights).rows() == [(loaded, 1, 200_000), (loaded + 1, -1, 200_000)]
        said = db.sql("VACUUM t RETAIN 0 HOURS")
        assert said.rows() == [(2, 400_000, 1)]
        assert str(said) == "2 versions of t let go, with 400,000 kept rows and 1 file"
        assert files_there(db) == set()


def test_a_segment_most_of_which_is_gone_is_written_anew(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("CREATE TABLE t (id INT, a INT)")
        db.insert("t", pa.table({"id": range(100_000), "a": [0] * 100_000}))
        (before,) = files_there(db)
        db.sql("DELETE FROM t WHERE id % 10 < 3")
        assert files_there(db) == {before}
        db.sql("DELETE FROM t WHERE id % 10 = 3")
        (after,) = files_there(db)
        assert after != before
        assert db.sql("SELECT count(*), min(id), max(id) FROM t").rows() == [(60_000, 4, 99_999)]
        assert db.sql("SELECT label FROM headrace.epochs ORDER BY epoch DESC LIMIT 1").rows() == [("rewrite t",)]
        db.sql("UPDATE t SET a = 1 WHERE id = 4")  # by its new place
        db.sql("DELETE FROM t WHERE id > 4")
        assert db.sql("SELECT * FROM t").rows() == [(4, 1)] and files_there(db) == set()


def test_many_small_segments_become_one_and_optimize_takes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "TAIL_ROWS", 10)
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("CREATE TABLE t (id INT, a INT)")
        for n in range(rewriting.TOGETHER + 2):
            db.insert("t", [(i, n) for i in range(10)])
        assert len(files_there(db)) == 3
        db.insert("t", [(7, 7)])
        db.sql("DELETE FROM t WHERE id = 9 AND a < 2")
        said = db.sql("OPTIMIZE t")
        assert said.rows() == [(4, 1, 179, 2)]
        assert str(said) == "4 files of t rewritten as 1 file, 2 deleted rows removed"
        assert len(files_there(db)) == 1 and str(db.sql("OPTIMIZE t")) == "t is in order"
        assert db.sql("SELECT count(*), sum(id), sum(a) FROM t").rows() == [(179, 799, 18 * 17 // 2 * 10 - 1 + 7)]


def test_a_rewrite_that_finds_no_room_changes_nothing_and_is_tried_again(tmp_path: Path) -> None:
    if shutil.which("mount") is None or os.getuid() != 0:
        pytest.skip("only root can mount a small file system")
    import subprocess

    place = tmp_path / "disk"
    place.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)]
    if subprocess.run(options, capture_output=True).returncode:
        pytest.skip("cannot mount a small file system here")
    try:
        with headrace.connect(place / "db", engine="native") as db:
            db.sql("CREATE TABLE t (id BIGINT, a BIGINT)")
            rows = 100_000
            db.insert("t", pa.table({"id": range(rows), "a": [n * 7919 for n in range(rows)]}))
            db.sql("DELETE FROM t WHERE id % 100 < 29")
            before = files_there(db)
            filler = place / "filler"
            with filler.open("ab", buffering=0) as file:
                while (found := os.statvfs(place)).f_bavail * found.f_frsize > 400_000:
                    file.write(bytes(4096))
            db.sql("DELETE FROM t WHERE id % 100 < 31")
            doing = [row for row in db.sql("SELECT doing, error FROM headrace.failures").rows() if "anew" in row[0]]
            assert doing and "STATE_NOT_WRITTEN" in doing[0][1]
            assert files_there(db) == before
            with pytest.raises(StoreError, match="STATE_NOT_WRITTEN"):
                db.sql("OPTIMIZE t")
            left = [(rows // 100 * 69, sum(n for n in range(rows) if n % 100 >= 31))]
            assert db.sql("SELECT count(*), sum(id) FROM t").rows() == left
            filler.unlink()
            db.sql("DELETE FROM t WHERE id = 31")
            assert files_there(db) != before and len(files_there(db)) == 1
            assert db.sql("SELECT count(*), sum(id) FROM t").rows() == [(left[0][0] - 1, left[0][1] - 31)]
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_query_of_a_stream_joins_a_version(db: Database) -> None:
    db.sql("CREATE TABLE t (id INT, name STRING) WITH (keep_changes = '1 day')")
    db.sql("INSERT INTO t VALUES (1, 'old')")
    old = epoch_of(db)
    db.sql("UPDATE t SET name = 'new'")
    db.sql("CREATE STREAM s (id INT) WITH (capacity = 100, timeout = '300 milliseconds')")
    db.insert("s", [(1,), (2,)])
    text = f"SELECT s.id, t.name FROM s@OLDEST JOIN t VERSION AS OF {old} AS t ON t.id = s.id"
    assert db.sql(text).rows() == [(1, "old")]
    assert "build side" in str(db.sql(f"EXPLAIN {text}")) and "of t," in str(db.sql(f"EXPLAIN {text}"))


def test_versions_in_joins_subqueries_and_statements_that_change_tables(db: Database) -> None:
    for name in ("t", "u"):
        db.sql(f"CREATE TABLE {name} (id INT PRIMARY KEY, a INT) WITH (keep_changes = '1 day')")
    db.sql("INSERT INTO t VALUES (1, 10), (2, 20), (3, 30)")
    db.sql("INSERT INTO u VALUES (1, 100)")
    old = epoch_of(db)
    db.sql("UPDATE t SET a = a + 1")
    db.sql("DELETE FROM t WHERE id = 2")
    db.sql("TRUNCATE TABLE u")
    joined = f"""SELECT x.id, x.a, y.a, z.a FROM t VERSION AS OF {old} AS x
        LEFT JOIN t AS y ON x.id = y.id LEFT JOIN u FOR SYSTEM_VERSION AS OF '{old}' z ON z.id = x.id ORDER BY x.id"""
    assert db.sql(joined).rows() == [(1, 10, 11, 100), (2, 20, None, None), (3, 30, 31, None)]
    gone = f"SELECT id FROM t FOR VERSION AS OF {old} WHERE id NOT IN (SELECT id FROM t)"
    assert db.sql(gone).rows() == [(2,)]
    assert db.sql(f"SELECT (SELECT count(*) FROM u VERSION AS OF {old}) AS n, count(*) FROM u").rows() == [(1, 0)]
    assert db.sql(f"SELECT t.id FROM t VERSION AS OF {old} WHERE t.a = 20").rows() == [(2,)]
    assert db.sql(f"SELECT * FROM t VERSION AS OF {old} TABLESAMPLE RESERVOIR (9 ROWS) ORDER BY id").rows()[1] == (
        2,
        20,
    )
    db.sql(f"MERGE INTO t USING t VERSION AS OF {old} AS was ON t.id = was.id WHEN MATCHED THEN UPDATE SET a = was.a "
           "WHEN NOT MATCHED THEN INSERT *")  # fmt: skip
    db.sql(f"INSERT INTO u SELECT * FROM u VERSION AS OF {old}")
    assert sorted(db.sql("SELECT * FROM t").rows()) == [(1, 10), (2, 20), (3, 30)]
    assert db.sql("SELECT * FROM u").rows() == [(1, 100)]


def test_moments_mean_the_version_that_stood_then(db: Database, clock: Clock) -> None:
    db.sql("CREATE TABLE t (a INT) WITH (keep_changes = '2 days')")
    moments = [clock.now]
    for n in range(3):
        clock.now += HOUR
        db.sql(f"INSERT INTO t VALUES ({n})")
        moments.append(clock.now)
    clock.now += HOUR
    for n, moment in enumerate(moments):
        for at in (moment, moment + HOUR - 10_000):
            time = datetime.fromtimestamp(at / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
            found = db.sql(f"SELECT count(*) FROM t TIMESTAMP AS OF '{time}'").rows()
            assert found == [(n,)], (n, at)
    text = "2027-01-15 08:30:00"
    assert db.sql(f"SELECT * FROM t TIMESTAMP AS OF '{text}'").rows() == []
    assert db.sql(f"SELECT * FROM t FOR SYSTEM_TIME AS OF timestamp'{text}' + INTERVAL 1 HOUR").rows() == [(0,)]
    times = db.sql("SELECT time FROM headrace.epochs WHERE epoch > 0 ORDER BY epoch").rows()
    assert times == db.sql("SELECT time FROM headrace.versions").rows()


def test_times_of_versions_outlive_those_of_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.store import writer

    monkeypatch.setattr(writer, "FOLD_EVERY", 5)
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("CREATE TABLE t (a INT) WITH (keep_changes = '1 day')")
        db.sql("INSERT INTO t VALUES (1)")
        at = db.sql("SELECT max(version), max(time) FROM headrace.versions").rows()[0]
        db.sql("CREATE TABLE other (a INT)")
        for n in range(30):
            db.sql(f"INSERT INTO other VALUES ({n})")
        db.sql("DELETE FROM t")
    with headrace.connect(tmp_path / "db", engine="native") as db:
        assert db.sql("SELECT min(epoch) FROM headrace.epochs").rows()[0][0] > at[0]
        text = at[1].strftime("%Y-%m-%d %H:%M:%S.%f")
        assert db.sql(f"SELECT * FROM t TIMESTAMP AS OF '{text}'").rows() == [(1,)]


def test_vacuum_says_first_what_it_would_let_go(db: Database, clock: Clock) -> None:
    db.sql("CREATE TABLE t (a INT) WITH (keep_changes = '1 day')")
    db.sql("INSERT INTO t VALUES (1)")
    inserted = epoch_of(db)
    clock.now += 30 * HOUR
    dry = db.sql("VACUUM t DRY RUN").rows()
    assert [(version, statement) for version, _, statement in dry] == [(inserted - 1, "CREATE TABLE t")]
    assert db.sql("SELECT count(*) FROM t VERSION AS OF 1").rows() == [(0,)]
    assert db.sql("VACUUM t RETAIN 31 HOURS").rows() == [(0, 0, 0)]
    assert db.sql("VACUUM t").rows() == [(1, 1, 0)]
    assert db.sql("VACUUM t DRY RUN").rows() == [] and db.sql("VACUUM t").rows() == [(0, 0, 0)]
    assert db.sql(f"SELECT * FROM t VERSION AS OF {inserted}").rows() == [(1,)]
    assert db.sql("DESCRIBE t").rows()[-1][:2] == ("# keep_changes", "1 day")


def test_a_program_reads_each_change_once(tmp_path: Path, clock: Clock) -> None:
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("CREATE TABLE t (a INT) WITH (keep_changes = '1 day')")
        db.sql("INSERT INTO t VALUES (1), (2)")
        changes = db.changes("t")
        assert changes.position is None
        assert [sorted(rows.column("a").to_pylist()) for rows in changes] == [[1, 2]]
        assert list(changes) == []
        db.sql("UPDATE t SET a = 3 WHERE a = 1")
        db.sql("DELETE FROM t WHERE a = 2")
        position = changes.position
        given = [tuple(row.values()) for rows in changes for row in rows.to_pylist()]
        assert sorted(given) == [(1, 3, -1), (2, 4, -1), (3, 3, 1)]
    with headrace.connect(tmp_path / "db", engine="native") as db:
        again = db.changes("t", since=position)
        assert sorted(tuple(row.values()) for row in again.read().to_pylist()) == sorted(given)
        assert again.read().num_rows == 0 and again.position == 4
        clock.now += 3 * DAY
        db.sql("INSERT INTO t VALUES (4)")
        db.sql("INSERT INTO t VALUES (5)")
        with pytest.raises(HeadraceError) as expired:
            db.changes("t", since=position).read()
        assert expired.value.condition == "VERSION_NOT_KEPT"
        late = db.changes("t", since=5)
        db.sql("DROP TABLE t")
        for refused in (late.read, lambda: db.changes("t")):
            with pytest.raises(HeadraceError) as missing:
                refused()
            assert missing.value.condition == "TABLE_OR_VIEW_NOT_FOUND"
        db.sql("CREATE TABLE t (a INT) WITH (keep_changes = '1 day')")
        with pytest.raises(HeadraceError) as other:  # a position in another table of that name
            db.changes("t", since=6).read()
        assert other.value.condition == "VERSION_NOT_KEPT"


TIME = "INVALID_TIME_TRAVEL_TIMESTAMP_EXPR"
REFUSED = [
    ("SELECT * FROM t ^VERSION AS OF 99", "VERSION_NOT_YET"),
    ("SELECT * FROM t ^VERSION AS OF 0", "VERSION_NOT_KEPT"),
    ("SELECT * FROM t VERSION AS OF ^-1", "PARSE_SYNTAX_ERROR"),
    ("SELECT * FROM t VERSION AS OF ^'x'", "INVALID_VERSION"),
    ("SELECT * FROM t VERSION AS OF ^99999999999999999999", "INVALID_VERSION"),
    ("SELECT * FROM t ^TIMESTAMP AS OF '2020-01-01'", "VERSION_NOT_KEPT"),
    ("SELECT * FROM t ^TIMESTAMP AS OF '9999-01-01'", "VERSION_NOT_YET"),
    ("SELECT * FROM t ^TIMESTAMP AS OF 'x'", f"{TIME}.INPUT"),
    ("SELECT * FROM t ^TIMESTAMP AS OF NULL", f"{TIME}.INPUT"),
    ("SELECT * FROM t TIMESTAMP AS OF ^X'00'", f"{TIME}.INPUT"),
    ("SELECT * FROM t TIMESTAMP AS OF ^(SELECT now())", f"{TIME}.UNEVALUABLE"),
    ("SELECT * FROM t TIMESTAMP AS OF ^max(1)", f"{TIME}.UNEVALUABLE"),
    ("SELECT * FROM t TIMESTAMP AS OF ^rand()", f"{TIME}.NON_DETERMINISTIC"),
    ("SELECT * FROM t TIMESTAMP AS OF ^a", "UNRESOLVED_COLUMN"),
    ("SELECT * FROM plain ^VERSION AS OF 1", "UNSUPPORTED_FEATURE.TIME_TRAVEL"),
    ("SELECT * FROM v ^VERSION AS OF 1", "UNSUPPORTED_FEATURE.TIME_TRAVEL"),
    ("SELECT * FROM s ^VERSION AS OF 1", "UNSUPPORTED_FEATURE.TIME_TRAVEL"),
    ("SELECT * FROM f ^VERSION AS OF 1", "UNSUPPORTED_FEATURE.TIME_TRAVEL"),
    ("SELECT * FROM headrace.tables ^VERSION AS OF 1", "UNSUPPORTED_FEATURE.TIME_TRAVEL"),
    ("WITH t AS (SELECT 1) SELECT * FROM t ^VERSION AS OF 1", "UNSUPPORTED_FEATURE.TIME_TRAVEL"),
    ("SELECT * FROM ^nope VERSION AS OF 1", "TABLE_OR_VIEW_NOT_FOUND"),
    ("CREATE VIEW w AS SELECT * FROM t ^VERSION AS OF 2", "VERSION_IN_VIEW"),
    ("CREATE MATERIALIZED VIEW w AS SELECT count(*) AS n FROM t ^VERSION AS OF 2", "VERSION_IN_VIEW"),
    ("SELECT * FROM ^headrace.changes('t', 0)", "VERSION_NOT_KEPT"),
    ("SELECT * FROM ^headrace.changes('t', 99)", "VERSION_NOT_YET"),
    ("SELECT * FROM ^headrace.changes('t', 2, 1)", "INVALID_ARGUMENT"),
    ("SELECT * FROM headrace.changes('t', ^a)", "INVALID_ARGUMENT"),
    ("SELECT * FROM ^headrace.changes('t', 1, 2, 3)", "WRONG_NUM_ARGS"),
    ("SELECT * FROM ^headrace.changes('plain', 1)", "UNSUPPORTED_FEATURE.TIME_TRAVEL"),
    ("CREATE VIEW w AS SELECT * FROM ^headrace.changes('t', 1)", "SYSTEM_RELATION_IN_VIEW"),
    ("CREATE TABLE w (a INT) WITH (keep_changes = ^'soon')", "INVALID_KEEP_CHANGES"),
    ("CREATE TABLE w (a INT) WITH (keep = ^'1 day')", "TABLE_OPTION_UNKNOWN"),
    ("CREATE TABLE ^w (_epoch INT) WITH (keep_changes = '1 day')", "COLUMN_ALREADY_EXISTS"),
    ("CREATE TABLE ^w WITH (keep_changes = '1 day') AS SELECT 1 AS _weight", "COLUMN_ALREADY_EXISTS"),
    ("OPTIMIZE ^v", "WRONG_COMMAND_FOR_OBJECT_TYPE"),
    ("OPTIMIZE ^f", "WRONG_COMMAND_FOR_OBJECT_TYPE"),
    ("OPTIMIZE t ^ZORDER BY a", "NOT_YET_SUPPORTED"),
    ("VACUUM ^s", "WRONG_COMMAND_FOR_OBJECT_TYPE"),
    ("VACUUM t RETAIN ^-1 HOURS", "PARSE_SYNTAX_ERROR"),
    ("VACUUM t RETAIN 1 HOURS ^FAST", "PARSE_SYNTAX_ERROR"),
    ("VACUUM ^nope", "TABLE_OR_VIEW_NOT_FOUND"),
]


@pytest.mark.parametrize(("text", "condition"), REFUSED)
def test_what_is_refused_is_refused_by_name_and_place(db: Database, tmp_path: Path, text: str, condition: str) -> None:
    db.sql("CREATE TABLE t (a INT) WITH (keep_changes = '1 day')")
    db.sql("INSERT INTO t VALUES (1)")
    db.sql("CREATE TABLE plain (a INT)")
    db.sql("CREATE STREAM s (a INT)")
    db.sql("CREATE VIEW v AS SELECT * FROM t")
    (tmp_path / "f.csv").write_text("1\n")
    db.sql(f"CREATE TABLE f (a INT) USING csv LOCATION '{tmp_path / 'f.csv'}'")
    before = epoch_of(db)
    with pytest.raises(HeadraceError) as refused:
        db.sql(text.replace("^", ""))
    assert refused.value.condition == condition
    assert refused.value.position is not None and refused.value.position.column == text.find("^") + 1
    assert epoch_of(db) == before and db.sql("SELECT * FROM t").rows() == [(1,)]


# A process that is killed


def live(path: Path, said: int) -> None:
    """Change a table again and again, in a way the numbers of versions tell; a line for each that is in."""
    tables.TAIL_ROWS, rewriting.TOGETHER = 20, 3
    with headrace.connect(path, engine="native") as db:
        if db.catalog.find("t") is None:
            db.sql("CREATE TABLE t (n INT, a INT) WITH (keep_changes = '1 day')")
        while True:
            (n,) = db.sql("SELECT coalesce(max(n), -1) + 1 FROM t").rows()[0]
            db.insert("t", [(n, i) for i in range(n % 30 + 1)])
            db.sql(f"DELETE FROM t WHERE n < {n} - 2 OR (n = {n} AND a % 3 = 1)")
            os.write(said, f"{n}\n".encode())


def expected_after(n: int, statement: int) -> list[tuple[int, int]]:
    """The rows when round n has inserted (0), or deleted too (1)."""
    rows: list[tuple[int, int]] = []
    for k in range(n + 1):
        rows += [(k, i) for i in range(k % 30 + 1)]
        if k < n or statement:
            rows = [(m, i) for m, i in rows if m >= k - 2 and not (m == k and i % 3 == 1)]
    return rows


def test_a_killed_process_loses_no_version(tmp_path: Path) -> None:
    path, acknowledged = tmp_path / "db", -1
    context = multiprocessing.get_context("forkserver")
    for killed_after in range(examples(3)):
        reading, writing = os.pipe()
        process = context.Process(target=_live_and_say, args=(path, _fd(writing)))
        process.start()
        os.close(writing)
        with os.fdopen(reading) as lines:
            for k, line in enumerate(lines):
                acknowledged = int(line)
                if k >= 5 + killed_after * 7:
                    process.kill()
        process.join()
        with headrace.connect(path, engine="native") as db:
            listed = db.sql("SELECT version, inserted > 0 FROM headrace.versions WHERE inserted + deleted > 0").rows()
            rounds, last = -1, 0
            for version, inserted in listed:
                rounds += inserted
                last = 0 if inserted else 1
                found = db.sql(f"SELECT * FROM t VERSION AS OF {version}").rows()
                assert Counter(found) == Counter(expected_after(rounds, last)), version
            assert rounds >= acknowledged
            assert Counter(db.sql("SELECT * FROM t").rows()) == Counter(expected_after(rounds, last))
            assert named_files(db) == files_there(db)


def _fd(number: int) -> Any:
    return multiprocessing.reduction.DupFd(number)


def _live_and_say(path: Path, said: Any) -> None:
    live(path, said.detach())


# Spark


@pytest.mark.spark
def test_both_readers_see_the_same_versions(spark: SparkSession) -> None:
    found = {}
    for engine in ("native", "spark"):
        with headrace.connect(None, engine=engine, spark=spark) as db:
            db.sql("CREATE TABLE t (id INT PRIMARY KEY, a DOUBLE, b ARRAY<STRING>) WITH (keep_changes = '1 day')")
            db.insert("t", [{"id": n, "a": -0.0 if n % 2 else NAN, "b": [str(n % 3), None]} for n in range(100)])
            old = epoch_of(db)
            db.sql("DELETE FROM t WHERE id % 10 = 3")
            db.sql("UPDATE t SET a = id WHERE id % 10 = 4")
            found[engine] = [
                multiset(db.sql(f"SELECT * FROM t VERSION AS OF {version}").rows()) for version in range(old, old + 3)
            ]
            found[engine].append(multiset(db.sql(f"SELECT * FROM headrace.changes('t', {old})").rows()))
            # What Spark has to run itself is given the rows of the version, under the table's name.
            listed = "size(collect_list(id) OVER (ORDER BY id DESC)) AS n"
            windowed = f"SELECT t.id, {listed} FROM t VERSION AS OF {old} WHERE id < 5"
            assert sorted(db.sql(windowed).rows()) == [(n, 5 - n) for n in range(5)]
            moment = "TIMESTAMP AS OF current_timestamp() - INTERVAL 1 DAY"
            with pytest.raises(HeadraceError) as early:
                db.sql(f"SELECT * FROM t {moment}")
            assert early.value.condition == "VERSION_NOT_KEPT"
            assert db.sql("SELECT count(*) FROM t TIMESTAMP AS OF current_timestamp()").rows() == [(90,)]
    assert found["native"] == found["spark"]


def follow(spark: SparkSession, path: Path, checkpoint: Path) -> dict[int, list[tuple[Any, ...]]]:
    """The batches of one run of a query over a table's changes."""
    batches: dict[int, list[tuple[Any, ...]]] = {}

    def collect(frame: Any, number: int) -> None:
        batches[number] = sorted(tuple(row) for row in frame.collect())

    frame = spark.readStream.format("headrace").option("path", str(path)).option("changes", "t").load()
    writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination(300)
    return batches


@pytest.mark.spark
def test_a_stream_has_each_epochs_own_change(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(HeadraceSource)
    path, checkpoint = tmp_path / "db", tmp_path / "checkpoint"
    with headrace.connect(path, engine="native", spark=spark) as db:
        db.sql("CREATE TABLE t (id INT, a INT) WITH (keep_changes = '1 day')")
        db.sql("INSERT INTO t VALUES (1, 1), (2, 2)")
        assert follow(spark, path, checkpoint) == {0: [(1, 1, 2, 1), (2, 2, 2, 1)]}
        db.sql("UPDATE t SET a = 3 WHERE id = 1")
        db.sql("UPDATE t SET a = 1 WHERE id = 1")  # nothing, if the two were one
        second = follow(spark, path, checkpoint)
        assert second == {1: [(1, 1, 3, -1), (1, 1, 4, 1), (1, 3, 3, 1), (1, 3, 4, -1)]}
    for name in ("commits/1", "commits/.1.crc"):  # as if Spark had died before it noted that the batch was done
        (checkpoint / name).unlink(missing_ok=True)
    with headrace.connect(path, engine="native", spark=spark) as db:
        db.sql("DELETE FROM t WHERE id = 2")
        again = follow(spark, path, checkpoint)
        assert again == {**second, 2: [(2, 2, 5, -1)]}


def test_a_chain_of_links_goes_on_where_changes_are_not_kept(tmp_path: Path, clock: Clock) -> None:
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("CREATE TABLE t (id INT, a INT) WITH (keep_changes = '1 day')")
        question = {"what": "changes", "relation": "t"}
        assert published.reply_to(db, question) == {"epoch": 0}
        db.sql("INSERT INTO t VALUES (1, 1), (2, 2)")
        assert published.reply_to(db, question) == {"epoch": 2}
        db.sql("UPDATE t SET a = a + 1")
        db.sql("DELETE FROM t WHERE id = 1")
        assert published.reply_to(db, question) == published.reply_to(db, question) == {"epoch": 4}
        clock.now += 2 * DAY
        for n in (7, 8, 9):  # the first two are let go of before anybody asks
            db.sql(f"INSERT INTO t VALUES ({n}, {n})")
            clock.now += 2 * DAY
        db.sql("UPDATE t SET a = 0 WHERE id = 9")
        assert published.reply_to(db, question) == {"epoch": epoch_of(db)}
        chain = Chain(db.path, published.definition(db.path, "t").key)
        links = [parquet_rows(file).to_pylist() for file in chain.between(0, epoch_of(db))]
        assert [len(link) for link in links] == [2, 5, 3]
        total: Counter[Any] = Counter()
        for row in (row for link in links for row in link):
            total[row["id"], row["a"]] += row["_weight"]
        assert +total == Counter(db.sql("SELECT * FROM t").rows())
        assert {row["_epoch"] for row in links[1]} == {3, 4} and {row["_epoch"] for row in links[2]} == {epoch_of(db)}
