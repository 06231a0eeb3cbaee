"""References: small values that say what a leaf of a plan reads.

Two leaves whose references are equal read the same rows. A relation of the catalog has a number that no other
relation of its database ever has; a name alone never decides what is meant.

>>> StreamRef("s", 7) == StreamRef("s", 7), StreamRef("t", 8) == TableRef("t", 8)
(True, False)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from headrace.errors import Position
from headrace.plan.exprs import Expr


@dataclass(frozen=True, slots=True)
class Ref:
    """What a leaf reads."""

    name: str
    """What it is called where it is read."""

    kind: ClassVar[str]
    """What people call it, in EXPLAIN."""


@dataclass(frozen=True, slots=True)
class RelationRef(Ref):
    """A relation of the catalog."""

    number: int = 0


@dataclass(frozen=True, slots=True)
class StreamRef(RelationRef):
    """Rows that come by."""

    kind: ClassVar[str] = "stream"


@dataclass(frozen=True, slots=True)
class ChangeRef(StreamRef):
    """The changes of a table: rows that come by with weights (``plan/signed.py``)."""

    kind: ClassVar[str] = "changes of"


@dataclass(frozen=True, slots=True)
class TableRef(RelationRef):
    """A table's rows, as of the epoch the plan is run at."""

    kind: ClassVar[str] = "table"


@dataclass(frozen=True, slots=True)
class VersionRef(RelationRef):
    """A table's rows as they were: at the end of an epoch, or at a moment."""

    version: int | None = None
    moment: Expr | None = None
    """A constant, in microseconds since 1970, found when the plan is run."""
    position: Position | None = field(default=None, compare=False)
    """Where the statement says so."""

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "the table at a moment," if self.version is None else f"version {self.version} of table"


@dataclass(frozen=True, slots=True)
class LogRef(RelationRef):
    """What was kept of a table's changes: rows with the epochs they came or went in."""

    since: int | None = None
    """All after this epoch; None for as far back as is kept."""
    until: int | None = None
    position: Position | None = field(default=None, compare=False)

    kind: ClassVar[str] = "kept changes of"


@dataclass(frozen=True, slots=True)
class KeptRef(RelationRef):
    """The rows of what is kept of a stream, as of the epoch the plan is run at."""

    kind: str = "view"  # type: ignore[misc]  # whatever its catalog calls it


@dataclass(frozen=True, slots=True)
class StateRef(Ref):
    """The merged rows of a state, by its name in the plan it belongs to."""

    kind: ClassVar[str] = "state"


@dataclass(frozen=True, slots=True)
class BuildRef(Ref):
    """A build side that was written once, when the plan's relation was made."""

    kind: ClassVar[str] = "static"


@dataclass(frozen=True, slots=True)
class GivenRef(Ref):
    """Rows that whoever runs the plan hands to it."""

    kind: str = "rows"  # type: ignore[misc]  # why they are given


@dataclass(frozen=True, slots=True)
class SystemRef(Ref):
    """A relation of the schema ``headrace``."""

    state: int | None = None
    """The state whose rows it shows, if it does."""

    kind: ClassVar[str] = "system"
