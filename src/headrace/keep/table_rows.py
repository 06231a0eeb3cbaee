"""Rows of tables that upper pipelines join, kept in memory while they do not change.

A view is read after every few inserts, a table beside it changes now and then. Its segments are
Parquet: decoding a million rows takes longer than joining them. The rows are kept from the second read
under one content on, so a table that changes before every read is never held.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa

from headrace.catalog import Table
from headrace.engine.plan_sql import quote_native
from headrace.plan.refs import Ref, TableRef
from headrace.runtime import Runtime
from headrace.store import Snapshot
from headrace.table import rows as tables
from headrace.table.query import Prepared
from headrace.types import arrow_schema


@dataclass(frozen=True, eq=False)
class _Held:
    epoch: int
    """The epoch that last altered the table."""
    rows: pa.Table | None
    """The columns that were asked for; none before the second time."""
    pointless: bool = False
    """Whether the rows are in the store's own table, and read from there as fast."""


class TableRows:
    """The rows that are held, by table."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._held: dict[int, _Held] = {}
        self._guard = threading.Lock()

    @property
    def bytes(self) -> int:
        with self._guard:
            return sum(h.rows.nbytes for h in self._held.values() if h.rows is not None)

    def of(self, snapshot: Snapshot, prepared: Prepared, room: int) -> dict[Ref, pa.Table]:
        """The rows of those tables of a plan that are held; ``room`` bytes more may be."""
        wanted: dict[TableRef, set[str]] = {}
        for scan in prepared.scans:
            if isinstance(scan.ref, TableRef):
                wanted.setdefault(scan.ref, set()).update(scan.fields)
        found: dict[Ref, pa.Table] = {}
        for key, fields in wanted.items():
            table = self._runtime.catalog.table_at(key.number)
            if table is not None and table.files is None and fields:
                rows = self._rows(snapshot, table, fields, room)
                if rows is not None:
                    found[key] = rows
        return found

    def _rows(self, snapshot: Snapshot, table: Table, fields: Collection[str], room: int) -> pa.Table | None:
        relation = table.number
        epoch = snapshot.last_change(relation)
        with self._guard:
            held = self._held.get(relation)
        if held is None or held.epoch < epoch:
            self._keep(relation, _Held(epoch, None))
            return None
        if held.epoch > epoch or held.pointless:
            return None
        known = held.rows.column_names if held.rows is not None else []
        if held.rows is not None and set(fields) <= set(known):
            return held.rows
        if not snapshot.segments(relation):
            self._keep(relation, _Held(epoch, None, pointless=True))
            return None
        columns = tuple(c for c in table.columns if c.name in {*fields, *known})
        names = ", ".join(quote_native(c.name) for c in columns)
        rows = snapshot.query(f"SELECT {names} FROM {tables.source(snapshot, table, [c.name for c in columns])}")
        if rows.nbytes > room:
            return None
        rows = rows.cast(arrow_schema(columns))
        self._keep(relation, _Held(epoch, rows))
        return rows

    def _keep(self, relation: int, held: _Held) -> None:
        with self._guard:
            before = self._held.get(relation)
            if before is None or before.epoch <= held.epoch:
                self._held[relation] = held

    def clear(self) -> None:
        """Let go of everything: it is read again where it is needed."""
        with self._guard:
            self._held.clear()
