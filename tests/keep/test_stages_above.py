"""Stages that read other stages' changes: each runs once a commit, after all that it reads, whatever the graph."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peak
import pytest
import web
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import headrace
from headrace import Database
from headrace.catalog import KINDS
from headrace.errors import ExecutionError
from headrace.keep.family import FAMILIES
from headrace.keep.kept import StageAbove
from headrace.sql.statements import CREATES


@pytest.fixture(autouse=True, scope="module")
def brought_along() -> Iterator[None]:
    registers: tuple[dict[str, Any], ...] = (KINDS, CREATES, FAMILIES)
    before = [dict(register) for register in registers]
    web.bring_along()
    yield
    for register, known in zip(registers, before, strict=True):
        register.clear()
        register.update(known)


Graph = list[list[int]]
"""What each state above the first reads."""


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    return [
        draw(st.lists(st.integers(0, place), min_size=1, max_size=3, unique=True))
        for place in range(draw(st.integers(1, 6)))
    ]


def words(graph: Graph) -> str:
    return ", ".join("r" + "_".join(map(str, reads)) for reads in graph)


def expected(batches: list[list[int]], graph: Graph) -> list[tuple[int, int]]:
    """Runs and totals of all states above the first: a commit at a time, by hand."""
    totals = [0] * (len(graph) + 1)
    for batch in batches:
        changes = [sum(batch)]
        for reads in graph:
            changes.append(sum(changes[i] for i in reads))
        totals = [total + change for total, change in zip(totals, changes, strict=True)]
    return [(len(batches), total) for total in totals[1:]]


def found(db: Database, name: str) -> list[tuple[int, int]]:
    rows = db.sql(f"SELECT state, runs, total FROM {name}").rows()
    return [(runs, total) for _, runs, total in sorted(rows)][1:]


Batches = st.lists(st.lists(st.integers(-1000, 1000), min_size=1, max_size=4), max_size=6)


@given(graph=graphs(), over=graphs(), before=Batches, after=Batches)
def test_any_graph_is_run_in_order_and_survives_a_restart(
    graph: Graph, over: Graph, before: list[list[int]], after: list[list[int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "db"
        with headrace.connect(path, compact_rows=3) as db:
            db.sql("CREATE STREAM s (n INT)")
            db.sql(f"CREATE WEB w OF s (n, {words(graph)})")
            db.sql(f"CREATE WEB above OF w (whole, {words(over)})")
            for batch in before:
                db.insert("s", [(n,) for n in batch])
            assert found(db, "w") == expected(before, graph)
        with headrace.connect(path, compact_rows=3) as db:
            for batch in after:
                db.insert("s", [(n,) for n in batch])
            every = [*before, *after]
            assert found(db, "w") == expected(every, graph)
            last = [[total] for _, total in per_commit(every, graph)]
            assert found(db, "above") == expected(last, over)


def per_commit(batches: list[list[int]], graph: Graph) -> list[tuple[int, int]]:
    """What each commit adds to the last state."""
    return [expected([batch], graph)[-1] for batch in batches]


def test_what_one_state_gets_from_above_is_merged_as_it_piles_up(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db", compact_rows=4) as db:
        db.sql("CREATE STREAM s (n INT)")
        db.sql("CREATE WEB w OF s (n, r0, r0_1)")
        for n in range(30):
            db.insert("s", [(n,)])
        with db.runtime.store.read() as snapshot:
            assert [snapshot.rows(ref) < 30 for ref in db.catalog.find("w").owns.values()] == [True] * 3
        assert found(db, "w") == [(30, 435), (30, 870)]


def test_a_stage_above_that_fails_fails_the_insert_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(stage: StageAbove, tx: Any, changes: Any) -> Any:
        raise ExecutionError("NO_WAY", "not this time")

    with headrace.connect(tmp_path / "db") as db:
        db.sql("CREATE STREAM s (n INT)")
        db.sql("CREATE VIEW v AS SELECT count(*) AS c FROM s")
        db.sql("CREATE WEB w OF s (n, r0, r1)")
        db.insert("s", [(1,)])
        with monkeypatch.context() as patched:
            patched.setattr(web.AddUp, "run", fail)
            with pytest.raises(ExecutionError, match="NO_WAY"):
                db.insert("s", [(2,)])
        assert (found(db, "w"), db.sql("SELECT c FROM v").rows()) == ([(1, 1), (1, 1)], [(1,)])
        db.insert("s", [(4,)])
        assert (found(db, "w"), db.sql("SELECT c FROM v").rows()) == ([(2, 5), (2, 5)], [(2,)])


@pytest.mark.spark
def test_what_tasks_leave_is_handed_on_too(tmp_path: Path, spark: SparkSession) -> None:
    modules = (peak, web)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # Spark's workers have no such module
    try:
        (tmp_path / "rows.csv").write_text("".join(f"{n}\n" for n in range(5_000)))
        for engine in ("native", "tasks", "spark"):
            with headrace.connect(tmp_path / engine, engine=engine, spark=spark) as db:
                db.sql("CREATE STREAM s (n INT)")
                db.sql("CREATE WEB w OF s (n, r0, r0_1)")
                db.copy("s", tmp_path / "rows.csv")
                db.insert("s", spark.createDataFrame([(7,)], "n INT"))
                total = 5_000 * 4_999 // 2 + 7
                assert found(db, "w") == [(2, total), (2, 2 * total)], engine
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
