"""A stream scanned by Spark tasks: each picks ranges of the shared ring itself until the window ends (003 §3.4.2).

Spark plans partitions up front, so a task's partition is a *share* of a reader, not a range: the tasks of a query share
one position. Each runs the native fragment over what it picks and returns merged state rows. On the owner's host a task
maps the ring; elsewhere it asks the owner (``rings/flight.py``).

What was picked cannot be picked again. A task that runs a second time fails the query by name, and rows that a native
pipeline cannot treat as Spark does are handed back to the caller instead of being lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.engine.failures import from_spark, restored
from headrace.engine.tasks import Found, attempt, from_bytes, guarded, reduced, run_each, to_bytes
from headrace.engine.work import Work
from headrace.engine.worker import Worker
from headrace.errors import ExecutionError, HeadraceError
from headrace.rings import Ring, Scan
from headrace.rings.flight import plain_schema, remote_batches
from headrace.rings.ring import retried
from headrace.rings.scan import ReaderTicket, WindowOver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class RingShare:
    """What a task must know to scan a stream: where its ring is, which reader it belongs to, what it reads."""

    stream: str
    folder: Path
    ticket: ReaderTicket
    columns: tuple[str, ...]
    location: str
    secret: str
    certificate: str = ""
    remote: bool = False
    """Whether to ask the owner even where the ring could be mapped (for tests)."""

    def batches(self, worker: int, attempt: int) -> Iterator[pa.RecordBatch]:
        """The ranges picked for one task until the window ends; the caller's own process is worker 0."""
        if self.remote or not self.folder.exists():
            if attempt:
                raise retried(self.stream)
            yield from remote_batches(
                self.location, self.secret, self.stream, self.ticket, self.columns, worker + 1, self.certificate
            )
            return
        scan = Scan(Ring.open(self.folder), self.ticket, self.columns, worker + 1)
        if attempt and scan.has_picked:
            raise retried(self.stream)
        try:
            while True:
                batch = scan.next(wait=1.0)
                if batch is not None:
                    yield batch
        except WindowOver:
            return

    def cancel(self) -> None:
        """End the scan for all tasks; one that asks the owner ends it by going away."""
        with suppress(HeadraceError):
            Scan(Ring.open(self.folder), self.ticket, self.columns).cancel()


def run_scan(
    spark: SparkSession, work: Work, share: RingShare, count: int
) -> tuple[dict[int, list[pa.Table]], list[pa.Table]]:
    """Each state's rows as ``count`` tasks left them, and the input rows that need Spark SQL after all."""

    def task(indexes: Iterable[int]) -> Iterator[Found]:
        for index in indexes:
            found = list(guarded(index, partial(_scan, work, share, index)))
            if any(kind == "error" for _, kind, _, _ in found):
                share.cancel()  # there is no answer any more: the others need not go on
            yield from found

    try:
        results = sorted(run_each(spark, count, task), key=itemgetter(0))
    except HeadraceError:
        raise
    except Exception as error:
        failure = from_spark(error)
        raise ExecutionError(
            "STREAM_TASK_FAILED",
            f"a Spark task that read stream {share.stream} failed: {failure.message}",
            hint="ask again: what it had read cannot be read twice",
        ) from error
    states: dict[int, list[pa.Table]] = {}
    left: list[pa.Table] = []
    # A task that fails has the others cancelled: what it says is the reason.
    for _, kind, name, payload in sorted(results, key=lambda found: found[2] == "QUERY_CANCELLED"):
        if kind == "error":
            raise restored(payload.decode())
        if kind == "state":
            states.setdefault(int(name), []).append(from_bytes(payload))
        elif kind == "left":
            left.append(from_bytes(payload))
    return states, left


def _scan(work: Work, share: RingShare, index: int) -> Iterator[tuple[str, str, bytes]]:
    left: list[pa.Table] = []

    def parts(_: Worker, __: Work) -> Iterator[pa.Table]:
        for batch in share.batches(index, attempt()):
            yield pa.Table.from_batches([batch])

    yield from reduced(work, parts, index, left)
    for rows in left:
        yield "left", "", to_bytes(rows.cast(plain_schema(rows.schema)))
