"""A ticket: everything a suspended query needs to go on somewhere else, in one folder.

::

    ticket.json     what was asked, under which settings, over which inputs, how far it got; written last
    state/<n>/      rows of finished pipelines that are still needed, as Parquet
    claim…          held by whoever resumes it
    used.json       a resumed query has finished: the state is gone

A folder without ``ticket.json`` is no ticket, whatever else stands in it: a suspend that was killed leaves none. The
file has a checksum of itself, for filesystems that cannot put a file in place in one step.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.base.private import has_shape, parse_json, read_bytes, require_plain
from headrace.errors import StoreError
from headrace.move.files import Folder, unusable
from headrace.move.states import StageState, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANIFEST = "ticket.json"
USED = "used.json"
STATE = "state"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Ticket:
    """A written ticket. It prints as its address, and can be given to ``headrace.resume`` as it is."""

    address: str
    manifest: dict[str, Any]

    def __str__(self) -> str:
        return self.address

    def __fspath__(self) -> str:
        return self.address.removeprefix("file:")

    @property
    def id(self) -> str:
        return str(self.manifest["id"])

    @property
    def states(self) -> list[StageState]:
        return [StageState.of_json(each) for each in self.manifest["states"]]

    @property
    def bytes(self) -> int:
        """What the state takes, or the database."""
        files: list[tuple[str, int, int]] = self.manifest.get("files", [])
        return sum(state.bytes for state in self.states) + sum(size for _, size, _ in files)

    @property
    def made_at(self) -> datetime:
        return datetime.fromisoformat(self.manifest["made_at"])

    @property
    def progress(self) -> tuple[int, int]:
        """Pipelines finished, and all."""
        found = self.manifest["progress"]
        return int(found["finished"]), int(found["total"])

    @property
    def query(self) -> str:
        """What was asked, for people: its SQL, or what kind of program it is."""
        asked = self.manifest["query"]
        return str(asked.get("sql") or f"a {asked['kind']}")


def sealed(manifest: dict[str, Any]) -> str:
    """The manifest as text, with a checksum of itself.

    >>> manifest = {"format": 1, "kind": "database", "id": "x", "made_at": now(), "query": {"kind": "database"},
    ...             "states": [], "files": [], "progress": {"finished": 0, "total": 0}}
    >>> opened(sealed(manifest), "here")["id"]
    'x'
    >>> for text in (sealed(manifest).replace("x", "y"), sealed(manifest | {"files": "all"})):
    ...     try:
    ...         opened(text, "here")
    ...     except StoreError as error:
    ...         print(error.condition)
    TICKET_DAMAGED
    TICKET_DAMAGED
    """
    body = json.dumps(manifest, sort_keys=True)
    return json.dumps({"checksum": zlib.crc32(body.encode()), "ticket": manifest}, indent=1, sort_keys=True)


def opened(text: str | bytes | None, where: str) -> dict[str, Any]:
    """The manifest in a text, if it is whole and of a format known here."""
    manifest: dict[str, Any] = {}
    try:
        found = parse_json(text or "")
        manifest = found["ticket"]
        whole = zlib.crc32(json.dumps(manifest, sort_keys=True).encode()) == found["checksum"]
        whole = whole and has_shape(manifest, {"format": int})
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole or (manifest["format"] <= FORMAT and not _is_complete(manifest)):
        raise StoreError(
            "TICKET_DAMAGED", f"{where}/{MANIFEST} is not as it was written", hint="take another ticket of the query"
        )
    if manifest["format"] > FORMAT:
        raise StoreError(
            "FORMAT_TOO_NEW",
            f"{where} has ticket format {manifest['format']}, newer than {FORMAT}",
            hint="resume it with the version of Headrace that wrote it",
        )
    return manifest


_STATE_SHAPE = {
    "identity": str,
    "holding": str,
    "index": str,
    "operator": str,
    "folder": str,
    "types": [str],
    "files": [(str, int, int)],
    "rows": int | None,
}
_SHAPE = {
    "kind": str,
    "id": str,
    "made_at": str,
    "query": {"kind": str},
    "states": [_STATE_SHAPE],
    "progress": {"finished": int, "total": int},
}
_OF_QUERY = {
    "spark": str,
    "to": str | None,
    "plan": {"identity": str, "cached": [list]},
    "settings": dict,
    "inputs": {"files": [list], "versions": dict, "unchecked": [str]},
    "progress": {"seconds": int | float},
}


def _is_complete(manifest: dict[str, Any]) -> bool:
    """Whether a manifest has all it should, each of its kind: whoever wrote it may have had other ideas."""
    kind = {"query": _OF_QUERY, "database": {"files": [(str, int, int)]}}.get(str(manifest.get("kind")))
    if kind is None or not has_shape(manifest, _SHAPE) or not has_shape(manifest, kind):
        return False
    try:
        datetime.fromisoformat(manifest["made_at"]).timestamp()
        for state in manifest["states"]:
            StageState.of_json(state)
            if any(stored(parse_json(text)) is None for text in state["types"]):
                return False
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, AttributeError):
        return False
    if manifest["kind"] == "database":
        return True
    asked, inputs = manifest["query"], manifest["inputs"]
    texts = [*manifest["settings"].items(), *inputs["versions"].items(), ("", asked.get("pickle") or "")]
    return (
        all(isinstance(each, str) for pair in texts for each in pair)
        and isinstance(asked.get("sql"), str | None)
        and (asked["kind"] != "query" or has_shape(asked, {"sql": str}))
        and (asked["kind"] != "function" or has_shape(asked, {"pickle": str}))
        and asked["kind"] in ("query", "function", "DataFrame")
        and all(has_shape(file, (str, int, int, str)) or has_shape(file, (str, int, int)) for file in inputs["files"])
        and all(isinstance(step, int) for path in manifest["plan"]["cached"] for step in path)
    )


def new_folder(spark: SparkSession, address: str) -> Folder:
    """A folder for one ticket, which was empty or not there; what stands there already is not touched."""
    folder = Folder(spark, address)
    if not folder.names():
        folder.make(private=True)
        if folder.create(f"{MANIFEST}.part"):
            return folder
    what = "is a ticket already" if folder.exists(MANIFEST) else "is not empty"
    raise StoreError("TICKET_EXISTS", f"{folder.address} {what}", hint="name a new or empty folder")


def load(spark: SparkSession, address: str | Ticket) -> tuple[Folder, Ticket]:
    """The ticket in a folder; an error says why there is none that can be resumed."""
    folder = Folder(spark, str(address))
    if folder.local is not None and folder.local.is_dir():
        require_readable_plain(folder.local)
    found = ticket_in(folder)
    if folder.exists(USED):
        raise StoreError(
            "TICKET_USED",
            f"{folder.address} was resumed, and that query is done",
            hint="resume with keep=True to use a ticket more than once",
        )
    return folder, found


def ticket_in(folder: Folder) -> Ticket:
    """The ticket in a folder, used or not."""
    if not folder.exists(MANIFEST):
        raise not_a_ticket(folder.address, folder.exists())
    return Ticket(folder.address, opened(folder.read(MANIFEST), folder.address))


def not_a_ticket(where: str, exists: bool) -> StoreError:
    what = "is not a ticket" if exists else "does not exist"
    return StoreError("NOT_A_TICKET", f"{where} {what}", hint="a suspend or export that was cut short leaves no ticket")


def load_local(folder: Path) -> Ticket:
    """The ticket in a folder of this machine, used or not, read without Spark."""
    try:
        text = read_bytes(folder / MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        raise not_a_ticket(str(folder), folder.exists()) from None
    except OSError as error:
        raise unusable(str(folder), error.strerror or str(error)) from None
    return Ticket(str(folder), opened(text, str(folder)))


def require_readable_plain(folder: Path) -> None:
    """Refuse a folder with links in it: whoever opens a ticket writes in its folder, and reads all of it."""
    try:
        require_plain(folder)
    except OSError as error:
        raise unusable(str(folder), error.strerror or str(error)) from None


def finish(folder: Folder) -> None:
    """Mark a ticket as used and give its space back."""
    folder.publish(USED, json.dumps({"used_at": now()}))
    folder.remove(STATE)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
