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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

from headrace.keep.answers import Answers
from headrace.keep.kept import Kept, KeptState
from headrace.runtime import Runtime
from headrace.store import Transaction

WORTH = 4
"""How many times its groups a state's appended rows are when they are merged."""
TOGETHER = 16
"""States merged in one epoch, at most: queries of all of them wait meanwhile."""
BACKLOG = 8
"""How many times over its limit a queue may be before inserts wait for it to be merged."""


@dataclass(eq=False)
class _Queue:
    """What waits to be merged into one state."""

    kept: Kept
    state: KeptState
    rows: int
    """Rows appended since the last merge: these at most."""
    groups: int
    """Rows that merge left, or more if there are known to be more."""


class Compaction:
    """Keeps the appended rows of every state short."""

    def __init__(self, runtime: Runtime, owner: Callable[[int], Kept | None], answers: Answers) -> None:
        self._runtime = runtime
        self._owner = owner
        """Whose a state is, by its reference; None if it is nobody's any more."""
        self._answers = answers
        self._queues: dict[int, _Queue] = {}
        self._counting = threading.Lock()

    def after(self, appended: Mapping[int, int], groups: Mapping[int, int]) -> None:
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

    def now(self, kept: Kept) -> None:
        """Merge all of a relation's states, however little there is to merge."""
        queues = [q for state in kept.states if (q := self._queue(state.ref)) is not None]
        self._merge(queues, wait=True, due_or_not=True)

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
        with self._runtime.tidying.after(f"merging {_label(queues[0])}"):
            self._merge(queues, wait=wait)

    def _merge(self, queues: Sequence[_Queue], *, wait: bool, due_or_not: bool = False) -> None:
        """Merge states in one epoch; one that a query reads is left out, unless told to wait."""
        version = self._runtime.catalog.version
        taken: dict[_Queue, int] = {}
        merged: dict[_Queue, pa.Table] = {}

        def work(tx: Transaction) -> dict[_Queue, tuple[int, int]]:
            done: dict[_Queue, tuple[int, int]] = {}
            for queue in due:
                # The writer knows of a relation dropped or begun again before this process does.
                if self._owner(queue.state.ref) is queue.kept and self._runtime.writer_version == version:
                    rows = self._answers.merged(tx, queue.kept, queue.state).cast(queue.state.schema)
                    queue.state.home.rewrite(tx, queue.state.ref, rows)
                    merged[queue] = rows
                    with self._counting:  # inserts that are committed after this count again
                        taken[queue], queue.rows = queue.rows, 0
                    done[queue] = int(rows.num_rows), tx.epoch
            if not done:
                tx.unchanged()
            return done

        with ExitStack() as held:
            free = [q for q in queues if held.enter_context(self._answers.compacting(q.kept, wait=wait))]
            due = [
                q for q in free if due_or_not or self._is_due(q)
            ]  # others who waited for the same query may have done it
            if not due:
                return
            try:
                done = self._runtime.store.commit(work, label=f"compact {', '.join(map(_label, due))}")
            except BaseException:
                with self._counting:
                    for queue, rows in taken.items():
                        queue.rows += rows
                raise
            for queue, (groups, epoch) in done.items():
                queue.groups = groups
                self._answers.rewritten(queue.kept, queue.state, epoch)
                queue.kept.merged(queue.state, merged[queue])

    def _queue(self, ref: int, appended: int = 0) -> _Queue | None:
        """What waits for a state, ``appended`` rows more than before."""
        known = self._queues.get(ref)
        if known is None or self._owner(ref) is not known.kept:
            found = self._found(ref)
            with self._counting:
                if self._queues.get(ref) is known:
                    if found is not None:
                        self._queues[ref] = found
                    return found  # as the store has it, with what was appended
                known = self._queues[ref]
        with self._counting:
            known.rows += appended
        return known

    def _found(self, ref: int) -> _Queue | None:
        kept = self._owner(ref)
        if kept is None:
            return None
        state = next(s for s in kept.states if s.ref == ref)
        with self._runtime.store.read() as snapshot:
            queued = state.home.queued(snapshot, ref)
        return None if queued is None else _Queue(kept, state, queued[1], queued[0])


def _label(queue: _Queue) -> str:
    return f"{queue.kept.relation.kind} {queue.kept.name} {queue.state.name}"
