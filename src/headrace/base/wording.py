"""Numbers and values as messages say them."""

from __future__ import annotations

from decimal import Decimal

_UNITS = (("day", 86_400_000_000), ("hour", 3_600_000_000), ("minute", 60_000_000))


def counted(number: int, thing: str) -> str:
    """So many of something.

    >>> counted(1, "row"), counted(1_200, "row"), counted(0, "key column")
    ('1 row', '1,200 rows', '0 key columns')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def shown(value: object) -> str:
    """What a caller gave, for a message: whatever it is, and however long.

    >>> shown("x"), len(shown("x" * 1000))
    ("'x'", 103)
    >>> class Mute:
    ...     __repr__ = None
    >>> shown(Mute())
    'a Mute'
    """
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:100]}..."


def span_text(microseconds: int) -> str:
    """A length of time as a person would write it.

    >>> span_text(604_800_000_000), span_text(5_400_000_000), span_text(1)
    ('7 days', '1 hour 30 minutes', '0.000001 seconds')
    """
    parts: list[str] = []
    for unit, size in _UNITS:
        count, microseconds = divmod(microseconds, size)
        if count:
            parts.append(f"{count} {unit}{'' if count == 1 else 's'}")
    if microseconds:
        seconds = (Decimal(microseconds) / 1_000_000).normalize()
        parts.append(f"{seconds:f} second{'' if seconds == 1 else 's'}")
    return " ".join(parts)
