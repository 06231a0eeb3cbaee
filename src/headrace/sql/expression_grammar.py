"""Expressions of Spark SQL: tokens to trees, with Spark's precedence and nothing Spark does not have.

The rules are those of Spark's own grammar, from the loosest to the tightest: OR, AND, NOT, one predicate (IN, LIKE,
BETWEEN, IS …), comparisons, ``|``, ``^``, ``&``, shifts, ``+ - ||``, ``* / % DIV``, signs, and what follows a value
(``::type``, ``[i]``, ``.field``). A comparison binds tighter than a predicate, and a minus before a number is part of
it. Keywords are not reserved: whatever is not syntax where it stands is a name.

Trees are built of sqlglot's classes; every node knows its stretch of the text (``sql/source.py``).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from sqlglot import exp

from headrace.errors import SqlError
from headrace.sql.call_grammar import SYNTACTIC, Calls
from headrace.sql.lexer import Kind, place
from headrace.sql.source import Span, at_span, span_of
from headrace.sql.token_reader import Beyond
from headrace.sql.type_names import MOMENTS

TYPED_LITERAL = "typed_literal"
"""Meta key of a Cast that was written ``DATE '…'`` rather than ``CAST('…' AS DATE)``."""

_COMPARISONS: dict[str, type[exp.Expr]] = {
    "=": exp.EQ,
    "==": exp.EQ,
    "<=>": exp.NullSafeEQ,
    "<>": exp.NEQ,
    "!=": exp.NEQ,
    "<": exp.LT,
    "<=": exp.LTE,
    "!>": exp.LTE,
    ">": exp.GT,
    ">=": exp.GTE,
    "!<": exp.GTE,
}
_OPERATORS: tuple[dict[str, type[exp.Expr]], ...] = (
    _COMPARISONS,
    {"|": exp.BitwiseOr},
    {"^": exp.BitwiseXor},
    {"&": exp.BitwiseAnd},
    {"<<": exp.BitwiseLeftShift, ">>": exp.BitwiseRightShift, ">>>": exp.BitwiseRightShift},
    {"+": exp.Add, "-": exp.Sub, "||": exp.DPipe},
    {"*": exp.Mul, "/": exp.Div, "%": exp.Mod, "DIV": exp.IntDiv},
)
"""Binary operators of values by level, the loosest first; all of them take their operands from the left."""

_QUANTIFIERS: dict[str, type[exp.Expr]] = {"ANY": exp.Any, "SOME": exp.Any, "ALL": exp.All}
_TYPED = ("DATE", "TIME", *(name.upper() for name in MOMENTS))
_INTERVAL_UNITS = frozenset(
    ("YEAR", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND", "NANOSECOND")
)
_AFTER_QUERY = frozenset(
    (
        *(")", "|>", "UNION", "EXCEPT", "MINUS", "INTERSECT", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE"),
        *("LIMIT", "OFFSET", "WINDOW"),
    )
)
CLAUSES = frozenset(
    (
        *("FROM", "WHERE", "GROUP", "HAVING", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT", "OFFSET", "WINDOW"),
        *("UNION", "EXCEPT", "MINUS", "INTERSECT", "LATERAL", "QUALIFY"),
    )
)
"""Words that begin what follows a select list or a relation, if they are not names."""
_BY = frozenset(("GROUP", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE"))
_BETWEEN_VALUES = CLAUSES | frozenset(
    (
        *("AS", "AND", "OR", "THEN", "WHEN", "ELSE", "END", "ON", "USING", "JOIN", "SELECT"),
        *("IN", "LIKE", "ILIKE", "RLIKE", "REGEXP", "BETWEEN", "IS", "DIV"),
    )
)
"""Words that stand between values rather than being one."""


class Expressions(Calls):
    """Reads expressions, from the tokens of one text."""

    # Conditions

    def expression(self) -> exp.Expr:
        return self.chain("OR", exp.Or, self.conjunction)

    def conjunction(self) -> exp.Expr:
        return self.chain("AND", exp.And, self.negation)

    def chain(self, word: str, make: type[exp.Expr], read: Callable[[], exp.Expr]) -> exp.Expr:
        """``a OR b OR …`` as the tree Spark makes of it, whose halves are as long as each other: none is deep."""
        starts, parts, ends = [self.at], [read()], [self.at]
        while self.take(word):
            starts.append(self.at)
            parts.append(read())
            ends.append(self.at)

        def joined(low: int, high: int) -> exp.Expr:
            if low == high:
                return parts[low]
            middle = (low + high) // 2
            node = make(this=joined(low, middle), expression=joined(middle + 1, high))
            return at_span(node, Span(self.text, self.tokens[starts[low]].start, self.tokens[ends[high] - 1].end))

        return joined(0, len(parts) - 1)

    def negation(self) -> exp.Expr:
        start = self.at
        if self.word() in ("NOT", "!") and not self.stands_alone():
            self.at += 1
            return self.made(exp.Not(this=self.negation()), start)
        if self.word() == "EXISTS" and self.word(1) == "(" and self.at_query(2):
            self.at += 2
            query = self.query()
            self.expect(")")
            return self.made(exp.Exists(this=query), start)
        return self.predicated()

    def predicated(self) -> exp.Expr:
        start = self.at
        value = self.value()
        negated = self.word() == "NOT" and self.word(1) in ("BETWEEN", "IN", "LIKE", "ILIKE", "RLIKE", "REGEXP")
        if negated and self.word(1) in ("LIKE", "ILIKE") and self.word(2) in _QUANTIFIERS and self.word(3) == "(":
            self.at += 1
            quantified = self.like(value, start)
            quantified.set("negate", True)  # NOT LIKE ANY is that some pattern does not fit, and no NOT of LIKE ANY
            return quantified
        at = self.at
        self.at += negated
        node = self.predicate(value, start)
        if node is None:
            self.at = at
            return value
        return self.made(exp.Not(this=node), start) if negated else node

    def predicate(self, value: exp.Expr, start: int) -> exp.Expr | None:
        if self.take("BETWEEN"):
            low = self.value()
            self.expect("AND")
            return self.made(exp.Between(this=value, low=low, high=self.value()), start)
        if self.take("IN"):
            if self.word() == "(" and self.at_query(1):
                return self.made(exp.In(this=value, query=self.subquery()), start)
            if self.word() == "(" and self.word(1) == ")":
                raise SqlError(
                    "INVALID_SQL_SYNTAX",
                    "IN () names nothing to be in",
                    position=place(self.text, self.tokens[self.at].start),
                    hint="write at least one value, or FALSE for the whole test",
                )
            return self.made(exp.In(this=value, expressions=self.listed(self.expression)), start)
        if self.take("RLIKE") or self.take("REGEXP"):
            return self.made(exp.RegexpLike(this=value, expression=self.value()), start)
        if self.word() in ("LIKE", "ILIKE"):
            return self.like(value, start)
        if self.take("IS"):
            return self.is_(value, start)
        return None

    def like(self, value: exp.Expr, start: int) -> exp.Expr:
        make = exp.Like if self.word() == "LIKE" else exp.ILike
        self.at += 1
        quantifier = _QUANTIFIERS.get(self.word())
        if quantifier is not None and self.word(1) == "(":
            at = self.at
            self.at += 1
            patterns = exp.Tuple(expressions=self.listed(self.expression, empty=True))
            quantified = self.made(quantifier(this=patterns), at)
            return self.made(make(this=value, expression=quantified), start)
        node = self.made(make(this=value, expression=self.value()), start)
        if not self.take("ESCAPE"):
            return node
        return self.made(exp.Escape(this=node, expression=self.string_literal("a quoted escape character")), start)

    def is_(self, value: exp.Expr, start: int) -> exp.Expr:
        negated = self.take("NOT")
        at = self.at
        node: exp.Expr
        if self.take("DISTINCT", "FROM"):
            make = exp.NullSafeEQ if negated else exp.NullSafeNEQ
            return self.made(make(this=value, expression=self.value()), start)
        if self.word() in ("NULL", "UNKNOWN"):  # IS NOT NULL is a test of its own, no NOT of IS NULL
            missing = exp.Null() if self.word() == "NULL" else exp.Var(this="UNKNOWN")
            self.at += 1
            missing = self.made(missing, at)
            found = self.made(exp.Not(this=missing), at) if negated else missing
            return self.made(exp.Is(this=value, expression=found), start)
        if self.word() in ("TRUE", "FALSE"):
            truth = exp.Boolean(this=self.word() == "TRUE")
            self.at += 1
            node = exp.Is(this=value, expression=self.made(truth, at))
        else:
            self.fail("NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM")
        node = self.made(node, start)
        return self.made(exp.Not(this=node), start) if negated else node

    # Values

    def value(self, level: int = 0) -> exp.Expr:
        if level == len(_OPERATORS):
            return self.signed()
        start = self.at
        left = self.value(level + 1)
        while (make := _OPERATORS[level].get(self.word())) is not None:
            symbol = self.word()
            self.at += 1
            node = make(this=left, expression=self.value(level + 1))
            if symbol == ">>>":
                node.set("unsigned", True)
            left = self.made(node, start)
        return left

    def signed(self) -> exp.Expr:
        start = self.at
        if self.word() == "-" and self.kind(1) is Kind.NUMBER:
            return self.after(self.primary(), start)  # the sign is the number's own
        if self.take("-"):
            return self.made(exp.Neg(this=self.signed()), start)
        if self.take("+"):
            # Unary plus is a function in Spark: it makes a number of a string.
            return self.made(exp.Anonymous(this="positive", expressions=[self.signed()]), start)
        if self.take("~"):
            return self.made(exp.BitwiseNot(this=self.signed()), start)
        return self.after(self.primary(), start)

    def after(self, node: exp.Expr, start: int) -> exp.Expr:
        """The value with the casts, elements and fields that are asked of it."""
        while True:
            if self.take("::"):
                node = self.made(exp.Cast(this=node, to=self.type()), start)
            elif self.take("["):
                index = self.value()
                self.expect("]")
                node = self.made(exp.Bracket(this=node, expressions=[index]), start)
            elif self.word() == "." and self.is_name(1):
                self.at += 1
                node = self.made(exp.Dot(this=node, expression=self.identifier()), start)
            elif self.take("COLLATE"):
                collation = self.dotted_name()
                node = self.made(exp.Collate(this=node, expression=collation), start)
            elif self.word() == ":" and self.is_name(1):
                raise Beyond("a path into a variant")
            else:
                return node

    def primary(self) -> exp.Expr:
        start, kind, word = self.at, self.kind(), self.word()
        if kind is Kind.STRING:
            return self.string_literal("a string")
        if kind is Kind.NUMBER or word == "-":
            sign = "-" if self.take("-") else ""
            self.at += 1
            number = sign + self.tokens[self.at - 1].text.upper()
            return self.made(exp.Literal(this=number, is_string=False), start)
        if word == "(":
            return self.parenthesised()
        if word == "*":
            self.at += 1
            return self.star(None, start)
        if word in ("?", ":"):
            self.at += 1
            if word == ":":
                self.identifier()
            return self.made(exp.Placeholder(), start)
        if not self.is_name():
            self.fail("an expression")
        if kind is Kind.WORD and (found := self.syntax(word, start)) is not None:
            return found
        if kind is Kind.WORD and self.word(1) != "(" and self.at_clause(_BETWEEN_VALUES) and not self.stands_alone():
            self.fail("an expression")
        if self.word(1) == "->":
            return self.function_of([self.identifier()], start)
        return self.named(start)

    def at_clause(self, words: frozenset[str]) -> bool:
        """Whether one of these words comes next, and means what it says: GROUP is a name without BY."""
        word, after = self.word(), self.word(1)
        if word in _BY:
            return after == "BY"
        if word == "WINDOW":
            return self.is_name(1) and self.word(2) == "AS"
        return word in words

    def stands_alone(self) -> bool:
        """Whether the next word is followed by what can only follow a name."""
        return self.word(1) in (",", ")", ".", "=", "AS") or self.at + 1 == len(self.tokens) or self.word(1) == "FROM"

    def syntax(self, word: str, start: int) -> exp.Expr | None:
        """What a word begins that is no name: a constant, CASE, a call with a grammar of its own."""
        after = self.word(1)
        if self.kind(1) is Kind.STRING and word not in ("INTERVAL", "CASE", "NOT") and word not in _BETWEEN_VALUES:
            return self.typed_literal(word, start)
        if word in ("NULL", "TRUE", "FALSE") and after not in ("(", ".", "->"):
            self.at += 1
            return self.made(exp.Null() if word == "NULL" else exp.Boolean(this=word == "TRUE"), start)
        if word == "CASE" and not (self.stands_alone() or after == "->"):
            return self.case(start)
        if word == "INTERVAL" and self.at_interval():
            return self.interval(start)
        reader = SYNTACTIC.get(word) if after == "(" and self.word(2) != ")" else None
        if reader is not None:
            self.at += 2
            found = reader(self, word, start)
            if found is not None:
                self.expect(")")
                return self.made(found, start)
            self.at = start
        return None

    def typed_literal(self, word: str, start: int) -> exp.Expr:
        at = self.at
        self.at += 1
        to = self.made(exp.Var(this=MOMENTS.get(word.lower(), word.lower())), at)
        self.at += 1
        literal = self.made(exp.Literal(this=self.tokens[at + 1].text, is_string=True), at + 1)
        if self.kind() is Kind.STRING:
            self.fail("one string")
        if word == "X":
            return self.made(exp.HexString(this=literal.name), start)
        if word not in _TYPED:
            raise SqlError(
                "UNSUPPORTED_TYPED_LITERAL",
                f"there are no literals of a type {self.tokens[at].text}",
                position=place(self.text, self.tokens[at].start),
                hint="write DATE '…', TIMESTAMP '…', INTERVAL '…' or X'…'; an alias needs no quotes, or backquotes",
            )
        node = self.made(exp.Cast(this=literal, to=to), start)
        node.meta[TYPED_LITERAL] = True
        return node

    def case(self, start: int) -> exp.Expr:
        self.at += 1
        operand = None if self.word() == "WHEN" else self.expression()
        branches = []
        while self.word() == "WHEN":
            at = self.at
            self.at += 1
            test = self.expression()
            self.expect("THEN")
            branches.append(self.made(exp.If(this=test, true=self.expression()), at))
        if not branches:
            self.fail("WHEN")
        default = self.expression() if self.take("ELSE") else None
        self.expect("END")
        return self.made(exp.Case(this=operand, ifs=branches, default=default), start)

    def parenthesised(self) -> exp.Expr:
        start = self.at
        if self.at_query(1):
            return self.subquery()
        names = self.lambda_names()
        if names is not None:
            return self.function_of(names, start)
        self.at += 1
        items = self.series(self.named_expression)
        self.expect(")")
        if len(items) == 1 and not isinstance(items[0], exp.Alias | exp.Aliases):
            return self.made(exp.Paren(this=items[0]), start)
        return self.made(exp.Tuple(expressions=items), start)

    def lambda_names(self) -> list[exp.Identifier] | None:
        """``(x, y)`` if an arrow follows."""
        ahead = 1
        while self.is_name(ahead) and self.word(ahead + 1) == ",":
            ahead += 2
        if not (self.is_name(ahead) and self.word(ahead + 1) == ")" and self.word(ahead + 2) == "->"):
            return None
        return self.names()

    def function_of(self, names: list[exp.Identifier], start: int) -> exp.Expr:
        self.expect("->")
        return self.made(exp.Lambda(this=self.expression(), expressions=names), start)

    def named_expression(self) -> exp.Expr:
        """An expression that may have an alias."""
        start = self.at
        node = self.expression()
        if self.take("AS"):
            if self.word() == "(":
                return self.made(exp.Aliases(this=node, expressions=self.names()), start)
            return self.made(exp.Alias(this=node, alias=self.identifier()), start)
        if self.kind() is Kind.NAME or (
            self.kind() is Kind.WORD and (not self.at_clause(CLAUSES) or self.word(1) in (",", "FROM"))
        ):
            return self.made(exp.Alias(this=node, alias=self.identifier()), start)
        if self.word() == "(" and self.is_name(1) and self.word(2) in (",", ")"):
            return self.made(exp.Aliases(this=node, expressions=self.names()), start)
        return node

    def named(self, start: int) -> exp.Expr:
        """A column, the columns of a relation, or a call."""
        parts = [self.identifier()]
        while self.word() == "." and self.is_name(1):
            self.at += 1
            parts.append(self.identifier())
        if self.word() == "." and self.word(1) == "*":
            self.at += 2
            return self.star(parts, start)
        if self.word() == "(":
            if len(parts) > 1:
                raise Beyond("a function of a schema")
            return self.call(parts[0].name, start)
        return self.column(parts, start)

    def column(self, parts: list[exp.Identifier], start: int) -> exp.Expr:
        """``a.b.c.d`` is a column; what is beyond four parts are fields of it."""
        keys = ("this", "table", "db", "catalog")
        node: exp.Expr = exp.Column(**dict(zip(keys, reversed(parts[:4]), strict=False)))
        last = span_of(parts[min(len(parts), 4) - 1])
        assert last is not None
        at_span(node, Span(self.text, self.tokens[start].start, last.end))
        for part in parts[4:]:
            end = span_of(part)
            assert end is not None
            node = at_span(exp.Dot(this=node, expression=part), Span(self.text, self.tokens[start].start, end.end))
        return node

    def star(self, parts: list[exp.Identifier] | None, start: int) -> exp.Expr:
        left_out = self.listed(self.made_of_names_as_columns) if self.take("EXCEPT") else []
        star = self.made(exp.Star(except_=left_out or None), start)
        if parts is None:
            return star
        keys = ("table", "db", "catalog")
        if len(parts) > len(keys):
            raise Beyond("the fields of a deep struct")
        return self.made(exp.Column(this=star, **dict(zip(keys, reversed(parts), strict=False))), start)

    def made_of_names_as_columns(self) -> exp.Expr:
        start = self.at
        parts = [self.identifier()]
        while self.take("."):
            parts.append(self.identifier())
        return parts[0] if len(parts) == 1 else self.column(parts, start)

    def at_interval(self) -> bool:
        """Whether a count comes next: a column may be called interval."""
        ahead = 2 if self.word(1) in ("-", "+") else 1
        if self.kind(ahead) is Kind.STRING:
            return True
        return self.kind(ahead) is Kind.NUMBER and self.word(ahead + 1).removesuffix("S") in _INTERVAL_UNITS

    def interval(self, start: int) -> exp.Expr:
        """``INTERVAL 1 DAY 2 HOURS``, ``INTERVAL '1 2:3' DAY TO MINUTE``, ``INTERVAL '1 day'``."""
        self.at += 1
        parts: list[tuple[exp.Expr, exp.Expr | None]] = []
        while not parts or self.at_interval_part():
            parts.append(self.interval_part())
            if not isinstance(parts[-1][1], exp.Var):
                break
        value, unit = parts[0]
        if len(parts) > 1:
            if not all(isinstance(v, exp.Literal) for v, _ in parts):
                value = exp.Neg(this=value)  # whoever binds it leaves it to Spark
            else:
                text = " ".join(f"{v.name} {u.name if u is not None else ''}" for v, u in parts)
                value = exp.Literal(this=text, is_string=True)
            unit = None
        return self.made(exp.Interval(this=value, unit=unit), start)

    def at_interval_part(self) -> bool:
        ahead = 0 if self.kind() in (Kind.STRING, Kind.NUMBER) else 1
        if ahead and self.word() not in ("-", "+"):
            return False
        counted = self.kind(ahead) in (Kind.STRING, Kind.NUMBER)
        return counted and self.word(ahead + 1).removesuffix("S") in _INTERVAL_UNITS

    def interval_part(self) -> tuple[exp.Expr, exp.Expr | None]:
        start = self.at
        sign = self.word() if self.word() in ("-", "+") else ""
        self.at += bool(sign)
        token = self.tokens[self.at]
        self.at += 1
        text = token.text.strip()
        value: exp.Expr
        if sign == "-" and text[:1] == "-":
            sign, text = "", text[1:]
            value = self.made(exp.Literal(this=text, is_string=True), start)
        elif sign == "-" and text[:1] == "+":
            value = self.made(exp.Neg(this=exp.Literal(this=text, is_string=True)), start)
        else:
            shown = f"-{text}" if sign == "-" else token.text
            value = self.made(exp.Literal(this=shown, is_string=token.kind is Kind.STRING or bool(sign)), start)
        at = self.at
        if self.word().removesuffix("S") not in _INTERVAL_UNITS:
            return value, None
        self.at += 1
        unit: exp.Expr = self.made(exp.Var(this=self.tokens[at].text), at)
        if self.word() == "TO":
            self.at += 1
            last = self.at
            if not self.is_name():
                self.fail("a unit")
            self.at += 1
            unit = exp.IntervalSpan(this=unit, expression=self.made(exp.Var(this=self.tokens[last].text), last))
            unit = self.made(unit, at)
        return value, unit

    # Queries, which hold expressions and stand in them (sql/grammar.py)

    @abstractmethod
    def query(self) -> exp.Expr: ...

    def at_query(self, ahead: int = 0) -> bool:
        """Whether a query begins there; one in parentheses if what follows it can follow a query."""
        word = self.word(ahead)
        if word == "(":
            close = self.closing.get(self.at + ahead)
            after = self.tokens[close + 1].upper if close is not None and close + 1 < len(self.tokens) else ")"
            return after in _AFTER_QUERY and self.at_query(ahead + 1)
        if word in ("SELECT", "WITH"):
            return True
        after, kind = self.word(ahead + 1), self.kind(ahead + 1)
        if word == "VALUES":
            return after not in (",", ")", ".", "=", "->", "") or kind in (Kind.STRING, Kind.NUMBER)
        if word in ("FROM", "TABLE"):
            return kind in (Kind.WORD, Kind.NAME) or (word == "FROM" and after == "(")
        return False

    def subquery(self) -> exp.Subquery:
        """``(query)``."""
        start = self.at
        self.expect("(")
        query = self.query()
        self.expect(")")
        return self.made(exp.Subquery(this=query), start)
