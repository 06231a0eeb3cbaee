"""A Headrace database, open: the public interface.

Each method reads as the statement it runs. What a statement changes, it changes
in one commit; if it raises, nothing has changed.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from headrace import catalog as definitions
from headrace import query
from headrace.catalog import Catalog, Relation, Stream, Table, View
from headrace.definition import Definer, columns_of
from headrace.engine.analyzer import SparkAnalyzer
from headrace.engine.session import Session
from headrace.engine.tasks import Progress
from headrace.engine.worker import Worker
from headrace.errors import CatalogError, HeadraceError, NotYetSupported, Position, SqlError
from headrace.explain import describe, explain, show
from headrace.file_tables import refresh, refuse_rows
from headrace.inside import Inside
from headrace.loading import Batch, Loaded, Loader
from headrace.plan.nodes import Node, streams_in
from headrace.plan.rules import optimize
from headrace.plan.split import SplitPlan
from headrace.result import Result
from headrace.runtime import Runtime
from headrace.settings import Settings, cores
from headrace.spark.attach import Attachment, Attachments
from headrace.spark.porter import Porter
from headrace.spark.published import publish_catalog
from headrace.sql import statements as s
from headrace.sql.binder import Binder, stored
from headrace.sql.inline_rows import INLINE, InlineRows, inline_rows
from headrace.store import Snapshot, Store
from headrace.store.writer import closed
from headrace.types import quote
from headrace.view.compiled import ContinuousView, reopen
from headrace.view.inlining import inlined
from headrace.view.reading import Answers, Views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_KEPT_QUERIES = 256
"""How many query texts keep their plan."""
_HASTY_ATTEMPTS = 3
"""How often a query takes a newer snapshot where a view's state in memory is newer than its own."""
_PATIENCE = 5.0
"""How many seconds close() waits for statements of other threads."""


def connect(
    path: str | os.PathLike[str] | None = None, *, spark: SparkSession | None = None, **settings: Any
) -> Database:
    """Open the database in directory ``path``, making it if it is not there; ``None`` is a temporary one.

    ``spark`` is a session to use; without it, Headrace starts a local one when something
    needs Spark. Further settings are those of :class:`headrace.settings.Settings`.
    """
    return Database(path, spark=spark, **settings)


class Database:
    """An open database. Use it as a context manager, or call :meth:`close`."""

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, spark: SparkSession | None = None, **settings: Any
    ) -> None:
        given = Settings.of(settings)
        zone = spark.conf.get("spark.sql.session.timeZone") if spark is not None else None
        store = Store.open(
            None if path is None else Path(path),
            settings={"time_zone": given.time_zone} if "time_zone" in settings else {},
            defaults={"time_zone": zone or given.time_zone},
            memory_limit=given.memory_limit,
            durability=given.durability,
            group_ms=given.group_ms,
            accept_state=given.accept_state,
        )
        chosen = replace(given, time_zone=store.settings["time_zone"])
        session = Session(chosen, spark)
        self._runtime = Runtime(store, chosen, session, Worker(cores(), chosen.memory_limit))
        self._closed = False
        self._users = 0
        self._idle = threading.Condition()
        self._views: dict[str, ContinuousView] = {}
        self._answers = Answers(self._runtime)
        self._queries: dict[str, _Kept] = {}
        self._definer = Definer(self._runtime, self._views, self._answers)
        self._loader = Loader(self._runtime, self._views, self._answers)
        self._attachments = Attachments(store.path)
        self._porter: Porter | None = None
        try:
            self._reopen()
            self._inside = Inside(self._runtime, self._views, self._answers, self._loader)
            self._porter = Porter(self, self._loader)
        except BaseException:
            self.close()
            raise

    # Public interface

    def sql(self, text: str, *, progress: Progress | None = None) -> Result:
        """Run one statement."""
        try:
            return self._sql(text, progress)
        except RecursionError:
            raise SqlError(
                "STATEMENT_TOO_COMPLEX",
                "the statement is nested too deeply",
                hint="split it up: put parts of it into views, or rows into db.insert",
            ) from None

    def _sql(self, text: str, progress: Progress | None) -> Result:
        with self.in_use():
            known = self._queries.get(text)
            if known is None:
                inline = inline_rows(text, ZoneInfo(self._runtime.settings.time_zone))
                if inline is not None and isinstance(self.catalog.find(inline.name), Stream | Table):
                    return self._insert_inline(inline)
                statement = s.parse(text)
                if not isinstance(statement, s.Query):
                    return self._run(statement, progress)
                known = _Kept(statement)
                if len(self._queries) >= _KEPT_QUERIES:
                    self._queries.clear()
                self._queries[text] = known
            return self._result(self._rows(known))

    def insert(self, name: str, data: Any) -> Loaded:
        """Insert rows into a stream or table; returns how many. One call is one epoch.

        The number's ``late`` says how many rows came too late for which view (``WITH (retain = …)``).

        ``data`` is an Arrow table, batch or reader, a pandas or Polars frame, a list of
        dicts or tuples, a dict of columns, or a Spark DataFrame.
        """
        with self.in_use():
            return self._loader.insert(self._target(name), data)

    def copy(
        self, name: str, pattern: str | os.PathLike[str], *, progress: Progress | None = None, **options: Any
    ) -> Result:
        """Load files into a stream or table: ``COPY name FROM 'pattern'``."""
        given = {k.lower(): str(v).lower() if isinstance(v, bool) else str(v) for k, v in options.items()}
        statement = s.Copy(name, (), os.fspath(pattern), given, Position(1, 1))
        with self.in_use():
            return self._run(statement, progress)

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
        with self.in_use(), self._runtime.tables_lock:
            target = self._target(stream)
            if isinstance(target, Table):
                raise CatalogError(
                    "WRONG_RELATION_KIND", f"{target.name} is a table, not a stream", hint="attach feeds streams"
                )
            return self._attachments.start(
                frame,
                target,
                self._made(target),
                self._feed,
                name=name,
                checkpoint=None if checkpoint is None else os.fspath(checkpoint),
                trigger=trigger,
            )

    def drain(self) -> None:
        """Take the batches that Spark's sinks left here; raises what keeps one from being taken, if anything does.

        They are taken by themselves as they come: this is for finding out.
        """
        assert self._porter is not None
        with self.in_use():
            failure = self._porter.drain()
        if failure is not None:
            raise failure

    @property
    def attachments(self) -> list[Attachment]:
        """The queries that feed streams of this database from this process."""
        return list(self._attachments)

    def table(self, name: str) -> DataFrame:
        """A relation's rows, as they are now, as a Spark DataFrame."""
        relation: Relation = self.catalog.get(name)
        if isinstance(relation, Stream):
            raise _bare_stream(relation.name)
        return self.sql(f"SELECT * FROM {quote(relation.name)}").spark()

    @property
    def catalog(self) -> Catalog:
        """The definitions, as a value."""
        return self._runtime.catalog

    @property
    def spark(self) -> SparkSession:
        """The Spark session of this database; starts Spark if nothing did yet."""
        return self._runtime.spark

    @property
    def path(self) -> Path:
        """The directory the database lives in."""
        return self._runtime.store.path

    def close(self) -> None:
        """Close the database; Spark is stopped if Headrace started it. Closing twice is fine."""
        with ExitStack() as steps:
            steps.callback(self._runtime.session.stop)
            steps.callback(self._runtime.store.close)
            steps.callback(self._runtime.worker.close)
            steps.callback(self._wait_for_users)
            if self._porter is not None:
                steps.callback(self._porter.stop)
            steps.callback(self._attachments.stop)

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
                return self._result(self._rows(_Kept(statement)))
            case s.CreateStream() | s.CreateTable() | s.CreateView():
                return self._defined(self._definer.create(statement))
            case s.CreateTableAs():
                return self._defined(self._create_table_as(statement))
            case s.Drop():
                return self._defined(self._drop(statement))
            case s.Insert():
                return self._insert(statement)
            case s.Copy():
                rows = self._loader.copy(self._target(statement.name, statement.position), statement, progress)
                return self._done(f"{rows:,} rows copied into {statement.name}{rows.note}")
            case s.Explain():
                return self._result(explain(self, statement.statement), whole=True)
            case s.Show():
                return self._result(show(self, statement.what), whole=True)
            case s.Refresh():
                return self._done(self._refresh(statement))
            case s.Describe():
                relation = self.catalog.get(statement.name, position=statement.position)
                return self._result(describe(self, relation), whole=True)

    def _defined(self, message: str) -> Result:
        assert self._porter is not None
        with self._runtime.tables_lock:
            publish_catalog(self)
        self._porter.retry()
        return self._done(message)

    def _drop(self, statement: s.Drop) -> str:
        assert self._porter is not None
        if isinstance(self.catalog.find(statement.name), Stream):
            self._porter.drain()
        with self._runtime.tables_lock:
            dropped = self.catalog.find(statement.name)
            if not isinstance(dropped, Stream):
                return self._definer.drop(statement)
            self._attachments.require_idle(dropped.name, statement.position)
            self._porter.require_idle(dropped.name, statement.position)
            return self._definer.drop(statement)

    def _feed(self, stream: str, frame: DataFrame, batch: Batch) -> int:
        with self.in_use():
            return self._loader.insert(self._target(stream), frame, batch)

    def _made(self, relation: Relation) -> int:
        """The epoch a relation was made in."""
        with self._runtime.store.read() as snapshot:
            return next(d.epoch for d in snapshot.definitions() if d.name == relation.name)

    def plan(self, statement: s.Query) -> Node:
        """A query's plan, checked for what cannot be asked yet."""
        plan = optimize(self.binder().query(statement.query))
        for name in sorted(streams_in(plan)):
            raise _bare_stream(name)
        return plan

    def _refresh(self, statement: s.Refresh) -> str:
        view: View = self.catalog.get(statement.name, View, position=statement.position)
        if not view.continuous:
            raise CatalogError(
                "VIEW_KEEPS_NOTHING",
                f"{view.name} reads no stream of its own, so it is computed when it is queried",
                position=statement.position,
                hint="query it; REFRESH is for continuous views",
            )
        if statement.restart:
            return self._definer.restart(view.name)
        read = s.parse(f"SELECT * FROM `{view.name.replace('`', '``')}`")
        assert isinstance(read, s.Query)
        rows = self._rows(_Kept(read)).num_rows
        last = self._answers.last(view.name)
        when = f" as of epoch {last.epoch}, computed in {1000 * last.seconds:,.1f} ms" if last is not None else ""
        return f"{view.name} has {rows:,} row{'' if rows == 1 else 's'}{when}"

    def _insert(self, statement: s.Insert) -> Result:
        target = self._target(statement.name, statement.position)
        return self._inserted(target, self._loader.insert(target, self._rows(_Kept(statement))))

    def _inserted(self, target: Stream | Table, count: Loaded) -> Result:
        return self._done(f"{count:,} row{'' if count == 1 else 's'} inserted into {target.name}{count.note}")

    def _insert_inline(self, inline: InlineRows) -> Result:
        target = self._target(inline.name, inline.position)
        plan = optimize(stored(inline.source(), target, inline.columns, inline.position))
        rows = query.run_now(self._runtime, plan, query.Leaves({INLINE: inline.rows}, {}))
        return self._inserted(target, self._loader.insert(target, rows))

    def _create_table_as(self, statement: s.CreateTableAs) -> str:
        with self._runtime.tables_lock:
            if self._definer.exists(statement):
                return f"{statement.name} exists already"
            query_ = s.Query(statement.query)
            columns = columns_of(self.plan(query_), statement.name, statement.position)
            return self._definer.create_filled(Table(statement.name, columns), self._rows(_Kept(query_)))

    def rows_at(self, name: str) -> tuple[int, pa.Table]:
        """The newest epoch, and a relation's rows in it."""
        statement = s.parse(f"SELECT * FROM {quote(name)}")
        assert isinstance(statement, s.Query)
        return self._rows_at(_Kept(statement))

    def _rows(self, kept: _Kept) -> pa.Table:
        return self._rows_at(kept)[1]

    def _rows_at(self, kept: _Kept) -> tuple[int, pa.Table]:
        """The rows of a query and their epoch, planned under the very catalog its snapshot has.

        Another thread may change definitions at any time. The writer's version moves before such a
        change is committed, so a snapshot taken before it moved has the catalog we planned under.
        """
        for attempt in itertools.count():
            version = self.catalog.version
            planned = kept.under(version) or kept.keep(self._planned(version, kept.statement))
            refresh(self._runtime, self._file_tables(planned.whole, planned.views))
            with self._runtime.store.read() as snapshot:
                if self._runtime.writer_version == version:
                    try:
                        hasty = attempt < _HASTY_ATTEMPTS
                        return snapshot.epoch, self._run_over(snapshot, planned, patient=not hasty)
                    except query.Again:
                        continue
                    except HeadraceError:
                        if self._runtime.writer_version == version:
                            raise
            time.sleep(0.001)
        raise AssertionError("never ends without an answer")

    def _planned(self, version: int, statement: s.Query | s.Insert) -> _Planned:
        whole = query.Prepared(self._runtime, self._plan_of(statement))
        everything = dict(self._views)
        views = {scan.relation: everything.get(scan.relation.lower()) for scan in whole.scans}
        found = inlined(whole.plan, views)
        by_state = None if found is None else (found[0], query.Prepared(self._runtime, found[1]))
        return _Planned(version, whole, views, everything, by_state)

    def _file_tables(self, prepared: query.Prepared, views: Mapping[str, ContinuousView | None]) -> list[Table]:
        """The tables over files a query reads, by itself or through a continuous view."""
        names = {scan.relation for scan in prepared.scans if scan.kind == "table"}
        names.update(name for view in views.values() if view is not None for name in view.upper_tables)
        found = [self.catalog.find(name) for name in sorted(names)]
        return [t for t in found if isinstance(t, Table) and t.files is not None]

    def _plan_of(self, statement: s.Query | s.Insert) -> Node:
        if isinstance(statement, s.Query):
            return self.plan(statement)
        target = self._target(statement.name, statement.position)
        plan = optimize(self.binder().assignment(statement.query, target, statement.columns, statement.position))
        for name in sorted(streams_in(plan)):
            raise _bare_stream(name)
        return plan

    def _run_over(self, snapshot: Snapshot, planned: _Planned, *, patient: bool) -> pa.Table:
        if planned.by_state is not None and not self._answers.is_fresh(
            snapshot, planned.by_state[0], planned.everything
        ):
            filtered, over_state = planned.by_state
            with self._answers.lock(filtered.name):
                leaves = self._answers.states(snapshot, filtered, patient=patient)
                return query.run(self._runtime, snapshot, over_state, leaves)
        arrow: dict[tuple[str, str], pa.Table] = {}
        for scan in planned.whole.scans:
            if scan.kind == "system" and ("system", scan.relation) not in arrow:
                arrow["system", scan.relation] = self._inside.rows(snapshot, scan.relation)
            view = planned.views[scan.relation] if scan.kind == "view" else None
            if view is not None and ("view", scan.relation) not in arrow:
                arrow["view", scan.relation] = self._answers.rows(snapshot, view, planned.everything, patient=patient)
        return query.run(self._runtime, snapshot, planned.whole, query.Leaves(arrow, {}))

    # Shared pieces

    def analyzer(self, known: Mapping[str, str] | None = None) -> SparkAnalyzer:
        """Spark's analyzer; started only if something is asked that is not ``known``."""
        return SparkAnalyzer(self._runtime.session.get, self._runtime.settings.time_zone, known)

    def binder(self) -> Binder:
        """A binder for queries: over this catalog, and what the database says of itself."""
        return Binder(self.catalog, self.analyzer(), self._inside)

    def plan_view(self, statement: s.CreateView) -> tuple[SplitPlan | None, View]:
        """The view a statement would make and how it would be split; nothing is changed."""
        return self._definer.plan_view(statement, self.analyzer())

    def continuous(self, name: str) -> ContinuousView:
        return self._views[name.lower()]

    @property
    def runtime(self) -> Runtime:
        return self._runtime

    @property
    def answers(self) -> Answers:
        return self._answers

    @contextmanager
    def in_use(self) -> Iterator[None]:
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
        relation: Relation = self.catalog.get(name, position=position)
        if isinstance(relation, View):
            raise CatalogError(
                "CANNOT_INSERT_INTO_VIEW",
                f"{relation.name} is a view",
                position=position,
                hint=f"insert into what it reads: {', '.join(relation.reads)}",
            )
        if isinstance(relation, Table):
            refuse_rows(relation, position)
        return relation

    def _result(self, rows: pa.Table, *, whole: bool = False) -> Result:
        def frame(table: pa.Table) -> DataFrame:
            # By position: an answer may have two columns of one name, a Parquet file for Spark may not.
            named = table.rename_columns([f"c{i}" for i in range(table.num_columns)])
            read = self._runtime.spark.read.parquet(str(query.publish(self._runtime, named)))
            return read.toDF(*table.column_names)

        return Result(rows, whole=whole, spark=frame)

    def _done(self, message: str) -> Result:
        return Result(pa.table({}), message=message)

    def _reopen(self) -> None:
        with self._runtime.store.read() as snapshot:
            found = [(d.name, d.kind, d.body) for d in snapshot.definitions()]
            self._runtime.catalog = definitions.load(found)
            for view in self.catalog.views():
                if view.continuous:
                    files = self._definer.static_files(snapshot, view.name)
                    self._views[view.name.lower()] = reopen(
                        view, self.catalog, self.analyzer(view.types), files, self._runtime.settings.time_zone
                    )
        self._runtime.writer_version = self.catalog.version


@dataclass(frozen=True)
class _Planned:
    """A query's plan, the catalog version it holds for and the views it reads."""

    version: int
    whole: query.Prepared
    views: Mapping[str, ContinuousView | None]
    everything: Views
    """All continuous views of that version: those it reads may read others."""
    by_state: tuple[ContinuousView, query.Prepared] | None
    """The plan over the one view's state instead of its answer, where that is less work."""


class _Kept:
    """A query with its plan under some catalog version; one assignment replaces it."""

    def __init__(self, statement: s.Query | s.Insert) -> None:
        self.statement = statement
        self._planned: _Planned | None = None

    def under(self, version: int) -> _Planned | None:
        planned = self._planned
        return planned if planned is not None and planned.version == version else None

    def keep(self, planned: _Planned) -> _Planned:
        self._planned = planned
        return planned


def _bare_stream(name: str) -> NotYetSupported:
    return NotYetSupported(
        f"SELECT from the bare stream {name}",
        hint="a stream keeps no rows; CREATE VIEW over it with a GROUP BY, then SELECT from the view",
    )
