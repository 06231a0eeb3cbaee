"""Captured changes applied to a table: Debezium's messages onto as many keys, beside Spark's MERGE by rewrite.

Spark has the table as Parquet files. It keeps the last message of each key by a window, joins the table with those by a
full outer join, and writes the table anew: what open Spark does without a table format that merges. Headrace applies
the same messages to its own table, from an Arrow table or from a DataFrame over the same Parquet file, durably. The
messages are read within the time of each. All end with the same rows, or nothing is reported.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headrace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK, ARROW, FRAME = "Spark: window, full outer join, rewrite", "Headrace, Arrow table", "Headrace, DataFrame"
_SEED = 18
_SUMS = "count(*), sum(id), sum(amount), sum(CAST(price * 100 AS BIGINT)), sum(length(name))"
_MERGED = """
    SELECT coalesce(c.id, t.id) AS id, CASE WHEN c.id IS NULL THEN t.amount ELSE c.after.amount END AS amount,
           CASE WHEN c.id IS NULL THEN t.name ELSE c.after.name END AS name,
           CASE WHEN c.id IS NULL THEN t.price ELSE c.after.price END AS price
    FROM old AS t FULL OUTER JOIN (
        SELECT * FROM (
            SELECT coalesce(after.id, before.id) AS id, after, op,
                   row_number() OVER (PARTITION BY coalesce(after.id, before.id) ORDER BY source.lsn DESC) AS n
            FROM log) WHERE n = 1) AS c ON t.id = c.id
    WHERE c.id IS NULL OR c.op <> 'd'
"""


@dataclass(frozen=True, slots=True)
class Cdc:
    """What one run measured: seconds of each, run by run."""

    rows: int
    seconds: dict[str, list[float]]

    def times(self, name: str) -> float:
        """How many times as fast as Spark."""
        return median(self.seconds[SPARK]) / median(self.seconds[name])

    def rate(self, name: str) -> float:
        """Messages a second."""
        return self.rows / median(self.seconds[name])


def _image(ids: np.ndarray, turn: int, none: np.ndarray) -> pa.StructArray:
    fields = {
        "id": pa.array(ids),
        "amount": pa.array((ids * 31 + turn) % 1000),
        "name": pa.array(np.char.add("customer ", ((ids + turn) % 10_000).astype(str))),
        "price": pa.array((ids % 977 + turn) / 4),
    }
    return pa.StructArray.from_arrays(list(fields.values()), list(fields), mask=pa.array(none))


def write(folder: Path, rows: int) -> tuple[Path, Path]:
    """A table of so many rows, and as many messages: a tenth inserts, a tenth deletes, the rest updates."""
    rng = np.random.default_rng(_SEED)
    table, log = folder / "table.parquet", folder / "log.parquet"
    base = np.arange(rows)
    pq.write_table(pa.Table.from_struct_array(_image(base, 0, np.zeros(rows, bool))), table)
    op = rng.choice(np.array(["c", "u", "d"]), rows, p=[0.1, 0.8, 0.1])
    ids = rng.integers(0, rows, rows)
    ids[op == "c"] = rows + np.arange((op == "c").sum())
    source = pa.StructArray.from_arrays([pa.array(np.arange(rows)), pa.array(["orders"] * rows)], ["lsn", "table"])
    messages = {
        "before": _image(ids, 0, op == "c"),
        "after": _image(ids, 1, op == "d"),
        "source": source,
        "op": pa.array(op),
        "ts_ms": pa.array(1_700_000_000_000 + np.arange(rows)),
    }
    pq.write_table(pa.table(messages), log)
    return table, log


def run(spark: SparkSession, rows: int, runs: int, say: Callable[[str], None]) -> Cdc:
    """Measure each in turns; the first turn warms up and is not counted."""
    with tempfile.TemporaryDirectory(prefix="headrace-cdc-") as folder:
        table, log = write(Path(folder), rows)

        def merge() -> tuple[float, Sequence[object]]:
            new = Path(folder) / "new.parquet"
            shutil.rmtree(new, ignore_errors=True)
            began = time.perf_counter()
            spark.read.parquet(str(table)).createOrReplaceTempView("old")
            spark.read.parquet(str(log)).createOrReplaceTempView("log")
            spark.sql(_MERGED).write.parquet(str(new))
            seconds = time.perf_counter() - began
            return seconds, tuple(spark.read.parquet(str(new)).selectExpr(*_parts(_SUMS)).collect()[0])

        def ours(read: Callable[[], object]) -> tuple[float, Sequence[object]]:
            place = Path(folder) / "db"
            shutil.rmtree(place, ignore_errors=True)
            with headrace.connect(place, spark=spark) as db:
                db.sql("CREATE TABLE orders (id BIGINT PRIMARY KEY, amount BIGINT, name STRING, price DOUBLE)")
                db.insert("orders", pq.read_table(table))
                began = time.perf_counter()
                db.apply_changes("orders", read(), format="debezium")
                seconds = time.perf_counter() - began
                return seconds, db.sql(f"SELECT {_SUMS} FROM orders").rows()[0]

        systems: dict[str, Callable[[], tuple[float, Sequence[object]]]] = {
            SPARK: merge,
            ARROW: lambda: ours(lambda: pq.read_table(log)),
            FRAME: lambda: ours(lambda: spark.read.parquet(str(log))),
        }
        found = Cdc(rows, {name: [] for name in systems})
        for turn in range(runs + 1):
            answers = {}
            for name, system in systems.items():
                seconds, answers[name] = system()
                say(f"cdc: {name}: {seconds:.2f} s{'' if turn else ' (not counted)'}")
                if turn:
                    found.seconds[name].append(seconds)
            if len(set(answers.values())) > 1:
                raise AssertionError(f"cdc: not the same rows: {answers}")
        return found


def _parts(columns: str) -> list[str]:
    """A select list, item by item.

    >>> _parts("count(*), sum(a)")
    ['count(*)', 'sum(a)']
    """
    return columns.split(", ")
