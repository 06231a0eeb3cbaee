"""Spark's own analyzer, asked for what Headrace's binder does not know.

Each question is a query over empty relations whose schema Spark gives without
running a job. Answers are remembered, and kept with a view's definition, so a
database can be opened again without starting Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from headrace.errors import SqlError
from headrace.types import Field, Schema, Type, from_spark, of_spark, quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkAnalyzer:
    """Answers what type and name an expression has, what columns a query, whether a function aggregates."""

    def __init__(
        self, spark: Callable[[], SparkSession], zone: str = "UTC", known: Mapping[str, str] | None = None
    ) -> None:
        self._spark = spark
        self.zone = ZoneInfo(zone)
        self._known = dict(known or {})
        self._may_name = known is None
        self.answers: dict[str, str] = {}
        """What was asked since this analyzer was made, for the definition being bound."""

    def scalar_type(self, template: str, args: tuple[Type, ...]) -> Type:
        key = f"type {template} {[t.sql for t in args]}"
        columns = ", ".join(f"CAST(NULL AS {t.sql}) AS c{i}" for i, t in enumerate(args)) or "1 AS one"
        text = f"SELECT {template.format(*(f'c{i}' for i in range(len(args))))} AS x FROM (SELECT {columns})"
        return from_spark(self._ask(key, lambda: self._schema(text)[0].type.sql))

    def scalar_name(self, template: str, args: tuple[Type, ...]) -> str | None:
        key = f"name {template} {[t.sql for t in args]}"
        if key not in self._known and not self._may_name:
            return None  # an earlier Headrace stored the definition, and named its columns without asking
        mark = "__hole"
        while mark in template:
            mark += "_"
        holes = [f"{mark}{i}__" for i in range(len(args))]
        columns = ", ".join(f"CAST(NULL AS {t.sql}) AS {n}" for t, n in zip(args, holes, strict=True)) or "1 AS one"
        # By itself CAST(c AS …) is called c; inside another expression everything is printed.
        text = f"SELECT ({template.format(*holes)}\n) IS NULL FROM (SELECT {columns})"

        def ask() -> str:
            printed = self._schema(text)[0].name.removeprefix("(").removesuffix(" IS NULL)")
            return re.sub(rf"{mark}(\d+)__", r"{\1}", printed.replace("{", "{{").replace("}", "}}"))

        return self._ask(key, ask)

    def query_schema(self, text: str, inputs: Mapping[str, Schema]) -> Schema:
        key = f"query {text} {[(n, [(f.name, f.type.sql) for f in s]) for n, s in inputs.items()]}"
        full = _over(text, inputs)
        answer = self._ask(key, lambda: json.dumps([[f.name, f.type.sql] for f in self._schema(full)]))
        return tuple(Field(name, from_spark(ddl)) for name, ddl in json.loads(answer))

    def relations_read(self, text: str, inputs: Mapping[str, Schema]) -> list[str]:
        """Found by leaving each out: what Spark then misses is read."""
        key = f"reads {text} {[(n, [(f.name, f.type.sql) for f in s]) for n, s in inputs.items()]}"

        def ask() -> str:
            self.query_schema(text, inputs)
            return json.dumps([name for name in inputs if self._misses(text, inputs, name)])

        found: list[str] = json.loads(self._ask(key, ask))
        return found

    def _misses(self, text: str, inputs: Mapping[str, Schema], name: str) -> bool:
        try:
            self._schema(_over(text, {n: s for n, s in inputs.items() if n != name}))
        except SqlError as error:
            return error.condition == "TABLE_OR_VIEW_NOT_FOUND"
        return False

    def is_aggregate(self, function: str) -> bool:
        return self._ask(f"aggregate {function.lower()}", lambda: str(self._aggregates(function))) == "True"

    def _ask(self, key: str, ask: Callable[[], str]) -> str:
        if key not in self._known:
            self._known[key] = ask()
        self.answers[key] = self._known[key]
        return self._known[key]

    def _schema(self, text: str) -> Schema:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        try:
            schema = self._spark().sql(text).schema
        except (PySparkException, Py4JJavaError) as error:
            raise _refused(error) from None
        return tuple(Field(f.name, of_spark(f.dataType)) for f in schema.fields)

    def _aggregates(self, function: str) -> bool:
        from pyspark.errors import PySparkException

        try:
            return ".aggregate." in (self._spark().catalog.getFunction(function).className or "")
        except PySparkException:
            raise SqlError(
                "UNRESOLVED_ROUTINE", f"there is no function {function}", hint="functions are Spark's built-in ones"
            ) from None


def _over(text: str, inputs: Mapping[str, Schema]) -> str:
    """The query over empty relations."""
    ctes = ", ".join(f"{quote(name)} AS ({_empty(schema)})" for name, schema in inputs.items())
    return f"{f'WITH {ctes} ' if ctes else ''}SELECT * FROM ({text}\n)"


def _empty(schema: Schema) -> str:
    columns = ", ".join(f"CAST(NULL AS {f.type.sql}) AS {quote(f.name)}" for f in schema) or "1 AS one"
    return f"SELECT {columns} WHERE FALSE"


def _refused(error: Exception) -> SqlError:
    condition = getattr(error, "getCondition", lambda: None)() or "ANALYSIS_ERROR"
    lines = str(error).splitlines() or [""]
    if type(error).__name__ == "Py4JJavaError":  # PySpark knows some of Spark's exceptions only by their text
        named = re.search(r"\[([A-Z][A-Z0-9_.]*)\] [^\n]*", str(error))
        condition, lines = (named[1], [named[0]]) if named else ("SPARK_FAILED", lines[1:] or lines)
    message = re.sub(r"\s*SQLSTATE: .*$", "", lines[0].removeprefix(f"[{condition}]")).strip().rstrip(".")
    if condition == "INTERNAL_ERROR":  # Spark's; ours has that name
        condition = "SPARK_FAILED"
    return SqlError(condition.split(".")[0], f"Spark's analyzer refuses this: {message}")
