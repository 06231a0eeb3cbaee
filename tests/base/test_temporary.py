"""Temporary databases: whatever ends their process, they do not stay for ever, and nothing else is removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.base import temporary

OPENS = """
import sys, time, headrace
db = headrace.connect()
db.sql("CREATE TABLE t (a INT)")
db.insert("t", [(1,)] * 200_000)
print(db.path, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for temporary files of the test's own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield tmp_path


def begun() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", OPENS], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def ended(process: subprocess.Popen[str], how: signal.Signals) -> None:
    process.send_signal(how)
    process.communicate()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_killed_process_leaves_is_removed_by_the_next_open(how: signal.Signals, place: Path) -> None:
    process, folder = begun()
    try:
        assert folder.parent == place
        for given in (None, place / "a.hr"):
            with headrace.connect(given):
                assert (folder / "headrace.duckdb").exists()  # its owner lives
    finally:
        ended(process, how)
    assert folder.exists()
    with headrace.connect(place / "a.hr"):
        assert not folder.exists()
    assert [p.name for p in place.iterdir()] == ["a.hr"]


def test_a_database_left_behind_that_is_opened_by_its_path_is_kept(place: Path) -> None:
    process, folder = begun()
    ended(process, signal.SIGKILL)
    for _ in range(2):
        with headrace.connect(folder) as db, headrace.connect():
            assert db.sql("SELECT count(*) FROM t").rows() == [(200_000,)]
        with headrace.connect():
            assert folder.exists()


def test_nothing_of_anybody_else_is_removed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = temporary._prefix()
    (place / f"{prefix}mine").mkdir()
    (place / f"{prefix}mine" / "notes").write_text("keep")
    (place / f"{prefix}a-file").write_text("keep")
    (place / "precious").mkdir()
    (place / "precious" / "headrace.base.temporary").write_text("")
    (place / f"{prefix}link").symlink_to(place / "precious")
    (place / f"{prefix}inside").mkdir()
    (place / f"{prefix}inside" / "headrace.base.temporary").symlink_to(place / "precious" / "headrace.base.temporary")
    with headrace.connect(place / f"{prefix}database.hr") as db:
        db.sql("CREATE TABLE t (a INT)")
    (place / f".{prefix}young").mkdir()
    (place / f".{prefix}young" / "headrace.base.temporary").write_text("")
    process, folder = begun()
    ended(process, signal.SIGKILL)
    theirs = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: theirs)
    monkeypatch.setattr(temporary, "_prefix", lambda: prefix)  # others may call theirs so too
    before = sorted(place.rglob("*"))
    temporary.sweep()
    assert sorted(place.rglob("*")) == before
    monkeypatch.undo()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    temporary.sweep()
    assert sorted(place.rglob("*")) == [p for p in before if folder not in (p, *p.parents)]


def test_a_folder_that_was_never_finished_goes_after_a_while(place: Path) -> None:
    left = place / f"{temporary._making()}old"
    left.mkdir()
    (left / "headrace.base.temporary").write_text("")
    temporary.sweep()
    assert left.exists()
    os.utime(left, (0, 0))
    temporary.sweep()
    assert not left.exists()


def test_a_forked_child_neither_removes_nor_holds_its_parents_folder(place: Path) -> None:
    forks = "import os; os.fork() or (print('forked', flush=True), time.sleep(2)); os._exit(0)"
    text = OPENS.replace("time.sleep(600)", forks)
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert process.stdout.readline() == "forked\n"  # the child has let go of what it got by the fork
    process.wait()  # the child lives on
    temporary.sweep()
    assert not folder.exists()
    process.communicate()


def test_a_temporary_database_that_cannot_be_opened_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.store.store.Directory", lambda *_, **__: 1 // 0)
    with pytest.raises(headrace.errors.HeadraceError):
        headrace.connect()
    assert not list(place.iterdir())
