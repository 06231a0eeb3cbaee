"""The process a query is moved to: one command a line in, one line of seconds out, both JSON; answers go to files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather

import headrace
from bench.move_queries import ROOT, SUITES, start_spark


class Target:
    """The other process, seen from here."""

    def __init__(self) -> None:
        read, write = os.pipe()
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.move_target", str(write)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(write,),
            text=True,
            cwd=ROOT,
        )
        os.close(write)
        self._answers = os.fdopen(read)
        self._answer()
        self.startup = time.perf_counter() - began
        """Seconds until its Spark was there."""

    def warm(self, suite: str, scale: float, query: str) -> float:
        """Have it run a query as Spark does."""
        return float(self._ask(do="warm", suite=suite, scale=scale, query=query)["seconds"])

    def resume(self, suite: str, scale: float, ticket: str, to: Path) -> tuple[float, pa.Table]:
        """Seconds from the ticket to the answer, and the answer, which it leaves in ``to``."""
        found = self._ask(do="resume", suite=suite, scale=scale, ticket=ticket, to=str(to))
        return float(found["seconds"]), feather.read_table(to)

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._answers.close()

    def _ask(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise RuntimeError("the process that resumes has died")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise RuntimeError(f"the process that resumes says: {found['error']}")
        return found


@contextmanager
def target() -> Iterator[Target]:
    """The other process, until it is not needed any more."""
    other = Target()
    try:
        yield other
    finally:
        other.stop()


def main() -> None:
    answers = os.fdopen(int(sys.argv[1]), "w")
    spark = start_spark()
    sessions: dict[tuple[str, float], Any] = {}

    def say(**found: Any) -> None:
        print(json.dumps(found), file=answers, flush=True)

    def do(command: dict[str, Any]) -> float:
        key = command["suite"], command["scale"]
        if key not in sessions:
            sessions[key] = SUITES[key[0]].session(spark, key[1])
        began = time.perf_counter()
        if command["do"] == "warm":
            sessions[key].sql(command["query"]).toArrow()
            return time.perf_counter() - began
        table = headrace.resume(sessions[key], command["ticket"]).result().arrow()
        seconds = time.perf_counter() - began
        feather.write_feather(table, command["to"])
        return seconds

    say(ready=True)
    for line in sys.stdin:
        try:
            say(seconds=do(json.loads(line)))
        except Exception as error:  # the next command may fare better
            say(error=f"{type(error).__name__}: {error}")
    spark.stop()


if __name__ == "__main__":
    main()
