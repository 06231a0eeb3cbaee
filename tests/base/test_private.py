"""Files for one user alone, names from files, locks with a limit: what others may have written does no harm."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.base import private
from headrace.errors import HeadraceError
from headrace.rings import home
from headrace.rings.home import find_ring, sweep
from headrace.spark import porter, published
from headrace.spark.changes import Chain
from headrace.stream import inbox
from headrace.stream.inbox import Manifest, Tray


def refused(what: Callable[[], Any]) -> str:
    with pytest.raises(HeadraceError) as caught:
        what()
    assert caught.value.hint
    return caught.value.condition


@pytest.fixture(params=[0o000, 0o022, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {str(p): stat.S_IMODE(os.lstat(p).st_mode) for p in (folder, *folder.rglob("*")) if not p.is_symlink()}


def filled(path: Path, **settings: Any) -> headrace.Database:
    """A database with all that it may have made on the disk."""
    db = headrace.connect(path, compact_rows=10, **settings)
    db.sql("CREATE STREAM s (k INT, v STRING) WITH (capacity = 1000)")
    db.sql("CREATE TABLE t (k INT, name STRING)")
    db.insert("t", [(i, "x") for i in range(30_000)])
    db.sql(
        "CREATE VIEW v WITH (tables = 'frozen') AS "
        "SELECT t.name, count(*) AS n FROM s JOIN t ON s.k = t.k GROUP BY t.name"
    )
    db.insert("s", [(1, "a" * 100)] * 50)
    published.publish(db.path, "v-e1", 1, db.sql("SELECT * FROM v").arrow())
    Chain(db.path, "v-e1").advance(1, db.sql("SELECT * FROM v").arrow())
    tray = Tray(db.path, "query")
    with tray.locked():
        inbox.write_whole(tray.folder / "head.json", {})
        (tray.folder / "head.json").unlink()
    return db


def test_what_a_database_makes_is_its_users_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    target, ticket = tmp_path / "deep" / "a.hr", tmp_path / "ticket"
    os.mkdir(tmp_path / "deep", 0o755)
    os.chmod(tmp_path / "deep", 0o755)
    with filled(target) as db:
        (folder,) = {folder for folder, _ in db.runtime.rings._folders}
        db.export(ticket)
        seen = modes(target) | modes(ticket) | modes(folder)
    assert any(path.endswith(".wal") for path in seen) and any("/segments/" in path for path in seen)
    assert not {path: oct(mode) for path, mode in seen.items() if mode not in (0o700, 0o600)}


def test_a_directory_that_was_open_to_others_is_closed_unless_it_is_shared(tmp_path: Path) -> None:
    path = tmp_path / "a.hr"
    filled(path).close()
    for each, wide in ((path, 0o777), (path / "segments", 0o755), (path / "headrace.lock", 0o666)):
        os.chmod(each, wide)
    headrace.connect(path).close()
    assert {modes(path)[str(p)] for p in (path, path / "segments")} == {0o700}
    assert modes(path)[str(path / "headrace.lock")] == 0o600
    os.chmod(path, 0o750)
    with headrace.connect(path, shared=True) as db:
        db.sql("CREATE TABLE u (k INT)")
        db.insert("u", [(i,) for i in range(30_000)])
        assert stat.S_IMODE(path.stat().st_mode) == 0o750
    before = tmp_path / "made before"
    before.mkdir()
    os.chmod(before, 0o777)
    headrace.connect(before).close()
    assert stat.S_IMODE(before.stat().st_mode) == 0o700
    os.chmod(before / "inbox", 0o777)
    os.chmod(before, 0o770)
    with headrace.connect(before, shared=True):  # what is in it may be as open, and no more
        assert stat.S_IMODE((before / "inbox").stat().st_mode) & 0o007 == 0


def test_a_shared_directory_lets_its_group_do_what_it_says(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "a.hr"
    path.mkdir()
    os.chmod(path, 0o750)
    with filled(path, shared=True):
        found = modes(path)
    assert not {name: oct(mode) for name, mode in found.items() if mode not in (0o750, 0o640)}


@pytest.mark.parametrize("name", ["scratch", "segments", "inbox", "inbox/bell", "headrace.lock", "headrace.marker"])
def test_a_link_in_a_database_directory_leads_nowhere(tmp_path: Path, name: str) -> None:
    path, precious = tmp_path / "a.hr", tmp_path / "precious"
    precious.mkdir()
    (precious / "letter").write_text("dear")
    filled(path).close()
    private_part = path / name
    if private_part.is_dir():
        shutil.rmtree(private_part)
        private_part.symlink_to(precious)
    else:
        private_part.unlink()
        private_part.symlink_to(precious / "letter")
    assert refused(lambda: headrace.connect(path)) == "UNSAFE_NAME"
    assert (precious / "letter").read_text() == "dear" and os.listdir(precious) == ["letter"]


def test_a_segment_elsewhere_is_no_segment(tmp_path: Path) -> None:
    import duckdb

    path, precious = tmp_path / "a.hr", tmp_path / "precious"
    precious.write_text("dear")
    filled(path).close()
    for name in ("../../precious", str(precious)):
        with duckdb.connect(str(path / "headrace.duckdb")) as file:
            file.execute("UPDATE book.segments SET file = ?, bytes = 4", [name])
        assert refused(lambda: headrace.connect(path)) == "UNSAFE_NAME"
    assert precious.read_text() == "dear"


HOSTILE = [b"\xff\xfe", b"", b"{", b"7", b"[]", b"null", b'"x"', b"{}", b"[" * 200_000, b'{"a":' * 100_000]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_catalog_that_is_none_has_a_name_and_is_written_anew(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "a.hr"
    filled(path).close()
    (path / "catalog.json").write_bytes(text)
    assert refused(lambda: published.definition(path, "v")) == "CATALOG_DAMAGED"
    assert refused(lambda: published.zone_of(path)) == "CATALOG_DAMAGED"
    headrace.connect(path).close()
    assert published.definition(path, "v").relation.name == "v"


def test_a_pipe_for_a_catalog_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.hr"
    filled(path).close()
    (path / "catalog.json").unlink()
    os.mkfifo(path / "catalog.json")
    assert refused(lambda: published.zone_of(path)) == "UNSAFE_NAME"
    headrace.connect(path).close()
    assert published.zone_of(path) == "UTC"


def test_a_catalog_with_odd_values_has_a_name(tmp_path: Path) -> None:
    path = tmp_path / "a.hr"
    filled(path).close()
    whole = json.loads((path / "catalog.json").read_text())
    for change in ({"made": "/../../x"}, {"name": 7}, {"body": []}, {"body": {}}, {"body": {"columns": [["a", 7, 1]]}}):
        odd = {**whole, "relations": [{**whole["relations"][0], **change}]}
        (path / "catalog.json").write_text(json.dumps(odd))
        assert refused(lambda: published.definition(path, "s")) == "CATALOG_DAMAGED"


def test_an_inbox_may_name_files_of_its_tray_only(tmp_path: Path) -> None:
    path = tmp_path / "a.hr"
    filled(path).close()
    outside = tmp_path / "outside.parquet"
    outside.write_bytes(b"PAR1")
    tray = Tray(path, "query")
    for files in ((str(outside),), ("../../../outside.parquet",), ("..",), ("link.parquet",)):
        (tray.folder / "link.parquet").unlink(missing_ok=True)
        (tray.folder / "link.parquet").symlink_to(outside)
        tray.put(0, Manifest("s", files, 1, 1, "run"), limit=1 << 30)
        with headrace.connect(path) as db:
            failure = db._porter.drain() if db._porter is not None else None
            assert failure is not None and failure.condition == "UNSAFE_NAME"
            assert db.sql("SELECT count(*) FROM v WHERE n > 50").rows() == [(0,)]
        assert tray.withdraw(0)
    assert outside.read_bytes() == b"PAR1"


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_an_inbox_that_says_nothing_sensible_has_a_name(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "a.hr"
    filled(path).close()
    tray = Tray(path, "query")
    for name in ("head.json", "0.json"):
        (tray.folder / name).write_bytes(text)
    (tray.folder / "0.failed").write_bytes(text)
    assert refused(tray.batches) == "INBOX_DAMAGED"
    assert refused(lambda: tray.put(1, Manifest("s", (), 0, 0, "r"), limit=1)) == "INBOX_DAMAGED"
    failure = tray.failure(0)
    assert failure is not None and failure.condition == "INBOX_DAMAGED"
    (path / "changes" / "v-e1" / "chain.json").write_bytes(text)
    if text != b"[]":
        assert refused(Chain(path, "v-e1").links) == "CHANGES_DAMAGED"
    with headrace.connect(path) as db:
        asks = path / "inbox" / "asks"
        asks.mkdir(exist_ok=True)
        (asks / "1.json").write_bytes(text)
        published.answer(db, "ask-1")
        assert b"INBOX_DAMAGED" in (asks / "1.reply").read_bytes()
        (path / "inbox" / "bell" / "a folder").mkdir()
        inbox.ring(path, "ask-none")
        while os.listdir(path / "inbox" / "bell"):  # the porter goes on
            assert db._porter is not None and db._porter._thread.is_alive()
            time.sleep(0.01)


def test_published_files_are_where_they_are_published(tmp_path: Path) -> None:
    for name in ("../x", "/etc/passwd", None, 7, ""):
        assert refused(lambda name=name: published.published_file(tmp_path, name)) == "UNSAFE_NAME"  # type: ignore[misc]


def test_rings_of_others_are_neither_used_nor_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "shm"
    shared.mkdir()
    monkeypatch.setattr(home, "_SHARED_MEMORY", shared)
    pointers = private.make_folder(tmp_path / "a.hr" / "rings")
    theirs = shared / f"headrace-{os.geteuid()}-theirs"
    (theirs / "r1").mkdir(parents=True)
    precious = tmp_path / "precious"
    precious.mkdir()
    link = shared / f"headrace-{os.geteuid()}-link"
    link.symlink_to(precious)
    monkeypatch.setattr(home, "_is_ours", lambda folder: False)
    for found in (str(theirs / "r1"), str(precious), "/", "..", "", str(link / "x"), f"{theirs}/../x", "a\0b"):
        (pointers / "s.json").write_text(json.dumps({"ring": found}))
        assert refused(lambda: find_ring(tmp_path / "a.hr", "s")) in ("RING_FOREIGN", "UNSAFE_NAME")
    for text in HOSTILE:
        (pointers / "s.json").write_bytes(text)
        assert refused(lambda: find_ring(tmp_path / "a.hr", "s")) == "RING_FOREIGN"
    sweep()
    assert theirs.exists() and precious.exists()
    monkeypatch.undo()
    monkeypatch.setattr(home, "_SHARED_MEMORY", shared)
    sweep()  # of this user, and nobody holds its lock
    assert not theirs.exists() and precious.exists() and link.is_symlink()


# Locks


def hold(path: Path) -> subprocess.Popen[bytes]:
    """Another process that holds a lock until it is ended."""
    code = "import fcntl,os,sys,time; fd=os.open(sys.argv[1], os.O_RDONLY); fcntl.flock(fd, 2); print(1, flush=True)"
    process = subprocess.Popen([sys.executable, "-c", f"{code}; time.sleep(600)", str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    return process


@pytest.fixture
def holding() -> Iterator[Callable[[Path], int]]:
    held: list[subprocess.Popen[bytes]] = []

    def begin(path: Path) -> int:
        held.append(hold(path))
        return held[-1].pid

    yield begin
    for process in held:
        process.kill()
        process.communicate()


def test_nobody_who_locks_shared_memory_makes_connect_wait(tmp_path: Path, holding: Callable[[Path], int]) -> None:
    holding(Path("/dev/shm"))
    holding(Path("/tmp"))
    with filled(tmp_path / "a.hr") as db:
        assert db.sql("SELECT n FROM v").rows() == [(50,)]


@pytest.mark.parametrize("name", ["inbox/owner.lock", "inbox/query/lock", "headrace.lock"])
def test_a_lock_that_is_held_is_waited_for_so_long_and_says_by_whom(
    tmp_path: Path, holding: Callable[[Path], int], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(inbox, "_SIGN_PATIENCE", 0.2)
    monkeypatch.setattr(porter.Porter.take, "__defaults__", (0.2,))
    path = tmp_path / "a.hr"
    filled(path).close()
    (path / "inbox" / "query" / "head.json").write_text("{}")
    pid = holding(path / name)
    with pytest.raises(HeadraceError) as caught:
        headrace.connect(path)
    if name == "headrace.lock":
        assert caught.value.condition == "DATABASE_IN_USE"
    else:
        assert caught.value.condition == "LOCK_HELD" and f"process {pid}" in caught.value.message
        assert caught.value.hint


def test_a_rings_lock_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.rings import book

    with filled(tmp_path / "a.hr") as db:
        (ring,) = db.runtime.rings.all()
        monkeypatch.setattr(book, "_LOCKED_SECONDS", 0.1)
        fd = os.open(ring.folder / "ring", os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(HeadraceError) as caught, ring.book.locked():
            pass
        assert caught.value.condition == "LOCK_HELD" and str(os.getpid()) in caught.value.message
        os.close(fd)
        with ring.book.locked():
            pass


def test_names_that_lead_out_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "below").mkdir(parents=True)
    (folder / "plain").touch()
    (folder / "below" / "twice").touch()
    os.link(folder / "below" / "twice", tmp_path / "other name")
    (folder / "out").symlink_to(tmp_path)
    (folder / "link").symlink_to(folder / "plain")
    os.mkfifo(folder / "pipe")
    good = ["plain", "below", "below/new", "new/deep"]
    assert [private.inside(folder, name) for name in good] == [folder / name for name in good]
    odd = ["/etc/passwd", "..", ".", "", "below/..", "below/../../x", "out/x", "out", "link", "pipe", "below/twice"]
    for name in (*odd, "a\0b", "a//b", "below/", "x" * 300, "\udcff", 7, None, ["plain"], b"plain"):
        assert refused(lambda name=name: private.inside(folder, name)) == "UNSAFE_NAME"  # type: ignore[misc]
    assert refused(lambda: private.require_plain(folder)) == "UNSAFE_NAME"
    for name in ("link", "pipe", "out"):
        assert refused(lambda name=name: private.read_json(folder / name)) == "UNSAFE_NAME"  # type: ignore[misc]
