"""The plots beside the tables: small SVG files that a rerun changes only where figures change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measure import Outcome
from bench.memory import Memory
from bench.move import Moves
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
    axes.set_yscale("log")


def tpch(outcomes: Mapping[str, Outcome], file: Path) -> str:
    """Seconds of every system on every query."""
    systems = list(dict.fromkeys(name for outcome in outcomes.values() for name in outcome.timings))
    figure, axes = _figure()
    series = {s: [o.timings[s].median if s in o.timings else None for o in outcomes.values()] for s in systems}
    _side_by_side(axes, list(outcomes), series)
    axes.set_ylabel("seconds, insert to answer")
    axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.25))
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
    axes.bar(list(result.outcomes), [100 * result.overhead(name) for name in result.outcomes])
    axes.set_ylabel("% on top of ingest, Headrace")
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
    axes.set_yscale("log")
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


def move_states(result: Moves, file: Path) -> str:
    """How large states are, and how they grow as a query gets on (004 Figures 3 to 6)."""
    figure, (left, right) = _pair()
    sizes = sorted(max(state.needed, 1) for state in result.states)
    left.step(sizes, [(i + 1) / len(sizes) for i in range(len(sizes))], where="post")
    left.set_xscale("log")
    left.set_xlabel(f"bytes of a state, TPC-H SF {result.states_scale:g}")
    left.set_ylabel("share of states")
    for name in dict.fromkeys(state.query for state in result.states):
        points = [(state.progress, max(state.needed, 1)) for state in result.states if state.query == name]
        right.plot([x for x, _ in points], [y for _, y in points], linewidth=0.8, marker=".", markersize=3)
    right.set_yscale("log")
    right.set_xlabel("share of pipelines finished")
    right.set_ylabel("bytes")
    return _save(figure, file)


def move_overhead(result: Moves, file: Path) -> str:
    """Overhead by progress (004 Figure 12), and extracting once against at every stage (Figures 13 and 14)."""
    figure, (left, right) = _pair()
    for name in result.every_stage:
        points = [(move.progress, 100 * move.overhead) for move in result.moves if move.query == name]
        left.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=3, label=name)
    left.axhline(0, linestyle=":", color="grey")
    left.set_xlabel("share of pipelines finished")
    left.set_ylabel("overhead of moving, %")
    left.legend(ncols=2)
    names = list(result.every_stage)
    once = [_mean([100 * move.overhead for move in result.moves if move.query == name]) for name in names]
    every = [100 * result.every_stage[name] for name in names]
    for i, (label, values) in enumerate((("on demand", once), ("at every stage", every))):
        right.bar([x - 0.2 + 0.4 * i for x in range(len(names))], values, 0.38, label=label)
    right.set_xticks(range(len(names)), names)
    right.set_ylabel("overhead, %")
    right.legend()
    return _save(figure, file)


def _pair() -> tuple[Any, Any]:
    figure, _ = _figure()
    figure.clear()
    return figure, figure.subplots(1, 2)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
