"""SELECT: rows out of the database, all of one epoch.

A query's plan holds under one version of the catalog and is kept until that changes.
Its rows are read in a snapshot that has the very catalog it was planned under.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

import pyarrow as pa

from headrace import query
from headrace.ad_hoc import AdHocQuery
from headrace.catalog import Catalog, Table
from headrace.engine.spark import Relation, leaf
from headrace.errors import HeadraceError, NotYetSupported
from headrace.file_tables import refresh
from headrace.inside import Inside
from headrace.loading import target_of
from headrace.plan.nodes import Node, streams_in
from headrace.plan.pipelines import SplitPlan
from headrace.plan.rules import optimize
from headrace.plan.window import split_window
from headrace.runtime import Runtime
from headrace.sample.drawing import DRAWN, Drawing, lifted, rows_of
from headrace.sample.kept import Samples
from headrace.sql import statements as s
from headrace.sql.binder import Binder
from headrace.store import NotInMemory, Snapshot
from headrace.types import quote
from headrace.view.compiled import ContinuousView
from headrace.view.inlining import inlined
from headrace.view.lookup import Lookup, lookup_of, shape_of
from headrace.view.reading import Answers, Views

_KEPT_QUERIES = 256
"""How many query texts keep their plan."""
_HASTY_ATTEMPTS = 3
"""How often a query takes a newer snapshot where a view's state in memory is newer than its own."""


@dataclass(frozen=True)
class _ByState:
    """A query of one view as a plan over the view's state."""

    view: ContinuousView
    over: query.Prepared
    lookup: Lookup | None
    """What the plan is, if it asks for one group by its key."""


@dataclass(frozen=True)
class _Planned:
    """A query's plan, the catalog version it holds for and the views it reads."""

    version: int
    whole: query.Prepared
    views: Mapping[str, ContinuousView | None]
    everything: Views
    """All continuous views of that version: those it reads may read others."""
    by_state: _ByState | None
    """Over the one view's state instead of its answer, where that is less work."""
    window: SplitPlan | None = None
    """How it is cut, if it reads streams themselves."""
    drawings: tuple[Drawing, ...] = ()
    """Rows to be drawn at random first, at each run."""

    @property
    def lookup(self) -> Lookup | None:
        return self.by_state.lookup if self.by_state is not None else None


class Kept:
    """A query with its plan under some catalog version; one assignment replaces it."""

    def __init__(self, statement: s.Query | s.Insert, text: str = "") -> None:
        self.statement = statement
        self.text = text
        self._planned: _Planned | None = None

    def under(self, version: int) -> _Planned | None:
        planned = self._planned
        return planned if planned is not None and planned.version == version else None

    def keep(self, planned: _Planned) -> _Planned:
        self._planned = planned
        return planned


class Reader:
    """Plans queries and runs them."""

    def __init__(
        self,
        runtime: Runtime,
        views: Mapping[str, ContinuousView],
        answers: Answers,
        samples: Samples,
        inside: Inside,
        in_use: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._runtime = runtime
        self._in_use = in_use
        self._running: set[AdHocQuery] = set()
        """Queries over streams whose windows have not ended."""
        self._numbers = itertools.count(1)
        self._views = views
        self._answers = answers
        self._samples = samples
        self._inside = inside
        self._kept: dict[str, Kept] = {}
        self._shapes: dict[str, Kept] = {}
        """Lookups by the shape of their texts."""

    @property
    def _catalog(self) -> Catalog:
        return self._runtime.catalog

    def known(self, text: str) -> Kept | None:
        """The query of this text, if it was asked lately."""
        return self._kept.get(text)

    def remember(self, text: str, statement: s.Query) -> Kept:
        if len(self._kept) >= _KEPT_QUERIES:
            self._kept.clear()
        self._kept[text] = kept = Kept(statement, text)
        return kept

    def looked_up(self, text: str) -> pa.Table | None:
        """The answer of a query whose like was planned before, if it is a lookup in a state in memory."""
        shape = shape_of(text) if self._shapes else None
        kept = self._shapes.get(shape[0]) if shape is not None else None
        planned = kept.under(self._catalog.version) if kept is not None else None
        by_state = planned.by_state if planned is not None else None
        if shape is None or planned is None or by_state is None or by_state.lookup is None:
            return None
        return self._glanced(planned, by_state.view, by_state.lookup.of(shape[1]))

    def _glanced(self, planned: _Planned, view: ContinuousView, lookup: Lookup) -> pa.Table | None:
        """The answer of a lookup, if it takes no snapshot."""
        with self._runtime.store.glance() as glance, suppress(query.Again, NotInMemory):
            if self._runtime.writer_version == planned.version:
                return self._answers.glance(glance, view, lookup)
        return None

    def plan(self, statement: s.Query | s.Insert) -> Node:
        """The plan of a query, or of the rows an INSERT stores, checked for what cannot be asked yet."""
        binder = Binder(self._catalog, self._runtime.analyzer(), self._inside)
        if isinstance(statement, s.Query):
            plan = optimize(binder.query(statement.query))
        else:
            target = target_of(self._catalog, statement.name, statement.position)
            plan = optimize(binder.assignment(statement.query, target, statement.columns, statement.position))
        return plan

    def rows(self, asked: Kept | s.Query | s.Insert) -> pa.Table:
        """The rows of a query, or those an INSERT stores; a query of streams is waited for."""
        kept = asked if isinstance(asked, Kept) else Kept(asked)
        query_ = self.ad_hoc(kept)
        if query_ is not None:
            return query_.answer()
        return self.stored(kept)

    def stored(self, kept: Kept) -> pa.Table:
        """The rows of a query that :meth:`ad_hoc` says reads no stream."""
        planned = kept.under(self._catalog.version)
        if planned is not None and planned.by_state is not None and planned.by_state.lookup is not None:
            found = self._glanced(planned, planned.by_state.view, planned.by_state.lookup)
            if found is not None:
                return found
        return self._rows_at(kept)[1]

    def ad_hoc(self, kept: Kept) -> AdHocQuery | None:
        """The query, begun, if it reads streams themselves."""
        version = self._catalog.version
        planned = kept.under(version) or self._plan_anew(version, kept)
        if planned.window is None:
            return None
        query_ = AdHocQuery(self._runtime, planned.window, next(self._numbers), self._rows_of, self._finished)
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
        return self._finished(plan, {})

    def _finished(self, plan: Node, states: Mapping[tuple[str, str], pa.Table]) -> pa.Table:
        """The rows of a plan over these states and whatever else it reads, as of now."""
        prepared = query.Prepared(self._runtime, plan)
        everything = dict(self._views)
        views = {scan.relation: everything.get(scan.relation.lower()) for scan in prepared.scans}
        planned = _Planned(self._catalog.version, prepared, views, everything, None)
        refresh(self._runtime, self._file_tables(planned))
        for attempt in itertools.count():
            with self._runtime.store.read() as snapshot, suppress(query.Again):
                return self._run_over(snapshot, planned, patient=attempt >= _HASTY_ATTEMPTS, states=states)
        raise AssertionError("never ends without an answer")

    def whole(self, name: str) -> tuple[int, pa.Table]:
        """The newest epoch, and all rows of a relation in it."""
        statement = s.parse(f"SELECT * FROM {quote(name)}")
        assert isinstance(statement, s.Query)
        return self._rows_at(Kept(statement))

    def _rows_at(self, kept: Kept) -> tuple[int, pa.Table]:
        """The rows of a query and their epoch, planned under the very catalog its snapshot has.

        Another thread may change definitions at any time. The writer's version moves before such a
        change is committed, so a snapshot taken before it moved has the catalog we planned under.
        """
        for attempt in itertools.count():
            version = self._catalog.version
            planned = kept.under(version) or self._plan_anew(version, kept)
            refresh(self._runtime, self._file_tables(planned))
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

    def _plan_anew(self, version: int, kept: Kept) -> _Planned:
        planned = kept.keep(self._planned(version, kept.statement))
        shape = shape_of(kept.text) if planned.lookup is not None else None
        if shape is not None and planned.lookup is not None and planned.lookup.asks_for(shape[1]):
            if len(self._shapes) >= _KEPT_QUERIES:
                self._shapes.clear()
            self._shapes[shape[0]] = kept
        return planned

    def _planned(self, version: int, statement: s.Query | s.Insert) -> _Planned:
        plan, drawings = lifted(self._runtime, self.plan(statement))
        whole = query.Prepared(self._runtime, plan)
        everything = dict(self._views)
        if streams_in(whole.plan) or any(streams_in(d.child.plan) for d in drawings):
            _refuse_samples(whole, drawings)
            return _Planned(version, whole, {}, everything, None, split_window(whole.plan))
        scans = [scan for part in (whole, *(d.child for d in drawings)) for scan in part.scans]
        views = {scan.relation: everything.get(scan.relation.lower()) for scan in scans if scan.kind == "view"}
        by_state = None
        if (found := inlined(whole.plan, views)) is not None:
            view, over = found
            lookup = lookup_of(over, {state.name: state for state in view.plan.states})
            by_state = _ByState(view, query.Prepared(self._runtime, over), lookup)
        return _Planned(version, whole, views, everything, by_state, drawings=drawings)

    def _file_tables(self, planned: _Planned) -> list[Table]:
        """The tables over files a query reads, by itself or through continuous views."""
        parts = (planned.whole, *(d.child for d in planned.drawings))
        names = {scan.relation for part in parts for scan in part.scans if scan.kind == "table"}
        below = [view for view in planned.views.values() if view is not None]
        while below:
            view = below.pop()
            names.update(view.upper_tables)
            below += [planned.everything[name.lower()] for name in view.upper_views]
        found = [self._catalog.find(name) for name in sorted(names)]
        return [t for t in found if isinstance(t, Table) and t.files is not None]

    def _run_over(
        self,
        snapshot: Snapshot,
        planned: _Planned,
        *,
        patient: bool,
        states: Mapping[tuple[str, str], pa.Table] | None = None,
    ) -> pa.Table:
        everything, by_state = planned.everything, planned.by_state
        if by_state is not None and by_state.lookup is not None:
            rows = self._answers.find(snapshot, by_state.view, by_state.lookup, patient=patient)
            if rows is not None:
                return rows
        if by_state is not None and not self._answers.is_fresh(snapshot, by_state.view, everything):
            with self._answers.lock(by_state.view.name):
                leaves = self._answers.states(snapshot, by_state.view, patient=patient)
                return query.run(self._runtime, snapshot, by_state.over, leaves)
        arrow: dict[Relation, pa.Table] = dict(states or {})
        for drawing in planned.drawings:
            self._read_leaves(snapshot, planned, drawing.child, arrow, patient)
            leaves = query.Leaves(arrow, {})
            arrow[DRAWN, drawing.name] = rows_of(self._runtime, snapshot, drawing, leaves)
        self._read_leaves(snapshot, planned, planned.whole, arrow, patient)
        return query.run(self._runtime, snapshot, planned.whole, query.Leaves(arrow, {}))

    def _read_leaves(
        self,
        snapshot: Snapshot,
        planned: _Planned,
        prepared: query.Prepared,
        arrow: dict[Relation, pa.Table],
        patient: bool,
    ) -> None:
        """The rows of a plan's leaves that are no tables, as of the snapshot, added to those that are there."""
        for scan in prepared.scans:
            if leaf(scan) in arrow:
                continue
            if scan.kind == "system":
                arrow[leaf(scan)] = self._inside.rows(snapshot, scan.relation)
            if scan.kind == "sample":
                arrow[leaf(scan)] = self._samples.table(snapshot, scan.relation)
            view = planned.views[scan.relation] if scan.kind == "view" else None
            if view is not None:
                arrow[leaf(scan)] = self._answers.rows(snapshot, view, planned.everything, patient=patient)


def _refuse_samples(whole: query.Prepared, drawings: Sequence[Drawing]) -> None:
    """A query of a stream itself runs while rows come: what it draws, or reads of a sample, would be of no one time."""
    if drawings or any(scan.kind == "sample" for scan in whole.scans):
        raise NotYetSupported(
            "a sample in a query of a stream itself",
            hint="keep a sample of the stream, CREATE SAMPLE s OF stream SIZE n, and query that",
        )
