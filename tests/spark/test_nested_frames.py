"""Arrays and structs between Headrace and Spark: frames in and out, constructors in SQL, the fallback in pipelines."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import HeadraceError

COLUMNS = "id INT, p STRUCT<a: INT, `b c`: ARRAY<STRUCT<d: DECIMAL(5,2), t: TIMESTAMP>>>, n ARRAY<ARRAY<TIMESTAMP_NTZ>>"
AT = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
LOCAL = dt.datetime(2024, 1, 1, 12)
ROWS: list[tuple[Any, ...]] = [
    (1, {"a": 1, "b c": [{"d": Decimal("1.50"), "t": AT}, None]}, [[LOCAL, None], [], None]),
    (2, {"a": None, "b c": []}, []),
    (3, {"a": 2, "b c": None}, None),
    (4, None, [None]),
]


@pytest.fixture
def db(spark: Any, tmp_path: Path) -> Any:
    with headrace.connect(tmp_path / "db", spark=spark) as found:
        yield found


def same(found: Any, expected: Any) -> bool:
    """Equal as multisets; values need not be hashable, nor time zones print alike."""
    return len(found) == len(expected) and all(found.count(row) == expected.count(row) for row in found)


@pytest.mark.spark
def test_frames_go_in_and_come_out(db: Any, spark: Any) -> None:
    db.sql(f"CREATE TABLE t ({COLUMNS})")
    db.sql("CREATE STREAM s (id BIGINT, p STRUCT<`b c`: ARRAY<STRUCT<t: TIMESTAMP, d: DECIMAL(7,2)>>, a: BIGINT>)")
    db.sql("CREATE VIEW v AS SELECT p, p.a AS a, count(*) AS c FROM s GROUP BY p")
    frame = spark.createDataFrame(ROWS, COLUMNS)
    db.insert("t", frame)
    assert same(db.sql("SELECT * FROM t").rows(), ROWS)
    out = db.table("t")
    assert out.schema.simpleString() == frame.schema.simpleString()
    assert same(out.collect(), frame.collect())
    db.insert("s", out.select("p", "id"))  # the fields by name, in another order and narrower
    found = db.sql("SELECT a, c, p.`b c` FROM v").rows()
    flipped = [{"t": AT, "d": Decimal("1.50")}, None]
    assert same(found, [(1, 1, flipped), (None, 1, []), (2, 1, None), (None, 1, None)])


@pytest.mark.spark
def test_frames_that_do_not_fit_are_named(db: Any, spark: Any) -> None:
    db.sql("CREATE STREAM s (p STRUCT<a: INT, b: ARRAY<STRUCT<c: STRING NOT NULL>>>)")
    db.sql("CREATE VIEW v AS SELECT p.a, count(*) AS n FROM s GROUP BY p.a")
    for given in (
        "struct<a:int>",
        "struct<a:int,b:array<struct<c:string>>,d:int>",
        "struct<a:string,b:void>",
        "map<int,int>",
    ):
        with pytest.raises(HeadraceError) as failure:
            db.insert("s", spark.sql(f"SELECT CAST(NULL AS {given}) AS p"))
        assert failure.value.condition == "INSERT_TYPE_MISMATCH" and "column p" in str(failure.value)
    good = "named_struct('a', 1, 'b', array(named_struct('c', 'x'), NULL))"
    db.insert("s", spark.sql(f"SELECT {good} AS p"))
    with pytest.raises(HeadraceError) as failure:
        db.insert(
            "s",
            spark.sql(f"SELECT {good} AS p UNION ALL SELECT named_struct('a', 1, 'b', array(named_struct('c', NULL)))"),
        )
    assert failure.value.condition == "NULL_IN_NOT_NULL"
    assert db.sql("SELECT * FROM v").rows() == [(1, 1)]


@pytest.mark.spark
def test_sql_makes_nested_values(db: Any, tmp_path: Path) -> None:
    db.sql("CREATE TABLE t (id INT, p STRUCT<a: BIGINT, b: ARRAY<STRING>>)")
    db.sql(
        "INSERT INTO t VALUES (1, named_struct('x', 1, 'y', array('u', NULL))), (2, NULL), "
        "(3, named_struct('x', NULL, 'y', array()))"
    )
    db.sql("INSERT INTO t (p) SELECT p FROM t WHERE id = 1")
    one = {"a": 1, "b": ["u", None]}
    assert same(db.sql("SELECT * FROM t").rows(), [(1, one), (2, None), (3, {"a": None, "b": []}), (None, one)])
    with pytest.raises(HeadraceError) as failure:
        db.sql("INSERT INTO t VALUES (1, named_struct('a', 'text', 'b', NULL))")
    assert failure.value.condition == "INCOMPATIBLE_DATA_FOR_TABLE"
    found = db.sql(
        "SELECT p.*, CAST(p.b AS STRING), p.b[0], size(p.b) FROM t "
        "WHERE p = named_struct('a', 1L, 'b', array('u', NULL))"
    )
    assert found.columns == ["a", "b", "CAST(p.b AS STRING)", "p.b[0]", "size(p.b)"]
    assert found.rows() == [(1, ["u", None], "[u, null]", "u", 2)] * 2
    db.table("t").createOrReplaceTempView("names_of_t")
    items = (
        "p.A, t.p.b, t.p.b[0], size(t.p.b), CAST(p.a AS INT), -p.a, p.b IS NULL, CAST(p.b AS ARRAY<INT>), p.a + t.id"
    )
    theirs = db.spark.sql(f"SELECT {items} FROM names_of_t t").columns
    assert db.sql(f"SELECT {items} FROM t WHERE id = 2").columns == theirs
    db.sql("CREATE TABLE c AS SELECT p.b AS b, collect_list(struct(id)) AS l FROM t WHERE id < 3 GROUP BY p.b")
    assert [f.type.sql for f in db.catalog.find("c").columns] == ["array<string>", "array<struct<id:int>>"]
    for query in ("map(1.0D, 1) AS m", "array() AS e"):
        with pytest.raises(HeadraceError) as failure:
            db.sql(f"CREATE TABLE m AS SELECT {query}")
        assert failure.value.condition == "NOT_YET_SUPPORTED"


@pytest.mark.spark
def test_files_go_through_pipelines_of_spark(db: Any, tmp_path: Path) -> None:
    """A pipeline Spark runs reads JSON and Parquet as the native one does: struct fields by name."""
    db.sql("CREATE STREAM s (id INT, items ARRAY<STRUCT<sku: STRING, qty: BIGINT>>)")
    db.sql(
        "CREATE VIEW v AS SELECT size(items) AS n, max(get(items, 0).qty) AS q, count(*) AS c FROM s "
        "GROUP BY size(items)"
    )
    items = [[{"more": 1, "Qty": 7, "sku": "a"}, None], None, []]
    type_ = pa.list_(pa.struct([("more", pa.int32()), ("Qty", pa.int32()), ("sku", pa.string())]))
    pq.write_table(
        pa.table({"items": pa.array(items, type_), "id": pa.array([1, 2, 3], pa.int32())}), tmp_path / "a.parquet"
    )
    (tmp_path / "a.json").write_text('{"items": [{"qty": 9, "sku": "b"}, null]}\n{"id": 1}\n')
    db.copy("s", str(tmp_path / "a.parquet"))
    db.copy("s", str(tmp_path / "a.json"))
    assert same(db.sql("SELECT * FROM v").rows(), [(2, 9, 2), (None, None, 2), (0, None, 1)])
