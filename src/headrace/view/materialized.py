"""Materialized views: what is kept follows the changes of tables, in the commits that make them.

The view's plan is cut into layers of states (``plan/layers.py``). Each change of a table below it becomes changes of
these, through the plan of the change and the shared indexes (``keep/maintenance.py``), before the commit; the rows are
added in the commit. So every epoch shows the view as its query would be over that epoch's tables.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from headrace.catalog import Catalog, Relation, View
from headrace.errors import NotYetSupported, Position
from headrace.keep.answers import Answers
from headrace.keep.maintenance import Maintenance
from headrace.plan.exprs import Agg
from headrace.plan.layers import LayeredPlan, layered
from headrace.plan.nodes import Aggregate, Draw, Node, SparkSql, leaves, streams_in, walk_plan
from headrace.plan.refs import Ref, TableRef
from headrace.runtime import Runtime
from headrace.view.continuous import ContinuousView


class MaterializedView(ContinuousView):
    """A plan over tables, kept in layers."""

    def __init__(self, view: View, plan: LayeredPlan, runtime: Runtime, answers: Answers) -> None:
        super().__init__(view, plan.as_split(), {}, runtime.settings.time_zone)
        self.layers = plan
        self.maintenance = Maintenance(runtime, answers, plan)

    def follows(self, source: Relation) -> bool:
        return source.number in self.maintenance.tables

    def changed(self, changes: Mapping[int, pa.Table]) -> Mapping[int, pa.Table]:
        given: dict[Ref, pa.Table] = {self.maintenance.tables[number]: rows for number, rows in changes.items()}
        return self.maintenance.state_rows(self, given)


def followed(plan: Node, catalog: Catalog, position: Position) -> LayeredPlan:
    """The layers of a view's plan; an error that names what cannot be followed."""
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
    for node in walk_plan(plan):
        _check(node, position)
    return _checked(layered(plan), position)


def _check(node: Node, position: Position) -> None:
    if isinstance(node, Draw):
        raise NotYetSupported("TABLESAMPLE in a materialized view", position=position, hint="draw where it is queried")
    if isinstance(node, SparkSql):
        raise NotYetSupported(
            f"{node.reason} in a materialized view",
            position=position,
            hint="write it without; or CREATE VIEW, computed when it is queried",
        )


def _checked(plan: LayeredPlan, position: Position) -> LayeredPlan:
    """The same, unless what a change takes back could not be told from what was there before."""
    for one in plan.inputs:
        for node in walk_plan(one.rows):
            for _, agg in node.aggs if isinstance(node, Aggregate) else ():
                if not is_exact(agg):
                    of = agg.args[0].type.sql if agg.args else "rows"
                    raise NotYetSupported(
                        f"{agg.fn} of {of} below the top of a materialized view",
                        position=position,
                        hint="its last digits depend on the order of rows: aggregate decimals, or in the outermost "
                        "grouping; or CREATE VIEW, computed when it is queried",
                    )
    return plan


_EXACT = {"count", "min", "max", "bool_and", "bool_or"}


def is_exact(agg: Agg) -> bool:
    """Whether an aggregate gives the same for the same rows, whatever their order."""
    if agg.template is not None:
        return False
    return agg.fn in _EXACT or (agg.fn in ("sum", "avg") and not agg.args[0].type.is_float)
