"""A filtered read of a view computes only the rows it asks for.

The kept answer of a view is its whole relation. A query that filters it, while
the kept answer is stale, would pay for rows it throws away: where the view's
upper pipeline treats each group by itself, the query is run over the merged
state instead, with its filter first.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.plan.nodes import Filter, Node, Project, Scan, rewrite_plan, walk_plan
from headrace.plan.rules import optimize
from headrace.view.compiled import ContinuousView


def inlined(plan: Node, views: Mapping[str, ContinuousView | None]) -> tuple[ContinuousView, Node] | None:
    """The one view a plan filters and the plan over that view's state, if it can be had."""
    scans = [n for n in walk_plan(plan) if isinstance(n, Scan) and n.kind == "view"]
    if len(scans) != 1 or not any(isinstance(n, Filter) and n.child is scans[0] for n in walk_plan(plan)):
        return None
    scan = scans[0]
    view = views.get(scan.relation)
    if view is None or not _by_group(view.plan.upper):
        return None
    columns = dict(zip((f.name for f in view.view.columns), view.plan.upper.output, strict=True))
    body = Project(view.plan.upper, tuple((c, columns[f]) for f, c in zip(scan.fields, scan.scanned, strict=True)))
    return view, optimize(rewrite_plan(plan, lambda node: body if node is scan else node))


def _by_group(upper: Node) -> bool:
    """Whether each row of the answer comes from one group of one state."""
    while isinstance(upper, Project | Filter):
        upper = upper.child
    return isinstance(upper, Scan) and upper.kind == "state"
