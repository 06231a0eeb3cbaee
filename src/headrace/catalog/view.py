"""Views: named queries, kept if they read a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from headrace.catalog.refreshing import Refreshing
from headrace.catalog.relation import Note, Relation, kept_changes, kind
from headrace.types import Schema

FROZEN, ARRIVAL = TABLES_SEEN = ("frozen", "arrival")
"""As when the view was made, or as of each row's own commit."""


@kind
@dataclass(frozen=True, slots=True)
class View(Relation):
    """A named query. ``continuous`` when it reads a stream: then it owns state.

    ``types`` remembers what Spark's analyzer said of expressions Headrace does not
    know, so that reopening a database does not need Spark.
    """

    kind: ClassVar[str] = "view"

    text: str
    continuous: bool
    reads: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    materialized: bool = False
    """Whether what is kept follows tables: then ``continuous`` is true, too."""
    tables: str = FROZEN
    """Which state of a table below its groupings rows of a stream see: one of :data:`TABLES_SEEN`."""
    refreshing: Refreshing = field(default_factory=Refreshing)
    """How it is kept up to date, if it is materialized."""
    keep_changes: int | None = field(default=None, kw_only=True)
    """For how many microseconds a materialized one keeps what it was."""

    @property
    def called(self) -> str:
        """What people call it."""
        return "materialized view" if self.materialized else "continuous view" if self.continuous else "view"

    @property
    def is_kept(self) -> bool:
        return self.continuous

    @property
    def expansion(self) -> str | None:
        return None if self.continuous else self.text

    def notes(self, kept: Sequence[Note]) -> list[Note]:
        return [
            ("# kind", self.called, ""),
            ("# reads", ", ".join(self.reads), ""),
            *([("# refreshing", str(self.refreshing), "")] if self.materialized else []),
            *kept,
            *kept_changes(self.keep_changes),
            ("# text", self.text.strip(), ""),
        ]

    def body(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "continuous": self.continuous,
            "reads": list(self.reads),
            "types": dict(self.types),
            **({"materialized": True} if self.materialized else {}),
            **({"tables": self.tables} if self.tables != FROZEN else {}),
            **({"refreshing": found} if (found := self.refreshing.body()) else {}),
            **({"keep_changes": self.keep_changes} if self.keep_changes is not None else {}),
        }

    @classmethod
    def of_body(cls, name: str, columns: Schema, body: Mapping[str, Any]) -> View:
        return View(
            name,
            columns,
            body["text"],
            body["continuous"],
            tuple(body["reads"]),
            dict(body["types"]),
            body.get("materialized", False),
            body.get("tables", FROZEN),
            Refreshing.of_body(body.get("refreshing", {})),
            keep_changes=body.get("keep_changes"),
        )
