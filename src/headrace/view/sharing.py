"""Many views on one stream, one pass over each batch (000 Fig. 4.15).

Pipelines that group a stream by the same keys, after the same joins with static
build sides, run as one grouping. Filters that all of them have are applied once;
which of the others a row passes is a mask, and the mask is one more key: a state
takes the rows whose mask has its bit, as partial rows like any others. Aggregates
that several views ask for are computed once. Where the joins are the same and the
keys are not, the rows are joined once, and every grouping reads those.

Build sides are the same if they are one file, and files of the same rows are
(``view/making.py``). A build side always is the right side of a join, so each row of
the stream goes through the joins by itself, and a filter on it may stand before or after.

Small batches of plain groupings take another way: compiled loops (``engine/grouping.py``), for which one
text computes the filters and expressions of all (:func:`group`).

Only pipelines of filters, projections and such joins are shared, and only where
nothing below the aggregates can raise: a row that one view filters out must not fail
in another's expression. If the shared query fails all the same, every pipeline runs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.base.parquet_files import spark_frame
from headrace.base.utf8 import HINT, INVALID
from headrace.catalog import Stream
from headrace.engine.columns import is_key, is_partial
from headrace.engine.grouping import AskedAggregate, Grouped, Member
from headrace.engine.native_functions import can_raise
from headrace.engine.pipelines import JOINED, MASK, NativePipeline, Pipelines, Shared, StateShare
from headrace.engine.plan_sql import native_plan, quote_native
from headrace.engine.spark import run_plan
from headrace.engine.stage import SparkSite, Stage, StateRows
from headrace.engine.work import BATCH, Fragment, Static
from headrace.errors import DataError, ExecutionError
from headrace.plan.exprs import (
    TRUE,
    Agg,
    Call,
    Case,
    Cast,
    Column,
    Expr,
    Literal,
    all_of,
    any_of,
    columns,
    conjuncts,
    substitute,
)
from headrace.plan.moments import MOMENTS
from headrace.plan.nodes import Aggregate, Filter, Join, JoinKind, Leaf, Node, Project, is_leaf, leaves
from headrace.plan.refs import BuildRef, GivenRef, Ref, StreamRef
from headrace.types import BIGINT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BITS = 62
"""Views that share a mask: a bigint has room for so many."""


@dataclass(frozen=True)
class _Probe:
    """A join of the rows before it with a build side. Equal ones are the same join."""

    kind: JoinKind
    build: str
    fields: tuple[str, ...]
    columns: tuple[Column, ...]
    condition: Expr


@dataclass(frozen=True)
class _Rows:
    """What lies below a grouping: the joins, the filters, and its columns, in the joins' own columns."""

    probes: tuple[_Probe, ...]
    filters: tuple[Expr, ...]
    columns: Mapping[int, Expr]


@dataclass(frozen=True)
class _Grouping:
    """A pipeline as one grouping over the stream and what it is joined with."""

    native: NativePipeline
    probes: tuple[_Probe, ...]
    keys: tuple[Expr, ...]
    aggs: tuple[Agg, ...]
    filters: tuple[Expr, ...]


class _Columns:
    """One column for a field, whichever pipeline reads it: then equal expressions are equal values."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[_Probe, ...], str, str], Column] = {}

    def of(self, scan: Leaf, probes: tuple[_Probe, ...] = (), build: str = "") -> tuple[Column, ...]:
        """The columns of the stream's scan, or of a build side's that comes after these joins."""
        return tuple(
            self._known.setdefault((probes, build, field), Column.fresh(field, column.type))
            for field, column in zip(scan.fields, scan.scanned, strict=True)
        )


@dataclass(frozen=True, eq=False)
class InsertPipeline(Stage):
    """One stream pipeline of a view: its plan for Spark SQL, and its native form or why it has none."""

    state: int
    plan: Node
    columns: tuple[str, ...]
    builds: Mapping[str, Static]
    """The build sides it probes, by their names in the plan."""
    native: NativePipeline | None
    reason: str | None
    whose: str
    """What keeps its rows, for people."""

    @property
    def together(self) -> Callable[[Stream, Sequence[Any], str], Fragment]:
        return shared

    def fragment(self) -> Fragment:
        assert self.native is not None
        return Pipelines((self.native,), self.columns, tuple(self.builds.values()))

    def by_spark(self, site: SparkSite, frame: DataFrame) -> StateRows:
        frames: dict[Ref, DataFrame] = {}
        for leaf in leaves(self.plan):
            if isinstance(leaf.ref, StreamRef):
                frames[leaf.ref] = frame
            else:
                build = self.builds[leaf.relation]
                frames[leaf.ref] = spark_frame(site.spark, site.written(build))
        try:
            return {self.state: [run_plan(site.spark, self.plan, frames, primitive=True)]}
        except ExecutionError as error:
            if error.condition != INVALID:
                raise
            told = f"the text that {self.whose} would keep of these rows is not UTF-8"
            raise DataError(INVALID, told, hint=HINT) from None


def shared(stream: Stream, pipelines: Sequence[InsertPipeline], zone: str) -> Pipelines:
    """These native pipelines of the stream, what they share, and what compiled loops can do of a small batch."""
    shared = share(stream, pipelines, zone)
    plain = {m.state for grouped in group(stream, pipelines, zone) for m in grouped.members}
    # A text that must run for one of its states may as well fill them all.
    mixed = {p.state for s in shared if any(q.state not in plain for q in s.parts) for p in s.parts}
    builds = {build.name: build for p in pipelines for build in p.builds.values()}
    return Pipelines(
        tuple(p.native for p in pipelines if p.native is not None),
        tuple(dict.fromkeys(c for p in pipelines for c in p.columns)),
        tuple(builds.values()),
        shared,
        group(stream, [p for p in pipelines if p.state not in mixed], zone),
    )


def group(stream: Stream, pipelines: Sequence[InsertPipeline], zone: str) -> tuple[Grouped, ...]:
    """The groupings compiled loops can do: over the stream's own columns, or, for several, over columns of one text.

    A filter that fails for some row fails the insert, whichever text has it: then each pipeline's own text says so.
    """
    known = _Columns()
    own = known.of(whole := Leaf.of(StreamRef(stream.name), stream.columns))
    scan = replace(whole, scanned=own)
    by_keys: dict[tuple[Expr, ...], list[_Grouping]] = {}
    for pipeline in pipelines:
        grouping = _grouping(pipeline, known)
        if grouping is not None and _is_plain(grouping):
            by_keys.setdefault(grouping.keys, []).append(grouping)
    members = [m for several in by_keys.values() for m in several]
    passed = {m.native.state: all_of(list(m.filters)) for m in members}
    read = [e for m in members for e in (*m.keys, passed[m.native.state], *(a for agg in m.aggs for a in _given(agg)))]
    computed = [e for e in dict.fromkeys(read) if not isinstance(e, Literal | Column)]
    over = None
    names: dict[Expr, str] = dict(zip(own, (f.name for f in stream.columns), strict=True))
    if computed:
        if len(members) < 2 and not any(a.fn in MOMENTS for m in members for a in m.aggs):
            return ()  # its own text does as much in one go (that of a variance reads the rows twice)
        free = "_" * max(len(f.name) for f in stream.columns)  # with a number behind it, longer than any of theirs
        made = [(Column.fresh(f"{free}{i}", e.type), e) for i, e in enumerate(computed)]
        over = native_plan(Project(_narrowed(scan, computed), tuple(made)), _source, zone=zone)
        names.update((e, c.name) for c, e in made)

    def member(m: _Grouping) -> Member:
        aggs = tuple(AskedAggregate(a.fn, names.get(_given(a)[0]) if a.args else None, a.type) for a in m.aggs)
        return Member(m.native.state, names.get(passed[m.native.state]), aggs, m.native.schema)

    return tuple(
        Grouped(over, tuple((names[k], k.type) for k in keys), tuple(map(member, several)))
        for keys, several in by_keys.items()
    )


def _is_plain(grouping: _Grouping) -> bool:
    """Whether compiled loops give the very rows its text does."""
    if isinstance(passed := all_of(list(grouping.filters)), Literal) and passed != TRUE:
        return False
    # Which of two zeros, or which NaN, stands for a group is the engine's choice; a literal is no column.
    keys = all(is_key(k.type) and not k.type.is_float and not isinstance(k, Literal) for k in grouping.keys)
    return keys and not grouping.probes and all(map(_is_plain_agg, grouping.aggs))


def _is_plain_agg(agg: Agg) -> bool:
    if agg.template is not None or agg.distinct or agg.filter is not None or any(can_raise(a) for a in agg.args):
        return False
    if agg.fn == "count" and all(isinstance(a, Literal) and a.value is not None for a in agg.args):
        return True
    if len(agg.args) != 1 or isinstance(agg.args[0], Literal):
        return False
    given = _given(agg)[0].type
    if agg.fn in MOMENTS:
        return given.is_integer or given.is_float
    if agg.fn == "sum":
        return given.is_integer or given.is_float or (given.is_decimal and given.scale == agg.type.scale)
    least = agg.fn in ("min", "max", "bool_and", "bool_or") and given == agg.type and is_partial(given, agg.fn)
    return agg.fn == "count" or least


def _given(agg: Agg) -> tuple[Expr, ...]:
    """What a loop reads for an aggregate: moments are of doubles, which it makes of plain numbers itself."""
    if (
        agg.fn in MOMENTS
        and isinstance(cast := agg.args[0], Cast)
        and (cast.arg.type.is_integer or cast.arg.type.is_float)
    ):
        return (cast.arg,)
    return agg.args


def share(stream: Stream, pipelines: Sequence[InsertPipeline], zone: str) -> tuple[Shared, ...]:
    """What two or more of the pipelines have in common: groupings, and joins below groupings that differ."""
    if len(pipelines) < 2:
        return ()
    known = _Columns()
    own = known.of(whole := Leaf.of(StreamRef(stream.name), stream.columns))
    scan = replace(whole, scanned=own)
    alike: dict[tuple[_Probe, ...], dict[tuple[Expr, ...], list[_Grouping]]] = {}
    for pipeline in pipelines:
        grouping = _grouping(pipeline, known)
        if grouping is not None and not any(map(can_raise, grouping.filters)):
            alike.setdefault(grouping.probes, {}).setdefault(grouping.keys, []).append(grouping)
    found: list[Shared] = []
    for probes, by_keys in alike.items():
        groups = [members[i : i + BITS] for members in by_keys.values() for i in range(0, len(members), BITS)]
        if probes and len(groups) > 1:
            found += _joined_once(scan, groups, zone)
        else:
            found += [_shared(scan, members, zone) for members in groups if len(members) > 1]
    return tuple(found)


def _joined_once(stream: Leaf, groups: Sequence[Sequence[_Grouping]], zone: str) -> list[Shared]:
    """Groupings by different keys, over rows that are joined once for all of them."""
    members = [m for group in groups for m in group]
    common = _in_all(members)
    others = [all_of([e for e in m.filters if e not in common]) for m in members]
    wanted = [*common, *([] if TRUE in others else [any_of(list(dict.fromkeys(others)))])]
    probes = members[0].probes
    read = {c for m in members for e in (*m.keys, *m.aggs, *m.filters) for c in columns(e)}
    joined = _joined(_narrowed(stream, [*read, *wanted, *(p.condition for p in probes)]), probes)
    kept = [c for c in joined.output if c in read] or list(joined.output[:1])
    names = tuple(f"j{i}" for i in range(len(kept)))
    rows = Filter(joined, all_of(wanted)) if wanted else joined
    plan = Project(rows, tuple((Column.fresh(n, c.type), c) for n, c in zip(names, kept, strict=True)))
    over = native_plan(plan, _source, zone=zone)
    done = Leaf(GivenRef(JOINED), names, tuple(kept))
    rest = [
        [replace(m, probes=(), filters=tuple(e for e in m.filters if e not in common)) for m in group]
        for group in groups
    ]
    return [replace(_shared(done, group, zone), over=over) for group in rest]


def _grouping(pipeline: InsertPipeline, known: _Columns) -> _Grouping | None:
    """The pipeline in columns it has in common with others, if it can be shared."""
    root = pipeline.plan
    if pipeline.native is None or not isinstance(root, Aggregate):
        return None
    rows = _rows(root.child, pipeline.builds, known)
    if rows is None:
        return None
    keys = tuple(substitute(e, rows.columns) for _, e in root.keys)
    aggs = tuple(_agg(substitute(a, rows.columns)) for _, a in root.aggs)
    if any(map(can_raise, keys)):
        return None
    return _Grouping(pipeline.native, rows.probes, keys, aggs, rows.filters)


def _rows(node: Node, builds: Mapping[str, Static], known: _Columns) -> _Rows | None:
    """The rows of a plan, if nothing but filters, projections and build sides lies over the stream."""
    if is_leaf(node, StreamRef):
        return _Rows((), (), {c.id: own for c, own in zip(node.scanned, known.of(node), strict=True)})
    if isinstance(node, Join):
        return _probed(node, builds, known)
    if not isinstance(node, Filter | Project):
        return None
    below = _rows(node.child, builds, known)
    if below is None:
        return None
    if isinstance(node, Filter):
        passed = (substitute(e, below.columns) for e in conjuncts(node.condition))
        return replace(below, filters=(*below.filters, *passed))
    return replace(below, columns={c.id: substitute(e, below.columns) for c, e in node.exprs})


def _probed(node: Join, builds: Mapping[str, Static], known: _Columns) -> _Rows | None:
    side = node.right
    below = _rows(node.left, builds, known)
    # What is computed before the join is computed for rows that find no partner, too.
    if below is None or any(can_raise(e) for e in below.columns.values()):
        return None
    if not is_leaf(side, BuildRef) or node.kind == "full":
        return None
    build = builds[side.relation].name
    own = known.of(side, below.probes, build)
    found = {c.id: mine for c, mine in zip(side.scanned, own, strict=True)}
    condition = substitute(node.condition, {**below.columns, **found})
    if can_raise(condition):
        return None
    probe = _Probe(node.kind, build, side.fields, own, all_of(sorted(map(_turned, conjuncts(condition)), key=repr)))
    beside = {} if node.kind in ("semi", "anti") else found
    return _Rows((*below.probes, probe), below.filters, {**below.columns, **beside})


def _turned(part: Expr) -> Expr:
    """An equality always the same way round."""
    if isinstance(part, Call) and part.fn == "=":
        return replace(part, args=tuple(sorted(part.args, key=repr)))
    return part


def _shared(stream: Leaf, members: Sequence[_Grouping], zone: str) -> Shared:
    probes = members[0].probes
    keys = tuple((Column.fresh(f"k{i}", e.type), e) for i, e in enumerate(members[0].keys))
    common = _in_all(members)
    own = [all_of([e for e in m.filters if e not in common]) for m in members]
    conditions = list(dict.fromkeys(e for e in own if e != TRUE))
    asked: dict[Agg, Column] = {}
    parts = []
    for member, condition in zip(members, own, strict=True):
        columns_of = []
        for agg in member.aggs:
            if condition != TRUE and any(can_raise(a) for a in agg.args):
                # Only rows of this view may be put to the test.
                agg = replace(agg, filter=all_of([condition, *([agg.filter] if agg.filter else [])]))
            columns_of.append(asked.setdefault(agg, Column.fresh(f"a{len(asked)}", agg.type)).name)
        bit = 0 if condition == TRUE else 1 << conditions.index(condition)
        parts.append(
            StateShare(member.native.state, (*(c.name for c, _ in keys), *columns_of), bit, member.native.schema)
        )
    if probes and TRUE not in own:
        # Nobody wants a row that passes none: spare it the joins.
        common.append(any_of(list(dict.fromkeys(conditions))))
    mask = ((Column.fresh(MASK, BIGINT), _mask(conditions)),) if conditions else ()
    exprs = [*(e for _, e in (*keys, *mask)), *asked, *common, *(p.condition for p in probes)]
    rows = _joined(_narrowed(stream, exprs), probes)
    if common:
        rows = Filter(rows, all_of(common))
    plan = Aggregate(rows, (*keys, *mask), tuple((c, a) for a, c in asked.items()))
    wide = native_plan(plan, _source, zone=zone)
    narrow = native_plan(plan, _source, zone=zone, narrow=True)
    return Shared(wide, narrow if narrow != wide else None, tuple(parts))


def _narrowed(scan: Leaf, exprs: Sequence[Expr]) -> Leaf:
    """The scan with those of its columns that the expressions read."""
    read = {c.id for e in exprs for c in columns(e)}
    wanted = [(f, c) for f, c in zip(scan.fields, scan.scanned, strict=True) if c.id in read]
    return replace(scan, fields=tuple(f for f, _ in wanted), scanned=tuple(c for _, c in wanted))


def _joined(rows: Node, probes: Sequence[_Probe]) -> Node:
    for probe in probes:
        rows = Join(probe.kind, rows, Leaf(BuildRef(probe.build), probe.fields, probe.columns), probe.condition)
    return rows


def _source(scan: Leaf) -> str:
    return BATCH if isinstance(scan.ref, StreamRef) else quote_native(scan.relation)


def _in_all(members: Sequence[_Grouping]) -> list[Expr]:
    """The filters that all have."""
    return [e for e in dict.fromkeys(members[0].filters) if all(e in m.filters for m in members)]


def _mask(conditions: Sequence[Expr]) -> Expr:
    """One bit for each condition that holds."""
    total: Expr = Literal(BIGINT, 0)
    for place, condition in enumerate(conditions):
        bit = Case(BIGINT, ((condition, Literal(BIGINT, 1 << place)),), Literal(BIGINT, 0))
        total = Call(BIGINT, "+", (total, bit))
    return total


def _agg(expr: Expr) -> Agg:
    assert isinstance(expr, Agg)
    return expr
