"""The last row of each key, found in one compiled pass.

>>> from headrace.types import STRING
>>> keys, counted = pa.table({"k": ["a", "b", "a", "c", "b"]}), np.array([True, True, True, True, False])
>>> last_of_each([STRING], keys, counted).tolist()
[False, True, True, True, False]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numba import njit

from headrace.engine.columns import lanes_of, one_chunk, write_lanes
from headrace.engine.fold import Array, slot_of
from headrace.types import Type


def last_of_each(types: Sequence[Type], keys: pa.Table, counted: Array) -> Array:
    """Which of the rows that count are the last of their keys."""
    lanes = np.empty((keys.num_rows, sum(map(lanes_of, types))), np.int64)
    start = 0
    for type, column in zip(types, keys.columns, strict=True):
        write_lanes(type, one_chunk(column), lanes[:, start : start + lanes_of(type)], _codes)
        start += lanes_of(type)
    found = counted.copy()
    _leave_last(lanes, found, np.full(1 << max(2 * len(found), 2).bit_length(), -1, np.int32))
    return found


def _codes(texts: pa.Array) -> Array:
    codes: Array = texts.dictionary_encode().indices.fill_null(0).to_numpy()
    return codes


@njit(cache=True, nogil=True)
def _leave_last(lanes: Array, chosen: Array, index: Array) -> None:  # pragma: no cover - compiled
    """Choose no row but the last of each key. ``index`` is a free hash table (-1) of rows, at most half full after."""
    mask = index.shape[0] - 1
    for row in range(lanes.shape[0]):
        if not chosen[row]:
            continue
        at = slot_of(lanes, row, mask)
        while index[at] >= 0:
            other = index[at]
            same = True
            for lane in range(lanes.shape[1]):
                if lanes[other, lane] != lanes[row, lane]:
                    same = False
                    break
            if same:
                chosen[other] = False
                break
            at = (at + 1) & mask
        index[at] = row
