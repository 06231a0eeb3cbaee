"""The AIM workload (000 §4.3.1, Table 4.3): a stream of calls, a table of customers, six views.

Only text and data: any system may run it. ``clock`` holds the current week, the one
thing the queries depend on that no event brings.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa

EVENTS = """entity_id INT, week INT, duration INT, cost DOUBLE, local_calls INT, long_distance BOOLEAN,
    long_distance_cost DOUBLE, local_cost DOUBLE"""
CUSTOMERS = "id INT PRIMARY KEY, city_zip INT, region_id INT, type INT, category INT, value_type INT"
CLOCK = "week INT"

QUERIES: dict[str, str] = dict(
    re.findall(r"^-- (q\d)\n([^;]*);", Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"), re.MULTILINE)
)


def customers(n: int, seed: int = 0) -> pa.Table:
    """Customers 0 … n - 1."""
    random = np.random.default_rng(seed)

    def column(high: int) -> pa.Array:
        return pa.array(random.integers(0, high, n, dtype=np.int32))

    return pa.table(
        {
            "id": pa.array(np.arange(n, dtype=np.int32)),
            "city_zip": column(max(2, n // 50)),
            "region_id": column(10),
            "type": column(4),
            "category": column(3),
            "value_type": column(4),
        }
    )


def events(n: int, entities: int, weeks: tuple[int, ...] = (1, 2), seed: int = 0) -> pa.Table:
    """Calls of ``entities`` customers over these weeks, in no order; costs are whole quarters, so sums are exact."""
    random = np.random.default_rng(seed)
    cost = random.integers(0, 400, n) / 4
    away = random.random(n) < 0.3
    return pa.table(
        {
            "entity_id": pa.array(random.integers(0, entities, n, dtype=np.int32)),
            "week": pa.array(random.choice(np.array(weeks, dtype=np.int32), n)),
            "duration": pa.array(random.integers(1, 60, n, dtype=np.int32)),
            "cost": pa.array(cost),
            "local_calls": pa.array(random.integers(0, 5, n, dtype=np.int32), mask=random.random(n) < 0.2),
            "long_distance": pa.array(away),
            "long_distance_cost": pa.array(np.where(away, cost, 0.0)),
            "local_cost": pa.array(np.where(away, 0.0, cost)),
        }
    )
