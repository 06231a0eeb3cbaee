"""Text files in slices: what CSV and JSON lines have in common.

A slice is a descriptor: which bytes of which files. Any process can read one,
alone, in bounded memory, block by block; what a record is, and how a block of
them becomes columns, is the format's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

from headrace.errors import DataError
from headrace.input.records import Bytes
from headrace.types import Field, arrow_schema

BLOCK_SIZE = 2 << 20
"""Bytes parsed at once: measured, larger ones leave the cache and smaller ones pay per call."""
MAX_RECORD = 1 << 26
"""The longest record accepted. A quote that is never closed would else swallow the file."""
KERNEL_BYTES = 4 << 20
"""Pieces at least this large are read by a compiled kernel; smaller ones do not pay for loading it."""
BOM = b"\xef\xbb\xbf"
"""The byte-order mark of UTF-8."""
_SHOWN = 60


@dataclass(frozen=True)
class TextFile:
    """A file and where its first record starts."""

    path: Path
    data_start: int
    size: int


F = TypeVar("F", bound=TextFile)


@dataclass(frozen=True)
class TextPiece(Generic[F]):
    """The records of ``file`` that start in the byte range ``[start, end)``."""

    file: F
    start: int
    end: int

    @property
    def path(self) -> Path:
        return self.file.path


@dataclass(frozen=True)
class TextSlice(Generic[F]):
    """What one task reads: pieces of one or several files."""

    pieces: tuple[TextPiece[F], ...]

    @property
    def bytes(self) -> int:
        return sum(p.end - p.start for p in self.pieces)


class PieceReader(ABC, Generic[F]):
    """Reads one piece block by block."""

    def __init__(self, piece: TextPiece[F], wanted: tuple[Field, ...], zone: str, block_size: int) -> None:
        self.piece = piece
        self.wanted = wanted
        self.zone = zone
        self.block_size = block_size
        self.schema = arrow_schema(wanted)
        self.buffer = open_bytes(piece.path)
        self.data = as_array(self.buffer)

    def batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The piece's batches, each with the byte its block ends at."""
        for start, end in self._blocks():
            batch = self._block(start, end)
            if batch.num_rows:
                yield batch, end

    @abstractmethod
    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Byte ranges of whole records, of about ``block_size``; a longer record is one block."""

    @abstractmethod
    def _block(self, start: int, end: int) -> pa.RecordBatch:
        """The rows of a block."""


def read_pieces(
    readers: Iterable[PieceReader[F]], progress: Callable[[int], None] | None = None
) -> Iterator[pa.RecordBatch]:
    """The batches of all pieces; ``progress`` is told how many bytes are done."""
    done = 0
    for reader in readers:
        piece = reader.piece
        for batch, end in reader.batches():
            yield batch
            if progress is not None:
                progress(done + end - piece.start)
        done += piece.end - piece.start


def open_bytes(path: Path) -> pa.Buffer:
    """The file's bytes, mapped, not read."""
    try:
        with pa.memory_map(str(path)) as source:
            return source.read_buffer()
    except OSError as error:
        if path.is_file() and path.stat().st_size == 0:
            return pa.py_buffer(b"")
        raise DataError("PATH_UNREADABLE", f"cannot read {path}: {error}") from error


def as_array(buffer: pa.Buffer) -> Bytes:
    return np.frombuffer(buffer, dtype=np.uint8)


def text_start(path: Path, data: Bytes, format: str) -> int:
    """Where the text begins: after a byte-order mark, which must be UTF-8's."""
    head = data[:4].tobytes()
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{format}_INVALID_UTF8", f"{path} is UTF-16", hint="convert it to UTF-8")
    return len(BOM) if head.startswith(BOM) else 0


def rows_without_columns(rows: int) -> pa.RecordBatch:
    """A batch that is only a number of rows."""
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_arrays([], fields=[], mask=pa.nulls(rows).is_valid()))


def shorten(text: str) -> str:
    """The text as an error message shows it."""
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
