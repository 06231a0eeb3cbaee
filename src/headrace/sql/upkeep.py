"""OPTIMIZE and VACUUM: how a table lies in its files is put in order, and what nobody needs any more goes."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from headrace.errors import NotYetSupported, Position, SqlError
from headrace.sql.cursor import Cursor
from headrace.sql.lexer import Kind

_HOUR = 3_600_000_000


@dataclass(frozen=True)
class Optimize:
    name: str
    position: Position


@dataclass(frozen=True)
class Vacuum:
    name: str
    position: Position
    retain: int | None = None
    """For how many microseconds changes are kept, this once; None for as long as the table says."""
    dry_run: bool = False


def optimize(read: Cursor) -> Optimize:
    """``OPTIMIZE t``."""
    read.expect("OPTIMIZE")
    read.take("TABLE")
    position = read.position()
    name = read.name()
    if read.word() in ("WHERE", "ZORDER", "FULL"):
        hint = "write OPTIMIZE and the table alone: all of it is looked at"
        raise NotYetSupported(f"OPTIMIZE … {read.word()}", position=read.position(), hint=hint)
    read.end()
    return Optimize(name, position)


def vacuum(read: Cursor) -> Vacuum:
    """``VACUUM t [RETAIN n HOURS] [DRY RUN]``."""
    read.expect("VACUUM")
    read.take("TABLE")
    position = read.position()
    name = read.name()
    retain = None
    if read.take("RETAIN"):
        if read.kind() is not Kind.NUMBER or read.word(1) not in ("HOURS", "HOUR"):
            read.fail("a number and HOURS")
        at, text = read.position(), read.tokens[read.at].text
        try:
            retain = int(Fraction(Decimal(text)) * _HOUR)
        except ArithmeticError:
            raise SqlError("INVALID_RETAIN", f"{text} hours", position=at, hint="write RETAIN 24 HOURS") from None
        read.at += 2
    dry_run = read.take("DRY", "RUN")
    read.end()
    return Vacuum(name, position, retain, dry_run)


Upkeep = Optimize | Vacuum
