"""The fragment of groupings: native SQL over the batch, one state each, done together where that is less work.

A pipeline is one SQL text over ``batch_rows``. Pipelines that join and group alike run as one text, and small batches
of plain groupings are grouped by compiled loops instead (``engine/grouping.py``); ``view/sharing.py`` says which. If a
shared text fails, each pipeline runs alone and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.interrupts import check
from headrace.base.native import conform
from headrace.engine import grouping
from headrace.engine.columns import Unfoldable
from headrace.engine.failures import NativeCannot, from_duckdb
from headrace.engine.following import followed
from headrace.engine.grouping import Grouped
from headrace.engine.work import PARTIALS, Fragment, FragmentRun, ParquetPart, Pile, PipelineCannot, Static, grouped

if TYPE_CHECKING:
    from headrace.engine.worker import Worker

JOINED = "joined_rows"
"""The name groupings read a batch's rows by that were joined for all of them."""
MASK = "__mask"
"""The column of a shared grouping that says which filters a row passed, a bit each."""
_MASKS = 64
"""So many masks in a batch that is hardly grouped mean that the masks are what keeps its rows apart."""


@dataclass(frozen=True)
class NativePipeline:
    """What an insert computes for one state relation, as native SQL."""

    state: int
    sql: str
    narrow: str | None
    """The same in 64-bit decimals where that may do: it gives the same rows or an error."""
    merge: str
    """SQL that merges rows of ``__partials`` into one a key."""
    schema: pa.Schema

    def merged(self, worker: Worker, rows: Sequence[pa.Table]) -> pa.Table:
        """Partial rows of several batches as one row a key."""
        return grouped(conform(worker.query(self.merge, **{PARTIALS: pa.concat_tables(rows)}), self.schema))


@dataclass(frozen=True)
class StateShare:
    """One state's share of a shared grouping: its columns, of the rows whose mask has its bit (0: all rows)."""

    state: int
    columns: tuple[str, ...]
    bit: int
    schema: pa.Schema


@dataclass(frozen=True)
class Shared:
    """One grouping that fills the states of several pipelines."""

    sql: str
    narrow: str | None
    parts: tuple[StateShare, ...]
    over: str | None = None
    """SQL of the ``joined_rows`` it reads; those who have the same stand together, so that it runs once."""


@dataclass(frozen=True)
class Pipelines(Fragment):
    """Pipelines over one stream, and what they do together."""

    pipelines: tuple[NativePipeline, ...]
    columns: tuple[str, ...] = ()
    statics: tuple[Static, ...] = ()
    shared: tuple[Shared, ...] = ()
    """Groupings that do several pipelines' work at once."""
    grouped: tuple[Grouped, ...] = ()
    """Groupings of a small batch by compiled loops; those over the same columns stand together."""

    has_threads = True

    def begin(self, worker: Worker, number: int) -> PipelinesRun:
        return PipelinesRun(self, worker)


class PipelinesRun(FragmentRun):
    """Each pipeline's state rows, merged on the way."""

    def __init__(self, fragment: Pipelines, worker: Worker) -> None:
        self._fragment = fragment
        self._worker = worker
        self._piles = {p.state: Pile(lambda rows, p=p: p.merged(worker, rows)) for p in fragment.pipelines}  # type: ignore[misc]

    def add(self, batch: pa.Table) -> None:
        with self._worker.cursor() as cursor:
            self._keep(self._states(cursor, batch))

    def add_parquet(self, part: ParquetPart) -> None:
        """DuckDB reads the file inside the pipelines' own queries: no row passes through Python."""
        texts = len(self._fragment.shared) or len(self._fragment.pipelines)
        with followed(part.cursor, texts, part.told):
            self._keep(self._states(part.cursor))

    def states(self) -> dict[int, pa.Table]:
        found = {state: pile.whole() for state, pile in self._piles.items()}
        return {state: rows for state, rows in found.items() if rows is not None}

    def _keep(self, found: dict[int, pa.Table]) -> None:
        for state, rows in found.items():
            self._piles[state].add(rows)

    def _states(self, cursor: duckdb.DuckDBPyConnection, batch_rows: pa.Table | None = None) -> dict[int, pa.Table]:
        """Every pipeline's state rows for a batch, or for the view of that name."""
        found: dict[int, pa.Table] = {}
        if batch_rows is not None and batch_rows.num_rows > 0:
            found = self._grouped(cursor, batch_rows)
        shared_left = [s for s in self._fragment.shared if any(p.state not in found for p in s.parts)]
        for over, group in groupby(shared_left, key=attrgetter("over")):
            if over is None or self._join(cursor, over, batch_rows):
                for shared in group:
                    found |= self._run_shared(cursor, shared, batch_rows)
            if over is not None:
                cursor.execute(f"DROP TABLE IF EXISTS {JOINED}")
        for pipeline in self._fragment.pipelines:
            if pipeline.state not in found:
                found[pipeline.state] = self._run(cursor, pipeline, batch_rows)
        return found

    def _grouped(self, cursor: duckdb.DuckDBPyConnection, batch_rows: pa.Table) -> dict[int, pa.Table]:
        """The states that compiled loops can fill; what fails is left to the states' own texts."""
        found: dict[int, pa.Table] = {}
        asked = [g for g in self._fragment.grouped if batch_rows.num_rows <= g.rows]
        for over, group in groupby(asked, key=attrgetter("over")):
            rows = batch_rows
            if over is not None:
                try:
                    beside = cursor.sql(over).to_arrow_table()  # in the batch's order: this connection preserves it
                except duckdb.Error:
                    check()
                    continue
                names = [*rows.column_names, *beside.column_names]
                rows = pa.Table.from_arrays([*rows.columns, *beside.columns], names)
            batch = grouping.RowsToGroup(rows)
            for one in group:
                with suppress(Unfoldable):
                    found |= batch.states(one)
        return found

    def _join(self, cursor: duckdb.DuckDBPyConnection, over: str, batch_rows: pa.Table | None) -> bool:
        """Have the joined rows of this batch at hand; False if that failed."""
        if over in self._worker.given_up:
            return False
        try:
            # A table, not Arrow: a join may give many rows for one, and a table can spill.
            cursor.execute(f"CREATE OR REPLACE TEMP TABLE {JOINED} AS {over}")
        except duckdb.Error:
            check()
            self._worker.given_up.add(over)
            return False
        return True

    def _run_shared(
        self, cursor: duckdb.DuckDBPyConnection, shared: Shared, batch_rows: pa.Table | None
    ) -> dict[int, pa.Table]:
        """The states of a shared grouping; none if it failed, for then each pipeline must say why."""
        given_up = self._worker.given_up
        for text in (shared.narrow, shared.sql):
            if text is None or text in given_up:
                continue
            try:
                rows = cursor.sql(text).to_arrow_table()
            except duckdb.Error:
                check()
                given_up.add(text)
                continue
            if batch_rows is not None and 2 * rows.num_rows > batch_rows.num_rows and _scattered(rows):
                given_up |= {shared.sql, text}  # hardly any row has a mask in common with another
                continue
            have = {0: rows}
            for bit in {p.bit for p in shared.parts} - {0}:
                passed = pc.not_equal(pc.bit_wise_and(rows.column(MASK), bit), 0)
                have[bit] = rows.filter(passed)
            return {p.state: conform(have[p.bit].select(p.columns), p.schema) for p in shared.parts}
        return {}

    def _run(
        self, cursor: duckdb.DuckDBPyConnection, pipeline: NativePipeline, batch_rows: pa.Table | None = None
    ) -> pa.Table:
        """One pipeline over a batch, or over the view of that name.

        DuckDB finds ``batch_rows`` as a variable of this frame: registering it costs more than
        many a batch's own work.
        """
        given_up = self._worker.given_up
        if pipeline.narrow is not None and pipeline.narrow not in given_up:
            try:
                return grouped(conform(cursor.sql(pipeline.narrow).to_arrow_table(), pipeline.schema))
            except duckdb.Error:
                check()
                # Too wide for 64 bits, or a real error: the wide text tells. Do not try narrow again.
                given_up.add(pipeline.narrow)
        try:
            return grouped(conform(cursor.sql(pipeline.sql).to_arrow_table(), pipeline.schema))
        except duckdb.Error as error:
            failure = from_duckdb(error)
            if isinstance(failure, NativeCannot):
                raise PipelineCannot(pipeline.state, failure.message) from None
            raise failure from None


def _scattered(rows: pa.Table) -> bool:
    return MASK in rows.column_names and pc.count_distinct(rows.column(MASK)).as_py() > _MASKS
