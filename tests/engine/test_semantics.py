"""The lines of the Spark/DuckDB divergence list that touch the native list, one named case each.

Every case states Spark's answer; the native text must give it, and so must Spark.
Values stand in columns, so that nothing is folded away before it runs.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from edge_values import arithmetic, call, cast, col, lit
from engines_compared import (
    CANNOT,
    Failed,
    Native,
    by_name,
    by_name_spark,
    by_spark,
    condition_by_spark,
    connect,
    plain,
    spark_frame,
)
from pyspark.sql import SparkSession

from headrace.engine.native_sql import native, native_agg
from headrace.engine.spark_sql import spark as spark_text
from headrace.engine.spark_sql import spark_agg
from headrace.plan.exprs import Agg, Expr
from headrace.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DAY_TIME,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP,
    YEAR_MONTH,
    Type,
    decimal,
)

ROW: dict[str, tuple[Type, Any]] = {
    "one": (INT, 1),
    "zero": (INT, 0),
    "d0": (DOUBLE, 0.0),
    "d5": (DOUBLE, 5.0),
    "million": (decimal(15, 2), Decimal("10000000.00")),
    "ten": (decimal(10, 2), Decimal("10.00")),
    "three": (decimal(10, 2), Decimal("3.00")),
    "twenty": (decimal(10, 2), Decimal("20.00")),
    "half": (decimal(2, 1), Decimal("2.5")),
    "d27": (DOUBLE, 2.7),
    "d285": (DOUBLE, 0.285),
    "d1005": (DOUBLE, 1.005),
    "d1e20": (DOUBLE, 1e20),
    "d1e7": (DOUBLE, 1e7),
    "f01": (FLOAT, 0.1),
    "t127": (STRING, "12.7"),
    "t1e3": (STRING, "1e3"),
    "t1_000": (STRING, "1_000"),
    "t0x1A": (STRING, "0x1A"),
    "a": (STRING, "a"),
    "nothing": (STRING, None),
    "hello": (STRING, "hello"),
    "a_b": (STRING, "a_b"),
    "lines": (STRING, "a\nb"),
    "strasse": (STRING, "straße"),
    "iso": (STRING, "2020-02-29"),
    "day": (DATE, dt.date(2020, 1, 31)),
    "sunday": (DATE, dt.date(2023, 1, 1)),
    "spring": (TIMESTAMP, dt.datetime(2021, 3, 28, 0, 30, tzinfo=dt.UTC)),
    "most": (BIGINT, 2**63 - 1),
    "nan": (DOUBLE, float("nan")),
    "minus": (INT, -7),
    "i3": (INT, 3),
    "i2": (INT, 2),
}
TABLE = pa.table({name: pa.array([value], kind.arrow) for name, (kind, value) in ROW.items()})
DIVIDED, REMAINDER = Failed("DIVIDE_BY_ZERO"), Failed("REMAINDER_BY_ZERO")
MALFORMED = Failed("CAST_INVALID_INPUT")


def c(name: str) -> Expr:
    return col(name, ROW[name][0])


def d(name: str) -> Expr:
    return cast(DOUBLE, c(name))


@dataclass(frozen=True)
class Line:
    """A divergence: what Spark says, and what the native engine says where that is not the same."""

    id: str
    expr: Expr
    spark: Any
    native: Any = None

    @property
    def expected(self) -> Any:
        return self.spark if self.native is None else self.native


def micros(year: int, month: int, day: int, hour: int, minute: int) -> int:
    since = dt.datetime(year, month, day, hour, minute) - dt.datetime(1970, 1, 1)
    return since // dt.timedelta(microseconds=1)


def days(year: int, month: int, day: int) -> int:
    return (dt.date(year, month, day) - dt.date(1970, 1, 1)).days


LINES = [
    Line("1/0", call(DOUBLE, "/", d("one"), d("zero")), DIVIDED),
    Line("0D/0D", call(DOUBLE, "/", c("d0"), c("d0")), DIVIDED),
    Line("5D % 0D", call(DOUBLE, "%", c("d5"), c("d0")), REMAINDER),
    Line("decimal squared", arithmetic("*", c("million"), c("million")), Decimal("100000000000000.0000")),
    Line("decimal 10/3", arithmetic("/", c("ten"), c("three")), Decimal("3.3333333333333")),
    Line("decimal 20/3 rounds up", arithmetic("/", c("twenty"), c("three")), Decimal("6.6666666666667")),
    Line("cast(2.5 as int)", cast(INT, c("half")), 2),
    Line("cast(2.7D as int)", cast(INT, c("d27")), 2),
    Line("'12.7' as int", cast(INT, c("t127")), MALFORMED),
    Line("'1e3' as int", cast(INT, c("t1e3")), MALFORMED),
    Line("'1_000' as int", cast(INT, c("t1_000")), MALFORMED),
    Line("'0x1A' as int", cast(INT, c("t0x1A")), MALFORMED),
    Line("round(0.285D, 2)", call(DOUBLE, "round", c("d285"), lit(INT, 2)), 0.29),
    Line("1.005D as decimal(10,2)", cast(decimal(10, 2), c("d1005")), Decimal("1.01")),
    Line("concat('a', NULL)", call(STRING, "concat", c("a"), c("nothing")), None),
    Line("substring('hello', 0, 2)", call(STRING, "substring", c("hello"), lit(INT, 0), lit(INT, 2)), "he"),
    Line("like with backslash", call(BOOLEAN, "like", c("a_b"), lit(STRING, "a\\_b")), True),
    Line("length of newline text", call(INT, "length", c("lines")), 3),
    Line("length of a literal with a newline", call(INT, "length", lit(STRING, "a\nb")), 3),
    Line("date + 1 month", call(DATE, "+", c("day"), lit(YEAR_MONTH, 1)), days(2020, 2, 29)),
    Line("dayofweek(Sunday)", call(INT, "dayofweek", c("sunday")), 1),
    Line(
        "24 hours later", call(TIMESTAMP, "+", c("spring"), lit(DAY_TIME, 86_400_000_000)), micros(2021, 3, 29, 0, 30)
    ),
    Line("1e20 as string", cast(STRING, c("d1e20")), "1.0E20", CANNOT),
    Line("1e7 as string", cast(STRING, c("d1e7")), "1.0E7", CANNOT),
    Line("float 0.1 = 0.1", call(BOOLEAN, "=", cast(DOUBLE, c("f01")), lit(DOUBLE, 0.1)), False),
    Line("upper('straße')", call(STRING, "upper", c("strasse")), "STRASSE", CANNOT),
    Line("bigint past its maximum", call(BIGINT, "+", c("most"), lit(BIGINT, 1)), Failed("ARITHMETIC_OVERFLOW")),
    Line("NaN = NaN", call(BOOLEAN, "=", c("nan"), c("nan")), True),
    Line("NaN is largest", call(BOOLEAN, ">", c("nan"), lit(DOUBLE, float("inf"))), True),
    Line("-7 % 3", call(INT, "%", c("minus"), c("i3")), -1),
    Line("-7 div 2", call(BIGINT, "div", c("minus"), c("i2")), -3),
    Line("date = 'string'", call(BOOLEAN, "=", cast(DATE, c("iso")), lit(DATE, dt.date(2020, 2, 29))), True),
]


def comparable(value: Any, kind: Type) -> Any:
    return plain(pa.array([value], kind.arrow))[0] if isinstance(value, float) else value


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.id)
def test_native(line: Line) -> None:
    kind, (value,) = Native(TABLE).answers(native(line.expr, by_name), {0})
    assert value == comparable(line.expected, line.expr.type)
    assert kind is None or kind == line.expr.type.arrow


@pytest.mark.spark
def test_spark_says_so(spark: SparkSession) -> None:
    texts = [spark_text(line.expr, by_name_spark) for line in LINES]
    for line, text, (kind, (value,)) in zip(LINES, texts, by_spark(spark, texts, TABLE), strict=True):
        assert kind == line.expr.type.arrow, line.id
        if isinstance(line.spark, Failed):
            assert condition_by_spark(spark, text, TABLE, 0) == line.spark.condition, line.id
        else:
            assert value == comparable(line.spark, line.expr.type), line.id


PAIRS = pa.table({"a": pa.array([1, 1, None, 2, 2]), "b": pa.array([1, 1, 1, None, 5])})
CENTS = pa.table({"x": pa.array([Decimal("1.01"), Decimal("1.02"), Decimal("1.02")], pa.decimal128(10, 2))})
LARGE = pa.table({"x": pa.array([2**63 - 1, 1])})


def total(table: pa.Table, kind: Type) -> Agg:
    return Agg(decimal(38, kind.scale if kind.is_decimal else 0), "sum", (col("x", kind),))


AGGREGATED = [
    ("count(DISTINCT a, b)", PAIRS, Agg(BIGINT, "count", (col("a", BIGINT), col("b", BIGINT)), distinct=True), 2),
    ("count(a, b)", PAIRS, Agg(BIGINT, "count", (col("a", BIGINT), col("b", BIGINT))), 3),
    ("sum(bigint) past its maximum", LARGE, total(LARGE, BIGINT), Decimal(2**63)),
    ("sum(decimal)", CENTS, total(CENTS, decimal(10, 2)), Decimal("3.05")),
]


@pytest.mark.spark
@pytest.mark.parametrize(("table", "agg", "expected"), [pytest.param(*c[1:], id=c[0]) for c in AGGREGATED])
def test_aggregate(spark: SparkSession, table: pa.Table, agg: Agg, expected: Any) -> None:
    connection = connect()
    connection.register("t", table)
    ours = connection.sql(f"SELECT {native_agg(agg, by_name)} AS v FROM t").to_arrow_table()["v"]
    theirs = spark_frame(spark, table).selectExpr(f"{spark_agg(agg, by_name_spark)} AS v").toArrow()["v"]
    assert (ours.type, ours.to_pylist()) == (theirs.type, theirs.to_pylist()) == (agg.type.arrow, [expected])


def test_average_of_decimals() -> None:
    """avg(1.01, 1.02, 1.02) is 1.016667 as decimal(14,6), rounded HALF_UP."""
    expr = call(decimal(14, 6), "avg_of_sum", col("s", decimal(38, 2)), col("n", BIGINT))
    sums = pa.table({"s": pa.array([Decimal("3.05"), None], pa.decimal128(38, 2)), "n": pa.array([3, 0])})
    kind, values = Native(sums).answers(native(expr, by_name), set())
    assert (kind, values) == (pa.decimal128(14, 6), [Decimal("1.016667"), None])
