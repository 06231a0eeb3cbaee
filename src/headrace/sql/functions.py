"""The claimed functions: one row each, from Spark's name to its typing rule.

A rule is given the bound arguments and returns the typed call, every implicit
cast made explicit. It answers in one of three ways:

* an expression: this is what Spark makes of it;
* ``None``: Spark may accept this, but we do not claim to know how (the binder
  then asks Spark's analyzer and leaves the call to Spark SQL);
* :class:`Mismatch`: Spark refuses these types.

Adding a function is adding a row to :data:`SCALARS` or :data:`AGGREGATES`
(and one to the native emitter, if the native engine shall run it).

>>> from headrace.plan.exprs import Column
>>> SCALARS["+"].rule((Column(BIGINT, 1, "n"), Literal(INT, 1))).type.sql
'bigint'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard

from headrace.plan.exprs import Call, Case, Column, Expr, Literal, columns
from headrace.sql.arithmetic import Mismatch, absolute, arithmetic, floor_or_ceil, negative, positive, rounded
from headrace.sql.coercion import cast, cast_all, common_type, literal_decimal, wider_decimal, wider_type
from headrace.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    MAX_PRECISION,
    STRING,
    TIMESTAMP,
    VOID,
    Type,
    decimal,
)

Args = tuple[Expr, ...]
Rule = Callable[[Args], Expr | None]


@dataclass(frozen=True, slots=True)
class Function:
    """A scalar function: how many arguments it takes (``most=None``: any number) and its typing rule."""

    least: int
    most: int | None
    rule: Rule

    def takes(self, count: int) -> bool:
        return self.least <= count and (self.most is None or count <= self.most)


@dataclass(frozen=True, slots=True)
class AggregateRule:
    """An aggregate: its canonical name and a rule from arguments to (coerced arguments, type)."""

    name: str
    least: int
    most: int | None
    rule: Callable[[Args], tuple[Args, Type] | None]

    def takes(self, count: int) -> bool:
        return self.least <= count and (self.most is None or count <= self.most)


# --- comparison and logic -------------------------------------------------------------------


def compared(a: Expr, b: Expr) -> tuple[Expr, Expr] | None:
    """Both sides of a comparison in the type they meet in; ``None`` if only Spark knows it."""
    if not (a.type.is_native and b.type.is_native):
        return None
    target: Type | None
    if a.type.is_decimal and _integer_literal(b):
        target = wider_decimal(a.type, literal_decimal(b.value))
    elif b.type.is_decimal and _integer_literal(a):
        target = wider_decimal(literal_decimal(a.value), b.type)
    else:
        target = wider_type(a.type, b.type)
    if target is None:
        raise Mismatch(f"{a.type} cannot be compared with {b.type}")
    return None if target == VOID else (cast(a, target), cast(b, target))


def in_one_length(values: Args) -> Args | None:
    """What is compared with a CHAR(n) column, if it is such a column or a literal: the shorter with spaces at its end.

    ``None`` if it is another constant: Spark computes those first.

    >>> from headrace.types import parse_type
    >>> column = Column(parse_type("char(4)"), 1, "c")
    >>> in_one_length((column, Literal(STRING, "ab")))[1]
    Literal(type=Type(name='string', precision=0, scale=0, ddl=''), value='ab  ')
    """
    fixed = [v.type.limit.length for v in values if is_char(v) and v.type.limit is not None]
    texts = [v.value for v in values if isinstance(v, Literal) and isinstance(v.value, str)]
    if not fixed or len(fixed) + len(texts) < len(values):
        constant = any(not isinstance(v, Literal) and not columns(v) for v in values)
        return None if fixed and constant else values
    length = max(*fixed, *map(len, texts), 0)
    return tuple(_lengthened(v, length) for v in values)


def is_char(expr: Expr) -> bool:
    return isinstance(expr, Column) and expr.type.limit is not None and expr.type.limit.fixed


def _lengthened(expr: Expr, length: int) -> Expr:
    if isinstance(expr, Literal):
        return Literal(expr.type, expr.value.ljust(length))
    if expr.type.limit is None or expr.type.limit.length == length:
        return expr
    filled = Call(STRING, "concat", (expr, Literal(STRING, " " * (length - expr.type.limit.length))))
    # Others' files may hold longer text, of which Spark compares as much as there is of the longest.
    return Call(STRING, "substring", (filled, Literal(INT, 1), Literal(INT, length)))


def _integer_literal(expr: Expr) -> TypeGuard[Literal]:
    return isinstance(expr, Literal) and expr.type.is_integer and expr.value is not None


def comparison(operator: str) -> Rule:
    def rule(args: Args) -> Expr | None:
        given = in_one_length(args)
        sides = compared(*given) if given else None
        return Call(BOOLEAN, operator, sides) if sides else None

    return rule


def logical(operator: str) -> Rule:
    def rule(args: Args) -> Expr | None:
        types = {a.type for a in args}
        if types - {BOOLEAN, STRING, VOID}:
            raise Mismatch(f"{operator.upper()} needs boolean operands, not {_listed(args)}")
        if STRING in types and BOOLEAN not in types and operator != "not":
            if VOID in types:
                return None
            raise Mismatch(f"{operator.upper()} needs a boolean operand, not {_listed(args)}")
        return Call(BOOLEAN, operator, cast_all(args, BOOLEAN))

    return rule


def condition(expr: Expr, *, allow_null: bool = True) -> Expr:
    """A boolean where one is required (IF, WHERE): no implicit cast but that of a bare NULL.

    CASE WHEN does not take even that.
    """
    if expr.type != BOOLEAN and not (allow_null and expr.type == VOID):
        raise Mismatch(f"a condition must be boolean, not {expr.type}")
    return cast(expr, BOOLEAN)


def alternatives(values: Args, what: str) -> Args | None:
    """Values that must share a type (branches, COALESCE, IN); ``None`` if only Spark knows it."""
    target = common_type(v.type for v in values)
    if target is not None:
        return cast_all(values, target)
    if not all(v.type.is_native for v in values):
        return None
    raise Mismatch(f"{what} needs values of one type, not {_listed(values)}")


def _null_test(name: str) -> Rule:
    return lambda args: Call(BOOLEAN, name, args)


def _in(args: Args) -> Expr | None:
    given = in_one_length(args)
    values = alternatives(given, "IN") if given else None
    return Call(BOOLEAN, "in", values) if values and values[0].type != VOID else None


def _coalesce(args: Args) -> Expr | None:
    values = alternatives(args, "coalesce")
    return Call(values[0].type, "coalesce", values) if values else None


def _if(args: Args) -> Expr | None:
    test = condition(args[0])
    values = alternatives(args[1:], "if")
    return Call(values[0].type, "if", (test, *values)) if values else None


def _nullif(args: Args) -> Expr | None:
    """The result has the first argument's own type, though the comparison may need a wider one."""
    value = args[0]
    sides = compared(*args)
    if sides is None:
        return None
    if sides[0] == value:
        return Call(value.type, "nullif", sides)
    return Case(value.type, ((Call(BOOLEAN, "=", sides), Literal(value.type, None)),), value)


def _listed(args: Args) -> str:
    return ", ".join(a.type.sql for a in args)


# --- text -----------------------------------------------------------------------------------


def text(name: str, result: Type, least: int = 1, most: int | None = 1) -> Function:
    """A function of strings only: Spark casts every other atomic argument to string."""

    def rule(args: Args) -> Expr | None:
        if len(args) > 1 and all(a.type == BINARY for a in args):
            return None  # several have a binary form of their own
        return Call(result, name, cast_all(args, STRING))

    return Function(least, most, rule)


def _length(args: Args) -> Expr | None:
    return Call(INT, "length", args if args[0].type == BINARY else cast_all(args, STRING))


def _substring(args: Args) -> Expr | None:
    value, *bounds = args
    if value.type != BINARY:
        value = cast(value, STRING)
    for bound in bounds:
        if not (bound.type.is_numeric or bound.type in (STRING, VOID)):
            raise Mismatch(f"substring counts in whole numbers, not in {bound.type}")
    return Call(value.type, "substring", (value, *cast_all(bounds, INT)))


def _concat(args: Args) -> Expr | None:
    types = {a.type for a in args}
    if not args or (BINARY in types and VOID in types):
        return None
    target = BINARY if types == {BINARY} else STRING
    return Call(target, "concat", cast_all(args, target))


def _replace(args: Args) -> Expr | None:
    full = args if len(args) == 3 else (*args, Literal(STRING, ""))
    return Call(STRING, "replace", cast_all(full, STRING))


# --- dates ----------------------------------------------------------------------------------


def as_date(expr: Expr) -> Expr:
    if expr.type in (DATE, STRING, VOID) or expr.type.is_timestamp:
        return cast(expr, DATE)
    raise Mismatch(f"a date is needed here, not {expr.type}")


def as_timestamp(expr: Expr, *, keep_ntz: bool = False) -> Expr:
    if expr.type in (DATE, STRING, VOID) or expr.type.is_timestamp:
        return expr if keep_ntz and expr.type.is_timestamp else cast(expr, TIMESTAMP)
    raise Mismatch(f"a timestamp is needed here, not {expr.type}")


def _date_part(name: str) -> Rule:
    return lambda args: Call(INT, name, (as_date(args[0]),))


def _time_part(name: str) -> Rule:
    return lambda args: Call(INT, name, (as_timestamp(args[0], keep_ntz=True),))


def _date_trunc(args: Args) -> Expr | None:
    return Call(TIMESTAMP, "date_trunc", (cast(args[0], STRING), as_timestamp(args[1])))


def _date_shift(name: str) -> Rule:
    def rule(args: Args) -> Expr | None:
        day, count = as_date(args[0]), args[1]
        if count.type == STRING:
            return None
        if count.type != VOID and (not count.type.is_integer or count.type == BIGINT):
            raise Mismatch(f"{name} counts days in an int, not in {count.type}")
        return Call(DATE, name, (day, cast(count, INT)))

    return rule


def _datediff(args: Args) -> Expr | None:
    return Call(INT, "datediff", (as_date(args[0]), as_date(args[1])))


def _to_date(args: Args) -> Expr | None:
    value = args[0]
    if value.type == STRING:
        return Call(DATE, "to_date", args)
    return cast(value, DATE) if value.type in (DATE, VOID) or value.type.is_timestamp else None


# --- numbers --------------------------------------------------------------------------------


def _operator(symbol: str) -> Rule:
    return lambda args: arithmetic(symbol, args[0], args[1])


def _to_double(args: Args) -> Args:
    if not (args[0].type.is_numeric or args[0].type in (STRING, VOID)):
        raise Mismatch(f"a number is needed here, not {args[0].type}")
    return cast_all(args, DOUBLE)


def _sqrt(args: Args) -> Expr | None:
    return Call(DOUBLE, "sqrt", _to_double(args))


# --- the table ------------------------------------------------------------------------------

SCALARS: dict[str, Function] = {
    **{op: Function(2, 2, comparison(op)) for op in ("=", "<>", "<", "<=", ">", ">=", "<=>")},
    **{op: Function(2, 2, logical(op)) for op in ("and", "or")},
    "not": Function(1, 1, logical("not")),
    **{name: Function(1, 1, _null_test(name)) for name in ("isnull", "isnotnull")},
    "in": Function(2, None, _in),
    "like": text("like", BOOLEAN, 2, 3),
    "coalesce": Function(1, None, _coalesce),
    "nvl": Function(2, 2, _coalesce),
    "ifnull": Function(2, 2, _coalesce),
    "nullif": Function(2, 2, _nullif),
    "if": Function(3, 3, _if),
    **{op: Function(2, 2, _operator(op)) for op in ("+", "-", "*", "/", "%", "div")},
    "mod": Function(2, 2, _operator("%")),
    "negative": Function(1, 1, negative),
    "positive": Function(1, 1, positive),
    "abs": Function(1, 1, absolute),
    "round": Function(1, 2, rounded),
    "floor": Function(1, 2, floor_or_ceil("floor")),
    "ceil": Function(1, 2, floor_or_ceil("ceil")),
    "ceiling": Function(1, 2, floor_or_ceil("ceil")),
    "sqrt": Function(1, 1, _sqrt),
    "concat": Function(0, None, _concat),
    **{name: Function(1, 1, _length) for name in ("length", "len", "char_length", "character_length")},
    **{name: text("upper", STRING) for name in ("upper", "ucase")},
    **{name: text("lower", STRING) for name in ("lower", "lcase")},
    **{name: Function(2, 3, _substring) for name in ("substring", "substr")},
    **{name: text(name, STRING, 1, 2) for name in ("trim", "ltrim", "rtrim")},
    "replace": Function(2, 3, _replace),
    **{name: text(name, BOOLEAN, 2, 2) for name in ("startswith", "endswith", "contains")},
    **{name: Function(1, 1, _date_part(name)) for name in ("year", "month", "day", "dayofweek")},
    "dayofmonth": Function(1, 1, _date_part("day")),
    **{name: Function(1, 1, _time_part(name)) for name in ("hour", "minute", "second")},
    "date_trunc": Function(2, 2, _date_trunc),
    **{name: Function(2, 2, _date_shift("date_add")) for name in ("date_add", "dateadd")},
    "date_sub": Function(2, 2, _date_shift("date_sub")),
    **{name: Function(2, 2, _datediff) for name in ("datediff", "date_diff")},
    "to_date": Function(1, 1, _to_date),
}
"""Scalar functions and operators, by Spark's names (aliases too); the call built has the canonical one."""

TIME_UNIT_FIRST = frozenset(
    ("date_add", "dateadd", "timestampadd", "datediff", "date_diff", "timestampdiff", "timediff")
)
"""Functions whose three-argument form starts with a unit word (``datediff(DAY, a, b)``), not a column."""

OTHER_FORMS = {"to_date": (2,), "date_add": (3,), "dateadd": (3,), "datediff": (3,), "date_diff": (3,)}
"""Further argument counts Spark takes, whose meaning is not claimed."""


# --- aggregates -----------------------------------------------------------------------------


def _count(args: Args) -> tuple[Args, Type] | None:
    return args, BIGINT


def _sum(args: Args) -> tuple[Args, Type] | None:
    type_ = args[0].type
    if type_ in (VOID, TIMESTAMP) or not type_.is_native:
        return None
    if type_.is_integer:
        return args, BIGINT
    if type_.is_decimal:
        return args, decimal(min(MAX_PRECISION, type_.precision + 10), type_.scale)
    return _to_double(args), DOUBLE


def _avg(args: Args) -> tuple[Args, Type] | None:
    type_ = args[0].type
    if type_ in (VOID, TIMESTAMP) or not type_.is_native:
        return None
    if type_.is_decimal:
        scale = min(MAX_PRECISION, type_.scale + 4)
        return args, decimal(min(MAX_PRECISION, type_.precision + 4), scale)
    return (args if type_.is_integer else _to_double(args)), DOUBLE


def _extreme(args: Args) -> tuple[Args, Type] | None:
    return (args, args[0].type) if args[0].type.is_native and args[0].type != VOID else None


def _moment(args: Args) -> tuple[Args, Type] | None:
    return (_to_double(args), DOUBLE) if args[0].type.is_native and args[0].type != VOID else None


def _boolean(args: Args) -> tuple[Args, Type] | None:
    if args[0].type == VOID or not args[0].type.is_native:
        return None
    if args[0].type not in (BOOLEAN, STRING):
        raise Mismatch(f"a boolean is needed here, not {args[0].type}")
    return cast_all(args, BOOLEAN), BOOLEAN


def _unary(canonical: str, rule: Callable[[Args], tuple[Args, Type] | None], *names: str) -> dict[str, AggregateRule]:
    return {name: AggregateRule(canonical, 1, 1, rule) for name in names}


AGGREGATES: dict[str, AggregateRule] = {
    "count": AggregateRule("count", 0, None, _count),
    **_unary("sum", _sum, "sum"),
    **_unary("avg", _avg, "avg", "mean"),
    **_unary("min", _extreme, "min"),
    **_unary("max", _extreme, "max"),
    **_unary("stddev_samp", _moment, "stddev_samp", "stddev", "std"),
    **_unary("stddev_pop", _moment, "stddev_pop"),
    **_unary("var_samp", _moment, "var_samp", "variance"),
    **_unary("var_pop", _moment, "var_pop"),
    **_unary("bool_and", _boolean, "bool_and", "every"),
    **_unary("bool_or", _boolean, "bool_or", "some", "any"),
}
"""Aggregates by Spark's names; each row holds the canonical name."""

CAST_FUNCTIONS = frozenset(
    (
        *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal"),
        *("string", "binary", "date", "timestamp"),
    )
)
"""Type names that are also functions: ``int(x)`` is a cast."""

GENERATORS = frozenset(
    ("explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "stack", "json_tuple")
)
"""Functions that make several rows of one: outside the algebra."""

__all__ = [
    "AGGREGATES",
    "CAST_FUNCTIONS",
    "GENERATORS",
    "OTHER_FORMS",
    "SCALARS",
    "TIME_UNIT_FIRST",
    "AggregateRule",
    "Function",
    "Mismatch",
]
