"""Changes of tables, handed to what is kept of them: rows with weights, in the commit that changes the table.

A change is the table's rows with a column more: how often each counts, 1 for one that came and -1 for one that went
(``plan/signed.py``). What follows the table makes state rows of it before the commit (``keep/kept.py:Kept.changed``).
What is being founded over the table only notes it (``keep/founding.py``).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from headrace.catalog import Table
from headrace.engine.stage import StateRows
from headrace.errors import HeadraceError
from headrace.keep.founding import Note
from headrace.keep.keeper import Added, Keeper
from headrace.keep.kept import Kept
from headrace.runtime import Parts, Runtime
from headrace.store import Transaction
from headrace.table.net import weighted


def _each(parts: Parts) -> Generator[tuple[pa.Table, int]]:
    yield from parts()


@dataclass
class TableHanding:
    """State rows of one change, on their way into its commit."""

    keeper: Keeper
    fed: Sequence[Kept]
    rows: StateRows
    notes: Sequence[Note] = ()
    added: Added | None = None

    def add(self, tx: Transaction) -> None:
        """In the commit that changes the table."""
        if self.fed:
            self.added = self.keeper.add(tx, self.fed, self.rows)

    def settled(self) -> None:
        """When that is durable, by the writer."""
        for note in self.notes:
            note.settled()

    def after(self) -> None:
        """When that is committed."""
        if self.added is not None:
            self.keeper.after(self.rows, self.added)


class TableChanges:
    """Hands the changes of tables on."""

    def __init__(self, runtime: Runtime, keeper: Keeper) -> None:
        self._runtime = runtime
        self._keeper = keeper

    def of(self, table: Table, parts: Parts) -> TableHanding:
        """What a change leaves for those who follow the table; read only if there are any. Hold ``tables_lock``."""
        fed, notes = self._followers(table), self._keeper.foundings.notes(table)
        return TableHanding(
            self._keeper, fed, self._state_rows(table, fed, notes, parts) if fed or notes else {}, notes
        )

    def is_followed(self, table: Table) -> bool:
        """Whether anything follows the table, or is about to. Hold ``tables_lock``."""
        return bool(self._followers(table)) or self._keeper.foundings.follow(table)

    def _followers(self, table: Table) -> list[Kept]:
        return [kept for kept in self._keeper.fed(table, self._runtime.catalog) if kept.follows(table)]

    def _state_rows(self, table: Table, fed: Sequence[Kept], notes: Sequence[Note], parts: Parts) -> StateRows:
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
            return {}
        changes = {table.number: pa.concat_tables(found)}
        states: StateRows = {}
        for kept in fed:
            try:
                states |= {state: [rows] for state, rows in kept.changed(changes).items()}
            except HeadraceError as error:
                raise error.within(f"for materialized view {kept.name}, which follows {table.name}") from None
        return states
