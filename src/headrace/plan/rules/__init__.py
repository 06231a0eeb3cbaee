"""Rewrite rules: one a file, each a pure function from plan to plan.

To add one: a file named for its verb with a function of the same name, its line
in ``RULES``, and a fixture in ``tests/plan/fixtures``. A rule never changes an
answer, and never un-shares a node that is read twice.
"""

from collections.abc import Callable

from headrace.plan.nodes import Node
from headrace.plan.rules.drop_unlimited_sort import drop_unlimited_sort
from headrace.plan.rules.factor_disjunctions import factor_disjunctions
from headrace.plan.rules.fold_constants import fold_constants
from headrace.plan.rules.group_existence import group_existence
from headrace.plan.rules.merge_renamings import merge_renamings
from headrace.plan.rules.order_joins import order_joins
from headrace.plan.rules.prune_columns import prune_columns
from headrace.plan.rules.push_down_filters import push_down_filters
from headrace.plan.rules.stream_to_probe import stream_to_probe

RULES: tuple[Callable[[Node], Node], ...] = (
    drop_unlimited_sort,
    fold_constants,
    factor_disjunctions,
    push_down_filters,
    group_existence,
    order_joins,
    stream_to_probe,
    merge_renamings,
    prune_columns,
)


def optimize(root: Node) -> Node:
    """The plan after every rule, in order."""
    for rule in RULES:
        root = rule(root)
    return root
