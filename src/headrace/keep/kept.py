"""What a kept relation is to its keeper: states, the stages that change them, and how its rows are made of them.

Stages form a graph without cycles. Those at the bottom read rows that come by a stream, before the commit and wherever
the rows are (``engine/stage.py``). Those above read what the commit adds to states, and add to another one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from headrace.catalog import Note, Relation
from headrace.catalog.refreshing import MARK, Refreshing
from headrace.engine.stage import Stage
from headrace.engine.work import Static
from headrace.keep.home import IN_FILE, Home
from headrace.keep.sides import Side
from headrace.keep.standing import Standings
from headrace.plan.exprs import Column
from headrace.plan.nodes import Node
from headrace.plan.pipelines import State
from headrace.plan.refs import KeptRef, TableRef
from headrace.store import Snapshot, Transaction
from headrace.store.reading import Reading

if TYPE_CHECKING:
    from headrace.keep.answers import Evaluation


@dataclass(frozen=True, eq=False)
class KeptState:
    """Rows that merge, stored by the keeper."""

    name: str
    """Its name within the relation."""
    ref: int
    """The store's reference to it."""
    schema: pa.Schema
    merge: Callable[[str], str]
    """Native SQL that merges its rows, read from a source, into as few as there need be."""
    folds: State | None = None
    """Its columns, if its rows can be folded in memory (``resident.py``)."""
    home: Home = IN_FILE
    """Where its rows lie."""


class StageAbove(ABC):
    """What the changes of some states do to another state, in the same commit."""

    reads: tuple[int, ...]
    """The states whose changes it reads, by their references. They may be another relation's that this one reads."""
    state: int
    """The state it changes."""

    @abstractmethod
    def run(self, tx: Transaction, changes: Mapping[int, pa.Table]) -> pa.Table:
        """The rows to add to its state: it runs once in a commit, when all that it reads is as the commit leaves it.

        ``changes`` are the rows that were added, by state; a state without any is left out.
        """


@dataclass(frozen=True, eq=False)
class Renewal:
    """What changes of tables do to a relation's states."""

    rows: Mapping[int, pa.Table]
    """State rows, by state."""
    is_whole: bool
    """Whether they take the place of those that are there, and are not added to them."""
    changed_rows: int | None = None
    estimated_seconds: float | None = None


class Admission(Protocol):
    """What one commit means for a relation that does not take every state row."""

    late: int
    """Rows that came too late."""

    def settle(self, tx: Transaction) -> None:
        """Once the admitted rows were added, in the same commit."""


class Kept(ABC):
    """One kept relation, compiled from its definition."""

    relation: Relation
    states: Sequence[KeptState]
    statics: Mapping[str, Static] = MappingProxyType({})
    """Build sides its stages probe, by their names in its plan."""
    sides: Sequence[Side] = ()
    """Those of them that follow what they are made of."""
    tables: Sequence[TableRef] = ()
    """Tables read at each evaluation: their changes show in the next one."""
    below: Sequence[KeptRef] = ()
    """Kept relations read at each evaluation, at the same epoch as its own states."""

    upper: Node | None = None
    """The plan over its states that gives its rows, if it is one."""
    above: Sequence[StageAbove] = ()
    """Its stages that read changes of states."""
    first: Mapping[int, pa.Table] = MappingProxyType({})
    """State rows it begins with, by state."""
    refreshing: Refreshing = Refreshing()
    """How it is kept up to date with tables it follows."""
    standing: Standings | None = None
    """Where it stands, if it does not always stand at the newest epoch."""
    inherited: Collection[int] = ()
    """States that are there with their rows already, for it takes the place of who has kept them."""
    row_key: Sequence[Column] = ()
    """The columns of its upper plan no two rows share, if there are such."""
    answer: KeptState | None = None
    """The state whose rows are the relation's own, with how often each is there, if they are kept."""

    @property
    def name(self) -> str:
        return self.relation.name

    @property
    def key(self) -> str:
        return self.name.lower()

    @cached_property
    def by_name(self) -> Mapping[str, KeptState]:
        return {state.name: state for state in self.states}

    @abstractmethod
    def stages(self, source: Relation) -> Sequence[Stage]:
        """What rows that come by a stream run, or changes of a table."""

    def follows(self, source: Relation) -> bool:
        """Whether changes of a table show in it without being read at each evaluation."""
        return False

    @property
    def tables_followed(self) -> Collection[int]:
        """The tables whose changes show in it so."""
        return ()

    def lags(self, reading: Reading) -> bool:
        """Whether tables it follows have changed since the epoch it stands at."""
        return False

    @property
    def may_stand_apart(self) -> bool:
        """Whether it may be behind its tables, or have failed."""
        return self.standing is not None and (self.refreshing.is_deferred or self.refreshing.on_error == MARK)

    def changed(self, changes: Mapping[int, pa.Table], *, anew: bool = False) -> Renewal:
        """What changes of tables it follows do to its states; rows of a table, by its number, have weights.

        Called before the commit that makes the changes, in which the rows are added. ``anew``, it is to be computed
        from all that tables will have.
        """
        return Renewal({}, False)

    def renewed(self, snapshot: Snapshot, *, anew: bool = False) -> Renewal:
        """What tables have changed since the epoch it stands at does to its states, as of a snapshot. Raises
        :class:`~headrace.table.query.Again`."""
        raise AssertionError(f"{self.name} never stands behind what it reads")

    @abstractmethod
    def evaluate(self, given: Evaluation) -> pa.Table:
        """Its rows as of a snapshot."""

    def found(self, tx: Transaction) -> None:
        """Make what the store holds for it, its states empty, in the commit that defines it."""
        for state in self.states:
            if state.ref not in self.inherited:
                state.home.found(tx, state)

    def admit(self, tx: Transaction, rows: dict[int, pa.Table]) -> Admission | None:
        """Look at what stages at the bottom left, before it is added: take out what is late, or raise to refuse it."""
        return None

    def merged(self, state: KeptState, rows: pa.Table) -> None:
        """Its state was merged into these rows, in a commit that changed no answer."""
        return

    def notes(self, snapshot: Snapshot, rows: Callable[[], pa.Table]) -> list[Note]:
        """What DESCRIBE says of what is kept; ``rows`` has all its rows."""
        return []
