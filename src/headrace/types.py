"""Spark's types, as plain values.

Spark SQL is the meaning, so a type here *is* a Spark type. Each also has one
Arrow form (how rows travel) and one DuckDB form (how the native engine holds
them); the two convert into each other without loss:

>>> decimal(15, 2).sql, str(decimal(15, 2).arrow), decimal(15, 2).duckdb
('decimal(15,2)', 'decimal128(15, 2)', 'DECIMAL(15,2)')
>>> parse_type("BIGINT") is BIGINT, from_arrow(pa.int64()) is BIGINT
(True, True)

Arrays and structs hold other types, in any depth. Headrace *holds* their values
(``is_held``: in columns, tables and states), but the native engine *computes* with
the types of plain values only (``is_native``): of a struct it takes fields, the rest
is Spark SQL's. A type outside Headrace's own list (a map, an interval inside an
array) is carried by name: only Spark SQL may touch its values.

>>> parse_type("ARRAY<STRUCT<a INT, `b c`: STRING>>").sql
'array<struct<a:int,`b c`:string>>'
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

MAX_PRECISION = 38
_DOUBLE = '"'


@dataclass(frozen=True, slots=True)
class Type:
    """A Spark SQL type. Compare with ``==``; build it with :func:`decimal`, :func:`array`, :func:`struct`."""

    name: str
    precision: int = 0
    scale: int = 0
    ddl: str = ""
    parts: tuple[TypePart, ...] = field(default=(), repr=False)
    """An array's element, a struct's fields, a map's key and value."""
    limit: Limit | None = field(default=None, compare=False, repr=False)
    """Of text in a column: how long it may be. Such text is a string like any other once it is read."""

    @property
    def sql(self) -> str:
        """The type as Spark's DDL spells it."""
        if self.name == "decimal":
            return f"decimal({self.precision},{self.scale})"
        return self.ddl or self.name

    @property
    def declared(self) -> str:
        """The same with the NOT NULLs and lengths of text, which a column declares but which make no other type.

        >>> nested = parse_type("struct<a: varchar(3) not null>")
        >>> nested.declared, nested.sql, nested == parse_type("struct<a string>")
        ('struct<a:varchar(3) NOT NULL>', 'struct<a:string>', True)
        """
        if self.limit is not None:
            return self.limit.sql
        if self.name == "array":
            return f"array<{self.element.declared}>"
        if self.name == "struct":
            return f"struct<{','.join(p.declared for p in self.parts)}>"
        if self.name == "map":
            return f"map<{','.join(p.type.declared for p in self.parts)}>"
        return self.sql

    @property
    def duckdb(self) -> str:
        """The type as the native engine spells it."""
        if self.name == "decimal":
            return f"DECIMAL({self.precision},{self.scale})"
        if self.name == "array":
            return f"{self.element.duckdb}[]"
        if self.name == "struct":
            return f"STRUCT({', '.join(quote(p.name, _DOUBLE) + ' ' + p.type.duckdb for p in self.parts)})"
        if self.name == "map":
            return f"MAP({', '.join(p.type.duckdb for p in self.parts)})"
        return _DUCKDB[self.name]

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type rows of this type travel in."""
        if self.name == "decimal":
            return pa.decimal128(self.precision, self.scale)
        if self.name == "array":
            return pa.list_(pa.field("element", self.element.arrow))
        if self.name == "struct":
            return pa.struct([pa.field(p.name, p.type.arrow) for p in self.parts])
        if self.name == "map":
            return pa.map_(*(p.type.arrow for p in self.parts))
        return _ARROW[self.name]

    @property
    def element(self) -> Type:
        """The type of an array's elements."""
        return self.parts[0].type

    def part(self, name: str) -> TypePart | None:
        """The field of a struct of that name, in any case."""
        return next((p for p in self.parts if self.name == "struct" and p.name.lower() == name.lower()), None)

    @property
    def is_native(self) -> bool:
        """Whether the native engine computes with values of this type (else only Spark does)."""
        return self.name == "decimal" or self.name in _ARROW

    @property
    def is_held(self) -> bool:
        """Whether Headrace may hold values of this type: in columns, tables and states.

        A map's keys must be told apart, as Spark does it, on every way in: keys that are nested or floats are not held.
        """
        if self.name == "map" and (self.parts[0].type.is_nested or self.parts[0].type.is_float):
            return False
        return all(p.type.is_held and p.type != VOID for p in self.parts) if self.parts else self.is_native

    @property
    def holds_maps(self) -> bool:
        return self.name == "map" or any(p.type.holds_maps for p in self.parts)

    @property
    def is_keyed_by_text(self) -> bool:
        """Whether keys of maps in it, if there are any, are strings."""
        if self.name == "map" and self.parts[0].type.name != "string":
            return False
        return all(p.type.is_keyed_by_text for p in self.parts)

    @property
    def is_limited(self) -> bool:
        """Whether text in it, or inside it, may only be so long."""
        return self.limit is not None or any(p.type.is_limited for p in self.parts)

    @property
    def plain(self) -> Type:
        """The same type without lengths of text: what an expression over such a column has."""
        if not self.is_limited:
            return self
        parts = tuple(TypePart(p.name, p.type.plain, p.nullable) for p in self.parts)
        return replace(self, limit=None, parts=parts)

    @property
    def as_read(self) -> Type:
        """The same type for text in others' files: as Spark reads it, of any length, CHAR still filled up."""
        if not self.is_limited:
            return self
        parts = tuple(TypePart(p.name, p.type.as_read, p.nullable) for p in self.parts)
        return replace(self, limit=self.limit and replace(self.limit, checked=False), parts=parts)

    @property
    def is_nested(self) -> bool:
        return self.name in ("array", "struct", "map")

    @property
    def is_groupable(self) -> bool:
        """Whether values are equal to the native engine exactly where they are to Spark.

        Floats are if they stand alone; inside an array or struct each has rules of its own for them. Maps are equal
        to Spark in whatever order their entries are.
        """
        if self.name == "map":
            return False
        return all(p.type.is_groupable and not p.type.is_float for p in self.parts) if self.parts else self.is_native

    @property
    def holds_floats(self) -> bool:
        return self.is_float or any(p.type.holds_floats for p in self.parts)

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


@dataclass(frozen=True, slots=True)
class Limit:
    """``VARCHAR(length)``, or ``CHAR(length)``, whose shorter values are filled up with spaces."""

    length: int
    fixed: bool = False
    checked: bool = True
    """Whether longer text is refused: not where others have written it, and it is only read."""

    @property
    def sql(self) -> str:
        return f"{'char' if self.fixed else 'varchar'}({self.length})"


@dataclass(frozen=True, slots=True)
class TypePart:
    """A field of a struct, an array's element, or a map's key or value."""

    name: str
    type: Type
    nullable: bool = field(default=True, compare=False)

    @property
    def declared(self) -> str:
        return f"{_spelled(self.name)}:{self.type.declared}{'' if self.nullable else ' NOT NULL'}"


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


def array(element: Type) -> Type:
    """``array<element>``."""
    return Type("array", ddl=f"array<{element.sql}>", parts=(TypePart("element", element),))


def struct(*parts: TypePart) -> Type:
    """``struct<name:type,…>``; the names must differ in more than case."""
    return Type("struct", ddl=f"struct<{','.join(f'{_spelled(p.name)}:{p.type.sql}' for p in parts)}>", parts=parts)


def map_of(key: Type, value: Type) -> Type:
    """``map<key,value>``."""
    return Type("map", ddl=f"map<{key.sql},{value.sql}>", parts=(TypePart("key", key), TypePart("value", value)))


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
    "byte": TINYINT,
    "short": SMALLINT,
    "integer": INT,
    "long": BIGINT,
    "real": FLOAT,
    "timestamp_ltz": TIMESTAMP,
}
_DECIMAL = ("decimal", "dec", "numeric")
_LIMITED = ("varchar", "char", "character")
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|('(?:[^'\\]|\\.)*')|([<>(),:]))", re.DOTALL)


def parse_type(text: str) -> Type | None:
    """The type a DDL text names, ``None`` if Headrace has no such column type.

    >>> parse_type("decimal"), parse_type("DECIMAL(5)"), parse_type("variant")
    (Type(name='decimal', precision=10, scale=0, ddl=''), Type(name='decimal', precision=5, scale=0, ddl=''), None)
    """
    if plain := _BY_NAME.get(text) or _ALIASES.get(text):
        return plain
    tokens: list[tuple[str, str]] = []
    at, text = 0, text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            return None
        quoted, word, comment, mark = found.groups()
        if quoted:
            tokens.append(("name", quoted.replace("``", "`")))
        else:
            tokens.append(("word", word) if word else ("mark", mark or comment))
        at = found.end()
    reader = _TypeReader(tokens)
    try:
        type_ = reader.type()
    except _NoType:
        return None
    return type_ if reader.done else None


class _NoType(Exception):
    """The text names no type Headrace has."""


class _TypeReader:
    """Reads types from tokens: (kind, text), a kind being ``name`` (quoted), ``word`` or ``mark``."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def done(self) -> bool:
        return self._at == len(self._tokens)

    def type(self) -> Type:
        word = self._take("word").lower()
        if word == "array":
            self._expect("<")
            element = self.type()
            self._expect(">")
            return array(element)
        if word == "struct":
            return self._struct()
        if word == "map":
            self._expect("<")
            key = self.type()
            self._expect(",")
            value = self.type()
            self._expect(">")
            return map_of(key, value)
        if word in _DECIMAL:
            return self._decimal()
        if word in _LIMITED:
            return self._limited(fixed=word != "varchar")
        found = _BY_NAME.get(word) or _ALIASES.get(word)
        if found is None:
            raise _NoType
        return found

    def _struct(self) -> Type:
        self._expect("<")
        parts: list[TypePart] = []
        while not parts or self._next_is(","):
            name = self._take("word", "name")
            self._next_is(":")
            type_ = self.type()
            nullable = not self._next_is("not")
            if not nullable:
                self._expect("null")
            if self._next_is("comment"):
                self._take("mark")
            if name.lower() in (p.name.lower() for p in parts):
                raise _NoType
            parts.append(TypePart(name, type_, nullable))
        self._expect(">")
        return struct(*parts)

    def _decimal(self) -> Type:
        precision, scale = 10, 0
        if self._next_is("("):
            precision = self._number()
            if self._next_is(","):
                scale = self._number()
            self._expect(")")
        if not 1 <= precision <= MAX_PRECISION or scale > precision:
            raise _NoType
        return decimal(precision, scale)

    def _limited(self, *, fixed: bool) -> Type:
        self._expect("(")
        length = self._number()
        self._expect(")")
        return Type("string", limit=Limit(length, fixed))

    def _number(self) -> int:
        text = self._take("word")
        if not text.isdecimal():
            raise _NoType
        return int(text)

    def _take(self, *kinds: str) -> str:
        if self.done or self._tokens[self._at][0] not in kinds:
            raise _NoType
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _next_is(self, text: str) -> bool:
        if self.done or self._tokens[self._at][0] == "name" or self._tokens[self._at][1].lower() != text:
            return False
        self._at += 1
        return True

    def _expect(self, text: str) -> None:
        if not self._next_is(text):
            raise _NoType


def from_spark(ddl: str) -> Type:
    """The type Spark's ``simpleString`` names; unknown ones become :func:`other`."""
    if ddl.startswith("interval"):
        months = "month" in ddl or "year" in ddl
        return Type("interval_month" if months else "interval_time", ddl=ddl)
    return parse_type(ddl) or other(ddl)


def of_spark(data: Any) -> Type:
    """The type a PySpark ``DataType`` is: its text does not quote the names of struct fields."""
    kind = data.typeName()
    if kind == "array":
        return array(of_spark(data.elementType))
    if kind == "map":
        return map_of(of_spark(data.keyType), of_spark(data.valueType))
    if kind == "struct" and data.fields:
        return struct(*(TypePart(f.name, of_spark(f.dataType), f.nullable) for f in data.fields))
    return from_spark(data.simpleString())


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
    if is_list(arrow):
        element = from_arrow(arrow.value_type)
        return None if element is None else array(element)
    if t.is_map(arrow):
        key, value = from_arrow(arrow.key_type), from_arrow(arrow.item_type)
        return None if key is None or value is None else map_of(key, value)
    if t.is_struct(arrow):
        found = [(f.name, from_arrow(f.type)) for f in arrow]
        parts = tuple(TypePart(name, type_) for name, type_ in found if type_ is not None)
        distinct = {p.name.lower() for p in parts}
        return struct(*parts) if parts and len(distinct) == len(found) else None
    return None


def is_list(arrow: pa.DataType) -> bool:
    """Whether an Arrow type is a list, of whatever layout."""
    t = pa.types
    usual = t.is_list(arrow) or t.is_large_list(arrow) or t.is_fixed_size_list(arrow)
    return bool(usual or t.is_list_view(arrow) or t.is_large_list_view(arrow))


@dataclass(frozen=True, slots=True)
class Default:
    """What a column has in rows that come without it: a constant, or the time of the statement."""

    text: str
    """As it was written."""
    constant: Any = None
    """A Python value as a literal's; None is NULL."""
    zone: str = ""
    """Of one that is the time of the statement: the zone whose date and clock that is."""


@dataclass(frozen=True, slots=True)
class Field:
    """A named, typed column. ``nullable=False`` only where a table declares it."""

    name: str
    type: Type
    nullable: bool = True
    id: int = field(default=0, compare=False)
    """What it is known by within its relation, whatever it is called later; 0 where nobody has to know."""
    default: Default | None = field(default=None, compare=False)
    """What it is in rows that come without it (``base/lacking.py``): NULL, where nothing is said."""


Schema = tuple[Field, ...]

MAP_HINT = (
    "the keys of a map are plain and no floats; else use an array of structs: ARRAY<STRUCT<key: …, value: …>> "
    "(in a query, map_entries makes one of a map)"
)
"""What to do where a map cannot be held."""


def arrow_schema(fields: Schema) -> pa.Schema:
    """The Arrow schema rows of these columns travel in."""
    return pa.schema([pa.field(f.name, f.type.arrow) for f in fields])


def ddl(fields: Schema) -> str:
    """The columns as Spark DDL, names quoted.

    >>> ddl((Field("a b", INT), Field("d", decimal(5, 2), nullable=False)))
    '`a b` int, `d` decimal(5,2) NOT NULL'
    """
    return ", ".join(f"{quote(f.name)} {f.type.sql}{'' if f.nullable else ' NOT NULL'}" for f in fields)


def quote(name: str, mark: str = "`") -> str:
    """An identifier in Spark's quoting (or in the native engine's, whose mark is another).

    >>> quote("a`b"), quote("a`b", '"')
    ('`a``b`', '"a`b"')
    """
    return mark + name.replace(mark, mark + mark) + mark


def _spelled(name: str) -> str:
    """A struct field's name in DDL: quoted where it has to be."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else quote(name)
