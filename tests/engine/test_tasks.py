"""How tasks are run: one for each number, as an RDD job or, where Spark has no RDDs, as a query."""

from collections.abc import Iterable, Iterator

import pytest
from pyspark.sql import SparkSession

from headrace.engine import tasks


@pytest.mark.parametrize("has_rdds", [True, False], ids=["classic", "connect"])
def test_each_number_is_one_task(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, has_rdds: bool) -> None:
    if not has_rdds:
        monkeypatch.setattr(tasks, "spark_context", lambda _: None)

    def task(numbers: Iterable[int]) -> Iterator[tuple[int, str, str, bytes]]:
        own = list(numbers)
        for number in own:
            yield number, "rows", f"alone: {len(own) == 1}", bytes([number, 0])

    found = sorted(tasks.run_each(spark, 5, task))
    assert found == [(n, "rows", "alone: True", bytes([n, 0])) for n in range(5)]
