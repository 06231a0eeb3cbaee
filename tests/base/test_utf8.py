"""Text that is not UTF-8 is refused by name at every door, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace import Database, HeadraceError
from headrace.base.utf8 import INVALID, first_bad_text


def text_of(*values: bytes | None, type: pa.DataType | None = None) -> pa.Array:
    """Bytes that claim to be text."""
    bytes_ = pa.array(values, pa.binary())
    made = pa.Array.from_buffers(pa.string(), len(bytes_), bytes_.buffers())
    return made.cast(type) if type is not None else made


GOOD, BAD = b"caf\xc3\xa9", b"\xff\xfe\x80"
SURROGATE, LONG, HALF = b"\xed\xa0\x80", b"\xc0\x80", b"\xc3"


@pytest.fixture
def db() -> Any:
    with headrace.connect(compact_rows=1) as made:
        made.sql("CREATE STREAM s (t STRING, n INT, a ARRAY<STRUCT<x: STRING>>)")
        made.sql("CREATE TABLE kept (t STRING)")
        made.sql("CREATE VIEW v AS SELECT t, count(*) AS n FROM s GROUP BY t")
        yield made


def refused(db: Database, run: Callable[[], object], *parts: str) -> None:
    before = [db.sql(f"SELECT * FROM {name}").rows() for name in ("v", "kept")]
    with pytest.raises(HeadraceError) as found:
        run()
    assert found.value.condition == INVALID
    assert found.value.hint
    for part in parts:
        assert part in found.value.message
    assert [db.sql(f"SELECT * FROM {name}").rows() for name in ("v", "kept")] == before


def rows(texts: pa.Array, inner: pa.Array | None = None) -> pa.Table:
    n = len(texts)
    lists = pa.nulls(n, pa.list_(pa.struct([("x", pa.string())])))
    if inner is not None:
        structs = pa.StructArray.from_arrays([inner], ["x"])
        lists = pa.ListArray.from_arrays(pa.array(range(n + 1), pa.int32()), structs)
    return pa.table({"t": texts, "n": pa.array(range(n), pa.int32()), "a": lists})


@pytest.mark.parametrize("bad", [BAD, SURROGATE, LONG, HALF])
@pytest.mark.parametrize("type", [pa.string(), pa.large_string(), pa.string_view()])
def test_arrow_text(db: Database, bad: bytes, type: pa.DataType) -> None:
    given = rows(text_of(GOOD, None, bad, b"\x00", type=type))
    refused(db, lambda: db.insert("s", given), "row 3, column t")
    refused(db, lambda: db.insert("s", given.to_batches()[0]), "row 3, column t")
    refused(db, lambda: db.insert("s", given.to_reader(max_chunksize=2)), "row 3, column t")
    refused(db, lambda: db.insert("kept", given.select(["t"])), "row 3, column t")
    refused(db, lambda: db.insert("s", given.slice(2, 1)), "row 1, column t")
    assert db.insert("s", given.slice(0, 2)) == 2
    assert db.insert("s", given.slice(3)) == 1


def test_arrow_text_of_dictionaries_and_below(db: Database) -> None:
    refused(db, lambda: db.insert("s", rows(text_of(GOOD, BAD).dictionary_encode())), "row 2, column t")
    nested = rows(text_of(GOOD, GOOD), text_of(GOOD, BAD))
    refused(db, lambda: db.insert("s", nested), "row 2, column a")
    assert db.insert("s", nested.slice(0, 1)) == 1, "what is not in the rows is none of their business"
    array = nested.column("a").chunk(0)
    assert first_bad_text(array) == 1
    assert first_bad_text(array.slice(0, 1)) is None


def test_parquet_text(db: Database, tmp_path: Path) -> None:
    file = tmp_path / "bad.parquet"
    pq.write_table(rows(text_of(*[GOOD] * 5000, BAD)), file, row_group_size=1000)
    named = (str(file), "row 5001", "column t")
    refused(db, lambda: db.copy("s", str(file)), *named)
    refused(db, lambda: db.sql(f"COPY kept (t) FROM '{file}'"), *named)
    db.sql(f"CREATE TABLE f USING parquet LOCATION '{file}'")
    refused(db, lambda: db.sql("SELECT max(t) FROM f").rows(), *named)
    refused(db, lambda: db.sql("SELECT * FROM f TABLESAMPLE RESERVOIR (6000 ROWS)").rows(), *named)
    inside = tmp_path / "inside.parquet"
    pq.write_table(rows(text_of(GOOD, GOOD), text_of(GOOD, BAD)), inside)
    db.sql("CREATE SAMPLE drawn OF s SIZE 5")  # which reads all columns
    refused(db, lambda: db.copy("s", str(inside)), str(inside), "row 2", "column a")


def test_one_bad_batch_does_not_spoil_the_good_ones(db: Database) -> None:
    """What was found: 27 of 30 good inserts raised after one bad batch, and no read worked again."""
    refused(db, lambda: db.insert("s", rows(text_of(BAD))))
    for _ in range(30):
        db.insert("s", rows(text_of(GOOD)))
    assert db.sql("SELECT * FROM v").rows() == [("café", 30)]


def test_writers_of_other_processes_look_too(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db") as db:
        db.sql("CREATE STREAM s (t STRING) WITH (capacity = 1000)")
        with headrace.ring(tmp_path / "db", "s") as writer, pytest.raises(HeadraceError, match=INVALID):
            writer.insert(pa.table({"t": text_of(BAD)}))


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_dataframes_and_expressions(spark: Any, engine: str, tmp_path: Path) -> None:
    with headrace.connect(spark=spark, engine=engine) as db:
        db.sql("CREATE STREAM s (t STRING, b BINARY, a ARRAY<STRUCT<x: STRING>>)")
        db.sql("CREATE TABLE kept (t STRING)")
        db.sql("CREATE VIEW v AS SELECT t, a[0].x AS x, count(*) AS n FROM s GROUP BY t, a[0].x")
        nothing = "CAST(NULL AS ARRAY<STRUCT<x: STRING>>)"
        frame = spark.sql(f"SELECT CAST(X'fffe80' AS STRING) AS t, X'ff' AS b, {nothing} AS a")
        refused(db, lambda: db.insert("s", frame))
        refused(db, lambda: db.insert("kept", frame.select("t")))
        inner = spark.sql("SELECT 'a' AS t, X'ff' AS b, array(named_struct('x', CAST(X'ff' AS STRING))) AS a")
        refused(db, lambda: db.insert("s", inner))
        refused(db, lambda: db.sql("INSERT INTO kept SELECT CAST(X'fffe80' AS STRING)"))
        refused(db, lambda: db.sql("CREATE TABLE c AS SELECT CAST(X'fffe80' AS STRING) AS t"))
        refused(db, lambda: db.sql("SELECT CAST(X'fffe80' AS STRING) AS t").rows(), "column t")
        file = tmp_path / "bad.parquet"
        bad = {"t": text_of(GOOD, BAD), "b": pa.array([b"", b""]), "a": rows(text_of(GOOD, GOOD)).column("a")}
        pq.write_table(pa.table(bad), file)
        refused(db, lambda: db.copy("s", str(file)))
        good = spark.sql(f"SELECT make_valid_utf8(CAST(X'61ff' AS STRING)) AS t, X'ff' AS b, {nothing} AS a")
        db.insert("s", good)
        assert db.sql("SELECT t, n FROM v").rows() == [("a\ufffd", 1)]
        # Inside an expression such text is what Spark has of it; only as an answer it cannot be handed out.
        assert db.sql("SELECT hex(CAST(X'fffe' AS STRING)) AS h, length(CAST(X'fffe' AS STRING)) AS n").rows() == [
            ("FFFE", 2)
        ]
        assert db.sql("SELECT make_valid_utf8(CAST(X'61ff' AS STRING)) AS t").rows() == [("a\ufffd",)]
        db.sql("CREATE VIEW casted AS SELECT CAST(b AS STRING) AS t, count(*) AS n FROM s GROUP BY 1")
        refused(db, lambda: db.insert("s", {"t": ["x"], "b": [b"\xff"], "a": [None]}), "casted")
        db.insert("s", {"t": ["x"], "b": [b"yes"], "a": [None]})
        assert db.sql("SELECT * FROM casted").rows() == [("yes", 1)]
