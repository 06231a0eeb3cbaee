"""Scalar expressions bound: a parse tree in, a typed tree out.

Columns are found by a :class:`FieldScope`, types are Spark's (``sql/functions.py``
has the rules), and whatever is not claimed there becomes text for Spark, typed
by Spark's own analyzer. Nothing is evaluated.

>>> from headrace.plan.exprs import Column
>>> from headrace.sql.grammar import parse_expression
>>> from headrace.types import decimal
>>> class Prices:
...     def column(self, parts, position):
...         return Column(decimal(15, 2), 1, parts[-1])
>>> bound = bind_expr(parse_expression("price * (1 - discount)"), Prices(), None)
>>> bound.type.sql
'decimal(32,4)'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import tzinfo

from sqlglot import exp

from headrace.errors import SqlError
from headrace.plan.exprs import Agg, Call, Case, Cast, Expr, Literal, Over, SparkExpr, walk
from headrace.sql import literals
from headrace.sql.arithmetic import Mismatch
from headrace.sql.coercion import can_cast, cast
from headrace.sql.expression_grammar import TYPED_LITERAL
from headrace.sql.fields import CALLED_BARE, Analyzer, FieldScope, bind_field, bind_name
from headrace.sql.functions import (
    AGGREGATES,
    CAST_FUNCTIONS,
    OTHER_FORMS,
    SCALARS,
    alternatives,
    as_timestamp,
    condition,
    is_char,
)
from headrace.sql.over import ONLY_OVER, bind_over
from headrace.sql.source import text_of
from headrace.sql.template import AGGREGATE_WRAPPERS, Left, composed, spark_template
from headrace.sql.tree import OutsideAlgebra, check_inside_algebra, dotted, function_name, position_of
from headrace.types import BINARY, BOOLEAN, DATE, STRING, TIMESTAMP, TIMESTAMP_NTZ, VOID, Type, other, parse_type


def bind_expr(
    node: exp.Expr,
    scope: FieldScope,
    analyzer: Analyzer,
    *,
    zone: tzinfo | None = None,
    left: dict[int, Left] | None = None,
    windows: bool = False,
) -> Expr:
    """The typed form of ``node``; aggregate calls stand inline as Agg, those of window functions as Over.

    ``zone`` is the session's time zone (the analyzer's, unless given): with it, TIMESTAMP literals without a zone
    become constants; without it they stay casts of local times. ``left`` takes the parts left to Spark, by id.
    ``windows`` says that window functions may stand here; elsewhere they are Spark's to refuse.
    """
    check_inside_algebra(node, windows=windows)
    binder = _Binder(scope, analyzer, zone or getattr(analyzer, "zone", None), {} if left is None else left)
    return binder.bind(node)


_BINARY: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
    exp.And: "and",
    exp.Or: "or",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
    exp.DPipe: "concat",
}
_EXTRACTED = {
    **dict.fromkeys(("year", "y", "years", "yr", "yrs"), "year"),
    **dict.fromkeys(("month", "mon", "mons", "months"), "month"),
    **dict.fromkeys(("day", "d", "days"), "day"),
    **dict.fromkeys(("dayofweek", "dow"), "dayofweek"),
    **dict.fromkeys(("hour", "h", "hours", "hr", "hrs"), "hour"),
    **dict.fromkeys(("minute", "m", "min", "mins", "minutes"), "minute"),
}
_WINDOW = other("struct<start:timestamp,end:timestamp>")
_ONLY_IN_CALLS = (exp.Kwarg, exp.Alias, exp.Aliases, exp.Distinct)
"""Arguments that are no values: ``f(x => 1)``, ``struct(1 AS a)``, ``f(DISTINCT 1)``."""


class _Binder:
    def __init__(self, scope: FieldScope, analyzer: Analyzer, zone: tzinfo | None, left: dict[int, Left]) -> None:
        self.left = left
        self.scope = scope
        self.analyzer = analyzer
        self.zone = zone
        self.within_aggregate = False

    def bind(self, node: exp.Expr) -> Expr:
        symbol = _BINARY.get(type(node))
        if symbol is not None:
            return self.call(symbol, node, (node.this, node.expression))
        special = _SPECIAL.get(type(node))
        return special(self, node) if special else self.spark(node)

    def bind_all(self, nodes: list[exp.Expr] | tuple[exp.Expr, ...]) -> tuple[Expr, ...]:
        return tuple(self.bind(n) for n in nodes)

    @contextmanager
    def at(self, node: exp.Expr) -> Iterator[None]:
        """Errors from within are about ``node``."""
        try:
            yield
        except Mismatch as refusal:
            raise SqlError(
                "DATATYPE_MISMATCH",
                f"cannot resolve {text_of(node)}: {refusal}",
                position=position_of(node),
                hint="CAST one side to the type you mean",
            ) from None
        except SqlError as error:
            if error.position is None:
                error.position = position_of(node)
            raise

    def call(self, name: str, node: exp.Expr, args: tuple[exp.Expr, ...], shape: str = "") -> Expr:
        """A claimed function over these arguments, or what Spark says it is.

        Spark reads the text of ``node``, unless that says more than the call: then the call's own ``shape``.
        """
        function = SCALARS[name]
        if not function.takes(len(args)):
            if len(args) in OTHER_FORMS.get(name, ()):
                return self.spark(node)
            raise _wrong_arity(name, len(args), function.least, function.most, node)
        bound = self.bind_all(args)
        with self.at(node):
            result = function.rule(bound) if _claimable(name, bound) else None
        if result is not None:
            return result
        return self.spark_composed(shape, args, node) if shape else self.spark(node)

    # --- operators with a syntax of their own -------------------------------------------------

    def paren(self, node: exp.Expr) -> Expr:
        return self.bind(node.this)

    def column(self, node: exp.Expr) -> Expr:
        assert isinstance(node, exp.Column)
        if isinstance(node.this, exp.Star):
            raise OutsideAlgebra("a star inside an expression", position_of(node))
        return self.named(tuple(part.name for part in node.parts), node)

    def named(self, parts: tuple[str, ...], node: exp.Expr) -> Expr:
        with self.at(node):
            try:
                return bind_name(parts, self.scope, self.analyzer, position_of(node))
            except SqlError as error:
                if error.condition != "UNRESOLVED_COLUMN" or len(parts) > 1 or parts[0].lower() not in CALLED_BARE:
                    raise
        call = f"{parts[0].lower()}()"
        self.left[id(node)] = Left(node, [])
        return SparkExpr(self.analyzer.scalar_type(call, ()), call, ())

    def negation(self, node: exp.Expr) -> Expr:
        return self.call("not", node, (node.this,))

    def minus(self, node: exp.Expr) -> Expr:
        return self.call("negative", node, (node.this,))

    def distinct_from(self, node: exp.Expr) -> Expr:
        same = self.call("<=>", node, (node.this, node.expression), "(({}) <=> ({}))")
        return Call(BOOLEAN, "not", (same,))

    def is_(self, node: exp.Expr) -> Expr:
        if isinstance(node.expression, exp.Null):
            return self.call("isnull", node, (node.this,))
        if isinstance(node.expression, exp.Not) and isinstance(node.expression.this, exp.Null):
            return self.call("isnotnull", node, (node.this,))
        if isinstance(node.expression, exp.Boolean):
            return self.call("<=>", node, (node.this, node.expression))
        return self.spark(node)

    def between(self, node: exp.Expr) -> Expr:
        if is_char(self.bind(node.this)):
            return self.spark(node)  # where Spark compares without filling up
        low = self.call(">=", node, (node.this, node.args["low"]), "(({}) >= ({}))")
        high = self.call("<=", node, (node.this, node.args["high"]), "(({}) <= ({}))")
        return Call(BOOLEAN, "and", (low, high))

    def in_(self, node: exp.Expr) -> Expr:
        if not node.expressions or isinstance(node.this, exp.Tuple):
            return self.spark(node)
        return self.call("in", node, (node.this, *node.expressions))

    def like(self, node: exp.Expr) -> Expr:
        escape: tuple[exp.Expr, ...] = ()
        pattern = node
        if isinstance(node, exp.Escape):
            pattern, escape = node.this, (node.expression,)
            if len(node.expression.name) != 1:
                raise SqlError(
                    "INVALID_ESC",
                    f"{text_of(node.expression)} is not one character, so nothing can be escaped by it",
                    position=position_of(node.expression),
                    hint="write one character, for example ESCAPE '!'",
                )
        if not isinstance(pattern, exp.Like) or isinstance(pattern.expression, exp.Any | exp.All):
            return self.spark(node)
        return self.call("like", node, (pattern.this, pattern.expression, *escape))

    def case(self, node: exp.Expr) -> Expr:
        operand = node.args.get("this")
        tests: list[Expr] = []
        for branch in node.args["ifs"]:
            if operand is not None:
                tests.append(self.call("=", branch, (operand, branch.this), "(({}) = ({}))"))
                continue
            test = self.bind(branch.this)
            with self.at(branch.this):
                tests.append(condition(test, allow_null=False))
        values = self.bind_all([branch.args["true"] for branch in node.args["ifs"]])
        default = node.args.get("default")
        defaults = (self.bind(default),) if default is not None else ()
        with self.at(node):
            found = alternatives((*values, *defaults), "CASE")
        if found is None:
            return self.spark(node)
        last = found[-1] if defaults else Literal(found[0].type, None)
        return Case(found[0].type, tuple(zip(tests, found, strict=False)), last)

    def cast_to(self, node: exp.Expr) -> Expr:
        target = parse_type(node.args["to"].name)
        if node.meta.get(TYPED_LITERAL) and target is not None:
            with self.at(node):
                found = self.typed_literal(node.this.name, target)
            return self.spark(node) if found is None else found
        return self.spark(node) if target is None else self.cast_explicitly(node, node.this, target)

    def cast_explicitly(self, node: exp.Expr, arg: exp.Expr, target: Type) -> Expr:
        value = self.bind(arg)
        allowed = can_cast(value.type, target)
        if allowed is None:
            return self.spark(node)
        with self.at(node):
            if not allowed:
                raise Mismatch(f"{value.type} cannot be cast to {target}")
        # A cast literal is none to Spark, whose least decimal would count; text that was cast is any text.
        literal = isinstance(value, Literal) and value.type == target and value.value is not None
        return Cast(target, value) if literal or value.type.is_limited else cast(value, target)

    def typed_literal(self, text: str, target: Type) -> Expr | None:
        if target == DATE:
            return literals.date_literal(text)
        if target in (TIMESTAMP, TIMESTAMP_NTZ):
            return literals.timestamp_literal(text, target, self.zone)
        return None

    def extract(self, node: exp.Expr) -> Expr:
        field = _EXTRACTED.get(node.this.name.lower())
        return self.call(field, node, (node.expression,)) if field else self.spark(node)

    def substring(self, node: exp.Expr) -> Expr:
        parts = (node.this, node.args.get("start"), node.args.get("length"))
        return self.call("substring", node, tuple(p for p in parts if p is not None))

    def trim(self, node: exp.Expr) -> Expr:
        names = {"LEADING": "ltrim", "TRAILING": "rtrim"}
        name = names.get((node.args.get("position") or "").upper(), "trim")
        chars = (node.expression,) if node.args.get("expression") else ()
        return self.call(name, node, (node.this, *chars))

    def dot(self, node: exp.Expr) -> Expr:
        """A field: of a time window or a struct known here, of any other value known to Spark."""
        if isinstance(node.this, exp.Anonymous) and function_name(node.this) == "window":
            window = self.bind(node.this)
            field = node.expression.name.lower()
            if isinstance(window, Call) and field in ("start", "end"):
                return SparkExpr(TIMESTAMP, f"{{0}}.{field}", (window,))
        if (parts := dotted(node)) is not None:
            return self.named(parts, node)
        if isinstance(node.expression, exp.Identifier):
            holder = self.bind(node.this)
            if holder.type.is_nested:
                with self.at(node):
                    return bind_field(holder, node.expression.name, self.analyzer)
        return self.spark(node)

    # --- literals -----------------------------------------------------------------------------

    def literal(self, node: exp.Expr) -> Expr:
        assert isinstance(node, exp.Literal)
        with self.at(node):
            return Literal(STRING, node.name) if node.is_string else literals.number(node.name)

    def hex_string(self, node: exp.Expr) -> Expr:
        digits = node.name
        try:
            return Literal(BINARY, bytes.fromhex("0" * (len(digits) % 2) + digits))
        except ValueError:
            raise SqlError(
                "INVALID_TYPED_LITERAL", f"X'{digits}' is not hexadecimal", position=position_of(node)
            ) from None

    def interval(self, node: exp.Expr) -> Expr:
        assert isinstance(node, exp.Interval)
        return literals.interval_literal(node) or self.spark(node)

    # --- function calls -----------------------------------------------------------------------

    def function(self, node: exp.Expr) -> Expr:
        assert isinstance(node, exp.Anonymous)
        name, args = function_name(node), tuple(node.expressions)
        if name in ONLY_OVER:
            raise SqlError(
                "WINDOW_FUNCTION_WITHOUT_OVER_CLAUSE",
                f"{name} is a window function, and no window follows",
                position=position_of(node),
                hint=f"write {name}(…) OVER (PARTITION BY … ORDER BY …)",
            )
        if any(isinstance(a, _ONLY_IN_CALLS) for a in args) and name not in AGGREGATES:
            return self.spark_aggregate(node, None) if self.is_aggregate(node) else self.spark(node)
        if name in AGGREGATES:
            return self.aggregate(node, None)
        if name in ("trim", "ltrim", "rtrim") and len(args) == 2:
            args = args[::-1]  # Spark's own order is (characters, string)
        if name in SCALARS:
            return self.call(name, node, args)
        if name in CAST_FUNCTIONS and len(args) == 1:
            target = parse_type(name)
            assert target is not None
            return self.cast_explicitly(node, args[0], target)
        if name == "date_part" and len(args) == 2 and isinstance(args[0], exp.Literal):
            field = _EXTRACTED.get(args[0].name.lower())
            return self.call(field, node, args[1:]) if field else self.spark(node)
        if name == "window" and len(args) in (2, 3, 4) and all(isinstance(a, exp.Literal) for a in args[1:]):
            return self.time_window(node, args[0], [a.name for a in args[1:]])
        return self.aggregate(node, None) if self.is_aggregate(node) else self.spark(node)

    def time_window(self, node: exp.Expr, time: exp.Expr, texts: list[str]) -> Expr:
        """``window(ts, length[, slide[, offset]])``, its arguments as literals of microseconds."""
        parts = [literals.interval_text(text) for text in texts]
        moment = self.bind(time)
        with self.at(node):
            if moment.type == TIMESTAMP_NTZ:
                return self.spark(node)
            found: list[Literal] = []
            for part in parts:
                if part is None or part.type.name != "interval_time":
                    return self.spark(node)
                found.append(part)
            length = found[0]
            slide = found[1] if len(found) > 1 else length
            if length.value <= 0 or slide.value <= 0:
                raise Mismatch("a window needs a positive width and slide")
            if slide.value > length.value:
                raise Mismatch("a window may not slide by more than its width")
            if len(found) > 2 and abs(found[2].value) >= slide.value:
                raise Mismatch("a window may not start later than it slides")
            return Call(_WINDOW, "window", (as_timestamp(moment), *found))

    def filtered(self, node: exp.Expr) -> Expr:
        return self.aggregate(node.this, node.expression.this)

    def wrapped_aggregate(self, node: exp.Expr) -> Expr:
        """``first(a) IGNORE NULLS``, ``percentile_cont(0.5) WITHIN GROUP (…)``: aggregates only Spark runs."""
        return self.spark_aggregate(node, None)

    def aggregate(self, node: exp.Expr, where: exp.Expr | None) -> Expr:
        if not isinstance(node, exp.Anonymous) or function_name(node) not in AGGREGATES:
            return self.spark_aggregate(node, where)
        name = function_name(node)
        row = AGGREGATES[name]
        args, distinct = list(node.expressions), False
        if len(args) == 1 and isinstance(args[0], exp.Distinct):
            args, distinct = list(args[0].expressions), True
        star = len(args) == 1 and isinstance(args[0], exp.Star)
        if star and (name != "count" or distinct):
            raise OutsideAlgebra(f"{name} over a star", position_of(node))
        if not row.takes(len(args)) or (name == "count" and not args):
            raise _wrong_arity(name, len(args), max(row.least, 1), row.most, node)
        with self.inside_aggregate(node):
            bound = () if star else self.bind_all(args)
            with self.at(node):
                found = row.rule(bound)
            if found is None:
                return self.spark_aggregate(node, where, entered=True)
            return Agg(found[1], row.name, found[0], distinct, self.filter(where))

    @contextmanager
    def inside_aggregate(self, node: exp.Expr) -> Iterator[None]:
        if self.within_aggregate:
            raise SqlError(
                "NESTED_AGGREGATE_FUNCTION",
                f"{text_of(node)} stands inside another aggregate",
                position=position_of(node),
                hint="compute the inner aggregate in a subquery",
            )
        self.within_aggregate = True
        try:
            yield
        finally:
            self.within_aggregate = False

    def filter(self, where: exp.Expr | None) -> Expr | None:
        if where is None:
            return None
        within, self.within_aggregate = self.within_aggregate, False
        bound = self.bind(where)
        self.within_aggregate = within
        if any(isinstance(part, Agg) for part in walk(bound)):
            raise _wrong_filter("holds an aggregate", "filter the rows by their own columns, groups by HAVING", where)
        if any(isinstance(part, Over) for part in walk(bound)):
            raise _wrong_filter("holds a window function", "compute it in a subquery, and filter by its column", where)
        if bound.type != BOOLEAN:
            raise _wrong_filter(f"must be boolean, but is {bound.type}", "compare it with something", where)
        return bound

    def spark_aggregate(self, node: exp.Expr, where: exp.Expr | None, *, entered: bool = False) -> Expr:
        """An aggregate only Spark knows: its call as a template over its columns."""
        if not entered:
            with self.inside_aggregate(node):
                return self.spark_aggregate(node, where, entered=True)
        template, args = self.template(node)
        with self.at(node):
            type_ = self.analyzer.scalar_type(template, tuple(a.type for a in args))
        call = node.find(exp.Anonymous)
        name = function_name(call) if call is not None else "?"
        return Agg(type_, name, args, node.find(exp.Distinct) is not None, self.filter(where), template)

    # --- what only Spark knows ----------------------------------------------------------------

    def spark(self, node: exp.Expr) -> Expr:
        """The expression as Spark SQL text over its columns and aggregates, typed by Spark."""
        if isinstance(node, exp.Placeholder):
            raise SqlError(
                "UNBOUND_SQL_PARAMETER", "parameters are not supported", position=position_of(node), hint="write values"
            )
        template, args = self.template(node)
        with self.at(node):
            return SparkExpr(self.analyzer.scalar_type(template, tuple(a.type for a in args)), template, args)

    def template(self, node: exp.Expr) -> tuple[str, tuple[Expr, ...]]:
        holes: list[tuple[exp.Expr, Type]] = []

        def leaf(part: exp.Expr) -> Expr | None:
            bound = self.leaf(part)
            if bound is not None:
                holes.append((part, bound.type))
            return bound

        self.left[id(node)] = Left(node, holes)
        return spark_template(node, leaf)

    def spark_composed(self, shape: str, parts: tuple[exp.Expr, ...], node: exp.Expr) -> Expr:
        template, args = composed(shape, parts, self.leaf)
        with self.at(node):
            return SparkExpr(self.analyzer.scalar_type(template, tuple(a.type for a in args)), template, args)

    def leaf(self, part: exp.Expr) -> Expr | None:
        """The bound form of a column or an aggregate call, ``None`` for anything that has to stay text."""
        if isinstance(part, exp.Column):
            return self.column(part)
        if isinstance(part, exp.Dot) and (parts := dotted(part)) is not None:
            return self.named(parts, part)
        if isinstance(part, (exp.Window, *AGGREGATE_WRAPPERS)):
            return self.bind(part)
        return self.bind(part) if isinstance(part, exp.Anonymous) and self.is_aggregate(part) else None

    def is_aggregate(self, node: exp.Anonymous) -> bool:
        name = function_name(node)
        if name in AGGREGATES:
            return True
        unit_first = bool(node.expressions) and isinstance(node.expressions[0], exp.Var)
        if name in SCALARS or name in CAST_FUNCTIONS or unit_first:
            return False
        with self.at(node):
            return self.analyzer.is_aggregate(name)


def _claimable(name: str, args: tuple[Expr, ...]) -> bool:
    """Whether the rule knows these types: values of others (structs, intervals) are Spark's."""
    if name in ("+", "-", "isnull", "isnotnull", "coalesce", "nvl", "ifnull", "if", "in"):
        return True
    return all(a.type.is_native for a in args)


def _wrong_filter(what: str, hint: str, where: exp.Expr) -> SqlError:
    return SqlError("INVALID_AGGREGATE_FILTER", f"FILTER's condition {what}", position=position_of(where), hint=hint)


def _wrong_arity(name: str, given: int, least: int, most: int | None, node: exp.Expr) -> SqlError:
    wanted = f"at least {least}" if most is None else str(least) if least == most else f"{least} to {most}"
    return SqlError(
        "WRONG_NUM_ARGS",
        f"{name} takes {wanted} argument{'' if wanted == '1' else 's'}, not {given}",
        position=position_of(node),
        hint=f"see Spark's documentation of {name}",
    )


_SPECIAL: dict[type[exp.Expr], Callable[[_Binder, exp.Expr], Expr]] = {
    exp.Paren: _Binder.paren,
    exp.Column: _Binder.column,
    exp.Not: _Binder.negation,
    exp.Neg: _Binder.minus,
    exp.NullSafeNEQ: _Binder.distinct_from,
    exp.Is: _Binder.is_,
    exp.Between: _Binder.between,
    exp.In: _Binder.in_,
    exp.Like: _Binder.like,
    exp.Escape: _Binder.like,
    exp.Case: _Binder.case,
    exp.Cast: _Binder.cast_to,
    exp.Extract: _Binder.extract,
    exp.Substring: _Binder.substring,
    exp.Trim: _Binder.trim,
    exp.Dot: _Binder.dot,
    exp.Literal: _Binder.literal,
    exp.Null: lambda binder, node: Literal(VOID, None),
    exp.Boolean: lambda binder, node: Literal(BOOLEAN, bool(node.this)),
    exp.HexString: _Binder.hex_string,
    exp.Interval: _Binder.interval,
    exp.Anonymous: _Binder.function,
    exp.Window: bind_over,
    exp.Filter: _Binder.filtered,
    exp.IgnoreNulls: _Binder.wrapped_aggregate,
    exp.RespectNulls: _Binder.wrapped_aggregate,
    exp.WithinGroup: _Binder.wrapped_aggregate,
}

__all__ = [
    "Analyzer",
    "FieldScope",
    "OutsideAlgebra",
    "bind_expr",
    "check_inside_algebra",
    "position_of",
]
