"""Constants of definitions as JSON, each exactly.

>>> from headrace.types import DOUBLE, decimal
>>> [plain(v) for v in (7, True, None, "x", b"a", dt.date(2024, 2, 29), Decimal("1.50"), float("nan"))]
[7, True, None, 'x', '61', '2024-02-29', '1.50', 'nan']
>>> value_of("1.50", decimal(4, 2)), value_of("-0.0", DOUBLE)
(Decimal('1.50'), -0.0)
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from headrace.types import Default, Type

_READ: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "double": float,
    "decimal": Decimal,
    "binary": bytes.fromhex,
    "date": dt.date.fromisoformat,
    "timestamp": dt.datetime.fromisoformat,
    "timestamp_ntz": dt.datetime.fromisoformat,
}


def plain(value: Any) -> Any:
    """A literal's value as JSON has it."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def value_of(given: Any, type: Type) -> Any:
    """The value of a type that :func:`plain` wrote."""
    return given if given is None else _READ.get(type.name, lambda v: v)(given)


def default_to_json(default: Default) -> dict[str, Any]:
    return {"text": default.text, "constant": plain(default.constant), "zone": default.zone}


def default_of(body: dict[str, Any], type: Type) -> Default:
    return Default(body["text"], value_of(body["constant"], type), body["zone"])
