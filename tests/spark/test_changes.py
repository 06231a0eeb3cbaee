"""A view's changes without Spark: the links add up to the answer, at every step and after folding."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import DataError
from headrace.spark import changes
from headrace.spark.changes import Chain
from profiles import examples

ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([0.5, float("inf"), None])), max_size=6)
SCHEMA = pa.schema([("k", pa.string()), ("Odd name", pa.float64())])


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.table([[r[0] for r in rows], [r[1] for r in rows]], schema=SCHEMA)


def total(files: list[Path]) -> Counter[tuple[Any, ...]]:
    weights: Counter[tuple[Any, ...]] = Counter()
    for file in files:
        for row in pq.read_table(file).to_pylist():
            weights[row["k"], row["Odd name"]] += row["_weight"]
    return weights


@settings(max_examples=examples(10))
@given(st.lists(ROWS, max_size=8))
def test_oracle_changes_add_up_to_the_answer(
    tmp_path_factory: pytest.TempPathFactory, answers: list[list[tuple[Any, ...]]]
) -> None:
    kept, changes.KEPT_LINKS = changes.KEPT_LINKS, 3
    try:
        path = tmp_path_factory.mktemp("db")
        head = 0
        for epoch, rows in enumerate(answers, start=1):
            before = total(Chain(path, "v").between(0, head))
            now = Chain(path, "v").advance(epoch, table(rows))
            if now == epoch:
                step = Chain(path, "v").between(head, now) if len(Chain(path, "v").links()) > 1 else []
                after = Counter(rows)
                assert not step or total(step) == _minus(after, before)
                head = now
            assert _clean(total(Chain(path, "v").between(0, head))) == Counter(rows)
            assert len(Chain(path, "v").links()) <= 4
    finally:
        changes.KEPT_LINKS = kept


def _minus(after: Counter[Any], before: Counter[Any]) -> Counter[Any]:
    result = Counter(after)
    result.subtract(before)
    return _clean(result)


def _clean(weights: Counter[Any]) -> Counter[Any]:
    return Counter({k: n for k, n in weights.items() if n})


def test_asking_again_gives_the_same_files(tmp_path: Path) -> None:
    chain = Chain(tmp_path, "v")
    assert (chain.head(), chain.between(0, 0), chain.advance(3, table([]))) == (0, [], 0)
    assert chain.advance(4, table([("a", 1.0)])) == 4
    assert chain.advance(4, table([("never", 1.0)])) == 4  # an epoch has one answer
    assert chain.advance(6, table([("a", 1.0)])) == 4
    assert chain.advance(9, table([("b", 1.0)])) == 9
    assert [f.name for f in Chain(tmp_path, "v").between(0, 9)] == ["0-4.parquet", "4-9.parquet"]
    assert [f.name for f in Chain(tmp_path, "v").between(4, 9)] == ["4-9.parquet"]
    with pytest.raises(DataError, match="CHANGES_EXPIRED"):
        chain.between(5, 9)
