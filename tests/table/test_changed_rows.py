"""UPDATE, DELETE, MERGE, TRUNCATE and INSERT OVERWRITE: a table is what a list would be after the same changes."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import headrace
from headrace import Database
from headrace.errors import HeadraceError
from headrace.table import rows as tables
from profiles import examples

Row = tuple[int, int | None, str | None]
Rows = list[Row]


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect(None, engine="native") as db:
        yield db


# Statements, and what each does to a list. ``None`` is a refusal: nothing changes.

Step = tuple[str, Callable[[Rows, Rows], Rows | None]]


def changed(rows: Rows, where: Callable[[Row], Any], new: Callable[[Row], Row]) -> Rows:
    return [new(r) if where(r) is True else r for r in rows]


def less(a: int | None, b: int) -> bool | None:
    return None if a is None else a < b


def steps() -> st.SearchStrategy[Step]:
    n = st.integers(-3, 12)
    return st.one_of(
        n.map(lambda n: (f"DELETE FROM t WHERE a < {n}", lambda t, s: [r for r in t if less(r[1], n) is not True])),
        n.map(lambda n: (f"DELETE FROM t AS x WHERE x.id = {n}", lambda t, s: [r for r in t if r[0] != n])),
        n.map(
            lambda n: (
                f"UPDATE t SET a = a + {n}, b = concat(b, '!') WHERE id % 2 = 0",
                lambda t, s: changed(
                    t,
                    lambda r: r[0] % 2 == 0,
                    lambda r: (r[0], None if r[1] is None else r[1] + n, None if r[2] is None else r[2] + "!"),
                ),
            )
        ),
        n.map(
            lambda n: (
                f"UPDATE t SET b = DEFAULT, a = {n} WHERE a IN (SELECT a FROM s)",
                lambda t, s: changed(
                    t, lambda r: r[1] is not None and r[1] in [x[1] for x in s], lambda r: (r[0], n, None)
                ),
            )
        ),
        n.map(
            lambda n: (
                f"UPDATE t SET a = (SELECT max(a) FROM s WHERE s.id = t.id) WHERE a < {n}",
                lambda t, s: changed(
                    t,
                    lambda r: less(r[1], n),
                    lambda r: (r[0], max((x[1] for x in s if x[0] == r[0] and x[1] is not None), default=None), r[2]),
                ),
            )
        ),
        n.map(lambda n: (f"UPDATE t SET id = id + {n}", lambda t, s: [(r[0] + n, *r[1:]) for r in t])),
        st.just(("UPDATE t SET id = 1", lambda t, s: [(1, *r[1:]) for r in t])),
        st.just(("UPDATE t SET a = 1 / (id - id)", lambda t, s: None if t else [])),
        st.just(("TRUNCATE TABLE t", lambda t, s: [])),
        st.just(("DELETE FROM t", lambda t, s: [])),
        st.just(
            (
                "INSERT OVERWRITE t SELECT id, a + 1, b FROM t WHERE id < 6",
                lambda t, s: [(i, None if a is None else a + 1, b) for i, a, b in t if i < 6],
            )
        ),
        n.map(lambda n: (f"INSERT INTO t SELECT id + 20, a, b FROM s WHERE id > {n}", lambda t, s: _insert(t, s, n))),
        n.map(lambda n: (_MERGE.format(n=n), lambda t, s: _merge(t, s, n))),
        st.just((_SYNC, _sync)),
        st.just((_GONE, lambda t, s: [r for r in t if r[1] is None or r[1] not in [x[1] for x in s]])),
    )


def _insert(t: Rows, s: Rows, n: int) -> Rows:
    return [*t, *((i + 20, a, b) for i, a, b in s if i > n)]


_MERGE = """
    MERGE INTO t USING s AS x ON t.id = x.id
    WHEN MATCHED AND x.a < {n} THEN DELETE
    WHEN MATCHED AND x.a IS NOT NULL THEN UPDATE SET a = x.a + coalesce(t.a, 0), b = x.b
    WHEN NOT MATCHED AND x.a < {n} THEN INSERT (id, b) VALUES (x.id, x.b)
    WHEN NOT MATCHED BY SOURCE AND t.a < {n} THEN UPDATE SET b = 'alone'
    WHEN NOT MATCHED BY SOURCE AND id > 10 THEN DELETE
"""


def _merge(t: Rows, s: Rows, n: int) -> Rows | None:
    left: Rows = []
    for row in t:
        matches = [x for x in s if x[0] == row[0]]
        if len(matches) > 1:
            return None
        if matches:
            (x,) = matches
            if less(x[1], n):
                continue
            left.append((row[0], x[1] + (row[1] or 0), x[2]) if x[1] is not None else row)
        elif less(row[1], n):
            left.append((row[0], row[1], "alone"))
        elif row[0] <= 10:
            left.append(row)
    known = {r[0] for r in t}
    return [*left, *((x[0], None, x[2]) for x in s if x[0] not in known and less(x[1], n))]


_GONE = "MERGE INTO t USING s AS x ON t.a = x.a WHEN MATCHED THEN DELETE"
"""Several rows of the source may say so of one."""

_SYNC = """
    MERGE INTO t USING (SELECT id, min(a) AS a, max(b) AS b FROM s GROUP BY id) ON t.id = __source.id
    WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE THEN DELETE
""".replace("GROUP BY id)", "GROUP BY id) AS __source")


def _sync(t: Rows, s: Rows) -> Rows | None:
    wanted: dict[int, Row] = {}
    for i in {x[0] for x in s}:
        a = [x[1] for x in s if x[0] == i and x[1] is not None]
        b = [x[2] for x in s if x[0] == i and x[2] is not None]
        wanted[i] = (i, min(a, default=None), max(b, default=None))
    kept = [wanted[r[0]] for r in t if r[0] in wanted]
    known = {r[0] for r in t}
    return [*kept, *(row for i, row in wanted.items() if i not in known)]


KEPT = [
    "SELECT b, count(*) AS n, sum(a) AS s, min(a) AS lo, max(id) AS hi, avg(a) AS m FROM t GROUP BY b",
    "SELECT count(a) AS n, sum(a) AS s, min(b) AS lo FROM t WHERE id > 2",
    "SELECT DISTINCT a, b FROM t",
    "SELECT a % 3 AS g, count(DISTINCT b) AS d, max(cast(a AS DOUBLE)) AS x FROM t GROUP BY a % 3 HAVING count(*) > 1",
    "SELECT k, count(*) AS n FROM (SELECT id AS k FROM t UNION ALL SELECT a FROM s UNION ALL TABLE i) GROUP BY k",
    "SELECT a, count(*) AS n, min(b) AS lo FROM (SELECT a, b FROM t UNION ALL VALUES (1, 'v')) GROUP BY a",
    "SELECT x.n, s.b FROM (SELECT id, count(*) AS n FROM t GROUP BY id) x JOIN s ON s.id = x.id",
]
"""Of what is there now, computed and kept."""

ROWS = st.lists(
    st.tuples(st.integers(0, 12), st.none() | st.integers(-5, 12), st.none() | st.sampled_from(["", "é", "b"])),
    max_size=8,
)


@settings(max_examples=examples(20))
@given(
    views=st.lists(st.sampled_from(KEPT), max_size=2, unique=True),
    keyed=st.booleans(),
    first=ROWS,
    source=ROWS,
    todo=st.lists(st.tuples(steps(), ROWS, st.booleans()), max_size=6),
)
def test_a_table_is_what_a_list_would_be(
    views: list[str], keyed: bool, first: Rows, source: Rows, todo: list[tuple[Step, Rows, bool]]
) -> None:
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr(tables, "TAIL_ROWS", 5)  # so that rows lie in segments and in the tail
        db = headrace.connect(Path(folder) / "db", engine="native")
        try:
            db.sql(f"CREATE TABLE t (id INT {'PRIMARY KEY' if keyed else ''}, a INT, b STRING)")
            db.sql("CREATE TABLE s (id INT, a INT, b STRING)")
            db.sql("CREATE VIEW v AS SELECT count(*) AS n, sum(a) AS a FROM t")
            db.sql("CREATE VIEW i AS SELECT id FROM t")
            for number, kept in enumerate(views):
                db.sql(f"CREATE VIEW v{number} AS {kept}")
                db.sql(f"CREATE MATERIALIZED VIEW m{number} AS {kept}")
            db.insert("s", source)
            expected: Rows = []
            for (text, meant), more, again in (((("", lambda t, s: t)), first, False), *todo):
                expected = done(db, "INSERT", lambda t, s, more=more: [*t, *more], expected, source, keyed, more)
                if text:
                    expected = done(db, text, meant, expected, source, keyed)
                if again:
                    db.close()
                    db = headrace.connect(Path(folder) / "db", engine="native")
                found = db.sql("SELECT id, a, b FROM t").rows()
                assert sorted(found, key=repr) == sorted(expected, key=repr), text
                (shown,) = [row for row in db.sql("SHOW TABLES").rows() if row[0] == "t"]
                assert shown[1] == len(expected)
                total = (
                    sum(r[1] for r in expected if r[1] is not None) if any(r[1] is not None for r in expected) else None
                )
                assert db.sql("SELECT * FROM v").rows() == [(len(expected), total)]
                for number, kept in enumerate(views):
                    computed = db.sql(f"SELECT * FROM v{number}").rows()
                    assert sorted(db.sql(f"SELECT * FROM m{number}").rows(), key=repr) == sorted(computed, key=repr), (
                        kept
                    )
                drawn = db.sql("SELECT id FROM t TABLESAMPLE RESERVOIR (1000 ROWS)").rows()
                assert sorted(drawn) == sorted((r[0],) for r in expected)
        finally:
            db.close()


def done(
    db: Database,
    text: str,
    meant: Callable[[Rows, Rows], Rows | None],
    before: Rows,
    source: Rows,
    keyed: bool,
    rows: Rows | None = None,
) -> Rows:
    """Run a statement in both; what comes out of the list."""
    after = meant(before, source)
    if after is not None and keyed and len({r[0] for r in after}) < len(after):
        after = None
    try:
        if rows is not None:
            db.insert("t", rows)
        else:
            db.sql(text)
    except HeadraceError as error:
        assert after is None, error
        return before
    assert after is not None, text
    return after


def test_counts_and_rows_of_the_answer(db: Database) -> None:
    db.sql("CREATE TABLE t (id INT, a INT)")
    db.sql("INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    changed = db.sql("UPDATE t SET a = 0 WHERE id > 1")
    assert (changed.rows(), str(changed)) == ([(2,)], "2 rows updated in t")
    assert str(db.sql("DELETE FROM t WHERE id = 9")) == "0 rows changed in t"
    merged = "MERGE INTO t USING (SELECT 3 AS id UNION ALL SELECT 4) AS s ON s.id = t.id "
    merged += "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
    assert str(db.sql(merged)) == "1 row deleted, 1 row inserted in t"
    assert sorted(db.sql("SELECT * FROM t").rows()) == [(1, 1), (2, 0), (4, None)]
    assert str(db.sql("TRUNCATE TABLE t")) == "3 rows deleted in t"


def test_rows_of_defaults_alone_are_merged_in(db: Database) -> None:
    db.sql("CREATE TABLE t (id INT, a INT DEFAULT 7, b STRING)")
    source = "MERGE INTO t USING (VALUES (1), (2)) AS s (k) ON s.k = t.id WHEN NOT MATCHED THEN INSERT "
    db.sql(source + "(a, b) VALUES (DEFAULT, DEFAULT)")
    db.sql(source + "(b) VALUES (DEFAULT)")
    assert db.sql("SELECT * FROM t").rows() == [(None, 7, None)] * 4


def test_threads_that_add_to_the_same_row_lose_nothing(db: Database) -> None:
    db.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    db.sql("INSERT INTO t VALUES (1, 0), (2, 0)")

    def add() -> None:
        for _ in range(10):
            db.sql("UPDATE t SET a = a + 1 WHERE id = 1")

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(db.sql("SELECT * FROM t").rows()) == [(1, 40), (2, 0)]


REFUSED = [
    ("UPDATE t SET ^zz = 1", "UNRESOLVED_COLUMN"),
    ("UPDATE t SET a = 1, ^a = 2", "COLUMN_ALREADY_EXISTS"),
    ("UPDATE t SET ^a = 'x'", "INCOMPATIBLE_DATA_FOR_TABLE"),
    ("UPDATE t SET a = ^zz", "UNRESOLVED_COLUMN"),
    ("UPDATE t SET a = 99999999999", "CAST_OVERFLOW_IN_TABLE_INSERT"),
    ("UPDATE t SET id = NULL", "NULL_IN_NOT_NULL"),
    ("UPDATE t SET id = 1", "PRIMARY_KEY_VIOLATION"),
    ("UPDATE t SET a = 1 WHERE ^a", "DATATYPE_MISMATCH"),
    ("UPDATE ^nope SET a = 1", "TABLE_OR_VIEW_NOT_FOUND"),
    ("UPDATE ^s SET k = 1", "WRONG_COMMAND_FOR_OBJECT_TYPE"),
    ("UPDATE ^v SET a = 1", "CANNOT_INSERT_INTO_VIEW"),
    ("DELETE FROM t WHERE id IN (SELECT k FROM s)", "NOT_YET_SUPPORTED"),
    ("DELETE FROM t WHERE count(*) > 1", None),
    ("UPDATE t SET ^a = count(*)", "UNSUPPORTED_EXPR_FOR_OPERATOR"),
    ("DELETE ^t", "PARSE_SYNTAX_ERROR"),
    ("UPDATE t a ^= 1", "PARSE_SYNTAX_ERROR"),
    ("TRUNCATE ^t", "PARSE_SYNTAX_ERROR"),
    ("CREATE TABLE ^x (`__Weight` INT)", "INVALID_COLUMN_NAME"),
    ("CREATE TABLE ^x AS SELECT 1 AS __file", "INVALID_COLUMN_NAME"),
    ("CREATE MATERIALIZED VIEW ^m AS SELECT a, count(*) FROM VALUES (1) AS x(a) GROUP BY a", "NOT_YET_SUPPORTED"),
    ("INSERT OVERWRITE ^s VALUES (1)", "WRONG_COMMAND_FOR_OBJECT_TYPE"),
    ("UPDATE t SET a = ^__row", "UNRESOLVED_COLUMN"),
    ("UPDATE t SET a = hash(^*)", "NOT_YET_SUPPORTED"),
    ("DELETE FROM t WHERE hash(^t.*) = 1", "NOT_YET_SUPPORTED"),
    ("MERGE INTO t USING t AS u ON t.id = u.id WHEN MATCHED AND ^rand() < 0.5 THEN DELETE",
     "UNSUPPORTED_MERGE_CONDITION.NON_DETERMINISTIC"),
    ("MERGE INTO t USING t AS u ON t.id = u.id", "PARSE_SYNTAX_ERROR"),
    ("MERGE INTO t USING t AS u ON true WHEN MATCHED THEN UPDATE SET a = 0", "MERGE_CARDINALITY_VIOLATION"),
    ("MERGE INTO t USING t AS u ON t.id = u.id WHEN MATCHED THEN ^INSERT *", "PARSE_SYNTAX_ERROR"),
    ("MERGE INTO t USING t AS u ON t.id = u.id ^WHEN MATCHED THEN DELETE WHEN MATCHED THEN UPDATE SET a = 1",
     "NON_LAST_MATCHED_CLAUSE_OMIT_CONDITION"),
    ("MERGE INTO t USING s AS u ON t.id = u.k WHEN MATCHED THEN DELETE", "NOT_YET_SUPPORTED"),
    ("MERGE INTO t USING (SELECT 1 AS id) AS u ON t.id = u.id WHEN MATCHED THEN UPDATE SET *", "UNRESOLVED_COLUMN"),
    ("MERGE INTO t USING (SELECT 7 AS id, 1 AS a UNION ALL SELECT 7, 2) AS u ON t.id = u.id "
     "WHEN NOT MATCHED THEN INSERT *", "PRIMARY_KEY_VIOLATION"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "condition"), REFUSED)
def test_what_is_refused_changes_nothing(db: Database, text: str, condition: str | None) -> None:
    db.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    db.sql("CREATE STREAM s (k INT)")
    db.sql("CREATE VIEW v AS SELECT * FROM t")
    db.sql("INSERT INTO t VALUES (1, 10), (2, 20)")
    place = text.find("^")
    with pytest.raises(HeadraceError) as refused:
        db.sql(text.replace("^", ""))
    assert condition is None or refused.value.condition == condition
    assert place < 0 or (refused.value.position is not None and refused.value.position.column == place + 1)
    assert sorted(db.sql("SELECT * FROM t").rows()) == [(1, 10), (2, 20)]


def test_continuous_views_see_changes_of_tables_above_their_grouping(db: Database) -> None:
    db.sql("CREATE STREAM s (k INT)")
    db.sql("CREATE TABLE t (id INT PRIMARY KEY, name STRING)")
    db.sql("INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    grouped = "SELECT k, count(*) AS n FROM s GROUP BY k"
    db.sql(f"CREATE VIEW v AS SELECT g.k, g.n, t.name FROM ({grouped}) g JOIN t ON t.id = g.k")
    db.insert("s", [(1,), (1,), (2,)])
    assert sorted(db.sql("SELECT * FROM v").rows()) == [(1, 2, "one"), (2, 1, "two")]
    db.sql("UPDATE t SET name = upper(name) WHERE id = 1")
    db.sql("DELETE FROM t WHERE id = 2")
    assert sorted(db.sql("SELECT * FROM v").rows()) == [(1, 2, "ONE")]


def test_a_tail_of_a_table_from_before_rows_had_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(tables, "tail_schema", lambda table: tables.arrow_schema(table.columns))
        with headrace.connect(tmp_path / "db", engine="native") as db:
            db.sql("CREATE TABLE t (id INT, a INT)")
            db.sql("INSERT INTO t VALUES (1, 1), (1, 1), (2, 2)")
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("INSERT INTO t VALUES (3, 3)")
        assert str(db.sql("UPDATE t SET a = a + 10 WHERE id < 3")) == "3 rows updated in t"
        db.sql("INSERT INTO t VALUES (4, 4)")
        db.sql("DELETE FROM t WHERE id IN (2, 4)")
        assert sorted(db.sql("SELECT * FROM t").rows()) == [(1, 11), (1, 11), (3, 3)]


_BY_SPARK = """
    MERGE INTO t AS x USING (SELECT id, row_number() OVER (ORDER BY id) AS n FROM t WHERE id < 50) AS s
    ON x.id = s.id AND array_contains(transform(array(1, 2), v -> v * s.n), 2 * s.n)
    WHEN MATCHED AND aggregate(array(s.n, 1), 0, (p, q) -> p + q) > 10 THEN UPDATE SET b = '7'
    WHEN MATCHED THEN DELETE
"""


@pytest.mark.spark
def test_spark_sees_the_same_rows_and_changes_them_as_spark_sql_says(spark: SparkSession) -> None:
    found = {}
    for engine in ("native", "spark"):
        with headrace.connect(None, engine=engine, spark=spark) as db:
            db.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT, b STRING)")
            db.insert("t", pa.table({"id": range(100_000), "a": [n % 7 for n in range(100_000)], "b": ["x"] * 100_000}))
            db.sql("DELETE FROM t WHERE id % 10 = 3")
            db.sql("UPDATE t SET b = regexp_replace(concat(b, id), '[0-4]', '-'), a = a * 2 WHERE a = 5")
            db.sql(
                "MERGE INTO t USING (SELECT explode(sequence(99990, 100009)) AS id) AS s ON s.id = t.id "
                "WHEN MATCHED THEN UPDATE SET b = 'again' WHEN NOT MATCHED THEN INSERT (id, b) VALUES (s.id, 'new')"
            )
            found[engine] = db.sql("SELECT count(*), sum(id), sum(a), count(DISTINCT b), max(b) FROM t").rows()
            # What is outside the algebra: the statement's queries go to Spark as they were written.
            db.sql(_BY_SPARK)
            found[engine] += db.sql("SELECT count(*), sum(a) FROM t WHERE b = '7'").rows()
            assert [(db.table("t").count(),)] == db.sql("SELECT count(*) FROM t").rows()
    assert found["native"] == found["spark"]
