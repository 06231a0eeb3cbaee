"""The catalog: frozen definitions of streams, tables, views and samples.

A definition says what a relation *is*, never what it holds. The catalog is a
value too: a change makes a new one with a higher version, so whoever computed
something under a version can tell whether it still holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import Any, Literal
from urllib.parse import quote

from headrace.errors import CatalogError, Position, SqlError
from headrace.types import Field, Schema, from_spark


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


@dataclass(frozen=True, slots=True)
class Stream:
    """An append-only relation that keeps no rows: views see what arrives after they are made."""

    name: str
    columns: Schema
    buffer: Buffer | None = None
    """What its CREATE says of a buffer; without it, rows are buffered only while a query reads them."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """Files somebody else writes: their format, where they are, and how they are to be read."""

    format: str
    location: str
    """An absolute path, glob or directory."""
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """A durable relation, optionally with a primary key; its rows are its own, or lie in ``files``."""

    name: str
    columns: Schema
    primary_key: tuple[str, ...] = ()
    files: FileSource | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A named query. ``continuous`` when it reads a stream: then it owns state.

    ``types`` remembers what Spark's analyzer said of expressions Headrace does not
    know, so that reopening a database does not need Spark.
    """

    name: str
    columns: Schema
    text: str
    continuous: bool
    reads: tuple[str, ...]
    types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """A uniform sample of the rows of a stream, of a fixed size, in all or in each group of ``keys``."""

    name: str
    columns: Schema
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
    def continuous(self) -> bool:
        return True


Relation = Stream | Table | View | Sample
Kind = Literal["stream", "table", "view", "sample"]
_LONGEST_FILE_NAME = 170
"""Filesystems take 255 bytes; others are added to it."""
KINDS: dict[type, Kind] = {Stream: "stream", Table: "table", View: "view", Sample: "sample"}


def kind_of(relation: Relation) -> Kind:
    return KINDS[type(relation)]


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
    """An error for names no relation or column can have: empty ones, and what no text holds."""
    for what, name in (("relation", relation.name), *(("column", f.name) for f in relation.columns)):
        if not name or "\0" in name:
            said = "is empty" if not name else "holds a NUL character"
            condition = "INVALID_SCHEMA_OR_RELATION_NAME" if what == "relation" else "INVALID_COLUMN_NAME"
            raise SqlError(condition, f"the name of a {what} {said}", position=position, hint="give it another name")


@dataclass(frozen=True, slots=True)
class Catalog:
    """All relations by name. Names are unique and compared without case, as Spark does.

    >>> c = Catalog().with_relation(Stream("Posts", ()))
    >>> c.find("posts").name, c.version
    ('Posts', 1)
    """

    version: int = 0
    relations: Mapping[str, Relation] = field(default_factory=dict)

    def find(self, name: str) -> Relation | None:
        return self.relations.get(name.lower())

    def get(self, name: str, *kinds: type, position: Position | None = None) -> Any:
        """The relation of that name (and kind); :class:`CatalogError` otherwise."""
        found = self.find(name)
        if found is None:
            near = get_close_matches(name.lower(), self.relations, n=1)
            lists = "SHOW TABLES, STREAMS, VIEWS, SAMPLES list them"
            hint = f"did you mean {self.relations[near[0]].name}?" if near else lists
            raise CatalogError("TABLE_OR_VIEW_NOT_FOUND", f"there is no relation {name}", position=position, hint=hint)
        if kinds and not isinstance(found, kinds):
            wanted = " or ".join(KINDS[k] for k in kinds)
            raise CatalogError(
                "WRONG_COMMAND_FOR_OBJECT_TYPE",
                f"{found.name} is a {kind_of(found)}, not a {wanted}",
                position=position,
                hint="DESCRIBE shows what a name is",
            )
        return found

    def require_free(self, name: str, position: Position | None = None) -> None:
        if (found := self.find(name)) is not None:
            raise CatalogError(
                "TABLE_OR_VIEW_ALREADY_EXISTS",
                f"{found.name} exists already, as a {kind_of(found)}",
                position=position,
                hint="choose another name, DROP it, or write IF NOT EXISTS",
            )

    def dependents(self, name: str) -> list[View | Sample]:
        """The views and samples that read the relation, by name."""
        readers: list[View | Sample] = [*self.views(), *self.samples()]
        return [r for r in readers if name.lower() in (n.lower() for n in r.reads)]

    def all_dependents(self, name: str) -> list[View | Sample]:
        """The views and samples that read the relation, by themselves or through others.

        >>> c = Catalog().with_relation(Table("t", ()))
        >>> for view, read in (("v", "t"), ("w", "v")):
        ...     c = c.with_relation(View(view, (), "", False, (read,)))
        >>> [v.name for v in c.all_dependents("t")]
        ['v', 'w']
        """
        found = self.dependents(name)
        for view in found:  # grows while it is walked
            found += [v for v in self.dependents(view.name) if v not in found]
        return found

    def views(self) -> list[View]:
        return [r for r in self.relations.values() if isinstance(r, View)]

    def samples(self) -> list[Sample]:
        return [r for r in self.relations.values() if isinstance(r, Sample)]

    def of_kind(self, kind: type) -> list[Relation]:
        return sorted((r for r in self.relations.values() if isinstance(r, kind)), key=lambda r: r.name)

    def with_relation(self, relation: Relation) -> Catalog:
        return Catalog(self.version + 1, {**self.relations, relation.name.lower(): relation})

    def without(self, name: str) -> Catalog:
        kept = {k: v for k, v in self.relations.items() if k != name.lower()}
        return Catalog(self.version + 1, kept)


def to_json(relation: Relation) -> dict[str, Any]:
    """A definition as plain data, for the store."""
    body: dict[str, Any] = {"columns": [[f.name, f.type.declared, f.nullable] for f in relation.columns]}
    if isinstance(relation, Stream) and relation.buffer is not None:
        body["buffer"] = asdict(relation.buffer)
    if isinstance(relation, Table):
        body["primary_key"] = list(relation.primary_key)
        if relation.files is not None:
            source = relation.files
            body["files"] = {"format": source.format, "location": source.location, "options": dict(source.options)}
    elif isinstance(relation, View):
        body |= {
            "text": relation.text,
            "continuous": relation.continuous,
            "reads": list(relation.reads),
            "types": dict(relation.types),
        }
    elif isinstance(relation, Sample):
        body |= {
            "of": relation.of,
            "size": relation.size,
            "keys": list(relation.keys),
            "seed": relation.seed,
            "text": relation.text,
            "types": dict(relation.types),
        }
    return body


def from_json(name: str, kind: str, body: Mapping[str, Any]) -> Relation:
    """The definition :func:`to_json` wrote."""
    columns = tuple(Field(n, from_spark(t), nullable) for n, t, nullable in body["columns"])
    if kind == "stream":
        return Stream(name, columns, Buffer(**body["buffer"]) if "buffer" in body else None)
    if kind == "table":
        files = body.get("files")
        source = FileSource(files["format"], files["location"], tuple(files["options"].items())) if files else None
        return Table(name, columns, tuple(body["primary_key"]), source)
    if kind == "sample":
        keys, types = tuple(body["keys"]), dict(body["types"])
        return Sample(name, columns, body["of"], body["size"], keys, body["seed"], body["text"], types)
    return View(name, columns, body["text"], body["continuous"], tuple(body["reads"]), dict(body["types"]))


def load(definitions: Iterable[tuple[str, str, Mapping[str, Any]]]) -> Catalog:
    """The catalog of stored definitions."""
    catalog = Catalog()
    for name, kind, body in definitions:
        catalog = catalog.with_relation(from_json(name, kind, body))
    return catalog
