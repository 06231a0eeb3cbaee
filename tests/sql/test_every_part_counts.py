"""No part of a statement is dropped in silence.

Each part of each node of a tree is taken out in turn, and the rest is bound again: the plan must be another one, or
binding must fail. A part that makes no difference was looked at by nobody. And whatever the grammar can build is
either in such a statement or always Spark's to run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from sqlglot import exp
from test_binder import CATALOG, NoSpark

import headrace.sql
from headrace.catalog import Table
from headrace.engine.plan_sql import native_plan, quote_native
from headrace.errors import HeadraceError
from headrace.plan.nodes import Leaf, Node
from headrace.sql.binder import Binder
from headrace.sql.grammar import Opaque, parse_query
from headrace.types import INT, Field
from made_statements import Made

STATEMENTS = [
    "SELECT DISTINCT a AS x, b FROM s WHERE a > 1 AND b < '' OR a IS NULL ORDER BY x DESC NULLS FIRST LIMIT 3 OFFSET 9",
    "SELECT b, count(*) AS n, sum(a) FILTER (WHERE a > 1), count(DISTINCT a) FROM s GROUP BY b HAVING count(*) > 1",
    "SELECT b, a, count(*) FROM s GROUP BY GROUPING SETS ((a), (b), ())",
    "SELECT b, a, count(*) FROM s GROUP BY a, ROLLUP (b)",
    "SELECT b, a, count(*) FROM s GROUP BY a, CUBE (b)",
    "SELECT b, a, count(*) FROM s GROUP BY a, b WITH ROLLUP",
    "SELECT b, a, count(*) FROM s GROUP BY a, b WITH CUBE",
    "SELECT grouping_id(), count(*) FROM s GROUP BY b, a GROUPING SETS ((a), (b))",
    "SELECT s.a, t.a FROM s LEFT JOIN t ON s.a = t.a",
    "SELECT a FROM s SEMI JOIN t ON s.a = t.a",
    "SELECT a FROM s ANTI JOIN t ON s.a = t.a",
    "SELECT a FROM s FULL JOIN t USING (a)",
    "SELECT x.a FROM s AS x JOIN t AS y ON x.a = y.a",
    "SELECT a FROM s NATURAL JOIN t",
    "SELECT x.a FROM (s CROSS JOIN t) AS x(a, b, c, d, e)",
    "SELECT y.q FROM (SELECT a FROM s LIMIT 1) AS y(q)",
    "SELECT v.q, r FROM VALUES (1, 2), (3, 4) AS v(q, r)",
    "WITH g (k) AS (SELECT a FROM s) SELECT k FROM g",
    "SELECT a FROM s UNION SELECT a FROM t",
    *(
        f"WITH g AS (SELECT a FROM t) SELECT a FROM s {word} SELECT a FROM g ORDER BY a LIMIT 1 OFFSET 1"
        for word in ("UNION", "EXCEPT", "INTERSECT", "UNION ALL", "EXCEPT ALL")
    ),
    "WITH g AS (SELECT a FROM t) (SELECT a FROM g) LIMIT 1",
    "SELECT a FROM s EXCEPT SELECT a FROM t",
    "SELECT a FROM s INTERSECT ALL SELECT a FROM t",
    "SELECT a FROM s INTERSECT SELECT a FROM t",
    "(SELECT a FROM s) ORDER BY a LIMIT 2 OFFSET 1",
    "SELECT * EXCEPT (a) FROM s",
    "SELECT s.* FROM s, t",
    "SELECT a + 1, a - 1, a * 2, a / 2, a % 2, a DIV 2, - a, -(a), NOT a = 1, a <> 1, a <= 1, a >= 1, a <=> 1 FROM s",
    "SELECT a BETWEEN 1 AND 2, a IN (1, 2), b LIKE 'x%', b LIKE 'x/%' ESCAPE '/', b || 'x', a IS NOT NULL FROM s",
    "SELECT (a = 1) IS TRUE, a IS DISTINCT FROM 1, CASE WHEN a = 1 THEN 2 ELSE 3 END, CASE a WHEN 1 THEN 2 END FROM s",
    "SELECT CAST(a AS STRING), CAST(b AS INT), date '2024-01-01', X'1F', 1.5, 'x', true, NULL FROM s",
    "SELECT extract(year FROM date '2024-01-01'), substring(b FROM 1 FOR 2), trim(LEADING 'x' FROM b), upper(b) FROM s",
    "SELECT a FROM s WHERE EXISTS (SELECT 1 FROM t WHERE e = s.b) AND a IN (SELECT a FROM t)",
    "SELECT a FROM s WHERE a > (SELECT max(a) FROM t)",
    "SELECT at + INTERVAL 1 DAY, at - INTERVAL '1 2' DAY TO HOUR FROM clock",
    "SELECT x.a FROM h VERSION AS OF 17 AS x",
    "SELECT sum(a) OVER (PARTITION BY b ORDER BY a DESC NULLS FIRST ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING) FROM s",
    "SELECT count(*) FILTER (WHERE a > 1) OVER (ORDER BY a RANGE 1 PRECEDING), first(a) IGNORE NULLS OVER w FROM s "
    "WINDOW w AS (ORDER BY b ROWS UNBOUNDED PRECEDING)",
    "SELECT lag(a, 2, 7) OVER (ORDER BY b), ntile(3) OVER (ORDER BY a) FROM s QUALIFY rank() OVER (ORDER BY a) < 3",
    "SELECT a FROM h TIMESTAMP AS OF '2026-01-01'",
]
MEANS_NOTHING = {("Identifier", "quoted"), ("Values", "with_")}
"""A name is a name, and plain values name nothing."""
SOMETIMES = {
    *(("Column", "table"), ("Column", "this"), ("Identifier", "this")),  # where nothing else could be meant
    ("Group", "expressions"),  # where the grouping sets name the key too
    ("Literal", "is_string"),  # where it must be text
    ("Join", "kind"),  # CROSS says nothing that no condition does not say
}
"""Parts that make no difference in some statement here; in another they must."""
SPARKS = {
    *("Pivot", "Lateral", "TableSample", "WithinGroup", "Lambda", "Placeholder", "Opaque"),
    *("RespectNulls", "TryCast", "Kwarg", "Bracket", "Collate", "Overlay", "StrPosition", "Aliases"),
    *("ILike", "RegexpLike", "Any", "All", "BitwiseNot", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseLeftShift"),
    *("BitwiseRightShift", "Dot", "NullSafeNEQ", "Var"),
}
"""What goes to Spark as it was written, wherever it stands (and what only stands in such a thing)."""


KNOWN = CATALOG.with_relation(Table("h", (Field("a", INT),), keep_changes=1))


class Asked:
    """Who asks now, so that versions may be named; nothing here asks for the schema ``headrace``."""

    def scan(self, name: str, args: object, position: object) -> Leaf:
        raise AssertionError(name)


def plan_of(tree: exp.Expr) -> str:
    """The plan as native text, its columns numbered anew."""
    plan: Node = Binder(KNOWN, NoSpark(), Asked()).query(tree)
    text = native_plan(plan, lambda scan: quote_native(f"{scan.relation} {scan.ref}"))
    numbers: dict[str, str] = {}
    fresh = count()
    text = re.sub(r"\b([a-z]+)(\d+)\b", lambda m: numbers.setdefault(m[0], f"{m[1]}_{next(fresh)}"), text)
    return text + str([(c.name, c.type.sql) for c in plan.output])


def parts_of(tree: exp.Expr) -> Iterator[tuple[int, str, int | None]]:
    """Each node by its number in a walk, and each of its parts; of a list, each item."""
    for number, node in enumerate(tree.walk()):
        for key, value in node.args.items():
            if isinstance(value, list):
                yield from ((number, key, i) for i in range(len(value)))
            elif value:
                yield number, key, None


def without(tree: exp.Expr, number: int, key: str, item: int | None) -> exp.Expr:
    copy = tree.copy()
    node = next(n for i, n in enumerate(copy.walk()) if i == number)
    if item is None:
        node.args[key] = None
    else:
        del node.args[key][item]
    return copy


def counted(text: str) -> Iterator[tuple[tuple[str, str], bool]]:
    """Each part of a statement, and whether it makes a difference."""
    tree = parse_query(text)
    whole = plan_of(tree)
    for number, key, item in parts_of(tree):
        node = next(n for i, n in enumerate(tree.walk()) if i == number)
        if isinstance(node.parent, exp.Exists) and key == "expressions":
            continue  # what a subquery of EXISTS selects is of no account
        try:
            same = plan_of(without(tree, number, key, item)) == whole
        except Exception:  # a tree with a hole may fail anyhow: it was looked at
            same = False
        yield (type(node).__name__, key), not same


@pytest.mark.parametrize("text", STATEMENTS)
def test_every_part_of_a_statement_counts(text: str) -> None:
    assert not {part for part, counts in counted(text) if not counts} - MEANS_NOTHING - SOMETIMES


def test_what_sometimes_counts_counts_somewhere() -> None:
    assert not SOMETIMES - {part for text in STATEMENTS for part, counts in counted(text) if counts}


def pairs_in(tree: exp.Expr) -> set[tuple[str, str]]:
    return {(type(n).__name__, key) for n in tree.walk() for key, value in n.args.items() if value}


def test_whatever_the_grammar_builds_is_looked_at() -> None:
    """A class of nodes that is new in the grammar needs a statement above, or to be Spark's."""
    folder = Path(headrace.sql.__file__).parent
    files = ("grammar", "expression_grammar", "call_grammar", "token_reader", "type_names")
    source = "\n".join((folder / f"{name}.py").read_text() for name in files)
    built = set(re.findall(r"\bexp\.([A-Z]\w+)\b", source)) - {"Expr", "Expression", "SetOperation", "Query"}
    seen = {name for text in STATEMENTS for name, _ in pairs_in(parse_query(text))}
    empty = {type(n).__name__ for text in STATEMENTS for n in parse_query(text).walk()}
    assert not built - seen - empty - SPARKS


def test_made_statements_hold_no_other_parts() -> None:
    known = {pair for text in STATEMENTS for pair in pairs_in(parse_query(text))}
    for seed in range(2_000):
        try:
            tree = parse_query(Made(seed).statement())
        except HeadraceError:
            continue
        if not isinstance(tree, Opaque):
            new = {p for p in pairs_in(tree) - known - MEANS_NOTHING if p[0] not in SPARKS}
            assert not new, Made(seed).statement()
