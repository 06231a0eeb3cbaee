"""What the expression tests share: a relation with a column of every type, and a real analyzer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import Position, SqlError
from headrace.plan.exprs import Column, Expr
from headrace.sql.expressions import Analyzer, bind_expr
from headrace.sql.grammar import parse_expression
from headrace.types import COLUMN_TYPES, Type, decimal, from_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECIMALS = (decimal(5, 2), decimal(15, 2), decimal(10, 0), decimal(38, 10))
TYPES: dict[str, Type] = {
    **{f"c_{t.name}": t for t in COLUMN_TYPES},
    **{f"c_dec_{t.precision}_{t.scale}": t for t in DECIMALS},
}
COLUMNS = {name: Column(type_, i, name) for i, (name, type_) in enumerate(TYPES.items())}
LITERALS = ("NULL", "1", "1.5", "'7'", "100L", "1e0", "true", "-3", "DATE '2024-02-29'")
OPERANDS = (*TYPES, *LITERALS)


class EveryType:
    """The scope of a relation with one column of each type."""

    def column(self, parts: tuple[str, ...], position: Position | None) -> Column:
        if parts[-1].lower() not in COLUMNS:
            raise SqlError("UNRESOLVED_COLUMN", ".".join(parts), position=position)
        return COLUMNS[parts[-1].lower()]


class LeftToSpark(Exception):
    """The binder asked for Spark."""


class NoSpark:
    """An analyzer that shows when it is needed."""

    def scalar_type(self, template: str, args: tuple[Type, ...]) -> Type:
        raise LeftToSpark(template)

    def scalar_name(self, template: str, args: tuple[Type, ...]) -> str | None:
        raise LeftToSpark(template)

    def is_aggregate(self, function: str) -> bool:
        raise LeftToSpark(function)


class RealSpark:
    """Asks the session's analyzer; no job runs."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def scalar_type(self, template: str, args: tuple[Type, ...]) -> Type:
        names = [f"a{i}" for i in range(len(args))]
        typed = ", ".join(f"CAST(NULL AS {t.sql}) AS {n}" for t, n in zip(args, names, strict=True)) or "1 AS one"
        try:
            schema = self.spark.sql(f"SELECT {template.format(*names)} AS x FROM (SELECT {typed})").schema
        except Exception as refusal:
            raise SqlError("REFUSED", str(refusal)[:200]) from None
        return from_spark(schema[0].dataType.simpleString())

    def scalar_name(self, template: str, args: tuple[Type, ...]) -> str | None:
        return None

    def is_aggregate(self, function: str) -> bool:
        try:
            usage = self.spark.sql(f"DESCRIBE FUNCTION {function}").collect()
        except Exception:
            raise SqlError("UNRESOLVED_ROUTINE", function) from None
        return any(".aggregate." in row[0] for row in usage)


def bind(text: str, analyzer: Analyzer | None = None) -> Expr:
    return bind_expr(parse_expression(text), EveryType(), analyzer or NoSpark())


def create_view(spark: SparkSession) -> None:
    ddl = ", ".join(f"{name} {type_.sql}" for name, type_ in TYPES.items())
    spark.createDataFrame([], ddl).createOrReplaceTempView("every_type")
