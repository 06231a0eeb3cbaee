"""The source: a relation's rows, and a relation's changes, as DataFrames of any Spark application.

``option("view", …)`` gives the rows as of the moment the query is planned, from a file the owner publishes.
``option("stream", …)`` gives the rows of a stream that come while the query runs, until it pauses: each partition is a
share of one reader of its ring (:mod:`headrace.rings`), and what was read cannot be read again.
``option("changes", …)`` gives the changes: the columns, ``_epoch`` and ``_weight``, beginning with the whole
relation. For ``spark.readStream`` an offset is an epoch, and the links between two epochs are files
that stay as they are (:mod:`headrace.spark.changes`): a batch read again is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.base.parquet_files import footer_of, open_parquet
from headrace.catalog.table import EPOCH, WEIGHT
from headrace.errors import CatalogError, DataError
from headrace.rings import Ring, Scan
from headrace.rings.flight import plain_schema
from headrace.rings.home import find_ring
from headrace.rings.layout import WORKERS
from headrace.rings.ring import retried
from headrace.rings.scan import ReaderTicket, WindowOver
from headrace.spark.changes import Chain
from headrace.spark.published import KnownRelation, ask, published_file, readable
from headrace.spark.sink import BatchSink, StreamSink
from headrace.stream.inbox import owned, require_database
from headrace.types import BIGINT, INT, Field, ddl


class HeadraceSource(DataSource):
    """The format ``headrace``.

    Options: ``path``, the database; ``stream``, to write into, or to read its rows as they come; ``view`` or
    ``table``, to read rows; ``changes``, a view or table whose changes to read.
    """

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        if "stream" in self.options:
            return ddl(_stream_ring(self.options).layout.columns)
        named = _Named(self.options)
        added = (Field(EPOCH, BIGINT), Field(WEIGHT, INT)) if named.changes else ()
        return ddl((*(Field(c.name, c.type) for c in named.definition.relation.columns), *added))

    def reader(self, schema: StructType) -> DataSourceReader:
        if "stream" in self.options:
            return _RingReader(_stream_ring(self.options), schema, self.options)
        return _Reader(_Named(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _ChangeReader(_Named(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        return BatchSink(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        return StreamSink(self.options, schema)


class _Named:
    """The relation that options name, and whether its rows or its changes are wanted."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.database = require_database(options.get("path"))
        given = {key: options[key] for key in ("view", "table", "changes") if key in options}
        if len(given) != 1:
            raise DataError(
                "NO_RELATION",
                "name one relation to read" + (f", not {' and '.join(given)}" if given else ""),
                hint='.option("view", "low_stock") for its rows, .option("changes", "low_stock") for its changes',
            )
        ((kind, name),) = given.items()
        self.changes = kind == "changes"
        self.definition: KnownRelation = readable(self.database, name)
        taken = {EPOCH, WEIGHT} & {c.name.lower() for c in self.definition.relation.columns}
        if self.changes and taken:
            raise DataError(
                "COLUMN_ALREADY_EXISTS",
                f"{name} has a column {', '.join(sorted(taken))}, which its changes would have too",
                hint="make a view that gives it another name",
            )

    @property
    def name(self) -> str:
        return self.definition.relation.name


@dataclass
class _Part(InputPartition):
    """A row group of a file, or the whole file."""

    file: str
    group: int | None = None


class _Reader(DataSourceReader):
    def __init__(self, named: _Named, schema: StructType) -> None:
        self._named = named
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        named = self._named
        if named.changes:
            end = int(ask(named.database, "changes", named.name)["epoch"])
            return [_Part(str(f)) for f in Chain(named.database, named.definition.key).between(0, end)]
        file = published_file(named.database, ask(named.database, "rows", named.name).get("file"))
        return [_Part(str(file), group) for group in range(footer_of(file).num_row_groups)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(partition, self._schema)


@dataclass
class _Share(InputPartition):
    """One task's share of a reader of a ring."""

    folder: str
    reader: int
    id: int
    worker: int


class _RingReader(DataSourceReader):
    """The rows of a stream while its window lasts; the tasks pick ranges by themselves."""

    def __init__(self, ring: Ring, schema: StructType, options: Mapping[str, str]) -> None:
        self._folder = ring.folder
        self._schema = schema
        begin, tasks = options.get("from", "newest"), options.get("tasks", "1")
        if begin.lower() not in ("newest", "oldest"):
            raise DataError(
                "STREAM_POSITION_UNKNOWN",
                f"{begin!r}: no such place to read from",
                hint='"oldest" for what is still buffered, "newest" for what comes from now on',
            )
        if not tasks.isdecimal() or not int(tasks):
            raise DataError("INVALID_TASKS", f"{tasks!r} tasks cannot read a stream", hint="give a number, 1 or more")
        self._oldest = begin.lower() == "oldest"
        self._tasks = min(int(tasks), WORKERS - 1)

    def partitions(self) -> Sequence[InputPartition]:
        ring = Ring.open(self._folder)
        # The process that plans ends before the tasks do: the reader lives as long as the ring's owner.
        ticket = Scan.start(ring, self._schema.names, oldest=self._oldest, of_owner=True).ticket
        return [_Share(str(self._folder), ticket.reader, ticket.id, w) for w in range(1, self._tasks + 1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Share)
        ring = Ring.open(Path(partition.folder))
        scan = Scan(ring, ReaderTicket(partition.reader, partition.id), self._schema.names, partition.worker)
        if scan.has_picked:
            raise retried(ring.stream)
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        try:
            while True:
                batch = scan.next(wait=1.0)
                if batch is not None:
                    yield from pa.Table.from_batches([batch.cast(plain_schema(batch.schema))]).cast(wanted).to_batches()
        except WindowOver:
            return


def _stream_ring(options: Mapping[str, str]) -> Ring:
    return Ring.open(find_ring(require_database(options.get("path")), options["stream"]))


class _ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The links of a relation's changes, as micro-batches."""

    def __init__(self, named: _Named, schema: StructType) -> None:
        if not named.changes:
            raise DataError(
                "CHANGES_ONLY",
                f"a stream of {named.name} is a stream of its changes, with {EPOCH} and {WEIGHT}",
                hint=f'write .option("changes", "{named.name}")',
            )
        self._named = named
        self._schema = schema
        self._chain = Chain(named.database, named.definition.key)
        self._last: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        return self._offset(0)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._require_same(start)
        return self._offset(self._newest() if self._last is None else max(self._last, start["epoch"]))

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._newest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._require_same(start)
        return [_Part(str(file)) for file in self._chain.between(start["epoch"], end["epoch"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(partition, self._schema)

    def _newest(self) -> int:
        # With nobody there nothing changes, and what is known already is in the chain: no need to open the database.
        if not owned(self._named.database) and (head := self._chain.head()):
            return head
        return int(ask(self._named.database, "changes", self._named.name)["epoch"])

    def _offset(self, epoch: int) -> dict[str, Any]:
        return {"epoch": epoch, "made": self._named.definition.made}

    def _require_same(self, offset: dict[str, Any]) -> None:
        """A view dropped and made again has other changes."""
        if offset["made"] != self._named.definition.made:
            raise CatalogError(
                "RELATION_REPLACED",
                f"{self._named.name} was dropped and made again since this query began",
                hint="start the query again with a new checkpoint",
            )


def _batches(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, _Part)
    wanted = to_arrow_schema(schema, timezone="UTC")
    path = Path(partition.file)
    try:
        file = open_parquet(path)
    except FileNotFoundError:
        raise DataError(
            "ROWS_EXPIRED",
            f"the rows published in {path.name} are not kept any more",
            hint="read again: published rows stay for an hour after newer ones were",
        ) from None
    with file:
        groups = None if partition.group is None else [partition.group]
        for batch in file.iter_batches(row_groups=groups):
            yield from pa.Table.from_batches([batch]).select(wanted.names).cast(wanted).to_batches()
