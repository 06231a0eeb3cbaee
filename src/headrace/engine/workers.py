"""Whether Spark's Python workers can run Headrace: asked before anything depends on it, and said in plain words.

PySpark runs ``PYSPARK_PYTHON``, or whatever ``python3`` is on the path. From a virtual environment that is not
activated that is another Python, and all a user gets to see is that some exception was thrown.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

from headrace.engine.failures import from_spark
from headrace.errors import ExecutionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRY = "import sys, headrace.engine.tasks; print('%d.%d' % sys.version_info[:2])"


def require_workers(spark: SparkSession, *, now: bool = False) -> None:
    """Refuse a session whose workers cannot import Headrace.

    On this machine their Python is asked, unless it is this very one; on a cluster one task is, if ``now``.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        return  # Spark Connect: its server may have workers of any kind
    if context.master.startswith("local"):
        found = shutil.which(context.pythonExec) or context.pythonExec
        if not _is_this_python(found) and (reason := _refusal_of(found)) is not None:
            raise _without(found, reason)
    elif now:
        try:
            context.parallelize([0], 1).map(_import).collect()
        except Exception as error:
            raise from_spark(error) from error


def _import(number: int) -> int:
    import headrace.engine.tasks  # noqa: F401

    return number


def _is_this_python(path: str) -> bool:
    # By directory: a virtual environment's python is a link to one that lacks its packages.
    return os.path.dirname(os.path.abspath(path)) == os.path.dirname(os.path.abspath(sys.executable))


@cache
def _refusal_of(python: str) -> str | None:
    """Why a Python cannot run our tasks; ``None`` if it can."""
    try:
        done = subprocess.run([python, "-c", _TRY], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
    mine = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return None if done.stdout.strip() == mine else f"it is Python {done.stdout.strip()}, and this is {mine}"


def _without(python: str, reason: str) -> ExecutionError:
    return ExecutionError(
        "WORKERS_WITHOUT_HEADRACE",
        f"Spark's Python workers run {python}, which cannot run Headrace: {reason}",
        hint=f"set PYSPARK_PYTHON={os.path.abspath(sys.executable)} before the Spark session is made",
    )
