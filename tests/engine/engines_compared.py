"""Runs typed expressions by both engines over the same Arrow rows and compares them, row by row.

Spark evaluates all expressions of a table in one query. A failing row would fail
that query, so each expression stands inside Spark's internal ``TryEval`` around a
struct: a NULL struct is an error, a struct of NULL is NULL. The native engine is
asked for all rows Spark answers at once, and for the others one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession

from headrace.engine.failures import NativeCannot, from_duckdb, from_spark
from headrace.engine.native_sql import native
from headrace.engine.spark_sql import spark as spark_text
from headrace.plan.exprs import Column, Expr
from headrace.types import from_arrow


@dataclass(frozen=True)
class Failed:
    """A row whose evaluation raised ``condition``; ``?`` where it was not asked for."""

    condition: str


CANNOT = Failed("NATIVE_CANNOT")
UNKNOWN = Failed("?")
# Spark names some failures differently by type; they are one family for the caller.
FAMILIES = (
    {"ARITHMETIC_OVERFLOW", "NUMERIC_VALUE_OUT_OF_RANGE", "CAST_OVERFLOW", "BINARY_ARITHMETIC_OVERFLOW"},
    {"DIVIDE_BY_ZERO", "REMAINDER_BY_ZERO"},
    {"CAST_INVALID_INPUT"},
)


def family(condition: str) -> str:
    """The first name of a condition's family."""
    head = condition.split(".")[0]
    return next((sorted(names)[0] for names in FAMILIES if head in names), head)


def by_name(column: Column) -> str:
    return f'"{column.name}"'


def by_name_spark(column: Column) -> str:
    return f"`{column.name}`"


def connect() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone='UTC'; SET threads=1")
    return connection


def plain(array: Any) -> list[Any]:
    """Values that compare bit by bit: floats as their bits (one NaN), times as integers."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    kind = array.type
    if pa.types.is_date32(kind):
        return list(array.cast(pa.int32()).to_pylist())
    if pa.types.is_timestamp(kind):
        return list(array.cast(pa.int64()).to_pylist())
    if pa.types.is_floating(kind):
        code = "<d" if kind == pa.float64() else "<f"
        return [v if v is None else "nan" if v != v else struct.pack(code, v) for v in array.to_pylist()]
    return list(array.to_pylist())


class Native:
    """The native engine over one table; rows are asked for by number."""

    def __init__(self, table: pa.Table) -> None:
        self.count = table.num_rows
        self._connection = connect()
        self._connection.register("t", table)
        self._connection.execute("CREATE TABLE rows AS SELECT row_number() OVER () - 1 AS hr_row, * FROM t")

    def answers(self, text: str, doomed: set[int]) -> tuple[pa.DataType | None, list[Any]]:
        """The type and values of a text; rows that raise are :class:`Failed`.

        ``doomed`` are the rows expected to raise: the others are asked for together,
        and taken apart only if that fails.
        """
        values: list[Any] = [None] * self.count
        kinds = [self._fill(text, [row], values) for row in sorted(doomed)]
        kinds.append(self._fill(text, [row for row in range(self.count) if row not in doomed], values))
        return next((kind for kind in kinds if kind is not None), None), values

    def _fill(self, text: str, rows: list[int], values: list[Any]) -> pa.DataType | None:
        if not rows:
            return None
        chosen = "TRUE" if len(rows) == self.count else f"hr_row IN ({', '.join(map(str, rows))})"
        try:
            found = self._connection.sql(
                f"SELECT {text} AS v FROM rows WHERE {chosen} ORDER BY hr_row"
            ).to_arrow_table()
        except duckdb.Error as error:
            if len(rows) == 1:
                failure = from_duckdb(error)
                assert isinstance(failure, NativeCannot) == (failure.condition == CANNOT.condition)
                values[rows[0]] = Failed(failure.condition)
                return None
            half = len(rows) // 2
            left, right = self._fill(text, rows[:half], values), self._fill(text, rows[half:], values)
            return left if left is not None else right
        for row, value in zip(rows, plain(found["v"]), strict=True):
            values[row] = value
        return found["v"].type


def spark_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The table in Spark; a timestamp without a zone stays one."""
    kinds = [from_arrow(field.type) for field in table.schema]
    ddl = ", ".join(f"`{name}` {kind.sql}" for name, kind in zip(table.column_names, kinds, strict=True) if kind)
    return spark.createDataFrame(table, schema=ddl)


def by_spark(spark: SparkSession, texts: Sequence[str], table: pa.Table) -> list[tuple[pa.DataType, list[Any]]]:
    """Each text's Arrow type and values by Spark SQL; rows that raise are ``Failed("?")``."""
    tried = [_try_eval(spark, f"named_struct('v', {text})").alias(f"c{i}") for i, text in enumerate(texts)]
    answer = spark_frame(spark, table).select(*tried).toArrow()
    results = []
    for i in range(len(texts)):
        column = answer[f"c{i}"].combine_chunks()
        values = plain(column.field("v"))
        valid = column.is_valid().to_pylist()
        results.append(
            (column.type.field("v").type, [v if ok else UNKNOWN for v, ok in zip(values, valid, strict=True)])
        )
    return results


def _try_eval(spark: SparkSession, text: str) -> SparkColumn:
    jvm: Any = spark._jvm
    parsed = spark._jsparkSession.sessionState().sqlParser().parseExpression(text)
    tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(parsed)
    return SparkColumn(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(tried))


def condition_by_spark(spark: SparkSession, text: str, table: pa.Table, row: int) -> str:
    """The condition Spark raises for one row."""
    try:
        spark_frame(spark, table.slice(row, 1)).selectExpr(f"{text} AS v").toArrow()
    except PySparkException as error:
        return from_spark(error).condition
    raise AssertionError(f"{text} failed inside a query but not alone")


def compare(spark: SparkSession, cases: Sequence[tuple[str, Expr]], table: pa.Table) -> list[str]:
    """What differs, one line a case; also a case the native engine answers for no row at all.

    Which condition Spark raises is asked once for each operation and native condition of the group.
    """
    engine = Native(table)
    texts = [spark_text(expr, by_name_spark) for _, expr in cases]
    theirs = by_spark(spark, texts, table)
    wrong, asked = [], set()
    for (label, expr), text, (spark_kind, spark_values) in zip(cases, texts, theirs, strict=True):
        doomed = {row for row, value in enumerate(spark_values) if value == UNKNOWN}
        kind, values = engine.answers(native(expr, by_name), doomed)
        if all(value == CANNOT for value in values):
            wrong.append(f"{label}: no row was answered natively")
            continue
        if spark_kind != expr.type.arrow or kind not in (None, expr.type.arrow):
            wrong.append(f"{label}: type {kind}, Spark {spark_kind}, expected {expr.type.arrow}")
        for row, (value, spark_value) in enumerate(zip(values, spark_values, strict=True)):
            given = {name: str(table[name][row]) for name in table.column_names}
            if not agree(value, spark_value):
                wrong.append(f"{label}: row {given}: native {value!r}, Spark {spark_value!r}")
                break
            key = (getattr(expr, "fn", "cast"), value)
            if isinstance(value, Failed) and value != CANNOT and key not in asked:
                asked.add(key)
                condition = condition_by_spark(spark, text, table, row)
                if family(condition) != family(value.condition):
                    wrong.append(f"{label}: row {given}: native {value!r}, Spark raises {condition}")
    return wrong


def agree(value: Any, spark_value: Any) -> bool:
    """Whether a native row may stand for Spark's: the same value, a failure for a failure, or left to Spark."""
    if value == CANNOT:
        return True
    if isinstance(value, Failed) and isinstance(spark_value, Failed):
        return True
    return type(value) is type(spark_value) and bool(value == spark_value)
