"""Put the stream on the probe side of inner joins (000 §4.2.3, Figure 4.6).

The left input of a join is its probe side. When only the right one reads a
stream, an inner join is turned round, so that the build side is static and can
be computed once. Outer, semi and anti joins cannot be turned: the split checks them.
"""

from headrace.plan.nodes import Join, Node, Project, rewrite_plan, streams_in


def stream_to_probe(root: Node) -> Node:
    """Swap inner joins whose right input alone reads a stream; the output columns keep their order."""

    def change(node: Node) -> Node:
        if isinstance(node, Join) and node.kind == "inner" and streams_in(node.right) and not streams_in(node.left):
            swapped = Join("inner", node.right, node.left, node.condition)
            return Project(swapped, tuple((c, c) for c in node.output))
        return node

    return rewrite_plan(root, change)
