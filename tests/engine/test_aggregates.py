"""differential: the primitive aggregates, by both engines: same rows, same types, so same state."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from edge_values import EDGES, arithmetic, call, cast, col, edges, lit
from engines_compared import by_name, by_name_spark, connect, spark_frame
from pyspark.sql import SparkSession

from headrace.engine.native_sql import NotNative, native_agg
from headrace.engine.plan_sql import native_plan, spark_plan
from headrace.engine.spark import frame_of_rows
from headrace.engine.spark_sql import spark as spark_text
from headrace.engine.spark_sql import spark_agg
from headrace.plan.exprs import Agg, Column, Expr, columns, substitute
from headrace.plan.nodes import Aggregate, Node
from headrace.plan.nodes import Leaf as Scan
from headrace.plan.refs import TableRef
from headrace.types import BIGINT, BOOLEAN, DOUBLE, FLOAT, INT, INTEGERS, STRING, Field, Type, decimal, from_arrow

GROUPS = 5


def table() -> pa.Table:
    """Every type's edges, dealt to five groups, the last one all NULL; numbers small enough to sum."""
    count = 75
    columns: dict[str, Any] = {"g": pa.array([i % GROUPS for i in range(count)], pa.int32())}
    for kind in EDGES:
        values = [v for v in edges(kind) if not _too_large(kind, v)]
        dealt = [None if i % GROUPS == GROUPS - 1 else values[(i * 7) % len(values)] for i in range(count)]
        columns[name(kind)] = pa.array(dealt, kind.arrow)
    return pa.table(columns)


def _too_large(kind: Type, value: Any) -> bool:
    # 38-digit sums overflow in either engine; infinities and 1e308 hide every other digit of a sum.
    if isinstance(value, float):
        return not math.isfinite(value) or abs(value) > 1e16
    return isinstance(value, Decimal) and abs(value) > Decimal(10) ** 24


def name(kind: Type) -> str:
    return kind.sql.replace("(", "_").replace(",", "_").replace(")", "")


def column(kind: Type) -> Expr:
    return col(name(kind), kind)


def aggregates() -> list[Agg]:
    positive = call(BOOLEAN, ">", column(INT), lit(INT, 0))
    found = [
        Agg(BIGINT, "count", ()),
        Agg(BIGINT, "count", (), filter=positive),
        Agg(BIGINT, "count", (column(INT), column(STRING))),
        Agg(BIGINT, "count", (column(INT), column(STRING)), distinct=True),
        Agg(BIGINT, "count", (column(DOUBLE), column(BOOLEAN)), distinct=True, filter=positive),
        Agg(BIGINT, "count", (column(STRING),), distinct=True),
        Agg(decimal(38, 2), "sum", (column(decimal(15, 2)),), distinct=True),
        Agg(decimal(38, 0), "sum", (column(INT),), distinct=True, filter=positive),
        Agg(BOOLEAN, "bool_and", (column(BOOLEAN),)),
        Agg(BOOLEAN, "bool_or", (column(BOOLEAN),), filter=positive),
    ]
    for kind in EDGES:
        found += [Agg(kind, fn, (column(kind),)) for fn in ("min", "max")]
        found.append(Agg(BIGINT, "count", (column(kind),)))
        if kind.is_integer:
            found.append(Agg(decimal(38, 0), "sum", (column(kind),)))
        if kind.is_decimal:
            found.append(Agg(decimal(38, kind.scale), "sum", (column(kind),)))
    money = column(decimal(15, 2))
    found.append(Agg(decimal(38, 4), "sum", (arithmetic("*", money, money),)))
    found += [Agg(DOUBLE, "sum", (column(kind),), filter=f) for kind in (FLOAT, DOUBLE) for f in (None, positive)]
    return found


def moments() -> list[Agg]:
    """Means and squared deviations, which both engines make of sums."""
    positive = call(BOOLEAN, ">", column(INT), lit(INT, 0))
    found = [Agg(DOUBLE, fn, (column(DOUBLE),), filter=f) for fn in ("mean", "m2") for f in (None, positive)]
    found += [Agg(DOUBLE, fn, (cast(DOUBLE, column(kind)),)) for fn in ("mean", "m2") for kind in INTEGERS]
    return found


def run_native(source: pa.Table, aggs: list[Agg], *, narrow: bool, grouped: bool = True) -> Any:
    connection = connect()
    connection.register("t", source)
    texts = ", ".join(f"{native_agg(agg, by_name, narrow=narrow)} AS c{i}" for i, agg in enumerate(aggs))
    tail = "GROUP BY g ORDER BY g" if grouped else ""
    return connection.sql(f"SELECT {texts} FROM t {tail}").to_arrow_table()


def run_spark(spark: SparkSession, source: pa.Table, aggs: list[Agg], *, grouped: bool = True) -> Any:
    spark_frame(spark, source).createOrReplaceTempView("aggregated")
    texts = ", ".join(f"{spark_agg(agg, by_name_spark)} AS c{i}" for i, agg in enumerate(aggs))
    return spark.sql(f"SELECT {texts} FROM aggregated {'GROUP BY g ORDER BY g' if grouped else ''}").toArrow()


def grouping(source: pa.Table, aggs: list[Agg], *, grouped: bool = True) -> Node:
    """The aggregates as a plan over the rows."""
    fields = tuple(Field(f.name, from_arrow(f.type)) for f in source.schema)
    scan = Scan.of(TableRef("t"), fields)
    by = {c.name: c for c in scan.output}
    names = {c.id: by[c.name] for agg in aggs for c in columns(agg)}
    outs = tuple((Column.fresh(f"c{i}", agg.type), substitute(agg, names)) for i, agg in enumerate(aggs))
    keys = ((Column.fresh("g", INT), by["g"]),) if grouped else ()
    return Aggregate(scan, keys, outs)


def moments_by_both(spark: SparkSession, source: pa.Table, aggs: list[Agg], *, grouped: bool = True) -> list[str]:
    """What is wrong with moments of either engine, beside Spark's own aggregates."""
    plan = grouping(source, aggs, grouped=grouped)
    connection = connect()
    connection.register("t", source)
    spark_frame(spark, source).createOrReplaceTempView("aggregated")
    order = " ORDER BY g" if grouped else ""
    native_rows = connection.sql(native_plan(plan, lambda scan: "t") + order).to_arrow_table()
    spark_rows = spark.sql(spark_plan(plan, lambda scan: "aggregated", primitive=True) + order).toArrow()
    texts = []
    for i, agg in enumerate(aggs):
        x, where = spark_text(agg.args[0], by_name_spark), ""
        if agg.filter is not None:
            where = f" FILTER (WHERE {spark_text(agg.filter, by_name_spark)})"
        own = f"avg({x}){where}" if agg.fn == "mean" else f"(var_pop({x}){where} * count({x}){where})"
        texts.append(f"{own} AS c{i}")
    theirs = spark.sql(
        f"SELECT {', '.join(texts)} FROM aggregated {'GROUP BY g ORDER BY g' if grouped else ''}"
    ).toArrow()
    return same(native_rows, theirs, aggs) + same(spark_rows, theirs, aggs)


def same(ours: Any, theirs: Any, aggs: list[Agg]) -> list[str]:
    wrong = []
    for i, agg in enumerate(aggs):
        label = f"{agg.fn} {[a.type.sql for a in agg.args]} distinct={agg.distinct} filter={agg.filter is not None}"
        a, b = ours[f"c{i}"], theirs[f"c{i}"]
        if a.type != agg.type.arrow or b.type != agg.type.arrow:
            wrong.append(f"{label}: {a.type}, Spark {b.type}, expected {agg.type.arrow}")
        if not all(map(close, a.to_pylist(), b.to_pylist())):
            wrong.append(f"{label}: {a.to_pylist()}, Spark {b.to_pylist()}")
    return wrong


def close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)


@pytest.mark.spark
def test_differential_primitive_aggregates(spark: SparkSession) -> None:
    source, aggs = table(), aggregates()
    theirs = run_spark(spark, source, aggs)
    assert theirs.num_rows == GROUPS
    assert same(run_native(source, aggs, narrow=False), theirs, aggs) == []
    assert same(run_native(source.slice(0, 0), aggs, narrow=False, grouped=False),
                run_spark(spark, source.slice(0, 0), aggs, grouped=False), aggs) == []  # fmt: skip
    assert moments_by_both(spark, source, moments()) == []
    assert moments_by_both(spark, source, moments(), grouped=False) == []
    assert moments_by_both(spark, source.slice(0, 0), moments(), grouped=False) == []


@pytest.mark.spark
def test_differential_aggregates_of_odd_doubles(spark: SparkSession) -> None:
    nan, inf = float("nan"), float("inf")
    values: list[list[float | None]] = [
        [nan],
        [inf],
        [1.0, inf],
        [-0.0, 0.0],
        [nan, 1.0, None],
        [inf, -inf],
        [None],
        [3.0],
        [1e200, -1e200],
    ]
    rows = [(g, v) for g, group in enumerate(values) for v in group]
    source = pa.table({"g": pa.array([g for g, _ in rows], pa.int32()), "double": pa.array([v for _, v in rows])})
    x = (column(DOUBLE),)
    aggs = [Agg(DOUBLE, fn, x) for fn in ("sum", "min", "max")]
    aggs.append(Agg(BIGINT, "count", x, distinct=True))
    assert same(run_native(source, aggs, narrow=False), run_spark(spark, source, aggs), aggs) == []
    # The mean of what is not finite is of no use to anybody: its squared deviations are NaN.
    finite = source.filter(pc.is_finite(source["double"]).fill_null(True))
    assert moments_by_both(spark, source, [Agg(DOUBLE, "m2", x)]) == []
    assert moments_by_both(spark, finite, [Agg(DOUBLE, "mean", x)]) == []


def test_narrow_sums_have_the_same_type_and_value() -> None:
    money = col("decimal_15_2", decimal(15, 2))
    aggs = [
        Agg(decimal(38, 2), "sum", (money,)),
        Agg(decimal(38, 4), "sum", (arithmetic("*", money, money),)),
        Agg(decimal(15, 2), "max", (money,)),
    ]
    cents = pa.array([Decimal(i).scaleb(-2) for i in range(-500, 900)], pa.decimal128(15, 2))
    source = pa.table({"g": pa.array([i % 3 for i in range(1400)], pa.int32()), "decimal_15_2": cents})
    assert run_native(source, aggs, narrow=True).equals(run_native(source, aggs, narrow=False))


def test_what_only_spark_knows_is_refused() -> None:
    with pytest.raises(NotNative, match="Spark's own"):
        native_agg(Agg(DOUBLE, "percentile", (column(DOUBLE),), template="percentile({0}, 0.5)"), by_name)
    with pytest.raises(NotNative, match="no native form"):
        native_agg(Agg(DOUBLE, "skewness", (column(DOUBLE),)), by_name)
    template = Agg(DOUBLE, "percentile", (column(DOUBLE),), template="percentile({0}, 0.5)")
    assert spark_agg(template, by_name_spark) == "percentile(`double`, 0.5)"


@pytest.mark.spark
def test_rows_after_an_empty_chunk_are_rows(spark: SparkSession) -> None:
    for lengths in ([0, 0, 1], [1, 0, 1], [2, 0, 0, 3, 0]):
        rows = pa.concat_tables([pa.table({"k": pa.array(range(n), pa.int32())}) for n in lengths])
        assert frame_of_rows(spark, rows, (Field("k", INT),)).toArrow().equals(rows.combine_chunks())


@pytest.mark.spark
def test_differential_filtered_rows_never_raise(spark: SparkSession) -> None:
    source = pa.table({"g": pa.array([1, 1, 1], pa.int32()), "a": pa.array([6, 8, 9]), "b": pa.array([2, 0, 3])})
    a, b = col("a", BIGINT), col("b", BIGINT)
    nonzero = call(BOOLEAN, "<>", b, lit(BIGINT, 0))
    quotient = call(BIGINT, "div", a, b)
    aggs = [Agg(decimal(38, 0), "sum", (quotient,), filter=nonzero), Agg(BIGINT, "count", (quotient,), filter=nonzero)]
    fraction = call(DOUBLE, "/", cast(DOUBLE, a), cast(DOUBLE, b))
    aggs += [Agg(DOUBLE, "sum", (fraction,), filter=nonzero), Agg(BIGINT, "max", (quotient,), filter=nonzero)]
    ours = run_native(source, aggs, narrow=False)
    assert ours.to_pylist() == [{"c0": Decimal(6), "c1": 2, "c2": 6.0, "c3": 3}]
    assert same(ours, run_spark(spark, source, aggs), aggs) == []
    plan = grouping(source, [Agg(DOUBLE, fn, (fraction,), filter=nonzero) for fn in ("mean", "m2")])
    connection = connect()
    connection.register("t", source)
    found = connection.sql(native_plan(plan, lambda scan: "t")).fetchall()
    spark_frame(spark, source).createOrReplaceTempView("aggregated")
    theirs = spark.sql(spark_plan(plan, lambda scan: "aggregated", primitive=True)).collect()
    assert found == [(1, 3.0, 0.0)] == [tuple(row) for row in theirs]
