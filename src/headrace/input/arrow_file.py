"""Rows a program hands over, spooled to an Arrow file so that Spark tasks can read them.

Tasks are other processes: they see files, not this one's memory. The file is
mapped, so a task's batches come from the page cache without being copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.base.private import new_file
from headrace.input.files import divide


@dataclass(frozen=True)
class ArrowSlice:
    """Record batches ``[start, end)`` of an Arrow file."""

    path: Path
    start: int
    end: int
    rows: int


def spool(path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
    """Write batches as an Arrow file."""
    with pa.OSFile(str(new_file(path)), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def slices_of(path: Path, parallelism: int) -> list[ArrowSlice]:
    """About ``parallelism`` slices of an Arrow file, of about equal rows."""
    with pa.memory_map(str(path)) as source:
        file = pa.ipc.open_file(source)
        rows = [file.get_batch(i).num_rows for i in range(file.num_record_batches)]
    slices = []
    for group in divide(rows, parallelism):
        # A batch belongs to the slice its first row falls in, so that none is cut.
        first = [index for index, start, _ in group if start == 0]
        if first:
            last = max(first) + 1
            slices.append(ArrowSlice(path, min(first), last, sum(rows[min(first) : last])))
    return slices


def read_arrow(piece_of: ArrowSlice, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """The batches of a slice, only the wanted columns."""
    with pa.memory_map(str(piece_of.path)) as source:
        file = pa.ipc.open_file(source)
        for index in range(piece_of.start, piece_of.end):
            yield file.get_batch(index).select(list(columns))
