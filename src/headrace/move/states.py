"""State on its way: the rows of a finished stage as Parquet, and Parquet as the rows of a scan.

Spark's own tasks write and read it, in parallel, wherever Spark can write. Rows go out as they are held, partial
aggregates included; columns are named by position, for names in a plan need not be unique.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import StoreError
from headrace.move.files import Folder
from headrace.move.java_aid import java_aid
from headrace.move.plan import Holding, Pipeline
from headrace.move.spark_plans import Stage, each_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE_BYTES = 16 * 1024 * 1024
_UNWRITABLE = ('"void"', '"interval"', "CalendarIntervalType", "object")
_SMALL_BYTES = 8 * 1024 * 1024
"""Of a state that is moved in any case."""
_CORE_SECONDS_A_BYTE = 24e-9
"""Of a stage's rows as Spark holds them, written and read as Parquet: measured on 14 million rows of three to six
columns."""
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
class State:
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
    def of_json(found: dict[str, Any]) -> State:
        """A state as it was written.

        >>> state = State(Pipeline("x", Holding.ROWS), "Exchange", "state/0", ('"long"',), (StateFile("a", 1, 2),), 3)
        >>> State.of_json(state.as_json()) == state
        True
        """
        return State(
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


def writable(stage: Stage) -> bool:
    """Whether Parquet can hold the stage's columns, and the stage still has its rows."""
    if any(word in text for text in types_of(stage.node) for word in _UNWRITABLE):
        return False
    return stage.pipeline.holding is not Holding.INDEX or "AllNullKeys" not in str(
        stage.node.plan().executeBroadcast().value().getClass().getSimpleName()
    )


def rows_of(spark: SparkSession, stage: Stage) -> Any:
    """The RDD of a finished stage's rows, read where they are; nothing is computed again."""
    if str(stage.node.getClass().getSimpleName()).startswith("Shuffle"):
        return stage.node.execute()
    jvm: Any = spark._jvm
    rows = java_aid(spark).rows(exchange_of(stage).executeBroadcast().value())
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.InternalRow"))
    context: Any = spark.sparkContext
    return context._jsc.sc().parallelize(rows, context.defaultParallelism, tag)


def size_of(stage: Stage) -> tuple[int, int | None]:
    """Bytes and rows of a finished stage, as Spark measured them."""
    found = stage.node.getRuntimeStatistics()
    rows = int(str(found.rowCount().get())) if found.rowCount().isDefined() else None
    if stage.pipeline.holding is Holding.INDEX and rows is not None:
        # A hash table has tens of megabytes before it has rows.
        return rows * sum(int(a.dataType().defaultSize()) for a in each_of(stage.node.output())), rows
    return int(str(found.sizeInBytes())), rows


def cost_of_moving(spark: SparkSession, stage: Stage) -> float:
    """Seconds to write the rows of a finished stage and read them elsewhere, as measured; small ones cost nothing."""
    return _seconds_to_move(spark, size_of(stage)[0])


def _seconds_to_move(spark: SparkSession, size: float) -> float:
    return 0.0 if size < _SMALL_BYTES else size * _CORE_SECONDS_A_BYTE / _cores(spark)


def worth_finishing(spark: SparkSession, stage: Stage) -> bool:
    """Whether a stage in flight is better finished and moved than given up and run elsewhere.

    What is left of it has to be done in any case. So it is worth it if to move its rows, as many as its finished tasks
    let expect, costs less than these tasks have. A broadcast is small.
    """
    exchange = exchange_of(stage)
    if "Shuffle" not in str(exchange.getClass().getSimpleName()):
        return True
    finished = _tasks_finished(spark, exchange)
    if not finished:
        return False
    size = int(exchange.metrics().apply("dataSize").value()) * int(exchange.numMappers()) / finished
    return _seconds_to_move(spark, size) < cost_of_running(spark, stage)


def _tasks_finished(spark: SparkSession, exchange: Any) -> int:
    """How many tasks of a shuffle in flight have left their rows."""
    context: Any = spark.sparkContext
    running = context._jsc.sc().dagScheduler().shuffleIdToMapStage().get(exchange.shuffleId())
    return int(running.get().numAvailableOutputs()) if running.isDefined() else 0


def cost_of_running(spark: SparkSession, stage: Stage) -> float:
    """Seconds it took to make the rows of a finished stage, without shuffling them; infinite where Spark does not say.

    Rows that moved are shuffled again, as those that are computed again are.
    """
    exchange = exchange_of(stage)
    if "Shuffle" not in str(exchange.getClass().getSimpleName()):
        return seconds_of(stage) or math.inf
    made = exchange.child().metrics()
    if not made.contains("pipelineTime"):
        return math.inf
    shuffled = int(exchange.metrics().apply("shuffleWriteTime").value()) / 1e6
    return max(0.0, int(made.apply("pipelineTime").value()) - shuffled) / 1000 / _cores(spark)


def _cores(spark: SparkSession) -> int:
    return max(1, spark.sparkContext.defaultParallelism)


def write(io: SparkSession, folder: Folder, name: str, stage: Stage) -> State:
    """Write the rows of a finished stage below ``folder``."""
    bytes_held, rows = size_of(stage)
    types = types_of(stage.node)
    frame = _frame(io, rows_of(io, stage), types)
    _write(folder, name, frame, max(1, math.ceil(bytes_held / _FILE_BYTES)))
    return State(stage.pipeline, operator_of(stage), name, types, _files(folder, name), rows)


def copy(io: SparkSession, source: Folder, state: State, folder: Folder, name: str) -> State:
    """Take a state that no stage has read yet over into another ticket."""
    frame = io.read.schema(_schema(state.types)).parquet(f"{source.address}/{state.folder}")
    _write(folder, name, frame, max(1, math.ceil(state.bytes / _FILE_BYTES)))
    return State(state.pipeline, state.operator, name, state.types, _files(folder, name), state.rows)


def check(folder: Folder, states: list[State]) -> None:
    """Every file of the states is there as it was written, or an error says which is not."""
    for state in states:
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


def reader(io: SparkSession, folder: Folder, state: State) -> Callable[[], Any]:
    """A function to the RDD of a state's rows; files are read when the rows are."""

    def rows() -> Any:
        frame = io.read.schema(_schema(state.types)).parquet(f"{folder.address}/{state.folder}")
        columns = [f"c{i}" for i in range(len(state.types))]
        return frame.select(*columns)._jdf.queryExecution().toRdd()

    return rows


def _schema(types: tuple[str, ...]) -> Any:
    from pyspark.sql.types import StructType

    fields = [
        {"name": f"c{i}", "type": json.loads(text), "nullable": True, "metadata": {}} for i, text in enumerate(types)
    ]
    # Parquet needs a column: rows without any are counted by one.
    return StructType.fromJson({"fields": fields or [{"name": "n", "type": "byte", "nullable": True, "metadata": {}}]})


def _frame(io: SparkSession, rdd: Any, types: tuple[str, ...]) -> DataFrame:
    from pyspark.sql import DataFrame
    from pyspark.sql.functions import lit
    from pyspark.sql.types import StructType

    schema = _schema(types) if types else StructType([])
    jvm: Any = io._jvm
    java_schema = jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    frame = DataFrame(io._jsparkSession.internalCreateDataFrame(rdd, java_schema, False), io)
    return frame if types else frame.select(lit(1).cast("byte").alias("n"))


def _write(folder: Folder, name: str, frame: DataFrame, files: int) -> None:
    with folder.written():
        frame.coalesce(files).write.mode("overwrite").options(**_PARQUET).parquet(f"{folder.address}/{name}")


def _files(folder: Folder, name: str) -> tuple[StateFile, ...]:
    sizes = folder.sizes(name)
    with ThreadPoolExecutor(_CHECKS) as pool:
        sums = pool.map(lambda file: folder.checksum(f"{name}/{file}"), sizes)
        return tuple(StateFile(file, size, found) for (file, size), found in zip(sizes.items(), sums, strict=True))


def exchange_of(stage: Stage) -> Any:
    """The exchange a stage ran."""
    node = stage.node.plan()
    while str(node.getClass().getSimpleName()).startswith("Reused"):
        node = node.child()
    return node


def operator_of(stage: Stage) -> str:
    return text_of(exchange_of(stage))


def text_of(exchange: Any) -> str:
    """What an exchange holds, in one line: how it moves rows, and the operator they come from."""
    node = exchange.child()
    while str(node.getClass().getSimpleName()) in ("WholeStageCodegenExec", "InputAdapter", "ProjectExec"):
        node = node.child()
    how = "Broadcast" if "Broadcast" in str(exchange.getClass().getSimpleName()) else "Shuffle"
    return f"{how} of {' '.join(str(node.simpleString(6)).split())[:100]}"


def seconds_of(stage: Stage) -> float | None:
    """How long Spark ran a finished stage, where its status store still knows."""
    node = exchange_of(stage)
    metrics = node.metrics()
    if "Shuffle" not in str(node.getClass().getSimpleName()):
        names = ("collectTime", "buildTime", "broadcastTime")
        return sum(int(metrics.apply(name).value()) for name in names if metrics.contains(name)) / 1000
    return None


def let_go(spark: SparkSession, stages: Collection[Stage]) -> None:
    """Free what finished stages hold: the query will not need it here."""
    context: Any = spark.sparkContext
    cleaner = context._jsc.sc().cleaner()
    for stage in stages:
        if not cleaner.isDefined() or not stage.finished:
            continue
        node = exchange_of(stage)
        if stage.pipeline.holding is Holding.ROWS and "Shuffle" in str(node.getClass().getSimpleName()):
            cleaner.get().doCleanupShuffle(node.shuffleId(), False)
