"""What others read of a relation, found by binding them as they were defined: before something is taken away from it.

Whoever reads a column would be bound to something else without it, or not at all. So a view is bound twice, over the
relation as it is and as it would be: if its plan is the same, it reads nothing of what goes.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.catalog import Catalog, Read, Relation, View
from headrace.errors import HeadraceError
from headrace.plan.nodes import Node
from headrace.plan.rules import optimize
from headrace.plan.same import same
from headrace.runtime import Runtime
from headrace.sql.binder import Binder
from headrace.sql.statements import CreateView, parse
from headrace.types import Field, Schema


def readers_of_change(runtime: Runtime, old: Relation, new: Relation) -> list[Relation]:
    """Those that read something of a relation that it will not have any more."""
    catalog = runtime.catalog
    altered = catalog.with_relation(new)
    return [d for d in catalog.dependents(old.name) if not _reads_same(runtime, d, catalog, altered)]


def _reads_same(runtime: Runtime, reader: Relation, catalog: Catalog, altered: Catalog) -> bool:
    if not isinstance(reader, View):
        return False
    try:
        after = _bound(runtime, reader, altered)[0]
    except HeadraceError:
        return False
    return same(optimize(_bound(runtime, reader, catalog)[0]), optimize(after))


def repointed(runtime: Runtime, old: Relation, new: Relation) -> tuple[list[Relation], list[Relation]]:
    """The views that read a relation, as they read another one in its place; and those that cannot.

    A view can if it is computed when it is queried, still binds, and has the same columns.
    """
    catalog = runtime.catalog
    found = [replace(d, read=tuple(_other(r, old, new) for r in d.read)) for d in catalog.dependents(old.name)]
    candidate = catalog.replaced(old, new, *found)
    kept = [d for d in catalog.all_dependents(old.name) if d.is_kept or not isinstance(d, View)]
    known = {d.name for d in kept}
    return found, [*kept, *(d for d in found if d.name not in known and not _fits(runtime, d, candidate))]


def _other(read: Read, old: Relation, new: Relation) -> Read:
    return read.of_another(new) if read.number == old.number else read


def _fits(runtime: Runtime, view: Relation, candidate: Catalog) -> bool:
    assert isinstance(view, View)
    try:
        columns = _bound(runtime, view, candidate)[1]
    except HeadraceError:
        return False
    return [(c.name, c.type) for c in columns] == [(c.name, c.type) for c in view.columns]


def _bound(runtime: Runtime, view: View, catalog: Catalog) -> tuple[Node, Schema]:
    statement = parse(view.text)
    assert isinstance(statement, CreateView)
    plan = Binder(catalog.as_read_by(view), runtime.analyzer(view.types)).query(statement.query)
    names = list(statement.columns) or [c.name for c in plan.output]
    return plan, tuple(Field(name, c.type) for name, c in zip(names, plan.output, strict=True))
