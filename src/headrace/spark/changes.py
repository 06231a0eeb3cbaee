"""The changes of a view: a chain of files, each from one epoch to a later one.

A link holds the rows by which the view's answer at its end differs from that at its start, as a
multiset: each with ``_epoch``, the end, and ``_weight``, +1 for a row that came and -1 for one that
went. The first link starts from nothing, so the weights of a chain add up to the view. Links are
made when somebody asks, never changed, and shared by all who read: asked again, a reader that
failed gets the same rows. Old links are folded into the first one once there are many.

A table that keeps its changes (``table/history.py``) need not be compared: a link has what was kept, row by row with
the epoch it came or went in. Only what is not kept any more is found by comparing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.native import conform, native_connection, native_query
from headrace.base.parquet_files import parquet_rows
from headrace.base.private import has_shape, make_folder, read_json
from headrace.catalog.table import EPOCH, WEIGHT
from headrace.errors import DataError
from headrace.spark.published import CHANGES, write_rows
from headrace.stream.inbox import write_whole

KEPT_LINKS = 1024
"""Links kept apart; past this the older half is folded into one."""


@dataclass(frozen=True)
class Link:
    """The changes from one epoch to another."""

    start: int
    end: int

    @property
    def file(self) -> str:
        return f"{self.start}-{self.end}.parquet"


class Chain:
    """The links of one relation."""

    def __init__(self, database: Path, key: str) -> None:
        self.folder = database / CHANGES / key

    def links(self) -> list[Link]:
        try:
            found = read_json(self.folder / "chain.json")
        except FileNotFoundError:
            return []
        except ValueError:
            found = None
        if not has_shape(found, [(int, int)]):
            raise DataError(
                "CHANGES_DAMAGED",
                f"{self.folder / 'chain.json'} is not as it was written",
                hint="remove the folder, and start the query again with a new checkpoint",
            )
        return [Link(*pair) for pair in found]

    def head(self) -> int:
        """The epoch up to which changes are known; 0 if none are."""
        links = self.links()
        return links[-1].end if links else 0

    def between(self, start: int, end: int) -> list[Path]:
        """The files of the links that lead from one epoch to another."""
        links = [link for link in self.links() if start < link.end <= end]
        if start != end and (not links or links[0].start != start or links[-1].end != end):
            raise DataError(
                "CHANGES_EXPIRED",
                f"the changes from epoch {start} to {end} are not kept any more",
                hint="start the query again with a new checkpoint: it begins with the whole view",
            )
        return [self.folder / link.file for link in links]

    def advance(self, epoch: int, rows: pa.Table) -> int:
        """Bring the chain up to the answer at ``epoch``; returns its head, the last epoch that changed anything."""
        links = self.links()
        if links and epoch <= links[-1].end:
            return links[-1].end
        before = self._answer(links) if links else rows.slice(0, 0)
        return self._linked(links, epoch, _difference(before, rows, epoch), rows)

    def extend(self, epoch: int, changed: pa.Table) -> int:
        """Bring the chain up to ``epoch`` with all that has changed since its head, rows with epochs and weights."""
        return self._linked(self.links(), epoch, changed, None)

    def _linked(self, links: list[Link], epoch: int, changed: pa.Table, answer: pa.Table | None) -> int:
        head = links[-1].end if links else 0
        if changed.num_rows == 0:
            return head
        make_folder(self.folder)
        link = Link(head, epoch)
        write_rows(self.folder / link.file, changed)
        if answer is not None:
            write_rows(self._answer_file(epoch), answer)
        self._settle([*links, link])
        if links:
            self._answer_file(head).unlink(missing_ok=True)
        if len(links) >= KEPT_LINKS:
            self._fold()
        return epoch

    def _fold(self) -> None:
        links = self.links()
        old, kept = links[: len(links) // 2], links[len(links) // 2 :]
        first = Link(0, old[-1].end)
        rows = pa.concat_tables([parquet_rows(self.folder / link.file) for link in old])
        new = self.folder / first.file
        write_rows(new, _net(rows, first.end))
        self._settle([first, *kept])
        for link in old:
            if link != first:
                (self.folder / link.file).unlink(missing_ok=True)

    def _settle(self, links: list[Link]) -> None:
        write_whole(self.folder / "chain.json", [[link.start, link.end] for link in links])

    def _answer(self, links: list[Link]) -> pa.Table:
        """What the links add up to."""
        try:
            return parquet_rows(self._answer_file(links[-1].end))
        except FileNotFoundError:
            rows = pa.concat_tables([parquet_rows(self.folder / link.file) for link in links])
            return _net(rows, links[-1].end).drop_columns([EPOCH, WEIGHT])

    def _answer_file(self, epoch: int) -> Path:
        return self.folder / f"answer-{epoch}.parquet"


def _difference(old: pa.Table, new: pa.Table, epoch: int) -> pa.Table:
    """What to take from ``old`` and add to it, as multisets, to get ``new``.

    >>> old, new = pa.table({"part": ["nut", "nut", None]}), pa.table({"part": ["nut", None, "bolt"]})
    >>> sorted((r["part"], r["_weight"]) for r in _difference(old, new, 7).to_pylist())
    [('bolt', 1), ('nut', -1)]
    """
    return _weighed(f"{_less('old', 'new', -1)} UNION ALL {_less('new', 'old', 1)}", epoch, old=old, new=new)


def _net(changes: pa.Table, epoch: int) -> pa.Table:
    """Changes from nothing on, as the rows they add up to."""
    weights = changes.column(WEIGHT)
    rows = changes.drop_columns([EPOCH, WEIGHT])
    came, went = rows.filter(pc.greater(weights, 0)), rows.filter(pc.less(weights, 0))
    return _weighed(_less("came", "went", 1), epoch, came=came, went=went)


def _less(left: str, right: str, weight: int) -> str:
    return f"SELECT *, {weight} AS w FROM (SELECT * FROM {left} EXCEPT ALL SELECT * FROM {right})"


def _weighed(query: str, epoch: int, **given: pa.Table) -> pa.Table:
    first = next(iter(given.values()))
    schema = first.schema.remove_metadata()
    columns = ", ".join(f"c{i}" for i in range(len(schema.names)))
    for field in ((EPOCH, pa.int64()), (WEIGHT, pa.int32())):
        schema = schema.append(pa.field(*field))
    with native_connection() as cursor:
        text = f"SELECT {columns}, {epoch}::BIGINT, w::INTEGER FROM ({query}) AS _({columns}, w)"
        return conform(native_query(cursor, text, given), schema)
