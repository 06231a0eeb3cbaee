"""A query planned in a session, ready to run: the adaptive plan, and its tree where somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace.engine.failures import from_spark
from headrace.errors import StoreError
from headrace.move.inputs import list_anew
from headrace.move.plan import Operator, Pipeline, dependencies, in_order, placements
from headrace.move.program import Program, copy_of, frame_of
from headrace.move.spark_plans import PlanReader, SparkStage, Stages, each_of, with_state
from headrace.move.states import types_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PathInPlan = tuple[int, ...]
_TRIES = 8
_CHOOSING = frozenset(
    {
        "CollectLimitExec",
        "CollectTailExec",
        "GlobalLimitExec",
        "LocalLimitExec",
        "TakeOrderedAndProjectExec",
        "WindowExec",
        "WindowGroupLimitExec",
        "WindowInPandasExec",
        "ArrowWindowPythonExec",
    }
)
"""Which rows they give depends on the order in which rows come, where nothing else decides: limits, ranks of ties."""


@dataclass(eq=False)
class Planned:
    """An adaptive plan that has not run, or runs."""

    spark: SparkSession
    """A session of the query's own."""
    pristine: SparkSession
    """The same before the program has run in it: to plan it again, for it may make views that may not be there."""
    program: Program
    frame: DataFrame
    adaptive: Any
    scans: Mapping[str, Pipeline] = field(default_factory=dict)
    caches: list[DataFrame] = field(default_factory=list)
    """Cached on the query's behalf; let go when it is done."""
    whole: PlanReader | None = None
    """What has read the plan without state, of one with state."""

    @cached_property
    def reader(self) -> PlanReader:
        return PlanReader(self.spark, self.scans, self.whole.functions if self.whole is not None else None)

    @cached_property
    def root(self) -> Operator:
        return self.reader.read(self.adaptive.initialPlan() if self.is_adaptive else self.adaptive)

    @cached_property
    def depends(self) -> dict[Pipeline | None, set[Pipeline]]:
        return dependencies(self.root)

    @cached_property
    def _stages(self) -> Stages:
        return Stages(self.reader, self.adaptive, self.root)

    @cached_property
    def told(self) -> dict[Pipeline, Any]:
        """What was said of pipelines that are finished: it does not change, and Spark is slow to look it up."""
        return {}

    @cached_property
    def awaited(self) -> dict[Pipeline, Any]:
        """What was said of pipelines that are not."""
        return {}

    @cached_property
    def is_adaptive(self) -> bool:
        """Some plans of one pipeline are not worth adapting; they have no stages."""
        return str(self.adaptive.getClass().getSimpleName()) == "AdaptiveSparkPlanExec"

    @property
    def analyzed(self) -> Any:
        return self.frame._jdf.queryExecution().analyzed()

    def stages(self) -> list[SparkStage]:
        """The stages made so far, each after those it reads."""
        if not self.is_adaptive:
            return []
        found = self._stages.so_far()
        return [found[pipeline] for pipeline in in_order(self.depends) if pipeline in found]

    @cached_property
    def breakers(self) -> dict[Pipeline, Operator]:
        """The first exchange that ends each pipeline of the plan."""
        found: dict[Pipeline, Operator] = {}
        for each in self.root.walk():
            if each.is_breaker:
                found.setdefault(each.pipeline, each)
        return found

    @cached_property
    def choosing(self) -> set[Pipeline]:
        """The pipelines that might have other rows if they were run again: there is a choice among rows below them."""
        return {p for p, each in self.breakers.items() if any(below.name in _CHOOSING for below in each.walk())}

    def cached_at(self) -> list[PathInPlan]:
        """Where the query reads cached rows, as paths into its logical plan."""
        execution: Any = self.frame._jdf.queryExecution()
        return _caches(execution.normalized(), execution.withCachedData(), ())

    def with_state(
        self, state: Mapping[Pipeline, Callable[[], Any]], types: Mapping[Pipeline, Sequence[str]]
    ) -> Planned:
        """The same query that takes ``state`` instead of doing its work again; every state must find its place."""
        places = placements(self.root, state)
        missing = state.keys() - {place.pipeline for place in places}
        if missing or any(tuple(types[p.pipeline]) != types_of(p.operator.node) for p in places):
            raise plan_differs(f"{len(missing) or 'a'} of {len(state)} states have no place in the plan made here")
        if not state:
            return self
        adaptive, scans = with_state(self.spark, self.adaptive, self.root, state)
        return replace(self, adaptive=adaptive, scans=scans, whole=self.reader)

    def answer(self, rdd: Any) -> DataFrame:
        """The rows of the executed plan as a DataFrame."""
        from pyspark.sql import DataFrame

        schema = self.frame._jdf.schema()
        return DataFrame(self.spark._jsparkSession.internalCreateDataFrame(rdd, schema, False), self.spark)

    def release(self) -> None:
        for frame in self.caches:
            frame.unpersist()
        self.caches.clear()


def plan(
    program: Program, pristine: SparkSession, cached_at: Sequence[PathInPlan] = (), *, fresh: bool = False
) -> Planned:
    """Plan a program in a copy of ``pristine``; nothing of it runs. ``cached_at``: what the first session had cached.

    ``fresh`` has the files listed anew that views of the session may have listed long ago.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

    session = copy_of(pristine)
    frame = frame_of(program, session)
    caches: list[DataFrame] = []
    try:
        execution: Any = frame._jdf.queryExecution()
        if fresh:
            list_anew(execution.analyzed())
        if cached_at:
            jvm: Any = session._jvm
            of_rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows
            there = set(_caches(execution.normalized(), execution.withCachedData(), ()))
            for path in cached_at:
                if path not in there:
                    part = execution.normalized()
                    for step in path:
                        part = part.children().apply(step)
                    caches.append(DataFrame(of_rows(session._jsparkSession, part), session).persist())
            frame = DataFrame(of_rows(session._jsparkSession, execution.analyzed()), session)
            execution = frame._jdf.queryExecution()
        adaptive = execution.executedPlan()
    except BaseException as error:
        for cached in caches:
            cached.unpersist()
        if isinstance(error, PySparkException):
            raise from_spark(error) from None
        raise
    return Planned(session, pristine, program, frame, adaptive, caches=caches)


def plan_as(identity: str, make: Callable[[], Planned]) -> Planned:
    """The query planned as it was. Spark orders some things by the ids it gives to columns: it may take some tries."""
    planned = make()
    for _ in range(_TRIES - 1):
        if planned.root.identity == identity:
            break
        planned.release()
        planned = make()
    return planned


def plan_differs(why: str) -> StoreError:
    return StoreError(
        "PLAN_DIFFERS",
        f"the query is planned differently here: {why}",
        hint='temporary views must be as they were; on_mismatch="restart" runs the query from the beginning',
    )


def _caches(before: Any, after: Any, path: PathInPlan) -> list[PathInPlan]:
    """Where two logical plans part because one reads a cache."""
    if str(after.getClass().getSimpleName()) == "InMemoryRelation":
        same = str(before.getClass().getSimpleName()) == "InMemoryRelation"
        return [] if same else [path]
    below, cached = list(each_of(before.children())), list(each_of(after.children()))
    if len(below) != len(cached):
        return []
    return [
        found
        for i, (left, right) in enumerate(zip(below, cached, strict=True))
        for found in _caches(left, right, (*path, i))
    ]
