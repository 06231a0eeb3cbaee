"""Which level of consistency views reached: none, convergence, weak, strong or complete (001 §4.2.1).

A run is told as a :class:`Log`. Its *base* is one or more timelines, each the versions of one thing in the order in
which they were made. A base state is a *cut*: one version of each timeline. Cuts are ordered version by version, so two
of them may be without an order. Where a database commits whole epochs, its tables together are one timeline; where only
each record has an order, as in 001's key-value store, each record is one.

Its *reads* each show some views at once, and say when they began and ended. A read comes before another if it had ended
when the other began. A *view* is a function of base rows, slow and obvious.

* **Convergence**: what is read when everything has come to rest is the views of the last base state.
* **Weak**: and each read is the views of some cut, of one cut for all views it reads.
* **Strong**: and there is such a cut for each read so that of two reads, one before the other, the later has a cut that
  is not less: nothing is ever seen to go back.
* **Complete**: and the cuts that are seen go from the first base state to the last by one version at a time, none left
  out. A version that changes no view is seen in its neighbour. Asked only of reads that come one after another.

A level for one view is that of the reads as if they had read nothing else. Views may each be strong, and not be strong
together, if a query ever sees them at different base states.

None of the four says how old a read may be, so :func:`stale` says it: reads that began when a version was acknowledged
and do not show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from itertools import pairwise, product
from typing import Any

Bag = Counter[Any]
View = Callable[[Sequence[Any]], Bag]
Cut = tuple[int, ...]


class Level(IntEnum):
    NONE = 0
    CONVERGENCE = 1
    WEAK = 2
    STRONG = 3
    COMPLETE = 4


@dataclass(frozen=True)
class Read:
    """What one query showed."""

    views: Mapping[str, Bag]
    began: float
    ended: float


@dataclass(frozen=True)
class Log:
    """One run."""

    timelines: Sequence[Sequence[Sequence[Any]]]
    """Of each timeline its versions, the one at the beginning first; a version is base rows."""
    views: Mapping[str, View]
    reads: Sequence[Read]
    """The last one is of when everything had come to rest."""
    acknowledged: Sequence[float] = ()
    """Of a base with one timeline: when each version was known to be there."""

    def only(self, view: str) -> Log:
        """The same as if nothing but one view had been read."""
        reads = [replace(read, views={view: read.views[view]}) for read in self.reads if view in read.views]
        return replace(self, views={view: self.views[view]}, reads=reads)

    @cached_property
    def last(self) -> Cut:
        return tuple(len(versions) - 1 for versions in self.timelines)

    @cached_property
    def _shown(self) -> dict[tuple[Cut, str], Bag]:
        return {}

    def shown(self, cut: Cut, view: str) -> Bag:
        """What a view is at a cut."""
        if (cut, view) not in self._shown:
            rows = [row for versions, n in zip(self.timelines, cut, strict=True) for row in versions[n]]
            self._shown[cut, view] = self.views[view](rows)
        return self._shown[cut, view]

    def explains(self, cut: Cut, read: Read) -> bool:
        return all(self.shown(cut, name) == rows for name, rows in read.views.items())

    def cuts(self, above: Cut) -> Iterator[Cut]:
        """All cuts that are not less than one, each after those below it."""
        ranges = [range(low, top + 1) for low, top in zip(above, self.last, strict=True)]
        return iter(sorted(product(*ranges), key=sum))


@dataclass(frozen=True)
class Verdict:
    """The levels that a run reached, and what kept it from the next one."""

    together: Level
    alone: Mapping[str, Level]
    why: str


def judged(log: Log) -> Verdict:
    """The level of all views together, and of each alone."""
    together, why = level(log)
    return Verdict(together, {name: level(log.only(name))[0] for name in log.views}, why)


def level(log: Log) -> tuple[Level, str]:
    """The level of all that a log reads, and why it is no higher."""
    if not log.explains(log.last, log.reads[-1]):
        wanted = {name: log.shown(log.last, name) for name in log.reads[-1].views}
        return Level.NONE, f"at the end {log.reads[-1].views} is read, not {wanted}"
    nothing: Cut = (0,) * len(log.timelines)
    for number, read in enumerate(log.reads):
        if not any(log.explains(cut, read) for cut in log.cuts(nothing)):
            return Level.CONVERGENCE, f"no base state gives what read {number} shows: {read.views}"
    stuck = _stuck(log)
    if stuck is not None:
        return Level.WEAK, f"read {stuck} shows a state from before what had been read: {log.reads[stuck].views}"
    missing = _missing(log)
    return (Level.COMPLETE, "") if missing is None else (Level.STRONG, missing)


def _stuck(log: Log) -> int | None:
    """The first read without a cut, where each has one that is not less than those of the reads before it.

    The least of such cuts leave most to what comes later. A base with several timelines may have several least ones:
    all are tried.
    """
    order = sorted(range(len(log.reads)), key=lambda n: (log.reads[n].ended, log.reads[n].began))
    furthest = 0
    least: dict[tuple[int, Cut], list[Cut]] = {}

    def choices(number: int, above: Cut) -> list[Cut]:
        if (number, above) not in least:
            found: list[Cut] = []
            for cut in log.cuts(above):
                if not any(_reaches(other, cut) for other in found) and log.explains(cut, log.reads[number]):
                    found.append(cut)
                    if len(log.timelines) == 1:
                        break
            least[number, above] = found
        return least[number, above]

    chosen: dict[int, Cut] = {}
    open_: list[Iterator[Cut]] = []

    def begin(place: int) -> None:
        read = log.reads[order[place]]
        before = [cut for n, cut in chosen.items() if log.reads[n].ended < read.began]
        above = tuple(max(parts) for parts in zip((0,) * len(log.timelines), *before, strict=True))
        open_.append(iter(choices(order[place], above)))

    begin(0)
    while open_:
        place = len(open_) - 1
        furthest = max(furthest, place)
        cut = next(open_[-1], None)
        if cut is None:
            open_.pop()
            chosen.pop(order[place - 1], None) if place else None
            continue
        chosen[order[place]] = cut
        if len(open_) == len(order):
            return None
        begin(len(open_))
    return order[furthest]


def _reaches(low: Cut, high: Cut) -> bool:
    return all(a <= b for a, b in zip(low, high, strict=True))


def _missing(log: Log) -> str | None:
    """A base state that no read shows; None if one after another is shown."""
    reads = sorted(log.reads, key=lambda read: read.began)
    if any(one.ended >= other.began for one, other in pairwise(reads)):
        return "some reads ran at once, so what one of them missed another may have shown"
    nothing: Cut = (0,) * len(log.timelines)
    if not log.explains(nothing, reads[0]):
        return "the first base state is not shown"
    reached = {(nothing, 0)}
    waiting = [(nothing, 0)]
    while waiting:
        cut, number = waiting.pop()
        if cut == log.last and number == len(reads) - 1:
            return None
        for at in (number, number + 1):
            steps = [cut] if at > number else []
            steps += [(*cut[:i], n + 1, *cut[i + 1 :]) for i, n in enumerate(cut) if n < log.last[i]]
            for step in steps:
                if at < len(reads) and (step, at) not in reached and log.explains(step, reads[at]):
                    reached.add((step, at))
                    waiting.append((step, at))
    furthest = max((cut for cut, _ in reached), key=sum)
    return f"after {furthest} a base state is not shown"


def stale(log: Log) -> list[int]:
    """The reads that show no cut as new as what was acknowledged when they began."""
    assert len(log.timelines) == 1
    found = []
    for number, read in enumerate(log.reads):
        least = max((n for n, at in enumerate(log.acknowledged) if at < read.began), default=0)
        if not any(log.explains(cut, read) for cut in log.cuts((least,))):
            found.append(number)
    return found
