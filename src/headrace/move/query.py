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
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import headrace
from headrace.base.boundary import public
from headrace.base.parquet_files import spark_frame
from headrace.engine.failures import from_spark
from headrace.engine.spark import without_holes
from headrace.errors import ExecutionError, HeadraceError, StoreError
from headrace.move import states, ticket
from headrace.move.advice import Advice, estimate, rate
from headrace.move.attempt import Attempt
from headrace.move.claim import Origin
from headrace.move.files import Folder
from headrace.move.inputs import Inputs, inputs_of, refuse
from headrace.move.plan import Pipeline
from headrace.move.planned import Planned, plan, plan_as
from headrace.move.program import settings_of
from headrace.move.progress import PipelineProgress, Progress, pipelines_of, watch
from headrace.move.selection import needed, worth
from headrace.move.spark_plans import SparkStage
from headrace.move.ticket import Ticket
from headrace.statement.result import Result

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.02
_MOMENT = 1.0
"""Seconds that tasks may take to be heard of."""
_WRITERS = 4
"""States written at a time."""


class RunningQuery:
    """A query started by ``headrace.run`` or ``headrace.resume``."""

    def __init__(
        self,
        user: SparkSession,
        planned: Planned,
        *,
        to: str | None = None,
        origin: Origin | None = None,
        restarted: HeadraceError | None = None,
        entering: Callable[[RunningQuery], None] | None = None,
    ) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.restarted = restarted
        """Why a resumed query began anew instead, if it did."""
        self._user = user
        self._planned = planned
        self._origin = origin
        self._to = to
        self._entering = entering
        self._status = "not started"
        self._error: BaseException | None = None
        self._table: pa.Table | None = None
        self._answering = False
        self._attempt: Attempt | None = None
        """The attempt that runs; none while the query is paused or stopped."""
        self._kept: dict[Pipeline, SparkStage] = {}
        """Stages of an earlier attempt whose rows stand in the plan."""
        before = origin.ticket if origin is not None and restarted is None else None
        self._inputs = Inputs.of_json(before.manifest["inputs"]) if before is not None else None
        self._pipelines = before.progress[1] if before is not None else 0
        """What the whole query reads, and how many pipelines it has: a plan with state in it lacks those below."""
        self._spent = float(before.manifest["progress"]["seconds"]) if before is not None else 0.0
        """Seconds it ran before it was moved."""
        self._began = time.monotonic()
        self._ended: float | None = None
        self._over = threading.Event()
        self._leaving = threading.Lock()
        """One ticket at a time; taken before the others."""
        self._changing = threading.RLock()
        """The status changes under it."""
        self._aiming = threading.Lock()
        """Where the answer goes is settled under it."""
        self._ticket: Ticket | None = None

    # What a user can ask -----------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """``not started``, ``running``, ``paused``, ``finished``, ``failed`` or ``suspended``."""
        return self._status

    @public
    def start(self) -> RunningQuery:
        """Start it, if nobody has."""
        with self._changing:
            if self._status != "not started":
                return self
            self._began = time.monotonic()
            self._go()
        if self._entering is not None:
            self._entering(self)
        return self

    @public
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
        return Result(self._table, spark=lambda rows: self._user.createDataFrame(without_holes(rows)))

    @public
    def wait(self, timeout: float | None = None) -> None:
        """Wait until the query is finished, has failed or was suspended."""
        if self._status == "not started":
            self._must_run("wait for")
        if not self._over.wait(timeout):
            raise ExecutionError(
                "QUERY_NOT_FINISHED", f"the query is {self._status} after {timeout:g} s", hint="wait longer"
            )

    @public
    def to_parquet(self, path: str) -> RunningQuery:
        """Have the answer written as Parquet instead of brought here; ``result()`` waits for it."""
        folder = Folder(self._user, path)
        if folder.exists():
            raise StoreError("PATH_EXISTS", f"{path} is there already", hint="name a new path")
        with self._changing, self._aiming:
            if not self._answering and not self._over.is_set():
                self._to = folder.address  # elsewhere a relative path would be another
                return self
        found = self.result()
        frame = spark_frame(self._user, self._to) if self._to is not None else found.spark()
        frame.write.parquet(path)
        return self

    @public
    def progress(self) -> Progress:
        """The pipelines, and how far each has got."""
        with self._changing:
            found = list(pipelines_of(self._planned, self._stages(), self._carried()))
            done = self._status == "finished"
            finished = len(found) + 1 if done else sum(each.finished for each in found)
            total = max(len(found) + 1, self._pipelines)
            skipped = total - len(found) - 1
            last = PipelineProgress("the answer", done, self._table.num_rows if self._table is not None else None)
            seconds = self._spent + (self._ended or time.monotonic()) - self._began
            return Progress(self._status, finished + skipped, total, (*found, last), seconds)

    @public
    def suspend(self, path: str, *, finish: bool | None = None, grace: float | None = None) -> Ticket:
        """Stop the query and leave all it needs to go on in ``path``, a new or empty folder.

        Of the stages in flight those are finished first, for at most ``grace`` seconds, whose rows are then worth
        moving; all of them (``finish=True``), or none (``finish=False``). What cannot be moved is refused before
        anything stops. If the ticket cannot be written, the query goes on here.
        """
        with self._leaving, self._changing:
            self._must_run("suspend")
            self._may_move()
            folder = ticket.new_folder(self._user, path)
            try:
                if finish is not False:
                    self._finish_stages(grace, every=finish is True)
                self._halt()
                found = self._write(folder, self._finished())
            except BaseException:
                try:
                    folder.remove()
                finally:
                    self._carry_on()
                raise
            self._ticket = found
            if self._origin is not None:
                self._origin.use_up()  # the new ticket has everything
            self._end("suspended")
            states.let_go(self._user, [*self._planned.stages(), *self._kept.values()])
            return found

    @public
    def snapshot(self, path: str) -> Ticket:
        """Leave a ticket of what is finished now, and go on."""
        with self._leaving, self._changing:
            self._must_run("take a snapshot of")
            self._may_move()
            folder = ticket.new_folder(self._user, path)
            try:
                return self._write(folder, self._finished())
            except BaseException:
                folder.remove()
                raise

    @public
    def advice(self, to: str | None = None) -> Advice:
        """Whether to move now, at the next stage, or to start again elsewhere; ``to`` is where the ticket would go."""
        self._must_run("give advice about")
        bytes_per_second = rate(self._user, to)  # it takes a while: the query may end meanwhile
        with self._changing:
            self._must_run("give advice about")
            in_flight = self._attempt.in_flight() if self._attempt is not None else 0.0
            return estimate(self.progress(), self._needed_bytes(), bytes_per_second, in_flight)

    @public
    def cancel(self) -> None:
        """Give the query up, unless it has its answer."""
        with self._changing:
            if self._status not in ("running", "paused"):
                return
            try:
                self._halt()
            except HeadraceError:
                pass
            finally:
                if not self._over.is_set():
                    self._fail(ExecutionError("QUERY_CANCELLED", "the query was cancelled", hint="run it again"))

    @public
    def watch(self) -> Result:
        """Wait with a live bar, in a terminal or a notebook."""
        if self._status != "not started":
            watch(self.progress, self._over.wait)
        return self.result()

    def __repr__(self) -> str:
        return str(self.progress()) if self._status != "not started" else "not started"

    def _repr_html_(self) -> str:
        return self.progress()._repr_html_()

    # Making room for another query (000 §6.3.7): pause keeps the state where it is ---------------------------------

    @public
    def pause(self) -> None:
        """Give the cluster's cores up until :meth:`proceed`; finished stages stay where they are."""
        with self._changing:
            self._must_run("pause")
            refuse(self._planned.reader, self._planned.root, self._planned.analyzed)
            try:
                self._halt()
            except BaseException:
                self._carry_on()
                raise
            self._status = "paused"

    @public
    def proceed(self) -> None:
        """Go on after :meth:`pause`."""
        with self._changing:
            if self._status == "paused":
                self._go_on()

    # How it runs -------------------------------------------------------------------------------------------------

    def _go(self) -> None:
        self._status = "running"
        self._answering = False
        planned = self._planned
        self._attempt = Attempt(self._user, self.id, lambda: self._answer(planned), self._end_with, self._changing)

    def _answer(self, planned: Planned) -> pa.Table | None:
        """The answer of a plan; none where it goes to files."""
        frame = planned.answer(planned.adaptive.execute())
        with self._aiming:
            self._answering = True
        if self._to is None:
            return frame.toArrow()
        self._clear_leavings()
        frame.write.parquet(self._to)
        return None

    def _end_with(self, attempt: Attempt) -> None:
        """The query has come to its end by itself."""
        if attempt.error is not None:
            self._fail(attempt.error)
            return
        self._table = attempt.answer
        try:
            if self._origin is not None:
                self._origin.use_up()
        finally:
            self._end("finished")

    def _fail(self, error: BaseException) -> None:
        self._error = error
        try:
            if not isinstance(error, HeadraceError):
                self._error = from_spark(_exception(error))
        finally:
            self._end("failed")

    def _halt(self) -> None:
        """Stop the attempt; the stages it has finished keep their rows. One at its end by then has ended the query."""
        self._must_run("stop")
        attempt = self._attempt
        if attempt is not None:
            by_itself = attempt.over
            try:
                attempt.stop()
            finally:
                self._attempt, self._answering = None, False
                if by_itself or attempt.error is None:
                    self._end_with(attempt)
            self._must_run("stop")
        self._clear_leavings()

    def _clear_leavings(self) -> None:
        """Remove what a write that was cut short has left, so that the answer can be written again."""
        if self._to is not None:
            folder = Folder(self._user, self._to)
            if folder.exists() and set(folder.names()) <= {"_temporary"}:
                folder.remove()

    def _carry_on(self) -> None:
        """Go on here, if the query was stopped for something that has failed."""
        if self._status == "running" and self._attempt is None:
            self._go_on()

    def _go_on(self) -> None:
        """Run again from the stages that are finished, without writing anything."""
        try:
            self._planned = self._planned_on()
            self._go()
        except Exception as error:
            self._fail(error)

    def _planned_on(self) -> Planned:
        """The plan that goes on from what is finished.

        From the beginning, should its inputs be others by now, or Spark plan it in another way.
        """
        before = self._planned
        finished = {p: stage for p, stage in self._stages().items() if stage.finished and states.has_rows(stage)}
        carried = self._carried()
        rows: dict[Pipeline, Callable[[], Any]] = {}
        types: dict[Pipeline, tuple[str, ...]] = {}
        for pipeline in self._needed(finished.keys() | carried.keys()):
            stage = finished.get(pipeline)
            if stage is not None:
                rows[pipeline], types[pipeline] = _held(self._user, stage), states.types_of(stage.node)
            elif self._origin is not None:
                io = states.io_session(self._user)
                rows[pipeline] = states.reader(io, self._origin.folder, carried[pipeline])
                types[pipeline] = carried[pipeline].types
        cached = before.cached_at()
        again = plan_as(before.root.identity, lambda: plan(before.program, before.pristine, cached, fresh=True))
        inputs = inputs_of(again.reader, again.root)
        kept: dict[Pipeline, SparkStage] = {}
        try:
            self._all_inputs().check(inputs)
            again = again.with_state(rows, types)
            kept = {pipeline: finished[pipeline] for pipeline in rows if pipeline in finished}
        except StoreError:
            pass
        self._inputs, self._pipelines, self._kept = inputs, self.progress().total, kept
        again.caches.extend(before.caches)
        return again

    def _finish_stages(self, grace: float | None, *, every: bool) -> None:
        """Wait for the stages in flight, or those worth it; new ones may begin meanwhile, and are given up.

        A pause gives up all.
        """
        began = time.monotonic()
        attempt = self._attempt
        flying = list(self._stages().values())
        while attempt is not None and self._attempt is attempt and not self._over.is_set():
            # The lock is given up, so that the query may end.
            self._changing.release()
            try:
                waited = time.monotonic() - began
                flying = [s for s in flying if not s.finished and (every or self._worth_waiting(s, waited))]
                if not flying or (grace is not None and waited > grace):
                    break
                time.sleep(_POLL_SECONDS)
            finally:
                self._changing.acquire()
        self._must_run("suspend")

    def _worth_waiting(self, stage: SparkStage, waited: float) -> bool:
        """Whether to go on waiting for a stage in flight.

        One that gets on has more and more at stake. One that does not, because others that are not worth it have the
        cores, is given up in time.
        """
        stake = states.at_stake(self._user, stage)
        return stake > 0 and waited < _MOMENT + 2 * stake

    def _may_move(self) -> None:
        """Refuse, before anything is stopped, what cannot be planned again elsewhere."""
        refuse(self._planned.reader, self._planned.root, self._planned.analyzed)
        self._planned.program.as_json()

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
        with ExitStack() as last:  # whatever fails here, nobody waits for ever
            last.callback(self._over.set)
            if self._origin is not None:
                last.callback(self._origin.claim.release)
            last.callback(self._planned.release)
            self._status = status
            self._ended = time.monotonic()

    # State -------------------------------------------------------------------------------------------------------

    def _stages(self) -> dict[Pipeline, SparkStage]:
        """The stages so far; those of an earlier attempt until their rows are exchanged again."""
        found = {stage.pipeline: stage for stage in self._planned.stages()}
        for pipeline, stage in self._kept.items():
            if pipeline not in found or not found[pipeline].finished:
                found[pipeline] = stage
        return found

    def _finished(self) -> list[SparkStage]:
        return [stage for stage in self._stages().values() if stage.finished and states.writable(stage)]

    def _carried(self) -> dict[Pipeline, states.StageState]:
        """State that came with a ticket and stands in the plan."""
        if self._origin is None:
            return {}
        inside = set(self._planned.scans.values())
        return {state.pipeline: state for state in self._origin.ticket.states if state.pipeline in inside}

    def _needed(self, finished: Collection[Pipeline]) -> list[Pipeline]:
        return needed(self._planned, finished)

    def _needed_bytes(self) -> int:
        held = {stage.pipeline: stage for stage in self._finished()}
        carried = self._carried()
        taken = worth(self._user, self._planned, held, carried)
        return sum(states.size_of(held[p])[0] if p in held else carried[p].bytes for p in taken)

    def _write(self, folder: Folder, finished: Collection[SparkStage]) -> Ticket:
        """Write a ticket of the stages given: state first, the manifest last."""
        held = {stage.pipeline: stage for stage in finished}
        carried = self._carried()
        known = self.progress()
        io = states.io_session(self._user)

        def one(numbered: tuple[int, Pipeline]) -> states.StageState:
            number, pipeline = numbered
            name = f"{ticket.STATE}/{number}"
            if pipeline in held:
                return states.write(io, folder, name, held[pipeline])
            assert self._origin is not None
            return states.copy(io, self._origin.folder, carried[pipeline], folder, name)

        with ThreadPoolExecutor(_WRITERS) as pool:
            written = list(pool.map(one, enumerate(worth(self._user, self._planned, held, carried))))
        below = len(self._planned.depends.keys() - {None} - held.keys() - carried.keys())
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
            "inputs": self._all_inputs().as_json(),
            "states": [state.as_json() for state in written],
            "progress": {"finished": known.total - 1 - below, "total": known.total, "seconds": known.seconds},
        }
        folder.publish(ticket.MANIFEST, ticket.sealed(manifest))
        return Ticket(folder.address, manifest)

    def _all_inputs(self) -> Inputs:
        """What the whole query reads."""
        return self._inputs or inputs_of(self._planned.reader, self._planned.root)


def _held(spark: SparkSession, stage: SparkStage) -> Callable[[], Any]:
    return lambda: states.rows_of(spark, stage)


def _exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else ExecutionError("INTERRUPTED", str(error))
