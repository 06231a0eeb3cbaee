"""Whoever changes definitions all the time makes nobody wait for more than one of them."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import headrace
from headrace.base import turns
from headrace.base.turns import Turns
from headrace.statement.load import Loader


def test_whoever_waited_longest_is_next() -> None:
    lock, order = Turns(), list[str]()

    def take(name: str) -> None:
        with lock:
            order.append(name)

    threads = []
    with lock:
        for at, name in enumerate("abc"):
            threads.append(threading.Thread(target=take, args=(name,)))
            threads[-1].start()
            while lock.waiting <= at:
                time.sleep(0.001)
    take("again at once")
    for thread in threads:
        thread.join()
    assert order == ["a", "b", "c", "again at once"]


@pytest.mark.parametrize("handed", [False, True])
def test_a_wait_that_is_interrupted_keeps_nobody_else_waiting(monkeypatch: pytest.MonkeyPatch, handed: bool) -> None:
    lock, caught = Turns(), list[BaseException]()
    held, let_go = threading.Event(), threading.Event()

    class Interrupted:
        """A turn whose owner is interrupted: while it waits, or just when it has it."""

        def __init__(self) -> None:
            self._turn = Lock()
            self._asked = 0

        def acquire(self) -> None:
            self._asked += 1
            if self._asked == 2 and handed:
                let_go.set()
                self._turn.acquire()
            if self._asked == 2:
                raise KeyboardInterrupt
            self._turn.acquire()

        def release(self) -> None:
            self._turn.release()

    def hold() -> None:
        with lock:
            held.set()
            let_go.wait()

    def wait() -> None:
        try:
            with lock:
                raise AssertionError
        except KeyboardInterrupt as error:
            caught.append(error)

    Lock = threading.Lock
    holding = threading.Thread(target=hold)
    holding.start()
    held.wait()
    with monkeypatch.context() as patch:
        patch.setattr(turns, "threading", type("T", (), {"Lock": Interrupted, "get_ident": threading.get_ident}))
        wait()
    let_go.set()
    holding.join()
    assert caught
    with lock:
        assert not lock.waiting


def test_a_wait_may_end() -> None:
    lock, held, let_go = Turns(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            let_go.wait()

    holding = threading.Thread(target=hold)
    holding.start()
    held.wait()
    assert not lock.acquire(0.01)
    assert not lock.waiting
    let_go.set()
    assert lock.acquire(60)
    assert lock.acquire(0.01), "it is re-entrant"
    lock.release()
    lock.release()
    holding.join()
    with lock:
        assert not lock.waiting


def test_a_turn_that_comes_when_the_wait_ends_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, held, let_go = Turns(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            let_go.wait()

    def too_late(turn: threading.Lock, seconds: float | None) -> bool:
        let_go.set()
        holding.join()  # it has been handed over
        return False

    holding = threading.Thread(target=hold)
    holding.start()
    held.wait()
    monkeypatch.setattr(turns, "waited_for", too_late)
    assert lock.acquire(0.01)
    lock.release()
    with lock:
        assert not lock.waiting


def test_an_insert_does_not_wait_for_a_definition_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """One has overtaken it, and the next has begun and is at something else: Spark's start, a large table."""
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (k INT)")
        db.sql("CREATE VIEW v AS SELECT count(*) AS n FROM s")
        commit, go_on, threads = Loader._commit, threading.Event(), list[threading.Thread]()

        def takes_long(held: threading.Event) -> None:
            with db.runtime.tables_lock:
                held.set()
                go_on.wait()

        def late(loader: Loader, *given: Any) -> Any:
            if not threads:
                define = threading.Thread(target=db.sql, args=("CREATE VIEW x AS SELECT max(k) AS k FROM s",))
                define.start()
                define.join()
                held = threading.Event()
                threads.append(threading.Thread(target=takes_long, args=(held,)))
                threads[0].start()
                held.wait()
            return commit(loader, *given)

        monkeypatch.setattr(Loader, "_commit", late)
        insert = threading.Thread(target=db.insert, args=("s", {"k": [1]}))
        insert.start()
        insert.join(60)
        waits = insert.is_alive()
        go_on.set()
        insert.join()
        threads[0].join()
        assert not waits
        assert db.sql("SELECT v.n, x.k FROM v, x").rows() == [(1, 1)]


def test_an_insert_is_overtaken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Definitions that come before every commit: from the second time on they wait."""
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (k INT)")
        db.sql("CREATE VIEW v AS SELECT count(*) AS n FROM s")
        commit, others = Loader._commit, list[threading.Thread]()

        def late(loader: Loader, *given: Any) -> Any:
            at = len(others)
            text = f"CREATE VIEW x{at} AS SELECT max(k) AS k FROM s"
            others.append(threading.Thread(target=db.sql, args=(text,)))
            others[-1].start()
            while others[-1].is_alive() and not db.runtime.tables_lock.waiting:
                time.sleep(0.001)
            return commit(loader, *given)

        monkeypatch.setattr(Loader, "_commit", late)
        db.insert("s", {"k": [1]})
        for thread in others:
            thread.join()
        assert len(others) == 2
        assert db.sql("SELECT * FROM v").rows() == [(1,)]
        assert db.sql("SELECT * FROM x0").rows() == [(1,)]
        assert db.sql("SELECT * FROM x1").rows() == [(None,)]
