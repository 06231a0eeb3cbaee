"""Ctrl-C ends a statement and nothing else: it is in or it is not, and the database goes on."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import headrace
from headrace.base import interrupts
from headrace.base.interrupts import Interrupted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDLESS = "SELECT sum(x.a * y.a + z.a) AS s FROM t x, t y, t z"
"""Over a table of many rows: nobody lives to see its end."""


class _Watched(interrupts._Statement):
    """A statement that others can look at."""

    newest: _Watched | None = None

    def __init__(self, hears: bool) -> None:
        super().__init__(hears)
        if hears:
            _Watched.newest = self

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        # The statement goes on when all of them have come: one that came after its end would be this program's.
        while pressing:
            time.sleep(0.001)
        super().on_signal(number, frame)


@pytest.fixture(autouse=True)
def _watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    assert threading.current_thread() is threading.main_thread()
    monkeypatch.setattr(interrupts, "_Statement", _Watched)
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before, "the program's handler is back"


def press_it() -> None:
    """A signal for this very thread: one for the process may come by another, a little later."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


pressed = threading.Event()
"""It was pressed, as often as it should be."""
pressing: list[bool] = []
"""Not empty while it is being pressed. No event: whoever is interrupted in the middle of one holds its lock."""


def something_runs() -> bool:
    """Whether the statement is at something that can be ended."""
    return bool(_Watched.newest is not None and _Watched.newest.ways)


@contextmanager
def ctrl_c(when: Callable[[], Any] = something_runs, times: int = 1) -> Iterator[list[Interrupted]]:
    """Press it when something has come about in the block; what the block then raises."""
    _Watched.newest = None
    pressed.clear()
    over = threading.Event()

    def press() -> None:
        while not over.is_set():
            if when():
                pressing.append(True)
                for _ in range(times):
                    press_it()
                pressing.clear()
                pressed.set()
                return
            time.sleep(0.001)

    thread = threading.Thread(target=press)
    thread.start()
    caught: list[Interrupted] = []
    try:
        yield caught
        raise AssertionError("nothing was raised")
    except KeyboardInterrupt as interrupt:
        assert isinstance(interrupt, Interrupted)
        caught.append(interrupt)
    finally:
        over.set()
        thread.join()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[headrace.Database]:
    with headrace.connect(tmp_path / "d.hr") as opened:
        opened.sql("CREATE TABLE t (a BIGINT)")
        opened.insert("t", pa.table({"a": np.arange(200_000)}))
        opened.sql("CREATE STREAM s (a INT) WITH (timeout = '1000 seconds')")
        opened.sql("CREATE VIEW v AS SELECT count(*) AS n, sum(a) AS a FROM s")
        yield opened


def works(db: headrace.Database, n: int = 0) -> None:
    """Whether everything goes on as if nothing had been."""
    assert db.sql("SELECT count(*) FROM t").rows() == [(200_000,)]
    assert db.sql("SELECT n FROM v").rows() == [(n,)]
    assert db.insert("s", [(1,)]) == 1
    assert db.sql("SELECT n FROM v").rows() == [(n + 1,)]


@pytest.mark.parametrize("times", [1, 5])
def test_a_native_query(db: headrace.Database, times: int) -> None:
    with ctrl_c(times=times) as caught:
        db.sql(ENDLESS)
    assert not caught[0].done and isinstance(caught[0], KeyboardInterrupt)
    works(db)


def test_a_definition_and_what_it_has_read(db: headrace.Database) -> None:
    for text in (f"CREATE TABLE u AS {ENDLESS}", f"INSERT INTO t {ENDLESS.replace('s FROM', 'a FROM')}"):
        with ctrl_c() as caught:
            db.sql(text)
        assert not caught[0].done
    with ctrl_c():
        db.sql(f"CREATE VIEW w AS SELECT s.a, count(*) AS n FROM s JOIN ({ENDLESS}) e ON e.s = s.a GROUP BY s.a")
    assert db.catalog.find("u") is None and db.catalog.find("w") is None
    works(db)


def test_a_query_of_a_stream_that_waits_for_its_window(db: headrace.Database) -> None:
    result = db.sql("SELECT sum(a) FROM s")
    with ctrl_c():
        result.rows()
    batches = db.sql("SELECT a FROM s").batches()
    with ctrl_c():
        next(batches)
    with ctrl_c():
        db.sql("CREATE TABLE u AS SELECT a FROM s")
    assert db.catalog.find("u") is None
    works(db)


def test_copy_in_this_process(db: headrace.Database, tmp_path: Path) -> None:
    file = tmp_path / "many.csv"
    file.write_text("1\n" * 10_000_000)
    read = threading.Event()

    def progress(done: int, total: int) -> None:
        if 0 < done < total:
            read.set()
            pressed.wait(500)  # it is half read until then

    segments = set((db.path / "segments").iterdir())
    for target in ("s", "t"):
        read.clear()
        with ctrl_c(read.is_set, times=2) as caught:
            db.copy(target, file, progress=progress)
        assert not caught[0].done
    assert set((db.path / "segments").iterdir()) == segments, "nothing half copied stays"
    works(db)


@contextmanager
def busy_writer(db: headrace.Database) -> Iterator[threading.Event]:
    """A writer that is at another's commit until the event is set."""
    begun, go_on = threading.Event(), threading.Event()

    def work(tx: Any) -> None:
        begun.set()
        go_on.wait()
        tx.unchanged()

    thread = threading.Thread(target=db.runtime.store.commit, args=(work,))
    thread.start()
    begun.wait()
    try:
        yield go_on
    finally:
        go_on.set()
        thread.join()


def test_an_insert_that_waits_for_its_commit_is_not_in(db: headrace.Database) -> None:
    queue = db.runtime.store._writer._queue
    for insert in (lambda: db.insert("s", [(7,)]), lambda: db.sql("INSERT INTO t VALUES (7)")):
        with busy_writer(db), ctrl_c(lambda: queue.qsize() > 0, times=3) as caught:
            insert()
        assert not caught[0].done
    works(db)


def test_an_insert_whose_commit_has_come_is_in(db: headrace.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    after = db.keeper.compaction.after

    def interrupted(*args: Any) -> None:
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        after(*args)

    monkeypatch.setattr(db.keeper.compaction, "after", interrupted)
    with pytest.raises(Interrupted) as caught:
        db.insert("s", [(7,)])
    assert caught.value.done and "committed" in str(caught.value)
    monkeypatch.undo()
    works(db, 1)


def test_at_any_moment_an_insert_is_in_or_it_is_not(db: headrace.Database) -> None:
    rng = random.Random(16)
    counted = 0
    for _ in range(150):
        pause = rng.uniform(0, 0.012)
        began = threading.Event()

        def press(pause: float = pause, began: threading.Event = began) -> None:
            began.wait()
            time.sleep(pause)
            press_it()

        thread = threading.Thread(target=press)
        thread.start()
        done = False
        try:
            with interrupts.interruptible():  # so that the signal never comes before or after
                began.set()
                db.insert("s", [(1,), (2,)])
                done = True
                thread.join()
        except Interrupted as interrupt:
            counted += 2 * (interrupt.done or done)
        thread.join()
    assert db.sql("SELECT n FROM v").rows() == [(counted,)]


def test_waiting_for_another_thread_can_be_interrupted(db: headrace.Database) -> None:
    held, go_on = threading.Event(), threading.Event()

    def other() -> None:
        with db.runtime.tables_lock:
            held.set()
            go_on.wait()

    thread = threading.Thread(target=other)
    thread.start()
    held.wait()
    try:
        with ctrl_c(lambda: _Watched.newest is not None):
            db.sql("CREATE TABLE u (a INT)")
    finally:
        go_on.set()
        thread.join()
    works(db)


def test_an_insert_that_waits_for_room_in_the_ring(db: headrace.Database) -> None:
    db.sql("CREATE STREAM small (a INT) WITH (capacity = 4096, overflow = 'block', patience = '1000 seconds')")
    db.sql("CREATE VIEW w AS SELECT count(*) AS n FROM small")
    scan = db.runtime.rings.read(db.catalog.get("small"), ("a",), oldest=False)  # a reader that stands still
    try:
        with ctrl_c(lambda: scan.lag >= 4096) as caught:
            db.insert("small", [(1,)] * 100_000)
    finally:
        scan.give_up()
        db.runtime.rings.release(db.catalog.get("small"))
    assert caught[0].done and db.sql("SELECT n FROM w").rows() == [(100_000,)]
    works(db)


def test_a_handler_of_the_programs_own_is_left_alone(db: headrace.Database) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with interrupts.interruptible():
            signal.raise_signal(signal.SIGINT)
        assert heard == [signal.SIGINT]

        def raising(*_: object) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, raising)
        running = threading.Event()
        original = db.runtime.store._readers.enter
        db.runtime.store._readers.enter = lambda *args: (original(*args), running.set())  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            threading.Thread(target=lambda: (running.wait(), press_it())).start()
            db.sql(ENDLESS)
    finally:
        signal.signal(signal.SIGINT, before)
    works(db)


def test_parsing_and_converting_end_at_once(db: headrace.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object) -> None:
        while True:
            pass

    monkeypatch.setattr("headrace.sql.statements.parse", endless)
    with ctrl_c(lambda: _Watched.newest is not None and _Watched.newest.raises):
        db.sql("SELECT 1")
    monkeypatch.undo()


@pytest.mark.spark
def test_spark_sql_and_its_jobs(spark: SparkSession, tmp_path: Path) -> None:
    tracker = spark.sparkContext.statusTracker()
    file = tmp_path / "many.csv"
    file.write_text("1\n" * 20_000_000)
    with headrace.connect(tmp_path / "d.hr", spark=spark, engine="tasks") as db:
        db.sql("CREATE TABLE t (a BIGINT)")
        db.insert("t", pa.table({"a": np.arange(200_000)}))
        db.sql("CREATE STREAM s (a INT) WITH (timeout = '1000 seconds')")
        db.sql("CREATE VIEW v AS SELECT count(*) AS n, sum(a) AS a FROM s")
        with ctrl_c(tracker.getActiveJobsIds, times=3) as caught:
            db.sql("SELECT percentile(x.a * y.a + z.a, 0.5) FROM t x, t y, t z")
        assert not caught[0].done
        with ctrl_c(tracker.getActiveJobsIds) as caught:
            db.sql(f"COPY s FROM '{file}'")
        assert not caught[0].done
        with ctrl_c(tracker.getActiveJobsIds):
            db.insert("s", spark.range(1 << 40).selectExpr("CAST(id % 7 AS INT) AS a"))
        assert not tracker.getActiveJobsIds() and not spark.sparkContext.getJobTags()
        works(db)
        assert db.sql("SELECT percentile(a, 0.5) FROM t").rows() == [(99_999.5,)]
