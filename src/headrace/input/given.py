"""What a program may hand over as a column or as rows, looked at before Arrow is given it.

Arrow follows a value into the values it holds until its stack ends, and iterating over somebody's object runs
somebody's code. So both happen here, where what goes wrong is named.

>>> endless = []
>>> endless.append(endless)
>>> refuse_depth([endless], "tags")
Traceback (most recent call last):
    ...
headrace.errors.DataError: [INSERT_BAD_VALUE] column tags: a value holds others in more than 100 levels, or itself
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import DataError, HeadraceError
from headrace.input.text import shorten

_DEEPEST = 100
_HOLDERS = (list, tuple, set, frozenset, Mapping, np.ndarray)


class BadItem(Exception):
    """A Python value that is none of its type: the row that has it, where in the row, and why."""

    def __init__(self, row: int, path: str, why: str) -> None:
        self.row = row
        self.path = path
        self.why = why
        super().__init__(row, path, why)


@contextmanager
def foreign(data: object, what: str = "") -> Iterator[None]:
    """A block that runs code of whoever gave the data: what fails there is no defect of ours."""
    try:
        yield
    except (HeadraceError, MemoryError, BadItem):
        raise
    except Exception as error:
        raise DataError(
            "INSERT_INPUT_FAILED",
            f"{what or _name(data)} cannot be read: {type(error).__name__}: {printed(error, str)}",
            hint="see what it was caused by (__cause__); nothing was inserted",
        ) from error


def unknown_input(data: object) -> DataError:
    return DataError(
        "INSERT_UNKNOWN_INPUT",
        f"rows cannot be taken from {_name(data)}",
        hint="give an Arrow table, batch or reader, a pandas or Polars frame, a list of dicts or tuples, or a dict of "
        "columns; a single column is {name: column}",
    )


def refuse_foreign_types(columns: Iterable[tuple[str, Any]]) -> None:
    """Refuse columns of Polars whose types Arrow does not have, each by its name."""
    for name, column in columns:
        try:
            column.rename("").head(0).to_arrow()
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise DataError(
                "INSERT_TYPE_MISMATCH",
                f"column {name} is {column.dtype} in Polars, which Arrow does not have",
                hint=f"cast it to a type that Arrow has: polars.col({name!r}).cast(polars.Int64), for one",
            ) from error


def printed(value: object, how: Callable[[object], str] = repr) -> str:
    """A value as an error message shows it, whatever its own code makes of that."""
    try:
        return shorten(how(value))
    except Exception:
        return f"a value of {_name(value)}"


def _name(data: object) -> str:
    return f"{type(data).__module__}.{type(data).__qualname__}"


def fields_of(kind: Any) -> Iterator[str]:
    """The names of fields in a type of Polars, which ends the process when it hands over one with a NUL."""
    for field in getattr(kind, "fields", ()):
        yield field.name
        yield from fields_of(field.dtype)
    if getattr(kind, "inner", None) is not None:
        yield from fields_of(kind.inner)


def column_of(name: object, given: Any) -> Any:
    """One column of a dict of columns: a sequence that can be cut, or an array of some library."""
    plain = isinstance(given, list | tuple | pa.Array | pa.ChunkedArray)
    if not plain and (isinstance(given, str | bytes | Mapping) or not hasattr(given, "__len__")):
        raise DataError(
            "INSERT_UNKNOWN_INPUT",
            f"column {name} is no sequence of values",
            hint="a dict is a dict of columns; for one row write [{...}]",
        )
    if plain:
        return given
    with foreign(given):
        if getattr(given, "ndim", 1) != 1:
            raise DataError(
                "INSERT_UNKNOWN_INPUT",
                f"column {name} has {given.ndim} dimensions",
                hint="give one value a row; for arrays give a list of lists",
            )
        if hasattr(given, "to_arrow") and type(given).__module__.startswith("polars"):
            if any("\0" in n for n in fields_of(given.dtype)):
                return list(given)
            refuse_foreign_types([(str(name), given)])
            return given.rename("").to_arrow()
        kind = str(getattr(given, "dtype", "object"))
        if kind == "datetime64[D]":
            _refuse_far_days(name, given)
        if type(given).__module__.startswith("pandas"):
            return of_pandas(given) if holds_objects(given.dtype) else given
        return given if kind != "object" else list(given)


class PandasObjects(list[Any]):
    """The values of a pandas column of Python objects, where NaN stands for NULL at any level."""


def holds_objects(dtype: Any) -> bool:
    """Whether a pandas column holds Python objects; categories that are all text go by their type."""
    if str(dtype) == "category":
        return str(dtype.categories.dtype) == "object" and not kinds_of(list(dtype.categories)) <= {str}
    return str(dtype) == "object"


def of_pandas(column: Any) -> PandasObjects:
    """The objects of a pandas column, with ``None`` for what is missing."""
    values = np.array(column, dtype=object)
    values[np.asarray(column.isna())] = None
    return PandasObjects(values)


def _refuse_far_days(name: object, days: Any) -> None:
    """Arrow keeps days in 32 bits, and would quietly drop the others."""
    counts = np.asarray(days).astype(np.int64)
    far = ~np.isnat(days) & ((counts >= 1 << 31) | (counts < -(1 << 31)))
    if far.any():
        raise DataError("INSERT_BAD_VALUE", f"row {int(far.argmax()) + 1}, column {name}: no calendar has this day")


def refuse_depth(values: Iterable[Any], name: object) -> None:
    """An error if a value holds others too deeply, as one that holds itself does."""
    level = _held(values)
    for _ in range(_DEEPEST):
        if not level:
            return
        level = _held(item for holder in level for item in (holder.values() if isinstance(holder, Mapping) else holder))
    raise DataError(
        "INSERT_BAD_VALUE", f"column {name}: a value holds others in more than {_DEEPEST} levels, or itself"
    )


def _held(values: Iterable[Any]) -> list[Any]:
    """Those of the values that hold others, each once."""
    return list({id(v): v for v in values if isinstance(v, _HOLDERS) and getattr(v, "ndim", 1) != 0}.values())


def kinds_of(values: Any) -> set[type]:
    """The types of Python values, ``NoneType`` apart; none for an array of some library, which has one type."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        return set()
    return set(map(type, values)) - {type(None)}


def is_holder(kind: type) -> bool:
    """Whether values of this type hold others."""
    return issubclass(kind, _HOLDERS)
