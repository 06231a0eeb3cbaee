"""Homes: where a state's rows lie, and how they are found.

Whoever keeps, merges, reads or looks up state rows does so through this small interface; where they lie is nobody
else's business. Rows are appended as partial states and rewritten when they are merged; a reader sees those of its
epoch. What is stored lies in the store's own file; the states of a query of a stream, in memory.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.base.native import conform
from headrace.engine.plan_sql import quote_native
from headrace.engine.work import Pile
from headrace.runtime import Runtime
from headrace.store import Snapshot, Transaction
from headrace.table.frames import rows_frame, sql_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.keep.kept import KeptState

Reading = Snapshot | Transaction


class Home(ABC):
    """Where the rows of some states lie."""

    # In a commit

    @abstractmethod
    def found(self, tx: Transaction, state: KeptState) -> None:
        """Make room for a state, which has no rows yet. What the store holds goes with the relation that owns it."""

    @abstractmethod
    def append(self, tx: Transaction, rows: Mapping[int, pa.Table]) -> None:
        """Add partial rows to states, by their references: to many at about the cost of one."""

    @abstractmethod
    def rewrite(self, tx: Transaction, ref: int, rows: pa.Table, *, altered: bool = False) -> None:
        """Put these rows in the place of all; ``altered`` unless they mean the same."""

    @abstractmethod
    def is_empty(self, tx: Transaction, ref: int) -> bool:
        """Whether the state has no row."""

    # As of an epoch

    @abstractmethod
    def last_change(self, reading: Reading, ref: int) -> int:
        """The epoch that last altered what the rows mean."""

    @abstractmethod
    def last_rewrite(self, reading: Reading, ref: int) -> int:
        """The epoch that last rewrote all rows."""

    @abstractmethod
    def since(self, reading: Reading, state: KeptState, epoch: int) -> pa.Table:
        """The rows added after an epoch."""

    @abstractmethod
    def native(self, reading: Reading, state: KeptState, name: str) -> tuple[str, dict[str, pa.Table]]:
        """All rows as a native SQL source, and the Arrow tables it reads, under names that begin with ``name``."""

    @contextmanager
    def frame(self, reading: Reading, state: KeptState, runtime: Runtime) -> Iterator[DataFrame]:
        """All rows, merged, as a Spark DataFrame for as long as a block runs."""
        with rows_frame(runtime, self.merged(reading, state)) as frame:
            yield frame

    @abstractmethod
    def queued(self, reading: Reading, ref: int) -> tuple[int, int] | None:
        """How many rows there were after the last rewrite, and how many came since; None if it is no more."""

    def merged(self, reading: Reading, state: KeptState) -> pa.Table:
        """All rows, merged."""
        source, tables = self.native(reading, state, "__appended")
        return reading.query(state.merge(source), **tables).cast(state.schema)

    def find(self, reading: Reading, state: KeptState, key: Mapping[str, pa.Array]) -> pa.Table:
        """The merged row of one key, or none; ``key`` has an array of one for each key column."""
        source, tables = self.native(reading, state, "__appended")
        same = " AND ".join(f"s.{quote_native(k)} IS NOT DISTINCT FROM __key.{quote_native(k)}" for k in key)
        asked = f"(SELECT s.* FROM {source} AS s, __key WHERE {same})"
        return reading.query(state.merge(asked), __key=pa.table(dict(key)), **tables).cast(state.schema)


class InFile(Home):
    """In the database file: appended as batches, rewritten as a table."""

    def found(self, tx: Transaction, state: KeptState) -> None:
        tx.create_relation(state.ref, state.schema, bare=True)

    def append(self, tx: Transaction, rows: Mapping[int, pa.Table]) -> None:
        tx.append_batches(rows)

    def rewrite(self, tx: Transaction, ref: int, rows: pa.Table, *, altered: bool = False) -> None:
        tx.replace(ref, rows, altered=altered)

    def is_empty(self, tx: Transaction, ref: int) -> bool:
        return tx.rows(ref) == 0

    def last_change(self, reading: Reading, ref: int) -> int:
        return reading.last_change(ref)

    def last_rewrite(self, reading: Reading, ref: int) -> int:
        return reading.rewritten(ref)

    def since(self, reading: Reading, state: KeptState, epoch: int) -> pa.Table:
        return reading.since(state.ref, epoch, state.schema)

    def native(self, reading: Reading, state: KeptState, name: str) -> tuple[str, dict[str, pa.Table]]:
        source, batches = reading.whole(state.ref, name)
        return source, {name: batches}

    @contextmanager
    def frame(self, reading: Reading, state: KeptState, runtime: Runtime) -> Iterator[DataFrame]:
        source, tables = self.native(reading, state, "__appended")
        version = state.schema, self.last_change(reading, state.ref), self.last_rewrite(reading, state.ref)
        text, owner = state.merge(source), ("state", state.ref)
        with sql_frame(runtime, reading, text, tables, state.schema, (owner, version)) as frame:
            yield frame

    def queued(self, reading: Reading, ref: int) -> tuple[int, int] | None:
        return reading.queued(ref) if reading.has(ref) else None


class InMemory(Home):
    """In this process's memory, with no epochs: one state's rows, for whoever keeps them while rows come by."""

    def __init__(self, schema: pa.Schema, merge: Callable[[pa.Table], pa.Table] | None, limit: int) -> None:
        """Rows are merged when there are more than ``limit``, so memory follows the groups, if they can be."""
        self._schema = schema
        self._merge = merge
        self._limit = limit if merge is not None else math.inf
        self._pile = Pile(self._whole, self._limit)

    @property
    def rows(self) -> int:
        """How many rows lie there."""
        return self._pile.rows

    def take(self, rows: pa.Table) -> None:
        """Add partial rows, though there is no commit for them to be part of."""
        self._pile.add(rows)

    def _whole(self, tables: Sequence[pa.Table]) -> pa.Table:
        rows = pa.concat_tables([self._schema.empty_table(), *tables])
        return rows if self._merge is None else conform(self._merge(rows), self._schema)

    def found(self, tx: Transaction, state: KeptState) -> None:
        return

    def append(self, tx: Transaction, rows: Mapping[int, pa.Table]) -> None:
        for added in rows.values():
            self.take(added)

    def rewrite(self, tx: Transaction, ref: int, rows: pa.Table, *, altered: bool = False) -> None:
        self._pile = Pile(self._whole, self._limit)
        self._pile.add(rows)

    def is_empty(self, tx: Transaction, ref: int) -> bool:
        return self.rows == 0

    def last_change(self, reading: Reading, ref: int) -> int:
        return reading.epoch

    def last_rewrite(self, reading: Reading, ref: int) -> int:
        return reading.epoch

    def since(self, reading: Reading, state: KeptState, epoch: int) -> pa.Table:
        return pa.concat_tables([self._schema.empty_table(), *self._pile.tables])

    def native(self, reading: Reading, state: KeptState, name: str) -> tuple[str, dict[str, pa.Table]]:
        return quote_native(name), {name: self.since(reading, state, -1)}

    def queued(self, reading: Reading, ref: int) -> tuple[int, int] | None:
        return 0, self.rows


IN_FILE = InFile()
