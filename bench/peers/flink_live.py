"""Flink on AIM: one job keeps all six queries fresh, reading files as they appear.

Events are offered as CSV files, moved into a directory Flink looks at every 50 ms; a file counts as acknowledged
when it is there. Flink has no place to ask a query: its answer is what the job last printed, folded from the
changelog in this process. So what is measured is how long after a batch the job has seen it: it prints its count of
events too. The count may be ahead of the other answers, in Flink's favour. Mini-batches are sent on every 100 ms.
"""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from bench import aim
from bench.measure import Refused
from bench.peers.flink import Flink
from bench.telephone import FROM_SCRATCH, Telephone

INTERVAL = "50 ms"
LATENCY = "100 ms"
PATIENCE = 300.0
CHANGE = re.compile(r"(\w+)(?::\d+)?> ([+-])[IUD]\[(.*)\]$")


def _value(text: str) -> Any:
    """A number of the changelog.

    >>> _value("12"), _value("1.5"), _value("null")
    (12, 1.5, None)
    """
    if text == "null":
        return None
    return float(text) if re.search(r"[.EN]", text) else int(text)


class FlinkLive:
    name = "Flink"

    def __init__(self, flink: Flink, directory: Path, people: pa.Table) -> None:
        self._arriving, self._events = directory / "arriving", directory / "events"
        customers = directory / "customers"
        for made in (self._arriving, self._events, customers):
            made.mkdir()
        _write(people, customers / "customers.csv")
        self._lock = threading.Condition()
        self._answers: dict[str, Counter[str]] = {name: Counter() for name in (*FROM_SCRATCH, "seen")}
        self._files = self._acknowledged = 0
        self._failed: str | None = None
        self._due: list[tuple[int, float]] = []
        """Of each batch: the events up to and with it, and when it was acknowledged."""
        self._waits: list[float] = []
        tables: dict[str, list[str | None]] = {
            "events": [aim.EVENTS, str(self._events), INTERVAL],
            "customers": [aim.CUSTOMERS.replace(" PRIMARY KEY", ""), str(customers), None],
        }
        self._columns = flink.watch(tables, FROM_SCRATCH | {"seen": "SELECT count(*) AS n FROM events"}, self._changed)

    def _changed(self, line: str) -> None:
        if line.startswith("failed> "):
            with self._lock:
                self._failed = line.removeprefix("failed> ").strip()
                self._lock.notify_all()
        found = CHANGE.match(line.rstrip())
        if found:
            name, sign, row = found.groups()
            with self._lock:
                answer = self._answers[name]
                answer[row] += 1 if sign == "+" else -1
                if not answer[row]:
                    del answer[row]
                if name == "seen" and sign == "+":
                    self._note_seen(int(row))
                    self._lock.notify_all()

    def _note_seen(self, count: int) -> None:
        now = time.perf_counter()
        while len(self._waits) < len(self._due) and self._due[len(self._waits)][0] <= count:
            self._waits.append(now - self._due[len(self._waits)][1])

    def waits(self) -> list[float]:
        with self._lock:
            return list(self._waits)

    def insert(self, rows: pa.Table) -> None:
        self._files += 1
        file = self._arriving / f"{self._files}.csv"
        _write(rows, file)
        with self._lock:
            file.rename(self._events / file.name)
            self._acknowledged += rows.num_rows
            self._due.append((self._acknowledged, time.perf_counter()))

    def _rows(self, name: str) -> list[str]:
        return [row for row, times in self._answers[name].items() for _ in range(times)]

    def behind(self) -> int:
        with self._lock:
            return self._acknowledged - self._seen()

    def _seen(self) -> int:
        return max(map(int, self._rows("seen")), default=0)

    def ask(self, query: str) -> pa.Table:
        wanted = self._acknowledged
        with self._lock:
            if not self._lock.wait_for(lambda: self._failed or self._seen() >= wanted, timeout=PATIENCE):
                raise Refused(f"events not seen after {PATIENCE:.0f} s")
            if self._failed:
                raise Refused(self._failed)
            rows = [[_value(text) for text in row.split(", ")] for row in self._rows(query)]
        return pa.table({name: pa.array([row[i] for row in rows]) for i, name in enumerate(self._columns[query])})


def _write(rows: pa.Table, file: Path) -> None:
    pa_csv.write_csv(rows, file, pa_csv.WriteOptions(include_header=False))


@contextmanager
def live(python: Path, people: pa.Table) -> Iterator[Telephone]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory, Flink(python, LATENCY) as flink:
        yield FlinkLive(flink, Path(directory), people)


def maker(python: Path) -> Any:
    return partial(live, python)
