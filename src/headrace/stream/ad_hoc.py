"""Ad hoc queries over streams: a query reads while others insert, and answers when the stream pauses (003 §3.4).

Each stream of a query has a thread that picks ranges of its ring and copies them out, so that inserts need not wait for
the query's own work. The query's thread takes whatever has been picked meanwhile as one batch and runs it up to the
first breaker, as an insert does for a view: the slower the work, the larger the batches. What is left is merged and
finished when all windows have ended.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa

from headrace.base.interrupts import asked, check, interruptible, stoppable
from headrace.base.native import conform
from headrace.catalog import Catalog, Stream
from headrace.engine.ring_tasks import RingShare, run_scan
from headrace.engine.session import driver_host
from headrace.engine.stage import StateRows
from headrace.engine.work import Static
from headrace.errors import ExecutionError, HeadraceError, NotYetSupported
from headrace.plan.nodes import Node, leaves
from headrace.plan.pipelines import SplitPlan
from headrace.plan.refs import StreamRef
from headrace.plan.window import rows_wanted, streams_out
from headrace.rings import Scan as RingScan
from headrace.rings.book import Overflow
from headrace.rings.layout import WORKERS, SlotKind
from headrace.rings.scan import WindowOver
from headrace.runtime import Runtime
from headrace.stream.intake import Intake, Rows, needed_columns
from headrace.stream.window import WindowQuery
from headrace.view.sharing import InsertPipeline

_BACKLOG = 128 << 20
"""Bytes that may be picked and not yet worked on, or worked on and not yet taken: then the ring fills up."""
_FULL_BATCH, _LINGER = 1 << 20, 1.0
"""Rows that are worked on at once without waiting for more, and the seconds to wait for so many where nobody waits for
rows before the window ends: each run builds its joins anew."""


class LostRows(UserWarning):
    """Rows of a stream are in no answer because the process that inserted them died."""


class _Feed:
    """One stream of a query: its reader, and what was picked and not yet worked on."""

    def __init__(
        self, stream: Stream, pipelines: Sequence[InsertPipeline], scan: RingScan, *, tasks: int, at_once: bool
    ) -> None:
        self.tasks = tasks
        """How many Spark tasks pick. If there are any, this process picks only what they leave for too long."""
        terms = scan.ring.terms
        self.least = 1 if at_once or terms.overflow is not Overflow.BLOCK else terms.capacity // 4
        """Tuples a pick waits a moment for: where somebody waits for rows, or writers do not wait, it must be quick."""
        self.stream = stream
        self.pipelines = pipelines
        self.scan = scan
        self.picked: list[pa.RecordBatch] = []
        self.bytes = 0
        self.over = False
        self.tasks_over = not tasks
        self.by_task: dict[int, list[pa.Table]] = {}
        """State rows that Spark tasks left."""
        self.failure: BaseException | None = None

    @property
    def is_over(self) -> bool:
        return self.over and self.tasks_over

    @property
    def is_full(self) -> bool:
        return self.bytes >= _BACKLOG // 2 or sum(b.num_rows for b in self.picked) >= _FULL_BATCH

    def run(self, changed: threading.Condition) -> None:
        """Pick until the window ends; each range is worked on by the query's own thread."""
        try:
            while True:
                if self.tasks and not self._left_alone():
                    return
                batch = self.scan.next(least=self.least, wait=0.1)
                if batch is None:
                    if self.over:
                        return
                    continue
                with changed:
                    self.picked.append(batch)
                    self.bytes += self._bytes(batch.num_rows)
                    changed.notify_all()
                    changed.wait_for(lambda: self.bytes < _BACKLOG or self.over)
                    if self.over:
                        return
        except WindowOver:
            pass
        except BaseException as failure:
            self.failure = failure
        finally:
            with changed:
                self.over = True
                changed.notify_all()

    def _left_alone(self) -> bool:
        """Wait until tuples pile up that no task picks; False if the window ends before.

        Tasks that insert may have all of Spark's slots, and wait until somebody makes room in the ring.
        """
        since, at = time.monotonic(), self.scan.position
        while not self.over and not self.scan.is_over:
            time.sleep(0.01)
            if self.scan.position != at or self.scan.lag < self.scan.ring.terms.capacity // 2:
                since, at = time.monotonic(), self.scan.position
            elif time.monotonic() - since > 0.25:
                return True
        return False

    def take(self) -> Rows | None:
        """What was picked since the last time."""
        if not self.picked:
            return None
        rows = Rows(pa.Table.from_batches(self.picked), self.bytes)
        self.picked, self.bytes = [], 0
        return rows

    def _bytes(self, rows: int) -> int:
        # Not Arrow's own number: it counts the buffer that text is viewed in as a whole.
        return rows * self.scan.row_bytes


class AdHocQuery:
    """A query over streams, from when it begins to read until it has answered."""

    def __init__(
        self,
        runtime: Runtime,
        plan: SplitPlan,
        number: int,
        rows_of: Callable[[Node], pa.Table],
        finish: Callable[[WindowQuery], pa.Table],
    ) -> None:
        self._runtime = runtime
        self._plan = plan
        self._rows_of = rows_of
        self._finish = finish
        self._name = f"query {number}"
        self._changed = threading.Condition()
        self._feeds: list[_Feed] = []
        self._scans: list[RingScan] = []
        self._statics: dict[str, Static] = {}
        self._out: deque[pa.Table] = deque()
        self._out_bytes = 0
        self._streams_out = streams_out(plan)
        self._wanted = rows_wanted(plan)
        self._schema = pa.schema([pa.field(c.name, c.type.arrow) for c in plan.upper.output])
        self._answer: pa.Table | None = None
        self._handed_out = False
        """Whether rows are with whoever took them as batches, and not here."""
        self._failure: BaseException | None = None
        self._done = threading.Event()
        self._stopped = False
        self.seen = False
        """Whether any row came by."""
        self.lost = 0
        """Rows of the window that were lost with the processes that inserted them."""

    # Running

    def start(self, in_use: Callable[[], Any], ended: Callable[[AdHocQuery], None]) -> AdHocQuery:
        """Begin to read now; the rest happens in threads of the query's own."""
        try:
            for stream, columns, oldest in reads_of_streams(self._runtime.catalog, self._plan):
                self._scans.append(self._runtime.rings.read(stream, columns, oldest=oldest))
        except BaseException:
            self._let_go()
            raise

        def run() -> None:
            try:
                with in_use(), ExitStack() as slots:
                    self._run(slots)
            except BaseException as failure:
                self._failure = failure
            finally:
                try:
                    self._let_go()
                finally:
                    with self._changed:
                        self._done.set()
                        self._changed.notify_all()
                    ended(self)

        threading.Thread(target=run, name=f"headrace {self._name}", daemon=True).start()
        return self

    def _run(self, slots: ExitStack) -> None:
        """Read until the windows end, and answer; Spark's slots for tasks that read are given back by the caller."""
        threads: list[threading.Thread] = []
        try:
            kept = self._kept()
            for scan in self._scans:
                stream: Stream = self._runtime.catalog.get(scan.ring.stream, Stream)
                pipelines = kept.stages(stream)
                tasks = 0
                if self._by_tasks(pipelines):
                    tasks = slots.enter_context(self._runtime.session.spare_slots(WORKERS - 1))
                self._feeds.append(_Feed(stream, pipelines, scan, tasks=tasks, at_once=self._at_once))
            for pipeline in kept.initial:
                self._take(kept, {pipeline.state: [self._rows_of(pipeline.plan)]})
            for feed in self._feeds:
                threads.append(threading.Thread(target=feed.run, args=(self._changed,), daemon=True))
                threads[-1].start()
                if feed.tasks:
                    threads.append(threading.Thread(target=self._scan_by_tasks, args=(feed,), daemon=True))
                    threads[-1].start()
            self._work(kept)
            for feed in self._feeds:
                self.seen = self.seen or any(table.num_rows for tables in feed.by_task.values() for table in tables)
                self._take(kept, feed.by_task)
            for feed in self._feeds:
                self.lost += feed.scan.end()
            if self.lost:
                warnings.warn(
                    f"{self.lost:,} rows that a process was inserting when it died are not in the answer",
                    LostRows,
                    stacklevel=2,
                )
            if not self._streams_out:
                self._answer = self._finish(kept)
        except BaseException:
            self.cancel()  # tasks that still pick need not go on
            raise
        finally:
            with self._changed:
                for feed in self._feeds:
                    feed.over = True
                self._changed.notify_all()
            for thread in threads:
                thread.join()
            self._runtime.worker.forget([s.name for s in self._statics.values()])
            for static in self._statics.values():
                static.file.unlink(missing_ok=True)

    @property
    def _at_once(self) -> bool:
        """Whether rows are wanted before the window ends."""
        return self._streams_out or self._wanted is not None

    def _by_tasks(self, pipelines: Sequence[InsertPipeline]) -> bool:
        """Whether Spark tasks scan: where the setting says so, and the whole fragment is native."""
        native = all(p.native is not None for p in pipelines)
        return self._runtime.settings.engine == "tasks" and native and not self._at_once

    def _scan_by_tasks(self, feed: _Feed) -> None:
        """Have Spark tasks pick and work until the window ends."""
        try:
            runtime, scan = self._runtime, feed.scan
            intake = Intake(runtime)
            work = intake.work_of(feed.stream, intake.fragments(feed.stream, feed.pipelines), feed.stream.columns)
            host = driver_host(runtime.spark)
            server = runtime.rings.flights.on(host)
            share = RingShare(
                feed.stream.name,
                scan.ring.folder,
                scan.ticket,
                tuple(scan.schema.names),
                server.location,
                server.secret,
                server.certificate,
                runtime.settings.remote_rings,
            )
            feed.by_task, left = run_scan(runtime.spark, work, share, feed.tasks)
            with self._changed:
                for table in left:  # with text as this process picks it
                    feed.picked += table.cast(scan.schema).to_batches()
                    self._changed.notify_all()
        except BaseException as failure:
            feed.failure = failure
        finally:
            with self._changed:
                feed.tasks_over = True
                self._changed.notify_all()

    def _work(self, kept: WindowQuery) -> None:
        """Run what is picked up to the first breaker, until all windows have ended."""
        intake = Intake(self._runtime)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: any(f.picked or f.is_over or f.failure for f in self._feeds))
                # A run over few rows costs about as much as one over many: wait a moment for more.
                linger = 0.0 if self._at_once else _LINGER
                self._changed.wait_for(lambda: any(f.is_full or f.is_over for f in self._feeds), linger)
                taken = [(feed, feed.take()) for feed in self._feeds]
                failure = next((f.failure for f in self._feeds if f.failure is not None), None)
                over = all(f.is_over for f in self._feeds)
                self._changed.notify_all()
            if failure is not None:
                raise failure
            worked = False
            for feed, rows in taken:
                if rows is not None:
                    worked = self.seen = True
                    _, found = intake.state_rows(feed.stream, feed.pipelines, rows)
                    self._take(kept, found)
            if over and not worked:
                return
            if not worked:
                time.sleep(0.001)  # one window is over, another is not
            if self._wanted is not None and kept.has(*self._wanted):
                self.finish()
                return

    def _take(self, kept: WindowQuery, found: StateRows) -> None:
        if not self._streams_out:
            return kept.take(found)
        for tables in found.values():
            self._give_out(tables)
        return None

    def _give_out(self, tables: Sequence[pa.Table]) -> None:
        """Hand rows of the answer to whoever takes them, waiting while there are too many."""
        with self._changed:
            for table in tables:
                self._out.append(conform(table, self._schema))
                self._out_bytes += self._out[-1].nbytes
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._out_bytes < _BACKLOG or self._stopped)

    def _kept(self) -> WindowQuery:
        """The query's plan, compiled, its static build sides read now."""
        for static in self._plan.statics:
            rows = self._rows_of(static.plan).rename_columns([f.name for f in static.schema])
            file = self._runtime.scratch_file(f"-{static.name}.parquet")
            self._statics[static.name] = build = Static(file.name, file)
            self._runtime.worker.hold(build, rows)
            if self._runtime.settings.engine == "tasks":
                self._runtime.worker.write(build)
        return WindowQuery(self._runtime, self._name, self._plan, self._statics)

    def _let_go(self) -> None:
        for scan in self._scans:
            scan.give_up()
            found = self._runtime.catalog.find(scan.ring.stream)
            if isinstance(found, Stream):
                self._runtime.rings.release(found)

    # What the caller may ask

    def finish(self) -> None:
        """End the window now, with the rows that are there."""
        for scan in self._scans:
            with _ended():
                scan.finish()

    def cancel(self) -> None:
        """End the query without an answer."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for scan in self._scans:
            with _ended():
                scan.cancel()

    @property
    def is_running(self) -> bool:
        return not self._done.is_set()

    @property
    def saw_nothing(self) -> str:
        """What to say to one who wonders where the rows are."""
        reads = reads_of_streams(self._runtime.catalog, self._plan)
        names = " and ".join(stream.name for stream, _, _ in reads)
        new = [stream.name for stream, _, oldest in reads if not oldest]
        if not new:
            return f"(no row is buffered of {names}, and none came while the query ran)"
        older = f"FROM {new[0]}@OLDEST begins with those that came before"
        return f"(no row came by {names} while the query ran; {older})"

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the query has answered or failed; an interrupt cancels it."""
        with self._waited_for():
            return self._done.wait(timeout)

    @contextmanager
    def _waited_for(self) -> Iterator[None]:
        """Somebody waits for the query, who may lose patience."""
        try:
            with interruptible(), stoppable(self.cancel):
                yield
                check()
        except KeyboardInterrupt:
            self.cancel()
            raise

    def answer(self) -> pa.Table:
        """The rows of the answer, when there is one."""
        if self._answer is None:
            if self._handed_out:
                raise ExecutionError(
                    "RESULT_TAKEN",
                    "rows of this query were handed out as batches, and are not kept",
                    hint="keep the batches, or run the query again",
                )
            self._answer = pa.concat_tables([self._schema.empty_table(), *self._taken()])
        return self._answer

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows of the answer as they come; those of a grouping come at the end."""
        try:
            for table in self._taken():
                self._handed_out = self._answer is None
                yield from (batch for batch in table.to_batches() if batch.num_rows)
        except GeneratorExit:
            self.cancel()
            raise

    def _taken(self) -> Iterator[pa.Table]:
        while True:
            with self._waited_for(), self._changed:
                self._changed.wait_for(lambda: self._out or self._done.is_set() or asked())
                table = self._out.popleft() if self._out else None
                self._out_bytes -= table.nbytes if table is not None else 0
                self._changed.notify_all()
            if table is not None:
                yield table
            elif self._failure is not None:
                raise self._failure
            else:
                break
        if self._answer is not None:
            yield self._answer


@contextmanager
def _ended() -> Iterator[None]:
    """Lets a query that has ended meanwhile be."""
    try:
        yield
    except HeadraceError as error:
        if error.condition != "QUERY_ENDED":
            raise


def reads_of_streams(catalog: Catalog, plan: SplitPlan) -> list[tuple[Stream, tuple[str, ...], bool]]:
    """The streams of a query, the columns it reads of each, and whether it reads them from the oldest row on."""
    columns: dict[str, set[str]] = {}
    oldest: dict[str, bool] = {}
    for pipeline in plan.streams:
        for leaf in leaves(pipeline.plan, StreamRef):
            columns.setdefault(leaf.relation, set()).update(leaf.fields)
            oldest[leaf.relation] = leaf.oldest
    found = []
    for name, read in columns.items():
        stream: Stream = catalog.get(name, Stream)
        held = tuple(f for f in stream.columns if SlotKind.of(f) is not None)
        for field in stream.columns:
            if field.name in read and field not in held:
                raise NotYetSupported(
                    f"column {field.name} of stream {name} in a query of the stream: its buffer holds no "
                    f"{field.type.sql}",
                    hint="leave the column out, or CREATE VIEW over the stream and query that",
                )
        if not held:
            raise ExecutionError(
                "STREAM_NOT_BUFFERED", f"stream {name} has no column its buffer holds", hint="query a view over it"
            )
        found.append((stream, needed_columns(read, held), oldest[name]))
    return found
