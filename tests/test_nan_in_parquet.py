"""NaN in Parquet: files' statistics leave it out, no answer may."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.table.rows import TAIL_ROWS

COLUMNS = "i INT, k DOUBLE, f FLOAT, s STRUCT<x: DOUBLE, y: ARRAY<FLOAT>>"
# NaN is greater than any number, and equal to itself: what holds for rows 1 and 4, and only for them
TRUE_FOR_NAN = [
    "k > 2", "k = double('NaN')", "NOT k <= 2", "f >= 7", "f = float('NaN')", "k > 2 OR k < -7", "s.x > 100",
    "s.x = double('NaN')", "k <=> double('NaN')",
]  # fmt: skip
EXTREMES = "max(k), max(f), max(s.x), min(k), count(*)"


def rows() -> pa.Table:
    k = [math.nan, 1.5, -0.0, math.nan, None]
    nested = [None if v is None else {"x": v, "y": [v]} for v in k]
    return pa.table(
        {
            "i": pa.array([1, 2, 3, 4, 5], pa.int32()),
            "k": k,
            "f": pa.array(k, pa.float32()),
            "s": pa.array(nested, pa.struct([("x", pa.float64()), ("y", pa.list_(pa.float32()))])),
        }
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    pq.write_table(rows(), tmp_path / "nan.parquet")
    group = pq.read_metadata(tmp_path / "nan.parquet").row_group(0)
    assert group.column(1).statistics.max == 1.5, "the statistics this is about"
    return tmp_path / "nan.parquet"


def _check(db: headrace.Database, condition: str, relation: str) -> None:
    found = db.sql(f"SELECT i FROM {relation} WHERE {condition} ORDER BY i").rows()
    assert found == [(1,), (4,)], condition


def _extremes(db: headrace.Database, relation: str) -> None:
    ((*greatest, least, count),) = db.sql(f"SELECT {EXTREMES} FROM {relation}").rows()
    assert all(math.isnan(v) for v in greatest) and (least, count) == (0.0, 5)


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["native", "tasks", "spark"])
def test_files_copied_into_a_stream(engine: str, file: Path, spark: Any) -> None:
    with headrace.connect(spark=spark, engine=engine) as db:
        db.sql(f"CREATE STREAM r ({COLUMNS})")
        db.sql(f"CREATE VIEW extremes AS SELECT {EXTREMES} FROM r")
        for n, condition in enumerate(TRUE_FOR_NAN):
            if "NaN" not in condition or engine == "spark":  # the cast of NaN's text is Spark's business
                db.sql(f"CREATE VIEW v{n} AS SELECT sum(i) AS i FROM r WHERE {condition}")
        db.sql(f"COPY r FROM '{file}'")
        ((*greatest, least, count),) = db.sql("SELECT * FROM extremes").rows()
        assert all(math.isnan(v) for v in greatest) and (least, count) == (0.0, 5)
        for n, condition in enumerate(TRUE_FOR_NAN):
            if db.catalog.find(f"v{n}") is not None:
                assert db.sql(f"SELECT * FROM v{n}").rows() == [(5,)], condition


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_tables_over_files(engine: str, file: Path, spark: Any) -> None:
    with headrace.connect(spark=spark, engine=engine) as db:
        db.sql(f"CREATE TABLE t ({COLUMNS}) USING PARQUET LOCATION '{file}'")
        _extremes(db, "t")
        for condition in TRUE_FOR_NAN:
            _check(db, condition, "t")


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_tables_of_ones_own(engine: str, spark: Any) -> None:
    """So many rows that they are in a segment; those that do not matter come from a filter's other side."""
    many = pa.concat_tables([rows(), *[rows().slice(2, 1)] * 3, _zeros(TAIL_ROWS)])
    with headrace.connect(spark=spark, engine=engine) as db:
        db.sql(f"CREATE TABLE t ({COLUMNS})")
        db.insert("t", many)
        for condition in TRUE_FOR_NAN:
            _check(db, condition, "t")
        ((greatest,),) = db.sql("SELECT max(k) FROM t").rows()
        assert math.isnan(greatest)


def _zeros(n: int) -> pa.Table:
    zero = np.zeros(n)
    return pa.table({"i": zero, "k": zero, "f": zero, "s": pa.nulls(n)}).cast(rows().schema)
