"""Kept samples: CREATE SAMPLE s OF stream SIZE n, fed by every insert, durable, a relation like any other.

Inserts append what they draw (``feeding.py``), as they append the partial states of views, in the same commit. A
query takes the rows of the lowest priorities as of its epoch. When the keeper has merged the rows that wait, inserts
know the sample's threshold.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.base.wording import counted
from headrace.catalog import Catalog, Note, Relation
from headrace.catalog.sample import Sample
from headrace.engine import tasks
from headrace.engine.analyzer import SparkAnalyzer
from headrace.engine.plan_sql import NotNative, native_plan, spark_plan
from headrace.engine.spark import registered
from headrace.engine.stage import SparkSite, Stage, StateRows
from headrace.engine.work import BATCH, Fragment, Work
from headrace.errors import CatalogError, SqlError
from headrace.keep.answers import Evaluation
from headrace.keep.family import Family, family
from headrace.keep.keeper import Keeper
from headrace.keep.kept import Kept, KeptState
from headrace.plan.nodes import Filter, Leaf, Node, Project, leaves, walk_plan
from headrace.plan.rules import optimize
from headrace.runtime import Runtime
from headrace.sample.feeding import PRIORITY, SEEN, Feed, lowest_sql, rows_schema, seen_schema, seen_sql
from headrace.sample.statement import CreateSample
from headrace.sql.binder import Binder
from headrace.sql.estimates import COUNTS
from headrace.sql.nondeterminism import refuse_nondeterministic
from headrace.sql.sample_limits import check_size, natural_seed, row_bytes, too_many_groups, too_many_rows
from headrace.sql.spark_blocks import QueryAnalyzer
from headrace.sql.statements import parse
from headrace.store import Snapshot, Transaction
from headrace.types import Field, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Sampling(Stage):
    """What one insert draws for a sample: natively, or of the rows that Spark SQL lets pass its condition."""

    feed: Feed
    plan: Node
    reason: str | None

    @property
    def state(self) -> int:  # type: ignore[override]
        return self.feed.rows

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.feed.columns

    def fragment(self) -> Fragment:
        return self.feed

    def by_spark(self, site: SparkSite, frame: DataFrame) -> StateRows:
        """In the tasks that have the rows."""
        scan = leaves(self.plan)[0]
        with registered({scan.ref: frame}) as names:
            passed = site.spark.sql(spark_plan(self.plan, lambda scan: quote(names[scan.ref])))
            feed = replace(self.feed, where=None)
            return tasks.run_frame(passed, Work((feed,), (), feed.columns, None, site.zone))[1]


class KeptSample(Kept):
    """A sample's definition, bound and compiled, and what this process knows of its state."""

    relation: Sample

    def __init__(self, runtime: Runtime, sample: Sample, plan: Node) -> None:
        self.relation = sample
        self.plan = plan
        self._runtime = runtime
        names = [c.name.lower() for c in sample.columns]
        self.keys = tuple(names.index(key.lower()) for key in sample.keys)
        """The places of the columns it is grouped by."""
        self.types = tuple(c.type.arrow for c in sample.columns)
        rows, seen = rows_schema(self.types), seen_schema([self.types[k] for k in self.keys])
        lowest = partial(lowest_sql, keys=[f"c{k}" for k in self.keys], size=sample.size)
        total = partial(seen_sql, keys=[f"k{i}" for i in range(len(self.keys))])
        self.rows = KeptState("rows", sample.owns["rows"], rows, lowest)
        """The rows drawn."""
        self.seen = KeptState("seen", sample.owns["seen"], seen, total)
        """How many rows there were."""
        self.states = (self.rows, self.seen)
        self.threshold = 1.0
        """No row of the sample has a priority above it, as of some committed epoch."""
        self._most_groups = self._most_rows = 0
        """No more groups, nor more rows over all groups, are there now."""
        self._looked = False
        self._lock = threading.Lock()
        self._drawn = itertools.count()
        self._entropy = secrets.randbits(64)
        with runtime.store.read() as snapshot:
            self._since = snapshot.epoch
        self._where, self._reason = self._condition()

    def _condition(self) -> tuple[str | None, str | None]:
        """Its condition as native SQL, and why there is none if there is not."""
        if not any(isinstance(n, Filter) for n in walk_plan(self.plan)):
            return None, None
        try:
            return native_plan(self.plan, lambda scan: BATCH, zone=self._runtime.settings.time_zone), None
        except NotNative as refusal:
            return None, refusal.reason

    # Inserts

    def stages(self, source: Relation) -> Sequence[Sampling]:
        """What the next insert does for it. With a seed, inserts one after the other draw the same each time."""
        sample = self.relation
        if source.number != sample.read[0].number:
            return ()
        self._look()
        start = (self._entropy,) if sample.seed is None else (natural_seed(sample.seed), self._since)
        feed = Feed(
            self.name,
            self.rows.ref,
            self.seen.ref,
            sample.size,
            tuple(c.name for c in sample.columns),
            self.keys,
            self.types,
            self._where,
            1.0 if self.keys else self.threshold,
            (*start, next(self._drawn)),
            self._runtime.settings.sample_groups,
        )
        return (Sampling(feed, self.plan, self._reason),)

    def _look(self) -> None:
        """What the store tells of a sample this process has not fed yet."""
        if self._looked:
            return
        with self._runtime.store.read() as snapshot:
            found, seen = (s.home.queued(snapshot, s.ref) for s in (self.rows, self.seen))
            if found is None or seen is None:
                return  # dropped meanwhile
            rows = self.rows.home.merged(snapshot, self.rows)
            groups, most = sum(seen), sum(found)
        with self._lock:
            if not snapshot.is_draft:  # what a batch that fails has drawn must keep nothing out
                self.threshold = min(self.threshold, self._threshold(rows))
            self._most_groups = max(self._most_groups, groups)
            self._most_rows = max(self._most_rows, most)
            self._looked = not snapshot.is_draft

    def admit(self, tx: Transaction, rows: dict[int, pa.Table]) -> None:
        """Refuse rows that would give it too many groups, or more rows of all its groups than fit in memory."""
        settings = self._runtime.settings
        counts, drawn = rows.get(self.seen.ref), rows.get(self.rows.ref)
        if counts is None or not self.keys:
            return
        room = settings.state_memory // row_bytes(self.types)
        self._most_groups += counts.num_rows
        self._most_rows += drawn.num_rows if drawn is not None else 0
        if self._most_groups <= settings.sample_groups and self._most_rows <= room:
            return
        source, tables = self.seen.home.native(tx, self.seen, "__appended")
        all_counts = self.seen.merge(f"(FROM {source} UNION ALL BY NAME FROM given)")
        totals = f"count(*) AS groups, coalesce(sum(least({SEEN}, {self.relation.size})), 0)::BIGINT AS rows"
        [found] = tx.query(f"SELECT {totals} FROM ({all_counts})", **tables, given=counts).to_pylist()
        self._most_groups, self._most_rows = found["groups"], found["rows"]
        if self._most_groups > settings.sample_groups:
            raise too_many_groups(self.name, self._most_groups, settings.sample_groups)
        if self._most_rows > room:
            raise too_many_rows(self.name, self._most_rows, self.types, settings.state_memory)

    def merged(self, state: KeptState, rows: pa.Table) -> None:
        if state is self.rows:
            with self._lock:
                self.threshold = min(self.threshold, self._threshold(rows))

    def _threshold(self, rows: pa.Table) -> float:
        """The highest priority of a sample that is full; rows of that one or above it can never come in."""
        if self.keys or rows.num_rows < self.relation.size:
            return 1.0
        highest: float = max(rows.column(PRIORITY).to_pylist())
        return highest

    # Queries

    def evaluate(self, given: Evaluation) -> pa.Table:
        """Its rows, and beside each what estimates need to know of its group."""
        by = " AND ".join(f"c{k} IS NOT DISTINCT FROM k{i}" for i, k in enumerate(self.keys)) or "TRUE"
        group = f"PARTITION BY {', '.join(f'c{k}' for k in self.keys)}" if self.keys else ""
        numbers = {
            "__weight": "n / m",
            "__inverse": "1 / m",
            "__factor": "CASE WHEN m > 1 THEN n * (n - m) / (m * (m - 1)) WHEN n = m THEN 0 END",
            "__rest": "1 - m / n",
        }
        found = given.snapshot.query(
            f"SELECT * EXCLUDE ({PRIORITY}, n, m), {', '.join(f'{numbers[c.name]} AS {c.name}' for c in COUNTS)} FROM ("
            f"SELECT given.*, {SEEN}::DOUBLE AS n, (count(*) OVER ({group}))::DOUBLE AS m "
            f"FROM given JOIN counts ON {by})",
            given=given.merged(self.rows),
            counts=given.merged(self.seen),
        )
        own = list(zip([c.name for c in self.relation.columns], self.types, strict=True))
        schema = pa.schema([*own, *((c.name, c.type.arrow) for c in COUNTS)])
        return found.rename_columns(schema.names).cast(schema)

    def counts(self, snapshot: Snapshot) -> tuple[int, int]:
        """How many groups and how many rows there were."""
        found = self.seen.home.merged(snapshot, self.seen)
        return found.num_rows, sum(found.column(SEEN).to_pylist())

    def bytes_of(self, rows: pa.Table) -> int:
        return int(rows.select([c.name for c in self.relation.columns]).nbytes)

    def notes(self, snapshot: Snapshot, rows: Callable[[], pa.Table]) -> list[Note]:
        sample, held = self.relation, rows()
        groups, seen = self.counts(snapshot)
        each = f"for each {', '.join(sample.keys)}, of {counted(groups, 'group')}" if sample.keys else ""
        seed = "" if sample.seed is None else f"seed {sample.seed}"
        return [
            ("# size", counted(sample.size, "row"), each or seed),
            ("# rows", f"{held.num_rows:,}", f"of {seen:,} seen"),
            ("# memory", f"{self.bytes_of(held):,} bytes", ""),
        ]


@family
class Samples(Family):
    """Kept samples of streams."""

    relation = Sample
    statement = CreateSample

    def defined(self, keeper: Keeper, statement: CreateSample, analyzer: SparkAnalyzer) -> tuple[Sample, Node]:
        refuse_nondeterministic(statement.query, "a sample's condition")
        runtime = keeper.runtime
        plan, columns = bound(statement, runtime.catalog, analyzer)
        types = [c.type.arrow for c in columns]
        check_size(statement.size, types, runtime.settings.state_memory, statement.size_position)
        of = runtime.catalog.get(statement.of).name
        keys = tuple(next(c.name for c in columns if c.name.lower() == key.lower()) for key in statement.keys)
        size, answers = statement.size, dict(analyzer.answers)
        return Sample(statement.name, columns, of, size, keys, statement.seed, statement.text, answers), plan

    def holds(self, plan: Node) -> Sequence[str]:
        return ("rows", "seen")

    def compiled(self, keeper: Keeper, relation: Relation, plan: Node) -> KeptSample:
        assert isinstance(relation, Sample)
        return KeptSample(keeper.runtime, relation, plan)

    def plan_of(self, kept: KeptSample) -> Node:
        return kept.plan

    def reopened(self, keeper: Keeper, relation: Relation, snapshot: Snapshot) -> KeptSample:
        assert isinstance(relation, Sample)
        statement = parse(relation.text)
        assert isinstance(statement, CreateSample)
        catalog = keeper.runtime.catalog.as_read_by(relation)
        plan, _ = bound(statement, catalog, keeper.runtime.analyzer(relation.types))
        return self.compiled(keeper, relation, plan)

    def created(self, kept: KeptSample) -> str:
        sample = kept.relation
        each = f" for each {', '.join(sample.keys)}" if sample.keys else ""
        return f"sample {sample.name} created: {counted(sample.size, 'row')} of {sample.of}{each}"

    def restarted(self, kept: KeptSample) -> str:
        return f"{kept.name} draws from now on"

    def refreshed(self, keeper: Keeper, kept: KeptSample, rows: int) -> str:
        keeper.compaction.now(kept)
        with keeper.runtime.store.read() as snapshot:
            return f"{kept.name} has {counted(rows, 'row')} of {kept.counts(snapshot)[1]:,}"


def bound(statement: CreateSample, catalog: Catalog, analyzer: QueryAnalyzer) -> tuple[Node, tuple[Field, ...]]:
    """The plan of the rows a sample draws from, and its columns; an error says what it cannot be."""
    stream = catalog.get(statement.of, position=statement.of_position)
    if not stream.is_stream:
        raise CatalogError(
            "WRONG_COMMAND_FOR_OBJECT_TYPE",
            f"a sample is kept of a stream, whose rows stay; {stream.name} is a {stream.kind}, whose rows may change",
            position=statement.of_position,
            hint=f"draw from it when it is queried: SELECT * FROM {stream.name} TABLESAMPLE RESERVOIR "
            f"({statement.size} ROWS); CREATE TABLE … AS keeps what was drawn",
        )
    known = {c.name.lower(): c for c in stream.columns}
    if taken := [c.name for c in COUNTS if c.name in known]:
        raise SqlError(
            "SAMPLE_RESERVED_COLUMN",
            f"{stream.name} has a column {taken[0]}, which a sample has of its own, for estimates",
            position=statement.of_position,
            hint="give the stream's column another name",
        )
    for key, position in zip(statement.keys, statement.key_positions, strict=True):
        if key.lower() not in known:
            raise SqlError(
                "UNRESOLVED_COLUMN",
                f"{stream.name} has no column {key}",
                position=position,
                hint=f"a sample is grouped by columns of its stream: {', '.join(c.name for c in stream.columns)}",
            )
        if not known[key.lower()].type.is_groupable:
            raise SqlError(
                "UNSUPPORTED_GROUPING_TYPE",
                f"a sample cannot be grouped by {key}, which is {known[key.lower()].type.sql}",
                position=position,
                hint="group by a plain column",
            )
    plan = optimize(Binder(catalog, analyzer).query(statement.query))
    if not all(isinstance(n, Leaf | Filter | Project) for n in walk_plan(plan)):
        raise SqlError(
            "SAMPLE_CONDITION_NOT_SUPPORTED",
            "the WHERE of a sample looks at one row at a time, so it has no subqueries and no aggregates",
            position=statement.position,
            hint="sample all rows, and join or filter where the sample is queried",
        )
    return plan, tuple(Field(c.name, c.type) for c in stream.columns)
