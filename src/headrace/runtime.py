"""What every part of an open database shares: its store, its engines, its settings."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from headrace.base.copies import Copies
from headrace.base.tidying import Tidying
from headrace.base.turns import Turns
from headrace.catalog import Catalog, Relation, Table
from headrace.engine.analyzer import SparkAnalyzer
from headrace.engine.key_index import Indexes
from headrace.engine.segment_columns import SegmentColumns
from headrace.engine.session import Session
from headrace.engine.worker import Worker
from headrace.rings.home import Rings
from headrace.settings import Settings
from headrace.store import Store, Transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Parts = Callable[[], Iterable[tuple[pa.Table, int]]]
"""Rows of a table's change and how often each counts, 1 or -1, part by part."""


class Handing(Protocol):
    """A table's change, on its way to those who follow it."""

    def add(self, tx: Transaction) -> None:
        """In the commit that changes the table."""

    def settled(self) -> None:
        """When that is durable, by the writer; it must not fail."""

    def after(self) -> None:
        """When that is committed."""


class _ToNobody:
    def add(self, tx: Transaction) -> None:
        return

    def settled(self) -> None:
        return

    def after(self) -> None:
        return


@dataclass
class Runtime:
    """The open parts of a database. ``catalog`` is replaced as a whole, never changed."""

    store: Store
    settings: Settings
    session: Session
    worker: Worker
    rings: Rings
    catalog: Catalog = field(default_factory=Catalog)
    tables_lock: Turns = field(default_factory=Turns)
    """Held by whoever changes a table or a definition: a view being made must see tables stand still. An insert that
    definitions overtook takes its turn too, unless they take long."""
    writer_version: int = 0
    """The catalog version the writer thread has committed; ahead of ``catalog`` for a moment during DDL."""
    file_marks: dict[Table, tuple[tuple[str, int, int], ...]] = field(default_factory=dict)
    """The files of tables over files, as last seen; the store has the same."""
    untold: list[tuple[str, Relation | None, int]] = field(default_factory=list)
    """Relations that were made or dropped, with the epoch, and that other processes were not told of yet."""
    forsaken: list[tuple[str, int]] = field(default_factory=list)
    """Relations that were dropped, by the names and in the epochs they were made: files are named for them."""
    breaking: dict[int, tuple[Table, Any]] = field(default_factory=dict)
    """Queries of rows that break the conditions of tables, by number (``table/constraints.py``)."""
    tidying: Tidying = field(default_factory=Tidying)
    indexes: Indexes = field(default_factory=Indexes)
    """Where rows of tables are by their primary keys (``table/keys.py``)."""
    columns: SegmentColumns = field(default_factory=SegmentColumns)
    """Columns of segments that rows are taken of by key."""
    gone: Counter[int] = field(default_factory=Counter)
    """How many rows of tables' segments were deleted since somebody looked at these."""
    hand_on: Callable[[Table, Parts], Handing] = field(default=lambda table, parts: _ToNobody())
    """Hands a table's change on; hold ``tables_lock``."""
    copies: Copies = field(init=False)
    """What was written out of the database file, for Spark."""
    is_followed: Callable[[Table], bool] = field(default=lambda table: False)
    """Whether anybody is handed a table's changes, and so needs all of the rows that go; hold ``tables_lock``."""
    needed_from: Callable[[Table], int | None] = field(default=lambda table: None)
    """The epoch after which somebody has still to take a table's changes in from its history; None if nobody has."""
    _files: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.copies = Copies(self.store.scratch)

    @property
    def task_bytes(self) -> int:
        """How large input must be to be read by Spark's tasks. A batch has none: it is read here, however large."""
        return self.settings.task_bytes if self.store.batch is None else sys.maxsize

    def refuse_spark(self, why: str = "") -> None:
        """Raise in a batch: what it has changed nobody outside this process can see."""
        what = f"what needs Spark{f' ({why})' if why else ''}"
        self.store.refuse_in_batch(what, "do it before the batch or after it")

    @property
    def spark(self) -> SparkSession:
        return self.session.get()

    def analyzer(self, known: Mapping[str, str] | None = None) -> SparkAnalyzer:
        """Spark's analyzer; started only if something is asked that is not ``known``."""
        return SparkAnalyzer(self.session.get, self.settings.time_zone, known)

    def scratch_file(self, suffix: str) -> Path:
        """A fresh path for a file of a running statement; swept when the database is next opened."""
        return self.store.scratch / f"f{next(self._files)}{suffix}"
