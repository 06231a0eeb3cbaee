"""``CREATE SAMPLE s OF stream SIZE n [WHERE …] [GROUP BY …] [SEED n]``."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from headrace.errors import Position
from headrace.sql.statements import Create, StatementReader, creates


@dataclass(frozen=True)
class CreateSample(Create):
    name: str
    of: str
    size: int
    query: exp.Expr
    """All columns of the stream's rows that its WHERE lets pass."""
    keys: tuple[str, ...]
    seed: int | None
    text: str
    if_not_exists: bool
    position: Position
    of_position: Position
    size_position: Position
    key_positions: tuple[Position, ...]


@creates("SAMPLE")
def create_sample(read: StatementReader) -> CreateSample:
    """What follows CREATE SAMPLE."""
    exists = read.take("IF", "NOT", "EXISTS")
    position = read.position()
    name = read.name()
    if not read.take("OF"):
        read.fail("OF and a stream")
    of_position, of_token = read.position(), read.at
    of = read.name()
    if not read.take("SIZE"):
        read.fail("SIZE and a number of rows")
    size_position = read.position()
    size = read.whole_number("a number of rows")
    query = _sampled_rows(read, of_token)
    keys: list[str] = []
    key_positions: list[Position] = []
    if read.take("GROUP", "BY"):
        while not keys or read.take(","):
            key_positions.append(read.position())
            keys.append(read.name())
    seed = read.whole_number("a seed") if read.take("SEED") else None
    read.end()
    return CreateSample(
        name, of, size, query, tuple(keys), seed, read.written(), exists, position, of_position, size_position,
        tuple(key_positions),
    )  # fmt: skip


def _sampled_rows(read: StatementReader, of_token: int) -> exp.Expr:
    """``SELECT * FROM stream [WHERE …]``, every word of the user's where it was written."""
    at = read.at
    read.at = of_token
    table = read.made(exp.Table(this=read.identifier()), of_token)
    read.at = at
    select = exp.Select(expressions=[exp.Star()], from_=exp.From(this=table))
    if read.take("WHERE"):
        select.set("where", read.made(exp.Where(this=read.expression()), at))
    return read.made(select, of_token)
