"""The catalog: frozen definitions of relations, one file a kind.

A definition says what a relation *is*, never what it holds. The catalog is a
value too: a change makes a new one with a higher version, so whoever computed
something under a version can tell whether it still holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from headrace.catalog.relation import (
    KINDS,
    Note,
    Read,
    Relation,
    check_names,
    file_name,
    from_json,
    kind,
    numbered,
    to_json,
)
from headrace.catalog.stream import Buffer, Stream
from headrace.catalog.table import Check, FileSource, Table
from headrace.catalog.view import View
from headrace.errors import CatalogError, Position

__all__ = [
    "KINDS",
    "Buffer",
    "Catalog",
    "Check",
    "FileSource",
    "Note",
    "Read",
    "Relation",
    "Stream",
    "Table",
    "View",
    "check_names",
    "file_name",
    "from_json",
    "kind",
    "numbered",
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
    numbers: Mapping[int, Relation] = field(default_factory=dict)
    """Relations by their numbers."""

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

    def at(self, number: int) -> Relation | None:
        """The relation of that number, whatever it is called now."""
        return self.numbers.get(number)

    def require_there(self, relation: Relation) -> None:
        """An error if a relation was dropped since it was looked up, whatever goes under its name now."""
        if relation.number not in self.numbers:
            raise gone(relation.name)

    def table_at(self, number: int) -> Table | None:
        """The table of that number, if it is one."""
        found = self.numbers.get(number)
        return found if isinstance(found, Table) else None

    def as_read_by(self, relation: Relation) -> Catalog:
        """The catalog as a relation's definition knows it: names mean what they meant when it was made."""
        found = [(read, self.numbers[read.number]) for read in relation.read if read.number in self.numbers]
        seen = {read.name.lower(): read.seen(now) for read, now in found}
        if all(self.relations.get(name) is known for name, known in seen.items()):
            return self
        return replace(self, relations={**self.relations, **seen})

    def renamed(self, old: str, new: str) -> Catalog:
        """The catalog in which a relation has another name; whoever reads it goes on reading it.

        >>> c = Catalog().with_relation(Table("t", (), number=1))
        >>> v = View("v", (), "SELECT 1 FROM t", False, ("t",), read=(Read("t", 1, ()),), number=2)
        >>> c = c.with_relation(v).renamed("t", "u")
        >>> c.find("t"), [r.name for r in c.dependents("u")], c.as_read_by(v).find("t").name
        (None, ['v'], 'u')
        """
        was = self.relations[old.lower()]
        relation = replace(was, name=new, born=was.born or was.name)
        known = {r.name.lower(): r for r in (relation if r is was else r for r in self.relations.values())}
        readers = {
            new.lower() if name == old.lower() else name: tuple(relation if r is was else r for r in found)
            for name, found in self.readers.items()
        }
        return Catalog(self.version + 1, known, readers, {**self.numbers, relation.number: relation})

    def read_by(self, relation: Relation) -> list[str]:
        """What a relation's definition names, as it is called now."""
        now = {
            read.name.lower(): self.numbers[read.number].name for read in relation.read if read.number in self.numbers
        }
        return sorted((now.get(name.lower(), name) for name in relation.reads), key=str.lower)

    def renamed_in(self, relation: Relation) -> list[Note]:
        """What a relation's definition names otherwise than it is called now."""
        found: list[Note] = []
        for read in relation.read:
            if (now := self.numbers.get(read.number)) is None:
                continue
            if now.name != read.name:
                found.append(("# renamed", read.name, f"is called {now.name} now"))
            columns = {c.id: c.name for c in now.columns}
            for name, id in read.columns:
                if columns.get(id, name) != name:
                    found.append(("# renamed", f"{read.name}.{name}", f"is called {columns[id]} now"))
        return found

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

    def with_relation(self, *relations: Relation) -> Catalog:
        """The catalog with these, too, or with these in the place of others of their names."""
        known, readers, numbers = dict(self.relations), dict(self.readers), dict(self.numbers)
        for relation in relations:
            _unread(readers, known.get(relation.name.lower()), numbers)
            known[relation.name.lower()] = numbers[relation.number] = relation
        for relation in relations:  # what one reads may come after it
            for name in _reads(relation, numbers):
                readers[name] = (*readers.get(name, ()), relation)
        return Catalog(self.version + 1, known, readers, numbers)

    def replaced(self, old: Relation, new: Relation, *readers: Relation) -> Catalog:
        """The catalog with another relation under a name, and those that read it as they read that one."""
        found = self.with_relation(new, *readers)
        return replace(found, numbers={n: r for n, r in found.numbers.items() if n != old.number})

    def without(self, *names: str) -> Catalog:
        known, readers, numbers = dict(self.relations), dict(self.readers), dict(self.numbers)
        for name in names:
            gone = known.pop(name.lower())
            numbers.pop(gone.number, None)
            _unread(readers, gone, self.numbers)
        return Catalog(self.version + 1, known, readers, numbers)


def in_use(what: str, readers: Iterable[Relation], position: Position | None, hint: str) -> CatalogError:
    """The refusal to take away what others read; ``{}`` in the hint stands for them."""
    names = ", ".join(sorted((r.name for r in readers), key=str.lower))
    return CatalogError("RELATION_IN_USE", f"{what} is read by {names}", position=position, hint=hint.format(names))


def gone(name: str) -> CatalogError:
    """What to say of a relation that was dropped since a statement looked it up."""
    return CatalogError(
        "TABLE_OR_VIEW_NOT_FOUND",
        f"{name} was dropped meanwhile",
        hint="nothing was changed; ask again if there is another one of that name",
    )


def _reads(relation: Relation, numbers: Mapping[int, Relation]) -> set[str]:
    """The names that what a relation reads goes under now."""
    now = {read.name: numbers[read.number].name for read in relation.read if read.number in numbers}
    return {now.get(name, name).lower() for name in relation.reads}


def _unread(readers: dict[str, tuple[Relation, ...]], gone: Relation | None, numbers: Mapping[int, Relation]) -> None:
    for name in _reads(gone, numbers) if gone is not None else ():
        readers[name] = tuple(r for r in readers[name] if r is not gone)


import headrace.catalog.sample  # noqa: E402, F401  (it registers itself, after the kinds that messages name first)
