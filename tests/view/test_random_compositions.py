"""Random views over random histories of their tables: after every statement a view is its query."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import headrace
from compositions import STEP, TABLES, definition, definitions, statements
from headrace import Database
from headrace.errors import HeadraceError
from profiles import examples

BROKEN = ("PRIMARY_KEY_VIOLATION", "DUPLICATE_KEY", "MERGE_CARDINALITY_VIOLATION", "NOT_IN_BATCH")
"""What a statement may fail with: then it has changed nothing."""


def bag(rows: Sequence[tuple[Any, ...]]) -> Counter[str]:
    """Rows as a multiset; doubles to nine digits, zero without a sign."""
    told = [tuple(f"{float(f'{v:.9g}') + 0.0}" if isinstance(v, float) else v for v in row) for row in rows]
    return Counter(map(repr, told))


def make(db: Database, name: str, query: str) -> bool:
    """Define a view; False if it is refused by name."""
    names = ", ".join(f"c{i}" for i in range(len(db.sql(query).arrow().column_names)))
    try:
        db.sql(f"CREATE MATERIALIZED VIEW {name} ({names}) AS {query}")
    except HeadraceError as error:
        assert error.condition == "NOT_YET_SUPPORTED", error
        return False
    return True


def same(db: Database, views: dict[str, str], said: object) -> None:
    for name, query in views.items():
        found, wanted = bag(db.sql(f"SELECT * FROM {name}").rows()), bag(db.sql(query).rows())
        assert found == wanted, f"{query}\nafter {said}: {found - wanted} too many, {wanted - found} missing"


def run(db: Database, step: Any) -> None:
    try:
        if isinstance(step, tuple):
            with db.batch():
                for statement in step:
                    db.sql(statement)
        else:
            db.sql(step)
    except HeadraceError as error:
        assert error.condition in BROKEN, (step, error)


def follow(engine: str, queries: list[str], before: list[str], history: list[Any], late: int) -> bool:
    """Views founded at the beginning, the third one later, equal their queries after each step; False if all are
    refused."""
    with tempfile.TemporaryDirectory() as folder:
        db = headrace.connect(Path(folder) / "db", engine=engine, durability="none")
        try:
            for table in TABLES:
                db.sql(definition(table))
            for statement in before:
                run(db, statement)
            views: dict[str, str] = {}

            def found(number: int) -> None:
                if make(db, f"v{number}", queries[number]):
                    views[f"v{number}"] = queries[number]
                    same(db, views, "founding")

            for number in range(min(len(queries), 2)):
                found(number)
            for number, step in enumerate(history):
                if number == late and len(queries) > 2:
                    found(2)
                if step == "reopen":
                    db.close()
                    db = headrace.connect(Path(folder) / "db", engine=engine, durability="none")
                else:
                    run(db, step)
                same(db, views, step)
            return bool(views)
        finally:
            db.close()


@settings(max_examples=examples(25))
@given(
    st.lists(definitions(), min_size=1, max_size=3),
    st.lists(statements(), max_size=4),
    st.lists(STEP, min_size=1, max_size=6),
    st.integers(0, 3),
)
def test_oracle_random_views_follow_random_changes(
    queries: list[str], before: list[str], history: list[Any], late: int
) -> None:
    assume(follow("native", queries, before, history, late))


FOUND = {
    "one row over nothing, below a state": (
        "SELECT x.c0 FROM (SELECT count(*) AS c0 FROM a) AS x JOIN (SELECT sum(v) AS c1 FROM c) AS y ON x.c0 >= 0",
        ["INSERT INTO a VALUES (1, 'x', 1, 1.00)", "DELETE FROM a", "INSERT INTO c VALUES ('x', 1)"],
    ),
    "a join of a join with itself": (
        "WITH q AS (SELECT a.id, c.v FROM a JOIN c ON a.g = c.g) SELECT x.id, y.v FROM q AS x FULL JOIN q AS y "
        "ON x.id = y.v",
        ["INSERT INTO a VALUES (1, 'x', 1, 1.00)", "INSERT INTO c VALUES ('x', 1), ('x', 2)", "DELETE FROM a"],
    ),
}
"""What random views have found, and a history that showed it."""


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_by_chance(name: str) -> None:
    query, history = FOUND[name]
    assert follow("native", [query], [], history, 0)
