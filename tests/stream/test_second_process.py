"""Other processes insert into a stream through shared memory: queries and views see the same rows."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.database import Database
from headrace.errors import HeadraceError
from headrace.rings import Scan
from headrace.rings.book import ClaimedRange
from headrace.rings.layout import READERS, REFUSALS
from headrace.statement.load import Loader

PREAMBLE = """
import sys, headrace
path = sys.argv[1]
"""


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with headrace.connect(tmp_path / "d") as db:
        db.sql("CREATE STREAM posts (uid INT, content STRING) WITH (capacity = 500, timeout = '2 hours')")
        db.sql("CREATE VIEW per_user AS SELECT uid, count(*) AS n, max(content) AS m FROM posts GROUP BY uid")
        yield db


def process(db: Database, program: str) -> subprocess.Popen[str]:
    text = PREAMBLE + textwrap.dedent(program)
    return subprocess.Popen(
        [sys.executable, "-c", text, str(db.path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def output(db: Database, program: str) -> str:
    out, error = process(db, program).communicate(timeout=500)
    assert not error, error
    return out


def test_two_processes_and_this_one_insert(db: Database) -> None:
    running = db.sql("SELECT uid, count(*) AS n, max(content) AS m FROM posts GROUP BY uid")
    program = """
        with headrace.ring(path, "posts", columns="uid int, content string") as posts:
            for n in range(30):
                posts.insert([(WHO, f"a text of some length {n}")] * 50)
    """
    others = [process(db, program.replace("WHO", str(who))) for who in (1, 2)]
    for n in range(20):
        db.insert("posts", [(3, f"own {n:02}")] * 10)
    for other in others:
        _, error = other.communicate(timeout=500)
        assert other.returncode == 0, error
    expected = [(1, 1500, "a text of some length 9"), (2, 1500, "a text of some length 9"), (3, 200, "own 19")]
    assert sorted(db.sql("SELECT * FROM per_user").rows()) == expected  # acknowledged means that views have it
    assert sorted(running.finish().rows()) == expected


def test_what_does_not_fit_is_refused_by_name(db: Database) -> None:
    db.sql("CREATE STREAM plain (a INT)")
    db.sql("CREATE STREAM ints (a INT) WITH (capacity = 10)")
    db.sql("CREATE VIEW inverse AS SELECT sum(1 / a) AS s FROM ints")
    found = output(
        db,
        """
        def refused(run):
            try:
                run()
                print("taken")
            except headrace.HeadraceError as error:
                print(error.condition)
        refused(lambda: headrace.ring(path, "posts", columns="uid INT, text STRING"))
        refused(lambda: headrace.ring(path, "posts", columns="uid BIGINT, content STRING"))
        refused(lambda: headrace.ring(path, "plain"))
        posts = headrace.ring(path, "posts")
        refused(lambda: posts.insert([{"uid": "x", "content": "y"}]))
        refused(lambda: posts.insert([{"uid": 1, "other": "y"}]))
        ints = headrace.ring(path, "ints")
        refused(lambda: ints.insert([(0,)]))
        refused(lambda: ints.insert([(2,)]))
        """,
    )
    assert found.split() == [
        *("STREAM_SCHEMA_MISMATCH", "STREAM_SCHEMA_MISMATCH", "STREAM_NOT_BUFFERED"),
        *("INSERT_TYPE_MISMATCH", "UNKNOWN_COLUMN", "STREAM_ROLLED_BACK", "taken"),
    ]
    assert db.sql("SELECT * FROM inverse").rows() == [(0.5,)]


def test_an_insert_that_fails_on_its_way_says_how_many_rows_are_in(db: Database) -> None:
    db.sql("CREATE STREAM ints (a INT) WITH (capacity = 1000)")
    db.sql("CREATE VIEW inverse AS SELECT count(*) AS n, sum(1 / a) AS s FROM ints")
    found = output(
        db,
        """
        ints = headrace.ring(path, "ints")
        def inserted(rows):
            try:
                return ints.insert(rows)
            except headrace.HeadraceError as error:
                assert error.condition == "STREAM_ROLLED_BACK", error
                assert f"the first {error.inserted:,} of {len(rows):,} rows are in" in str(error), error
                return error.inserted
        print(inserted([(1,)] * 5000 + [(0,)]))
        rows = [(1,)] * 300 + [(0,)] + [(1,)] * 300
        done = inserted(rows)
        print(done)
        print(inserted([row for row in rows[done:] if row != (0,)]))
        """,
    )
    first, second, rest = map(int, found.split())
    assert first == 5000
    assert 100 < second <= 300
    assert rest == 600 - second
    assert db.sql("SELECT * FROM inverse").rows() == [(5600, 5600.0)]


def test_a_failed_copy_is_no_failure_of_others(db: Database, tmp_path: Path) -> None:
    posts = headrace.ring(db.path, "posts")
    ring = db.runtime.rings.all()[0]
    assert posts.insert([(1, "x")]) == 1
    ring.book.roll_back(0, ring.end + 1)
    assert posts.insert([(1, "x")]) == 1


def test_a_process_that_stood_still_does_not_guess(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    posts = headrace.ring(db.path, "posts")
    book, await_visible = db.runtime.rings.all()[0].book, posts._ring.book.await_visible

    def slowly(hi: int, patience: float) -> bool:
        found = await_visible(hi, patience)
        while book.taken < hi:
            time.sleep(0.001)
        for n in range(REFUSALS + 1):
            book.refuse(hi + n, hi + n + 1)
        return found

    monkeypatch.setattr(posts._ring.book, "await_visible", slowly)
    with pytest.raises(HeadraceError, match=r"STREAM_ANSWER_MISSED.* not known whether the first 1 of 1 rows"):
        posts.insert([(1, "x")])


def test_a_writer_that_stands_still_before_it_leaves_nothing_behind(db: Database) -> None:
    db.sql("CREATE STREAM ints (a INT) WITH (capacity = 1000, patience = '200 milliseconds')")
    db.sql("CREATE VIEW total AS SELECT sum(a) AS s FROM ints")
    ints = headrace.ring(db.path, "ints")
    ring = next(ring for ring in db.runtime.rings.all() if ring.stream == "ints")
    stuck = ring.book.claim(1, lambda n: 0, ring.rounds.begin)
    assert stuck is not None
    with pytest.raises(HeadraceError, match=r"STREAM_WRITER_STALLED.* none of 2 rows is in"):
        ints.insert([(1,), (2,)])
    ring.book.abandon_mine()
    assert ints.insert([(4,)]) == 1
    assert db.sql("SELECT * FROM total").rows() == [(4,)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_the_owner_does_not_end_its_service(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: Any) -> None:
        raise RuntimeError("a fault")

    posts = headrace.ring(db.path, "posts")
    running = db.sql("SELECT count(*) FROM posts")
    with monkeypatch.context() as patched:
        patched.setattr(Loader, "take_rows", faulty)
        with pytest.raises(HeadraceError, match="STREAM_ROLLED_BACK"):
            posts.insert([(1, "x")])
    with pytest.raises(HeadraceError, match="STREAM_ROLLED_BACK"):
        running.finish().rows()
    assert posts.insert([(2, "y")]) == 1
    assert db.sql("SELECT uid, n FROM per_user").rows() == [(2, 1)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_rows_that_the_owner_lost_are_nobodys(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads for the views after it has failed does not pass what came meanwhile off as taken."""

    def faulty(*_: Any) -> None:
        raise MemoryError

    posts = headrace.ring(db.path, "posts")
    ring = db.runtime.rings.all()[0]
    reading = Scan.start(ring, ["uid"])
    with monkeypatch.context() as patched:
        patched.setattr(Scan, "_copy", faulty)
        with pytest.raises(HeadraceError, match=r"STREAM_OWNER_UNREACHABLE.* not known whether the first 1 of 1 rows"):
            posts.insert([(1, "x")])
    assert posts.insert([(2, "y")]) == 1
    assert ring.book.is_refused(ClaimedRange(0, 0, 1, 0, 0))
    with pytest.raises(HeadraceError, match="STREAM_ROLLED_BACK"):
        reading.next()
    assert db.sql("SELECT uid, n FROM per_user").rows() == [(2, 1)]


def test_a_stream_with_too_many_readers_takes_nobody_elses_pump(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.stream.writer._PATIENCE", 0.5)
    ring = db.runtime.rings.all()[0]
    readers = [Scan.start(ring, ["uid"]) for _ in range(READERS)]
    with pytest.raises(HeadraceError, match="STREAM_OWNER_UNREACHABLE"):
        headrace.ring(db.path, "posts")
    db.sql("CREATE STREAM ints (a INT) WITH (capacity = 1000)")
    monkeypatch.undo()
    assert headrace.ring(db.path, "ints").insert([(1,)]) == 1
    for scan in readers:
        scan.give_up()
    assert headrace.ring(db.path, "posts").insert([(1, "x")]) == 1


def test_a_dropped_streams_memory_is_let_go(db: Database) -> None:
    headrace.ring(db.path, "posts").insert([(1, "x")])
    ring = weakref.ref(db.runtime.rings.all()[0])
    db.sql("DROP STREAM posts CASCADE")
    deadline = time.monotonic() + 500
    while ring() is not None and time.monotonic() < deadline:
        time.sleep(0.02)
        gc.collect()
    assert ring() is None


def test_local_times_are_of_the_databases_zone(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "d", time_zone="America/New_York") as db:
        db.sql("CREATE STREAM times (at TIMESTAMP) WITH (capacity = 500)")
        db.sql("CREATE VIEW n AS SELECT at, count(*) AS n FROM times GROUP BY at")
        rows = [(datetime(2020, 1, 1),), (datetime(2020, 7, 1, 12),)]
        db.insert("times", rows)
        headrace.ring(db.path, "times").insert(rows)
        assert [n for _, n in db.sql("SELECT * FROM n").rows()] == [2, 2]


@pytest.mark.parametrize(
    ("option", "value", "condition"),
    [
        ("tasks", "0", "INVALID_TASKS"),
        ("tasks", "-1", "INVALID_TASKS"),
        ("tasks", "many", "INVALID_TASKS"),
        ("from", "middle", "STREAM_POSITION_UNKNOWN"),
    ],
)
def test_options_of_the_data_source_are_refused_by_name(db: Database, option: str, value: str, condition: str) -> None:
    from headrace.spark.source import HeadraceSource

    source = HeadraceSource({"path": str(db.path), "stream": "posts", option: value})
    with pytest.raises(HeadraceError) as error:
        source.reader(None)
    assert error.value.condition == condition
    assert error.value.hint
    assert db.sql("SHOW STREAMS").arrow().to_pylist()[0]["readers"] == 0


def test_a_dropped_stream_is_noticed(db: Database) -> None:
    other = process(
        db,
        """
        import time
        posts = headrace.ring(path, "posts")
        print("ready", flush=True)
        try:
            while True:
                posts.insert([(1, "x")])
                time.sleep(0.01)
        except headrace.HeadraceError as error:
            print(error.condition)
        """,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    db.sql("DROP STREAM posts CASCADE")
    assert other.communicate(timeout=500)[0].strip() == "STREAM_CLOSED"


OWNER = (
    PREAMBLE
    + """
import time
db = headrace.connect(path)
db.sql("CREATE STREAM posts (uid INT) WITH (capacity = 500)")
print("ready", flush=True)
time.sleep(3600)
"""
)


def test_a_killed_owner_is_noticed(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path / "d")], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        posts = headrace.ring(tmp_path / "d", "posts")
        assert posts.insert([(1,)]) == 1
    finally:
        owner.kill()
        owner.communicate()
    told: list[str] = []

    def insert() -> None:
        for rows in (1, 2000):  # there is room for these, and there is none
            try:
                posts.insert([(n,) for n in range(rows)])
            except HeadraceError as failure:
                told.append(failure.condition)

    thread = threading.Thread(target=insert, daemon=True)
    thread.start()
    thread.join(500)
    assert told == ["STREAM_OWNER_UNREACHABLE"] * 2


def test_a_database_nobody_has_open(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match="STREAM_NOT_BUFFERED"):
        headrace.ring(tmp_path, "posts")


def test_rings_of_a_killed_owner_are_cleaned_at_the_next_open(tmp_path: Path) -> None:
    program = PREAMBLE + textwrap.dedent(
        """
        import os, signal
        db = headrace.connect(path)
        db.sql("CREATE STREAM posts (uid INT) WITH (capacity = 500)")
        db.insert("posts", [(1,)])
        print(db.runtime.rings.all()[0].folder, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path / "d")], capture_output=True, text=True)
    folder = Path(killed.stdout.strip())
    assert folder.exists()
    with headrace.connect(tmp_path / "other"):
        assert not folder.exists()
    with headrace.connect(tmp_path / "d") as db:
        running = db.sql("SELECT count(*) FROM posts")
        db.insert("posts", [(1,)])
        assert running.finish().rows() == [(1,)]
