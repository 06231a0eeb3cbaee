"""Segments that are written anew: those most of whose rows are gone, and many small ones as one.

Segments never change, so a deletion leaves its row there and every COPY leaves a file. A statement that takes many rows
out of a segment writes what is left of it anew, and its commit has the new file in the place of the old one. Where few
are gone at a time, the statement that tips the scale writes new files after its own commit, as inserts merge states
(``keep/compaction.py``). What would take long is left to OPTIMIZE. No answer changes by it: rows only get other places.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.catalog import Table
from headrace.engine.key_index import Array
from headrace.runtime import Runtime
from headrace.store import Segment, Transaction
from headrace.table import keys
from headrace.table import rows as tables
from headrace.table.rows import NewFile

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


@dataclass(frozen=True)
class Melted:
    """Segments of which a change leaves too little, and the files that are to be in their place."""

    places: pa.Table
    """The places of rows that go, but for those in these segments."""
    names: Collection[str] = ()
    files: Sequence[NewFile] = ()
    """What is left of them."""


def melt(runtime: Runtime, table: Table, places: pa.Table) -> Melted:
    """Write what a change leaves of the segments it takes many rows out of. Hold ``tables_lock`` since the places were
    read."""
    if places.num_rows * _LOOKED_AFTER < tables.TAIL_ROWS or runtime.store.batch is not None:
        return Melted(places)
    in_files = places.column(0).combine_chunks().dictionary_encode()
    codes, numbers = in_files.indices.to_numpy(), places.column(1).to_numpy()
    gone = {name: numbers[codes == code] for code, name in enumerate(in_files.dictionary.to_pylist()) if name}
    with runtime.store.read() as snapshot:
        before = snapshot.deleted(table.number)
        deleted = {name: before.get(name, 0) + len(rows) for name, rows in gone.items()}
        files_now = snapshot.manifest(table.number)
        chosen = _with_room(files_now, deleted, _mostly_gone(files_now, {n: len(rows) for n, rows in gone.items()}))
        if not chosen:
            return Melted(places)
        names = [f.path.name for f in chosen]
        for name in before.keys() & set(names):
            gone[name] = np.concatenate([gone[name], snapshot.rows_deleted(table.number, name).to_numpy()])
    kept = np.isin(codes, [code for code, name in enumerate(in_files.dictionary.to_pylist()) if name not in names])
    files = _files(runtime, table, chain(*(_left(table, f, gone[f.path.name]) for f in chosen)))
    return Melted(places.filter(pa.array(kept)), names, files)


def _left(table: Table, segment: Segment, gone: Array) -> Iterator[pa.Table]:
    """The rows of a segment without some, some at a time."""
    stays, at = np.ones(segment.rows, np.bool_), 0
    stays[gone] = False
    for chunk in tables.segment_chunks(table, segment.path):
        left = chunk.filter(pa.array(stays[at : at + chunk.num_rows]))
        at += chunk.num_rows
        if left.num_rows:
            yield left


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


def _due(files: Sequence[Segment], deleted: Mapping[str, int]) -> list[Segment]:
    """Which segments are to be written anew now, and would not take long.

    >>> files = [Segment(Path(f"f{i}"), rows, i) for i, rows in enumerate([100, 100, 10_000_000] + [1000] * 16)]
    >>> found = [f.path.name for f in _due(files, {"f0": 30, "f1": 31, "f2": 5_000_000})]
    >>> found[:3], len(found)
    (['f1', 'f3', 'f4'], 17)
    """
    chosen = _mostly_gone(files, deleted)
    sizes: dict[int, list[str]] = {}
    for f in files:
        left = f.rows - deleted.get(f.path.name, 0)
        if left < LARGE:
            sizes.setdefault(left.bit_length() // 3, []).append(f.path.name)
    for names in sizes.values():
        if len(names) >= TOGETHER:
            chosen.update(names)
    return _with_room(files, deleted, chosen)


def _mostly_gone(files: Sequence[Segment], deleted: Mapping[str, int]) -> set[str]:
    return {f.path.name for f in files if deleted.get(f.path.name, 0) > GONE * f.rows}


def _with_room(files: Sequence[Segment], deleted: Mapping[str, int], chosen: Collection[str]) -> list[Segment]:
    """Those of the chosen that would not take long."""
    found: list[Segment] = []
    room = AT_ONCE
    for f in files:
        left = f.rows - deleted.get(f.path.name, 0)
        if f.path.name in chosen and left <= room:
            room -= left
            found.append(f)
    return found


def _rewrite(runtime: Runtime, table: Table, old: Sequence[Segment], label: str) -> Rewritten:
    names = {f.path.name for f in old}
    with runtime.store.read() as snapshot:
        deleted = sum(n for name, n in snapshot.deleted(table.number).items() if name in names)
        new = _files(runtime, table, tables.chunks(snapshot, table, names, tail=False))

    def work(tx: Transaction) -> None:
        tx.remove_segments(table.number, files=names, altered=False)
        for file in new:
            tx.add_segment(table.number, file.path, file.rows, altered=False)

    try:
        runtime.store.commit(work, label=label)
    except BaseException:
        _let_go(runtime, new)
        raise
    return Rewritten(len(old), len(new), sum(file.rows for file in new), deleted)


def _files(runtime: Runtime, table: Table, rows: Iterator[pa.Table]) -> list[NewFile]:
    """Rows that the table has, in new files that are large enough."""
    files = list[NewFile]()
    try:
        while (first := next(rows, None)) is not None:
            files.append(NewFile(runtime.store.new_segment(table.number), 0))
            found = list(_written(table, files[-1].path, first, rows))
            count, keys = sum(count for count, _ in found), pa.concat_tables(keys for _, keys in found)
            files[-1] = NewFile(files[-1].path, count, old=True, keys=keys)
    except BaseException:
        _let_go(runtime, files)
        raise
    return files


def _written(table: Table, file: Path, first: pa.Table, rest: Iterator[pa.Table]) -> Iterator[tuple[int, pa.Table]]:
    """Write rows to a file, until it is large enough, and pass on how many they are, and their keys."""
    count = 0
    with tables.segment_writer(file, table) as write:
        for chunk in chain([first], rest):
            write(chunk)
            yield chunk.num_rows, chunk.select(list(table.primary_key))
            count += chunk.num_rows
            if count >= LARGE:
                break


def _let_go(runtime: Runtime, files: Sequence[NewFile]) -> None:
    for file in files:
        runtime.store.let_go(file.path)
