"""Ctrl-C in what a program itself runs in the Spark that Headrace started: ``db.spark.sql(…).collect()``.

PySpark sets a handler that cancels all jobs, but only where Spark is started by the main thread, and it does not reach
the job that the main thread waits for: it speaks to the JVM over the very connection that waits. And whoever is
interrupted in the middle of py4j's protocol leaves a connection behind that it closes together with others'.

So another thread cancels the jobs, the call comes back by itself, and KeyboardInterrupt is raised when it has. Where no
job runs (Spark still plans, or waits for a stream) it is raised at once, as by PySpark; so it is by a second Ctrl-C, or
if the call does not come back.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE = 10.0
"""Seconds in which Spark must have heard that jobs are cancelled, and a call whose job was must have come back."""


def cancelling(spark: SparkSession) -> Callable[[FrameType | None], bool]:
    """What Ctrl-C does at a frame of the program: end jobs, if it waits for Spark; whether to raise at once then."""
    from pyspark.errors import PySparkException

    def cancelled() -> bool:
        """Whether there were any."""
        try:
            context = spark.sparkContext
        except PySparkException:  # Spark Connect
            return bool(spark.interruptAll())
        found = bool(context.statusTracker().getActiveJobsIds())
        context.cancelAllJobs()
        return found

    def interrupted(frame: FrameType | None) -> bool:
        frames = _outwards(frame)
        if not any(_is_of(f, "pyspark.", "py4j.") for f in frames):
            return True  # it waits for no job; those of other threads go on
        call = next((f for f in reversed(frames) if _is_of(f, "py4j.")), None) or _reading(frames)
        again = call is not None and call.f_trace is not None
        found = _with_patience(cancelled)
        if call is None or again or not found or sys.gettrace() is not None:
            return True
        _raise_after(call)
        return False

    return interrupted


def _reading(frames: Sequence[FrameType]) -> FrameType | None:
    """Who waits for a job's rows at a socket: what PySpark does there in the end would hide the interrupt."""
    return next((f.f_back for f in frames if f.f_code.co_name == "_collect_as_arrow" and _is_of(f, "pyspark.")), None)


def _with_patience(work: Callable[[], Any]) -> Any:
    """What it gives, done by a thread that has a connection of its own; ``None`` if it fails or is not done in time."""
    found: list[Any] = []

    def run() -> None:
        with suppress(Exception):
            found.append(work())

    thread = threading.Thread(target=run, name="headrace-cancel", daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return found[0] if found else None


def _raise_after(call: FrameType) -> None:
    """Raise KeyboardInterrupt in this frame when what it has called comes back."""
    back = threading.Event()

    def local(frame: FrameType, event: str, arg: object) -> Any:
        back.set()
        frame.f_trace = None
        raise KeyboardInterrupt  # which ends the tracing

    def insist() -> None:
        if not back.wait(_PATIENCE):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    call.f_trace = local
    sys.settrace(lambda frame, event, arg: None)
    threading.Thread(target=insist, name="headrace-insist", daemon=True).start()


def _outwards(frame: FrameType | None) -> list[FrameType]:
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _is_of(frame: FrameType, *packages: str) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(packages)
