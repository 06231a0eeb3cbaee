"""Native SQL over Arrow tables that are given by name.

DuckDB looks for a relation it does not know among the variables of whoever asks. So the tables are made
the variables of an expression that asks: registering each as a view would cost more than many a query.

>>> with native_connection() as connection:
...     native_query(connection, "SELECT max(n) AS n FROM given", {"given": pa.table({"n": [1, 2]})}).to_pylist()
[{'n': 2}]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import duckdb
import pyarrow as pa

_ASK = compile("cursor.sql(text)", __name__, "eval")

_CONFIG: Mapping[str, Any] = {
    # Nothing is fetched or loaded because some text or file seems to want it, and no stored secrets are read.
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    # Relations are given as variables of the frame that asks, and of no other.
    "python_enable_replacements": True,
    "python_scan_all_frames": False,
    # Files of tables may be replaced at any time.
    "cache_local_files": False,
}


def native_connection(database: str = ":memory:", **config: Any) -> duckdb.DuckDBPyConnection:
    """A DuckDB of our own, with what it would do by itself switched off; times are shown in UTC.

    ``config`` are DuckDB's settings. Rows come in the order of their files and tables unless it says otherwise.
    """
    connection = duckdb.connect(database, config={**_CONFIG, **config})
    try:
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
    except BaseException:
        connection.close()
        raise
    return connection


def native_query(
    cursor: duckdb.DuckDBPyConnection, text: str, relations: Mapping[str, pa.Table | pa.RecordBatchReader]
) -> pa.Table:
    """The rows of a query; an empty table for a statement that has none."""
    found = eval(_ASK, {**relations, "cursor": cursor, "text": text})
    return pa.table({}) if found is None else found.to_arrow_table()


def native_batches(
    cursor: duckdb.DuckDBPyConnection, text: str, rows: int, relations: Mapping[str, pa.Table] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a query, about so many at a time. Its failures are DuckDB's, though Arrow brings them."""
    reader = eval(_ASK, {**(relations or {}), "cursor": cursor, "text": text}).to_arrow_reader(rows)
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as error:
            raise duckdb.Error(str(error)) from error
        yield batch


@lru_cache(maxsize=1024)
def _has_fields(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether all structs in a type have the fields of another.

    >>> ab, ac = (pa.list_(pa.struct([("a", pa.int32()), (b, pa.int64())])) for b in "bc")
    >>> _has_fields(ab, ab), _has_fields(ab, ac)
    (True, False)
    """
    if not (pa.types.is_nested(found) and pa.types.is_nested(wanted)):
        return True
    mine, theirs = ([type.field(i) for i in range(type.num_fields)] for type in (found, wanted))
    names = pa.types.is_struct(found) and [f.name for f in mine] != [f.name for f in theirs]
    return not names and all(_has_fields(a.type, b.type) for a, b in zip(mine, theirs, strict=False))


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows in exactly these columns and types; they must already agree by position, and structs by their names."""
    if rows.schema == schema:
        return rows
    for place, wanted in enumerate(schema):
        found = rows.schema.field(place).type
        if not _has_fields(found, wanted.type):  # Arrow would make NULL of a field it does not find
            raise TypeError(f"{wanted.name} is {found}, and {wanted.type} was planned")
        if pa.types.is_null(wanted.type):  # the native engine has no type of NULL alone, and Arrow no cast to one
            rows = rows.set_column(place, wanted, pa.nulls(rows.num_rows))
    return rows.rename_columns(schema.names).cast(schema)
