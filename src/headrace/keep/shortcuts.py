"""The shortcuts of a read, in one list. What none of them answers goes the general way: bring the relation's answer up
to a snapshot, and run the query over it.

The text of a query, before anything is parsed:

1. *known text*: the plan of a query asked lately is kept (:meth:`Texts.known`).
2. *known shape*: a text that differs from a planned lookup in its one constant is not planned (:meth:`Texts.like`).

A lookup, a query that names the whole key of a group (``lookup.py``), or a filter of one kept relation:

3. *glance*: what is in memory of the newest epoch answers a lookup without a snapshot (:func:`glanced`).
4. *lookup*: the state finds the group, in memory or where it lies (:func:`found`).
5. *range*: of the first columns of the key, or of the first rows in its order, the state finds the groups
   (:func:`ranged`).
6. *filter first*: while the kept answer is stale, the query runs over the state, its filter first (:func:`filtered`).

On the general way:

7. *kept answer*: nothing it rests on has changed (``answers.py:Answers.rows``).
8. *no query*: picking and naming columns of rows that are here (``table/query.py``).
9. *lies merged*: a state filled by one bulk load is read where it lies (``answers.py:Answers.lies_merged``).
10. *held tables*: rows of a table joined above the grouping stay in memory while it does not change
   (``table_rows.py``).

What each is worth ``python -m bench.shortcuts`` measures, which switches them off one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from headrace.keep.answers import Answers, Others
from headrace.keep.deferral import level
from headrace.keep.inlining import inlined
from headrace.keep.kept import Kept
from headrace.keep.lookup import Lookup, lookup_of, shape_of
from headrace.keep.ordered import KeyRange
from headrace.keep.spans import span_of
from headrace.plan.nodes import Node
from headrace.plan.refs import StateRef
from headrace.runtime import Runtime
from headrace.store import NotInMemory, Snapshot
from headrace.table import query

_TEXTS = 256
"""How many query texts keep their plan."""


@dataclass(frozen=True)
class ByState:
    """A query of one kept relation as a plan over its state."""

    kept: Kept
    over: query.Prepared
    lookup: Lookup | None
    """What the plan is, if it asks for one group by its key."""
    span: tuple[str, KeyRange] | None
    """Else the state of whose groups it asks for a range of keys, if it does."""

    @staticmethod
    def of(runtime: Runtime, plan: Node, kept: Others) -> ByState | None:
        """The query so, if it can be had."""
        found = inlined(plan, kept)
        if found is None:
            return None
        one, over = found
        states = {state.name: state.folds for state in one.states if state.folds is not None}
        return ByState(one, query.Prepared(runtime, over), lookup_of(over, states), span_of(over, states))


class Worded(Protocol):
    """A query whose text is remembered."""

    text: str


A = TypeVar("A", bound=Worded)


class Texts(Generic[A]):
    """Queries by their texts, and lookups by the shapes of theirs."""

    def __init__(self) -> None:
        self._known: dict[str, A] = {}
        self._shapes: dict[str, A] = {}

    def known(self, text: str) -> A | None:
        """The query of this text, if it was asked lately."""
        return self._known.get(text)

    def remember(self, text: str, asked: A) -> A:
        _put(self._known, text, asked)
        return asked

    def is_lookup(self, asked: A, lookup: Lookup) -> None:
        """The query was planned, and is a lookup: others of its shape need not be."""
        shape = shape_of(asked.text)
        if shape is not None and lookup.asks_for(shape[1]):
            _put(self._shapes, shape[0], asked)

    def like(self, text: str) -> tuple[A, int | str] | None:
        """A planned lookup of the text's shape, and the text's constant."""
        shape = shape_of(text) if self._shapes else None
        asked = self._shapes.get(shape[0]) if shape is not None else None
        return None if shape is None or asked is None else (asked, shape[1])


def _put(kept: dict[str, A], text: str, asked: A) -> None:
    if len(kept) >= _TEXTS:
        kept.clear()
    kept[text] = asked


def glanced(runtime: Runtime, answers: Answers, version: int, kept: Kept, lookup: Lookup) -> pa.Table | None:
    """The answer of a lookup, if it takes no snapshot; it was planned under a version of the catalog."""
    with suppress(query.Again, NotInMemory), runtime.store.glance() as glance:
        if runtime.writer_version == version and not level(glance, [kept], alone=True).behind:
            return answers.glance(glance, kept, lookup)
    return None


@dataclass(frozen=True)
class ReadOfState:
    """A read of one kept relation, in a snapshot, that may go by its state."""

    runtime: Runtime
    answers: Answers
    snapshot: Snapshot
    by_state: ByState
    others: Others
    patient: bool


def found(read: ReadOfState) -> pa.Table | None:
    """The group that a lookup asks for."""
    lookup = read.by_state.lookup
    if lookup is None or read.snapshot.is_draft:
        return None
    return read.answers.find(read.snapshot, read.by_state.kept, lookup, patient=read.patient)


def ranged(read: ReadOfState) -> pa.Table | None:
    """The query over the groups of the range of keys that it asks for."""
    if read.by_state.span is None:
        return None
    (name, span), kept = read.by_state.span, read.by_state.kept
    rows = read.answers.find_span(read.snapshot, kept, kept.by_name[name], span, read.patient)
    if rows is None:
        return None
    return query.run(read.runtime, read.snapshot, read.by_state.over, query.Leaves({StateRef(name): rows}, {}))


def filtered(read: ReadOfState) -> pa.Table | None:
    """The query over the state, while the kept answer is stale."""
    kept = read.by_state.kept
    if read.answers.is_fresh(read.snapshot, kept, read.others):
        return None
    with read.answers.reading(read.snapshot, kept):
        leaves = read.answers.states(read.snapshot, kept, patient=read.patient)
        return query.run(read.runtime, read.snapshot, read.by_state.over, leaves)


BY_STATE: tuple[Callable[[ReadOfState], pa.Table | None], ...] = (found, ranged, filtered)
"""What is tried in a snapshot, in this order."""
