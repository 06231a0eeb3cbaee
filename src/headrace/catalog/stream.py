"""Streams: rows come by and are not kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from headrace.catalog.relation import Relation, kind
from headrace.errors import Position
from headrace.types import Schema


@dataclass(frozen=True, slots=True)
class Buffer:
    """How many of a stream's newest rows are at hand for queries, and what happens when those are slow."""

    capacity: int = 262_144
    timeout: int = 2_000_000
    """Microseconds without a row after which a query of the stream answers."""
    overflow: str = "block"
    """What an insert does where a query has not read yet: ``block``, ``overwrite`` or ``error``."""
    patience: int = 60_000_000
    """Microseconds an insert waits for a query that stands still."""


@kind
@dataclass(frozen=True, slots=True)
class Stream(Relation):
    """An append-only relation that keeps no rows: views see what arrives after they are made."""

    kind: ClassVar[str] = "stream"

    buffer: Buffer | None = None
    """What its CREATE says of a buffer; without it, rows are buffered only while a query reads them."""

    @property
    def is_stream(self) -> bool:
        return True

    def refuse_rows(self, position: Position | None) -> None:
        return

    def body(self) -> dict[str, Any]:
        return {} if self.buffer is None else {"buffer": asdict(self.buffer)}

    @classmethod
    def of_body(cls, name: str, columns: Schema, body: Mapping[str, Any]) -> Stream:
        return Stream(name, columns, Buffer(**body["buffer"]) if "buffer" in body else None)
