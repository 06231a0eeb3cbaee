"""Fragments as Spark SQL: for what the native engine does not say exactly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.base.native import conform
from headrace.base.utf8 import refuse_bad_text
from headrace.engine.failures import Carried, from_spark
from headrace.engine.plan_sql import spark_plan
from headrace.engine.work import chunked
from headrace.errors import ExecutionError, HeadraceError
from headrace.input.csv import CsvOptions
from headrace.input.files import TextSlice, read_text
from headrace.plan.nodes import Node, leaves
from headrace.plan.refs import Ref
from headrace.types import Schema, arrow_schema, ddl, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_names = itertools.count(1)
"""A leaf's kind and relation name."""


def run_plan(spark: SparkSession, plan: Node, frames: Mapping[Ref, DataFrame], *, primitive: bool = False) -> pa.Table:
    """The plan's rows, computed by Spark SQL over DataFrames for its leaves."""
    with registered({key: _declared(frame, plan, key) for key, frame in frames.items()}) as names:
        text = spark_plan(plan, lambda scan: quote(names[scan.ref]), primitive=primitive)
        try:
            rows = spark.sql(text).toArrow()
        except Exception as error:
            raise from_spark(error) from error
    refuse_bad_text(rows, ExecutionError)
    if not all(c.type.is_held for c in plan.output):
        return rows
    return conform(rows, pa.schema([pa.field(c.name, c.type.arrow) for c in plan.output]))


_DECLARED = "__CHAR_VARCHAR_TYPE_STRING"
"""Where Spark notes of a column of text that it was declared CHAR(n), which it compares in a way of its own."""


def _declared(frame: DataFrame, plan: Node, key: Ref) -> DataFrame:
    """The leaf's frame, its columns known to Spark as CHAR(n) where they are."""
    kinds = {
        field: column.type.limit.sql
        for node in leaves(plan)
        if node.ref == key
        for field, column in zip(node.fields, node.scanned, strict=True)
        if column.type.limit is not None and column.type.limit.fixed
    }
    for name, declared in kinds.items():
        if name in frame.columns:
            frame = frame.withMetadata(name, {_DECLARED: declared})
    return frame


@contextmanager
def registered(frames: Mapping[Ref, DataFrame]) -> Iterator[dict[Ref, str]]:
    """The DataFrames as temporary views under names nobody else uses, dropped afterwards."""
    names: dict[Ref, str] = {}
    try:
        for key, frame in frames.items():
            names[key] = f"__headrace_{next(_names)}"
            frame.createOrReplaceTempView(names[key])
        yield names
    finally:
        for key, name in names.items():
            frames[key].sparkSession.catalog.dropTempView(name)


def frame_of_rows(spark: SparkSession, rows: pa.Table, schema: Schema) -> DataFrame:
    """Arrow rows as a DataFrame with exactly the declared types."""
    if rows.num_rows == 0:
        return spark.createDataFrame([], ddl(schema))
    return spark.createDataFrame(without_holes(rows), ddl(schema))


def without_holes(rows: pa.Table) -> pa.Table:
    """The rows without empty batches among them: createDataFrame takes the first of those for the end."""
    return pa.Table.from_batches([b for b in rows.to_batches() if b.num_rows], rows.schema)


def frame_of_text(
    spark: SparkSession, slices: Sequence[TextSlice], options: CsvOptions | None, schema: Schema, zone: str
) -> DataFrame:
    """Slices of CSV or JSON as a DataFrame, read by COPY's own reader (Spark's has other dialects)."""
    columns = tuple(f.name for f in schema)
    wanted = arrow_schema(schema)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                try:
                    for chunk in chunked(read_text(slices[index], options, schema, columns, zone=zone), 65_536):
                        yield from chunk.cast(wanted).combine_chunks().to_batches()
                except HeadraceError as error:
                    raise Carried(error) from None

    return spark.range(0, len(slices), 1, len(slices)).mapInArrow(task, ddl(schema))
