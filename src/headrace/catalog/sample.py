"""Samples: a fixed number of a stream's rows, each as likely as any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

from headrace.catalog.relation import Note, Relation, kind
from headrace.errors import CatalogError, NotYetSupported, Position, ViewRefused
from headrace.types import Schema


@kind
@dataclass(frozen=True, slots=True)
class Sample(Relation):
    """A uniform sample of the rows of a stream, of a fixed size, in all or in each group of ``keys``."""

    kind: ClassVar[str] = "sample"

    of: str
    size: int
    keys: tuple[str, ...]
    seed: int | None
    text: str
    types: Mapping[str, str] = field(default_factory=dict)
    """What Spark's analyzer said, as of a view."""

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.of,)

    @property
    def is_kept(self) -> bool:
        return True

    def refuse_rows(self, position: Position | None) -> NoReturn:
        raise CatalogError(
            "CANNOT_INSERT_INTO_SAMPLE",
            f"{self.name} is a sample",
            position=position,
            hint=f"insert into the stream it is drawn from: {self.of}",
        )

    def refuse_in_view(self, position: Position | None) -> None:
        raise ViewRefused(
            "SAMPLE_IN_CONTINUOUS_VIEW",
            f"{self.name} is a sample, whose rows are replaced as others come; a continuous view cannot "
            "take back what it has added up of them",
            position=position,
            hint="join it where the view is queried; a view of tables and samples alone is computed then",
        )

    def refuse_beside_stream(self) -> None:
        """Such a query runs while rows come: what it reads of a sample would be of no one time."""
        raise NotYetSupported(
            "a sample in a query of a stream itself",
            hint="keep a sample of the stream, CREATE SAMPLE s OF stream SIZE n, and query that",
        )

    def notes(self, kept: Sequence[Note]) -> list[Note]:
        return [("# kind", "sample", ""), ("# reads", self.of, ""), *kept, ("# text", self.text, "")]

    def body(self) -> dict[str, Any]:
        return {
            "of": self.of,
            "size": self.size,
            "keys": list(self.keys),
            "seed": self.seed,
            "text": self.text,
            "types": dict(self.types),
        }

    @classmethod
    def of_body(cls, name: str, columns: Schema, body: Mapping[str, Any]) -> Sample:
        keys, types = tuple(body["keys"]), dict(body["types"])
        return Sample(name, columns, body["of"], body["size"], keys, body["seed"], body["text"], types)
