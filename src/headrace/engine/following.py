"""How far an input has been read, told while it is: to a bar on a terminal, or to a file that a bar looks at."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa

_EVERY = 0.1
"""Seconds between two looks at a statement that runs."""


def counted_chunks(chunks: Iterator[pa.Table], progress: Callable[[int], None] | None) -> Iterator[pa.Table]:
    """The same chunks; ``progress`` is told how many rows they had.

    >>> for _ in counted_chunks(iter([pa.table({"a": [1, 2]}), pa.table({"a": [3]})]), print): pass
    2
    3
    """
    done = 0
    for chunk in chunks:
        yield chunk
        done += chunk.num_rows
        if progress is not None:
            progress(done)


def tell_share(progress: Callable[[int], None], done: int, rows: int, share: float) -> None:
    """Tell ``progress`` that beside the rows done before, this share of so many is."""
    progress(done + int(share * rows))


@contextmanager
def followed(cursor: duckdb.DuckDBPyConnection, texts: int, told: Callable[[float], None] | None) -> Iterator[None]:
    """Tell how far the statements of the block are, ``texts`` of them that each read the same."""
    if told is None:
        yield
        return
    over = threading.Event()

    def follow() -> None:
        finished, last = 0, 0.0
        while not over.wait(_EVERY):
            now = max(0.0, cursor.query_progress()) / 100
            finished += now < last  # another one has begun
            last = now
            told(min(1.0, (finished + now) / max(1, texts)))

    # DuckDB knows it only where it might show a bar of its own.
    cursor.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false; SET progress_bar_time = 0")
    thread = threading.Thread(target=follow, name="headrace-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        cursor.execute("SET enable_progress_bar = false")
