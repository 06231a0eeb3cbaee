"""Killed at the moments that matter: what was acknowledged is in once, nothing by half, and views are their queries."""

from __future__ import annotations

import json
import os
import random
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import lives
import pytest

import headrace
from headrace.keep.answers import Answers
from headrace.keep.home import InFile
from headrace.keep.keeper import Keeper
from headrace.store import Transaction, writer
from headrace.store.batch import OpenBatch
from headrace.stream.table_changes import TableHanding
from headrace.table import rewriting
from headrace.table import rows as tables
from headrace.view.materialized import MaterializedView
from profiles import examples

POINTS: dict[str, tuple[Any, str, str]] = {
    "state rows are made": (MaterializedView, "changed", "after"),
    "the change is handed on, not committed": (TableHanding, "add", "after"),
    "committed, not acknowledged": (TableHanding, "after", "before"),
    "a batch is about to end": (OpenBatch, "end", "before"),
    "a state is merged, not committed": (InFile, "rewrite", "after"),
    "a state is merged": (Answers, "rewritten", "before"),
    "segments are written anew, not named": (rewriting, "_files", "after"),
    "segments are taken out, not committed": (Transaction, "remove_segments", "after"),
    "the log is folded": (writer, "fold", "after"),
    "a view is founded, not committed": (Keeper, "found", "after"),
    "a view is committed, not known": (Keeper, "enter", "before"),
}


def live(path: Path, seed: int, generation: int, point: str, times: int, said: int) -> None:
    """Change tables until the process dies at a point, the so many-th time it comes there."""
    writer.LOG_SOFT = writer.LOG_HARD = 30_000
    writer.FOLD_EVERY = 10
    tables.TAIL_ROWS = 4
    owner, name, when = POINTS[point]
    whole, left = getattr(owner, name), [times]

    def dying(*given: Any, **named: Any) -> Any:
        left[0] -= 1
        if when == "before" and not left[0]:
            os._exit(7)
        found = whole(*given, **named)
        if when == "after" and not left[0]:
            os._exit(7)
        return found

    setattr(owner, name, dying)
    db = headrace.connect(path, engine="native", compact_rows=4, durability="none")
    lives.begin(db)
    dice = random.Random(f"{seed} {generation}")
    for n in range(1, 400):
        done = lives.change(db, dice, generation * 10_000 + n)
        os.write(said, (json.dumps(["done", 0.0, done]) + "\n").encode())


def _begin(sender: Connection, *given: Any) -> None:
    live(*given, sender.fileno())


@pytest.mark.parametrize("point", POINTS)
def test_oracle_killed_where(point: str, tmp_path: Path) -> None:
    path, dice = tmp_path / "plant.hr", random.Random(point)
    said: list[Any] = []
    for generation in range(examples(2)):
        receiver, sender = lives.LIVES.Pipe(duplex=False)
        times = dice.randrange(1, 4 if "a view is" in point else 9)
        process = lives.LIVES.Process(target=_begin, args=(sender, path, 1, generation, point, times))
        process.start()
        sender.close()
        with os.fdopen(os.dup(receiver.fileno()), "rb", buffering=0) as stream:
            receiver.close()
            text = stream.readall()
        process.join()
        assert process.exitcode == 7, f"never came to where {point}: {process.exitcode}"
        process.close()
        said += [json.loads(line) for line in text.decode().splitlines()]
        if "a view is" in point:
            said.append(_finished(path))
            continue
        with headrace.connect(path, engine="native") as db:
            _check(db, said, generation + 1)


def _finished(path: Path) -> Any:
    """A view that was not made is not there, one that was is its query; both can be gone on with."""
    with headrace.connect(path, engine="native") as db:
        there = [name for name in lives.VIEWS if db.catalog.find(name) is not None]
        for name in there:
            assert db.sql(f"SELECT * FROM {name}").rows() is not None
        lives.begin(db)
        db.sql("INSERT INTO kind VALUES ('x', 3)")
        _check(db, [], 9)
        for name in lives.VIEWS:
            db.sql(f"DROP VIEW {name}")
    return ["founded", len(there)]


def _check(db: headrace.Database, said: list[Any], killed: int) -> None:
    shown = lives.read(db).views
    bases, _, came = lives.versions(db)
    base = bases[-1]
    assert shown == {name: oracle(base) for name, oracle in lives.ORACLES.items()}
    acknowledged = [line[2] for line in said]
    assert {int(word.split()[1]) for word in acknowledged if word.startswith("new")} <= came.keys()
    numbers = {id_: v for id_, _, v in lives.items(base)}
    assert acknowledged.count("count") <= numbers[lives.COUNTER] <= acknowledged.count("count") + killed
    assert numbers[lives.LEFT] + numbers[lives.RIGHT] == 0
