"""Expressions as Spark SQL text with holes.

What the binder does not claim goes to Spark as the user wrote it. Columns and
aggregates in it are known to the plan only, so they become numbered holes.

>>> from headrace.plan.exprs import Column
>>> from headrace.sql.grammar import parse_expression
>>> from headrace.types import STRING
>>> column = Column(STRING, 7, "s")
>>> node = parse_expression("regexp_replace(s, 'a{2}', concat(s, 'x'))")
>>> text, args = spark_template(node, lambda part: column if isinstance(part, exp.Column) else None)
>>> print(text, args == (column,))
regexp_replace({0}, 'a{{2}}', concat({0}, 'x')) True
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from headrace.plan.exprs import Expr
from headrace.sql.lexer import Kind, Token, tokens
from headrace.sql.source import text_of
from headrace.sql.tree import dotted, function_name
from headrace.types import Type, quote

AGGREGATE_WRAPPERS = (exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)
"""Syntax around an aggregate call that belongs to the call."""

_MARK, _MARKED = "\x01{}\x02", re.compile("\x01(\\d+)\x02")
"""A hole, while the text around it may hold anything."""

_BEFORE_LIST = (
    "IN",
    "AND",
    "OR",
    "NOT",
    "OVER",
    "BY",
    "AS",
    "LIKE",
    "WHEN",
    "THEN",
    "ELSE",
    "BETWEEN",
    "FILTER",
    "GROUP",
)

Leaf = Callable[[exp.Expr], Expr | None]


def spark_template(node: exp.Expr, leaf: Leaf) -> tuple[str, tuple[Expr, ...]]:
    """``node`` as text for ``str.format``, with ``{i}`` where ``leaf`` has a bound form; equal ones share a hole.

    ``leaf`` is not asked about ``node`` itself, nor about the call an aggregate's wrapper holds,
    unless that is a column.
    """
    return composed("{}", [node], leaf)


def composed(shape: str, nodes: Sequence[exp.Expr], leaf: Leaf) -> tuple[str, tuple[Expr, ...]]:
    """``shape`` with the text of each node in its braces; as :func:`spark_template` otherwise."""
    args: dict[Expr, int] = {}
    texts = [_filled(node, leaf, args) for node in nodes]
    return shape.format(*texts), tuple(args)


@dataclass(frozen=True)
class Left:
    """A part of a tree that was left to Spark, and the holes in its text in the order they were found."""

    node: exp.Expr
    holes: list[tuple[exp.Expr, Type]]

    def template(self) -> str:
        """As :func:`spark_template`, but each hole is one of its own: the same column may be written in two ways."""
        marks = {id(part): _MARK.format(i) for i, (part, _) in enumerate(self.holes)}
        parts = _MARKED.split(text_of(self.node, marks))
        return "".join(f"{{{p}}}" if i % 2 else p.replace("{", "{{").replace("}", "}}") for i, p in enumerate(parts))


def _filled(node: exp.Expr, leaf: Leaf, args: dict[Expr, int]) -> str:
    heads = {id(node)}
    if isinstance(node, AGGREGATE_WRAPPERS):
        heads.add(id(node.this))
    holes: dict[int, str] = {}

    def hole(part: exp.Expr) -> str:
        bound = leaf(part) if id(part) not in heads or isinstance(part, exp.Column) else None
        return "" if bound is None else _MARK.format(args.setdefault(bound, len(args)))

    def look(part: exp.Expr) -> None:
        if mark := hole(part):
            holes[id(part)] = mark
        elif function_name(part) == "struct" or _is_row(part):
            for place, argument in enumerate(part.expressions, 1):
                inner = argument.unnest()
                if mark := hole(inner):
                    # A struct names its fields after columns, or by their places, and a hole has no name.
                    holes[id(argument)] = f"{mark} AS {quote((dotted(inner) or (f'col{place}',))[-1])}"
                else:
                    look(argument)
        else:
            for child in part.iter_expressions():
                look(child)

    look(node)
    parts = _MARKED.split(holes.get(id(node)) or text_of(node, holes))
    tokens_: list[str] = []
    for i, part in enumerate(parts):
        tokens_ += [f"{{{part}}}"] if i % 2 else [_spelled(part, t) for t in tokens(part)]
    return _spaced(tokens_)


def _is_row(part: exp.Expr) -> bool:
    """Whether this is ``(a, b)``, a struct; the patterns of LIKE ANY are none."""
    return isinstance(part, exp.Tuple) and not isinstance(part.parent, exp.Any | exp.All)


def _spelled(text: str, token: Token) -> str:
    """A token as it was written, but for capitals in the name of a function: equal templates are equal expressions."""
    written = text[token.start : token.end]
    if token.kind is Kind.WORD and text[token.end : token.end + 1] == "(":
        written = written.lower()
    return written.replace("{", "{{").replace("}", "}}")


def _spaced(parts: list[str]) -> str:
    """Tokens with as much space between them as is usual, however they were written."""
    text = ""
    before = "("
    for part in parts:
        called = part == "(" and (before[-1:].isalnum() or before[-1:] in "_`") and before.upper() not in _BEFORE_LIST
        if before not in ("(", "[", ".", "::") and part not in (")", "]", ",", ".", "[", "::") and not called:
            text += " "
        text += part
        before = part
    return text
