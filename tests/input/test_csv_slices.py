"""CSV slices: any cutting of a file gives the same rows, or the same error with the same row."""

from __future__ import annotations

import csv as python_csv
import datetime
import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import DataError, SqlError
from headrace.input import csv, files, records
from headrace.input.csv import CsvOptions, QuotedNewline, read_csv
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
    Schema,
    arrow_schema,
    decimal,
)

TWO = (Field("a", INT), Field("b", STRING))
UTC = datetime.UTC


def read(
    path: Path,
    options: CsvOptions,
    schema: Schema,
    columns: tuple[str, ...] | None = None,
    parallelism: int = 1,
    block_size: int = 1 << 20,
    zone: str = "UTC",
    exact: bool = False,
) -> pa.Table:
    """All slices of one file, each pickled as it would be for a task."""
    columns = tuple(f.name for f in schema) if columns is None else columns
    wanted = tuple(next(f for f in schema if f.name == c) for c in columns)
    plan = files.plan_slices([path], "csv", options, schema, columns, parallelism, quoted_newlines=exact)
    batches = [
        batch
        for piece in pickle.loads(pickle.dumps(plan))
        for batch in read_csv(piece, options, schema, columns, block_size=block_size, zone=zone)
    ]
    return pa.Table.from_batches(batches, schema=arrow_schema(wanted))


def rows(path: Path, data: bytes, schema: Schema = TWO, **options: object) -> list[tuple[object, ...]]:
    path.write_bytes(data)
    table = read(path, CsvOptions(**options), schema)  # type: ignore[arg-type]
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.csv"


@contextmanager
def looking_back(step: int, limit: int) -> Iterator[None]:
    """Tiny windows, so that small files meet what large ones meet."""
    with (
        mock.patch.object(records, "LOOK_BACK", step),
        mock.patch.object(records, "CHUNK", step + 1),
        mock.patch.object(csv, "LOOK_BACK_LIMIT", limit),
    ):
        yield


# --- values of every type, spelled by a writer of our own -------------------------------------------

texts = st.text(st.sampled_from('ab,;"\n\r é😀\0\t\\N\ufeff'), max_size=8)
VALUES = {
    BOOLEAN: st.booleans(),
    TINYINT: st.integers(-128, 127),
    SMALLINT: st.integers(-(2**15), 2**15 - 1),
    INT: st.integers(-(2**31), 2**31 - 1),
    BIGINT: st.integers(-(2**63), 2**63 - 1),
    FLOAT: st.floats(width=32, allow_nan=False),
    DOUBLE: st.floats(allow_nan=False),
    decimal(5, 2): st.decimals(min_value=-999, max_value=999, places=2),
    decimal(38, 10): st.decimals(min_value=-(10**27), max_value=10**27, places=10),
    STRING: texts,
    BINARY: st.binary(max_size=5),
    DATE: st.dates(),
    TIMESTAMP: st.datetimes(timezones=st.just(UTC)),
    TIMESTAMP_NTZ: st.datetimes(),
}


def spell(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Schema, CsvOptions, list[tuple[object, ...]], bytes]:
    """A schema, options, rows, and the rows as RFC 4180 text in that dialect."""
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=5))
    schema = tuple(Field(f"c{i}", t) for i, t in enumerate(types))
    options = CsvOptions(
        header=draw(st.booleans()),
        delimiter=draw(st.sampled_from(",;\t|")),
        quote=draw(st.sampled_from("\"'")),
        null=draw(st.sampled_from(["", "\\N", "NULL"])),
    )
    data = draw(st.lists(st.tuples(*(st.none() | VALUES[t] for t in types)), max_size=12))
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    special = {options.delimiter, options.quote, "\r", "\n"}

    def field(value: object) -> str:
        if value is None:
            return options.null
        text = spell(value)
        if text == options.null or special & set(text) or (text == "" and len(schema) == 1) or draw(st.booleans()):
            return options.quote + text.replace(options.quote, options.quote * 2) + options.quote
        return text

    lines = [options.delimiter.join(map(field, row)) for row in data]
    order = list(range(len(schema)))
    if options.header:
        order = draw(st.permutations(order))
        lines = [options.delimiter.join(map(field, [row[i] for i in order])) for row in data]
        lines.insert(0, options.delimiter.join(field(schema[i].name) for i in order))
    text = newline.join(lines)
    # a last line that is empty is a value only if it is ended
    if lines and (draw(st.booleans()) or not lines[-1]):
        text += newline
    bom = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    return schema, options, data, bom + text.encode()


@settings(
    deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(tables(), st.integers(1, 6), st.integers(1, 40), st.integers(1, 9), st.integers(0, 20), st.data())
def test_differential_any_slicing_reads_back_what_was_written(
    path: Path,
    table: tuple[Schema, CsvOptions, list[tuple[object, ...]], bytes],
    parallelism: int,
    block_size: int,
    step: int,
    limit: int,
    data: st.DataObject,
) -> None:
    schema, options, expected, text = table
    path.write_bytes(text)
    columns = tuple(data.draw(st.permutations([f.name for f in schema])))
    columns = columns[: data.draw(st.integers(1, len(columns)))]
    with looking_back(step, limit):
        try:
            found = read(path, options, schema, columns, parallelism, block_size)
        except QuotedNewline:
            found = read(path, options, schema, columns, parallelism, block_size, exact=True)
    assert found.schema == arrow_schema(tuple(next(f for f in schema if f.name == c) for c in columns))
    assert found.to_pylist() == [{c: row[int(c[1:])] for c in columns} for row in expected]


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(texts, min_size=2, max_size=2), max_size=8), st.integers(1, 5), st.integers(1, 30))
def test_differential_python_writes_what_we_read(
    path: Path, table: list[list[str]], parallelism: int, block_size: int
) -> None:
    out = io.StringIO(newline="")
    python_csv.writer(out, quoting=python_csv.QUOTE_ALL, lineterminator="\r\n").writerows(table)
    path.write_bytes(out.getvalue().encode())
    schema = (Field("x", STRING), Field("y", STRING))
    found = read(path, CsvOptions(), schema, parallelism=parallelism, block_size=block_size, exact=True)
    assert [list(row.values()) for row in found.to_pylist()] == table


# --- the same error whatever the slicing -------------------------------------------------------------


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from([b'1,"x\ny"', b"2,z", b'3,"q""\n"', b"", b'4,5" pipe']), min_size=1, max_size=12),
    st.sampled_from([(b"bad,x", "CSV_BAD_VALUE"), (b"1", "CSV_COLUMN_COUNT"), (b"1,\xff", "CSV_INVALID_UTF8")]),
    st.integers(0, 11),
    st.booleans(),
    st.integers(1, 5),
    st.integers(1, 30),
    st.integers(1, 9),
    st.integers(0, 20),
)
def test_a_bad_row_has_one_number_under_any_slicing(
    path: Path,
    lines: list[bytes],
    bad: tuple[bytes, str],
    at: int,
    header: bool,
    parallelism: int,
    block_size: int,
    step: int,
    limit: int,
) -> None:
    at = min(at, len(lines))
    line, condition = bad
    number = sum(1 for before in lines[:at] if before) + 1
    text = b"\n".join([*lines[:at], line, *lines[at:]]) + b"\n"
    path.write_bytes((b"a,b\n" if header else b"") + text)
    schema = TWO[::-1] if header else TWO  # the header finds the columns
    options = CsvOptions(header=header)
    with looking_back(step, limit), pytest.raises(DataError) as error:
        try:
            read(path, options, schema, None, parallelism, block_size)
        except QuotedNewline:
            read(path, options, schema, None, parallelism, block_size, exact=True)
    assert error.value.condition == condition
    assert f"{path}, row {number}:" in error.value.message


BAD = [
    (b"1,x\n2\n", "CSV_COLUMN_COUNT", "row 2: 1 fields where 2 are expected"),
    (b"1,x\n2,y,z\n", "CSV_COLUMN_COUNT", "row 2: 3 fields where 2 are expected"),
    (b"1,x\n\n\nx,y\n", "CSV_BAD_VALUE", "row 2: column a: 'x' is no int"),
    (b'1,x\n"",y\n', "CSV_BAD_VALUE", "row 2: column a: '' is no int"),
    (b"1,x\n2147483648,y\n", "CSV_BAD_VALUE", "row 2: column a: '2147483648' is no int"),
    (b"1,x\n2,\xc3\x28\n", "CSV_INVALID_UTF8", "row 2: column b is not UTF-8"),
    (b"1,x\n\xff,y\n", "CSV_INVALID_UTF8", "row 2: column a is not UTF-8"),
    (b"\xff\xfe1\x00", "CSV_INVALID_UTF8", "is UTF-16"),
    (b'1,x\n2,"y\n3,z\n', "CSV_UNCLOSED_QUOTE", "row 2"),
    (b"1,x\n2,y\rz\n", "CSV_COLUMN_COUNT", "row 3: 1 fields"),
    (b"1\x00,x\n", "CSV_BAD_VALUE", "row 1: column a"),
    (b"1,x\nq,y\n3\n", "CSV_BAD_VALUE", "row 2"),
    (b"1,x\n3\nq,y\n", "CSV_COLUMN_COUNT", "row 2"),
]


@pytest.mark.parametrize(("data", "condition", "message"), BAD)
def test_bad_input(path: Path, data: bytes, condition: str, message: str) -> None:
    with pytest.raises(DataError) as error:
        rows(path, data)
    assert (error.value.condition, message in error.value.message) == (condition, True), error.value


def test_a_forgotten_header_is_suspected(path: Path) -> None:
    with pytest.raises(DataError, match="header true"):
        rows(path, b"a,b\n1,x\n")


def test_long_offending_text_is_shortened(path: Path) -> None:
    with pytest.raises(DataError) as error:
        rows(path, b"9" * 500 + b",x\n")
    assert len(error.value.message) < 200 + len(str(path))


@pytest.mark.parametrize(
    ("header", "condition", "names"),
    [
        (b"a,c", "UNKNOWN_COLUMN", "c"),
        (b"a", "MISSING_COLUMN", "b"),
        (b"a,b,A", "REPEATED_COLUMN", "a"),
        (b"1,x", "UNKNOWN_COLUMN", "1, x"),
    ],
)
def test_bad_headers(path: Path, header: bytes, condition: str, names: str) -> None:
    with pytest.raises(DataError) as error:
        rows(path, header + b"\n1,x\n", header=True)
    assert error.value.condition == condition
    assert names in error.value.message


# --- shapes of files ---------------------------------------------------------------------------------


def test_empty_and_header_only_files(path: Path) -> None:
    assert rows(path, b"") == []
    assert rows(path, b"", header=True) == []
    assert rows(path, b"a,b", header=True) == []
    assert rows(path, b'\xef\xbb\xbf"B","a"\r\n', header=True) == []
    assert rows(path, b"\n\r\n\n") == []


def test_a_header_may_be_longer_than_a_slice(path: Path) -> None:
    schema = tuple(Field("column" * 20 + str(i), INT) for i in range(20))
    names = ",".join(f.name for f in schema)
    path.write_text(names + "\n" + "1," * 19 + "1\n")
    assert read(path, CsvOptions(header=True), schema, parallelism=8).num_rows == 1


def test_a_blank_line_is_a_value_of_a_single_column_only(path: Path) -> None:
    one = (Field("a", STRING),)
    assert rows(path, b"x\n\ny", one) == [("x",), (None,), ("y",)]
    assert rows(path, b'x\n""\ny', one) == [("x",), ("",), ("y",)]
    assert rows(path, b"x\n\ny", one, null="-") == [("x",), ("",), ("y",)]
    assert rows(path, b"1,x\n\n\n2,y\n\n") == [(1, "x"), (2, "y")]


def test_a_quote_inside_an_unquoted_field_is_a_character(path: Path) -> None:
    assert rows(path, b'1,5" pipe\n2,"a"b\n') == [(1, '5" pipe'), (2, "ab")]


def test_quoting_can_be_off(path: Path) -> None:
    assert rows(path, b'1,"x\n2,y"\n', quote="") == [(1, '"x'), (2, 'y"')]


def test_nul_is_a_character(path: Path) -> None:
    assert rows(path, b"1,a\0b\n") == [(1, "a\0b")]


def test_a_byte_order_mark_past_the_start_is_text(path: Path) -> None:
    """Also where a block starts with it."""
    path.write_bytes(b"\xef\xbb\xbfx,1\n\xef\xbb\xbfy,2\n")
    for block_size in (1, 1000):
        found = read(path, CsvOptions(), (Field("s", STRING), Field("n", INT)), block_size=block_size)
        assert found.column("s").to_pylist() == ["x", "\ufeffy"]


def test_an_empty_last_field_after_a_quoted_one(path: Path) -> None:
    schema = (Field("x", STRING), Field("y", STRING))
    assert rows(path, b'"a",', schema) == [("a", None)]
    assert rows(path, b'"a",""', schema) == [("a", "")]


@pytest.mark.parametrize("data", [b"1,2\nq,2\n1,q\n", b"1,2\n1,q\nq,2\n"])
def test_the_first_bad_row_is_named_whatever_its_column(path: Path, data: bytes) -> None:
    with pytest.raises(DataError, match="row 2: "):
        rows(path, data, (Field("x", INT), Field("y", INT)))


def test_no_columns_still_count_rows(path: Path) -> None:
    path.write_bytes(b'1,"a\nb"\n2,\xff\n\n3,c')
    plan = files.plan_slices([path], "csv", CsvOptions(), TWO, (), 1)
    assert [b.num_rows for s in plan for b in read_csv(s, CsvOptions(), TWO, ())] == [3]


def test_columns_not_wanted_are_not_looked_at(path: Path) -> None:
    path.write_bytes(b"x,y\n")
    assert read(path, CsvOptions(), TWO, ("b",)).to_pylist() == [{"b": "y"}]


def test_a_field_longer_than_a_block(path: Path) -> None:
    long = "é\n" * 5000
    path.write_text(f'1,"{long}"\n2,y\n')
    found = read(path, CsvOptions(), TWO, block_size=64, parallelism=3)
    assert found.column("b").to_pylist() == [long, "y"]


def test_a_record_past_the_limit_is_an_error(path: Path) -> None:
    path.write_bytes(b"1,x\n2," + b"y" * 2000 + b"\n3,z\n")
    with mock.patch.object(csv, "MAX_RECORD", 1000), pytest.raises(DataError) as error:
        read(path, CsvOptions(), TWO, block_size=16)
    assert error.value.condition == "CSV_RECORD_TOO_LONG"
    assert "row 2" in error.value.message


def test_not_null_columns_are_checked(path: Path) -> None:
    schema = (Field("a", INT, nullable=False), TWO[1])
    path.write_bytes(b"1,x\n,y\n")
    with pytest.raises(DataError, match=r"NULL_IN_NOT_NULL.*row 2: column a"):
        read(path, CsvOptions(), schema, block_size=4)


def test_a_cut_inside_quotes_is_noticed_by_the_slice_before(path: Path) -> None:
    """The second half looks like a record of its own: only the first slice can tell."""
    path.write_bytes(b'1,"' + b"x" * 50 + b"\n2,y" + b"z" * 40 + b'"\n')
    with looking_back(1, 0):
        first, *_ = files.plan_slices([path], "csv", CsvOptions(), TWO, ("a",), 2)
        with pytest.raises(QuotedNewline):
            list(read_csv(first, CsvOptions(), TWO, ("a",)))
    assert read(path, CsvOptions(), TWO, parallelism=2, exact=True).num_rows == 1


def test_an_error_after_a_wrong_cut_asks_for_another_plan(path: Path) -> None:
    path.write_bytes(b'1,"' + b"x" * 50 + b"\nbad,y" + b"z" * 40 + b'"\n')
    with looking_back(1, 0):
        _, second = files.plan_slices([path], "csv", CsvOptions(), TWO, ("a",), 2)
        with pytest.raises(QuotedNewline):
            list(read_csv(second, CsvOptions(), TWO, ("a",)))


# --- spellings ---------------------------------------------------------------------------------------

SPELLINGS = [
    (INT, " 7", 7),
    (INT, "+7", 7),
    (INT, "007", 7),
    (INT, "1.0", None),
    (INT, "1e3", None),
    (INT, "1_000", None),
    (INT, "+-1", None),
    (TINYINT, "0xFF", -1),
    (decimal(5, 2), "1.239", None),
    (decimal(5, 2), "1.230000", Decimal("1.23")),
    (decimal(5, 2), "1.2300000000000000000000000000000000000000000", Decimal("1.23")),
    (decimal(5, 2), "1e2", Decimal("100.00")),
    (decimal(5, 2), "1000", None),
    (decimal(5, 2), " .5 ", Decimal("0.50")),
    (decimal(5, 0), "100", Decimal(100)),
    (DOUBLE, "-Infinity", float("-inf")),
    (DOUBLE, "1,5", None),
    (DOUBLE, " 1e3", 1000.0),
    (BOOLEAN, "tRUE", True),
    (BOOLEAN, " false ", False),
    (BOOLEAN, "0", False),
    (BOOLEAN, "yes", None),
    (DATE, "2024-02-29", datetime.date(2024, 2, 29)),
    (DATE, "2023-02-29", None),
    (DATE, "2024-2-9", None),
    (BINARY, "00Ff", b"\x00\xff"),
    (BINARY, "0", None),
    (BINARY, "zz", None),
    (TIMESTAMP_NTZ, "2024-01-02", datetime.datetime(2024, 1, 2)),
    (TIMESTAMP_NTZ, "2024-01-02T03:04", datetime.datetime(2024, 1, 2, 3, 4)),
    (TIMESTAMP_NTZ, "2024-01-02 03:04:05.1230000", datetime.datetime(2024, 1, 2, 3, 4, 5, 123000)),
    (TIMESTAMP_NTZ, "2024-01-02 03:04:05.1234567", None),
    (TIMESTAMP_NTZ, "2024-01-02 03:04:05Z", None),
    (TIMESTAMP, "2024-01-02 03:04:05+01:00", datetime.datetime(2024, 1, 2, 2, 4, 5, tzinfo=UTC)),
    (TIMESTAMP, "2024-01-02 03:04:05 -02", datetime.datetime(2024, 1, 2, 5, 4, 5, tzinfo=UTC)),
    (TIMESTAMP, "2024-01-02 03:04:05", datetime.datetime(2024, 1, 2, 2, 4, 5, tzinfo=UTC)),
    (TIMESTAMP, "2024-07-02", datetime.datetime(2024, 7, 1, 22, tzinfo=UTC)),
    (TIMESTAMP, "2024-10-27 02:30:00", datetime.datetime(2024, 10, 27, 0, 30, tzinfo=UTC)),  # twice: the earlier
    (TIMESTAMP, "2024-03-31 02:30:00", None),  # skipped by the clocks
]


@pytest.mark.parametrize(("type", "text", "value"), SPELLINGS)
def test_spellings_in_berlin(path: Path, type: object, text: str, value: object) -> None:
    schema = (Field("k", INT), Field("v", type))  # type: ignore[arg-type]
    path.write_text(f'1,"{text}"\n2,\n')
    if value is None:
        with pytest.raises(DataError, match=r"CSV_BAD_VALUE.*row 1: column v"):
            read(path, CsvOptions(), schema, zone="Europe/Berlin")
    else:
        found = read(path, CsvOptions(), schema, zone="Europe/Berlin")
        assert found.column("v").to_pylist() == [value, None]


def test_offsets_may_come_and_go_within_a_column(path: Path) -> None:
    schema = (Field("t", TIMESTAMP), Field("k", INT))
    text = ["2024-01-02 03:00:00", "2024-01-02 03:00:00Z", "2024-01-02 03:00:00Z", "2024-01-02 03:00:00", ""]
    path.write_text("".join(f"{t},1\n" for t in text))
    for block_size in (1, 30, 1000):
        found = read(path, CsvOptions(), schema, block_size=block_size, zone="Asia/Tokyo").column("t").to_pylist()
        local, instant = datetime.datetime(2024, 1, 1, 18, tzinfo=UTC), datetime.datetime(2024, 1, 2, 3, tzinfo=UTC)
        assert found == [local, instant, instant, local, None]


# --- options -----------------------------------------------------------------------------------------


def test_options_are_checked() -> None:
    assert CsvOptions.of({"Delimiter": "\\t", "HEADER": True}) == CsvOptions(header=True, delimiter="\t")
    for wrong in ({"delimiter": ",,"}, {"quote": ","}, {"null": "a,b"}, {"header": "maybe"}, {"delimiter": "é"}):
        with pytest.raises(SqlError) as error:
            CsvOptions.of(wrong)
        assert error.value.condition == "COPY_OPTION_INVALID"
    with pytest.raises(SqlError, match="COPY_OPTION_UNKNOWN"):
        CsvOptions.of({"escape": "\\"})
