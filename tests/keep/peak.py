"""A kept relation from outside the package: the highest value of a stream's column, ``CREATE PEAK p OF s (x)``.

CONTRIBUTING.md, *Add a kept relation*, shows how one is added; this is the smallest there can be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.catalog import Relation, Stream, kind
from headrace.engine import tasks
from headrace.engine.stage import SparkSite, Stage, StateRows
from headrace.engine.work import Fragment, FragmentRun, Work
from headrace.errors import Position
from headrace.keep.family import Family, family
from headrace.keep.kept import Kept, KeptState
from headrace.sql.statements import Create, StatementReader, creates, parse
from headrace.types import Field, Schema

# The catalog's file: what it is


@dataclass(frozen=True, slots=True)
class Peak(Relation):
    """The highest value of a column of a stream."""

    kind: ClassVar[str] = "peak"

    of: str
    column: str
    text: str

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.of,)

    @property
    def is_kept(self) -> bool:
        return True

    def body(self) -> dict[str, Any]:
        return {"of": self.of, "column": self.column, "text": self.text}

    @classmethod
    def of_body(cls, name: str, columns: Schema, body: Mapping[str, Any]) -> Peak:
        return Peak(name, columns, body["of"], body["column"], body["text"])


# The statement


@dataclass(frozen=True)
class CreatePeak(Create):
    name: str
    of: str
    column: str
    text: str
    if_not_exists: bool
    position: Position


def create_peak(read: StatementReader) -> CreatePeak:
    """What follows CREATE PEAK."""
    exists = read.take("IF", "NOT", "EXISTS")
    position = read.position()
    name = read.name()
    if not read.take("OF"):
        read.fail("OF and a stream")
    of = read.name()
    if not read.take("("):
        read.fail("a column in parentheses")
    column = read.name()
    if not read.take(")"):
        read.fail(")")
    read.end()
    return CreatePeak(name, of, column, read.written(), exists, position)


# The folder: what an insert does, and how the answer is made


@dataclass(frozen=True)
class Highest(Fragment):
    """The highest value of the rows of one part of the input."""

    state: int
    columns: tuple[str, ...]
    schema: pa.Schema

    def begin(self, worker: Any, number: int) -> HighestRun:
        return HighestRun(self)


class HighestRun(FragmentRun):
    def __init__(self, fragment: Highest) -> None:
        self.fragment = fragment
        self.found = fragment.schema.empty_table()

    def add(self, batch: pa.Table) -> None:
        values = pa.chunked_array([*self.found["peak"].chunks, *batch[self.fragment.columns[0]].chunks])
        highest = pc.max(values).as_py()
        self.found = pa.table({"peak": [highest] if highest is not None else []}, schema=self.fragment.schema)

    def states(self) -> dict[int, pa.Table]:
        return {self.fragment.state: self.found}


@dataclass(frozen=True)
class Climb(Stage):
    """What an insert into the stream does."""

    highest: Highest
    plan: Any = None
    reason: None = None

    @property
    def state(self) -> int:  # type: ignore[override]
        return self.highest.state

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.highest.columns

    def fragment(self) -> Fragment:
        return self.highest

    def by_spark(self, site: SparkSite, frame: Any) -> StateRows:
        return tasks.run_frame(frame, Work((self.highest,), (), self.columns, None, site.zone))[1]


class KeptPeak(Kept):
    def __init__(self, peak: Peak) -> None:
        self.relation = peak
        schema = pa.schema([("peak", peak.columns[0].type.arrow)])
        merge = "SELECT max(peak) AS peak FROM {} HAVING max(peak) IS NOT NULL".format
        self.states = (KeptState("peak", peak.owns["peak"], schema, merge),)

    def stages(self, source: Relation) -> Sequence[Stage]:
        assert isinstance(self.relation, Peak)
        (state,) = self.states
        return [Climb(Highest(state.ref, (self.relation.column,), state.schema))]

    def evaluate(self, given: Any) -> pa.Table:
        return given.merged(self.states[0]).rename_columns([self.relation.columns[0].name])


class Peaks(Family):
    relation = Peak
    statement = CreatePeak

    def defined(self, keeper: Any, statement: CreatePeak, analyzer: Any) -> tuple[Peak, Any]:
        stream = keeper.runtime.catalog.get(statement.of, Stream)
        (column,) = (c for c in stream.columns if c.name.lower() == statement.column.lower())
        columns = (Field("peak", column.type),)
        return Peak(statement.name, columns, stream.name, column.name, statement.text), "no plan of its own"

    def holds(self, plan: Any) -> Sequence[str]:
        return ("peak",)

    def compiled(self, keeper: Any, relation: Relation, plan: Any) -> KeptPeak:
        assert isinstance(relation, Peak)
        return KeptPeak(relation)

    def reopened(self, keeper: Any, relation: Relation, snapshot: Any) -> KeptPeak:
        assert isinstance(relation, Peak) and isinstance(parse(relation.text), CreatePeak)
        return KeptPeak(relation)

    def plan_of(self, kept: Any) -> Any:
        return "no plan of its own"


def bring_along() -> None:
    """What decorators of the three do in a package of its own; here, only for the tests that want it."""
    kind(Peak)
    creates("PEAK")(create_peak)
    family(Peaks)
