"""A place in the tokens of one statement: what is read next, and where it stands.

>>> from headrace.sql.lexer import tokens
>>> at = Cursor("DROP VIEW v", tokens("DROP VIEW v"))
>>> at.take("DROP", "VIEW"), at.word(), str(at.position()), at.name()
(True, 'V', 'line 1, column 11', 'v')
"""

from __future__ import annotations

from sqlglot import exp

from headrace.errors import NotYetSupported, Position
from headrace.sql.grammar import Grammar
from headrace.sql.lexer import Kind, place


class Cursor(Grammar):
    """Reads words, names and strings in turn; what is not there is an error that says what was expected."""

    def position(self, at: int | None = None) -> Position:
        index = min(self.at if at is None else at, len(self.tokens) - 1)
        return place(self.text, self.tokens[index].start)

    def name(self) -> str:
        """The plain name of a relation, column or option."""
        found = self.identifier()
        if self.word() == ".":
            raise NotYetSupported("names with a schema or catalog", position=self.position(), hint="use the plain name")
        return found.name

    def string(self, what: str) -> str:
        return self.string_literal(what).name

    def at_string(self) -> bool:
        return self.kind() is Kind.STRING

    def rest_as_query(self) -> exp.Expr:
        """The query that goes from here to the end of the statement."""
        tree = self.query()
        self.end()
        return tree
