"""Materialized views: what is kept follows the changes of tables, in the commits that make them.

A grouping of a table is kept as one of a stream is, except that rows may be taken back: its states are those of signed
rows (``plan/signed.py``), and each change of the table comes by with weights. It begins with the rows there are.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from headrace.catalog import Catalog
from headrace.errors import NotYetSupported, Position
from headrace.plan.nodes import (
    Aggregate,
    Filter,
    Leaf,
    Node,
    Project,
    UnionAll,
    Values,
    leaves,
    map_children,
    streams_in,
    walk_plan,
)
from headrace.plan.refs import ChangeRef, Ref, TableRef
from headrace.plan.signed import WEIGHT
from headrace.runtime import Runtime
from headrace.table import query
from headrace.table import rows as tables
from headrace.view.continuous import ContinuousView

_BELOW = (Leaf, Filter, Project, UnionAll, Values)


def following(plan: Node, catalog: Catalog, position: Position) -> Node:
    """The plan with the tables below its first groupings as what changes; those above are read by queries."""
    if streams_in(plan):
        raise NotYetSupported(
            "a stream in a materialized view", position=position, hint="CREATE VIEW over a stream is kept up to date"
        )
    found, tables = False, 0

    def visit(node: Node) -> Node:
        nonlocal found
        if isinstance(node, Aggregate) and not any(isinstance(n, Aggregate) for n in walk_plan(node.child)):
            found = True
            for part in walk_plan(node.child):
                if not isinstance(part, _BELOW):
                    what = type(part).__name__.lower()
                    raise NotYetSupported(
                        f"a {what} below the grouping of a materialized view",
                        position=position,
                        hint="group one table, and join above the grouping; or CREATE VIEW, computed when queried",
                    )
            return map_children(node, changing)
        return map_children(node, visit)

    def changing(node: Node) -> Node:
        nonlocal tables
        if not isinstance(node, Leaf):
            return map_children(node, changing)
        table = catalog.table_at(node.number) if isinstance(node.ref, TableRef) else None
        if table is None or table.files is not None:
            raise NotYetSupported(
                f"{node.relation} below the grouping of a materialized view: it is no table of this database's own",
                position=position,
                hint="group a table; CREATE VIEW is computed when it is queried",
            )
        tables += 1
        return replace(node, ref=ChangeRef(node.ref.name, node.number))

    plan = visit(plan)
    if not found:
        raise NotYetSupported(
            "a materialized view without a grouping of a table that Headrace plans itself",
            position=position,
            hint="GROUP BY, without windows and subqueries beside it; or CREATE VIEW, computed when it is queried",
        )
    if not tables:
        raise NotYetSupported(
            "a materialized view that groups no table",
            position=position,
            hint="CREATE VIEW, or CREATE TABLE … AS SELECT",
        )
    return plan


def first_rows(runtime: Runtime, view: ContinuousView) -> dict[int, pa.Table]:
    """The state rows a view begins with, by state: of what never changes, and of the rows tables have now."""
    found: dict[int, list[pa.Table]] = {}
    for pipeline in view.initial:
        found.setdefault(pipeline.state, []).append(query.run_now(runtime, pipeline.plan))
    for pipeline in (p for each in view.pipelines.values() for p in each):
        refs = {leaf.ref for leaf in leaves(pipeline.plan, ChangeRef)}
        if refs:
            found.setdefault(pipeline.state, []).append(_rows(runtime, pipeline.plan, refs))
    return {state: pa.concat_tables(rows) for state, rows in found.items()}


def _rows(runtime: Runtime, plan: Node, refs: set[Ref]) -> pa.Table:
    prepared = query.Prepared(runtime, plan)
    while True:
        with runtime.store.read() as snapshot, suppress(query.Again):
            given: dict[Ref, str] = {}
            for ref in refs:
                assert isinstance(ref, ChangeRef)
                table = runtime.catalog.table_at(ref.number)
                assert table is not None
                given[ref] = f"SELECT *, 1::BIGINT AS {WEIGHT} FROM {tables.source(snapshot, table)}"
            return query.run(runtime, snapshot, prepared, query.Leaves({}, given))
