"""The ring against a plain list, with many writers and readers, and with processes that are killed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ring_processes import CHECKED, Actor

from headrace.errors import ExecutionError
from headrace.stream.ring import Ring, Scan
from headrace.stream.ring.book import Overflow
from headrace.stream.ring.layout import CLAIMS, Claim, Head, Reader, Word
from headrace.stream.ring.ring import Terms
from headrace.stream.ring.scan import Ticket, WindowOver
from headrace.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    Field,
    arrow_schema,
    decimal,
)
from profiles import examples

COLUMNS = (Field("n", BIGINT), Field("text", STRING), Field("flag", BOOLEAN), Field("price", decimal(20, 2)))
NAMES = [f.name for f in COLUMNS]
SCRIPT = Path(__file__).with_name("ring_processes.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ring"


@pytest.fixture
def rings(folder: Path) -> Iterator[Any]:
    made: list[Ring] = []

    def make(capacity: int, overflow: Overflow = Overflow.BLOCK, **given: Any) -> Ring:
        columns, limit = given.pop("columns", COLUMNS), given.pop("text_limit", 1 << 20)
        terms = Terms(capacity, given.pop("timeout", 0.2), overflow, given.pop("patience", 60.0))
        made.append(Ring.create(folder, "s", columns, terms, text_limit=limit))
        return made[-1]

    yield make
    for ring in made:
        if ring.folder.exists():
            ring.destroy()


def rows_of(values: list[dict[str, Any]], columns: tuple[Field, ...] = COLUMNS) -> pa.Table:
    return pa.Table.from_pylist(values, schema=arrow_schema(columns))


def numbered(start: int, count: int) -> list[dict[str, Any]]:
    return [{"n": n, "text": "x" * (n % 30), "flag": n % 2 == 0, "price": None} for n in range(start, start + count)]


def drained(scan: Scan) -> list[dict[str, Any]]:
    """What is there now."""
    found: list[dict[str, Any]] = []
    while (batch := scan.next(wait=0)) is not None:
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def within(seconds: float, run: Callable[[], Any]) -> None:
    """Run what may hang."""
    failures: list[BaseException] = []

    def caught() -> None:
        try:
            run()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=caught, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
    for failure in failures:
        raise failure


def no_memory(*_: Any) -> None:
    raise ExecutionError("STREAM_MEMORY_FULL", "no room")


def started(name: str, folder: Path, *numbers: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, str(SCRIPT), name, str(folder), *map(str, numbers)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def killed_when_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


# One process


_values = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "text": st.none() | st.text(max_size=40) | st.sampled_from(["x" * 12, "x" * 13, "é" * 6, "é" * 7]),
        "flag": st.none() | st.booleans(),
        "price": st.none() | st.decimals(-(10**17), 10**17, places=2),
    }
)


class RingModel(RuleBasedStateMachine):
    """A ring that overwrites, beside a list of all that was ever written."""

    def __init__(self) -> None:
        super().__init__()
        self.ring: Ring | None = None
        self.written: list[dict[str, Any]] = []
        self.readers: list[tuple[Scan, int]] = []

    @precondition(lambda self: self.ring is None)
    @rule(capacity=st.integers(1, 24), text=st.integers(300, 700))
    def make(self, capacity: int, text: int) -> None:
        self.folder = Path(f"/tmp/ring-model-{os.getpid()}-{id(self)}")
        self.ring = Ring.create(self.folder, "s", COLUMNS, Terms(capacity, 60, Overflow.OVERWRITE), text_limit=text)

    @precondition(lambda self: self.ring is not None)
    @rule(values=st.lists(_values, max_size=30))
    def insert(self, values: list[dict[str, Any]]) -> None:
        assert self.ring is not None
        self.ring.write(rows_of(values))
        self.written += values

    @precondition(lambda self: self.ring is not None and len(self.readers) < 4)
    @rule(columns=st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    def begin(self, columns: list[str]) -> None:
        assert self.ring is not None
        self.readers.append((Scan.start(self.ring, columns), len(self.written)))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), most=st.integers(1, 10), times=st.integers(1, 5))
    def read(self, data: st.DataObject, most: int, times: int) -> None:
        assert self.ring is not None
        which = data.draw(st.integers(0, len(self.readers) - 1))
        scan, at = self.readers.pop(which)
        for _ in range(times):
            try:
                batch = scan.next(most=most, wait=0)
            except ExecutionError as error:
                assert error.condition == "STREAM_OVERRUN"
                # Rounds may be cut short by their text, so fewer rows than slots may be enough.
                assert self.ring.usage().head - scan.position > 0
                scan.give_up()
                return
            if batch is None:
                assert at == len(self.written)
                break
            batch.validate(full=True)
            expected = self.written[at : at + batch.num_rows]
            assert batch.to_pylist() == [{c: row[c] for c in batch.schema.names} for row in expected]
            at += batch.num_rows
        self.readers.append((scan, at))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        scan, _ = self.readers.pop(data.draw(st.integers(0, len(self.readers) - 1)))
        assert scan.end() == 0

    @invariant()
    def oldest_first(self) -> None:
        if self.ring is not None:
            scan = Scan.start(self.ring, NAMES, oldest=True)
            found = drained(scan)
            scan.end()
            assert found == self.written[len(self.written) - len(found) :]

    def teardown(self) -> None:
        if self.ring is not None:
            self.ring.destroy()


RingModel.TestCase.settings = settings(max_examples=examples(20), stateful_step_count=20)
test_differential_ring_model = RingModel.TestCase


@settings(max_examples=examples(25))
@given(
    capacity=st.integers(1, 40),
    chunks=st.lists(st.lists(_values, max_size=25), max_size=6),
    seed=st.integers(0, 99),
)
def test_differential_blocked_writer_and_reader(
    tmp_path_factory: pytest.TempPathFactory, capacity: int, chunks: list[list[dict[str, Any]]], seed: int
) -> None:
    """A reader that is slower than the writer gets every tuple, once, in order, however small the ring is."""
    ring = Ring.create(tmp_path_factory.mktemp("r") / "ring", "s", COLUMNS, Terms(capacity, 5), text_limit=4096)
    scan = Scan.start(ring, NAMES)
    writer = threading.Thread(target=lambda: [ring.write(rows_of(c)) for c in chunks])
    expected = [row for chunk in chunks for row in chunk]
    found: list[dict[str, Any]] = []
    try:
        writer.start()
        sizes = np.random.default_rng(seed)
        while len(found) < len(expected):
            batch = scan.next(most=int(sizes.integers(1, 12)), wait=5)
            assert batch is not None
            found += batch.to_pylist()
        assert found == expected
    finally:
        scan.give_up()
        writer.join()
        ring.destroy()


def test_every_type_comes_back(rings: Any) -> None:
    columns = (
        *(Field("b", BOOLEAN), Field("t", TINYINT), Field("i", INT), Field("l", BIGINT), Field("d", DOUBLE)),
        *(Field("day", DATE), Field("at", TIMESTAMP), Field("x", BINARY), Field("dec", decimal(38, 10))),
        *(Field("s", SMALLINT), Field("f", FLOAT), Field("local", TIMESTAMP_NTZ), Field("small", decimal(18, 3))),
        *(Field("tiny", decimal(5, 2)), Field("text", STRING)),
    )
    ring = rings(64, columns=columns)
    text = "2020-01-02 03:04:05.123456"
    values = pa.table(
        {
            "b": [True, None, False],
            "t": pa.array([-128, None, 127], pa.int8()),
            "i": pa.array([-(2**31), None, 2**31 - 1], pa.int32()),
            "l": pa.array([-(2**63), None, 2**63 - 1], pa.int64()),
            "d": [float("-inf"), None, -0.0],
            "day": pa.array([0, None, -5], pa.int32()).cast(pa.date32()),
            "at": pa.array([text, None, text]).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")),
            "x": [b"", None, b"\0" * 100],
            "dec": pa.array([None, "-1.5", "9999999999999999999999999999.0"]).cast(pa.decimal128(38, 10)),
            "s": pa.array([-(2**15), None, 2**15 - 1], pa.int16()),
            "f": pa.array([float("inf"), None, -1.5], pa.float32()),
            "local": pa.array([text, None, "1899-12-31 23:59:59.999999"]).cast(pa.timestamp("us")),
            "small": pa.array(["-999999999999999.999", None, "0.001"]).cast(pa.decimal128(18, 3)),
            "tiny": pa.array(["-999.99", None, "0.01"]).cast(pa.decimal128(5, 2)),
            "text": ["", None, "é" * 100],
        }
    )
    assert values.schema.types == [f.type.arrow for f in columns]
    scan = Scan.start(ring, [f.name for f in columns])
    ring.write(values.slice(1))
    ring.write(values)
    assert drained(scan) == [*values.slice(1).to_pylist(), *values.to_pylist()]


def test_columns_left_out_are_null_and_only_wanted_ones_are_copied(rings: Any) -> None:
    ring = rings(8)
    scan = Scan.start(ring, ["n", "flag"])
    ring.write(pa.table({"flag": [True, False]}))
    assert drained(scan) == [{"n": None, "flag": True}, {"n": None, "flag": False}]


def test_window_ends_after_the_timeout_not_before(rings: Any) -> None:
    ring = rings(64, timeout=0.15)
    scan = Scan.start(ring, ["n"])
    ring.write(rows_of(numbered(0, 3)))
    assert len(drained(scan)) == 3
    time.sleep(0.3)  # a consumer slower than the timeout: what came meanwhile is still read
    ring.write(rows_of(numbered(3, 2)))
    assert len(drained(scan)) == 2
    began = time.monotonic()
    with pytest.raises(WindowOver):
        scan.next()
    assert 0.14 < time.monotonic() - began < 5


def test_finish_reads_what_is_there_and_cancel_does_not(rings: Any) -> None:
    ring = rings(64, timeout=60)
    first, second = Scan.start(ring, ["n"]), Scan.start(ring, ["n"])
    ring.write(rows_of(numbered(0, 5)))
    first.finish()
    ring.write(rows_of(numbered(5, 5)))
    batch = first.next()
    assert batch is not None
    assert batch.num_rows == 5
    with pytest.raises(WindowOver):
        first.next()
    second.cancel()
    with pytest.raises(ExecutionError, match="QUERY_CANCELLED"):
        second.next()


def test_a_pick_waits_a_moment_for_more(rings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.stream.ring.scan._LINGER", 1e9)
    ring = rings(64, timeout=60)
    scan = Scan.start(ring, ["n"])
    ring.write(rows_of(numbered(0, 3)))
    assert scan.next(least=8, wait=0.01) is None
    ring.write(rows_of(numbered(3, 5)))
    assert scan.next(least=8, wait=0).num_rows == 8, "enough is enough"
    ring.write(rows_of(numbered(8, 2)))
    assert scan.next(least=8, wait=0) is None
    monkeypatch.setattr("headrace.stream.ring.scan._LINGER", 0.0)
    assert scan.next(least=8, wait=0).num_rows == 2, "a moment is over"
    monkeypatch.setattr("headrace.stream.ring.scan._LINGER", 1e9)
    ring.write(rows_of(numbered(10, 1)))
    scan.finish()
    assert scan.next(least=8, wait=0).num_rows == 1, "no more will come"
    scan.give_up()


def test_text_outlives_its_slots(rings: Any) -> None:
    ring = rings(4, Overflow.OVERWRITE)
    scan = Scan.start(ring, ["text"])
    ring.write(rows_of([{"text": "a rather long text that lies outside"}]))
    batch = scan.next()
    for n in range(40):
        ring.write(rows_of([{"text": f"another long text number {n}"}]))
    assert batch is not None
    assert batch.to_pylist() == [{"text": "a rather long text that lies outside"}]
    assert len(list(ring.folder.glob("text-*"))) == 2


def test_overrun_says_how_far_behind(rings: Any) -> None:
    ring = rings(10, Overflow.OVERWRITE)
    scan = Scan.start(ring, ["n"])
    ring.write(rows_of(numbered(0, 25)))
    with pytest.raises(ExecutionError, match="25 tuples behind stream s, which keeps 10") as error:
        scan.next()
    assert error.value.condition == "STREAM_OVERRUN"
    assert "capacity = 32" in str(error.value.hint)
    assert "overflow = 'block'" in str(error.value.hint)
    assert ring.usage().overruns == 1


def test_overwritten_while_copied_is_noticed(rings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = rings(10, Overflow.OVERWRITE)
    scan = Scan.start(ring, ["n"])
    ring.write(rows_of(numbered(0, 10)))
    copy = Scan._copy

    def slowly(self: Scan, lo: int, hi: int) -> Any:
        found = copy(self, lo, hi)
        ring.write(rows_of(numbered(10, 1)))
        return found

    monkeypatch.setattr(Scan, "_copy", slowly)
    with pytest.raises(ExecutionError, match="STREAM_OVERRUN"):
        scan.next()


def test_blocked_writer_goes_on_without_a_reader_that_stands_still(rings: Any) -> None:
    ring = rings(10, patience=0.2)
    scan = Scan.start(ring, ["n"])
    ring.write(rows_of(numbered(0, 25)))
    with pytest.raises(ExecutionError, match="STREAM_OVERRUN"):
        scan.next()
    used = ring.usage()
    assert used.blocked_seconds > 0.1
    assert used.readers == ()


def test_writers_wait_for_a_worker_that_copies(rings: Any) -> None:
    ring = rings(10, timeout=60)
    scan = Scan.start(ring, ["n"])
    ring.write(rows_of(numbered(0, 10)))
    assert scan._pick(100) == (0, 10)
    writer = threading.Thread(target=ring.write, args=(rows_of(numbered(10, 1)),))
    writer.start()
    time.sleep(0.1)
    assert ring.end == 10
    scan._release(0, True)
    writer.join()
    assert [row["n"] for row in drained(scan)] == [10]


@pytest.mark.parametrize("shared", [False, True])
def test_blocked_writer_goes_on_without_a_worker_that_stands_still_as_it_copies(rings: Any, shared: bool) -> None:
    ring = rings(10, patience=0.2, timeout=60)
    scan = Scan.start(ring, ["n"])
    ring.write(rows_of(numbered(0, 10)))
    assert scan._pick(100) == (0, 10)
    other = scan.sibling(1)

    def keep_looking() -> None:
        with suppress(ExecutionError):
            other.next()

    if shared:
        threading.Thread(target=keep_looking, daemon=True).start()
    within(20, lambda: ring.write(rows_of(numbered(10, 5))))
    with pytest.raises(ExecutionError, match="STREAM_OVERRUN"):
        scan._release(0, True)
    assert ring.usage().overruns == 1


def unread_and_full_of_text(ring: Ring) -> None:
    """Half of a round is read. The next one's text is full before its slots are: the rest of it is to be left out."""
    ring.write(rows_of([{"n": n} for n in range(50, 100)]))
    ring.write(rows_of([{"text": "y" * 30} for _ in range(3)]))


def test_a_round_whose_text_is_full_does_not_wait_for_a_reader_that_stands_still(rings: Any) -> None:
    ring = rings(100, text_limit=100, patience=0.2)
    scan = Scan.start(ring, ["n"])
    ring.write(rows_of([{"n": n} for n in range(50)]))
    assert len(drained(scan)) == 50
    unread_and_full_of_text(ring)
    within(20, lambda: ring.write(rows_of([{"text": "y" * 30}])))
    with pytest.raises(ExecutionError, match="STREAM_OVERRUN"):
        scan.next()


def test_writers_wait_no_longer_than_patience_for_one_that_stands_still(rings: Any) -> None:
    ring = rings(10, patience=0.2)
    claimed = ring.book.claim(3, lambda n: 0, ring.rounds.begin)
    ring.write(rows_of(numbered(3, 7)), wait=False)

    def write() -> None:
        with pytest.raises(ExecutionError, match="STREAM_WRITER_STALLED"):
            ring.write(rows_of(numbered(10, 1)))

    within(20, write)
    ring.book.publish(claimed)
    ring.write(rows_of(numbered(10, 1)))


def test_full_ring_refuses_all_of_a_write(rings: Any) -> None:
    ring = rings(10, Overflow.ERROR)
    ring.write(rows_of(numbered(0, 25)))  # nobody reads: nothing to lose
    scan = Scan.start(ring, ["n"])
    ring.write(rows_of(numbered(25, 8)))
    with pytest.raises(ExecutionError, match="STREAM_FULL"):
        ring.write(rows_of(numbered(33, 3)))
    ring.write(rows_of(numbered(40, 2)))
    assert [row["n"] for row in drained(scan)] == [*range(25, 33), 40, 41]


def test_a_round_whose_text_is_full_ends_early(rings: Any) -> None:
    ring = rings(100, text_limit=4096)
    scan = Scan.start(ring, ["text"])
    texts = [f"{n:03}" + "y" * 1000 for n in range(30)]
    found: list[str] = []
    for text in texts:
        ring.write(rows_of([{"text": text}]))
        found += [row["text"] for row in drained(scan)]
    assert found == texts
    with pytest.raises(ExecutionError, match="STREAM_TEXT_TOO_LONG"):
        ring.write(rows_of([{"text": "z" * 5000}]))
    ring.write(rows_of([{"text": "after"}]))
    assert drained(scan) == [{"text": "after"}]
    assert scan.end() == 0


def test_rows_of_a_failed_statement_fail_their_readers(rings: Any) -> None:
    ring = rings(100, timeout=60)
    early = Scan.start(ring, ["n"])
    written = ring.write(rows_of(numbered(0, 5)))
    ring.book.roll_back(written.lo, written.hi)
    late = Scan.start(ring, ["n"])
    with pytest.raises(ExecutionError, match="STREAM_ROLLED_BACK"):
        early.next()
    ring.write(rows_of(numbered(5, 5)))
    assert len(drained(late)) == 5


def test_a_failed_statement_concerns_nobody_else(rings: Any) -> None:
    ring = rings(100, timeout=60)
    over = Scan.start(ring, ["n"])
    ring.write(rows_of(numbered(0, 5)))
    over.finish()
    written = ring.write(rows_of(numbered(5, 5)))
    ring.book.roll_back(written.lo, written.hi)
    assert over.next().num_rows == 5, "its window ended before"
    over.end()
    oldest = Scan.start(ring, ["n"], oldest=True)
    ring.book.roll_back(ring.end, ring.end + 1)  # of a statement whose rows did not get here at all
    with pytest.raises(ExecutionError, match="STREAM_ROLLED_BACK"):
        oldest.next()
    later = [Scan.start(ring, ["n"], oldest=oldest) for oldest in (False, True)]
    ring.write(rows_of(numbered(10, 3)))
    for scan in later:
        assert [row["n"] for row in drained(scan)] == [10, 11, 12]
        scan.end()


def test_rows_of_a_failed_statement_that_are_not_visible_yet(rings: Any) -> None:
    ring = rings(100, timeout=60)
    first = ring.book.claim(1, lambda n: 0, ring.rounds.begin)
    written = ring.write(rows_of(numbered(1, 5)), wait=False)
    ring.book.roll_back(written.lo, written.hi)
    later = [Scan.start(ring, ["n"], oldest=oldest) for oldest in (False, True)]
    assert [lag for _, lag in ring.usage().readers] == [0, 0]
    ring.book.publish(first)
    ring.write(rows_of(numbered(6, 2)))
    for scan in later:
        assert [row["n"] for row in drained(scan)] == [6, 7]


def test_interrupted_write_leaves_a_hole(rings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = rings(100)
    scan = Scan.start(ring, ["n"])
    publish = ring.book.publish

    def interrupted(claimed: Any) -> None:
        monkeypatch.setattr(ring.book, "publish", publish)
        raise KeyboardInterrupt

    monkeypatch.setattr(ring.book, "publish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ring.write(rows_of(numbered(0, 5)))
    ring.write(rows_of(numbered(5, 5)))
    assert [row["n"] for row in drained(scan)] == [5, 6, 7, 8, 9]


def test_a_whole_write_of_many_pieces(rings: Any) -> None:
    ring = rings(1000, Overflow.ERROR)
    scan = Scan.start(ring, ["n"])
    pieces = CLAIMS + 100
    ring.write(pa.concat_tables([rows_of([{"n": n}]) for n in range(pieces)]))
    assert [row["n"] for row in drained(scan)] == list(range(pieces))


def test_any_number_of_holes(rings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = rings(4 * CLAIMS)
    scan = Scan.start(ring, ["n"])
    outside = rows_of([{"text": "long enough to lie outside of its slot"}])

    def fill() -> None:
        for n in range(CLAIMS + 1):
            with monkeypatch.context() as patched:
                patched.setattr(ring.rounds, "allocate", no_memory)
                with pytest.raises(ExecutionError, match="STREAM_MEMORY_FULL"):
                    ring.write(outside)
            ring.write(rows_of([{"n": n}]))

    within(60, fill)
    assert [row["n"] for row in drained(scan)] == list(range(CLAIMS + 1))
    assert scan.end() == 0


def test_a_whole_write_that_finds_no_room_leaves_a_hole(rings: Any) -> None:
    """Text ends a round early, so that what is left of the next is too small for the rest."""
    ring = rings(10, Overflow.ERROR, text_limit=100)
    scan = Scan.start(ring, ["n", "text"])
    ring.write(rows_of(numbered(0, 5)))
    assert len(drained(scan)) == 5
    with pytest.raises(ExecutionError, match="STREAM_FULL"):
        ring.write(rows_of([{"n": n, "text": "z" * 30} for n in range(7)]))
    assert drained(scan) == []
    ring.write(rows_of(numbered(5, 3)))
    assert [row["n"] for row in drained(scan)] == [5, 6, 7]


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
    ring.book.head = Head(*(getattr(ring.book.head, f.name).view(Mortal) for f in fields(Head)))
    ring.book._origins = ring.book._origins.view(Mortal)
    ring.book.abandon_mine = lambda: None
    return ring


@pytest.mark.parametrize("text", ["short", "so long that it ends the round"])
def test_a_writer_killed_between_any_two_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """What it wrote is there whole or not at all, and whoever comes next finds the head true."""
    for words in itertools.count():
        ring = Ring.create(tmp_path / str(words), "s", COLUMNS, Terms(10, 60, patience=5), text_limit=50)
        scan = Scan.start(ring, NAMES)
        ring.write(rows_of([{"n": n, "text": "it takes most of the room"} for n in (0, 1)]))
        assert len(drained(scan)) == 2
        dying = mortal(ring.folder)
        with monkeypatch.context() as patched, suppress(Killed):
            patched.setattr("headrace.stream.ring.book.this_process", lambda: (1 << 22 | 1, 1))  # there is no such id
            Mortal.left = words
            dying.write(rows_of([{"n": 10, "text": text}, {"n": 11}]), wait=False)
        survived = Mortal.left > 0
        writer = threading.Thread(target=ring.write, args=(rows_of([{"n": 20}, {"n": 21}]),), daemon=True)
        writer.start()
        found: list[int] = []
        while 21 not in found:
            batch = scan.next(wait=20)
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


def test_capacity_beyond_memory_is_refused(rings: Any, folder: Path) -> None:
    with pytest.raises(ExecutionError, match="STREAM_CAPACITY_TOO_LARGE"):
        rings(1 << 50)
    assert not folder.exists()


def test_a_window_that_is_over_holds_nobody_up(rings: Any) -> None:
    ring = rings(8, timeout=0.05)
    scan = Scan.start(ring, ["n"])
    with pytest.raises(WindowOver):
        scan.next()
    ring.write(rows_of(numbered(0, 30)))
    assert ring.usage().readers == ()


# Many threads and processes


def test_torture_four_writers_four_readers(rings: Any, folder: Path) -> None:
    """Every tuple of 4 writing processes reaches each query once and whole; one query is shared by 3 workers."""
    rows = 6000
    ring = rings(4096, columns=CHECKED, timeout=60, text_limit=1 << 18)
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
    ring.destroy()
    outputs = [reader.communicate()[0] for reader in readers]
    assert [reader.returncode for reader in readers] == [0, 0]
    seen, overruns = zip(*(map(int, text.split()) for text in outputs), strict=True)
    assert all(seen)
    assert sum(overruns)


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
        self.ring = Ring.create(folder, "s", CHECKED, Terms(capacity, 60, Overflow.OVERWRITE), text_limit=text)
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
        ticket = Ticket(*actors()[who].tell("begin"))
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


def test_a_killed_writers_range_becomes_a_hole(rings: Any, folder: Path) -> None:
    ring = rings(1000, timeout=5)
    scan = Scan.start(ring, ["n"])
    ring.write(rows_of(numbered(0, 10)))
    killed_when_ready(started("claim_and_hang", folder, 20))
    ring.write(rows_of(numbered(30, 10)))  # returns: the dead writer is noticed
    assert [row["n"] for row in drained(scan)] == [*range(10), *range(30, 40)]
    assert scan.end() == 20
    assert ring.usage().lost == 20


def test_readers_do_not_wait_for_a_killed_writer(rings: Any, folder: Path) -> None:
    ring = rings(1000, timeout=30)
    scan = Scan.start(ring, ["n"])
    killed_when_ready(started("claim_and_hang", folder, 20))
    ring.write(rows_of(numbered(0, 5)), wait=False)
    batch = scan.next(wait=10)
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
    within(20, lambda: ring.write(rows_of([{"text": "y" * 30}])))


def test_a_full_ring_is_not_full_because_of_a_killed_reader(rings: Any, folder: Path) -> None:
    ring = rings(10, Overflow.ERROR)
    ring.write(rows_of(numbered(0, 5)))
    killed_when_ready(started("hold_text", folder))
    for n in range(4):
        ring.write(rows_of(numbered(5 + 6 * n, 6)))


def test_a_killed_scan_worker_fails_its_query(rings: Any, folder: Path) -> None:
    ring = rings(100, timeout=30)
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
    ring = rings(100, patience=0.0, timeout=60)
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
    time.sleep(0.05)
    Scan.start(ring, ["n"]).give_up()  # looks around
    assert ring.book.head.readers[scan.ticket.reader, Reader.STATE] != Reader.FREE
    monkeypatch.setattr("headrace.stream.ring.book._FORGOTTEN", 0)
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
    ring = rings(100, timeout=30)
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
    time.sleep(0.03)
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
