"""What a change costs the views that follow its table: nothing is planned, decoded or looked up twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace
from headrace import Database
from headrace.engine.worker import Worker
from headrace.keep.maintenance import Maintenance
from headrace.table import keys
from headrace.table import query as table_query

JOINED = "SELECT o.day, count(*) AS n, sum(l.price) AS s FROM line l JOIN orders o ON l.ok = o.ok GROUP BY o.day"
PLAIN = "SELECT note, count(*) AS n, min(price) AS least FROM line GROUP BY note"


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect(None, engine="native") as db:
        db.sql("CREATE TABLE orders (ok BIGINT PRIMARY KEY, day INT, note STRING)")
        db.sql("CREATE TABLE line (ok BIGINT, n INT, price INT, note STRING, PRIMARY KEY (ok, n))")
        ok = np.random.default_rng(3).permutation(80_000)
        db.insert("orders", {"ok": ok, "day": (ok % 50).astype(np.int32), "note": pa.array(ok % 7).cast(pa.string())})
        line = {"ok": np.repeat(ok, 2), "n": np.tile(np.arange(2, dtype=np.int32), len(ok))}
        db.insert("line", {**line, "price": (line["ok"] % 90).astype(np.int32), "note": ["x"] * len(line["ok"])})
        yield db


def same(db: Database, query: str) -> None:
    found = db.sql("SELECT * FROM v").rows()
    assert sorted(found) == sorted(db.sql(query).rows())
    assert found


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[object]:
    """What a method is called with, from now on."""
    calls: list[object] = []
    before = getattr(owner, name)

    def call(*args: Any, **named: Any) -> Any:
        calls.append(args)
        return before(*args, **named)

    monkeypatch.setattr(owner, name, call)
    return calls


def test_a_change_is_planned_once(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.sql(f"CREATE MATERIALIZED VIEW v AS {JOINED}")
    planned = counted(monkeypatch, Worker, "standing")
    for turn in range(5):
        for text in ("UPDATE line SET price = price + 1 WHERE ok = {}", "DELETE FROM orders WHERE ok = {}"):
            db.sql(text.format(turn + 30))
        same(db, JOINED)
        if turn == 0:
            first = len(planned)
            assert first
    assert len(planned) == first


@pytest.mark.parametrize(
    "statement",
    ["UPDATE line SET note = 'y' WHERE ok < 500", "UPDATE orders SET note = 'z'", "UPDATE line SET n = n + 7"],
)
def test_a_view_sees_nothing_of_columns_that_it_does_not_read(
    db: Database, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    db.sql(f"CREATE MATERIALIZED VIEW v AS {JOINED}")
    steps = counted(monkeypatch, Maintenance, "_step")
    db.sql(statement)
    assert not steps
    same(db, JOINED)
    db.sql("UPDATE line SET price = 5, note = 'y' WHERE ok = 7")
    assert steps
    same(db, JOINED)


def test_rows_that_change_places_and_zeros_of_either_sign_are_changes(db: Database) -> None:
    db.sql("CREATE TABLE t (a DOUBLE, b INT)")
    db.sql("INSERT INTO t VALUES (0D, 1), (1D, 2)")
    query = "SELECT CAST(a AS STRING) AS t, count(*) AS n FROM t GROUP BY ALL"
    db.sql(f"CREATE MATERIALIZED VIEW v AS {query}")
    for statement in (
        "UPDATE t SET a = -a",
        "UPDATE t SET a = 1 - b WHERE b = 2",
        "UPDATE t SET a = CAST(b AS DOUBLE)",
    ):
        db.sql(statement)
        same(db, query)


def test_columns_that_rows_are_taken_of_are_decoded_once(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_SKIPPED", -1_000)  # as if no row group were worth decoding for its few rows
    db.sql(f"CREATE MATERIALIZED VIEW v AS {JOINED}")
    columns, loads = db._runtime.columns, []
    for turn in range(3):
        db.sql(f"UPDATE orders SET day = day + 1 WHERE ok % 1000 = {turn}")
        same(db, JOINED)
        loads.append(columns.loads)
    assert loads[0] > 0
    assert loads[0] == loads[-1]
    assert columns.bytes > 0
    db.sql("ALTER TABLE line ADD COLUMN more INT DEFAULT 4")
    db.sql("UPDATE orders SET day = 1 WHERE ok % 1000 = 9")
    same(db, JOINED)
    db.sql("DROP VIEW v")
    db.sql("DROP TABLE line")
    db.sql("DROP TABLE orders")
    assert columns.bytes == 0


def test_columns_go_when_there_is_no_room(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_SKIPPED", -1_000)
    db.sql(f"CREATE MATERIALIZED VIEW v AS {JOINED}")
    monkeypatch.setattr(db._runtime.columns, "room", lambda: 1_000)
    db.sql("UPDATE orders SET day = day + 1 WHERE ok % 1000 = 3")
    assert db._runtime.columns.bytes == 0
    same(db, JOINED)


def test_a_small_table_beside_is_not_read_again(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.sql("CREATE TABLE days (day INT PRIMARY KEY, called STRING)")
    db.insert("days", {"day": np.arange(50, dtype=np.int32), "called": [f"day {n % 7}" for n in range(50)]})
    query = "SELECT d.called, count(*) AS n FROM orders o JOIN days d ON o.day = d.day GROUP BY d.called"
    db.sql(f"CREATE MATERIALIZED VIEW v AS {query}")
    for turn in range(3):
        db.sql(f"UPDATE orders SET day = (day + 1) % 50 WHERE ok < {100 + turn}")
        same(db, query)
        db.sql(f"UPDATE days SET called = 'day 3' WHERE day = {turn}")
        same(db, query)
    with db.batch():
        db.sql("UPDATE days SET called = 'day 9' WHERE day = 20")
        db.sql("UPDATE orders SET day = 20 WHERE ok < 50")
        same(db, query)
        db.sql("UPDATE days SET called = 'day 1' WHERE day = 20")
        db.sql("UPDATE orders SET day = 20 WHERE ok < 70")
        same(db, query)
    same(db, query)
    db.sql("UPDATE orders SET day = 21 WHERE ok < 70")
    planned, steps = counted(monkeypatch, table_query, "_planned"), counted(monkeypatch, Maintenance, "_step")
    db.sql("UPDATE orders SET day = 22 WHERE ok < 70")
    assert steps
    assert len(planned) == 1, "the statement itself"
    same(db, query)


def test_columns_are_decoded_whole_only_for_what_comes_again(db: Database) -> None:
    """A MERGE meets rows all over a table once: that its columns are held would cost it more than a scan."""
    rows = 200_000
    db.sql("CREATE TABLE once (id INT PRIMARY KEY, a INT, b INT)")
    numbers = np.arange(rows, dtype=np.int32)
    db.insert("once", pa.table({"id": numbers, "a": numbers, "b": numbers}))
    db.sql("SELECT * FROM once WHERE id = 7")
    loads = db._runtime.columns.loads
    db.sql("CREATE TABLE s (id INT, a INT)")
    db.insert("s", pa.table({"id": numbers[::40], "a": np.ones(rows // 40, np.int32)}))
    db.sql("MERGE INTO once AS t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET a = s.a")
    assert db.sql("SELECT count(*) FROM once WHERE a = 1 AND id <> 1").rows() == [(5_000,)]
    assert db._runtime.columns.loads == loads
