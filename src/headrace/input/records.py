"""Where one CSV record ends and the next begins, exactly, in any part of a file.

A newline ends a record unless it stands inside quotes, and whether it does
depends on every quote before it. Reading a file from its start to learn that
would undo slicing. But most quotes tell more than their parity. Take each *run*
of adjacent quotes as a function of the state before it, outside or inside:

* even length: the state stays (an empty field, or escaped quotes);
* odd length, at the start of a field: the state flips (it opens, or it closes);
* odd length, elsewhere: the state is *outside* afterwards, whatever it was
  (it closes a quoted field, or it is a plain character of an unquoted one).

So the state at any byte is the number of flips since the last run of the third
kind, and looking back from that byte soon finds one: a closing quote is one,
unless its field ends in a delimiter or a newline. These are the rules pyarrow's
CSV parser follows, a quote inside an unquoted field included.

>>> text = np.frombuffer(b'1,"a\\nb"\\n2,c\\n', dtype=np.uint8)
>>> rule = Quoting(delimiter=ord(","), quote=ord('"'))
>>> rule.ends_open(text, 0, 5), rule.ends_open(text, 0, 8)
(True, False)
>>> rule.record_ends(text, 0, len(text))[0].tolist()
[7, 11]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

NEWLINE = 10
RETURN = 13
LOOK_BACK = 1 << 12
"""Bytes looked at in the first step backwards; a closing quote is nearly always among them."""
CHUNK = 1 << 22
"""Bytes lexed in one step forwards."""


@dataclass(frozen=True, slots=True)
class Quoting:
    """What delimits and quotes fields; ``quote=None`` means that nothing does."""

    delimiter: int
    quote: int | None

    def ends_open(self, data: Bytes, start: int, end: int) -> bool:
        """Whether ``end`` stands inside quotes, given that ``start`` is the start of a record."""
        return self.look_back(data, start, end, end - start) is True

    def look_back(self, data: Bytes, start: int, end: int, limit: int) -> bool | None:
        """As :meth:`ends_open`, but ``None`` where the last ``limit`` bytes do not tell."""
        if self.quote is None:
            return False
        flips = 0
        high = end
        step = LOOK_BACK
        floor = max(start, end - limit)
        while high > floor:
            low = max(floor, high - step)
            step = min(step * 4, CHUNK)
            while low > start and data[low - 1] == self.quote:  # never cut a run of quotes
                low -= 1
            opens, odd, _ = self._runs(data, start, low, high)
            closes = np.flatnonzero(odd & ~opens)
            if closes.size:
                flips += int(np.count_nonzero((odd & opens)[closes[-1] + 1 :]))
                return flips % 2 == 1
            flips += int(np.count_nonzero(odd & opens))
            high = low
        return flips % 2 == 1 if high <= start else None

    def record_ends(
        self, data: Bytes, start: int, end: int, *, origin: int = 0, inside: bool = False
    ) -> tuple[Offsets, bool]:
        """Offsets of the bytes that end a record in ``[start, end)``, and the state at ``end``.

        ``origin`` is the first byte of data, ``inside`` the state at ``start``; neither ``start``
        nor ``end`` may cut a run of quotes.
        """
        part = data[start:end]
        ends = np.flatnonzero((part == NEWLINE) | (part == RETURN)) + start
        # \r\n ends one record, at its \n; a bare \r ends one too (as pyarrow has it)
        paired = (data[ends] == RETURN) & (ends + 1 < data.size)
        ends = ends[~(paired & (data[np.minimum(ends + 1, data.size - 1)] == NEWLINE))]
        if self.quote is None:
            return ends, False
        opens, odd, positions = self._runs(data, origin, start, end)
        if not positions.size:
            return (ends[:0], True) if inside else (ends, False)
        flips = np.cumsum(odd & opens)
        last_close = np.maximum.accumulate(np.where(odd & ~opens, np.arange(positions.size), -1))
        since = np.where(last_close >= 0, flips - flips[last_close], flips + int(inside))
        state = np.concatenate(([inside], since % 2 == 1))
        return ends[~state[np.searchsorted(positions, ends)]], bool(state[-1])

    def _runs(self, data: Bytes, origin: int, low: int, high: int) -> tuple[Any, Any, Offsets]:
        """For each run of quotes in ``[low, high)``: may it open a field, is it odd, where is it."""
        quotes = np.flatnonzero(data[low:high] == self.quote) + low
        first = np.ones(quotes.size, dtype=bool)
        first[1:] = np.diff(quotes) != 1
        positions = quotes[first]
        lengths = np.diff(np.append(np.flatnonzero(first), quotes.size))
        before = data[np.maximum(positions - 1, 0)]
        opens = (before == self.delimiter) | (before == NEWLINE) | (before == RETURN) | (positions == origin)
        return opens, lengths % 2 == 1, positions

    def chunks(self, data: Bytes, start: int, end: int) -> Iterator[tuple[Offsets, bool]]:
        """:meth:`record_ends` over ``[start, end)``, a bounded piece at a time."""
        inside = False
        origin = start
        while start < end:
            stop = min(start + CHUNK, end)
            while stop < end and data[stop] == self.quote:
                stop += 1
            ends, inside = self.record_ends(data, start, stop, origin=origin, inside=inside)
            yield ends, inside
            start = stop

    def next_record(self, data: Bytes, start: int, at: int, *, limit: int) -> int:
        """The first record start at or after ``at`` (or the end of data), ``start`` being one.

        Looks back at most ``limit`` bytes; where they do not tell, ``at`` is taken to be
        outside quotes, and whoever reads up to it must check that.
        """
        if at <= start:
            return start
        at -= 1  # the newline may be the byte before
        first = at
        while self.quote is not None and at > start and data[at] == self.quote:
            at -= 1
        inside = self.look_back(data, start, at, limit) is True
        step = 1 << 12
        while at < data.size:
            stop = min(at + step, data.size)
            while stop < data.size and data[stop] == self.quote:
                stop += 1
            ends, inside = self.record_ends(data, at, stop, origin=start, inside=inside)
            ends = ends[(data[ends] == NEWLINE) & (ends >= first)]  # never at a bare \r: readers cut at newlines
            if ends.size:
                return int(ends[0]) + 1
            at = stop
            step = min(step * 4, CHUNK)
        return int(data.size)

    def count_records(self, data: Bytes, start: int, end: int, *, skip_blank: bool) -> int | None:
        """Records that end in ``[start, end)``; ``None`` if ``end`` is inside quotes."""
        total = 0
        state = False
        begin = start
        for ends, inside in self.chunks(data, start, end):
            state = inside
            if not ends.size:
                continue
            total += int(ends.size)
            if skip_blank:
                begins = np.concatenate(([begin], ends[:-1] + 1))
                crlf = (data[ends] == NEWLINE) & (ends > begins) & (data[ends - 1] == RETURN)
                total -= int(np.count_nonzero(ends - crlf == begins))
            begin = int(ends[-1]) + 1
        return None if state else total
