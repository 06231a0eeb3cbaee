"""Join the tables below a stream's grouping so that each insert probes few, small build sides.

A FROM list comes as a left-deep tree in the order it was written, which may hold products
of tables that only the stream connects. Here the inner joins around one stream are taken
apart and put together again (000 §3.2.4: a stream counts as the largest input):

* tables are first joined with each other wherever one side is met by its primary key. The
  result has no more rows than the other side, and as it reads no stream it is computed once;
* then the stream probes these build sides, those an equality connects before any other.

An OR over several tables also tells something about each of them; that much is tested where
the table is read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from headrace.plan.exprs import Call, Column, Expr, Literal, all_of, any_of, columns, conjuncts
from headrace.plan.nodes import (
    ALWAYS,
    Filter,
    Join,
    Leaf,
    Node,
    Project,
    leaves,
    map_children,
    reads_ungrouped,
    streams_in,
    walk_plan,
)
from headrace.plan.rules.factor_disjunctions import disjuncts


def order_joins(root: Node) -> Node:
    """The plan with the inner joins around each ungrouped stream put in a good order."""
    readers = Counter(id(c) for n in walk_plan(root) for c in n.children)
    done: dict[int, Node] = {}

    def visit(node: Node) -> Node:
        if id(node) not in done:
            done[id(node)] = ordered(node) if _open(node) and reads_ungrouped(node) else over(node)
        return done[id(node)]

    def over(node: Node) -> Node:
        return map_children(node, visit)

    def ordered(node: Node) -> Node:
        leaves, parts = flatten(node)
        leaves = [visit(leaf) for leaf in leaves]
        streams = [leaf for leaf in leaves if reads_ungrouped(leaf)]
        if len(streams) != 1 or len(leaves) < 3 or any(streams_in(x) for x in leaves if x is not streams[0]):
            return over(node)
        cluster = _Cluster(parts)
        leaves, stream = cluster.restricted(leaves, streams[0])
        joined = cluster.probed(stream, cluster.built([leaf for leaf in leaves if leaf is not stream]))
        return Project(joined, tuple((c, c) for c in node.output))

    def flatten(node: Node) -> tuple[list[Node], list[Expr]]:
        """The inputs of a tree of inner joins, and all its conditions."""
        assert isinstance(node, Join)
        leaves: list[Node] = []
        parts: list[Expr] = []
        for side in node.children:
            if isinstance(side, Filter) and readers[id(side)] == 1:
                parts += conjuncts(side.condition) if inside(side.child) else []
                side = side.child if inside(side.child) else side
            below = flatten(side) if inside(side) else ([side], [])
            leaves, parts = [*leaves, *below[0]], [*parts, *below[1]]
        return leaves, [*parts, *conjuncts(node.condition)]

    def inside(node: Node) -> bool:
        """A node that is read twice stays one, so it is an input, whatever it is."""
        return _open(node) and readers[id(node)] == 1

    return visit(root)


def _open(node: Node) -> bool:
    """Whether a node is a join that may be taken apart."""
    return isinstance(node, Join) and node.kind == "inner" and not _kept_together(node)


def _kept_together(node: Join) -> bool:
    """Tables without keys, joined by an equality before the stream: nothing better is known than what was written."""
    if streams_in(node) or any(leaf.key for leaf in leaves(node)):
        return False
    return any(isinstance(p, Call) and p.fn == "=" for p in conjuncts(node.condition))


class _Cluster:
    """The conditions of one tree of inner joins, each given to the first join that can test it."""

    def __init__(self, parts: list[Expr]) -> None:
        self.parts = parts

    def restricted(self, leaves: list[Node], stream: Node) -> tuple[list[Node], Node]:
        """The inputs, each filtered by what a disjunction over several of them says of it alone."""
        found: list[Node] = []
        for leaf in leaves:
            mine = _ids(leaf)
            said = [s for p in self.parts for s in _said_of(p, mine)]
            new = Filter(leaf, all_of(said)) if said else leaf
            stream = new if leaf is stream else stream
            found.append(new)
        return found, stream

    def built(self, tables: list[Node]) -> list[Node]:
        """The tables, joined with each other where a primary key says that makes nothing larger."""
        groups = [_Group(t, [t]) for t in tables]
        merged = True
        while merged:
            merged = False
            for small in groups:
                home = next((g for g in groups if g is not small and self._by_key(small, g)), None)
                if home is not None:
                    home.plan, home.leaves = self._joined(home.plan, small.plan), [*home.leaves, *small.leaves]
                    groups.remove(small)
                    merged = True
                    break
        return [g.plan for g in groups]

    def probed(self, stream: Node, sides: list[Node]) -> Node:
        """The stream joined with each build side."""
        node, left = stream, list(sides)
        while left:
            side = next((s for s in left if self._equated(node, s)), None) or next(
                (s for s in left if self._between(node, s)), left[0]
            )
            node = self._joined(node, side)
            left.remove(side)
        return Filter(node, all_of(self.parts)) if self.parts else node

    def _joined(self, left: Node, right: Node) -> Node:
        both = _ids(left) | _ids(right)
        mine = [p for p in self.parts if columns(p) and {c.id for c in columns(p)} <= both]
        self.parts = [p for p in self.parts if p not in mine]
        return Join("inner", left, right, all_of(mine) if mine else ALWAYS)

    def _between(self, a: Node, b: Node) -> list[Expr]:
        """The conditions that join these two."""
        one, other = _ids(a), _ids(b)
        found = []
        for part in self.parts:
            used = {c.id for c in columns(part)}
            if used <= one | other and used & one and used & other:
                found.append(part)
        return found

    def _equated(self, a: Node, b: Node) -> list[Column]:
        """The columns of ``b`` that equal something of ``a``."""
        mine = _ids(b)
        return [
            side
            for part in self._between(a, b)
            if isinstance(part, Call) and part.fn == "="
            for side, elsewhere in (part.args, part.args[::-1])
            if isinstance(side, Column) and side.id in mine and not _used(elsewhere) & mine
        ]

    def _by_key(self, small: _Group, home: _Group) -> bool:
        """Whether the rows of ``home`` each meet at most one of ``small``."""
        met = {c.id for c in self._equated(home.plan, small.plan)}
        key = _key(small.leaves[0])
        return bool(key) and key <= met


@dataclass
class _Group:
    """Tables joined into one build side; the first leaf's primary key is the key of all."""

    plan: Node
    leaves: list[Node]


def _key(node: Node) -> set[int]:
    """The columns of a table's primary key, where all of them come through."""
    if isinstance(node, Filter):
        return _key(node.child)
    if isinstance(node, Project):
        outer = {e.id: c.id for c, e in node.exprs if isinstance(e, Column)}
        inner = _key(node.child)
        return {outer[i] for i in inner} if inner <= outer.keys() else set()
    if isinstance(node, Leaf):
        by_name = dict(zip(node.fields, node.scanned, strict=True))
        return {by_name[k].id for k in node.key} if all(k in by_name for k in node.key) else set()
    return set()


def _said_of(part: Expr, mine: set[int]) -> list[Expr]:
    """What a disjunction over several relations implies for the one with these columns."""
    branches = [conjuncts(b) for b in disjuncts(part)]
    if len(branches) < 2 or _used(part) <= mine:
        return []
    about = [[p for p in b if _used(p) and _used(p) <= mine and _simple(p)] for b in branches]
    return [any_of([all_of(a) for a in about])] if all(about) else []


def _simple(part: Expr) -> bool:
    """A comparison with constants: it cannot fail, so it may be tested early."""
    if isinstance(part, Call) and part.fn in ("and", "or"):
        return all(map(_simple, part.args))
    tests = ("=", "<", "<=", ">", ">=", "<>", "in", "like")
    return isinstance(part, Call) and part.fn in tests and all(isinstance(a, Column | Literal) for a in part.args)


def _used(expr: Expr) -> set[int]:
    return {c.id for c in columns(expr)}


def _ids(node: Node) -> set[int]:
    return {c.id for c in node.output}
