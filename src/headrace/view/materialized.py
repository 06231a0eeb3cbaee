"""Materialized views: what is kept follows the changes of tables.

The view's plan is cut into layers of states (``plan/layers.py``). Each change of a table below it becomes changes of
these, through the plan of the change and the shared indexes (``keep/maintenance.py``). With strategy IN that is done
before the commit that changes the table, and the rows are added in it, so every epoch shows the view as its query would
be over that epoch's tables. Other strategies do it later, of the net of several commits (``keep/deferral.py``): their
states are those of an epoch, and the view knows of which (``keep/standing.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from headrace.catalog import Catalog, Note, Relation, View
from headrace.catalog.refreshing import AUTO, FULL, INCREMENTAL, STRICT
from headrace.errors import NotYetSupported, Position, SqlError
from headrace.keep.answers import Answers, Evaluation
from headrace.keep.costs import Costs
from headrace.keep.kept import Renewal
from headrace.keep.maintenance import Maintenance, Stored, reasons_of, tables_of
from headrace.keep.standing import STANDING, Standings
from headrace.plan.layers import LayeredPlan, layered
from headrace.plan.nodes import Draw, Node, leaves, streams_in, walk_plan
from headrace.plan.refs import Ref, TableRef
from headrace.runtime import Runtime
from headrace.store import Snapshot, Transaction
from headrace.store.reading import Reading
from headrace.table import history
from headrace.table import keys as indexes
from headrace.table.net import weighted
from headrace.view.continuous import ContinuousView


@dataclass(frozen=True)
class _Way:
    """By what work a change is taken in, and what that may take."""

    is_anew: bool
    changed: int | None
    """None if nobody counted."""
    rows: int
    """Rows of tables that computing anew reads, if that was asked."""
    estimated: float
    began: float = field(default_factory=time.perf_counter)

    def done(self, costs: Costs, rows: Mapping[int, pa.Table]) -> Renewal:
        """What it came to; how long it took is learnt."""
        seconds = time.perf_counter() - self.began
        if self.is_anew:
            costs.computed(self.rows, seconds)
        else:
            costs.followed(self.changed or 0, seconds)
        return Renewal(rows, self.is_anew, self.changed, self.estimated)


class MaterializedView(ContinuousView):
    """A plan over tables, kept in layers."""

    standing: Standings

    def __init__(self, view: View, plan: LayeredPlan, runtime: Runtime, answers: Answers) -> None:
        super().__init__(view, plan.as_split(), {}, runtime.settings.time_zone)
        self.layers = plan
        self.row_key = plan.key
        self.answer = self.by_name[plan.answer] if plan.answer is not None else None
        self.maintenance = Maintenance(runtime, answers, plan)
        self.refreshing = view.refreshing
        self.costs = Costs()
        self.standing = Standings(view.owns[STANDING])
        self._runtime = runtime
        self._answers = answers

    def follows(self, source: Relation) -> bool:
        return source.number in self.maintenance.tables

    @property
    def tables_followed(self) -> Collection[int]:
        return self.maintenance.tables.keys()

    def lags(self, reading: Reading) -> bool:
        if not self.refreshing.is_deferred:
            return False
        epoch = self.standing.of(reading).epoch
        return any(reading.last_change(number) > epoch for number in self.maintenance.tables)

    def changed(self, changes: Mapping[int, pa.Table], *, anew: bool = False) -> Renewal:
        given: dict[Ref, pa.Table] = {self.maintenance.tables[number]: rows for number, rows in changes.items()}
        way = self._way(sum(rows.num_rows for rows in given.values()), anew)
        if way.is_anew:
            return way.done(self.costs, self.maintenance.first_rows(self, given))
        return way.done(self.costs, self.maintenance.state_rows(self, given))

    def renewed(self, snapshot: Snapshot, *, anew: bool = False) -> Renewal:
        if anew or not self.refreshing.follows_log or self.refreshing.policy == FULL:
            return self._way(None, True, snapshot).done(self.costs, self.maintenance.rows_anew(snapshot, self))
        changes = self._changes(snapshot, self.standing.of(snapshot).epoch)
        way = self._way(sum(rows.num_rows for rows in changes.values()), False, snapshot)
        if way.is_anew:
            return way.done(self.costs, self.maintenance.rows_anew(snapshot, self))
        states = Stored(self._answers, snapshot, self)
        return way.done(self.costs, self.maintenance.run(snapshot, self, changes, states, lie="now"))

    def _way(self, changed: int | None, anew: bool, snapshot: Snapshot | None = None) -> _Way:
        """By what work so many changed rows are taken in: as is said, or as is cheaper."""
        policy, count = self.refreshing.policy, changed or 0
        # What a view was is known of what is added to its answer, so one that keeps it is not computed anew.
        is_free = policy == AUTO and self.costs.asks(count) and history.of(self.relation) is None
        rows = self._rows_below(snapshot) if anew or policy == FULL or is_free else 0
        is_anew = anew or policy == FULL or (is_free and self.costs.prefers_anew(count, rows))
        return _Way(is_anew, changed, rows, self.costs.anew(rows) if is_anew else self.costs.following(count))

    def _rows_below(self, snapshot: Snapshot | None) -> int:
        """About how many rows its tables have."""
        if snapshot is None:
            with self._runtime.store.read() as newest:
                return self._rows_below(newest)
        tables = map(self._runtime.catalog.table_at, self.maintenance.tables)
        return sum(indexes.about(self._runtime, snapshot, table) for table in tables if table is not None)

    def _changes(self, snapshot: Snapshot, since: int) -> dict[Ref, pa.Table]:
        """The net changes of its tables after an epoch; tables without any are left out."""
        found: dict[Ref, pa.Table] = {}
        for number, ref in self.maintenance.tables.items():
            table = self._runtime.catalog.table_at(number)
            if table is not None and snapshot.last_change(number) > since:
                fields = self.maintenance.fields(ref) or {table.columns[0].name}
                came, went = history.net(snapshot, table, since, fields)
                if came.num_rows or went.num_rows:
                    found[ref] = pa.concat_tables([weighted(came, 1), weighted(went, -1)])
        return found

    def evaluate(self, given: Evaluation) -> pa.Table:
        if given.snapshot.is_draft and self.lags(given.snapshot):
            return self.maintenance.answer_anew(given.snapshot, self)  # of an epoch that may come to nothing
        return super().evaluate(given)

    def notes(self, snapshot: Snapshot, rows: Callable[[], pa.Table]) -> list[Note]:
        found = super().notes(snapshot, rows)
        stands = self.standing.of(snapshot)
        if self.refreshing.is_deferred:
            behind = "tables have changed since" if self.lags(snapshot) else "as new as its tables"
            found.append(("# as of epoch", str(stands.epoch), f"{history.time_text(stands.moment)}; {behind}"))
        if stands.failed:
            found.append(("# failed", f"at epoch {stands.failed}", f"{stands.condition}: {stands.error}"))
        return found

    def found(self, tx: Transaction) -> None:
        super().found(tx)
        self.standing.begin(tx)
        if (past := history.of(self.relation)) is not None:
            history.begin(tx, past, tx.label)

    def admit(self, tx: Transaction, rows: dict[int, pa.Table]) -> None:
        """What is added to the rows of its answer is how they change: it is noted, if changes are kept."""
        past = history.of(self.relation)
        if past is not None and self.answer is not None and self.answer.ref in rows:
            history.note(tx, past, rows[self.answer.ref])


def unfolded(catalog: Catalog) -> Catalog:
    """The catalog in which materialized views are their queries, as ordinary views are.

    One that reads others follows the tables below these, with states of its own. So all show one epoch without being
    brought up to date in an order, and each may be kept up to date in its own way.
    """
    views = {r.number: replace(r, continuous=False) for r in catalog.of_kind(View) if r.materialized}
    known = {name: views.get(r.number, r) for name, r in catalog.relations.items()}
    return replace(catalog, relations=known, numbers={**catalog.numbers, **views})


def followed(plan: Node, catalog: Catalog, position: Position, *, answer: bool = False) -> LayeredPlan:
    """The layers of a view's plan, with its ``answer`` if told so; an error that names what cannot be followed."""
    if streams_in(plan):
        raise NotYetSupported(
            "a stream in a materialized view", position=position, hint="CREATE VIEW over a stream is kept up to date"
        )
    for leaf in leaves(plan):
        table = catalog.table_at(leaf.number) if isinstance(leaf.ref, TableRef) else None
        if table is None or table.files is not None:
            raise NotYetSupported(
                f"{leaf.relation} in a materialized view: it is no table of this database's own",
                position=position,
                hint="read tables; CREATE VIEW is computed when it is queried",
            )
    if not leaves(plan):
        raise NotYetSupported(
            "a materialized view that reads no table",
            position=position,
            hint="CREATE VIEW, or CREATE TABLE … AS SELECT",
        )
    if any(isinstance(node, Draw) for node in walk_plan(plan)):
        raise NotYetSupported("TABLESAMPLE in a materialized view", position=position, hint="draw where it is queried")
    return layered(plan, answer=answer)


def require_policy(runtime: Runtime, view: View, plan: LayeredPlan, position: Position | None) -> None:
    """An error unless the view can be refreshed so: it says what is not incremental if that is asked for; tables may
    grow."""
    refreshing = view.refreshing
    if view.keep_changes is not None and (refreshing.is_deferred or refreshing.policy == FULL):
        raise SqlError(
            "VIEW_OPTIONS_CONFLICT",
            f"{view.name} has keep_changes, and would have {refreshing}: what it was is known of a view that "
            "takes each change in at once",
            position=position,
            hint="leave keep_changes out, or keep strategy IN",
        )
    if refreshing.policy not in (INCREMENTAL, STRICT):
        return
    with runtime.store.read() as snapshot:
        reasons = reasons_of(runtime, snapshot, plan, whatever_size=True)
    tables = {ref.name for ref in tables_of(plan)}
    if not reasons or (refreshing.policy == INCREMENTAL and not tables <= reasons.keys()):
        return
    listed = "; ".join(
        f"{f'each change of {of}' if of else 'each query'}: {', '.join(map(str, found))}"
        for of, found in reasons.items()
    )
    raise SqlError(
        "MATERIALIZED_VIEW_NOT_INCREMENTAL",
        f"{view.name} cannot have REFRESH POLICY {refreshing.policy}. {listed}",
        position=position,
        hint="EXPLAIN CREATE MATERIALIZED VIEW shows its steps; REFRESH POLICY AUTO takes any query",
    )
