"""Binding without Spark: shapes of the tree, literals, errors and where they point."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from binding import COLUMNS, EveryType, LeftToSpark, NoSpark, bind
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SqlError
from headrace.plan.exprs import Agg, Call, Case, Cast, Expr, Literal, SparkExpr, walk
from headrace.sql.coercion import common_type, wider_type
from headrace.sql.expressions import OutsideAlgebra, bind_expr, position_of
from headrace.sql.grammar import parse_expression
from headrace.sql.lexer import quote_string
from headrace.sql.store_assignment import cast_for_store
from headrace.types import (
    BIGINT,
    BOOLEAN,
    COLUMN_TYPES,
    DATE,
    DOUBLE,
    INT,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Type,
    decimal,
)

A, B = COLUMNS["c_int"], COLUMNS["c_bigint"]
ONE = Literal(INT, 1)


def test_all_coercion_is_explicit() -> None:
    assert bind("c_int + c_bigint") == Call(BIGINT, "+", (Cast(BIGINT, A), B))
    assert bind("c_string = c_int") == Call(BOOLEAN, "=", (Cast(BIGINT, COLUMNS["c_string"]), Cast(BIGINT, A)))
    assert bind("c_int / 2") == Call(DOUBLE, "/", (Cast(DOUBLE, A), Cast(DOUBLE, Literal(INT, 2))))
    assert bind("coalesce(NULL, c_int)") == Call(INT, "coalesce", (Literal(INT, None), A))


def _arithmetic_is_of_one_type(expr: Expr) -> bool:
    if isinstance(expr, Call) and expr.fn in ("+", "-", "*", "/", "%", "div") and not expr.type.is_decimal:
        types = {a.type for a in expr.args}
        return types == {expr.type} or all(t.is_decimal for t in types)
    if isinstance(expr, Call) and expr.fn in ("=", "<>", "<", "<=", ">", ">=", "<=>", "in"):
        return len({a.type for a in expr.args}) == 1
    return True


_NUMERIC = st.sampled_from([c for c, col in COLUMNS.items() if col.type.is_numeric] + ["1", "2.50", "1e0", "7L"])
_TREES = st.recursive(
    _NUMERIC,
    lambda sub: st.one_of(
        st.tuples(sub, st.sampled_from(["+", "-", "*", "/", "%"]), sub).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(sub, sub).map(lambda t: f"if({t[0]} < {t[1]}, {t[0]}, {t[1]})"),
        sub.map(lambda t: f"-({t})"),
    ),
    max_leaves=8,
)


@given(_TREES)
def test_every_tree_keeps_the_contract(text: str) -> None:
    """Both sides of one type, everywhere, however deep (decimals mix precisions among themselves)."""
    assert all(_arithmetic_is_of_one_type(e) for e in walk(bind(text))), text


@given(st.text())
def test_any_string_survives_quoting(text: str) -> None:
    bound = bind(quote_string(text)) if "\x00" not in text else Literal(STRING, text)
    assert bound == Literal(STRING, text)


_TYPES = st.sampled_from([*COLUMN_TYPES, *(decimal(p, s) for p, s in ((1, 0), (5, 2), (38, 0), (38, 38), (20, 10)))])


@given(_TYPES, _TYPES)
def test_the_wider_type_does_not_depend_on_order(a: Type, b: Type) -> None:
    assert wider_type(a, b) == wider_type(b, a)
    wide = wider_type(a, b)
    assert wide is None or (wider_type(wide, a) == wide == common_type((a, b)))


def test_operators_are_canonical() -> None:
    assert bind("c_int != 1") == Call(BOOLEAN, "<>", (A, ONE))
    assert bind("c_int IS DISTINCT FROM 1") == Call(BOOLEAN, "not", (Call(BOOLEAN, "<=>", (A, ONE)),))
    low, high = Call(BOOLEAN, ">=", (A, ONE)), Call(BOOLEAN, "<=", (A, Literal(INT, 2)))
    assert bind("c_int BETWEEN 1 AND 2") == Call(BOOLEAN, "and", (low, high))
    assert bind("c_int NOT IN (1, 2)") == Call(BOOLEAN, "not", (Call(BOOLEAN, "in", (A, ONE, Literal(INT, 2))),))
    assert bind("c_int IS NOT NULL") == Call(BOOLEAN, "isnotnull", (A,))
    assert bind("c_boolean IS NOT TRUE").args[0].fn == "<=>"  # type: ignore[attr-defined]
    assert bind("c_string NOT LIKE 'a'").fn == "not"  # type: ignore[attr-defined]
    assert bind("c_string LIKE 'a!%' ESCAPE '!'").args[2] == Literal(STRING, "!")  # type: ignore[attr-defined]
    assert bind("c_string || 1").fn == "concat"  # type: ignore[attr-defined]
    assert bind("substr(c_string, 2)").fn == "substring"  # type: ignore[attr-defined]
    assert bind("ltrim('x', c_string)") == bind("trim(LEADING 'x' FROM c_string)")
    assert bind("extract(DAY FROM c_date)") == bind("dayofmonth(c_date)") == bind("date_part('d', c_date)")


def test_case_with_an_operand_is_a_case_of_equalities() -> None:
    bound = bind("CASE c_int WHEN 1 THEN 'a' WHEN 2L THEN NULL END")
    first = Call(BOOLEAN, "=", (A, ONE))
    second = Call(BOOLEAN, "=", (Cast(BIGINT, A), Literal(BIGINT, 2)))
    null = Literal(STRING, None)
    assert bound == Case(STRING, ((first, Literal(STRING, "a")), (second, null)), null)


def test_nullif_keeps_the_type_of_its_first_argument() -> None:
    assert bind("nullif(c_int, 1)") == Call(INT, "nullif", (A, ONE))
    wide = bind("nullif(c_int, c_bigint)")
    assert isinstance(wide, Case) and wide.type == INT and wide.default == A


def test_dates_and_intervals() -> None:
    day = COLUMNS["c_date"]
    assert bind("1 + c_date") == Call(DATE, "date_add", (day, ONE))
    assert bind("c_date - INTERVAL 1 MONTH").type == DATE
    shifted = bind("INTERVAL 90 MINUTES + c_date")
    assert shifted.type == TIMESTAMP
    assert shifted.args[1].value == 90 * 60_000_000  # type: ignore[attr-defined]
    assert bind("c_date - c_date").type.sql == "interval day"
    assert bind("INTERVAL '1 2:03:04.5' DAY TO SECOND").value == 93_784_500_000  # type: ignore[attr-defined]
    window = bind("window(c_timestamp, '10 minutes')")
    assert (window.fn, window.args[1].value) == ("window", 600_000_000)  # type: ignore[attr-defined]
    field = bind("window(c_timestamp, '10 minutes').end")
    assert isinstance(field, SparkExpr) and (field.type, field.args) == (TIMESTAMP, (window,))


def test_interval_then_plus_is_a_sum() -> None:
    with pytest.raises(LeftToSpark):
        bind("INTERVAL 1 DAY + 7")
    assert bind("INTERVAL 1 DAY 2 HOURS").value == 26 * 3_600_000_000  # type: ignore[attr-defined]


def test_timestamps_are_of_the_session_zone() -> None:
    local = datetime(2024, 7, 1, 12)
    node = parse_expression("TIMESTAMP '2024-07-01 12:00:00'")
    assert bind_expr(node, EveryType(), NoSpark()) == Cast(TIMESTAMP, Literal(TIMESTAMP_NTZ, local))
    zoned = bind_expr(node, EveryType(), NoSpark(), zone=ZoneInfo("Europe/Berlin"))
    assert zoned == Literal(TIMESTAMP, datetime(2024, 7, 1, 10, tzinfo=UTC))
    assert bind("TIMESTAMP_NTZ '2024-07-01 12:00:00'") == Literal(TIMESTAMP_NTZ, local)
    assert bind("DATE '2024-07-01'") == Literal(DATE, date(2024, 7, 1))


def test_the_sign_belongs_to_the_number() -> None:
    assert bind("-2147483648") == Literal(INT, -2147483648)
    assert bind("-(2147483648)") == Call(BIGINT, "negative", (Literal(BIGINT, 2147483648),))
    assert bind("-9223372036854775808L") == Literal(BIGINT, -(2**63))
    assert bind("-1.50") == Literal(decimal(3, 2), Decimal("-1.50"))
    assert bind("1S") == Literal(SMALLINT, 1)


def test_a_literal_beside_a_decimal_is_as_narrow_as_it_can_be() -> None:
    assert bind("c_dec_15_2 * (1 - c_dec_15_2)").type == decimal(32, 4)
    assert bind("c_dec_15_2 + 1L").type == decimal(16, 2)
    assert bind("c_dec_15_2 + CAST(1 AS BIGINT)").type == decimal(23, 2)


def test_aggregates() -> None:
    assert bind("count(*)") == Agg(BIGINT, "count", ())
    assert bind("count(DISTINCT c_int, c_bigint)") == Agg(BIGINT, "count", (A, B), distinct=True)
    assert bind("mean(c_int)") == Agg(DOUBLE, "avg", (A,))
    assert bind("sum(c_dec_15_2)").type == decimal(25, 2)
    kept = bind("sum(c_int) FILTER (WHERE c_boolean)")
    assert kept == Agg(BIGINT, "sum", (A,), filter=COLUMNS["c_boolean"])
    ratio = bind("sum(c_int) / count(*)")
    assert [e.fn for e in walk(ratio) if isinstance(e, Agg)] == ["sum", "count"]


class _Percentile(NoSpark):
    def scalar_type(self, template: str, args: tuple[Type, ...]) -> Type:
        return DOUBLE

    def is_aggregate(self, function: str) -> bool:
        return function == "percentile"


def test_what_spark_alone_knows_is_text_with_holes() -> None:
    found = bind("percentile(c_int + 1, 0.5) FILTER (WHERE c_boolean)", _Percentile())
    assert isinstance(found, Agg)
    assert (found.template, found.args, found.filter) == ("percentile({0} + 1, 0.5)", (A,), COLUMNS["c_boolean"])
    text = bind("strange(c_int, '{0}', sum(c_int), c_int)", _Percentile())
    assert isinstance(text, SparkExpr)
    assert text.template == "strange({0}, '{{0}}', {1}, {0})"
    assert text.args == (A, Agg(BIGINT, "sum", (A,)))
    unit = bind("datediff(DAY, c_date, c_date)", _Percentile())
    assert isinstance(unit, SparkExpr) and unit.template == "datediff(DAY, {0}, {0})"


@pytest.mark.parametrize(
    ("text", "condition", "where"),
    [
        ("1 + c_boolean", "DATATYPE_MISMATCH", "line 1, column 1"),
        ("c_int = 1 AND\n (c_date > 5)", "DATATYPE_MISMATCH", "line 2, column 3"),
        ("if(c_int, 1, 2)", "DATATYPE_MISMATCH", "line 1, column 1"),
        ("CASE WHEN c_string THEN 1 END", "DATATYPE_MISMATCH", "line 1, column 11"),
        ("CAST(c_date AS INT)", "DATATYPE_MISMATCH", "line 1, column 1"),
        ("c_string + c_string", "DATATYPE_MISMATCH", "line 1, column 1"),
        ("coalesce(c_int, c_date)", "DATATYPE_MISMATCH", "line 1, column 1"),
        ("year(c_int)", "DATATYPE_MISMATCH", "line 1, column 1"),
        ("sum(c_boolean)", "DATATYPE_MISMATCH", "line 1, column 1"),
        ("count(*) FILTER (WHERE c_int)", "INVALID_AGGREGATE_FILTER", "line 1, column 24"),
        ("1 + abs(c_int, 2)", "WRONG_NUM_ARGS", "line 1, column 5"),
        ("sum(c_int, c_int)", "WRONG_NUM_ARGS", "line 1, column 1"),
        ("coalesce()", "WRONG_NUM_ARGS", "line 1, column 1"),
        ("count()", "WRONG_NUM_ARGS", "line 1, column 1"),
        ("sum(1 + max(c_int))", "NESTED_AGGREGATE_FUNCTION", "line 1, column 9"),
        ("c_int + nope", "UNRESOLVED_COLUMN", "line 1, column 9"),
        ("200Y", "INVALID_NUMERIC_LITERAL_RANGE", "line 1, column 1"),
        ("1e999", "INVALID_NUMERIC_LITERAL_RANGE", "line 1, column 1"),
        ("DATE '2023-02-29'", "INVALID_TYPED_LITERAL", "line 1, column 1"),
        ("?", "UNBOUND_SQL_PARAMETER", "line 1, column 1"),
    ],
)
def test_errors_name_their_place(text: str, condition: str, where: str) -> None:
    with pytest.raises(SqlError) as caught:
        bind(text)
    assert (caught.value.condition, str(caught.value.position)) == (condition, where)


@pytest.mark.parametrize(
    "text",
    [
        "sum(c_int) OVER (ORDER BY c_int)",
        "1 + (SELECT 1)",
        "c_int IN (SELECT 1)",
        "EXISTS (SELECT 1)",
        "transform(array(c_int), x -> x + 1)",
        "explode(array(1, 2))",
        "count(DISTINCT *)",
    ],
)
def test_outside_the_algebra(text: str) -> None:
    with pytest.raises(OutsideAlgebra):
        bind(text)


def test_store_assignment() -> None:
    assert cast_for_store(B, INT, "x", None) == Cast(INT, B)
    assert cast_for_store(Literal(INT, 1), INT, "x", None) == ONE
    with pytest.raises(SqlError) as caught:
        cast_for_store(COLUMNS["c_string"], INT, "x", position_of(parse_expression("a")))
    assert caught.value.condition == "INCOMPATIBLE_DATA_FOR_TABLE"
    assert "column x" in str(caught.value) and caught.value.hint
