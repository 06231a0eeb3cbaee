"""A read of one group by its key is a lookup in the state in memory, without a query.

What counts as one: every key of the grouping is compared with a constant, and the columns asked for stand in
the state as they are. ``SELECT * FROM v WHERE k = 7`` over counts, sums and extremes does. Planning it takes
longer than the lookup, so a text that differs from one that was planned in its one constant is not planned again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from headrace.plan.exprs import Call, Case, Cast, Column, Expr, Literal, conjuncts, substitute
from headrace.plan.nodes import Filter, Leaf, Node, Project
from headrace.plan.pipelines import State
from headrace.plan.refs import StateRef
from headrace.types import BIGINT


@dataclass(frozen=True)
class Output:
    """A column of the answer: one of the state's, perhaps in a narrower type, perhaps with a number for NULL."""

    name: str
    instead: int | None = None
    type: pa.DataType | None = None
    some: str | None = None
    """The column that says of how many values it is: of none it is NULL."""

    def of(self, row: pa.Table) -> pa.ChunkedArray:
        column = row.column(self.name)
        if self.some is not None and row.num_rows and not (row.column(self.some)[0].as_py() or 0) > 0:
            return pa.chunked_array([pa.nulls(1, self.type or column.type)])
        if self.type is not None:
            column = column.cast(self.type)
        return column if self.instead is None or not column.null_count else pc.fill_null(column, self.instead)


@dataclass(frozen=True, eq=False)
class Lookup:
    """The group a plan asks for, and its columns."""

    state: State
    key: tuple[pa.Array, ...]
    """A value for each key column of the state, as an array of one."""
    outputs: tuple[Output, ...]
    schema: pa.Schema

    def asks_for(self, constant: int | str) -> bool:
        """Whether the key is one value, and that a constant of the text as it stands there."""
        if len(self.key) > 1:
            return False
        fits = pa.types.is_integer if isinstance(constant, int) else pa.types.is_string
        return bool(fits(self.key[0].type)) and self.key[0][0].as_py() == constant

    def of(self, constant: int | str) -> Lookup:
        """The same lookup by another constant of the same kind."""
        return self.by((pa.array([constant], self.key[0].type),))

    def by(self, key: Sequence[pa.Array]) -> Lookup:
        """The same lookup by another key: an array of one for each of the state's keys."""
        return replace(self, key=tuple(key))

    def is_in(self, rows: pa.Table) -> bool:
        """Whether some of these state rows may be of the group."""
        found = None
        for name, value in zip((k.name for k in self.state.keys), self.key, strict=True):
            if pa.types.is_floating(value.type):
                return bool(rows.num_rows)  # of two zeros, or two NaN, equality here knows nothing
            column = rows.column(name)
            same = pc.equal(column, value[0]) if value[0].is_valid else pc.is_null(column)
            found = same if found is None else pc.and_(found, same)
        return pc.any(found).as_py() is True

    def answer(self, row: pa.Table) -> pa.Table | None:
        """The plan's rows, given the group's row or none; None if a value does not fit, which a query words better."""
        try:
            return pa.table([output.of(row) for output in self.outputs], schema=self.schema)
        except pa.ArrowInvalid:
            return None


_CONSTANT = re.compile(r"'[^'\\]*'|(?<![\w.$`])[0-9]{1,9}(?![\w.])")


def shape_of(text: str) -> tuple[str, int | str] | None:
    """A text without its constant, and the constant, if it has just one: a plain string, or an int of few digits.

    >>> shape_of("SELECT n FROM v2 WHERE k = 17")
    ('SELECT n FROM v2 WHERE k = 0', 17)
    >>> shape_of("SELECT n FROM v WHERE k = 'a' LIMIT 1") is None, shape_of("SELECT n FROM v WHERE k = 1.5") is None
    (True, True)
    """
    found = _CONSTANT.findall(text)
    if len(found) != 1 or '"' in text:
        return None
    constant: str = found[0]
    quoted = constant.startswith("'")
    return _CONSTANT.sub("''" if quoted else "0", text), constant[1:-1] if quoted else int(constant)


def lookup_of(plan: Node, states: Mapping[str, State]) -> Lookup | None:
    """The lookup a plan is, if it is one."""
    leaf, outputs, conditions = _reduced(plan)
    if leaf is None:
        return None
    state, fields = states[leaf.relation], _fields(leaf)
    values: dict[str, pa.Array] = {}
    for condition in conditions:
        found = _compared(condition, fields)
        if found is None or found[0] in values:
            return None
        values[found[0]] = found[1]
    if not state.keys or values.keys() != {k.name for k in state.keys}:
        return None
    return _looked_up(plan, state, outputs, fields, [values[k.name] for k in state.keys])


def lookup_by(plan: Node, key: Sequence[Column], states: Mapping[str, State]) -> tuple[Lookup, list[int]] | None:
    """The lookup of the rows of a plan by these of its columns, for :meth:`Lookup.by`, if it is one; and which of them
    each of the state's keys is."""
    leaf, outputs, conditions = _reduced(plan)
    if leaf is None or conditions or not key:
        return None
    state, fields = states[leaf.relation], _fields(leaf)
    exprs = {c.id: e for c, e in zip(plan.output, outputs, strict=True)}
    names = [fields[e.id] if isinstance(e := exprs[c.id], Column) else "" for c in key]
    if sorted(names) != sorted(k.name for k in state.keys):
        return None
    found = _looked_up(plan, state, outputs, fields, [])
    return None if found is None else (found, [names.index(k.name) for k in state.keys])


def _reduced(plan: Node) -> tuple[Leaf | None, list[Expr], list[Expr]]:
    """A plan as expressions and conditions over one state; None if it is something else."""
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
    if not isinstance(node, Leaf) or not isinstance(node.ref, StateRef):
        return None, [], []
    return (node if all(c.type.is_native for c in plan.output) else None), outputs, conditions


def _fields(leaf: Leaf) -> Mapping[int, str]:
    return {c.id: f for f, c in zip(leaf.fields, leaf.scanned, strict=True)}


def _looked_up(
    plan: Node, state: State, outputs: Sequence[Expr], fields: Mapping[int, str], key: Sequence[pa.Array]
) -> Lookup | None:
    known = [n for e in outputs if (n := _named(e, fields)) is not None]
    if len(known) < len(outputs):
        return None
    schema = pa.schema([pa.field(c.name, c.type.arrow) for c in plan.output])
    return Lookup(state, tuple(key), tuple(known), schema)


def _named(expr: Expr, fields: Mapping[int, str]) -> Output | None:
    """The state's column an expression is."""
    if isinstance(expr, Column):
        return Output(fields[expr.id])
    if isinstance(expr, Case) and len(expr.branches) == 1 and isinstance(expr.default, Literal):
        # what exact sums of rows that come and go end in (``plan/aggregates.py``)
        condition, value = expr.branches[0]
        some = _counted(condition, fields)
        found = _named(value, fields) if some is not None and expr.default.value is None else None
        return None if found is None or found.instead is not None else replace(found, some=some)
    if isinstance(expr, Cast) and isinstance(expr.arg, Column):
        kept, wanted = expr.arg.type, expr.type
        if kept.is_decimal and wanted.is_decimal and kept.scale == wanted.scale:
            return Output(fields[expr.arg.id], type=wanted.arrow)
    if isinstance(expr, Call) and expr.fn == "sum_of_digits" and isinstance(expr.args[0], Column):
        return Output(fields[expr.args[0].id], type=BIGINT.arrow)
    if isinstance(expr, Call) and expr.fn == "coalesce" and len(expr.args) == 2:
        column, instead = expr.args
        if isinstance(column, Column) and isinstance(instead, Literal) and type(instead.value) is int:
            return Output(fields[column.id], instead.value)
    return None


def _counted(condition: Expr, fields: Mapping[int, str]) -> str | None:
    """The state's column that a condition says is above 0."""
    if isinstance(condition, Call) and condition.fn == ">":
        count, none = condition.args
        if isinstance(count, Column) and isinstance(none, Literal) and none.value == 0:
            return fields[count.id]
    return None


def _compared(condition: Expr, fields: Mapping[int, str]) -> tuple[str, pa.Array] | None:
    """The column and the constant it must be equal to."""
    if not isinstance(condition, Call) or condition.fn != "=":
        return None
    column, value = condition.args if isinstance(condition.args[0], Column) else reversed(condition.args)
    if not isinstance(column, Column) or not isinstance(value, Literal) or value.value is None:
        return None
    return fields[column.id], pa.array([value.value], column.type.arrow)
