"""The options of a COPY: ``CSV HEADER``, ``WITH (FORMAT json)``, ``(DELIMITER = ';', NULL '-')``."""

from __future__ import annotations

from headrace.errors import SqlError
from headrace.sql.cursor import Cursor

COPY_OPTIONS = ("format", "header", "delimiter", "quote", "null")


def copy_options(reader: Cursor) -> dict[str, str]:
    """The options from here to the end of the statement, names and formats in lower case."""
    options: dict[str, str] = {}
    more = reader.take("WITH")
    if reader.word() == "(":
        reader.listed(lambda: _option(reader, options))
    elif more and reader.at == len(reader.tokens):
        reader.fail("COPY options")
    while reader.at < len(reader.tokens):
        _option(reader, options)
    return options


def _option(reader: Cursor, options: dict[str, str]) -> None:
    position = reader.position()
    option = reader.word().lower()
    if option in ("csv", "json", "parquet"):
        reader.at += 1
        option, value = "format", option
    elif option == "format":
        reader.at += 1
        reader.take("=")
        if reader.at >= len(reader.tokens):
            reader.fail("csv, json or parquet")
        value = reader.tokens[reader.at].text.lower()
        reader.at += 1
    elif option == "header":
        reader.at += 1
        reader.take("=")
        value = "true"
        if reader.word() in ("TRUE", "FALSE", "ON", "OFF"):
            value = "true" if reader.word() in ("TRUE", "ON") else "false"
            reader.at += 1
    elif option in ("delimiter", "quote", "null"):
        reader.at += 1
        reader.take("=")
        value = reader.string(f"a quoted {option}")
    elif not option.isidentifier():
        reader.fail("a COPY option")
    else:
        known = ", ".join(o.upper() for o in COPY_OPTIONS)
        raise SqlError("COPY_OPTION_UNKNOWN", f"COPY has no option {option}", position=position, hint=f"it has {known}")
    if option in options:
        raise SqlError("COPY_REPEATED_OPTION", f"{option.upper()} is given twice", position=position)
    options[option] = value
