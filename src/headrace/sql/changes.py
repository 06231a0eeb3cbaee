"""Statements that change a table's rows: UPDATE, DELETE, TRUNCATE, MERGE, INSERT OVERWRITE; and the queries in them.

What a statement is to do with which rows is said by queries over the table and what the statement reads: their rows
have the places of the table's rows beside the values (``catalog/table.py:PLACE``). So subqueries, functions and types
mean here what they mean in any query.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from headrace.catalog.table import FILE, ROW
from headrace.errors import NotYetSupported, Position, SqlError
from headrace.sql.cursor import Cursor
from headrace.sql.grammar import parse_query
from headrace.sql.source import position_of, span_of, text_of
from headrace.types import quote

_PLACED = "with places"
_NO_ALIAS = {"SET", "WHERE", "USING", "ON"}


def is_placed(table: exp.Table) -> bool:
    """Whether a FROM item is the table that is changed, to be read with the places of its rows."""
    return bool(table.meta.get(_PLACED))


def unplaced(item: exp.Table) -> exp.Table:
    """The same table, read as anybody reads it."""
    found = item.copy()
    found.meta.pop(_PLACED, None)
    return found


@dataclass(frozen=True)
class Target:
    """The table to change, under the name the statement knows it by."""

    name: str
    item: exp.Table
    position: Position

    @property
    def alias(self) -> str:
        return self.item.alias or self.name


@dataclass(frozen=True)
class Assignment:
    """``column = value``; no value for DEFAULT."""

    column: str
    value: exp.Expr | None
    position: Position


@dataclass(frozen=True)
class Update:
    target: Target
    assignments: tuple[Assignment, ...]
    where: exp.Expr | None


@dataclass(frozen=True)
class Delete:
    target: Target
    where: exp.Expr | None


@dataclass(frozen=True)
class Truncate:
    name: str
    position: Position


@dataclass(frozen=True)
class Clause:
    """A WHEN of MERGE: which rows it is for, and what it does with them."""

    matched: bool
    by_source: bool
    """For WHEN NOT MATCHED: whether it is for rows of the table that the source lacks."""
    condition: exp.Expr | None
    action: str
    """``update``, ``delete`` or ``insert``."""
    assignments: tuple[Assignment, ...] | None
    """None for ``*``: all columns, from the source's of the same names."""
    position: Position


@dataclass(frozen=True)
class Merge:
    target: Target
    source: exp.Expr
    on: exp.Expr
    clauses: tuple[Clause, ...]


Change = Update | Delete | Truncate | Merge


def refuse_stars(*parts: exp.Expr | None) -> None:
    """A star would stand for the places of rows too where Spark reads it."""
    for part in parts:
        for star in part.find_all(exp.Star) if part is not None else ():
            inside = star.find_ancestor(exp.Query)
            function = star.parent.name.lower() if star.parent is not None else ""
            if inside is None and function != "count" and not isinstance(star.parent, exp.Count):
                raise NotYetSupported(
                    "* in a statement that changes a table", position=position_of(star), hint="name the columns"
                )


def target(read: Cursor) -> Target:
    position, start = read.position(), read.at
    name = read.name()
    item = exp.Table(this=read.made(exp.Identifier(this=name, quoted=False), start))
    at = read.at
    if read.take("AS") or (read.is_name() and read.word() not in _NO_ALIAS):
        item.set("alias", read.made(exp.TableAlias(this=read.identifier("an alias")), at))
    item = read.made(item, start)
    item.meta[_PLACED] = True
    return Target(name, item, position)


def update(read: Cursor) -> Update:
    """``UPDATE t SET a = 1 WHERE …``."""
    read.expect("UPDATE")
    found = target(read)
    if not read.take("SET"):
        read.fail("SET and what to change")
    assignments = tuple(read.series(lambda: assignment(read, found.alias)))
    where = _where(read)
    read.end()
    refuse_stars(where, *(a.value for a in assignments))
    return Update(found, assignments, where)


def delete(read: Cursor) -> Delete:
    """``DELETE FROM t WHERE …``."""
    read.expect("DELETE")
    if not read.take("FROM"):
        read.fail("FROM and a table")
    found = target(read)
    where = _where(read)
    read.end()
    refuse_stars(where)
    return Delete(found, where)


def truncate(read: Cursor) -> Truncate:
    """``TRUNCATE TABLE t``."""
    read.expect("TRUNCATE")
    if not read.take("TABLE"):
        read.fail("TABLE and its name")
    position = read.position()
    name = read.name()
    if read.word() == "PARTITION":
        raise NotYetSupported("partitions of a table", position=read.position(), hint="DELETE FROM t WHERE …")
    read.end()
    return Truncate(name, position)


def merge(read: Cursor) -> Merge:
    """``MERGE INTO t USING s ON … WHEN …``."""
    read.expect("MERGE")
    if read.word() == "WITH":
        raise NotYetSupported("MERGE WITH SCHEMA EVOLUTION", position=read.position(), hint="ALTER the table first")
    if not read.take("INTO"):
        read.fail("INTO and a table")
    found = target(read)
    if not read.take("USING"):
        read.fail("USING and what to merge")
    source = read.relation_primary()
    if not read.take("ON"):
        read.fail("ON and a condition")
    on = read.expression()
    clauses: list[Clause] = []
    while read.word() == "WHEN":
        clauses.append(_clause(read, found.alias))
    if not clauses:
        read.fail("WHEN MATCHED or WHEN NOT MATCHED")
    read.end()
    for clause in clauses:
        refuse_stars(on, clause.condition, *(a.value for a in clause.assignments or ()))
    for rank, (before, after) in enumerate(itertools.pairwise(clauses)):
        if _rank(before) > _rank(after):
            raise SqlError(
                "PARSE_SYNTAX_ERROR",
                "WHEN MATCHED comes first, then WHEN NOT MATCHED, then WHEN NOT MATCHED BY SOURCE",
                position=after.position,
                hint="write the clauses in that order",
            )
        if _rank(before) == _rank(after) and before.condition is None:
            kind = ("MATCHED", "NOT_MATCHED", "NOT_MATCHED_BY_SOURCE")[_rank(before)]
            raise SqlError(
                f"NON_LAST_{kind}_CLAUSE_OMIT_CONDITION",
                f"WHEN clause {rank + 1} takes all rows, so those after it get none",
                position=before.position,
                hint="only the last clause of a kind may leave its condition out",
            )
    return Merge(found, source, on, tuple(clauses))


def _rank(clause: Clause) -> int:
    return 0 if clause.matched else 2 if clause.by_source else 1


def _clause(read: Cursor, alias: str) -> Clause:
    position = read.position()
    read.expect("WHEN")
    matched = not read.take("NOT")
    if not read.take("MATCHED"):
        read.fail("MATCHED")
    by_source = False
    if not matched and read.take("BY"):
        by_source = read.take("SOURCE")
        if not by_source and not read.take("TARGET"):
            read.fail("SOURCE or TARGET")
    condition = read.expression() if read.take("AND") else None
    if not read.take("THEN"):
        read.fail("THEN")
    changes = matched or by_source
    if changes and read.take("DELETE"):
        return Clause(matched, by_source, condition, "delete", (), position)
    if changes and read.take("UPDATE"):
        if not read.take("SET"):
            read.fail("SET and what to change")
        if matched and read.take("*"):
            return Clause(matched, by_source, condition, "update", None, position)
        assignments = tuple(read.series(lambda: assignment(read, alias)))
        return Clause(matched, by_source, condition, "update", assignments, position)
    if not changes and read.take("INSERT"):
        if read.take("*"):
            return Clause(matched, by_source, condition, "insert", None, position)
        names = [(column.name, read.position()) for column in read.names()]
        if not read.take("VALUES"):
            read.fail("VALUES and the new row")
        values = read.listed(lambda: _value(read))
        if len(names) != len(values):
            raise SqlError(
                "INSERT_COLUMN_ARITY_MISMATCH",
                f"{len(values)} values are given for {len(names)} columns",
                position=position,
                hint="give each column one value",
            )
        pairs = zip(names, values, strict=True)
        given = tuple(Assignment(name, value, at) for (name, at), value in pairs)
        return Clause(matched, by_source, condition, "insert", given, position)
    return read.fail("UPDATE or DELETE" if changes else "INSERT")


def assignment(read: Cursor, alias: str) -> Assignment:
    position = read.position()
    parts = [read.identifier("a column").name]
    while read.take("."):
        parts.append(read.identifier("a column").name)
    if len(parts) == 2 and parts[0].lower() == alias.lower():
        parts = parts[1:]
    if len(parts) > 1:
        raise NotYetSupported(
            f"a field of a column in SET ({'.'.join(parts)})",
            position=position,
            hint="set the whole column: SET c = named_struct(…)",
        )
    if not read.take("="):
        read.fail("= and a value")
    return Assignment(parts[0], _value(read), position)


def _value(read: Cursor) -> exp.Expr | None:
    if read.word() == "DEFAULT" and read.word(1) in (",", ")", "WHERE", "WHEN", "", ";"):
        read.at += 1
        return None
    return read.expression()


def _where(read: Cursor) -> exp.Expr | None:
    return read.expression() if read.take("WHERE") else None


CHANGES: dict[str, Callable[[Cursor], Change]] = {
    "UPDATE": update,
    "DELETE": delete,
    "TRUNCATE": truncate,
    "MERGE": merge,
}
"""What reads a statement that changes rows, by its first word."""


# The queries in them


def column_of(relation: str, name: str) -> exp.Column:
    return exp.Column(this=exp.to_identifier(name, quoted=True), table=exp.to_identifier(relation, quoted=True))


def named(value: exp.Expr, name: str) -> exp.Alias:
    return exp.Alias(this=value, alias=exp.to_identifier(name, quoted=True))


def select(
    items: Sequence[exp.Expr], item: exp.Expr, where: exp.Expr | None, joins: Sequence[exp.Join] = ()
) -> exp.Select:
    """A query nobody wrote as a whole, of parts that somebody did."""
    found = exp.Select(expressions=list(items), from_=exp.From(this=item), joins=list(joins) or None)
    if where is not None:
        found.set("where", exp.Where(this=where))
    return found


def spelled(tree: exp.Expr) -> exp.Expr:
    """The same query as a text that Spark can be given, read again: its parts as they were written."""
    text = _text(tree)
    found = parse_query(text)
    item = tree.args["from_"].this
    if isinstance(item, exp.Table) and is_placed(item):
        found.args["from_"].this.meta[_PLACED] = True
    return found


def _text(node: exp.Expr) -> str:
    if isinstance(node, exp.Select):
        joins = "".join(_text(join) for join in node.args.get("joins") or ())
        where = node.args.get("where")
        condition = f" WHERE {_text(where.this)}" if where is not None else ""
        items = ", ".join(map(_text, node.expressions))
        return f"SELECT {items} FROM {_text(node.args['from_'].this)}{joins}{condition}"
    if isinstance(node, exp.Join):
        return f" {node.side} {node.kind} JOIN {_text(node.this)} ON {_text(node.args['on'])}"
    if span_of(node) is None:
        match node:
            case exp.Alias():
                return f"{_text(node.this)} AS {quote(node.alias)}"
            case exp.Column():
                return f"{quote(node.table)}.{quote(node.name)}"
            case exp.And():
                return f"{_text(node.this)} AND {_text(node.expression)}"
            case exp.Paren():
                return f"({_text(node.this)})"
            case exp.Not():
                return f"NOT {_text(node.this)}"
            case exp.Anonymous():
                return f"{node.name}({', '.join(map(_text, node.expressions))})"
            case exp.Boolean() | exp.Literal():
                return str(node.this)
    alias = node.args.get("alias")
    added = f" AS {quote(alias.name)}" if isinstance(alias, exp.TableAlias) and span_of(alias) is None else ""
    return f"{text_of(node)}{added}"


def places(target: Target) -> list[exp.Expr]:
    """The columns that say where a row of the target is."""
    return [column_of(target.alias, FILE), column_of(target.alias, ROW)]
