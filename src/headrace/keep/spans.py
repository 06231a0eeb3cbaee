"""A read of a range of groups: those whose first key columns are equal to constants, and the next one in a range.

``WHERE k1 = 'FRANCE' AND k2 BETWEEN 1995 AND 1997``, ``WHERE k1 = 'FRANCE'``, ``ORDER BY k1 LIMIT 10``. The state finds
them in the order of its keys (``ordered.py``), and the query runs over those alone, with all its conditions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.keep.ordered import KeyRange, Part, part_of
from headrace.plan.exprs import Call, Column, Expr, Literal, conjuncts, substitute
from headrace.plan.nodes import Filter, Leaf, Node, Project, Sort, Unary
from headrace.plan.pipelines import State
from headrace.plan.refs import StateRef

_MIRRORED = {"=": "=", "<=>": "<=>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass
class _Wanted:
    """What a plan asks for of a state's key columns, by their places among them."""

    equal: dict[int, Part] = field(default_factory=dict)
    low: dict[int, list[Part]] = field(default_factory=dict)
    high: dict[int, list[Part]] = field(default_factory=dict)
    present: set[int] = field(default_factory=set)
    """Those that are compared, and so not NULL."""
    is_all: bool = True
    """Whether it is all that the plan asks for."""

    def add(self, condition: Expr, places: Mapping[int, int]) -> None:
        """One that must hold, too."""
        match condition:
            case Call(fn="isnull", args=(Column() as column,)) if column.id in places:
                self._compare("<=>", places[column.id], part_of(column.type, None))
            case Call(fn="or", args=(Call(fn="isnull", args=(Column() as column,)), Call(fn="<=" | "<") as other)):
                # up to a constant from the first one on, which is NULL
                found = _compared(other, places)
                if found is None or found[1] != places.get(column.id):
                    self.is_all = False
                else:
                    self._high(found[0], found[1], found[2])
            case _:
                found = _compared(condition, places)
                if found is None:
                    self.is_all = False
                else:
                    self._compare(*found)

    def _compare(self, fn: str, place: int, value: Part) -> None:
        if fn in ("=", "<=>"):
            self.is_all &= self.equal.setdefault(place, value) == value
        elif fn in (">", ">="):
            self.low.setdefault(place, []).append((*value[:2], 1 if fn == ">" else 0))
        else:
            self.present.add(place)
            self._high(fn, place, value)

    def _high(self, fn: str, place: int, value: Part) -> None:
        self.high.setdefault(place, []).append((*value[:2], -1 if fn == "<" else 0))


def span_of(plan: Node, states: Mapping[str, State]) -> tuple[str, KeyRange] | None:
    """The state and the range of its groups that a plan over it can use, if it is not any of them."""
    conditions: list[Expr] = []
    ordered: list[tuple[Expr, bool, bool]] = []
    limit: int | None = None
    node = plan
    while isinstance(node, Unary):
        if isinstance(node, Filter):
            conditions += conjuncts(node.condition)
        elif isinstance(node, Project):
            below: dict[int, Expr] = {c.id: e for c, e in node.exprs}
            conditions = [substitute(e, below) for e in conditions]
            ordered = [(substitute(e, below), down, first) for e, down, first in ordered]
        elif not isinstance(node, Sort):
            conditions, ordered, limit = [], [], None
        elif node.limit is not None or node.offset:
            # What is asked of the rows it leaves says nothing of others, and so does what comes above it.
            conditions = []
            limit = None if node.limit is None else node.limit + node.offset
            ordered = [(k.expr, k.descending, k.nulls_first) for k in node.keys]
        node = node.child
    if not isinstance(node, Leaf) or not isinstance(node.ref, StateRef):
        return None
    state = states[node.relation]
    names = {key.name: place for place, key in enumerate(state.keys)}
    places = {c.id: names[f] for f, c in zip(node.fields, node.scanned, strict=True) if f in names}
    wanted = _Wanted()
    for condition in conditions:
        wanted.add(condition, places)
    found = _span(wanted, len(state.keys), _order(ordered, places), limit)
    return (state.name, found) if found is not None else None


def _order(ordered: Sequence[tuple[Expr, bool, bool]], places: Mapping[int, int]) -> tuple[list[int], bool] | None:
    """The key columns that rows are sorted by, and whether backwards; None if they are sorted otherwise."""
    backwards = bool(ordered) and ordered[0][1]
    found: list[int] = []
    for expr, down, first in ordered:
        if not isinstance(expr, Column) or expr.id not in places or down != backwards or first == down:
            return None
        found.append(places[expr.id])
    return found, backwards


def _span(wanted: _Wanted, count: int, order: tuple[list[int], bool] | None, limit: int | None) -> KeyRange | None:
    equal = sorted(wanted.equal)
    ranged = [*dict.fromkeys((*wanted.low, *wanted.high))]
    sorted_by = [place for place in (order[0] if order is not None else []) if place not in equal]
    first = [place for place in ranged if place not in equal]
    then = [*sorted_by[:1], *first] if not first or sorted_by[:1] == first[:1] else first
    by = tuple(dict.fromkeys((*equal, *(then[:1]), *sorted_by, *range(count))))
    low = high = tuple(wanted.equal[place] for place in equal)
    used = set(equal)
    if then and then[0] in ranged:
        place = then[0]
        used.add(place)
        if place in wanted.low:
            low = (*low, max(wanted.low[place]))
        elif place in wanted.present:
            low = (*low, (True,))
        if place in wanted.high:
            high = (*high, min(wanted.high[place]))
    is_sorted = order is not None and list(by[len(equal) :][: len(sorted_by)]) == sorted_by
    stops = limit if limit is not None and is_sorted and wanted.is_all and set(ranged) <= used else None
    if not (low or high or stops is not None):
        return None
    return KeyRange(by, low, high, stops, order is not None and order[1])


def _compared(condition: Expr, places: Mapping[int, int]) -> tuple[str, int, Part] | None:
    """How a key column is compared with a constant."""
    if not isinstance(condition, Call) or condition.fn not in _MIRRORED:
        return None
    fn, (one, other) = condition.fn, condition.args
    if isinstance(one, Literal):
        fn, one, other = _MIRRORED[fn], other, one
    if not isinstance(one, Column) or one.id not in places or not isinstance(other, Literal):
        return None
    if other.value is None and fn != "<=>":
        return None
    try:
        return fn, places[one.id], part_of(one.type, other.value)
    except (pa.ArrowException, OverflowError, ValueError):
        return None
