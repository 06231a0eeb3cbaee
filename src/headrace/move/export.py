"""A whole database as a ticket: definitions, states, tables, and where its attachments are.

``db.export(path)`` copies an open database as of one epoch; ``headrace.open(path)`` goes on from the copy. Spark's
checkpoints are copied with it, inside a commit: no batch can be recorded meanwhile, so every batch the copy has is
logged in its checkpoint, with its offsets, and only the last one logged may be missing. That one comes again with the
same rows and number. So an attachment made again goes on at its offsets, and each row counts once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import duckdb
import pyarrow as pa

import headrace
from headrace.base.boundary import path_given, public
from headrace.base.native import native_connection
from headrace.base.private import inside, make_folder, new_file, open_file, parse_json, parts_of, unsafe, write_text
from headrace.base.temporary import temporary_folder
from headrace.errors import SqlError, StoreError
from headrace.move.claim import CLAIM, claim_local
from headrace.move.contents import require_definitions
from headrace.move.files import unusable
from headrace.move.ticket import (
    FORMAT,
    MANIFEST,
    USED,
    Ticket,
    load_local,
    not_a_ticket,
    now,
    require_readable_plain,
    sealed,
)
from headrace.spark.published import CHECKPOINTS
from headrace.store.directory import DATABASE, LOG, MARKER, SEGMENTS, UNFINISHED, checksum, sync_file
from headrace.stream.inbox import INBOX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.database import Database

_CONTENT = "database"
_FOLDERS = (CHECKPOINTS, INBOX, SEGMENTS)
_FILES = (DATABASE, LOG, MARKER)
_COPIED = (*_FOLDERS, *_FILES)
"""What a ticket holds of a database's directory, and all that is taken out of one."""
_ROOM = 64 * 1024 * 1024
"""Bytes to leave free on the disk a ticket is opened on."""


def export(db: Database, path: str | os.PathLike[str]) -> Ticket:
    """Copy an open database into ``path``, a new or empty folder or an address pyarrow can write."""
    address = os.fspath(path)
    if "://" not in address:
        return _export(db, Path(address))
    from pyarrow import fs

    where, inside = _filesystem(address)
    with _reached(address):
        if where.get_file_info(fs.FileSelector(inside, allow_not_found=True)):
            raise _not_empty(address)
    with _written(address), temporary_folder() as near:
        found = _export(db, near / "ticket")
        try:
            fs.copy_files(str(near / "ticket" / _CONTENT), f"{inside}/{_CONTENT}", destination_filesystem=where)
            with where.open_output_stream(f"{inside}/{MANIFEST}") as out:
                out.write(sealed(found.manifest).encode())
        except BaseException:
            with suppress(OSError, pa.ArrowException):
                where.delete_dir_contents(inside, missing_dir_ok=True)
            raise
    return Ticket(address, found.manifest)


def _export(db: Database, folder: Path) -> Ticket:
    with _written(str(folder)):
        _require_empty(folder, _not_empty(str(folder)))
        content = make_folder(make_folder(folder, top=True, tighten=False) / _CONTENT, top=True)
        try:
            # No commit runs beside this one: the files stand still, and so does what the checkpoints are compared with.
            db.runtime.store.commit(lambda _: _copy(db.path, content), label="export")
            files = [[str(f.relative_to(content)), *checksum(f)] for f in sorted(content.rglob("*")) if f.is_file()]
            manifest: dict[str, Any] = {
                "format": FORMAT,
                "kind": "database",
                "id": uuid.uuid4().hex[:12],
                "made_at": now(),
                "headrace": headrace.__version__,
                "query": {"kind": f"database of {len(db.catalog.relations)} relations"},
                "states": [],
                "files": files,
                "progress": {"finished": 0, "total": 0},
            }
            part = folder / f"{MANIFEST}.part"
            write_text(part, sealed(manifest))
            sync_file(part)
            part.rename(folder / MANIFEST)
            sync_file(folder / MANIFEST)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return Ticket(str(folder), manifest)


def _copy(source: Path, target: Path) -> None:
    """Copy a database in a process of its own: this one would drop DuckDB's lock by closing its file."""
    there = [name for name in _COPIED if (source / name).exists()]
    done = subprocess.run(
        [sys.executable, "-I", "-c", _COPY, str(source), str(target), *there], capture_output=True, text=True
    )
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or ["cannot copy"])[-1])


# Within a checkpoint the log of what is done goes before the log of what was begun.
_COPY = """
import os, shutil, sys
os.umask(0o077)
source, target, *names = sys.argv[1:]
for name in names:
    if os.path.isdir(os.path.join(source, name)):
        for folder, below, files in os.walk(os.path.join(source, name)):
            below.sort()
            made = os.path.join(target, os.path.relpath(folder, source))
            os.makedirs(made, exist_ok=True)
            for file in sorted(files):
                try:
                    shutil.copyfile(os.path.join(folder, file), os.path.join(made, file))
                except FileNotFoundError:
                    pass  # purged meanwhile by its owner
    else:
        shutil.copyfile(os.path.join(source, name), os.path.join(target, name))
"""


@public
def open_ticket(
    ticket: str | os.PathLike[str] | Ticket,
    path: str | os.PathLike[str] | None = None,
    *,
    spark: SparkSession | None = None,
    trust: bool = False,
    **settings: Any,
) -> Database:
    """Open an exported database: in ``path``, a new directory, or without one where the ticket stands.

    Opened in place, the ticket is used up. Attachments go on where they were once they are made again. Whoever wrote
    the ticket decides what its views compute and which files its tables read, and nothing else (docs/security.md);
    with ``trust``, its views may call functions that run code.
    """
    from headrace.database import Database

    address = str(ticket) if isinstance(ticket, Ticket) else path_given(ticket, "a ticket")
    if "://" in address:
        if path is None:
            raise StoreError("PATH_NEEDED", f"{address} is not on this machine", hint="headrace.open(ticket, path)")
        from pyarrow import fs

        where, inside = _filesystem(address)
        with temporary_folder() as near:
            with _reached(address):
                if where.get_file_info(f"{inside}/{MANIFEST}").type == fs.FileType.NotFound:
                    raise not_a_ticket(address, where.get_file_info(inside).type != fs.FileType.NotFound)
                if isinstance(where, fs.LocalFileSystem):
                    require_readable_plain(Path(inside))  # other filesystems have no links
                fs.copy_files(inside, str(make_folder(near / "ticket")), source_filesystem=where)
            return open_ticket(near / "ticket", path, spark=spark, trust=trust, **settings)
    folder = Path(address.removeprefix("file:"))
    if folder.is_dir():
        require_readable_plain(folder)
    manifest = load_local(folder).manifest
    if manifest["kind"] != "database":
        raise StoreError("NOT_A_TICKET", f"{folder} holds a query", hint="use headrace.resume(spark, ticket)")
    held = claim_local(folder)
    try:
        if (folder / USED).exists():
            raise StoreError(
                "TICKET_USED", f"{folder} was opened in place", hint=f"it is a database now: {folder / _CONTENT}"
            )
        content, files = folder / _CONTENT, _named(manifest["files"], folder)
        with _reached(str(folder)):
            _refuse_others(folder, files)
        if path is None:
            with _reached(str(folder)):
                _check(content, files)
            if not trust:
                _vet(content, folder)
            with _written(str(folder)):
                write_text(folder / USED, json.dumps({"used_at": now()}))
            return Database(content, spark=spark, **settings)
        target = Path(path)
        exists = StoreError("DATABASE_EXISTS", f"{target} is not empty", hint="name a new or empty directory")
        with _reached(str(target)):
            _require_empty(target, exists)
        try:
            with _written(str(target), "STATE_NOT_WRITABLE"):
                _require_room(target, sum(size for size, _ in files.values()))
                _fill(make_folder(target, top=True), content, files)
            if not trust:
                _vet(target, folder)
            return Database(target, spark=spark, **settings)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
    finally:
        held.release()


_Files = dict[str, tuple[int, int]]


def _named(files: list[list[Any]], folder: Path) -> _Files:
    """Size and checksum of each file a ticket names: only files that databases have, in their places."""
    for name, *_ in files:
        first, *below = parts_of(folder, name)
        if (first not in _FOLDERS) if below else (first not in _FILES):
            raise unsafe(folder, f"names {name!r}, which is no file of a database")
    return {name: (size, check) for name, size, check in files}


def _refuse_others(folder: Path, files: _Files) -> None:
    """See that there is nothing beside what a ticket names."""
    for name in os.listdir(folder):
        if name not in (MANIFEST, USED, CLAIM, _CONTENT):
            raise _damaged(folder / name, "is not of this ticket")
    content = folder / _CONTENT
    for above, _, names in os.walk(content):
        for name in names:
            if os.path.relpath(os.path.join(above, name), content) not in files:
                raise _damaged(Path(above, name), "is not of this ticket")


def _check(content: Path, files: _Files) -> None:
    """See that a database's files are what its ticket says."""
    for name, written in files.items():
        with _is_file(content / name):
            if checksum(inside(content, name)) != written:
                raise _damaged(content / name, "was altered")


@contextmanager
def _is_file(path: Path) -> Iterator[None]:
    """A file of a ticket is read: it is there, and it is a file."""
    try:
        yield
    except FileNotFoundError:
        raise _damaged(path, "is missing") from None
    except (IsADirectoryError, NotADirectoryError):
        raise _damaged(path, "is no file") from None
    except OSError as error:
        raise unusable(str(path), _reason(error)) from None


def _damaged(file: Path, what: str) -> StoreError:
    return StoreError("TICKET_DAMAGED", f"{file} {what}", hint="take another ticket of the database")


def _fill(target: Path, content: Path, files: _Files) -> None:
    """Copy a database. Its file comes last and whole: what a copy that is killed leaves cannot be taken for one."""
    for name in sorted(files, key=lambda name: name == DATABASE):
        place = inside(target, name)
        make_folder(place.parent)
        with _is_file(content / name):
            source = open_file(inside(content, name), os.O_RDONLY)
        with open(source, "rb") as given, open(new_file(target / UNFINISHED), "wb") as copy:
            if _copied(given, copy, files[name][0]) != files[name]:
                raise _damaged(content / name, "was altered")
        (target / UNFINISHED).rename(place)


def _copied(given: BinaryIO, copy: BinaryIO, most: int) -> tuple[int, int]:
    """Copy a file, up to a little more than it should have: its size and its checksum."""
    size = check = 0
    while size <= most and (block := given.read(1 << 20)):
        copy.write(block)
        size += len(block)
        check = zlib.crc32(block, check)
    return size, check


def _require_room(target: Path, size: int) -> None:
    """Refuse what would fill the disk, before any of it is there."""
    place = next(place for place in (target, *target.absolute().parents) if place.is_dir())
    found = os.statvfs(place)
    if size + _ROOM > found.f_bavail * found.f_frsize:
        raise StoreError(
            "STATE_NOT_WRITABLE",
            f"the ticket has {size:,} bytes, and there is no room for them in {place}",
            hint="open it on a disk that has room",
        )


def _vet(directory: Path, ticket: Path) -> None:
    """Refuse a database file that holds more than tables, or views that could do more than compute.

    It is looked at in a DuckDB of its own that may read nothing else.
    """
    try:
        with native_connection(
            str(directory / DATABASE), access_mode="read_only", enable_external_access=False
        ) as connection:
            more = """
                SELECT view_name FROM duckdb_views() WHERE NOT internal
                UNION ALL SELECT function_name FROM duckdb_functions() WHERE NOT internal
            """
            for (name,) in connection.execute(more).fetchall():
                raise _damaged(directory / DATABASE, f"holds {name!r}, which Headrace did not make")
            bodies = connection.execute("SELECT body FROM book.definitions").fetchall()
            texts = [body.get("text") for body in (parse_json(body) for (body,) in bodies) if isinstance(body, dict)]
            require_definitions(str(ticket), [text for text in texts if isinstance(text, str)])
    except (duckdb.Error, ValueError, TypeError) as error:
        raise _damaged(directory / DATABASE, f"cannot be read: {str(error).splitlines()[0]}") from None
    except SqlError as error:
        raise _damaged(directory / DATABASE, f"has a view that cannot be read: {error.message}") from None


def _require_empty(folder: Path, refusal: StoreError) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise refusal


def _not_empty(where: str) -> StoreError:
    return StoreError("TICKET_EXISTS", f"{where} is not empty", hint="name a new or empty folder")


def _filesystem(address: str) -> tuple[Any, str]:
    """The filesystem of an address, and the path there."""
    from pyarrow import fs

    with _reached(address):
        where, inside = fs.FileSystem.from_uri(address)
    return where, str(inside)


@contextmanager
def _reached(where: str) -> Iterator[None]:
    """Failures to read a place have a name."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise unusable(where, _reason(error)) from None


@contextmanager
def _written(where: str, condition: str = "TICKET_NOT_WRITTEN") -> Iterator[None]:
    """Failures to write in a place have a name."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise StoreError(
            condition,
            f"{where} cannot be written: {_reason(error)}",
            hint="check the path, its permissions and the free space",
        ) from None


def _reason(error: Exception) -> str:
    return (str(getattr(error, "strerror", None) or error).splitlines() or [""])[0]
