"""A committing process killed at any instant: every acknowledged epoch is there once, and no half of one."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from headrace.store import Store, ledger
from profiles import examples

# Each epoch appends as many rows to `a` as to `b`, records its number and, now and then, compacts, spills a
# segment or folds the log in; an epoch is acknowledged by a byte-whole line on a pipe.
CHILD = """
import os, sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from headrace.store import Store, writer
writer.LOG_SOFT = writer.LOG_HARD = 60_000
writer.FOLD_EVERY = 20
store = Store.open(Path(sys.argv[1]))
schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
if not store.commit(lambda tx: tx.relations()):
    store.commit(lambda tx: [tx.create_relation(name, schema) for name in "ab"])
while True:
    file = store.new_segment("a")
    def work(tx):
        n = tx.epoch
        rows = pa.table({"n": [n] * 50, "s": [str(n)] * 50}, schema=schema)
        assert tx.record("source", n)
        tx.append("a", rows)
        if n % 5 == 0:
            tx.replace("a", tx.scan("a"))
        if n % 7 == 0:
            pq.write_table(rows, file)
            tx.add_segment("a", file, 50)
        tx.append("b", rows)
        return n
    os.write(1, b"%d\\n" % store.commit(work))
"""


def test_oracle_killed_at_random_instants(tmp_path: Path) -> None:
    path = tmp_path / "plant.hr"
    dice = random.Random(17)
    acknowledged: list[int] = []
    for _ in range(examples(12)):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(dice.uniform(0, 0.12))
        child.send_signal(signal.SIGKILL)
        lines = (first + child.stdout.read()).decode().splitlines()
        child.wait()
        child.stdout.close()
        assert lines, "the child must get as far as one commit"
        acknowledged += [int(line) for line in lines]
    with Store.open(path) as store:
        with store.read() as snapshot:
            a, b = (snapshot.query(f"SELECT n, count(*) c FROM {snapshot.table(t)} GROUP BY n") for t in "ab")
            counts = dict(zip(a["n"].to_pylist(), a["c"].to_pylist(), strict=True))
            epochs = {e.epoch for e in snapshot.epochs(10**6)}
            manifest = {segment.epoch: segment.path for segment in snapshot.manifest("a")}
            head = snapshot.epoch
        assert counts == dict(zip(b["n"].to_pylist(), b["c"].to_pylist(), strict=True))
        assert set(counts.values()) == {50}
        assert len(acknowledged) == len(set(acknowledged))
        assert set(acknowledged) <= set(counts)
        # A commit may have become durable just before its acknowledgement could be sent: one at most a life.
        assert len(counts) - len(acknowledged) <= 30
        assert epochs == set(range(min(epochs), head + 1))
        assert set(manifest) == {n for n in counts if n % 7 == 0}
        assert {p.name for p in manifest.values()} == set(os.listdir(path / "segments"))
        recorded = store.commit(lambda tx: [n for n in range(head + 1) if not tx.record("source", n)])
        assert recorded == sorted(counts)


def test_runs_agree_with_a_set() -> None:
    dice = random.Random(3)
    for _ in range(200):
        runs, plain = ledger.Runs(), set()
        for n in (dice.randrange(25) for _ in range(dice.randrange(40))):
            runs.add(n)
            plain.add(n)
        assert {n for n in range(-1, 26) if n in runs} == plain
        spread = list(runs)
        assert all(low <= high for low, high in spread)
        assert all(b[0] > a[1] + 1 for a, b in itertools.pairwise(spread))
        assert list(ledger.Runs(spread)) == spread
