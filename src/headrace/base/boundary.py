"""The edge of the public interface: whatever goes wrong inside leaves it as a :class:`HeadraceError`.

What Headrace refuses it names where it notices. What it did not expect is a defect of ours, and is called so here:
INTERNAL_ERROR, its cause kept. Every public function and method goes through :func:`public`.

>>> @public
... def sql(text: str) -> None:
...     {}[text]
>>> sql("SELECT 1")
Traceback (most recent call last):
    ...
headrace.errors.InternalError: [INTERNAL_ERROR] KeyError: 'SELECT 1'. Hint: this is a defect in Headrace: please \
report it, with the version (0.1.0), the statement or call, and the traceback; it has changed nothing
>>> sql(txet="SELECT 1")
Traceback (most recent call last):
    ...
TypeError: sql() got an unexpected keyword argument 'txet'
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from headrace.errors import ExecutionError, HeadraceError, InternalError, SqlError, StoreError

P = ParamSpec("P")
R = TypeVar("R")

_SYSTEM = {
    errno.ENOSPC: ("DISK_FULL", "free some space"),
    errno.EDQUOT: ("DISK_FULL", "free some space, or ask for a larger quota"),
    errno.EMFILE: ("TOO_MANY_OPEN_FILES", "close what is not needed, or raise the limit (ulimit -n)"),
    errno.ENFILE: ("TOO_MANY_OPEN_FILES", "close what is not needed on this machine"),
    errno.EIO: ("DISK_FAILED", "see the system's log: the disk or its connection is failing"),
    errno.EROFS: ("NOT_WRITABLE", "the filesystem is mounted read-only"),
    errno.EACCES: ("NOT_PERMITTED", "check the permissions of the path"),
    errno.EPERM: ("NOT_PERMITTED", "check the permissions of the path"),
    errno.ENOMEM: ("OUT_OF_MEMORY", "give it less at a time, or connect with a smaller memory_limit"),
}
"""What the operating system refuses at any place, and nobody's code is to blame for."""


def public(function: Callable[P, R]) -> Callable[P, R]:
    """A function of the public interface. Arguments it does not have stay Python's own TypeError."""

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except HeadraceError:
            raise
        except Exception as error:
            within = error.__traceback__.tb_next if error.__traceback__ is not None else None
            if isinstance(error, TypeError) and within is None:
                raise  # it was not even called
            raise named(error) from error

    return guarded


@contextmanager
def failures_named() -> Iterator[None]:
    """The same for a block, such as the body of a public generator."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        raise named(error) from error


def text_given(value: object, what: str) -> str:
    """A text that a caller gives; an error if it is none, or holds what no text does."""
    if not isinstance(value, str):
        raise HeadraceError("USAGE", f"{what} is given as text, not as {type(value).__name__}", hint="give a str")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise HeadraceError(
                "INVALID_UTF8",
                f"character {error.start + 1} of {what} is half of a surrogate pair, which no text has",
                hint="read it as what it is: such halves come from bytes decoded with the wrong encoding",
            ) from None
    return value


def option_given(name: str, value: object) -> str:
    """An option as SQL would spell it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return text_given(value, f"option {name}")


def has_given(value: object, attribute: str, what: str) -> None:
    """An error unless the value is what a caller should give, as told by one of its attributes."""
    if not hasattr(value, attribute):
        raise HeadraceError("USAGE", f"{what} is needed, not {type(value).__name__}", hint=f"give {what}")


def callback_given(call: Callable[P, None] | None, what: str) -> Callable[P, None] | None:
    """A function a caller gives to be called: what fails in it is no defect of ours."""
    if call is None:
        return None
    has_given(call, "__call__", f"a function ({what})")

    def called(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            call(*args, **kwargs)
        except Exception as error:
            raise ExecutionError(
                "CALLBACK_FAILED",
                f"{what} raised {type(error).__name__}: {error}",
                hint="nothing was changed; mend the function that was given",
            ) from error

    return called


def path_given(value: object, what: str) -> str:
    """A path that a caller gives: a str or os.PathLike."""
    try:
        found = value if isinstance(value, str) else os.fspath(value)  # type: ignore[call-overload]
    except TypeError:
        found = None
    if not isinstance(found, str):
        raise HeadraceError("USAGE", f"{what} is a path, not {type(value).__name__}", hint="give a str or a Path")
    if "\0" in found:
        raise HeadraceError("INVALID_PATH", f"{what} holds a NUL character, which no path does", hint="leave it out")
    return text_given(found, what)


def named(error: Exception) -> HeadraceError:
    """The error a caller sees in place of one that nobody inside has named."""
    if isinstance(error, HeadraceError):
        return error
    if isinstance(error, RecursionError) or isinstance(error.__cause__ or error.__context__, RecursionError):
        return SqlError(
            "FAILED_TO_PARSE_TOO_COMPLEX",
            "the statement is nested too deeply",
            hint="split it up: put parts of it into views, or rows into db.insert",
        )
    if isinstance(error, MemoryError):
        hint = "give it less at a time, or connect with a smaller memory_limit"
        return ExecutionError("OUT_OF_MEMORY", "there is not enough memory for this", hint=hint)
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        hint = "end what is not needed, or raise the limit (ulimit -u)"
        return ExecutionError("TOO_MANY_THREADS", "the system gives this process no more threads", hint=hint)
    if isinstance(error, OSError) and error.errno in _SYSTEM:
        condition, hint = _SYSTEM[error.errno]
        where = f"{error.filename}: " if error.filename else ""
        return StoreError(condition, f"{where}{error.strerror}", hint=hint)
    return InternalError(error)
