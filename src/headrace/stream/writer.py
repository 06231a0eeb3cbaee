"""Inserting into a stream from another process, through shared memory.

If the owner dies while it has rows of a writer, nobody can tell the writer whether they are in. Rows that must be in
once are given as numbered batches of a *source*: those go by way of the inbox, as the batches of Spark's sinks do, and
the owner commits the number with the rows. So a batch may be given again until it is taken, to whatever process has the
database open by then.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from headrace.base.boundary import path_given, public, text_given
from headrace.base.parquet_files import write_parquet
from headrace.errors import DataError, ExecutionError, HeadraceError, NotYetSupported
from headrace.input.rows import to_arrow
from headrace.rings.book import ClaimedRange
from headrace.rings.home import find_ring
from headrace.rings.layout import FOREIGN
from headrace.rings.ring import Ring, stalled, unreachable
from headrace.types import ddl

_PATIENCE = 10.0
"""Seconds to wait for the owner to notice that somebody wants to insert."""
_UNANSWERED = frozenset({"STREAM_CLOSED", "STREAM_OWNER_UNREACHABLE", "STREAM_ANSWER_MISSED"})


@public
def ring(
    path: str | os.PathLike[str], stream: str, *, columns: str | None = None, source: str | None = None
) -> RingWriter:
    """A stream of a database that another process has open, to insert into.

    The stream must have a buffer: ``CREATE STREAM … WITH (capacity = …)``. ``columns`` is what the stream is expected
    to be (``"uid INT, score INT"``): if it is something else, that is an error now instead of at some insert.
    ``source`` names this writer for good, and lets it insert numbered batches (:meth:`RingWriter.insert`).
    """
    if source is not None and not re.fullmatch(r"[A-Za-z0-9-]{1,80}", source):
        raise DataError("INVALID_SOURCE", f"{source!r} names no source", hint="use up to 80 letters, digits and dashes")
    where, stream = Path(path_given(path, "a database")), text_given(stream, "the name of a stream")
    found = Ring.open(find_ring(where, stream))
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
    return RingWriter(found, Path(path), source)


class InsertFailed(ExecutionError):
    """An insert that failed on its way: the first ``inserted`` of its rows are in, of the next ``unknown`` nobody knows
    whether they are, and those after them are not.

    Some are unknown only if the owner went away while it had them.
    """

    def __init__(self, error: HeadraceError, inserted: int, rows: int, unknown: int) -> None:
        told = f"the first {inserted:,} of {rows:,} rows are in" if inserted else f"none of {rows:,} rows is in"
        hint = error.hint
        if unknown:
            told = f"the first {inserted:,} of {rows:,} rows are in, and " if inserted else ""
            which = f"the next {unknown:,}" if inserted else f"the first {unknown:,} of {rows:,} rows"
            told += f"it is not known whether {which} are in"
            hint = "see whether they are there before you insert them again, or insert numbered batches of a source"
        super().__init__(error.condition, f"{error.message}; {told}", hint=hint)
        self.inserted = inserted
        self.unknown = unknown


class RingWriter:
    """Inserts into another process's stream. Use it from any thread."""

    def __init__(self, found: Ring, database: Path, source: str | None = None) -> None:
        self._ring = found
        self._database = database
        self._source = source

    @public
    def insert(self, data: Any, *, batch: int | None = None) -> int:
        """Insert rows; returns how many, once queries can read them and the database's views have them.

        ``data`` is whatever :meth:`headrace.Database.insert` takes, a Spark DataFrame apart. Many rows go there range
        by range, each when views have the one before: if one fails, :class:`InsertFailed` says how many rows are in.

        The rows may be a ``batch`` of the writer's source, numbered from 0 upwards. A batch is in as a whole, and once
        however often it is inserted: again it is 0 rows. If nobody has the database open any more, it waits in the
        inbox for whoever opens it next.
        """
        rows = to_arrow(data, self._ring.columns, zone=self._ring.zone)
        table = (rows if isinstance(rows, pa.Table) else rows.read_all()).combine_chunks()
        if not table.num_rows:
            return 0
        if batch is not None:
            return self._insert_batch(table, batch)
        done = asked = 0

        def taken(claimed: ClaimedRange) -> None:
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

    def _insert_batch(self, table: pa.Table, batch: int) -> int:
        from headrace.stream.inbox import Manifest, Tray

        if self._source is None:
            raise DataError(
                "NO_SOURCE",
                "a batch has a number, but the writer has no source that it is a number of",
                hint='name one: headrace.ring(path, stream, source="orders")',
            )
        if not isinstance(batch, int) or not 0 <= batch < 2**63:
            raise DataError("INVALID_BATCH", f"{batch!r} is no number of a batch", hint="count them from 0 upwards")
        tray = Tray(self._database, f"ring-{self._source}")
        file = tray.new_file(batch)
        try:
            write_parquet(table, file, compression="lz4")
            manifest = Manifest(self.stream, (file.name,), table.num_rows, tray.keep(file), run=self._source)
            fresh = tray.hand_over(batch, manifest)
        except HeadraceError:
            file.unlink(missing_ok=True)
            raise
        return int(table.num_rows) if fresh else 0

    def _await_views(self, claimed: ClaimedRange) -> None:
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
    from headrace.sql.columns import parse_columns

    try:
        found = parse_columns(columns)
    except HeadraceError as error:
        raise DataError("STREAM_SCHEMA_MISMATCH", f"({columns}) is no column list: {error.message}") from None
    return ddl(found).lower()
