"""Spark's types, as plain values.

Spark SQL is the meaning, so a type here *is* a Spark type. Each also has one
Arrow form (how rows travel) and one DuckDB form (how the native engine holds
them); the two convert into each other without loss:

>>> decimal(15, 2).sql, str(decimal(15, 2).arrow), decimal(15, 2).duckdb
('decimal(15,2)', 'decimal128(15, 2)', 'DECIMAL(15,2)')
>>> parse_type("BIGINT") is BIGINT, from_arrow(pa.int64()) is BIGINT
(True, True)

A type outside Headrace's own list (an array, a struct) is carried by name:
only Spark SQL may touch its values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class Type:
    """A Spark SQL type. Compare with ``==``; build decimals with :func:`decimal`."""

    name: str
    precision: int = 0
    scale: int = 0
    ddl: str = ""

    @property
    def sql(self) -> str:
        """The type as Spark's DDL spells it."""
        if self.name == "decimal":
            return f"decimal({self.precision},{self.scale})"
        return self.ddl or self.name

    @property
    def duckdb(self) -> str:
        """The type as the native engine spells it."""
        if self.name == "decimal":
            return f"DECIMAL({self.precision},{self.scale})"
        return _DUCKDB[self.name]

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type rows of this type travel in."""
        if self.name == "decimal":
            return pa.decimal128(self.precision, self.scale)
        return _ARROW[self.name]

    @property
    def is_native(self) -> bool:
        """Whether Headrace itself may hold values of this type (else only Spark does)."""
        return self.name == "decimal" or self.name in _ARROW

    @property
    def is_integer(self) -> bool:
        return self.name in ("tinyint", "smallint", "int", "bigint")

    @property
    def is_decimal(self) -> bool:
        return self.name == "decimal"

    @property
    def is_float(self) -> bool:
        return self.name in ("float", "double")

    @property
    def is_numeric(self) -> bool:
        return self.is_integer or self.is_decimal or self.is_float

    @property
    def is_timestamp(self) -> bool:
        return self.name in ("timestamp", "timestamp_ntz")

    def __str__(self) -> str:
        return self.sql


BOOLEAN = Type("boolean")
TINYINT = Type("tinyint")
SMALLINT = Type("smallint")
INT = Type("int")
BIGINT = Type("bigint")
FLOAT = Type("float")
DOUBLE = Type("double")
STRING = Type("string")
BINARY = Type("binary")
DATE = Type("date")
TIMESTAMP = Type("timestamp")
TIMESTAMP_NTZ = Type("timestamp_ntz")
VOID = Type("void")
"""The type of a bare NULL."""
# Spark's interval types differ by their fields (`interval day`, `interval hour to second`);
# the fields are kept in `ddl`. Values are whole months or whole microseconds.
YEAR_MONTH = Type("interval_month", ddl="interval year to month")
DAY_TIME = Type("interval_time", ddl="interval day to second")

INTEGERS = (TINYINT, SMALLINT, INT, BIGINT)
COLUMN_TYPES = (BOOLEAN, *INTEGERS, FLOAT, DOUBLE, STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ)


def decimal(precision: int, scale: int = 0) -> Type:
    """``decimal(precision, scale)``; Spark's bounds are checked by whoever parses user text."""
    return Type("decimal", precision, scale)


def other(ddl: str) -> Type:
    """A type only Spark handles, known by its DDL."""
    return Type("other", ddl=ddl)


_ARROW: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_DUCKDB = {
    "boolean": "BOOLEAN",
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
    "void": "INTEGER",
}
_BY_NAME = {t.name: t for t in (*COLUMN_TYPES, VOID)}
_ALIASES = {
    "bool": BOOLEAN,
    "byte": TINYINT,
    "short": SMALLINT,
    "integer": INT,
    "long": BIGINT,
    "real": FLOAT,
    "text": STRING,
    "timestamp_ltz": TIMESTAMP,
    "timestampltz": TIMESTAMP,
    "timestampntz": TIMESTAMP_NTZ,
}
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?$")


def parse_type(text: str) -> Type | None:
    """The type a DDL text names, ``None`` if Headrace has no such column type.

    >>> parse_type("decimal"), parse_type("DECIMAL(5)"), parse_type("array<int>")
    (Type(name='decimal', precision=10, scale=0, ddl=''), Type(name='decimal', precision=5, scale=0, ddl=''), None)
    """
    text = text.strip().lower()
    if match := _DECIMAL.match(text):
        precision = int(match[1] or 10)
        scale = int(match[2] or 0)
        return decimal(precision, scale) if 1 <= precision <= MAX_PRECISION and scale <= precision else None
    return _BY_NAME.get(text) or _ALIASES.get(text)


def from_spark(ddl: str) -> Type:
    """The type Spark's ``simpleString`` names; unknown ones become :func:`other`."""
    if ddl.startswith("interval"):
        months = "month" in ddl or "year" in ddl
        return Type("interval_month" if months else "interval_time", ddl=ddl)
    return parse_type(ddl) or other(ddl)


def from_arrow(arrow: pa.DataType) -> Type | None:
    """The Spark type an Arrow column arrives as, ``None`` where there is none.

    Unsigned integers, large and view strings, dictionaries and other time units
    are accepted on input: the caller casts, and a value that does not fit is an error.
    """
    t = pa.types
    if t.is_dictionary(arrow):
        return from_arrow(arrow.value_type)
    if t.is_boolean(arrow):
        return BOOLEAN
    if t.is_integer(arrow):
        wide = arrow.bit_width * 2 if t.is_unsigned_integer(arrow) else arrow.bit_width
        return {8: TINYINT, 16: SMALLINT, 32: INT, 64: BIGINT}.get(wide, decimal(20, 0))
    if t.is_float16(arrow) or t.is_float32(arrow):
        return FLOAT
    if t.is_float64(arrow):
        return DOUBLE
    if t.is_decimal(arrow):
        return decimal(arrow.precision, arrow.scale) if arrow.precision <= MAX_PRECISION and arrow.scale >= 0 else None
    if t.is_string(arrow) or t.is_large_string(arrow) or t.is_string_view(arrow):
        return STRING
    if t.is_binary(arrow) or t.is_large_binary(arrow) or t.is_fixed_size_binary(arrow) or t.is_binary_view(arrow):
        return BINARY
    if t.is_date(arrow):
        return DATE
    if t.is_timestamp(arrow):
        return TIMESTAMP_NTZ if arrow.tz is None else TIMESTAMP
    if t.is_null(arrow):
        return VOID
    return None


@dataclass(frozen=True, slots=True)
class Field:
    """A named, typed column. ``nullable=False`` only where a table declares it."""

    name: str
    type: Type
    nullable: bool = True


Schema = tuple[Field, ...]


def arrow_schema(fields: Schema) -> pa.Schema:
    """The Arrow schema rows of these columns travel in."""
    return pa.schema([pa.field(f.name, f.type.arrow) for f in fields])


def ddl(fields: Schema) -> str:
    """The columns as Spark DDL, names quoted.

    >>> ddl((Field("a b", INT), Field("d", decimal(5, 2), nullable=False)))
    '`a b` int, `d` decimal(5,2) NOT NULL'
    """
    return ", ".join(f"{quote(f.name)} {f.type.sql}{'' if f.nullable else ' NOT NULL'}" for f in fields)


def quote(name: str) -> str:
    """An identifier in Spark's quoting.

    >>> quote("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"
