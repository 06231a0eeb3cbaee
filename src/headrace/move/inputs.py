"""What a query reads, as it was planned, and what keeps it from being moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import StoreError
from headrace.move.java_aid import java_aid
from headrace.move.plan import Operator
from headrace.move.program import refused
from headrace.move.spark_plans import STATE_SCAN, PlanReader, each_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REFUSED = {
    "CollectMetricsExec": ("observed metrics", "take the observation out, or aggregate in the query"),
    "ExternalRDDScanExec": ("rows of an RDD", "write them to files and read those"),
    "SampleExec": ("a random sample", "filter by a hash of a key instead"),
    "UnionLoopExec": ("a recursive query", "write its rows to files and read those"),
}


class Stamp(NamedTuple):
    """What a file's listing says of its content."""

    size: int
    time: int
    etag: str = ""
    """What an object store calls the content; nothing where there is no such mark."""

    def differs(self, now: Stamp) -> bool:
        """Whether the file has changed. A mark that one listing lacks says nothing.

        >>> [Stamp(1, 2, "a").differs(now) for now in (Stamp(1, 2, "b"), Stamp(1, 2), Stamp(1, 3, "a"))]
        [True, False, True]
        """
        marks = {self.etag, now.etag} - {""}
        return self[:2] != now[:2] or len(marks) > 1


@dataclass(frozen=True, slots=True)
class Inputs:
    """Files as they were listed, versions of tables that have them, and sources that cannot be checked."""

    files: dict[str, Stamp] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        files = [[path, *stamp] for path, stamp in sorted(self.files.items())]
        return {"files": files, "versions": self.versions, "unchecked": sorted(self.unchecked)}

    @staticmethod
    def of_json(found: dict[str, Any]) -> Inputs:
        return Inputs({path: Stamp(*stamp) for path, *stamp in found["files"]}, found["versions"], found["unchecked"])

    def check(self, now: Inputs) -> None:
        """An error names the first input that is not as it was.

        >>> Inputs({"a": Stamp(1, 2)}).check(Inputs({"a": Stamp(1, 2)}))
        >>> try:
        ...     Inputs({"a": Stamp(1, 2), "b": Stamp(1, 1)}).check(Inputs({"a": Stamp(1, 3)}))
        ... except StoreError as error:
        ...     print(error.message)
        a has changed since the query began, and 1 more
        """
        changed = [
            f"{path} {'is gone' if path not in now.files else 'has changed'}"
            for path, stamp in sorted(self.files.items())
            if path not in now.files or stamp.differs(now.files[path])
        ]
        changed += [f"{path} is new" for path in sorted(now.files.keys() - self.files.keys())]
        changed += [
            f"{table} has version {now.versions.get(table)}, not {version}, and so has changed"
            for table, version in self.versions.items()
            if now.versions.get(table) != version
        ]
        if changed:
            more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
            raise StoreError(
                "INPUT_CHANGED",
                f"{changed[0]} since the query began{more}",
                hint='resume with on_mismatch="restart" to run the query over the inputs as they are now',
            )


def list_anew(analyzed: Any) -> None:
    """Have the files of a query's inputs listed again: views of the session may have listed theirs long ago."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        for part in (analyzed, *each_of(analyzed.subqueriesAll())):
            part.refresh()
    except Py4JJavaError as error:
        raise StoreError(
            "INPUT_CHANGED",
            f"the files of an input cannot be listed: {error.java_exception.getMessage()}",
            hint="have the inputs where they were",
        ) from None


def inputs_of(reader: PlanReader, root: Operator) -> Inputs:
    """What the plan reads. Spark listed its files when it planned; nothing is read here."""
    found = Inputs()
    listing = reader.java_class("org.apache.spark.sql.execution.datasources.PartitioningAwareFileIndex")
    for operator in _all(reader, root):
        node = operator.node
        if operator.name == "FileSourceScanExec":
            location = node.relation().location()
            if str(location.getClass().getSimpleName()) == "CatalogFileIndex":
                location = location.filterPartitions(node.children())  # no filter: an empty sequence
            if listing.isInstance(location):
                found.files.update(stamps(reader.spark, location.allFiles()))
            else:
                found.unchecked.append(str(node.nodeName()))
        elif operator.name == "BatchScanExec":
            table = node.table()
            version = table.version()
            if version is None:
                found.unchecked.append(str(table.name()))
            else:
                found.versions[str(table.name())] = str(version)
        elif operator.name in ("RowDataSourceScanExec", "HiveTableScanExec"):
            found.unchecked.append(str(node.nodeName()))
    return found


def stamps(spark: SparkSession, files: Any) -> dict[str, Stamp]:
    """Files by path, from what Hadoop says of each."""
    context: Any = spark.sparkContext
    text = str(java_aid(spark).files(files, context._jsc.hadoopConfiguration()))
    each = iter(text.split("\0")) if text else iter(())
    return {
        path: Stamp(int(size), int(time), etag) for path, size, time, etag in zip(each, each, each, each, strict=True)
    }


def refuse(reader: PlanReader, root: Operator, analyzed: Any) -> None:
    """Raise if the plan holds something that cannot be planned the same way again, with its name."""
    jvm: Any = reader.spark._jvm
    if analyzed.containsPattern(jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()):
        raise refused("current_timestamp() and its like", "write the time as a literal")
    for operator in _all(reader, root):
        node = operator.node
        if operator.name in _REFUSED:
            what, hint = _REFUSED[operator.name]
            raise refused(f"{node.nodeName()} ({what})", hint)
        if operator.name == "RDDScanExec" and not str(node.name()).startswith(STATE_SCAN):
            raise refused(f"{node.nodeName()} (rows that only this session has)", "write them to files and read those")
        if operator.name.startswith(("StateStore", "Streaming", "EventTimeWatermark")):
            raise refused(f"{node.nodeName()} (streaming)", "attach the stream to a Headrace stream: db.attach")
        for expression in each_of(node.expressions()):
            if not expression.deterministic():
                raise refused(f"{_nondeterministic(expression)} (nondeterministic)", "use a deterministic expression")
    if reader.aid.accumulates(reader.functions):
        raise refused("a Python function with an accumulator", "count in the query instead")


def _nondeterministic(expression: Any) -> str:
    for below in each_of(expression.children()):
        if not below.deterministic():
            return _nondeterministic(below)
    return str(expression.prettyName())


def _all(reader: PlanReader, root: Operator) -> Iterator[Operator]:
    """Every operator, those below caches too."""
    for operator in root.walk():
        yield operator
        if operator.name == "InMemoryTableScanExec":
            yield from _all(reader, reader.read(operator.node.relation().cachedPlan()))
