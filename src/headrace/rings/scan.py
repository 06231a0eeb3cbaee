"""A query's scan of a ring: pick a range, copy it out, make sure it was still there (003 §3.4.2, Algorithm 2).

Several workers, in threads or processes, share one position: each range is picked by one of them. The window ends when
no tuple was there for ``timeout`` while somebody was ready to take it. (Errata: 000 tests the timeout before it looks
for tuples, so that a slow consumer loses rows; and it measures from the last pick, so that one who takes longer over a
morsel than the timeout finds its window over before a writer that waits for it can go on.)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.errors import ExecutionError
from headrace.rings.layout import LOST, OWN, READERS, WORKERS, Reader, Slots, Word, Words, view_type
from headrace.rings.processes import this_process
from headrace.rings.ring import Ring, gone

MORSEL_ROWS = 131_072
"""Tuples picked at once, at most."""

_LINGER = 0.01
"""Seconds to wait for as many tuples as are wanted at once, if there are fewer."""
_PROPER_LOOK = 0.02
"""Seconds between looks, while there is nothing to pick, that also ask who has died and whether the window is over."""


class WindowOver(Exception):
    """No more tuples: the window has ended."""


@dataclass(frozen=True)
class ReaderTicket:
    """Which reader of which ring: enough for a worker in another process."""

    reader: int
    id: int


class Scan:
    """One worker's side of a reader."""

    def __init__(self, ring: Ring, ticket: ReaderTicket, columns: Sequence[str], worker: int = 0) -> None:
        self.ring = ring
        self.ticket = ticket
        self._worker = worker
        self._looked = self._lingers = 0.0
        self.origins = np.empty(0, np.uint8)
        """Who the tuples of the last range come from."""
        names = [f.name for f in ring.layout.columns]
        self._columns = [names.index(c) for c in columns]
        self.row_bytes = sum(ring.layout.kinds[i].width + 1 for i in self._columns)
        """Bytes a tuple of these columns takes, long text apart."""
        self.schema = pa.schema(
            [(c, view_type(ring.layout.columns[i])) for c, i in zip(columns, self._columns, strict=True)]
        )

    @staticmethod
    def start(
        ring: Ring,
        columns: Sequence[str],
        *,
        oldest: bool = False,
        timeout: float | None = None,
        waited_for: bool = False,
        of_owner: bool = False,
    ) -> Scan:
        """Begin to read: at the newest tuple, or at the oldest that is still there.

        ``waited_for`` makes writers wait for this reader whatever the stream's ``overflow`` is. It lives as long as
        this process, or as the ring's owner (``of_owner``).
        """
        book = ring.book
        with book.locked() as words:
            book.look_for_dead(words)
            free = np.flatnonzero(book.head.readers[:, Reader.STATE] == Reader.FREE)
            if not len(free):
                raise ExecutionError(
                    "STREAM_TOO_MANY_READERS",
                    f"{READERS} queries read stream {ring.stream} already",
                    hint="wait for one of them to end, or cancel it",
                )
            index = int(free[0])
            valid, claimed = int(words[Word.VALID]), int(words[Word.CLAIMED])
            begin = min(valid, max(0, claimed - ring.terms.capacity)) if oldest else valid
            begin = max(begin, int(words[Word.OLDEST]))
            words[Word.READER_IDS] += 1
            entry = book.head.readers[index]
            entry[:] = 0
            entry[Reader.ID] = words[Word.READER_IDS]
            owner = int(words[Word.OWNER_PID]), int(words[Word.OWNER_BEGAN])
            entry[Reader.PID], entry[Reader.BEGAN] = owner if of_owner else this_process()
            entry[Reader.BEGIN] = entry[Reader.POSITION] = begin
            entry[Reader.IDLE] = entry[Reader.TOUCHED] = time.monotonic_ns()
            entry[Reader.TIMEOUT] = int((ring.terms.timeout if timeout is None else timeout) * 1e9)
            entry[Reader.WAITED_FOR], entry[Reader.OF_OWNER] = waited_for, of_owner
            entry[Reader.DONE] = -1
            book.head.cells[index] = -1, 0, 0, 0
            entry[Reader.STATE] = Reader.LIVE
            return Scan(ring, ReaderTicket(index, int(entry[Reader.ID])), columns)

    def sibling(self, worker: int) -> Scan:
        """Another worker of the same reader."""
        names = [self.ring.layout.columns[i].name for i in self._columns]
        return Scan(self.ring, self.ticket, names, worker % WORKERS)

    # Reading

    def next(self, *, most: int = MORSEL_ROWS, least: int = 1, wait: float = 1e9) -> pa.RecordBatch | None:
        """The next range of tuples as a batch; ``None`` if there is none within ``wait`` seconds.

        A moment is waited for as many as ``least``: each pick costs the writers a little, however few tuples it takes.
        :class:`WindowOver` when the window has ended, ``STREAM_OVERRUN`` when the writers have come round.
        """
        found = self.next_range(most=most, least=least, wait=wait)
        return found[1] if found is not None else None

    def next_range(
        self, *, most: int = MORSEL_ROWS, least: int = 1, wait: float = 1e9
    ) -> tuple[int, pa.RecordBatch] | None:
        """The same with the first tuple's id."""
        deadline = time.monotonic() + wait
        pause = 0.0
        while True:
            picked = self._pick(most) if least <= 1 or not self._lingering(least) else None
            if picked is not None:
                batch = self._copy(*picked)
                self._release(picked[0], batch is not None)
                assert batch is not None
                return picked[0], batch
            if time.monotonic() >= deadline:
                return None
            time.sleep(pause)
            pause = min(0.002, pause + 0.0001)

    def _pick(self, most: int) -> tuple[int, int] | None:
        book = self.ring.book
        if self._nothing_new():
            return None
        self._looked = time.monotonic()
        with book.locked() as words:
            entry = self._entry()
            self._check(words, entry)
            book.advance(words)
            now = time.monotonic_ns()
            valid, done = int(words[Word.VALID]), int(entry[Reader.DONE])
            if done >= 0:
                valid = min(valid, done)
            while (lo := int(entry[Reader.POSITION])) < valid:
                if words[Word.CLAIMED] > lo + book.capacity:
                    raise self._overrun(words, entry, int(words[Word.CLAIMED]) - lo)
                slot = lo % book.capacity
                origins = self.ring.origins[slot : slot + min(most, valid - lo)]  # up to the round's end
                there = origins <= OWN
                hi = lo + (int((there != there[0]).argmax()) or len(there))
                if there[0]:
                    cell = book.head.cells[self.ticket.reader, self._worker]
                    cell[Reader.CELL_PID], cell[Reader.CELL_BEGAN] = this_process()
                    cell[Reader.CELL_SINCE] = now
                    cell[Reader.CELL_LO] = lo
                    entry[Reader.POSITION] = hi
                    entry[Reader.IDLE], entry[Reader.TOUCHED] = 0, now
                    return lo, hi
                entry[Reader.LOST] += np.count_nonzero(origins[: hi - lo] == LOST)
                entry[Reader.POSITION] = hi
            if done >= 0:
                raise WindowOver
            if book.is_closed:
                raise gone(self.ring.stream)
            entry[Reader.TOUCHED] = now
            if not entry[Reader.IDLE]:
                entry[Reader.IDLE] = now
            if now - entry[Reader.IDLE] >= entry[Reader.TIMEOUT]:
                entry[Reader.DONE] = lo
                raise WindowOver
            if words[Word.CLAIMED] > words[Word.VALID]:
                book.look_for_dead(words)
            return None

    def _lingering(self, least: int) -> bool:
        """Whether there are tuples, but so few, and for so short a time, that more are waited for."""
        entry, words = self.ring.book.head.readers[self.ticket.reader], self.ring.book.head.words
        if not 0 < words[Word.VALID] - entry[Reader.POSITION] < least or entry[Reader.DONE] >= 0:
            self._lingers = 0.0
            return False
        now = time.monotonic()
        self._lingers = self._lingers or now
        if now - self._lingers < _LINGER and entry[Reader.STATE] == Reader.LIVE:
            return True
        self._lingers = 0.0
        return False

    def _nothing_new(self) -> bool:
        """A cheap look, without the lock: nothing to pick, and a proper look was had a moment ago."""
        entry, words = self.ring.book.head.readers[self.ticket.reader], self.ring.book.head.words
        waiting = words[Word.VALID] <= entry[Reader.POSITION] and entry[Reader.DONE] < 0
        return bool(waiting) and entry[Reader.STATE] == Reader.LIVE and time.monotonic() - self._looked < _PROPER_LOOK

    def _copy(self, lo: int, hi: int) -> pa.RecordBatch | None:
        """The tuples' columns, copied out of their slots; long text stays where it is. ``None`` if that is gone."""
        ring, rows = self.ring, hi - lo
        lap, slot = divmod(lo, ring.terms.capacity)
        here = slice(slot, slot + rows)
        text = ring.rounds.buffer(lap) if any(ring.layout.kinds[c].text for c in self._columns) else None
        if text is None and any(ring.layout.kinds[c].text for c in self._columns):
            return None
        self.origins = ring.origins[here].copy()
        arrays = []
        for c, field in zip(self._columns, self.schema, strict=True):
            mask = None
            if ring.book.head.nulls[c]:
                marks = ring.nulls[c][here]
                if marks.any():
                    mask = pa.py_buffer(np.packbits(marks == 0, bitorder="little"))
            kind = ring.layout.kinds[c]
            slots = ring.slots[c][here]
            values = pa.py_buffer(np.packbits(slots, bitorder="little")) if kind.packed else _copied(slots)
            buffers = [mask, values, *([pa.py_buffer(text)] if kind.text else ())]
            arrays.append(pa.Array.from_buffers(field.type, rows, buffers))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def taken(self, upto: int) -> None:
        """Say that the owner has dealt with what was read below this id."""
        with self.ring.book.locked() as words:
            self._entry()
            words[Word.TAKEN] = upto

    def _release(self, lo: int, whole: bool) -> None:
        """Make sure that the slots were not claimed while they were copied, and let writers have them."""
        book = self.ring.book
        with book.locked() as words:
            entry = self._entry()
            book.head.cells[self.ticket.reader, self._worker, Reader.CELL_LO] = -1
            if words[Word.CLAIMED] > lo + book.capacity:
                raise self._overrun(words, entry, int(words[Word.CLAIMED]) - lo)
            self._check(words, entry)
            if not whole:
                raise gone(self.ring.stream)

    # Ending

    def finish(self) -> None:
        """End the window now: what is visible already is still read."""
        book = self.ring.book
        with book.locked() as words:
            entry = self._entry()
            if entry[Reader.DONE] < 0:
                entry[Reader.DONE] = words[Word.VALID]

    def cancel(self) -> None:
        """End the scan for all its workers."""
        with self.ring.book.locked():
            entry = self._entry()
            if entry[Reader.STATE] == Reader.LIVE:
                entry[Reader.STATE] = Reader.CANCELLED

    def end(self) -> int:
        """Let go of the reader; returns how many tuples of its window were lost with writers that died.

        Raises if rows it has read were taken back since.
        """
        with self.ring.book.locked():
            entry = self._entry()
            lost = int(entry[Reader.LOST])
            try:
                self._check_rolled_back(entry)
            finally:
                entry[Reader.STATE] = Reader.FREE
            return lost

    def give_up(self) -> None:
        """Let go of the reader of a query that failed."""
        with self.ring.book.locked():
            entry = self.ring.book.head.readers[self.ticket.reader]
            if entry[Reader.ID] == self.ticket.id:
                entry[Reader.STATE] = Reader.FREE

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to pick, for good."""
        entry = self.ring.book.head.readers[self.ticket.reader]
        return bool(entry[Reader.STATE] != Reader.LIVE or 0 <= entry[Reader.DONE] <= entry[Reader.POSITION])

    @property
    def has_picked(self) -> bool:
        """Whether this worker, in whatever process, has picked anything."""
        return bool(self.ring.book.head.cells[self.ticket.reader, self._worker, Reader.CELL_PID])

    @property
    def lag(self) -> int:
        """How many visible tuples nobody has picked."""
        return int(self.ring.book.head.words[Word.VALID]) - self.position

    @property
    def position(self) -> int:
        return int(self.ring.book.head.readers[self.ticket.reader][Reader.POSITION])

    # Checks

    def _entry(self) -> Words:
        entry: Words = self.ring.book.head.readers[self.ticket.reader]
        if entry[Reader.ID] != self.ticket.id or entry[Reader.STATE] == Reader.FREE:
            raise ExecutionError("QUERY_ENDED", "this query has ended", hint="ask again")
        return entry

    def _check(self, words: Words, entry: Words) -> None:
        state = entry[Reader.STATE]
        if state == Reader.CANCELLED:
            raise ExecutionError("QUERY_CANCELLED", "the query was cancelled", hint="ask again")
        if state == Reader.BROKEN:
            raise ExecutionError(
                "STREAM_READER_DIED",
                f"a process that read stream {self.ring.stream} for this query died, and its rows with it",
                hint="ask again: what was read from a stream cannot be read twice",
            )
        if state == Reader.OVERRUN:
            raise self._overrun(words, entry, int(entry[Reader.BEHIND]))
        self._check_rolled_back(entry)

    def _check_rolled_back(self, entry: Words) -> None:
        if entry[Reader.STATE] == Reader.ROLLED_BACK:
            raise ExecutionError(
                "STREAM_ROLLED_BACK",
                f"an insert into stream {self.ring.stream} failed, or Spark ran a task of it again, after this query "
                "had begun to read its rows",
                hint="ask again: rows of a failed insert are in no answer",
            )

    def _overrun(self, words: Words, entry: Words, behind: int) -> ExecutionError:
        if entry[Reader.STATE] != Reader.OVERRUN:
            words[Word.OVERRUNS] += 1
            entry[Reader.STATE], entry[Reader.BEHIND] = Reader.OVERRUN, behind
        terms = self.ring.terms
        wait = "" if terms.overflow != 1 else ", or overflow = 'block' so that inserts wait for it"
        slow = f"; inserts wait {terms.patience:g} s for a reader that stands still (patience)" if not wait else ""
        return ExecutionError(
            "STREAM_OVERRUN",
            f"the query was {behind:,} tuples behind stream {self.ring.stream}, which keeps {terms.capacity:,}{slow}",
            hint=f"make the stream WITH (capacity = {_more(behind)}){wait}",
        )


def _copied(slots: Slots) -> pa.Buffer:
    """A copy in Arrow's memory, which is used again: fresh pages would cost more than the copying."""
    buffer = pa.allocate_buffer(slots.nbytes)
    np.frombuffer(buffer, slots.dtype).reshape(slots.shape)[:] = slots
    return buffer


def _more(rows: int) -> int:
    """A round number of slots that would have done."""
    return 1 << max(0, rows - 1).bit_length()
