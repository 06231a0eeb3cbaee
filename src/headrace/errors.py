"""Every error Headrace raises on purpose.

An error names its *condition* (UPPER_SNAKE, as Spark's do), says where in the
SQL it is when there is SQL, and says what to do next. A statement that raises
one has changed nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the statement's text: 1-based line and column."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"

    def counted_from(self, origin: Position) -> Position:
        """This place in the longer text where ``origin`` is the first character of the shorter one.

        >>> print(Position(1, 8).counted_from(Position(4, 16)), Position(2, 3).counted_from(Position(4, 16)), sep="; ")
        line 4, column 23; line 5, column 3
        """
        column = self.column + origin.column - 1 if self.line == 1 else self.column
        return Position(self.line + origin.line - 1, max(1, column))


def printable(text: str) -> str:
    """The text with escapes for what no file or terminal takes: halves of surrogate pairs.

    >>> printable("a\\ud800b")
    'a\\\\ud800b'
    """
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


class HeadraceError(Exception):
    """Base of all Headrace errors.

    ``condition`` is stable and meant for programs; the message is meant for people.

    >>> str(HeadraceError("DIVIDE_BY_ZERO", "division by zero", hint="use try_divide"))
    '[DIVIDE_BY_ZERO] division by zero. Hint: use try_divide'
    """

    def __init__(
        self, condition: str, message: str, *, position: Position | None = None, hint: str | None = None
    ) -> None:
        self.condition = condition
        self.message = printable(message)
        self.position = position
        self.hint = None if hint is None else printable(hint)
        super().__init__(condition, self.message)

    def within(self, what: str) -> HeadraceError:
        """The same error, which says what went on.

        >>> print(HeadraceError("DIVIDE_BY_ZERO", "division by zero").within("for view v"))
        [DIVIDE_BY_ZERO] division by zero, for view v
        """
        self.message = f"{self.message}, {printable(what)}"
        self.args = (self.condition, self.message)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        where = f" ({self.position})" if self.position else ""
        hint = f". Hint: {self.hint}" if self.hint else ""
        return f"[{self.condition}] {self.message}{where}{hint}"


def _rebuilt(kind: type[HeadraceError], args: tuple[Any, ...], state: dict[str, Any]) -> HeadraceError:
    """An error out of another process: subclasses are not all made from what they are kept as."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class SqlError(HeadraceError):
    """The statement cannot be parsed or bound: unknown name, wrong type, wrong arity."""


class NotYetSupported(SqlError):
    """Valid, but Headrace does not do it yet. The message names what is missing."""

    def __init__(self, what: str, *, position: Position | None = None, hint: str | None = None) -> None:
        super().__init__("NOT_YET_SUPPORTED", what, position=position, hint=hint)


class ViewRefused(SqlError):
    """A continuous view breaks one of the split rules; the message names rule and remedy."""


class CatalogError(HeadraceError):
    """A name exists already, does not exist, is of the wrong kind, or is still needed."""


class DataError(HeadraceError):
    """Input rows that do not fit: a bad field, a missing column, a broken key."""


class ExecutionError(HeadraceError):
    """An expression failed while it ran: overflow, division by zero, a cast that cannot be."""


class BatchError(HeadraceError):
    """A batch that cannot begin or go on, or a statement that cannot be in one."""


class StoreError(HeadraceError):
    """The state directory cannot be opened, read or written."""


class InternalError(HeadraceError):
    """A defect of Headrace, not of the statement. Its ``__cause__`` is what was raised."""

    def __init__(self, cause: Exception) -> None:
        from headrace import __version__

        lines = str(cause).splitlines()
        super().__init__(
            "INTERNAL_ERROR",
            f"{type(cause).__name__}{f': {lines[0]}' if lines else ''}",
            hint=f"this is a defect in Headrace: please report it, with the version ({__version__}), the statement or "
            "call, and the traceback; it has changed nothing",
        )
