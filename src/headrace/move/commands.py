"""``headrace run``, ``suspend``, ``resume``, ``tickets`` and ``vacate``."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import typer

from headrace.errors import HeadraceError
from headrace.move import runs
from headrace.move.files import Folder
from headrace.move.listing import here, listed, there
from headrace.statement.result import Result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.move.query import RunningQuery

SUSPENDED = 75
"""Exit status of a query that was suspended: try again later (sysexits' EX_TEMPFAIL)."""

_ADDRESS = re.compile("[A-Za-z][A-Za-z0-9+.-]+:")
_ASK_SECONDS = 2.0
"""Between two looks at an address for a notice."""
_ANSWER_SECONDS = 2.0
"""In which it answers."""

TicketsOption = Annotated[str, typer.Option("--tickets", "-t", help="Where tickets go: a folder or an address.")]
RowsOption = Annotated[int, typer.Option("--rows", "-n", min=0, help="Rows to print of the answer.")]
ConfOption = Annotated[list[str] | None, typer.Option("--conf", help="A Spark setting, key=value; may be repeated.")]
GraceOption = Annotated[str, typer.Option("--grace", help="How long stages in flight may take to finish: 120s, 2m.")]
Reported = Callable[[], AbstractContextManager[None]]


def add(app: typer.Typer, reported: Reported, show: Callable[[Result, int], None], say: Callable[[str], None]) -> None:
    """Add the commands to the command line."""

    @app.command("run")
    def _(
        query: Annotated[str | None, typer.Argument(help="The query, perhaps after CREATE TEMPORARY VIEW.")] = None,
        file: Annotated[Path | None, typer.Option("--file", "-f", help="A script whose last statement it is.")] = None,
        to: Annotated[str | None, typer.Option("--to", help="Write the answer as Parquet instead.")] = None,
        tickets: TicketsOption = "tickets",
        grace: GraceOption = "60s",
        rows: RowsOption = 20,
        conf: ConfOption = None,
    ) -> None:
        """Run a Spark SQL query that can be suspended: by headrace suspend, headrace vacate, or SIGTERM."""
        with reported():
            runs.seconds(grace)
            text = _text(query, file)

            def begin(spark: SparkSession) -> RunningQuery:
                from headrace.move import run

                running = run(spark, text)
                return running.to_parquet(to) if to is not None else running

            _attend(begin, text, tickets, grace, rows, conf, show, say)

    @app.command("resume")
    def _(
        ticket: Annotated[str, typer.Argument(help="The ticket's folder or address.")],
        keep: Annotated[bool, typer.Option(help="Keep the ticket for another time.")] = False,
        restart: Annotated[bool, typer.Option(help="Run from the beginning if the ticket does not fit.")] = False,
        trust: Annotated[bool, typer.Option("--trust", help="Let the ticket run code and write its answer.")] = False,
        tickets: TicketsOption = "tickets",
        grace: GraceOption = "60s",
        rows: RowsOption = 20,
        conf: ConfOption = None,
    ) -> None:
        """Go on with a suspended query."""
        with reported():
            runs.seconds(grace)

            def begin(spark: SparkSession) -> RunningQuery:
                from headrace.move import resume

                running = resume(spark, ticket, keep=keep, on_mismatch="restart" if restart else "error", trust=trust)
                if running.restarted is not None:
                    say(f"started again: {running.restarted}")
                return running

            _attend(begin, f"resumed from {ticket}", tickets, grace, rows, conf, show, say)

    @app.command("suspend")
    def _(
        id: Annotated[str, typer.Argument(help="The query, as headrace run says at its start.")],
        give_up: Annotated[bool, typer.Option("--now", help="Give stages in flight up.")] = False,
        grace: GraceOption = "60s",
    ) -> None:
        """Suspend a query that headrace run or resume has started on this machine."""
        with reported():
            print(runs.RunSeen(id).suspend(runs.Order(False if give_up else None, runs.seconds(grace))))

    @app.command("tickets")
    def _(
        folder: Annotated[str, typer.Argument(help="Where tickets go: a folder or an address.")] = "tickets",
        conf: ConfOption = None,
    ) -> None:
        """What is suspended: state, size, age and query of each ticket."""
        with reported():
            if not _ADDRESS.match(folder):
                show(listed(here(Path(folder))), 10_000)
                return
            spark = _spark(conf or [])
            try:
                show(listed(there(spark, folder)), 10_000)
            finally:
                spark.stop()

    @app.command("vacate")
    def _(
        grace: GraceOption = "120s",
        wait: Annotated[bool, typer.Option("--wait", help="Stay, and do it at SIGTERM or the notice.")] = False,
        notice: Annotated[str | None, typer.Option(help="A file or URL that appears when the machine must go.")] = None,
    ) -> None:
        """Suspend every query on this machine, before it is taken away."""
        with reported():
            within = runs.seconds(grace)
            if wait or notice is not None:
                _wait_for_notice(notice, say)
            found = vacate(within)
            for id, outcome in found.items():
                print(f"{id}: {outcome}")
            if not found:
                say("no query runs here")
            if any(isinstance(outcome, HeadraceError) for outcome in found.values()):
                raise typer.Exit(1)


def vacate(grace: float) -> dict[str, str | HeadraceError]:
    """Suspend every query that runs here, side by side: the ticket of each, or why there is none."""
    running = runs.living()

    def one(run: runs.RunSeen) -> str | HeadraceError:
        try:
            return run.suspend(runs.Order(grace=grace), patience=max(10.0, grace / 2))
        except HeadraceError as error:
            return error

    with ThreadPoolExecutor(max(1, len(running))) as pool:
        return dict(zip((run.id for run in running), pool.map(one, running), strict=True))


def _text(query: str | None, file: Path | None) -> str:
    if (query is None) == (file is None):
        raise HeadraceError("USAGE", "give a query or --file, one of them", hint="headrace run -f query.sql")
    if file is None:
        return query or ""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HeadraceError("PATH_NOT_FOUND", f"{file} cannot be read: {error}", hint="check the path") from None


def _attend(
    begin: Callable[[SparkSession], RunningQuery],
    query: str,
    tickets: str,
    grace: str,
    rows: int,
    conf: list[str] | None,
    show: Callable[[Result, int], None],
    say: Callable[[str], None],
) -> None:
    """Run a query in the foreground, ready to suspend it."""
    runs.folder()  # if there can be none, that is said before anything runs
    asked = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    spark = _spark(conf or [])
    entry: runs.Entry | None = None
    answer: dict[str, Any] = {"error": "it ended before it could be suspended"}
    try:
        Folder(spark, tickets).require_writable()  # when a ticket is wanted, it is too late to learn that
        running = begin(spark)
        entry = runs.Entry(running.id, query)
        say(f"running as {running.id}")
        where = f"{tickets.rstrip('/')}/{running.id}"
        while _watch(running, asked):
            ordered = entry.order()
            order = ordered or runs.Order(grace=runs.seconds(grace))
            try:
                ticket = running.suspend(where, finish=order.finish, grace=order.grace)
            except Exception as error:  # whatever it is, it must not end a query that can go on
                if running.status == "running" and ordered is None:  # somebody wants this process to end
                    raise
                if running.status == "running":
                    entry.decline(str(error))
                    say(f"goes on: {error}")
            else:
                answer = {"ticket": ticket.address}
                say(f"suspended: headrace resume {where}")
                raise typer.Exit(SUSPENDED)
        answer = {"error": "it had finished"}
        result = running.result()
        if result.columns:
            show(result, rows)
        else:
            print(result.message)
    finally:
        if entry is not None:
            entry.close(**answer)
        spark.stop()
        signal.signal(signal.SIGTERM, before)


def _watch(running: RunningQuery, asked: threading.Event) -> bool:
    """Wait for the end or for SIGTERM, with a bar where somebody looks: whether it is SIGTERM."""
    from contextlib import nullcontext

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    seen = sys.stderr.isatty()
    bar = Progress(*columns, console=Console(stderr=True), transient=True) if seen else nullcontext()
    with bar as shown:
        task = shown.add_task("pipelines", total=None) if shown is not None else None
        while running.status == "running" and not asked.wait(0.1):
            if shown is not None and task is not None:
                now = running.progress()
                shown.update(task, completed=now.finished, total=now.total)
    told = asked.is_set() and running.status == "running"
    asked.clear()
    return told


def _spark(conf: list[str]) -> SparkSession:
    from headrace.engine.session import start_spark
    from headrace.settings import Settings

    given = dict(each.partition("=")[::2] for each in conf)
    if any("=" not in each for each in conf):
        raise HeadraceError("USAGE", "--conf takes key=value", hint="for example --conf spark.sql.shuffle.partitions=8")
    return start_spark({"spark.driver.memory": Settings().driver_memory, **given})


def _wait_for_notice(notice: str | None, say: Callable[[str], None]) -> None:
    pause = 0.2
    if notice is not None and "://" in notice:
        _require_address(notice)
        pause = _ASK_SECONDS
    asked = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    say("waiting for " + ("SIGTERM" if notice is None else f"SIGTERM or {notice}"))
    try:
        while not (notice is not None and _given(notice)) and not asked.wait(pause):
            pass
    finally:
        signal.signal(signal.SIGTERM, before)


def _require_address(notice: str) -> None:
    try:
        parts = urlsplit(notice)
        sound = parts.scheme == "file" or (parts.scheme in ("http", "https") and bool(parts.hostname))
        sound = sound and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise HeadraceError("USAGE", f"{notice} is no address of a notice", hint="a file, or http://host/path")


def _given(notice: str) -> bool:
    """Whether the notice is there: a file that exists, or an address that answers with success.

    An answer that makes no sense is no notice, and whoever waits goes on waiting.
    """
    if "://" not in notice:
        return os.path.exists(notice)
    try:
        with urlopen(notice, timeout=_ANSWER_SECONDS):
            return True
    except (OSError, HTTPException, ValueError):
        return False
