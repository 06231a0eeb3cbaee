"""ALTER: a definition changes in one commit, and what reads the relation goes on reading what it read.

Names are the definition's alone: the store knows relations by numbers and columns by the names they began with, so a
rename moves nothing, and neither a new column nor one that goes touches a segment. What others read is not taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from headrace.base.lacking import lacking
from headrace.catalog import Catalog, Relation, Stream, Table, View, check_names, in_use
from headrace.catalog.refreshing import Refreshing
from headrace.catalog.relation import to_json
from headrace.errors import CatalogError, DataError, NotYetSupported, Position, SqlError
from headrace.keep.deferral import Deferral
from headrace.keep.keeper import Keeper
from headrace.keep.standing import Standings, StoodAt
from headrace.runtime import Runtime
from headrace.sql import alter as a
from headrace.statement.define import Definer, News
from headrace.statement.readers import readers_of_change
from headrace.store import Transaction
from headrace.table import changing, constraints, history
from headrace.table import rows as tables
from headrace.types import Field
from headrace.view.materialized import require_policy

_KINDS: dict[type[Any], tuple[type[Relation], ...]] = {
    a.RenameTo: (Relation,),
    a.AddColumns: (Table, Stream),
    a.RenameColumn: (Table, Stream),
    a.SetDefault: (Table, Stream),
    a.DropColumns: (Table,),
    a.AddCheck: (Table,),
    a.DropCheck: (Table,),
    a.SetKeepChanges: (Table,),
    a.SetRefreshing: (View,),
}
"""What each action can be done to."""


class Alterer:
    """Alters relations. Hold ``tables_lock``."""

    def __init__(self, runtime: Runtime, keeper: Keeper, definer: Definer, deferral: Deferral) -> None:
        self._runtime = runtime
        self._deferral = deferral
        self._keeper = keeper
        self._definer = definer

    def run(self, statement: a.Alter, relation: Relation) -> str:
        """Do what a statement says; what it did, for people."""
        action, at = statement.action, statement.action_position
        if not isinstance(relation, _KINDS[type(action)]):
            self._refuse(statement, relation)
        if isinstance(relation, Table) and relation.files is not None and not isinstance(action, a.RenameTo):
            raise NotYetSupported(
                f"ALTER of {relation.name}, which lies in files",
                position=at,
                hint="CREATE OR REPLACE TABLE … USING … LOCATION declares it otherwise, over the same files",
            )
        match action:
            case a.RenameTo():
                return self._rename(relation, action)
            case a.AddColumns():
                return self._add(relation, action)
            case a.RenameColumn():
                return self._rename_column(relation, action)
            case a.SetDefault():
                return self._set_default(relation, action)
            case a.SetRefreshing():
                return self._set_refreshing(relation, action, at)
        assert isinstance(relation, Table)
        match action:
            case a.DropColumns():
                return self._drop(relation, action)
            case a.AddCheck():
                return self._add_check(relation, action)
            case a.DropCheck():
                return self._drop_check(relation, action)
            case a.SetKeepChanges():
                if action.microseconds is not None:
                    history.check_columns(relation.columns, relation.name, statement.action_position)
                self._commit(relation, replace(relation, keep_changes=action.microseconds))
        return f"table {relation.name} altered"

    def _refuse(self, statement: a.Alter, relation: Relation) -> NoReturn:
        if isinstance(relation, Stream):
            raise NotYetSupported(
                "ALTER STREAM other than RENAME, ADD COLUMN and defaults",
                position=statement.action_position,
                hint=f"make another stream, and views over it; rows of {relation.name} are kept by nobody",
            )
        raise CatalogError(
            "WRONG_COMMAND_FOR_OBJECT_TYPE",
            f"{relation.name} is a {relation.kind}, whose columns are those of its query",
            position=statement.action_position,
            hint=f"RENAME TO is for all; CREATE OR REPLACE VIEW {relation.name} AS … gives it another query",
        )

    # Actions

    def _rename(self, relation: Relation, action: a.RenameTo) -> str:
        catalog = self._runtime.catalog
        if (found := catalog.find(action.name)) is not relation:
            catalog.require_free(action.name, action.position)
        if found is relation and relation.name == action.name:
            return f"{relation.kind} {relation.name} is called so already"
        renamed = catalog.renamed(relation.name, action.name)
        new = renamed.find(action.name)
        assert new is not None
        check_names(new, action.position)
        self._commit(relation, new, catalog=renamed)
        return f"{relation.kind} {relation.name} is called {new.name} now"

    def _add(self, relation: Relation, action: a.AddColumns) -> str:
        new = relation
        for column in action.columns:
            self._require_new(new, column.field.name, column.position)
            if column.checks and not isinstance(relation, Table):
                raise NotYetSupported(
                    "CHECK on a stream", position=column.checks[0].position, hint="filter in the views over it: WHERE …"
                )
            field = column.field
            if column.default is not None:
                default = constraints.default_of(self._runtime, column.default, field)
                field = replace(field, default=default)
            before = lacking(field)
            if not field.nullable and before is None and self._has_rows(relation):
                raise SqlError(
                    "NOT_NULL_WITHOUT_DEFAULT",
                    f"{relation.name} has rows, in which {field.name} would be NULL",
                    position=column.position,
                    hint=f"give it a value there: ADD COLUMN {field.name} {field.type.sql} NOT NULL DEFAULT …",
                )
            if isinstance(new, Table):
                new = new.with_column(field, before)
                for check in column.checks:
                    new = replace(new, checks=(*new.checks, constraints.check_of(self._runtime, check, new)))
            else:
                number = new.last_column + 1
                new = replace(new, columns=(*new.columns, replace(field, id=number)), last_column=number)
        self._check_names(new, action.columns[0].position)
        self._commit(relation, new, self._reshaping(relation, new))
        return f"{relation.kind} {relation.name} has {_listed(c.field.name for c in action.columns)} now"

    def _drop(self, table: Table, action: a.DropColumns) -> str:
        new = table
        for name, position in action.names:
            column = _column(new, name, None if action.if_exists else position)
            if column is None:
                continue
            if column.name in new.primary_key:
                raise CatalogError(
                    "COLUMN_IN_PRIMARY_KEY",
                    f"{column.name} is in the primary key of {table.name}",
                    position=position,
                    hint="CREATE OR REPLACE TABLE t AS SELECT … FROM t makes a table without the key",
                )
            without = new.without_column(column)
            if not without.columns:
                raise CatalogError(
                    "MISSING_COLUMNS", f"{table.name} would have no column", position=position, hint="DROP TABLE it"
                )
            if readers := readers_of_change(self._runtime, table, without):
                raise in_use(f"{table.name}.{column.name}", readers, position, "drop {} first, or leave it out there")
            for check in new.checks:
                if not constraints.can_check(self._runtime, without, check):
                    raise CatalogError(
                        "COLUMN_IN_CONSTRAINT",
                        f"{column.name} is read by the constraint {check.name}, CHECK ({check.text})",
                        position=position,
                        hint=f"ALTER TABLE {table.name} DROP CONSTRAINT {check.name} first",
                    )
            new = without
        if new is table:
            return f"table {table.name} has no such column"
        self._commit(table, new, self._reshaping(table, new))
        gone = [c.name for c in table.columns if c not in new.columns]
        return f"table {table.name} has no {_listed(gone)} any more"

    def _rename_column(self, relation: Relation, action: a.RenameColumn) -> str:
        column = _column(relation, action.name, action.position)
        assert column is not None
        if action.new.lower() != column.name.lower():
            self._require_new(relation, action.new, action.new_position)
        if isinstance(relation, Table):
            new: Relation = relation.with_renamed(column, action.new)
        else:
            columns = tuple(replace(c, name=action.new) if c is column else c for c in relation.columns)
            new = replace(relation, columns=columns)
        self._check_names(new, action.new_position)
        self._commit(relation, new)
        return f"{relation.name}.{column.name} is called {action.new} now"

    def _set_default(self, relation: Relation, action: a.SetDefault) -> str:
        column = _column(relation, action.column, action.position)
        assert column is not None
        written = action.default
        default = constraints.default_of(self._runtime, written, column) if written is not None else None
        columns = tuple(replace(c, default=default) if c is column else c for c in relation.columns)
        self._commit(relation, replace(relation, columns=columns))
        said = f"is {default.text}" if default is not None else "is NULL"
        return f"the default of {relation.name}.{column.name} {said} now"

    def _add_check(self, table: Table, action: a.AddCheck) -> str:
        check = constraints.check_of(self._runtime, action.check, table)
        new = replace(table, checks=(*table.checks, check))
        with self._runtime.store.read() as snapshot:
            rows = tables.chunks(snapshot, table)
            broken = constraints.violation(self._runtime, replace(new, checks=(check,)), rows)
        if broken is not None:
            raise DataError(
                "NEW_CHECK_CONSTRAINT_VIOLATION",
                f"CHECK ({check.text}) is false of the row of {table.name} with {broken[1]}",
                position=action.check.position,
                hint="change or delete such rows first",
            )
        self._commit(table, new)
        return f"table {table.name} has the constraint {check.name} now"

    def _drop_check(self, table: Table, action: a.DropCheck) -> str:
        left = tuple(check for check in table.checks if check.name.lower() != action.name.lower())
        if len(left) == len(table.checks):
            if action.if_exists:
                return f"table {table.name} has no constraint {action.name}"
            names = ", ".join(check.name for check in table.checks)
            raise CatalogError(
                "CONSTRAINT_DOES_NOT_EXIST",
                f"{table.name} has no constraint {action.name}",
                position=action.position,
                hint=f"it has {names}" if names else "it has none",
            )
        self._commit(table, replace(table, checks=left))
        return f"table {table.name} has no constraint {action.name} any more"

    def _set_refreshing(self, view: Relation, action: a.SetRefreshing, at: Position) -> str:
        if not isinstance(view, View) or not view.materialized:
            raise CatalogError(
                "WRONG_COMMAND_FOR_OBJECT_TYPE",
                f"{view.name} is no materialized view",
                position=at,
                hint="it has nothing to be refreshed from",
            )
        before = view.refreshing
        for name, position in action.unset:
            if name not in ("batch_rows", "period", "staleness", "on_error"):
                raise SqlError(
                    "VIEW_OPTION_UNKNOWN",
                    f"a materialized view has no option {name} to unset",
                    position=position,
                    hint="UNSET takes batch_rows, period, staleness and on_error",
                )
            before = replace(before, **{name: getattr(Refreshing(), name)})
        refreshing = action.wanted.over(before, is_new=False)
        kept = self._keeper.get(view.name)
        new = replace(view, refreshing=refreshing)
        require_policy(self._runtime, new, kept.layers, at)
        moves = refreshing.strategy != view.refreshing.strategy
        if moves:  # the states are those of now from here on: tables stand still
            self._deferral.refresh(view.name, "ALTER", steady=True)
        standing: Standings = kept.standing

        def work(tx: Transaction) -> None:
            if moves:
                standing.put(tx, StoodAt(tx.epoch, tx.moment))

        self._commit(view, new, work)
        self._deferral.stir()
        return f"materialized view {view.name} has {refreshing} now"

    # Parts

    def _check_names(self, relation: Relation, position: Position) -> None:
        check_names(relation, position)
        if isinstance(relation, Table) and relation.keep_changes is not None:
            history.check_columns(relation.columns, relation.name, position)

    def _require_new(self, relation: Relation, name: str, position: Position) -> None:
        if any(c.name.lower() == name.lower() for c in relation.columns):
            raise SqlError(
                "FIELD_ALREADY_EXISTS",
                f"{relation.name} has a column {name} already",
                position=position,
                hint=f"it has {', '.join(c.name for c in relation.columns)}",
            )

    def _has_rows(self, relation: Relation) -> bool:
        if not isinstance(relation, Table):
            return False
        with self._runtime.store.read() as snapshot:
            return changing.count(snapshot, relation) > 0

    def _reshaping(self, old: Relation, new: Relation) -> Callable[[Transaction], None]:
        """Its tail in the columns it has now; segments stay as they are."""

        def work(tx: Transaction) -> None:
            if isinstance(old, Table) and isinstance(new, Table):
                tables.reshape(tx, old, new)

        return work

    def _commit(
        self,
        old: Relation,
        new: Relation,
        work: Callable[[Transaction], None] = lambda tx: None,
        catalog: Catalog | None = None,
    ) -> None:
        """Define it otherwise. What is kept of it, or is it, is compiled anew at its next need."""
        runtime = self._runtime
        catalog = catalog or runtime.catalog.with_relation(new)
        found = (old, *runtime.catalog.all_dependents(old.name))
        kept = [k for r in found if (k := self._keeper.known(r)) is not None]
        is_other = [(c.name, c.id) for c in old.columns] != [(c.name, c.id) for c in new.columns]

        def all_of_it(tx: Transaction) -> News:
            made = tx.redefine(old.name, to_json(new), new.name)
            work(tx)
            if isinstance(old, Table) and isinstance(new, Table):
                history.alter(tx, old, new, f"ALTER TABLE {old.name}")
                tx.note_change(old.number)
            news = News([(new.name, new, made)])
            if new.name.lower() != old.name.lower():
                news.told.insert(0, (old.name, None, made))
            if is_other and isinstance(old, Table):
                news.forsaken.append((old.born or old.name, made))  # changes that were noted have other columns
            return news

        def left() -> None:
            for one in kept:
                self._keeper.leave(one)

        self._definer.commit(catalog, all_of_it, f"ALTER {old.kind.upper()} {old.name}", left=left)
        for one in kept:
            self._keeper.forget(one)
        if isinstance(old, Stream) and isinstance(new, Stream) and (is_other or new.name != old.name):
            with runtime.tidying.after(f"making the buffer of {new.name} anew"):
                runtime.rings.drop(old.name)
                if new.buffer is not None:
                    runtime.rings.open(new)


def _column(relation: Relation, name: str, position: Position | None) -> Field | None:
    """Its column of that name; an error if there is none and a position is given."""
    found = next((c for c in relation.columns if c.name.lower() == name.lower()), None)
    if found is None and position is not None:
        raise SqlError(
            "UNRESOLVED_COLUMN",
            f"{relation.name} has no column {name}",
            position=position,
            hint=f"it has {', '.join(c.name for c in relation.columns)}",
        )
    return found


def _listed(names: Any) -> str:
    found: Sequence[str] = list(names)
    return f"column{'' if len(found) == 1 else 's'} {', '.join(found)}"
