"""Starting Spark, in a thread of its own, so that whoever waits for it may stop waiting.

PySpark must not be interrupted while it starts: it would remove the folder in which the JVM is to leave its address,
and a JVM that finds no folder neither ends nor hears that its parent has. So the start goes on to a point where it can
be undone, and if nobody waits for it any more, it is. Whoever needs Spark meanwhile waits with the others.

A thread of its own has another merit: PySpark does not replace the main thread's handler of SIGINT. What it is for is
done better by :mod:`headrace.engine.own_jobs`.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.base.interrupts import check, stoppable
from headrace.errors import ExecutionError

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

_changed = threading.Condition()
_start: _Start | None = None
"""The start under way: a process has one Spark."""
_LAST_WAIT = 60.0
"""Seconds the end of this process waits for a start nobody wants; a JVM that is left even so ends by itself."""


def start(settings: Mapping[str, str]) -> SparkSession:
    """The session that runs in this process, or one that is started now, with these settings."""
    global _start
    while True:
        with _changed:
            if _start is None:
                _start = _Start(settings)
                _start.thread.start()
            found = _start
            found.waiting += 1
        spark = found.wait()
        check()
        if spark is not None:
            return spark


class _Start:
    """Spark, being started."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = dict(settings)
        self.waiting = 0
        self._over = False
        self._spark: SparkSession | None = None
        self._failure: Exception | None = None
        self.thread = threading.Thread(target=self._run, name="headrace-spark-start", daemon=True)

    def wait(self) -> SparkSession | None:
        """The session when it is there; ``None`` if this wait was interrupted, or others' and so the start undone."""
        left = False

        def leave() -> None:
            nonlocal left
            with _changed:
                left = True
                _changed.notify_all()

        try:
            with stoppable(leave), _changed:
                _changed.wait_for(lambda: self._over or left)
        finally:
            with _changed:
                self.waiting -= 1
        if self._failure is not None:
            raise self._failure
        return self._spark

    def _run(self) -> None:
        global _start
        jvm: subprocess.Popen[Any] | None = None
        try:
            from pyspark import SparkConf
            from pyspark.sql import SparkSession

            conf = SparkConf().setAll(list(self._settings.items())).setAppName("headrace")
            jvm = self._launched(conf)
            if self._is_wanted():
                spark = SparkSession.builder.config(conf=conf).getOrCreate()
                if self._is_wanted():
                    self._spark = spark
                else:
                    spark.stop()
        except Exception as failure:
            self._failure = _refusal(failure)
        finally:
            if jvm is not None and self._spark is None:
                _end(jvm)
            with _changed:
                _start = None
                self._over = True
                _changed.notify_all()

    def _is_wanted(self) -> bool:
        with _changed:
            return self.waiting > 0

    def _launched(self, conf: SparkConf) -> subprocess.Popen[Any] | None:
        """The JVM, started here; ``None`` if there is one already, or Spark is elsewhere."""
        from pyspark import SparkContext
        from pyspark.java_gateway import launch_gateway

        remote = os.environ.get("SPARK_REMOTE") or os.environ.get("SPARK_API_MODE", "classic") != "classic"
        if SparkContext._gateway is not None or remote or "spark.remote" in self._settings:
            return None
        # The JVM's start-up notices have no business on the terminal; anything fatal still raises.
        gateway = launch_gateway(conf, {"stderr": subprocess.DEVNULL})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
        jvm: subprocess.Popen[Any] | None = gateway.proc
        return jvm


def _end(jvm: subprocess.Popen[Any]) -> None:
    """End a JVM that was started here, and have the next start make a new one."""
    from pyspark import SparkContext

    with suppress(Exception):
        assert SparkContext._gateway is not None
        SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    jvm.kill()
    jvm.wait()
    if jvm.stdin is not None:
        with suppress(OSError):
            jvm.stdin.close()


def _refusal(failure: Exception) -> Exception:
    if getattr(failure, "getCondition", lambda: None)() != "JAVA_GATEWAY_EXITED":
        return failure
    return ExecutionError(
        "JAVA_NOT_USABLE",
        "Java ended before Spark had started",
        hint="`java -version` must say 17 or later; JAVA_HOME names another one",
    )


def _at_exit() -> None:
    found = _start
    if found is not None:
        found.waiting = 0
        with suppress(KeyboardInterrupt):
            found.thread.join(_LAST_WAIT)


atexit.register(_at_exit)
