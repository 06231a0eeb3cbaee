"""Founding over tables that go on changing: as of epoch e, then the changes after it (001 §6.3, SNI).

The first states of a relation are computed over a snapshot of epoch e, and nobody waits for that. What is committed to
its tables meanwhile is noted. In the end, while tables stand still, the net of what was noted is applied to the states
in memory, and one commit defines the relation with them. If much was noted, most of it is applied before that.

    epoch e ─ snapshot ─ first states ────────▶ + net changes ─▶ states as of f ─ + the rest ─▶ one commit
              └─ commits of its tables ─ notes ─┘                └─ notes ─────────┘

A commit's changes count from when it is durable: those of a statement or batch that fails are never applied. So every
change is in the snapshot or among the notes, and none in both. Notes lie in a file, so memory follows their net only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa

from headrace.base.interrupts import check
from headrace.base.native import conform, native_query
from headrace.base.private import new_file
from headrace.catalog import Relation, Table
from headrace.engine.plan_sql import quote_native
from headrace.errors import CatalogError, ExecutionError
from headrace.keep.kept import Kept, KeptState
from headrace.keep.maintenance import Maintenance, StatesBefore, as_read
from headrace.plan.refs import Ref, StateRef
from headrace.plan.signed import WEIGHT
from headrace.runtime import Runtime
from headrace.store import Snapshot
from headrace.table import query
from headrace.table.net import summed, times, weighted
from headrace.types import Field, arrow_schema

FEW = 10_000
"""Noted rows that are left to the end, when writers wait."""
ROUNDS = 3
"""How often notes are applied before that, at most: where more come than can be applied, writers have to wait."""


@dataclass(frozen=True)
class Piece:
    """Rows of a change, and where they lie in the file of notes."""

    table: int
    start: int
    size: int
    rows: int


class Notes:
    """Changes of tables in a file, in the order they were made. Written while ``tables_lock`` is held."""

    def __init__(self, runtime: Runtime, tables: Mapping[int, Table]) -> None:
        self.tables = tables
        self.waiting: list[Piece] = []
        self.failed: OSError | None = None
        self._runtime = runtime
        self._path = new_file(runtime.scratch_file(".changes"))
        self._file = self._path.open("wb")

    @property
    def rows(self) -> int:
        """How many rows wait to be applied."""
        return sum(piece.rows for piece in self.waiting)

    def write(self, table: int, rows: pa.Table) -> Piece | None:
        """A copy of some rows; None if there is no room. Whoever makes the change must not fail for that."""
        start = self._file.tell()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        written = sink.getvalue()
        try:
            self._file.write(written)
            self._file.flush()
        except OSError as error:
            self.failed = error
            return None
        return Piece(table, start, written.size, rows.num_rows)

    def net(self, pieces: Sequence[Piece]) -> dict[int, pa.Table]:
        """What some of the changes come to, by table: rows with weights of 1 and -1."""
        found: dict[int, pa.Table] = {}
        if not pieces:
            return found
        with pa.memory_map(str(self._path)) as source:
            for number in dict.fromkeys(piece.table for piece in pieces):
                parts = []
                for piece in pieces:
                    if piece.table == number:
                        source.seek(piece.start)
                        parts.append(pa.ipc.open_stream(source.read_buffer(piece.size)).read_all())
                rows = self._net(self.tables[number], pa.concat_tables(parts))
                if rows.num_rows:
                    found[number] = rows
        return found

    def _net(self, table: Table, rows: pa.Table) -> pa.Table:
        columns = tuple(Field(f"c{i}", f.type) for i, f in enumerate(table.columns))
        wanted = arrow_schema(table.columns)
        rows = rows.rename_columns([*(f.name for f in columns), WEIGHT])
        with self._runtime.worker.cursor() as cursor:
            net = native_query(cursor, f"SELECT * FROM {summed(columns, 'noted')}", {"noted": rows})
            parts = []
            for sign in (-1, 1):
                signed = native_query(cursor, f"SELECT * FROM {times(columns, 'net', sign)}", {"net": net})
                parts.append(weighted(conform(signed.rename_columns(wanted.names), wanted), sign))
        return pa.concat_tables(parts)

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)


class Note:
    """One statement's change of a table, on its way into its commit."""

    def __init__(self, notes: Notes, table: int) -> None:
        self._notes = notes
        self._table = table
        self._pieces: list[Piece] = []

    def take(self, rows: pa.Table) -> None:
        """Some rows of it, with weights."""
        piece = self._notes.write(self._table, rows)
        if piece is not None:
            self._pieces.append(piece)

    def settled(self) -> None:
        """It is durable."""
        self._notes.waiting += self._pieces


class InHand(StatesBefore):
    """States in memory, that nobody else knows yet."""

    def __init__(self, snapshot: Snapshot, kept: Kept, rows: Mapping[str, pa.Table]) -> None:
        self._snapshot = snapshot
        self._kept = kept
        self._rows = rows

    def leaves(self) -> query.Leaves:
        return query.Leaves({StateRef(name): self.merged(self._kept.by_name[name]) for name in self._rows}, {})

    def find(self, state: KeptState, keys: pa.Table) -> pa.Table:
        text = f"SELECT s.* FROM __old AS s SEMI JOIN __keys AS k ON {_same(keys.column_names)}"
        return self._snapshot.query(text, __old=self._rows[state.name], __keys=keys).cast(state.schema)

    def merged(self, state: KeptState) -> pa.Table:
        return as_read(self._snapshot, state, self._rows[state.name])

    def added(self, state: KeptState, rows: pa.Table) -> pa.Table:
        """The state with some rows more, merged: only groups that these are of are looked at."""
        assert state.folds is not None
        old = self._rows[state.name]
        given = {"__old": old, "__new": rows}
        same = _same([c.name for c in state.folds.keys])
        if not state.folds.keys:
            return self._snapshot.query(state.merge("(FROM __old UNION ALL FROM __new)"), **given).cast(state.schema)
        touched = f"SELECT s.* FROM __old AS s SEMI JOIN __new AS k ON {same} UNION ALL SELECT * FROM __new"
        kept = self._snapshot.query(f"SELECT s.* FROM __old AS s ANTI JOIN __new AS k ON {same}", **given)
        come = self._snapshot.query(state.merge(f"({touched})"), **given)
        return pa.concat_tables([kept.cast(state.schema), come.cast(state.schema)])


def _same(names: Sequence[str]) -> str:
    return " AND ".join(f"s.{quote_native(k)} IS NOT DISTINCT FROM k.{quote_native(k)}" for k in names)


class Founding:
    """A relation on the way to its first commit; a block, entered while ``tables_lock`` is held."""

    def __init__(
        self,
        runtime: Runtime,
        foundings: Foundings,
        kept: Kept,
        maintenance: Maintenance,
        inherited: Mapping[int, Kept],
    ) -> None:
        """``inherited`` are the states that are there already, and who keeps them up to date until then."""
        self.kept = kept
        kept.inherited = frozenset(inherited)
        self._inherited = inherited
        self._runtime = runtime
        self._foundings = foundings
        self._maintenance = maintenance
        self._steps = maintenance.first_steps()
        self._states: dict[str, pa.Table] | None = None

    def __enter__(self) -> Founding:
        catalog = self._runtime.catalog
        own = catalog.at(self.kept.relation.number)  # it is there already if it is founded again
        olds = {old.relation.number: old.relation for old in self._inherited.values()}.values()
        self._reads = [*([own] if own is not None else []), *olds, *_below(self._runtime, self.kept.relation)]
        tables = {number: table for number in self._maintenance.tables if (table := catalog.table_at(number))}
        self.notes = Notes(self._runtime, tables)
        try:
            self._begin()
            self._foundings.open.append(self)
        except BaseException:
            self.notes.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with closing(self.notes), self._reading:
            if self in self._foundings.open:
                self._foundings.open.remove(self)

    def _begin(self) -> None:
        """As of now: hold ``tables_lock``, so that no change is half noted."""
        self._reading = ExitStack()
        self._snapshot = self._reading.enter_context(self._runtime.store.read())
        self.notes.waiting.clear()

    def run(self) -> None:
        """Compute the first states, and apply most of what is noted meanwhile; nobody waits for that."""
        try:
            for _ in range(len(self._steps) + ROUNDS):
                with self._reading, suppress(query.Again):
                    self._states = self._first(self._snapshot)
                    break
                with self._runtime.tables_lock:
                    self._begin()
            for _ in range(ROUNDS):
                if self._states is None or self.notes.rows <= FEW:
                    return
                self._catch_up()
        except Exception:
            self._check()  # what was altered or dropped meanwhile may be the reason
            raise

    def finish(self) -> None:
        """Apply the rest. Hold ``tables_lock``, until the commit that defines the relation."""
        self._check()
        while True:
            with self._runtime.store.read() as snapshot, suppress(query.Again):
                if self._states is None:
                    self._states = self._first(snapshot)
                else:
                    self._apply(snapshot, len(self.notes.waiting))
                break
        found = {self.kept.by_name[name].ref: rows for name, rows in self._states.items()}
        self.kept.first = {ref: rows for ref, rows in found.items() if ref not in self._inherited}

    def _first(self, snapshot: Snapshot) -> dict[str, pa.Table]:
        found: dict[str, pa.Table] = {}
        if all(state.ref in self._inherited for state in self.kept.states):
            return found
        for state, prepared in self._steps:
            self._check()
            known = self.kept.by_name[state]
            if known.ref in self._inherited:
                found[state] = known.home.merged(snapshot, known)
                continue
            rows = query.run(self._runtime, snapshot, prepared, InHand(snapshot, self.kept, found).leaves())
            found[state] = rows.cast(self.kept.by_name[state].schema)
        return found

    def _catch_up(self) -> None:
        with ExitStack() as reading:
            with self._runtime.tables_lock:
                snapshot = reading.enter_context(self._runtime.store.read())
                count = len(self.notes.waiting)
            with suppress(query.Again):  # then the rows are applied with later ones
                self._apply(snapshot, count)

    def _apply(self, snapshot: Snapshot, count: int) -> None:
        """Apply the first notes, all that there were when the snapshot was taken."""
        assert self._states is not None
        self._check()
        net = self.notes.net(self.notes.waiting[:count])
        if net and self._states:
            changes: dict[Ref, pa.Table] = {self._maintenance.tables[number]: rows for number, rows in net.items()}
            before = InHand(snapshot, self.kept, self._states)
            added = self._maintenance.run(snapshot, self.kept, changes, before, lie="now")
            by_ref = {state.ref: state for state in self.kept.states}
            self._states |= {by_ref[ref].name: before.added(by_ref[ref], rows) for ref, rows in added.items()}
        del self.notes.waiting[:count]

    def _check(self) -> None:
        """Raise if it has been asked to stop, or cannot go on."""
        check()
        for relation in self._reads:
            if self._runtime.catalog.at(relation.number) != relation:
                raise CatalogError(
                    "DEFINITION_CHANGED",
                    f"{relation.name} was altered, replaced or dropped while {self.kept.name} was computed over it",
                    hint="nothing was made or changed; run the statement again",
                )
        if self.notes.failed is not None:
            raise ExecutionError(
                "NO_ROOM_FOR_CHANGES",
                f"changes that came while {self.kept.name} was computed could not be noted: {self.notes.failed}",
                hint="make room on the disk of the database, and run the statement again",
            )


class Foundings:
    """The foundings that are under way."""

    def __init__(self) -> None:
        self.open: list[Founding] = []

    def notes(self, table: Table) -> list[Note]:
        """Where a change of a table is noted. Hold ``tables_lock``."""
        return [Note(one.notes, table.number) for one in tuple(self.open) if table.number in one.notes.tables]

    def follow(self, table: Table) -> bool:
        """Whether changes of a table are noted. Hold ``tables_lock``."""
        return any(table.number in one.notes.tables for one in tuple(self.open))


def _below(runtime: Runtime, relation: Relation) -> Iterator[Relation]:
    """What a relation reads, by itself or through others, as that is defined now."""
    for read in relation.read:
        found = runtime.catalog.at(read.number)
        if found is not None:
            yield found
            yield from _below(runtime, found)
