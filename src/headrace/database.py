"""A Headrace database, open: the public interface.

Each method reads as the statement it runs. What a statement changes, it changes
in one commit; if it raises, nothing has changed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace import catalog as definitions
from headrace import query
from headrace.catalog import Catalog, Relation, Stream, Table, View
from headrace.definition import Definer
from headrace.engine.analyzer import SparkAnalyzer
from headrace.engine.session import Session
from headrace.engine.tasks import Progress
from headrace.engine.worker import Worker
from headrace.errors import CatalogError, HeadraceError, NotYetSupported, Position, SqlError
from headrace.explain import describe, explain, show
from headrace.loading import Loader
from headrace.plan.nodes import Node, streams_in
from headrace.plan.rules import optimize
from headrace.plan.split import SplitPlan
from headrace.result import Result
from headrace.runtime import Runtime
from headrace.settings import Settings, cores
from headrace.sql import statements as s
from headrace.sql.binder import Binder
from headrace.store import Snapshot, Store
from headrace.store.writer import closed
from headrace.view.compiled import ContinuousView, reopen
from headrace.view.reading import Answers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_KEPT_QUERIES = 256
"""How many query texts keep their plan."""
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
        )
        chosen = replace(given, time_zone=store.settings["time_zone"])
        session = Session(chosen, spark)
        self._runtime = Runtime(store, chosen, session, Worker(cores(), chosen.memory_limit))
        self._closed = False
        self._users = 0
        self._idle = threading.Condition()
        self._views: dict[str, ContinuousView] = {}
        self._answers = Answers(self._runtime, self._views)
        self._queries: dict[str, _Kept] = {}
        self._definer = Definer(self._runtime, self._views, self._answers)
        self._loader = Loader(self._runtime, self._views)
        try:
            self._reopen()
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
        with self._in_use():
            known = self._queries.get(text)
            if known is None:
                statement = s.parse(text)
                if not isinstance(statement, s.Query):
                    return self._run(statement, progress)
                known = _Kept(statement)
                if len(self._queries) >= _KEPT_QUERIES:
                    self._queries.clear()
                self._queries[text] = known
            return self._result(self._rows(known))

    def insert(self, name: str, data: Any) -> int:
        """Insert rows into a stream or table; returns how many. One call is one epoch.

        ``data`` is an Arrow table, batch or reader, a pandas or Polars frame, a list of
        dicts or tuples, a dict of columns, or a Spark DataFrame.
        """
        with self._in_use():
            return self._loader.insert(self._target(name), data)

    def copy(
        self, name: str, pattern: str | os.PathLike[str], *, progress: Progress | None = None, **options: Any
    ) -> Result:
        """Load files into a stream or table: ``COPY name FROM 'pattern'``."""
        given = {k.lower(): str(v).lower() if isinstance(v, bool) else str(v) for k, v in options.items()}
        statement = s.Copy(name, (), os.fspath(pattern), given, Position(1, 1))
        with self._in_use():
            return self._run(statement, progress)

    def table(self, name: str) -> DataFrame:
        """A relation's rows, as they are now, as a Spark DataFrame."""
        relation: Relation = self.catalog.get(name)
        if isinstance(relation, Stream):
            raise _bare_stream(relation.name)
        return self.sql(f"SELECT * FROM `{relation.name.replace('`', '``')}`").spark()

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
        with self._idle:
            self._closed = True
            # Native code refuses to be closed while it runs: let statements of other threads end first.
            self._idle.wait_for(lambda: not self._users, timeout=_PATIENCE)
        with ExitStack() as steps:
            steps.callback(self._runtime.session.stop)
            steps.callback(self._runtime.store.close)
            steps.callback(self._runtime.worker.close)

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
                return self._done(self._definer.create(statement))
            case s.Drop():
                return self._done(self._definer.drop(statement))
            case s.Insert():
                return self._insert(statement)
            case s.Copy():
                rows = self._loader.copy(self._target(statement.name, statement.position), statement, progress)
                return self._done(f"{rows:,} rows copied into {statement.name}")
            case s.Explain():
                return self._result(explain(self, statement.statement), whole=True)
            case s.Show():
                return self._result(show(self, statement.what), whole=True)
            case s.Describe():
                relation = self.catalog.get(statement.name, position=statement.position)
                return self._result(describe(self, relation), whole=True)

    def plan(self, statement: s.Query) -> Node:
        """A query's plan, checked for what cannot be asked yet."""
        plan = optimize(Binder(self.catalog, self.analyzer()).query(statement.query))
        for name in sorted(streams_in(plan)):
            raise _bare_stream(name)
        return plan

    def _insert(self, statement: s.Insert) -> Result:
        target = self._target(statement.name, statement.position)
        count = self._loader.insert(target, self._rows(_Kept(statement)))
        return self._done(f"{count:,} row{'' if count == 1 else 's'} inserted into {target.name}")

    def _rows(self, kept: _Kept) -> pa.Table:
        """The rows of a query, planned under the very catalog its snapshot has.

        Another thread may change definitions at any time. The writer's version moves before such a
        change is committed, so a snapshot taken before it moved has the catalog we planned under.
        """
        while True:
            version = self.catalog.version
            prepared = kept.under(version)
            if prepared is None:
                prepared = kept.keep(version, query.Prepared(self._runtime, self._plan_of(kept.statement)))
            views = {scan.relation: self._views.get(scan.relation.lower()) for scan in prepared.scans}
            with self._runtime.store.read() as snapshot:
                if self._runtime.writer_version == version:
                    try:
                        return self._run_over(snapshot, prepared, views)
                    except HeadraceError:
                        if self._runtime.writer_version == version:
                            raise
            time.sleep(0.001)

    def _plan_of(self, statement: s.Query | s.Insert) -> Node:
        if isinstance(statement, s.Query):
            return self.plan(statement)
        target = self._target(statement.name, statement.position)
        binder = Binder(self.catalog, self.analyzer())
        plan = optimize(binder.assignment(statement.query, target, statement.columns, statement.position))
        for name in sorted(streams_in(plan)):
            raise _bare_stream(name)
        return plan

    def _run_over(
        self, snapshot: Snapshot, prepared: query.Prepared, views: Mapping[str, ContinuousView | None]
    ) -> pa.Table:
        arrow: dict[tuple[str, str], pa.Table] = {}
        for scan in prepared.scans:
            view = views[scan.relation] if scan.kind == "view" else None
            if view is not None and ("view", scan.relation) not in arrow:
                arrow["view", scan.relation] = self._answers.rows(snapshot, view)
        return query.run(self._runtime, snapshot, prepared, query.Leaves(arrow, {}))

    # Shared pieces

    def analyzer(self, known: Mapping[str, str] | None = None) -> SparkAnalyzer:
        """Spark's analyzer; started only if something is asked that is not ``known``."""
        return SparkAnalyzer(self._runtime.session.get, self._runtime.settings.time_zone, known)

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
    def _in_use(self) -> Iterator[None]:
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


class _Kept:
    """A query with its plan and the catalog version that holds for; one assignment replaces both."""

    def __init__(self, statement: s.Query | s.Insert) -> None:
        self.statement = statement
        self._planned: tuple[int, query.Prepared] | None = None

    def under(self, version: int) -> query.Prepared | None:
        planned = self._planned
        return planned[1] if planned is not None and planned[0] == version else None

    def keep(self, version: int, prepared: query.Prepared) -> query.Prepared:
        self._planned = (version, prepared)
        return prepared


def _bare_stream(name: str) -> NotYetSupported:
    return NotYetSupported(
        f"SELECT from the bare stream {name}",
        hint="a stream keeps no rows; CREATE VIEW over it with a GROUP BY, then SELECT from the view",
    )
