"""The keeper: founds, feeds, merges, reads, restarts, drops and reopens whatever is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.interrupts import Lock
from headrace.catalog import Catalog, Relation
from headrace.engine.places import Choice
from headrace.engine.stage import StateRows
from headrace.engine.work import is_grouped
from headrace.errors import CatalogError
from headrace.keep.answers import Answers, Others
from headrace.keep.compaction import Compaction
from headrace.keep.family import FAMILIES, Family
from headrace.keep.founding import Foundings
from headrace.keep.home import Home
from headrace.keep.kept import Kept, KeptState, Renewal, StageAbove
from headrace.keep.refreshes import Refreshes
from headrace.keep.sides import Sides
from headrace.runtime import Runtime
from headrace.store import Snapshot, Transaction
from headrace.store.transaction import BATCH_ROWS


@dataclass(frozen=True)
class Added:
    """What one commit has added to states."""

    late: Mapping[str, int]
    """How many rows came too late, by relation."""
    filled: Mapping[int, int]
    """The epochs of states that lie merged as they are."""
    above: Mapping[int, pa.Table]
    """What stages above others have added, by state."""


NOTHING_ADDED = Added({}, {}, {})


class Keeper:
    """All that one open database keeps."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.answers = Answers(runtime)
        self._kept: dict[str, Kept] = {}
        self._owners: dict[int, Kept] = {}
        """By the references to their states."""
        self.ran: dict[int, Choice] = {}
        """Where the last insert's work for a state ran, and why there."""
        self._reopening = Lock()
        self.sides = Sides(runtime)
        self.foundings = Foundings()
        self.compaction = Compaction(runtime, self.owner, self.answers)
        self.refreshes = Refreshes()

    # Who there is

    def of(self, relation: Relation) -> Kept | None:
        """The kept relation of a definition, compiled at first need; None if it is no more."""
        kept = self._kept.get(relation.name.lower())
        if kept is not None:
            return kept if kept.relation is relation else None
        with self._reopening:
            kept = self._kept.get(relation.name.lower())
            if kept is None and self.runtime.catalog.find(relation.name) is relation:
                with self.runtime.store.read() as snapshot:
                    kept = self.family(relation).reopened(self, relation, snapshot)
                self.enter(kept)
            return kept if kept is not None and kept.relation is relation else None

    def known(self, relation: Relation) -> Kept | None:
        """The kept relation of a definition if it was needed before."""
        kept = self._kept.get(relation.name.lower())
        return kept if kept is not None and kept.relation is relation else None

    def get(self, name: str) -> Any:
        """The kept relation of this name; :class:`CatalogError` if there is none."""
        relation = self.runtime.catalog.find(name)
        kept = self.of(relation) if relation is not None and relation.is_kept else None
        if kept is None:
            raise CatalogError("TABLE_OR_VIEW_NOT_FOUND", f"{name} is kept no more", hint="ask again")
        return kept

    def with_below(self, numbers: Iterable[int]) -> Others:
        """The kept relations of these numbers, and all that they read at each evaluation."""
        found: dict[int, Kept] = {}
        wanted = list(numbers)
        while wanted:
            number = wanted.pop()
            if number not in found:
                found[number] = self._at(number)
                wanted += [ref.number for ref in found[number].below]
        return found

    def _at(self, number: int) -> Kept:
        relation = self.runtime.catalog.at(number)
        found: Kept = self.get(relation.name if relation is not None else f"relation {number}")
        return found

    def owner(self, state: int) -> Kept | None:
        """Whose a state is, by its reference; None if it is nobody's any more."""
        return self._owners.get(state)

    def family(self, relation: Relation) -> Family:
        return FAMILIES[relation.kind]

    def build_sides(self) -> set[Path]:
        """The files of build sides that are there."""
        with self.runtime.store.read() as snapshot:
            return set(snapshot.files("static_"))

    # Life and death; the definer commits

    @contextmanager
    def begun(self, relation: Relation, plan: Any) -> Iterator[Kept]:
        """The relation compiled, to be founded by the commit of the block."""
        with self.family(relation).begun(self, relation, plan) as kept:
            yield kept

    def enter(self, kept: Kept) -> None:
        """It is committed."""
        before = self._kept.get(kept.key)
        self._kept[kept.key] = kept
        if before is not None:
            self._disown(before)
        self._owners |= {state.ref: kept for state in kept.states}

    def leave(self, kept: Kept) -> None:
        """It is dropped."""
        if self._kept.get(kept.key) is kept:
            del self._kept[kept.key]
        self._disown(kept)

    def _disown(self, kept: Kept) -> None:
        for state in kept.states:
            if self._owners.get(state.ref) is kept:
                del self._owners[state.ref]

    def forget(self, kept: Kept) -> None:
        """Let go of what was kept in memory for a relation that is no more."""
        with self.runtime.tidying.after(f"forgetting what was kept of {kept.name}"):
            self.answers.forget(kept)
            self.forget_sides(kept)

    def forget_sides(self, kept: Kept) -> None:
        """Let go of the build sides that only a relation has that is no more."""
        used = {static.name for other in list(self._kept.values()) for static in other.statics.values()}
        self.sides.forget([s.name for s in kept.statics.values() if s.name not in used])

    # Inserts

    def fed(self, source: Relation, catalog: Catalog) -> list[Kept]:
        """What is kept of a stream or table in this catalog; others may come and go meanwhile."""
        readers = catalog.all_dependents(source.name)
        return [kept for r in readers if r.is_kept and (kept := self.of(r)) is not None]

    def found(self, tx: Transaction, kept: Kept) -> None:
        """Begin a relation, in the commit that defines it."""
        kept.found(tx)
        if kept.first:
            self.add(tx, [kept], {state: [rows] for state, rows in kept.first.items()})

    def add(self, tx: Transaction, fed: Sequence[Kept], rows: StateRows) -> Added:
        """Add an insert's state rows, in its commit, and hand on what they change in states above."""
        homes = {state.ref: state.home for kept in fed for state in kept.states}
        states = {state: pa.concat_tables(tables) for state, tables in rows.items() if tables}
        admissions = [(k, a) for k in fed if (a := k.admit(tx, states)) is not None]
        appended, filled = dict(states), dict[int, int]()
        for state in [state for state, found in rows.items() if _fills(tx, homes[state], state, found)]:
            homes[state].rewrite(tx, state, appended.pop(state), altered=True)
            filled[state] = tx.epoch
        by_home: dict[Home, dict[int, pa.Table]] = {}
        for state, added in appended.items():
            by_home.setdefault(homes[state], {})[state] = added
        for home, together in by_home.items():
            home.append(tx, together)
        above = _handed_on(tx, fed, homes, states)
        for _, admission in admissions:
            admission.settle(tx)
        return Added({kept.name: a.late for kept, a in admissions if a.late}, filled, above)

    def renew(self, tx: Transaction, kept: Kept, renewal: Renewal) -> Added:
        """Have the states of a relation be what changes of its tables make of them, in a commit."""
        if not renewal.is_whole:
            return self.add(tx, [kept], {state: [rows] for state, rows in renewal.rows.items()})
        if kept.answer is not None:  # how its rows change may be kept
            change = _change_of(tx, kept.answer, renewal.rows.get(kept.answer.ref))
            if change.num_rows:
                kept.admit(tx, {kept.answer.ref: change})
        for state in kept.states:
            rows = renewal.rows.get(state.ref, state.schema.empty_table())
            state.home.rewrite(tx, state.ref, rows, altered=True)
        return NOTHING_ADDED

    def after(self, rows: StateRows, added: Added) -> None:
        """Merge what is due, now that an insert has added these state rows."""
        for state, epoch in added.filled.items():
            self.answers.lies_merged(state, epoch)
        appended = {state: sum(t.num_rows for t in tables) for state, tables in rows.items()}
        groups = {state: max((t.num_rows for t in found if is_grouped(t)), default=0) for state, found in rows.items()}
        self.compaction.after(appended | {s: t.num_rows for s, t in added.above.items()}, groups)

    # Queries

    def rows(self, snapshot: Snapshot, name: str, *, patient: bool = True) -> pa.Table:
        """All rows of a kept relation as of a snapshot."""
        known = self.with_below([self.get(name).relation.number])
        return self.answers.rows(snapshot, self.get(name), known, patient=patient)

    def answer(self, snapshot: Snapshot, relation: Relation) -> pa.Table | None:
        """All rows of a relation that keeps its changes, where they are no table's."""
        kept = self.of(relation) if relation.is_kept else None
        return None if kept is None else self.answers.own_rows(snapshot, kept)


def _change_of(tx: Transaction, state: KeptState, new: pa.Table | None) -> pa.Table:
    """What would make of a state's rows these: the last column counts them."""
    old = state.home.merged(tx, state)
    last = old.num_columns - 1
    gone = old.set_column(last, old.schema.field(last), pc.negate(old.column(last)))
    both = pa.concat_tables([gone, *([new] if new is not None else [])])
    change = tx.query(state.merge("__both"), __both=both).cast(state.schema)
    return change.filter(pc.not_equal(change.column(last), 0))


def _handed_on(
    tx: Transaction, fed: Sequence[Kept], homes: Mapping[int, Home], changes: Mapping[int, pa.Table]
) -> dict[int, pa.Table]:
    """Run the stages above what has changed, each once, after all that it reads; returns what they added, by state."""
    stages: dict[int, list[StageAbove]] = {}
    for stage in (stage for kept in fed for stage in kept.above):
        stages.setdefault(stage.state, []).append(stage)
    if not stages:
        return {}
    changed, added = dict(changes), dict[int, pa.Table]()
    graph = {state: {ref for stage in into for ref in stage.reads} for state, into in stages.items()}
    for state in TopologicalSorter(graph).static_order():
        for stage in stages.get(state, ()):
            read = {ref: changed[ref] for ref in stage.reads if ref in changed}
            rows = stage.run(tx, read) if read else None
            if rows is not None and rows.num_rows:
                homes[state].append(tx, {state: rows})
                changed[state] = pa.concat_tables([changed[state], rows]) if state in changed else rows
                added[state] = pa.concat_tables([added[state], rows]) if state in added else rows
    return added


def _fills(tx: Transaction, home: Home, state: int, rows: Sequence[pa.Table]) -> bool:
    """Whether these rows are all of a state that was empty, and need no merge; few are not worth the question.

    Not in a batch, whose next statement may add to them in the same epoch.
    """
    if tx.shared or len(rows) != 1 or rows[0].num_rows <= BATCH_ROWS:
        return False
    return is_grouped(rows[0]) and home.is_empty(tx, state)
