"""A reservoir over Arrow batches: only rows that stay are ever copied.

A selected row is first held by reference: its batch and its place there. Copies are made when the batches
held that way are more than :data:`PINNED_BYTES`, and in the end: a row replaced before that is never touched,
and a batch without a selected row is let go at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.sample.gathering import gather, plain_schema
from headrace.sample.skips import Skips

Array = np.ndarray[Any, Any]

PINNED_BYTES = 64 << 20
"""Batches that are kept alive for the rows selected of them, before those are copied."""


_MOST_PIECES = 256


class Reservoir:
    """A uniform sample of ``size`` of the rows added, or all of them if they are fewer.

    >>> reservoir = Reservoir(3, np.random.default_rng(1))
    >>> for start in (0, 40, 50):
    ...     reservoir.add(pa.table({"i": range(start, start + 25)}))
    >>> reservoir.seen, reservoir.rows().num_rows
    (75, 3)
    """

    def __init__(
        self, size: int, rng: np.random.Generator, *, threshold: float = 1.0, pinned_bytes: int = PINNED_BYTES
    ) -> None:
        self._skips = Skips(size, rng, threshold)
        self._rng = rng
        self._pinned_bytes = pinned_bytes
        self._schema: pa.Schema | None = None
        self._pieces: list[pa.RecordBatch] = []
        self._pinned = 0
        """Rows of the batches held, and about how many bytes a row has."""
        self._row_bytes = 0.0
        self._piece = np.empty(0, np.int64)
        self._row = np.empty(0, np.int64)
        """Each slot's row: the piece it is in, and its place there."""

    @property
    def seen(self) -> int:
        """The rows added so far."""
        return self._skips.seen

    @property
    def threshold(self) -> float:
        return self._skips.threshold

    def add(self, batch: pa.Table | pa.RecordBatch) -> None:
        """The next rows; they must have the columns of those before."""
        if self._schema is None:
            self._schema = batch.schema.remove_metadata()
        if isinstance(batch, pa.Table):
            for part in batch.to_batches():
                self.add(part)
            return
        places, slots = self._skips.advance(batch.num_rows)
        if not len(places):
            return
        self._grow()
        self._piece[slots] = len(self._pieces)
        self._row[slots] = places
        self._pieces.append(batch)
        self._pinned += batch.num_rows
        if not self._row_bytes:
            self._row_bytes = batch.nbytes / batch.num_rows
        if self._pinned * self._row_bytes > self._pinned_bytes:
            self._settle()

    def add_drawn(self, count: int, fetch: Callable[[Array], pa.Table]) -> None:
        """The next ``count`` rows, of which only those are fetched, by their places, that are drawn and stay."""
        places, slots = self._skips.advance(count)
        if not len(places):
            return
        last = len(slots) - 1 - np.unique(slots[::-1], return_index=True)[1]
        stay = np.sort(last)
        rows = fetch(places[stay]).combine_chunks()
        if self._schema is None:
            self._schema = rows.schema.remove_metadata()
        self._grow()
        self._piece[slots[stay]] = len(self._pieces)
        self._row[slots[stay]] = np.arange(len(stay))
        self._pieces += rows.to_batches()[:1]
        if len(self._pieces) > _MOST_PIECES:
            self._settle()

    def rows(self) -> pa.Table:
        """The sample, in random order: its first k rows are a uniform sample of k."""
        if self._schema is None:
            return pa.table({})
        return self._gathered(self._rng.permutation(len(self._row)))

    def with_priorities(self) -> tuple[pa.Table, Array]:
        """The sample, and priorities by which it merges with other samples: the lowest are the sample of all."""
        if self._schema is None:
            return pa.table({}), np.empty(0)
        return self._gathered(np.arange(len(self._row))), self._skips.priorities()

    def _grow(self) -> None:
        """Have a place for each slot that is filled."""
        more = self._skips.filled - len(self._row)
        if more:
            self._piece = np.concatenate([self._piece, np.zeros(more, np.int64)])
            self._row = np.concatenate([self._row, np.zeros(more, np.int64)])

    def _settle(self) -> None:
        """Copy the rows that are held by reference, and let go of their batches."""
        self._pieces = self._gathered(np.arange(len(self._row))).to_batches()
        self._piece = np.zeros_like(self._piece)
        self._row = np.arange(len(self._row))
        self._pinned = 0

    def _gathered(self, order: Array) -> pa.Table:
        """Copies of the slots' rows, in this order of slots."""
        assert self._schema is not None
        pieces, rows = self._piece[order], self._row[order]
        by_place = np.lexsort((rows, pieces))
        taken = [gather(self._pieces[p], rows[by_place[start:end]]) for p, start, end in runs(pieces[by_place])]
        together = pa.Table.from_batches(taken, plain_schema(self._schema)).combine_chunks()
        back = np.empty(len(order), np.int64)
        back[by_place] = np.arange(len(order))
        if np.array_equal(back, np.arange(len(back))):
            return together
        return pa.Table.from_batches([batch.take(pa.array(back)) for batch in together.to_batches()], together.schema)


def runs(ascending: Array) -> list[tuple[int, int, int]]:
    """Each value of an ascending array, with the stretch that has it.

    >>> runs(np.array([3, 3, 5]))
    [(3, 0, 2), (5, 2, 3)]
    """
    starts = np.flatnonzero(np.diff(ascending, prepend=ascending[:1] - 1))
    ends = [*starts[1:], len(ascending)][: len(starts)]
    return [(int(ascending[s]), int(s), int(e)) for s, e in zip(starts, ends, strict=True)]
