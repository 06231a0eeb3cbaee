"""Decimal arithmetic with Spark's digits in DuckDB's integers.

DuckDB holds a decimal as a 64-bit (up to 18 digits) or 128-bit integer, gives
products of two 64-bit decimals 64 bits only, and divides decimals as doubles.
Spark's results are exact up to 38 digits, rounded HALF_UP. So here a decimal term
carries the width DuckDB really gives it (a :class:`Number`); products are forced
to 128 bits where 64 may not do, quotients are computed on the unscaled integers,
and only the outermost term is cast to the type Spark announces. DuckDB checks
128-bit overflow, so no digit is ever lost silently.

>>> Number("x", 15, 2).times(Number("y", 15, 2), narrow=False)
Number(sql='(x::DECIMAL(19,2) * y)', precision=34, scale=4)
>>> Number("x", 15, 2).times(Number("y", 15, 2), narrow=True)
Number(sql='(x * y)', precision=18, scale=4)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.engine.native_text import NotNative, cannot, fail, power_of_ten
from headrace.plan.exprs import Call, Cast, Expr, Literal
from headrace.types import MAX_PRECISION, Type

if TYPE_CHECKING:
    from headrace.engine.native_sql import Printer

NARROWEST_WIDE = 19
"""The first precision DuckDB holds in 128 bits."""

EXACT_NEGATION = 34
"""Digits Spark's minus and abs keep: they round like IEEE decimal128."""


@dataclass(frozen=True, slots=True)
class Number:
    """SQL text of a decimal, with the precision and scale DuckDB gives it."""

    sql: str
    precision: int
    scale: int

    def cast_to(self, kind: Type) -> str:
        """The text with exactly this type; lost digits round HALF_UP, as Spark does."""
        return self.sql if (self.precision, self.scale) == (kind.precision, kind.scale) else self._cast(kind)

    def at_scale(self, kind: Type) -> str:
        """The text with this type's scale; the precision may stay another."""
        return self.sql if self.scale == kind.scale else self._cast(kind)

    def _cast(self, kind: Type) -> str:
        return f"CAST({self.sql} AS {kind.duckdb})"

    def times(self, other: Number, *, narrow: bool) -> Number:
        """The exact product, or a run-time overflow."""
        scale = self.scale + other.scale
        if scale > MAX_PRECISION:
            raise NotNative("a decimal product of more than 38 digits after the point")
        precision = self.precision + other.precision
        left = self
        if precision >= NARROWEST_WIDE and max(self.precision, other.precision) < NARROWEST_WIDE:
            if narrow:
                return Number(f"({self.sql} * {other.sql})", NARROWEST_WIDE - 1, scale)
            # One operand in 128 bits makes the product 128 bits wide.
            left = Number(f"{self.sql}::DECIMAL({NARROWEST_WIDE},{self.scale})", NARROWEST_WIDE, self.scale)
            precision = left.precision + other.precision
        return Number(f"({left.sql} * {other.sql})", min(precision, MAX_PRECISION), scale)

    def plus(self, other: Number, sign: str) -> Number:
        """The exact sum or difference, or a run-time overflow."""
        scale = max(self.scale, other.scale)
        whole = max(self.precision - self.scale, other.precision - other.scale)
        if whole + scale > MAX_PRECISION:
            # DuckDB would rescale an operand past 38 digits: an error although the sum may fit.
            raise NotNative("a decimal sum whose operands have no common type of 38 digits")
        return Number(f"({self.sql} {sign} {other.sql})", min(whole + scale + 1, MAX_PRECISION), scale)

    def unscaled(self, shift: int) -> str:
        """The value times 10^shift as HUGEINT; ``shift`` at least the scale, so nothing is rounded."""
        if shift == 0:
            return f"CAST({self.sql} AS HUGEINT)"
        if shift >= MAX_PRECISION:
            raise NotNative("a decimal quotient that needs more than 38 digits")
        wide = f"{self.sql}::DECIMAL({max(self.precision, NARROWEST_WIDE)},{self.scale})"
        return f"CAST({wide} * {power_of_ten(shift)} AS HUGEINT)"


def number(expr: Expr, printer: Printer) -> Number | None:
    """A decimal expression whose printed type is DuckDB's own; ``None`` if it prints with its exact type."""
    if (
        isinstance(expr, Cast)
        and isinstance(expr.arg, Literal)
        and expr.arg.type.is_integer
        and expr.arg.value is not None
    ):
        # `1 - discount`: the literal 1 as decimal(10,0) must not widen the term past 64 bits.
        digits = max(len(str(abs(expr.arg.value))), 1)
        if digits + expr.type.scale <= expr.type.precision:
            width = digits + expr.type.scale
            return Number(f"'{expr.arg.value}'::DECIMAL({width},{expr.type.scale})", width, expr.type.scale)
        return None
    if not isinstance(expr, Call):
        return None
    if expr.fn in ("*", "+", "-") and all(arg.type.is_decimal for arg in expr.args):
        left, right = (printer.number(arg) for arg in expr.args)
        result = left.times(right, narrow=printer.narrow) if expr.fn == "*" else left.plus(right, expr.fn)
        # Spark gives up digits after the point when it runs out of 38: round where Spark rounds.
        if result.scale != expr.type.scale:
            return Number(result.cast_to(expr.type), expr.type.precision, expr.type.scale)
        return result
    if expr.fn in ("negative", "abs"):
        inner = printer.number(expr.args[0])
        changed = f"(-{inner.sql})" if expr.fn == "negative" else f"abs({inner.sql})"
        if expr.type.precision > EXACT_NEGATION:
            limit = power_of_ten(max(EXACT_NEGATION - inner.scale, 0))
            guard = cannot("the negative of a decimal of more than 34 digits")
            changed = f"CASE WHEN abs({inner.sql}) >= {limit} THEN {guard} ELSE {changed} END"
        return Number(changed, inner.precision, inner.scale)
    return None


def divide(call: Call, printer: Printer) -> str:
    """``/`` on decimals: exact, HALF_UP at the node's scale, an error for a zero divisor."""
    left, right = (printer.number(arg) for arg in call.args)
    found, most = quotient(left, right, call.type), MAX_PRECISION - call.type.scale
    if call.args[1].type.precision <= most:
        return found
    # Spark rounds at 38 digits after the point first and at the result's scale next. Both bite only if the quotient is
    # nearer to a tie than 10^-38, and one of integers is no nearer than half of what its divisor goes into 1.
    wide = f"abs({right.unscaled(right.scale)}) >= '1{'0' * most}'::HUGEINT"
    return f"CASE WHEN {wide} THEN {cannot('a decimal quotient that Spark rounds twice')} ELSE {found} END"


def quotient(left: Number, right: Number, kind: Type) -> str:
    """left / right as ``kind``, HALF_UP, on unscaled integers."""
    shift = kind.scale + right.scale
    if shift < left.scale:
        raise NotNative("a decimal quotient with fewer digits after the point than its dividend")
    dividend = f"abs({left.unscaled(shift)})"
    divisor = f"abs({right.unscaled(right.scale)})"
    magnitude = f"(2 * {dividend} + {divisor}) // (2 * {divisor})"
    signed = f"{magnitude} * (sign({left.sql}) * sign({right.sql}))"
    return _rescaled(signed, kind)


def average(call: Call, printer: Printer) -> str:
    """``avg_of_sum(sum, count)``: Spark's avg of decimals, exact and HALF_UP; NULL over nothing."""
    total, count = printer.number(call.args[0]), printer(call.args[1])
    if not call.type.is_decimal:
        raise NotNative("an average that is not a decimal")
    shift = max(call.type.scale, total.scale)
    if shift != call.type.scale:
        raise NotNative("an average with fewer digits after the point than its sum")
    divisor = f"nullif({count}, 0)::HUGEINT"
    magnitude = f"(2 * abs({total.unscaled(shift)}) + {divisor}) // (2 * {divisor})"
    return _rescaled(f"{magnitude} * sign({total.sql})", call.type)


def total(call: Call, printer: Printer) -> str:
    """``sum_of_digits(sum)``: a sum of bigints that was kept in 38 digits."""
    text = printer(call.args[0])
    overflow = fail("ARITHMETIC_OVERFLOW", "long overflow")
    bigint = f"TRY_CAST({text} AS BIGINT)"
    return f"CASE WHEN {bigint} IS NULL AND {text} IS NOT NULL THEN {overflow} ELSE {bigint} END"


def _rescaled(unscaled: str, kind: Type) -> str:
    """An unscaled HUGEINT as a decimal: times one unit of the last place, an exact product."""
    whole = f"CAST({unscaled} AS DECIMAL(38,0))"
    if kind.scale == 0:
        return f"CAST({whole} AS {kind.duckdb})"
    return f"CAST({whole} * {power_of_ten(-kind.scale)} AS {kind.duckdb})"


def _common(call: Call, printer: Printer) -> tuple[str, str, int, int]:
    """Both operands cast to the narrowest decimal that holds either."""
    left, right = call.args
    scale = max(left.type.scale, right.type.scale)
    precision = max(left.type.precision - left.type.scale, right.type.precision - right.type.scale) + scale
    if precision > MAX_PRECISION:
        raise NotNative("decimal operands without a common type of 38 digits")
    kind = Type("decimal", precision, scale)
    a, b = (printer.number(arg).cast_to(kind) for arg in call.args)
    return a, b, precision, scale


def remainder(call: Call, printer: Printer) -> str:
    """``%`` on decimals: the sign is the dividend's."""
    a, b, _, _ = _common(call, printer)
    guard = fail("REMAINDER_BY_ZERO", "Remainder by zero")
    return f"CASE WHEN {b} = 0 AND {a} IS NOT NULL THEN {guard} ELSE CAST({a} % {b} AS {call.type.duckdb}) END"


def integral_divide(call: Call, printer: Printer) -> str:
    """``div`` on decimals: the whole part of the quotient as bigint."""
    a, b, precision, scale = _common(call, printer)
    left, right = (Number(sql, precision, scale).unscaled(scale) for sql in (a, b))
    whole = f"{left} // {right}"
    # Spark keeps the low 64 bits of a larger quotient; that is Spark's to repeat.
    guard = cannot("a quotient of decimals outside bigint")
    return f"CASE WHEN abs({whole}) > 9223372036854775807 THEN {guard} ELSE ({whole})::BIGINT END"
