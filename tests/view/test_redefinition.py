"""CREATE OR REPLACE MATERIALIZED VIEW keeps the states that both definitions compute, and founds only the others."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_founding import elsewhere
from test_materialized import STATEMENT, TABLES, VIEWS, bag, run

import headrace
from headrace import Database
from headrace.errors import HeadraceError
from headrace.keep.founding import Founding
from headrace.plan.refs import TableRef
from headrace.table import query
from headrace.view.materialized import STANDING
from profiles import examples

SIZES = "(SELECT g, count(*) AS n FROM t GROUP BY g)"
FIRST = f"SELECT n, count(*) AS c FROM {SIZES} GROUP BY n"
OTHERS = {
    f"SELECT n, count(*) AS c FROM {SIZES} GROUP BY n HAVING count(*) > 1": ["s0", "s1"],
    f"SELECT n % 2 AS odd, sum(n) AS c FROM {SIZES} GROUP BY n % 2": ["s0"],
    f"SELECT t.id, s.n FROM t LEFT JOIN {SIZES} AS s ON s.g = t.g": ["s0"],
    "SELECT g, count(*) AS n FROM t WHERE v > 1 GROUP BY g": [],
    "SELECT g, count(*) AS n FROM u GROUP BY g": [],
}


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect(None, engine="native") as db:
        for name in "tu":
            db.sql(f"CREATE TABLE {name} (id INT PRIMARY KEY, g STRING, v INT)")
            db.sql(f"INSERT INTO {name} VALUES (1, 'x', 1), (2, 'x', 2), (3, 'y', 3), (4, NULL, 4)")
        db.sql(f"CREATE MATERIALIZED VIEW v AS {FIRST}")
        yield db


def taken_over(db: Database, text: str) -> list[str]:
    """The states that EXPLAIN says are there already."""
    lines = [row[0] for row in db.sql(f"EXPLAIN CREATE OR REPLACE MATERIALIZED VIEW v AS {text}").rows()]
    return [a.split()[1] for a, b in pairwise(lines) if "taken over" in b]


def held(db: Database, references: Iterable[int]) -> set[int]:
    """Those of the references by which the store holds something."""
    with db._runtime.store.read() as snapshot:
        return {ref for ref in references if snapshot.has(ref)}


@pytest.mark.parametrize("text", OTHERS)
def test_shared_states_stay(db: Database, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not founded again: of those no plan reads the base. Changes go on before, meanwhile and after."""
    shared = OTHERS[text]
    assert taken_over(db, text) == shared
    before = db.catalog.get("v").owns
    real, first = query.run, Founding._first
    read: list[bool] = []

    def counted(runtime: Any, snapshot: Any, plan: Any, *given: Any) -> Any:
        if isinstance(plan, query.Prepared) and threading.current_thread() is threading.main_thread():
            read.append(any(isinstance(leaf.ref, TableRef) for leaf in plan.scans))
        return real(runtime, snapshot, plan, *given)

    def among(self: Founding, *given: Any) -> Any:
        monkeypatch.setattr(query, "run", counted)
        found = first(self, *given)
        monkeypatch.setattr(query, "run", real)
        elsewhere(lambda: db.sql("INSERT INTO t VALUES (5, 'y', 5), (6, 'z', 6)"))
        elsewhere(lambda: db.sql("DELETE FROM t WHERE id = 1"))
        assert bag(db.sql("SELECT * FROM v").rows()) == bag(db.sql(FIRST).rows()), "the old one answers until then"
        return found

    monkeypatch.setattr(Founding, "_first", among)
    db.sql(f"CREATE OR REPLACE MATERIALIZED VIEW v AS {text}")
    after = db.catalog.get("v").owns
    assert [after[name] for name in shared] == [before[name] for name in shared]
    states = after.keys() - {STANDING}
    assert len(read) == len(states) - len(shared), "one plan for each state that is new"
    assert any(read) == (len(shared) == 0 or " JOIN " in text)
    for statement in ("UPDATE t SET g = 'z' WHERE id = 2", "INSERT INTO u VALUES (7, 'x', 7)", "DELETE FROM t"):
        assert bag(db.sql("SELECT * FROM v").rows()) == bag(db.sql(text).rows())
        db.sql(statement)
    assert bag(db.sql("SELECT * FROM v").rows()) == bag(db.sql(text).rows())
    assert held(db, after.values()) == set(after.values())
    assert held(db, before.values()) == {before[name] for name in shared}, "what nobody shares is gone"
    db.sql("DROP VIEW v")
    assert not held(db, after.values())


def test_what_fails_leaves_the_old_one(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    text = next(iter(OTHERS))

    def broken(self: Founding) -> None:
        raise HeadraceError("BROKEN", "here", hint="")

    monkeypatch.setattr(Founding, "finish", broken)
    with pytest.raises(HeadraceError, match="BROKEN"):
        db.sql(f"CREATE OR REPLACE MATERIALIZED VIEW v AS {text}")
    db.sql("INSERT INTO t VALUES (5, 'y', 5)")
    assert bag(db.sql("SELECT * FROM v").rows()) == bag(db.sql(FIRST).rows())


def test_an_old_one_that_goes_meanwhile(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Founding._first

    def among(self: Founding, *given: Any) -> Any:
        found = first(self, *given)
        elsewhere(lambda: db.sql("DROP VIEW v"))
        return found

    monkeypatch.setattr(Founding, "_first", among)
    with pytest.raises(HeadraceError) as error:
        db.sql(f"CREATE OR REPLACE MATERIALIZED VIEW v AS {next(iter(OTHERS))}")
    assert error.value.condition == "DEFINITION_CHANGED"
    monkeypatch.undo()
    db.sql(f"CREATE OR REPLACE MATERIALIZED VIEW v AS {FIRST}")
    assert bag(db.sql("SELECT * FROM v").rows()) == bag(db.sql(FIRST).rows())


QUERIES = [text for kind in ("groupings", "sets") for text in VIEWS[kind]]
SOME = st.lists(STATEMENT, max_size=3)


def test_oracle_views_defined_anew() -> None:
    """One query after the other under one name, with changes between and reopenings: always the newest query."""

    @settings(max_examples=examples(6))
    @given(st.lists(st.tuples(st.sampled_from(QUERIES), SOME, st.booleans()), min_size=2, max_size=4))
    def hold(steps: list[tuple[str, list[str], bool]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            db = headrace.connect(Path(folder) / "db", engine="native", durability="none")
            for name, columns in TABLES.items():
                db.sql(f"CREATE TABLE {name} ({columns})")
            db.sql("INSERT INTO a VALUES (1, 'x', 2, 0.50), (2, NULL, 3, 1.00), (3, 'y', NULL, NULL)")
            for text, statements, reopen in steps:
                names = ", ".join(f"c{i}" for i in range(len(db.sql(text).arrow().column_names)))
                db.sql(f"CREATE OR REPLACE MATERIALIZED VIEW v ({names}) AS {text}")
                for statement in ("", *statements):
                    if statement:
                        run(db, statement)
                    assert bag(db.sql("SELECT * FROM v").rows()) == bag(db.sql(text).rows()), (text, steps)
                if reopen:
                    db.close()
                    db = headrace.connect(Path(folder) / "db", engine="native", durability="none")
            db.close()

    hold()
