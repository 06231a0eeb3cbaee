"""What a plan computes, as text that any other plan of the same has: known by it, they are one piece of work.

Ids of columns are numbered anew, in the order they come by.

>>> from headrace.plan.nodes import Filter, Leaf, Project
>>> from headrace.plan.exprs import Call, Literal
>>> from headrace.plan.refs import TableRef
>>> from headrace.types import BOOLEAN, INT, Field
>>> def over(least: int):
...     t = Leaf.of(TableRef("t", 7), (Field("a", INT),))
...     return Filter(t, Call(BOOLEAN, ">", (t.output[0], Literal(INT, least))))
>>> shape(over(1)) == shape(over(1)), shape(over(1)) == shape(over(2))
(True, False)
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from headrace.plan.exprs import Column
from headrace.plan.nodes import Node


def shape(plan: Node | tuple[object, ...]) -> str:
    """The text two plans have in common if they compute the same, in the same way, from the same leaves.

    A tuple may have a plan and what else is to be the same."""
    ids: dict[int, int] = {}
    nodes: dict[int, int] = {}

    def told(value: Any) -> Any:
        if isinstance(value, Column):
            return "column", ids.setdefault(value.id, len(ids)), value.name, repr(value.type)
        if isinstance(value, Node) and id(value) in nodes:
            return "again", nodes[id(value)]
        if isinstance(value, Node):
            nodes[id(value)] = len(nodes)
        if is_dataclass(value):
            return type(value).__name__, *(told(getattr(value, field.name)) for field in fields(value))
        return tuple(map(told, value)) if isinstance(value, tuple) else repr(value)

    return repr(told(plan))
