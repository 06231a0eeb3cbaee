"""Native fragments inside Spark tasks: Spark moves descriptors and partial states.

A job has one task a slice. Each task looks its slice up in the closure, reads
that part of the input itself, runs the native pipelines, and returns merged
state rows as Arrow bytes. Spark never sees a tuple of the stream.

A task that fails says so in its result instead of raising: the error keeps its
name and place, Spark does not run a bad file again, and nothing is logged twice.

Where rows also go to a stream's ring, a task that Spark runs again leaves that
out, and says so: nobody knows what its first attempt delivered.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.base.private import make_folder
from headrace.base.utf8 import refuse_bad_text
from headrace.engine.failures import from_spark, packed, restored
from headrace.engine.session import spark_context
from headrace.engine.work import PipelineCannot, Slice, Work, chunked
from headrace.engine.worker import Worker
from headrace.errors import HeadraceError
from headrace.input.csv import QuotedNewline
from headrace.input.files import TextSlice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""

Found = tuple[int, str, str, bytes]
"""One thing a task gives back: its slice, the kind of thing, a name, and bytes."""

_worker: Worker | None = None


@cache
def _schema() -> StructType:
    """What a task gives back. A value, not DDL text: Spark would ask the JVM to parse that for every job."""
    from pyspark.sql.types import BinaryType, LongType, StringType, StructType

    fields = (("slice", LongType()), ("kind", StringType()), ("name", StringType()), ("payload", BinaryType()))
    schema = StructType()
    for name, type_ in fields:
        schema = schema.add(name, type_)
    return schema


def task_worker() -> Worker:
    """The native engine of this Spark worker process: made once, one thread (Spark counts the cores)."""
    global _worker
    if _worker is None:
        pa.set_cpu_count(1)
        _worker = Worker(threads=1)
    return _worker


def run_slices(
    spark: SparkSession,
    work: Work,
    slices: Sequence[Slice],
    *,
    scratch: Path,
    progress: Progress | None = None,
    again: Callable[[], None] = lambda: None,
) -> tuple[int, dict[int, list[pa.Table]]]:
    """The row count of all slices, and for each state the rows every task left.

    ``again`` is called if a task was run a second time, without delivering its rows.
    """
    sizes = [size_of(s) for s in slices]
    watch = _Watch(scratch, sizes, progress)

    def task(indexes: Iterable[int]) -> Iterator[Found]:
        for index in indexes:
            report = watch.reporter(index)
            parts = partial(Worker.parts, slice_=slices[index], progress=report)
            yield from guarded(index, partial(reduced, work, parts, index))

    with watch:
        return _gather(partial(run_each, spark, len(slices), task), again)


def run_each(spark: SparkSession, count: int, task: Callable[[Iterable[int]], Iterator[Found]]) -> list[Found]:
    """Run ``task`` once for each number below ``count``, each in a Spark task of its own.

    An RDD job has about 50 ms less to set up than a query, a fifth of a short COPY. Spark Connect has no RDDs.
    """
    if context := spark_context(spark):
        return context.parallelize(range(count), count).mapPartitions(task).collect()

    def by_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from _to_arrow(task(batch.column(0).to_pylist()))

    return _collect(spark.range(0, count, 1, count).mapInArrow(by_arrow, _schema()))


def run_frame(
    frame: DataFrame, work: Work, again: Callable[[], None] = lambda: None
) -> tuple[int, dict[int, list[pa.Table]]]:
    """The same over a DataFrame: its rows live in the JVM, so they do cross."""
    names = frame.columns

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def parts(_: Worker, __: Work) -> Iterator[pa.Table]:
            for chunk in chunked(batches):
                refuse_bad_text(chunk)
                yield chunk.rename_columns(names)

        yield from _to_arrow(guarded(0, partial(reduced, work, parts, _task_number())))

    # PySpark names its columns to itself as if none had a dot in its name.
    plain = frame.toDF(*(f"c{i}" for i in range(len(names))))
    return _gather(lambda: _collect(plain.mapInArrow(task, _schema())), again)


Parts = Callable[[Worker, Work], Iterator[Any]]
"""The rows of a task, for :meth:`Worker.reduce`."""


def reduced(
    work: Work, parts: Parts, number: int, left: list[pa.Table] | None = None
) -> Iterator[tuple[str, str, bytes]]:
    """What a task does with its rows, wherever they come from. Only its first attempt delivers them."""
    worker = task_worker()
    worker.keep_only(work.statics)
    if work.ring is not None and attempt():
        yield "again", "", b""
        work = replace(work, ring=None)
    rows, states = worker.reduce(work, parts(worker, work), number, left)
    yield "rows", "", str(rows).encode()
    for state, table in states.items():
        yield "state", str(state), to_bytes(table)


def _task_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


def attempt() -> int:
    """How often Spark has run this task before."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0


def guarded(index: int, run: Callable[[], Iterator[tuple[str, str, bytes]]]) -> Iterator[Found]:
    """A task's results, or its failure as a result."""
    results: list[tuple[str, str, bytes]] = []
    try:
        results.extend(run())
        return ((index, *result) for result in results)
    except QuotedNewline:
        failure = "quoted", "", b""
    except PipelineCannot as cannot:
        failure = "cannot", str(cannot.state), cannot.reason.encode()
    except HeadraceError as error:
        failure = "error", error.condition, packed(error).encode()
    return ((index, *result) for result in (*(r for r in results if r[0] == "again"), failure))


def _to_arrow(results: Iterator[Found]) -> Iterator[pa.RecordBatch]:
    for index, kind, name, payload in results:
        yield pa.RecordBatch.from_pydict(
            {
                "slice": pa.array([index], pa.int64()),
                "kind": pa.array([kind]),
                "name": pa.array([name]),
                "payload": pa.array([payload], pa.binary()),
            }
        )


def _collect(frame: DataFrame) -> list[Found]:
    return list(zip(*(column.to_pylist() for column in frame.toArrow().columns), strict=True))


def _gather(run: Callable[[], list[Found]], again: Callable[[], None]) -> tuple[int, dict[int, list[pa.Table]]]:
    """The results of all tasks; the first failure, by slice, is raised."""
    try:
        results = sorted(run(), key=itemgetter(0))
    except Exception as error:
        raise from_spark(error) from error
    if any(kind == "again" for _, kind, _, _ in results):
        again()
    if any(kind == "quoted" for _, kind, _, _ in results):
        raise QuotedNewline
    total = 0
    states: dict[int, list[pa.Table]] = {}
    for _, kind, name, payload in results:
        if kind == "error":
            raise restored(payload.decode())
        if kind == "cannot":
            raise PipelineCannot(int(name), payload.decode())
        if kind == "rows":
            total += int(payload)
        elif kind == "state":
            states.setdefault(int(name), []).append(from_bytes(payload))
    return total, states


def size_of(piece_of: Slice) -> int:
    """How large a slice is, for progress: bytes of text, rows of anything else."""
    if isinstance(piece_of, TextSlice):
        return piece_of.bytes
    return piece_of.rows


def to_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def from_bytes(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


class _Watch:
    """Progress over files: each task writes how far it is, the caller's thread looks now and then."""

    def __init__(self, scratch: Path, sizes: Sequence[int], progress: Progress | None) -> None:
        self._folder = scratch / f"progress-{id(self):x}"
        self._sizes = sizes
        self._progress = progress
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def reporter(self, index: int) -> Callable[[int], None]:
        folder, wanted = self._folder, self._progress is not None
        told = 0.0

        def report(done: int) -> None:
            nonlocal told
            if wanted and time.monotonic() - told > 0.1:
                told = time.monotonic()
                (folder / str(index)).write_text(str(done))

        return report

    def __getstate__(self) -> dict[str, Any]:
        return {"_folder": self._folder, "_sizes": self._sizes, "_progress": None if self._progress is None else True}

    def __enter__(self) -> None:
        if self._progress is not None:
            make_folder(self._folder)
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()

    def __exit__(self, kind: object, *_: object) -> None:
        if self._thread is None:
            return
        self._done.set()
        self._thread.join()
        for file in self._folder.glob("*"):
            file.unlink()
        self._folder.rmdir()
        if kind is None and self._progress is not None:
            self._progress(sum(self._sizes), sum(self._sizes))

    def _look(self) -> None:
        while not self._done.wait(0.1):
            done = 0
            for file in self._folder.glob("*"):
                text = file.read_text()
                done += int(text) if text.isdigit() else 0
            assert self._progress is not None
            self._progress(min(done, sum(self._sizes)), sum(self._sizes))
