"""Tables: durable rows, the database's own or in files that somebody else writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from headrace.catalog.defaults import plain, value_of
from headrace.catalog.relation import Note, Relation, kept_changes, kind
from headrace.errors import CatalogError, Position
from headrace.types import BIGINT, STRING, Field, Schema

FILE, ROW = "__file", "__row"
PLACE = (Field(FILE, STRING), Field(ROW, BIGINT))
"""The columns that say where a row of a table is, for whoever is to change it: nobody else sees them."""
_OURS = (FILE, ROW, "__epoch", "__weight")
"""Columns that rows have beside a table's own: where they are, since when, and how often one counts in a change."""
_STORES_OWN = (*_OURS, "file_row_number")
"""Names in the store that no column of a table has there."""
EPOCH, WEIGHT = "_epoch", "_weight"
"""What readers of changes know of a row beside its columns: the epoch, and 1 if it came in it, -1 if it went."""


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


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that no row of a table may break: it is true of each, or NULL."""

    name: str
    text: str
    """As it was written."""
    of: str
    """What the table was called then, and its columns, with their ids: the text means these."""
    columns: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Held:
    """How a column lies in the store: under one name for as long as it is there, whatever it is called meanwhile."""

    name: str
    before: Any = None
    """Its value in rows from before it was there: in segments that do not have it."""
    is_late: bool = False
    """Whether there may be such segments."""


@kind
@dataclass(frozen=True, slots=True)
class Table(Relation):
    """A durable relation, optionally with a primary key; its rows are its own, or lie in ``files``."""

    kind: ClassVar[str] = "table"

    primary_key: tuple[str, ...] = ()
    files: FileSource | None = None
    checks: tuple[Check, ...] = field(default=(), kw_only=True)
    keep_changes: int | None = field(default=None, kw_only=True)
    """For how many microseconds its changes are kept."""
    held: Mapping[int, Held] = field(default_factory=dict, kw_only=True, compare=False)
    """How columns lie in the store, by id, where it is not under the names they have, in every segment."""
    spent: tuple[str, ...] = field(default=(), kw_only=True, compare=False)
    """Names in the store of columns that are gone: segments may have them still."""

    def lies(self, column: Field) -> Held:
        """How a column lies in the store."""
        return self.held.get(column.id) or Held(column.name)

    def stored_name(self, name: str) -> str:
        """What the store calls one of its columns."""
        return next((self.lies(c).name for c in self.columns if c.name == name), name)

    def with_column(self, column: Field, before: Any) -> Table:
        """The table with a new last column, and its value in the rows there are."""
        column = replace(column, id=self.last_column + 1)
        taken = {self.lies(c).name.lower() for c in self.columns} | {n.lower() for n in (*self.spent, *_STORES_OWN)}
        name = column.name
        while name.lower() in taken:
            name += f"~{column.id}"
        held = {**self.held, column.id: Held(name, before, is_late=True)}
        return replace(self, columns=(*self.columns, column), held=held, last_column=column.id)

    def without_column(self, column: Field) -> Table:
        """The table without one of its columns."""
        held = {id: h for id, h in self.held.items() if id != column.id}
        columns = tuple(c for c in self.columns if c is not column)
        return replace(self, columns=columns, held=held, spent=(*self.spent, self.lies(column).name))

    def with_renamed(self, column: Field, name: str) -> Table:
        """The table with one of its columns under another name."""
        held = {**self.held, column.id: self.lies(column)}
        columns = tuple(replace(c, name=name) if c is column else c for c in self.columns)
        key = tuple(name if k == column.name else k for k in self.primary_key)
        return replace(self, columns=columns, held=held, primary_key=key)

    @property
    def is_table(self) -> bool:
        return True

    @property
    def reserved(self) -> Collection[str]:
        return () if self.files is not None else _OURS

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
        for column in self.columns:
            if column.default is not None:
                found.append(("# default", column.name, column.default.text))
        for check in self.checks:
            found.append(("# check", check.name, f"CHECK ({check.text}){self._renamed_in(check)}"))
        return [*found, *kept_changes(self.keep_changes)]

    def _renamed_in(self, check: Check) -> str:
        now = {c.id: c.name for c in self.columns}
        said = [f"{name} is called {now[id]} now" for name, id in check.columns if now.get(id, name) != name]
        return f", where {', '.join(said)}" if said else ""

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"primary_key": list(self.primary_key)}
        if (source := self.files) is not None:
            body["files"] = {"format": source.format, "location": source.location, "options": dict(source.options)}
        if self.checks:
            body["checks"] = [[c.name, c.text, c.of, [list(column) for column in c.columns]] for c in self.checks]
        if self.keep_changes is not None:
            body["keep_changes"] = self.keep_changes
        if self.held:
            body["held"] = [[id, h.name, plain(h.before), h.is_late] for id, h in self.held.items()]
        if self.spent:
            body["spent"] = list(self.spent)
        return body

    @classmethod
    def of_body(cls, name: str, columns: Schema, body: Mapping[str, Any]) -> Table:
        files = body.get("files")
        source = FileSource(files["format"], files["location"], tuple(files["options"].items())) if files else None
        types = {c.id: c.type for c in columns}
        return Table(
            name,
            columns,
            tuple(body["primary_key"]),
            source,
            checks=tuple(
                Check(n, text, of, tuple((c, id) for c, id in cs)) for n, text, of, cs in body.get("checks", ())
            ),
            keep_changes=body.get("keep_changes"),
            held={id: Held(n, value_of(before, types[id]), late) for id, n, before, late in body.get("held", ())},
            spent=tuple(body.get("spent", ())),
        )
