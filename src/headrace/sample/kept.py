"""Kept samples: CREATE SAMPLE s OF stream SIZE n, fed by every insert, durable, a relation like any other.

Inserts append what they draw (``feeding.py``), as they append the partial states of views, in the same commit. A
query takes the rows of the lowest priorities as of its epoch. When more rows wait than the sample has, the insert
that tips the scale merges them, and from then on inserts know the sample's threshold.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from headrace.catalog import Catalog, Sample, Stream
from headrace.engine.plan_sql import NotNative, native_plan
from headrace.engine.work import BATCH
from headrace.errors import CatalogError, SqlError
from headrace.plan.nodes import Filter, Node, Project, Scan, walk_plan
from headrace.plan.rules import optimize
from headrace.runtime import Runtime
from headrace.sample.feeding import PRIORITY, SEEN, Feed, lowest_sql, rows_schema, seen_schema, seen_sql
from headrace.sample.limits import check_size, natural_seed, row_bytes, too_many_groups, too_many_rows
from headrace.sql.binder import Binder
from headrace.sql.estimates import COUNTS
from headrace.sql.spark_blocks import QueryAnalyzer
from headrace.sql.statements import CreateSample, parse
from headrace.store import Snapshot, Transaction
from headrace.types import Field


@dataclass(frozen=True)
class Sampling:
    """What one insert does for a sample: natively, or why Spark SQL must."""

    feed: Feed
    plan: Node
    reason: str | None

    @property
    def state(self) -> str:
        return self.feed.rows


@dataclass(eq=False)
class KeptSample:
    """A sample's definition, bound and compiled, and what this process knows of its state."""

    sample: Sample
    plan: Node
    zone: str
    threshold: float = 1.0
    """No row of the sample has a priority above it, as of some committed epoch."""
    groups: int = 0
    """As of the last merge."""
    most_groups: int = 0
    """No more groups than these are there now."""
    most_rows: int = 0
    """Nor more rows, over all groups."""
    queued: int | None = None
    """Rows appended since the last merge, if that is known."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    kept: tuple[int, pa.Table] | None = None
    """The rows, and the epoch of the last change to them."""
    _drawn: itertools.count[int] = field(default_factory=itertools.count)
    _entropy: int = field(default_factory=lambda: secrets.randbits(64))

    @property
    def name(self) -> str:
        return self.sample.name

    @property
    def rows(self) -> str:
        """The store's name for the rows."""
        return f"sample {self.name}"

    @property
    def seen(self) -> str:
        """The store's name for how many rows there were."""
        return f"seen {self.name}"

    @cached_property
    def keys(self) -> tuple[int, ...]:
        names = [c.name.lower() for c in self.sample.columns]
        return tuple(names.index(key.lower()) for key in self.sample.keys)

    @cached_property
    def types(self) -> tuple[pa.DataType, ...]:
        return tuple(c.type.arrow for c in self.sample.columns)

    @cached_property
    def _native(self) -> tuple[str | None, str | None]:
        """Its condition as native SQL, and why there is none if there is not."""
        if not any(isinstance(n, Filter) for n in walk_plan(self.plan)):
            return None, None
        try:
            return native_plan(self.plan, lambda scan: BATCH, zone=self.zone), None
        except NotNative as refusal:
            return None, refusal.reason

    @property
    def reason(self) -> str | None:
        """Why inserts leave its condition to Spark SQL, if they do."""
        return self._native[1]

    def sampling(self, most_groups: int, since: int) -> Sampling:
        """What the next insert does for it. With a seed, inserts one after the other draw the same each time."""
        start = (self._entropy,) if self.sample.seed is None else (natural_seed(self.sample.seed), since)
        feed = Feed(
            self.name,
            self.rows,
            self.seen,
            self.sample.size,
            tuple(c.name for c in self.sample.columns),
            self.keys,
            self.types,
            self._native[0],
            1.0 if self.keys else self.threshold,
            (*start, next(self._drawn)),
            most_groups,
        )
        return Sampling(feed, self.plan, self.reason)

    def schemas(self) -> dict[str, pa.Schema]:
        return {self.rows: rows_schema(self.types), self.seen: seen_schema([self.types[k] for k in self.keys])}

    # Native SQL over the stored state

    def lowest(self, source: str) -> str:
        return lowest_sql(source, [f"c{k}" for k in self.keys], self.sample.size)

    def total(self, source: str) -> str:
        return seen_sql(source, [f"k{i}" for i in range(len(self.keys))])


def bound(statement: CreateSample, catalog: Catalog, analyzer: QueryAnalyzer) -> tuple[Node, tuple[Field, ...]]:
    """The plan of the rows a sample draws from, and its columns; an error says what it cannot be."""
    stream = catalog.get(statement.of, position=statement.of_position)
    if not isinstance(stream, Stream):
        raise CatalogError(
            "WRONG_COMMAND_FOR_OBJECT_TYPE",
            f"a sample is kept of a stream, and {stream.name} is none",
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
    if not all(isinstance(n, Scan | Filter | Project) for n in walk_plan(plan)):
        raise SqlError(
            "SAMPLE_CONDITION_NOT_SUPPORTED",
            "the WHERE of a sample looks at one row at a time, so it has no subqueries and no aggregates",
            position=statement.position,
            hint="sample all rows, and join or filter where the sample is queried",
        )
    return plan, tuple(Field(c.name, c.type) for c in stream.columns)


class Samples:
    """The kept samples of an open database."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._kept: dict[str, KeptSample] = {}
        with runtime.store.read() as snapshot:
            self._opened = snapshot.epoch

    def compiled(self, statement: CreateSample, analyzer: QueryAnalyzer) -> tuple[Sample, Node]:
        """The sample a statement would make; nothing is changed."""
        plan, columns = bound(statement, self._runtime.catalog, analyzer)
        types = [c.type.arrow for c in columns]
        check_size(statement.size, types, self._runtime.settings.state_memory, statement.size_position)
        answers = dict(getattr(analyzer, "answers", {}))
        of = self._runtime.catalog.get(statement.of).name
        keys = tuple(next(c.name for c in columns if c.name.lower() == key.lower()) for key in statement.keys)
        sample = Sample(statement.name, columns, of, statement.size, keys, statement.seed, statement.text, answers)
        return sample, plan

    def made(self, sample: Sample, plan: Node) -> KeptSample:
        return KeptSample(sample, plan, self._runtime.settings.time_zone)

    def reopen(self, catalog: Catalog) -> None:
        for sample in catalog.samples():
            statement = parse(sample.text)
            assert isinstance(statement, CreateSample)
            plan, _ = bound(statement, catalog, self._runtime.analyzer(sample.types))
            self.enter(self.made(sample, plan))

    def enter(self, kept: KeptSample) -> None:
        self._kept[kept.name.lower()] = kept

    def forget(self, name: str) -> None:
        self._kept.pop(name.lower(), None)

    def get(self, name: str) -> KeptSample:
        kept = self._kept.get(name.lower())
        if kept is None:
            raise CatalogError("TABLE_OR_VIEW_NOT_FOUND", f"there is no sample {name} any more", hint="ask again")
        return kept

    # Inserts

    def of(self, stream: Stream, catalog: Catalog) -> list[Sampling]:
        """What an insert into the stream does for the samples of this catalog."""
        mine = [k for k in list(self._kept.values()) if catalog.find(k.name) is k.sample]
        mine = [k for k in mine if k.sample.of.lower() == stream.name.lower()]
        for kept in mine:
            if kept.queued is None:
                self._look(kept)
        return [kept.sampling(self._runtime.settings.sample_groups, self._opened) for kept in mine]

    def admit(self, tx: Transaction, states: Mapping[str, pa.Table]) -> None:
        """Refuse rows that would give a sample too many groups, or more rows of all its groups than fit in memory."""
        settings = self._runtime.settings
        for kept in list(self._kept.values()):
            counts, rows = states.get(kept.seen), states.get(kept.rows)
            if counts is None or not kept.keys:
                continue
            room = settings.state_memory // row_bytes(kept.types)
            kept.most_groups += counts.num_rows
            kept.most_rows += rows.num_rows if rows is not None else 0
            if kept.most_groups <= settings.sample_groups and kept.most_rows <= room:
                continue
            source, batches = tx.whole(kept.seen, "__appended")
            all_counts = kept.total(f"(FROM {source} UNION ALL BY NAME FROM given)")
            totals = f"count(*) AS groups, coalesce(sum(least({SEEN}, {kept.sample.size})), 0)::BIGINT AS rows"
            [found] = tx.query(f"SELECT {totals} FROM ({all_counts})", __appended=batches, given=counts).to_pylist()
            kept.most_groups, kept.most_rows = found["groups"], found["rows"]
            if kept.most_groups > settings.sample_groups:
                raise too_many_groups(kept.name, kept.most_groups, settings.sample_groups)
            if kept.most_rows > room:
                raise too_many_rows(kept.name, kept.most_rows, kept.types, settings.state_memory)

    def after(self, appended: Mapping[str, int]) -> None:
        """Merge where it is due, now that an insert has appended so many rows to these relations."""
        for kept in list(self._kept.values()):
            if kept.rows not in appended:
                continue
            with kept.lock:
                kept.queued = (kept.queued or 0) + appended[kept.rows]
                due = kept.queued > max(self._runtime.settings.compact_rows, kept.sample.size * max(1, kept.groups))
            if due:
                # The rows are committed: what fails now is not their error, and the next insert tries again.
                with self._runtime.tidying.after(f"merging {kept.rows}"):
                    self.merge(kept)

    def merge(self, kept: KeptSample) -> None:
        """Keep the rows of the lowest priorities, in a commit of its own that changes no answer."""
        version = self._runtime.catalog.version
        before = kept.queued or 0

        def work(tx: Transaction) -> tuple[float, int] | None:
            if self._runtime.writer_version != version or self._kept.get(kept.name.lower()) is not kept:
                tx.unchanged()
                return None
            merged: dict[str, pa.Table] = {}
            for relation, sql in ((kept.rows, kept.lowest), (kept.seen, kept.total)):
                source, batches = tx.whole(relation, "__appended")
                merged[relation] = tx.query(sql(source), __appended=batches)
                tx.replace(relation, merged[relation].cast(kept.schemas()[relation]))
            return _threshold(kept, merged[kept.rows]), merged[kept.seen].num_rows

        done = self._runtime.store.commit(work, label=f"compact {kept.rows}")
        if done is not None:
            with kept.lock:
                kept.threshold = min(kept.threshold, done[0])
                kept.groups = done[1]
                kept.queued = max(0, (kept.queued or 0) - before)

    def _look(self, kept: KeptSample) -> None:
        """What the store tells of a sample this process has not fed yet."""
        with self._runtime.store.read() as snapshot:
            if kept.rows.lower() not in snapshot.relations():
                return  # dropped meanwhile
            queued = snapshot.queued(kept.rows)[1]
            rows = self._lowest(snapshot, kept)
            groups, most_rows = snapshot.rows(kept.seen), snapshot.rows(kept.rows)
        with kept.lock:
            kept.threshold = min(kept.threshold, _threshold(kept, rows))
            kept.groups = groups
            kept.most_groups = max(kept.most_groups, groups)
            kept.most_rows = max(kept.most_rows, most_rows)
            kept.queued = queued if kept.queued is None else kept.queued

    # Queries

    def table(self, snapshot: Snapshot, name: str) -> pa.Table:
        """A sample's rows as of the snapshot, and beside each what estimates need to know of its group."""
        kept = self.get(name)
        changed = max(snapshot.last_change(kept.rows), snapshot.last_change(kept.seen))
        held = kept.kept
        if held is not None and held[0] == changed:
            return held[1]
        rows = self._lowest(snapshot, kept)
        counts = self.counts(snapshot, kept)
        by = " AND ".join(f"c{k} IS NOT DISTINCT FROM k{i}" for i, k in enumerate(kept.keys)) or "TRUE"
        group = f"PARTITION BY {', '.join(f'c{k}' for k in kept.keys)}" if kept.keys else ""
        numbers = {
            "__weight": "n / m",
            "__inverse": "1 / m",
            "__factor": "CASE WHEN m > 1 THEN n * (n - m) / (m * (m - 1)) WHEN n = m THEN 0 END",
            "__rest": "1 - m / n",
        }
        found = snapshot.query(
            f"SELECT * EXCLUDE ({PRIORITY}, n, m), {', '.join(f'{numbers[c.name]} AS {c.name}' for c in COUNTS)} FROM ("
            f"SELECT given.*, {SEEN}::DOUBLE AS n, (count(*) OVER ({group}))::DOUBLE AS m "
            f"FROM given JOIN counts ON {by})",
            given=rows,
            counts=counts,
        )
        own = list(zip([c.name for c in kept.sample.columns], kept.types, strict=True))
        schema = pa.schema([*own, *((c.name, c.type.arrow) for c in COUNTS)])
        table = found.rename_columns(schema.names).cast(schema)
        if held is None or held[0] < changed:
            kept.kept = (changed, table)
        return table

    def counts(self, snapshot: Snapshot, kept: KeptSample) -> pa.Table:
        """How many rows there were, by group if there are groups."""
        source, batches = snapshot.whole(kept.seen, "__appended")
        return snapshot.query(kept.total(source), __appended=batches)

    def _lowest(self, snapshot: Snapshot, kept: KeptSample) -> pa.Table:
        source, batches = snapshot.whole(kept.rows, "__appended")
        return snapshot.query(kept.lowest(source), __appended=batches).cast(kept.schemas()[kept.rows])


def _threshold(kept: KeptSample, rows: pa.Table) -> float:
    """The highest priority of a sample that is full; rows of that one or above it can never come in."""
    if kept.keys or rows.num_rows < kept.sample.size:
        return 1.0
    highest: float = max(rows.column(PRIORITY).to_pylist())
    return highest
