"""Arrays and structs taken apart and put together again, a level at a time.

What holds of a column (its conversions, its NULLs, its errors) holds of an array's
elements and a struct's fields as well, so whoever converts columns calls itself for
the level below and puts the level back together here.

>>> array = as_list(pa.array([2, None, 0, 1]), pa.array([1, 2, 3]), pa.list_(pa.int64()))
>>> array.to_pylist(), taken_apart(array)[0].to_pylist()
([[1, 2], None, [], [3]], [2, None, 0, 1])
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.types import Type

_MOST = 2**31 - 1


def taken_apart(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """How long each list is (NULL where there is none), and all their elements."""
    lengths = pc.cast(pc.list_value_length(array), pa.int64())
    if pa.types.is_fixed_size_list(array.type):  # its length is told of a NULL too
        lengths = pc.if_else(array.is_valid(), lengths, pa.scalar(None, pa.int64()))
    return lengths, array.flatten()


def as_list(lengths: pa.Array, elements: pa.Array, type: pa.DataType) -> pa.Array:
    """The lists of these lengths, filled with the elements in order."""
    offsets = np.concatenate(([0], np.cumsum(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False))))
    if offsets[-1] > _MOST:
        raise pa.ArrowInvalid("too many elements in one batch")
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, type=type, mask=lengths.is_null())


def as_struct(fields: list[pa.Array], missing: pa.Array, type: pa.DataType) -> pa.Array:
    """The structs of these fields, NULL where one is ``missing``."""
    return pa.StructArray.from_arrays(fields, fields=list(type), mask=missing)


def map_apart(array: pa.MapArray) -> tuple[pa.Array, pa.Array, pa.Array]:
    """How many entries each map has (NULL where there is none), and all their keys and values."""
    if array.null_count:
        array = array.take(pa.array(np.arange(len(array))))  # a NULL may cover entries, which the copy leaves out
    offsets = array.offsets.to_numpy()
    lengths = pa.array(np.diff(offsets), pa.int64(), mask=array.is_null().to_numpy(zero_copy_only=False))
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    return lengths, array.keys.slice(first, count), array.items.slice(first, count)


def as_map(lengths: pa.Array, keys: pa.Array, values: pa.Array, type: pa.DataType) -> pa.Array:
    """The maps of these lengths, filled with the entries in order."""
    offsets = np.concatenate(([0], np.cumsum(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False))))
    if offsets[-1] > _MOST:
        raise pa.ArrowInvalid("too many entries in one batch")
    places = pa.array(offsets, pa.int32())
    return pa.MapArray.from_arrays(places, keys, values, type=type, mask=lengths.is_null())


class RepeatedKey(ValueError):
    """A map that has a key twice."""


def check_keys(array: pa.Array, type: Type) -> None:
    """:class:`RepeatedKey` if a map in it has a key twice."""
    if not type.holds_maps:
        return
    if type.name == "array":
        check_keys(taken_apart(array)[1], type.element)
    elif type.name == "struct":
        for child, part in zip(array.flatten(), type.parts, strict=True):
            check_keys(child, part.type)
    else:
        lengths, keys, values = map_apart(array)
        counts = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
        if len(keys):
            owners = pa.array(np.repeat(np.arange(len(counts)), counts))
            distinct = pa.table({"owner": owners, "key": keys}).group_by(["owner", "key"]).aggregate([])
            if distinct.num_rows < len(keys):
                raise RepeatedKey
        check_keys(values, type.parts[1].type)


def is_strict(type: Type) -> bool:
    """Whether a field somewhere inside is declared NOT NULL."""
    return any(not p.nullable or is_strict(p.type) for p in type.parts)


def first_hole(array: pa.Array, type: Type, path: str = "") -> tuple[int, str] | None:
    """The first row with a NULL in a field that is declared NOT NULL, and that field.

    >>> from headrace.types import parse_type
    >>> type = parse_type("struct<a: array<struct<b: int not null>>>")
    >>> first_hole(pa.array([{"a": []}, None, {"a": [{"b": 1}, {"b": None}]}], type.arrow), type, "s")
    (2, 's.a.b')
    """
    if not is_strict(type):
        return None
    if type.name in ("array", "map"):
        if type.name == "array":
            lengths, elements = taken_apart(array)
        else:
            lengths, _, elements = map_apart(array)
        hole = first_hole(elements, type.parts[-1].type, path)
        if hole is None:
            return None
        ends = np.cumsum(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False))
        return int(np.searchsorted(ends, hole[0], side="right")), hole[1]
    rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    present = array.filter(array.is_valid())
    holes = []
    for place, part in enumerate(type.parts):
        child, name = present.field(place), f"{path}.{part.name}"
        if not part.nullable and child.null_count:
            holes.append((int(rows[pc.index(child.is_null(), True).as_py()]), name))
        elif (below := first_hole(child, part.type, name)) is not None:
            holes.append((int(rows[below[0]]), below[1]))
    return min(holes) if holes else None
