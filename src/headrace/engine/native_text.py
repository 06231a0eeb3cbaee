"""Pieces of native SQL text every native printer uses.

DuckDB has no exception but ``error(text)``; what Spark would raise is written as
``error('[CONDITION] message')`` under a CASE, which DuckDB evaluates only for the
rows that reach it. A second kind of text, ``NATIVE_CANNOT: ...``, says that *this
value* is outside what the native engine gets exactly right: the caller then runs
the whole fragment by Spark SQL. :mod:`headrace.engine.failures` reads both back.

>>> fail("DIVIDE_BY_ZERO", "Division by zero")
"error('[DIVIDE_BY_ZERO] Division by zero')"
>>> text_literal("it's")
"'it''s'"
"""

from __future__ import annotations

import re

CANNOT = "NATIVE_CANNOT"
"""How the text of a run-time refusal starts."""
TOO_MANY_ROWS = "[SCALAR_SUBQUERY_TOO_MANY_ROWS] More than one row returned by a subquery used as an expression"
"""What a subquery that stands for a value raises; Spark wraps it as something the user raised."""


class NotNative(Exception):
    """Why the native engine leaves an expression to Spark SQL; shown by EXPLAIN."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def text_literal(text: str) -> str:
    """A VARCHAR constant. NUL ends SQL text early, so such text travels as hex."""
    if "\0" in text:
        return f"decode(unhex('{text.encode().hex()}'))"
    return "'" + text.replace("'", "''") + "'"


def fail(condition: str, message: str, value: str | None = None) -> str:
    """SQL that raises ``condition``; ``value`` is SQL text for the offending value, put before the message."""
    if value is None:
        return f"error({text_literal(f'[{condition}] {message}')})"
    return f"error({text_literal(f'[{condition}] ')} || left(CAST({value} AS VARCHAR), 80) || {text_literal(message)})"


def cannot(reason: str) -> str:
    """SQL that asks for a rerun by Spark SQL, for values the native form does not get exactly right."""
    return f"error({text_literal(f'{CANNOT}: {reason}')})"


def power_of_ten(exponent: int) -> str:
    """10^exponent as a DECIMAL constant of scale 0 (or of scale -exponent when negative).

    >>> power_of_ten(3), power_of_ten(-2)
    ("'1000'::DECIMAL(4,0)", "'0.01'::DECIMAL(2,2)")
    """
    if exponent >= 0:
        return f"'1{'0' * exponent}'::DECIMAL({exponent + 1},0)"
    return f"'0.{'0' * (-exponent - 1)}1'::DECIMAL({-exponent},{-exponent})"


def is_utc(zone: str) -> bool:
    """Whether a session zone is UTC under another name: fields of instants are then plain arithmetic.

    >>> is_utc("Etc/UTC"), is_utc("+00:00"), is_utc("Europe/London")
    (True, True, False)
    """
    return bool(re.fullmatch(r"(?i)(etc/)?(utc|gmt|uct|zulu|z|universal|greenwich)|(utc|gmt)?[+-]0?0(:00)?", zone))
