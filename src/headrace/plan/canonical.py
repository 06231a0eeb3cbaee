"""One form for expressions that mean the same whatever the order of their operands.

``a + b`` is ``b + a``, and ``a < b`` is ``b > a``: who groups by one may select the other. Sums and products are put in
order as a whole, as Spark does, where that cannot change a type: not of decimals, whose digits grow with each step, nor
of floats, where the order changes the value.

>>> from headrace.plan.exprs import Column
>>> from headrace.types import INT
>>> a, b, c = (Column(INT, i, name) for i, name in enumerate("abc"))
>>> one = Call(INT, "+", (Call(INT, "+", (a, b)), c))
>>> other = Call(INT, "+", (b, Call(INT, "+", (c, a))))
>>> canonical(one) == canonical(other), canonical(one) == canonical(Call(INT, "+", (a, b)))
(True, False)
"""

from __future__ import annotations

from headrace.plan.exprs import Call, Expr

_GATHERED = ("+", "*", "and", "or")
_SWAPPED = {"=": "=", "<=>": "<=>", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


def canonical(expr: Expr) -> Expr:
    """The form that all expressions of the same meaning, found by turning operands round, share."""
    if not expr.children:
        return expr
    expr = expr.with_children(tuple(map(canonical, expr.children)))
    if not isinstance(expr, Call):
        return expr
    if expr.fn in _GATHERED:
        parts = _operands(expr, expr.fn) if _is_exact(expr) else list(expr.args)
        return Call(expr.type, expr.fn, tuple(sorted(parts, key=repr)))
    if expr.fn in _SWAPPED and len(expr.args) == 2 and repr(expr.args[1]) < repr(expr.args[0]):
        return Call(expr.type, _SWAPPED[expr.fn], expr.args[::-1])
    return expr


def _is_exact(call: Call) -> bool:
    return not (call.type.is_decimal or call.type.is_float)


def _operands(expr: Expr, fn: str) -> list[Expr]:
    if isinstance(expr, Call) and expr.fn == fn and _is_exact(expr):
        return [part for arg in expr.args for part in _operands(arg, fn)]
    return [expr]
