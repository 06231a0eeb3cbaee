"""Take what every branch of an OR demands out of it: ``(a AND b) OR (a AND c)`` is ``a AND (b OR c)``.

A join condition hidden in each branch would otherwise leave a product of two relations.
"""

from headrace.plan.exprs import Call, Expr, all_of, any_of, conjuncts
from headrace.plan.nodes import Filter, Join, Node, rewrite_plan


def factor_disjunctions(root: Node) -> Node:
    """The plan with the common conjuncts of disjunctions in filters and inner joins taken out."""

    def change(node: Node) -> Node:
        if isinstance(node, Filter):
            factored = factor(node.condition)
            return node if factored == node.condition else Filter(node.child, factored)
        if isinstance(node, Join) and node.kind == "inner":
            factored = factor(node.condition)
            return node if factored == node.condition else Join(node.kind, node.left, node.right, factored)
        return node

    return rewrite_plan(root, change)


def factor(condition: Expr) -> Expr:
    """
    >>> from headrace.plan.exprs import Column
    >>> from headrace.types import BOOLEAN
    >>> from headrace.plan.render import render_expr
    >>> a, b, c = (Column(BOOLEAN, i, n) for i, n in enumerate("abc"))
    >>> both = lambda x, y: Call(BOOLEAN, "and", (x, y))
    >>> render_expr(factor(Call(BOOLEAN, "or", (both(a, b), both(a, c)))))
    '(a and (b or c))'
    """
    return all_of([part for whole in conjuncts(condition) for part in _factored(whole)])


def disjuncts(expr: Expr) -> list[Expr]:
    """The parts of an OR, flattened."""
    if isinstance(expr, Call) and expr.fn == "or":
        return [part for arg in expr.args for part in disjuncts(arg)]
    return [expr]


def _factored(part: Expr) -> list[Expr]:
    branches = [conjuncts(branch) for branch in disjuncts(part)]
    if len(branches) < 2:
        return [part]
    common = [p for p in branches[0] if all(p in branch for branch in branches[1:])]
    if not common:
        return [part]
    rest = [[p for p in branch if p not in common] for branch in branches]
    # A branch that is nothing but the common part makes the rest of the others idle.
    return common if not all(rest) else [*common, any_of([all_of(r) for r in rest])]
