"""ALTER, CREATE OR REPLACE, DEFAULT and CHECK: a table is what a list of dicts would be after the same statements."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import headrace
from headrace import Database
from headrace.errors import HeadraceError
from headrace.spark.published import definition
from headrace.table import rows as tables
from profiles import examples


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect(None, engine="native") as db:
        yield db


def answer(db: Database, text: str) -> list[tuple[Any, ...]]:
    return sorted(db.sql(text).rows(), key=repr)


# A model: columns by ids that nobody gives again, rows as dicts of them.


class Model:
    """What the table is: its name, its columns in order, their defaults, its rows."""

    def __init__(self) -> None:
        self.name = "t"
        self.columns: dict[int, tuple[str, int | None]] = {0: ("id", None), 1: ("a", None), 2: ("b", 5)}
        self.rows: list[dict[int, int | None]] = []
        self.next_column, self.next_id = 3, 0

    def names(self) -> list[str]:
        return [name for name, _ in self.columns.values()]

    def at(self, number: int) -> int:
        """A column other than the first two, whatever number is given."""
        free = list(self.columns)[2:]
        return free[number % len(free)] if free else -1

    def add_rows(self, given: list[dict[int, int | None]]) -> None:
        for row in given:
            self.rows.append({c: row.get(c, default) for c, (_, default) in self.columns.items()})


NAMES = st.sampled_from(["b", "c", "d", "B", "`x y`"])
VALUE = st.none() | st.integers(-3, 9)
STEP = st.tuples(
    st.sampled_from(
        (
            *("insert", "insert", "insert", "rows", "add", "add", "drop", "rename", "rename a", "rename to", "default"),
            *("update", "delete", "merge", "overwrite", "reopen", "replace"),
        )
    ),
    st.integers(0, 9),
    NAMES,
    VALUE,
    st.lists(st.tuples(VALUE, VALUE), min_size=1, max_size=6),
)


def shown(value: int | None) -> str:
    return "NULL" if value is None else str(value)


def step(db: Database, model: Model, what: str, number: int, name: str, value: int | None, rows: Any) -> None:
    """One statement, and what it does to the model. One that is refused does nothing to either."""
    plain = name.strip("`")
    taken = plain.lower() in [n.lower() for n in model.names()]
    column = model.at(number)
    spelled = f"`{model.columns[column][0]}`" if column >= 0 else ""
    table = model.name
    refused = False
    text = ""
    new = [dict(row) for row in model.rows]
    if what in ("insert", "rows"):
        given: list[dict[int, int | None]] = []
        columns = [0] + [c for c in list(model.columns)[1:] if (c + number) % 3]
        for i, pair in enumerate(rows):
            given.append({c: model.next_id + i if c == 0 else pair[c % 2] for c in columns})
        model.next_id += len(given)
        if what == "insert":
            names = ", ".join(f"`{model.columns[c][0]}`" for c in columns)
            values = ", ".join(f"({', '.join(shown(row[c]) for c in columns)})" for row in given)
            db.sql(f"INSERT INTO {table} ({names}) VALUES {values}")
        else:
            db.insert(table, [{model.columns[c][0]: v for c, v in row.items()} for row in given])
        model.add_rows(given)
        return
    if what == "add":
        text = f"ALTER TABLE {table} ADD COLUMN {name} INT DEFAULT {shown(value)}"
        refused = taken
    elif what == "drop":
        text = f"ALTER TABLE {table} DROP COLUMN {spelled or 'a'}"
        refused = column < 0
    elif what == "rename":
        text = f"ALTER TABLE {table} RENAME COLUMN {spelled or 'zz'} TO {name}"
        refused = column < 0 or (taken and model.columns[column][0].lower() != plain.lower())
    elif what == "rename a":
        old, other = model.columns[1][0], "a" if model.columns[1][0] != "a" else "aa"
        text = f"ALTER TABLE {table} RENAME COLUMN {old} TO {other}"
        column, plain = 1, other
    elif what == "rename to":
        text = f"ALTER TABLE {table} RENAME TO {'u' if table == 't' else 't'}"
    elif what == "default":
        said = "DROP DEFAULT" if number % 2 else f"SET DEFAULT {shown(value)}"
        text = f"ALTER TABLE {table} ALTER COLUMN {spelled or 'zz'} {said}"
        refused = column < 0
    elif what == "update":
        text = f"UPDATE {table} SET {spelled or 'a'} = {'DEFAULT' if number % 2 else shown(value)} WHERE id % 2 = 0"
        column = column if column >= 0 else 1
        if column == 1:
            text = f"UPDATE {table} SET {model.columns[1][0]} = {shown(value)} WHERE id % 2 = 0"
    elif what == "delete":
        text = f"DELETE FROM {table} WHERE id % 5 = {number % 5}"
    elif what == "merge":
        text = (
            f"MERGE INTO {table} USING (SELECT {model.next_id} AS k UNION ALL SELECT {number}) s ON s.k = {table}.id "
            "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id) VALUES (s.k)"
        )
    elif what == "overwrite":
        text = f"INSERT OVERWRITE {table} (id) SELECT id FROM {table} WHERE id % 3 = {number % 3}"
    elif what == "replace":
        names = ", ".join(f"`{n}`" for n in model.names())
        text = f"CREATE OR REPLACE TABLE {table} AS SELECT {names} FROM {table}"
        refused = True  # a materialized view reads it
    try:
        db.sql(text)
    except HeadraceError as error:
        assert refused, error
        return
    assert not refused, text
    if what == "add":
        column, model.next_column = model.next_column, model.next_column + 1
        model.columns[column] = (plain, value)
        model.rows = [row | {column: value} for row in new]
    elif what == "drop":
        del model.columns[column]
        model.rows = [{c: v for c, v in row.items() if c != column} for row in new]
    elif what in ("rename", "rename a"):
        model.columns[column] = (plain, model.columns[column][1])
    elif what == "rename to":
        model.name = "u" if table == "t" else "t"
    elif what == "default":
        model.columns[column] = (model.columns[column][0], None if number % 2 else value)
    elif what == "update":
        default = model.columns[column][1] if number % 2 and column != 1 else value
        model.rows = [row | {column: default} if row[0] % 2 == 0 else row for row in new]
    elif what == "delete":
        model.rows = [row for row in new if row[0] % 5 != number % 5]
    elif what == "merge":
        found = [k for k in {model.next_id, number} if k not in [row[0] for row in new]]
        model.rows = [row for row in new if row[0] not in (model.next_id, number)]
        model.add_rows([{0: k} for k in found])
        model.next_id += 1
    elif what == "overwrite":
        ids = [row[0] for row in new if row[0] % 3 == number % 3]
        model.rows = []
        model.add_rows([{0: k} for k in ids])


def compare(db: Database, model: Model) -> None:
    found = db.sql(f"SELECT * FROM {model.name}")
    assert found.arrow().column_names == model.names()
    expected = [tuple(row[c] for c in model.columns) for row in model.rows]
    assert answer(db, f"SELECT * FROM {model.name}") == sorted(expected, key=repr)
    names = ", ".join(f"`{n}`" for n in reversed(model.names()))
    reversed_ = sorted((row[::-1] for row in expected), key=repr)
    assert answer(db, f"SELECT {names} FROM {model.name}") == reversed_
    drawn = answer(db, f"SELECT * FROM {model.name} TABLESAMPLE RESERVOIR (1000 ROWS)")
    assert drawn == sorted(expected, key=repr)
    assert answer(db, "SELECT * FROM v") == sorted(((row[0], row[1]) for row in model.rows), key=repr)
    groups: dict[int | None, int] = {}
    for row in model.rows:
        groups[row[1]] = groups.get(row[1], 0) + 1
    assert answer(db, "SELECT * FROM m") == sorted(groups.items(), key=repr)


@settings(max_examples=examples(40))
@given(todo=st.lists(STEP, max_size=14))
def test_a_table_is_what_a_list_of_dicts_would_be(todo: list[tuple[str, int, str, int | None, Any]]) -> None:
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr(tables, "TAIL_ROWS", 5)  # so that rows lie in segments and in the tail
        db = headrace.connect(Path(folder) / "db", engine="native")
        try:
            model = Model()
            db.sql("CREATE TABLE t (id INT, a INT, b INT DEFAULT 5)")
            db.sql("CREATE VIEW v AS SELECT id, a FROM t")
            db.sql("CREATE MATERIALIZED VIEW m AS SELECT a, count(*) AS n FROM t GROUP BY a")
            for what, number, name, value, rows in todo:
                if what == "reopen":
                    db.close()
                    db = headrace.connect(Path(folder) / "db", engine="native")
                else:
                    step(db, model, what, number, name, value, rows)
                compare(db, model)
        finally:
            db.close()


# Refusals: what is said, where, and that nothing changes.

REFUSED = [
    ("ALTER TABLE ^nope ADD COLUMN c INT", "TABLE_OR_VIEW_NOT_FOUND"),
    ("ALTER VIEW ^t RENAME TO u", "WRONG_COMMAND_FOR_OBJECT_TYPE"),
    ("ALTER TABLE t RENAME TO ^v", "TABLE_OR_VIEW_ALREADY_EXISTS"),
    ("ALTER TABLE t RENAME TO ^``", "INVALID_SCHEMA_OR_RELATION_NAME"),
    ("ALTER TABLE t ADD COLUMN ^A INT", "FIELD_ALREADY_EXISTS"),
    ("ALTER TABLE t ADD COLUMNS (c INT, ^C INT)", "FIELD_ALREADY_EXISTS"),
    ("ALTER TABLE t ADD COLUMN ^c INT NOT NULL", "NOT_NULL_WITHOUT_DEFAULT"),
    ("ALTER TABLE t ADD COLUMN ^c INT NOT NULL DEFAULT NULL", "NOT_NULL_WITHOUT_DEFAULT"),
    ("ALTER TABLE t ADD COLUMN c INT ^FIRST", "NOT_YET_SUPPORTED"),
    ("ALTER TABLE t ADD COLUMN c INT DEFAULT ^'x'", "INVALID_DEFAULT_VALUE.DATA_TYPE"),
    ("ALTER TABLE t ADD COLUMN c INT DEFAULT ^a", "INVALID_DEFAULT_VALUE.NOT_CONSTANT"),
    ("ALTER TABLE t ADD COLUMN c INT DEFAULT ^(SELECT 1)", "INVALID_DEFAULT_VALUE.SUBQUERY_EXPRESSION"),
    ("ALTER TABLE t ADD COLUMN c DOUBLE DEFAULT ^rand()", "INVALID_DEFAULT_VALUE.NON_DETERMINISTIC"),
    ("ALTER TABLE t ADD COLUMN c INT DEFAULT ^current_timestamp()", "INVALID_DEFAULT_VALUE.DATA_TYPE"),
    ("ALTER TABLE t ADD COLUMN c TINYINT DEFAULT ^1000", "INVALID_DEFAULT_VALUE"),
    ("ALTER TABLE t ADD COLUMN c INT DEFAULT ^1 / 0", None),
    ("ALTER TABLE t ADD COLUMN c VARCHAR(2) DEFAULT ^'abc'", "INVALID_DEFAULT_VALUE"),
    ("ALTER TABLE t ADD COLUMN c ARRAY<INT> DEFAULT ^array(1)", "NOT_YET_SUPPORTED"),
    ("ALTER TABLE t DROP COLUMN ^zz", "UNRESOLVED_COLUMN"),
    ("ALTER TABLE t DROP COLUMN ^id", "COLUMN_IN_PRIMARY_KEY"),
    ("ALTER TABLE t DROP COLUMN ^a", "RELATION_IN_USE"),
    ("ALTER TABLE t DROP COLUMN ^b", "COLUMN_IN_CONSTRAINT"),
    ("ALTER TABLE t RENAME COLUMN ^zz TO y", "UNRESOLVED_COLUMN"),
    ("ALTER TABLE t RENAME COLUMN a TO ^B", "FIELD_ALREADY_EXISTS"),
    ("ALTER TABLE t RENAME COLUMN a ^y", "PARSE_SYNTAX_ERROR"),
    ("ALTER TABLE t ALTER COLUMN a ^TYPE BIGINT", "NOT_YET_SUPPORTED"),
    ("ALTER TABLE t ALTER COLUMN a ^SET NOT NULL", "NOT_YET_SUPPORTED"),
    ("ALTER TABLE t ALTER COLUMN ^zz SET DEFAULT 1", "UNRESOLVED_COLUMN"),
    ("ALTER TABLE t ADD CONSTRAINT ^few CHECK (a < 9)", "CONSTRAINT_ALREADY_EXISTS"),
    ("ALTER TABLE t ADD CONSTRAINT ^c CHECK (a < 20)", "NEW_CHECK_CONSTRAINT_VIOLATION"),
    ("ALTER TABLE t ADD CONSTRAINT c CHECK (^zz > 1)", "UNRESOLVED_COLUMN"),
    ("ALTER TABLE t ADD CONSTRAINT c CHECK (^a)", "DATATYPE_MISMATCH"),
    ("ALTER TABLE t ADD CONSTRAINT c CHECK (a > ^(SELECT 1))", "NOT_YET_SUPPORTED"),
    ("ALTER TABLE t ADD CONSTRAINT c CHECK (a > ^rand())", "NON_DETERMINISTIC_CHECK_CONSTRAINT"),
    ("ALTER TABLE t ADD CONSTRAINT c CHECK (max(a) > 1)", None),
    ("ALTER TABLE t ADD CONSTRAINT c CHECK (a > 0) ^NOT ENFORCED", "NOT_YET_SUPPORTED"),
    ("ALTER TABLE t DROP CONSTRAINT ^nope", "CONSTRAINT_DOES_NOT_EXIST"),
    ("ALTER TABLE t SET (keep = ^'1 day')", "TABLE_OPTION_UNKNOWN"),
    ("ALTER TABLE t SET (keep_changes = ^'1 month')", "INVALID_KEEP_CHANGES"),
    ("ALTER TABLE t ^SET LOCATION 'x'", "NOT_YET_SUPPORTED"),
    ("ALTER TABLE t ^frobnicate", "PARSE_SYNTAX_ERROR"),
    ("ALTER MATERIALIZED ^TABLE t RENAME TO u", "PARSE_SYNTAX_ERROR"),
    ("ALTER VIEW v ^ADD COLUMN c INT", "WRONG_COMMAND_FOR_OBJECT_TYPE"),
    ("ALTER STREAM s ^DROP COLUMN k", "NOT_YET_SUPPORTED"),
    ("ALTER STREAM s ADD COLUMN c INT ^CHECK (c > 0)", "NOT_YET_SUPPORTED"),
    ("CREATE OR REPLACE TABLE ^t (id INT)", "RELATION_IN_USE"),
    ("CREATE OR REPLACE TABLE ^v (id INT)", "WRONG_COMMAND_FOR_OBJECT_TYPE"),
    ("CREATE OR REPLACE VIEW ^t AS SELECT 1 AS one", "WRONG_COMMAND_FOR_OBJECT_TYPE"),
    ("CREATE ^OR REPLACE TABLE IF NOT EXISTS t (id INT)", "PARSE_SYNTAX_ERROR"),
    ("CREATE ^OR REPLACE VIEW IF NOT EXISTS v AS SELECT 1 AS one", "PARSE_SYNTAX_ERROR"),
    ("CREATE ^OR REPLACE STREAM s (k INT)", "NOT_YET_SUPPORTED"),
    ("CREATE OR REPLACE VIEW ^v AS SELECT id, a FROM w", "RECURSIVE_VIEW"),
    ("CREATE OR REPLACE VIEW ^v AS SELECT id FROM t", "RELATION_IN_USE"),
    ("CREATE TABLE n (a INT, CHECK (^b > 0))", "UNRESOLVED_COLUMN"),
    ("CREATE TABLE n (a INT, CONSTRAINT c CHECK (a > 0), CONSTRAINT ^C CHECK (a > 1))", "CONSTRAINT_ALREADY_EXISTS"),
    ("CREATE TABLE n (a INT DEFAULT 1 ^DEFAULT 2)", "CREATE_TABLE_COLUMN_DESCRIPTOR_DUPLICATE"),
    ("CREATE TABLE n (a INT) WITH (keep_changes = ^7)", "INVALID_KEEP_CHANGES"),
    ("CREATE TABLE n (a INT) WITH (retain = ^'1 day')", "TABLE_OPTION_UNKNOWN"),
    ("CREATE STREAM n (a INT, ^CHECK (a > 0))", "NOT_YET_SUPPORTED"),
    ("INSERT INTO t VALUES (9, -1, 0)", "CHECK_CONSTRAINT_VIOLATION"),
    ("INSERT INTO t VALUES (9, ^DEFAULT + 1, 0)", "DEFAULT_PLACEMENT_INVALID"),
    ("INSERT OVERWRITE t VALUES (9, -1, 0)", "CHECK_CONSTRAINT_VIOLATION"),
    ("UPDATE t SET a = -a", "CHECK_CONSTRAINT_VIOLATION"),
    ("MERGE INTO t USING (SELECT 1 AS k) x ON x.k = t.id WHEN MATCHED THEN UPDATE SET b = 99",
     "CHECK_CONSTRAINT_VIOLATION"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "condition"), REFUSED)
def test_what_is_refused_changes_nothing(db: Database, text: str, condition: str | None) -> None:
    db.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, CHECK (a >= 0), CONSTRAINT few CHECK (b < 10))")
    db.sql("CREATE STREAM s (k INT)")
    db.sql("INSERT INTO t VALUES (1, 10, 1), (2, 20, NULL)")
    db.sql("CREATE VIEW v AS SELECT id, a FROM t")
    db.sql("CREATE VIEW w AS SELECT * FROM v")
    before = {name: db.sql(f"DESCRIBE {name}").rows() for name in "tsvw"}
    place = text.find("^")
    with pytest.raises(HeadraceError) as refused:
        db.sql(text.replace("^", ""))
    assert condition is None or refused.value.condition == condition, refused.value
    assert place < 0 or (refused.value.position is not None and refused.value.position.column == place + 1)
    assert {name: db.sql(f"DESCRIBE {name}").rows() for name in "tsvw"} == before
    assert answer(db, "SELECT * FROM t") == [(1, 10, 1), (2, 20, None)]
    assert answer(db, "SELECT * FROM w") == [(1, 10), (2, 20)]
    assert len(db.catalog.relations) == 4


# Defaults, wherever rows come from


def test_defaults_fill_what_rows_come_without(db: Database, tmp_path: Path) -> None:
    db.sql("CREATE TABLE t (id INT, a INT DEFAULT 1 + 1, b STRING NOT NULL DEFAULT concat('x', 'y'), c DECIMAL(6,2))")
    db.sql("ALTER TABLE t ALTER COLUMN c SET DEFAULT 1.5")
    db.sql("INSERT INTO t (id) VALUES (1)")
    db.sql("INSERT INTO t VALUES (2, DEFAULT, default, DEFAULT), (3, 7, 'z', NULL)")
    db.sql("INSERT INTO t SELECT 4, DEFAULT, 'q', 2")
    db.insert("t", [{"id": 5}, {"id": 6, "a": None}])
    db.insert("t", pa.table({"id": [7]}))
    db.insert("t", {"id": [8], "b": ["s"]})
    pq.write_table(pa.table({"id": pa.array([9], pa.int32()), "b": ["p"]}), tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text("b,id\nv,10\n")
    (tmp_path / "y.csv").write_text("11\n")
    db.copy("t", tmp_path / "x.parquet")
    db.copy("t", tmp_path / "x.csv", header=True)
    db.sql(f"COPY t (id) FROM '{tmp_path / 'y.csv'}'")
    db.sql("UPDATE t SET a = DEFAULT WHERE id = 3")
    db.sql(
        "MERGE INTO t USING (SELECT 12 AS k) s ON s.k = t.id WHEN NOT MATCHED THEN INSERT (id, a) VALUES (k, DEFAULT)"
    )
    found = [(i, a, b, None if c is None else float(c)) for i, a, b, c in db.sql("SELECT * FROM t ORDER BY id").rows()]
    assert found == [
        (1, 2, "xy", 1.5),
        (2, 2, "xy", 1.5),
        (3, 2, "z", None),
        (4, 2, "q", 2.0),
        (5, 2, "xy", 1.5),
        (6, None, "xy", 1.5),
        (7, 2, "xy", 1.5),
        (8, 2, "s", 1.5),
        (9, 2, "p", 1.5),
        (10, 2, "v", 1.5),
        (11, 2, "xy", 1.5),
        (12, 2, "xy", 1.5),
    ]


def test_the_time_of_the_statement_is_one_for_all_its_rows(db: Database) -> None:
    db.sql("CREATE TABLE t (id INT, made TIMESTAMP DEFAULT current_timestamp(), day DATE DEFAULT current_date())")
    db.sql("INSERT INTO t (id) VALUES (1), (2)")
    db.sql("ALTER TABLE t ADD COLUMN seen TIMESTAMP DEFAULT now()")
    db.sql("INSERT INTO t (id, seen) VALUES (3, DEFAULT)")
    made = dict(db.sql("SELECT id, made FROM t").rows())
    seen = dict(db.sql("SELECT id, seen FROM t").rows())
    assert made[1] == made[2] < seen[1] == seen[2] < seen[3] == made[3]
    assert seen == dict(db.sql("SELECT id, seen FROM t").rows()), "what was there keeps the time of the ALTER"


@pytest.mark.parametrize("value", ["'it''s'", "X'00ff'", "DATE '1969-12-31'", "TIMESTAMP '2024-02-29 12:00:00.000001'"])
def test_a_constant_is_the_same_after_reopen(tmp_path: Path, value: str) -> None:
    type_ = {"'": "STRING", "X": "BINARY", "D": "DATE", "T": "TIMESTAMP"}[value[0]]
    expected = None
    for _ in range(2):
        with headrace.connect(tmp_path / "db", engine="native") as db:
            if expected is None:
                db.sql("CREATE TABLE t (id INT)")
                db.sql("INSERT INTO t VALUES (1)")
                db.sql(f"ALTER TABLE t ADD COLUMNS (c {type_} DEFAULT {value}, d DOUBLE DEFAULT double('NaN'))")
                expected = db.sql(f"SELECT {value}").rows()[0][0]
            db.sql("INSERT INTO t (id) VALUES (2)")
            assert {(c, repr(d)) for c, d in db.sql("SELECT c, d FROM t").rows()} == {(expected, "nan")}


def test_copy_and_insert_keep_conditions(db: Database, tmp_path: Path) -> None:
    db.sql("CREATE TABLE t (a INT, b INT, CHECK (a + b < 10))")
    pq.write_table(
        pa.table({"a": pa.array([1, 9], pa.int32()), "b": pa.array([2, 9], pa.int32())}), tmp_path / "x.parquet"
    )
    for statement in (lambda: db.copy("t", tmp_path / "x.parquet"), lambda: db.insert("t", [(1, 1), (9, 9)])):
        with pytest.raises(HeadraceError, match=r"CHECK_CONSTRAINT_VIOLATION.*t_chk_1.*a = 9, b = 9"):
            statement()
    db.insert("t", [(None, 9), (3, 3)])
    assert len(db.sql("SELECT * FROM t").rows()) == 2
    assert not list((db.path / "segments").glob("*.parquet"))


# What reads follows


def test_what_reads_a_relation_follows_its_renames(tmp_path: Path) -> None:
    texts = ["SELECT * FROM o", "SELECT * FROM c", "SELECT * FROM named", "SELECT * FROM m", "SELECT k, n FROM few"]
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("CREATE STREAM s (k INT, n INT)")
        db.sql("CREATE TABLE t (k INT PRIMARY KEY, name STRING, extra INT)")
        db.sql("INSERT INTO t VALUES (1, 'one', 7), (2, 'two', 8)")
        db.sql("CREATE VIEW o AS SELECT * FROM t NATURAL JOIN (SELECT 1 AS k)")
        db.sql("CREATE VIEW c AS SELECT k, sum(n) AS n FROM s GROUP BY k")
        db.sql("CREATE VIEW named AS SELECT t.name, c.n FROM c JOIN t USING (k)")
        db.sql("CREATE MATERIALIZED VIEW m AS SELECT name, count(*) AS n FROM t GROUP BY name")
        db.sql("CREATE SAMPLE few OF s SIZE 10 WHERE n > 1")
        db.insert("s", [(1, 5), (2, 7), (1, 1)])
        before = [answer(db, text) for text in texts]
        for text in (
            "ALTER TABLE t RENAME TO people",
            "ALTER STREAM s RENAME TO flow",
            "ALTER TABLE people RENAME COLUMN name TO title",
            "ALTER STREAM flow RENAME COLUMN n TO amount",
            "ALTER STREAM flow ADD COLUMN note STRING DEFAULT 'none'",
            "ALTER TABLE people ADD COLUMN name INT",
            "ALTER VIEW c RENAME TO sums",
            "CREATE TABLE t (k INT)",
        ):
            db.sql(text)
            if "VIEW" in text:
                texts[1] = "SELECT * FROM sums"
            assert [answer(db, text) for text in texts] == before, text
        rows = [row for row in db.sql("DESCRIBE named").rows() if row[0].startswith("# renamed")]
        assert ("# renamed", "t", "is called people now") in rows and (
            "# renamed",
            "t.name",
            "is called title now",
        ) in rows
        assert ("sums",) in db.sql("SELECT name FROM headrace.views").rows()
        assert ("people, sums",) in db.sql("SELECT reads FROM headrace.views WHERE name = 'named'").rows()
    with headrace.connect(tmp_path / "db", engine="native") as db:
        assert [answer(db, text) for text in texts] == before
        db.insert("flow", [{"k": 2, "amount": 3}])
        db.sql("INSERT INTO people (k, title) VALUES (3, 'one')")
        assert answer(db, "SELECT * FROM sums") == [(1, 6), (2, 10)]
        assert answer(db, "SELECT * FROM m") == [("one", 2), ("two", 1)]
        assert answer(db, "SELECT * FROM named") == [("one", 6), ("two", 10)]
        assert len(answer(db, "SELECT k, n FROM few")) == 3
        with pytest.raises(HeadraceError, match=r"RELATION_IN_USE.*people.*m, named, o"):
            db.sql("DROP TABLE people")
        with pytest.raises(HeadraceError, match=r"RELATION_IN_USE.*people.title is read by m, named, o"):
            db.sql("ALTER TABLE people DROP COLUMN title")
        with pytest.raises(HeadraceError, match=r"RELATION_IN_USE.*people.extra is read by o"):
            db.sql("ALTER TABLE people DROP COLUMN extra")
        db.sql("ALTER TABLE people DROP COLUMN name")
        db.sql("CREATE OR REPLACE VIEW o AS SELECT 1 AS one")
        db.sql("ALTER TABLE people DROP COLUMN extra")
        assert answer(db, "SELECT * FROM named") == [("one", 6), ("two", 10)]
        with pytest.raises(HeadraceError, match="RELATION_IN_USE"):
            db.sql("CREATE OR REPLACE TABLE people (k INT, title STRING)")


def test_other_processes_are_told_and_files_keep_their_names(db: Database) -> None:
    db.sql("CREATE STREAM s (k INT)")
    before = definition(db.path, "s")
    (db.path / "checkpoints" / before.key).mkdir(parents=True)
    for text in (
        "ALTER STREAM s RENAME TO flow",
        "ALTER STREAM flow ADD COLUMN a INT DEFAULT 3",
        "CREATE STREAM s (x INT)",
    ):
        db.sql(text)
    now = definition(db.path, "flow")
    assert (now.key, now.made, now.relation.columns) == (before.key, before.made, db.catalog.get("flow").columns)
    assert definition(db.path, "s").key != before.key
    db.sql("DROP STREAM s")
    assert (db.path / "checkpoints" / before.key).exists(), "what goes under its old name is another stream"
    db.sql("DROP STREAM flow")
    assert not (db.path / "checkpoints" / before.key).exists()
    with pytest.raises(HeadraceError, match="TABLE_OR_VIEW_NOT_FOUND"):
        definition(db.path, "flow")


def test_names_that_change_places(db: Database) -> None:
    db.sql("CREATE TABLE a (x INT)")
    db.sql("CREATE TABLE b (x INT)")
    db.sql("INSERT INTO a VALUES (1)")
    db.sql("INSERT INTO b VALUES (2)")
    db.sql("CREATE VIEW v AS SELECT a.x AS a, b.x AS b FROM a, b")
    db.sql("ALTER TABLE a RENAME TO c")
    db.sql("ALTER TABLE b RENAME TO a")
    db.sql("ALTER TABLE c RENAME TO b")
    assert db.sql("SELECT * FROM v").rows() == [(1, 2)]
    assert db.sql("SELECT a.x, b.x FROM a, b").rows() == [(2, 1)]


def test_a_view_of_a_stream_sees_columns_from_when_it_was_made(db: Database, tmp_path: Path) -> None:
    db.sql("CREATE STREAM s (k INT) WITH (capacity = 100)")
    db.sql("CREATE VIEW old AS SELECT count(*) AS n, count(*) FILTER (WHERE k > 0) AS m FROM (SELECT * FROM s)")
    db.insert("s", [(1,)])
    db.sql("ALTER STREAM s ADD COLUMNS (a INT DEFAULT 3, b STRING)")
    db.sql("CREATE VIEW new AS SELECT a, b, count(*) AS n FROM s GROUP BY a, b")
    db.insert("s", [{"k": 2}, {"k": 3, "a": 4, "b": "x"}])
    db.insert("s", pa.table({"k": [4], "b": ["y"]}))
    pq.write_table(pa.table({"k": pa.array([5], pa.int32()), "b": ["z"]}), tmp_path / "x.parquet")
    db.copy("s", tmp_path / "x.parquet")
    db.sql("INSERT INTO s (k) VALUES (6)")
    assert db.sql("SELECT * FROM old").rows() == [(6, 6)]
    assert answer(db, "SELECT * FROM new") == [(3, "y", 1), (3, "z", 1), (3, None, 2), (4, "x", 1)]
    found = db.sql("SELECT k, a, b FROM s@oldest LIMIT 2").rows()
    assert found == [(2, 3, None), (3, 4, "x")], "the buffer was made anew"


def test_a_query_of_a_stream_that_is_altered_ends_with_an_error(db: Database) -> None:
    db.sql("CREATE STREAM s (k INT) WITH (capacity = 100, timeout = '1 minute')")
    running = db.sql("SELECT count(*) FROM s")
    db.sql("ALTER STREAM s ADD COLUMN a INT")
    with pytest.raises(HeadraceError, match="STREAM_CLOSED"):
        running.rows()
    assert db.insert("s", [(1, 2)]) == 1


# Replacing


def test_a_table_is_replaced_at_once_and_by_what_it_held(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("CREATE TABLE t (id INT, a INT)")
        db.sql("INSERT INTO t VALUES (1, 2), (3, 4)")
        db.sql("CREATE VIEW v AS SELECT a, id FROM t")
        db.sql("CREATE VIEW w AS SELECT sum(a) AS a FROM v")
        number = db.catalog.get("t").number
        db.sql("CREATE OR REPLACE TABLE t AS SELECT a, id, 'x' AS more FROM t WHERE id = 3")
        assert db.catalog.get("t").number != number
        with pytest.raises(HeadraceError):
            db.sql("CREATE OR REPLACE TABLE t AS SELECT 1 / 0 AS a, 1 AS id")
        with pytest.raises(HeadraceError, match=r"RELATION_IN_USE.*read by v"):
            db.sql("CREATE OR REPLACE TABLE t AS SELECT cast(a AS BIGINT) AS a, id FROM t")
        assert db.sql("SELECT * FROM t").rows() == [(4, 3, "x")]
        assert db.sql("SELECT * FROM v, w").rows() == [(4, 3, 4)]
        db.sql("CREATE OR REPLACE VIEW v AS SELECT a + 1 AS a, id FROM t")
    with headrace.connect(tmp_path / "db", engine="native") as db:
        assert db.sql("SELECT * FROM v, w").rows() == [(5, 3, 5)]
        db.sql("CREATE OR REPLACE TABLE n (a INT DEFAULT 4)")
        db.sql("INSERT INTO n VALUES (DEFAULT)")
        db.sql("CREATE STREAM s (k INT)")
        db.sql("CREATE OR REPLACE VIEW kept AS SELECT count(*) AS n FROM s")
        db.insert("s", [(1,)])
        db.sql("CREATE OR REPLACE VIEW kept AS SELECT k, count(*) AS n FROM s GROUP BY k")
        assert db.sql("SELECT * FROM kept").rows() == []
        db.insert("s", [(1,), (1,)])
        assert db.sql("SELECT * FROM kept").rows() == [(1, 2)]
        db.sql("CREATE OR REPLACE VIEW kept AS SELECT a FROM n")
        assert db.sql("SELECT * FROM kept").rows() == [(4,)]
        db.sql("DROP STREAM s")


def test_what_was_altered_is_altered_after_a_kill(tmp_path: Path) -> None:
    """The directory as it lies at one moment is what a kill leaves: it is opened as it is, from a copy."""
    import shutil

    db = headrace.connect(tmp_path / "db", engine="native", durability="commit")
    try:
        db.sql("CREATE TABLE t (id INT, a INT)")
        db.sql("INSERT INTO t VALUES (1, 2)")
        db.sql("CREATE VIEW v AS SELECT a FROM t")
        for number, text in enumerate(
            [
                "ALTER TABLE t ADD COLUMN b INT DEFAULT 9",
                "ALTER TABLE t RENAME COLUMN a TO c",
                "ALTER TABLE t RENAME TO u",
                "ALTER TABLE u DROP COLUMN b",
                "CREATE OR REPLACE TABLE u AS SELECT id, c AS a, 5 AS b FROM u",
            ]
        ):
            db.sql(text)
            shutil.copytree(tmp_path / "db", tmp_path / f"left{number}", ignore=shutil.ignore_patterns("headrace.lock"))
        expected = [
            ("t", ("id", "a", "b"), (1, 2, 9)),
            ("t", ("id", "c", "b"), (1, 2, 9)),
            ("u", ("id", "c", "b"), (1, 2, 9)),
        ]
        expected += [("u", ("id", "c"), (1, 2)), ("u", ("id", "a", "b"), (1, 2, 5))]
    finally:
        db.close()
    for number, (name, columns, row) in enumerate(expected):
        with headrace.connect(tmp_path / f"left{number}", engine="native") as again:
            found = again.sql(f"SELECT * FROM {name}")
            assert (tuple(found.arrow().column_names), found.rows()) == (columns, [row])
            assert again.sql("SELECT * FROM v").rows() == [(2,)]


def test_inserts_beside_alters_lose_nothing(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "TAIL_ROWS", 20)
    db.sql("CREATE TABLE t (id INT, a INT)")
    db.sql("CREATE VIEW v AS SELECT id, a FROM t")
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for n in range(30):
                db.insert("t", pa.table({"id": [thread * 100 + n], "a": [n]})) if n % 2 else db.sql(
                    f"INSERT INTO t (id) VALUES ({thread * 100 + n})"
                )
        except HeadraceError as error:
            if error.condition != "MISSING_COLUMN" and error.condition != "UNKNOWN_COLUMN":
                failures.append(error)

    def alter() -> None:
        for n in range(8):
            db.sql(f"ALTER TABLE t ADD COLUMN c{n} INT DEFAULT {n}")
            db.sql(f"ALTER TABLE t DROP COLUMN c{n - 1}") if n else None
            db.sql("UPDATE t SET a = a WHERE id % 7 = 0")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)] + [threading.Thread(target=alter)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert answer(db, "SELECT id, a FROM t") == sorted(
        [(t * 100 + n, n if n % 2 else None) for t in range(3) for n in range(30)], key=repr
    )
    assert answer(db, "SELECT DISTINCT c7 FROM t") == [(7,)]


@pytest.mark.spark
def test_both_readers_see_the_same_rows(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "TAIL_ROWS", 3)
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("CREATE TABLE t (id INT, a STRING, gone INT)")
        db.sql("INSERT INTO t VALUES (1, 'x', 1), (2, 'y', 2), (3, 'z', 3), (4, 'u', 4)")
        db.sql("ALTER TABLE t ADD COLUMN d DECIMAL(6,2) DEFAULT 1.25")
        db.sql("ALTER TABLE t DROP COLUMN gone")
        db.sql("DELETE FROM t WHERE id = 2")
        db.sql("ALTER TABLE t ADD COLUMN gone TIMESTAMP DEFAULT TIMESTAMP '2024-02-29 01:02:03'")
        db.sql("INSERT INTO t (id, a) VALUES (5, 'v')")
        db.sql("ALTER TABLE t RENAME COLUMN a TO b")
        db.sql("UPDATE t SET b = 'w', gone = NULL WHERE id = 3")
        expected = answer(db, "SELECT * FROM t")
        assert len(expected) == 4
    with headrace.connect(tmp_path / "db", engine="spark", spark=spark) as db:
        assert answer(db, "SELECT * FROM t") == expected
        assert answer(db, "SELECT id, b, d, gone FROM t WHERE d = 1.25") == expected
        db.insert("t", spark.createDataFrame([(9, None)], "id int, b string"))
        assert db.sql("SELECT b, d, gone IS NULL FROM t WHERE id = 9").rows() == [(None, expected[0][2], False)]
