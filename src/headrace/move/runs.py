"""Queries run by ``headrace run`` on this machine: who they are, and how another process asks one to suspend.

Each has a small file in ``$HEADRACE_RUNS`` (``~/.headrace/runs``) while it runs, and a lock beside it that the kernel
drops with its process: a number of a process may be another's by now, a lock that is held is not. To suspend a query,
an order is put beside its file and its process gets SIGTERM; it answers in the file. A query that cannot be suspended
goes on. The folder may be shared by hosts: each leaves the others' queries alone.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.base.private import has_shape, inside, make_folder, read_json, write_text
from headrace.errors import ExecutionError, HeadraceError
from headrace.move.files import unusable
from headrace.store.directory import DirectoryLock, is_locked


def folder() -> Path:
    found = Path(os.environ.get("HEADRACE_RUNS") or Path.home() / ".headrace" / "runs")
    try:
        make_folder(found, top=True, tighten=False)
    except OSError as error:
        raise _unusable(found, error) from None
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

    finish: bool | None = None
    """Which stages in flight to finish: all, none, or (None) those whose rows are then worth moving."""
    grace: float = 60.0


@dataclass(frozen=True, slots=True)
class RunSeen:
    """A running query as other processes see it."""

    id: str

    def read(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = read_json(self._own("json"))
            if not has_shape(found, {"pid": int, "host": str, "processes": str, "query": str}) or found["pid"] <= 0:
                raise ValueError("no entry")
            return found
        except (FileNotFoundError, ValueError):
            raise ExecutionError(
                "RUN_NOT_FOUND", f"no query {self.id} runs here", hint="headrace tickets lists what is suspended"
            ) from None

    def alive(self) -> bool:
        """Whether its process is: it holds the lock."""
        return is_locked(self.path("lock"))

    def suspend(self, order: Order, patience: float = 60.0) -> str:
        """Have the process suspend the query: the ticket's address."""
        found = self.read()
        if not _here(found):
            raise ExecutionError(
                "NOT_SUSPENDED", f"query {self.id} runs on {found.get('host')}", hint="suspend it from there"
            )
        try:
            return self._suspend(found, order, patience)
        except OSError as error:
            raise ExecutionError("NOT_SUSPENDED", f"{self.id}: {error}", hint="it may be another user's") from None

    def _suspend(self, found: dict[str, Any], order: Order, patience: float) -> str:
        entry = {key: value for key, value in found.items() if key not in ("error", "runs")}
        if not self.alive():
            raise self._gone()
        if entry != found:  # nobody waited for that answer
            self.put(entry)
        write_text(self.path("order"), json.dumps({"finish": order.finish, "grace": order.grace}))
        try:
            with suppress(ProcessLookupError):
                os.kill(int(entry["pid"]), signal.SIGTERM)
            ends = time.monotonic() + order.grace + patience
            while time.monotonic() < ends:
                alive = self.alive()  # looked at first: the answer is there before the lock is dropped
                found = self.read()
                if "ticket" in found or "error" in found:
                    if "runs" in found:
                        self.put(entry)
                    else:
                        self.forget()
                    if "ticket" in found:
                        return str(found["ticket"])
                    raise ExecutionError(
                        "NOT_SUSPENDED",
                        f"{self.id}: {found['error']}",
                        hint="it goes on" if "runs" in found else "its answer may be there",
                    )
                if not alive:
                    raise self._gone()
                time.sleep(0.05)
        finally:
            self.path("order").unlink(missing_ok=True)
        raise ExecutionError(
            "NOT_SUSPENDED", f"query {self.id} did not answer in time", hint="give it a longer --grace"
        )

    def put(self, found: dict[str, Any]) -> None:
        part = self.path(str(os.getpid()))
        write_text(part, json.dumps(found))
        part.rename(self.path("json"))

    def forget(self) -> None:
        for kind in ("json", "order", "lock"):
            self.path(kind).unlink(missing_ok=True)

    def _gone(self) -> ExecutionError:
        self.forget()
        return ExecutionError("NOT_SUSPENDED", f"the process of query {self.id} is gone", hint="run the query again")

    def path(self, kind: str) -> Path:
        return inside(folder(), f"{self.id}.{kind}")

    def _own(self, kind: str) -> Path:
        """A file that this user wrote: where others may write in the folder too, they have no say."""
        path = self.path(kind)
        if os.lstat(path).st_uid != os.geteuid():
            raise FileNotFoundError(path)
        return path


class Entry:
    """A query of this process, as long as it runs."""

    def __init__(self, id: str, query: str) -> None:
        self._run = RunSeen(id)
        self._about = {"pid": os.getpid(), **_place(), "query": query, "began": time.time()}
        try:
            self._lock = DirectoryLock(self._run.path("lock"))  # first: no entry is seen without it
            self._run.put(self._about)
        except OSError as error:
            raise _unusable(folder(), error) from None

    def order(self) -> Order | None:
        """What was ordered; nothing if SIGTERM came from anybody else."""
        try:
            found = read_json(self._run._own("order"))
        except (OSError, HeadraceError, ValueError):
            return None
        sound = has_shape(found, {"grace": int | float}) and found.get("finish") in (None, True, False)
        return Order(found["finish"], float(found["grace"])) if sound and 0 <= found["grace"] < 1e9 else None

    def decline(self, error: str) -> None:
        """Say why the query goes on, to whoever asked for it."""
        self._tell(error=error, runs=True)

    def close(self, **found: Any) -> None:
        """Say how the query ended, to whoever asked for it; otherwise the entry goes."""
        with suppress(OSError, HeadraceError):  # an entry that stays is removed by whoever lists the living
            if self._run.path("order").exists():
                self._tell(**found)
            else:
                self._run.forget()
        self._lock.release()

    def _tell(self, **found: Any) -> None:
        with suppress(OSError, HeadraceError):  # whoever waits for it gives up; the query is worth more
            self._run.put({**self._about, **found})
            self._run.path("order").unlink(missing_ok=True)


def living() -> list[RunSeen]:
    """The queries that run now on this host; entries of processes of this host that died are removed."""
    found = []
    for file in sorted(folder().glob("*.json")):
        run = RunSeen(file.stem)
        with suppress(OSError, HeadraceError):  # another user's, or gone meanwhile
            entry = run.read()
            if not _here(entry):
                continue
            if run.alive():
                os.kill(int(entry["pid"]), 0)
                found.append(run)
            else:
                run.forget()
    return found


def _place() -> dict[str, str]:
    """Where a number means this process: on this host, and among the processes of this container."""
    try:
        return {"host": socket.gethostname(), "processes": os.readlink("/proc/self/ns/pid")}
    except OSError:  # no Linux
        return {"host": socket.gethostname(), "processes": ""}


def _here(entry: dict[str, Any]) -> bool:
    return _place().items() <= entry.items()


def _unusable(where: Path, error: OSError) -> HeadraceError:
    return unusable(str(where), f"{error.strerror or error} (HEADRACE_RUNS names another folder)")
