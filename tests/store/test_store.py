"""Commits, snapshots, catalog, relations, segments and sources of an open store."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import CatalogError, HeadraceError, StoreError
from headrace.store import Definition, Store, Transaction, ledger, writer
from headrace.types import COLUMN_TYPES, Field, arrow_schema, decimal

PARTS = pa.schema([("part", pa.string()), ("n", pa.int64())])


def parts(*rows: tuple[str | None, int | None]) -> pa.Table:
    return pa.table([[p for p, _ in rows], [n for _, n in rows]], schema=PARTS)


def content(store: Store, relation: str) -> list[dict[str, Any]]:
    with store.read() as snapshot:
        return sorted(snapshot.scan(relation).to_pylist(), key=repr)


def refused(condition: str) -> Any:
    return pytest.raises(HeadraceError, match=rf"^\[{condition}\]")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "plant.hr"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path) as opened:
        yield opened


@pytest.fixture
def filled(store: Store) -> Store:
    store.commit(lambda tx: tx.create_relation("t", PARTS))
    store.commit(lambda tx: tx.append("t", parts(("bolt", 1))))
    return store


def test_everything_is_there_after_reopening(path: Path) -> None:
    def fill(tx: Transaction) -> None:
        tx.put("Low_Stock", "view", {"sql": "SELECT 'ä' || \"x\"", "n": [1, None, {"deep": True}]})
        tx.create_relation("s1", PARTS)
        tx.append("s1", parts(("bolt", 1), (None, None)))
        assert tx.record("kafka-0", 41)

    with Store.open(path, settings={"timezone": "UTC"}) as store:
        store.commit(fill, label="first")
        file = store.new_segment("s1")
        pq.write_table(parts(("nut", 2)), file)
        store.commit(lambda tx: tx.add_segment("s1", file, 1), label="second")
    with Store.open(path) as store:
        assert store.settings == {"timezone": "UTC"}
        assert content(store, "s1") == [{"part": "bolt", "n": 1}, {"part": None, "n": None}]
        with store.read() as snapshot:
            body = {"sql": "SELECT 'ä' || \"x\"", "n": [1, None, {"deep": True}]}
            assert snapshot.definitions() == [Definition("Low_Stock", "view", body, 1)]
            assert [(e.epoch, e.label, e.changed) for e in snapshot.epochs()] == [
                (2, "second", ("s1",)),
                (1, "first", ("", "s1")),
                (0, "created", ()),
            ]
            assert pq.read_table(snapshot.segments("s1")[0]).to_pylist() == [{"part": "nut", "n": 2}]
            assert (snapshot.last_change("S1"), snapshot.catalog_epoch) == (2, 1)
        assert not store.commit(lambda tx: tx.record("kafka-0", 41))


def test_every_type_comes_back_as_it_was(path: Path) -> None:
    types = (*COLUMN_TYPES, decimal(38, 10), decimal(5, 2))
    schema = arrow_schema(tuple(Field(t.sql, t) for t in types))
    values: dict[str, Any] = {
        "boolean": True,
        "tinyint": -128,
        "smallint": -32768,
        "int": -(2**31),
        "bigint": -(2**63),
        "float": 1.5,
        "double": -0.1,
        "string": "nul \0 and 🔩",
        "binary": b"\0\xff",
        "date": date(1582, 10, 4),
        "timestamp": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
        "timestamp_ntz": datetime(1, 1, 1),
        "decimal(38,10)": Decimal("-9999999999999999999999999999.9999999999"),
        "decimal(5,2)": Decimal("-0.01"),
    }
    rows = pa.Table.from_pylist([values, dict.fromkeys(schema.names)], schema)
    with Store.open(path) as store:
        store.commit(lambda tx: (tx.create_relation("all", schema), tx.append("all", rows)))
    with Store.open(path) as store, store.read() as snapshot:
        found = snapshot.scan("all")
        assert found.schema == schema
        assert found.sort_by("bigint").to_pylist() == rows.to_pylist()


def test_a_failed_work_leaves_nothing(filled: Store) -> None:
    file = filled.new_segment("t")
    pq.write_table(parts(("x", 1)), file)

    def half(tx: Transaction) -> None:
        tx.put("v", "view", {})
        tx.create_relation("u", PARTS)
        tx.append("u", parts(("a", 1)))
        tx.append("t", parts(("b", 2)))
        tx.replace("t", parts(("c", 3)), altered=True)
        tx.add_segment("t", file, 1)
        tx.record("s", 1)
        raise ZeroDivisionError("half-way")

    with pytest.raises(ZeroDivisionError, match="half-way"):
        filled.commit(half)
    filled.discard(file)
    assert not file.exists()
    with filled.read() as snapshot:
        assert (snapshot.epoch, snapshot.last_change("t"), snapshot.last_change("u")) == (2, 2, 0)
        assert (snapshot.definitions(), snapshot.relations(), snapshot.segments("t")) == ([], ["t"], [])
    assert content(filled, "t") == [{"part": "bolt", "n": 1}]
    assert filled.commit(lambda tx: (tx.record("s", 1), tx.epoch)) == (True, 3)


def test_an_error_of_the_database_rolls_back_even_when_swallowed(filled: Store) -> None:
    def swallow(tx: Transaction) -> None:
        tx.append("t", parts(("b", 2)))
        with suppress(duckdb.Error):
            tx.query("SELECT error('boom')")

    with pytest.raises((duckdb.Error, StoreError)):
        filled.commit(swallow)
    with pytest.raises(duckdb.Error):
        filled.commit(lambda tx: (tx.append("t", parts(("b", 2))), tx.query("SELECT error('boom')")))
    assert content(filled, "t") == [{"part": "bolt", "n": 1}]
    assert filled.commit(lambda tx: tx.epoch) == 3


def test_unchanged_work_takes_no_epoch(filled: Store) -> None:
    def replay(tx: Transaction) -> str:
        tx.append("t", parts(("lost", 0)))
        tx.unchanged()
        return "done"

    assert filled.commit(replay) == "done"
    assert filled.commit(lambda tx: tx.epoch) == 3
    assert content(filled, "t") == [{"part": "bolt", "n": 1}]


def test_commit_inside_a_commit_is_an_error_not_a_deadlock(filled: Store) -> None:
    with refused("NESTED_COMMIT"):
        filled.commit(lambda tx: filled.commit(lambda inner: None))
    with pytest.raises(StoreError):
        filled.commit(lambda tx: (tx.append("t", parts(("x", 1))), filled.commit(lambda inner: None)))
    assert content(filled, "t") == [{"part": "bolt", "n": 1}]


def test_a_read_inside_a_commit_sees_the_epoch_before(filled: Store) -> None:
    def look(tx: Transaction) -> tuple[int, int]:
        tx.append("t", parts(("nut", 2)))
        with filled.read() as snapshot:
            return snapshot.rows("t"), tx.rows("t")

    assert filled.commit(look) == (1, 2)


def test_names_are_one_whatever_their_case(filled: Store) -> None:
    filled.commit(lambda tx: tx.put("Station", "table", {}))
    with refused("TABLE_OR_VIEW_ALREADY_EXISTS"):
        filled.commit(lambda tx: tx.put("STATION", "view", {}))
    with refused("RELATION_EXISTS"):
        filled.commit(lambda tx: tx.create_relation("T", PARTS))
    filled.commit(lambda tx: tx.drop("station"))
    with pytest.raises(CatalogError, match="TABLE_OR_VIEW_NOT_FOUND"):
        filled.commit(lambda tx: tx.drop("station"))


def test_names_that_need_quoting(store: Store) -> None:
    odd = '\'; DROP TABLE book.epochs; -- "ü"\0'
    schema = pa.schema([('a"b', pa.int32()), ("'", pa.string()), ("select", pa.bool_())])
    rows = pa.table([[1], ["'"], [True]], schema=schema)
    store.commit(lambda tx: (tx.create_relation(odd.replace("\0", ""), schema), tx.record(odd, 1)), label=odd)
    store.commit(lambda tx: (tx.append(odd.replace("\0", ""), rows), tx.put(odd, odd, {odd: odd})))
    assert content(store, odd.replace("\0", "")) == rows.to_pylist()
    with store.read() as snapshot:
        assert snapshot.epochs()[1].label == odd
        assert snapshot.definitions() == [Definition(odd, odd, {odd: odd}, 2)]
        assert snapshot.last_change(odd.replace("\0", "")) == 2
    path = store.path
    store.close()
    with Store.open(path) as again:
        assert not again.commit(lambda tx: tx.record(odd, 1))


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([]),
        pa.schema([("__Epoch", pa.int64())]),
        pa.schema([("a", pa.int64()), ("A", pa.int64())]),
    ],
)
def test_columns_a_relation_cannot_have(store: Store, schema: pa.Schema) -> None:
    with refused("INVALID_RELATION"):
        store.commit(lambda tx: tx.create_relation("t", schema))


def test_rows_must_fit(filled: Store) -> None:
    filled.commit(lambda tx: tx.append("t", pa.table({"n": pa.array([7], pa.int8()), "part": ["cast and reordered"]})))
    assert {"part": "cast and reordered", "n": 7} in content(filled, "t")
    for bad in (pa.table({"part": ["a"]}), pa.table({"part": ["a"], "n": ["seven"]})):
        with refused("SCHEMA_MISMATCH"):
            filled.commit(lambda tx, bad=bad: tx.append("t", bad))
    with refused("RELATION_NOT_FOUND"):
        filled.commit(lambda tx: tx.append("nowhere", parts()))
    with refused("RELATION_NOT_FOUND"), filled.read() as snapshot:
        snapshot.rows("nowhere")


def test_the_hidden_column_is_the_epoch(filled: Store) -> None:
    filled.commit(lambda tx: tx.append("t", parts(("nut", 2))))
    with filled.read() as snapshot:
        query = f"SELECT part, __epoch FROM {snapshot.table('T')} ORDER BY part"
        assert snapshot.query(query).to_pylist() == [{"part": "bolt", "__epoch": 2}, {"part": "nut", "__epoch": 3}]
        joined = snapshot.query(
            f"SELECT n, w FROM {snapshot.table('t')} JOIN w USING (part)", w=pa.table({"part": ["nut"], "w": [9]})
        )
        assert joined.to_pylist() == [{"n": 2, "w": 9}]


def test_only_changes_of_content_count_as_changes(filled: Store) -> None:
    filled.commit(lambda tx: tx.replace("t", parts(("bolt", 1))))
    filled.commit(lambda tx: tx.append("t", parts()))
    file = filled.new_segment("t")
    pq.write_table(parts(("bolt", 1)), file)
    filled.commit(lambda tx: (tx.replace("t", parts()), tx.add_segment("t", file, 1, altered=False)))
    with filled.read() as snapshot:
        assert (snapshot.epoch, snapshot.last_change("t")) == (5, 2)
        filled.commit(lambda tx: tx.remove_segments("t"))
        filled.commit(lambda tx: tx.replace("t", parts(("cog", 3)), altered=True))
        assert snapshot.last_change("t") == 2
    with filled.read() as snapshot:
        assert snapshot.last_change("t") == 7


def test_an_open_snapshot_stays_in_its_epoch(filled: Store) -> None:
    file = filled.new_segment("t")
    pq.write_table(parts(("old", 1)), file)
    filled.commit(lambda tx: tx.add_segment("t", file, 1))
    with filled.read() as snapshot:
        filled.commit(lambda tx: tx.replace("t", parts(*[("x", i) for i in range(5000)])))
        filled.commit(lambda tx: tx.remove_segments("t"))
        filled.commit(lambda tx: tx.put("v", "view", {}))
        filled.commit(lambda tx: tx.drop_relation("t"))
        assert (snapshot.epoch, snapshot.rows("t"), snapshot.definitions()) == (3, 1, [])
        assert snapshot.segments("t") == [file]
        assert pq.read_table(file).num_rows == 1
        with filled.read() as later:
            assert (later.epoch, later.segments("t"), later.relations()) == (7, [], [])
    assert not file.exists()


def test_a_reader_cannot_write(filled: Store) -> None:
    with pytest.raises(duckdb.Error), filled.read() as snapshot:
        snapshot.cursor.execute("DELETE FROM book.epochs")


def test_readers_see_whole_epochs_only(filled: Store) -> None:
    """Every epoch adds the same number to two relations and one in all to a third; a torn read would differ."""
    filled.commit(lambda tx: (tx.create_relation("a", PARTS), tx.create_relation("b", PARTS)))
    stop, torn, seen = threading.Event(), [], set()

    def watch() -> None:
        last = 0
        while not stop.is_set():
            with filled.read() as snapshot:
                change = snapshot.last_change("a")
                found = snapshot.rows("a"), snapshot.rows("b"), (snapshot.epoch - 3) * 10
                if len(set(found)) > 1 or snapshot.epoch < last or change != max(snapshot.epoch, 3):
                    torn.append((snapshot.epoch, last, change, *found))
                last = snapshot.epoch
                seen.add(last)

    threads = [threading.Thread(target=watch) for _ in range(3)]
    for thread in threads:
        thread.start()
    rows = parts(*[("p", i) for i in range(10)])
    commits = 0
    while commits < 150 or (len(seen) <= 10 and any(thread.is_alive() for thread in threads)):
        filled.commit(lambda tx: (tx.append("a", rows), tx.append("b", rows)))
        commits += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert torn == []
    assert len(seen) > 10


def test_commits_of_many_threads_are_dense_epochs(filled: Store) -> None:
    got: list[int] = []

    def commit() -> None:
        for i in range(20):
            got.append(filled.commit(lambda tx, i=i: (tx.append("t", parts(("p", i))), tx.epoch)[1]))

    threads = [threading.Thread(target=commit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(3, 163))
    with filled.read() as snapshot:
        stamps = snapshot.query(f"SELECT __epoch AS e FROM {snapshot.table('t')}")["e"].to_pylist()
    assert sorted(stamps) == list(range(2, 163))


def test_replays_are_ignored_whatever_their_order(store: Store) -> None:
    order = [5, 3, 4, 9, 3, 5, 2**63 - 1, -(2**63), 9]
    fresh = [store.commit(lambda tx, n=n: tx.record("s", n)) for n in order]
    assert fresh == [True, True, True, True, False, False, True, True, False]
    assert store.commit(lambda tx: (tx.record("other", 5), tx.record("other", 5))) == (True, False)
    with refused("INVALID_SEQUENCE"):
        store.commit(lambda tx: tx.record("s", 2**63))
    path = store.path
    store.close()
    with Store.open(path) as again:
        assert [again.commit(lambda tx, n=n: tx.record("s", n)) for n in (3, 4, 5, 6)] == [False, False, False, True]


def test_folding_old_epochs_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FOLD_EVERY", 10)
    with Store.open(path) as store:
        store.commit(lambda tx: tx.create_relation("early", PARTS))
        for n in range(45):
            store.commit(lambda tx, n=n: tx.record("s", n))
        store.commit(lambda tx: tx.put("v", "view", {}))
        with store.read() as snapshot:
            assert len(snapshot.epochs()) < 25
    with Store.open(path) as store:
        with store.read() as snapshot:
            assert (snapshot.epoch, snapshot.last_change("early"), snapshot.catalog_epoch) == (47, 1, 47)
        assert [store.commit(lambda tx, n=n: tx.record("s", n)) for n in (0, 22, 44, 45)] == [False] * 3 + [True]


def test_the_log_is_folded_in_between_commits(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LOG_HARD", 100_000)
    log = store.path / "headrace.duckdb.wal"
    store.commit(lambda tx: tx.create_relation("t", PARTS))
    rows = parts(*[("p" * 50, i) for i in range(1000)])
    for _ in range(10):
        store.commit(lambda tx: tx.append("t", rows))
    store.commit(lambda tx: tx.unchanged())  # begins only after the one before has been tended to
    assert not log.exists() or log.stat().st_size < 200_000
    assert len(content(store, "t")) == 10_000


def test_segments_belong_in_the_directory(filled: Store, tmp_path: Path) -> None:
    stray = tmp_path / "stray.parquet"
    stray.touch()
    with refused("SEGMENT_MISPLACED"):
        filled.commit(lambda tx: tx.add_segment("t", stray, 0))
    with refused("SEGMENT_MISPLACED"):
        filled.discard(stray)
    missing = filled.new_segment("../t/..")
    assert missing.parent == filled.path / "segments"
    with refused("STATE_NOT_WRITTEN"):
        filled.commit(lambda tx: tx.add_segment("t", missing, 0))
    file = filled.new_segment("t")
    file.touch()
    filled.commit(lambda tx: tx.add_segment("t", file, 0))
    with refused("SEGMENT_IN_USE"):
        filled.discard(file)
    assert file.exists()


def test_interrupting_the_caller_rolls_the_commit_back(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the main thread while its commit runs a long query."""
    waiting = threading.Event()

    class Awaited(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            waiting.set()
            return super().result(timeout)

    def press() -> None:
        waiting.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def long(tx: Transaction) -> None:
        tx.append("t", parts(("never", 0)))
        threading.Thread(target=press).start()
        tx.query("SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b")

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(writer, "Future", Awaited)
        filled.commit(long)
    assert content(filled, "t") == [{"part": "bolt", "n": 1}]
    assert filled.commit(lambda tx: tx.epoch) == 3


def test_long_histories_are_trimmed_but_not_for_open_snapshots(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_TRIM_AT", 8)
    with filled.read() as early:
        for n in range(20):
            filled.commit(lambda tx, n=n: tx.append("t", parts(("p", n))))
        assert (early.last_change("t"), len(filled._ledger._changes["t"])) == (2, 21)
    filled.commit(lambda tx: tx.append("t", parts(("p", 0))))
    with filled.read() as late:  # a glance may be at the epoch before, which was durable when this one was trimmed
        assert (late.last_change("t"), len(filled._ledger._changes["t"])) == (23, 2)


def test_batches_of_many_relations_in_one_commit(path: Path) -> None:
    many = parts(*((f"p{i}", i) for i in range(20_000)))
    with Store.open(path) as store:
        store.commit(lambda tx: [tx.create_relation(r, PARTS) for r in ("T", "u", "w")])
        store.commit(lambda tx: tx.append_batches({"t": parts(("bolt", 1), (None, None)), "u": many, "w": parts()}))
        with store.read() as before:
            store.commit(lambda tx: tx.append_batches({"T": parts(("nut", 2)), "w": parts(("w", 3))}))
            assert before.rows("t") == 2 and before.last_change("w") == 1
        with refused("SCHEMA_MISMATCH"):
            store.commit(lambda tx: tx.append_batches({"t": parts(("lost", 9)), "u": pa.table({"x": [1]})}))
    with Store.open(path) as store:
        with store.read() as snapshot:
            assert [snapshot.rows(r) for r in "tuw"] == [3, 20_000, 1]
            assert snapshot.since("t", 2, PARTS).to_pylist() == [{"part": "nut", "n": 2}]
            source, batches = snapshot.whole("t", "b")
            assert snapshot.query(f"SELECT sum(n) AS n FROM {source}", b=batches).to_pylist() == [{"n": 3}]
        assert content(store, "u") == sorted(many.to_pylist(), key=repr)
        store.commit(lambda tx: tx.replace("t", parts(("all", 3))))
        with store.read() as snapshot:
            assert (snapshot.last_change("t"), snapshot.rewritten("t"), snapshot.rewritten("u")) == (3, 4, 0)
        assert content(store, "t") == [{"part": "all", "n": 3}]
        assert content(store, "w") == [{"part": "w", "n": 3}]
        store.commit(lambda tx: tx.drop_relation("w"))
        store.commit(lambda tx: tx.create_relation("w", PARTS))
        assert content(store, "w") == []


def test_rows_since_an_epoch_however_they_were_put(path: Path) -> None:
    ways = ("append", "append_batches", "both", "append_batches", "append", "replace", "append_batches", "both")
    stamped: list[tuple[int, int]] = []  # (epoch, n) as they stand in the relation
    with Store.open(path) as store:
        store.commit(lambda tx: tx.create_relation("t", PARTS))
        for n, way in enumerate(ways):

            def put(tx: Transaction, n: int = n, way: str = way, before: Any = tuple(stamped)) -> Any:
                here = list(before)
                if way in ("append", "both"):
                    tx.append("t", parts(("p", n)))
                    here.append((tx.epoch, n))
                if way in ("append_batches", "both"):
                    tx.append_batches({"t": parts(("p", -n))})
                    here.append((tx.epoch, -n))
                if way == "replace":
                    tx.replace("t", parts(("p", 100), ("p", 200)))
                    here = [(tx.epoch, 100), (tx.epoch, 200)]
                assert sorted(tx.since("t", tx.epoch - 1, PARTS)["n"].to_pylist()) == sorted(
                    v for at, v in here if at == tx.epoch
                )
                return here

            stamped = store.commit(put)
            with store.read() as snapshot:
                for epoch in range(-1, snapshot.epoch + 1):
                    found = sorted(snapshot.since("t", epoch, PARTS)["n"].to_pylist())
                    assert found == sorted(v for at, v in stamped if at > epoch), (way, epoch)


def test_counts_begin_anew_and_survive_folding(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FOLD_EVERY", 3)

    def counts(store: Store) -> tuple[dict[str, int], dict[str, int]]:
        with store.read() as snapshot:
            return snapshot.counts(), snapshot.counts(since=datetime(2020, 1, 1, tzinfo=UTC))

    with Store.open(path) as store:
        for n in (1, 10, 100):
            store.commit(lambda tx, n=n: [tx.count("Stream S", n), tx.count("late v", 1)])
        assert counts(store)[0] == {"stream s": 111, "late v": 3}
        store.commit(lambda tx: [tx.count("stream s", 5), tx.forget_count("Stream s"), tx.count("stream s", 7)])
        assert counts(store) == ({"stream s": 7, "late v": 3},) * 2
        for _ in range(9):
            store.commit(lambda tx: tx.count("stream s", 1000))
        folded = counts(store)
        assert folded[0] == {"stream s": 9007, "late v": 3}
        assert folded[1].keys() == {"stream s"} and folded[1]["stream s"] < 9007
        store.commit(lambda tx: tx.forget_count("late v"))
    with Store.open(path) as store:
        assert counts(store)[0] == {"stream s": 9007}
        with store.read() as snapshot:
            assert snapshot.epochs(1)[0].counted == {"late v": 0}
