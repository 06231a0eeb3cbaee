"""Running a query over one snapshot: natively where that is exact, else by Spark SQL.

All leaves of a query are read in one snapshot, so an answer never mixes epochs.
A continuous view is a leaf too: it is brought up to date first (``view/``), and
its rows stand in for it, the same rows however often the query names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from headrace import tables
from headrace.catalog import Table
from headrace.engine.failures import NativeCannot, from_duckdb
from headrace.engine.places import Choice, Place, choose
from headrace.engine.plan_sql import native_plan, quote_native, why_not_native
from headrace.engine.spark import Relation, leaf, run_plan
from headrace.engine.worker import conform
from headrace.plan.nodes import Node, Scan, walk_plan
from headrace.runtime import Runtime
from headrace.store import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Leaves:
    """Where a query's leaves that are no tables come from."""

    arrow: Mapping[Relation, pa.Table]
    """Rows already here: results of continuous views."""
    sql: Mapping[Relation, str]
    """Native SQL over the snapshot: a state relation's merge."""


NO_LEAVES = Leaves({}, {})


def place_of(runtime: Runtime, plan: Node) -> Choice:
    """Where a query or upper pipeline runs, and why."""
    engine = "spark" if runtime.settings.engine == "spark" else "auto"
    return choose(why_not_native(plan, zone=runtime.settings.time_zone), 0, task_bytes=1, engine=engine)


def run(runtime: Runtime, snapshot: Snapshot, plan: Node, leaves: Leaves = NO_LEAVES) -> pa.Table:
    """The plan's rows as of the snapshot."""
    if place_of(runtime, plan).place is Place.NATIVE:
        try:
            return run_native(runtime, snapshot, plan, leaves)
        except NativeCannot:
            pass  # some value is treated otherwise by Spark: let Spark treat it
    return _run_spark(runtime, snapshot, plan, leaves)


def run_native(runtime: Runtime, snapshot: Snapshot, plan: Node, leaves: Leaves) -> pa.Table:
    names = {key: f"__leaf{i}" for i, key in enumerate(leaves.arrow)}

    def source(scan: Scan) -> str:
        key = leaf(scan)
        if key in names:
            return names[key]
        if key in leaves.sql:
            return f"({leaves.sql[key]})"
        return tables.source(snapshot, runtime.catalog.get(scan.relation, Table), scan.fields)

    text = native_plan(plan, source, zone=runtime.settings.time_zone)
    try:
        rows = snapshot.query(text, **{names[k]: v for k, v in leaves.arrow.items()})
    except duckdb.Error as error:
        raise from_duckdb(error) from None
    if not plan.output:
        return rows
    return conform(rows, pa.schema([pa.field(c.name, c.type.arrow) for c in plan.output]))


def _run_spark(runtime: Runtime, snapshot: Snapshot, plan: Node, leaves: Leaves) -> pa.Table:
    spark = runtime.spark
    frames: dict[Relation, DataFrame] = {}
    files: list[Path] = []
    try:
        for node in walk_plan(plan):
            if isinstance(node, Scan) and leaf(node) not in frames:
                rows = _leaf_rows(runtime, snapshot, node, leaves)
                files.append(publish(runtime, rows))
                frames[leaf(node)] = spark.read.parquet(str(files[-1]))
        return run_plan(spark, plan, frames)
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def _leaf_rows(runtime: Runtime, snapshot: Snapshot, scan: Scan, leaves: Leaves) -> pa.Table:
    key = leaf(scan)
    if key in leaves.arrow:
        return leaves.arrow[key]
    if key in leaves.sql:
        return snapshot.query(leaves.sql[key])
    table: Table = runtime.catalog.get(scan.relation, Table)
    names = ", ".join(quote_native(c.name) for c in table.columns)
    return snapshot.query(f"SELECT {names} FROM {tables.source(snapshot, table)}")


def publish(runtime: Runtime, rows: pa.Table) -> Path:
    """Rows as a Parquet file other processes can read."""
    file = runtime.scratch_file(".parquet")
    pq.write_table(rows, file)
    return file
