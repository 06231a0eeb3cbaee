"""What of the finished work is taken along, what is left behind, and what is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from programs import GROUPED, TOTALS, taken

import headrace
from headrace.move import states
from headrace.move import ticket as tickets
from headrace.move.plan import Holding, Pipeline
from headrace.move.spark_plans import Stages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_state_that_is_dear_to_move_is_left_behind_but_not_one_that_has_moved(
    spark: SparkSession, numbers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheap = taken(spark, tmp_path / "cheap")
    monkeypatch.setattr("headrace.move.states._SMALL_BYTES", 0)
    monkeypatch.setattr("headrace.move.states._CORE_SECONDS_A_BYTE", 1e3)
    dear = taken(spark, tmp_path / "dear")
    assert len(cheap.states) == 1 and not dear.states
    assert headrace.resume(spark, dear).result().rows() == TOTALS
    resumed = headrace.resume(spark, cheap)
    resumed.result()  # the stage that read the state has run here, at little cost
    again = resumed._write(tickets.new_folder(spark, str(tmp_path / "again")), resumed._planned.stages()[:1])
    assert [state.pipeline for state in again.states] == [state.pipeline for state in cheap.states]
    assert headrace.resume(spark, again).result().rows() == TOTALS


def test_a_broadcast_is_left_behind_where_its_table_is_read_again_as_soon(
    spark: SparkSession, numbers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = """SELECT /*+ BROADCAST(b) */ a.k, count(*) AS c FROM numbers a JOIN numbers b ON a.n = b.k
        GROUP BY a.k ORDER BY a.k"""
    running = headrace.run(spark, query)
    expected = running.result().rows()
    broadcast = running._planned.stages()[:1]

    def states_for(seconds: float) -> int:
        monkeypatch.setattr("headrace.move.states._BROADCAST_SECONDS", seconds)
        ticket = running._write(tickets.new_folder(spark, str(tmp_path / str(seconds))), broadcast)
        assert ticket.progress[0] == 1 and headrace.resume(spark, ticket).result().rows() == expected
        return len(ticket.states)

    assert (states_for(0.0), states_for(60.0)) == (1, 0)


def test_a_choice_that_finished_work_rests_on_is_not_made_again(
    spark: SparkSession, numbers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two parts join the same ten rows of a LIMIT: of one that is done, the other has to see the same ten."""
    monkeypatch.setattr("headrace.move.states._BROADCAST_SECONDS", 60.0)
    chosen = "(SELECT n AS m FROM numbers LIMIT 10)"
    query = f"""SELECT /*+ BROADCAST(s) */ 'a', k, count(*) FROM numbers JOIN {chosen} s ON n = m GROUP BY k
        UNION ALL SELECT /*+ BROADCAST(s) */ 'b', n % 3, sum(k) FROM numbers JOIN {chosen} s ON n = m GROUP BY n % 3"""
    running = headrace.run(spark, query)
    expected = sorted(running.result().rows())
    stages = {stage.pipeline: stage for stage in running._planned.stages()}
    (shared,) = [pipeline for pipeline in stages if pipeline.holding is Holding.INDEX]
    first, second = (pipeline for pipeline in running._planned.depends[None] if pipeline in stages)

    def moved(name: str, without: set[Pipeline]) -> set[Pipeline]:
        finished = [stage for pipeline, stage in stages.items() if pipeline not in without]
        ticket = running._write(tickets.new_folder(spark, str(tmp_path / name)), finished)
        assert sorted(headrace.resume(spark, ticket).result().rows()) == expected
        return {state.pipeline for state in ticket.states}

    assert moved("one of two", {second}) == {first, shared}
    assert shared not in moved("none of two", {first, second})  # nothing rests on it yet


def test_what_a_broadcast_took_is_told_with_what_is_below_a_sort_for_its_first_rows(
    spark: SparkSession, numbers: str
) -> None:
    query = """SELECT /*+ BROADCAST(s) */ count(*) FROM numbers JOIN
        (SELECT k FROM (SELECT * FROM numbers ORDER BY n LIMIT 10) WHERE k > 1) s ON n = s.k"""
    running = headrace.run(spark, query)
    running.result()
    (broadcast,) = [stage for stage in running._planned.stages() if stage.pipeline.holding is Holding.INDEX]
    assert states.cost_of_running(spark, broadcast) >= (states.seconds_of(spark, broadcast) or 0.0) > 0


def test_how_long_a_stage_ran_is_told_as_soon_as_spark_knows(
    spark: SparkSession, numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = headrace.run(spark, GROUPED)
    running.result()
    with monkeypatch.context() as patched:
        patched.setattr(states, "seconds_of", lambda *_: None)
        assert running.progress().pipelines[0].seconds is None
    assert running.progress().pipelines[0].seconds is not None


def test_progress_does_not_compare_plans_again_and_again(
    spark: SparkSession, numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who watches a query takes little from it."""
    running = headrace.run(spark, GROUPED)
    running.result()
    first = running.progress()

    def compared(*_: object) -> None:
        raise AssertionError("a stage that was found is looked for again")

    monkeypatch.setattr(Stages, "_pipeline", compared)
    assert running.progress() == first and first.finished == first.total
