"""CSV in slices: typed Arrow batches from any byte range of a file.

A slice is a descriptor: which bytes of which files, and which of a record's
fields is which column. Any process can read one, alone, in bounded memory, and
the slices of a plan hold every record exactly once. pyarrow parses and converts
only the wanted columns; Python sees blocks, never rows.

Records are cut exactly (see :mod:`headrace.input.records`): blocks inside a
slice always, slices wherever a bounded look backwards tells. Where it cannot
(say, a quoted field of more than a megabyte), the plan assumes, the reader of
the slice *before* checks, and :class:`QuotedNewline` asks for a plan that reads
everything once. So no slicing is ever silently wrong.

The dialect is ours, written down in docs/copy.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pacsv

from headrace.errors import DataError, SqlError
from headrace.input import lengths, spellings
from headrace.input.records import NEWLINE, Quoting
from headrace.input.text import (
    BLOCK_SIZE,
    BOM,
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
    from headrace.input.csv_kernel import CsvKernel

LOOK_BACK_LIMIT = 1 << 20
"""How far a plan looks back from a cut for a quote that tells where it is."""

_ALIASES = {"delim": "delimiter", "sep": "delimiter", "nullstr": "null", "nullvalue": "null"}


class QuotedNewline(Exception):
    """A slice was cut inside a quoted field: plan again with ``quoted_newlines=True``.

    Never seen by users; whatever the slice's siblings returned or raised is void.
    """


@dataclass(frozen=True)
class CsvOptions:
    """The COPY options of CSV; see docs/copy.md.

    ``quote=""`` turns quoting off. An unquoted field equal to ``null`` is NULL.
    """

    header: bool = False
    delimiter: str = ","
    quote: str = '"'
    null: str = ""
    skipped: tuple[str, ...] = field(default=(), repr=False)
    """Columns of the target a header may name beside those that COPY lists: they are passed over."""

    def __post_init__(self) -> None:
        for name, text in (("delimiter", self.delimiter), ("quote", self.quote)):
            if not (len(text) == 1 and text.isascii() and text not in "\r\n\0") and not (name == "quote" and not text):
                raise _bad_option(name, text, "one ASCII character, not a line end")
        if self.delimiter == self.quote:
            raise _bad_option("quote", self.quote, "another character than the delimiter")
        if any(c in self.null for c in (self.delimiter, "\r", "\n", *self.quote)):
            raise _bad_option("null", self.null, "a text without delimiter, quote or line end")

    @staticmethod
    def of(options: Mapping[str, object], *, delimiter: str = ",") -> CsvOptions:
        """Options as a COPY statement or a call gives them, names in any case.

        >>> CsvOptions.of({"HEADER": "true", "Delimiter": ";"})
        CsvOptions(header=True, delimiter=';', quote='"', null='')
        """
        known: dict[str, Any] = {"delimiter": delimiter}
        for name, value in options.items():
            key = _ALIASES.get(name.lower(), name.lower())
            if key not in ("header", "delimiter", "quote", "null"):
                raise SqlError(
                    "COPY_OPTION_UNKNOWN",
                    f"COPY of CSV has no option {name}",
                    hint="its options are header, delimiter, quote and null",
                )
            if key == "header":
                flag = {"true": True, "false": False, "1": True, "0": False}.get(str(value).lower())
                if flag is None:
                    raise _bad_option(key, value, "true or false")
                known[key] = flag
            elif not isinstance(value, str):
                raise _bad_option(key, value, "a string")
            else:
                known[key] = "\t" if key == "delimiter" and value == "\\t" else value
        return CsvOptions(**known)

    @property
    def quoting(self) -> Quoting:
        return Quoting(ord(self.delimiter), ord(self.quote) if self.quote else None)


def _bad_option(name: str, value: object, wanted: str) -> SqlError:
    return SqlError("COPY_OPTION_INVALID", f"COPY option {name} is {value!r}", hint=f"write {wanted}")


@dataclass(frozen=True)
class CsvFile(TextFile):
    """A file's layout, with the names of its fields in order."""

    names: tuple[str, ...]


CsvPiece = TextPiece[CsvFile]


class CsvSlice(TextSlice[CsvFile]):
    """What one task reads."""


def header_of(path: Path, options: CsvOptions) -> list[str] | None:
    """The names in a file's header, if it has one."""
    data = as_array(open_bytes(path))
    start = text_start(path, data, "CSV")
    if not options.header or start >= data.size:
        return None
    end = options.quoting.next_record(data, start, start + 1, limit=1)
    return _header_names(path, data[start:end].tobytes(), options)


def layout(path: Path, options: CsvOptions, schema: Schema) -> CsvFile:
    """Reads a file's start: byte-order mark and header, whose names must be the stream's, in any order."""
    data = as_array(open_bytes(path))
    start = text_start(path, data, "CSV")
    names = tuple(f.name for f in schema)
    if options.header and start < data.size:
        end = options.quoting.next_record(data, start, start + 1, limit=1)
        found = _header_names(path, data[start:end].tobytes(), options)
        names = _match_names(path, found, schema, options.skipped)
        start = end
    return CsvFile(path, start, int(data.size), names)


def record_start(file: CsvFile, at: int, options: CsvOptions, *, exact: bool) -> int:
    """The first record start at or after byte ``at``.

    Unless ``exact``, looks back no further than LOOK_BACK_LIMIT, and may be wrong where that
    does not tell; :func:`read_csv` of the piece before then raises :class:`QuotedNewline`.
    """
    if at >= file.size:
        return file.size
    data = as_array(open_bytes(file.path))
    return options.quoting.next_record(data, file.data_start, at, limit=file.size if exact else LOOK_BACK_LIMIT)


def _header_names(path: Path, record: bytes, options: CsvOptions) -> list[str]:
    record += b"\n"  # a header alone may have no line end, and pyarrow wants one
    read = pacsv.ReadOptions(autogenerate_column_names=True, use_threads=False, block_size=len(record) + 1)
    try:
        table = pacsv.read_csv(
            pa.BufferReader(record),
            read_options=read,
            parse_options=_parse_options(options, skip_blank=False),
            convert_options=pacsv.ConvertOptions(null_values=[], strings_can_be_null=False),
        )
        return [pc.cast(column, pa.string())[0].as_py() or "" for column in table.columns]
    except pa.ArrowInvalid as error:
        raise DataError("CSV_INVALID_UTF8", f"the header of {path} cannot be read: {error}") from error


def _match_names(path: Path, found: list[str], schema: Schema, skipped: tuple[str, ...]) -> tuple[str, ...]:
    """The schema's spelling of the names found; all of them, each once, in any order and case."""
    by_name = {n.lower(): n for n in (*(f.name for f in schema), *skipped)}
    names = [by_name.get(n.lower()) for n in found]
    expected = "its columns are " + ", ".join(f.name for f in schema)
    if unknown := [n for n, known in zip(found, names, strict=True) if known is None]:
        raise DataError(
            "UNKNOWN_COLUMN",
            f"the header of {path} names {shorten(', '.join(unknown))}, which the stream does not have",
            hint=f"{expected}; a file without a header needs header false",
        )
    if repeated := sorted({n for n in names if n is not None and names.count(n) > 1}):
        raise DataError("REPEATED_COLUMN", f"the header of {path} names {', '.join(repeated)} more than once")
    if missing := [f.name for f in schema if f.name not in names]:
        raise DataError("MISSING_COLUMN", f"the header of {path} lacks {', '.join(missing)}", hint=expected)
    return tuple(n for n in names if n is not None)


def _parse_options(options: CsvOptions, *, skip_blank: bool, handler: Any = None) -> pacsv.ParseOptions:
    return pacsv.ParseOptions(
        delimiter=options.delimiter,
        quote_char=options.quote or False,
        double_quote=bool(options.quote),
        newlines_in_values=False,  # pyarrow need not look for records: it is given whole ones, in one block
        ignore_empty_lines=skip_blank,
        invalid_row_handler=handler,
    )


def read_csv(
    slice: CsvSlice,
    options: CsvOptions,
    schema: Schema,
    columns: tuple[str, ...],
    *,
    block_size: int = BLOCK_SIZE,
    zone: str = "UTC",
    progress: Callable[[int], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a slice as batches of exactly ``columns``, in the schema's Arrow types.

    A ``timestamp`` without an offset is a local time of ``zone``. Columns not asked for are
    not looked at. ``progress`` is told how many bytes are done. Raises :class:`DataError` naming
    file, row and column.
    """
    by_name = {f.name: f for f in schema}
    wanted = tuple(by_name[name] for name in columns)
    return read_pieces((_Reader(piece, options, wanted, zone, block_size) for piece in slice.pieces), progress)


class _Reader(PieceReader[CsvFile]):
    """Reads one piece; remembers which timestamp columns carry offsets."""

    def __init__(
        self, piece: CsvPiece, options: CsvOptions, wanted: tuple[Field, ...], zone: str, block_size: int
    ) -> None:
        super().__init__(piece, wanted, zone, block_size)
        self.options = options
        self.quoting = options.quoting
        # a blank line is an empty value where a record has one field, else no record
        self.skip_blank = len(piece.file.names) > 1
        self.parse = _parse_options(options, skip_blank=self.skip_blank)
        self.zoned: frozenset[str] = frozenset()
        self.convert = self._convert_options()
        self.kernel = self._kernel()
        self.declined = 0

    def _kernel(self) -> CsvKernel | None:
        """The compiled reader, where the piece is large enough to pay for loading it."""
        names = self.piece.file.names
        large = self.piece.end - self.piece.start >= KERNEL_BYTES
        if not large or len(names) == 1:
            return None
        from headrace.input.csv_kernel import CsvKernel

        if not CsvKernel.fits(self.wanted, self.options.null):
            return None
        return CsvKernel(names, self.wanted, self.options.delimiter, self.options.quote)

    def _blocks(self) -> Iterator[tuple[int, int]]:
        start, stop = self.piece.start, self.piece.end
        size = self.block_size
        while start < stop:
            end = min(start + size, stop)
            if end < stop or self.quoting.ends_open(self.data, start, stop):
                end = self._last_record_end(start, end)
            if end > start:
                yield start, end
                start, size = end, self.block_size
            elif start + size >= stop:
                if stop < self.data.size:
                    raise QuotedNewline(f"{self.piece.path}: byte {stop} is inside quotes")
                hint = "close it, double a quote that is part of a value, or write quote '' to read without quoting"
                raise self._error("CSV_UNCLOSED_QUOTE", self._row(start, 1), "a quote is not closed", hint)
            elif size >= MAX_RECORD:
                hint = "a quote may not be closed; write quote '' to read without quoting"
                what = f"the record is longer than {MAX_RECORD} bytes"
                raise self._error("CSV_RECORD_TOO_LONG", self._row(start, 1), what, hint)
            else:
                size = min(size * 4, MAX_RECORD)

    def _last_record_end(self, start: int, end: int) -> int:
        """The end of the last whole record in ``[start, end)``, ``start`` if there is none."""
        low = max(start, end - 4096)
        newlines = np.flatnonzero(self.data[low:end] == NEWLINE)
        if not newlines.size:
            low = start
            newlines = np.flatnonzero(self.data[low:end] == NEWLINE)
        if not newlines.size:
            return start
        last = low + int(newlines[-1]) + 1
        if not self.quoting.ends_open(self.data, start, last):
            return last
        ends, _ = self.quoting.record_ends(self.data, start, last, origin=start)
        ends = ends[self.data[ends] == NEWLINE]
        return int(ends[-1]) + 1 if ends.size else start

    def _convert_options(self) -> pacsv.ConvertOptions:
        types = {}
        for f in self.wanted:
            types[f.name] = f.type.arrow
            if f.type.name == "timestamp" and f.name not in self.zoned:
                types[f.name] = pa.timestamp("us")
            elif f.type.name == "binary":
                types[f.name] = pa.string()
        # no wanted column still means counted rows: the first column, unconverted, counts them
        return self._converting(types or {self.piece.file.names[0]: pa.binary()})

    def _converting(self, types: dict[str, pa.DataType]) -> pacsv.ConvertOptions:
        return pacsv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=[self.options.null],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def _parsed(self, start: int, end: int, parse: pacsv.ParseOptions, convert: pacsv.ConvertOptions) -> pa.RecordBatch:
        """One block through pyarrow, in one piece and in this thread."""
        block = self.buffer.slice(start, end - start)
        if block[: len(BOM)].to_pybytes() == BOM:
            # past the file's start it is data, but pyarrow skips one before anything it is given
            block = pa.py_buffer(BOM + block.to_pybytes())
        if self.data[end - 1] != NEWLINE:
            # pyarrow takes an empty last field of a file without a last line end for a quoted one
            # if the field before it was: '"x",' would not end in a NULL
            block = pa.py_buffer(block.to_pybytes() + b"\n")
        source = pa.BufferReader(block)
        read = pacsv.ReadOptions(column_names=self.piece.file.names, use_threads=False, block_size=block.size + 1)
        return pacsv.open_csv(source, read_options=read, parse_options=parse, convert_options=convert).read_next_batch()

    def _block(self, start: int, end: int) -> pa.RecordBatch:
        if self.kernel is not None:
            plain = self.kernel.read(self.data, start, end)
            if plain is not None:
                return pa.RecordBatch.from_arrays(self._in_length(start, plain), schema=self.schema)
            self.declined += 1
            if self.declined > 3:
                self.kernel = None  # not a plain file: stop trying
        try:
            parsed = self._parsed(start, end, self.parse, self.convert)
            if not self.wanted:
                return rows_without_columns(parsed.num_rows)
            arrays = [self._finished(f, a) for f, a in zip(self.wanted, parsed.columns, strict=True)]
        except StopIteration:
            return rows_without_columns(0)
        except pa.ArrowInvalid:
            arrays = self._reread(start, end)
            if not self.wanted:
                return rows_without_columns(0)
        for f, array in zip(self.wanted, arrays, strict=True):
            if not f.nullable and array.null_count:
                row = self._row(start, pc.index(pc.is_null(array), True).as_py() + 1)
                raise self._error("NULL_IN_NOT_NULL", row, f"column {f.name} is NOT NULL, but the field is NULL", None)
        return pa.RecordBatch.from_arrays(self._in_length(start, arrays), schema=self.schema)

    def _in_length(self, start: int, arrays: list[pa.Array]) -> list[pa.Array]:
        """The arrays with text as long as its columns take it."""
        for at, f in enumerate(self.wanted):
            try:
                arrays[at] = lengths.fitted(arrays[at], f.type)
            except lengths.TooLong:
                index, what = lengths.first_too_long(arrays[at], f)
                raise self._error(lengths.CONDITION, self._row(start, index + 1), what, lengths.HINT) from None
        return arrays

    def _finished(self, f: Field, array: pa.Array) -> pa.Array:
        if f.type.name == "binary":
            return spellings.unhex(array)
        if f.type.name == "timestamp" and f.name not in self.zoned:
            return spellings.in_zone(array, self.zone)
        if f.type.is_decimal:
            array.validate(full=True)  # pyarrow does not: it reads 1000 as a decimal(5,2) of six digits
        return array

    def _reread(self, start: int, end: int) -> list[pa.Array]:
        """A block pyarrow refused: its values by our wider spellings, or the error of its first bad row."""
        broken: list[Any] = []

        def note(row: Any) -> str:
            broken.append(row)
            return "skip"

        parse = _parse_options(self.options, skip_blank=self.skip_blank, handler=note)
        types = {f.name: pa.binary() for f in self.wanted} or {self.piece.file.names[0]: pa.binary()}
        try:
            columns = self._parsed(start, end, parse, self._converting(types)).columns
        except StopIteration:
            columns = [pa.array([], t) for t in types.values()]
        except pa.ArrowInvalid as error:
            if "Empty CSV" in str(error) and not broken:  # nothing but blank lines
                return [pa.array([], f.type.arrow) for f in self.wanted]
            if not broken:
                raise self._error("CSV_UNREADABLE", self._row(start, 1), str(error), None) from error
            columns = [pa.array([], t) for t in types.values()]
        if broken:
            # rows before the first broken one are where they were; one of them may be worse still
            columns = [c[: broken[0].number - 1] for c in columns]
        self._check_values(start, columns)
        if broken:
            first = broken[0]
            what = f"{first.actual_columns} fields where {first.expected_columns} are expected: {shorten(first.text)}"
            hint = f"the delimiter is {self.options.delimiter!r}; quote a value that contains it"
            raise self._error("CSV_COLUMN_COUNT", self._row(start, first.number), what, hint)
        text = [c.cast(pa.string()) for c in columns]
        self.zoned = frozenset(
            f.name for f, t in zip(self.wanted, text, strict=False) if spellings.has_offset(t.drop_null()[:1])
        )
        self.convert = self._convert_options()
        return [spellings.read(t, f.type, self.zone) for f, t in zip(self.wanted, text, strict=False)]

    def _check_values(self, start: int, columns: list[pa.Array]) -> None:
        """Raises the error of the first row that has a value which cannot be read."""
        worst: tuple[int, Field, bytes] | None = None
        for f, column in zip(self.wanted, columns, strict=False):
            upto = len(column) if worst is None else worst[0]
            bad = spellings.first_unreadable(column[:upto], f.type, self.zone)
            if bad is not None:
                worst = bad, f, column[bad].as_py()
        if worst is None:
            return
        index, f, value = worst
        row = self._row(start, index + 1)
        try:
            text = value.decode()
        except UnicodeDecodeError:
            shown = shorten(value.decode(errors="backslashreplace"))
            what = f"column {f.name} is not UTF-8: {shown}"
            raise self._error("CSV_INVALID_UTF8", row, what, "convert the file to UTF-8") from None
        hint = spellings.EXPECTED.get(f.type.name)
        if row == 1 and not self.options.header and text.lower() in (n.lower() for n in self.piece.file.names):
            hint = "the first line looks like a header: write header true"
        elif text == "":
            hint = f"an empty field in quotes is text; NULL is spelled {self.options.null!r} without quotes"
        raise self._error("CSV_BAD_VALUE", row, f"column {f.name}: {shorten(text)!r} is no {f.type.sql}", hint)

    def _row(self, start: int, number: int) -> int:
        """The row's number in the file, from its number in the block at ``start``.

        Counts all records before, so it also learns whether ``start`` begins one.
        """
        before = count_rows(self.piece.file, start, self.options)
        if before is None:
            raise QuotedNewline(f"{self.piece.path}: byte {start} is inside quotes")
        return before + number

    def _error(self, condition: str, row: int, what: str, hint: str | None) -> DataError:
        return DataError(condition, f"{self.piece.path}, row {row}: {what}", hint=hint)


def count_rows(file: CsvFile, upto: int, options: CsvOptions) -> int | None:
    """Data rows before byte ``upto``, by reading them all; ``None`` if it is inside quotes."""
    data = as_array(open_bytes(file.path))
    return options.quoting.count_records(data, file.data_start, upto, skip_blank=len(file.names) > 1)
