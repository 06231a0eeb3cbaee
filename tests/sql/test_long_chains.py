"""A statement may be long: thousands of terms beside each other are no thousand levels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import headrace
from headrace.engine.native_sql import NotNative, native
from headrace.errors import SqlError
from headrace.plan.exprs import Call, Column, Literal, all_of, any_of, conjuncts
from headrace.types import BOOLEAN, INT

if TYPE_CHECKING:
    from headrace.database import Database

TERMS = 5_000


@pytest.fixture(scope="module")
def db() -> Iterator[Database]:
    with headrace.connect(None) as db:
        db.sql("CREATE TABLE t (k INT, v STRING)")
        db.sql("INSERT INTO t VALUES (1, 'x'), (4999, 'y'), (6000, NULL)")
        yield db


def joined(word: str, term: str) -> str:
    return f" {word} ".join(term.format(i) for i in range(TERMS))


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        (f"SELECT k FROM t WHERE {joined('OR', 'k = {}')}", [(1,), (4999,)]),
        (f"SELECT k FROM t WHERE {joined('AND', 'k <> {}')}", [(6000,)]),
        (f"SELECT k FROM t GROUP BY k HAVING {joined('OR', 'k = {}')}", [(1,), (4999,)]),
        (f"SELECT {joined('AND', 'k <> {}')} AS x FROM t", [(False,), (False,), (True,)]),
        (f"SELECT k FROM t WHERE k IN ({joined(',', '{}')})", [(1,), (4999,)]),
        (f"SELECT CASE {joined('', 'WHEN k = {0} THEN {0}')} END AS x FROM t", [(1,), (4999,), (None,)]),
        (f"SELECT CASE k {joined('', 'WHEN {0} THEN {0}')} END AS x FROM t", [(1,), (4999,), (None,)]),
    ],
    ids=["or", "and", "having", "and_selected", "in", "case", "case_of"],
)
def test_many_terms_are_not_deep(db: Database, query: str, rows: list[tuple[object, ...]]) -> None:
    assert "Spark SQL" not in str(db.sql(f"EXPLAIN {query}"))
    assert sorted(db.sql(query).rows(), key=repr) == sorted(rows, key=repr)


@pytest.mark.parametrize("operator", ["+", "||", "*", "UNION ALL SELECT"])
def test_where_spark_reads_no_more_neither_do_we(db: Database, operator: str) -> None:
    with pytest.raises(SqlError) as error:
        db.sql(f"SELECT {joined(operator, '1')}")
    assert error.value.condition == "FAILED_TO_PARSE_TOO_COMPLEX"


def test_parts_keep_their_order() -> None:
    parts = [Call(BOOLEAN, "=", (Column(INT, 1, "k"), Literal(INT, i))) for i in range(7)]
    assert conjuncts(all_of([*parts])) == parts
    assert native(any_of([*parts]), lambda c: c.name).count(" OR ") == 6


def test_a_long_chain_that_may_raise_is_left_to_spark() -> None:
    """Each part of it nests in the one before, to keep Spark's order."""
    parts = [
        Call(BOOLEAN, "=", (Call(INT, "div", (Literal(INT, i), Column(INT, 1, "k"))), Literal(INT, 1)))
        for i in range(201)
    ]
    assert "CASE" in native(all_of(parts[:200]), lambda c: c.name)
    with pytest.raises(NotNative, match="long chain of AND"):
        native(all_of(parts), lambda c: c.name)
