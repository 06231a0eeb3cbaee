"""The plots beside the tables: small SVG files that a rerun changes only where figures change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.measure import Outcome
from bench.memory import Memory
from bench.move import Moves, State
from bench.ring import RingResult
from bench.sample import SIZES, WORKERS, Samples
from bench.telephone import Aim
from bench.views import Views

SIZE = (7.0, 3.2)
POINTS = 200
"""Of a line, so that the file stays small."""


def _figure() -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {"svg.hashsalt": "headrace", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False}
    )
    matplotlib.rcParams.update({"axes.spines.right": False, "legend.frameon": False})
    from matplotlib import pyplot

    return pyplot.subplots(figsize=SIZE, layout="constrained")


def _save(figure: Any, file: Path) -> str:
    from matplotlib import pyplot

    file.parent.mkdir(parents=True, exist_ok=True)
    # No date: a rerun on the same machine changes figures only.
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
    return file.name


def _side_by_side(axes: Any, labels: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> None:
    width = 0.8 / max(len(series), 1)
    for i, (name, values) in enumerate(series.items()):
        at = [x - 0.4 + (i + 0.5) * width for x in range(len(labels))]
        there = [(x, v) for x, v in zip(at, values, strict=True) if v is not None]
        axes.bar([x for x, _ in there], [v for _, v in there], width * 0.92, label=name)
    axes.set_xticks(range(len(labels)), labels)
    _logarithmic(axes)


def _logarithmic(axes: Any) -> None:
    """Heights by powers of ten, told in plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def tpch(outcomes: Mapping[str, Outcome], file: Path) -> str:
    """Seconds of every system on every query."""
    systems = list(dict.fromkeys(name for outcome in outcomes.values() for name in outcome.timings))
    figure, axes = _figure()
    series = {s: [o.timings[s].median if s in o.timings else None for o in outcomes.values()] for s in systems}
    _side_by_side(axes, [name.upper() for name in outcomes], series)
    axes.set_ylabel("seconds, insert to answer")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return _save(figure, file)


def shares(result: Samples, file: Path) -> str:
    """How many times as fast the Fenwick tree shares out a sample as hypergeometric draws do, as in 000 Fig. 5.3."""
    figure, axes = _figure()
    for workers in WORKERS:
        axes.plot(SIZES, [result.faster(n, workers) for n in SIZES], marker="o", markersize=3, label=f"{workers:,}")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rows drawn")
    axes.set_ylabel("speed of Fenwick over hypergeometric")
    axes.legend(title="workers", ncols=2)
    return _save(figure, file)


def ring_rates(result: RingResult, files: Path) -> list[str]:
    """003's Figure 5: what goes in a second, and queries an hour; and Figure 6: what queries cost on top."""
    figure, axes = _figure()
    rates = {f"{name}, all columns": result.rows / t.median / 1e6 for name, t in result.ingest.items()}
    rates |= {f"{name}, count(*)": result.rows / t.median / 1e6 for name, t in result.count.items()}
    axes.barh(list(rates), list(rates.values()))
    axes.set_xlabel("million tuples a second from CSV")
    made = [_save(figure, files / "ring-ingest.svg")]
    made.append(tpch(result.outcomes, files / "ring-queries.svg"))
    figure, axes = _figure()
    systems = list(dict.fromkeys(name for outcome in result.outcomes.values() for name in outcome.timings))
    series = {
        s: [100 * share if (share := result.overhead(name, s)) is not None else None for name in result.outcomes]
        for s in systems
    }
    _side_by_side(axes, [name.upper() for name in result.outcomes], series)
    axes.set_ylabel("% on top of ingest")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    made.append(_save(figure, files / "ring-overhead.svg"))
    return made


def aim(results: Sequence[Aim], file: Path) -> str:
    """Median read after new input of every query at the highest rate; a system that pushes has one value."""
    rate = max(result.offered for result in results)
    top = [result for result in results if result.offered == rate]
    queries = list(dict.fromkeys(query for result in top for query in result.reads))
    figure, axes = _figure()
    series = {r.name: [1e3 * r.reads.get(q, r.all_reads).p50 for q in queries] for r in top}
    _side_by_side(axes, [query.upper() for query in queries], series)
    axes.set_ylabel(f"ms, p50 at {rate:,.0f} events/s")
    axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.15))
    return _save(figure, file)


def views(result: Views, file: Path) -> str:
    """Time of all inserts against the number of views, beside what as many separate ones would cost."""
    figure, axes = _figure()
    counts = list(result.inserts)
    axes.plot(counts, [result.inserts[n] for n in counts], marker="o", label="measured")
    axes.plot(counts, [result.inserts[1] * n for n in counts], linestyle=":", color="grey", label="nothing shared")
    axes.set_xscale("log", base=2)
    _logarithmic(axes)
    axes.set_xticks(counts, [str(n) for n in counts])
    axes.set_xlabel("views on one stream")
    axes.set_ylabel("seconds, all inserts")
    axes.legend()
    return _save(figure, file)


def memory(results: Sequence[Memory], file: Path) -> str:
    """Resident set against rows inserted, as 000 Figure 4.13, with the point where all groups are seen."""
    figure, axes = _figure()
    for result in results:
        every = max(len(result.rows) // POINTS, 1)
        rows = [rows / 1e6 for rows in result.rows[::every]]
        axes.plot(rows, result.megabytes[::every], linewidth=1, label=result.view)
    first = results[0]
    whole = next(i for i, groups in enumerate(first.groups) if groups == first.groups[-1])
    axes.axvline(first.rows[whole] / 1e6, linestyle=":", color="grey", label="all groups seen")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("million rows inserted")
    axes.set_ylabel("resident set, MB")
    axes.legend(ncols=3, loc="lower right")
    return _save(figure, file)


def moves(result: Moves, files: Path) -> dict[str, str]:
    """A plot of each part that was measured, by name."""
    made = {}
    if result.states:
        made["sizes"] = _move_sizes(result, files / "move-states.svg")
        made["progress"] = _move_progress(result, files / "move-progress.svg")
    if result.moves:
        made["overhead"] = _move_overhead(result, files / "move-overhead.svg")
    if result.every_stage:
        made["every"] = _move_every(result, files / "move-every-stage.svg")
    return made


def _move_sizes(result: Moves, file: Path) -> str:
    """How large states are, by the stages in them, and their mean and sum in each query (004 Figures 3 and 4)."""
    figure, (left, right) = _pair()
    top = max(state.bytes for state in result.states)
    edges = [0.0, *(10.0**n for n in range(3, math.ceil(math.log10(max(top, 10_000))) + 1))]
    kinds = {"1 stage": (1, 1), "2": (2, 2), "3 or 4": (3, 4), "5 or more": (5, math.inf)}
    counts = {
        kind: [
            sum(lowest <= s.stages <= most and low <= s.bytes < high for s in result.states)
            for low, high in pairwise(edges)
        ]
        for kind, (lowest, most) in kinds.items()
    }
    below = [0] * (len(edges) - 1)
    for kind, found in counts.items():
        left.bar(range(len(found)), found, bottom=below, width=0.9, label=kind)
        below = [a + b for a, b in zip(below, found, strict=True)]
    left.set_xticks(range(len(below)), [f"< {_bytes(edge)}" for edge in edges[1:]], rotation=45)
    left.set_ylabel("states")
    left.legend()
    per_query: dict[str, list[int]] = {}
    for state in result.states:
        per_query.setdefault(state.query, []).append(state.bytes)
    for label, sizes in (
        ("mean state", [_mean(found) for found in per_query.values()]),
        ("sum of states", [float(sum(found)) for found in per_query.values()]),
    ):
        ordered = sorted(max(size, 1.0) for size in sizes)
        right.step(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))], where="post", label=label)
    right.set_xscale("log")
    right.set_xlabel("bytes")
    right.set_ylabel("share of queries")
    right.legend()
    return _save(figure, file)


def _move_progress(result: Moves, file: Path) -> str:
    """How states grow and shrink as a query gets on, in bytes and of the query's largest (004 Figures 5 and 6)."""
    figure, (left, right) = _pair()
    largest: dict[str, int] = {}
    for state in result.states:
        largest[state.query] = max(largest.get(state.query, 1), state.bytes)
    tenths: list[list[State]] = [[] for _ in range(10)]
    for state in result.states:
        tenths[min(int(10 * state.progress), 9)].append(state)
    at = [10 * i + 5 for i, states in enumerate(tenths) if states]
    held = [states for states in tenths if states]
    left.boxplot(
        [[max(state.bytes, 1) for state in states] for states in held],
        positions=at,
        widths=7,
        manage_ticks=False,
        flierprops={"marker": ".", "markersize": 3},
    )
    left.set_yscale("log")
    left.set_ylabel("bytes of a state")
    shares = [[state.bytes / largest[state.query] for state in states] for states in held]
    right.plot(at, [_mean(found) for found in shares], marker="o", markersize=3, label="mean")
    quarters = [sorted(found) for found in shares]
    right.fill_between(
        at, [q[len(q) // 4] for q in quarters], [q[3 * len(q) // 4] for q in quarters], alpha=0.2, label="middle half"
    )
    right.set_ylim(0, 1.05)
    right.set_ylabel("of the query's largest state")
    right.legend()
    for axes in (left, right):
        axes.set_xlim(0, 100)
        axes.set_xlabel("% of pipelines finished")
    return _save(figure, file)


def _move_overhead(result: Moves, file: Path) -> str:
    """Overhead by progress, and against starting again (000 Figure 6.12)."""
    figure, (left, right) = _pair()
    for name in dict.fromkeys(move.query for move in result.moves):
        own = [move for move in result.moves if move.query == name]
        at = [100 * move.progress for move in own]
        left.plot(at, [100 * move.overhead for move in own], marker="o", markersize=3, label=name)
        right.plot(at, [move.beats_restart for move in own], marker="o", markersize=3, label=name)
    left.axhline(0, linestyle=":", color="grey")
    right.axhline(1, linestyle=":", color="grey")
    left.set_ylabel("overhead of moving, % of local runtime")
    right.set_ylabel("speed relative to starting again")
    figure.legend(*right.get_legend_handles_labels(), loc="outside upper center", ncols=5)
    for axes in (left, right):
        axes.set_xlim(0, 100)
        axes.set_xlabel("% of pipelines finished")
    return _save(figure, file)


def _move_every(result: Moves, file: Path) -> str:
    """Extracting on demand against at every stage: time and bytes (000 Figures 6.13 and 6.14)."""
    figure, (left, right) = _pair()
    names = [name for name in result.every_stage if any(move.query == name for move in result.moves)]
    own = {name: [move for move in result.moves if move.query == name] for name in names}
    series = {
        "moved once, and resumed": (
            [100 * _mean([m.overhead for m in own[name]]) for name in names],
            [_mean([m.state_bytes / 1e6 for m in own[name]]) for name in names],
        ),
        "state kept at every stage": (
            [100 * result.every_stage[name].overhead for name in names],
            [result.every_stage[name].state_bytes / 1e6 for name in names],
        ),
    }
    for i, (label, values) in enumerate(series.items()):
        for axes, heights in zip((left, right), values, strict=True):
            axes.bar([x - 0.2 + 0.4 * i for x in range(len(names))], heights, 0.38, label=label)
    left.axhline(0, linewidth=0.8, color="grey")
    left.set_ylabel("overhead, % of local runtime")
    right.set_ylabel("MB written")
    right.set_yscale("log")
    figure.legend(*right.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    for axes in (left, right):
        axes.set_xticks(range(len(names)), [name.removeprefix("TPC-") for name in names], rotation=30)
    return _save(figure, file)


def _bytes(size: float) -> str:
    """A power of ten for people.

    >>> _bytes(1e4), _bytes(1e6), _bytes(1e9)
    ('10 kB', '1 MB', '1 GB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size:g} B"


def _pair() -> tuple[Any, Any]:
    figure, _ = _figure()
    figure.clear()
    return figure, figure.subplots(1, 2)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
