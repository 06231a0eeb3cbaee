"""What the writer remembers between commits, so that a commit need not ask the database.

Two questions come with every batch: *was this (source, sequence) committed before?* and *since
which epoch is this relation's content unchanged?* Both answers are durable in the epoch rows;
the ledger keeps them in memory, small: sequences as runs without gaps, changes as epoch lists
cut back to what open snapshots can still ask about.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from headrace.store.durability import Durability

if TYPE_CHECKING:
    from headrace.store.reading import Segment

CATALOG = ""
"""The name the catalog itself changes under; no relation may have it."""

_TRIM_AT = 256

RECENT_ROWS, RECENT_TOTAL, RECENT_FEW = 32_768, 4_000_000, 8_192
"""Appended rows of a relation that are also kept in memory; once all relations have the second, only the third."""


MARKS = r"^(rewrite|filling|bareness|files) of "
"""What the names of notes about a relation begin with, as a pattern: they say how its rows are kept."""


def rewrite_of(relation: str) -> str:
    """The name a relation's rows are rewritten under, whether or not that alters its content."""
    return f"rewrite of {relation}"


def filling_of(relation: str) -> str:
    """The name under which rows go into a relation's own table, not into batches beside it."""
    return f"filling of {relation}"


def bareness_of(relation: str) -> str:
    """The name under which a relation is made without a table of its own."""
    return f"bareness of {relation}"


def files_of(relation: str) -> str:
    """The name under which a relation gets files and loses some."""
    return f"files of {relation}"


class Runs:
    """A set of integers as sorted runs without gaps: dense sequences cost one run, however many.

    >>> runs = Runs([(1, 3), (7, 7)])
    >>> for n in (5, 4, 6): runs.add(n)
    >>> list(runs), 4 in runs, 8 in runs
    ([(1, 7)], True, False)
    """

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        for low, high in sorted(runs):
            if self._highs and low <= self._highs[-1] + 1:
                self._highs[-1] = max(high, self._highs[-1])
            else:
                self._lows.append(low)
                self._highs.append(high)

    def __contains__(self, n: int) -> bool:
        at = bisect_right(self._lows, n) - 1
        return at >= 0 and n <= self._highs[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._lows, self._highs, strict=True)

    def add(self, n: int) -> None:
        """Put one integer in, joining it to the runs it touches."""
        at = bisect_right(self._lows, n)
        if at and n <= self._highs[at - 1]:
            return
        joins_left = at > 0 and self._highs[at - 1] == n - 1
        joins_right = at < len(self._lows) and self._lows[at] == n + 1
        if joins_left and joins_right:
            self._highs[at - 1] = self._highs[at]
            del self._lows[at], self._highs[at]
        elif joins_left:
            self._highs[at - 1] = n
        elif joins_right:
            self._lows[at] = n
        else:
            self._lows.insert(at, n)
            self._highs.insert(at, n)


class _Held(NamedTuple):
    """All batches of a relation after an epoch, for whoever reads in the epoch it was made or later."""

    since: int
    batches: tuple[tuple[int, pa.Table], ...] = ()
    made: int = 0

    @property
    def rows(self) -> int:
        return sum(rows.num_rows for _, rows in self.batches)


class Recent:
    """The newest batches appended to relations: what a query that comes often asks for, without a statement.

    Like changes, they stand here before the database commits their epoch, and snapshots ask with their own.

    >>> recent, batch = Recent(), pa.table({"n": [1]})
    >>> recent.note(7, {"t": batch}, set()); recent.note(8, {"t": batch}, set()); recent.note(9, {}, {"t"})
    >>> recent.note(10, {"t": batch}, set())
    >>> recent.between("t", 8, 20) is None, len(recent.between("t", 9, 20)), recent.between("t", 9, 9)
    (True, 1, [])
    >>> recent.note(11, {}, set(), {"u"}); recent.note(12, {"u": batch}, set())
    >>> len(recent.between("u", -1, 20))
    1
    """

    def __init__(self) -> None:
        # Replaced as a whole, for readers look at any time.
        self._held: dict[str, _Held] = {}
        self._rows = 0

    def note(
        self,
        epoch: int,
        batches: Mapping[str, pa.Table],
        rewritten: Collection[str],
        made: Collection[str] = (),
    ) -> None:
        """An epoch is about to append these, after it has rewritten some relations' rows and made some anew."""
        for relation in made:
            self._hold(relation, _Held(-1, made=epoch))
        for relation in rewritten:
            self._hold(relation, _Held(epoch))
        for relation, rows in batches.items():
            if relation in rewritten:
                continue
            before = self._held.get(relation, _Held(epoch - 1))
            since, held = before.since, [*before.batches, (epoch, rows)]
            room = RECENT_ROWS if self._rows < RECENT_TOTAL else RECENT_FEW
            room -= sum(r.num_rows for _, r in held)
            while held and room < 0:
                room += held[0][1].num_rows
                since = held.pop(0)[0]
            self._hold(relation, _Held(since, tuple(held), before.made))

    def withdraw(self, epoch: int, relations: Collection[str]) -> None:
        """The epoch was not committed."""
        for relation in relations:
            held = self._held.get(relation, _Held(epoch))
            self._hold(relation, held._replace(batches=tuple(b for b in held.batches if b[0] != epoch)))

    def between(self, relation: str, since: int, epoch: int) -> list[pa.Table] | None:
        """The batches after ``since`` up to ``epoch``; None if they are not all here."""
        held = self._held.get(relation)
        if held is None or since < held.since or epoch < held.made:
            return None
        return [rows for at, rows in held.batches if since < at <= epoch]

    def _hold(self, relation: str, held: _Held) -> None:
        self._rows += held.rows - self._held.get(relation, _Held(0)).rows
        self._held[relation] = held


class Ledger:
    """Committed sequences and change epochs; written by the writer thread, read by any.

    Changes of the epoch being committed stand here *before* the database commits it: a snapshot
    asks with its own epoch, so it cannot see them early, and it never sees them late.

    >>> ledger = Ledger(0, [], [])
    >>> ledger.announce(1, {"t"}); ledger.settle(1, [("kafka", 40)])
    >>> ledger.announce(2, {"t"}); ledger.withdraw(2, {"t"})
    >>> ledger.last_change("t", 5), ledger.last_change("t", 0), ledger.committed("kafka", 40)
    (1, 0, True)
    """

    def __init__(
        self, epoch: int, sequences: Iterable[tuple[str, int, int]], changes: Iterable[tuple[str, int]]
    ) -> None:
        self.epoch = epoch
        """The last epoch committed; the database may be one ahead while a commit returns."""
        self.durability = Durability(epoch)
        self.recent = Recent()
        self.columns: dict[str, frozenset[str]] = {}
        """The columns of segments that were asked for theirs."""
        self.manifests: dict[str, tuple[int, Sequence[Segment]]] = {}
        """The files of relations that were asked for theirs, and the epoch since when they are these."""
        self.sound: set[str] = set()
        """Segments whose bytes were found to be those that were written."""
        by_source: dict[str, list[tuple[int, int]]] = {}
        for source, low, high in sequences:
            by_source.setdefault(source, []).append((low, high))
        self._sequences = {source: Runs(runs) for source, runs in by_source.items()}
        self._changes: dict[str, list[int]] = {relation: [at] for relation, at in changes}

    def committed(self, source: str, sequence: int) -> bool:
        """Whether a committed epoch recorded this sequence of this source."""
        runs = self._sequences.get(source)
        return runs is not None and sequence in runs

    def last_change(self, relation: str, epoch: int) -> int:
        """The last epoch up to ``epoch`` that altered the relation's content; 0 if none did."""
        history = self._changes.get(relation, [])
        at = bisect_right(history, epoch)
        return history[at - 1] if at else 0

    def next_change(self, relation: str, epoch: int) -> int:
        """The first epoch after ``epoch`` that altered the relation's content, which one did; the next one if that is
        not remembered."""
        history = self._changes.get(relation, [])
        at = bisect_right(history, epoch)
        return history[at] if 0 < at < len(history) else epoch + 1

    def announce(self, epoch: int, changed: Iterable[str]) -> None:
        """Note what the epoch about to be committed alters."""
        for relation in changed:
            self._changes.setdefault(relation, []).append(epoch)

    def withdraw(self, epoch: int, changed: Iterable[str]) -> None:
        """Undo :meth:`announce`: the epoch was not committed."""
        for relation in changed:
            history = self._changes[relation]
            assert history[-1] == epoch
            history.pop()

    def settle(self, epoch: int, recorded: Iterable[tuple[str, int]]) -> None:
        """The announced epoch is committed, with the sequences it recorded."""
        for source, sequence in recorded:
            self._sequences.setdefault(source, Runs()).add(sequence)
        self.epoch = epoch

    def trim(self, oldest: int, changed: Iterable[str]) -> None:
        """Forget changes no snapshot at ``oldest`` or later can ask about."""
        for relation in changed:
            history = self._changes.get(relation, [])
            if len(history) > _TRIM_AT:
                # Replaced, not cut in place: a reader may be searching the list just now.
                self._changes[relation] = history[max(bisect_right(history, oldest) - 1, 0) :]

    def sequences(self) -> list[tuple[str, int, int]]:
        """All committed sequences as (source, low, high)."""
        return [(source, low, high) for source, runs in self._sequences.items() for low, high in runs]

    def changes(self) -> list[tuple[str, int]]:
        """The last change of every relation."""
        return [(relation, history[-1]) for relation, history in self._changes.items() if history]
