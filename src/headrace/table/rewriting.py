"""Segments that are written anew: those most of whose rows are gone, and many small ones as one.

Segments never change, so a deletion leaves its row there and every COPY leaves a file. The statement that tips the
scale writes new files after its own commit, as inserts merge states (``keep/compaction.py``), and leaves to OPTIMIZE
what would take long. No answer changes by it: rows only get other places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.catalog import Table
from headrace.runtime import Runtime
from headrace.store import Segment, Transaction
from headrace.table import keys
from headrace.table import rows as tables

GONE = 0.3
"""The share of a segment's rows that may be deleted before it is written anew."""
TOGETHER = 16
"""Segments of about one size before they are made one: each row is written again once a size."""
LARGE = 1 << 20
"""Rows of a segment that is large enough, and of the new ones."""
_LOOKED_AFTER = 64
"""Of a small segment's rows, which part is gone before anybody looks whether it is to be written anew."""
AT_ONCE = 1 << 22
"""Rows written again by a statement that asked for something else."""


@dataclass(frozen=True)
class Rewritten:
    """What was written anew."""

    removed: int = 0
    """Files that are not the table's any more."""
    added: int = 0
    rows: int = 0
    """Rows in the new files."""
    deleted: int = 0
    """Rows of the old ones that had been deleted."""


def due(runtime: Runtime, table: Table, gone: int) -> None:
    """Write anew what is due, after a commit that took out so many rows of segments, or brought files if none; what is
    not done is done after another. Few rows are not worth a look: they are counted up."""
    runtime.gone[table.number] += gone or tables.TAIL_ROWS
    if runtime.gone[table.number] * _LOOKED_AFTER < tables.TAIL_ROWS:
        return
    with runtime.tables_lock:
        now = runtime.catalog.table_at(table.number)
        if now is None:
            return
        with runtime.store.read() as snapshot:
            files, deleted = snapshot.manifest(now.number), snapshot.deleted(now.number)
        chosen = _due(files, deleted)
        if chosen:
            _rewrite(runtime, now, chosen, f"rewrite {now.name}")
        del runtime.gone[now.number]


def optimize(runtime: Runtime, table: Table) -> Rewritten:
    """Write the tail out, and anew all segments that have deleted rows or are small beside others."""
    with runtime.tables_lock:
        runtime.catalog.require_there(table)
        flush(runtime, table)
        with runtime.store.read() as snapshot:
            files, deleted = snapshot.manifest(table.number), snapshot.deleted(table.number)
        chosen = [f for f in files if f.path.name in deleted or f.rows < LARGE]
        if len(chosen) == 1 and not deleted:
            return Rewritten()
        return _rewrite(runtime, table, chosen, f"OPTIMIZE {table.name}") if chosen else Rewritten()


def flush(runtime: Runtime, table: Table) -> None:
    """Write the tail out, so that other processes can read the whole table from files."""
    with runtime.tables_lock, keys.entering(runtime, table, [], keys.Gone.nothing()) as entering:

        def work(tx: Transaction) -> int | None:
            if tx.query(f"SELECT count(*) AS n FROM {tx.table(table.number)}").column("n")[0].as_py() == 0:
                tx.unchanged()
                return None
            entering.flushed(tables.flush(runtime, tx, table))
            return tx.epoch

        entering.committed(runtime.store.commit(work, label=f"flush {table.name}"))


def _due(files: Sequence[Segment], deleted: dict[str, int]) -> list[Segment]:
    """Which segments are to be written anew now, and would not take long.

    >>> files = [Segment(Path(f"f{i}"), rows, i) for i, rows in enumerate([100, 100, 10_000_000] + [1000] * 16)]
    >>> found = [f.path.name for f in _due(files, {"f0": 30, "f1": 31, "f2": 5_000_000})]
    >>> found[:3], len(found)
    (['f1', 'f3', 'f4'], 17)
    """
    left = {f.path.name: f.rows - deleted.get(f.path.name, 0) for f in files}
    chosen = {f.path.name for f in files if f.rows - left[f.path.name] > GONE * f.rows}
    sizes: dict[int, list[str]] = {}
    for f in files:
        if left[f.path.name] < LARGE:
            sizes.setdefault(left[f.path.name].bit_length() // 3, []).append(f.path.name)
    for names in sizes.values():
        if len(names) >= TOGETHER:
            chosen.update(names)
    found: list[Segment] = []
    room = AT_ONCE
    for f in files:
        if f.path.name in chosen and left[f.path.name] <= room:
            room -= left[f.path.name]
            found.append(f)
    return found


def _rewrite(runtime: Runtime, table: Table, old: Sequence[Segment], label: str) -> Rewritten:
    new: list[tuple[Path, int]] = []
    names = {f.path.name for f in old}
    try:
        with runtime.store.read() as snapshot:
            deleted = sum(n for name, n in snapshot.deleted(table.number).items() if name in names)
            rows = tables.chunks(snapshot, table, names, tail=False)
            while (first := next(rows, None)) is not None:
                new.append((runtime.store.new_segment(table.number), 0))
                new[-1] = (new[-1][0], _written(table, new[-1][0], first, rows))

        def work(tx: Transaction) -> None:
            tx.remove_segments(table.number, files=names, altered=False)
            for file, count in new:
                tx.add_segment(table.number, file, count, altered=False)

        runtime.store.commit(work, label=label)
    except BaseException:
        for file, _ in new:
            runtime.store.let_go(file)
        raise
    return Rewritten(len(old), len(new), sum(count for _, count in new), deleted)


def _written(table: Table, file: Path, first: pa.Table, rest: Iterator[pa.Table]) -> int:
    """Write rows to a file, until it is large enough; how many it has."""
    count: int = first.num_rows
    with tables.segment_writer(file, table) as write:
        write(first)
        while count < LARGE and (chunk := next(rest, None)) is not None:
            write(chunk)
            count += chunk.num_rows
    return count
