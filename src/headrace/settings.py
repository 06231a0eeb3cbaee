"""Settings of a database: those that change answers are pinned, the rest only change speed.

Pinned settings are stored when a database is created and hold for its life,
whatever session opens it later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from dataclasses import dataclass, fields
from functools import cache
from typing import Any
from zoneinfo import available_timezones

from headrace.base.wording import shown
from headrace.errors import HeadraceError

ENGINES = ("auto", "native", "tasks", "spark")
DURABILITY = ("commit", "group", "none")

PINNED_SPARK = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.caseSensitive": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # Files' statistics leave NaN out (base/parquet_files.py), and Spark would skip its rows.
    "spark.sql.parquet.filterPushdown": "false",
    # A file's columns are what it says they are.
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.int96AsTimestamp": "true",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
}
"""What Headrace's answers mean in Spark's own settings, beside the time zone."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a database behaves; give them to :func:`headrace.connect` by name."""

    time_zone: str = "UTC"
    """Pinned: the session time zone of the database."""
    engine: str = "auto"
    """Where stream fragments run: auto, or always native, tasks or spark."""
    task_bytes: int = 256 * 1024 * 1024
    """Input of at least this many bytes runs as Spark tasks. Measured on 2 cores with Spark running: 64 MiB of CSV
    take 0.15 s in process and 0.33 s by tasks, 256 MiB 0.62 s and 0.70 s; a larger cluster breaks even earlier."""
    tasks: int = 0
    """How many tasks a bulk input is cut into; 0 means as many as Spark has cores."""
    compact_rows: int = 8_192
    """A state relation is merged once this many appended rows (or as many as it has groups) have come."""
    state_memory: int = 2 * 1024 * 1024 * 1024
    """Bytes of merged state kept in memory over all views, and of tables they join; a view's state beyond it is merged
    in the store at each query instead."""
    sample_groups: int = 10_000
    """How many groups a kept sample may have; rows that would bring more are refused."""
    driver_memory: str = "2g"
    """Memory of the Spark driver Headrace starts itself."""
    memory_limit: str = "4GB"
    """Memory the embedded store may use before it spills to disk."""
    durability: str = "group"
    """What an acknowledged statement survives. commit and group: a power cut; group syncs the log once for all
    commits that wait together. none: a killed process, but a power cut may take back the last of them."""
    group_ms: int = 10
    """How long the writer may go on gathering commits for one sync while more keep coming; nobody waits alone."""
    remote_rings: bool = False
    """Spark tasks read rings through their owner even on its own host (for tests)."""
    shared: bool = False
    """Leave the directory's mode as it is: what is made in it lets its group do what the directory lets it. For Spark
    executors of another user; otherwise a directory is its user's alone."""
    flight_certificate: str = ""
    """A PEM file: with it Spark tasks on other hosts reach rings by TLS, without it they do not (docs/security.md)."""
    flight_key: str = ""
    """The certificate's private key, a PEM file."""
    accept_state: bool = False
    """Open a directory that lost acknowledged epochs, and go on from what is left."""

    @staticmethod
    def of(given: Mapping[str, Any]) -> Settings:
        """The settings ``given`` by name; unknown names and wrong values are errors."""
        known = {f.name: f for f in fields(Settings)}
        for name in given:
            if name not in known:
                raise HeadraceError(
                    "UNKNOWN_SETTING", f"there is no setting {name}", hint=f"settings: {', '.join(sorted(known))}"
                )
        settings = Settings(**given)
        for name in (
            "time_zone",
            "engine",
            "driver_memory",
            "memory_limit",
            "durability",
            "flight_certificate",
            "flight_key",
        ):
            value = getattr(settings, name)
            if not isinstance(value, str):
                raise HeadraceError("INVALID_SETTING", f"{name} is {shown(value)}", hint="give a text")
        if settings.engine not in ENGINES:
            raise HeadraceError(
                "INVALID_SETTING", f"engine is {settings.engine!r}", hint=f"engine is one of {', '.join(ENGINES)}"
            )
        if settings.durability not in DURABILITY:
            raise HeadraceError(
                "INVALID_SETTING",
                f"durability is {settings.durability!r}",
                hint=f"durability is one of {', '.join(DURABILITY)}",
            )
        for name in ("task_bytes", "tasks", "compact_rows", "state_memory", "group_ms", "sample_groups"):
            value = getattr(settings, name)
            if not isinstance(value, int) or value < 0:
                raise HeadraceError(
                    "INVALID_SETTING", f"{name} is {shown(value)}", hint="give a whole number, 0 or more"
                )
        for name in ("remote_rings", "shared", "accept_state"):
            if not isinstance(value := getattr(settings, name), bool):
                raise HeadraceError("INVALID_SETTING", f"{name} is {shown(value)}", hint="give True or False")
        if bool(settings.flight_certificate) != bool(settings.flight_key):
            raise HeadraceError(
                "INVALID_SETTING",
                "flight_certificate and flight_key belong together",
                hint="give both, as paths of PEM files",
            )
        if settings.time_zone not in _time_zones():
            raise HeadraceError(
                "INVALID_SETTING", f"time_zone {settings.time_zone!r} is not known", hint="for example 'Europe/Berlin'"
            )
        return settings


@cache
def _time_zones() -> Set[str]:
    return available_timezones()


def cores() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
