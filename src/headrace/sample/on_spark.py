"""A sample of a Spark DataFrame by 2p + n messages, in one pass over its rows (000 §5.2.1).

There are as many tasks as run at once, however many parts the frame has: each keeps a reservoir of its own, and
more of those would only be more rows to keep. It first tells how full it is and the highest priority in it, which says
as much about its part of the input as a count of its rows does (``shares.py:shares_by_threshold``). The shares go
back, and then the chosen rows come: p and p small messages, and n rows. Between the two steps the reservoirs stay
where they were made, as a persisted DataFrame: nothing is read twice, and p reservoirs are never in one place. A
task that is run again replaces what it had, since rows are chosen by their task and slot; its seed is its own, so
it chooses the same.

A frame's rows live in the JVM, and it is slow to hand them out. So priorities are drawn there, and rows that
cannot be in their task's reservoir are left there (:func:`_thinned`).

Where the frame is nothing but Parquet files, their footers tell how many rows there are, so the shares go first:
p messages less. Each task draws its rows by number, and reads the row groups that hold them, itself.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

import duckdb
import numpy as np
import pyarrow as pa

from headrace.base.boundary import public
from headrace.base.parquet_files import ROW_NUMBER, footer_of, is_plain_read, native_scan
from headrace.engine.failures import from_spark, restored
from headrace.engine.plan_sql import quote_native
from headrace.engine.session import spark_context
from headrace.engine.spark import without_holes
from headrace.engine.tasks import Found, from_bytes, guarded, run_each, task_worker, to_bytes
from headrace.errors import DataError, ExecutionError, HeadraceError
from headrace.sample.parquet_rows import Stretch, divided, stretch_of, take_rows
from headrace.sample.shares import shares, shares_by_threshold
from headrace.settings import cores
from headrace.sql.sample_limits import MEMORY_BYTES, check_size, natural_seed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_HEADER = -1
"""The slot of the row that is about all others of its task."""
_THINNED_FROM = 16_384
"""Rows that each task hands out before any is left behind."""
_BEACONS = 256
"""One of so many is handed out in any case; a power of two."""
_YIELD_ROWS = 65_536


@dataclass(frozen=True)
class Messages:
    """What went between the tasks and this process."""

    workers: int
    cardinalities: int
    shares: int
    rows: int

    @property
    def total(self) -> int:
        return self.cardinalities + self.shares + self.rows


@public
def reservoir(df: DataFrame, n: int, seed: int | None = None) -> DataFrame:
    """A uniform sample of ``n`` rows of a DataFrame, all of them if it has fewer, in one pass over it.

    The rows are drawn now, so the DataFrame returned is the same however often it is read. A ``seed`` gives the
    same sample of the same rows as long as Spark cuts and orders them alike; whatever they are cut into, a sample
    is repeatable by the rows' own values: ``TABLESAMPLE RESERVOIR (n ROWS) REPEATABLE (seed)``.
    """
    if not hasattr(df, "sparkSession"):
        raise DataError(
            "NOT_A_DATAFRAME",
            f"reservoir draws from a Spark DataFrame, and was given {type(df).__name__}",
            hint="spark.table(name), spark.read.parquet(path) and db.table(name) are some",
        )
    rows, _ = drawn(df, n, seed)
    if not rows.num_rows:
        return df.sparkSession.createDataFrame([], df.schema)
    return df.sparkSession.createDataFrame(without_holes(rows), df.schema)


def drawn(df: DataFrame, n: int, seed: int | None = None, *, workers: int | None = None) -> tuple[pa.Table, Messages]:
    """The sample as Arrow rows, and what it took to get them; ``workers`` read files, as many as there are slots."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(df.schema, timezone="UTC", prefers_large_types=False)
    check_size(n, schema.types, MEMORY_BYTES)
    entropy = secrets.randbits(64) if seed is None else natural_seed(seed)
    try:
        files = _plain_files(df, schema)
        return _of_files(df, schema, files, n, entropy, workers) if files is not None else _of_frame(df, n, entropy)
    except HeadraceError:
        raise
    except Exception as error:
        raise from_spark(error) from error


def _slots(spark: SparkSession) -> int | None:
    """How many tasks run at once; None where that is not known, or grows with the tasks there are."""
    context = spark_context(spark)
    if context is None or context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        return None
    return max(1, context.defaultParallelism)


# Any frame


def _of_frame(df: DataFrame, n: int, entropy: int) -> tuple[pa.Table, Messages]:
    from pyspark import StorageLevel
    from pyspark.sql import functions as f

    names = [f"c{i}" for i in range(len(df.columns))]
    slots = _slots(df.sparkSession)
    workers = df.coalesce(slots) if slots is not None else df
    thinned = _thinned(workers.toDF(*names), _bound(n), entropy)
    local = thinned.mapInArrow(partial(_keep_local, n, _bound(n)), _local_schema(df.schema))
    kept = local.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        told = kept.where(f.col("slot") == _HEADER).select("worker", "held", "threshold").toArrow()
        numbers, held, thresholds = (column.to_numpy() for column in told.columns)
        if np.isnan(thresholds).any():  # all but impossible
            return _of_frame(df, n, entropy + 1)
        given = shares_by_threshold(held, thresholds, n, np.random.default_rng([entropy, 1]))
        by_worker = np.zeros(max(numbers, default=0) + 1, np.int64)
        by_worker[numbers] = given
        mine = f.element_at(f.lit(by_worker.tolist()), f.col("worker") + 1)
        chosen = kept.where((f.col("slot") >= 0) & (f.col("slot") < mine)).select(*names).toArrow()
    finally:
        kept.unpersist()
    if chosen.num_rows != given.sum():
        raise ExecutionError(
            "SAMPLE_INPUT_CHANGED",
            f"a part of the DataFrame had to be computed again and came out with other rows: {chosen.num_rows} of "
            f"{given.sum()} were found",
            hint="persist the DataFrame, or write it down, before it is sampled",
        )
    return chosen.rename_columns(df.columns), Messages(len(held), len(held), len(held), chosen.num_rows)


def _bound(n: int) -> float:
    """Of i rows, the n-th lowest priority times i is about n, and not above this."""
    return (n + 8 * math.sqrt(n) + 40) * (1 + 2 * _BEACONS / _THINNED_FROM)


def _thinned(df: DataFrame, bound: float, entropy: int) -> DataFrame:
    """The rows with a priority each and their place in their task, without those that cannot be among its lowest.

    A row whose priority is well above what the n-th lowest is by then is not among the lowest of the rows so far,
    nor of all. Every so many rows one passes whatever its priority, so that the task knows how far it came.
    """
    from pyspark.sql import functions as f

    place = f.monotonically_increasing_id().bitwiseAND((1 << 33) - 1)
    drawn = df.select("*", f.rand(entropy & ((1 << 63) - 1)).alias("priority"), place.alias("place"))
    low = f.col("priority") * (f.col("place") + 1) < bound
    beacon = (f.col("place") < _THINNED_FROM) | (f.col("place").bitwiseAND(_BEACONS - 1) == 0)
    return drawn.where(low | beacon)


def _keep_local(n: int, bound: float, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One task: the rows of the lowest priorities, in their order, after a row about them all."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    worker = context.partitionId()
    lowest: pa.Table | None = None
    passed = last = 0
    for batch in batches:
        found = pa.Table.from_batches([batch])
        passed += batch.num_rows
        last = batch.column("place")[-1].as_py() if batch.num_rows else last
        lowest = found if lowest is None else pa.concat_tables([lowest, found])
        if lowest.num_rows > 4 * n + _YIELD_ROWS:
            lowest = _lowest(lowest, n)
    if lowest is None:
        return
    lowest = _lowest(lowest, n)
    threshold = lowest.column("priority")[-1].as_py() if passed > n else 1.0
    most = last + _BEACONS
    """The rows of this task are no more, those left behind counted: there are some only past the bound."""
    if most > max(bound, _THINNED_FROM) and (passed < n or threshold * most >= bound):
        threshold = math.nan  # a row that was left behind may be lower
    rows = lowest.drop_columns(["priority", "place"])
    about = pa.Table.from_arrays([pa.nulls(1, t) for t in rows.schema.types], schema=rows.schema)
    kept = pa.concat_tables([about, rows])
    kept = kept.append_column("worker", pa.array(np.full(kept.num_rows, worker, np.int32)))
    kept = kept.append_column("slot", pa.array(np.arange(kept.num_rows) + _HEADER))
    kept = kept.append_column("held", pa.array(np.full(kept.num_rows, rows.num_rows)))
    kept = kept.append_column("threshold", pa.array(np.full(kept.num_rows, threshold)))
    yield from kept.combine_chunks().to_batches(max_chunksize=_YIELD_ROWS)


def _lowest(rows: pa.Table, n: int) -> pa.Table:
    order = np.argsort(rows.column("priority").to_numpy())[:n]
    return rows.combine_chunks().take(pa.array(order))


def _local_schema(schema: StructType) -> StructType:
    from pyspark.sql.types import DoubleType, IntegerType, LongType, StructField, StructType

    fields = [StructField(f"c{i}", field.dataType) for i, field in enumerate(schema.fields)]
    about = (("worker", IntegerType()), ("slot", LongType()), ("held", LongType()), ("threshold", DoubleType()))
    return StructType([*fields, *(StructField(name, type) for name, type in about)])


# Parquet files


def _plain_files(df: DataFrame, schema: pa.Schema) -> list[str] | None:
    """The files whose rows a frame is, all of them and unchanged; None if it may be anything else.

    Spark itself says whether reading a path means the same as the frame.
    """
    try:
        uris = df.inputFiles()
    except Exception:  # not every plan tells
        return None
    paths = [unquote(urlparse(uri).path) for uri in uris]
    if not uris or any(urlparse(uri).scheme != "file" for uri in uris) or not all(map(os.path.exists, paths)):
        return None
    folders = {os.path.dirname(path) for path in paths}
    roots = [paths[0]] if len(paths) == 1 else []
    roots += folders if len(folders) == 1 else []
    # A path is the same to Spark only if it is spelled the same.
    spelled = [spelling for root in roots for spelling in (root, os.path.relpath(root), f"file://{root}")]
    if not any(is_plain_read(df, path) for path in spelled):
        return None
    return paths if all(_reads_alike(path, df.columns, schema) for path in paths) else None


def _reads_alike(path: str, columns: Sequence[str], schema: pa.Schema) -> bool:
    """Whether DuckDB gives the file's columns the very types Spark does, and no calendar is in the way."""
    try:
        metadata = footer_of(path)
    except (pa.ArrowException, OSError):
        return False
    if any(key.startswith(b"org.apache.spark.legacy") for key in metadata.metadata or ()):
        return False
    with task_worker().cursor() as cursor:
        found = cursor.sql(f"SELECT * FROM {native_scan([path])} LIMIT 0").to_arrow_table().schema
    if found.names != list(columns) or ROW_NUMBER in map(str.lower, columns):
        return False
    return all(_spelled(found.field(name).type) == _spelled(schema.field(name).type) for name in columns)


def _spelled(type: pa.DataType) -> str:
    """A type, whatever the fields inside lists are called and whatever zone instants are shown in."""
    if pa.types.is_list(type):
        return f"list<{_spelled(type.value_type)}>"
    if pa.types.is_struct(type):
        fields = [type.field(i) for i in range(type.num_fields)]
        return f"struct<{', '.join(f'{f.name} {_spelled(f.type)}' for f in fields)}>"
    if pa.types.is_timestamp(type):
        return f"timestamp {type.unit} {type.tz is not None}"
    return str(type)


def _of_files(
    df: DataFrame, schema: pa.Schema, files: Sequence[str], n: int, entropy: int, workers: int | None
) -> tuple[pa.Table, Messages]:
    spark = df.sparkSession
    parts = divided([stretch_of(path) for path in files], workers or _slots(spark) or cores())
    given = shares([sum(s.rows for s in part) for part in parts], n, np.random.default_rng([entropy, 1])).tolist()
    asked = [(worker, part, share) for worker, (part, share) in enumerate(zip(parts, given, strict=True)) if share]
    items = ", ".join(map(quote_native, df.columns))

    def task(indexes: Iterable[int]) -> Iterator[Found]:
        for index in indexes:
            worker, part, share = asked[index]
            rng = np.random.default_rng([entropy, 2, worker])
            yield from guarded(index, partial(draw_share, part, share, items, rng))

    found = run_each(spark, len(asked), task) if asked else []
    for _, kind, _, payload in found:
        if kind == "error":
            raise restored(payload.decode())
    tables = [from_bytes(payload).cast(schema) for *_, payload in found]
    rows = pa.concat_tables([schema.empty_table(), *tables])
    return rows, Messages(len(parts), 0, len(asked), rows.num_rows)


def draw_share(
    part: Sequence[Stretch], share: int, items: str, rng: np.random.Generator
) -> Iterator[tuple[str, str, bytes]]:
    """So many random rows of a part of some files."""
    places = np.sort(rng.choice(sum(s.rows for s in part), share, replace=False, shuffle=False))
    with task_worker().cursor() as cursor:
        try:
            yield "rows", "", to_bytes(take_rows(cursor, part, places, items))
        except duckdb.Error as error:
            files = ", ".join(sorted({s.path for s in part}))
            raise DataError(
                "PARQUET_UNREADABLE", f"cannot read {files} as Parquet: {error}", hint="check that the file is whole"
            ) from None
