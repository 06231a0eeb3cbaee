"""Inserts and queries at once (000 §4.2.5): the queue is bounded, inserts wait for no query, queries miss nothing.

000's printed queue loses rows and can answer from a stored result although rows were queued (its flag for new input is
not set where rows are queued), and it is unbounded. Here the queue is what inserts have appended to the store.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace
from headrace.database import Database
from headrace.errors import HeadraceError
from headrace.keep.compaction import BACKLOG
from headrace.statement.read import QueryReader
from headrace.store.writer import WAITING
from headrace.table import query
from headrace.view.continuous import ContinuousView
from profiles import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT = 20
"""Appended rows before a merge."""
KEYS = 5
"""Groups, and so state rows an insert leaves."""
SECONDS = 500


class Threads:
    """Threads whose errors are raised when they are joined."""

    def __init__(self) -> None:
        self._all: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def start(self, work: Callable[[], Any]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self._errors.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        self._all.append(thread)
        thread.start()
        return thread

    def join(self) -> None:
        for thread in self._all:
            thread.join(SECONDS)
        if self._errors:
            raise self._errors[0]
        assert not any(t.is_alive() for t in self._all), "a thread hangs"


class Held:
    """A query that stands still in the middle of its evaluation until it is let go."""

    def __init__(self, db: Database, text: str, threads: Threads, patch: pytest.MonkeyPatch) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self._inside, self._go = threading.Event(), threading.Event()
        run = query.run

        def ask() -> None:
            self._thread = threading.current_thread()  # known before it can get anywhere
            self.rows = db.sql(text).rows()

        def held(*args: Any) -> Any:
            if threading.current_thread() is self._thread and not self._go.is_set():
                self._inside.set()
                assert self._go.wait(SECONDS)
            return run(*args)

        patch.setattr(query, "run", held)
        self._thread = threads.start(ask)
        assert self._inside.wait(SECONDS)

    def let_go(self) -> None:
        self._go.set()
        self._thread.join(SECONDS)


class Waiting:
    """How many inserts have come to where they wait for the query that reads the state."""

    def __init__(self, db: Database, patch: pytest.MonkeyPatch) -> None:
        self._threads: set[threading.Thread] = set()
        compacting = db.keeper.answers.compacting

        def counted(view: ContinuousView, *, wait: bool) -> Any:
            if wait:
                self._threads.add(threading.current_thread())
            return compacting(view, wait=wait)

        patch.setattr(db.keeper.answers, "compacting", counted)

    def until(self, count: int) -> None:
        _until(lambda: len(self._threads) == count)


@pytest.fixture
def threads() -> Iterator[Threads]:
    found = Threads()
    yield found
    found.join()


@contextmanager
def counting(**settings: Any) -> Iterator[Database]:
    with headrace.connect(compact_rows=LIMIT, **settings) as db:
        db.sql("CREATE STREAM s (who INT, k INT, i INT)")
        db.sql("CREATE VIEW v AS SELECT k, count(*) AS c FROM s GROUP BY k")
        yield db


def insert(db: Database, who: int = 0, i: int = 0) -> None:
    assert db.insert("s", [(who, k, i) for k in range(KEYS)]) == KEYS


def queue(db: Database, view: str = "v") -> int:
    with db.runtime.store.read() as snapshot:
        return sum(snapshot.queued(db.keeper.get(view).by_name[s.name].ref)[1] for s in db.keeper.get(view).plan.states)


def merges(db: Database) -> int:
    with db.runtime.store.read() as snapshot:
        return sum(epoch.label.startswith("compact") for epoch in snapshot.epochs(10_000))


# (a) and (b): the queue


def test_inserts_go_on_while_a_query_runs_until_the_queue_is_full(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    inserters = 6
    bound = BACKLOG * LIMIT + inserters * KEYS
    with counting() as db:
        insert(db)
        held = Held(db, "SELECT sum(c) FROM v", threads, monkeypatch)
        # Below the bound an insert is acknowledged though the query has not ended; what is before it, it has seen.
        done = 1
        while queue(db) + KEYS < BACKLOG * LIMIT - inserters * KEYS:
            insert(db)
            done += 1
        assert done > BACKLOG and merges(db) == 0
        acknowledged = [0] * inserters
        stop = threading.Event()

        def work(who: int) -> Callable[[], None]:
            def run() -> None:
                while not stop.is_set():
                    insert(db, who)
                    acknowledged[who] += 1

            return run

        waiting = Waiting(db, monkeypatch)
        for who in range(inserters):
            threads.start(work(who))
        waiting.until(inserters)
        full = queue(db)
        assert BACKLOG * LIMIT < full <= bound, "inserters wait, each with one statement at most past the bound"
        [(size,)] = db.sql("SELECT state_bytes FROM headrace.views").rows()
        assert size <= (bound + KEYS) * (4 + 8)
        before = sum(acknowledged)
        assert merges(db) == 0
        held.let_go()
        assert held.rows == [(KEYS,)], "the answer is as of when the query began"
        _until(lambda: sum(acknowledged) > before + 5 * inserters)
        stop.set()
        threads.join()
        assert db.sql("SELECT k, c FROM v ORDER BY k").rows() == [(k, done + sum(acknowledged)) for k in range(KEYS)], (
            "nothing is lost, nothing counted twice"
        )
        assert queue(db) <= bound


def test_those_who_waited_for_a_query_merge_once(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    with counting() as db:
        insert(db)
        held = Held(db, "SELECT sum(c) FROM v", threads, monkeypatch)
        while queue(db) + KEYS <= BACKLOG * LIMIT:
            insert(db)
        waiting = Waiting(db, monkeypatch)
        inserting = [threads.start(lambda: insert(db)) for _ in range(8)]
        waiting.until(8)
        assert all(t.is_alive() for t in inserting)
        held.let_go()
        threads.join()
        assert merges(db) == 1


def test_a_database_opened_again_does_not_take_its_groups_for_a_queue(
    tmp_path: Path, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counting(path=tmp_path / "db") as db:
        db.insert("s", [(0, k, 0) for k in range(2 * BACKLOG * LIMIT)])
        assert (queue(db), merges(db)) == (0, 1)
    with headrace.connect(tmp_path / "db", compact_rows=LIMIT) as db:
        held = Held(db, "SELECT sum(c) FROM v", threads, monkeypatch)
        alone = threads.start(lambda: insert(db))
        alone.join(SECONDS)
        assert not alone.is_alive(), "an insert waits though hardly anything is queued"
        held.let_go()


def test_rows_that_come_beside_a_merge_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge that ends must not forget the rows that were appended while it was being acknowledged."""
    with counting() as db:
        rewritten, other = type(db.keeper.answers).rewritten, threading.Event()

        def beside(*args: Any) -> None:
            if not other.is_set():
                other.set()
                thread = threading.Thread(target=insert, args=(db,))
                thread.start()
                thread.join(SECONDS)
            rewritten(*args)

        monkeypatch.setattr(type(db.keeper.answers), "rewritten", beside)
        while not other.is_set():
            insert(db)
        counted = db.keeper.compaction._queues[db.catalog.find("v").owns["s0"]].rows
        assert counted == queue(db) == KEYS


def test_commits_that_wait_for_the_writer_are_bounded(threads: Threads) -> None:
    """What is computed but not committed is bounded too: so many statements, then callers wait with theirs."""
    with counting() as db:
        go, busy = threading.Event(), threading.Event()

        def hold(tx: Any) -> None:
            busy.set()
            assert go.wait(SECONDS)
            tx.unchanged()

        threads.start(lambda: db.runtime.store.commit(hold))
        assert busy.wait(SECONDS)
        for _ in range(WAITING + 16):
            threads.start(lambda: insert(db))
        writer = db.runtime.store._writer
        _until(lambda: writer._queue.qsize() >= WAITING)
        assert _settled(writer._queue.qsize) == WAITING
        go.set()
        threads.join()
        assert db.sql("SELECT sum(c) FROM v").rows() == [((WAITING + 16) * KEYS,)]


def test_a_query_after_queued_rows_is_no_stored_result(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    """000's flag for new input, unset where rows are queued, would give the first answer again."""
    with counting() as db:
        insert(db)
        held = Held(db, "SELECT sum(c) FROM v", threads, monkeypatch)
        insert(db)
        held.let_go()
        assert held.rows == [(KEYS,)]
        assert db.sql("SELECT sum(c) FROM v").rows() == [(2 * KEYS,)]
        ran = db.keeper.answers.evaluations
        assert db.sql("SELECT sum(c) FROM v").rows() == [(2 * KEYS,)]
        assert db.keeper.answers.evaluations == ran, "without new input the stored result is the answer"


# (c): what a query sees


WAYS = {
    "the view": "SELECT who, c, i FROM per_who",
    "a filter": "SELECT who, c, i FROM per_who WHERE who >= 0",
    "a view over it": "SELECT who, c, i FROM over",
    "an ordinary view": "SELECT who, c, i FROM plain",
    "a join with a table": "SELECT who, c, i FROM named",
}


def _acknowledged_is_seen(db: Database, threads: Threads, ways: dict[str, Callable[[], Any]], rounds: int) -> None:
    inserters = 3
    db.sql("CREATE TABLE t (who INT PRIMARY KEY, name STRING)")
    db.insert("t", [(who, str(who)) for who in range(inserters)])
    db.sql("CREATE VIEW per_who AS SELECT who, count(*) AS c, max(i) AS i FROM s GROUP BY who")
    db.sql("CREATE VIEW over AS SELECT p.*, n FROM per_who p CROSS JOIN (SELECT count(*) AS n FROM s)")
    db.sql("CREATE VIEW plain AS SELECT who, c, i FROM per_who")
    db.sql("CREATE VIEW named AS SELECT who, count(*) AS c, max(i) AS i FROM s JOIN t USING (who) GROUP BY who")
    acknowledged = [0] * inserters
    running = [inserters]
    begun = threading.Barrier(inserters + len(ways), timeout=SECONDS)  # nothing is inserted before all read

    def work(who: int) -> Callable[[], None]:
        def run() -> None:
            try:
                begun.wait()
                for i in range(rounds):
                    insert(db, who, i)
                    acknowledged[who] = i + 1
            finally:
                running[0] -= 1

        return run

    reads = dict.fromkeys(ways, 0)

    def read(way: str) -> Callable[[], None]:
        def run() -> None:
            seen = [0] * inserters
            last = False
            while not last:
                last = running[0] == 0
                before = list(acknowledged)
                found = {who: (c, i) for who, c, i in ways[way]()}
                for who in range(inserters):
                    c, i = found.get(who, (0, -1))
                    assert c == KEYS * (i + 1), f"{way}: a part of an insert is seen"
                    assert i + 1 >= before[who], f"{way}: an insert acknowledged before the query is missing"
                    assert i + 1 >= seen[who], f"{way}: what was seen is gone"
                    seen[who] = i + 1
                if not reads[way]:
                    begun.wait()
                reads[way] += 1
            assert seen == [rounds] * inserters

        return run

    for who in range(inserters):
        threads.start(work(who))
    for way in ways:
        threads.start(read(way))
    threads.join()
    assert all(n > 1 for n in reads.values())


def test_a_query_sees_whatever_was_acknowledged_before_it(threads: Threads) -> None:
    with counting() as db:
        ways = {way: (lambda text=text: db.sql(text).rows()) for way, text in WAYS.items()}
        _acknowledged_is_seen(db, threads, ways, examples(25))
        compaction = db.keeper.compaction
        for relation, known in list(compaction._queues.items()):
            with db.runtime.store.read() as snapshot:
                assert snapshot.queued(relation)[1] <= known.rows, "more is queued than is counted"


@pytest.mark.spark
def test_a_dataframe_has_whatever_was_acknowledged_before_it(threads: Threads, spark: SparkSession) -> None:
    with counting(spark=spark) as db:
        ways = {"the view": lambda: [tuple(r) for r in db.table("per_who").collect()]}
        _acknowledged_is_seen(db, threads, ways, examples(12))


# Definitions that change beside a query


def test_a_view_begun_again_under_a_view_that_reads_it(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that began before must not bring the old groups back into the view."""
    with counting() as db:
        db.sql("CREATE VIEW over AS SELECT v.k, v.c, n FROM v CROSS JOIN (SELECT count(*) AS n FROM s)")
        insert(db)
        with _before_it_runs(db, "SELECT sum(c), max(n) FROM over", threads, monkeypatch) as rows:
            db.sql("REFRESH VIEW v RESTART")
        assert rows() == [(KEYS, KEYS)], "the answer as of its snapshot"
        assert db.sql("SELECT * FROM v").rows() == []
        insert(db)
        assert db.sql("SELECT sum(c), max(n) FROM over").rows() == [(KEYS, 2 * KEYS)]


def test_views_dropped_under_a_query(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    with counting() as db:
        db.sql("CREATE VIEW over AS SELECT v.k, v.c, n FROM v CROSS JOIN (SELECT count(*) AS n FROM s)")
        insert(db)
        with _before_it_runs(db, "SELECT sum(c), max(n) FROM over", threads, monkeypatch) as rows:
            db.sql("DROP VIEW v CASCADE")
            db.sql("CREATE VIEW v AS SELECT k, count(i) + 100 AS c FROM s GROUP BY k")
        assert rows() == [(KEYS, KEYS)], "the answer as of its snapshot, by the definitions of its snapshot"
        with pytest.raises(HeadraceError, match="TABLE_OR_VIEW_NOT_FOUND"):
            db.sql("SELECT * FROM over")
        assert db.sql("SELECT * FROM v").rows() == []


@contextmanager
def _before_it_runs(
    db: Database, text: str, threads: Threads, patch: pytest.MonkeyPatch
) -> Iterator[Callable[[], list[Any]]]:
    """A query that has its snapshot and stands still until the block ends."""
    run_over = QueryReader._run_over
    ready, go = threading.Event(), threading.Event()
    found: list[Any] = []

    def held(self: QueryReader, *args: Any, **options: Any) -> Any:
        if threading.current_thread() is not main and not ready.is_set():
            ready.set()
            assert go.wait(SECONDS)
        return run_over(self, *args, **options)

    main = threading.current_thread()
    patch.setattr(QueryReader, "_run_over", held)
    thread = threads.start(lambda: found.extend(db.sql(text).rows()))
    assert ready.wait(SECONDS)

    def rows() -> list[Any]:
        thread.join(SECONDS)
        threads.join()
        return found

    try:
        yield rows
    finally:
        go.set()


# What threads share


def test_a_text_another_thread_clears_away() -> None:
    """Prepared texts are few and cleared at once; a thread about to take one must still get it."""

    class Cleared(dict[Any, Any]):
        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            self.clear()
            return found

    with headrace.connect() as db:
        db.sql("CREATE TABLE t (n INT)")
        prepared = query.Prepared(db.runtime, db.plan(_parsed("SELECT n FROM t")))
        sources = {prepared.scans[0].ref: "(SELECT 1 AS n)"}
        text = prepared.native(sources)
        prepared._texts = Cleared(prepared._texts)
        assert prepared.native(sources) == text


def test_views_first_read_while_memory_is_counted() -> None:
    class View:
        """As much of a view as a key needs."""

    with counting() as db:
        insert(db)
        db.sql("SELECT * FROM v").rows()
        failures: list[BaseException] = []
        done = threading.Event()

        def count() -> None:
            try:
                while not done.is_set():
                    db.keeper.answers._room()
            except BaseException as error:
                failures.append(error)

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            thread = threading.Thread(target=count)
            thread.start()
            views: list[Any] = [View() for _ in range(3_000)]
            for view in views:
                held: ContinuousView = view
                db.keeper.answers._held(held)["s0"] = None
            done.set()
            thread.join(SECONDS)
        finally:
            sys.setswitchinterval(before)
        assert not failures


def _parsed(text: str) -> Any:
    from headrace.sql.statements import parse

    return parse(text)


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline, "nothing happens any more"
        time.sleep(0.005)


def _settled(value: Callable[[], int]) -> int:
    """The value once it has stayed the same for a while: what comes later is not seen, but nothing fails for it."""
    last, since = value(), time.monotonic()
    while time.monotonic() - since < 0.4:
        time.sleep(0.02)
        if (now := value()) != last:
            last, since = now, time.monotonic()
    return last
