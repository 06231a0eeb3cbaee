"""``USING csv OPTIONS (header 'true') LOCATION 'path'``: what a CREATE TABLE says of files that exist.

Read from the statement's tokens, for sqlglot keeps no positions of properties.
"""

from __future__ import annotations

import os

from sqlglot.tokenizer_core import TokenType

from headrace.catalog import FileSource
from headrace.errors import NotYetSupported, SqlError
from headrace.sql.cursor import Cursor

FORMATS = ("csv", "json", "parquet")


def using_at(reader: Cursor) -> int | None:
    """The index of the USING that ends a table's columns; a join's stands behind AS."""
    depth = 0
    for index in range(len(reader.tokens)):
        word = reader.word(index)
        depth += (word == "(") - (word == ")")
        if depth == 0 and word in ("AS", "USING"):
            return index if word == "USING" else None
    return None


def files_clause(reader: Cursor, at: int) -> FileSource:
    """The clauses from USING to the end of the statement."""
    reader.at = at + 1
    position = reader.position()
    format_ = reader.word().lower()
    if format_ not in FORMATS:
        if not format_.isidentifier():
            reader.fail("csv, json or parquet")
        raise NotYetSupported(f"a table USING {format_}", position=position, hint="files are csv, json or parquet")
    reader.at += 1
    options: dict[str, str] = {}
    location: str | None = None
    while reader.at < len(reader.tokens):
        if location is None and reader.take("LOCATION"):
            location = reader.string("a quoted path or glob")
        elif not options and reader.take("OPTIONS", "("):
            reader.comma_separated(lambda: _option(reader, options))
        else:
            reader.fail("OPTIONS (…) or LOCATION 'path'")
    if location is None:
        reader.fail("LOCATION 'path or glob'")
    if "://" in location.removeprefix("file://"):
        raise NotYetSupported(f"a table over {location.split('://')[0]}:// files", hint="copy the files here")
    # the working directory may be another one when the files are read
    path = os.path.abspath(os.path.expanduser(location.removeprefix("file://")))
    return FileSource(format_, path, tuple(options.items()))


def _option(reader: Cursor, options: dict[str, str]) -> None:
    position = reader.position()
    quoted = reader.at < len(reader.tokens) and reader.tokens[reader.at].token_type == TokenType.STRING
    name = (reader.string("an option") if quoted else reader.name()).lower()
    if name in options:
        raise SqlError("REPEATED_OPTION", f"option {name} is given twice", position=position, hint="give it once")
    reader.take("=")
    if reader.word() in ("TRUE", "FALSE"):
        options[name] = reader.word().lower()
        reader.at += 1
    else:
        options[name] = reader.string("a quoted value")
