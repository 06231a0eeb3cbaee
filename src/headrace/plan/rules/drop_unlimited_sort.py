"""Drop ORDER BY without LIMIT below the root (000 §4.2.3).

A relation has no order, so only the outermost ORDER BY of a query can be seen.
The root's own sort stays: a view drops it when it is made, a query shows it.
"""

from headrace.plan.nodes import Node, Project, Sort, rewrite_plan


def drop_unlimited_sort(root: Node) -> Node:
    """
    >>> from headrace.plan.nodes import ONE_ROW
    >>> kept = Sort(Project(Sort(ONE_ROW, ()), ()), ())
    >>> type(drop_unlimited_sort(kept).child.child).__name__
    'Values'
    """
    kept = _root_sort(root)

    def change(node: Node) -> Node:
        return node.child if isinstance(node, Sort) and unlimited(node) and node not in kept else node

    return rewrite_plan(root, change)


def unlimited(node: Sort) -> bool:
    return node.limit is None and not node.offset


def drop_root_sort(root: Node) -> Node:
    """The plan without the ORDER BY that only an outermost reader could see."""
    sorts = _root_sort(root)
    return rewrite_plan(root, lambda n: n.child if isinstance(n, Sort) and n in sorts and unlimited(n) else n)


def _root_sort(root: Node) -> list[Node]:
    """The sort a reader of the root sees: at the root, or under projections alone."""
    while isinstance(root, Project):
        root = root.child
    return [root] if isinstance(root, Sort) else []
