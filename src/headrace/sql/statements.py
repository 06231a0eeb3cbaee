"""Headrace's statements, parsed: Spark SQL plus a few of our own.

sqlglot's Spark parser reads queries and column lists. Statements Spark does not
have (CREATE STREAM, COPY …) are read here from the same tokens; where one is
Spark's statement under another word, the word is blanked out *in place*, so that
every position still points into the text the user wrote.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from headrace.errors import NotYetSupported, Position, SqlError
from headrace.sql.verbatim import Verbatim
from headrace.types import Field, Schema, Type, parse_type

DIALECT = Verbatim

# sqlglot reports statements it does not know on a logger; we raise a named error instead.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


@dataclass(frozen=True)
class CreateStream:
    name: str
    columns: Schema
    if_not_exists: bool
    position: Position


@dataclass(frozen=True)
class CreateTable:
    name: str
    columns: Schema
    primary_key: tuple[str, ...]
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


Statement = CreateStream | CreateTable | CreateView | Insert | Copy | Query | Explain | Show | Describe | Drop

# Statements of later work or of Spark's that Headrace does not run, by their first word.
_NOT_YET = {
    "UPDATE": "UPDATE of a table",
    "DELETE": "DELETE from a table",
    "MERGE": "MERGE INTO a table",
    "TRUNCATE": "TRUNCATE of a table",
    "REFRESH": "REFRESH of a view",
    "ALTER": "ALTER of a relation",
    "SET": "SET of a setting (settings are given to headrace.connect)",
    "USE": "more than one schema",
    "ANALYZE": "ANALYZE",
    "CACHE": "CACHE",
    "BEGIN": "transactions of several statements",
    "COMMIT": "transactions of several statements",
    "ROLLBACK": "transactions of several statements",
}
_QUERY_STARTS = {"SELECT", "WITH", "VALUES", "FROM", "TABLE", "("}
COPY_OPTIONS = ("format", "header", "delimiter", "quote", "null", "quoted_newlines")


def split_statements(text: str) -> list[str]:
    """The statements of a script, cut at semicolons that stand outside quotes and comments.

    >>> split_statements("SELECT ';' AS a; -- done;\\nSELECT 2;")
    ["SELECT ';' AS a", 'SELECT 2']
    """
    tokens = _tokens(text)
    found: list[str] = []
    start: int | None = None
    end = 0
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            if start is not None:
                found.append(text[start : end + 1])
            start = None
            continue
        start = token.start if start is None else start
        end = token.end
    if start is not None:
        found.append(text[start : end + 1])
    return found


def parse(text: str) -> Statement:
    """One statement; :class:`SqlError` with its position where it cannot be read."""
    tokens = _tokens(text)
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        text = text[: tokens[-1].start] + " " * (len(text) - tokens[-1].start)
        tokens.pop()
    if not tokens:
        raise SqlError("EMPTY_STATEMENT", "there is no statement here", hint="write one, for example SHOW STREAMS")
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            raise SqlError(
                "MULTIPLE_STATEMENTS",
                "more than one statement",
                position=_at(token),
                hint="run them one by one; `headrace sql -f file.sql` runs a script",
            )
    return _Reader(text, tokens).statement()


class _Reader:
    """Reads one statement from its tokens."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text = text
        self.tokens = tokens
        self.at = 0

    # Token access

    def word(self, ahead: int = 0) -> str:
        index = self.at + ahead
        if index >= len(self.tokens) or self.tokens[index].token_type in (TokenType.STRING, TokenType.IDENTIFIER):
            return ""
        return self.tokens[index].text.upper()

    def take(self, *words: str) -> bool:
        if all(self.word(i) == w for i, w in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def position(self) -> Position:
        return _at(self.tokens[min(self.at, len(self.tokens) - 1)])

    def fail(self, expected: str) -> NoReturn:
        found = f"found {self.tokens[self.at].text!r}" if self.at < len(self.tokens) else "the statement ends"
        raise SqlError("PARSE_SYNTAX_ERROR", f"expected {expected}, but {found}", position=self.position())

    def name(self) -> str:
        if self.at >= len(self.tokens):
            self.fail("a name")
        token = self.tokens[self.at]
        plain = token.token_type != TokenType.STRING and (token.text[:1].isalpha() or token.text[:1] == "_")
        if not plain and token.token_type != TokenType.IDENTIFIER:
            self.fail("a name")
        self.at += 1
        if self.word() == "." or (self.at < len(self.tokens) and self.tokens[self.at].token_type == TokenType.DOT):
            raise NotYetSupported("names with a schema or catalog", position=self.position(), hint="use the plain name")
        return token.text

    def string(self, what: str) -> str:
        if self.at >= len(self.tokens) or self.tokens[self.at].token_type != TokenType.STRING:
            self.fail(what)
        self.at += 1
        return self.tokens[self.at - 1].text

    def end(self) -> None:
        if self.at < len(self.tokens):
            self.fail("the end of the statement")

    # Statements

    def statement(self) -> Statement:
        first = self.word()
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
        if first in _NOT_YET:
            raise NotYetSupported(_NOT_YET[first], position=self.position())
        return self.fail("a statement (SELECT, CREATE, INSERT, COPY, EXPLAIN, SHOW, DESCRIBE or DROP)")

    def explain(self) -> Explain:
        self.at += 1
        for mode in ("EXTENDED", "FORMATTED", "COST", "CODEGEN"):
            if self.word() == mode:
                raise NotYetSupported(f"EXPLAIN {mode}", position=self.position(), hint="write EXPLAIN alone")
        if self.at >= len(self.tokens):
            self.fail("a statement to explain")
        start = self.tokens[self.at].start
        return Explain(parse(_blank(self.text, 0, start)))

    def show(self) -> Show:
        self.at += 1
        for what in ("STREAMS", "TABLES", "VIEWS"):
            if self.take(what):
                self.end()
                return Show(what.lower())
        return self.fail("STREAMS, TABLES or VIEWS")

    def describe(self) -> Describe:
        self.at += 1
        for word in ("TABLE", "VIEW", "STREAM", "EXTENDED"):
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
        ):
            if self.take(*words):
                kind = meaning
                break
        else:
            self.fail("STREAM, TABLE or VIEW")
        if_exists = self.take("IF", "EXISTS")
        position = self.position()
        name = self.name()
        if self.word() == "CASCADE":
            raise NotYetSupported(
                "DROP … CASCADE", position=self.position(), hint="drop what depends on it first, then this"
            )
        self.take("RESTRICT")
        self.end()
        return Drop(kind, name, if_exists, position)

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
        options: dict[str, str] = {}
        self.take("WITH")
        if self.take("("):
            self.comma_separated(lambda: self.copy_option(options))
        while self.at < len(self.tokens):
            self.copy_option(options)
        return Copy(name, tuple(columns), path, options, position)

    def copy_option(self, options: dict[str, str]) -> None:
        position = self.position()
        option = self.word().lower()
        if option in ("csv", "parquet"):
            self.at += 1
            option, value = "format", option
        elif option == "format":
            self.at += 1
            self.take("=")
            value = self.tokens[self.at].text.lower() if self.at < len(self.tokens) else self.fail("csv or parquet")
            self.at += 1
        elif option in ("header", "quoted_newlines"):
            self.at += 1
            self.take("=")
            value = "true"
            if self.word() in ("TRUE", "FALSE", "ON", "OFF"):
                value = "true" if self.word() in ("TRUE", "ON") else "false"
                self.at += 1
        elif option in ("delimiter", "quote", "null"):
            self.at += 1
            self.take("=")
            value = self.string(f"a quoted {option}")
        else:
            known = ", ".join(o.upper() for o in COPY_OPTIONS)
            raise SqlError(
                "COPY_UNKNOWN_OPTION", f"COPY has no option {option or '?'}", position=position, hint=f"it has {known}"
            )
        if option in options:
            raise SqlError("COPY_REPEATED_OPTION", f"{option.upper()} is given twice", position=position)
        options[option] = value

    def comma_separated(self, read: Any) -> list[Any]:
        found = [read()]
        while self.take(","):
            found.append(read())
        if not self.take(")"):
            self.fail("')'")
        return found

    def create(self) -> Statement:
        if self.word(1) == "OR" and self.word(2) == "REPLACE":
            raise NotYetSupported(
                "CREATE OR REPLACE", position=_at(self.tokens[1]), hint="DROP it first (its state is lost), then CREATE"
            )
        kind, text = self.word(1), self.text
        if kind == "MATERIALIZED":
            raise NotYetSupported(
                "MATERIALIZED VIEW",
                position=_at(self.tokens[1]),
                hint="CREATE VIEW over a stream keeps a continuous view; over tables it is an ordinary view",
            )
        if kind in ("TEMP", "TEMPORARY", "GLOBAL", "EXTERNAL", "FUNCTION", "SAMPLE", "INDEX", "SCHEMA", "DATABASE"):
            raise NotYetSupported(f"CREATE {kind}", position=_at(self.tokens[1]))
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
        return self.fail("STREAM, FOREIGN TABLE, TABLE or VIEW")

    def without_server(self) -> str:
        """``CREATE FOREIGN TABLE s (...) SERVER stream`` with the foreign words blanked (000 §4.2.6)."""
        for index, token in enumerate(self.tokens):
            if token.text.upper() == "SERVER" and token.token_type == TokenType.VAR:
                self.at = index + 1
                if self.word() != "STREAM":
                    self.fail("SERVER stream")
                text = _blank(self.text, token.start, self.tokens[self.at].end + 1)
                return _blank(text, self.tokens[1].start, self.tokens[1].end + 1)
        self.at = len(self.tokens)
        return self.fail("SERVER stream")

    def create_stream(self, text: str) -> CreateStream:
        tree = _sqlglot(text)
        name, columns, key, options = _definition(tree)
        if key:
            raise SqlError(
                "STREAM_WITH_KEY",
                f"stream {name} cannot have a PRIMARY KEY",
                position=self.position(),
                hint="a stream keeps no rows to check against; leave the key out",
            )
        if options:
            raise NotYetSupported("WITH (…) options of a stream", position=_node_at(options))
        return CreateStream(name, columns, bool(tree.args.get("exists")), self.position_of_name(tree))

    def create_table(self) -> CreateTable:
        tree = _sqlglot(self.text)
        if tree.args.get("expression") is not None:
            raise NotYetSupported(
                "CREATE TABLE … AS", position=self.position(), hint="CREATE TABLE, then INSERT … SELECT"
            )
        name, columns, key, options = _definition(tree)
        if options:
            raise NotYetSupported("USING, LOCATION and other options of a table", position=_node_at(options))
        return CreateTable(name, columns, key, bool(tree.args.get("exists")), self.position_of_name(tree))

    def create_view(self) -> CreateView:
        tree = _sqlglot(self.text)
        query = tree.args.get("expression")
        if not isinstance(query, exp.Query):
            self.at = len(self.tokens)
            self.fail("AS and a query")
        if properties := tree.args.get("properties"):
            raise NotYetSupported("WITH (…), COMMENT and other properties of a view", position=_node_at(properties))
        target = tree.this
        names: tuple[str, ...] = ()
        if isinstance(target, exp.Schema):
            names = tuple(c.name for c in target.expressions)
            target = target.this
        return CreateView(
            _relation(target), names, query, self.text, bool(tree.args.get("exists")), self.position_of_name(tree)
        )

    def position_of_name(self, tree: exp.Expr) -> Position:
        table = tree.find(exp.Table)
        return (_node_at(table.this) if table is not None else None) or self.position()

    def insert(self) -> Insert:
        tree = _sqlglot(self.text)
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
        return Insert(_relation(target), names, query, self.position_of_name(tree))


def _tokens(text: str) -> list[Token]:
    try:
        tokens = sqlglot.tokenize(text, read=DIALECT)
        if tokens and tokens[0].text.upper() in ("EXPLAIN", "SHOW"):
            # sqlglot swallows what follows these words whole: read it apart.
            return [tokens[0], *_tokens(_blank(text, tokens[0].start, tokens[0].end + 1))]
        return tokens
    except TokenError as e:
        line = text.count("\n") + 1
        raise SqlError(
            "PARSE_SYNTAX_ERROR",
            "a quote or comment is not closed, or a character is not understood",
            position=Position(line, 1),
            hint=str(e).splitlines()[0],
        ) from None


def _functions_named_window(tokens: list[Token]) -> list[Token]:
    """``GROUP BY window(ts, …)`` calls a function; sqlglot would read a WINDOW clause there."""
    return [
        Token(TokenType.VAR, t.text, t.line, t.col, t.start, t.end, t.comments)
        if t.token_type == TokenType.WINDOW and after is not None and after.token_type == TokenType.L_PAREN
        else t
        for t, after in zip(tokens, [*tokens[1:], None], strict=True)
    ]


def _query(text: str) -> exp.Expr:
    tree = _sqlglot(text)
    if not isinstance(tree, exp.Query | exp.Values):
        raise SqlError("PARSE_SYNTAX_ERROR", "this is not a query")
    return tree


def _sqlglot(text: str) -> exp.Expr:
    try:
        trees = Verbatim().parser().parse(_functions_named_window(_tokens(text)), text)
        tree = trees[0] if len(trees) == 1 else None
    except ParseError as e:
        error = e.errors[0] if e.errors else {}
        highlight = (error.get("highlight") or "").strip()
        near = f" near {highlight!r}" if highlight else ""
        line, column = error.get("line") or 1, error.get("col") or 1
        start = max(1, column - max(len(highlight) - 1, 0))
        message = (error.get("description") or "cannot be parsed").rstrip(".")
        if message.startswith("Required keyword"):
            message = "something is missing"  # sqlglot names its own classes here
        raise SqlError("PARSE_SYNTAX_ERROR", f"{message}{near}", position=Position(line, start)) from None
    if tree is None or isinstance(tree, exp.Command):
        raise SqlError("PARSE_SYNTAX_ERROR", "this statement is not understood", position=Position(1, 1))
    return tree


def _definition(tree: exp.Expr) -> tuple[str, Schema, tuple[str, ...], exp.Expr | None]:
    """Name, columns, primary key and any further properties of a CREATE TABLE tree."""
    schema = tree.this
    if not isinstance(schema, exp.Schema):
        name = _relation(schema) if isinstance(schema, exp.Table) else "it"
        raise SqlError(
            "MISSING_COLUMNS", f"{name} has no column list", hint="write (name TYPE, …) after the name, with types"
        )
    fields: list[Field] = []
    key: tuple[str, ...] = ()
    for part in schema.expressions:
        if isinstance(part, exp.PrimaryKey):
            key = tuple(c.name for c in part.expressions)
        elif isinstance(part, exp.ColumnDef):
            column, is_key = _column(part)
            fields.append(column)
            key = (column.name,) if is_key else key
        else:
            raise NotYetSupported(f"{part.sql(DIALECT)} in a column list", position=_node_at(part))
    _check_columns(fields, key, schema)
    not_null = {k.lower() for k in key}
    columns = tuple(Field(f.name, f.type, f.nullable and f.name.lower() not in not_null) for f in fields)
    return _relation(schema.this), columns, key, tree.args.get("properties")


def _column(part: exp.ColumnDef) -> tuple[Field, bool]:
    nullable, is_key = True, False
    for constraint in part.args.get("constraints") or ():
        kind = constraint.args.get("kind")
        if isinstance(kind, exp.NotNullColumnConstraint):
            nullable = bool(kind.args.get("allow_null"))
        elif isinstance(kind, exp.PrimaryKeyColumnConstraint):
            is_key = True
        else:
            raise NotYetSupported(f"{constraint.sql(DIALECT)} on column {part.name}", position=_node_at(part.this))
    return Field(part.name, column_type(part), nullable), is_key


def column_type(part: exp.ColumnDef) -> Type:
    kind = part.args.get("kind")
    if kind is None:
        raise SqlError("MISSING_TYPE", f"column {part.name} has no type", position=_node_at(part.this))
    text = kind.sql(DIALECT)
    found = parse_type(text)
    if found is None:
        raise NotYetSupported(
            f"type {text} of column {part.name}",
            position=_node_at(part.this),
            hint="types: boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s) with 1 <= p <= 38 and "
            "s <= p, string, binary, date, timestamp, timestamp_ntz",
        )
    return found


def _check_columns(fields: list[Field], key: tuple[str, ...], schema: exp.Expr) -> None:
    seen: set[str] = set()
    for column in fields:
        if column.name.lower() in seen:
            raise SqlError(
                "COLUMN_ALREADY_EXISTS", f"column {column.name} is declared twice", position=_node_at(schema)
            )
        seen.add(column.name.lower())
    for name in key:
        if name.lower() not in seen:
            raise SqlError("UNRESOLVED_COLUMN", f"PRIMARY KEY names {name}, which is not a column")


def _relation(table: exp.Expr) -> str:
    if isinstance(table, exp.Table) and (table.args.get("db") or table.args.get("catalog")):
        raise NotYetSupported(
            "names with a schema or catalog", position=_node_at(table.this), hint="use the plain name"
        )
    return table.name


def _node_at(node: Any) -> Position | None:
    for part in node.walk() if isinstance(node, exp.Expr) else ():
        if "line" in part.meta:
            meta = part.meta
            return Position(meta["line"], max(1, meta["col"] - (meta["end"] - meta["start"])))
    return None


def _at(token: Token) -> Position:
    return Position(token.line, max(1, token.col - (token.end - token.start)))


def _blank(text: str, start: int, end: int) -> str:
    """``text`` with a stretch overwritten by blanks, line ends kept, so that positions stay true."""
    return text[:start] + "".join("\n" if c == "\n" else " " for c in text[start:end]) + text[end:]
