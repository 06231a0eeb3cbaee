"""Values at the edges of each type, and a small builder of typed expressions over columns ``a``, ``b``, …"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.plan.exprs import Call, Cast, Column, Expr, Literal
from headrace.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    Type,
    decimal,
)

NAN, INF = float("nan"), float("inf")
UTC = dt.UTC

EDGES: dict[Type, list[Any]] = {
    BOOLEAN: [None, True, False],
    TINYINT: [None, 0, 1, -1, 2, 7, -7, 5, 100, 127, -127, -128],
    SMALLINT: [None, 0, 1, -1, 3, -7, 181, 182, 32767, -32767, -32768],
    INT: [None, 0, 1, -1, 3, -7, 46340, 46341, 2147483640, 2147483647, -2147483647, -2147483648],
    BIGINT: [
        *(None, 0, 1, -1, 3, -7, 3037000499, 3037000500, 2**53 - 1, 2**53 + 1, -(2**53) - 1, 2**31, -(2**31) - 1),
        *(253402300799, 253402300800, 2**63 - 1, -(2**63) + 1, -(2**63), 9007199791611905),
    ],
    FLOAT: [
        *(None, 0.0, -0.0, 1.0, -1.0, 0.1, 0.5, -0.5, 1.5, 2.5, 2.675, 16777216.0, 16777217.0, 1e-3, 9.99e-4, 1e7),
        *(9999999.0, 2147483648.0, 3.4028234663852886e38, 1.401298464324817e-45, NAN, INF, -INF),
    ],
    DOUBLE: [
        *(None, 0.0, -0.0, 1.0, -1.0, 0.1, 0.2, 0.5, -0.5, 1.5, 2.5, -2.5, 0.285, 1.005, 2.675, 1e-3, 0.00099, 1e7),
        *(
            9999999.999,
            12345.6789,
            125.0,
            150.0,
            2147483647.0,
            2147483647.9,
            2147483648.0,
            -2147483648.9,
            -2147483649.0,
        ),
        *(2.0**53, 2.0**53 + 2, 9.223372036854775e18, 2.0**63, -(2.0**63), 1e20, 1e38, 1.7976931348623157e308, 5e-324),
        *(3.5e38, NAN, INF, -INF, 0.49999999999999994, 1e-7, 99.995, 127.5, -128.5, 3.0, -7.0),
    ],
    STRING: [
        *(None, "", " ", "a", "A", "ab", "abc", "a_b", "a%b", "100%", "a\\b", "a\nb", "  padded  ", "\tx\t", "x" * 300),
        *("straße", "é", "e\u0301", "日本語", "👍", "it's", "a\0b", "ABC", "NULL", "xxaxx"),
        *("0", "1", "-1", "+5", "007", "127", "128", "-129", "32768", "2147483647", "2147483648", "12.7", "1e3"),
        *(
            "1_000",
            "0x1A",
            " 12 ",
            "9223372036854775807",
            "9223372036854775808",
            "1.005",
            "-1.005",
            ".5",
            "5.",
            "-",
            ".",
        ),
        *("1e-7", "1e400", "NaN", "Infinity", "-inf", "1d", "1f", "0.1", "123456789.987654321", "99999999999.5"),
        *("0.30000000000000004", "1.7976931348623157e308", "t", "TRUE", "yes", "No", "f", "2"),
        *("2020-02-29", "2021-02-29", "2020-2-9", "2020-01", "2020", "0001-01-01", "9999-12-31", "10000-01-01"),
        *("2020-01-01T12:34:56", "2020-01-01 12:34:56.5", "2020-01-01 12:34:56.123456", "2020-01-01 25:00:00"),
        *("2020-01-01 00:00:00Z", "2020-01-01 12:34", "0000-01-01", "2020-13-01", "1900-02-29", "T12:00:00"),
    ],
    BINARY: [None, b"", b"a", b"abc", b"\x00\x01", "é".encode(), b"\\x41"],
    DATE: [
        *(None, dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1), dt.date(1969, 12, 31)),
        *(
            dt.date(2000, 2, 29),
            dt.date(1900, 2, 28),
            dt.date(2020, 1, 31),
            dt.date(2020, 2, 29),
            dt.date(2024, 12, 29),
        ),
        *(dt.date(2023, 1, 1), dt.date(1582, 10, 10), dt.date(2020, 12, 31)),
    ],
    TIMESTAMP_NTZ: [
        *(None, dt.datetime(1970, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(1, 1, 1)),
        *(dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(2020, 2, 29, 12, 34, 56, 789000)),
        *(dt.datetime(2021, 3, 28, 2, 30), dt.datetime(2021, 10, 31, 2, 30), dt.datetime(2020, 1, 31, 23, 59, 59, 1)),
        *(dt.datetime(1582, 10, 10, 1, 1, 1), dt.datetime(2024, 12, 30), dt.datetime(1960, 7, 7, 7, 7, 7, 700000)),
    ],
    decimal(15, 2): [
        *(None, "0", "0.01", "-0.01", "1.00", "3.00", "-7.00", "-2.50", "1.45", "10000000.00"),
        *("9999999999999.99", "-9999999999999.99", "127.99", "128.00", "2147483648.00"),
    ],
    decimal(10, 4): [None, "0", "0.0001", "-0.0001", "1", "2.5000", "-7.1250", "999999.9999", "-999999.9999", "0.3333"],
    decimal(38, 10): [
        *(None, "0", "1", "-1", "0.0000000001", "2.5", "-3.3333333333", "9999999999999999999999999999.9999999999"),
        *("-9999999999999999999999999999.9999999999", "123456789012345678.0123456789", "9007199254740993.0000000001"),
    ],
    decimal(38, 0): [
        *(
            None,
            "0",
            "1",
            "-1",
            "3",
            "9223372036854775807",
            "9223372036854775808",
            "99999999999999999999999999999999999999",
        ),
        *("-99999999999999999999999999999999999999", "50000000000000000000000000000000000000", "9007199254740993"),
    ],
    decimal(5, 5): [None, "0", "0.12345", "-0.12345", "0.99999", "0.00001", "0.50000"],
    decimal(18, 0): [None, "0", "1", "-7", "999999999999999999", "-999999999999999999", "1000000007", "50"],
}
EDGES[TIMESTAMP] = [v if v is None else v.replace(tzinfo=UTC) for v in EDGES[TIMESTAMP_NTZ]]
DECIMALS = [kind for kind in EDGES if kind.is_decimal]


def edges(kind: Type) -> list[Any]:
    """The edge values of a type, as Python values of it."""
    values = EDGES[kind]
    return [None if v is None else Decimal(v) for v in values] if kind.is_decimal else values


def single(kind: Type, values: Sequence[Any] | None = None) -> pa.Table:
    """One column ``a``."""
    return pa.table({"a": pa.array(edges(kind) if values is None else values, kind.arrow)})


def product(**kinds: Type | tuple[Type, Sequence[Any]]) -> pa.Table:
    """Every combination of the columns' values."""
    given = {name: kind if isinstance(kind, tuple) else (kind, edges(kind)) for name, kind in kinds.items()}
    rows = list(itertools.product(*(values for _, values in given.values())))
    columns = zip(*rows, strict=True)
    return pa.table(
        {name: pa.array(values, kind.arrow) for (name, (kind, _)), values in zip(given.items(), columns, strict=True)}
    )


def col(name: str, kind: Type) -> Column:
    return Column(kind, sum(ord(c) << (8 * i) for i, c in enumerate(name)), name)


def lit(kind: Type, value: Any) -> Literal:
    return Literal(kind, Decimal(value) if kind.is_decimal and value is not None else value)


def call(kind: Type, fn: str, *args: Expr) -> Call:
    return Call(kind, fn, args)


def cast(kind: Type, arg: Expr) -> Cast:
    return Cast(kind, arg)


def bounded(precision: int, scale: int) -> Type:
    """Spark's result type once 38 digits are not enough: whole digits first, at least six after the point."""
    if precision <= 38:
        return decimal(precision, scale)
    whole = precision - scale
    return decimal(38, max(38 - whole, min(scale, 6)))


def arithmetic(fn: str, left: Expr, right: Expr) -> Call:
    """A decimal operation with the type Spark gives it (checked against Spark's schema by every comparison)."""
    p1, s1, p2, s2 = left.type.precision, left.type.scale, right.type.precision, right.type.scale
    match fn:
        case "+" | "-":
            kind = bounded(max(s1, s2) + max(p1 - s1, p2 - s2) + 1, max(s1, s2))
        case "*":
            kind = bounded(p1 + p2 + 1, s1 + s2)
        case "/":
            scale = max(6, s1 + p2 + 1)
            kind = bounded(p1 - s1 + s2 + scale, scale)
        case "%":
            kind = bounded(min(p1 - s1, p2 - s2) + max(s1, s2), max(s1, s2))
        case _:
            kind = BIGINT
    return call(kind, fn, left, right)
