"""Headrace's statements, parsed: Spark SQL plus a few of our own.

Queries are read by ``sql/grammar.py``, column lists by ``sql/columns.py``, the words around them here, all from the
same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from headrace.catalog import Buffer, FileSource
from headrace.errors import NotYetSupported, Position, SqlError
from headrace.sql.columns import definition
from headrace.sql.copy_options import copy_options
from headrace.sql.cursor import Cursor
from headrace.sql.files_clause import files_clause, is_own
from headrace.sql.lexer import Kind, place, tokens
from headrace.sql.options import buffer_of, retain_of, with_options
from headrace.sql.token_reader import Beyond
from headrace.types import Schema


@dataclass(frozen=True)
class CreateStream:
    name: str
    columns: Schema
    if_not_exists: bool
    position: Position
    buffer: Buffer | None = None
    """``WITH (capacity = …, timeout = …, overflow = …, patience = …)``."""


@dataclass(frozen=True)
class CreateTable:
    name: str
    columns: Schema
    primary_key: tuple[str, ...]
    if_not_exists: bool
    position: Position
    files: FileSource | None = None
    """Where its rows lie, if they are not its own; ``columns`` may then be empty."""


@dataclass(frozen=True)
class CreateTableAs:
    name: str
    query: exp.Expr
    if_not_exists: bool
    position: Position


@dataclass(frozen=True)
class CreateView:
    name: str
    columns: tuple[str, ...]
    """Names given in ``CREATE VIEW v (a, b)``; empty for the query's own."""
    query: exp.Expr
    text: str
    if_not_exists: bool
    position: Position
    retain: int | None = None
    """For how many microseconds groups are kept: ``WITH (retain = '7 days')``."""


@dataclass(frozen=True)
class CreateSample:
    name: str
    of: str
    size: int
    query: exp.Expr
    """All columns of the stream's rows that its WHERE lets pass."""
    keys: tuple[str, ...]
    seed: int | None
    text: str
    if_not_exists: bool
    position: Position
    of_position: Position
    size_position: Position
    key_positions: tuple[Position, ...]


@dataclass(frozen=True)
class Insert:
    name: str
    columns: tuple[str, ...]
    query: exp.Expr
    position: Position


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


Create = CreateStream | CreateTable | CreateTableAs | CreateView | CreateSample
Statement = Create | Insert | Copy | Query | Explain | Show | Describe | Drop | Refresh

# Statements of later work or of Spark's that Headrace does not run, by their first word, and what to write instead.
_READ = "views that read it go first (DESCRIBE shows their text; over a stream they begin empty again)"
_ANEW = (
    "make it anew: CREATE TABLE kept AS SELECT … with the rows as they should be, DROP TABLE t, CREATE TABLE t (…), "
    f"INSERT INTO t SELECT * FROM kept, DROP TABLE kept; {_READ}. A table over files, USING parquet LOCATION '…', "
    "changes with its files"
)
_ALONE = "leave it out: each statement commits by itself, or changes nothing"
_NOT_YET = {
    "UPDATE": ("UPDATE of a table", _ANEW),
    "DELETE": ("DELETE from a table", _ANEW),
    "MERGE": ("MERGE INTO a table", _ANEW),
    "TRUNCATE": ("TRUNCATE of a table", f"DROP TABLE t, then CREATE TABLE t (…) again; {_READ}"),
    "ALTER": (
        "ALTER of a relation",
        "DROP it and CREATE it as it should be; CREATE TABLE kept AS SELECT * FROM t keeps a table's rows meanwhile, "
        f"INSERT INTO t SELECT … FROM kept brings them back; {_READ}",
    ),
    "SET": ("SET of a setting", "settings are given to headrace.connect"),
    "USE": ("more than one schema", "use plain names; another database is another directory"),
    "ANALYZE": ("ANALYZE", "leave it out: Headrace keeps no statistics"),
    "CACHE": ("CACHE", "leave it out: views over streams keep their state"),
    "BEGIN": ("transactions of several statements", _ALONE),
    "COMMIT": ("transactions of several statements", _ALONE),
    "ROLLBACK": ("transactions of several statements", _ALONE),
}
_QUERY_STARTS = {"SELECT", "WITH", "VALUES", "FROM", "TABLE", "("}
_TABLE_OPTIONS = (
    "LOCATION",
    "LIKE",
    "PARTITIONED",
    "CLUSTERED",
    "CLUSTER",
    "COMMENT",
    "OPTIONS",
    "TBLPROPERTIES",
    "WITH",
)


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
    return _Reader(text[: found[-1].end], found).statement()


class _Reader(Cursor):
    """Reads one statement from its tokens."""

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
        if first == "REFRESH":
            return self.refresh()
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
        for what in ("STREAMS", "TABLES", "VIEWS", "SAMPLES"):
            if self.take(what):
                self.end()
                return Show(what.lower())
        return self.fail("STREAMS, TABLES, VIEWS or SAMPLES")

    def describe(self) -> Describe:
        self.at += 1
        for word in ("TABLE", "VIEW", "STREAM", "SAMPLE", "EXTENDED"):
            if self.word() == word and self.at + 1 < len(self.tokens):
                self.at += 1
                break
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
            (("STREAM",), "stream"),
            (("TABLE",), "table"),
            (("VIEW",), "view"),
            (("SAMPLE",), "sample"),
        ):
            if self.take(*words):
                kind = meaning
                break
        else:
            self.fail("STREAM, TABLE, VIEW or SAMPLE")
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
        if self.word() in ("VIEW", "SAMPLE") and self.at + 1 < len(self.tokens) and self.word(1) != "RESTART":
            self.at += 1
        position = self.position()
        name = self.name()
        restart = self.take("RESTART")
        self.end()
        return Refresh(name, restart, position)

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
            raise NotYetSupported(
                "CREATE OR REPLACE",
                position=self.position(self.at + 1),
                hint="DROP it first (its state is lost), then CREATE",
            )
        kind, at = self.word(1), self.position(self.at + 1)
        if kind == "MATERIALIZED":
            raise NotYetSupported(
                "MATERIALIZED VIEW",
                position=at,
                hint="CREATE VIEW over a stream keeps a continuous view; over tables it is an ordinary view",
            )
        if kind in ("TEMP", "TEMPORARY", "GLOBAL", "EXTERNAL", "FUNCTION", "INDEX", "SCHEMA", "DATABASE"):
            raise NotYetSupported(f"CREATE {kind}", position=at)
        self.at += 2
        if kind == "FOREIGN" and self.take("TABLE"):
            return self.create_stream(foreign=True)
        if kind == "STREAM":
            return self.create_stream()
        if kind == "TABLE":
            return self.create_table()
        if kind == "VIEW":
            return self.create_view()
        if kind == "SAMPLE":
            return self.create_sample()
        self.at -= 1
        return self.fail("STREAM, FOREIGN TABLE, TABLE, VIEW or SAMPLE")

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
        buffer = buffer_of(with_options(self))
        if foreign:
            if not self.take("SERVER"):
                self.fail("SERVER stream at the end")
            if not self.take("STREAM"):
                self.fail("SERVER stream")
        self.end()
        return CreateStream(found.name, found.columns, exists, found.position, buffer)

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
            return CreateTableAs(name, self.rest_as_query(), exists, position)
        if self.word() in _TABLE_OPTIONS:
            raise NotYetSupported("LOCATION without USING, LIKE and other options of a table", position=self.position())
        after, self.at = self.at, start
        found = definition(self)
        self.at = max(self.at, after)
        self.end()
        return CreateTable(found.name, found.columns, found.key, exists, found.position)

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
        return CreateTable(found.name, found.columns, (), exists, found.position, files)

    def create_view(self) -> CreateView:
        exists = self.take("IF", "NOT", "EXISTS")
        position = self.position()
        name = self.name()
        names = tuple(column.name for column in self.names()) if self.word() == "(" else ()
        retain = retain_of(with_options(self))
        if not self.take("AS") or not self.at_query():
            self.fail("AS and a query")
        return CreateView(name, names, self.rest_as_query(), self.written(), exists, position, retain)

    def create_sample(self) -> CreateSample:
        exists = self.take("IF", "NOT", "EXISTS")
        position = self.position()
        name = self.name()
        if not self.take("OF"):
            self.fail("OF and a stream")
        of_position, of_token = self.position(), self.at
        of = self.name()
        if not self.take("SIZE"):
            self.fail("SIZE and a number of rows")
        size_position = self.position()
        size = self.whole_number("a number of rows")
        query = self.sampled_rows(of_token)
        keys: list[str] = []
        key_positions: list[Position] = []
        if self.take("GROUP", "BY"):
            while not keys or self.take(","):
                key_positions.append(self.position())
                keys.append(self.name())
        seed = self.whole_number("a seed") if self.take("SEED") else None
        self.end()
        return CreateSample(
            name, of, size, query, tuple(keys), seed, self.written(), exists, position, of_position, size_position,
            tuple(key_positions),
        )  # fmt: skip

    def sampled_rows(self, of_token: int) -> exp.Expr:
        """``SELECT * FROM stream [WHERE …]``, every word of the user's where it was written."""
        at = self.at
        self.at = of_token
        table = self.made(exp.Table(this=self.identifier()), of_token)
        self.at = at
        select = exp.Select(expressions=[exp.Star()], from_=exp.From(this=table))
        if self.take("WHERE"):
            select.set("where", self.made(exp.Where(this=self.expression()), at))
        return self.made(select, of_token)

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
        if self.word() == "OVERWRITE":
            raise NotYetSupported("INSERT OVERWRITE", position=self.position())
        if not self.take("INTO"):
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
        return Insert(name, names, self.rest_as_query(), position)
