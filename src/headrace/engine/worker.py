"""The native engine: DuckDB over Arrow, the same code in this process and in a Spark task.

A worker is told *what* to compute by picklable descriptors (``engine/work.py``): fragments, the build sides they
probe as Parquet files, and a slice of input to read. It gives back partial state rows. It knows nothing of plans,
catalogs or commits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import duckdb
import pyarrow as pa

from headrace.base.interrupts import stoppable
from headrace.base.lacking import lacking
from headrace.base.native import native_batches, native_connection, native_query
from headrace.base.parquet_files import native_scan, write_parquet
from headrace.base.standing import Standing
from headrace.engine.failures import from_duckdb
from headrace.engine.following import counted_chunks, tell_share
from headrace.engine.native_sql import literal
from headrace.engine.plan_sql import quote_native
from headrace.engine.work import (
    BATCH,
    CHUNK_ROWS,
    FragmentRun,
    Overtaken,
    ParquetPart,
    PipelineCannot,
    Slice,
    Static,
    Work,
    chunked,
    with_missing,
)
from headrace.errors import ExecutionError, HeadraceError, StoreError
from headrace.input.arrow_file import ArrowSlice, read_arrow
from headrace.input.files import TextSlice, read_text
from headrace.input.parquet import ParquetPiece, ParquetSlice, first_bad_value, parquet_source, select_items
from headrace.plan.exprs import Literal
from headrace.rings import Ring
from headrace.rings.delivery import put
from headrace.types import Schema

RING_ROWS = 65_536
"""Rows put into a ring at once: queries should have them soon."""
_NOT_HERE = "partial_aggregate_pushdown"
"""A pipeline groups what its probes let through; grouped before them, a batch is nearly all groups (TPC-H Q3: 260 ms
against 140)."""


class Worker:
    """A DuckDB of its own, in memory; safe to use from several threads."""

    def __init__(self, threads: int, memory_limit: str | None = None) -> None:
        config: dict[str, Any] = {"threads": threads, "disabled_optimizers": _NOT_HERE}
        if memory_limit:
            config["memory_limit"] = memory_limit
        self._connection = native_connection(**config)
        self._idle: list[duckdb.DuckDBPyConnection] = []
        self._statics: dict[str, Path] = {}
        """The build sides that are loaded, and the files they are the rows of."""
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self.given_up: set[str] = set()
        """Texts that failed once: there are others for the same rows."""
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._ring: Ring | None = None
        self._standing = WeakSet[Standing]()

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor of one's own for a while (one shared by threads would mix up their rows)."""
        with self._lock:
            found = self._idle.pop() if self._idle else None
        if found is None:
            found = self._connection.cursor()
        try:
            with stoppable(found.interrupt):
                yield found
        finally:
            with self._lock:
                self._idle.append(found)

    @property
    def pool(self) -> ThreadPoolExecutor:
        """Threads to read several slices at once in this process."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, "headrace-read")
            return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        with self._lock:
            for cursor in self._idle:
                cursor.close()
            for standing in self._standing:
                standing.close()
            self._idle.clear()
            self._connection.close()

    def query(self, sql: str, **relations: pa.Table | pa.RecordBatchReader) -> pa.Table:
        """Run native SQL over Arrow relations given by name."""
        with self.cursor() as cursor:
            try:
                return native_query(cursor, sql, relations)
            except duckdb.Error as error:
                raise from_duckdb(error) from None

    def standing(self, text: str, given: Mapping[str, pa.Table]) -> Standing:
        """Native SQL over Arrow relations given by name, planned for rows that come again and again."""
        with self._lock:
            cursor = self._connection.cursor()
        found = Standing(cursor, text, given)
        with self._lock:
            self._standing.add(found)
        return found

    def keep_only(self, statics: Sequence[Static]) -> None:
        """Forget all build sides but these: a task's process outlives the databases it worked for."""
        kept = {(s.name, s.path) for s in statics}
        self.forget([name for name, path in self._statics.items() if (name, path) not in kept])

    def load(self, statics: Sequence[Static]) -> None:
        """Make build sides available to pipelines, each once; :class:`Overtaken` if other rows took a name's place."""
        for static in statics:
            if self._has(static):
                continue
            with self._loading:  # others who need it wait until it is there
                if self._has(static):
                    continue
                if not static.file.exists():
                    raise StoreError(
                        "STATE_LOST",
                        f"{static.file} is gone: the rows of a table that a view read when it was made",
                        hint="restore the directory from a backup, or drop the view and make it anew",
                    )
                self.query(f"CREATE TABLE {quote_native(static.name)} AS SELECT * FROM {native_scan([static.file])}")
                self._statics[static.name] = static.file

    def _has(self, static: Static) -> bool:
        loaded = self._statics.get(static.name)
        if loaded not in (None, static.path):
            raise Overtaken
        return loaded is not None

    def hold(self, static: Static, rows: pa.Table) -> None:
        """Make a build side available that has no file yet (see :meth:`write`), in the place of other rows it had.

        A query that runs goes on reading those.
        """
        with self._loading:
            self.query(
                f"CREATE OR REPLACE TABLE {quote_native(static.name)} AS SELECT * FROM held_rows", held_rows=rows
            )
            self._statics[static.name] = static.file

    def write(self, static: Static) -> None:
        """Have a build side's file there, for others to read; :class:`Overtaken` as for :meth:`load`."""
        with self._loading:
            if static.file.exists() or not self._has(static):
                return
            part = static.file.with_suffix(".part")
            try:
                write_parquet(self.query(f"SELECT * FROM {quote_native(static.name)}"), part)
                os.replace(part, static.file)  # whole, or not there
            finally:
                part.unlink(missing_ok=True)

    def forget(self, names: Iterable[str]) -> None:
        """Drop build sides that are no longer needed."""
        with self._loading:
            for name in names:
                if self._statics.pop(name, None) is not None:
                    self.query(f"DROP TABLE IF EXISTS {quote_native(name)}")

    def deliver(self, work: Work, rows: pa.Table) -> None:
        """Put rows into the stream's ring, if they are wanted there."""
        if work.ring is None:
            return
        try:
            if work.ring.is_elsewhere:
                from headrace.rings.flight import send

                send(work.ring, rows)
            else:
                self._ring = put(work.ring, rows, self._ring)
        except ExecutionError as error:
            if error.condition != "STREAM_CLOSED":  # the last query that read it has ended
                raise

    def reduce(
        self, work: Work, parts: Iterable[pa.Table | _File], number: int = 0, left: list[pa.Table] | None = None
    ) -> tuple[int, dict[int, pa.Table]]:
        """Run fragments over one part of the input: its row count, and the state rows it leaves, by state.

        This is the one loop, wherever it runs and whatever the rows come from. Rows that go to a ring cannot be taken
        back: if a fragment cannot do its work natively, the rest is still delivered, and only the fragments run
        again. Rows that cannot be read again either are put into ``left``, if that is given, instead.
        """
        self.load(work.statics)
        runs = [fragment.begin(self, number) for fragment in work.fragments]
        total = 0
        cannot: PipelineCannot | None = None
        for part in parts:
            if isinstance(part, _File):
                total += self._reduce_file(work, runs, part)
                continue
            total += part.num_rows
            self.deliver(work, part)
            if cannot is not None:
                continue
            try:
                whole = with_missing(part, work.missing)
                for run in runs:
                    run.add(whole)
            except PipelineCannot as failure:
                if left is not None:
                    left.append(part)
                elif work.ring is not None:
                    cannot = failure
                else:
                    raise
        if cannot is not None:
            raise cannot
        return total, {state: rows for run in runs for state, rows in run.states().items()}

    def parts(
        self, work: Work, slice_: Slice, progress: Callable[[int], None] | None = None
    ) -> Iterator[pa.Table | _File]:
        """The rows of a slice for :meth:`reduce`. Parquet is left where it lies, unless its rows are to be delivered.

        ``progress`` is told how much of the slice is done, in bytes of text or rows of anything else.
        """
        rows = CHUNK_ROWS if work.ring is None else RING_ROWS
        if isinstance(slice_, ArrowSlice):
            yield from counted_chunks(chunked(read_arrow(slice_, work.columns), rows), progress)
        elif isinstance(slice_, TextSlice):
            batches = read_text(slice_, work.options, work.schema, work.columns, zone=work.zone, progress=progress)
            yield from chunked(batches, rows)
        elif work.ring is not None:
            yield from counted_chunks(self.parquet_rows(slice_, work.schema, work.columns), progress)
        else:
            done = 0
            for piece in slice_.pieces:
                size = piece.end - piece.start
                yield _File(piece, None if progress is None else partial(tell_share, progress, done, size))
                done += size
                if progress is not None:
                    progress(done)

    def parquet_rows(self, piece_of: ParquetSlice, schema: Schema, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        """The rows of a slice of Parquet, chunk by chunk."""
        for piece in piece_of.pieces:
            source = parquet_source(piece, schema, columns)
            try:
                with self.cursor() as cursor:
                    for batch in native_batches(cursor, f"SELECT * FROM {source}", RING_ROWS):
                        yield pa.Table.from_batches([batch])
            except duckdb.Error as error:
                raise first_bad_value(piece, schema, columns) or from_duckdb(error) from None

    def _reduce_file(self, work: Work, runs: Sequence[FragmentRun], file: _File) -> int:
        """Rows of a Parquet file, read by DuckDB inside whatever queries the fragments make."""
        piece = file.piece
        filled = ((Literal(f.type, lacking(f)), quote_native(f.name)) for f in work.missing)
        missing = "".join(f", {literal(value)} AS {name}" for value, name in filled)
        source = parquet_source(piece, work.schema, work.columns)
        items = select_items(piece, work.schema, work.columns) + missing
        with self.cursor() as cursor:
            cursor.execute(f"CREATE OR REPLACE TEMP VIEW {BATCH} AS SELECT *{missing} FROM {source}")
            try:
                for run in runs:
                    run.add_parquet(ParquetPart(piece, cursor, items, file.told))
            except (HeadraceError, duckdb.Error) as error:
                # A value that does not convert looks like any failed cast: name file, row and column.
                failure = from_duckdb(error) if isinstance(error, duckdb.Error) else error
                raise first_bad_value(piece, work.schema, work.columns) or failure from None
            finally:
                cursor.execute(f"DROP VIEW IF EXISTS {BATCH}")
        return int(piece.end - piece.start)


@dataclass(frozen=True)
class _File:
    """Rows that lie in a Parquet file, and whom to tell how much of them has been read."""

    piece: ParquetPiece
    told: Callable[[float], None] | None
