"""Where each part of a parsed statement stands in its text, and that text again.

The parser notes for every node the stretch of text it was read from. What the binder leaves to Spark is that very
stretch: nothing is printed from a tree, so nothing a tree does not hold can be lost on the way. Where a part of it has
been replaced (a column by its place in the plan, a relation by the plan's input), the replacement is put in its place
and the rest stays as it was written.

>>> from headrace.sql.grammar import parse_expression
>>> node = parse_expression("f( a , 'x' /* odd */ )")
>>> text_of(node), text_of(node, {id(node.expressions[0]): "{0}"})
("f( a , 'x' /* odd */ )", "f( {0} , 'x' /* odd */ )")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlglot import exp

from headrace.errors import Position
from headrace.sql.lexer import place
from headrace.types import quote

_SPAN = "span"
_PLACE = "place"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a text."""

    text: str
    start: int
    end: int

    def __deepcopy__(self, memo: dict[int, Any]) -> Span:
        return self  # copies of a tree stand where the tree stands


_CLAUSES = (exp.Where, exp.Having, exp.Group, exp.Order, exp.Limit, exp.Offset)

N = TypeVar("N", bound=exp.Expr)


def at_span(node: N, span: Span) -> N:
    """The node, read from ``span``."""
    node.meta[_SPAN] = span
    return node


def span_of(node: exp.Expr) -> Span | None:
    """Where a node was read from; ``None`` for one that nobody wrote."""
    span: Span | None = node.meta.get(_SPAN)
    return span


def replace(old: exp.Expr, new: N) -> N:
    """Put ``new`` where ``old`` stood, in the tree and in the text."""
    stood = place_of(old)
    if stood is not None:
        new.meta[_PLACE] = stood
    old.replace(new)
    return new


def place_of(node: exp.Expr) -> Span | None:
    """The stretch of its parent's text a node stands for."""
    found: Span | None = node.meta.get(_PLACE) or node.meta.get(_SPAN)
    return found


def position_of(node: exp.Expr | None) -> Position | None:
    """Where the node starts in its statement.

    >>> from headrace.sql.grammar import parse_expression
    >>> print(position_of(parse_expression("1 +\\n  price").expression))
    line 2, column 3
    """
    while isinstance(node, _CLAUSES):  # what is wrong is not the word WHERE
        node = next(node.iter_expressions(), None)
    if node is None:
        return None
    span = place_of(node)
    if span is None:
        span = next((s for part in node.walk() if (s := place_of(part)) is not None), None)
    return None if span is None else place(span.text, span.start)


def text_of(node: exp.Expr, instead: Mapping[int, str] | None = None) -> str:
    """The text of a node as it was written, but for the parts, by ``id``, that ``instead`` has another text for.

    A part that was put in another's place has its own text there.
    """
    span = span_of(node) or place_of(node)
    if span is None:
        raise AssertionError(f"{node!r} was not read from a text")
    cuts: list[tuple[int, int, str]] = []
    _collect(node, span, instead or {}, cuts)
    return cut(span, cuts)


def cut(span: Span, cuts: list[tuple[int, int, str]]) -> str:
    """The stretch with each cut (from, to, text) put in."""
    pieces: list[str] = []
    at = span.start
    for start, end, text in sorted(cuts, key=lambda c: c[:2]):
        pieces += [span.text[at:start], text]
        at = end
    return "".join([*pieces, span.text[at : span.end]])


def _collect(node: exp.Expr, span: Span, instead: Mapping[int, str], cuts: list[tuple[int, int, str]]) -> None:
    for child in node.iter_expressions():
        stands, own = place_of(child), span_of(child)
        if id(child) in instead and stands is not None:
            cuts.append((stands.start, stands.end, instead[id(child)]))
        elif isinstance(child, exp.Identifier) and own is not None and not (child.quoted or child.name.isascii()):
            cuts.append((own.start, own.end, quote(child.name)))  # Spark wants such names in backquotes
        elif own is None or stands is own or stands is None:
            _collect(child, span, instead, cuts)  # written here, or made up around what is
        else:
            cuts.append((stands.start, stands.end, text_of(child, instead)))
