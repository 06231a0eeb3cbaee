"""What the grammar read is what Spark reads: a statement and our print of its tree have one plan in Spark.

The print uses the tree alone (``printed.py``), so a clause that was dropped, an operator that binds otherwise and a
name that was taken for a keyword all show. What Spark's parser refuses is refused here, and what it takes is taken.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from printed import printed

from headrace.errors import SqlError
from headrace.sql.grammar import Opaque, parse_query
from headrace.sql.script import split_statements
from made_statements import TABLES, Made
from profiles import SOAK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRITTEN = [text for text in (Path(__file__).parent / "round_trip.sql").read_text().split(";\n") if text.strip()]
HERE = Path(__file__).parent.parent
BENCHMARKS = [s.text for name in ("tpch.sql", "tpcds.sql") for s in split_statements((HERE / name).read_text())]


def made(first: int, count: int) -> list[str]:
    return [Made(seed).statement() for seed in range(first, first + count)]


def parsed(spark: SparkSession, text: str) -> str | None:
    """Spark's plan of a text before it looks at names, or ``None`` if its parser refuses it."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import ParseException

    parser = spark._jsparkSession.sessionState().sqlParser()  # type: ignore[attr-defined]
    try:
        return _plain(parser.parsePlan(text).toString())
    except (ParseException, Py4JJavaError):
        return None


def analysed(spark: SparkSession, text: str) -> str | None:
    from pyspark.errors import PySparkException

    try:
        return _plain(spark.sql(text)._jdf.queryExecution().analyzed().toString())
    except PySparkException:
        return None


def _plain(plan: str) -> str:
    """A plan without the numbers of its columns, nor what only says how it was written."""
    return re.sub(r"#\d+L?|\bplan_id=\d+|\[id=#?\d+\]", "", plan)


def difference(spark: SparkSession, text: str) -> str | None:
    """What is wrong with our reading of a text, if anything is."""
    theirs = parsed(spark, text)
    try:
        tree = parse_query(text)
    except SqlError as error:
        # Spark reads a column called AS in SELECT all AS x, and an alias WHERE in FROM t WHERE (a).
        known = theirs is None or "before AS is no column" in error.message or "'SubqueryAlias WHERE" in theirs
        return None if known else f"refused here, read by Spark: {error}"
    if isinstance(tree, Opaque):
        return None  # Spark gets the text itself
    if theirs is None:
        return "read here, refused by Spark"
    again = printed(tree)
    ours = parsed(spark, again)
    if ours == theirs:
        return None
    one, other = analysed(spark, text), analysed(spark, again)
    if one is not None and one == other:
        return None  # parentheses alone
    return f"printed as {again}\n{ours}\nis not\n{theirs}"


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> SparkSession:
    for name, (columns, rows) in TABLES.items():
        ddl = ", ".join(f"`{c}` INT" for c in columns)
        spark.createDataFrame(list(rows), ddl).createOrReplaceTempView(name)
    return spark


@pytest.mark.spark
@pytest.mark.parametrize("texts", [WRITTEN, BENCHMARKS], ids=["written", "benchmarks"])
def test_differential_reading(tables: SparkSession, texts: list[str]) -> None:
    wrong = {text: found for text in texts if (found := difference(tables, text)) is not None}
    assert not wrong, "\n\n".join(f"{text}\n{found}" for text, found in wrong.items())


@pytest.mark.spark
def test_differential_reading_of_made_statements(tables: SparkSession) -> None:
    for text in made(0, 20_000 if SOAK else 400):
        found = difference(tables, text)
        assert found is None, f"{text}\n{found}"


@pytest.mark.parametrize("clause", ["WHERE (a)", "WHERE (`a`) ORDER BY b", "having (a)", "QUALIFY (a, b)"])
def test_a_condition_that_spark_takes_for_an_alias_is_refused(clause: str) -> None:
    with pytest.raises(SqlError, match="alias of the relation before it") as refused:
        parse_query(f"SELECT a FROM t {clause}")
    assert "without parentheses" in str(refused.value.hint)


@pytest.mark.parametrize(
    "rest",
    [
        "WHERE (a) AND b",
        "WHERE (a) IS NULL",
        "WHERE ((a))",
        "WHERE (t.a)",
        "x WHERE (a)",
        "JOIN u ON b WHERE (a)",
    ],
)
def test_a_condition_that_spark_takes_for_one_is_taken(rest: str) -> None:
    tree = parse_query(f"SELECT a FROM t {rest}")
    assert not isinstance(tree, Opaque) and tree.args["where"] is not None
