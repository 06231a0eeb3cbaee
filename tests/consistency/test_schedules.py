"""Views are strongly consistent together, whatever happens at once: writers, readers, batches, kill -9, reopening."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lives
import pytest
from levels import Level, Log, judged, stale

import headrace
from profiles import examples


@pytest.mark.parametrize("seed", range(examples(1)))
def test_oracle_killed_again_and_again(tmp_path: Path, seed: int) -> None:
    path, dice = tmp_path / "plant.hr", random.Random(seed)
    said: list[list[Any]] = []
    for generation in range(4):
        said += lives.killed(path, seed, generation, dice)
    with headrace.connect(path, engine="native") as db:
        log = lives.log_of(db, said)
        for name, query in lives.VIEWS.items():
            assert sorted(map(repr, db.sql(f"SELECT * FROM {name}").rows())) == sorted(map(repr, db.sql(query).rows()))
    verdict = judged(log)
    assert verdict.together >= Level.STRONG, verdict
    assert stale(log) == []
    counted = sum(line[0] == "done" and line[2] == "count" for line in said)
    (last,) = [v for id_, _, v in lives.items(log.timelines[0][-1]) if id_ == lives.COUNTER]
    assert counted <= last <= counted + 3 * 4, "001's P1: once each, but for what a kill kept from being acknowledged"
    for base in log.timelines[0][1:]:
        both = [v for id_, _, v in lives.items(base) if id_ in (lives.LEFT, lives.RIGHT)]
        assert len(both) == 2 and sum(both) == 0, "001's P2: half of a batch is in an epoch"
    counts = [n for base in log.timelines[0][1:] for id_, _, n in lives.items(base) if id_ == lives.COUNTER]
    assert counts == sorted(counts), "001's P3: a version of a record came after a later one"


@pytest.mark.parametrize("seed", range(examples(3)))
def test_oracle_complete_where_each_statement_is_read_after(tmp_path: Path, seed: int) -> None:
    path, dice = tmp_path / "plant.hr", random.Random(seed)
    db = headrace.connect(path, engine="native", durability="none", compact_rows=10)
    try:
        lives.begin(db)
        start = db.sql("SELECT max(epoch) FROM headrace.epochs").rows()[0][0]
        reads = [lives.read(db)]
        for number in range(1, 40):
            lives.change(db, dice, number)
            reads.append(lives.read(db))
            if dice.randrange(12) == 0:
                db.close()
                db = headrace.connect(path, engine="native", durability="none", compact_rows=10)
        bases, epochs, _ = lives.versions(db)
        since = max(n for n, epoch in enumerate(epochs) if epoch <= start)
    finally:
        db.close()
    verdict = judged(Log([bases[since:]], lives.ORACLES, reads))
    assert verdict.together == Level.COMPLETE, verdict
