"""How a materialized view is refreshed, in the words of CREATE and ALTER: ``REFRESH POLICY``, ``SCHEDULE``, ``WITH``.

What a statement says is laid over what held before, and each part of it is checked: none is without effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from headrace.catalog.refreshing import AUTO, FULL, IMB, IN, INCREMENTAL, ON_ERROR, SN, STRATEGIES, STRICT, Refreshing
from headrace.errors import NotYetSupported, Position, SqlError
from headrace.sql.cursor import Cursor
from headrace.sql.lexer import Kind
from headrace.sql.literals import interval_text
from headrace.sql.options import Option, span_of

OPTIONS = ("strategy", "batch_rows", "period", "staleness", "on_error")
_EXTERNAL = ("SC", "ISC", "SCI", "SCIMB")
_LATER = ("ISN",)
_FOUNDED = {"SNI": IN, "SNIMB": IMB}
"""What goes on once a view is founded as of an epoch, and the changes since are taken in: as every view is here."""
_USUAL_BATCH = 100_000
_MOST_ROWS = (1 << 62) - 1


@dataclass(frozen=True)
class Clauses:
    """What stands before AS."""

    policy: tuple[str, Position] | None = None
    every: tuple[int, Position] | None = None
    """Microseconds."""


@dataclass(frozen=True)
class Wanted:
    """What a statement says of how a view is refreshed."""

    options: Sequence[Option] = ()
    clauses: Clauses = field(default_factory=Clauses)

    @property
    def position(self) -> Position | None:
        """Where it says the first of it."""
        said = (self.clauses.policy, self.clauses.every)
        return next((at for _, at in filter(None, said)), self.options[0].position if self.options else None)

    def over(self, before: Refreshing, *, is_new: bool) -> Refreshing:
        """What holds with it: of another strategy than before, with none of its terms."""
        given = _once(self.options)
        policy = self.clauses.policy[0] if self.clauses.policy is not None else before.policy
        strategy = before.strategy
        if "strategy" in given:
            strategy, chosen = _strategy(given["strategy"])
            policy = chosen if chosen is not None and self.clauses.policy is None else policy
        elif is_new and self.clauses.every is not None:
            strategy = IMB
        found = replace(before, policy=policy)
        if strategy != before.strategy:
            found = Refreshing(policy, strategy, on_error=before.on_error)
        if strategy == IMB and found.batch_rows is None:
            found = replace(found, batch_rows=_USUAL_BATCH)
        for name in ("batch_rows", "period", "staleness"):
            if name in given:
                _refuse_unless_it_has(strategy, name, given[name].position)
        if self.clauses.every is not None:
            every, at = self.clauses.every
            _refuse_unless_it_has(strategy, "period", at)
            if "period" in given:
                raise _conflict("a period beside SCHEDULE EVERY", at, "leave one out: they say the same")
            found = replace(found, period=every)
        if "period" in given:
            found = replace(found, period=span_of(given["period"], "10 minutes"))
        if "staleness" in given:
            found = replace(found, staleness=span_of(given["staleness"], "1 second"))
        if "batch_rows" in given:
            found = replace(found, batch_rows=_rows(given["batch_rows"]))
        if "on_error" in given:
            found = replace(found, on_error=_word(given["on_error"], ON_ERROR))
        if found.strategy == SN and found.policy in (INCREMENTAL, STRICT):
            hint = "SN computes anew; IMB is incremental"
            raise _conflict(f"REFRESH POLICY {found.policy} with strategy SN", self.position, hint)
        return found


def refresh_clauses(read: Cursor) -> Clauses:
    """``REFRESH POLICY …`` and ``SCHEDULE EVERY …``, in either order, if they are next."""
    found = Clauses()
    while True:
        at = read.position()
        if found.policy is None and read.take("REFRESH", "POLICY"):
            found = replace(found, policy=(_policy(read), at))
        elif found.every is None and read.word() in ("SCHEDULE", "TRIGGER"):
            found = replace(found, every=(_every(read), at))
        else:
            return found


def _policy(read: Cursor) -> str:
    for policy in (STRICT, INCREMENTAL, FULL, AUTO):
        if read.take(*policy.split()):
            return policy
    return read.fail("AUTO, INCREMENTAL, INCREMENTAL STRICT or FULL")


def _every(read: Cursor) -> int:
    at = read.position()
    if read.take("SCHEDULE"):
        read.take("REFRESH")
    if not read.take("EVERY"):
        what = f"{'TRIGGER' if read.word() == 'TRIGGER' else f'SCHEDULE {read.word()}'} of a materialized view"
        hint = "write SCHEDULE EVERY 10 MINUTES; without it, changes are taken in as they are made"
        raise NotYetSupported(what, position=at, hint=hint)
    if read.kind() is not Kind.NUMBER:
        read.fail("a number and a unit of time")
    text = f"{read.tokens[read.at].text} {read.word(1)}"
    weeks = read.word(1) in ("WEEK", "WEEKS")
    length = interval_text(f"{read.tokens[read.at].text} days" if weeks else text)
    if length is None or length.type.name != "interval_time" or length.value <= 0:
        raise SqlError(
            "INVALID_SCHEDULE",
            f"SCHEDULE EVERY {text}",
            position=at,
            hint="give a number of seconds, minutes, hours, days or weeks: SCHEDULE EVERY 10 MINUTES",
        )
    read.at += 2
    return int(length.value) * (7 if weeks else 1)


def _once(options: Sequence[Option]) -> dict[str, Option]:
    given: dict[str, Option] = {}
    for option in options:
        if option.name not in OPTIONS:
            raise SqlError(
                "VIEW_OPTION_UNKNOWN",
                f"a materialized view has no option {option.name}",
                position=option.position,
                hint=f"it has {', '.join(OPTIONS)}",
            )
        if given.setdefault(option.name, option) is not option:
            raise SqlError(
                "VIEW_REPEATED_OPTION", f"{option.name} is given twice", position=option.position, hint="leave one out"
            )
    return given


def _strategy(option: Option) -> tuple[str, str | None]:
    """The strategy, and the policy if it says that too."""
    given = _text(option).upper()
    if given in _EXTERNAL:
        raise SqlError(
            "STRATEGY_NEEDS_EXTERNAL_BASE",
            f"strategy {given} is for tables without snapshots, which somebody else writes",
            position=option.position,
            hint=f"tables of this database have snapshots: {given.replace('C', 'N')} does the same over them",
        )
    if given in _LATER:
        raise NotYetSupported(f"strategy {given}", position=option.position, hint="write IN, IMB or SN")
    if given == AUTO:
        return IN, AUTO
    given = _FOUNDED.get(given, given)
    if given not in STRATEGIES:
        raise option.refuse("INVALID_STRATEGY", f"it is {', '.join(STRATEGIES)} or AUTO")
    return given, None


def _refuse_unless_it_has(strategy: str, name: str, position: Position) -> None:
    """An error for a term that a strategy has not."""
    if strategy == IN:
        said = "SCHEDULE EVERY or period" if name == "period" else name
        hint = "leave it out, or let changes add up: strategy = 'IMB'"
        raise _conflict(f"{said} with strategy IN, which takes each change in at once", position, hint)
    if strategy == SN and name != "period":
        hint = "leave it out: an answer is as old as the last refresh"
        raise _conflict(f"{name} with strategy SN, which computes anew each period", position, hint)


def _conflict(what: str, position: Position | None, hint: str) -> SqlError:
    return SqlError("VIEW_OPTIONS_CONFLICT", what, position=position, hint=hint)


def _rows(option: Option) -> int:
    given = option.value.name if isinstance(option.value, exp.Literal) and not option.value.is_string else ""
    if not given.isdigit() or not 0 < int(given) <= _MOST_ROWS:
        raise option.refuse("INVALID_BATCH_ROWS", "give how many changes may add up, 1 or more: batch_rows = 100000")
    return int(given)


def _text(option: Option) -> str:
    return option.value.name if isinstance(option.value, exp.Literal | exp.Column) else ""


def _word(option: Option, words: Sequence[str]) -> str:
    given = _text(option).lower()
    if given not in words:
        raise option.refuse(f"INVALID_{option.name.upper()}", f"it is {' or '.join(map(repr, words))}")
    return given
