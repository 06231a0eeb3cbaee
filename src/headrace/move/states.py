"""State on its way: the rows of a finished stage as Parquet, and Parquet as the rows of a scan.

Spark's own tasks write and read it, in parallel, wherever Spark can write. Rows go out as they are held, partial
aggregates included; columns and fields are named by position, for names in a plan need not be unique.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.base.parquet_files import spark_reader
from headrace.base.private import parts_of
from headrace.errors import StoreError
from headrace.move.files import Folder
from headrace.move.java_aid import java_aid
from headrace.move.plan import Holding, Pipeline
from headrace.move.spark_plans import SparkStage, each_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE_BYTES = 16 * 1024 * 1024
_UNWRITABLE = ("void", "interval", "object")
_SMALL_BYTES = 8 * 1024 * 1024
"""Of a state that is moved in any case."""
_CORE_SECONDS_A_BYTE = 37e-9
"""Of a stage's rows as Spark holds them, written and read as Parquet: measured on states of 60 to 400 MB."""
_EXCHANGING = ("TakeOrderedAndProject", "CollectLimit")
"""Operators that exchange rows without a stage of their own: what is below them is not in the time of those above."""
_BROADCAST_SECONDS = 0.2
"""To write a broadcast, however small, and to read it: a job on either side."""
_CHECKS = 4
"""Checksums computed at a time."""
_PARQUET = {"parquet.writer.version": "v2", "parquet.enable.dictionary": "false", "compression": "lz4_raw"}
"""Rows that were just shuffled repeat little: differences take half the room of dictionaries, and less time."""
_IO_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.files.maxRecordsPerFile": "0",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.ansi.enabled": "true",
}


@dataclass(frozen=True, slots=True)
class StateFile:
    """A Parquet file of a state."""

    name: str
    bytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class StageState:
    """The rows of a pipeline in a ticket."""

    pipeline: Pipeline
    operator: str
    folder: str
    types: tuple[str, ...]
    files: tuple[StateFile, ...]
    rows: int | None

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def as_json(self) -> dict[str, Any]:
        return {
            "identity": self.pipeline.identity,
            "holding": self.pipeline.holding.value,
            "index": self.pipeline.index,
            "operator": self.operator,
            "folder": self.folder,
            "types": list(self.types),
            "files": [[f.name, f.bytes, f.checksum] for f in self.files],
            "rows": self.rows,
        }

    @staticmethod
    def of_json(found: dict[str, Any]) -> StageState:
        """A state as it was written.

        >>> rows = (StateFile("a", 1, 2),)
        >>> state = StageState(Pipeline("x", Holding.ROWS), "Exchange", "state/0", ('"long"',), rows, 3)
        >>> StageState.of_json(state.as_json()) == state
        True
        """
        return StageState(
            Pipeline(found["identity"], Holding(found["holding"]), found["index"]),
            found["operator"],
            found["folder"],
            tuple(found["types"]),
            tuple(StateFile(*file) for file in found["files"]),
            found["rows"],
        )


def io_session(spark: SparkSession) -> SparkSession:
    """A session for reading and writing state, whatever the user's is set to."""
    session = spark.newSession()
    for key, value in _IO_SETTINGS.items():
        session.conf.set(key, value)
    return session


def types_of(node: Any) -> tuple[str, ...]:
    """The column types of a physical operator, as Spark's JSON."""
    return tuple(str(attribute.dataType().json()) for attribute in each_of(node.output()))


def writable(stage: SparkStage) -> bool:
    """Whether Parquet can hold the stage's columns, and the stage still has its rows."""
    return all(stored(json.loads(text)) is not None for text in types_of(stage.node)) and has_rows(stage)


def has_rows(stage: SparkStage) -> bool:
    """Whether a finished stage still has its rows: of NOT IN over a NULL it keeps only that there was one."""
    return stage.pipeline.holding is not Holding.INDEX or "AllNullKeys" not in str(
        stage.node.plan().executeBroadcast().value().getClass().getSimpleName()
    )


def stored(found: Any) -> Any | None:
    """A type, as Spark's JSON, as it is written: without names. None if Parquet cannot hold it.

    >>> stored({"type": "struct", "fields": [{"name": name, "type": "long"} for name in ("object_id", "id", "id")]})
    ... # doctest: +NORMALIZE_WHITESPACE
    {'type': 'struct', 'fields': [{'name': 'f0', 'type': 'long', 'nullable': True, 'metadata': {}},
                                  {'name': 'f1', 'type': 'long', 'nullable': True, 'metadata': {}},
                                  {'name': 'f2', 'type': 'long', 'nullable': True, 'metadata': {}}]}
    >>> stored({"type": "array", "elementType": "interval", "containsNull": True}), stored("interval day to second")
    (None, 'interval day to second')
    """
    if not isinstance(found, dict):
        return None if found in _UNWRITABLE else found
    if found["type"] == "udt":
        return stored(found["sqlType"])
    if found["type"] == "struct":
        types = [stored(field["type"]) for field in found["fields"]]
        return {"type": "struct", "fields": _fields("f", types)} if types and None not in types else None
    if found["type"] not in ("array", "map"):
        return None
    parts = {key: stored(part) for key, part in found.items() if key in ("elementType", "keyType", "valueType")}
    return {**found, **parts} if None not in parts.values() else None


def _fields(prefix: str, types: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"name": f"{prefix}{i}", "type": type, "nullable": True, "metadata": {}} for i, type in enumerate(types)]


def rows_of(spark: SparkSession, stage: SparkStage) -> Any:
    """The RDD of a finished stage's rows, read where they are; nothing is computed again."""
    if str(stage.node.getClass().getSimpleName()).startswith("Shuffle"):
        return stage.node.execute()
    jvm: Any = spark._jvm
    rows = java_aid(spark).rows(exchange_of(stage).executeBroadcast().value())
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.InternalRow"))
    context: Any = spark.sparkContext
    return context._jsc.sc().parallelize(rows, context.defaultParallelism, tag)


def size_of(stage: SparkStage) -> tuple[int, int | None]:
    """Bytes and rows of a finished stage, as Spark measured them."""
    found = stage.node.getRuntimeStatistics()
    rows = int(str(found.rowCount().get())) if found.rowCount().isDefined() else None
    if stage.pipeline.holding is Holding.INDEX and rows is not None:
        # A hash table has tens of megabytes before it has rows.
        return rows * sum(int(a.dataType().defaultSize()) for a in each_of(stage.node.output())), rows
    return int(str(found.sizeInBytes())), rows


def cost_of_moving(spark: SparkSession, stage: SparkStage) -> float:
    """Seconds to write the rows of a finished stage and read them elsewhere, as measured.

    A small shuffle costs nothing: it stands for all that was read for it. A broadcast is mostly a small table that is
    read again as soon.
    """
    fixed = 0.0 if _is_shuffle(exchange_of(stage)) else _BROADCAST_SECONDS
    return fixed + _seconds_to_move(spark, size_of(stage)[0])


def _seconds_to_move(spark: SparkSession, size: float) -> float:
    return 0.0 if size < _SMALL_BYTES else size * seconds_a_byte(spark)


def seconds_a_byte(spark: SparkSession) -> float:
    """What writing and reading a byte of state takes, but for a slow disk or network."""
    return _CORE_SECONDS_A_BYTE / _cores(spark)


def at_stake(spark: SparkSession, stage: SparkStage) -> float:
    """Seconds of work that are lost if a stage in flight is given up; none if its rows would not be worth moving.

    What is left of it has to be done in any case, here or elsewhere. So to finish it is worth it if to move its rows,
    as many as its finished tasks let expect, costs less than these tasks have. A broadcast is small.
    """
    exchange = exchange_of(stage)
    if not _is_shuffle(exchange):
        done = _pipeline_seconds(spark, exchange) or 0.0
        return done if done > _BROADCAST_SECONDS else 0.0
    finished = _tasks_finished(spark, exchange)
    if not finished:
        return 0.0
    size = int(exchange.metrics().apply("dataSize").value()) * int(exchange.numMappers()) / finished
    done = cost_of_running(spark, stage)
    return done if _seconds_to_move(spark, size) < done else 0.0


def _tasks_finished(spark: SparkSession, exchange: Any) -> int:
    """How many tasks of a shuffle in flight have left their rows."""
    context: Any = spark.sparkContext
    running = context._jsc.sc().dagScheduler().shuffleIdToMapStage().get(exchange.shuffleId())
    return int(running.get().numAvailableOutputs()) if running.isDefined() else 0


def cost_of_running(spark: SparkSession, stage: SparkStage) -> float:
    """Seconds it took to make the rows of a finished stage; infinite where Spark does not say.

    Without shuffling or broadcasting them: rows that moved are, as those that are computed again.
    """
    exchange = exchange_of(stage)
    seconds = _pipeline_seconds(spark, exchange)
    if seconds is None:
        return math.inf
    if any(name in str(exchange.toString()) for name in _EXCHANGING):
        return max(seconds, seconds_of(spark, stage) or math.inf)
    if not _is_shuffle(exchange):
        return seconds
    shuffled = int(exchange.metrics().apply("shuffleWriteTime").value()) / 1e9 / _at_once(spark, exchange)
    return max(0.0, seconds - shuffled)


def _pipeline_seconds(spark: SparkSession, exchange: Any) -> float | None:
    """How long the finished tasks below an exchange ran, if Spark says."""
    made = exchange.child().metrics()
    if not made.contains("pipelineTime"):
        return None
    milliseconds = int(made.apply("pipelineTime").value())
    return milliseconds / 1000 / _at_once(spark, exchange) if milliseconds else 0.0


def _at_once(spark: SparkSession, exchange: Any) -> int:
    """How many of the tasks below an exchange run at a time. Some have run: else Spark would first plan them here."""
    tasks = exchange.numMappers() if _is_shuffle(exchange) else exchange.child().execute().getNumPartitions()
    return max(1, min(_cores(spark), int(tasks)))


def _cores(spark: SparkSession) -> int:
    return max(1, spark.sparkContext.defaultParallelism)


def write(io: SparkSession, folder: Folder, name: str, stage: SparkStage) -> StageState:
    """Write the rows of a finished stage below ``folder``."""
    types = types_of(stage.node)
    files, rows = _written(io, folder, name, _frame(io, rows_of(io, stage), types), size_of(stage)[0])
    return StageState(stage.pipeline, operator_of(stage), name, types, files, rows)


def copy(io: SparkSession, source: Folder, state: StageState, folder: Folder, name: str) -> StageState:
    """Take a state that no stage has read yet over into another ticket."""
    frame = spark_reader(io).schema(_schema(state.types)).parquet(f"{source.address}/{state.folder}")
    files, rows = _written(io, folder, name, frame, state.bytes)
    return StageState(state.pipeline, state.operator, name, state.types, files, rows)


def check(folder: Folder, states: list[StageState]) -> None:
    """Every file of the states is there as it was written, or an error says which is not."""
    for state in states:
        parts_of(folder.address, state.folder)
        sizes = folder.sizes(state.folder)
        for name in sizes.keys() - {file.name for file in state.files}:
            where = f"{folder.address}/{state.folder}/{name}"
            raise StoreError("TICKET_DAMAGED", f"{where} is not of this ticket", hint=_DAMAGED)
        for file in state.files:
            where = f"{folder.address}/{state.folder}/{file.name}"
            if file.name not in sizes:
                raise StoreError("TICKET_DAMAGED", f"{where} is missing", hint=_DAMAGED)
            if sizes[file.name] != file.bytes:
                raise StoreError(
                    "TICKET_DAMAGED", f"{where} has {sizes[file.name]:,} bytes, not {file.bytes:,}", hint=_DAMAGED
                )
    files = [(f"{state.folder}/{file.name}", file.checksum) for state in states for file in state.files]
    with ThreadPoolExecutor(_CHECKS) as pool:
        for (name, wanted), found in zip(files, pool.map(lambda f: folder.checksum(f[0]), files), strict=True):
            if found != wanted:
                raise StoreError("TICKET_DAMAGED", f"{folder.address}/{name} was altered", hint=_DAMAGED)


_DAMAGED = 'resume with on_mismatch="restart" to run the query from the beginning'


def reader(io: SparkSession, folder: Folder, state: StageState) -> Callable[[], Any]:
    """A function to the RDD of a state's rows; files are read when the rows are."""

    def rows() -> Any:
        frame = spark_reader(io).schema(_schema(state.types)).parquet(f"{folder.address}/{state.folder}")
        columns = [f"c{i}" for i in range(len(state.types))]
        return frame.select(*columns)._jdf.queryExecution().toRdd()

    return rows


def _schema(types: tuple[str, ...]) -> Any:
    from pyspark.sql.types import StructType

    # Parquet needs a column: rows without any are counted by one.
    return StructType.fromJson({"fields": _fields("c", [stored(json.loads(text)) for text in types] or ["byte"])})


def _frame(io: SparkSession, rdd: Any, types: tuple[str, ...]) -> DataFrame:
    from pyspark.sql import DataFrame
    from pyspark.sql.functions import lit
    from pyspark.sql.types import StructType

    schema = _schema(types) if types else StructType([])
    jvm: Any = io._jvm
    java_schema = jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    frame = DataFrame(io._jsparkSession.internalCreateDataFrame(rdd, java_schema, False), io)
    return frame if types else frame.select(lit(1).cast("byte").alias("c0"))


def _written(
    io: SparkSession, folder: Folder, name: str, frame: DataFrame, size: int
) -> tuple[tuple[StateFile, ...], int]:
    """Write the rows of about ``size`` bytes: the files, and how many rows they have.

    Tasks that write to disks of their own succeed, and leave nothing to be read: the rows in the files that are seen
    from here must be as many as were written.
    """
    rows = _write(folder, name, frame, max(1, math.ceil(size / _FILE_BYTES)))
    sizes = folder.sizes(name)
    aid, conf = java_aid(io), io.sparkContext._jsc.hadoopConfiguration()
    with ThreadPoolExecutor(_CHECKS) as pool, folder.written():
        there = sum(pool.map(lambda file: int(aid.records(conf, f"{folder.address}/{name}/{file}")), sizes))
        if there != rows:
            raise StoreError(
                "TICKET_NOT_WRITTEN",
                f"{folder.address}/{name} has {there:,} rows of {rows:,} that were written",
                hint="name a path that all of Spark's executors and this process share",
            )
        sums = pool.map(lambda file: folder.checksum(f"{name}/{file}"), sizes)
        files = (StateFile(file, size, found) for (file, size), found in zip(sizes.items(), sums, strict=True))
        return tuple(files), rows


def _write(folder: Folder, name: str, frame: DataFrame, files: int) -> int:
    """Write rows, and say how many."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    seen = Observation()
    counted = frame.coalesce(files).observe(seen, count(lit(1)).alias("rows"))
    with folder.written():
        counted.write.mode("overwrite").options(**_PARQUET).parquet(f"{folder.address}/{name}")
    return int(seen.get["rows"])


def exchange_of(stage: SparkStage) -> Any:
    """The exchange a stage ran."""
    node = stage.node.plan()
    while str(node.getClass().getSimpleName()).startswith("Reused"):
        node = node.child()
    return node


def _is_shuffle(exchange: Any) -> bool:
    return "Shuffle" in str(exchange.getClass().getSimpleName())


def operator_of(stage: SparkStage) -> str:
    return text_of(exchange_of(stage))


def text_of(exchange: Any) -> str:
    """What an exchange holds, in one line: how it moves rows, and the operator they come from."""
    node = exchange.child()
    while str(node.getClass().getSimpleName()) in ("WholeStageCodegenExec", "InputAdapter", "ProjectExec"):
        node = node.child()
    how = "Broadcast" if "Broadcast" in str(exchange.getClass().getSimpleName()) else "Shuffle"
    return f"{how} of {' '.join(str(node.simpleString(6)).split())[:100]}"


def seconds_of(spark: SparkSession, stage: SparkStage) -> float | None:
    """How long Spark ran a finished stage, where it still knows."""
    node = exchange_of(stage)
    if _is_shuffle(node):
        context: Any = spark.sparkContext
        found = int(java_aid(spark).milliseconds(context._jsc.sc(), node.shuffleDependency().rdd().id()))
        return found / 1000 if found >= 0 else None
    metrics = node.metrics()
    names = ("collectTime", "buildTime", "broadcastTime")
    return sum(int(metrics.apply(name).value()) for name in names if metrics.contains(name)) / 1000


def let_go(spark: SparkSession, stages: Collection[SparkStage]) -> None:
    """Free what finished stages hold: the query will not need it here."""
    context: Any = spark.sparkContext
    cleaner = context._jsc.sc().cleaner()
    for stage in stages:
        if not cleaner.isDefined() or not stage.finished:
            continue
        node = exchange_of(stage)
        if stage.pipeline.holding is Holding.ROWS and _is_shuffle(node):
            cleaner.get().doCleanupShuffle(node.shuffleId(), False)
