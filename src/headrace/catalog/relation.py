"""What all relations of a catalog have in common, and the kinds there are.

A kind is one file of this folder: a frozen class with its JSON, its DESCRIBE and how it stands to others. Whoever needs
to know something of a relation asks it; nobody asks what kind it is of. A kind that a program brings along is
registered the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

from headrace.base.wording import span_text
from headrace.catalog.defaults import default_of, default_to_json
from headrace.errors import CatalogError, Position, SqlError
from headrace.types import Field, Schema, from_spark

Note = tuple[str, str, str]
"""A line of DESCRIBE: what, its value, and a remark."""
_LONGEST_FILE_NAME = 170
"""Filesystems take 255 bytes; others are added to it."""


@dataclass(frozen=True, slots=True)
class Read:
    """A relation that another one's definition names, as it was when that was made.

    Later it may have another name, other names for its columns, and more of them: the definition still means these.
    """

    name: str
    number: int
    columns: tuple[tuple[str, int], ...]
    """The columns there were: their names then, and their ids."""

    @staticmethod
    def of(relation: Relation) -> Read:
        return Read(relation.name, relation.number, tuple((c.name, c.id) for c in relation.columns))

    def seen(self, relation: Relation) -> Relation:
        """The relation under the names and with the columns of then."""
        now = {c.id: c for c in relation.columns}
        if self.name == relation.name and self.columns == tuple((c.name, c.id) for c in relation.columns):
            return relation
        there = [(name, now[id]) for name, id in self.columns if id in now]  # what nobody reads may be dropped
        columns = tuple(replace(column, name=name) for name, column in there)
        return replace(relation, columns=columns, stored=tuple(column.name for _, column in there))

    def of_another(self, relation: Relation) -> Read:
        """The same names, of a relation that has taken the place of this one."""
        ids = {c.name.lower(): c.id for c in relation.columns}
        columns = tuple((name, ids[name.lower()]) for name, _ in self.columns if name.lower() in ids)
        return Read(self.name, relation.number, columns)


@dataclass(frozen=True, slots=True)
class Relation:
    """A named thing with columns. What it *is*, never what it holds."""

    name: str
    columns: Schema
    number: int = field(default=0, kw_only=True, compare=False)
    """What it is known by: no other relation of its database ever has it, under whatever name."""
    owns: Mapping[str, int] = field(default_factory=dict, kw_only=True, compare=False)
    """References to what the store holds for it, by what each is to it. A table's rows lie under its own number."""
    read: tuple[Read, ...] = field(default=(), kw_only=True, compare=False)
    """What the names in its definition meant when it was made."""
    stored: tuple[str, ...] = field(default=(), kw_only=True, compare=False)
    """Its columns' own names, where they go under others (:meth:`Catalog.as_read_by`)."""
    last_column: int = field(default=0, kw_only=True, compare=False)
    """The highest id that any of its columns ever had."""
    born: str = field(default="", kw_only=True, compare=False)
    """What it was called when it was made, if it was renamed since: files that are named for it go on to be."""

    kind: ClassVar[str]
    """What it is called in SQL: ``DROP SAMPLE``."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The relations it is defined over."""
        return ()

    @property
    def is_kept(self) -> bool:
        """Whether a keeper keeps state for it, fed by what it reads."""
        return False

    @property
    def is_stream(self) -> bool:
        """Whether rows come by it and are not kept."""
        return False

    @property
    def is_table(self) -> bool:
        """Whether the store holds its rows, under its own number."""
        return False

    @property
    def reserved(self) -> Collection[str]:
        """Names that none of its columns may have: those of columns that are added to them."""
        return ()

    @property
    def expansion(self) -> str | None:
        """The statement whose query is read in its place; None if it is read itself."""
        return None

    @property
    def primary_key(self) -> tuple[str, ...]:
        return ()

    @property
    def keep_changes(self) -> int | None:
        """For how many microseconds it is kept what it was, if it is."""
        return None

    def refuse_rows(self, position: Position | None) -> None:
        """An error unless rows can be inserted into it."""
        raise CatalogError(
            f"CANNOT_INSERT_INTO_{self.kind.upper()}",
            f"{self.name} is a {self.kind}",
            position=position,
            hint=f"insert into what it reads: {', '.join(self.reads)}",
        )

    def refuse_in_view(self, position: Position | None) -> None:
        """An error unless a continuous view may read it."""

    def refuse_beside_stream(self) -> None:
        """An error unless a query of a stream may read it, too."""

    def notes(self, kept: Sequence[Note]) -> list[Note]:
        """What DESCRIBE says of it after its columns, with what its keeper has to say."""
        return [("# kind", self.kind, ""), *kept]

    def body(self) -> dict[str, Any]:
        """What its definition says beside its columns, as plain data."""
        return {}

    @classmethod
    def of_body(cls, name: str, columns: Schema, body: Mapping[str, Any]) -> Relation:
        """The relation whose :meth:`body` this is."""
        return cls(name, columns)


def kept_changes(microseconds: int | None) -> list[Note]:
    """What DESCRIBE says of kept changes."""
    if microseconds is None:
        return []
    return [("# keep_changes", span_text(microseconds), "VERSION AS OF, headrace.changes")]


KINDS: dict[str, type[Relation]] = {}
"""The kinds of relations, by what they are called."""
R = TypeVar("R", bound=type[Relation])
R2 = TypeVar("R2", bound=Relation)


def kind(relation: R) -> R:
    """Register a kind, as a decorator of its class."""
    KINDS[relation.kind] = relation
    return relation


def numbered(relation: R2, number: int, reads: Iterable[Relation]) -> R2:
    """The relation as it is defined: under its number, its columns with ids, and what it reads as that is now."""
    columns = tuple(f if f.id else replace(f, id=i) for i, f in enumerate(relation.columns, 1))
    owns = {"rows": number} if relation.is_table else relation.owns
    last = max((c.id for c in columns), default=0)
    read = tuple(map(Read.of, reads))
    return replace(relation, number=number, columns=columns, owns=owns, read=read, last_column=last)


def to_json(relation: Relation) -> dict[str, Any]:
    """A definition as plain data, for the store."""
    return {
        "columns": [
            [f.name, f.type.declared, f.nullable, f.id, *([default_to_json(f.default)] if f.default else [])]
            for f in relation.columns
        ],
        "last_column": relation.last_column,
        **({"born": relation.born} if relation.born else {}),
        "number": relation.number,
        "owns": dict(relation.owns),
        "read": [[r.name, r.number, [list(c) for c in r.columns]] for r in relation.read],
        **relation.body(),
    }


def from_json(name: str, kind: str, body: Mapping[str, Any]) -> Relation:
    """The definition :func:`to_json` wrote."""
    columns = tuple(_column(at, *column) for at, column in enumerate(body["columns"], 1))
    if kind not in KINDS:
        raise CatalogError(
            "RELATION_KIND_UNKNOWN",
            f"{name} is a {kind}, and nothing here knows what that is",
            hint="import the package that brought it along, then open the database",
        )
    # Definitions of format 4 have no numbers: they get some when their database is opened (``keep/earlier.py``).
    return replace(
        KINDS[kind].of_body(name, columns, body),
        number=body.get("number", 0),
        owns={role: int(ref) for role, ref in body.get("owns", {}).items()},
        read=tuple(Read(n, at, tuple((c, id) for c, id in columns)) for n, at, columns in body.get("read", ())),
        last_column=body.get("last_column", max((c.id for c in columns), default=0)),
        born=body.get("born", ""),
    )


def _column(at: int, name: str, type: str, nullable: bool, id: int = 0, default: Any = None) -> Field:
    found = from_spark(type)
    return Field(name, found, nullable, id or at, default_of(default, found) if default is not None else None)


def file_name(name: str) -> str:
    """A name as part of a file's name: one of its own, whatever characters it has and however long it is.

    >>> file_name("low stock"), len(file_name("s" * 1000)), file_name("s" * 1000) == file_name("s" * 1001)
    ('low%20stock', 165, False)
    """
    quoted = quote(name, safe="")
    if len(quoted) <= _LONGEST_FILE_NAME:
        return quoted
    return f"{quoted[:100]}~{hashlib.sha256(quoted.encode()).hexdigest()}"


def check_names(relation: Relation, position: Position | None = None) -> None:
    """An error for names no relation or column can have: empty ones, what no text holds, and those that are taken."""
    for field_ in relation.columns:
        if field_.name.lower() in relation.reserved:
            raise SqlError(
                "INVALID_COLUMN_NAME",
                f"no {relation.kind} can have a column {field_.name}: there Headrace notes where and when a row is",
                position=position,
                hint="give it another name",
            )
    for what, name in (("relation", relation.name), *(("column", f.name) for f in relation.columns)):
        if not name or "\0" in name:
            said = "is empty" if not name else "holds a NUL character"
            condition = "INVALID_SCHEMA_OR_RELATION_NAME" if what == "relation" else "INVALID_COLUMN_NAME"
            raise SqlError(condition, f"the name of a {what} {said}", position=position, hint="give it another name")
