"""differential: every row of the native list, by DuckDB and by Spark, over the edges of its types.

A group is a table and the expressions over it; one Spark query answers a group.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal

import pyarrow as pa
import pytest
from edge_values import DECIMALS, EDGES, INF, NAN, arithmetic, call, cast, col, edges, lit, product, single
from engines_compared import by_name, compare
from pyspark.sql import SparkSession

from headrace.engine.native_functions import FUNCTIONS
from headrace.engine.native_sql import NotNative, native
from headrace.plan.exprs import Call, Case, Expr, walk
from headrace.sql.time_windows import WINDOW
from headrace.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DAY_TIME,
    DOUBLE,
    FLOAT,
    INT,
    INTEGERS,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    YEAR_MONTH,
    Type,
    TypePart,
    array,
    decimal,
    struct,
)

Cases = list[tuple[str, Expr]]
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "<=>")
DAY = 86_400_000_000


def comparisons(kind: Type) -> Cases:
    a, b = col("a", kind), col("b", kind)
    cases: Cases = [(f"a {fn} b", call(BOOLEAN, fn, a, b)) for fn in COMPARISONS]
    cases += [
        ("nullif", call(kind, "nullif", a, b)),
        ("coalesce", call(kind, "coalesce", a, b)),
        ("if", call(kind, "if", call(BOOLEAN, "<", a, b), a, b)),
        ("isnull", call(BOOLEAN, "isnull", a)),
        ("isnotnull", call(BOOLEAN, "isnotnull", a)),
        ("in", call(BOOLEAN, "in", a, b, lit(kind, None))),
        ("case", Case(kind, ((call(BOOLEAN, "=", a, b), b), (call(BOOLEAN, ">", a, b), a)), lit(kind, None))),
    ]
    cases += [(f"in literal {v!r}", call(BOOLEAN, "in", a, b, lit(kind, v))) for v in edges(kind)[:6]]
    return cases


def integers(kind: Type) -> Cases:
    a, b = col("a", kind), col("b", kind)
    cases = comparisons(kind)
    cases += [(f"a {fn} b", call(kind, fn, a, b)) for fn in ("+", "-", "*", "%")]
    cases += [("div", call(BIGINT, "div", a, b))]
    cases += [(f"{fn} a", call(kind, fn, a)) for fn in ("negative", "abs")]
    cases += [(f"round {n}", call(kind, "round", a, lit(INT, n))) for n in (0, 2, -1, -2, -9, -20)]
    if kind == BIGINT:
        cases += [(fn, call(BIGINT, fn, a)) for fn in ("floor", "ceil")]
    return cases


def floats(kind: Type) -> Cases:
    a, b = col("a", kind), col("b", kind)
    cases = comparisons(kind)
    cases += [(f"a {fn} b", call(kind, fn, a, b)) for fn in ("+", "-", "*", "%")]
    cases += [(f"{fn} a", call(kind, fn, a)) for fn in ("negative", "abs")]
    if kind == DOUBLE:
        cases += [("/", call(kind, "/", a, b)), ("sqrt", call(DOUBLE, "sqrt", a))]
        cases += [(fn, call(BIGINT, fn, a)) for fn in ("floor", "ceil")]
    return cases


def rounding(kind: Type) -> Cases:
    return [(f"round {n}", call(kind, "round", col("a", kind), lit(INT, n))) for n in (0, 1, 2, 3, 10, -1, -2)]


def decimal_rounding(kind: Type) -> Cases:
    a, whole, scale = col("a", kind), kind.precision - kind.scale, kind.scale
    cases: Cases = [("negative", call(kind, "negative", a)), ("abs", call(kind, "abs", a))]
    for n in (0, 1, 2, 20, -1, -2):
        if n < 0:
            digits = decimal(min(38, max(whole + 1, -n + 1)), 0)
        else:
            digits = decimal(min(38, whole + 1 + min(n, scale)), min(n, scale))
        cases.append((f"round {n} of {kind}", call(digits, "round", a, lit(INT, n))))
    rounded = decimal(min(38, whole + 1) if scale else kind.precision, 0)
    cases += [(fn, call(rounded, fn, a)) for fn in ("floor", "ceil")]
    return cases


def native_ones(cases: Cases) -> Cases:
    """The cases that have a native form."""
    found: Cases = []
    for name, expr in cases:
        with suppress(NotNative):
            native(expr, by_name)
            found.append((name, expr))
    return found


def decimals(left: Type, right: Type) -> Cases:
    a, b = col("a", left), col("b", right)
    return native_ones([(f"{left} {fn} {right}", arithmetic(fn, a, b)) for fn in ("+", "-", "*", "/", "%", "div")])


def casts(kind: Type) -> Cases:
    targets = (*EDGES, decimal(3, 1), decimal(38, 38), decimal(10, 0))
    return native_ones([(f"cast {kind} as {target}", cast(target, col("a", kind))) for target in targets])


def text_pairs() -> Cases:
    a, b = col("a", STRING), col("b", STRING)
    cases = comparisons(STRING)
    cases += [(fn, call(BOOLEAN, fn, a, b)) for fn in ("startswith", "endswith", "contains")]
    cases += [(fn, call(STRING, fn, a, b)) for fn in ("concat", "trim", "ltrim", "rtrim", "replace")]
    cases += [("concat 3", call(STRING, "concat", a, lit(STRING, "-"), b))]
    cases += [("replace 3", call(STRING, "replace", a, b, lit(STRING, "<é>")))]
    return cases


def text() -> Cases:
    a = col("a", STRING)
    cases: Cases = [
        ("length", call(INT, "length", a)),
        ("upper", call(STRING, "upper", a)),
        ("lower", call(STRING, "lower", a)),
    ]
    cases += [(fn, call(STRING, fn, a)) for fn in ("trim", "ltrim", "rtrim")]
    for pattern in ("a_b", "a\\_b", "a%", "%b", "_", "%", "", "a\\\\b", "%\\%", "a%b", "ABC", "%é%", "__"):
        cases.append((f"like {pattern}", call(BOOLEAN, "like", a, lit(STRING, pattern))))
    cases.append(("like escape", call(BOOLEAN, "like", a, lit(STRING, "a!_b"), lit(STRING, "!"))))
    for position in (-400, -5, -1, 0, 1, 2, 299, 2147483647, -2147483648):
        cases.append((f"substring {position}", call(STRING, "substring", a, lit(INT, position))))
        for length in (-1, 0, 1, 2, 2147483647):
            label = f"substring {position} {length}"
            cases.append((label, call(STRING, "substring", a, lit(INT, position), lit(INT, length))))
    for value in ("", "é\n'\\", "a\0b", "\\x41", "\t\r", "{0}", "$x"):
        cases.append((f"literal {value!r}", call(STRING, "concat", a, lit(STRING, value))))
    return cases


def substrings() -> Cases:
    a, b, c = col("a", STRING), col("b", INT), col("c", INT)
    return [("substring 3", call(STRING, "substring", a, b, c)), ("substring 2", call(STRING, "substring", a, b))]


def times(kind: Type) -> Cases:
    a = col("a", kind)
    fields = ["year", "month", "day", "dayofweek", *(["hour", "minute", "second"] if kind != DATE else [])]
    cases: Cases = [(f"{fn}({kind})", call(INT, fn, a)) for fn in fields]
    for months in (1, -1, 12, 13, -25):
        cases.append((f"+ {months} months", call(kind, "+", a, lit(YEAR_MONTH, months))))
        cases.append((f"- {months} months", call(kind, "-", a, lit(YEAR_MONTH, months))))
    if kind == DATE:
        days = Type("interval_time", ddl="interval day")
        cases += [(f"+ {n} days", call(kind, "+", a, lit(days, n * DAY))) for n in (0, 1, -1, 365)]
        cases += [(f"- {n} days", call(kind, "-", a, lit(days, n * DAY))) for n in (1, -40)]
        return [*cases, ("to_date", call(DATE, "to_date", a))]
    cases += [(f"+ {n} us", call(kind, "+", a, lit(DAY_TIME, n))) for n in (0, 1, -1, DAY, -DAY, 1_500_000)]
    cases += [(f"- {n} us", call(kind, "-", a, lit(DAY_TIME, n))) for n in (1, 3_600_000_000)]
    for width in (1, 1000, 10_000_000, 3_600_000_000, 7 * DAY, 333_333):
        cases.append((f"window {width}", call(kind, "window_start", a, lit(DAY_TIME, width))))
    if kind == TIMESTAMP:
        cases.append(("window", Call(WINDOW, "window_struct", (a, a))))
    cases.append(("to_date", call(DATE, "to_date", a)))
    return cases


def truncations() -> Cases:
    units = ("year", "YYYY", "yy", "quarter", "month", "mon", "mm", "week", "day", "dd", "hour", "minute", "second")
    a = col("a", TIMESTAMP)
    return [
        (f"date_trunc {unit}", call(TIMESTAMP, "date_trunc", lit(STRING, unit), a))
        for unit in (*units, "millisecond", "microsecond", "fortnight")
    ]


def date_pairs() -> Cases:
    a, b, n = col("a", DATE), col("b", DATE), col("n", INT)
    return [
        ("datediff", call(INT, "datediff", a, b)),
        ("date_add", call(DATE, "date_add", a, n)),
        ("date_sub", call(DATE, "date_sub", a, n)),
    ]


def logic() -> Cases:
    a, b = col("a", BOOLEAN), col("b", BOOLEAN)
    return [
        *comparisons(BOOLEAN),
        ("and", call(BOOLEAN, "and", a, b)),
        ("or", call(BOOLEAN, "or", a, b)),
        ("not", call(BOOLEAN, "not", a)),
    ]


def guarded() -> Cases:
    """Errors under a guard: only the rows that reach them may raise, whatever stands beside."""
    a, b, s = col("a", INT), col("b", INT), col("s", STRING)
    zero = lit(INT, 0)
    quotient = call(BIGINT, "div", a, b)
    fraction = call(DOUBLE, "/", cast(DOUBLE, a), cast(DOUBLE, b))
    parsed = cast(INT, s)
    nonzero, numeric = call(BOOLEAN, "<>", b, zero), call(BOOLEAN, "in", s, lit(STRING, "1"), lit(STRING, "42"))
    big, one = call(BOOLEAN, ">", quotient, lit(BIGINT, 1)), call(BOOLEAN, "=", parsed, lit(INT, 1))
    return [
        ("case div", Case(BIGINT, ((nonzero, quotient),), lit(BIGINT, -5))),
        ("if /", call(DOUBLE, "if", nonzero, fraction, lit(DOUBLE, 0.0))),
        ("case parse", Case(INT, ((numeric, parsed),), zero)),
        ("case constant", Case(INT, ((call(BOOLEAN, "<", a, a), cast(INT, lit(STRING, "abc"))),), a)),
        ("case constant /", Case(INT, ((call(BOOLEAN, "<", a, a), call(INT, "%", a, zero)),), a)),
        ("coalesce", call(INT, "coalesce", a, parsed)),
        ("coalesce twice", call(INT, "+", call(INT, "coalesce", a, parsed), call(INT, "coalesce", b, parsed))),
        ("and", call(BOOLEAN, "and", nonzero, big)),
        ("or", call(BOOLEAN, "or", call(BOOLEAN, "=", b, zero), big)),
        ("and null", call(BOOLEAN, "and", call(BOOLEAN, ">", a, zero), one)),
        ("or null", call(BOOLEAN, "or", call(BOOLEAN, ">", a, zero), one)),
        ("and 3", call(BOOLEAN, "and", call(BOOLEAN, "and", nonzero, numeric), call(BOOLEAN, "or", one, big))),
        ("in parse", call(BOOLEAN, "in", a, b, parsed)),
        ("unguarded", call(INT, "+", parsed, a)),
        ("nullif", call(DOUBLE, "/", cast(DOUBLE, a), call(DOUBLE, "nullif", cast(DOUBLE, b), lit(DOUBLE, 0.0)))),
    ]


def averages() -> Cases:
    n = col("n", BIGINT)
    cases: Cases = []
    for name, kind in (("s2", decimal(38, 2)), ("s18", decimal(38, 18))):
        target = decimal(min(38, 19), kind.scale + 4) if kind.scale == 2 else decimal(38, 22)
        cases.append((f"avg_of_sum {kind}", call(target, "avg_of_sum", col(name, kind), n)))
    cases.append(("sum_of_digits", call(BIGINT, "sum_of_digits", col("s0", decimal(38, 0)))))
    return cases


def some(kind: Type, *values: object) -> tuple[Type, list[object]]:
    return kind, list(values)


SHORT = [None, "", "a", "A", "ab", "aab", "é", "aé", "👍", "abc", " ", "  a ", "xxaxx", "a\0b", "日本語", "b"]


def groups() -> Iterator[tuple[str, pa.Table, Cases]]:
    for kind in INTEGERS:
        yield f"{kind}", product(a=kind, b=kind), integers(kind)
    for kind in (FLOAT, DOUBLE):
        # A zero, its negative, fractions, NaN, infinities and extremes against everything.
        others = [None, 0.0, -0.0, 1.0, -1.0, 0.1, 2.5, 3e38, 1e-45, NAN, INF, -INF]
        yield f"{kind}", product(a=kind, b=(kind, others)), floats(kind)
        yield f"round {kind}", single(kind), rounding(kind)
    for i, left in enumerate(DECIMALS):
        yield f"round {left}", single(left), decimal_rounding(left)
        # Either order of a pair goes through the same rules: one order each, alternating.
        for j, right in enumerate(DECIMALS):
            if (i == j or (i < j) == ((i + j) % 2 == 1)) and (cases := decimals(left, right)):
                yield f"{left} with {right}", product(a=left, b=right), cases
    for kind in (decimal(15, 2), decimal(38, 10)):
        yield f"compare {kind}", product(a=kind, b=kind), comparisons(kind)
    for kind in EDGES:
        yield f"cast {kind}", single(kind), casts(kind)
    for kind in (DATE, TIMESTAMP, TIMESTAMP_NTZ, BINARY):
        yield f"compare {kind}", product(a=kind, b=kind), comparisons(kind)
    yield "text pairs", product(a=(STRING, SHORT), b=(STRING, SHORT)), text_pairs()
    yield "text", single(STRING), text()
    numbers = [None, -2147483648, -3, -1, 0, 1, 2, 5, 2147483647]
    yield "substrings", product(a=(STRING, SHORT), b=(INT, numbers), c=(INT, numbers)), substrings()
    for kind in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        yield f"times {kind}", single(kind), times(kind)
    yield "truncations", single(TIMESTAMP), truncations()
    yield "dates", product(a=DATE, b=DATE, n=some(INT, None, 0, 1, -1, 400, 700000)), date_pairs()
    yield "booleans", product(a=BOOLEAN, b=BOOLEAN), logic()
    yield "binary", single(BINARY), [("length", call(INT, "length", col("a", BINARY)))]
    strings = some(STRING, None, "1", "42", "x", "7")
    yield "guarded", product(a=some(INT, None, 0, 1, 7), b=some(INT, None, 0, 1, 2), s=strings), guarded()
    yield "averages", _sums(), averages()
    yield "structs", _structs(), structs()


INNER = struct(TypePart("n", INT), TypePart("d", decimal(5, 2)), TypePart("it's", array(STRING)))
OUTER = struct(TypePart("a", INNER), TypePart("b", INNER))


def structs() -> Cases:
    """Fields, and what else is done natively to values that hold others."""
    s = col("s", OUTER)
    a, b = (call(INNER, "field", s, lit(STRING, name)) for name in "ab")
    n, d = (call(INNER.parts[i].type, "field", a, lit(STRING, INNER.parts[i].name)) for i in range(2))
    tags, others = (call(array(STRING), "field", x, lit(STRING, "it's")) for x in (a, b))
    return [
        ("s.a.n", n),
        ("s.a.d + s.a.d", call(decimal(6, 2), "+", d, d)),
        (
            "s.a.n > 0 and s.a.d > 0",
            call(BOOLEAN, "and", call(BOOLEAN, ">", n, lit(INT, 0)), call(BOOLEAN, "isnull", d)),
        ),
        ("s is null", call(BOOLEAN, "isnull", s)),
        ("s.a is not null", call(BOOLEAN, "isnotnull", a)),
        ("s.a <=> s.b", call(BOOLEAN, "<=>", a, b)),
        ("s.a.it's <=> s.b.it's", call(BOOLEAN, "<=>", tags, others)),
        ("coalesce", call(INT, "field", call(INNER, "coalesce", a, b), lit(STRING, "n"))),
        ("if", call(INT, "field", call(INNER, "if", call(BOOLEAN, "isnull", n), b, a), lit(STRING, "n"))),
    ]


def _structs() -> pa.Table:
    """Structs that are NULL at each level, over fields that are not: nobody may look below a NULL."""
    values = [(1, "1.50", ["x"]), (None, "0.00", []), (0, None, [None]), (1, "1.50", ["x", None]), (None, None, None)]

    def inner(shift: int) -> pa.Array:
        rows = [values[(i // shift + i) % 5] for i in range(40)]
        columns = [
            pa.array([n for n, _, _ in rows], pa.int32()),
            pa.array([d if d is None else Decimal(d) for _, d, _ in rows], pa.decimal128(5, 2)),
            pa.array([tags for _, _, tags in rows], array(STRING).arrow),
        ]
        missing = pa.array([i % 7 == shift % 7 for i in range(40)])
        return pa.StructArray.from_arrays(columns, fields=list(INNER.arrow), mask=missing)

    missing = pa.array([i % 11 == 3 for i in range(40)])
    return pa.table({"s": pa.StructArray.from_arrays([inner(5), inner(3)], fields=list(OUTER.arrow), mask=missing)})


def _sums() -> pa.Table:
    sums = [None, *map(Decimal, ("0", "0.01", "-0.01", "1", "-1", "3.05", "100000000000.01", "123456789012345.67"))]
    counted = product(s2=(decimal(38, 2), sums), n=(BIGINT, [1, 2, 3, 6, 7, 300, 1_000_003]))
    edges = [None, 0, -7, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**30]
    whole = pa.array([edges[i % len(edges)] for i in range(counted.num_rows)], pa.decimal128(38, 0))
    return counted.append_column("s18", counted["s2"].cast(pa.decimal128(38, 18))).append_column("s0", whole)


GROUPS = list(groups())


@pytest.mark.spark
@pytest.mark.parametrize(("table", "cases"), [pytest.param(t, c, id=name) for name, t, c in GROUPS])
def test_differential_native_matches_spark(spark: SparkSession, table: pa.Table, cases: Cases) -> None:
    assert compare(spark, cases, table) == []


def test_every_native_function_is_compared() -> None:
    compared = {e.fn for _, _, cases in GROUPS for _, expr in cases for e in walk(expr) if isinstance(e, Call)}
    only_raises = {"too_many_rows"}  # a scalar subquery of several rows; tests/differential/views.sql has it
    assert set(FUNCTIONS) - compared == only_raises
