"""TABLESAMPLE RESERVOIR in a query: its rows are drawn first, and are leaves of the rest.

Of a table it is known how many rows it has, so their numbers are drawn, and of its Parquet files those row
groups are read that hold one. A query's rows are drawn as they come. With REPEATABLE, rows are chosen by
priorities that a hash of their values and the seed gives them: the lowest, whoever reads them in whatever order.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import duckdb
import numpy as np
import pyarrow as pa

from headrace.base.native import conform
from headrace.base.parquet_files import ROW_NUMBER
from headrace.catalog import Table
from headrace.engine.failures import from_duckdb
from headrace.engine.plan_sql import quote_native
from headrace.errors import HeadraceError
from headrace.input.parquet import first_bad_value, select_items
from headrace.plan.nodes import Draw, Leaf, Node, is_leaf, rewrite_plan, with_a_column
from headrace.plan.refs import GivenRef, TableRef
from headrace.runtime import Runtime
from headrace.sample.gathering import gather_table
from headrace.sample.parquet_rows import Stretch, stretch_of, take_rows
from headrace.sample.reservoir import Reservoir
from headrace.sample.shares import shares
from headrace.store import Snapshot
from headrace.table import query
from headrace.table import rows as tables
from headrace.table.files import parquet_pieces


@dataclass(frozen=True)
class Drawing:
    """One TABLESAMPLE of a query: what it draws from, and how many rows."""

    ref: GivenRef
    draw: Draw
    child: query.Prepared


def lifted(runtime: Runtime, plan: Node) -> tuple[Node, tuple[Drawing, ...]]:
    """The plan with drawn rows as leaves, and what is to be drawn, those first that others draw from."""
    found: list[Drawing] = []

    def change(node: Node) -> Node:
        if not isinstance(node, Draw):
            return node
        node = replace(node, child=with_a_column(node.child))
        found.append(Drawing(GivenRef(f"drawn{len(found)}", kind="drawn"), node, query.Prepared(runtime, node.child)))
        return Leaf(found[-1].ref, tuple(f"c{i}" for i in range(len(node.output))), node.output)

    return rewrite_plan(plan, change), tuple(found)


def rows_of(runtime: Runtime, snapshot: Snapshot, drawing: Drawing, leaves: query.Leaves) -> pa.Table:
    """The rows that are drawn, as of the snapshot, under the names of their leaf."""
    draw, child = drawing.draw, drawing.child
    rng = np.random.default_rng()
    rows = None
    if draw.seed is None and child.renamed_scan is not None and is_leaf(child.renamed_scan[0], TableRef):
        rows = _of_table(runtime, snapshot, child.renamed_scan, draw.size, rng)
    if rows is None:
        whole = query.run(runtime, snapshot, child, leaves)
        whole = whole.rename_columns([f"c{i}" for i in range(whole.num_columns)])
        if draw.seed is not None:
            rows = _repeatable(snapshot, whole, draw.size, draw.seed)
        else:
            reservoir = Reservoir(draw.size, rng)
            reservoir.add(whole)
            rows = reservoir.rows()
    names = [f"c{i}" for i in range(len(draw.output))]
    types = [c.type.arrow if c.type.is_held else rows.schema.field(i).type for i, c in enumerate(draw.output)]
    return conform(rows, pa.schema(list(zip(names, types, strict=True))))


def _of_table(
    runtime: Runtime, snapshot: Snapshot, scan: tuple[Leaf, list[str]], size: int, rng: np.random.Generator
) -> pa.Table | None:
    """Rows of a table by their numbers; None where their number is not known without reading them."""
    table = runtime.catalog.table_at(scan[0].number)
    assert table is not None
    fields = scan[1]
    if table.files is not None:
        return _of_files(runtime, table, fields, size, rng)
    if any(c.name.lower() == ROW_NUMBER for c in table.columns):
        return None  # its rows cannot be told apart by that name
    if snapshot.deleted(table.number):
        return None  # some of its rows are not there any more
    relation = table.number
    files = snapshot.segments(relation)
    lists = {tables.selected(tables.in_segment(snapshot, table, path), fields) for path in files}
    if len(lists) > 1:
        return None  # some columns came later than some files
    stretches = [stretch_of(str(path)) for path in files]
    tail = snapshot.rows(relation)
    in_files, in_tail = shares([sum(s.rows for s in stretches), tail], size, rng).tolist()
    parts = []
    if stretches:
        parts.append(_chosen(runtime, stretches, in_files, lists.pop(), rng))
    if in_tail or not parts:
        items = tables.selected(tables.in_store(table), fields)
        rest = snapshot.query(f"SELECT {items} FROM {snapshot.table(relation)}")
        parts.append(gather_table(rest, np.sort(rng.choice(tail, in_tail, replace=False, shuffle=False))))
    return pa.concat_tables([conform(part, parts[0].schema) for part in parts])


def _of_files(
    runtime: Runtime, table: Table, fields: list[str], size: int, rng: np.random.Generator
) -> pa.Table | None:
    pieces = parquet_pieces(table)
    if not pieces:
        return None
    stretches = [stretch_of(str(piece.path)) for piece in pieces]
    given = shares([s.rows for s in stretches], size, rng).tolist()
    parts = []
    for piece, stretch, share in zip(pieces, stretches, given, strict=True):
        items = select_items(piece, table.columns, tuple(fields))
        try:
            parts.append(_chosen(runtime, [stretch], share, items, rng))
        except HeadraceError as error:
            with suppress(duckdb.Error):  # the file itself may be broken
                error = first_bad_value(piece, table.columns, tuple(fields)) or error
            raise error from None
    return pa.concat_tables([conform(part, parts[0].schema) for part in parts])


def _chosen(runtime: Runtime, stretches: list[Stretch], share: int, items: str, rng: np.random.Generator) -> pa.Table:
    places = np.sort(rng.choice(sum(s.rows for s in stretches), share, replace=False, shuffle=False))
    with runtime.worker.cursor() as cursor:
        try:
            return take_rows(cursor, stretches, places, items)
        except duckdb.Error as error:
            raise from_duckdb(error) from None


def _repeatable(snapshot: Snapshot, rows: pa.Table, size: int, seed: int) -> pa.Table:
    """The rows of the lowest hashes. Equal rows are told apart by a number, so each has a hash of its own."""
    values = ", ".join(map(quote_native, rows.column_names))
    return snapshot.query(
        f"WITH told AS (SELECT *, CAST(row({values}) AS VARCHAR) || chr(0) || list_aggregate([{_nulls(rows)}], "
        f"'string_agg', '') AS told FROM drawn_rows) "
        f"SELECT {values} FROM (SELECT *, md5_number_lower('{seed} ' || "
        f"row_number() OVER (PARTITION BY told) || ' ' || told) AS priority FROM told) "
        f"ORDER BY priority, told LIMIT {size}",
        drawn_rows=rows,
    )


def _nulls(rows: pa.Table) -> str:
    """Which values are NULL: the text of a row does not tell NULL from the word."""
    return ", ".join(f"CASE WHEN {quote_native(n)} IS NULL THEN '1' ELSE '0' END" for n in rows.column_names)
