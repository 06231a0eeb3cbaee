"""Every statement form, and every refusal with its condition and place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import NotYetSupported, Position, SqlError
from headrace.sql.script import split_statements
from headrace.sql.statements import (
    Copy,
    CreateStream,
    CreateTable,
    CreateView,
    Describe,
    Drop,
    Explain,
    Insert,
    Query,
    Refresh,
    Show,
    Statement,
    parse,
)


def columns(statement: Statement) -> list[tuple[str, str, bool]]:
    assert isinstance(statement, CreateStream | CreateTable)
    return [(c.name, c.type.sql, c.nullable) for c in statement.columns]


def refusal(text: str) -> SqlError:
    with pytest.raises(SqlError) as caught:
        parse(text)
    return caught.value


def marked(text: str) -> tuple[str, Position]:
    """The text without its ``^``, and where it stood: the place an error must name."""
    offset = text.index("^")
    return text.replace("^", "", 1), Position(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


# CREATE


def test_create_stream() -> None:
    found = parse(
        "CREATE STREAM IF NOT EXISTS\n  `my posts` (id BIGINT NOT NULL, `Größe in m` DECIMAL(5,2), naïve STRING)"
    )
    assert isinstance(found, CreateStream)
    assert (found.name, found.if_not_exists, found.position) == ("my posts", True, Position(2, 3))
    assert columns(found) == [
        ("id", "bigint", False),
        ("Größe in m", "decimal(5,2)", True),
        ("naïve", "string", True),
    ]


@pytest.mark.parametrize(
    "text", ["CREATE FOREIGN TABLE s (a INT) SERVER stream", "create foreign table s(a int) server STREAM;"]
)
def test_a_foreign_table_of_server_stream_is_a_stream(text: str) -> None:
    found = parse(text)
    assert isinstance(found, CreateStream)
    assert (found.name, columns(found)) == ("s", [("a", "int", True)])
    assert found.position == Position(1, 22)


def test_a_foreign_stream_may_have_a_column_called_server() -> None:
    found = parse("CREATE FOREIGN TABLE s (server STRING, stream INT) SERVER stream")
    assert columns(found) == [("server", "string", True), ("stream", "int", True)]


@pytest.mark.parametrize("key", ["(a INT PRIMARY KEY, b INT)", "(a INT, b INT, PRIMARY KEY (A))"])
def test_a_key_is_not_null(key: str) -> None:
    found = parse(f"CREATE TABLE t {key}")
    assert isinstance(found, CreateTable)
    assert [k.lower() for k in found.primary_key] == ["a"]
    assert columns(found) == [("a", "int", False), ("b", "int", True)]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *((t, t) for t in ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double")),
        *((t, t) for t in ("string", "binary", "date", "timestamp", "timestamp_ntz")),
        ("BYTE", "tinyint"), ("SHORT", "smallint"), ("INTEGER", "int"), ("LONG", "bigint"),
        ("REAL", "float"), ("TIMESTAMP_LTZ", "timestamp"), ("DECIMAL", "decimal(10,0)"), ("DEC(7)", "decimal(7,0)"),
        ("NUMERIC(38, 38)", "decimal(38,38)"), ("array<array<DEC>>", "array<array<decimal(10,0)>>"),
        ("STRUCT<a INT, b: STRING NOT NULL, `c d`: STRUCT<Be: DATE>>", "struct<a:int,b:string,`c d`:struct<Be:date>>"),
        ("STRUCT<a: TIMESTAMP COMMENT 'when, \\'so\\'', b: TIMESTAMP_NTZ>", "struct<a:timestamp,b:timestamp_ntz>"),
    ],
)  # fmt: skip
def test_column_types(written: str, meant: str) -> None:
    assert columns(parse(f"CREATE STREAM s (x {written})")) == [("x", meant, True)]


@pytest.mark.parametrize("written", ["STRUCT<a: INT, A: INT>", "DECIMAL(0,0)", "VARIANT", "VOID", "INTERVAL DAY"])
def test_other_column_types_are_refused_by_name(written: str) -> None:
    error = refusal(f"CREATE STREAM s (a INT,\n  x {written})")
    assert isinstance(error, NotYetSupported)
    assert written.split("(")[0].split("<")[0].lower() in error.message and "column x" in error.message
    assert error.position == Position(2, 3) and "decimal(p,s)" in (error.hint or "")


def test_create_view_keeps_its_text() -> None:
    text = "CREATE VIEW IF NOT EXISTS v (x, `y z`) AS\nWITH a AS (SELECT ';' AS b) SELECT b, 1 FROM a"
    found = parse(text + " ;; ")
    assert isinstance(found, CreateView)
    assert (found.name, found.columns, found.if_not_exists) == ("v", ("x", "y z"), True)
    assert found.text.strip() == text
    assert parse(found.text).query == found.query  # type: ignore[union-attr]


@pytest.mark.parametrize("query", ["SELECT 1", "(SELECT 1)", "VALUES (1)", "SELECT 1 UNION ALL SELECT 2", "FROM s"])
def test_what_a_view_may_be_of(query: str) -> None:
    assert isinstance(parse(f"CREATE VIEW v AS {query}"), CreateView)


# INSERT, COPY


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("INSERT INTO s VALUES (1, 'a'), (2, NULL)", ()),
        ("INSERT INTO TABLE s VALUES (1)", ()),
        ("INSERT INTO s (b, `a c`) SELECT x, y FROM t", ("b", "a c")),
        ("INSERT INTO s WITH x AS (SELECT 1) SELECT * FROM x", ()),
        ("INSERT INTO s (SELECT 1)", ()),
    ],
)
def test_insert(text: str, names: tuple[str, ...]) -> None:
    found = parse(text)
    assert isinstance(found, Insert)
    assert (found.name, found.columns) == ("s", names)


OPTIONS: list[tuple[str, dict[str, str]]] = [
    ("", {}),
    ("CSV", {"format": "csv"}),
    ("WITH CSV HEADER", {"format": "csv", "header": "true"}),
    ("(FORMAT parquet)", {"format": "parquet"}),
    ("WITH (FORMAT = 'CSV', HEADER false)", {"format": "csv", "header": "false"}),
    ("(HEADER = on, FORMAT json)", {"header": "true", "format": "json"}),
    (r"(DELIMITER '\t', QUOTE '''', NULL '')", {"delimiter": "\t", "quote": "'", "null": ""}),
    ("DELIMITER ';' NULL = 'NULL' HEADER", {"delimiter": ";", "null": "NULL", "header": "true"}),
]


@pytest.mark.parametrize(("written", "meant"), OPTIONS)
def test_copy_options(written: str, meant: dict[str, str]) -> None:
    found = parse(f"COPY s FROM 'a;b/*.csv' {written}")
    assert isinstance(found, Copy)
    assert (found.name, found.columns, found.path, dict(found.options)) == ("s", (), "a;b/*.csv", meant)


def test_copy_into_named_columns() -> None:
    found = parse("COPY INTO s (b, `a c`) FROM 'x'")
    assert isinstance(found, Copy)
    assert (found.name, found.columns, found.position) == ("s", ("b", "a c"), Position(1, 11))


# The rest


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SHOW STREAMS", Show("streams")),
        ("show tables;", Show("tables")),
        ("SHOW VIEWS", Show("views")),
        ("DESCRIBE `a b`", Describe("a b", Position(1, 10))),
        ("DESC s", Describe("s", Position(1, 6))),
        ("DESCRIBE TABLE t", Describe("t", Position(1, 16))),
        ("DESCRIBE table", Describe("table", Position(1, 10))),
        ("DROP STREAM s", Drop("stream", "s", False, Position(1, 13))),
        ("DROP FOREIGN TABLE IF EXISTS s", Drop("stream", "s", True, Position(1, 30))),
        ("DROP TABLE t", Drop("table", "t", False, Position(1, 12))),
        ("DROP VIEW IF EXISTS v RESTRICT", Drop("view", "v", True, Position(1, 21))),
        ("DROP TABLE t CASCADE", Drop("table", "t", False, Position(1, 12), cascade=True)),
        ("DROP MATERIALIZED VIEW v", Drop("view", "v", False, Position(1, 24))),
        ("EXPLAIN SHOW VIEWS", Explain(Show("views"))),
    ],
)
def test_short_statements(text: str, expected: Statement) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text", ["SELECT 1", "WITH a AS (SELECT 1) SELECT * FROM a", "VALUES (1), (2)", "TABLE t", "(SELECT 1)"]
)
def test_queries(text: str) -> None:
    assert isinstance(parse(text), Query)


def test_table_t_is_all_of_t() -> None:
    assert parse("/* TABLE */ TABLE t") == parse("FROM t") == parse("SELECT * FROM t")


def test_explain_holds_the_statement_at_its_own_place() -> None:
    found = parse("EXPLAIN\n  CREATE VIEW v AS SELECT ';'")
    assert isinstance(found, Explain) and isinstance(found.statement, CreateView)
    assert found.statement.position == Position(2, 15)


# Refusals


REFUSED = [
    ("PARSE_SYNTAX_ERROR", "^frobnicate"),
    ("PARSE_SYNTAX_ERROR", "^'SELECT'"),
    ("PARSE_SYNTAX_ERROR", "SELECT a b ^c FROM t"),
    ("PARSE_SYNTAX_ERROR", "SELECT 1,\n  (2 ^+"),
    ("PARSE_SYNTAX_ERROR", "SELECT a\nFROM ^WHERE"),
    ("PARSE_SYNTAX_ERROR", "SELECT 1,\n ^'it"),
    ("UNCLOSED_BRACKETED_COMMENT", "SELECT '/*', `--`, 1 ^/* no end"),
    ("PARSE_SYNTAX_ERROR", "SELECT 1 FROM ^`a"),
    ("PARSE_SYNTAX_ERROR", "CREATE ^SOMETHING x"),
    ("PARSE_SYNTAX_ERROR", "CREATE TABLE t (a INT) ^blah"),
    ("PARSE_SYNTAX_ERROR", "CREATE STREAM s (a INT, ^)"),
    ("PARSE_SYNTAX_ERROR", "CREATE TABLE t (a INT, b DECIMAL(5,2),^) USING csv LOCATION 'x'"),
    ("PARSE_SYNTAX_ERROR", "CREATE FOREIGN TABLE s (a INT, ^) SERVER stream"),
    ("PARSE_SYNTAX_ERROR", "CREATE VIEW v AS\nSELECT a b ^c FROM s"),
    ("PARSE_SYNTAX_ERROR", "CREATE VIEW ^v"),
    ("PARSE_SYNTAX_ERROR", "CREATE FOREIGN TABLE s (a INT) SERVER ^other"),
    ("PARSE_SYNTAX_ERROR", "CREATE FOREIGN TABLE s (a INT^)"),
    ("PARSE_SYNTAX_ERROR", "SHOW ^DATABASES"),
    ("PARSE_SYNTAX_ERROR", "SHOW TABLES ^x"),
    ("PARSE_SYNTAX_ERROR", "DESCRIBE s ^x"),
    ("PARSE_SYNTAX_ERROR", "DROP ^s"),
    ("PARSE_SYNTAX_ERROR", "DROP VIEW v^, w"),
    ("PARSE_SYNTAX_ERROR", "DROP VIEW ^'v'"),
    ("PARSE_SYNTAX_ERROR", "^EXPLAIN"),
    ("PARSE_SYNTAX_ERROR", "EXPLAIN\n ^SELEC 1"),
    ("PARSE_SYNTAX_ERROR", "INSERT INTO ^s"),
    ("PARSE_SYNTAX_ERROR", "INSERT INTO s ^VALUES"),
    ("PARSE_SYNTAX_ERROR", "COPY ^s"),
    ("PARSE_SYNTAX_ERROR", "COPY s FROM ^x"),
    ("PARSE_SYNTAX_ERROR", "COPY s (a, b ^FROM 'x'"),
    ("PARSE_SYNTAX_ERROR", "COPY s FROM 'x' ^WITH"),
    ("PARSE_SYNTAX_ERROR", "COPY s FROM 'x' (^)"),
    ("PARSE_SYNTAX_ERROR", "COPY s FROM 'x' (DELIMITER ^5)"),
    ("PARSE_SYNTAX_ERROR", "COPY s FROM 'x' ^FORMAT"),
    ("COPY_OPTION_UNKNOWN", "COPY s FROM 'x'\n(HEADER, ^COMPRESSION gzip)"),
    ("COPY_REPEATED_OPTION", "COPY s FROM 'x' CSV ^FORMAT csv"),
    ("MULTIPLE_STATEMENTS", "SELECT 1^; SELECT 2"),
    ("MISSING_COLUMNS", "CREATE STREAM ^s"),
    ("MISSING_COLUMNS", "CREATE TABLE ^s ()"),
    ("PARSE_SYNTAX_ERROR", "CREATE STREAM s (a INT, ^b)"),
    ("COLUMN_ALREADY_EXISTS", "CREATE STREAM s (a INT, b INT, ^A STRING)"),
    ("COLUMN_ALREADY_EXISTS", "CREATE TABLE s (a INT, PRIMARY KEY (a, ^A))"),
    ("UNRESOLVED_COLUMN", "CREATE TABLE t (a INT, PRIMARY KEY (^c))"),
    ("MULTIPLE_PRIMARY_KEYS", "CREATE TABLE t (a INT PRIMARY KEY, ^b INT PRIMARY KEY)"),
    ("STREAM_WITH_KEY", "CREATE STREAM s (a INT, PRIMARY KEY (^a))"),
    ("STREAM_WITH_KEY", "CREATE STREAM s (b INT, ^a INT PRIMARY KEY)"),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "text"), REFUSED)
def test_refusals_name_condition_and_place(condition: str, text: str) -> None:
    sql, position = marked(text)
    error = refusal(sql)
    assert (error.condition, error.position) == (condition, position)
    assert "Token" not in error.message and "sqlglot" not in str(error)


@pytest.mark.parametrize("text", ["", " ;; ", "-- only a comment", "/* ; */"])
def test_nothing_is_no_statement(text: str) -> None:
    assert refusal(text).condition == "PARSE_EMPTY_STATEMENT"
    assert split_statements(text) == []


NOT_YET = [
    ("UPDATE t SET ^a.b = 1", "a field of a column"),
    ("MERGE ^WITH SCHEMA EVOLUTION INTO t USING s ON true WHEN MATCHED THEN DELETE", "SCHEMA EVOLUTION"),
    ("TRUNCATE TABLE t ^PARTITION (a = 1)", "partitions"),
    ("ALTER TABLE t ALTER COLUMN a ^TYPE BIGINT", "another type"),
    ("ALTER TABLE t ^RECOVER PARTITIONS", "ALTER … RECOVER"),
    ("^SET x = 1", "SET of a setting"),
    ("^BEGIN", "transactions"),
    ("CREATE ^OR REPLACE SAMPLE v OF s SIZE 1", "CREATE OR REPLACE"),
    ("CREATE ^TEMPORARY VIEW v AS SELECT 1", "TEMPORARY"),
    ("CREATE STREAM t ^AS SELECT 1", "CREATE STREAM … AS"),
    ("CREATE TABLE t (a INT) USING ^orc LOCATION 'x'", "USING orc"),
    ("CREATE TABLE t ^LIKE u", "LIKE"),
    ("CREATE TABLE t (a INT ^REFERENCES u)", "REFERENCES"),
    ("CREATE STREAM s (a INT ^CHECK (a > 0))", "CHECK"),
    ("CREATE STREAM db^.s (a INT)", "schema"),
    ("DROP VIEW a^.b", "schema"),
    ("INSERT INTO db^.s VALUES (1)", "schema"),
    ("INSERT INTO s ^PARTITION (a = 1) VALUES (1)", "PARTITION"),
    ("INSERT INTO s ^BY NAME SELECT 1 AS a", "BY NAME"),
    ("INSERT OVERWRITE ^DIRECTORY 'x' SELECT 1", "OVERWRITE DIRECTORY"),
    ("COPY s ^TO 'x'", "COPY … TO"),
    ("EXPLAIN ^EXTENDED SELECT 1", "EXTENDED"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "missing"), NOT_YET)
def test_not_yet_supported_names_what_is_missing(text: str, missing: str) -> None:
    sql, position = marked(text)
    error = refusal(sql)
    assert isinstance(error, NotYetSupported) and error.condition == "NOT_YET_SUPPORTED"
    assert missing in error.message
    assert error.position == position


@pytest.mark.parametrize(
    "text",
    [
        "CREATE STREAM s (a INT) COMMENT 'x'",
        "CREATE VIEW v COMMENT 'x' AS SELECT 1",
    ],
)
def test_options_are_refused_not_ignored(text: str) -> None:
    assert isinstance(refusal(text), NotYetSupported)


def test_create_view_with_retain() -> None:
    found = parse("CREATE VIEW v (a) WITH (retain = '1 day 2 hours') AS SELECT 1")
    assert isinstance(found, CreateView) and found.retain == 26 * 3_600_000_000
    plain = parse("CREATE VIEW v AS SELECT 1")
    assert isinstance(plain, CreateView) and plain.retain is None
    wrong, position = marked("CREATE VIEW v WITH (retain = ^'often') AS SELECT 1")
    assert (refusal(wrong).condition, refusal(wrong).position) == ("INVALID_RETAIN", position)


@pytest.mark.parametrize(
    ("text", "name", "restart"),
    [
        ("REFRESH VIEW v", "v", False),
        ("refresh `low stock` restart", "low stock", True),
        ("REFRESH VIEW v RESTART;", "v", True),
        ("REFRESH view RESTART", "view", True),
    ],
)
def test_refresh(text: str, name: str, restart: bool) -> None:
    found = parse(text)
    assert isinstance(found, Refresh) and (found.name, found.restart) == (name, restart)


# Scripts


PIECES = [
    "SELECT 1",
    "SELECT ';' AS a",
    'SELECT "a;b"',
    "SELECT `;` FROM t",
    "EXPLAIN SELECT ';'",
    "EXPLAIN CREATE VIEW v AS SELECT 'it''s; \\' ;'",
    "SHOW TABLES",
    "COPY s FROM 'a;b'",
    "SELECT /* ; */ 1",
    "SELECT 1 -- ;\n + 2",
    "DESCRIBE s",
    "INSERT INTO s VALUES ('é;')",
]


@given(st.lists(st.sampled_from(PIECES)), st.sampled_from([";", " ;\n", ";;", ";\n-- a; comment\n", "; /* ; */ "]))
def test_a_script_is_cut_where_its_statements_end(pieces: list[str], between: str) -> None:
    for script in (between.join(pieces), "".join(p + between for p in pieces)):
        found = split_statements(script)
        assert [s.text for s in found] == pieces
        for statement in found:
            rest = "\n".join([script.split("\n")[statement.at.line - 1][statement.at.column - 1 :], ""])
            assert rest.startswith(statement.text.split("\n")[0])


@given(
    st.text(alphabet="abAB01 '\"`;.,()-/*\\\n@é", max_size=30),
    st.sampled_from(["", "SELECT ", "COPY s ", "CREATE STREAM s ", "EXPLAIN "]),
)
def test_any_text_parses_or_is_refused_by_name(text: str, start: str) -> None:
    outcome: Any
    try:
        outcome = parse(start + text)
    except SqlError as error:
        outcome = error
    assert isinstance(outcome, SqlError | Statement)
