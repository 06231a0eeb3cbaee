"""The report: Markdown with the machine, the versions, the command, the figures and the bars.

It has no date and no machine paths, so that a rerun on the same machine changes figures only.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from bench.bars import Bar
from bench.measure import Timing
from bench.memory import Memory
from bench.plant import PlantResult
from headrace.settings import cores

PACKAGES = ("headrace", "pyspark", "duckdb", "pyarrow")


def machine() -> str:
    """Cores, memory and processor model, as far as the system tells."""
    try:
        text = Path("/proc/cpuinfo").read_text()
        found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
        model = found[1].strip() if found else platform.machine()
    except OSError:
        model = platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{cores()} cores, {memory:.0f} GiB, {model}"


def versions(java: str | None) -> str:
    """Everything that decides the figures, with its version."""
    names = [f"{name} {version(name)}" for name in PACKAGES]
    return ", ".join([f"Python {platform.python_version()}", *([f"Java {java}"] if java else []), *names])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table.

    >>> table(["a", "b"], [["1", "2"]])
    ['| a | b |', '|---|---:|', '| 1 | 2 |']
    """
    rule = "|" + "|".join(["---"] + ["---:"] * (len(header) - 1)) + "|"
    return ["| " + " | ".join(header) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows)]


def tpch_section(timings: Mapping[str, Mapping[str, Timing]], scale: float, runs: int) -> list[str]:
    systems = list(dict.fromkeys(name for times in timings.values() for name in times))
    rows = [
        [system, *(f"{t[system].median:.2f} ({t[system].best:.2f})" if system in t else "-" for t in timings.values())]
        for system in systems
    ]
    return [
        "## From file to answer",
        "",
        f"TPC-H lineitem, scale factor {scale:g}, decimal(15,2) as Spark types it. Seconds from the file to the answer"
        f" in the Python process: median (best) of {runs} interleaved runs, after warm-up. All answers of all runs are"
        " compared: equal but for DuckDB's avg, which is a double and agrees to 6 digits after the point.",
        "",
        *table(["", *timings], rows),
        "",
        "Headrace's time is COPY, with its durable commit, plus SELECT on the continuous view. Structured Streaming"
        " runs availableNow, complete mode, into the memory sink, with as many shuffle partitions as cores.",
        "",
    ]


def plant_section(result: PlantResult) -> list[str]:
    rows = [
        [name, f"{1e3 * times.p50:.1f}", f"{1e3 * times.p99:.1f}", f"{len(times.seconds):,}"]
        for name, times in (("insert of 1,000 rows, durable", result.inserts), ("read to Arrow", result.reads))
    ]
    return [
        "## The plant view",
        "",
        f"`low_stock` (grouped usage and restock joined with stations), {result.groups:,} groups in each stream,"
        f" {result.answer_rows:,} rows in the answer. Milliseconds. Reads come after all timed inserts, each after new"
        " input; the answer's length is checked at every read.",
        "",
        *table(["", "p50", "p99", "count"], rows),
        "",
    ]


def memory_section(result: Memory) -> list[str]:
    return [
        "## Memory",
        "",
        f"{result.rows:,} rows of lineitem inserted into Q1 in {len(result.megabytes):,} chunks: resident set"
        f" {result.middle:.0f} MB half way, {result.end:.0f} MB at the end, {max(result.megabytes):.0f} MB at most.",
        "",
    ]


def bars_section(bars: Sequence[Bar]) -> list[str]:
    rows = [[b.what, b.shown, f"{b.bound} {b.bar:g}{b.unit}", "met" if b.met else "**missed**"] for b in bars]
    return ["## Bars", "", *table(["", "figure", "bar", ""], rows), ""]
