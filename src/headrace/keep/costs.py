"""What it would take to bring a view up to date, either way: by following the change, or anew from all rows.

Policy AUTO takes the cheaper one, for each batch of changes. What a change costs follows its rows; what computing anew
costs follows the rows of the tables. How many seconds a row takes is learnt from what it took last, for each view:
they differ a hundredfold. Until then it is a guess. Small changes are followed without a look: to ask costs more.

>>> costs = Costs()
>>> costs.prefers_anew(10, 1_000_000), costs.prefers_anew(900_000, 1_000_000)
(False, True)
>>> costs.followed(900_000, 0.9)  # a microsecond a row
>>> costs.prefers_anew(900_000, 1_000_000)
True
>>> costs.computed(1_000_000, 30.0)
>>> costs.prefers_anew(900_000, 1_000_000)
False
"""

from __future__ import annotations

from dataclasses import dataclass

MANY = 1_000
"""Changed rows from which on it is asked which way is cheaper, and learnt what a row takes."""
_GUESS_CHANGED = 20e-6
"""Seconds a changed row takes: between 5 of a grouping and 40 of joins of three tables (docs/benchmarks)."""
_GUESS_READ = 0.3e-6
"""Seconds a row of a table takes to be joined and grouped anew."""
_NEWEST = 0.5
"""How much the last time counts for."""


@dataclass
class Costs:
    """Of one view. Threads may use it at once: what is learnt is a guess all the same."""

    per_changed: float = _GUESS_CHANGED
    per_read: float = _GUESS_READ

    def following(self, changed: int) -> float:
        """The seconds that following so many changed rows may take."""
        return changed * self.per_changed

    def anew(self, rows: int) -> float:
        """The seconds that computing anew over so many rows may take."""
        return rows * self.per_read

    def asks(self, changed: int) -> bool:
        """Whether so many changed rows are worth the question."""
        return changed >= MANY

    def prefers_anew(self, changed: int, rows: int) -> bool:
        return self.asks(changed) and self.anew(rows) < self.following(changed)

    def even(self, rows: int) -> int:
        """From how many changed rows on computing anew over so many rows is cheaper."""
        return max(MANY, int(self.anew(rows) / self.per_changed) + 1)

    def followed(self, changed: int, seconds: float) -> None:
        """So many changed rows took so long."""
        if changed >= MANY:
            self.per_changed += _NEWEST * (seconds / changed - self.per_changed)

    def computed(self, rows: int, seconds: float) -> None:
        """So many rows took so long."""
        if rows >= MANY:
            self.per_read += _NEWEST * (seconds / rows - self.per_read)
