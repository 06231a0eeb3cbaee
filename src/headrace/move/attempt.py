"""One run of a query's plan, in a thread and a job group of its own: it comes to its end, or is stopped.

Who stops an attempt waits until its thread is gone, so it must not be in need of anything the stopper holds: an attempt
at its end asks for the query's lock only as long as nobody stops it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.move.java_aid import java_aid

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.02
_CANCEL_SECONDS = 0.5


class Attempt:
    """``work`` gives the answer; ``ended`` is told of the end, under ``lock``, unless the attempt is stopped."""

    def __init__(
        self,
        spark: SparkSession,
        query: str,
        work: Callable[[], pa.Table | None],
        ended: Callable[[Attempt], None],
        lock: threading.RLock,
    ) -> None:
        self.answer: pa.Table | None = None
        self.error: BaseException | None = None
        self.over = False
        """It has come to its end: ``answer`` and ``error`` say how."""
        self._spark = spark
        self._query = query
        self._work = work
        self._ended = ended
        self._lock: Any = lock
        self._stopped = False
        self._began = time.time()
        self._group = f"headrace-{query}-{uuid.uuid4().hex[:6]}"
        self._thread = threading.Thread(target=self._run, name=self._group, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Have it end, and wait until it has: by its own answer or error, if that was faster.

        Half stopped is nothing: an interrupt from the keyboard is raised when it is done.
        """
        self._stopped = True
        impatience: KeyboardInterrupt | None = None
        context: Any = self._spark.sparkContext
        while self._thread.is_alive():
            try:
                if not self.over:
                    with suppress(Exception):  # of a Spark that is gone; then so are its jobs
                        context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)
                self._thread.join(_CANCEL_SECONDS)
            except KeyboardInterrupt as caught:
                impatience = caught
        if impatience is not None:
            raise impatience

    def in_flight(self) -> float:
        """Seconds since one of its stages was last completed, or since it began."""
        context: Any = self._spark.sparkContext
        last = int(java_aid(self._spark).completed(context._jsc.sc(), self._group)) / 1000
        return max(0.0, time.time() - max(last, self._began))

    def _run(self) -> None:
        try:
            self._spark.sparkContext.setJobGroup(self._group, f"headrace {self._query}", interruptOnCancel=True)
            self.answer = self._work()
        except BaseException as caught:
            self.error = caught
        self.over = True
        while not self._lock.acquire(timeout=_POLL_SECONDS):
            if self._stopped:
                return
        try:
            if not self._stopped:
                self._ended(self)
        finally:
            self._lock.release()
