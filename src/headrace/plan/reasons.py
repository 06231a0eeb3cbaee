"""Why a change of a kept relation costs more than the change: reasons with names.

The plan of a change looks up what few rows lead to (``plan/lookups.py``). Whatever it reads whole instead, it does so
because of an operator that no equality leads through, and that operator is the reason. So EXPLAIN can say what to write
instead, and INCREMENTAL STRICT refuses by the same names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.plan.delta.joins import equality, key_of
from headrace.plan.exprs import Call, Column, Expr, columns, conjuncts, walk
from headrace.plan.lookups import columns_passed
from headrace.plan.nodes import (
    Aggregate,
    Filter,
    Join,
    Leaf,
    Node,
    Project,
    Sort,
    SparkSql,
    Window,
    walk_plan,
)


@dataclass(frozen=True)
class Reason:
    """Why something is not incremental."""

    name: str
    """As a condition: ``NON_EQUI_JOIN``."""
    what: str
    """What of the query it is."""
    hint: str
    """What to write instead."""

    def __str__(self) -> str:
        return f"{self.name}: {self.what}; {self.hint}"


def only_spark(why: str) -> Reason:
    return Reason("ONLY_SPARK", f"{why} runs by Spark, over all rows", "write it with what Headrace knows")


_LIMIT = Reason("LIMIT_BELOW_TOP", "a LIMIT inside the query takes other rows at any change", "limit the whole query")
_CROSS = Reason("NON_EQUI_JOIN", "a join without an equality meets all rows", "join by an equality of columns")
_CORRELATION = Reason(
    "NON_EQUI_CORRELATION", "a subquery without an equality meets all rows", "correlate it by an equality of columns"
)
_NOT_IN = Reason(
    "NULL_AWARE_ANTI_JOIN", "a NULL that NOT IN compares decides about all rows", "write NOT EXISTS with an equality"
)
_COMPUTED = Reason(
    "COMPUTED_KEY", "rows are not found by what is computed of them", "join and group by columns of tables themselves"
)
_OUTER = Reason(
    "OUTER_JOIN",
    "NULLs stand for rows of its other side, which nothing above finds",
    "join by INNER where NULLs go anyway",
)
_NO_KEY = Reason("NO_KEY", "all rows count for one", "group it by a column")
_WINDOW = Reason(
    "WINDOW_WITHOUT_PARTITION_BY",
    "a window of all rows is computed anew at any change",
    "write PARTITION BY in OVER (…)",
)
_OTHER_WINDOW = Reason(
    "WINDOW_BY_OTHER_KEYS",
    "rows below a window are found by its PARTITION BY alone",
    "give windows on top of each other, and joins above them, a column in common",
)
_ORDER = Reason(
    "NOT_DETERMINISTIC_ORDER", "rows may tie for the LIMIT", "order by columns that no two rows share, as a key is"
)


def reason_of(root: Node, leaf: Leaf) -> Reason:
    """Why a plan of a change reads this leaf of it whole."""
    for path in _paths(root, leaf):
        for above, below in zip(path[-2::-1], path[:0:-1], strict=True):
            if (found := _blocks(above, below)) is not None:
                return found
        if (found := _lost(path)) is not None:
            return found
        if any(_pads(above, below) for above, below in pairwise(path)):
            return _OUTER
    return _NO_KEY


def _pads(node: Node, below: Node) -> bool:
    """Whether NULLs may stand for the rows of an input."""
    return isinstance(node, Join) and (node.kind == "full" or (node.kind == "left" and below is node.right))


def _lost(path: Sequence[Node]) -> Reason | None:
    """Why what a join looks for by a column does not lead to a leaf below it: on the way the column is made."""
    for number, node in enumerate(path[:-1]):
        if not isinstance(node, Join):
            continue
        wanted = {c.id for part in conjuncts(node.condition) for c in columns(part)}
        for above, below in zip(path[number + 1 :], path[number + 2 :], strict=False):
            wanted &= {c.id for c in above.output}
            ids = dict(zip(map(id, above.children), columns_passed(above), strict=True))[id(below)]
            left = {ids[c] for c in wanted if c in ids}
            if wanted and not left:
                if _pads(above, below):
                    return _OUTER
                return _OTHER_WINDOW if isinstance(above, Window) else _COMPUTED
            wanted = left
    return None


def _paths(node: Node, leaf: Leaf) -> Iterator[list[Node]]:
    """The ways from a node to a leaf."""
    if node is leaf:
        yield [node]
    for child in node.children:
        for path in _paths(child, leaf):
            yield [node, *path]


def _blocks(node: Node, below: Node) -> Reason | None:
    """Why nothing is looked up in one input of a node, if it is the node's doing."""
    match node:
        case SparkSql():
            return only_spark(node.reason)
        case Sort() if node.limit is not None:
            return _LIMIT
        case Window() if not node.partition:
            return _WINDOW
        case Aggregate() if not node.keys:
            return _NO_KEY
        case Aggregate() if not any(isinstance(e, Column) for _, e in node.keys):
            return _COMPUTED
        case Join():
            return _unmet(node, below)
    return None


def _unmet(node: Join, below: Node) -> Reason | None:
    other = node.right if below is node.left else node.left
    mine, its = ({c.id for c in side.output} for side in (below, other))
    parts = conjuncts(node.condition)
    pairs = [pair for part in parts if (pair := equality(part, mine, its)) is not None]
    if any(isinstance(column, Column) for column, _ in pairs):
        return None
    if pairs:
        return _COMPUTED
    if node.kind in ("semi", "anti"):
        return _NOT_IN if any(map(_minds_null, parts)) else _CORRELATION
    return _CROSS


def _minds_null(part: Expr) -> bool:
    """Whether a condition is what NOT IN makes of an equality."""
    return any(isinstance(e, Call) and e.fn == "isnull" for e in walk(part))


def of_order(root: Node) -> list[Reason]:
    """Whether some LIMIT leaves it open which rows it takes."""
    sorts = (node for node in walk_plan(root) if isinstance(node, Sort) and node.limit is not None)
    return [_ORDER] if any(not _is_total(sort) for sort in sorts) else []


def _is_total(sort: Sort) -> bool:
    """Whether no two rows tie: they differ in what is sorted by, or there is one."""
    keys = _unique(sort.child)
    return keys is not None and keys <= {k.expr.id for k in sort.keys if isinstance(k.expr, Column)}


def _unique(node: Node) -> set[int] | None:
    """Columns that no two rows of a plan share, if they are known."""
    match node:
        case Leaf():
            return key_of(node) or None
        case Aggregate():
            return {c.id for c, _ in node.keys}
        case Filter() | Sort() | Window():
            return _unique(node.child)
        case Project():
            passed = {e.id: c.id for c, e in node.exprs if isinstance(e, Column)}
            below = _unique(node.child)
            return {passed[k] for k in below} if below is not None and below <= passed.keys() else None
        case Join(kind="semi" | "anti"):
            return _unique(node.left)
        case Join(kind="inner" | "left"):
            sides = _unique(node.left), _unique(node.right)
            return sides[0] | sides[1] if sides[0] is not None and sides[1] is not None else None
    return None
