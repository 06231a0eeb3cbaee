"""Folders that a process has while it lives, in the directory for temporary files.

A process that is killed cannot remove its folder, so whoever opens a database next does. A lock in the folder, which
the kernel gives back, tells whether its owner lives. The directory is everybody's: only folders are looked at that are
called as ours are, belong to this user and have that lock; a folder is made and locked under another name, so that
nobody finds it before. A database that was left behind can be opened by its path, and is then kept.

>>> found = claim()
>>> sweep()
>>> found.folder.is_dir()
True
>>> found.remove()
>>> found.folder.exists()
False
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.base.private import open_file
from headrace.errors import StoreError

OWNED = "headrace.base.temporary"
"""The file whose lock tells that a folder's owner lives."""
_MAKING_SECONDS = 3600.0
"""After which a folder that is still being made is taken for one whose maker was killed."""


class ClaimedFolder:
    """A folder of this process's own, until it is removed or the process ends."""

    def __init__(self, folder: Path, fd: int) -> None:
        self.folder = folder
        self._fd = fd
        _held.add(self)

    def remove(self) -> None:
        _remove(self.folder)
        self.let_go()

    def let_go(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_held: weakref.WeakSet[ClaimedFolder] = weakref.WeakSet()


def _forget() -> None:
    # A forked child shares the open file: it would keep the folder from being swept after its parent is gone.
    for claimed in list(_held):
        claimed.let_go()


os.register_at_fork(after_in_child=_forget)


def claim() -> ClaimedFolder:
    """Make a new folder, for this user alone."""
    making = Path(tempfile.mkdtemp(prefix=_making()))
    os.chmod(making, 0o700)  # of which the umask may have taken bits
    fd = open_file(making / OWNED, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    folder = making.with_name(making.name.removeprefix("."))
    making.rename(folder)
    return ClaimedFolder(folder, fd)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder for the length of a block."""
    claimed = claim()
    try:
        yield claimed.folder
    finally:
        claimed.remove()


def keep(folder: Path) -> None:
    """Have a folder that was left behind swept no more: somebody opens it by its path."""
    with suppress(OSError, StoreError), _locked(folder):
        (folder / OWNED).unlink()


def sweep() -> None:
    """Remove the folders of processes that were killed."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as found:
        for folder in [Path(entry.path) for entry in found if entry.name.startswith((_prefix(), _making()))]:
            with suppress(OSError, StoreError):
                _sweep(folder)


def _sweep(folder: Path) -> None:
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    if folder.name.startswith(_making()) and time.time() - found.st_mtime < _MAKING_SECONDS:
        return
    with _locked(folder):
        _remove(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock; ``OSError`` if it has none or somebody else holds it."""
    fd = open_file(folder / OWNED, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(fd), os.lstat(folder / OWNED)):
            raise FileNotFoundError(folder)  # another has removed it meanwhile
        yield
    finally:
        os.close(fd)


def _remove(folder: Path) -> None:
    """Remove a folder; its lock goes last, so that what is cut short can be done again."""
    with suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if name != OWNED:
                path = folder / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _prefix() -> str:
    return f"headrace-temporary-{os.geteuid()}-"


def _making() -> str:
    """How the name of a folder starts that is not locked yet: not as those that are looked for at once."""
    return f".{_prefix()}"
