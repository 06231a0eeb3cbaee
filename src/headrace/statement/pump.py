"""Rows that other processes put into a stream's ring, given to the views that read the stream.

A process that inserts through :func:`headrace.ring` writes into shared memory. The database's views must see those
rows as its queries do, so the owner reads each such ring itself: rows of other processes are inserted for the views, an
epoch a range, and only then is the other process told that its rows are in. What views do not take, queries are told to
forget, and the other process that nobody has it: ranges are read as they were written, not cut anywhere, so that it can
tell which of its rows those are. Whatever the stream's ``overflow`` is, writers wait for this reader.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pyarrow as pa

from headrace.catalog import Stream
from headrace.errors import HeadraceError
from headrace.rings import Ring, Scan
from headrace.rings.layout import FOREIGN
from headrace.runtime import Runtime
from headrace.statement.load import Loader
from headrace.stream.intake import without_views

_LOOK = 0.02
"""Seconds between two looks for processes that want to insert."""
_FOR_GOOD = 1e9


class Pumps:
    """The pumps of one open database; a thread for each ring that somebody else writes into."""

    def __init__(self, runtime: Runtime, loader: Loader) -> None:
        self._runtime = runtime
        self._loader = loader
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        runtime.rings.when_opened(self._watch)

    def _watch(self) -> None:
        """Begin to look for other processes, when there is a ring for them to find."""
        if not self._threads:
            self._start(self._look)

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name="headrace pump", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _look(self) -> None:
        while not self._stop.wait(_LOOK):
            self._answer()

    def _answer(self) -> None:
        """Begin to read each ring that somebody waits for."""
        for ring in self._runtime.rings.all():
            if ring.is_awaited:
                with suppress(HeadraceError):  # as many read it as can: whoever waits goes on waiting for a while
                    columns = [f.name for f in ring.layout.columns]
                    scan = Scan.start(ring, columns, timeout=_FOR_GOOD, waited_for=True)
                    ring.answer(scan.position)
                    self._start(partial(self._pump, ring, scan))

    def _pump(self, ring: Ring, scan: Scan) -> None:
        try:
            while not self._stop.is_set():
                found = scan.next_range(most=ring.terms.capacity, wait=0.1)
                if found is not None:
                    self._take(ring, scan, *found)
        except HeadraceError:
            pass  # the stream was dropped, or the database closed
        finally:
            ring.stop_answering()
            scan.give_up()

    def _take(self, ring: Ring, scan: Scan, lo: int, batch: pa.RecordBatch) -> None:
        hi = lo + batch.num_rows
        try:
            rows = without_views(pa.Table.from_batches([batch])).filter(pa.array(scan.origins == FOREIGN))
            if rows.num_rows:
                stream: Stream = self._runtime.catalog.get(ring.stream, Stream)
                self._loader.take_rows(stream, rows)
        except BaseException as error:
            ring.book.refuse(lo, hi)
            if not isinstance(error, HeadraceError):
                raise
        finally:
            scan.taken(hi)

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
