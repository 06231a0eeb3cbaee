"""Native SQL that runs again and again over other rows: planned once.

To plan a text of some size takes DuckDB several times as long as to run it over a thousand rows. So a text that comes
again is prepared, over relations that are whatever they were given last: DuckDB asks each for its rows when it runs.

>>> from headrace.base.native import native_connection
>>> with native_connection() as connection:
...     one = Standing(connection.cursor(), "SELECT max(n) AS n FROM given", {"given": pa.table({"n": [1, 2]})})
...     [one.run({"given": pa.table({"n": n})}).column(0).to_pylist() for n in ([1, 2], [40, 2])]
[[2], [40]]
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import duckdb
import pyarrow as pa

from headrace.base.interrupts import stoppable
from headrace.base.native import native_query


class _Relation:
    """A relation of DuckDB's whose rows are changed between statements. Its columns stay."""

    def __init__(self, none: pa.Table) -> None:
        self._none = self.rows = none

    def empty(self) -> None:
        self.rows = self._none

    def __arrow_c_schema__(self) -> object:
        return self._none.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)


class Standing:
    """One text, prepared; the only one to use its cursor."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, text: str, given: Mapping[str, pa.Table]) -> None:
        """The rows that are given first say what columns there are."""
        self._cursor = cursor
        self._runs = threading.Lock()
        self._schemas = {name: rows.schema for name, rows in given.items()}
        self._given = {name: _Relation(rows.schema.empty_table()) for name, rows in given.items()}
        with stoppable(cursor.interrupt):
            for name, relation in self._given.items():
                cursor.register(name, relation)
            cursor.execute(f"PREPARE standing AS {text}")

    def fits(self, given: Mapping[str, pa.Table]) -> bool:
        """Whether these rows have the columns it was planned for."""
        return all(given[name].schema.equals(schema) for name, schema in self._schemas.items())

    def run(self, given: Mapping[str, pa.Table]) -> pa.Table:
        """The rows of the text over these."""
        with self._runs:
            try:
                for name, relation in self._given.items():
                    relation.rows = given[name]
                with stoppable(self._cursor.interrupt):
                    return native_query(self._cursor, "EXECUTE standing", {})
            finally:
                for relation in self._given.values():
                    relation.empty()  # what was given may be large, or be lent

    def close(self) -> None:
        self._cursor.close()
