"""A script as its statements."""

from __future__ import annotations

from sqlglot.tokenizer_core import TokenType

from headrace.sql.parsing import place, tokens


def split_statements(text: str) -> list[str]:
    """The statements of a script, cut at semicolons that stand outside quotes and comments.

    Each stands where it stood, behind line ends and blanks: a position in it is one in the script.

    >>> split_statements("SELECT ';' AS a; -- done;\\n  SELECT 2;")
    ["SELECT ';' AS a", '\\n  SELECT 2']
    """
    found: list[str] = []
    start: int | None = None
    end = 0
    for token in tokens(text):
        if token.token_type == TokenType.SEMICOLON:
            if start is not None:
                found.append(_placed(text, start, end + 1))
            start = None
            continue
        start = token.start if start is None else start
        end = token.end
    if start is not None:
        found.append(_placed(text, start, end + 1))
    return found


def _placed(text: str, start: int, end: int) -> str:
    at = place(text, start)
    return "\n" * (at.line - 1) + " " * (at.column - 1) + text[start:end]
