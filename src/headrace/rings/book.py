"""The bookkeeping of a ring: who has claimed, who has published, who reads from where.

All of it happens under one lock that threads and processes share and that the kernel gives back when its holder dies.
A holder may die between any two words it writes, so words are written in an order that leaves the head true after each
of them, and whatever was left undone is found and done by the next one (:meth:`Book.advance`):

* a range is entered among the claims, *then* the ids are taken: an entry past the taken ids was never made;
* a range is marked published, *then* the visible ids move over it, by whoever comes next;
* a range that nobody will write becomes a *hole*: its slots are marked, *then* it is published like any other, and
  readers step over it. So a hole needs no entry, and there may be any number of them.

000 §3.2.2 lets a writer wait until all before it are visible. Here it only marks its range, and the last of those
before it makes both visible: a count of visible ids, which is the erratum-free form of Algorithm 3.1.
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.private import lock
from headrace.errors import ExecutionError
from headrace.rings.layout import LOST, NOBODYS, REFUSALS, Claim, Reader, RingHead, Slots, Word, Words
from headrace.rings.processes import is_alive, this_process

_FAR = 1 << 62
_FORGOTTEN = 60_000_000_000
"""Nanoseconds after which a reader without a process of its own is let go of if nobody reads for it, or longer if the
ring's patience is."""


_LOCKED_SECONDS = 60.0
"""How long to wait for the lock. Whoever has it writes a few words; only a process that was stopped keeps it."""


class Overflow(IntEnum):
    """What a writer does when the ring is full of rows a reader has not read."""

    BLOCK = 0
    OVERWRITE = 1
    ERROR = 2


@dataclass(frozen=True)
class ClaimedRange:
    """A range of ids to write, inside one round, and where its long text goes."""

    entry: int
    lo: int
    hi: int
    text_at: int
    text_bytes: int


@dataclass(frozen=True)
class Usage:
    """How a ring fares, for ``SHOW STREAMS``."""

    capacity: int
    head: int
    readers: tuple[tuple[int, int], ...]
    """Each reader's id, and how many visible tuples it has not read yet."""
    blocked_seconds: float
    overruns: int
    lost: int
    text_bytes: int


class _Mine(threading.local):
    """The claims this thread has to fill: their entries, and the first id of each."""

    def __init__(self) -> None:
        self.entries: dict[int, int] = {}


class Book:
    """The head of one mapped ring. Safe for threads and processes; each method holds the lock briefly."""

    def __init__(self, head: RingHead, origins: Slots, fd: int) -> None:
        self.head = head
        self._origins = origins
        self._fd = fd
        self._thread = threading.Lock()
        self._looked = 0.0
        self._mine = _Mine()
        self.capacity = int(head.words[Word.CAPACITY])

    @contextmanager
    def locked(self) -> Iterator[Words]:
        with self._thread:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock(self._fd, Path("the ring"), _LOCKED_SECONDS)
            try:
                yield self.head.words
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    # Writers

    def claim(
        self,
        rows: int,
        text_of: Callable[[int], int],
        new_lap: Callable[[int], None],
        *,
        impatient: bool = False,
    ) -> ClaimedRange | None:
        """Claim up to ``rows`` ids; ``None`` if there is no room now, or the ring is closed.

        ``text_of(n)`` is how many bytes of long text the first ``n`` rows have. ``new_lap`` is called, under the lock,
        before the first id of a round is taken: whoever writes in that round finds a fresh text buffer (erratum: 000
        lets the owner of slot 0 clear it, while others of the round may have stored text already). If the writer is
        ``impatient``, readers are dropped that are in its way and have stood still for longer than the ring's patience.
        """
        with self.locked() as words:
            if words[Word.CLOSED]:
                return None
            self.advance(words)
            return self._claim(words, rows, text_of, new_lap, impatient)

    def claim_all(
        self,
        rows: int,
        left: Callable[[int], int],
        text_of: Callable[[int, int], int],
        new_lap: Callable[[int], None],
    ) -> list[ClaimedRange] | None:
        """Claim ``rows`` ids at once or none at all, at most ``left(a)`` together where ``a`` are claimed already.

        ``text_of(a, n)`` tells of ``n`` rows from ``a`` on.
        """
        found: list[ClaimedRange] = []
        with self.locked() as words:
            if words[Word.CLOSED]:
                return None
            self.advance(words)
            wanted = int(words[Word.CLAIMED]) + rows
            if wanted > self._floor(words) + self.capacity:
                self._make_room(words, wanted)
            if wanted > self._floor(words) + self.capacity:
                return None
            done = 0
            while done < rows:
                start = done
                part = self._claim(words, left(done), partial(text_of, start), new_lap)
                if part is None:
                    for claimed in found:
                        self._leave_out(claimed.entry, NOBODYS)
                    self.advance(words)
                    return None
                found.append(part)
                done += part.hi - part.lo
        return found

    def _claim(
        self,
        words: Words,
        rows: int,
        text_of: Callable[[int], int],
        new_lap: Callable[[int], None],
        impatient: bool = False,
    ) -> ClaimedRange | None:
        while True:
            lo = int(words[Word.CLAIMED])
            lap, slot = divmod(lo, self.capacity)
            room = self._floor(words) + self.capacity - lo
            free = np.flatnonzero(self.head.claims[:, Claim.STATE] == Claim.FREE)
            if room <= 0 or not len(free):
                self._make_room(words, lo + 1, impatient)
                return None
            if lap > words[Word.LAP]:
                new_lap(lap)
                words[Word.USED_BEFORE] = words[Word.USED] if words[Word.LAP] == lap - 1 else 0
                words[Word.USED] = 0
                words[Word.LAP] = lap
            count = min(rows, room, self.capacity - slot)
            left = int(words[Word.STRING_LIMIT] - words[Word.USED])
            if text_of(count) > left:
                count = _most(count, left, text_of)
            if count:
                at, text = int(words[Word.USED]), text_of(count)
                words[Word.USED] = at + text
                self._enter(words, int(free[0]), lo, lo + count, lost=count)
                return ClaimedRange(int(free[0]), lo, lo + count, at, text)
            if text_of(1) > words[Word.STRING_LIMIT]:
                raise ExecutionError(
                    "STREAM_TEXT_TOO_LONG",
                    f"a row has {text_of(1):,} bytes of text, and the stream's buffer takes "
                    f"{int(words[Word.STRING_LIMIT]):,}",
                    hint="shorten its text, or keep it elsewhere and stream where it is",
                )
            # This round's text buffer is full: leave the rest of the round out and begin the next.
            end = (lap + 1) * self.capacity
            if end - lo > room:
                self._make_room(words, end, impatient)
                return None
            self._enter(words, int(free[0]), lo, end, lost=0)
            self._leave_out(int(free[0]), NOBODYS)
            self.advance(words)

    def _enter(self, words: Words, entry: int, lo: int, hi: int, *, lost: int) -> None:
        pid, began = this_process()
        self._mine.entries[entry] = lo
        self.head.claims[entry, Claim.LO : Claim.LOST + 1] = lo, hi, pid, began, lost
        self.head.claims[entry, Claim.STATE] = Claim.RESERVED
        words[Word.CLAIMED] = hi

    def _leave_out(self, entry: int, origin: int) -> None:
        """Make a claimed range a hole."""
        lo, hi = (int(self.head.claims[entry, word]) for word in (Claim.LO, Claim.HI))
        slot = lo % self.capacity
        self._origins[slot : slot + hi - lo] = origin
        self.head.claims[entry, Claim.STATE] = Claim.PUBLISHED

    def publish(self, claimed: ClaimedRange) -> None:
        """Make a written range visible once all before it are."""
        with self.locked() as words:
            self.head.claims[claimed.entry, Claim.STATE] = Claim.PUBLISHED
            self.advance(words)
        self._mine.entries.pop(claimed.entry, None)

    def abandon_mine(self) -> None:
        """Give up what this thread has claimed and not published: readers step over it."""
        with self.locked() as words:
            self.advance(words)
            for entry, lo in self._mine.entries.items():
                # An interrupt may have come before the entry was made, or after somebody else got it.
                if self.head.claims[entry, Claim.STATE] == Claim.RESERVED and self.head.claims[entry, Claim.LO] == lo:
                    self._leave_out(entry, NOBODYS)
            self._mine.entries.clear()
            self.advance(words)

    def withdraw(self, claimed: ClaimedRange) -> bool:
        """Take a published range back; False if it is visible already."""
        with self.locked() as words:
            self.advance(words)
            entry = self.head.claims[claimed.entry]
            hidden = entry[Claim.STATE] == Claim.PUBLISHED and entry[Claim.LO] == claimed.lo
            if hidden:
                self._leave_out(claimed.entry, NOBODYS)
            return bool(hidden)

    def roll_back(self, lo: int, hi: int) -> None:
        """Say that rows among these ids belong to a statement that failed: whoever reads them fails too.

        Readers that begin later begin after them.
        """
        with self.locked() as words:
            self._roll_back(words, lo, hi)

    def _roll_back(self, words: Words, lo: int, hi: int) -> None:
        words[Word.OLDEST] = max(words[Word.OLDEST], min(hi, words[Word.CLAIMED]))
        readers = self.head.readers
        over = (readers[:, Reader.DONE] >= 0) & (readers[:, Reader.DONE] <= lo)
        theirs = (readers[:, Reader.STATE] == Reader.LIVE) & (readers[:, Reader.BEGIN] < hi) & ~over
        theirs &= readers[:, Reader.WAITED_FOR] == 0  # the owner's own reader takes them back itself
        readers[theirs, Reader.STATE] = Reader.ROLLED_BACK

    # The owner, who gives its views what other processes write

    def refuse(self, lo: int, hi: int) -> None:
        """Say that views did not take the rows of other processes among these ids: they are taken back."""
        with self.locked() as words:
            at = int(words[Word.REFUSALS])
            self.head.refusals[at % REFUSALS] = lo, hi
            words[Word.REFUSALS] = at + 1
            self._roll_back(words, lo, hi)

    def is_refused(self, claimed: ClaimedRange) -> bool | None:
        """Whether views did not take a range the owner has dealt with; ``None`` if that is no longer known."""
        with self.locked() as words:
            count = int(words[Word.REFUSALS])
            known = self.head.refusals[: min(count, REFUSALS)]
            if ((known[:, 0] < claimed.hi) & (known[:, 1] > claimed.lo)).any():
                return True
            return None if count > REFUSALS and known[:, 0].min() >= claimed.hi else False

    @property
    def taken(self) -> int:
        """The id up to which the owner has dealt with the rows of other processes."""
        return int(self.head.words[Word.TAKEN])

    def is_pumped(self) -> bool:
        """Whether somebody gives the owner's views what other processes write."""
        with self.locked() as words:
            self.look_for_dead(words)
            readers = self.head.readers
            return bool(((readers[:, Reader.STATE] == Reader.LIVE) & (readers[:, Reader.WAITED_FOR] == 1)).any())

    def await_visible(self, hi: int, patience: float) -> bool:
        """Wait until all ids below ``hi`` are visible; dead writers among them do not hold it up."""
        deadline = time.monotonic() + patience
        pause = 0.0
        while self.head.words[Word.VALID] < hi:
            time.sleep(pause)
            pause = min(0.002, pause + 0.0001)
            with self.locked() as words:
                self.look_for_dead(words)
                self.advance(words)
            if time.monotonic() > deadline:
                return False
        return True

    def advance(self, words: Words) -> None:
        """Move the visible ids over ranges that are published, and do what a dead holder of the lock left undone."""
        claims = self.head.claims
        never = (claims[:, Claim.STATE] != Claim.FREE) & (claims[:, Claim.LO] >= words[Word.CLAIMED])
        claims[never, Claim.STATE] = Claim.FREE
        published = claims[:, Claim.STATE] == Claim.PUBLISHED
        while len(following := np.flatnonzero(published & (claims[:, Claim.LO] == words[Word.VALID]))):
            words[Word.VALID] = claims[following[0], Claim.HI]
        claims[published & (claims[:, Claim.HI] <= words[Word.VALID]), Claim.STATE] = Claim.FREE

    def look_for_dead(self, words: Words) -> None:
        """Turn what dead writers claimed into holes, and let go of dead readers; at most every 20 ms."""
        if time.monotonic() - self._looked < 0.02:
            return
        self._looked = time.monotonic()
        alive: dict[tuple[int, int], bool] = {}

        def lives(pid: int, began: int) -> bool:
            key = (int(pid), int(began))
            return alive.setdefault(key, True) if key == this_process() else alive.setdefault(key, is_alive(key))

        claims = self.head.claims
        self.advance(words)
        for index in np.flatnonzero(claims[:, Claim.STATE] == Claim.RESERVED):
            entry = claims[index]
            if not lives(entry[Claim.PID], entry[Claim.BEGAN]):
                lost = int(entry[Claim.LOST])
                self._leave_out(int(index), LOST if lost else NOBODYS)
                words[Word.LOST] += lost
        self.advance(words)
        for number, reader in enumerate(self.head.readers):
            if reader[Reader.STATE] == Reader.FREE:
                continue
            if not lives(reader[Reader.PID], reader[Reader.BEGAN]):
                reader[Reader.STATE] = Reader.FREE
                continue
            cells = self.head.cells[number]
            untouched = time.monotonic_ns() - reader[Reader.TOUCHED]
            if reader[Reader.OF_OWNER] and untouched > max(_FORGOTTEN, int(words[Word.PATIENCE])):
                over = 0 <= reader[Reader.DONE] <= reader[Reader.POSITION] or reader[Reader.STATE] != Reader.LIVE
                began = cells[cells[:, Reader.CELL_PID] > 0]
                if over or not any(lives(cell[Reader.CELL_PID], cell[Reader.CELL_BEGAN]) for cell in began):
                    reader[Reader.STATE] = Reader.FREE  # its tasks never ran, or were cancelled, or are done
                    continue
            for cell in cells:
                if cell[Reader.CELL_LO] >= 0 and not lives(cell[Reader.CELL_PID], cell[Reader.CELL_BEGAN]):
                    reader[Reader.STATE] = Reader.BROKEN
                    cell[Reader.CELL_LO] = -1

    def _reading(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which readers still have something to come."""
        readers = self.head.readers
        over = (readers[:, Reader.DONE] >= 0) & (readers[:, Reader.POSITION] >= readers[:, Reader.DONE])
        busy = (self.head.cells[:, :, Reader.CELL_LO] >= 0).any(axis=1)
        reading: np.ndarray[Any, np.dtype[np.bool_]] = (readers[:, Reader.STATE] == Reader.LIVE) & (~over | busy)
        return reading

    def _floor(self, words: Words) -> int:
        """The smallest id that must not be overwritten yet."""
        lowest = int(words[Word.VALID])  # what is claimed and not written yet must not be claimed again
        readers = self.head.readers
        live = self._reading()
        if words[Word.OVERFLOW] == Overflow.OVERWRITE:
            live &= readers[:, Reader.WAITED_FOR] == 1
        if not live.any():
            return lowest
        return min(lowest, int(self._needed()[live].min()))

    def _needed(self) -> Words:
        """The smallest id each reader still needs: it picks it next, or one of its workers is copying it."""
        cells = self.head.cells[:, :, Reader.CELL_LO]
        copied = np.where(cells >= 0, cells, _FAR).min(axis=1)
        needed: Words = np.minimum(copied, self.head.readers[:, Reader.POSITION])
        return needed

    def _make_room(self, words: Words, wanted: int, impatient: bool = False) -> None:
        """Let go of readers that keep all ids below ``wanted`` from being claimed and are dead, or stand still."""
        self.look_for_dead(words)
        if not impatient:
            return
        readers, cells = self.head.readers, self.head.cells
        long_ago = time.monotonic_ns() - int(words[Word.PATIENCE])
        stuck = (cells[:, :, Reader.CELL_LO] >= 0) & (cells[:, :, Reader.CELL_SINCE] < long_ago)
        still = (readers[:, Reader.TOUCHED] < long_ago) | stuck.any(axis=1)
        behind = wanted - self._needed()
        slow = self._reading() & (readers[:, Reader.WAITED_FOR] == 0) & still & (behind > self.capacity)
        words[Word.OVERRUNS] += int(slow.sum())
        readers[slow, Reader.BEHIND] = behind[slow]
        readers[slow, Reader.STATE] = Reader.OVERRUN

    def blocked_for(self, nanoseconds: int) -> None:
        with self.locked() as words:
            words[Word.BLOCKED] += nanoseconds

    # All

    @property
    def is_closed(self) -> bool:
        return bool(self.head.words[Word.CLOSED])

    def close(self) -> None:
        """Say to all who have it open that the ring is no more."""
        with self.locked() as words:
            words[Word.CLOSED] = 1

    @property
    def has_readers(self) -> bool:
        return bool(self._reading().any())

    def usage(self) -> Usage:
        with self.locked() as words:
            self.look_for_dead(words)
            readers = self.head.readers
            live = readers[self._reading() & (readers[:, Reader.WAITED_FOR] == 0)]
            return Usage(
                self.capacity,
                int(words[Word.VALID]),
                tuple((int(r[Reader.ID]), max(0, int(words[Word.VALID] - r[Reader.POSITION]))) for r in live),
                int(words[Word.BLOCKED]) / 1e9,
                int(words[Word.OVERRUNS]),
                int(words[Word.LOST]),
                int(words[Word.USED] + words[Word.USED_BEFORE]),
            )


def _most(rows: int, left: int, text_of: Callable[[int], int]) -> int:
    """How many rows' long text fits into so many bytes."""
    low, high = 0, rows
    while low < high:
        middle = (low + high + 1) // 2
        if text_of(middle) <= left:
            low = middle
        else:
            high = middle - 1
    return low
