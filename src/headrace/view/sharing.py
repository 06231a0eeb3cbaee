"""Many views on one stream, one pass over each batch (000 Fig. 4.15).

Pipelines that group a stream by the same keys run as one grouping. Which views'
filters a row passes is a mask, and the mask is one more key: a state takes the
rows whose mask has its bit, as partial rows like any others. Aggregates that
several views ask for are computed once.

Only pipelines straight over the stream are shared, and only where filters and
keys cannot raise: a row that one view filters out must not fail in another's
expression. If the shared query fails all the same, every pipeline runs alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.catalog import Stream
from headrace.engine.native_functions import can_raise
from headrace.engine.plan_sql import native_plan
from headrace.engine.worker import BATCH, MASK, Part, Pipeline, Shared
from headrace.plan.exprs import TRUE, Agg, Call, Case, Column, Expr, Literal, all_of, columns, conjuncts, substitute
from headrace.plan.nodes import Aggregate, Filter, Project, Scan
from headrace.types import BIGINT
from headrace.view.compiled import InsertPipeline

BITS = 62
"""Views that share a mask: a bigint has room for so many."""


@dataclass(frozen=True)
class _Grouping:
    """A pipeline as one grouping over the stream's own columns."""

    native: Pipeline
    keys: tuple[Expr, ...]
    aggs: tuple[Agg, ...]
    condition: Expr


class Sharing:
    """What the pipelines of each stream share, worked out once for each set of them."""

    def __init__(self, zone: str) -> None:
        self._zone = zone
        self._known: dict[str, tuple[tuple[InsertPipeline, ...], tuple[Shared, ...]]] = {}

    def of(self, stream: Stream, pipelines: Sequence[InsertPipeline]) -> tuple[Shared, ...]:
        """What these pipelines of the stream share."""
        wanted = tuple(pipelines)
        known = self._known.get(stream.name)
        if known is None or known[0] != wanted:
            known = self._known[stream.name] = (wanted, share(stream, wanted, self._zone))
        return known[1]


def share(stream: Stream, pipelines: Sequence[InsertPipeline], zone: str) -> tuple[Shared, ...]:
    """The groupings that two or more of the pipelines have in common."""
    own = {f.name: Column.fresh(f.name, f.type) for f in stream.columns}
    by_keys: dict[tuple[Expr, ...], list[_Grouping]] = {}
    for pipeline in pipelines:
        grouping = _over_stream(pipeline, own)
        if grouping is not None:
            by_keys.setdefault(grouping.keys, []).append(grouping)
    groups = [members[i : i + BITS] for members in by_keys.values() for i in range(0, len(members), BITS)]
    return tuple(_shared(stream, own, members, zone) for members in groups if len(members) > 1)


def _over_stream(pipeline: InsertPipeline, own: Mapping[str, Column]) -> _Grouping | None:
    """The pipeline in the stream's columns, if nothing but filters and projections lies between."""
    root = pipeline.plan
    if pipeline.native is None or not isinstance(root, Aggregate):
        return None
    keys, aggs = [e for _, e in root.keys], [a for _, a in root.aggs]
    parts: list[Expr] = []
    node = root.child
    while isinstance(node, Filter | Project | Scan):
        if isinstance(node, Filter):
            parts = [*conjuncts(node.condition), *parts]
            node = node.child
            continue
        below: dict[int, Expr]
        if isinstance(node, Project):
            below = {c.id: e for c, e in node.exprs}
        else:
            below = {c.id: own[f] for f, c in zip(node.fields, node.scanned, strict=True)}
        keys = [substitute(e, below) for e in keys]
        aggs = [_agg(substitute(a, below)) for a in aggs]
        parts = [substitute(e, below) for e in parts]
        if isinstance(node, Scan):
            if any(can_raise(e) for e in (*keys, *parts)):
                return None
            return _Grouping(pipeline.native, tuple(keys), tuple(aggs), all_of(parts))
        node = node.child
    return None


def _shared(stream: Stream, own: Mapping[str, Column], members: Sequence[_Grouping], zone: str) -> Shared:
    keys = tuple((Column.fresh(f"k{i}", e.type), e) for i, e in enumerate(members[0].keys))
    conditions = list(dict.fromkeys(m.condition for m in members if m.condition != TRUE))
    asked: dict[Agg, Column] = {}
    parts = []
    for member in members:
        columns_of = []
        for agg in member.aggs:
            if member.condition != TRUE and any(can_raise(a) for a in agg.args):
                # Only rows of this view may be put to the test.
                agg = replace(agg, filter=all_of([member.condition, *([agg.filter] if agg.filter else [])]))
            columns_of.append(asked.setdefault(agg, Column.fresh(f"a{len(asked)}", agg.type)).name)
        bit = 0 if member.condition == TRUE else 1 << conditions.index(member.condition)
        parts.append(Part(member.native.state, (*(c.name for c, _ in keys), *columns_of), bit, member.native.schema))
    mask = ((Column.fresh(MASK, BIGINT), _mask(conditions)),) if conditions else ()
    read = {c.id for e in (*(e for _, e in (*keys, *mask)), *asked) for c in columns(e)}
    fields = tuple(name for name, c in own.items() if c.id in read)
    scan = Scan("stream", stream.name, fields, tuple(own[f] for f in fields))
    plan = Aggregate(scan, (*keys, *mask), tuple((c, a) for a, c in asked.items()))
    wide = native_plan(plan, lambda _: BATCH, zone=zone)
    narrow = native_plan(plan, lambda _: BATCH, zone=zone, narrow=True)
    return Shared(wide, narrow if narrow != wide else None, tuple(parts))


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
