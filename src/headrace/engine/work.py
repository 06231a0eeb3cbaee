"""What a worker is told: plain values that a Spark task can be sent.

A *fragment* is the part of a plan that runs in one place without a break. It says which columns of the input it reads
and which build sides it probes, and :meth:`Fragment.begin` begins a *run* of it over one part of the input: rows in,
state rows out. A worker runs any fragments over any input (``engine/worker.py:Worker.reduce``); it knows none by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from headrace.base.lacking import lacking_rows
from headrace.input import files
from headrace.input.arrow_file import ArrowSlice
from headrace.input.csv import CsvOptions
from headrace.input.parquet import ParquetPiece
from headrace.rings.delivery import Address
from headrace.types import Schema

if TYPE_CHECKING:
    from headrace.engine.worker import Worker

Slice = files.Slice | ArrowSlice

BATCH = "batch_rows"
"""The name fragments read their stream's rows by."""
PARTIALS = "__partials"
"""The name a merge reads partial rows by."""
CHUNK_ROWS = 262_144
"""Rows handed to DuckDB at once: enough to hide the cost of a query, few enough to bound memory."""
_GROUPED = {b"headrace": b"one row a key"}


def grouped(rows: pa.Table) -> pa.Table:
    """State rows with a note that no two of them have the same key."""
    return rows.replace_schema_metadata(_GROUPED)


def is_grouped(rows: pa.Table) -> bool:
    """Whether the rows have that note.

    >>> rows = pa.table({"k": [1, 2]})
    >>> is_grouped(rows), is_grouped(grouped(rows)), is_grouped(pa.concat_tables([grouped(rows)] * 2))
    (False, True, True)

    So ask before tables are put together.
    """
    return (rows.schema.metadata or {}).get(b"headrace") == _GROUPED[b"headrace"]


@dataclass(frozen=True)
class Static:
    """A build side: the relation name fragments probe it by, and the file that holds it."""

    name: str
    path: Path | None
    """None for one that follows what it is made of: each run is told its file (:attr:`Work.sides`)."""

    def among(self, sides: Mapping[str, Path]) -> Static:
        """The build side with its file, as a run is told it."""
        return replace(self, path=sides[self.name]) if self.path is None else self

    @property
    def file(self) -> Path:
        assert self.path is not None, f"nobody said where {self.name} lies"
        return self.path


class Overtaken(Exception):
    """What a run reads has changed since it began: what it leaves is void, and its input is to be run again."""


class Fragment(ABC):
    """Work for one state or several, over the rows of one stream. A value: a task can be sent it."""

    columns: tuple[str, ...]
    """The columns of the input it reads."""
    statics: tuple[Static, ...] = ()
    """The build sides it probes."""
    has_threads: bool = False
    """Whether it reads a file with threads of its own, so that cutting it up in this process gains nothing."""

    @abstractmethod
    def begin(self, worker: Worker, number: int) -> FragmentRun:
        """Begin over one part of the input; what draws at random draws otherwise for each number."""


class FragmentRun(ABC):
    """A fragment over one part of the input."""

    @abstractmethod
    def add(self, batch: pa.Table) -> None:
        """The next rows: all are taken, or none if it raises."""

    def add_parquet(self, part: ParquetPart) -> None:
        """The next rows, which lie in a file, as whoever can read less of it than all wants to read them."""
        for chunk in part.chunks():
            self.add(chunk)

    @abstractmethod
    def states(self) -> dict[int, pa.Table]:
        """The state rows of all that was added, by state; one without rows may be left out."""


class PipelineCannot(Exception):
    """A fragment met a value the native engine does not treat as Spark does."""

    def __init__(self, state: int, reason: str) -> None:
        self.state = state
        self.reason = reason
        super().__init__(state, reason)


@dataclass(frozen=True)
class Work:
    """Everything a worker needs to turn slices of one stream's input into state rows."""

    fragments: tuple[Fragment, ...]
    schema: Schema
    """The input's columns."""
    columns: tuple[str, ...]
    """Those of them that are read."""
    options: CsvOptions | None
    zone: str
    missing: Schema = ()
    """Columns fragments read that the input does not hold: their default in every row, or NULL."""
    ring: Address | None = None
    """The stream's ring, if its rows are to go there too."""
    sides: Mapping[str, Path] = field(default_factory=dict)
    """The files of build sides that follow what they are made of, by their names."""

    @cached_property
    def statics(self) -> tuple[Static, ...]:
        found = {static.name: static for f in self.fragments for static in f.statics}
        return tuple(static.among(self.sides) for static in found.values())


@dataclass(frozen=True)
class ParquetPart:
    """Rows of a Parquet file, there for a while as the view :data:`BATCH` of a cursor."""

    piece: ParquetPiece
    cursor: duckdb.DuckDBPyConnection
    items: str
    """Native select list of the columns that are read."""
    told: Callable[[float], None] | None = None
    """Hears how much of the part has been read, as a share of it."""

    def chunks(self, text: str = f"SELECT * FROM {BATCH}", rows: int = CHUNK_ROWS) -> Iterator[pa.Table]:
        """The rows of a query over the view, about so many at a time."""
        from headrace.base.native import native_batches

        return chunked(native_batches(self.cursor, text, 65_536), rows)


class Pile:
    """State rows of one state as they come, merged whenever more came since the last merge than that left.

    So memory follows the groups, not the rows, and each row is merged a bounded number of times.

    >>> pile = Pile(lambda tables: pa.table({"n": [sum(sum(t["n"].to_pylist()) for t in tables)]}), limit=2)
    >>> for n in range(9): pile.add(pa.table({"n": [n]}))
    >>> pile.rows, pile.whole().to_pylist(), pile.rows
    (3, [{'n': 36}], 1)
    """

    def __init__(self, merge: Callable[[list[pa.Table]], pa.Table], limit: float = 4 * CHUNK_ROWS) -> None:
        self._merge = merge
        self._limit = limit
        self._tables: list[pa.Table] = []
        self._since = 0

    @property
    def tables(self) -> list[pa.Table]:
        """What is there now."""
        return self._tables

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self._tables)

    def add(self, rows: pa.Table) -> None:
        if self._tables:
            self._since += rows.num_rows
        self._tables.append(rows)
        if self._since > max(self._limit, self._tables[0].num_rows):
            self.whole()

    def whole(self) -> pa.Table | None:
        """All of them, merged; None if nothing came."""
        if len(self._tables) > 1:
            self._tables = [self._merge(self._tables)]
            self._since = 0
        return self._tables[0] if self._tables else None


def chunked(batches: Iterator[pa.RecordBatch], rows: int = CHUNK_ROWS) -> Iterator[pa.Table]:
    """Batches gathered into tables of about ``rows`` rows."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield pa.Table.from_batches(held)
            held, count = [], 0
    if held:
        yield pa.Table.from_batches(held)


def with_missing(rows: pa.Table, missing: Schema) -> pa.Table:
    """The rows with further columns, which have their defaults throughout."""
    for column in missing:
        rows = rows.append_column(column.name, lacking_rows(column, rows.num_rows))
    return rows
