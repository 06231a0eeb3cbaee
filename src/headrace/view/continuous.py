"""A continuous view: a split plan that is kept (000 §4.2.4).

*init* materialises the static build sides (``making.py``); *insert* runs the stream pipelines of
whatever stream the rows came by; *query* merges states and runs the upper pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pyarrow as pa

from headrace.base.parquet_files import footer_of
from headrace.base.wording import counted, span_text
from headrace.catalog import Note, View
from headrace.engine.work import Static
from headrace.keep.kept import KeptState
from headrace.plan.nodes import tables_in
from headrace.plan.pipelines import SplitPlan, State
from headrace.store import Snapshot, Transaction
from headrace.types import arrow_schema
from headrace.view import retention
from headrace.view.compiled import SplitRelation

STATICS = "statics"
"""What a view owns beside its states: the files of its static build sides."""


class ContinuousView(SplitRelation):
    """A view's split plan, compiled and stored."""

    relation: View

    def __init__(self, view: View, plan: SplitPlan, statics: Mapping[str, Static], zone: str) -> None:
        self.relation = view
        self.whose = f"view {view.name}"
        super().__init__(plan, statics, zone)
        self.clocks: dict[str, retention.Clock] = {}
        """What the writer knows of the times of each grouping, for a view that retains."""

    def kept_state(self, state: State) -> KeptState:
        ref, merge = self.relation.owns[state.name], partial(self.merging, state)
        return KeptState(state.name, ref, arrow_schema(state.schema), merge, state)

    @property
    def frozen_tables(self) -> tuple[str, ...]:
        """Tables joined below the first grouping: read once, when the view was made (000 §4.2.7)."""
        return tuple(sorted({t for s in self.plan.statics for t in tables_in(s.plan)}))

    def found(self, tx: Transaction) -> None:
        super().found(tx)
        if self.statics:
            relation = self.relation.owns[STATICS]
            files = {name: static.path for name, static in self.statics.items()}
            tx.create_relation(relation, pa.schema([("name", pa.string()), ("file", pa.string())]))
            tx.append(relation, pa.table({"name": list(files), "file": [f.name for f in files.values()]}))
            for file in set(files.values()):
                tx.add_segment(relation, file, footer_of(file).num_rows)

    def admit(self, tx: Transaction, rows: dict[int, pa.Table]) -> retention.RetainingAdmission | None:
        return retention.admit(tx, self, rows)

    def notes(self, snapshot: Snapshot, rows: Callable[[], pa.Table]) -> list[Note]:
        notes: list[Note] = []
        if self.frozen_tables:
            since = f"as they were at epoch {snapshot.created(self.relation.owns[STATICS])}"
            again = f"{since}; REFRESH VIEW {self.name} RESTART reads them anew and counts from then"
            notes.append(("# read once", ", ".join(self.frozen_tables), again))
        if self.tables:
            notes.append(
                ("# read at each query", ", ".join(t.name for t in self.tables), "changes show in the next query")
            )
        if self.below:
            notes.append(("# read at each query", ", ".join(k.name for k in self.below), "at the same commit"))
        if self.plan.retain is not None:
            late = snapshot.counts().get(str(self.relation.number), 0)
            times = dict.fromkeys(s.labels[s.time] for s in self.plan.states if s.time is not None)
            note = f"by {', '.join(times)}; {counted(late, 'row')} came too late"
            notes.append(("# retain", span_text(self.plan.retain), note))
        for state in self.plan.states:
            columns = counted(len(state.keys), "key column")
            notes.append((f"# state {state.name}", ", ".join(state.labels), f"{state.kind}, {columns}"))
        return notes
