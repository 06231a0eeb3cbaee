"""Materialized views: what is kept follows the changes of tables, in the commits that make them.

The view's plan is cut into layers of states (``plan/layers.py``). Each change of a table below it becomes changes of
these, through the plan of the change and the shared indexes (``keep/maintenance.py``), before the commit; the rows are
added in the commit. So every epoch shows the view as its query would be over that epoch's tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from headrace.catalog import Catalog, Relation, View
from headrace.errors import NotYetSupported, Position
from headrace.keep.answers import Answers
from headrace.keep.maintenance import Maintenance
from headrace.plan.layers import LayeredPlan, layered
from headrace.plan.nodes import Draw, Node, leaves, streams_in, walk_plan
from headrace.plan.refs import Ref, TableRef
from headrace.runtime import Runtime
from headrace.store import Transaction
from headrace.table import history
from headrace.view.continuous import ContinuousView


class MaterializedView(ContinuousView):
    """A plan over tables, kept in layers."""

    def __init__(self, view: View, plan: LayeredPlan, runtime: Runtime, answers: Answers) -> None:
        super().__init__(view, plan.as_split(), {}, runtime.settings.time_zone)
        self.layers = plan
        self.row_key = plan.key
        self.answer = self.by_name[plan.answer] if plan.answer is not None else None
        self.maintenance = Maintenance(runtime, answers, plan)

    def follows(self, source: Relation) -> bool:
        return source.number in self.maintenance.tables

    def changed(self, changes: Mapping[int, pa.Table]) -> Mapping[int, pa.Table]:
        given: dict[Ref, pa.Table] = {self.maintenance.tables[number]: rows for number, rows in changes.items()}
        return self.maintenance.state_rows(self, given)

    def found(self, tx: Transaction) -> None:
        super().found(tx)
        if (past := history.of(self.relation)) is not None:
            history.begin(tx, past, tx.label)

    def admit(self, tx: Transaction, rows: dict[int, pa.Table]) -> None:
        """What is added to the rows of its answer is how they change: it is noted, if changes are kept."""
        past = history.of(self.relation)
        if past is not None and self.answer is not None and self.answer.ref in rows:
            history.note(tx, past, rows[self.answer.ref])


def unfolded(catalog: Catalog) -> Catalog:
    """The catalog in which materialized views are their queries, as ordinary views are.

    One that reads others follows the tables below these, with states of its own. So all show one epoch without being
    brought up to date in an order, and each may be kept up to date in its own way.
    """
    views = {r.number: replace(r, continuous=False) for r in catalog.of_kind(View) if r.materialized}
    known = {name: views.get(r.number, r) for name, r in catalog.relations.items()}
    return replace(catalog, relations=known, numbers={**catalog.numbers, **views})


def followed(plan: Node, catalog: Catalog, position: Position, *, answer: bool = False) -> LayeredPlan:
    """The layers of a view's plan, with its ``answer`` if told so; an error that names what cannot be followed."""
    if streams_in(plan):
        raise NotYetSupported(
            "a stream in a materialized view", position=position, hint="CREATE VIEW over a stream is kept up to date"
        )
    for leaf in leaves(plan):
        table = catalog.table_at(leaf.number) if isinstance(leaf.ref, TableRef) else None
        if table is None or table.files is not None:
            raise NotYetSupported(
                f"{leaf.relation} in a materialized view: it is no table of this database's own",
                position=position,
                hint="read tables; CREATE VIEW is computed when it is queried",
            )
    if not leaves(plan):
        raise NotYetSupported(
            "a materialized view that reads no table",
            position=position,
            hint="CREATE VIEW, or CREATE TABLE … AS SELECT",
        )
    if any(isinstance(node, Draw) for node in walk_plan(plan)):
        raise NotYetSupported("TABLESAMPLE in a materialized view", position=position, hint="draw where it is queried")
    return layered(plan, answer=answer)
