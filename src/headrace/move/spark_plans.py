"""Spark's physical plans as trees of :mod:`headrace.move.plan`, and back.

This is the only module that takes Spark's plans apart, through the JVM handle of a classic session. It reads the
*initial* plan of adaptive execution: the one that comes out the same for the same query in another session.

An operator's identity is a hash of what it does and of its inputs' identities. Columns count by their position in the
inputs, so that the ids a session gives them do not matter. Left out is what changes no rows: how a join is run and on
which side it builds, hash or sort aggregation, exchanges, sorts, the number of partitions. So work that adaptive
execution has planned anew while the query ran is still found again. The order of its input does count for whatever
stands above a sort, for it may be read there (``first``, OFFSET, a Python function): all but joins, and but for the
sort an operator needs to run at all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.move.java_aid import java_aid
from headrace.move.plan import Holding, Operator, Pipeline, Placement, modified

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PASSING = frozenset(
    {
        "AdaptiveSparkPlanExec",
        "AQEShuffleReadExec",
        "ColumnarToRowExec",
        "InputAdapter",
        "RowToColumnarExec",
        "SortExec",
        "SubqueryAdaptiveBroadcastExec",
        "SubqueryBroadcastExec",
        "SubqueryExec",
        "WholeStageCodegenExec",
    }
)
"""Operators that pass the rows of their only input on. A sort does too: state goes in below it, and is sorted again."""
_PRUNING = frozenset({"SubqueryAdaptiveBroadcastExec", "SubqueryBroadcastExec"})
_AGGREGATES = frozenset({"HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec"})
_EQUI_JOINS = frozenset({"BroadcastHashJoinExec", "ShuffledHashJoinExec", "SortMergeJoinExec"})
_PRODUCTS = frozenset({"BroadcastNestedLoopJoinExec", "CartesianProductExec"})
_NUMBERED = re.compile(r"SPARK_GEN_SUBQ_\d+")
"""The name Spark gives to a query that is read by JDBC: it counts them in each session."""
STATE_SCAN = "headrace state "


@dataclass(eq=False)
class PlanReader:
    """Reads plans of one session."""

    spark: SparkSession
    states: Mapping[str, Pipeline] = field(default_factory=dict)
    """What the state scans that were put into a plan hold, by their names."""
    functions: Any = None
    """The numbers of the Python functions met so far, in Java. A plan with state in it lacks those below: it is read
    with the numbers of the whole one."""
    _once: dict[int, Operator] = field(default_factory=dict)
    """Subqueries and stages stand in one another and do not change: each is read once."""

    def __post_init__(self) -> None:
        self.aid = java_aid(self.spark)
        self._objects = self.aid.objects()
        if self.functions is None:
            self.functions = self.aid.numbers()

    def number(self, node: Any) -> int:
        """A number for this very node: a gateway has no other way to tell whether it has met it before."""
        return int(self.aid.number(self._objects, node))

    def java_class(self, name: str) -> Any:
        jvm: Any = self.spark._jvm
        return jvm.java.lang.Class.forName(name)

    def read(self, node: Any) -> Operator:
        """The tree of a physical plan."""
        kind = str(node.getClass().getSimpleName())
        if kind == "AdaptiveSparkPlanExec" or kind.endswith("QueryStageExec"):
            key = self.number(node)
            if key not in self._once:
                below = self.read(node.plan() if kind.endswith("QueryStageExec") else node.initialPlan())
                self._once[key] = _passing(below, kind, node)
            return self._once[key]
        if kind.startswith("Reused"):
            return _passing(self.read(node.child()), kind, node)
        if kind == "RDDScanExec" and str(node.name()) in self.states:
            held = self.states[str(node.name())]
            return Operator(held.identity, kind, (), held.holding, held.index, node=node)
        inputs = tuple(self.read(each) for each in each_of(node.children()))
        asked = tuple(self.read(each) for each in each_of(node.subqueries()))
        named = " ".join(each.identity for each in asked)

        def text(part: Any) -> str:
            return str(self.aid.describe(node, part, named, self.functions))

        if kind in ("ShuffleExchangeExec", "BroadcastExchangeExec"):
            holding, index = Holding.ROWS, ""
            if kind == "BroadcastExchangeExec" and "Identity" not in str(node.mode().getClass().getSimpleName()):
                holding, index = Holding.INDEX, text(node.mode())
            return Operator(inputs[0].identity, kind, inputs, holding, index, node=node, order=inputs[0].order)
        if kind in _PRUNING:
            identity = _hash("pruning", text(node.buildKeys()) + str(node.indices()), inputs[0].identity)
            return Operator(identity, kind, inputs, transparent=True, prunes=True, node=node)
        if kind == "SortExec":
            return _passing(inputs[0], kind, node, (text(node.sortOrder()), *inputs[0].order))
        if kind in _PASSING:
            return _passing(inputs[0], kind, node)
        orders = () if kind in _EQUI_JOINS | _PRODUCTS else tuple(self._orders(node, inputs))
        identities = [each.identity for each in inputs] + sorted(each.identity for each in asked)
        return Operator(_hash(self._what(node, kind, text), *identities, *orders), kind, (*inputs, *asked), node=node)

    def _orders(self, node: Any, inputs: tuple[Operator, ...]) -> Iterator[str]:
        """The sorts that the rows of each input went through, without one the operator needs to run at all."""
        for number, below in enumerate(inputs):
            order = below.order
            if order:
                while below.transparent and below.name != "SortExec":
                    below = below.inputs[0]
                needed = node.requiredChildOrdering().apply(number)
                if below.name == "SortExec" and self.aid.same(needed, below.node.sortOrder()):
                    order = order[1:]
            yield from (f"{number}:{text}" for text in order)

    def _what(self, node: Any, kind: str, text: Callable[[Any], str]) -> str:
        """What an operator does, without what changes no rows. ``text`` tells a part of it."""

        def parts(name: str, *found: Any) -> str:
            return name + ";".join(map(text, found))

        if kind in _EQUI_JOINS:
            null_aware = kind == "BroadcastHashJoinExec" and node.isNullAwareAntiJoin()
            return parts(f"Join{null_aware}", node.joinType(), node.leftKeys(), node.rightKeys(), node.condition())
        if kind in _PRODUCTS:
            joined = node.joinType() if kind == "BroadcastNestedLoopJoinExec" else "Inner()"
            return parts("Product", node.condition()) + (joined if isinstance(joined, str) else str(joined))
        if kind in _AGGREGATES:
            return parts("Aggregate", node.groupingExpressions(), node.aggregateExpressions(), node.resultExpressions())
        if kind == "RangeExec":
            return f"Range({node.start()},{node.end()},{node.step()})"
        if kind == "LocalTableScanExec":
            return parts("Local", node.output(), node.rows())
        if kind == "InMemoryTableScanExec":
            cached = self.read(node.relation().cachedPlan())
            return parts("Cached", node.attributes(), node.predicates()) + _hash(cached.identity, *cached.order)
        if kind == "RowDataSourceScanExec":
            what = parts(str(node.nodeName()), node.output()) + str(node.metadata().toString())
            if str(node.relation().getClass().getSimpleName()) == "JDBCRelation":
                what = _NUMBERED.sub("query", what) + str(node.relation().jdbcOptions().url())
            return what
        return text(node)


def _passing(below: Operator, kind: str, node: Any, order: tuple[str, ...] | None = None) -> Operator:
    """An operator that passes the rows of its input on, perhaps in another order."""
    order = below.order if order is None else order
    return Operator(below.identity, kind, (below,), transparent=True, node=node, order=order)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def each_of(items: Any) -> Iterator[Any]:
    """The elements of a Scala sequence."""
    for i in range(items.size()):
        yield items.apply(i)


@dataclass(frozen=True, slots=True)
class SparkStage:
    """A query stage of adaptive execution that holds, or will hold, the rows of a pipeline."""

    pipeline: Pipeline
    node: Any

    @property
    def finished(self) -> bool:
        return bool(self.node.isMaterialized())


class Stages:
    """The stages that are made for a query while it runs, by the pipelines of the initial plan they stand for.

    Adaptive execution remembers each stage under the canonical form of its exchange: where the initial plan has that
    very exchange, the stage is the pipeline's. A stage of a plan that was made anew is found by identity. One whose
    pipeline the initial plan does not have is left out; those below it are not. To compare plans takes Spark a while,
    and who asks may ask often: it is done once for each stage.
    """

    def __init__(self, reader: PlanReader, adaptive: Any, root: Operator) -> None:
        self._reader = reader
        self._made = adaptive.context().stageCache()
        exchanges = [operator for operator in root.walk() if operator.is_breaker and operator.inputs]
        self._by_form: dict[int, list[Operator]] = {}
        for operator in exchanges:
            self._by_form.setdefault(int(operator.node.canonicalized().hashCode()), []).append(operator)
        self._by_identity = {o.identity: o.pipeline for o in exchanges if o.holding is Holding.ROWS}
        self._pipelines = {operator.pipeline for operator in exchanges}
        self._found: dict[int, SparkStage | None] = {}

    def so_far(self) -> dict[Pipeline, SparkStage]:
        found: dict[Pipeline, SparkStage] = {}
        for entry in each_of(self._made.toList()):
            node = entry._2()
            key = self._reader.number(node)
            if key not in self._found:
                pipeline = self._pipeline(entry._1(), node)
                self._found[key] = SparkStage(pipeline, node) if pipeline in self._pipelines else None
            stage = self._found[key]
            if stage is not None and (stage.pipeline not in found or stage.finished):
                found[stage.pipeline] = stage
        return found

    def _pipeline(self, canonical: Any, node: Any) -> Pipeline:
        for operator in self._by_form.get(int(canonical.hashCode()), ()):
            if self._reader.aid.same(canonical, operator.node.canonicalized()):
                return operator.pipeline
        held = self._reader.read(node)
        while held.transparent:
            held = held.inputs[0]
        if held.pipeline not in self._pipelines and held.holding is Holding.ROWS:
            return self._by_identity.get(held.identity, held.pipeline)
        return held.pipeline


def with_state(
    spark: SparkSession, adaptive: Any, root: Operator, state: Mapping[Pipeline, Callable[[], Any]]
) -> tuple[Any, dict[str, Pipeline]]:
    """The adaptive plan with ``state`` in place of the work it holds, and what its state scans hold, by name.

    A state is given as a function to the RDD of its rows, called once at most. Plans of subqueries live inside
    expressions, and in the rule that plans them anew while the query runs: both are changed.
    """
    jvm: Any = spark._jvm
    swap = java_aid(spark).swap()
    rdds: dict[Pipeline, Any] = {}
    names: dict[str, Pipeline] = {}
    done: dict[int, Operator] = {}

    def sequence(nodes: list[Any]) -> Any:
        return jvm.PythonUtils.toSeq(nodes)

    def scan(place: Placement) -> Operator:
        if place.pipeline not in rdds:
            rdds[place.pipeline] = state[place.pipeline]()
        old = place.operator.node
        name = f"{STATE_SCAN}{list(state).index(place.pipeline)}"
        names[name] = place.pipeline
        new = jvm.org.apache.spark.sql.execution.RDDScanExec(
            old.output(),
            rdds[place.pipeline],
            name,
            jvm.org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning(0),
            sequence([]),
            jvm.scala.Option.empty(),
        )
        link = old.logicalLink()
        if link.isDefined():
            new.setLogicalLink(link.get())
        return Operator(place.operator.identity, "RDDScanExec", node=new)

    def remake(operator: Operator, inputs: tuple[Operator, ...]) -> Operator:
        if operator.name == "AdaptiveSparkPlanExec":
            if id(operator) not in done:
                made = adaptive_plan(operator.node, inputs[0].node)
                swap.put(operator.node, made)
                done[id(operator)] = Operator(operator.identity, operator.name, inputs, transparent=True, node=made)
            return done[id(operator)]
        node = operator.node
        count = node.children().size()
        if any(new is not old for new, old in zip(inputs[:count], operator.inputs[:count], strict=True)):
            node = node.withNewChildren(sequence([each.node for each in inputs[:count]]))
        if any(new is not old for new, old in zip(inputs[count:], operator.inputs[count:], strict=True)):
            node = node.transformExpressions(swap)
        return Operator(
            operator.identity,
            operator.name,
            inputs,
            operator.holding,
            operator.index,
            operator.transparent,
            operator.prunes,
            node,
        )

    def adaptive_plan(old: Any, plan: Any) -> Any:
        return jvm.org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec(
            plan, old.context(), swap.rules(old.preprocessingRules()), old.isSubquery(), old.supportsColumnar()
        )

    with _active(spark):
        changed = modified(root, state, scan, remake)
        return adaptive_plan(adaptive, changed.node), names


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Operators belong to the session that is active in the thread that makes them."""
    jvm: Any = spark._jvm
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
