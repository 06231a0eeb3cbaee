"""OPTIMIZE and VACUUM, run."""

from __future__ import annotations

import pyarrow as pa

from headrace.base.wording import counted
from headrace.catalog import Table
from headrace.errors import CatalogError, Position
from headrace.runtime import Runtime
from headrace.sql.upkeep import Optimize, Upkeep, Vacuum
from headrace.store import Transaction
from headrace.store.format import microseconds
from headrace.table import history, rewriting
from headrace.table.history import LetGo

Said = tuple[pa.Table, str]
"""Rows of an answer, and what it says."""


def keep_up(runtime: Runtime, statement: Upkeep) -> Said:
    """Do it, and say what was done."""
    table = _table(runtime, statement.name, statement.position)
    if isinstance(statement, Optimize):
        return _optimized(runtime, table)
    with runtime.tables_lock:
        runtime.catalog.require_there(table)
        return _vacuumed(runtime, table, statement)


def _table(runtime: Runtime, name: str, position: Position) -> Table:
    found = runtime.catalog.get(name, position=position)
    if not isinstance(found, Table) or found.files is not None:
        what = "lies in files that somebody else writes" if isinstance(found, Table) else f"is a {found.kind}"
        raise CatalogError(
            "WRONG_COMMAND_FOR_OBJECT_TYPE",
            f"{found.name} {what}",
            position=position,
            hint="OPTIMIZE and VACUUM are for tables whose rows Headrace keeps",
        )
    return found


def _optimized(runtime: Runtime, table: Table) -> Said:
    done = rewriting.optimize(runtime, table)
    numbers = pa.table(
        {
            "files_removed": [done.removed],
            "files_added": [done.added],
            "rows_rewritten": [done.rows],
            "deleted_rows_removed": [done.deleted],
        }
    )
    if not done.removed:
        return numbers, f"{table.name} is in order"
    said = f"{counted(done.removed, 'file')} of {table.name} rewritten as {counted(done.added, 'file')}"
    return numbers, f"{said}, {counted(done.deleted, 'deleted row')} removed"


def _vacuumed(runtime: Runtime, table: Table, statement: Vacuum) -> Said:
    kept = statement.retain if statement.retain is not None else table.keep_changes
    if table.keep_changes is None or kept is None:
        return _counts(LetGo()), f"{table.name} keeps no changes: there is nothing to let go of"
    if statement.dry_run:
        with runtime.store.read() as snapshot:
            gone = history.would_let_go(snapshot, table, microseconds() - kept, runtime.needed_from(table))
        listed = gone.select(["version", "moment", "label"]).rename_columns(["version", "time", "statement"])
        return listed, ""

    def work(tx: Transaction) -> LetGo:
        done = history.let_go(tx, table, tx.moment - kept, runtime.needed_from(table))
        if not done.versions:
            tx.unchanged()
        return done

    done = runtime.store.commit(work, label=f"VACUUM {table.name}")
    said = f"{counted(done.versions, 'version')} of {table.name} let go, with {counted(done.rows, 'kept row')}"
    return _counts(done), f"{said} and {counted(done.files, 'file')}"


def _counts(done: LetGo) -> pa.Table:
    return pa.table({"versions": [done.versions], "rows": [done.rows], "files": [done.files]})
