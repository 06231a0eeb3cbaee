"""The names Spark gives columns nobody named.

``SELECT count(*), sum(id + 1)`` has columns ``count(1)`` and ``sum((id + 1))``.
Spark prints the expression with every operator in parentheses, string literals
without quotes, qualifiers and implicit casts dropped, functions by the name
they were called by. The few that print otherwise are listed here.

>>> from headrace.sql.grammar import parse_expression
>>> [output_name(parse_expression(q)) for q in ("count(*)", "SUM(t.id+1)", "a != 'x'", "cast(a as int)")]
['count(1)', 'sum((id + 1))', '(NOT (a = x))', 'a']
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

import numpy as np
from sqlglot import exp

from headrace.errors import SqlError
from headrace.plan.exprs import Literal
from headrace.sql import literals
from headrace.sql.arithmetic import DATE_DIFFERENCE
from headrace.sql.expression_grammar import TYPED_LITERAL
from headrace.sql.functions import CAST_FUNCTIONS, TIME_UNIT_FIRST
from headrace.sql.source import text_of
from headrace.sql.tree import dotted
from headrace.types import DATE, DOUBLE, FLOAT, TIMESTAMP_NTZ, Type, parse_type

TypeOf = Callable[[exp.Expr], Type | None]
DepthOf = Callable[[exp.Expr], int]
SparkName = Callable[[exp.Expr], "tuple[str, list[exp.Expr]] | None"]


def output_name(
    node: exp.Expr,
    type_of: TypeOf | None = None,
    depth_of: DepthOf | None = None,
    spark_name: SparkName | None = None,
) -> str:
    """The name of an unaliased select item.

    Two names depend on a type: a date plus days is called ``date_add(d, 1)``.
    ``type_of`` tells the type of a part; without it nothing is taken for a date.
    An alias of an earlier item is a reference to it (-2), and a call without parentheses gets them (-1).
    A field prints with its struct (``size(s.a)``), a column without its relation:
    ``depth_of`` tells how many of a name's parts are fields; without it none is.
    Of a part that was left to Spark, ``spark_name`` tells Spark's own name as a template, and what goes into its holes.
    """
    node = node.unnest() if isinstance(node, exp.Paren) else node
    if isinstance(node, exp.Alias):
        return node.alias
    printer = _Printer(type_of or (lambda _: None), depth_of or (lambda _: 0), spark_name or (lambda _: None))
    if (parts := dotted(node)) is not None:
        return printer.name(node) if len(parts) == 1 else parts[-1]
    if isinstance(node, exp.Cast | exp.TryCast) and isinstance(node.this, exp.Column) and not _is_typed_literal(node):
        return node.this.name if "." not in printer.column(node.this) else printer.name(node)
    if isinstance(node, exp.Anonymous) and node.name.lower() == "window":
        return "window"
    return printer.name(node)


def _is_typed_literal(node: exp.Expr) -> bool:
    return bool(node.meta.get(TYPED_LITERAL))


_INFIX: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
    exp.And: "AND",
    exp.Or: "OR",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
    exp.BitwiseAnd: "&",
    exp.BitwiseOr: "|",
    exp.BitwiseXor: "^",
    exp.BitwiseLeftShift: "<<",
    exp.BitwiseRightShift: ">>",
}
# Spark classes that print their own name in capitals when called by it (an alias keeps its spelling).
_CAPITALS = frozenset(
    (
        *("sqrt", "exp", "log10", "log2", "log1p", "expm1", "power", "cbrt", "signum", "rint"),
        *("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh"),
        *("asinh", "acosh", "atanh", "degrees", "radians", "pi", "e"),
    )
)
_VALUES = ("first", "first_value", "last", "last_value", "any_value", "nth_value")
"""Window functions that are the value of some row."""
# Arguments Spark fills in, by the number of arguments written.
_DEFAULTS: dict[tuple[str, int], tuple[str, ...]] = {
    ("round", 1): ("0",),
    ("bround", 1): ("0",),
    ("replace", 2): ("",),
    ("substring", 2): ("2147483647",),
    ("substr", 2): ("2147483647",),
    ("percentile", 2): ("1",),
    ("percentile_approx", 2): ("10000",),
    ("approx_percentile", 2): ("10000",),
    ("regexp_replace", 3): ("1",),
    ("regexp_extract", 2): ("1",),
    ("locate", 2): ("1",),
    ("position", 2): ("1",),
    ("lpad", 2): (" ",),
    ("rpad", 2): (" ",),
    ("split", 2): ("-1",),
    ("unix_timestamp", 1): ("yyyy-MM-dd HH:mm:ss",),
    ("from_unixtime", 1): ("yyyy-MM-dd HH:mm:ss",),
}


class _Printer:
    def __init__(self, type_of: TypeOf, depth_of: DepthOf, spark_name: SparkName) -> None:
        self.type_of = type_of
        self.depth_of = depth_of
        self.spark_name = spark_name

    def name(self, node: exp.Expr) -> str:
        if (found := self.spark_name(node)) is not None:
            template, parts = found
            return template.format(*map(self.name, parts))
        if isinstance(node, exp.Add | exp.Sub) and (shifted := self.shifted(node)) is not None:
            return shifted
        if (symbol := _INFIX.get(type(node))) is not None:
            symbol = ">>>" if node.args.get("unsigned") else symbol
            return f"({self.name(node.this)} {symbol} {self.name(node.expression)})"
        special = _SPECIAL.get(type(node))
        return special(self, node) if special else text_of(node)

    def names(self, nodes: list[exp.Expr]) -> str:
        return ", ".join(self.name(n) for n in nodes)

    # --- dates -------------------------------------------------------------------------------

    def shifted(self, node: exp.Expr) -> str | None:
        """Dates with days or intervals print as the functions Spark makes of them."""
        sign = "-" if isinstance(node, exp.Sub) else "+"
        moment, by = node.this, node.expression
        if sign == "+" and self.interval(moment) is not None:
            moment, by = by, moment
        interval = self.interval(by)
        if interval is not None:
            printed, type_ = interval
            if type_ == DATE_DIFFERENCE and self.type_of(moment) == DATE:
                days = f"extractansiintervaldays({printed})"
                return f"date_add({self.name(moment)}, {days if sign == '+' else f'(- {days})'})"
            return f"{self.name(moment)} {sign} {printed}"
        if sign == "+" and self.type_of(by) == DATE:
            moment, by = by, moment
        days_type = self.type_of(by) if self.type_of(moment) == DATE else None
        if days_type is not None and days_type.is_integer:
            return f"date_{'add' if sign == '+' else 'sub'}({self.name(moment)}, {self.name(by)})"
        return None

    def interval(self, node: exp.Expr) -> tuple[str, Type] | None:
        """An interval as it prints, and its type."""
        if isinstance(node, exp.Paren):
            return self.interval(node.this)
        if isinstance(node, exp.Interval) and isinstance(node.this, exp.Literal):
            found = literals.interval_literal(node)
            return None if found is None else (_interval_text(found), found.type)
        type_ = self.type_of(node)
        return (self.name(node), type_) if type_ is not None and type_.name.startswith("interval") else None

    # --- nodes ---------------------------------------------------------------------------------

    def column(self, node: exp.Expr) -> str:
        parts = dotted(node) or (node.name,)
        depth = self.depth_of(node) if len(parts) == 1 else 0
        if depth < 0:  # no column: a call without parentheses, or another item
            return f"{parts[0].lower()}()" if depth == -1 else f"lateralAliasReference({parts[0]})"
        return ".".join(parts[-1 - self.depth_of(node) :]) if len(parts) > 1 else parts[0]

    def paren(self, node: exp.Expr) -> str:
        return self.name(node.this)

    def negation(self, node: exp.Expr) -> str:
        return f"(NOT {self.name(node.this)})"

    def different(self, node: exp.Expr) -> str:
        symbol = "=" if isinstance(node, exp.NEQ) else "<=>"
        return f"(NOT ({self.name(node.this)} {symbol} {self.name(node.expression)}))"

    def minus(self, node: exp.Expr) -> str:
        return f"(- {self.name(node.this)})"

    def is_(self, node: exp.Expr) -> str:
        if isinstance(node.expression, exp.Null | exp.Var):  # IS UNKNOWN
            return f"({self.name(node.this)} IS NULL)"
        if isinstance(node.expression, exp.Not):
            return f"({self.name(node.this)} IS NOT NULL)"
        return f"({self.name(node.this)} <=> {self.name(node.expression)})"

    def between(self, node: exp.Expr) -> str:
        return f"between({self.names([node.this, node.args['low'], node.args['high']])})"

    def in_(self, node: exp.Expr) -> str:
        return f"({self.name(node.this)} IN ({self.names(node.expressions)}))"

    def like(self, node: exp.Expr) -> str:
        escape = ""
        if isinstance(node, exp.Escape):
            escape, node = f" ESCAPE '{node.expression.name}'", node.this
        if isinstance(node.expression, exp.Any | exp.All):
            which = "any" if isinstance(node.expression, exp.Any) else "all"
            name = f"lower({self.name(node.this)})" if isinstance(node, exp.ILike) else self.name(node.this)
            return f"{'not' if node.args.get('negate') else ''}like{which}({name})"
        if isinstance(node, exp.ILike):
            text = f"ilike({self.names([node.this, node.expression])})"
        else:
            text = f"{self.name(node.this)} LIKE {self.name(node.expression)}{escape}"
        return text

    def rlike(self, node: exp.Expr) -> str:
        return f"RLIKE({self.names([node.this, node.expression])})"

    def case(self, node: exp.Expr) -> str:
        operand = node.args.get("this")
        text = "CASE"
        for branch in node.args["ifs"]:
            test = self.name(branch.this)
            if operand is not None:
                test = f"({self.name(operand)} = {test})"
            text += f" WHEN {test} THEN {self.name(branch.args['true'])}"
        default = node.args.get("default")
        return text + (f" ELSE {self.name(default)}" if default is not None else "") + " END"

    def cast(self, node: exp.Expr) -> str:
        to = node.args["to"].name
        target = parse_type(to)
        if _is_typed_literal(node):
            return _typed_literal_text(node.this.name, target)
        if to.partition("<")[0].strip().lower() in ("array", "map", "struct"):
            return self.name(node.this)
        verb = "TRY_CAST" if isinstance(node, exp.TryCast) else "CAST"
        return f"{verb}({self.name(node.this)} AS {(target.sql if target else to).upper()})"

    def concat(self, node: exp.Expr) -> str:
        return f"concat({self.names([node.this, node.expression])})"

    def extract(self, node: exp.Expr) -> str:
        return f"extract({node.this.name} FROM {self.name(node.expression)})"

    def substring(self, node: exp.Expr) -> str:
        start, length = node.args.get("start"), node.args.get("length")
        if start is None:
            return f"substring({self.name(node.this)})"  # too few for any answer, but a name is asked for first
        last = "2147483647" if length is None else self.name(length)
        return f"substring({self.name(node.this)}, {self.name(start)}, {last})"

    def trim(self, node: exp.Expr) -> str:
        position = (node.args.get("position") or "BOTH").upper()
        plain = {"BOTH": "trim", "LEADING": "ltrim", "TRAILING": "rtrim"}[position]
        return self.trimmed(plain, self.name(node.this), node.args.get("expression"))

    def trimmed(self, name: str, text: str, chars: exp.Expr | None) -> str:
        if chars is None:
            return f"{name}({text})"
        side = {"trim": "BOTH", "ltrim": "LEADING", "rtrim": "TRAILING"}[name]
        return f"TRIM({side} {self.name(chars)} FROM {text})"

    def dot(self, node: exp.Expr) -> str:
        if dotted(node) is not None:
            return self.column(node)
        inner = node.this
        is_window = isinstance(inner, exp.Anonymous) and inner.name.lower() == "window"
        return f"{'window' if is_window else self.name(inner)}.{node.expression.name}"

    def bracket(self, node: exp.Expr) -> str:
        return f"{self.name(node.this)}[{self.names(node.expressions)}]"

    def position(self, node: exp.Expr) -> str:
        return f"locate({self.names([node.args['substr'], node.this])}, 1)"

    def literal(self, node: exp.Expr) -> str:
        assert isinstance(node, exp.Literal)
        return node.name if node.is_string else _number_text(node.name)

    def hex_string(self, node: exp.Expr) -> str:
        digits = node.name.upper()
        return f"X'{'0' * (len(digits) % 2)}{digits}'"

    def filtered(self, node: exp.Expr) -> str:
        return f"{self.name(node.this)} FILTER (WHERE {self.name(node.expression.this)})"

    def over(self, node: exp.Expr) -> str:
        call = node.this
        while not isinstance(call, exp.Anonymous):
            call = call.this
        name, args = call.name.lower(), [self.name(a) for a in call.expressions]
        shown, frame = self.name(node.this), "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
        if name in ("rank", "dense_rank", "percent_rank"):
            shown = f"{name.upper()}()"
        elif name in ("lag", "lead"):
            shown = f"{name}({', '.join([*args, *('NULL', '1', 'NULL')[len(args) :]])})"
        elif name == "ntile":
            shown = f"ntile({args[0] if args else 1})"
        elif name in _VALUES:
            shown = self.value(node.this, name, args)
        words = []
        if partition := node.args.get("partition_by"):
            words.append(f"PARTITION BY {self.names(partition)}")
        order = node.args.get("order")
        if order is not None:
            words.append(f"ORDER BY {', '.join(map(self.ordered, order.expressions))}")
        if name in ("row_number", "rank", "dense_rank", "percent_rank", "ntile"):
            frame = frame.replace("RANGE", "ROWS")
        elif name in ("lag", "lead"):
            by = int(args[1].replace("(- ", "-").rstrip(")")) if len(args) > 1 else 1
            frame = "ROWS BETWEEN {0} FOLLOWING AND {0} FOLLOWING".format(-by if name == "lag" else by)
        elif node.args.get("spec") is not None:
            frame = self.frame(node.args["spec"], order)
        elif order is None:
            frame = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
        return f"{shown} OVER ({' '.join([*words, frame])})"

    def value(self, node: exp.Expr, name: str, args: list[str]) -> str:
        """first, last and the like: which of them pass over NULLs is told by some."""
        least = 2 if name == "nth_value" else 1
        parts = list(node.walk())
        written = any(isinstance(p, exp.IgnoreNulls) for p in parts)
        ignoring = written or (len(args) > least and args[-1].lower() == "true")
        if written:
            name = {"first_value": "first", "last_value": "last"}.get(name, name)
        where = next(
            (f" FILTER (WHERE {self.name(p.expression.this)})" for p in parts if isinstance(p, exp.Filter)), ""
        )
        return f"{name}({', '.join(args[:least])}){' ignore nulls' * (ignoring and name == 'nth_value')}{where}"

    def ordered(self, node: exp.Expr) -> str:
        descending, nulls_first = bool(node.args.get("desc")), node.args.get("nulls_first")
        first = not descending if nulls_first is None else nulls_first
        return f"{self.name(node.this)} {'DESC' if descending else 'ASC'} NULLS {'FIRST' if first else 'LAST'}"

    def frame(self, node: exp.Expr, order: exp.Expr | None) -> str:
        kind = node.args["kind"]
        by = self.type_of(order.expressions[0].this) if kind == "RANGE" and order is not None else None
        turned = by is not None and by.is_integer and by.name != "int"

        def end(which: str) -> str:
            value, side = node.args.get(which) or "CURRENT ROW", node.args.get(f"{which}_side") or ""
            if isinstance(value, str):
                return f"{value} {side}".strip()
            # An offset that is cast to a key's type is turned round first.
            shown = self.name(value)
            return f"(- {shown}) FOLLOWING" if turned and side == "PRECEDING" else f"{shown} {side}"

        return f"{kind} BETWEEN {end('start')} AND {end('end')}"

    def distinct(self, node: exp.Expr) -> str:
        return f"DISTINCT {self.names(node.expressions)}"

    def function(self, node: exp.Expr) -> str:
        name, args = node.name.lower(), node.expressions
        if name in CAST_FUNCTIONS and len(args) == 1:
            return self.name(args[0])
        if name in ("isnull", "isnotnull") and len(args) == 1:
            return f"({self.name(args[0])} IS {'NOT ' if name == 'isnotnull' else ''}NULL)"
        if name == "positive" and len(args) == 1:
            return f"(+ {self.name(args[0])})"
        if name == "if" and len(args) == 3:
            return f"(IF({self.names(args)}))"
        if name in ("trim", "ltrim", "rtrim") and len(args) == 2:
            return self.trimmed(name, self.name(args[1]), args[0])
        if name in ("floor", "ceil") and len(args) == 1:
            return f"{name.upper()}({self.name(args[0])})"
        if name == "log":
            return f"LOG({'E(), ' if len(args) == 1 else ''}{self.names(args)})"
        if name == "like" and len(args) in (2, 3):
            escape = "".join(f" ESCAPE '{a.name}'" for a in args[2:])
            return f"{self.name(args[0])} LIKE {self.name(args[1])}{escape}"
        if name in TIME_UNIT_FIRST and len(args) == 3:
            name = "timestampdiff" if "diff" in name else "timestampadd"
        name = {"dateadd": "date_add", "array_agg": "collect_list"}.get(name, name)
        printed = name.upper() if name in _CAPITALS else name
        texts = [self.name(a) for a in args]
        return f"{printed}({', '.join([*texts, *_DEFAULTS.get((name, len(args)), ())])})"


_SPECIAL: dict[type[exp.Expr], Callable[[_Printer, exp.Expr], str]] = {
    exp.Column: _Printer.column,
    exp.Paren: _Printer.paren,
    exp.Not: _Printer.negation,
    exp.NEQ: _Printer.different,
    exp.NullSafeNEQ: _Printer.different,
    exp.Neg: _Printer.minus,
    exp.BitwiseNot: lambda printer, node: f"~{printer.name(node.this)}",
    exp.Is: _Printer.is_,
    exp.Between: _Printer.between,
    exp.In: _Printer.in_,
    exp.Like: _Printer.like,
    exp.ILike: _Printer.like,
    exp.Escape: _Printer.like,
    exp.RegexpLike: _Printer.rlike,
    exp.Case: _Printer.case,
    exp.Cast: _Printer.cast,
    exp.TryCast: _Printer.cast,
    exp.DPipe: _Printer.concat,
    exp.Extract: _Printer.extract,
    exp.Substring: _Printer.substring,
    exp.Trim: _Printer.trim,
    exp.Dot: _Printer.dot,
    exp.Bracket: _Printer.bracket,
    exp.StrPosition: _Printer.position,
    exp.Literal: _Printer.literal,
    exp.Null: lambda printer, node: "NULL",
    exp.Var: lambda printer, node: node.name,
    exp.Boolean: lambda printer, node: "true" if node.this else "false",
    exp.HexString: _Printer.hex_string,
    exp.Interval: lambda printer, node: (printer.interval(node) or (text_of(node),))[0],
    exp.Star: lambda printer, node: "1",
    exp.Anonymous: _Printer.function,
    exp.Filter: _Printer.filtered,
    exp.Window: _Printer.over,
    exp.Distinct: _Printer.distinct,
    exp.IgnoreNulls: lambda printer, node: printer.name(node.this),
    exp.RespectNulls: lambda printer, node: printer.name(node.this),
}


# --- values as text ---------------------------------------------------------------------------


def _number_text(text: str) -> str:
    try:
        literal = literals.number(text)
    except SqlError:
        return text  # out of range: binding reports it
    if literal.type in (FLOAT, DOUBLE):
        return java_double(literal.value, single=literal.type == FLOAT)
    if isinstance(literal.value, Decimal):
        return str(abs(literal.value) if not literal.value else literal.value)  # Java knows no -0.0
    return str(literal.value)


def java_double(value: float, *, single: bool = False) -> str:
    """A finite double as Java prints it.

    >>> java_double(1e7), java_double(1000000.0), java_double(1e-5), java_double(0.001)
    ('1.0E7', '1000000.0', '1.0E-5', '0.001')
    """
    shortest = Decimal(str(np.float32(value)) if single else repr(value))
    if shortest == 0 or Decimal("0.001") <= abs(shortest) < Decimal("1e7"):
        plain = format(shortest.normalize(), "f") if shortest else "0"
        return plain if "." in plain else plain + ".0"
    sign, digits, _ = shortest.normalize().as_tuple()
    fraction = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{fraction}E{shortest.adjusted()}"


def _typed_literal_text(text: str, target: Type | None) -> str:
    if target is None:
        return f"TIME '{_time_of_day(text)}'"
    if target == DATE:
        day = literals.date_literal(text)
        return f"DATE '{day.value.isoformat() if day else text}'"
    moment = literals.timestamp_literal(text, TIMESTAMP_NTZ, None)
    shown = text
    if isinstance(moment, Literal):
        shown = moment.value.strftime("%Y-%m-%d %H:%M:%S")
        if moment.value.microsecond:
            shown += f".{moment.value.microsecond:06d}".rstrip("0")
    return f"{'TIMESTAMP_NTZ' if target == TIMESTAMP_NTZ else 'TIMESTAMP'} '{shown}'"


def _time_of_day(text: str) -> str:
    """``TIME '1:2:3.50'`` as Spark shows it; spellings it knows besides are left as they are.

    >>> _time_of_day("1:2:3.50"), _time_of_day("10:20")
    ('01:02:03.5', '10:20:00')
    """
    found = re.fullmatch(r"(\d{1,2}):(\d{1,2})(?::(\d{1,2})(\.\d{1,6})?)?", text.strip())
    if found is None:
        return text
    hour, minute, second, rest = found.groups()
    return f"{int(hour):02}:{int(minute):02}:{int(second or 0):02}{(rest or '').rstrip('0').rstrip('.')}"


_UNITS = {"day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000}


def _interval_text(literal: Literal) -> str:
    """An interval as Spark prints it: padded fields from the largest to the smallest of its type."""
    fields = literal.type.ddl.removeprefix("interval ").split(" to ")
    rest, sign = abs(literal.value), "-" if literal.value < 0 else ""
    if literal.type.name == "interval_month":
        body = (
            {"year": f"{rest // 12}", "month": f"{rest}"}[fields[0]]
            if len(fields) == 1
            else f"{rest // 12}-{rest % 12}"
        )
        return f"INTERVAL '{sign}{body}' {' TO '.join(fields).upper()}"
    names = list(_UNITS)
    body = ""
    for unit in names[names.index(fields[0]) : names.index(fields[-1]) + 1]:
        count, rest = divmod(rest, _UNITS[unit])
        shown = str(count) if unit == "day" else f"{count:02d}"
        if unit == "second" and rest:
            shown += f".{rest:06d}".rstrip("0")
        body += ("" if not body else " " if unit == "hour" else ":") + shown
    return f"INTERVAL '{sign}{body}' {' TO '.join(fields).upper()}"
