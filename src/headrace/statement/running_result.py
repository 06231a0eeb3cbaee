"""The answer of a query over streams, from when the query has begun: rows as they come, all of them when it pauses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.base.boundary import failures_named, public
from headrace.statement.result import SHOWN, Result
from headrace.stream.ad_hoc import AdHocQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class RunningResult(Result):
    """The answer of a query over streams. What needs the rows waits until the stream pauses.

    :meth:`batches` gives rows as they come, :meth:`finish` ends the window now, :meth:`cancel` gives up.
    """

    def __init__(self, query: AdHocQuery, spark: Callable[[pa.Table], DataFrame]) -> None:
        super().__init__(pa.table({}), spark=spark)
        self._query = query

    @property
    def _table(self) -> pa.Table:
        return self._query.answer()

    @property
    def lost(self) -> int:
        """Rows that are in no answer because the process that inserted them died."""
        return self._query.lost

    @property
    def is_running(self) -> bool:
        """Whether the query still reads."""
        return self._query.is_running

    def batches(self) -> Iterator[pa.RecordBatch]:
        with failures_named():
            yield from self._query.batches()

    @public
    def text(self, n: int = SHOWN) -> str:
        shown = super().text(n)
        return shown if self._query.seen else f"{shown}\n{self._query.saw_nothing}"

    def _repr_html_(self) -> str:
        shown = super()._repr_html_()
        return shown if self._query.seen else f"{shown}<p>{escape(self._query.saw_nothing)}</p>"

    @public
    def finish(self) -> RunningResult:
        """End the window now: the answer is that of the rows which are there."""
        self._query.finish()
        return self

    @public
    def cancel(self) -> None:
        """End the query without an answer."""
        self._query.cancel()
