"""Values of a program one by one: times finer than a microsecond, and values whose own code fails."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from headrace.errors import DataError
from headrace.input.rows import to_arrow
from headrace.types import Field, parse_type

FINE = pd.Timestamp("2024-01-01 00:00:00.000000001")
NOON = datetime.datetime(2024, 1, 1, 12)
DAY = datetime.date(2024, 1, 1)
UTC = datetime.UTC


def holders(value: Any) -> dict[str, Any]:
    """One row of one value, in everything a program may hold it."""
    alone = np.empty(1, dtype=object)
    alone[0] = value
    return {
        "tuple": [(value,)],
        "dict": [{"v": value}],
        "columns": {"v": [value]},
        "object array": {"v": alone},
        "object series": {"v": pd.Series(alone)},
        "object frame": pd.DataFrame({"v": pd.Series(alone)}),
        "beside others": [(value,), (None,)],
    }


def kept(rows: Any, type: str, zone: str = "UTC") -> list[Any]:
    found = to_arrow(rows, (Field("v", parse_type(type)),), zone=zone)
    assert isinstance(found, pa.Table)
    return found.column("v").to_pylist()


NESTED = {
    "{}": lambda v: v,
    "array<{}>": lambda v: [v],
    "array<array<{}>>": lambda v: [[], [v]],
    "struct<a: int, b: {}>": lambda v: {"a": 1, "b": v},
    "map<int, {}>": lambda v: {1: v},
    "map<{}, int>": lambda v: {v: 1},
}


@pytest.mark.parametrize("type", ["timestamp", "timestamp_ntz", "date"])
@pytest.mark.parametrize("nested", NESTED)
@pytest.mark.parametrize("fine", [FINE, np.datetime64(FINE.value, "ns")], ids=["pandas", "numpy"])
def test_nanoseconds_are_kept_or_refused(type: str, nested: str, fine: Any) -> None:
    for name, rows in holders(NESTED[nested](fine)).items():
        with pytest.raises(DataError, match="INSERT_BAD_VALUE") as caught:
            kept(rows, nested.format(type))
        assert "row 1" in caught.value.message, (name, caught.value)


def test_the_row_with_nanoseconds_is_named() -> None:
    for values in ([NOON, FINE - pd.Timedelta(1), FINE, NOON], [pd.Timestamp(NOON), None, FINE]):
        with pytest.raises(DataError, match=r"row 3, column v: .*nanoseconds"):
            kept([(v,) for v in values], "timestamp_ntz")


@pytest.mark.parametrize("type", ["timestamp", "timestamp_ntz", "date"])
def test_arrays_of_nanoseconds_inside_arrays(type: str) -> None:
    fine = np.array([FINE.value - 1], "datetime64[ns]")
    midnight = datetime.datetime(2024, 1, 1, tzinfo=UTC if type == "timestamp" else None)
    for rows in holders(fine).values():
        assert kept(rows, f"array<{type}>")[0] == [DAY if type == "date" else midnight]
    for rows in holders(fine + 1).values():
        with pytest.raises(DataError, match="INSERT_BAD_VALUE"):
            kept(rows, f"array<{type}>")


def test_categories_of_python_values() -> None:
    column = pd.Categorical(pd.Index([FINE], dtype=object))
    for rows in ({"v": column}, {"v": pd.Series(column)}, pd.DataFrame({"v": column})):
        with pytest.raises(DataError, match="INSERT_BAD_VALUE"):
            kept(rows, "timestamp_ntz")
    text = pd.Series(pd.Categorical(["a", None, "b"]))
    assert kept({"v": text}, "string") == kept(pd.DataFrame({"v": text}), "string") == ["a", None, "b"]


@pytest.mark.parametrize("type", ["date", "timestamp"])
def test_days_among_times_are_refused(type: str) -> None:
    for time in (NOON, pd.Timestamp(NOON)):
        for values in ([DAY, time], [time, DAY]):
            for rows in ([(v,) for v in values], pd.DataFrame({"v": pd.Series(values, dtype=object)})):
                with pytest.raises(DataError, match="INSERT_BAD_VALUE"):
                    kept(rows, type)


def test_times_with_and_without_a_zone() -> None:
    there = datetime.datetime(2024, 1, 1, 11, tzinfo=UTC)
    for make in (lambda v: v, pd.Timestamp):
        values = [make(NOON), make(NOON.replace(tzinfo=UTC)), None]
        for rows in ([(v,) for v in values], pd.DataFrame({"v": pd.Series(values, dtype=object)})):
            assert kept(rows, "timestamp", "Europe/Berlin") == [there, NOON.replace(tzinfo=UTC), None]
            with pytest.raises(DataError, match="INSERT_BAD_VALUE"):
                kept(rows, "timestamp_ntz")


def test_what_pandas_has_for_null_is_null() -> None:
    for missing in (None, pd.NaT, pd.NA, np.datetime64("NaT", "us")):
        assert kept([(pd.Timestamp(NOON) if missing is pd.NaT else None,), (missing,)], "timestamp_ntz")[1] is None
        assert kept(pd.DataFrame({"v": pd.Series([missing], dtype=object)}), "timestamp_ntz") == [None]
    assert kept([(pd.NA,), (1,), (pd.NaT,)], "int") == [None, 1, None]
    frame = pd.DataFrame({"v": pd.Series([[1.0, np.nan], np.nan, [pd.NA, 2]], dtype=object)})
    assert kept(frame, "array<int>") == [[1, None], None, [None, 2]]
    text = pd.DataFrame({"v": pd.Series([["a", np.nan], np.nan], dtype=object)})
    assert kept(text, "array<string>") == [["a", None], None]


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no words for it")

    __str__ = __repr__


class Unreadable(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("no end of it")


class Nameless(dict[Any, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items of it")


@pytest.mark.parametrize(
    "type", ["array<int>", "map<int, int>", "struct<a: int>", "array<array<int>>", "int", "string"]
)
def test_values_that_cannot_be_shown_or_read_are_refused_by_name(type: str) -> None:
    odd = [
        *(np.array(3), np.array("x"), np.array(None), Unprintable(), [Unprintable()], (Unprintable(), Unprintable())),
        *(Unreadable([1]), Nameless(), {Unprintable(): 1}, {1: Unprintable()}, [(Unprintable(), 1)], object()),
    ]
    for value in odd:
        for name, rows in holders(value).items():
            with pytest.raises(DataError) as caught:
                kept(rows, type)
            assert caught.value.condition.startswith(("INSERT_", "UNKNOWN_")), (name, caught.value)


def test_names_of_columns_that_cannot_be_read_are_refused_by_name() -> None:
    for rows in ([{Unprintable(): 1}], {Unprintable(): [1]}, pd.DataFrame({Unprintable(): [1]})):
        with pytest.raises(DataError, match="INSERT_INPUT_FAILED"):
            kept(rows, "int")


def test_types_that_only_polars_has_are_refused_by_column() -> None:
    for wide, type in ((pl.Int128, "int"), (pl.List(pl.Int128), "array<int>")):
        column = pl.Series([[1] if type != "int" else 1], dtype=wide)
        for rows in (pl.DataFrame({"v": column}), pl.LazyFrame({"v": column}), {"v": column}):
            with pytest.raises(DataError, match=r"INSERT_TYPE_MISMATCH\] column v is .*Int128") as caught:
                kept(rows, type)
            assert "cast" in str(caught.value.hint)
