"""Headrace and Structured Streaming: rows from Spark in, views to Spark out, each once (docs/spark.md).

* ``attach.py``: a streaming DataFrame feeds a stream from the process that has the database open.
* ``sink.py``, ``stream/inbox.py``: any Spark application feeds a stream, through files.
* ``source.py``, ``published.py``, ``changes.py``: any Spark application reads rows and changes, from files.
* ``porter.py``: the owner's side of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.boundary import public

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@public
def register(spark: SparkSession) -> None:
    """Make the format ``headrace`` known to a session.

    Where Headrace is installed for Spark's Python, Spark finds the format by itself.
    """
    from headrace.engine.session import require_session
    from headrace.spark.source import HeadraceSource

    require_session(spark, "headrace.register(spark)")
    spark.dataSource.register(HeadraceSource)
