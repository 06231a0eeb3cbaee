"""Where the rows of keys are: an open hash table of 64-bit hashes and *places*, in compiled loops over NumPy arrays.

It holds no key: several rows may have one hash, and who asks compares the keys of the rows it finds. A place is an
integer that means what its owner says; the pair of hash and place is entered once and taken out as it was entered.

>>> index = KeyIndex()
>>> index.enter(np.array([7, 9, 7], np.uint64), np.array([1, 2, 3]))
>>> index.leave(np.array([7], np.uint64), np.array([1])), len(index)
(1, 2)
>>> [found.tolist() for found in index.find(np.array([9, 8, 7], np.uint64))]
[[0, 2], [2, 3]]
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from headrace.engine.columns import lanes_of, write_lanes
from headrace.types import Type

Array = np.ndarray[Any, Any]

_FREE = np.iinfo(np.int64).min
_LEAST = 1_024
_SLOT_BYTES = 16


@njit(cache=True, nogil=True)
def _enter(hashes: Array, places: Array, given: Array, at: Array) -> None:  # pragma: no cover - compiled
    mask = np.uint64(hashes.shape[0] - 1)
    for row in range(given.shape[0]):
        slot = given[row] & mask
        while places[slot] != _FREE:
            slot = (slot + np.uint64(1)) & mask
        hashes[slot] = given[row]
        places[slot] = at[row]


@njit(cache=True, nogil=True)
def _move(hashes: Array, places: Array, old_hashes: Array, old_places: Array) -> None:  # pragma: no cover
    """Enter all of another table."""
    mask = np.uint64(hashes.shape[0] - 1)
    for row in range(old_hashes.shape[0]):
        if old_places[row] != _FREE:
            slot = old_hashes[row] & mask
            while places[slot] != _FREE:
                slot = (slot + np.uint64(1)) & mask
            hashes[slot] = old_hashes[row]
            places[slot] = old_places[row]


@njit(cache=True, nogil=True)
def _leave(hashes: Array, places: Array, given: Array, at: Array) -> int:  # pragma: no cover
    """Take pairs out; returns how many were there. What stands behind a gap moves up: none is left."""
    mask = np.uint64(hashes.shape[0] - 1)
    one = np.uint64(1)
    gone = 0
    for row in range(given.shape[0]):
        slot = given[row] & mask
        while places[slot] != _FREE and not (hashes[slot] == given[row] and places[slot] == at[row]):
            slot = (slot + one) & mask
        if places[slot] == _FREE:
            continue
        gone += 1
        gap = slot
        slot = (slot + one) & mask
        while places[slot] != _FREE:
            home = hashes[slot] & mask
            if ((slot - home) & mask) >= ((slot - gap) & mask):
                hashes[gap] = hashes[slot]
                places[gap] = places[slot]
                gap = slot
            slot = (slot + one) & mask
        places[gap] = _FREE
    return gone


@njit(cache=True, nogil=True)
def _find(hashes: Array, places: Array, given: Array) -> tuple[Array, Array]:  # pragma: no cover
    mask = np.uint64(hashes.shape[0] - 1)
    rows = np.empty(given.shape[0] + 16, np.int64)
    found = np.empty(given.shape[0] + 16, np.int64)
    count = 0
    for row in range(given.shape[0]):
        slot = given[row] & mask
        while places[slot] != _FREE:
            if hashes[slot] == given[row]:
                if count == rows.shape[0]:
                    rows = np.concatenate((rows, np.empty(count, np.int64)))
                    found = np.concatenate((found, np.empty(count, np.int64)))
                rows[count] = row
                found[count] = places[slot]
                count += 1
            slot = (slot + np.uint64(1)) & mask
    return rows[:count], found[:count]


@njit(cache=True, nogil=True)
def _of_texts(starts: Array, data: Array) -> Array:  # pragma: no cover
    """A number for each text: FNV-1a over its bytes."""
    found = np.empty(starts.shape[0] - 1, np.int64)
    for row in range(found.shape[0]):
        hash = np.uint64(0xCBF29CE484222325)
        for at in range(starts[row], starts[row + 1]):
            hash = (hash ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
        found[row] = np.int64(hash)
    return found


@njit(cache=True, nogil=True)
def _mixed(lanes: Array, hashes: Array) -> None:  # pragma: no cover
    for row in range(lanes.shape[0]):
        hash = hashes[row]
        for lane in range(lanes.shape[1]):
            hash = (hash ^ np.uint64(lanes[row, lane])) * np.uint64(0xFF51AFD7ED558CCD)
            hash = (hash ^ (hash >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
            hash ^= hash >> np.uint64(29)
        hashes[row] = hash


@njit(cache=True, nogil=True)
def _of_kinds(places: Array, kept: Array, shift: int) -> Array:  # pragma: no cover - compiled
    found = np.zeros(places.shape[0], np.bool_)
    for slot in range(places.shape[0]):
        place = places[slot]
        found[slot] = place != _FREE and (place < 0 or kept[place >> shift])
    return found


def hashes_of(types: Sequence[Type], keys: pa.Table) -> Array:
    """The hash of each key: keys that the native engine calls equal have equal ones."""
    return np.concatenate([np.empty(0, np.uint64), *(_hashes(types, batch) for batch in keys.to_batches())])


def _hashes(types: Sequence[Type], batch: pa.RecordBatch) -> Array:
    hashes = np.full(batch.num_rows, 0x2545F4914F6CDD1D, np.uint64)
    for type, column in zip(types, batch.columns, strict=True):
        lanes = np.empty((batch.num_rows, lanes_of(type)), np.int64)
        write_lanes(type, column if column.type == type.arrow else column.cast(type.arrow), lanes, _texts)
        _mixed(lanes, hashes)
    return hashes & BITS


def _texts(array: pa.Array) -> Array:
    _, starts, data = array.buffers()
    ends = np.frombuffer(starts, np.int32, len(array) + 1, 4 * array.offset)
    bytes_ = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    found: Array = _of_texts(ends, bytes_)
    return found


BITS = np.uint64(0xFFFFFFFFFFFFFFFF)
"""The bits of a hash that count."""


def bytes_for(rows: int) -> int:
    """What a table of so many rows takes."""
    return _slots_for(rows) * _SLOT_BYTES


def _slots_for(rows: int) -> int:
    """A power of two that so many fill to three quarters at most."""
    return max(_LEAST, 1 << (rows * 4 // 3).bit_length())


class KeyIndex:
    """A multimap from hashes to places. For one thread at a time."""

    def __init__(self, rows: int = 0) -> None:
        """Room for so many; it grows when there are more."""
        self._make(_slots_for(rows))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        return len(self._places) * _SLOT_BYTES

    def enter(self, hashes: Array, places: Array) -> None:
        """Add pairs."""
        slots = _slots_for(self._count + len(hashes))
        if slots > len(self._places):
            old_hashes, old_places = self._hashes, self._places
            self._make(slots)
            _move(self._hashes, self._places, old_hashes, old_places)
        _enter(self._hashes, self._places, hashes, places)
        self._count += len(hashes)

    def leave(self, hashes: Array, places: Array) -> int:
        """Take pairs out; returns how many of them were there."""
        gone = int(_leave(self._hashes, self._places, hashes, places))
        self._count -= gone
        return gone

    def find(self, hashes: Array) -> tuple[Array, Array]:
        """For each place of one of the hashes, which hash it is of, and the place."""
        rows, places = _find(self._hashes, self._places, hashes)
        return rows, places

    def keep(self, kept: Array, shift: int, room: int) -> None:
        """Take out pairs of places whose high bits are not of a kept kind; there is room for so many others."""
        old_hashes, old_places = self._hashes, self._places
        chosen = _of_kinds(old_places, kept, shift)
        self._count = int(chosen.sum())
        self._make(_slots_for(self._count + room))
        _enter(self._hashes, self._places, old_hashes[chosen], old_places[chosen])

    def _make(self, slots: int) -> None:
        self._hashes = np.zeros(slots, np.uint64)
        self._places = np.full(slots, _FREE, np.int64)


Columns = tuple[str, ...]
"""What an index is by: columns of a table, by the names they have in the store for life."""


class Keyed:
    """Rows of a table that are moved: the columns its indexes are by, hashed once for each index."""

    def __init__(self, rows: pa.Table, types: Mapping[str, Type], count: int) -> None:
        """So many rows: columns by the names they have in the store, and the types of these."""
        self.rows = rows
        self.count = count
        self._types = types
        self._hashes: dict[Columns, Array] = {}

    def hashes(self, columns: Columns) -> Array:
        """The hashes of some columns; ``KeyError`` if they are not all there."""
        if columns not in self._hashes:
            if self.count:
                types = [self._types[name] for name in columns]
                self._hashes[columns] = hashes_of(types, self.rows.select(list(columns)))
            else:
                self._hashes[columns] = np.empty(0, np.uint64)
        return self._hashes[columns]

    def take(self, at: Array) -> Keyed:
        """Some of the rows."""
        return Keyed(self.rows.take(pa.array(at)) if self.rows.num_columns else self.rows, self._types, len(at))


@dataclass
class HeldIndex:
    """An index over a table's rows as of an epoch. A place is a segment's number and the row's there, or below 0."""

    epoch: int
    """The one that last touched the table's rows."""
    columns: Columns
    index: KeyIndex = field(default_factory=KeyIndex)
    files: list[str] = field(default_factory=list)

    def places(self, file: str, rows: Array) -> Array:
        """Rows of a segment as places, or rows of the tail, by their numbers there."""
        if not file:
            return ~rows
        if file not in self.files:
            self.files.append(file)
        return np.int64(self.files.index(file) << ROW_BITS) | rows

    def rows(self, places: Array) -> dict[str, Array]:
        """The rows at places, by their segments' names; those of the tail have none."""
        found = {"": ~places[places < 0]} if (places < 0).any() else {}
        places = places[places >= 0]
        for file in np.unique(places >> ROW_BITS).tolist():
            here = places[places >> ROW_BITS == file]
            found[self.files[file]] = here & np.int64((1 << ROW_BITS) - 1)
        return found

    def forget(self, files: Collection[str], room: int) -> None:
        """Take out all rows of segments; there will be room for so many others."""
        numbers = [self.files.index(file) for file in files if file in self.files]
        if numbers:
            self.index.keep(~np.isin(np.arange(len(self.files)), numbers), ROW_BITS, room)


@dataclass(frozen=True)
class Move:
    """Rows come to a segment, or to the tail, or go from it."""

    keyed: Keyed
    file: str
    rows: Array
    comes: bool

    def into(self, held: HeldIndex) -> None:
        places, hashes = held.places(self.file, self.rows), self.keyed.hashes(held.columns)
        if self.comes:
            held.index.enter(hashes, places)
        elif held.index.leave(hashes, places) < len(places):
            raise AssertionError("a row that goes was not in the index")


@dataclass
class Following:
    """A change of a table on its way into its indexes: nothing of it is there before the commit is in."""

    before: int
    """The epoch that touched the table's rows before."""
    moves: list[Move] = field(default_factory=list)
    all_go: bool = False
    files: Collection[str] = ()
    """Segments whose rows all go."""
    epoch: int | None = None
    """The commit's."""

    def into(self, held: HeldIndex) -> bool:
        """Make the change, if the index is of the epoch before."""
        if self.epoch is None or held.epoch != self.before:
            return False
        if self.all_go:
            held.index, held.files = KeyIndex(), []
        held.forget(self.files, sum(len(move.rows) for move in self.moves if move.comes))
        for move in self.moves:
            move.into(held)
        held.epoch = self.epoch
        return True


Named = tuple[int, Columns]
"""An index: a table's number, and what it is by."""


class Indexes:
    """The indexes of a database's tables. Hold ``changed`` to look or to alter."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.held: dict[Named, HeldIndex] = {}
        self.asked = Counter[Named]()
        """How often one was wanted that was not there."""
        self.builds = 0
        """How many were made."""
        self.sizes: dict[int, tuple[int, int]] = {}
        """About how many rows tables have, by their numbers, with the epochs these were counted at."""
        self.room: Callable[[], int] = lambda: sys.maxsize
        """The bytes of memory left."""
        self._entering: set[int] = set()
        self._building: dict[Named, list[Following]] = {}

    @property
    def bytes(self) -> int:
        with self.changed:
            return sum(held.index.bytes for held in self.held.values())

    def keep_only(self, numbers: Container[int]) -> None:
        """Let go of those of tables that are no more."""
        with self.changed:
            for named in [n for n in self.held if n[0] not in numbers]:
                del self.held[named]
            for number in [n for n in list(self.sizes) if n not in numbers]:
                del self.sizes[number]

    def exact(self, named: Named, epoch: int) -> HeldIndex | None:
        """The index if it is of this epoch, once what is on its way is in. Hold ``changed``.

        Raises :class:`Newer` if it is of a later one.
        """
        while True:
            held = self.held.get(named)
            if held is not None and held.epoch == epoch:
                return held
            if held is not None and held.epoch > epoch:
                raise Newer
            if held is None or named[0] not in self._entering:
                return None
            self.changed.wait()

    def of(self, number: int) -> list[Columns]:
        """What a table's indexes are by, those that are made just now too."""
        with self.changed:
            return [columns for table, columns in {**self.held, **self._building} if table == number]

    @contextmanager
    def following(self, number: int, before: int) -> Iterator[Following]:
        """Enter what the block says has changed, if it is committed; one such block of a table at a time."""
        following = Following(before)
        with self.changed:
            self._entering.add(number)
        try:
            yield following
        finally:
            with self.changed:
                self._entering.discard(number)
                self.changed.notify_all()
                if following.epoch is not None:
                    for named in [n for n in self._building if n[0] == number]:
                        self._building[named].append(following)
                    for named in [n for n in self.held if n[0] == number]:
                        self._enter(named, following)

    def _enter(self, named: Named, following: Following) -> None:
        held = self.held.pop(named)
        try:
            if following.into(held) and held.index.bytes <= self.room():
                self.held[named] = held
        except KeyError:
            return  # the change did not bring its columns along: it is made again where it is needed
        except Exception:
            # The commit is in, whatever becomes of what is known of it.
            logging.getLogger("headrace").exception("the index of table %s is let go", named[0])

    @contextmanager
    def building(self, named: Named) -> Iterator[Callable[[HeldIndex], None]]:
        """Make one, and hand it over; what is committed meanwhile is entered then."""
        with self.changed:
            if named in self._building:
                raise Busy
            self._building[named] = []
        try:
            yield lambda held: self._built(named, held)
        finally:
            with self.changed:
                del self._building[named]

    def _built(self, named: Named, held: HeldIndex) -> None:
        with self.changed, suppress(KeyError):
            for following in self._building[named]:
                if following.before >= held.epoch:
                    following.into(held)
            self.builds += 1
            self.held[named] = held


class Newer(Exception):
    """The index is of a later epoch than the one asked for."""


class Busy(Exception):
    """Somebody makes the index just now."""


ROW_BITS = 40
