"""Changes of plans: whatever changed, the rows before and the change of them are the rows now."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import NeverAsked, bag, run
from planning import rows as rows_of

from headrace.catalog import Catalog, Table
from headrace.plan.delta import Deltas, change_ref
from headrace.plan.delta.touched import settled
from headrace.plan.lookups import LeafLookup, looked_up
from headrace.plan.nodes import Leaf, Node, leaves, rewrite_plan
from headrace.plan.refs import GivenRef, Ref
from headrace.plan.rules import optimize
from headrace.plan.signed import WEIGHT
from headrace.sql.binder import Binder
from headrace.sql.statements import Query, parse
from headrace.types import BIGINT, DOUBLE, INT, STRING, Field, Type, arrow_schema, decimal
from profiles import examples

COLUMNS: dict[str, dict[str, Type]] = {
    "a": {"id": INT, "g": STRING, "v": INT, "m": decimal(10, 2)},
    "b": {"id": INT, "g": STRING, "w": BIGINT, "x": DOUBLE},
    "c": {"g": STRING, "v": INT},
}
CATALOG = Catalog()
for _number, (_name, _columns) in enumerate(COLUMNS.items(), 1):
    _fields = tuple(Field(n, t) for n, t in _columns.items())
    CATALOG = CATALOG.with_relation(Table(_name, _fields, number=_number))

QUERIES = [
    "SELECT id, v + 1 FROM a WHERE v > 0",
    "SELECT * FROM a JOIN b ON a.id = b.id",
    "SELECT a.id, b.w, c.v FROM a, b, c WHERE a.id = b.id AND b.g = c.g AND a.v < c.v",
    "SELECT a.id, b.id FROM a JOIN b ON a.id < b.id",
    "SELECT a.id, c.g FROM a CROSS JOIN c",
    "SELECT x.id, y.v, z.g FROM a AS x JOIN a AS y ON x.id = y.v JOIN a AS z ON z.g = y.g",
    "SELECT a.id, a.m, b.w FROM a LEFT JOIN b ON a.id = b.id AND b.w > a.v",
    "SELECT a.id, b.x FROM a RIGHT JOIN b ON a.id = b.id",
    "SELECT a.g, b.w, c.v FROM a FULL JOIN b ON a.id = b.id FULL JOIN c ON c.g = b.g",
    "SELECT a.id, b.w, c.v FROM a LEFT JOIN b ON a.id = b.id LEFT JOIN c ON b.g = c.g",
    "SELECT a.id FROM a LEFT JOIN b ON a.v > b.w",
    "SELECT id FROM a WHERE EXISTS (SELECT * FROM b WHERE a.id = b.id AND a.v < b.w)",
    "SELECT id FROM a WHERE NOT EXISTS (SELECT * FROM b JOIN c ON b.g = c.g WHERE a.id = b.id)",
    "SELECT id FROM a WHERE id IN (SELECT v FROM c) AND g NOT IN (SELECT g FROM b)",
    "SELECT id, (SELECT max(w) FROM b WHERE b.id = a.id) AS most FROM a",
    "SELECT id FROM a WHERE v > (SELECT avg(v) FROM c)",
    "SELECT g, count(*), sum(v), min(m), max(v), count(DISTINCT id) FROM a GROUP BY g",
    "SELECT count(*), sum(v), min(m), avg(m) FROM a JOIN b USING (id)",
    "SELECT g, n, count(*) FROM (SELECT g, count(*) AS n FROM a GROUP BY g) GROUP BY g, n HAVING count(*) > 0",
    "SELECT n, count(*) FROM (SELECT a.g, count(*) AS n FROM a LEFT JOIN b ON a.id = b.id GROUP BY a.g) GROUP BY n",
    "SELECT g, v, sum(m) FROM a GROUP BY ROLLUP (g, v)",
    "SELECT DISTINCT a.g, b.w FROM a JOIN b ON a.id = b.id",
    "SELECT id, g FROM a UNION ALL SELECT id, g FROM b UNION ALL SELECT v, g FROM c",
    "SELECT id, g FROM a UNION SELECT v, g FROM c",
    "SELECT id, g FROM a EXCEPT ALL SELECT id, g FROM b",
    "SELECT id, g FROM a INTERSECT ALL SELECT v, g FROM c",
    "SELECT g FROM a EXCEPT SELECT g FROM b",
    "SELECT g FROM a INTERSECT SELECT g FROM c",
    "WITH n AS (SELECT g, sum(v) AS s FROM a GROUP BY g) SELECT x.g, y.s FROM n AS x JOIN n AS y ON x.s = y.s",
    "WITH n AS (SELECT a.id, b.w FROM a JOIN b ON a.id = b.id) SELECT x.id, y.w FROM n AS x JOIN n AS y ON x.w = y.id",
    "SELECT * FROM (SELECT id, v FROM a ORDER BY v DESC, id LIMIT 3) WHERE v > 0",
    "SELECT g, count(*) FROM (SELECT * FROM b ORDER BY w LIMIT 4) GROUP BY g",
    "SELECT id, g, row_number() OVER (PARTITION BY g ORDER BY v) AS n FROM a",
    "SELECT id, rank() OVER (PARTITION BY g ORDER BY v DESC), dense_rank() OVER (PARTITION BY g ORDER BY m) FROM a",
    "SELECT id, v - lag(v, 1, id) OVER (PARTITION BY g ORDER BY v), lead(m) OVER (PARTITION BY g ORDER BY v) FROM a",
    "SELECT g, sum(v) OVER (PARTITION BY g ORDER BY id), avg(m) OVER (PARTITION BY g), count(*) OVER () FROM a",
    "SELECT id, sum(w) OVER (PARTITION BY g ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) FROM b",
    "SELECT id, first(w) OVER (PARTITION BY g ORDER BY id), ntile(2) OVER (ORDER BY w) FROM b",
    "SELECT g, n, rank() OVER (PARTITION BY n ORDER BY g) FROM (SELECT g, count(*) AS n FROM a GROUP BY g)",
    "SELECT a.id, b.w FROM a JOIN b USING (id) QUALIFY row_number() OVER (PARTITION BY a.g ORDER BY w DESC) <= 2",
    "SELECT n, count(*) FROM (SELECT row_number() OVER (PARTITION BY g ORDER BY v, id) AS n FROM a) GROUP BY n",
]
VALUES: dict[str, list[Any]] = {
    "int": [None, 0, 1, 2, 3],
    "bigint": [None, 0, 1, 2],
    "string": [None, "x", "y", ""],
    "decimal(10,2)": [None, Decimal("0.50"), Decimal(-2)],
    "double": [None, 0.0, -1.5],
}
Rows = list[tuple[Any, ...]]
Change = tuple[Rows, Rows, Rows]
"""Rows that stay, that go, that come."""


def _rows(name: str, most: int) -> st.SearchStrategy[Rows]:
    return st.lists(st.tuples(*(st.sampled_from(VALUES[t.sql]) for t in COLUMNS[name].values())), max_size=most)


CHANGES = st.fixed_dictionaries({name: st.tuples(_rows(name, 6), _rows(name, 3), _rows(name, 3)) for name in COLUMNS})


def bound(text: str) -> Node:
    statement = parse(text)
    assert isinstance(statement, Query)
    return optimize(Binder(CATALOG, NeverAsked()).query(statement.query))


def arrow(name: str, rows: Rows, weights: list[int] | None = None) -> pa.Table:
    schema = arrow_schema(tuple(Field(n, t) for n, t in COLUMNS[name].items()))
    found = pa.Table.from_arrays([pa.array([r[i] for r in rows], f.type) for i, f in enumerate(schema)], schema=schema)
    return found if weights is None else found.append_column(WEIGHT, pa.array(weights, pa.int64()))


def is_change(leaf: Leaf) -> bool:
    return isinstance(leaf.ref, GivenRef)


def by_key(plan: Node, data: dict[str, pa.Table]) -> pa.Table:
    """The plan's rows, where each leaf that can be has only the rows of the keys that are looked for."""
    data = dict(data)
    rest, lookups = LOOKED_UP.setdefault(plan, looked_up(plan, is_change, lambda leaf, fields: sorted(fields)))
    for lookup in lookups:
        wanted = set(rows_of(run(lookup.keys, data)))
        whole = data[lookup.leaf.relation]
        keys = rows_of(whole.select(list(lookup.fields)))
        data[lookup.given.name] = whole.filter(pa.array([key in wanted for key in keys], pa.bool_()))
    return run(rest, data)


LOOKED_UP = WeakKeyDictionary[Node, tuple[Node, list[LeafLookup]]]()


class Changing:
    """A plan, and the plans of its change by what changed and how its leaves lie."""

    def __init__(self, text: str) -> None:
        self.plan = rewrite_plan(bound(text), settled)  # the choice among ties is the plan's own
        self.refs: dict[str, Ref] = {leaf.relation: leaf.ref for leaf in leaves(self.plan)}
        self._deltas: dict[tuple[frozenset[str], str], Node | None] = {}

    def delta(self, changed: frozenset[str], lies: str) -> Node | None:
        key = (changed, lies)
        if key not in self._deltas:
            found = Deltas(dict.fromkeys((self.refs[name] for name in changed), lies)).of(self.plan)  # type: ignore[arg-type]
            assert found is None or [c.id for c in found.rows.output if c.id != found.weight.id] == [
                c.id for c in self.plan.output
            ]
            self._deltas[key] = found and found.rows
        return self._deltas[key]

    def check(self, changes: dict[str, Change], lies: str) -> None:
        changes = {name: change for name, change in changes.items() if name in self.refs}
        changed = frozenset(name for name, (_, gone, come) in changes.items() if gone or come)
        before = {name: arrow(name, stay + gone) for name, (stay, gone, _) in changes.items()}
        now = {name: arrow(name, stay + come) for name, (stay, _, come) in changes.items()}
        data = dict(before if lies == "before" else now)
        for name, (_, gone, come) in changes.items():
            rows = arrow(name, gone + come, [-1] * len(gone) + [1] * len(come))
            data[change_ref(self.refs[name]).name] = rows
        was, has = bag(run(self.plan, before)), bag(run(self.plan, now))
        plan = self.delta(changed, lies)
        assert (plan is None) == (not changed)
        rows = by_key(plan, data) if plan is not None else None
        came: Counter[str] = Counter()
        if rows is not None:
            for row in zip(*(c.to_pylist() for c in rows.columns), strict=True):
                came[repr(row[:-1])] += row[-1]
        found = Counter(was)
        for row, weight in came.items():
            found[row] += weight
        assert {r: n for r, n in found.items() if n} == dict(has)


CASES = {text: Changing(text) for text in QUERIES}


@pytest.mark.parametrize("text", QUERIES)
def test_oracle_before_and_the_change_are_now(text: str) -> None:
    @settings(max_examples=examples(12))
    @given(CHANGES, st.sampled_from(["before", "now"]))
    def hold(changes: dict[str, Change], lies: str) -> None:
        CASES[text].check(changes, lies)

    hold()


def test_a_small_change_is_joined_first_and_by_keys() -> None:
    plan = bound("SELECT a.id, b.w, c.v FROM a, b, c WHERE a.id = b.id AND b.g = c.g")
    (ref,) = {leaf.ref for leaf in leaves(plan) if leaf.relation == "c"}
    found = Deltas({ref: "before"}).of(plan)
    assert found is not None
    order = [leaf.relation for leaf in leaves(found.rows) if isinstance(leaf, Leaf)]
    assert order == [change_ref(ref).name, "b", "a"]


@pytest.mark.parametrize(
    ("text", "changed", "steps"),
    [
        ("SELECT a.id, b.w, c.v FROM a, b, c WHERE a.id = b.id AND b.g = c.g", "a", ["b: id", "c: g"]),
        ("SELECT a.id, b.w, c.v FROM a, b, c WHERE a.id = b.id AND b.g = c.g", "c", ["b: g", "a: id"]),
        ("SELECT a.id, b.w FROM a LEFT JOIN b ON a.id = b.id", "b", ["a: id", "a: id", "b: id", "b: id"]),
        ("SELECT id FROM a WHERE EXISTS (SELECT * FROM b WHERE a.id = b.id)", "a", ["b: id"]),
        ("SELECT id FROM a WHERE EXISTS (SELECT * FROM b WHERE a.id = b.id)", "b", ["a: id", "b: id", "b: id"]),
        ("SELECT g, min(v) FROM a GROUP BY g", "a", ["a: g", "a: g"]),
        ("SELECT b.id, n FROM b JOIN (SELECT g, count(*) AS n FROM a GROUP BY g) AS x ON x.g = b.g", "b", ["a: g"]),
        ("SELECT id, g FROM a EXCEPT ALL SELECT id, g FROM b", "a", ["a: g,id", "b: g,id", "a: g,id", "b: g,id"]),
        ("SELECT min(v) FROM a", "a", []),
        ("SELECT id, rank() OVER (PARTITION BY g ORDER BY v) FROM a", "a", ["a: g", "a: g"]),
        ("SELECT id, rank() OVER (ORDER BY v) FROM a", "a", []),
        (
            "SELECT b.id, n FROM b JOIN (SELECT g, row_number() OVER (PARTITION BY g ORDER BY v) AS n FROM a) AS x "
            "ON x.g = b.g",
            "b",
            ["a: g"],
        ),
        ("SELECT a.id FROM a JOIN b ON a.id < b.id", "a", []),
    ],
)
def test_rows_that_meet_a_change_are_looked_up(text: str, changed: str, steps: list[str]) -> None:
    found = Deltas({leaf.ref: "before" for leaf in leaves(bound(text)) if leaf.relation == changed})
    plan = found.of(bound(text))
    assert plan is not None
    _, lookups = looked_up(plan.rows, is_change, lambda leaf, fields: sorted(fields))
    assert sorted(f"{step.leaf.relation}: {','.join(step.fields)}" for step in lookups) == sorted(steps)
