"""The directory a database lives in: who may write it, what belongs to it, what is left over.

::

    headrace.duckdb       catalog, epochs, source sequences, state relations, table tails
    headrace.duckdb.wal   DuckDB's write-ahead log
    segments/             immutable files other processes may read, each named in the manifest
    scratch/              files of running statements and published snapshots, swept at open
    headrace.lock         held (flock) by the one process that has the database open; holds its pid
    headrace.marker       the last epoch acknowledged, kept outside the database file

The marker is how a lost log is noticed. DuckDB opens a database whose log is gone without a
word: the epochs in the log have silently never been. The marker is written after each commit,
so it never claims more than is durable, and a database file that knows less has lost something.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import sys
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import duckdb

from headrace.base.private import make_folder, open_file, parse_json, protect, unsafe
from headrace.base.temporary import OWNED
from headrace.errors import StoreError

DATABASE = "headrace.duckdb"
LOG = DATABASE + ".wal"
UNFINISHED = DATABASE + ".new"
SEGMENTS = "segments"
SCRATCH = "scratch"
LOCK = "headrace.lock"
MARKER = "headrace.marker"
# What a creation that was cut short may leave; a directory with nothing else counts as empty.
_CREATION = frozenset({LOCK, SEGMENTS, SCRATCH, UNFINISHED, UNFINISHED + ".wal", MARKER, OWNED})
# One disk sector: overwritten in place by a single write, so it is the old marker or the new one.
_MARKER_BYTES = 512


@dataclass(frozen=True, slots=True)
class Marker:
    """What the last acknowledged commit left outside the database file."""

    database: str
    epoch: int
    at: int

    def encode(self) -> bytes:
        """The marker as one padded sector with a checksum.

        >>> Marker.decode(Marker("x", 7, 0).encode())
        Marker(database='x', epoch=7, at=0)
        >>> Marker.decode(b"7" * 512) is None
        True
        """
        body = json.dumps([self.database, self.epoch, self.at])
        return f"{zlib.crc32(body.encode()):08x} {body}\n".ljust(_MARKER_BYTES).encode()

    @staticmethod
    def decode(data: bytes) -> Marker | None:
        """The marker in ``data``; ``None`` if there is none that can be trusted."""
        check, _, body = data.decode("utf-8", "replace").strip().partition(" ")
        if check != f"{zlib.crc32(body.encode()):08x}":
            return None
        match parse_json(body):
            case [str(database), int(epoch), int(at)]:
                return Marker(database, epoch, at)
        return None  # of a newer format, which the database file will tell


class DirectoryLock:
    """The right to write a directory: an advisory ``flock``, released by the kernel when the process dies.

    ``flock`` and not a POSIX record lock: it belongs to the open file, so a second open in the
    *same* process is refused too, and closing some other descriptor of the file does not drop it.
    """

    def __init__(self, path: Path) -> None:
        self._fd = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 1024, 0).decode("utf-8", "replace").splitlines()
            self.release()
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise StoreError(
                "DATABASE_IN_USE",
                f"{path.parent} is open in {_holder(*holder)}",
                hint="one process has a database open: use that one, or close it first. Meanwhile "
                f"spark.read.format('headrace').option('path', {str(path.parent)!r}).option('view', …) reads it, "
                "and headrace.ring inserts into its streams (docs/spark.md)",
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n{socket.gethostname()}\n{_program()}\n".encode(), 0)
        _held.add(self)

    def release(self) -> None:
        """Give the right back; harmless when it is already given."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _program() -> str:
    """What this process is, in a few words: the rest of a command line may be long, or nobody's business."""
    name = os.path.basename(sys.argv[0] if sys.argv else "") or "python"
    return f"headrace {sys.argv[1]}" if name == "headrace" and len(sys.argv) > 1 else name.replace("\n", " ")[:100]


def _holder(pid: str = "", host: str = "", program: str = "") -> str:
    """Who has a database open, by what it wrote into its lock."""
    if pid == str(os.getpid()) and host in ("", socket.gethostname()):
        return "this process"
    at = f" on {host}" if host and host != socket.gethostname() else ""
    return f"process {pid or 'unknown'}" + (f" ({program})" if program else "") + at


def is_locked(path: Path) -> bool:
    """Whether some process holds an exclusive lock on a file, as :class:`DirectoryLock` does; no file is not locked."""
    try:
        fd = open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _forget_locks() -> None:
    # A forked child shares the open file: it would keep the lock alive after its parent is gone.
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget_locks)


class Directory:
    """A claimed database directory: paths, lock, marker and sweeping."""

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        """Claim ``path`` for this process, creating it where there is nothing yet, for this user alone.

        A directory that holds something else is left exactly as it was, and one that is ``shared`` keeps its mode.
        """
        self.path = path
        self._marker_fd = -1
        try:
            _refuse_foreign(path)
            make_folder(Path(os.path.realpath(path)), top=True, tighten=not shared)
            self._lock = DirectoryLock(path / LOCK)
            try:
                for below in (SEGMENTS, SCRATCH, *os.listdir(path)):
                    if below in (SEGMENTS, SCRATCH) or os.path.isdir(path / below):
                        make_folder(path / below)  # which refuses a link: what is swept must be ours
                    elif os.path.islink(path / below):
                        raise unsafe(path / below, "is a link")
                self._marker_fd = open_file(path / MARKER, os.O_RDWR | os.O_CREAT)
                self.protect_database()
            except BaseException:
                self._lock.release()
                raise
        except OSError as error:
            raise unwritable(path, error) from error

    @property
    def database(self) -> Path:
        return self.path / DATABASE

    @property
    def segments(self) -> Path:
        return self.path / SEGMENTS

    @property
    def scratch(self) -> Path:
        return self.path / SCRATCH

    def marker(self) -> Marker | None:
        """The marker as it stands; ``None`` where there is none or it cannot be trusted."""
        return Marker.decode(os.pread(self._marker_fd, _MARKER_BYTES, 0))

    def mark(self, marker: Marker) -> None:
        """Set the marker. Until ``sync_marker`` it survives this process, not the machine: that is enough,
        for a marker that lags behind notices less but never refuses a sound database."""
        os.pwrite(self._marker_fd, marker.encode(), 0)

    def sync_marker(self) -> None:
        """Make the marker survive the machine."""
        os.fsync(self._marker_fd)

    def protect_database(self) -> None:
        """See to the modes of what DuckDB has made; until then only the directory's keeps others out."""
        for name in (DATABASE, LOG):
            protect(self.path / name)

    def log_bytes(self) -> int:
        """Size of the write-ahead log: what a checkpoint would have to fold in."""
        try:
            return os.stat(self.path / LOG).st_size
        except FileNotFoundError:
            return 0

    def room(self) -> int:
        """Bytes that can still be written here."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def sync_log(self, *, name: bool) -> None:
        """Make the write-ahead log survive the machine; with ``name``, also that there is one."""
        _sync(self.path / LOG, os.fdatasync)
        if name:
            _sync(self.path, os.fsync)

    def sweep_segments(self, named: set[str]) -> None:
        """Remove every file of ``segments/`` the manifest does not name."""
        for entry in self.segments.iterdir():
            if entry.name not in named:
                remove(entry)

    def sweep_scratch(self) -> None:
        """Remove everything in ``scratch/``."""
        for entry in self.scratch.iterdir():
            remove(entry)

    def release(self) -> None:
        """Let another process have the directory."""
        if self._marker_fd >= 0:
            os.close(self._marker_fd)
            self._marker_fd = -1
        self._lock.release()


def _refuse_foreign(path: Path) -> None:
    if path.is_dir():
        names = set(os.listdir(path))
        if DATABASE in names or MARKER in names or not names - _CREATION:
            return
        what = "holds other files"
    elif path.exists():
        what = "is a file"
    else:
        return
    raise StoreError(
        "NOT_A_DATABASE",
        f"{path} {what} and is not a Headrace database; nothing in it was changed",
        hint="name an empty or new directory",
    )


def unwritable(path: Path, error: OSError) -> StoreError:
    """The refusal for a directory the operating system will not let us write."""
    return StoreError(
        "STATE_NOT_WRITABLE",
        f"cannot write in {path}: {error.strerror or error}",
        hint="check the path, its permissions and the free space",
    )


def broken(path: Path, what: str) -> StoreError:
    """The refusal after a failure that leaves open what is on the disk: only opening again can tell."""
    return StoreError(
        "STATE_BROKEN", f"{path}: {what}", hint="close the database and open it again; acknowledged epochs are safe"
    )


def damaged(path: Path, what: str) -> StoreError:
    """The refusal for a file of the database that was altered or lost behind its back."""
    return StoreError("STATE_DAMAGED", f"{path} {what}", hint="restore the whole directory from one backup")


def fault_of(database: Path, error: duckdb.Error) -> StoreError | None:
    """What DuckDB says of its own file while it reads; ``None`` if the error is about something else."""
    text = str(error)
    if isinstance(error, duckdb.FatalException):
        return broken(database, text)
    if "Corrupt database file" in text or ("read enough bytes" in text and str(database) in text):
        return damaged(database, f"is not as it was written: {text}")
    return None


def remove(path: Path) -> None:
    """Remove a file or a directory of files; one that is gone already is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Make a file written by any process of this machine, and its name, survive a power cut."""
    _sync(path, os.fsync)
    _sync(path.parent, os.fsync)


def checksum(path: Path) -> tuple[int, int]:
    """Size and CRC-32 of a file; about 2 GB a second."""
    size = check = 0
    with open(path, "rb", buffering=0) as file:
        while block := file.read(1 << 20):
            size += len(block)
            check = zlib.crc32(block, check)
    return size, check


def _sync(path: Path, how: Callable[[int], None]) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        how(fd)
    finally:
        os.close(fd)
