"""How a materialized view is kept up to date: when, and by what work (001 ch. 6).

| Strategy | Its answer is of | How it gets there |
|---|---|---|
| IN | the epoch that is read | each change is taken in in its own commit |
| IMB | the epoch that is read, or ``staleness`` ago | changes add up; their net is taken in by a read, or when due |
| SN | its last refresh | computed anew from one epoch, each ``period`` |

The policy says by what work: AUTO chooses by what it would cost, INCREMENTAL follows changes, FULL computes anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from headrace.base.wording import span_text

AUTO, INCREMENTAL, STRICT, FULL = ("AUTO", "INCREMENTAL", "INCREMENTAL STRICT", "FULL")
IN, IMB, SN = STRATEGIES = ("IN", "IMB", "SN")
FAIL, MARK = ON_ERROR = ("fail", "mark")


@dataclass(frozen=True, slots=True)
class Refreshing:
    """What a statement says of it. Lengths of time are in microseconds."""

    policy: str = AUTO
    strategy: str = IN
    batch_rows: int | None = None
    """How many changes may add up."""
    period: int | None = None
    """For how long they may; None, until somebody reads or refreshes it."""
    staleness: int | None = None
    """How old an answer may be."""
    on_error: str = FAIL

    @property
    def is_deferred(self) -> bool:
        """Whether changes are committed without it."""
        return self.strategy != IN

    @property
    def follows_log(self) -> bool:
        """Whether it needs what was kept of its tables' changes."""
        return self.strategy == IMB

    @property
    def may_be_stale(self) -> bool:
        """Whether a read may find it as it was a while ago."""
        return self.strategy == SN or self.staleness is not None

    def __str__(self) -> str:
        """In the words of a statement.

        >>> print(Refreshing(strategy="IMB", batch_rows=10, period=2_000_000))
        REFRESH POLICY AUTO, strategy = 'IMB', batch_rows = 10, period = '2 seconds', on_error = 'fail'
        """
        said = [f"REFRESH POLICY {self.policy}", f"strategy = '{self.strategy}'"]
        if self.batch_rows is not None:
            said.append(f"batch_rows = {self.batch_rows}")
        for name, length in (("period", self.period), ("staleness", self.staleness)):
            if length is not None:
                said.append(f"{name} = '{span_text(length)}'")
        return ", ".join([*said, f"on_error = '{self.on_error}'"])

    def body(self) -> dict[str, Any]:
        """As plain data: what is not as usual."""
        return {name: value for name, value in asdict(self).items() if value != getattr(_USUAL, name)}

    @staticmethod
    def of_body(body: Mapping[str, Any]) -> Refreshing:
        known = {field.name for field in fields(Refreshing)}
        return Refreshing(**{name: value for name, value in body.items() if name in known})


_USUAL = Refreshing()
