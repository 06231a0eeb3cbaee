"""TABLESAMPLE RESERVOIR (n ROWS) [REPEATABLE (seed)], behind a relation or a subquery.

Spark's own TABLESAMPLE forms go to Spark as they are written.
"""

from __future__ import annotations

from sqlglot import exp

from headrace.errors import SqlError
from headrace.plan.nodes import Draw, Node
from headrace.sql.sample_limits import MEMORY_BYTES, check_size
from headrace.sql.tree import OutsideAlgebra, position_of

MAX_SEED = (1 << 63) - 1


def is_reservoir(sample: exp.Expr | None) -> bool:
    """Whether a TABLESAMPLE is Headrace's own."""
    return sample is not None and sample.args.get("method") is not None and sample.args["method"].name == "RESERVOIR"


def drawn_from(node: Node, sample: exp.Expr | None) -> Node:
    """The relation, or the rows that are drawn of it."""
    if sample is None:
        return node
    position = position_of(sample)
    if not is_reservoir(sample):
        raise OutsideAlgebra("TABLESAMPLE", position)
    size = sample.args.get("size")
    if not isinstance(size, exp.Literal) or size.is_string or not size.name.isdigit():
        raise SqlError(
            "INVALID_SAMPLE_SIZE",
            "RESERVOIR draws a number of rows",
            position=position,
            hint="write TABLESAMPLE RESERVOIR (1000 ROWS)",
        )
    types = [c.type.arrow for c in node.output if c.type.is_held]
    seed = sample.args.get("seed")
    if seed is not None and not (seed.name.isdigit() and int(seed.name) <= MAX_SEED):
        raise SqlError(
            "INVALID_SEED", f"the seed is {seed.name}", position=position, hint=f"give a whole number up to {MAX_SEED}"
        )
    rows = check_size(int(size.name), types, MEMORY_BYTES, position)
    return Draw(node, rows, None if seed is None else int(seed.name))
