"""Rows for rings, and processes that use them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import ExecutionError
from headrace.rings import Ring, Scan
from headrace.types import (
    BIGINT,
    BOOLEAN,
    STRING,
    Field,
    arrow_schema,
    decimal,
)

COLUMNS = (Field("n", BIGINT), Field("text", STRING), Field("flag", BOOLEAN), Field("price", decimal(20, 2)))
NAMES = [f.name for f in COLUMNS]
SCRIPT = Path(__file__).with_name("ring_processes.py")
LIMIT = 500.0
"""Seconds until a test gives up waiting for what must come."""


def rows_of(values: list[dict[str, Any]], columns: tuple[Field, ...] = COLUMNS) -> pa.Table:
    return pa.Table.from_pylist(values, schema=arrow_schema(columns))


def numbered(start: int, count: int) -> list[dict[str, Any]]:
    return [{"n": n, "text": "x" * (n % 30), "flag": n % 2 == 0, "price": None} for n in range(start, start + count)]


def drained(scan: Scan) -> list[dict[str, Any]]:
    """What is there now."""
    found: list[dict[str, Any]] = []
    while (batch := scan.next(wait=0)) is not None:
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def ends(run: Callable[[], Any]) -> None:
    """Run what may hang."""
    failures: list[BaseException] = []

    def caught() -> None:
        try:
            run()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=caught, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert not thread.is_alive(), "it hangs"
    for failure in failures:
        raise failure


def no_memory(*_: Any) -> None:
    raise ExecutionError("STREAM_MEMORY_FULL", "no room")


def started(name: str, folder: Path, *numbers: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, str(SCRIPT), name, str(folder), *map(str, numbers)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def killed_when_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


def unread_and_full_of_text(ring: Ring) -> None:
    """Half of a round is read. The next one's text is full before its slots are: the rest of it is to be left out."""
    ring.write(rows_of([{"n": n} for n in range(50, 100)]))
    ring.write(rows_of([{"text": "y" * 30} for _ in range(3)]))
