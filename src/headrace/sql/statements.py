"""Headrace's statements, parsed: Spark SQL plus a few of our own.

Queries and column lists are sqlglot's to read (``sql/parsing.py``, ``sql/columns.py``);
statements Spark does not have (CREATE STREAM, COPY …) are read here, from the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from headrace.catalog import Buffer, FileSource
from headrace.errors import NotYetSupported, Position, SqlError
from headrace.sql.columns import declaration, definition
from headrace.sql.copy_options import copy_options
from headrace.sql.cursor import Cursor
from headrace.sql.files_clause import files_clause, using_at
from headrace.sql.options import buffer_of, retain_of
from headrace.sql.parsing import blank, node_at, parse_tree, place, relation_name, tokens
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
_ANEW = "make the table anew: CREATE TABLE … AS with the rows as they should be, then DROP the old one"
_ALONE = "leave it out: each statement commits by itself, or changes nothing"
_NOT_YET = {
    "UPDATE": ("UPDATE of a table", _ANEW),
    "DELETE": ("DELETE from a table", _ANEW),
    "MERGE": ("MERGE INTO a table", _ANEW),
    "TRUNCATE": ("TRUNCATE of a table", "DROP it and CREATE it again"),
    "ALTER": (
        "ALTER of a relation",
        "DROP it and CREATE it again; CREATE TABLE … AS keeps a table's rows",
    ),
    "SET": ("SET of a setting", "settings are given to headrace.connect"),
    "USE": ("more than one schema", "use plain names; another database is another directory"),
    "ANALYZE": ("ANALYZE", "leave it out: Headrace keeps no statistics"),
    "CACHE": ("CACHE", "leave it out: views over streams keep their state"),
    "BEGIN": ("transactions of several statements", _ALONE),
    "COMMIT": ("transactions of several statements", _ALONE),
    "ROLLBACK": ("transactions of several statements", _ALONE),
}
_QUERY_STARTS = {"SELECT", "WITH", "VALUES", "FROM", "("}


def parse(text: str) -> Statement:
    """One statement; :class:`SqlError` with its position where it cannot be read."""
    found = tokens(text)
    while found and found[-1].token_type == TokenType.SEMICOLON:
        text = blank(text, found[-1].start, len(text))
        found.pop()
    if not found:
        raise SqlError("EMPTY_STATEMENT", "there is no statement here", hint="write one, for example SHOW STREAMS")
    for token in found:
        if token.token_type == TokenType.SEMICOLON:
            raise SqlError(
                "MULTIPLE_STATEMENTS",
                "more than one statement",
                position=place(text, token.start),
                hint="run them one by one; `headrace sql -f file.sql` runs a script",
            )
    return _Reader(text, found).statement()


class _Reader(Cursor):
    """Reads one statement from its tokens."""

    def statement(self) -> Statement:
        first = self.word()
        if first == "TABLE":
            return Query(_query(self.from_for_table(0)))
        if first in _QUERY_STARTS:
            return Query(_query(self.text))
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
        if self.at >= len(self.tokens):
            self.fail("a statement to explain")
        start = self.tokens[self.at].start
        return Explain(parse(blank(self.text, 0, start)))

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
        if self.take("("):
            columns = self.comma_separated(self.name)
        if self.word() == "TO":
            raise NotYetSupported("COPY … TO", position=self.position(), hint="query it and write the DataFrame")
        if not self.take("FROM"):
            self.fail("FROM 'path'")
        path = self.string("a quoted path or glob")
        return Copy(name, tuple(columns), path, copy_options(self), position)

    def create(self) -> Statement:
        if self.word(1) == "OR" and self.word(2) == "REPLACE":
            raise NotYetSupported(
                "CREATE OR REPLACE", position=self.position(1), hint="DROP it first (its state is lost), then CREATE"
            )
        kind, text = self.word(1), self.text
        if kind == "MATERIALIZED":
            raise NotYetSupported(
                "MATERIALIZED VIEW",
                position=self.position(1),
                hint="CREATE VIEW over a stream keeps a continuous view; over tables it is an ordinary view",
            )
        if kind in ("TEMP", "TEMPORARY", "GLOBAL", "EXTERNAL", "FUNCTION", "INDEX", "SCHEMA", "DATABASE"):
            raise NotYetSupported(f"CREATE {kind}", position=self.position(1))
        self.refuse_trailing_comma()
        if kind == "FOREIGN" and self.word(2) == "TABLE":
            return self.create_stream(self.without_server())
        if kind == "STREAM":
            token = self.tokens[1]
            return self.create_stream(text[: token.start] + "TABLE " + text[token.end + 1 :])
        if kind == "TABLE":
            return self.create_table()
        if kind == "VIEW":
            return self.create_view()
        self.at = 1
        if kind == "SAMPLE":
            return self.create_sample()
        return self.fail("STREAM, FOREIGN TABLE, TABLE, VIEW or SAMPLE")

    def without_server(self) -> str:
        """``CREATE FOREIGN TABLE s (...) SERVER stream`` with the foreign words blanked (000 §4.2.6)."""
        self.at = max(3, len(self.tokens) - 2)
        if self.word() != "SERVER":
            self.at = len(self.tokens)
            self.fail("SERVER stream at the end")
        text = blank(self.text, self.tokens[self.at].start, self.tokens[-1].end + 1)
        self.at += 1
        if self.word() != "STREAM":
            self.fail("SERVER stream")
        return blank(text, self.tokens[1].start, self.tokens[1].end + 1)

    def refuse_trailing_comma(self) -> None:
        """sqlglot takes a comma that ends a column list."""
        for index in range(2, len(self.tokens) - 1):
            if self.word(index) == "AS":
                return
            if self.word(index) == "," and self.word(index + 1) == ")":
                self.at = index + 1
                self.fail("a column")

    def create_stream(self, text: str) -> CreateStream:
        tree = declaration(text)
        if tree.args.get("expression") is not None:
            raise NotYetSupported("CREATE STREAM … AS", position=self.position(), hint="CREATE STREAM, then INSERT")
        found = definition(tree)
        if found.key:
            raise SqlError(
                "STREAM_WITH_KEY",
                f"stream {found.name} cannot have a PRIMARY KEY",
                position=node_at(found.key_tree),
                hint="a stream keeps no rows to check against; leave the key out",
            )
        position = self.position_of_name(tree)
        return CreateStream(
            found.name, found.columns, bool(tree.args.get("exists")), position, buffer_of(tree, position)
        )

    def create_table(self) -> CreateTable | CreateTableAs:
        using = using_at(self)
        if using is not None:
            return self.create_file_table(using)
        text = self.with_query()
        tree = parse_tree(text) if self.has_query() else declaration(text)
        query = tree.args.get("expression")
        if query is not None:
            return self.create_table_as(tree, query)
        self.refuse_options(tree, "LOCATION without USING, LIKE and other options of a table")
        found = definition(tree)
        exists = bool(tree.args.get("exists"))
        return CreateTable(found.name, found.columns, found.key, exists, self.position_of_name(tree))

    def create_file_table(self, using: int) -> CreateTable:
        files = files_clause(self, using)
        tree = declaration(blank(self.text, self.tokens[using].start, len(self.text)))
        exists, at = bool(tree.args.get("exists")), self.position_of_name(tree)
        if not isinstance(tree.this, exp.Schema):
            return CreateTable(relation_name(tree.this), (), (), exists, at, files)
        found = definition(tree)
        if found.key:
            raise SqlError(
                "FILES_WITH_KEY",
                f"table {found.name} lies in files and cannot have a PRIMARY KEY",
                position=node_at(found.key_tree),
                hint="whoever writes the files could break it; leave the key out",
            )
        return CreateTable(found.name, found.columns, (), exists, at, files)

    def create_table_as(self, tree: exp.Expr, query: exp.Expr) -> CreateTableAs:
        if not isinstance(query, exp.Query | exp.Values):
            self.at = len(self.tokens)
            self.fail("AS and a query")
        self.refuse_options(tree, "USING, LOCATION and other options of CREATE TABLE … AS")
        if isinstance(tree.this, exp.Schema):
            raise SqlError(
                "SCHEMA_IN_CREATE_TABLE_AS",
                "CREATE TABLE … AS has no column list: names and types are the query's",
                position=node_at(tree.this.expressions[0]) if tree.this.expressions else self.position_of_name(tree),
                hint="leave it out; name and cast the columns in the query",
            )
        name = relation_name(tree.this)
        return CreateTableAs(name, query, bool(tree.args.get("exists")), self.position_of_name(tree))

    def has_query(self) -> bool:
        return any(self.word(at) == "AS" for at in range(2, len(self.tokens)))

    def with_query(self) -> str:
        """The text with ``AS TABLE r`` written as ``AS FROM r``, which sqlglot reads."""
        for at in range(2, len(self.tokens) - 1):
            if self.word(at) == "AS":
                return self.from_for_table(at + 1) if self.word(at + 1) == "TABLE" else self.text
        return self.text

    def from_for_table(self, at: int) -> str:
        """``TABLE r`` is ``FROM r``, which is as long, so that positions stay true."""
        start, end = self.tokens[at].start, self.tokens[at].end + 1
        return self.text[:start] + "FROM ".ljust(end - start) + self.text[end:]

    def refuse_options(self, tree: exp.Expr, what: str) -> None:
        if options := tree.args.get("properties"):
            raise NotYetSupported(what, position=node_at(options) or self.position_of_name(tree))

    def create_view(self) -> CreateView:
        tree = parse_tree(self.with_query())
        query = tree.args.get("expression")
        if not isinstance(query, exp.Query | exp.Values):
            self.at = len(self.tokens)
            self.fail("AS and a query")
        position = self.position_of_name(tree)
        retain = retain_of(tree, position)
        target = tree.this
        names: tuple[str, ...] = ()
        if isinstance(target, exp.Schema):
            names = tuple(c.name for c in target.expressions)
            target = target.this
        return CreateView(
            relation_name(target), names, query, self.text.strip(), bool(tree.args.get("exists")), position, retain
        )

    def create_sample(self) -> CreateSample:
        self.at += 1
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
        if self.groups():
            self.at += 1
            while not keys or self.take(","):
                key_positions.append(self.position())
                keys.append(self.name())
        seed = self.whole_number("a seed") if self.take("SEED") else None
        self.end()
        return CreateSample(
            name, of, size, query, tuple(keys), seed, self.text.strip(), exists, position, of_position, size_position,
            tuple(key_positions),
        )  # fmt: skip

    def sampled_rows(self, of_token: int) -> exp.Expr:
        """``SELECT * FROM stream [WHERE …]``, every word of the user's where it was written."""
        start = self.at
        if self.word() == "WHERE":
            depth = 0
            while self.at < len(self.tokens) and (depth or not self.ends_condition()):
                depth += {"(": 1, ")": -1}.get(self.word(), 0)
                self.at += 1
        of, last = self.tokens[of_token], self.tokens[self.at - 1]
        text = "SELECT * FROM".ljust(of.start) + self.text[of.start : of.end + 1]
        if self.at > start:
            condition = self.tokens[start].start
            text += blank(self.text, 0, condition)[of.end + 1 :][: condition - of.end - 1]
            text += self.text[condition : last.end + 1]
        lines = [at for at in range(of.start) if self.text[at] == "\n" and at >= len("SELECT * FROM")]
        for at in lines:
            text = text[:at] + "\n" + text[at + 1 :]
        return _query(text)

    def groups(self) -> bool:
        return self.word().split() == ["GROUP", "BY"]  # one token

    def ends_condition(self) -> bool:
        return self.groups() or (self.word() == "SEED" and self.at == len(self.tokens) - 2)

    def whole_number(self, what: str) -> int:
        """The next number, which may be negative: whoever takes it says what it may be."""
        sign = -1 if self.take("-") else 1
        if not self.word().isdigit():
            self.fail(what)
        self.at += 1
        return sign * int(self.tokens[self.at - 1].text)

    def position_of_name(self, tree: exp.Expr) -> Position:
        table = tree.find(exp.Table)
        return (node_at(table.this) if table is not None else None) or self.position()

    def insert(self) -> Insert:
        tree = parse_tree(self.text)
        if not isinstance(tree, exp.Insert):
            self.fail("INSERT INTO name …")
        if tree.args.get("overwrite"):
            raise NotYetSupported("INSERT OVERWRITE", position=self.position())
        for unknown in ("by_name", "partition", "where", "conflict", "returning", "with_"):
            if tree.args.get(unknown):
                raise NotYetSupported(
                    f"INSERT … {unknown.strip('_').upper().replace('_', ' ')}", position=self.position()
                )
        query = tree.args.get("expression")
        if not isinstance(query, exp.Query | exp.Values):
            self.at = len(self.tokens)
            self.fail("VALUES or a query")
        target, names = tree.this, tuple[str, ...]()
        if isinstance(target, exp.Schema):
            names = tuple(c.name for c in target.expressions)
            target = target.this
        if extra := [part for part, value in target.args.items() if value and part not in ("this", "db", "catalog")]:
            raise NotYetSupported(f"INSERT … {extra[0].upper()}", position=node_at(target))
        return Insert(relation_name(target), names, query, self.position_of_name(tree))


def _query(text: str) -> exp.Expr:
    tree = parse_tree(text)
    if not isinstance(tree, exp.Query | exp.Values):
        raise SqlError("PARSE_SYNTAX_ERROR", "this is not a query", position=Position(1, 1))
    return tree
