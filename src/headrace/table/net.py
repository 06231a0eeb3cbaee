"""Net changes: of rows that go and rows that come, those that are equal cancel.

Rows are equal if nobody could tell them apart: NULL equals NULL and NaN equals NaN, but 0.0 is not -0.0, which the
native engine compares as equal. So what holds floats is compared by :func:`told_apart` too.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.base.native import native_query
from headrace.base.values import python_values
from headrace.catalog import Table
from headrace.engine.plan_sql import quote_native
from headrace.plan.signed import WEIGHT
from headrace.runtime import Runtime
from headrace.types import Field, Schema

FEW = 64
"""Rows that are compared sooner than the native engine has begun."""


def weighted(rows: pa.Table, weight: int) -> pa.Table:
    """Rows of a change, each of which counts so often."""
    return rows.append_column(WEIGHT, pa.array(np.full(rows.num_rows, weight, np.int64)))


def names_of(columns: Schema) -> str:
    """The columns, in native SQL."""
    return ", ".join(quote_native(f.name) for f in columns)


def told_apart(columns: Schema) -> str:
    """More columns, called ``__told0`` …, by which rows differ that are equal by their values; ends with a comma.

    >>> from headrace.types import DOUBLE, INT
    >>> told_apart((Field("a", INT), Field("x", DOUBLE)))
    '("x" = 0 AND signbit("x")) AS __told0, '
    """
    floats = [f for f in columns if f.type.holds_floats]
    return "".join(f"{_told(f)} AS __told{i}, " for i, f in enumerate(floats))


def keys_of(columns: Schema) -> list[str]:
    """The columns and those of :func:`told_apart`, by name."""
    told = [f"__told{i}" for i in range(sum(f.type.holds_floats for f in columns))]
    return [*(quote_native(f.name) for f in columns), *told]


def same(columns: Schema, left: str, right: str) -> str:
    """The condition that two rows with :func:`told_apart` are equal."""
    return " AND ".join(f"{left}.{name} IS NOT DISTINCT FROM {right}.{name}" for name in keys_of(columns))


def _told(column: Field) -> str:
    name = quote_native(column.name)
    if column.type.is_float:
        return f"({name} = 0 AND signbit({name}))"
    return f"CAST({name} AS VARCHAR)"


def cancelled(runtime: Runtime, table: Table, old: pa.Table, new: pa.Table) -> tuple[pa.Array, pa.Array] | None:
    """The numbers of rows of the old and of the new that are equal, one for one; None if there are none."""
    if not (old.num_rows and new.num_rows):
        return None
    if max(old.num_rows, new.num_rows) <= FEW:
        return _of_few(old, new)
    columns = tuple(Field(f"c{i}", f.type) for i, f in enumerate(table.columns))
    names = names_of(columns)
    old, new = (rows.rename_columns([f.name for f in columns]) for rows in (old, new))
    with runtime.worker.cursor() as cursor:
        hashed = f"SELECT hash({names}) AS h FROM"
        found = native_query(
            cursor,
            f"SELECT 1 AS one FROM ({hashed} old_rows) SEMI JOIN ({hashed} new_rows) USING (h) LIMIT 1",
            {"old_rows": old, "new_rows": new},
        )
        if not found.num_rows:
            return None
        told = told_apart(columns)
        keys = f"{told}{names}"

        def numbered(rows: str) -> str:
            return (
                f"SELECT *, row_number() OVER (PARTITION BY {', '.join(keys_of(columns))}) AS __nth "
                f"FROM (SELECT {keys}, __at FROM {rows})"
            )

        pairs = native_query(
            cursor,
            f"SELECT o.__at AS old, n.__at AS new FROM ({numbered('old_rows')}) AS o "
            f"JOIN ({numbered('new_rows')}) AS n ON {same(columns, 'o', 'n')} AND o.__nth = n.__nth",
            {"old_rows": _with_numbers(old), "new_rows": _with_numbers(new)},
        )
    old_at, new_at = (column.combine_chunks() for column in pairs.columns)
    return (old_at, new_at) if pairs.num_rows else None


def _of_few(old: pa.Table, new: pa.Table) -> tuple[pa.Array, pa.Array] | None:
    waiting: dict[str, list[int]] = {}
    for i, row in enumerate(_texts(old)):
        waiting.setdefault(row, []).append(i)
    pairs = [(waiting[row].pop(), i) for i, row in enumerate(_texts(new)) if waiting.get(row)]
    return (pa.array([i for i, _ in pairs]), pa.array([i for _, i in pairs])) if pairs else None


def _texts(rows: pa.Table) -> list[str]:
    """What Python prints of each row: it prints no two values alike that differ."""
    return list(map(repr, zip(*map(python_values, rows.columns), strict=True)))


def _with_numbers(rows: pa.Table) -> pa.Table:
    return rows.append_column("__at", pa.array(np.arange(rows.num_rows)))


def summed(columns: Schema, rows: str) -> str:
    """Native SQL for the rows of a query, which has a column ``__weight``, each once with its weights added up."""
    keys = ", ".join(keys_of(columns))
    return (
        f"(SELECT {keys}, sum(__weight)::BIGINT AS __weight "
        f"FROM (SELECT {told_apart(columns)}{names_of(columns)}, __weight FROM {rows}) "
        f"GROUP BY {keys} HAVING sum(__weight) <> 0)"
    )


def times(columns: Schema, rows: str, sign: int = 1) -> str:
    """Native SQL for the rows of a query as often as they weigh, if that has this sign."""
    names = names_of(columns)
    return f"(SELECT {names} FROM (SELECT {names}, unnest(range({sign} * __weight)) AS __nth FROM {rows}))"
