"""DuckDB, twice: once over the file with nothing kept (the limit), and as deferred maintenance (keep the rows,
recompute at the query)."""

from __future__ import annotations

import shutil
import tempfile
import time
from typing import Any, cast

import duckdb
import pyarrow as pa

from bench.tpch import LINEITEM, Case, ddl
from headrace.settings import cores


def _connect(path: str = ":memory:") -> Any:
    return duckdb.connect(path, config={"threads": str(cores())})


def _load_tables(db: Any, case: Case) -> None:
    for name in case.query.tables:
        db.execute(f"CREATE TABLE {name} AS FROM '{case.data.table(name)}'")


def _source(case: Case) -> str:
    if case.format == "parquet":
        return f"read_parquet('{case.file}')"
    types = {name: type.replace("STRING", "VARCHAR") for name, type in LINEITEM.items()}
    return f"read_csv('{case.file}', header = true, delim = ',', quote = '\"', columns = {types})"


class DuckDBOnce:
    """The query by DuckDB straight over the file; the static tables are in its memory already."""

    name = "DuckDB once"

    def answer(self, case: Case) -> tuple[float, pa.Table]:
        # Its avg is a double: cheaper than Spark's decimal, and left so, in DuckDB's favour.
        with _connect() as db:
            _load_tables(db, case)
            start = time.perf_counter()
            db.execute(f"CREATE VIEW lineitem AS FROM {_source(case)}")
            rows = cast(pa.Table, db.sql(case.sql).to_arrow_table())
            return time.perf_counter() - start, rows


class Deferred:
    """The stream's rows appended to a table of a DuckDB file, durably, and the query over the table."""

    name = "Deferred (DuckDB table)"

    def answer(self, case: Case) -> tuple[float, pa.Table]:
        directory = tempfile.mkdtemp(prefix="headrace-bench-")
        try:
            with _connect(f"{directory}/rows.duckdb") as db:
                _load_tables(db, case)
                db.execute(f"CREATE TABLE lineitem ({ddl(LINEITEM)})")
                start = time.perf_counter()
                db.execute(f"INSERT INTO lineitem FROM {_source(case)}")
                rows = cast(pa.Table, db.sql(case.sql).to_arrow_table())
                return time.perf_counter() - start, rows
        finally:
            shutil.rmtree(directory, ignore_errors=True)
