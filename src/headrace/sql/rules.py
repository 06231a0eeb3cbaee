"""What a table's rules mean: DEFAULT, a constant or the time of the statement; CHECK, a condition over one row.

Both are bound as parts of a query, so that functions and types mean in them what they mean anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from headrace.catalog import Catalog, Check, Read, Relation, Table
from headrace.errors import NotYetSupported, SqlError
from headrace.plan.exprs import Column
from headrace.plan.nodes import Node, Project, renaming
from headrace.plan.rules import optimize
from headrace.sql.binder import Binder
from headrace.sql.changes import select
from headrace.sql.coercion import can_store, cast
from headrace.sql.columns import Written, WrittenCheck
from headrace.sql.grammar import parse_query
from headrace.sql.nondeterminism import nondeterministic_call
from headrace.sql.source import position_of
from headrace.sql.spark_blocks import QueryAnalyzer
from headrace.types import DATE, TIMESTAMP, TIMESTAMP_NTZ, Field, quote

_NOW = {
    "current_timestamp": (TIMESTAMP, TIMESTAMP_NTZ, DATE),
    "now": (TIMESTAMP, TIMESTAMP_NTZ, DATE),
    "localtimestamp": (TIMESTAMP, TIMESTAMP_NTZ, DATE),
    "current_date": (DATE,),
    "curdate": (DATE,),
}
"""Functions that are the time of the statement, and the columns they may be the default of."""


def default_plan(written: Written, column: Field, analyzer: QueryAnalyzer) -> Node | None:
    """A query whose one value is a column's default, in the column's type; None for the time of the statement."""
    tree = written.tree

    def refusal(kind: str, why: str, hint: str) -> SqlError:
        said = f"the DEFAULT of {column.name}, {written.text}, {why}"
        return SqlError(f"INVALID_DEFAULT_VALUE.{kind}", said, position=written.position, hint=hint)

    if any(True for _ in tree.find_all(exp.Query)):
        raise refusal("SUBQUERY_EXPRESSION", "holds a query", "give a constant; look it up where rows are inserted")
    if isinstance(tree, exp.Anonymous | exp.Column) and tree.name.lower() in _NOW and not tree.expressions:
        if column.type in _NOW[tree.name.lower()]:
            return None
        raise refusal("DATA_TYPE", f"does not go into {column.type.sql}", "make the column a timestamp or a date")
    for node in tree.walk():
        if (name := nondeterministic_call(node)) is not None or isinstance(node, exp.Column):
            if name is None and node.name.lower() not in _NOW:
                continue
            raise refusal(
                "NON_DETERMINISTIC",
                f"is another value each time ({name or node.name})",
                "give a constant, or current_timestamp() alone",
            )
    try:
        bound = Binder(Catalog(), analyzer).query(select([tree], _from("one row"), None))
    except SqlError as error:
        error.position = error.position or written.position
        if error.condition.startswith("UNRESOLVED_COLUMN"):
            raise refusal(
                "NOT_CONSTANT", "names a column", "a default looks at no other column: give a constant"
            ) from None
        raise
    (value,) = bound.output
    if column.type.is_nested and value.type.name != "void":
        raise NotYetSupported(
            f"a DEFAULT of type {column.type.sql}", position=written.position, hint="leave it out: it is NULL then"
        )
    if not can_store(value.type, column.type):
        raise refusal(
            "DATA_TYPE", f"is {value.type.sql} and does not go into {column.type.sql}", f"CAST it AS {column.type.sql}"
        )
    return optimize(Project(bound, ((Column.fresh(column.name, column.type), cast(value, column.type)),)))


def bound_check(written: WrittenCheck, name: str, relation: Relation, analyzer: QueryAnalyzer) -> Check:
    """The condition over a relation's columns as they are called now."""
    tree, position = written.condition.tree, written.condition.position
    for node in tree.walk():
        if isinstance(node, exp.Query):
            raise NotYetSupported(
                "a subquery in CHECK",
                position=position_of(node) or position,
                hint="a condition looks at one row; check what others hold before the rows are inserted",
            )
        if (called := nondeterministic_call(node)) is not None:
            raise SqlError(
                "NON_DETERMINISTIC_CHECK_CONSTRAINT",
                f"{called}() gives another value each time, so rows would pass or not by chance",
                position=position_of(node) or position,
                hint="compare with a constant, or with a column that is filled when rows come",
            )
    catalog = Catalog().with_relation(relation)
    Binder(catalog, analyzer).query(select([exp.Literal.number(1)], _from(relation.name), tree))
    columns = tuple((c.name, c.id) for c in relation.columns)
    return Check(name, written.condition.text, relation.name, columns)


def _from(name: str) -> exp.Expr:
    text = "SELECT 1 FROM (SELECT 1 AS one)" if name == "one row" else f"SELECT 1 FROM {quote(name)}"
    item: exp.Expr = parse_query(text).args["from_"].this
    return item


def breaking(table: Table, checks: Sequence[Check], analyzer: QueryAnalyzer) -> Node:
    """A query of a row, in the table's columns, that breaks one of the conditions, all made over the same columns."""
    there = {id for _, id in checks[0].columns}
    later = tuple((f"__later{c.id}", c.id) for c in table.columns if c.id not in there)
    known = Read(checks[0].of, table.number, (*checks[0].columns, *later))
    seen, now = known.seen(table), {c.id: c.name for c in table.columns}
    catalog = Catalog(0, {known.name.lower(): seen}, {}, {table.number: table})
    kept = " AND ".join(f"coalesce((\n{check.text}\n), true)" for check in checks)
    tree = parse_query(f"SELECT * FROM {quote(known.name)} WHERE NOT ({kept}) LIMIT 1")
    return optimize(renaming(Binder(catalog, analyzer).query(tree), [now[c.id] for c in seen.columns]))
