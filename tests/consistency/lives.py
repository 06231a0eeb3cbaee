"""A database whose tables are changed, and whose views are read, by several threads of a process that may be killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from levels import Bag, Log, Read, View

import headrace
from headrace import Database
from headrace.errors import HeadraceError
from headrace.store import writer
from headrace.table import rows as tables

# A server that has imported everything: a life costs a fork, not a second of imports.
LIVES = multiprocessing.get_context("forkserver")
LIVES.set_forkserver_preload(["headrace", "pyarrow.parquet", "sqlglot"])
COUNTER, LEFT, RIGHT = -3, -2, -1
"""Rows of ``item``: what counts statements, and two whose sum is always 0."""

TABLES = {
    "item": "CREATE TABLE item (id INT PRIMARY KEY, g STRING, v INT) WITH (keep_changes = '1 day')",
    "kind": "CREATE TABLE kind (g STRING, w INT) WITH (keep_changes = '1 day')",
}
VIEWS = {
    "by_g": "SELECT g, count(*) AS n, sum(v) AS s, min(v) AS least, max(v) AS most FROM item GROUP BY g",
    "kinds": "SELECT i.g, k.w, count(*) AS n FROM item AS i LEFT JOIN kind AS k ON i.g = k.g GROUP BY i.g, k.w",
    "alone": "SELECT i.id FROM item AS i WHERE NOT EXISTS (SELECT * FROM kind AS k WHERE k.g = i.g AND k.w > i.v)",
    "sizes": "SELECT n, count(*) AS groups FROM (SELECT g, count(*) AS n FROM item GROUP BY g) GROUP BY n",
}
READ = (
    "SELECT 'by_g' AS view, g, n AS a, s AS b, least AS c, most AS d FROM by_g "
    "UNION ALL SELECT 'kinds', g, w, n, NULL, NULL FROM kinds "
    "UNION ALL SELECT 'alone', NULL, id, NULL, NULL, NULL FROM alone "
    "UNION ALL SELECT 'sizes', NULL, n, groups, NULL, NULL FROM sizes "
    "UNION ALL SELECT 'item', g, id, v, NULL, NULL FROM item "
    "UNION ALL SELECT 'kind', g, w, NULL, NULL, NULL FROM kind"
)
"""All views and both tables, in one query."""


def of(table: str) -> Callable[[Sequence[Any]], list[Any]]:
    return lambda base: [row for name, row in base if name == table]


items, kinds_ = of("item"), of("kind")


def grouped(base: Sequence[Any]) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    for _, g, v in items(base):
        found.setdefault(g, []).append(v)
    return found


def by_g(base: Sequence[Any]) -> Bag:
    return Counter((g, len(vs), sum(vs), min(vs), max(vs)) for g, vs in grouped(base).items())


def kinds(base: Sequence[Any]) -> Bag:
    pairs: Counter[Any] = Counter()
    for _, g, _ in items(base):
        met = [w for other, w in kinds_(base) if other is not None and other == g]
        pairs.update((g, w) for w in met or [None])
    return Counter((g, w, n, None, None) for (g, w), n in pairs.items())


def alone(base: Sequence[Any]) -> Bag:
    def is_met(g: Any, v: int) -> bool:
        return any(g is not None and g == other and w > v for other, w in kinds_(base))

    return Counter((None, id_, None, None, None) for id_, g, v in items(base) if not is_met(g, v))


def sizes(base: Sequence[Any]) -> Bag:
    found = Counter(len(vs) for vs in grouped(base).values())
    return Counter((None, n, groups, None, None) for n, groups in found.items())


ORACLES: dict[str, View] = {
    "by_g": by_g,
    "kinds": kinds,
    "alone": alone,
    "sizes": sizes,
    "item": lambda base: Counter((g, id_, v, None, None) for id_, g, v in items(base)),
    "kind": lambda base: Counter((g, w, None, None, None) for g, w in kinds_(base)),
}


def read(db: Database) -> Read:
    began = time.monotonic()
    told = db.sql(READ).rows()
    return seen([list(row) for row in told], began, time.monotonic())


def seen(told: list[list[Any]], began: float, ended: float) -> Read:
    return Read({name: Counter(tuple(row[1:]) for row in told if row[0] == name) for name in ORACLES}, began, ended)


def begin(db: Database, options: str = "") -> None:
    """The tables, their first rows and the views, as far as an earlier life did not come to it."""
    for name, text in TABLES.items():
        if db.catalog.find(name) is None:
            db.sql(text)
    if not db.sql(f"SELECT * FROM item WHERE id = {COUNTER}").rows():
        db.sql(f"INSERT INTO item VALUES ({COUNTER}, NULL, 0), ({LEFT}, 'x', 0), ({RIGHT}, 'y', 0)")
    for name, query in VIEWS.items():
        if db.catalog.find(name) is None:
            db.sql(f"CREATE MATERIALIZED VIEW {name} {options} AS {query}")


def change(db: Database, dice: random.Random, new: int) -> str:
    """One statement, or one batch, at random. Returns what is acknowledged: a new row's number, a count, or nothing."""
    g, v, near = dice.choice("xyz"), dice.randrange(6), max(1, new - dice.randrange(1, 12))
    match dice.randrange(10):
        case 0 | 1 | 2:
            db.sql(f"INSERT INTO item VALUES ({new}, '{g}', {v})")
            return f"new {new}"
        case 3 | 4:
            db.sql(f"UPDATE item SET v = v + 1 WHERE id = {COUNTER}")
            return "count"
        case 5:
            db.sql(f"UPDATE item SET g = '{g}', v = {v} WHERE id BETWEEN {near} AND {near + 2}")
        case 6:
            db.sql(f"DELETE FROM item WHERE id = {near}")
        case 7:
            db.sql(dice.choice([f"INSERT INTO kind VALUES ('{g}', {v})", f"DELETE FROM kind WHERE g = '{g}'"]))
        case 8:
            db.sql(
                f"MERGE INTO item USING (VALUES ({near}, '{g}', {v}), ({new}, '{g}', {v}) AS s(id, g, v)) AS s "
                "ON item.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )
            return f"new {new}"
        case _:
            with db.batch():
                db.sql(f"UPDATE item SET v = v - {v} WHERE id = {LEFT}")
                db.sql(f"INSERT INTO kind VALUES ('{g}', {v})")
                db.sql(f"UPDATE item SET v = v + {v} WHERE id = {RIGHT}")
    return "nothing"


def live(path: Path, seed: int, generation: int, options: str, said: int) -> None:
    """Open, change tables in three threads and read in two; a line on ``said`` for whatever is over."""
    writer.LOG_SOFT = writer.LOG_HARD = 30_000
    writer.FOLD_EVERY = 20
    tables.TAIL_ROWS = 40

    def say(*words: Any) -> None:
        os.write(said, (json.dumps(words) + "\n").encode())

    db = headrace.connect(path, engine="native", compact_rows=20, durability="none")
    begin(db, options)
    say("open")

    def write(thread: int) -> None:
        dice = random.Random(f"{seed} {generation} {thread}")
        for n in range(10_000):
            try:
                done = change(db, dice, (generation * 10 + thread) * 10_000 + n + 1)
            except HeadraceError as error:
                if error.condition not in ("TIMEOUT", "BATCH_TIMEOUT"):
                    say("failed", str(error))
                    raise
                continue
            say("done", time.monotonic(), done)

    def look() -> None:
        while True:
            began = time.monotonic()
            told = [list(row) for row in db.sql(READ).rows()]
            say("read", began, time.monotonic(), told)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    threads += [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _begin(sender: Connection, *given: Any) -> None:
    live(*given, sender.fileno())


def killed(path: Path, seed: int, generation: int, dice: random.Random, options: str = "") -> list[list[Any]]:
    """One life and its end; returns what it said, line by line."""
    receiver, sender = LIVES.Pipe(duplex=False)
    process = LIVES.Process(target=_begin, args=(sender, path, seed, generation, options))
    process.start()
    sender.close()
    text, wanted = b"", dice.randrange(15, 60)
    with os.fdopen(os.dup(receiver.fileno()), "rb", buffering=0) as stream:
        receiver.close()
        # By what it has done, not by the clock: a slow machine must not kill every child in its cradle.
        while text.count(b"\n") < wanted or b'["read"' not in text or b'["failed"' in text:
            more = stream.read(65_536)
            assert more and b'["failed"' not in text, text[-2_000:]
            text += more
        time.sleep(dice.uniform(0, 0.02))
        process.kill()
        while more := stream.read(65_536):
            text += more
    process.join()
    process.close()
    return [json.loads(line) for line in text.decode().splitlines() if line.endswith("]")]


def versions(db: Database) -> tuple[list[list[Any]], list[int], dict[int, int]]:
    """Base rows of each epoch that changed a table, these epochs, and by its number in which of them a row first came.

    From kept changes alone: what each commit is recorded to have changed.
    """
    changes: dict[int, list[tuple[str, Any, int]]] = {}
    for table, columns in (("item", 3), ("kind", 2)):
        (first,) = db.sql(f"SELECT min(version) FROM headrace.versions WHERE table = '{table}'").rows()[0]
        for row in db.sql(f"SELECT * FROM headrace.changes('{table}', {first})").rows():
            changes.setdefault(row[columns], []).append((table, tuple(row[:columns]), row[columns + 1]))
    base: Counter[Any] = Counter()
    found: list[list[Any]] = [[]]
    came: dict[int, int] = {}
    for epoch in sorted(changes):
        for table, row, weight in changes[epoch]:
            base[table, row] += weight
            if table == "item" and weight > 0:
                came.setdefault(row[0], len(found))
        assert min(base.values()) >= 0, "a row went that was not there"
        base += Counter()
        found.append(list(base.elements()))
    return found, [0, *sorted(changes)], came


def log_of(db: Database, said: list[list[Any]]) -> Log:
    """What a database has been through, and what was read meanwhile and now."""
    bases, _, came = versions(db)
    acknowledged = [0.0, *[float("inf")] * (len(bases) - 1)]
    for line in said:
        if line[0] == "done" and str(line[2]).startswith("new"):
            number = came.get(int(line[2].split()[1]))
            if number is None:
                pytest.fail(f"{line[2]} was acknowledged and is nowhere")
            acknowledged[number] = line[1]
    reads = [seen(line[3], line[1], line[2]) for line in said if line[0] == "read"]
    return Log([bases], ORACLES, [*reads, read(db)], acknowledged)
