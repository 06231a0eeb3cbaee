"""``python -m bench``: run the benchmarks and write the pages of docs/benchmarks.

A figure is only written when every system's answer was the same. The exit
status is 0 when everything ran, whether or not every bar was met: a miss is a
result.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from bench import (
    bars,
    cdc,
    dml,
    maintain,
    maintain_page,
    memory,
    move,
    move_page,
    ours,
    plant,
    plots,
    point,
    refresh,
    report,
    ring,
    sample,
    tables,
    telephone,
    tpch,
    views,
)
from bench.bars import Bar
from bench.measure import Outcome, System, side_by_side
from bench.peers import duck, flink, flink_live
from bench.peers import spark as spark_peer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs" / "benchmarks"


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
    cdc_rows: int = 1_000_000
    sample_runs: int = 5
    sample_slow: bool = True
    """Whether Spark's takeSample takes part, which reads every row into Python, twice."""
    moving: move.Extent = move.WHOLE
    keyed_rows: int = 10_000_000
    maintained: maintain.Extent = maintain.WHOLE
    larger: float = 10.0
    """How many times as large the larger tables below materialized views are."""
    point_groups: int = 1_000_000
    point_seconds: float = 30.0


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
    cdc_rows=100_000,
    sample_runs=2,
    sample_slow=False,
    moving=move.QUICK,
    keyed_rows=1_000_000,
    maintained=maintain.QUICK,
    larger=2.0,
    point_groups=100_000,
    point_seconds=3.0,
)


@dataclass(slots=True)
class Run:
    """What is to be measured, and what has been so far."""

    sizes: Sizes
    console: Console
    plots: Path | None
    peers_only: bool = False
    python: Path | None = None
    """Flink's, if it takes part."""
    bars: list[bars.Bar] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)
    pages: dict[str, tuple[str, list[Bar], list[str]]] = field(default_factory=dict)
    """Parts with a page of their own: its title, bars and sections, by file."""
    streams: list[str] = field(default_factory=list)
    """Sections of the page about queries of streams."""
    failures: list[str] = field(default_factory=list)
    """What could not be measured; the rest stands."""
    java: str | None = None
    flink: str | None = None

    def say(self, text: str) -> None:
        self.console.print(text)

    def plot(self, name: str) -> Path | None:
        return self.plots / name if self.plots else None

    @contextmanager
    def spark(self) -> Iterator[SparkSession]:
        session = spark_peer.start_spark()
        try:
            self.java = spark_peer.java_version(session)
            yield session
        finally:
            session.stop()


def _tpch(run: Run) -> None:
    sizes = run.sizes
    data = tpch.Data(ROOT / "data", sizes.scale)
    outcomes: dict[str, dict[str, Outcome]] = {}
    empty: dict[str, float] = {}
    pictures: dict[str, str] = {}
    with run.spark() as spark:
        mine: list[System] = [] if run.peers_only else [ours.by_tasks(spark), ours.in_process(spark)]
        common: list[System] = [*mine, spark_peer.StructuredStreaming(spark), duck.DuckDBOnce(), duck.Deferred()]
        for format in tpch.FORMATS:
            outcomes[format] = {}
            for case in tpch.cases(data, format):
                if format == "csv" and run.python:
                    # A process of its own for each query: nothing another query left on its heap slows it down.
                    with flink.Flink(run.python) as peer:
                        systems = [*common, peer]
                        outcomes[format][case.name] = side_by_side(case, systems, sizes.runs, 1, run.say)
                        if peer.name in outcomes[format][case.name].timings:
                            empty[case.name] = peer.without_rows(case)
                else:
                    outcomes[format][case.name] = side_by_side(case, common, sizes.runs, 1, run.say)
            file = run.plot(f"tpch-{format}.svg")
            if file:
                pictures[format] = plots.tpch(outcomes[format], file)
            run.bars += bars.tpch_bars(outcomes[format], format)
    run.sections += report.tpch_section(outcomes, empty, sizes.scale, sizes.runs, pictures)


def _plant(run: Run) -> None:
    result = plant.run(run.sizes.plant_inserts, run.sizes.plant_reads, run.say)
    run.bars += bars.plant_bars(result)
    run.sections += report.plant_section(result)


def _aim(run: Run) -> None:
    makers: dict[str, telephone.Maker] = {} if run.peers_only else {"Headrace": telephone.ours}
    makers["Deferred (DuckDB table)"] = telephone.deferred
    if run.python:
        makers["Flink"] = flink_live.maker(run.python)
    count, before, seconds = run.sizes.aim_customers, run.sizes.aim_before, run.sizes.aim_seconds
    results, refusals = telephone.run(makers, count, before, run.sizes.aim_rates, seconds, run.say)
    file = run.plot("aim.svg")
    picture = plots.aim(results, file) if file and results else None
    run.bars += bars.aim_bars(results)
    run.sections += report.aim_section(results, refusals, count, before, seconds, picture)


def _refresh(run: Run) -> None:
    runs = run.sizes.refresh_runs
    with run.spark() as spark:
        result = refresh.run(spark, run.sizes.refresh_rows, run.sizes.refresh_groups, runs, min(runs, 5), run.say)
    run.bars += bars.refresh_bars(result)
    run.sections += report.refresh_section(result)


def _views(run: Run) -> None:
    result = views.run(run.sizes.views_batches, run.sizes.views_rows, run.sizes.views_runs, run.say)
    file = run.plot("views.svg")
    run.bars.append(bars.views_bar(result))
    run.sections += report.views_section(result, plots.views(result, file) if file else None)


def _memory(run: Run) -> None:
    results = memory.run(run.sizes.memory_rows, run.say)
    lineitem = memory.run_lineitem(tpch.Data(ROOT / "data", run.sizes.scale).lineitem("parquet"), run.say)
    file = run.plot("memory.svg")
    run.bars += bars.memory_bars(results, lineitem)
    run.sections += report.memory_section(results, lineitem, plots.memory(results, file) if file else None)


def _sample(run: Run) -> None:
    data = tpch.Data(ROOT / "data", run.sizes.scale)
    with run.spark() as spark:
        result = sample.run(spark, data.lineitem("parquet"), run.sizes.sample_runs, run.sizes.sample_slow, run.say)
    file = run.plot("shares.svg")
    sections = report.sample_page(result, plots.shares(result, file) if file else None)
    run.pages["samples.md"] = ("Samples beside their peers", bars.sample_bars(result), sections)


def _cdc(run: Run) -> None:
    with run.spark() as spark:
        result = cdc.run(spark, run.sizes.cdc_rows, run.sizes.runs, run.say)
    run.pages["cdc.md"] = ("Captured changes applied", bars.cdc_bars(result), report.cdc_page(result))


def _tables(run: Run) -> None:
    data = tpch.Data(ROOT / "data", run.sizes.scale)
    with run.spark() as spark:
        result = tables.run(spark, data, run.sizes.runs, run.say)
    title = "Tables where Spark reads and writes them"
    run.pages["tables.md"] = (title, bars.tables_bars(result), report.tables_page(result))


def _ring(run: Run) -> None:
    sizes = run.sizes
    with run.spark() as spark:
        result = ring.run(spark, run.python, tpch.Data(ROOT / "data", sizes.scale), sizes.runs, run.say)
    run.bars += bars.ring_bars(result)
    pictures = plots.ring_rates(result, run.plots) if run.plots else []
    run.streams += report.ring_section(result, sizes.scale, sizes.runs, pictures)


def _move(run: Run) -> None:
    result = move.run(run.sizes.moving, run.say)
    run.java = result.java
    run.failures += result.failures
    sections = move_page.sections(result, plots.moves(result, run.plots) if run.plots else {})
    run.pages["moves.md"] = ("Moving running queries", bars.move_bars(result), sections)


def _dml(run: Run) -> None:
    sizes = run.sizes
    file = tpch.Data(ROOT / "data", sizes.scale).lineitem("parquet")
    with run.spark() as spark:
        result = dml.run(spark, file, sizes.keyed_rows, sizes.runs, run.say)
    run.pages["dml.md"] = ("Tables that change beside their peers", dml.bars(result), dml.page(result))


def _maintain(run: Run) -> None:
    scales = (run.sizes.scale, run.sizes.scale * run.sizes.larger)
    with run.spark() as spark:
        result = maintain.run(ROOT, scales, run.sizes.maintained, spark, run.say)
    sections = maintain_page.sections(result, run.plots)
    run.pages["maintain.md"] = ("Materialized views beside recomputing", maintain_page.bars(result), sections)


def _point(run: Run) -> None:
    result = point.run(run.sizes.point_groups, run.sizes.point_seconds, run.say)
    run.pages["point.md"] = ("Point reads while rows change", point.bars(result), point.page(result))


# Latencies first: TPC-H leaves the disk busy for a while with the rows that deferred maintenance keeps.
PARTS: dict[str, Callable[[Run], None]] = {
    "plant": _plant,
    "aim": _aim,
    "refresh": _refresh,
    "point": _point,
    "views": _views,
    "memory": _memory,
    "sample": _sample,
    "tables": _tables,
    "dml": _dml,
    "maintain": _maintain,
    "move": _move,
    "cdc": _cdc,
    "tpch": _tpch,
    "ring": _ring,
}
WITH_PEERS = ("tpch", "aim", "ring")
"""The parts in which peers can run without Headrace, and Flink is one of them."""


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Headrace beside its peers.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data and fewer runs; no bar is judged")
    parser.add_argument("--only", choices=tuple(PARTS), action="append", help="run this part only (may be given twice)")
    parser.add_argument("--peers-only", action="store_true", help="leave Headrace out")
    parser.add_argument("--no-flink", action="store_true", help="leave Flink out")
    parser.add_argument("--no-take-sample", action="store_true", help="leave rdd.takeSample out, which takes minutes")
    parser.add_argument("--runs", type=int, help="timed runs of each system on TPC-H (3; quick: 1)")
    parser.add_argument("--scale", type=float, help="TPC-H scale factor (1; quick: 0.1)")
    parser.add_argument("--output", type=Path, help="directory to write to (docs/benchmarks; a partial run: none)")
    return parser.parse_args(arguments)


def _find_flink(run: Run) -> None:
    """Have Flink take part, or say why it does not."""
    try:
        run.python = flink.environment(ROOT, run.say)
        run.flink = flink.version()
    except flink.FlinkUnavailable as reason:
        run.console.print(f"flink: left out: {reason}", style="bold red", markup=False)
        run.flink = "Flink left out (it could not be installed)"


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _arguments(arguments)
    parts = [p for p in PARTS if p in (chosen.only or PARTS) and (p in WITH_PEERS or not chosen.peers_only)]
    base = QUICK if chosen.quick else Sizes()
    sizes = replace(base, scale=chosen.scale or base.scale, runs=chosen.runs or base.runs)
    if chosen.no_take_sample:
        sizes = replace(sizes, sample_slow=False)
    # A partial run must not overwrite the whole report.
    whole = not (chosen.quick or chosen.only or chosen.peers_only or chosen.no_flink or chosen.scale)
    output = chosen.output or (DOCS if whole else None)
    console = Console(highlight=False, soft_wrap=True)
    run = Run(sizes, console, output, chosen.peers_only)
    if not chosen.no_flink and any(part in WITH_PEERS for part in parts):
        _find_flink(run)
    for part in parts:
        PARTS[part](run)

    command = " ".join(["python -m bench", *(sys.argv[1:] if arguments is None else arguments)])
    command = command.replace(f" --output {chosen.output}", "")  # where it went is no part of what was measured
    pages = {
        "continuous-views.md": ("Continuous views beside their peers", run.bars, run.sections),
        "streams.md": ("Queries of streams beside batches", run.bars, run.streams),
        **run.pages,
    }
    for name, (title, bars_of_run, sections) in pages.items():
        if not sections:
            continue
        head = [
            f"# {title}",
            "",
            f"Machine: {report.machine()}.  ",
            f"Versions: {report.versions(run.java, run.flink)}.  ",
            f"Command: `{'make bench' if whole else command}`.",
            "",
        ]
        # Each page has the bars of its own figures; they are for the whole data.
        own = [b for b in bars_of_run if b.what.startswith("ring:") == (name == "streams.md")]
        judged = [] if chosen.quick else own
        text = "\n".join(head + (report.bars_section(judged) if judged else []) + sections).rstrip() + "\n"
        console.print(text, markup=False)
        for bar in judged:
            console.print(str(bar), style="" if bar.met else "bold red", markup=False)
        if output:
            output.mkdir(parents=True, exist_ok=True)
            (output / name).write_text(text)
            console.print(f"written: {output.relative_to(ROOT) if output.is_relative_to(ROOT) else output}/{name}")
    for failure in run.failures:
        console.print(f"not measured: {failure}", style="bold red", markup=False)
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
