"""Looking inside: what a database knows about itself, as relations of the schema ``headrace``.

``headrace.views``, ``headrace.streams``, ``headrace.epochs`` and others stand in any query beside tables and
views, and ``headrace.state('v')`` gives the merged state of a continuous view. All are read in the
query's own snapshot. They are for queries only: a view that read them would depend on when it ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from headrace import query
from headrace.catalog import Sample, Stream, View
from headrace.engine.places import Choice, Place, choose
from headrace.engine.plan_sql import quote_native
from headrace.errors import CatalogError, Position, SqlError
from headrace.loading import Loader
from headrace.plan.nodes import Scan
from headrace.plan.pipelines import State
from headrace.runtime import Runtime
from headrace.sample.kept import Samples
from headrace.sql.options import span_text
from headrace.store import Snapshot
from headrace.stream.intake import stream_count
from headrace.types import BIGINT, DOUBLE, INT, STRING, TIMESTAMP, Field, Schema, arrow_schema, ddl
from headrace.view.compiled import ContinuousView, InsertPipeline
from headrace.view.reading import Answers
from headrace.view.retention import late_count

VIEWS = (
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
)
STREAMS = (
    Field("name", STRING),
    Field("columns", INT),
    Field("schema", STRING),
    Field("read_by", STRING),
    Field("created_epoch", BIGINT),
    Field("rows", BIGINT),
    Field("rows_since_open", BIGINT),
    Field("rows_per_second", DOUBLE),
)
EPOCHS = (
    Field("epoch", BIGINT),
    Field("time", TIMESTAMP),
    Field("label", STRING),
    Field("relations", STRING),
    Field("rows", BIGINT),
    Field("late_rows", BIGINT),
)
SAMPLES = (
    Field("name", STRING),
    Field("of", STRING),
    Field("size", BIGINT),
    Field("grouped_by", STRING),
    Field("groups", BIGINT),
    Field("rows", BIGINT),
    Field("rows_seen", BIGINT),
    Field("bytes", BIGINT),
    Field("last_change_epoch", BIGINT),
    Field("insert_place", STRING),
)
FAILURES = (
    Field("time", TIMESTAMP),
    Field("doing", STRING),
    Field("error", STRING),
)
RELATIONS: Mapping[str, Schema] = {
    "views": VIEWS,
    "streams": STREAMS,
    "samples": SAMPLES,
    "epochs": EPOCHS,
    "failures": FAILURES,
}
"""The relations without arguments, and their columns; ``Inside.rows`` has the rows of each."""

_MINUTE = timedelta(minutes=1)


class Inside:
    """Resolves and reads the relations of the schema ``headrace``."""

    def __init__(
        self,
        runtime: Runtime,
        views: Mapping[str, ContinuousView],
        answers: Answers,
        loader: Loader,
        samples: Samples,
    ) -> None:
        self._samples = samples
        self._runtime = runtime
        self._views = views
        self._answers = answers
        self._loader = loader
        with runtime.store.read() as snapshot:
            self._opened = snapshot.epoch
            self._counted = snapshot.counts()

    # Names (the binder asks)

    def scan(self, name: str, args: Sequence[str] | None, position: Position | None) -> Scan:
        """The scan of ``headrace.name`` or, with arguments, of ``headrace.name(…)``."""
        key = name.lower()
        if args is None and key in RELATIONS:
            return Scan.of("system", key, RELATIONS[key])
        if args is not None and key == "state":
            return self._state_scan(args, position)
        near = get_close_matches(key, RELATIONS, n=1)
        raise CatalogError(
            "TABLE_OR_VIEW_NOT_FOUND",
            f"there is no relation headrace.{name}{'' if args is None else '(…)'}",
            position=position,
            hint=f"did you mean headrace.{near[0]}?"
            if near and args is None
            else f"there are {', '.join(f'headrace.{n}' for n in RELATIONS)} and headrace.state('view')",
        )

    def _state_scan(self, args: Sequence[str], position: Position | None) -> Scan:
        if len(args) not in (1, 2):
            raise SqlError(
                "WRONG_NUM_ARGS",
                f"headrace.state takes a view and, where it keeps several states, one of them; {len(args)} are given",
                position=position,
                hint="write headrace.state('view') or headrace.state('view', 's1')",
            )
        found: View = self._runtime.catalog.get(args[0], View, position=position)
        if not found.continuous:
            raise CatalogError(
                "VIEW_KEEPS_NOTHING",
                f"{found.name} is an ordinary view: it keeps no state",
                position=position,
                hint="headrace.views lists the views and the states they keep",
            )
        view = self._views[found.name.lower()]
        names = [s.name for s in view.plan.states]
        wanted = args[1].lower() if len(args) > 1 else names[0]
        if wanted not in names:
            raise CatalogError(
                "STATE_NOT_FOUND",
                f"{view.name} keeps no state {args[1]}",
                position=position,
                hint=f"it keeps {', '.join(names)}; DESCRIBE {view.name} says what each is",
            )
        state = view.plan.state(wanted)
        return Scan.of("system", view.relation(state), _by_label(state))

    # Rows (the query asks)

    def rows(self, snapshot: Snapshot, relation: str) -> pa.Table:
        """The rows of a relation :meth:`scan` named, as of the snapshot."""
        if relation == "epochs":
            return self._epochs(snapshot)
        if relation in RELATIONS:
            readers = {
                "views": self._view_rows,
                "streams": self._stream_rows,
                "samples": self._sample_rows,
                "failures": self._failure_rows,
            }
            found = readers[relation](snapshot)
            return pa.Table.from_pylist(found, schema=arrow_schema(RELATIONS[relation]))
        for view in list(self._views.values()):
            for state in view.plan.states:
                if view.relation(state) == relation:
                    source, batches = snapshot.whole(relation, "__appended")
                    rows = snapshot.query(view.merge_sql(state, source), __appended=batches)
                    return rows.cast(arrow_schema(state.schema)).rename_columns([f.name for f in _by_label(state)])
        raise CatalogError("TABLE_OR_VIEW_NOT_FOUND", f"there is no {relation} any more", hint="ask again")

    def _epochs(self, snapshot: Snapshot) -> pa.Table:
        relations = list(self._runtime.catalog.relations.items())
        names = pa.table({"key": [k for k, _ in relations], "name": [r.name for _, r in relations]})
        # The store's names say what a relation holds ("state v s0"); here it is whose it is that matters.
        return snapshot.query(
            """
            SELECT epoch, time, label, coalesce(string_agg(DISTINCT name, ', ' ORDER BY name), '') AS relations,
                (sum(rows) FILTER (NOT late))::BIGINT AS rows, (sum(rows) FILTER (late))::BIGINT AS late_rows
            FROM (
                SELECT log.*, coalesce(names.name, whose) AS name, what LIKE 'late %' AS late
                FROM (
                    SELECT *, CASE WHEN what <> ''
                        THEN regexp_replace(what, '^(state (.*) s[0-9]+|[a-z]+ (.*))$', '\\2\\3') END AS whose
                    FROM log
                ) AS log LEFT JOIN names ON whose = key
            )
            GROUP BY epoch, time, label ORDER BY epoch
            """,
            log=snapshot.log(),
            names=names.cast(pa.schema([("key", pa.string()), ("name", pa.string())])),
        ).cast(arrow_schema(EPOCHS))

    def _stream_rows(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        created = {d.name.lower(): d.epoch for d in snapshot.definitions()}
        counts = snapshot.counts()
        lately = snapshot.counts(since=datetime.now(UTC) - _MINUTE)
        found = []
        for stream in self._runtime.catalog.of_kind(Stream):
            key = stream_count(stream.name).lower()
            before = self._counted.get(key, 0) if created.get(stream.name.lower(), 0) <= self._opened else 0
            found.append(
                {
                    "name": stream.name,
                    "columns": len(stream.columns),
                    "schema": ddl(stream.columns),
                    "read_by": ", ".join(v.name for v in self._runtime.catalog.dependents(stream.name)),
                    "created_epoch": created.get(stream.name.lower()),
                    "rows": counts.get(key, 0),
                    "rows_since_open": counts.get(key, 0) - before,
                    "rows_per_second": lately.get(key, 0) / _MINUTE.total_seconds(),
                }
            )
        return found

    def _failure_rows(self, _: Snapshot) -> list[dict[str, Any]]:
        return [asdict(failure) for failure in self._runtime.tidying.failures]

    def _sample_rows(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        found = []
        for sample in self._runtime.catalog.of_kind(Sample):
            assert isinstance(sample, Sample)
            kept = self._samples.get(sample.name)
            rows, counts = self._samples.table(snapshot, sample.name), self._samples.counts(snapshot, kept)
            place = self._loader.ran.get(kept.rows)
            found.append(
                {
                    "name": sample.name,
                    "of": sample.of,
                    "size": sample.size,
                    "grouped_by": ", ".join(sample.keys),
                    "groups": counts.num_rows if sample.keys else None,
                    "rows": rows.num_rows,
                    "rows_seen": sum(counts.column("seen").to_pylist()),
                    "bytes": rows.select([c.name for c in sample.columns]).nbytes,
                    "last_change_epoch": snapshot.last_change(kept.rows),
                    "insert_place": place.place.value if place is not None else None,
                }
            )
        return found

    def _view_rows(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        created = {d.name.lower(): d.epoch for d in snapshot.definitions()}
        late = snapshot.counts()
        found = []
        for view in self._runtime.catalog.of_kind(View):
            assert isinstance(view, View)
            row: dict[str, Any] = {
                "name": view.name,
                "kind": "continuous" if view.continuous else "ordinary",
                "reads": ", ".join(view.reads),
                "created_epoch": created.get(view.name.lower()),
            }
            if view.continuous:
                row |= self._kept(snapshot, self._views[view.name.lower()], late)
            found.append(row)
        return found

    def _kept(self, snapshot: Snapshot, view: ContinuousView, counts: Mapping[str, int]) -> dict[str, Any]:
        """What a continuous view keeps, and where its work is done."""
        states = view.plan.states
        sizes = [size_of(snapshot, view, s) for s in states]
        last = self._answers.last(view.name)
        inserts = [self._place_of(p) for ps in view.pipelines.values() for p in ps]
        queries = query.place_of(self._runtime, view.plan.upper)
        row = {
            "since_epoch": snapshot.created(view.relation(states[0])),
            "states": ", ".join(s.name for s in states),
            "state_rows": sum(s[0] for s in sizes),
            "queue_rows": sum(s[1] for s in sizes),
            "state_bytes": sum(s[2] for s in sizes),
            "last_change_epoch": max(snapshot.last_change(view.relation(s)) for s in states),
            "insert_place": ", ".join(dict.fromkeys(c.place.value for c in inserts)),
            "insert_reason": ", ".join(dict.fromkeys(c.reason for c in inserts)),
            "query_place": queries.place.value,
            "query_reason": "all of it has a native form" if queries.place is Place.NATIVE else queries.reason,
        }
        if last is not None:
            row |= {
                "last_refresh_epoch": last.epoch,
                "last_refresh": last.at,
                "last_refresh_seconds": last.seconds,
                "last_refresh_rows": last.rows.num_rows,
            }
        if view.plan.retain is not None:
            row |= {
                "retain": span_text(view.plan.retain),
                "late_rows": counts.get(late_count(view.name).lower(), 0),
            }
        return row

    def _place_of(self, pipeline: InsertPipeline) -> Choice:
        """Where the last insert ran the pipeline; before the first, where a small one would."""
        if pipeline.state in self._loader.ran:
            return self._loader.ran[pipeline.state]
        settings = self._runtime.settings
        engine = settings.engine if pipeline.reason is None or settings.engine == "spark" else "auto"
        return choose(pipeline.reason, 0, task_bytes=settings.task_bytes, engine=engine)


def size_of(snapshot: Snapshot, view: ContinuousView, state: State) -> tuple[int, int, int]:
    """A stored state's rows, those of them that came after its last merge, and the bytes of all values."""
    relation = view.relation(state)
    _, batches = snapshot.whole(relation, "batches")
    lengths = {"string": "strlen({})", "binary": "octet_length({})"}
    lengths |= dict.fromkeys(("array", "struct", "map"), "strlen(CAST({} AS VARCHAR))")
    texts = [lengths[f.type.name].format(quote_native(f.name)) for f in state.schema if f.type.name in lengths]
    fixed = sum(_width(f) for f in state.schema)
    sized = " + ".join([f"count(*) * {fixed}", *(f"coalesce(sum({t}), 0)" for t in texts)])
    # A merge stamps all its rows with its own epoch; whatever is younger was appended since, and so was every batch.
    columns = ", ".join(quote_native(f.name) for f in state.schema)
    merged = snapshot.rewritten(relation)
    found = snapshot.query(
        f"SELECT count(*) AS n, count(*) FILTER (queued) AS queued, ({sized})::BIGINT AS bytes FROM ("
        f"SELECT {columns}, __epoch > {merged} AS queued FROM {snapshot.table(relation)} "
        f"UNION ALL SELECT {columns}, TRUE FROM batches)",
        batches=batches,
    ).to_pylist()[0]
    return found["n"], found["queued"], found["bytes"]


def _width(field: Field) -> int:
    varies = field.type.name in ("string", "binary") or field.type.is_nested
    return 0 if varies else max(1, field.type.arrow.bit_width // 8)


def _by_label(state: State) -> Schema:
    """A state's columns under names that say what they mean, each name once."""
    named: list[Field] = []
    seen: set[str] = set()
    for field, label in zip(state.schema, state.labels, strict=True):
        name, n = label, 1
        while name.lower() in seen:
            n += 1
            name = f"{label} {n}"
        seen.add(name.lower())
        named.append(Field(name, field.type))
    return tuple(named)
