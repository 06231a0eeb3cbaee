"""db.get and db.get_many: the rows that a filter of the whole relation has."""

from __future__ import annotations

import datetime as dt
import math
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace import Database
from headrace.errors import HeadraceError
from headrace.keep.resident import Resident
from profiles import examples

VIEWS = {
    "sums": "SELECT g, count(*) AS n, k, sum(v) AS s, sum(m) AS sm FROM t GROUP BY k, g",
    "least": "SELECT k, min(v) AS low, count(DISTINCT g) AS c, avg(m) AS a FROM t GROUP BY k",
    "several": "SELECT k + 1 AS next, sum(v) AS s FROM t GROUP BY k + 1 HAVING count(*) > 1",
    "pairs": "SELECT DISTINCT k, g FROM t",
    "nested": "SELECT n, count(*) AS c FROM (SELECT k, count(*) AS n FROM t GROUP BY k) GROUP BY n",
}
KEY = {"sums": ("g", "k"), "least": ("k",), "several": ("next",), "pairs": ("k", "g"), "nested": ("n",), "t": ("id",)}


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect(engine="native") as db:
        db.sql("CREATE TABLE t (id INT PRIMARY KEY, k INT, g STRING, v BIGINT, m DECIMAL(10,2))")
        for name, query in VIEWS.items():
            db.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        yield db


def expected(db: Database, name: str, key: tuple[Any, ...]) -> dict[str, Any] | None:
    """What filtering all rows finds."""
    found = db.sql(f"SELECT * FROM {name}").arrow().to_pylist()
    rows = [row for row in found if tuple(row[k] for k in KEY[name]) == key]
    assert len(rows) <= 1
    return rows[0] if rows else None


K = st.one_of(st.none(), st.integers(0, 3))
G = st.one_of(st.none(), st.sampled_from(["a", "b", ""]))
V = st.one_of(st.none(), st.integers(-5, 5))
M = st.one_of(st.none(), st.sampled_from([Decimal("0.25"), Decimal("-3.50")]))
CHANGE = st.one_of(
    st.lists(st.tuples(K, G, V, M), min_size=1, max_size=6),
    st.integers(0, 8).map(lambda n: f"DELETE FROM t WHERE id % 9 = {n}"),
    st.integers(0, 3).map(lambda n: f"UPDATE t SET v = v + 1, k = {n} WHERE id % 4 = {n}"),
    st.just("DELETE FROM t"),
)


def test_oracle_rows_of_keys_are_those_of_the_filtered_relation(db: Database) -> None:
    numbers = iter(range(1_000_000))

    @settings(max_examples=examples(15))
    @given(st.lists(CHANGE, max_size=4), st.data())
    def hold(changes: list[Any], data: st.DataObject) -> None:
        db.sql("DELETE FROM t")
        for change in changes:
            db.sql(change) if isinstance(change, str) else db.insert("t", [(next(numbers), *row) for row in change])
        parts = {"g": G, "k": K, "next": K, "n": st.integers(0, 4), "id": st.integers(0, 200)}
        for name, key in KEY.items():
            keys = data.draw(st.lists(st.tuples(*(parts[k] for k in key)), max_size=5))
            wanted = [expected(db, name, k) for k in keys] if name != "t" or None not in keys else []
            assert db.get_many(name, keys) == wanted
            assert [db.get(name, k) for k in keys] == wanted
            assert [db.get(name, dict(zip(key, k, strict=True))) for k in keys] == wanted
            assert len(key) > 1 or db.get_many(name, [k for (k,) in keys]) == wanted

    hold()


@pytest.mark.parametrize(
    ("type", "values"),
    [
        ("BIGINT", [0, 2**63 - 1, -(2**63)]),
        ("STRING", ["", "ü", "it's"]),
        ("BOOLEAN", [True, False]),
        ("DATE", [dt.date(2020, 2, 29)]),
        ("TIMESTAMP", [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]),
        ("DECIMAL(5,2)", [Decimal("1.50"), Decimal("-0.01")]),
        ("DOUBLE", [1.5, 0.0, math.inf]),
        ("BINARY", [b"", b"\x00\xff"]),
        ("ARRAY<INT>", [[], [1, None]]),
    ],
)
def test_keys_of_all_types(db: Database, type: str, values: list[Any]) -> None:
    db.sql(f"CREATE TABLE typed (k {type}, v INT)")
    db.sql("CREATE MATERIALIZED VIEW of_typed AS SELECT k, sum(v) AS s FROM typed GROUP BY k")
    for number, value in enumerate([*values, None]):
        assert db.get("of_typed", (value,)) is None
        db.insert("typed", [(value, number)])
        assert db.get("of_typed", (value,)) == {"k": value, "s": number}
    assert [row and row["s"] for row in db.get_many("of_typed", [(v,) for v in [*values, None]])] == [
        *range(len(values) + 1)
    ]


def test_a_row_of_plain_columns_is_looked_up_in_memory(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.insert("t", [(1, 1, "a", 5, Decimal("1.50")), (2, 1, "a", None, None), (3, 1, "b", None, None)])
    assert db.get("sums", ("a", 1)) == {"g": "a", "n": 2, "k": 1, "s": 5, "sm": Decimal("1.50")}
    found: list[int] = []
    find = Resident.find
    monkeypatch.setattr(Resident, "find", lambda self, key: found.append(1) or find(self, key))
    monkeypatch.setattr(db._runtime.store, "read", lambda: pytest.fail("a snapshot was taken"))
    assert db.get("sums", ("b", 1)) == {"g": "b", "n": 1, "k": 1, "s": None, "sm": None}
    assert db.get("sums", ("c", None)) is None
    assert len(found) == 2


def test_a_batch_reads_what_it_changed(db: Database) -> None:
    with db.batch():
        db.insert("t", [(1, 1, "a", 5, None)])
        assert db.get("sums", ("a", 1)) == {"g": "a", "n": 1, "k": 1, "s": 5, "sm": None}
        assert db.get("t", 1) == {"id": 1, "k": 1, "g": "a", "v": 5, "m": None}
        assert db.get_many("least", [1, 2]) == [{"k": 1, "low": 5, "c": 1, "a": None}, None]


def test_names_follow_the_catalog(db: Database) -> None:
    db.insert("t", [(1, 1, "a", 5, None)])
    assert db.get("T", 1) == db.get("t", {"ID": 1})
    db.sql("ALTER TABLE t RENAME COLUMN v TO w")
    assert db.get("t", 1) == {"id": 1, "k": 1, "g": "a", "w": 5, "m": None}
    db.sql("DROP MATERIALIZED VIEW sums")
    with pytest.raises(HeadraceError, match="TABLE_OR_VIEW_NOT_FOUND"):
        db.get("sums", ("a", 1))


def test_continuous_views_have_keys_too(db: Database) -> None:
    db.sql("CREATE STREAM s (k INT, x DOUBLE)")
    db.sql("CREATE VIEW sensors AS SELECT k, count(*) AS n, avg(x) AS a FROM s GROUP BY k")
    db.insert("s", [(1, 2.0), (1, 4.0), (2, 1.0)])
    assert db.get_many("sensors", [1, 3, 2]) == [{"k": 1, "n": 2, "a": 3.0}, None, {"k": 2, "n": 1, "a": 1.0}]


@pytest.mark.parametrize(
    ("ask", "condition", "said"),
    [
        (lambda db: db.get("sums", "a"), "INVALID_KEY", r"\(g, k\), not one value.*tuple of g, k"),
        (lambda db: db.get("sums", ("a", 1, 2)), "INVALID_KEY", "not 3 values"),
        (lambda db: db.get("sums", {"g": "a"}), "INVALID_KEY", "not g"),
        (lambda db: db.get("sums", ("a", "one")), "INSERT_TYPE_MISMATCH", "column k is int.*in a key of sums"),
        (lambda db: db.get("sums", ("a", 2**40)), "INSERT_BAD_VALUE", "does not fit in int"),
        (lambda db: db.get_many("least", 7), "INVALID_KEY", "no list of keys"),
        (lambda db: db.get_many("least", "7"), "INVALID_KEY", "no list of keys"),
        (lambda db: db.get("rows", 1), "RELATION_WITHOUT_KEY", "SELECT all that it groups by"),
        (lambda db: db.get("hidden", 1), "RELATION_WITHOUT_KEY", "SELECT all that it groups by"),
        (lambda db: db.get("total", 1), "RELATION_WITHOUT_KEY", "SELECT"),
        (lambda db: db.get("plain", 1), "RELATION_WITHOUT_KEY", "keeps nothing"),
        (lambda db: db.get("keyless", 1), "RELATION_WITHOUT_KEY", "no primary key"),
        (lambda db: db.get("nobody", 1), "TABLE_OR_VIEW_NOT_FOUND", "nobody"),
    ],
)
def test_what_cannot_be_read_by_key_says_why(
    db: Database, ask: Callable[[Database], Any], condition: str, said: str
) -> None:
    db.sql("CREATE MATERIALIZED VIEW rows AS SELECT k, v FROM t")
    db.sql("CREATE MATERIALIZED VIEW hidden AS SELECT k, count(*) AS n FROM t GROUP BY k, g")
    db.sql("CREATE MATERIALIZED VIEW total AS SELECT sum(v) AS s FROM t")
    db.sql("CREATE VIEW plain AS SELECT k, count(*) AS n FROM t GROUP BY k")
    db.sql("CREATE TABLE keyless (a INT)")
    with pytest.raises(HeadraceError, match=said) as error:
        ask(db)
    assert error.value.condition == condition


def test_keys_are_read_while_rows_come(db: Database) -> None:
    """Each row is one that was, and a reader never goes back."""
    db.insert("t", [(i, i % 3, "a", 1, None) for i in range(300)])
    done = threading.Event()
    failures: list[BaseException] = []

    def change() -> None:
        try:
            for i in range(60):
                db.insert("t", [(1_000 + 3 * i + j, j, "a", 1, None) for j in range(3)])
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    writer = threading.Thread(target=change)
    writer.start()
    seen = 0
    while not done.is_set():
        row, many = db.get("sums", ("a", 1)), db.get_many("least", [0, 1, 2])
        assert row is not None and row["n"] == row["s"] >= seen
        assert all(m is not None and m["low"] == 1 for m in many)
        seen = row["n"]
    writer.join()
    assert not failures
    last = db.get("sums", ("a", 1))
    assert last is not None and last["n"] == 160


def test_views_that_are_not_grouped_have_the_key_of_their_tables(db: Database) -> None:
    db.sql("CREATE TABLE name (k INT PRIMARY KEY, said STRING)")
    db.insert("name", [(1, "one"), (2, "two")])
    db.insert("t", [(1, 1, "a", 5, None), (2, 2, "b", 6, None), (3, 9, "b", 7, None)])
    db.sql("CREATE MATERIALIZED VIEW projected AS SELECT v + 1 AS w, id FROM t WHERE g = 'b'")
    db.sql("CREATE MATERIALIZED VIEW joined AS SELECT t.id, said, v FROM t LEFT JOIN name ON t.k = name.k")
    db.sql("CREATE MATERIALIZED VIEW many AS SELECT id, n.said FROM t JOIN name AS n ON t.k < n.k")
    assert db.get_many("projected", [2, 1]) == [{"w": 7, "id": 2}, None]
    assert db.get_many("joined", [1, 3]) == [{"id": 1, "said": "one", "v": 5}, {"id": 3, "said": None, "v": 7}]
    db.sql("UPDATE name SET said = upper(said)")
    assert db.get("joined", 1) == {"id": 1, "said": "ONE", "v": 5}
    with pytest.raises(HeadraceError, match="RELATION_WITHOUT_KEY"):
        db.get("many", 1)


# Ranges


def order(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Keys as they are ordered: NULL first."""
    return tuple((part is not None, part) for part in row)


PART = {"k": st.one_of(st.none(), st.integers(0, 3)), "g": st.one_of(st.none(), st.sampled_from(["a", "b"]))}
BOUND = st.one_of(
    st.none(),
    st.tuples(PART["g"]),
    st.tuples(PART["g"], PART["k"]),
)


def test_oracle_ranges_are_slices_of_the_rows_in_order(db: Database) -> None:
    db.insert("t", [(i, i % 5 or None, [None, "a", "b", "c"][i // 5 % 4], i, None) for i in range(40)])
    whole = sorted(db.sql("SELECT g, k, n FROM sums").rows(), key=lambda r: order(r[:2]))

    @settings(max_examples=examples(40))
    @given(BOUND, BOUND, st.one_of(st.none(), st.integers(0, 4)), st.booleans())
    def hold(low: Any, high: Any, limit: int | None, reverse: bool) -> None:
        wanted = [
            row
            for row in whole
            if (low is None or order(row[: len(low)]) >= order(low))
            and (high is None or order(row[: len(high)]) <= order(high))
        ]
        wanted = list(reversed(wanted)) if reverse else wanted
        found = db.get_range("sums", low, high, limit=limit, reverse=reverse).arrow().select(["g", "k", "n"])
        assert [tuple(row.values()) for row in found.to_pylist()] == wanted[:limit]

    hold()


def test_ranges_of_a_table_and_of_one_part(db: Database) -> None:
    db.insert("t", [(i, i % 5, "a", i, None) for i in range(20)])
    assert db.get_range("t", 3, 5).arrow().column("id").to_pylist() == [3, 4, 5]
    assert db.get_range("t", low=18).arrow().column("id").to_pylist() == [18, 19]
    assert db.get_range("sums", {"g": "a"}, {"K": 1, "G": "a"}).arrow().column("k").to_pylist() == [0, 1]
    with pytest.raises(HeadraceError, match="does not begin with k") as error:
        db.get_range("sums", {"k": 1})
    assert error.value.condition == "INVALID_KEY"
    with pytest.raises(HeadraceError, match="INVALID_LIMIT"):
        db.get_range("sums", limit=-1)


def test_rows_of_a_version(db: Database) -> None:
    db.sql(
        "CREATE MATERIALIZED VIEW kept WITH (keep_changes = '1 day') AS SELECT k, g, sum(v) AS s FROM t GROUP BY k, g"
    )
    db.insert("t", [(i, i % 2, "ab"[i // 2 % 2], i, None) for i in range(8)])
    first = db.sql("SELECT max(epoch) FROM headrace.epochs").rows()[0][0]
    db.sql("UPDATE t SET v = v + 10 WHERE k = 1")
    db.sql("DELETE FROM t WHERE k = 0")
    assert db.get("kept", (0, "a"), version=first) == {"k": 0, "g": "a", "s": 4}
    assert db.get("kept", (0, "a")) is None
    assert db.get_many("kept", [(1, "b"), (7, None)], version=first + 1) == [{"k": 1, "g": "b", "s": 30}, None]
    assert db.get_range("kept", 1, 1, version=first).rows() == [(1, "a", 6), (1, "b", 10)]
    assert db.get_range("kept").rows() == [(1, "a", 26), (1, "b", 30)]
    for ask, condition in ((1, "VERSION_NOT_KEPT"), (first + 9, "VERSION_NOT_YET"), ("x", "INVALID_VERSION")):
        with pytest.raises(HeadraceError, match=condition):
            db.get("kept", (1, "a"), version=ask)  # type: ignore[arg-type]
    with pytest.raises(HeadraceError, match=r"keep_changes = '1 day'"):
        db.get("sums", ("a", 1), version=first)


def test_a_read_in_memory_waits_for_no_sync(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees all that was acknowledged; what is committed and not yet durable it neither shows nor waits for."""
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("CREATE TABLE t (k INT, v INT)")
        db.sql("CREATE MATERIALIZED VIEW m AS SELECT k, sum(v) AS s FROM t GROUP BY k")
        db.insert("t", [(1, 1)])
        assert db.get("m", 1) == {"k": 1, "s": 1}
        writer = db._runtime.store._writer
        secure, committed, go_on = writer._secure, threading.Event(), threading.Event()

        def slowly() -> Any:
            committed.set()
            assert go_on.wait(60)
            return secure()

        monkeypatch.setattr(writer, "_secure", slowly)
        inserting = threading.Thread(target=db.insert, args=("t", [(1, 10)]))
        inserting.start()
        try:
            assert committed.wait(60)
            assert db.get("m", 1) == {"k": 1, "s": 1}
        finally:
            go_on.set()
            inserting.join()
        assert db.get("m", 1) == {"k": 1, "s": 11}


def test_what_a_key_of_whole_numbers_and_texts_may_be(db: Database) -> None:
    """They take a shorter way to Arrow, which must not take more than the long one."""
    db.insert("t", [(1, 1, "a", 5, None)])
    row = {"g": "a", "n": 1, "k": 1, "s": 5, "sm": None}
    for key in (("a", 1), ("a", Decimal(1)), ("a", 1.0), {"g": "a", "k": 1}):
        assert db.get("sums", key) == row
    for wrong in (("a", True), (1, 1), ("a", "1"), ("\ud800", 1), ("a", 2**31), ("a", 2**70)):
        with pytest.raises(HeadraceError):
            db.get("sums", wrong)
