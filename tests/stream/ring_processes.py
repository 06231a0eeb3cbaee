"""What the ring's tests run in processes of their own."""

from __future__ import annotations

import os
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.stream.ring import Ring, Scan
from headrace.stream.ring.scan import Ticket, WindowOver
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
    scan = Scan(ring, Ticket(reader, ident), [f.name for f in CHECKED], worker)
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


def claim_and_hang(folder: Path, rows: int) -> None:
    ring = Ring.open(folder)
    ring.book.claim(rows, lambda n: 0, ring.rounds.begin)
    _hang()


def hold_text(folder: Path) -> None:
    ring = Ring.open(folder)
    batch = Scan.start(ring, ["text"], oldest=True, timeout=60).next()
    assert batch is not None
    _hang()


def pick_and_hang(folder: Path, reader: int, ident: int) -> None:
    Scan(Ring.open(folder), Ticket(reader, ident), ["n"], 7)._pick(1000)
    _hang()


def read_and_hang(folder: Path, reader: int, ident: int) -> None:
    assert Scan(Ring.open(folder), Ticket(reader, ident), ["n"], 7).next() is not None
    _hang()


def _hang() -> None:
    print("ready", flush=True)
    time.sleep(120)
    os._exit(1)


if __name__ == "__main__":
    name, folder, *numbers = sys.argv[1:]
    globals()[name](Path(folder), *map(int, numbers))
