"""Which finished work a suspended query still needs, and where it goes in the plan (000 §6.3.3, §6.3.5).

A plan is a tree of operators. Some are *breakers*: they hold all rows of their input before they pass any on. In
Spark these are the exchanges: a shuffle holds rows in files, a broadcast in a hash table. A *pipeline* is what runs
between breakers; it ends at one, or at the root, and is known by what it leaves behind. Subqueries are inputs of
the operator that uses them.

Everything here is a pure function over this tree; ``spark_plans.py`` makes one of Spark's plan.

>>> scan = Operator("scan", "Scan")
>>> shuffled = Operator("scan", "Exchange", (scan,), Holding.ROWS)
>>> root = Operator("sum", "Aggregate", (shuffled,))
>>> dependencies(root) == {None: {shuffled.pipeline}, shuffled.pipeline: set()}
True
>>> state_of({shuffled.pipeline}, dependencies(root)) == {shuffled.pipeline}
True
>>> [place.operator is scan for place in placements(root, {shuffled.pipeline})]
[True]
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class Holding(enum.Enum):
    """How a breaker holds its rows."""

    NONE = "none"
    """It is no breaker: rows pass."""
    ROWS = "rows"
    """Every row as it came (000's scan-optimized operators): they can stand for the input wherever it is read."""
    INDEX = "index"
    """In an index for a join (index-optimized): rows no join can find are gone, so they stand for the input of such
    an index alone."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What a pipeline leaves at its breaker. Two breakers that hold the same rows in the same way are one pipeline."""

    identity: str
    holding: Holding
    index: str = ""
    """The keys of the index, for :attr:`Holding.INDEX`."""


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """A node of a plan. Operators of equal ``identity`` give the same rows in the same columns.

    A breaker changes no row, so it has the identity of its only input; so have operators that merely order rows. A
    breaker without input is state that was put into the plan before.
    """

    identity: str
    name: str
    inputs: tuple[Operator, ...] = ()
    holding: Holding = Holding.NONE
    index: str = ""
    transparent: bool = False
    """It passes the very rows of its input on, perhaps in another order: rows are replaced below it, never it."""
    prunes: bool = False
    """Its input is only asked which keys there are (dynamic partition pruning)."""
    node: Any = None
    """The engine's own node."""
    order: tuple[str, ...] = ()
    """The sorts its rows went through, the last one first, since an operator that has them in its identity."""

    @property
    def is_breaker(self) -> bool:
        return self.holding is not Holding.NONE

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that ends here, of a breaker."""
        return Pipeline(self.identity, self.holding, self.index)

    def walk(self) -> Iterator[Operator]:
        """This operator and all below, parents first."""
        yield self
        for each in self.inputs:
            yield from each.walk()


@dataclass(frozen=True, slots=True)
class Placement:
    """An operator whose rows come from state: ``pipeline`` has left them."""

    operator: Operator
    pipeline: Pipeline


def dependencies(root: Operator) -> dict[Pipeline | None, set[Pipeline]]:
    """For each pipeline, those whose rows it reads itself (Definition 5). The one that gives the answer is None.

    A breaker right above another holds the same rows in the same way: the two end one pipeline, which reads what is
    below both.
    """
    found: dict[Pipeline | None, set[Pipeline]] = {None: set()}

    def visit(operator: Operator, reader: Pipeline | None) -> None:
        if operator.is_breaker and operator.pipeline != reader:
            found[reader].add(operator.pipeline)
            reader = operator.pipeline
            found.setdefault(reader, set())
        for each in operator.inputs:
            visit(each, reader)

    visit(root, None)
    return found


def in_order(depends: Mapping[Pipeline | None, Collection[Pipeline]]) -> list[Pipeline]:
    """The pipelines as they become ready: first those that read none, then those that read only these, and so on.

    >>> a, b, c = (Pipeline(name, Holding.ROWS) for name in "abc")
    >>> in_order({None: {c}, c: {a, b}, a: {b}, b: set()}) == [b, a, c]
    True
    """
    found: dict[Pipeline, None] = {}
    left = [pipeline for pipeline in depends if pipeline is not None]
    while left:
        ready = [pipeline for pipeline in left if found.keys() >= set(depends[pipeline])]
        found |= dict.fromkeys(ready or left)
        left = [pipeline for pipeline in left if pipeline not in found]
    return list(found)


def state_of(finished: Collection[Pipeline], depends: Mapping[Pipeline | None, Collection[Pipeline]]) -> set[Pipeline]:
    """The finished pipelines that an unfinished one still reads (Algorithm 6.5).

    Printed, the algorithm's text omits that the dependent must be *unfinished*; its code has it. A breaker of Spark has
    one input, so that no state can be taken with an input unfinished (the erratum about set operations).
    """
    return {
        read
        for reader, inputs in depends.items()
        if reader is None or reader not in finished
        for read in inputs
        if read in finished
    }


def worth_moving(
    state: Collection[Pipeline],
    finished: Collection[Pipeline],
    depends: Mapping[Pipeline | None, Collection[Pipeline]],
    move: Callable[[Pipeline], float],
    again: Callable[[Pipeline], float],
) -> set[Pipeline]:
    """What to move so that ``state`` is there with least work: a state itself, or those it can be computed from again.

    004 finds that large states are not worth moving; which they are depends on what made them. ``move`` is what writing
    and reading a pipeline's rows costs, ``again`` what it cost to run it.

    >>> table, joined = Pipeline("table", Holding.ROWS), Pipeline("joined", Holding.ROWS)
    >>> depends = {None: {joined}, joined: {table}, table: set()}
    >>> costs = {table: 9.0, joined: 2.0}.__getitem__
    >>> worth_moving({joined}, {joined, table}, depends, costs, lambda _: 5.0) == {joined}
    True
    >>> worth_moving({table}, {table}, depends, costs, lambda _: 5.0)
    set()
    """
    known: dict[Pipeline, tuple[float, frozenset[Pipeline]]] = {}

    def least(pipeline: Pipeline) -> tuple[float, frozenset[Pipeline]]:
        if pipeline not in known:
            whole = move(pipeline)
            known[pipeline] = whole, frozenset({pipeline})  # it may read its own rows, of another breaker
            inputs = [least(read) for read in depends[pipeline] if read in finished and read != pipeline]
            anew = again(pipeline) + sum(cost for cost, _ in inputs)
            kept = frozenset({pipeline}) if whole <= anew else frozenset().union(*(kept for _, kept in inputs))
            known[pipeline] = min(whole, anew), kept
        return known[pipeline]

    return {kept for pipeline in state for kept in least(pipeline)[1]}


def placements(root: Operator, state: Collection[Pipeline]) -> list[Placement]:
    """Where state replaces work, topmost first (Algorithm 6.6): a place below another is no place.

    Rows go in below the breaker, for the target may shuffle them into other partitions or index them itself. The
    plan may read one relation in many places: all of them are replaced. Each pipeline that has a place is to be
    extracted, once; printed, the algorithm keeps a list, which extracts what is read twice twice.
    """
    found: list[Placement] = []

    def note(place: Placement) -> Operator:
        found.append(place)
        return place.operator

    modified(root, state, note, lambda operator, _: operator)
    return found


def modified(
    root: Operator,
    state: Collection[Pipeline],
    scan: Callable[[Placement], Operator],
    remake: Callable[[Operator, tuple[Operator, ...]], Operator],
) -> Operator:
    """The plan that reads ``state`` at every place. ``remake`` gives an operator new inputs; the rest stays as is."""
    rows = {p.identity: p for p in state if p.holding is Holding.ROWS}
    indexed = {(p.identity, p.index): p for p in state if p.holding is Holding.INDEX}
    keys = {p.identity: p for p in indexed.values()}

    def visit(operator: Operator, index: str | None, pruning: bool) -> Operator:
        """``index``: only this index reads the rows. ``pruning``: they are only asked for their keys."""
        passes = operator.transparent or (operator.is_breaker and bool(operator.inputs))
        if not passes:
            pipeline = rows.get(operator.identity)
            if pipeline is None and index is not None:
                pipeline = indexed.get((operator.identity, index))
            if pipeline is None and pruning:
                pipeline = keys.get(operator.identity)
            if pipeline is not None:
                return scan(Placement(operator, pipeline))
            index, pruning = None, False
        if operator.holding is Holding.INDEX:
            index = operator.index
        inputs = tuple(visit(each, index, pruning or operator.prunes) for each in operator.inputs)
        if all(new is old for new, old in zip(inputs, operator.inputs, strict=True)):
            return operator
        return remake(operator, inputs)

    return visit(root, None, False)


def extracted(places: Collection[Placement]) -> list[Pipeline]:
    """The pipelines to extract for these places: each once, in the order of their first place."""
    return list(dict.fromkeys(place.pipeline for place in places))
