"""What the engines raise, as Headrace errors with Spark's conditions.

A statement must fail the same way whichever engine ran it, so both engines'
exceptions become :class:`~headrace.errors.ExecutionError` with the condition
Spark has for it. The native engine's own texts (``[CONDITION] message``, written
by :mod:`headrace.engine.native_text`) come back verbatim; DuckDB's built-in
checks are recognised by their text.

>>> from_duckdb(duckdb.OutOfRangeException("Out of Range Error: Overflow in addition of INT32 (1 + 2)!")).condition
'ARITHMETIC_OVERFLOW'
>>> type(from_duckdb(duckdb.InvalidInputException("Invalid Input Error: NATIVE_CANNOT: odd"))).__name__
'NativeCannot'
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

import duckdb

from headrace.base.private import has_shape, parse_json
from headrace.base.utf8 import HINT, INVALID
from headrace.engine.native_text import CANNOT, TOO_MANY_ROWS
from headrace.errors import CatalogError, DataError, ExecutionError, HeadraceError, SqlError, StoreError


class NativeCannot(ExecutionError):
    """A value the native engine does not treat exactly as Spark does: run the fragment by Spark SQL instead."""

    def __init__(self, reason: str) -> None:
        super().__init__(CANNOT, reason, hint="run this fragment by Spark SQL")


_HINTS = {
    "DIVIDE_BY_ZERO": "use nullif(divisor, 0) to get NULL instead",
    "REMAINDER_BY_ZERO": "use nullif(divisor, 0) to get NULL instead",
    "BINARY_ARITHMETIC_OVERFLOW": "cast an operand to a wider type first",
    "ARITHMETIC_OVERFLOW": "cast an operand to a wider type first",
    "CAST_OVERFLOW": "cast to a wider type",
    "CAST_INVALID_INPUT": "use try_cast to get NULL for text that does not parse",
    INVALID: HINT,
    "NUMERIC_VALUE_OUT_OF_RANGE": "cast to a decimal with more digits before the point",
}

# Built-in checks of DuckDB, by text; the first that matches wins. Decimal overflow at 38 digits is
# ambiguous (Spark may round the scale away and still succeed), so Spark is asked; so is a date or
# timestamp outside DuckDB's calendar.
_BUILT_IN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), condition)
    for pattern, condition in (
        (r"Overflow in \w+ of (DECIMAL|INT128)", CANNOT),
        (r"Overflow in HUGEINT", CANNOT),
        (r"field value out of range|invalid (date|timestamp) field", "CAST_INVALID_INPUT"),
        (r"(?i)(date|timestamp|interval)\b.*out of range|out of range.*\b(date|timestamp|interval)\b", CANNOT),
        (r"(?i)failure in decode", CANNOT),
        (r"(?i)Division by zero in expression \(.* % ", "REMAINDER_BY_ZERO"),
        (r"(?i)division by zero", "DIVIDE_BY_ZERO"),
        (r"Could not convert string .* to DECIMAL", "NUMERIC_VALUE_OUT_OF_RANGE"),
        (r"Could not convert string", "CAST_INVALID_INPUT"),
        (r"Could not cast value .* to DECIMAL|to type DECIMAL\(.* failed", "NUMERIC_VALUE_OUT_OF_RANGE"),
        (r"can't be cast because the value is out of range|Failed to cast decimal value", "CAST_OVERFLOW"),
        (r"Overflow in (addition|subtraction|multiplication) of INT(8|16) (?!\(0 - )", "BINARY_ARITHMETIC_OVERFLOW"),
        (r"Overflow (in|on)|ROUND of integer", "ARITHMETIC_OVERFLOW"),
    )
)
_OWN = re.compile(r"\[([A-Z][A-Z_]*(?:\.[A-Z_]+)?)\] (.*)", re.DOTALL)
_OWN_ADVICE = re.compile(r"(?<=[Dd]ivision by zero) in expression .*")
"""What the native engine advises about settings of its own, and columns by names of ours."""
_PREFIX = re.compile(r"^[A-Z][A-Za-z ]* Error: ")


def from_duckdb(error: duckdb.Error) -> HeadraceError:
    """The Headrace error a native failure stands for; unknown ones are NATIVE_ENGINE_FAILED with their text."""
    text = _PREFIX.sub("", str(error)).strip()
    if text.startswith(CANNOT):
        return NativeCannot(_first_line(text.removeprefix(CANNOT + ": ")))
    if own := _OWN.match(text):
        return _execution(own[1], _first_line(own[2]))
    line = _first_line(text)
    for pattern, condition in _BUILT_IN:
        if pattern.search(line):
            line = _OWN_ADVICE.sub("", line)
            return NativeCannot(line) if condition == CANNOT else _execution(condition, line)
    return _execution("NATIVE_ENGINE_FAILED", line)


def from_spark(error: Exception) -> HeadraceError:
    """The Headrace error a Spark failure stands for.

    A failure inside a task arrives wrapped ("Job aborted due to stage failure"):
    the condition is then the one its text names.

    >>> from_spark(Exception("An error occurred while calling o7.execute.\\n: java.io.IOException: no")).message
    'java.io.IOException: no'
    """
    condition = _spark_condition(error)
    text = str(error)
    if TOO_MANY_ROWS in text:
        own = _OWN.match(TOO_MANY_ROWS)
        assert own is not None
        return _execution(own[1], own[2])
    if carried := re.search(rf"{_CARRIED}(\{{.*\}})", text):
        return restored(carried[1])
    named = list(re.finditer(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\] ([^\n]*)", text))
    inner = [m for m in named if m[1] != condition]
    if condition is None or (condition in _WRAPPERS and inner):
        # The root cause stands last in a chain of wrapped conditions.
        raised = _last_of_traceback(text)
        if not named:
            return _execution("SPARK_FAILED", raised or _first_line(_CALL.sub("", text)))
        root = next((m for m in reversed(named) if m[1] not in _WRAPPERS), named[-1])
        return _execution(root[1], f"{_spark_line(root[2])} {raised}".strip())
    message = _spark_line(next((m[2] for m in named if m[1] == condition), text))
    return _execution(condition, f"{message} {_last_of_traceback(text)}".strip())


def _last_of_traceback(text: str) -> str:
    """What a Python worker raised, which stands below its traceback; nothing if there is none.

    >>> _last_of_traceback("x:\\nTraceback (most recent call last):\\n  File a, line 1\\nKeyError: 'k'\\n\\n\\tat java")
    "KeyError: 'k'"
    """
    lines = text[text.rfind(_TRACEBACK) :].splitlines()[1:] if _TRACEBACK in text else []
    return next((line.strip() for line in lines if line[:1].strip()), "")


_TRACEBACK = "Traceback (most recent call last):"
_CALL = re.compile(r"\AAn error occurred while calling [^\n]*\n: ?")
"""What Py4J writes above a failure of the JVM."""
_CARRIED = "HEADRACE_ERROR "


class Carried(Exception):
    """A Headrace error on its way out of a Spark task: Spark keeps only an exception's text."""

    def __init__(self, error: HeadraceError) -> None:
        super().__init__(f"{_CARRIED}{packed(error)}")


_KINDS = {c.__name__: c for c in (DataError, CatalogError, StoreError, SqlError, ExecutionError)}


def packed(error: HeadraceError) -> str:
    """An error as one line of JSON."""
    kind = next((k for k, c in _KINDS.items() if isinstance(error, c)), "ExecutionError")
    return json.dumps({"kind": kind, "condition": error.condition, "message": error.message, "hint": error.hint})


def restored(line: Any) -> HeadraceError:
    """The error :func:`packed` wrote, from its line or what that says; ``ValueError`` if it is none.

    >>> restored(packed(DataError("CSV_BAD_VALUE", "row 3", hint="mend it")))
    DataError('CSV_BAD_VALUE', 'row 3')
    """
    body = parse_json(line) if isinstance(line, str) else line
    if not has_shape(body, {"kind": str, "condition": str, "message": str, "hint": str | None}):
        raise ValueError("no error of Headrace")
    return _KINDS.get(body["kind"], ExecutionError)(body["condition"], body["message"], hint=body["hint"])


_WRAPPERS = {"FAILED_EXECUTE_UDF", "TASK_WRITE_FAILED", "FAILED_READ_FILE.NO_HINT", "STREAM_FAILED", "JOB_ABORTED"}


def _spark_condition(error: Exception) -> str | None:
    for name in ("getCondition", "getErrorClass"):
        getter = getattr(error, name, None)
        if getter is not None:
            found = getter()
            if isinstance(found, str) and found:
                return found
    return None


def _spark_line(message: str) -> str:
    """The first line, without the SQLSTATE and the settings advice Spark appends."""
    line = _first_line(message)
    return re.sub(r"\s*(If necessary set .*|SQLSTATE: \w+.*)$", "", line)


_SOURCE = re.compile(r"!? when casting from source column \S+$")
"""DuckDB names the column of the text it was given, which is none of the user's."""


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return _SOURCE.sub("", lines[0].strip()) if lines else ""


def _execution(condition: str, message: str) -> ExecutionError:
    if condition == "INTERNAL_ERROR":  # Spark's; ours has that name
        condition = "SPARK_FAILED"
    hint = _HINTS.get(condition)
    if "ModuleNotFoundError: " in message:
        this = os.path.abspath(sys.executable)
        hint = f"Spark's Python workers lack it: set PYSPARK_PYTHON={this} before the Spark session is made"
    return ExecutionError(condition, message, hint=hint)
