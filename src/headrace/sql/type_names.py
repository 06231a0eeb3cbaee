"""Types as Spark's grammar has them.

What Spark has no name for is refused here, as Spark refuses it; what it has is kept as text, in Spark's own spelling,
for :func:`headrace.types.parse_type` or, where that knows no such type, for Spark itself.

>>> from headrace.sql.grammar import parse_expression
>>> parse_expression("CAST(x AS Struct<a: ARRAY<INT>, `b c` dec( 5 )>)").args["to"].name
'struct<a:array<int>,`b c`:dec(5)>'
>>> parse_expression("CAST(x AS TEXT)")
Traceback (most recent call last):
    ...
headrace.errors.SqlError: [UNSUPPORTED_DATATYPE] there is no type TEXT (line 1, column 11). Hint: did you mean STRING?
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import NoReturn

from sqlglot import exp

from headrace.errors import Position, SqlError
from headrace.sql.lexer import Kind, Token, place
from headrace.sql.token_reader import TokenReader
from headrace.types import MAX_PRECISION, quote

_PLAIN = (
    "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float", "real", "double",
    "date", "binary", "void", "variant",
)  # fmt: skip
_DECIMALS = ("decimal", "dec", "numeric")
MOMENTS = {"timestamp": "timestamp", "timestamp_ltz": "timestamp", "timestamp_ntz": "timestamp_ntz"}
_TEXTS = ("char", "character", "varchar")
_NESTED = ("array", "map", "struct")
_SHAPES = ("geometry", "geography")
_NAMES = (*_PLAIN, *_DECIMALS, *MOMENTS, *_TEXTS, *_NESTED, *_SHAPES, "string", "interval", "time")
_SUGGESTED = {
    "text": "string", "nvarchar": "string", "nchar": "string", "clob": "string", "uuid": "string", "json": "variant",
    "bool": "boolean", "int1": "tinyint", "int2": "smallint", "int4": "int", "int8": "bigint", "number": "decimal",
    "float4": "float", "float8": "double", "datetime": "timestamp_ntz", "timestamptz": "timestamp", "null": "void",
    "blob": "binary", "bytea": "binary", "varbinary": "binary", "list": "array", "row": "struct",
}  # fmt: skip
_MICROSECONDS = "6"
"""The one precision of seconds that Spark's timestamps have."""
_SPANS = (("year", "month"), ("day", "hour", "minute", "second"))


class TypeNames(TokenReader):
    """Reads types."""

    _closed = 0
    """How many of a token's ``>`` have ended a type."""

    def type(self) -> exp.Var:
        """The type that comes next, in Spark's spelling."""
        start, self._closed = self.at, 0
        text = self.type_text()
        if self._closed:
            self.fail("no more '>' than '<'")
        return self.made(exp.Var(this=text), start)

    def type_text(self) -> str:
        if not self.is_name():
            self.fail("a type")
        token = self.tokens[self.at]
        self.at += 1
        name = token.text.lower()
        if token.kind is Kind.NAME or name not in _NAMES:
            self._unsupported(token, token.text)
        if name in _NESTED:
            return self._nested(token, name)
        if name in _DECIMALS:
            return self._decimal(token, name)
        if name in MOMENTS:
            return self._moment(token, name)
        if name in _TEXTS:
            return self._text(token, name)
        if name == "string":
            return name + self._collation()
        if name == "interval":
            return name + self._span()
        if name == "time":
            raise SqlError(
                "UNSUPPORTED_TIME_TYPE",
                "the type TIME is not supported",
                position=self._place(token),
                hint="keep it as STRING, or as the BIGINT of its microseconds",
            )
        if self.word() == "(":
            numbers = self._parameters(any_word=name in _SHAPES)
            if name not in _SHAPES:
                self._unsupported(token, f"{name}({','.join(numbers)})")
            return f"{name}({','.join(numbers)})"
        return name

    def _nested(self, token: Token, name: str) -> str:
        if name == "struct" and self.take("<>"):
            return "struct<>"
        if self.word() == "<>":
            self.fail("a type between < and >")
        if not self.take("<"):
            forms = {"array": "ARRAY<INT>", "map": "MAP<STRING, INT>", "struct": "STRUCT<a: INT>"}
            raise SqlError(
                "INCOMPLETE_TYPE_DEFINITION",
                f"{token.text} does not say of what",
                position=self._place(token),
                hint=f"write for example {forms[name]}",
            )
        if name == "struct":
            inner = "" if self.word() == ">" else ",".join(self.series(self._field))
        else:
            inner = self.type_text()
            if name == "map":
                self.expect(",")
                inner += "," + self.type_text()
        self._close()
        return f"{name}<{inner}>"

    def _field(self) -> str:
        name = self.identifier("the name of a field")
        self.take(":")
        plain = not name.quoted and re.fullmatch(r"[A-Za-z_]\w*", name.name, re.ASCII)
        text = f"{name.name if plain else quote(name.name)}:{self.type_text()}"
        if self.take("NOT"):
            self.expect("NULL")
            text += " NOT NULL"
        if self.take("COMMENT"):
            self.string_literal("a string after COMMENT")
        return text

    def _close(self) -> None:
        """The ``>`` that ends a type, also where two or three of them make one token."""
        mark = self.word()
        if set(mark) != {">"}:
            self.fail("'>'")
        self._closed += 1
        if self._closed == len(mark):
            self.at, self._closed = self.at + 1, 0

    def _decimal(self, token: Token, name: str) -> str:
        if self.word() != "(":
            return name
        numbers = self._parameters()
        if len(numbers) > 2:
            self._unsupported(token, f"{name}({','.join(numbers)})")
        precision, scale = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0
        if precision > MAX_PRECISION:
            raise SqlError(
                "DECIMAL_PRECISION_EXCEEDS_MAX_PRECISION",
                f"a decimal has at most {MAX_PRECISION} digits, not {precision}",
                position=self._place(token),
            )
        if scale > precision:
            raise SqlError(
                "DECIMAL_SCALE_EXCEEDS_PRECISION",
                f"of {precision} digits, {scale} cannot stand after the point",
                position=self._place(token),
                hint=f"write DECIMAL({scale}, {scale}) or more digits",
            )
        return f"{name}({','.join(numbers)})"

    def _moment(self, token: Token, name: str) -> str:
        if self.word() == "(":
            numbers = self._parameters()
            if numbers != [_MICROSECONDS]:
                raise SqlError(
                    "INVALID_TIMESTAMP_PRECISION",
                    f"{token.text} has microseconds, not a precision of {', '.join(numbers)}",
                    position=self._place(token),
                    hint=f"leave the precision out, or write {token.text}({_MICROSECONDS})",
                )
        if name == "timestamp":
            if self.take("WITHOUT", "TIME", "ZONE"):
                return "timestamp_ntz"
            self.take("WITH", "LOCAL", "TIME", "ZONE")
        return MOMENTS[name]

    def _text(self, token: Token, name: str) -> str:
        if self.word() != "(":
            raise SqlError(
                "DATATYPE_MISSING_SIZE",
                f"{token.text} needs a length",
                position=self._place(token),
                hint=f"write {token.text}(10), or STRING for text of any length",
            )
        numbers = self._parameters()
        if len(numbers) > 1:
            self._unsupported(token, f"{name}({','.join(numbers)})")
        kind = "char" if name == "character" else name
        return f"{kind}({numbers[0]}){self._collation()}"

    def _collation(self) -> str:
        return f" collate {self.dotted_name().name}" if self.take("COLLATE") else ""

    def _span(self) -> str:
        first = self.word().lower()
        units = next((units for units in _SPANS if first in units), None)
        if units is None:
            return ""  # a calendar interval
        self.at += 1
        if not self.take("TO"):
            return f" {first}"
        last = self.word().lower()
        if last not in units[units.index(first) + 1 :]:
            self.fail(f"a unit smaller than {first.upper()}")
        self.at += 1
        return f" {first} to {last}"

    def _parameters(self, *, any_word: bool = False) -> list[str]:
        """``(1, 2)`` after a type's name."""

        def parameter() -> str:
            token = self.tokens[self.at] if self.at < len(self.tokens) else None
            number = token is not None and token.kind is Kind.NUMBER and token.text.isdigit()
            if token is None or not (number or (any_word and self.is_name())):
                self.fail("a whole number")
            self.at += 1
            text = token.text
            while any_word and self.take(":"):  # OGC:CRS84
                text += f":{self.identifier().name}"
            return text

        return self.listed(parameter)

    def _place(self, token: Token) -> Position:
        return place(self.text, token.start)

    def _unsupported(self, token: Token, shown: str) -> NoReturn:
        name = token.text.lower()
        near = _SUGGESTED.get(name) or next(iter(get_close_matches(name, _NAMES, n=1)), None)
        raise SqlError(
            "UNSUPPORTED_DATATYPE",
            f"there is no type {shown}",
            position=self._place(token),
            hint=f"did you mean {near.upper()}?" if near and near != name else None,
        )
