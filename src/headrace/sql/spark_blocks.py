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
from headrace.sql.sampling import is_reservoir
from headrace.sql.source import cut, span_of
from headrace.sql.system import is_system, name_of
from headrace.types import Field, Schema, quote


class QueryAnalyzer(Analyzer, Protocol):
    """Spark's analyzer, for whole blocks too."""

    def query_schema(self, text: str, inputs: Mapping[str, Schema]) -> Schema:
        """The columns Spark gives ``text`` over empty relations of these names; SqlError if it refuses."""

    def relations_read(self, text: str, inputs: Mapping[str, Schema]) -> list[str]:
        """Those of these relations that ``text`` reads."""


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

    cuts: list[Cut] = []
    clause = tree.args.get("with_")
    if clause is not None:  # its CTEs are bound already, each under its name
        cuts.append(_instead(clause, ""))

    def visit(part: exp.Expr, known: frozenset[str]) -> None:
        for child in part.iter_expressions():
            if child is clause:
                continue
            if isinstance(child, exp.Query) and not isinstance(part, exp.CTE):
                bound = alone(child)
                if bound is not None and not _repeats_name(bound):
                    query = child.this if isinstance(child, exp.Subquery) else child
                    cuts.append(_instead(query, f"SELECT * FROM {take(bound)}"))
                    if isinstance(child, exp.Subquery):
                        drawn(child)
                    continue
            system = isinstance(child, exp.Table) and is_system(child)
            if isinstance(child, exp.Table) and (system or isinstance(child.this, exp.Identifier)):
                if system or child.name.lower() not in known:
                    named(child, take(relation(child)))
                continue
            if isinstance(child, exp.Table):
                visit(child, known)
                continue
            inner = known
            if (own := child.args.get("with_")) is not None:
                inner = known | {c.alias.lower() for c in own.expressions}
            visit(child, inner)

    def drawn(item: exp.Expr) -> None:
        sample = item.args.get("sample")
        if sample is not None and is_reservoir(sample):
            cuts.append(_instead(sample, ""))  # the input is drawn already

    def named(table: exp.Table, name: str) -> None:
        """The input where the relation was named, under the relation's own name."""
        first, last = span_of(table.args.get("catalog") or table.args.get("db") or table.this), span_of(table.this)
        whole = span_of(table)
        assert first is not None and last is not None and whole is not None
        cuts.append((first.start, last.end, name))
        if (version := table.args.get("version")) is not None:
            cuts.append(_instead(version, ""))  # the input is of that version
        drawn(table)
        if not table.args.get("alias") and not _stands_alone(table):
            cuts.append((whole.end, whole.end, f" AS {quote(name_of(table))}"))

    visit(tree, frozenset())
    whole = span_of(tree)
    assert whole is not None
    text = cut(whole, cuts)
    names = tuple(inputs)
    nodes = tuple(named_input(n) for n in inputs.values())
    schemas = {n: tuple(Field(c.name, c.type) for c in node.output) for n, node in zip(names, nodes, strict=True)}
    schema = analyzer.query_schema(text, schemas)
    columns = tuple(Column.fresh(f.name, f.type) for f in schema)
    return SparkSql(text, names, nodes, columns, reason)


def opaque_block(
    text: str, reason: str, analyzer: QueryAnalyzer, candidates: Mapping[str, Schema], bound: Callable[[str], Node]
) -> SparkSql:
    """A query whose syntax only Spark knows, as it was written, over those of the candidates that it reads.

    Only these are bound: a view whose name is some column's here need not be one that this may read.
    """
    read = analyzer.relations_read(text, candidates)
    nodes = tuple(named_input(bound(name)) for name in read)
    schemas = {n: tuple(Field(c.name, c.type) for c in node.output) for n, node in zip(read, nodes, strict=True)}
    schema = analyzer.query_schema(text, schemas)
    columns = tuple(Column.fresh(f.name, f.type) for f in schema)
    return SparkSql(text, tuple(read), nodes, columns, reason)


def _stands_alone(table: exp.Table) -> bool:
    """Whether this is ``TABLE t``, which takes no alias."""
    whole, name = span_of(table), span_of(table.this)
    return whole is not None and name is not None and whole.text[whole.start : name.start].upper().startswith("TABLE")


Cut = tuple[int, int, str]


def _instead(part: exp.Expr, text: str) -> Cut:
    span = span_of(part)
    assert span is not None
    return span.start, span.end, text


def _repeats_name(node: Node) -> bool:
    return len({c.name.lower() for c in node.output}) < len(node.output)


def named_input(node: Node) -> Node:
    """An input with distinct column names, as a relation Spark can be handed."""
    return renaming(node, [f"_{i}" for i in range(len(node.output))]) if _repeats_name(node) else node
