"""A whole database killed at any instant, hundreds of times in a soak: nothing acknowledged is lost or counted twice.

A child process inserts, copies and defines from several threads, and says on a pipe what was acknowledged. It is
killed while it opens, works or closes; then the directory is opened here and every statement is looked for.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import headrace
from headrace.store import writer
from headrace.table import rows as tables
from profiles import examples

# A server that has imported everything: a life costs a fork, not a second of imports.
LIVES = multiprocessing.get_context("forkserver")
LIVES.set_forkserver_preload(["headrace", "pyarrow.parquet", "sqlglot"])
KNOWN = {"headrace.duckdb", "headrace.lock", "headrace.marker", "segments", "scratch", "catalog.json", "inbox"}


def rows_of(statement: int) -> list[tuple[int, int]]:
    """The rows a statement inserts, told by its number."""
    return [(statement, n) for n in range(1 + statement % 7)]


def live(path: Path, durability: str, generation: int, rounds: int, said: int) -> None:
    """Open, work in four threads, close; a line on ``said`` for each step."""
    writer.LOG_SOFT = writer.LOG_HARD = 30_000
    writer.FOLD_EVERY = 40
    tables.TAIL_ROWS = 100

    def say(*words: object) -> None:
        os.write(said, (" ".join(map(str, words)) + "\n").encode())

    db = headrace.connect(path, engine="native", compact_rows=50, durability=durability)
    for name, text in {
        "s": "CREATE STREAM s (id BIGINT, n BIGINT)",
        "t": "CREATE TABLE t (id BIGINT, n BIGINT)",
        "by_id": "CREATE VIEW by_id AS SELECT id, count(*) AS c, sum(n) AS total FROM s GROUP BY id",
    }.items():
        if db.catalog.find(name) is None:
            db.sql(text)
    say("open")

    def insert(thread: int) -> None:
        for k in range(rounds):
            statement = (generation * 10 + thread) * 10_000 + k
            target = "st"[k % 2]
            rows = rows_of(statement)
            match k // 2 % 3:
                case 0:
                    db.sql(f"INSERT INTO {target} VALUES {', '.join(map(str, rows))}")
                case 1:
                    db.insert(target, rows)
                case 2:
                    file = path.parent / f"{statement}.csv"
                    file.write_text("".join(f"{i},{n}\n" for i, n in rows))
                    db.sql(f"COPY {target} FROM '{file}' (header false)")
                    file.unlink()
            say("ack", target, statement)

    def define() -> None:
        for k in range(rounds):
            name = f"v_{generation}_{k}"
            db.sql(f"CREATE VIEW {name} AS SELECT id, count(*) AS c, sum(n) AS total FROM s WHERE id >= 0 GROUP BY id")
            say("created", name)
            if k % 3:
                say("dropping", name)
                db.sql(f"DROP VIEW {name}")
                say("dropped", name)

    threads = [threading.Thread(target=insert, args=(n,)) for n in range(3)] + [threading.Thread(target=define)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say("closing")
    db.close()
    say("closed")


@dataclass
class Said:
    """What all lives of a database have said."""

    acknowledged: dict[str, set[int]] = field(default_factory=lambda: {"s": set(), "t": set()})
    views: dict[str, str] = field(default_factory=dict)
    steps: Counter[str] = field(default_factory=Counter)

    def hear(self, lines: list[str]) -> None:
        for line in lines:
            word, *rest = line.split()
            self.steps[word] += 1
            if word == "ack":
                self.acknowledged[rest[0]].add(int(rest[1]))
            elif rest:
                self.views[rest[0]] = word


def killed(path: Path, durability: str, generation: int, dice: random.Random) -> list[str]:
    """One life and its end; returns what it said."""
    receiver, sender = LIVES.Pipe(duplex=False)
    closing = generation % 4 == 3
    process = LIVES.Process(
        target=_begin, args=(sender, path, durability, generation, dice.randrange(6) if closing else 10_000)
    )
    process.start()
    sender.close()
    text = b""
    with os.fdopen(os.dup(receiver.fileno()), "rb", buffering=0) as stream:
        receiver.close()
        if generation % 4:
            # By what it has done, not by the clock: a slow machine must not kill every child in its cradle.
            word, times = (b"closing\n", 1) if closing else (b"\n", dice.randrange(1, 60))
            both = (b"ack", b"created") if generation % 4 == 1 else ()  # whichever thread gets the time
            while text.count(word) < times or not all(said in text for said in both):
                text += stream.read(65_536) or pytest.fail(f"the child ended by itself: {text!r}")
        time.sleep(dice.uniform(0, 0.03 if generation % 4 else 0.3))
        process.kill()
        while more := stream.read(65_536):
            text += more
    process.join()
    process.close()
    return text.decode().splitlines()


def _begin(sender: Connection, path: Path, durability: str, generation: int, rounds: int) -> None:
    live(path, durability, generation, rounds, sender.fileno())


def check(path: Path, durability: str, said: Said) -> None:
    """Open the directory as it was left, and look for every statement."""
    with headrace.connect(path, engine="native", durability=durability) as db:
        names = set(db.catalog.relations)
        for view, word in said.views.items():
            if word != "dropping":
                assert (view in names) == (word == "created"), (view, word)
        if "by_id" not in names:
            assert not said.acknowledged["s"]
            return
        whole = "SELECT id, count(*) AS c, sum(n) AS total FROM t GROUP BY id"
        for name, text in {"s": "SELECT * FROM by_id", "t": whole}.items():
            found = {row[0]: tuple(row[1:]) for row in db.sql(text).rows()}
            assert said.acknowledged[name] <= set(found), name
            for statement, got in found.items():
                rows = rows_of(statement)
                assert got == (len(rows), sum(n for _, n in rows)), (name, statement)
        for view in sorted(names - {"s", "t", "by_id"})[-3:]:
            for statement, c, _ in db.sql(f"SELECT * FROM {view}").rows():
                assert c == len(rows_of(statement))
        with db.runtime.store.read() as snapshot:
            named = {file.name for r in snapshot.relations() for file in snapshot.segments(r)}
        assert set(os.listdir(path / "segments")) == named
    assert set(os.listdir(path)) == KNOWN
    assert os.listdir(path / "scratch") == []


@pytest.mark.parametrize("durability", ["commit", "group", "none"])
def test_oracle_a_database_killed_at_any_instant(tmp_path: Path, durability: str) -> None:
    path = tmp_path / "plant.hr"
    dice = random.Random(durability)
    said = Said()
    for generation in range(examples(6)):
        said.hear(killed(path, durability, generation, dice))
        check(path, durability, said)
    assert said.steps["ack"] and said.steps["created"] and said.steps["closing"], said.steps


def _dies_before_it_names_its_catalog(path: Path) -> None:
    with headrace.connect(path, engine="native") as db:
        Path.rename = lambda *_: os._exit(7)  # type: ignore[method-assign, assignment]
        db.sql("CREATE TABLE t (n BIGINT)")


def test_a_catalog_that_got_no_name_is_swept_away(tmp_path: Path) -> None:
    path = tmp_path / "plant.hr"
    process = LIVES.Process(target=_dies_before_it_names_its_catalog, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == 7 and os.listdir(path / "scratch")
    with headrace.connect(path, engine="native") as db:
        assert db.sql("SELECT * FROM t").rows() == []
    assert set(os.listdir(path)) == KNOWN and not os.listdir(path / "scratch")
