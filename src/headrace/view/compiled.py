"""A split plan ready to run: the stages that fill its states, and how those are merged (000 §4.2.4).

A continuous view is one that is stored; a query of a stream is one that lives for a window.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from headrace.catalog import Relation
from headrace.engine.pipelines import NativePipeline
from headrace.engine.plan_sql import NotNative, native_plan, quote_native
from headrace.engine.work import BATCH, PARTIALS, Static
from headrace.keep.answers import Evaluation
from headrace.keep.kept import Kept, KeptState
from headrace.keep.sides import Side
from headrace.plan.nodes import Leaf, Node, leaves
from headrace.plan.pipelines import SplitPlan, State, StaticPipeline, StreamPipeline
from headrace.plan.refs import BuildRef, KeptRef, RelationRef, StreamRef, TableRef
from headrace.plan.shape import shape
from headrace.plan.unique import key_of
from headrace.view.sharing import InsertPipeline

R = TypeVar("R", bound=RelationRef)


def side_of(pipeline: StaticPipeline) -> Side:
    """A build side that follows what it is made of, known by what it computes."""
    name = f"side_{hashlib.sha256(shape(pipeline.plan).encode()).hexdigest()[:40]}"
    return Side(name, pipeline.plan, tuple(f.name for f in pipeline.schema))


def statics_of(files: Mapping[str, Path]) -> dict[str, Static]:
    """Build sides by their names in the split plan. A file's name tells its rows, so a worker loads it once for all."""
    return {name: Static(path.name, path) for name, path in files.items()}


class SplitRelation(Kept):
    """A kept relation that is a split plan."""

    whose: str
    """What the plan is of, for people."""

    def __init__(self, plan: SplitPlan, statics: Mapping[str, Static], zone: str) -> None:
        self.plan = plan
        self.sides = tuple(map(side_of, plan.sides))
        following = zip(plan.sides, self.sides, strict=True)
        self.statics = {**statics, **{pipeline.name: Static(side.name, None) for pipeline, side in following}}
        self.zone = zone
        self.states = tuple(self.kept_state(state) for state in plan.states)
        self.tables = _refs(plan.upper, TableRef)
        self.below = _refs(plan.upper, KeptRef)
        self.upper = plan.upper
        self.row_key = key_of(plan.upper, {state.name: state for state in plan.states}) or ()

    @abstractmethod
    def kept_state(self, state: State) -> KeptState:
        """A state of the plan as one that is kept."""

    def merging(self, state: State, source: str) -> str:
        """Native SQL that merges a state's rows, read from a source."""
        return native_plan(state.merged(), lambda scan: source, zone=self.zone)

    def stages(self, source: Relation) -> Sequence[InsertPipeline]:
        return self._by_number.get(source.number, ())

    def evaluate(self, given: Evaluation) -> pa.Table:
        return given.finished(self.plan.upper)

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
    def _by_number(self) -> Mapping[int, tuple[InsertPipeline, ...]]:
        read = {leaf.number: leaf.relation.lower() for p in self.plan.streams for leaf in leaves(p.plan, StreamRef)}
        return {number: self.pipelines[name] for number, name in read.items()}

    @cached_property
    def initial(self) -> tuple[InsertPipeline, ...]:
        """Pipelines that read no stream: static branches of a UNION ALL, run once at the beginning."""
        return tuple(self._compile(p) for p in self.plan.streams if p.stream is None)

    def _compile(self, pipeline: StreamPipeline) -> InsertPipeline:
        state = self.by_name[pipeline.state]
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


def _refs(plan: Node, kind: type[R]) -> tuple[R, ...]:
    """What a plan reads of a kind, each once, by name."""
    found = {leaf.ref for leaf in leaves(plan) if isinstance(leaf.ref, kind)}
    return tuple(sorted(found, key=lambda ref: ref.name))


def _stream_columns(plan: Node) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for leaf in leaves(plan, StreamRef):
        names.update(dict.fromkeys(leaf.fields))
    return tuple(names)
