"""Changes kept as history (SCD 2): each version of a key is a row, from its sequence up to the next one's.

A key's events, upserts and deletes, stand in the order of their sequences wherever they come from: the versions the
table has, the deletes that were noted, and the changes that come. A version ends where the next event begins. So a
late version takes its place among the others, and the history does not depend on the order in which changes arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.catalog.table import FILE, ROW
from headrace.engine.plan_sql import quote_native
from headrace.errors import DataError
from headrace.table.applying import DELETE, TRUNCATE, UPSERT, Applying, Flags, Ints, Outcome
from headrace.table.changing import TableChange
from headrace.table.sequences import DELETED, Noted

START, END = "__START_AT", "__END_AT"
"""The columns of a history's table."""


@dataclass(frozen=True)
class Versions(Applying):
    """A table that has all versions of each row."""

    def outcome(self) -> Outcome:
        names = ", ".join(self.changes.key_names)
        slim, truncates = self.changes.slim, self._all_truncates()
        everywhere = bool(self._truncates.num_rows)
        deletes = self._deletes(everywhere)
        existing = self._existing(everywhere)
        known = self._ask(
            f"SELECT {names}, s0, min(i) AS i, count(*) AS times, {UPSERT} AS op FROM existing GROUP BY {names}, s0 "
            f"UNION ALL SELECT {names}, s0, NULL, 1, {DELETE} FROM deletes",
            existing=existing,
            deletes=deletes,
        )
        self._refuse_twice(known)
        events = self._ask(
            # Of what is alike in key and sequence, the change that comes last counts; a truncate counts if there is
            # nothing else.
            f"WITH parts AS (SELECT {names}, s0, i, NULL AS n, NULL AS op, op AS was FROM known UNION ALL "
            f"SELECT {names}, s0, NULL, max(n), arg_max(op, n), NULL FROM slim WHERE op < {TRUNCATE} "
            f"GROUP BY {names}, s0), "
            f"every_ AS (FROM parts UNION ALL SELECT {names}, t.s0, NULL, NULL, NULL, NULL "
            f"FROM (SELECT DISTINCT {names} FROM parts), truncates AS t), "
            f"events AS (SELECT {names}, s0, max(i) AS i, max(n) AS n, max(was) AS was, "
            f"coalesce(max(op), max(was), {TRUNCATE})::BIGINT AS op FROM every_ GROUP BY {names}, s0) "
            f"SELECT *, lead(s0) OVER w AS e, lag(op) OVER w AS before, coalesce(s0 IS NULL OR s0 < "
            f"max(CASE WHEN was IS NOT NULL THEN s0 END) OVER (PARTITION BY {names}), false) AS late FROM events "
            f"WINDOW w AS (PARTITION BY {names} ORDER BY s0 NULLS FIRST) ORDER BY n, i",
            slim=slim,
            known=known,
            truncates=truncates,
        )
        return self._of(events, existing)

    def _all_truncates(self) -> pa.Table:
        old = self._truncated
        both = pa.concat_tables([old, self._truncates.cast(old.schema)])
        return self._ask("SELECT DISTINCT s0 FROM both_", both_=both)

    def _deletes(self, everywhere: bool) -> pa.Table:
        """Deletes noted of the keys that changes come for."""
        names = ", ".join(self.changes.key_names)
        if self.is_new:
            return self._ask(f"SELECT {names}, s0 FROM slim LIMIT 0", slim=self.changes.slim)
        touched = "" if everywhere else f"SEMI JOIN slim USING ({names})"
        latest = self.sequences.latest(self.snapshot, touched)
        return self._ask(f"SELECT {names}, s0 FROM ({latest}) WHERE kind = {DELETED}", slim=self.changes.slim)

    def _existing(self, everywhere: bool) -> pa.Table:
        """Versions of these keys: their places, columns, and numbers (``i``), with key and sequence once more."""
        pairs = zip(self.changes.keys, self.changes.key_names, strict=True)
        keys = ", ".join(f"e.{quote_native(name)} AS {k}" for name, k in pairs)
        touched = "" if everywhere else f"SEMI JOIN slim ON {self._on_key('e', 'slim')}"
        found = self._ask(
            f"SELECT e.{FILE}, e.{ROW}, {self._columns('e')}, {keys}, e.{self._column(START)} AS s0 "
            f"FROM {self._source()} AS e {touched}",
            slim=self.changes.slim,
        )
        return found.append_column("i", pa.array(np.arange(found.num_rows)))

    def _column(self, name: str) -> str:
        return quote_native(next(f.name for f in self.table.columns if f.name.upper() == name))

    def _refuse_twice(self, known: pa.Table) -> None:
        twice = known.column("times").to_numpy() > 1
        if twice.any():
            row = known.slice(int(twice.argmax()), 1).to_pylist()[0]
            values = ", ".join(
                f"{n} = {row[k]}" for n, k in zip(self.changes.keys, self.changes.key_names, strict=True)
            )
            raise DataError(
                "APPLY_CHANGES_KEY_NOT_UNIQUE",
                f"{self.table.name} has {row['times']} versions with {values} and {START} = {row['s0']}",
                hint="name keys that tell rows apart, or delete the versions that are there twice",
            )

    def _of(self, events: pa.Table, existing: pa.Table) -> Outcome:
        """The change that makes the table's versions these."""
        op: Ints = events.column("op").to_numpy()
        has_old, has_new = (events.column(c).is_valid().to_numpy() for c in ("i", "n"))
        stays = op == UPSERT
        comes_new, kept = stays & has_new, stays & ~has_new
        olds = self._old(existing).take(events.column("i").filter(pa.array(has_old)))
        taken = self.changes.rows.take(events.column("n").filter(pa.array(comes_new)))
        later = pa.concat_tables(
            [
                self._until(taken, events.filter(pa.array(comes_new)), begins=True),
                self._until(olds.filter(pa.array(kept[has_old])), events.filter(pa.array(kept))),
            ]
        )
        order = np.concatenate([np.flatnonzero(comes_new), np.flatnonzero(kept)])
        place: Ints = np.full(len(op), -1)
        place[order] = np.arange(len(order))
        both, differs = has_old & stays, np.zeros(len(op), np.bool_)
        differs[both] = self._differ(olds.filter(pa.array(both[has_old])), later.take(pa.array(place[both])))
        goes, comes = has_old & (~stays | differs), stays & (differs | ~has_old)
        places = existing.select([FILE, ROW]).take(events.column("i").filter(pa.array(goes)))
        change = TableChange(places, olds.filter(pa.array(goes[has_old])), later.take(pa.array(place[comes])))
        return Outcome(change, self._noted_of(events, op, has_new), self._counts(events, op, has_old, has_new, differs))

    def _until(self, rows: pa.Table, events: pa.Table, *, begins: bool = False) -> pa.Table:
        """Versions with their ends, and with their beginnings if they are new."""
        ends = {START: "s0", END: "e"} if begins else {END: "e"}
        for at, name in enumerate(rows.column_names):
            if name.upper() in ends:
                values = events.column(ends[name.upper()]).cast(rows.schema.field(at).type)
                rows = rows.set_column(at, rows.schema.field(at), values)
        return rows

    def _counts(self, events: pa.Table, op: Ints, has_old: Flags, has_new: Flags, differs: Flags) -> dict[str, int]:
        ended = pc.equal(events.column("before"), UPSERT).fill_null(False).to_numpy()
        deletes = has_new & (op == DELETE) & (events.column("was").is_null().to_numpy() | has_old)
        return {
            "inserted": int((has_new & (op == UPSERT) & ~has_old).sum()),
            "updated": int((has_old & differs).sum()),
            "unchanged": int((has_new & (op == UPSERT) & has_old & ~differs).sum()),
            "deleted": int((deletes & ended).sum()),
            "absent": int((deletes & ~ended).sum()),
            "late": int((has_new & events.column("late").to_numpy()).sum()),
        }

    def _noted_of(self, events: pa.Table, op: Ints, has_new: Flags) -> Noted:
        was = pc.equal(events.column("was"), DELETED).fill_null(False).to_numpy()
        deleted, revived = has_new & (op == DELETE) & ~was, has_new & (op == UPSERT) & was
        rows = events.filter(pa.array(deleted | revived)).select([*self.changes.key_names, "s0", "op"])
        marks = self._ask(
            "SELECT DISTINCT s0 FROM coming ANTI JOIN known USING (s0)", coming=self._truncates, known=self._truncated
        )
        return Noted(self._with_marks(rows, marks), int(deleted.sum()) - int(revived.sum()))
