"""Listings: a relation of the schema ``headrace`` is a class of lines, a line an object, its columns attributes.

A line works a column out when it is read: SHOW, and queries that name few columns, do not pay for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import pyarrow as pa

from headrace.catalog import KINDS, Relation
from headrace.keep.keeper import Keeper
from headrace.keep.kept import Kept
from headrace.runtime import Runtime
from headrace.store import Snapshot
from headrace.types import BIGINT, STRING, Field, Schema, arrow_schema

MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class OpenDatabase:
    """A database as it was when it was opened."""

    runtime: Runtime
    keeper: Keeper
    epoch: int
    counts: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Asked:
    """Who asks, and as of when; what all lines of an answer share."""

    opened: OpenDatabase
    snapshot: Snapshot

    @property
    def runtime(self) -> Runtime:
        return self.opened.runtime

    @property
    def keeper(self) -> Keeper:
        return self.opened.keeper

    @cached_property
    def created(self) -> Mapping[str, int]:
        """The epochs in which relations were made, by their names in small letters."""
        return {d.name.lower(): d.epoch for d in self.snapshot.definitions()}

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How many rows came in, by what counts them."""
        return self.snapshot.counts()

    @cached_property
    def lately(self) -> Mapping[str, int]:
        """Those of the last minute."""
        return self.snapshot.counts(since=datetime.now(UTC) - MINUTE)


@dataclass(frozen=True)
class Listing:
    """One relation of the schema."""

    columns: Schema
    lines: Callable[[Asked], Iterable[Any]]
    shown: Sequence[str] = ()
    """The columns SHOW prints."""

    def read(self, asked: Asked, names: Sequence[str]) -> pa.Table:
        """These columns of all its lines."""
        fields = {f.name: f for f in self.columns}
        wanted = tuple(fields[name] for name in names)
        lines = list(self.lines(asked))
        arrays = [pa.array([getattr(one, f.name) for one in lines], f.type.arrow) for f in wanted]
        return pa.Table.from_arrays(arrays, schema=arrow_schema(wanted))


class Line:
    """A line about one relation of the catalog."""

    def __init__(self, asked: Asked, relation: Any) -> None:
        self.asked = asked
        self.relation = relation

    @property
    def name(self) -> str:
        return str(self.relation.name)

    @property
    def reads(self) -> str:
        return ", ".join(self.asked.runtime.catalog.read_by(self.relation))

    @property
    def created_epoch(self) -> int | None:
        return self.asked.created.get(self.name.lower())

    @cached_property
    def kept(self) -> Any:
        """The relation as it is kept, if it is."""
        return self.asked.keeper.get(self.name) if self.relation.is_kept else None

    @property
    def state_rows(self) -> int | None:
        return (
            sum(sum(s.home.queued(self.asked.snapshot, s.ref) or (0,)) for s in self._states) if self._states else None
        )

    @property
    def last_change_epoch(self) -> int | None:
        return max((s.home.last_change(self.asked.snapshot, s.ref) for s in self._states), default=None)

    @property
    def _states(self) -> Sequence[Any]:
        kept: Kept | None = self.kept
        return kept.states if kept is not None else ()


COMMON = (
    Field("name", STRING),
    Field("reads", STRING),
    Field("created_epoch", BIGINT),
    Field("state_rows", BIGINT),
    Field("last_change_epoch", BIGINT),
)
"""What is listed of relations whose kind has no listing of its own."""

LISTINGS: dict[str, Listing] = {}
"""By their names in the schema; :func:`listing_of` knows those of kinds without one, too."""


def listing(kind: type[Relation], columns: Schema, shown: Sequence[str]) -> Callable[[type[Line]], type[Line]]:
    """Register a class of lines, one for each relation of a kind, as a decorator of the class."""

    def register(line: type[Line]) -> type[Line]:
        LISTINGS[f"{kind.kind}s"] = Listing(columns, lambda asked: _lines(asked, kind, line), shown)
        return line

    return register


def _lines(asked: Asked, kind: type[Relation], line: type[Line]) -> Iterable[Line]:
    return (line(asked, relation) for relation in asked.runtime.catalog.of_kind(kind))


def listing_of(name: str) -> Listing | None:
    """The listing of this name, if there is one."""
    if name in LISTINGS:
        return LISTINGS[name]
    kind = next((k for k in KINDS.values() if f"{k.kind}s" == name), None)
    if kind is None:
        return None
    return Listing(COMMON, lambda asked: _lines(asked, kind, Line), ("name", "reads", "state_rows"))


def all_listings() -> list[str]:
    """Their names."""
    return list(dict.fromkeys((*LISTINGS, *(f"{kind}s" for kind in KINDS))))
