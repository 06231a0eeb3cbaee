"""The database file: its tables, its format version, how it is made and how it is judged at open.

Bookkeeping lives in the schema ``book``, stored relations in the schema ``state``; ``main`` stays
empty, so that no name a caller registers for a query can mean one of ours.

An epoch is one row of ``book.epochs`` that says all the epoch did: its label, the relations whose
content it altered, the source sequences it recorded, what it counted (rows that came into a stream). Rows
are appended and never updated in place; old ones are folded into ``book.changes``, ``book.sequences`` and
``book.counts`` when there are many. What is a list there is JSON text: a nested literal would take DuckDB
half as long again to insert, and a row in a table of its own a millisecond.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import duckdb

from headrace.base.native import native_connection
from headrace.base.private import protect
from headrace.errors import StoreError
from headrace.store.directory import LOG, UNFINISHED, Directory, Marker, fault_of, sync_file

FORMAT = 7
"""The version this code writes. A newer one is refused, an older one is brought up to date at open."""

_TABLES = """
CREATE SCHEMA book;
CREATE SCHEMA state;
CREATE TABLE book.meta (key VARCHAR, value VARCHAR);
CREATE TABLE book.settings (name VARCHAR, value VARCHAR);
CREATE TABLE book.definitions (name VARCHAR, key VARCHAR, kind VARCHAR, body VARCHAR, format INTEGER, epoch BIGINT);
CREATE TABLE book.relations (relation VARCHAR, arrow BLOB, format INTEGER, epoch BIGINT);
CREATE TABLE book.segments (relation VARCHAR, file VARCHAR, rows BIGINT, epoch BIGINT, bytes BIGINT, crc BIGINT);
CREATE TABLE book.deleted (relation VARCHAR, file VARCHAR, row BIGINT, epoch BIGINT);
CREATE TABLE book.epochs (epoch BIGINT, moment BIGINT, label VARCHAR, changed VARCHAR, recorded VARCHAR,
    counted VARCHAR);
CREATE TABLE book.sequences (source VARCHAR, low BIGINT, high BIGINT);
CREATE TABLE book.changes (relation VARCHAR, epoch BIGINT);
CREATE TABLE book.counts (what VARCHAR, rows BIGINT, epoch BIGINT);
CREATE TABLE book.appended (relation VARCHAR, rows BIGINT, batch BLOB, epoch BIGINT);
"""

COUNTED = """
    SELECT what, rows, epoch FROM (
        SELECT *, max(epoch) FILTER (anew) OVER (PARTITION BY what) AS start FROM (
            SELECT what, rows, epoch, false AS anew FROM book.counts
            UNION ALL
            SELECT entry.what, entry.rows, epoch, entry.anew FROM (
                SELECT epoch, unnest(from_json(counted, '[{"what": "VARCHAR", "rows": "BIGINT", "anew": "BOOLEAN"}]'))
                    AS entry
                FROM book.epochs
            )
        )
    ) WHERE rows <> 0 AND (start IS NULL OR epoch >= start)
"""
"""What each epoch added to which count, since the count was last begun anew."""

# An entry of DuckDB's log begins with its length and its checksum.
_ENTRY_HEAD = 16
# What makes a file of one format one of the next. Segments of format 1 have no checksum, and are not checked.
_UPGRADES = {
    1: "ALTER TABLE book.segments ADD COLUMN bytes BIGINT; ALTER TABLE book.segments ADD COLUMN crc BIGINT",
    2: "CREATE TABLE book.appended (relation VARCHAR, rows BIGINT, batch BLOB, epoch BIGINT)",
    3: "CREATE TABLE IF NOT EXISTS book.counts (what VARCHAR, rows BIGINT, epoch BIGINT); "
    "UPDATE book.counts SET epoch = 0; "
    "ALTER TABLE book.epochs ADD COLUMN counted VARCHAR DEFAULT '[]'",
    # Relations are known by numbers from here on; who reads the definitions gives them (``keep/earlier.py``).
    4: "SELECT 1",
    5: "CREATE TABLE book.deleted (relation VARCHAR, file VARCHAR, row BIGINT, epoch BIGINT)",
    # Materialized views say where they stand from here on (``keep/earlier.py``).
    6: "SELECT 1",
}


def microseconds() -> int:
    """Now, as epochs record it."""
    return time.time_ns() // 1000


def literal(text: str) -> str:
    """A text as an SQL literal. Literals, not parameters, in the statements of every commit:
    binding parameters doubles the cost of a one-row insert.

    >>> literal("it's"), literal(chr(0) + "a")
    ("'it''s'", "('' || chr(0) || 'a')")
    """
    quoted = "'" + text.replace("'", "''") + "'"
    # SQL text ends at a NUL, so one inside a literal has to be spelled.
    return "(" + quoted.replace("\0", "' || chr(0) || '") + ")" if "\0" in text else quoted


def identifier(name: str) -> str:
    """A name in DuckDB's quoting.

    >>> identifier('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def connect(database: Path, scratch: Path, *, memory_limit: str, threads: int) -> duckdb.DuckDBPyConnection:
    """Open the database file with the settings every connection of it shares."""
    return native_connection(
        str(database),
        threads=threads,
        memory_limit=memory_limit,
        temp_directory=str(scratch / "spill"),
        # Relations are multisets; an order is only ever what ORDER BY says.
        preserve_insertion_order=False,
        # A checkpoint stops every commit (about 7 ms per MB of log), so the writer chooses when.
        wal_autocheckpoint="1TB",
    )


def cut_torn_log(directory: Directory, error: duckdb.Error) -> bool:
    """Cut off a last entry of the log that a power cut left half written; ``False`` if that is not what is wrong.

    A file that grew and was not synced may come back with zeros at its end. DuckDB replays a log that ends
    in the middle of an entry, but not one that ends in zeros. Nothing that was synced is cut: that has no zeros
    at its end, and whether an acknowledged epoch is missing is judged afterwards.
    """
    found = re.search(r"Corrupt WAL file: entry at byte position (\d+)", str(error))
    if found is None:
        return False
    start = int(found[1]) - _ENTRY_HEAD
    with open(directory.path / LOG, "r+b") as log:
        log.seek(start)
        tail = log.read()
        written = len(tail.rstrip(b"\0"))
        if written == len(tail) or _ENTRY_HEAD + int.from_bytes(tail[:8], "little") <= written:
            return False
        log.truncate(start)
        os.fsync(log.fileno())
    return True


def create(directory: Directory, settings: Mapping[str, str], *, memory_limit: str, threads: int) -> None:
    """Make a new database file: it appears under its name whole or not at all."""
    unfinished = directory.path / UNFINISHED
    for leftover in (unfinished, Path(f"{unfinished}.wal")):
        leftover.unlink(missing_ok=True)
    database, at = uuid.uuid4().hex, microseconds()
    connection = connect(unfinished, directory.scratch, memory_limit=memory_limit, threads=threads)
    try:
        connection.execute(_TABLES)
        connection.execute("INSERT INTO book.meta VALUES ('format', ?), ('database', ?)", [str(FORMAT), database])
        for name, value in settings.items():
            connection.execute("INSERT INTO book.settings VALUES (?, ?)", [name, value])
        connection.execute(f"INSERT INTO book.epochs VALUES (0, {at}, 'created', '[]', '[]', '[]')")
        connection.execute("CHECKPOINT")
    finally:
        connection.close()
    directory.mark(Marker(database, 0, at))
    directory.sync_marker()
    protect(unfinished)
    os.rename(unfinished, directory.database)
    sync_file(directory.database)


def judge(connection: duckdb.DuckDBPyConnection, directory: Directory, *, accept_state: bool) -> Marker:
    """Refuse a file that is newer, another one, or behind what was acknowledged; else say where it stands."""
    marker = directory.marker()
    tables = "SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'book' AND table_name = 'meta'"
    if connection.execute(tables).fetchall() == [(0,)]:
        raise not_ours(directory, marker)
    meta = dict(connection.execute("SELECT key, value FROM book.meta").fetchall())
    if int(meta["format"]) > FORMAT:
        raise too_new(directory, f"has format {meta['format']}, this Headrace reads up to {FORMAT}")
    for table in ("definitions", "relations"):
        [(newest,)] = connection.execute(f"SELECT coalesce(max(format), 0) FROM book.{table}").fetchall()
        if newest > FORMAT:
            raise too_new(directory, f"has {table} of format {newest}, this Headrace reads up to {FORMAT}")
    for version in range(int(meta["format"]), FORMAT):
        connection.execute(
            f"BEGIN; {_UPGRADES[version]}; UPDATE book.meta SET value = '{version + 1}' WHERE key = 'format'; COMMIT"
        )
    [(epoch, at)] = connection.execute("SELECT max(epoch), arg_max(moment, epoch) FROM book.epochs").fetchall()
    here = Marker(meta["database"], epoch, at)
    if not accept_state and (fault := _fault(connection, here, marker)):
        condition, what = fault
        raise StoreError(
            condition,
            f"{directory.path}: {what}",
            hint="restore the whole directory from one backup, or go on from what is left with accept_state=True",
        )
    return here


def _fault(connection: duckdb.DuckDBPyConnection, here: Marker, marker: Marker | None) -> tuple[str, str] | None:
    if marker is None:
        # A creation that was cut short has no marker and nothing to lose.
        return ("STATE_FOREIGN", "the marker beside the database file is missing or damaged") if here.epoch else None
    if marker.database != here.database:
        return "STATE_FOREIGN", "the database file is not the one this directory was written with"
    if here.epoch < marker.epoch:
        return "STATE_LOST", (
            f"epoch {marker.epoch} was acknowledged, but the database file ends at epoch {here.epoch}: "
            "its write-ahead log is lost or the file is an older copy"
        )
    seen = connection.execute(f"SELECT moment FROM book.epochs WHERE epoch = {marker.epoch}").fetchall()
    if seen != [(marker.at,)]:
        return "STATE_FOREIGN", f"epoch {marker.epoch} is not the one that was acknowledged: the file went another way"
    return None


def too_new(directory: Directory, what: str) -> StoreError:
    """The refusal for what a later Headrace, or a later DuckDB, wrote."""
    return StoreError("FORMAT_TOO_NEW", f"{directory.path} {what}", hint="upgrade Headrace")


def not_ours(directory: Directory, marker: Marker | None) -> StoreError:
    """The refusal for a database file that Headrace did not write."""
    if marker is None:
        return StoreError(
            "NOT_A_DATABASE", f"{directory.database} is not a Headrace database", hint="name an empty or new directory"
        )
    return StoreError(
        "STATE_FOREIGN",
        f"{directory.database} was replaced by a file that is not a Headrace database",
        hint="restore the whole directory from one backup",
    )


def unopenable(directory: Directory, error: duckdb.Error) -> StoreError:
    """What DuckDB's refusal to open the file means."""
    text = str(error)
    if "can only read" in text:
        return too_new(directory, f"was written by a later DuckDB: {text}")
    if "not a valid DuckDB database file" in text:
        return not_ours(directory, directory.marker())
    restore = "restore the whole directory from one backup"
    if "WAL does not match" in text:
        return StoreError("STATE_FOREIGN", f"the write-ahead log belongs to another database: {text}", hint=restore)
    if "WAL" in text:
        return StoreError("STATE_LOST", f"the write-ahead log is damaged: {text}", hint=restore)
    if fault := fault_of(directory.database, error):
        return fault
    if "Could not set lock" in text or "Conflicting lock" in text:
        return StoreError("DATABASE_IN_USE", text, hint="close the program that has the file open")
    return StoreError("STATE_UNREADABLE", text, hint="check the directory, its permissions and the free space")


def pin(connection: duckdb.DuckDBPyConnection, given: Mapping[str, str]) -> dict[str, str]:
    """The settings pinned at creation; a given value that differs is refused."""
    pinned = dict(connection.execute("SELECT name, value FROM book.settings ORDER BY name").fetchall())
    for name, value in given.items():
        if pinned.get(name) != value:
            stands = f"pinned to {pinned[name]!r}" if name in pinned else "not pinned"
            raise StoreError(
                "SETTINGS_PINNED",
                f"setting {name!r} is {stands} since this database was created, {value!r} was given",
                hint="leave the setting out, or make a new database with the other value",
            )
    return pinned
