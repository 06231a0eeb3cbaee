"""Many views: what a definition, an insert and opening cost when there are thousands of them.

    python -m bench.many --views 10000 --streams 50

Every view is made by a statement of its own, which is durable when it returns. The figures are ratios of one run: the
last hundred definitions against the first, an insert into a stream that many views read against one that a single one
reads. Opening ends when the database answers its first query.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import headrace
from bench import views

HUNDRED = 100


@dataclass(frozen=True)
class Many:
    """What one run measured, in seconds."""

    views: int
    streams: int
    first: float
    """A definition, median of the first hundred."""
    last: float
    """A definition, median of the last hundred."""
    every: float
    """All definitions."""
    insert_one: float
    """An insert that one view reads, median."""
    insert_many: float
    """The same rows where as many views read them as share a stream."""
    opened: float
    """Opening, up to the answer of the first query."""

    @property
    def growth(self) -> float:
        return self.last / self.first

    @property
    def fan_out(self) -> float:
        return self.insert_many / self.insert_one


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def view_text(number: int, stream: str) -> str:
    """A view unlike its neighbours: other keys, other aggregates, other filters."""
    keys = ("a", "b", "c", "d", "a, b", "b, d")[number % 6]
    value = ("sum(x)", "max(x)", "avg(x)", "min(x)")[number % 4]
    return (
        f"CREATE VIEW v{number} AS SELECT {keys}, count(*) AS n, {value} AS v FROM {stream} "
        f"WHERE x > {number % 97} GROUP BY {keys}"
    )


def run(path: Path, number: int, streams: int, *, tell: bool = False) -> Many:
    """Make the views, insert, close and open again."""
    took: list[float] = []
    with headrace.connect(path, engine="native") as db:
        db.sql(f"CREATE STREAM alone ({views.COLUMNS})")
        db.sql(view_text(0, "alone").replace("v0", "single"))
        for i in range(streams):
            db.sql(f"CREATE STREAM s{i} ({views.COLUMNS})")
        for i in range(number):
            text = view_text(i, f"s{i % streams}")
            took.append(_timed(partial(db.sql, text)))
            if tell and (i + 1) % 500 == 0:
                print(f"{i + 1:6} views, {1000 * statistics.median(took[-HUNDRED:]):.1f} ms each", file=sys.stderr)
        given = [views.batch(1_000, turn) for turn in range(12)]
        one, many = ([_timed(partial(db.insert, stream, rows)) for rows in given] for stream in ("alone", "s0"))
    start = time.perf_counter()
    with headrace.connect(path, engine="native") as db:
        db.sql("SELECT * FROM v0").arrow()
        opened = time.perf_counter() - start
    hundred = min(HUNDRED, number)
    return Many(
        number,
        streams,
        statistics.median(took[:hundred]),
        statistics.median(took[-hundred:]),
        sum(took),
        statistics.median(one[2:]),
        statistics.median(many[2:]),
        opened,
    )


def page(found: Many) -> str:
    """The figures, beside the bars they are held to."""
    return f"""# Many views

`python -m bench.many`: {found.views:,} views on {found.streams} streams, each made by a durable statement of its
own, in one run.

| What | Measured | Bar |
|---|---|---|
| a definition, median of the first hundred | {1000 * found.first:.1f} ms | |
| a definition, median of the last hundred | {1000 * found.last:.1f} ms | |
| last hundred / first hundred | {found.growth:.2f} | 1.3 |
| opening the database, up to the answer of a first query | {found.opened:.1f} s | 10 s |
| an insert of 1,000 rows that one view reads | {1000 * found.insert_one:.1f} ms | |
| the same rows where {found.views // found.streams} views read them | {1000 * found.insert_many:.1f} ms | |
| many / one | {found.fan_out:.1f} | 25 |
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="where the page goes")
    parser.add_argument("--views", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=50)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-many-") as folder:
        found = run(Path(folder) / "many.hr", given.views, given.streams, tell=True)
    if given.output is not None:
        (given.output / "many.md").write_text(page(found), encoding="utf-8")
    print(json.dumps({**asdict(found), "growth": found.growth, "fan_out": found.fan_out}, indent=1))


if __name__ == "__main__":
    main()
