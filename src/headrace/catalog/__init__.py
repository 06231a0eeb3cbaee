"""The catalog: frozen definitions of relations, one file a kind.

A definition says what a relation *is*, never what it holds. The catalog is a
value too: a change makes a new one with a higher version, so whoever computed
something under a version can tell whether it still holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar

from headrace.catalog.relation import KINDS, Note, Relation, check_names, file_name, from_json, kind, to_json
from headrace.catalog.stream import Buffer, Stream
from headrace.catalog.table import FileSource, Table
from headrace.catalog.view import View
from headrace.errors import CatalogError, Position

__all__ = [
    "KINDS",
    "Buffer",
    "Catalog",
    "FileSource",
    "Note",
    "Relation",
    "Stream",
    "Table",
    "View",
    "check_names",
    "file_name",
    "from_json",
    "kind",
    "load",
    "to_json",
]

R = TypeVar("R", bound=Relation)


@dataclass(frozen=True, slots=True)
class Catalog:
    """All relations by name. Names are unique and compared without case, as Spark does.

    >>> c = Catalog().with_relation(Stream("Posts", ()))
    >>> c.find("posts").name, c.version
    ('Posts', 1)
    """

    version: int = 0
    relations: Mapping[str, Relation] = field(default_factory=dict)
    readers: Mapping[str, tuple[Relation, ...]] = field(default_factory=dict)
    """Those that read a relation, by its name."""

    def find(self, name: str) -> Relation | None:
        return self.relations.get(name.lower())

    def get(self, name: str, *kinds: type[Relation], position: Position | None = None) -> Any:
        """The relation of that name (and kind); :class:`CatalogError` otherwise."""
        found = self.find(name)
        if found is None:
            near = get_close_matches(name.lower(), self.relations, n=1)
            lists = "SHOW TABLES, STREAMS, VIEWS, SAMPLES list them"
            hint = f"did you mean {self.relations[near[0]].name}?" if near else lists
            raise CatalogError("TABLE_OR_VIEW_NOT_FOUND", f"there is no relation {name}", position=position, hint=hint)
        if kinds and not isinstance(found, kinds):
            wanted = " or ".join(k.kind for k in kinds)
            raise CatalogError(
                "WRONG_COMMAND_FOR_OBJECT_TYPE",
                f"{found.name} is a {found.kind}, not a {wanted}",
                position=position,
                hint="DESCRIBE shows what a name is",
            )
        return found

    def require_free(self, name: str, position: Position | None = None) -> None:
        if (found := self.find(name)) is not None:
            raise CatalogError(
                "TABLE_OR_VIEW_ALREADY_EXISTS",
                f"{found.name} exists already, as a {found.kind}",
                position=position,
                hint="choose another name, DROP it, or write IF NOT EXISTS",
            )

    def dependents(self, name: str) -> list[Relation]:
        """The relations that read it."""
        return list(self.readers.get(name.lower(), ()))

    def all_dependents(self, name: str) -> list[Relation]:
        """The relations that read it, by themselves or through others.

        >>> c = Catalog().with_relation(Table("t", ()))
        >>> for view, read in (("v", "t"), ("w", "v")):
        ...     c = c.with_relation(View(view, (), "", False, (read,)))
        >>> [v.name for v in c.all_dependents("t")]
        ['v', 'w']
        """
        found: dict[str, Relation] = {}
        names = [name]
        for read in names:  # grows while it is walked
            for reader in self.dependents(read):
                if found.setdefault(reader.name, reader) is reader and reader.name not in names:
                    names.append(reader.name)
        return list(found.values())

    def of_kind(self, kind: type[R]) -> list[R]:
        """The relations of a kind, in the order of their names."""
        return sorted((r for r in self.relations.values() if isinstance(r, kind)), key=lambda r: r.name)

    def kept(self) -> list[Relation]:
        """The relations that a keeper keeps, in the order they were made."""
        return [r for r in self.relations.values() if r.is_kept]

    def with_relation(self, *relations: Relation) -> Catalog:
        """The catalog with these, too, or with these in the place of others of their names."""
        known, readers = dict(self.relations), dict(self.readers)
        for relation in relations:
            _unread(readers, known.get(relation.name.lower()))
            known[relation.name.lower()] = relation
            for name in {n.lower() for n in relation.reads}:
                readers[name] = (*readers.get(name, ()), relation)
        return Catalog(self.version + 1, known, readers)

    def without(self, *names: str) -> Catalog:
        known, readers = dict(self.relations), dict(self.readers)
        for name in names:
            _unread(readers, known.pop(name.lower()))
        return Catalog(self.version + 1, known, readers)


def _unread(readers: dict[str, tuple[Relation, ...]], gone: Relation | None) -> None:
    for name in {n.lower() for n in gone.reads} if gone is not None else ():
        readers[name] = tuple(r for r in readers[name] if r is not gone)


def load(definitions: Iterable[tuple[str, str, Mapping[str, Any]]]) -> Catalog:
    """The catalog of stored definitions."""
    return Catalog().with_relation(*(from_json(name, kind, body) for name, kind, body in definitions))
