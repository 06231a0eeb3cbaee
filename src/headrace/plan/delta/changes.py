"""What a change of a node is, and how those of a plan's nodes are found: each by the rule of its operator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from typing import Literal as Choice

from headrace.plan.exprs import Call, Column, Literal
from headrace.plan.nodes import (
    Filter,
    Leaf,
    Node,
    Project,
    SetOperation,
    UnionAll,
    leaves,
    map_children,
)
from headrace.plan.refs import GivenRef, Ref
from headrace.plan.signed import WEIGHT
from headrace.types import BIGINT, BOOLEAN

Time = Choice["before", "now"]
N = TypeVar("N", bound=Node)


@dataclass(frozen=True, eq=False)
class Delta:
    """How a node's rows change."""

    rows: Node
    """Rows of the node's columns and the weight, by their own ids."""
    weight: Column

    @property
    def node_rows(self) -> tuple[Column, ...]:
        return tuple(c for c in self.rows.output if c.id != self.weight.id)


def change_ref(ref: Ref) -> GivenRef:
    """What the changed rows of a leaf are given as."""
    return GivenRef(f"change of {ref.kind} {getattr(ref, 'number', '')} {ref.name}", kind="changed rows of")


def change_of(leaf: Leaf) -> tuple[Leaf, Column]:
    """The leaf that has the change of another: the same columns under their own ids, and the weight."""
    weight = Column.fresh(WEIGHT, BIGINT)
    changed = Leaf(change_ref(leaf.ref), (*leaf.fields, WEIGHT), (*leaf.scanned, weight))
    return changed, weight


Rule = Callable[["Deltas", N], Delta | None]
RULES: dict[type[Node], Rule[Any]] = {}
"""How each operator's change is made."""


def rule(*operators: type[N]) -> Callable[[Rule[N]], Rule[N]]:
    """Register the rule of some operators, as a decorator of it."""

    def register(made: Rule[N]) -> Rule[N]:
        RULES.update(dict.fromkeys(operators, made))
        return made

    return register


class Deltas:
    """The changes of the nodes of a plan, when some of its leaves have changed."""

    def __init__(self, changed: Mapping[Ref, Time]) -> None:
        """What has changed, and how it lies: whether leaves have the rows there were before, or those there are now."""
        self.changed = changed
        self._done: dict[int, tuple[Node, Delta | None]] = {}

    def touches(self, node: Node) -> bool:
        """Whether a node reads what has changed."""
        return any(leaf.ref in self.changed for leaf in leaves(node))

    def of(self, node: Node) -> Delta | None:
        """The change of a node; None if it reads nothing that has changed."""
        if id(node) not in self._done:
            found = None
            if self.touches(node):
                found = RULES[type(node)](self, node)
            self._done[id(node)] = (node, found)
        return self._done[id(node)][1]

    def at(self, node: Node, time: Time) -> Node:
        """The node with its leaves as they were before, or as they are now.

        Leaves are made anew for each node that reads them, so that it can be given rows of its own.
        """
        done: dict[int, Node] = {}

        def visit(node: Node) -> Node:
            if isinstance(node, Leaf):
                return self._leaf_at(node, time)
            if id(node) not in done:
                done[id(node)] = map_children(node, visit)
            return done[id(node)]

        return visit(node)

    def _leaf_at(self, leaf: Leaf, time: Time) -> Node:
        if self.changed.get(leaf.ref, time) == time:
            return replace(leaf)
        # From before to now rows of weight 1 come and others go; from now to before it is the other way round.
        came, went = (1, -1) if time == "now" else (-1, 1)
        left = SetOperation("except", leaf_again(leaf), _weighing(leaf, went), leaf_again(leaf).output)
        return UnionAll((left, _weighing(leaf, came)), leaf.output)


def leaf_again(leaf: Leaf) -> Leaf:
    """The same leaf under fresh column ids."""
    return replace(leaf, scanned=tuple(Column.fresh(c.name, c.type) for c in leaf.scanned))


def _weighing(leaf: Leaf, weight: int) -> Node:
    """The rows of a leaf's change that have this weight, under fresh ids."""
    changed, column = change_of(leaf_again(leaf))
    chosen = Filter(changed, Call(BOOLEAN, "=", (column, Literal(BIGINT, weight))))
    return Project(chosen, tuple((Column.fresh(c.name, c.type), c) for c in changed.scanned[:-1]))


def weighed(rows: Node, node: Node, weight: Column | int) -> Project:
    """Rows of a node's columns as a branch of its change: the weight comes last."""
    value = weight if isinstance(weight, Column) else Literal(BIGINT, weight)
    outs = tuple((Column.fresh(c.name, c.type), c) for c in node.output)
    return Project(rows, (*outs, (Column.fresh(WEIGHT, BIGINT), value)))


def together(node: Node, branches: Collection[Node]) -> Delta | None:
    """The change of a node from branches that :func:`weighed` made."""
    if not branches:
        return None
    weight = Column.fresh(WEIGHT, BIGINT)
    return Delta(UnionAll(tuple(branches), (*node.output, weight)), weight)
