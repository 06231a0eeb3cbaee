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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from headrace.plan.pipelines import State
from headrace.runtime import Runtime
from headrace.store import Transaction
from headrace.types import arrow_schema
from headrace.view.compiled import ContinuousView
from headrace.view.reading import Answers

WORTH = 4
"""How many times its groups a state's appended rows are when they are merged."""
TOGETHER = 16
"""States merged in one epoch, at most: queries of all of them wait meanwhile."""
BACKLOG = 8
"""How many times over its limit a queue may be before inserts wait for it to be merged."""


@dataclass(eq=False)
class _Queue:
    """What waits to be merged into one state."""

    relation: str
    view: ContinuousView
    state: State
    rows: int
    """Rows appended since the last merge: these at most."""
    groups: int
    """Rows that merge left, or more if there are known to be more."""


class Compaction:
    """Keeps the appended rows of every state short."""

    def __init__(self, runtime: Runtime, views: Mapping[str, ContinuousView], answers: Answers) -> None:
        self._runtime = runtime
        self._views = views
        self._answers = answers
        self._queues: dict[str, _Queue] = {}
        self._counting = threading.Lock()

    def after(self, appended: Mapping[str, int], groups: Mapping[str, int]) -> None:
        """Merge where it is due, now that an insert has appended so many rows to these state relations.

        ``groups`` is how many groups they have at least, as far as the insert knows.
        """
        due: list[_Queue] = []
        for relation, rows in appended.items():
            queue = self._queue(relation, rows)
            if queue is None:
                continue  # dropped since the insert was committed
            queue.groups = max(queue.groups, groups.get(relation, 0))
            if self._is_due(queue, BACKLOG):
                self._try([queue], wait=True)
            elif self._is_due(queue):
                due.append(queue)
        for at in range(0, len(due), TOGETHER):
            self._try(due[at : at + TOGETHER], wait=False)

    def _is_due(self, queue: _Queue, times: int = 1) -> bool:
        # Merging costs as much as there are groups: it waits for rows enough to be worth it.
        return queue.rows > times * max(self._runtime.settings.compact_rows, WORTH * queue.groups)

    def _try(self, queues: Sequence[_Queue], *, wait: bool) -> None:
        """Merge, or leave it to the next insert: the rows are committed, and what fails now is not their error."""
        if len(queues) > 1:
            try:
                self._merge(queues, wait=wait)
            except Exception:
                for queue in queues:  # one that cannot be merged must not keep the others from it
                    self._try([queue], wait=wait)
            return
        with self._runtime.tidying.after(f"merging {queues[0].relation}"):
            self._merge(queues, wait=wait)

    def _merge(self, queues: Sequence[_Queue], *, wait: bool) -> None:
        """Merge states in one epoch; one that a query reads is left out, unless told to wait."""
        version = self._runtime.catalog.version
        taken: dict[_Queue, int] = {}

        def work(tx: Transaction) -> dict[_Queue, tuple[int, int]]:
            done: dict[_Queue, tuple[int, int]] = {}
            for queue in due:
                # The writer knows of a view dropped or begun again before this process's views do.
                known = self._views.get(queue.view.name.lower()) is queue.view
                if known and self._runtime.writer_version == version:
                    rows = self._answers.merged(tx, queue.view, queue.state)
                    tx.replace(queue.relation, rows.cast(arrow_schema(queue.state.schema)))
                    with self._counting:  # inserts that are committed after this count again
                        taken[queue], queue.rows = queue.rows, 0
                    done[queue] = int(rows.num_rows), tx.epoch
            if not done:
                tx.unchanged()
            return done

        with ExitStack() as held:
            free = [q for q in queues if held.enter_context(self._answers.compacting(q.view, wait=wait))]
            due = [q for q in free if self._is_due(q)]  # others who waited for the same query may have done it
            if not due:
                return
            try:
                done = self._runtime.store.commit(work, label=f"compact {', '.join(q.relation for q in due)}")
            except BaseException:
                with self._counting:
                    for queue, rows in taken.items():
                        queue.rows += rows
                raise
            for queue, (groups, epoch) in done.items():
                queue.groups = groups
                self._answers.rewritten(queue.view, queue.state, epoch)

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
                    return _Queue(relation, view, state, rows, groups)
        return None
