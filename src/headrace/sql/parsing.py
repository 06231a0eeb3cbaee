"""Text to tokens to trees, every position true to the text the user wrote.

sqlglot's Spark parser reads queries and column lists. Where a statement of ours
is Spark's under another word, :func:`blank` overwrites the word *in place*, so
that whatever is left still stands where the user put it.

>>> blank("EXPLAIN\\nSELECT 1", 0, 8)
'       \\nSELECT 1'
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from typing import ClassVar, NoReturn

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from headrace.errors import NotYetSupported, Position, SqlError
from headrace.sql.verbatim import Verbatim, VerbatimParser

# sqlglot reports statements it does not know on a logger; we raise a named error instead.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


class _Parser(VerbatimParser):
    def _parse_as_command(self, start: Token) -> NoReturn:
        """sqlglot would keep a CREATE it cannot read to its end as plain text, and say nothing of where."""
        self.raise_error("Unexpected token", self._curr or self._prev)
        raise AssertionError("the error level is not to raise")


class Dialect(Verbatim):
    """Spark SQL as written, plus Headrace's statements."""

    Parser = _Parser

    class Tokenizer(Verbatim.Tokenizer):
        # sqlglot swallows what follows SHOW or EXPLAIN up to the next semicolon, even one in quotes.
        COMMANDS: ClassVar = set()


def tokens(text: str) -> list[Token]:
    """The tokens of a script; SqlError where a quote or comment does not end."""
    try:
        return sqlglot.tokenize(text, read=Dialect)
    except TokenError as e:
        comment = _open_comment(text)
        # The inner error says "Missing ' from line:offset", the offset being the quote's; none if it ends the text.
        inner = re.search(r"Missing (.+) from \d+:(\d+)$", str(e.__cause__ or e))
        at = int(inner[2]) if inner else len(text) - 1
        if inner or (comment < 0 and text[at] in "'\"`"):
            raise SqlError(
                "PARSE_SYNTAX_ERROR",
                f"a quote {inner[1] if inner else text[at]} is not closed",
                position=place(text, at),
                hint="close it; inside a string, write a quote twice or after a backslash",
            ) from None
        raise SqlError(
            "PARSE_SYNTAX_ERROR",
            "a comment is not closed, or a character is not understood",
            position=place(text, max(0, comment)),
            hint="end a comment with */",
        ) from None


def _open_comment(text: str) -> int:
    """The offset of the comment that does not end, or -1; quotes and other comments are passed over."""
    closed = r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`"
    return re.sub(closed, lambda m: " " * len(m[0]), text, flags=re.DOTALL).find("/*")


def parse_tree(text: str) -> exp.Expr:
    """sqlglot's tree of one statement."""
    try:
        trees = Dialect().parser().parse(_functions_named_window(_positions(tokens(text))), text)
        tree = trees[0] if len(trees) == 1 else None
    except ParseError as e:
        error = e.errors[0] if e.errors else {}
        highlight = (error.get("highlight") or "").strip()
        near = f" near {highlight!r}" if highlight else ""
        line, column = error.get("line") or 1, error.get("col") or 1
        start = max(1, column - max(len(highlight) - 1, 0))
        message = re.sub(r" but got <Token .*>", "", error.get("description") or "cannot be parsed").rstrip(".")
        if message.startswith("Required keyword"):
            message = "something is missing"  # sqlglot names its own classes here
        message = message.replace("Invalid expression / Unexpected token", "this is not understood")
        raise SqlError("PARSE_SYNTAX_ERROR", f"{message}{near}", position=Position(line, start)) from None
    if tree is None or isinstance(tree, exp.Command):
        raise SqlError("PARSE_SYNTAX_ERROR", "this statement is not understood", position=Position(1, 1))
    return tree


def _positions(found: list[Token]) -> list[Token]:
    """``posts@OLDEST`` as the one name it is: sqlglot would read a parameter, and no alias after it."""
    kept: list[Token] = []
    skip = 0
    for at, token in enumerate(found):
        if skip:
            skip -= 1
            continue
        mark, where = (found[at + 1], found[at + 2]) if at + 2 < len(found) else (token, token)
        if mark.token_type == TokenType.PARAMETER and where.text.upper() in ("OLDEST", "NEWEST"):
            name = f"{token.text}@{where.text.lower()}"
            kept.append(Token(TokenType.IDENTIFIER, name, token.line, token.col, token.start, token.end, []))
            skip = 2
        else:
            kept.append(token)
    return kept


def _functions_named_window(found: list[Token]) -> list[Token]:
    """``GROUP BY window(ts, …)`` calls a function; sqlglot would read a WINDOW clause there."""
    return [
        Token(TokenType.VAR, t.text, t.line, t.col, t.start, t.end, t.comments)
        if t.token_type == TokenType.WINDOW and after is not None and after.token_type == TokenType.L_PAREN
        else t
        for t, after in zip(found, [*found[1:], None], strict=True)
    ]


def relation_name(table: exp.Expr) -> str:
    """The plain name of a relation; one with a schema before it is not understood yet."""
    if isinstance(table, exp.Table) and (table.args.get("db") or table.args.get("catalog")):
        raise NotYetSupported("names with a schema or catalog", position=node_at(table), hint="use the plain name")
    return table.name


def place(text: str, offset: int) -> Position:
    """The line and column of an offset into the text.

    >>> print(place("SELECT\\n  1", 9))
    line 2, column 3
    """
    return Position(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


def places(text: str, offsets: Iterable[int]) -> Iterator[Position]:
    """The lines and columns of ascending offsets, in one pass over the text."""
    line, start, seen = 1, 0, 0
    for offset in offsets:
        line += text.count("\n", seen, offset)
        start = max(start, text.rfind("\n", seen, offset) + 1)
        seen = offset
        yield Position(line, offset - start + 1)


def node_at(node: exp.Expr | None) -> Position | None:
    """Where a tree starts, from the first of its names and literals."""
    for part in node.walk() if node is not None else ():
        if "line" in part.meta:
            meta = part.meta
            return Position(meta["line"], max(1, meta["col"] - (meta["end"] - meta["start"])))
    return None


def blank(text: str, start: int, end: int) -> str:
    """``text`` with a stretch overwritten by blanks, line ends kept, so that positions stay true."""
    return text[:start] + "".join("\n" if c == "\n" else " " for c in text[start:end]) + text[end:]
