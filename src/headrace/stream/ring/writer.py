"""Inserting into a stream from another process, through shared memory."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from headrace.errors import DataError, ExecutionError, HeadraceError, NotYetSupported
from headrace.stream.ring.home import find_ring
from headrace.stream.ring.layout import FOREIGN
from headrace.stream.ring.ring import Ring, unreachable
from headrace.stream.rows import to_arrow
from headrace.types import ddl

_PATIENCE = 10.0
"""Seconds to wait for the owner to notice that somebody wants to insert."""


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


class RingWriter:
    """Inserts into another process's stream. Use it from any thread."""

    def __init__(self, found: Ring) -> None:
        self._ring = found

    def insert(self, data: Any) -> int:
        """Insert rows; returns how many, once queries can read them and the database's views have them.

        ``data`` is whatever :meth:`headrace.Database.insert` takes, a Spark DataFrame apart.
        """
        rows = to_arrow(data, self._ring.columns)
        table = rows if isinstance(rows, pa.Table) else rows.read_all()
        if table.num_rows:
            written = self._ring.write(table, origin=FOREIGN)
            self._await_views(written.lo, written.hi)
        return int(table.num_rows)

    def _await_views(self, lo: int, hi: int) -> None:
        pause = 0.0
        while (taken := self._ring.book.taken()) < hi:
            self._ring.check_open()
            if taken < 0:
                raise unreachable(self._ring.stream)
            time.sleep(pause)
            pause = min(0.002, pause + 0.0001)
        if self._ring.book.is_rolled_back(lo, hi):
            raise ExecutionError(
                "STREAM_ROLLED_BACK",
                f"a view over stream {self._ring.stream} could not take the rows, so nobody has them",
                hint="insert them in the process that has the database open: it says why",
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
