"""A place in the tokens of one statement: what is read next, and where it stands.

>>> from headrace.sql.parsing import tokens
>>> at = Cursor("DROP VIEW v", tokens("DROP VIEW v"))
>>> at.take("DROP", "VIEW"), at.word(), str(at.position()), at.name()
(True, 'V', 'line 1, column 11', 'v')
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

from sqlglot.tokenizer_core import Token, TokenType

from headrace.errors import NotYetSupported, Position, SqlError
from headrace.sql.parsing import place

T = TypeVar("T")


class Cursor:
    """Reads words, names and strings in turn; what is not there is an error that says what was expected."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text = text
        self.tokens = tokens
        self.at = 0

    def word(self, ahead: int = 0) -> str:
        """The next word in upper case; empty at the end, and for what is quoted."""
        index = self.at + ahead
        if index >= len(self.tokens) or self.tokens[index].token_type in (TokenType.STRING, TokenType.IDENTIFIER):
            return ""
        return self.tokens[index].text.upper()

    def take(self, *words: str) -> bool:
        """Go past these words if they are next; whether they were."""
        if all(self.word(i) == w for i, w in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def position(self, at: int | None = None) -> Position:
        index = min(self.at if at is None else at, len(self.tokens) - 1)
        return place(self.text, self.tokens[index].start)

    def fail(self, expected: str) -> NoReturn:
        found = f"found {self.tokens[self.at].text!r}" if self.at < len(self.tokens) else "the statement ends"
        raise SqlError("PARSE_SYNTAX_ERROR", f"expected {expected}, but {found}", position=self.position())

    def name(self) -> str:
        if self.at >= len(self.tokens):
            self.fail("a name")
        token = self.tokens[self.at]
        plain = token.token_type != TokenType.STRING and (token.text[:1].isalpha() or token.text[:1] == "_")
        if not plain and token.token_type != TokenType.IDENTIFIER:
            self.fail("a name")
        self.at += 1
        if self.word() == "." or (self.at < len(self.tokens) and self.tokens[self.at].token_type == TokenType.DOT):
            raise NotYetSupported("names with a schema or catalog", position=self.position(), hint="use the plain name")
        return token.text

    def string(self, what: str) -> str:
        if self.at >= len(self.tokens) or self.tokens[self.at].token_type != TokenType.STRING:
            self.fail(what)
        self.at += 1
        return self.tokens[self.at - 1].text

    def end(self) -> None:
        if self.at < len(self.tokens):
            self.fail("the end of the statement")

    def comma_separated(self, read: Callable[[], T]) -> list[T]:
        """What ``read`` reads, once for each part of a list, up to and past its closing parenthesis."""
        found = [read()]
        while self.take(","):
            found.append(read())
        if not self.take(")"):
            self.fail("')'")
        return found
