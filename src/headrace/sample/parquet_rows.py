"""Chosen rows of Parquet files: row groups that hold none of them are not read.

A file's footer says how many rows its groups have, so a row's number is enough to know its group. DuckDB
reads the groups between the first and the last of a run that are all needed, and of their columns decodes
the pages of the chosen rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from headrace.base.parquet_files import ROW_NUMBER, footer_of, native_scan

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Stretch:
    """Rows of one file that follow each other: the number of the first, and how many there are of each row group."""

    path: str
    start: int
    groups: tuple[int, ...]

    @property
    def rows(self) -> int:
        return sum(self.groups)


def stretch_of(path: str, start: int = 0, end: int | None = None) -> Stretch:
    """All of a file, or its rows ``[start, end)``."""
    metadata = footer_of(path)
    bounds = np.cumsum([0, *(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))])
    cut = np.clip(bounds, start, metadata.num_rows if end is None else end)
    return Stretch(path, start, tuple(int(rows) for rows in np.diff(cut) if rows))


def divided(files: Sequence[Stretch], workers: int) -> list[list[Stretch]]:
    """The files' groups, in order, as parts of about equal rows; no more than ``workers``, and none is empty.

    >>> files = [Stretch("a", 0, (10, 10, 10)), Stretch("b", 0, (5,))]
    >>> [[(s.path, s.start, s.rows) for s in part] for part in divided(files, 2)]
    [[('a', 0, 20)], [('a', 20, 10), ('b', 0, 5)]]
    """
    groups = [(f, at, rows) for f in files for at, rows in zip(_starts(f), f.groups, strict=True) if rows]
    total = sum(rows for *_, rows in groups)
    parts: list[list[Stretch]] = [[] for _ in range(workers)]
    before = 0
    for file, at, rows in groups:
        part = parts[min(workers - 1, (2 * before + rows) * workers // (2 * total))]
        before += rows
        if part and part[-1].path == file.path and part[-1].start + part[-1].rows == at:
            part[-1] = Stretch(file.path, part[-1].start, (*part[-1].groups, rows))
        else:
            part.append(Stretch(file.path, at, (rows,)))
    return [part for part in parts if part]


def _starts(stretch: Stretch) -> list[int]:
    return [int(at) for at in np.cumsum([stretch.start, *stretch.groups])[:-1]]


def take_rows(cursor: duckdb.DuckDBPyConnection, stretches: Sequence[Stretch], places: Array, items: str) -> pa.Table:
    """The rows at these ascending places among all rows of the stretches: ``items`` of them, a native select list."""
    found: list[pa.Table] = []
    start = 0
    for stretch in stretches:
        mine = places[np.searchsorted(places, start) : np.searchsorted(places, start + stretch.rows)] - start
        start += stretch.rows
        for first, last in _runs_of_groups(stretch, mine):
            inside = mine[np.searchsorted(mine, first) : np.searchsorted(mine, last)]
            if len(inside):
                found.append(_read(cursor, stretch, first, last, inside, items))
    return pa.concat_tables(found) if found else _read(cursor, stretches[0], 0, 0, places[:0], items)


def _runs_of_groups(stretch: Stretch, places: Array) -> list[tuple[int, int]]:
    """Rows ``[first, last)`` of the runs of neighbouring groups that each hold a place."""
    ends = np.cumsum([0, *stretch.groups])
    runs: list[tuple[int, int]] = []
    for group in np.unique(np.searchsorted(ends, places, side="right") - 1).tolist():
        if runs and runs[-1][1] == ends[group]:
            runs[-1] = (runs[-1][0], int(ends[group + 1]))
        else:
            runs.append((int(ends[group]), int(ends[group + 1])))
    return runs


def _read(
    cursor: duckdb.DuckDBPyConnection, stretch: Stretch, first: int, last: int, inside: Array, items: str
) -> pa.Table:
    chosen = pa.table({ROW_NUMBER: pa.array(inside + stretch.start)})
    with_rows = cursor.sql(
        f"SELECT {items or 'NULL AS nothing'} FROM {native_scan([stretch.path], numbered=True)} "
        f"SEMI JOIN chosen USING ({ROW_NUMBER}) "
        f"WHERE {ROW_NUMBER} >= {stretch.start + first} AND {ROW_NUMBER} < {stretch.start + last}"
    ).to_arrow_table()
    assert chosen.num_rows == with_rows.num_rows
    return with_rows
