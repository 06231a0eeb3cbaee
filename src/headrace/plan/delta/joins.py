"""Joins: a change meets the other side.

A tree of inner joins is one operator with many inputs (``Cluster``). Its change is a sum over the inputs that changed:
the change of one, joined with those before it as they are now and those after it as they were, so that nothing is
counted twice. Each term is joined in an order of its own, small change first: what an equality connects comes next, and
of those what it meets by its key, for then no row becomes several.

A semi or anti join is linear in its left side. A change of the right side matters to the left rows that meet a changed
row, and only to them: for these the join is run as it is now, and as it was (which takes the 0 <-> 1 transitions of
001's E4.4.6-7 from both sides). An outer join is the inner join and the rows without a partner beside NULLs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.plan.delta.changes import Delta, Deltas, Time, rule, together, weighed
from headrace.plan.exprs import Call, Column, Expr, Literal, all_of, columns, conjuncts, substitute
from headrace.plan.nodes import Filter, Join, Leaf, Node, Project


@rule(Join)
def join(deltas: Deltas, node: Join) -> Delta | None:
    if node.kind == "inner":
        return inner(deltas, node)
    if node.kind in ("semi", "anti"):
        return existence(deltas, node)
    return together(node, outer(deltas, node))


# Inner joins


@dataclass(frozen=True)
class Cluster:
    """A tree of inner joins: its inputs, what must hold of them together, and its columns as expressions over them."""

    inputs: tuple[Node, ...]
    conditions: tuple[Expr, ...]
    outputs: Mapping[int, Expr]

    @property
    def columns(self) -> set[int]:
        return {c.id for one in self.inputs for c in one.output}

    @staticmethod
    def of(node: Node) -> Cluster:
        if isinstance(node, Join) and node.kind == "inner":
            left, right = Cluster.of(node.left), Cluster.of(node.right)
            if left.columns & right.columns:  # what both sides are of, a CTE, is taken apart on one of them
                right = Cluster((node.right,), (), {c.id: c for c in node.right.output})
            outputs = {**left.outputs, **right.outputs}
            own = tuple(substitute(part, outputs) for part in conjuncts(node.condition))
            return Cluster((*left.inputs, *right.inputs), (*left.conditions, *right.conditions, *own), outputs)
        if isinstance(node, Filter | Project) and len((below := Cluster.of(node.child)).inputs) > 1:
            if isinstance(node, Filter):
                own = tuple(substitute(part, below.outputs) for part in conjuncts(node.condition))
                return Cluster(below.inputs, (*below.conditions, *own), below.outputs)
            return Cluster(below.inputs, below.conditions, {c.id: substitute(e, below.outputs) for c, e in node.exprs})
        return Cluster((node,), (), {c.id: c for c in node.output})


def inner(deltas: Deltas, node: Node) -> Delta | None:
    cluster = Cluster.of(node)
    branches = []
    for number, changed in enumerate(cluster.inputs):
        delta = deltas.of(changed)
        if delta is None:
            continue
        times: list[Time] = ["now" if i < number else "before" for i in range(len(cluster.inputs))]
        others = [deltas.at(other, times[i]) for i, other in enumerate(cluster.inputs) if i != number]
        joined = in_order(delta.rows, others, cluster.conditions)
        outs = tuple((c, cluster.outputs[c.id]) for c in node.output)
        branches.append(weighed(Project(joined, (*outs, (delta.weight, delta.weight))), node, delta.weight))
    return together(node, branches)


def in_order(first: Node, others: Sequence[Node], conditions: Sequence[Expr]) -> Node:
    """The inner join of all: what an equality connects with what is joined already comes next.

    Equalities are the joins' conditions; what else must hold is asked at the end, in the order it was written.
    """
    joined, waiting, asked = first, list(others), list(conditions)
    while waiting:
        ids = {c.id for c in joined.output}
        found = [(_rank(ids, other, asked), i) for i, other in enumerate(waiting)]
        other = waiting.pop(min(found)[1])
        equal = [part for part in asked if equality(part, ids, {c.id for c in other.output})]
        asked = [part for part in asked if part not in equal]
        joined = Join("inner", joined, other, all_of(equal))
    return Filter(joined, all_of(asked)) if asked else joined


def equality(part: Expr, ones: set[int], others: set[int]) -> tuple[Expr, Expr] | None:
    """Both sides of an equality between the columns of one relation and those of another, in this order."""
    if isinstance(part, Call) and part.fn in ("=", "<=>"):
        for one, other in (part.args, part.args[::-1]):
            mine, its = ({c.id for c in columns(side)} for side in (one, other))
            if mine and its and mine <= ones and its <= others:
                return one, other
    return None


def _rank(ids: set[int], other: Node, conditions: Sequence[Expr]) -> int:
    """How well a relation is met: by its whole key, by some equality, by none."""
    its = {c.id for c in other.output}
    pairs = [found for part in conditions if (found := equality(part, ids, its)) is not None]
    met = {side.id for _, side in pairs if isinstance(side, Column)}
    if not pairs:
        return 2
    return 0 if (key := key_of(other)) and key <= met else 1


def key_of(node: Node) -> set[int]:
    """The columns of a relation no two rows share, if it is rows of a table with a primary key."""
    if isinstance(node, Leaf):
        named = dict(zip(node.fields, node.scanned, strict=True))
        return {named[k].id for k in node.key} if node.key and all(k in named for k in node.key) else set()
    if isinstance(node, Filter):
        return key_of(node.child)
    if isinstance(node, Project):
        passed = {e.id: c.id for c, e in node.exprs if isinstance(e, Column)}
        key = key_of(node.child)
        return {passed[k] for k in key} if key and key <= passed.keys() else set()
    return set()


# Semi and anti joins


def existence(deltas: Deltas, node: Join) -> Delta | None:
    left, right = deltas.of(node.left), deltas.of(node.right)
    branches = []
    if left is not None:
        now = deltas.at(node.right, "now")
        branches.append(weighed(Join(node.kind, left.rows, now, node.condition), node, left.weight))
    if right is not None:
        met = Join("semi", deltas.at(node.left, "before"), right.rows, node.condition)
        for time, weight in (("now", 1), ("before", -1)):
            side = deltas.at(node.right, time)  # type: ignore[arg-type]
            branches.append(weighed(Join(node.kind, met, side, node.condition), node, weight))
    return together(node, branches)


# Outer joins


def outer(deltas: Deltas, node: Join) -> list[Node]:
    branches: list[Node] = []
    matched = inner(deltas, Join("inner", node.left, node.right, node.condition))
    if matched is not None:
        branches.append(weighed(matched.rows, node, matched.weight))
    sides = [(node.left, node.right)]
    if node.kind == "full":
        sides.append((node.right, node.left))
    for kept, other in sides:
        alone = existence(deltas, Join("anti", kept, other, node.condition))
        if alone is not None:
            branches.append(weighed(_padded(alone, node), node, alone.weight))
    return branches


def _padded(alone: Delta, node: Join) -> Node:
    """Rows of one side of a join beside NULLs."""
    there = {c.id for c in alone.rows.output}
    outs: list[tuple[Column, Expr]] = [(c, c if c.id in there else Literal(c.type, None)) for c in node.output]
    return Project(alone.rows, (*outs, (alone.weight, alone.weight)))
