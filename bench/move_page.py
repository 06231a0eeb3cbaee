"""The page about moving running queries: a section for each part that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median

from bench.bars import MOVE_SMALL
from bench.measure import geometric_mean
from bench.move import Moves
from bench.report import picture, prose, table


def sections(result: Moves, plots: Mapping[str, str]) -> list[str]:
    """All of the page below its head."""
    chosen = ", ".join(f"{query.label} at SF {query.scale:g}" for query in result.extent.queries())
    return [
        prose(f"""
            {chosen}, from Parquet, on the same cores on both sides of a move: long queries of many stages, some with
            small states and some with large ones. All answers are compared with those of the queries that were not
            moved."""),
        "",
        *_idle(result),
        *_moves(result, plots),
        *_every_stage(result, plots),
        *_vacated(result),
        *_states(result, plots),
        *(["## Not measured", "", *(f"- {failure}" for failure in result.failures), ""] if result.failures else []),
    ]


def _idle(result: Moves) -> list[str]:
    if not result.plain:
        return []
    rows = []
    for name, plain in result.plain.items():
        mine, theirs = result.ours[name].seconds, plain.seconds
        ratio = geometric_mean([a / b for a, b in zip(mine, theirs, strict=True)])
        rows.append([name, f"{plain.timing.median:.2f}", f"{result.ours[name].timing.median:.2f}", f"{ratio:.3f}"])
    rows.append(["all pairs", "", "", f"{geometric_mean(result.pairs()):.3f}"])
    return [
        "## Nothing suspended",
        "",
        prose(f"""
            Seconds, medians of {result.extent.pairs} interleaved pairs each, after one run; which of the two goes first
            alternates. The last column is the geometric mean of the pairs' ratios."""),
        "",
        *table(["", "plain Spark", "headrace.run", "ratio"], rows),
        "",
    ]


def _moves(result: Moves, plots: Mapping[str, str]) -> list[str]:
    if not result.moves:
        return []
    rows = [
        [
            move.query,
            f"{move.progress:.0%}",
            _megabytes(move.needed_bytes),
            _megabytes(move.state_bytes),
            *(f"{seconds:.2f}" for seconds in (move.local, move.until, move.suspend, move.resume, move.there)),
            f"{100 * move.overhead:+.0f} %",
            f"{move.beats_restart:.2f}x",
        ]
        for move in result.moves
    ]
    columns = ["", "finished", "state, MB", "written, MB", "left alone, s", "until, s", "suspend, s", "resume, s"]
    columns += ["alone there, s", "overhead", "against restart"]
    return [
        "## Moved",
        "",
        prose("""
            Suspended in one process at a pipeline's end, and resumed in another. Spark runs several pipelines at once:
            of those in flight `suspend` finishes first what is then worth moving, and gives up the rest. The state is
            what unfinished pipelines still read, as Spark holds it; of that a ticket has what is not cheaper to compute
            again. Overhead is the time of all three parts against the query left alone, by plain Spark, right before.
            Starting again means to run all of it elsewhere from the same moment on, which takes as long as the query
            left alone there did. (000, Figure 6.12)"""),
        "",
        *table(columns, rows),
        "",
        *([f"Had their answer before they could be moved: {', '.join(result.passed)}.", ""] if result.passed else []),
        *_by_size(result),
        "Not counted on either side, for both processes are there when a query is moved:",
        "",
        *table(["", "seconds"], [[what, f"{seconds:.2f}"] for what, seconds in result.startup.items()]),
        "",
        *picture(plots.get("overhead"), "Overhead by progress"),
    ]


def _by_size(result: Moves) -> list[str]:
    """What the moves cost on average, with small states and with large ones."""
    small = [move.overhead for move in result.moves if move.needed_bytes < MOVE_SMALL]
    large = [move.overhead for move in result.moves if move.needed_bytes >= MOVE_SMALL]
    rows = [
        [name, f"{len(found)}", *(f"{100 * each:+.0f} %" for each in (fmean(found), min(found), max(found)))]
        for name, found in (("under 100 MB", small), ("from 100 MB on", large), ("all", [*small, *large]))
        if found
    ]
    return [*table(["state", "moves", "mean overhead", "least", "most"], rows), ""]


def _every_stage(result: Moves, plots: Mapping[str, str]) -> list[str]:
    rows = []
    for name, every in result.every_stage.items():
        own = [move for move in result.moves if move.query == name]
        once = [f"{100 * fmean(m.overhead for m in own):+.0f} %"] if own else ["-"]
        once += [_megabytes(fmean(m.state_bytes for m in own))] if own else ["-"]
        rows.append([name, *once, f"{every.tickets}", f"{100 * every.overhead:+.0f} %", _megabytes(every.state_bytes)])
    if not rows:
        return []
    columns = ["", "once: overhead", "once: MB", "tickets", "every stage: overhead", "every stage: MB"]
    return [
        "## On demand, or at every stage",
        "",
        prose("""
            What state costs on demand, the query moved once and resumed (the mean of the points above), or at every
            stage, a ticket whenever a pipeline is finished, which a crash would not lose; that query stays. Pipelines
            that finish while a ticket is written share the next one. (000, Figures 6.13 and 6.14)"""),
        "",
        *table(columns, rows),
        "",
        *picture(plots.get("every"), "Extracting once and at every stage"),
    ]


def _vacated(result: Moves) -> list[str]:
    rows = [
        [
            *(f"{n}", f"{found.suspended}", f"{found.seconds:.2f}"),
            *(_megabytes(size) for size in (found.needed_bytes, found.state_bytes)),
        ]
        for n, found in result.vacated.items()
    ]
    if not rows:
        return []
    return [
        "## Vacating",
        "",
        prose("""
            Queries that run side by side are suspended together when each has a third of its pipelines behind it, what
            is in flight given up: seconds until the last ticket is whole. (000, Figure 6.15)"""),
        "",
        *table(["queries", "suspended", "seconds", "state, MB", "written, MB"], rows),
        "",
    ]


def _states(result: Moves, plots: Mapping[str, str]) -> list[str]:
    rows = []
    for suite in dict.fromkeys(state.suite for state in result.states):
        own = [state for state in result.states if state.suite == suite]
        queries = {state.query for state in own}
        sizes = [state.bytes for state in own]
        small = sum(size < MOVE_SMALL for size in sizes) / len(sizes)
        rows.append(
            [
                suite,
                f"{len(queries)}",
                f"{len(own)}",
                *(_megabytes(size) for size in (median(sizes), fmean(sizes), max(sizes))),
                f"{small:.0%}",
                f"{max(state.stages for state in own)}",
            ]
        )
    if not rows:
        return []
    columns = ["", "queries", "states", "median, MB", "mean, MB", "largest, MB", "under 100 MB", "most stages"]
    return [
        f"## States at SF {result.extent.states_scale:g}",
        "",
        prose("""
            What would move after each pipeline, as Spark measured the stages that are still needed; nothing is written.
            Pipelines are taken in the order in which what they read is finished. (004, Figures 3 to 6)"""),
        "",
        *table(columns, rows),
        "",
        *picture(plots.get("sizes"), "Sizes of states"),
        *picture(plots.get("progress"), "Sizes of states by progress"),
    ]


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f}" if size >= 1e5 else f"{size / 1e6:.3f}"
