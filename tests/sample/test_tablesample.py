"""TABLESAMPLE RESERVOIR over tables and queries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from statistics_of_samples import inclusions, is_uniform

import headrace
from headrace import Database, HeadraceError
from headrace.table import rows as tables
from headrace.table.rows import TAIL_ROWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with headrace.connect(tmp_path / "db") as db:
        yield db


def ids(db: Database, text: str) -> list[int]:
    return [row[0] for row in db.sql(text)]


def test_rows_of_segments_and_tail_are_drawn_alike(db: Database) -> None:
    db.sql("CREATE TABLE t (id INT, x STRING)")
    for start, count in ((0, TAIL_ROWS), (TAIL_ROWS, 30_000)):
        texts = [f"row {i}" for i in range(start, start + count)]
        db.insert("t", pa.table({"id": pa.array(range(start, start + count), pa.int32()), "x": texts}))
    found = db.sql("SELECT * FROM t TABLESAMPLE RESERVOIR (4000 ROWS)").rows()
    assert len(set(found)) == 4_000 and all(x == f"row {i}" for i, x in found)
    in_tail = sum(i >= TAIL_ROWS for i, _ in found)
    assert abs(in_tail - 4_000 * 30_000 / (TAIL_ROWS + 30_000)) < 150
    assert ids(db, "SELECT count(DISTINCT id) FROM t TABLESAMPLE RESERVOIR (200000 ROWS)") == [TAIL_ROWS + 30_000]
    assert ids(db, "SELECT count(*) FROM t TABLESAMPLE RESERVOIR (7 ROWS)") == [7]


def test_every_row_of_a_query_is_drawn_equally_often(db: Database) -> None:
    db.sql("CREATE TABLE t (id INT)")
    db.insert("t", [(i,) for i in range(40)])
    for relation in ("t", "(SELECT id FROM t WHERE id % 2 = 0 UNION ALL SELECT id FROM t WHERE id % 2 = 1)"):
        text = f"SELECT id FROM {relation} TABLESAMPLE RESERVOIR (8 ROWS) AS drawn"
        found = inclusions(lambda run, text=text: np.array(ids(db, text)), 40, 120)
        assert is_uniform(found, 120, 8)


def test_deleted_rows_are_not_drawn(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files' footers still count them."""
    monkeypatch.setattr(tables, "TAIL_ROWS", 10)
    db.sql("CREATE TABLE t (id INT, k INT)")
    for start in (0, 20, 40):
        db.insert("t", [(i, 0) for i in range(start, start + 20)])
    db.insert("t", [(i, 0) for i in range(60, 65)])
    db.sql("DELETE FROM t WHERE id BETWEEN 5 AND 14 OR id >= 55")
    db.sql("UPDATE t SET k = 1 WHERE id BETWEEN 25 AND 34")
    db.sql("DELETE FROM t WHERE id = 30")
    left = sorted({*range(5), *range(15, 55)} - {30})
    assert sorted(ids(db, "SELECT id FROM t TABLESAMPLE RESERVOIR (1000 ROWS)")) == left
    assert sorted(ids(db, "SELECT id FROM t TABLESAMPLE RESERVOIR (1000 ROWS) REPEATABLE (7)")) == left
    places = {id_: place for place, id_ in enumerate(left)}
    drawn = "SELECT id FROM t TABLESAMPLE RESERVOIR (8 ROWS)"
    found = inclusions(lambda run: np.array([places[i] for i in ids(db, drawn)]), len(left), 120)
    assert is_uniform(found, 120, 8)


@pytest.mark.spark
def test_deleted_rows_are_not_drawn_by_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "TAIL_ROWS", 10)
    with headrace.connect(tmp_path / "other", spark=spark, engine="spark") as db:
        db.sql("CREATE TABLE t (id INT)")
        db.insert("t", [(i,) for i in range(40)])
        db.insert("t", [(i,) for i in range(40, 45)])
        whole = headrace.reservoir(db.table("t"), 100)
        db.sql("DELETE FROM t WHERE id % 3 = 0")
        left = [i for i in range(45) if i % 3]
        assert sorted(ids(db, "SELECT id FROM t TABLESAMPLE RESERVOIR (100 ROWS)")) == left
        assert sorted(row.id for row in headrace.reservoir(db.table("t"), 100).collect()) == left
        assert headrace.reservoir(db.table("t"), 7).count() == 7
        assert sorted(row.id for row in whole.collect()) == list(range(45))


def test_where_it_may_stand(db: Database) -> None:
    db.sql("CREATE TABLE t (id INT, k INT)")
    db.insert("t", [(i, i % 3) for i in range(90)])
    db.sql("CREATE STREAM s (id INT)")
    db.sql("CREATE VIEW v AS SELECT id, count(*) AS n FROM s GROUP BY id")
    db.insert("s", [(i,) for i in range(50)])
    for text, rows in (
        ("SELECT * FROM t TABLESAMPLE RESERVOIR (10 ROWS)", 10),
        ("SELECT * FROM t TABLESAMPLE RESERVOIR (10 ROWS) AS a WHERE a.id >= 0", 10),
        ("SELECT * FROM t AS a TABLESAMPLE RESERVOIR (10 ROWS) WHERE a.id >= 0", 10),
        ("SELECT a.id FROM (SELECT id FROM t WHERE k = 0) TABLESAMPLE RESERVOIR (40 ROWS) a", 30),
        ("SELECT * FROM v TABLESAMPLE RESERVOIR (5 ROWS)", 5),
        ("SELECT * FROM t TABLESAMPLE RESERVOIR (5 ROWS) a JOIN t b ON a.id = b.id", 5),
        ("SELECT * FROM (SELECT * FROM t TABLESAMPLE RESERVOIR (9 ROWS)) TABLESAMPLE RESERVOIR (4 ROWS) b", 4),
        ("SELECT * FROM VALUES (1), (2), (3) AS v(x) TABLESAMPLE RESERVOIR (2 ROWS)", 2),
        ("SELECT * FROM (VALUES (1), (2), (3)) TABLESAMPLE RESERVOIR (2 ROWS)", 2),
        # A CTE read twice is drawn once.
        ("WITH d AS (SELECT * FROM t TABLESAMPLE RESERVOIR (6 ROWS)) SELECT * FROM d a JOIN d b ON a.id = b.id", 6),
    ):
        assert db.sql(text).arrow().num_rows == rows, text
    db.sql("CREATE VIEW some AS SELECT id FROM t TABLESAMPLE RESERVOIR (3 ROWS)")
    assert len({tuple(ids(db, "SELECT id FROM some")) for _ in range(5)}) > 1, "drawn anew at each query"
    db.sql("CREATE TABLE kept AS SELECT * FROM t TABLESAMPLE RESERVOIR (3 ROWS)")
    assert ids(db, "SELECT count(*) FROM kept") == [3]
    assert "Draw 3 rows" in str(db.sql("EXPLAIN SELECT * FROM t TABLESAMPLE RESERVOIR (3 ROWS)"))


def test_a_seed_repeats_whatever_the_order_and_the_chunks(tmp_path: Path) -> None:
    """Equal rows too: the multiset drawn is the same."""
    rows = [(i % 700, None if i % 5 == 0 else f"t{i % 7}") for i in range(3_000)]
    text = "SELECT * FROM t TABLESAMPLE RESERVOIR (100 ROWS) REPEATABLE ({seed})"
    answers: dict[int, list[list[tuple[object, ...]]]] = {1: [], 2: []}
    for number, chunk in enumerate((3_000, 400)):
        order = np.random.default_rng(number).permutation(3_000)
        with headrace.connect(tmp_path / str(number)) as db:
            db.sql("CREATE TABLE t (id INT, x STRING)")
            for start in range(0, 3_000, chunk):
                db.insert("t", [rows[i] for i in order[start : start + chunk]])
            for seed, found in answers.items():
                found.append(sorted(db.sql(text.format(seed=seed)).rows(), key=repr))
    assert answers[1][0] == answers[1][1] != answers[2][0] == answers[2][1]
    assert len(answers[1][0]) == 100


def test_a_seed_tells_values_apart_that_look_alike(tmp_path: Path) -> None:
    """NULL and the word, one text with a comma and two without: told alike, they would be drawn by their order."""
    rows = [
        {"a": "NULL", "b": None, "l": ["NULL"]}, {"a": None, "b": "NULL", "l": [None]},
        {"a": "x, y", "b": "z", "l": ["p, q"]}, {"a": "x", "b": "y, z", "l": ["p", "q"]},
        {"a": "", "b": None, "l": []}, {"a": None, "b": "", "l": [""]}, {"a": "'x'", "b": None, "l": None},
    ]  # fmt: skip
    answers = []
    for number, order in enumerate((rows, rows[::-1])):
        with headrace.connect(tmp_path / str(number)) as db:
            db.sql("CREATE TABLE t (a STRING, b STRING, l ARRAY<STRING>)")
            db.insert("t", order)
            texts = [f"SELECT * FROM t TABLESAMPLE RESERVOIR (1 ROWS) REPEATABLE ({seed})" for seed in range(60)]
            answers.append([db.sql(text).arrow().to_pylist() for text in texts])
    assert answers[0] == answers[1]
    assert all([row] in answers[0] for row in rows)


def test_a_seed_draws_equally_often(db: Database) -> None:
    """Rows that are equal as well: each of them has a priority of its own."""
    db.sql("CREATE TABLE t (id INT, same INT)")
    db.insert("t", [(i, 1) for i in range(30)])
    found = inclusions(
        lambda run: np.array(ids(db, f"SELECT id FROM t TABLESAMPLE RESERVOIR (6 ROWS) REPEATABLE ({run})")), 30, 120
    )
    assert is_uniform(found, 120, 6)
    twice = [
        len(db.sql(f"SELECT same FROM (SELECT same FROM t) TABLESAMPLE RESERVOIR (6 ROWS) REPEATABLE ({run})").rows())
        for run in range(3)
    ]
    assert twice == [6, 6, 6]


def test_files_are_read_where_rows_are_drawn(db: Database, tmp_path: Path) -> None:
    file = tmp_path / "big.parquet"
    rows = pa.table({"id": np.arange(5_000), "x": np.arange(5_000) * 0.5})
    pq.write_table(rows, file, row_group_size=50)
    db.sql(f"CREATE TABLE big (id INT, x DOUBLE) USING parquet LOCATION '{file}'")
    found = db.sql("SELECT * FROM big TABLESAMPLE RESERVOIR (40 ROWS)").rows()
    assert len(set(found)) == 40 and all(x == i / 2 for i, x in found)
    # All row groups but the first half are destroyed; of a hundred queries some draw only from what is left.
    metadata = pq.read_metadata(file)
    data = bytearray(file.read_bytes())
    for group in range(50, 100):
        for column in range(2):
            chunk = metadata.row_group(group).column(column)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    file.write_bytes(data)
    lucky = 0
    for _ in range(40):
        try:
            assert ids(db, "SELECT id FROM big TABLESAMPLE RESERVOIR (1 ROWS)")[0] < 2_500
            lucky += 1
        except HeadraceError:
            continue
    assert 5 < lucky < 35


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("SELECT * FROM t TABLESAMPLE RESERVOIR (0 ROWS)", "INVALID_SAMPLE_SIZE"),
        ("SELECT * FROM t TABLESAMPLE RESERVOIR (-1 ROWS)", "INVALID_SAMPLE_SIZE"),
        ("SELECT * FROM t TABLESAMPLE RESERVOIR (1.5 ROWS)", "INVALID_SAMPLE_SIZE"),
        ("SELECT * FROM t TABLESAMPLE RESERVOIR (10 PERCENT)", "INVALID_SAMPLE_SIZE"),
        ("SELECT * FROM t TABLESAMPLE RESERVOIR (99999999999 ROWS)", "SAMPLE_TOO_LARGE"),
        ("SELECT * FROM t TABLESAMPLE RESERVOIR (9 ROWS) REPEATABLE (99999999999999999999)", "INVALID_SEED"),
        ("SELECT * FROM s TABLESAMPLE RESERVOIR (9 ROWS)", "NOT_YET_SUPPORTED"),
        (
            "CREATE VIEW w AS SELECT count(*) AS n FROM s JOIN t TABLESAMPLE RESERVOIR (9 ROWS) d ON s.id = d.id",
            "NONDETERMINISTIC_VIEW",
        ),
        ("SELECT 1 TABLESAMPLE RESERVOIR (9 ROWS)", "PARSE_SYNTAX_ERROR"),
        ("SELECT * FROM t WHERE id > 3 TABLESAMPLE RESERVOIR (9 ROWS)", "PARSE_SYNTAX_ERROR"),
        ("SELECT id FROM t GROUP BY id\nTABLESAMPLE RESERVOIR (9 ROWS)", "PARSE_SYNTAX_ERROR"),
    ],
)
def test_what_is_refused(db: Database, text: str, condition: str) -> None:
    db.sql("CREATE TABLE t (id INT)")
    db.sql("CREATE STREAM s (id INT)")
    with pytest.raises(HeadraceError) as raised:
        db.sql(text)
    assert raised.value.condition == condition
    assert raised.value.hint


def test_spark_s_own_tablesample_is_spark_s(db: Database) -> None:
    """It is not ours to claim: the binder leaves it to Spark as it is written."""
    from headrace.sql import statements as s
    from headrace.sql.source import text_of

    db.sql("CREATE TABLE t (id INT)")
    statement = s.parse("SELECT * FROM t TABLESAMPLE (10 PERCENT)")
    assert isinstance(statement, s.Query) and "TABLESAMPLE (10 PERCENT)" in text_of(statement.query)
