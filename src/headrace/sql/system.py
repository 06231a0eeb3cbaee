"""Names of the schema ``headrace``: ``headrace.views``, ``headrace.state('v')``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sqlglot import exp

from headrace.errors import Position, SqlError
from headrace.plan.nodes import Leaf
from headrace.sql.source import position_of, text_of


class System(Protocol):
    """What the schema ``headrace`` holds."""

    def scan(self, name: str, args: Sequence[str | int] | None, position: Position | None) -> Leaf:
        """The scan of ``headrace.name``, or of ``headrace.name(args…)``."""


def is_system(table: exp.Table) -> bool:
    """Whether a FROM item is one of the schema ``headrace``."""
    return table.db.lower() == "headrace" and not table.args.get("catalog")


def name_of(item: exp.Expr) -> str:
    """The name a FROM item's columns are qualified by; a function's is its own."""
    name = item.alias_or_name or (item.this.name if isinstance(item, exp.Table) else "")
    return name if item.alias else name.partition("@")[0]


def system_scan(table: exp.Table, system: System | None) -> Leaf:
    """The scan of a FROM item of the schema; without a ``system`` to ask, as in a view, it is refused."""
    name, position = table.this.name, position_of(table)
    if system is None:
        raise SqlError(
            "SYSTEM_RELATION_IN_VIEW",
            f"headrace.{name} in a view: what it says depends on when it is asked",
            position=position,
            hint="query it directly",
        )
    if isinstance(table.this, exp.Identifier):
        return system.scan(name, None, position)
    args: list[str | int] = []
    for arg in table.this.expressions:
        if isinstance(arg, exp.Literal) and (arg.is_string or (args and arg.name.isdecimal())):
            args.append(arg.name if arg.is_string else int(arg.name))
            continue
        raise SqlError(
            "INVALID_ARGUMENT",
            f"headrace.{name} takes names in quotes{', and then numbers' if args else ''}, not {text_of(arg)}",
            position=position_of(arg) or position,
            hint=f"write headrace.{name}('name')",
        )
    return system.scan(name, args, position)
