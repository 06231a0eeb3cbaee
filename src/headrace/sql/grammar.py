"""Queries of Spark SQL: text to trees.

A recursive descent through Spark's own grammar, rule by rule. It reads what Spark reads and nothing more: what it does
not know is an error, never skipped. Three kinds of syntax have no meaning here and are Spark's to run:

* a clause that only concerns its block (PIVOT, LATERAL VIEW, SORT BY …) is a node the binder does not
  know, so that the block is handed to Spark;
* syntax that changes what a whole query is (pipes, TRANSFORM, recursion) makes the query :class:`Opaque`;
* hints are passed over: they change no answer.

>>> tree = parse_query("SELECT a FROM t WHERE b > 1 ORDER BY a LIMIT 2")
>>> sorted(part for part, value in tree.args.items() if value)
['expressions', 'from_', 'limit', 'order', 'where']
>>> parse_query("FROM t |> WHERE a > 1").reason
'a pipe'
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from headrace.errors import SqlError
from headrace.sql.expression_grammar import CLAUSES, Expressions
from headrace.sql.lexer import Kind, Token, place, tokens
from headrace.sql.token_reader import Beyond

AFTER_RELATION = CLAUSES | frozenset(
    (
        *("ON", "USING", "JOIN", "INNER", "CROSS", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI", "NATURAL"),
        *("PIVOT", "UNPIVOT", "TABLESAMPLE", "SELECT", "AS", "WITH", "MAP", "REDUCE"),
    )
)
"""Words that follow a relation rather than name it."""
_SIDES = ("LEFT", "RIGHT", "FULL")
_JOIN_STARTS = frozenset(("JOIN", "INNER", "CROSS", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI", "NATURAL"))
_SET_OPERATIONS: dict[str, type[exp.SetOperation]] = {
    "UNION": exp.Union,
    "EXCEPT": exp.Except,
    "MINUS": exp.Except,
    "INTERSECT": exp.Intersect,
}


class Opaque(exp.Expression, exp.Query):
    """A query whose syntax only Spark knows; ``reason`` says which."""

    arg_types = {"this": False}  # noqa: RUF012 sqlglot's own way to say it

    @property
    def reason(self) -> str:
        return str(self.meta["reason"])

    @property
    def read(self) -> tuple[str, ...]:
        """The relations that its text names, in lower case: known once it is bound, by Spark."""
        return tuple(self.meta.get("read", ()))

    @read.setter
    def read(self, names: tuple[str, ...]) -> None:
        self.meta["read"] = names

    @property
    def named_selects(self) -> list[str]:
        return []

    @property
    def selects(self) -> list[exp.Expr]:
        return []


def parse_query(text: str, found: list[Token] | None = None, at: int = 0) -> exp.Expr:
    """The query that begins at a token and goes to the end of the text."""
    reader = Grammar(text, tokens(text) if found is None else found, at)
    tree = reader.query()
    reader.end()
    return tree


def parse_expression(text: str) -> exp.Expr:
    """The expression a text is."""
    reader = Grammar(text, tokens(text))
    tree = reader.expression()
    if reader.at < len(reader.tokens):
        reader.fail("the end of the expression")
    return tree


class Grammar(Expressions):
    """Reads queries, from the tokens of one text."""

    def end(self) -> None:
        """Nothing may follow."""
        if self.at >= len(self.tokens):
            return
        try:
            self.fail("the end of the statement")
        except SqlError as error:
            if "TABLESAMPLE" in (self.word(), self.word(-1)):
                error.hint = (
                    "TABLESAMPLE stands behind a relation: write FROM t TABLESAMPLE RESERVOIR (10 ROWS) WHERE …, or "
                    "draw from a subquery: FROM (SELECT … WHERE …) TABLESAMPLE RESERVOIR (10 ROWS)"
                )
            raise

    # Queries

    def query(self) -> exp.Expr:
        """``[WITH …] term [ORDER BY …] [LIMIT …]``."""
        start = body = self.at
        ctes = None
        try:
            ctes = self.ctes()
            body = self.at
            node = self.without_ctes()
        except Beyond as beyond:
            node = self.opaque(body, beyond.reason)
        if ctes is None:
            return node
        if node.args.get("with_") is not None:
            node = self.made(exp.Subquery(this=node), body)
        node.set("with_", ctes)
        return node if isinstance(node, Opaque) else self.made(node, start)

    def opaque(self, start: int, reason: str) -> exp.Expr:
        """The query from a token on, whatever it says."""
        self.at = start
        while self.at < len(self.tokens) and self.word() != ")":
            self.at = self.closing.get(self.at, self.at) + 1
        if self.at == start:
            self.fail("a query")
        node = self.made(Opaque(), start)
        node.meta["reason"] = reason
        return node

    def without_ctes(self) -> exp.Expr:
        start = self.at
        node = self.union_term()
        if self.word() == "|>":
            raise Beyond("a pipe")
        end = self.at
        clauses = self.organization()
        if not clauses:
            return node
        if isinstance(node, exp.Values):
            self.at, after = end, self.at
            node = self.made(exp.Subquery(this=node), start)  # clauses are about it, its own are about its rows
            self.at = after
        for part, clause in clauses.items():
            node.set(part, clause)
        return self.made(node, start)

    def ctes(self) -> exp.With | None:
        start = self.at
        if not self.take("WITH"):
            return None
        if self.word() == "RECURSIVE" and self.word(1) not in ("AS", "("):
            raise Beyond("WITH RECURSIVE")
        return self.made(exp.With(expressions=self.series(self.cte)), start)

    def cte(self) -> exp.CTE:
        start = self.at
        name = self.identifier()
        columns = self.names() if self.word() == "(" and not self.at_query(1) else []
        alias = self.made(exp.TableAlias(this=name, columns=columns), start)
        self.take("AS")
        if self.word() != "(":
            self.fail("'(' and a query")
        self.at += 1
        query = self.query()
        self.expect(")")
        return self.made(exp.CTE(this=query, alias=alias), start)

    def organization(self) -> dict[str, Any]:
        """ORDER BY, LIMIT and OFFSET of a query, and what only Spark knows beside them."""
        found: dict[str, Any] = {}
        if (order := self.order_by()) is not None:
            found["order"] = order
        for word, part in (("CLUSTER", "cluster"), ("DISTRIBUTE", "distribute"), ("SORT", "sort")):
            start = self.at
            if self.word() == word and self.word(1) == "BY":
                self.at += 2
                found[part] = self.made(exp.Order(expressions=self.series(self.sort_item)), start)
        if (windows := self.windows()) is not None:
            found["windows"] = windows
        start = self.at
        if self.take("LIMIT") and not self.take("ALL"):
            found["limit"] = self.made(exp.Limit(expression=self.expression()), start)
        start = self.at
        if self.take("OFFSET"):
            found["offset"] = self.made(exp.Offset(expression=self.expression()), start)
        return found

    def windows(self) -> list[exp.Expr] | None:
        if not (self.word() == "WINDOW" and self.is_name(1) and self.word(2) == "AS"):
            return None
        self.at += 1
        return self.series(self.named_window)

    def named_window(self) -> exp.Expr:
        start = self.at
        name = self.identifier()
        self.expect("AS")
        return self.made(exp.Window(this=name, **self.window()), start)

    def union_term(self) -> exp.Expr:
        start = self.at
        left = self.intersect_term()
        while self.word() in ("UNION", "EXCEPT", "MINUS"):
            left = self.set_operation(left, start, self.intersect_term)
        return left

    def intersect_term(self) -> exp.Expr:
        start = self.at
        left = self.query_primary()
        while self.word() == "INTERSECT":
            left = self.set_operation(left, start, self.query_primary)
        return left

    def set_operation(self, left: exp.Expr, start: int, right: Any) -> exp.Expr:
        make = _SET_OPERATIONS[self.word()]
        self.at += 1
        distinct = not self.take("ALL")
        if distinct:
            self.take("DISTINCT")
        return self.made(make(this=left, expression=right(), distinct=distinct), start)

    def query_primary(self) -> exp.Expr:
        start = self.at
        if self.word() == "SELECT":
            return self.select()
        if self.word() == "(":
            if not self.at_query():
                self.at += 1
                self.fail("a query")
            return self.subquery()
        if self.take("VALUES"):
            return self.values(start)
        if self.take("TABLE"):
            table = self.made(exp.Table(**self.relation_name()), start)
            return self.made(exp.Select(expressions=[self.every_column(start)], from_=exp.From(this=table)), start)
        if self.word() == "FROM":
            return self.from_first()
        if self.word() in ("MAP", "REDUCE"):
            raise Beyond("TRANSFORM")
        return self.fail("a query (SELECT, VALUES, TABLE, FROM or WITH)")

    def every_column(self, start: int) -> exp.Expr:
        star = self.made(exp.Star(), start)
        star.meta["implied"] = True
        return star

    def from_first(self) -> exp.Expr:
        """``FROM t [SELECT …]``."""
        start = self.at
        clauses = self.from_clause()
        if self.word() != "SELECT":
            if self.word() in ("MAP", "REDUCE"):
                raise Beyond("TRANSFORM")
            return self.made(exp.Select(expressions=[self.every_column(start)], **clauses), start)
        node = self.select(clauses)
        if self.word() in ("SELECT", "MAP", "REDUCE", "INSERT"):
            raise Beyond("several SELECTs over one FROM")
        return self.made(node, start)

    # SELECT

    def select(self, above: dict[str, Any] | None = None) -> exp.Expr:
        start = self.at
        self.expect("SELECT")
        while self.kind() is Kind.HINT:
            self.at += 1
        if self.word() == "TRANSFORM" and self.word(1) == "(" and self.is_transform():
            raise Beyond("TRANSFORM")
        found: dict[str, Any] = {}
        at = self.at
        if self.word() in ("DISTINCT", "ALL") and self.word(1) == "AS":
            raise SqlError(
                "PARSE_SYNTAX_ERROR",
                f"{self.word()} before AS is no column, but says which rows are selected",
                position=place(self.text, self.tokens[self.at].start),
                hint=f"write `{self.tokens[self.at].text}` for a column of that name",
            )
        if self.at_quantifier() or (self.word() in ("DISTINCT", "ALL") and self.word(1) == "FROM"):
            self.at += 1
            if self.word(-1) == "DISTINCT":
                found["distinct"] = self.made(exp.Distinct(), at)
        if self.at == len(self.tokens) or (self.word() == "FROM" and self.word(1) not in (",", "FROM", "AS")):
            raise SqlError(
                "PARSE_SYNTAX_ERROR",
                "SELECT names no columns",
                position=place(self.text, self.tokens[start].start),
                hint="write SELECT *",
            )
        found["expressions"] = self.series(self.select_item)
        found |= above or (self.from_clause() if self.word() == "FROM" else {})
        while self.word() == "LATERAL" and self.word(1) == "VIEW":
            found.setdefault("laterals", []).append(self.lateral_view())
        at = self.at
        if self.take("WHERE"):
            found["where"] = self.made(exp.Where(this=self.expression()), at)
        if self.word() == "GROUP" and self.word(1) == "BY":
            found["group"] = self.group_by()
        at = self.at
        if self.take("HAVING"):
            found["having"] = self.made(exp.Having(this=self.expression()), at)
        at = self.at
        if self.take("QUALIFY"):
            found["qualify"] = self.made(exp.Qualify(this=self.expression()), at)
        if (windows := self.windows()) is not None:
            found["windows"] = windows
        return self.made(exp.Select(**found), start)

    def select_item(self) -> exp.Expr:
        if self.word() == "FROM" and self.word(-1) == ",":
            raise SqlError(
                "TRAILING_COMMA_IN_SELECT",
                "the select list ends with a comma",
                position=place(self.text, self.tokens[self.at - 1].start),
                hint="leave the comma before FROM out",
            )
        return self.named_expression()

    def is_transform(self) -> bool:
        """Whether this is the clause, and not the function of arrays: the clause has USING."""
        close = self.closing.get(self.at + 1)
        return close is not None and close + 1 < len(self.tokens) and self.tokens[close + 1].upper in ("USING", "ROW")

    def group_by(self) -> exp.Expr:
        start = self.at
        self.at += 2
        node = exp.Group(expressions=self.series(self.group_item))
        if self.take("WITH", "ROLLUP"):
            node.set("rollup", [exp.Rollup()])
        elif self.take("WITH", "CUBE"):
            node.set("cube", [exp.Cube()])
        elif self.word() == "GROUPING" and self.word(1) == "SETS":
            node.set("grouping_sets", [self.grouping_analytics()])
        return self.made(node, start)

    def group_item(self) -> exp.Expr:
        return self.grouping_analytics() or self.expression()

    def grouping_analytics(self) -> exp.Expr | None:
        start = self.at
        make = {"ROLLUP": exp.Rollup, "CUBE": exp.Cube}.get(self.word())
        if make is not None and self.word(1) == "(":
            self.at += 1
            sets = self.listed(self.grouping_set)
            if any(isinstance(one, exp.Tuple) and not one.expressions for one in sets):
                self.at = start
                self.fail(f"keys, not (), in {self.word()}")
            return self.made(make(expressions=sets), start)
        if self.word() == "GROUPING" and self.word(1) == "SETS" and self.word(2) == "(":
            self.at += 2
            sets = self.listed(lambda: self.grouping_analytics() or self.grouping_set())
            return self.made(exp.GroupingSets(expressions=sets), start)
        return None

    def grouping_set(self) -> exp.Expr:
        start = self.at
        if self.word() == "(" and self.word(1) == ")":
            self.at += 2
            return self.made(exp.Tuple(expressions=[]), start)
        return self.expression()

    def lateral_view(self) -> exp.Expr:
        start = self.at
        self.at += 2
        self.take("OUTER")
        name = self.identifier("a function")
        call = self.call(name.name, self.at - 1)
        if self.at_alias():
            self.identifier()
        if self.take("AS"):
            self.series(self.identifier)
        return self.made(exp.Lateral(this=call), start)

    # FROM

    def from_clause(self) -> dict[str, Any]:
        """FROM and its joins, a comma being one; PIVOT and LATERAL VIEW are noted."""
        start = self.at
        self.expect("FROM")
        item, joins, others = self.relation()
        clause = self.made(exp.From(this=item), start)
        while self.word() == ",":
            at = self.at
            self.at += 1
            right, more, odd = self.relation()
            others += odd
            joins += [self.made(exp.Join(this=right), at), *more]
        found: dict[str, Any] = {"from_": clause, "joins": joins}
        while self.word() == "LATERAL" and self.word(1) == "VIEW":
            found.setdefault("laterals", []).append(self.lateral_view())
        while (odd_clause := self.pivot()) is not None:
            others.append(odd_clause)
        if others:
            found["pivots"] = others
        return found

    def relation(self) -> tuple[exp.Expr, list[exp.Join], list[exp.Expr]]:
        """A relation, what is joined to it, and clauses about it all that only Spark knows."""
        item = self.relation_primary()
        joins: list[exp.Join] = []
        others: list[exp.Expr] = []
        while True:
            if (odd := self.pivot()) is not None:
                others.append(odd)
            elif (join := self.join()) is not None:
                joins.append(join)
            else:
                return item, joins, others

    def pivot(self) -> exp.Expr | None:
        start = self.at
        word = self.word()
        if word not in ("PIVOT", "UNPIVOT"):
            return None
        at = self.at + 1
        if word == "UNPIVOT" and at + 1 < len(self.tokens) and self.tokens[at].upper in ("INCLUDE", "EXCLUDE"):
            at += 2
        close = self.closing.get(at)
        if close is None:
            self.at = at
            self.fail("'('")
        self.at = close + 1
        if word == "UNPIVOT" and (self.take("AS") or self.at_alias()):
            self.identifier()
        return self.made(exp.Pivot(unpivot=word == "UNPIVOT"), start)

    def join(self) -> exp.Join | None:
        start = self.at
        natural = self.take("NATURAL")
        side = self.word() if self.word() in _SIDES else ""
        self.at += bool(side)
        kind = self.word() if self.word() in ("INNER", "CROSS", "OUTER", "SEMI", "ANTI") else ""
        self.at += bool(kind)
        if not self.take("JOIN"):
            if self.at > start:
                self.fail("JOIN")
            return None
        fits = {"": ("", "INNER", "CROSS", "SEMI", "ANTI"), "LEFT": ("", "OUTER", "SEMI", "ANTI")}
        if kind not in fits.get(side, ("", "OUTER")):
            self.at = start
            self.fail("a kind of join Spark has")
        if self.word() == "LATERAL":
            raise Beyond("a LATERAL join")
        right = self.relation_primary()
        node = exp.Join(this=right, side=side, kind=kind, method="NATURAL" if natural else None)
        if not natural and self.take("ON"):
            node.set("on", self.expression())
        elif not natural and self.take("USING"):
            node.set("using", self.names())
        return self.made(node, start)

    def relation_primary(self) -> exp.Expr:
        start = self.at
        if self.word() == "LATERAL":
            raise Beyond("a LATERAL relation")
        if self.word() == "VALUES" and self.at_query():
            self.at += 1
            return self.values(start)
        if self.word() == "(":
            return self.in_parentheses()
        if not self.is_name() or (self.kind() is Kind.WORD and self.at_clause(AFTER_RELATION)):
            self.fail("a relation")
        if self.is_name() and self.word(1) == "(":
            return self.table_function(start)
        parts = self.relation_name()
        if self.word() == "(" and parts.get("db") is not None:
            return self.table_function(start, parts["db"])
        if (version := self.version()) is not None:
            parts["version"] = version
        if self.word() == "WITH" and self.word(1) == "(":
            raise Beyond("options of a relation")
        return self.with_alias(exp.Table(**parts), start)

    def version(self) -> exp.Version | None:
        """``VERSION AS OF 17``, ``FOR SYSTEM_TIME AS OF '2026-01-01'``."""
        start = self.at
        self.take("FOR")
        word = self.word()
        kind = {"VERSION": "VERSION", "SYSTEM_VERSION": "VERSION", "TIMESTAMP": "TIMESTAMP", "SYSTEM_TIME": "TIMESTAMP"}
        if word not in kind or (self.word(1), self.word(2)) != ("AS", "OF"):
            self.at = start
            return None
        self.at += 3
        if kind[word] == "TIMESTAMP":
            given = self.value()
        elif self.kind() is Kind.STRING:
            given = self.string_literal("a version")
        elif self.kind() is Kind.NUMBER and self.tokens[self.at].text.isdigit():
            given = self.made_number()
        else:
            self.fail("a version: a whole number")
        return self.made(exp.Version(this=kind[word], expression=given), start)

    def made_number(self) -> exp.Literal:
        """The whole number that is next."""
        self.at += 1
        return self.made(exp.Literal(this=self.tokens[self.at - 1].text, is_string=False), self.at - 1)

    def relation_name(self) -> dict[str, exp.Expr]:
        """``[[catalog.]schema.]name``, or ``stream@OLDEST``."""
        parts = [self.identifier("a relation")]
        while self.word() == "." and self.is_name(1):
            self.at += 1
            parts.append(self.identifier())
        if self.word() == "@":
            at = self.at
            self.at += 1
            if self.word() not in ("OLDEST", "NEWEST"):
                raise SqlError(
                    "STREAM_POSITION_UNKNOWN",
                    f"{parts[-1].name}@{self.tokens[self.at].text if self.at < len(self.tokens) else ''}: "
                    "no such place to read from",
                    position=place(self.text, self.tokens[at - 1].start),
                    hint="write name@OLDEST for what is still buffered, or the name alone for what comes from now on",
                )
            name = f"{parts[-1].name}@{self.word().lower()}"
            self.at += 1
            parts[-1] = self.made(exp.Identifier(this=name, quoted=False), at - 1)
        if len(parts) > 3:
            self.fail("a relation's name of at most three parts")
        return dict(zip(("this", "db", "catalog"), reversed(parts), strict=False))

    def table_function(self, start: int, schema: exp.Expr | None = None) -> exp.Expr:
        if schema is None:
            name = self.identifier()
        else:
            self.at -= 1
            name = self.identifier()
        call = self.call(name.name, self.at - 1)
        return self.with_alias(exp.Table(this=call, db=schema), start)

    def in_parentheses(self) -> exp.Expr:
        """A query, or relations that are joined, in parentheses."""
        start = self.at
        if self.at_query(1):
            return self.with_alias(self.subquery(), start)
        self.at += 1
        item, joins, others = self.relation()
        if others:
            raise Beyond("PIVOT of a relation in parentheses")
        self.expect(")")
        return self.with_alias(exp.Paren(this=item, joins=joins), start)

    def values(self, start: int) -> exp.Expr:
        rows = self.series(self.named_row)
        return self.with_alias(exp.Values(expressions=rows), start, sampled=False)

    def named_row(self) -> exp.Expr:
        return self.expression()

    def with_alias(self, node: exp.Expr, start: int, *, sampled: bool = True) -> exp.Expr:
        """The relation with its TABLESAMPLE and its alias."""
        sample = self.sample() if sampled or self.word() == "TABLESAMPLE" else None
        at = self.at
        if self.take("AS") or self.at_alias():
            name = self.identifier("an alias")
            columns = self.names() if self.word() == "(" else []
            node.set("alias", self.made(exp.TableAlias(this=name, columns=columns), at))
        else:
            self.refuse_clause_like_alias()
        if sample is None and (sample := self.sample()) is not None and not sample.args.get("method"):
            self.at = at
            self.fail("TABLESAMPLE before the alias")
        if sample is not None:
            node.set("sample", sample)
        return self.made(node, start)

    def refuse_clause_like_alias(self) -> None:
        """Refuse ``FROM t WHERE (a)``: to Spark it is t under the alias WHERE, with a column named a."""
        close = self.closing.get(self.at + 1)
        if self.word() not in ("WHERE", "HAVING", "QUALIFY") or close is None:
            return
        inner = self.tokens[self.at + 2 : close]
        names = all(token.kind in (Kind.WORD, Kind.NAME) for token in inner[::2])
        if not inner or not names or any(token.upper != "," for token in inner[1::2]):
            return
        start, self.at = self.at, close + 1
        ends = self.at == len(self.tokens) or self.word() in (")", ",", ";") or self.at_clause(AFTER_RELATION)
        self.at = start
        if ends:
            clause = self.tokens[start].text
            raise SqlError(
                "PARSE_SYNTAX_ERROR",
                f"Spark reads {clause} (…) here as an alias of the relation before it, not as a condition",
                position=place(self.text, self.tokens[start].start),
                hint=f"write {clause} {', '.join(token.text for token in inner[::2])} without parentheses",
            )

    def at_alias(self) -> bool:
        if self.kind() is Kind.NAME:
            return True
        return self.kind() is Kind.WORD and not self.at_clause(AFTER_RELATION)

    def sample(self) -> exp.TableSample | None:
        """``TABLESAMPLE (…)`` of Spark's, or ``TABLESAMPLE RESERVOIR (n ROWS)`` of ours."""
        start = self.at
        if not self.take("TABLESAMPLE"):
            return None
        node = exp.TableSample()
        if self.word() == "RESERVOIR":
            self.at += 1
            node.set("method", exp.var("RESERVOIR"))
            self.expect("(")
            node.set("size", self.value())
            if not self.take("ROWS") and self.take("PERCENT"):
                node.set("size", self.made(exp.Var(this="PERCENT"), start))  # whoever binds it refuses it
            self.expect(")")
        else:
            close = self.closing.get(self.at)
            if close is None:
                self.fail("'('")
            self.at = close + 1
        if self.take("REPEATABLE"):
            self.expect("(")
            node.set("seed", self.value())
            self.expect(")")
        return self.made(node, start)
