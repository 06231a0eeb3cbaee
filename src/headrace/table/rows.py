"""Tables: rows in immutable Parquet segments, and a short tail in the store for small inserts.

Any process may read a segment, so Spark tasks and static build sides can; the
tail spares the directory one small file an insert, and is written out as a
segment once it is long enough.

A row is known by its *place*: its segment's name and its number there, or no name and a number that no other row of the
tail ever has. A row of a segment is deleted by noting its place beside the segment, one of the tail by taking it out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.base.native import conform, native_batches
from headrace.base.parquet_files import (
    ROW_GROUP,
    ROW_NUMBER,
    footer_of,
    native_scan,
    parquet_chunks,
    parquet_rows,
    parquet_writer,
    write_parquet,
)
from headrace.base.values import python_values
from headrace.catalog import Relation, Table
from headrace.catalog.table import FILE, ROW
from headrace.engine.native_sql import literal as native_literal
from headrace.engine.plan_sql import quote_native
from headrace.engine.work import chunked
from headrace.errors import DataError
from headrace.plan.exprs import Literal
from headrace.runtime import Runtime
from headrace.store import Snapshot, Transaction, writing
from headrace.store.format import literal
from headrace.table import constraints
from headrace.types import Field, Schema, arrow_schema

TAIL_ROWS = 65_536
"""A tail this long becomes a segment."""
_MOST_AT_ONCE = 1 << 32
"""More rows than any commit writes."""


def tail_schema(table: Relation) -> pa.Schema:
    """What the store holds of a table's tail."""
    return stored_schema(table).append(pa.field(ROW, pa.int64()))


def stored_schema(table: Relation) -> pa.Schema:
    """The table's columns as the store holds them: by the names they have there."""
    names = _stored_names(table)
    return pa.schema([pa.field(name, c.type.arrow) for name, c in zip(names, table.columns, strict=True)])


def reshape(tx: Transaction, old: Table, new: Table, relation: int | None = None) -> None:
    """Have the tail in the columns that the table has now, in the commit that gives it them; or another stored relation
    of its rows."""
    relation = old.number if relation is None else relation
    rows = tx.scan(relation)
    ours = [field for field in rows.schema if field.name not in {old.lies(c).name for c in old.columns}]
    names, there = _stored_names(new), {old.lies(c).name for c in old.columns}
    columns = [
        rows.column(name) if name in there else constraints.before(new, c, rows.num_rows)
        for name, c in zip(names, new.columns, strict=True)
    ]
    schema, found = stored_schema(new), pa.table(columns, schema=stored_schema(new))
    for field in ours:
        schema, found = schema.append(field), found.append_column(field, rows.column(field.name))
    tx.reshape(relation, schema, found)


def as_stored(table: Table, rows: pa.Table) -> pa.Table:
    """Rows in the table's columns, by the names these have in the store."""
    return rows.rename_columns(_stored_names(table)) if table.held else rows


def _stored_names(table: Relation) -> list[str]:
    return [table.lies(c).name if isinstance(table, Table) else c.name for c in table.columns]


def in_segment(read: Snapshot | Transaction, table: Table, file: Path) -> dict[str, str | Literal]:
    """How each column of a table lies in one of its segments: the column's name there, or its one value if it came
    later."""
    there: Collection[str] = read.columns(file) if any(h.is_late for h in table.held.values()) else ()
    found: dict[str, str | Literal] = {}
    for column in table.columns:
        held = table.lies(column)
        is_there = not held.is_late or held.name in there
        found[column.name] = held.name if is_there else Literal(column.type, held.before)
    return found


def in_store(table: Table) -> dict[str, str | Literal]:
    """How each column lies in the tail, and in files that are written now."""
    return {c.name: table.lies(c).name for c in table.columns}


def selected(lie: Mapping[str, str | Literal], fields: Sequence[str]) -> str:
    """Columns that lie so in a file or in the tail, under their names: native SQL."""
    return ", ".join(_item(name, lie[name]) for name in fields)


def source(
    read: Snapshot | Transaction,
    table: Table,
    fields: Sequence[str] | None = None,
    *,
    placed: bool = False,
    of: Collection[str] | None = None,
    tail: bool = True,
    at: Mapping[str, str] | None = None,
) -> str:
    """Native SQL for the table's rows as a reader sees them: a parenthesised query. ``placed``, with their places.

    Of all its segments, or of these, by the names of their files; and of the tail, if not told otherwise. ``at`` gives
    some rows instead: native relations that hold those of a segment, by its name, or of the tail.
    """
    wanted = list(fields or [c.name for c in table.columns])

    def part(place: str, of: str, lie: Mapping[str, str | Literal]) -> str:
        names = selected(lie, wanted) or "1 AS one"
        return f"SELECT {names}{place if placed else ''} FROM {of}"

    if at is not None:
        empty = {} if at else {"": f"(SELECT * FROM {read.table(table.number)} LIMIT 0)"}
        by_name = {path.name: path for path in read.segments(table.number)} if any(at) else {}
        found = [
            part(f", {literal(name)} AS {FILE}, {ROW_NUMBER} AS {ROW}", of, in_segment(read, table, by_name[name]))
            if name
            else part(f", '' AS {FILE}, {ROW}", of, in_store(table))
            for name, of in {**at, **empty}.items()
        ]
        return f"({' UNION ALL '.join(found)})"

    def of_file(path: Path) -> str:
        file = literal(path.name)
        gone = f"(SELECT row FROM book.deleted WHERE relation = '{table.number}' AND file = {file})"
        left = f" AS s ANTI JOIN {gone} AS d ON d.row = s.{ROW_NUMBER}" if path.name in deleted else ""
        place = f", {file} AS {FILE}, {ROW_NUMBER} AS {ROW}"
        return part(place, native_scan([path], numbered=True) + left, in_segment(read, table, path))

    parts = [part(f", '' AS {FILE}, {ROW}", read.table(table.number), in_store(table))] if tail else []
    files = [path for path in read.segments(table.number) if of is None or path.name in of]
    deleted = read.deleted(table.number) if files else {}
    alone = [path for path in files if placed or path.name in deleted]
    together: dict[tuple[str | Literal, ...], list[Path]] = {}
    for path in files if len(alone) < len(files) else ():
        if path not in alone:
            together.setdefault(tuple(in_segment(read, table, path).values()), []).append(path)
    for paths in together.values():
        parts.append(part("", native_scan(paths), in_segment(read, table, paths[0])))
    return f"({' UNION ALL '.join([*parts, *map(of_file, alone)])})"


def chunks(read: Snapshot, table: Table, of: Collection[str] | None = None, *, tail: bool = True) -> Iterator[pa.Table]:
    """The rows of :func:`source`, some at a time."""
    wanted = arrow_schema(table.columns)
    text = f"SELECT * FROM {source(read, table, of=of, tail=tail)}"
    yield from (conform(chunk, wanted) for chunk in chunked(native_batches(read.cursor, text, 65_536)))


def _item(name: str, lies: str | Literal) -> str:
    """A column of a select list, under the name it goes by."""
    if lies == name:
        return quote_native(name)
    return f"{native_literal(lies) if isinstance(lies, Literal) else quote_native(lies)} AS {quote_native(name)}"


def segment_chunks(table: Table, file: Path) -> Iterator[pa.Table]:
    """The rows of one of the table's segments, some at a time."""
    there = set(footer_of(file).schema.to_arrow_schema().names)
    yield from (of_segment(table, chunk, there) for chunk in parquet_chunks(file))


def segment_columns(table: Table, file: Path, fields: Sequence[Field]) -> pa.Table:
    """Some columns of a segment that was written just now, by the names they have in the store."""
    return parquet_rows(file, [table.lies(f).name for f in fields])


def of_segment(table: Table, rows: pa.Table, there: Collection[str]) -> pa.Table:
    """Rows of a segment that has these columns, as the table's."""
    columns = []
    for column in table.columns:
        held = table.lies(column)
        columns.append(
            rows.column(held.name) if held.name in there else constraints.before(table, column, rows.num_rows)
        )
    return pa.table(columns, schema=arrow_schema(table.columns))


def of_fields(read: Snapshot | Transaction, table: Table, file: Path, rows: pa.Table, fields: Schema) -> pa.Table:
    """Rows of a segment, by the names that columns have there, as some of the table's columns."""
    lie = in_segment(read, table, file)
    columns = [
        rows.column(there) if isinstance(there := lie[f.name], str) else constraints.before(table, f, rows.num_rows)
        for f in fields
    ]
    return pa.table(columns, [f.name for f in fields]).cast(arrow_schema(fields))


@dataclass(frozen=True)
class Flushed:
    """A tail's rows that are a segment now, in its order, as they are stored, with the numbers they had."""

    file: Path
    rows: pa.Table


@dataclass(frozen=True)
class NewFile:
    """A finished segment that no epoch names yet."""

    path: Path
    rows: int
    old: bool = False
    """Whether the table has its rows already, in other files."""
    keys: pa.Table | None = None
    """Their primary keys, if they are at hand."""


def append(runtime: Runtime, tx: Transaction, table: Table, rows: pa.Table) -> tuple[int, Flushed | None]:
    """Add rows to the tail, in a commit; returns the first of their numbers there, and what was flushed then."""
    rows = as_stored(table, rows)
    start = tx.epoch * _MOST_AT_ONCE + tx.written
    if ROW in tx.schema(table.number).names:
        rows = rows.append_column(ROW, pa.array(np.arange(start, start + rows.num_rows)))
    tx.append(table.number, rows)
    tx.count(table.number, rows.num_rows)
    return start, flush(runtime, tx, table) if tx.rows(table.number) >= TAIL_ROWS else None


@contextmanager
def segment_writer(file: Path, table: Table) -> Iterator[Callable[[pa.Table], None]]:
    """Write a segment of a table piece by piece; a write that fails is the store's error, what else fails is not."""
    schema = stored_schema(table)
    with writing(file):
        writer = parquet_writer(file, schema)

    def write(rows: pa.Table) -> None:
        with writing(file):
            writer.write_table(as_stored(table, rows).cast(schema), ROW_GROUP)

    try:
        yield write
    except BaseException:
        with suppress(OSError):
            writer.close()
        raise
    with writing(file):
        writer.close()


def flush(runtime: Runtime, tx: Transaction, table: Table) -> Flushed:
    """Write the tail out as a segment, in a commit."""
    schema = tx.schema(table.number)
    names = ", ".join(map(quote_native, schema.names))
    found = tx.query(f"SELECT {names} FROM {tx.table(table.number)}")
    wanted = stored_schema(table)
    file = runtime.store.new_segment(table.number)
    with writing(file):
        write_parquet(found.select(wanted.names).cast(wanted), file)
    tx.add_segment(table.number, file, found.num_rows, altered=False)
    tx.replace(table.number, schema.empty_table())
    return Flushed(file, found)


def check_key(tx: Transaction, table: Table, batches: Sequence[pa.Table]) -> None:
    """An error if the table would have two rows of one key with these, which it does not have yet."""
    if not table.primary_key or not any(b.num_rows for b in batches):
        return
    names = [quote_native(k) for k in table.primary_key]
    new = pa.concat_tables([b.select(list(table.primary_key)) for b in batches])
    keys = ", ".join(names)
    on = " AND ".join(f"e.{n} = n.{n}" for n in names)
    found = tx.query(
        f"SELECT * FROM (SELECT {keys} FROM new_rows GROUP BY ALL HAVING count(*) > 1 UNION ALL "
        f"SELECT {', '.join(f'n.{n}' for n in names)} FROM new_rows AS n SEMI JOIN {source(tx, table)} AS e ON {on}) "
        "LIMIT 1",
        new_rows=new,
    )
    if found.num_rows:
        values = ", ".join(f"{k} = {python_values(found.column(k))[0]}" for k in found.column_names)
        raise DataError(
            "PRIMARY_KEY_VIOLATION",
            f"{table.name} would have more than one row with {values}",
            hint="the primary key must be unique; nothing was changed",
        )
