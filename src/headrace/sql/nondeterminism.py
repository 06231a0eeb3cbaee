"""What may not stand in what is kept: its rows equal a batch query's, so they may not depend on when it ran."""

from __future__ import annotations

from sqlglot import exp

from headrace.errors import ViewRefused
from headrace.sql.expressions import position_of

_NONDETERMINISTIC = {
    *("rand", "randn", "random", "uuid", "shuffle", "monotonically_increasing_id", "spark_partition_id"),
    *("now", "current_timestamp", "localtimestamp", "current_date", "curdate", "current_time", "unix_timestamp"),
    *("input_file_name", "input_file_block_start", "input_file_block_length"),
    *("reflect", "java_method", "try_reflect"),  # whatever Java does
}


def nondeterministic_call(node: exp.Expr) -> str | None:
    """The function's name, if a node calls one that gives something else each time."""
    name = node.name.lower() if isinstance(node, exp.Anonymous | exp.Column) else type(node).__name__.lower()
    known = {n.replace("_", "") for n in _NONDETERMINISTIC}
    return name if isinstance(node, exp.Func) and name.replace("_", "") in known else None


def refuse_nondeterministic(query: exp.Expr, what: str = "a view") -> None:
    """An error for functions and samples that give something else each time."""
    for node in query.walk():
        if isinstance(node, exp.TableSample):
            raise ViewRefused(
                "NONDETERMINISTIC_VIEW",
                "TABLESAMPLE draws other rows each time, and a view is evaluated at many times",
                position=position_of(node),
                hint="keep a sample of the stream, CREATE SAMPLE s OF stream SIZE n, or draw where the view is queried",
            )
        if (name := nondeterministic_call(node)) is not None:
            raise ViewRefused(
                "NONDETERMINISTIC_VIEW",
                f"{name}() gives another value each time it is evaluated, and {what} is evaluated at many times",
                position=position_of(node),
                hint="leave it out, and apply it where the relation is queried",
            )
