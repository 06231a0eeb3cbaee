"""Families of kept relations: how one is made of a statement, begun, and reopened.

A family is registered under the kind of its relations. What else it needs is one file in ``catalog/`` for its
definition and one statement in ``sql/``; the keeper does the rest. CONTRIBUTING.md, *Add a kept relation*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.catalog import Relation
from headrace.engine.analyzer import SparkAnalyzer
from headrace.keep.explaining import unexplained
from headrace.keep.kept import Kept
from headrace.store import Snapshot

if TYPE_CHECKING:
    from headrace.keep.founding import Founding
    from headrace.keep.keeper import Keeper


class Family(ABC):
    """One kind of kept relation."""

    relation: ClassVar[type[Relation]]
    """Its definitions."""
    statement: ClassVar[type]
    """The statement that makes one."""

    @abstractmethod
    def defined(self, keeper: Keeper, statement: Any, analyzer: SparkAnalyzer) -> tuple[Relation, Any]:
        """The definition a statement makes, and its plan: None if there is nothing to keep. Nothing is changed."""

    @abstractmethod
    def holds(self, plan: Any) -> Sequence[str]:
        """What the store is to hold for a relation of this plan; its ``owns`` has a reference to each."""

    @abstractmethod
    def compiled(self, keeper: Keeper, relation: Relation, plan: Any) -> Kept:
        """The relation, ready to be founded."""

    @abstractmethod
    def reopened(self, keeper: Keeper, relation: Relation, snapshot: Snapshot) -> Kept:
        """The relation as it is stored, compiled again."""

    @abstractmethod
    def plan_of(self, kept: Any) -> Any:
        """The plan it was compiled from."""

    def explained(self, keeper: Keeper, statement: Any) -> list[str]:
        """What EXPLAIN says of the statement that would make one; nothing is changed."""
        raise unexplained()

    @contextmanager
    def begun(self, keeper: Keeper, relation: Relation, plan: Any) -> Iterator[Kept]:
        """The relation compiled anew; what was written for it goes again if the block raises."""
        yield self.compiled(keeper, relation, plan)

    def inherited(self, keeper: Keeper, old: Relation, plan: Any) -> Mapping[str, int]:
        """What a relation of this plan can take over of one that it takes the place of: references, by what they are
        to it."""
        return {}

    def founding(self, keeper: Keeper, relation: Relation, plan: Any) -> Founding | None:
        """How its first states are computed while its tables go on changing; None if they are to stand still."""
        return None

    def created(self, kept: Any) -> str:
        """What CREATE answers."""
        return f"{kept.relation.kind} {kept.name} created"

    def restarted(self, kept: Any) -> str:
        """What REFRESH … RESTART answers."""
        return f"{kept.name} counts from now"

    def refreshed(self, keeper: Keeper, kept: Any, rows: int) -> str:
        """What REFRESH answers, once it has been read."""
        return f"{kept.name} has {rows:,} rows"


FAMILIES: dict[str, Family] = {}
"""By the kind of their relations."""


def family(made: type[Family]) -> type[Family]:
    """Register a family, as a decorator of its class."""
    FAMILIES[made.relation.kind] = made()
    return made


def family_of(statement: object) -> Family | None:
    """The family whose relations this statement makes, if it makes such."""
    return next((f for f in FAMILIES.values() if isinstance(statement, f.statement)), None)
