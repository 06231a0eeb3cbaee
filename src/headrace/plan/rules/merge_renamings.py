"""Remove projections that only rename, by reading their input's columns directly.

The binder gives every reference to a relation fresh columns; most of these
renamings carry nothing. One over a shared node stays when both its readers
meet again in a join, where the columns of the two must differ.
"""

from headrace.plan.exprs import Column, substitute
from headrace.plan.nodes import Node, Project, rewrite_plan


def merge_renamings(root: Node) -> Node:
    """Project(Project(x)) becomes one projection when the inner one only renames."""

    def change(node: Node) -> Node:
        if isinstance(node, Project) and isinstance(node.child, Project):
            inner = node.child
            if all(isinstance(e, Column) for _, e in inner.exprs):
                by_id = {c.id: e for c, e in inner.exprs}
                return Project(inner.child, tuple((c, substitute(e, by_id)) for c, e in node.exprs))
        return node

    return rewrite_plan(root, change)
