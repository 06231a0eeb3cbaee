"""``headrace.views``: what views keep, and where their work is done."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from headrace.base.wording import span_text
from headrace.catalog import View
from headrace.engine.places import Choice, Place, choose
from headrace.engine.plan_sql import quote_native
from headrace.inside.listing import Line, listing
from headrace.keep.answers import Evaluated
from headrace.keep.kept import KeptState
from headrace.store import Snapshot
from headrace.table import query
from headrace.types import BIGINT, DOUBLE, STRING, TIMESTAMP, Field
from headrace.view.continuous import ContinuousView
from headrace.view.sharing import InsertPipeline


@listing(
    View,
    (
        Field("name", STRING),
        Field("kind", STRING),
        Field("reads", STRING),
        Field("created_epoch", BIGINT),
        Field("since_epoch", BIGINT),
        Field("states", STRING),
        Field("state_rows", BIGINT),
        Field("queue_rows", BIGINT),
        Field("state_bytes", BIGINT),
        Field("last_change_epoch", BIGINT),
        Field("last_refresh_epoch", BIGINT),
        Field("last_refresh", TIMESTAMP),
        Field("last_refresh_seconds", DOUBLE),
        Field("last_refresh_rows", BIGINT),
        Field("insert_place", STRING),
        Field("insert_reason", STRING),
        Field("query_place", STRING),
        Field("query_reason", STRING),
        Field("retain", STRING),
        Field("late_rows", BIGINT),
    ),
    shown=("name", "kind", "reads", "state_rows"),
)
class ViewLine(Line):
    """A view; one that is computed when it is queried keeps nothing."""

    relation: View

    @property
    def kind(self) -> str:
        return self.relation.called.removesuffix("view").strip() or "ordinary"

    @cached_property
    def _view(self) -> ContinuousView | None:
        found: ContinuousView | None = self.kept
        return found

    # What it keeps

    @property
    def since_epoch(self) -> int | None:
        return self.asked.snapshot.created(self._view.states[0].ref) if self._view else None

    @property
    def states(self) -> str | None:
        return ", ".join(s.name for s in self._view.states) if self._view else None

    @cached_property
    def _sizes(self) -> list[tuple[int, int, int]]:
        view = self._view
        return [size_of(self.asked.snapshot, state) for state in view.states] if view else []

    @property
    def queue_rows(self) -> int | None:
        return sum(queued for _, queued, _ in self._sizes) if self._view else None

    @property
    def state_bytes(self) -> int | None:
        return sum(size for _, _, size in self._sizes) if self._view else None

    # Its last answer

    @cached_property
    def _last(self) -> Evaluated | None:
        return self.asked.keeper.answers.last(self.name) if self._view else None

    @property
    def last_refresh_epoch(self) -> int | None:
        return self._last.epoch if self._last else None

    @property
    def last_refresh(self) -> Any:
        return self._last.at if self._last else None

    @property
    def last_refresh_seconds(self) -> float | None:
        return self._last.seconds if self._last else None

    @property
    def last_refresh_rows(self) -> int | None:
        return self._last.rows.num_rows if self._last else None

    # Where its work is done

    @cached_property
    def _inserts(self) -> Sequence[Choice]:
        return [self._choice(p) for ps in self._view.pipelines.values() for p in ps] if self._view else []

    def _choice(self, pipeline: InsertPipeline) -> Choice:
        """Where the last insert ran the pipeline; before the first, where a small one would."""
        ran = self.asked.keeper.ran
        if pipeline.state in ran:
            return ran[pipeline.state]
        settings = self.asked.runtime.settings
        engine = settings.engine if pipeline.reason is None or settings.engine == "spark" else "auto"
        return choose(pipeline.reason, 0, task_bytes=settings.task_bytes, engine=engine)

    @property
    def insert_place(self) -> str | None:
        return ", ".join(dict.fromkeys(c.place.value for c in self._inserts)) if self._view else None

    @property
    def insert_reason(self) -> str | None:
        return ", ".join(dict.fromkeys(c.reason for c in self._inserts)) if self._view else None

    @cached_property
    def _queries(self) -> Choice | None:
        return query.place_of(self.asked.runtime, self._view.plan.upper) if self._view else None

    @property
    def query_place(self) -> str | None:
        return self._queries.place.value if self._queries else None

    @property
    def query_reason(self) -> str | None:
        if self._queries is None:
            return None
        return "all of it has a native form" if self._queries.place is Place.NATIVE else self._queries.reason

    # What it lets go

    @property
    def retain(self) -> str | None:
        view = self._view
        return span_text(view.plan.retain) if view is not None and view.plan.retain is not None else None

    @property
    def late_rows(self) -> int | None:
        return None if self.retain is None else self.asked.counts.get(str(self.relation.number), 0)


def size_of(snapshot: Snapshot, kept: KeptState) -> tuple[int, int, int]:
    """A state's rows, those of them that came after its last merge, and the bytes of all values."""
    assert kept.folds is not None
    columns = kept.folds.schema
    lengths = {"string": "strlen({})", "binary": "octet_length({})"}
    lengths |= dict.fromkeys(("array", "struct", "map"), "strlen(CAST({} AS VARCHAR))")
    texts = [lengths[f.type.name].format(quote_native(f.name)) for f in columns if f.type.name in lengths]
    sized = " + ".join([f"count(*) * {sum(map(_width, columns))}", *(f"coalesce(sum({t}), 0)" for t in texts)])
    merged, queued = kept.home.queued(snapshot, kept.ref) or (0, 0)
    source, tables = kept.home.native(snapshot, kept, "__appended")
    (found,) = snapshot.query(f"SELECT ({sized})::BIGINT AS bytes FROM {source}", **tables).column("bytes").to_pylist()
    return merged + queued, queued, found


def _width(field: Field) -> int:
    varies = field.type.name in ("string", "binary") or field.type.is_nested
    return 0 if varies else max(1, field.type.arrow.bit_width // 8)
