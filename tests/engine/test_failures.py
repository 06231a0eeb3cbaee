"""Engines fail in their own words; callers see Spark's conditions."""

from __future__ import annotations

import duckdb
import pytest
from edge_values import call, cast, col, lit
from engines_compared import by_name, connect
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.engine.failures import NativeCannot, from_duckdb, from_spark
from headrace.engine.native_sql import NotNative, native
from headrace.errors import ExecutionError
from headrace.plan.exprs import Expr, SparkExpr
from headrace.types import BIGINT, BINARY, BOOLEAN, DATE, DOUBLE, INT, STRING, TIMESTAMP, array, decimal, other


def failure(sql: str) -> ExecutionError:
    with pytest.raises(duckdb.Error) as caught:
        connect().sql(sql).fetchall()
    found = from_duckdb(caught.value)
    assert isinstance(found, ExecutionError)
    return found


@pytest.mark.parametrize(
    ("sql", "condition"),
    [
        ("SELECT i::INTEGER + 2147483647::INTEGER FROM range(3) t(i)", "ARITHMETIC_OVERFLOW"),
        ("SELECT abs((-2147483648 + i)::INTEGER) FROM range(1) t(i)", "ARITHMETIC_OVERFLOW"),
        ("SELECT i // 0 FROM range(3) t(i)", "DIVIDE_BY_ZERO"),
        ("SELECT i % 0 FROM range(3) t(i)", "REMAINDER_BY_ZERO"),
        ("SELECT (i + 300)::TINYINT FROM range(3) t(i)", "CAST_OVERFLOW"),
        ("SELECT (i + 300)::DECIMAL(3,1) FROM range(3) t(i)", "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("SELECT (i + 300)::DECIMAL(5,1)::DECIMAL(3,1) FROM range(3) t(i)", "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("SELECT (i || 'x')::INTEGER FROM range(3) t(i)", "CAST_INVALID_INPUT"),
        ("SELECT ('2021-02-3' || i)::DATE FROM range(1) t(i)", "CAST_INVALID_INPUT"),
        ("SELECT error('[DIVIDE_BY_ZERO] Division by zero')", "DIVIDE_BY_ZERO"),
        ("SELECT nothing_like_this", "NATIVE_ENGINE_FAILED"),
    ],
)
def test_native_failures_have_sparks_conditions(sql: str, condition: str) -> None:
    assert failure(sql).condition == condition


@pytest.mark.parametrize("type_", ["TINYINT", "DECIMAL(3,1)", "UTINYINT"])
def test_internal_column_names_stay_inside(type_: str) -> None:
    found = failure(f"SELECT c252::{type_} FROM (SELECT 1000 + i AS c252 FROM range(3) t(i))")
    assert "1000" in found.message and "c252" not in str(found)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT error('NATIVE_CANNOT: odd text')",
        "SELECT (9e37::DECIMAL(38,0) + i) * 9 FROM range(1) t(i)",
        "SELECT DATE '2020-01-01' + (2147483647 - i)::INTEGER FROM range(1) t(i)",
        "SELECT decode(unhex('ff'))",
        "SELECT sum(9e37::DECIMAL(38,0)) FROM range(3)",
    ],
)
def test_what_only_spark_can_decide_asks_for_a_rerun(sql: str) -> None:
    assert isinstance(failure(sql), NativeCannot)


def test_the_offending_value_and_a_hint_are_shown() -> None:
    text = native(cast(INT, col("a", STRING)), by_name)
    found = failure(f"SELECT {text} FROM (VALUES ('12x')) t(a)")
    assert "12x" in found.message and found.hint


@pytest.mark.spark
def test_spark_failures_inside_tasks_name_their_root(spark: SparkSession) -> None:
    queries = {
        "DIVIDE_BY_ZERO": "SELECT sum(id div (id - 5)) FROM range(0, 10, 1, 2)",
        "CAST_INVALID_INPUT": "SELECT max(CAST(concat(id, 'x') AS INT)) FROM range(0, 10, 1, 2)",
        "UNRESOLVED_COLUMN.WITH_SUGGESTION": "SELECT nothing FROM range(3)",
    }
    for condition, query in queries.items():
        with pytest.raises(PySparkException) as caught:
            spark.sql(query).collect()
        found = from_spark(caught.value)
        assert found.condition == condition
        assert "\n" not in found.message and "SQLSTATE" not in found.message


def test_other_python_errors_are_named_too() -> None:
    assert from_spark(RuntimeError("worker lost\nat line 5")).message == "worker lost"
    wrapped = RuntimeError(
        "Job aborted due to stage failure: x\norg.Y: [CAST_OVERFLOW] The value 300 cannot be. SQLSTATE: 22003"
    )
    assert from_spark(wrapped).condition == "CAST_OVERFLOW"
    theirs = RuntimeError("[INTERNAL_ERROR] The phase planning failed with an internal error. SQLSTATE: XX000")
    assert from_spark(theirs).condition == "SPARK_FAILED", "INTERNAL_ERROR is a defect of Headrace"


@pytest.mark.parametrize(
    ("expr", "reason"),
    [
        (SparkExpr(INT, "ascii({0})", (col("a", STRING),)), "only Spark knows"),
        (call(INT, "levenshtein", col("a", STRING), col("a", STRING)), "levenshtein"),
        (cast(BINARY, col("a", BIGINT)), "cast of bigint to binary"),
        (col("a", other("array<map<int,int>>")), "array<map<int,int>>"),
        (call(BOOLEAN, "=", col("a", array(INT)), col("b", array(INT))), "= of array<int>"),
        (call(BOOLEAN, "<=>", col("a", array(DOUBLE)), col("b", array(DOUBLE))), "<=> of array<double>"),
        (cast(STRING, col("a", array(INT))), "cast of array<int>"),
        (call(DATE, "to_date", col("a", STRING), lit(STRING, "yyyy")), "format"),
        (call(decimal(38, 30), "/", col("a", decimal(38, 10)), col("b", decimal(38, 10))), "quotient"),
    ],
)
def test_what_is_not_native_says_why(expr: Expr, reason: str) -> None:
    with pytest.raises(NotNative, match=reason) as caught:
        native(expr, by_name)
    assert caught.value.reason == str(caught.value)


def test_fields_of_an_instant_need_a_utc_session() -> None:
    hour = call(INT, "hour", col("a", TIMESTAMP))
    assert native(hour, by_name, zone="Etc/UTC") == native(hour, by_name)
    with pytest.raises(NotNative, match="time zone"):
        native(hour, by_name, zone="Europe/Berlin")


def test_nesting_too_deep_is_left_to_spark() -> None:
    expr: Expr = col("a", DOUBLE)
    for _ in range(40):
        expr = call(DOUBLE, "/", expr, expr)
    with pytest.raises(NotNative, match="too deep"):
        native(expr, by_name)
