"""Record boundaries: the vectorised rules against a lexer that walks byte by byte."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import csv as pacsv

from headrace.input import records
from headrace.input.records import Quoting

RULE = Quoting(ord(","), ord('"'))
texts = st.text(alphabet='a,"\n\r', max_size=60).map(str.encode)


def lex(text: bytes) -> tuple[list[bool], list[int]]:
    """For each byte whether quotes are open before it; and the bytes that end a record."""
    open_before, ends = [], []
    inside, field_start = False, True
    i = 0
    while i < len(text):
        open_before.append(inside)
        byte = text[i : i + 1]
        if inside:
            if byte == b'"' and text[i + 1 : i + 2] == b'"':
                open_before.append(True)
                i += 1
            elif byte == b'"':
                inside = False
        elif byte == b'"' and field_start:
            inside = True
        elif byte == b"\n" or (byte == b"\r" and text[i + 1 : i + 2] != b"\n"):
            ends.append(i)
        field_start = not inside and byte in (b",", b"\n", b"\r")
        i += 1
    return [*open_before, inside], ends


def array(text: bytes) -> np.ndarray:
    return np.frombuffer(text, dtype=np.uint8)


@settings(deadline=None)
@given(texts, st.integers(1, 9))
@example(b'""a"\n"', 1)
def test_oracle_state_at_every_byte(text: bytes, step: int) -> None:
    open_before, _ = lex(text)
    data = array(text)
    with mock.patch.object(records, "LOOK_BACK", step):
        for end in range(len(text) + 1):
            if end and text[end - 1 : end + 1] == b'""':
                continue  # inside a run of quotes there is no state to speak of
            assert RULE.ends_open(data, 0, end) == open_before[end], end


@settings(deadline=None)
@given(texts, st.integers(1, 9))
def test_oracle_record_ends(text: bytes, step: int) -> None:
    open_before, ends = lex(text)
    data = array(text)
    with mock.patch.object(records, "CHUNK", step):
        found = [(e.tolist(), s) for e, s in RULE.chunks(data, 0, len(text))]
    assert [e for part, _ in found for e in part] == ends
    assert not found or found[-1][1] == open_before[-1]


@settings(deadline=None)
@given(texts, st.data())
def test_oracle_next_record(text: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    _, ends = lex(text)
    starts = [0, *(e + 1 for e in ends if text[e : e + 1] == b"\n"), len(text)]
    assert RULE.next_record(array(text), 0, at, limit=len(text)) == min(s for s in starts if s >= at)


@settings(deadline=None)
@given(texts, st.integers(0, 10))
def test_a_bounded_look_back_is_right_or_says_that_it_cannot_tell(text: bytes, limit: int) -> None:
    open_before, _ = lex(text)
    told = RULE.look_back(array(text), 0, len(text), limit)
    assert told in (None, open_before[-1])


@settings(deadline=None)
@given(st.text(alphabet='a"\n\r', min_size=1, max_size=40).map(str.encode), st.booleans())
def test_differential_pyarrow_counts_the_same_records(text: bytes, skip_blank: bool) -> None:
    if not text.endswith(b"\n"):
        text += b"\n"
    if lex(text)[0][-1]:
        return  # pyarrow takes an unclosed quote; we do not
    options = pacsv.ReadOptions(column_names=["a"], use_threads=False)
    parse = pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=skip_blank)
    try:
        rows = pacsv.read_csv(pa.BufferReader(text), read_options=options, parse_options=parse).num_rows
    except pa.ArrowInvalid:
        rows = 0  # "Empty CSV file": nothing but blank lines
    assert RULE.count_records(array(text), 0, len(text), skip_blank=skip_blank) == rows


def test_no_quoting_means_every_newline_ends_a_record() -> None:
    rule = Quoting(ord(","), None)
    data = array(b'"a\nb"\n')
    assert rule.record_ends(data, 0, len(data))[0].tolist() == [2, 5]
    assert not rule.ends_open(data, 0, 3)


def test_state_after_a_prefix_that_is_not_data() -> None:
    """A quote right after a byte-order mark opens a field."""
    data = array(b'\xef\xbb\xbf"a\nb"\nc\n')
    assert RULE.next_record(data, 3, 5, limit=9) == 9
    assert RULE.count_records(data, 3, 9, skip_blank=False) == 1
    assert RULE.count_records(data, 3, 6, skip_blank=False) is None
