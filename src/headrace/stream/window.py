"""What a query of a stream keeps while its windows last: a split plan as a view is, its states in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow as pa

from headrace.engine.work import PARTIALS, Static
from headrace.keep.home import InMemory
from headrace.keep.kept import KeptState
from headrace.plan.pipelines import SplitPlan, State
from headrace.runtime import Runtime
from headrace.types import arrow_schema
from headrace.view.compiled import SplitRelation

_MERGE_ROWS = 1 << 20
"""State rows that are merged before more are added."""


class WindowQuery(SplitRelation):
    """A query's split plan, compiled. Its states are known by their places in the plan; no catalog has it."""

    whose = "the query"

    def __init__(self, runtime: Runtime, name: str, plan: SplitPlan, statics: Mapping[str, Static]) -> None:
        self._name = name
        self._runtime = runtime
        super().__init__(plan, statics, runtime.settings.time_zone)
        self._homes = {state.ref: state.home for state in self.states if isinstance(state.home, InMemory)}

    @property
    def name(self) -> str:
        return self._name

    def kept_state(self, state: State) -> KeptState:
        schema, merge = arrow_schema(state.schema), partial(self.merging, state)

        def merged(rows: pa.Table) -> pa.Table:
            return self._runtime.worker.query(merge(PARTIALS), **{PARTIALS: rows})

        home = InMemory(schema, merged if state.kind != "rows" else None, _MERGE_ROWS)
        return KeptState(state.name, self.plan.states.index(state), schema, merge, home=home)

    def take(self, rows: Mapping[int, Sequence[pa.Table]]) -> None:
        """Add state rows, by state."""
        for ref, tables in rows.items():
            for table in tables:
                self._homes[ref].take(table)

    def has(self, state: str, rows: int) -> bool:
        """Whether so many rows of a state are there."""
        return self._homes[self.by_name[state].ref].rows >= rows
