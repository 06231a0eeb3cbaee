"""UPDATE, DELETE, TRUNCATE, MERGE and INSERT OVERWRITE: a table's rows change, all that a statement says in one epoch.

A statement is read as queries whose rows say what is to go and what is to come (``sql/changes.py``). They run in one
snapshot, and their change is committed before any other statement writes to tables: so statements that change tables
run as if one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from sqlglot import exp

from headrace.base.interrupts import at_once
from headrace.base.lacking import lacking, lacking_rows
from headrace.base.wording import counted
from headrace.catalog import Table
from headrace.catalog.table import FILE, ROW
from headrace.errors import CatalogError, ExecutionError, NotYetSupported, Position, SqlError
from headrace.input.rows import to_arrow
from headrace.plan.exprs import Column, Expr, Literal
from headrace.plan.nodes import Node, Project, streams_in
from headrace.plan.rules import optimize
from headrace.runtime import Runtime
from headrace.sql import changes as c
from headrace.sql.nondeterminism import nondeterministic_call
from headrace.sql.source import position_of
from headrace.sql.store_assignment import cast_for_store, storing
from headrace.sql.system import name_of
from headrace.statement.read import QueryReader
from headrace.table import changing, constraints
from headrace.table.changing import TableChange

_NOTHING = "__one"
"""A column of a query that is asked for rows alone."""


@dataclass(frozen=True)
class Changed:
    """How many rows a statement has changed."""

    table: str
    updated: int = 0
    deleted: int = 0
    inserted: int = 0

    @property
    def rows(self) -> int:
        return self.updated + self.deleted + self.inserted

    @property
    def message(self) -> str:
        """
        >>> Changed("t", updated=1, inserted=2).message, Changed("t").message
        ('1 row updated, 2 rows inserted in t', '0 rows changed in t')
        """
        parts = {"updated": self.updated, "deleted": self.deleted, "inserted": self.inserted}
        said = [f"{counted(n, 'row')} {what}" for what, n in parts.items() if n]
        return f"{', '.join(said) or '0 rows changed'} in {self.table}"


class Changer:
    """Runs the statements that change tables."""

    def __init__(self, runtime: Runtime, reader: QueryReader) -> None:
        self._runtime = runtime
        self._reader = reader

    def run(self, statement: c.Change) -> Changed:
        """Do what a statement says."""
        with self._runtime.tables_lock:
            match statement:
                case c.Update():
                    return self._update(statement)
                case c.Delete():
                    return self._delete(statement)
                case c.Truncate():
                    return self._all_gone(self._table(statement.name, statement.position))
                case c.Merge():
                    return self._merge(statement)

    def overwrite(self, table: Table, rows: pa.Table) -> Changed:
        """Put rows in the place of all of a table's."""
        with self._runtime.tables_lock:
            self._runtime.catalog.require_there(table)
            now = self._table(self._runtime.catalog.numbers[table.number].name, None)
            new = self._new_rows(now, constraints.as_of(now, table, rows))
            table, deleted = now, self._count(now)
            label = f"INSERT OVERWRITE {table.name}"
            changing.commit(self._runtime, table, TableChange.replacement(table, new), label)
            return Changed(table.name, deleted=deleted, inserted=new.num_rows)

    def plans(self, statement: c.Change) -> list[Node]:
        """The queries that say which rows change, for EXPLAIN."""
        if isinstance(statement, c.Truncate):
            self._table(statement.name, statement.position)
            return []
        table = self._table(statement.target.name, statement.target.position)
        match statement:
            case c.Update():
                return [self._updating(table, statement.target, statement.assignments, statement.where)]
            case c.Delete():
                if statement.where is None:
                    return []
                return [self._deleting(table, statement.target, statement.where)]
            case c.Merge():
                return [plan for _, plan in _Merging(self, table, statement).plans()]

    # One kind of change

    def _update(self, statement: c.Update) -> Changed:
        table = self._table(statement.target.name, statement.target.position)
        plan = self._updating(table, statement.target, statement.assignments, statement.where)
        with storing(), self._identified(table):
            (found,) = self._reader.rows_together([plan], changes=True)
        change = self.updated(table, statement.assignments, found)
        changing.commit(self._runtime, table, change, f"UPDATE {table.name}")
        return Changed(table.name, updated=found.num_rows)

    def _delete(self, statement: c.Delete) -> Changed:
        table = self._table(statement.target.name, statement.target.position)
        if statement.where is None:
            return self._all_gone(table)
        plan = self._deleting(table, statement.target, statement.where)
        with self._identified(table):
            (found,) = self._reader.rows_together([plan], changes=True)
        change = deleted(table, found, changing.needed(self._runtime, table))
        changing.commit(self._runtime, table, change, f"DELETE FROM {table.name}")
        return Changed(table.name, deleted=found.num_rows)

    def _all_gone(self, table: Table) -> Changed:
        rows = self._count(table)
        empty = pa.table({f.name: pa.array([], f.type.arrow) for f in table.columns})
        change = TableChange.replacement(table, empty)
        changing.commit(self._runtime, table, change, f"TRUNCATE TABLE {table.name}")
        return Changed(table.name, deleted=rows)

    def _merge(self, statement: c.Merge) -> Changed:
        table = self._table(statement.target.name, statement.target.position)
        merging = _Merging(self, table, statement)
        plans = merging.plans()
        with storing(), self._identified(table):
            found = self._reader.rows_together([plan for _, plan in plans], changes=True)
        change, done = TableChange.nothing(table), {"update": 0, "delete": 0, "insert": 0}
        for (clause, _), rows in zip(plans, found, strict=True):
            if clause is None:
                merging.refuse_repeated(rows)
                continue
            if clause.action == "delete":
                rows = _once(rows)
            done[clause.action] += rows.num_rows
            change = change.also(merging.change(clause, rows))
        changing.commit(self._runtime, table, change, f"MERGE INTO {table.name}")
        return Changed(table.name, done["update"], done["delete"], done["insert"])

    # Queries, and what their rows mean

    def _updating(
        self, table: Table, target: c.Target, assignments: Sequence[c.Assignment], where: exp.Expr | None
    ) -> Node:
        return self.query(table, c.select(self.new_values(table, target, assignments), target.item, where), assignments)

    def _deleting(self, table: Table, target: c.Target, where: exp.Expr | None) -> Node:
        values = self.old_values(target, changing.needed(self._runtime, table))
        return self.query(table, c.select(values, target.item, where), ())

    def old_values(self, target: c.Target, columns: Sequence[str]) -> list[exp.Expr]:
        return [*c.places(target), *(c.column_of(target.alias, name) for name in columns)]

    def new_values(self, table: Table, target: c.Target, assignments: Sequence[c.Assignment]) -> list[exp.Expr]:
        """Places, old values, then what is assigned."""
        given = [c.named(a.value, f"__new{i}") for i, a in enumerate(assignments) if a.value is not None]
        return [*self.old_values(target, [f.name for f in table.columns]), *given]

    def query(self, table: Table, tree: exp.Select, assignments: Sequence[c.Assignment]) -> Node:
        """The plan of such a query; assigned values, which come last, in the types of their columns."""
        types = {f.name.lower(): f for f in table.columns}
        named: set[str] = set()
        for a in assignments:
            if a.column.lower() not in types:
                raise SqlError(
                    "UNRESOLVED_COLUMN",
                    f"{table.name} has no column {a.column}",
                    position=a.position,
                    hint=f"it has {', '.join(f.name for f in table.columns)}",
                )
            if a.column.lower() in named:
                raise SqlError("COLUMN_ALREADY_EXISTS", f"column {a.column} is set twice", position=a.position)
            named.add(a.column.lower())
        try:
            bound = self._reader.binder().query(tree)
        except SqlError as error:
            if error.condition == "MISSING_GROUP_BY" and FILE in error.message:
                raise SqlError(
                    "UNSUPPORTED_EXPR_FOR_OPERATOR",
                    "there is nothing to aggregate in a new value",
                    position=assignments[0].position if assignments else None,
                    hint="aggregate in a subquery: SET a = (SELECT max(…) FROM …)",
                ) from None
            raise
        if streams_in(bound):
            raise NotYetSupported(
                "a stream in a statement that changes a table",
                hint="change the table from a view over the stream, or INSERT INTO another table first",
            )
        given = [a for a in assignments if a.value is not None]
        before = len(bound.output) - len(given)
        exprs: list[tuple[Column, Expr]] = [(out, out) for out in bound.output[:before] if out.name != _NOTHING]
        for a, out in zip(given, bound.output[before:], strict=True):
            field = types[a.column.lower()]
            exprs.append((Column.fresh(out.name, field.type), cast_for_store(out, field.type, field.name, a.position)))
        for i, a in enumerate(assignments):
            if a.value is None:
                field = types[a.column.lower()]
                exprs.append((Column.fresh(f"__default{i}", field.type), Literal(field.type, lacking(field))))
        return optimize(Project(bound, tuple(exprs)))

    def updated(self, table: Table, assignments: Sequence[c.Assignment], found: pa.Table) -> TableChange:
        """The change that an update's rows say."""
        new = self.assigned(table, assignments, found, 2 + len(table.columns))
        old = _old(found, [f.name for f in table.columns])
        keys = {name.lower() for name in table.primary_key}
        keeps = not any(a.column.lower() in keys for a in assignments)
        return TableChange(found.select([0, 1]), old, self._new_rows(table, new), keeps_keys=keeps)

    def assigned(self, table: Table, assignments: Sequence[c.Assignment], found: pa.Table, before: int) -> pa.Table:
        """The new rows: assigned values, which are last in what was found, and old ones for the other columns."""
        given = [a for a in assignments if a.value is not None] + [a for a in assignments if a.value is None]
        values: dict[str, pa.ChunkedArray] = {}
        if before:
            values = {f.name: found.column(i) for i, f in enumerate(table.columns, 2)}
        names = {f.name.lower(): f.name for f in table.columns}
        for i, a in enumerate(given, before):
            values[names[a.column.lower()]] = found.column(i)
        missing = {f.name: lacking_rows(f, found.num_rows) for f in table.columns if f.name not in values}
        values |= {name: pa.chunked_array([default]) for name, default in missing.items()}
        return pa.table({f.name: values[f.name] for f in table.columns})

    def _new_rows(self, table: Table, rows: pa.Table) -> pa.Table:
        """The rows as an INSERT would store them."""
        with at_once():
            found = to_arrow(rows, table.columns, zone=self._runtime.settings.time_zone)
        whole = found if isinstance(found, pa.Table) else found.read_all()
        constraints.check(self._runtime, table, whole)
        return whole

    # The table

    def _table(self, name: str, position: Position | None) -> Table:
        relation = self._runtime.catalog.get(name, position=position)
        if relation.is_stream:
            raise CatalogError(
                "WRONG_COMMAND_FOR_OBJECT_TYPE",
                f"{relation.name} is a stream, whose rows come by and are not kept",
                position=position,
                hint="change rows of a table; a stream takes INSERT and COPY",
            )
        relation.refuse_rows(position)
        table: Table = self._runtime.catalog.get(name, Table, position=position)
        return table

    @contextmanager
    def _identified(self, table: Table) -> Iterator[None]:
        changing.identify(self._runtime, table)
        yield

    def _count(self, table: Table) -> int:
        with self._runtime.store.read() as snapshot:
            return changing.count(snapshot, table)


def deleted(table: Table, found: pa.Table, columns: Sequence[str]) -> TableChange:
    """The change that a delete's rows say: places, and values of some columns."""
    none = pa.table({f.name: pa.array([], f.type.arrow) for f in table.columns})
    return TableChange(found.select([0, 1]), _old(found, columns), none, keeps_keys=True)


def _once(found: pa.Table) -> pa.Table:
    """Each place once: without a condition, a row may be deleted that matches several of the source."""
    numbers = pa.array(np.arange(found.num_rows))
    places = pa.table({FILE: found.column(0), ROW: found.column(1), "n": numbers})
    first = places.group_by([FILE, ROW]).aggregate([("n", "min")]).column("n_min")
    return found if len(first) == found.num_rows else found.take(first)


def _old(found: pa.Table, columns: Sequence[str]) -> pa.Table:
    return found.select(range(2, 2 + len(columns))).rename_columns(list(columns))


class _Merging:
    """MERGE: a query for each WHEN, over the rows that no WHEN before it has taken."""

    def __init__(self, changer: Changer, table: Table, statement: c.Merge) -> None:
        self._changer = changer
        self._table = table
        self._statement = statement
        self._source = statement.source
        if not isinstance(self._source, exp.Table) and not self._source.args.get("alias"):
            self._source = self._source.copy()
            self._source.set("alias", exp.TableAlias(this=exp.to_identifier("__source")))
        # Each clause has a query of its own: all must find the same rows.
        for part in (statement.on, self._source, *(clause.condition for clause in statement.clauses)):
            for node in part.walk() if part is not None else ():
                if (name := nondeterministic_call(node)) is not None:
                    raise SqlError(
                        "UNSUPPORTED_MERGE_CONDITION.NON_DETERMINISTIC",
                        f"{name}() gives another value each time, and MERGE asks for its rows more than once",
                        position=position_of(node),
                        hint="CREATE TABLE … AS SELECT what is to be merged, and merge that",
                    )

    def plans(self) -> list[tuple[c.Clause | None, Node]]:
        """What each clause does; the first, if it is of none, are the matched rows, each of which may be there once."""
        target, found = self._statement.target, list[tuple[c.Clause | None, Node]]()
        taken: Mapping[int, list[exp.Expr]] = {0: [], 1: [], 2: []}
        matched = [clause for clause in self._statement.clauses if clause.matched]
        if matched and not (len(matched) == 1 and matched[0].action == "delete" and matched[0].condition is None):
            tree = c.select(c.places(target), target.item, None, [self._join("", self._source)])
            found.append((None, self._changer.query(self._table, tree, ())))
        for clause in self._statement.clauses:
            before = taken[0 if clause.matched else 2 if clause.by_source else 1]
            where = _all([*([clause.condition] if clause.condition is not None else []), *map(_is_not, before)])
            found.append((clause, self._plan(clause, where)))
            if clause.condition is not None:
                before.append(clause.condition)
        return found

    def _plan(self, clause: c.Clause, where: exp.Expr | None) -> Node:
        changer, table, target = self._changer, self._table, self._statement.target
        assignments = self._assignments(clause)
        if clause.action == "insert":
            given: list[exp.Expr] = [
                c.named(a.value, f"__new{i}") for i, a in enumerate(assignments) if a.value is not None
            ]
            whole = c.unplaced(target.item)
            items = given or [c.named(exp.Literal.number(1), _NOTHING)]
            tree = c.select(items, self._source, where, [self._join("ANTI", whole)])
            return changer.query(table, tree, assignments)
        items = changer.new_values(table, target, assignments)
        joined = self._join("" if clause.matched else "ANTI", self._source)
        return changer.query(table, c.select(items, target.item, where, [joined]), assignments)

    def _join(self, kind: str, item: exp.Expr) -> exp.Join:
        side = "LEFT" if kind else ""
        return exp.Join(this=item.copy(), side=side, kind=kind, on=self._statement.on.copy())

    def _assignments(self, clause: c.Clause) -> Sequence[c.Assignment]:
        if clause.assignments is not None:
            return clause.assignments
        source = name_of(self._source)
        return [c.Assignment(f.name, c.column_of(source, f.name), clause.position) for f in self._table.columns]

    def change(self, clause: c.Clause, found: pa.Table) -> TableChange:
        assignments = self._assignments(clause)
        if clause.action == "delete":
            return deleted(self._table, found, [f.name for f in self._table.columns])
        if clause.action == "update":
            return self._changer.updated(self._table, assignments, found)
        new = self._changer.assigned(self._table, assignments, found, 0)
        return TableChange.insertion(self._table, self._changer._new_rows(self._table, new))

    def refuse_repeated(self, places: pa.Table) -> None:
        """A row of the table that matches several of the source's has no one thing that is to be done with it."""
        found = places.rename_columns([FILE, ROW])
        if found.group_by([FILE, ROW]).aggregate([]).num_rows < found.num_rows:
            raise ExecutionError(
                "MERGE_CARDINALITY_VIOLATION",
                f"some row of {self._table.name} matches more than one row of the source",
                hint="make the source unique by what ON compares; nothing was changed",
            )


def _all(conditions: Sequence[exp.Expr]) -> exp.Expr | None:
    found: exp.Expr | None = None
    for condition in conditions:
        one = exp.Paren(this=condition.copy())
        found = one if found is None else exp.And(this=found, expression=one)
    return found


def _is_not(condition: exp.Expr) -> exp.Expr:
    """Not true: false or NULL."""
    given = [exp.Paren(this=condition.copy()), exp.false()]
    return exp.Not(this=exp.Anonymous(this="coalesce", expressions=given))
