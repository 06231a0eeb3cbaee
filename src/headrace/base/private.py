"""Files for one user alone, and what was read from files that somebody else may have written.

Folders are made 0700 and files 0600 whatever the umask, and never through a link. Only where the folder above lets its
group in (``shared``, in the settings) does what is made in it. A name that was read from a file is no path yet:
:func:`inside` makes it one, inside a given folder and nowhere else. A value that was read is looked at
(:func:`has_shape`) before it is used. docs/security.md says what all this protects from whom.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any

from headrace.errors import StoreError

_GROUP = stat.S_IRWXU | stat.S_IRWXG
JSON_BYTES = 64 * 1024 * 1024
"""The most a file of JSON may have: the largest we write lists the files of a database."""


def make_folder(path: Path, *, top: bool = False, tighten: bool = True) -> Path:
    """Make a folder for this user alone, or for the group that may use the folder above; one that is there is
    narrowed to that. ``top``: whatever the folder above is, this one is for the user alone."""
    if not path.parent.exists():
        if top:
            path.parent.mkdir(parents=True, exist_ok=True)
        else:
            make_folder(path.parent)
    mode = 0o700 if top else _GROUP & (_mode_above(path) | 0o700)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode):
            raise unsafe(path, "is not a folder") from None
        if tighten and stat.S_IMODE(found.st_mode) & ~mode & 0o777 and found.st_uid == os.geteuid():
            os.chmod(path, stat.S_IMODE(found.st_mode) & (mode | stat.S_ISGID))
    else:
        os.chmod(path, mode)  # the umask may have taken bits that are needed
    return path


def open_file(path: Path, flags: int) -> int:
    """A descriptor of a file that is no link, pipe or device; made for this user alone if ``flags`` make it."""
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise unsafe(path, "is a link or no file") from None
        raise
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise unsafe(path, "is no file")
        if flags & os.O_CREAT and (mode := _wanted(path, found)) is not None:
            os.fchmod(fd, mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def protect(path: Path) -> None:
    """Give a file that somebody else's code has made the mode it should have; none is fine.

    It is not opened: to close a file that DuckDB has open would drop DuckDB's lock.
    """
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            raise unsafe(path, "is a link or no file")
        if (mode := _wanted(path, found)) is not None:
            os.chmod(path, mode)
    except FileNotFoundError:
        pass


def _wanted(path: Path, found: os.stat_result) -> int | None:
    """The mode a file should have, if it has another one and is this user's."""
    mode = 0o660 & (_mode_above(path) | 0o600)
    return mode if stat.S_IMODE(found.st_mode) != mode and found.st_uid == os.geteuid() else None


def new_file(path: Path) -> Path:
    """Make an empty file for this user alone, for a library to write: it keeps the mode."""
    os.close(open_file(path, os.O_WRONLY | os.O_CREAT))
    return path


def write_text(path: Path, text: str) -> None:
    with open(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w", encoding="utf-8") as file:
        file.write(text)


def _mode_above(path: Path) -> int:
    try:
        return stat.S_IMODE(os.stat(path.parent).st_mode)
    except FileNotFoundError:
        return 0


# What others wrote


def inside(folder: Path, name: object) -> Path:
    """The path a name from a file stands for: inside ``folder``, and through no link on the way.

    >>> str(inside(Path("/data"), "state/0/a.parquet"))
    '/data/state/0/a.parquet'
    >>> for name in ("/etc/passwd", "../x", "a/../../x", "", "a//b", "a\\0b", 7):
    ...     try:
    ...         print(inside(Path("/data"), name))
    ...     except StoreError as error:
    ...         assert error.condition == "UNSAFE_NAME"
    """
    path = folder.joinpath(*parts_of(folder, name))
    for each in (*reversed(path.parents), path):
        if folder in each.parents:
            try:
                found = os.lstat(each)
            except (FileNotFoundError, NotADirectoryError):
                break
            _require_plain(each, found)
    return path


def parts_of(folder: object, name: object) -> list[str]:
    """The parts of a name from a file, none of which leads out of the folder it is in."""
    parts = name.split("/") if isinstance(name, str) else []
    if not parts or any(part in ("", ".", "..") or len(os.fsencode(part)) > 255 for part in _spelled(parts)):
        raise unsafe(folder, f"names {name!r}, which is no file in it")
    return parts


def _spelled(parts: list[str]) -> list[str]:
    """The parts as a filesystem may have them; one that none may have counts as empty."""
    return ["" if "\0" in part or any("\ud800" <= c <= "\udfff" for c in part) else part for part in parts]


def require_plain(folder: Path) -> None:
    """Refuse a folder that holds, however deep, anything but files and folders of its own."""
    for path in _below(folder):
        _require_plain(path, os.lstat(path))


def _below(folder: Path) -> Iterator[Path]:
    yield folder
    for above, folders, files in os.walk(folder, onerror=_raise):
        for name in (*folders, *files):
            yield Path(above, name)


def _raise(error: OSError) -> None:
    raise error


def _require_plain(path: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise unsafe(path, "is a link")
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        raise unsafe(path, "has other names too (hard links)")
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise unsafe(path, "is neither a file nor a folder")


def unsafe(where: object, what: str) -> StoreError:
    return StoreError(
        "UNSAFE_NAME",
        f"{where} {what}",
        hint="nothing was done: a folder of Headrace holds plain files and folders, and names only those; "
        "take one from somebody you trust",
    )


def read_json(path: Path) -> Any:
    """What a file of JSON holds; ``ValueError`` if it is none, ``FileNotFoundError`` if there is none."""
    return parse_json(read_bytes(path))


def read_bytes(path: Path) -> bytes:
    """What a file holds, or as much of it as shows that it is too long for JSON."""
    with open(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read(JSON_BYTES + 1)


def parse_json(text: str | bytes) -> Any:
    """A JSON text's value; ``ValueError`` for whatever is none, too long or too deep.

    >>> for text in (b"{", b"\\xff", "[" * 100_000):
    ...     try:
    ...         parse_json(text)
    ...     except ValueError:
    ...         print("refused")
    refused
    refused
    refused
    """
    if len(text) > JSON_BYTES:
        raise ValueError(f"more than {JSON_BYTES:,} bytes")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def has_shape(value: Any, shape: Any) -> bool:
    """Whether a value from JSON is as expected: a type, ``[type]`` for any number, a tuple for so many, a dict with at
    least these keys.

    >>> shape = {"rows": int, "files": [(str, int)], "note": str | None}
    >>> has_shape({"rows": 1, "files": [["a", 2]], "note": None, "more": 0}, shape)
    True
    >>> [has_shape(value, shape) for value in (7, {"rows": 1}, {"rows": True, "files": [], "note": None})]
    [False, False, False]
    """
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(key in value and has_shape(value[key], s) for key, s in shape.items())
    if isinstance(shape, list):
        return isinstance(value, list) and all(has_shape(each, shape[0]) for each in value)
    if isinstance(shape, tuple):
        return isinstance(value, list) and len(value) == len(shape) and all(map(has_shape, value, shape))
    assert isinstance(shape, type | UnionType)
    return isinstance(value, shape) and (shape is bool or not isinstance(value, bool))


# Locks


def lock(fd: int, path: Path, patience: float, hint: str = "let it go on, or end it") -> None:
    """Take an exclusive ``flock`` within ``patience`` seconds, or say who holds it."""
    deadline = time.monotonic() + patience
    pause = 0.000_02
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StoreError(
                    "LOCK_HELD", f"{path} has been locked for {patience:g} s by {holder(fd)}", hint=hint
                ) from None
        time.sleep(pause)
        pause = min(pause * 1.5, 0.002)


def holder(fd: int) -> str:
    """The process that holds a ``flock`` of an open file, in words, as far as the kernel says."""
    found = os.fstat(fd)
    wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, _, mode, pid, file, *_ = [word for word in line.split() if word != "->"]
            if (kind, file) == ("FLOCK", wanted) and int(pid) > 0:
                return f"process {pid}" + (", which only reads" if mode == "READ" else "")
    except (OSError, ValueError):
        pass
    return "another process"
