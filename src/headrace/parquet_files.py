"""The Parquet files Headrace writes: segments of tables, build sides, rows for Spark.

No statistics of floats: writers leave NaN out of a column's minimum and maximum, and readers, DuckDB and Spark
alike, trust those. They would skip the rows that a comparison with NaN, the greatest of all, is true for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def write_parquet(rows: pa.Table, file: Path, **options: Any) -> None:
    """Write all rows as one file."""
    pq.write_table(rows, file, write_statistics=_safe_statistics(rows.schema), **options)


def parquet_writer(file: Path, schema: pa.Schema, **options: Any) -> pq.ParquetWriter:
    """Write a file piece by piece."""
    return pq.ParquetWriter(file, schema, write_statistics=_safe_statistics(schema), **options)


def _safe_statistics(schema: pa.Schema) -> list[str] | bool:
    """The columns that may have statistics; those that hold other values may hold floats."""
    safe = [f.name for f in schema if not pa.types.is_floating(f.type) and not pa.types.is_nested(f.type)]
    return safe or False
