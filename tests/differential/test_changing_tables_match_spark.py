"""Tables that change between the chunks of a stream: each row sees them as they were when it came, by every engine."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from harness import Case, Schedule, check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = ("k INT, n INT", [(i % 4, i) for i in range(12)] + [(None, 5), (1, None)])
TABLES = {
    "dim": (
        "k INT, g STRING, w DECIMAL(6,2)",
        [(1, "a", Decimal(1)), (1, "b", Decimal("2.25")), (2, "a", None), (None, "c", Decimal(1))],
    ),
    "cap": ("k INT, m BIGINT", [(0, 4), (1, 9)]),
}
CHANGES = {
    1: "UPDATE dim SET g = concat(g, 'x'), w = 2.50 WHERE k = 1",
    2: "DELETE FROM cap WHERE k = 0",
    3: "INSERT INTO dim VALUES (3, 'd', 0.25), (0, NULL, 7.00)",
    4: "DELETE FROM dim WHERE g = 'a'",
}
BELOW = {
    "inner": "SELECT g AS x, n * w AS y FROM s JOIN dim ON s.k = dim.k",
    "left": "SELECT g AS x, coalesce(w, 100) + n AS y FROM s LEFT JOIN dim ON s.k = dim.k AND n > 3",
    "not in": "SELECT CAST(k AS STRING) AS x, n AS y FROM s WHERE k NOT IN (SELECT k FROM cap)",
    "value": "SELECT CAST(k AS STRING) AS x, n + (SELECT max(m) FROM cap) AS y FROM s WHERE k IN (SELECT k FROM dim)",
    "grouped": "SELECT d.g AS x, s.n + d.c AS y FROM s JOIN "
    "(SELECT g, max(k) AS k, count(*) AS c FROM dim GROUP BY g) d ON s.k = d.k",
}


@pytest.mark.spark
@pytest.mark.parametrize("below", BELOW)
def test_differential_tables_that_change(spark: SparkSession, tmp_path: Any, below: str) -> None:
    view = "SELECT x, count(*) AS c, sum(y) AS y, max(y) AS top FROM {below} AS b GROUP BY x"
    case = Case(view, {"s": STREAM}, TABLES, below=BELOW[below], changes=CHANGES)
    cuts = (2, 5, 8, 10)
    runs = [("native", Schedule(cuts, 1)), ("tasks", Schedule(cuts, 1)), ("spark", Schedule(cuts, 1))]
    check(case, spark, runs)
    again = Schedule(cuts, 1, 3)
    check(case, spark, [("native", again)], path=tmp_path / "db")
