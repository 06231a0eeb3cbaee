"""Memory while lineitem streams through Q1: it must not grow with the rows already seen.

A process of its own inserts the Parquet file chunk by chunk (so that no other
benchmark's memory is in the figure) and writes its resident set after each
chunk. The first half warms allocators and caches; the bar compares the end
with the middle.

    python -m bench.memory <lineitem.parquet> <rows per chunk>
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.tpch import DDL, Q1

CHUNK_ROWS = 60_000


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident set in MB after each chunk, and the rows that went by."""

    rows: int
    megabytes: tuple[float, ...]

    @property
    def middle(self) -> float:
        """The level half way: the median of the fifth of the chunks around the middle."""
        return self._around(0.5)

    @property
    def end(self) -> float:
        """The level at the end: the median of the last fifth."""
        return self._around(0.9)

    def _around(self, share: float) -> float:
        n = len(self.megabytes)
        low = min(max(int((share - 0.1) * n), 0), n - 1)
        return statistics.median(self.megabytes[low : max(int((share + 0.1) * n), low + 1)])

    @property
    def growth(self) -> float:
        """End over middle.

        >>> Memory(10, tuple([100.0] * 10)).growth, Memory(10, tuple(map(float, range(1, 11)))).growth > 1.5
        (1.0, True)
        """
        return self.end / self.middle


def resident_megabytes() -> float:
    """This process's resident set, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def chunks(file: Path, rows: int) -> Iterator[pa.Table]:
    """The file in chunks, read one at a time, with the stream's own types."""
    # Pre-buffering keeps what it has read until the file is done: that would be the reader's growth, not ours.
    for batch in pq.ParquetFile(file, pre_buffer=False).iter_batches(batch_size=rows):
        table = pa.Table.from_batches([batch])
        plain = [f.with_type(pa.string()) if pa.types.is_string_view(f.type) else f for f in table.schema]
        yield table.cast(pa.schema(plain))


def stream_through_q1(file: Path, rows: int) -> None:
    """Insert every chunk and print the memory after it, a JSON number a line; the counts are checked."""
    import headrace

    seen = 0
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory, headrace.connect(f"{directory}/db") as db:
        db.sql(f"CREATE STREAM lineitem ({DDL})")
        db.sql(f"CREATE VIEW q1 AS {Q1}")
        db.sql("CREATE VIEW rows AS SELECT count(*) AS n FROM lineitem")
        for chunk in chunks(file, rows):
            db.insert("lineitem", chunk)
            seen += chunk.num_rows
            print(json.dumps([seen, resident_megabytes()]), flush=True)
        counted = db.sql("SELECT n FROM rows").arrow()["n"][0].as_py()
        if counted != seen:
            raise AssertionError(f"{seen} rows went in, the view counts {counted}")


def run(file: Path, rows: int = CHUNK_ROWS) -> Memory:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "bench.memory", str(file), str(rows)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent)
    samples = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return Memory(samples[-1][0], tuple(megabytes for _, megabytes in samples))


if __name__ == "__main__":
    stream_through_q1(Path(sys.argv[1]), int(sys.argv[2]))
