"""JSON lines in slices: typed Arrow batches from any byte range of a file of one object a line.

A JSON string cannot hold a raw line end, so every newline ends a record and any
cut moved to the next newline is exact. A block of lines is first *located*: for
each wanted column, what kind of value each row has, and its text
(:mod:`headrace.input.json_scan`, or for large files the compiled
:mod:`headrace.input.json_kernel`). Then whole columns are converted from text
(:mod:`headrace.input.json_values`), so a decimal never passes through a double.

The dialect is written down in docs/copy.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.errors import DataError
from headrace.input import lengths
from headrace.input.json_scan import Located, NotJson, Scanner
from headrace.input.json_values import EXPECTED, convert
from headrace.input.nested import RepeatedKey, check_keys, first_hole
from headrace.input.records import NEWLINE
from headrace.input.spellings import first_failure
from headrace.input.text import (
    BLOCK_SIZE,
    KERNEL_BYTES,
    MAX_RECORD,
    PieceReader,
    TextFile,
    TextPiece,
    TextSlice,
    as_array,
    open_bytes,
    read_pieces,
    rows_without_columns,
    shorten,
    text_start,
)
from headrace.types import Field, Schema

if TYPE_CHECKING:
    from headrace.input.json_kernel import JsonKernel

JsonPiece = TextPiece[TextFile]


class JsonSlice(TextSlice[TextFile]):
    """What one task reads."""


def layout(path: Path) -> TextFile:
    """Reads a file's start: only a byte-order mark may stand before the first line."""
    data = as_array(open_bytes(path))
    return TextFile(path, text_start(path, data, "JSON"), int(data.size))


def line_start(file: TextFile, at: int) -> int:
    """The first start of a line at or after byte ``at``, or the end of the file."""
    if at <= file.data_start:
        return file.data_start
    data = as_array(open_bytes(file.path))
    at -= 1  # the newline may be the byte before
    step = 1 << 12
    while at < file.size:
        found = np.flatnonzero(data[at : at + step] == NEWLINE)
        if found.size:
            return at + int(found[0]) + 1
        at += step
        step = min(step * 4, BLOCK_SIZE)
    return file.size


def read_json(
    slice: JsonSlice,
    schema: Schema,
    columns: tuple[str, ...],
    *,
    block_size: int = BLOCK_SIZE,
    zone: str = "UTC",
    progress: Callable[[int], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a slice as batches of exactly ``columns``, in the schema's Arrow types.

    A ``timestamp`` without an offset is a local time of ``zone``. ``progress`` is told how many
    bytes are done. Raises :class:`DataError` naming file, row and column.
    """
    by_name = {f.name: f for f in schema}
    wanted = tuple(by_name[name] for name in columns)
    ascii_only = all(f.name.isascii() for f in schema)
    return read_pieces((_Reader(piece, wanted, ascii_only, zone, block_size) for piece in slice.pieces), progress)


class _Reader(PieceReader[TextFile]):
    def __init__(
        self, piece: JsonPiece, wanted: tuple[Field, ...], ascii_only: bool, zone: str, block_size: int
    ) -> None:
        super().__init__(piece, wanted, zone, block_size)
        names = [f.name for f in wanted]
        self.scanner = Scanner(names, ascii_only=ascii_only)
        self.kernel: JsonKernel | None = None
        self.declined = 0
        if ascii_only and piece.end - piece.start >= KERNEL_BYTES:
            from headrace.input.json_kernel import JsonKernel

            self.kernel = JsonKernel(names)

    def _blocks(self) -> Iterator[tuple[int, int]]:
        start, stop = self.piece.start, self.piece.end
        while start < stop:
            end, size = min(start + self.block_size, stop), self.block_size
            while end < stop:
                newlines = np.flatnonzero(self.data[start:end] == NEWLINE)
                if newlines.size:
                    end = start + int(newlines[-1]) + 1
                    break
                if size >= MAX_RECORD:
                    what = f"the line is longer than {MAX_RECORD} bytes"
                    raise self._error("JSON_RECORD_TOO_LONG", start, 0, what, "write one object a line")
                size = min(size * 4, MAX_RECORD)
                end = min(start + size, stop)
            yield start, end
            start = end

    def _block(self, start: int, end: int) -> pa.RecordBatch:
        rows, columns = self._located(start, end)
        if not self.wanted:
            return rows_without_columns(rows)
        try:
            arrays = [self._held(f, c) for c, f in zip(columns, self.wanted, strict=True)]
        except (pa.ArrowException, ValueError, OverflowError):
            self._check_values(start, columns)
            raise
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _held(self, f: Field, part: Located) -> pa.Array:
        """Values as their column holds them; an error from Arrow or a ValueError if one has no place in it."""
        array = convert(part, f.type, self.zone)
        if (array.null_count and not f.nullable) or first_hole(array, f.type) is not None:
            raise ValueError("NULL")
        array = lengths.fitted(array, f.type)
        check_keys(array, f.type)
        return array

    def _located(self, start: int, end: int) -> tuple[int, list[Located]]:
        """How many rows a block has, and what each wanted column has in them."""
        if self.kernel is not None:
            found = self.kernel.locate(self.data, start, end)
            if found is not None:
                return found
            self.declined += 1
            if self.declined > 3:
                self.kernel = None  # not a plain file: stop trying
        block = self.buffer.slice(start, end - start).to_pybytes()
        try:
            return self.scanner.locate(block)
        except NotJson as refusal:
            # a row before the first broken one may have a value that is worse still
            self._check_values(start, refusal.before)
            hint = (
                "convert the file to UTF-8" if refusal.condition == "JSON_INVALID_UTF8" else "write one object a line"
            )
            raise self._error(refusal.condition, start, refusal.rows, refusal.what, hint) from None

    def _check_values(self, start: int, columns: list[Located]) -> None:
        """Raises the error of the first row that has a value which cannot be kept."""
        worst: tuple[int, Field, Located] | None = None
        for f, column in zip(self.wanted, columns, strict=True):
            part = column if worst is None else column[: worst[0]]
            bad = first_failure(partial(self._held, f), part)
            if bad is not None:
                worst = bad, f, column
        if worst is None:
            return
        index, f, column = worst
        text = column.text[index].as_py()
        if text is None:
            what = f"column {f.name} is NOT NULL, but the field is null or missing"
            raise self._error("NULL_IN_NOT_NULL", start, index, what, "give a value")
        what = f"column {f.name}: {shorten(column.shown(index))}"
        try:
            self._held(f, column[index : index + 1])
        except lengths.TooLong:
            what = f"{what} is too long for {f.type.declared}"
            raise self._error(lengths.CONDITION, start, index, what, lengths.HINT) from None
        except RepeatedKey:
            what = f"column {f.name}: a key is there twice in {shorten(column.shown(index))}"
            raise self._error("DUPLICATED_MAP_KEY", start, index, what, "give each key once") from None
        except (pa.ArrowException, ValueError, OverflowError):
            what = f"{what} is no {f.type.declared}"
            raise self._error("JSON_BAD_VALUE", start, index, what, EXPECTED[f.type.name]) from None

    def _error(self, condition: str, start: int, before: int, what: str, hint: str) -> DataError:
        row = _count_rows(self.data, self.piece.file.data_start, start) + before + 1
        return DataError(condition, f"{self.piece.path}, row {row}: {what}", hint=hint)


def _count_rows(data: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], start: int, end: int) -> int:
    """The lines of ``[start, end)`` that are not blank; both are starts of lines."""
    total, rest = 0, b""
    for at in range(start, end, BLOCK_SIZE):
        *lines, rest = (rest + data[at : min(at + BLOCK_SIZE, end)].tobytes()).split(b"\n")
        total += sum(1 for line in lines if line.strip(b" \t\r"))
    return total + bool(rest.strip(b" \t\r"))
