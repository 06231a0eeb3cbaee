"""A split plan ready to run: the stages that fill its states, and how those are merged (000 §4.2.4).

A continuous view is one that is stored; a query of a stream is one that lives for a window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headrace.engine.pipelines import NativePipeline
from headrace.engine.plan_sql import NotNative, native_plan, quote_native
from headrace.engine.work import BATCH, PARTIALS, Static
from headrace.keep.kept import KeptState
from headrace.plan.nodes import Leaf, Node, leaves
from headrace.plan.pipelines import SplitPlan, StreamPipeline
from headrace.plan.refs import BuildRef, StreamRef
from headrace.types import arrow_schema
from headrace.view.sharing import InsertPipeline


def statics_of(files: Mapping[str, Path]) -> dict[str, Static]:
    """Build sides by their names in the split plan. A file's name tells its rows, so a worker loads it once for all."""
    return {name: Static(path.name, path) for name, path in files.items()}


@dataclass(frozen=True, eq=False)
class Compiled:
    """A split plan, its pipelines compiled."""

    plan: SplitPlan
    statics: Mapping[str, Static]
    """Build sides by their names in the plan; one file may serve several names, and several views."""
    zone: str
    ref: Callable[[str], int]
    """The reference to a state, given its name in the plan."""
    whose: str
    """What the plan is of, for people."""

    @cached_property
    def states(self) -> Mapping[str, KeptState]:
        """The states, by their names in the plan."""
        return {
            state.name: KeptState(
                state.name,
                self.ref(state.name),
                arrow_schema(state.schema),
                lambda source, state=state: native_plan(state.merged(), lambda scan: source, zone=self.zone),  # type: ignore[misc]
                state,
            )
            for state in self.plan.states
        }

    @cached_property
    def pipelines(self) -> Mapping[str, tuple[InsertPipeline, ...]]:
        """What an insert runs, by stream."""
        found: dict[str, tuple[InsertPipeline, ...]] = {}
        for pipeline in self.plan.streams:
            if pipeline.stream is not None:
                key = pipeline.stream.lower()
                found[key] = (*found.get(key, ()), self._compile(pipeline))
        return found

    @cached_property
    def initial(self) -> tuple[InsertPipeline, ...]:
        """Pipelines that read no stream: static branches of a UNION ALL, run once at the beginning."""
        return tuple(self._compile(p) for p in self.plan.streams if p.stream is None)

    def _compile(self, pipeline: StreamPipeline) -> InsertPipeline:
        state = self.states[pipeline.state]
        columns = _stream_columns(pipeline.plan)
        builds = {scan.relation: self.statics[scan.relation] for scan in leaves(pipeline.plan, BuildRef)}

        def source(scan: Leaf) -> str:
            if isinstance(scan.ref, BuildRef):
                return quote_native(builds[scan.relation].name)
            return BATCH if isinstance(scan.ref, StreamRef) else quote_native(scan.relation)

        try:
            wide = native_plan(pipeline.plan, source, zone=self.zone)
        except NotNative as refusal:
            return InsertPipeline(state.ref, pipeline.plan, columns, builds, None, refusal.reason, self.whose)
        narrow = native_plan(pipeline.plan, source, zone=self.zone, narrow=True)
        native = NativePipeline(
            state.ref, wide, narrow if narrow != wide else None, state.merge(PARTIALS), state.schema
        )
        return InsertPipeline(state.ref, pipeline.plan, columns, builds, native, None, self.whose)


def _stream_columns(plan: Node) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for leaf in leaves(plan, StreamRef):
        names.update(dict.fromkeys(leaf.fields))
    return tuple(names)
