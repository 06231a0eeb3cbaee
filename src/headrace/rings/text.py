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

from headrace.base.private import open_file
from headrace.errors import ExecutionError


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
        fd = open_file(self._file(lap), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
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
        if memory is None:
            raise FileNotFoundError(self._file(lap))
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
