"""A delta is a plan: how a change of what a plan reads becomes a change of its rows.

The change of a node is a plan too. Its rows are the node's own columns and a *weight*: 1 for a row that comes, -1 for
one that goes. One file an operator says how it is made from the changes of the inputs, and from the inputs as they are
*before* and *now*:

    linear.py      each row by itself: filters, projections, UNION ALL
    joins.py       d(A x B) = dA x B before + A now x dB; outer and semi joins by the rows that meet the change
    touched.py     everything else: run again for the keys that the change touches

    changed rows ──delta──▶ changed rows of the plan

Changes of leaves are leaves (``changes.py:change_of``). The snapshot a plan runs over shows its leaves before the
change or after it, as ``changes.py:Deltas`` is told; the other of both is that without the rows that came and with
those that went, or the other way round (``Deltas.at``).

    rows(now) == rows(before) + delta

as multisets, whatever changed (``tests/plan/test_delta.py``). What may not give the same rows twice over the same input
- sums of doubles, what only Spark knows - is no exact function of it, so what is retracted would not be what was
emitted; ``touched.py:is_inexact`` says what it is, and a kept relation keeps there what was (``plan/layers.py``).
"""

from headrace.plan.delta import joins, linear, touched
from headrace.plan.delta.changes import Delta, Deltas, change_of, change_ref

__all__ = ["Delta", "Deltas", "change_of", "change_ref", "joins", "linear", "touched"]
