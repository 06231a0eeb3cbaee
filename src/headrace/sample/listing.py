"""``headrace.samples``: how much is drawn, and of how much."""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa

from headrace.catalog.sample import Sample
from headrace.inside.listing import Line, listing
from headrace.sample.kept import KeptSample
from headrace.types import BIGINT, STRING, Field


@listing(
    Sample,
    (
        Field("name", STRING),
        Field("of", STRING),
        Field("size", BIGINT),
        Field("grouped_by", STRING),
        Field("groups", BIGINT),
        Field("rows", BIGINT),
        Field("rows_seen", BIGINT),
        Field("bytes", BIGINT),
        Field("last_change_epoch", BIGINT),
        Field("insert_place", STRING),
    ),
    shown=("name", "of", "size", "grouped_by", "rows", "rows_seen"),
)
class SampleLine(Line):
    """A kept sample."""

    relation: Sample

    @property
    def of(self) -> str:
        return self.relation.of

    @property
    def size(self) -> int:
        return self.relation.size

    @property
    def grouped_by(self) -> str:
        return ", ".join(self.relation.keys)

    @cached_property
    def _sample(self) -> KeptSample:
        found: KeptSample = self.kept
        return found

    @cached_property
    def _seen(self) -> tuple[int, int]:
        return self._sample.counts(self.asked.snapshot)

    @property
    def groups(self) -> int | None:
        return self._seen[0] if self.relation.keys else None

    @property
    def rows_seen(self) -> int:
        return self._seen[1]

    @cached_property
    def _rows(self) -> pa.Table:
        return self.asked.keeper.rows(self.asked.snapshot, self.name)

    @property
    def rows(self) -> int:
        return int(self._rows.num_rows)

    @property
    def bytes(self) -> int:
        return self._sample.bytes_of(self._rows)

    @property
    def last_change_epoch(self) -> int:
        rows = self._sample.rows
        return rows.home.last_change(self.asked.snapshot, rows.ref)

    @property
    def insert_place(self) -> str | None:
        place = self.asked.keeper.ran.get(self._sample.rows.ref)
        return place.place.value if place is not None else None
