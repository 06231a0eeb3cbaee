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
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.base.interrupts import committed
from headrace.base.parquet_files import (
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
from headrace.errors import DataError
from headrace.plan.exprs import Literal
from headrace.runtime import Runtime
from headrace.store import Snapshot, Transaction, writing
from headrace.store.format import literal
from headrace.table import constraints
from headrace.types import arrow_schema

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


def reshape(tx: Transaction, old: Table, new: Table) -> None:
    """Have the tail in the columns that the table has now, in the commit that gives it them."""
    rows = tx.scan(old.number)
    numbers = rows.column(ROW) if ROW in rows.column_names else None
    names, there = _stored_names(new), {old.lies(c).name for c in old.columns}
    columns = [
        rows.column(name) if name in there else constraints.before(new, c, rows.num_rows)
        for name, c in zip(names, new.columns, strict=True)
    ]
    schema = stored_schema(new)
    found = pa.table(columns, schema=schema)
    if numbers is not None:
        schema, found = schema.append(pa.field(ROW, pa.int64())), found.append_column(ROW, numbers)
    tx.reshape(old.number, schema, found)


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


def source(
    read: Snapshot | Transaction, table: Table, fields: Sequence[str] | None = None, *, placed: bool = False
) -> str:
    """Native SQL for the table's rows as a reader sees them: a parenthesised query. ``placed``, with their places."""
    wanted = list(fields or [c.name for c in table.columns])

    def part(place: str, of: str, lie: Mapping[str, str | Literal]) -> str:
        names = select_list(wanted, lie) or "1 AS one"
        return f"SELECT {names}{place if placed else ''} FROM {of}"

    def of_file(path: Path) -> str:
        file = literal(path.name)
        gone = f"(SELECT row FROM book.deleted WHERE relation = '{table.number}' AND file = {file})"
        left = f" AS s ANTI JOIN {gone} AS d ON d.row = s.{ROW_NUMBER}" if path.name in deleted else ""
        place = f", {file} AS {FILE}, {ROW_NUMBER} AS {ROW}"
        return part(place, native_scan([path], numbered=True) + left, in_segment(read, table, path))

    parts = [part(f", '' AS {FILE}, {ROW}", read.table(table.number), in_tail(table))]
    files = read.segments(table.number)
    deleted = read.deleted(table.number) if files else {}
    alone = [path for path in files if placed or path.name in deleted]
    together: dict[tuple[str | Literal, ...], list[Path]] = {}
    for path in files if len(alone) < len(files) else ():
        if path not in alone:
            together.setdefault(tuple(in_segment(read, table, path).values()), []).append(path)
    for paths in together.values():
        parts.append(part("", native_scan(paths), in_segment(read, table, paths[0])))
    return f"({' UNION ALL '.join([*parts, *map(of_file, alone)])})"


def in_tail(table: Table) -> dict[str, str | Literal]:
    """How each column of a table lies in its tail."""
    return {c.name: table.lies(c).name for c in table.columns}


def select_list(names: Sequence[str], lie: Mapping[str, str | Literal]) -> str:
    """Columns as a native select list, by how they lie where they are read."""
    return ", ".join(_item(name, lie[name]) for name in names)


def _item(name: str, lies: str | Literal) -> str:
    """A column of a select list, under the name it goes by."""
    if lies == name:
        return quote_native(name)
    return f"{native_literal(lies) if isinstance(lies, Literal) else quote_native(lies)} AS {quote_native(name)}"


def insert(runtime: Runtime, table: Table, rows: pa.Table) -> None:
    """Append rows as one epoch; a broken key, NOT NULL or CHECK changes nothing."""
    constraints.check(runtime, table, rows)
    with runtime.tables_lock:
        table, rows = _now(runtime, table, rows)
        if rows.num_rows >= TAIL_ROWS:
            file = runtime.store.new_segment(table.number)
            try:
                with writing(file):
                    write_parquet(as_stored(table, rows), file)
                add_segments(runtime, table, [(file, rows.num_rows)])
            except BaseException:
                runtime.store.let_go(file)
                raise
            return

        handing = runtime.hand_on(table, lambda: [(rows, 1)])

        def work(tx: Transaction) -> None:
            check_key(tx, table, [rows])
            append(runtime, tx, table, rows)
            handing.add(tx)

        runtime.store.commit(work, label=f"INSERT INTO {table.name}")
        committed()
        with runtime.tidying.after(f"merging states over {table.name}"):
            handing.after()


def _now(runtime: Runtime, table: Table, rows: pa.Table) -> tuple[Table, pa.Table]:
    """The table as it is now, and checked rows as they are if they came before what was altered meanwhile."""
    runtime.catalog.require_there(table)
    now = runtime.catalog.table_at(table.number)
    assert now is not None
    if now is not table:
        rows = constraints.as_of(now, table, rows)
        constraints.check(runtime, now, rows)
    return now, rows


def of_segment(table: Table, rows: pa.Table, there: Collection[str]) -> pa.Table:
    """Rows of a segment that has these columns, as the table's."""
    columns = []
    for column in table.columns:
        held = table.lies(column)
        columns.append(
            rows.column(held.name) if held.name in there else constraints.before(table, column, rows.num_rows)
        )
    return pa.table(columns, schema=arrow_schema(table.columns))


def append(runtime: Runtime, tx: Transaction, table: Table, rows: pa.Table) -> None:
    """Add rows to the tail, in a commit."""
    rows = as_stored(table, rows)
    if ROW in tx.schema(table.number).names:
        start = tx.epoch * _MOST_AT_ONCE + tx.written
        rows = rows.append_column(ROW, pa.array(np.arange(start, start + rows.num_rows)))
    tx.append(table.number, rows)
    tx.count(table.number, rows.num_rows)
    if tx.rows(table.number) >= TAIL_ROWS:
        _flush(runtime, tx, table)


def add_segments(runtime: Runtime, table: Table, files: Sequence[tuple[Path, int]]) -> None:
    """Make written segments part of the table, as one epoch. Their rows were checked."""

    def work(tx: Transaction) -> None:
        if table.primary_key:
            key = [table.stored_name(k) for k in table.primary_key]
            rows_ = [parquet_rows(f, key).rename_columns(list(table.primary_key)) for f, _ in files]
            check_key(tx, table, rows_)
        for file, rows in files:
            tx.add_segment(table.number, file, rows)
            tx.count(table.number, rows)
        handing.add(tx)

    def parts() -> Iterator[tuple[pa.Table, int]]:
        for file, _ in files:
            there = set(footer_of(file).schema.to_arrow_schema().names)
            for chunk in parquet_chunks(file):
                yield of_segment(table, chunk, there), 1

    with runtime.tables_lock:
        runtime.catalog.require_there(table)
        before, table = table, runtime.catalog.table_at(table.number) or table
        if (
            table is not before
            and (found := constraints.violation(runtime, table, (r for r, _ in parts()))) is not None
        ):
            raise constraints.broken(table, *found)
        handing = runtime.hand_on(table, parts)
        runtime.store.commit(work, label=f"COPY {table.name}")
        committed()
        with runtime.tidying.after(f"merging states over {table.name}"):
            handing.after()


@contextmanager
def segment_writer(file: Path, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    """Write a segment piece by piece; a write that fails is the store's error, whatever else fails is not."""
    with writing(file):
        writer = parquet_writer(file, schema)

    def write(rows: pa.Table) -> None:
        with writing(file):
            writer.write_table(rows)

    try:
        yield write
    except BaseException:
        with suppress(OSError):
            writer.close()
        raise
    with writing(file):
        writer.close()


def flush(runtime: Runtime, table: Table) -> None:
    """Write the tail out, so that other processes can read the whole table from files."""
    with runtime.tables_lock:

        def work(tx: Transaction) -> None:
            if tx.query(f"SELECT count(*) AS n FROM {tx.table(table.number)}").column("n")[0].as_py() == 0:
                tx.unchanged()
            else:
                _flush(runtime, tx, table)

        runtime.store.commit(work, label=f"flush {table.name}")


def _flush(runtime: Runtime, tx: Transaction, table: Table) -> None:
    schema = stored_schema(table)
    names = ", ".join(map(quote_native, schema.names))
    rows = tx.query(f"SELECT {names} FROM {tx.table(table.number)}").cast(schema)
    file = runtime.store.new_segment(table.number)
    with writing(file):
        write_parquet(rows, file)
    tx.add_segment(table.number, file, rows.num_rows, altered=False)
    tx.replace(table.number, tx.schema(table.number).empty_table())


def check_key(tx: Transaction, table: Table, batches: Sequence[pa.Table]) -> None:
    """An error if the table would have two rows of one key with these, which it does not have yet."""
    if not table.primary_key:
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
            hint="the primary key must be unique; nothing was inserted",
        )
