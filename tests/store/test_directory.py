"""Opening, refusing, locking, sweeping and closing a database directory; other processes and damage."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from headrace.errors import HeadraceError
from headrace.store import Store, Transaction, directory
from headrace.store import store as store_module
from headrace.store.format import unopenable

SCHEMA = pa.schema([("n", pa.int64())])
ROW = pa.table({"n": [1]}, schema=SCHEMA)


def refused(condition: str, text: str = "") -> Any:
    return pytest.raises(HeadraceError, match=rf"^\[{condition}\].*{text}")


def run(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    """A separate process that has opened nothing yet."""
    prelude = "import os, sys\nimport pyarrow as pa\nfrom pathlib import Path\nfrom headrace.store import Store\n"
    prelude += "row = pa.table({'n': [1]})\n"
    command = [sys.executable, "-c", prelude + textwrap.dedent(code), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=500)


def listing(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "plant.hr"


def make(path: Path, epochs: int = 3) -> None:
    with Store.open(path) as store:
        store.commit(lambda tx: tx.create_relation("t", SCHEMA))
        for _ in range(epochs - 1):
            store.commit(lambda tx: tx.append("t", ROW))


def crash(path: Path, epochs: int) -> None:
    """Commit in a process that ends without closing: the epochs are in the log only."""
    done = run(
        """
        store = Store.open(Path(sys.argv[1]))
        for _ in range(int(sys.argv[2])):
            store.commit(lambda tx: tx.append("t", row))
        os._exit(9)
        """,
        path,
        epochs,
    )
    assert done.returncode == 9, done.stderr


# -- opening ---------------------------------------------------------------------------------------


def test_a_temporary_database_goes_with_its_close() -> None:
    store = Store.open(None)
    place = store.path
    store.commit(lambda tx: tx.create_relation("t", SCHEMA))
    assert place.is_dir()
    store.close()
    assert not place.exists()


def test_settings_are_pinned(path: Path) -> None:
    Store.open(path, settings={"ansi": "true", "timezone": "UTC"}).close()
    with refused("SETTINGS_PINNED", "'timezone'.*'UTC'.*'Europe/Berlin'"):
        Store.open(path, settings={"ansi": "true", "timezone": "Europe/Berlin"})
    with refused("SETTINGS_PINNED", "'unheard'"):
        Store.open(path, settings={"unheard": "of"})
    with Store.open(path, settings={"ansi": "true"}) as store:
        assert store.settings == {"ansi": "true", "timezone": "UTC"}


def test_other_directories_are_left_alone(path: Path) -> None:
    path.mkdir()
    (path / "thesis.tex").write_text("years of work")
    before = listing(path)
    with refused("NOT_A_DATABASE"):
        Store.open(path)
    assert listing(path) == before
    assert sorted(os.listdir(path)) == ["thesis.tex"]
    with refused("NOT_A_DATABASE", "is a file"):
        Store.open(path / "thesis.tex")


@pytest.mark.parametrize("text", [b"", b"not a database" * 1000])
def test_a_database_file_of_something_else(path: Path, text: bytes) -> None:
    path.mkdir()
    (path / "headrace.duckdb").write_bytes(text)
    with refused("NOT_A_DATABASE"):
        Store.open(path)
    assert (path / "headrace.duckdb").read_bytes() == text


def test_a_duckdb_file_that_is_not_ours(path: Path) -> None:
    path.mkdir()
    with duckdb.connect(str(path / "headrace.duckdb")) as other:
        other.execute("CREATE TABLE mine AS SELECT 42 AS answer")
    with refused("NOT_A_DATABASE"):
        Store.open(path)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused("STATE_NOT_WRITABLE"):
        Store.open(tmp_path / "file" / "plant.hr")
    with refused("STATE_NOT_WRITABLE"):
        Store.open(Path("/proc/plant.hr"))


def test_an_interrupted_creation_is_begun_again(path: Path) -> None:
    path.mkdir()
    (path / "headrace.lock").touch()
    (path / "segments").mkdir()
    (path / "headrace.duckdb.new").write_bytes(b"half a file")
    make(path, 2)
    assert not (path / "headrace.duckdb.new").exists()
    with Store.open(path) as store, store.read() as snapshot:
        assert snapshot.epoch == 2


def test_a_newer_format_is_refused(path: Path) -> None:
    make(path)
    with duckdb.connect(str(path / "headrace.duckdb")) as raw:
        raw.execute("UPDATE book.relations SET format = 99")
    with refused("FORMAT_TOO_NEW", "relations of format 99"):
        Store.open(path)
    with duckdb.connect(str(path / "headrace.duckdb")) as raw:
        raw.execute("UPDATE book.meta SET value = '98' WHERE key = 'format'")
    # A later Headrace may have another marker, too.
    body = '["database", 3, 0, "more"]'
    (path / "headrace.marker").write_text(f"{zlib.crc32(body.encode()):08x} {body}\n".ljust(512))
    before = listing(path)
    with refused("FORMAT_TOO_NEW", "format 98"):
        Store.open(path)
    assert listing(path) == before


def test_a_file_of_a_later_duckdb_is_refused(path: Path) -> None:
    """Its header has a checksum, so DuckDB's own words stand in for such a file."""
    make(path)
    said = "Trying to read a database file with storage version number 999, but we can only read versions up to 67."
    claimed = directory.Directory(path)
    error = unopenable(claimed, duckdb.IOException(said))
    claimed.release()
    assert (error.condition, error.hint) == ("FORMAT_TOO_NEW", "upgrade Headrace")


def test_leftovers_are_swept_at_open(path: Path) -> None:
    make(path)
    with Store.open(path) as store:
        kept = store.new_segment("t")
        kept.write_bytes(b"kept")
        store.commit(lambda tx: tx.add_segment("t", kept, 1))
    orphans = [path / "segments" / "t-e9-0.parquet", path / "scratch" / "x.arrow", path / "scratch" / "dir" / "y"]
    for orphan in orphans:
        orphan.parent.mkdir(exist_ok=True)
        orphan.write_bytes(b"left over")
    with Store.open(path) as store:
        assert not any(orphan.exists() for orphan in orphans)
        assert kept.read_bytes() == b"kept"
        with store.read() as snapshot:
            assert snapshot.segments("t") == [kept]
        assert store.new_segment("t") != kept


# -- one process -----------------------------------------------------------------------------------


def test_a_second_process_is_refused_by_pid(path: Path) -> None:
    with Store.open(path) as store:
        store.commit(lambda tx: tx.create_relation("t", SCHEMA))
        done = run("Store.open(Path(sys.argv[1]))", path)
        assert "[DATABASE_IN_USE]" in done.stderr and str(os.getpid()) in done.stderr
        with refused("DATABASE_IN_USE", "this process"):
            Store.open(path)
        store.commit(lambda tx: tx.append("t", ROW))
    assert run("Store.open(Path(sys.argv[1])).close()", path).returncode == 0


def test_a_forked_child_neither_uses_nor_keeps_nor_closes_the_database(path: Path) -> None:
    done = run(
        """
        store = Store.open(Path(sys.argv[1]))
        store.commit(lambda tx: tx.create_relation("t", row.schema))
        sys.stdout.flush()
        if os.fork() == 0:
            try:
                store.commit(lambda tx: None)
            except Exception as error:
                print(error.condition)
            store.close()
            # DuckDB's binding complains at the exit of a fork; closing the parent's connections would be worse.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            sys.exit()
        os.wait()
        store.commit(lambda tx: tx.append("t", row))
        store.close()
        print(Store.open(Path(sys.argv[1])).commit(lambda tx: tx.epoch))
        """,
        path,
    )
    assert (done.stdout.split(), done.stderr) == (["DATABASE_IN_USE", "3"], "")


# -- lost and foreign state ------------------------------------------------------------------------


def test_a_crash_loses_nothing(path: Path) -> None:
    make(path, 1)
    crash(path, 5)
    with Store.open(path) as store, store.read() as snapshot:
        assert (snapshot.epoch, snapshot.rows("t")) == (6, 5)


def test_a_lost_log_is_noticed(path: Path) -> None:
    make(path, 2)
    crash(path, 3)
    (path / "headrace.duckdb.wal").unlink()
    with refused("STATE_LOST", "epoch 5 .*epoch 2"):
        Store.open(path)
    with refused("STATE_LOST"):
        Store.open(path)
    with Store.open(path, accept_state=True) as store:
        assert store.commit(lambda tx: tx.epoch) == 3
    Store.open(path).close()


def test_a_torn_log_is_noticed(path: Path) -> None:
    make(path, 2)
    crash(path, 3)
    log = path / "headrace.duckdb.wal"
    log.write_bytes(log.read_bytes()[:-20])
    with refused("STATE_LOST"):
        Store.open(path)


def test_a_log_with_a_flipped_bit_is_noticed(path: Path) -> None:
    make(path, 2)
    crash(path, 3)
    log = path / "headrace.duckdb.wal"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0x10
    log.write_bytes(data)
    with refused("STATE_LOST"):
        Store.open(path)


def test_a_foreign_log_is_noticed(path: Path, tmp_path: Path) -> None:
    for place in (path, tmp_path / "other"):
        make(place, 2)
        crash(place, 3)
    shutil.copy(tmp_path / "other" / "headrace.duckdb.wal", path / "headrace.duckdb.wal")
    with refused("STATE_FOREIGN"):
        Store.open(path)


def test_another_database_file_is_noticed(path: Path, tmp_path: Path) -> None:
    make(path, 3)
    make(tmp_path / "other", 9)
    shutil.copy(tmp_path / "other" / "headrace.duckdb", path / "headrace.duckdb")
    with refused("STATE_FOREIGN", "not the one"):
        Store.open(path)


def test_an_older_copy_of_the_file_is_noticed(path: Path, tmp_path: Path) -> None:
    make(path, 2)
    shutil.copy(path / "headrace.duckdb", tmp_path / "copy")
    crash(path, 2)
    Store.open(path).close()
    shutil.copy(tmp_path / "copy", path / "headrace.duckdb")
    with refused("STATE_LOST", "older copy"):
        Store.open(path)


def test_a_copy_that_went_another_way_is_noticed(path: Path, tmp_path: Path) -> None:
    make(path, 2)
    shutil.copytree(path, tmp_path / "fork")
    crash(path, 1)
    crash(tmp_path / "fork", 4)
    Store.open(path).close()
    Store.open(tmp_path / "fork").close()
    shutil.copy(tmp_path / "fork" / "headrace.duckdb", path / "headrace.duckdb")
    with refused("STATE_FOREIGN", "another way"):
        Store.open(path)


def test_a_missing_file_or_marker_is_noticed(path: Path) -> None:
    make(path, 2)
    (path / "headrace.marker").unlink()
    with refused("STATE_FOREIGN", "marker"):
        Store.open(path)
    Store.open(path, accept_state=True).close()
    (path / "headrace.duckdb").unlink()
    with refused("STATE_LOST", "gone"):
        Store.open(path)


def test_a_full_disk_is_an_error_and_loses_nothing_acknowledged(path: Path) -> None:
    """A limit on file size stands in for the full disk: the write fails in the same place."""
    make(path, 1)
    done = run(
        """
        import resource
        store = Store.open(Path(sys.argv[1]))
        rows = pa.table({"n": list(range(20_000))})
        resource.setrlimit(resource.RLIMIT_FSIZE, (900_000, resource.RLIM_INFINITY))
        good = 0
        try:
            while True:
                store.commit(lambda tx: tx.append("t", rows))
                good += 1
        except Exception as error:
            print(good, error.condition)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store.commit(lambda tx: None)
        with store.read() as snapshot:
            print(snapshot.last_change("t"))  # not the epoch that failed, though its number was used again
        try:
            store.commit(lambda tx: tx.append("t", row))
            print("again")
        except Exception as error:
            print(error.condition)
        store.close()
        """,
        path,
    )
    assert done.stderr == ""
    good, condition, change, then = done.stdout.split()
    assert (condition, int(change), then) == ("STATE_NOT_WRITTEN", 1 + int(good), "again")
    with Store.open(path) as store, store.read() as snapshot:
        assert snapshot.rows("t") == int(good) * 20_000 + 1
        assert snapshot.epoch == 1 + int(good) + 2


# -- closing ---------------------------------------------------------------------------------------


def test_a_closed_store_says_so(path: Path) -> None:
    store = Store.open(path)
    store.close()
    store.close()
    with refused("DATABASE_CLOSED"):
        store.commit(lambda tx: None)
    with refused("DATABASE_CLOSED"), store.read():
        pass
    with refused("DATABASE_CLOSED"):
        store.new_segment("t")


def test_close_waits_for_the_commits_it_accepted(path: Path) -> None:
    make(path, 1)
    store = Store.open(path)
    started, outcomes = threading.Event(), []

    def slow() -> None:
        outcomes.append(store.commit(work))

    def work(tx: Transaction) -> int:
        started.set()
        while not store._writer._stopped:  # until the store is being closed
            time.sleep(0.001)
        tx.append("t", ROW)
        return tx.epoch

    thread = threading.Thread(target=slow)
    thread.start()
    started.wait()
    store.close()
    thread.join()
    assert outcomes == [2]
    with Store.open(path) as again, again.read() as snapshot:
        assert snapshot.rows("t") == 1


@pytest.mark.parametrize("begins", ["before it", "beside it"])
def test_close_interrupts_running_queries_and_open_snapshots(
    path: Path, monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    monkeypatch.setattr(store_module, "_PATIENCE", 500.0)
    store = Store.open(path)
    running, closing, ended = threading.Event(), threading.Event(), []

    class Open(dict[Any, Any]):
        """The open snapshots; they are looked at once more when all were interrupted."""

        def values(self) -> Any:
            if not store._finish.alive:
                closing.set()
            return super().values()

    def query() -> None:
        try:
            with store.read() as snapshot:
                running.set()
                if begins == "beside it":
                    closing.wait()
                snapshot.query("SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b")
        except HeadraceError as error:
            ended.append(error.condition)

    store._readers._open = Open()
    thread = threading.Thread(target=query)
    thread.start()
    running.wait()
    with refused("DATABASE_CLOSED"), store.read() as mine:
        begun = time.monotonic()
        store.close()
        assert time.monotonic() - begun < 400, "it waited for the query"
        mine.definitions()
    thread.join(500)
    assert ended == ["DATABASE_CLOSED"]
    Store.open(path).close()


def test_a_forgotten_store_lets_go(path: Path) -> None:
    def forget() -> None:
        store = Store.open(path)
        store.commit(lambda tx: tx.create_relation("t", SCHEMA))

    forget()
    gc.collect()
    assert not any(thread.name == "headrace-writer" for thread in threading.enumerate())
    with Store.open(path) as store, store.read() as snapshot:
        assert snapshot.epoch == 1


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "store.close()",
        "with store.read() as open_one: sys.exit(0)",
        "held = store.read(); held.__enter__()",
        "raise SystemExit",
        "try: store.commit(lambda tx: 1 / 0)\nexcept ZeroDivisionError as error: kept = error",
        "from threading import Thread; from time import sleep\n"
        "Thread(target=lambda: store.commit(lambda tx: sleep(0.2))).start()",
        "store = None",
    ],
)
def test_a_program_exits_silently_however_it_ends(path: Path, ending: str) -> None:
    make(path, 1)
    code = "store = Store.open(Path(sys.argv[1]))\nstore.commit(lambda tx: tx.append('t', row))\n" + ending
    done = run(code, path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with Store.open(path) as store, store.read() as snapshot:
        assert snapshot.rows("t") == 1
