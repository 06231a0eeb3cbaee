"""The tokens of a text, read in turn: what every part of the grammar stands on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NoReturn, TypeVar

from sqlglot import exp

from headrace.errors import SqlError
from headrace.sql.lexer import Kind, Token, place
from headrace.sql.source import Span, at_span

N = TypeVar("N", bound=exp.Expr)
T = TypeVar("T")


class Beyond(Exception):
    """Syntax of Spark's that has no tree here: the query is handed to Spark as it stands."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class TokenReader:
    """A place in the tokens, and what comes next."""

    def __init__(self, text: str, tokens: list[Token], at: int = 0) -> None:
        self.text = text
        self.tokens = tokens
        self.at = at

    # Tokens

    def word(self, ahead: int = 0) -> str:
        """The next word in upper case, or the next mark; empty for anything else, and at the end."""
        index = self.at + ahead
        return self.tokens[index].upper if index < len(self.tokens) else ""

    def kind(self, ahead: int = 0) -> Kind | None:
        index = self.at + ahead
        return self.tokens[index].kind if index < len(self.tokens) else None

    def take(self, *words: str) -> bool:
        """Go past these words if they are next; whether they were."""
        if all(self.word(i) == w for i, w in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def expect(self, *words: str) -> None:
        for word in words:
            if not self.take(word):
                self.fail(f"{word!r}" if not word.isalpha() else word)

    def fail(self, expected: str) -> NoReturn:
        if self.at < len(self.tokens):
            token = self.tokens[self.at]
            found, at = f"found {self.text[token.start : token.end][:40]!r}", token.start
        else:
            found, at = "the statement ends", self.tokens[-1].start if self.tokens else 0
        raise SqlError("PARSE_SYNTAX_ERROR", f"expected {expected}, but {found}", position=place(self.text, at))

    def made(self, node: N, start: int) -> N:
        """The node, read from the token ``start`` up to here."""
        return at_span(node, Span(self.text, self.tokens[start].start, self.tokens[self.at - 1].end))

    def listed(self, read: Callable[[], T], *, empty: bool = False) -> list[T]:
        """``(a, b, …)``."""
        self.expect("(")
        if empty and self.take(")"):
            return []
        found = self.series(read)
        self.expect(")")
        return found

    def series(self, read: Callable[[], T]) -> list[T]:
        """``a, b, …``."""
        found = [read()]
        while self.take(","):
            found.append(read())
        return found

    def is_name(self, ahead: int = 0) -> bool:
        return self.kind(ahead) in (Kind.WORD, Kind.NAME)

    def identifier(self, what: str = "a name") -> exp.Identifier:
        """A name, quoted or not; any word is one."""
        if not self.is_name():
            self.fail(what)
        token = self.tokens[self.at]
        self.at += 1
        return self.made(exp.Identifier(this=token.text, quoted=token.kind is Kind.NAME), self.at - 1)

    def names(self) -> list[exp.Identifier]:
        """``(a, b)`` of names."""
        return self.listed(self.identifier)

    def dotted_name(self) -> exp.Expr:
        start = self.at
        parts = [self.identifier()]
        while self.take("."):
            parts.append(self.identifier())
        return self.made(exp.Var(this=".".join(p.name for p in parts)), start)

    @cached_property
    def closing(self) -> dict[int, int]:
        """The parenthesis that closes each one that opens."""
        found: dict[int, int] = {}
        opened: list[int] = []
        for index, token in enumerate(self.tokens):
            if token.upper == "(":
                opened.append(index)
            elif token.upper == ")" and opened:
                found[opened.pop()] = index
        return found

    def string_literal(self, what: str) -> exp.Literal:
        """A string; several beside each other are one."""
        start, text = self.at, ""
        while self.kind() is Kind.STRING:
            text += self.tokens[self.at].text
            self.at += 1
        if self.at == start:
            self.fail(what)
        return self.made(exp.Literal(this=text, is_string=True), start)
