"""Rounds of plans: where the key changes, what is sent everywhere, what stays where it is."""

from __future__ import annotations

import pytest
from planning import Answering

from headrace.catalog import Catalog, Table
from headrace.plan.nodes import Leaf
from headrace.plan.rounds import rounds
from headrace.plan.rules import optimize
from headrace.sql.binder import Binder
from headrace.sql.statements import Query, parse
from headrace.types import DATE, INT, STRING, Field, decimal

COLUMNS = {
    "customer": {"c_custkey": INT, "c_segment": STRING, "c_nation": INT},
    "orders": {"o_orderkey": INT, "o_custkey": INT, "o_date": DATE},
    "lineitem": {"l_orderkey": INT, "l_suppkey": INT, "l_price": decimal(12, 2)},
    "supplier": {"s_suppkey": INT, "s_nation": INT},
    "nation": {"n_key": INT, "n_name": STRING},
}
CATALOG = Catalog().with_relation(
    *(
        Table(name, tuple(Field(c, t, id=i) for i, (c, t) in enumerate(columns.items(), 1)), number=number)
        for number, (name, columns) in enumerate(COLUMNS.items(), 1)
    )
)
CASES = {
    "SELECT l_suppkey, sum(l_price) FROM lineitem GROUP BY l_suppkey": (
        [],
        ["by l_suppkey: group by l_suppkey, added up before"],
    ),
    "SELECT sum(l_price) FROM lineitem": ([], ["in one place: group all, added up before"]),
    # Keyed alike: a grouping by more than the join is keyed by is in the join's round.
    "SELECT l_orderkey, o_date, sum(l_price) FROM orders JOIN lineitem ON l_orderkey = o_orderkey "
    "GROUP BY l_orderkey, o_date": (
        [],
        ["by o_orderkey: join orders, lineitem; group by l_orderkey, o_date"],
    ),
    # The key changes twice.
    "SELECT o_date, count(*) FROM customer JOIN orders ON c_custkey = o_custkey "
    "JOIN lineitem ON l_orderkey = o_orderkey WHERE c_segment = 'x' GROUP BY o_date": (
        [],
        [
            "by c_custkey: join customer, orders",
            "by o_orderkey: join customer, orders, lineitem",
            "by o_date: group by o_date, added up before",
        ],
    ),
    # A small side is sent everywhere, and the other one stays where it is.
    "SELECT n_name, s_suppkey FROM supplier JOIN nation ON s_nation = n_key": (["nation"], []),
    "SELECT c_custkey, count(o_orderkey) FROM customer LEFT JOIN orders ON c_custkey = o_custkey GROUP BY c_custkey": (
        [],
        ["by c_custkey: join customer, orders; group by c_custkey"],
    ),
    # What is null-extended on both sides is in no place by a key of one.
    "SELECT c_custkey, count(*) FROM customer FULL JOIN orders ON c_custkey = o_custkey GROUP BY c_custkey": (
        [],
        ["by c_custkey: join customer, orders", "by c_custkey: group by c_custkey, added up before"],
    ),
    "SELECT n, count(*) FROM (SELECT o_custkey, count(*) AS n FROM orders GROUP BY o_custkey) GROUP BY n": (
        [],
        ["by o_custkey: group by o_custkey, added up before", "by n: group by n, added up before"],
    ),
}


@pytest.mark.parametrize("text", CASES)
def test_where_the_key_changes(text: str) -> None:
    statement = parse(text)
    assert isinstance(statement, Query)
    plan = optimize(Binder(CATALOG, Answering()).query(statement.query))

    def is_small(leaf: Leaf) -> bool:
        return leaf.relation == "nation"

    replicated, found = rounds(plan, is_small)
    assert (replicated, list(map(str, found))) == CASES[text]
