"""Many views on one stream: what the second to the sixty-fourth cost.

The same Arrow batches are inserted under 1, 2, 4, 8 and 64 views: 8 groupings by 8 filters, in an order in which
the first 8 differ in their grouping. The cost is the time of all inserts; reading each view once at the end is
shown beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bench.measure import Note, Stopwatch
from bench.ours import database

GROUPINGS = ("a", "b", "c", "d", "a, b", "a, c", "b, c", "c, d")
FILTERS = ("x < 500", "x >= 500", "y < 500", "y >= 500", "x < y", "x >= y", "x + y < 1000", "x % 2 = 0")
COUNTS = (1, 2, 4, 8, 64)
COLUMNS = "a INT, b INT, c INT, d INT, x INT, y INT"
KEYS = {"a": 10, "b": 20, "c": 50, "d": 100}


@dataclass(frozen=True, slots=True)
class Views:
    """Seconds by number of views: of all inserts, and of reading each view once."""

    rows: int
    batches: int
    inserts: dict[int, float]
    reads: dict[int, float]

    def growth(self, views: int) -> float:
        """The cost of so many views over the cost of one."""
        return self.inserts[views] / self.inserts[1]


def texts(count: int) -> list[str]:
    """The first ``count`` views.

    >>> texts(64)[9]
    'SELECT b, count(*) AS n, sum(x) AS total, max(y) AS high FROM s WHERE x >= 500 GROUP BY b'
    """
    shape = "SELECT {keys}, count(*) AS n, sum(x) AS total, max(y) AS high FROM s WHERE {rows} GROUP BY {keys}"
    return [shape.format(keys=GROUPINGS[i % 8], rows=FILTERS[i // 8]) for i in range(count)]


def batch(rows: int, turn: int) -> pa.Table:
    rng = np.random.default_rng([11, turn])
    highs = KEYS | {"x": 1_000, "y": 1_000}
    return pa.table({name: pa.array(rng.integers(0, high, rows), pa.int32()) for name, high in highs.items()})


def _feed(views: int, batches: list[pa.Table]) -> tuple[float, float]:
    """One pass over all batches, in a database of its own."""
    inserts, reads = Stopwatch(), Stopwatch()
    with database() as db:
        db.sql(f"CREATE STREAM s ({COLUMNS})")
        for i, text in enumerate(texts(views)):
            db.sql(f"CREATE VIEW v{i} AS {text}")
        # Not timed: the first batch finds every text compiled and every group made.
        db.insert("s", batches[0])
        with inserts.timed():
            for rows in batches[1:]:
                db.insert("s", rows)
        answers = []
        with reads.timed():
            for i in range(views):
                answers.append(db.sql(f"SELECT * FROM v{i}").arrow())
        low = sum(int((rows["x"].to_numpy() < 500).sum()) for rows in batches)
        if sum(answers[0]["n"].to_pylist()) != low:
            raise AssertionError(f"the first view counts {sum(answers[0]['n'].to_pylist())}, {low} are right")
    return inserts.timing.best, reads.timing.best


def run(batches: int, rows: int, runs: int, note: Note) -> Views:
    """The best of ``runs`` passes for each number of views; the passes go round in turns."""
    data = [batch(rows, turn) for turn in range(batches + 1)]
    passes: dict[int, list[tuple[float, float]]] = {count: [] for count in COUNTS}
    for _ in range(runs):
        for count in COUNTS:
            passes[count].append(_feed(count, data))
            note(f"views: {count}: inserts {passes[count][-1][0]:.2f} s, reads {passes[count][-1][1]:.2f} s")
    best = {count: min(times, key=sum) for count, times in passes.items()}
    return Views(batches * rows, batches, {c: b[0] for c, b in best.items()}, {c: b[1] for c, b in best.items()})
