"""``python -m bench``: run the benchmarks and write docs/benchmarks/continuous-views.md.

A figure is only written when every system's answer was the same. The exit
status is 0 when everything ran, whether or not every bar was met: a miss is a
result.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench import memory, ours, peers, plant, report, tpch
from bench.bars import Bar, memory_bar, plant_bars, tpch_bars
from bench.measure import System, Timing, side_by_side

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("tpch", "plant", "memory")


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Headrace beside its peers.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data and fewer runs; no bar is judged")
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part only (may be given twice)")
    parser.add_argument("--peers-only", action="store_true", help="leave Headrace out")
    parser.add_argument("--runs", type=int, help="timed runs of each system (5; quick: 1)")
    parser.add_argument("--scale", type=float, help="TPC-H scale factor (1; quick: 0.1)")
    parser.add_argument("--output", type=Path, help="where to write (docs/benchmarks/continuous-views.md; quick: none)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _arguments(arguments)
    parts = chosen.only or list(PARTS)
    scale = chosen.scale or (0.1 if chosen.quick else 1.0)
    runs = chosen.runs or (1 if chosen.quick else 5)
    # A partial run must not overwrite the whole report.
    whole = not (chosen.quick or chosen.only or chosen.peers_only or chosen.scale)
    output = chosen.output or (ROOT / "docs" / "benchmarks" / "continuous-views.md" if whole else None)
    console = Console(highlight=False, soft_wrap=True)
    data = ROOT / "data"
    sections: list[str] = []
    bars: list[Bar] = []
    java = None

    if "memory" in parts and not chosen.peers_only:
        file = tpch.lineitem(data, scale, "parquet")
        used = memory.run(file)
        console.print(f"memory: {used.middle:.0f} MB half way, {used.end:.0f} MB at the end")
        sections += report.memory_section(used)
        bars.append(memory_bar(used))
    if "plant" in parts and not chosen.peers_only:
        latencies = plant.run(500 if chosen.quick else 5_000, 100 if chosen.quick else 500, console.print)
        sections = report.plant_section(latencies) + sections
        bars = plant_bars(latencies) + bars
    if "tpch" in parts:
        spark = peers.start_spark()
        try:
            java = str(
                spark.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.version')").collect()[0][0]
            )
            systems: list[System] = [peers.StructuredStreaming(spark), peers.SparkBatch(spark), peers.DuckDBOnce()]
            if not chosen.peers_only:
                systems = [ours.by_tasks(spark), ours.in_process(), *systems]
            timings: dict[str, dict[str, Timing]] = {}
            for case in tpch.cases(data, scale):
                timings[case.name] = side_by_side(case, systems, runs, 1, console.print)
        finally:
            spark.stop()
        sections = report.tpch_section(timings, scale, runs) + sections
        bars = tpch_bars(timings) + bars

    command = " ".join(["python -m bench", *(sys.argv[1:] if arguments is None else arguments)])
    head = [
        "# Continuous views beside their peers",
        "",
        f"Machine: {report.machine()}.  ",
        f"Versions: {report.versions(java)}.  ",
        f"Command: `{'make bench' if whole else command}`.",
        "",
    ]
    if chosen.quick:
        bars = []  # the bars are for the whole data
    judged = report.bars_section(bars) if bars else []
    text = "\n".join(head + judged + sections).rstrip() + "\n"
    console.print(text, markup=False)
    for bar in bars:
        console.print(str(bar), style="" if bar.met else "bold red", markup=False)
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text)
        console.print(f"written: {output.relative_to(ROOT) if output.is_relative_to(ROOT) else output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
