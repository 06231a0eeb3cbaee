"""The compiled CSV reader and the general one give the same rows, or the same error, for any bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import DataError
from headrace.input import csv
from headrace.input.csv import CsvOptions, CsvSlice, QuotedNewline, read_csv
from headrace.input.csv_kernel import CsvKernel
from headrace.input.files import plan_slices
from headrace.types import BIGINT, DATE, INT, STRING, TINYINT, Field, Schema, decimal

SCHEMA: Schema = (
    Field("i", INT),
    Field("t", STRING),
    Field("d", decimal(6, 2)),
    Field("day", DATE),
    Field("b", BIGINT),
    Field("y", TINYINT),
    Field("n", STRING, nullable=False),
)
NAMES = tuple(f.name for f in SCHEMA)

# Fields the kernel takes, fields it must decline, and fields that are wrong, for any column.
fields = st.sampled_from(
    [
        "", "0", "-7", "12", "+3", " 5", "2147483647", "-2147483648", "2147483648", "999999999999999999",
        "9223372036854775807", "127", "128", "-128", "1.5", "1.", ".5", "1.239", "-0.01", "9999.99", "10000", "1e2",
        "0x1F", "2024-02-29", "2023-02-29", "0001-01-01", "0000-01-01", "2024-13-01", "2024-1-1", "2024-12-31x", "abc",
        "ü", "日本", '""', '"a"', '"12"', '"2024-02-29"', '"a,b"', '"a""b"', '"x\ny"', 'a"b', '"a', '"a"b', "NaN", "\r",
        "x" * 31, "y" * 32, "z" * 70, '"' + "a,b" * 25 + '"', "0" * 17 + "7", "12345678", "123456789", "-87654321.5",
        "2024:02:29", "2024-02-3O", "2024,02-29", "20240229xx",
    ]
)  # fmt: skip
plain = st.tuples(
    st.integers(-(2**31) + 1, 2**31 - 1).map(str),
    st.sampled_from(["", "a", '""', '"a,b"', "ü", '"x\ny"', "it's", 'a"b', "z" * 33, '"' + "long, " * 12 + '"']),
    st.sampled_from(["", "1", "-1.5", "9999.99", "0.01", '"3.25"']),
    st.sampled_from(["", "2024-02-29", "1969-12-31", "0001-01-01", "9999-12-31"]),
    st.sampled_from(["", "0", "-999999999999999999"]),
    st.sampled_from(["", "127", "-127"]),
    st.sampled_from(["n", '"null"', '""']),
)
odd = st.lists(fields, min_size=6, max_size=8).map(tuple)
records = st.lists(st.one_of(plain, plain, plain, odd), max_size=12)
ends = st.sampled_from(["\n", "\n", "\n", "\r\n"])


def outcome(
    path: Path, columns: tuple[str, ...], kernel_bytes: int, parts: int, schema: Schema = SCHEMA
) -> tuple[str, Any]:
    """The rows, or the error, of reading the file in slices."""
    before = csv.KERNEL_BYTES
    csv.KERNEL_BYTES = kernel_bytes
    try:
        slices = plan_slices([path], "csv", CsvOptions(), schema, columns, parts, quoted_newlines=True)
        batches = [b for s in slices for b in read_csv(s, CsvOptions(), schema, columns)]  # type: ignore[arg-type]
        wanted = pa.schema([pa.field(f.name, f.type.arrow) for f in schema if f.name in columns])
        table = pa.Table.from_batches(batches, None if batches else wanted)
        table.validate(full=True)
        return "rows", table.to_pylist()
    except (DataError, QuotedNewline) as error:
        return "error", str(error)
    finally:
        csv.KERNEL_BYTES = before


@settings(max_examples=400)
@given(
    rows=records,
    end=ends,
    last=st.booleans(),
    columns=st.sets(st.sampled_from(NAMES), min_size=1),
    parts=st.integers(1, 3),
)
def test_differential_kernel_and_general_reader(
    rows: list[tuple[str, ...]], end: str, last: bool, columns: set[str], parts: int, tmp_path: Path
) -> None:
    text = end.join(",".join(r) for r in rows) + (end if last and rows else "")
    path = tmp_path / "f.csv"
    path.write_bytes(text.encode())
    wanted = tuple(n for n in NAMES if n in columns)
    assert outcome(path, wanted, 0, parts) == outcome(path, wanted, 1 << 60, parts)


UNWANTED: Schema = tuple(Field(n, INT if n in "ae" else STRING) for n in "abcdefghi")
# Fields nobody asks for, of all lengths, with what ends a field, a record or a quote in them; some hide a delimiter.
unwanted = st.sampled_from(
    ["", "7", "8" * 9, "z" * 31, "w" * 45, "ü" * 20, '"q"', '"7,8"', '"7"', 'a"b', "two,fields", "\r"]
)
wide = st.tuples(st.just("1"), *[unwanted] * 3, st.just("2"), *[unwanted] * 4).flatmap(
    lambda fields: st.sampled_from([fields, fields, fields, fields[:-1]])
)


@settings(max_examples=300)
@given(rows=st.lists(wide, min_size=2, max_size=6), columns=st.sets(st.sampled_from("ae"), min_size=1), end=ends)
def test_differential_fields_that_are_passed_over(
    rows: list[tuple[str, ...]], columns: set[str], end: str, tmp_path: Path
) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes("".join(",".join(r) + end for r in rows).encode())
    wanted = tuple(sorted(columns))
    assert outcome(path, wanted, 0, 1, UNWANTED) == outcome(path, wanted, 1 << 60, 1, UNWANTED)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 30, 31, 32, 33, 70])
def test_plain_fields_that_are_passed_over_are_not_declined(length: int, tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("".join(f'{i},3,"3,3",3,{-i},{"9" * length}{",4" * 3}\n' for i in range(50)))
    data = csv.as_array(csv.open_bytes(path))
    arrays = CsvKernel([f.name for f in UNWANTED], (UNWANTED[0], UNWANTED[4]), ",", '"').read(data, 0, data.size)
    assert arrays is not None
    assert [a.to_pylist() for a in arrays] == [[*range(50)], [-i for i in range(50)]]


@given(rows=st.lists(plain, min_size=1, max_size=20))
def test_plain_records_are_not_declined(rows: list[tuple[str, ...]], tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes("".join(",".join(r) + "\n" for r in rows).encode())
    data = csv.as_array(csv.open_bytes(path))
    arrays = CsvKernel(NAMES, SCHEMA, ",", '"').read(data, 0, data.size)
    assert arrays is not None
    assert len(arrays[0]) == len(rows)
    assert arrays[0].to_pylist() == [int(r[0]) for r in rows]


@pytest.mark.parametrize("field", ["+3", " 5", "1e2", "0x1F", "2147483648", "abc"])
def test_what_is_not_plain_is_declined(field: str, tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes(f"1,a\n{field},b\n".encode())
    data = csv.as_array(csv.open_bytes(path))
    kernel = CsvKernel(("i", "t"), (Field("i", INT),), ",", '"')
    assert kernel.read(data, 0, 4) is not None
    assert kernel.read(data, 0, data.size) is None


def test_slices_are_large_enough_for_the_kernel_only_past_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes(b"1,a\n" * 10)
    (part,) = plan_slices([path], "csv", CsvOptions(), (Field("i", INT), Field("t", STRING)), ("i",), 1)
    assert isinstance(part, CsvSlice)
    reader = csv._Reader(part.pieces[0], CsvOptions(), (Field("i", INT),), "UTC", 1 << 20)
    assert reader.kernel is None
