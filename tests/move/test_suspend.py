"""Suspending, resuming and everything that can be wrong about it, in this process and a second one."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from programs import GROUPED, LIMIT, TOTALS, after_one_stage, held_program, refusal, taken

import headrace
from headrace.errors import HeadraceError
from headrace.move import claim, states
from headrace.move import ticket as tickets
from headrace.move.claim import Lease
from headrace.move.files import Folder
from headrace.move.query import RunningQuery
from headrace.move.spark_plans import SparkStage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def test_a_program_with_a_python_function_is_suspended_and_goes_on_elsewhere(
    spark: SparkSession, numbers: str, elsewhere: Any, tmp_path: Path, gate: Path
) -> None:
    running = after_one_stage(headrace.run(spark, held_program(numbers, gate)))
    snapshot = running.snapshot(str(tmp_path / "snapshot"))
    assert running.status == "running"
    ticket = running.suspend(str(tmp_path / "ticket"))
    assert running.status == "suspended"
    assert refusal(running.result) == "QUERY_SUSPENDED"
    assert refusal(lambda: running.suspend(str(tmp_path / "again"))) == "QUERY_SUSPENDED"
    assert ticket.progress == (1, 2) and len(ticket.states) == 1
    gate.touch()
    for each in (snapshot, ticket):
        assert elsewhere.ask("resume", ticket=str(each))["error"] == "TICKET_NOT_TRUSTED"  # it would run code
        answer = elsewhere.ask("resume", ticket=str(each), options={"trust": True})
        assert sorted(tuple(row.values()) for row in answer["rows"]) == TOTALS
        assert answer["moved"] == 1
    assert refusal(lambda: headrace.resume(spark, ticket)) == "TICKET_USED"
    assert not (tmp_path / "ticket" / "state").exists()


def test_a_resumed_query_is_suspended_again_before_it_has_read_its_state(
    spark: SparkSession, numbers: str, tmp_path: Path
) -> None:
    first = taken(spark, tmp_path / "1")
    resumed = headrace.resume(spark, first)
    resumed.result()
    again = RunningQuery(spark, resumed._planned, origin=resumed._origin)
    # As if nothing of the resumed plan had run: the state in it goes on as it is.
    ticket_of_nothing = tickets.new_folder(spark, str(tmp_path / "2"))
    kept = taken(spark, tmp_path / "3")
    held = headrace.resume(spark, kept, keep=True)
    second = held._write(ticket_of_nothing, [])
    held.result()
    assert [state.pipeline for state in second.states] == [state.pipeline for state in kept.states]
    assert headrace.resume(spark, second).result().rows() == TOTALS
    assert again.status == "not started"


def test_a_ticket_may_be_kept(spark: SparkSession, numbers: str, tmp_path: Path) -> None:
    ticket = taken(spark, tmp_path / "t")
    for _ in range(2):
        assert headrace.resume(spark, ticket, keep=True).result().rows() == TOTALS


def test_answers_can_go_to_files_also_after_a_move(
    spark: SparkSession, numbers: str, tmp_path: Path, gate: Path
) -> None:
    running = headrace.run(spark, held_program(numbers, gate)).to_parquet(str(tmp_path / "out"))
    ticket = after_one_stage(running).suspend(str(tmp_path / "t"))
    assert not (tmp_path / "out").exists()
    gate.touch()
    assert "out" in headrace.resume(spark, ticket).result().message
    assert sorted(map(tuple, spark.read.parquet(str(tmp_path / "out")).collect())) == TOTALS
    assert refusal(lambda: running.to_parquet(str(tmp_path / "out"))) == "PATH_EXISTS"
    assert refusal(lambda: running.to_parquet(str(tmp_path / "elsewhere"))) == "QUERY_SUSPENDED"
    relative = headrace.run(spark, GROUPED, start=False).to_parquet("answers")
    assert relative._to is not None and relative._to.startswith("file:/")  # wherever it goes on
    done = headrace.run(spark, GROUPED).to_parquet(str(tmp_path / "first"))
    done.result()
    done.to_parquet(str(tmp_path / "second"))
    assert sorted(map(tuple, spark.read.parquet(str(tmp_path / "second")).collect())) == TOTALS


def test_a_dataframe_is_given_again_and_a_cached_one_is_found(
    spark: SparkSession, numbers: str, tmp_path: Path
) -> None:
    def frame() -> DataFrame:
        cached = spark.read.parquet(numbers).filter("n >= 0").cache()
        return cached.groupBy("k").agg({"n": "sum"}).orderBy("k")

    made = frame()
    running = headrace.run(made)
    assert running.result().rows() == TOTALS
    ticket = running._write(tickets.new_folder(spark, str(tmp_path / "t")), running._planned.stages())
    assert ticket.manifest["plan"]["cached"]
    spark.catalog.clearCache()  # as in another process
    assert refusal(lambda: headrace.resume(spark, ticket)) == "DATAFRAME_NEEDED"
    again = spark.read.parquet(numbers).filter("n >= 0").groupBy("k").agg({"n": "sum"}).orderBy("k")
    resumed = headrace.resume(spark, ticket, query=again)
    assert resumed.result().rows() == TOTALS and len(resumed._planned.scans) == 1
    other = spark.read.parquet(numbers).filter("n >= 1").groupBy("k").agg({"n": "sum"}).orderBy("k")
    ticket = taken(spark, tmp_path / "u")
    assert refusal(lambda: headrace.resume(spark, ticket, query=other)) == "PLAN_DIFFERS"
    anew = headrace.resume(spark, ticket, query=other, on_mismatch="restart")
    assert anew.restarted is not None and anew.restarted.condition == "PLAN_DIFFERS"
    assert anew.result().rows() == TOTALS  # 0 counts for nothing


EVERY_TYPE = {
    "boolean": "id % 3 = 0",
    "tinyint": "CAST(id - 128 AS TINYINT)",
    "smallint": "CAST(id * 257 - 32768 AS SMALLINT)",
    "integer": "CAST(id * 16777216 - 2147483648 AS INT)",
    "long": "id * id * id * 137 - 9223372036854775807",
    "float": "CAST(element_at(array('NaN', '-0.0', '1e-45', '3.4e38', '-Infinity'), CAST(id % 5 + 1 AS INT)) AS FLOAT)",
    "double": "CAST(element_at(array('NaN', '-0.0', '5e-324', '0.1', 'Infinity'), CAST(id % 5 + 1 AS INT)) AS DOUBLE)",
    "decimal(9,2)": "CAST(id - 128.25 AS DECIMAL(9, 2))",
    "decimal(18,4)": "CAST((id - 128) * 1e11 AS DECIMAL(18, 4))",
    "decimal(38,10)": "CAST((id - 128) * 1e25 AS DECIMAL(38, 10))",
    "string": "repeat('é\\n', CAST(id % 7 AS INT))",
    "binary": "unhex(substr(sha2(CAST(id AS STRING), 256), 1, CAST(2 * (id % 30) AS INT)))",
    "date": "date_add(DATE'1582-10-01', CAST((id % 30) * (id % 9) * 1000 AS INT))",
    "timestamp": "timestamp_micros(id * id * 1000003 - 62135596800000000)",
    "timestamp_ntz": "CAST(timestamp_micros((id - 99) * 86400000001) AS TIMESTAMP_NTZ)",
    "day-time": "make_dt_interval(CAST(id - 9 AS INT), 1, 2, 3.5)",
    "year-month": "make_ym_interval(1, CAST(id - 99 AS INT))",
    "array": "transform(sequence(0, CAST(id % 4 AS INT)), x -> IF(x = 2, NULL, CAST(x * id AS STRING)))",
    "struct": "named_struct('a', id, 'b', named_struct('c', IF(id % 2 = 0, NULL, 'x')))",
    "struct of a name twice": "named_struct('object_id', id, 'id', array(named_struct('x', -id, 'x', 'b')), 'id', 'c')",
    "map": "map('k', CAST(id AS DECIMAL(30, 3)), 'l', NULL)",
}


def test_rows_of_every_type_come_back_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(0, 256, 1, 2).write.parquet(str(tmp_path / "ids"))
    columns = ", ".join(f"IF(id % 11 = 5, NULL, {text}) AS `{name}`" for name, text in EVERY_TYPE.items())
    query = f"""CREATE OR REPLACE TEMPORARY VIEW ids USING parquet OPTIONS (path '{tmp_path / "ids"}');
        SELECT id, to_json(struct(*), map('ignoreNullFields', 'false')) AS text
        FROM (SELECT /*+ REPARTITION(2, id) */ id, {columns} FROM ids)"""
    ticket = taken(spark, tmp_path / "t", query)
    (state,) = ticket.states
    assert len(state.types) == len(EVERY_TYPE) + 1 and state.rows == 256
    *_, text = query.split(";", 1)
    spark.read.parquet(str(tmp_path / "ids")).createOrReplaceTempView("ids")
    expected = sorted(tuple(row) for row in spark.sql(text).collect())
    spark.catalog.dropTempView("ids")
    resumed = headrace.resume(spark, ticket)
    assert sorted(resumed.result().rows()) == expected and len(resumed._planned.scans) == 1


def test_queries_that_do_not_run_are_not_suspended(
    spark: SparkSession, numbers: str, tmp_path: Path, gate: Path
) -> None:
    waiting = headrace.run(spark, GROUPED, start=False)
    assert refusal(lambda: waiting.suspend(str(tmp_path / "t"))) == "QUERY_NOT_STARTED"
    assert refusal(waiting.result) == refusal(waiting.watch) == "QUERY_NOT_STARTED"
    assert waiting.start().result().rows() == TOTALS
    assert refusal(lambda: waiting.suspend(str(tmp_path / "t"))) == "QUERY_FINISHED"
    failing = headrace.run(spark, "SELECT k, sum(n) / (max(k) - k) FROM numbers GROUP BY k")
    assert refusal(failing.result) == "DIVIDE_BY_ZERO"
    assert refusal(lambda: failing.suspend(str(tmp_path / "t"))) == "QUERY_FAILED"
    cancelled = headrace.run(spark, held_program(numbers, gate))
    cancelled.cancel()
    assert refusal(cancelled.result) == "QUERY_CANCELLED"
    assert not (tmp_path / "t").exists()


def observed(spark: SparkSession) -> DataFrame:
    from pyspark.sql.functions import count, lit

    return spark.table("numbers").observe("seen", count(lit(1))).groupBy("k").count()


def counting(spark: SparkSession) -> DataFrame:
    from pyspark.sql.functions import udf

    seen = spark.sparkContext.accumulator(0)

    @udf("long")
    def counted(n: int) -> int:
        seen.add(1)
        return n

    return spark.table("numbers").select("k", counted("n").alias("n")).groupBy("k").sum("n")


def not_of_its_session(spark: SparkSession) -> Callable[[SparkSession], DataFrame]:
    frame = spark.table("numbers").groupBy("k").count()
    return lambda _: frame


@pytest.mark.parametrize(
    ("query", "name"),
    [
        (observed, "CollectMetrics"),
        (counting, "accumulator"),
        (not_of_its_session, "function"),
        (
            "WITH RECURSIVE some (n) AS (SELECT 1L UNION ALL SELECT n + 1 FROM some WHERE n < 9)"
            "SELECT k, count(*) FROM numbers JOIN some USING (n) GROUP BY k",
            "UnionLoop",
        ),
        ("SELECT k, count(*) FROM numbers WHERE rand() < 0.999999 GROUP BY k", "rand"),
        ("SELECT k, max(current_timestamp()) FROM numbers GROUP BY k", "current_timestamp"),
        ("SELECT k, count(*) FROM numbers TABLESAMPLE (50 PERCENT) GROUP BY k", "Sample"),
        ("SELECT k, count(*) FROM rows_of_this_session GROUP BY k", "ExistingRDD"),
    ],
)
def test_what_cannot_be_moved_is_refused_by_name_and_goes_on(
    spark: SparkSession, numbers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: Any, name: str
) -> None:
    rows = spark.sparkContext.parallelize([(1, 2), (3, 4)])
    spark.createDataFrame(rows, "k INT, n INT").createOrReplaceTempView("rows_of_this_session")
    running = headrace.run(spark, query if isinstance(query, str) else query(spark), start=False)
    running._status = "running"  # whether it may be moved does not depend on how far it is
    monkeypatch.setattr(running, "_halt", lambda: pytest.fail("it was stopped"))
    with pytest.raises(HeadraceError, match=name) as caught:
        running.suspend(str(tmp_path / "t"))
    assert caught.value.condition == "CANNOT_MOVE"
    assert not (tmp_path / "t").exists()
    running._status = "not started"
    assert len(running.start().result()) > 0


def test_what_is_no_query_is_refused_before_it_runs(spark: SparkSession, numbers: str, tmp_path: Path) -> None:
    where = tmp_path / "written"
    cases = {
        f"CREATE TABLE t USING parquet LOCATION '{where}' AS SELECT 1": "NOT_A_QUERY",
        "INSERT INTO numbers SELECT 1, 2": "NOT_A_QUERY",
        "WITH w AS (SELECT 1 AS a, 2 AS b) INSERT INTO numbers SELECT * FROM w": "NOT_A_QUERY",
        f"INSERT OVERWRITE DIRECTORY '{where}' USING parquet SELECT 1; SELECT 1": "SETUP_REFUSED",
        "": "PARSE_SYNTAX_ERROR",
        "SELECT": "PARSE_SYNTAX_ERROR",
        "SELECT * FROM nowhere": "TABLE_OR_VIEW_NOT_FOUND",
        "SELECT value, count(*) FROM ticks GROUP BY value": "CANNOT_MOVE",
    }
    spark.readStream.format("rate").load().createOrReplaceTempView("ticks")
    for text, condition in cases.items():
        with pytest.raises(HeadraceError) as caught:
            headrace.run(spark, text)
        assert caught.value.condition == condition, text
    assert not where.exists()
    assert refusal(lambda: headrace.run(spark.table("ticks"))) == "CANNOT_MOVE"
    assert refusal(lambda: headrace.run(spark, 3)) == "USAGE"  # type: ignore[arg-type]
    assert refusal(lambda: headrace.run(spark, GROUPED, priority="x", yield_to="x")) == "USAGE"
    assert refusal(lambda: headrace.run(object(), "SELECT 1")) == "NOT_A_SPARK_SESSION"  # type: ignore[arg-type]


def test_every_mismatch_has_a_name_and_may_restart(spark: SparkSession, numbers: str, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    ticket = taken(spark, folder)
    manifest = json.loads((folder / "ticket.json").read_text())
    (data,) = [path for path in (folder / "state" / "0").iterdir() if path.suffix == ".parquet"]
    whole = data.read_bytes()

    def expect(condition: str) -> RunningQuery:
        assert refusal(lambda: headrace.resume(spark, ticket)) == condition
        again = headrace.resume(spark, ticket, keep=True, on_mismatch="restart")
        assert again.restarted is not None and again.restarted.condition == condition
        assert again.result().rows() == TOTALS
        return again

    data.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    expect("TICKET_DAMAGED")
    data.write_bytes(whole[:-1])
    expect("TICKET_DAMAGED")
    data.unlink()
    expect("TICKET_DAMAGED")
    data.write_bytes(whole)
    more = data.with_name(f"part-99999-{data.name}")
    more.write_bytes(whole)  # its rows would be read too
    expect("TICKET_DAMAGED")
    more.unlink()
    (folder / "state" / "0" / f".{data.name}.crc").unlink(missing_ok=True)
    other = {**manifest["ticket"], "spark": "4.0.0"}
    (folder / "ticket.json").write_text(tickets.sealed(other))
    (folder / ".ticket.json.crc").unlink()
    expect("SPARK_VERSION_DIFFERS")
    (folder / "ticket.json").write_text(tickets.sealed({**manifest["ticket"], "format": 99}))
    assert refusal(lambda: headrace.resume(spark, ticket)) == "FORMAT_TOO_NEW"
    (folder / "ticket.json").write_text(json.dumps(manifest).replace("4.", "5."))
    assert refusal(lambda: headrace.resume(spark, ticket)) == "TICKET_DAMAGED"
    (folder / "ticket.json").write_text(tickets.sealed(manifest["ticket"]))
    (changed,) = [path for path in Path(numbers).iterdir() if path.name.startswith("part-00000")]
    os.utime(changed, (1, 1))
    anew = expect("INPUT_CHANGED")  # the view has listed its files before
    written = anew._write(tickets.new_folder(spark, str(tmp_path / "u")), anew._planned.stages())
    assert 1_000 in [modified for _, _, modified, _ in written.manifest["inputs"]["files"]]
    shutil.rmtree(numbers)
    assert refusal(lambda: headrace.resume(spark, ticket)) == "INPUT_CHANGED"
    spark.catalog.dropTempView("numbers")
    assert refusal(lambda: headrace.resume(spark, ticket)) == "TABLE_OR_VIEW_NOT_FOUND"


def test_folders_that_are_no_tickets(spark: SparkSession, numbers: str, tmp_path: Path, gate: Path) -> None:
    assert refusal(lambda: headrace.resume(spark, str(tmp_path / "none"))) == "NOT_A_TICKET"
    assert refusal(lambda: headrace.resume(spark, str(tmp_path))) == "NOT_A_TICKET"
    assert refusal(lambda: headrace.resume(spark, "nosuch://a/b")) == "PATH_NOT_USABLE"
    running = headrace.run(spark, held_program(numbers, gate))
    assert refusal(lambda: running.suspend(str(tmp_path))) == "TICKET_EXISTS"
    (tmp_path / "file").write_text("x")
    assert refusal(lambda: running.suspend(str(tmp_path / "file" / "t"))) == "TICKET_NOT_WRITTEN"
    gate.touch()
    assert sorted(running.result().rows()) == TOTALS


def test_a_query_whose_state_cannot_be_written_goes_on(
    spark: SparkSession, numbers: str, tmp_path: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = after_one_stage(headrace.run(spark, held_program(numbers, gate)))

    really = states.write

    def obstructed(io: SparkSession, folder: Folder, name: str, stage: SparkStage) -> states.StageState:
        (tmp_path / "t" / "state").write_text("where the rows should go")
        return really(io, folder, name, stage)

    monkeypatch.setattr(states, "write", obstructed)
    assert refusal(lambda: running.suspend(str(tmp_path / "t"))) == "TICKET_NOT_WRITTEN"
    assert not (tmp_path / "t").exists()
    assert running.status == "running" and len(running._planned.scans) == 1
    gate.touch()
    assert sorted(running.result().rows()) == TOTALS


def test_a_state_that_is_not_where_it_was_written_makes_no_ticket(
    spark: SparkSession, numbers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where each executor writes to a disk of its own."""
    really = states._write

    def elsewhere(folder: Folder, name: str, *rest: Any) -> int:
        rows = really(folder, name, *rest)
        for file in folder.sizes(name):
            folder.remove(f"{name}/{file}")
        return rows

    monkeypatch.setattr(states, "_write", elsewhere)
    with pytest.raises(HeadraceError, match="0 rows of 10 ") as caught:
        taken(spark, tmp_path / "t")
    assert caught.value.condition == "TICKET_NOT_WRITTEN"
    assert refusal(lambda: headrace.resume(spark, str(tmp_path / "t"))) == "NOT_A_TICKET"


def test_a_long_query_makes_room_for_a_short_one(spark: SparkSession, numbers: str, tmp_path: Path, gate: Path) -> None:
    long = after_one_stage(headrace.run(spark, held_program(numbers, gate), yield_to="short"))
    short = headrace.run(spark, held_program(numbers, tmp_path / "short"), priority="short", start=False)
    assert long.status == "running"
    try:
        short.start()
        seen = long.status
    finally:
        (tmp_path / "short").touch()
    assert sorted(short.result().rows()) == TOTALS
    assert seen == "paused"
    gate.touch()
    assert sorted(long.result().rows()) == TOTALS
    assert len(long._planned.scans) == 1  # the grouping was not done again


def test_a_ticket_is_resumed_by_one_process_at_a_time(
    spark: SparkSession, numbers: str, tmp_path: Path, gate: Path, elsewhere: Any
) -> None:
    held = after_one_stage(headrace.run(spark, held_program(numbers, gate))).suspend(str(tmp_path / "held"))
    mine = headrace.resume(spark, held)
    answer = elsewhere.ask("resume", ticket=str(held), options={"trust": True})
    assert answer["error"] == "TICKET_IN_USE" and str(os.getpid()) in answer["message"]
    mine.cancel()
    again = headrace.resume(spark, held)  # nothing of it was used up
    assert again.status == "running" and len(again._planned.scans) == 1
    again.cancel()


def test_a_suspend_cut_short_anywhere_leaves_no_ticket(
    spark: SparkSession, numbers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder as it is before and after each step that writes is what a killed process would leave."""
    images: list[Path] = []

    def seen(step: Callable[..., Any]) -> Callable[..., Any]:
        def take() -> None:
            images.append(tmp_path / f"image{len(images)}")
            shutil.copytree(tmp_path / "t", images[-1])

        def watched(*arguments: Any, **options: Any) -> Any:
            take()
            found = step(*arguments, **options)
            take()
            return found

        return watched

    monkeypatch.setattr(states, "_write", seen(states._write))
    monkeypatch.setattr(Folder, "write", seen(Folder.write))
    ticket = taken(spark, tmp_path / "t")
    monkeypatch.undo()
    assert len(images) == 4 and (images[-1] / "state").exists()
    for image in images:
        assert refusal(lambda image=image: headrace.resume(spark, str(image))) == "NOT_A_TICKET"  # type: ignore[misc]
    assert headrace.resume(spark, ticket).result().rows() == TOTALS


@pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "soak", reason="starts a Spark of its own to kill it")
def test_whoever_is_killed_leaves_whole_tickets_or_none(
    spark: SparkSession, numbers: str, tmp_path: Path, gate: Path, elsewhere: Any
) -> None:
    """Killed while resuming, the ticket can be used; killed while suspending, there is none."""
    held = after_one_stage(headrace.run(spark, held_program(numbers, gate))).suspend(str(tmp_path / "held"))
    victim = type(elsewhere)()
    try:
        assert victim.ask("hold", ticket=str(held)) == "running"
        assert refusal(lambda: headrace.resume(spark, held)) == "TICKET_IN_USE"
        query = f"""CREATE TEMPORARY VIEW numbers USING parquet OPTIONS (path '{numbers}');
            SELECT a.n, count(*) FROM (SELECT n, count(*) FROM numbers GROUP BY n) a CROSS JOIN range(40000000)
            GROUP BY a.n"""
        victim.tell("suspend slowly", query=query, path=str(tmp_path / "half"))
        assert victim.answer() == "begun"
        deadline = time.monotonic() + LIMIT
        while not (tmp_path / "half").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        victim.kill()
    assert refusal(lambda: headrace.resume(spark, str(tmp_path / "half"))) == "NOT_A_TICKET"
    again = headrace.resume(spark, held)
    assert again.status == "running" and len(again._planned.scans) == 1
    again.cancel()


def test_a_lease_is_for_one_and_runs_out(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim where there are no locks: nobody else while it is written, the next one after.

    A lease is old by the time of its file, which is set here instead of waiting for it.
    """
    monkeypatch.setattr(claim, "_RENEWALS", claim.LEASE_SECONDS / 0.05)
    folder = Folder(spark, str(tmp_path / "t"))
    folder.make()
    first, file = Lease(folder), tmp_path / "t" / "claim.1"
    assert refusal(lambda: Lease(folder)) == "TICKET_IN_USE"
    os.utime(file, (1, 1))
    deadline = time.monotonic() + LIMIT
    while file.stat().st_mtime < 2:  # it is written again and again
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert refusal(lambda: Lease(folder)) == "TICKET_IN_USE"
    (tmp_path / "t" / "claim.7").write_text("of one who looked, and died")
    os.utime(tmp_path / "t" / "claim.7", (1, 1))
    assert refusal(lambda: Lease(folder)) == "TICKET_IN_USE"
    first._over.set()  # as if its process had died
    with first._writing:
        os.utime(file, (1, 1))
    second = Lease(folder)
    assert refusal(lambda: Lease(folder)) == "TICKET_IN_USE"
    second.release()


def test_progress_and_advice(spark: SparkSession, numbers: str, tmp_path: Path, gate: Path) -> None:
    running = after_one_stage(headrace.run(spark, held_program(numbers, gate)))
    now = running.progress()
    assert (now.finished, now.total) == (1, 2) and now.pipelines[0].rows and now.pipelines[0].bytes
    assert "1 of 2 pipelines" in str(running) and "<progress" in running._repr_html_()
    advice = running.advice(str(tmp_path / "tickets"))
    assert advice.best == "next stage" and advice.now - advice.next_stage >= 1.5  # then it has its answer
    assert advice.bytes_per_second > 0 and not (tmp_path / "tickets").exists()
    ticket = running.snapshot(str(tmp_path / "t"))
    gate.touch()
    assert sorted(running.watch().rows()) == TOTALS
    assert running.progress().fraction == 1
    first, *_ = running.progress().pipelines
    assert first.seconds is not None and 0 < first.seconds < LIMIT and " s\n" in str(running)
    assert headrace.resume(spark, ticket).progress().seconds > ticket.manifest["progress"]["seconds"] > 0
