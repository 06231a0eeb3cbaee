"""What a worker is told: plain values that a Spark task can be sent, and the names its texts read rows by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.engine.grouping import Grouped
from headrace.sample.feeding import Feed, Feeder
from headrace.stream import files
from headrace.stream.arrow_file import ArrowSlice
from headrace.stream.csv import CsvOptions
from headrace.stream.ring.delivery import Address
from headrace.types import Schema

Slice = files.Slice | ArrowSlice

BATCH = "batch_rows"
"""The name pipelines read their stream's rows by."""
PARTIALS = "__partials"
"""The name a merge reads partial rows by."""
JOINED = "joined_rows"
"""The name groupings read a batch's rows by that were joined for all of them."""
MASK = "__mask"
"""The column of a shared grouping that says which filters a row passed, a bit each."""
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
    """A build side: the relation name pipelines probe it by, and the file that holds it."""

    name: str
    path: Path


@dataclass(frozen=True)
class Pipeline:
    """What an insert computes for one state relation, as native SQL."""

    state: str
    sql: str
    narrow: str | None
    """The same in 64-bit decimals where that may do: it gives the same rows or an error."""
    merge: str
    """SQL that merges rows of ``__partials`` into one a key."""
    schema: pa.Schema


@dataclass(frozen=True)
class Part:
    """One state's share of a shared grouping: its columns, of the rows whose mask has its bit (0: all rows)."""

    state: str
    columns: tuple[str, ...]
    bit: int
    schema: pa.Schema


@dataclass(frozen=True)
class Shared:
    """One grouping that fills the states of several pipelines."""

    sql: str
    narrow: str | None
    parts: tuple[Part, ...]
    over: str | None = None
    """SQL of the ``joined_rows`` it reads; those who have the same stand together, so that it runs once."""


@dataclass(frozen=True)
class Work:
    """Everything a worker needs to turn slices of one stream's input into state rows."""

    pipelines: tuple[Pipeline, ...]
    statics: tuple[Static, ...]
    schema: Schema
    columns: tuple[str, ...]
    options: CsvOptions | None
    zone: str
    missing: Schema = ()
    """Columns pipelines read that the input does not hold: NULL in every row."""
    shared: tuple[Shared, ...] = ()
    """Groupings that do several pipelines' work at once."""
    grouped: tuple[Grouped, ...] = ()
    """Groupings of a small batch by compiled loops; those over the same columns stand together."""
    ring: Address | None = None
    """The stream's ring, if its rows are to go there too."""
    feeds: tuple[Feed, ...] = ()
    """Kept samples that draw from the input."""

    def feeders(self, number: int) -> list[Feeder]:
        """Who draws from one slice; its number makes it draw other rows than the next."""
        return [Feeder(feed, number) for feed in self.feeds]


class PipelineCannot(Exception):
    """A pipeline met a value the native engine does not treat as Spark does."""

    def __init__(self, state: str, reason: str) -> None:
        self.state = state
        self.reason = reason
        super().__init__(state, reason)
