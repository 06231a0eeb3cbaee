"""Move filter conditions towards the scans they are about.

``FROM a, b WHERE a.x = b.y AND a.z > 1`` arrives as a filter over a product;
afterwards the equality is the join's condition and the rest stands on ``a``.
That is what lets the split see a static build side, and an insert drop rows early.

A condition is not moved into a node that something else reads too: that would
make two nodes, and two states, of one. Nor past an expression only Spark knows,
which might not be deterministic.
"""

from collections import Counter
from dataclasses import replace

from headrace.plan.exprs import Expr, SparkExpr, all_of, columns, conjuncts, substitute, walk
from headrace.plan.nodes import Aggregate, Filter, Join, Node, Project, Repeat, UnionAll, Window, walk_plan


def push_down_filters(root: Node) -> Node:
    readers = Counter(id(c) for n in walk_plan(root) for c in n.children)
    done: dict[int, Node] = {}

    def visit(node: Node) -> Node:
        """The node rewritten, with nothing to push into it."""
        if id(node) not in done:
            done[id(node)] = push(node, [])
        return done[id(node)]

    def into(node: Node, parts: list[Expr]) -> Node:
        """``parts`` applied to a child, inside it if nobody else reads it."""
        if not parts:
            return visit(node)
        if readers[id(node)] > 1:
            return Filter(visit(node), all_of(parts))
        return push(node, parts)

    def push(node: Node, parts: list[Expr]) -> Node:
        if isinstance(node, Filter):
            own = conjuncts(node.condition)
            if any(_opaque(p) for p in own):
                return _filter(Filter(into(node.child, []), node.condition), parts)
            return into(node.child, own + parts)
        if isinstance(node, Project) and not any(_opaque(e) for _, e in node.exprs):
            by_id = {c.id: e for c, e in node.exprs}
            return Project(into(node.child, [substitute(p, by_id) for p in parts]), node.exprs)
        if isinstance(node, Join):
            return push_join(node, parts)
        if isinstance(node, Aggregate) and node.keys:
            keys = {c.id: e for c, e in node.keys}
            below = [p for p in parts if columns(p) and all(c.id in keys for c in columns(p))]
            above = [p for p in parts if p not in below]
            child = into(node.child, [substitute(p, keys) for p in below])
            return _filter(Aggregate(child, node.keys, node.aggs), above)
        if isinstance(node, Window):
            # What is the same for all rows of a partition leaves it whole, or out.
            same = {c.id for c in node.partition}
            below = [p for p in parts if columns(p) and {c.id for c in columns(p)} <= same]
            above = [p for p in parts if p not in below]
            return _filter(replace(node, child=into(node.child, below)), above)
        if isinstance(node, Repeat):
            return Repeat(into(node.child, parts), node.times)
        if isinstance(node, UnionAll):
            branches = []
            for branch in node.inputs:
                by_id = dict(zip((c.id for c in node.columns), branch.output, strict=True))
                branches.append(into(branch, [substitute(p, by_id) for p in parts]))
            return UnionAll(tuple(branches), node.columns)
        return _filter(node.with_children(tuple(visit(c) for c in node.children)), parts)

    def push_join(node: Join, parts: list[Expr]) -> Node:
        left_ids = {c.id for c in node.left.output}
        right_ids = {c.id for c in node.right.output}
        own = conjuncts(node.condition)
        pool = own + parts if node.kind == "inner" else parts
        left: list[Expr] = []
        right: list[Expr] = []
        rest: list[Expr] = []
        for part in pool:
            used = {c.id for c in columns(part)}
            if node.kind != "full" and used and used <= left_ids:
                left.append(part)
            elif node.kind == "inner" and used and used <= right_ids:
                right.append(part)
            else:
                rest.append(part)
        condition = all_of(rest) if node.kind == "inner" else node.condition
        joined = Join(node.kind, into(node.left, left), into(node.right, right), condition)
        return joined if node.kind == "inner" else _filter(joined, rest)

    return visit(root)


def _filter(node: Node, parts: list[Expr]) -> Node:
    return Filter(node, all_of(parts)) if parts else node


def _opaque(expr: Expr) -> bool:
    return any(isinstance(e, SparkExpr) for e in walk(expr))
