"""Headrace keeps SQL views over streams and changing tables fresh, on Spark, from Python.

>>> import headrace
>>> with headrace.connect() as db:
...     _ = db.sql("CREATE STREAM clicks (page STRING, ms INT)")
...     _ = db.sql("CREATE VIEW slow AS SELECT page, max(ms) AS worst FROM clicks GROUP BY page")
...     _ = db.insert("clicks", [{"page": "/", "ms": 20}, {"page": "/buy", "ms": 90}, {"page": "/", "ms": 35}])
...     db.sql("SELECT * FROM slow ORDER BY worst DESC").show()
page | worst
-----+------
/buy |    90
/    |    35
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.database import Database, connect
    from headrace.errors import HeadraceError
    from headrace.move import RunningQuery, Ticket, resume, run
    from headrace.move.export import open_ticket as open
    from headrace.sample.on_spark import reservoir
    from headrace.spark import register
    from headrace.statement.result import Result
    from headrace.stream.writer import ring

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

_HOMES = {
    "Database": "headrace.database",
    "HeadraceError": "headrace.errors",
    "Result": "headrace.statement.result",
    "RunningQuery": "headrace.move",
    "Ticket": "headrace.move",
    "connect": "headrace.database",
    "open": "headrace.move.export",
    "register": "headrace.spark",
    "reservoir": "headrace.sample.on_spark",
    "resume": "headrace.move",
    "ring": "headrace.stream.writer",
    "run": "headrace.move",
}
"""Where each public name lives. Python workers of Spark need few of them, and each would load all the others."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), "open_ticket" if name == "open" else name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
