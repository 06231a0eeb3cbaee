"""Spark's ANSI type coercion: which type two types meet in, and which casts exist.

Every rule here is a transcription of what Spark 4.3's analyzer does with
``spark.sql.ansi.enabled``; ``tests/sql/test_expression_types.py`` asks the real
one about every pair of types. A common type is found pairwise from left to
right, so order matters as it does in Spark:

>>> common_type((STRING, INT, decimal(5, 2))), common_type((decimal(5, 2), STRING, INT))
(Type(name='decimal', precision=22, scale=2, ddl=''), Type(name='double', precision=0, scale=0, ddl=''))
>>> common_type((INT, DATE)) is None
True
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from headrace.plan.exprs import Cast, Expr, Literal
from headrace.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    INTEGERS,
    MAX_PRECISION,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    VOID,
    Type,
    TypePart,
    array,
    decimal,
    map_of,
    struct,
)

INTEGER_DIGITS = {TINYINT: 3, SMALLINT: 5, INT: 10, BIGINT: 20}
"""Decimal digits Spark gives an integer type next to a decimal."""
_MINIMUM_SCALE = 6
_TEMPORAL = (DATE, TIMESTAMP_NTZ, TIMESTAMP)  # in order of width


def cast(expr: Expr, target: Type) -> Expr:
    """``expr`` as ``target``, with a Cast only where the type changes; NULL just takes the type.

    >>> from headrace.plan.exprs import Literal
    >>> cast(Literal(VOID, None), INT)
    Literal(type=Type(name='int', precision=0, scale=0, ddl=''), value=None)
    """
    if expr.type == target:
        return expr
    if isinstance(expr, Literal) and expr.value is None:
        return Literal(target, None)
    return Cast(target, expr)


def cast_all(exprs: Iterable[Expr], target: Type) -> tuple[Expr, ...]:
    return tuple(cast(e, target) for e in exprs)


# --- common types ---------------------------------------------------------------------------


def as_decimal(type_: Type) -> Type:
    """The decimal that holds every value of an integer or decimal type."""
    return type_ if type_.is_decimal else decimal(INTEGER_DIGITS[type_], 0)


def wider_decimal(a: Type, b: Type) -> Type:
    """The decimal both fit; past 38 digits Spark keeps the integral digits and cuts the scale.

    >>> wider_decimal(decimal(38, 0), decimal(38, 10)).sql, wider_decimal(decimal(20, 0), decimal(38, 38)).sql
    ('decimal(38,0)', 'decimal(38,18)')
    """
    scale = max(a.scale, b.scale)
    integral = max(a.precision - a.scale, b.precision - b.scale)
    if integral + scale <= MAX_PRECISION:
        return decimal(integral + scale, scale)
    return decimal(MAX_PRECISION, max(0, MAX_PRECISION - integral))


def wider_type(a: Type, b: Type) -> Type | None:
    """The type values of ``a`` and ``b`` meet in, ``None`` where Spark has none."""
    if a == b:
        return a
    if VOID in (a, b):
        return b if a == VOID else a
    if a.is_nested or b.is_nested:
        return _wider_nested(a, b)
    if a.is_numeric and b.is_numeric:
        return _wider_numeric(a, b)
    if a in _TEMPORAL and b in _TEMPORAL:
        return max(a, b, key=_TEMPORAL.index)
    if STRING in (a, b):
        return _promoted_string(b if a == STRING else a)
    return None


def _wider_nested(a: Type, b: Type) -> Type | None:
    """Arrays meet in their elements, structs of the same names in their fields; text inside meets only text.

    >>> from headrace.types import parse_type
    >>> wider_type(parse_type("array<struct<a:int>>"), parse_type("array<struct<a:bigint>>")).sql
    'array<struct<a:bigint>>'
    """
    if a.name != b.name or [p.name.lower() for p in a.parts] != [p.name.lower() for p in b.parts]:
        return None
    pairs = [(p.type, q.type) for p, q in zip(a.parts, b.parts, strict=True)]
    if any(STRING in pair and VOID not in pair and pair[0] != pair[1] for pair in pairs):
        return None
    parts = [
        TypePart(p.name, met) for p, pair in zip(a.parts, pairs, strict=True) if (met := wider_type(*pair)) is not None
    ]
    if len(parts) < len(pairs):
        return None
    if a.name == "map":
        return map_of(parts[0].type, parts[1].type)
    return array(parts[0].type) if a.name == "array" else struct(*parts)


def _wider_numeric(a: Type, b: Type) -> Type:
    if a.is_integer and b.is_integer:
        return max(a, b, key=INTEGERS.index)
    if a.is_float or b.is_float:
        # An integer or a decimal does not fit a float: Spark widens to double.
        return FLOAT if a == b == FLOAT else DOUBLE
    return wider_decimal(as_decimal(a), as_decimal(b))


def _promoted_string(partner: Type) -> Type | None:
    """What a string becomes next to ``partner``: ANSI reads it as the other side's kind."""
    if partner.is_integer:
        return BIGINT
    if partner.is_decimal or partner.is_float:
        return DOUBLE
    return partner if partner in (BOOLEAN, BINARY, *_TEMPORAL) else None


def common_type(types: Iterable[Type]) -> Type | None:
    """The type of a list of alternatives (CASE, COALESCE, IN), folded from the left."""
    result: Type | None = VOID
    for type_ in types:
        result = wider_type(result, type_) if result is not None else None
    return result


# --- decimal arithmetic ---------------------------------------------------------------------


def literal_decimal(value: int) -> Type:
    """The least decimal an integer *literal* needs: next to a decimal Spark uses that, not its type's.

    >>> literal_decimal(-100).sql
    'decimal(3,0)'
    """
    return decimal(len(str(abs(value))), 0)


def to_decimal_operand(expr: Expr) -> Expr:
    """An integer operand as the decimal Spark makes of it beside a decimal."""
    if expr.type.is_decimal:
        return expr
    if isinstance(expr, Literal) and expr.value is not None:
        target = literal_decimal(expr.value)
        return Literal(target, Decimal(expr.value))
    return Cast(as_decimal(expr.type), expr)


def adjusted_decimal(precision: int, scale: int) -> Type:
    """Spark's precision-loss rule: past 38 digits the scale gives way, down to 6.

    >>> adjusted_decimal(49, 20).sql
    'decimal(38,9)'
    """
    if precision <= MAX_PRECISION:
        return decimal(precision, scale)
    integral = precision - scale
    return decimal(MAX_PRECISION, max(MAX_PRECISION - integral, min(scale, _MINIMUM_SCALE)))


def decimal_result(operator: str, a: Type, b: Type) -> Type:
    """The type of ``a operator b`` over decimals (``div`` is a bigint and not asked here).

    >>> decimal_result("*", decimal(15, 2), decimal(16, 2)).sql
    'decimal(32,4)'
    """
    p1, s1, p2, s2 = a.precision, a.scale, b.precision, b.scale
    if operator in "+-":
        scale = max(s1, s2)
        return adjusted_decimal(max(p1 - s1, p2 - s2) + scale + 1, scale)
    if operator == "*":
        return adjusted_decimal(p1 + p2 + 1, s1 + s2)
    if operator == "/":
        scale = max(_MINIMUM_SCALE, s1 + p2 + 1)
        return adjusted_decimal(p1 - s1 + s2 + scale, scale)
    if operator == "%":
        scale = max(s1, s2)
        return adjusted_decimal(min(p1 - s1, p2 - s2) + scale, scale)
    raise AssertionError(operator)


# --- casts ----------------------------------------------------------------------------------


def can_cast(source: Type, target: Type) -> bool | None:
    """Whether ``CAST(source AS target)`` exists under ANSI; ``None`` where only Spark can tell."""
    if source in (target, VOID):
        return True
    if not (source.is_native and target.is_native) or target == VOID:
        return None
    if STRING in (source, target):
        return True
    if source == BINARY or target == BINARY:
        return False
    if source in _TEMPORAL and target in _TEMPORAL:
        return True
    if source == TIMESTAMP:
        return target.is_numeric
    if target == TIMESTAMP:
        return source.is_numeric
    return source not in _TEMPORAL and target not in _TEMPORAL


def can_store(source: Type, target: Type) -> bool | None:
    """Whether INSERT may put ``source`` into a ``target`` column (ANSI store assignment).

    Struct fields go by position, as columns do.

    >>> can_store(BIGINT, INT), can_store(STRING, INT), can_store(INT, STRING)
    (True, False, True)
    """
    if source in (target, VOID):
        return True
    if source.is_nested and target.is_nested:
        pairs = list(zip(source.parts, target.parts, strict=False))
        same = source.name == target.name and len(source.parts) == len(target.parts)
        return same and all(can_store(a.type, b.type) for a, b in pairs)
    if not (source.is_native and target.is_native):
        return None
    if source.is_numeric and target.is_numeric:
        return True
    if source in _TEMPORAL and target in _TEMPORAL:
        return True
    return target == STRING
