"""What is suspended: the tickets in a folder of this machine, or at an address Spark can read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import StoreError
from headrace.move.files import Folder
from headrace.move.ticket import STATE, USED, Ticket, load_local, ticket_in
from headrace.statement.result import Result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STATES = {"NOT_A_TICKET": "not finished", "TICKET_DAMAGED": "damaged"}


@dataclass(frozen=True, slots=True)
class TicketPlace:
    """A folder that may hold a ticket."""

    address: str
    ticket: Callable[[], Ticket]
    has: Callable[[str], bool]
    """Whether a file or folder of this name stands in it."""


def here(folder: Path) -> Iterator[TicketPlace]:
    """What is in a folder of this machine; Spark is not needed."""
    if not folder.is_dir():
        raise _no_folder(str(folder))
    for each in sorted(folder.iterdir()):
        yield TicketPlace(str(each), partial(load_local, each), partial(_stands, each))


def _stands(folder: Path, name: str) -> bool:
    return (folder / name).exists()


def there(spark: SparkSession, address: str) -> Iterator[TicketPlace]:
    """What is at an address."""
    folder = Folder(spark, address)
    names = folder.folders()
    if names is None:
        raise _no_folder(folder.address)
    for name in names:
        each = Folder(spark, f"{folder.address}/{name}")
        yield TicketPlace(each.address, partial(ticket_in, each), each.exists)


def listed(places: Iterable[TicketPlace]) -> Result:
    """The tickets among these places, newest first."""
    import pyarrow as pa

    found: list[tuple[float, dict[str, Any]]] = []
    for place in places:
        made = 0.0
        row: dict[str, Any] = {"ticket": place.address, "bytes": None, "done": None, "age": None, "query": None}
        try:
            ticket = place.ticket()
            made = ticket.made_at.timestamp()
            row |= {
                "state": "used" if place.has(USED) else "ready",
                "bytes": ticket.bytes,
                "done": "{} of {}".format(*ticket.progress) if ticket.progress[1] else None,
                "age": _age(time.time() - made),
                "query": " ".join(ticket.query.split()),
            }
        except StoreError as error:
            if error.condition == "NOT_A_TICKET" and not place.has(STATE):
                continue
            row["state"] = _STATES.get(error.condition, "not readable")
        found.append((made, row))
    rows = [row for _, row in sorted(found, key=lambda pair: -pair[0])]
    names = ("ticket", "state", "bytes", "done", "age", "query")
    types = [pa.string(), pa.string(), pa.int64(), pa.string(), pa.string(), pa.string()]
    return Result(pa.Table.from_pylist(rows, pa.schema(list(zip(names, types, strict=True)))))


def _no_folder(where: str) -> StoreError:
    return StoreError("PATH_NOT_FOUND", f"there is no folder {where}", hint="headrace run --tickets says where")


def _age(seconds: float) -> str:
    """An age in one unit.

    >>> _age(59), _age(3 * 3600), _age(90_000)
    ('59 s', '3 h', '1 d')
    """
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds / size)} {unit}"
    return f"{max(0, int(seconds))} s"
