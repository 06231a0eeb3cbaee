"""What each shortcut of a read is worth: the same reads with it and without it, in turns.

    python -m bench.shortcuts [--output docs/benchmarks]

``keep/shortcuts.py`` lists them. A shortcut is switched off by putting what it would do without it in its place; both
ways must give the same rows. One that gains nothing should go.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

import headrace
from bench.ours import database
from headrace.keep import answers, shortcuts
from headrace.keep.table_rows import TableRows
from headrace.statement import read
from headrace.table import query

GROUPS = 100_000
READS = 60


@dataclass(frozen=True)
class Case:
    """A shortcut, how it is switched off, and a read that it is for."""

    name: str
    read: str
    off: Callable[[], Any]
    text: Callable[[int], str]
    """The query of a turn."""
    before: Callable[[headrace.Database, int], None] = lambda db, turn: None
    """What happens before it, not timed."""
    fresh: bool = False
    """Whether each read wants a database of its own."""


def _rows(count: int, groups: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table({"k": pa.array(rng.integers(0, groups, count), pa.int32()), "x": pa.array(rng.random(count))})


def _insert(db: headrace.Database, turn: int) -> None:
    db.insert("s", _rows(100, GROUPS, 10_000 + turn))


def _same(text: str) -> Callable[[int], str]:
    return lambda turn: text


def _group(turn: int) -> str:
    return f"SELECT * FROM v WHERE k = {turn * 7919 % GROUPS}"


def _bulk(db: headrace.Database, turn: int) -> None:
    db.insert("t", pa.table({"k": pa.array(np.arange(1_000_000), pa.int32())}))


@contextmanager
def _off(*places: tuple[object, str, object]) -> Iterator[None]:
    with ExitStack() as held:
        for home, name, instead in places:
            held.enter_context(patch.object(home, name, instead))
        yield


def _nothing(*_: object, **__: object) -> None:
    return None


_NEVER_THE_SAME = itertools.count(-1, -1)
NO_GLANCE = (read, "glanced", _nothing)
CASES = [
    Case(
        "known text",
        "a count of a fresh view",
        lambda: _off((shortcuts.Texts, "known", _nothing)),
        _same("SELECT count(*) FROM v WHERE n > 5"),
    ),
    Case(
        "known shape",
        "one group, each time another",
        lambda: _off((shortcuts.Texts, "like", _nothing)),
        _group,
    ),
    Case("glance", "the same group again", lambda: _off(NO_GLANCE), _same(_group(3))),
    Case(
        "lookup",
        "one group after an insert",
        lambda: _off(NO_GLANCE, (read, "BY_STATE", (shortcuts.filtered,))),
        _group,
        _insert,
    ),
    Case(
        "range",
        "groups of a range of keys after an insert",
        lambda: _off((read, "BY_STATE", (shortcuts.found, shortcuts.filtered))),
        lambda turn: f"SELECT * FROM v WHERE k < {100 + turn}",
        _insert,
    ),
    Case(
        "filter first",
        "some groups after an insert",
        lambda: _off((read, "BY_STATE", (shortcuts.found, shortcuts.ranged))),
        lambda turn: f"SELECT * FROM v WHERE k + n < {100 + turn}",
        _insert,
    ),
    Case(
        "kept answer",
        "a view with a join above its grouping, unchanged",
        lambda: _off((answers.Answers, "_changed", lambda *_: next(_NEVER_THE_SAME))),
        _same("SELECT * FROM j"),
    ),
    Case(
        "no query",
        "two columns of a fresh view",
        lambda: _off((query.Prepared, "renamed_scan", property(_nothing))),
        _same("SELECT k, n FROM v"),
    ),
    Case(
        "lies merged",
        "the first read after a bulk load of a million groups",
        lambda: _off((answers.Answers, "_is_merged", lambda *_: False)),
        _same("SELECT count(*), max(n) FROM w"),
        _bulk,
        fresh=True,
    ),
    Case(
        "held tables",
        "a view joined with a table of a million rows, after an insert",
        lambda: _off((TableRows, "of", lambda *_: {})),
        _same("SELECT * FROM j"),
        _insert,
    ),
]


@contextmanager
def _made(*, filled: bool) -> Iterator[headrace.Database]:
    with database() as db:
        db.sql("CREATE STREAM s (k INT, x DOUBLE)")
        db.sql("CREATE VIEW v AS SELECT k, count(*) AS n, sum(x) AS t FROM s GROUP BY k")
        db.sql("CREATE STREAM t (k INT)")
        db.sql("CREATE VIEW w AS SELECT k, count(*) AS n FROM t GROUP BY k")
        if filled:
            db.insert("s", _rows(1_000_000, GROUPS, 1))
            db.sql("CREATE TABLE names (k INT, name STRING)")
            ids = np.arange(1_000_000) % GROUPS
            db.insert("names", pa.table({"k": pa.array(ids, pa.int32()), "name": [f"n{i % 97}" for i in ids]}))
            db.sql(
                "CREATE VIEW j AS SELECT name, sum(n) AS n FROM (SELECT k, count(*) AS n FROM s GROUP BY k) g "
                "JOIN names USING (k) GROUP BY name"
            )
        yield db


def _timed(db: headrace.Database, case: Case, turn: int) -> float:
    case.before(db, turn)
    start = time.perf_counter()
    db.sql(case.text(turn)).arrow()
    return time.perf_counter() - start


def measured(case: Case, reads: int) -> tuple[float, float]:
    """Median seconds of a read with the shortcut and without it, in turns."""
    took: dict[bool, list[float]] = {True: [], False: []}
    with ExitStack() as held:
        db = None if case.fresh else held.enter_context(_made(filled=True))
        for turn in range(6 if case.fresh else 2 * reads):
            with ExitStack() as this:
                mine = db or this.enter_context(_made(filled=False))
                if turn % 2:
                    this.enter_context(case.off())
                seconds = _timed(mine, case, turn)
                if turn >= 4 or case.fresh:
                    took[turn % 2 == 0].append(seconds)
                rows = sorted(mine.sql(case.text(turn)).rows(), key=repr)
                with case.off():
                    assert sorted(mine.sql(case.text(turn)).rows(), key=repr) == rows, case.name
    return statistics.median(took[True]), statistics.median(took[False])


def page(found: list[tuple[Case, float, float]]) -> str:
    lines = [
        "# What each shortcut of a read is worth",
        "",
        "`python -m bench.shortcuts`: the same reads with a shortcut and without it, in turns, median milliseconds.",
        f"A view of {GROUPS:,} groups. The list is in `keep/shortcuts.py`.",
        "",
        "| Shortcut | Read | with | without | times |",
        "|---|---|---|---|---|",
    ]
    for case, on, off in found:
        lines.append(f"| {case.name} | {case.read} | {1000 * on:.3f} | {1000 * off:.3f} | {off / on:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reads", type=int, default=READS)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    found = []
    for case in CASES:
        on, off = measured(case, given.reads)
        print(f"{case.name:14} {1000 * on:9.3f} ms, without {1000 * off:9.3f} ms, {off / on:6.1f} times")
        found.append((case, on, off))
    if given.output is not None:
        (given.output / "shortcuts.md").write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
