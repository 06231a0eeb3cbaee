"""Rows as Spark reads them: where they lie, not through this process.

A table is a DataFrame over its own segments, which Spark's vectorized reader reads, and only the columns that are
needed. Rows that are deleted are left out by an anti-join, only of the files that have any. What lies in the database
file, where Spark cannot look, is copied beside it once for each state of the table: its tail, and the places of
deleted rows (``base/copies.py``). Other rows, of states and answers, are copied batch by batch.

While a snapshot is open no segment of its epoch goes away. A DataFrame that a program was given outlives that, and
nobody hears when it is needed no more. So it reads links to the segments, as old as itself: they are the same files,
which stay on the disk as long as they have any name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.base.interrupts import check
from headrace.base.native import conform, native_batches
from headrace.base.parquet_files import parquet_writer, spark_frame, spark_reader, write_parquet
from headrace.catalog import Table
from headrace.catalog.table import FILE, PLACE, ROW
from headrace.engine.plan_sql import quote_native
from headrace.engine.spark_sql import literal
from headrace.engine.work import chunked
from headrace.plan.exprs import Literal
from headrace.runtime import Runtime
from headrace.store import Snapshot
from headrace.store.reading import Reading
from headrace.table import rows as tables
from headrace.types import Field, arrow_schema, ddl, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLACES = pa.schema([("file", pa.string()), ("row", pa.int64())])


@dataclass(frozen=True)
class _Beside:
    """What was copied of a table: its tail, if it has one, and the places of its deleted rows, if it has any."""

    tail: Path | None
    places: Path | None
    deleted: frozenset[str]
    """The names of the files that have some."""


@contextmanager
def table_frame(runtime: Runtime, snapshot: Snapshot, table: Table, *, placed: bool = False) -> Iterator[DataFrame]:
    """A table's rows as of the snapshot, for as long as that is open; ``placed``, with their places."""
    files = snapshot.segments(table.number)
    owner, version = ("table", table.number), _version(snapshot, table, files)
    with runtime.copies.lent(owner, version, partial(_copied, snapshot, table)) as beside:
        yield _frame(runtime.spark, table, files, beside, placed, _lies(snapshot, table, files))


def lasting_frame(runtime: Runtime, snapshot: Snapshot, table: Table) -> DataFrame:
    """A table's rows as of the snapshot, for as long as the database is open, whatever becomes of the table."""
    files = snapshot.segments(table.number)
    version = _version(snapshot, table, files)
    beside = runtime.copies.keep(("table", table.number), version, partial(_copied, snapshot, table))
    links = runtime.copies.keep(("links", table.number), version, partial(_linked, files))
    return _frame(runtime.spark, table, links, beside, False, _lies(snapshot, table, files))


Lies = Mapping[str, str | Literal]
"""How each column lies in a file: its name there, or its one value if it came later (``rows.py:in_segment``)."""


def _lies(snapshot: Snapshot, table: Table, files: Sequence[Path]) -> Mapping[str, Lies]:
    return {file.name: tables.in_segment(snapshot, table, file) for file in files}


def copy_table(snapshot: Snapshot, table: Table, file: Path) -> None:
    """Write a table's rows as one file, some at a time."""
    names = ", ".join(quote_native(c.name) for c in table.columns)
    text = f"SELECT {names} FROM {tables.source(snapshot, table)}"
    copy_rows(snapshot, text, arrow_schema(table.columns), file, {})


def _version(snapshot: Snapshot, table: Table, files: Sequence[Path]) -> tuple[object, ...]:
    """What of a table a frame shows: another if rows come or go, or others stand for them."""
    names = tuple(file.name for file in files)
    return table.columns, names, snapshot.last_change(table.number), snapshot.rewritten(table.number)


def _copied(snapshot: Snapshot, table: Table, folder: Path) -> _Beside:
    # Rows of a tail from before they had places have no numbers, until somebody changes the table.
    columns = (*table.columns, *(PLACE[1:] if ROW in snapshot.schema(table.number).names else ()))
    tail, places = folder / "tail.parquet", folder / "places.parquet"
    stored = [*tables.stored_schema(table).names, *(c.name for c in columns[len(table.columns) :])]
    names = ", ".join(map(quote_native, stored))
    schema = pa.schema([pa.field(name, c.type.arrow) for name, c in zip(stored, columns, strict=True)])
    rows = copy_rows(snapshot, f"SELECT {names} FROM {snapshot.table(table.number)}", schema, tail, {})
    deleted = frozenset(snapshot.deleted(table.number))
    if deleted:
        where = f"relation = '{table.number}'"
        copy_rows(snapshot, f"SELECT file, row FROM book.deleted WHERE {where} ORDER BY file, row", _PLACES, places, {})
    return _Beside(tail if rows else None, places if deleted else None, deleted)


def _linked(files: Sequence[Path], folder: Path) -> list[Path]:
    """Other names of the files, in the folder."""
    links = [folder / file.name for file in files]
    for file, link in zip(files, links, strict=True):
        try:
            os.link(file, link)
        except OSError:  # not every file system has links, nor may every user make one
            check()
            shutil.copyfile(file, link)
    return links


def _frame(
    spark: SparkSession,
    table: Table,
    files: Sequence[Path],
    beside: _Beside,
    placed: bool,
    lies: Mapping[str, Lies],
) -> DataFrame:
    columns = [quote(c.name) for c in table.columns]
    in_tail = {c.name: table.lies(c).name for c in table.columns}
    reader = spark_reader(spark)

    def read(paths: Sequence[Path], how: Lies, more: Sequence[Field] = ()) -> DataFrame:
        fields = [replace(c, name=name) for c in table.columns if isinstance(name := how[c.name], str)]
        return reader.schema(ddl((*fields, *more))).parquet(*map(str, paths))

    def named(found: DataFrame, how: Lies, *more: str) -> DataFrame:
        if not more and all(lie == name for name, lie in how.items()):
            return found
        items = (f"{lie if isinstance(lie, str) else literal(lie)} AS {quote(name)}" for name, lie in _quoted(how))
        return found.selectExpr(*items, *more)

    def alike(paths: Sequence[Path]) -> Iterator[tuple[list[Path], Lies]]:
        """The files in which columns lie in the same way."""
        together: dict[tuple[str | Literal, ...], list[Path]] = {}
        for path in paths:
            together.setdefault(tuple((in_tail if path == beside.tail else lies[path.name]).values()), []).append(path)
        for key, found in together.items():
            yield found, dict(zip(in_tail, key, strict=True))

    def at_places(paths: Sequence[Path], names: tuple[str, str]) -> Iterator[DataFrame]:
        for some, how in alike(paths):
            found = read(some, how)
            place = found.metadataColumn("_metadata")
            file, row = (f"{mark}{name}" for mark, name in zip(_marks(how), (FILE, ROW), strict=True))
            with_places = found.select("*", place["file_name"].alias(file), place["row_index"].alias(row))
            yield named(with_places, how, f"{quote(file)} AS {quote(names[0])}", f"{quote(row)} AS {quote(names[1])}")

    whole = [file for file in files if file.name not in beside.deleted]
    holed = [file for file in files if file.name in beside.deleted]
    parts: list[DataFrame] = []
    if placed:
        parts += at_places(whole, (FILE, ROW))
        if beside.tail is not None:
            parts.append(named(read([beside.tail], in_tail, [PLACE[1]]), in_tail, f"'' AS {FILE}", ROW))
    else:
        parts += (named(read(some, how), how) for some, how in alike([*whole, *filter(None, [beside.tail])]))
    if holed:
        assert beside.places is not None
        names = (FILE, ROW) if placed else _fresh(table)
        gone = spark_reader(spark).schema("file string, row bigint").parquet(str(beside.places)).toDF(*names)
        for found in at_places(holed, names):
            left = found.join(gone, list(names), "left_anti")
            parts.append(left.select(*columns, *(names if placed else ())))
    if not parts:
        return spark.createDataFrame([], ddl((*table.columns, *(PLACE if placed else ()))))
    return reduce(lambda one, other: one.union(other), parts)


def _quoted(how: Lies) -> Iterator[tuple[str, str | Literal]]:
    return ((name, quote(lie) if isinstance(lie, str) else lie) for name, lie in how.items())


def _marks(how: Lies) -> tuple[str, str]:
    """What stands before the names of places, so that no column of a file has them."""
    taken = {lie.lower() for lie in how.values() if isinstance(lie, str)}
    mark = "_"
    while taken & {f"{mark}{FILE}", f"{mark}{ROW}"}:
        mark += "_"
    return mark, mark


def _fresh(table: Table) -> tuple[str, str]:
    """Names for a row's place that no column has."""
    mark, _ = _marks({c.name: c.name for c in table.columns})
    return f"{mark}{FILE}", f"{mark}{ROW}"


# Rows that are no table's


@contextmanager
def sql_frame(
    runtime: Runtime,
    reading: Reading,
    text: str,
    named: Mapping[str, pa.Table],
    schema: pa.Schema | None = None,
    version: tuple[Hashable, Hashable] | None = None,
) -> Iterator[DataFrame]:
    """The rows of native SQL as a DataFrame while the block runs; ``version`` says whose rows, and which, if it is
    known."""
    wanted = schema or reading.query(f"SELECT * FROM ({text}) LIMIT 0", **named).schema

    def make(folder: Path) -> Path:
        copy_rows(reading, text, wanted, folder / "rows.parquet", named)
        return folder / "rows.parquet"

    with runtime.copies.lent(*(version or (None, object())), make) as file:
        yield _published(runtime.spark, file, wanted)


@contextmanager
def rows_frame(runtime: Runtime, rows: pa.Table) -> Iterator[DataFrame]:
    """Rows that nobody alters, as a DataFrame while the block runs."""
    owner = runtime.copies.owner_of(rows)
    with runtime.copies.lent(owner, owner, partial(_written, rows)) as file:
        yield _published(runtime.spark, file, rows.schema)


def lasting_rows_frame(runtime: Runtime, rows: pa.Table) -> DataFrame:
    """The same for as long as the database is open; they may have several columns of one name."""
    owner = runtime.copies.owner_of(rows)
    named = rows.rename_columns([f"c{i}" for i in range(rows.num_columns)])
    file = runtime.copies.keep(("answer", owner), owner, partial(_written, named))
    return _published(runtime.spark, file, named.schema).toDF(*rows.column_names)


def copy_rows(reading: Reading, text: str, schema: pa.Schema, file: Path, named: Mapping[str, pa.Table]) -> int:
    """Write the rows of native SQL as a file, some at a time; how many they are."""
    rows = 0
    with parquet_writer(file, schema) as writer:
        for chunk in chunked(native_batches(reading.cursor, text, 65_536, named)):
            check()
            writer.write_table(conform(chunk, schema))
            rows += chunk.num_rows
    return rows


def _written(rows: pa.Table, folder: Path) -> Path:
    write_parquet(rows, folder / "rows.parquet")
    return folder / "rows.parquet"


def _published(spark: SparkSession, file: Path, schema: pa.Schema) -> DataFrame:
    """A file of rows as a DataFrame. Parquet keeps NULLs alone as integers."""
    frame = spark_frame(spark, file)
    if not any(pa.types.is_null(f.type) for f in schema):
        return frame
    names = [(quote(f.name), pa.types.is_null(f.type)) for f in schema]
    return frame.selectExpr(*(f"CAST(NULL AS VOID) AS {name}" if void else name for name, void in names))
