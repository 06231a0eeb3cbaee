"""Fixed cases: each a view the slice supports, checked under every engine and several schedules.

Adding a case is adding a line.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from harness import Case, Schedule, check

S = "k INT, g STRING, x INT, d DECIMAL(10,2), f DOUBLE, b BOOLEAN, day DATE, ts TIMESTAMP, n TIMESTAMP_NTZ"


def _row(i: int) -> tuple[Any, ...]:
    null = lambda v, every: None if i % every == 0 else v  # noqa: E731
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
T = ("id INT, name STRING, w DECIMAL(5,1)", [(0, "zero", Decimal("1.5")), (1, "one", None), (2, None, Decimal("2.0")), (2, "two", Decimal("-3.5")), (9, "nine", Decimal("0.1"))])  # fmt: skip

VIEWS = {
    "count": "SELECT g, count(*) AS c, count(x) AS cx FROM s GROUP BY g",
    "names": "SELECT g, count(*), sum(x + 1), max(d) FROM s GROUP BY g",
    "sums": "SELECT k, sum(x) AS a, sum(d) AS b, sum(f) AS c, avg(x) AS d, avg(d) AS e, avg(f) AS f FROM s GROUP BY k",
    "extremes": "SELECT g, min(x) a, max(x) b, min(f) c, max(f) d, min(g) e, max(day) h, min(ts) i, max(n) j, min(b) k FROM s GROUP BY g",  # noqa: E501
    "spread": "SELECT k, stddev(x) a, variance(d) b, stddev_pop(f) c, var_pop(x) d FROM s WHERE f < 100 OR f IS NULL GROUP BY k",  # noqa: E501
    "booleans": "SELECT g, bool_and(b) a, bool_or(b) o, every(x > 0) e FROM s GROUP BY g",
    "distinct count": "SELECT g, count(DISTINCT k) a, count(DISTINCT k, x) b, count(*) c, sum(DISTINCT k) d FROM s GROUP BY g",
    "global": "SELECT count(*) c, sum(x) s, avg(d) a, stddev(x) sd, count(DISTINCT g) cd, max(g) m FROM s",
    "global of nothing": "SELECT count(*) c, sum(x) s, avg(d) a, min(g) m, count(DISTINCT g) cd FROM s WHERE x > 1000",
    "filter clause": "SELECT g, count(*) FILTER (WHERE x > 0) a, sum(d) FILTER (WHERE b) c, count(DISTINCT k) FILTER (WHERE x > 5) e FROM s GROUP BY g",  # noqa: E501
    "expressions": "SELECT upper(g) u, k % 2 m, sum(x * 2 - 1) a, sum(d * d) b, avg(d / 3) c FROM s WHERE NOT (x BETWEEN -3 AND 3) AND g LIKE 'a%' GROUP BY upper(g), k % 2",  # noqa: E501
    "case": "SELECT CASE WHEN x > 10 THEN 'big' WHEN x < 0 THEN 'neg' ELSE coalesce(g, 'none') END c, count(*) n FROM s GROUP BY 1",  # noqa: E501
    "dates": "SELECT year(day) y, month(day) m, count(*) n, max(day + INTERVAL 1 MONTH) a, min(date_add(day, 3)) b FROM s GROUP BY year(day), month(day)",  # noqa: E501
    "hours": "SELECT date_trunc('HOUR', ts) h, hour(n) hn, count(*) c FROM s GROUP BY ALL",
    "windows": "SELECT window.start AS a, window.end AS e, count(*) n FROM s GROUP BY window(ts, '6 hours')",
    "having": "SELECT g, count(*) AS c FROM s GROUP BY g HAVING count(*) > 8 AND sum(x) > 0 AND c < 100",
    "group only": "SELECT g, k FROM s GROUP BY g, k",
    "distinct": "SELECT DISTINCT g, b FROM s",
    "no rows": "SELECT g, count(*) c FROM s WHERE FALSE GROUP BY g",
    "constant": "SELECT 'x' AS tag, count(*) + 1 AS c FROM s GROUP BY g",
    "join below": "SELECT t.name, sum(s.x) a, count(*) n, sum(s.d * t.w) w FROM s JOIN t ON s.k = t.id GROUP BY t.name",
    "join below, table first": "SELECT t.name, count(*) n FROM t, s WHERE s.k = t.id AND t.w > 0 GROUP BY t.name",
    "left join below": "SELECT t.name, count(*) n, count(t.id) m FROM s LEFT JOIN t ON s.k = t.id AND s.x > 0 GROUP BY t.name",
    "semi join below": "SELECT g, count(*) n FROM s LEFT SEMI JOIN t ON s.k = t.id GROUP BY g",
    "anti join below": "SELECT g, count(*) n FROM s LEFT ANTI JOIN t ON s.k = t.id GROUP BY g",
    "theta join below": "SELECT t.id, count(*) n FROM s JOIN t ON s.x > t.id GROUP BY t.id",
    "using": "SELECT id, count(*) n FROM (SELECT k AS id, x FROM s) JOIN t USING (id) GROUP BY id",
    "join above": "SELECT a.g, t.name, a.n FROM (SELECT k, g, count(*) n FROM s GROUP BY k, g) a JOIN t ON a.k = t.id",
    "left join above": "SELECT t.id, a.n FROM t LEFT JOIN (SELECT k, count(*) n FROM s GROUP BY k) a ON a.k = t.id",
    "full join above": "SELECT t.id, a.n FROM t FULL JOIN (SELECT k, count(*) n FROM s GROUP BY k) a ON a.k = t.id",
    "right join above": "SELECT t.id, a.n FROM (SELECT k, count(*) n FROM s GROUP BY k) a RIGHT JOIN t ON a.k = t.id",
    "grouped streams": "SELECT a.g, a.n, b.m FROM (SELECT g, count(*) n FROM s GROUP BY g) a JOIN (SELECT g, sum(y) m FROM r GROUP BY g) b ON a.g = b.g",  # noqa: E501
    "grouped streams, outer": "SELECT a.g, a.n, b.m FROM (SELECT g, count(*) n FROM s GROUP BY g) a FULL JOIN (SELECT g, sum(y) m FROM r GROUP BY g) b ON a.g <=> b.g",  # noqa: E501
    "one stream twice": "SELECT a.g, a.n, b.m FROM (SELECT g, count(*) n FROM s GROUP BY g) a JOIN (SELECT g, max(x) m FROM s WHERE x < 20 GROUP BY g) b ON a.g = b.g",  # noqa: E501
    "cte twice": "WITH c AS (SELECT g, count(*) n FROM s GROUP BY g) SELECT a.g, a.n - b.n AS d FROM c a JOIN c b ON a.n >= b.n",  # noqa: E501
    "nested": "SELECT n, count(*) AS groups, sum(total) AS t FROM (SELECT g, count(*) n, sum(x) total FROM s GROUP BY g) GROUP BY n",  # noqa: E501
    "nested average": "SELECT avg(n) a, max(t) m, stddev(n) s FROM (SELECT g, k, count(*) n, sum(d) t FROM s GROUP BY g, k HAVING count(*) > 1)",  # noqa: E501
    "top": "SELECT g, k, count(*) AS n FROM s GROUP BY g, k ORDER BY n DESC, g, k LIMIT 4",
    "top below": "SELECT sum(n) AS s FROM (SELECT g, count(*) AS n FROM s GROUP BY g ORDER BY n DESC, g LIMIT 2)",
    "sort dropped": "SELECT g, count(*) AS n FROM s GROUP BY g ORDER BY g",
    "union below": "SELECT g, count(*) n, sum(v) s FROM (SELECT g, x AS v FROM s UNION ALL SELECT g, y FROM r UNION ALL SELECT name, id FROM t) GROUP BY g",  # noqa: E501
    "union above": "SELECT g, count(*) n FROM s GROUP BY g UNION ALL SELECT g, sum(y) FROM r GROUP BY g",
    "union distinct above": "SELECT g FROM s GROUP BY g UNION SELECT g FROM r GROUP BY g",
    "window function above": "SELECT g, n, rank() OVER (ORDER BY n DESC) AS r FROM (SELECT g, count(*) n FROM s GROUP BY g)",
    "except above": "SELECT g FROM (SELECT g, count(*) n FROM s GROUP BY g) EXCEPT SELECT name FROM t",
    "subquery above": "SELECT g, n FROM (SELECT g, count(*) n FROM s GROUP BY g) WHERE n > (SELECT avg(id) FROM t)",
    "in above": "SELECT k, n FROM (SELECT k, count(*) n FROM s GROUP BY k) WHERE k IN (SELECT id FROM t)",
    "spark function": "SELECT regexp_replace(g, '[ab]', '<$0>') r, count(*) n FROM s GROUP BY regexp_replace(g, '[ab]', '<$0>')",  # noqa: E501
    "spark function inside": "SELECT k, sum(length(regexp_replace(g, 'a', 'xx'))) n FROM s GROUP BY k",
    "spark aggregate": "SELECT g, percentile(x, 0.5) p, count(*) n FROM s GROUP BY g",
    "non-ascii": "SELECT upper(g) u, lower(g) l, count(*) n FROM s GROUP BY upper(g), lower(g)",
}
R = ("g STRING, y INT", [("a", 3), ("b", None), (None, 4), ("zz", 1), ("a", 9), ("", 2)])
SCHEDULES = [Schedule(), Schedule(cuts=(7, 8, 20, 33, 59), created_after=3)]
SLOW = ("window function", "except", "subquery", "in above", "spark", "non-ascii")


def case(view: str) -> Case:
    streams = {"s": (S, ROWS)}
    if " r " in f" {view} ".replace("r)", "r )"):
        streams["r"] = R
    return Case(view, streams, {"t": T})


@pytest.mark.spark
@pytest.mark.parametrize("name", VIEWS)
def test_differential_native(name: str, spark: Any) -> None:
    engine = "auto" if name.startswith(SLOW) else "native"
    check(case(VIEWS[name]), spark, [engine], SCHEDULES)


@pytest.mark.spark
@pytest.mark.parametrize("name", VIEWS)
def test_differential_engines_leave_the_same_state(name: str, spark: Any) -> None:
    native = ["auto"] if name.startswith(SLOW) else ["native", "tasks"]
    check(case(VIEWS[name]), spark, [*native, "spark"], [Schedule(cuts=(25,))])
