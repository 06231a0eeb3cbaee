"""Ctrl-C: a statement that runs is asked to stop; its database stays as sound as if it had failed by itself.

Python raises KeyboardInterrupt between any two instructions of the main thread: in the middle of a commit's
bookkeeping, of Spark's protocol, of the very cleanup that the first one began. So while a statement runs there, the
signal only asks. Whoever computes or waits for it has said how that is ended (:class:`stoppable`), or looks now and
then (:func:`check`); it is asked again and again until the statement has ended, however often the key is pressed. Then
:class:`Interrupted` is raised, where nothing is half done.

An interrupt after the commit ends nothing but waiting: what follows (:mod:`headrace.base.tidying`) is shielded, and
``Interrupted`` says at the end of the statement that it is in. A handler that a program has set for itself is left
alone; what it raises when a commit can no longer be stopped is kept until that end too (:func:`came_late`).

Between statements Ctrl-C is Python's, unless there is something of ours that a program may be waiting for by itself
(:func:`end_between`): that is ended first.

>>> with interruptible(), stoppable(lambda: print("this would end it")):
...     check()
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType, TracebackType
from typing import ParamSpec, Protocol, TypeVar

# The functions behind those of `signal`, which make enums of every answer: that costs more than many a lookup.
_handler_of: Callable[[int], object] = _signal.getsignal
_handle: Callable[[int, object], object] = _signal.signal
P = ParamSpec("P")
T = TypeVar("T")

_SIGINT = int(signal.SIGINT)
_AGAIN = 0.05
"""Seconds after which a statement that still runs is asked again: what it began meanwhile heard nothing."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a statement or a batch; ``done`` says whether it had been committed by then."""

    def __init__(self, done: bool, what: str = "the statement") -> None:
        super().__init__(f"{what} had been committed" if done else f"{what} changed nothing")
        self.done = done


class _Statement:
    """A statement, and the ways to end what it is at."""

    def __init__(self, hears: bool) -> None:
        self.hears = hears
        """Whether the signal comes here: not to other threads, nor past a handler of the program's own."""
        self.asked = False
        self.committed = False
        self.raises = False
        """Whether the signal may raise at once: nothing but this thread's own values is touched."""
        self.lock = threading.Lock()
        self.ways: list[Callable[[], object]] = []
        self.endings: dict[object, Callable[[], object]] = {}
        self.over: threading.Event | None = None

    def on_signal(self, _: int, __: FrameType | None) -> None:
        asked, self.asked = self.asked, True
        if self.raises:
            raise Interrupted(False)
        if not asked:
            # Not here: this thread may hold any lock.
            self.over = threading.Event()
            threading.Thread(target=self._insist, args=(self.over,), name="headrace-interrupt", daemon=True).start()

    def _insist(self, over: threading.Event) -> None:
        while True:
            with self.lock:  # a way that is called is not taken back meanwhile: it may be another's soon
                for way in self.ways:
                    with suppress(Exception):
                        way()
            if over.wait(_AGAIN):
                return

    def check(self) -> None:
        if self.asked:
            raise Interrupted(self.committed)


_between: Callable[[FrameType | None], bool] | None = None
"""How to end what a program waits for by itself, given the frame it is at; whether to raise at once then."""


def end_between(way: Callable[[FrameType | None], bool] | None) -> None:
    """Have Ctrl-C between statements do this first, from the end of the main thread's next statement on.

    Where it says False, it has seen to it that KeyboardInterrupt is raised when what was waited for has ended.
    """
    global _between
    _between = way


def _on_signal_between(_: int, frame: FrameType | None) -> None:
    if _between is None or _between(frame):
        raise KeyboardInterrupt


def _rest(before: object) -> object:
    """The handler after a statement, given that before it: another's stays."""
    if before is signal.default_int_handler or before is _on_signal_between:
        return signal.default_int_handler if _between is None else _on_signal_between
    return before


_whole: ContextVar[_Statement | None] = ContextVar("_whole", default=None)
"""The statement that runs."""
_current: ContextVar[_Statement | None] = ContextVar("_current", default=None)
"""The same where it may be ended: not where it is shielded."""


def _hearing() -> _Statement | None:
    """The statement that is run, if it can be asked to stop."""
    statement = _current.get()
    return statement if statement is not None and statement.hears else None


class interruptible:
    """A statement, from its first step to its last; one within another is part of it."""

    __slots__ = ("_before", "_statement")

    def __enter__(self) -> None:
        self._statement: _Statement | None = None
        if _whole.get() is not None:
            return
        hears = threading.get_ident() == threading.main_thread().ident
        if hears:
            self._before = _handler_of(_SIGINT)
            hears = _is_replaceable(self._before)
        statement = _Statement(hears)
        if hears:
            _handle(_SIGINT, statement.on_signal)
        self._statement = statement
        _whole.set(statement)
        _current.set(statement)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        statement = self._statement
        if statement is None:
            return
        _whole.set(None)
        _current.set(None)
        if statement.hears:
            for ending in statement.endings.values():
                with suppress(Exception):
                    ending()
            _handle(_SIGINT, _rest(self._before))
            if statement.over is not None:
                statement.over.set()
        interrupted = (
            statement.asked
            or (statement.committed and isinstance(error, KeyboardInterrupt))
            # What DuckDB makes of an exception of a program's own handler:
            or (isinstance(error, RuntimeError) and str(error) == "Query interrupted")
        )
        if interrupted and (error is None or isinstance(error, Exception | KeyboardInterrupt)):
            raise Interrupted(error is None or statement.committed) from None


class stoppable:
    """While the block runs, ``stop``, called by another thread, ends it with any error or none."""

    __slots__ = ("_statement", "_stop")

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        self._statement: _Statement | None = None
        statement = _hearing()
        if statement is not None and not statement.committed:
            statement.check()
            self._statement = statement
            with statement.lock:
                statement.ways.append(self._stop)

    def __exit__(self, *_: object) -> None:
        statement = self._statement
        if statement is not None:
            with statement.lock:
                statement.ways.remove(self._stop)


class Waitable(Protocol):
    """Either lock of Python's."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...


def waited_for(lock: Waitable, seconds: float | None = None) -> bool:
    """Take a lock, however long that is, or in so many seconds if it can be had; whoever waits can be interrupted."""
    if _hearing() is None:
        return lock.acquire() if seconds is None else lock.acquire(timeout=seconds)
    until = None if seconds is None else time.monotonic() + seconds
    while not lock.acquire(timeout=_AGAIN):
        check()
        if until is not None and time.monotonic() >= until:
            return False
    return True


class Lock:
    """A re-entrant lock; whoever waits for it can be interrupted."""

    __slots__ = ("_lock", "release")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.release = self._lock.release

    def acquire(self, blocking: bool = True) -> bool:
        if self._lock.acquire(False):
            return True
        if not blocking:
            return False
        waited_for(self._lock)
        return True

    def __enter__(self) -> None:
        if not self._lock.acquire(False):
            self.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def check() -> None:
    """Raise if the statement has been asked to stop."""
    statement = _current.get()
    if statement is not None:
        statement.check()


def check_waiting() -> None:
    """The same for whoever waits for others, in what follows a commit too: they may never let it go on."""
    statement = _whole.get()
    if statement is not None:
        statement.check()


def asked() -> bool:
    """Whether the statement has been asked to stop."""
    statement = _current.get()
    return statement is not None and statement.asked


def committed() -> None:
    """The statement is in: what it still does is not ended any more, except where it waits for others."""
    statement = _current.get()
    if statement is not None:
        statement.committed = True


def came_late() -> None:
    """An interrupt was raised, by a handler of the program's own, that can stop nothing: the statement ends with it."""
    statement = _whole.get()
    if statement is not None:
        statement.asked = True


def until_it_ends(
    key: object, begin: Callable[[], object], stop: Callable[[], object], end: Callable[[], object]
) -> None:
    """Once for a statement: have ``begin`` done now, ``stop`` if it is interrupted, ``end`` when it is over."""
    statement = _hearing()
    if statement is not None and key not in statement.endings:
        begin()
        statement.endings[key] = end
        with statement.lock:
            statement.ways.append(stop)


def carried(work: Callable[P, T]) -> Callable[P, T]:
    """The same work on behalf of this statement in another thread."""
    statement = _current.get()
    if statement is None:
        return work

    def run(*args: P.args, **named: P.kwargs) -> T:
        token = _current.set(statement)
        try:
            return work(*args, **named)
        finally:
            _current.reset(token)

    return run


class shielded:
    """Nothing in the block is ended: it puts in order what was."""

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token = _current.set(None)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


@contextmanager
def at_once() -> Iterator[None]:
    """The block only computes values of its own: Ctrl-C may leave it anywhere."""
    statement = _current.get()
    if statement is None:
        yield
        return
    statement.check()
    statement.raises = True
    try:
        yield
    finally:
        statement.raises = False


def _is_replaceable(handler: object) -> bool:
    """Whether a handler only raises KeyboardInterrupt: Python's own, ours, or PySpark's, which cancels every job."""
    if handler is signal.default_int_handler or handler is _on_signal_between:
        return True
    return (getattr(handler, "__module__", None) or "").startswith("pyspark.")
