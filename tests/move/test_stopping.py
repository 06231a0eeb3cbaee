"""Whatever meets a query that is being stopped, its answer or its ticket is there once."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from programs import GROUPED, LIMIT, TOTALS, after_one_stage, held_program, refusal, taken

import headrace
from headrace.errors import ExecutionError, StoreError
from headrace.move import claim, priority, query, states
from headrace.move import ticket as tickets
from headrace.move.attempt import Attempt
from headrace.move.files import Folder
from headrace.move.plan import Holding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.move.query import RunningQuery

FAILING = "SELECT k, sum(n) / (max(k) - k) FROM numbers GROUP BY k"


def held_stage(path: str, gate: Path) -> Callable[[SparkSession], DataFrame]:
    """A grouping that is finished at once, and a stage above it that waits until the gate is open."""
    grouped = held_program(path, gate)

    def build(spark: SparkSession) -> DataFrame:
        from pyspark.sql.functions import sum

        return grouped(spark).toDF("k", "total").groupBy("total").agg(sum("k").alias("k")).select("k", "total")

    return build


def beside(what: Callable[[], Any]) -> Callable[[], Any]:
    """Do it in a thread; the function returned waits, and gives what came of it or the error's condition."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(what())
        except headrace.HeadraceError as error:
            found.append(error.condition)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def wait() -> Any:
        thread.join(LIMIT)
        assert found, "it waits for ever"
        return found[0]

    return wait


def in_flight(running: RunningQuery, count: int = 1) -> None:
    """Wait until so many stages are finished and another one runs."""
    deadline = time.monotonic() + LIMIT
    while True:
        finished = [stage.finished for stage in running._planned.stages()]
        if finished.count(True) >= count and False in finished:
            return
        assert running.status == "running" and time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("text", "to_files", "condition"),
    [(GROUPED, False, "QUERY_FINISHED"), (GROUPED, True, "QUERY_FINISHED"), (FAILING, False, "QUERY_FAILED")],
)
def test_a_query_at_its_end_before_it_is_stopped_has_ended(
    spark: SparkSession, numbers: str, tmp_path: Path, text: str, to_files: bool, condition: str
) -> None:
    running = headrace.run(spark, text, start=False)
    if to_files:
        running.to_parquet(str(tmp_path / "out"))

    def suspend() -> str:
        with running._changing:  # as suspend has it, from before the end
            running.start()
            while running._attempt is None or not running._attempt.over:
                time.sleep(0.01)
            return refusal(lambda: running.suspend(str(tmp_path / "t"), finish=False))

    assert beside(suspend)() == condition
    assert not (tmp_path / "t").exists()
    if condition == "QUERY_FAILED":
        assert refusal(lambda: running.result(LIMIT)) == "DIVIDE_BY_ZERO"
        return
    running.cancel()
    assert running.status == "finished"
    found = spark.read.parquet(str(tmp_path / "out")).collect() if to_files else running.result(LIMIT).rows()
    assert sorted(map(tuple, found)) == TOTALS


@pytest.mark.spark
@pytest.mark.parametrize("meanwhile", ["pause", "suspend", "cancel"])
def test_while_one_waits_to_suspend_another(
    spark: SparkSession, numbers: str, tmp_path: Path, gate: Path, meanwhile: str
) -> None:
    running = headrace.run(spark, held_stage(numbers, gate))
    in_flight(running)
    path = str(tmp_path / "t")
    grace = 0.5 if meanwhile == "suspend" else None
    suspended = beside(lambda: running.suspend(path, finish=True, grace=grace))
    while not (tmp_path / "t").exists():
        time.sleep(0.01)
    match meanwhile:
        case "pause":  # gives the stage up that suspend waits for
            running.pause()
        case "suspend":
            assert refusal(lambda: running.suspend(path, finish=False)) == "QUERY_SUSPENDED"
            assert refusal(lambda: running.snapshot(path)) == "QUERY_SUSPENDED"
        case "cancel":
            running.cancel()
            assert suspended() == "QUERY_FAILED" and not (tmp_path / "t").exists()
            assert refusal(lambda: running.result(LIMIT)) == "QUERY_CANCELLED"
            return
    ticket = suspended()
    assert running.status == "suspended" and ticket.progress == (1, 3)
    folder, found = tickets.load(spark, path)
    assert found == ticket and len(ticket.states) == 1 and folder.exists("state/0/_SUCCESS")


@pytest.mark.spark
def test_a_paused_query_is_suspended_with_what_it_has(
    spark: SparkSession, numbers: str, tmp_path: Path, gate: Path
) -> None:
    running = headrace.run(spark, held_stage(numbers, gate))
    in_flight(running)
    running.pause()
    ticket = beside(lambda: running.suspend(str(tmp_path / "t")))()  # nothing is in flight any more
    assert ticket.progress == (1, 3) and len(ticket.states) == 1


@pytest.mark.spark
def test_a_query_paused_again_at_once_keeps_its_work(
    spark: SparkSession, numbers: str, tmp_path: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = after_one_stage(headrace.run(spark, held_program(numbers, gate)))
    running.pause()

    def nothing(*_: Any) -> None:
        while running._attempt is None or not running._attempt._stopped:
            time.sleep(0.01)
        raise ExecutionError("STOPPED", "before it did anything", hint="none")

    monkeypatch.setattr(query.RunningQuery, "_answer", nothing)
    for _ in range(2):
        running.proceed()
        running.pause()
    monkeypatch.undo()
    assert running.progress().finished == 1
    assert len(running.snapshot(str(tmp_path / "t")).states) == 1 and running.status == "paused"
    gate.touch()
    running.proceed()
    assert sorted(running.result(LIMIT).rows()) == TOTALS
    assert sorted(headrace.resume(spark, str(tmp_path / "t"), trust=True).result(LIMIT).rows()) == TOTALS


@pytest.mark.spark
def test_a_snapshot_of_a_paused_query_leaves_it_the_ticket_it_came_from(
    spark: SparkSession, numbers: str, tmp_path: Path, gate: Path
) -> None:
    first = after_one_stage(headrace.run(spark, held_program(numbers, gate))).suspend(str(tmp_path / "first"))
    resumed = headrace.resume(spark, first)
    resumed.pause()
    assert len(resumed.snapshot(str(tmp_path / "second")).states) == 1
    assert not (tmp_path / "first" / "used.json").exists()
    gate.touch()
    resumed.proceed()
    assert sorted(resumed.result(LIMIT).rows()) == TOTALS
    assert (tmp_path / "first" / "used.json").exists()


@pytest.mark.spark
def test_an_answer_is_not_lost_with_the_ticket_it_came_from(
    spark: SparkSession, numbers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = taken(spark, tmp_path / "t")

    def full(_: Folder) -> None:
        raise StoreError("TICKET_NOT_WRITTEN", "no space left on device", hint="make room")

    monkeypatch.setattr(claim, "finish", full)
    with pytest.warns(RuntimeWarning, match="marked as used"):
        assert headrace.resume(spark, ticket).result(LIMIT).rows() == TOTALS
    monkeypatch.undo()
    assert headrace.resume(spark, ticket).result(LIMIT).rows() == TOTALS  # the claim was given back


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem with room for the text of a ticket, and not for its state."""
    folder = tmp_path / "full"
    folder.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount to make a small filesystem with")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if made.returncode != 0:
        pytest.skip(f"a small filesystem cannot be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)  # a writer that has failed may hold its file a while


@pytest.mark.spark
def test_without_space_for_the_state_the_query_goes_on(spark: SparkSession, full_disk: Path, gate: Path) -> None:
    opened = str(gate)

    def build(session: SparkSession) -> DataFrame:
        from pyspark.sql.functions import col, udf

        @udf("string")
        def held(key: str) -> str:
            while not os.path.exists(opened):
                time.sleep(0.01)
            return key

        keys = session.range(20_000).selectExpr("sha2(string(id), 256) AS k")
        return keys.groupBy("k").count().select(held(col("k")), "count")

    running = after_one_stage(headrace.run(spark, build))
    with pytest.raises(StoreError, match="No space left on device") as caught:
        running.suspend(str(full_disk / "ticket"))
    assert caught.value.condition == "TICKET_NOT_WRITTEN" and "free space" in str(caught.value.hint)
    assert list(full_disk.iterdir()) == []
    gate.touch()
    assert len({key for key, count in running.result(LIMIT).rows() if count == 1}) == 20_000


@pytest.mark.spark
def test_a_ticket_used_up_between_looking_and_claiming_is_used(
    spark: SparkSession, numbers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = taken(spark, tmp_path / "t")

    really = claim.claim

    def late(folder: Folder) -> claim.TicketClaim:
        tickets.finish(folder)
        return really(folder)

    monkeypatch.setattr(claim, "claim", late)
    assert refusal(lambda: headrace.resume(spark, ticket, on_mismatch="restart")) == "TICKET_USED"


@pytest.mark.spark
def test_a_resumed_query_that_does_not_start_gives_its_ticket_back(
    spark: SparkSession, numbers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = taken(spark, tmp_path / "t")

    def broken(_: RunningQuery) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(query.RunningQuery, "start", broken)
    with pytest.raises(ExecutionError, match="TOO_MANY_THREADS"):
        headrace.resume(spark, ticket)
    monkeypatch.undo()
    assert headrace.resume(spark, ticket).result(LIMIT).rows() == TOTALS


@pytest.mark.spark
def test_one_folder_is_for_one_ticket(spark: SparkSession, tmp_path: Path) -> None:
    folder = tickets.new_folder(spark, str(tmp_path / "t"))
    assert refusal(lambda: tickets.new_folder(spark, str(tmp_path / "t"))) == "TICKET_EXISTS"
    assert folder.create("x") and not folder.create("x")


@pytest.mark.spark
def test_a_query_whose_inputs_change_while_it_is_paused_begins_anew(
    spark: SparkSession, numbers: str, gate: Path
) -> None:
    running = after_one_stage(headrace.run(spark, held_program(numbers, gate)))
    running.pause()
    (file, *_) = Path(numbers).glob("part-*")
    shutil.copy(file, file.with_name(f"again-{file.name}"))
    gate.touch()
    running.proceed()
    expected = spark.read.parquet(numbers).groupBy("k").sum("n").collect()
    assert sorted(running.result(LIMIT).rows()) == sorted(map(tuple, expected)) != TOTALS
    assert not running._planned.scans


@pytest.mark.spark
def test_a_query_goes_on_in_a_session_as_it_was_before_it(spark: SparkSession, numbers: str) -> None:
    """Its views are made again; and of NOT IN over a NULL, nothing is left to go on from but that there was one."""
    script = """CREATE TEMPORARY VIEW some AS SELECT n FROM numbers WHERE n < 9;
        SELECT count(*) FROM numbers WHERE k NOT IN (SELECT nullif(n, 3) FROM some)"""
    running = headrace.run(spark, script)
    assert running.result(LIMIT).rows() == [(0,)]
    (index,) = [stage for stage in running._planned.stages() if stage.pipeline.holding is Holding.INDEX]
    assert index.finished and not states.has_rows(index)
    spark.catalog.dropTempView("numbers")  # of the user's session, which is not the query's
    again = running._planned_on()
    assert index.pipeline not in again.scans.values()
    assert again.answer(again.adaptive.execute()).collect() == [(0,)]


@pytest.mark.spark
def test_a_query_that_cannot_go_on_has_failed(
    spark: SparkSession, numbers: str, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ExecutionError("BROKEN", "for a test", hint="none")

    running = after_one_stage(headrace.run(spark, held_program(numbers, gate)))
    running.pause()
    monkeypatch.setattr(query, "plan", broken)
    running.proceed()
    assert refusal(lambda: running.result(LIMIT)) == "BROKEN"


@pytest.mark.spark
def test_an_impatient_user_has_a_query_that_runs(
    spark: SparkSession, numbers: str, tmp_path: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = after_one_stage(headrace.run(spark, held_program(numbers, gate)))
    assert running._attempt is not None
    thread = running._attempt._thread
    join, interrupts = thread.join, [KeyboardInterrupt()]

    def joined(timeout: float | None = None) -> None:
        if interrupts:
            raise interrupts.pop()
        join(timeout)

    monkeypatch.setattr(thread, "join", joined)
    with pytest.raises(KeyboardInterrupt):
        running.suspend(str(tmp_path / "t"))
    assert not (tmp_path / "t").exists() and not thread.is_alive()
    assert running.status == "running" and len(running._planned.scans) == 1
    gate.touch()
    assert sorted(running.result(LIMIT).rows()) == TOTALS


class Query:
    """What making room needs of a query."""

    def __init__(self, before_pause: Callable[[], None] = lambda: None) -> None:
        self.status = "running"
        self.over = threading.Event()
        self.before_pause = before_pause

    def enter(self, priority_class: str | None, yield_to: str | None) -> None:
        priority.enter(self, priority_class, yield_to)  # type: ignore[arg-type]

    def pause(self) -> None:
        self.before_pause()
        self.status = "paused"

    def proceed(self) -> None:
        self.status = "running"

    def wait(self) -> None:
        self.over.wait()

    def finish(self) -> None:
        self.status = "finished"
        self.over.set()

    def runs_soon(self) -> bool:
        deadline = time.monotonic() + LIMIT
        while self.status == "paused" and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.status == "running"


def test_queries_that_yield_to_each_other_run_one_after_the_other() -> None:
    first, second = Query(), Query()
    first.enter("a", "b")
    second.enter("b", "a")
    assert (first.status, second.status) == ("running", "paused")
    first.finish()
    assert second.runs_soon()
    second.finish()


def test_whoever_cannot_be_paused_does_not_keep_others_waiting() -> None:
    def broken() -> None:
        raise RuntimeError("Spark is gone")

    def interrupted() -> None:
        raise KeyboardInterrupt

    stuck, impatient, patient, short = Query(broken), Query(interrupted), Query(), Query()
    patient.enter(None, "c")
    stuck.enter(None, "c")
    impatient.enter(None, "c")
    with pytest.raises(KeyboardInterrupt):
        short.enter("c", None)
    assert (stuck.status, patient.status) == ("running", "paused")
    short.finish()
    assert patient.runs_soon()
    for each in (stuck, impatient, patient):
        each.finish()


def test_those_ahead_who_leave_while_one_is_being_paused_are_seen() -> None:
    short = Query()

    def leave() -> None:
        short.over.set()
        while short in priority._ahead["test"]:  # until its end is told to those behind
            time.sleep(0.001)

    long = Query(leave)
    short.enter("test", None)
    long.enter(None, "test")
    assert long.runs_soon()
    long.finish()


@pytest.mark.spark
def test_an_attempt_is_told_of_once(spark: SparkSession) -> None:
    """At its end and stopped at the same time, in any order: the end is told by one of the two."""
    lock = threading.RLock()
    told: list[Attempt] = []
    for wait in (0.0, 0.001, 0.01, 0.03):
        told.clear()
        attempt = Attempt(spark, "test", lambda: None, told.append, lock)
        time.sleep(wait)
        with lock:
            by_thread = bool(told)
            attempt.stop()
            assert attempt.over and attempt.error is None
        assert bool(told) == by_thread


@pytest.mark.spark
@pytest.mark.parametrize("dear", [False, True])
def test_what_is_in_flight_is_finished_where_its_rows_are_worth_moving(
    spark: SparkSession, tmp_path: Path, gate: Path, monkeypatch: pytest.MonkeyPatch, dear: bool
) -> None:
    opened = str(gate)

    def build(session: SparkSession) -> DataFrame:
        from pyspark.sql.functions import col, sum, udf

        @udf("long")
        def slow(n: int) -> int:
            if n == 0:
                time.sleep(1.0)  # work that is not worth doing again
            while n > 0 and not os.path.exists(opened):
                time.sleep(0.01)
            return n % 2

        return session.range(0, 8, 1, 8).withColumn("k", slow(col("id"))).groupBy("k").agg(sum("id"))

    asked = states._tasks_finished
    suspending = False

    def tasks_finished(session: SparkSession, exchange: Any) -> int:
        found = asked(session, exchange)
        if suspending and not dear:
            gate.touch()  # the rest of the stage ends once it was looked at
        return found

    monkeypatch.setattr("headrace.move.states._tasks_finished", tasks_finished)
    monkeypatch.setattr(query, "_MOMENT", LIMIT)  # however long its tasks take to be heard of here
    if dear:
        monkeypatch.setattr("headrace.move.states._SMALL_BYTES", 0)
        monkeypatch.setattr("headrace.move.states._CORE_SECONDS_A_BYTE", 1e3)
    running = headrace.run(spark, build)
    while not any(states._tasks_finished(spark, states.exchange_of(stage)) for stage in running._planned.stages()):
        time.sleep(0.01)
    suspending = True
    ticket = running.suspend(str(tmp_path / "t"))
    gate.touch()
    assert ticket.progress == ((0, 2) if dear else (1, 2)) and len(ticket.states) == (0 if dear else 1)
    assert sorted(headrace.resume(spark, ticket).result().rows()) == [(0, 12), (1, 16)]
