"""Arrays and structs of any depth go in by every door and come out as they were."""

from __future__ import annotations

import base64
import datetime as dt
import json
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import HeadraceError
from headrace.table import rows as tables
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
    VOID,
    Type,
    TypePart,
    array,
    decimal,
    from_arrow,
    map_of,
    parse_type,
    struct,
)
from profiles import examples

LEAVES: dict[Type, st.SearchStrategy[Any]] = {
    BOOLEAN: st.booleans(),
    TINYINT: st.integers(-128, 127),
    INT: st.integers(-(2**31), 2**31 - 1),
    BIGINT: st.integers(-(2**63), 2**63 - 1),
    FLOAT: st.floats(width=32, allow_nan=False),
    DOUBLE: st.floats(allow_nan=False),
    decimal(9, 2): st.decimals(-9999999, 9999999, places=2),
    decimal(38, 3): st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}e-3")),
    STRING: st.text(max_size=5),
    BINARY: st.binary(max_size=4),
    DATE: st.dates(),
    TIMESTAMP: st.datetimes(dt.datetime(1800, 1, 1), timezones=st.just(dt.UTC)),
    TIMESTAMP_NTZ: st.datetimes(dt.datetime(1800, 1, 1)),
}
# DuckDB's decimal(38,3) has 38 digits, as Spark's and Arrow's do; the names need quoting, or look like other things.
NAMES = ["a", "B", "key", "a b", "it's", 'say "x"', "ü", "order", "x.y", "1", "tick`"]
leaf_types = st.sampled_from(list(LEAVES))
nested_types = st.recursive(
    leaf_types,
    lambda inner: st.one_of(
        inner.map(array),
        inner.map(lambda value: map_of(STRING, value)),
        st.lists(
            st.tuples(st.sampled_from(NAMES), inner), min_size=1, max_size=3, unique_by=lambda p: p[0].lower()
        ).map(lambda parts: struct(*(TypePart(name, type_) for name, type_ in parts))),
    ),
    max_leaves=5,
)


def values_of(type_: Type) -> st.SearchStrategy[Any]:
    """Values of a type, NULL at every level."""
    if type_.name == "array":
        found: st.SearchStrategy[Any] = st.lists(values_of(type_.element), max_size=3)
    elif type_.name == "struct":
        found = st.fixed_dictionaries({p.name: values_of(p.type) for p in type_.parts})
    elif type_.name == "map":
        entries = st.dictionaries(st.text(max_size=3), values_of(type_.parts[1].type), max_size=3)
        found = entries.map(lambda d: list(d.items()))
    else:
        found = LEAVES[type_]
    return st.one_of(st.none(), found, found, found)


@st.composite
def columns(draw: st.DrawFn) -> tuple[Type, list[Any]]:
    type_ = draw(nested_types)
    return type_, draw(st.lists(values_of(type_), max_size=6))


def as_json(value: Any, type_: Type) -> str:
    """A value as COPY's dialect of JSON writes it."""
    if value is None:
        return "null"
    if type_.name == "array":
        return f"[{', '.join(as_json(v, type_.element) for v in value)}]"
    if type_.name == "struct":
        return f"{{{', '.join(f'{json.dumps(p.name)}: {as_json(value[p.name], p.type)}' for p in type_.parts)}}}"
    if type_.name == "map":
        return f"{{{', '.join(f'{json.dumps(k)}: {as_json(v, type_.parts[1].type)}' for k, v in value)}}}"
    if type_.is_decimal:
        return f"{value:f}"
    if type_ == BINARY:
        return json.dumps(base64.b64encode(value).decode())
    if isinstance(value, dt.date):
        return json.dumps(value.isoformat())
    return json.dumps(value)


def as_tuples(value: Any, type_: Type) -> Any:
    if value is None:
        return None
    if type_.name == "array":
        return tuple(as_tuples(v, type_.element) for v in value)
    if type_.name == "struct":
        return tuple(as_tuples(value[p.name], p.type) for p in type_.parts)
    if type_.name == "map":
        return [(k, as_tuples(v, type_.parts[1].type)) for k, v in value]
    return value


def rows_in_order(table: pa.Table) -> list[Any]:
    return [row["v"] for row in sorted(table.to_pylist(), key=lambda row: row["i"])]


@settings(max_examples=examples(40))
@given(nested_types, st.booleans())
def test_every_type_is_read_back_from_its_spellings(type_: Type, upper: bool) -> None:
    assert parse_type(type_.sql) == type_
    assert parse_type(type_.declared) == type_
    assert from_arrow(type_.arrow) == type_
    assert hash(parse_type(type_.sql)) == hash(type_)


DOORS = ("dicts", "tuples", "columns", "arrow", "json", "parquet")


@settings(max_examples=examples(12))
@given(columns(), st.booleans())
def test_what_goes_into_a_table_comes_out(given: tuple[Type, list[Any]], long: bool) -> None:
    type_, values = given
    expected = pa.table({"i": pa.array(range(len(values)), pa.int32()), "v": pa.array(values, type_.arrow)})
    before = tables.TAIL_ROWS
    tables.TAIL_ROWS = 2 if long else before  # so that rows are in segments, too
    try:
        with tempfile.TemporaryDirectory() as folder:
            with headrace.connect(f"{folder}/db", engine="native") as db:
                for door in DOORS:
                    db.sql(f"CREATE TABLE {door} (i INT, v {type_.sql})")
                    put(db, door, type_, values, expected, Path(folder))
            with headrace.connect(f"{folder}/db", engine="native") as db:
                for door in DOORS:
                    found = db.sql(f"SELECT * FROM {door}").arrow()
                    assert found.schema.equals(expected.schema)
                    found.validate(full=True)
                    assert repr(rows_in_order(found)) == repr(rows_in_order(expected)), door
                    assert db.catalog.find(door).columns[1].type == type_
    finally:
        tables.TAIL_ROWS = before


def put(db: Any, door: str, type_: Type, values: list[Any], whole: pa.Table, folder: Path) -> None:
    rows = list(enumerate(values))
    if door == "dicts":
        db.insert(door, [{"I": i, "v": v} for i, v in rows])
    elif door == "tuples":
        db.insert(door, [(i, as_tuples(v, type_)) for i, v in rows])
    elif door == "columns":
        db.insert(door, {"i": [i for i, _ in rows], "v": values})
    elif door == "arrow":
        db.insert(door, whole)
    elif door == "json":
        lines = "".join(f'{{"i": {i}, "v": {as_json(v, type_)}}}\n' for i, v in rows)
        (folder / "rows.json").write_text(lines, encoding="utf-8")
        db.copy(door, str(folder / "rows.json"))
    else:
        pq.write_table(whole, folder / "rows.parquet")
        db.copy(door, str(folder / "rows.parquet"))


ITEMS = "id INT, items ARRAY<STRUCT<sku: STRING, qty: INT>>"


@pytest.fixture
def db(tmp_path: Path) -> Any:
    with headrace.connect(tmp_path / "db", engine="native") as found:
        found.sql(f"CREATE TABLE t ({ITEMS})")
        yield found


def condition_of(run: Any) -> tuple[str, str]:
    with pytest.raises(HeadraceError) as failure:
        run()
    return failure.value.condition, str(failure.value)


def test_other_layouts_of_arrow_are_taken(db: Any) -> None:
    odd = pa.large_list(pa.struct([("QTY", pa.int64()), ("sku", pa.dictionary(pa.int8(), pa.large_string()))]))
    values = [[{"QTY": 2, "sku": "a"}, None], None, []]
    table = pa.table({"items": pa.array(values, odd), "id": pa.array([1, 2, 3], pa.int64())})
    db.insert("t", table.slice(1))
    db.insert("t", table.slice(0, 1))
    found = sorted(db.sql("SELECT * FROM t").rows())
    assert found == [(1, [{"sku": "a", "qty": 2}, None]), (2, None), (3, [])]
    fixed = pa.array([[1, 2], None, [3, None]], pa.list_(pa.int16(), 2))
    db.sql("CREATE TABLE f (v ARRAY<BIGINT>)")
    db.insert("f", pa.table({"v": fixed}))
    assert db.sql("SELECT * FROM f").rows() == [([1, 2],), (None,), ([3, None],)]


def test_pandas_rows_are_taken(db: Any) -> None:
    pandas = pytest.importorskip("pandas")
    db.insert("t", pandas.DataFrame({"id": [1, 2], "items": [[{"sku": "a"}], None]}))
    assert sorted(db.sql("SELECT * FROM t").rows()) == [(1, [{"sku": "a", "qty": None}]), (2, None)]
    assert list(db.sql("SELECT * FROM t WHERE id = 1").pandas()["items"][0]) == [{"sku": "a", "qty": None}]


def test_fields_left_out_of_dicts_are_null_and_unknown_ones_are_named(db: Any) -> None:
    db.insert("t", [{"id": 1, "items": [{"sku": "a"}, {"qty": 3}]}])
    assert db.sql("SELECT items FROM t").rows() == [([{"sku": "a", "qty": None}, {"sku": None, "qty": 3}],)]
    unknown = condition_of(lambda: db.insert("t", [{"id": 1, "items": []}, {"id": 2, "items": [{"skew": "a"}]}]))
    assert unknown[0] == "INSERT_BAD_VALUE" and "row 2" in unknown[1] and "skew" in unknown[1]


BAD = [
    ([{"id": 1, "items": None}, {"id": 2, "items": [{"sku": 5}]}], "INSERT_TYPE_MISMATCH", "items.sku is string"),
    ([(1, []), (2, [("a", 1), ("b", 2**31)])], "INSERT_BAD_VALUE", "row 2, column items.qty: 2147483648"),
    ([(1, "text")], "INSERT_BAD_VALUE", "'text' is no array"),
    ([(1, [("a",)])], "INSERT_BAD_VALUE", "is no struct"),
    ([(1, {"sku": "a", "qty": 1})], "INSERT_BAD_VALUE", "is no array"),
    (pa.table({"id": [1], "items": [[1]]}), "INSERT_TYPE_MISMATCH", "items is struct"),
    (pa.table({"id": [1], "items": [{"sku": "a"}]}), "INSERT_TYPE_MISMATCH", "items is array"),
    (pa.table({"id": [1], "items": [[{"sku": "a"}]]}), "MISSING_FIELD", "qty"),
    (pa.table({"id": [1], "items": [[{"sku": "a", "qty": 1, "n": 1}]]}), "UNKNOWN_FIELD", "n"),
    (pa.table({"id": [1, 2], "items": [[], [{"sku": "a", "qty": 2**40}]]}), "INSERT_BAD_VALUE", "row 2, column items"),
    (
        pa.table({"id": [1], "items": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))}),
        "INSERT_TYPE_MISMATCH",
        "map",
    ),
]


@pytest.mark.parametrize(("data", "condition", "text"), BAD)
def test_what_does_not_fit_is_named(db: Any, data: Any, condition: str, text: str) -> None:
    found = condition_of(lambda: db.insert("t", data))
    assert found[0] == condition and text in found[1]
    assert db.sql("SELECT * FROM t").rows() == []


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ('{"id": 1, "items": {"sku": "a"}}', 'row 2: column items: {"sku": "a"} is no array'),
        ('{"id": 1, "items": [{"sku": "a"}, 5]}', "is no array<struct"),
        ('{"id": 1, "items": [{"qty": 1.5}]}', "is no array<struct"),
        ('{"id": 1, "items": [{"sku": "\\ud800"}]}', "is no array<struct"),
        ('{"id": 1, "items": "[]"}', "is no array<struct"),
    ],
)
def test_a_bad_line_of_json_is_named(db: Any, tmp_path: Path, written: str, text: str) -> None:
    (tmp_path / "a.json").write_text(f'{{"items": [{{"more": [1], "SKU": "x"}}, null]}}\n{written}\n')
    found = condition_of(lambda: db.copy("t", str(tmp_path / "a.json")))
    assert found[0] == "JSON_BAD_VALUE" and text in found[1]


def test_parquet_fields_go_by_name_and_what_does_not_fit_is_named(db: Any, tmp_path: Path) -> None:
    def write(values: list[Any], qty: pa.DataType) -> str:
        fields = pa.struct([("more", pa.int8()), ("Qty", qty), ("sku", pa.string())])
        table = pa.table({"id": pa.array([1] * len(values), pa.int32()), "items": pa.array(values, pa.list_(fields))})
        pq.write_table(table, tmp_path / "a.parquet")
        return str(tmp_path / "a.parquet")

    path = write([[{"more": 1, "Qty": 7, "sku": "a"}, None], None, []], pa.int64())
    db.copy("t", path)
    found = db.sql("SELECT items FROM t").rows()
    assert sorted(map(repr, found)) == sorted(map(repr, [([{"sku": "a", "qty": 7}, None],), (None,), ([],)]))
    path = write([[], [{"more": 1, "Qty": 2**40, "sku": "a"}]], pa.int64())
    bad = condition_of(lambda: db.copy("t", path))
    assert bad[0] == "PARQUET_BAD_VALUE" and "row 2: column items" in bad[1]
    path = write([], pa.float64())
    assert condition_of(lambda: db.copy("t", path))[0] == "PARQUET_TYPE_MISMATCH"
    assert len(db.sql("SELECT * FROM t")) == 3


def test_not_null_fields_are_kept_to(db: Any, tmp_path: Path) -> None:
    db.sql("CREATE TABLE n (s STRUCT<a INT, `b c`: ARRAY<STRUCT<d: STRING NOT NULL>>>)")
    good = {"a": None, "b c": [{"d": "x"}, None]}
    bad = {"a": 1, "b c": [{"d": None}]}
    db.insert("n", [{"s": good}, {"s": None}])
    found = condition_of(lambda: db.insert("n", [{"s": good}, {"s": bad}]))
    assert found[0] == "NULL_IN_NOT_NULL" and "row 2" in found[1] and "s.b c.d" in found[1]
    path = tmp_path / "rows.json"
    path.write_text(f'{{"s": {json.dumps(good)}}}\n{{"s": {json.dumps(bad)}}}\n')
    assert "row 2" in condition_of(lambda: db.copy("n", str(path)))[1]
    pq.write_table(pa.table({"s": [good, bad]}), tmp_path / "rows.parquet")
    assert "row 2" in condition_of(lambda: db.copy("n", str(tmp_path / "rows.parquet")))[1]
    db.close()
    with headrace.connect(tmp_path / "db") as again:
        assert condition_of(lambda: again.insert("n", [{"s": bad}]))[0] == "NULL_IN_NOT_NULL"
        assert len(again.sql("SELECT * FROM n")) == 2
        assert again.sql("DESCRIBE n").rows()[0][1] == "struct<a:int,`b c`:array<struct<d:string NOT NULL>>>"


@pytest.mark.parametrize("column", ["MAP<FLOAT, INT>", "ARRAY<MAP<ARRAY<INT>, INT>>", "STRUCT<m: MAP<DOUBLE, INT>>"])
def test_other_maps_are_refused_with_what_to_use(db: Any, column: str) -> None:
    found = condition_of(lambda: db.sql(f"CREATE TABLE m (v {column})"))
    assert found[0] == "NOT_YET_SUPPORTED" and "ARRAY<STRUCT<key" in found[1]


@pytest.mark.parametrize(
    "column", ["STRUCT<>", "STRUCT<a: INT, A: INT>", "ARRAY<INTERVAL DAY>", "ARRAY<VARIANT>", "ARRAY<VOID>"]
)
def test_other_types_are_refused(db: Any, column: str) -> None:
    assert condition_of(lambda: db.sql(f"CREATE TABLE m (v {column})"))[0] in (
        "NOT_YET_SUPPORTED",
        "PARSE_SYNTAX_ERROR",
    )


def test_a_nested_column_is_no_key_and_no_field_of_csv(db: Any, tmp_path: Path) -> None:
    assert condition_of(lambda: db.sql("CREATE TABLE m (v ARRAY<INT> PRIMARY KEY)"))[0] == "NOT_YET_SUPPORTED"
    (tmp_path / "a.csv").write_text("1,[]\n")
    for run in (
        lambda: db.copy("t", str(tmp_path / "a.csv")),
        lambda: db.sql(f"CREATE TABLE m ({ITEMS}) USING csv LOCATION '{tmp_path}/a.csv'"),
    ):
        found = condition_of(run)
        assert found[0] == "CSV_TYPE_NOT_SUPPORTED" and "JSON lines or Parquet" in found[1]


def test_tables_over_files_hold_nested_columns(db: Any, tmp_path: Path) -> None:
    values = [[{"sku": "a", "qty": 1}], None]
    type_ = parse_type("array<struct<sku:string,qty:int>>")
    assert type_ is not None
    pq.write_table(pa.table({"items": pa.array(values, type_.arrow)}), tmp_path / "a.parquet")
    (tmp_path / "a.json").write_text('{"items": [{"sku": "a", "qty": 1}]}\n{"items": null}\n')
    db.sql(f"CREATE TABLE p USING parquet LOCATION '{tmp_path}/a.parquet'")
    db.sql(f"CREATE TABLE j (items {type_.sql}) USING json LOCATION '{tmp_path}/a.json'")
    for name in ("p", "j"):
        assert db.catalog.find(name).columns[0].type == type_
        assert db.sql(f"SELECT * FROM {name}").rows() == [(v,) for v in values]


def test_a_table_made_of_a_query_keeps_nested_types(db: Any) -> None:
    db.insert("t", [(1, [("a", 2)]), (2, None)])
    db.sql("CREATE TABLE c AS SELECT items, id FROM t WHERE items IS NOT NULL")
    assert db.sql("SELECT * FROM c").rows() == [([{"sku": "a", "qty": 2}], 1)]
    assert db.catalog.find("c").columns[0].type == db.catalog.find("t").columns[1].type


def test_types_hold_void_nowhere_inside() -> None:
    assert not array(VOID).is_held and array(INT).is_held and VOID.is_held
    assert array(INT).is_groupable and not array(DOUBLE).is_groupable and DOUBLE.is_groupable
