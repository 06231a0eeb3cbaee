"""A kept relation of many stages: ``CREATE WEB w OF s (n, r0, r0_1, r2)``.

State 0 sums a stream's column up. Each further state is told of by what it reads: ``r0_1`` reads changes of states 0
and 1, and adds one row for each commit: that it ran, and the sum of what they changed by. A web of another web begins
with what changes the other's last state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from peak import Climb, Highest

from headrace.catalog import Relation, Stream, kind
from headrace.engine.stage import Stage
from headrace.engine.work import FragmentRun
from headrace.errors import Position
from headrace.keep.family import Family, family
from headrace.keep.kept import Kept, KeptState, StageAbove
from headrace.sql.statements import Create, StatementReader, creates
from headrace.types import BIGINT, INT, Field, Schema

SCHEMA = pa.schema([("runs", pa.int64()), ("total", pa.int64())])
COLUMNS = (Field("state", INT), Field("runs", BIGINT), Field("total", BIGINT))


@dataclass(frozen=True, slots=True)
class Web(Relation):
    kind: ClassVar[str] = "web"

    of: str
    words: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.of,)

    @property
    def is_kept(self) -> bool:
        return True

    @property
    def text(self) -> str:
        return f"CREATE WEB {self.name} OF {self.of} ({', '.join(self.words)})"

    def body(self) -> dict[str, Any]:
        return {"of": self.of, "words": list(self.words)}

    @classmethod
    def of_body(cls, name: str, columns: Schema, body: Mapping[str, Any]) -> Web:
        return Web(name, columns, body["of"], tuple(body["words"]))


@dataclass(frozen=True)
class CreateWeb(Create):
    name: str
    of: str
    words: tuple[str, ...]
    if_not_exists: bool
    position: Position


def create_web(read: StatementReader) -> CreateWeb:
    position = read.position()
    name = read.name()
    read.take("OF")
    of = read.name()
    read.take("(")
    words = [read.name()]
    while read.take(","):
        words.append(read.name())
    read.take(")")
    read.end()
    return CreateWeb(name, of, tuple(words), False, position)


class Total(Highest):
    """The sum of a part's values."""

    def begin(self, worker: Any, number: int) -> TotalRun:
        return TotalRun(self)


class TotalRun(FragmentRun):
    def __init__(self, fragment: Total) -> None:
        self.fragment = fragment
        self.total = 0

    def add(self, batch: pa.Table) -> None:
        self.total += pc.sum(batch[self.fragment.columns[0]]).as_py() or 0

    def states(self) -> dict[int, pa.Table]:
        return {self.fragment.state: pa.table({"runs": [1], "total": [self.total]}, SCHEMA)}


@dataclass(frozen=True)
class AddUp(StageAbove):
    reads: tuple[int, ...]
    state: int

    def run(self, tx: Any, changes: Mapping[int, pa.Table]) -> pa.Table:
        assert set(changes) <= set(self.reads)
        total = sum(pc.sum(rows["total"]).as_py() for rows in changes.values())
        return pa.table({"runs": [1], "total": [total]}, SCHEMA)


class KeptWeb(Kept):
    def __init__(self, keeper: Any, web: Web) -> None:
        self.relation = web
        merge = "SELECT sum(runs)::BIGINT AS runs, sum(total)::BIGINT AS total FROM {}".format
        self.states = [KeptState(f"r{i}", web.owns[f"r{i}"], SCHEMA, merge) for i in range(len(web.words))]
        refs = [state.ref for state in self.states]
        stages = [
            AddUp(tuple(refs[int(i)] for i in word[1:].split("_")), refs[place])
            for place, word in enumerate(web.words)
            if place
        ]
        if not isinstance(keeper.runtime.catalog.get(web.of), Stream):
            stages.append(AddUp((keeper.get(web.of).states[-1].ref,), refs[0]))
        self.above = stages[::-1]  # whoever runs them finds their order

    def stages(self, source: Relation) -> Sequence[Stage]:
        assert isinstance(self.relation, Web)
        if source.name != self.relation.of:
            return []
        return [Climb(Total(self.states[0].ref, (self.relation.words[0],), SCHEMA))]

    def evaluate(self, given: Any) -> pa.Table:
        found = [given.merged(state).to_pylist()[0] for state in self.states]
        rows = [{"state": i, "runs": row["runs"] or 0, "total": row["total"] or 0} for i, row in enumerate(found)]
        return pa.Table.from_pylist(rows, pa.schema([(c.name, c.type.arrow) for c in COLUMNS]))


class Webs(Family):
    relation = Web
    statement = CreateWeb

    def defined(self, keeper: Any, statement: CreateWeb, analyzer: Any) -> tuple[Web, Any]:
        return Web(statement.name, COLUMNS, keeper.runtime.catalog.get(statement.of).name, statement.words), statement

    def holds(self, plan: Any) -> Sequence[str]:
        return [f"r{i}" for i in range(len(plan.words))]

    def compiled(self, keeper: Any, relation: Relation, plan: Any) -> KeptWeb:
        assert isinstance(relation, Web)
        return KeptWeb(keeper, relation)

    def reopened(self, keeper: Any, relation: Relation, snapshot: Any) -> KeptWeb:
        assert isinstance(relation, Web)
        return KeptWeb(keeper, relation)

    def plan_of(self, kept: Any) -> Any:
        return kept.relation


def bring_along() -> None:
    kind(Web)
    creates("WEB")(create_web)
    family(Webs)
