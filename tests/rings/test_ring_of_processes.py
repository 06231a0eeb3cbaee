"""The ring used by many processes at once, some of which are killed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from ring_cases import (
    COLUMNS,
    LIMIT,
    NAMES,
    SCRIPT,
    drained,
    ends,
    killed_when_ready,
    numbered,
    rows_of,
    started,
    unread_and_full_of_text,
)
from ring_processes import CHECKED, Actor

from headrace.errors import ExecutionError
from headrace.rings import Ring, Scan
from headrace.rings.book import Overflow
from headrace.rings.layout import Claim, Reader, RingHead, Word
from headrace.rings.ring import Terms
from headrace.rings.scan import ReaderTicket
from profiles import examples


def test_torture_four_writers_four_readers(rings: Any, folder: Path) -> None:
    """Every tuple of 4 writing processes reaches each query once and whole; one query is shared by 3 workers."""
    rows = 6000
    ring = rings(4096, columns=CHECKED, text_limit=1 << 18)
    shared, alone = (Scan.start(ring, ["n"]) for _ in range(2))
    readers = [started("read", folder, shared.ticket.reader, shared.ticket.id, w) for w in range(3)]
    readers.append(started("read", folder, alone.ticket.reader, alone.ticket.id, 0))
    writers = [started("write", folder, w, rows) for w in range(4)]
    assert [(w.communicate()[0] and w.returncode) or w.returncode for w in writers] == [0] * 4
    for scan in (shared, alone):
        scan.finish()
    outputs = [reader.communicate()[0] for reader in readers]
    assert [reader.returncode for reader in readers] == [0] * 4
    for group in (outputs[:3], outputs[3:]):
        found: dict[int, list[int]] = {}
        for part in (p for text in group for p in text.strip().split(";") if p):
            writer, ns = part.split(":")
            found.setdefault(int(writer), []).extend(map(int, ns.split(",")))
        assert {w: sorted(ns) for w, ns in found.items()} == {w: list(range(rows)) for w in range(4)}
    assert ring.usage().lost == 0


def test_torture_overwritten_readers_never_see_a_torn_tuple(rings: Any, folder: Path) -> None:
    ring = rings(512, Overflow.OVERWRITE, columns=CHECKED, text_limit=1 << 14)
    readers = [started("read_what_is_there", folder) for _ in range(2)]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
    writers = [started("write", folder, w, 5000) for w in range(2)]
    assert [w.communicate() and w.returncode for w in writers] == [0, 0]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "read and overrun\n"
    ring.destroy()
    outputs = [reader.communicate()[0] for reader in readers]
    assert [reader.returncode for reader in readers] == [0, 0]
    seen, overruns = zip(*(map(int, text.split()) for text in outputs), strict=True)
    assert all(seen)
    assert all(overruns)


class Remote:
    """An actor in a process of its own."""

    def __init__(self) -> None:
        command = [sys.executable, str(SCRIPT), "serve", "-"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, *told: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(told), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate()


@cache
def actors() -> tuple[Actor, Remote, Remote]:
    return Actor(), Remote(), Remote()


@pytest.fixture(autouse=True, scope="module")
def actors_end() -> Iterator[None]:
    yield
    if actors.cache_info().currsize:
        for remote in actors()[1:]:
            remote.end()
        actors.cache_clear()  # in another order of tests this module comes again


@dataclass
class Shared:
    """A reader whose workers are in all processes."""

    scan: Scan
    at: int
    picked: dict[int, tuple[int, list[list[int]]]]
    """What each of them is copying: the first id, and the tuples."""


class SharedRingModel(RuleBasedStateMachine):
    """A ring that overwrites, written and read by three processes, beside a list of all that was ever written.

    Whoever picks a range may copy it after the others have done something else.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ring: Ring | None = None
        self.written: list[list[int]] = []
        self.readers: list[Shared] = []

    @precondition(lambda self: self.ring is None)
    @rule(capacity=st.integers(1, 24), text=st.integers(40, 400))
    def make(self, capacity: int, text: int) -> None:
        folder = Path(f"/tmp/ring-model-{os.getpid()}-{id(self)}")
        self.ring = Ring.create(folder, "s", CHECKED, Terms(capacity, LIMIT, Overflow.OVERWRITE), text_limit=text)
        for actor in actors():
            assert actor.tell("open", str(folder)) is None

    @precondition(lambda self: self.ring is not None)
    @rule(who=st.integers(0, 2), count=st.integers(1, 12))
    def insert(self, who: int, count: int) -> None:
        start = sum(writer == who for writer, _ in self.written)
        assert actors()[who].tell("write", who, start, count) is None
        self.written += [[who, n] for n in range(start, start + count)]

    @precondition(lambda self: self.ring is not None and len(self.readers) < 2)
    @rule(who=st.integers(0, 2))
    def begin(self, who: int) -> None:
        assert self.ring is not None
        ticket = ReaderTicket(*actors()[who].tell("begin"))
        self.readers.append(Shared(Scan(self.ring, ticket, ["n"]), len(self.written), {}))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), who=st.integers(0, 2), most=st.integers(1, 10))
    def pick(self, data: st.DataObject, who: int, most: int) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        if who not in reader.picked:
            ticket = reader.scan.ticket
            count = actors()[who].tell("pick", ticket.reader, ticket.id, who, most)
            lo = reader.scan.position - (count if isinstance(count, int) else 0)
            if count == "STREAM_OVERRUN":
                return self.overrun(reader, lo)
            if not count:
                assert reader.at == len(self.written)
                return None
            reader.picked[who] = lo, self.written[reader.at : reader.at + count]
            reader.at += count
        return None

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), who=st.integers(0, 2), others=st.lists(st.integers(0, 15), min_size=1, max_size=3))
    def read(self, data: st.DataObject, who: int, others: list[int]) -> None:
        """Pick and copy a few times, while another writes."""
        for count in others:
            if self.readers:
                self.pick(data, who, 8)
            if count:
                self.insert((who + 1) % 3, count)
            if any(reader.picked for reader in self.readers):
                self.copy(data)

    @precondition(lambda self: any(reader.picked for reader in self.readers))
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from([reader for reader in self.readers if reader.picked]))
        who = data.draw(st.sampled_from(sorted(reader.picked)))
        lo, expected = reader.picked.pop(who)
        found = actors()[who].tell("copy", reader.scan.ticket.id)
        if found == "STREAM_OVERRUN":
            return self.overrun(reader, lo)
        assert found == expected
        return None

    def overrun(self, reader: Shared, lo: int) -> None:
        """It is not said without a reason, and said to all its workers."""
        assert self.ring is not None
        assert self.ring.end > lo + self.ring.terms.capacity
        ticket = reader.scan.ticket
        for who, actor in enumerate(actors()):
            assert actor.tell("pick", ticket.reader, ticket.id, who, 1) == "STREAM_OVERRUN"
        reader.scan.give_up()
        self.readers.remove(reader)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        assert reader.scan.end() == 0
        self.readers.remove(reader)

    def teardown(self) -> None:
        if self.ring is not None:
            self.ring.destroy()


SharedRingModel.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=30)
test_differential_ring_model_of_three_processes = SharedRingModel.TestCase


# Killed processes


class Killed(BaseException):
    """Stands for SIGKILL between two words."""


class Mortal(np.ndarray):
    """Words of a process that is killed when it has written so many."""

    left = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        if Mortal.left == 0:
            raise Killed
        Mortal.left -= 1
        super().__setitem__(key, value)


def mortal(folder: Path) -> Ring:
    ring = Ring.open(folder)
    ring.book.head = RingHead(*(getattr(ring.book.head, f.name).view(Mortal) for f in fields(RingHead)))
    ring.book._origins = ring.book._origins.view(Mortal)
    ring.book.abandon_mine = lambda: None
    return ring


@pytest.mark.parametrize("text", ["short", "so long that it ends the round"])
def test_a_writer_killed_between_any_two_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """What it wrote is there whole or not at all, and whoever comes next finds the head true."""
    for words in itertools.count():
        ring = Ring.create(tmp_path / str(words), "s", COLUMNS, Terms(10, LIMIT, patience=LIMIT), text_limit=50)
        scan = Scan.start(ring, NAMES)
        ring.write(rows_of([{"n": n, "text": "it takes most of the room"} for n in (0, 1)]))
        assert len(drained(scan)) == 2
        dying = mortal(ring.folder)
        with monkeypatch.context() as patched, suppress(Killed):
            patched.setattr("headrace.rings.book.this_process", lambda: (1 << 22 | 1, 1))  # there is no such id
            Mortal.left = words
            dying.write(rows_of([{"n": 10, "text": text}, {"n": 11}]), wait=False)
        survived = Mortal.left > 0
        writer = threading.Thread(target=ring.write, args=(rows_of([{"n": 20}, {"n": 21}]),), daemon=True)
        writer.start()
        found: list[int] = []
        while 21 not in found:
            batch = scan.next(wait=LIMIT)
            assert batch is not None, "the next writer hangs"
            found += [row["n"] for row in batch.to_pylist()]
        writer.join()
        assert found in ([10, 11, 20, 21], [10, 20, 21], [20, 21])
        lost = scan.end()
        assert lost == ring.usage().lost
        assert lost <= 1
        head = ring.book.head
        assert head.words[Word.VALID] == head.words[Word.CLAIMED]
        assert not (head.claims[:, Claim.STATE] != Claim.FREE).any()
        ring.destroy()
        if survived:
            assert found == [10, 11, 20, 21]
            break


def test_a_killed_writers_range_becomes_a_hole(rings: Any, folder: Path) -> None:
    ring = rings(1000)
    scan = Scan.start(ring, ["n"])
    ring.write(rows_of(numbered(0, 10)))
    killed_when_ready(started("claim_and_hang", folder, 20))
    ring.write(rows_of(numbered(30, 10)))  # returns: the dead writer is noticed
    assert [row["n"] for row in drained(scan)] == [*range(10), *range(30, 40)]
    assert scan.end() == 20
    assert ring.usage().lost == 20


def test_readers_do_not_wait_for_a_killed_writer(rings: Any, folder: Path) -> None:
    ring = rings(1000)
    scan = Scan.start(ring, ["n"])
    killed_when_ready(started("claim_and_hang", folder, 20))
    ring.write(rows_of(numbered(0, 5)), wait=False)
    batch = scan.next(wait=LIMIT)
    assert batch is not None
    assert batch.num_rows == 5


def test_a_killed_readers_text_is_reclaimed_and_writers_go_on(rings: Any, folder: Path) -> None:
    ring = rings(8)
    ring.write(rows_of(numbered(13, 8)))
    process = started("hold_text", folder)
    killed_when_ready(process)
    for n in range(10):
        ring.write(rows_of(numbered(13 + n, 8)))
    assert len(list(ring.folder.glob("text-*"))) == 2
    assert not ring.book.has_readers


def test_a_round_whose_text_is_full_does_not_wait_for_a_killed_reader(rings: Any, folder: Path) -> None:
    ring = rings(100, text_limit=100)
    ring.write(rows_of([{"n": n} for n in range(50)]))
    killed_when_ready(started("hold_text", folder))
    unread_and_full_of_text(ring)
    ends(lambda: ring.write(rows_of([{"text": "y" * 30}])))


def test_a_full_ring_is_not_full_because_of_a_killed_reader(rings: Any, folder: Path) -> None:
    ring = rings(10, Overflow.ERROR)
    ring.write(rows_of(numbered(0, 5)))
    killed_when_ready(started("hold_text", folder))
    for n in range(4):
        ring.write(rows_of(numbered(5 + 6 * n, 6)))


def test_a_killed_scan_worker_fails_its_query(rings: Any, folder: Path) -> None:
    ring = rings(100)
    scan = Scan.start(ring, ["n"])
    ring.write(rows_of(numbered(0, 10)))
    killed_when_ready(started("pick_and_hang", folder, scan.ticket.reader, scan.ticket.id))
    ring.usage()
    with pytest.raises(ExecutionError, match="STREAM_READER_DIED"):
        scan.next()


@pytest.mark.parametrize("state", ["never read", "reader killed", "over", "dropped", "read"])
def test_a_reader_that_nobody_ends_is_forgotten(
    rings: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """A Spark application plans in a process that ends before its tasks read, and may never run them."""
    ring = rings(100, patience=0.0)
    scan = Scan.start(ring, ["n"], of_owner=True)
    ring.write(rows_of(numbered(0, 5)))
    if state == "reader killed":
        killed_when_ready(started("read_and_hang", folder, scan.ticket.reader, scan.ticket.id))
    elif state != "never read":
        assert len(drained(scan)) == 5
    if state == "over":
        scan.finish()
    if state == "dropped":
        ring.write(rows_of(numbered(5, 101)))
    monkeypatch.setattr("headrace.rings.book._FORGOTTEN", int(LIMIT * 1e9))
    time.sleep(0.05)  # it is looked around every 20 ms at most
    Scan.start(ring, ["n"]).give_up()  # looks around
    assert ring.book.head.readers[scan.ticket.reader, Reader.STATE] != Reader.FREE
    monkeypatch.setattr("headrace.rings.book._FORGOTTEN", 0)
    time.sleep(0.05)
    Scan.start(ring, ["n"]).give_up()
    forgotten = ring.book.head.readers[scan.ticket.reader, Reader.STATE] == Reader.FREE
    assert forgotten == (state != "read")  # somebody may just be slow


@pytest.mark.parametrize("step", ["claim", "store"])
@pytest.mark.parametrize("overflow", [Overflow.BLOCK, Overflow.ERROR])
def test_a_ring_ended_in_the_middle_of_a_write_says_so(
    rings: Any, monkeypatch: pytest.MonkeyPatch, overflow: Overflow, step: str
) -> None:
    ring = rings(100, overflow)
    scan = Scan.start(ring, ["n"])
    owner, name = (ring.book, "advance") if step == "claim" else (ring.rounds, "allocate")
    then = getattr(owner, name)

    def ended(*given: Any) -> Any:
        monkeypatch.undo()
        if step == "store":
            ring.destroy()
        else:  # by whoever finds that its owner is dead: the owner itself would wait for the lock
            shutil.rmtree(ring.folder)
        return then(*given)

    monkeypatch.setattr(owner, name, ended)
    with pytest.raises(ExecutionError, match="STREAM_CLOSED"):
        ring.write(rows_of([{"text": "long enough to lie outside of its slot"}]))
    ring.destroy()
    scan.give_up()
    assert not ring.folder.exists()


def test_a_closed_ring_takes_nothing(rings: Any, folder: Path) -> None:
    """Whoever ends it may be about to remove its files: nobody makes others."""
    ring = rings(100)
    ring.book.close()
    with pytest.raises(ExecutionError, match="STREAM_CLOSED"):
        ring.write(rows_of([{"n": 1}]))
    assert not list(folder.glob("text-*"))


def test_the_end_of_a_ring_takes_whatever_lies_there(rings: Any, folder: Path) -> None:
    ring = rings(100)
    (folder / "of somebody").mkdir()
    ring.destroy()
    assert not folder.exists()


def test_a_killed_scan_worker_is_told_of_by_whoever_is_not_killed_as_it_looks(rings: Any, folder: Path) -> None:
    ring = rings(100)
    scans = []
    for words in range(20):
        scans.append(Scan.start(ring, ["n"], oldest=True))
        if not words:
            ring.write(rows_of(numbered(0, 10)))
        entry = ring.book.head.cells[scans[-1].ticket.reader, 1]
        entry[:] = 0, 1 << 22 | 1, 1, time.monotonic_ns()  # as a worker leaves it that is killed while it copies
        ring.book.head.readers[scans[-1].ticket.reader, Reader.POSITION] = 10
        Mortal.left = words
        with suppress(Killed):
            mortal(folder).usage()
    time.sleep(0.03)  # it is looked around every 20 ms at most
    ring.usage()
    for scan in scans:
        with pytest.raises(ExecutionError, match="STREAM_READER_DIED"):
            scan.next()


def test_a_ring_that_is_no_more_says_so(rings: Any, folder: Path) -> None:
    ring = rings(100)
    other = Ring.open(folder)
    ring.destroy()
    with pytest.raises(ExecutionError, match="STREAM_CLOSED"):
        other.write(rows_of(numbered(0, 1)))
    with pytest.raises(ExecutionError, match="STREAM_CLOSED"):
        Ring.open(folder)
