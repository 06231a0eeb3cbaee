"""Flink SQL: PyFlink in an environment and a process of its own, streaming mode, as many slots as cores.

The process is started once and stays warm: Flink's mini-cluster has run the query before a run is timed. The
time is from submitting the query to the last change of its answer, collected and folded in Flink's process.
Flink's CSV reader takes whole files and no header, so lineitem is given to it in pieces of its own; the PyPI
package has no Parquet format, so only CSV is asked. Flink has nowhere to keep a static table: each job reads
them again, and :meth:`Flink.without_rows` says how long that and starting the job take.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import pyarrow as pa

from bench.measure import Refused
from bench.tpch import LINEITEM, TABLES, Case, ddl
from headrace.settings import cores

PINS = Path(__file__).with_name("flink.txt")
JOB = Path(__file__).with_name("flink_job.py")
HEAP = "6g"
# The manual's example of a mini-batch interval; for files read to the end it only says how often results are sent on.
BULK_LATENCY = "5 s"
# PyFlink 2.3 has wheels for these; the first that is there is used.
PYTHONS = ("python3.11", "python3.12", "python3.10", "python3.9", "python3")
PATIENCE = 600.0


class FlinkUnavailable(Exception):
    """Flink cannot be had on this machine; the message says why."""


def environment(root: Path, note: Callable[[str], None]) -> Path:
    """The Python of Flink's environment, ``.bench-venv``, made from PyPI the first time."""
    venv = root / ".bench-venv"
    python, stamp = venv / "bin" / "python", venv / "pins"
    if stamp.exists() and stamp.read_text() == PINS.read_text():
        return python
    found = sys.executable if sys.version_info < (3, 13) else next(filter(None, map(shutil.which, PYTHONS)), None)
    if found is None:
        raise FlinkUnavailable("no Python between 3.9 and 3.12 for it")
    note(f"flink: its own environment in {venv.name} (some minutes, once)")
    shutil.rmtree(venv, ignore_errors=True)
    for command in ([found, "-m", "venv", str(venv)], [str(python), "-m", "pip", "install", "-q", "-r", str(PINS)]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise FlinkUnavailable((done.stdout.strip().splitlines() or ["pip failed"])[-1][:200])
    stamp.write_text(PINS.read_text())
    return python


def version() -> str:
    """The pinned version.

    >>> version()[:13]
    'apache-flink '
    """
    pins = [line.split("==") for line in PINS.read_text().splitlines() if "==" in line]
    return " ".join(pins[0])


class Flink:
    """The process, and requests to it."""

    name = "Flink"

    def __init__(self, python: Path, latency: str = BULK_LATENCY, mode: str = "streaming") -> None:
        # JAVA_TOOL_OPTIONS and not Flink's own variable, which would replace the options Flink needs on Java 17.
        settings = os.environ | {"JAVA_TOOL_OPTIONS": f"-Xmx{HEAP}"}
        self._process = subprocess.Popen(
            [str(python), str(JOB), str(cores()), latency, mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=settings,
        )
        self._replies: queue.Queue[dict[str, Any]] = queue.Queue()
        self._changed: Callable[[str], None] = lambda line: None
        threading.Thread(target=self._listen, daemon=True).start()
        self._reply()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._replies.put(json.loads(line))
            else:
                self._changed(line)
        self._replies.put({"error": "its process ended"})

    def _reply(self) -> dict[str, Any]:
        try:
            return self._replies.get(timeout=PATIENCE)
        except queue.Empty:
            return {"error": f"no answer in {PATIENCE:.0f} s"}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Refused("its process ended") from None
        reply = self._reply()
        if "error" in reply:
            raise Refused(reply["error"])
        return reply

    def answer(self, case: Case) -> tuple[float, pa.Table]:
        if case.format != "csv":
            raise Refused("no Parquet format in the PyPI package")
        return self._query(case, case.data.bare("lineitem"))

    def without_rows(self, case: Case) -> float:
        """Seconds of the same job without a row of lineitem."""
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as empty:
            Path(empty, "none.csv").touch()
            return self._query(case, Path(empty))[0]

    def _query(self, case: Case, lineitem: Path) -> tuple[float, pa.Table]:
        tables = {name: [ddl(TABLES[name]), str(case.data.bare(name).resolve()), None] for name in case.query.tables}
        tables["lineitem"] = [ddl(LINEITEM), str(lineitem.resolve()), None]
        return self.ask_tables(tables, case.sql)

    def ask_tables(self, tables: Mapping[str, Sequence[str | None]], sql: str) -> tuple[float, pa.Table]:
        """Seconds of a query over these tables (columns, directory, whether it is watched), and its answer."""
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
            file = f"{directory}/answer.arrow"
            reply = self._ask({"tables": tables, "sql": sql, "answer": file})
            with pa.OSFile(file) as source:
                return cast(float, reply["seconds"]), pa.ipc.open_file(source).read_all()

    def watch(
        self, tables: dict[str, list[str | None]], queries: dict[str, str], changed: Callable[[str], None]
    ) -> dict[str, list[str]]:
        """Start a job that keeps the queries fresh; returns the columns of each. ``changed`` gets each line of its
        changelog, in another thread."""
        self._changed = changed
        return cast(dict[str, list[str]], self._ask({"tables": tables, "watch": queries})["columns"])

    def __enter__(self) -> Flink:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            # A job that watches a directory never ends by itself.
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
