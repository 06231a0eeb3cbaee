"""Changes of tables, handed to what is kept of them: rows with weights, in the commit that changes the table.

A change is the table's rows with a column more: how often each counts, 1 for one that came and -1 for one that went
(``plan/signed.py``). What follows the table makes state rows of it before the commit (``keep/kept.py:Kept.changed``);
what takes changes in later is told that there are some (``keep/deferral.py``), and what is being founded over the table
notes them (``keep/founding.py``).

Where a view cannot be computed over what the table will be, the statement fails; or the view is marked, keeps what it
has, and is computed anew with each later change until that works (``on_error``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import pyarrow as pa

from headrace.catalog import Table
from headrace.catalog.refreshing import MARK
from headrace.engine.stage import StateRows
from headrace.errors import HeadraceError
from headrace.keep.founding import Note
from headrace.keep.keeper import Added, Keeper
from headrace.keep.kept import Kept, Renewal
from headrace.keep.refreshes import refreshed
from headrace.keep.standing import StoodAt
from headrace.runtime import Parts, Runtime
from headrace.store import Transaction
from headrace.table.net import weighted


def _each(parts: Parts) -> Generator[tuple[pa.Table, int]]:
    yield from parts()


@dataclass
class _Following:
    """What a change does to one that follows the table."""

    kept: Kept
    renewal: Renewal | None
    """None if it cannot be computed."""
    stood: StoodAt | None
    """Where it stood, if that is to be noted anew."""
    error: HeadraceError | None
    seconds: float

    def put(self, tx: Transaction) -> None:
        """Note whether it could be computed."""
        if self.stood is None or self.kept.standing is None:
            return
        if self.error is not None:
            condition, message = self.error.condition, self.error.message
            stands = replace(self.stood, failed=self.stood.failed or tx.epoch, condition=condition, error=message)
        else:
            stands = replace(self.stood, failed=0, condition="", error="")
        if stands != self.stood:
            self.kept.standing.put(tx, stands)


@dataclass
class TableHanding:
    """State rows of one change, on their way into its commit."""

    keeper: Keeper
    followings: Sequence[_Following]
    deferred: Callable[[], None] | None
    """Tells those who take the change in later, if there are any."""
    rows: StateRows = field(default_factory=dict)
    notes: Sequence[Note] = ()
    added: Added | None = None
    epoch: int | None = None

    def add(self, tx: Transaction) -> None:
        """In the commit that changes the table."""
        self.epoch = tx.epoch
        fed = [one.kept for one in self.followings if one.renewal is not None and not one.renewal.is_whole]
        for one in self.followings:
            one.put(tx)
            if one.renewal is not None and one.renewal.is_whole:
                self.keeper.renew(tx, one.kept, one.renewal)
            elif one.renewal is not None:
                self.rows |= {state: [rows] for state, rows in one.renewal.rows.items()}
        if fed:
            self.added = self.keeper.add(tx, fed, self.rows)

    def settled(self) -> None:
        """When that is durable, by the writer."""
        for note in self.notes:
            note.settled()

    def after(self) -> None:
        """When that is committed."""
        for one in self.followings:
            self.keeper.refreshes.note(refreshed(one.kept, "change", one.renewal, self.epoch, one.seconds, one.error))
        if self.added is not None:
            self.keeper.after(self.rows, self.added)
        if self.deferred is not None:
            self.deferred()


class TableChanges:
    """Hands the changes of tables on."""

    def __init__(self, runtime: Runtime, keeper: Keeper, stir: Callable[[], None]) -> None:
        """``stir`` is called when there are changes for those who take them in later."""
        self._runtime = runtime
        self._keeper = keeper
        self._stir = stir

    def of(self, table: Table, parts: Parts) -> TableHanding:
        """What a change leaves for those who follow the table; read only if there are any. Hold ``tables_lock``."""
        followers, notes = self._followers(table), self._keeper.foundings.notes(table)
        fed = [kept for kept in followers if not kept.refreshing.is_deferred]
        stir = self._stir if len(fed) < len(followers) else None
        followings = self._followings(table, fed, notes, parts) if fed or notes else ()
        return TableHanding(self._keeper, followings, stir, notes=notes)

    def is_followed(self, table: Table) -> bool:
        """Whether anything follows the table's changes as they are made, or is about to. Hold ``tables_lock``."""
        fed = any(not kept.refreshing.is_deferred for kept in self._followers(table))
        return fed or self._keeper.foundings.follow(table)

    def _followers(self, table: Table) -> list[Kept]:
        return [kept for kept in self._keeper.fed(table, self._runtime.catalog) if kept.follows(table)]

    def _followings(
        self, table: Table, fed: Sequence[Kept], notes: Sequence[Note], parts: Parts
    ) -> Sequence[_Following]:
        found: list[pa.Table] = []
        with closing(_each(parts)) as each:  # in a batch, what is half read keeps its transaction from ending
            for rows, weight in each:
                if rows.num_rows:
                    change = weighted(rows, weight)
                    for note in notes:
                        note.take(change)
                    if fed:
                        found.append(change)
        if not found:
            return ()
        changes = {table.number: pa.concat_tables(found)}
        return [self._following(table, kept, changes) for kept in fed]

    def _following(self, table: Table, kept: Kept, changes: Mapping[int, pa.Table]) -> _Following:
        marks = kept.refreshing.on_error == MARK and kept.standing is not None
        stood = None
        if kept.standing is not None and marks:
            with self._runtime.store.read() as snapshot:
                stood = kept.standing.of(snapshot)
        started = time.perf_counter()
        try:
            renewal = kept.changed(changes, anew=stood is not None and stood.failed > 0)
        except HeadraceError as error:
            seconds = time.perf_counter() - started
            said = error.within(f"for materialized view {kept.name}, which follows {table.name}")
            if not marks or self._runtime.store.batch is not None:
                self._keeper.refreshes.note(refreshed(kept, "change", None, None, seconds, said))
                raise said from None
            return _Following(kept, None, stood, said, seconds)
        return _Following(kept, renewal, stood, None, time.perf_counter() - started)
