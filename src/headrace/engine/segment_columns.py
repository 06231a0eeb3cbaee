"""Columns of segments, whole in memory: those of which rows are taken here and there.

A Parquet file is decoded a row group at a time, so a thousand rows that lie anywhere cost as much as all of them. What
looks such rows up again and again keeps the columns it takes, decoded, while there is memory for them: then a row costs
what it takes to copy it. Segments never change, so what is kept of one is right for as long as it is there.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pyarrow as pa

from headrace.base.parquet_files import open_parquet, parquet_rows

Named = tuple[int, str]
"""A segment: the number of its table, and its name."""


class SegmentColumns:
    """The columns that are held, by segment."""

    def __init__(self) -> None:
        self._held: dict[Named, dict[str, pa.Array]] = {}
        self._guard = threading.Lock()
        self.room: Callable[[], int] = lambda: sys.maxsize
        """The bytes of memory left."""
        self.loads = 0
        """How many columns were decoded."""

    @property
    def bytes(self) -> int:
        with self._guard:
            return sum(column.nbytes for held in self._held.values() for column in held.values())

    def of(self, number: int, file: Path, fields: Sequence[str]) -> pa.Table | None:
        """Some columns of a segment, if all are held."""
        with self._guard:
            held = self._held.get((number, file.name), {})
            return pa.table([held[f] for f in fields], list(fields)) if all(f in held for f in fields) else None

    def load(self, number: int, file: Path, fields: Sequence[str]) -> pa.Table | None:
        """The same, decoded if there is room; None if there is none."""
        with self._guard:
            missing = [f for f in fields if f not in self._held.get((number, file.name), {})]
        if missing:
            if _bytes_of(file, missing) > self.room():
                return None
            rows = parquet_rows(file, missing).combine_chunks()
            if any(column.num_chunks > 1 for column in rows.columns):
                return None  # more text than one array holds
            arrays = {name: rows.column(name).chunk(0) for name in missing if rows.num_rows}
            with self._guard:
                self._held.setdefault((number, file.name), {}).update(arrays)
                self.loads += len(arrays)
        return self.of(number, file, fields)

    def keep_only(self, number: int, files: Collection[str]) -> None:
        """Let go of what is held of a table's other segments."""
        with self._guard:
            for named in [n for n in self._held if n[0] == number and n[1] not in files]:
                del self._held[named]

    def clear(self, left: Collection[int] = ()) -> None:
        """Let go of everything but what is of these tables: it is decoded again where it is needed."""
        with self._guard:
            self._held = {named: held for named, held in self._held.items() if named[0] in left}


def _bytes_of(file: Path, fields: Sequence[str]) -> int:
    """About what columns of a file take in memory: as its first row group says."""
    with open_parquet(file) as read:
        first = read.read_row_group(0, columns=list(fields))
        return int(first.nbytes / max(first.num_rows, 1) * read.metadata.num_rows)
