"""Stars of a select list: the columns ``*``, ``t.*`` and ``struct.*`` stand for, without those EXCEPT leaves out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from headrace.errors import SqlError
from headrace.plan.exprs import Call, Column, Expr, Literal
from headrace.sql.scope import Scope
from headrace.sql.source import position_of
from headrace.sql.tree import OutsideAlgebra
from headrace.types import STRING, VOID

Named = list[tuple[str, Expr]]


def is_star(tree: exp.Expr) -> bool:
    return isinstance(tree, exp.Star) or (isinstance(tree, exp.Column) and isinstance(tree.this, exp.Star))


def star_items(tree: exp.Expr, scope: Scope, bind: Callable[[exp.Expr], Expr]) -> Named:
    """The items a star stands for, by name; ``bind`` binds a struct that may be meant."""
    star = tree if isinstance(tree, exp.Star) else tree.this
    qualifier = tree.args["table"].name if isinstance(tree, exp.Column) else None
    if tree.args.get("db") is not None:
        return _fields(tree, bind)
    try:
        columns = scope.star(qualifier, position_of(tree))
    except SqlError:
        return _fields(tree, bind)
    gone = _left_out(star.args.get("except_") or (), columns)
    items: Named = [(c.name, c) for c in columns if c.name.lower() not in gone]
    if not items:
        raise SqlError("CANNOT_RESOLVE_STAR_EXPAND", "* stands for no column here", position=position_of(tree))
    return items


def _left_out(names: Sequence[exp.Expr], columns: list[Column]) -> set[str]:
    """The names that EXCEPT leaves out, each that of one column."""
    known = [c.name.lower() for c in columns]
    for name in names:
        if not isinstance(name, exp.Identifier):
            raise OutsideAlgebra("EXCEPT of a field, or of a relation's column", position_of(name))
        count = known.count(name.name.lower())
        if count != 1:
            raise SqlError(
                "AMBIGUOUS_REFERENCE" if count else "UNRESOLVED_COLUMN",
                f"* has {count} columns {name.name}" if count else f"* has no column {name.name}",
                position=position_of(name),
                hint="name the columns you want instead" if count else f"it has {', '.join(c.name for c in columns)}",
            )
    if len({n.name for n in names}) < len(names):
        raise SqlError(
            "EXCEPT_OVERLAPPING_COLUMNS",
            "EXCEPT names a column twice",
            position=position_of(names[0]),
            hint="name each once",
        )
    return {n.name.lower() for n in names}


def _fields(tree: exp.Expr, bind: Callable[[exp.Expr], Expr]) -> Named:
    """``s.*``, s being no relation but a struct: its fields."""
    names = [part.name for part in tree.parts[:-1]] if isinstance(tree, exp.Column) else []
    try:
        struct = bind(exp.column(*reversed(names), quoted=True))
    except SqlError:
        struct = Literal(VOID, None)
    if struct.type.name != "struct":
        raise SqlError(
            "CANNOT_RESOLVE_STAR_EXPAND", f"there is no relation {'.'.join(names)} in FROM", position=position_of(tree)
        )
    if any(tree.this.args.values()):
        raise OutsideAlgebra("EXCEPT of a struct's fields", position_of(tree))
    return [(p.name, Call(p.type, "field", (struct, Literal(STRING, p.name)))) for p in struct.type.parts]
