"""Group a stream that a semi or anti join only asks for existence.

``FROM orders WHERE EXISTS (SELECT * FROM lineitem WHERE l_orderkey = o_orderkey)`` reads
the stream on the stored side. All the join needs of it is which values there are of
the columns it compares, so those are grouped: the view keeps each distinct combination
once, instead of being refused.
"""

from headrace.plan.exprs import Column, Expr, Literal, columns, substitute
from headrace.plan.nodes import Aggregate, Join, Node, reads_ungrouped, rewrite_plan
from headrace.types import INT


def group_existence(root: Node) -> Node:
    """Put DISTINCT under the stored side of semi and anti joins where that reads an ungrouped stream."""

    def change(node: Node) -> Node:
        if not isinstance(node, Join) or node.kind not in ("semi", "anti"):
            return node
        if not reads_ungrouped(node.right) or reads_ungrouped(node.left):
            return node
        mine = {c.id for c in node.right.output}
        compared = [c for c in columns(node.condition) if c.id in mine]
        keys: list[tuple[Column, Expr]] = [(Column.fresh(c.name, c.type), c) for c in compared]
        kept = keys or [(Column.fresh("one", INT), Literal(INT, 1))]
        condition = substitute(node.condition, {c.id: key for (key, _), c in zip(keys, compared, strict=True)})
        return Join(node.kind, node.left, Aggregate(node.right, tuple(kept), ()), condition)

    return rewrite_plan(root, change)
