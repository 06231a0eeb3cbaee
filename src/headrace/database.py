"""A Headrace database, open: the public interface.

Each method reads as the statement it runs. What a statement changes, it changes
in one commit; if it raises, nothing has changed.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo

import pyarrow as pa

# What is kept: each registers its family, its statement and its listing.
import headrace.sample.listing
import headrace.view.listing
import headrace.view.making  # noqa: F401
from headrace.base.boundary import callback_given, option_given, path_given, public, text_given
from headrace.base.interrupts import at_once, check, interruptible, shielded
from headrace.base.lacking import one_moment
from headrace.base.wording import counted, shown
from headrace.catalog import KINDS, Catalog, Relation, Stream, Table, View, gone
from headrace.engine.session import Session, require_session
from headrace.engine.tasks import Progress
from headrace.engine.worker import Worker
from headrace.engine.workers import require_workers
from headrace.errors import CatalogError, DataError, HeadraceError, Position
from headrace.inside.relations import Inside
from headrace.keep.deferral import Deferral
from headrace.keep.earlier import stored_catalog
from headrace.keep.family import FAMILIES
from headrace.keep.keeper import Keeper
from headrace.plan.nodes import Node
from headrace.plan.rules import optimize
from headrace.rings.home import Rings
from headrace.runtime import Runtime
from headrace.settings import Settings, cores
from headrace.spark.attach import Attachment, Attachments
from headrace.spark.porter import Porter
from headrace.spark.published import publish_catalog
from headrace.sql import statements as s
from headrace.sql.alter import Alter, RenameTo
from headrace.sql.changes import Delete, Merge, Truncate, Update
from headrace.sql.inline_rows import INLINE, InlineRows, inline_rows
from headrace.sql.store_assignment import stored, storing
from headrace.sql.upkeep import Optimize, Vacuum
from headrace.statement.alter import Alterer
from headrace.statement.apply import Applied, Applier
from headrace.statement.batch import Batch, seconds_of
from headrace.statement.by_key import KeyReader, listed
from headrace.statement.captured import Told
from headrace.statement.change import Changed, Changer
from headrace.statement.define import Definer, columns_of
from headrace.statement.explain import describe, explain
from headrace.statement.following import ChangeReader, reader_of
from headrace.statement.load import Loaded, Loader, SentBatch, is_frame, target_of
from headrace.statement.pump import Pumps
from headrace.statement.read import KnownQuery, QueryReader
from headrace.statement.result import Result
from headrace.statement.running_result import RunningResult
from headrace.statement.upkeep import keep_up
from headrace.store import Snapshot, Store
from headrace.store.place import place_of
from headrace.store.writer import closed
from headrace.stream.inbox import rename_in_inbox
from headrace.stream.table_changes import TableChanges
from headrace.table import query
from headrace.table.frames import lasting_frame, lasting_rows_frame
from headrace.types import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.move.ticket import Ticket


_IN_BATCH = (s.Query, s.Insert, s.Copy, s.Explain, s.Show, s.Describe, Update, Delete, Truncate, Merge)
"""The statements that may be parts of a batch."""
T = TypeVar("T")
_PATIENCE = 5.0
"""Told many seconds close() waits for statements of other threads."""


@public
def connect(
    path: str | os.PathLike[str] | None = None, *, spark: SparkSession | None = None, **settings: Any
) -> Database:
    """Open the database in directory ``path``, making it if it is not there; ``None`` is a temporary one.

    Only the last directory of the path is made. ``~`` is the user's home.

    ``spark`` is a session to use; without it, Headrace starts a local one when something
    needs Spark. Further settings are those of :class:`headrace.settings.Settings`.
    """
    with interruptible():
        return Database(path, spark=spark, **settings)


def _close_at_exit(database: weakref.ref[Database], opened_by: int) -> None:
    found = database()
    # One that nobody refers to any more is closed by its parts; that of a process which was forked, by its parent.
    if found is not None and os.getpid() == opened_by:
        with suppress(KeyboardInterrupt):  # it ends anyway
            found._close()


class Database:
    """An open database. Use it as a context manager, or call :meth:`close`."""

    @public
    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, spark: SparkSession | None = None, **settings: Any
    ) -> None:
        given = Settings.of(settings)
        if spark is not None:
            require_session(spark, "connect(spark=…)")
            require_workers(spark)
        zone = spark.conf.get("spark.sql.session.timeZone") if spark is not None else None
        store = Store.open(
            None if path is None else place_of(path),
            settings={"time_zone": given.time_zone} if "time_zone" in settings else {},
            defaults={"time_zone": zone or given.time_zone},
            memory_limit=given.memory_limit,
            durability=given.durability,
            group_ms=given.group_ms,
            accept_state=given.accept_state,
            shared=given.shared,
        )
        chosen = replace(given, time_zone=store.settings["time_zone"])
        session = Session(chosen, spark)
        tls = (chosen.flight_certificate, chosen.flight_key)
        worker = Worker(cores(), chosen.memory_limit)
        self._runtime = Runtime(store, chosen, session, worker, Rings(store.path, store.scratch, chosen.time_zone, tls))
        session.before = self._runtime.refuse_spark
        self._closed = False
        self._users = 0
        self._idle = threading.Condition()
        self._keeper = Keeper(self._runtime)
        self._definer = Definer(self._runtime, self._keeper)
        self._deferral = Deferral(self._keeper, self.in_use)
        self._alterer = Alterer(self._runtime, self._keeper, self._definer, self._deferral)
        self._loader = Loader(self._runtime, self._keeper)
        changes = TableChanges(self._runtime, self._keeper, self._deferral.stir)
        self._runtime.hand_on, self._runtime.is_followed = changes.of, changes.is_followed
        self._pumps = Pumps(self._runtime, self._loader)
        self._attachments = Attachments(store.path)
        self._porter: Porter | None = None
        # Made after the store's own, so run before it: queries end before what they read is closed.
        weakref.finalize(self, _close_at_exit, weakref.ref(self), os.getpid())
        try:
            self._reopen()
            self._inside = Inside(self._runtime, self._keeper)
            self._reader = QueryReader(self._runtime, self._keeper, self._inside, self.in_use, self._deferral)
            self._by_key = KeyReader(self._runtime, self._keeper, self._reader, self._deferral)
            self._changer = Changer(self._runtime, self._reader)
            self._applier = Applier(self._runtime)
            self._porter = Porter(self, self._loader)
            self._deferral.stir()
            check()
        except BaseException:
            self._close()
            raise

    # Public interface

    @public
    def sql(self, text: str, *, progress: Progress | None = None) -> Result:
        """Run one statement."""
        text = text_given(text, "a statement")
        progress = callback_given(progress, "progress")
        try:
            return self._sql(text, progress)
        except CatalogError as error:
            raise self._runtime.session.explain(error) from None

    def _sql(self, text: str, progress: Progress | None) -> Result:
        asked = self._reader.known(text)
        # A lookup in memory is over before anybody could close the database, or want it to end.
        if asked is None and (rows := self._reader.looked_up(text)) is not None:
            return self._result(rows)
        with self.in_use():
            if asked is None:
                inline = inline_rows(text, ZoneInfo(self._runtime.settings.time_zone))
                target = self.catalog.find(inline.name) if inline is not None else None
                if inline is not None and target is not None and (target.is_stream or target.is_table):
                    return self._insert_inline(inline)
                with at_once():
                    statement = s.parse(text)
                if not isinstance(statement, _IN_BATCH):
                    name = re.sub("(?<=.)([A-Z])", r" \1", type(statement).__name__).upper()
                    self._refuse_in_batch(name, getattr(statement, "position", None))
                if not isinstance(statement, s.Query):
                    return self._run(statement, progress)
                asked = self._reader.remember(text, statement)
            return self._answer(asked)

    def _answer(self, asked: KnownQuery) -> Result:
        running = self._reader.ad_hoc(asked)
        if running is not None:
            return RunningResult(running, self._frame)
        return self._result(self._reader.stored(asked))

    @public
    def insert(self, name: str, data: Any) -> Loaded:
        """Insert rows into a stream or table; returns how many. One call is one epoch.

        The number's ``late`` says how many rows came too late for which view (``WITH (retain = …)``).

        ``data`` is an Arrow table, batch or reader, a pandas or Polars frame, a list of
        dicts or tuples, a dict of columns, or a Spark DataFrame.
        """
        name = text_given(name, "the name of a stream or table")
        with self.in_use():
            return self._loader.insert(self._target(name), data)

    @public
    def copy(
        self, name: str, pattern: str | os.PathLike[str], *, progress: Progress | None = None, **options: Any
    ) -> Result:
        """Load files into a stream or table: ``COPY name FROM 'pattern'``."""
        name = text_given(name, "the name of a stream or table")
        given = {k.lower(): option_given(k, v) for k, v in options.items() if v is not None}
        progress = callback_given(progress, "progress")
        statement = s.Copy(name, (), path_given(pattern, "what to copy from"), given, Position(1, 1))
        with self.in_use():
            return self._run(statement, progress)

    @public
    def batch(self, timeout: float | str = 30) -> Batch:
        """Several statements as one: ``with db.batch():`` and what this thread does in the block is one epoch.

        Its statements see what those before them changed; nobody else does until the block ends, and nothing is
        changed if it ends with an error. Others who write wait meanwhile, so after ``timeout`` (seconds, or a text
        such as ``'1 minute'``) a batch that is still open is rolled back. It also begins within that time, or not.
        """
        return Batch(self._runtime, self.in_use, seconds_of(timeout))

    @public
    def apply_changes(
        self,
        name: str,
        data: Any,
        *,
        keys: str | Sequence[str] | None = None,
        op_column: str | None = None,
        sequence_by: str | Sequence[str] | None = None,
        delete_when: str | None = None,
        truncate_when: str | None = None,
        initial: Any = None,
        scd: int = 1,
        format: str | None = None,
        columns: Sequence[str] | None = None,
        except_columns: Sequence[str] | None = None,
        ignore_null_updates: bool = False,
        tombstones: str | timedelta | None = None,
        query_name: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        trigger: Mapping[str, Any] | str | None = None,
    ) -> Applied | Attachment:
        """Apply the changes that another database captured (CDC) to a table, in one commit (docs/cdc.md).

        ``data`` is what :meth:`insert` takes, tuples apart. A streaming DataFrame is applied batch by batch, each once,
        until stopped: then this returns at once, with a handle as of :meth:`attach`, which says what ``checkpoint`` and
        ``trigger`` are; ``query_name`` is its ``name``.

        Rows go by ``keys``, the primary key by default. ``sequence_by`` says which of two changes is later: one that
        comes after a later one is ignored, also in another call. Without it the order of rows and calls counts.
        ``op_column`` says what a row does (I, U, D, T; c, u, d, r, t; insert, update, delete, truncate), or SQL
        conditions do, ``delete_when`` and ``truncate_when``; all others are upserts. ``format="debezium"``: the rows
        are Debezium's messages. ``initial`` are rows that the empty table begins with, loaded once. ``scd=2`` keeps all
        versions, in a table with ``__START_AT`` and ``__END_AT``. ``columns``, or all but ``except_columns``, go into
        the table; what the changes do not have is NULL. With ``ignore_null_updates`` NULL leaves a column as it is.
        ``tombstones`` says for how long deletes are remembered (``'30 days'``), for ever by default.
        """
        given = {k: v for k, v in locals().items() if k in Told.__dataclass_fields__}
        with self.in_use():
            how = Told.of(given)
            table = self._applied_to(text_given(name, "the name of a table"))
            if not (is_frame(data) and data.isStreaming):
                return self._applier.apply(table, data, how, initial)
            number, begins = table.number, self._applier.begins(table, initial, how)

            def feed(_: str, frame: DataFrame, batch: SentBatch) -> int:
                with self.in_use():
                    fed = self.catalog.table_at(number)
                    if fed is None:
                        raise gone(table.name)
                    return self._applier.apply(fed, frame, how, begins, batch).upserted

            with self._runtime.tables_lock:
                return self._attachments.start(
                    data,
                    table,
                    self._made(table),
                    feed,
                    name=query_name,
                    checkpoint=None if checkpoint is None else path_given(checkpoint, "a checkpoint"),
                    trigger=trigger,
                )

    @public
    def get(self, name: str, key: Any, *, version: int | None = None) -> dict[str, Any] | None:
        """The row of a table or view that has this key, as a dict; None if there is none.

        A table's key is its primary key; that of a continuous or materialized view, all that it groups by, which must
        be among its columns. A key of several columns is a tuple of their values, in the order in which the relation
        has the columns, or a mapping by name. NULL is a value like any other: None.

        ``db.get("revenue", ("FRANCE", 1996))`` is ``db.get("revenue", {"nation": "FRANCE", "y": 1996})``. A view that
        is in memory answers in less time than a statement takes to be read. ``version`` reads the row as it was, of
        what keeps its changes (``WITH (keep_changes = '1 day')``).
        """
        name = text_given(name, "the name of a table or view")
        with self.in_use():
            return self._by_key.get(name, key, version)

    @public
    def get_many(self, name: str, keys: Iterable[Any], *, version: int | None = None) -> list[dict[str, Any] | None]:
        """The rows that have these keys, each as of :meth:`get`, in the order of the keys, all of one epoch."""
        name = text_given(name, "the name of a table or view")
        with self.in_use():
            return self._by_key.get_many(name, listed(keys), version)

    @public
    def get_range(
        self,
        name: str,
        low: Any = None,
        high: Any = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
        version: int | None = None,
    ) -> Result:
        """The rows whose keys (see :meth:`get`) are from ``low`` to ``high``, both included, in the order of keys.

        A bound may be the first parts of a key alone: then it bounds these. So ``db.get_range("revenue", "FRANCE",
        "FRANCE")`` reads all of France, and ``db.get_range("revenue", ("FRANCE", 1995), "FRANCE")`` its years from
        1995 on. Without a bound the range is open there. None as a part is NULL, which comes first. ``reverse`` reads
        from the end, ``limit`` so many rows at most; ``version`` reads what was, as :meth:`get` does.
        """
        name = text_given(name, "the name of a table or view")
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise DataError(
                "INVALID_LIMIT", f"{shown(limit)} is no number of rows", hint="give a whole number, or leave it out"
            )
        with self.in_use():
            return self._result(self._by_key.get_range(name, low, high, limit, bool(reverse), version))

    @public
    def changes(self, table: str, since: int | None = None) -> ChangeReader:
        """A reader of the changes of a table or materialized view: rows with ``_epoch`` and ``_weight``, 1 if one
        came and -1 if it went.

        ``since`` is the ``position`` of an earlier reader, or a version. Without it the first rows are the whole table.
        It must keep its changes: ``CREATE TABLE … WITH (keep_changes = '1 day')``, and so for views.
        """
        with self.in_use():
            return reader_of(self._keeper, self.in_use, text_given(table, "the name of a table"), since)

    @public
    def attach(
        self,
        frame: DataFrame,
        stream: str,
        *,
        name: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        trigger: Mapping[str, Any] | str | None = None,
    ) -> Attachment:
        """Feed a stream from a streaming DataFrame, each of its rows once, until stopped.

        Returns at once, with a handle that behaves as Spark's ``StreamingQuery``. The checkpoint is kept with
        the database unless one is given; several queries for one stream need a ``name`` each. ``trigger`` is
        an interval (``'10 seconds'``) or Spark's arguments (``{'availableNow': True}``).
        """
        self._refuse_in_batch("attach")
        with self.in_use(), self._runtime.tables_lock:
            target = self._target(text_given(stream, "the name of a stream"))
            if isinstance(target, Table):
                raise CatalogError(
                    "WRONG_COMMAND_FOR_OBJECT_TYPE",
                    f"{target.name} is a {target.kind}, not a stream",
                    hint="attach feeds streams",
                )
            return self._attachments.start(
                frame,
                target,
                self._made(target),
                self._feed,
                name=name,
                checkpoint=None if checkpoint is None else path_given(checkpoint, "a checkpoint"),
                trigger=trigger,
            )

    @public
    def drain(self) -> None:
        """Take the batches that Spark's sinks left here; raises what keeps one from being taken, if anything does.

        They are taken by themselves as they come: this is for finding out.
        """
        assert self._porter is not None
        self._refuse_in_batch("drain")
        with self.in_use():
            failure = self._porter.drain()
        if failure is not None:
            raise failure

    @public
    def export(self, path: str | os.PathLike[str]) -> Ticket:
        """Copy the database as it is now into a ticket, a new folder; :func:`headrace.open` goes on from it.

        To move it, close this one afterwards: attachments then go on from the ticket, each row once.
        """
        from headrace.move.export import export

        self._refuse_in_batch("export")
        with self.in_use():
            return export(self, path_given(path, "where to export to"))

    @property
    def attachments(self) -> list[Attachment]:
        """The queries that feed streams of this database from this process."""
        return list(self._attachments)

    @public
    def table(self, name: str) -> DataFrame:
        """A relation's rows, as they are now, as a Spark DataFrame; a table's are read where they lie."""
        self._runtime.refuse_spark("a Spark DataFrame")
        relation: Relation = self.catalog.get(text_given(name, "the name of a relation"))
        with self.in_use():
            _ = self._runtime.spark  # which may have to be started: not while a snapshot is open
            frame = self._reader.over_table(relation.name, partial(lasting_frame, self._runtime))
        return self.sql(f"SELECT * FROM {quote(relation.name)}").spark() if frame is None else frame

    @property
    def catalog(self) -> Catalog:
        """The definitions, as a value."""
        return self._runtime.catalog

    @property
    @public
    def spark(self) -> SparkSession:
        """The Spark session of this database; starts Spark if nothing did yet."""
        with interruptible():
            return self._runtime.spark

    @property
    def path(self) -> Path:
        """The directory the database lives in."""
        return self._runtime.store.path

    @public
    def close(self) -> None:
        """Close the database; Spark is stopped if Headrace started it. Closing twice is fine."""
        self._refuse_in_batch("close")
        self._close()

    def _close(self) -> None:
        with interruptible(), shielded(), ExitStack() as steps:
            steps.callback(self._runtime.session.stop)
            steps.callback(self._runtime.store.close)
            steps.callback(self._runtime.rings.close)
            steps.callback(self._runtime.worker.close)
            steps.callback(self._wait_for_users)
            steps.callback(self._pumps.close)
            if hasattr(self, "_reader"):
                steps.callback(self._reader.cancel_all)
            if self._porter is not None:
                steps.callback(self._porter.stop)
            steps.callback(self._attachments.stop)
            if hasattr(self, "_deferral"):
                steps.callback(self._deferral.stop)
            steps.callback(self._runtime.store.end_batches)

    def _wait_for_users(self) -> None:
        with self._idle:
            self._closed = True
            # Native code refuses to be closed while it runs: let statements of other threads end first.
            self._idle.wait_for(lambda: not self._users, timeout=_PATIENCE)

    def __enter__(self) -> Database:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Database({str(self.path)!r}, {len(self.catalog.relations)} relations)"

    # Statements

    def _run(self, statement: s.Statement, progress: Progress | None = None) -> Result:
        match statement:
            case s.Query():
                return self._answer(KnownQuery(statement))
            case s.CreateTableAs():
                return self._defined(self._create_table_as(statement))
            case s.Create():
                said = self._definer.create(statement)
                self._deferral.stir()
                return self._defined(said)
            case s.Drop():
                return self._defined(self._drop(statement))
            case Alter():
                return self._defined(self._alter(statement))
            case s.Insert():
                return self._insert(statement)
            case Update() | Delete() | Truncate() | Merge():
                return self._changed(self._changer.run(statement))
            case s.Copy():
                rows = self._loader.copy(self._target(statement.name, statement.position), statement, progress)
                return self._done(f"{counted(rows, 'row')} copied into {statement.name}{rows.note}")
            case s.Explain():
                return self._result(explain(self._reader, self._keeper, statement.statement), whole=True)
            case s.Show():
                return self._result(self._inside.shown(statement.what), whole=True)
            case Optimize() | Vacuum():
                rows, message = keep_up(self._runtime, statement)
                return Result(rows, message=message)
            case s.Refresh():
                return self._done(self._refresh(statement))
            case s.Describe():
                relation = self.catalog.get(statement.name, position=statement.position)
                return self._result(describe(self._keeper, relation), whole=True)

    def _defined(self, message: str) -> Result:
        assert self._porter is not None
        with self._runtime.tidying.after("telling other processes of the definitions"), self._runtime.tables_lock:
            publish_catalog(self)
        with self._runtime.tidying.after("trying batches again that could not be taken"):
            self._porter.retry()
        return self._done(message)

    def _drop(self, statement: s.Drop) -> str:
        assert self._porter is not None
        found = self.catalog.find(statement.name)
        if found is not None and found.is_stream:
            self._porter.drain()
        with self._runtime.tables_lock:
            dropped = self.catalog.find(statement.name)
            if dropped is not None:
                self._attachments.require_idle(dropped.name, statement.position)
            if dropped is None or not dropped.is_stream:
                return self._definer.drop(statement)
            self._porter.require_idle(dropped.name, statement.position)
            return self._definer.drop(statement)

    def _alter(self, statement: Alter) -> str:
        assert self._porter is not None
        found = self.catalog.find(statement.name)
        if found is None and statement.if_exists:
            return f"{statement.name} does not exist"
        if found is not None and found.is_stream:
            self._porter.drain()
        with self._runtime.tables_lock:
            relation: Relation = self.catalog.get(statement.name, KINDS[statement.kind], position=statement.position)
            if not relation.is_stream:
                return self._alterer.run(statement, relation)
            self._attachments.require_idle(relation.name, statement.position)
            self._porter.require_idle(relation.name, statement.position)
            said = self._alterer.run(statement, relation)
            if isinstance(statement.action, RenameTo):
                with self._runtime.tidying.after(f"telling sinks of {relation.name} what it is called now"):
                    rename_in_inbox(self.path, relation.name, statement.action.name)
            return said

    def _feed(self, stream: str, frame: DataFrame, batch: SentBatch) -> int:
        with self.in_use():
            return self._loader.insert(self._target(stream), frame, batch)

    def _applied_to(self, name: str) -> Table:
        target = self._target(name)
        if not isinstance(target, Table):
            raise CatalogError(
                "WRONG_COMMAND_FOR_OBJECT_TYPE",
                f"{target.name} is a stream, whose rows are not kept",
                hint="apply changes to a table; a stream takes db.insert",
            )
        return target

    def _made(self, relation: Relation) -> int:
        """The epoch a relation was made in."""
        with self._runtime.store.read() as snapshot:
            return next(d.epoch for d in snapshot.definitions() if d.name == relation.name)

    def _refresh(self, statement: s.Refresh) -> str:
        kind = (KINDS[statement.kind],) if statement.kind else ()
        relation: Relation = self.catalog.get(statement.name, *kind, position=statement.position)
        if not relation.is_kept:
            kinds = [family.relation for family in FAMILIES.values()]
            self.catalog.get(statement.name, *kinds, position=statement.position)
            raise CatalogError(
                "VIEW_KEEPS_NOTHING",
                f"{relation.name} reads no stream of its own, so it is computed when it is queried",
                position=statement.position,
                hint="query it; REFRESH is for continuous views",
            )
        if statement.restart:
            return self._definer.restart(relation.name)
        if isinstance(relation, View) and relation.materialized:
            return self._refresh_materialized(relation, statement.full)
        if statement.full:
            raise CatalogError(
                "WRONG_COMMAND_FOR_OBJECT_TYPE",
                f"{relation.name} follows a stream, whose rows are gone: it cannot be computed anew",
                position=statement.position,
                hint=f"REFRESH {relation.kind.upper()} {relation.name} RESTART counts from now",
            )
        rows = self._reader.whole(relation.name)[1].num_rows
        return self._keeper.family(relation).refreshed(self._keeper, self._keeper.get(relation.name), rows)

    def _refresh_materialized(self, view: View, full: bool) -> str:
        steady = not view.refreshing.is_deferred  # whoever changes its tables changes its states
        with self._runtime.tables_lock if steady else nullcontext():
            done = self._deferral.refresh(view.name, "REFRESH", anew=full, always=full, steady=steady)
        if done is None:
            return f"{view.name} is as new as its tables"
        work = "computed anew" if done.how == "full" else f"{counted(done.changed_rows or 0, 'change')} taken in"
        return f"{view.name}: {work} in {1000 * done.seconds:,.1f} ms"

    def _insert(self, statement: s.Insert) -> Result:
        while True:
            target = self._target(statement.name, statement.position)
            with storing(statement.query):
                rows = self._reader.rows(statement)
            # Altered meanwhile, it may have been planned with other columns: their names do not say which they are.
            now = self.catalog.at(target.number)
            if now is target or now is None:
                break
        if statement.overwrite:
            if not isinstance(target, Table):
                raise CatalogError(
                    "WRONG_COMMAND_FOR_OBJECT_TYPE",
                    f"{target.name} is a stream, whose rows are not kept",
                    position=statement.position,
                    hint="INSERT INTO a stream; OVERWRITE is for tables",
                )
            return self._changed(self._changer.overwrite(target, rows))
        return self._inserted(target, self._loader.insert(target, rows))

    def _changed(self, changed: Changed) -> Result:
        return Result(pa.table({"num_affected_rows": [changed.rows]}), message=changed.message)

    def _inserted(self, target: Stream | Table, count: Loaded) -> Result:
        return self._done(f"{counted(count, 'row')} inserted into {target.name}{count.note}")

    def _insert_inline(self, inline: InlineRows) -> Result:
        target = self._target(inline.name, inline.position)
        plan = optimize(stored(inline.source(), target, inline.columns, inline.position))
        with storing():
            rows = query.run_now(self._runtime, plan, query.Leaves({INLINE: inline.rows}, {}))
        return self._inserted(target, self._loader.insert(target, rows))

    def _create_table_as(self, statement: s.CreateTableAs) -> str:
        asked = s.Query(statement.query)
        query_ = KnownQuery(asked)
        with self._runtime.tables_lock:
            if self._definer.exists(statement):
                return f"{statement.name} exists already"
            columns = columns_of(self.plan(asked), statement.name, statement.position)
            table = Table(statement.name, columns, keep_changes=statement.keep_changes)
            running = self._reader.ad_hoc(query_)
            if running is None:
                return self._definer.create_filled(table, self._reader.stored(query_), statement)
        rows = running.answer()  # when a stream pauses: nobody else waits for that
        with self._runtime.tables_lock:
            if self._definer.exists(statement):
                return f"{statement.name} exists already"
            return self._definer.create_filled(table, rows, statement)

    # What EXPLAIN, DESCRIBE and Spark's side ask

    def rows_at(self, name: str) -> tuple[int, pa.Table]:
        """The newest epoch, and a relation's rows in it."""
        return self._reader.whole(name)

    def over_table(self, name: str, work: Callable[[Snapshot, Table], T]) -> T | None:
        """What is made of a table of our own in a snapshot; None if it is another relation."""
        return self._reader.over_table(name, work)

    def plan(self, statement: s.Query | s.Insert) -> Node:
        """The plan of a query, or of the rows an INSERT stores."""
        return self._reader.plan(statement)

    @property
    def runtime(self) -> Runtime:
        return self._runtime

    @property
    def keeper(self) -> Keeper:
        return self._keeper

    def _refuse_in_batch(self, what: str, position: Position | None = None) -> None:
        self._runtime.store.refuse_in_batch(what, "do it before the batch or after it", position)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        batch = self._runtime.store.batch
        with nullcontext() if batch is None else batch.statement(), one_moment(), interruptible():
            with self._idle:
                if self._closed:
                    raise closed()
                self._users += 1
            try:
                yield
            finally:
                with self._idle:
                    self._users -= 1
                    self._idle.notify_all()

    def _target(self, name: str, position: Position | None = None) -> Stream | Table:
        return target_of(self.catalog, name, position)

    def _result(self, rows: pa.Table, *, whole: bool = False) -> Result:
        return Result(rows, whole=whole, spark=self._frame)

    def _frame(self, table: pa.Table) -> DataFrame:
        with interruptible():
            return lasting_rows_frame(self._runtime, table)

    def _done(self, message: str) -> Result:
        return Result(pa.table({}), message=message)

    def _reopen(self) -> None:
        self._runtime.catalog = stored_catalog(self._runtime.store)
        self._runtime.writer_version = self.catalog.version
        for stream in self.catalog.of_kind(Stream):
            if stream.buffer is not None:
                try:
                    self._runtime.rings.open(stream)
                except HeadraceError as error:  # no reason not to open all else; a query of it will say so again
                    warnings.warn(f"stream {stream.name} is not buffered: {error}", stacklevel=2)
