"""Where a database is, as people write it: a directory of this machine."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from pathlib import Path

from headrace.base.boundary import path_given
from headrace.errors import StoreError
from headrace.store.directory import DATABASE, MARKER, unwritable

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")


def place_of(given: object) -> Path:
    """The directory that is meant, by a str or os.PathLike; a named error if there can be none.

    >>> place_of("s3://bucket/plant.hr")
    Traceback (most recent call last):
    ...
    headrace.errors.StoreError: [NOT_A_LOCAL_PATH] s3://bucket/plant.hr is an address, and a database is a directory \
of this machine. Hint: open it where its disk is; db.export(address) puts a copy there
    """
    text = path_given(given, "a database")
    if not text:
        raise StoreError("PATH_NOT_FOUND", "the path is empty", hint="connect() without one makes a temporary database")
    if found := _ADDRESS.match(text):
        plain = "/" + text[found.end() :]
        local = f"write the path alone: {plain}" if found[1].lower() == "file" else None
        raise StoreError(
            "NOT_A_LOCAL_PATH",
            f"{text} is an address, and a database is a directory of this machine",
            hint=local or "open it where its disk is; db.export(address) puts a copy there",
        )
    place = Path(os.path.abspath(os.path.expanduser(text)))
    _refuse_unnameable(place)
    try:
        if place.exists() or place.parent.is_dir():
            return place
        what = "is not a directory" if place.parent.exists() else "does not exist"
    except OSError as error:
        raise unwritable(place, error) from None
    raise StoreError(
        "PATH_NOT_FOUND",
        f"{place} cannot be made: {place.parent} {what}",
        hint=f"check the spelling, or make the directory first: mkdir -p {place.parent}",
    )


def _refuse_unnameable(place: Path) -> None:
    """DuckDB takes what follows a ? for options and a backslash for a slash: its log would lie elsewhere."""
    said = next((f"the character {c}" for c in "?\\" if c in str(place)), None)
    try:
        str(place).encode()
    except UnicodeEncodeError:  # of the working directory: what is given has been looked at
        said = "a name that is not UTF-8"
    if said is not None:
        raise StoreError("INVALID_PATH", f"{place}: a database's path cannot have {said}", hint="choose another one")


def require_database(place: Path) -> None:
    """Refuse a place where there is none yet: more often than not that is a slip of the hand."""
    if _is_database(place) or (place.exists() and not place.is_dir()) or (place.is_dir() and any(place.iterdir())):
        return  # what is there instead is said by whoever opens it
    siblings = [p.name for p in place.parent.iterdir() if _is_database(p)]
    near = get_close_matches(place.name, siblings, n=1)
    others = f"{', '.join(sorted(siblings)[:3])} is there; " if siblings else ""
    beside = f"did you mean {near[0]}? " if near else others
    raise StoreError("PATH_NOT_FOUND", f"there is no database {place}", hint=f"{beside}--create makes a new one")


def _is_database(place: Path) -> bool:
    return (place / DATABASE).exists() or (place / MARKER).exists()
