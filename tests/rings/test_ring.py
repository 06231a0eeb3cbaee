"""The ring against a plain list, and what its writers and readers are promised."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ring_cases import COLUMNS, LIMIT, NAMES, drained, ends, no_memory, numbered, rows_of, unread_and_full_of_text

from headrace.errors import ExecutionError
from headrace.rings import Ring, Scan
from headrace.rings.book import Overflow
from headrace.rings.layout import CLAIMS
from headrace.rings.ring import Terms
from headrace.rings.scan import WindowOver
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
    decimal,
)
from profiles import examples

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
    terms = Terms(capacity, LIMIT, patience=LIMIT)
    ring = Ring.create(tmp_path_factory.mktemp("r") / "ring", "s", COLUMNS, terms, text_limit=4096)
    scan = Scan.start(ring, NAMES)
    writer = threading.Thread(target=lambda: [ring.write(rows_of(c)) for c in chunks])
    expected = [row for chunk in chunks for row in chunk]
    found: list[dict[str, Any]] = []
    try:
        writer.start()
        sizes = np.random.default_rng(seed)
        while len(found) < len(expected):
            batch = scan.next(most=int(sizes.integers(1, 12)), wait=LIMIT)
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


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_window_ends_after_the_timeout_not_before(rings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("headrace.rings.scan.time", clock)
    ring = rings(64, timeout=0.15)
    scan = Scan.start(ring, ["n"])
    ring.write(rows_of(numbered(0, 3)))
    assert len(drained(scan)) == 3
    clock.sleep(0.3)  # a consumer slower than the timeout: what came meanwhile is still read
    ring.write(rows_of(numbered(3, 2)))
    assert len(drained(scan)) == 2
    began = clock.now
    with pytest.raises(WindowOver):
        scan.next()
    assert 0.149 < clock.now - began < 0.2


def test_finish_reads_what_is_there_and_cancel_does_not(rings: Any) -> None:
    ring = rings(64)
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
    monkeypatch.setattr("headrace.rings.scan._LINGER", 1e9)
    ring = rings(64)
    scan = Scan.start(ring, ["n"])
    ring.write(rows_of(numbered(0, 3)))
    assert scan.next(least=8, wait=0.01) is None
    ring.write(rows_of(numbered(3, 5)))
    assert scan.next(least=8, wait=0).num_rows == 8, "enough is enough"
    ring.write(rows_of(numbered(8, 2)))
    assert scan.next(least=8, wait=0) is None
    monkeypatch.setattr("headrace.rings.scan._LINGER", 0.0)
    assert scan.next(least=8, wait=0).num_rows == 2, "a moment is over"
    monkeypatch.setattr("headrace.rings.scan._LINGER", 1e9)
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


def test_writers_wait_for_a_worker_that_copies(rings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = rings(10)
    scan = Scan.start(ring, ["n"])
    ring.write(rows_of(numbered(0, 10)))
    assert scan._pick(100) == (0, 10)
    room, refused = ring.book.claim, threading.Event()

    def claim(*given: Any, **how: Any) -> Any:
        found = room(*given, **how)
        if found is None:
            refused.set()
        return found

    monkeypatch.setattr(ring.book, "claim", claim)
    writer = threading.Thread(target=ring.write, args=(rows_of(numbered(10, 1)),), daemon=True)
    writer.start()
    assert refused.wait(LIMIT) and ring.end == 10
    scan._release(0, True)
    writer.join()
    assert [row["n"] for row in drained(scan)] == [10]


@pytest.mark.parametrize("shared", [False, True])
def test_blocked_writer_goes_on_without_a_worker_that_stands_still_as_it_copies(rings: Any, shared: bool) -> None:
    ring = rings(10, patience=0.2)
    scan = Scan.start(ring, ["n"])
    ring.write(rows_of(numbered(0, 10)))
    assert scan._pick(100) == (0, 10)
    other = scan.sibling(1)

    def keep_looking() -> None:
        with suppress(ExecutionError):
            other.next()

    if shared:
        threading.Thread(target=keep_looking, daemon=True).start()
    ends(lambda: ring.write(rows_of(numbered(10, 5))))
    with pytest.raises(ExecutionError, match="STREAM_OVERRUN"):
        scan._release(0, True)
    assert ring.usage().overruns == 1


def test_a_round_whose_text_is_full_does_not_wait_for_a_reader_that_stands_still(rings: Any) -> None:
    ring = rings(100, text_limit=100, patience=0.2)
    scan = Scan.start(ring, ["n"])
    ring.write(rows_of([{"n": n} for n in range(50)]))
    assert len(drained(scan)) == 50
    unread_and_full_of_text(ring)
    ends(lambda: ring.write(rows_of([{"text": "y" * 30}])))
    with pytest.raises(ExecutionError, match="STREAM_OVERRUN"):
        scan.next()


def test_writers_wait_no_longer_than_patience_for_one_that_stands_still(rings: Any) -> None:
    ring = rings(10, patience=0.2)
    claimed = ring.book.claim(3, lambda n: 0, ring.rounds.begin)
    ring.write(rows_of(numbered(3, 7)), wait=False)

    def write() -> None:
        with pytest.raises(ExecutionError, match="STREAM_WRITER_STALLED"):
            ring.write(rows_of(numbered(10, 1)))

    ends(write)
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
    ring = rings(100)
    early = Scan.start(ring, ["n"])
    written = ring.write(rows_of(numbered(0, 5)))
    ring.book.roll_back(written.lo, written.hi)
    late = Scan.start(ring, ["n"])
    with pytest.raises(ExecutionError, match="STREAM_ROLLED_BACK"):
        early.next()
    ring.write(rows_of(numbered(5, 5)))
    assert len(drained(late)) == 5


def test_a_failed_statement_concerns_nobody_else(rings: Any) -> None:
    ring = rings(100)
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
    ring = rings(100)
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

    ends(fill)
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
