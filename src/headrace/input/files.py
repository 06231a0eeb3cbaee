"""From a path or glob to slices: which files, in which format, and who reads which part.

A plan is made of descriptors (paths and ranges), so that a Spark task, or this
process, can read its own part of the input with a native reader. About as many
slices as asked for, of about equal bytes: a large file is cut, small ones share
a slice, every record is in exactly one.

>>> divide([10, 2, 8], 2)
[[(0, 0, 10)], [(1, 0, 2), (2, 0, 8)]]
>>> divide([9], 3)
[[(0, 0, 3)], [(0, 3, 6)], [(0, 6, 9)]]
"""

from __future__ import annotations

import glob
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from headrace.base.parquet_files import footer_of
from headrace.errors import DataError, NotYetSupported
from headrace.input import csv, json_lines, parquet
from headrace.input.csv import CsvFile, CsvOptions, CsvPiece, CsvSlice, read_csv
from headrace.input.json_lines import JsonPiece, JsonSlice, read_json
from headrace.input.parquet import ParquetFile, ParquetSlice
from headrace.input.text import TextFile, shorten
from headrace.types import Schema

TextSlice = CsvSlice | JsonSlice
Slice = TextSlice | ParquetSlice

FORMATS = ("csv", "tsv", "json", "parquet")
_EXTENSIONS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".parq": "parquet",
    ".pq": "parquet",
}


def names_in(path: Path, format: str, options: CsvOptions | None) -> list[str] | None:
    """The columns a file says it has; None where it says nothing of them, or cannot be read."""
    if format == "parquet":
        try:
            return list(footer_of(path).schema.to_arrow_schema().names)
        except (pa.ArrowException, OSError):
            return None
    return csv.header_of(path, options) if options is not None else None


def resolve(pattern: str, format: str | None = None) -> list[Path]:
    """The files a path or glob names, sorted; all of one format (see :func:`format_of`).

    A path that exists is taken as it is, even with ``*`` or ``[`` in it. As in Spark, a glob
    skips files whose names start with ``_`` or ``.``.
    """
    pattern = pattern.removeprefix("file://")
    if not pattern or "\0" in pattern:
        what = "the path is empty" if not pattern else f"{_shown(pattern)} holds a NUL character, which no path does"
        raise DataError("INVALID_PATH", what, hint="write the path of a file, or a pattern such as 'data/*.csv'")
    if "://" in pattern:
        raise NotYetSupported(
            f"COPY from {pattern.split('://')[0]}:// is not supported yet", hint="copy the files here"
        )
    try:
        found = _found(pattern)
    except (OSError, RuntimeError, ValueError) as error:  # too long, not ours to look at, no such home
        why = getattr(error, "strerror", None) or error
        path = shorten(_shown(pattern))
        raise DataError("PATH_UNREADABLE", f"cannot look for {path}: {why}", hint="mend the path") from None
    for file in found:
        if not _is_text(str(file)):
            raise DataError("INVALID_PATH", f"{str(file)!r} is not UTF-8", hint="rename the file")
    if not found:
        raise DataError(
            "PATH_NOT_FOUND", f"no file matches {_shown(pattern)}", hint="paths are relative to the working directory"
        )
    found.sort()
    format_of(found, format)
    return found


def _found(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    if path.is_dir():
        shown, inside = _shown(pattern), f"{pattern.rstrip('/')}/*.csv"
        raise DataError("PATH_IS_DIRECTORY", f"{shown} is a directory", hint=f"write '{inside}'")
    if path.exists():
        _refuse_pipe(path)
        return [path]
    found = [Path(p) for p in glob.glob(str(path), recursive=True)]
    found = [p for p in found if p.exists() and not p.is_dir() and not p.name.startswith(("_", "."))]
    for each in found:
        _refuse_pipe(each)
    return found


def _refuse_pipe(path: Path) -> None:
    """Refuse what is no file but may be opened like one: whoever opens a pipe waits for the other end."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        what = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise DataError(
            "PATH_NOT_A_FILE",
            f"{_shown(str(path))} is {what}, and only files are read",
            hint="write what comes out of it into a file first, or give its rows to db.insert",
        )


def _shown(path: str) -> str:
    """A path as an error message shows it: quoted if it would look like another, or like none.

    >>> _shown("a.csv"), _shown(" "), _shown("a\\0b")
    ('a.csv', "' '", "'a\\\\x00b'")
    """
    return path if path.isprintable() and path.strip() == path else repr(path)


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def format_of(paths: Sequence[Path], format: str | None = None) -> str:
    """``csv``, ``tsv`` (CSV whose delimiter is a tab unless said otherwise), ``json`` (lines) or ``parquet``.

    >>> format_of([Path("a.CSV"), Path("b.csv")]), format_of([Path("a.dat")], "Parquet")
    ('csv', 'parquet')
    """
    hint = "write FORMAT csv, json or parquet; compressed text is not read yet"
    if format is not None:
        if format.lower() not in FORMATS:
            raise DataError("COPY_FORMAT_UNKNOWN", f"COPY does not read the format {format}", hint=hint)
        return format.lower()
    formats = {_EXTENSIONS.get(p.suffix.lower()): p for p in paths}
    if None in formats:
        raise DataError("COPY_FORMAT_UNKNOWN", f"the name of {formats[None]} does not tell its format", hint=hint)
    if len(formats) > 1:
        raise DataError(
            "COPY_FORMAT_UNKNOWN", f"files of several formats: {', '.join(map(str, formats.values()))}", hint=hint
        )
    return next(f for f in formats if f is not None)


def plan_slices(
    paths: Sequence[Path],
    format: str,
    options: CsvOptions | None,
    schema: Schema,
    columns: tuple[str, ...],
    parallelism: int,
    *,
    quoted_newlines: bool = False,
) -> list[Slice]:
    """At most ``parallelism`` slices that together hold every row of ``paths`` once.

    Checks what can be checked without reading everything: headers, and for Parquet the columns
    and types. ``quoted_newlines=True`` finds CSV record boundaries from the start of each file,
    after a reader raised :class:`~headrace.input.csv.QuotedNewline`.
    """
    if format == "parquet":
        return _parquet_slices([parquet.inspect(path, schema) for path in paths], parallelism)
    if format == "json":
        for f in schema:
            if not f.type.is_keyed_by_text:
                raise DataError(
                    "INVALID_JSON_SCHEMA_MAP_TYPE",
                    f"keys of objects are strings: JSON holds no {f.type.sql} (column {f.name})",
                    hint="declare the keys STRING, or write Parquet",
                )
        return _json_slices([json_lines.layout(path) for path in paths], parallelism)
    for f in schema:
        if f.type.is_nested:
            raise DataError(
                "CSV_TYPE_NOT_SUPPORTED",
                f"a field of CSV holds no {f.type.sql} (column {f.name})",
                hint="write JSON lines or Parquet, which hold arrays and structs",
            )
    options = options or CsvOptions(delimiter="\t" if format == "tsv" else ",")
    return _csv_slices([csv.layout(path, options, schema) for path in paths], options, parallelism, quoted_newlines)


def read_text(
    piece_of: TextSlice,
    options: CsvOptions | None,
    schema: Schema,
    columns: tuple[str, ...],
    *,
    zone: str,
    progress: Callable[[int], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a slice of CSV or JSON, read by this process."""
    if isinstance(piece_of, JsonSlice):
        return read_json(piece_of, schema, columns, zone=zone, progress=progress)
    return read_csv(piece_of, options or CsvOptions(), schema, columns, zone=zone, progress=progress)


def _csv_slices(files: list[CsvFile], options: CsvOptions, parallelism: int, exact: bool) -> list[Slice]:
    def record_at(index: int, byte: int) -> int:
        file = files[index]
        return csv.record_start(file, file.data_start + byte, options, exact=exact)

    sizes = [file.size - file.data_start for file in files]
    cuts = _cut(sizes, [file.data_start for file in files], parallelism, record_at)
    return [CsvSlice(tuple(CsvPiece(files[i], start, end) for i, start, end in group)) for group in cuts]


def _json_slices(files: list[TextFile], parallelism: int) -> list[Slice]:
    sizes = [file.size - file.data_start for file in files]
    starts = [file.data_start for file in files]
    cuts = _cut(sizes, starts, parallelism, lambda i, byte: json_lines.line_start(files[i], starts[i] + byte))
    return [JsonSlice(tuple(JsonPiece(files[i], start, end) for i, start, end in group)) for group in cuts]


def _parquet_slices(files: list[ParquetFile], parallelism: int) -> list[Slice]:
    sizes = [sum(file.group_bytes) for file in files]
    share = sum(sizes) / max(parallelism, 1)
    cuts = _cut(sizes, [0] * len(files), parallelism, lambda i, byte: parquet.row_at(files[i], byte, share))
    return [ParquetSlice(tuple(parquet.piece(files[i], start, end) for i, start, end in group)) for group in cuts]


def _cut(
    sizes: list[int], starts: list[int], parallelism: int, place: Callable[[int, int], int]
) -> list[list[tuple[int, int, int]]]:
    """Groups of ``(file, start, end)``: :func:`divide`, each cut moved to where ``place`` allows one."""
    starts = list(starts)  # where the part of each file not yet given away begins
    groups = []
    for group in divide(sizes, parallelism):
        pieces = []
        for index, _, until in group:
            end = place(index, until)
            if end > starts[index]:
                pieces.append((index, starts[index], end))
                starts[index] = end
        if pieces:
            groups.append(pieces)
    return groups


def divide(sizes: Sequence[int], parts: int) -> list[list[tuple[int, int, int]]]:
    """``parts`` groups of ranges ``(index, start, end)`` that cover all sizes in order, evenly."""
    total = sum(sizes)
    groups: list[list[tuple[int, int, int]]] = [[] for _ in range(max(parts, 1))]
    begin = 0  # of this size, in the concatenation of all
    for index, size in enumerate(sizes):
        position = begin
        while position < begin + size:
            part = min(position * len(groups) // total, len(groups) - 1)
            # the first position of the next group, by the same rounding
            limit = -(-total * (part + 1) // len(groups))
            end = min(begin + size, limit)
            groups[part].append((index, position - begin, end - begin))
            position = end
        begin += size
    return [group for group in groups if group]
