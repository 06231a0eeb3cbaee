"""Merging what inserts append: the bound of the queue of 000 §4.2.5.

What inserts have appended to a state since it was last merged is the queue: durable, tagged by
epoch, and in nobody's way. No worker of its own merges it. The insert that tips the scale does,
after its own commit, as 000 has inserts drain the queue; while a query reads the state it leaves
that to a later one. 000 leaves the queue unbounded. Here, once it is :data:`BACKLOG` times over
its limit, every insert waits for the query and the merge: so at most one statement of each
inserting thread stands beyond that.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import duckdb

from headrace.errors import HeadraceError
from headrace.plan.pipelines import State
from headrace.runtime import Runtime
from headrace.store import Transaction
from headrace.types import arrow_schema
from headrace.view.compiled import ContinuousView
from headrace.view.reading import Answers

WORTH = 4
"""How many times its groups a state's appended rows are when they are merged."""
BACKLOG = 8
"""How many times over its limit a queue may be before inserts wait for it to be merged."""


@dataclass(eq=False)
class _Queue:
    """What waits to be merged into one state."""

    view: ContinuousView
    state: State
    rows: int
    """Rows appended since the last merge: these at most."""
    groups: int
    """Rows that merge left."""


class Compaction:
    """Keeps the appended rows of every state short."""

    def __init__(self, runtime: Runtime, views: Mapping[str, ContinuousView], answers: Answers) -> None:
        self._runtime = runtime
        self._views = views
        self._answers = answers
        self._queues: dict[str, _Queue] = {}
        self._counting = threading.Lock()

    def after(self, appended: Mapping[str, int]) -> None:
        """Merge where it is due, now that an insert has appended so many rows to these state relations."""
        for relation, rows in appended.items():
            queue = self._queue(relation, rows)
            if queue is None:
                continue  # dropped since the insert was committed
            # Merging costs as much as there are groups: it waits for rows enough to be worth it.
            limit = max(self._runtime.settings.compact_rows, WORTH * queue.groups)
            if queue.rows > limit:
                # The rows are committed: what fails now is not their error, and the next insert tries again.
                with suppress(HeadraceError, duckdb.Error):
                    self.merge(relation, wait=queue.rows > BACKLOG * limit, above=limit)

    def merge(self, relation: str, *, wait: bool, above: int = 0) -> None:
        """Merge a state's rows if more than ``above`` are queued; while a query reads it, only if told to wait."""
        version = self._runtime.catalog.version
        queue = self._queue(relation)
        if queue is None:
            return
        view, state = queue.view, queue.state
        taken = 0

        def work(tx: Transaction) -> tuple[int, int] | None:
            nonlocal taken
            # The writer knows of a view dropped or begun again before this process's views do.
            if self._runtime.writer_version != version or self._views.get(view.name.lower()) is not view:
                tx.unchanged()
                return None
            rows = self._answers.merged(tx, view, state)
            tx.replace(relation, rows.cast(arrow_schema(state.schema)))
            with self._counting:  # inserts that are committed after this count again
                taken, queue.rows = queue.rows, 0
            return int(rows.num_rows), tx.epoch

        with self._answers.compacting(view, wait=wait) as free:
            if not free or queue.rows <= above:  # others who waited for the same query may have done it
                return
            try:
                done = self._runtime.store.commit(work, label=f"compact {relation}")
            except BaseException:
                with self._counting:
                    queue.rows += taken
                raise
            if done is not None:
                queue.groups, epoch = done
                self._answers.rewritten(view, state, epoch)

    def _queue(self, relation: str, appended: int = 0) -> _Queue | None:
        """What waits for a state relation, ``appended`` rows more than before."""
        known = self._queues.get(relation)
        if known is None or self._views.get(known.view.name.lower()) is not known.view:
            found = self._found(relation)
            with self._counting:
                if self._queues.get(relation) is known:
                    if found is not None:
                        self._queues[relation] = found
                    return found  # as the store has it, with what was appended
                known = self._queues[relation]
        with self._counting:
            known.rows += appended
        return known

    def _found(self, relation: str) -> _Queue | None:
        for view in list(self._views.values()):
            for state in view.plan.states:
                if view.relation(state) == relation:
                    with self._runtime.store.read() as snapshot:
                        if relation.lower() not in snapshot.relations():
                            return None
                        groups, rows = snapshot.queued(relation)
                    return _Queue(view, state, rows, groups)
        return None
