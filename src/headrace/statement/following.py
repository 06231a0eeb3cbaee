"""The changes of a table or materialized view for a program, each row of them once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pyarrow as pa

from headrace.base.boundary import public
from headrace.catalog import Relation, Table, View, gone
from headrace.errors import CatalogError, DataError
from headrace.keep.keeper import Keeper
from headrace.sql.versions import no_history
from headrace.table import history


class ChangeReader:
    """Reads changes: :meth:`read` gives those since the last call, and so does each step of a loop.

    A loop ends when there are no more, and may be begun again later. ``position`` says up to where changes were
    given: kept with what was made of them, and given back as ``db.changes(table, since=position)``, it makes the
    reader go on there. Without one the first rows are the whole table or view.
    """

    def __init__(
        self, keeper: Keeper, in_use: Callable[[], AbstractContextManager[None]], table: Relation, since: int | None
    ) -> None:
        """Use ``db.changes``."""
        if table.keep_changes is None:
            raise no_history(table, f"the changes of {table.name}", None)
        self._runtime = keeper.runtime
        self._keeper = keeper
        self._in_use = in_use
        self._name, self._number = table.name, table.number
        self._position = since

    @property
    def position(self) -> int | None:
        """The version up to which changes were given; None before the first."""
        return self._position

    @public
    def read(self) -> pa.Table:
        """All changes since the last call, in the order of their epochs; no rows if there were none."""
        with self._in_use():
            relation = self._runtime.catalog.at(self._number)
            if relation is None:
                raise gone(self._name)
            table = history.of(relation)
            if table is None:
                raise no_history(relation, f"the changes of {relation.name}", None)
            with self._runtime.store.read() as snapshot:
                if self._position is None:
                    version, rows = history.whole(snapshot, table, self._keeper.answer(snapshot, relation))
                else:
                    version, rows = history.changed(snapshot, table, self._position)
            self._position = max(version, self._position or 0)
            return rows

    def __iter__(self) -> Iterator[pa.Table]:
        while (rows := self.read()).num_rows:
            yield rows

    def __repr__(self) -> str:
        return f"ChangeReader({self._name!r}, position={self._position})"


def reader_of(
    keeper: Keeper, in_use: Callable[[], AbstractContextManager[None]], name: str, since: object
) -> ChangeReader:
    """The reader of a table's changes after a position."""
    relation: Relation = keeper.runtime.catalog.get(name)
    if not isinstance(relation, Table) and not (isinstance(relation, View) and relation.materialized):
        raise CatalogError(
            "WRONG_COMMAND_FOR_OBJECT_TYPE",
            f"{relation.name} is a {relation.kind}",
            hint="changes are kept of tables and materialized views; Spark reads those of any view: "
            'option("changes", …)',
        )
    if since is not None and (not isinstance(since, int) or isinstance(since, bool) or since < 0):
        raise DataError(
            "INVALID_POSITION", f"{since!r} is no position", hint="give the position of a reader, or a version"
        )
    return ChangeReader(keeper, in_use, relation, since)
