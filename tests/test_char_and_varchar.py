"""VARCHAR(n) and CHAR(n): checked on every way in, text like any other on the way out."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.database import Database
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "v VARCHAR(3), c CHAR(4), a ARRAY<VARCHAR(2)>, s STRUCT<x: CHAR(3), n: INT>"
GIVEN = ("ab      ", "äb", ["x   ", None], {"x": "y", "n": 1})
KEPT = ("ab ", "äb  ", ["x ", None], {"x": "y  ", "n": 1})
BAD: list[tuple[int, Any]] = [(0, "abcd"), (1, "abcde"), (2, ["abc"]), (3, {"x": "abcd", "n": 1})]


def made(path: Path, kind: str) -> Database:
    db = headrace.connect(path / "db.hr")
    db.sql(f"CREATE {kind} t ({COLUMNS})")
    if kind == "STREAM":
        db.sql("CREATE VIEW seen AS SELECT v, c, a, s, count(*) AS n FROM t GROUP BY v, c, a, s")
    return db


def held(db: Database, kind: str) -> list[tuple[Any, ...]]:
    return db.sql("SELECT v, c, a, s FROM t" if kind == "TABLE" else "SELECT v, c, a, s FROM seen").rows()


def by_rows(db: Database, row: tuple[Any, ...], place: Path) -> None:
    db.insert("t", [row])


def by_arrow(db: Database, row: tuple[Any, ...], place: Path) -> None:
    db.insert("t", table_of(row))


def by_reader(db: Database, row: tuple[Any, ...], place: Path) -> None:
    db.insert("t", table_of(row).to_reader())


def by_parquet(db: Database, row: tuple[Any, ...], place: Path) -> None:
    pq.write_table(table_of(row), place / "rows.parquet")
    db.sql(f"COPY t FROM '{place / 'rows.parquet'}'")


def by_json(db: Database, row: tuple[Any, ...], place: Path) -> None:
    import json

    (place / "rows.json").write_text(json.dumps(dict(zip("vcas", row, strict=True))) + "\n")
    db.sql(f"COPY t FROM '{place / 'rows.json'}'")


def by_insert(db: Database, row: tuple[Any, ...], place: Path) -> None:
    texts = ", ".join("NULL" if text is None else f"'{text}'" for text in row[2])
    db.sql(f"INSERT INTO t SELECT '{row[0]}', '{row[1]}', array({texts}), named_struct('x', '{row[3]['x']}', 'n', 1)")


def table_of(row: tuple[Any, ...]) -> pa.Table:
    types = (pa.string(), pa.string(), pa.list_(pa.string()), pa.struct([("x", pa.string()), ("n", pa.int32())]))
    return pa.table([pa.array([v], t) for v, t in zip(row, types, strict=True)], names=list("vcas"))


WAYS = [by_rows, by_arrow, by_reader, by_parquet, by_json]


@pytest.mark.parametrize("kind", ["TABLE", "STREAM"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_in_checks_and_fits(tmp_path: Path, kind: str, way: Callable[..., None]) -> None:
    with made(tmp_path, kind) as db:
        way(db, GIVEN, tmp_path)
        assert held(db, kind) == [KEPT]
        for place, text in BAD:
            bad = tuple(text if i == place else value for i, value in enumerate(GIVEN))
            with pytest.raises(HeadraceError) as error:
                way(db, bad, tmp_path)
            nested = place > 1 and way is by_parquet
            assert error.value.condition == ("PARQUET_BAD_VALUE" if nested else "EXCEED_LIMIT_LENGTH")
            assert f"column {'vcas'[place]}" in error.value.message
        assert held(db, kind) == [KEPT]
    with headrace.connect(tmp_path / "db.hr") as db:
        assert held(db, kind) == [KEPT]
        with pytest.raises(HeadraceError, match="EXCEED_LIMIT_LENGTH"):
            by_rows(db, ("abcd", *GIVEN[1:]), tmp_path)


@pytest.mark.parametrize("kind", ["TABLE", "STREAM"])
def test_plain_text_by_insert_and_csv(tmp_path: Path, kind: str) -> None:
    with headrace.connect(tmp_path / "db.hr") as db:
        db.sql(f"CREATE {kind} t (v VARCHAR(3), c CHAR(4))")
        if kind == "STREAM":
            db.sql("CREATE VIEW seen AS SELECT v, c, count(*) AS n FROM t GROUP BY v, c")
        db.sql("INSERT INTO t VALUES ('ab   ', 'x'), (NULL, NULL)")
        db.sql("INSERT INTO t VALUES (12, 1)")
        file = tmp_path / "rows.csv"
        file.write_text("abc,äöü\nab   ,y\n")
        db.sql(f"COPY t FROM '{file}'")
        rows = db.sql(f"SELECT v, c FROM {'t' if kind == 'TABLE' else 'seen'}").rows()
        assert sorted(rows, key=str) == sorted(
            [("ab ", "x   "), ("12", "1   "), (None, None), ("abc", "äöü "), ("ab ", "y   ")], key=str
        )
        for bad in ("INSERT INTO t VALUES ('abcd', 'x')", "INSERT INTO t VALUES (1234, 'x')"):
            with pytest.raises(HeadraceError, match="EXCEED_LIMIT_LENGTH"):
                db.sql(bad)
        file.write_text("abc,x\nab,y\nabc,äöüxyz\n")
        with pytest.raises(HeadraceError, match=r"EXCEED_LIMIT_LENGTH.*row 3.*column c"):
            db.sql(f"COPY t FROM '{file}'")
        assert len(db.sql(f"SELECT v, c FROM {'t' if kind == 'TABLE' else 'seen'}").rows()) == 5


def test_a_query_sees_strings_and_a_definition_the_lengths(tmp_path: Path) -> None:
    with made(tmp_path, "TABLE") as db:
        declared = ["varchar(3)", "char(4)", "array<varchar(2)>", "struct<x:char(3),n:int>"]
        assert [row[1] for row in db.sql("DESCRIBE t").rows()][:4] == declared
        db.sql("CREATE TABLE copied AS SELECT v, c AS d, upper(v) AS u, a, v::string AS w FROM t")
        assert [row[1] for row in db.sql("DESCRIBE copied").rows()][:5] == [
            "varchar(3)", "char(4)", "string", "array<varchar(2)>", "string",
        ]  # fmt: skip
        db.sql("CREATE TABLE both AS SELECT v FROM t UNION ALL SELECT 'long text'")
        assert db.sql("DESCRIBE both").rows()[0][:2] == ("v", "string")
        assert db.sql("SELECT CAST('abcdef' AS VARCHAR(3)), CAST('a' AS CHAR(3))").rows() == [("abcdef", "a")]


# --- Tables over files: only read, so nothing is checked, and CHAR is filled up -----------------------

IN_FILES = [
    {"k": 1, "v": "ab", "c": "ab", "a": ["x", None, "long text"], "s": {"x": "y", "n": 1}, "m": {"p": "q"}},
    {"k": 2, "v": "abcdef", "c": "abcdef", "a": [], "s": {"x": "long text", "n": None}, "m": {"long": "text"}},
    {"k": 3, "v": "ab    ", "c": "ab    ", "a": None, "s": None, "m": None},
    {"k": 4, "v": None, "c": None, "a": [None], "s": {"x": None, "n": 4}, "m": {"p": None}},
    {"k": 5, "v": "", "c": "", "a": [""], "s": {"x": "", "n": 5}, "m": {}},
    {"k": 6, "v": "äöü", "c": "äöü", "a": ["äöüß"], "s": {"x": "ä", "n": 6}, "m": {"ä": "äöüß"}},
    {"k": 7, "v": "abcdefghij", "c": "abcdefghij", "a": ["x"], "s": {"x": "xyz", "n": 7}, "m": {"xyz": "xyz"}},
]
FLAT = "k INT, v VARCHAR(3), c CHAR(4)"
NESTED = ", a ARRAY<CHAR(3)>, s STRUCT<x: CHAR(3), n: INT>, m MAP<CHAR(2), CHAR(3)>"


def in_files(format: str) -> list[dict[str, Any]]:
    """Spark's CSV has no empty text beside NULL."""
    return [row for row in IN_FILES if row["v"] != "" or format != "csv"]


def files(folder: Path, format: str) -> str:
    """A folder of these rows; the columns to declare for them."""
    import json

    folder.mkdir()
    if format == "csv":
        shown = [tuple("" if r[n] is None else f'"{r[n]}"' for n in "kvc") for r in in_files(format)]
        (folder / "rows.csv").write_text("".join(",".join(fields) + "\n" for fields in shown))
        return FLAT
    if format == "json":
        (folder / "rows.json").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in IN_FILES))
    else:
        types = [pa.int32(), pa.string(), pa.string(), pa.list_(pa.string())]
        types += [pa.struct([("x", pa.string()), ("n", pa.int32())]), pa.map_(pa.string(), pa.string())]
        rows = [{**r, "m": r["m"] if r["m"] is None else list(r["m"].items())} for r in IN_FILES]
        columns = [pa.array([r[n] for r in rows], t) for n, t in zip("kvcasm", types, strict=True)]
        pq.write_table(pa.table(columns, names=list("kvcasm")), folder / "rows.parquet")
    return FLAT + NESTED


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_tables_over_files_read_text_of_any_length(tmp_path: Path, format: str) -> None:
    columns = files(tmp_path / "files", format)
    with headrace.connect(tmp_path / "db.hr", engine="native") as db:
        db.sql(f"CREATE TABLE f ({columns}) USING {format} LOCATION '{tmp_path / 'files'}'")
        assert [row[1] for row in db.sql("DESCRIBE f").rows()][1:3] == ["varchar(3)", "char(4)"]
        texts = [(r["v"], None if r["c"] is None else r["c"].ljust(4)) for r in in_files(format)]
        assert db.sql("SELECT v, c FROM f ORDER BY k").rows() == texts
        assert db.sql("SELECT v, c FROM f TABLESAMPLE RESERVOIR (100 ROWS) ORDER BY k").rows() == texts
        assert db.sql("SELECT k FROM f WHERE c = 'ab'").rows() == [(1,)]
        given = FLAT.replace("INT,", "INT NOT NULL,")
        db.sql(f"CREATE TABLE strict ({given}) USING {format} LOCATION '{tmp_path / 'files'}'")
        assert db.sql("SELECT v, c FROM strict ORDER BY k").rows() == texts
        db.sql("CREATE TABLE own (v VARCHAR(3), c CHAR(4))")
        with pytest.raises(HeadraceError, match="EXCEED_LIMIT_LENGTH"):
            db.sql("INSERT INTO own SELECT v, c FROM f")  # it is checked where it is written
        db.sql("CREATE STREAM s (k INT)")
        db.sql("CREATE VIEW seen AS SELECT f.c, count(*) AS n FROM s JOIN f ON s.k = f.k GROUP BY f.c")
        db.sql("CREATE VIEW long AS SELECT count(*) AS n FROM s JOIN f ON s.k = f.k WHERE f.c = 'abcdef'")
        db.insert("s", [(1,), (2,), (1,)])
        assert sorted(db.sql("SELECT * FROM seen").rows()) == [("ab  ", 2), ("abcdef", 1)]
        assert db.sql("SELECT n FROM long").rows() == [(1,)]
    with headrace.connect(tmp_path / "db.hr") as db:
        assert db.sql("SELECT v, c FROM f ORDER BY k").rows() == texts


ASKED = """
    v; c; length(v); length(c); concat(c, '|'); c = 'ab'; c = 'ab '; c = 'abcdef'; c = 'abcdefgh'; c < 'abcdefgh';
    c IN ('ab', 'abcdefgh'); v = 'ab'; v = 'abcdef'; c = v; c = ''; c LIKE 'ab'; c BETWEEN 'ab' AND 'abcdefgh';
    soundex(c); CASE c WHEN 'abcdefgh' THEN 1 ELSE 0 END; min(c) OVER (ORDER BY k); upper(c) = 'ABCDEF';
    c <=> 'abcdefgh'
""".replace("\n", " ")
ASKED_NESTED = (
    "a; s; m; s.x; s.x = 'y'; get(a, 0); m['p ']; map_keys(m); exists(a, e -> e = 'x'); concat(s.x, '|'); size(m)"
)


@pytest.mark.spark
@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_differential_spark_reads_the_same_of_such_files(spark: SparkSession, tmp_path: Path, format: str) -> None:
    columns = files(tmp_path / "files", format)
    asked = [text.strip() for text in (ASKED if format == "csv" else f"{ASKED};{ASKED_NESTED}").split(";")]
    theirs = spark.newSession()
    theirs.sql(f"CREATE TABLE chars_in_files ({columns}) USING {format} LOCATION '{tmp_path / 'files'}'")
    try:
        with headrace.connect(None, spark=spark) as db:
            db.sql(f"CREATE TABLE f ({columns}) USING {format} LOCATION '{tmp_path / 'files'}'")
            for text in asked:
                query = f"SELECT k, {text} AS x FROM {{}} ORDER BY k"
                expected = theirs.sql(query.format("chars_in_files")).toArrow().to_pylist()
                assert db.sql(query.format("f")).arrow().to_pylist() == expected, text
            where = "SELECT k FROM {} WHERE c = 'abcdefgh' OR v = 'ab' ORDER BY k"
            expected = theirs.sql(where.format("chars_in_files")).toArrow().to_pylist()
            assert db.sql(where.format("f")).arrow().to_pylist() == expected
    finally:
        theirs.sql("DROP TABLE chars_in_files")


COMPARED = """
    c = 'ab'; c = 'ab '; c = 'ab    '; c = 'ab      '; c <=> 'ab'; c < 'ab'; c > 'a'; c <> 'ab'; 'ab' = c;
    c IN ('ab', 'x');
    c IN ('ab', 'abcdefgh'); c NOT IN ('ab'); CASE c WHEN 'ab' THEN 1 ELSE 0 END; nullif(c, 'ab'); c = d; d >= c;
    c = v; v = 'ab '; v = 'ab'; upper(c) = 'AB'; c LIKE 'ab'; concat(c, '|'); length(c); c BETWEEN 'ab' AND 'ab';
    c IN ('ab', NULL); s.x = 'a'; c = concat('a', 'b'); CAST(c AS STRING) = 'ab'; string(c) = 'ab';
    (SELECT max(c) FROM t) = 'ab'
""".replace("\n", " ")
COMPARED_BY_SPARK = (
    "soundex(c); transform(array(c), e -> e = 'ab'); exists(array(1), e -> c = 'ab'); map('k', c = 'ab')['k']"
)


@pytest.mark.spark
def test_differential_chars_compare_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    columns = "v VARCHAR(4), c CHAR(4), d CHAR(6), s STRUCT<x: CHAR(3)>"
    rows = "('ab', 'ab', 'ab', named_struct('x', 'a')), ('ab ', 'abc', 'abcd', NULL), (NULL, NULL, 'x', NULL)"
    tested = [text.strip() for text in f"{COMPARED};{COMPARED_BY_SPARK}".split(";")]
    theirs = spark.newSession()
    theirs.sql(f"CREATE TABLE chars_compared ({columns}) USING parquet LOCATION '{tmp_path / 'theirs'}'")
    try:
        theirs.sql(f"INSERT INTO chars_compared VALUES {rows}")
        with headrace.connect(tmp_path / "ours.hr", spark=spark) as db:
            db.sql(f"CREATE TABLE t ({columns})")
            db.sql(f"INSERT INTO t VALUES {rows}")
            for text in tested:
                query = f"SELECT {text} AS x FROM t ORDER BY d"
                expected = theirs.sql(re.sub(r"FROM t\b", "FROM chars_compared", query)).collect()
                assert db.sql(query).rows() == [tuple(row) for row in expected], text
            below = "SELECT count(*) FROM (SELECT c AS x, d FROM t) q WHERE x = 'ab'"
            assert db.sql(below).rows() == [(1,)]
    finally:
        theirs.sql("DROP TABLE chars_compared")


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["TABLE", "STREAM"])
def test_frames_are_checked(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    with headrace.connect(tmp_path / "db.hr", spark=spark) as db:
        db.sql(f"CREATE {kind} t ({COLUMNS})")
        if kind == "STREAM":
            db.sql("CREATE VIEW seen AS SELECT v, c, a, s, count(*) AS n FROM t GROUP BY v, c, a, s")
        fields = "v STRING, c STRING, a ARRAY<STRING>, s STRUCT<x: STRING, n: INT>"
        db.insert("t", spark.createDataFrame([GIVEN], fields))
        assert held(db, kind) == [KEPT]
        for place, text in BAD:
            bad = tuple(text if i == place else value for i, value in enumerate(GIVEN))
            with pytest.raises(HeadraceError) as error:
                db.insert("t", spark.createDataFrame([bad], fields))
            assert error.value.condition == "EXCEED_LIMIT_LENGTH"
        assert held(db, kind) == [KEPT]


def test_a_ring_writer_is_checked(tmp_path: Path) -> None:
    from headrace.stream.writer import ring

    with headrace.connect(tmp_path / "db.hr") as db:
        db.sql("CREATE STREAM t (v VARCHAR(3), at DATE) WITH (capacity = 100)")
        db.sql("CREATE VIEW seen AS SELECT v, count(*) AS n FROM t GROUP BY v")
        with ring(tmp_path / "db.hr", "t") as writer:
            day = datetime.date(2024, 1, 1)
            assert writer.insert([("abc  ", day)]) == 1
            with pytest.raises(HeadraceError, match="EXCEED_LIMIT_LENGTH"):
                writer.insert([("abcd", day)])
        assert db.sql("SELECT * FROM seen").rows() == [("abc", 1)]
