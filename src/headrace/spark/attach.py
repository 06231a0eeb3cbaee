"""Attachments: a streaming DataFrame that feeds a stream, from this process.

Spark calls :meth:`Attachment._feed` with each micro-batch and its number, and calls
it again with the same number if it cannot know that the call ended well. The number
is committed in the very epoch that holds the batch's state rows, under the query's
id, which Spark keeps in the checkpoint: a batch that comes again is recognised
before any work is done, and changes nothing.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.catalog import Stream, Table, file_name
from headrace.engine.workers import require_workers
from headrace.errors import CatalogError, DataError, HeadraceError, NotYetSupported, Position
from headrace.spark.published import CHECKPOINTS, KnownRelation
from headrace.statement.load import SentBatch
from headrace.store.writer import closed
from headrace.stream.frames import conform_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

Feed = Callable[[str, "DataFrame", SentBatch], int]
"""Inserts a micro-batch into a stream, at most once; returns how many rows came."""


class Attachment:
    """A running :class:`pyspark.sql.streaming.StreamingQuery` that feeds a stream; behaves as one.

    An error of Headrace that ended the query is raised and returned as it was, not wrapped in Spark's.
    """

    def __init__(self, stream: str, feed: Feed) -> None:
        self.stream = stream
        self._feed_stream = feed
        self._query_id: Future[str] = Future()
        self._failure: HeadraceError | None = None
        self._inner: StreamingQuery | None = None

    def start(self, frame: DataFrame, name: str | None, checkpoint: str, trigger: Mapping[str, Any]) -> None:
        # Spark keeps the function for ever; it must not keep the database open with it.
        itself = weakref.ref(self)

        def feed(batch: DataFrame, number: int) -> None:
            attachment = itself()
            if attachment is None:
                raise closed()
            attachment._feed(batch, number)

        writer = frame.writeStream.foreachBatch(feed).option("checkpointLocation", checkpoint)
        if name is not None:
            writer = writer.queryName(name)
        if trigger:
            writer = writer.trigger(**trigger)
        try:
            self._inner = writer.start()
        except BaseException as error:
            self._query_id.set_exception(error)
            raise
        self._query_id.set_result(str(self._inner.id))

    def _feed(self, batch: DataFrame, number: int) -> None:
        # The first micro-batch may come before start() has returned and the id is known here.
        source = f"attach {self._query_id.result()}"
        try:
            self._feed_stream(self.stream, batch, SentBatch(source, number))
        except HeadraceError as error:
            self._failure = error
            raise

    # What a StreamingQuery has

    @property
    def _query(self) -> StreamingQuery:
        assert self._inner is not None
        return self._inner

    @property
    def id(self) -> str:
        """The query's id: the same whenever it is started from its checkpoint."""
        return str(self._query.id)

    @property
    def runId(self) -> str:
        """The id of this run of the query."""
        return str(self._query.runId)

    @property
    def name(self) -> str | None:
        return self._query.name

    @property
    def isActive(self) -> bool:
        return bool(self._query.isActive)

    @property
    def status(self) -> dict[str, Any]:
        return self._query.status

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        return self._query.lastProgress

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        return self._query.recentProgress

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query ends; with a timeout in seconds, say whether it has."""
        from pyspark.errors import StreamingQueryException

        try:
            return self._query.awaitTermination(timeout)  # type: ignore[arg-type]  # Spark takes fractions too
        except StreamingQueryException as error:
            if self._failure is None:
                raise
            raise self._failure from error

    def processAllAvailable(self) -> None:
        """Wait until all rows that are there now are in the stream's views."""
        from pyspark.errors import StreamingQueryException

        try:
            self._query.processAllAvailable()
        except StreamingQueryException as error:
            if self._failure is None:
                raise
            raise self._failure from error

    def stop(self) -> None:
        """Stop the query. A batch being inserted is in, or comes again when it is next started."""
        self._query.stop()

    def explain(self, extended: bool = False) -> None:
        self._query.explain(extended)

    def exception(self) -> Exception | None:
        """What ended the query; ``None`` while it runs and when it was stopped."""
        error = self._query.exception()
        return None if error is None else self._failure or error

    def __repr__(self) -> str:
        return f"Attachment({self.stream!r}, {self.status['message']!r})"


class Attachments:
    """The attachments of an open database. Guarded by whoever changes definitions (``tables_lock``)."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._running: dict[str, Attachment] = {}
        self._lock = threading.Lock()

    def start(
        self,
        frame: DataFrame,
        target: Stream | Table,
        made: int,
        feed: Feed,
        *,
        name: str | None,
        checkpoint: str | None,
        trigger: Mapping[str, Any] | str | None,
    ) -> Attachment:
        """Start a query that feeds ``target``, which was made in epoch ``made``: a stream its rows, a table changes."""
        _require_stream(frame)
        require_workers(frame.sparkSession, now=True)
        ready = conform_frame(frame, target) if isinstance(target, Stream) else frame
        if checkpoint is None:
            part = "" if name is None else file_name(name)
            checkpoint = str(self._database / CHECKPOINTS / KnownRelation(target, made).key / f"query-{part}")
        options = {"processingTime": trigger} if isinstance(trigger, str) else dict(trigger or {})
        with self._lock:
            if (other := self._running.get(checkpoint)) is not None and other.isActive:
                raise CatalogError(
                    "ATTACHMENT_RUNNING",
                    f"a query with the checkpoint {checkpoint} feeds {other.stream} already",
                    hint="stop it first, or give this one a name or a checkpoint of its own",
                )
            attachment = Attachment(target.name, feed)
            attachment.start(ready, name, checkpoint, options)
            self._running[checkpoint] = attachment
        return attachment

    def require_idle(self, stream: str, position: Position | None = None) -> None:
        """Refuse to change a stream that a running query feeds."""
        for attachment in self._active():
            if attachment.stream.lower() == stream.lower():
                raise CatalogError(
                    "STREAM_IN_USE",
                    f"{attachment.stream} is fed by the running query {attachment.name or attachment.id}",
                    position=position,
                    hint="stop it first: db.attachments lists what runs",
                )

    def stop(self) -> None:
        for attachment in self._active():
            attachment.stop()

    def __iter__(self) -> Iterator[Attachment]:
        return iter(self._active())

    def _active(self) -> list[Attachment]:
        with self._lock:
            self._running = {k: a for k, a in self._running.items() if a.isActive}
            return list(self._running.values())


def _require_stream(frame: Any) -> None:
    if not getattr(frame, "isStreaming", False):
        raise DataError(
            "NOT_A_STREAMING_FRAME",
            "attach takes a streaming DataFrame, made by spark.readStream",
            hint="rows that are there already go in with db.insert",
        )
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        raise NotYetSupported(
            "attach over Spark Connect, where micro-batches are run by the server",
            hint='write with the sink: df.writeStream.format("headrace")',
        )
