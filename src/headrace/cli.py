"""The command line: ``headrace sql``, ``explain``, ``demo``, and moving queries (``move/commands.py``).

Errors are one or two lines on stderr and exit status 1, never a traceback.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import headrace
from headrace.base.boundary import named
from headrace.base.interrupts import Interrupted
from headrace.database import Database
from headrace.errors import HeadraceError, InternalError, Position
from headrace.move import commands as move_commands
from headrace.sql.script import Placed, split_statements
from headrace.statement.result import Result
from headrace.store.place import place_of, require_database

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="SQL views over streams and changing tables, kept fresh, on Spark.",
)
errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

DatabaseOption = Annotated[
    str | None, typer.Option("--db", "-d", help="Directory of the database; without it, a temporary one.")
]
CreateOption = Annotated[bool, typer.Option("--create", help="Make the database if there is none.")]


class _Unwritten(Exception):
    """stdout takes no more; ``reason`` is None if only nobody reads any more."""

    def __init__(self, error: OSError) -> None:
        self.reason = None if isinstance(error, BrokenPipeError) else error.strerror
        super().__init__(self.reason)


@contextmanager
def _reported() -> Iterator[None]:
    """Turn an expected failure into a line on stderr and exit status 1."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        _say_interrupted(interrupt)
        raise typer.Exit(130) from None
    except _Unwritten as error:
        # Whatever is still buffered has nowhere to go, also at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.reason is not None:
            errors.print(f"error: [OUTPUT_NOT_WRITTEN] the answer cannot be written: {error.reason}")
        raise typer.Exit(1) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        _report(error)
        raise typer.Exit(1) from None


def _report(error: Exception) -> None:
    """A line for people; HEADRACE_DEBUG=1 asks for the traceback of what is no fault of theirs."""
    shown = named(error)
    if isinstance(shown, InternalError):
        if os.environ.get("HEADRACE_DEBUG"):
            raise error
        shown.hint = f"{shown.hint}. HEADRACE_DEBUG=1 shows the traceback"
    errors.print(f"error: {shown}")


def _say_interrupted(interrupt: KeyboardInterrupt) -> None:
    errors.print(f"interrupted: {interrupt}" if isinstance(interrupt, Interrupted) else "interrupted")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(headrace.__version__)
        raise typer.Exit


@app.command()
def sql(
    statement: Annotated[
        str | None, typer.Argument(help="Statements to run; without any, read them from stdin.")
    ] = None,
    db: DatabaseOption = None,
    create: CreateOption = False,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Run a script of statements.")] = None,
    rows: Annotated[int, typer.Option("--rows", "-n", min=0, help="Rows to print of each answer.")] = 20,
) -> None:
    """Run SQL statements, separated by semicolons; stops at the first that fails."""
    with _reported():
        if statement is None and file is None and sys.stdin is not None and sys.stdin.isatty():
            _prompt(_place(db, create), rows)
            return
        found = split_statements(_given(statement, file))
        with headrace.connect(_place(db, create)) as database:
            for one in found:
                _print(_run(database, one), rows)


@app.command()
def explain(
    statement: Annotated[str, typer.Argument(help="A query, CREATE VIEW, INSERT or COPY statement.")],
    db: DatabaseOption = None,
) -> None:
    """Show what a statement would do, where each part would run, and why."""
    with _reported():
        words = "" if statement.upper().split()[:1] == ["EXPLAIN"] else "EXPLAIN "
        with headrace.connect(_place(db)) as database:
            _print(_run(database, Placed(words + statement, Position(1, 1 - len(words)))), 1_000)


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=0, help="How long to feed live inserts.")] = 8.0,
    events: Annotated[int, typer.Option(min=1, help="Events to bulk-load from files first.")] = 3_000_000,
) -> None:
    """The car plant: bulk load, live inserts, and a view that stays fresh."""
    from headrace.demo import run

    with _reported():
        raise typer.Exit(run(events=events, seconds=seconds))


@app.callback()
def _(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


move_commands.add(app, _reported, lambda result, rows: _print(result, rows), lambda text: errors.print(text))


@app.command()
def version() -> None:
    """Print the version."""
    print(headrace.__version__)


def _place(db: str | None, create: bool = False) -> Path | None:
    """The directory of the database, which must be one already unless it is to be made."""
    if db is None:
        if create:
            raise HeadraceError(
                "USAGE", "--create without --db", hint="name the database to make: --db plant.hr --create"
            )
        return None
    place = place_of(db)
    if not create:
        require_database(place)
    return place


def _run(database: Database, statement: Placed) -> Result:
    text = statement.text
    try:
        with statement.errors_located():
            if text[:4].upper() == "COPY" and sys.stderr.isatty():
                with _bar(text) as progress:
                    return database.sql(text, progress=progress)
            return database.sql(text)
    except HeadraceError as error:
        if error.condition == "TABLE_OR_VIEW_NOT_FOUND" and not database.catalog.relations:
            error.hint = "this database is empty: --db names another, CREATE makes a relation"
        raise


@contextmanager
def _bar(statement: str) -> Iterator[Callable[[int, int], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors, transient=True) as shown:
        task = shown.add_task(" ".join(statement.split()[:2]), total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def _print(result: Result, rows: int) -> None:
    try:
        print(result.text(rows) if result.columns else result.message, flush=True)
    except OSError as error:
        raise _Unwritten(error) from None


def _given(statement: str | None, file: Path | None) -> str:
    """The text to run: the argument, a file's, or else what stands on stdin."""
    if statement is not None and file is not None:
        raise HeadraceError("USAGE", "statements and --file are both given", hint="give one of them")
    if statement is not None:
        if statement.endswith(".sql") and os.path.isfile(statement):
            raise HeadraceError("USAGE", f"{statement} is a file", hint=f"run it with --file {statement}")
        return statement
    try:
        if file is not None:
            return file.read_text(encoding="utf-8-sig")
        return "" if sys.stdin is None else sys.stdin.buffer.read().decode("utf-8-sig")
    except OSError as error:
        hint = "--file takes the path of a script"
        raise HeadraceError("PATH_NOT_FOUND", f"cannot read {file or 'stdin'}: {error.strerror}", hint=hint) from None
    except UnicodeDecodeError:
        hint = "save the script as UTF-8"
        raise HeadraceError("INVALID_UTF8", f"{file or 'stdin'} is not UTF-8 text", hint=hint) from None


_HELP = """\
A statement may take several lines and ends with ;
  SHOW STREAMS; SHOW TABLES; SHOW VIEWS; SHOW SAMPLES;   what there is
  CREATE STREAM s (k INT, v STRING);                     a stream; CREATE TABLE makes a table
  CREATE VIEW n AS SELECT k, count(*) FROM s GROUP BY k; a view that stays fresh
  COPY s FROM 'file.csv'; INSERT INTO s VALUES (1, 'x'); rows
  SELECT * FROM n;                                       an answer; EXPLAIN before it says how it is found
Ctrl-C ends the statement that runs. exit, quit or Ctrl-D leaves."""


def _prompt(db: Path | None, rows: int) -> None:
    """Read statements line by line until end of input; an error or Ctrl-C ends the statement, not the session."""
    print("Statements end with ; and Ctrl-D leaves. help says more.")
    with headrace.connect(db) as database:
        held: str | None = ""
        while held is not None:
            try:
                held = _held(database, held, rows)
            except KeyboardInterrupt:  # pressed again, or while a line was typed: that is given up, not the session
                print()
                held = ""


def _held(database: headrace.Database, held: str, rows: int) -> str | None:
    """Read a line and run what it completes: what is held of a statement then; None to leave."""
    try:
        held += input("headrace> " if not held else "     ...> ") + "\n"
    except EOFError:
        print()
        return None
    asked = held.strip().rstrip("; ").lower()
    if asked in ("exit", "quit"):
        return None
    if asked in ("help", "?"):
        print(_HELP)
        return ""
    if not held.rstrip().endswith(";"):
        return held
    try:
        for one in split_statements(held):
            _print(_run(database, one), rows)
    except HeadraceError as error:
        _report(error)
    except KeyboardInterrupt as interrupt:
        _say_interrupted(interrupt)
    return ""


def main() -> None:
    """The ``headrace`` command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that lacks a character still gets the row
    app()


if __name__ == "__main__":
    main()
