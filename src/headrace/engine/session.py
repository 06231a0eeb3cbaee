"""The Spark session: started when something first needs it, with the pinned settings.

Given an existing session, Headrace works in a session of its own beside it (same
cluster, own settings and temporary views), so nothing of the user's changes.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from headrace.base.interrupts import Lock, end_between, until_it_ends
from headrace.engine.own_jobs import cancelling
from headrace.engine.start import start
from headrace.errors import CatalogError, ExecutionError, HeadraceError
from headrace.settings import PINNED_SPARK, Settings, cores

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


_sharing = Lock()
_started: SparkSession | None = None
_users = 0
"""How many databases use the Spark that Headrace started in this process; the last one stops it."""


class Session:
    """Hands out the one Spark session of a database."""

    refusal: ClassVar[HeadraceError | None] = None
    """Why this process must not use Spark; set in processes that Spark itself started."""

    def __init__(self, settings: Settings, given: SparkSession | None = None) -> None:
        self._settings = settings
        self._given = given
        self._spark: SparkSession | None = None
        self._lock = Lock()
        self.before: Callable[[], object] = lambda: None
        """Asked each time Spark is wanted: raises where it must not be."""
        self._owned = False
        self._spared = 0
        """Slots that were given to tasks which hold them for long."""

    @property
    def started(self) -> bool:
        return self._spark is not None

    def get(self) -> SparkSession:
        """The session; starts Spark if nothing did yet."""
        if Session.refusal is not None:
            raise Session.refusal
        self.before()
        with self._lock:
            if self._spark is None:
                self._spark = self._beside(self._given) if self._given is not None else self._shared()
            cancel_with_the_statement(self._spark)
            return self._spark

    def parallelism(self) -> int:
        """How many tasks run at once: the ``tasks`` setting, or what Spark says."""
        if self._settings.tasks:
            return self._settings.tasks
        context = spark_context(self.get())
        return max(1, context.defaultParallelism) if context else cores()

    @contextmanager
    def spare_slots(self, most: int) -> Iterator[int]:
        """Slots for tasks that hold them for long: those nobody else has so, and one is always left to short tasks."""
        slots = self.parallelism()
        with self._lock:
            taken = max(0, min(most, slots - 1 - self._spared))
            self._spared += taken
        try:
            yield taken
        finally:
            with self._lock:
                self._spared -= taken

    def explain(self, error: CatalogError) -> CatalogError:
        """An error about a name, with a hint where the name is one of Spark's."""
        if error.condition in ("RELATION_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND"):
            name = error.message.split()[-1]
            for spark in (self._given, self._spark):
                with suppress(Exception):
                    if spark is not None and spark.catalog.tableExists(name):
                        error.hint = (
                            f"{name} is a table or view of Spark's, which SQL does not see here: write CREATE TABLE "
                            f'{name} (…), then db.insert("{name}", spark.table("{name}"))'
                        )
        return error

    def stop(self) -> None:
        """Let go of Spark; the last database to use a Spark that Headrace started stops it."""
        global _started, _users
        with self._lock, _sharing:
            if self._owned:
                self._owned = False
                _users -= 1
                if _users == 0 and _started is not None:
                    end_between(None)
                    _started.stop()
                    _started = None
            self._spark = None

    def _pinned(self) -> dict[str, str]:
        return {**PINNED_SPARK, "spark.sql.session.timeZone": self._settings.time_zone}

    def _beside(self, given: SparkSession) -> SparkSession:
        spark = given.newSession()
        for key, value in self._pinned().items():
            spark.conf.set(key, value)
        return spark

    def _shared(self) -> SparkSession:
        """A session beside the process's running Spark, started here if there is none."""
        global _started, _users
        with _sharing:
            if _started is None:
                from pyspark.sql import SparkSession

                running = SparkSession.getActiveSession()
                if running is not None:
                    return self._beside(running)
                _started = self._start()
                end_between(cancelling(_started))
            self._owned = True
            _users += 1
            return self._beside(_started)

    def _start(self) -> SparkSession:
        own = {
            "spark.driver.memory": self._settings.driver_memory,
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            "spark.sql.catalogImplementation": "in-memory",
            "spark.python.worker.reuse": "true",
            **self._pinned(),
        }
        return start_spark(own)


def start_spark(settings: Mapping[str, str]) -> SparkSession:
    """Start Spark on this machine, quietly, unless ``settings`` say otherwise."""
    _require_java()
    # PySpark logs a refused query with its JVM stack trace; Headrace raises a named error instead.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)

    # Workers must be this Python, or they miss pyarrow and duckdb; loopback, because the driver and
    # its workers are on this machine and a laptop's own address may change or be firewalled.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    own = {
        "spark.master": "local[*]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        **settings,
    }
    return start(own)


def cancel_with_the_statement(spark: SparkSession) -> None:
    """Have the jobs this thread starts from now on cancelled if its statement is interrupted."""
    tag = f"headrace-{uuid.uuid4().hex}"
    context = spark_context(spark)
    ways: tuple[Callable[[str], object], ...] = (spark.addTag, spark.interruptTag, spark.removeTag)
    if context is not None:  # its tags are those of RDDs too
        ways = (context.addJobTag, context.cancelJobsWithTag, context.removeJobTag)
    begin, stop, end = (partial(way, tag) for way in ways)
    until_it_ends("Spark's jobs", begin, stop, end)


def require_session(given: object, where: str) -> None:
    """Refuse what is no Spark session."""
    if not (type(given).__module__.startswith("pyspark.") and hasattr(given, "createDataFrame")):
        raise ExecutionError(
            "NOT_A_SPARK_SESSION",
            f"{where} needs a Spark session, and was given {type(given).__name__}",
            hint="make one first: spark = pyspark.sql.SparkSession.builder.getOrCreate()",
        )


def spark_context(spark: SparkSession) -> SparkContext | None:
    """The context of a classic session; Spark Connect has none."""
    from pyspark.errors import PySparkException

    try:
        return spark.sparkContext
    except PySparkException:
        return None


def driver_host(spark: SparkSession) -> str:
    """The name executors reach this process by; loopback where all of them are in this process."""
    if (spark.conf.get("spark.master", "") or "").startswith("local"):
        return "127.0.0.1"
    return spark.conf.get("spark.driver.host", "127.0.0.1") or "127.0.0.1"


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and os.path.exists(os.path.join(home, "bin", "java"))):
        raise ExecutionError(
            "JAVA_NOT_FOUND",
            "this needs Spark, and Spark needs Java 17 or later",
            hint="install it (on Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME",
        )
