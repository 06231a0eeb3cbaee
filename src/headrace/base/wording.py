"""Numbers and values as messages say them."""

from __future__ import annotations


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
