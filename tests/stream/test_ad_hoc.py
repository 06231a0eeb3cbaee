"""Queries of a stream itself: what they answer, how they end, what they refuse."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from differential.harness import assert_same, frame, oracle_session, table_rows
from headrace.database import Database
from headrace.errors import ExecutionError, HeadraceError
from headrace.keep.home import InMemory
from headrace.rings import Ring, Scan
from headrace.rings.home import Rings
from headrace.statement.running_result import RunningResult
from headrace.stream import ad_hoc, window
from posts import POSTS, USER_ROWS, USERS, fill, inserting, posts
from profiles import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect() as db:
        fill(db)
        yield db


QUERIES = (
    "SELECT uid, score + 1 AS more, content FROM posts WHERE score > 400",
    "SELECT count(*), sum(score), max(content) FROM posts",
    "SELECT uid, avg(score) AS a, count(DISTINCT username) FROM posts GROUP BY uid",
    "SELECT p.uid, u.name, p.score FROM posts p LEFT JOIN users u ON p.uid = u.id WHERE p.score % 3 = 0",
    "SELECT region, sum(score) FROM posts JOIN users ON uid = id GROUP BY region HAVING sum(score) > 10",
    "SELECT name FROM users WHERE id IN (SELECT uid FROM posts WHERE score > 900)",
    "SELECT * FROM posts ORDER BY score DESC, content LIMIT 7",
    "SELECT count(*) FROM (SELECT * FROM posts ORDER BY score LIMIT 10) x",
    "SELECT u.id, p.score FROM users u LEFT JOIN posts p ON u.id = p.uid AND p.score > 950",
    "SELECT u.id, p.n FROM users u FULL JOIN (SELECT uid, count(*) AS n FROM posts GROUP BY uid) p ON u.id = p.uid",
    "SELECT a.uid, count(*) FROM posts a JOIN posts b ON a.uid = b.uid AND a.score = b.score GROUP BY a.uid",
    "SELECT uid FROM posts WHERE score > 990 UNION ALL SELECT id FROM users",
    "SELECT DISTINCT username FROM posts EXCEPT SELECT 'user3'",
    "SELECT p.score FROM posts p JOIN (SELECT max(score) AS top FROM posts) t ON p.score = t.top",
    "SELECT username, count(*) FROM posts GROUP BY username LIMIT 100",
    "SELECT DISTINCT uid FROM posts LIMIT 50",
    "SELECT u.name, u.rate, i.score FROM users u JOIN (SELECT uid, avg(score) AS score FROM posts GROUP BY uid) i "
    "ON u.id = i.uid WHERE i.score >= 100 AND u.region = 'DE' ORDER BY u.rate / i.score",
    "SELECT uid, score, rank() OVER (PARTITION BY uid ORDER BY score, content) AS r FROM posts WHERE score > 900",
    # Spark SQL runs a part of these:
    "SELECT reverse(username) AS r, count(*) FROM posts GROUP BY reverse(username)",
    "SELECT uid, percentile(score, 0.5) FROM posts GROUP BY uid",
    "SELECT reverse(u.region) AS r, count(*) FROM posts JOIN users u ON uid = u.id GROUP BY reverse(u.region)",
)


@pytest.mark.spark
def test_differential_queries_equal_spark_batch(spark: SparkSession) -> None:
    """All queries at once, over one stream that is cut anyhow: each answers what Spark does for all rows."""
    session = oracle_session(spark)
    frame(session, POSTS, posts(0, 1500)).createOrReplaceTempView("posts")
    frame(session, USERS, USER_ROWS).createOrReplaceTempView("users")
    with headrace.connect(spark=spark) as db:
        fill(db, "WITH (capacity = 400, timeout = '2 hours')")
        running = [db.sql(query) for query in QUERIES]
        inserting(db, [posts(0, 300), posts(300, 1), posts(301, 899), posts(1200, 300)]).join()
        for query, result in zip(QUERIES, running, strict=True):
            expected = session.sql(query).toArrow()
            found = result.finish().arrow()
            assert found.schema.names == expected.schema.names, query
            assert_same(table_rows(found), table_rows(expected), ordered="LIMIT 7" in query, where=query)


@settings(max_examples=examples(5))
@given(
    cuts=st.lists(st.integers(0, 700), max_size=5),
    capacity=st.integers(8, 300),
    begun=st.integers(0, 3),
    query=st.sampled_from(QUERIES[:6]),
)
def test_differential_any_chunking_and_capacity(cuts: list[int], capacity: int, begun: int, query: str) -> None:
    """A query answers for the rows that came after it began, as a view made then does for a grouping."""
    marks = sorted({0, 700, *cuts})
    chunks = [posts(a, b - a) for a, b in itertools.pairwise(marks)]
    with headrace.connect() as db:
        fill(db, f"WITH (capacity = {capacity}, timeout = '2 hours')")
        for chunk in chunks[:begun]:
            db.insert("posts", chunk)
        running = db.sql(query)
        thread = inserting(db, chunks[begun:])
        thread.join()
        found = running.finish().rows()
        db.sql(f"CREATE TABLE seen ({POSTS})")
        for chunk in chunks[begun:]:
            db.insert("seen", chunk)
        assert_same(found, db.sql(query.replace("posts", "seen")).rows())


def test_a_query_begins_at_the_newest_row_or_at_the_oldest_still_there(db: Database) -> None:
    db.insert("posts", posts(0, 1500))
    newest, oldest = db.sql("SELECT score FROM posts"), db.sql("SELECT p.score FROM posts@OLDEST AS p")
    db.insert("posts", posts(1500, 10))
    assert len(newest.finish()) == 10
    assert [r[0] for r in oldest.finish()] == [p[2] for p in posts(500, 1010)]


class Clock:
    """The clock of scans, which can be put forward."""

    ahead, sleep = 0, staticmethod(time.sleep)

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() + self.ahead * 10**9


def test_the_window_ends_when_the_stream_pauses(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("headrace.rings.scan.time", clock)
    db.sql(f"CREATE STREAM seldom ({POSTS}) WITH (capacity = 100, timeout = '2000 seconds')")
    running: Any = db.sql("SELECT count(*) FROM seldom")
    (scan,) = running._query._scans
    for n in range(4):
        clock.ahead += 1000  # not yet a pause
        last = clock.monotonic()
        db.insert("seldom", posts(n, 1))
        while scan.lag:
            time.sleep(0.001)
    while running.is_running:
        clock.ahead += 100
        time.sleep(0.05)
    assert running.rows() == [(4,)]
    assert clock.monotonic() - last >= 2000


def test_rows_stream_out_as_they_come(db: Database) -> None:
    running = db.sql("SELECT uid, content FROM posts WHERE score >= 0")
    batches = running.batches()
    for n in range(3):
        db.insert("posts", posts(10 * n, 10))
        assert next(batches).num_rows == 10
    running.finish()
    assert list(batches) == []


def test_a_limit_ends_the_window(db: Database) -> None:
    running = db.sql("SELECT score FROM posts LIMIT 5")
    db.insert("posts", posts(0, 20))
    began = time.monotonic()
    assert len(running.rows()) == 5
    assert time.monotonic() - began < 3600  # of two hours


def test_cancel_and_interrupt_end_a_query(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    running = db.sql("SELECT count(*) FROM posts")
    running.cancel()
    with pytest.raises(HeadraceError, match="QUERY_CANCELLED"):
        running.rows()
    interrupted = db.sql("SELECT count(*) FROM posts")
    wait_for, me = interrupted._query._changed.wait_for, threading.get_ident()

    def raising(*args: Any) -> Any:
        if threading.get_ident() != me:
            return wait_for(*args)  # the query's own thread
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(interrupted._query._changed, "wait_for", raising)
    with pytest.raises(KeyboardInterrupt):
        interrupted.rows()
    with pytest.raises(HeadraceError, match="QUERY_CANCELLED"):
        interrupted.rows()
    db.insert("posts", posts(0, 3000))  # nobody is waited for


def test_leaving_the_batches_cancels(db: Database) -> None:
    running = db.sql("SELECT uid FROM posts")
    db.insert("posts", posts(0, 10))
    for _ in running.batches():
        break
    running._query.wait(500)
    assert not running.is_running


def test_closing_the_database_ends_its_queries(tmp_path: Path) -> None:
    db = headrace.connect(tmp_path / "d")
    fill(db)
    running = db.sql("SELECT count(*) FROM posts")
    db.close()
    with pytest.raises(HeadraceError):
        running.rows()
    assert not (tmp_path / "d" / "rings").exists()


def test_views_and_queries_see_the_same_rows(db: Database, tmp_path: Path) -> None:
    db.sql("CREATE VIEW per_user AS SELECT uid, count(*) AS n, sum(score) AS s FROM posts GROUP BY uid")
    running = db.sql("SELECT uid, count(*) AS n, sum(score) AS s FROM posts GROUP BY uid")
    db.insert("posts", posts(0, 700))
    with pytest.raises(HeadraceError):
        db.insert("posts", [*posts(0, 5), ("not a number", "x", 1, "y")])
    db.sql("INSERT INTO posts (uid, score) VALUES (1, 5), (9, 7)")
    file = tmp_path / "posts.csv"
    file.write_text("".join(f"{n % 3},name,{n},some content that is long\n" for n in range(5000)))
    db.copy("posts", file)
    assert_same(running.finish().rows(), db.sql("SELECT * FROM per_user").rows())


def test_a_query_fails_rather_than_miss_committed_rows(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.sql("CREATE VIEW n AS SELECT count(*) AS n FROM posts")
    running = db.sql("SELECT count(*) FROM posts")

    def full(*_: Any, **__: Any) -> None:
        raise ExecutionError("STREAM_MEMORY_FULL", "no room")

    with monkeypatch.context() as patched:
        patched.setattr(Ring, "write", full)
        assert db.insert("posts", posts(0, 5)) == 5
    assert db.sql("SELECT * FROM n").rows() == [(5,)]
    with pytest.raises(HeadraceError, match="STREAM_ROLLED_BACK"):
        running.finish().rows()


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_copy_feeds_queries_with_columns_left_out(db: Database, tmp_path: Path, format: str) -> None:
    path = tmp_path / f"posts.{format}"
    table = pa.table({"score": pa.array(range(3000), pa.int32()), "uid": pa.array([7] * 3000, pa.int32())})
    if format == "csv":
        path.write_text("".join(f"{n},7\n" for n in range(3000)))
    else:
        pa.parquet.write_table(table, path)
    running = db.sql("SELECT uid, count(*), sum(score), count(content) FROM posts GROUP BY uid")
    db.sql(f"COPY posts (score, uid) FROM '{path}'")
    assert running.finish().rows() == [(7, 3000, sum(range(3000)), 0)]


def test_copy_of_some_columns_passes_the_others_of_a_header_over(db: Database, tmp_path: Path) -> None:
    file = tmp_path / "posts.csv"
    file.write_text("content,score,username,uid\n" + "".join(f"text,{n},name,not read\n" for n in range(300)))
    running = db.sql("SELECT sum(score), count(content), count(uid), count(username) FROM posts")
    db.sql(f"COPY posts (username, score) FROM '{file}' WITH (header true)")
    assert running.finish().rows() == [(sum(range(300)), 0, 0, 300)]
    with pytest.raises(HeadraceError, match="UNKNOWN_COLUMN"):
        db.sql(f"COPY users (id) FROM '{file}' WITH (header true)")


def test_a_stream_without_options_is_buffered_only_while_it_is_read(db: Database) -> None:
    db.sql(f"CREATE STREAM plain ({POSTS})")
    stream: Any = db.catalog.get("plain")
    db.insert("plain", posts(0, 10))
    assert db.runtime.rings.find(stream) is None
    running = db.sql("SELECT count(*) FROM plain")
    db.insert("plain", posts(0, 10))
    assert running.finish().rows() == [(10,)]
    running._query.wait(500)
    assert db.runtime.rings.find(stream) is None
    assert db.runtime.rings.wanted(stream) is None


def test_overwritten_queries_say_so(db: Database) -> None:
    db.sql(f"CREATE STREAM fast ({POSTS}) WITH (capacity = 10, overflow = 'overwrite')")
    running = db.sql("SELECT count(*) FROM fast")
    db.insert("fast", posts(0, 1000))
    with pytest.raises(HeadraceError, match="STREAM_OVERRUN"):
        running.finish().rows()


def test_a_full_stream_refuses_inserts_whole(db: Database) -> None:
    db.sql(f"CREATE STREAM tight ({POSTS}) WITH (capacity = 10, overflow = 'error')")
    db.sql("CREATE VIEW n AS SELECT count(*) AS n FROM tight")
    running = db.sql("SELECT count(*) FROM tight")
    with pytest.raises(HeadraceError, match="STREAM_FULL"):
        db.insert("tight", posts(0, 50))
    db.insert("tight", posts(0, 5))
    assert running.finish().rows() == [(5,)]
    assert db.sql("SELECT * FROM n").rows() == [(5,)]


def test_insert_and_create_table_from_a_stream(db: Database) -> None:
    db.insert("posts", posts(0, 1))

    def insert() -> None:
        while not db.runtime.rings.open(db.catalog.get("posts")).book.has_readers:
            time.sleep(0.001)
        db.insert("posts", posts(0, 20))
        while not db._reader._running:
            time.sleep(0.001)
        (running,) = db._reader._running
        running.finish()

    thread = threading.Thread(target=insert)
    thread.start()
    db.sql("CREATE TABLE kept AS SELECT uid, score FROM posts WHERE score > 300")
    thread.join()
    assert len(db.sql("SELECT * FROM kept")) == sum(p[2] > 300 for p in posts(0, 20))


def test_explain_shows_the_probe_side_and_the_columns_read(db: Database) -> None:
    lines = db.sql("EXPLAIN SELECT region, sum(score) FROM users JOIN posts@OLDEST ON id = uid GROUP BY region").rows()
    text = "\n".join(line for (line,) in lines)
    assert "Query over stream posts, from the oldest buffered row on; ends after 2 hours without a row" in text
    assert "reads uid, score of a buffer of 1,000 rows" in text
    assert "As rows of posts come, on the probe side" in text
    assert "build side b0 of users" in text


def test_show_streams(db: Database) -> None:
    running = db.sql("SELECT count(*) FROM posts")
    db.insert("posts", posts(0, 10))
    shown = db.sql("SHOW STREAMS").arrow().to_pylist()[0]
    assert shown["capacity"] == 1000
    assert shown["head"] == 10
    assert shown["readers"] == 1
    assert shown["overruns"] == shown["lost_rows"] == 0
    assert shown["text_bytes"] > 0
    running.cancel()


def test_nested_columns_are_left_out_of_the_buffer(db: Database) -> None:
    db.sql("CREATE STREAM deep (a INT, tags ARRAY<STRING>)")
    running = db.sql("SELECT a FROM deep")
    db.insert("deep", [(1, ["x"])])
    assert running.finish().rows() == [(1,)]
    with pytest.raises(HeadraceError, match="its buffer holds no array<string>"):
        db.sql("SELECT tags FROM deep")


def test_leftovers_of_a_killed_process_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rings = Rings(tmp_path, tmp_path)
    folder = rings._claim(tmp_path)
    others = Rings(tmp_path, tmp_path)
    assert folder.exists()  # its owner lives
    os.close(rings._folders.pop()[1])  # as the kernel does when it dies
    with_others = Rings(tmp_path, tmp_path)
    assert not folder.exists()
    for left in (others, with_others):
        left.close()


BAD: tuple[tuple[str, str], ...] = (
    ("CREATE STREAM s (a INT) WITH (capacity = 0)", "INVALID_CAPACITY"),
    ("CREATE STREAM s (a INT) WITH (capacity = 'many')", "INVALID_CAPACITY"),
    ("CREATE STREAM s (a INT) WITH (capacity = -5)", "INVALID_CAPACITY"),
    ("CREATE STREAM s (a INT) WITH (capacity = 1000000000000)", "STREAM_CAPACITY_TOO_LARGE"),
    ("CREATE STREAM s (a INT) WITH (timeout = '0 seconds')", "INVALID_TIMEOUT"),
    ("CREATE STREAM s (a INT) WITH (timeout = 0)", "INVALID_TIMEOUT"),
    ("CREATE STREAM s (a INT) WITH (patience = '-1 second')", "INVALID_PATIENCE"),
    ("CREATE STREAM s (a INT) WITH (patience = '200000 days')", "INVALID_PATIENCE"),
    ("CREATE STREAM s (a INT) WITH (overflow = 'drop')", "INVALID_OVERFLOW"),
    ("CREATE STREAM s (a INT) WITH (size = 5)", "STREAM_OPTION_UNKNOWN"),
    ("CREATE STREAM s (a INT) WITH (capacity = 5, capacity = 6)", "STREAM_REPEATED_OPTION"),
    ("SELECT * FROM users@OLDEST", "POSITION_OF_NO_STREAM"),
    ("SELECT * FROM posts@MIDDLE", "STREAM_POSITION_UNKNOWN"),
    ("SELECT a.uid FROM posts a JOIN posts@OLDEST b ON a.uid = b.uid", "STREAM_POSITIONS_DIFFER"),
    ("CREATE VIEW v AS SELECT count(*) AS n FROM posts@OLDEST", "STREAM_POSITION_IN_VIEW"),
)


@pytest.mark.parametrize(("text", "condition"), BAD)
def test_bad_statements_are_refused_by_name(db: Database, text: str, condition: str) -> None:
    with pytest.raises(HeadraceError) as error:
        db.sql(text)
    assert error.value.condition == condition
    assert error.value.hint or condition == "STREAM_REPEATED_OPTION"
    assert db.catalog.find("s") is None


def test_options_survive_reopening(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "d") as db:
        fill(db, "WITH (capacity = 77, timeout = '1 hour', overflow = 'overwrite', patience = '3 seconds')")
    with headrace.connect(tmp_path / "d") as db:
        assert db.sql("SHOW STREAMS").arrow().to_pylist()[0]["capacity"] == 77
        running = db.sql("SELECT count(*) FROM posts")
        db.insert("posts", posts(0, 5))
        assert running.finish().rows() == [(5,)]


def test_rows_of_a_stream_beyond_the_backlog_make_a_table_and_nobody_waits_for_it(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ad_hoc, "_BACKLOG", 1 << 12)
    made = threading.Thread(target=lambda: db.sql("CREATE TABLE kept AS SELECT uid, content FROM posts"))
    made.start()
    while not db.runtime.rings.open(db.catalog.get("posts")).book.has_readers:
        time.sleep(0.001)
    db.sql("CREATE TABLE meanwhile (a INT)")
    for n in range(20):
        db.insert("posts", posts(100 * n, 100))
    (running,) = db._reader._running
    running.finish()
    made.join(500)
    assert not made.is_alive()
    assert len(db.sql("SELECT * FROM kept")) == 2000


def test_a_stream_whose_buffer_finds_no_room_is_not_made_and_bars_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise ExecutionError("STREAM_CAPACITY_TOO_LARGE", "no room", hint="give a smaller capacity")

    path = tmp_path / "d"
    with headrace.connect(path) as db:
        with monkeypatch.context() as patched:
            patched.setattr(Rings, "_room", full)
            with pytest.raises(HeadraceError, match="STREAM_CAPACITY_TOO_LARGE"):
                fill(db)
        assert db.catalog.find("posts") is None
        fill(db)
    with monkeypatch.context() as patched:
        patched.setattr(Rings, "_room", full)
        with pytest.warns(UserWarning, match="posts is not buffered"):
            db = headrace.connect(path)
    with db:
        db.insert("posts", posts(0, 10))
        running = db.sql("SELECT count(*) FROM posts")  # there is room by now
        db.insert("posts", posts(10, 5))
        assert running.finish().rows() == [(5,)]


def test_a_view_has_rows_that_a_query_keeps_an_insert_waiting_for(db: Database) -> None:
    db.sql("CREATE VIEW n AS SELECT count(*) AS n FROM posts")
    ring = db.runtime.rings.open(db.catalog.get("posts"))
    still = Scan.start(ring, ["score"])  # reads nothing
    waiting = inserting(db, [posts(0, 3000)])
    deadline = time.monotonic() + 500
    while db.sql("SELECT * FROM n").rows() != [(3000,)]:
        assert time.monotonic() < deadline, "the view waits for the query"
    assert waiting.is_alive()
    still.give_up()
    waiting.join(500)
    assert not waiting.is_alive()


def test_a_query_that_begins_as_another_ends_has_a_ring(db: Database) -> None:
    db.sql(f"CREATE STREAM plain ({POSTS})")
    threads = [
        threading.Thread(target=lambda: [db.sql("SELECT count(*) FROM plain").finish().rows() for _ in range(30)])
        for _ in range(3)
    ]
    failed: list[BaseException] = []
    before, threading.excepthook = threading.excepthook, lambda found: failed.append(found.exc_value)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.excepthook = before
    assert not failed


def test_many_groups_are_not_merged_for_every_batch(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    merge, merges = InMemory._whole, []
    take, taken = InMemory.take, []

    def counted(home: InMemory, tables: Any) -> pa.Table:
        merges.append(home)
        return merge(home, tables)

    def noted(home: InMemory, rows: pa.Table) -> None:
        take(home, rows)
        taken.append(rows.num_rows)

    monkeypatch.setattr(InMemory, "_whole", counted)
    monkeypatch.setattr(InMemory, "take", noted)
    monkeypatch.setattr(window, "_MERGE_ROWS", 40)
    monkeypatch.setattr(ad_hoc, "_LINGER", 0.0)
    running = db.sql("SELECT username, count(*) AS n FROM posts GROUP BY username")
    assert isinstance(running, RunningResult)
    for n in range(60):
        db.insert("posts", [(n, f"user {n} {i}", 1, None) for i in range(10)])
        while sum(taken) < 10 * (n + 1):
            time.sleep(0.001)
    assert len(running.finish().rows()) == 600
    assert 1 < len(merges) <= 8  # each leaves about twice as many groups as the one before


def test_queries_after_an_insert_that_missed_the_buffer(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise ExecutionError("STREAM_MEMORY_FULL", "no room")

    db.insert("posts", posts(0, 3))
    with monkeypatch.context() as patched:
        patched.setattr(Ring, "write", full)
        db.insert("posts", posts(0, 5))
    running = [db.sql(f"SELECT count(*) FROM {name}") for name in ("posts", "posts@OLDEST")]
    db.insert("posts", posts(0, 4))
    assert [query.finish().rows() for query in running] == [[(4,)], [(4,)]]


def test_show_streams_tells_of_readers_that_are_behind(db: Database) -> None:
    db.sql(f"CREATE STREAM slow ({POSTS}) WITH (capacity = 20, patience = '200 milliseconds')")
    ring = db.runtime.rings.find(db.catalog.get("slow"))
    assert ring is not None

    def shown() -> dict[str, Any]:
        return next(row for row in db.sql("SHOW STREAMS").arrow().to_pylist() if row["name"] == "slow")

    behind, ahead = Scan.start(ring, ["uid"], timeout=500), Scan.start(ring, ["uid"], timeout=500)
    db.insert("slow", posts(0, 15))
    assert ahead.next() is not None
    assert (shown()["readers"], shown()["lag"]) == (2, 15)
    assert (shown()["blocked_seconds"], shown()["overruns"]) == (0, 0)
    db.insert("slow", posts(15, 10))  # waits for the one that stands still, then goes on without it
    assert (shown()["readers"], shown()["lag"]) == (1, 10)
    assert 0.15 < shown()["blocked_seconds"] < 500
    assert shown()["overruns"] == 1
    with pytest.raises(HeadraceError, match="STREAM_OVERRUN"):
        behind.next()
    while ahead.lag:
        assert ahead.next() is not None
    assert shown()["lag"] == 0
    for scan in (behind, ahead):
        scan.give_up()
