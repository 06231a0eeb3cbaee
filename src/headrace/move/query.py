"""A query that can be moved while it runs.

It runs as any Spark query does, in a thread of this process; nothing is done for moving until somebody asks. Then the
tree of its plan says which finished stages are still needed (``plan.py``), Spark writes their rows (``states.py``), and
a ticket says the rest (``ticket.py``).
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import headrace
from headrace.engine.failures import from_spark
from headrace.errors import ExecutionError, HeadraceError, StoreError
from headrace.move import states, ticket
from headrace.move.advice import Advice, advise
from headrace.move.claim import Claim
from headrace.move.files import Folder
from headrace.move.inputs import inputs_of, refuse
from headrace.move.plan import Holding, Pipeline, extracted, placements, state_of
from headrace.move.planned import Planned, plan
from headrace.move.program import settings_of
from headrace.move.progress import PipelineProgress, Progress
from headrace.move.spark_plans import Stage
from headrace.move.ticket import Ticket
from headrace.result import Result

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.02
_WRITERS = 4
"""States written at a time."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The ticket a query was resumed from."""

    folder: Folder
    ticket: Ticket
    claim: Claim
    keep: bool


class RunningQuery:
    """A query started by ``headrace.run`` or ``headrace.resume``."""

    def __init__(
        self, user: SparkSession, planned: Planned, *, to: str | None = None, origin: Origin | None = None
    ) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.restarted: HeadraceError | None = None
        """Why a resumed query began anew instead, if it did."""
        self._user = user
        self._planned = planned
        self._origin = origin
        self._to = to
        self._status = "not started"
        self._error: BaseException | None = None
        self._table: pa.Table | None = None
        self._answering = False
        self._attempt: threading.Thread | None = None
        self._outcome: tuple[str, pa.Table | None, BaseException | None] | None = None
        """Of the last attempt that came to an end: its group, and its answer or error."""
        self._group = ""
        self._began = time.monotonic()
        self._ended: float | None = None
        self._over = threading.Event()
        self._changing = threading.RLock()
        self._ticket: Ticket | None = None

    # What a user can ask -----------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """``not started``, ``running``, ``paused``, ``finished``, ``failed`` or ``suspended``."""
        return self._status

    def start(self) -> RunningQuery:
        """Start it, if nobody has."""
        with self._changing:
            if self._status == "not started":
                self._began = time.monotonic()
                self._go()
        return self

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the answer."""
        self.wait(timeout)
        if self._status == "suspended":
            raise ExecutionError(
                "QUERY_SUSPENDED",
                "the query was suspended",
                hint=f"go on with headrace.resume(spark, '{self._ticket}')",
            )
        if self._error is not None:
            raise self._error
        import pyarrow as pa

        if self._table is None:
            return Result(pa.table({}), message=f"written to {self._to}")
        return Result(self._table, spark=self._user.createDataFrame)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the query is finished, has failed or was suspended."""
        if not self._over.wait(timeout):
            raise ExecutionError(
                "QUERY_NOT_FINISHED", f"the query is {self._status} after {timeout:g} s", hint="wait longer"
            )

    def to_parquet(self, path: str) -> RunningQuery:
        """Have the answer written as Parquet instead of brought here; ``result()`` waits for it."""
        if Folder(self._user, path).exists():
            raise StoreError("PATH_EXISTS", f"{path} is there already", hint="name a new path")
        with self._changing:
            if not self._answering and self._status != "finished":
                self._to = path
                return self
        table = self.result().arrow()
        self._user.createDataFrame(table).write.parquet(path)
        return self

    def progress(self) -> Progress:
        """The pipelines, and how far each has got."""
        with self._changing:
            held = {stage.pipeline: stage for stage in self._planned.stages()}
            found = []
            for pipeline in self._planned.depends:
                if pipeline is None:
                    continue
                stage = held.get(pipeline)
                if stage is not None and stage.finished:
                    size, rows = states.size_of(stage)
                    found.append(
                        PipelineProgress(states.operator_of(stage), True, rows, size, states.seconds_of(stage))
                    )
                elif pipeline in self._carried():
                    state = self._carried()[pipeline]
                    found.append(PipelineProgress(state.operator, True, state.rows, state.bytes, moved=True))
                else:
                    found.append(PipelineProgress(self._operator(pipeline), False))
            done = self._status == "finished"
            finished = len(found) + 1 if done else sum(each.finished for each in found)
            total, skipped = len(found) + 1, 0
            if self._origin is not None:
                total = max(total, self._origin.ticket.progress[1])
                skipped = total - len(found) - 1  # pipelines below a state are not even in the plan
            last = PipelineProgress("the answer", done, self._table.num_rows if self._table is not None else None)
            seconds = (self._ended or time.monotonic()) - self._began
            return Progress(self._status, finished + skipped, total, (*found, last), seconds)

    def suspend(self, path: str, *, finish: bool = True, grace: float | None = None) -> Ticket:
        """Stop the query and leave all it needs to go on in ``path``, a new or empty folder.

        Stages in flight are finished first, for at most ``grace`` seconds, or given up (``finish=False``). What
        cannot be moved is refused before anything stops. If the ticket cannot be written, the query goes on here.
        """
        with self._changing:
            self._must_run("suspend")
            refuse(self._planned.reader, self._planned.root, self._planned.analyzed)
            folder = ticket.new_folder(self._user, path)
            try:
                if finish:
                    self._finish_stages(grace)
                self._halt()
                try:
                    found = self._write(folder, self._finished())
                except BaseException:
                    self._go_on()
                    raise
            except BaseException:
                folder.remove()
                raise
            self._ticket = found
            self._end("suspended")
            self._let_go(self._planned.stages())
            return found

    def snapshot(self, path: str) -> Ticket:
        """Leave a ticket of what is finished now, and go on."""
        with self._changing:
            self._must_run("take a snapshot of")
            refuse(self._planned.reader, self._planned.root, self._planned.analyzed)
            folder = ticket.new_folder(self._user, path)
            try:
                return self._write(folder, self._finished())
            except BaseException:
                folder.remove()
                raise

    def advice(self) -> Advice:
        """Whether to move now, at the next stage, or to start again elsewhere."""
        with self._changing:
            self._must_run("give advice about")
            return advise(self._user, self.progress(), self._needed_bytes())

    def cancel(self) -> None:
        """Give the query up."""
        with self._changing:
            if self._status in ("running", "paused"):
                try:
                    self._halt()
                except HeadraceError:
                    return  # it was faster, and has its answer
                self._error = ExecutionError("QUERY_CANCELLED", "the query was cancelled", hint="run it again")
                self._end("failed")

    def watch(self) -> Result:
        """Wait with a live bar, in a terminal or a notebook."""
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        with Bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as bar:
            task = bar.add_task("pipelines")
            while not self._over.wait(0.5):
                now = self.progress()
                bar.update(task, completed=now.finished, total=now.total)
        return self.result()

    def __repr__(self) -> str:
        return str(self.progress()) if self._status != "not started" else "not started"

    def _repr_html_(self) -> str:
        return self.progress()._repr_html_()

    # Making room for another query (000 §6.3.7): pause keeps the state where it is ---------------------------------

    def pause(self) -> None:
        """Give the cluster's cores up until :meth:`proceed`; finished stages stay where they are."""
        with self._changing:
            self._must_run("pause")
            refuse(self._planned.reader, self._planned.root, self._planned.analyzed)
            self._halt()
            self._status = "paused"

    def proceed(self) -> None:
        """Go on after :meth:`pause`."""
        with self._changing:
            if self._status == "paused":
                self._go_on()

    # How it runs -------------------------------------------------------------------------------------------------

    def _go(self) -> None:
        self._status = "running"
        self._answering = False
        self._group = f"headrace-{self.id}-{uuid.uuid4().hex[:6]}"
        self._attempt = threading.Thread(
            target=self._work, args=(self._planned, self._group), name=self._group, daemon=True
        )
        self._attempt.start()

    def _work(self, planned: Planned, group: str) -> None:
        table, error = None, None
        try:
            self._user.sparkContext.setJobGroup(group, f"headrace {self.id}", interruptOnCancel=True)
            frame = planned.answer(planned.adaptive.execute())
            self._answering = True
            if self._to is not None:
                self._clear_leavings()
                frame.write.parquet(self._to)
            else:
                table = frame.toArrow()
        except BaseException as caught:
            error = caught
        self._outcome = (group, table, error)
        # Whoever stops the attempt holds the lock, waits for this thread to end, and looks at the outcome.
        while not self._changing.acquire(timeout=_POLL_SECONDS):
            if group != self._group:
                return
        try:
            if group == self._group:
                self._end_with(table, error)
        finally:
            self._changing.release()

    def _end_with(self, table: pa.Table | None, error: BaseException | None) -> None:
        """The query has come to its end by itself."""
        if error is None:
            self._table = table
            if self._origin is not None and not self._origin.keep:
                ticket.finish(self._origin.folder)
            self._end("finished")
        else:
            self._error = error if isinstance(error, HeadraceError) else from_spark(_exception(error))
            self._end("failed")

    def _halt(self) -> None:
        """Stop the attempt; the stages it has finished keep their rows. One that has its answer by then is finished."""
        self._must_run("stop")
        attempt, group = self._attempt, self._group
        self._group = ""
        context: Any = self._user.sparkContext
        while attempt is not None and attempt.is_alive():
            context._jsc.sc().cancelJobGroupAndFutureJobs(group)
            attempt.join(0.5)
        if self._outcome is not None and self._outcome[0] == group and self._outcome[2] is None:
            self._end_with(self._outcome[1], None)
            self._must_run("stop")
        self._clear_leavings()

    def _clear_leavings(self) -> None:
        """Remove what a write that was cut short has left, so that the answer can be written again."""
        if self._to is not None:
            folder = Folder(self._user, self._to)
            if folder.exists() and set(folder.names()) <= {"_temporary"}:
                folder.remove()

    def _go_on(self) -> None:
        """Run again from the stages that are finished, without writing anything."""
        stages_now = {stage.pipeline: stage for stage in self._planned.stages() if stage.finished}
        carried = self._carried()
        needed = self._needed(stages_now.keys() | carried.keys())
        rows: dict[Pipeline, Callable[[], Any]] = {}
        types: dict[Pipeline, tuple[str, ...]] = {}
        for pipeline in needed:
            stage = stages_now.get(pipeline)
            if stage is not None:
                rows[pipeline], types[pipeline] = _held(self._user, stage), states.types_of(stage.node)
            elif self._origin is not None:
                io = states.io_session(self._user)
                rows[pipeline] = states.reader(io, self._origin.folder, carried[pipeline])
                types[pipeline] = carried[pipeline].types
        again = plan(self._planned.program, self._planned.spark, self._planned.cached_at())
        self._planned = replace(again.with_state(rows, types), caches=self._planned.caches)
        self._go()

    def _finish_stages(self, grace: float | None) -> None:
        """Wait for the stages in flight; new ones may begin meanwhile, and are given up."""
        ends = None if grace is None else time.monotonic() + grace
        flying = [stage for stage in self._planned.stages() if not stage.finished]
        while any(not stage.finished for stage in flying) and not self._over.is_set():
            if ends is not None and time.monotonic() > ends:
                return
            # The lock is given up, so that the query may end.
            self._changing.release()
            try:
                time.sleep(_POLL_SECONDS)
            finally:
                self._changing.acquire()
        self._must_run("suspend")

    def _must_run(self, what: str) -> None:
        if self._status in ("running", "paused") and not self._over.is_set():
            return
        reasons = {
            "not started": ("QUERY_NOT_STARTED", "it has not been started", "start it first: q.start()"),
            "finished": ("QUERY_FINISHED", "it is finished", "its answer is q.result()"),
            "failed": ("QUERY_FAILED", f"it has failed: {self._error}", "run it again"),
            "suspended": ("QUERY_SUSPENDED", "it is suspended", f"headrace.resume(spark, '{self._ticket}')"),
        }
        condition, why, hint = reasons[self._status]
        raise ExecutionError(condition, f"cannot {what} the query: {why}", hint=hint)

    def _end(self, status: str) -> None:
        self._status = status
        self._ended = time.monotonic()
        self._planned.release()
        if self._origin is not None:
            self._origin.claim.release()
        self._over.set()

    # State -------------------------------------------------------------------------------------------------------

    def _finished(self) -> list[Stage]:
        return [stage for stage in self._planned.stages() if stage.finished and states.writable(stage)]

    def _carried(self) -> dict[Pipeline, states.State]:
        """State that came with a ticket and stands in the plan."""
        if self._origin is None:
            return {}
        inside = set(self._planned.scans.values())
        return {state.pipeline: state for state in self._origin.ticket.states if state.pipeline in inside}

    def _needed(self, finished: Collection[Pipeline]) -> list[Pipeline]:
        """What is to be extracted, topmost first (Algorithms 6.5 and 6.6)."""
        state = state_of(finished, self._planned.depends)
        return extracted(placements(self._planned.root, state))

    def _needed_bytes(self) -> int:
        held = {stage.pipeline: stage for stage in self._finished()}
        carried = self._carried()
        return sum(
            states.size_of(held[p])[0] if p in held else carried[p].bytes
            for p in self._needed(held.keys() | carried.keys())
        )

    def _write(self, folder: Folder, finished: Collection[Stage]) -> Ticket:
        """Write a ticket of the stages given: state first, the manifest last."""
        held = {stage.pipeline: stage for stage in finished}
        carried = self._carried()
        known = self.progress()
        needed = self._needed(held.keys() | carried.keys())
        io = states.io_session(self._user)

        def one(numbered: tuple[int, Pipeline]) -> states.State:
            number, pipeline = numbered
            name = f"{ticket.STATE}/{number}"
            if pipeline in held:
                return states.write(io, folder, name, held[pipeline])
            assert self._origin is not None
            return states.copy(io, self._origin.folder, carried[pipeline], folder, name)

        with ThreadPoolExecutor(_WRITERS) as pool:
            written = list(pool.map(one, enumerate(needed)))
        below = len(self._planned.depends) - 1 - len(held.keys() | carried.keys())
        manifest = {
            "format": ticket.FORMAT,
            "kind": "query",
            "id": self.id,
            "made_at": ticket.now(),
            "headrace": headrace.__version__,
            "spark": str(self._user.version),
            "query": self._planned.program.as_json(),
            "to": self._to,
            "plan": {
                "identity": self._planned.root.identity,
                "text": str(self._planned.adaptive.toString()),
                "cached": [list(path) for path in self._planned.cached_at()],
            },
            "settings": settings_of(self._planned.spark),
            "inputs": self._inputs().as_json(),
            "states": [state.as_json() for state in written],
            "progress": {"finished": known.total - 1 - below, "total": known.total, "seconds": known.seconds},
        }
        folder.publish(ticket.MANIFEST, ticket.sealed(manifest))
        if self._origin is not None and not self._origin.keep and self._group == "":
            ticket.finish(self._origin.folder)  # the new ticket has everything
        return Ticket(folder.address, manifest)

    def _inputs(self) -> Any:
        """What the whole query reads: of a resumed one, what its first plan read."""
        from headrace.move.inputs import Inputs

        if self._origin is not None:
            return Inputs.of_json(self._origin.ticket.manifest["inputs"])
        return inputs_of(self._planned.reader, self._planned.root)

    def _operator(self, pipeline: Pipeline) -> str:
        for operator in self._planned.root.walk():
            if operator.is_breaker and operator.pipeline == pipeline:
                return states.text_of(operator.node)
        return "?"

    def _let_go(self, held: Collection[Stage]) -> None:
        """Free what the stages hold: the query will not need it here."""
        cleaner = self._user.sparkContext._jsc.sc().cleaner()
        for stage in held:
            if not cleaner.isDefined() or not stage.finished:
                continue
            node = states.exchange_of(stage)
            if stage.pipeline.holding is Holding.ROWS and "Shuffle" in str(node.getClass().getSimpleName()):
                cleaner.get().doCleanupShuffle(node.shuffleId(), False)


def _held(spark: SparkSession, stage: Stage) -> Callable[[], Any]:
    return lambda: states.rows_of(spark, stage)


def _exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else ExecutionError("INTERRUPTED", str(error))
