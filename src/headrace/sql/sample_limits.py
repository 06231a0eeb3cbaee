"""What a sample may be asked for: at least one row, no more than fit in memory, and a seed that is a number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from headrace.base.wording import shown
from headrace.errors import DataError, Position, SqlError

MEMORY_BYTES = 2 << 30
"""What the rows of a sample may take, where no setting says otherwise."""
_VARYING_BYTES = 32


def row_bytes(types: Iterable[pa.DataType]) -> int:
    """About how many bytes a row takes.

    >>> row_bytes([pa.int64(), pa.string(), pa.list_(pa.int32())])
    80
    """
    return max(1, sum(_bytes(t) for t in types))


def _bytes(type: pa.DataType) -> int:
    if pa.types.is_nested(type):
        return _VARYING_BYTES + sum(_bytes(type.field(i).type) for i in range(type.num_fields)) + 4
    try:
        return max(1, int(type.bit_width) // 8)
    except ValueError:
        return _VARYING_BYTES


def check_size(size: Any, types: Iterable[pa.DataType], memory: int, position: Position | None = None) -> int:
    """The size, if a sample can have it.

    >>> check_size(10, [pa.int64()], memory=80)
    10
    """
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise SqlError(
            "INVALID_SAMPLE_SIZE",
            f"a sample has 1 row or more, not {size}",
            position=position,
            hint="give a whole number from 1 on",
        )
    most = memory // row_bytes(types)
    if size > most:
        raise SqlError(
            "SAMPLE_TOO_LARGE",
            f"a sample of {size:,} such rows does not fit in {memory:,} bytes of memory; {most:,} do",
            position=position,
            hint=f"ask for {most:,} rows or fewer, or take them as a table",
        )
    return size


def natural_seed(seed: Any) -> int:
    """What a generator starts from: it takes no negative numbers.

    >>> natural_seed(7), natural_seed(-1) == 2**64 - 1
    (7, True)
    """
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise SqlError("INVALID_SEED", f"the seed is {shown(seed)}", hint="give a whole number")
    return seed if seed >= 0 else seed % (1 << 64)


def too_many_groups(sample: str, groups: int, most: int) -> DataError:
    """The refusal of rows that would give a sample more groups than it may have."""
    return DataError(
        "SAMPLE_TOO_MANY_GROUPS",
        f"sample {sample} would keep rows of {groups:,} groups, and {most:,} is the limit",
        hint="group by a column with fewer values, or raise the setting sample_groups; nothing was inserted",
    )


def too_many_rows(sample: str, rows: int, types: Iterable[pa.DataType], memory: int) -> DataError:
    """The refusal of rows that would have a sample keep more than fit in memory, over all its groups."""
    return DataError(
        "SAMPLE_TOO_LARGE",
        f"sample {sample} would keep {rows:,} rows of all its groups, which do not fit in {memory:,} bytes of memory; "
        f"{memory // row_bytes(types):,} do",
        hint="keep fewer rows of each group, group by a column with fewer values, or raise the setting state_memory; "
        "nothing was inserted",
    )
