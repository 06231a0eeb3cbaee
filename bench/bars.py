"""The bars Headrace is held to, and whether each is met. A miss is shown like the rest.

>>> str(at_least("speed", 7.5, 6, "x")), str(at_most("p50", 12.0, 10, " ms"))
('speed: 7.50x (bar: at least 6x): met', 'p50: 12.00 ms (bar: at most 10 ms): MISSED')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.measure import Timing
from bench.memory import Memory
from bench.plant import PlantResult

TASKS = "Headrace by Spark tasks"
STREAMING = "Spark Structured Streaming"
DUCKDB = "DuckDB once"

# Times Structured Streaming's speed, by query and format.
STREAMING_BARS = {"Q1 from CSV": 6.0, "Q6 from CSV": 6.0, "Q1 from Parquet": 10.0, "Q6 from Parquet": 4.0}
DUCKDB_BARS = {"Q1 from CSV": 0.65, "Q6 from CSV": 0.65}
INSERT_P50_MS = 10.0
READ_P50_MS = 20.0
# Resident memory wobbles with allocators and compaction; ten per cent over 3 M rows is no growth with rows.
MEMORY_GROWTH = 1.10


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure held against one bar."""

    what: str
    figure: float
    bar: float
    unit: str
    met: bool
    bound: str

    def __str__(self) -> str:
        verdict = "met" if self.met else "MISSED"
        return f"{self.what}: {self.shown} (bar: {self.bound} {self.bar:g}{self.unit}): {verdict}"

    @property
    def shown(self) -> str:
        return f"{self.figure:.2f}{self.unit}"


def at_least(what: str, figure: float, bar: float, unit: str) -> Bar:
    return Bar(what, figure, bar, unit, figure >= bar, "at least")


def at_most(what: str, figure: float, bar: float, unit: str) -> Bar:
    return Bar(what, figure, bar, unit, figure <= bar, "at most")


def tpch_bars(timings: Mapping[str, Mapping[str, Timing]]) -> list[Bar]:
    """Ratios of medians, for the systems that ran."""
    bars = []
    for reference, wanted in ((STREAMING, STREAMING_BARS), (DUCKDB, DUCKDB_BARS)):
        for case, bar in wanted.items():
            times = timings.get(case, {})
            if TASKS in times and reference in times:
                ratio = times[reference].median / times[TASKS].median
                bars.append(at_least(f"{case}, speed relative to {reference}", ratio, bar, "x"))
    return bars


def plant_bars(result: PlantResult) -> list[Bar]:
    return [
        at_most("insert of 1,000 rows, durable, p50", 1e3 * result.inserts.p50, INSERT_P50_MS, " ms"),
        at_most(f"read with {result.groups:,} groups, p50", 1e3 * result.reads.p50, READ_P50_MS, " ms"),
    ]


def memory_bar(result: Memory) -> Bar:
    return at_most("memory through Q1, end over middle", result.growth, MEMORY_GROWTH, "x")
