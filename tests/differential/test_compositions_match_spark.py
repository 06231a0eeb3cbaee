"""Random views over random histories of their tables: what they have become is Spark's answer over what tables have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from harness import assert_same, frame, oracle_session, table_rows
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import headrace
from compositions import TABLES, definition, definitions, statements
from headrace.errors import HeadraceError
from profiles import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = {table: ", ".join(f"{name} {type}" for name, type in columns.items()) for table, columns in TABLES.items()}


def check(spark: SparkSession, engine: str, queries: list[str], before: list[str], history: list[str]) -> None:
    with headrace.connect(None, spark=spark, engine=engine) as db:
        for table in TABLES:
            db.sql(definition(table))
        _run(db, before)
        made = []
        for number, query in enumerate(queries):
            names = ", ".join(f"c{i}" for i in range(len(db.sql(query).arrow().column_names)))
            try:
                db.sql(f"CREATE MATERIALIZED VIEW v{number} ({names}) AS {query}")
                made.append(number)
            except HeadraceError as error:
                assert error.condition == "NOT_YET_SUPPORTED", error
        assume(made)
        _run(db, history)
        session = oracle_session(spark)
        for table, columns in COLUMNS.items():
            frame(session, columns, db.sql(f"SELECT * FROM {table}").rows()).createOrReplaceTempView(table)
        for number in made:
            wanted = table_rows(session.sql(queries[number]).toArrow())
            assert_same(db.sql(f"SELECT * FROM v{number}").rows(), wanted, where=queries[number])


def _run(db: headrace.Database, todo: list[str]) -> None:
    for statement in todo:
        try:
            db.sql(statement)
        except HeadraceError as error:
            assert error.condition in ("PRIMARY_KEY_VIOLATION", "DUPLICATE_KEY"), (statement, error)


CASES: Any = given(
    queries=st.lists(definitions(), min_size=2, max_size=4),
    before=st.lists(statements(), max_size=4),
    history=st.lists(statements(), min_size=3, max_size=8),
)


@pytest.mark.spark
@settings(max_examples=examples(5))
@CASES
def test_differential_random_compositions(
    spark: SparkSession, queries: list[str], before: list[str], history: list[str]
) -> None:
    check(spark, "native", queries, before, history)


@pytest.mark.spark
@settings(max_examples=examples(1))
@CASES
def test_differential_random_compositions_by_spark_sql(
    spark: SparkSession, queries: list[str], before: list[str], history: list[str]
) -> None:
    check(spark, "spark", queries[:2], before, history[:4])
