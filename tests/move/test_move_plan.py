"""State selection and plan modification over random plans: nothing lost, nothing twice, only what is needed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from hypothesis import given
from hypothesis import strategies as st

from headrace.move.plan import (
    Holding,
    Operator,
    Pipeline,
    Placement,
    dependencies,
    extracted,
    in_order,
    modified,
    placements,
    state_of,
    worth_moving,
)

Rows = tuple[str, ...]


def shuffle(below: Operator) -> Operator:
    return Operator(below.identity, "Shuffle", (below,), Holding.ROWS)


def broadcast(below: Operator, keys: str) -> Operator:
    return Operator(below.identity, "Broadcast", (below,), Holding.INDEX, keys)


@st.composite
def plans(draw: st.DrawFn) -> Operator:
    """Plans bottom up; an operator may be read by many, as a reused exchange or a subquery is."""
    made: list[Operator] = [Operator(f"scan{i}", "Scan") for i in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(1, 12))):
        match draw(st.sampled_from(["shuffle", "broadcast", "sort", "unary", "join", "pruned"])):
            case "shuffle":
                made.append(shuffle(draw(st.sampled_from(made))))
            case "broadcast":
                made.append(broadcast(draw(st.sampled_from(made)), draw(st.sampled_from("kl"))))
            case "sort":
                below = draw(st.sampled_from(made))
                made.append(Operator(below.identity, "Sort", (below,), transparent=True))
            case "unary":
                below = draw(st.sampled_from(made))
                made.append(Operator(f"f({below.identity})", "Filter", (below,)))
            case "join":
                left, right = draw(st.sampled_from(made)), draw(st.sampled_from(made))
                made.append(Operator(f"j({left.identity},{right.identity})", "Join", (left, right)))
            case "pruned":
                below = draw(st.sampled_from(made))
                asked = Operator(f"keys({below.identity})", "Pruning", (below,), transparent=True, prunes=True)
                made.append(Operator(f"p({asked.identity})", "Scan", (asked,)))
    return Operator(f"root({made[-1].identity})", "Root", (made[-1],))


def breakers(root: Operator) -> list[Operator]:
    return [operator for operator in root.walk() if operator.is_breaker]


def cuts(root: Operator) -> Iterator[set[Pipeline]]:
    """Every set of finished pipelines in one order of execution: each after those it reads."""
    order: list[Pipeline] = []

    def visit(operator: Operator) -> None:
        for below in operator.inputs:
            visit(below)
        if operator.is_breaker and operator.pipeline not in order:
            order.append(operator.pipeline)

    visit(root)
    for n in range(len(order) + 1):
        yield set(order[:n])


def work(operator: Operator) -> Rows:
    """What is computed to get an operator's rows: every operator below, state scans as such."""
    return tuple(sorted({each.name + ":" + each.identity for each in operator.walk()}))


def moved(root: Operator, finished: set[Pipeline]) -> tuple[Operator, list[Placement]]:
    state = state_of(finished, dependencies(root))

    def scan(place: Placement) -> Operator:
        return Operator(place.operator.identity, "State", (), place.pipeline.holding, place.pipeline.index)

    def remake(old: Operator, inputs: tuple[Operator, ...]) -> Operator:
        return Operator(old.identity, old.name, inputs, old.holding, old.index, old.transparent, old.prunes)

    return modified(root, state, scan, remake), placements(root, state)


@given(plans())
def test_moved_plan_gives_the_same_rows_and_repeats_no_finished_pipeline(root: Operator) -> None:
    for finished in cuts(root):
        after, places = moved(root, finished)
        # The same relation at the root and at every operator that is left.
        assert after.identity == root.identity
        # No operator that only finished pipelines needed is run again.
        needed = {id(op) for op in left_to_do(root, finished)}
        for operator in after.walk():
            if operator.name not in ("State",) and not operator.is_breaker and not operator.transparent:
                assert any(op.identity == operator.identity and id(op) in needed for op in root.walk()), (
                    operator,
                    work(after),
                )
        assert len(extracted(places)) == len({place.pipeline for place in places})


def left_to_do(root: Operator, finished: set[Pipeline]) -> Iterator[Operator]:
    """The operators of unfinished pipelines."""
    yield root
    for below in root.inputs:
        if not (below.is_breaker and below.pipeline in finished):
            yield from left_to_do(below, finished)


@given(plans())
def test_only_what_an_unfinished_pipeline_reads_is_state(root: Operator) -> None:
    depends = dependencies(root)
    for finished in cuts(root):
        state = state_of(finished, depends)
        assert state <= finished
        for pipeline in state:
            readers = [reader for reader, read in depends.items() if pipeline in read]
            assert any(reader is None or reader not in finished for reader in readers)
        for pipeline in finished - state:
            assert all(reader in finished for reader, read in depends.items() if pipeline in read)


@given(plans())
def test_every_exchange_ends_a_pipeline_that_somebody_reads(root: Operator) -> None:
    depends = dependencies(root)
    assert depends.keys() - {None} == {breaker.pipeline for breaker in breakers(root)}
    assert depends.keys() - {None} == {read for reads in depends.values() for read in reads}
    assert all(reader not in reads for reader, reads in depends.items())
    order = in_order(depends)
    assert len(order) == len(depends) - 1 and set(order) == depends.keys() - {None}


def test_an_exchange_right_above_another_hides_nothing() -> None:
    """As of a repartition below a window, or of a sort with OFFSET."""
    scan = shuffle(Operator("scan", "Scan"))
    grouped = shuffle(Operator("group", "Aggregate", (scan,)))
    root = Operator("answer", "Window", (shuffle(grouped),))
    depends = dependencies(root)
    assert depends == {None: {grouped.pipeline}, grouped.pipeline: {scan.pipeline}, scan.pipeline: set()}
    assert state_of({scan.pipeline}, depends) == {scan.pipeline}
    assert in_order(depends) == [scan.pipeline, grouped.pipeline]


@given(plans())
def test_rows_without_unmatched_keys_only_ever_feed_the_same_index_or_pruning(root: Operator) -> None:
    for finished in cuts(root):
        places = placements(root, state_of(finished, dependencies(root)))
        for place in places:
            if place.pipeline.holding is Holding.INDEX:
                assert any(fits(above, place) for above in root.walk())


def fits(above: Operator, place: Placement) -> bool:
    """Whether ``above`` reads the place as its index, or asks it for keys, with nothing but orders between."""
    if not (above.prunes or (above.holding is Holding.INDEX and above.index == place.pipeline.index)):
        return False
    below = above.inputs[0]
    while below is not place.operator and below.inputs and (below.transparent or below.is_breaker):
        below = below.inputs[0]
    return below is place.operator


@given(plans())
def test_a_query_that_was_moved_can_be_moved_again(root: Operator) -> None:
    for finished in cuts(root):
        after, _ = moved(root, finished)
        again = {op.pipeline for op in after.walk() if op.is_breaker and not op.inputs}
        state = state_of(again, dependencies(after))
        carried = extracted(placements(after, state))
        assert set(carried) == again  # what came and was not read yet goes on
        assert {place.pipeline for place in placements(root, carried)} == set(carried)


@given(plans(), st.data())
def test_what_is_worth_moving_never_costs_more_than_moving_all_or_nothing(root: Operator, data: st.DataObject) -> None:
    depends = dependencies(root)
    prices = st.dictionaries(st.sampled_from(sorted(depends, key=str)), st.integers(0, 9))
    move, again = data.draw(prices), data.draw(prices)
    for finished in cuts(root):
        state = state_of(finished, depends)
        kept = worth_moving(state, finished, depends, lambda p: move.get(p, 4), lambda p: again.get(p, 4))
        assert kept <= finished

        everything = reads(state, depends, set())
        anew = reads(state, depends, kept) - kept
        cost = sum(move.get(p, 4) for p in kept) + sum(again.get(p, 4) for p in anew)
        assert cost <= sum(move.get(p, 4) for p in state)
        if len(everything) == 1:
            assert cost <= sum(again.get(p, 4) for p in everything)
        assert worth_moving(state, finished, depends, lambda p: move.get(p, 4), lambda _: math.inf) == state


def reads(
    pipelines: set[Pipeline], depends: Mapping[Pipeline | None, set[Pipeline]], there: set[Pipeline]
) -> set[Pipeline]:
    """These and all they read, down to what is there."""
    found = set(pipelines)
    while more := {q for p in found - there for q in depends[p]} - found:
        found |= more
    return found


def test_the_example_of_the_thesis() -> None:
    """000 Figure 6.2: pipelines 1 to 6; after the fourth the state is 2 and 4, after the fifth 2, 4 and 5 (M1)."""
    orders = shuffle(Operator("orders", "Scan"))  # 1
    grouped = shuffle(Operator("group", "Aggregate", (orders,)))  # 2
    ranked = shuffle(Operator("max", "Aggregate", (grouped,)))  # 3
    best = broadcast(Operator("threshold", "Project", (ranked,)), "k")  # 4
    customers = broadcast(Operator("customers", "Scan"), "id")  # 5
    root = Operator("answer", "Join", (Operator("join", "Join", (grouped, best)), customers))
    one, two, three, four, five = (each.pipeline for each in (orders, grouped, ranked, best, customers))
    depends = dependencies(root)
    assert depends == {None: {two, four, five}, two: {one}, three: {two}, four: {three}, one: set(), five: set()}
    assert state_of({one, two, three, four}, depends) == {two, four}
    assert state_of({one, two, three, four, five}, depends) == {two, four, five}
    # The grouping is read twice: both places are replaced, it is extracted once; the topmost replacement wins (M4, M5).
    places = placements(root, {two})
    assert [place.operator.identity for place in places] == ["group", "group"]
    assert extracted(places) == [two]
    assert extracted(placements(root, {two, four})) == [two, four]
