"""What names mean inside one query block."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches

from headrace.errors import Position, SqlError
from headrace.plan.exprs import Column, Expr


@dataclass(frozen=True)
class Source:
    """A FROM item: its name in the query and its columns."""

    name: str
    columns: tuple[Column, ...]
    hidden: frozenset[int] = frozenset()
    """Columns a USING clause merged into the other side's: reachable by qualified name only."""
    secret: frozenset[int] = frozenset()
    """Columns that nobody wrote a name for: no star stands for them, either."""


@dataclass
class Scope:
    """The columns a block's expressions can name, and any the block itself defines."""

    sources: list[Source] = field(default_factory=list)
    extras: dict[tuple[str, ...], Column] = field(default_factory=dict)
    """Names that are no column of a source: ``window.start`` after GROUP BY window(…)."""
    outer: Scope | None = None
    """Of a subquery: the block around it, whose columns it may name."""
    seen_outside: set[int] = field(default_factory=set)
    """The outer columns that were named."""

    def column(self, parts: tuple[str, ...], position: Position | None) -> Column:
        """The one column these name parts mean."""
        wanted = tuple(p.lower() for p in parts)
        if wanted in self.extras:
            return self.extras[wanted]
        found = self._matches(wanted)
        if len(found) == 1:
            return found[0]
        name = ".".join(parts)
        if found:
            holders = sorted({s.name for s in self._holders(found)})
            several = len(holders) == len(found)
            raise SqlError(
                "AMBIGUOUS_REFERENCE",
                f"{name} could be a column of {', '.join(holders)}"
                if several
                else f"{len(found)} columns are named {name}",
                position=position,
                hint="put the relation's name before it" if several else "give each an alias of its own",
            )
        if self.outer is not None and (outside := self.outer._matches(wanted)) and len(outside) == 1:
            self.seen_outside.add(outside[0].id)
            return outside[0]
        known = sorted({c.name for s in self.sources for c in s.columns if c.id not in s.secret})
        near = get_close_matches(parts[-1], known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"columns here: {', '.join(known) or 'none'}"
        raise SqlError("UNRESOLVED_COLUMN", f"there is no column {name}", position=position, hint=hint)

    def knows(self, name: str) -> bool:
        """Whether a column of this block's own relations has this name."""
        return (name,) in self.extras or bool(self._matches((name,)))

    def star(self, qualifier: str | None, position: Position | None) -> list[Column]:
        """The columns ``*`` or ``qualifier.*`` stands for."""
        if qualifier is None:
            return [c for s in self.sources for c in s.columns if c.id not in s.hidden | s.secret]
        for source in self.sources:
            if source.name.lower() == qualifier.lower():
                return [c for c in source.columns if c.id not in source.secret]
        raise SqlError("CANNOT_RESOLVE_STAR_EXPAND", f"there is no relation {qualifier} in FROM", position=position)

    def _matches(self, wanted: tuple[str, ...]) -> list[Column]:
        if len(wanted) == 1:
            here = [c for s in self.sources for c in s.columns if c.id not in s.hidden | s.secret]
            return [c for c in here if c.name.lower() == wanted[0]]
        if len(wanted) == 2:
            return [
                c for s in self.sources if s.name.lower() == wanted[0] for c in s.columns if c.name.lower() == wanted[1]
            ]
        return []

    def _holders(self, columns: list[Column]) -> list[Source]:
        ids = {c.id for c in columns}
        return [s for s in self.sources if ids & {c.id for c in s.columns}]


@dataclass
class OutputScope:
    """ORDER BY and HAVING: the block's own output names first, then what is below."""

    outputs: dict[str, Expr]
    below: Scope
    aliases: dict[int, Expr] = field(default_factory=dict)
    """Stand-in columns handed out for outputs, to be replaced by their expressions."""
    columns_first: bool = False
    """Whether an output's name is only looked at where no column has it."""

    def column(self, parts: tuple[str, ...], position: Position | None) -> Column:
        if self.columns_first:
            try:
                return self.below.column(parts, position)
            except SqlError as error:
                if error.condition != "UNRESOLVED_COLUMN" or parts[-1].lower() not in self.outputs:
                    raise
        if len(parts) == 1 and parts[0].lower() in self.outputs:
            expr = self.outputs[parts[0].lower()]
            stand_in = Column.fresh(parts[0], expr.type)
            self.aliases[stand_in.id] = expr
            return stand_in
        return self.below.column(parts, position)
