"""The inbox without Spark: whatever a sink does twice, in parts or with nobody there, each batch is in once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import CatalogError, DataError, HeadraceError
from headrace.stream.inbox import Manifest, Tray, owned
from profiles import examples

QUERY = "5f0c1e7e-0000-4000-8000-000000000001"


def make(path: Path) -> None:
    with headrace.connect(path) as db:
        db.sql("CREATE STREAM s (word STRING)")
        db.sql("CREATE VIEW v AS SELECT word, count(*) AS n FROM s GROUP BY word")


def put(
    path: Path, batch: int, words: list[str], *, run: str = "run1", stream: str = "s", limit: int = 1 << 30
) -> Tray:
    tray = Tray(path, QUERY)
    file = tray.new_file(batch)
    pq.write_table(pa.table({"word": words}), file)
    tray.put(batch, Manifest(stream, (file.name,), len(words), file.stat().st_size, run), limit=limit)
    return tray


def counts(db: headrace.Database) -> dict[str, int]:
    return dict(db.sql("SELECT word, n FROM v").rows())


def left(tray: Tray) -> list[str]:
    return sorted(p.name for p in tray.folder.iterdir() if p.name not in ("lock", "head.json"))


def test_batches_put_while_nobody_is_there_are_in_once_it_is_open(tmp_path: Path) -> None:
    make(tmp_path)
    assert not owned(tmp_path)
    for batch in (0, 9, 10, 2):
        tray = put(tmp_path, batch, ["a", f"w{batch}"])
    assert [batch for batch, _ in tray.batches()] == [0, 9, 10]
    with headrace.connect(tmp_path) as db:
        assert owned(tmp_path)
        assert counts(db) == {"a": 3, "w0": 1, "w9": 1, "w10": 1}  # 2 came after 10: Spark never does that
        assert left(tray) == []
    assert not owned(tmp_path)


def test_a_batch_put_again_changes_nothing(tmp_path: Path) -> None:
    make(tmp_path)
    put(tmp_path, 0, ["a"])
    put(tmp_path, 0, ["a"])
    with headrace.connect(tmp_path) as db:
        assert counts(db) == {"a": 1}
        tray = put(tmp_path, 0, ["a"], run="run2")
        (tray.folder / "head.json").unlink()  # even if the inbox has forgotten, the database has not
        put(tmp_path, 0, ["a"], run="run3")
        db.drain()
        assert counts(db) == {"a": 1} and left(tray) == []


def test_files_no_manifest_names_are_not_rows(tmp_path: Path) -> None:
    make(tmp_path)
    tray = Tray(tmp_path, QUERY)
    pq.write_table(pa.table({"word": ["ghost"]}), tray.new_file(0))
    put(tmp_path, 0, ["a"])
    with headrace.connect(tmp_path) as db:
        assert counts(db) == {"a": 1} and left(tray) == []


def test_two_runs_of_one_query(tmp_path: Path) -> None:
    make(tmp_path)
    put(tmp_path, 0, ["a"], run="run1")
    put(tmp_path, 1, ["b"], run="run2")
    with pytest.raises(DataError, match="QUERY_ID_IN_USE"):
        put(tmp_path, 1, ["b"], run="run1")
    with pytest.raises(DataError, match="QUERY_ID_IN_USE"):
        put(tmp_path, 1, ["b", "c"], run="run3")
    with pytest.raises(DataError, match="QUERY_CHANGED_STREAM"):
        put(tmp_path, 2, ["b"], run="run2", stream="other")
    with headrace.connect(tmp_path) as db:
        assert counts(db) == {"a": 1, "b": 1}


def test_an_inbox_nobody_empties_is_bounded(tmp_path: Path) -> None:
    make(tmp_path)
    tray = put(tmp_path, 0, ["a"], limit=10)  # a first batch always fits: it could never be put otherwise
    with pytest.raises(DataError, match="INBOX_FULL"):
        put(tmp_path, 1, ["b"], limit=10)
    assert len(left(tray)) == 2
    with headrace.connect(tmp_path) as db:
        put(tmp_path, 1, ["b"], limit=10)
        db.drain()
        assert counts(db) == {"a": 1, "b": 1}


def test_a_batch_that_cannot_be_taken_stays_and_can_be_taken_back(tmp_path: Path) -> None:
    make(tmp_path)
    with headrace.connect(tmp_path) as db:
        db.sql("CREATE VIEW numbers AS SELECT sum(cast(word AS INT)) AS n FROM s")
    tray = put(tmp_path, 0, ["1", "x"])
    put(tmp_path, 1, ["2"])
    with headrace.connect(tmp_path) as db:
        with pytest.raises(HeadraceError, match="CAST_INVALID_INPUT"):
            db.drain()
        assert counts(db) == {}
        failure = tray.failure(1)
        assert failure is not None and failure.condition == "CAST_INVALID_INPUT"
        db.sql("DROP VIEW numbers")
        db.drain()
        assert counts(db) == {"1": 1, "x": 1, "2": 1}
        assert not tray.withdraw(1) and left(tray) == []


def test_a_stream_with_waiting_batches_is_not_dropped(tmp_path: Path) -> None:
    with headrace.connect(tmp_path) as db:
        db.sql("CREATE STREAM s (word STRING)")
        put(tmp_path, 0, ["a"])
        db.sql("DROP STREAM s")  # takes it first
        db.sql("CREATE STREAM s (word INT)")
        put(tmp_path, 1, ["a"])
        with pytest.raises(CatalogError, match="STREAM_IN_USE"):
            db.sql("DROP STREAM s")
        with pytest.raises(HeadraceError):
            db.drain()
        assert Tray(tmp_path, QUERY).withdraw(1)
        db.sql("DROP STREAM s")
        db.sql("CREATE STREAM s (word STRING)")
        db.sql("CREATE VIEW v AS SELECT word, count(*) AS n FROM s GROUP BY word")
        put(tmp_path, 1, ["a"])  # taken back, so it is no replay
        db.drain()
        assert counts(db) == {"a": 1}
        db.sql("DROP VIEW v")
        db.sql("DROP STREAM s")
        put(tmp_path, 2, ["a"])
        with pytest.raises(CatalogError, match="TABLE_OR_VIEW_NOT_FOUND"):
            db.drain()


def test_a_sink_that_writes_a_batch_again_while_the_owner_sweeps(tmp_path: Path) -> None:
    """What is swept then was put before."""
    from pyspark.sql.types import StringType, StructType

    from headrace.spark.sink import _Target

    make(tmp_path)
    target = _Target({"path": str(tmp_path), "stream": "s"}, StructType().add("word", StringType()))

    def rows(swept: bool) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"word": ["a", "b"]})
        if swept:
            Tray(tmp_path, QUERY).sweep(0)

    with headrace.connect(tmp_path) as db:
        for swept in (False, True):
            target.commit([target.write(rows(swept), QUERY, "run1", 0)], 0)
        assert counts(db) == {"a": 1, "b": 1} and left(Tray(tmp_path, QUERY)) == []


_OWNER = """
import os, signal, sys
import headrace
from headrace.stream.inbox import Tray
from headrace.store.writer import Writer
path, when = sys.argv[1:]
if when == "before":
    Writer._commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
else:
    Tray.remove = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
headrace.connect(path)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_owner_killed_around_its_commit(tmp_path: Path, when: str) -> None:
    make(tmp_path)
    tray = put(tmp_path, 0, ["a", "b"])
    killed = subprocess.run([sys.executable, "-c", _OWNER, str(tmp_path), when], timeout=500, check=False)
    assert killed.returncode == -9 and tray.waiting(0)
    with headrace.connect(tmp_path) as db:
        assert counts(db) == {"a": 1, "b": 1} and left(tray) == []


@settings(max_examples=examples(5))
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["put", "open", "forget"])), max_size=12))
def test_oracle_any_schedule_counts_each_batch_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str]]
) -> None:
    """Batches put again, in any order with openings and lost heads, all count once."""
    path = tmp_path_factory.mktemp("db")
    make(path)
    put_once: set[int] = set()
    for batch, what in steps:
        match what:
            case "put":
                tray = put(path, batch, ["a", f"w{batch}"])
                if tray.waiting(batch):
                    put_once.add(batch)
            case "open":
                headrace.connect(path).close()
            case "forget":
                (path / "inbox" / QUERY / "head.json").unlink(missing_ok=True)
    put(path, 9, ["z"])
    with headrace.connect(path) as db:
        assert counts(db) == {**({"a": len(put_once)} if put_once else {}), **{f"w{b}": 1 for b in put_once}, "z": 1}


def test_the_porter_takes_batches_as_they_come_and_a_fork_is_no_owner(tmp_path: Path) -> None:
    make(tmp_path)
    db = headrace.connect(tmp_path)
    tray = put(tmp_path, 0, ["a"])
    for _ in range(50_000):
        if not tray.waiting(0):
            break
        time.sleep(0.01)
    assert counts(db) == {"a": 1}
    ready, done = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        db.close()
        assert not owned(tmp_path)
    finally:
        os.write(done[1], b"x")
        os.waitpid(child, 0)
