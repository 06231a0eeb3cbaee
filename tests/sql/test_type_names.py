"""Types are what Spark's grammar says they are, whatever sqlglot makes of their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser

from headrace.errors import HeadraceError, Position, SqlError
from headrace.sql.grammar import parse_expression, parse_query
from headrace.sql.source import text_of
from headrace.sql.statements import parse
from headrace.types import of_spark, parse_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KNOWN_TO_SQLGLOT = sorted(
    {word.lower() for word, token in Spark.Tokenizer.KEYWORDS.items() if token in SparkParser.TYPE_TOKENS}
    | {kind.value.lower() for kind in exp.DType}
)
FORMS = (
    "text", "bool", "string", "int8", "datetime", "number", "nvarchar(5)", "timestamptz", "long", "short", "byte",
    "integer", "int(3)", "string(3)", "double(3)", "double precision", "int unsigned", "unsigned int", "int[]",
    "int array", "`int`", "real", "dec", "dec(5)", "numeric(5,2)", "decimal(5,2,1)", "decimal(39)", "decimal(3,4)",
    "decimal()", "decimal(-1)", "decimal(a)", "character(3)", "char(3)", "varchar(3)", "varchar(0)", "char", "varchar",
    "varchar(3,4)", "character varying(3)", "varchar(max)", "timestamp(6)", "timestamp(9)", "timestamp_ntz(6)",
    "timestamp_ntz(9)", "timestamp_ltz(3)", "timestamp_ltz", "timestamp without time zone",
    "timestamp(6) without time zone", "timestamp with local time zone", "timestamp with time zone",
    "timestamp_ntz without time zone", "time", "time(3)", "time without time zone", "date(3)",
    "interval", "interval day", "interval day to second", "interval hour to minute", "interval second to hour",
    "interval year to month", "interval year to day", "interval month", "interval week", "interval minute to month",
    "array<int>", "array", "array<>", "array<int, int>", "array<array<array<int>>>", "array(int)", "list<int>",
    "map<string, int>", "map", "map<int>", "map<map<int, int>, array<map<int,string>>>", "map<int, int", "map<,>",
    "struct<a int>", "struct<a: int, b: string not null comment 'it''s' 'so', `c d` array<int>>", "struct", "struct<>",
    "struct<int>", "struct<a>", "struct<a int not>", "struct<1a: int>", "struct<date: date, array: array<int>>",
    "struct<a: varchar(3), b: char(2)>", "struct<a int = 3>", "struct(a int)", "row(a int)", "object", "variant",
    "json", "uuid", "void", "null", "geometry(4326)", "geometry", "geography(any)", "string collate utf8_lcase",
    "string collate nosuch", "varchar(3) collate utf8_lcase", "int collate utf8_lcase", "int not null", "nullable(int)",
)  # fmt: skip


def ours(word: str) -> str:
    """What a cast to the type gives here: Spark's name of the type, ``spark`` if it is asked, or that it is refused."""
    try:
        cast = parse_query(f"SELECT CAST(NULL AS {word})").find(exp.Cast)
    except SqlError:
        return "refused"
    assert cast is not None
    found = parse_type(cast.args["to"].name)
    return "spark" if found is None else found.sql


@pytest.mark.spark
def test_every_type_name_is_sparks_own_or_refused_by_both(spark: SparkSession) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    differing = []
    for word in (*KNOWN_TO_SQLGLOT, *FORMS):
        try:
            theirs = of_spark(spark.sql(f"SELECT CAST(NULL AS {word}) AS x").schema[0].dataType).sql
        except (PySparkException, Py4JJavaError):
            theirs = "refused"
        found = ours(word)
        if found == "spark":
            text = text_of(parse_query(f"SELECT CAST(NULL AS {word}) AS x"))
            try:
                found = of_spark(spark.sql(text).schema[0].dataType).sql
            except (PySparkException, Py4JJavaError):
                found = "refused"
        if found != theirs:
            differing.append((word, found, theirs))
    assert not differing


@pytest.mark.parametrize(
    ("text", "condition", "column"),
    [
        ("SELECT CAST(a AS TEXT)", "UNSUPPORTED_DATATYPE", 18),
        ("SELECT a::INT8", "UNSUPPORTED_DATATYPE", 11),
        ("SELECT 1::L", "UNSUPPORTED_DATATYPE", 11),
        ("SELECT CAST(a AS ARRAY<DATETIME>)", "UNSUPPORTED_DATATYPE", 24),
        ("SELECT CAST(a AS INT(3))", "UNSUPPORTED_DATATYPE", 18),
        ("SELECT CAST('10:20:30' AS TIME)", "UNSUPPORTED_TIME_TYPE", 27),
        ("CREATE TABLE t (a INT, b TIME(3))", "UNSUPPORTED_TIME_TYPE", 26),
        ("CREATE TABLE t (a STRUCT<b: TIME>)", "UNSUPPORTED_TIME_TYPE", 29),
        ("SELECT a::timestamp_ntz(9)", "INVALID_TIMESTAMP_PRECISION", 11),
        ("SELECT a::varchar", "DATATYPE_MISSING_SIZE", 11),
        ("SELECT a::decimal(39)", "DECIMAL_PRECISION_EXCEEDS_MAX_PRECISION", 11),
        ("SELECT a::decimal(3, 4)", "DECIMAL_SCALE_EXCEEDS_PRECISION", 11),
        ("SELECT a::map", "INCOMPLETE_TYPE_DEFINITION", 11),
        ("SELECT CAST(a AS DATE FORMAT 'yyyy')", "PARSE_SYNTAX_ERROR", 23),
        ("SELECT CAST(a AS INT[])", "PARSE_SYNTAX_ERROR", None),
        ("SELECT int '3'", "UNSUPPORTED_TYPED_LITERAL", 8),
        ("SELECT timestamptz '2024-01-01'", "UNSUPPORTED_TYPED_LITERAL", 8),
        ("SELECT date '2024-' '01-01'", "PARSE_SYNTAX_ERROR", 21),
        ("SELECT timestamp_ntz(9) '2024-01-01'", "PARSE_SYNTAX_ERROR", 25),
    ],
)
def test_what_spark_refuses_is_refused_where_it_stands(text: str, condition: str, column: int | None) -> None:
    with pytest.raises(HeadraceError) as error:
        parse(text)
    assert error.value.condition == condition
    assert column is None or error.value.position == Position(1, column)


def test_a_typed_literal_is_one_before_anything_is_done_with_it() -> None:
    node = parse_expression("date '2024-01-01'::string")
    assert isinstance(node, exp.Cast) and text_of(node.this) == "date '2024-01-01'"


def test_words_that_look_like_types_are_names() -> None:
    words = (
        "date",
        "int",
        "string AS text",
        "date(date)",
        "decimal(3)",
        "`time`",
        "time",
        "array(1)[0]",
        "map('a', 1)['a']",
    )
    tree = parse_query(f"SELECT {', '.join(words)} FROM t")
    assert [text_of(item) for item in tree.expressions] == list(words)
    assert not list(tree.find_all(exp.Cast))


def test_angle_brackets_close_one_by_one() -> None:
    node = parse_expression("substring(CAST(a AS array<array<array<int>>>)[0], 1 >> 2)")
    cast = node.find(exp.Cast)
    assert cast is not None and cast.args["to"].name == "array<array<array<int>>>"
    with pytest.raises(SqlError):
        parse_expression("CAST(a AS array<int>>)")
