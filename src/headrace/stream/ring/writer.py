"""Inserting into a stream from another process, through shared memory."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from headrace.errors import DataError, ExecutionError, HeadraceError, NotYetSupported
from headrace.stream.ring.book import Claimed
from headrace.stream.ring.home import find_ring
from headrace.stream.ring.layout import FOREIGN
from headrace.stream.ring.ring import Ring, stalled, unreachable
from headrace.stream.rows import to_arrow
from headrace.types import ddl

_PATIENCE = 10.0
"""Seconds to wait for the owner to notice that somebody wants to insert."""
_UNANSWERED = frozenset({"STREAM_CLOSED", "STREAM_OWNER_UNREACHABLE", "STREAM_ANSWER_MISSED"})


def ring(path: str | os.PathLike[str], stream: str, *, columns: str | None = None) -> RingWriter:
    """A stream of a database that another process has open, to insert into.

    The stream must have a buffer: ``CREATE STREAM … WITH (capacity = …)``. ``columns`` is what the stream is expected
    to be (``"uid INT, score INT"``): if it is something else, that is an error now instead of at some insert.
    """
    found = Ring.open(find_ring(Path(path), stream))
    if columns is not None and _spelled(columns) != _spelled(ddl(found.columns)):
        raise DataError(
            "STREAM_SCHEMA_MISMATCH",
            f"stream {found.stream} is ({ddl(found.columns)}), not ({columns})",
            hint="insert what the stream holds, or DROP it and CREATE it anew",
        )
    if left_out := [f for f in found.columns if f not in found.layout.columns]:
        raise NotYetSupported(
            f"inserting into stream {found.stream} from another process: its buffer holds no {left_out[0].type.sql}",
            hint="insert in the process that has the database open, or through Spark",
        )
    found.await_owner(_PATIENCE)
    return RingWriter(found)


class InsertFailed(ExecutionError):
    """An insert that failed on its way: the first ``inserted`` of its rows are in, the others are not.

    Only when the owner went away while it had some is that not known of them; the message says of how many.
    """

    def __init__(self, error: HeadraceError, inserted: int, rows: int, unknown: int) -> None:
        told = f"the first {inserted:,} of {rows:,} rows are in" if inserted else f"none of {rows:,} rows is in"
        maybe = f", and maybe the next {unknown:,}" if unknown else ""
        super().__init__(error.condition, f"{error.message}; {told}{maybe}", hint=error.hint)
        self.inserted = inserted


class RingWriter:
    """Inserts into another process's stream. Use it from any thread."""

    def __init__(self, found: Ring) -> None:
        self._ring = found

    def insert(self, data: Any) -> int:
        """Insert rows; returns how many, once queries can read them and the database's views have them.

        ``data`` is whatever :meth:`headrace.Database.insert` takes, a Spark DataFrame apart. Many rows go there range
        by range, each when views have the one before: if one fails, :class:`InsertFailed` says how many rows are in.
        """
        rows = to_arrow(data, self._ring.columns, zone=self._ring.zone)
        table = (rows if isinstance(rows, pa.Table) else rows.read_all()).combine_chunks()
        if not table.num_rows:
            return 0
        done = asked = 0

        def taken(claimed: Claimed) -> None:
            nonlocal done, asked
            asked = claimed.hi - claimed.lo
            self._await_views(claimed)
            done, asked = done + asked, 0

        try:
            self._ring.await_owner(_PATIENCE)
            self._ring.write(table, origin=FOREIGN, wait=False, then=taken)
        except HeadraceError as error:
            unknown = asked if error.condition in _UNANSWERED else 0
            raise InsertFailed(error, done, table.num_rows, unknown) from error
        except BaseException as error:
            error.add_note(f"The first {done:,} of {table.num_rows:,} rows are in, and maybe more.")
            raise
        return int(table.num_rows)

    def _await_views(self, claimed: Claimed) -> None:
        ring, book = self._ring, self._ring.book
        if not book.await_visible(claimed.hi, ring.terms.patience) and book.withdraw(claimed):
            raise stalled(ring.stream)
        pause, pumped = 0.0, True
        while book.taken < claimed.hi:  # looked at again when nobody is there: it may have been the last thing done
            if not pumped:
                ring.check_open()
                raise unreachable(ring.stream)
            time.sleep(pause)
            pause = min(0.002, pause + 0.0001)
            pumped = pause < 0.002 or book.is_pumped()
        refused = book.is_refused(claimed)
        if refused:
            raise ExecutionError(
                "STREAM_ROLLED_BACK",
                f"a view over stream {ring.stream} could not take rows of this process, or others that came with them",
                hint="insert the others in the process that has the database open: it says why",
            )
        if refused is None:
            raise ExecutionError(
                "STREAM_ANSWER_MISSED",
                f"this process stood still for too long to learn whether views over stream {ring.stream} took its rows",
                hint="see whether they are there before you insert them again",
            )

    @property
    def stream(self) -> str:
        return self._ring.stream

    def __enter__(self) -> RingWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def __repr__(self) -> str:
        return f"RingWriter({self._ring.stream!r}: {ddl(self._ring.columns)})"


def _spelled(columns: str) -> str:
    """A column list without what does not matter; its types as Headrace spells them."""
    from headrace.sql.columns import declaration, definition

    try:
        found = definition(declaration(f"CREATE TABLE t ({columns})"))
    except HeadraceError as error:
        raise DataError("STREAM_SCHEMA_MISMATCH", f"({columns}) is no column list: {error.message}") from None
    return ddl(found.columns).lower()
