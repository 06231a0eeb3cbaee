"""The primary key as an index: the same rows as by a scan, whatever happened to the table, and without one."""

from __future__ import annotations

import datetime as dt
import math
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace import Database
from headrace.base import parquet_files
from headrace.catalog import Table
from headrace.engine import key_index
from headrace.errors import DataError, HeadraceError
from headrace.table import keys, rewriting
from headrace.table import rows as tables
from profiles import examples

# Keys of each kind: columns, a few values of them, and how a value is written in SQL.


@dataclass(frozen=True)
class Kind:
    columns: str
    values: tuple[tuple[Any, ...], ...]

    @property
    def names(self) -> list[str]:
        return [part.split()[0] for part in self.columns.split(", ")]


KINDS = [
    Kind("k INT", tuple((n,) for n in (-7, 0, 1, 2, 3, 4, 9, 2_000_000_000))),
    Kind("k STRING", tuple((s,) for s in ("", "a", "A", "b", "é", "a long text that is in no Arrow view", "1", "'"))),
    Kind("k INT, l STRING", tuple((n, s) for n in (0, 1, 2) for s in ("", "a", "b"))),
    Kind("k DECIMAL(20,2)", tuple((Decimal(s),) for s in ("0.00", "-1.50", "1.50", "2.25", "3.00", "99999999.99"))),
    Kind("k DATE", tuple((dt.date(2024, 2, d),) for d in range(1, 8))),
    Kind("k DOUBLE", tuple((x,) for x in (0.0, -1.5, 1.5, math.inf, math.nan, 1e300, 3.0))),
    Kind("k BIGINT, l DATE", tuple((n, dt.date(2024, 1, d)) for n in (5, 6, 1 << 40) for d in (1, 2))),
]


def spelled(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "\\'") + "'"
    if isinstance(value, dt.date):
        return f"DATE '{value}'"
    if isinstance(value, float):
        return f"CAST('{'Infinity' if value == math.inf else value}' AS DOUBLE)"
    return str(value)


def where(kind: Kind, key: tuple[Any, ...]) -> str:
    return " AND ".join(f"{name} = {spelled(v)}" for name, v in zip(kind.names, key, strict=True))


class Model:
    """A keyed table as a dictionary from a key's place among the kind's values."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.rows: dict[int, int] = {}

    def table(self, chosen: list[tuple[int, int]]) -> pa.Table:
        values = [self.kind.values[i] for i, _ in chosen]
        made = {name: [v[at] for v in values] for at, name in enumerate(self.kind.names)}
        return pa.table(made | {"a": pa.array([a for _, a in chosen], pa.int32())})


Step = tuple[str, list[tuple[int, int]]]


def steps(size: int) -> st.SearchStrategy[Step]:
    rows = st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 9)), min_size=1, max_size=6)
    kinds = ["insert", "update", "rekey", "delete", "merge", "truncate", "overwrite", "fails", "reopen", "flush"]
    return st.tuples(st.sampled_from([*kinds, "insert", "update", "rekey", "delete", "merge"]), rows)


def does(db: Database, model: Model, step: Step) -> None:
    """Do a step to both; what the model refuses the database must refuse."""
    what, rows = step
    kind, after = model.kind, dict(model.rows)
    (first, a), allowed = rows[0], True
    text: Callable[[], Any]
    if what == "insert":
        allowed = len({i for i, _ in rows}) == len(rows) and not {i for i, _ in rows} & after.keys()
        after |= dict(rows)
        text = lambda: db.insert("t", model.table(rows))  # noqa: E731
    elif what == "update":
        text = lambda: db.sql(f"UPDATE t SET a = {a} WHERE {where(kind, kind.values[first])}")  # noqa: E731
        after |= {first: a} if first in after else {}
    elif what == "rekey":
        other = rows[-1][0]
        sets = ", ".join(f"{n} = {spelled(v)}" for n, v in zip(kind.names, kind.values[other], strict=True))
        text = lambda: db.sql(f"UPDATE t SET {sets} WHERE {where(kind, kind.values[first])}")  # noqa: E731
        if first in after:
            allowed = other == first or other not in after
            after[other] = after.pop(first)
    elif what == "delete":
        text = lambda: db.sql(f"DELETE FROM t WHERE {where(kind, kind.values[first])} OR a = {a}")  # noqa: E731
        if a % 2:
            text = lambda: db.sql(f"DELETE FROM t WHERE {where(kind, kind.values[first])}")  # noqa: E731
        after = {i: b for i, b in after.items() if i != first and (a % 2 or b != a)}
    elif what == "merge":
        db.sql("TRUNCATE TABLE s")
        db.insert("s", model.table(rows))
        on = " AND ".join(f"t.{n} = s.{n}" for n in kind.names)
        given = [i for i, _ in rows]
        allowed = len(set(given)) == len(given)
        after = {i: b for i, b in after.items() if (i, 0) not in rows} | {i: b for i, b in rows if b}
        text = lambda: db.sql(  # noqa: E731
            f"MERGE INTO t USING s ON {on} WHEN MATCHED AND s.a = 0 THEN DELETE "
            "WHEN MATCHED THEN UPDATE SET a = s.a WHEN NOT MATCHED AND s.a <> 0 THEN INSERT *"
        )
        if all(b == 0 and i not in model.rows for i, b in rows):
            allowed = True  # nothing matches, nothing is inserted
        elif not allowed:
            matched = [i for i in given if i in model.rows]
            inserted = [i for i, b in rows if i not in model.rows and b]
            allowed = len(set(matched)) == len(matched) and len(set(inserted)) == len(inserted)
    elif what == "truncate":
        after, text = {}, lambda: db.sql("TRUNCATE TABLE t")
    elif what == "overwrite":
        text = lambda: db.sql("INSERT OVERWRITE t SELECT * FROM t WHERE a < 5")  # noqa: E731
        after = {i: b for i, b in after.items() if b < 5}
    elif what == "fails":
        text = lambda: db.sql(f"UPDATE t SET a = 1 / (a - a) WHERE {where(kind, kind.values[first])}")  # noqa: E731
        allowed = first not in after
    else:
        return
    try:
        text()
    except HeadraceError as error:
        assert not allowed, (step, error)
    else:
        assert allowed, step
        model.rows = after


def agrees(db: Database, model: Model) -> None:
    kind = model.kind
    for i, key in enumerate(kind.values):
        expected = [(model.rows[i],)] if i in model.rows else []
        assert db.sql(f"SELECT a FROM t WHERE {where(kind, key)}").rows() == expected, (i, key)
    some = kind.values[::2]
    if len(kind.names) == 1:
        listed = ", ".join(spelled(v) for (v,) in some)
        found = db.sql(f"SELECT a FROM t WHERE k IN ({listed}) AND a >= 3").rows()
        assert sorted(found) == sorted((a,) for i, a in model.rows.items() if i % 2 == 0 and a >= 3)
    assert sorted(db.sql("SELECT a FROM t").rows()) == sorted((a,) for a in model.rows.values())
    with db.runtime.store.read() as snapshot:
        table = db.catalog.get("t", Table)
        index = db.runtime.indexes.held[table.number, keys.key_columns(table)]
        assert index.epoch == keys.touched(snapshot, table)
        assert len(index.index) == len(model.rows)


@settings(max_examples=examples(25))
@given(st.data())
def test_reads_by_key_are_those_of_a_dictionary(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr(tables, "TAIL_ROWS", 5)
        patched.setattr(parquet_files, "ROW_GROUP", 2)
        patched.setattr(key_index, "BITS", np.uint64(data.draw(st.sampled_from([0, 3, 0xFFFFFFFFFFFFFFFF]))))
        patched.setattr(keys, "_VALUE", data.draw(st.sampled_from([0, 1 << 40])))  # by row groups, or by a scan
        patched.setattr(keys, "FEW", data.draw(st.sampled_from([1, 4_096])))
        path = Path(folder) / "db"
        db, model = headrace.connect(path, engine="native"), Model(kind)
        try:
            for name in ("t", "s"):
                key = f"PRIMARY KEY ({', '.join(kind.names)})"
                db.sql(f"CREATE TABLE {name} ({kind.columns}, a INT{', ' + key if name == 't' else ''})")
            for step in data.draw(st.lists(steps(len(kind.values)), max_size=12)):
                if step[0] == "reopen":
                    db.close()
                    db = headrace.connect(path, engine="native")
                elif step[0] == "flush":
                    rewriting.flush(db.runtime, db.catalog.get("t", Table))
                else:
                    does(db, model, step)
                agrees(db, model)
        finally:
            db.close()


# Without a scan


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect(None, engine="native") as db:
        yield db


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whole tables that are read from here on, by name."""
    found: list[str] = []
    whole = tables.source

    def noted(read: Any, table: Table, *given: Any, **named: Any) -> str:
        if named.get("at") is None:
            found.append(table.name)
        return whole(read, table, *given, **named)

    monkeypatch.setattr(tables, "source", noted)
    return found


def filled(db: Database, rows: int = 200_000, name: str = "t") -> None:
    db.sql(f"CREATE TABLE {name} (id INT PRIMARY KEY, a INT, b STRING)")
    ids = np.random.default_rng(1).permutation(rows).astype(np.int32)
    db.insert(name, pa.table({"id": ids, "a": ids % 100, "b": pa.array(ids % 7).cast(pa.string())}))


def test_statements_by_key_read_no_whole_table(db: Database, scans: list[str]) -> None:
    filled(db)
    db.sql("INSERT INTO t VALUES (-1, 0, 'x')")
    scans.clear()
    assert db.sql("SELECT a, b FROM t WHERE id = 4711").rows() == [(11, "0")]
    assert db.sql("SELECT a FROM t WHERE a > 0 AND id IN (4711, 5, -1, -2) ORDER BY a").rows() == [(5,), (11,)]
    assert db.sql("SELECT count(*) FROM t WHERE id = -1 AND b = 'x'").rows() == [(1,)]
    assert str(db.sql("UPDATE t SET a = a + 1 WHERE id = 4711")) == "1 row updated in t"
    assert str(db.sql("DELETE FROM t WHERE id = -1 OR id = -1")) == "1 row deleted in t"
    db.sql("INSERT INTO t VALUES (-5, 0, 'x'), (-6, 1, 'y')")
    db.insert("t", {"id": range(300_000, 301_000), "a": [1] * 1000, "b": ["z"] * 1000})
    assert db.sql("SELECT x.a, y.b FROM t x JOIN t y ON y.id = -5 WHERE x.id = 4711").rows() == [(12, "x")]
    assert scans == []
    with pytest.raises(DataError) as refused:
        db.sql("INSERT INTO t VALUES (900000, 0, 'x'), (4711, 1, 'y')")
    assert refused.value.condition == "PRIMARY_KEY_VIOLATION"
    assert "id = 4711" in str(refused.value)


MERGE = """
    MERGE INTO t USING {source} AS s ON t.id = s.id
    WHEN MATCHED AND s.a < 0 THEN DELETE WHEN MATCHED THEN UPDATE SET a = s.a {more}
    WHEN NOT MATCHED THEN INSERT (id, a) VALUES (s.id, s.a)
"""


def test_what_is_joined_by_key_is_found_by_key(db: Database, scans: list[str]) -> None:
    filled(db, 20_000)
    db.sql("CREATE TABLE s (id INT, a INT)")
    db.sql("INSERT INTO s VALUES (5, -1), (6, 66), (7, 77), (90000, 9), (NULL, 1)")
    scans.clear()
    text = MERGE.format(source="(SELECT id, a FROM s WHERE id IS NOT NULL)", more="")
    assert str(db.sql(text)) == "2 rows updated, 1 row deleted, 1 row inserted in t"
    assert str(db.sql("DELETE FROM t WHERE id IN (SELECT id FROM s) AND a > 70")) == "1 row deleted in t"
    assert str(db.sql("UPDATE t SET a = 1 WHERE EXISTS (SELECT 1 FROM s WHERE s.id + 1 = t.id)")) == (
        "2 rows updated in t"
    )
    assert "t" not in scans
    assert sorted(db.sql("SELECT id, a FROM t WHERE id IN (5, 6, 7, 8, 90000)").rows()) == [
        (6, 1), (8, 1), (90000, 9)
    ]  # fmt: skip
    assert db.sql("SELECT count(*) FROM t").rows() == [(19_999,)]


def test_a_merge_whose_source_is_the_table_or_fails_reads_all(db: Database, scans: list[str]) -> None:
    filled(db, 2_000)
    scans.clear()
    text = MERGE.format(source="(SELECT id + 1995 AS id, 7 AS a FROM t WHERE id < 10)", more="")
    assert str(db.sql(text)) == "5 rows updated, 5 rows inserted in t"
    assert "t" in scans
    with pytest.raises(HeadraceError) as refused:
        db.sql("MERGE INTO t USING (SELECT id / (id - id) AS id FROM (VALUES (1)) AS v(id)) AS s "
               "ON t.id = cast(s.id AS INT) WHEN MATCHED THEN DELETE")  # fmt: skip
    assert refused.value.condition == "DIVIDE_BY_ZERO"
    db.sql("CREATE TABLE s (id INT PRIMARY KEY, a INT)")
    db.sql("INSERT INTO s VALUES (5, 1)")
    alone = "MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET a = s.a "
    assert str(db.sql(f"{alone} WHEN NOT MATCHED BY SOURCE THEN DELETE")) == "1 row updated, 2,004 rows deleted in t"


def test_rows_that_stay_what_they_are_count_and_are_not_written(db: Database) -> None:
    db.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT, x DOUBLE, s STRING)")
    db.sql("INSERT INTO t VALUES (1, 7, 0.0, 'x'), (2, 8, double('NaN'), NULL), (3, NULL, -0.0D, 'x')")

    def places() -> set[int]:
        with db.runtime.store.read() as snapshot:
            table = db.catalog.get("t", Table)
            return {
                i for (i,) in snapshot.cursor.execute(f"SELECT __row FROM {snapshot.table(table.number)}").fetchall()
            }

    before = places()
    assert str(db.sql("UPDATE t SET id = id, s = s, x = double(x), a = a + 0")) == "3 rows updated in t"
    assert places() == before
    assert str(db.sql("UPDATE t SET x = 0.0D, s = 'x', a = 7 WHERE id <> 2")) == "2 rows updated in t"
    assert len(places() - before) == 1
    assert str(db.sql("UPDATE t SET a = NULL, s = NULL WHERE id > 1")) == "2 rows updated in t"
    assert len(places() - before) == 2
    assert [repr(row) for row in db.sql("SELECT * FROM t ORDER BY id").rows()] == [
        "(1, 7, 0.0, 'x')", "(2, None, nan, None)", "(3, None, 0.0, None)"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "condition",
    ["id > 4711", "id = 4711 OR a = 3", "id = a", "abs(id) = 4711", "NOT id = 4711", "id IN (SELECT id FROM t)"],
)
def test_other_conditions_are_scans(db: Database, scans: list[str], condition: str) -> None:
    filled(db, 5_000)
    scans.clear()
    (found,) = db.sql(f"SELECT count(*) FROM t WHERE {condition}").rows()
    db.sql("CREATE TABLE u AS SELECT * FROM t")
    assert db.sql(f"SELECT count(*) FROM u WHERE {condition.replace('FROM t', 'FROM u')}").rows() == [found]
    assert "t" in scans


def test_a_key_of_several_columns_needs_all_of_them(db: Database, scans: list[str]) -> None:
    db.sql("CREATE TABLE t (k INT, l STRING, a INT, PRIMARY KEY (k, l))")
    db.insert("t", {"k": [n // 10 for n in range(1000)], "l": [str(n % 10) for n in range(1000)], "a": range(1000)})
    scans.clear()
    assert db.sql("SELECT a FROM t WHERE k = 17 AND l = '4'").rows() == [(174,)]
    assert db.sql("SELECT sum(a) FROM t WHERE k IN (17, 18) AND l IN ('4', '5')").rows() == [(174 + 175 + 184 + 185,)]
    assert scans == []
    assert db.sql("SELECT count(*) FROM t WHERE k = 17").rows() == [(10,)]
    assert scans == ["t"]


def test_a_large_table_gets_its_index_at_the_second_need(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(db, 5_000)
    db.runtime.indexes.held.clear()
    db.runtime.indexes.asked.clear()
    monkeypatch.setattr(keys, "SMALL", 100)
    for made in (False, True, True):
        assert db.sql("SELECT id FROM t WHERE id = 3").rows() == [(3,)]
        assert bool(db.runtime.indexes.held) is made


def test_without_memory_tables_are_scanned_and_explain_says_so(scans: list[str]) -> None:
    with headrace.connect(None, engine="native", state_memory=1) as db:
        filled(db, 5_000)
        scans.clear()
        assert db.sql("SELECT a FROM t WHERE id = 47").rows() == [(47,)]
        assert scans == ["t"]
        db.sql("UPDATE t SET a = 1 WHERE id = 47")
        assert db.sql("SELECT a FROM t WHERE id = 47").rows() == [(1,)]
        with pytest.raises(DataError):
            db.sql("INSERT INTO t VALUES (47, 0, 'x')")
        assert not db.runtime.indexes.held
        said = "\n".join(line for (line,) in db.sql("EXPLAIN SELECT a FROM t WHERE id = 47").rows())
        assert "rows of t by a scan: no memory for an index (state_memory)" in said


def test_explain_says_that_rows_are_found_by_key(db: Database) -> None:
    filled(db, 10)
    for text in ("SELECT a FROM t WHERE id = 47", "DELETE FROM t WHERE id = 47", "UPDATE t SET a = 1 WHERE id = 47"):
        said = "\n".join(line for (line,) in db.sql(f"EXPLAIN {text}").rows())
        assert "rows of t by primary key" in said
    said = "\n".join(line for (line,) in db.sql("EXPLAIN SELECT a FROM t WHERE a = 47").rows())
    assert "rows of t" not in said


def test_an_index_goes_with_its_table(db: Database) -> None:
    filled(db, 5_000)
    assert db.runtime.indexes.bytes > 0
    db.sql("DROP TABLE t")
    assert db.runtime.indexes.bytes == 0


def test_a_commit_that_fails_leaves_the_index_right(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(db, 100)
    table = db.catalog.get("t", Table)
    before = len(db.runtime.indexes.held[table.number, keys.key_columns(table)].index)

    def broken(*given: Any) -> Any:
        raise RuntimeError("broken")

    with monkeypatch.context() as patched:
        patched.setattr(tables, "append", broken)
        with pytest.raises(HeadraceError):
            db.sql("UPDATE t SET id = id + 1000 WHERE id < 50")
    assert len(db.runtime.indexes.held[table.number, keys.key_columns(table)].index) == before
    assert db.sql("SELECT id FROM t WHERE id IN (3, 1003)").rows() == [(3,)]
    db.sql("UPDATE t SET id = id + 1000 WHERE id < 50")
    assert db.sql("SELECT id FROM t WHERE id IN (3, 1003)").rows() == [(1003,)]


def test_an_index_that_cannot_be_kept_is_made_again(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(db, 100)

    def broken(*given: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(key_index.KeyIndex, "enter", broken)
        db.sql("INSERT INTO t VALUES (777, 0, 'x')")
    assert not db.runtime.indexes.held
    assert db.sql("SELECT b FROM t WHERE id = 777").rows() == [("x",)]
    assert db.runtime.indexes.held


def test_what_is_committed_while_an_index_is_made_is_in_it(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(db, 100)
    db.runtime.indexes.held.clear()
    made = keys._made

    def slow(*given: Any) -> key_index.HeldIndex:
        found = made(*given)
        with monkeypatch.context() as patched:  # the same thread: nobody else may make one meanwhile
            patched.setattr(keys, "held", lambda *given, **named: None)
            db.sql("INSERT INTO t VALUES (777, 0, 'x')")
            db.sql("DELETE FROM t WHERE a = 3")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(keys, "_made", slow)
        assert db.sql("SELECT id FROM t WHERE id IN (3, 777)").rows() == [(777,)]
    builds = db.runtime.indexes.builds
    assert db.sql("SELECT id FROM t WHERE id IN (3, 777, 4)").rows() in ([(777,), (4,)], [(4,), (777,)])
    assert db.runtime.indexes.builds == builds
    (held,) = db.runtime.indexes.held.values()
    assert len(held.index) == 100


def test_readers_by_key_see_what_was_committed_and_never_go_back(db: Database) -> None:
    """Each value of a row is one more than the last, committed in that order, with its double beside it."""
    filled(db, 50)
    db.sql("UPDATE t SET a = 0, b = '0'")
    done = threading.Event()
    wrong: list[Any] = []

    def read(key: int) -> None:
        last = -1
        while not done.is_set():
            rows = db.sql(f"SELECT a, b FROM t WHERE id = {key}").rows()
            if len(rows) != 1 or rows[0][1] != str(2 * rows[0][0]) or rows[0][0] < last:
                wrong.append((key, last, rows))
                return
            last = rows[0][0]

    def write(keys: list[int]) -> None:
        for turn in range(15):
            for key in keys:
                db.sql(f"UPDATE t SET a = a + 1, b = cast(2 * (a + 1) AS STRING) WHERE id = {key}")
            if turn % 5 == 0:
                rewriting.flush(db.runtime, db.catalog.get("t", Table))

    readers = [threading.Thread(target=read, args=(key,)) for key in (3, 4)]
    writers = [threading.Thread(target=write, args=(given,)) for given in ([3, 5], [4, 3])]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert wrong == []
    assert sorted(db.sql("SELECT id, a FROM t WHERE id IN (3, 4, 5)").rows()) == [(3, 30), (4, 15), (5, 15)]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10**6)), unique=True, max_size=3_000),
    st.sampled_from([1, 7, 41]),
    st.randoms(),
)
@settings(max_examples=examples(20))
def test_the_hash_table_is_a_multimap(pairs: list[tuple[int, int]], spread: int, random: Any) -> None:
    """Hashes that meet at the same slot, taken out in any order: none that stays is lost."""
    index = key_index.KeyIndex()
    as_hashes: Callable[[list[tuple[int, int]]], Any] = lambda some: np.array(  # noqa: E731
        [h % spread + ((h // spread) << 40) for h, _ in some], np.uint64
    )
    as_places: Callable[[list[tuple[int, int]]], Any] = lambda some: np.array([p for _, p in some], np.int64)  # noqa: E731
    index.enter(as_hashes(pairs), as_places(pairs))
    gone = [pair for pair in pairs if random.random() < 0.5]
    random.shuffle(gone)
    assert index.leave(as_hashes(gone), as_places(gone)) == len(gone)
    left = sorted(set(pairs) - set(gone))
    wanted = sorted({h for h, _ in pairs})
    rows, places = index.find(as_hashes([(h, 0) for h in wanted]))
    assert sorted((wanted[row], place) for row, place in zip(rows.tolist(), places.tolist(), strict=True)) == left
    assert len(index) == len(left)
