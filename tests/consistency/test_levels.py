"""The checker of levels itself, on runs that are written out by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from levels import Bag, Level, Log, Read, judged, level, stale

from profiles import examples


def sums(rows: Sequence[Any]) -> Bag:
    """SELECT x, sum(y) … GROUP BY x."""
    found: dict[Any, int] = {}
    for _, x, y in rows:
        found[x] = found.get(x, 0) + y
    return Counter(found.items())


def keys(rows: Sequence[Any]) -> Bag:
    return Counter(k for k, _, _ in rows)


def reads(*shown: dict[str, Bag] | Bag) -> list[Read]:
    """Reads one after another."""
    views = [{"v": one} if isinstance(one, Counter) else one for one in shown]
    return [Read(one, 2 * n, 2 * n + 1) for n, one in enumerate(views)]


def total(y: int | None) -> Bag:
    return Counter([] if y is None else [("x", y)])


# 001, Example 4.2.1: put k1 15 -> 20, put k2 10, delete k1. Each record has its own order, and no other.
EXAMPLE = [[[("k1", "x", 15)], [("k1", "x", 20)], []], [[], [("k2", "x", 10)]]]


@pytest.mark.parametrize(
    ("shown", "reached"),
    [
        ([15, 20, 30, 10], Level.COMPLETE),  # (1) (2) (3)
        ([15, 20, None, 10], Level.COMPLETE),  # (1) (3) (2)
        ([15, 25, 30, 10], Level.COMPLETE),  # (2) (1) (3)
        ([15, 30, 10], Level.STRONG),  # batching leaves one out
        ([15, 10], Level.STRONG),
        ([10], Level.STRONG),
        ([15, 15, 20, 20, 30, 10, 10], Level.COMPLETE),
        ([15, 30, 20, 10], Level.WEAK),  # V4 before V1
        ([15, 25, 20, 10], Level.WEAK),  # k2 is there, then it is not
        ([15, 10, 30, 10], Level.WEAK),
        ([15, -5, 10], Level.CONVERGENCE),  # (3) (1) (2): the delete first, by its difference
        ([15, 5, 10], Level.CONVERGENCE),  # (3) (2) (1)
        ([15, 20, 30], Level.NONE),  # (3) is lost
        ([15, 20, 40, 20], Level.NONE),  # (2) is there twice
    ],
)
def test_example_4_2_1(shown: list[int | None], reached: Level) -> None:
    log = Log(EXAMPLE, {"v": sums}, reads(*map(total, shown)))
    assert level(log)[0] == reached, level(log)


def test_epochs_have_one_order_where_records_have_none() -> None:
    """25 is a state of 001's store, where k2 may come first. It is none of a database whose epochs are (1) (2) (3)."""
    (k1, k2), seen = EXAMPLE, reads(total(15), total(25), total(10))
    assert level(Log(EXAMPLE, {"v": sums}, seen))[0] == Level.STRONG
    epochs = [[*k1[0], *k2[0]], [*k1[1], *k2[0]], [*k1[1], *k2[1]], [*k1[2], *k2[1]]]
    assert level(Log([epochs], {"v": sums}, seen))[0] == Level.CONVERGENCE


def test_each_view_strong_but_not_together() -> None:
    epochs = [[], [("k", "x", 1)], [("k", "x", 1), ("l", "x", 1)]]
    first, second, third = ({"v": sums(rows), "w": keys(rows)} for rows in epochs)
    torn = {"v": second["v"], "w": third["w"]}
    verdict = judged(Log([epochs], {"v": sums, "w": keys}, reads(first, torn, third)))
    assert verdict.together == Level.CONVERGENCE
    assert verdict.alone == {"v": Level.COMPLETE, "w": Level.STRONG}
    verdict = judged(Log([epochs], {"v": sums, "w": keys}, reads(first, second, third)))
    assert verdict.together == Level.COMPLETE and verdict.why == ""


def test_reads_at_once_have_no_order() -> None:
    epochs = [[], [("k", "x", 1)], [("k", "x", 2)]]
    new, old = {"v": total(2)}, {"v": total(1)}
    at_once = [Read(new, 0, 10), Read(old, 1, 9), Read(new, 11, 12)]
    assert level(Log([epochs], {"v": sums}, at_once))[0] == Level.STRONG
    after = [Read(new, 0, 1), Read(old, 2, 3), Read(new, 11, 12)]
    assert level(Log([epochs], {"v": sums}, after))[0] == Level.WEAK


def test_a_change_that_no_view_shows_is_not_missed() -> None:
    epochs = [[], [("k", "x", 1)], [("l", "x", 1)], [("l", "x", 3)]]
    assert level(Log([epochs], {"v": sums}, reads(total(None), total(1), total(3))))[0] == Level.COMPLETE


def test_what_comes_back_to_where_it_was() -> None:
    epochs = [[], [("k", "x", 1)], [], [("k", "x", 1)], [("k", "x", 2)]]
    there, gone = total(1), total(None)
    assert level(Log([epochs], {"v": sums}, reads(gone, there, gone, there, total(2))))[0] == Level.COMPLETE
    assert level(Log([epochs], {"v": sums}, reads(gone, there, total(2))))[0] == Level.STRONG
    assert level(Log([epochs], {"v": sums}, reads(there, gone, there, gone, total(2))))[0] == Level.WEAK


def test_old_reads_are_told() -> None:
    epochs = [[], [("k", "x", 1)], [("k", "x", 2)]]
    log = Log([epochs], {"v": sums}, reads(total(None), total(None), total(2)), acknowledged=[0, 1.5, 3.5])
    assert level(log)[0] == Level.STRONG and stale(log) == [1]


@settings(max_examples=examples(60))
@given(st.data())
def test_oracle_strong_is_what_trying_all_cuts_says(data: st.DataObject) -> None:
    """Random small runs: the level by :func:`level` and by trying every choice of cuts."""
    from itertools import product

    numbers = st.integers(1, 2)
    timelines = data.draw(
        st.lists(
            st.lists(st.lists(numbers.map(lambda y: ("k", "x", y)), max_size=1), min_size=1, max_size=3),
            min_size=1,
            max_size=2,
        )
    )
    spans = data.draw(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=3))
    shown = [total(data.draw(st.sampled_from([None, 1, 2, 3, 4]))) for _ in spans]
    seen = [Read({"v": rows}, a, a + b) for rows, (a, b) in zip(shown, spans, strict=True)]
    seen.append(Read({"v": sums([row for line in timelines for row in line[-1]])}, 20, 21))
    log = Log(timelines, {"v": sums}, seen)
    cuts = list(product(*(range(len(line)) for line in timelines)))
    explained = [[cut for cut in cuts if log.explains(cut, read)] for read in seen]
    before = [(i, j) for i, a in enumerate(seen) for j, b in enumerate(seen) if a.ended < b.began]
    strong = any(
        all(all(x <= y for x, y in zip(chosen[i], chosen[j], strict=True)) for i, j in before)
        for chosen in product(*explained)
    )
    wanted = Level.CONVERGENCE if not all(explained) else Level.STRONG if strong else Level.WEAK
    assert min(level(log)[0], Level.STRONG) == wanted
