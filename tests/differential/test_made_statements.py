"""Whole statements, made at random and written down, run here and by Spark: the same rows, or an error from both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace
from headrace.errors import HeadraceError
from made_statements import TABLES, Made
from profiles import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


WRITTEN = [
    text.strip() for text in (Path(__file__).parent / "odd_queries.sql").read_text().split(";\n") if text.strip()
]
MORE = {
    "hav": "SELECT * FROM VALUES ('one', 1), ('two', 2), ('three', 3), ('one', 5) AS t(k, v)",
    "clock": "SELECT * FROM VALUES (timestamp '2024-01-01 09:10:00'), (timestamp '2024-01-01 10:20:00'), (NULL) t(at)",
}


@pytest.fixture(scope="module")
def db(spark: SparkSession) -> Iterator[headrace.Database]:
    with headrace.connect(spark=spark) as database:
        for name, (columns, rows) in TABLES.items():
            ddl = ", ".join(f"`{c}` INT" for c in columns)
            spark.createDataFrame(list(rows), ddl).createOrReplaceTempView(name)
            database.sql(f"CREATE TABLE {name} ({ddl})")
            database.insert(name, list(rows))
        for name, query in MORE.items():
            spark.sql(query).createOrReplaceTempView(name)
            database.sql(f"CREATE TABLE {name} AS {query}")
        yield database


def plain(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.9g}")
    if isinstance(value, dict | tuple):  # a struct: a dict here, a Row there
        named = (
            value.items() if isinstance(value, dict) else zip(getattr(value, "__fields__", value), value, strict=True)
        )
        return [(name, plain(v)) for name, v in named]
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def rows_of(found: list[Any]) -> Counter[str]:
    return Counter(repr(tuple(plain(v) for v in row)) for row in found)


def difference(db: headrace.Database, spark: SparkSession, text: str) -> str | None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        frame = spark.sql(text)
        theirs = rows_of(frame.collect())
        names = frame.columns
    except (PySparkException, Py4JJavaError) as error:
        theirs, names = None, [str(error)[:200]]
    try:
        answer = db.sql(text)
        ours = rows_of(answer.rows())
    except HeadraceError as error:
        return None if theirs is None else f"refused here: {error}"
    if theirs is None:
        # MISSING_ATTRIBUTES is a defect of Spark's: grouping sets of what USING merged.
        return None if "MISSING_ATTRIBUTES" in names[0] else f"answered here, refused by Spark: {names}"
    counted = " LIMIT " in text or " OFFSET " in text  # which rows these are is anybody's choice
    if (sum(ours.values()) != sum(theirs.values())) if counted else ours != theirs:
        return f"{sorted(ours.elements())[:8]}\nis not\n{sorted(theirs.elements())[:8]}"
    return None if answer.columns == names else f"columns {answer.columns} are not {names}"


@pytest.mark.spark
@pytest.mark.parametrize("text", WRITTEN)
def test_differential_written_statements(db: headrace.Database, spark: SparkSession, text: str) -> None:
    assert difference(db, spark, text) is None


@pytest.mark.spark
def test_differential_made_statements(db: headrace.Database, spark: SparkSession) -> None:
    for seed in range(examples(60)):
        text = Made(seed).statement()
        found = difference(db, spark, text)
        assert found is None, f"{text}\n{found}"
