"""A full disk, a read-only directory, torn and altered files: a named error, and nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import headrace
from headrace.database import Database
from headrace.errors import HeadraceError, StoreError
from headrace.store import Store, Transaction, directory, writer
from headrace.store import format as file_format
from profiles import examples

SCHEMA = pa.schema([("n", pa.int64())])
ROW = pa.table({"n": [1]}, schema=SCHEMA)


def mount(path: Path, options: str) -> None:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 6 MB."""
    if shutil.which("mount") is None or os.getuid() != 0:
        pytest.skip("only root can mount a small file system")
    place = tmp_path / "disk"
    place.mkdir()
    mount(place, "size=6m")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, leave: int) -> Path:
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        while (found := os.statvfs(disk)).f_bavail * found.f_frsize > leave:
            file.write(bytes(4096))
    return filler


def plant(path: Path, **settings: Any) -> Database:
    db = headrace.connect(path, engine="native", **settings)
    db.sql("CREATE STREAM s (id BIGINT, n BIGINT)")
    db.sql("CREATE TABLE t (id BIGINT, n BIGINT)")
    db.sql("CREATE VIEW by_id AS SELECT id, count(*) AS c FROM s GROUP BY id")
    return db


def counts(db: Database) -> list[tuple[Any, ...]]:
    by_id = db.sql("SELECT count(*), sum(c) FROM by_id").rows()
    return [tuple(row) for row in [*by_id, *db.sql("SELECT count(*), sum(n) FROM t").rows()]]


@pytest.mark.parametrize("durability", ["commit", "group", "none"])
def test_a_full_disk_loses_nothing_and_breaks_nothing(
    disk: Path, tmp_path: Path, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LOG_SOFT", 200_000)
    monkeypatch.setattr(writer, "LOG_HARD", 200_000)
    monkeypatch.setattr(writer, "LOG_ROOM", 1 << 20)
    file = tmp_path / "rows.csv"
    file.write_text("".join(f"{i * 7919},{i * 104729}\n" for i in range(50_000)))
    db = plant(disk / "plant.hr", compact_rows=2_000, durability=durability)
    fill(disk, 400_000)
    good = 0
    with pytest.raises(StoreError, match=r"^\[STATE_NOT_WRITTEN\]"):
        for good in range(100):
            db.insert("s", [(good * 1000 + k, k) for k in range(1000)])
    assert good > 2
    stands = [(good * 1000, good * 1000), (0, None)]
    assert counts(db) == stands
    filler = fill(disk, 0)
    attempts: list[Callable[[], Any]] = [
        lambda: db.insert("s", [(-k, k) for k in range(5_000)]),
        lambda: db.sql(f"COPY s FROM '{file}'"),
        lambda: db.sql(f"COPY t FROM '{file}'"),
        lambda: db.insert("t", [(i, i * 7919) for i in range(70_000)]),
    ]
    for attempt in attempts:
        with pytest.raises(StoreError, match=r"^\[STATE_NOT_WRITTEN\].*No space left"):
            attempt()
        assert counts(db) == stands
    # A definition is small and may still fit; it is there or it is not.
    with suppress(StoreError):
        db.sql("CREATE VIEW w AS SELECT id, count(*) AS c, sum(n) AS total, max(n) AS m FROM s GROUP BY id")
        assert "w" in db.catalog.relations
    assert set(db.catalog.relations) - {"w"} == {"s", "t", "by_id"}
    assert os.listdir(disk / "plant.hr" / "segments") == []
    filler.unlink()
    db.insert("s", [(0, 0)])
    db.sql("CREATE VIEW v AS SELECT id, count(*) AS c FROM s GROUP BY id")
    stands = [(good * 1000, good * 1000 + 1), (0, None)]
    assert counts(db) == stands
    db.close()
    with headrace.connect(disk / "plant.hr", engine="native") as again:
        assert counts(again) == stands
        assert "v" in again.catalog.relations


def test_a_checkpoint_needs_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that met a full disk would leave a database that refuses everything until it is opened again."""
    monkeypatch.setattr(writer, "LOG_HARD", 1)
    room = directory.Directory.room
    monkeypatch.setattr(directory.Directory, "room", lambda self: writer.LOG_ROOM)
    with Store.open(tmp_path / "plant.hr") as store:

        def log_bytes() -> int:
            store.commit(lambda tx: tx.unchanged())  # begins only after the one before has been tended to
            return store._writer._directory.log_bytes()

        for _ in range(5):
            store.commit(lambda tx: None)
        grown = log_bytes()
        monkeypatch.setattr(directory.Directory, "room", room)
        assert grown > 0
        store.commit(lambda tx: None)
        assert log_bytes() < grown


def test_a_read_only_directory(disk: Path) -> None:
    plant(disk / "plant.hr").close()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(StoreError, match=r"^\[STATE_NOT_WRITABLE\].*[Rr]ead-only"):
        headrace.connect(disk / "plant.hr", engine="native")
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    with headrace.connect(disk / "plant.hr", engine="native") as db:
        assert set(db.catalog.relations) == {"s", "t", "by_id"}


def test_a_log_taken_away_is_noticed_by_the_next_commit(tmp_path: Path) -> None:
    db = plant(tmp_path / "plant.hr")
    db.insert("s", [(1, 1)])
    os.rename(tmp_path / "plant.hr" / directory.LOG, tmp_path / "log")
    with pytest.raises(StoreError, match=r"^\[STATE_BROKEN\].*log"):
        db.insert("s", [(2, 2)])
    for statement in ("INSERT INTO s VALUES (3, 3)", "SELECT * FROM by_id"):
        with pytest.raises(StoreError, match=r"^\[STATE_BROKEN\]"):
            db.sql(statement)
    os.rename(tmp_path / "log", tmp_path / "plant.hr" / directory.LOG)
    db.close()
    with headrace.connect(tmp_path / "plant.hr", engine="native") as again:
        assert sorted(again.sql("SELECT id, c FROM by_id").rows())[0] == (1, 1)


# -- torn and altered files ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A database with rows in the file, in a segment and in the log, as a killed process leaves it."""
    path = tmp_path_factory.mktemp("faults") / "plant.hr"
    db = plant(path)
    db.insert("t", [(i, i * 7919) for i in range(70_000)])
    db.insert("s", [(i % 900, i) for i in range(20_000)])
    db.close()
    db = headrace.connect(path, engine="native")
    db.insert("s", [(i % 700, i) for i in range(3_000)])
    db.insert("t", [(-1, 5)])
    expected = counts(db)
    copy = path.with_name("left.hr")
    shutil.copytree(path, copy)
    db.close()
    return copy, expected


@pytest.mark.parametrize("which", [directory.DATABASE, directory.LOG, directory.MARKER, "segment"])
def test_oracle_an_altered_file_never_gives_a_wrong_answer(sound: tuple[Path, Any], tmp_path: Path, which: str) -> None:
    dice = random.Random(which)
    noticed = 0
    for number in range(examples(8)):
        path = tmp_path / f"{number}.hr"
        shutil.copytree(sound[0], path)
        file = next((path / "segments").iterdir()) if which == "segment" else path / which
        data = bytearray(file.read_bytes())
        if number % 4 == 0:
            del data[dice.randrange(len(data)) :]
        else:
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        file.write_bytes(data)
        try:
            with headrace.connect(path, engine="native") as db:
                assert counts(db) == sound[1]
        except HeadraceError as error:
            assert isinstance(error, StoreError), error
            assert error.hint
            noticed += 1
        shutil.rmtree(path)
    # Free blocks and the marker's padding mean nothing.
    assert noticed >= (examples(8) if which in (directory.LOG, "segment") else examples(1))


def test_a_log_that_ends_in_zeros_is_cut_where_they_begin(tmp_path: Path) -> None:
    """What a power cut leaves of entries that were never synced: acknowledged epochs stand before them."""
    path = tmp_path / "plant.hr"
    store = Store.open(path)
    store.commit(lambda tx: tx.create_relation("t", SCHEMA))
    for _ in range(3):
        store.commit(lambda tx: tx.append("t", ROW))
    copy = tmp_path / "copy.hr"
    shutil.copytree(path, copy)
    sound = (path / directory.LOG).stat().st_size
    store.commit(lambda tx: tx.append("t", ROW))
    whole = (path / directory.LOG).read_bytes()
    store.close()
    for cut in range(sound, len(whole), 61):
        place = tmp_path / f"{cut}.hr"
        shutil.copytree(copy, place)
        (place / directory.LOG).write_bytes(whole[:cut] + bytes(len(whole) - cut + 4096))
        with Store.open(place) as again, again.read() as snapshot:
            assert (snapshot.epoch, snapshot.rows("t")) == (4, 3)
        # The same bytes after the epoch was acknowledged: then it is lost, and said to be.
        shutil.rmtree(place)
    shutil.copytree(copy, tmp_path / "lost.hr")
    (tmp_path / "lost.hr" / directory.LOG).write_bytes(whole[: sound - 9] + bytes(4096))
    with pytest.raises(StoreError, match=r"^\[STATE_LOST\]"):
        Store.open(tmp_path / "lost.hr")


def test_a_lost_or_short_segment_is_noticed_at_open(sound: tuple[Path, Any], tmp_path: Path) -> None:
    for number, harm in enumerate((Path.unlink, lambda file: os.truncate(file, 100))):
        path = tmp_path / f"{number}.hr"
        shutil.copytree(sound[0], path)
        harm(next((path / "segments").iterdir()))
        with pytest.raises(StoreError, match=r"^\[STATE_DAMAGED\].*segments"):
            headrace.connect(path, engine="native")


# -- formats ---------------------------------------------------------------------------------------


def test_an_older_format_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "plant.hr"
    with Store.open(path) as store:
        file = store.new_segment("t")
        file.write_bytes(b"as it was")
        store.commit(lambda tx: tx.add_segment("t", file, 1))
    with duckdb.connect(str(path / directory.DATABASE)) as raw:
        raw.execute("ALTER TABLE book.segments DROP COLUMN bytes; ALTER TABLE book.segments DROP COLUMN crc")
        raw.execute("DROP TABLE book.deleted; DROP TABLE book.appended; ALTER TABLE book.epochs DROP COLUMN counted")
        raw.execute("INSERT INTO book.counts VALUES ('stream s', 7, 1)")
        raw.execute("UPDATE book.meta SET value = '1' WHERE key = 'format'")
    for _ in range(2):
        with Store.open(path) as store, store.read() as snapshot:
            assert snapshot.segments("t") == [file]
            assert snapshot.counts() == {"stream s": 7}
    with duckdb.connect(str(path / directory.DATABASE)) as raw:
        assert raw.execute("SELECT value FROM book.meta WHERE key = 'format'").fetchall() == [("7",)]
    assert file_format.FORMAT == 7


# -- ways of committing ----------------------------------------------------------------------------


def test_members_of_a_group_fail_alone_and_are_synced_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[int] = []
    sync = directory.Directory.sync_log
    with Store.open(tmp_path / "plant.hr", group_ms=10_000) as store:
        store.commit(lambda tx: tx.create_relation("t", SCHEMA))

        def counted(self: directory.Directory, *, name: bool) -> None:
            syncs.append(len(outcomes))
            sync(self, name=name)

        monkeypatch.setattr(directory.Directory, "sync_log", counted)
        outcomes: list[object] = []
        begun, waiting = threading.Event(), threading.Event()

        def first(tx: Transaction) -> int:
            begun.set()
            waiting.wait()
            tx.append("t", ROW)
            return tx.epoch

        def submit(work: Callable[[Transaction], Any]) -> None:
            try:
                outcomes.append(store.commit(work))
            except ZeroDivisionError:
                outcomes.append("failed")

        def fails(tx: Transaction) -> None:
            tx.append("t", ROW)
            raise ZeroDivisionError

        works: list[Callable[[Transaction], Any]] = [first, fails, lambda tx: (tx.append("t", ROW), tx.epoch)[1]]
        threads = [threading.Thread(target=submit, args=(work,)) for work in works]
        threads[0].start()
        begun.wait()
        for thread in threads[1:]:
            thread.start()
        while store._writer._queue.qsize() < 2:
            pass
        waiting.set()
        for thread in threads:
            thread.join()
        assert syncs == [0]
        assert sorted(map(str, outcomes)) == ["2", "3", "failed"]
        with store.read() as snapshot:
            assert (snapshot.epoch, snapshot.rows("t")) == (3, 2)


@pytest.mark.parametrize("durability", ["commit", "group", "none"])
def test_a_reader_never_sees_what_a_crash_could_take_back(
    tmp_path: Path, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncing, go = threading.Event(), threading.Event()

    def slow(self: directory.Directory, *, name: bool) -> None:
        syncing.set()
        go.wait()

    with Store.open(tmp_path / "plant.hr", durability=durability) as store:
        monkeypatch.setattr(directory.Directory, "sync_log", slow)
        commit = threading.Thread(target=store.commit, args=(lambda tx: None,))
        commit.start()
        seen: list[int] = []

        def look() -> None:
            with store.read() as snapshot:
                seen.append(snapshot.epoch)

        if durability != "none":
            assert syncing.wait(500)
        else:
            commit.join()
        reader = threading.Thread(target=look)
        reader.start()
        while reader.is_alive() and not store._writer._ledger.durability.wanted:  # until it has seen, or waits
            time.sleep(0.001)
        assert seen == ([1] if durability == "none" else [])
        go.set()
        reader.join()
        commit.join()
        assert seen == [1]


def test_a_sync_that_fails_acknowledges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: directory.Directory, *, name: bool) -> None:
        raise OSError(5, "Input/output error")

    with Store.open(tmp_path / "plant.hr") as store:
        store.commit(lambda tx: None)
        monkeypatch.setattr(directory.Directory, "sync_log", fails)
        for _ in range(2):
            with pytest.raises(StoreError, match=r"^\[STATE_BROKEN\].*Input/output"):
                store.commit(lambda tx: None)
        with pytest.raises(StoreError, match=r"^\[STATE_BROKEN\]"), store.read():
            pass
        monkeypatch.undo()
    Store.open(tmp_path / "plant.hr").close()
