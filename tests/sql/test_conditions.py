"""What is wrong with a statement has the name Spark has for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from wrong_statements import RIGHT, SETUP, WRONG

import headrace
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.database import Database

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def both(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SparkSession, Database]]:
    """The same tables in Spark (in a schema of their own) and in Headrace."""
    theirs = spark.newSession()
    place = tmp_path_factory.mktemp("conditions")
    theirs.sql(f"CREATE DATABASE conditions LOCATION '{place / 'theirs'}'")
    theirs.sql("USE conditions")
    with headrace.connect(place / "ours.hr", spark=spark) as db:
        for statement in SETUP:
            theirs.sql(in_spark(statement)).collect()
            db.sql(statement)
        yield theirs, db
    theirs.sql("USE default")
    theirs.sql("DROP DATABASE conditions CASCADE")


def in_spark(statement: str) -> str:
    return statement + " USING parquet" if re.match(r"CREATE TABLE \w+ \(", statement) else statement


def theirs_of(spark: SparkSession, statement: str) -> str:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        spark.sql(in_spark(statement)).collect()
    except PySparkException as error:
        return (error.getCondition() or "").partition(".")[0]
    except Py4JJavaError as error:
        named = re.search(r"\[([A-Z_]+)", str(error))
        assert named is not None, error
        return named[1]
    return "answered"


@pytest.mark.parametrize("statement", WRONG)
def test_a_condition_is_sparks(both: tuple[SparkSession, Database], statement: str) -> None:
    spark, db = both
    theirs = theirs_of(spark, statement)
    assert theirs != "answered"
    with pytest.raises(HeadraceError) as error:
        db.sql(statement).rows()
    assert error.value.condition.partition(".")[0] == theirs
    for kind in ("TABLE", "VIEW"):
        with suppress(HeadraceError):
            db.sql(f"DROP {kind} x")
            pytest.fail("a statement that raised left something behind")


@pytest.mark.parametrize("statement", RIGHT)
def test_what_stands_beside_it_is_answered(both: tuple[SparkSession, Database], statement: str) -> None:
    spark, db = both
    theirs, ours = spark.sql(statement).toArrow(), db.sql(statement).arrow()
    assert ours.column_names == theirs.column_names
    mine, wanted = ([tuple(row.items()) for row in rows.to_pylist()] for rows in (ours, theirs))
    if "ORDER BY" not in statement:
        mine, wanted = sorted(mine, key=repr), sorted(wanted, key=repr)
    assert mine == wanted
