"""Parquet files, written and read: the one place that says how.

Readers are helpful by themselves: below a directory ``op=7`` they find a column ``op`` of sevens, and in the name
``a?b`` a pattern. Every reader of files is opened here, with each such habit switched off, so that a file is what its
path says and holds what was written into it. ``tests/test_one_way_to_read.py`` looks for others.

No statistics of floats are written: writers leave NaN out of a column's minimum and maximum, and readers, DuckDB and
Spark alike, trust those. They would skip the rows that a comparison with NaN, the greatest of all, is true for.

>>> native_scan(["it's.parquet"]).partition("], ")[0]
"read_parquet([{'filename': 'it''s.parquet'}"
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from headrace.base.private import new_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

ROW_NUMBER = "file_row_number"
"""The column a numbered scan adds."""

# As DuckDB 2.0 has them. What is left out has no value that says "no": a schema, types of partitions, a key.
_NATIVE = {
    "hive_partitioning": "false",
    "hive_types_autocast": "false",
    "union_by_name": "false",
    "filename": "false",
    "allow_empty": "false",
    "binary_as_string": "false",
    "can_have_nan": "true",
    "utf8_validation": "'strict'",
    "int96_as": "'timestamp'",
}

_HERE = LocalFileSystem()

_SPARK = {
    "recursiveFileLookup": "true",  # this is how Spark is told not to look for partitions
    "__globPaths__": "false",
    "mergeSchema": "false",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}


ROW_GROUP = 32_768
"""Rows that lie together in a file: enough for a scan, and few enough to read one of them."""
DICTIONARY = 32_768
"""Bytes of different values in a row group's column before the rest is written as it is. Looking each value up takes
longer than writing it, and pays only where there are few: files of a million values then take half the time."""


def write_parquet(rows: pa.Table, file: Path, **options: Any) -> None:
    """Write all rows as one file."""
    options = {"row_group_size": ROW_GROUP, **options}
    pq.write_table(rows, new_file(file), **_written(rows.schema), **options)


def parquet_writer(file: Path, schema: pa.Schema, **options: Any) -> pq.ParquetWriter:
    """Write a file piece by piece."""
    return pq.ParquetWriter(new_file(file), schema, **_written(schema), **options)


def _written(schema: pa.Schema) -> dict[str, Any]:
    """How files are written. Decimals of up to 18 digits are integers in them, as Spark writes them: others are bytes,
    which take longer to write and to read."""
    return {
        "write_statistics": _safe_statistics(schema),
        "store_decimal_as_integer": True,
        "dictionary_pagesize_limit": DICTIONARY,
    }


def _safe_statistics(schema: pa.Schema) -> list[str] | bool:
    """The columns that may have statistics; those that hold other values may hold floats."""
    safe = [f.name for f in schema if not pa.types.is_floating(f.type) and not pa.types.is_nested(f.type)]
    return safe or False


def native_scan(files: Sequence[Path | str], *, numbered: bool = False, named: str | None = None) -> str:
    """The files as a DuckDB table expression, all of one schema; ``numbered`` with a column :data:`ROW_NUMBER`.

    A column ``named`` so has the path of each row's file.

    A file is given as a struct: a path as text would be a pattern.
    """
    listed = ", ".join(f"{{'filename': {_literal(os.fspath(file))}}}" for file in files)
    options = {**_NATIVE, ROW_NUMBER: "true" if numbered else "false"}
    if named is not None:
        options["filename"] = _literal(named)
    return f"read_parquet([{listed}], {', '.join(f'{name}={value}' for name, value in options.items())})"


def open_parquet(file: Path | str, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """A file to read through Arrow, piece by piece. A ``ParquetFile`` knows nothing of the directories above it."""
    return pq.ParquetFile(
        file,
        metadata=footer,
        filesystem=_HERE,  # else a name with a colon would be an address
        coerce_int96_timestamp_unit=None,
        binary_type=None,
        list_type=None,
        arrow_extensions_enabled=True,
    )


def footer_of(file: Path | str) -> pq.FileMetaData:
    """What a file says of itself."""
    with open_parquet(file) as found:
        return found.metadata


def parquet_rows(file: Path | str, columns: Sequence[str] | None = None) -> pa.Table:
    """A file's rows, or some columns of them."""
    with open_parquet(file) as found:
        return found.read(None if columns is None else list(columns))


def parquet_chunks(file: Path | str, rows: int = 262_144) -> Iterator[pa.Table]:
    """A file's rows, about so many at a time."""
    with open_parquet(file) as found:
        for batch in found.iter_batches(rows):
            yield pa.Table.from_batches([batch])


def spark_reader(spark: SparkSession) -> DataFrameReader:
    """A reader of files that takes each path as it is written."""
    return spark.read.options(**_SPARK)


def spark_frame(spark: SparkSession, *paths: Path | str) -> DataFrame:
    """Files, or whole flat folders of them, as a DataFrame."""
    return spark_reader(spark).parquet(*map(str, paths))


def is_plain_read(frame: DataFrame, path: str) -> bool:
    """Whether a user's frame is what Spark makes of a path when nothing is said about how to read it."""
    try:
        return bool(frame.sameSemantics(frame.sparkSession.read.schema(frame.schema).parquet(path)))
    except Exception:  # read so the path is a pattern, of no file or even malformed
        return False


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
