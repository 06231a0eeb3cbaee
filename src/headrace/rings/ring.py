"""A ring in shared memory, as its writers see it (003 §3.3, Algorithm 1).

The compiled part is loaded when somebody writes: processes that only read need not have it.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.base.interrupts import check_waiting
from headrace.base.private import has_shape, make_folder, open_file, read_json, write_text
from headrace.errors import ExecutionError, StoreError
from headrace.rings.book import Book, ClaimedRange, Overflow, Usage
from headrace.rings.layout import FORMAT, MAGIC, NO_MARKS, OWN, Layout, RingHead, Slots, Word
from headrace.rings.processes import this_process
from headrace.rings.text import Rounds
from headrace.types import Field, Schema, from_spark

MORSEL = 65_536
"""Rows claimed at once, at most; a ring has room for several such morsels."""
TEXT_LIMIT = (1 << 31) - 4096
"""Bytes of long text a round may have: views count in 32 bits."""
_DESCRIPTION = "ring.json"
_MEMORY = "ring"
_SHAPE = {
    "stream": str,
    "columns": [(str, str, bool)],
    "terms": (int, float | int, int, float | int),
    "zone": str,
}


@dataclass(frozen=True)
class Terms:
    """What a stream's CREATE statement says about its ring."""

    capacity: int
    timeout: float
    """Seconds without a tuple after which a query's window ends."""
    overflow: Overflow = Overflow.BLOCK
    patience: float = 60.0
    """Seconds a writer waits for a reader that stands still."""


@dataclass(frozen=True)
class WrittenRange:
    """The ids the rows of one call went to: all of them lie in ``[lo, hi)``, maybe among others' rows."""

    lo: int
    hi: int


class Ring:
    """A mapped ring. Use it from any thread; other processes :meth:`open` it themselves."""

    def __init__(
        self, folder: Path, stream: str, columns: Schema, terms: Terms, zone: str, fd: int, memory: mmap.mmap
    ) -> None:
        self.folder = folder
        self.stream = stream
        self.columns = columns
        """The stream's columns, with those the ring does not hold."""
        self.terms = terms
        self.zone = zone
        """The database's time zone, which local times are of."""
        self.layout = Layout.of(columns, terms.capacity)
        self._memory = memory
        self.slots, self.nulls, self.origins = self.layout.slots(memory)
        self.book = Book(RingHead.over(memory, len(self.layout.columns)), self.origins, fd)
        self.rounds = Rounds(folder, int(self.book.head.words[Word.STRING_LIMIT]))
        self.morsel = max(1, min(MORSEL, terms.capacity // 8))
        # Others may still be in the middle of something when the ring is ended: it goes with the last of them.
        weakref.finalize(self, os.close, fd).atexit = False

    @staticmethod
    def create(
        folder: Path, stream: str, columns: Schema, terms: Terms, *, zone: str = "UTC", text_limit: int = TEXT_LIMIT
    ) -> Ring:
        """A new ring in a folder of its own."""
        from headrace.rings.text_kernel import warm_up

        layout = Layout.of(columns, terms.capacity)
        warm_up()
        make_folder(folder)
        fd = open_file(folder / _MEMORY, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(fd, 0, layout.bytes)
            memory = mmap.mmap(fd, layout.bytes)
        except OSError as error:
            os.close(fd)
            shutil.rmtree(folder, ignore_errors=True)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG):
                raise
            raise no_room(stream, terms.capacity, layout.bytes) from None
        head = RingHead.over(memory, len(layout.columns))
        words = head.words
        words[Word.FORMAT], words[Word.CAPACITY], words[Word.COLUMNS] = FORMAT, terms.capacity, len(layout.columns)
        words[Word.OWNER_PID], words[Word.OWNER_BEGAN] = this_process()
        words[Word.LAP], words[Word.TAKEN], words[Word.STRING_LIMIT] = -1, -1, text_limit
        words[Word.OVERFLOW], words[Word.PATIENCE] = terms.overflow, int(terms.patience * 1e9)
        head.cells[:, :, 0] = -1
        description = {
            "stream": stream,
            "columns": [[f.name, f.type.declared, f.nullable] for f in columns],
            "terms": [terms.capacity, terms.timeout, int(terms.overflow), terms.patience],
            "zone": zone,
        }
        write_text(folder / _DESCRIPTION, json.dumps(description))
        words[Word.MAGIC] = MAGIC
        return Ring(folder, stream, columns, terms, zone, fd, memory)

    @staticmethod
    def open(folder: Path) -> Ring:
        """The ring another process, or another part of this one, has made in ``folder``."""
        try:
            found = read_json(folder / _DESCRIPTION)
            if not has_shape(found, _SHAPE):
                raise ValueError("no ring")
            fd = open_file(folder / _MEMORY, os.O_RDWR)
        except FileNotFoundError:
            raise gone(folder.name) from None
        except ValueError:
            raise foreign(folder) from None
        columns = tuple(Field(n, from_spark(t), nullable) for n, t, nullable in found["columns"])
        capacity, timeout, overflow, patience = found["terms"]
        terms = Terms(capacity, timeout, Overflow(overflow), patience)
        memory = mmap.mmap(fd, os.fstat(fd).st_size)
        words = np.frombuffer(memory, np.int64, Word.COUNT)
        if words[Word.MAGIC] != MAGIC or words[Word.FORMAT] != FORMAT or words[Word.CAPACITY] != capacity:
            os.close(fd)
            raise foreign(folder)
        return Ring(folder, found["stream"], columns, terms, found["zone"], fd, memory)

    # Writing

    def write(
        self,
        rows: pa.Table | pa.RecordBatch,
        *,
        origin: int = OWN,
        wait: bool = True,
        then: Callable[[ClaimedRange], None] = lambda claimed: None,
    ) -> WrittenRange:
        """Put rows at the end of the stream; returns their ids once they are visible.

        ``rows`` have the stream's Arrow types; a column they lack is NULL. With ``wait=False`` the rows may become
        visible a moment later. ``then`` is called with each range of them when it is written, before the next one is.
        What a full ring means, the stream's ``overflow`` says.
        """
        try:
            if self.terms.overflow is Overflow.ERROR and self.book.has_readers:
                whole = rows.combine_chunks() if isinstance(rows, pa.Table) else rows  # each piece takes an entry
                return self._write_whole([_Morsel(self, b, origin) for b in _batches(whole, self.morsel)], then)
            return self._write(_batches(rows, self.morsel), origin, wait, then)
        except BaseException as failure:
            self.book.abandon_mine()  # an interrupt may come between any two steps
            if isinstance(failure, FileNotFoundError):  # the ring was ended meanwhile, and its files with it
                raise gone(self.stream) from None
            raise

    def _write(
        self, batches: list[pa.RecordBatch], origin: int, wait: bool, then: Callable[[ClaimedRange], None]
    ) -> WrittenRange:
        first, last = -1, 0
        for batch in batches:
            morsel = _Morsel(self, batch, origin)
            done = 0
            while done < morsel.rows:
                claimed = self._claim(morsel, done)
                morsel.store(done, claimed)
                self.book.publish(claimed)
                then(claimed)
                first = claimed.lo if first < 0 else first
                last = claimed.hi
                done += claimed.hi - claimed.lo
        if wait and last and not self.book.await_visible(last, self.terms.patience):
            raise stalled(self.stream)
        return WrittenRange(max(first, 0), last)

    def _claim(self, morsel: _Morsel, done: int) -> ClaimedRange:
        """Claim ids for what is left of a morsel, waiting for room."""
        words, patience = self.book.head.words, self.terms.patience
        now = began = pause = 0.0
        stood = -1, 0.0
        while True:
            impatient = bool(began) and now - began > patience
            found = self.book.claim(
                morsel.rows - done, lambda n: morsel.text(done, n), self.rounds.begin, impatient=impatient
            )
            now = time.monotonic()
            if found is not None:
                if began:
                    self.book.blocked_for(int((now - began) * 1e9))
                return found
            self.check_open()
            began = began or now
            if self.terms.overflow is Overflow.ERROR and self.book.has_readers:
                raise self._full(morsel.rows)
            check_waiting()
            time.sleep(pause)
            pause = min(0.002, pause + 0.00005)
            visible = int(words[Word.VALID])
            if visible != stood[0] or visible == words[Word.CLAIMED]:
                stood = visible, now
            if now - stood[1] > patience:
                raise stalled(self.stream)

    def _write_whole(self, morsels: list[_Morsel], then: Callable[[ClaimedRange], None]) -> WrittenRange:
        """All rows or none: claim them at once, then write."""
        rows = sum(m.rows for m in morsels)
        if not rows:
            return WrittenRange(0, 0)
        whole = _Whole(morsels)
        found = self.book.claim_all(rows, whole.left, whole.text, self.rounds.begin)
        if found is None:
            self.check_open()
            raise self._full(rows)
        done = 0
        for claimed in found:
            morsel, at = whole.at(done)
            morsel.store(at, claimed)
            self.book.publish(claimed)
            then(claimed)
            done += claimed.hi - claimed.lo
        self.book.await_visible(found[-1].hi, self.terms.patience)
        return WrittenRange(found[0].lo, found[-1].hi)

    def _full(self, rows: int) -> ExecutionError:
        return ExecutionError(
            "STREAM_FULL",
            f"stream {self.stream} has no room for {rows:,} rows: a query has not read what is there",
            hint=f"wait and insert again, raise its capacity ({self.terms.capacity:,}), or let overflow be 'block'",
        )

    # Sharing

    @property
    def end(self) -> int:
        """The first id that nobody has claimed."""
        return int(self.book.head.words[Word.CLAIMED])

    @property
    def is_awaited(self) -> bool:
        """Whether another process wants to insert, and nobody reads for the views yet."""
        return bool(self.book.head.words[Word.AWAITED] == 1)

    def answer(self, begin: int) -> None:
        """Say that rows of other processes reach the views from this id on."""
        if 0 <= self.book.taken < begin:
            self.book.refuse(self.book.taken, begin)  # what came after somebody else had stopped
        with self.book.locked() as words:
            words[Word.TAKEN] = begin
            words[Word.AWAITED] = 2

    def stop_answering(self) -> None:
        """Say that they do not any more, until somebody asks for it again."""
        with self.book.locked() as words:
            words[Word.AWAITED] = 0

    def await_owner(self, patience: float) -> None:
        """Ask the owner to read for its views what this process inserts, and wait until it does."""
        deadline = time.monotonic() + patience
        while self.book.head.words[Word.AWAITED] != 2:
            with self.book.locked() as words:
                words[Word.AWAITED] = max(1, int(words[Word.AWAITED]))
            self.check_open()
            time.sleep(0.002)
            if time.monotonic() > deadline:
                raise unreachable(self.stream)

    def check_open(self) -> None:
        if self.book.is_closed:
            raise gone(self.stream)

    def usage(self) -> Usage:
        return self.book.usage()

    def destroy(self) -> None:
        """End the ring for all: its writers and readers, here and elsewhere, are told so."""
        self.book.close()
        shutil.rmtree(self.folder, ignore_errors=True)  # what is left goes with the folder of all rings


class _Morsel:
    """Rows to be written together, their text as views."""

    def __init__(self, ring: Ring, rows: pa.RecordBatch, origin: int) -> None:
        self._ring = ring
        self._origin = origin
        self.rows: int = rows.num_rows
        names = {n.lower(): i for i, n in enumerate(rows.schema.names)}
        self._columns = [
            _Column.of(rows.column(names[f.name.lower()]), ring.layout.kinds[i].text)
            if f.name.lower() in names
            else _Column.missing(self.rows)
            for i, f in enumerate(ring.layout.columns)
        ]
        self._texts: dict[tuple[int, int], int] = {}

    def text(self, start: int, rows: int) -> int:
        """Bytes of long text in so many rows from ``start`` on."""
        if (start, rows) not in self._texts:
            self._texts[start, rows] = sum(c.long_bytes(start, rows) for c in self._columns)
        return self._texts[start, rows]

    def store(self, start: int, claimed: ClaimedRange) -> None:
        """Write the rows from ``start`` on into the claimed slots."""
        from headrace.rings.text_kernel import store_text

        ring, rows = self._ring, claimed.hi - claimed.lo
        lap, slot = divmod(claimed.lo, ring.terms.capacity)
        here = slice(slot, slot + rows)
        at, buffer = claimed.text_at, NO_MARKS
        end = at + claimed.text_bytes
        if claimed.text_bytes:
            buffer = ring.rounds.allocate(lap, at, claimed.text_bytes)
        ever_null = ring.book.head.nulls
        for i, column in enumerate(self._columns):
            marks = column.marks_of(start, rows)
            if len(marks):
                ever_null[i] = 1
                ring.nulls[i][here] = marks
            elif ever_null[i]:
                ring.nulls[i][here] = 0
            if column.source is None:
                if ring.layout.kinds[i].text:
                    ring.slots[i][here] = 0  # an old view would point anywhere; other slots may hold what they held
            elif column.text is not None:
                ends = column.source[start : start + rows + 1]
                at = store_text(ends, marks, column.text, ring.slots[i][here], buffer, at, end)
            else:
                ring.slots[i][here] = column.source[start : start + rows]
        ring.origins[here] = self._origin


@dataclass(frozen=True)
class _Column:
    """A column's values, and which of them are NULL."""

    source: Slots | None
    """Values as slots hold them, or where each text ends; nothing for a column that is not there."""
    text: Any
    marks: Any

    @staticmethod
    def missing(rows: int) -> _Column:
        return _Column(None, None, np.ones(rows, np.uint8))

    @staticmethod
    def of(array: pa.Array, is_text: bool) -> _Column:
        marks = NO_MARKS
        if array.null_count:
            marks = np.array(array.is_null().cast(pa.uint8()))
        if is_text:
            if not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
                array = array.cast(pa.string() if "string" in str(array.type) else pa.binary())
            _, offsets, text = array.buffers()
            ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
            return _Column(ends, np.frombuffer(text if text is not None and text.size else b"\0", np.uint8), marks)
        if pa.types.is_boolean(array.type):
            return _Column(np.asarray(array.fill_null(False).cast(pa.uint8())), None, marks)
        width = array.type.bit_width // 8
        dtype = np.dtype(f"i{min(width, 8)}")
        flat = np.frombuffer(array.buffers()[1], dtype)
        if width > 8:
            flat = flat[: len(flat) // 2 * 2].reshape(-1, width // 8)
        return _Column(flat[array.offset : array.offset + len(array)], None, marks)

    def marks_of(self, start: int, rows: int) -> Any:
        return self.marks[start : start + rows]

    def long_bytes(self, start: int, rows: int) -> int:
        if self.text is None or self.source is None:
            return 0
        from headrace.rings.text_kernel import long_bytes

        return int(long_bytes(self.source[start : start + rows + 1], self.marks_of(start, rows)))


class _Whole:
    """Several morsels as one run of rows."""

    def __init__(self, morsels: list[_Morsel]) -> None:
        self._morsels = morsels
        self._starts = np.cumsum([0, *(m.rows for m in morsels)])

    def at(self, row: int) -> tuple[_Morsel, int]:
        which = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._morsels[which], row - int(self._starts[which])

    def left(self, row: int) -> int:
        """How many rows from this one on are of one morsel."""
        morsel, start = self.at(row)
        return int(morsel.rows) - start

    def text(self, row: int, rows: int) -> int:
        morsel, start = self.at(row)
        return morsel.text(start, rows)


def _batches(rows: pa.Table | pa.RecordBatch, most: int) -> list[pa.RecordBatch]:
    if isinstance(rows, pa.RecordBatch):
        return [rows.slice(at, most) for at in range(0, rows.num_rows, most)]
    return [b for b in rows.to_batches(max_chunksize=most) if b.num_rows]


def foreign(folder: Path) -> StoreError:
    return StoreError("RING_FOREIGN", f"{folder} holds no ring of this version", hint="use one version for all")


def gone(stream: str) -> ExecutionError:
    return ExecutionError(
        "STREAM_CLOSED",
        f"the buffer of stream {stream} is no more: its database was closed, or the stream dropped",
        hint="open the database again in the process that owns it",
    )


def unreachable(stream: str) -> ExecutionError:
    return ExecutionError(
        "STREAM_OWNER_UNREACHABLE",
        f"the process that owns stream {stream} does not answer",
        hint="see whether it still runs; open the database again if not",
    )


def retried(stream: str) -> ExecutionError:
    return ExecutionError(
        "STREAM_TASK_RETRIED",
        f"Spark ran a task that reads stream {stream} again, and what it had read cannot be read twice",
        hint="ask again; let speculation (spark.speculation) be off for queries of streams",
    )


def no_room(stream: str, capacity: int, size: int) -> ExecutionError:
    return ExecutionError(
        "STREAM_CAPACITY_TOO_LARGE",
        f"{capacity:,} slots of stream {stream} take {size:,} bytes, more than there is",
        hint="give the stream a smaller capacity",
    )


def stalled(stream: str) -> ExecutionError:
    return ExecutionError(
        "STREAM_WRITER_STALLED",
        f"another writer of stream {stream} has claimed room and does not fill it",
        hint="find the process that stands still, and let it go on or end it",
    )
