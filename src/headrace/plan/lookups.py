"""Which rows of large relations a plan can use, where it joins them with few rows: those of some keys.

A plan that begins with few rows - a change, some constants - and joins them step by step with large relations needs of
each only the rows that meet what it has so far. :func:`looked_up` finds these steps. Each gives one leaf: what it is
looked up by, and the plan of the keys, over what was looked up before. Whoever runs the plan does the steps in order,
hands the rows that each finds to the leaf that stands for it, and runs the rest over those.

The rows that are handed over may be more than the plan needs: its own conditions are asked of them again. So a key may
be a part of what is compared, and an index may tell keys apart by their hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.plan.delta.joins import Cluster, equality
from headrace.plan.exprs import Call, Column, Expr, columns, conjuncts
from headrace.plan.nodes import (
    Aggregate,
    Filter,
    Join,
    Leaf,
    Node,
    Project,
    Repeat,
    SetOperation,
    UnionAll,
    Values,
    Window,
    leaves,
    map_children,
    walk_plan,
)
from headrace.plan.refs import GivenRef


@dataclass(frozen=True, eq=False)
class LeafLookup:
    """One leaf whose rows are looked up."""

    leaf: Leaf
    given: GivenRef
    """What the rows are handed over as."""
    fields: tuple[str, ...]
    """What it is looked up by."""
    keys: Node
    """The values of these fields to look for: some may be there twice."""


Findable = Callable[[Leaf, Collection[str]], Sequence[str] | None]
"""By which of these fields rows of a leaf can be found; None if it is better scanned."""


def looked_up(root: Node, is_few: Callable[[Leaf], bool], findable: Findable) -> tuple[Node, list[LeafLookup]]:
    """The plan with leaves that stand for rows that are looked up, and what is looked up, in order.

    ``is_few`` says of a leaf that it has few rows however large relations are. Leaves that nothing few leads to stay.
    """
    found: list[LeafLookup] = []
    names: dict[str, int] = {}

    def few(leaf: Leaf) -> bool:
        return is_few(leaf) or any(lookup.given == leaf.ref for lookup in found)

    while True:
        step = _next(root, few, findable) or _next(root, few, findable, apart=True)
        if step is None:
            return root, found
        leaf, fields, keys = step
        number = names[leaf.relation] = names.get(leaf.relation, 0) + 1
        ref = GivenRef(f"{leaf.relation} {number}", kind="rows by key of")
        found.append(LeafLookup(leaf, ref, fields, keys))
        root = _with(root, leaf, replace(leaf, ref=ref))


def _with(root: Node, old: Node, new: Node) -> Node:
    done: dict[int, Node] = {id(old): new}

    def visit(node: Node) -> Node:
        if id(node) not in done:
            done[id(node)] = map_children(node, visit)
        return done[id(node)]

    return visit(root)


@dataclass(frozen=True, eq=False)
class _Restriction:
    """Only rows matter whose columns are equal to values of a plan that has few rows."""

    few: Node
    pairs: Mapping[int, Expr]
    """By the id of a column, the expression over ``few`` it is compared with."""

    def through(self, ids: Mapping[int, int]) -> _Restriction | None:
        """The same of columns below, by the ids of these above."""
        pairs = {ids[column]: value for column, value in self.pairs.items() if column in ids}
        return _Restriction(self.few, pairs) if pairs else None


def _next(
    root: Node, is_few: Callable[[Leaf], bool], findable: Findable, *, apart: bool = False
) -> tuple[Leaf, tuple[str, ...], Node] | None:
    """What to look up next: of one side of a join by what the whole other side has; or ``apart``, of each of the
    relations that inner joins are of by what another has, in whatever order they are joined."""
    few = _few(root, is_few)
    ready = _ready(root, is_few)
    paths: dict[int, list[Sequence[_Restriction]]] = {}
    nodes: dict[int, Leaf] = {}
    for leaf, restrictions in _paths(root, (), few, ready, apart):
        if not is_few(leaf):
            nodes[id(leaf)] = leaf
            paths.setdefault(id(leaf), []).append(restrictions)
    choices: list[tuple[bool, int, Leaf, tuple[str, ...], Node]] = []
    for key, leaf in nodes.items():
        chosen = _chosen(leaf, paths[key], findable)
        if chosen is not None:
            fields, keys = chosen
            choices.append((not set(leaf.key) <= set(fields) or not leaf.key, len(choices), leaf, fields, keys))
    if not choices:
        return None
    _, _, leaf, fields, keys = min(choices, key=lambda c: c[:2])
    return leaf, fields, keys


def _few(root: Node, is_few: Callable[[Leaf], bool]) -> set[int]:
    """The nodes that have few rows because they follow something that has."""
    found: set[int] = set()
    for node in walk_plan(root):
        below = [id(c) in found for c in node.children]
        match node:
            case Leaf():
                is_so = is_few(node)
            case Values():
                is_so = True
            case Join(kind="inner"):
                is_so = any(below)
            case Join(kind="left" | "semi" | "anti"):
                is_so = below[0]
            case Aggregate():
                is_so = below[0] or not node.keys
            case _:
                is_so = all(below) and bool(below)
        if is_so:
            found.add(id(node))
    return found


def _ready(root: Node, is_few: Callable[[Leaf], bool]) -> set[int]:
    """The nodes that nothing is to be looked up for."""
    found: set[int] = set()
    for node in walk_plan(root):
        if is_few(node) if isinstance(node, Leaf) else all(id(c) in found for c in node.children):
            found.add(id(node))
    return found


def _paths(
    node: Node, above: Sequence[_Restriction], few: set[int], ready: set[int], apart: bool
) -> Iterator[tuple[Leaf, Sequence[_Restriction]]]:
    """Each way to a leaf, with what restricts the rows that matter of it."""
    if isinstance(node, Leaf):
        yield node, above
        return
    for child, ids in zip(node.children, columns_passed(node), strict=True):
        passed = [r for one in above if (r := one.through(ids)) is not None]
        if isinstance(node, Join):
            passed += _joined(node, child, few, ready)
            passed += _met_apart(node, child, few, ready) if apart and node.kind == "inner" else []
        yield from _paths(child, passed, few, ready, apart)


def columns_passed(node: Node) -> Sequence[Mapping[int, int]]:
    """For each input, which of its columns the node's are: rows of other values there do not matter to these rows."""
    own = {c.id: c.id for c in node.output}
    match node:
        case Filter() | Repeat():
            return [own]
        case Project():
            return [{c.id: e.id for c, e in node.exprs if isinstance(e, Column)}]
        case Aggregate():
            return [{c.id: e.id for c, e in node.keys if isinstance(e, Column)}]
        case Window():  # partitions are left out whole
            return [{c.id: c.id for c in node.partition}]
        case UnionAll() | SetOperation():
            return [{c.id: d.id for c, d in zip(node.output, side.output, strict=True)} for side in node.children]
        case Join():
            left, right = ({c.id: c.id for c in side.output} for side in node.children)
            return [left if node.kind != "full" else {}, right if node.kind == "inner" else {}]
        case _:
            return [{} for _ in node.children]


def _joined(node: Join, child: Node, few: set[int], ready: set[int]) -> list[_Restriction]:
    """What a join asks of one side, if the other has few rows."""
    other = node.right if child is node.left else node.left
    sides = {"inner": (True, True), "semi": (True, True), "left": (False, True), "anti": (False, True)}
    if not sides.get(node.kind, (False, False))[child is node.right]:
        return []
    if id(other) not in few or id(other) not in ready or not _leads(other):
        return []
    mine, its = ({c.id for c in side.output} for side in (child, other))
    pairs: dict[int, Expr] = {}
    for part in conjuncts(node.condition):
        if isinstance(part, Call) and part.fn in ("=", "<=>"):
            for column, value in (part.args, part.args[::-1]):
                if isinstance(column, Column) and column.id in mine and {c.id for c in columns(value)} <= its:
                    pairs.setdefault(column.id, value)
    return [_Restriction(other, pairs)] if pairs else []


def _met_apart(node: Join, child: Node, few: set[int], ready: set[int]) -> list[_Restriction]:
    """What equalities of inner joins ask of one side, if one of the relations that are joined has few rows."""
    cluster, mine = Cluster.of(node), {c.id for c in child.output}
    found = []
    for one in cluster.inputs:
        if id(one) in few and id(one) in ready and _leads(one):
            its = {c.id for c in one.output}
            pairs = [pair for part in cluster.conditions if (pair := equality(part, mine - its, its)) is not None]
            named = {column.id: value for column, value in pairs if isinstance(column, Column)}
            found += [_Restriction(one, named)] if named else []
    return found


def _leads(node: Node) -> bool:
    """Whether few rows are few because of what they are, not because a relation is small."""
    return any(isinstance(leaf.ref, GivenRef) for leaf in leaves(node)) or not leaves(node)


def _chosen(
    leaf: Leaf, paths: Sequence[Sequence[_Restriction]], findable: Findable
) -> tuple[tuple[str, ...], Node] | None:
    """What a leaf is looked up by, and the keys: on every way to it something restricts its rows by the same fields."""
    names = {c.id: f for f, c in zip(leaf.fields, leaf.scanned, strict=True)}
    types = {f: c.type for f, c in zip(leaf.fields, leaf.scanned, strict=True)}
    found: list[dict[tuple[str, ...], Node]] = []
    for restrictions in paths:
        here: dict[tuple[str, ...], Node] = {}
        for one in restrictions:
            named = {names[c]: value for c, value in one.pairs.items() if value.type == types[names[c]].plain}
            fields = findable(leaf, named) if named else None
            if fields is not None:
                outs = tuple((Column.fresh(f, named[f].type), named[f]) for f in fields)
                here.setdefault(tuple(fields), Project(one.few, outs))
        found.append(here)
    for fields in sorted(found[0], key=lambda f: (not set(leaf.key) <= set(f) or not leaf.key, -len(f))):
        if all(fields in here for here in found):
            plans = [here[fields] for here in found]
            if len(plans) == 1:
                return fields, plans[0]
            keys = tuple(Column.fresh(c.name, c.type) for c in plans[0].output)
            return fields, UnionAll(tuple(plans), keys)
    return None
