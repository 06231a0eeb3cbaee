"""``estimate(count(*))``, ``estimate(sum(x))``, ``estimate(avg(x))`` over a kept sample.

A sample of m of N rows stands for all of them: a sum over it, times N / m, is an unbiased estimate of the sum over
the stream, and the spread of its values tells how far off it may be. Rows that a WHERE leaves out count as zeros.
An estimate in the select list is three columns: the value, and the bounds of an interval that holds the truth in
about 95 of 100 samples (by the normal approximation, with the correction for drawing without replacement: of a
sample that has all rows the bounds are the value). Anywhere else it is the value.

The calls are rewritten as Spark SQL over some columns a sample has beside its own, worked out of N and m.
"""

from __future__ import annotations

from sqlglot import exp

from headrace.catalog import Catalog
from headrace.catalog.sample import Sample
from headrace.errors import SqlError
from headrace.sql.grammar import parse_expression
from headrace.sql.source import position_of, replace, text_of
from headrace.types import DOUBLE, Field

COUNTS = (
    Field("__weight", DOUBLE),
    Field("__inverse", DOUBLE),
    Field("__factor", DOUBLE),
    Field("__rest", DOUBLE),
)
"""Of each row's group, where m of N rows are kept: N / m, 1 / m, N² (1 - m / N) / (m (m - 1)) and 1 - m / N.

They are worked out once where the sample is read: a quotient in SQL is long, for it may be one by zero.
"""
_META = "with counts"
_WIDTH = 1.959964  # of the normal distribution's middle 95 per cent
_AGGREGATES = ("count", "sum", "avg", "mean")


def has_counts(table: exp.Table) -> bool:
    """Whether a FROM item is a sample that is to be read with its counts."""
    return bool(table.meta.get(_META))


def with_estimates(tree: exp.Select, catalog: Catalog, hidden: set[str]) -> exp.Select:
    """The block with its estimates spelled out; itself, if it has none. CTEs hide relations of their names."""
    if not _calls(tree):
        return tree
    tree = tree.copy()
    sample = _sample(tree, catalog, hidden)
    _check_groups(tree, sample)
    items: list[exp.Expr] = []
    for item in tree.expressions:
        inner = item.this if isinstance(item, exp.Alias) else item
        items += _columns(item, inner) if _is_estimate(inner) else [item]
    tree.set("expressions", items)
    for call in _calls(tree):
        replace(call, parse_expression(f"({_texts(call)[0]})"))
    return tree


def _is_estimate(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() == "estimate"


def _calls(tree: exp.Select) -> list[exp.Expr]:
    return [c for c in tree.find_all(exp.Anonymous) if _is_estimate(c) and c.find_ancestor(exp.Query) is tree]


def _sample(tree: exp.Select, catalog: Catalog, hidden: set[str]) -> Sample:
    """The sample a block reads, its FROM item marked to bring its counts."""
    clause = tree.args.get("from_")
    item = clause.this if clause is not None else None
    found = None
    if isinstance(item, exp.Table) and isinstance(item.this, exp.Identifier) and item.name.lower() not in hidden:
        found = catalog.find(item.name)
    beside = tree.args.get("joins") or (item and item.args.get("sample"))
    if not isinstance(found, Sample) or beside:
        raise SqlError(
            "SAMPLE_WITHOUT_CARDINALITY",
            "estimate() scales what a sample shows to the rows it was drawn from, and here their number is not known",
            position=position_of(_calls(tree)[0]),
            hint="read one kept sample alone: SELECT estimate(count(*)) FROM sample WHERE …; join in a query above it",
        )
    assert isinstance(item, exp.Table)
    item.meta[_META] = True
    return found


def _check_groups(tree: exp.Select, sample: Sample) -> None:
    group = tree.args.get("group")
    named = {e.name.lower() for e in group.expressions if isinstance(e, exp.Column)} if group is not None else set()
    missing = [key for key in sample.keys if key.lower() not in named]
    if missing:
        raise SqlError(
            "ESTIMATE_NOT_GROUPED",
            f"{sample.name} is kept for each {', '.join(sample.keys)}: a row of one group stands for more rows than "
            "one of another",
            position=position_of(_calls(tree)[0]),
            hint=f"write GROUP BY {', '.join(sample.keys)}, and add the estimates up",
        )


def _columns(item: exp.Expr, call: exp.Expr) -> list[exp.Expr]:
    """The value and its bounds, as select items."""
    argument = text_of(call.expressions[0]) if call.expressions else ""
    name = item.alias if isinstance(item, exp.Alias) else f"estimate({argument.replace('count(*)', 'count(1)')})"
    return [
        exp.Alias(this=parse_expression(text), alias=exp.to_identifier(f"{name}{ending}", quoted=True))
        for text, ending in zip(_texts(call), ("", "_low", "_high"), strict=True)
    ]


def _texts(call: exp.Expr) -> tuple[str, str, str]:
    """The value, and the bounds of its interval."""
    inner = call.expressions[0] if len(call.expressions) == 1 else None
    name = inner.name.lower() if isinstance(inner, exp.Anonymous) else ""
    given = inner.expressions if isinstance(inner, exp.Anonymous) else []
    if name not in _AGGREGATES or len(given) != 1 or isinstance(given[0], exp.Distinct | exp.Query):
        raise SqlError(
            "INVALID_ESTIMATE",
            f"{text_of(inner) if inner is not None else 'nothing'} cannot be estimated from a sample",
            position=position_of(call),
            hint="write estimate(count(*)), estimate(count(x)), estimate(sum(x)) or estimate(avg(x))",
        )
    weight, inverse, factor, rest = (f"max({field.name})" for field in COUNTS)
    argument = text_of(given[0])
    number = f"CAST(count({argument}) AS DOUBLE)"
    mean, spread = "1D", "0D"
    if name != "count":
        mean, spread = f"avg(CAST({argument} AS DOUBLE))", f"coalesce(var_samp(CAST({argument} AS DOUBLE)), 0D)"
    if name in ("avg", "mean"):
        off = f"{_WIDTH}D * sqrt({rest} * {spread} / nullif({number}, 0D))"
        return mean, f"{mean} - {off}", f"{mean} + {off}"
    total = f"{weight} * {number} * {mean}"
    # The squared deviations of all rows kept, those left out being zeros.
    zeros = _greater(f"1D - {number} * {inverse}", "0D")
    squares = f"{_greater(f'{number} - 1D', '0D')} * {spread} + {number} * {mean} * {mean} * {zeros}"
    off = f"{_WIDTH}D * sqrt({factor} * ({squares}))"
    if name == "count":
        return f"coalesce({total}, 0D)", _greater(f"{total} - {off}", number), f"{total} + {off}"
    return total, f"{total} - {off}", f"{total} + {off}"


def _greater(one: str, other: str) -> str:
    return f"CASE WHEN {one} > {other} THEN {one} ELSE {other} END"
