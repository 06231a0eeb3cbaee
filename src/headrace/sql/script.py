"""A script as its statements, each with the place it stands at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.errors import HeadraceError, Position
from headrace.sql.lexer import each_token, places


@dataclass(frozen=True, slots=True)
class Placed:
    """A statement, and where its first character stands in what the user wrote."""

    text: str
    at: Position

    @contextmanager
    def errors_located(self) -> Iterator[None]:
        """Errors of the statement point into what the user wrote."""
        try:
            yield
        except HeadraceError as error:
            if error.position is not None:
                error.position = error.position.counted_from(self.at)
            raise


def split_statements(text: str) -> list[Placed]:
    """The statements of a script, cut at semicolons that stand outside quotes and comments.

    >>> for found in split_statements("SELECT ';' AS a; -- done;\\n  SELECT 2;"):
    ...     print(found.text, found.at, sep=": ")
    SELECT ';' AS a: line 1, column 1
    SELECT 2: line 2, column 3
    """
    cuts: list[tuple[int, int]] = []
    start: int | None = None
    end = 0
    for token in each_token(text):
        if token.upper != ";":
            start, end = token.start if start is None else start, token.end
        elif start is not None:
            cuts.append((start, end))
            start = None
    if start is not None:
        cuts.append((start, end))
    where = places(text, [first for first, _ in cuts])
    return [Placed(text[first:last], at) for (first, last), at in zip(cuts, where, strict=True)]
