"""Which files, which format, and how they are shared out."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.errors import DataError, HeadraceError
from headrace.input import files
from headrace.input.csv import CsvOptions, CsvSlice, read_csv
from headrace.types import INT, STRING, Field

SCHEMA = (Field("a", INT), Field("b", STRING))


def test_resolve_sorts_and_skips_hidden_files(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "_SUCCESS.csv", ".part.csv", "c.txt", "sub/d.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [p.name for p in files.resolve(f"{tmp_path}/*.csv")] == ["a.csv", "b.csv"]
    assert [p.name for p in files.resolve(f"{tmp_path}/**/*.csv")] == ["a.csv", "b.csv", "d.csv"]
    assert [p.name for p in files.resolve(f"file://{tmp_path}/_SUCCESS.csv")] == ["_SUCCESS.csv"]


def test_a_file_whose_name_looks_like_a_glob(tmp_path: Path) -> None:
    (tmp_path / "a[1].csv").touch()
    assert [p.name for p in files.resolve(f"{tmp_path}/a[1].csv")] == ["a[1].csv"]


@pytest.mark.parametrize(
    ("names", "pattern", "format", "condition"),
    [
        ([], "*.csv", None, "PATH_NOT_FOUND"),
        ([], "x.csv", None, "PATH_NOT_FOUND"),
        (["x.dat"], "x.dat", None, "COPY_FORMAT_UNKNOWN"),
        (["x.csv.gz"], "*.gz", None, "COPY_FORMAT_UNKNOWN"),
        (["x.csv"], "x.csv", "orc", "COPY_FORMAT_UNKNOWN"),
        (["x.csv", "x.parquet"], "x.*", None, "COPY_FORMAT_UNKNOWN"),
        (["x/y.csv"], "x", None, "PATH_IS_DIRECTORY"),
    ],
)
def test_what_cannot_be_resolved(
    tmp_path: Path, names: list[str], pattern: str, format: str | None, condition: str
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(DataError) as error:
        files.resolve(f"{tmp_path}/{pattern}", format)
    assert error.value.condition == condition
    assert error.value.hint


def test_remote_paths_say_that_they_are_not_read_yet() -> None:
    with pytest.raises(HeadraceError, match="NOT_YET_SUPPORTED"):
        files.resolve("s3://bucket/x.csv")


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 9))
def test_divide_covers_everything_once_and_evenly(sizes: list[int], parts: int) -> None:
    groups = files.divide(sizes, parts)
    assert len(groups) <= parts
    ranges = [r for group in groups for r in group]
    assert ranges == sorted(ranges)
    for index, size in enumerate(sizes):
        covered = [byte for i, start, end in ranges if i == index for byte in range(start, end)]
        assert covered == list(range(size))
    loads = [sum(end - start for _, start, end in group) for group in groups]
    assert all(load <= sum(sizes) / parts + 1 for load in loads)


def test_small_files_share_a_slice_and_headers_differ(tmp_path: Path) -> None:
    for i in range(10):
        text = f"a,b\n{i},x\n" if i % 2 else f"b,a\nx,{i}\n"
        (tmp_path / f"{i}.csv").write_text(text)
    options = CsvOptions(header=True)
    plan = files.plan_slices(files.resolve(f"{tmp_path}/*.csv"), "csv", options, SCHEMA, ("a",), 3)
    assert len(plan) == 3
    assert all(isinstance(s, CsvSlice) and len(s.pieces) >= 3 for s in plan)
    found = [v for s in plan for b in read_csv(s, options, SCHEMA, ("a",)) for v in b.column(0).to_pylist()]  # type: ignore[arg-type]
    assert found == list(range(10))


def test_there_are_no_empty_pieces(tmp_path: Path) -> None:
    for name, text in (("a", ""), ("b", "1,a long record\n2,x\n"), ("c", "")):
        (tmp_path / f"{name}.csv").write_text(text)
    plan = files.plan_slices(files.resolve(f"{tmp_path}/*.csv"), "csv", None, SCHEMA, ("a",), 9)
    assert [(p.path.name, p.start, p.end) for s in plan for p in s.pieces] == [  # type: ignore[union-attr]
        ("b.csv", 0, 16),
        ("b.csv", 16, 20),
    ]


def test_tsv_is_csv_with_tabs(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("1\tx,y\n")
    assert files.format_of([path]) == "tsv"
    options = CsvOptions.of({}, delimiter="\t")
    (plan,) = files.plan_slices([path], "tsv", options, SCHEMA, ("b",), 1)
    assert [b.to_pylist() for b in read_csv(plan, options, SCHEMA, ("b",))] == [[{"b": "x,y"}]]  # type: ignore[arg-type]


KINDS = {
    "a pipe": lambda path: os.mkfifo(path),
    "a socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_refused_at_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    Path("d").mkdir()
    Path("d/a.csv").write_text("1\n")
    KINDS[kind](Path("d/f.csv"))
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (a INT)")
        db.sql("CREATE TABLE t (a INT)")
        statements = [
            *(f"COPY {target} FROM '{path}'" for target in "st" for path in ("d/f.csv", "d/*.csv", "**/*.csv")),
            *(f"CREATE TABLE u (a INT) USING csv LOCATION '{path}'" for path in ("d/f.csv", "d", "d/*")),
            *(f"CREATE TABLE u USING parquet LOCATION '{path}'" for path in ("d/f.csv", "d/f*")),
        ]
        for statement in statements:
            with pytest.raises(DataError, match=r"PATH_NOT_A_FILE.*f\.csv is a"):
                db.sql(statement)
        Path("d/f.csv").rename("f.csv")
        db.sql("CREATE TABLE u (a INT) USING csv LOCATION 'd'")
        assert db.sql("FROM u").rows() == [(1,)]
        Path("f.csv").rename("d/f.csv")
        with pytest.raises(DataError, match=r"PATH_NOT_A_FILE.*table u: .*f\.csv is a"):
            db.sql("FROM u")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("", r"INVALID_PATH\] the path is empty"),
        ("file://", r"INVALID_PATH\] the path is empty"),
        ("a\0b.csv", r"INVALID_PATH\] 'a\\x00b\.csv' holds a NUL"),
        ("  ", r"PATH_NOT_FOUND\] no file matches '  '"),
        ("a\x1b[2J.csv", r"PATH_NOT_FOUND\] no file matches 'a\\x1b"),
    ],
)
def test_paths_that_look_like_others_are_shown_as_they_are(path: str, said: str) -> None:
    with headrace.connect() as db:
        db.sql("CREATE TABLE t (a INT)")
        with pytest.raises(DataError, match=said):
            db.sql(f"COPY t FROM '{path}'")
        if "INVALID" in said:
            with pytest.raises(HeadraceError, match="INVALID_PATH"):
                db.sql(f"CREATE TABLE u (a INT) USING csv LOCATION '{path}'")
