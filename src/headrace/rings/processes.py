"""Whether the process that left a mark in shared memory is still there.

A process is known by its id and when it began: ids are used again.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

Process = tuple[int, int]
"""A process's id, and when it began in ticks of the system (0 where the system does not tell)."""


def this_process() -> Process:
    """This process, also after a fork."""
    return _known(os.getpid())


@cache
def _known(pid: int) -> Process:
    return pid, _began(pid) or 0


def _began(pid: int) -> int | None:
    """When a process began, 0 if it lives but the system does not tell; ``None`` if it is dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return 0
    except PermissionError:
        return 0
    return None if fields[0] in "ZX" else int(fields[19])


def is_alive(process: Process) -> bool:
    """Whether the very process is still there.

    >>> is_alive(this_process()), is_alive((this_process()[0], 1))
    (True, False)
    """
    pid, began = process
    now = _began(pid)
    return now is not None and (now == began or 0 in (now, began))
