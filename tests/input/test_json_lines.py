"""JSON lines: any cutting gives the same rows or the same error, both locators agree, and values are Spark's."""

from __future__ import annotations

import json
import math
import pickle
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.errors import DataError, HeadraceError
from headrace.input import json_lines
from headrace.input.files import plan_slices
from headrace.input.json_kernel import JsonKernel
from headrace.input.json_lines import JsonSlice, read_json
from headrace.input.json_scan import NotJson, Scanner
from headrace.types import BIGINT, DOUBLE, INT, STRING, Field, Schema, array, arrow_schema, decimal, map_of, parse_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA: Schema = (
    Field("i", INT),
    Field("t", STRING),
    Field("d", decimal(6, 2)),
    Field("f", DOUBLE),
    Field("n", BIGINT, nullable=False),
    Field("m", map_of(STRING, array(INT))),
)


def read(path: Path, schema: Schema = SCHEMA, parts: int = 1, block_size: int = 1 << 20) -> pa.Table:
    """All slices of one file, each pickled as it would be for a task."""
    columns = tuple(f.name for f in schema)
    slices = pickle.loads(pickle.dumps(plan_slices([path], "json", None, schema, columns, parts)))
    batches = [b for s in slices for b in read_json(s, schema, columns, block_size=block_size)]
    return pa.Table.from_batches(batches, schema=arrow_schema(schema))


def outcome(path: Path, parts: int, block_size: int, kernel_bytes: int = 1 << 40) -> tuple[str, Any]:
    before, json_lines.KERNEL_BYTES = json_lines.KERNEL_BYTES, kernel_bytes
    try:
        return "rows", repr(read(path, SCHEMA, parts, block_size).to_pylist())
    except DataError as error:
        return error.condition, error.message
    finally:
        json_lines.KERNEL_BYTES = before


values = st.sampled_from(
    [
        "0", "-0", "7", "-12", "1.5", "1.50", "1e2", "1E-1", "2147483648", "99999999999999999999", "01", "1.", ".5",
        "+1", "NaN", "-Infinity", "Infinity", "true", "false", "null", "nul", '""', '"x"', '"1.25"', '"NaN"',
        '"\\u00e9\\n\\/"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\ud800\\u0041"', '"\\x"', '"\\u12"', '"\t"', '"é😀"',
        '"a', "{}", "[]", '{"a": [1, {"b": "]"}]}', '[1,2 , "\\""]', "[1,]", '{"a" 1}', '{"a":1', "]", "",
        "[[[[]]]]", "1 2", '"\r"', '{"a": [], "A" : null}', '{"a": [1], "b": [1, null], "a": null}', '{"\\ud800": []}',
        '{"\\u00e9\\n" :[7]}',
    ]
)  # fmt: skip
plain = st.sampled_from(["0", "-12", "null", "7"])
keys = st.sampled_from(["i", "t", "d", "f", "n", "m", "I", "T", "other", "ñ", "\\u0069", "K"])
blanks = st.sampled_from(["", "", "", " ", "\t", "\r"])


@st.composite
def objects(draw: st.DrawFn) -> str:
    odd = draw(st.integers(0, 3)) == 0
    fields = draw(st.lists(st.tuples(keys, values if odd else plain), max_size=6))
    space = draw(blanks)
    body = ",".join(f'{space}"{k}"{space}:{space}{v}' for k, v in [("n", "1"), *fields])
    return f"{space}{{{body}}}{space}"


lines = st.one_of(
    objects(), objects(), objects(), st.sampled_from(["", " ", "\r", "{}", "null", "[]", "x", '{"n":1}}'])
)
ends = st.sampled_from(["\n", "\n", "\r\n"])


@given(st.lists(lines, max_size=8), ends, st.integers(1, 5), st.integers(1, 80), st.booleans())
def test_any_cutting_gives_the_same_rows_or_the_same_error(
    tmp_path: Path, found: list[str], end: str, parts: int, block: int, bom: bool
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + end.join(found).encode())
    assert outcome(path, parts, block) == outcome(path, 1, 1 << 20) == outcome(path, parts, block, kernel_bytes=0)


@given(st.lists(st.one_of(lines.map(str.encode), st.binary(max_size=6)), max_size=6))
def test_differential_the_kernel_gives_what_the_scanner_gives_or_declines(found: list[bytes]) -> None:
    import numpy as np

    block = b"\n".join(found) + b"\n"
    names = [f.name for f in SCHEMA]
    located = JsonKernel(names).locate(np.frombuffer(block, np.uint8), 0, len(block))
    try:
        rows, columns = Scanner(names, ascii_only=True).locate(block)
    except NotJson:
        assert located is None
        return
    if located is None:
        assert b"\\u" in block  # the only odd thing here that is not wrong: an escaped name
        return
    assert located[0] == rows
    for mine, other in zip(located[1], columns, strict=True):
        assert mine.kinds.tolist() == other.kinds.tolist()
        assert mine.text.to_pylist() == other.text.to_pylist()
        mine.text.validate(full=True)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(json_values, max_size=6), st.booleans(), st.integers(1, 4))
def test_oracle_what_python_writes_is_read_back(tmp_path: Path, given: list[Any], ascii_only: bool, parts: int) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"a": v}, ensure_ascii=ascii_only) + "\n" for v in given), encoding="utf-8")
    expected = [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=ascii_only) for v in given]
    assert read(path, (Field("a", STRING),), parts).column("a").to_pylist() == expected


def test_fields_by_name_and_nested_values_as_text(tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson"
    path.write_text(
        '{"T": {"a": [1,  2.50]}, "n": 1, "else": {"i": 9}}\r\n\n{"n": 2, "i": 3, "t": true, "i": 4}\n{"t":1.50,"n":3}'
    )
    found = read(path).select(["i", "t", "n"]).to_pylist()
    assert [tuple(r.values()) for r in found] == [(None, '{"a": [1,  2.50]}', 1), (4, "true", 2), (None, "1.50", 3)]


@pytest.mark.parametrize(
    ("line", "condition", "said"),
    [
        ('{"n": 1, "i": 2147483648}', "JSON_BAD_VALUE", "row 3: column i: 2147483648 is no int"),
        ('{"n": 1, "i": "7"}', "JSON_BAD_VALUE", 'row 3: column i: "7" is no int'),
        ('{"n": 1, "i": 1.0}', "JSON_BAD_VALUE", "row 3: column i: 1.0 is no int"),
        ('{"n": 1, "d": 1.239}', "JSON_BAD_VALUE", "row 3: column d: 1.239 is no decimal(6,2)"),
        ('{"n": 1, "d": 12345}', "JSON_BAD_VALUE", "row 3: column d: 12345 is no decimal(6,2)"),
        ('{"n": 1, "f": "7"}', "JSON_BAD_VALUE", 'row 3: column f: "7" is no double'),
        ('{"i": 1}', "NULL_IN_NOT_NULL", "row 3: column n is NOT NULL, but the field is null or missing"),
        ("[1]", "JSON_INVALID", "row 3: no JSON object: '{' is expected, at character 1, before '[1]'"),
        ('{"n": 1', "JSON_INVALID", "row 3: no JSON object: ',' is expected, at character 8, where the line ends"),
        ('{"n": }', "JSON_INVALID", "row 3: no JSON object: a value is expected, at character 7, before '}'"),
        ('{"n": 1} {"n": 2}', "JSON_INVALID", "row 3: no JSON object: something follows the object, at character 10"),
        ('{"n": 1, "t": "\\ud800"}', "JSON_INVALID", "row 3: half of a surrogate pair is no character"),
        ('{"n": 1, "m": []}', "JSON_BAD_VALUE", "row 3: column m: [] is no map<string,array<int>>"),
        ('{"n": 1, "m": {"a": [1.5]}}', "JSON_BAD_VALUE", 'row 3: column m: {"a": [1.5]} is no map<string,array<int>>'),
        ('{"n": 1, "m": {"a": null, "a": []}}', "DUPLICATED_MAP_KEY", "row 3: column m: a key is there twice in {"),
        ('{"n": 1, "t": ' + "[" * 100_000, "JSON_INVALID", "row 3: the object is nested too deeply"),
    ],
)
def test_errors_name_file_row_and_column(tmp_path: Path, line: str, condition: str, said: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"n": 1}\n\n{"n": 2}\n' + line + '\n{"n": "later"}\n')
    for parts, block in ((1, 1 << 20), (3, 10)):
        with pytest.raises(DataError) as error:
            read(path, SCHEMA, parts, block)
        assert (error.value.condition, error.value.message[: len(f"{path}, {said}")]) == (condition, f"{path}, {said}")
        assert error.value.hint


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": 2, "t": "\xff"}\n')
    with pytest.raises(DataError, match=r"JSON_INVALID_UTF8.*row 2"):
        read(path)
    path.write_bytes('{"n": 1}\n'.encode("utf-16"))
    with pytest.raises(DataError, match="UTF-16"):
        read(path)


def test_a_line_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "MAX_RECORD", 64)
    path = tmp_path / "x.jsonl"
    path.write_text('{"n": 1}\n{"n": 2, "t": "' + "x" * 100 + '"}\n{"n": 3}\n')
    assert read(path, SCHEMA, block_size=1 << 20).num_rows == 3
    with pytest.raises(DataError, match=r"JSON_RECORD_TOO_LONG.*row 2"):
        read(path, SCHEMA, block_size=16)


# --- COPY -------------------------------------------------------------------------------------------


def test_copy_into_streams_and_tables(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"part": "bolt", "n": 2}\n{"part": "nut", "n": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"N": 5, "part": "bolt", "more": []}')
    with headrace.connect(None) as db:
        db.sql("CREATE STREAM s (part STRING, n INT)")
        db.sql("CREATE TABLE t (part STRING, n INT)")
        db.sql("CREATE VIEW v AS SELECT part, sum(n) AS n FROM s GROUP BY part")
        assert db.sql(f"COPY s FROM '{tmp_path}/*.jsonl'").message == "3 rows copied into s"
        db.copy("t", tmp_path / "b.jsonl", format="json")
        db.sql(f"COPY t (part) FROM '{tmp_path}/a.jsonl' FORMAT JSON")
        assert sorted(db.sql("SELECT * FROM v").rows()) == [("bolt", 7), ("nut", 1)]
        assert sorted(db.sql("SELECT part, n FROM t").rows(), key=str) == [("bolt", 5), ("bolt", None), ("nut", None)]
        (tmp_path / "b.jsonl").write_text('{"n": 5}\n{"n": 5.5}')
        for relation in ("s", "t"):
            with pytest.raises(DataError, match=r"JSON_BAD_VALUE.*b.jsonl, row 2: column n"):
                db.sql(f"COPY {relation} FROM '{tmp_path}/*.jsonl'")
            with pytest.raises(HeadraceError, match="COPY_OPTION_UNKNOWN"):
                db.sql(f"COPY {relation} FROM '{tmp_path}/*.jsonl' HEADER")
        assert sorted(db.sql("SELECT * FROM v").rows()) == [("bolt", 7), ("nut", 1)]
        assert db.sql("SELECT count(*) FROM t").rows() == [(3,)]


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["tasks", "spark"])
def test_differential_copy_by_spark_tasks_and_spark_sql(tmp_path: Path, spark: SparkSession, engine: str) -> None:
    rows = [{"part": f"p{i % 7}", "n": i, "d": f"{i}.25"} for i in range(1_000)]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    query = "SELECT part, sum(n) AS n, sum(d) AS d FROM {} GROUP BY part"
    expected = spark.read.schema("part STRING, n INT, d DECIMAL(9,2)").json(str(path))
    expected.createOrReplaceTempView("json_rows")
    with headrace.connect(None, spark=spark, engine=engine, task_bytes=1) as db:
        db.sql("CREATE STREAM s (part STRING, n INT, d DECIMAL(9,2))")
        db.sql(f"CREATE VIEW v AS {query.format('s')}")
        db.copy("s", path)
        found = db.sql("SELECT * FROM v").rows()
        assert sorted(found) == sorted(tuple(r) for r in spark.sql(query.format("json_rows")).collect())
        path.write_text('{"part": "x"}\n' * 50 + '{"n": true}\n')
        with pytest.raises(DataError, match=r"JSON_BAD_VALUE.*row 51: column n: true is no int"):
            db.copy("s", path)
        assert db.sql("SELECT * FROM v").rows() == found
    spark.catalog.dropTempView("json_rows")


# --- Spark's reader ---------------------------------------------------------------------------------

TYPES = [
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(5,2)", "decimal(38,10)", "string",
    "date", "timestamp", "timestamp_ntz", "binary", "array<int>", "map<string, int>",
    "map<string, map<string, array<decimal(5,2)>>>", "array<map<string, struct<a: int, m: map<string, date>>>>",
]  # fmt: skip
SPELLED = [
    "1", "1.0", "-0", "-0.0", "127", "128", "200", "-129", "32768", "1e2", "1E+2", "2147483648",
    "9223372036854775807", "9223372036854775808", "12345678901234567890", "123.45", "123.450", "123.456", "1e400",
    "0.1", "1e-7", "16777217", "1.00000017881393432617187499", "NaN", "Infinity", "-Infinity", "true", "false",
    "null", '"x"', '"1"', '"1.5"', '""', '" 1"', '"NaN"', '"-Infinity"', '"2024-01-02"', '"2024-1-2"',
    '"2024-01-02T03:04:05"', '"2024-01-02 03:04:05.123456"', '"2024-01-02T03:04:05.1234567Z"',
    '"2024-01-02T03:04:05+01:00"', '"0001-01-01"', '"QUI="', '"QUI"', '{"q": [1, 2.50]}', "[1 , 2]",
    "12345678901234567890.1234567890", '"\\u00e9\\ud83d\\ude00\\n\\/\\u0000"', '"é😀"', "01", "+1", ".5", "1.", "-",
    '"\t"', "nul", "[1,]", "{}", '{"a": 1}', '{"a": null, "b": 2, "": 3}', '{"a": 1, "A": 2}', '{"a": 1, "a": 2}',
    '{"a": "1"}', '{"a": 1, "b": "x"}', '{"\\u00e9\\"\\n": 1}', '{"a": 1.0}', '{"a" : 2147483648 }', "{1: 1}", '{"a"}',
    '{"a": {}, "b": null, "c": {"x": [1.25, "2.5", null]}}', '{"a": {"x": {}}}', '{"a": {"x": [1.255]}}',
    '[{}, null, {"k": {"a": 1, "m": {"d": "2024-01-02", "e": null}, "z": 0}, "l": null}]', '[{"k": {"m": []}}]',
    '[{"k": {"m": {"d": "x"}}}]',
]  # fmt: skip
REFUSED = {
    "tinyint": {"128", "200"},  # Spark wraps them round
    "decimal(5,2)": {"123.456", "1.00000017881393432617187499", "1e-7"},  # Spark rounds
    "decimal(38,10)": {"1.00000017881393432617187499"},
    "date": {'"1"', '"2024-1-2"', '"2024-01-02T03:04:05"', '"2024-01-02 03:04:05.123456"',
             '"2024-01-02T03:04:05.1234567Z"', '"2024-01-02T03:04:05+01:00"'},
    "timestamp": {"9223372036854775807", '"2024-1-2"', '"2024-01-02T03:04:05.1234567Z"'},
    "timestamp_ntz": {'"2024-1-2"'},
    "binary": {'"\t"'},
    "map<string, int>": {'{"a": 1, "a": 2}'},  # Spark keeps a map that has a key twice
    "map<string, map<string, array<decimal(5,2)>>>": {'{"a": {"x": [1.255]}}'},
}  # fmt: skip
"""What Spark's reader takes and COPY refuses, because the value would not be kept; docs/copy.md says so."""
TAKEN = {"decimal(5,2)": {'" 1"'}, "decimal(38,10)": {'" 1"'}}
"""What Spark's reader refuses and COPY takes."""


@pytest.mark.spark
@pytest.mark.parametrize("type_name", TYPES)
def test_differential_values_are_sparks(tmp_path: Path, spark: SparkSession, type_name: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"k": {i}, "a": {v}}}\n' for i, v in enumerate(SPELLED)))
    frame = spark.read.schema(f"k INT, a {type_name}, broken STRING")
    theirs = frame.option("columnNameOfCorruptRecord", "broken").json(str(path)).toArrow().to_pylist()
    found = parse_type(type_name)
    assert found is not None
    for value, row in zip(SPELLED, theirs, strict=True):
        path.write_text(f'{{"a": {value}}}\n')
        refused = row["broken"] is not None or value in REFUSED.get(type_name, ())
        refused = refused and value not in TAKEN.get(type_name, ())
        try:
            mine = read(path, (Field("a", found),)).column("a").to_pylist()[0]
        except DataError as error:
            assert refused, (value, row, error)
            continue
        assert not refused, (value, row, mine)
        if value in TAKEN.get(type_name, ()):
            continue
        assert same(mine, row["a"]), (value, mine, row["a"])


def same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, float) and isinstance(theirs, float):
        if math.isnan(mine) or math.isnan(theirs):
            return math.isnan(mine) and math.isnan(theirs)
        return mine == theirs and math.copysign(1, mine) == math.copysign(1, theirs)
    if isinstance(mine, Decimal):
        return str(mine) == str(theirs)
    return bool(mine == theirs)


def test_slices_are_descriptors(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"n": 1}\n' * 10)
    halves = plan_slices([path], "json", None, SCHEMA, ("n",), 2)
    assert [(p.start, p.end) for s in halves for p in s.pieces] == [(0, 45), (45, 90)]  # type: ignore[union-attr]
    slices = plan_slices([path], "json", None, SCHEMA, ("n",), 3)
    assert [type(s) for s in slices] == [JsonSlice] * 3
    assert [(p.start, p.end) for s in slices for p in s.pieces] == [(0, 36), (36, 63), (63, 90)]  # type: ignore[union-attr]
