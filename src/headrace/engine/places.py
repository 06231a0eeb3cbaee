"""Where a fragment runs: an explicit rule, so that it can be tested and explained.

* What the native engine cannot say exactly runs as **Spark SQL**.
* Input past a threshold runs as **native code in Spark tasks**, each reading its own slice.
* Everything else runs as **native** code in this process: a Spark job costs more than it would save.

>>> choose(None, 10, task_bytes=100).place
<Place.NATIVE: 'native'>
>>> choose(None, 100, task_bytes=100).place
<Place.TASKS: 'native in Spark tasks'>
>>> choose("regexp_extract is Spark's own", 10, task_bytes=100)
Choice(place=<Place.SPARK: 'Spark SQL'>, reason="regexp_extract is Spark's own")
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.errors import ExecutionError


class Place(Enum):
    """One of the three ways to run a fragment."""

    NATIVE = "native"
    TASKS = "native in Spark tasks"
    SPARK = "Spark SQL"


@dataclass(frozen=True, slots=True)
class Choice:
    place: Place
    reason: str


def choose(not_native: str | None, input_bytes: int, *, task_bytes: int, engine: str = "auto") -> Choice:
    """The place for a fragment over ``input_bytes`` of input.

    ``not_native`` is why the native engine refuses the fragment, if it does;
    ``engine`` is the setting that forces a place.
    """
    if engine == "spark":
        return Choice(Place.SPARK, "the setting engine = 'spark' asks for it")
    if not_native is not None:
        if engine != "auto":
            raise ExecutionError(
                "ENGINE_CANNOT",
                f"the setting engine = {engine!r} asks for native code, but {not_native}",
                hint="leave engine at 'auto'",
            )
        return Choice(Place.SPARK, not_native)
    if engine == "tasks":
        return Choice(Place.TASKS, "the setting engine = 'tasks' asks for it")
    if engine == "native":
        return Choice(Place.NATIVE, "the setting engine = 'native' asks for it")
    if input_bytes >= task_bytes:
        return Choice(Place.TASKS, f"the input has {input_bytes:,} bytes, at or past task_bytes = {task_bytes:,}")
    return Choice(Place.NATIVE, f"the input is smaller than task_bytes = {task_bytes:,}")
