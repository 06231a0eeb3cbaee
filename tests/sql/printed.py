"""A tree of the grammar as Spark SQL again, from the tree alone, every operator in parentheses.

Nothing of the original text is used, so whatever the tree lost or bound otherwise than Spark shows: Spark reads
something else. What only ever goes to Spark as it was written (OVER, PIVOT, TABLESAMPLE …) is its text here too.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from headrace.sql.expression_grammar import TYPED_LITERAL
from headrace.sql.grammar import Opaque
from headrace.sql.lexer import quote_string
from headrace.sql.source import text_of
from headrace.types import quote

AS_WRITTEN = (
    *(exp.Window, exp.Pivot, exp.Lateral, exp.TableSample, exp.WithinGroup, exp.Lambda, exp.Var, exp.Placeholder),
    Opaque,
)
_BINARY: dict[type[exp.Expr], str] = {
    exp.And: "AND", exp.Or: "OR", exp.EQ: "=", exp.NEQ: "<>", exp.NullSafeEQ: "<=>", exp.LT: "<", exp.LTE: "<=",
    exp.GT: ">", exp.GTE: ">=", exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%", exp.IntDiv: "DIV",
    exp.DPipe: "||", exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.BitwiseXor: "^", exp.BitwiseLeftShift: "<<",
    exp.Like: "LIKE", exp.ILike: "ILIKE", exp.RegexpLike: "RLIKE", exp.NullSafeNEQ: "IS DISTINCT FROM",
}  # fmt: skip


def printed(node: exp.Expr) -> str:
    """The node as text Spark reads."""
    if isinstance(node, AS_WRITTEN):
        return text_of(node)
    if isinstance(node, exp.And | exp.Or):
        # A chain of them is one to Spark, which balances it.
        return f"({f' {_BINARY[type(node)]} '.join(map(printed, _chain(node, type(node))))})"
    if isinstance(node, exp.Like | exp.ILike) and node.args.get("negate"):
        return f"({printed(node.this)} NOT {_BINARY[type(node)]} {printed(node.expression)})"
    if (symbol := _BINARY.get(type(node))) is not None:
        return f"({printed(node.this)} {symbol} {printed(node.expression)})"
    return _FORMS[type(node)](node)


def _chain(node: exp.Expr, kind: type[exp.Expr]) -> list[exp.Expr]:
    return [*_chain(node.this, kind), *_chain(node.expression, kind)] if isinstance(node, kind) else [node]


def several(nodes: list[exp.Expr]) -> str:
    return ", ".join(printed(node) for node in nodes)


def _ends(node: exp.Expr) -> str:
    text = f" ORDER BY {several(node.args['order'].expressions)}" if node.args.get("order") else ""
    for part in ("cluster", "distribute", "sort"):
        text += f" {text_of(node.args[part])}" if node.args.get(part) else ""
    text += f" WINDOW {', '.join(map(text_of, node.args['windows']))}" if node.args.get("windows") else ""
    text += f" LIMIT {printed(node.args['limit'].expression)}" if node.args.get("limit") else ""
    return text + (f" OFFSET {printed(node.args['offset'].expression)}" if node.args.get("offset") else "")


def _with(node: exp.Expr) -> str:
    clause = node.args.get("with_")
    if clause is None:
        return ""
    made = [f"{_alias(c.args['alias'])} AS ({printed(c.this)})" for c in clause.expressions]
    return f"WITH {', '.join(made)} "


def _alias(alias: exp.Expr | None) -> str:
    if alias is None:
        return ""
    columns = alias.args.get("columns")
    return quote(alias.name) + (f"({', '.join(quote(c.name) for c in columns)})" if columns else "")


def _select(node: exp.Expr) -> str:
    distinct = "DISTINCT " if node.args.get("distinct") else ""
    text = f"{_with(node)}SELECT {distinct}{several(node.expressions)}"
    if node.expressions[0].meta.get("implied"):  # TABLE t, FROM t
        text = _with(node)
    if node.args.get("from_"):
        joins, pivots, laterals = (node.args.get(part) or () for part in ("joins", "pivots", "laterals"))
        text += f" FROM {printed(node.args['from_'].this)}" + "".join(f" {printed(j)}" for j in joins)
        text += "".join(f" {text_of(clause)}" for clause in (*pivots, *laterals))
    for part, word in (("where", "WHERE"), ("group", "GROUP BY"), ("having", "HAVING"), ("qualify", "QUALIFY")):
        if node.args.get(part) is not None:
            clause = node.args[part]
            # In two pairs: Spark takes FROM t WHERE (a) for an alias WHERE of t and its columns.
            text += f" {word} {_group(clause) if part == 'group' else f'(({printed(clause.this)}))'}"
    return text + _ends(node)


def _group(node: exp.Expr) -> str:
    text = several(node.expressions)
    text += " WITH ROLLUP" if node.args.get("rollup") else " WITH CUBE" if node.args.get("cube") else ""
    return text + "".join(f" {printed(s)}" for s in node.args.get("grouping_sets") or ())


def _set(node: exp.Expr) -> str:
    word = {exp.Union: "UNION", exp.Except: "EXCEPT", exp.Intersect: "INTERSECT"}[type(node)]
    kind = "DISTINCT" if node.args.get("distinct") else "ALL"
    return f"{_with(node)}({printed(node.this)}) {word} {kind} ({printed(node.expression)}){_ends(node)}"


def _item(node: exp.Expr, text: str) -> str:
    sample, alias = node.args.get("sample"), node.args.get("alias")
    return text + (f" {text_of(sample)}" if sample else "") + (f" AS {_alias(alias)}" if alias else "")


def _subquery(node: exp.Expr) -> str:
    return f"{_with(node)}{_item(node, f'({printed(node.this)})')}{_ends(node)}"


def _paren(node: exp.Expr) -> str:
    if node.args.get("joins") is None:
        return f"({printed(node.this)})"
    return _item(node, f"({printed(node.this)}{''.join(' ' + printed(j) for j in node.args['joins'])})")


def _table(node: exp.Expr) -> str:
    parts = [printed(node.args[p]) for p in ("catalog", "db", "this") if node.args.get(p) is not None]
    return _item(node, ".".join(parts))


def _join(node: exp.Expr) -> str:
    if not any(node.args.get(p) for p in ("side", "kind", "method", "on", "using")) and text_of(node).startswith(","):
        return f", {printed(node.this)}"
    words = [node.args.get(p) or "" for p in ("method", "side", "kind")]
    text = f"{' '.join(w for w in words if w)} JOIN {printed(node.this)}"
    if node.args.get("on") is not None:
        text += f" ON {printed(node.args['on'])}"
    using = node.args.get("using")
    return text + (f" USING ({', '.join(quote(u.name) for u in using)})" if using else "")


def _call(node: exp.Expr) -> str:
    name = node.name if node.name != "positive" or text_of(node).lower().startswith("positive") else "+"
    return f"(+ {several(node.expressions)})" if name == "+" else f"{name}({several(node.expressions)})"


def _star(node: exp.Expr) -> str:
    left_out = node.args.get("except_")
    return "*" + (f" EXCEPT ({several(left_out)})" if left_out else "")


def _cast(node: exp.Expr) -> str:
    if node.meta.get(TYPED_LITERAL):
        return f"{node.args['to'].name} {printed(node.this)}"
    word = "TRY_CAST" if isinstance(node, exp.TryCast) else "CAST"
    return f"{word}({printed(node.this)} AS {node.args['to'].name})"


def _case(node: exp.Expr) -> str:
    operand = f" {printed(node.this)}" if node.args.get("this") is not None else ""
    whens = "".join(f" WHEN {printed(b.this)} THEN {printed(b.args['true'])}" for b in node.args["ifs"])
    default = node.args.get("default")
    return f"CASE{operand}{whens}{f' ELSE {printed(default)}' if default is not None else ''} END"


def _in(node: exp.Expr) -> str:
    query = node.args.get("query")
    inner = f"({printed(query.this)})" if query is not None else f"({several(node.expressions)})"
    return f"({printed(node.this)} IN {inner})"


def _interval(node: exp.Expr) -> str:
    unit, value = node.args.get("unit"), node.this
    if not isinstance(value, exp.Literal):
        return text_of(node)
    if isinstance(unit, exp.IntervalSpan):
        return f"INTERVAL '{value.name}' {unit.this.name} TO {unit.expression.name}"
    return f"INTERVAL '{value.name}'{f' {unit.name}' if unit is not None else ''}"


def _ordered(node: exp.Expr) -> str:
    nulls = node.args.get("nulls_first")
    words = "" if nulls is None else " NULLS FIRST" if nulls else " NULLS LAST"
    return f"{printed(node.this)} {'DESC' if node.args.get('desc') else 'ASC'}{words}"


def _is(node: exp.Expr) -> str:
    negated = isinstance(node.expression, exp.Not)
    tested = node.expression.this if negated else node.expression
    return f"({printed(node.this)} IS {'NOT ' if negated else ''}{printed(tested)})"


def _shift(node: exp.Expr) -> str:
    return f"({printed(node.this)} {'>>>' if node.args.get('unsigned') else '>>'} {printed(node.expression)})"


def _optional(word: str, node: exp.Expr | None) -> str:
    return "" if node is None else f" {word} {printed(node)}"


_FORMS: dict[type[exp.Expr], Callable[[exp.Expr], str]] = {
    exp.Select: _select,
    exp.Union: _set,
    exp.Except: _set,
    exp.Intersect: _set,
    exp.Subquery: _subquery,
    exp.Values: lambda n: _with(n) + _item(n, f"VALUES {several(n.expressions)}"),
    exp.Table: _table,
    exp.Paren: _paren,
    exp.Join: _join,
    exp.Rollup: lambda n: f"ROLLUP ({several(n.expressions)})",
    exp.Cube: lambda n: f"CUBE ({several(n.expressions)})",
    exp.GroupingSets: lambda n: f"GROUPING SETS ({several(n.expressions)})",
    exp.Ordered: _ordered,
    exp.Tuple: lambda n: f"({several(n.expressions)})",
    exp.Star: _star,
    exp.Identifier: lambda n: quote(n.name),
    exp.Column: lambda n: ".".join(printed(part) for part in n.parts),
    exp.Dot: lambda n: f"{printed(n.this)}.{printed(n.expression)}",
    exp.Alias: lambda n: f"{printed(n.this)} AS {quote(n.alias)}",
    exp.Aliases: lambda n: f"{printed(n.this)} AS ({several(n.expressions)})",
    exp.Anonymous: _call,
    exp.Distinct: lambda n: f"DISTINCT {several(n.expressions)}",
    exp.Kwarg: lambda n: f"{n.this.name} => {printed(n.expression)}",
    exp.Filter: lambda n: f"{printed(n.this)} FILTER (WHERE {printed(n.expression.this)})",
    exp.IgnoreNulls: lambda n: f"{printed(n.this)} IGNORE NULLS",
    exp.RespectNulls: lambda n: f"{printed(n.this)} RESPECT NULLS",
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Case: _case,
    exp.In: _in,
    exp.Between: lambda n: f"({printed(n.this)} BETWEEN {printed(n.args['low'])} AND {printed(n.args['high'])})",
    exp.Escape: lambda n: f"({printed(n.this)[1:-1]} ESCAPE {printed(n.expression)})",
    exp.Any: lambda n: f"ANY {printed(n.this)}",
    exp.All: lambda n: f"ALL {printed(n.this)}",
    exp.Is: _is,
    exp.Not: lambda n: f"(NOT {printed(n.this)})",
    exp.Neg: lambda n: f"(- ({printed(n.this)}))",
    exp.BitwiseNot: lambda n: f"(~ {printed(n.this)})",
    exp.BitwiseRightShift: _shift,
    exp.Exists: lambda n: f"EXISTS ({printed(n.this)})",
    exp.Literal: lambda n: quote_string(n.name) if n.is_string else f"({n.name})" if n.name[0] == "-" else n.name,
    exp.Null: lambda n: "NULL",
    exp.Boolean: lambda n: str(n.this).lower(),
    exp.HexString: lambda n: f"X'{n.name}'",
    exp.Interval: _interval,
    exp.Extract: lambda n: f"extract({n.this.name} FROM {printed(n.expression)})",
    exp.Substring: lambda n: (
        f"substring({printed(n.this)} FROM {printed(n.args['start'])}{_optional('FOR', n.args.get('length'))})"
    ),
    exp.Trim: lambda n: f"trim({n.args['position']}{_optional('', n.args.get('expression'))} FROM {printed(n.this)})",
    exp.StrPosition: lambda n: f"position({printed(n.args['substr'])} IN {printed(n.this)})",
    exp.Overlay: lambda n: (
        f"overlay({printed(n.this)} PLACING {printed(n.expression)} FROM {printed(n.args['from_'])}"
        f"{_optional('FOR', n.args.get('for_'))})"
    ),
    exp.Bracket: lambda n: f"{printed(n.this)}[{printed(n.expressions[0])}]",
    exp.Collate: lambda n: f"{printed(n.this)} COLLATE {n.expression.name}",
}
