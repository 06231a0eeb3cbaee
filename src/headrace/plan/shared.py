"""Which states of one layered plan another one has too: they are known by what they compute.

A state is filled by a plan over tables and lower states. Two states are the same if they have the same columns and are
filled by plans of the same shape, over the same tables and over states that are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from headrace.plan.exprs import columns
from headrace.plan.layers import LayeredPlan
from headrace.plan.nodes import Leaf, Node, Project, map_children
from headrace.plan.refs import StateRef
from headrace.plan.shape import shape


def same_states(new: LayeredPlan, old: LayeredPlan) -> dict[str, str]:
    """The states of the new plan that the old one has, and what they are called there."""
    own = {state.name: state.name for state in old.states}
    known: dict[str, str] = {}
    for name, text in _texts(old, own).items():
        known.setdefault(text, name)
    found: dict[str, str] = {}
    for state in new.states:  # lower ones first
        same = known.get(_texts(new, found).get(state.name, ""))
        if same is not None and same not in found.values():
            found[state.name] = same
    return found


def _texts(plan: LayeredPlan, names: Mapping[str, str]) -> dict[str, str]:
    """What each state is and how it is filled; not of those that read a state without a name."""
    states = {state.name: state for state in plan.states}
    found = {}
    for step in plan.first_steps():
        read = _renamed(step.rows, names)
        if read is not None:
            state = states[step.state]
            found[step.state] = shape((state.kind, state.keys, state.partials, state.monotone, state.time, read))
    return found


def _renamed(plan: Node, names: Mapping[str, str]) -> Node | None:
    """The plan over states by their other names, its leaves with what is read of them; None if one has no name."""
    missing = False

    def visit(node: Node) -> Node:
        nonlocal missing
        if isinstance(node, Leaf) and isinstance(node.ref, StateRef):
            missing = missing or node.ref.name not in names
            return replace(node, ref=StateRef(names.get(node.ref.name, "")))
        if isinstance(node, Project) and isinstance(node.child, Leaf) and id(node) not in done:
            read = {c.id for _, e in node.exprs for c in columns(e)}
            done[id(node)] = Project(visit(_of(node.child, read)), node.exprs)
        if id(node) not in done:
            done[id(node)] = map_children(node, visit)
        return done[id(node)]

    done: dict[int, Node] = {}
    found = visit(plan)
    return None if missing else found


def _of(leaf: Leaf, read: Collection[int]) -> Leaf:
    """A leaf with some columns: others may be there for another reader of its relation."""
    there = [(f, c) for f, c in zip(leaf.fields, leaf.scanned, strict=True) if c.id in read]
    return replace(leaf, fields=tuple(f for f, _ in there), scanned=tuple(c for _, c in there))
