"""db.insert's input: every holder of rows gives the same Arrow table, or a named error."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest

from headrace.errors import DataError
from headrace.input.rows import to_arrow
from headrace.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    Field,
    Schema,
    Type,
    arrow_schema,
    decimal,
)

UTC = datetime.UTC
SCHEMA = (Field("part", STRING), Field("n", INT), Field("price", decimal(9, 2)), Field("at", TIMESTAMP))
NOON = datetime.datetime(2024, 1, 2, 12, tzinfo=UTC)
ROWS = [
    {"part": "bolt", "n": 1, "price": Decimal("1.50"), "at": NOON},
    {"part": None, "n": None, "price": None, "at": None},
    {"part": "é", "n": -7, "price": Decimal("2.00"), "at": NOON},
]
ARROW = pa.Table.from_pylist(ROWS, schema=arrow_schema(SCHEMA))
SHUFFLED = ARROW.select(["at", "n", "part", "price"]).rename_columns(["AT", "n", "Part", "price"])


class Exporter:
    """Anything that exports an Arrow stream."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return SHUFFLED.__arrow_c_stream__(requested_schema)


HOLDERS = {
    "table": SHUFFLED,
    "batch": SHUFFLED.to_batches()[0],
    "reader": lambda: pa.RecordBatchReader.from_batches(SHUFFLED.schema, SHUFFLED.to_batches(max_chunksize=2)),
    "chunked": pa.concat_tables([SHUFFLED.slice(0, 1), SHUFFLED.slice(1)]),
    "dataset": pyarrow.dataset.dataset(SHUFFLED),
    "exporter": Exporter(),
    "polars": pl.from_arrow(SHUFFLED),
    "polars lazy": pl.from_arrow(SHUFFLED).lazy(),
    "pandas": SHUFFLED.to_pandas(),
    "pandas arrow": SHUFFLED.to_pandas(types_mapper=pd.ArrowDtype),
    "dicts": ROWS,
    "generator": lambda: (row for row in ROWS),
    "tuples": [tuple(row.values()) for row in ROWS],
    "lists": [list(row.values()) for row in ROWS],
    "columns": {name: [row[name] for row in ROWS] for name in ROWS[0]},
    "arrow columns": dict(zip(SHUFFLED.column_names, SHUFFLED.columns, strict=True)),
    "dictionary": SHUFFLED.set_column(2, "part", SHUFFLED["Part"].combine_chunks().dictionary_encode()),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_differential_every_holder_gives_the_same_rows(holder: str) -> None:
    data = HOLDERS[holder]
    found = to_arrow(data() if callable(data) else data, SCHEMA)
    table = found.read_all() if isinstance(found, pa.RecordBatchReader) else found
    assert table.schema == arrow_schema(SCHEMA)
    assert table.to_pylist() == ROWS


@pytest.mark.parametrize(
    "nothing", [[], {f.name: [] for f in SCHEMA}, ARROW.slice(0, 0), ARROW.schema.empty_table(), ARROW.to_pandas()[:0]]
)
def test_no_rows(nothing: Any) -> None:
    table = to_arrow(nothing, SCHEMA)
    assert (table.num_rows, table.schema) == (0, arrow_schema(SCHEMA))


KEPT: list[tuple[Type, Any, Any]] = [
    (INT, pa.array([5], pa.uint64()), 5),
    (INT, pa.array([5.0]), 5),
    (INT, pa.array([Decimal("5.00")]), 5),
    (INT, [np.int64(5)], 5),
    (DOUBLE, [1], 1.0),
    (DOUBLE, pa.array([0.5], pa.float16()), 0.5),
    (FLOAT, [0.1], float(np.float32(0.1))),
    (FLOAT, pa.array([0.5]), 0.5),
    (decimal(5, 2), [5], Decimal("5.00")),
    (decimal(5, 2), pa.array([5], pa.int64()), Decimal("5.00")),
    (decimal(38, 0), [10**37], Decimal(10**37)),
    (decimal(5, 2), pa.array([Decimal("5.1000")]), Decimal("5.10")),
    (STRING, pa.array(["x"], pa.string_view()), "x"),
    (BINARY, pa.array([b"xy"], pa.binary(2)), b"xy"),
    (DATE, pa.array([datetime.datetime(2024, 1, 2)]), datetime.date(2024, 1, 2)),
    (DATE, [datetime.date(2024, 1, 2)], datetime.date(2024, 1, 2)),
    (BOOLEAN, [True], True),
    (BOOLEAN, pa.nulls(1), None),
    (TIMESTAMP_NTZ, np.array(["2024-01-02T03:04:05"], "datetime64[ns]"), datetime.datetime(2024, 1, 2, 3, 4, 5)),
    # naive times are Berlin's
    (TIMESTAMP, [datetime.datetime(2024, 1, 2, 12)], datetime.datetime(2024, 1, 2, 11, tzinfo=UTC)),
    (TIMESTAMP, pa.array([datetime.datetime(2024, 7, 2, 12)]), datetime.datetime(2024, 7, 2, 10, tzinfo=UTC)),
    (TIMESTAMP, pa.array([NOON], pa.timestamp("ns", tz="Asia/Tokyo")), NOON),
]


@pytest.mark.parametrize(("wanted", "values", "kept"), KEPT)
def test_values_are_kept(wanted: Type, values: Any, kept: Any) -> None:
    table = to_arrow({"v": values}, (Field("v", wanted),), zone="Europe/Berlin")
    assert table.schema.field("v").type == wanted.arrow
    assert table.column("v").to_pylist() == [kept]


@pytest.mark.parametrize("dtype", ["float64", "object", "int64", "bool"])
def test_an_empty_pandas_frame_fits_any_columns(dtype: str) -> None:
    found = to_arrow(pd.DataFrame({f.name: [] for f in SCHEMA}, dtype=dtype), SCHEMA)
    assert isinstance(found, pa.Table) and found.num_rows == 0 and found.schema == arrow_schema(SCHEMA)
    with pytest.raises(DataError, match="MISSING_COLUMN"):
        to_arrow(pd.DataFrame({SCHEMA[0].name: []}, dtype=dtype), SCHEMA)


def test_naive_pandas_datetimes_are_local() -> None:
    frame = pd.DataFrame({"v": pd.to_datetime(["2024-01-02 12:00", None])})
    table = to_arrow(frame, (Field("v", TIMESTAMP),), zone="Asia/Tokyo")
    assert table.column("v").to_pylist() == [datetime.datetime(2024, 1, 2, 3, tzinfo=UTC), None]


def test_naive_and_aware_datetimes_in_one_column() -> None:
    values = [datetime.datetime(2024, 1, 2, 12), NOON, None]
    for order in (values, values[::-1]):
        table = to_arrow([(v,) for v in order], (Field("v", TIMESTAMP),), zone="Asia/Tokyo")
        expected = [datetime.datetime(2024, 1, 2, 3, tzinfo=UTC), NOON, None]
        assert table.column("v").to_pylist() == (expected if order is values else expected[::-1])
        with pytest.raises(DataError, match="INSERT_BAD_VALUE"):
            to_arrow([(v,) for v in order], (Field("v", TIMESTAMP_NTZ),))


BAD: list[tuple[Type, Any, str, str]] = [
    (TINYINT, pa.array([1, None, 128]), "INSERT_BAD_VALUE", "row 3, column v: 128 does not fit in tinyint"),
    (INT, [1, 2, 2**31], "INSERT_BAD_VALUE", "row 3"),
    (BIGINT, [1, 2, 2**63], "INSERT_BAD_VALUE", "row 3"),
    (INT, pa.array([1.0, 2.5]), "INSERT_BAD_VALUE", "row 2"),
    (INT, [1, "2"], "INSERT_BAD_VALUE", "row 2"),
    (INT, ["1"], "INSERT_TYPE_MISMATCH", "string"),
    (INT, [True], "INSERT_TYPE_MISMATCH", "bool"),
    (STRING, [1], "INSERT_TYPE_MISMATCH", "int64"),
    (STRING, ["a", b"b"], "INSERT_BAD_VALUE", "row 2"),
    (decimal(5, 2), [Decimal("1.5"), Decimal("1.239")], "INSERT_BAD_VALUE", "row 2"),
    (decimal(5, 2), pa.array([1, 1000]), "INSERT_BAD_VALUE", "row 2"),
    (decimal(5, 2), [1, 1000], "INSERT_BAD_VALUE", "row 2"),
    (decimal(5, 2), [1.5], "INSERT_TYPE_MISMATCH", "double"),
    (DOUBLE, pa.array([2**53 + 1]), "INSERT_BAD_VALUE", "row 1"),
    (FLOAT, pa.array([0.5, float("nan"), 0.1]), "INSERT_BAD_VALUE", "row 3"),
    (DATE, pa.array([datetime.datetime(2024, 1, 2, 1)]), "INSERT_BAD_VALUE", "row 1"),
    (DATE, [datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 2, 1)], "INSERT_BAD_VALUE", "row 2"),
    (TIMESTAMP, [5], "INSERT_TYPE_MISMATCH", "int64"),
    (TIMESTAMP_NTZ, [NOON], "INSERT_TYPE_MISMATCH", "UTC"),
    (TIMESTAMP, pa.array([1, 1000], pa.timestamp("ns")), "INSERT_BAD_VALUE", "row 1"),
    (TIMESTAMP, [datetime.datetime(2024, 3, 31, 2, 30)], "INSERT_BAD_VALUE", "row 1"),  # skipped by Berlin's clocks
    (STRING, [["a"]], "INSERT_TYPE_MISMATCH", "list"),
    (INT, [{"a": 1}], "INSERT_TYPE_MISMATCH", "struct"),
    (INT, [object()], "INSERT_BAD_VALUE", "row 1"),
]


@pytest.mark.parametrize(("wanted", "values", "condition", "message"), BAD)
def test_values_that_would_change_are_refused(wanted: Type, values: Any, condition: str, message: str) -> None:
    with pytest.raises(DataError) as error:
        to_arrow({"v": values}, (Field("v", wanted),), zone="Europe/Berlin")
    assert (error.value.condition, message in error.value.message) == (condition, True), error.value


def test_row_numbers_go_on_over_chunks_and_batches() -> None:
    schema = (Field("v", TINYINT),)
    table = pa.table({"v": pa.chunked_array([[1, 2], [], [3, 500]])})
    with pytest.raises(DataError, match="row 4"):
        to_arrow(table, schema)
    with pytest.raises(DataError, match="row 4"):
        to_arrow(pa.RecordBatchReader.from_batches(table.schema, table.to_batches()), schema).read_all()


ONE: Schema = (Field("a", INT), Field("b", INT))


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (pa.table({"a": [1]}), "MISSING_COLUMN"),
        (pd.DataFrame({"a": [1]}), "MISSING_COLUMN"),
        ({"a": [1]}, "MISSING_COLUMN"),
        (pa.table({"a": [1], "b": [1], "c": [1]}), "UNKNOWN_COLUMN"),
        ([{"a": 1, "c": 2}], "UNKNOWN_COLUMN"),
        (pa.table([[1], [1], [1]], names=["a", "b", "B"]), "REPEATED_COLUMN"),
        ([(1, 2), (1,)], "INSERT_COLUMN_ARITY_MISMATCH"),
        ({"a": [1], "b": [1, 2]}, "INSERT_COLUMN_LENGTHS"),
        ({"a": 1, "b": 2}, "INSERT_UNKNOWN_INPUT"),
        ([1, 2], "INSERT_UNKNOWN_INPUT"),
        ([(1, 2), {"a": 1}], "INSERT_UNKNOWN_INPUT"),
        ("text", "INSERT_UNKNOWN_INPUT"),
        (5, "INSERT_UNKNOWN_INPUT"),
    ],
)
def test_rows_of_the_wrong_shape(data: Any, condition: str) -> None:
    with pytest.raises(DataError) as error:
        to_arrow(data, ONE)
    assert error.value.condition == condition


def test_nulls_in_not_null_columns() -> None:
    schema = (Field("a", INT, nullable=False), Field("b", INT))
    for data in ([{"a": 1}, {"b": 1}], [(1, 2), (None, 2)], pa.table({"a": [1, None], "b": [1, 1]})):
        with pytest.raises(DataError, match=r"NULL_IN_NOT_NULL.*row 2, column a"):
            to_arrow(data, schema)
