"""Copies of chosen rows of an Arrow table, and of those only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

Array = np.ndarray[Any, Any]

_VIEW_BYTES = 16
_PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as copies have them: texts in one buffer, not as views into their batch's."""
    return pa.schema([f.with_type(_PLAIN.get(f.type, f.type)) for f in schema])


def gather(rows: pa.RecordBatch, places: Array) -> pa.RecordBatch:
    """The rows at these places, in this order.

    >>> batch = pa.record_batch({"t": pa.array(["a", None, "c"], pa.string_view())})
    >>> gather(batch, np.array([2, 1])).to_pylist()
    [{'t': 'c'}, {'t': None}]
    """
    wanted = pa.array(places)
    schema = plain_schema(rows.schema)
    if schema.types == rows.schema.types:
        return rows.take(wanted).replace_schema_metadata(None)
    columns = [
        _gather_views(column, places) if column.type in _PLAIN else column.take(wanted) for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def gather_table(rows: pa.Table, places: Array) -> pa.Table:
    """The rows of a table at these ascending places."""
    taken, start = [], 0
    for batch in rows.to_batches():
        mine = places[np.searchsorted(places, start) : np.searchsorted(places, start + batch.num_rows)] - start
        start += batch.num_rows
        taken.append(gather(batch, mine))
    return pa.Table.from_batches(taken, plain_schema(rows.schema.remove_metadata()))


def _gather_views(texts: pa.Array, places: Array) -> pa.Array:
    """Arrow takes no views by place: the chosen views are copied, then the texts they point to."""
    _, views, *texts_behind = texts.buffers()
    all_views = np.frombuffer(views, f"V{_VIEW_BYTES}", len(texts), texts.offset * _VIEW_BYTES)
    chosen = np.ascontiguousarray(all_views[places])
    known = None
    if texts.null_count:
        present = texts.is_valid().to_numpy(zero_copy_only=False)[places]
        known = pa.py_buffer(np.packbits(present, bitorder="little"))
    found = pa.Array.from_buffers(texts.type, len(places), [known, pa.py_buffer(chosen), *texts_behind])
    return found.cast(_PLAIN[texts.type])
