"""``python -m bench``: run the benchmarks and write docs/benchmarks/continuous-views.md.

A figure is only written when every system's answer was the same. The exit
status is 0 when everything ran, whether or not every bar was met: a miss is a
result.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from bench import bars, memory, ours, plant, plots, refresh, report, telephone, tpch, views
from bench.measure import Outcome, System, side_by_side
from bench.peers import duck, flink, flink_live
from bench.peers import spark as spark_peer

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs" / "benchmarks"
PARTS = ("tpch", "plant", "aim", "refresh", "views", "memory")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything. The bars are for the whole; quick is to see that all of it runs."""

    scale: float = 1.0
    runs: int = 3
    plant_inserts: int = 5_000
    plant_reads: int = 500
    aim_customers: int = 1_000_000
    aim_before: int = 4
    aim_rates: tuple[int, ...] = (10_000, 50_000)
    aim_seconds: float = 30.0
    refresh_rows: int = 10_000_000
    refresh_groups: int = 100_000
    refresh_runs: int = 30
    views_batches: int = 20
    views_rows: int = 50_000
    views_runs: int = 3
    memory_rows: int = 50_000_000


QUICK = Sizes(
    scale=0.1,
    runs=1,
    plant_inserts=300,
    plant_reads=50,
    aim_customers=50_000,
    aim_seconds=3.0,
    refresh_rows=1_000_000,
    refresh_groups=10_000,
    refresh_runs=5,
    views_batches=4,
    views_rows=10_000,
    views_runs=1,
    memory_rows=2_000_000,
)


@dataclass(slots=True)
class Report:
    """What has been measured so far."""

    plots: Path | None
    bars: list[bars.Bar] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)
    java: str | None = None
    flink: str | None = None

    def plot(self, name: str) -> Path | None:
        return self.plots / name if self.plots else None


def _tpch(sizes: Sizes, python: Path | None, peers_only: bool, out: Report, console: Console) -> None:
    data = tpch.Data(ROOT / "data", sizes.scale)
    outcomes: dict[str, dict[str, Outcome]] = {}
    empty: dict[str, float] = {}
    pictures: dict[str, str] = {}
    spark = spark_peer.start_spark()
    try:
        out.java = spark_peer.java_version(spark)
        mine: list[System] = [] if peers_only else [ours.by_tasks(spark), ours.in_process(spark)]
        common: list[System] = [*mine, spark_peer.StructuredStreaming(spark), duck.DuckDBOnce(), duck.Deferred()]
        for format in tpch.FORMATS:
            outcomes[format] = {}
            for case in tpch.cases(data, format):
                if format == "csv" and python:
                    # A process of its own for each query: nothing another query left on its heap slows it down.
                    with flink.Flink(python) as peer:
                        systems = [*common, peer]
                        outcomes[format][case.name] = side_by_side(case, systems, sizes.runs, 1, console.print)
                        if peer.name in outcomes[format][case.name].timings:
                            empty[case.name] = peer.without_rows(case)
                else:
                    outcomes[format][case.name] = side_by_side(case, common, sizes.runs, 1, console.print)
            file = out.plot(f"tpch-{format}.svg")
            if file:
                pictures[format] = plots.tpch(outcomes[format], file)
            out.bars += bars.tpch_bars(outcomes[format], format)
    finally:
        spark.stop()
    out.sections += report.tpch_section(outcomes, empty, sizes.scale, sizes.runs, pictures)


def _plant(sizes: Sizes, out: Report, console: Console) -> None:
    result = plant.run(sizes.plant_inserts, sizes.plant_reads, console.print)
    out.bars += bars.plant_bars(result)
    out.sections += report.plant_section(result)


def _aim(sizes: Sizes, python: Path | None, peers_only: bool, out: Report, console: Console) -> None:
    makers: dict[str, telephone.Maker] = {} if peers_only else {"Headrace": telephone.ours}
    makers["Deferred (DuckDB table)"] = telephone.deferred
    if python:
        makers["Flink"] = flink_live.maker(python)
    count, before, seconds = sizes.aim_customers, sizes.aim_before, sizes.aim_seconds
    results, refusals = telephone.run(makers, count, before, sizes.aim_rates, seconds, console.print)
    file = out.plot("aim.svg")
    picture = plots.aim(results, file) if file and results else None
    out.bars += bars.aim_bars(results)
    out.sections += report.aim_section(results, refusals, count, before, seconds, picture)


def _refresh(sizes: Sizes, out: Report, console: Console) -> None:
    spark = spark_peer.start_spark()
    try:
        out.java = spark_peer.java_version(spark)
        result = refresh.run(
            spark,
            sizes.refresh_rows,
            sizes.refresh_groups,
            sizes.refresh_runs,
            min(sizes.refresh_runs, 5),
            console.print,
        )
    finally:
        spark.stop()
    out.bars += bars.refresh_bars(result)
    out.sections += report.refresh_section(result)


def _views(sizes: Sizes, out: Report, console: Console) -> None:
    result = views.run(sizes.views_batches, sizes.views_rows, sizes.views_runs, console.print)
    file = out.plot("views.svg")
    out.bars.append(bars.views_bar(result))
    out.sections += report.views_section(result, plots.views(result, file) if file else None)


def _memory(sizes: Sizes, out: Report, console: Console) -> None:
    results = memory.run(sizes.memory_rows, console.print)
    file = out.plot("memory.svg")
    out.bars.append(bars.memory_bar(results))
    out.sections += report.memory_section(results, plots.memory(results, file) if file else None)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Headrace beside its peers.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data and fewer runs; no bar is judged")
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part only (may be given twice)")
    parser.add_argument("--peers-only", action="store_true", help="leave Headrace out")
    parser.add_argument("--no-flink", action="store_true", help="leave Flink out")
    parser.add_argument("--runs", type=int, help="timed runs of each system on TPC-H (3; quick: 1)")
    parser.add_argument("--scale", type=float, help="TPC-H scale factor (1; quick: 0.1)")
    parser.add_argument("--output", type=Path, help="directory to write to (docs/benchmarks; a partial run: none)")
    return parser.parse_args(arguments)


def _flink(wanted: bool, out: Report, console: Console) -> Path | None:
    """Flink's Python, or None and a line that says why."""
    if not wanted:
        return None
    try:
        python = flink.environment(ROOT, console.print)
    except flink.FlinkUnavailable as reason:
        console.print(f"flink: left out: {reason}", style="bold red", markup=False)
        out.flink = "Flink left out (it could not be installed)"
        return None
    out.flink = flink.version()
    return python


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _arguments(arguments)
    parts = chosen.only or list(PARTS)
    base = QUICK if chosen.quick else Sizes()
    sizes = replace(base, scale=chosen.scale or base.scale, runs=chosen.runs or base.runs)
    # A partial run must not overwrite the whole report.
    whole = not (chosen.quick or chosen.only or chosen.peers_only or chosen.no_flink or chosen.scale)
    output = chosen.output or (DOCS if whole else None)
    console = Console(highlight=False, soft_wrap=True)
    out = Report(output)
    python = _flink(not chosen.no_flink and ("tpch" in parts or "aim" in parts), out, console)

    if "tpch" in parts:
        _tpch(sizes, python, chosen.peers_only, out, console)
    if "plant" in parts and not chosen.peers_only:
        _plant(sizes, out, console)
    if "aim" in parts:
        _aim(sizes, python, chosen.peers_only, out, console)
    if "refresh" in parts and not chosen.peers_only:
        _refresh(sizes, out, console)
    if "views" in parts and not chosen.peers_only:
        _views(sizes, out, console)
    if "memory" in parts and not chosen.peers_only:
        _memory(sizes, out, console)

    command = " ".join(["python -m bench", *(sys.argv[1:] if arguments is None else arguments)])
    head = [
        "# Continuous views beside their peers",
        "",
        f"Machine: {report.machine()}.  ",
        f"Versions: {report.versions(out.java, out.flink)}.  ",
        f"Command: `{'make bench' if whole else command}`.",
        "",
    ]
    judged = [] if chosen.quick else out.bars  # the bars are for the whole data
    text = "\n".join(head + (report.bars_section(judged) if judged else []) + out.sections).rstrip() + "\n"
    console.print(text, markup=False)
    for bar in judged:
        console.print(str(bar), style="" if bar.met else "bold red", markup=False)
    if output:
        output.mkdir(parents=True, exist_ok=True)
        (output / "continuous-views.md").write_text(text)
        console.print(f"written: {output.relative_to(ROOT) if output.is_relative_to(ROOT) else output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
