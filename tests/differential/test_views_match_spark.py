"""Fixed cases: each a view the slice supports, checked under every engine and several schedules.

Adding a case is adding data: views.sql.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from harness import Case, Schedule, check

S = "k INT, g STRING, x INT, d DECIMAL(10,2), f DOUBLE, b BOOLEAN, day DATE, ts TIMESTAMP, n TIMESTAMP_NTZ"


def _nulls(i: int) -> Callable[[Any, int], Any]:
    """A value of row ``i``, or NULL in every ``every``-th row."""
    return lambda value, every: None if i % every == 0 else value


def _row(i: int) -> tuple[Any, ...]:
    null = _nulls(i)
    return (
        null(i % 5, 11),
        null(["a", "b", "", "ü", "a b"][i % 5], 7),
        null(i - 10, 5),
        null(Decimal(i * 37 % 1000) / 100, 6),
        null([1.5, -0.0, float("nan"), 2.25, 1e10][i % 5], 9),
        null(i % 3 == 0, 4),
        null(dt.date(2020, 2, 27) + dt.timedelta(days=i), 8),
        null(dt.datetime(2020, 1, 1, i % 24, i % 60, 30, tzinfo=dt.UTC), 10),
        null(dt.datetime(2021, 3, 28, i % 24, (i * 7) % 60), 10),
    )


ROWS = [_row(i) for i in range(1, 61)]
T_ROWS = [
    (0, "zero", Decimal("1.5")),
    (1, "one", None),
    (2, None, Decimal("2.0")),
    (2, "two", Decimal("-3.5")),
    (9, "nine", Decimal("0.1")),
]
T = ("id INT, name STRING, w DECIMAL(5,1)", T_ROWS)

R = ("g STRING, y INT", [("a", 3), ("b", None), (None, 4), ("zz", 1), ("a", 9), ("", 2)])
J = "id INT, p STRUCT<name: STRING, geo: STRUCT<x: INT, y: DECIMAL(6,2)>, at: TIMESTAMP>, tags ARRAY<STRING>, \
items ARRAY<STRUCT<sku: STRING, qty: INT>>, w ARRAY<DOUBLE>"


def _nested_row(i: int) -> tuple[Any, ...]:
    null = _nulls(i)
    geo = null({"x": null(i % 3, 4), "y": null(Decimal(i % 7) / 4, 5)}, 6)
    at = null(dt.datetime(2020, 1, 1, i % 3, tzinfo=dt.UTC), 7)
    items = [null({"sku": null("abc"[n], 5), "qty": null(i % 3 + n, 4)}, 8) for n in range(i % 4)]
    return (
        null(i % 4, 9),
        null({"name": null("ab"[i % 2], 5), "geo": geo, "at": at}, 8),
        null([null("xyz"[n], 5) for n in range(i % 4)], 7),
        null(items, 9),
        null([0.5, -0.0, float("nan"), None][: i % 5], 6),
    )


J_ROWS = [_nested_row(i) for i in range(1, 61)]
U_ROWS = [
    (0, {"kind": "flat", "dims": [1, 2]}),
    (1, {"kind": None, "dims": [None, 3]}),
    (2, None),
    (2, {"kind": "long", "dims": []}),
    (3, {"kind": "none", "dims": None}),
]
U = ("id INT, spec STRUCT<kind: STRING, dims: ARRAY<INT>>", U_ROWS)
AT_ONCE, IN_TWO, IN_SIX = Schedule(), Schedule(cuts=(25,)), Schedule(cuts=(7, 8, 20, 33, 59))
LATE = replace(IN_SIX, created_after=3)


def _views() -> dict[str, str]:
    """The cases of views.sql, by name."""
    text = (Path(__file__).parent / "views.sql").read_text(encoding="utf-8")
    found = re.findall(r"^-- ([^\n]+)\n([^-\n][^;]*);", text, re.MULTILINE)
    return dict(found)


VIEWS = _views()


def case(view: str) -> Case:
    streams = {"s": (S, ROWS)}
    if re.search(r"\bFROM r\b", view):
        streams["r"] = R
    if re.search(r"\bFROM j\b", view):
        return Case(view, {"j": (J, J_ROWS)}, {"u": U})
    return Case(view, streams, {"t": T})


@pytest.mark.spark
@pytest.mark.parametrize("name", VIEWS)
def test_differential_views(name: str, spark: Any) -> None:
    """The answer is Spark's under every schedule, and all engines leave the same state."""
    asked, engine = case(VIEWS[name]), "auto" if name.endswith("[spark]") else "native"
    if name.endswith("[query]"):
        return check(asked, spark, [(engine, LATE)])
    runs = [(engine, AT_ONCE), (engine, IN_SIX), ("spark", AT_ONCE)]
    return check(asked, spark, [*runs, ("tasks", IN_TWO)] if engine == "native" else runs)


@pytest.mark.spark
@pytest.mark.parametrize(
    "condition", ["g = 'a'", "g = 'none'", "g = ''", "g = NULL", "g >= 'a'", "n > 5", "g = 'b' AND t > 0"]
)
def test_differential_filtered_reads(condition: str, spark: Any) -> None:
    view = "SELECT g, count(*) AS n, sum(x) AS t, min(d) AS low, max(f) AS high FROM s GROUP BY g"
    asked = replace(case(view), query=f"SELECT high, g, n, t, low FROM v WHERE {condition}")
    check(asked, spark, [("native", LATE)])


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["BIGINT", "DOUBLE", "DECIMAL(12,1)"])
def test_differential_variance_of_large_values(kind: str, spark: Any) -> None:
    """Values that are large and alike, beside others that are neither."""
    made = {"BIGINT": int, "DOUBLE": float, "DECIMAL(12,1)": Decimal}[kind]
    alike = [(0, made(100000000 + i)) for i in (3, 4, 6, 7)]
    rows = [row for pair in zip(alike, [(1, made(i)) for i in (1, -1, 5, 3)], strict=True) for row in pair]
    asked = Case("SELECT k, var_pop(x) AS p, stddev(x) AS s FROM s GROUP BY k", {"s": (f"k INT, x {kind}", rows)})
    every = Schedule(cuts=tuple(range(8)))
    runs = [("native", AT_ONCE), ("native", every), ("native", Schedule(cuts=(3,))), ("spark", Schedule(cuts=(5,)))]
    check(asked, spark, [*runs, ("tasks", Schedule(cuts=(2,)))])
