"""Files that say what something was at some epoch, for readers that cannot look into the database file.

What is to be read has an *owner* (a table, a state, an answer) and a *version*. Files are made once for a version, in
a folder of their own, and stay while somebody reads them or no other version was asked for: so a query that finds
nothing changed writes nothing. What is :meth:`kept <Copies.keep>` stays as long as the database is open: for readers
that nobody hears of when they have done.

>>> import tempfile
>>> def make(folder: Path) -> Path:
...     (folder / "rows").touch()
...     return folder / "rows"
>>> with tempfile.TemporaryDirectory() as folder:
...     copies = Copies(Path(folder))
...     with copies.lent("t", 1, make) as first, copies.lent("t", 1, make) as again:
...         print(first == again)
...     print(first.exists())
...     with copies.lent("t", 2, make):
...         print(first.exists())
True
True
False
"""

from __future__ import annotations

import itertools
import shutil
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from headrace.base.interrupts import Lock
from headrace.base.private import make_folder

T = TypeVar("T")
_Key = tuple[Hashable, Hashable]

_MOST = 64
"""Owners whose last files stay though nobody reads them now."""


class _Copy:
    """The files of one version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = Lock()
        self.made: Any = None
        """What their maker said of them."""
        self.readers = 0
        self.kept = False


class Copies:
    """The copies of one open database. Safe to use from many threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)
        # Held for a few steps only: what takes time is done under the lock of one copy. A value may end, and
        # be forgotten, at any step.
        self._guard = threading.RLock()
        self._copies: dict[_Key, _Copy] = {}
        self._last: dict[Hashable, Hashable] = {}
        """The version last asked for of each owner; the owner asked for last stands last."""
        self._owners: dict[int, int] = {}

    @contextmanager
    def lent(self, owner: Hashable, version: Hashable, make: Callable[[Path], T]) -> Iterator[T]:
        """What ``make`` says of the files it makes in a folder; they are there while the block runs.

        Without an owner, nobody asks for them again.
        """
        key = owner, version
        with self._guard:
            copy = self._copies.get(key)
            if copy is None:
                copy = self._copies[key] = _Copy(self._folder / f"copy-{next(self._numbers)}")
            copy.readers += 1
        try:
            with copy.lock:
                if copy.made is None:
                    copy.made = make(make_folder(copy.folder))
            if owner is not None:
                self._note(owner, version)
            yield copy.made
        finally:
            with self._guard:
                copy.readers -= 1
            self._tidy(key)

    def keep(self, owner: Hashable, version: Hashable, make: Callable[[Path], T]) -> T:
        """The same for as long as the database is open."""
        with self.lent(owner, version, make) as made:
            self._copies[owner, version].kept = True
            return made

    def owner_of(self, value: object) -> int:
        """An owner for a value that is never altered: another for each value there is, however like."""
        with self._guard:
            known = self._owners.get(id(value))
            if known is None:
                known = self._owners[id(value)] = next(self._numbers)
                weakref.finalize(value, self._forget, id(value), known).atexit = False
            return known

    def _forget(self, name: int, owner: int) -> None:
        with self._guard:
            del self._owners[name]
            version = self._last.pop(owner, None)
        self._tidy((owner, version))

    def _note(self, owner: Hashable, version: Hashable) -> None:
        """This version was asked for; those that nobody is expected to ask for any more go."""
        with self._guard:
            before = self._last.pop(owner, version)
            self._last[owner] = version
            past = [(owner, before)] if before != version else []
            while len(self._last) > _MOST:
                longest = next(iter(self._last))
                past.append((longest, self._last.pop(longest)))
        for key in past:
            self._tidy(key)

    def _tidy(self, key: _Key) -> None:
        """Remove a copy's files, unless somebody reads them, or may ask for them again."""
        with self._guard:
            copy = self._copies.get(key)
            if copy is None or copy.readers or copy.kept:
                return
            if copy.made is not None and self._last.get(key[0]) == key[1]:
                return
            del self._copies[key]
        shutil.rmtree(copy.folder, ignore_errors=True)
