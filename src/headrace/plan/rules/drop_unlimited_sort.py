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
    if isinstance(root, Project | Sort):
        # A reader of the root sees the sort at the root, or under projections alone.
        keeping = drop_unlimited_sort if isinstance(root, Project) else _drop_all
        child = keeping(root.child)
        return root if child is root.child else root.with_children((child,))
    return _drop_all(root)


def drop_root_sort(root: Node) -> Node:
    """The plan without the ORDER BY that only an outermost reader could see."""
    if isinstance(root, Sort) and unlimited(root):
        return drop_root_sort(root.child)
    if isinstance(root, Project):
        return root.with_children((drop_root_sort(root.child),))
    return root


def unlimited(node: Sort) -> bool:
    return node.limit is None and not node.offset


def _drop_all(root: Node) -> Node:
    return rewrite_plan(root, lambda n: n.child if isinstance(n, Sort) and unlimited(n) else n)
