r"""Text to tokens, by Spark's rules: what a word, a number, a string and a comment is.

>>> [t.text for t in tokens("SELECT 1L, 'it''s' -- done")]
['SELECT', '1L', ',', "it's"]
>>> [(t.kind.name, t.text) for t in tokens("a.1b /* x /* nested */ y */ >>> .5e1")]
[('WORD', 'a'), ('MARK', '.'), ('WORD', '1b'), ('MARK', '>>>'), ('NUMBER', '.5e1')]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from headrace.errors import Position, SqlError


class Kind(Enum):
    """What a token is."""

    WORD = "a word"
    NAME = "a name in backquotes"
    STRING = "a string"
    NUMBER = "a number"
    HINT = "a hint"
    MARK = "a mark"


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text from ``start`` up to ``end``; ``text`` is what it means, quotes and escapes undone."""

    kind: Kind
    text: str
    start: int
    end: int
    upper: str
    """A word in upper case, a mark itself; empty for everything else, so that nothing quoted is a keyword."""


_DIGITS = r"(?:\d+\.\d*|\.\d+)"
_EXPONENT = r"[Ee][+-]?\d+"
# In the order in which Spark's lexer prefers them: of two that match, the longer one, then the first. A number that
# a letter follows at once is a word, if it has no point, and else ends before the point.
_TOKEN = re.compile(
    rf"""
      (?P<blank>\s+|--(?:\\\n|[^\r\n])*)
    | (?P<hint>/\*\+)
    | (?P<comment>/\*)
    | (?P<number>(?:
          {_DIGITS}(?:{_EXPONENT})?(?:BD|[DF])?(?!\w)
        | \d+{_EXPONENT}(?:BD|[DF])?(?!\w)
        | \d+(?:BD|[LSYDF])?(?!\w)
      ))
    | (?P<raw>[Rr](?:'[^']*'|"[^"]*"))
    | (?P<word>\w+)
    | (?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    | (?P<name>`(?:[^`]|``)*`)
    | (?P<mark><=>|>>>|<>|!=|==|<=|>=|!>|!<|<<|>>|\|\||\|>|::|->|=>|[-+*/%~&|^:;().,\[\]{{}}!=<>@?])
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_ESCAPES = {
    quote: re.compile(rf"{quote}{quote}|\\(u[0-9A-Fa-f]{{4}}|U[0-9A-Fa-f]{{8}}|[01][0-7]{{2}}|.)", re.DOTALL)
    for quote in "'\""
}
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


MOST_TOKENS = 100_000
"""Words and signs of a statement. Rows of plain literals do not count: they are not parsed (``inline_rows.py``)."""


def tokens(text: str) -> list[Token]:
    """The tokens of a statement; SqlError where a quote or comment does not end, or a character means nothing.

    The parser takes some microseconds and a kilobyte for each, so how many there may be is bounded: a file given by
    mistake is an error at once, not minutes later.
    """
    found = list(islice(each_token(text), MOST_TOKENS + 1))
    if len(found) > MOST_TOKENS:
        raise SqlError(
            "STATEMENT_TOO_LARGE",
            f"the statement has more than {MOST_TOKENS:,} words and signs",
            hint="put rows into db.insert, COPY them from a file, or write them as INSERT INTO … VALUES of plain "
            "literals, which may be many; make a table of a long list, and join it",
        )
    return found


def each_token(text: str) -> Iterator[Token]:
    """The tokens of a script of any length."""
    at, length = 0, len(text)
    while at < length:
        found = _TOKEN.match(text, at)
        if found is None:
            raise _unknown(text, at)
        kind, end, piece = found.lastgroup, found.end(), found[0]
        if kind == "word":
            yield Token(Kind.WORD, piece, at, end, piece.upper())
        elif kind == "mark":
            yield Token(Kind.MARK, piece, at, end, piece)
        elif kind == "number":
            yield Token(Kind.NUMBER, piece, at, end, "")
        elif kind == "string":
            yield Token(Kind.STRING, _unescaped(piece), at, end, "")
        elif kind == "raw":
            yield Token(Kind.STRING, piece[2:-1], at, end, "")
        elif kind == "name":
            yield Token(Kind.NAME, piece[1:-1].replace("``", "`"), at, end, "")
        elif kind in ("comment", "hint"):
            end = _comment_end(text, at)
            if kind == "hint":
                yield Token(Kind.HINT, text[at:end], at, end, "")
        at = end


def _comment_end(text: str, start: int) -> int:
    """Where the comment that begins here ends; comments may hold comments."""
    depth = 0
    for found in re.compile(r"/\*|\*/").finditer(text, start):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return found.end()
    raise SqlError(
        "UNCLOSED_BRACKETED_COMMENT",
        "a comment is not closed",
        position=place(text, start),
        hint="end a comment with */",
    )


def _unescaped(quoted: str) -> str:
    r"""What a quoted string means.

    >>> print(_unescaped(r"'it''s \x41 \\ \u00e9 \101'"), _unescaped(r"'100\%'"))
    it's x41 \ é A 100\%
    """
    if "\\" not in quoted:
        return quoted[1:-1].replace(quoted[0] * 2, quoted[0])
    return _ESCAPES[quoted[0]].sub(_meaning, quoted[1:-1])


def _meaning(found: re.Match[str]) -> str:
    code = found[1]
    if code is None:
        return found[0][0]
    if len(code) == 1:
        return _ESCAPED.get(code, code)
    point = int(code, 8) if code[0] in "01" else int(code[1:], 16)
    if point > 0x10FFFF or 0xD800 <= point < 0xE000:
        raise SqlError(
            "INVALID_UTF8",
            f"{found[0]} in a string is no character",
            hint="write the character itself, or its own \\U code",
        )
    return chr(point)


def _unknown(text: str, at: int) -> SqlError:
    if text[at] in "'\"`":
        return SqlError(
            "PARSE_SYNTAX_ERROR",
            f"a quote {text[at]} is not closed",
            position=place(text, at),
            hint="close it; inside a string, write a quote twice or after a backslash",
        )
    return SqlError("PARSE_SYNTAX_ERROR", f"the character {text[at]!r} is not understood", position=place(text, at))


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


def quote_string(text: str) -> str:
    r"""A string literal Spark reads back as exactly ``text``.

    >>> print(quote_string("it's 1\\2"))
    'it\'s 1\\2'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
