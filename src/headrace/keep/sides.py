"""Build sides that follow what they are made of: each row sees tables as of its own commit.

A kept relation may probe tables as they are when its rows come (``CREATE VIEW … WITH (tables = 'arrival')``). Such a
build side is no file of the database. The worker holds it; whoever needs it first makes it, and so does whoever needs
it first after a table it reads has changed. All that was made goes with the process.

Who runs with a build side notes the epochs that last altered the tables it was made of, and looks again in its own
commit: if one has changed by then, what was computed is void and the input is run again (``engine/work.py:Overtaken``).
So rows may replace others in a build side at any time: runs that can have read some of each are void, as well.
Sides that compute the same have one name, and so are one.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.interrupts import Lock
from headrace.engine.work import Overtaken, Static
from headrace.errors import HeadraceError
from headrace.plan.nodes import Node, leaves, tables_in
from headrace.plan.refs import TableRef
from headrace.runtime import Runtime
from headrace.store import Transaction
from headrace.table import query
from headrace.table.files import refresh

if TYPE_CHECKING:
    from headrace.keep.kept import Kept


@dataclass(frozen=True, eq=False)
class Side:
    """A build side that is to be what its plan gives now."""

    name: str
    """What it is probed by; those that compute the same have the same."""
    plan: Node
    fields: tuple[str, ...]
    """What its columns are called."""

    @cached_property
    def tables(self) -> frozenset[int]:
        """The tables it is made of, by their numbers."""
        return frozenset(leaf.number for leaf in leaves(self.plan, TableRef))


Seen = tuple[int, int]
"""A table, and the epoch that last altered it."""


@dataclass(frozen=True)
class AsOf:
    """The build sides of one run, and the tables they are made of as they were then."""

    files: Mapping[str, Path] = field(default_factory=dict)
    """Where each side's rows lie once they are written, by its name."""
    seen: frozenset[Seen] = frozenset()
    is_held: Callable[[], bool] = lambda: True
    """Whether the worker holds the rows of these sides, and no others in their place."""

    def check(self, tx: Transaction) -> None:
        """In the commit of what the run has left: :class:`Overtaken` unless these tables are what they were."""
        if not (self.is_held() and _still(self.seen, tx.last_change)):
            raise Overtaken


@dataclass(frozen=True)
class _Made:
    """What a side was made of."""

    prepared: query.Prepared
    file: Path
    seen: frozenset[Seen]
    is_draft: bool
    """Whether of tables that a batch has changed, which may come to nothing: nobody else may use it, nor may the batch
    when it has changed them again."""


class Sides:
    """All build sides of an open database that follow what they are made of."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._made: dict[str, _Made] = {}
        self._making = Lock()
        self._guard = threading.Lock()
        self._users = Counter[Path]()
        """How many runs may read a file."""

    @contextmanager
    def as_of_now(self, fed: Sequence[Kept]) -> Iterator[AsOf]:
        """The build sides these relations probe, made of the tables as they are; files stay until the block ends."""
        made: dict[str, _Made] = {}
        try:
            for kept in fed:
                for side in kept.sides:
                    if side.name not in made:
                        made[side.name] = self._current(kept, side)
            seen = frozenset(s for m in made.values() for s in m.seen)
            yield AsOf({n: m.file for n, m in made.items()}, seen, partial(self._holds, made))
        finally:
            for one in made.values():
                self._release(one)

    def is_now(self, as_of: AsOf) -> bool:
        """Whether none of the tables has changed since, and the sides are there."""
        made = dict(self._made)
        there = all(name in made and made[name].file == file for name, file in as_of.files.items())
        return there and _still(as_of.seen, self._runtime.store.last_change)

    def _holds(self, made: Mapping[str, _Made]) -> bool:
        with self._guard:
            return all(self._made.get(name) is one for name, one in made.items())

    def forget(self, names: Collection[str]) -> None:
        """Let go of build sides nobody has any more."""
        with self._making:  # in one step with the worker: what is made is held
            with self._guard:
                for name in names:
                    self._replace(name, None)
            self._runtime.worker.forget(names)

    def _current(self, kept: Kept, side: Side) -> _Made:
        """The side, made of what is there now: to be released."""
        try:
            self._look_at_files(side)
            if (made := self._taken(side)) is not None:
                return made
            with self._making:
                made = self._taken(side)  # by whoever held the lock
                return made if made is not None else self._make(side)
        except HeadraceError as error:
            read = ", ".join(sorted(tables_in(side.plan)))
            error.message = f"{kept.relation.kind} {kept.name} cannot read {read} as of now: {error.message}"
            raise

    def _look_at_files(self, side: Side) -> None:
        found = (self._runtime.catalog.table_at(number) for number in side.tables)
        refresh(self._runtime, [table for table in found if table is not None and table.files is not None])

    def _taken(self, side: Side) -> _Made | None:
        """What there is of the side if that is how its tables are now."""
        with self._guard:
            made = self._made.get(side.name)
            if made is None or made.is_draft or not _still(made.seen, self._runtime.store.last_change):
                return None
            self._users[made.file] += 1
            return made

    def _make(self, side: Side) -> _Made:
        runtime, before = self._runtime, self._made.get(side.name)
        prepared = before.prepared if before is not None else query.Prepared(runtime, side.plan)
        while True:
            with runtime.store.read() as snapshot, suppress(query.Again):
                rows = query.run(runtime, snapshot, prepared).rename_columns(side.fields)
                seen = frozenset((table, snapshot.last_change(table)) for table in side.tables)
                break
        # A name no process ever gives again: Spark's workers outlive databases, and know build sides by their files.
        batch = runtime.store.batch
        is_draft = batch is not None and any(epoch == batch.epoch for _, epoch in seen)
        made = _Made(prepared, runtime.scratch_file(f"-{uuid.uuid4().hex}.parquet"), seen, is_draft)
        runtime.worker.hold(Static(side.name, made.file), rows)
        with self._guard:
            self._users[made.file] += 1
            self._replace(side.name, made)
        return made

    def _replace(self, name: str, made: _Made | None) -> None:
        """Hold ``_guard``."""
        before = self._made.pop(name, None)
        if made is not None:
            self._made[name] = made
        if before is not None and not self._users[before.file]:
            self._remove(before.file)

    def _release(self, made: _Made) -> None:
        with self._guard:
            self._users[made.file] -= 1
            if not self._users[made.file] and all(other.file != made.file for other in self._made.values()):
                self._remove(made.file)

    def _remove(self, file: Path) -> None:
        del self._users[file]
        with suppress(OSError):  # what is left is swept at the next open
            file.unlink(missing_ok=True)


def _still(seen: frozenset[Seen], last_change: Callable[[int], int]) -> bool:
    return all(last_change(table) == epoch for table, epoch in seen)
