"""Text in a ring: views of 16 bytes in the slots, long text in a buffer of its own for each round (003 §3.2).

A view is Arrow's: a length, then up to 12 bytes of text, or a prefix and where the whole text lies. So a range of slots
is a column of Arrow's ``utf8_view`` as it stands, over one buffer.

Two rounds' buffers are there at any time. Each is a sparse file: it grows as pages are written. When a round begins,
the buffer of the round before the last loses its name, and the kernel frees it when the last reader lets go of it or
dies. That is the reference count of 003 §3.4.2, kept by somebody who cannot be killed.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from headrace.errors import ExecutionError
from headrace.stream.ring.layout import INLINE


class Rounds:
    """The text buffers of a ring's rounds, mapped as they are needed."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._lock = threading.Lock()
        self._mapped: dict[int, tuple[int, mmap.mmap]] = {}
        weakref.finalize(self, _close, self._mapped).atexit = False

    def _file(self, lap: int) -> Path:
        return self._folder / f"text-{lap}"

    def begin(self, lap: int) -> None:
        """Make the buffer of a round, and let go of the one before the last."""
        fd = os.open(self._file(lap), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.ftruncate(fd, self._limit)
        finally:
            os.close(fd)
        self._file(lap - 2).unlink(missing_ok=True)

    def buffer(self, lap: int) -> mmap.mmap | None:
        """The buffer of a round; ``None`` if it is gone, because the ring has gone round twice since."""
        with self._lock:
            if lap not in self._mapped:
                try:
                    fd = os.open(self._file(lap), os.O_RDWR)
                except FileNotFoundError:
                    return None
                for old in [known for known in self._mapped if known < lap - 1]:
                    os.close(self._mapped.pop(old)[0])  # unmapped when no column refers to it any more
                self._mapped[lap] = fd, mmap.mmap(fd, self._limit)
            return self._mapped[lap][1]

    def allocate(self, lap: int, at: int, size: int) -> Any:
        """The bytes of a round's buffer, with memory behind a part of them: to write without would kill the process."""
        memory = self.buffer(lap)
        assert memory is not None
        try:
            os.posix_fallocate(self._mapped[lap][0], at, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ExecutionError(
                "STREAM_MEMORY_FULL",
                f"there is no room for {size:,} bytes of text in {self._folder.parent}",
                hint="give the stream a smaller capacity, or the system more shared memory",
            ) from None
        return np.frombuffer(memory, np.uint8)


def _close(mapped: dict[int, tuple[int, mmap.mmap]]) -> None:
    for fd, _ in mapped.values():
        os.close(fd)


@njit(cache=True, nogil=True)
def long_bytes(views: Any, nulls: Any) -> int:
    """How many bytes of text do not fit into these views."""
    total = 0
    masked = len(nulls) > 0
    for i in range(len(views)):
        if views[i, 0] > INLINE and not (masked and nulls[i]):
            total += views[i, 0]
    return total


@njit(cache=True, nogil=True)
def store_text(views: Any, nulls: Any, source: Any, slots: Any, buffer: Any, at: int) -> int:
    """Write views into slots, and the long text they refer to into the buffer from ``at`` on; returns its end.

    The views refer to ``source``.
    """
    masked = len(nulls) > 0
    for i in range(len(views)):
        size = views[i, 0]
        if masked and nulls[i]:
            slots[i, 0] = 0
            slots[i, 1] = 0
            slots[i, 2] = 0
            slots[i, 3] = 0
        elif size <= INLINE:
            slots[i, 0] = size
            slots[i, 1] = views[i, 1]
            slots[i, 2] = views[i, 2]
            slots[i, 3] = views[i, 3]
        else:
            slots[i, 0] = size
            slots[i, 1] = views[i, 1]
            slots[i, 2] = 0
            slots[i, 3] = at
            start = views[i, 3]
            for b in range(size):
                buffer[at + b] = source[start + b]
            at += size
    return at


def warm_up() -> None:
    """Compile the kernels, or load them: a first insert should not wait for that while queries' windows end."""
    views = np.frombuffer(bytes(16), np.int32).reshape(-1, 4)
    text = np.frombuffer(bytes(1), np.uint8)
    slots, buffer = np.zeros((2, 4), np.int32), np.zeros(1, np.uint8)
    long_bytes(views, no_marks())
    store_text(views, no_marks(), text, slots[:1], buffer, 0)


def no_marks() -> Any:
    """What stands for the marks of a column without NULLs."""
    return np.empty(0, np.uint8)
