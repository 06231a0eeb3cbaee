"""Rounds: which operators of a plan run on rows that are distributed alike (001 §4.3.1).

Rows with one key are in one place. Operators that are keyed alike need no other place: they are one round. A round ends
where the key changes: there rows are sent to where their new key is. Round 0 is where the rows lie. A small side of a
join is sent everywhere instead (Strategy 2 of 001 §4.4), so the other side stays where it is. A grouping adds up what
it can before it sends anything (pre-aggregation).

    orders ──┐ by c_custkey                        by l_orderkey
    customer ┴── join ──────────── lineitem ─ join ── group by l_orderkey, o_orderdate
      round 0        round 1              round 2
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.plan.exprs import Call, Column, conjuncts
from headrace.plan.nodes import Aggregate, Filter, Join, Leaf, Node, Project, SetOperation, Sort, leaves, walk_plan

Placed = tuple[frozenset[int], ...] | None
"""The columns by which rows are in one place, each with those it is equal to; None if by nothing."""


@dataclass
class Round:
    """Operators that are keyed alike."""

    key: tuple[str, ...]
    """The columns that rows are distributed by; none if all are in one place."""
    does: list[str] = field(default_factory=list)
    replicated: list[str] = field(default_factory=list)
    """Relations that are sent everywhere."""

    def __str__(self) -> str:
        by = f"by {', '.join(self.key)}" if self.key else "in one place"
        return f"{by}: {'; '.join(self.does)}"


def rounds(root: Node, is_small: Callable[[Leaf], bool]) -> tuple[list[str], list[Round]]:
    """What a plan sends everywhere before the first of its rounds, and its rounds, in an order they can be run in."""
    found = _Rounds(is_small)
    found.of(root)
    return found.start.replicated, found.rounds


class _Rounds:
    def __init__(self, is_small: Callable[[Leaf], bool]) -> None:
        self._is_small = is_small
        self._done: dict[int, tuple[Placed, Round]] = {}
        self.start = Round(())
        self.rounds: list[Round] = []

    def of(self, node: Node) -> tuple[Placed, Round]:
        """By what a node's rows are placed, and the round that gives them."""
        if id(node) not in self._done:
            self._done[id(node)] = self._of(node)
        return self._done[id(node)]

    def _of(self, node: Node) -> tuple[Placed, Round]:
        match node:
            case Leaf():
                return None, self.start
            case Filter():
                return self.of(node.child)
            case Project():
                placed, at = self.of(node.child)
                return _through(placed, [(c.id, e.id) for c, e in node.exprs if isinstance(e, Column)]), at
            case Join():
                return self._join(node)
            case Aggregate():
                return self._aggregate(node)
            case SetOperation():
                return self._new(node, [c.name for c in node.columns], f"{node.kind} of {_read(node)}", node.columns)
            case Sort() if node.limit is not None:
                return self._new(node, [], f"first {node.limit} rows", ())
        placed, at = None, self.start
        for child in node.children:
            placed, at = self.of(child)
        return placed if len(node.children) == 1 else None, at

    def _aggregate(self, node: Aggregate) -> tuple[Placed, Round]:
        placed, at = self.of(node.child)
        keys = [(c.id, e.id) for c, e in node.keys if isinstance(e, Column)]
        names = [e.name if isinstance(e, Column) else c.name for c, e in node.keys]
        grouped = f"group by {', '.join(names)}" if names else "group all"
        if placed is not None and all(any(e in same for _, e in keys) for same in placed):
            at.does.append(grouped)
            return _through(placed, keys), at
        return self._new(node, names, f"{grouped}, added up before", [c for c, _ in node.keys])

    def _join(self, node: Join) -> tuple[Placed, Round]:
        (left, at), (right, beside) = self.of(node.left), self.of(node.right)
        pairs = _pairs(node)
        if self._is_sent(node.right) and node.kind != "full":
            at.replicated += _names(node.right)
            return self._joined(node, left, at)
        if self._is_sent(node.left) and node.kind == "inner":
            beside.replicated += _names(node.left)
            return self._joined(node, right, beside)
        if not pairs:
            if node.kind == "full":
                return self._new(node, [], f"join {_read(node)}", ())
            at.replicated += _names(node.right)  # nothing is equal: every row may meet every other
            return self._joined(node, left, at)
        if left is not None and right is not None and len(left) == len(right):
            alike = all(any(a.id in x and b.id in y for a, b in pairs) for x, y in zip(left, right, strict=True))
            if alike:
                later = at if self.rounds.index(at) > self.rounds.index(beside) else beside
                return self._joined(node, tuple(x | y for x, y in zip(left, right, strict=True)), later)
        placed, made = self._new(node, [a.name for a, _ in pairs], f"join {_read(node)}", [a for a, _ in pairs])
        if node.kind == "inner" and placed is not None:
            placed = tuple(same | {b.id} for same, (_, b) in zip(placed, pairs, strict=True))
        return (placed if node.kind != "full" else None), made

    def _joined(self, node: Join, placed: Placed, at: Round) -> tuple[Placed, Round]:
        at.does.append(f"join {_read(node)}")
        return placed, at

    def _new(self, node: Node, names: Sequence[str], does: str, key: Sequence[Column]) -> tuple[Placed, Round]:
        for child in node.children:
            self.of(child)
        made = Round(tuple(names), [does])
        self.rounds.append(made)
        return tuple(frozenset({c.id}) for c in key), made

    def _is_sent(self, node: Node) -> bool:
        """Whether a side of a join is small enough to be sent everywhere."""
        whole = (Leaf, Filter, Project)
        return all(isinstance(n, whole) and (not isinstance(n, Leaf) or self._is_small(n)) for n in walk_plan(node))


def _through(placed: Placed, kept: Sequence[tuple[int, int]]) -> Placed:
    """The same by columns above, where those below are kept."""
    if placed is None:
        return None
    found = tuple(frozenset(above for above, below in kept if below in same) for same in placed)
    return found if all(found) else None


def _pairs(node: Join) -> list[tuple[Column, Column]]:
    """The columns of both sides that are to be equal, left ones first."""
    left, right = ({c.id for c in side.output} for side in node.children)
    found = []
    for part in conjuncts(node.condition):
        if isinstance(part, Call) and part.fn in ("=", "<=>"):
            for a, b in (part.args, part.args[::-1]):
                if isinstance(a, Column) and isinstance(b, Column) and a.id in left and b.id in right:
                    found.append((a, b))
                    break
    return found


def _names(node: Node) -> list[str]:
    return list(dict.fromkeys(leaf.relation for leaf in leaves(node)))


def _read(node: Node) -> str:
    return ", ".join(_names(node))
