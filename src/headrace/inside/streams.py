"""``headrace.streams`` and ``headrace.tables``: what comes by, and what is stored."""

from __future__ import annotations

from functools import cached_property

from headrace.catalog import Stream, Table
from headrace.inside.listing import MINUTE, Line, listing
from headrace.rings.book import Usage
from headrace.rings.home import terms_of
from headrace.types import BIGINT, DOUBLE, INT, STRING, Field, ddl


@listing(
    Stream,
    (
        Field("name", STRING),
        Field("columns", INT),
        Field("schema", STRING),
        Field("read_by", STRING),
        Field("created_epoch", BIGINT),
        Field("rows", BIGINT),
        Field("rows_since_open", BIGINT),
        Field("rows_per_second", DOUBLE),
        Field("capacity", BIGINT),
        Field("head", BIGINT),
        Field("readers", INT),
        Field("lag", BIGINT),
        Field("blocked_seconds", DOUBLE),
        Field("overruns", BIGINT),
        Field("lost_rows", BIGINT),
        Field("text_bytes", BIGINT),
    ),
    shown=(
        *("name", "columns", "read_by", "capacity", "head", "readers", "lag"),
        *("blocked_seconds", "overruns", "lost_rows", "text_bytes"),
    ),
)
class StreamLine(Line):
    """A stream: its rows, and how its buffer fares."""

    relation: Stream

    @property
    def columns(self) -> int:
        return len(self.relation.columns)

    @property
    def schema(self) -> str:
        return ddl(self.relation.columns)

    @property
    def read_by(self) -> str:
        return ", ".join(r.name for r in self.asked.runtime.catalog.dependents(self.name))

    @property
    def _count(self) -> str:
        return str(self.relation.number)

    @property
    def rows(self) -> int:
        return self.asked.counts.get(self._count, 0)

    @property
    def rows_since_open(self) -> int:
        opened = self.asked.opened
        return self.rows - (opened.counts.get(self._count, 0) if (self.created_epoch or 0) <= opened.epoch else 0)

    @property
    def rows_per_second(self) -> float:
        return self.asked.lately.get(self._count, 0) / MINUTE.total_seconds()

    # Its buffer

    @property
    def capacity(self) -> int:
        return terms_of(self.relation).capacity

    @cached_property
    def _used(self) -> Usage | None:
        ring = self.asked.runtime.rings.find(self.relation)
        return ring.usage() if ring is not None else None

    @property
    def head(self) -> int | None:
        return self._used.head if self._used else None

    @property
    def readers(self) -> int:
        return len(self._used.readers) if self._used else 0

    @property
    def lag(self) -> int | None:
        return max((lag for _, lag in self._used.readers), default=0) if self._used else None

    @property
    def blocked_seconds(self) -> float | None:
        return self._used.blocked_seconds if self._used else None

    @property
    def overruns(self) -> int | None:
        return self._used.overruns if self._used else None

    @property
    def lost_rows(self) -> int | None:
        return self._used.lost if self._used else None

    @property
    def text_bytes(self) -> int | None:
        return self._used.text_bytes if self._used else None


@listing(
    Table,
    (
        Field("name", STRING),
        Field("schema", STRING),
        Field("read_by", STRING),
        Field("created_epoch", BIGINT),
        Field("rows", BIGINT),
        Field("primary_key", STRING),
        Field("files", STRING),
    ),
    shown=("name", "rows", "primary_key"),
)
class TableLine(Line):
    """A table, of its own rows or over files."""

    relation: Table

    @property
    def schema(self) -> str:
        return ddl(self.relation.columns)

    @property
    def read_by(self) -> str:
        return ", ".join(r.name for r in self.asked.runtime.catalog.dependents(self.name))

    @property
    def rows(self) -> int | None:
        if self.relation.files is not None:
            return None  # to know it, the files would have to be read
        snapshot, number = self.asked.snapshot, self.relation.number
        in_files = sum(s.rows for s in snapshot.manifest(number)) - sum(snapshot.deleted(number).values())
        return snapshot.rows(number) + in_files

    @property
    def primary_key(self) -> str:
        return ", ".join(self.relation.primary_key)

    @property
    def files(self) -> str | None:
        return self.relation.files.location if self.relation.files is not None else None
