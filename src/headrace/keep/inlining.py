"""A filtered read of a view computes only the rows it asks for.

The kept answer of a view is its whole relation. A query that filters it, while
the kept answer is stale, would pay for rows it throws away: where the view's
upper pipeline treats each group by itself, the query is run over the merged
state instead, with its filter first.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.keep.kept import Kept
from headrace.plan.nodes import Filter, Leaf, Node, Project, Sort, is_leaf, leaves, rewrite_plan, walk_plan
from headrace.plan.refs import KeptRef, StateRef
from headrace.plan.rules import optimize


def inlined(plan: Node, kept: Mapping[int, Kept]) -> tuple[Kept, Node] | None:
    """The one kept relation a plan filters and the plan over its state, if it can be had."""
    scans = leaves(plan, KeptRef)
    if len(scans) != 1:
        return None
    if not any(isinstance(n, Filter) and n.child is scans[0] for n in walk_plan(plan)) and not _is_first(plan):
        return None
    scan = scans[0]
    found = kept[scan.number]
    if found.upper is None or not _by_group(found.upper):
        return None
    columns = dict(zip((f.name for f in found.relation.columns), found.upper.output, strict=True))
    body = Project(found.upper, tuple((c, columns[f]) for f, c in zip(scan.fields, scan.scanned, strict=True)))
    return found, optimize(rewrite_plan(plan, lambda node: body if node is scan else node))


def _is_first(plan: Node) -> bool:
    """Whether a plan asks for the first rows of a relation in some order."""
    limited = False
    while isinstance(plan, Project | Sort):
        limited = limited or (isinstance(plan, Sort) and plan.limit is not None and bool(plan.keys))
        plan = plan.child
    return limited and isinstance(plan, Leaf)


def _by_group(upper: Node) -> bool:
    """Whether each row of the answer comes from one group of one state."""
    while isinstance(upper, Project | Filter):
        upper = upper.child
    return is_leaf(upper, StateRef)
