"""The page of materialized views: bars, figures and plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.bars import Bar, at_least, at_most
from bench.maintain import DUCKDB, FEW, HEADRACE, SPARK, TOGETHER, Maintained, Scale, View
from bench.plots import _figure, _logarithmic, _pair, _save
from bench.report import picture, prose, table

SPEED = {SPARK: 100.0, DUCKDB: 5.0}
SPEED_LARGE = {DUCKDB: 20.0}
INCREMENTAL = 18
FRESH_MS = {"q1": 20.0, "q6": 20.0, "q14": 20.0, "q3": 50.0, "q10": 50.0}
GROWTH = 1.5


def bars(result: Maintained) -> list[Bar]:
    """What is asked of it."""
    found: list[Bar] = []
    first = result.scales[0]
    found.append(
        at_least("maintain: TPC-H's queries that are incremental, of 22", len(first.followed), INCREMENTAL, "")
    )
    for scale in result.scales:
        for peer, bar in (SPEED if scale is first else SPEED_LARGE).items():
            ratios = [r for view in scale.compared.values() if (r := view.times(peer)) is not None]
            if ratios:
                what = f"maintain: SF {scale.scale:g}, {scale.changed:,} rows changed, median speed relative to {peer}"
                found.append(at_least(what, median(ratios), bar, "x"))
    for name, bar in FRESH_MS.items():
        if HEADRACE in first.views[name].few:
            what = f"maintain: SF {first.scale:g}, {FEW:,} rows to fresh answer, {name.upper()}, p50"
            found.append(at_most(what, _ms(first.views[name]), bar, " ms"))
    for scale in result.scales[1:]:
        growth = [
            _ms(view) / _ms(first.views[name])
            for name, view in scale.compared.items()
            if name in first.followed and HEADRACE in view.few
        ]
        if growth:
            what = (
                f"maintain: {FEW:,} rows changed, time at SF {scale.scale:g} relative to SF {first.scale:g}, the most"
            )
            found.append(at_most(what, max(growth), GROWTH, "x"))
    return found


def _ms(view: View) -> float:
    return 1e3 * median(view.few[HEADRACE])


def _times(ratio: float | None) -> str:
    return f"{ratio:.1f}x" if ratio is not None else "-"


def _rows(scale: Scale) -> list[list[str]]:
    found = []
    for name, view in scale.views.items():
        if view.refused is not None:
            found.append([name.upper(), f"refused: {view.refused}", *[""] * 5])
            continue
        found.append(
            [
                name.upper(),
                "yes" if view.incremental else "no",
                f"{_ms(view):.1f}",
                f"{1e3 * view.median(HEADRACE):.1f}",
                _times(view.times(DUCKDB)),
                _times(view.times(SPARK)),
                f"{100 * view.state_bytes / scale.table_bytes:.2f} %",
            ]
        )
    return found


def sections(result: Maintained, plots: Path | None) -> list[str]:
    """The page."""
    lines = [
        prose(f"""
            From a change committed to the answer read. {FEW:,} rows, or 0.1 % of orders and lineitem, come, change and
            go, a third each, scattered over all keys. DuckDB and Spark recompute the query over tables that have the
            same changes; making the changes is nobody's time. Headrace brings views up to date inside the statements
            that change their tables. So a view's time is what these spend on it - making its state rows, and its share
            of adding those of all views to the commit - and then the read. Answers of all systems are equal after each
            change that they are asked after. Medians over views leave out queries that read neither table."""),
        "",
    ]
    head = ["", "incremental", f"{FEW:,} rows, ms", "0.1 %, ms", "beside DuckDB", "beside Spark", "state, of tables"]
    for scale in result.scales:
        memory = ""
        if scale is not result.scales[0]:
            memory = " Indexes of keys need more memory than there is by default: `state_memory` is 12 GiB."
        lines += [
            f"## Scale factor {scale.scale:g}",
            "",
            prose(f"""{scale.rows:,} orders and lineitems; the change of 0.1 % is {scale.changed:,} rows. Medians; the
                last column is the bytes of a view's merged states beside those of all tables' files.{memory}"""),
            "",
            *table(head, _rows(scale)),
            "",
            prose(f"""To check: with all views in one database the statements of the change of 0.1 % take
                {1e3 * median(scale.more):.0f} ms longer than in a database without views, in turns; the views' parts,
                as they are told here, are {1e3 * median(scale.parts):.0f} ms together."""),
            "",
        ]
    lines += ["## Cost against the size of a change", ""]
    lines += picture(_sizes(result, plots / "maintain-sizes.svg") if plots else None, "cost against change size")
    for name, by in result.by_size.items():
        rows = [[f"{n:,}", *(f"{1e3 * ways[way]:.1f}" for way in (HEADRACE, "recomputed"))] for n, ways in by.items()]
        lines += [
            f"{name.upper()}, lineitems updated:",
            "",
            *table(["rows", "followed, ms", "recomputed, ms"], rows),
            "",
        ]
    lines += ["## Groups, batches, writers", ""]
    lines += picture(
        _others(result, plots / "maintain-others.svg") if plots else None, "freshness, and cost to writers"
    )
    lines += [
        prose("""Updates of 1,000 lineitems, some of which move to another group of a view by supplier (001
            F4.5.6):"""),
        "",
        *table(["moved, %", "ms"], [[str(n), f"{1e3 * s:.1f}"] for n, s in result.moved.items()]),
        "",
        "How old Q3's answer is when changes come in batches (001 F4.5.7):",
        "",
        *table(["rows of a batch", "ms", "rows/s"], [
            [f"{n:,}", f"{1e3 * s:.1f}", f"{n / max(s, 1e-9):,.0f}"] for n, s in result.batches.items()
        ]),
        "",
        prose(f"""What views cost whoever writes (001 F4.5.8): a statement that changes {FEW:,} lineitems, by how many
            views follow ({", ".join(name.upper() for name in TOGETHER)}, some twice); and an UPDATE of a column that
            none of them reads."""),
        "",
        *table(["views", "ms", "unread column, ms"], [
            [str(n), f"{1e3 * s:.1f}", f"{1e3 * result.unread[n]:.1f}"] for n, s in result.writer.items()
        ]),
        "",
        prose(f"""{result.sustained[0]:,} changes in batches of 10,000 into {", ".join(n.upper() for n in TOGETHER)}
            together, the statements' own time and the reads at the end included:
            {result.sustained[0] / max(result.sustained[1], 1e-9):,.0f} changes/s."""),
        "",
    ]  # fmt: skip
    return lines


def _sizes(result: Maintained, file: Path) -> str:
    figure, axes = _figure()
    for name, by in result.by_size.items():
        for way, style in ((HEADRACE, "-"), ("recomputed", ":")):
            label = f"{name.upper()} {'followed' if way == HEADRACE else way}"
            heights = [max(1e3 * ways[way], 0.1) for ways in by.values()]
            axes.plot(list(by), heights, style, marker="o", markersize=3, label=label)
    axes.set_xscale("log")
    _logarithmic(axes)
    axes.set_xlabel("rows changed")
    axes.set_ylabel("ms to the answer")
    axes.legend(ncols=2)
    return _save(figure, file)


def _others(result: Maintained, file: Path) -> str:
    figure, (left, right) = _pair()
    left.plot(list(result.batches), [1e3 * s for s in result.batches.values()], marker="o", markersize=3)
    left.set_xscale("log")
    _logarithmic(left)
    left.set_xlabel("rows of a batch")
    left.set_ylabel("ms to the answer")
    lines: Sequence[tuple[str, dict[int, float]]] = (("read", result.writer), ("not read", result.unread))
    for label, by in lines:
        right.plot(list(by), [1e3 * s for s in by.values()], marker="o", markersize=3, label=f"column {label}")
    right.set_ylim(bottom=0)
    right.set_xlabel("views")
    right.set_ylabel("ms of a statement")
    right.legend()
    return _save(figure, file)
