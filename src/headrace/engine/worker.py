"""The native engine: DuckDB over Arrow, the same code in this process and in a Spark task.

A worker is told *what* to compute by picklable descriptors: pipelines as SQL text
over a relation named ``batch_rows``, static build sides as Parquet files, and a slice
of input to read. It gives back partial state rows. It knows nothing of plans,
catalogs or commits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine import grouping
from headrace.engine.columns import Unfoldable
from headrace.engine.failures import NativeCannot, from_duckdb
from headrace.engine.following import counted_chunks, followed, tell_share
from headrace.engine.grouping import Grouped
from headrace.engine.plan_sql import quote_native
from headrace.engine.work import (
    BATCH,
    JOINED,
    MASK,
    PARTIALS,
    Pipeline,
    PipelineCannot,
    Shared,
    Slice,
    Static,
    Work,
    grouped,
)
from headrace.errors import ExecutionError, HeadraceError, StoreError
from headrace.interrupts import check, stoppable
from headrace.native import conform, native_batches, native_connection, native_query
from headrace.parquet_files import native_scan, write_parquet
from headrace.sample.feeding import Feeder, TooManyGroups
from headrace.sample.limits import too_many_groups
from headrace.sample.parquet_rows import stretch_of, take_rows
from headrace.stream.arrow_file import ArrowSlice, read_arrow
from headrace.stream.files import TextSlice, read_text
from headrace.stream.parquet import ParquetPiece, ParquetSlice, first_bad_value, parquet_source, select_items
from headrace.stream.ring import Ring
from headrace.stream.ring.delivery import put
from headrace.types import Schema

_MASKS = 64
"""So many masks in a batch that is hardly grouped mean that the masks are what keeps its rows apart."""
CHUNK_ROWS = 262_144
"""Rows handed to DuckDB at once: enough to hide the cost of a query, few enough to bound memory."""

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
        self._statics: set[str] = set()
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._wide: set[str] = set()
        self._failed: set[str] = set()
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._ring: Ring | None = None

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
            self._idle.clear()
            self._connection.close()

    def query(self, sql: str, **relations: pa.Table | pa.RecordBatchReader) -> pa.Table:
        """Run native SQL over Arrow relations given by name."""
        with self.cursor() as cursor:
            try:
                return native_query(cursor, sql, relations)
            except duckdb.Error as error:
                raise from_duckdb(error) from None

    def keep_only(self, statics: Sequence[Static]) -> None:
        """Forget all build sides but these: a task's process outlives the databases it worked for."""
        kept = {s.name for s in statics}
        self.forget([name for name in self._statics if name not in kept])

    def load(self, statics: Sequence[Static]) -> None:
        """Make build sides available to pipelines, each once."""
        for static in statics:
            if static.name in self._statics:
                continue
            with self._loading:  # others who need it wait until it is there
                if static.name in self._statics:
                    continue
                if not static.path.exists():
                    raise StoreError(
                        "STATE_LOST",
                        f"{static.path} is gone: the rows of a table that a view read when it was made",
                        hint="restore the directory from a backup, or drop the view and make it anew",
                    )
                self.query(f"CREATE TABLE {quote_native(static.name)} AS SELECT * FROM {native_scan([static.path])}")
                self._statics.add(static.name)

    def hold(self, static: Static, rows: pa.Table) -> None:
        """Make a build side available that has no file yet (see :meth:`write`)."""
        self.query(f"CREATE TABLE {quote_native(static.name)} AS SELECT * FROM held_rows", held_rows=rows)
        self._statics.add(static.name)

    def write(self, static: Static) -> None:
        """Have a build side's file there, for others to read."""
        if not static.path.exists() and static.name in self._statics:
            write_parquet(self.query(f"SELECT * FROM {quote_native(static.name)}"), static.path)

    def forget(self, names: Sequence[str]) -> None:
        """Drop build sides that are no longer needed."""
        with self._loading:
            for name in names:
                if name in self._statics:
                    self._statics.discard(name)
                    self.query(f"DROP TABLE IF EXISTS {quote_native(name)}")

    def partials(self, work: Work, batch: pa.Table) -> dict[str, pa.Table]:
        """The state rows each pipeline leaves for a batch."""
        with self.cursor() as cursor:
            return self._states(cursor, work, batch)

    def _states(
        self, cursor: duckdb.DuckDBPyConnection, work: Work, batch_rows: pa.Table | None = None
    ) -> dict[str, pa.Table]:
        """Every pipeline's state rows for a batch, or for the view of that name."""
        found: dict[str, pa.Table] = {}
        if batch_rows is not None and (rows := batch_rows.num_rows) > 0:
            found = self._grouped(cursor, [g for g in work.grouped if rows <= g.rows], batch_rows)
        shared_left = [s for s in work.shared if any(p.state not in found for p in s.parts)]
        for over, group in groupby(shared_left, key=attrgetter("over")):
            if over is None or self._join(cursor, over, batch_rows):
                for shared in group:
                    found |= self._run_shared(cursor, shared, batch_rows)
            if over is not None:
                cursor.execute(f"DROP TABLE IF EXISTS {JOINED}")
        for pipeline in work.pipelines:
            if pipeline.state not in found:
                found[pipeline.state] = self._run(cursor, pipeline, batch_rows)
        return found

    def _grouped(
        self, cursor: duckdb.DuckDBPyConnection, asked: Sequence[Grouped], batch_rows: pa.Table
    ) -> dict[str, pa.Table]:
        """The states that compiled loops can fill; what fails is left to the states' own texts."""
        found: dict[str, pa.Table] = {}
        for over, group in groupby(asked, key=attrgetter("over")):
            rows = batch_rows
            if over is not None:
                try:
                    beside = cursor.sql(over).to_arrow_table()  # in the batch's order: this connection preserves it
                except duckdb.Error:
                    check()
                    continue
                names = [*rows.column_names, *beside.column_names]
                rows = pa.Table.from_arrays([*rows.columns, *beside.columns], names)
            batch = grouping.Batch(rows)
            for one in group:
                with suppress(Unfoldable):
                    found |= batch.states(one)
        return found

    def _join(self, cursor: duckdb.DuckDBPyConnection, over: str, batch_rows: pa.Table | None) -> bool:
        """Have the joined rows of this batch at hand; False if that failed."""
        if over in self._failed:
            return False
        try:
            # A table, not Arrow: a join may give many rows for one, and a table can spill.
            cursor.execute(f"CREATE OR REPLACE TEMP TABLE {JOINED} AS {over}")
        except duckdb.Error:
            check()
            self._failed.add(over)
            return False
        return True

    def _run_shared(
        self, cursor: duckdb.DuckDBPyConnection, shared: Shared, batch_rows: pa.Table | None
    ) -> dict[str, pa.Table]:
        """The states of a shared grouping; none if it failed, for then each pipeline must say why."""
        for text in (shared.narrow, shared.sql):
            if text is None or text in self._failed:
                continue
            try:
                rows = cursor.sql(text).to_arrow_table()
            except duckdb.Error:
                check()
                self._failed.add(text)
                continue
            if batch_rows is not None and 2 * rows.num_rows > batch_rows.num_rows and _scattered(rows):
                self._failed |= {shared.sql, text}  # hardly any row has a mask in common with another
                continue
            have = {0: rows}
            for bit in {p.bit for p in shared.parts} - {0}:
                passed = pc.not_equal(pc.bit_wise_and(rows.column(MASK), bit), 0)
                have[bit] = rows.filter(passed)
            return {p.state: conform(have[p.bit].select(p.columns), p.schema) for p in shared.parts}
        return {}

    def _run(
        self, cursor: duckdb.DuckDBPyConnection, pipeline: Pipeline, batch_rows: pa.Table | None = None
    ) -> pa.Table:
        """One pipeline over a batch, or over the view of that name.

        DuckDB finds ``batch_rows`` as a variable of this frame: registering it costs more than
        many a batch's own work.
        """
        if pipeline.narrow is not None and pipeline.state not in self._wide:
            try:
                return grouped(conform(cursor.sql(pipeline.narrow).to_arrow_table(), pipeline.schema))
            except duckdb.Error:
                check()
                # Too wide for 64 bits, or a real error: the wide text tells. Do not try narrow again.
                self._wide.add(pipeline.state)
        try:
            return grouped(conform(cursor.sql(pipeline.sql).to_arrow_table(), pipeline.schema))
        except duckdb.Error as error:
            failure = from_duckdb(error)
            if isinstance(failure, NativeCannot):
                raise PipelineCannot(pipeline.state, failure.message) from None
            raise failure from None

    def merge(self, pipeline: Pipeline, rows: Sequence[pa.Table]) -> pa.Table:
        """Partial rows of several batches as one row a key."""
        if len(rows) == 1:
            return rows[0]
        return grouped(conform(self.query(pipeline.merge, **{PARTIALS: pa.concat_tables(rows)}), pipeline.schema))

    def feed(self, feeders: Sequence[Feeder], batch: pa.Table) -> None:
        """Have samples draw from a batch."""
        for feeder in feeders:
            with self.cursor() as cursor, _drawing(feeder):
                feeder.add(cursor, batch)

    def drawn(self, feeders: Sequence[Feeder]) -> dict[str, pa.Table]:
        """The state rows of what samples drew."""
        found: dict[str, pa.Table] = {}
        for feeder in feeders:
            with self.cursor() as cursor, _drawing(feeder):
                found |= feeder.states(cursor)
        return found

    def deliver(self, work: Work, rows: pa.Table) -> None:
        """Put rows into the stream's ring, if they are wanted there."""
        if work.ring is None:
            return
        try:
            if work.ring.is_elsewhere:
                from headrace.stream.ring.flight import send

                send(work.ring, rows)
            else:
                self._ring = put(work.ring, rows, self._ring)
        except ExecutionError as error:
            if error.condition != "STREAM_CLOSED":  # the last query that read it has ended
                raise

    def read(
        self,
        work: Work,
        piece_of: Slice,
        progress: Callable[[int], None] | None = None,
        feeders: Sequence[Feeder] = (),
    ) -> Iterator[tuple[int, dict[str, pa.Table]]]:
        """Read a slice and yield, chunk by chunk, its row count and every pipeline's state rows.

        ``progress`` is told how much of the slice is done, in bytes of text or rows of anything else.
        """
        if work.ring is None:
            yield from self._read(work, piece_of, progress, feeders)
            return
        # Rows in a ring cannot be taken back: if a pipeline cannot do its work natively, the rest of the slice is
        # still delivered, and only the pipelines run again.
        cannot: PipelineCannot | None = None
        for rows in self._rows(work, piece_of, progress):
            self.deliver(work, rows)
            try:
                found = {}
                if cannot is None:
                    whole = with_nulls(rows, work.missing)
                    self.feed(feeders, whole)
                    found = self.partials(work, whole)
            except PipelineCannot as failure:
                cannot, found = failure, {}
            yield rows.num_rows, found
        if cannot is not None:
            raise cannot

    def _rows(self, work: Work, piece_of: Slice, progress: Callable[[int], None] | None) -> Iterator[pa.Table]:
        """A slice's rows, chunk by chunk."""
        self.load(work.statics)
        if isinstance(piece_of, ArrowSlice):
            yield from counted_chunks(chunked(read_arrow(piece_of, work.columns), RING_ROWS), progress)
        elif isinstance(piece_of, TextSlice):
            batches = read_text(piece_of, work.options, work.schema, work.columns, zone=work.zone, progress=progress)
            yield from chunked(batches, RING_ROWS)
        else:
            yield from counted_chunks(self.parquet_rows(piece_of, work.schema, work.columns), progress)

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

    def _read(
        self,
        work: Work,
        piece_of: Slice,
        progress: Callable[[int], None] | None,
        feeders: Sequence[Feeder],
    ) -> Iterator[tuple[int, dict[str, pa.Table]]]:
        done = 0

        def advance(rows: int) -> int:
            nonlocal done
            done += rows
            if progress is not None:
                progress(done)
            return rows

        self.load(work.statics)
        if isinstance(piece_of, ArrowSlice):
            for chunk in chunked(read_arrow(piece_of, work.columns)):
                self.feed(feeders, chunk)
                yield advance(chunk.num_rows), self.partials(work, chunk)
        elif isinstance(piece_of, TextSlice):
            batches = read_text(piece_of, work.options, work.schema, work.columns, zone=work.zone, progress=progress)
            for chunk in chunked(batches):
                whole = with_nulls(chunk, work.missing)
                self.feed(feeders, whole)
                yield chunk.num_rows, self.partials(work, whole)
        else:
            for piece in piece_of.pieces:
                rows = piece.end - piece.start
                told = None if progress is None else partial(tell_share, progress, done, rows)
                found = self._read_parquet(work, piece, feeders, told)
                yield advance(rows), found

    def _read_parquet(
        self,
        work: Work,
        piece: ParquetPiece,
        feeders: Sequence[Feeder],
        told: Callable[[float], None] | None = None,
    ) -> dict[str, pa.Table]:
        """Parquet is read by DuckDB inside the pipelines' own queries: no row passes through Python.

        A sample of all rows reads those it draws; one with conditions or groups, those that pass. ``told`` hears how
        much of the piece is read, as a share of it."""
        source = parquet_source(piece, work.schema, work.columns)
        nulls = "".join(f", CAST(NULL AS {f.type.duckdb}) AS {quote_native(f.name)}" for f in work.missing)
        with self.cursor() as cursor:
            cursor.execute(f"CREATE OR REPLACE TEMP VIEW {BATCH} AS SELECT *{nulls} FROM {source}")
            try:
                for feeder in feeders:
                    self._feed_parquet(cursor, feeder, work, piece, nulls)
                with followed(cursor, len(work.shared) or len(work.pipelines), told):
                    return self._states(cursor, work)
            except HeadraceError as error:
                # A value that does not convert looks like any failed cast: name file, row and column.
                raise first_bad_value(piece, work.schema, work.columns) or error from None
            finally:
                cursor.execute(f"DROP VIEW IF EXISTS {BATCH}")

    def _feed_parquet(
        self, cursor: duckdb.DuckDBPyConnection, feeder: Feeder, work: Work, piece: ParquetPiece, nulls: str
    ) -> None:
        with _drawing(feeder):
            if feeder.skips:
                stretch = stretch_of(str(piece.path), piece.start, piece.end)
                items = select_items(piece, work.schema, work.columns) + nulls
                feeder.pass_over(
                    stretch.rows, lambda places: take_rows(cursor, [stretch], places, items).select(feeder.feed.columns)
                )
                return
            names = ", ".join(quote_native(c) for c in feeder.feed.columns)
            text = feeder.feed.where or f"SELECT {names} FROM {BATCH}"
            with self.cursor() as own:
                for chunk in chunked(native_batches(cursor, text, 65_536)):
                    feeder.add_passed(own, chunk)

    def reduce(
        self, work: Work, piece_of: Slice, progress: Callable[[int], None] | None = None, number: int = 0
    ) -> tuple[int, dict[str, pa.Table]]:
        """A whole slice: its row count, and each pipeline's state rows merged into one a key."""
        by_state = {p.state: p for p in work.pipelines}
        found: dict[str, list[pa.Table]] = {p.state: [] for p in work.pipelines}
        total = 0
        feeders = work.feeders(number)
        for rows, partials in self.read(work, piece_of, progress, feeders):
            total += rows
            for state, table in partials.items():
                found[state].append(table)
                if sum(t.num_rows for t in found[state]) > 4 * CHUNK_ROWS:
                    found[state] = [self.merge(by_state[state], found[state])]
        empty = {p.state: p.schema.empty_table() for p in work.pipelines}
        return total, {
            state: self.merge(by_state[state], tables) if tables else empty[state] for state, tables in found.items()
        } | self.drawn(feeders)


@contextmanager
def _drawing(feeder: Feeder) -> Iterator[None]:
    """What goes wrong while a sample draws, as what goes wrong in a pipeline."""
    try:
        yield
    except duckdb.Error as error:
        failure = from_duckdb(error)
        if isinstance(failure, NativeCannot):
            raise PipelineCannot(feeder.feed.rows, failure.message) from None
        raise failure from None
    except TooManyGroups as found:
        raise too_many_groups(found.feed.rows.removeprefix("sample "), found.groups, feeder.feed.most_groups) from None


def _scattered(rows: pa.Table) -> bool:
    return MASK in rows.column_names and pc.count_distinct(rows.column(MASK)).as_py() > _MASKS


def chunked(batches: Iterator[pa.RecordBatch], rows: int = CHUNK_ROWS) -> Iterator[pa.Table]:
    """Batches gathered into tables of about ``rows`` rows."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield pa.Table.from_batches(held)
            held, count = [], 0
    if held:
        yield pa.Table.from_batches(held)


def with_nulls(rows: pa.Table, missing: Schema) -> pa.Table:
    """The rows with further columns that are NULL throughout."""
    for column in missing:
        rows = rows.append_column(column.name, pa.nulls(rows.num_rows, column.type.arrow))
    return rows
