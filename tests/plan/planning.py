"""What the planning tests share: a small catalog, a binder that may not ask Spark, and plans run natively."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import duckdb
import pyarrow as pa

from headrace.catalog import Catalog, Stream, Table, View
from headrace.engine.plan_sql import native_plan, quote_native
from headrace.plan.nodes import Leaf, Node, walk_plan
from headrace.sql.binder import Binder
from headrace.sql.statements import Query, parse
from headrace.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP,
    Field,
    Schema,
    Type,
    arrow_schema,
    decimal,
)


def schema(**columns: Type) -> Schema:
    return tuple(Field(name, type_) for name, type_ in columns.items())


RELATIONS: dict[str, Schema] = {
    "s": schema(a=INT, b=STRING, c=DOUBLE),
    "r": schema(a=INT, d=BIGINT),
    "t": schema(a=INT, e=STRING),
    "u": schema(e=STRING, f=INT),
    "many": schema(n=INT, m=decimal(10, 2), x=DOUBLE, flag=BOOLEAN, day=DATE, at=TIMESTAMP, name=STRING),
    "v": schema(
        k=STRING,
        g=DOUBLE,
        i=INT,
        l=BIGINT,
        m=decimal(10, 2),
        w=decimal(38, 4),
        z=decimal(38, 18),
        d=DOUBLE,
        f=FLOAT,
        b=BOOLEAN,
        day=DATE,
    ),
}
STREAMS = ("s", "r", "many", "v")
CATALOG = Catalog()
for _name, _columns in RELATIONS.items():
    CATALOG = CATALOG.with_relation((Stream if _name in STREAMS else Table)(_name, _columns))
CATALOG = CATALOG.with_relation(View("kept", schema(a=INT, n=BIGINT), "", True, ("s",)))


class NeverAsked:
    """An analyzer for queries wholly inside the algebra."""

    def scalar_type(self, template: str, args: tuple[Type, ...]) -> Type:
        raise AssertionError(f"Spark was asked for the type of {template}")

    def scalar_name(self, template: str, args: tuple[Type, ...]) -> str | None:
        raise AssertionError(f"Spark was asked for the name of {template}")

    def query_schema(self, text: str, inputs: Mapping[str, Schema]) -> Schema:
        raise AssertionError(f"Spark was asked for the columns of {text}")

    def is_aggregate(self, function: str) -> bool:
        raise AssertionError(f"Spark was asked about {function}")


class Answering(NeverAsked):
    """An analyzer that takes Spark's part: one bigint column, one array, and these aggregates."""

    def scalar_type(self, template: str, args: tuple[Type, ...]) -> Type:
        return BIGINT

    def scalar_name(self, template: str, args: tuple[Type, ...]) -> str | None:
        return template

    def query_schema(self, text: str, inputs: Mapping[str, Schema]) -> Schema:
        return schema(x=BIGINT)

    def is_aggregate(self, function: str) -> bool:
        return function.lower() in ("percentile", "approx_count_distinct")


def bind(text: str, analyzer: NeverAsked | None = None) -> Node:
    statement = parse(text)
    assert isinstance(statement, Query)
    return Binder(CATALOG, analyzer or NeverAsked()).query(statement.query)


Data = Mapping[str, pa.Table]


def table(name: str, rows: list[tuple[Any, ...]]) -> pa.Table:
    """Rows of one of the catalog's relations."""
    kinds = arrow_schema(RELATIONS[name])
    return pa.table([pa.array([r[i] for r in rows], f.type) for i, f in enumerate(kinds)], schema=kinds)


_TEXTS = WeakKeyDictionary[Node, str]()
_CONNECTION = duckdb.connect()
_CONNECTION.execute("SET TimeZone='UTC'; SET threads=1")


def run(plan: Node, data: Data) -> pa.Table:
    """The plan's rows by the native engine; each leaf is read from the Arrow table of its name."""

    def source(scan: Leaf) -> str:
        return quote_native(scan.relation)

    if plan not in _TEXTS:
        _TEXTS[plan] = native_plan(plan, source)
    leaves = {n.relation for n in walk_plan(plan) if isinstance(n, Leaf)}
    for name in leaves:
        _CONNECTION.register(name, data[name])
    try:
        return _CONNECTION.sql(_TEXTS[plan]).to_arrow_table()
    finally:
        for name in leaves:
            _CONNECTION.unregister(name)


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(c.to_pylist() for c in table.columns), strict=True)) if table.num_columns else []


def bag(table: pa.Table) -> Counter[str]:
    """The rows as a multiset (NaN equals itself in text)."""
    return Counter(map(repr, rows(table)))
