"""What programs give that is no text, no path, no rows: taken as what it means, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import headrace
from headrace.database import Database
from headrace.errors import HeadraceError
from headrace.statement.result import Result
from odd import _Mute

SETUP = (
    "CREATE STREAM s (a INT, b STRING, d DATE, at TIMESTAMP)",
    "CREATE TABLE t (k INT, v STRING)",
    "INSERT INTO t VALUES (1, 'x'), (2, 'y')",
    "CREATE TABLE days (d DATE, at TIMESTAMP)",
)


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect() as database:
        for statement in SETUP:
            database.sql(statement)
        yield database
        assert not database.runtime.session.started, "nothing here needs Spark"


def refused(use: Any, *args: Any, **options: Any) -> HeadraceError:
    with pytest.raises(HeadraceError) as error:
        use(*args, **options)
    assert error.value.condition != "INTERNAL_ERROR", error.value
    str(error.value).encode()  # it can be printed
    return error.value


@pytest.mark.parametrize("given", [None, 5, b"SELECT 1", ["SELECT 1"], object()])
def test_what_is_no_text_is_refused(db: Database, given: Any) -> None:
    for use in (db.sql, lambda g: db.insert(g, []), lambda g: db.copy(g, "x.csv"), db.table):
        assert refused(use, given).condition == "USAGE"


@pytest.mark.parametrize("given", [None, 5, ["x.csv"], b"x", object()])
def test_what_is_no_path_is_refused(db: Database, given: Any, tmp_path: Path) -> None:
    assert refused(db.copy, "s", given).condition == "USAGE"
    assert refused(db.export, given).condition == "USAGE"
    assert refused(headrace.ring, given, "s").condition == "USAGE"
    assert refused(headrace.open, given).condition == "USAGE"
    if given is not None:
        assert refused(headrace.connect, given).condition == "USAGE"


def test_halves_of_surrogate_pairs_are_refused_by_name(db: Database, tmp_path: Path) -> None:
    half = "\ud800"
    for text in (f"SELECT '{half}'", f"SELECT 1 AS `{half}`", f"INSERT INTO t VALUES (1, '{half}')"):
        error = refused(db.sql, text)
        assert (error.condition, "surrogate" in error.message) == ("INVALID_UTF8", True)
    assert refused(db.insert, "t", [{"k": 1, "v": half}]).condition == "INSERT_BAD_VALUE"
    assert refused(db.insert, "t", [{half: 1}]).condition == "UNKNOWN_COLUMN"
    assert refused(db.insert, half, []).condition == "INVALID_UTF8"
    assert refused(db.copy, "s", f"{half}.csv").condition == "INVALID_UTF8"
    assert refused(db.copy, "s", "x.csv", delimiter=half).condition == "INVALID_UTF8"
    assert refused(headrace.connect, str(tmp_path / half)).condition == "INVALID_UTF8"


@pytest.mark.parametrize("name", ["a?b", "a\\b", "a\0b", b"\xff".decode(errors="surrogateescape")])
def test_paths_a_database_cannot_have_are_refused(tmp_path: Path, name: str) -> None:
    assert refused(headrace.connect, tmp_path / name / "x.hr").condition in ("INVALID_PATH", "INVALID_UTF8")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a*b", "a\nb", "[ab]", "a'b", 'a"b', "a{b,c}", "a%20b", "$HOME", "é"])
def test_odd_paths_hold_databases(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    for _ in range(2):
        with headrace.connect(tmp_path / name / "x.hr") as db:
            db.sql("CREATE TABLE IF NOT EXISTS t (a INT)")
            db.insert("t", {"a": range(70_000)})
    with headrace.connect(tmp_path / name / "x.hr") as db:
        assert db.sql("SELECT count(*) FROM t").rows() == [(140_000,)]


@pytest.mark.parametrize("name", ["a?b.csv", "a\\b.csv", "a*b.csv", "a\nb.csv", "[ab].csv", "a'b.csv"])
def test_copy_takes_a_path_that_exists_as_it_is(db: Database, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("1,x\n")
    (tmp_path / "axb.csv").write_text("2,y\n3,z\n")
    assert "1 row copied" in db.copy("t", tmp_path / name).message


@pytest.mark.parametrize("path", ["a" * 5000 + ".csv", "~no_such_user/x.csv", "a/" * 3000 + "*.csv", "a\0.csv"])
def test_copy_names_paths_that_cannot_be(db: Database, path: str) -> None:
    assert refused(db.copy, "t", path).condition in ("PATH_UNREADABLE", "INVALID_PATH", "PATH_NOT_FOUND")


def test_copy_names_a_file_whose_name_is_not_utf8(db: Database, tmp_path: Path) -> None:
    bad = tmp_path / b"\xff.csv".decode(errors="surrogateescape")
    try:
        bad.write_text("1,x\n")
    except OSError:
        pytest.skip("this filesystem has names in UTF-8 only")
    assert refused(db.copy, "t", tmp_path / "*.csv").condition == "INVALID_PATH"


@pytest.mark.parametrize(
    "options", [{"header": "perhaps"}, {"delimiter": 5}, {"quote": object()}, {"null": [1]}, {"format": 7}, {"no": 1}]
)
def test_odd_options_are_refused(db: Database, tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "x.csv").write_text("1,x\n")
    refused(db.copy, "t", tmp_path / "x.csv", **options)
    assert "1 row" in db.copy("t", tmp_path / "x.csv", header=None).message, "None is as if it was not given"


@pytest.mark.parametrize(
    "settings",
    [
        {"time_zone": []},
        {"time_zone": None},
        {"engine": {}},
        {"group_ms": 1.5},
        {"memory_limit": 5},
        {"durability": 1},
        {"group_ms": _Mute()},
        {"tasks": [_Mute()]},
        {"shared": "yes"},
        {"accept_state": _Mute()},
        {"flight_key": 7},
    ],
)
def test_odd_settings_are_refused(settings: dict[str, Any]) -> None:
    assert refused(headrace.connect, **settings).condition == "INVALID_SETTING"


def test_what_is_no_session_is_refused() -> None:
    assert refused(headrace.connect, spark=5).condition == "NOT_A_SPARK_SESSION"
    assert refused(headrace.register, None).condition == "NOT_A_SPARK_SESSION"
    assert refused(headrace.reservoir, None, 5).condition == "NOT_A_DATAFRAME"
    assert refused(Result(pa.table({"a": [1]})).spark).condition == "USAGE"
    assert refused(Result(pa.table({"a": [1]})).text, "x").condition == "USAGE"


def _endless(kind: Any) -> Any:
    found = kind()
    if isinstance(found, dict):
        found["a"] = found
    else:
        found.append(found)
    return found


def _deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize("value", [_endless(list), _endless(dict), _deep(100_000)], ids=["list", "dict", "deep"])
def test_values_that_hold_themselves_are_refused(db: Database, value: Any) -> None:
    db.sql("CREATE TABLE w (k INT, v ARRAY<INT>)")
    for table in ("t", "w"):
        for rows in (
            [(1, value)],
            [{"k": 1, "v": value}],
            {"k": [1], "v": [value]},
            {"k": [1], "v": pd.Series([value])},
            {"k": [1], "v": np.array([value, None], dtype=object)[:1]},
            pd.DataFrame({"k": [1], "v": pd.Series([value], dtype=object)}),
        ):
            assert refused(db.insert, table, rows).condition.startswith("INSERT_")
    refused(db.insert, "t", [value])


@pytest.mark.parametrize(
    "rows",
    [
        pa.array([1, 2]),
        pa.chunked_array([[1, 2]]),
        pd.Series([1, 2]),
        pl.Series([1, 2]),
        np.array(5),
        np.array([1, 2]),
        {"k": np.array(5), "v": np.array("x")},
        {"k": np.zeros((2, 2)), "v": ["x", "y"]},
        5,
        "text",
        [5],
    ],
    ids=str,
)
def test_what_is_no_table_is_refused_by_name(db: Database, rows: Any) -> None:
    assert refused(db.insert, "t", rows).condition == "INSERT_UNKNOWN_INPUT"


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["x", "y"]), pl.String])
def test_categories_of_polars_are_text(db: Database, kind: Any) -> None:
    column = pl.Series(["y", None, "x"], dtype=kind)
    db.insert("t", pl.DataFrame({"k": [5, 6, 7], "v": column}))
    db.insert("t", {"k": [5, 6, 7], "v": column})
    rows = db.sql("SELECT k, v FROM t WHERE k > 4 ORDER BY k").rows()
    assert rows == [(5, "y"), (5, "y"), (6, None), (6, None), (7, "x"), (7, "x")]


def test_names_that_polars_cannot_hand_over_are_refused(db: Database) -> None:
    assert refused(db.insert, "t", pl.DataFrame({"k": [5], "\0": ["x"]})).condition == "UNKNOWN_COLUMN"
    assert refused(db.insert, "t", pl.Series("\0", [5])).condition == "INSERT_UNKNOWN_INPUT"
    nested = pl.DataFrame({"k": [5], "v": [{"a\0": 1}]})
    assert refused(db.insert, "t", nested).condition == "UNKNOWN_FIELD"


def test_struct_arrays_are_rows(db: Database) -> None:
    rows = pa.array([{"k": 5, "v": "five"}])
    db.insert("t", rows)
    db.insert("t", pa.chunked_array([rows]))
    assert db.sql("SELECT v FROM t WHERE k = 5").rows() == [("five",), ("five",)]
    assert refused(db.insert, "t", pa.array([{"k": 5, "v": "five"}, None])).condition == "INSERT_UNKNOWN_INPUT"
    assert refused(db.insert, "t", pa.nulls(2, pa.struct([]))).condition == "INSERT_UNKNOWN_INPUT"


def test_what_fails_while_rows_are_read_is_named(db: Database) -> None:
    def rows() -> Iterator[tuple[int, str]]:
        yield 1, "x"
        raise LookupError("the source is gone")

    error = refused(db.insert, "t", rows())
    assert error.condition == "INSERT_INPUT_FAILED"
    assert isinstance(error.__cause__, LookupError)
    schema = pa.schema([("k", pa.int32()), ("v", pa.string())])
    batches = (pa.record_batch([[row[0]], [row[1]]], schema=schema) for row in rows())
    for target in ("t", "s2"):
        db.sql("CREATE STREAM IF NOT EXISTS s2 (k INT, v STRING)")
        reader = pa.RecordBatchReader.from_batches(schema, (b for b in batches))
        assert refused(db.insert, target, reader).condition == "INSERT_INPUT_FAILED"
        batches = (pa.record_batch([[row[0]], [row[1]]], schema=schema) for row in rows())
    assert db.sql("SELECT count(*) FROM t").rows() == [(2,)]


def test_a_callback_that_fails_is_named(db: Database, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1,x\n")

    def broken(done: int, total: int) -> None:
        raise LookupError("no such bar")

    before = db.sql("SELECT count(*) FROM t").rows()
    error = refused(db.copy, "s", tmp_path / "x.csv", progress=5)
    assert error.condition == "USAGE"
    db.sql("CREATE STREAM c (k INT, v STRING)")
    db.sql("CREATE VIEW n AS SELECT count(v) AS n FROM c")
    error = refused(db.copy, "c", tmp_path / "x.csv", progress=broken)
    assert (error.condition, type(error.__cause__)) == ("CALLBACK_FAILED", LookupError)
    assert db.sql("SELECT * FROM n").rows() == [(0,)]
    assert db.sql("SELECT count(*) FROM t").rows() == before


def test_numpy_times_among_other_values_are_refused(db: Database) -> None:
    for other in (np.uint64(5), np.int8(5), 5, "x", (1,), np.timedelta64(1, "D")):
        for when in (np.datetime64("2024-01-01"), np.datetime64("NaT")):
            for values in ([when, other], [other, None, when]):
                rows = [(value, None) for value in values]
                assert refused(db.insert, "days", rows).condition == "INSERT_BAD_VALUE"
                assert refused(db.insert, "t", rows).condition == "INSERT_BAD_VALUE"


def test_numpy_days_past_32_bits_are_refused(db: Database) -> None:
    far = np.array(["1970-01-01", "NaT", "9999-12-31"], "datetime64[D]")
    far[2] = np.datetime64(2**32, "D")
    error = refused(db.insert, "days", {"d": far, "at": [None] * 3})
    assert (error.condition, "row 3" in error.message) == ("INSERT_BAD_VALUE", True)
    db.insert("days", {"d": far[:2], "at": [None] * 2})
    assert db.sql("SELECT count(d) FROM days").rows() == [(1,)]
