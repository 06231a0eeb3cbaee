"""What used to leave the public interface as an exception of some library: an answer now, or an error with a name."""

from __future__ import annotations

import datetime as dt
import errno
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import headrace
from headrace.base.boundary import failures_named, named, public
from headrace.database import Database
from headrace.errors import HeadraceError, InternalError, NotYetSupported, SqlError
from headrace.rings.home import find_ring
from headrace.sql.lexer import MOST_TOKENS
from headrace.statement.result import Result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETUP = (
    "CREATE STREAM s (a INT, b STRING, d DATE, at TIMESTAMP)",
    "CREATE TABLE t (k INT, v STRING)",
    "INSERT INTO t VALUES (1, 'x'), (2, 'y')",
    "CREATE VIEW u AS SELECT 2 FROM t",
    "CREATE TABLE days (d DATE, at TIMESTAMP)",
)


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect() as database:
        for statement in SETUP:
            database.sql(statement)
        yield database
        assert not database.runtime.session.started, "nothing here needs Spark"


def refused(use: Any, *args: Any, **options: Any) -> HeadraceError:
    with pytest.raises(HeadraceError) as error:
        use(*args, **options)
    assert error.value.condition != "INTERNAL_ERROR", error.value
    str(error.value).encode()  # it can be printed
    return error.value


# The edge itself


def test_what_nobody_named_is_an_internal_error_with_its_cause(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(db._reader, "known", broken)
    with pytest.raises(InternalError) as error:
        db.sql("SELECT 1")
    assert error.value.condition == "INTERNAL_ERROR"
    assert isinstance(error.value.__cause__, KeyError)
    for told in ("KeyError: 'lost'", "defect in Headrace", headrace.__version__, "traceback", "changed nothing"):
        assert told in str(error.value)


@pytest.mark.parametrize(
    ("raised", "condition"),
    [
        (RecursionError(), "FAILED_TO_PARSE_TOO_COMPLEX"),
        (MemoryError(), "OUT_OF_MEMORY"),
        (pa.ArrowMemoryError("malloc"), "OUT_OF_MEMORY"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), "DISK_FULL"),
        (OSError(errno.EMFILE, "Too many open files"), "TOO_MANY_OPEN_FILES"),
        (RuntimeError("can't start new thread"), "TOO_MANY_THREADS"),
        (FileNotFoundError(errno.ENOENT, "No such file", "x"), "INTERNAL_ERROR"),
        (ValueError(), "INTERNAL_ERROR"),
        (NotYetSupported("flying"), "NOT_YET_SUPPORTED"),
    ],
)
def test_each_failure_has_its_condition(raised: Exception, condition: str) -> None:
    assert named(raised).condition == condition

    @public
    def fails() -> None:
        raise raised

    with pytest.raises(HeadraceError) as error:
        fails()
    assert error.value.condition == condition
    with pytest.raises(HeadraceError) as error, failures_named():
        raise raised
    assert error.value.condition == condition


@pytest.mark.parametrize("passing", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_failure_passes(passing: type[BaseException]) -> None:
    @public
    def ends() -> None:
        raise passing

    with pytest.raises(passing):
        ends()


def test_a_call_with_wrong_arguments_is_pythons_own_error(db: Database) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'txet'"):
        db.sql(txet="SELECT 1")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional argument"):
        db.sql("SELECT 1").rows(5)  # type: ignore[call-arg]


def test_every_public_method_has_the_edge() -> None:
    from headrace.move.query import RunningQuery
    from headrace.stream.writer import RingWriter

    for owner in (Database, Result, RingWriter, RunningQuery):
        for name, found in vars(owner).items():
            if name.startswith("_") or not callable(found) or name in UNGUARDED:
                continue
            assert hasattr(found, "__wrapped__"), f"{owner.__name__}.{name} is not public()"
    for name in ("connect", "open", "register", "reservoir", "resume", "ring", "run"):
        assert hasattr(getattr(headrace, name), "__wrapped__"), f"headrace.{name} is not public()"


UNGUARDED = {"rows_at", "over_table", "plan", "plan_view", "continuous", "in_use"}
"""Methods of Database for the rest of the package."""


def test_errors_survive_pickling() -> None:
    for error in (NotYetSupported("x", hint="y"), InternalError(KeyError("z")), SqlError("A", "b")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))


# NULL alone


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("SELECT NULL", [(None,)]),
        ("VALUES (null), (NULL)", [(None,), (None,)]),
        ("SELECT NULL AS a, k FROM t ORDER BY k", [(None, 1), (None, 2)]),
        ("SELECT DISTINCT NULL FROM t", [(None,)]),
        ("SELECT NULL UNION ALL SELECT NULL", [(None,), (None,)]),
        ("SELECT coalesce(NULL, NULL), CASE WHEN true THEN NULL END", [(None, None)]),
        ("SELECT q FROM (SELECT NULL AS q, k FROM t) WHERE q IS NULL AND k = 1 ORDER BY q", [(None,)]),
    ],
)
def test_null_has_the_type_of_nulls(db: Database, text: str, rows: list[tuple[Any, ...]]) -> None:
    found = db.sql(text)
    assert found.rows() == rows
    assert pa.types.is_null(found.arrow().schema.field(0).type)
    assert "NULL" in str(found)
    assert "NULL" in found._repr_html_()
    assert found.pandas().iloc[0, 0] is None


def test_views_with_a_column_of_nulls_are_filled_and_read(db: Database) -> None:
    db.sql("CREATE VIEW v AS SELECT NULL AS k, b, count(*) AS n FROM s GROUP BY NULL, b")
    db.sql("CREATE VIEW o AS SELECT NULL AS z, n FROM v")
    for _ in range(3):
        db.sql("INSERT INTO s (b) VALUES ('x')")
    assert db.sql("SELECT * FROM v").rows() == [(None, "x", 3)]
    assert db.sql("SELECT * FROM o").rows() == [(None, 3)]
    db.sql("REFRESH VIEW v RESTART")
    assert db.sql("SELECT * FROM v").rows() == []


def test_a_table_of_nulls_alone_is_refused(db: Database) -> None:
    assert refused(db.sql, "CREATE TABLE n AS SELECT NULL AS a").condition == "NOT_YET_SUPPORTED"


# Relations of which no column is read


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT b, count(*) AS n FROM s CROSS JOIN t GROUP BY b", [("x", 4)]),
        ("SELECT count(*) AS n FROM s CROSS JOIN t", [(4,)]),
        ("SELECT b, count(*) AS n FROM s WHERE EXISTS (SELECT 1 FROM t) GROUP BY b", [("x", 2)]),
        ("SELECT b, count(*) AS n FROM s WHERE NOT EXISTS (SELECT 1 FROM t) GROUP BY b", []),
        ("SELECT b, count(*) AS n FROM s CROSS JOIN (SELECT 1 FROM t WHERE k > 1) GROUP BY b", [("x", 2)]),
        ("SELECT b, count(*) n FROM s CROSS JOIN (SELECT 1 FROM t UNION ALL SELECT 2 FROM u) GROUP BY b", [("x", 8)]),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "native"])
def test_rows_without_columns_count(query: str, rows: list[tuple[Any, ...]], engine: str, tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "x.hr", engine=engine) as db:
        for statement in SETUP:
            db.sql(statement)
        db.sql(f"CREATE VIEW v AS {query}")
        db.sql("INSERT INTO s (b) VALUES ('x'), ('x')")
        assert db.sql("SELECT * FROM v").rows() == rows
    with headrace.connect(tmp_path / "x.hr", engine=engine) as db:
        assert db.sql("SELECT * FROM v").rows() == rows


def test_a_query_of_a_stream_counts_rows_without_columns() -> None:
    with headrace.connect() as db:
        db.sql("CREATE STREAM r (a INT) WITH (capacity = 10, timeout = '10 milliseconds')")
        db.sql("CREATE TABLE t (k INT)")
        db.sql("INSERT INTO t VALUES (1), (2)")
        db.sql("INSERT INTO r VALUES (1), (2), (3)")
        assert db.sql("SELECT count(*) FROM r@OLDEST CROSS JOIN t").rows() == [(6,)]
        assert db.sql("SELECT 1 FROM r@OLDEST").rows() == [(1,)] * 3
        assert db.sql("SELECT count(*) FROM (SELECT a FROM r@OLDEST LIMIT 2)").rows() == [(2,)]
        assert db.sql("SELECT t.k FROM t WHERE EXISTS (SELECT 1 FROM r@OLDEST) ORDER BY k").rows() == [(1,), (2,)]
        assert db.sql("SELECT t.k FROM t CROSS JOIN r@OLDEST WHERE t.k = 1").rows() == [(1,)] * 3
        for held in ("SELECT INTERVAL 1 MONTH AS i FROM r@OLDEST", "SELECT a FROM r@OLDEST ORDER BY INTERVAL '1' DAY"):
            assert refused(db.sql, held).condition == "NOT_YET_SUPPORTED"
        assert not db.runtime.session.started
        assert db.sql("SELECT count(*) FROM r@OLDEST WHERE EXISTS (SELECT 1 FROM t)").rows() == [(3,)]


def test_rows_without_columns_are_drawn(db: Database) -> None:
    db.sql("CREATE VIEW v AS SELECT b, count(*) AS n FROM s GROUP BY b")
    db.sql("INSERT INTO s (b) VALUES ('x'), ('y'), ('z')")
    for relation in ("t", "v", "u", "(SELECT * FROM v)", "headrace.streams", "days", "(VALUES (1), (2), (3))"):
        whole = db.sql(f"SELECT * FROM {relation}").arrow().num_rows
        for repeatable in ("", " REPEATABLE (7)"):
            drawn = db.sql(f"SELECT count(*) FROM {relation} TABLESAMPLE RESERVOIR (2 ROWS){repeatable}").rows()
            assert drawn == [(min(2, whole),)], relation


# Days that Python does not have

FAR = {
    "d": pa.array([2_147_483_646, -2_147_483_646, 3_932_897, -735_500, 0], pa.date32()),
    "at": pa.array([2**63 - 2, -(2**62), 253_402_300_800_000_000, -(2**56), 0], pa.timestamp("us", tz="UTC")),
}


def test_days_beyond_python_are_text_as_spark_prints_it(db: Database) -> None:
    db.insert("days", pa.table(FAR))
    rows = db.sql("SELECT d, at FROM days").rows()
    assert sorted(map(str, (d for d, _ in rows))) == sorted(
        ["+5881580-07-10", "-5877641-06-25", "+12737-11-28", "-0044-04-09", "1970-01-01"]
    )
    assert ("+12737-11-28", "+10000-01-01 00:00:00+00:00") in rows
    assert (dt.date(1970, 1, 1), dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) in rows
    assert "+12737-11-28" in str(db.sql("SELECT * FROM days"))
    assert "+12737-11-28" in db.sql("SELECT * FROM days")._repr_html_()
    assert db.sql("SELECT * FROM days").arrow().num_rows == 5
    assert refused(db.sql("SELECT d FROM days").pandas).condition == "NOT_IN_PANDAS"
    assert db.sql("SELECT date '9999-12-31' + 1, date '0001-01-01' - 1").rows() == [("+10000-01-01", "0000-12-31")]


def test_views_hold_days_beyond_python(db: Database) -> None:
    db.sql("CREATE VIEW v AS SELECT max(d) AS late, min(d) AS early, max(at) AS last, count(DISTINCT d) AS n FROM s")
    db.sql("CREATE VIEW g AS SELECT d, count(*) AS n FROM s GROUP BY d")
    db.insert("s", pa.table({"a": pa.nulls(5), "b": pa.nulls(5), **FAR}))
    assert db.sql("SELECT late, early, n FROM v").rows() == [("+5881580-07-10", "-5877641-06-25", 5)]
    assert ("-0044-04-09", 1) in db.sql("SELECT * FROM g").rows()
    db.sql("CREATE TABLE p (d DATE PRIMARY KEY)")
    db.insert("p", pa.table({"d": FAR["d"]}))
    assert "d = +12737-11-28" in str(refused(db.insert, "p", pa.table({"d": FAR["d"][2:3]})))


def test_nested_days_beyond_python_are_text() -> None:
    with headrace.connect() as db:
        db.sql("CREATE TABLE n (w ARRAY<DATE>, x STRUCT<at: TIMESTAMP_NTZ>)")
        day, time_ = FAR["d"][2], pa.array([-(2**62)], pa.timestamp("us"))[0]
        db.insert("n", pa.table({"w": pa.array([[day, None]]), "x": pa.array([{"at": time_}])}))
        assert db.sql("SELECT w, x FROM n").rows() == [
            (["+12737-11-28", None], {"at": "-144169-06-28 09:59:32.612096"})
        ]


# Names


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("CREATE TABLE b (`` INT)", "INVALID_COLUMN_NAME"),
        ("CREATE STREAM b (`` INT)", "INVALID_COLUMN_NAME"),
        ("CREATE TABLE b (`a\0b` INT)", "INVALID_COLUMN_NAME"),
        ("CREATE TABLE `` (a INT)", "INVALID_SCHEMA_OR_RELATION_NAME"),
        ("CREATE STREAM `` (a INT) WITH (capacity = 3)", "INVALID_SCHEMA_OR_RELATION_NAME"),
        ("CREATE TABLE `a\0` (a INT)", "INVALID_SCHEMA_OR_RELATION_NAME"),
        ("CREATE VIEW `` AS SELECT 1 AS a", "INVALID_SCHEMA_OR_RELATION_NAME"),
        ("CREATE VIEW b AS SELECT 1 AS ``", "INVALID_COLUMN_NAME"),
        ("CREATE VIEW b (``) AS SELECT b FROM s GROUP BY b", "INVALID_COLUMN_NAME"),
        ("CREATE TABLE b AS SELECT 1 AS ``", "INVALID_COLUMN_NAME"),
        ("CREATE SAMPLE `` OF s SIZE 3", "INVALID_SCHEMA_OR_RELATION_NAME"),
        ("SELECT substring(v) FROM t", "WRONG_NUM_ARGS"),
        ("SELECT estimate(sum(SELECT k FROM t)) FROM few", "PARSE_SYNTAX_ERROR"),
        ("SELECT estimate(sum(a AS ``)) FROM few", "PARSE_SYNTAX_ERROR"),
        ("SELECT + FROM t", "PARSE_SYNTAX_ERROR"),
        ("CREATE VIEW b WITH (`` = 1) AS SELECT count(*) FROM s", "VIEW_OPTION_UNKNOWN"),
    ],
)
def test_statements_that_were_raw_errors(db: Database, text: str, condition: str) -> None:
    db.sql("CREATE SAMPLE few OF s SIZE 3")
    before = db.catalog
    assert refused(db.sql, text).condition == condition
    assert db.catalog is before


def test_an_answer_may_have_a_column_without_a_name(db: Database) -> None:
    found = db.sql("SELECT k AS ``, v FROM t ORDER BY k LIMIT 1")
    assert (found.columns, found.rows()) == (["", "v"], [(1, "x")])


def test_names_are_no_file_names(tmp_path: Path) -> None:
    long, near, odd = "s" * 1000, "s" * 1001, "a/../b\n?*"
    with headrace.connect(tmp_path / "x.hr") as db:
        for name in (long, near, odd):
            db.sql(f"CREATE STREAM `{name}` (a INT) WITH (capacity = 10, timeout = '10 milliseconds')")
            db.sql(f"CREATE TABLE `t{name}` (a INT)")
            db.insert(f"t{name}", {"a": range(70_000)})
            db.insert(name, [(1,)])
            assert db.sql(f"SELECT * FROM `{name}`@OLDEST").rows() == [(1,)]
            assert db.sql(f"SELECT count(*) FROM `t{name}`").rows() == [(70_000,)]
        assert len({find_ring(db.path, name) for name in (long, near, odd)}) == 3
        with headrace.ring(db.path, long) as writer:
            writer.insert([(2,)])
        db.sql(f"DROP STREAM `{near}`")


def test_an_interval_may_have_blanks_after_its_sign() -> None:
    from headrace.sql.literals import interval_text

    found = interval_text("-\t 1 day")
    assert found is not None
    assert found.value == -86_400_000_000


# Size


@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + "(" * 5_000_000,
        "a + " * 1_500_000,
        "SELECT " + "1, " * 1_500_000,
        "SELECT " + "\\'" * 200_000,
        "SELECT " + "/*" * 200_000,
        "SELECT '/* " * 50_000,
        "EXPLAIN " * 30_000 + "SELECT 1",
    ],
    ids=lambda text: text[:14],
)
def test_garbage_is_refused_soon(db: Database, text: str) -> None:
    began = time.process_time()
    assert refused(db.sql, text).condition in (
        "STATEMENT_TOO_LARGE",
        "PARSE_SYNTAX_ERROR",
        "UNCLOSED_BRACKETED_COMMENT",
    )
    assert time.process_time() - began < 20, "it took 169 s"


def test_a_long_insert_of_literals_is_no_large_statement(db: Database) -> None:
    rows = ", ".join(f"({i}, 'row {i}')" for i in range(60_000))
    assert len(rows) > 1_000_000 > MOST_TOKENS
    assert "60,000 rows" in db.sql(f"INSERT INTO t VALUES {rows}").message
    assert db.sql(f"SELECT count(*) FROM t /* {'x ' * 150_000} */").rows() == [(60_002,)], "a comment is one word"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + "(" * 300 + "1" + ")" * 300,
        "SELECT " + " + ".join(["k"] * 10_000) + " FROM t",
        "SELECT " + " || ".join(["v"] * 10_000) + " FROM t",
        "SELECT k" + "::int" * 10_000 + " FROM t",
        "SELECT k" + "[0]" * 10_000 + " FROM t",
        "SELECT " + "NOT " * 10_000 + " true",
        "SELECT " + "CASE WHEN true THEN " * 500 + "1" + " END" * 500,
        "CREATE TABLE deep (a " + "ARRAY<" * 500 + "INT" + ">" * 500 + ")",
        " UNION ALL ".join(["SELECT 1"] * 3_000),
    ],
    ids=lambda text: text[:30],
)
def test_deep_statements_are_answered_or_refused(db: Database, text: str) -> None:
    try:
        db.sql(text)
    except HeadraceError as error:
        assert error.condition == "FAILED_TO_PARSE_TOO_COMPLEX"


# With Spark


@pytest.mark.spark
def test_nulls_alone_are_void_in_spark(spark: SparkSession) -> None:
    with headrace.connect(spark=spark) as db:
        for statement in SETUP:
            db.sql(statement)
        frame = db.sql("SELECT NULL AS a, 1 AS b").spark()
        assert frame.schema["a"].dataType.simpleString() == "void"
        assert [tuple(row) for row in frame.collect()] == [(None, 1)]
        found = db.sql("SELECT max(null) AS m, array(NULL) AS w, NULL = NULL AS e FROM t")
        assert found.rows() == [(None, [None], None)]
        assert pa.types.is_null(found.arrow().schema.field(0).type)
        db.sql("CREATE VIEW v AS SELECT b, max(null) AS m, count(*) AS n FROM s GROUP BY b")
        for _ in range(2):
            db.sql("INSERT INTO s (b) VALUES ('x')")
        assert db.sql("SELECT * FROM v").rows() == [("x", None, 2)]
        assert db.sql("SELECT m, reverse(b) FROM v").rows() == [(None, "x")]
        assert db.table("v").schema["m"].dataType.simpleString() == "void"


@pytest.mark.spark
def test_days_beyond_python_come_from_spark_and_go_there(spark: SparkSession) -> None:
    with headrace.connect(spark=spark) as db:
        texts = "date '5874897-12-31', make_date(-44, 3, 15), timestamp '294247-01-10 04:00:54.775807Z'"
        found = db.sql(f"SELECT {texts}")
        assert found.rows() == [("+5874897-12-31", "-0044-03-15", "+294247-01-10 04:00:54.775807+00:00")]
        printed = db.sql(f"SELECT concat_ws(' ', {texts})").rows()
        assert printed == [("+5874897-12-31 -0044-03-15 +294247-01-10 04:00:54.775807",)]
        again = found.spark().selectExpr("*").toDF("a", "b", "c").selectExpr("cast(a AS string)", "cast(b AS string)")
        assert [tuple(row) for row in again.collect()] == [("+5874897-12-31", "-0044-03-15")]


@pytest.mark.spark
def test_rows_without_columns_count_in_spark(spark: SparkSession) -> None:
    with headrace.connect(spark=spark, engine="spark") as db:
        for statement in SETUP:
            db.sql(statement)
        db.sql("CREATE VIEW v AS SELECT count(*) AS n FROM s CROSS JOIN t")
        db.sql("CREATE VIEW e AS SELECT count(*) AS n FROM s WHERE EXISTS (SELECT 1 FROM t)")
        db.sql("INSERT INTO s (b) VALUES ('x'), ('y')")
        assert db.sql("SELECT v.n, e.n FROM v CROSS JOIN e").rows() == [(4, 2)]
        assert db.sql("SELECT count(*) FROM t a CROSS JOIN t b CROSS JOIN v").rows() == [(4,)]
        assert db.sql("SELECT 1 FROM t").rows() == [(1,), (1,)]
        assert db.sql("SELECT CAST(INTERVAL '-\t 1' DAY AS STRING)").rows() == [("INTERVAL '-1' DAY",)]
