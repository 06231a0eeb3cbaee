"""What the ring's tests run in processes of their own."""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import ExecutionError, HeadraceError
from headrace.rings import Ring, Scan
from headrace.rings.scan import ReaderTicket, WindowOver
from headrace.types import BIGINT, INT, STRING, Field

CHECKED = (Field("writer", INT), Field("n", BIGINT), Field("text", STRING), Field("sum", BIGINT))
"""A tuple that tells whether it is torn: ``sum`` is a checksum of the rest."""


def checked_rows(writer: int, start: int, count: int) -> pa.Table:
    texts = [f"{writer}-{n}" * (1 + n % 5) for n in range(start, start + count)]
    return pa.table(
        {
            "writer": pa.array([writer] * count, pa.int32()),
            "n": pa.array(range(start, start + count), pa.int64()),
            "text": pa.array([None if n % 11 == 0 else t for n, t in enumerate(texts, start)], pa.string()),
            "sum": pa.array([_sum(writer, n, t) for n, t in enumerate(texts, start)], pa.int64()),
        }
    )


def _sum(writer: int, n: int, text: str) -> int:
    return zlib.crc32(f"{writer} {n} {'' if n % 11 == 0 else text}".encode())


def is_whole(row: dict[str, object]) -> bool:
    return row["sum"] == zlib.crc32(f"{row['writer']} {row['n']} {row['text'] or ''}".encode())


def write(folder: Path, writer: int, rows: int) -> None:
    ring = Ring.open(folder)
    at, sizes = 0, np.random.default_rng(writer)
    while at < rows:
        count = min(rows - at, int(sizes.integers(1, 400)))
        ring.write(checked_rows(writer, at, count), wait=bool(sizes.integers(0, 2)))
        at += count


def read(folder: Path, reader: int, ident: int, worker: int) -> None:
    """Print how many tuples came of each writer and whether all were whole and in order."""
    ring = Ring.open(folder)
    scan = Scan(ring, ReaderTicket(reader, ident), [f.name for f in CHECKED], worker)
    seen: dict[int, list[int]] = {}
    try:
        while True:
            batch = scan.next(most=1000)
            assert batch is not None
            batch.validate(full=True)
            for row in batch.to_pylist():
                assert is_whole(row), row
                seen.setdefault(row["writer"], []).append(row["n"])
    except WindowOver:
        pass
    for ns in seen.values():
        assert ns == sorted(set(ns))
    print(";".join(f"{w}:{','.join(map(str, ns))}" for w, ns in seen.items()))


def read_what_is_there(folder: Path) -> None:
    """Read from the oldest tuple on, anew whenever writers have come round; print how many tuples and how often.

    Every fifth time wait until they have, if they ever do: so that it does not depend on who is faster.
    """
    ring = Ring.open(folder)
    print("ready", flush=True)
    seen = batches = overruns = 0
    told = False
    while True:
        scan = Scan.start(ring, [f.name for f in CHECKED], oldest=True, timeout=500)
        try:
            while True:
                batch = scan.next(most=400)
                assert batch is not None
                batch.validate(full=True)
                assert all(map(is_whole, batch.to_pylist()))
                seen, batches = seen + batch.num_rows, batches + 1
                if overruns and not told:
                    print("read and overrun", flush=True)
                    told = True
                while batches % 5 == 0 and ring.end <= scan.position + ring.terms.capacity and not ring.book.is_closed:
                    time.sleep(0.001)
        except ExecutionError as error:
            scan.give_up()
            if error.condition == "STREAM_CLOSED":
                break
            assert error.condition == "STREAM_OVERRUN", error
            overruns += 1
    print(seen, overruns)


class Actor:
    """Does with a ring what it is told."""

    def __init__(self) -> None:
        self._ring: Any = None
        self._picked: dict[int, tuple[Scan, int, int]] = {}

    def tell(self, name: str, *given: Any) -> Any:
        """Do it; returns what came of it, or the condition of the failure."""
        try:
            return getattr(self, f"_{name}")(*given)
        except HeadraceError as error:
            return error.condition

    def _open(self, folder: str) -> None:
        self._ring = Ring.open(Path(folder))

    def _write(self, writer: int, start: int, count: int) -> None:
        self._ring.write(checked_rows(writer, start, count))

    def _begin(self) -> list[int]:
        ticket = Scan.start(self._ring, ["n"]).ticket
        return [ticket.reader, ticket.id]

    def _pick(self, reader: int, ident: int, worker: int, most: int) -> int:
        """How many tuples were picked, to be copied later."""
        scan = Scan(self._ring, ReaderTicket(reader, ident), [f.name for f in CHECKED], worker)
        picked = scan._pick(most)
        if picked is None:
            return 0
        self._picked[ident] = scan, *picked
        return picked[1] - picked[0]

    def _copy(self, ident: int) -> list[list[int]]:
        """The writer and the number of each tuple that was picked."""
        scan, lo, hi = self._picked.pop(ident)
        batch = scan._copy(lo, hi)
        scan._release(lo, batch is not None)
        assert batch is not None
        batch.validate(full=True)
        rows = batch.to_pylist()
        assert all(map(is_whole, rows)), rows
        return [[row["writer"], row["n"]] for row in rows]


def serve(_: Path) -> None:
    """Do what is told by lines of JSON, and answer each with another."""
    actor = Actor()
    for line in sys.stdin:
        print(json.dumps(actor.tell(*json.loads(line))), flush=True)


def claim_and_hang(folder: Path, rows: int) -> None:
    ring = Ring.open(folder)
    ring.book.claim(rows, lambda n: 0, ring.rounds.begin)
    _hang()


def hold_text(folder: Path) -> None:
    ring = Ring.open(folder)
    batch = Scan.start(ring, ["text"], oldest=True, timeout=500).next()
    assert batch is not None
    _hang()


def pick_and_hang(folder: Path, reader: int, ident: int) -> None:
    Scan(Ring.open(folder), ReaderTicket(reader, ident), ["n"], 7)._pick(1000)
    _hang()


def read_and_hang(folder: Path, reader: int, ident: int) -> None:
    assert Scan(Ring.open(folder), ReaderTicket(reader, ident), ["n"], 7).next() is not None
    _hang()


def _hang() -> None:
    print("ready", flush=True)
    time.sleep(3600)
    os._exit(1)


if __name__ == "__main__":
    name, folder, *numbers = sys.argv[1:]
    globals()[name](Path(folder), *map(int, numbers))
