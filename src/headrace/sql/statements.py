"""Headrace's statements, parsed: Spark SQL plus a few of our own.

Queries are read by ``sql/grammar.py``, column lists by ``sql/columns.py``, the words around them here, all from the
same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sqlglot import exp

from headrace.catalog import KINDS, Buffer, FileSource
from headrace.errors import NotYetSupported, Position, SqlError
from headrace.sql.alter import Alter, alter
from headrace.sql.changes import CHANGES, Change
from headrace.sql.columns import Rules, definition
from headrace.sql.copy_options import copy_options
from headrace.sql.cursor import Cursor
from headrace.sql.files_clause import files_clause, is_own
from headrace.sql.lexer import Kind, place, tokens
from headrace.sql.options import buffer_of, keep_changes_of, view_options, with_options
from headrace.sql.refreshing import OPTIONS, Clauses, Wanted, refresh_clauses
from headrace.sql.token_reader import Beyond
from headrace.sql.upkeep import Upkeep, optimize, vacuum
from headrace.types import Schema


class Create:
    """What all statements that make a relation have."""

    name: str
    if_not_exists: bool
    position: Position
    or_replace: bool = False
    """Whether it takes the place of what goes under the name."""


@dataclass(frozen=True)
class CreateStream(Create):
    name: str
    columns: Schema
    if_not_exists: bool
    position: Position
    buffer: Buffer | None = None
    """``WITH (capacity = …, timeout = …, overflow = …, patience = …)``."""
    rules: Rules = field(default_factory=Rules)
    or_replace: bool = False


@dataclass(frozen=True)
class CreateTable(Create):
    name: str
    columns: Schema
    primary_key: tuple[str, ...]
    if_not_exists: bool
    position: Position
    files: FileSource | None = None
    """Where its rows lie, if they are not its own; ``columns`` may then be empty."""
    rules: Rules = field(default_factory=Rules)
    keep_changes: int | None = None
    """For how many microseconds: ``WITH (keep_changes = '1 day')``."""
    or_replace: bool = False


@dataclass(frozen=True)
class CreateTableAs(Create):
    name: str
    query: exp.Expr
    if_not_exists: bool
    position: Position
    keep_changes: int | None = None
    or_replace: bool = False


@dataclass(frozen=True)
class CreateView(Create):
    name: str
    columns: tuple[str, ...]
    """Names given in ``CREATE VIEW v (a, b)``; empty for the query's own."""
    query: exp.Expr
    text: str
    if_not_exists: bool
    position: Position
    retain: int | None = None
    """For how many microseconds groups are kept: ``WITH (retain = '7 days')``."""
    materialized: bool = False
    or_replace: bool = False
    tables: str | None = None
    """Which state of tables rows of a stream see: ``WITH (tables = 'arrival')``."""
    refreshing: Wanted = field(default_factory=Wanted)
    """How a materialized one is refreshed."""
    keep_changes: int | None = None
    """For how many microseconds: ``WITH (keep_changes = '1 day')``."""


@dataclass(frozen=True)
class Insert:
    name: str
    columns: tuple[str, ...]
    query: exp.Expr
    position: Position
    overwrite: bool = False
    """Whether the rows take the place of all that are there."""


@dataclass(frozen=True)
class Copy:
    name: str
    columns: tuple[str, ...]
    path: str
    options: Mapping[str, str]
    position: Position


@dataclass(frozen=True)
class Query:
    query: exp.Expr


@dataclass(frozen=True)
class Explain:
    statement: Statement


@dataclass(frozen=True)
class Show:
    what: str


@dataclass(frozen=True)
class Describe:
    name: str
    position: Position


@dataclass(frozen=True)
class Drop:
    kind: str
    name: str
    if_exists: bool
    position: Position
    cascade: bool = False
    """Whether what reads it goes too."""


@dataclass(frozen=True)
class Refresh:
    name: str
    restart: bool
    """Whether the view is to begin again: tables read anew, its state emptied."""
    position: Position
    kind: str = ""
    """What it is said to be, if that is said."""
    full: bool = False
    """Whether it is to be computed anew."""


F = TypeVar("F", bound="Callable[[StatementReader], Create]")
Statement = Create | Alter | Insert | Change | Copy | Query | Explain | Show | Describe | Drop | Refresh | Upkeep

# Statements of later work or of Spark's that Headrace does not run, by their first word, and what to write instead.
_ALONE = "leave it out: each statement commits by itself; several are one in Python: with db.batch(): …"
_NOT_YET = {
    "SET": ("SET of a setting", "settings are given to headrace.connect"),
    "USE": ("more than one schema", "use plain names; another database is another directory"),
    "ANALYZE": ("ANALYZE", "leave it out: Headrace keeps no statistics"),
    "CACHE": ("CACHE", "leave it out: views over streams keep their state"),
    "BEGIN": ("transactions of several statements", _ALONE),
    "COMMIT": ("transactions of several statements", _ALONE),
    "ROLLBACK": ("transactions of several statements", _ALONE),
}
CREATES: dict[str, Callable[[StatementReader], Create]] = {}
"""What reads ``CREATE word …`` from behind the word, by the word."""
_QUERY_STARTS = {"SELECT", "WITH", "VALUES", "FROM", "TABLE", "("}
_TABLE_OPTIONS = (
    "LOCATION",
    "LIKE",
    "PARTITIONED",
    "CLUSTERED",
    "CLUSTER",
    "COMMENT",
    "OPTIONS",
)


def creates(word: str) -> Callable[[F], F]:
    """Register a function that reads what follows ``CREATE word``, as a decorator of it."""

    def register(read: F) -> F:
        CREATES[word] = read
        return read

    return register


def parse(text: str) -> Statement:
    """One statement; :class:`SqlError` with its position where it cannot be read."""
    found = tokens(text)
    while found and found[-1].upper == ";":
        found.pop()
    if not found:
        raise SqlError(
            "PARSE_EMPTY_STATEMENT", "there is no statement here", hint="write one, for example SHOW STREAMS"
        )
    for token in found:
        if token.upper == ";":
            raise SqlError(
                "MULTIPLE_STATEMENTS",
                "more than one statement",
                position=place(text, token.start),
                hint="run them one by one; `headrace sql -f file.sql` runs a script",
            )
    return StatementReader(text[: found[-1].end], found).statement()


class StatementReader(Cursor):
    """Reads one statement from its tokens; what registers with :func:`creates` reads on with it."""

    begins = 0
    """The statement's first token: behind EXPLAIN, if that is before it."""

    def statement(self) -> Statement:
        first = self.word()
        if first == "WITH" and (insert := self.insert_with()) is not None:
            return insert
        if first in _QUERY_STARTS:
            return Query(self.rest_as_query())
        if first == "CREATE":
            return self.create()
        if first == "INSERT":
            return self.insert()
        if first in CHANGES:
            start = self.position()
            try:
                return CHANGES[first](self)
            except Beyond as beyond:
                what = f"{beyond.reason} in a statement that changes a table"
                raise NotYetSupported(what, position=start, hint="CREATE TABLE … AS SELECT it, and use that") from None
        if first == "COPY":
            return self.copy()
        if first == "EXPLAIN":
            return self.explain()
        if first == "SHOW":
            return self.show()
        if first in ("DESCRIBE", "DESC"):
            return self.describe()
        if first == "DROP":
            return self.drop()
        if first == "ALTER":
            return alter(self)
        if first == "REFRESH":
            return self.refresh()
        if first == "OPTIMIZE":
            return optimize(self)
        if first == "VACUUM":
            return vacuum(self)
        if first in _NOT_YET:
            what, instead = _NOT_YET[first]
            raise NotYetSupported(what, position=self.position(), hint=instead)
        return self.fail("a statement (SELECT, CREATE, INSERT, COPY, EXPLAIN, SHOW, DESCRIBE, REFRESH or DROP)")

    def explain(self) -> Explain:
        self.at += 1
        for mode in ("EXTENDED", "FORMATTED", "COST", "CODEGEN"):
            if self.word() == mode:
                raise NotYetSupported(f"EXPLAIN {mode}", position=self.position(), hint="write EXPLAIN alone")
        if self.at >= len(self.tokens) or self.word() == "EXPLAIN":
            self.fail("a statement to explain")
        self.begins = self.at
        return Explain(self.statement())

    def written(self) -> str:
        """The statement's own text."""
        return self.text[self.tokens[self.begins].start :]

    def show(self) -> Show:
        self.at += 1
        for kind in KINDS:
            if self.take(f"{kind.upper()}S"):
                self.end()
                return Show(f"{kind}s")
        if self.take("REFRESHES"):
            self.end()
            return Show("refreshes")
        return self.fail(_or((*(f"{kind.upper()}S" for kind in KINDS), "REFRESHES")))

    def describe(self) -> Describe:
        self.at += 1
        if self.word().lower() in (*KINDS, "extended") and self.at + 1 < len(self.tokens):
            self.at += 1
        position = self.position()
        name = self.name()
        self.end()
        return Describe(name, position)

    def drop(self) -> Drop:
        self.at += 1
        kind = ""
        for words, meaning in (
            (("FOREIGN", "TABLE"), "stream"),
            (("MATERIALIZED", "VIEW"), "view"),
            *(((kind.upper(),), kind) for kind in KINDS),
        ):
            if self.take(*words):
                kind = meaning
                break
        else:
            self.fail(_or(map(str.upper, KINDS)))
        if_exists = self.take("IF", "EXISTS")
        position = self.position()
        name = self.name()
        cascade = self.take("CASCADE")
        if not cascade:
            self.take("RESTRICT")
        self.end()
        return Drop(kind, name, if_exists, position, cascade)

    def refresh(self) -> Refresh:
        self.at += 1
        kind = "view" if self.word(1) == "VIEW" and self.take("MATERIALIZED") else ""
        left = len(self.tokens) - self.at
        if self.word().lower() in KINDS and left > 1 and (left > 2 or self.word(1) not in ("RESTART", "FULL")):
            kind = self.word().lower()
            self.at += 1
        position = self.position()
        name = self.name()
        restart = self.take("RESTART")
        full = not restart and self.take("FULL")
        for word in ("SYNC", "ASYNC"):
            if self.word() == word:
                hint = "leave it out: the statement ends when the view is refreshed"
                raise NotYetSupported(f"REFRESH … {word}", position=self.position(), hint=hint)
        self.end()
        return Refresh(name, restart, position, kind, full)

    def copy(self) -> Copy:
        self.at += 1
        self.take("INTO")
        position = self.position()
        name = self.name()
        columns: list[str] = []
        if self.word() == "(":
            columns = self.listed(self.name)
        if self.word() == "TO":
            raise NotYetSupported("COPY … TO", position=self.position(), hint="query it and write the DataFrame")
        if not self.take("FROM"):
            self.fail("FROM 'path'")
        path = self.string("a quoted path or glob")
        return Copy(name, tuple(columns), path, copy_options(self), position)

    def create(self) -> Statement:
        if self.word(1) == "OR" and self.word(2) == "REPLACE":
            return self.create_or_replace()
        kind, at = self.word(1), self.position(self.at + 1)
        if kind in ("TEMP", "TEMPORARY", "GLOBAL", "EXTERNAL", "FUNCTION", "INDEX", "SCHEMA", "DATABASE"):
            raise NotYetSupported(f"CREATE {kind}", position=at)
        self.at += 2
        if kind == "FOREIGN" and self.take("TABLE"):
            return self.create_stream(foreign=True)
        if kind == "MATERIALIZED" and self.take("VIEW"):
            return self.create_view(materialized=True)
        if kind in CREATES:
            return CREATES[kind](self)
        self.at -= 1
        return self.fail(_or(("FOREIGN TABLE", *CREATES)))

    def create_or_replace(self) -> Statement:
        """``CREATE OR REPLACE TABLE`` or ``VIEW``."""
        at = self.position(self.at + 1)
        self.at += 2
        kind = self.word(2) if self.word(1) == "MATERIALIZED" else self.word(1)
        if kind not in ("TABLE", "VIEW"):
            raise NotYetSupported(
                f"CREATE OR REPLACE {kind}", position=at, hint=f"DROP {kind} first (what it keeps is lost), then CREATE"
            )
        found = self.create()
        if isinstance(found, CreateTable | CreateTableAs | CreateView):
            if found.if_not_exists:
                raise SqlError(
                    "PARSE_SYNTAX_ERROR",
                    "CREATE OR REPLACE with IF NOT EXISTS",
                    position=at,
                    hint="leave one of them out: what is there is replaced, or stays",
                )
            return replace(found, or_replace=True)
        raise AssertionError(f"{kind} is read as {type(found).__name__}")

    def create_stream(self, *, foreign: bool = False) -> CreateStream:
        """``CREATE STREAM s (…)``, or ``CREATE FOREIGN TABLE s (…) SERVER stream`` (000 §4.2.6)."""
        exists = self.take("IF", "NOT", "EXISTS")
        if self.is_name() and self.word(1) == "AS":
            at = self.position(self.at + 1)
            raise NotYetSupported("CREATE STREAM … AS", position=at, hint="CREATE STREAM, then INSERT")
        found = definition(self)
        if found.key:
            raise SqlError(
                "STREAM_WITH_KEY",
                f"stream {found.name} cannot have a PRIMARY KEY",
                position=found.key_position,
                hint="a stream keeps no rows to check against; leave the key out",
            )
        for check in found.rules.checks:
            raise NotYetSupported(
                "CHECK on a stream",
                position=check.position,
                hint="filter in the views over it: WHERE …; a table has conditions",
            )
        buffer = buffer_of(with_options(self))
        if foreign:
            if not self.take("SERVER"):
                self.fail("SERVER stream at the end")
            if not self.take("STREAM"):
                self.fail("SERVER stream")
        self.end()
        return CreateStream(found.name, found.columns, exists, found.position, buffer, found.rules)

    def create_table(self) -> CreateTable | CreateTableAs:
        exists = self.take("IF", "NOT", "EXISTS")
        start, position = self.at, self.position()
        name = self.name()
        columns_at = self.at if self.word() == "(" else None
        if columns_at is not None:
            self.at = self.closing.get(self.at, self.at) + 1
        using = self.at
        if self.take("USING") and not is_own(self):
            return self.create_file_table(start, columns_at, exists, using)
        options = with_options(self) if self.word() in ("WITH", "TBLPROPERTIES") and self.word(1) == "(" else []
        if self.word() == "AS" or (columns_at is None and self.at_query()):
            if columns_at is not None:
                raise SqlError(
                    "SCHEMA_IN_CREATE_TABLE_AS",
                    "CREATE TABLE … AS has no column list: names and types are the query's",
                    position=self.position(columns_at + 1),
                    hint="leave it out; name and cast the columns in the query",
                )
            self.take("AS")
            if not self.at_query():
                self.fail("AS and a query")
            return CreateTableAs(name, self.rest_as_query(), exists, position, keep_changes_of(options))
        if self.word() in _TABLE_OPTIONS:
            raise NotYetSupported("LOCATION without USING, LIKE and other options of a table", position=self.position())
        after, self.at = self.at, start
        found = definition(self)
        self.at = max(self.at, after)
        self.end()
        keep_changes = keep_changes_of(options)
        return CreateTable(
            found.name, found.columns, found.key, exists, found.position, None, found.rules, keep_changes
        )

    def create_file_table(self, start: int, columns_at: int | None, exists: bool, using: int) -> CreateTable:
        files = files_clause(self)
        self.at = start
        if columns_at is None:
            return CreateTable(self.name(), (), (), exists, self.position(start), files)
        found = definition(self)
        if self.at != using:
            self.fail("USING")
        if found.key:
            raise SqlError(
                "FILES_WITH_KEY",
                f"table {found.name} lies in files and cannot have a PRIMARY KEY",
                position=found.key_position,
                hint="whoever writes the files could break it; leave the key out",
            )
        for rule in (*found.rules.defaults.values(), *(check.condition for check in found.rules.checks)):
            raise NotYetSupported(
                "DEFAULT and CHECK of a table over files",
                position=rule.position,
                hint="only whoever writes the files could keep to them; leave them out",
            )
        return CreateTable(found.name, found.columns, (), exists, found.position, files)

    def create_view(self, *, materialized: bool = False) -> CreateView:
        exists = self.take("IF", "NOT", "EXISTS")
        position = self.position()
        name = self.name()
        names = tuple(column.name for column in self.names()) if self.word() == "(" else ()
        clauses = refresh_clauses(self) if materialized else Clauses()
        options = with_options(self)
        wanted = Wanted([one for one in options if one.name in OPTIONS] if materialized else (), clauses)
        retain, tables, keep_changes = view_options(
            [one for one in options if one not in wanted.options], OPTIONS if materialized else ()
        )
        if not self.take("AS") or not self.at_query():
            self.fail("AS and a query")
        query, text = self.rest_as_query(), self.written()
        return CreateView(
            name,
            names,
            query,
            text,
            exists,
            position,
            retain,
            materialized,
            tables=tables,
            refreshing=wanted,
            keep_changes=keep_changes,
        )

    def whole_number(self, what: str) -> int:
        """The next number, which may be negative: whoever takes it says what it may be."""
        sign = -1 if self.take("-") else 1
        if self.kind() is not Kind.NUMBER or not self.tokens[self.at].text.isdigit():
            self.fail(what)
        self.at += 1
        return sign * int(self.tokens[self.at - 1].text)

    def insert_with(self) -> Insert | None:
        """``WITH … INSERT INTO …``: the query may name what stands before it."""
        start = self.at
        try:
            ctes = self.ctes()
        except Beyond:
            ctes = None
        if ctes is None or self.word() != "INSERT":
            self.at = start
            return None
        found = self.insert()
        query = found.query
        if query.args.get("with_") is not None:
            query = exp.Subquery(this=query)
        query.set("with_", ctes)
        return replace(found, query=query)

    def insert(self) -> Insert:
        self.at += 1
        overwrite = self.take("OVERWRITE")
        if overwrite and self.word() in ("DIRECTORY", "LOCAL"):
            raise NotYetSupported("INSERT OVERWRITE DIRECTORY", position=self.position(), hint="write the DataFrame")
        if not overwrite and not self.take("INTO"):
            self.fail("INTO and a relation")
        self.take("TABLE")
        position = self.position()
        name = self.name()
        if self.word() in ("PARTITION", "BY", "REPLACE", "WITH") and not self.at_query():
            what = {"BY": "BY NAME", "REPLACE": "REPLACE WHERE"}.get(self.word(), self.word())
            raise NotYetSupported(f"INSERT … {what}", position=self.position())
        names: tuple[str, ...] = ()
        if self.word() == "(" and not self.at_query():
            names = tuple(column.name for column in self.names())
        if self.word() == "BY" and self.word(1) == "NAME":
            raise NotYetSupported("INSERT … BY NAME", position=self.position())
        if not self.at_query():
            self.fail("VALUES or a query")
        return Insert(name, names, self.rest_as_query(), position, overwrite)


def _or(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}"


creates("STREAM")(StatementReader.create_stream)
creates("TABLE")(StatementReader.create_table)
creates("VIEW")(StatementReader.create_view)
