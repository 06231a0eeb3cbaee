"""Rows of files and DataFrames on their way into a table: written where they are read, a file a slice.

A task, or a thread of this process, reads its slice, looks at each row, and writes Parquet into a folder of the
statement's own in ``scratch/``. It says only which files it has finished and how many rows they have. The process that
has the database open takes those files, and no others, for segments: what an attempt leaves behind that failed, or
whose twin was faster, goes with the folder, whoever still writes into it.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.base.interrupts import check
from headrace.base.native import conform
from headrace.base.parquet_files import ROW_GROUP, parquet_writer
from headrace.base.private import make_folder
from headrace.catalog import Table
from headrace.engine.work import Fragment, FragmentRun, ParquetPart
from headrace.errors import ExecutionError
from headrace.runtime import Runtime
from headrace.store import writing
from headrace.table import changing, constraints
from headrace.table import rows as tables
from headrace.table.rows import NewFile
from headrace.types import arrow_schema

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

    from headrace.engine.worker import Worker

FILE_BYTES = 1 << 30
"""A file ends when so much of Arrow is in it: about a third as much of Parquet."""


def ready(rows: pa.Table, table: Table) -> pa.Table:
    """Rows as the store is to hold them, or an error for a NULL: each chunk on its way into the table comes by here.

    Columns that the input does not have get their defaults.
    """
    whole = conform(constraints.with_missing(table, rows), arrow_schema(table.columns))
    constraints.check_not_null(table, whole)
    return tables.as_stored(table, whole)


@dataclass(frozen=True)
class Writing(Fragment):
    """Writes the rows of one table as files of a folder."""

    folder: Path
    table: Table
    columns: tuple[str, ...]

    def begin(self, worker: Worker, number: int) -> FragmentRun:
        return _Files(self, number)


class _Files(FragmentRun):
    """The files of one slice."""

    def __init__(self, told: Writing, number: int) -> None:
        self._told = told
        self._number = number
        self._writer: ParquetWriter | None = None
        self._path = told.folder
        self._bytes = 0
        self._finished: list[tuple[str, int]] = []
        self._rows = 0

    def add(self, batch: pa.Table) -> None:
        check()
        rows = ready(batch, self._told.table)
        if not rows.num_rows:
            return
        if self._writer is None:
            self._path = self._fresh()
            with writing(self._path):
                self._writer = parquet_writer(self._path, rows.schema)
        with writing(self._path):
            self._writer.write_table(rows, ROW_GROUP)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._bytes >= FILE_BYTES:
            self._finish()

    def add_parquet(self, part: ParquetPart) -> None:
        done = 0
        for chunk in part.chunks(rows=2 * ROW_GROUP):
            self.add(chunk)
            done += chunk.num_rows
            if part.told is not None:
                part.told(done / max(part.piece.end - part.piece.start, 1))

    def states(self) -> dict[int, pa.Table]:
        """Which files have been written, and how many rows they have."""
        self._finish()
        names, rows = zip(*self._finished, strict=True) if self._finished else ((), ())
        return {0: pa.table({"file": pa.array(names, pa.string()), "rows": pa.array(rows, pa.int64())})}

    def _finish(self) -> None:
        if self._writer is not None:
            with writing(self._path):
                self._writer.close()
            self._finished.append((self._path.name, self._rows))
            self._writer, self._rows, self._bytes = None, 0, 0

    def _fresh(self) -> Path:
        """A name that no other attempt has."""
        folder = self._told.folder
        if not folder.is_dir():
            check()
            raise ExecutionError(
                "SEGMENTS_OUT_OF_REACH",
                f"{os.uname().nodename} does not see {folder}, where rows of {self._told.table.name} are to be written",
                hint="keep the database in a folder that all of Spark's executors share, "
                "or open it with engine='native', which reads files in this process",
            )
        return folder / f"{self._number}-{uuid.uuid4().hex}.parquet"


@contextmanager
def folder_for(runtime: Runtime) -> Iterator[Path]:
    """A folder for the files of one statement; whatever is left in it goes."""
    folder = make_folder(runtime.scratch_file("-rows"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def take(runtime: Runtime, table: Table, folder: Path, finished: Sequence[pa.Table], label: str) -> int:
    """Make finished files of a folder part of the table, in one commit; how many rows they have.

    Few rows go where those of other small statements are: a segment should be worth a file.
    """
    found = [NewFile(folder / row["file"], row["rows"]) for part in finished for row in part.to_pylist()]
    total = sum(file.rows for file in found)
    if total == 0:
        return 0
    if total < tables.TAIL_ROWS:
        rows = pa.concat_tables(chunk for file in found for chunk in tables.segment_chunks(table, file.path))
        changing.insert(runtime, table, rows, label)
        return total
    segments: list[NewFile] = []
    try:
        for file in found:
            segments.append(NewFile(runtime.store.new_segment(table.number), file.rows))
            with writing(segments[-1].path):
                os.rename(file.path, segments[-1].path)
    except BaseException:
        for segment in segments:
            runtime.store.let_go(segment.path)
        raise
    changing.add_files(runtime, table, segments, label)
    return total
