"""differential: window functions over edge values, natively and by Spark: names, types, rows and conditions of errors.

Where rows tie in an order, Spark may give any of several answers: the cases are such that it has no choice.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace import Database
from headrace.engine.session import Session
from headrace.errors import HeadraceError
from profiles import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAN, INF = float("nan"), float("inf")
COLUMNS = "k INT, g STRING, v INT, b BIGINT, m DECIMAL(10,2), w DECIMAL(38,4), d DOUBLE, f FLOAT, day DATE, t BOOLEAN"
KINDS: list[tuple[str, pa.DataType]] = [
    *(("k", pa.int32()), ("g", pa.string()), ("v", pa.int32()), ("b", pa.int64()), ("m", pa.decimal128(10, 2))),
    *(("w", pa.decimal128(38, 4)), ("d", pa.float64()), ("f", pa.float32()), ("day", pa.date32()), ("t", pa.bool_())),
]
VALUES: dict[str, list[Any]] = {
    "g": [None, "x", "y", "", "é"],
    "v": [None, -3, 0, 1, 2, 2, 7, 2**31 - 1, -(2**31)],
    "b": [None, 0, 1, -1, 5, 2**62, -(2**62)],
    "m": [None, Decimal("0.01"), Decimal("-0.05"), Decimal("10.10"), Decimal("99999999.99")],
    "w": [None, Decimal("0.0001"), Decimal("-123456789012345678901234567890.1234"), Decimal(7)],
    "d": [None, 0.0, -0.0, 1.5, -2.25, NAN, INF],
    "f": [None, 0.5, -1.0, NAN],
    "day": [None, dt.date(2024, 2, 28), dt.date(2024, 2, 29), dt.date(2024, 3, 1), dt.date(1969, 12, 31)],
    "t": [None, True, False],
}
Row = tuple[Any, ...]


def table(rows: list[Row]) -> pa.Table:
    schema = pa.schema(KINDS)
    return pa.Table.from_arrays([pa.array([r[i] for r in rows], f.type) for i, f in enumerate(schema)], schema=schema)


def mixed(count: int) -> list[Row]:
    """Rows that meet every value, in every company, k being their number."""
    return [
        (k, *(values[(k * (2 * i + 3) + k // len(values)) % len(values)] for i, values in enumerate(VALUES.values())))
        for k in range(count)
    ]


def told(value: Any) -> Any:
    """A value as what it is compared by: doubles to nine digits, zeros and NaN alike."""
    if isinstance(value, float):
        return "nan" if value != value else f"{value + 0.0:.9g}"
    return value


def bag(found: pa.Table) -> Counter[str]:
    return Counter(repr(tuple(map(told, row))) for row in zip(*(c.to_pylist() for c in found.columns), strict=True))


CASES = [
    "row_number() OVER (PARTITION BY g ORDER BY k), rank() OVER (ORDER BY v), dense_rank() OVER (ORDER BY d DESC)",
    "percent_rank() OVER (PARTITION BY g ORDER BY v DESC), cume_dist() OVER (PARTITION BY t ORDER BY m NULLS LAST)",
    "ntile(3) OVER (ORDER BY k), ntile(100) OVER (ORDER BY k DESC), ntile(1) OVER (PARTITION BY g ORDER BY k)",
    "lag(v) OVER (ORDER BY k), lead(m, 2) OVER (PARTITION BY g ORDER BY k), lag(d, 3, -1.5D) OVER (ORDER BY k)",
    "lag(g, 1, 'none') OVER (ORDER BY k), lead(day, 0) OVER (ORDER BY k), lag(b, -2, k) OVER (ORDER BY k DESC)",
    "lag(v) IGNORE NULLS OVER (PARTITION BY t ORDER BY k), lead(g, 2, '-') IGNORE NULLS OVER (ORDER BY k)",
    "lag(m, 1, 5) OVER (ORDER BY k), lead(w, 1, 0) OVER (ORDER BY k), lead(v, 1, NULL) OVER (ORDER BY k)",
    "first_value(v) OVER (PARTITION BY g ORDER BY k), last_value(m) OVER (PARTITION BY g ORDER BY k)",
    "first(d, true) OVER (PARTITION BY g ORDER BY k), last(day) IGNORE NULLS OVER (ORDER BY k), any_value(k) OVER w",
    "nth_value(v, 2) OVER (PARTITION BY g ORDER BY k), nth_value(g, 3) IGNORE NULLS OVER (ORDER BY k)",
    "nth_value(v, 2) OVER (ORDER BY k ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING), last_value(v) OVER "
    "(ORDER BY k ROWS BETWEEN 2 FOLLOWING AND 4 FOLLOWING), first(f) OVER (ORDER BY k ROWS 2 PRECEDING)",
    "sum(v) OVER (), sum(v) OVER (ORDER BY k), sum(v) OVER (PARTITION BY g ORDER BY t), sum(m) OVER (ORDER BY day)",
    "avg(m) OVER (PARTITION BY g), avg(v) OVER (ORDER BY k), avg(w) OVER (PARTITION BY g ORDER BY k), avg(d) OVER w",
    "count(*) OVER (), count(v) OVER (PARTITION BY d), count(g) OVER (ORDER BY v), count(k, v) OVER (PARTITION BY f)",
    "min(d) OVER (PARTITION BY g), max(d) OVER (ORDER BY k ROWS 3 PRECEDING), min(g) OVER (ORDER BY v)",
    "max(day) OVER w, min(t) OVER w, bool_or(t) OVER (PARTITION BY g ORDER BY k), every(t) OVER (PARTITION BY v)",
    "max(w) OVER (ORDER BY t), rank() OVER (ORDER BY count(*) OVER (PARTITION BY g))",
    "sum(m) OVER (ORDER BY k ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING), avg(m) OVER (PARTITION BY t ORDER BY k ROWS "
    "BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING), sum(v) OVER (ORDER BY k ROWS BETWEEN 3 FOLLOWING AND 5 FOLLOWING)",
    "sum(v) FILTER (WHERE t) OVER (ORDER BY k), count(*) FILTER (WHERE v > 0) OVER (PARTITION BY g), "
    "sum(10 div v) FILTER (WHERE v <> 0) OVER (PARTITION BY g)",
    "sum(k) OVER (ORDER BY k RANGE BETWEEN 2 PRECEDING AND 3 FOLLOWING), count(*) OVER (ORDER BY m RANGE BETWEEN "
    "CURRENT ROW AND UNBOUNDED FOLLOWING), sum(k) OVER (ORDER BY k DESC RANGE 4 PRECEDING)",
    "count(*) OVER (PARTITION BY t ORDER BY v % 5 RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING), count(*) OVER "
    "(ORDER BY v % 5 DESC NULLS FIRST RANGE BETWEEN 2 FOLLOWING AND UNBOUNDED FOLLOWING)",
    "sum(k) OVER (ORDER BY day RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING), count(*) OVER (ORDER BY day DESC NULLS LAST "
    "RANGE BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING)",
    "count(*) OVER (ORDER BY v RANGE BETWEEN 1 PRECEDING AND CURRENT ROW)",
    "sum(v) OVER (ORDER BY k RANGE BETWEEN 3 PRECEDING AND 1 PRECEDING), max(v) OVER (PARTITION BY g ORDER BY k RANGE "
    "BETWEEN 1 FOLLOWING AND 9 FOLLOWING)",
    "v - lag(v) OVER (ORDER BY v % 7, k), sum(v) OVER w / count(*) OVER w, trim(first(g) OVER (ORDER BY k))",
    "sum(rank() OVER (ORDER BY v)) OVER (PARTITION BY g ORDER BY k)",
    "rank() OVER (PARTITION BY trim(g), v > 0 ORDER BY m * 2 DESC), sum(1) OVER (PARTITION BY 1 ORDER BY 2)",
    "rank() OVER (ORDER BY d), rank() OVER (ORDER BY f DESC NULLS FIRST), rank() OVER (ORDER BY g)",
    "rank() OVER (ORDER BY w)",
    "row_number() OVER (ORDER BY k ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)",
    "sum(b) OVER (ORDER BY k)",
    "sum(w) OVER (PARTITION BY g)",
    "sum(w * 1000000) OVER (ORDER BY k)",
]
QUERIES = [
    "SELECT k, {} FROM t WINDOW w AS (PARTITION BY g)",
    "SELECT g, rank() OVER (ORDER BY sum(k) DESC) AS r, sum(sum(k)) OVER (ORDER BY g) FROM t GROUP BY g",
    "SELECT g, count(*) OVER () FROM t GROUP BY g",
    "SELECT g, t, sum(count(*)) OVER (PARTITION BY t ORDER BY g) FROM t GROUP BY g, t HAVING count(*) > 1",
    "SELECT g, rank() OVER (PARTITION BY grouping(t) ORDER BY count(*)) FROM t GROUP BY ROLLUP (g, t)",
    "SELECT k FROM t QUALIFY row_number() OVER (PARTITION BY g ORDER BY k DESC) <= 2 ORDER BY k",
    "SELECT k, rank() OVER (ORDER BY k DESC) AS v FROM t WHERE t QUALIFY v < 4",
    "SELECT g, count(*) AS n FROM t GROUP BY g QUALIFY rank() OVER (ORDER BY n DESC) = 1",
    "SELECT * FROM (SELECT k, g, row_number() OVER (PARTITION BY g ORDER BY k) AS n FROM t) WHERE n = 1 AND g > ''",
    "SELECT * FROM (SELECT k, rank() OVER (PARTITION BY g ORDER BY v) AS n FROM t) WHERE n < 3",
    "SELECT * FROM (SELECT k, row_number() OVER (ORDER BY k) AS n FROM t) WHERE 3 >= n AND n > 1",
    "SELECT DISTINCT g, max(v) OVER (PARTITION BY g) AS most FROM t ORDER BY most, g",
    "SELECT k, sum(k) OVER (ORDER BY k) AS s, s * 2 AS twice FROM t",
    "SELECT count(*) FROM (SELECT k, rank() OVER (ORDER BY k) FROM t) WHERE k > 3",
    "SELECT x.k, y.n FROM t AS x JOIN (SELECT k, row_number() OVER (ORDER BY k) AS n FROM t) AS y ON x.k = y.n",
    "SELECT k FROM t WHERE k IN (SELECT row_number() OVER (ORDER BY k) FROM t WHERE v > 0)",
    "WITH r AS (SELECT k, g, row_number() OVER (PARTITION BY g ORDER BY k) AS n FROM t) "
    "SELECT a.k, b.k FROM r AS a LEFT JOIN r AS b ON a.g = b.g AND a.n = b.n + 1",
]
WRONG = [
    *("row_number() OVER ()", "lag(v) OVER (PARTITION BY g)", "nth_value(v, 1) OVER ()", "ntile(0) OVER (ORDER BY k)"),
    *("rank()", "lag(v)", "rank() OVER nope", "row_number(1) OVER (ORDER BY k)", "count(DISTINCT v) OVER ()"),
    *("sum(v) OVER (ORDER BY k, v RANGE 1 PRECEDING)", "sum(v) OVER (RANGE 1 PRECEDING)", "upper(g) OVER ()"),
    *("sum(v) OVER (ROWS BETWEEN 2 FOLLOWING AND 1 FOLLOWING)", "sum(v) OVER (ROWS UNBOUNDED FOLLOWING)"),
    *("sum(rank() OVER (ORDER BY k))", "lag(v) OVER (ORDER BY k ROWS 1 PRECEDING)", "ntile(v) OVER (ORDER BY k)"),
    *(
        "sum(g) OVER ()",
        "sum(nope) OVER ()",
        "lag(v, k) OVER (ORDER BY k)",
        "rank() FILTER (WHERE t) OVER (ORDER BY k)",
    ),
]
WRONG_QUERIES = [
    *(f"SELECT {text} FROM t" for text in WRONG),
    "SELECT k FROM t WHERE row_number() OVER (ORDER BY k) = 1",
    "SELECT g FROM t GROUP BY g HAVING rank() OVER (ORDER BY g) = 1",
    "SELECT g, rank() OVER (ORDER BY v) FROM t GROUP BY g",
    "SELECT g FROM t GROUP BY g, rank() OVER (ORDER BY g)",
    "SELECT k FROM t QUALIFY k > 1",
    "SELECT k FROM t QUALIFY sum(k) > 1",
    "SELECT g, sum(v) AS s FROM t GROUP BY g QUALIFY rank() OVER (ORDER BY sum(v)) = 1",
    "SELECT k AS a, sum(a) OVER () FROM t",
    "SELECT k FROM t ORDER BY row_number() OVER (ORDER BY k)",
    "SELECT rank() OVER W FROM t WINDOW w AS (ORDER BY k)",
]
WHOLE = [*(QUERIES[0].format(case) for case in CASES), *QUERIES[1:]]


@pytest.fixture(scope="module")
def db() -> Iterator[Database]:
    with headrace.connect(None) as db:
        db.sql(f"CREATE TABLE t ({COLUMNS})")
        db.insert("t", table(mixed(45)))
        yield db


def by_headrace(db: Database, query: str) -> Any:
    try:
        found = db.sql(query).arrow()
    except HeadraceError as error:
        return error.condition.split(".")[0]
    return [(f.name, f.type) for f in found.schema], bag(found)


def by_spark(spark: SparkSession, query: str) -> Any:
    from headrace.engine.failures import from_spark

    try:
        found = spark.sql(query).toArrow()
    except Exception as error:
        return from_spark(error).condition.split(".")[0]
    return [(f.name, f.type) for f in found.schema], bag(found)


def shown(spark: SparkSession, rows: list[Row]) -> None:
    spark.createDataFrame(table(rows), schema=COLUMNS).createOrReplaceTempView("t")


@pytest.mark.spark
def test_differential_windows_are_sparks(spark: SparkSession, db: Database) -> None:
    shown(spark, mixed(45))
    wrong = []
    for query in WHOLE:
        ours, theirs = by_headrace(db, query), by_spark(spark, query)
        if ours != theirs:
            wrong.append((query, ours, theirs))
    assert not wrong


@pytest.mark.spark
@pytest.mark.parametrize("rows", [0, 1])
def test_differential_windows_of_no_rows_and_of_one(spark: SparkSession, rows: int) -> None:
    shown(spark, mixed(rows))
    with headrace.connect(None) as db:
        db.sql(f"CREATE TABLE t ({COLUMNS})")
        db.insert("t", table(mixed(rows)))
        for query in WHOLE[::3]:
            assert by_headrace(db, query) == by_spark(spark, query), query


@pytest.mark.spark
def test_wrong_windows_are_refused_as_spark_refuses_them(spark: SparkSession, db: Database) -> None:
    shown(spark, mixed(3))
    wrong = []
    for query in WRONG_QUERIES:
        ours, theirs = by_headrace(db, query), by_spark(spark, query)
        if ours != theirs or not isinstance(ours, str):
            wrong.append((query, ours, theirs))
    assert not wrong


def test_windows_start_no_spark(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(session: Session) -> None:
        raise AssertionError("a window function starts Spark")

    monkeypatch.setattr(Session, "get", refuse)
    for query in WHOLE:
        if "ORDER BY v RANGE" not in query and "1000000" not in query:  # these meet values that Spark decides about
            by_headrace(db, query)


@pytest.mark.parametrize("where", ["", "WHERE n <= 3"])
@pytest.mark.parametrize("key", ["v", "v DESC NULLS FIRST", "day", "day DESC NULLS FIRST", "day NULLS LAST"])
def test_oracle_a_key_whose_nulls_are_made_numbers_orders_as_itself(db: Database, key: str, where: str) -> None:
    """A second key, the same for a whole partition, keeps it from being made a number."""
    column = key.split()[0]
    found = [
        by_headrace(
            db,
            f"SELECT * FROM (SELECT g, {column}, row_number() OVER (PARTITION BY g ORDER BY {key}{more}) AS n FROM t) "
            + where,
        )
        for more in ("", ", g")
    ]
    assert found[0] == found[1]


# Random windows

PLACES = ["row_number()", "lag(v)", "lead(g, 2)", "lag(m, 1, 0.5)", "ntile(2)", "first(v)", "last(g)"]
PEERS = ["rank()", "dense_rank()", "percent_rank()", "cume_dist()"]
AGGREGATES = ["sum(v)", "count(*)", "count(g)", "min(d)", "max(m)", "avg(m)", "sum(m) FILTER (WHERE t)", "min(g)"]
PARTITIONS = ["", "PARTITION BY g ", "PARTITION BY t, g ", "PARTITION BY d ", "PARTITION BY k % 2 "]
KEYS = ["v", "v DESC", "d", "d DESC NULLS FIRST", "g NULLS LAST", "m", "day DESC", "t"]
ENDS = ["UNBOUNDED PRECEDING", "2 PRECEDING", "CURRENT ROW", "1 FOLLOWING", "UNBOUNDED FOLLOWING"]


@st.composite
def windows(draw: st.DrawFn) -> str:
    partition = draw(st.sampled_from(PARTITIONS))
    kind = draw(st.sampled_from(["places", "peers", "rows", "ties", "range", "whole"]))
    keys = ", ".join(draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique=True)))
    first, last = sorted(draw(st.lists(st.integers(0, 4), min_size=2, max_size=2)))
    first, last = min(first, 3), max(last, 1)
    frame = f"BETWEEN {ENDS[first]} AND {ENDS[last]}"
    if kind == "places":
        return f"{draw(st.sampled_from(PLACES))} OVER ({partition}ORDER BY {keys}, k)"
    if kind == "peers":
        return f"{draw(st.sampled_from(PEERS))} OVER ({partition}ORDER BY {keys})"
    aggregate = draw(st.sampled_from(AGGREGATES))
    if kind == "rows":
        return f"{aggregate} OVER ({partition}ORDER BY {keys}, k ROWS {frame})"
    if kind == "range":
        key = draw(st.sampled_from(["k", "k DESC", "day", "day DESC NULLS FIRST", "k % 3"]))
        return f"{aggregate} OVER ({partition}ORDER BY {key} RANGE {frame})"
    return f"{aggregate} OVER ({partition}{f'ORDER BY {keys}' if kind == 'ties' else ''})"


@st.composite
def few_rows(draw: st.DrawFn) -> list[Row]:
    small = {**VALUES, "v": [None, 0, 1, 2], "m": [None, Decimal("0.50"), Decimal(3)]}
    rows = draw(st.lists(st.tuples(*(st.sampled_from(values) for values in small.values())), max_size=9))
    return [(k, *row) for k, row in enumerate(rows)]


@pytest.mark.spark
def test_differential_random_windows(spark: SparkSession) -> None:
    @settings(max_examples=examples(5))
    @given(few_rows(), st.lists(windows(), min_size=4, max_size=8))
    def hold(rows: list[Row], items: list[str]) -> None:
        shown(spark, rows)
        query = f"SELECT k, {', '.join(items)} FROM t"
        with headrace.connect(None, spark=spark) as db:
            db.sql(f"CREATE TABLE t ({COLUMNS})")
            db.insert("t", table(rows))
            assert by_headrace(db, query) == by_spark(spark, query), (rows, query)

    hold()
