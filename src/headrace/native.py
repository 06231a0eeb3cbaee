"""Native SQL over Arrow tables that are given by name.

DuckDB looks for a relation it does not know among the variables of whoever asks. So the tables are made
the variables of an expression that asks: registering each as a view would cost more than many a query.

>>> with duckdb.connect() as connection:
...     native_query(connection, "SELECT max(n) AS n FROM given", {"given": pa.table({"n": [1, 2]})}).to_pylist()
[{'n': 2}]
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import pyarrow as pa

_ASK = compile("cursor.sql(text)", __name__, "eval")


def native_query(
    cursor: duckdb.DuckDBPyConnection, text: str, relations: Mapping[str, pa.Table | pa.RecordBatchReader]
) -> pa.Table:
    """The rows of a query; an empty table for a statement that has none."""
    found = eval(_ASK, {**relations, "cursor": cursor, "text": text})
    return pa.table({}) if found is None else found.to_arrow_table()


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows in exactly these columns and types; they must already agree by position."""
    if rows.schema == schema:
        return rows
    return rows.rename_columns(schema.names).cast(schema)
