"""Definitions that an earlier Headrace stored are brought up to date when their database is opened.

Up to format 4 a relation was known by its name alone, and what the store held for it by names made of that. Up to
format 6 a materialized view stood at every epoch, and nothing said so. They get numbers, and a row that says it, in one
commit that alters no answer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from headrace.catalog import Catalog, Relation, View, from_json, numbered, to_json
from headrace.keep.standing import STANDING, Standings
from headrace.store import Store, Transaction


def stored_catalog(store: Store) -> Catalog:
    """The catalog of what is defined."""
    with store.read() as snapshot:
        found = [from_json(d.name, d.kind, d.body) for d in snapshot.definitions()]
        if all(relation.number and not _is_nowhere(relation) for relation in found):
            return Catalog().with_relation(*found)
        stored = set(snapshot.relations())
    catalog = Catalog()
    renamed: dict[str, int] = {}
    counted: dict[str, int] = {}
    standing: list[int] = []
    for relation in found:
        names = {} if relation.number else _names(relation, stored)
        if not relation.number:
            reads = [read for name in relation.reads if (read := catalog.find(name)) is not None]
            relation = numbered(relation, store.new_number(), reads)
            owns = {role: store.new_number() for role in names} if not relation.is_table else relation.owns
            relation = replace(relation, owns=owns)
            key = relation.name.lower()
            counted |= {f"{kind} {key}": relation.number for kind in ("stream", "table", "late")}
        if _is_nowhere(relation):
            relation = replace(relation, owns={**relation.owns, STANDING: store.new_number()})
            standing.append(relation.owns[STANDING])
        renamed |= {name: relation.owns[role] for role, name in names.items()}
        catalog = catalog.with_relation(relation)

    def work(tx: Transaction) -> None:
        for name, ref in renamed.items():
            tx.rename(name, ref)
        tx.respell({**counted, **renamed})
        for ref in standing:
            Standings(ref).begin(tx)
        for relation in catalog.relations.values():
            tx.redefine(relation.name, to_json(relation))

    store.commit(work, label="definitions of an earlier Headrace")
    return catalog


def _is_nowhere(relation: Relation) -> bool:
    """Whether it is a materialized view that does not say where it stands."""
    return isinstance(relation, View) and relation.materialized and STANDING not in relation.owns


def _names(relation: Relation, stored: Collection[str]) -> dict[str, str]:
    """What the store calls what it holds for a relation of format 4, by what that is to it."""
    key = relation.name.lower()
    whole = {"rows": (f"table {key}", f"sample {key}"), "seen": (f"seen {key}",), "statics": (f"static {key}",)}
    found = {role: name for role, names in whole.items() for name in names if name in stored and _is(relation, name)}
    prefix = f"state {key} "
    states = {name.removeprefix(prefix): name for name in stored if name.startswith(prefix)}
    if relation.kind == "view":
        found |= {role: name for role, name in states.items() if " " not in role}
    return found


def _is(relation: Relation, name: str) -> bool:
    """Whether such a name is of this kind: the table ``v`` and the sample ``v`` of old are not the view ``v``."""
    kinds = {"table": "table", "sample": "sample", "seen": "sample", "static": "view"}
    return kinds[name.partition(" ")[0]] == relation.kind
