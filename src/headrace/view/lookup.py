"""A read of one group by its key is a lookup in the state in memory, without a query.

What counts as one: every key of the grouping is compared with a constant, and the columns asked for stand in
the state as they are. ``SELECT * FROM v WHERE k = 7`` over counts, sums and extremes does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.plan.exprs import Call, Column, Expr, Literal, conjuncts, substitute
from headrace.plan.nodes import Filter, Node, Project, Scan
from headrace.plan.pipelines import State


@dataclass(frozen=True, eq=False)
class Lookup:
    """The group a plan asks for, and its columns."""

    state: State
    key: tuple[pa.Array, ...]
    """A value for each key column of the state, as an array of one."""
    outputs: tuple[tuple[str, int | None], ...]
    """The state's columns, each with what stands for a NULL in it."""
    schema: pa.Schema

    def answer(self, row: pa.Table) -> pa.Table:
        """The plan's rows, given the group's row or none."""
        columns = [
            row.column(name) if instead is None else pc.fill_null(row.column(name), instead)
            for name, instead in self.outputs
        ]
        return pa.table(columns, schema=self.schema)


def lookup_of(plan: Node, states: Mapping[str, State]) -> Lookup | None:
    """The lookup a plan is, if it is one."""
    outputs: list[Expr] = list(plan.output)
    conditions: list[Expr] = []
    node = plan
    while isinstance(node, Project | Filter):
        if isinstance(node, Filter):
            conditions += conjuncts(node.condition)
        else:
            below: dict[int, Expr] = {c.id: e for c, e in node.exprs}
            outputs = [substitute(e, below) for e in outputs]
            conditions = [substitute(e, below) for e in conditions]
        node = node.child
    if not isinstance(node, Scan) or node.kind != "state" or not all(c.type.is_native for c in plan.output):
        return None
    state = states[node.relation]
    fields = {c.id: f for f, c in zip(node.fields, node.scanned, strict=True)}
    named = [_named(e, fields) for e in outputs]
    values: dict[str, pa.Array] = {}
    for condition in conditions:
        found = _compared(condition, fields)
        if found is None or found[0] in values:
            return None
        values[found[0]] = found[1]
    if not state.keys or values.keys() != {k.name for k in state.keys}:
        return None
    known = [n for n in named if n is not None]
    if len(known) < len(named):
        return None
    schema = pa.schema([pa.field(c.name, c.type.arrow) for c in plan.output])
    return Lookup(state, tuple(values[k.name] for k in state.keys), tuple(known), schema)


def _named(expr: Expr, fields: Mapping[int, str]) -> tuple[str, int | None] | None:
    """The state's column an expression is, and what stands for a NULL in it."""
    if isinstance(expr, Column):
        return fields[expr.id], None
    if isinstance(expr, Call) and expr.fn == "coalesce" and len(expr.args) == 2:
        column, instead = expr.args
        if isinstance(column, Column) and isinstance(instead, Literal) and type(instead.value) is int:
            return fields[column.id], instead.value
    return None


def _compared(condition: Expr, fields: Mapping[int, str]) -> tuple[str, pa.Array] | None:
    """The column and the constant it must be equal to."""
    if not isinstance(condition, Call) or condition.fn != "=":
        return None
    column, value = condition.args if isinstance(condition.args[0], Column) else reversed(condition.args)
    if not isinstance(column, Column) or not isinstance(value, Literal) or value.value is None:
        return None
    return fields[column.id], pa.array([value.value], column.type.arrow)
