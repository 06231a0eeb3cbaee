"""Tables: durable rows, the database's own or in files that somebody else writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.catalog.relation import Note, Relation, kind
from headrace.errors import CatalogError, Position
from headrace.types import BIGINT, STRING, Field, Schema

FILE, ROW = "__file", "__row"
PLACE = (Field(FILE, STRING), Field(ROW, BIGINT))
"""The columns that say where a row of a table is, for whoever is to change it: nobody else sees them."""


WEIGHT, EPOCH = "__weight", "__epoch"
"""How often a row of a change counts, and since when a row is there."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """Files somebody else writes: their format, where they are, and how they are to be read."""

    format: str
    location: str
    """An absolute path, glob or directory."""
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        options = ", ".join(f"{name} {value!r}" for name, value in self.options)
        return f"{self.format}{' with ' if options else ''}{options}"


@kind
@dataclass(frozen=True, slots=True)
class Table(Relation):
    """A durable relation, optionally with a primary key; its rows are its own, or lie in ``files``."""

    kind: ClassVar[str] = "table"

    primary_key: tuple[str, ...] = ()
    files: FileSource | None = None

    @property
    def is_table(self) -> bool:
        return True

    @property
    def reserved(self) -> Collection[str]:
        return () if self.files is not None else (FILE, ROW, WEIGHT, EPOCH)

    def refuse_rows(self, position: Position | None) -> None:
        if self.files is not None:
            raise CatalogError(
                "CANNOT_INSERT_INTO_FILES",
                f"{self.name} lies in the files of {self.files.location}, which Headrace only reads",
                position=position,
                hint="write into the files, or keep rows of your own: CREATE TABLE … AS SELECT",
            )

    def notes(self, kept: Sequence[Note]) -> list[Note]:
        found: list[Note] = [("# kind", self.kind, ""), *kept]
        if self.primary_key:
            found.append(("# primary key", ", ".join(self.primary_key), ""))
        if self.files is not None:
            found.append(("# files", self.files.location, f"{self.files}, read at each query"))
        return found

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"primary_key": list(self.primary_key)}
        if (source := self.files) is not None:
            body["files"] = {"format": source.format, "location": source.location, "options": dict(source.options)}
        return body

    @classmethod
    def of_body(cls, name: str, columns: Schema, body: Mapping[str, Any]) -> Table:
        files = body.get("files")
        source = FileSource(files["format"], files["location"], tuple(files["options"].items())) if files else None
        return Table(name, columns, tuple(body["primary_key"]), source)
