"""Headrace keeps SQL views over streams and changing tables fresh, on Spark, from Python.

>>> with connect() as db:
...     _ = db.sql("CREATE STREAM clicks (page STRING, ms INT)")
...     _ = db.sql("CREATE VIEW slow AS SELECT page, max(ms) AS worst FROM clicks GROUP BY page")
...     _ = db.insert("clicks", [{"page": "/", "ms": 20}, {"page": "/buy", "ms": 90}, {"page": "/", "ms": 35}])
...     db.sql("SELECT * FROM slow ORDER BY worst DESC").show()
page | worst
-----+------
/buy |    90
/    |    35
"""

from headrace.database import Database, connect
from headrace.errors import HeadraceError
from headrace.move import RunningQuery, Ticket, resume, run
from headrace.move.export import open_ticket as open
from headrace.result import Result
from headrace.sample.on_spark import reservoir
from headrace.spark import register
from headrace.stream.ring.writer import ring

__version__ = "0.1.0"

__all__ = [
    "Database",
    "HeadraceError",
    "Result",
    "RunningQuery",
    "Ticket",
    "__version__",
    "connect",
    "open",
    "register",
    "reservoir",
    "resume",
    "ring",
    "run",
]
