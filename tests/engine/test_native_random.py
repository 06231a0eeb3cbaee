"""differential: random values, the ones nobody thought of, through arithmetic, casts and rounding."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from edge_values import arithmetic, call, cast, col, lit, single
from engines_compared import Native, by_name, compare
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from headrace.engine.native_sql import NotNative, native
from headrace.plan.exprs import Call, Expr
from headrace.types import BIGINT, DOUBLE, FLOAT, INT, INTEGERS, STRING, Type, decimal

# An example is a whole table answered by one Spark query, so few examples are many values.
batches = settings(
    max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)
ROWS = 40
SCALES = [decimal(15, 2), decimal(7, 3), decimal(18, 0), decimal(20, 6), decimal(38, 6)]


def integers(kind: Type) -> st.SearchStrategy[int]:
    bits = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}[kind.name]
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) | st.integers(-100, 100)


def decimals(kind: Type) -> st.SearchStrategy[Decimal]:
    most = 10**kind.precision - 1
    whole = st.integers(-most, most) | st.integers(-999, 999)
    return whole.map(lambda unscaled: Decimal(f"{unscaled}E-{kind.scale}"))  # exact: scaleb rounds to 28 digits


def rows(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values, min_size=ROWS, max_size=ROWS)


def pair(left: Type, right: Type, a: list[Any], b: list[Any]) -> pa.Table:
    return pa.table({"a": pa.array(a, left.arrow), "b": pa.array(b, right.arrow)})


@pytest.mark.spark
@pytest.mark.parametrize("kind", INTEGERS, ids=str)
@batches
@given(data=st.data())
def test_differential_integers(spark: SparkSession, kind: Type, data: st.DataObject) -> None:
    a, b = col("a", kind), col("b", kind)
    table = pair(kind, kind, data.draw(rows(integers(kind))), data.draw(rows(integers(kind))))
    cases: list[tuple[str, Expr]] = [(fn, call(kind, fn, a, b)) for fn in ("+", "-", "*", "%")]
    cases += [("div", call(BIGINT, "div", a, b)), ("round", call(kind, "round", a, lit(INT, -1)))]
    cases += [(f"cast {t}", cast(t, a)) for t in (*INTEGERS, FLOAT, DOUBLE, STRING, decimal(5, 1), decimal(38, 6))]
    assert compare(spark, cases, table) == []


@pytest.mark.spark
@batches
@given(data=st.data())
def test_differential_decimals(spark: SparkSession, data: st.DataObject) -> None:
    left, right = data.draw(st.sampled_from(SCALES)), data.draw(st.sampled_from(SCALES))
    a, b = col("a", left), col("b", right)
    table = pair(left, right, data.draw(rows(decimals(left))), data.draw(rows(decimals(right))))
    exprs: list[tuple[str, Expr]] = [(fn, arithmetic(fn, a, b)) for fn in ("+", "-", "*", "/", "%", "div")]
    exprs += [(f"cast {t}", cast(t, a)) for t in (INT, BIGINT, DOUBLE, FLOAT, STRING, decimal(6, 1), decimal(38, 10))]
    exprs.append(
        ("product of three", arithmetic("*", arithmetic("*", a, b), arithmetic("-", lit(decimal(1, 0), 1), b)))
    )
    assert compare(spark, [(label, expr) for label, expr in exprs if _is_native(expr)], table) == []


def _is_native(expr: Expr) -> bool:
    try:
        native(expr, by_name)
    except NotNative:
        return False
    return True


def doubles() -> list[float]:
    """Bit patterns, money, ties and plain magnitudes."""
    random = np.random.default_rng(7)
    bits = [struct.unpack("<d", random.bytes(8))[0] for _ in range(40)]
    cents = [round(float(v), 2) for v in random.uniform(-1e6, 1e6, 150)]
    ties = [math.floor(float(v)) / 1000 + 0.0005 for v in random.uniform(-1e6, 1e6, 150)]
    plain = [float(v) for v in random.uniform(-10, 10, 100)] + [float(v) for v in 10 ** random.uniform(-3, 7, 200)]
    large = [float(v) for v in 10 ** random.uniform(7, 18, 30)]
    return bits + cents + ties + plain + large


@pytest.mark.spark
@pytest.mark.parametrize("kind", [DOUBLE, FLOAT], ids=str)
def test_differential_floating_point(spark: SparkSession, kind: Type) -> None:
    a = col("a", kind)
    values = [v for v in doubles() if kind == DOUBLE or not math.isfinite(v) or abs(v) < 3e38]
    cases: list[tuple[str, Expr]] = [(f"round {n}", call(kind, "round", a, lit(INT, n))) for n in (0, 1, 2, 3, 7)]
    cases += [(f"cast {t}", cast(t, a)) for t in (STRING, decimal(20, 2), decimal(38, 10), decimal(10, 0))]
    assert compare(spark, cases, single(kind, values)) == []


@pytest.mark.spark
@pytest.mark.parametrize("kind", [DOUBLE, FLOAT, decimal(10, 3), decimal(38, 20)], ids=str)
def test_differential_numbers_as_text(spark: SparkSession, kind: Type) -> None:
    texts = [f"{v:.{n}f}" for n, v in enumerate(doubles()[40:400:25])] + [repr(v) for v in doubles()[::15]]
    texts += [f"{n}.{'4' * n}5" for n in range(20)] + ["0" * 25 + "1.5", "9" * 30, "." + "9" * 30, "-.0005", "+0.0"]
    assert compare(spark, [("parse", cast(kind, col("a", STRING)))], single(STRING, texts)) == []


MONEY = decimal(15, 2)


def charge() -> Call:
    """TPC-H Q1: extendedprice * (1 - discount) * (1 + tax)."""
    price, discount = col("a", MONEY), col("b", MONEY)
    one = cast(decimal(1, 0), lit(INT, 1))
    return arithmetic("*", arithmetic("*", price, arithmetic("-", one, discount)), arithmetic("+", one, discount))


@settings(deadline=None, max_examples=10)
@given(a=st.lists(decimals(MONEY), min_size=20, max_size=20), b=st.lists(decimals(MONEY), min_size=20, max_size=20))
def test_narrow_raises_or_equals_wide(a: list[Decimal], b: list[Decimal]) -> None:
    engine = Native(pair(MONEY, MONEY, a, b))
    exprs = [charge(), arithmetic("*", col("a", MONEY), col("b", MONEY)), arithmetic("+", charge(), charge())]
    for expr in exprs:
        _, wide = engine.answers(native(expr, by_name), set())
        _, narrow = engine.answers(native(expr, by_name, narrow=True), set(range(20)))
        for slow, fast in zip(wide, narrow, strict=True):
            # Equal as digits, not only as numbers: the scale must be the same too.
            assert not isinstance(fast, Decimal) or fast.as_tuple() == slow.as_tuple()


def test_narrow_answers_ordinary_money() -> None:
    engine = Native(pair(MONEY, MONEY, [Decimal("90123.45")], [Decimal("0.07")]))
    kind, values = engine.answers(native(charge(), by_name, narrow=True), set())
    assert kind is not None and kind.scale == 6 and values == [Decimal("90123.45") * Decimal("0.93") * Decimal("1.07")]
