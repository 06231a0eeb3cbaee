"""INSERT and COPY: rows into streams and tables, one epoch a statement, all or nothing."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.base.interrupts import at_once, check
from headrace.base.wording import counted
from headrace.catalog import Catalog, Relation, Stream, Table
from headrace.engine.failures import from_spark
from headrace.engine.session import cancel_with_the_statement
from headrace.engine.stage import Stage, StateRows
from headrace.engine.tasks import Progress, size_of
from headrace.errors import DataError, ExecutionError, HeadraceError, Position
from headrace.input import lengths
from headrace.input.csv import CsvOptions
from headrace.input.files import Slice, TextSlice, format_of, plan_slices, read_text, resolve
from headrace.input.parquet import ParquetSlice
from headrace.input.rows import to_arrow
from headrace.keep.keeper import NOTHING_ADDED, Added, Keeper
from headrace.keep.kept import Kept
from headrace.rings import Ring
from headrace.rings.book import Overflow
from headrace.rings.delivery import Delivery
from headrace.runtime import Runtime
from headrace.sql import statements as s
from headrace.store import Transaction
from headrace.stream.frames import LENGTH_MARK, NULL_MARK, conform_frame
from headrace.stream.intake import Files, Frame, Input, Intake, Rows, StaleCatalog, of_reader
from headrace.table import changing
from headrace.table import rows as tables
from headrace.table.changing import NewFile
from headrace.types import Field, Schema, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Loaded(int):
    """How many rows a statement brought in, and how many of them came too late for which view.

    >>> loaded = Loaded(5, {"per_hour": 2})
    >>> loaded + 1, loaded.late, loaded.note
    (6, {'per_hour': 2}, '; 2 rows late for per_hour')
    """

    late: Mapping[str, int]

    def __new__(cls, rows: int, late: Mapping[str, int] | None = None) -> Loaded:
        made = super().__new__(cls, rows)
        made.late = late or {}
        return made

    @property
    def note(self) -> str:
        return "".join(f"; {counted(n, 'row')} late for {view}" for view, n in self.late.items())


_STALE_ATTEMPTS = 3
"""How often an insert that a change of definitions has overtaken may be overtaken again, because the next one took too
long to be waited for."""
_SHORT_WAIT = 0.25
"""Seconds that are not too long."""


@dataclass(frozen=True)
class SentBatch:
    """Where rows come from: a source that may send a batch again, and the batch's number there."""

    source: str
    sequence: int


@dataclass(frozen=True)
class _Arrival:
    """What came by a stream in one statement: its rows, and the state rows they leave."""

    stream: Stream
    rows: int
    fed: Sequence[Kept]
    states: StateRows
    batch: SentBatch | None


def target_of(catalog: Catalog, name: str, position: Position | None = None) -> Stream | Table:
    """The relation rows are to go into; an error if it takes none."""
    relation: Relation = catalog.get(name, position=position)
    relation.refuse_rows(position)
    assert isinstance(relation, Stream | Table)
    return relation


def _stages(fed: Iterable[Kept], stream: Stream) -> list[Stage]:
    return [stage for kept in fed for stage in kept.stages(stream)]


class Loader:
    """Brings rows in."""

    def __init__(self, runtime: Runtime, keeper: Keeper) -> None:
        self._runtime = runtime
        self._keeper = keeper
        self._intake = Intake(runtime, keeper.ran)

    # INSERT

    def insert(self, target: Stream | Table, data: Any, batch: SentBatch | None = None) -> Loaded:
        """Insert whatever ``data`` is; returns the row count.

        A DataFrame may be the ``batch`` of a source: one that is committed already inserts nothing.
        """
        if _is_frame(data):
            return self._insert_frame(target, data, batch)
        with at_once():
            rows = to_arrow(data, target.columns, zone=self._runtime.settings.time_zone)
        if isinstance(target, Table):
            table = rows if isinstance(rows, pa.Table) else rows.read_all()
            if table.num_rows:
                changing.insert(self._runtime, target, table)
            return Loaded(table.num_rows)
        if isinstance(rows, pa.Table):
            return self._into_stream(target, Rows(rows), f"INSERT INTO {target.name}")
        given, release = of_reader(self._runtime, rows)
        try:
            return self._into_stream(target, given, f"INSERT INTO {target.name}")
        finally:
            with self._runtime.tidying.after("removing a spooled file"):
                release()

    def take(self, stream: Stream, files: Sequence[Path], batch: SentBatch) -> Loaded:
        """Insert a source's batch from Parquet files in the stream's columns; nothing if it is committed already."""
        if self._committed(batch):
            return Loaded(0)
        given = Files(tuple(files), "parquet", None, stream.columns, sum(f.stat().st_size for f in files))
        return self._into_stream(stream, given, f"{batch.source} into {stream.name}", batch=batch)

    def take_rows(self, stream: Stream, rows: pa.Table) -> Loaded:
        """Insert rows that queries of the stream have already."""
        return self._into_stream(stream, Rows(rows), f"INSERT INTO {stream.name}", deliver=False)

    def _committed(self, batch: SentBatch | None) -> bool:
        if batch is None:
            return False
        with self._runtime.store.read() as snapshot:
            return snapshot.recorded(batch.source, batch.sequence)

    def _insert_frame(self, target: Stream | Table, frame: DataFrame, batch: SentBatch | None = None) -> Loaded:
        """A Spark DataFrame: native pipelines run inside its own tasks; the rest reads a spooled copy."""
        self._runtime.refuse_spark("a DataFrame's rows")
        if self._committed(batch):
            return Loaded(0)
        ready = conform_frame(frame, target)
        cancel_with_the_statement(frame.sparkSession)
        with _spark_failures():
            if isinstance(target, Table):
                return self.insert(target, ready.toArrow())
            fed = self._keeper.fed(target, self._runtime.catalog)
            if all(stage.reason is None for stage in _stages(fed, target)) and self._runtime.settings.engine != "spark":
                return self._into_stream(target, Frame(ready), f"INSERT INTO {target.name}", batch=batch)
            with self._intake.spooled(Frame(ready)) as spooled:
                return self._into_stream(target, spooled, f"INSERT INTO {target.name}", batch=batch)

    # COPY

    def copy(self, target: Stream | Table, statement: s.Copy, progress: Progress | None = None) -> Loaded:
        """Load files; returns the row count."""
        given = dict(statement.options)
        paths = resolve(statement.path, given.get("format"))
        format = format_of(paths, given.pop("format", None))
        schema = _file_schema(target, statement)
        options: CsvOptions | None = None
        if format in ("parquet", "json"):
            if given:
                shown = "Parquet" if format == "parquet" else "JSON"
                raise DataError(
                    "COPY_OPTION_UNKNOWN", f"COPY of {shown} has no option {next(iter(given))}", hint="leave it out"
                )
        else:
            options = CsvOptions.of(given, delimiter="\t" if format == "tsv" else ",")
            if options.header:
                options = replace(options, skipped=tuple(f.name for f in target.columns if f not in schema))
        files = Files(tuple(paths), format, options, schema, sum(p.stat().st_size for p in paths))
        if isinstance(target, Table):
            return Loaded(self._copy_table(target, files, progress))
        return self._into_stream(target, files, f"COPY {target.name}", progress)

    def _copy_table(self, table: Table, files: Files, progress: Progress | None) -> int:
        names = tuple(f.name for f in files.schema)
        slices = plan_slices(files.paths, files.format, files.options, files.schema, names, 1)
        file = self._runtime.store.new_segment(table.number)
        wanted = arrow_schema(table.columns)
        total = 0
        try:
            with tables.segment_writer(file, wanted) as write:
                for rows in self._table_rows(slices, files, names, progress):
                    check()
                    whole = _with_missing(rows, table)
                    tables.check_not_null(table, whole)
                    write(whole)
                    total += whole.num_rows
            if total:
                changing.add_files(self._runtime, table, [NewFile(file, total)])
            else:
                self._runtime.store.let_go(file)
        except BaseException:
            self._runtime.store.let_go(file)
            raise
        return total

    def _table_rows(
        self, slices: Sequence[Slice], files: Files, names: tuple[str, ...], progress: Progress | None
    ) -> Iterator[pa.Table]:
        everything = sum(size_of(part) for part in slices)
        done = 0

        def report(so_far: int) -> None:
            if progress is not None:
                progress(done + so_far, everything)

        zone = self._runtime.settings.time_zone
        for part in slices:
            if isinstance(part, TextSlice):
                for batch in read_text(part, files.options, files.schema, names, zone=zone, progress=report):
                    yield pa.Table.from_batches([batch])
            elif isinstance(part, ParquetSlice):
                rows = 0
                for chunk in self._runtime.worker.parquet_rows(part, files.schema, names):
                    yield chunk
                    rows += chunk.num_rows
                    report(rows)
            done += size_of(part)

    # Streams

    def _into_stream(
        self,
        stream: Stream,
        given: Input,
        label: str,
        progress: Progress | None = None,
        batch: SentBatch | None = None,
        *,
        deliver: bool = True,
    ) -> Loaded:
        delivery = Delivery(partial(self._wants, stream, given) if deliver else lambda: None)
        try:
            arrived = self._arrive(stream, given, label, progress, batch, delivery)
        except BaseException:
            delivery.take_back()
            raise
        if arrived is None:
            delivery.take_back()  # another has committed the same batch
            return Loaded(0)
        rows, states, added = arrived

        def deliver_rows() -> None:
            delivery.settle()
            if isinstance(given, Rows) and deliver:
                ring = self._runtime.rings.wanted(stream)
                if ring is not None and ring.terms.overflow is not Overflow.ERROR:
                    _write_committed(ring, given.table)

        self._runtime.tidying.then(f"delivering rows to queries of {stream.name}", deliver_rows)
        self._runtime.tidying.then(f"merging states over {stream.name}", partial(self._keeper.after, states, added))
        return Loaded(rows, added.late)

    def _arrive(
        self,
        stream: Stream,
        given: Input,
        label: str,
        progress: Progress | None,
        batch: SentBatch | None,
        delivery: Delivery,
    ) -> tuple[int, StateRows, Added] | None:
        """Run the input and commit its state rows, under definitions that stand still meanwhile.

        Returns how many rows there were, their state rows, and what was added; ``None`` if the batch they come from is
        committed already.
        """
        took = 0.0
        for attempt in itertools.count():
            with self._turn(attempt, took):
                began = time.monotonic()
                catalog = self._runtime.catalog
                catalog.require_there(stream)
                try:
                    fed = self._keeper.fed(stream, catalog)
                    begun = delivery.begin()
                    if begun and isinstance(given, Rows):
                        with _unless_closed():
                            delivery.put(given.table)
                    way = delivery if begun and not isinstance(given, Rows) else None
                    rows, states = self._intake.state_rows(stream, _stages(fed, stream), given, progress, way)
                    if rows == 0:
                        return 0, {}, NOTHING_ADDED
                    added = self._commit(catalog.version, _Arrival(stream, rows, fed, states, batch), label)
                    return None if added is None else (rows, states, added)
                except StaleCatalog:
                    self._await_catalog(catalog.version)  # the same rows are run again; queries have them already
                except HeadraceError:
                    # A view dropped meanwhile takes its build sides along; what it could not do is no error.
                    if self._runtime.writer_version == catalog.version:
                        raise
                    delivery.take_back()
                    self._await_catalog(catalog.version)
                took = time.monotonic() - began
        raise AssertionError("never ends without an answer")

    @contextmanager
    def _turn(self, attempt: int, took: float) -> Iterator[None]:
        """Definitions stand still in the block, if one has overtaken the insert and the next does not take long.

        The insert takes its turn with those who make them, so it waits for one of each such thread at most. It does not
        wait for one that takes longer than its own run did, which may start Spark or read a large table: most likely
        the insert is in before it, and if not, to be run again costs what the wait has cost.
        """
        lock = self._runtime.tables_lock
        patience = max(_SHORT_WAIT, took) if attempt <= _STALE_ATTEMPTS else None
        taken = attempt > 0 and lock.acquire(patience)
        try:
            yield
        finally:
            if taken:
                lock.release()

    def _wants(self, stream: Stream, given: Input) -> Ring | None:
        """The ring that rows of this input go to before they are committed, if somebody wants them.

        Rows of a program go there when they are committed, in one piece. Files may be longer than the ring: their
        rows go there while they are read. If the statement fails after all, the queries that saw its rows fail too.
        So do rows of a program where a full ring is an error, for then nothing may be committed.
        """
        ring = self._runtime.rings.wanted(stream)
        if ring is not None and isinstance(given, Rows) and ring.terms.overflow is not Overflow.ERROR:
            return None
        if ring is not None:
            hint = "insert before the batch or after it, or when the queries have ended"
            self._runtime.store.refuse_in_batch(f"rows that queries of {stream.name} see before they are in", hint)
        return ring

    def _commit(self, version: int, given: _Arrival, label: str) -> Added | None:
        """Commit an insert's state rows as one epoch; ``None`` if the batch they come from is committed already."""

        def work(tx: Transaction) -> Added | None:
            if self._runtime.writer_version != version:
                raise StaleCatalog
            if given.batch is not None and not tx.record(given.batch.source, given.batch.sequence):
                tx.unchanged()
                return None
            tx.count(given.stream.number, given.rows)
            return self._keeper.add(tx, given.fed, given.states)

        return self._runtime.store.commit(work, label=label)

    def _await_catalog(self, version: int) -> None:
        """Wait for the DDL that made our state rows void to become visible here too, or to fail."""
        deadline = time.monotonic() + 60
        while self._runtime.catalog.version == version != self._runtime.writer_version:
            if time.monotonic() > deadline:
                raise ExecutionError("CATALOG_BUSY", "a definition is being changed for too long", hint="try again")
            time.sleep(0.001)


@contextmanager
def _unless_closed() -> Iterator[None]:
    try:
        yield
    except ExecutionError as error:
        if error.condition != "STREAM_CLOSED":  # the last query that read it has ended
            raise


def _write_committed(ring: Ring, rows: pa.Table) -> None:
    """Put rows there that views have already: if that fails, queries fail rather than miss them."""
    since = ring.end
    try:
        with _unless_closed():
            ring.write(rows)
    except BaseException as error:
        ring.book.roll_back(since, max(ring.end, since + 1))
        if not isinstance(error, ExecutionError):
            raise


def _is_frame(data: Any) -> bool:
    return type(data).__module__.startswith("pyspark.") and hasattr(data, "mapInArrow")


@contextmanager
def _spark_failures() -> Iterator[None]:
    """What Spark raises while it reads a DataFrame's rows, as Headrace's errors."""
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, HeadraceError) as error:
        failure = error if isinstance(error, HeadraceError) else from_spark(error)
        for mark, hint in ((NULL_MARK, "give a value"), (LENGTH_MARK, lengths.HINT)):
            _, found, message = failure.message.partition(mark)
            if found:
                raise DataError(mark.rstrip(":"), message.strip(), hint=hint) from None
        raise failure from None


def _file_schema(target: Stream | Table, statement: s.Copy) -> Schema:
    """The columns a file holds: all of the target's, or those COPY lists, in that order."""
    if not statement.columns:
        return target.columns
    by_name = {f.name.lower(): f for f in target.columns}
    found: list[Field] = []
    for name in statement.columns:
        column = by_name.get(name.lower())
        if column is None:
            raise DataError(
                "UNRESOLVED_COLUMN",
                f"{target.name} has no column {name}",
                position=statement.position,
                hint=f"it has {', '.join(f.name for f in target.columns)}",
            )
        if column in found:
            raise DataError(
                "REPEATED_COLUMN",
                f"COPY lists {column.name} twice",
                position=statement.position,
                hint="each column of the file goes into a column of its own",
            )
        found.append(column)
    for column in target.columns:
        if not column.nullable and column not in found:
            raise DataError(
                "NULL_IN_NOT_NULL",
                f"COPY does not list {column.name}, which is declared NOT NULL and would be NULL",
                position=statement.position,
                hint=f"list it, with a field for it in the files: ({', '.join(f.name for f in target.columns)})",
            )
    return tuple(found)


def _with_missing(rows: pa.Table, table: Table) -> pa.Table:
    """The rows in the table's columns; those a file does not hold are NULL."""
    arrays = [
        rows.column(c.name) if c.name in rows.column_names else pa.nulls(rows.num_rows, c.type.arrow)
        for c in table.columns
    ]
    return pa.table(arrays, schema=arrow_schema(table.columns))
