"""The sink: ``df.writeStream.format("headrace")`` feeds a stream from any Spark application.

Each task writes its rows, in the stream's columns and types, as a Parquet file into the inbox. The commit
runs in a process of its own, after all tasks are done: it puts the batch there by (query id, batch id) and
waits until the owner has taken it. An error of the owner fails the batch in Spark, which then has it still
to do; nothing is lost. With no owner the batch stays in the inbox, for whoever opens the database next.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.base.parquet_files import parquet_writer
from headrace.catalog import Stream
from headrace.errors import CatalogError, DataError
from headrace.input.rows import to_arrow
from headrace.spark.published import definition, zone_of
from headrace.stream.inbox import INBOX_BYTES, JOB, Manifest, Tray, require_database
from headrace.types import arrow_schema, of_spark


@dataclass
class WrittenRows(WriterCommitMessage):
    """What a task wrote."""

    query: str
    run: str
    file: str | None
    rows: int
    bytes: int


class _Target:
    """The stream that rows go into."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.database = require_database(options.get("path"))
        name = options.get("stream")
        if not name:
            raise DataError("NO_STREAM", "no stream is named", hint='name it: .option("stream", "part_usage")')
        self.stream = _stream(self.database, name)
        self.zone = zone_of(self.database)
        try:
            self.limit = int(options.get("inboxBytes", INBOX_BYTES))
        except ValueError:
            raise DataError(
                "INVALID_OPTION", f"inboxBytes is {options['inboxBytes']!r}", hint="give a number of bytes"
            ) from None
        _require_fit(schema, self.stream)

    def write(self, batches: Iterator[pa.RecordBatch], query: str, run: str, batch: int) -> WrittenRows:
        """A task's rows as a file of the query's tray."""
        path = Tray(self.database, query).new_file(batch)
        rows = 0
        writer: pq.ParquetWriter | None = None
        try:
            for part in batches:
                if part.num_rows:
                    writer = writer or parquet_writer(path, arrow_schema(self.stream.columns), compression="lz4")
                    whole = to_arrow(part, self.stream.columns, zone=self.zone)
                    assert isinstance(whole, pa.Table)
                    writer.write_table(whole)
                    rows += whole.num_rows
            if writer is None:
                return WrittenRows(query, run, None, 0, 0)
            writer.close()
            size = Tray.keep(path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return WrittenRows(query, run, path.name, rows, size)

    def commit(self, messages: Sequence[WrittenRows], batch: int) -> None:
        """Put the batch, and wait until it is in the views, or safe in the inbox of a database nobody has open."""
        if not any(m.rows for m in messages):
            return
        files = tuple(m.file for m in messages if m.file is not None)
        tray = Tray(self.database, messages[0].query)
        size = sum(m.bytes for m in messages)
        tray.hand_over(
            batch,
            Manifest(self.stream.name, files, sum(m.rows for m in messages), size, messages[0].run),
            limit=self.limit,
        )

    def abort(self, messages: Sequence[WrittenRows]) -> None:
        for message in messages:
            if message.file is not None:
                Tray(self.database, message.query).discard([message.file])


class StreamSink(DataSourceStreamArrowWriter):
    """A streaming query's writer. Spark sends it to each task, and makes another one for each commit."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._target = _Target(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        # The query is known here only: the commit is told the batch's number and nothing else.
        task = TaskContext.get()
        assert task is not None
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise DataError("NOT_A_STREAMING_QUERY", "the sink was called outside a streaming query")
        return self._target.write(iterator, query, task.getLocalProperty("spark.jobGroup.id") or "", int(batch))

    def commit(self, messages: list[Any], batchId: int) -> None:
        self._target.commit([m for m in messages if m is not None], batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:
        self._target.abort([m for m in messages if m is not None])


class BatchSink(DataSourceArrowWriter):
    """``df.write.format("headrace").mode("append")``: a job's rows as one batch of a query of its own."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise DataError("STREAM_NOT_OVERWRITTEN", "a stream only grows", hint='write with .mode("append")')
        self._target = _Target(options, schema)
        self._job = f"{JOB}{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        return self._target.write(iterator, self._job, self._job, 0)

    def commit(self, messages: list[Any]) -> None:
        self._target.commit([m for m in messages if m is not None], 0)

    def abort(self, messages: list[Any]) -> None:
        self._target.abort([m for m in messages if m is not None])


def _stream(database: Path, name: str) -> Stream:
    found = definition(database, name).relation
    found.refuse_rows(None)
    if not isinstance(found, Stream):
        raise CatalogError(
            "WRONG_COMMAND_FOR_OBJECT_TYPE",
            f"{found.name} is a {found.kind}, not a stream",
            hint="the sink feeds streams",
        )
    return found


def _require_fit(schema: StructType, stream: Stream) -> None:
    """Every column that could not hold the DataFrame's values, by name."""
    misfits = []
    known = {f.name.lower(): f for f in stream.columns}
    for field in schema.fields:
        column = known.pop(field.name.lower(), None)
        found = of_spark(field.dataType)
        if column is None:
            misfits.append(f"{stream.name} has no column {field.name}")
        elif found != column.type:
            misfits.append(f"column {column.name} is {column.type.sql}, but the DataFrame has {found.sql}")
    misfits += [f"the DataFrame has no column {f.name}" for f in known.values()]
    if misfits:
        raise DataError("INSERT_TYPE_MISMATCH", "; ".join(misfits), hint="select and cast before writeStream")
