"""``USING csv OPTIONS (header 'true') LOCATION 'path'``: what a CREATE TABLE says of files that exist."""

from __future__ import annotations

import os

from headrace.catalog import FileSource
from headrace.errors import NotYetSupported, SqlError
from headrace.sql.cursor import Cursor

FORMATS = ("csv", "json", "parquet")


def is_own(reader: Cursor) -> bool:
    """Whether the table of this USING keeps its rows itself: a table USING parquet without a LOCATION."""
    if not reader.is_name() or reader.word(1) not in ("AS", ""):
        return False
    if reader.word() != "PARQUET":
        raise NotYetSupported(
            f"a table that keeps its own rows USING {reader.word().lower()}",
            position=reader.position(),
            hint="its rows are in Parquet: leave USING out, or write USING parquet; "
            "files of other formats are read with LOCATION 'path'",
        )
    reader.at += 1
    return True


def files_clause(reader: Cursor) -> FileSource:
    """The clauses behind USING to the end of the statement."""
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
            at = reader.position()
            location = reader.string("a quoted path or glob").removeprefix("file://")
            if not location:
                raise SqlError("INVALID_PATH", "the path is empty", position=at, hint="'.' is the working directory")
        elif not options and reader.take("OPTIONS"):
            reader.listed(lambda: _option(reader, options))
        else:
            reader.fail("OPTIONS (…) or LOCATION 'path'")
    if location is None:
        reader.fail("LOCATION 'path or glob'")
    if "://" in location:
        raise NotYetSupported(f"a table over {location.split('://')[0]}:// files", hint="copy the files here")
    # the working directory may be another one when the files are read
    path = os.path.abspath(os.path.expanduser(location))
    return FileSource(format_, path, tuple(options.items()))


def _option(reader: Cursor, options: dict[str, str]) -> None:
    position = reader.position()
    name = (reader.string("an option") if reader.at_string() else reader.name()).lower()
    if name in options:
        raise SqlError("REPEATED_OPTION", f"option {name} is given twice", position=position, hint="give it once")
    reader.take("=")
    if reader.word() in ("TRUE", "FALSE"):
        options[name] = reader.word().lower()
        reader.at += 1
    else:
        options[name] = reader.string("a quoted value")
