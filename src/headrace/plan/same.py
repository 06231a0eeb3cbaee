"""Whether two plans are the same: the same nodes over the same columns of the same relations.

Columns have other ids each time a query is bound, so they are told apart by where they first come up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from headrace.plan.exprs import Column
from headrace.plan.nodes import Leaf, Node, SparkSql


def same(one: Node, other: Node) -> bool:
    """
    >>> from headrace.plan.nodes import Filter
    >>> from headrace.plan.exprs import Literal
    >>> from headrace.plan.refs import TableRef
    >>> from headrace.types import BOOLEAN, INT, Field
    >>> def scan(*names): return Leaf.of(TableRef("t", 1), tuple(Field(n, INT) for n in names))
    >>> same(Filter(scan("a"), Literal(BOOLEAN, True)), Filter(scan("a"), Literal(BOOLEAN, True)))
    True
    >>> same(scan("a"), scan("b")), same(scan("a"), scan("a", "b"))
    (False, False)
    """
    return list(_parts(one, {})) == list(_parts(other, {}))


def _parts(value: Any, seen: dict[int, int]) -> Iterator[object]:
    if isinstance(value, Column):
        yield (value.type, value.name, seen.setdefault(value.id, len(seen)))
    elif isinstance(value, SparkSql):
        yield value.text
        for part in value.inputs:
            yield from _parts(_read_by(value.text, part), seen)
        yield from _parts((value.names, value.columns), seen)
    elif isinstance(value, tuple):
        yield len(value)
        for part in value:
            yield from _parts(part, seen)
    elif is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        for field in fields(value):
            yield from _parts(getattr(value, field.name), seen)
    else:
        yield repr(value)


def _read_by(text: str, node: Node) -> Node:
    """A relation below a text of Spark's, with those columns only that the text may mean."""
    words = {word.lower() for word in re.findall(r"\w+|`[^`]+`", text.replace("``", ""))}
    if not isinstance(node, Leaf) or re.search(r"(?<!\w\()\*", text) or "natural" in words:
        return node
    return node.keep({c.id for c in node.scanned if c.name.lower() in words or not c.name.isidentifier()})
