"""SELECT: rows out of the database, all of one epoch.

A query's plan holds under one version of the catalog and is kept until that changes.
Its rows are read in a snapshot that has the very catalog it was planned under.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa

from headrace.base.native import conform
from headrace.catalog import Catalog, Table
from headrace.errors import CatalogError, HeadraceError, NotYetSupported
from headrace.inside.relations import Inside
from headrace.keep.answers import Others
from headrace.keep.deferral import Deferral, Level, level
from headrace.keep.keeper import Keeper
from headrace.keep.kept import Kept
from headrace.keep.lookup import Lookup
from headrace.keep.shortcuts import BY_STATE, ByState, ReadOfState, Texts, glanced
from headrace.plan.nodes import Leaf, Node, is_leaf, streams_in
from headrace.plan.pipelines import SplitPlan
from headrace.plan.refs import KeptRef, Ref, SystemRef, VersionRef
from headrace.plan.rules import optimize
from headrace.plan.window import split_window
from headrace.runtime import Runtime
from headrace.sample.drawing import Drawing, lifted, rows_of
from headrace.sql import statements as s
from headrace.sql.binder import Binder
from headrace.statement.load import target_of
from headrace.store import Snapshot
from headrace.stream.ad_hoc import AdHocQuery
from headrace.stream.window import WindowQuery
from headrace.table import history, query
from headrace.table.files import refresh
from headrace.types import arrow_schema, quote

T = TypeVar("T")

HASTY_ATTEMPTS = 3
"""How often a query takes a newer snapshot where a view's state in memory is newer than its own."""


@dataclass(frozen=True)
class _Planned:
    """A query's plan, the catalog version it holds for and what is kept of what it reads."""

    version: int
    whole: query.Prepared
    kept: Others
    """The kept relations it reads, and those they read."""
    by_state: ByState | None
    """Over the one relation's state instead of its answer, where that is less work."""
    window: SplitPlan | None = None
    """How it is cut, if it reads streams themselves."""
    drawings: tuple[Drawing, ...] = ()
    """Rows to be drawn at random first, at each run."""

    @property
    def parts(self) -> tuple[query.Prepared, ...]:
        return (self.whole, *(d.child for d in self.drawings))

    @property
    def is_alone(self) -> bool:
        """Whether it reads nothing but what is kept."""
        return all(isinstance(scan.ref, KeptRef) for part in self.parts for scan in part.scans)

    def level(self, snapshot: Snapshot) -> Level:
        """Whether what it reads is of one epoch."""
        return level(snapshot, self.kept.values(), alone=self.is_alone)

    def fields(self, scan: Leaf) -> set[str]:
        """What all of the query reads of a leaf."""
        return {f for part in self.parts for s in part.scans if s.ref == scan.ref for f in s.fields}

    @property
    def lookup(self) -> Lookup | None:
        return self.by_state.lookup if self.by_state is not None else None


class KnownQuery:
    """A query with its plan under some catalog version; one assignment replaces it."""

    def __init__(self, statement: s.Query | s.Insert | Callable[[], Node], text: str = "") -> None:
        """A statement, or what makes its plan."""
        self.statement = statement
        self.text = text
        self._planned: _Planned | None = None

    def under(self, version: int) -> _Planned | None:
        planned = self._planned
        return planned if planned is not None and planned.version == version else None

    def keep(self, planned: _Planned) -> _Planned:
        self._planned = planned
        return planned


class QueryReader:
    """Plans queries and runs them."""

    def __init__(
        self,
        runtime: Runtime,
        keeper: Keeper,
        inside: Inside,
        in_use: Callable[[], AbstractContextManager[None]],
        deferral: Deferral,
    ) -> None:
        self._runtime = runtime
        self._deferral = deferral
        self._in_use = in_use
        self._running: set[AdHocQuery] = set()
        """Queries over streams whose windows have not ended."""
        self._numbers = itertools.count(1)
        self._keeper = keeper
        self._answers = keeper.answers
        self._inside = inside
        self._texts = Texts[KnownQuery]()

    @property
    def _catalog(self) -> Catalog:
        return self._runtime.catalog

    def known(self, text: str) -> KnownQuery | None:
        """The query of this text, if it was asked lately."""
        return self._texts.known(text)

    def remember(self, text: str, statement: s.Query) -> KnownQuery:
        return self._texts.remember(text, KnownQuery(statement, text))

    def looked_up(self, text: str) -> pa.Table | None:
        """The answer of a query whose like was planned before, if it is a lookup in a state in memory."""
        like = self._texts.like(text)
        planned = like[0].under(self._catalog.version) if like is not None else None
        lookup = planned.lookup if planned is not None else None
        if like is None or planned is None or lookup is None:
            return None
        return self._glanced(planned, lookup.of(like[1]))

    def _glanced(self, planned: _Planned, lookup: Lookup) -> pa.Table | None:
        assert planned.by_state is not None
        return glanced(self._runtime, self._answers, planned.version, planned.by_state.kept, lookup)

    def plan(self, statement: s.Query | s.Insert) -> Node:
        """The plan of a query, or of the rows an INSERT stores, checked for what cannot be asked yet."""
        binder = self.binder()
        if isinstance(statement, s.Query):
            plan = optimize(binder.query(statement.query))
        else:
            target = target_of(self._catalog, statement.name, statement.position)
            plan = optimize(binder.assignment(statement.query, target, statement.columns, statement.position))
        return plan

    def binder(self) -> Binder:
        """One that knows the schema ``headrace`` and versions of tables, for what is run now and not kept."""
        return Binder(self._catalog, self._runtime.analyzer(), self._inside)

    def rows(self, asked: KnownQuery | s.Query | s.Insert) -> pa.Table:
        """The rows of a query, or those an INSERT stores; a query of streams is waited for."""
        kept = asked if isinstance(asked, KnownQuery) else KnownQuery(asked)
        query_ = self.ad_hoc(kept)
        if query_ is not None:
            return query_.answer()
        return self.stored(kept)

    def stored(self, kept: KnownQuery) -> pa.Table:
        """The rows of a query that :meth:`ad_hoc` says reads no stream."""
        planned = kept.under(self._catalog.version)
        if planned is not None and planned.lookup is not None:
            found = self._glanced(planned, planned.lookup)
            if found is not None:
                return found
        return self._rows_at(kept)[1]

    def ad_hoc(self, kept: KnownQuery) -> AdHocQuery | None:
        """The query, begun, if it reads streams themselves."""
        planned = self._planned_now(kept)
        if planned.window is None:
            return None
        hint = "it waits for rows that others insert: ask it before the batch or after it, or query a view"
        self._runtime.store.refuse_in_batch("a query of a stream itself", hint)
        query_ = AdHocQuery(self._runtime, planned.window, next(self._numbers), self._rows_of, self._ended)
        self._running.add(query_)
        try:
            return query_.start(self._in_use, self._running.discard)
        except BaseException:
            self._running.discard(query_)
            raise

    def cancel_all(self) -> None:
        """End the queries over streams that still run."""
        for running in list(self._running):
            running.cancel()
        for running in list(self._running):
            running.wait(1)

    def _rows_of(self, plan: Node) -> pa.Table:
        """The rows of a plan that reads no stream, as of now."""
        return self._finished(plan)

    def rows_together(
        self, plans: Sequence[Node], over: Kept | None = None, *, changes: bool = False
    ) -> list[pa.Table]:
        """The rows of plans that read no stream, all as of one snapshot; states are those of one kept relation.

        ``changes`` if they say which rows of a table change.
        """
        each = []
        for plan in plans:
            whole, drawings = lifted(self._runtime, plan)
            part = query.Prepared(self._runtime, whole, changes=changes)
            kept = self._kept_of((part, *(d.child for d in drawings)))
            each.append(_Planned(self._catalog.version, part, kept, None, drawings=drawings))
        refresh(self._runtime, [table for planned in each for table in self._file_tables(planned)])
        with self._deferral.reading() as catch_up:
            for attempt in itertools.count():
                behind: list[Kept] = []
                with self._runtime.store.read() as snapshot, suppress(query.Again):
                    behind = [one for planned in each for one in planned.level(snapshot).behind]
                    if not behind:
                        patient = attempt >= HASTY_ATTEMPTS
                        return [self._run_over(snapshot, planned, patient=patient, over=over) for planned in each]
                if behind:
                    catch_up(behind)
        raise AssertionError("never ends without an answer")

    def _ended(self, kept: WindowQuery) -> pa.Table:
        """The answer of a query of streams whose windows have ended."""
        return self._finished(kept.plan.upper, kept)

    def _finished(self, plan: Node, over: Kept | None = None) -> pa.Table:
        """The rows of a plan over states and whatever else it reads, as of now."""
        return self.rows_together([plan], over)[0]

    def whole(self, name: str) -> tuple[int, pa.Table]:
        """The newest epoch, and all rows of a relation in it."""
        statement = s.parse(f"SELECT * FROM {quote(name)}")
        assert isinstance(statement, s.Query)
        return self._rows_at(KnownQuery(statement))

    def over_table(self, name: str, work: Callable[[Snapshot, Table], T]) -> T | None:
        """What is made of a table of our own in a snapshot, for whoever reads it where it lies; None if it is another
        relation."""
        while True:
            version = self._catalog.version
            table = self._catalog.get(name)
            if not isinstance(table, Table) or table.files is not None:
                return None
            with self._runtime.store.read() as snapshot:
                if self._runtime.writer_version == version:
                    return work(snapshot, table)
            time.sleep(0.001)

    def _rows_at(self, kept: KnownQuery) -> tuple[int, pa.Table]:
        """The rows of a query and their epoch, planned under the very catalog its snapshot has.

        Another thread may change definitions at any time. The writer's version moves before such a
        change is committed, so a snapshot taken before it moved has the catalog we planned under.
        """
        with self._deferral.reading() as catch_up:
            for attempt in itertools.count():
                planned = self._planned_now(kept)
                version = planned.version
                refresh(self._runtime, self._file_tables(planned))
                behind: Sequence[Kept] = ()
                with query.reading(self._runtime, planned.parts) as snapshot:
                    if self._runtime.writer_version == version:
                        try:
                            stands = planned.level(snapshot)
                            behind = stands.behind
                            if not behind:
                                hasty = attempt < HASTY_ATTEMPTS
                                rows = self._run_over(snapshot, planned, patient=not hasty)
                                return snapshot.epoch if stands.epoch is None else stands.epoch, rows
                        except query.Again:
                            continue
                        except HeadraceError:
                            if self._runtime.writer_version == version:
                                raise
                if behind:
                    catch_up(behind)
                else:
                    time.sleep(0.001)
        raise AssertionError("never ends without an answer")

    def _planned_now(self, kept: KnownQuery) -> _Planned:
        """The query's plan under the catalog as it is; what is dropped meanwhile is no error of a newer one."""
        while True:
            version = self._catalog.version
            try:
                return kept.under(version) or self._plan_anew(version, kept)
            except CatalogError:
                if self._catalog.version == version:
                    raise

    def _plan_anew(self, version: int, kept: KnownQuery) -> _Planned:
        planned = kept.keep(self._planned(version, kept.statement))
        if planned.lookup is not None:
            self._texts.is_lookup(kept, planned.lookup)
        return planned

    def _planned(self, version: int, statement: s.Query | s.Insert | Callable[[], Node]) -> _Planned:
        made = optimize(statement()) if callable(statement) else self.plan(statement)
        plan, drawings = lifted(self._runtime, made)
        whole = query.Prepared(self._runtime, plan)
        if streams_in(whole.plan) or any(streams_in(d.child.plan) for d in drawings):
            self._refuse_beside_stream(whole, drawings)
            return _Planned(version, whole, {}, None, split_window(whole.plan))
        kept = self._kept_of((whole, *(d.child for d in drawings)))
        return _Planned(version, whole, kept, ByState.of(self._runtime, whole.plan, kept), drawings=drawings)

    def _kept_of(self, parts: Sequence[query.Prepared]) -> Others:
        return self._keeper.with_below(scan.number for part in parts for scan in part.scans if is_leaf(scan, KeptRef))

    def _refuse_beside_stream(self, whole: query.Prepared, drawings: Sequence[Drawing]) -> None:
        """A query of a stream itself runs while rows come: what it draws would be of no one time."""
        if drawings:
            raise NotYetSupported(
                "a sample in a query of a stream itself",
                hint="keep a sample of the stream, CREATE SAMPLE s OF stream SIZE n, and query that",
            )
        for scan in whole.scans:
            if (relation := self._catalog.at(scan.number)) is not None:
                relation.refuse_beside_stream()

    def _file_tables(self, planned: _Planned) -> list[Table]:
        """The tables over files a query reads, by itself or through what is kept."""
        numbers = {scan.number for part in planned.parts for scan in part.scans}
        numbers.update(table.number for kept in planned.kept.values() for table in kept.tables)
        found = map(self._catalog.table_at, sorted(numbers))
        return [t for t in found if t is not None and t.files is not None]

    def _run_over(
        self,
        snapshot: Snapshot,
        planned: _Planned,
        *,
        patient: bool,
        over: Kept | None = None,
    ) -> pa.Table:
        """Run a query in a snapshot; leaves that are states are those of what it is ``over``."""
        by_state = planned.by_state
        if by_state is not None and not (snapshot.is_draft and by_state.kept.lags(snapshot)):
            read = ReadOfState(self._runtime, self._answers, snapshot, by_state, planned.kept, patient)
            for shortcut in BY_STATE:
                if (rows := shortcut(read)) is not None:
                    return rows
        states = query.Leaves({}, {}) if over is None else self._answers.states(snapshot, over)
        arrow: dict[Ref, pa.Table] = {}
        for drawing in planned.drawings:
            self._read_leaves(snapshot, planned, drawing.child, arrow, patient)
            leaves = query.Leaves(arrow, {})
            arrow[drawing.ref] = rows_of(self._runtime, snapshot, drawing, leaves)
        self._read_leaves(snapshot, planned, planned.whole, arrow, patient)
        return query.run(self._runtime, snapshot, planned.whole, replace(states, arrow=arrow))

    def _as_of(self, snapshot: Snapshot, ref: VersionRef) -> pa.Table | None:
        """The rows of a version of what is no table; None if it is one."""
        relation = self._catalog.at(ref.number)
        table = history.of(relation)
        if relation is None or table is None or relation.is_table:
            return None
        version = query.version_of(self._runtime, snapshot, table, ref)
        now = self._keeper.answer(snapshot, relation)
        names = [c.name for c in table.columns]
        text = f"SELECT * FROM {history.source(snapshot, table, version, names, history.NOW)}"
        assert now is not None
        return conform(snapshot.query(text, **{history.NOW: now}), arrow_schema(table.columns))

    def _read_leaves(
        self,
        snapshot: Snapshot,
        planned: _Planned,
        prepared: query.Prepared,
        arrow: dict[Ref, pa.Table],
        patient: bool,
    ) -> None:
        """The rows of a plan's leaves that are no tables, as of the snapshot, added to those that are there."""
        for scan in prepared.scans:
            if scan.ref in arrow:
                continue
            if isinstance(scan.ref, SystemRef):
                arrow[scan.ref] = self._inside.rows(snapshot, scan.ref, planned.fields(scan))
            if isinstance(scan.ref, VersionRef) and (rows := self._as_of(snapshot, scan.ref)) is not None:
                arrow[scan.ref] = rows
            if isinstance(scan.ref, KeptRef):
                kept = planned.kept[scan.number]
                arrow[scan.ref] = self._answers.rows(snapshot, kept, planned.kept, patient=patient)
