"""Answers of continuous views: merge, run the upper pipeline, keep the result (000 §4.2.4-4.2.5).

A result is kept with the epoch of the last change to anything it rests on: the
view's states, and the tables and views of its upper pipeline. While none of them changes,
a query gets the kept rows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from headrace import query, tables
from headrace.runtime import Runtime
from headrace.store import Snapshot
from headrace.view.compiled import ContinuousView


@dataclass(frozen=True)
class Refresh:
    """What the last evaluation of a view did."""

    epoch: int
    rows: pa.Table
    seconds: float


class Answers:
    """The kept results of all continuous views."""

    def __init__(self, runtime: Runtime, views: Mapping[str, ContinuousView]) -> None:
        self._runtime = runtime
        self._views = views
        self._kept: dict[str, Refresh] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._prepared: dict[str, tuple[ContinuousView, query.Prepared, query.Leaves]] = {}
        self._guard = threading.Lock()
        self.evaluations = 0
        """How often an upper pipeline really ran."""

    def rows(self, snapshot: Snapshot, view: ContinuousView) -> pa.Table:
        """The view's rows as of the snapshot."""
        changed = self._changed(snapshot, view)
        kept = self._kept.get(view.name)
        if kept is not None and kept.epoch == changed:
            return kept.rows
        with self._lock(view.name):
            kept = self._kept.get(view.name)
            if kept is not None and kept.epoch == changed:
                return kept.rows
            started = time.perf_counter()
            rows = self._evaluate(snapshot, view)
            if kept is None or kept.epoch < changed:
                self._kept[view.name] = Refresh(changed, rows, time.perf_counter() - started)
            return rows

    def last(self, view: str) -> Refresh | None:
        return self._kept.get(view)

    def forget(self, view: str) -> None:
        self._kept.pop(view, None)
        self._prepared.pop(view, None)

    def _lock(self, name: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(name, threading.Lock())

    def _changed(self, snapshot: Snapshot, view: ContinuousView) -> int:
        relations = [view.relation(s) for s in view.plan.states] + [tables.tail_of(t) for t in view.upper_tables]
        below = [self._changed(snapshot, self._views[v.lower()]) for v in view.upper_views]
        return max([*(snapshot.last_change(r) for r in relations), *below])

    def _evaluate(self, snapshot: Snapshot, view: ContinuousView) -> pa.Table:
        self.evaluations += 1
        if self._prepared.get(view.name, (None,))[0] is not view:
            merges = {("state", s.name): view.merge_sql(s, snapshot.table(view.relation(s))) for s in view.plan.states}
            self._prepared[view.name] = (view, query.Prepared(self._runtime, view.plan.upper), query.Leaves({}, merges))
        _, prepared, leaves = self._prepared[view.name]
        if view.upper_views:
            rows = {("view", v): self.rows(snapshot, self._views[v.lower()]) for v in view.upper_views}
            leaves = query.Leaves(rows, leaves.sql)
        return query.run(self._runtime, snapshot, prepared, leaves)
