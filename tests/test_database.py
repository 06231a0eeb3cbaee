"""The database as a program meets it, without Spark: define, insert, ask, close, open again."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import headrace
from headrace.database import Database
from headrace.errors import CatalogError, DataError, HeadraceError, StoreError

Rows = list[tuple[Any, ...]]


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect() as database:
        yield database
        assert not database.runtime.session.started, "nothing here needs Spark"


def ask(db: Database, text: str) -> Rows:
    return sorted(db.sql(text).rows(), key=repr)


def refused(db: Database, text: str) -> HeadraceError:
    with pytest.raises(HeadraceError) as error:
        db.sql(text)
    return error.value


# Definitions


def test_the_tour(db: Database) -> None:
    assert db.sql("CREATE STREAM usage (part STRING, n INT)").message == "stream usage created"
    assert db.sql("CREATE VIEW used AS SELECT part, sum(n) AS n FROM usage GROUP BY part").message.startswith(
        "continuous view used created"
    )
    assert db.sql("INSERT INTO usage VALUES ('bolt', 2), ('nut', 1), ('bolt', 3)").message == (
        "3 rows inserted into usage"
    )
    answer = db.sql("SELECT * FROM used ORDER BY n DESC")
    assert answer.rows() == [("bolt", 5), ("nut", 1)]
    assert answer.columns == ["part", "n"] and len(answer) == 2 and list(answer) == answer.rows()
    assert answer.arrow().schema == pa.schema([("part", pa.string()), ("n", pa.int64())])
    assert answer.pandas().to_dict("list") == {"part": ["bolt", "nut"], "n": [5, 1]}
    assert "<td>bolt</td>" in answer._repr_html_() and "bolt | 5" in str(answer)


def test_foreign_table_server_stream_is_a_stream(db: Database) -> None:
    db.sql("CREATE FOREIGN TABLE s (a INT) SERVER stream")
    assert db.sql("SHOW STREAMS").rows()[0][:3] == ("s", 1, "")


def test_show_and_describe(db: Database) -> None:
    db.sql("CREATE STREAM s (a INT NOT NULL, b DECIMAL(10,2))")
    db.sql("CREATE TABLE t (k BIGINT, v STRING NOT NULL, PRIMARY KEY (k))")
    db.sql("INSERT INTO t VALUES (1, 'x'), (2, 'y')")
    db.sql("CREATE VIEW c AS SELECT a, avg(b) AS m FROM s GROUP BY a")
    db.sql("CREATE VIEW o AS SELECT v FROM t WHERE k > 1")
    db.sql("INSERT INTO s VALUES (1, 2), (1, 3), (4, 5)")
    assert db.sql("SHOW STREAMS").rows()[0][:3] == ("s", 2, "c")
    assert db.sql("SHOW TABLES").rows() == [("t", 2, "k")]
    assert db.sql("SHOW VIEWS").rows() == [("c", "continuous", "s", 2), ("o", "ordinary", "t", None)]
    assert db.sql("DESCRIBE t").rows() == [
        ("k", "bigint", "NOT NULL"),
        ("v", "string", "NOT NULL"),
        ("# kind", "table", ""),
        ("# primary key", "k", ""),
    ]
    described = db.sql("DESCRIBE c").rows()
    assert described[:3] == [("a", "int", ""), ("m", "decimal(14,6)", ""), ("# kind", "continuous view", "")]
    assert ("# reads", "s", "") in described


def test_names_are_compared_without_case_and_kept_as_written(db: Database) -> None:
    db.sql("CREATE STREAM Posts (Author STRING, N INT)")
    db.sql("CREATE VIEW Totals AS SELECT AUTHOR, Sum(n) AS Total FROM posts GROUP BY author")
    db.sql("INSERT INTO POSTS VALUES ('a', 1)")
    assert db.insert("pOSTS", [{"author": "a", "n": 2}]) == 1
    assert db.sql("SELECT total FROM TOTALS").rows() == [(3,)]
    assert db.sql("SHOW VIEWS").rows()[0][0] == "Totals"
    assert refused(db, "CREATE TABLE posts (a INT)").condition == "TABLE_OR_VIEW_ALREADY_EXISTS"


ODD = ["two words", "semi;colon", 'dou"ble', "sin'gle", "back`tick", "größe", "表", "select", "a.b", "%s {x} \\n", "🚂"]


@pytest.mark.parametrize("odd", ODD)
def test_identifiers_that_need_quoting(db: Database, odd: str, tmp_path: Path) -> None:
    name = "`" + odd.replace("`", "``") + "`"
    with headrace.connect(tmp_path / "d") as kept:
        for one in (db, kept):
            one.sql(f"CREATE STREAM {name} ({name} STRING, n INT)")
            one.sql(f"CREATE TABLE {name[:-1]}t` ({name} STRING PRIMARY KEY, w INT)")
            one.sql(f"INSERT INTO {name[:-1]}t` VALUES ('x', 10)")
            one.sql(
                f"CREATE VIEW {name[:-1]}v` AS SELECT s.{name}, sum(n * w) AS {name[:-1]}n` "
                f"FROM {name} s JOIN {name[:-1]}t` t ON s.{name} = t.{name} GROUP BY s.{name}"
            )
            one.sql(f"INSERT INTO {name} VALUES ('x', 1), ('y', 5)")
            assert one.insert(odd, [{odd: "x", "n": 2}]) == 1
            answer = one.sql(f"SELECT * FROM {name[:-1]}v`")
            assert answer.rows() == [("x", 30)] and answer.columns == [odd, odd + "n"]
    with headrace.connect(tmp_path / "d") as again:
        again.insert(odd, [("x", 1)])
        assert again.sql(f"SELECT {name[:-1]}n` FROM {name[:-1]}v`").rows() == [(40,)]
        again.sql(f"DROP VIEW {name[:-1]}v`")
        again.sql(f"DROP STREAM {name}")


# INSERT


def test_tables_keep_their_key_and_their_nulls_out(db: Database) -> None:
    db.sql("CREATE TABLE t (a INT, b STRING, c INT NOT NULL, PRIMARY KEY (a, b))")
    db.sql("INSERT INTO t VALUES (1, 'x', 0), (1, 'y', 0), (2, 'x', 0)")
    for statement, condition in (
        ("INSERT INTO t VALUES (3, 'x', 0), (1, 'y', 0)", "PRIMARY_KEY_VIOLATION"),
        ("INSERT INTO t VALUES (4, 'x', 0), (4, 'x', 1)", "PRIMARY_KEY_VIOLATION"),
        ("INSERT INTO t VALUES (5, NULL, 0)", "NULL_IN_NOT_NULL"),
        ("INSERT INTO t VALUES (5, 'x', NULL)", "NULL_IN_NOT_NULL"),
        ("INSERT INTO t (a, b) VALUES (5, 'x')", "NULL_IN_NOT_NULL"),
    ):
        assert refused(db, statement).condition == condition
        assert ask(db, "SELECT a, b FROM t") == [(1, "x"), (1, "y"), (2, "x")]
    big = pa.table({"a": range(100_000), "b": ["z"] * 100_000, "c": [1] * 100_000})
    assert db.insert("t", big) == 100_000  # a segment, not the tail
    assert db.sql("SELECT count(*), sum(a) FROM t").rows() == [(100_003, sum(range(100_000)) + 4)]
    with pytest.raises(DataError, match=r"a = 7, b = z"):
        db.insert("t", [(7, "z", 0)])
    with pytest.raises(DataError, match="PRIMARY_KEY_VIOLATION"):
        db.insert("t", pa.concat_tables([big.slice(90_000), big.slice(0, 60_000)]))
    assert db.sql("SELECT count(*) FROM t").rows() == [(100_003,)]


def test_insert_by_position_by_name_and_from_a_query(db: Database) -> None:
    db.sql("CREATE TABLE t (k INT, v STRING)")
    db.sql("CREATE STREAM s (a BIGINT, b STRING, c DECIMAL(6,2))")
    db.sql("CREATE VIEW v AS SELECT b, sum(a) AS a, sum(c) AS c, count(*) AS n FROM s GROUP BY b")
    db.sql("INSERT INTO t (v, k) VALUES ('x', 1), ('y', 2)")
    db.sql("INSERT INTO s SELECT k, v, k FROM t")
    db.sql("INSERT INTO s (c, a) VALUES (1.5, 10)")
    db.sql("INSERT INTO s SELECT a, b, c FROM v WHERE b = 'y'")
    db.sql("INSERT INTO t SELECT k + 10, v FROM t")
    assert ask(db, "SELECT b, a, c, n FROM v") == [
        ("x", 1, Decimal("1.00"), 1),
        ("y", 4, Decimal("4.00"), 2),
        (None, 10, Decimal("1.50"), 1),
    ]
    assert ask(db, "SELECT * FROM t") == [(1, "x"), (11, "x"), (12, "y"), (2, "y")]


@pytest.mark.parametrize(
    ("column", "value", "kept"),
    [
        ("INT", "1.9", 1),
        ("INT", "1.9D", 1),
        ("TINYINT", "127", 127),
        ("STRING", "12", "12"),
        ("STRING", "1.50", "1.50"),
        ("STRING", "true", "true"),
        ("STRING", "DATE '2024-02-29'", "2024-02-29"),
        ("DOUBLE", "1", 1.0),
        ("DECIMAL(6,2)", "1.005", Decimal("1.01")),
        ("DECIMAL(6,2)", "7", Decimal("7.00")),
        ("DATE", "TIMESTAMP '2024-02-29 23:59:59'", datetime.date(2024, 2, 29)),
        ("INT", "NULL", None),
        ("INT", "'1'", "INCOMPATIBLE_DATA_FOR_TABLE"),
        ("INT", "true", "INCOMPATIBLE_DATA_FOR_TABLE"),
        ("BOOLEAN", "1", "INCOMPATIBLE_DATA_FOR_TABLE"),
        ("DATE", "'2024-02-29'", "INCOMPATIBLE_DATA_FOR_TABLE"),
        ("BINARY", "'x'", "INCOMPATIBLE_DATA_FOR_TABLE"),
        ("TINYINT", "128", "CAST_OVERFLOW_IN_TABLE_INSERT"),
        ("INT", "3000000000", "CAST_OVERFLOW_IN_TABLE_INSERT"),
        ("DECIMAL(4,2)", "123.4", "NUMERIC_VALUE_OUT_OF_RANGE"),
    ],
)
def test_store_assignment(db: Database, column: str, value: str, kept: Any) -> None:
    """ANSI store assignment, as Spark's INSERT has it."""
    db.sql(f"CREATE TABLE t (x {column})")
    if isinstance(kept, str) and kept.isupper():
        assert refused(db, f"INSERT INTO t VALUES ({value})").condition.split(".")[0] == kept
        assert len(db.sql("SELECT * FROM t")) == 0
    else:
        db.sql(f"INSERT INTO t VALUES ({value})")
        (found,) = db.sql("SELECT * FROM t").rows()[0]
        assert found == kept and type(found) is type(kept)


ROWS = [("bolt", 2, Decimal("1.50")), ("nut", None, None), ("bolt", 5, Decimal("0.25"))]
ARROW = pa.table(
    {
        "part": [r[0] for r in ROWS],
        "n": pa.array([r[1] for r in ROWS], pa.int32()),
        "price": pa.array([r[2] for r in ROWS], pa.decimal128(8, 2)),
    }
)
HOLDERS: dict[str, Any] = {
    "table": lambda: ARROW,
    "chunked table": lambda: pa.concat_tables([ARROW.slice(0, 1), ARROW.slice(1)]),
    "batch": lambda: ARROW.to_batches()[0],
    "reader": lambda: pa.RecordBatchReader.from_batches(ARROW.schema, ARROW.to_batches(max_chunksize=1)),
    "pandas": lambda: ARROW.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": lambda: pl.from_arrow(ARROW),
    "dicts": lambda: [dict(zip(("part", "n", "price"), r, strict=True)) for r in ROWS],
    "tuples": lambda: ROWS,
    "columns": lambda: {"price": [r[2] for r in ROWS], "n": [r[1] for r in ROWS], "part": [r[0] for r in ROWS]},
}


@pytest.mark.parametrize("kind", ["STREAM", "TABLE"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_differential_every_holder_of_rows(db: Database, holder: str, kind: str) -> None:
    db.sql(f"CREATE {kind} s (part STRING, n INT, price DECIMAL(8,2))")
    db.sql("CREATE VIEW v AS SELECT part, sum(n) AS n, sum(price) AS price, count(*) AS c FROM s GROUP BY part")
    assert db.insert("s", HOLDERS[holder]()) == 3
    assert ask(db, "SELECT * FROM v") == [("bolt", 7, Decimal("1.75"), 2), ("nut", None, None, 1)]


@pytest.mark.parametrize("kind", ["STREAM", "TABLE"])
def test_nothing_inserted_is_no_epoch(db: Database, kind: str) -> None:
    db.sql(f"CREATE {kind} s (part STRING, n INT, price DECIMAL(8,2))")
    db.sql("CREATE VIEW v AS SELECT count(*) AS c, sum(n) AS n FROM s")
    before = epoch(db)
    empties: list[Any] = [ARROW.slice(0, 0), [], ARROW.slice(0, 0).to_pandas(), ARROW.schema.empty_table()]
    for empty in empties:
        assert db.insert("s", empty) == 0
    reader = pa.RecordBatchReader.from_batches(ARROW.schema, [])
    assert db.insert("s", reader) == 0
    assert db.sql("INSERT INTO s SELECT 'x', 1, 1.0 WHERE false").message == "0 rows inserted into s"
    assert epoch(db) == before
    assert db.sql("SELECT * FROM v").rows() == [(0, None)]


def epoch(db: Database) -> int:
    with db.runtime.store.read() as snapshot:
        return snapshot.epoch


def test_text_of_every_kind(db: Database) -> None:
    db.sql("CREATE STREAM s (x STRING, n INT)")
    db.sql("CREATE VIEW v AS SELECT x, length(x) AS l, sum(n) AS n FROM s GROUP BY x")
    texts = ["", " ", "'", '"', "\\", "\n", "\t", "\x00", "größe", "表", "🚂" * 3, "NULL", "%", "a" * 3_000_000]
    db.insert("s", [(t, i) for i, t in enumerate(texts)] * 2)
    found = {x: (length, n) for x, length, n in db.sql("SELECT * FROM v").rows()}
    assert found == {t: (len(t), 2 * i) for i, t in enumerate(texts)}


def test_literals_of_every_kind(db: Database) -> None:
    db.sql("CREATE STREAM s (x STRING)")
    db.sql("CREATE VIEW v AS SELECT x FROM s GROUP BY x")
    long = "y" * 60_000
    db.sql(rf"INSERT INTO s VALUES ('it\'s'), ('a;b -- c'), ('größe 🚂'), (''), (NULL), ('{long}')")
    assert ask(db, "SELECT x FROM v") == sorted(
        [("it's",), ("a;b -- c",), ("größe 🚂",), ("",), (None,), (long,)], key=repr
    )


def test_every_type_comes_back_as_it_went_in(db: Database) -> None:
    columns = {
        "bo": ("BOOLEAN", True),
        "ti": ("TINYINT", -128),
        "si": ("SMALLINT", 32767),
        "i": ("INT", -(2**31)),
        "bi": ("BIGINT", 2**63 - 1),
        "f": ("FLOAT", 0.5),
        "d": ("DOUBLE", 1e300),
        "de": ("DECIMAL(38,10)", Decimal("-1234567890123456789012345678.0123456789")),
        "s": ("STRING", "é"),
        "b": ("BINARY", b"\x00\xff"),
        "da": ("DATE", datetime.date(1582, 10, 4)),
        "t": ("TIMESTAMP", datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=datetime.UTC)),
        "n": ("TIMESTAMP_NTZ", datetime.datetime(2024, 2, 29, 1, 2, 3, 4)),
    }
    ddl = ", ".join(f"{name} {kind}" for name, (kind, _) in columns.items())
    row = tuple(value for _, value in columns.values())
    db.sql(f"CREATE STREAM s ({ddl})")
    db.sql(f"CREATE TABLE t ({ddl})")
    names = ", ".join(columns)
    db.sql(f"CREATE VIEW v AS SELECT {names}, count(*) AS c FROM s GROUP BY {names}")
    nulls = (None,) * len(row)
    for target in ("s", "t"):
        db.insert(target, [row, nulls])
    db.insert("s", [row])
    assert ask(db, "SELECT * FROM v") == sorted([(*row, 2), (*nulls, 1)], key=repr)
    assert ask(db, "SELECT * FROM t") == sorted([row, nulls], key=repr)
    assert db.sql("SELECT * FROM t").arrow().schema == db.sql(f"SELECT {names} FROM v").arrow().schema


# Open again


def test_reopened_everything_is_there_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "plant.hr"
    with headrace.connect(path, time_zone="Europe/Berlin") as db:
        db.sql("CREATE STREAM s (part STRING, n INT, at TIMESTAMP)")
        db.sql("CREATE TABLE t (part STRING PRIMARY KEY, w DECIMAL(6,2) NOT NULL)")
        db.sql("INSERT INTO t VALUES ('bolt', 1.5), ('nut', 2)")
        db.sql(
            "CREATE VIEW frozen WITH (tables = 'frozen') AS "
            "SELECT t.part, sum(n * w) AS x FROM s JOIN t ON s.part = t.part GROUP BY t.part"
        )
        db.sql(
            "CREATE VIEW above AS SELECT g.part, n, w "
            "FROM (SELECT part, count(DISTINCT n) AS n FROM s GROUP BY part) g LEFT JOIN t ON g.part = t.part"
        )
        db.sql("CREATE VIEW times AS SELECT max(at) AS m, avg(n) AS n FROM s")
        db.sql("CREATE VIEW heavy AS SELECT part FROM t WHERE w > 1.9")
        db.sql("INSERT INTO s VALUES ('bolt', 2, TIMESTAMP '2024-01-01 00:30:00'), ('pin', 1, NULL)")
        db.sql("INSERT INTO t VALUES ('pin', 9)")
        before = {v: ask(db, f"SELECT * FROM {v}") for v in ("frozen", "above", "times", "heavy", "t")}
        described = {v: db.sql(f"DESCRIBE {v}").rows() for v in before}
        stored = epoch(db)
    assert before["times"] == [(datetime.datetime(2023, 12, 31, 23, 30, tzinfo=datetime.UTC), 1.5)]
    with headrace.connect(path) as db:
        assert epoch(db) == stored
        assert db.runtime.settings.time_zone == "Europe/Berlin"
        assert {v: ask(db, f"SELECT * FROM {v}") for v in before} == before
        assert {v: db.sql(f"DESCRIBE {v}").rows() for v in before} == described
        db.sql("INSERT INTO s VALUES ('bolt', 4, TIMESTAMP '2024-01-01 23:30:00'), ('pin', 1, NULL), ('pin', 2, NULL)")
        assert ask(db, "SELECT * FROM frozen") == [("bolt", Decimal("9.00"))]  # pin was not there at creation
        assert ask(db, "SELECT * FROM above") == [("bolt", 2, Decimal("1.50")), ("pin", 2, Decimal("9.00"))]
        assert ask(db, "SELECT * FROM times") == [(datetime.datetime(2024, 1, 1, 22, 30, tzinfo=datetime.UTC), 2.0)]
        assert refused(db, "INSERT INTO t VALUES ('nut', 1)").condition == "PRIMARY_KEY_VIOLATION"
        assert refused(db, "DROP TABLE t").condition == "RELATION_IN_USE"
        assert not db.runtime.session.started
    with pytest.raises(StoreError, match="time_zone") as error:
        headrace.connect(path, time_zone="UTC")
    assert error.value.condition.isupper() and error.value.hint
    headrace.connect(path, time_zone="Europe/Berlin").close()


def test_differential_reopening_between_inserts(tmp_path: Path) -> None:
    rows = [[("a" * (i % 3), i + j) for j in range(4)] for i in range(8)]
    view = """SELECT x, sum(n) AS s, min(n) AS lo, avg(n) AS m, stddev(n) AS sd, count(DISTINCT n % 5) AS d
              FROM s GROUP BY x"""
    with headrace.connect() as straight:
        straight.sql("CREATE STREAM s (x STRING, n INT)")
        straight.sql(f"CREATE VIEW v AS {view}")
        for batch in rows:
            straight.insert("s", batch)
        expected = ask(straight, "SELECT x, s, lo, m, round(sd, 9), d FROM v")
    path = tmp_path / "d"
    with headrace.connect(path) as db:
        db.sql("CREATE STREAM s (x STRING, n INT)")
        db.sql(f"CREATE VIEW v AS {view}")
    for number, batch in enumerate(rows):
        with headrace.connect(path, compact_rows=5 if number % 2 else 32_768) as db:
            db.insert("s", batch)
    with headrace.connect(path) as db:
        assert ask(db, "SELECT x, s, lo, m, round(sd, 9), d FROM v") == expected


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d"
    program = (
        "import headrace, sys\ntry:\n headrace.connect(sys.argv[1])\nexcept headrace.HeadraceError as e:\n print(e)"
    )

    def other() -> str:
        return subprocess.run(
            [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True, timeout=500
        ).stdout

    with headrace.connect(path) as db:
        db.sql("CREATE TABLE t (a INT)")
        assert other().startswith("[DATABASE_IN_USE]") and f"process {os.getpid()}" in other()
        with pytest.raises(StoreError, match="DATABASE_IN_USE"):
            headrace.connect(path)
        db.sql("INSERT INTO t VALUES (1)")
        assert db.sql("SELECT * FROM t").rows() == [(1,)]
    assert other() == ""


def test_several_databases_at_once(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "a") as a, headrace.connect(tmp_path / "b") as b, headrace.connect() as c:
        for number, one in enumerate((a, b, c)):
            one.sql("CREATE STREAM s (n INT)")
            one.sql("CREATE TABLE t (k INT, w INT)")
            one.sql(f"INSERT INTO t VALUES (1, {10**number})")
            one.sql("CREATE VIEW v AS SELECT sum(n * w) AS x FROM s JOIN t ON n = k")
        for one in (a, b, c):
            one.sql("INSERT INTO s VALUES (1), (2)")
        assert [one.sql("SELECT * FROM v").rows() for one in (a, b, c)] == [[(1,)], [(10,)], [(100,)]]
        b.close()
        a.sql("INSERT INTO s VALUES (1)")
        assert a.sql("SELECT * FROM v").rows() == [(2,)]
    assert not c.path.exists(), "a temporary database leaves nothing"


def test_closed_is_closed(tmp_path: Path) -> None:
    db = headrace.connect(tmp_path / "d")
    db.sql("CREATE STREAM s (n INT)")
    db.sql("CREATE VIEW v AS SELECT sum(n) FROM s")
    db.sql("SELECT * FROM v")
    db.close()
    db.close()
    for use in (
        lambda: db.sql("SELECT * FROM v"),
        lambda: db.sql("CREATE TABLE t (a INT)"),
        lambda: db.sql("SHOW VIEWS"),
        lambda: db.insert("s", [(1,)]),
        lambda: db.copy("s", tmp_path / "x.csv"),
    ):
        with pytest.raises(StoreError, match="DATABASE_CLOSED"):
            use()


# DROP


def test_drop_is_refused_while_something_reads_it(db: Database) -> None:
    db.sql("CREATE STREAM s (n INT)")
    db.sql("CREATE TABLE t (k INT)")
    db.sql("CREATE VIEW v AS SELECT n, count(*) AS c FROM s GROUP BY n")
    db.sql("CREATE VIEW o AS WITH t AS (SELECT 1 AS k), u AS (SELECT * FROM v) SELECT * FROM u JOIN t ON n = t.k")
    db.sql("CREATE VIEW p AS SELECT o.* FROM o LEFT SEMI JOIN t ON n = t.k")
    for kind, name, reader in (("STREAM", "s", "v"), ("VIEW", "v", "o"), ("VIEW", "O", "p"), ("TABLE", "T", "p")):
        before = db.catalog
        error = refused(db, f"DROP {kind} {name}")
        assert error.condition == "RELATION_IN_USE" and reader in error.message and db.catalog is before
    for name in ("VIEW p", "VIEW o", "TABLE t", "VIEW v", "STREAM s"):
        db.sql(f"DROP {name}")
    assert not db.catalog.relations
    assert db.sql("DROP VIEW IF EXISTS p").message == "p does not exist"
    assert refused(db, "DROP VIEW p").condition == "TABLE_OR_VIEW_NOT_FOUND"


def test_drop_cascade_takes_all_readers_along_in_one_commit(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db") as db:
        db.sql("CREATE STREAM s (k STRING, n INT)")
        db.sql("CREATE TABLE t (k STRING)")
        db.sql("CREATE TABLE other AS VALUES (1)")
        joined = "SELECT s.k, count(*) AS n FROM s JOIN t ON s.k = t.k GROUP BY s.k"
        db.sql(f"CREATE VIEW v WITH (tables = 'frozen') AS {joined}")
        db.sql("CREATE VIEW w AS SELECT * FROM v JOIN t USING (k)")
        db.sql("CREATE VIEW x AS SELECT count(*) AS n FROM w")
        db.sql("CREATE VIEW u AS SELECT count(*) AS n FROM s")
        db.insert("s", [("a", 1)])
        with db.runtime.store.read() as snapshot:
            epoch = snapshot.epoch
            owned = {str(ref) for name in "vt" for ref in db.catalog.find(name).owns.values()}
            assert len(owned) == 3 and owned <= set(snapshot.relations())
        assert db.sql("DROP TABLE t CASCADE").message == "table t dropped, and views v, w, x"
        with db.runtime.store.read() as snapshot:
            assert snapshot.epoch == epoch + 1
            assert not [r for r in snapshot.relations() if r in owned]
        assert sorted(db.catalog.relations) == ["other", "s", "u"]
        db.insert("s", [("a", 1)])
        assert ask(db, "SELECT * FROM u") == [(2,)]
    with headrace.connect(tmp_path / "db") as db:
        assert sorted(db.catalog.relations) == ["other", "s", "u"]
        assert db.sql("DROP TABLE other CASCADE").message == "table other dropped"
        assert db.sql("DROP STREAM s CASCADE").message == "stream s dropped, and view u"
        assert not db.catalog.relations


def test_a_dropped_view_made_again_starts_anew(db: Database) -> None:
    db.sql("CREATE STREAM s (n INT)")
    db.sql("CREATE TABLE t (k INT, w INT)")
    for round_, weight in enumerate((1, 100)):
        db.sql(f"INSERT INTO t VALUES ({round_}, {weight})")
        db.sql("CREATE VIEW v AS SELECT sum(n * w) AS x, count(*) AS c FROM s JOIN t ON n >= k")
        assert db.sql("SELECT * FROM v").rows() == [(None, 0)]
        db.sql("INSERT INTO s VALUES (5)")
        assert db.sql("SELECT * FROM v").rows() == [((5, 1), (505, 2))[round_]]
        db.sql("DROP VIEW v")
    db.sql("CREATE VIEW v AS SELECT k FROM t")  # the same name, another kind
    assert ask(db, "SELECT * FROM v") == [(0,), (1,)]


def test_if_not_exists_and_duplicates(db: Database) -> None:
    for kind, body in (("STREAM", "(a INT)"), ("TABLE", "(a INT)"), ("VIEW", "AS SELECT 1 AS a")):
        name = f"x{kind}"
        db.sql(f"CREATE {kind} {name} {body}")
        before = db.catalog
        assert "exists already" in db.sql(f"CREATE {kind} IF NOT EXISTS {name} {body}").message
        with pytest.raises(CatalogError, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
            db.sql(f"CREATE {kind} {name} {body}")
        assert db.catalog is before
