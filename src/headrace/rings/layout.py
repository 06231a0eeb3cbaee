"""What a ring's memory holds and where: a head of plain 64-bit words, then the slots of each column.

Any process that maps the file finds the same words. Nothing in it is a pointer or a pickled object, and each change
of the head leaves it readable if the process dies right after it (``book.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.types import Field, Schema

Words = np.ndarray[Any, np.dtype[np.int64]]
Slots = np.ndarray[Any, np.dtype[Any]]

MAGIC = 0x48_52_52_49_4E_47  # "HRRING"
FORMAT = 2

CLAIMS = 512
"""How many ranges may be claimed and not yet visible at once."""
READERS = 64
WORKERS = 32
"""How many scan workers may share one reader's position."""
REFUSALS = 64
"""How many of the last ranges that views did not take are known."""

FOREIGN, OWN, NOBODYS, LOST = range(4)
"""Who the tuple in a slot comes from: another process on its own account, or the database, which gave it to its views
itself. Readers step over slots that nobody wrote, and over those whose writer died."""

INLINE = 12
"""Bytes of text that fit into a slot."""
PAGE = 4096
NO_MARKS = np.empty(0, np.uint8)
"""Stands for the marks of a column without NULLs."""


class Word:
    """The single words of a head, by place."""

    MAGIC, FORMAT, CAPACITY, COLUMNS = 0, 1, 2, 3
    CLAIMED, VALID = 4, 5
    LAP, USED, USED_BEFORE = 6, 7, 9
    STRING_LIMIT, OVERFLOW, PATIENCE = 10, 11, 12
    CLOSED, OVERRUNS, BLOCKED, LOST = 13, 14, 15, 17
    READER_IDS, REFUSALS = 18, 19
    AWAITED = 20
    """1: another process wants to insert; 2: the owner reads for its views."""
    OWNER_PID, OWNER_BEGAN = 21, 22
    OLDEST = 23
    """No reader begins before this id: rows before it were taken back."""
    TAKEN = 24
    """The id up to which the owner has dealt with the rows of other processes; -1 if it never began to."""
    COUNT = 64


class Claim:
    """The words of a claimed range."""

    STATE, LO, HI, PID, BEGAN, LOST = range(6)
    """LOST: how many rows are lost if whoever claimed the range dies."""
    WORDS = 8
    FREE, RESERVED, PUBLISHED = range(3)


class Reader:
    """The words of a reader; then a cell for each of its workers: the first id it is copying, who it is, since when."""

    STATE, ID, PID, BEGAN, BEGIN, POSITION, IDLE, TOUCHED, TIMEOUT, WAITED_FOR, BEHIND, LOST, DONE, OF_OWNER = range(14)
    WORDS = 16
    FREE, LIVE, ROLLED_BACK, CANCELLED, OVERRUN, BROKEN = range(6)
    CELL_LO, CELL_PID, CELL_BEGAN, CELL_SINCE = range(4)
    CELL_WORDS = 4


_CLAIMS_AT = Word.COUNT
_READERS_AT = _CLAIMS_AT + CLAIMS * Claim.WORDS
_READER_WORDS = Reader.WORDS + Reader.CELL_WORDS * WORKERS
_REFUSALS_AT = _READERS_AT + READERS * _READER_WORDS
_NULLS_AT = _REFUSALS_AT + REFUSALS * 2


@dataclass(frozen=True)
class SlotKind:
    """How a column's values lie in slots."""

    dtype: np.dtype[Any]
    lanes: int
    """How many items of the dtype a slot has."""
    text: bool = False
    packed: bool = False
    """Whether Arrow packs eight values a byte, which slots do not."""

    @property
    def width(self) -> int:
        return self.dtype.itemsize * self.lanes

    @staticmethod
    def of(field: Field) -> SlotKind | None:
        """The slots of a column; ``None`` if the ring does not hold its type."""
        if field.type.is_nested or not field.type.is_held:
            return None
        if field.type.name in ("string", "binary"):
            return SlotKind(np.dtype(np.int64), 2, text=True)
        if field.type.name == "boolean":
            return SlotKind(np.dtype(np.uint8), 1, packed=True)
        width = field.type.arrow.bit_width // 8
        return SlotKind(np.dtype(f"i{min(width, 8)}"), max(1, width // 8))


@dataclass(frozen=True)
class Layout:
    """Where everything is in a ring of so many slots of such columns."""

    capacity: int
    columns: Schema
    """The columns the ring holds; those of nested types are left out."""

    @staticmethod
    def of(columns: Sequence[Field], capacity: int) -> Layout:
        return Layout(capacity, tuple(f for f in columns if SlotKind.of(f) is not None))

    @cached_property
    def kinds(self) -> tuple[SlotKind, ...]:
        """How the values of each column lie in its slots."""
        return tuple(kind for f in self.columns if (kind := SlotKind.of(f)) is not None)

    @property
    def head_bytes(self) -> int:
        return _whole_pages((_NULLS_AT + len(self.columns)) * 8)

    @property
    def bytes(self) -> int:
        return self._offsets()[-1]

    def _offsets(self) -> list[int]:
        """Where each column's slots begin, then its marks of NULL, in turn; then the origins; then the end."""
        at, found = self.head_bytes, []
        for kind in self.kinds:
            for width in (kind.width, 1):
                found.append(at)
                at += _whole_pages(width * self.capacity)
        found.append(at)
        return [*found, at + _whole_pages(self.capacity)]

    def slots(self, memory: Any) -> tuple[list[Slots], list[Slots], Slots]:
        """Each column's slots and its marks of NULL, and each slot's origin, over mapped memory."""
        offsets = self._offsets()
        slots, nulls = [], []
        for i, kind in enumerate(self.kinds):
            flat = np.frombuffer(memory, kind.dtype, kind.lanes * self.capacity, offsets[2 * i])
            slots.append(flat if kind.lanes == 1 else flat.reshape(-1, kind.lanes))
            nulls.append(np.frombuffer(memory, np.uint8, self.capacity, offsets[2 * i + 1]))
        return slots, nulls, np.frombuffer(memory, np.uint8, self.capacity, offsets[-2])


@dataclass(frozen=True)
class RingHead:
    """The words of a mapped ring, taken apart."""

    words: Words
    claims: Words
    readers: Words
    cells: Words
    refusals: Words
    nulls: Words
    """For each column, whether any of its values ever was NULL."""

    @staticmethod
    def over(memory: Any, columns: int) -> RingHead:
        every = np.frombuffer(memory, np.int64, _NULLS_AT + columns)
        readers = every[_READERS_AT:_REFUSALS_AT].reshape(READERS, _READER_WORDS)
        return RingHead(
            every[: Word.COUNT],
            every[_CLAIMS_AT:_READERS_AT].reshape(CLAIMS, Claim.WORDS),
            readers[:, : Reader.WORDS],
            readers[:, Reader.WORDS :].reshape(READERS, WORKERS, Reader.CELL_WORDS),
            every[_REFUSALS_AT:_NULLS_AT].reshape(REFUSALS, 2),
            every[_NULLS_AT:],
        )


def view_type(field: Field) -> pa.DataType:
    """The Arrow type a column is scanned in: text as views, everything else as it travels."""
    views = {"string": pa.string_view(), "binary": pa.binary_view()}
    return views.get(field.type.name, field.type.arrow)


def _whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
