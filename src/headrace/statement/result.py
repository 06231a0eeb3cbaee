"""What a statement answers: rows, in whatever shape the caller likes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.base.boundary import public
from headrace.base.values import python_values
from headrace.base.wording import counted, shown
from headrace.errors import DataError, HeadraceError

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame

SHOWN = 20


class Result:
    """Rows of an answer; prints as a table, and as HTML in a notebook.

    >>> Result(pa.table({"part": ["bolt"], "n": [3]})).rows()
    [('bolt', 3)]
    >>> print(Result(pa.table({"part": ["bolt"], "n": [3]})))
    part | n
    -----+--
    bolt | 3
    """

    def __init__(
        self,
        table: pa.Table,
        *,
        message: str = "",
        whole: bool = False,
        spark: Callable[[pa.Table], DataFrame] | None = None,
    ) -> None:
        self._given = table
        self._whole = whole
        self._spark = spark
        self.message = message
        """What the statement did, for statements that have no rows to show."""

    @property
    def _table(self) -> pa.Table:
        return self._given

    @public
    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow batches."""
        return iter(self._table.to_batches())

    @public
    def arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self._table

    @public
    def pandas(self) -> pandas.DataFrame:
        """The rows as a pandas DataFrame."""
        try:
            return self._table.to_pandas()
        except (OverflowError, ValueError) as error:
            raise DataError(
                "NOT_IN_PANDAS",
                f"pandas cannot hold a value of the answer: {error}",
                hint="use .arrow() or .rows(), or CAST dates and timestamps of such years AS STRING in the query",
            ) from error

    @public
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows as Python tuples; dates and times of years Python lacks are text (``'+10000-01-01'``)."""
        columns = [python_values(c) for c in self._table.columns]
        return list(zip(*columns, strict=True)) if columns else []

    @public
    def spark(self) -> DataFrame:
        """The rows as a Spark DataFrame of the database's session."""
        if self._spark is None:
            raise HeadraceError(
                "USAGE", "this result has no database behind it", hint="spark.createDataFrame(result.arrow()) makes one"
            )
        return self._spark(self._table)

    @property
    @public
    def columns(self) -> list[str]:
        return list(self._table.column_names)

    @public
    def __len__(self) -> int:
        return int(self._table.num_rows)

    @public
    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows())

    @public
    def show(self, n: int = SHOWN) -> None:
        """Print the first ``n`` rows."""
        print(self.text(n))

    @public
    def text(self, n: int = SHOWN) -> str:
        """The first ``n`` rows as aligned text (plans and descriptions are never cut)."""
        if not isinstance(n, int) or n < 0:
            raise HeadraceError("USAGE", f"{shown(n)} rows cannot be shown", hint="give a whole number, 0 or more")
        if self.message or not self._table.column_names:
            return self.message
        if self._whole:
            n = len(self)
        head = self._table.slice(0, n)
        cells = [[_cell(v, cut=not self._whole) for v in python_values(c)] for c in head.columns]
        right = [
            pa.types.is_integer(f.type) or pa.types.is_floating(f.type) or pa.types.is_decimal(f.type)
            for f in head.schema
        ]
        widths = [
            max([len(name), *(len(v) for v in column)])
            for name, column in zip(self._table.column_names, cells, strict=True)
        ]
        lines = [
            " | ".join(name.ljust(w) for name, w in zip(self._table.column_names, widths, strict=True)).rstrip(),
            "-+-".join("-" * w for w in widths),
        ]
        for row in zip(*cells, strict=True):
            lines.append(
                " | ".join(v.rjust(w) if r else v.ljust(w) for v, w, r in zip(row, widths, right, strict=True)).rstrip()
            )
        if len(self) > n:
            lines.append(f"... {counted(len(self) - n, 'more row')}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    @public
    def _repr_html_(self) -> str:
        if self.message or not self._table.column_names:
            return f"<p>{escape(self.message)}</p>"
        head = "".join(f"<th>{escape(n)}</th>" for n in self._table.column_names)
        shown = self._table.slice(0, SHOWN)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_cell(v))}</td>" for v in row) + "</tr>" for row in Result(shown).rows()
        )
        more = f"<p>{len(self) - SHOWN:,} more rows</p>" if len(self) > SHOWN else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: Any, *, cut: bool = True) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex().upper()
    text = " ".join(str(value).splitlines()) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 or not cut else f"{text[:57]}..."
