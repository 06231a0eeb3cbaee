"""What changes to rows known by a key leave of a table: the one change that a commit makes.

The changes are in their order: by sequence, then as they were given. What has a lower sequence than what was last
applied to its key is late and counts for nothing; of the rest, a key's last change is what becomes of its row. All of
it is a few joins: of the changes with what is noted of their keys (``table/sequences.py``), and with the table's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.lacking import lacking_rows
from headrace.base.values import python_values
from headrace.catalog import Table
from headrace.catalog.table import FILE, ROW
from headrace.engine.lasts import last_of_each
from headrace.engine.plan_sql import quote_native
from headrace.errors import DataError
from headrace.runtime import Runtime
from headrace.store import Snapshot
from headrace.table import rows as tables
from headrace.table.changing import TableChange, needed
from headrace.table.sequences import DELETED, LIVE, TRUNCATED, Noted, Sequences, below
from headrace.types import Schema, arrow_schema

UPSERT, DELETE, TRUNCATE = range(3)
Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True)
class Changes:
    """Changes in their order."""

    keys: tuple[str, ...]
    rows: pa.Table
    """What they make of rows, in the table's columns. Of a delete only the keys count, of a truncate nothing."""
    ops: Ints
    sequences: Sequence[pa.ChunkedArray]
    """None: each comes after all that were applied before."""
    keep_if_null: bool = False
    """Whether NULL leaves a column of a row as it is."""
    lacked: Schema = ()
    """Then, the columns that all changes come without."""

    @cached_property
    def slim(self) -> pa.Table:
        """What decides which change counts: the keys, sequences, operation and number of each."""
        columns = {f"k{i}": self.rows.column(name) for i, name in enumerate(self.keys)}
        columns |= dict(zip(self.order, self._ordered, strict=True))
        return pa.table({**columns, "op": self.ops, "n": np.arange(len(self.ops))})

    @property
    def order(self) -> list[str]:
        return [f"s{i}" for i in range(len(self._ordered))]

    @property
    def _ordered(self) -> Sequence[pa.ChunkedArray]:
        return self.sequences or [pa.chunked_array([np.arange(len(self.ops))])]

    @property
    def key_names(self) -> list[str]:
        return [f"k{i}" for i in range(len(self.keys))]

    def same_key(self, one: str, other: str) -> str:
        return " AND ".join(f"{one}.{k} = {other}.{k}" for k in self.key_names)


@dataclass(frozen=True)
class Outcome:
    """The change, what is to be noted of it, and how many rows or changes there were of which sort."""

    change: TableChange
    noted: Noted
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Applying:
    """A table as a snapshot has it, what was applied to it, and changes that come."""

    runtime: Runtime
    snapshot: Snapshot
    table: Table
    sequences: Sequences
    is_new: bool
    """Whether nothing was applied before: there is no such relation yet."""
    changes: Changes

    # What is known

    @property
    def _numbered(self) -> bool:
        """Whether changes have a sequence that others can be compared with."""
        return bool(self.changes.sequences)

    def _ask(self, text: str, **relations: pa.Table) -> pa.Table:
        return self.snapshot.query(text, **relations)

    @cached_property
    def _known(self) -> pa.Table:
        """The last change of each key that changes come for, or of all keys if there is a truncate among them."""
        names = ", ".join(self.changes.key_names)
        order = ", ".join(self.changes.order)
        if self.is_new or not self._numbered:
            return self._ask(f"SELECT {names}, {order}, op::TINYINT AS kind FROM slim LIMIT 0", slim=self.changes.slim)
        touched = "" if self._truncates.num_rows else f"SEMI JOIN slim USING ({names})"
        return self._ask(self.sequences.latest(self.snapshot, touched), slim=self.changes.slim)

    @cached_property
    def _truncated(self) -> pa.Table:
        """The sequences at which all rows were deleted before."""
        if self.is_new or not self._numbered:
            return self.changes.slim.select(self.changes.order).slice(0, 0)
        return self.sequences.truncated(self.snapshot)

    @cached_property
    def _truncates(self) -> pa.Table:
        """Those among the changes: of these, only the last counts."""
        chosen = pa.array(self.changes.ops == TRUNCATE)
        return self.changes.slim.filter(chosen).select(self.changes.order)

    # One row a key

    def outcome(self) -> Outcome:
        """What the changes do to a table that has the last version of each row."""
        old = self._last(self._truncated)
        mark = self._last(pa.concat_tables([old, self._truncates.cast(old.schema)]))
        winners, late = self._winners(old, mark)
        fresh = None if mark.equals(old) else mark
        new = self.changes.rows.take(winners.column("n"))
        return self._outcome(winners, new, self._found(winners, new, fresh), mark, late, fresh)

    def _winners(self, old: pa.Table, mark: pa.Table) -> tuple[pa.Table, int]:
        """The last change of each key, if it is not late: what it does (``op``), what the one before did (``was``), and
        whether it was noted before (``again``). And how many changes are late."""
        slim, counted = self.changes.slim, self.changes.ops < TRUNCATE
        if mark.num_rows:
            text = f"SELECT n FROM slim AS s, mark WHERE {below(self.changes.order, 's', 'mark')}"
            counted[self._ask(text, slim=slim, mark=mark).column("n").to_numpy()] = False
        types = {f.name: f.type for f in self.table.columns}
        last = last_of_each([types[k] for k in self.changes.keys], slim.select(self.changes.key_names), counted)
        winners = slim.filter(pa.array(last))
        rows = winners.num_rows
        was, again, late = np.full(rows, -1), np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
        known = self._known
        if known.num_rows:
            w = winners.append_column("i", pa.array(np.arange(rows)))
            same = " AND ".join(f"s.{c} IS NOT DISTINCT FROM known.{c}" for c in self.changes.order)
            found = self._ask(
                f"SELECT s.i, known.kind, {same} AND s.op = known.kind AS again, {self._by_known} AS late "
                f"FROM w AS s JOIN known ON {self._same('s', 'known')}",
                w=w,
                known=known,
            )
            at = found.column("i").to_numpy()
            was[at], again[at] = found.column("kind").to_numpy(), found.column("again").to_numpy()
            late[at] = found.column("late").to_numpy()
        times = int(late.sum())
        if old.num_rows or (known.num_rows and rows < slim.num_rows):
            times = self._late(old)
        winners = winners.append_column("was", pa.array(was)).append_column("again", pa.array(again))
        return winners.filter(pa.array(~late)) if late.any() else winners, times

    def _late(self, old: pa.Table) -> int:
        """How many changes come after later ones of their keys, or after all rows were deleted."""
        by_old = below(self.changes.order, "s", "old") if old.num_rows else "false"
        late = self._ask(
            f"SELECT count(*) AS n FROM slim AS s LEFT JOIN known ON s.op < {TRUNCATE} AND {self._same('s', 'known')}, "
            f"{self._one('old', old)} WHERE {by_old} OR (known.kind IS NOT NULL AND {self._by_known})",
            slim=self.changes.slim,
            known=self._known,
            old=old,
        )
        return int(late.column("n")[0].as_py())

    @property
    def _by_known(self) -> str:
        return below(self.changes.order, "s", "known")

    def _same(self, one: str, other: str) -> str:
        return self.changes.same_key(one, other)

    def _one(self, name: str, rows: pa.Table) -> str:
        """The one row of a relation, or a row that says nothing."""
        return name if rows.num_rows else f"(SELECT 1) AS {name}"

    def _last(self, marks: pa.Table) -> pa.Table:
        """The highest of these sequences."""
        order = ", ".join(f"{c} DESC" for c in self.changes.order)
        return self._ask(f"SELECT * FROM marks ORDER BY {order} LIMIT 1", marks=marks) if len(marks) > 1 else marks

    def _columns(self, of: str) -> str:
        return ", ".join(f"{of}.{quote_native(f.name)}" for f in self.table.columns)

    def _source(self) -> str:
        return tables.source(self.snapshot, self.table, placed=True)

    @cached_property
    def _needed(self) -> list[str]:
        """The columns of rows that go whose values somebody needs."""
        return needed(self.runtime, self.table)

    def _on_key(self, row: str, other: str) -> str:
        pairs = zip(self.changes.keys, self.changes.key_names, strict=True)
        return " AND ".join(f"{row}.{quote_native(name)} = {other}.{k}" for name, k in pairs)

    def _found(self, winners: pa.Table, new: pa.Table, mark: pa.Table | None) -> pa.Table:
        """The table's rows that change: their places, their values, which of the winners is theirs (``i``), whether a
        truncate takes them out, and whether they may be as the winner has them (``alike``). Only then they have values
        that nobody else needs."""
        w = pa.table(_named(new)).append_column("i", pa.array(np.arange(new.num_rows)))
        names = [quote_native(f.name) for f in self.table.columns]
        there, told = [f"e.{name}" for name in names], [f"c{i}" for i in range(len(names))]
        own, compared = [], []
        for i, f in enumerate(self.table.columns):
            if f.name in self.changes.keys:
                own.append(f"c{i} AS {self.changes.key_names[self.changes.keys.index(f.name)]}")
            elif not self.changes.keep_if_null:
                compared.append(i)

        def hashed(of: Sequence[str]) -> str:
            return f"hash({', '.join(['0', *(f'{of[i]}::{self.table.columns[i].type.duckdb}' for i in compared)])})"

        alike = f"coalesce({hashed(there)} = w.h, false)"
        for i, f in enumerate(self.table.columns):
            if f.name not in self._needed:
                there[i] = f"CASE WHEN {alike} THEN {there[i]} END AS {names[i]}"
        select = f"SELECT e.{FILE}, e.{ROW}, {', '.join(there)}, w.i, {alike} AS alike"
        thin = f"(SELECT {', '.join(own)}, i, {hashed(told)} AS h FROM w) AS w"
        if mark is None:
            text = f"{select}, false AS gone FROM {self._source()} AS e JOIN {thin} ON {self._on_key('e', 'w')}"
            return self._ask(text, w=w)
        return self._ask(
            f"{select}, s.kind IS NULL OR {below(self.changes.order, 's', 'mark')} AS gone FROM {self._source()} AS e "
            f"LEFT JOIN {thin} ON {self._on_key('e', 'w')} LEFT JOIN known AS s ON {self._on_key('e', 's')}, mark "
            "WHERE w.i IS NOT NULL OR gone",
            w=w,
            known=self._known,
            mark=mark,
        )

    def _merged(self, mark: pa.Table) -> tuple[pa.Table, Flags]:
        """The rows that winners make, of the last value of each column that is not NULL; and which of them owe nothing
        to a row that was there."""
        columns = [quote_native(name) for name in self.changes.rows.column_names]
        wide = pa.table({**_named(self.changes.rows), **_named(self.changes.slim, "__")})
        renamed = [f"__{c}" for c in self.changes.slim.column_names]
        slim = ", ".join(f"x.{r} AS {c}" for r, c in zip(renamed, self.changes.slim.column_names, strict=True))
        keys = ", ".join(f"s.{k}" for k in self.changes.key_names)
        dead = f"max(CASE WHEN op = {DELETE} THEN n END) OVER (PARTITION BY {keys})"
        by_mark = below(self.changes.order, "s", "mark") if mark.num_rows else "false"
        found = self._ask(
            f"WITH s AS (SELECT {slim} FROM wide AS x), counted AS (SELECT s.*, coalesce({dead}, -1) AS dead FROM s "
            f"LEFT JOIN known ON {self._same('s', 'known')}, {self._one('mark', mark)} WHERE s.op < {TRUNCATE} "
            f"AND NOT {by_mark} AND (known.kind IS NULL OR NOT {self._by_known})), "
            f"merged AS (SELECT {', '.join(f'arg_max(x.c{i}, c.n) AS c{i}' for i in range(len(columns)))}, "
            f"max(c.n) AS n, max(c.dead) AS dead FROM counted AS c JOIN wide AS x ON x.__n = c.n "
            f"WHERE c.n >= c.dead GROUP BY {', '.join(f'c.{k}' for k in self.changes.key_names)}) "
            f"SELECT * FROM merged ORDER BY n",
            wide=wide,
            known=self._known,
            mark=mark,
        )
        names = [f"c{i}" for i in range(len(columns))]
        rows = found.select(names).rename_columns(self.changes.rows.column_names).cast(self.changes.rows.schema)
        return rows, found.column("dead").to_numpy() >= 0

    def _outcome(
        self, winners: pa.Table, new: pa.Table, found: pa.Table, mark: pa.Table, late: int, fresh_mark: pa.Table | None
    ) -> Outcome:
        ops = winners.column("op").to_numpy()
        i = found.column("i")
        matched = i.is_valid().to_numpy()
        at: Ints = pc.fill_null(i, 0).to_numpy()
        hit = np.zeros(len(ops), np.bool_)
        hit[at[matched]] = True
        if len(ops) and hit.sum() < matched.sum():
            self._refuse_repeated(winners, at[matched])
        updated = matched & (ops[at] == UPSERT) if len(ops) else matched
        olds = self._old(found)
        if self.changes.keep_if_null:
            merged, reset = self._merged(mark)
            keeps = updated & ~found.column("gone").to_numpy()
            keeps[keeps] = ~reset[at[keeps]]
            new = self._kept(merged, olds, at, keeps)
        change = np.copy(updated)
        alike = updated & found.column("alike").to_numpy()
        change[alike] = self._differ(olds.filter(pa.array(alike)), new.take(pa.array(at[alike])))
        fresh = ~hit & (ops == UPSERT)
        comes = np.copy(fresh)
        comes[at[change]] = True
        counts = {
            "inserted": int(fresh.sum()),
            "updated": int(change.sum()),
            "unchanged": int(updated.sum() - change.sum()),
            "deleted": int((~updated).sum()),
            "absent": int((~hit & (ops == DELETE)).sum()),
            "late": late,
        }
        goes = pa.array(~updated | change)
        places, gone = found.select([FILE, ROW]).filter(goes), olds.select(self._needed).filter(goes)
        # Each key goes and comes at most once, and comes otherwise than it was.
        by_key = set(self.changes.keys) == set(self.table.primary_key)
        made = TableChange(places, gone, new.filter(pa.array(comes)), is_net=True, keeps_keys=by_key)
        return Outcome(made, self._noted(winners, fresh_mark), counts)

    def _old(self, found: pa.Table) -> pa.Table:
        names = [f.name for f in self.table.columns]
        return found.select(range(2, 2 + len(names))).rename_columns(names).cast(arrow_schema(self.table.columns))

    def _kept(self, new: pa.Table, olds: pa.Table, at: Ints, keep: Flags) -> pa.Table:
        """New rows with the old values where they have none."""
        old_of: Ints = np.full(new.num_rows, -1)
        old_of[at[keep]] = np.flatnonzero(keep)
        none = old_of < 0
        given = pa.array(old_of, mask=none)
        columns = {n: pc.coalesce(new.column(n), olds.column(n).take(given)) for n in new.column_names}
        for f in self.changes.lacked:
            columns[f.name] = pc.if_else(pa.array(none), lacking_rows(f, new.num_rows), columns[f.name])
        return pa.Table.from_arrays(list(columns.values()), schema=new.schema)

    def _differ(self, old: pa.Table, new: pa.Table) -> Flags:
        """Which of the old rows are not what the new ones are."""
        if not old.num_rows:
            return np.zeros(0, np.bool_)
        one, other = (pa.table(_named(rows)) for rows in (old, new))
        same = " AND ".join(f"one.{c} IS NOT DISTINCT FROM other.{c}" for c in one.column_names)
        found = self._ask(f"SELECT NOT ({same}) AS differs FROM one POSITIONAL JOIN other", one=one, other=other)
        return np.asarray(found.column("differs").to_numpy())

    def _refuse_repeated(self, winners: pa.Table, at: Ints) -> None:
        counted = np.bincount(at)
        row = winners.slice(int(counted.argmax()), 1)
        named = zip(self.changes.keys, self.changes.key_names, strict=True)
        values = ", ".join(f"{name} = {python_values(row.column(k))[0]}" for name, k in named)
        raise DataError(
            "APPLY_CHANGES_KEY_NOT_UNIQUE",
            f"{self.table.name} has {counted.max()} rows with {values}: which of them is meant?",
            hint="name keys that tell rows apart, or delete the rows that are there twice",
        )

    def _noted(self, winners: pa.Table, mark: pa.Table | None) -> Noted:
        truncated = mark is not None
        if not self._numbered:
            return Noted(self.sequences.schema.empty_table().select(range(len(self.sequences.keys) + 1)))
        was, kind = winners.column("was").to_numpy(), winners.column("op").to_numpy()
        has_sequence = winners.column("s0").is_valid().to_numpy()
        chosen = has_sequence & ~winners.column("again").to_numpy()
        rows = winners.filter(pa.array(chosen)).select([*self.changes.key_names, *self.changes.order, "op"])
        more = int((chosen & (kind == DELETED)).sum()) - int((chosen & (was == DELETED)).sum())
        return Noted(self._with_marks(rows, mark), more, truncated)

    def _with_marks(self, rows: pa.Table, marks: pa.Table | None) -> pa.Table:
        """What is noted of keys, and truncates with it."""
        if marks is None or not marks.num_rows:
            return rows
        none = {k: pa.nulls(marks.num_rows, rows.schema.field(k).type) for k in self.changes.key_names}
        kinds = {"op": np.full(marks.num_rows, TRUNCATED)}
        more = pa.table({**none, **{s: marks.column(s) for s in self.changes.order}, **kinds})
        return pa.concat_tables([rows, more.cast(rows.schema)])


def _named(rows: pa.Table, prefix: str = "c") -> dict[str, pa.ChunkedArray]:
    """Columns under plain names: ``c0``, ``c1``, …, or their own with a prefix."""
    if prefix == "c":
        return {f"c{i}": column for i, column in enumerate(rows.columns)}
    return {f"{prefix}{name}": rows.column(name) for name in rows.column_names}


assert (UPSERT, DELETE) == (LIVE, DELETED), "an operation is noted as what it leaves"
