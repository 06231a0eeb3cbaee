"""What EXPLAIN says of plans, whoever explains: where one runs and why, and its operators."""

from __future__ import annotations

from headrace.engine.places import Place
from headrace.errors import NotYetSupported
from headrace.plan.nodes import Node
from headrace.plan.render import render
from headrace.runtime import Runtime
from headrace.table import query


def place_said(runtime: Runtime, plan: Node) -> str:
    """Where a query or upper pipeline runs; why, if that is not here."""
    choice = query.place_of(runtime, plan)
    return choice.place.value if choice.place is Place.NATIVE else f"{choice.place.value}: {choice.reason}"


def by_size(runtime: Runtime) -> str:
    """Where rows are worked on as they come."""
    return f"native; in Spark tasks when the input is {_bytes(runtime.settings.task_bytes)} or more"


def indented(plan: Node) -> list[str]:
    return [f"  {line}" for line in render(plan).splitlines()]


def unexplained() -> NotYetSupported:
    """The refusal of a statement that has no plan to show."""
    known = "a query, CREATE VIEW, CREATE TABLE … AS, INSERT or COPY"
    return NotYetSupported("EXPLAIN of this statement", hint=f"EXPLAIN {known}")


def _bytes(n: int) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            break
        n //= 1024
    return f"{n} {unit}"
