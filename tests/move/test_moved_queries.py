"""A query moved after any of its stages to another Spark process, with other settings, gives the same answer (M6)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace
from headrace.move import ticket as tickets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_HERE = Path(__file__).parent
_CASE = re.compile(r"^-- (\w+)\n([^;]*);", re.MULTILINE)


def _cases(file: Path) -> dict[str, str]:
    return dict(_CASE.findall(file.read_text(encoding="utf-8")))


QUERIES = _cases(_HERE.parent / "tpch.sql") | _cases(_HERE / "moved.sql")
TPCDS = _cases(_HERE.parent / "tpcds.sql")
FEW = ("pruned_twice", "reused", "united", "windowed", "anti", "crossed", "nested", "emptied", "assorted")
"""Enough for every kind of operator; a soak moves all of them."""
SLOW = {"pruned_twice", "united", "nested", "assorted"}
"""They have many stages; only a soak moves them after each."""
FEW_OF_TPCDS = ("q70", "q87")
"""Windows over aggregates, ROLLUP, ranks with a limit, EXCEPT: what the others do not have."""
SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
THRESHOLDS = ("10MB", "-1") if SOAK else ("20KB",)
"""Up to where Spark broadcasts: joins are by hash, by merge, or change while the query runs."""
EMPTY = {"emptied"}
EMPTY_OF_TPCDS = {"q24a", "q24b", "q31", "q54", "q58", "q83", "q84", "q85"}


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("name", QUERIES if SOAK else FEW)
def test_differential_moved_after_every_stage(
    spark: SparkSession, inputs: dict[str, str], elsewhere: Any, tmp_path: Path, name: str, threshold: str
) -> None:
    every_stage = SOAK or name not in SLOW
    answer = _moved(spark, _script(QUERIES[name], inputs, threshold), elsewhere, tmp_path, every_stage=every_stage)
    assert (answer == []) == (name in EMPTY)


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("name", TPCDS if SOAK else FEW_OF_TPCDS)
def test_differential_tpcds_moved(
    spark: SparkSession, tpcds_inputs: dict[str, str], elsewhere: Any, tmp_path: Path, name: str, threshold: str
) -> None:
    answer = _moved(spark, _script(TPCDS[name], tpcds_inputs, threshold), elsewhere, tmp_path, every_stage=SOAK)
    assert (answer == []) == (name in EMPTY_OF_TPCDS)


@pytest.mark.skipif(not SOAK, reason="plans every query")
def test_the_few_have_every_kind_of_operator(
    spark: SparkSession, inputs: dict[str, str], tpcds_inputs: dict[str, str]
) -> None:
    """What the default run moves has whatever all queries have, as they are planned."""

    def kinds(query: str, views: dict[str, str], threshold: str) -> set[str]:
        planned = headrace.run(spark, _script(query, views, threshold), start=False)._planned
        return {operator.name for operator in planned.root.walk()}

    few = {kind for name in FEW for kind in kinds(QUERIES[name], inputs, "20KB")}
    few |= {kind for name in FEW_OF_TPCDS for kind in kinds(TPCDS[name], tpcds_inputs, "20KB")}
    every: dict[str, str] = {}
    for queries, views in ((QUERIES, inputs), (TPCDS, tpcds_inputs)):
        for name, query in queries.items():
            for threshold in THRESHOLDS:
                every |= dict.fromkeys(kinds(query, views, threshold), f"{name} {threshold}")
    assert {kind: where for kind, where in every.items() if kind not in few} == {}


def test_work_above_an_exchange_read_twice_is_found(spark: SparkSession, inputs: dict[str, str]) -> None:
    """Spark reuses an exchange whatever the order of its filters: what was computed from it is that pipeline's work."""
    query = """SELECT * FROM
        (SELECT /*+ BROADCAST(nation) */ n_name, count(*) AS suppliers FROM supplier, nation
         WHERE s_nationkey = n_nationkey AND n_regionkey < 3 AND n_name > 'B' GROUP BY n_name) JOIN
        (SELECT /*+ BROADCAST(nation) */ n_name, count(*) AS customers FROM customer, nation
         WHERE n_name > 'B' AND c_nationkey = n_nationkey AND n_regionkey < 3 GROUP BY n_name) USING (n_name)"""
    running = headrace.run(spark, _script(query, inputs, "-1"))
    assert len(running.result()) > 0
    done = [stage.pipeline for stage in running._planned.stages()]
    assert len(done) == len(running._planned.depends) - 1 == 3
    assert len(running._needed(done)) == 2  # the two groupings, and not what they were made from


ALIKE = {
    "subqueries": """SELECT k, count(*) AS c FROM numbers
            WHERE n > (SELECT 5 * max(k) FROM numbers) AND k > (SELECT min(id) FROM range(9)) GROUP BY k
        UNION ALL SELECT k, count(*) FROM numbers
            WHERE k > (SELECT 5 * max(k) FROM numbers) AND n > (SELECT min(id) FROM range(9)) GROUP BY k""",
    "orders": """SELECT /*+ REPARTITION(2) */ n FROM (SELECT n FROM numbers ORDER BY n OFFSET 990)
        UNION ALL SELECT /*+ REPARTITION(2) */ n FROM (SELECT n FROM numbers ORDER BY n DESC OFFSET 990)""",
}


@pytest.mark.parametrize("what", [*ALIKE, "functions"])
def test_differential_work_that_differs_in_little_is_not_taken_for_the_same(
    spark: SparkSession, numbers: str, tmp_path: Path, what: str
) -> None:
    """Which subquery, in which order, by which function: what one part has done does not stand for the other."""
    running = headrace.run(spark, ALIKE.get(what) or _with_functions(numbers))
    expected = sorted(running.result().rows())
    assert len(set(expected)) > 3
    ticket = running._write(tickets.new_folder(spark, str(tmp_path / "t")), running._planned.stages())
    resumed = headrace.resume(spark, ticket)
    assert sorted(resumed.result().rows()) == expected and resumed._planned.scans
    assert resumed._planned.root.identity == running._planned.root.identity  # so that it can be moved again


def test_an_order_counts_for_what_reads_it_alone(spark: SparkSession, numbers: str) -> None:
    def identity(query: Any) -> str:
        return headrace.run(spark, query, start=False)._planned.root.identity

    for reads_it in (
        "SELECT first(n) FROM (SELECT * FROM numbers ORDER BY {})",
        "SELECT k, collect_list(n) FROM (SELECT * FROM numbers SORT BY {}) GROUP BY k",
        "SELECT max(n) FROM (SELECT * FROM numbers ORDER BY {} OFFSET 9)",
    ):
        assert len({identity(reads_it.format(order)) for order in ("k, n", "n, k", "n, k")}) == 2, reads_it

    def mapped(order: str) -> DataFrame:
        return spark.table("numbers").sortWithinPartitions(order).mapInPandas(lambda rows: rows, "n LONG, k LONG")

    assert identity(mapped("n")) != identity(mapped("k"))
    assert identity("SELECT n FROM numbers ORDER BY n") == identity("SELECT n FROM numbers ORDER BY n DESC")
    joined = (
        "SELECT /*+ {}(b) */ rank() OVER (PARTITION BY a.k ORDER BY a.n) FROM numbers a JOIN numbers b ON a.k = b.n"
    )
    assert identity(joined.format("MERGE")) == identity(joined.format("BROADCAST"))


def test_nodes_are_told_apart_however_alike(spark: SparkSession, numbers: str) -> None:
    reader = headrace.run(spark, "SELECT k FROM numbers", start=False)._planned.reader
    plans = [spark.sql("SELECT k FROM numbers")._jdf.queryExecution() for _ in range(3)]
    found = [reader.number(plan.sparkPlan()) for _ in range(2) for plan in plans]
    assert len(set(found)) == 3 and found[:3] == found[3:]


def _with_functions(path: str) -> Callable[[SparkSession], DataFrame]:
    def build(spark: SparkSession) -> DataFrame:
        from pyspark.sql.functions import col, sum, udf

        more, twice, less = udf(lambda x: x + 1, "long"), udf(lambda x: x * 2, "long"), udf(lambda x: x - 3, "long")

        def grouped(function: Callable[[Any], Any]) -> DataFrame:
            found = spark.read.parquet(path).select("k", function("n").alias("w"))
            return found.groupBy("k").agg(sum("w").alias("w"))

        return grouped(more).unionAll(grouped(twice)).select("k", less(col("w")))

    return build


def _script(query: str, views: dict[str, str], threshold: str) -> str:
    needed = " ".join(text for view, text in views.items() if re.search(rf"\b{view}\b", query))
    return f"SET spark.sql.autoBroadcastJoinThreshold = {threshold}; {needed} {query}"


def _moved(spark: SparkSession, script: str, elsewhere: Any, folder: Path, *, every_stage: bool) -> list[str]:
    """The answer, which is the same elsewhere, whatever stages were finished when the query moved."""
    running = headrace.run(spark, script)
    table = running.result().arrow()
    stages = running._planned.stages()
    expected = table.column_names, _rows(table.to_pylist(), script)
    last = len(stages)
    for cut in range(1, last + 1) if every_stage else sorted({max(1, last // 2), last}):
        ticket = running._write(tickets.new_folder(spark, str(folder / str(cut))), stages[:cut])
        answer = elsewhere.ask("resume", ticket=ticket.address)
        assert "error" not in answer, answer
        assert answer["moved"] == len(ticket.states) > 0
        assert (answer["columns"], _rows(answer["rows"], script)) == expected, cut
    assert stages
    with pytest.MonkeyPatch.context() as patched:  # broadcasts are left behind, and shuffles moved
        patched.setattr("headrace.move.states._BROADCAST_SECONDS", 60.0)
        ticket = running._write(tickets.new_folder(spark, str(folder / "few")), stages[: max(1, last // 2)])
    answer = elsewhere.ask("resume", ticket=ticket.address)
    assert (answer.get("columns"), _rows(answer["rows"], script)) == expected, answer.get("error")
    return expected[1]


def _rows(rows: list[dict[str, Any]], query: str) -> list[str]:
    """Rows to compare: in order where the query says so, doubles but for what the order of additions decides."""
    found = [repr([f"{value:.9g}" if isinstance(value, float) else value for value in row.values()]) for row in rows]
    return found if "ORDER BY" in query.rpartition(")")[2] or "\nORDER BY" in query else sorted(found)
