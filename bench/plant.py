"""Latency on the plant view (000 ch. 4): durable inserts of 1,000 rows, and reads after each.

The plant of the demo, enlarged to 10,000 groups (100 parts at 100 stations) in
both streams. Rows are uniform over the groups, so every insert touches about a
tenth of them and the answer holds about half: neither side can be lazy.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import headrace
from bench.measure import Timing, percentile
from headrace.demo import EVENT_COLUMNS, LOW_STOCK, STATION_COLUMNS, STREAMS

PARTS = STATIONS = 100
ROWS = 1_000


@dataclass(frozen=True, slots=True)
class PlantResult:
    inserts: Timing
    reads: Timing
    groups: int
    answer_rows: int


def _events(rng: np.random.Generator, names: pa.Array, groups: np.ndarray[Any, Any]) -> pa.Table:
    return pa.table(
        {
            "part_id": pa.array(np.arange(len(groups)), pa.int32()),
            "part": names.take(pa.array(groups // STATIONS)),
            "station": pa.array(groups % STATIONS, pa.int32()),
            "worker": pa.array(rng.integers(1, 200, len(groups)), pa.int32()),
        }
    )


def _expected_rows(counts: dict[str, np.ndarray[Any, Any]]) -> int:
    """How long the answer must be, from the counts kept beside."""
    used, restocked = (counts[stream] for stream in STREAMS)
    return int(((restocked - used < 5) & (used > 0) & (restocked > 0)).sum())


def run(inserts: int, reads: int, note: Callable[[str], None], seed: int = 1) -> PlantResult:
    """``inserts`` inserts, then ``reads`` rounds of one insert and one read; only the read of a round is timed."""
    rng = np.random.default_rng(seed)
    groups = PARTS * STATIONS
    names = pa.array([f"Part {i:03d}" for i in range(PARTS)])
    ids = np.arange(STATIONS)
    stations = pa.table(
        {
            "id": pa.array(ids, pa.int32()),
            "plant": [f"Plant {i % 7}" for i in ids],
            "location": [f"Gate {i}" for i in ids],
            "supplier": [f"+1 555 {i:04d}" for i in ids],
        }
    )
    counts = {stream: np.zeros(groups, np.int64) for stream in STREAMS}
    insert_times: list[float] = []
    read_times: list[float] = []
    directory = tempfile.mkdtemp(prefix="headrace-bench-")

    try:
        with headrace.connect(f"{directory}/db") as db:
            for stream in STREAMS:
                db.sql(f"CREATE STREAM {stream} ({EVENT_COLUMNS})")
            db.sql(f"CREATE TABLE station ({STATION_COLUMNS}, PRIMARY KEY (id))")
            db.insert("station", stations)
            db.sql(f"CREATE VIEW low_stock AS {LOW_STOCK}")

            def insert(turn: int, picked: np.ndarray[Any, Any]) -> float:
                stream = STREAMS[turn % 2]
                rows = _events(rng, names, picked)
                counts[stream] += np.bincount(picked, minlength=groups)
                start = time.perf_counter()
                db.insert(stream, rows)
                return time.perf_counter() - start

            # Every group exists in both streams before anything is timed.
            for turn in range(2):
                insert(turn, np.arange(groups))
            for turn in range(inserts):
                insert_times.append(insert(turn, rng.integers(0, groups, ROWS)))
                if (turn + 1) % 1000 == 0:
                    note(f"plant: {turn + 1:,} inserts, p50 {1e3 * percentile(insert_times[-1000:], 0.5):.1f} ms")
            rows = 0
            for turn in range(reads):
                insert(turn, rng.integers(0, groups, ROWS))
                start = time.perf_counter()
                answer = db.sql("SELECT * FROM low_stock").arrow()
                read_times.append(time.perf_counter() - start)
                rows = answer.num_rows
                if rows != _expected_rows(counts):
                    raise AssertionError(f"low_stock has {rows} rows, {_expected_rows(counts)} are right")
            note(f"plant: {reads:,} reads, p50 {1e3 * percentile(read_times, 0.5):.1f} ms")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return PlantResult(Timing(tuple(insert_times)), Timing(tuple(read_times)), groups, rows)
