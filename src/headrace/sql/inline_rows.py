"""``INSERT INTO r VALUES (1, 'x'), …`` of plain literals, read straight into columns.

A tree for every literal of ten thousand rows costs seconds, and says no more than
their text. So rows of plain literals are read by one pattern and typed a column at
a time. Whatever else stands there (an expression, an escape, a comment, a row of
another length) is not read here: the parser then reads the whole statement, and
names what is wrong. So a statement has one meaning, whoever reads it.

>>> found = inline_rows("INSERT INTO t VALUES (1, 'x', NULL), (2.50, 'y', NULL)", UTC)
>>> [(f.name, f.type.sql) for f in found.schema], found.rows.to_pylist()[0]["col2"]
([('col1', 'decimal(12,2)'), ('col2', 'string'), ('col3', 'void')], 'x')
>>> inline_rows("INSERT INTO t VALUES (1 + 1)", UTC) is None
True
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from decimal import Decimal
from functools import cache

import pyarrow as pa

from headrace.errors import Position, SqlError
from headrace.plan.exprs import Column, Expr, Literal
from headrace.plan.nodes import Leaf, Node, Project
from headrace.plan.refs import GivenRef
from headrace.sql import literals
from headrace.sql.coercion import as_decimal, common_type
from headrace.sql.lexer import place
from headrace.types import BOOLEAN, MAX_PRECISION, STRING, TIMESTAMP, VOID, Field, Schema, Type

__all__ = ["INLINE", "UTC", "InlineRows", "inline_rows"]

INLINE = GivenRef("VALUES")
"""The leaf that stands for the rows in the plan of the INSERT."""

_BLANK = r"[ \t\r\n]"
_WORD = r"[A-Za-z_][A-Za-z0-9_]*"
_COLUMN = rf"(?:{_WORD}|`[^`,]+`)"
_HEAD = re.compile(
    rf"{_BLANK}*INSERT{_BLANK}+INTO{_BLANK}+(?P<name>{_WORD})(?![A-Za-z0-9_]){_BLANK}*"
    rf"(?:\((?P<columns>{_BLANK}*{_COLUMN}{_BLANK}*(?:,{_BLANK}*{_COLUMN}{_BLANK}*)*)\){_BLANK}*)?"
    rf"(?<![A-Za-z0-9_])VALUES{_BLANK}*(?=\()",
    re.IGNORECASE | re.ASCII,
)
_LITERAL = rf"(-?\d+(?:\.\d+)?|(?:(?:DATE|TIMESTAMP){_BLANK}*)?'[^'\\]*'|NULL|TRUE|FALSE)"
_FIRST = re.compile(rf"\({_BLANK}*{_LITERAL}{_BLANK}*(?:,{_BLANK}*{_LITERAL}{_BLANK}*)*\)", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, eq=False)
class InlineRows:
    """The rows of an INSERT, typed as VALUES types them."""

    name: str
    columns: tuple[str, ...]
    position: Position
    schema: Schema
    rows: pa.Table
    """The columns that are not NULL throughout."""

    def source(self) -> Node:
        """A plan of the rows, over the leaf :data:`INLINE`."""
        scan = Leaf.of(INLINE, tuple(f for f in self.schema if f.type != VOID))
        held: dict[str, Expr] = {c.name: c for c in scan.output}
        nothing = Literal(VOID, None)
        return Project(scan, tuple((Column.fresh(f.name, f.type), held.get(f.name, nothing)) for f in self.schema))


def inline_rows(text: str, zone: tzinfo) -> InlineRows | None:
    """The rows of an INSERT of plain literals, ``None`` for any other statement."""
    head = _HEAD.match(text)
    first = _FIRST.match(text, head.end()) if head is not None else None
    if head is None or first is None:
        return None
    row = _row(len(re.findall(_LITERAL, first[0], re.IGNORECASE | re.ASCII)))
    at, rows = head.end(), []
    while (found := row.match(text, at)) is not None:
        *values, after = found.groups()
        rows.append(values)
        at = found.end()
        if after != ",":
            break
    else:
        return None
    columns = [_column(values, zone) for values in zip(*rows, strict=True)]
    if not all(columns):
        return None
    schema = tuple(Field(f"col{i}", c[0]) for i, c in enumerate(columns, 1) if c is not None)
    held = {f.name: c[1] for f, c in zip(schema, columns, strict=True) if c is not None and f.type != VOID}
    if not held:
        return None
    names = tuple(n.strip().strip("`") for n in (head["columns"] or "").split(",") if n.strip())
    return InlineRows(head["name"], names, place(text, head.start("name")), schema, pa.table(held))


@cache
def _row(width: int) -> re.Pattern[str]:
    values = rf"{_BLANK}*,{_BLANK}*".join([_LITERAL] * width)
    return re.compile(
        rf"{_BLANK}*\({_BLANK}*{values}{_BLANK}*\){_BLANK}*(,|(?:;{_BLANK}*)*\Z)", re.IGNORECASE | re.ASCII
    )


def _column(texts: Sequence[str], zone: tzinfo) -> tuple[Type, pa.Array] | None:
    """The type literals meet in and their values; ``None`` where order or Spark's own rules matter."""
    known: dict[str, Literal] = {}
    for text in dict.fromkeys(texts):
        literal = _literal(text, zone)
        if literal is None:
            return None
        known[text] = literal
    types = {literal.type for literal in known.values()} - {VOID}
    exact = all(t.is_integer or t.is_decimal for t in types)
    if len(types) > 1 and not (exact and _no_digit_lost(types)):
        return None
    type_ = common_type(types)
    if type_ is None:
        return None
    values = {text: literal.value for text, literal in known.items()}
    if type_.is_decimal:
        values = {text: v if v is None else Decimal(v) for text, v in values.items()}
    return type_, pa.array([values[text] for text in texts], type_.arrow)


def _no_digit_lost(types: set[Type]) -> bool:
    """Whether the types meet in one that holds all their digits: only then does their order not matter."""
    decimals = [as_decimal(t) for t in types]
    return max(t.precision - t.scale for t in decimals) + max(t.scale for t in decimals) <= MAX_PRECISION


def _literal(text: str, zone: tzinfo) -> Literal | None:
    try:
        if text[0] == "'":
            return Literal(STRING, text[1:-1])
        if text[0] == "-" or text[0].isdigit():
            return literals.number(text)
        word, _, quoted = text.partition("'")
        match word.strip().upper():
            case "NULL":
                return Literal(VOID, None)
            case "TRUE" | "FALSE":
                return Literal(BOOLEAN, text.upper() == "TRUE")
            case "DATE":
                return literals.date_literal(quoted[:-1])
        found = literals.timestamp_literal(quoted[:-1], TIMESTAMP, zone)
        return found if isinstance(found, Literal) else None
    except SqlError:
        return None  # the parser says where
