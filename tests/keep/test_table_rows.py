"""Tables joined above the grouping: their rows are kept in memory, and never stale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace
from headrace.database import Database

PEOPLE = 70_000  # more than a tail holds: they are in a segment


def people(first: int, last: int) -> pa.Table:
    ids = np.arange(first, last, dtype=np.int32)
    return pa.table({"id": ids, "city": pa.array(ids % 7), "name": [f"n{i}" for i in ids]})


@pytest.fixture
def db() -> Any:
    with headrace.connect(engine="native") as opened:
        _fill(opened)
        yield opened


def _fill(db: Database) -> None:
    db.sql("CREATE TABLE people (id INT, city INT, name STRING)")
    db.insert("people", people(0, PEOPLE))
    db.sql("CREATE STREAM s (id INT, x INT)")
    grouped = "(SELECT id, sum(x) AS t FROM s GROUP BY id) g JOIN people p ON g.id = p.id"
    db.sql(f"CREATE VIEW by_city AS SELECT city, count(*) AS n, sum(t) AS t FROM {grouped} GROUP BY city")
    db.sql(f"CREATE VIEW by_name AS SELECT name, t FROM {grouped}")


def held(db: Database) -> int:
    return db.keeper.answers._tables.bytes


def test_held_rows_follow_the_table(db: Database) -> None:
    seen: dict[int, int] = {}
    total = PEOPLE
    for turn in range(8):
        db.insert("s", [(turn % 3 + total - 2, 10)])  # one person known, or one who comes later
        seen[turn % 3 + total - 2] = seen.get(turn % 3 + total - 2, 0) + 10
        if turn in (4, 6):  # in the tail; then so many that the tail becomes a segment
            more = 3 if turn == 4 else PEOPLE
            db.insert("people", people(total, total + more))
            total += more
        known = {i: t for i, t in seen.items() if i < total}
        cities: dict[int, tuple[int, int]] = {}
        for i, t in known.items():
            n, sum_ = cities.get(i % 7, (0, 0))
            cities[i % 7] = (n + 1, sum_ + t)
        assert sorted(db.sql("SELECT * FROM by_city").rows()) == sorted((c, n, t) for c, (n, t) in cities.items())
        assert (held(db) > 0) == (turn not in (0, 4, 6)), turn
        assert sorted(db.sql("SELECT * FROM by_name").rows()) == sorted((f"n{i}", t) for i, t in known.items())
        assert held(db) > 0


def test_a_table_made_anew_is_another_table(db: Database) -> None:
    for _ in range(3):
        db.insert("s", [(1, 1)])
        assert db.sql("SELECT * FROM by_name").rows()[0][0] == "n1"
    assert held(db) > 0
    db.sql("DROP TABLE people CASCADE")
    assert held(db) == 0
    db.sql("CREATE TABLE people (id INT, city INT, name STRING)")
    db.insert("people", [(1, 1, "other")])
    db.sql("CREATE VIEW by_name AS SELECT name, t FROM (SELECT id, sum(x) AS t FROM s GROUP BY id) g "
           "JOIN people p ON g.id = p.id")  # fmt: skip
    for turn in range(3):
        db.insert("s", [(1, 1)])
        assert db.sql("SELECT * FROM by_name").rows() == [("other", turn + 1)]


def test_memory_is_for_states_first() -> None:
    with headrace.connect(engine="native", state_memory=200_000) as db:
        _fill(db)
        for turn in range(3):
            db.insert("s", [(1, 1)])
            assert db.sql("SELECT * FROM by_city").rows() == [(1, 1, turn + 1)]
        assert held(db) == 0


def kept_as(db: Database) -> set[pa.DataType]:
    """The stored types of the sums of view v."""
    view = db.keeper.get("v")
    with db.runtime.store.read() as snapshot:
        return {
            snapshot.schema(view.by_name[s.name].ref).field(c.name).type
            for s in view.plan.states
            for c, a in s.partials
            if a.fn == "sum"
        }


def test_states_of_an_earlier_release_are_kept_in_todays_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.plan import aggregates

    with monkeypatch.context() as earlier:
        earlier.setattr(
            aggregates, "_sum", lambda agg: aggregates.replace(agg, type=aggregates.decimal(38, 0), fn="sum")
        )
        with headrace.connect(tmp_path / "db", engine="native") as db:
            db.sql("CREATE STREAM s (k STRING, x INT)")
            db.sql("CREATE VIEW v AS SELECT k, sum(x) AS t, avg(x) AS a FROM s GROUP BY k")
            db.insert("s", [("a", 2147483647), ("a", 1), ("b", None)])
            assert kept_as(db) == {pa.decimal128(38, 0)}
    for turn in range(2):
        with headrace.connect(tmp_path / "db", engine="native") as db:
            assert sorted(db.sql("SELECT k, t FROM v").rows()) == [("a", 2**31 + 2 * turn), ("b", None)]
            db.insert("s", [("a", 2)])
            assert sorted(db.sql("SELECT k, t FROM v").rows()) == [("a", 2**31 + 2 * turn + 2), ("b", None)]
            assert kept_as(db) == {pa.int64()}
