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
from statistics import median

from bench import cdc, ring
from bench.bars import FORMAT_NAMES, Bar
from bench.measure import Outcome, Timing, geometric_mean
from bench.memory import GROUPS, Memory
from bench.plant import PlantResult
from bench.refresh import NEW_ROWS, Refresh
from bench.ring import RingResult
from bench.sample import ROWS, SIZES, TAKEN, TAKEN_SECONDS, WORKERS, Samples
from bench.tables import DELETED, SPARK, Tables
from bench.telephone import TICK, Aim
from bench.views import Views
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


def versions(java: str | None, flink: str | None) -> str:
    """Everything that decides the figures, with its version."""
    names = [f"{name} {version(name)}" for name in PACKAGES]
    others = [f"Java {java}"] if java else []
    return ", ".join([f"Python {platform.python_version()}", *others, *names, *([flink] if flink else [])])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table.

    >>> table(["a", "b"], [["1", "2"]])
    ['| a | b |', '|---|---:|', '| 1 | 2 |']
    """
    rule = "|" + "|".join(["---"] + ["---:"] * (len(header) - 1)) + "|"
    return ["| " + " | ".join(header) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows)]


def prose(text: str) -> str:
    """One line, however the source wraps it."""
    return " ".join(text.split())


def picture(name: str | None, what: str) -> list[str]:
    return [f"![{what}]({name})", ""] if name else []


def _milliseconds(timing: Timing | None) -> str:
    return f"{1e3 * timing.p50:.1f} / {1e3 * timing.p99:.1f}" if timing else "-"


def _flink_as_run(empty: Mapping[str, float]) -> str:
    return prose(f"""
        - Flink SQL: streaming mode, parallelism as cores, mini-batch with two-phase aggregation and object reuse
        on, in a warm process, from submitting to the last change of the answer. lineitem lies in pieces without
        header for it, so that all cores read. Its PyPI package has no Parquet format. {_empty(empty)}""")


def tpch_section(
    outcomes: Mapping[str, Mapping[str, Outcome]],
    empty: Mapping[str, float],
    scale: float,
    runs: int,
    plots: Mapping[str, str],
) -> list[str]:
    """``outcomes`` by format and query; ``empty`` is Flink's time without a row of lineitem, by query."""
    lines = [
        "## TPC-H, insert to answer",
        "",
        prose(f"""
            Scale factor {scale:g}: lineitem is streamed from a file, the other tables stand still, no ORDER BY or
            LIMIT. Seconds from the file to the answer: median (best) of {runs} interleaved runs, after one warm-up;
            the last column is the geometric mean over the queries a system ran. All answers of all runs are compared:
            equal but for DuckDB's avg, which is a double and agrees to 6 digits after the point."""),
        "",
    ]
    for format, cases in outcomes.items():
        systems = list(dict.fromkeys(name for o in cases.values() for name in (*o.timings, *o.refusals)))
        rows = []
        for system in systems:
            cells = [
                f"{o.timings[system].median:.2f} ({o.timings[system].best:.2f})" if system in o.timings else "refused"
                for o in cases.values()
            ]
            medians = [o.timings[system].median for o in cases.values() if system in o.timings]
            rows.append([system, *cells, f"{geometric_mean(medians):.2f}" if medians else "-"])
        lines += [f"### From {FORMAT_NAMES[format]}", "", *table(["", *cases, "mean"], rows), ""]
        reasons = [f"- {s}, {name}: {why}" for name, o in cases.items() for s, why in o.refusals.items()]
        if reasons:
            lines += ["Refused, and left out of the means that compare with it:", "", *reasons, ""]
        lines += picture(plots.get(format), f"TPC-H from {FORMAT_NAMES[format]}")
    lines += [
        prose("""
            - Headrace: COPY, with its durable commit, plus SELECT on the continuous view. Making the tables, the
            stream and the view is not timed. Spark's Python workers are running, as the peers' processes are (Spark
            ends them after an idle minute; a short COPY before each run starts them again)."""),
        prose("""
            - Spark Structured Streaming: availableNow, complete mode, as many shuffle partitions as cores, static
            tables cached beforehand. Q15 and Q20 have operators above their grouping, which a streaming query cannot
            have: they run in foreachBatch over its output."""),
        *([_flink_as_run(empty)] if any("Flink" in o.timings for o in outcomes.get("csv", {}).values()) else []),
        "- DuckDB once: the query over the file; static tables in its memory. It keeps nothing: the limit, not a peer.",
        "- Deferred maintenance: the rows are appended to a table of a DuckDB file and the query runs over the table.",
        "",
    ]
    return lines


def _empty(empty: Mapping[str, float]) -> str:
    if not empty:
        return ""
    figures = ", ".join(f"{name} {seconds:.2f}" for name, seconds in empty.items())
    return f"""
        Its time has the start of the job in it, and reading the static tables, which it has nowhere to keep: without
        a row of lineitem the same jobs take {figures} s."""


def plant_section(result: PlantResult) -> list[str]:
    rows = [
        [name, f"{1e3 * times.p50:.1f}", f"{1e3 * times.p99:.1f}", f"{len(times.runs):,}"]
        for name, times in (("insert of 1,000 rows, durable", result.inserts), ("read to Arrow", result.reads))
    ]
    return [
        "## The plant view",
        "",
        prose(f"""
            `low_stock` (grouped usage and restock joined with stations), {result.groups:,} groups in each stream,
            {result.answer_rows:,} rows in the answer. Milliseconds. Reads come after all timed inserts, each after
            new input; the answer's length is checked at every read."""),
        "",
        *table(["", "p50", "p99", "count"], rows),
        "",
    ]


def aim_section(
    results: Sequence[Aim], refusals: Mapping[str, str], customers: int, before: int, seconds: float, plot: str | None
) -> list[str]:
    queries = list(dict.fromkeys(query for result in results for query in result.reads))
    rows = [
        [
            f"{r.name}, {r.offered:,.0f}/s",
            f"{r.acknowledged:,.0f}" if r.held else f"{r.acknowledged:,.0f} (not held)",
            f"{1e3 * r.lag.p99:.0f}",
            *(_milliseconds(r.reads.get(query)) for query in queries),
            _milliseconds(r.all_reads),
            f"{len(r.all_reads.runs):,}",
            _milliseconds(r.kept),
        ]
        for r in results
    ]
    header = ["", "taken in /s", "lag p99", *(query.upper() for query in queries), "all", "reads", "nothing new"]
    return [
        "## AIM: queries while events come in",
        "",
        prose(f"""
            {customers:,} customers with {before} calls each before the clock starts; {seconds:g} s at each rate, a
            batch every {1e3 * TICK:.0f} ms on a schedule that does not wait, while another thread asks the six
            queries at random without pause. Milliseconds p50 / p99 of reads that find new input; the last column is
            of those that find none (answered by Headrace from what is kept). Lag is from a batch's due time until it is
            acknowledged, durable for Headrace and DuckDB. At the end all answers are compared with DuckDB's over all
            events."""),
        "",
        *table(header, rows),
        "",
        *(f"- {name} is left out: {why}" for name, why in refusals.items()),
        *([""] if refusals else []),
        *picture(plot, "AIM, median read by query"),
        prose("""
            Deferred maintenance appends to a DuckDB table and computes each query from it. Flink keeps all six queries
            fresh in one job fed with files; it cannot be asked, so its figure is how long after a batch is acknowledged
            its job has seen it, and what it took in is what its job had seen when the last batch was acknowledged."""),
        "",
    ]


def refresh_section(result: Refresh) -> list[str]:
    rows = [
        [name, *(_milliseconds(times.get(name)) for times in (result.inserts, result.whole, result.one))]
        for name in result.whole
    ]
    return [
        "## Refresh against recompute",
        "",
        prose(f"""
            {result.rows:,} rows seen, {result.groups:,} groups (count, sum, min, max); before each read {NEW_ROWS:,}
            new rows come in. Milliseconds p50 / p99. Headrace reads its view, DuckDB computes the query over its
            table, Spark over Parquet files; *one group* is the view filtered by its key, where DuckDB and Spark
            filter their rows first."""),
        "",
        *table(["", "insert", "whole view to Arrow", "one group"], rows),
        "",
    ]


def views_section(result: Views, plot: str | None) -> list[str]:
    rows = [
        [str(n), f"{result.inserts[n]:.2f}", f"{result.growth(n):.1f}x", f"{result.reads[n]:.2f}"]
        for n in result.inserts
    ]
    return [
        "## Many views on one stream",
        "",
        f"{result.rows:,} rows in {result.batches} Arrow batches, durable; the 64 views are 8 groupings by 8 filters."
        " Seconds: all inserts, then reading each view once.",
        "",
        *table(["views", "inserts", "relative to one", "reads"], rows),
        "",
        *picture(plot, "Cost by number of views"),
    ]


def ring_section(result: RingResult, scale: float, runs: int, pictures: Sequence[str]) -> list[str]:
    systems = list(dict.fromkeys(name for outcome in result.outcomes.values() for name in outcome.timings))
    rows = []
    for name, outcome in result.outcomes.items():
        times = [f"{outcome.timings[s].median:.2f}" if s in outcome.timings else "-" for s in systems]
        alone = f"{result.beside[name].median:.2f}"
        rows.append([name.upper(), *times, alone, *(_share(result.overhead(name, s)) for s in systems)])
    totals = [sum(o.timings[s].median for o in result.outcomes.values() if s in o.timings) for s in systems]
    rows.append(["all, mean", *(f"{t:.2f}" for t in totals), "", *(_share(result.mean_overhead(s)) for s in systems)])
    ingest = [
        [f"{s}, all columns", f"{t.median:.2f}", f"{result.rows / t.median / 1e6:.2f}"]
        for s, t in result.ingest.items()
    ]
    ingest += [
        [f"{s}, count(*)", f"{t.median:.2f}", f"{result.rows / t.median / 1e6:.2f}"] for s, t in result.count.items()
    ]
    refusals = [
        f"{s} does not run {n.upper()}: {why}" for n, o in result.outcomes.items() for s, why in o.refusals.items()
    ]
    return [
        f"## Ingest, TPC-H SF {scale:g} ({result.rows:,} rows of lineitem)",
        "",
        prose(
            f"""From Arrow in memory into the ring, all 16 columns: {result.arrow_per_second / 1e6:.1f} million tuples a
            second of one processor. From CSV, every field converted to its type (003, Figure 5a; 003 takes count(*) for
            the ingest of Spark and Flink, which need not convert anything for it):"""
        ),
        "",
        *table(["", "seconds", "million tuples/s"], ingest),
        "",
        *picture(pictures[0] if pictures else None, "million tuples a second"),
        "## The twelve queries while lineitem is inserted",
        "",
        prose(
            f"""Seconds, median of {runs}. Headrace copies the file into a ring of {ring.CAPACITY:,} tuples while the
            query reads it; Spark and Flink run the query as a batch over the file (003, Figure 5b). Then: Headrace's
            ingest alone, timed right before each run, and what a query costs each system on top of its own ingest,
            which is count(*) of Spark and Flink (003, Figure 6)."""
        ),
        "",
        *table(["", *systems, "ingest alone", *(f"{s}, on top" for s in systems)], rows),
        "",
        *(f"{line}." for line in refusals),
        *([""] if refusals else []),
        *picture(pictures[1] if pictures else None, "seconds of each query"),
        *picture(pictures[2] if pictures else None, "cost of each query on top of ingest"),
        "## Only the columns Q6 reads",
        "",
        prose("""How many times as fast with four columns as with all sixteen (003, Table 1). Insert is count(*) of
            Spark and Flink; of the same file they read no other columns in any case."""),
        "",
        *table(["", *result.four], _four_rows(result)),
        "",
    ]


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:,.0f} %"


def _four_rows(result: RingResult) -> list[list[str]]:
    kinds = dict.fromkeys(what for found in result.four.values() for what in found)
    return [[w, *(f"{found[w]:.2f}x" if w in found else "-" for found in result.four.values())] for w in kinds]


def memory_section(results: Sequence[Memory], lineitem: Memory, plot: str | None) -> list[str]:
    rows = [
        [r.view, f"{r.early:.0f}", f"{r.end:.0f}", f"{max(r.megabytes):.0f}", f"{r.growth:.2f}x"]
        for r in (*results, lineitem)
    ]
    return [
        "## Memory",
        "",
        f"{results[0].rows[-1]:,} rows inserted into a view with {GROUPS:,} groups, each view in a process of its own:"
        f" resident set in MB. In the last row, lineitem's {lineitem.rows[-1]:,} rows went through TPC-H Q1.",
        "",
        *table(["view", "second tenth", "last tenth", "most", "growth"], rows),
        "",
        *picture(plot, "Memory by rows inserted"),
    ]


def bars_section(bars: Sequence[Bar]) -> list[str]:
    rows = [[b.what, b.shown, f"{b.bound} {b.bar:g}{b.unit}", "met" if b.met else "**missed**"] for b in bars]
    return ["## Bars", "", *table(["", "figure", "bar", ""], rows), ""]


def tables_page(result: Tables) -> list[str]:
    """The sections of the page about tables that Spark reads and writes."""

    def grid(timings: Mapping[str, Mapping[str, Timing]]) -> list[str]:
        readers = list(next(iter(timings.values())))
        rows = [
            [name, *(f"{by[r].median:.2f} ({by[r].median / by[SPARK].median:.2f}x)" for r in readers)]
            for name, by in timings.items()
        ]
        return table(["", *readers], rows)

    written = [
        [what, f"{mine.median:.2f}", f"{its.median:.2f}", f"{its.median / mine.median:.2f}x"]
        for what, (mine, its) in result.written.items()
    ]
    return [
        f"## {result.rows:,} rows of lineitem, read by Spark SQL",
        "",
        "Seconds, median, interleaved after a warm-up; in brackets, relative to Spark.",
        "",
        *grid(result.whole),
        "",
        prose(f"""
            The table has {result.segments} segments, and Spark by itself reads the same files. This process grew by
            {result.grown:.0f} MB meanwhile."""),
        "",
        f"### After `{DELETED}`",
        "",
        "Spark by itself reads the deleted rows too: it has no means to leave them out.",
        "",
        *grid(result.holed),
        "",
        "## Written by tasks",
        "",
        "Seconds, median; a new database, and a new folder, each run.",
        "",
        *table(["", "Headrace", "Spark", "speed"], written),
        "",
    ]


def sample_page(result: Samples, picture_: str | None) -> list[str]:
    """The sections of the page about samples."""
    timings = {**result.parquet, "a Spark job that does nothing": result.job}
    rows = [[name, f"{t.median:.2f} ({t.best:.2f})", f"{len(t.runs)}"] for name, t in timings.items()]
    grid = []
    for n in SIZES:
        own = 1e6 * result.shares[n, WORKERS[-1], "fenwick"]
        grid.append([f"{n:,}", *(f"{result.faster(n, p):.2f}" for p in WORKERS), f"{own:.0f}"])
    memory = [[name, f"{1e3 * t.median:.1f}"] for name, t in result.arrow.items()]
    alone = result.by_processes[1].median
    workers = [
        [
            f"{n}",
            *(f"{s:.3f}" for s in (t.median, result.fixed[n].median, result.scan_seconds(n))),
            f"{result.by_processes[n].median:.3f} ({alone / result.by_processes[n].median:.2f}x)",
        ]
        for n, t in result.by_workers.items()
    ]
    bounded = f" It was stopped after {TAKEN_SECONDS:.0f} s." if result.stopped else ""
    taken = f" `rdd.takeSample` reads all rows twice, into Python; it ran once.{bounded}" if TAKEN in timings else ""
    return [
        f"## {ROWS:,} of {result.rows:,} rows of lineitem, all columns",
        "",
        "### From Parquet",
        "",
        "Seconds, median (best), interleaved after a warm-up.",
        "",
        *table(["", "seconds", "runs"], rows),
        "",
        prose(f"""
            Every way gives {ROWS:,} rows, but `df.sample(fraction).limit(n)` only because its fraction is chosen larger
            than needed, and then not uniformly: the limit takes the first rows.{taken}"""),
        "",
        "By workers (tasks), seconds, medians:",
        "",
        *table(["workers", "the call", "with hardly a row", "without one's fixed cost", "plain processes"], workers),
        "",
        prose("""
            A call with hardly a row (1,000 of the same columns) is what is fixed: seeing what the frame is, a Spark
            job, a statement in each task. One worker's is taken off both; what a second costs to start is not. The last
            column is the machine's own bound: the same rows, drawn by processes without Spark."""),
        "",
        "### From Arrow in memory",
        "",
        *table(["", "milliseconds"], memory),
        "",
        prose(f"""
            One thread, batches of 65,536 rows. A selected row of a sample of 10,000 takes
            {1e6 * result.selected:.2f} µs, those that are replaced again counted and not copied. Over integers nobody
            looks at, one thread passes {result.generated / 1e9:,.1f} billion rows a second: a measure of skipping, not
            of work."""),
        "",
        "## Shares: Fenwick tree or hypergeometric draws",
        "",
        prose("""
            How many times as fast the Fenwick tree is, by rows drawn and workers, as in Fig. 5.3 of 000, which sees the
            cross-over between 750 and 1,000 rows for any number of workers. Here it moves with them, for NumPy's
            hypergeometric draws are cheap: Headrace changes over at 1.5 rows a worker. The last column is the tree's
            own time for the most workers, in µs."""),
        "",
        *table(["rows", *(f"{p:,}" for p in WORKERS), "µs"], grid),
        "",
        *picture(picture_, "Fenwick over hypergeometric"),
    ]


def cdc_page(result: cdc.Cdc) -> list[str]:
    """The page of captured changes."""
    rows = [
        [name, f"{median(times):.2f} s", f"{result.rate(name):,.0f}", f"{result.times(name):.1f}x"]
        for name, times in result.seconds.items()
    ]
    return [
        prose(f"""{result.rows:,} of Debezium's messages (a tenth inserts, a tenth deletes, updates of random rows) are
        applied to a table of {result.rows:,} rows with a primary key, in one commit. Reading the messages is part of
        the time. Medians of {len(result.seconds[cdc.SPARK])} runs in turns; all end with the same rows. Spark keeps the
        last message of each key by a window, joins it with the table by a full outer join, and writes the table anew;
        Headrace also keeps the sequence of each key, so that late changes find themselves late."""),
        "",
        *table(["", "Time", "Messages/s", "Beside Spark"], rows),
        "",
    ]
