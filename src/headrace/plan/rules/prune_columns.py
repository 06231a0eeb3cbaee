"""Read and compute only the columns somebody uses.

For a stream this decides which fields of a file are converted at all, and which
columns of a batch reach the native engine.
"""

from dataclasses import replace

from headrace.plan.exprs import Agg, Column, Expr, columns
from headrace.plan.nodes import (
    Aggregate,
    Draw,
    Filter,
    Join,
    Leaf,
    Node,
    Project,
    Repeat,
    Sort,
    UnionAll,
    Window,
    walk_plan,
)


def prune_columns(root: Node) -> Node:
    needed: dict[int, set[int]] = {id(root): {c.id for c in root.output}}
    for node in reversed(list(walk_plan(root))):
        wanted = needed.setdefault(id(node), set())
        for child, ids in zip(node.children, _reads(node, wanted), strict=True):
            needed.setdefault(id(child), set()).update(ids)

    done: dict[int, Node] = {}

    def visit(node: Node) -> Node:
        if id(node) not in done:
            done[id(node)] = _prune(node, needed[id(node)], tuple(visit(c) for c in node.children))
        return done[id(node)]

    return visit(root)


def _ids(*exprs: Expr) -> set[int]:
    return {c.id for e in exprs for c in columns(e)}


def _reads(node: Node, wanted: set[int]) -> list[set[int]]:
    """For each child, the columns this node needs of it when ``wanted`` is needed of the node."""
    if isinstance(node, Project):
        return [_ids(*(e for c, e in node.exprs if c.id in wanted))]
    if isinstance(node, Aggregate):
        return [_ids(*(e for _, e in node.keys), *(a for _, a in _kept_aggs(node, wanted)))]
    if isinstance(node, Draw) and node.seed is None:
        return [wanted]  # a seed chooses rows by all their values
    if isinstance(node, Filter):
        return [wanted | _ids(node.condition)]
    if isinstance(node, Repeat):
        return [wanted | {node.times.id}]
    if isinstance(node, Sort):
        return [wanted | _ids(*(k.expr for k in node.keys))]
    if isinstance(node, Window):
        functions = [f for c, f in node.functions if c.id in wanted]
        keys = (k.expr for k in (*node.order, *node.ties))
        made = {c.id for c, _ in node.functions}
        return [wanted - made | (_ids(*node.partition, *keys, *functions) if functions else set())]
    if isinstance(node, Join):
        both = wanted | _ids(node.condition)
        return [both & _outputs(node.left), both & _outputs(node.right)]
    if isinstance(node, UnionAll):
        kept = [i for i, c in enumerate(node.columns) if c.id in wanted]
        return [{branch.output[i].id for i in kept} for branch in node.inputs]
    return [_outputs(c) for c in node.children]


def _kept_aggs(node: Aggregate, wanted: set[int]) -> tuple[tuple[Column, Agg], ...]:
    kept = tuple((c, a) for c, a in node.aggs if c.id in wanted)
    # A global aggregate gives its one row even when nobody reads its value.
    return kept if kept or node.keys else node.aggs[:1]


def _outputs(node: Node) -> set[int]:
    return {c.id for c in node.output}


def _prune(node: Node, wanted: set[int], children: tuple[Node, ...]) -> Node:
    if isinstance(node, Leaf):
        return node.keep(wanted)
    if isinstance(node, Project):
        return Project(children[0], tuple((c, e) for c, e in node.exprs if c.id in wanted))
    if isinstance(node, Aggregate):
        return Aggregate(children[0], node.keys, _kept_aggs(node, wanted))
    if isinstance(node, Window):
        used = tuple((c, f) for c, f in node.functions if c.id in wanted)
        return replace(node, child=children[0], functions=used) if used else children[0]
    if isinstance(node, UnionAll):
        kept = [(i, c) for i, c in enumerate(node.columns) if c.id in wanted]
        branches = []
        for old, new in zip(node.inputs, children, strict=True):
            ids = [old.output[i] for i, _ in kept]
            branches.append(new if list(new.output) == ids else Project(new, tuple((c, c) for c in ids)))
        return UnionAll(tuple(branches), tuple(c for _, c in kept))
    return node.with_children(children)
