"""Query blocks outside the algebra, as Spark SQL text.

The text stays as it was written. What it reads, and those of its subqueries that stand alone
inside the algebra, become plans of their own, which the text names as its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from sqlglot import exp

from headrace.plan.exprs import Column
from headrace.plan.nodes import Node, SparkSql, renaming
from headrace.sql.expressions import Analyzer
from headrace.sql.parsing import Dialect
from headrace.sql.sampling import is_reservoir
from headrace.sql.system import is_system, name_of
from headrace.types import Field, Schema


class QueryAnalyzer(Analyzer, Protocol):
    """Spark's analyzer, for whole blocks too."""

    def query_schema(self, text: str, inputs: Mapping[str, Schema]) -> Schema:
        """The columns Spark gives ``text`` over empty relations of these names; SqlError if it refuses."""


def spark_block(
    tree: exp.Expr,
    reason: str,
    analyzer: QueryAnalyzer,
    *,
    relation: Callable[[exp.Table], Node],
    alone: Callable[[exp.Expr], Node | None],
) -> SparkSql:
    """The block as text over the plans of its parts that the algebra can say.

    ``relation`` gives the plan of a relation in FROM, ``alone`` that of a subquery if it has one.
    """
    inputs: dict[str, Node] = {}

    def take(node: Node) -> str:
        for name, known in inputs.items():
            if known is node:
                return name
        name = f"__in{len(inputs)}"
        inputs[name] = node
        return name

    tree = tree.copy()
    tree.set("with_", None)  # its CTEs are bound already, each under its name

    def visit(part: exp.Expr, known: set[str]) -> None:
        for child in list(part.iter_expressions()):
            if isinstance(child, exp.Subquery | exp.Select | exp.SetOperation) and not isinstance(part, exp.CTE):
                bound = alone(child)
                if bound is not None:
                    query = exp.select("*").from_(exp.to_table(take(bound)))
                    child.replace(_in_place(child, query))
                    continue
            system = isinstance(child, exp.Table) and is_system(child)
            if isinstance(child, exp.Table) and (system or isinstance(child.this, exp.Identifier)):
                if system or child.name.lower() not in known:
                    name = take(relation(child))
                    if is_reservoir(child.args.get("sample")):
                        child.set("sample", None)  # the input is drawn already
                    alias = name_of(child)
                    child.set("db", None)
                    child.set("this", exp.to_identifier(name, quoted=True))
                    if not child.args.get("alias"):
                        child.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
                continue
            inner = known
            if child.args.get("with_") is not None:
                inner = known | {c.alias.lower() for c in child.args["with_"].expressions}
            visit(child, inner)

    holder = exp.Subquery(this=tree)
    visit(tree, set())
    del holder
    text = tree.sql(Dialect)
    names = tuple(inputs)
    nodes = tuple(_named_input(n) for n in inputs.values())
    schemas = {n: tuple(Field(c.name, c.type) for c in node.output) for n, node in zip(names, nodes, strict=True)}
    schema = analyzer.query_schema(text, schemas)
    columns = tuple(Column.fresh(f.name, f.type) for f in schema)
    return SparkSql(text, names, nodes, columns, reason)


def _in_place(child: exp.Expr, query: exp.Select) -> exp.Expr:
    """``query`` standing where ``child`` stood, under the same alias."""
    if isinstance(child, exp.Subquery):
        return exp.Subquery(this=query, alias=child.args.get("alias"))
    return query


def _named_input(node: Node) -> Node:
    """An input with distinct column names, as a relation Spark can be handed."""
    seen: set[str] = set()
    for column in node.output:
        if column.name.lower() in seen:
            return renaming(node, [f"_{i}" for i in range(len(node.output))])
        seen.add(column.name.lower())
    return node
