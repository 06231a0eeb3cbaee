"""Rows that other processes put into a stream's ring, given to the views that read the stream.

A process that inserts through :func:`headrace.ring` writes into shared memory. The database's views must see those
rows as its queries do, so the owner reads each such ring itself: rows of other processes are inserted for the views, an
epoch a range, and only then is the other process told that its rows are in. Whatever the stream's ``overflow`` is,
writers wait for this reader.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from headrace.catalog import Stream
from headrace.errors import HeadraceError
from headrace.loading import Loader
from headrace.runtime import Runtime
from headrace.stream.intake import without_views
from headrace.stream.ring import Ring, Scan
from headrace.stream.ring.layout import FOREIGN

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
        self._pumped: set[Ring] = set()
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
            for ring in self._runtime.rings.all():
                if ring.is_awaited and ring not in self._pumped:
                    self._pumped.add(ring)
                    scan = Scan.start(ring, [f.name for f in ring.layout.columns], timeout=_FOR_GOOD, waited_for=True)
                    ring.answer()
                    self._start(partial(self._pump, ring, scan))

    def _pump(self, ring: Ring, scan: Scan) -> None:
        try:
            while not self._stop.is_set():
                found = scan.next_range(wait=0.1)
                if found is not None:
                    lo, batch = found
                    rows = without_views(pa.Table.from_batches([batch])).filter(pa.array(scan.origins == FOREIGN))
                    if rows.num_rows:
                        self._insert(ring, lo, lo + batch.num_rows, rows)
                    scan.taken(lo + batch.num_rows)
        except HeadraceError:
            pass  # the stream was dropped, or the database closed
        finally:
            scan.give_up()

    def _insert(self, ring: Ring, lo: int, hi: int, rows: pa.Table) -> None:
        stream: Stream = self._runtime.catalog.get(ring.stream, Stream)
        try:
            self._loader.take_rows(stream, rows)
        except HeadraceError:
            # The views do not have these rows, so no query may either; whoever inserted them is told.
            ring.book.roll_back(lo, hi)

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
