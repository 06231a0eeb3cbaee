"""Memory while rows stream through a view: it follows the groups, not the rows (000 Figure 4.13).

A process of its own (so that no other benchmark's memory is in the figure) makes batches as it goes, inserts them
and writes its resident set after each. All groups are seen within the first batches; the first tenth of the run
warms allocators and caches, and the bar compares the last tenth with the second.

    python -m bench.memory <aggregates> <rows> <rows per batch>
    python -m bench.memory Q1 <lineitem.parquet> <rows per batch>

The second streams TPC-H's lineitem through Q1, whose few groups are all there after the first batch.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import Note
from bench.ours import database
from bench.tpch import LINEITEM, QUERIES, ddl

GROUPS = 10_000
BATCH = 100_000
COLUMNS = "k INT, a INT, b INT, c INT, d INT, e INT"
AGGREGATES = ("count(*)", "sum(a)", "min(b)", "max(c)", "avg(d)", "sum(e)")
WIDTHS = (1, 2, 4, 6)


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident set in MB and groups seen, after each batch; and the rows that went by."""

    view: str
    rows: tuple[int, ...]
    megabytes: tuple[float, ...]
    groups: tuple[int, ...]

    def _level(self, tenth: int) -> float:
        n = len(self.megabytes)
        low = n * tenth // 10
        return statistics.median(self.megabytes[low : max(n * (tenth + 1) // 10, low + 1)])

    @property
    def early(self) -> float:
        """The level of the second tenth."""
        return self._level(1)

    @property
    def end(self) -> float:
        """The level of the last tenth."""
        return self._level(9)

    @property
    def growth(self) -> float:
        """End over early.

        >>> flat, steep = tuple([100.0] * 20), tuple(map(float, range(20)))
        >>> [Memory('Q1', tuple(range(20)), m, tuple(range(20))).growth for m in (flat, steep)]
        [1.0, 7.4]
        """
        return self.end / self.early


def resident_megabytes() -> float:
    """This process's resident set, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def batch(rng: np.random.Generator, rows: int) -> pa.Table:
    names = [column.split()[0] for column in COLUMNS.split(", ")]
    highs = [GROUPS] + [10_000] * (len(names) - 1)
    columns = {n: pa.array(rng.integers(0, h, rows, dtype=np.int32)) for n, h in zip(names, highs, strict=True)}
    return pa.table(columns)


def stream(aggregates: int, rows: int, size: int) -> None:
    """Insert every batch and print rows, memory and groups after it, a JSON list a line; the count is checked."""
    rng = np.random.default_rng(5)
    wanted = ", ".join(f"{text} AS v{i}" for i, text in enumerate(AGGREGATES[:aggregates]))
    seen = np.zeros(GROUPS, bool)
    with database() as db:
        db.sql(f"CREATE STREAM s ({COLUMNS})")
        db.sql(f"CREATE VIEW v AS SELECT k, {wanted} FROM s GROUP BY k")
        for start in range(0, rows, size):
            chunk = batch(rng, min(size, rows - start))
            db.insert("s", chunk)
            seen[chunk["k"].to_numpy()] = True
            print(json.dumps([start + chunk.num_rows, resident_megabytes(), int(seen.sum())]), flush=True)
        counted = db.sql("SELECT sum(v0) AS n FROM v").arrow()["n"][0].as_py()
        if counted != rows:
            raise AssertionError(f"{rows} rows went in, the view counts {counted}")


def stream_lineitem(file: Path, size: int) -> None:
    """The same for lineitem and Q1. The reader buffers nothing ahead, which would grow with the file."""
    with database() as db:
        db.sql(f"CREATE STREAM lineitem ({ddl(LINEITEM)})")
        db.sql(f"CREATE VIEW v AS {QUERIES['Q1'].sql}")
        passed = 0
        for chunk in pq.ParquetFile(file, pre_buffer=False).iter_batches(size):
            passed += db.insert("lineitem", chunk)
            groups = db.sql("SELECT count(*) AS n FROM v").arrow()["n"][0].as_py()
            print(json.dumps([passed, resident_megabytes(), groups]), flush=True)


def run(rows: int, note: Note) -> list[Memory]:
    """One process for each number of aggregates."""
    size = min(BATCH, rows // 20)
    return [_run(f"{n} aggregate{'s' if n > 1 else ''}", [str(n), str(rows), str(size)], note) for n in WIDTHS]


def run_lineitem(file: Path, note: Note) -> Memory:
    """A process for Q1."""
    size = min(BATCH, pq.ParquetFile(file).metadata.num_rows // 20)
    return _run("Q1", ["Q1", str(file), str(size)], note)


def _run(view: str, arguments: list[str], note: Note) -> Memory:
    command = [sys.executable, "-m", "bench.memory", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent)
    samples = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    result = Memory(view, *(tuple(column) for column in zip(*samples, strict=True)))
    note(f"memory: {view}: {result.early:.0f} MB early, {result.end:.0f} MB at the end")
    return result


if __name__ == "__main__":
    if sys.argv[1] == "Q1":
        stream_lineitem(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        stream(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
