"""MAP columns: carried on every way in and out, and asked by Spark SQL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: list[tuple[int, Any]] = [(1, {"a": 1, "b": None}), (2, {}), (3, None), (4, {"ä": 7})]
PAIRS = [(k, None if m is None else list(m.items())) for k, m in ROWS]
ARROW = pa.table(
    [pa.array([k for k, _ in PAIRS], pa.int32()), pa.array([m for _, m in PAIRS], pa.map_(pa.string(), pa.int64()))],
    names=["k", "m"],
)


@pytest.mark.parametrize("kind", ["TABLE", "STREAM"])
@pytest.mark.parametrize("way", ["dicts", "pairs", "arrow", "reader", "parquet", "json", "slice"])
def test_every_way_in(tmp_path: Path, kind: str, way: str) -> None:
    with headrace.connect(tmp_path / "db.hr") as db:
        db.sql(f"CREATE {kind} t (k INT, m MAP<STRING, INT>)")
        db.sql("CREATE STREAM trigger (k INT)")
        if kind == "STREAM":
            db.sql("CREATE VIEW n AS SELECT count(m) AS n, count(*) AS total FROM t")
        if way == "parquet":
            pq.write_table(ARROW, tmp_path / "m.parquet")
            db.sql(f"COPY t FROM '{tmp_path / 'm.parquet'}'")
        elif way == "json":
            (tmp_path / "m.json").write_text("".join(json.dumps({"k": k, "m": m}) + "\n" for k, m in ROWS))
            db.sql(f"COPY t FROM '{tmp_path / 'm.json'}'")
        elif way == "slice":
            db.insert("t", ARROW.slice(0, 1))
            db.insert("t", ARROW.slice(1))
        else:
            db.insert("t", {"dicts": ROWS, "pairs": PAIRS, "arrow": ARROW, "reader": ARROW.to_reader()}[way])
        if kind == "STREAM":
            assert db.sql("SELECT * FROM n").rows() == [(3, 4)]
            return
        assert db.sql("SELECT k, m FROM t ORDER BY k").rows() == PAIRS
        assert db.sql("DESCRIBE t").rows()[1][:2] == ("m", "map<string,int>")
    with headrace.connect(tmp_path / "db.hr") as db:
        assert db.sql("SELECT m FROM t WHERE k = 1").rows() == [([("a", 1), ("b", None)],)]


@pytest.mark.parametrize(
    ("value", "condition"),
    [
        ([("a", 1), ("a", 2)], "DUPLICATED_MAP_KEY"),
        ({None: 1}, "NULL_MAP_KEY"),
        ({"a": "x"}, "INSERT_BAD_VALUE"),
        ({"a": 2**40}, "INSERT_BAD_VALUE"),
        ("text", "INSERT_BAD_VALUE"),
        ([("a",)], "INSERT_BAD_VALUE"),
    ],
)
def test_what_is_no_such_map_is_refused(value: Any, condition: str) -> None:
    with headrace.connect(None) as db:
        db.sql("CREATE TABLE t (k INT, m MAP<STRING, INT>)")
        with pytest.raises(HeadraceError) as error:
            db.insert("t", [(1, {"z": 1}), (2, value)])
        assert error.value.condition == condition
        assert db.sql("SELECT count(*) FROM t").rows() == [(0,)]


@pytest.mark.parametrize("nested", ["ARRAY<MAP<INT, INT>>", "STRUCT<m: MAP<INT, INT>>", "MAP<STRING, MAP<INT, INT>>"])
def test_keys_are_checked_wherever_a_map_is(nested: str) -> None:
    good, bad = [(1, 2)], [(1, 2), (1, 3)]
    around = {"A": lambda m: [m], "S": lambda m: {"m": m}, "M": lambda m: {"x": m}}[nested[0]]
    with headrace.connect(None) as db:
        db.sql(f"CREATE TABLE t (v {nested})")
        db.insert("t", [(around(good),)])
        with pytest.raises(HeadraceError, match="DUPLICATED_MAP_KEY"):
            db.insert("t", [(around(good),), (around(bad),)])


def test_a_file_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    twice = pa.MapArray.from_arrays(pa.array([0, 2], pa.int32()), pa.array(["a", "a"]), pa.array([1, 2], pa.int32()))
    pq.write_table(pa.table({"m": twice}), tmp_path / "m.parquet")
    with headrace.connect(None) as db:
        db.sql("CREATE TABLE t (m MAP<STRING, INT>)")
        with pytest.raises(HeadraceError, match="DUPLICATED_MAP_KEY"):
            db.sql(f"COPY t FROM '{tmp_path / 'm.parquet'}'")


@pytest.mark.parametrize(
    ("statement", "condition"),
    [
        ("CREATE TABLE x (m MAP<DOUBLE, INT>)", "NOT_YET_SUPPORTED"),
        ("CREATE TABLE x (m MAP<ARRAY<INT>, INT>)", "NOT_YET_SUPPORTED"),
        ("CREATE TABLE x (m MAP<STRING, INT> PRIMARY KEY)", "NOT_YET_SUPPORTED"),
        ("CREATE VIEW x AS SELECT m, count(*) FROM s GROUP BY m", "STATE_TYPE_NOT_SUPPORTED"),
        ("COPY d FROM '{}/x.json'", "INVALID_JSON_SCHEMA_MAP_TYPE"),
        ("CREATE TABLE x (m ARRAY<MAP<INT, INT>>) USING json LOCATION '{}/x.json'", "INVALID_JSON_SCHEMA_MAP_TYPE"),
        ("COPY s FROM '{}/x.csv'", "CSV_TYPE_NOT_SUPPORTED"),
    ],
)
def test_where_maps_cannot_be(tmp_path: Path, statement: str, condition: str) -> None:
    (tmp_path / "x.json").write_text('{"m": {"a": 1}}\n')
    (tmp_path / "x.csv").write_text("1\n")
    with headrace.connect(None) as db:
        db.sql("CREATE STREAM s (m MAP<STRING, INT>)")
        db.sql("CREATE STREAM d (m MAP<DATE, INT>)")
        with pytest.raises(HeadraceError) as error:
            db.sql(statement.format(tmp_path))
        assert error.value.condition == condition


@pytest.mark.parametrize("kind", ["TABLE", "STREAM"])
def test_keys_that_only_spaces_told_apart_are_one(tmp_path: Path, kind: str) -> None:
    """CHAR fills keys up, VARCHAR cuts spaces off: they are compared as they are held."""
    (tmp_path / "m.json").write_text('{"m": {"a": 1}}\n{"m": {"a": 1, "a ": 2}}\n')
    for number, type_ in enumerate(("CHAR(3)", "VARCHAR(1)")):
        with headrace.connect(None) as db:
            db.sql(f"CREATE {kind} t (m MAP<{type_}, INT>)")
            with pytest.raises(HeadraceError, match=r"DUPLICATED_MAP_KEY.*row 2, column m"):
                db.insert("t", [({"a": 1},), ({"a": 1, "a ": 2},)])
            db.sql("CREATE VIEW v AS SELECT count(m) AS n FROM t")
            with pytest.raises(HeadraceError, match=r"DUPLICATED_MAP_KEY.*m.json, row 2: column m"):
                db.sql(f"COPY t FROM '{tmp_path / 'm.json'}'")
            assert db.sql("SELECT * FROM v").rows() == [(0,)], number


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_maps_in_json_by_every_engine(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    (tmp_path / "m.json").write_text('{"k": 1, "m": {"a": 1, "b": null}}\n{"k": 2, "m": {}}\n{"k": 3}\n')
    with headrace.connect(None, spark=spark, engine=engine, task_bytes=1) as db:
        db.sql("CREATE STREAM s (k INT, m MAP<STRING, INT>)")
        db.sql("CREATE VIEW v AS SELECT k, max(m['a']) AS a, max(size(m)) AS n FROM s GROUP BY k")
        db.sql("CREATE VIEW w AS SELECT count(m) AS n, count(*) AS total FROM s")
        db.sql(f"COPY s FROM '{tmp_path / 'm.json'}'")
        assert db.sql("SELECT * FROM w").rows() == [(2, 3)]  # by native code in Spark's tasks, unless all is Spark's
        expected = [(1, 1, 2), (2, None, 0), (3, None, None)]
        assert sorted(db.sql("SELECT * FROM v").rows()) == expected
        db.sql(f"CREATE TABLE f (k INT, m MAP<STRING, INT>) USING json LOCATION '{tmp_path / 'm.json'}'")
        assert sorted(db.sql("SELECT k, m['a'], size(m) FROM f").rows()) == expected
        assert db.sql("SELECT m FROM f WHERE k = 1").rows() == [([("a", 1), ("b", None)],)]


@pytest.mark.spark
def test_maps_are_asked_by_spark_sql(spark: SparkSession, tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db.hr", spark=spark) as db:
        db.sql("CREATE TABLE t (k INT, m MAP<STRING, INT>, v MAP<STRING, VARCHAR(2)>)")
        db.sql("CREATE STREAM s (k INT, m MAP<STRING, INT>)")
        db.sql("CREATE VIEW seen AS SELECT m['a'] AS a, count(*) AS n, max(size(map_keys(m))) AS c FROM s GROUP BY 1")
        db.sql("INSERT INTO t VALUES (1, map('a', 1, 'b', NULL), map('x', 'ab   ')), (2, NULL, NULL)")
        with pytest.raises(HeadraceError):
            db.sql("INSERT INTO t VALUES (3, map(), map('x', 'abc'))")
        asked = "SELECT m['a'], m['z'], map_keys(m), element_at(m, 'b'), v['x'], m.a FROM t ORDER BY k"
        assert db.sql(asked).rows() == [(1, None, ["a", "b"], None, "ab", 1), (None,) * 6]
        db.insert("s", ROWS)
        db.insert("s", spark.createDataFrame([(1, {"a": 1}), (5, {"a": 1, "q": 2})], "k INT, m MAP<STRING, INT>"))
        db.insert("s", spark.createDataFrame([(1, {"a": 9})], "k INT, m MAP<STRING, SMALLINT>"))
        assert sorted(db.sql("SELECT a, n, c FROM seen").rows(), key=str) == [(1, 3, 2), (9, 1, 1), (None, 3, 1)]
        db.sql("CREATE TABLE copied AS SELECT k, m, map_entries(m) AS e FROM t")
        assert db.sql("DESCRIBE copied").rows()[1][1] == "map<string,int>"
        assert db.sql("SELECT count(DISTINCT m) FROM t").rows() == [(1,)]
        for wrong in ("SELECT m = m FROM t", "SELECT max(m) FROM t", "SELECT k FROM t ORDER BY m"):
            with pytest.raises(HeadraceError) as error:
                db.sql(wrong)
            assert error.value.condition.startswith("DATATYPE_MISMATCH")
        for wrong in ("SELECT DISTINCT m FROM t", "SELECT m FROM t UNION SELECT m FROM t"):
            with pytest.raises(HeadraceError, match="UNSUPPORTED_FEATURE"):
                db.sql(wrong)
        assert len(db.sql("SELECT m FROM t UNION ALL SELECT m FROM t").rows()) == 4
        assert db.sql("SELECT v, count(*) FROM t WHERE k = 1 GROUP BY v").rows() == [([("x", "ab")], 1)]
        with pytest.raises(HeadraceError, match="DUPLICATED_MAP_KEY"):
            db.sql("SELECT map('a', k, 'a', k) FROM t")
    with headrace.connect(tmp_path / "db.hr", spark=spark) as db:
        db.insert("s", [(7, {"a": 9})])
        assert (9, 2) in db.sql("SELECT a, n FROM seen").rows()
