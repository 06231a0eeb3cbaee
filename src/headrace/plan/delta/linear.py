"""What treats each row by itself passes changes on."""

from __future__ import annotations

from dataclasses import replace

from headrace.plan.delta.changes import Delta, Deltas, change_of, rule, together, weighed
from headrace.plan.exprs import Call, Column
from headrace.plan.nodes import Filter, Leaf, Project, Repeat, UnionAll
from headrace.plan.signed import WEIGHT
from headrace.types import BIGINT


@rule(Leaf)
def leaf(deltas: Deltas, node: Leaf) -> Delta:
    return Delta(*change_of(node))


@rule(Filter)
def filter(deltas: Deltas, node: Filter) -> Delta | None:
    below = deltas.of(node.child)
    return below and Delta(replace(node, child=below.rows), below.weight)


@rule(Project)
def project(deltas: Deltas, node: Project) -> Delta | None:
    below = deltas.of(node.child)
    if below is None:
        return None
    weight = Column.fresh(WEIGHT, BIGINT)
    return Delta(Project(below.rows, (*node.exprs, (weight, below.weight))), weight)


@rule(UnionAll)
def union(deltas: Deltas, node: UnionAll) -> Delta | None:
    changed = [(branch, below) for branch in node.inputs if (below := deltas.of(branch)) is not None]
    return together(node, [weighed(below.rows, branch, below.weight) for branch, below in changed])


@rule(Repeat)
def repeat(deltas: Deltas, node: Repeat) -> Delta | None:
    """A row that comes n times weighs n times as much."""
    below = deltas.of(node.child)
    if below is None:
        return None
    weight = Column.fresh(WEIGHT, BIGINT)
    times = Call(BIGINT, "*", (below.weight, node.times))
    return Delta(Project(below.rows, (*((c, c) for c in node.output), (weight, times))), weight)
