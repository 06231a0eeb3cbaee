"""Spark SQL parsed as it was written.

sqlglot parses in order to translate: ``year(x)`` gains a conversion to date,
``percentile`` becomes a quantile, ``1L`` a cast, and what the user wrote is gone.
We bind with Spark's own meaning and hand what we do not know to Spark as text,
so here every function call stays a call by its own name and every literal keeps
its spelling. Headrace's own dialect builds on this one.

>>> import sqlglot
>>> sqlglot.parse_one("year(d) + log(2, 1L) + if(c, 1e3, 2BD)", read=Verbatim).sql(Verbatim)
'year(d) + log(2, 1L) + if(c, 1e3, 2BD)'
>>> sqlglot.parse_one("'it''s'", read=Verbatim).name
"it's"
"""

from __future__ import annotations

from typing import ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType

TYPED_LITERAL = "typed_literal"
"""Meta key of a Cast that was written ``DATE '…'`` rather than ``CAST('…' AS DATE)``."""

# Only calls whose arguments have a grammar of their own (FROM, AS, IN) keep their parser,
# and hints, which share the table.
_SYNTACTIC = ("CAST", "TRY_CAST", "TRIM", "SUBSTRING", "POSITION", "OVERLAY")
_HINTS = (
    "BROADCAST",
    "BROADCASTJOIN",
    "MAPJOIN",
    "MERGE",
    "MERGEJOIN",
    "SHUFFLEMERGE",
    "SHUFFLE_HASH",
    "SHUFFLE_REPLICATE_NL",
)
_INTERVAL_UNITS = ("YEAR", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND")
_SUFFIXES = ("L", "S", "Y", "D", "F", "BD")


def _parse_double_colon(parser: SparkParser, this: exp.Expr, to: exp.DataType) -> exp.Expr:
    """``x::type``, or a suffixed number: the tokenizer sends ``1L`` as ``1 :: L``."""
    suffix = parser._prev.text
    if isinstance(this, exp.Literal) and suffix.upper() in _SUFFIXES:
        return exp.Literal(this=this.name + suffix.upper(), is_string=False).update_positions(this)
    return exp.Cast(this=this, to=to)


def _parse_typed_literal(parser: SparkParser, this: exp.Expr, to: exp.DataType) -> exp.Expr:
    node = exp.Cast(this=this, to=to)
    node.meta[TYPED_LITERAL] = True
    return node


def _parse_plus(parser: SparkParser) -> exp.Expr:
    """Unary plus is a function in Spark (it makes a number of a string), not nothing."""
    return exp.Anonymous(this="positive", expressions=[parser._parse_unary()])


def _parse_extract(parser: SparkParser) -> exp.Expr:
    """``extract(field FROM x)`` with the field as spelt: it shows in the column's name."""
    field = parser._parse_var(any_token=True)
    if not parser._match(TokenType.FROM):
        parser.raise_error("Expected FROM after the field of EXTRACT")
    return exp.Extract(this=field, expression=parser._parse_bitwise())


class VerbatimParser(SparkParser):
    """sqlglot's Spark parser without its function rewrites."""

    STRICT_CAST = True
    FUNCTIONS: ClassVar = {}
    ARRAY_CONSTRUCTORS: ClassVar = {}  # array(a)[0] is an element of a call, not an ARRAY[0]
    FUNCTION_PARSERS: ClassVar = {
        **{name: parse for name, parse in SparkParser.FUNCTION_PARSERS.items() if name in _SYNTACTIC + _HINTS},
        "EXTRACT": _parse_extract,
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar = {"CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}
    COLUMN_OPERATORS: ClassVar = {**SparkParser.COLUMN_OPERATORS, TokenType.DCOLON: _parse_double_colon}
    UNARY_PARSERS: ClassVar = {**SparkParser.UNARY_PARSERS, TokenType.PLUS: _parse_plus}

    # sqlglot takes no condition as a key of a grouping set; Spark takes any expression.

    def _parse_cube_or_rollup(self, with_prefix: bool = False) -> exp.Cube | exp.Rollup | None:
        kind = exp.Cube if self._match(TokenType.CUBE) else exp.Rollup if self._match(TokenType.ROLLUP) else None
        if kind is None:
            return None
        keys = [] if with_prefix else self._parse_wrapped_csv(self._parse_disjunction)
        return self.expression(kind(expressions=keys))

    def _parse_subquery(self, this: exp.Expr | None, parse_alias: bool = True) -> exp.Subquery | None:
        """Spark has a subquery's TABLESAMPLE before its alias, as a table's."""
        sample = self._parse_table_sample() if this is not None else None
        subquery = super()._parse_subquery(this, parse_alias)
        if subquery is not None and sample is not None:
            subquery.set("sample", sample)
        return subquery

    def _parse_table_sample(self, as_modifier: bool = False) -> exp.TableSample | None:
        """A negative number of rows is a number too: whoever binds it says what is wrong with it."""
        ahead = [t.text.upper() for t in self._tokens[self._index : self._index + 4]]
        if ahead != ["TABLESAMPLE", "RESERVOIR", "(", "-"]:
            return super()._parse_table_sample(as_modifier)
        self._advance(4)
        number = self._parse_number()
        self._match(TokenType.ROWS)
        self._match_r_paren()
        size = exp.Literal(this=f"-{number.name if number else ''}", is_string=False)
        return exp.TableSample(method=exp.var("RESERVOIR"), size=size.update_positions(number) if number else size)

    def _parse_grouping_set(self) -> exp.Expr | None:
        return self._parse_grouping_sets() or self._parse_cube_or_rollup() or self._parse_disjunction()

    TYPE_LITERAL_PARSERS: ClassVar = {
        **SparkParser.TYPE_LITERAL_PARSERS,
        exp.DType.DATE: _parse_typed_literal,
        exp.DType.TIMESTAMP: _parse_typed_literal,
        exp.DType.TIMESTAMPTZ: _parse_typed_literal,
        exp.DType.TIMESTAMPLTZ: _parse_typed_literal,
        exp.DType.TIMESTAMPNTZ: _parse_typed_literal,
    }

    def _parse_interval(
        self, require_interval: bool = True, parse_function_unit: bool = True
    ) -> exp.Add | exp.Interval | None:
        """``INTERVAL 1 DAY 2 HOURS`` is one literal, and a plus after an interval is a plus."""
        if not (self._curr and self._curr.token_type == TokenType.INTERVAL and require_interval):
            return super()._parse_interval(require_interval, parse_function_unit)
        start = self._index
        self._advance()
        parts: list[exp.Interval] = []
        while self._at_interval_part(signed=not parts):
            sign = self._prev.text if self._match_set((TokenType.DASH, TokenType.PLUS)) else ""
            value = self._parse_primary()
            assert value is not None
            if sign:
                value = exp.Literal.string(sign.strip("+") + value.name)
            parts.append(self._parse_interval_span(value, parse_function_unit=False))
        if not parts:
            self._retreat(start)
            return None  # a column may be called interval
        if len(parts) == 1:
            return parts[0]
        text = " ".join(f"{part.this.name} {part.args['unit'].name}" for part in parts)
        return exp.Interval(this=exp.Literal.string(text))

    def _at_interval_part(self, *, signed: bool) -> bool:
        """Whether a count and its unit come next (a string may hold the units itself, when it comes first)."""
        ahead = self._tokens[self._index : self._index + 3]
        if signed and ahead and ahead[0].token_type in (TokenType.DASH, TokenType.PLUS):
            ahead = ahead[1:]
        if not ahead or ahead[0].token_type not in (TokenType.STRING, TokenType.NUMBER):
            return False
        if signed and ahead[0].token_type == TokenType.STRING:
            return True
        return len(ahead) > 1 and ahead[1].text.upper().removesuffix("S") in _INTERVAL_UNITS


def quote_string(text: str) -> str:
    r"""A string literal Spark reads back as exactly ``text``.

    >>> print(quote_string("it's 1\\2"))
    'it\'s 1\\2'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _literal(generator: SparkGenerator, node: exp.Literal) -> str:
    return quote_string(node.name) if node.is_string else node.name


def _raw_string(generator: SparkGenerator, node: exp.RawString) -> str:
    return quote_string(node.name)


class VerbatimGenerator(SparkGenerator):
    """Prints names and strings so that Spark reads back what was parsed."""

    TRANSFORMS: ClassVar = {**SparkGenerator.TRANSFORMS, exp.Literal: _literal, exp.RawString: _raw_string}


class Verbatim(Spark):
    """The Spark dialect that keeps calls as written."""

    NORMALIZE_FUNCTIONS = False

    class Tokenizer(Spark.Tokenizer):
        # Spark 4 reads a doubled quote as one; sqlglot would read two adjacent strings.
        STRING_ESCAPES: ClassVar = ["\\", "'", '"']

    Parser = VerbatimParser
    Generator = VerbatimGenerator
