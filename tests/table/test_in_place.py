"""Spark reads tables where they lie: the rows every other reader sees, and nothing is written that is there already."""

from __future__ import annotations

import datetime as dt
import os
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_changed_rows import ROWS, Rows, Step, done, steps

import headrace
from headrace import Database
from headrace.base import copies
from headrace.base.parquet_files import parquet_rows
from headrace.spark import published
from headrace.table import rows as tables
from headrace.table.frames import table_frame
from profiles import examples

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def db(spark: SparkSession, tmp_path: Path) -> Iterator[Database]:
    with headrace.connect(tmp_path / "db", spark=spark) as db:
        yield db


@pytest.fixture
def short_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rows are a segment."""
    monkeypatch.setattr(tables, "TAIL_ROWS", 10)


def files(db: Database) -> list[str]:
    """All files of rows, by their names below the database."""
    return sorted(str(f.relative_to(db.path)) for f in db.path.rglob("*.parquet"))


def ordered(rows: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows), key=repr)


def native(db: Database) -> list[tuple[Any, ...]]:
    return ordered(db.sql("SELECT * FROM t").rows())


def by_spark(db: Database) -> list[tuple[Any, ...]]:
    """The same by Spark SQL, which alone knows this function."""
    return [row[:-1] for row in ordered(db.sql("SELECT *, soundex('x') AS s FROM t").rows())]


def by_frame(db: Database) -> list[tuple[Any, ...]]:
    return ordered(db.table("t").collect())


@settings(max_examples=examples(8))
@given(
    keyed=st.booleans(),
    first=ROWS,
    source=ROWS,
    todo=st.lists(st.tuples(steps(), ROWS, st.booleans(), st.booleans()), min_size=1, max_size=5),
)
def test_both_readers_see_the_same_rows_after_any_history(
    spark: SparkSession, keyed: bool, first: Rows, source: Rows, todo: list[tuple[Step, Rows, bool, bool]]
) -> None:
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr(tables, "TAIL_ROWS", 5)  # so that rows lie in segments and in the tail
        db = headrace.connect(Path(folder) / "db", spark=spark)
        try:
            db.sql(f"CREATE TABLE t (id INT {'PRIMARY KEY' if keyed else ''}, a INT, b STRING)")
            db.sql("CREATE TABLE s (id INT, a INT, b STRING)")
            db.insert("s", source)
            expected: Rows = []
            taken: list[tuple[DataFrame, list[tuple[Any, ...]]]] = []
            for (text, meant), more, again, by in (((("", lambda t, s: t)), first, False, True), *todo):
                expected = done(db, "INSERT", lambda t, s, more=more: [*t, *more], expected, source, keyed, more)
                if text:
                    object.__setattr__(db.runtime.settings, "engine", "spark" if by else "auto")
                    expected = done(db, text, meant, expected, source, keyed)
                    object.__setattr__(db.runtime.settings, "engine", "auto")
                if again:
                    db.close()
                    taken.clear()
                    db = headrace.connect(Path(folder) / "db", spark=spark)
                taken.append((db.table("t"), ordered(expected)))
                assert by_spark(db) == ordered(expected) == native(db)
            for frame, rows in taken:
                assert ordered(frame.collect()) == rows
        finally:
            db.close()


def history(db: Database) -> None:
    """A table with segments, whole and with deleted rows, and a tail."""
    db.sql("CREATE TABLE t (id INT, a INT)")
    db.insert("t", [(n, n) for n in range(12)])
    db.insert("t", [(n, n) for n in range(12, 30)])
    db.insert("t", [(n, n) for n in range(30, 34)])
    db.sql("DELETE FROM t WHERE id IN (3, 5, 33)")


def test_a_frame_shows_its_own_epoch_whatever_comes_later(db: Database, short_tails: None) -> None:
    history(db)
    before = native(db)
    frame = db.table("t")
    few = frame.filter("a > 20").select("id")
    for text in (
        "UPDATE t SET a = -a",
        "DELETE FROM t WHERE id < 20",
        "INSERT OVERWRITE t SELECT 1, 1",
        "TRUNCATE TABLE t",
        "DROP TABLE t",
        "CREATE TABLE t (other STRING)",
    ):
        db.sql(text)
        assert ordered(frame.collect()) == before, text
        assert ordered(few.collect()) == [(n,) for n in range(21, 33)], text
    assert by_frame(db) == []


def test_nothing_is_written_when_nothing_changed(db: Database, short_tails: None) -> None:
    history(db)
    assert len(native(db)) == 31
    segments = files(db)
    assert by_spark(db) == native(db)
    once = files(db)
    assert {Path(f).name for f in set(once) - set(segments)} == {"tail.parquet", "places.parquet"}
    for _ in range(3):
        assert by_spark(db) == native(db)
        assert files(db) == once
    db.table("t")
    kept = files(db)
    assert {Path(f).name for f in set(kept) - set(once)} == {Path(f).name for f in segments}
    links = [f for f in db.path.rglob("*.parquet") if f.stat().st_nlink == 2]
    assert len(links) == 2 * len(segments)
    db.table("t")
    assert files(db) == kept


def test_files_of_older_epochs_go(db: Database, short_tails: None) -> None:
    history(db)
    for n in range(3):
        db.sql(f"UPDATE t SET a = {n} WHERE id = 4")
        assert by_spark(db) == native(db)
        assert sum(f.endswith("tail.parquet") for f in files(db)) == 1
    path = db.path
    db.table("t")
    db.close()
    assert not list((path / "scratch").iterdir())


def test_files_nobody_asks_for_any_more_go(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_MOST", 2)
    for n in range(5):
        db.sql(f"CREATE TABLE t{n} (a INT)")
        db.sql(f"INSERT INTO t{n} VALUES ({n})")
        assert db.sql(f"SELECT a, soundex('x') FROM t{n}").rows() == [(n, "X000")]
    assert len(files(db)) == 2


def test_where_there_are_no_links_files_are_copied(
    db: Database, short_tails: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    history(db)
    monkeypatch.setattr(os, "link", refuse)
    before, frame = native(db), db.table("t")
    db.sql("TRUNCATE TABLE t")
    assert ordered(frame.collect()) == before


def test_odd_names_and_types_are_as_they_were(db: Database, short_tails: None) -> None:
    """A file's metadata and its columns do not get into each other's way."""
    columns = (
        "`_metadata` STRUCT<file_name: STRING, row_index: INT>, row_index INT, file_name STRING, `___row` INT, "
        "`___FILE` INT, `a.b` DECIMAL(38,2), `x, y;{}()=` TIMESTAMP, `q``r` TIMESTAMP_NTZ, d DATE, c CHAR(3), "
        "v VARCHAR(5), m MAP<STRING, ARRAY<STRUCT<k: DOUBLE, `l.m`: BINARY>>>, f FLOAT, y TINYINT, "
        "é BOOLEAN, small DECIMAL(5,1)"
    )
    db.sql(f"CREATE TABLE t ({columns})")
    moment = dt.datetime(2024, 3, 31, 1, 30, 0, 123456)
    full = (
        {"file_name": "x", "row_index": 7}, 1, "f", 2, 3, Decimal("-12345678901234567890.12"),
        moment.replace(tzinfo=dt.UTC), moment, dt.date(1500, 2, 3), "ab", "vwxyz",
        {"k": [{"k": float("nan"), "l.m": b"\0\xff"}, None], "e": None}, 1.5, -128, True, Decimal("-9999.9"),
    )  # fmt: skip
    empty = (None,) * 16
    for n in range(12):
        db.insert("t", [(*full[:1], n, *full[2:]), empty])
    db.sql("DELETE FROM t WHERE row_index = 3")
    db.sql("DELETE FROM t WHERE row_index = 11")
    arrow = db.sql("SELECT * FROM t").arrow()
    frame = db.table("t")
    assert frame.columns == arrow.column_names
    names = [f.name for f in db.catalog.get("t").columns]
    types = [f.dataType.simpleString() for f in frame.schema.fields]
    assert types == [f.type.sql.replace("`l.m`", "l.m") for f in db.catalog.get("t").columns], names
    for found in (db.sql("SELECT *, soundex('') AS s FROM t").arrow().drop_columns(["s"]), frame.toArrow()):
        assert told(found.cast(arrow.schema)) == told(arrow)


def told(rows: pa.Table) -> list[str]:
    """Rows as text, in which NaN is like any other value."""
    return sorted(repr(row) for row in zip(*(c.to_pylist() for c in rows.columns), strict=True))


def test_an_answer_is_written_once(db: Database) -> None:
    db.sql("CREATE STREAM s (k INT)")
    db.sql("CREATE VIEW v AS SELECT k, count(*) AS n FROM s GROUP BY k")
    db.insert("s", [(1,), (1,), (2,)])
    text = "SELECT k, n, soundex('x') AS s FROM v"
    assert ordered(db.sql(text).rows()) == [(1, 2, "X000"), (2, 1, "X000")]
    once = files(db)
    assert len(once) == 1
    assert len(db.sql(text).rows()) == 2
    assert files(db) == once
    frame = db.table("v")
    twice = files(db)
    db.table("v")
    assert files(db) == twice
    db.insert("s", [(2,)])
    assert ordered(db.sql(text).rows()) == [(1, 2, "X000"), (2, 2, "X000")]
    assert ordered(db.sql("SELECT * FROM v").rows()) == [(1, 2), (2, 2)]
    assert len(files(db)) == len(twice), "that of the older answer has gone"
    assert ordered(frame.collect()) == [(1, 2), (2, 1)]


def test_a_state_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db", spark=spark, engine="spark", state_memory=1) as db:
        db.sql("CREATE STREAM s (k STRING, d STRING)")
        db.sql("CREATE VIEW v AS SELECT k, count(DISTINCT d) AS n FROM s GROUP BY k")
        db.insert("s", [("a", "x"), ("a", "y"), ("b", None)])
        assert ordered(db.sql("SELECT * FROM v").rows()) == [("a", 2), ("b", 0)]
        once = files(db)
        assert len(once) == 2, "groups, and values of groups"
        assert ordered(db.sql("SELECT * FROM v").rows()) == [("a", 2), ("b", 0)]
        assert files(db) == once
        db.insert("s", [("b", "z")])
        assert ordered(db.sql("SELECT * FROM v").rows()) == [("a", 2), ("b", 1)]
        assert len(files(db)) == 2


def test_rows_of_spark_jobs_are_of_one_epoch(db: Database, short_tails: None) -> None:
    """Rows that go while a job runs are there for it."""
    history(db)
    before = native(db)
    with db.runtime.store.read() as snapshot:
        table = db.catalog.get("t")
        with table_frame(db.runtime, snapshot, table) as frame:
            db.sql("TRUNCATE TABLE t")
            assert ordered(frame.collect()) == before
    assert native(db) == [] == by_spark(db)
    assert not [f for f in files(db) if f.startswith("segments")]


def test_links_that_a_killed_process_left_are_removed(db: Database, short_tails: None) -> None:
    """A database whose files have other names is not trusted, but these are its own."""
    history(db)
    before, path = native(db), db.path
    db.close()
    left = path / "scratch" / "copy-1"
    left.mkdir()
    for file in (path / "segments").iterdir():
        os.link(file, left / file.name)
    with headrace.connect(path) as again:
        assert native(again) == before
        assert not list((path / "scratch").iterdir())


def test_other_applications_are_given_a_copy_made_row_group_by_row_group(
    db: Database, short_tails: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    history(db)
    monkeypatch.setattr(Database, "rows_at", lambda self, name: pytest.fail("all rows in memory"))
    reply = published.reply_to(db, {"what": "rows", "relation": "T"})
    rows = parquet_rows(published.published_file(db.path, reply["file"]))
    assert ordered(zip(*(c.to_pylist() for c in rows.columns), strict=True)) == native(db)
    assert published.reply_to(db, {"what": "rows", "relation": "t"}) == reply


def test_an_answer_with_two_columns_of_one_name(db: Database) -> None:
    db.sql("CREATE TABLE t (id INT)")
    db.sql("INSERT INTO t VALUES (1)")
    frame = db.sql("SELECT id, id, NULL AS n FROM t").spark()
    assert frame.columns == ["id", "id", "n"]
    assert ordered(frame.collect()) == [(1, 1, None)]


def test_a_large_table_is_not_read_by_this_process(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.sql("CREATE TABLE t (id INT, a STRING)")
    rows = pa.table({"id": pa.array(range(tables.TAIL_ROWS), pa.int32()), "a": ["x"] * tables.TAIL_ROWS})
    db.insert("t", rows)
    copied: list[int] = []
    monkeypatch.setattr(
        "headrace.table.frames.conform", lambda rows, schema: copied.append(rows.num_rows) or rows.cast(schema)
    )
    assert db.sql("SELECT sum(id) AS s, max(soundex(a)) AS m FROM t").rows() == [(sum(range(tables.TAIL_ROWS)), "X000")]
    assert db.table("t").count() == tables.TAIL_ROWS
    assert not copied
