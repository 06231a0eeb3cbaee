"""The AIM queries as continuous views (V21): at every clock, each answer is Spark's as a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from bench import aim

import headrace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CUSTOMERS = aim.customers(60)
EVENTS = aim.events(3_000, 60, weeks=(7, 8, 9))


def _tuples(rows: Any) -> list[str]:
    return sorted(repr(tuple(round(v, 9) if isinstance(v, float) else v for v in row)) for row in rows)


@pytest.mark.spark
def test_differential_every_week_equals_spark_batch(spark: SparkSession) -> None:
    session = spark.newSession()
    for key, value in {"shuffle.partitions": 1, "adaptive.enabled": "false", "codegen.wholeStage": "false"}.items():
        session.conf.set(f"spark.sql.{key}", value)
    session.createDataFrame(CUSTOMERS).createOrReplaceTempView("customers")
    with headrace.connect(engine="native") as db:
        db.sql(f"CREATE STREAM events ({aim.EVENTS})")
        db.sql(f"CREATE TABLE customers ({aim.CUSTOMERS})")
        db.sql(f"CREATE TABLE clock ({aim.CLOCK})")
        db.insert("customers", CUSTOMERS)
        for name, query in aim.QUERIES.items():
            db.sql(f"CREATE VIEW {name} AS {query}")
            plan = db.sql(f"EXPLAIN CREATE VIEW x AS {query}").arrow()["plan"].to_pylist()
            assert not [line for line in plan if "Spark SQL" in line], f"{name} is native"
        for begin, end, weeks in ((0, 1_700, []), (1_700, 3_000, [(8,)])):
            db.insert("events", EVENTS.slice(begin, end - begin))
            if weeks:
                db.insert("clock", weeks)
            session.createDataFrame(EVENTS.slice(0, end)).createOrReplaceTempView("events")
            session.createDataFrame(weeks, "week INT").createOrReplaceTempView("clock")
            for name, query in aim.QUERIES.items():
                expected = session.sql(query).toArrow()
                found = db.sql(f"SELECT * FROM {name}").arrow()
                assert [f.type for f in found.schema] == [f.type for f in expected.schema], name
                mine, theirs = (t.to_pylist() for t in (found, expected))
                assert _tuples(r.values() for r in mine) == _tuples(r.values() for r in theirs), name
                assert not weeks or found.num_rows, name


def test_the_clock_moves_without_an_event() -> None:
    """The week stands above the grouping, so a change of the clock alone changes the answers."""
    with headrace.connect(engine="native") as db:
        db.sql(f"CREATE STREAM events ({aim.EVENTS})")
        db.sql(f"CREATE TABLE customers ({aim.CUSTOMERS})")
        db.sql(f"CREATE TABLE clock ({aim.CLOCK})")
        db.sql(f"CREATE VIEW q2 AS {aim.QUERIES['q2']}")
        db.insert("events", EVENTS)
        assert db.sql("SELECT * FROM q2").rows() == [(None,)]
        db.insert("clock", [(7,)])
        assert db.sql("SELECT max_cost > 0 FROM q2").rows() == [(True,)]
        assert "clock" in {r[0]: r[1] for r in db.sql("DESCRIBE q2").rows()}["# read at each query"]
