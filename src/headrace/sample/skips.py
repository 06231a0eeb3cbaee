"""Algorithm L: which rows of a run enter a reservoir, found by arithmetic (000 §5.2.1).

Think of every row as having a priority, uniform in (0, 1), and of the reservoir as the ``size`` rows of
the lowest. The next row to enter is the next whose priority is below the highest of those, W: it comes
after a geometric number of rows, which is drawn, so that nobody looks at the rows between. Priorities
themselves are never drawn: W alone is, and what it was is enough to give the rows some in the end
(:meth:`Skips.priorities`). That makes reservoirs mergeable: the lowest of two are the lowest of both.

Selections are drawn a block at a time, and what is drawn but not reached yet is kept: a skip goes on over
the end of a batch, whatever the batches are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

NEVER = 1 << 61
"""A run has fewer rows than this."""
_LEAST, _MOST = 16, 1 << 16
"""Selections drawn at once."""


class Skips:
    """The rows of one run that enter a reservoir of ``size`` slots, and the slot each takes.

    Rows whose priority is ``threshold`` or more do not matter to the caller: they are passed over too.

    >>> skips = Skips(2, np.random.default_rng(1))
    >>> [skips.advance(rows)[0].tolist() for rows in (1, 4, 5)]
    [[0], [0, 2], [4]]
    >>> skips.seen, skips.filled
    (10, 2)
    """

    def __init__(self, size: int, rng: np.random.Generator, threshold: float = 1.0) -> None:
        self.size = size
        self.seen = 0
        self.filled = 0
        """Slots that hold a row."""
        self._rng = rng
        self._threshold = threshold
        self._positions = np.empty(0, np.int64)
        self._slots = np.empty(0, np.int64)
        self._log_w = np.empty(0)
        """W before each of the drawn selections, as its logarithm."""
        self._used = 0
        self._block = _LEAST
        self._last = -1
        """The position of the last selection drawn."""
        self._next_log_w: float | None = None
        """W after the last selection drawn; None while slots are free."""

    def advance(self, rows: int) -> tuple[Array, Array]:
        """The selections among the next ``rows`` rows: their places there, ascending, and their slots.

        A slot may come more than once: the last row to take it has it.
        """
        end = self.seen + rows
        positions, slots = [], []
        while True:
            stop = int(np.searchsorted(self._positions, end))
            if stop > self._used:
                positions.append(self._positions[self._used : stop] - self.seen)
                slots.append(self._slots[self._used : stop])
                self.filled += (stop - self._used) * self._filling
                self._used = stop
            if self._used < len(self._positions) or self._last >= NEVER:
                break
            self._draw()
        self.seen = end
        if len(positions) == 1:
            return positions[0], slots[0]
        empty = np.empty(0, np.int64)
        return np.concatenate([empty, *positions]), np.concatenate([empty, *slots])

    @property
    def threshold(self) -> float:
        """A priority that no row of the reservoir exceeds, and every row left out reaches."""
        if self.filled < self.size:
            return self._threshold
        log_w = self._log_w[self._used] if self._used < len(self._log_w) else self._next_log_w
        assert log_w is not None
        return float(np.exp(log_w))

    def priorities(self) -> Array:
        """A priority for each filled slot, as they would be had every row drawn one of its own.

        One row has W; given W, the others' are independent and uniform below it, and nothing tells which is
        whose. Ask once, when the run is over.
        """
        drawn = self._rng.random(self.filled) * self.threshold
        if self.filled == self.size:
            drawn[self._rng.integers(self.size)] = self.threshold
        return drawn

    @property
    def _filling(self) -> bool:
        """Whether the selections drawn fill free slots, in their order."""
        return self._next_log_w is None

    def _draw(self) -> None:
        """Draw the next block of selections. Blocks grow by themselves alone, so that batches make no difference."""
        free = self.size - self.filled
        count = self._block if not free else min(free, self._block)
        self._block = min(2 * self._block, _MOST)
        if free:
            self._draw_free(count)
            return
        if self._next_log_w is None:
            self._next_log_w = float(np.log(self._threshold) + self._log_uniform(1)[0] / self.size)
        log_w = self._next_log_w + np.concatenate([[0.0], np.cumsum(self._log_uniform(count)) / self.size])
        self._next_log_w = float(log_w[-1])
        self._place(self._log_uniform(count), log_w[:-1])
        self._slots = self._rng.integers(self.size, size=count)

    def _draw_free(self, count: int) -> None:
        """Selections into slots that are free: the next rows, or the next whose priority is low enough."""
        self._slots = np.arange(self.filled, self.filled + count)
        if self._threshold < 1.0:
            self._place(self._log_uniform(count), np.full(count, np.log(self._threshold)))
            return
        self._positions = np.arange(self._last + 1, self._last + 1 + count)
        self._log_w = np.zeros(count)
        self._last += count
        self._used = 0

    def _place(self, log_u: Array, log_w: Array) -> None:
        """Positions after skips of ``floor(ln U / ln(1 - W))`` rows each."""
        with np.errstate(divide="ignore"):
            steps = np.floor(log_u / np.log1p(-np.exp(log_w))) + 1.0
        far = self._last + np.cumsum(steps) >= NEVER
        positions = self._last + np.cumsum(np.where(far, 0, np.minimum(steps, NEVER)).astype(np.int64))
        self._positions = np.where(far, NEVER, positions)
        self._log_w = log_w
        self._last = int(self._positions[-1])
        self._used = 0

    def _log_uniform(self, count: int) -> Array:
        logs: Array = np.log(1.0 - self._rng.random(count))  # of (0, 1]: never of zero
        return logs
