"""Compiled loops that fold rows into groups by number.

Keys are compared as *lanes*: 64-bit integers, equal exactly when the keys are. A
group's number is its place in every column, so folding a row touches one slot a
column. All loops take rows in order and may meet a group many times. ``present`` tells
which rows have a value; where it is empty, all have.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

Array = np.ndarray[Any, Any]

_LIMIT_HIGH = 10**38 >> 64
_LIMIT_LOW = np.uint64(10**38 & 0xFFFFFFFFFFFFFFFF)
"""10^38, the first value a decimal of 38 digits does not hold, in two halves."""


@njit(cache=True, nogil=True)
def slot_of(lanes: Array, row: int, mask: int) -> Any:  # pragma: no cover - compiled
    mixed = np.uint64(0x9E3779B97F4A7C15)
    for lane in range(lanes.shape[1]):
        mixed ^= np.uint64(lanes[row, lane])
        mixed *= np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(32)
    return np.int64(mixed & np.uint64(mask))


@njit(cache=True, nogil=True)
def number(lanes: Array, index: Array, groups: Array, count: int) -> tuple[Array, Array]:  # pragma: no cover
    """The group number of each row, and the first row of each group not seen before.

    ``index`` is an open hash table of numbers (-1 is free), a power of two and at
    most half full after this; ``groups`` has the lanes of every group and room for more.
    """
    rows, width = lanes.shape
    mask = index.shape[0] - 1
    numbers = np.empty(rows, np.int64)
    firsts = np.empty(rows, np.int64)
    start = count
    for row in range(rows):
        at = slot_of(lanes, row, mask)
        while True:
            group = index[at]
            if group < 0:
                for lane in range(width):
                    groups[count, lane] = lanes[row, lane]
                index[at] = count
                firsts[count - start] = row
                group = count
                count += 1
                break
            same = True
            for lane in range(width):
                if groups[group, lane] != lanes[row, lane]:
                    same = False
                    break
            if same:
                break
            at = (at + 1) & mask
        numbers[row] = group
    return numbers, firsts[: count - start]


@njit(cache=True, nogil=True)
def find(lanes: Array, index: Array, groups: Array) -> int:  # pragma: no cover
    """The number of the one group with these lanes; -1 if there is none."""
    mask = index.shape[0] - 1
    at = slot_of(lanes, 0, mask)
    while index[at] >= 0:
        same = True
        for lane in range(lanes.shape[1]):
            if groups[index[at], lane] != lanes[0, lane]:
                same = False
                break
        if same:
            return int(index[at])
        at = (at + 1) & mask
    return -1


@njit(cache=True, nogil=True)
def find_each(lanes: Array, index: Array, groups: Array) -> Array:  # pragma: no cover
    """The number of the group with each row's lanes; -1 where there is none."""
    mask = index.shape[0] - 1
    found = np.full(lanes.shape[0], -1, np.int64)
    for row in range(lanes.shape[0]):
        at = slot_of(lanes, row, mask)
        while index[at] >= 0:
            same = True
            for lane in range(lanes.shape[1]):
                if groups[index[at], lane] != lanes[row, lane]:
                    same = False
                    break
            if same:
                found[row] = index[at]
                break
            at = (at + 1) & mask
    return found


@njit(cache=True, nogil=True)
def fill_index(groups: Array, count: int, index: Array) -> None:  # pragma: no cover
    """Enter groups, all different, into an empty table."""
    mask = index.shape[0] - 1
    for group in range(count):
        at = slot_of(groups, group, mask)
        while index[at] >= 0:
            at = (at + 1) & mask
        index[at] = group


@njit(cache=True, nogil=True)
def add_integers(values: Array, known: Array, numbers: Array, given: Array, present: Array) -> bool:  # pragma: no cover
    """Sums of 64-bit integers; False once one would overflow."""
    every = present.shape[0] == 0
    for row in range(numbers.shape[0]):
        if every or present[row]:
            group = numbers[row]
            total = values[group] + given[row]
            if ((values[group] ^ total) & (given[row] ^ total)) < 0:
                return False
            values[group] = total
            known[group] = 1
    return True


@njit(cache=True, nogil=True)
def add_doubles(values: Array, known: Array, numbers: Array, given: Array, present: Array) -> bool:  # pragma: no cover
    every = present.shape[0] == 0
    for row in range(numbers.shape[0]):
        if every or present[row]:
            values[numbers[row]] += given[row]
            known[numbers[row]] = 1
    return True


@njit(cache=True, nogil=True)
def add_decimals(values: Array, known: Array, numbers: Array, given: Array, present: Array) -> bool:  # pragma: no cover
    """Sums of 128-bit integers as (low, high) halves; False once one passes 38 digits."""
    every = present.shape[0] == 0
    for row in range(numbers.shape[0]):
        if every or present[row]:
            group = numbers[row]
            low = np.uint64(values[group, 0]) + np.uint64(given[row, 0])
            carry = np.int64(1) if low < np.uint64(given[row, 0]) else np.int64(0)
            high = values[group, 1] + given[row, 1] + carry
            size_high, size_low = high, low
            if high < 0:
                size_low = ~low + np.uint64(1)
                size_high = ~high + (np.int64(1) if size_low == np.uint64(0) else np.int64(0))
            if size_high > _LIMIT_HIGH or (size_high == _LIMIT_HIGH and size_low >= _LIMIT_LOW):
                return False
            values[group, 0] = np.int64(low)
            values[group, 1] = high
            known[group] = 1
    return True


@njit(cache=True, nogil=True)
def _less(a: Any, b: Any) -> bool:  # pragma: no cover
    """NaN is greater than any other number, as Spark has it."""
    if a != a:
        return False
    if b != b:
        return True
    return bool(a < b)


@njit(cache=True, nogil=True)
def keep(
    greatest: bool, values: Array, known: Array, numbers: Array, given: Array, present: Array
) -> bool:  # pragma: no cover
    """The least or the greatest of each group."""
    every = present.shape[0] == 0
    for row in range(numbers.shape[0]):
        if every or present[row]:
            group = numbers[row]
            old, new = values[group], given[row]
            less, more = (old, new) if greatest else (new, old)
            if not known[group] or _less(less, more):
                values[group] = new
                known[group] = 1
    return True


@njit(cache=True, nogil=True)
def _less_wide(low: Any, high: Any, other_low: Any, other_high: Any) -> bool:  # pragma: no cover
    return bool(high < other_high or (high == other_high and np.uint64(low) < np.uint64(other_low)))


@njit(cache=True, nogil=True)
def keep_wide(
    greatest: bool, values: Array, known: Array, numbers: Array, given: Array, present: Array
) -> bool:  # pragma: no cover
    """The same of 128-bit integers as (low, high) halves."""
    every = present.shape[0] == 0
    for row in range(numbers.shape[0]):
        if every or present[row]:
            group = numbers[row]
            old, new = (values[group, 0], values[group, 1]), (given[row, 0], given[row, 1])
            less, more = (old, new) if greatest else (new, old)
            if not known[group] or _less_wide(less[0], less[1], more[0], more[1]):
                values[group, 0], values[group, 1] = new
                known[group] = 1
    return True


@njit(cache=True, nogil=True)
def move_means(
    weights: Array,
    means: Array,
    rests: Array,
    spreads: Array,
    numbers: Array,
    counts: Array,
    given_means: Array,
    given_rests: Array,
    given_spreads: Array,
) -> None:  # pragma: no cover
    """Counts, means and squared deviations merged pairwise: no difference of large squares.

    A mean is two doubles, the second of which is what the first has no digits for.
    """
    for row in range(numbers.shape[0]):
        if counts[row] > 0:
            group = numbers[row]
            before, more = weights[group], np.float64(counts[row])
            total = before + more
            if before == 0:
                means[group] = given_means[row]
                rests[group] = given_rests[row]
                spreads[group] = given_spreads[row]
            else:
                offset = (given_means[row] - means[group]) + (given_rests[row] - rests[group])
                shift = rests[group] + offset * (more / total)
                mean = means[group] + shift
                rests[group] = (means[group] - mean) + shift
                means[group] = mean
                spreads[group] += given_spreads[row] + offset * offset * (before * (more / total))
            weights[group] = total


@njit(cache=True, nogil=True)
def deviations(numbers: Array, given: Array, present: Array, groups: int) -> Array:  # pragma: no cover
    """The count, mean, squared deviations and rest of each group, as ``plan/moments.py`` makes them."""
    every = present.shape[0] == 0
    counts, totals, squares = np.zeros(groups), np.zeros(groups), np.zeros(groups)
    least, most, anchors = np.zeros(groups), np.zeros(groups), np.zeros(groups)
    for row in range(numbers.shape[0]):
        if every or present[row]:
            group, value = numbers[row], np.float64(given[row])
            if counts[group] == 0 or _less(value, least[group]):
                least[group] = value
            if counts[group] == 0 or _less(most[group], value):
                most[group] = value
            counts[group] += 1
            totals[group] += value
    for group in range(groups):
        if counts[group] > 0:
            mean = totals[group] / counts[group]
            if _less(mean, least[group]):
                mean = least[group]
            elif _less(most[group], mean):
                mean = most[group]
            anchors[group] = mean
            totals[group] = 0.0
    for row in range(numbers.shape[0]):
        if every or present[row]:
            group = numbers[row]
            offset = np.float64(given[row]) - anchors[group]
            totals[group] += offset
            squares[group] += offset * offset
    found = np.zeros((4, groups))
    for group in range(groups):
        if counts[group] > 0:
            total, square = totals[group], squares[group]
            shift = total / counts[group]
            mean = anchors[group] + shift
            found[0, group] = counts[group]
            found[1, group] = mean
            if not np.isfinite(total):
                found[2, group] = np.nan
            else:
                found[2, group] = square - total * shift if np.isfinite(square) else square
            found[3, group] = (anchors[group] - mean) + shift
    return found
