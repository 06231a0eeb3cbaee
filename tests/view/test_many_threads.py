"""Many threads on one database: readers see whole inserts only, and nothing is lost or counted twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import headrace
from headrace.database import Database
from headrace.errors import HeadraceError
from headrace.stream.intake import Intake

INSERTERS = 4
INSERTS = 40
ROWS = 7


def together(*works: Callable[[], None]) -> None:
    """Run all at once; the first error any of them raised is raised here."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(500)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def test_inserts_reads_and_definitions_at_once() -> None:
    with headrace.connect(compact_rows=40) as db:
        db.sql("CREATE STREAM s (who INT, i INT, n INT)")
        db.sql("CREATE TABLE t (who INT PRIMARY KEY, name STRING)")
        db.insert("t", [(w, f"w{w}") for w in range(INSERTERS)])
        db.sql("CREATE VIEW v AS SELECT who, count(*) AS c, sum(n) AS n, max(i) AS i FROM s GROUP BY who")
        db.sql("CREATE VIEW u AS SELECT count(*) AS c, count(DISTINCT i) AS d FROM s")
        db.sql("CREATE VIEW o AS SELECT v.*, t.name, u.c AS total FROM v JOIN t ON v.who = t.who CROSS JOIN u")
        running = threading.Event()
        running.set()
        left = [INSERTERS]
        reads, made = [0], [0]

        def insert(who: int) -> Callable[[], None]:
            def work() -> None:
                try:
                    for i in range(INSERTS):
                        while running.is_set() and (reads[0] < i // 5 or made[0] < i // 10):  # all get on together
                            time.sleep(0.001)
                        assert db.insert("s", [(who, i, n) for n in range(ROWS)]) == ROWS
                finally:
                    left[0] -= 1
                    if left[0] == 0:
                        running.clear()

            return work

        def to_the_end(work: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                try:
                    work()
                finally:
                    running.clear()  # it has failed, if it was not: nobody waits for it

            return run

        def read() -> None:
            seen = dict.fromkeys(range(INSERTERS), 0)
            while running.is_set():
                answer = db.sql("SELECT who, c, n, i, total FROM o").rows()
                for who, c, n, i, _ in answer:
                    assert c == (i + 1) * ROWS, "a part of an insert was seen"
                    assert n == (i + 1) * sum(range(ROWS))
                    assert c >= seen[who], "an insert seen before is gone"
                    seen[who] = c
                if answer:
                    assert sum(row[1] for row in answer) == answer[0][4], "two views from different epochs"
                reads[0] += 1
                time.sleep(0.005)  # busy readers would starve the inserters of the interpreter, not of the database

        def define() -> None:
            while running.is_set():
                db.sql("CREATE VIEW w AS SELECT who, count(*) AS c FROM s JOIN t USING (who) GROUP BY who")
                time.sleep(0.03)
                for _, c in db.sql("SELECT * FROM w").rows():
                    assert c % ROWS == 0
                db.sql("DROP VIEW w")
                made[0] += 1

        def peek() -> None:
            while running.is_set():
                try:
                    for _, c in db.sql("SELECT * FROM w").rows():
                        assert c % ROWS == 0
                except HeadraceError as error:
                    assert error.condition == "TABLE_OR_VIEW_NOT_FOUND", error
                time.sleep(0.002)

        beside = (to_the_end(work) for work in (read, read, define, peek))
        together(*(insert(who) for who in range(INSERTERS)), *beside)
        assert reads[0] > 5 and made[0] > 2
        assert sorted(db.sql("SELECT who, c, n FROM v").rows()) == [
            (who, INSERTS * ROWS, INSERTS * sum(range(ROWS))) for who in range(INSERTERS)
        ]
        assert db.sql("SELECT * FROM u").rows() == [(INSERTERS * INSERTS * ROWS, INSERTS)]


def test_views_made_while_rows_come_see_a_suffix_of_the_inserts() -> None:
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (i INT)")
        db.sql("CREATE VIEW whole AS SELECT count(*) AS c, min(i) AS lo, max(i) AS hi FROM s")
        inserted, made, over = [0], [0], threading.Event()

        def until(along: Callable[[], bool]) -> None:
            """Neither thread is far ahead of the other."""
            while not along() and not over.is_set():
                time.sleep(0.001)

        def insert() -> None:
            try:
                for i in range(80):
                    until(lambda i=i: made[0] >= i // 6 - 1)  # type: ignore[misc]
                    db.insert("s", [(i,), (i,)])
                    inserted[0] = i + 1
            finally:
                over.set()

        def define() -> None:
            try:
                while made[0] < 12:
                    until(lambda: inserted[0] >= 5 * made[0])
                    db.sql(f"CREATE VIEW v{made[0]} AS SELECT count(*) AS c, min(i) AS lo, max(i) AS hi FROM s")
                    made[0] += 1
            finally:
                over.set()

        together(insert, define)
        assert db.sql("SELECT * FROM whole").rows() == [(160, 0, 79)]
        views = [name for name, *_ in db.sql("SHOW VIEWS").rows() if name != "whole"]
        starts = []
        for name in sorted(views, key=lambda v: int(v[1:])):
            ((c, lo, hi),) = db.sql(f"SELECT * FROM {name}").rows()
            assert c == 0 or (hi == 79 and c == 2 * (80 - lo)), name
            starts.append(80 if lo is None else lo)
        assert starts == sorted(starts) and len(starts) == 12


def test_keys_stay_unique_when_threads_insert_the_same() -> None:
    with headrace.connect() as db:
        db.sql("CREATE TABLE t (k INT PRIMARY KEY, who INT)")
        kept = [0] * INSERTERS

        def insert(who: int) -> Callable[[], None]:
            def work() -> None:
                for k in range(40):
                    try:
                        db.insert("t", [(2 * k, who), (2 * k + 1, who)])
                        kept[who] += 2
                    except HeadraceError as error:
                        assert error.condition == "PRIMARY_KEY_VIOLATION"

            return work

        together(*(insert(who) for who in range(INSERTERS)))
        assert sum(kept) == 80
        assert db.sql("SELECT count(*), count(DISTINCT k), sum(k) FROM t").rows() == [(80, 80, sum(range(80)))]


def test_closing_under_readers_and_writers_is_a_named_error() -> None:
    db = headrace.connect()
    db.sql("CREATE STREAM s (n INT)")
    db.sql("CREATE VIEW v AS SELECT sum(n) AS n FROM s")
    conditions: list[str] = []
    used: list[int] = []

    def until_closed(use: Callable[[Database], object]) -> Callable[[], None]:
        def work() -> None:
            at = len(used)
            used.append(0)
            try:
                while True:
                    use(db)
                    used[at] += 1
            except HeadraceError as error:
                conditions.append(error.condition)

        return work

    def close() -> None:
        while not conditions and (len(used) < 4 or min(used) < 3):  # all are at it
            time.sleep(0.001)
        db.close()

    insert = until_closed(lambda d: d.insert("s", [(1,)]))
    query = until_closed(lambda d: d.sql("SELECT * FROM v"))
    statement = until_closed(lambda d: d.sql("INSERT INTO s VALUES (2)"))
    together(insert, query, statement, query, close)
    assert conditions == ["DATABASE_CLOSED"] * 4


def test_definitions_that_change_in_the_middle_of_an_insert(monkeypatch: pytest.MonkeyPatch) -> None:
    """State rows computed under one catalog are not committed under another."""
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (n INT)")
        db.sql("CREATE TABLE t (n INT)")
        db.insert("t", [(5,)])
        db.sql("CREATE VIEW early AS SELECT sum(n) AS n FROM s")
        db.sql("CREATE VIEW gone AS SELECT sum(s.n) AS n FROM s JOIN t ON s.n = t.n")
        between = iter(["CREATE VIEW late AS SELECT sum(n) AS n FROM s", "DROP VIEW gone"])
        state_rows = Intake.state_rows

        def interrupted(self: Intake, *args: Any) -> Any:
            found = state_rows(self, *args)
            if (statement := next(between, None)) is not None:
                db.sql(statement)
            return found

        monkeypatch.setattr(Intake, "state_rows", interrupted)
        assert db.insert("s", [(5,)]) == 1
        assert [db.sql(f"SELECT * FROM {v}").rows() for v in ("early", "late")] == [[(5,)], [(5,)]]
        assert db.catalog.find("gone") is None
