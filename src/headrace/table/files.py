"""Tables over existing files: ``CREATE TABLE t (…) USING csv LOCATION 'path or glob'``.

The files stay where they are and are read at each query, by COPY's readers and
with COPY's rules. The store keeps only a *manifest*: each file's name, size and
time of change as last seen. A query that finds them otherwise commits the new
manifest first, so that a change of the files is a change of the table like any
other: kept answers that rest on it are computed again.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from headrace.base.interrupts import check
from headrace.base.parquet_files import open_parquet
from headrace.catalog import FileSource, Table
from headrace.errors import DataError, HeadraceError, NotYetSupported, Position, SqlError
from headrace.input.csv import CsvOptions
from headrace.input.files import TextSlice, plan_slices, read_text, resolve
from headrace.input.parquet import ParquetPiece, ParquetSlice, first_bad_value, holds_int96, parquet_source
from headrace.runtime import Runtime
from headrace.store import Transaction
from headrace.types import TIMESTAMP, VOID, Field, Schema, Type, arrow_schema, from_arrow

MANIFEST = pa.schema([("path", pa.string()), ("bytes", pa.int64()), ("changed", pa.int64())])
"""What the store keeps of a file table."""

Mark = tuple[tuple[str, int, int], ...]


def as_read(columns: Schema) -> Schema:
    """The columns as files hold them: how long their text is was checked by those who wrote it, or by nobody."""
    return tuple(replace(f, type=f.type.as_read) for f in columns)


def mark(table: Table) -> Mark:
    """The files of a table as they are now; an error that names them if there are none."""
    assert table.files is not None
    try:
        return tuple((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in _paths(table.files))
    except (DataError, FileNotFoundError) as error:
        if isinstance(error, DataError) and error.condition != "PATH_NOT_FOUND":
            raise DataError(error.condition, f"table {table.name}: {error.message}", hint=error.hint) from error
        raise DataError(
            "PATH_NOT_FOUND",
            f"table {table.name}: no file at {table.files.location}",
            hint=f"put it back, or DROP TABLE {table.name}; nothing else has changed",
        ) from error


def manifest(found: Mark) -> pa.Table:
    columns = zip(*found, strict=True) if found else ([], [], [])
    return pa.table([pa.array(list(c), t) for c, t in zip(columns, MANIFEST.types, strict=True)], schema=MANIFEST)


def declared(name: str, columns: Schema, source: FileSource, at: Position) -> Table:
    """The table a statement declares, its files looked at: columns from Parquet's own where none are given."""
    _options(source)
    try:
        paths = _paths(source)
        if not columns:
            columns = _own_columns(name, paths[0], source, at)
        plan_slices(paths, source.format, _options(source), as_read(columns), (), 1)
    except HeadraceError as error:
        error.position = error.position or at
        raise
    return Table(name, columns, files=source)


def refresh(runtime: Runtime, found: Iterable[Table]) -> None:
    """Commit the manifests of those file tables whose files are not as they were last seen."""
    for table in found:
        now = mark(table)
        if runtime.file_marks.get(table) == now:
            continue

        def work(tx: Transaction, table: Table = table, now: Mark = now) -> None:
            relation = table.number
            if runtime.catalog.find(table.name) is not table or tx.scan(relation).equals(manifest(now)):
                tx.unchanged()
            else:
                tx.replace(relation, manifest(now), altered=True)

        def seen(_: None, table: Table = table, now: Mark = now) -> None:
            runtime.file_marks[table] = now

        runtime.store.commit(work, label=f"files of {table.name} changed", settled=seen)
        check()  # the query that follows has not begun


@dataclass(frozen=True)
class OpenedFiles:
    """A file table ready to be read in a query: as rows, or as native SQL that reads them."""

    rows: pa.Table | None
    sql: str
    pieces: tuple[ParquetPiece, ...] = ()
    schema: Schema = ()

    def explain(self, error: HeadraceError) -> HeadraceError:
        """The value in a file that made a query fail, if one did; else the error itself."""
        columns = tuple(f.name for f in self.schema)
        bad = (first_bad_value(piece, self.schema, columns) for piece in self.pieces)
        return next((found for found in bad if found is not None), error)


def open_files(runtime: Runtime, table: Table, fields: Iterable[str]) -> OpenedFiles:
    """The table's rows, at least in these columns."""
    assert table.files is not None
    columns = as_read(table.columns)
    names = tuple(f.name for f in columns)
    wanted = tuple(n for n in names if n in set(fields)) or names[:1]
    options = _options(table.files)
    mark(table)  # names the table if its files are gone
    slices = plan_slices(_paths(table.files), table.files.format, options, columns, wanted, 1)
    if table.files.format == "parquet":
        pieces = tuple(p for s in slices if isinstance(s, ParquetSlice) for p in s.pieces)
        empty = ", ".join(f"CAST(NULL AS {f.type.duckdb}) AS {_quoted(f.name)}" for f in columns)
        parts = [f"SELECT * FROM {parquet_source(p, columns, names)}" for p in pieces]
        return OpenedFiles(None, " UNION ALL ".join(parts) or f"SELECT {empty} WHERE false", pieces, columns)
    zone = runtime.settings.time_zone
    text = [s for s in slices if isinstance(s, TextSlice)]
    batches = [b for s in text for b in read_text(s, options, columns, wanted, zone=zone)]
    held = tuple(f for f in columns if f.name in wanted)
    return OpenedFiles(pa.Table.from_batches(batches, schema=arrow_schema(held)), "")


def parquet_pieces(table: Table) -> tuple[ParquetPiece, ...]:
    """The files of a table over Parquet, each whole; none of any other table, or if they hold no row."""
    assert table.files is not None
    if table.files.format != "parquet":
        return ()
    mark(table)
    columns = as_read(table.columns)
    slices = plan_slices(_paths(table.files), "parquet", None, columns, tuple(f.name for f in columns), 1)
    return tuple(p for s in slices if isinstance(s, ParquetSlice) for p in s.pieces)


def _paths(source: FileSource) -> list[Path]:
    folder = Path(source.location)
    # The folder's own name is no pattern.
    return resolve(f"{glob.escape(str(folder))}/*" if folder.is_dir() else source.location, source.format)


def _options(source: FileSource) -> CsvOptions | None:
    if source.format == "csv":
        return CsvOptions.of(dict(source.options))
    if source.options:
        name = source.options[0][0]
        raise SqlError("OPTION_UNKNOWN", f"{source.format} files have no option {name}", hint="leave it out")
    return None


def _own_columns(name: str, path: Path, source: FileSource, at: Position) -> Schema:
    if source.format != "parquet":
        raise SqlError(
            "MISSING_COLUMNS",
            f"{name} has no column list, and {source.format} files do not tell their types",
            position=at,
            hint="write (name TYPE, …) after the name",
        )
    try:
        with open_parquet(path) as file:
            leaves = [file.schema.column(i) for i in range(file.metadata.num_columns)]
            int96 = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
            found = [(c.name, _own_type(c, int96)) for c in file.schema_arrow]
    except (pa.ArrowException, OSError) as error:
        raise DataError("PARQUET_UNREADABLE", f"cannot read {path} as Parquet: {error}", position=at) from error
    return tuple(_own_column(path, column, type_, at) for column, type_ in found)


def _own_type(column: pa.Field, int96: set[str]) -> Type | None:
    if holds_int96(column.name, int96):
        return None if pa.types.is_nested(column.type) else TIMESTAMP
    return from_arrow(column.type)


def _own_column(path: Path, column: str, type_: Type | None, at: Position) -> Field:
    if type_ is None or type_ == VOID or not type_.is_held:
        raise NotYetSupported(
            f"the type of column {column} of {path}", position=at, hint="list the columns to be read, without it"
        )
    return Field(column, type_)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
