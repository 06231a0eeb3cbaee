"""What is parsed prints back as what was written, for Spark to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from binding import create_view
from sqlglot import exp, parse_one
from test_naming import AGGREGATES, ITEMS

from headrace.sql.verbatim import Verbatim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("text", ITEMS + AGGREGATES)
def test_printing_is_a_fixed_point(text: str) -> None:
    printed = parse_one(text, read=Verbatim).sql(Verbatim)
    assert parse_one(printed, read=Verbatim).sql(Verbatim) == printed


@pytest.mark.spark
@pytest.mark.parametrize("items", [ITEMS, AGGREGATES], ids=["scalars", "aggregates"])
def test_differential_print(spark: SparkSession, items: tuple[str, ...]) -> None:
    """Spark gives the printed text the types it gives the written text."""
    create_view(spark)
    printed = [parse_one(item, read=Verbatim).sql(Verbatim) for item in items]
    written = spark.sql(f"SELECT {', '.join(items)} FROM every_type").schema
    again = spark.sql(f"SELECT {', '.join(printed)} FROM every_type").schema
    assert [f.dataType for f in again] == [f.dataType for f in written]


def test_calls_stay_calls() -> None:
    for text in ("year(a)", "log(2, a)", "percentile(a, 0.5)", "any(a)", "if(a, b, c)", "datediff(DAY, a, b)"):
        node = parse_one(text, read=Verbatim)
        assert isinstance(node, exp.Anonymous) and node.sql(Verbatim) == text


def test_a_suffix_is_not_a_cast() -> None:
    assert isinstance(parse_one("1L", read=Verbatim), exp.Literal)
    assert isinstance(parse_one("1::bigint", read=Verbatim), exp.Cast)
    assert isinstance(parse_one("a::bigint", read=Verbatim), exp.Cast)


def test_a_plus_after_an_interval_is_a_plus() -> None:
    node = parse_one("INTERVAL 1 DAY + '7'", read=Verbatim)
    assert isinstance(node, exp.Add) and node.expression.is_string
    assert isinstance(parse_one("interval + 1", read=Verbatim), exp.Add)
    assert parse_one("INTERVAL -1 DAY", read=Verbatim).this.name == "-1"


def test_every_interval_is_one_literal() -> None:
    for unit in ("YEAR", "MONTHS", "WEEKS", "DAY", "hours", "MINUTES", "seconds", "MILLISECONDS", "MICROSECONDS"):
        for count in ("1", "-3", "'2'", "-'2'", "1.5"):
            node = parse_one(f"INTERVAL {count} {unit}", read=Verbatim)
            assert isinstance(node, exp.Interval) and isinstance(node.this, exp.Literal)
            assert node.this.name == count.replace("'", "")
            assert node.args["unit"].name.upper() == unit.upper()


def test_doubled_quotes_are_one() -> None:
    assert [parse_one(t, read=Verbatim).name for t in ("'it''s'", '"a""b"', "'a\"\"b'")] == ["it's", 'a"b', 'a""b']
