"""Rows with columns beside those of a relation: which columns there are, and of which types.

What ``db.insert`` takes, with a relation's columns in their declared types and any others in the types they come in.

>>> schema = (Field("id", BIGINT),)
>>> data, fields = widened([{"ID": 1, "op": "c", "at": 7}], schema)
>>> [(f.name, f.type.sql) for f in fields]
[('id', 'bigint'), ('op', 'string'), ('at', 'bigint')]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import DataError
from headrace.input.conversion import FAILURES
from headrace.input.given import column_of, foreign, unknown_input
from headrace.types import BIGINT, STRING, VOID, Field, Schema, Type, from_arrow

__all__ = ["BIGINT", "Field", "widened"]


def widened(data: Any, known: Schema, unwanted: Sequence[str] = ()) -> tuple[Any, Schema]:
    """The rows, so that they can still be read, and their columns; ``known`` ones under their own names.

    Of the ``unwanted``, those in types that nothing here has are left out. Tuples are refused: they name no columns.
    """
    data = _held(data)
    names = _names(data)
    columns = {f.name.lower(): Field(f.name, f.type) for f in known}
    leave = {name.lower() for name in unwanted}
    fields: list[Field] = []
    gone: list[str] = []
    for name in names:
        field = columns.get(name.lower())
        if field is None:
            found = _type(data, name)
            if (type := from_arrow(found)) is not None:
                field = Field(name, STRING if type == VOID else type)
            elif name.lower() not in leave:
                raise DataError(
                    "INSERT_TYPE_MISMATCH",
                    f"column {name} is {found}, which is no type of Spark's",
                    hint="leave it out, or convert it first",
                )
        if field is None:
            gone.append(name)
        else:
            fields.append(field)
    return _without(data, gone) if gone else data, tuple(fields)


def _held(data: Any) -> Any:
    """What can be read once only, read; the rest as it is."""
    if isinstance(data, pa.Array):
        if not pa.types.is_struct(data.type) or data.null_count:
            raise unknown_input(data)
        data = pa.RecordBatch.from_struct_array(data)
    module = type(data).__module__.partition(".")[0]
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.Table | Mapping) or module == "pandas":
        return data
    if module == "polars":
        with foreign(data):
            return data.collect() if hasattr(data, "collect") else data
    with foreign(data):
        if isinstance(data, pa.RecordBatchReader):
            return data.read_all()
        if module == "pyarrow" and hasattr(data, "scanner"):
            return data.scanner().to_table()
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data).read_all()
        if isinstance(data, Iterable) and not isinstance(data, str | bytes):
            return list(data)
    raise unknown_input(data)


def _names(data: Any) -> list[str]:
    if isinstance(data, pa.Table):
        return list(data.column_names)
    if isinstance(data, list):
        wrong = next((row for row in data if not isinstance(row, Mapping)), None)
        if isinstance(wrong, tuple | list):
            raise DataError(
                "INSERT_UNKNOWN_INPUT",
                "a tuple does not say which column its values are of",
                hint="give dicts, or an Arrow table, or a dict of columns",
            )
        if wrong is not None:
            raise unknown_input(wrong)
        return list(dict.fromkeys(str(name) for row in data for name in row))
    if isinstance(data, Mapping):
        return [str(name) for name in data]
    if not hasattr(data, "columns"):
        raise unknown_input(data)
    with foreign(data):
        return [str(name) for name in data.columns]


def _type(data: Any, name: str) -> pa.DataType:
    """The Arrow type of a column."""
    if isinstance(data, pa.Table):
        return data.schema.field(data.column_names.index(name)).type
    try:
        if isinstance(data, list):
            return pa.array([row.get(name) for row in data]).type
        if isinstance(data, Mapping):
            values = column_of(name, data[name])
            return values.type if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values).type
        if type(data).__module__.startswith("polars"):
            return data.get_column(name).head(0).to_arrow().type
        return pa.array(data[name], from_pandas=True).type
    except FAILURES as error:
        raise DataError(
            "INSERT_BAD_VALUE", f"column {name} cannot become Arrow: {error}", hint="give it values of one type"
        ) from error


def _without(data: Any, names: Sequence[str]) -> Any:
    if isinstance(data, pa.Table):
        return data.drop_columns(list(names))
    if isinstance(data, list):
        return [{name: value for name, value in row.items() if name not in names} for row in data]
    if isinstance(data, Mapping):
        return {name: column for name, column in data.items() if name not in names}
    return data.drop(columns=list(names)) if hasattr(data, "iloc") else data.drop(list(names))


def type_of_sequence(type: Type) -> Type:
    """The type sequences of a column's type are kept in: whole numbers in one, whatever column they come in."""
    return BIGINT if type.is_integer else type.plain
