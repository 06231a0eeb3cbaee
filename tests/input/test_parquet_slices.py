"""Parquet pieces: every row once, every value as it was or an error that names it."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import DataError
from headrace.input import files
from headrace.input.parquet import ParquetSlice, check_parquet, first_bad_value, parquet_source
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
    Field,
    Schema,
    Type,
    decimal,
)

UTC = datetime.UTC


def slices(paths: list[Path], schema: Schema, parallelism: int) -> list[ParquetSlice]:
    columns = tuple(f.name for f in schema)
    plan = files.plan_slices(paths, "parquet", None, schema, columns, parallelism)
    found = [s for s in plan if isinstance(s, ParquetSlice)]
    assert len(found) == len(plan)
    return found


def read(paths: list[Path], schema: Schema, parallelism: int = 1) -> pa.Table:
    columns = tuple(f.name for f in schema)
    with duckdb.connect() as connection:
        # a zone other than UTC: instants must not depend on it
        connection.execute("SET TimeZone = 'Asia/Tokyo'")
        tables = [
            connection.sql(f"FROM {parquet_source(piece, schema, columns)}").to_arrow_table()
            for s in slices(paths, schema, parallelism)
            for piece in s.pieces
        ]
    return pa.concat_tables(tables) if tables else pa.table({f.name: [] for f in schema})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.parquet"


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=4), st.integers(1, 9))
def test_slices_hold_every_row_once_and_evenly(tmp_path: Path, shapes: list[tuple[int, int]], parallelism: int) -> None:
    schema = (Field("n", BIGINT),)
    paths, begin = [], 0
    for i, (rows, group) in enumerate(shapes):
        paths.append(tmp_path / f"{i}.parquet")
        pq.write_table(
            pa.table({"n": pa.array(range(begin, begin + rows), pa.int64())}), paths[-1], row_group_size=group
        )
        begin += rows
    plan = slices(paths, schema, parallelism)
    assert len(plan) <= parallelism
    assert sum(s.rows for s in plan) == begin
    assert read(paths, schema, parallelism).column("n").to_pylist() == list(range(begin))


def test_a_large_row_group_is_cut_too(path: Path) -> None:
    pq.write_table(pa.table({"n": list(range(1000))}), path, row_group_size=1000)
    assert [s.rows for s in slices([path], (Field("n", BIGINT),), 4)] == [250] * 4


def test_small_row_groups_are_not_cut(path: Path) -> None:
    pq.write_table(pa.table({"n": list(range(1000))}), path, row_group_size=7)
    for s in slices([path], (Field("n", BIGINT),), 3):
        assert all(p.start % 7 == 0 for p in s.pieces)


def test_files_without_rows_or_row_groups(path: Path) -> None:
    schema = (Field("n", BIGINT),)
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), path)
    assert read([path], schema, 3).num_rows == 0
    with pq.ParquetWriter(path, pa.schema([("n", pa.int64())])):
        pass
    assert pq.ParquetFile(path).num_row_groups == 0
    assert slices([path], schema, 3) == []


KEPT: list[tuple[Type, pa.DataType, object, object]] = [
    (BIGINT, pa.int32(), 7, 7),
    (INT, pa.int64(), 7, 7),
    (BIGINT, pa.uint64(), 7, 7),
    (DOUBLE, pa.int32(), 7, 7.0),
    (FLOAT, pa.int16(), 7, 7.0),
    (DOUBLE, pa.float32(), 0.5, 0.5),
    (FLOAT, pa.float16(), 0.5, 0.5),
    (decimal(15, 2), pa.int64(), 7, Decimal("7.00")),
    (decimal(15, 2), pa.decimal128(5, 1), Decimal("1.5"), Decimal("1.50")),
    (decimal(5, 2), pa.decimal128(38, 2), Decimal("1.50"), Decimal("1.50")),
    (STRING, pa.large_string(), "é", "é"),
    (STRING, pa.dictionary(pa.int32(), pa.string()), "é", "é"),
    (BINARY, pa.binary(2), b"ab", b"ab"),
    (BOOLEAN, pa.bool_(), True, True),
    (BOOLEAN, pa.null(), None, None),
    (DATE, pa.date32(), datetime.date(1, 1, 1), datetime.date(1, 1, 1)),
    (TIMESTAMP, pa.timestamp("ms", tz="Europe/Berlin"), 1000, datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    (TIMESTAMP, pa.timestamp("ns", tz="UTC"), 1000, datetime.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    (TIMESTAMP_NTZ, pa.timestamp("ns"), 1000, datetime.datetime(1970, 1, 1, 0, 0, 0, 1)),
]


@pytest.mark.parametrize(("wanted", "found", "value", "kept"), KEPT)
def test_lossless_types(path: Path, wanted: Type, found: pa.DataType, value: object, kept: object) -> None:
    pq.write_table(pa.table({"V": pa.array([value, None], found), "more": [1, 2]}), path)
    table = read([path], (Field("v", wanted),))
    assert table.column_names == ["v"]
    result = table.column("v")
    if wanted == TIMESTAMP:
        result = result.cast(pa.timestamp("us", tz="UTC"))
    assert result.to_pylist() == [kept, None]
    assert wanted in (TIMESTAMP, STRING, BINARY) or result.type == wanted.arrow


def test_int96_timestamps_are_instants(path: Path) -> None:
    instant = pa.array([datetime.datetime(2024, 1, 2, 3)], pa.timestamp("us"))
    pq.write_table(pa.table({"v": instant}), path, use_deprecated_int96_timestamps=True)
    value = read([path], (Field("v", TIMESTAMP),)).column("v").cast(pa.timestamp("us", tz="UTC"))[0].as_py()
    assert value == datetime.datetime(2024, 1, 2, 3, tzinfo=UTC)
    with pytest.raises(DataError, match="INT96"):
        check_parquet(path, (Field("v", TIMESTAMP_NTZ),))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (INT, pa.float64()),
        (FLOAT, pa.float64()),
        (FLOAT, pa.int32()),
        (DOUBLE, pa.int64()),
        (decimal(5, 1), pa.decimal128(5, 2)),
        (decimal(5, 1), pa.float64()),
        (decimal(38, 1), pa.decimal256(50, 1)),
        (INT, pa.string()),
        (STRING, pa.int32()),
        (STRING, pa.binary()),
        (BINARY, pa.string()),
        (DATE, pa.timestamp("us")),
        (TIMESTAMP, pa.timestamp("us")),
        (TIMESTAMP_NTZ, pa.timestamp("us", tz="UTC")),
        (BOOLEAN, pa.int8()),
        (STRING, pa.list_(pa.string())),
        (INT, pa.struct([("a", pa.int32())])),
    ],
)
def test_types_that_lose_are_refused(path: Path, wanted: Type, found: pa.DataType) -> None:
    pq.write_table(pa.table({"v": pa.array([], found)}), path)
    with pytest.raises(DataError) as error:
        check_parquet(path, (Field("v", wanted),))
    assert error.value.condition == "PARQUET_TYPE_MISMATCH"
    assert "column v" in error.value.message


@pytest.mark.parametrize(
    ("wanted", "values"),
    [
        (SMALLINT, pa.array([1, None, 2**15, 2**16], pa.int64())),
        (decimal(3, 2), pa.array([1, None, 10, 11], pa.int32())),
        (decimal(3, 2), pa.array([Decimal(1), None, Decimal(10), Decimal(11)], pa.decimal128(9, 2))),
        (TIMESTAMP_NTZ, pa.array([1000, None, 1001, 1002], pa.timestamp("ns"))),
        (TIMESTAMP, pa.array([1000, None, 1001, 1002], pa.timestamp("ns", tz="UTC"))),
        (BIGINT, pa.array([1, None, 2**63, 2**63], pa.uint64())),
    ],
)
def test_values_that_do_not_fit_are_named(path: Path, wanted: Type, values: pa.Array) -> None:
    schema = (Field("k", INT), Field("v", wanted))
    pq.write_table(pa.table({"k": pa.array([0] * 4, pa.int32()), "v": values}), path)
    (piece,) = slices([path], schema, 1)[0].pieces
    with pytest.raises(duckdb.Error):
        read([path], schema)
    error = first_bad_value(piece, schema, ("k", "v"))
    assert error is not None
    assert error.condition == "PARQUET_BAD_VALUE"
    assert f"{path}, row 3: column v" in error.message
    assert first_bad_value(piece, schema, ("k",)) is None


def test_not_null_columns_are_checked(path: Path) -> None:
    schema = (Field("v", INT, nullable=False),)
    pq.write_table(pa.table({"v": [1, None]}), path)
    with pytest.raises(duckdb.Error):
        read([path], schema)
    error = first_bad_value(slices([path], schema, 1)[0].pieces[0], schema, ("v",))
    assert error is not None
    assert error.condition == "NULL_IN_NOT_NULL"
    assert "row 2" in error.message


@pytest.mark.parametrize("wanted", [INT, BIGINT])
def test_a_file_with_torn_pages_is_named(path: Path, wanted: Type) -> None:
    schema = (Field("v", wanted),)
    pq.write_table(pa.table({"v": pa.array(range(100_000), pa.int64())}), path, use_dictionary=False)
    (piece,) = slices([path], schema, 1)[0].pieces
    whole = bytearray(path.read_bytes())
    whole[4 : len(whole) // 2] = bytes(len(whole) // 2 - 4)
    path.write_bytes(whole)
    error = first_bad_value(piece, schema, ("v",))
    assert error is not None
    assert error.condition == "PARQUET_UNREADABLE"
    assert str(path) in error.message


def test_missing_repeated_and_reserved_columns(path: Path) -> None:
    pq.write_table(pa.table([[1], [2], [3]], names=["a", "A", "file_row_number"]), path)
    for name, condition in (("b", "MISSING_COLUMN"), ("a", "REPEATED_COLUMN")):
        with pytest.raises(DataError, match=condition):
            check_parquet(path, (Field(name, BIGINT),))
    with pytest.raises(DataError, match="PARQUET_RESERVED_COLUMN"):
        check_parquet(path, (Field("file_row_number", BIGINT),))


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"not parquet at all", None])
def test_unreadable_files(path: Path, damage: bytes | None) -> None:
    if damage is None:
        pq.write_table(pa.table({"n": [1, 2, 3]}), path)
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.write_bytes(damage)
    with pytest.raises(DataError) as error:
        check_parquet(path, (Field("n", BIGINT),))
    assert error.value.condition == "PARQUET_UNREADABLE"


def test_names_that_need_quoting(tmp_path: Path) -> None:
    folder = tmp_path / "it's [1] * ?"
    folder.mkdir()
    path = folder / "a*b.parquet"
    pq.write_table(pa.table({'we"ird, é': [1], "{}": [2]}), path)
    pq.write_table(pa.table({'we"ird, é': [3], "{}": [4]}), folder / "axb.parquet")
    schema = (Field("{}", INT), Field('WE"ird, é', BIGINT))
    assert read([path], schema).to_pylist() == [{"{}": 2, 'WE"ird, é': 1}]


def test_no_columns_still_count_rows(path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2, 3]}), path)
    schema = (Field("n", BIGINT),)
    (piece,) = slices([path], schema, 1)[0].pieces
    assert duckdb.sql(f"SELECT count(*) FROM {parquet_source(piece, schema, ())}").fetchall() == [(3,)]
