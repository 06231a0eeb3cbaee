"""The schema ``headrace``: its names for the binder, its rows for queries and SHOW.

``headrace.views``, ``headrace.epochs`` and others stand in any query beside tables and views, and
``headrace.state('v')`` gives the merged state of a continuous view. All are read in the query's own snapshot. They
are for queries only: a view that read them would depend on when it ran.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches

import pyarrow as pa

from headrace.catalog import View
from headrace.errors import CatalogError, Position, SqlError
from headrace.inside import commits, streams  # noqa: F401  (they register their listings)
from headrace.inside.listing import Asked, OpenDatabase, all_listings, listing_of
from headrace.keep.keeper import Keeper
from headrace.keep.kept import Kept
from headrace.plan.nodes import Leaf
from headrace.plan.pipelines import State
from headrace.plan.refs import LogRef, SystemRef
from headrace.runtime import Runtime
from headrace.sql.versions import no_history
from headrace.store import Snapshot
from headrace.table import history
from headrace.types import Field, Schema


class Inside:
    """Resolves and reads the relations of the schema ``headrace``."""

    def __init__(self, runtime: Runtime, keeper: Keeper) -> None:
        self._keeper = keeper
        with runtime.store.read() as snapshot:
            self._opened = OpenDatabase(runtime, keeper, snapshot.epoch, snapshot.counts())

    # Names (the binder asks)

    def scan(self, name: str, args: Sequence[str | int] | None, position: Position | None) -> Leaf:
        """The scan of ``headrace.name`` or, with arguments, of ``headrace.name(…)``."""
        key = name.lower()
        if args is None and (found := listing_of(key)) is not None:
            return Leaf.of(SystemRef(key), found.columns)
        if args is not None and key == "state":
            return self._state_scan(args, position)
        if args is not None and key == "changes":
            return self._changes_scan(args, position)
        names = all_listings()
        near = get_close_matches(key, names, n=1)
        raise CatalogError(
            "TABLE_OR_VIEW_NOT_FOUND",
            f"there is no relation headrace.{name}{'' if args is None else '(…)'}",
            position=position,
            hint=f"did you mean headrace.{near[0]}?"
            if near and args is None
            else f"there are {', '.join(f'headrace.{n}' for n in names)} and headrace.state('view'), "
            "headrace.changes('table', 17)",
        )

    def _changes_scan(self, args: Sequence[str | int], position: Position | None) -> Leaf:
        name, *epochs = args
        since, until = (*(e for e in epochs if isinstance(e, int)), None, None)[:2]
        if not isinstance(name, str) or len(epochs) > 2 or any(isinstance(e, str) for e in epochs):
            raise SqlError(
                "WRONG_NUM_ARGS",
                "headrace.changes takes a table, the version after which changes are wanted, and the last one",
                position=position,
                hint="write headrace.changes('table', 17) or headrace.changes('table', 17, 25)",
            )
        if since is not None and until is not None and until < since:
            raise SqlError(
                "INVALID_ARGUMENT",
                f"version {until} is not after version {since}",
                position=position,
                hint="write the older one first",
            )
        table = self._opened.runtime.catalog.get(name, position=position)
        if table.keep_changes is None:
            raise no_history(table, f"headrace.changes('{table.name}')", position)
        return Leaf.of(LogRef(table.name, table.number, since, until, position), history.log_columns(table))

    def _state_scan(self, args: Sequence[str | int], position: Position | None) -> Leaf:
        if len(args) not in (1, 2) or not all(isinstance(arg, str) for arg in args):
            raise SqlError(
                "WRONG_NUM_ARGS",
                f"headrace.state takes a view and, where it keeps several states, one of them; {len(args)} are given",
                position=position,
                hint="write headrace.state('view') or headrace.state('view', 's1')",
            )
        names_ = [str(arg) for arg in args]
        found: View = self._opened.runtime.catalog.get(names_[0], View, position=position)
        if not found.is_kept:
            raise CatalogError(
                "VIEW_KEEPS_NOTHING",
                f"{found.name} is an ordinary view: it keeps no state",
                position=position,
                hint="headrace.views lists the views and the states they keep",
            )
        view: Kept = self._keeper.get(found.name)
        names = [s.name for s in view.states]
        wanted = names_[1].lower() if len(args) > 1 else names[0]
        if wanted not in names:
            raise CatalogError(
                "STATE_NOT_FOUND",
                f"{view.name} keeps no state {args[1]}",
                position=position,
                hint=f"it keeps {', '.join(names)}; DESCRIBE {view.name} says what each is",
            )
        state = view.by_name[wanted]
        assert state.folds is not None
        return Leaf.of(SystemRef(view.name, state.ref), _by_label(state.folds))

    # Rows

    def rows(self, snapshot: Snapshot, ref: SystemRef, wanted: Collection[str]) -> pa.Table:
        """The rows of what :meth:`scan` named as of the snapshot: the wanted columns, and maybe others."""
        found = listing_of(ref.name)
        if found is not None and ref.state is None:
            names = [f.name for f in found.columns]
            return found.read(Asked(self._opened, snapshot), [n for n in names if n in wanted] or names[:1])
        owner = self._keeper.owner(ref.state) if ref.state is not None else None
        state = next((s for s in owner.states if s.ref == ref.state), None) if owner is not None else None
        if state is not None and state.folds is not None:
            return state.home.merged(snapshot, state).rename_columns([f.name for f in _by_label(state.folds)])
        raise CatalogError("TABLE_OR_VIEW_NOT_FOUND", f"there is no state of {ref.name} any more", hint="ask again")

    def shown(self, name: str) -> pa.Table:
        """What SHOW prints of a listing, as of now."""
        found = listing_of(name)
        assert found is not None
        with self._opened.runtime.store.read() as snapshot:
            return found.read(Asked(self._opened, snapshot), found.shown)


def _by_label(state: State) -> Schema:
    """A state's columns under names that say what they mean, each name once."""
    named: list[Field] = []
    seen: set[str] = set()
    for field, label in zip(state.schema, state.labels, strict=True):
        name, n = label, 1
        while name.lower() in seen:
            n += 1
            name = f"{label} {n}"
        seen.add(name.lower())
        named.append(Field(name, field.type))
    return tuple(named)
