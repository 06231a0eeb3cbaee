"""Quotients of decimals of 38 digits: Spark rounds them twice, which is seen only with the widest divisors."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.base.native import native_connection, native_query
from headrace.engine.failures import NativeCannot, from_duckdb
from headrace.engine.native_sql import native
from headrace.plan.exprs import Call, Column
from headrace.types import decimal

WIDE, RESULT = decimal(38, 4), decimal(38, 6)
EXACT = Context(prec=200, rounding=ROUND_HALF_UP)


def quotient(a: int, b: int) -> Decimal:
    """The native engine's, of so many ten-thousandths."""
    left, right = Column.fresh("a", WIDE), Column.fresh("b", WIDE)
    text = native(Call(RESULT, "/", (left, right)), lambda column: column.name)
    values = {n: pa.array([Decimal(v).scaleb(-4, EXACT)], WIDE.arrow) for n, v in (("a", a), ("b", b))}
    try:
        with native_connection() as connection:
            found = native_query(connection, f"SELECT {text} AS q FROM given", {"given": pa.table(values)})
    except duckdb.Error as error:
        raise from_duckdb(error) from None
    result: Decimal = found.column(0).cast(RESULT.arrow)[0].as_py()
    return result


def rounded(a: int, b: int, first: int) -> Decimal:
    """As Spark has it: at so many digits after the point, and then at six."""
    once = EXACT.divide(Decimal(a), Decimal(b)).quantize(Decimal(1).scaleb(-first), context=EXACT)
    return once.quantize(Decimal(1).scaleb(-6), context=EXACT)


N = st.one_of(st.integers(-(10**9), 10**9), st.integers(-(10**25), 10**25))


@given(N, st.one_of(N, st.integers(10**30, 10**32 - 1)).filter(bool))
@example(a=1, b=2_000_000)
@example(a=-1, b=2_000_000)
@example(a=5 * 10**24 - 1, b=10**31)
@example(a=49_999_999, b=10**14)
def test_oracle_a_quotient_is_the_same_rounded_once(a: int, b: int) -> None:
    assert quotient(a, b) == rounded(a, b, 38) == rounded(a, b, 39)


@pytest.mark.parametrize("b", [10**32, -(10**32), 10**33 + 1])
def test_a_divisor_so_wide_is_left_to_spark(b: int) -> None:
    with pytest.raises(NativeCannot):
        quotient(7, b)
