"""Typed scalar expressions: immutable, every node carries its Spark type.

The binder (``sql/``) builds them; engines print them as their own SQL. What an
engine may rely on:

* **All coercion is explicit.** Where Spark would insert an implicit cast, the
  tree has a :class:`Cast`. Arithmetic on integers and floats has both sides and
  the result of one type; comparisons have both sides of one type; branches of
  ``case``/``coalesce``/``if`` have the result's type. Only decimal arithmetic
  mixes precisions: there the node's type is Spark's result type.
* **ANSI always.** A cast that cannot be, an overflow, a division by zero is an error.
* **Functions by Spark's own name**, lower case; operators by their symbol (``+``,
  ``=``, ``<=>``, ``and``, ``like``). The claimed ones stand in ``sql/functions.py``.
* Whatever the binder does not know becomes a :class:`SparkExpr`: Spark's analyzer
  gave it its type, and only Spark SQL can run it.

>>> from headrace.types import INT
>>> total = Call(INT, "+", (Column(INT, 1, "a"), Literal(INT, 1)))
>>> [c.name for c in columns(total)], total.type.sql
(['a'], 'int')
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from typing import Literal as Choice

from headrace.types import BOOLEAN, Type

_ids = itertools.count(1)


def fresh_id() -> int:
    """A column id no other column of this process has."""
    return next(_ids)


@dataclass(frozen=True, slots=True)
class Expr:
    """Any typed scalar expression."""

    type: Type

    def __post_init__(self) -> None:
        """Only a column itself knows how long its text may be: whatever is made of it is any text."""
        if self.type.is_limited:
            object.__setattr__(self, "type", self.type.plain)

    @property
    def children(self) -> tuple[Expr, ...]:
        return ()

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        """The same node over other children."""
        assert not children
        return self


@dataclass(frozen=True, slots=True)
class Column(Expr):
    """A column of some relation below, known by id; the name is for people only."""

    id: int
    name: str

    def __post_init__(self) -> None:
        """A column keeps the lengths it was declared with, as in Spark."""

    @staticmethod
    def fresh(name: str, type: Type) -> Column:
        return Column(type, fresh_id(), name)

    def renamed(self, name: str) -> Column:
        return replace(self, name=name)


@dataclass(frozen=True, slots=True)
class Literal(Expr):
    """A constant. ``None`` is NULL of ``type``.

    Values are Python's: bool, int, Decimal, float, str, bytes, date, datetime
    (aware, UTC, for ``timestamp``; naive for ``timestamp_ntz``). Intervals are an
    int: months for ``interval_month``, microseconds for ``interval_time``.

    Equal ones are the same value, not values that compare equal: 0.0 is not -0.0, and NaN is NaN.

    >>> from headrace.types import DOUBLE
    >>> nan = float("nan")
    >>> Literal(DOUBLE, 0.0) == Literal(DOUBLE, -0.0), Literal(DOUBLE, nan) == Literal(DOUBLE, nan)
    (False, True)
    """

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self.type == other.type and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash((self.type, repr(self.value)))


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """A function or operator of the claimed list, arguments already coerced."""

    fn: str
    args: tuple[Expr, ...]

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return replace(self, args=children)


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """An ANSI cast to ``type``."""

    arg: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return replace(self, arg=children[0])


@dataclass(frozen=True, slots=True)
class Case(Expr):
    """``CASE WHEN c THEN v ... ELSE d END``: conditions are boolean, values have ``type``."""

    branches: tuple[tuple[Expr, Expr], ...]
    default: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (*itertools.chain.from_iterable(self.branches), self.default)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        pairs = tuple(zip(children[:-1:2], children[1::2], strict=True))
        return replace(self, branches=pairs, default=children[-1])


@dataclass(frozen=True, slots=True)
class SparkExpr(Expr):
    """An expression only Spark knows: SQL text with ``{0}``, ``{1}``… where ``args`` go."""

    template: str
    args: tuple[Expr, ...]

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return replace(self, args=children)


@dataclass(frozen=True, slots=True)
class Agg(Expr):
    """An aggregate call; stands only in an Aggregate node's list.

    ``count(*)`` is ``count`` with no arguments. ``template`` is set for aggregates
    only Spark knows, as in :class:`SparkExpr`. ``filter`` is FILTER (WHERE …).
    """

    fn: str
    args: tuple[Expr, ...]
    distinct: bool = False
    filter: Expr | None = None
    template: str | None = None

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args if self.filter is None else (*self.args, self.filter)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        if self.filter is None:
            return replace(self, args=children)
        return replace(self, args=children[:-1], filter=children[-1])


@dataclass(frozen=True, slots=True)
class SortKey:
    """What rows are ordered by."""

    expr: Expr
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class WindowFrame:
    """Which rows of its partition a window function sees at a row: so many before (negative) or after that row.

    ``None`` is the first row of the partition, or the last. ``rows`` counts rows; ``range`` goes by the distance of
    the one key they are ordered by, and the rows that tie with a row are as near as itself.
    """

    unit: Choice["rows", "range"]
    start: int | None
    end: int | None

    @property
    def is_whole(self) -> bool:
        return self.start is None and self.end is None

    @property
    def has_distance(self) -> bool:
        """Whether keys are added to: all other bounds are rows that tie with one, the first, or the last."""
        return self.unit == "range" and (bool(self.start) or bool(self.end))


@dataclass(frozen=True, slots=True)
class WindowCall(Expr):
    """A window function; stands only in a Window node's list, or in an :class:`Over`.

    Ranks and offsets have no frame.
    """

    fn: str
    args: tuple[Expr, ...]
    filter: Expr | None = None
    ignore_nulls: bool = False
    frame: WindowFrame | None = None

    @property
    def is_of_all(self) -> bool:
        """Whether it is the same for all rows of a partition, in whatever order."""
        return self.frame is not None and self.frame.is_whole and not self.fn.endswith("_value")

    @property
    def is_by_rows(self) -> bool:
        """Whether it may tell rows apart that tie in the order."""
        if self.frame is None:
            return self.fn in ("row_number", "ntile", "lag", "lead")
        return self.frame.unit == "rows" and not self.is_of_all

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args if self.filter is None else (*self.args, self.filter)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        if self.filter is None:
            return replace(self, args=children)
        return replace(self, args=children[:-1], filter=children[-1])


@dataclass(frozen=True, slots=True)
class Over(Expr):
    """A window function where it was written, with its window: a plan has a Window node and a column instead."""

    call: WindowCall
    partition: tuple[Expr, ...]
    order: tuple[SortKey, ...]

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.call, *self.partition, *(k.expr for k in self.order))

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        call, *rest = children
        assert isinstance(call, WindowCall)
        keys = rest[len(self.partition) :]
        order = tuple(replace(k, expr=e) for k, e in zip(self.order, keys, strict=True))
        return replace(self, call=call, partition=tuple(rest[: len(self.partition)]), order=order)


TRUE = Literal(BOOLEAN, True)


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and everything in it, outermost first."""
    yield expr
    for child in expr.children:
        yield from walk(child)


def columns(expr: Expr) -> list[Column]:
    """The columns an expression reads, each once, in order of first use."""
    return list(dict.fromkeys(e for e in walk(expr) if isinstance(e, Column)))


def rewrite(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """``change`` applied bottom-up to every node."""
    if expr.children:
        children = tuple(rewrite(c, change) for c in expr.children)
        if children != expr.children:
            expr = expr.with_children(children)
    return change(expr)


def substitute(expr: Expr, by_id: Mapping[int, Expr]) -> Expr:
    """The expression with columns replaced by what ``by_id`` has for them."""
    return rewrite(expr, lambda e: by_id.get(e.id, e) if isinstance(e, Column) else e)


def conjuncts(expr: Expr) -> list[Expr]:
    """The parts of an AND, flattened; ``TRUE`` has none."""
    if isinstance(expr, Call) and expr.fn == "and":
        return [part for arg in expr.args for part in conjuncts(arg)]
    return [] if expr == TRUE else [expr]


def all_of(parts: list[Expr]) -> Expr:
    """The conjunction of ``parts``; ``TRUE`` when there are none."""
    found = [part for part in parts if part != TRUE]
    return _in_halves("and", found) if found else TRUE


def any_of(parts: list[Expr]) -> Expr:
    """The disjunction of one or more parts."""
    return _in_halves("or", parts)


def _in_halves(connective: str, parts: list[Expr]) -> Expr:
    """A tree whose halves are as long as each other, as Spark's are: thousands of parts are not deep."""
    if len(parts) == 1:
        return parts[0]
    middle = (len(parts) + 1) // 2
    return Call(BOOLEAN, connective, (_in_halves(connective, parts[:middle]), _in_halves(connective, parts[middle:])))
