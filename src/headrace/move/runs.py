"""Queries run by ``headrace run`` on this machine: who they are, and how another process asks one to suspend.

Each has a small file in ``$HEADRACE_RUNS`` (``~/.headrace/runs``) while it runs. To suspend one, an order is put
beside that file and its process gets SIGTERM; it answers in the file. A query that cannot be suspended goes on.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import ExecutionError, HeadraceError

DEFAULT_GRACE = 60.0


def folder() -> Path:
    found = Path(os.environ.get("HEADRACE_RUNS") or Path.home() / ".headrace" / "runs")
    found.mkdir(parents=True, exist_ok=True)
    return found


def seconds(text: str) -> float:
    """A duration in seconds.

    >>> seconds("120s"), seconds("2m"), seconds("1.5h"), seconds("7")
    (120.0, 120.0, 5400.0, 7.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|)", text.strip())
    if found is None:
        raise HeadraceError("USAGE", f"{text!r} is no duration", hint="for example 120s or 2m")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


@dataclass(frozen=True, slots=True)
class Order:
    """How to suspend."""

    finish: bool = True
    grace: float = DEFAULT_GRACE


@dataclass(frozen=True, slots=True)
class Run:
    """The entry of a running query."""

    id: str

    @property
    def _file(self) -> Path:
        return folder() / f"{self.id}.json"

    @property
    def _order(self) -> Path:
        return folder() / f"{self.id}.order"

    def enter(self, query: str) -> None:
        self._put({"pid": os.getpid(), "query": query, "began": time.time()})

    def answer(self, **found: Any) -> None:
        """Say how it ended, to whoever asked for it; otherwise the entry goes."""
        if self._order.exists():
            self._put({**self.read(), **found})
            self._order.unlink(missing_ok=True)
        else:
            self._file.unlink(missing_ok=True)

    def decline(self, error: str) -> None:
        """Say why it goes on, to whoever asked for it."""
        self._put({**self.read(), "error": error, "runs": True})
        self._order.unlink(missing_ok=True)

    def read(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self._file.read_text())
            return found
        except FileNotFoundError:
            raise ExecutionError(
                "RUN_NOT_FOUND", f"no query {self.id} runs here", hint="headrace tickets lists what is suspended"
            ) from None

    def order(self) -> Order | None:
        """What was ordered; nothing if SIGTERM came from anybody else."""
        try:
            return Order(**json.loads(self._order.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def suspend(self, order: Order, patience: float = 60.0) -> str:
        """Have the process suspend the query: the ticket's address."""
        found = self.read()
        entry = {key: value for key, value in found.items() if key not in ("error", "runs")}
        pid = int(entry["pid"])
        if entry != found:  # nobody waited for that answer
            self._put(entry)
        self._order.write_text(json.dumps({"finish": order.finish, "grace": order.grace}))
        try:
            os.kill(pid, signal.SIGTERM)
            ends = time.monotonic() + order.grace + patience
            while time.monotonic() < ends:
                found = self.read()
                if "ticket" in found or "error" in found:
                    if "runs" in found:
                        self._put(entry)
                    else:
                        self._file.unlink(missing_ok=True)
                    if "ticket" in found:
                        return str(found["ticket"])
                    raise ExecutionError(
                        "NOT_SUSPENDED",
                        f"{self.id}: {found['error']}",
                        hint="it goes on" if "runs" in found else "its answer may be there",
                    )
                os.kill(pid, 0)
                time.sleep(0.05)
        except ProcessLookupError:
            self._file.unlink(missing_ok=True)
            raise ExecutionError(
                "NOT_SUSPENDED", f"the process of query {self.id} is gone", hint="run the query again"
            ) from None
        finally:
            self._order.unlink(missing_ok=True)
        raise ExecutionError(
            "NOT_SUSPENDED", f"query {self.id} did not answer in time", hint="give it a longer --grace"
        )

    def _put(self, found: dict[str, Any]) -> None:
        part = self._file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(found))
        part.rename(self._file)


def living() -> list[Run]:
    """The queries that run now; entries of processes that died are removed."""
    found = []
    for file in sorted(folder().glob("*.json")):
        run = Run(file.stem)
        try:
            os.kill(int(run.read()["pid"]), 0)
            found.append(run)
        except (ProcessLookupError, HeadraceError):
            file.unlink(missing_ok=True)
        except PermissionError:
            pass  # another user's
    return found
