"""Running a query over one snapshot: natively where that is exact, else by Spark SQL.

All leaves of a query are read in one snapshot, so an answer never mixes epochs.
A continuous view is a leaf too: it is brought up to date first (``keep/``), and
its rows stand in for it, the same rows however often the query names it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import duckdb
import pyarrow as pa

from headrace.base.native import conform
from headrace.base.standing import Standing
from headrace.catalog import Table, gone
from headrace.catalog.table import FILE, ROW
from headrace.engine.failures import NativeCannot, from_duckdb
from headrace.engine.key_index import Array, Newer
from headrace.engine.native_sql import NotNative
from headrace.engine.places import Choice, Place, choose
from headrace.engine.plan_sql import native_plan, why_not_native
from headrace.engine.spark import run_plan
from headrace.errors import DataError, ExecutionError, HeadraceError
from headrace.plan.exprs import Column
from headrace.plan.key_reads import keys_asked, keys_joined
from headrace.plan.nodes import ONE_ROW, Leaf, Node, Project
from headrace.plan.nodes import leaves as leaves_of
from headrace.plan.refs import LogRef, Ref, TableRef, VersionRef
from headrace.runtime import Runtime
from headrace.store import Snapshot
from headrace.store.format import microseconds
from headrace.table import history, keys
from headrace.table import rows as tables
from headrace.table.files import OpenedFiles, open_files
from headrace.table.frames import rows_frame, sql_frame, table_frame
from headrace.types import TIMESTAMP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Leaves:
    """Where a query's leaves that are no tables come from."""

    arrow: Mapping[Ref, pa.Table]
    """Rows already here: results of continuous views."""
    sql: Mapping[Ref, str]
    """Native SQL over the snapshot: a state relation's merge."""
    live: Mapping[Ref, pa.Table] = field(default_factory=dict)
    """Rows in memory that will change after this query: its answer must be a copy."""
    named: Mapping[str, pa.Table] = field(default_factory=dict)
    """Arrow tables the native SQL reads by name."""
    frames: Mapping[Ref, Callable[[], AbstractContextManager[DataFrame]]] = field(default_factory=dict)
    """The same as the native SQL for Spark, where whoever has the rows hands them to it."""


T = TypeVar("T")
NO_LEAVES = Leaves({}, {})


class Again(Exception):
    """The snapshot cannot answer this any more: take a newer one."""


class Prepared:
    """A plan with what can be known of it before it runs: its place, and its native text.

    Plans are values, so this is worked out once however often the plan runs.
    """

    def __init__(self, runtime: Runtime, plan: Node, *, changes: bool = False, again: bool = False) -> None:
        """``changes`` if it says which rows change: rows of few keys, whatever it joins them with. ``again`` if it will
        run again and again over rows that are given."""
        self.plan = plan
        self._changes = changes
        self._again = again
        self._standing: Standing | None = None
        self._stands = threading.Lock()
        self.scans = leaves_of(plan)
        self.schema = pa.schema([pa.field(c.name, c.type.arrow if c.type.is_held else pa.null()) for c in plan.output])
        self.by_spark = False
        """Whether some value turned out to be Spark's business."""
        self._runtime = runtime
        self._texts: dict[tuple[str, ...], str] = {}

    @cached_property
    def choice(self) -> Choice:
        return place_of(self._runtime, self.plan)

    @cached_property
    def keys_asked(self) -> Mapping[Ref, Array]:
        """For the tables of which it can only use rows of some keys, the hashes of these."""
        found: dict[Ref, Array] = {}
        for ref, wanted in keys_asked(self.plan).items():
            table = self._runtime.catalog.table_at(ref.number)
            if table is not None and table.files is None:
                # A constant that cannot be: the query says so, if it comes to that.
                with suppress(NotNative, duckdb.Error, pa.ArrowException):
                    found[ref] = keys.hashes_asked(table, wanted, self._runtime.settings.time_zone)
        return found

    @cached_property
    def keys_joined(self) -> Sequence[tuple[Ref, Prepared]]:
        """The plans of keys of tables it compares with what is cheap to read, for a plan of what changes."""
        found = keys_joined(self.plan) if self._changes else []
        return [(one.ref, Prepared(self._runtime, one.keys)) for one in found]

    @cached_property
    def renamed_scan(self) -> tuple[Leaf, list[str]] | None:
        """The scan and its fields, if the plan does nothing but pick and name columns of one relation."""
        fields: dict[int, Column] = {c.id: c for c in self.plan.output}
        node = self.plan
        while isinstance(node, Project):
            below = {c.id: e for c, e in node.exprs if isinstance(e, Column)}
            if len(below) < len(node.exprs):
                return None
            fields = {k: below[c.id] for k, c in fields.items()}
            node = node.child
        if not isinstance(node, Leaf):
            return None
        names = {c.id: f for f, c in zip(node.fields, node.scanned, strict=True)}
        return node, [names[fields[c.id].id] for c in self.plan.output]

    def native(self, sources: Mapping[Ref, str]) -> str:
        """The native text over these sources."""
        key = tuple(sources[scan.ref] for scan in self.scans)
        text = self._texts.get(key)
        if text is None:
            if len(self._texts) > 16:
                self._texts.clear()
            zone = self._runtime.settings.time_zone
            text = self._texts[key] = native_plan(self.plan, lambda scan: sources[scan.ref], zone=zone)
        return text

    def standing(self, given: Mapping[Ref, pa.Table]) -> pa.Table | None:
        """The rows over few others, without planning anew; None if it is to be planned for these."""
        refs = list(dict.fromkeys(scan.ref for scan in self.scans))
        if not (self._again and refs and all(ref in given for ref in refs)):
            return None
        if sum(given[ref].num_rows for ref in refs) > STANDING or not self._stands.acquire(blocking=False):
            return None
        try:
            names = {ref: f"__leaf{i}" for i, ref in enumerate(refs)}
            named = {names[ref]: given[ref] for ref in refs}
            if self._standing is None or not self._standing.fits(named):
                self._standing = self._runtime.worker.standing(self.native(names), named)
            return self._standing.run(named)
        finally:
            self._stands.release()


STANDING = 65_536
"""Rows over which a text is run as it was planned: more are worth a plan of their own."""


def place_of(runtime: Runtime, plan: Node) -> Choice:
    """Where a query or upper pipeline runs, and why."""
    engine = "spark" if runtime.settings.engine == "spark" else "auto"
    return choose(why_not_native(plan, zone=runtime.settings.time_zone), 0, task_bytes=1, engine=engine)


def run(runtime: Runtime, snapshot: Snapshot, plan: Node | Prepared, leaves: Leaves = NO_LEAVES) -> pa.Table:
    """The plan's rows as of the snapshot; :class:`Again` if it must be run over a new one."""
    prepared = plan if isinstance(plan, Prepared) else Prepared(runtime, plan)
    opened = _opened(runtime, prepared)
    if opened:
        arrow = {key: found.rows for key, found in opened.items() if found.rows is not None}
        texts = {key: found.sql for key, found in opened.items() if found.rows is None}
        leaves = replace(leaves, arrow={**leaves.arrow, **arrow}, sql={**leaves.sql, **texts})
    if past := _past(runtime, snapshot, prepared, leaves):
        leaves = replace(leaves, sql={**leaves.sql, **past})
    try:
        return _run(runtime, snapshot, prepared, _by_key(runtime, snapshot, prepared, leaves))
    except HeadraceError as error:
        for found in opened.values():
            error = found.explain(error)
        raise error from None


def _opened(runtime: Runtime, prepared: Prepared) -> dict[Ref, OpenedFiles]:
    """The tables over files among the leaves, each read once however often the plan names it."""
    found: dict[Ref, OpenedFiles] = {}
    for scan in prepared.scans:
        table = runtime.catalog.table_at(scan.number)
        if table is not None and table.files is not None and scan.ref not in found:
            fields = {f for s in prepared.scans if s.ref == scan.ref for f in s.fields}
            found[scan.ref] = open_files(runtime, table, fields)
    return found


def _past(runtime: Runtime, snapshot: Snapshot, prepared: Prepared, leaves: Leaves) -> dict[Ref, str]:
    """Native SQL for those leaves that are tables as they were, and what was kept of their changes."""
    found: dict[Ref, str] = {}
    for scan in prepared.scans:
        ref = scan.ref
        if ref in found or ref in leaves.arrow or not isinstance(ref, VersionRef | LogRef):
            continue
        table = history.of(runtime.catalog.at(scan.number))
        if table is None:
            raise gone(scan.relation)
        fields = sorted({f for s in prepared.scans if s.ref == ref for f in s.fields})
        if isinstance(ref, LogRef):
            text = history.changes(snapshot, table, *history.range_of(snapshot, table, ref), fields)
        else:
            text = history.source(snapshot, table, version_of(runtime, snapshot, table, ref), fields)
        found[ref] = f"SELECT * FROM {text}"
    return found


def version_of(runtime: Runtime, snapshot: Snapshot, table: Table, ref: VersionRef) -> int:
    """The epoch that a reference means."""
    return history.version_of(snapshot, table, ref, _moment(runtime, ref), microseconds())


def _moment(runtime: Runtime, ref: VersionRef) -> int | None:
    """The moment a reference names, in microseconds."""
    if ref.moment is None:
        return None
    plan = Project(ONE_ROW, ((Column.fresh("moment", TIMESTAMP), ref.moment),))
    why = "it is NULL"
    try:
        moment: int | None = run_now(runtime, plan).column(0).cast(pa.int64())[0].as_py()
    except ExecutionError as error:
        moment, why = None, error.message
    if moment is None:
        raise DataError(
            "INVALID_TIME_TRAVEL_TIMESTAMP_EXPR.INPUT",
            f"no moment of {ref.name}: {why}",
            position=ref.position,
            hint="write a constant, for example '2026-01-01 10:00:00'",
        )
    return moment


def _by_key(runtime: Runtime, snapshot: Snapshot, prepared: Prepared, leaves: Leaves) -> Leaves:
    """The same with the rows of tables that the plan reads by key, where they are found so."""
    sql: dict[Ref, str] = {}
    named: dict[str, pa.Table] = {}
    for ref, hashes in _hashes(runtime, snapshot, prepared, leaves):
        scans = [scan for scan in prepared.scans if scan.ref == ref]
        if ref in sql or ref in leaves.arrow or ref in leaves.live or ref in leaves.sql:
            continue
        table = _table(runtime, scans[0])
        wanted = {f for scan in scans for f in scan.fields}
        fields = [c.name for c in table.columns if c.name in wanted]
        try:
            found = keys.rows_of(runtime, snapshot, table, hashes, fields, placed=_is_placed(prepared.scans, ref))
        except Newer:
            raise Again from None
        if found is not None:
            sql[ref] = found.sql
            named |= found.named
    return replace(leaves, sql={**leaves.sql, **sql}, named={**leaves.named, **named}) if sql else leaves


def _hashes(runtime: Runtime, snapshot: Snapshot, prepared: Prepared, leaves: Leaves) -> Iterator[tuple[Ref, Array]]:
    """Tables of whose rows a plan needs those of some keys, and the hashes of these."""
    yield from prepared.keys_asked.items()
    for ref, wanted in prepared.keys_joined:
        table = runtime.catalog.table_at(ref.number) if isinstance(ref, TableRef) else None
        if table is None or not keys.can_have(table) or wanted.choice.place is not Place.NATIVE:
            continue
        try:
            given = _run_native(runtime, snapshot, wanted, leaves)
        except (NativeCannot, HeadraceError):
            # The plan itself says what is wrong, if it comes to that, in a snapshot that this has not broken.
            prepared.keys_joined = ()
            raise Again from None
        if given.num_rows * _MANY <= keys.rows_at_most(snapshot, table):
            yield ref, keys.hashes_given(table, given)


_MANY = 8
"""A scan takes no longer than to find one row of so many by key."""


def _run(runtime: Runtime, snapshot: Snapshot, prepared: Prepared, leaves: Leaves) -> pa.Table:
    renamed = prepared.renamed_scan
    if renamed is not None and renamed[0].ref in leaves.arrow:
        rows = leaves.arrow[renamed[0].ref]
        if renamed[1] == prepared.schema.names == rows.column_names:
            return rows  # the very same, so that who has them already knows them again
        return rows.select(renamed[1]).rename_columns(prepared.schema.names)
    if prepared.choice.place is Place.NATIVE and not prepared.by_spark:
        try:
            return _run_native(runtime, snapshot, prepared, leaves)
        except NativeCannot as cannot:
            runtime.refuse_spark(str(cannot))
            # Some value is treated otherwise by Spark: let Spark treat it, from now on. The query
            # that failed took its snapshot's transaction with it.
            prepared.by_spark = True
            raise Again from None
    return _run_spark(runtime, snapshot, prepared.plan, leaves)


def reading(
    runtime: Runtime, plans: Iterable[Prepared], leaves: Leaves = NO_LEAVES
) -> AbstractContextManager[Snapshot]:
    """A snapshot to run plans in. Those that read nothing of the store leave a batch alone, should they fail."""
    stored = any(scan.ref not in leaves.arrow for plan in plans for scan in plan.scans)
    return runtime.store.read() if stored else runtime.store.newest()


def run_now(runtime: Runtime, plan: Node, leaves: Leaves = NO_LEAVES) -> pa.Table:
    """The rows of a plan over tables, as of now."""
    prepared = Prepared(runtime, plan)
    while True:
        with reading(runtime, [prepared], leaves) as snapshot, suppress(Again):
            return run(runtime, snapshot, prepared, leaves)


def _run_native(runtime: Runtime, snapshot: Snapshot, prepared: Prepared, leaves: Leaves) -> pa.Table:
    given = {**leaves.arrow, **leaves.live}
    try:
        rows = prepared.standing(given)
        if rows is None:
            rows = _planned(runtime, snapshot, prepared, leaves, given)
    except duckdb.Error as error:
        raise from_duckdb(error) from None
    return conform(rows, prepared.schema) if prepared.plan.output else rows


def _planned(
    runtime: Runtime, snapshot: Snapshot, prepared: Prepared, leaves: Leaves, given: Mapping[Ref, pa.Table]
) -> pa.Table:
    names = {key: f"__leaf{i}" for i, key in enumerate(given)}
    sources: dict[Ref, str] = {}
    for scan in prepared.scans:
        key = scan.ref
        if key in names:
            sources[key] = names[key]
        elif key in leaves.sql:
            sources[key] = f"({leaves.sql[key]})"
        else:
            sources[key] = tables.source(snapshot, _table(runtime, scan), placed=_is_placed(prepared.scans, key))
    return snapshot.query(prepared.native(sources), **{names[k]: v for k, v in given.items()}, **leaves.named)


def _run_spark(runtime: Runtime, snapshot: Snapshot, plan: Node, leaves: Leaves) -> pa.Table:
    frames: dict[Ref, DataFrame] = {}
    with ExitStack() as held:
        for node in leaves_of(plan):
            if node.ref not in frames:
                placed = _is_placed(leaves_of(plan), node.ref)
                made = _leaf_frame(runtime, snapshot, node, leaves, placed)
                frames[node.ref] = _merging(lambda made=made: held.enter_context(made))  # type: ignore[misc]
        return run_plan(runtime.spark, plan, frames)


def _leaf_frame(
    runtime: Runtime, snapshot: Snapshot, scan: Leaf, leaves: Leaves, placed: bool
) -> AbstractContextManager[DataFrame]:
    key = scan.ref
    if key in leaves.arrow:
        return rows_frame(runtime, leaves.arrow[key])
    if key in leaves.live:
        return rows_frame(runtime, leaves.live[key].slice(0))  # another table, for its columns are to change
    if key in leaves.frames:
        return leaves.frames[key]()
    if key in leaves.sql:
        return sql_frame(runtime, snapshot, leaves.sql[key], leaves.named)
    return table_frame(runtime, snapshot, _table(runtime, scan), placed=placed)


def _merging(work: Callable[[], T]) -> T:
    """Merge a state by native SQL. Nobody else can: where its sums pass 38 digits, there is no answer."""
    try:
        return work()
    except duckdb.Error as error:
        failure = from_duckdb(error)
        if isinstance(failure, NativeCannot):
            raise ExecutionError("ARITHMETIC_OVERFLOW", failure.message, hint="sum a narrower type") from None
        raise failure from None


def _table(runtime: Runtime, scan: Leaf) -> Table:
    """The table a leaf reads, under whatever name it goes now."""
    table = runtime.catalog.table_at(scan.number)
    if table is None:
        raise gone(scan.relation)
    return table


def _is_placed(scans: Sequence[Leaf], ref: Ref) -> bool:
    """Whether a table's rows are wanted with their places."""
    return any(FILE in scan.fields or ROW in scan.fields for scan in scans if scan.ref == ref)
