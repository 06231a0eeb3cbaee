"""``db.get`` and its like: rows by their key, without SQL.

A table is read by its primary key, a view by what it groups by. What that is, and how rows are found by it, is worked
out once for each version of the catalog.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from headrace.base.values import python_values
from headrace.base.wording import shown
from headrace.catalog import Relation, Table
from headrace.errors import CatalogError, DataError, HeadraceError
from headrace.input.given import foreign
from headrace.input.rows import to_arrow
from headrace.keep.answers import Others
from headrace.keep.by_key import KEYS, ByKey, joined_with_keys, numbered
from headrace.keep.deferral import Deferral, level
from headrace.keep.keeper import Keeper
from headrace.keep.kept import Kept
from headrace.keep.shortcuts import glanced
from headrace.plan.exprs import TRUE, Call, Column, Expr, Literal, all_of
from headrace.plan.nodes import Filter, Leaf, Node, Sort, SortKey
from headrace.plan.refs import KeptRef, Ref, TableRef, VersionRef
from headrace.runtime import Runtime
from headrace.sql.versions import no_history
from headrace.statement.read import HASTY_ATTEMPTS, KnownQuery, QueryReader
from headrace.store import Snapshot
from headrace.table import query
from headrace.types import BOOLEAN, STRING

FALSE = Literal(BOOLEAN, False)
Row = dict[str, Any]
"""A row, its values by the names of columns."""


def listed(keys: Iterable[Any]) -> list[Any]:
    """Keys as they were given, one after the other."""
    if isinstance(keys, Iterable) and not isinstance(keys, str | bytes | Mapping):
        with foreign(keys):
            return list(keys)
    raise DataError(
        "INVALID_KEY", f"{type(keys).__name__} is no list of keys", hint="give a list: get_many(name, [1, 2])"
    )


class KeyReader:
    """Reads rows by key."""

    def __init__(self, runtime: Runtime, keeper: Keeper, reader: QueryReader, deferral: Deferral) -> None:
        self._runtime = runtime
        self._keeper = keeper
        self._reader = reader
        self._deferral = deferral
        self._known: dict[str, _Keyed] = {}

    def get(self, name: str, key: Any, version: int | None) -> Row | None:
        """The row of a key."""
        if version is not None:
            return self.get_many(name, [key], version)[0]
        keyed = self._keyed(name)
        keys = keyed.keys([key], self._runtime.settings.time_zone)
        kept = keyed.kept
        lookup = kept.lookup(keys) if kept is not None else None
        if kept is not None and lookup is not None:
            rows = glanced(self._runtime, self._keeper.answers, keyed.version, kept.kept, lookup)
            if rows is not None:
                return _rows(rows)[0] if rows.num_rows else None
        return self.get_many(name, [key], None)[0]

    def get_many(self, name: str, given: Sequence[Any], version: int | None) -> list[Row | None]:
        """The rows of keys, in their order."""
        rows = self._found(name, given) if version is None else self._found_at(name, given, version)
        numbers, rows = rows.column(0).to_pylist(), rows.select(range(1, rows.num_columns))
        found: list[Row | None] = [None] * len(given)
        for number, row in zip(numbers, _rows(rows), strict=True):
            found[number] = row
        return found

    def get_range(
        self, name: str, low: Any, high: Any, limit: int | None, backwards: bool, version: int | None
    ) -> pa.Table:
        """The rows of a range of keys, in their order."""

        def plan() -> Node:
            keyed = self._keyed(name)
            zone = self._runtime.settings.time_zone
            ends = keyed.bound(low, zone), keyed.bound(high, zone)
            return keyed.range(keyed.leaf(version), *ends, limit, backwards)

        return self._reader.stored(KnownQuery(plan))

    def _found_at(self, name: str, given: Sequence[Any], version: int | None) -> pa.Table:
        """The same of a version, or by a query."""

        def plan() -> Node:
            keyed = self._keyed(name)
            leaf = keyed.leaf(version)
            return joined_with_keys(leaf, keyed.columns(leaf), keyed.keys(given, self._runtime.settings.time_zone))

        return self._reader.stored(KnownQuery(plan))

    def _found(self, name: str, given: Sequence[Any]) -> pa.Table:
        """The rows of keys as of one snapshot, each with the number of its key first."""
        with self._deferral.reading() as catch_up:
            for attempt in itertools.count():
                keyed = self._keyed(name)
                keys = keyed.keys(given, self._runtime.settings.time_zone)
                behind: Sequence[Kept] = ()
                with self._runtime.store.read() as snapshot:
                    if self._runtime.writer_version == keyed.version:
                        if snapshot.is_draft and keyed.kept is not None and keyed.kept.kept.lags(snapshot):
                            return self._found_at(name, given, None)  # in a batch it is computed from its tables
                        behind = keyed.behind(snapshot)
                        with suppress(query.Again):
                            if not behind:
                                return keyed.rows(snapshot, keys, patient=attempt >= HASTY_ATTEMPTS)
                if behind:
                    catch_up(behind)
                else:
                    time.sleep(0.001)
        raise AssertionError("never ends without an answer")

    def _keyed(self, name: str) -> _Keyed:
        """The relation of this name, ready to be read by key."""
        version = self._runtime.catalog.version
        known = self._known.get(name)
        if known is None or known.version != version:
            if len(self._known) > 256:
                self._known.clear()
            known = self._known[name] = _Keyed.of(self._runtime, self._keeper, version, name)
        return known


class _Keyed:
    """A relation that is read by key, under one version of the catalog."""

    def __init__(
        self, runtime: Runtime, keeper: Keeper, version: int, relation: Relation, found: Table | ByKey
    ) -> None:
        self.version = version
        self.kept = found if isinstance(found, ByKey) else None
        self._runtime = runtime
        self._keeper = keeper
        self._name = relation.name
        self._relation = relation
        if isinstance(found, ByKey):
            self._key = found.key
            self._others: Others = keeper.with_below([relation.number])
            return
        leaf = Leaf.of(TableRef(found.name, found.number), found.columns, found.primary_key)
        key = [c for c in leaf.scanned if c.name in found.primary_key]
        self._key = tuple(f for f in found.columns if f.name in found.primary_key)
        self._plan = query.Prepared(runtime, joined_with_keys(leaf, key), changes=True)

    @staticmethod
    def of(runtime: Runtime, keeper: Keeper, version: int, name: str) -> _Keyed:
        relation: Relation = runtime.catalog.get(name)
        if isinstance(relation, Table) and relation.primary_key:
            return _Keyed(runtime, keeper, version, relation, relation)
        kept = keeper.of(relation) if relation.is_kept else None
        found = ByKey.of(runtime, kept) if kept is not None else None
        if found is None:
            raise _without_key(relation)
        return _Keyed(runtime, keeper, version, relation, found)

    def keys(self, given: Sequence[Any], zone: str) -> pa.Table:
        """Keys as a program gives them: one value, several in a tuple, or a mapping by name."""
        rows = [self._parts(key) for key in given]
        if len(rows) == 1 and (quick := self._plain(rows[0])) is not None:
            return quick
        try:
            found: pa.Table = to_arrow(rows, self._key, zone=zone)
        except HeadraceError as error:
            raise error.within(f"in a key of {self._name}") from None
        return found

    def _plain(self, parts: tuple[Any, ...]) -> pa.Table | None:
        """A key of whole numbers and texts that fit: to look at what it may be takes longer than to look it up."""
        kinds = zip(self._key, parts, strict=True)
        if not all(
            type(part) is int if f.type.is_integer else (f.type == STRING and type(part) is str) for f, part in kinds
        ):
            return None
        try:
            arrays = [pa.array([part], f.type.arrow) for f, part in zip(self._key, parts, strict=True)]
        except (pa.ArrowException, OverflowError, ValueError):
            return None
        return pa.Table.from_arrays(arrays, names=[f.name for f in self._key])

    def bound(self, given: Any, zone: str) -> list[Literal]:
        """The first parts of a key, as constants; none if nothing is given."""
        if given is None:
            return []
        if isinstance(given, Mapping):
            names = {str(name).lower() for name in given}
            first = [f for f in self._key if f.name.lower() in names]
            if len(first) < len(given) or first != list(self._key[: len(first)]):
                raise self._wrong(f"which does not begin with {', '.join(map(str, given)) or 'nothing'}")
            given = tuple(value for f in first for name, value in given.items() if str(name).lower() == f.name.lower())
        parts = tuple(given) if isinstance(given, tuple | list) else (given,)
        if len(parts) > len(self._key):
            raise self._wrong(f"not {len(parts)} values")
        fields = self._key[: len(parts)]
        try:
            row = to_arrow([parts], fields, zone=zone)
        except HeadraceError as error:
            raise error.within(f"in a key of {self._name}") from None
        return [Literal(f.type.plain, row.column(i)[0].as_py()) for i, f in enumerate(fields)]

    def leaf(self, version: int | None) -> Leaf:
        """Its rows, as they are or were."""
        relation = self._relation
        if version is None:
            ref: Ref = (KeptRef if self.kept is not None else TableRef)(relation.name, number=relation.number)
        elif not isinstance(version, int) or isinstance(version, bool) or version < 0:
            raise DataError("INVALID_VERSION", f"{shown(version)} is no version", hint="headrace.versions lists them")
        elif relation.keep_changes is None:
            raise no_history(relation, f"version {version} of {relation.name}", None)
        else:
            ref = VersionRef(relation.name, number=relation.number, version=version)
        return Leaf.of(ref, relation.columns)

    def columns(self, leaf: Leaf) -> list[Column]:
        """Its key's columns."""
        named = dict(zip(leaf.fields, leaf.scanned, strict=True))
        return [named[f.name] for f in self._key]

    def range(
        self, leaf: Leaf, low: Sequence[Literal], high: Sequence[Literal], limit: int | None, backwards: bool
    ) -> Node:
        """The plan of a range of rows in the order of their keys."""
        key = self.columns(leaf)
        conditions: list[Expr] = []
        same = 0
        while same < min(len(low), len(high)) and low[same] == high[same]:
            conditions.append(Call(BOOLEAN, "<=>", (key[same], low[same])))
            same += 1
        for bound, fn in ((low, ">="), (high, "<=")):
            if len(bound) > same:
                conditions.append(_beyond(key[same], bound[same], fn))
                conditions.append(_after(key[same : len(bound)], bound[same:], fn[0]))
        rows = Filter(leaf, all_of(conditions)) if conditions else leaf
        return Sort(rows, tuple(SortKey(column, backwards, not backwards) for column in key), limit)

    def _parts(self, key: Any) -> tuple[Any, ...]:
        names = [f.name for f in self._key]
        if isinstance(key, Mapping):
            by_name = {str(name).lower(): value for name, value in key.items()}
            if by_name.keys() != {name.lower() for name in names}:
                raise self._wrong(f"not {', '.join(map(str, key)) or 'nothing'}")
            return tuple(by_name[name.lower()] for name in names)
        parts = tuple(key) if isinstance(key, tuple | list) else (key,)
        if len(parts) != len(names):
            raise self._wrong(f"not {len(parts)} values" if len(parts) != 1 else "not one value")
        return parts

    def _wrong(self, what: str) -> DataError:
        names = [f.name for f in self._key]
        mapping = ", ".join(f"{name!r}: …" for name in names)
        return DataError(
            "INVALID_KEY",
            f"the key of {self._name} is ({', '.join(names)}), {what}",
            hint=f"give a tuple of {', '.join(names)}, or {{{mapping}}}" if len(names) > 1 else "give its value",
        )

    def behind(self, snapshot: Snapshot) -> Sequence[Kept]:
        """What is to be caught up first."""
        return level(snapshot, self._others.values(), alone=True).behind if self.kept is not None else ()

    def rows(self, snapshot: Snapshot, keys: pa.Table, *, patient: bool) -> pa.Table:
        """The rows of keys as of a snapshot, each with the number of its key first."""
        if self.kept is not None:
            return self.kept.rows(self._keeper.answers, snapshot, self._others, keys, patient=patient)
        return query.run(self._runtime, snapshot, self._plan, query.Leaves({KEYS: numbered(keys)}, {}))


def _beyond(column: Column, bound: Literal, fn: str) -> Expr:
    """Whether a value is not on the other side of a bound; NULL comes before all values."""
    missing = Call(BOOLEAN, "isnull", (column,))
    if bound.value is None:
        return TRUE if fn[0] == ">" else missing
    compared = Call(BOOLEAN, fn, (column, bound))
    return compared if fn[0] == ">" else Call(BOOLEAN, "or", (missing, compared))


def _after(key: Sequence[Column], bound: Sequence[Literal], fn: str) -> Expr:
    """Whether the first parts of a key are the bound or lie beyond it, in the order of all parts."""
    (column, *columns), (value, *values) = key, bound
    there = Call(BOOLEAN, "isnotnull", (column,))
    strictly: Expr = (there if fn == ">" else FALSE) if value.value is None else _beyond(column, value, fn)
    same = Call(BOOLEAN, "<=>", (column, value))
    rest = _after(columns, values, fn) if columns else TRUE
    # What is compared with NULL is neither: a value that is there comes after it.
    known = Call(BOOLEAN, "coalesce", (strictly, FALSE))
    return Call(BOOLEAN, "or", (known, Call(BOOLEAN, "and", (same, rest))))


def _without_key(relation: Relation) -> CatalogError:
    what, hint = "its rows have no key", "SELECT all that it groups by; or query it: SELECT … WHERE …"
    if isinstance(relation, Table):
        what = "it has no primary key"
        hint = "CREATE TABLE … (… PRIMARY KEY …), or query it: SELECT … WHERE …"
    elif not relation.is_kept:
        what = f"a {relation.kind} that keeps nothing"
        hint = "CREATE MATERIALIZED VIEW keeps what is grouped; or query it: SELECT … WHERE …"
    return CatalogError("RELATION_WITHOUT_KEY", f"{relation.name} cannot be read by key: {what}", hint=hint)


def _rows(rows: pa.Table) -> list[Row]:
    names = rows.column_names
    columns = [python_values(column) for column in rows.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
