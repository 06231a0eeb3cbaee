"""Groups come and go: memory follows those there are, and the state is that of a dictionary."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.keep import resident as module
from headrace.keep.resident import WAITING, Resident
from headrace.plan.exprs import Agg, Column
from headrace.plan.pipelines import State
from headrace.types import BIGINT, DOUBLE, INT, STRING, Type, arrow_schema, decimal
from profiles import examples

WIDE = decimal(38, 2)


def state(*keys: Type) -> State:
    """Groups with their weight and a sum."""
    weight, total = Column.fresh("a0", BIGINT), Column.fresh("a1", WIDE)
    partials = ((weight, Agg(BIGINT, "sum", (weight,))), (total, Agg(WIDE, "sum", (total,))))
    named = tuple(Column.fresh(f"k{i}", k) for i, k in enumerate(keys))
    return State("s0", "groups", named, partials, (), monotone=False)


def rows_of(kept: State, rows: list[tuple[Any, ...]]) -> pa.Table:
    schema = arrow_schema(kept.schema)
    return pa.table([pa.array([r[i] for r in rows], f.type) for i, f in enumerate(schema)], schema=schema)


def contents(resident: Resident) -> dict[Any, tuple[int, Decimal]]:
    found = {tuple(row.values())[:-2]: (row["a0"], row["a1"]) for row in resident.table().to_pylist()}
    assert len(found) == resident.table().num_rows, "a group twice"
    return found


@pytest.mark.parametrize("key", [INT, STRING, BIGINT, DOUBLE])
def test_churn_of_fresh_keys_takes_bounded_memory(key: Type) -> None:
    kept = state(key)
    resident = Resident(kept)

    def name(n: int) -> Any:
        return f"key {n:06}" if key == STRING else n

    resident.fold(rows_of(kept, [(name(-n), 1, Decimal(n)) for n in range(1, 51)]), 0)
    stay = contents(resident)
    sizes = []
    for turn in range(1_000):
        fresh = [name(100 * turn + n) for n in range(100)]
        resident.fold(rows_of(kept, [(k, 1, Decimal(7)) for k in fresh]), 2 * turn + 1)
        assert resident.find([pa.array(fresh[:1], key.arrow)]).num_rows == 1
        resident.fold(rows_of(kept, [(k, -1, Decimal(-7)) for k in fresh]), 2 * turn + 2)
        assert resident.find([pa.array(fresh[:1], key.arrow)]).num_rows == 0
        assert resident.slots <= 2 * WAITING
        sizes.append(resident.bytes)
    assert contents(resident) == stay and resident.epoch == 2_000
    assert max(sizes) <= 2 * max(sizes[:50]) < 1_000_000


def test_a_group_that_comes_again_has_its_slot_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = state(INT)
    resident = Resident(kept)
    monkeypatch.setattr(Resident, "_begin", lambda self: pytest.fail("one slot waits at most"))
    for epoch in range(3 * WAITING):
        for sign in (1, -1):
            resident.fold(rows_of(kept, [(1, sign, Decimal(sign))]), epoch)
    assert (resident.slots, contents(resident)) == (1, {})


def test_the_one_group_of_a_total_stays() -> None:
    kept = state()
    resident = Resident(kept)
    for sign in (1, -1):
        resident.fold(rows_of(kept, [(sign, Decimal(sign))]), 0)
    assert contents(resident) == {(): (0, Decimal(0))}


KEY = st.tuples(st.none() | st.integers(0, 30), st.none() | st.sampled_from([f"t{n}" for n in range(12)]))
CHANGE = st.tuples(KEY, st.integers(-2, 2), st.integers(-2, 2))


@settings(max_examples=examples(60))
@given(st.lists(st.lists(CHANGE, max_size=25), max_size=12), st.integers(0, 8))
def test_oracle_folding_is_adding_up(batches: list[list[Any]], waiting: int) -> None:
    """Beside a dictionary, with so few slots waiting that it begins anew again and again."""
    kept = state(INT, STRING)
    weights, sums = Counter[Any](), Counter[Any]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WAITING", waiting)
        resident = Resident(kept)
        for epoch, batch in enumerate(batches):
            resident.fold(rows_of(kept, [(*key, w, Decimal(d)) for key, w, d in batch]), epoch)
            for key, w, d in batch:
                weights[key] += w
                sums[key] += d
            left = {k: (weights[k], Decimal(sums[k])) for k in weights if weights[k] or sums[k]}
            assert contents(resident) == left
            assert resident.slots <= 2 * len(left) + 2 * waiting + len(batch) + 1
            if weights:
                key = random.Random(epoch).choice(list(weights))
                found = resident.find([pa.array([key[0]], pa.int32()), pa.array([key[1]])])
                assert found.num_rows == (key in left)
