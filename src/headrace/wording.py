"""Numbers as messages say them."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """So many of something.

    >>> counted(1, "row"), counted(1_200, "row"), counted(0, "key column")
    ('1 row', '1,200 rows', '0 key columns')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
