"""Where the rings of a database are, and who may find them.

Rings live in shared memory, in a folder of their own for each open database; the process that owns them holds a lock
in it. A process that is killed leaves its folder behind, unlocked: whoever opens a database next removes it. The
database's directory says where the ring of a stream is, so that other processes find it there.

Shared memory is everybody's, so nothing there is trusted that is not this user's own, and no lock is waited for: a
folder is made and locked under a name that nobody looks at, and then gets its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from headrace.base.private import has_shape, inside, make_folder, open_file, read_json, write_text
from headrace.catalog import Buffer, Stream, file_name
from headrace.errors import ExecutionError, StoreError
from headrace.rings.book import Overflow
from headrace.rings.flight import Flights
from headrace.rings.layout import Layout
from headrace.rings.ring import Ring, Terms
from headrace.rings.scan import Scan

_SHARED_MEMORY = Path("/dev/shm")
_POINTERS = "rings"
_LOCK = "owner"
_MAKING_SECONDS = 3600.0
"""After which a folder that is still being made is taken for one whose maker was killed."""


def terms_of(stream: Stream) -> Terms:
    """What a stream's CREATE says about its ring, or what holds where it says nothing."""
    buffer = stream.buffer or Buffer()
    return Terms(buffer.capacity, buffer.timeout / 1e6, Overflow[buffer.overflow.upper()], buffer.patience / 1e6)


class Rings:
    """The rings of one open database."""

    def __init__(self, database: Path, scratch: Path, zone: str = "UTC", tls: tuple[str, str] = ("", "")) -> None:
        self._pointers = database / _POINTERS
        self._scratch = scratch
        self._zone = zone
        self._lock = threading.RLock()
        self._rings: dict[str, Ring] = {}
        self._made = 0
        self._notice: Callable[[], None] = lambda: None
        self.flights = Flights(lambda name: self._rings.get(name.lower()), tls)
        self._folders: list[tuple[Path, int]] = []
        shutil.rmtree(self._pointers, ignore_errors=True)  # of an owner that was killed
        sweep()

    def when_opened(self, notice: Callable[[], None]) -> None:
        """Have ``notice`` called whenever a ring is made."""
        self._notice = notice

    def all(self) -> list[Ring]:
        with self._lock:
            return list(self._rings.values())

    def find(self, stream: Stream) -> Ring | None:
        """The stream's ring, if there is one."""
        return self._rings.get(stream.name.lower())

    def wanted(self, stream: Stream) -> Ring | None:
        """The ring that rows of the stream are to go to, if somebody wants them there."""
        ring = self.find(stream)
        if ring is not None and (stream.buffer is not None or ring.book.has_readers):
            return ring
        return None

    def open(self, stream: Stream) -> Ring:
        """The stream's ring, made if there is none."""
        with self._lock:
            found = self.find(stream)
            if found is None:
                terms = terms_of(stream)
                self._made += 1
                folder = self._room(Layout.of(stream.columns, terms.capacity).bytes) / f"r{self._made}"
                found = Ring.create(folder, stream.name, stream.columns, terms, zone=self._zone)
                pointer = make_folder(self._pointers) / f"{file_name(stream.name.lower())}.json"
                write_text(pointer, json.dumps({"ring": str(folder), "stream": stream.name}))
                self._rings[stream.name.lower()] = found
                self._notice()
            return found

    def read(self, stream: Stream, columns: Sequence[str], *, oldest: bool) -> Scan:
        """A new reader of the stream, in a ring that nobody lets go of meanwhile."""
        with self._lock:
            return Scan.start(self.open(stream), columns, oldest=oldest)

    def release(self, stream: Stream) -> None:
        """Let go of a ring that exists for its readers only, when the last of them has ended."""
        with self._lock:
            ring = self.find(stream)
            if ring is not None and stream.buffer is None and not ring.book.has_readers:
                self.drop(stream.name)

    def drop(self, name: str) -> None:
        """End the ring of a stream."""
        with self._lock:
            ring = self._rings.pop(name.lower(), None)
            if ring is not None:
                (self._pointers / f"{file_name(name.lower())}.json").unlink(missing_ok=True)
                ring.destroy()

    def close(self) -> None:
        """End all rings."""
        self.flights.close()
        with self._lock:
            for name in list(self._rings):
                self.drop(name)
            for folder, fd in self._folders:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(fd)
            self._folders.clear()
            with suppress(OSError):
                self._pointers.rmdir()

    def _room(self, size: int) -> Path:
        """A folder with room for a ring: in shared memory, else on the database's disk."""
        for place in (_SHARED_MEMORY, Path(tempfile.gettempdir()), self._scratch):
            if place.is_dir() and _free(place) > size + size // 4:
                found = next((folder for folder, _ in self._folders if folder.parent == place), None)
                return found or self._claim(place)
        raise ExecutionError(
            "STREAM_CAPACITY_TOO_LARGE",
            f"a buffer of {size:,} bytes finds no room",
            hint="give the stream a smaller capacity",
        )

    def _claim(self, place: Path) -> Path:
        """A folder that is this process's while it lives."""
        making = Path(tempfile.mkdtemp(prefix=_making(), dir=place))
        os.chmod(making, 0o700)  # of which the umask may have taken bits
        fd = open_file(making / _LOCK, os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder = place / (_prefix() + making.name.removeprefix(_making()))
        making.rename(folder)
        self._folders.append((folder, fd))
        return folder


def find_ring(database: Path, stream: str) -> Path:
    """Where another process's ring of a stream is."""
    pointer = database / _POINTERS / f"{file_name(stream.lower())}.json"
    try:
        found = read_json(pointer)
        if not has_shape(found, {"ring": str}):
            raise ValueError("no ring")
        return _ours(Path(found["ring"]))
    except ValueError:
        raise ExecutionError(
            "RING_FOREIGN", f"{pointer} names no ring of this user", hint="open the database anew in its own process"
        ) from None
    except FileNotFoundError:
        raise ExecutionError(
            "STREAM_NOT_BUFFERED",
            f"no process has stream {stream} of {database} open with a buffer",
            hint="open the database there, and make the stream WITH (capacity = …) or query it",
        ) from None


def sweep() -> None:
    """Remove the rings of processes that were killed."""
    for place in (_SHARED_MEMORY, Path(tempfile.gettempdir())):
        if place.is_dir():
            for folder in (*place.glob(f"{_prefix()}*"), *place.glob(f"{_making()}*")):
                if _is_abandoned(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def _ours(folder: Path) -> Path:
    """A ring's folder that a database's directory names, if it is called as rings' are and this user's own."""
    if not folder.parent.name.startswith(_prefix()) or not _is_ours(folder.parent):
        raise ValueError("not where rings are")
    return inside(folder.parent, folder.name)


def _is_ours(folder: Path) -> bool:
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _is_abandoned(folder: Path) -> bool:
    try:
        if not _is_ours(folder):
            return False
        if folder.name.startswith(_making()):
            return time.time() - os.lstat(folder).st_mtime > _MAKING_SECONDS
        fd = open_file(folder / _LOCK, os.O_RDWR)
    except (OSError, StoreError):
        return _is_there(folder) and not _is_there(folder / _LOCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)


def _prefix() -> str:
    return f"headrace-{os.geteuid()}-"


def _making() -> str:
    """How the name of a folder starts that is not locked yet: not as those that are looked for."""
    return f".{_prefix()}"


def _free(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize
