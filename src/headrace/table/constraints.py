"""What all rows of a table satisfy, wherever they come from: NOT NULL and CHECK.

The primary key is looked at in the commit itself (``table/rows.py:check_key``): it is about other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.base.lacking import lacking_rows
from headrace.base.values import python_values
from headrace.catalog import Check, Relation, Table
from headrace.errors import DataError, HeadraceError, SqlError
from headrace.input.nested import first_hole, is_strict
from headrace.input.rows import to_arrow
from headrace.runtime import Runtime
from headrace.sql.columns import Written, WrittenCheck
from headrace.sql.rules import bound_check, breaking, default_plan
from headrace.types import Default, Field, arrow_schema

if TYPE_CHECKING:
    from headrace.table.query import Prepared


def check(runtime: Runtime, table: Table, rows: pa.Table) -> None:
    """An error unless the table can hold these rows, in its columns, beside any others."""
    check_not_null(table, rows)
    if table.checks and rows.num_rows and (found := violation(runtime, table, [rows])) is not None:
        raise broken(table, *found)


def default_of(runtime: Runtime, written: Written, column: Field) -> Default:
    """What a column's DEFAULT is, as a definition has it."""
    from headrace.table.query import run_now  # which reads tables' rows, and is above what writes them

    plan = default_plan(written, column, runtime.analyzer())
    if plan is None:
        return Default(written.text, zone=runtime.settings.time_zone)
    try:
        rows = to_arrow(run_now(runtime, plan), (replace(column, nullable=True),), zone=runtime.settings.time_zone)
        assert isinstance(rows, pa.Table)
        return Default(written.text, rows.column(0)[0].as_py())
    except (HeadraceError, OverflowError, ValueError) as error:
        said = error.message if isinstance(error, HeadraceError) else "it is beyond what a constant can be"
        raise SqlError(
            "INVALID_DEFAULT_VALUE",
            f"the DEFAULT of {column.name}, {written.text}: {said}",
            position=written.position,
            hint=f"give a value of type {column.type.declared}",
        ) from None


def check_of(runtime: Runtime, written: WrittenCheck, table: Table) -> Check:
    """A condition on the rows of a table, as its definition has it."""
    taken = {check.name.lower() for check in table.checks}
    name = written.name or next(n for i in count(1) if (n := f"{table.name}_chk_{i}").lower() not in taken)
    if name.lower() in taken:
        raise SqlError(
            "CONSTRAINT_ALREADY_EXISTS",
            f"{table.name} has a constraint {name} already",
            position=written.position,
            hint="choose another name, or DROP CONSTRAINT first; DESCRIBE shows those there are",
        )
    return bound_check(written, name, table, runtime.analyzer())


def can_check(runtime: Runtime, table: Table, check: Check) -> bool:
    """Whether a condition means something over the columns a table has."""
    try:
        breaking(table, [check], runtime.analyzer())
    except HeadraceError:
        return False
    return True


def broken(table: Table, condition: Check, row: str) -> DataError:
    """What to say of a row that breaks a condition."""
    return DataError(
        "CHECK_CONSTRAINT_VIOLATION",
        f"CHECK constraint {condition.name} of {table.name}, {condition.text}, is violated by the row with {row}",
        hint="nothing was changed; DESCRIBE shows the conditions, ALTER TABLE … DROP CONSTRAINT takes one away",
    )


def violation(runtime: Runtime, table: Table, parts: Iterable[pa.Table]) -> tuple[Check, str] | None:
    """A condition that some row breaks, and the row's values."""
    for rows in parts:
        for checks, together in _prepared(runtime, table):
            if _broken(runtime, together, rows).num_rows:
                for one in checks:
                    row = _broken(runtime, _breaking(runtime, table, [one]), rows)
                    if row.num_rows:
                        names = [c.name for c in table.columns]
                        return one, ", ".join(f"{name} = {python_values(row.column(name))[0]!r}" for name in names)
    return None


def as_of(now: Relation, then: Relation, rows: pa.Table) -> pa.Table:
    """Rows in the columns a table or stream had, in those it has now: as if they had come before it was altered."""
    if now is then:
        return rows
    given = {c.id: rows.column(i) for i, c in enumerate(then.columns)}
    columns = [given[c.id] if c.id in given else before(now, c, rows.num_rows) for c in now.columns]
    return pa.table(columns, schema=arrow_schema(now.columns))


def before(relation: Relation, column: Field, rows: int) -> pa.Array:
    """A column in so many rows from before it was there."""
    if not isinstance(relation, Table):
        return lacking_rows(column, rows)
    value, type = relation.lies(column).before, column.type.arrow
    return pa.nulls(rows, type) if value is None else pa.repeat(pa.scalar(value, type), rows)


def with_missing(table: Table, rows: pa.Table) -> pa.Table:
    """The rows in the table's columns; those they come without have their defaults."""
    known = set(rows.column_names)
    arrays = [rows.column(c.name) if c.name in known else lacking_rows(c, rows.num_rows) for c in table.columns]
    return pa.table(arrays, schema=arrow_schema(table.columns))


def _prepared(runtime: Runtime, table: Table) -> Sequence[tuple[list[Check], Prepared]]:
    """The conditions, those together that were made over the same columns, with queries of rows that break some."""
    known = runtime.breaking.get(table.number)
    if known is None or known[0] is not table:
        together: dict[object, list[Check]] = {}
        for one in table.checks:
            together.setdefault((one.of, one.columns), []).append(one)
        found = [(checks, _breaking(runtime, table, checks)) for checks in together.values()]
        known = runtime.breaking[table.number] = (table, found)
    prepared: Sequence[tuple[list[Check], Prepared]] = known[1]
    return prepared


def _breaking(runtime: Runtime, table: Table, checks: Sequence[Check]) -> Prepared:
    from headrace.table.query import Prepared  # which reads tables' rows, and is above what writes them

    return Prepared(runtime, breaking(table, checks, runtime.analyzer()))


def _broken(runtime: Runtime, prepared: Prepared, rows: pa.Table) -> pa.Table:
    from headrace.table.query import Again, Leaves, run

    given = Leaves({scan.ref: rows for scan in prepared.scans}, {})
    while True:
        with runtime.store.read() as snapshot, suppress(Again):
            return run(runtime, snapshot, prepared, given)


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
