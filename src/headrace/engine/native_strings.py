"""The native list's functions of text, exact to Spark's: what is not the same for all text is guarded or left to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.engine.native_text import NotNative, cannot, text_literal
from headrace.plan.exprs import Call, Literal

if TYPE_CHECKING:
    from headrace.engine.native_sql import Printer

Build = Callable[[Call, "Printer"], str]


def _only_text(call: Call) -> None:
    if any(arg.type.name == "binary" for arg in call.args):
        raise NotNative(f"{call.fn} of binary has no native form")


def _concat(call: Call, printer: Printer) -> str:
    if not call.args:
        return "''"
    return "(" + " || ".join(printer(arg) for arg in call.args) + ")"


def _length(call: Call, printer: Printer) -> str:
    name = "octet_length" if call.args[0].type.name == "binary" else "length"
    return f"{name}({printer(call.args[0])})::INTEGER"


def _letter_case(name: str) -> Build:
    def build(call: Call, printer: Printer) -> str:
        text = printer(call.args[0])
        # Spark maps by full Unicode rules (ß to SS), DuckDB letter by letter: only ASCII is the same.
        guard = cannot(f"{name} of text that is not ASCII")
        return f"CASE WHEN strlen({text}) <> length({text}) THEN {guard} ELSE {name}({text}) END"

    return build


def _substring(call: Call, printer: Printer) -> str:
    _only_text(call)
    text, position = printer(call.args[0]), call.args[1]
    length = call.args[2] if len(call.args) == 3 else None
    if isinstance(position, Literal) and position.value is not None and position.value >= 0:
        start = max(position.value, 1)
        if length is None:
            return f"substring({text}, {start})"
        if isinstance(length, Literal) and length.value is not None:
            return f"substring({text}, {start}, {max(length.value, 0)})"
    at = f"({printer(position)})::BIGINT"
    # A negative position counts from the end, and may lie before the start: those characters are not there.
    first = f"CASE WHEN {at} > 0 THEN {at} - 1 WHEN {at} < 0 THEN length({text}) + {at} ELSE 0 END"
    end = f"({first}) + {'2147483647' if length is None else f'({printer(length)})::BIGINT'}"
    taken = f"greatest({end} - greatest({first}, 0), 0)"
    known = " OR ".join(f"({printer(arg)}) IS NULL" for arg in call.args)
    return f"CASE WHEN {known} THEN NULL ELSE substring({text}, greatest({first}, 0) + 1, {taken}) END"


def _trim(name: str) -> Build:
    def build(call: Call, printer: Printer) -> str:
        _only_text(call)
        text = printer(call.args[0])
        return f"{name}({text}, {printer(call.args[1]) if len(call.args) == 2 else text_literal(' ')})"

    return build


def _named(name: str) -> Build:
    def build(call: Call, printer: Printer) -> str:
        _only_text(call)
        return f"{name}({', '.join(printer(arg) for arg in call.args)})"

    return build


def _replace(call: Call, printer: Printer) -> str:
    if len(call.args) == 2:
        return f"replace({printer(call.args[0])}, {printer(call.args[1])}, '')"
    return _named("replace")(call, printer)


def _like(call: Call, printer: Printer) -> str:
    pattern = call.args[1]
    escape = call.args[2] if len(call.args) == 3 else Literal(pattern.type, "\\")
    if not isinstance(pattern, Literal) or not isinstance(escape, Literal):
        raise NotNative("LIKE with a pattern that is not a literal")
    if pattern.value is None or escape.value is None:
        return "NULL::BOOLEAN"
    mark, rest = escape.value, iter(pattern.value)
    for character in rest:
        # Spark refuses an escape before an ordinary character or at the end; leave that error to it.
        if character == mark and next(rest, "") not in ("_", "%", mark):
            raise NotNative("LIKE with a pattern Spark refuses")
    return f"({printer(call.args[0])} LIKE {text_literal(pattern.value)} ESCAPE {text_literal(mark)})"


FUNCTIONS: dict[str, Build] = {
    "like": _like,
    "concat": _concat,
    "length": _length,
    "upper": _letter_case("upper"),
    "lower": _letter_case("lower"),
    "substring": _substring,
    "trim": _trim("trim"),
    "ltrim": _trim("ltrim"),
    "rtrim": _trim("rtrim"),
    "replace": _replace,
    "startswith": _named("starts_with"),
    "endswith": _named("ends_with"),
    "contains": _named("contains"),
}
