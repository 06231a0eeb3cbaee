"""Calls of functions, and the clauses that stand in them: DISTINCT, FILTER, WITHIN GROUP, OVER, ORDER BY."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from sqlglot import exp

from headrace.sql.lexer import Kind
from headrace.sql.token_reader import Beyond
from headrace.sql.type_names import TypeNames

_UNIT_FIRST = frozenset(("TIMESTAMPADD", "DATEADD", "DATE_ADD", "TIMESTAMPDIFF", "DATEDIFF", "DATE_DIFF", "TIMEDIFF"))
_TIME_UNITS = frozenset(
    (
        *("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DAYOFYEAR", "HOUR"),
        *("MINUTE", "SECOND", "MILLISECOND", "MICROSECOND"),
    )
)


_AFTER_VALUE = frozenset(
    ("IS", "IN", "LIKE", "ILIKE", "RLIKE", "REGEXP", "BETWEEN", "AND", "OR", "DIV", "COLLATE", "FROM")
)
"""Words that follow a value, and begin none."""


class Calls(TypeNames):
    """Reads calls."""

    @abstractmethod
    def expression(self) -> exp.Expr: ...

    @abstractmethod
    def named_expression(self) -> exp.Expr: ...

    @abstractmethod
    def value(self) -> exp.Expr: ...

    def call(self, name: str, start: int) -> exp.Expr:
        self.expect("(")
        if name.upper() == "IDENTIFIER":
            raise Beyond("IDENTIFIER(…)")
        distinct = self.at_quantifier()
        quantifier = self.word() if distinct else ""
        at = self.at
        self.at += distinct
        arguments: list[exp.Expr] = []
        ignoring: type[exp.Expr] | None = None
        if not self.take(")"):
            arguments = self.series(lambda: self.argument(name.upper(), start))
            if self.word() in ("IGNORE", "RESPECT") and self.word(1) == "NULLS":
                ignoring = exp.IgnoreNulls if self.word() == "IGNORE" else exp.RespectNulls
                self.at += 2
            self.expect(")")
        elif distinct:
            self.fail("an expression")
        if quantifier == "DISTINCT":
            self.at, end = self.at - 1, self.at
            arguments = [self.made(exp.Distinct(expressions=arguments), at)]
            self.at = end
        node: exp.Expr = self.made(exp.Anonymous(this=name, expressions=arguments), start)
        if ignoring is not None:
            node = self.made(ignoring(this=node), start)
        return self.around_call(node, start)

    def at_quantifier(self) -> bool:
        """Whether DISTINCT or ALL comes next and something to select follows; else it is a column of that name."""
        if self.word() not in ("DISTINCT", "ALL"):
            return False
        after, kind = self.word(1), self.kind(1)
        if after == "*":
            return self.kind(2) is None or self.word(2) in (",", ")", "FROM", "EXCEPT")
        if after == "NOT":
            return self.word(2) not in ("IN", "LIKE", "ILIKE", "RLIKE", "REGEXP", "BETWEEN")
        if kind is Kind.MARK:
            return after in ("(", "-", "+", "~", "?", ":")
        return kind is not None and (after not in _AFTER_VALUE or self.kind(2) is Kind.STRING)

    def argument(self, function: str, start: int) -> exp.Expr:
        at = self.at
        first = at == start + 2 and self.word(1) == ","
        if first and function in _UNIT_FIRST and self.word() in _TIME_UNITS and self.arguments_left() == 3:
            self.at += 1
            return self.made(exp.Var(this=self.tokens[at].text), at)
        if self.word() == "TABLE" and (self.word(1) == "(" or self.is_name(1)):
            raise Beyond("a relation as an argument")
        if self.is_name() and self.word(1) == "=>":
            key = self.identifier()
            self.at += 1
            return self.made(exp.Kwarg(this=exp.Var(this=key.name), expression=self.expression()), at)
        return self.named_expression() if function in ("STRUCT", "ARRAY") else self.expression()

    def arguments_left(self) -> int:
        """How many arguments there are from here to the end of the call."""
        count, at = 1, self.at
        while at < len(self.tokens) and self.tokens[at].upper != ")":
            count += self.tokens[at].upper == ","
            at = self.closing.get(at, at) + 1
        return count

    def around_call(self, node: exp.Expr, start: int) -> exp.Expr:
        """WITHIN GROUP, FILTER, IGNORE NULLS and OVER, which follow a call."""
        if self.take("WITHIN", "GROUP"):
            self.expect("(")
            order = self.order_by()
            if order is None:
                self.fail("ORDER BY")
            self.expect(")")
            node = self.made(exp.WithinGroup(this=node, expression=order), start)
        if self.word() == "FILTER" and self.word(1) == "(" and self.word(2) == "WHERE":
            self.at += 2
            at = self.at
            self.at += 1
            where = self.made(exp.Where(this=self.expression()), at)
            self.expect(")")
            node = self.made(exp.Filter(this=node, expression=where), start)
        if self.word() in ("IGNORE", "RESPECT") and self.word(1) == "NULLS":
            ignoring = exp.IgnoreNulls if self.word() == "IGNORE" else exp.RespectNulls
            self.at += 2
            node = self.made(ignoring(this=node), start)
        if self.take("OVER"):
            node = self.made(exp.Window(this=node, **self.window()), start)
        return node

    def window(self) -> dict[str, object]:
        """What follows OVER, or AS in a WINDOW clause."""
        if self.word() != "(":
            return {"alias": self.identifier()}
        self.expect("(")
        if self.is_name() and self.word(1) == ")":
            alias = self.identifier()
            self.expect(")")
            return {"alias": alias}
        found: dict[str, object] = {}
        if self.word() in ("PARTITION", "DISTRIBUTE", "CLUSTER") and self.word(1) == "BY":
            self.at += 2
            found["partition_by"] = self.series(self.expression)
        found["order"] = self.order_by(("ORDER", "SORT"))
        start = self.at
        if self.word() in ("ROWS", "RANGE"):
            spec: dict[str, object] = {"kind": self.word()}
            self.at += 1
            between = self.take("BETWEEN")
            spec["start"], spec["start_side"] = self.bound()
            if between:
                self.expect("AND")
                spec["end"], spec["end_side"] = self.bound()
            found["spec"] = self.made(exp.WindowSpec(**spec), start)
        self.expect(")")
        return found

    def bound(self) -> tuple[exp.Expr | str, str]:
        """Where a window's frame ends, and on which side of the row."""
        if self.take("CURRENT", "ROW"):
            return "CURRENT ROW", ""
        value = "UNBOUNDED" if self.take("UNBOUNDED") else self.expression()
        if self.word() not in ("PRECEDING", "FOLLOWING"):
            self.fail("PRECEDING or FOLLOWING")
        self.at += 1
        return value, self.word(-1)

    def order_by(self, words: tuple[str, ...] = ("ORDER",)) -> exp.Order | None:
        start = self.at
        if not (self.word() in words and self.word(1) == "BY"):
            return None
        self.at += 2
        return self.made(exp.Order(expressions=self.series(self.sort_item)), start)

    def sort_item(self) -> exp.Expr:
        start = self.at
        key = self.expression()
        descending = self.take("DESC")
        if not descending:
            self.take("ASC")
        nulls: bool | None = None
        if self.take("NULLS"):
            nulls = self.take("FIRST")
            if not nulls:
                self.expect("LAST")
        return self.made(exp.Ordered(this=key, desc=descending, nulls_first=nulls), start)

    def cast(self, word: str, start: int) -> exp.Expr | None:
        value = self.expression()
        if self.word() in (",", ")"):
            return None
        self.expect("AS")
        make = exp.Cast if word == "CAST" else exp.TryCast
        return make(this=value, to=self.type())

    def extract(self, word: str, start: int) -> exp.Expr | None:
        if not (self.kind() in (Kind.WORD, Kind.NAME, Kind.STRING) and self.word(1) == "FROM"):
            return None
        at = self.at
        self.at += 1
        field = self.made(exp.Var(this=self.tokens[at].text), at)
        self.expect("FROM")
        return exp.Extract(this=field, expression=self.value())

    def substring(self, word: str, start: int) -> exp.Expr | None:
        text = self.value()
        if not self.take("FROM"):
            return None  # a plain call
        begin = self.value()
        length = self.value() if self.take("FOR") else None
        return exp.Substring(this=text, start=begin, length=length)

    def trim(self, word: str, start: int) -> exp.Expr | None:
        side = self.word() if self.word() in ("BOTH", "LEADING", "TRAILING") else ""
        if side and self.word(1) not in (")", ",", "."):
            self.at += 1
        else:
            side = ""
        chars = None if self.word() == "FROM" else self.value()
        if not self.take("FROM"):
            return None
        return exp.Trim(this=self.value(), expression=chars, position=side or "BOTH")

    def position_in(self, word: str, start: int) -> exp.Expr | None:
        part = self.value()
        if not self.take("IN"):
            return None
        return exp.StrPosition(this=self.value(), substr=part)

    def overlay(self, word: str, start: int) -> exp.Expr | None:
        text = self.value()
        if not self.take("PLACING"):
            return None
        put = self.value()
        self.expect("FROM")
        begin = self.value()
        length = self.value() if self.take("FOR") else None
        return exp.Overlay(this=text, expression=put, from_=begin, for_=length)


SYNTACTIC: dict[str, Callable[[Calls, str, int], exp.Expr | None]] = {
    "CAST": Calls.cast,
    "TRY_CAST": Calls.cast,
    "EXTRACT": Calls.extract,
    "SUBSTRING": Calls.substring,
    "SUBSTR": Calls.substring,
    "TRIM": Calls.trim,
    "POSITION": Calls.position_in,
    "OVERLAY": Calls.overlay,
}
"""Calls whose arguments have a grammar of their own; ``None`` from a reader means an ordinary call."""
