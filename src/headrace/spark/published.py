"""What other processes may know of an open database: its catalog, its rows, and the changes of its views.

DuckDB lets no second process look into the file, so the owner publishes. The catalog stands in
``catalog.json``: a line for all there was when the database was opened, and one for each definition since. Rows are
published when somebody asks:
a reader leaves a question in ``inbox/asks/`` and rings; the owner writes a Parquet file named by the
epoch it belongs to, and answers with its name. If nobody has the database open, the reader opens it
itself for as long as the answer takes.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.base.parquet_files import write_parquet
from headrace.base.private import has_shape, inside, make_folder, open_file, parse_json, read_bytes, read_json
from headrace.catalog import Relation, Table, file_name, from_json, to_json
from headrace.engine.failures import packed, restored
from headrace.errors import CatalogError, DataError, HeadraceError, NotYetSupported, StoreError
from headrace.store import Snapshot
from headrace.store.directory import SCRATCH, remove
from headrace.stream.inbox import INBOX, owned, ring, write_whole
from headrace.table.frames import copy_table

if TYPE_CHECKING:
    from headrace.database import Database
    from headrace.spark.changes import Chain

CATALOG = "catalog.json"
PUBLISHED = "published"
CHECKPOINTS = "checkpoints"
CHANGES = "changes"
KEEP_SECONDS = 3600.0
"""How long a published file that is not the newest stays, for whoever still reads it."""
_ASK = "ask-"
_RELATION = {"name": str, "kind": str, "body": dict, "made": int}


@dataclass(frozen=True)
class KnownRelation:
    """A relation as other processes know it, and the epoch it was made in."""

    relation: Relation
    made: int

    @property
    def key(self) -> str:
        """A file name for the relation that one of the same name, made later, does not share."""
        return key_of(self.relation.born or self.relation.name, self.made)


def key_of(name: str, made: int) -> str:
    """The key of a relation made in an epoch.

    >>> key_of("Low Stock", 7)
    'low%20stock-e7'
    """
    return f"{file_name(name.lower())}-e{made}"


def publish_catalog(db: Database, *, whole: bool = False) -> None:
    """Tell other processes what has changed of the definitions; or all of them, where none were told yet.

    To be called while no definition can change. What was kept for relations that are gone goes, too.
    """
    path, told = db.path / CATALOG, db.runtime.untold
    forsaken = {key_of(*relation) for relation in db.runtime.forsaken}
    db.runtime.untold, db.runtime.forsaken = [], []
    try:
        if whole or not path.exists():
            kept = write_catalog(db)
        else:
            _append(path, told)
            kept = None
    except BaseException as error:
        path.unlink(missing_ok=True)  # rather no catalog than a stale one
        if not isinstance(error, OSError):
            raise
        db.runtime.tidying.note("telling other processes of the definitions", error)
        return
    if kept is None and not forsaken:
        return
    for folder in (db.path / CHECKPOINTS, db.path / CHANGES):
        for entry in folder.iterdir() if folder.exists() else ():
            if entry.name in forsaken or (kept is not None and entry.name not in kept):
                remove(entry)


def write_catalog(db: Database) -> set[str]:
    """Write the catalog as one line, if it does not say that; the keys of what there is."""
    path = db.path / CATALOG
    with db.runtime.store.read() as snapshot:
        found = snapshot.definitions()
    body = [{"name": d.name, "kind": d.kind, "body": d.body, "made": d.epoch} for d in found]
    text = json.dumps({"zone": db.runtime.settings.time_zone, "relations": body}) + "\n"
    if not _says(path, text):
        write_whole(path, text, sync=False, staging=db.path / SCRATCH)
    return {key_of(d.body.get("born") or d.name, d.epoch) for d in found}


def _append(path: Path, told: Sequence[tuple[str, Relation | None, int]]) -> None:
    """Add a line for each change, in one write: the whole catalog may be a thousand times as long."""
    lines = [
        {"dropped": name}
        if relation is None
        else {"name": name, "kind": relation.kind, "body": to_json(relation), "made": made}
        for name, relation, made in told
    ]
    if lines:
        with open(open_file(path, os.O_WRONLY | os.O_APPEND), "ab") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines).encode())


def _says(path: Path, text: str) -> bool:
    try:
        return read_bytes(path) == text.encode()
    except (FileNotFoundError, StoreError):  # what is no file is replaced by one
        return False


def zone_of(database: Path) -> str:
    """The time zone pinned in the database."""
    zone: str = _catalog(database)["zone"]
    return zone


def definition(database: Path, name: str) -> KnownRelation:
    """The relation of that name."""
    found = [d for d in _catalog(database)["relations"] if d["name"].lower() == name.lower()]
    if not found:
        raise CatalogError(
            "TABLE_OR_VIEW_NOT_FOUND",
            f"{database} has no relation {name}",
            hint="SHOW TABLES, STREAMS, VIEWS list them",
        )
    try:
        return KnownRelation(from_json(found[0]["name"], found[0]["kind"], found[0]["body"]), found[0]["made"])
    except (TypeError, KeyError, ValueError, AttributeError):
        raise _damaged_catalog(database) from None


def readable(database: Path, name: str) -> KnownRelation:
    """The relation of that name, which must have rows."""
    found = definition(database, name)
    if found.relation.is_stream:
        raise CatalogError(
            "WRONG_COMMAND_FOR_OBJECT_TYPE",
            f"{found.relation.name} is a stream and keeps no rows",
            hint="CREATE VIEW over it, and read the view",
        )
    return found


def _catalog(database: Path) -> dict[str, Any]:
    """The first line, with what later ones changed; a last one that has no end is being written."""
    try:
        first, *later = read_bytes(database / CATALOG).split(b"\n")
        found: dict[str, Any] = parse_json(first)
        changes = [parse_json(line) for line in later[:-1]]
    except FileNotFoundError:
        raise StoreError(
            "NO_CATALOG", f"{database} was never opened by this version", hint="open it once with headrace.connect"
        ) from None
    except ValueError:
        raise _damaged_catalog(database) from None
    if not has_shape(found, {"zone": str, "relations": [_RELATION]}):
        raise _damaged_catalog(database)
    relations = {d["name"].lower(): d for d in found["relations"]}
    for change in changes:
        if has_shape(change, {"dropped": str}):
            relations.pop(change["dropped"].lower(), None)
        elif has_shape(change, _RELATION):
            relations[change["name"].lower()] = change
        else:
            raise _damaged_catalog(database)
    return {**found, "relations": list(relations.values())}


def _damaged_catalog(database: Path) -> StoreError:
    return StoreError(
        "CATALOG_DAMAGED",
        f"{database / CATALOG} is not as it was written",
        hint="open the database with headrace.connect: that writes it anew",
    )


# The owner's side


def answer(db: Database, ask: str) -> None:
    """Answer the question a bell named."""
    path = _asks(db.path) / f"{ask.removeprefix(_ASK)}.json"
    try:
        question = read_json(path)
    except FileNotFoundError:
        return
    except ValueError:
        question = None
    try:
        if not has_shape(question, {"what": str, "relation": str}):
            raise DataError("INBOX_DAMAGED", f"{path} is no question", hint="ask again")
        reply = {"ok": reply_to(db, question)}
    except HeadraceError as error:
        reply = {"error": json.loads(packed(error))}
    path.unlink(missing_ok=True)
    write_whole(path.with_suffix(".reply"), reply, sync=False)


def reply_to(db: Database, question: dict[str, str]) -> dict[str, Any]:
    """The rows of a relation as a published file, or how far its changes go."""
    from headrace.spark import changes

    found = readable(db.path, question["relation"])
    if question["what"] == "changes":
        return {"epoch": _advanced(db, changes.Chain(db.path, found.key), found.relation)}

    def of_table(snapshot: Snapshot, table: Table) -> tuple[int, Path]:
        return snapshot.epoch, _published(db.path, found.key, snapshot.epoch, partial(copy_table, snapshot, table))

    copied = db.over_table(found.relation.name, of_table)
    if copied is None:
        epoch, rows = db.rows_at(found.relation.name)
        copied = epoch, publish(db.path, found.key, epoch, rows)
    return {"file": copied[1].name, "epoch": copied[0]}


def _advanced(db: Database, chain: Chain, relation: Relation) -> int:
    """The head of a chain, brought up to now: by what was kept of a table's changes, or by comparing rows."""
    from headrace.table import history

    now: Relation = db.catalog.get(relation.name)
    if (table := history.of(now)) is not None:
        with db.runtime.store.read() as snapshot:
            head = chain.head()
            if not head:
                return chain.extend(*history.whole(snapshot, table, db.keeper.answer(snapshot, now)))
            if history.keeps_from(snapshot, table, head):
                return chain.extend(*history.changed(snapshot, table, head))
    return chain.advance(*db.rows_at(relation.name))


def is_ask(bell: str) -> bool:
    return bell.startswith(_ASK)


def publish(database: Path, key: str, epoch: int, rows: pa.Table) -> Path:
    """Rows of an epoch as a file of ``published/``; older ones go when nobody can be reading them any more."""
    return _published(database, key, epoch, partial(write_parquet, rows, row_group_size=262_144))


def _published(database: Path, key: str, epoch: int, write: Callable[[Path], object]) -> Path:
    folder = make_folder(database / PUBLISHED)
    path = folder / f"{key}-{epoch}.parquet"
    if not path.exists():
        _write_whole(path, write)
    sweep(database, but=path)
    return path


def write_rows(path: Path, rows: pa.Table) -> None:
    _write_whole(path, partial(write_parquet, rows, row_group_size=262_144))


def _write_whole(path: Path, write: Callable[[Path], object]) -> None:
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        write(new)
        new.rename(path)
    finally:
        new.unlink(missing_ok=True)


def sweep(database: Path, but: Path | None = None) -> None:
    """Remove published files that have stood for long, and answers nobody fetched."""
    now = time.time()
    for folder in (database / PUBLISHED, _asks(database)):
        for path in folder.iterdir() if folder.exists() else ():
            try:
                old = now - path.stat().st_mtime > KEEP_SECONDS
            except FileNotFoundError:
                continue
            if old and path != but:
                remove(path)


# The reader's side


def ask(database: Path, what: str, relation: str) -> dict[str, Any]:
    """What the owner answers; without one, this process opens the database for the answer."""
    while True:
        if owned(database):
            reply = _ask_owner(database, {"what": what, "relation": relation})
            if reply is not None:
                return reply
        else:
            try:
                return _answer_here(database, {"what": what, "relation": relation})
            except StoreError as error:
                if error.condition != "DATABASE_IN_USE":
                    raise
        time.sleep(0.05)


def _answer_here(database: Path, question: dict[str, str]) -> dict[str, Any]:
    from headrace.database import Database
    from headrace.engine.session import Session

    Session.refusal = NotYetSupported(
        f"{question['relation']} needs Spark SQL, which a process that Spark started cannot use",
        hint=f"open {database} with headrace.connect in a process of its own, and read while it is open",
    )
    try:
        with Database(database) as db:
            return reply_to(db, question)
    finally:
        Session.refusal = None


def _ask_owner(database: Path, question: dict[str, str]) -> dict[str, Any] | None:
    """The owner's answer; ``None`` if it went away first."""
    name = uuid.uuid4().hex
    folder = make_folder(_asks(database))
    write_whole(folder / f"{name}.json", question, sync=False)
    reply = folder / f"{name}.reply"
    ring(database, f"{_ASK}{name}")
    pause = 0.002
    while not reply.exists():
        if not owned(database):
            (folder / f"{name}.json").unlink(missing_ok=True)
            if not reply.exists():
                return None
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    try:
        body = read_json(reply)
        if has_shape(body, {"error": dict}):
            raise restored(body["error"])
        if not has_shape(body, {"ok": {"epoch": int}}):
            raise ValueError("no answer")
    except ValueError:
        raise DataError("INBOX_DAMAGED", f"{reply} is no answer", hint="ask again") from None
    finally:
        reply.unlink(missing_ok=True)
    found: dict[str, Any] = body["ok"]
    return found


def published_file(database: Path, name: object) -> Path:
    """Where a file is that the owner said it has published."""
    return inside(database / PUBLISHED, name)


def _asks(database: Path) -> Path:
    return database / INBOX / "asks"
