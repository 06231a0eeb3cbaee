"""Layers of states: whatever came and went, the plan over the states is the plan over the tables."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import bag, run
from planning import rows as rows_of
from test_delta import COLUMNS, QUERIES, Rows, _rows, arrow, bound, by_key

from headrace.plan.delta import change_ref
from headrace.plan.delta.touched import settled
from headrace.plan.layers import LayeredPlan, Step, layered
from headrace.plan.nodes import leaves, rewrite_plan
from headrace.plan.pipelines import State
from headrace.plan.refs import Ref, StateRef, TableRef
from headrace.plan.signed import WEIGHT
from headrace.types import arrow_schema
from profiles import examples

MORE = [
    "SELECT g, count(*) AS n, sum(v) FROM a GROUP BY g HAVING count(*) > 1 ORDER BY n DESC LIMIT 2",
    "SELECT id, v FROM a WHERE v > 0 ORDER BY v, id LIMIT 4",
    "SELECT x.g, x.s, (SELECT max(s) FROM (SELECT g, sum(v) AS s FROM a GROUP BY g)) AS most "
    "FROM (SELECT g, sum(v) AS s FROM a GROUP BY g) AS x",
    "SELECT a.id, a.v FROM a JOIN (SELECT g, avg(v) AS mean FROM a GROUP BY g) AS m ON a.g = m.g AND a.v < m.mean",
    "SELECT g, min(s), sum(s) FROM (SELECT g, id, sum(v) AS s FROM a GROUP BY g, id) GROUP BY g",
    "SELECT n, count(*) FROM (SELECT c.g, count(a.id) AS n FROM c LEFT JOIN a ON a.g = c.g GROUP BY c.g) GROUP BY n",
    "SELECT a.id, a.v FROM a WHERE a.id IN (SELECT id FROM b GROUP BY id HAVING sum(w) > 1)",
    "SELECT g, v, sum(m), min(id) FROM a GROUP BY CUBE (g, v)",
    "SELECT DISTINCT v FROM (SELECT g, v FROM a UNION SELECT g, v FROM c)",
    "SELECT a.id, t.s FROM a JOIN (SELECT g, sum(x) AS s FROM b GROUP BY g) AS t ON a.g = t.g",
    "SELECT s, count(*), sum(s) FROM (SELECT g, avg(x) AS s FROM b GROUP BY g) GROUP BY s",
    "SELECT id FROM b WHERE x < (SELECT avg(x) FROM b)",
    "SELECT g, avg(s) FROM (SELECT g, id, sum(x) AS s FROM b GROUP BY g, id) AS t JOIN a USING (id, g) GROUP BY g",
    "SELECT a.id, l.w FROM a JOIN (SELECT id, w FROM b ORDER BY w DESC LIMIT 3) AS l ON a.id = l.id",
]


class Kept:
    """A layered plan, its states, and the tables they are of."""

    def __init__(self, text: str) -> None:
        self.plan = rewrite_plan(bound(text), settled)
        self.layers: LayeredPlan = layered(bound(text))
        self.refs: dict[str, TableRef] = {leaf.relation: leaf.ref for leaf in leaves(self.plan, TableRef)}  # type: ignore[misc]
        self.states: dict[str, State] = {state.name: state for state in self.layers.states}
        self._steps: dict[frozenset[str], list[Step]] = {}
        self.merges = {state.name: state.merged() for state in self.layers.states}

    def begin(self) -> None:
        self.tables: dict[str, Rows] = {name: [] for name in self.refs}
        self.rows = {name: arrow_schema(state.schema).empty_table() for name, state in self.states.items()}
        for name in self.rows:
            self.rows[name] = self._merged(name, [])
        self._change({name: ([], []) for name in self.refs}, always=True)

    def _merged(self, state: str, rows: list[pa.Table]) -> pa.Table:
        every = pa.concat_tables([self.rows[state], *rows])
        return run(self.merges[state], {state: every}).cast(every.schema)

    def _change(self, changes: dict[str, tuple[Rows, Rows]], *, always: bool = False) -> None:
        changed = frozenset(name for name, (gone, come) in changes.items() if gone or come or always)
        if changed not in self._steps:
            self._steps[changed] = self.layers.steps([self.refs[name] for name in changed])
        data: dict[str, Any] = {name: arrow(name, rows) for name, rows in self.tables.items()}
        for name, (gone, come) in changes.items():
            data[change_ref(self.refs[name]).name] = arrow(name, gone + come, [-1] * len(gone) + [1] * len(come))
        data |= self.rows
        added: dict[str, list[pa.Table]] = {}
        for step in self._steps[changed]:
            rows = by_key(step.rows, data)
            added.setdefault(step.state, []).append(rows.cast(self.rows[step.state].schema))
            data[change_ref(StateRef(step.state)).name] = self._difference(step.state, added[step.state])
        for state, rows in added.items():
            self.rows[state] = self._merged(state, rows)
        for name, (gone, come) in changes.items():
            left = Counter(self.tables[name])
            left.subtract(gone)
            self.tables[name] = [*left.elements(), *come]

    def _difference(self, state: str, rows: list[pa.Table]) -> pa.Table:
        old, new = self.rows[state], self._merged(state, rows)
        was, has = Counter(map(repr, rows_of(old))), Counter(map(repr, rows_of(new)))
        gone = old.filter(pa.array([repr(row) not in has for row in rows_of(old)], pa.bool_()))
        come = new.filter(pa.array([repr(row) not in was for row in rows_of(new)], pa.bool_()))
        weights = pa.array([-1] * gone.num_rows + [1] * come.num_rows, pa.int64())
        return pa.concat_tables([gone, come]).append_column(WEIGHT, weights)

    def answer(self) -> Counter[str]:
        return bag(run(self.layers.upper, self.rows))

    def wanted(self) -> Counter[str]:
        return bag(run(self.plan, {name: arrow(name, rows) for name, rows in self.tables.items()}))


CASES: dict[str, Kept] = {}


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, tuple[Any, Rows]]]:
    one = {name: st.tuples(st.lists(st.integers(0, 9), max_size=3), _rows(name, 4)) for name in COLUMNS}
    each = st.fixed_dictionaries({}, optional=one)
    return draw(st.lists(each, min_size=1, max_size=3))


@pytest.mark.parametrize("text", [*QUERIES, *MORE])
def test_oracle_states_follow_their_tables(text: str) -> None:
    @settings(max_examples=examples(5))
    @given(histories())
    def hold(history: list[dict[str, tuple[Any, Rows]]]) -> None:
        kept = CASES.setdefault(text, Kept(text))
        kept.begin()
        assert kept.answer() == kept.wanted()
        for changes in history:
            steps = {}
            for name, (numbers, come) in changes.items():
                if name in kept.refs:
                    there = kept.tables[name]
                    steps[name] = ([there[i] for i in sorted({n for n in numbers if n < len(there)})], come)
            kept._change(steps)
            assert kept.answer() == kept.wanted()
        every = {name: (rows, list[Any]()) for name, rows in kept.tables.items()}
        kept._change(every)
        assert kept.answer() == kept.wanted()

    hold()


def _refs(kept: Kept, name: str) -> list[Ref]:
    return [kept.refs[name]]


def test_what_stands_between_groupings_is_kept_once() -> None:
    kept = Kept("SELECT n, count(*) FROM (SELECT g, count(*) AS n FROM a GROUP BY g) GROUP BY n")
    assert [state.kind for state in kept.layers.states] == ["groups", "groups"]
    assert [step.state for step in kept.layers.steps(_refs(kept, "a"))] == ["s0", "s1"]
