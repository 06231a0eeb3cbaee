"""A query over a database that is read by JDBC is moved: embedded Derby, which Spark brings along."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError

import headrace
from headrace.errors import StoreError
from headrace.move import ticket as tickets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_DRIVER = "org.apache.derby.jdbc.EmbeddedDriver"
_SCRIPT = """SET spark.sql.autoBroadcastJoinThreshold = -1;
    CREATE TEMPORARY VIEW sales USING jdbc OPTIONS (url '{url}', driver '{driver}', dbtable 'SALES',
        partitionColumn 'ID', lowerBound '0', upperBound '300', numPartitions '2');
    CREATE TEMPORARY VIEW items USING jdbc OPTIONS (url '{url}', driver '{driver}',
        query 'SELECT item, kind FROM ITEMS WHERE item < 15');
    SELECT kind, count(*) AS n, sum(s.amount) AS amount, max(a.amount) AS most
    FROM sales s JOIN items i ON s.item = i.item
         JOIN (SELECT item, sum(amount) AS amount FROM sales GROUP BY item) a ON a.item = i.item
    WHERE s.amount > 3 GROUP BY kind ORDER BY kind"""


def _make(spark: SparkSession, url: str) -> None:
    jvm: Any = spark._jvm
    jvm.java.lang.System.setProperty("derby.stream.error.file", "/dev/null")
    jvm.java.lang.Class.forName(_DRIVER)
    connection = jvm.java.sql.DriverManager.getConnection(f"{url};create=true")
    statement = connection.createStatement()
    sales = ", ".join(f"({i}, {i * 7 % 23}, {i * 31 % 101})" for i in range(300))
    items = ", ".join(f"({i}, 'kind {i % 4}')" for i in range(20))
    for text in (
        "CREATE TABLE sales (id INT, item INT, amount BIGINT)",
        f"INSERT INTO sales VALUES {sales}",
        "CREATE TABLE items (item INT, kind VARCHAR(10))",
        f"INSERT INTO items VALUES {items}",
    ):
        statement.execute(text)
    connection.close()


def _let_go(spark: SparkSession, url: str) -> None:
    """One process at a time has the database open. Derby throws when it has closed it."""
    jvm: Any = spark._jvm
    with pytest.raises(Py4JJavaError, match="shutdown"):
        jvm.java.sql.DriverManager.getConnection(f"{url};shutdown=true")


@pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "soak", reason="two processes open a database in turn")
def test_differential_a_query_over_jdbc_goes_on_elsewhere(spark: SparkSession, elsewhere: Any, tmp_path: Path) -> None:
    url = f"jdbc:derby:{tmp_path}/shop"
    _make(spark, url)
    running = headrace.run(spark, _SCRIPT.format(url=url, driver=_DRIVER))
    expected = running.result().arrow().to_pylist()
    _let_go(spark, url)
    assert len(expected) == 4
    stages = running._planned.stages()
    assert len(stages) > 3
    ticket = running._write(tickets.new_folder(spark, str(tmp_path / "ticket")), stages[: len(stages) // 2])
    unchecked = ticket.manifest["inputs"]["unchecked"]
    assert len(unchecked) == 3 and all("JDBC" in name for name in unchecked)
    answer = elsewhere.ask("resume", ticket=ticket.address)
    assert "error" not in answer, answer
    assert answer["rows"] == expected and answer["moved"] == len(ticket.states) > 0


def test_the_same_table_of_another_database_is_another_input(spark: SparkSession, tmp_path: Path) -> None:
    urls = [f"jdbc:derby:{tmp_path}/{name}" for name in ("one", "other")]
    view = "CREATE OR REPLACE TEMPORARY VIEW moved_sales USING jdbc OPTIONS (url '{}', driver '{}', dbtable 'SALES')"
    for url in urls:
        _make(spark, url)
    try:
        spark.sql(view.format(urls[0], _DRIVER))
        running = headrace.run(spark, "SELECT item, sum(amount) AS amount FROM moved_sales GROUP BY item")
        expected = sorted(running.result().rows())
        ticket = running._write(tickets.new_folder(spark, str(tmp_path / "ticket")), running._planned.stages())
        spark.sql(view.format(urls[1], _DRIVER))
        with pytest.raises(StoreError) as caught:
            headrace.resume(spark, ticket)
        assert caught.value.condition == "PLAN_DIFFERS"
        spark.sql(view.format(urls[0], _DRIVER))
        assert sorted(headrace.resume(spark, ticket).result().rows()) == expected
    finally:
        spark.catalog.dropTempView("moved_sales")
        for url in urls:
            _let_go(spark, url)
