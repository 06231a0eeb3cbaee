"""Materialized views: whatever is done to tables, a view is its query over them, after every statement."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace import Database
from headrace.errors import HeadraceError
from headrace.keep.maintenance import reasons_of
from headrace.view.materialized import MaterializedView
from profiles import examples

TABLES = {
    "a": "id INT, g STRING, v INT, m DECIMAL(10,2)",
    "b": "id INT PRIMARY KEY, g STRING, w BIGINT, x DOUBLE",
    "c": "g STRING, v INT",
}
VIEWS = {
    "joins": [
        "SELECT a.id, b.w, c.v FROM a, b, c WHERE a.id = b.id AND b.g = c.g AND a.v < c.v",
        "SELECT x.id, y.v, z.g FROM a AS x JOIN a AS y ON x.id = y.v JOIN a AS z ON z.g = y.g",
        "SELECT a.id, a.m, b.w FROM a LEFT JOIN b ON a.id = b.id AND b.w > a.v",
        "SELECT a.g, b.w, c.v FROM a FULL JOIN b ON a.id = b.id FULL JOIN c ON c.g = b.g",
        "SELECT a.id, c.g FROM a JOIN c ON a.v < c.v",
        "SELECT b.id, b.x, a.m FROM b RIGHT JOIN a ON a.id = b.id WHERE a.v > 0 OR b.x IS NULL",
    ],
    "subqueries": [
        "SELECT id FROM a WHERE EXISTS (SELECT * FROM b WHERE a.id = b.id AND a.v < b.w)",
        "SELECT id FROM a WHERE NOT EXISTS (SELECT * FROM b JOIN c ON b.g = c.g WHERE a.id = b.id)",
        "SELECT id FROM a WHERE id IN (SELECT v FROM c) AND g NOT IN (SELECT g FROM b)",
        "SELECT id, (SELECT max(w) FROM b WHERE b.id = a.id) AS most FROM a",
        "SELECT id FROM a WHERE v > (SELECT avg(v) FROM c)",
        "SELECT a.id, a.v FROM a WHERE a.id IN (SELECT id FROM a GROUP BY id HAVING sum(v) > 3)",
    ],
    "groupings": [
        "SELECT g, count(*), sum(v), min(m), max(v), avg(m), count(DISTINCT id) FROM a GROUP BY g",
        "SELECT count(*), sum(v), min(m), avg(m) FROM a JOIN b USING (id)",
        "SELECT g, sum(x), stddev_pop(x), avg(x), max(x) FROM b GROUP BY g",
        "SELECT n, count(*) FROM (SELECT a.g, count(*) AS n FROM a LEFT JOIN b ON a.id = b.id GROUP BY a.g) GROUP BY n",
        "SELECT g, v, sum(m), min(id) FROM a GROUP BY CUBE (g, v)",
        "SELECT x.g, x.s, (SELECT max(s) FROM (SELECT g, sum(v) AS s FROM a GROUP BY g)) AS most "
        "FROM (SELECT g, sum(v) AS s FROM a GROUP BY g) AS x",
        "SELECT g, min(s), sum(s) FROM (SELECT g, id, sum(v) AS s FROM a GROUP BY g, id) GROUP BY g HAVING sum(s) > 0",
    ],
    "views": [
        "SELECT g, sum(v) AS s, count(*) AS n, max(m) AS most FROM a GROUP BY g",
        "SELECT c0, c1 FROM v0 WHERE c2 > 1",
        "SELECT x.c0, y.c1, b.w FROM v0 AS x JOIN v0 AS y ON x.c1 = y.c2 LEFT JOIN b ON b.g = x.c0",
        "SELECT count(*), sum(c1), min(c0) FROM v1",
        "SELECT g, id FROM a WHERE g IN (SELECT c0 FROM v1) ORDER BY id, g, v, m LIMIT 3",
        "SELECT c0, count(*) FROM v4 GROUP BY c0",
    ],
    "doubles": [
        "SELECT a.id, t.s FROM a JOIN (SELECT g, sum(x) AS s FROM b GROUP BY g) AS t ON a.g = t.g",
        "SELECT s, count(*) FROM (SELECT g, avg(x) AS s FROM b GROUP BY g) GROUP BY s",
        "SELECT n FROM (SELECT g, sum(x) AS n FROM b GROUP BY g) WHERE n > 0 AND n IN (SELECT w FROM b)",
        "SELECT id FROM b WHERE x < (SELECT avg(x) FROM b)",
        "SELECT a.id, l.w FROM a JOIN (SELECT id, w FROM b ORDER BY w DESC LIMIT 3) AS l ON a.id = l.id",
    ],
    "windows": [
        "SELECT id, g, v FROM a QUALIFY row_number() OVER (PARTITION BY g ORDER BY v DESC) <= 2",
        "SELECT id, g, sum(v) OVER (PARTITION BY g ORDER BY id) AS so_far, avg(m) OVER (PARTITION BY g) AS mean FROM a",
        "SELECT id, w - lag(w) OVER (PARTITION BY g ORDER BY id) AS d, lead(id, 2, -1) OVER (PARTITION BY g "
        "ORDER BY id) FROM b",
        "SELECT g, n, rank() OVER (ORDER BY n DESC) AS r FROM (SELECT g, count(*) AS n FROM a GROUP BY g)",
        "SELECT v, sum(n) FROM (SELECT v, rank() OVER (PARTITION BY g ORDER BY v) AS n FROM a) GROUP BY v",
        "SELECT a.g, b.w, min(b.w) OVER (PARTITION BY a.g ORDER BY b.id ROWS 2 PRECEDING) FROM a JOIN b USING (id)",
        "SELECT id, sum(x) OVER (PARTITION BY g ORDER BY id) FROM b",
        "SELECT count(*) FROM (SELECT ntile(2) OVER (ORDER BY w, id) AS half FROM b) WHERE half = 1",
        "SELECT id, v, row_number() OVER (ORDER BY v, id, m, g) AS n FROM a",
    ],
    "sets": [
        "SELECT DISTINCT a.g, b.w FROM a JOIN b ON a.id = b.id",
        "SELECT id, g FROM a UNION ALL SELECT id, g FROM b UNION ALL SELECT v, g FROM c",
        "SELECT id, g FROM a UNION SELECT v, g FROM c",
        "SELECT id, g FROM a EXCEPT ALL SELECT id, g FROM b",
        "SELECT id, g FROM a INTERSECT ALL SELECT v, g FROM c",
        "SELECT g FROM a EXCEPT SELECT g FROM b",
        "WITH n AS (SELECT g, sum(v) AS s FROM a GROUP BY g) SELECT x.g, y.s FROM n AS x JOIN n AS y ON x.s = y.s",
        "SELECT id, v FROM a ORDER BY v DESC, id LIMIT 3",
        "SELECT g, count(*) FROM (SELECT g, w, id FROM b ORDER BY w, id LIMIT 4) GROUP BY g",
    ],
}
N = st.integers(0, 5)
OR_NULL = st.one_of(st.none(), N)
G = st.sampled_from(["'x'", "'y'", "''", "NULL"])


def sql(value: object) -> str:
    return "NULL" if value is None else str(value)


ROW = {
    "a": st.tuples(OR_NULL.map(sql), G, OR_NULL.map(sql), st.sampled_from(["0.50", "-2.00", "7.25", "NULL"])),
    "b": st.tuples(N.map(str), G, OR_NULL.map(sql), st.sampled_from(["0.1D", "0.2D", "-1.5D", "NULL"])),
    "c": st.tuples(G, OR_NULL.map(sql)),
}


def rows_of(name: str) -> st.SearchStrategy[str]:
    listed = st.lists(ROW[name], min_size=1, max_size=4, unique_by=(lambda row: row[0]) if name == "b" else None)
    return listed.map(lambda rows: ", ".join(f"({', '.join(row)})" for row in rows))


STATEMENT = st.one_of(
    *(rows_of(name).map(lambda rows, name=name: f"INSERT INTO {name} VALUES {rows}") for name in "abc"),
    N.map(lambda n: f"DELETE FROM a WHERE v = {n}"),
    N.map(lambda n: f"DELETE FROM b WHERE id >= {n}"),
    G.map(lambda g: f"DELETE FROM c WHERE g <=> {g}"),
    N.map(lambda n: f"UPDATE a SET v = v + 1, g = 'y' WHERE id = {n}"),
    N.map(lambda n: f"UPDATE a SET m = m * 2 WHERE v < {n}"),
    N.map(lambda n: f"UPDATE b SET w = {n}, x = x + 0.7 WHERE g = 'x'"),
    N.map(lambda n: f"UPDATE b SET id = id + 10 WHERE id = {n}"),
    G.map(lambda g: f"UPDATE c SET g = {g}"),
    rows_of("b").map(
        lambda rows: (
            f"MERGE INTO b USING (VALUES {rows} AS s(id, g, w, x)) AS s ON b.id = s.id "
            "WHEN MATCHED AND s.w > 2 THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
    ),
    rows_of("a").map(lambda rows: f"INSERT OVERWRITE a VALUES {rows}"),
    st.sampled_from(["TRUNCATE TABLE a", "TRUNCATE TABLE c", "OPTIMIZE a", "OPTIMIZE b"]),
)
HISTORY = st.lists(st.one_of(STATEMENT, st.lists(STATEMENT, min_size=2, max_size=3), st.just("reopen")), max_size=7)


def bag(rows: list[tuple[Any, ...]]) -> Counter[str]:
    """Rows as a multiset; doubles to nine digits."""
    told = [tuple(f"{float(f'{v:.9g}')}" if isinstance(v, float) else v for v in row) for row in rows]
    return Counter(map(repr, told))


def check(db: Database, queries: list[str], said: object) -> None:
    for number, text in enumerate(queries):
        assert bag(db.sql(f"SELECT * FROM v{number}").rows()) == bag(db.sql(text).rows()), (text, said)


def define(db: Database, queries: list[str]) -> None:
    for name, columns in TABLES.items():
        db.sql(f"CREATE TABLE {name} ({columns})")
    db.sql("INSERT INTO a VALUES (1, 'x', 2, 0.50), (1, 'x', 2, 0.50), (2, NULL, 3, 1.00), (3, 'y', NULL, NULL)")
    db.sql("INSERT INTO b VALUES (1, 'x', 3, 0.1D), (2, 'y', 1, NULL)")
    for number, text in enumerate(queries):
        names = ", ".join(f"c{i}" for i in range(len(db.sql(text).arrow().column_names)))
        db.sql(f"CREATE MATERIALIZED VIEW v{number} ({names}) AS {text}")


def run(db: Database, statement: str) -> None:
    try:
        db.sql(statement)
    except HeadraceError as error:
        assert error.condition in ("PRIMARY_KEY_VIOLATION", "DUPLICATE_KEY"), error


@pytest.mark.parametrize("kind", VIEWS)
def test_oracle_views_follow_their_tables(kind: str) -> None:
    @settings(max_examples=examples(6))
    @given(HISTORY)
    def hold(history: list[Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "db"
            db = headrace.connect(place, engine="native", durability="none")
            try:
                define(db, VIEWS[kind])
                check(db, VIEWS[kind], "at first")
                for step in history:
                    if step == "reopen":
                        db.close()
                        db = headrace.connect(place, engine="native", durability="none")
                    elif isinstance(step, list):
                        try:
                            with db.batch():
                                for statement in step:
                                    db.sql(statement)
                                check(db, VIEWS[kind], step)
                        except HeadraceError as error:
                            assert error.condition in ("PRIMARY_KEY_VIOLATION", "NOT_IN_BATCH"), error
                    else:
                        run(db, step)
                    check(db, VIEWS[kind], (step, history))
            finally:
                db.close()

    hold()


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect(None, engine="native") as db:
        yield db


def kept(db: Database, name: str) -> MaterializedView:
    found = db._keeper.get(name)
    assert isinstance(found, MaterializedView)
    return found


def fill(db: Database, orders: int) -> None:
    db.sql("CREATE TABLE customer (ck INT PRIMARY KEY, seg STRING)")
    db.sql("CREATE TABLE orders (ok INT PRIMARY KEY, ck INT, day INT)")
    db.sql("CREATE TABLE line (ok INT, n INT, price DECIMAL(12,2), PRIMARY KEY (ok, n))")
    ok = list(range(orders))
    db.insert("customer", pa.table({"ck": pa.array(range(orders // 4), pa.int32()), "seg": ["x"] * (orders // 4)}))
    columns = {"ok": ok, "ck": [i % (orders // 4) for i in ok], "day": [i % 30 for i in ok]}
    db.insert("orders", pa.table({name: pa.array(values, pa.int32()) for name, values in columns.items()}))
    line = {"ok": [i // 4 for i in range(4 * orders)], "n": [i % 4 for i in range(4 * orders)]}
    rows = pa.table({name: pa.array(values, pa.int32()) for name, values in line.items()})
    db.insert("line", rows.append_column("price", pa.array([Decimal(1)] * rows.num_rows, pa.decimal128(12, 2))))


INCREMENTAL = {
    "joined": "SELECT o.day, count(*) AS n, sum(l.price) AS s FROM line l JOIN orders o ON l.ok = o.ok "
    "JOIN customer c ON o.ck = c.ck WHERE c.seg = 'x' GROUP BY o.day",
    "left": "SELECT c.ck, count(o.ok) AS n FROM customer c LEFT JOIN orders o ON o.ck = c.ck GROUP BY c.ck",
    "exists": "SELECT o.day, count(*) AS n FROM orders o WHERE NOT EXISTS "
    "(SELECT * FROM line l WHERE l.ok = o.ok AND l.price > 5) GROUP BY o.day",
    "nested": "SELECT n, count(*) AS c FROM (SELECT ok, count(*) AS n FROM line GROUP BY ok) GROUP BY n",
    "large": "SELECT o.ok, o.day, t.s FROM orders o JOIN (SELECT ok, sum(price) AS s FROM line GROUP BY ok) AS t "
    "ON t.ok = o.ok WHERE t.s > 3",
    "doubles": "SELECT o.ok, t.s FROM orders o JOIN (SELECT ok, sum(double(price)) AS s FROM line GROUP BY ok) AS t "
    "ON t.ok = o.ok",
    "full": "SELECT o.ok, o.day, l.n, l.price FROM orders o FULL JOIN line l ON o.ok = l.ok",
    "semi": "SELECT ok, day FROM orders WHERE ok IN (SELECT ok FROM line WHERE price > 2)",
    "scalar": "SELECT o.ok, (SELECT max(price) FROM line l WHERE l.ok = o.ok) AS most FROM orders o",
    "distinct": "SELECT c.seg, count(DISTINCT o.day) AS n FROM orders o JOIN customer c ON o.ck = c.ck GROUP BY c.seg",
    "sets": "SELECT ok FROM orders EXCEPT SELECT ok FROM line WHERE price > 5",
    "rollup": "SELECT day, ck, count(*) AS n FROM orders GROUP BY ROLLUP (day, ck)",
    "twice": "WITH t AS (SELECT o.ok, c.ck, c.seg FROM orders o JOIN customer c ON o.ck = c.ck) "
    "SELECT x.ok, y.seg FROM t AS x JOIN t AS y ON x.ok = y.ok",
    "unordered": "SELECT c.seg, l.n FROM customer c, line l, orders o WHERE o.ck = c.ck AND l.ok = o.ok AND o.ok IN "
    "(SELECT ok FROM line WHERE price > 4)",
    "top": "SELECT ok, n, price FROM line QUALIFY row_number() OVER (PARTITION BY ok ORDER BY price DESC, n) <= 2",
    "running": "SELECT ok, ck, sum(day) OVER (PARTITION BY ck ORDER BY ok) AS days FROM orders",
    "ranked": "SELECT o.ck, t.ok, rank() OVER (PARTITION BY o.ck ORDER BY t.s) AS r FROM orders o JOIN "
    "(SELECT ok, sum(price) AS s FROM line GROUP BY ok) AS t ON t.ok = o.ok",
    "least": "SELECT o.ck, m.least FROM orders o JOIN (SELECT ok, min(price) AS least FROM line GROUP BY ok) AS m "
    "ON m.ok = o.ok",
}


@pytest.mark.parametrize("name", INCREMENTAL)
def test_the_rows_read_follow_the_change(name: str) -> None:
    """001 §4.4: no base scan. Four times the tables, the same change: no more rows are read."""
    read: list[list[int]] = []
    for orders in (5_000, 20_000):
        with headrace.connect(None, engine="native") as db:
            fill(db, orders)
            db.sql(f"CREATE MATERIALIZED VIEW v AS {INCREMENTAL[name]}")
            view = kept(db, "v")
            counts = []
            for statement in (
                "UPDATE line SET price = price + 1 WHERE ok IN (7, 90, 400)",
                "INSERT INTO line VALUES (8, 10, 3), (11, 11, 9)",
                "DELETE FROM orders WHERE ok = 12",
                "UPDATE orders SET ck = 3 WHERE ok IN (8, 9)",
                "UPDATE customer SET seg = 'y' WHERE ck = 5",
            ):
                before = view.maintenance.read.found
                db.sql(statement)
                counts.append(view.maintenance.read.found - before)
            assert view.maintenance.read.scanned == 0
            assert bag(db.sql("SELECT * FROM v").rows()) == bag(db.sql(INCREMENTAL[name]).rows())
            read.append(counts)
    assert read[0] == read[1]
    assert sum(read[0]) > 0


def test_an_error_in_a_view_changes_nothing_and_names_it(db: Database) -> None:
    db.sql("CREATE TABLE t (a INT, b INT)")
    db.sql("INSERT INTO t VALUES (1, 2)")
    db.sql("CREATE MATERIALIZED VIEW ratio AS SELECT a, sum(a div b) AS r FROM t GROUP BY a")
    with pytest.raises(HeadraceError, match="materialized view ratio") as error:
        db.sql("INSERT INTO t VALUES (1, 0)")
    assert error.value.condition == "DIVIDE_BY_ZERO"
    assert db.sql("SELECT * FROM t").rows() == [(1, 2)]
    assert db.sql("SELECT * FROM ratio").rows() == [(1, 0)]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT * FROM a TABLESAMPLE RESERVOIR (3 ROWS)", "TABLESAMPLE"),
        ("SELECT 1 AS one", "reads no table"),
    ],
)
def test_what_is_not_followed_is_refused_by_name(db: Database, query: str, told: str) -> None:
    for name, columns in TABLES.items():
        db.sql(f"CREATE TABLE {name} ({columns})")
    with pytest.raises(HeadraceError, match=told):
        db.sql(f"CREATE MATERIALIZED VIEW v AS {query}")


@pytest.mark.parametrize(
    ("query", "reasons"),
    [
        ("SELECT a.id FROM a JOIN b ON a.id = b.id AND a.v < b.w", set()),
        ("SELECT g, sum(s) FROM (SELECT g, id, sum(x) AS s FROM b GROUP BY g, id) GROUP BY g", set()),
        ("SELECT a.id FROM a JOIN b ON a.v < b.w", {"NON_EQUI_JOIN"}),
        ("SELECT id FROM a WHERE NOT EXISTS (SELECT * FROM b WHERE a.v < b.w)", {"NON_EQUI_CORRELATION"}),
        ("SELECT id FROM a WHERE (id, g) NOT IN (SELECT id, g FROM b)", {"NULL_AWARE_ANTI_JOIN"}),
        (
            "SELECT a.id, t.w FROM a JOIN (SELECT id, w FROM b ORDER BY w, id LIMIT 9) AS t USING (id)",
            {"LIMIT_BELOW_TOP"},
        ),
        ("SELECT id FROM b WHERE x < (SELECT avg(x) FROM b)", {"NO_KEY", "NON_EQUI_JOIN"}),
        ("SELECT a.id FROM a JOIN b ON upper(a.g) = lower(b.g)", {"COMPUTED_KEY"}),
        ("SELECT m, count(*) FROM (SELECT max(m) AS m FROM a GROUP BY upper(g)) GROUP BY m", {"COMPUTED_KEY"}),
        ("SELECT id, rank() OVER (PARTITION BY g ORDER BY v) FROM a", set()),
        ("SELECT id, sum(x) OVER (PARTITION BY g ORDER BY id) FROM b", set()),
        ("SELECT id, rank() OVER (ORDER BY v) FROM a", set()),
        ("SELECT id, rank() OVER (PARTITION BY upper(g) ORDER BY v) FROM a", {"COMPUTED_KEY"}),
        (
            "SELECT rank() OVER (PARTITION BY g ORDER BY v), sum(v) OVER (PARTITION BY id) FROM a",
            {"WINDOW_BY_OTHER_KEYS"},
        ),
        (
            "SELECT n, count(*) FROM (SELECT ntile(3) OVER (ORDER BY v) AS n FROM a) GROUP BY n",
            {"WINDOW_WITHOUT_PARTITION_BY"},
        ),
        ("SELECT v, id FROM a ORDER BY v LIMIT 3", {"NOT_DETERMINISTIC_ORDER"}),
        ("SELECT w, id FROM b ORDER BY w, id LIMIT 3", set()),
        ("SELECT g, count(*) AS n FROM a GROUP BY g ORDER BY n LIMIT 3", {"NOT_DETERMINISTIC_ORDER"}),
    ],
)
def test_what_is_not_incremental_has_a_named_reason(db: Database, query: str, reasons: set[str]) -> None:
    for name, columns in TABLES.items():
        db.sql(f"CREATE TABLE {name} ({columns})")
        db.insert(name, [tuple(i if "INT" in c else None for c in columns.split(", ")) for i in range(1_100)])
    names = ", ".join(f"c{i}" for i in range(len(db.sql(query).arrow().column_names)))
    db.sql(f"CREATE MATERIALIZED VIEW v ({names}) AS {query}")
    with db._runtime.store.read() as snapshot:
        found = reasons_of(db._runtime, snapshot, kept(db, "v").layers)
    assert {reason.name for each in found.values() for reason in each} == reasons
    db.sql("DROP VIEW v")
    said = db.sql(f"EXPLAIN CREATE MATERIALIZED VIEW v ({names}) AS {query}").text()
    assert all(name in said for name in reasons)


@pytest.mark.spark
@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, e, count(*) AS n FROM a LATERAL VIEW explode(sequence(1, v)) AS e WHERE v > 0 GROUP BY id, e",
        "SELECT b.id, t.m FROM b JOIN (SELECT g, percentile(v, 0.5) AS m FROM a GROUP BY g) AS t ON t.g = b.g",
        "SELECT g, m FROM (SELECT g, collect_set(v) AS m FROM a GROUP BY g) JOIN c USING (g) WHERE size(m) > 1",
        "SELECT c.g, soundex(a.g) AS s FROM a JOIN c ON a.v = c.v",
        "SELECT a.id, l.m FROM a, LATERAL (SELECT max(w) AS m FROM b WHERE b.g = a.g) AS l",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3) "
        "SELECT a.id, r.n FROM a JOIN r ON a.v = r.n",
    ],
)
def test_what_only_spark_knows_is_run_by_it_at_its_own_node(spark: Any, query: str) -> None:
    with headrace.connect(None, spark=spark) as db:
        for name, columns in TABLES.items():
            db.sql(f"CREATE TABLE {name} ({columns})")
        db.sql("INSERT INTO a VALUES (1, 'x', 2, 0.50), (1, 'x', 2, 0.50), (2, 'y', 3, 1.00)")
        db.sql("INSERT INTO b VALUES (1, 'x', 3, 0.1D), (2, 'y', 1, NULL)")
        db.sql(f"CREATE MATERIALIZED VIEW v AS {query}")
        for statement in (
            "INSERT INTO a VALUES (3, 'x', 5, NULL), (4, 'z', 1, 2.00)",
            "INSERT INTO c VALUES ('x', 2), ('z', 1), ('x', 2)",
            "UPDATE a SET v = v + 1 WHERE g = 'x'",
            "DELETE FROM a WHERE id = 1",
            "DELETE FROM a",
        ):
            db.sql(statement)
            assert bag(db.sql("SELECT * FROM v").rows()) == bag(db.sql(query).rows()), statement
        said = db.sql(f"EXPLAIN CREATE MATERIALIZED VIEW w AS {query}").text()
        whole = "LATERAL" in query or "RECURSIVE" in query
        assert ("ONLY_SPARK" in said) == whole, "a grouping is run again for touched groups alone"
        assert "Spark SQL" in said


def test_explain_says_what_is_looked_up(db: Database) -> None:
    for name, columns in TABLES.items():
        db.sql(f"CREATE TABLE {name} ({columns})")
        if name != "c":
            db.insert(name, [tuple(i if "INT" in c else None for c in columns.split(", ")) for i in range(2_000)])
    query = "SELECT a.g, count(*) AS n FROM a JOIN b ON a.id = b.id WHERE a.v < (SELECT max(v) FROM c) GROUP BY a.g"
    said = [row[0].strip() for row in db.sql(f"EXPLAIN CREATE MATERIALIZED VIEW v AS {query}").rows()]
    assert "Each change of a: incremental" in said
    assert "looks up b by id" in said
    assert "Each change of c: not incremental" in said
    assert any(line.startswith("NON_EQUI_JOIN: ") for line in said)
    assert "reads all of a" in said
