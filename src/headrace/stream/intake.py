"""Intake: rows of a stream in, state rows of all that is kept of it out, one epoch a statement.

The work is done outside the commit: pipelines run over the input wherever
``engine/places.py`` says, and only their state rows are handed to the writer. If
a view was made or dropped meanwhile, the state rows are void and the input is
run again, so a view sees exactly the inserts that come after it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.base.interrupts import carried, check
from headrace.base.lacking import settled
from headrace.base.parquet_files import spark_frame
from headrace.catalog import Stream
from headrace.engine import tasks
from headrace.engine.places import Choice, Place, choose
from headrace.engine.session import driver_host
from headrace.engine.spark import frame_of_rows, frame_of_text
from headrace.engine.stage import SparkSite, Stage, StateRows
from headrace.engine.work import Fragment, PipelineCannot, Slice, Static, Work
from headrace.input.arrow_file import slices_of, spool
from headrace.input.csv import CsvOptions, QuotedNewline
from headrace.input.files import TextSlice, plan_slices
from headrace.rings.delivery import Address, Delivery
from headrace.rings.layout import Layout
from headrace.runtime import Runtime
from headrace.settings import cores
from headrace.stream.frames import checked_text, in_columns
from headrace.types import Schema, arrow_schema, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

THREAD_BYTES = 8 << 20
"""Files larger than this are read by a thread a core, when they are read in this process."""


class StaleCatalog(Exception):
    """A definition changed between computing state rows and committing them."""


@dataclass(frozen=True)
class Rows:
    """Arrow rows in this process; text may be views into a ring's buffers."""

    table: pa.Table
    bytes: int = -1
    """How large they are; -1 for as large as Arrow says."""


@dataclass(frozen=True)
class Files:
    """Files to be read in slices; ``Spooled`` rows are files too."""

    paths: tuple[Path, ...]
    format: str
    options: CsvOptions | None
    schema: Schema
    """The stream's columns as the files hold them, in order."""
    bytes: int


@dataclass(frozen=True)
class Spooled:
    """An Arrow file of rows a program handed over."""

    path: Path
    bytes: int


@dataclass(frozen=True, eq=False)
class Frame:
    """A Spark DataFrame with the stream's columns and types."""

    frame: DataFrame


Input = Rows | Files | Spooled | Frame
NO_SIDES: Mapping[str, Path] = MappingProxyType({})


class Intake:
    """Turns input into state rows."""

    def __init__(self, runtime: Runtime, ran: dict[int, Choice] | None = None) -> None:
        self._runtime = runtime
        self._ran = {} if ran is None else ran
        """Where the last insert's stages ran, by state, and why there."""
        self._made: dict[tuple[str, Callable[..., Fragment]], tuple[tuple[Stage, ...], Fragment]] = {}

    def state_rows(
        self,
        stream: Stream,
        stages: Sequence[Stage],
        given: Input,
        progress: tasks.Progress | None = None,
        delivery: Delivery | None = None,
        sides: Mapping[str, Path] = NO_SIDES,
    ) -> tuple[int, StateRows]:
        """How many rows came, and the state rows they leave for each stage.

        With a ``delivery`` that was begun, rows of files and DataFrames go to its ring as they are read. ``sides`` are
        the files of build sides that follow what they are made of (``keep/sides.py``); if others come into their place
        meanwhile, this may raise :class:`~headrace.engine.work.Overtaken`.
        """
        forced: set[int] = set()
        with ExitStack() as scratch:
            while True:
                try:
                    return self._state_rows(stream, stages, given, forced, progress, delivery, sides)
                except PipelineCannot as cannot:
                    # Some value of this input is Spark's business: that stage runs by Spark SQL this time.
                    if isinstance(given, Frame) and not forced:
                        given = scratch.enter_context(self.spooled(given))
                    forced.add(cannot.state)
                    delivery = None  # all rows are there

    @contextmanager
    def spooled(self, given: Frame) -> Iterator[Frame]:
        """A DataFrame's rows in our own session: its own may have other settings, and does not see our views."""
        folder = self._runtime.scratch_file("-frame")
        try:
            checked_text(given.frame).write.parquet(str(folder))
            yield Frame(spark_frame(self._runtime.spark, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _state_rows(
        self,
        stream: Stream,
        stages: Sequence[Stage],
        given: Input,
        forced: set[int],
        progress: tasks.Progress | None,
        delivery: Delivery | None,
        sides: Mapping[str, Path],
    ) -> tuple[int, StateRows]:
        settings = self._runtime.settings
        choices: dict[int, Choice] = {}
        size = _bytes(given)
        for stage in stages:
            reason = stage.reason or ("its values need Spark" if stage.state in forced else None)
            engine = "auto" if stage.state in forced else settings.engine
            choices[stage.state] = choose(reason, size, task_bytes=self._runtime.task_bytes, engine=engine)
            if isinstance(given, Frame) and choices[stage.state].place is Place.TASKS and settings.engine == "auto":
                choices[stage.state] = Choice(Place.TASKS, "the rows are in Spark already")
        places = {state: choice.place for state, choice in choices.items()}
        by_spark = [s for s in stages if places[s.state] is Place.SPARK]
        fragments = self.fragments(stream, [s for s in stages if places[s.state] is not Place.SPARK])
        held = given.schema if isinstance(given, Files) else stream.columns
        options = given.options if isinstance(given, Files) else None
        large = size >= self._runtime.task_bytes and settings.engine in ("auto", "tasks")
        in_tasks = Place.TASKS in places.values() or (large and not fragments)
        ring = self._address(delivery, in_tasks or isinstance(given, Frame)) if delivery is not None else None
        work = replace(self.work_of(stream, fragments, held, options, ring), sides=dict(sides))
        total, states = 0, dict[int, list[pa.Table]]()
        if fragments or not by_spark or ring is not None:
            again = delivery.spoil if delivery is not None else lambda: None
            total, states = self.native(work, given, in_tasks, progress, again)
        if by_spark:
            frame, count = self._frame(stream, given)
            site = SparkSite(self._runtime.spark, settings.time_zone, lambda static: self._written(static.among(sides)))
            for stage in by_spark:
                states |= stage.by_spark(site, frame)
            total = total or (count if count is not None else frame.count())
        self._ran.update(choices)
        return total, {state: [t for t in rows if t.num_rows] for state, rows in states.items()}

    def _written(self, static: Static) -> Path:
        """A build side's file, there for others to read."""
        self._runtime.worker.write(static)
        return static.file

    def fragments(self, stream: Stream, native: Sequence[Stage]) -> tuple[Fragment, ...]:
        """Native stages over a stream as fragments; those that can do what they have in common once, are one."""
        together: dict[Callable[..., Fragment], list[Stage]] = {}
        for stage in native:
            if stage.together is not None:
                together.setdefault(stage.together, []).append(stage)
        alone = (stage.fragment() for stage in native if stage.together is None)
        return (*(self._together(stream, make, tuple(stages)) for make, stages in together.items()), *alone)

    def _together(self, stream: Stream, make: Callable[..., Fragment], stages: tuple[Stage, ...]) -> Fragment:
        """Worked out once for each set of them."""
        known = self._made.get((stream.name, make))
        if known is None or known[0] != stages:
            known = self._made[stream.name, make] = (stages, make(stream, stages, self._runtime.settings.time_zone))
        return known[1]

    def work_of(
        self,
        stream: Stream,
        fragments: tuple[Fragment, ...],
        held: Schema,
        options: CsvOptions | None = None,
        ring: Address | None = None,
    ) -> Work:
        """What a worker is told to turn input that holds these columns into the fragments' state rows."""
        read = {c for f in fragments for c in f.columns}
        buffered = {f.name for f in Layout.of(stream.columns, 1).columns} if ring is not None else set()
        return Work(
            fragments,
            held,
            needed_columns(read | buffered, held),
            options,
            self._runtime.settings.time_zone,
            tuple(settled(f) for f in stream.columns if f.name in read and f not in held),
            ring,
        )

    def _address(self, delivery: Delivery, in_tasks: bool) -> Address:
        """Where rows are to be delivered; tasks may be on other hosts."""
        if not in_tasks:
            return delivery.address()
        server = self._runtime.rings.flights.on(driver_host(self._runtime.spark))
        return delivery.address(
            server.location, server.secret, server.certificate, remote=self._runtime.settings.remote_rings
        )

    # Native, here or in tasks

    def native(
        self,
        work: Work,
        given: Input,
        in_tasks: bool,
        progress: tasks.Progress | None,
        again: Callable[[], None] = lambda: None,
    ) -> tuple[int, StateRows]:
        """Run fragments over the input: its row count, and what they leave."""
        runtime = self._runtime
        exact = work.ring is not None  # rows in a ring cannot be read again from other slices
        if in_tasks or isinstance(given, Frame):
            for static in work.statics:
                if static.name in work.sides:
                    self._written(static)
        if isinstance(given, Frame):
            return tasks.run_frame(given.frame.select(*map(quote, work.columns)), work, again)
        if isinstance(given, Rows):
            if not in_tasks:
                rows, found = runtime.worker.reduce(work, [given.table.select(list(work.columns))])
                return rows, {state: [table] for state, table in found.items()}
            path = runtime.scratch_file(".arrow")
            try:
                table = without_views(given.table)
                spool(path, table.to_batches(max_chunksize=65_536), table.schema)
                return self.native(work, Spooled(path, table.nbytes), in_tasks, progress, again)
            finally:
                path.unlink(missing_ok=True)
        try:
            slices = self._slices(work, given, in_tasks, quoted_newlines=exact)
            return self._sliced(work, slices, in_tasks, progress, again)
        except QuotedNewline:
            whole = self._slices(work, given, in_tasks, quoted_newlines=True)
            return self._sliced(work, whole, in_tasks, progress, again)

    def _slices(
        self, work: Work, given: Files | Spooled, in_tasks: bool, *, quoted_newlines: bool = False
    ) -> Sequence[Slice]:
        parquet = isinstance(given, Files) and given.format == "parquet" and work.ring is None
        whole = parquet and all(f.has_threads for f in work.fragments)
        here = 1 if whole or given.bytes <= THREAD_BYTES else cores()
        parallelism = self._runtime.session.parallelism() if in_tasks else here
        if isinstance(given, Spooled):
            return slices_of(given.path, parallelism)
        return plan_slices(
            given.paths, given.format, given.options, given.schema, work.columns, parallelism,
            quoted_newlines=quoted_newlines,
        )  # fmt: skip

    def _sliced(
        self,
        work: Work,
        slices: Sequence[Slice],
        in_tasks: bool,
        progress: tasks.Progress | None,
        again: Callable[[], None],
    ) -> tuple[int, StateRows]:
        runtime = self._runtime
        if in_tasks and slices:
            scratch = runtime.store.scratch
            return tasks.run_slices(runtime.spark, work, slices, scratch=scratch, progress=progress, again=again)
        everything = sum(tasks.size_of(s) for s in slices)
        done = [0] * len(slices)

        def reduce(index: int) -> tuple[int, dict[int, pa.Table]]:
            def report(so_far: int) -> None:
                done[index] = so_far
                if progress is not None:
                    progress(sum(done), everything)

            return runtime.worker.reduce(work, runtime.worker.parts(work, slices[index], report), index)

        total, states = 0, dict[int, list[pa.Table]]()
        if len(slices) == 1:
            results = iter([reduce(0)])
        else:
            # If one slice fails, whoever takes back what the others have left, in a ring or in files, finds all of it.
            futures = [runtime.worker.pool.submit(carried(reduce), i) for i in range(len(slices))]
            wait(futures)
            results = (future.result() for future in futures)
        for rows, found in results:
            total += rows
            for state, table in found.items():
                states.setdefault(state, []).append(table)
        if progress is not None:
            progress(everything, everything)
        return total, states

    # Spark SQL

    def _frame(self, stream: Stream, given: Input) -> tuple[DataFrame, int | None]:
        """The input as a DataFrame with the stream's columns, and its row count where that is known."""
        spark = self._runtime.spark
        zone = self._runtime.settings.time_zone
        if isinstance(given, Frame):
            return given.frame, None
        if isinstance(given, Rows):
            read = tuple(f for f in stream.columns if f.name in given.table.column_names)
            return frame_of_rows(spark, without_views(given.table), read), given.table.num_rows
        if isinstance(given, Spooled):
            with pa.memory_map(str(given.path)) as source:
                table = pa.ipc.open_file(source).read_all()
            return frame_of_rows(spark, table, stream.columns), table.num_rows
        parallelism = self._runtime.session.parallelism()
        names = tuple(f.name for f in given.schema)
        if given.format == "parquet":
            plan_slices(given.paths, given.format, None, given.schema, names, 1)  # checks files and types
            frame = spark_frame(spark, *given.paths)
            return checked_text(in_columns(frame, given.schema, stream)), None
        # Spark's stages may read a slice again and cannot ask for other slices: cut at true record ends.
        slices = plan_slices(
            given.paths, given.format, given.options, given.schema, names, parallelism, quoted_newlines=True
        )
        text = [s for s in slices if isinstance(s, TextSlice)]
        if not text:
            return frame_of_rows(spark, arrow_schema(stream.columns).empty_table(), stream.columns), 0
        return in_columns(frame_of_text(spark, text, given.options, given.schema, zone), given.schema, stream), None


def needed_columns(read: set[str], held: Schema) -> tuple[str, ...]:
    """The columns to take from the input; at least one, so that there are rows to count."""
    names = tuple(f.name for f in held if f.name in read)
    text = [f.name for f in held if f.type.name == "string"]
    return names or ((text or [held[0].name])[0],)


def _bytes(given: Input) -> int:
    if isinstance(given, Rows):
        return given.bytes if given.bytes >= 0 else int(given.table.nbytes)
    if isinstance(given, Files | Spooled):
        return given.bytes
    return 1 << 62  # a DataFrame's rows live in Spark: its tasks are the place for them


def without_views(table: pa.Table) -> pa.Table:
    """The same rows with text of their own."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return table.cast(pa.schema([(f.name, plain.get(f.type, f.type)) for f in table.schema]))


def of_reader(runtime: Runtime, reader: pa.RecordBatchReader) -> tuple[Rows | Spooled, Callable[[], None]]:
    """A reader's rows: in memory while they are few, else spooled to a file; and how to let go of them."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in reader:
        check()
        held.append(batch)
        size += batch.nbytes
        if size >= runtime.settings.task_bytes and runtime.settings.engine != "native":
            break
    else:
        return Rows(pa.Table.from_batches(held, reader.schema)), lambda: None
    path = runtime.scratch_file(".arrow")

    def rest() -> Iterator[pa.RecordBatch]:
        nonlocal size
        while held:
            yield held.pop(0)
        for batch in reader:
            check()
            size += batch.nbytes
            yield batch

    try:
        spool(path, rest(), reader.schema)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Spooled(path, size), lambda: path.unlink(missing_ok=True)
