"""The inbox: how other processes hand batches to the one that has the database open.

::

    inbox/owner.lock            held (flock) while some process has the database open
    inbox/bell/<query>          "look at this query": made by a sink, removed by the owner before it looks
    inbox/<query>/lock          held while a batch is put, taken or withdrawn
    inbox/<query>/head.json     the last batch put, and the run of the query that put it
    inbox/<query>/<n>.json      a batch: its stream, its files; *being there* is what makes it committed
    inbox/<query>/<n>-*.parquet rows of batch n, written and synced before <n>.json is
    inbox/<query>/<n>.failed    why the owner could not take batch n

A batch's manifest comes into being whole, by a rename, after its files are synced: a crash
leaves a batch that is there or one that is not. The owner commits (query, n) in the epoch that
holds the rows and only then deletes; a batch met again is known by that pair. Rows are handed
over and not partial states, because only the owner knows which views there are when it takes
them, and the views may change while a batch waits.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.base.private import has_shape, inside, lock, make_folder, new_file, open_file, read_json, write_text
from headrace.engine.failures import packed, restored
from headrace.errors import DataError, HeadraceError, StoreError
from headrace.store.directory import DATABASE, is_locked, sync_file

INBOX = "inbox"
JOB = "job-"
"""How the name of a tray starts that a batch job filled: it puts one batch and never comes again."""
_PAST_RUNS = 100
INBOX_BYTES = 1 << 30
"""Bytes that may wait in an inbox nobody takes from, unless its writer says otherwise."""
_PATIENCE = 600.0
"""Seconds a sink waits for the owner to take a batch before it puts the next."""
_SIGN_PATIENCE = 30.0
"""Seconds an owner waits to put up its sign; others hold it for an instant."""
_HINT = "let it go on, or end it; nothing that waits in the inbox is lost"


@dataclass(frozen=True)
class Manifest:
    """A committed batch: which stream it is for, and its files."""

    stream: str
    files: tuple[str, ...]
    rows: int
    bytes: int
    run: str


@dataclass(frozen=True)
class InboxHead:
    """The last batch a query put."""

    run: str
    batch: int
    rows: int
    stream: str
    past: tuple[str, ...] = ()
    """Earlier runs of the query; they were ended by the start of a later one."""


class Tray:
    """The part of an inbox that belongs to one streaming query."""

    def __init__(self, database: Path, query: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9-]{1,100}", query):
            raise DataError("INVALID_QUERY_ID", f"{query!r} is no query id", hint="Spark's ids are UUIDs")
        self.query = query
        self.database = database
        self.folder = database / INBOX / query

    # The sink's side

    def new_file(self, batch: int) -> Path:
        """A fresh path for rows of a batch."""
        return make_folder(self.folder) / f"{batch}-{uuid.uuid4().hex}.parquet"

    @staticmethod
    def keep(file: Path) -> int:
        """Make a file of rows durable: its size.

        0 if the owner has swept it away meanwhile. Then its batch is in, and ``put`` takes it for the replay it is.
        """
        try:
            sync_file(file)
            return file.stat().st_size
        except FileNotFoundError:
            return 0

    def put(self, batch: int, manifest: Manifest, *, limit: int) -> bool:
        """Commit a batch; ``False`` if it was put before: then this is a replay, and its files are not needed.

        ``limit`` bounds the bytes that wait while nobody has the database open.
        """
        with self.locked():
            head = self._head()
            if head is not None:
                self._require_succession(head, batch, manifest)
            if head is not None and batch <= head.batch:
                self.discard(manifest.files)
                fresh = False
            else:
                if not owned(self.database):
                    self._require_room(manifest, limit)
                # An error written for an earlier attempt must not be taken for an answer to this one.
                for stale in self.folder.glob("*.failed"):
                    stale.unlink(missing_ok=True)
                write_whole(self._manifest(batch), asdict(manifest))
                fresh = True
            past = () if head is None else head.past if head.run == manifest.run else (*head.past, head.run)
            newest = head if head is not None and batch <= head.batch else None
            write_whole(
                self.folder / "head.json",
                asdict(
                    InboxHead(
                        manifest.run,
                        newest.batch if newest else batch,
                        newest.rows if newest else manifest.rows,
                        manifest.stream,
                        past[-_PAST_RUNS:],
                    )
                ),
            )
        self.ring()
        return fresh

    def hand_over(self, batch: int, manifest: Manifest, *, limit: int = INBOX_BYTES) -> bool:
        """Put a batch, and wait until it is in the views, or safe in the inbox of a database nobody has open.

        ``False`` if it was put before. The owner's error if it could not take it; then it is not there any more.
        """
        fresh = self.put(batch, manifest, limit=limit)
        # The owner looks through the inbox after it has put up its sign: if there is no sign now, it will find this.
        pause = 0.002
        while self.waiting(batch) and owned(self.database):
            failure = self.failure(batch)
            if failure is not None and self.withdraw(batch):
                raise failure
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
        return fresh

    def _require_succession(self, head: InboxHead, batch: int, manifest: Manifest) -> None:
        """One run of a query after the other, each going on where the last ended."""
        rival = manifest.run in head.past
        replayed = manifest.run != head.run and batch == head.batch and head.rows >= 0
        if rival or (replayed and manifest.rows != head.rows):
            self.discard(manifest.files)
            raise DataError(
                "QUERY_ID_IN_USE",
                f"another run of query {self.query} feeds {head.stream}: it has put batch {head.batch}"
                + ("" if rival else f" with {head.rows:,} rows, and this run has {manifest.rows:,} for it"),
                hint="a checkpoint belongs to one running query: stop the other one, or start this one "
                "with a checkpoint of its own",
            )
        if manifest.stream.lower() != head.stream.lower():
            self.discard(manifest.files)
            raise DataError(
                "QUERY_CHANGED_STREAM",
                f"query {self.query} feeds {head.stream}, and would now feed {manifest.stream}",
                hint="start it with a new checkpoint",
            )

    def _require_room(self, manifest: Manifest, limit: int) -> None:
        waiting = sum(put.bytes for tray in trays(self.database) for _, put in tray.batches())
        if waiting and waiting + manifest.bytes > limit:
            self.discard(manifest.files)
            raise DataError(
                "INBOX_FULL",
                f"{waiting:,} bytes wait in {self.database / INBOX}, and nobody has the database open to take them",
                hint="open it with headrace.connect, then start this query again: nothing is lost; "
                'or allow more with .option("inboxBytes", …)',
            )

    def withdraw(self, batch: int) -> bool:
        """Take a batch back that the owner refused; ``False`` if it was taken after all."""
        with self.locked():
            manifest = self._read(batch)
            if manifest is None:
                return False
            head = self._head()
            if head is not None and head.batch == batch:
                # So that the replay of this batch is put, and not taken for one that is in.
                write_whole(self.folder / "head.json", asdict(head) | {"batch": batch - 1, "rows": -1})
            self.remove(batch, manifest)
            return True

    def failure(self, batch: int) -> HeadraceError | None:
        """Why this batch, or one before it that it waits for, could not be taken."""
        for path in sorted(self.folder.glob("*.failed"), key=_number):
            if _number(path) <= batch:
                with suppress(FileNotFoundError):
                    try:
                        return restored(read_json(path))
                    except ValueError:
                        return self._damaged(path)
        return None

    def waiting(self, batch: int) -> bool:
        return self._manifest(batch).exists()

    def rename_stream(self, old: str, new: str) -> None:
        """The stream it feeds has another name now."""
        with self.locked():
            head = self._head()
            if head is not None and head.stream.lower() == old.lower():
                write_whole(self.folder / "head.json", asdict(head) | {"stream": new})

    def ring(self) -> None:
        """Have the owner look at this tray."""
        ring(self.database, self.query)

    # The owner's side

    def batches(self) -> list[tuple[int, Manifest]]:
        """The batches that wait, in order."""
        found = []
        for path in sorted(self.folder.glob("*.json"), key=_number):
            if path.name != "head.json" and (manifest := self._read(_number(path))) is not None:
                found.append((_number(path), manifest))
        return found

    def remove(self, batch: int, manifest: Manifest) -> None:
        """Forget a batch that is in, or was withdrawn."""
        self._manifest(batch).unlink(missing_ok=True)
        self._failed(batch).unlink(missing_ok=True)
        self.discard(manifest.files)

    def sweep(self, batch: int) -> None:
        """Remove what tasks that failed or ran twice left for batches up to one that is in."""
        for path in self.folder.glob("*.parquet"):
            if _number(path) <= batch:
                path.unlink(missing_ok=True)

    def retire(self) -> None:
        """Remove the tray of a job whose batch is in."""
        if self.query.startswith(JOB) and not self.batches():
            shutil.rmtree(self.folder, ignore_errors=True)

    def fail(self, batch: int, error: HeadraceError) -> None:
        """Say why a batch could not be taken; it stays."""
        write_whole(self._failed(batch), packed(error))

    def discard(self, files: Sequence[str]) -> None:
        for file in files:
            with suppress(StoreError):  # what is not of this tray is not to be removed
                inside(self.folder, file).unlink(missing_ok=True)

    def files(self, manifest: Manifest) -> list[Path]:
        """Where the files of a batch are: in the tray, whatever they are called."""
        return [inside(self.folder, file) for file in manifest.files]

    @contextmanager
    def locked(self, patience: float = _PATIENCE) -> Iterator[None]:
        path = make_folder(self.folder) / "lock"
        fd = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            lock(fd, path, patience, _HINT)
            yield
        finally:
            os.close(fd)

    def _manifest(self, batch: int) -> Path:
        return self.folder / f"{batch}.json"

    def _failed(self, batch: int) -> Path:
        return self.folder / f"{batch}.failed"

    def _read(self, batch: int) -> Manifest | None:
        body = self._parsed(self._manifest(batch), _MANIFEST)
        return None if body is None else Manifest(**{**body, "files": tuple(body["files"])})

    def _head(self) -> InboxHead | None:
        body = self._parsed(self.folder / "head.json", _HEAD)
        return None if body is None else InboxHead(**{**body, "past": tuple(body["past"])})

    def _parsed(self, path: Path, shape: dict[str, Any]) -> dict[str, Any] | None:
        """What a file of the tray says, if there is one."""
        try:
            body = read_json(path)
        except FileNotFoundError:
            return None
        except ValueError:
            raise self._damaged(path) from None
        if not has_shape(body, shape):
            raise self._damaged(path)
        return {key: body[key] for key in shape}

    @staticmethod
    def _damaged(path: Path) -> DataError:
        return DataError(
            "INBOX_DAMAGED",
            f"{path} cannot be read",
            hint="remove it, and start the query from an older checkpoint",
        )


_MANIFEST = {"stream": str, "files": [str], "rows": int, "bytes": int, "run": str}
_HEAD = {"run": str, "batch": int, "rows": int, "stream": str, "past": [str]}


class Ownership:
    """The sign, for other processes, that this one has the database open."""

    def __init__(self, database: Path) -> None:
        make_folder(bells(database))
        fd = open_file(_owner(database), os.O_RDWR | os.O_CREAT)
        try:
            # Others hold it for an instant, to see whether it is held: wait for them.
            lock(fd, _owner(database), _SIGN_PATIENCE)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        self.release = weakref.finalize(self, os.close, fd)
        _held.add(self)


_held: weakref.WeakSet[Ownership] = weakref.WeakSet()


def _forget() -> None:
    # A forked child shares the open file: it would keep the sign up after its parent is gone.
    for ownership in list(_held):
        ownership.release()


os.register_at_fork(after_in_child=_forget)


def owned(database: Path) -> bool:
    """Whether some process has the database open."""
    return is_locked(_owner(database))


def require_database(path: str | None) -> Path:
    """The directory an option names, if it holds a database."""
    if not path:
        raise StoreError(
            "NO_DATABASE", "no database is named", hint='say where it is: .option("path", "plant.hr"), or .load(path)'
        )
    place = Path(os.path.abspath(path.removeprefix("file://").removeprefix("file:")))
    if not (place / DATABASE).exists():
        raise StoreError(
            "NO_DATABASE", f"there is no Headrace database in {place}", hint="make it first, with headrace.connect"
        )
    return place


def bells(database: Path) -> Path:
    return database / INBOX / "bell"


def ring(database: Path, name: str) -> None:
    """Have the owner look at what ``name`` stands for."""
    new_file(make_folder(bells(database)) / name)


def trays(database: Path) -> list[Tray]:
    """The trays of all queries that ever put something."""
    folders = [p.parent for p in (database / INBOX).glob("*/head.json")]
    return [Tray(database, folder.name) for folder in sorted(folders)]


def rename_in_inbox(database: Path, old: str, new: str) -> None:
    """A stream has another name now: the queries that feed it go on under that."""
    for tray in trays(database):
        tray.rename_stream(old, new)


def write_whole(path: Path, body: Any, *, sync: bool = True, staging: Path | None = None) -> None:
    """Write a small file so that it is there whole or as it was before; text, or a value as JSON.

    ``sync=False`` for what may be missing after a power cut. It is written in ``staging``, else beside ``path``,
    and renamed: a process killed in between leaves it there.
    """
    new = (staging or path.parent) / f".{path.name}.{uuid.uuid4().hex}"
    write_text(new, body if isinstance(body, str) else json.dumps(body))
    if sync:
        sync_file(new)
    new.rename(path)
    if sync:
        sync_file(path)


def _number(path: Path) -> int:
    digits = re.match(r"\d+", path.name)
    return int(digits[0]) if digits else -1


def _owner(database: Path) -> Path:
    return database / INBOX / "owner.lock"
