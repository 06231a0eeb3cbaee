"""Tables: rows in immutable Parquet segments, and a short tail in the store for small inserts.

Any process may read a segment, so Spark tasks and static build sides can; the
tail spares the directory one small file an insert, and is written out as a
segment once it is long enough.

A row is known by its *place*: its segment's name and its number there, or no name and a number that no other row of the
tail ever has. A row of a segment is deleted by noting its place beside the segment, one of the tail by taking it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.base.parquet_files import (
    ROW_NUMBER,
    native_scan,
    parquet_writer,
    write_parquet,
)
from headrace.base.values import python_values
from headrace.catalog import Relation, Table
from headrace.catalog.table import FILE, ROW
from headrace.engine.plan_sql import quote_native
from headrace.errors import DataError
from headrace.input.nested import first_hole, is_strict
from headrace.runtime import Runtime
from headrace.store import Snapshot, Transaction, writing
from headrace.store.format import literal
from headrace.types import arrow_schema

TAIL_ROWS = 65_536
"""A tail this long becomes a segment."""
_MOST_AT_ONCE = 1 << 32
"""More rows than any commit writes."""


def tail_schema(table: Relation) -> pa.Schema:
    """What the store holds of a table's tail."""
    return arrow_schema(table.columns).append(pa.field(ROW, pa.int64()))


def source(
    read: Snapshot | Transaction, table: Table, fields: Sequence[str] | None = None, *, placed: bool = False
) -> str:
    """Native SQL for the table's rows as a reader sees them: a parenthesised query. ``placed``, with their places."""
    names = ", ".join(quote_native(f) for f in (fields or [c.name for c in table.columns])) or "1 AS one"

    def part(place: str, of: str) -> str:
        return f"SELECT {names}{place if placed else ''} FROM {of}"

    def of_file(path: Path) -> str:
        file = literal(path.name)
        gone = f"(SELECT row FROM book.deleted WHERE relation = '{table.number}' AND file = {file})"
        left = f" AS s ANTI JOIN {gone} AS d ON d.row = s.{ROW_NUMBER}" if path.name in deleted else ""
        return part(f", {file} AS {FILE}, {ROW_NUMBER} AS {ROW}", native_scan([path], numbered=True) + left)

    parts = [part(f", '' AS {FILE}, {ROW}", read.table(table.number))]
    files = read.segments(table.number)
    deleted = read.deleted(table.number) if files else {}
    alone = [path for path in files if placed or path.name in deleted]
    if together := [path for path in files if path not in alone]:
        parts.append(part("", native_scan(together)))
    return f"({' UNION ALL '.join([*parts, *map(of_file, alone)])})"


def append(runtime: Runtime, tx: Transaction, table: Table, rows: pa.Table) -> None:
    """Add rows to the tail, in a commit."""
    if ROW in tx.schema(table.number).names:
        start = tx.epoch * _MOST_AT_ONCE + tx.written
        rows = rows.append_column(ROW, pa.array(np.arange(start, start + rows.num_rows)))
    tx.append(table.number, rows)
    tx.count(table.number, rows.num_rows)
    if tx.rows(table.number) >= TAIL_ROWS:
        _flush(runtime, tx, table)


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
    names = ", ".join(quote_native(c.name) for c in table.columns)
    rows = tx.query(f"SELECT {names} FROM {tx.table(table.number)}").cast(arrow_schema(table.columns))
    file = runtime.store.new_segment(table.number)
    with writing(file):
        write_parquet(rows, file)
    tx.add_segment(table.number, file, rows.num_rows, altered=False)
    tx.replace(table.number, tx.schema(table.number).empty_table())


def check_not_null(table: Table, rows: pa.Table) -> None:
    """No NULL in a column declared NOT NULL (a primary key's columns are)."""
    for column in table.columns:
        if not column.nullable and rows.column(column.name).null_count:
            nulls = rows.column(column.name).is_null().to_numpy()
            raise DataError(
                "NULL_IN_NOT_NULL",
                f"row {int(nulls.argmax()) + 1}: {table.name}.{column.name} is declared NOT NULL, but is NULL",
                hint="give a value",
            )
        for chunk in rows.column(column.name).chunks if is_strict(column.type) else ():
            if (hole := first_hole(chunk, column.type, f"{table.name}.{column.name}")) is not None:
                raise DataError(
                    "NULL_IN_NOT_NULL", f"{hole[1]} is declared NOT NULL, but is NULL in a row", hint="give a value"
                )


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
            hint="the primary key must be unique; nothing was inserted",
        )
