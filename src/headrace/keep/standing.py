"""Where a materialized view stands: the epoch its states are of, and what has failed since.

It is one stored row, which moves in the commit that changes the states. A view that takes each change in at once stands
at every epoch; it has the row for what may fail.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pyarrow as pa

from headrace.store import Transaction
from headrace.store.format import microseconds
from headrace.store.reading import Reading

STANDING = "standing"
"""What a materialized view owns beside its states: the reference of this row."""
_SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("moment", pa.int64()),
        ("failed", pa.int64()),
        ("condition", pa.string()),
        ("error", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class StoodAt:
    """What the row says."""

    epoch: int
    """The states are what the tables were at its end."""
    moment: int
    """When that was read, in microseconds since 1970."""
    failed: int = 0
    """The epoch whose tables the view could not be computed over; 0 if it could."""
    condition: str = ""
    error: str = ""


class Standings:
    """The row of one view, remembered since it was last read."""

    def __init__(self, ref: int) -> None:
        self.ref = ref
        self._known = (-1, StoodAt(0, 0))

    def begin(self, tx: Transaction) -> None:
        """In the commit that makes the view, of the tables as that leaves them."""
        tx.create_relation(self.ref, _SCHEMA, bare=True)
        self.put(tx, StoodAt(tx.epoch, microseconds()))

    def put(self, tx: Transaction, standing: StoodAt) -> None:
        """From this epoch on."""
        tx.replace(self.ref, pa.Table.from_pylist([asdict(standing)], schema=_SCHEMA), altered=True)

    def of(self, reading: Reading) -> StoodAt:
        """As of what is read."""
        at, known = reading.last_change(self.ref), self._known
        if at == known[0] and not getattr(reading, "is_draft", False):
            return known[1]
        (row,) = reading.query(f"SELECT * FROM {reading.table(self.ref)}").select(_SCHEMA.names).to_pylist()
        found = StoodAt(**row)
        if not getattr(reading, "is_draft", False):
            self._known = (at, found)
        return found
