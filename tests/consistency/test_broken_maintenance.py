"""Maintenance that is broken on purpose, in a real database: the checker says which level is left.

What a change of a table adds to a view's states is lost, added twice, torn over two commits, held back past a later
version of the same record, or held back whole; or a query is given an older answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from levels import Bag, Level, Log, Read, judged, stale

import headrace
from headrace.keep.answers import Answers
from headrace.keep.kept import Renewal
from headrace.view.materialized import MaterializedView

StateRows = dict[int, pa.Table]

# 001, Example 4.2.1, and a record that changes its group.
HISTORY = [
    "INSERT INTO t VALUES ('k0', 'y', 1), ('k1', 'x', 15)",
    "INSERT INTO t VALUES ('k2', 'x', 10)",
    "UPDATE t SET y = 20 WHERE k = 'k1'",
    "DELETE FROM t WHERE k = 'k1'",
    "UPDATE t SET x = 'z' WHERE k = 'k2'",
    "INSERT INTO t VALUES ('k3', 'x', 1)",
]


def by_x(rows: Sequence[Any]) -> Bag:
    """SELECT x, sum(y), count(*) FROM t GROUP BY x."""
    sums: dict[Any, list[int]] = {}
    for _, x, y in rows:
        sums.setdefault(x, []).append(y)
    return Counter((x, sum(ys), len(ys)) for x, ys in sums.items())


def every(rows: Sequence[Any]) -> Bag:
    """SELECT 'all', sum(y), count(*) FROM t."""
    return Counter([("all", sum(y for _, _, y in rows) if rows else None, len(rows))])


@dataclass
class Broken:
    """What becomes of a view's state rows: those of each change, by its number from 1."""

    rule: Callable[[int, StateRows, list[StateRows]], StateRows]
    view: str = "by_x"
    number: int = 0
    held: list[StateRows] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = MaterializedView.changed

        def changed(view: MaterializedView, changes: Mapping[int, pa.Table], **how: Any) -> Renewal:
            found = whole(view, changes, **how)
            if view.name != self.view:
                return found
            self.number += 1
            return replace(found, rows=self.rule(self.number, dict(found.rows), self.held))

        monkeypatch.setattr(MaterializedView, "changed", changed)


def both(*parts: StateRows) -> StateRows:
    states = {state for part in parts for state in part}
    return {state: pa.concat_tables([part[state] for part in parts if state in part]) for state in states}


def lost(number: int, rows: StateRows, held: list[StateRows]) -> StateRows:
    return {} if number == 2 else rows


def doubled(number: int, rows: StateRows, held: list[StateRows]) -> StateRows:
    return both(rows, rows) if number == 2 else rows


def torn(number: int, rows: StateRows, held: list[StateRows]) -> StateRows:
    """The record leaves one group in one commit, and comes into the other in the next."""
    if number == 5:
        held.append({state: found.slice(1) for state, found in rows.items()})
        return {state: found.slice(0, 1) for state, found in rows.items()}
    return both(rows, held.pop()) if held else rows


def held_until(first: int, last: int) -> Callable[[int, StateRows, list[StateRows]], StateRows]:
    def rule(number: int, rows: StateRows, held: list[StateRows]) -> StateRows:
        if number == first:
            held.append(rows)
            return {}
        return both(rows, held.pop()) if number == last else rows

    return rule


def batched(number: int, rows: StateRows, held: list[StateRows]) -> StateRows:
    """Two changes by two, as a micro-batch would."""
    if number % 2:
        held.append(rows)
        return {}
    return both(held.pop(), rows)


def run(each: Callable[[headrace.Database, int], None] = lambda db, number: None) -> Log:
    """The history with a read of both views after each statement."""
    with headrace.connect(None, engine="native") as db:
        db.sql("CREATE TABLE t (k STRING PRIMARY KEY, x STRING, y INT)")
        db.sql("CREATE MATERIALIZED VIEW by_x AS SELECT x, sum(y) AS s, count(*) AS n FROM t GROUP BY x")
        db.sql("CREATE MATERIALIZED VIEW every AS SELECT 'all' AS x, sum(y) AS s, count(*) AS n FROM t")
        versions, reads = [], []
        for number, statement in enumerate(["SELECT 1", *HISTORY]):
            db.sql(statement)
            each(db, number)
            versions.append(db.sql("SELECT * FROM t").rows())
            told = db.sql("SELECT 'by_x' AS v, * FROM by_x UNION ALL SELECT 'every', * FROM every").rows()
            shown = {view: Counter(tuple(row[1:]) for row in told if row[0] == view) for view in ("by_x", "every")}
            reads.append(Read(shown, 2 * number + 1, 2 * number + 1.5))
    return Log([versions], {"by_x": by_x, "every": every}, reads, [2.0 * n for n in range(len(versions))])


@pytest.mark.parametrize(
    ("rule", "alone", "together"),
    [
        (None, Level.COMPLETE, Level.COMPLETE),
        (lost, Level.NONE, Level.NONE),
        (doubled, Level.NONE, Level.NONE),
        (torn, Level.CONVERGENCE, Level.CONVERGENCE),
        (held_until(3, 5), Level.CONVERGENCE, Level.CONVERGENCE),  # an update, after the delete of its record
        (batched, Level.STRONG, Level.CONVERGENCE),  # the view lags, and the other beside it does not
    ],
    ids=["sound", "lost", "doubled", "torn", "reordered", "batched"],
)
def test_what_is_broken_is_named(rule: Any, alone: Level, together: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    if rule is not None:
        Broken(rule).install(monkeypatch)
    log = run()
    verdict = judged(log)
    assert verdict.alone == {"by_x": alone, "every": Level.COMPLETE}, verdict
    assert verdict.together == together, verdict
    assert bool(stale(log)) == (rule is not None and alone > Level.NONE) or alone == Level.NONE
    if rule is not None and alone == Level.CONVERGENCE:
        assert "no base state" in verdict.why


def test_the_illegal_sum_of_example_4_2_1_is_what_reordering_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """001 Ex4.2.1: the delete of k1 takes 20 back before its update has brought it to 20: 15 + 10 - 20."""
    Broken(held_until(3, 5)).install(monkeypatch)
    assert run().reads[4].views["by_x"] == Counter([("x", 5, 1), ("y", 1, 1)])


def test_an_older_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that hands out what it had before the last answer: each read is right, their order is not."""
    kept: list[pa.Table] = []
    whole = Answers.rows

    def rows(self: Answers, snapshot: Any, kept_: Any, *given: Any, **named: Any) -> pa.Table:
        found = whole(self, snapshot, kept_, *given, **named)
        if kept_.name == "by_x":
            kept.append(found)
            return kept[-3] if len(kept) == 5 else found
        return found

    monkeypatch.setattr(Answers, "rows", rows)
    verdict = judged(run())
    assert verdict.alone == {"by_x": Level.WEAK, "every": Level.COMPLETE}, verdict
    assert verdict.together == Level.CONVERGENCE
