"""INSERT of plain literals: the quick reading gives the rows, or the error, that the parser's gives."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import HeadraceError
from headrace.sql.inline_rows import inline_rows
from headrace.statement.load import Loaded, Loader

TYPES = [
    "BOOLEAN",
    "TINYINT",
    "INT",
    "BIGINT",
    "DOUBLE",
    "DECIMAL(5,2)",
    "DECIMAL(38,2)",
    "STRING",
    "DATE",
    "TIMESTAMP",
]

strings = st.text(st.sampled_from('ab -;/*,()`"é😀\n\t%'), max_size=5).map(lambda s: f"'{s}'")
numbers = st.one_of(
    st.integers(-300, 300).map(str),
    st.sampled_from(
        ["-0", "007", "2147483647", "2147483648", "-2147483648", "9223372036854775807", "9223372036854775808"]
    ),
    st.sampled_from(
        ["1.5", "-0.05", "999.99", "1000.00", "1.234", "0.1234567890123456789012345678901234567", "1" * 39]
    ),
)
times = st.sampled_from(
    ["DATE '2024-02-29'", "date'2024-1-1'", "DATE '2024-02-30'", "DATE 'x'", "TIMESTAMP '2024-01-02 03:04:05.5'",
     "TIMESTAMP '2024-01-02T03:04:05Z'", "timestamp '2024-01-02 03:04:05+01:00'", "TIMESTAMP '2024-13-01'"]
)  # fmt: skip
others = st.sampled_from(
    ["NULL", "null", "TRUE", "False", "1 + 1", "- 5", "1e3", "1L", "'it''s'", r"'a\nb'", '"d"', "/**/1", "X'ff'"]
)
COLUMNS = [strings, numbers, times, st.sampled_from(["TRUE", "false"]), st.one_of(strings, numbers, times, others)]


@st.composite
def inserts(draw: st.DrawFn) -> str:
    width = draw(st.integers(1, 3))
    kinds = [draw(st.sampled_from(COLUMNS)) for _ in range(width)]
    rows = draw(st.lists(st.tuples(*(st.one_of(k, k, k, st.just("NULL")) for k in kinds)), min_size=1, max_size=4))
    space = draw(st.sampled_from(["", " ", "\n", "\t "]))
    if draw(st.integers(0, 15)) == 0:
        rows.append((*rows[0], "1"))
    body = f"{space},{space}".join("(" + f",{space}".join(space + v for v in row) + f"{space})" for row in rows)
    names = draw(
        st.sampled_from(["", "", "", " (a)", " (b, a)", "(A,`b`,c)", " (c,b,a)", " (a, nope)", " (a, a)", "(`a,b`)"])
    )
    ending = draw(st.sampled_from(["", "", ";", " ; ;", " -- done", ", (1)", ",", " x"]))
    verb = draw(st.sampled_from(["INSERT INTO", "insert  into", "\nInsert\nInto"]))
    return f"{verb} {{}}{names} VALUES{space}{body}{ending}"


@pytest.fixture(scope="module")
def db() -> Iterator[headrace.Database]:
    with headrace.connect(None, time_zone="Europe/Berlin") as found:
        for i, a in enumerate(TYPES):
            b, c = TYPES[(i * 3 + 1) % len(TYPES)], TYPES[(i * 7 + 2) % len(TYPES)]
            found.sql(f"CREATE TABLE t{i} (a {a}, b {b}, c {c})")
            found.sql(f"CREATE STREAM one{i} (a {a})")
        yield found


def outcome(db: headrace.Database, text: str) -> Any:
    """The rows an INSERT would store, or its error with its place."""
    given: list[pa.Table] = []

    def note(_: Loader, __: object, rows: pa.Table) -> Loaded:
        given.append(rows)
        return Loaded(rows.num_rows)

    with mock.patch.object(Loader, "insert", note):
        try:
            db.sql(text)
        except HeadraceError as error:
            return type(error).__name__, error.condition, error.message, error.position
    return given[0].schema, given[0].to_pylist()


@settings(max_examples=200)
@given(
    inserts(), st.sampled_from([f"t{i}" for i in range(len(TYPES))] + [f"one{i}" for i in range(len(TYPES))] + ["no"])
)
def test_differential_quick_and_slow_reading_agree(db: headrace.Database, text: str, name: str) -> None:
    statement = text.replace("{}", name)
    quick = outcome(db, statement)
    with mock.patch("headrace.database.inline_rows", lambda *_: None):
        slow = outcome(db, statement)
    assert quick == slow


@pytest.mark.parametrize(
    "values",
    [
        "(0.1234567890123456789012345678901234567), (12345678901), (0.5)",
        "(12345678901), (0.5), (0.1234567890123456789012345678901234567)",
        "('1'), (2), (2.5), ('3')",
        "(NULL), (NULL)",
    ],
)
def test_differential_types_that_depend_on_their_order(db: headrace.Database, values: str) -> None:
    for i in range(len(TYPES)):
        statement = f"INSERT INTO one{i} VALUES {values}"
        quick = outcome(db, statement)
        with mock.patch("headrace.database.inline_rows", lambda *_: None):
            assert quick == outcome(db, statement)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1", "INSERT INTO t SELECT 1", "INSERT INTO tVALUES (1)", "INSERT INTO t VALUES",
        "INSERT INTO t VALUES ()", "INSERT INTO t VALUES (1), (1, 2)", "INSERT INTO t VALUES (1) (2)",
        "INSERT INTO db.t VALUES (1)",
        "INSERT INTO t VALUES ('a' 'b')", "INSERT INTO t VALUES (x)", "INSERT INTO t VALUES ('\\'')",
    ],
)  # fmt: skip
def test_anything_else_is_left_to_the_parser(text: str) -> None:
    assert inline_rows(text, UTC) is None


def test_many_rows_keep_their_values_and_an_error_changes_nothing() -> None:
    rows = [f"({i}, 'n{i}', {i}.25, {'NULL' if i % 3 else 'TRUE'}, DATE '2024-01-02')" for i in range(3_000)]
    with headrace.connect(None) as db:
        db.sql("CREATE TABLE t (a INT, b STRING, c DECIMAL(8,2), d BOOLEAN, e DATE)")
        assert db.sql("INSERT INTO t VALUES " + ", ".join(rows)).message == "3,000 rows inserted into t"
        answer = db.sql("SELECT count(*), sum(a), max(b), sum(c), count(d), count(DISTINCT e) FROM t").rows()
        assert [str(v) for v in answer[0]] == ["3000", "4498500", "n999", "4499250.00", "1000", "1"]
        for bad, condition in (
            ("(2147483648, 'x', 1, TRUE, NULL)", "CAST_OVERFLOW_IN_TABLE_INSERT"),
            ("(1, 'x', 1000000, TRUE, NULL)", "NUMERIC_VALUE_OUT_OF_RANGE"),
            ("(1, 'x', 1, TRUE, 'no date')", "INVALID_INLINE_TABLE"),
            ("(1, 'x')", "INVALID_INLINE_TABLE"),
        ):
            with pytest.raises(HeadraceError) as error:
                db.sql("INSERT INTO t VALUES " + ", ".join([*rows[:5], bad]))
            assert error.value.condition == condition, error.value
        assert db.sql("SELECT count(*) FROM t").rows() == [(3_000,)]
