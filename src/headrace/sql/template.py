"""Expressions as Spark SQL text with holes.

What the binder does not claim goes to Spark as the user wrote it. Columns and
aggregates in it are known to the plan only, so they become numbered holes.

>>> from sqlglot import parse_one
>>> from headrace.plan.exprs import Column
>>> from headrace.sql.verbatim import Verbatim
>>> from headrace.types import STRING
>>> column = Column(STRING, 7, "s")
>>> node = parse_one("regexp_replace(s, 'a{2}', concat(s, 'x'))", read=Verbatim)
>>> text, args = spark_template(node, lambda part: column if isinstance(part, exp.Column) else None)
>>> print(text, args == (column,))
regexp_replace({0}, 'a{{2}}', concat({0}, 'x')) True
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from headrace.plan.exprs import Expr
from headrace.sql.tree import function_name, starts_with_unit
from headrace.sql.verbatim import Verbatim

AGGREGATE_WRAPPERS = (exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)
"""Syntax around an aggregate call that belongs to the call."""

_HOLE = "__hole_{}__"


def spark_template(node: exp.Expr, leaf: Callable[[exp.Expr], Expr | None]) -> tuple[str, tuple[Expr, ...]]:
    """``node`` as text for ``str.format``, with ``{i}`` where ``leaf`` has a bound form; equal ones share a hole.

    ``leaf`` is not asked about ``node`` itself, nor about the call an aggregate's wrapper holds,
    unless that is a column.
    """
    args: dict[Expr, int] = {}
    heads = {id(node)}
    if isinstance(node, AGGREGATE_WRAPPERS):
        heads.add(id(node.this))

    def filled(part: exp.Expr, parent: exp.Expr | None) -> exp.Expr:
        if id(part) not in heads or isinstance(part, exp.Column):
            bound = leaf(part)
            if bound is not None:
                hole = exp.Var(this=_HOLE.format(args.setdefault(bound, len(args))))
                if parent is not None and function_name(parent) == "struct" and isinstance(part, exp.Column):
                    # A struct names its fields after its columns, and a hole has no name.
                    return exp.Alias(this=hole, alias=exp.to_identifier(part.name, quoted=True))
                return hole
        copy = type(part)()
        copy.meta.update(part.meta)
        for key, value in part.args.items():
            if isinstance(value, list):
                # A unit word parses as a column, but nobody may look for it.
                kept = 1 if starts_with_unit(part) and key == "expressions" else 0
                rest = [filled(v, part) if isinstance(v, exp.Expr) else v for v in value[kept:]]
                copy.set(key, [*(v.copy() for v in value[:kept]), *rest])
            else:
                copy.set(key, filled(value, part) if isinstance(value, exp.Expr) else value)
        return copy

    text = filled(node, None).sql(Verbatim).replace("{", "{{").replace("}", "}}")
    for index in args.values():
        text = text.replace(_HOLE.format(index), f"{{{index}}}")
    return text, tuple(args)
