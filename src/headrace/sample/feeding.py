"""What an insert draws for a kept sample: state rows that merge with those of any other insert.

A state is two relations. ``rows`` has the rows of the lowest priorities, each with its own; merged, the lowest of
them all are the sample. ``seen`` has how many rows there were. With groups, both are kept for each group.

A feed is a descriptor: a task gets it with its slice, draws, and returns state rows. It is told a threshold that
the sample has reached: a row whose priority is not below it cannot be in the sample any more, so of a long stream
few rows are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa

from headrace.base.native import native_query
from headrace.engine.failures import NativeCannot, from_duckdb
from headrace.engine.plan_sql import quote_native
from headrace.engine.work import BATCH, Fragment, FragmentRun, ParquetPart, PipelineCannot
from headrace.sample.parquet_rows import stretch_of, take_rows
from headrace.sample.reservoir import Reservoir
from headrace.sql.sample_limits import too_many_groups

if TYPE_CHECKING:
    from headrace.engine.worker import Worker

Array = np.ndarray[Any, Any]
PRIORITY = "priority"
SEEN = "seen"
_GROUPED_ROWS = 1 << 18


@dataclass(frozen=True)
class Feed(Fragment):
    """One kept sample, as whoever draws for it needs to know it."""

    name: str
    rows: int
    """The state relation of the rows drawn."""
    seen: int
    """The state relation of how many rows there were."""
    size: int
    columns: tuple[str, ...]
    """The stream's columns it keeps, all of them."""
    keys: tuple[int, ...]
    """The places among these of the columns it is grouped by."""
    types: tuple[pa.DataType, ...]
    where: str | None
    """Native SQL that gives the columns of those rows of ``batch_rows`` that count; None if all do."""
    threshold: float
    entropy: tuple[int, ...]
    """What randomness starts from; each slice adds its number."""
    most_groups: int

    def begin(self, worker: Worker, number: int) -> Feeder:
        return Feeder(self, worker, number)

    @property
    def rows_schema(self) -> pa.Schema:
        return rows_schema(self.types)

    @property
    def seen_schema(self) -> pa.Schema:
        return seen_schema([self.types[k] for k in self.keys])

    @property
    def key_names(self) -> list[str]:
        return [f"c{k}" for k in self.keys]


def rows_schema(types: tuple[pa.DataType, ...]) -> pa.Schema:
    """The columns of a sample's rows in the store: by number, for the stream's names may be any."""
    return pa.schema([(PRIORITY, pa.float64()), *((f"c{i}", t) for i, t in enumerate(types))])


def seen_schema(keys: list[pa.DataType]) -> pa.Schema:
    return pa.schema([*((f"k{i}", t) for i, t in enumerate(keys)), (SEEN, pa.int64())])


class Feeder(FragmentRun):
    """Draws for one feed from one slice."""

    def __init__(self, feed: Feed, worker: Worker, number: int) -> None:
        self.feed = feed
        self._worker = worker
        self._rng = np.random.default_rng([*feed.entropy, number])
        self._reservoir = Reservoir(feed.size, self._rng, threshold=feed.threshold)
        self._held: list[pa.Table] = []
        self._counts: list[pa.Table] = []

    def add(self, batch: pa.Table) -> None:
        with self._drawing() as cursor:
            if self.feed.where is not None:
                batch = native_query(cursor, self.feed.where, {BATCH: batch})
            self._add_passed(cursor, batch.select(self.feed.columns))

    def add_parquet(self, part: ParquetPart) -> None:
        """A sample of all rows reads those it draws; one with conditions or groups, those that pass."""
        feed = self.feed
        with self._drawing() as cursor:
            if feed.where is None and not feed.keys:
                stretch = stretch_of(str(part.piece.path), part.piece.start, part.piece.end)
                self._reservoir.add_drawn(
                    stretch.rows,
                    lambda places: take_rows(part.cursor, [stretch], places, part.items).select(feed.columns),
                )
                return
            names = ", ".join(quote_native(c) for c in feed.columns)
            for chunk in part.chunks(feed.where or f"SELECT {names} FROM {BATCH}"):
                self._add_passed(cursor, chunk)

    def states(self) -> dict[int, pa.Table]:
        feed = self.feed
        if feed.keys:
            with self._drawing() as cursor:
                self._reduce(cursor)
            rows, counts = self._held[0], self._counts[0]
        else:
            table, priorities = self._reservoir.with_priorities()
            rows = feed.rows_schema.empty_table()
            if table.num_columns:
                table = table.rename_columns([f"c{i}" for i in range(table.num_columns)])
                rows = table.append_column(PRIORITY, pa.array(priorities))
            counts = pa.table({SEEN: pa.array([self._reservoir.seen] if self._reservoir.seen else [], pa.int64())})
        return {
            feed.rows: rows.select(feed.rows_schema.names).cast(feed.rows_schema),
            feed.seen: counts.select(feed.seen_schema.names).cast(feed.seen_schema),
        }

    def _add_passed(self, cursor: duckdb.DuckDBPyConnection, rows: pa.Table) -> None:
        """Rows that passed the sample's WHERE, in its columns."""
        if not self.feed.keys:
            self._reservoir.add(rows)
            return
        rows = rows.rename_columns([f"c{i}" for i in range(rows.num_columns)])
        self._held.append(rows.append_column(PRIORITY, pa.array(self._rng.random(rows.num_rows))))
        if sum(t.num_rows for t in self._held) > _GROUPED_ROWS:
            self._reduce(cursor)

    @contextmanager
    def _drawing(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor to draw with; what goes wrong meanwhile has the names it has in any fragment."""
        with self._worker.cursor() as cursor:
            try:
                yield cursor
            except duckdb.Error as error:
                failure = from_duckdb(error)
                if isinstance(failure, NativeCannot):
                    raise PipelineCannot(self.feed.rows, failure.message) from None
                raise failure from None

    def _reduce(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """The lowest of each group, of the rows held; rows that were counted before are marked so."""
        keys = ", ".join(self.feed.key_names)
        named = ", ".join(f"c{k} AS k{i}" for i, k in enumerate(self.feed.keys))
        new = self._held if not self._counts else self._held[1:]
        if new or not self._counts:
            fresh = pa.concat_tables([self._empty(), *new])
            text = f"SELECT {named}, count(*) AS {SEEN} FROM given GROUP BY {keys}"
            counts = native_query(cursor, text, {"given": fresh})
            self._counts = [self._summed(cursor, pa.concat_tables([*self._counts, counts.cast(self.feed.seen_schema)]))]
        if self._counts[0].num_rows > self.feed.most_groups:
            raise too_many_groups(self.feed.name, self._counts[0].num_rows, self.feed.most_groups)
        held = pa.concat_tables([self._empty(), *self._held])
        self._held = [native_query(cursor, lowest_sql("given", self.feed.key_names, self.feed.size), {"given": held})]
        self._held = [self._held[0].select(self._empty().column_names).cast(self._empty().schema)]

    def _summed(self, cursor: duckdb.DuckDBPyConnection, counts: pa.Table) -> pa.Table:
        keys = [f"k{i}" for i in range(len(self.feed.keys))]
        return native_query(cursor, seen_sql("given", keys), {"given": counts}).cast(self.feed.seen_schema)

    def _empty(self) -> pa.Table:
        fields = [(f"c{i}", t) for i, t in enumerate(self.feed.types)]
        return pa.schema([*fields, (PRIORITY, pa.float64())]).empty_table()


def lowest_sql(source: str, keys: list[str], size: int) -> str:
    """Native SQL for the rows of the lowest priorities, in each group if there are groups."""
    if not keys:
        return f"SELECT * FROM {source} ORDER BY {PRIORITY} LIMIT {size}"
    by = ", ".join(keys)
    return f"SELECT * FROM {source} QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY {PRIORITY}) <= {size}"


def seen_sql(source: str, keys: list[str]) -> str:
    """Native SQL that adds up how many rows there were."""
    total = f"sum({SEEN})::BIGINT AS {SEEN}"
    if not keys:
        return f"SELECT {total} FROM {source} HAVING count(*) > 0"
    return f"SELECT {', '.join(keys)}, {total} FROM {source} GROUP BY ALL"
