"""Before against after: the same work by two checkouts of Headrace, in turns, and how sure the difference is.

    python -m bench.pairs ../before --pairs 11 --only plant --only ring

Each pair runs both, one after the other, each in a process of its own, the one that goes first in turns: a slow minute
of the machine slows both. Only Headrace runs; beside its peers it is measured by ``python -m bench``. The work is small
enough for many pairs, and uses the public interface alone, so that it runs over any version.

A part's figure is the geometric mean of its cases' ratios, after over before. It is *slower* only if the whole 95 %
interval over the pairs lies above 1.05.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parent.parent
SLOWER = 1.05
Seconds = dict[str, float]


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# What one process measures: seconds by case.


def _plant() -> Seconds:
    from bench import plant

    found = plant.run(1_500, 150, lambda _: None)
    return {"insert": found.inserts.p50, "read": found.reads.p50}


def _views() -> Seconds:
    from bench import views

    batches = [views.batch(50_000, turn) for turn in range(9)]
    found: Seconds = {}
    for count in (1, 8, 64):
        found[f"{count}, inserts"], found[f"{count}, reads"] = views._feed(count, batches)
    return found


def _refresh() -> Seconds:
    from bench import refresh
    from bench.ours import database

    groups = 100_000
    insert: list[float] = []
    whole: list[float] = []
    one: list[float] = []
    with database() as db:
        db.sql(f"CREATE STREAM rows ({refresh.COLUMNS})")
        db.sql(f"CREATE VIEW kept AS {refresh.VIEW}")
        for chunk in refresh.history(2_000_000, groups):
            db.insert("rows", chunk)
        for turn in range(31):
            for read, text in ((whole, "SELECT * FROM kept"), (one, f"SELECT * FROM kept WHERE k = {turn * 7919}")):
                rows = refresh.batch(refresh.NEW_ROWS, groups, 1_000 + 2 * turn + (read is one))
                insert.append(_timed(lambda rows=rows: db.insert("rows", rows)))  # type: ignore[misc]
                read.append(_timed(lambda text=text: db.sql(text).arrow()))  # type: ignore[misc]
    named = {"insert": insert, "whole": whole, "one group": one}
    return {name: statistics.median(times[1:]) for name, times in named.items()}


def _ring() -> Seconds:
    import headrace
    from bench import ring, tpch

    data = tpch.Data(ROOT / "data", 1.0)
    file = data.lineitem("csv")
    found: Seconds = {}
    with headrace.connect(engine="native") as db:
        ring._load(db, data)

        def copy() -> None:
            db.copy("lineitem", file, header=True)

        def asked(sql: str) -> None:
            running = cast(Any, db.sql(sql))
            copy()
            running.finish().arrow()

        copy()
        found["ingest"] = _timed(copy)
        for name in ("q1", "q3", "q6", "q9", "q12"):
            found[name] = _timed(lambda name=name: asked(ring.queries()[name]))  # type: ignore[misc]
    return found


def _sample() -> Seconds:
    import headrace
    from bench import tpch, views
    from bench.ours import database
    from bench.peers.spark import start_spark

    batches = [views.batch(50_000, turn) for turn in range(21)]
    with database() as db:
        db.sql(f"CREATE STREAM s ({views.COLUMNS})")
        db.sql("CREATE SAMPLE few OF s SIZE 1000")
        db.sql("CREATE SAMPLE each OF s SIZE 10 GROUP BY d")
        db.insert("s", batches[0])
        kept = _timed(lambda: [db.insert("s", rows) for rows in batches[1:]])
        read = _timed(lambda: [db.sql(f"SELECT * FROM {name}").arrow() for name in ("few", "each")])
    spark = start_spark()
    try:
        frame = spark.read.parquet(str(tpch.Data(ROOT / "data", 1.0).lineitem("parquet")))
        headrace.reservoir(frame, 1_000).count()
        drawn = _timed(lambda: headrace.reservoir(frame, 1_000).count())
    finally:
        spark.stop()
    return {"kept, inserts": kept, "kept, reads": read, "reservoir": drawn}


def _tpch() -> Seconds:
    from bench import ours, tpch
    from bench.peers.spark import start_spark

    data = tpch.Data(ROOT / "data", 1.0)
    found: Seconds = {}
    spark = start_spark()
    try:
        for system in (ours.by_tasks(spark), ours.in_process(spark)):
            for format in tpch.FORMATS:
                for case in tpch.cases(data, format)[:4]:
                    found[f"{case.name}, {format}, {system.name}"] = system.answer(case)[0]
    finally:
        spark.stop()
    return found


PARTS: dict[str, Callable[[], Seconds]] = {
    "plant": _plant,
    "views": _views,
    "refresh": _refresh,
    "ring": _ring,
    "sample": _sample,
    "tpch": _tpch,
}


# Pairs


def _measured(checkout: Path, part: str) -> Seconds:
    """What a process that imports the checkout's Headrace measures."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [sys.executable, "-m", "bench.pairs", "--measure", part, "--output", out.name]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(checkout / "src"), str(ROOT)))}
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if ran.returncode:
            raise RuntimeError(f"{part} by {checkout}: {ran.stderr[-2_000:]}")
        return cast(Seconds, json.loads(Path(out.name).read_text()))


def ratio(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """How many times as long it took after, over the cases both have: their geometric mean.

    >>> round(ratio({"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 4.0, "c": 1.0}), 6)
    2.0
    """
    both = before.keys() & after.keys()
    return math.exp(statistics.fmean(math.log(after[case] / before[case]) for case in both))


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of independent ratios, and its 95 % interval (Student's t).

    >>> [round(x, 3) for x in interval([1.0, 1.1, 0.9, 1.0])]
    [0.997, 0.876, 1.136]
    """
    logs = [math.log(r) for r in ratios]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), 0.0, math.inf
    half = _student(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def _student(freedom: int) -> float:
    """The 97.5 % point of Student's distribution."""
    table = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
    return table[freedom - 1] if freedom <= len(table) else 2.0 if freedom > 60 else 2.09


def _pairs(before: Path, after: Path, parts: Sequence[str], pairs: int) -> dict[str, list[tuple[Seconds, Seconds]]]:
    found: dict[str, list[tuple[Seconds, Seconds]]] = {part: [] for part in parts}
    for turn in range(pairs):
        for part in parts:
            order = (before, after) if turn % 2 == 0 else (after, before)
            times = {checkout: _measured(checkout, part) for checkout in order}
            found[part].append((times[before], times[after]))
            print(f"{part}, pair {turn + 1}: {ratio(*found[part][-1]):.3f}", flush=True)
    return found


def _page(found: Mapping[str, Sequence[tuple[Seconds, Seconds]]]) -> str:
    lines = ["| part | case | before | after | after / before | 95 % interval |", "|---|---|---|---|---|---|"]
    for part, pairs in found.items():
        cases = [case for case in pairs[0][0] if case in pairs[0][1]]
        for case in cases:
            before, after = (statistics.median(pair[i][case] for pair in pairs) for i in (0, 1))
            mean, low, high = interval([a[case] / b[case] for b, a in pairs])
            shown = f"{1e3 * before:,.1f} ms | {1e3 * after:,.1f} ms"
            lines.append(f"| {part} | {case} | {shown} | {mean:.3f} | {low:.3f} to {high:.3f} |")
        mean, low, high = interval([ratio(*pair) for pair in pairs])
        verdict = "slower" if low > SLOWER else "not slower"
        lines.append(
            f"| **{part}** | all, {len(pairs)} pairs | | | **{mean:.3f}** | {low:.3f} to {high:.3f}: {verdict} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pairs", description="Before against after.")
    parser.add_argument("before", type=Path, nargs="?", help="a checkout of the version to compare with")
    parser.add_argument("--after", type=Path, default=ROOT, help="the other checkout (this one)")
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--only", choices=tuple(PARTS), action="append", help="this part only (may be given twice)")
    parser.add_argument("--measure", choices=tuple(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help="where the table goes, too")
    chosen = parser.parse_args()
    if chosen.measure:
        chosen.output.write_text(json.dumps(PARTS[chosen.measure]()))
        return 0
    if chosen.before is None or not (chosen.before / "src" / "headrace").is_dir():
        parser.error("name a checkout of the version to compare with, made for example by git worktree add")
    parts = chosen.only or list(PARTS)
    page = _page(_pairs(chosen.before.resolve(), chosen.after.resolve(), parts, chosen.pairs))
    print(page)
    if chosen.output:
        chosen.output.write_text(page + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
