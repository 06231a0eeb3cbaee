"""Lines of JSON, located: for each wanted column, which kind of value each row has, and its text.

The whole of a line is checked to be one JSON object; only the values of wanted
fields are kept, as text: a string's characters, anything else as it is written.

>>> rows, (a, b) = Scanner(["a", "b"], ascii_only=True).locate(b'{"A": 1.50, "b": "x"}\\n\\n{"b": {"c": 1}}\\n')
>>> rows, a.text.to_pylist(), b.text.to_pylist(), b.kinds.tolist()
(2, ['1.50', None], ['x', '{"c": 1}'], [3, 5])
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json import JSONDecodeError
from typing import Any

import numpy as np
import pyarrow as pa

MISSING, NUMBER, WORD, STRING, BOOLEAN, NESTED = range(6)
"""Kinds of values: null or not there, a number, NaN and the infinities, …"""

_BLANK = " \t\r"
_decoder: Any = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
_scan: Callable[[str, int], tuple[Any, int]] = _decoder.scan_once
_KIND = {'"': STRING, "{": NESTED, "[": NESTED, "t": BOOLEAN, "f": BOOLEAN, "n": MISSING, "N": WORD, "I": WORD}


@dataclass(frozen=True, eq=False)
class Located:
    """One column of a block: kinds and texts, row by row; a slice of it is one too."""

    kinds: np.ndarray[Any, np.dtype[np.uint8]]
    text: pa.StringArray

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, rows: slice) -> Located:
        return Located(self.kinds[rows], self.text[rows])

    def shown(self, row: int) -> str:
        """A value as an error shows it."""
        text: str = self.text[row].as_py()
        return json.dumps(text, ensure_ascii=False) if self.kinds[row] == STRING else text


class NotJson(Exception):
    """A line is no JSON object, or not UTF-8; ``before`` holds the ``rows`` rows above it."""

    def __init__(self, condition: str, what: str, rows: int, before: list[Located]) -> None:
        self.condition = condition
        self.what = what
        self.rows = rows
        self.before = before
        super().__init__(condition, what)


class Scanner:
    """Locates the values of some columns. Field names are matched without case."""

    def __init__(self, names: Sequence[str], *, ascii_only: bool) -> None:
        self._slots = {name.lower(): i for i, name in enumerate(names)}
        self._ascii_only = ascii_only

    def locate(self, block: bytes) -> tuple[int, list[Located]]:
        """How many rows a block of lines has, and its columns; :class:`NotJson` for the first line that is none."""
        failure: tuple[str, str] | None = None
        try:
            text = block.decode()
        except UnicodeDecodeError as error:
            broken = block.rfind(b"\n", 0, error.start) + 1
            shown = block[broken : error.end].decode(errors="backslashreplace")[-40:]
            text, failure = block[:broken].decode(), ("JSON_INVALID_UTF8", f"not UTF-8: {shown}")
        kinds: list[bytearray] = [bytearray() for _ in self._slots]
        texts: list[list[str | None]] = [[] for _ in self._slots]
        rows = 0
        for line in text.split("\n"):
            try:
                found = self._object(line)
            except (JSONDecodeError, StopIteration, RecursionError, UnicodeEncodeError) as error:
                failure = ("JSON_INVALID", _reason(error, line))
                break
            if found is None:
                continue
            rows += 1
            for slot, column in enumerate(texts):
                kind, value = found.get(slot, (MISSING, None))
                kinds[slot].append(kind)
                column.append(value)
        columns = [
            Located(np.frombuffer(bytes(k), np.uint8), pa.array(t, pa.string()))
            for k, t in zip(kinds, texts, strict=True)
        ]
        if failure is not None:
            raise NotJson(*failure, rows, columns)
        return rows, columns

    def _object(self, line: str) -> dict[int, tuple[int, str | None]] | None:
        """The wanted fields of one line, the last where one is repeated; ``None`` for a blank line."""
        at = _skip(line, 0)
        if at == len(line):
            return None
        found: dict[int, tuple[int, str | None]] = {}
        at = _expect(line, at, "{")
        if line[at : at + 1] == "}":
            at = _skip(line, at + 1)
        else:
            while True:
                if line[at : at + 1] != '"':
                    raise JSONDecodeError("a field name in double quotes is expected", line, at)
                key, at = _scan(line, at)
                start = _expect(line, _skip(line, at), ":")
                value, end = _scan(line, start)
                slot = self._slots.get(key.lower()) if key.isascii() or not self._ascii_only else None
                if slot is not None:
                    found[slot] = _kind_and_text(line, start, end, value)
                at = _skip(line, end)
                if line[at : at + 1] == "}":
                    at = _skip(line, at + 1)
                    break
                at = _expect(line, at, ",")
        if at < len(line):
            raise JSONDecodeError("something follows the object", line, at)
        return found


def elements(lists: Sequence[str]) -> tuple[list[int], Located]:
    """How many elements each list has, and all of them.

    >>> lengths, found = elements(["[1, [2]]", "[]", '["x"]'])
    >>> lengths, found.text.to_pylist()
    ([2, 0, 1], ['1', '[2]', 'x'])
    """
    kinds = bytearray()
    texts: list[str | None] = []
    lengths = []
    for line in lists:
        before = len(texts)
        at = _skip(line, 1)
        while line[at] != "]":
            value, end = _scan(line, at)
            kind, text = _kind_and_text(line, at, end, value)
            kinds.append(kind)
            texts.append(text)
            at = _skip(line, end)
            if line[at] == ",":
                at = _skip(line, at + 1)
        lengths.append(len(texts) - before)
    return lengths, Located(np.frombuffer(bytes(kinds), np.uint8), pa.array(texts, pa.string()))


def entries(objects: Sequence[str]) -> tuple[list[int], list[str], Located]:
    """How many fields each object has, and all their names and values, repeated ones too.

    >>> lengths, names, found = entries(['{"a": 1, "A": null}', "{}"])
    >>> lengths, names, found.text.to_pylist()
    ([2, 0], ['a', 'A'], ['1', None])
    """
    kinds = bytearray()
    texts: list[str | None] = []
    names: list[str] = []
    lengths = []
    for line in objects:
        before = len(texts)
        at = _skip(line, 1)
        while line[at] != "}":
            name, at = _scan(line, at)
            name.encode()  # half a surrogate pair is no character
            start = _expect(line, _skip(line, at), ":")
            value, end = _scan(line, start)
            kind, text = _kind_and_text(line, start, end, value)
            names.append(name)
            kinds.append(kind)
            texts.append(text)
            at = _skip(line, end)
            if line[at] == ",":
                at = _skip(line, at + 1)
        lengths.append(len(texts) - before)
    return lengths, names, Located(np.frombuffer(bytes(kinds), np.uint8), pa.array(texts, pa.string()))


def _kind_and_text(line: str, start: int, end: int, value: Any) -> tuple[int, str | None]:
    """What stands in a line from ``start`` to ``end``, which was read as ``value``."""
    kind = WORD if line.startswith("-I", start) else _KIND.get(line[start], NUMBER)
    if kind == STRING:
        value.encode()  # half a surrogate pair is no character
        return kind, value
    return kind, None if kind == MISSING else line[start:end]


def _skip(line: str, at: int) -> int:
    while at < len(line) and line[at] in _BLANK:
        at += 1
    return at


def _expect(line: str, at: int, mark: str) -> int:
    """The first character after ``mark`` and the blanks behind it."""
    if line[at : at + 1] != mark:
        raise JSONDecodeError(f"{mark!r} is expected", line, at)
    return _skip(line, at + 1)


def _reason(error: Exception, line: str) -> str:
    if isinstance(error, RecursionError):
        return "the object is nested too deeply"
    if isinstance(error, UnicodeEncodeError):
        return "half of a surrogate pair is no character"
    at = error.pos if isinstance(error, JSONDecodeError) else error.value if isinstance(error, StopIteration) else 0
    what = error.msg if isinstance(error, JSONDecodeError) else "a value is expected"
    return f"no JSON object: {what}, at character {at + 1}, {_near(line, at)}"


def _near(line: str, at: int) -> str:
    rest = line[at : at + 30]
    return f"before {rest!r}" if rest else "where the line ends"
