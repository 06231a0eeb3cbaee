"""Moving a running query: suspend, snapshot, resume elsewhere (004; 000 chapter 6; docs/move.md).

* ``plan.py``: which finished work is still needed and where it goes, as pure functions over a tree.
* ``spark_plans.py``, ``java_aid.py``: that tree of Spark's plan, and Spark's plan with state in it.
* ``program.py``, ``planned.py``, ``inputs.py``: a query planned again elsewhere, under the same settings and inputs.
* ``states.py``, ``files.py``, ``ticket.py``, ``claim.py``: state and all else in a folder, on any filesystem.
* ``contents.py``: what a ticket that somebody else has written may contain.
* ``query.py``, ``attempt.py``, ``selection.py``, ``priority.py``, ``progress.py``, ``advice.py``: the running query.
* ``commands.py``, ``runs.py``, ``listing.py``: the command line; ``export.py``: whole databases.

This room alone uses the JVM handle of a classic session.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

from headrace.base.boundary import public
from headrace.base.wording import shown
from headrace.engine.session import require_session
from headrace.errors import HeadraceError, StoreError
from headrace.move import claim, states
from headrace.move.contents import not_trusted
from headrace.move.inputs import Inputs, inputs_of
from headrace.move.planned import Planned, plan, plan_as, plan_differs
from headrace.move.priority import enter
from headrace.move.program import classic, of_json, program_of, session_for
from headrace.move.query import RunningQuery
from headrace.move.ticket import Ticket, load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.move.files import Folder
    from headrace.move.program import Builder, Program

__all__ = ["RunningQuery", "Ticket", "resume", "run"]


@public
def run(
    spark: SparkSession | DataFrame,
    query: str | Builder | None = None,
    *,
    start: bool = True,
    priority: str | None = None,
    yield_to: str | None = None,
) -> RunningQuery:
    """Run a query so that it can be moved: SQL, a function from a session to a DataFrame, or a DataFrame.

    SQL may be a script whose last statement is the query, and whose others make temporary views or settings. A query
    that says ``yield_to="x"`` makes room for queries run with ``priority="x"``: it pauses, and goes on after them.
    """
    session: Any = getattr(spark, "sparkSession", spark)
    require_session(session, "headrace.run(spark, query)")
    classic(session)
    if priority is not None and priority == yield_to:
        raise HeadraceError(
            "USAGE", f"a query cannot yield to its own class, {shown(priority)}", hint="name another class"
        )
    program = program_of(spark if query is None else query)
    running = RunningQuery(
        session, plan(program, session_for(session)), entering=lambda query: enter(query, priority, yield_to)
    )
    return running.start() if start else running


@public
def resume(
    spark: SparkSession,
    ticket: str | Ticket | None = None,
    *,
    query: DataFrame | Builder | None = None,
    keep: bool = False,
    on_mismatch: Literal["error", "restart"] = "error",
    trust: bool = False,
) -> RunningQuery:
    """Go on with a suspended query, in any classic session of the same Spark version.

    A ticket that this process has not written may only read and compute (docs/security.md); with ``trust`` it may do
    whatever the query did where it began: run Python functions, load classes, write its answer to files.

    The ticket is used up when the query has finished, unless ``keep``. If its inputs have changed, its files are
    damaged or the query is planned differently here, that is an error, or with ``on_mismatch="restart"`` the query
    runs from the beginning. A DataFrame is given again as ``query``.
    """
    require_session(spark, "headrace.resume(spark, ticket)")
    classic(spark)
    if on_mismatch not in ("error", "restart"):
        raise HeadraceError("USAGE", f"on_mismatch is {shown(on_mismatch)}", hint='it is "error" or "restart"')
    if ticket is None:
        raise HeadraceError("USAGE", "no ticket is given", hint="headrace.resume(spark, ticket)")
    folder, found = load(spark, ticket)
    manifest = found.manifest
    if manifest["kind"] != "query":
        raise StoreError("NOT_A_TICKET", f"{folder.address} holds a database", hint="use headrace.open(ticket)")
    own = isinstance(ticket, Ticket) and ticket.manifest == manifest
    untrusted = None if trust or own else folder.address
    if untrusted is not None and manifest["to"] is not None:
        raise not_trusted(untrusted, f"writes its answer to {manifest['to']}")
    program = of_json(manifest["query"], query, untrusted)
    held = claim.claim(folder)
    mismatch: HeadraceError | None = None
    with ExitStack() as unless_it_runs:
        unless_it_runs.callback(held.release)
        load(spark, ticket)  # whoever had it before may have used it up meanwhile
        planned = _planned(spark, found, program, untrusted)
        unless_it_runs.callback(planned.release)
        try:
            planned = _with_state(spark, folder, found, planned)
        except StoreError as error:
            if on_mismatch == "error":
                raise
            mismatch = error
        origin = claim.Origin(folder, found, held, keep)
        running = RunningQuery(spark, planned, to=manifest["to"], origin=origin, restarted=mismatch).start()
        unless_it_runs.pop_all()
    return running


def _planned(spark: SparkSession, found: Ticket, program: Program, untrusted: str | None) -> Planned:
    """The query planned as it was, under the settings it had."""
    manifest = found.manifest
    cached = [tuple(path) for path in manifest["plan"]["cached"]]
    try:
        pristine = session_for(spark, manifest["settings"], untrusted)
        return plan_as(manifest["plan"]["identity"], lambda: plan(program, pristine, cached, fresh=True))
    except HeadraceError as error:
        if error.hint is None:
            error.hint = "make the temporary views and functions the query reads in this session first"
        raise


def _with_state(spark: SparkSession, folder: Folder, found: Ticket, planned: Planned) -> Planned:
    """The plan with the ticket's state in it, once everything is as the ticket says."""
    version = found.manifest["spark"]
    if str(spark.version) != version:
        raise StoreError(
            "SPARK_VERSION_DIFFERS",
            f"the query was suspended by Spark {version}, and this is {spark.version}",
            hint=f'resume it with Spark {version}, or with on_mismatch="restart"',
        )
    Inputs.of_json(found.manifest["inputs"]).check(inputs_of(planned.reader, planned.root))
    if planned.root.identity != found.manifest["plan"]["identity"]:
        raise plan_differs("its operators are not those the ticket was written for")
    held = found.states
    states.check(folder, held)
    io = states.io_session(spark)
    rows = {state.pipeline: states.reader(io, folder, state) for state in held}
    return planned.with_state(rows, {state.pipeline: state.types for state in held})
