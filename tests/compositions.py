"""Random view definitions, typed: what SQL says of tables, put together at random, and random histories of the tables.

A relation is a query whose columns are ``c0``, ``c1``, … of known kinds. It is a block over joined items, a grouping of
one, a set operation of two, the first rows of one. An item of a block is a table or a relation again, so everything
stands in everything: groupings of outer joins, set operations below semi joins, subqueries in conditions of any.

Numbers stay small and exact below the outermost grouping; only that may add doubles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

TABLES = {
    "a": {"id": "INT", "g": "STRING", "v": "INT", "m": "DECIMAL(10,2)"},
    "b": {"id": "INT", "g": "STRING", "w": "BIGINT", "x": "DOUBLE"},
    "c": {"g": "STRING", "v": "INT"},
    "d": {"k": "INT", "n": "INT", "day": "DATE", "f": "BOOLEAN"},
}
KEYS = {"b": ["id"], "d": ["k", "n"]}
KIND = {
    "INT": "int",
    "BIGINT": "int",
    "STRING": "str",
    "DECIMAL(10,2)": "dec",
    "DOUBLE": "dbl",
    "DATE": "date",
    "BOOLEAN": "bool",
}
CAST = {"int": "BIGINT", "str": "STRING", "dec": "DECIMAL(12,2)", "date": "DATE", "bool": "BOOLEAN"}
LITERALS = {
    "int": ["0", "1", "2", "3", "NULL"],
    "str": ["'x'", "'y'", "''", "NULL"],
    "dec": ["0.50", "7.25", "-2.00"],
    "date": ["DATE '2024-02-29'", "DATE '2025-01-01'"],
    "bool": ["TRUE", "FALSE", "NULL"],
    "dbl": ["0.1D", "-1.5D"],
}


def definition(table: str) -> str:
    columns = [f"{name} {type}" for name, type in TABLES[table].items()]
    if table in KEYS:
        columns.append(f"PRIMARY KEY ({', '.join(KEYS[table])})")
    return f"CREATE TABLE {table} ({', '.join(columns)})"


Columns = list[tuple[str, str]]
"""What can be named: the SQL of each, and its kind."""


@dataclass(frozen=True)
class Relation:
    """A query and the kinds of its columns."""

    text: str
    kinds: tuple[str, ...]


@dataclass
class Writer:
    """Draws the parts of one definition."""

    draw: st.DrawFn
    names: int = 0
    windows: bool = False

    def pick(self, *choices: str) -> str:
        return self.draw(st.sampled_from(choices))

    def coin(self, often: int = 2) -> bool:
        return self.draw(st.integers(1, often)) == often

    def name(self) -> str:
        self.names += 1
        return f"t{self.names}"

    # Values and conditions

    def column(self, columns: Columns, kind: str) -> str | None:
        there = [text for text, its in columns if its == kind]
        return self.draw(st.sampled_from(there)) if there else None

    def value(self, columns: Columns, kind: str, depth: int = 1) -> str:
        found = self.column(columns, kind)
        if found is None:
            literal = self.pick(*LITERALS[kind])
            found = f"CAST({literal} AS {CAST[kind]})" if kind in CAST else literal
        if depth <= 0 or self.coin():
            return found
        other = self.value(columns, kind, depth - 1)
        if self.coin(4):
            return f"CASE WHEN {self.condition(columns, depth - 1)} THEN {found} ELSE {other} END"
        if kind == "int":
            text = self.column(columns, "str")
            day = self.column(columns, "date")
            forms = [f"({found} + {other})", f"({found} - 1)", f"coalesce({found}, {other})", f"({found} % 3)"]
            forms += [f"abs({found})", *([f"length({text})"] if text else []), *([f"year({day})"] if day else [])]
            return self.pick(*forms)
        if kind == "str":
            return self.pick(f"upper({found})", f"concat({found}, 'z')", f"coalesce({found}, {other})")
        if kind == "dec":
            return self.pick(f"coalesce({found}, {other})", f"CAST({found} + 1.5 AS DECIMAL(10,2))", f"(-{found})")
        if kind == "date":
            return self.pick(f"date_add({found}, 1)", f"coalesce({found}, {other})")
        if kind == "bool":
            return f"({found} OR {other})"
        return found

    def condition(self, columns: Columns, depth: int = 1) -> str:
        kinds = sorted({kind for _, kind in columns if kind != "dbl"})
        if not kinds:
            return "TRUE"
        if depth > 0 and self.coin(3):
            one, other = self.condition(columns, depth - 1), self.condition(columns, depth - 1)
            return self.pick(f"({one} AND {other})", f"({one} OR {other})", f"NOT ({one})")
        if depth > 0 and self.coin(4):
            return self.subquery(columns)
        kind = self.pick(*kinds)
        one, other = self.value(columns, kind, 0), self.value(columns, kind, 0)
        forms = [f"{one} = {other}", f"{one} <=> {other}", f"{one} <> {other}", f"{one} IS NULL"]
        forms += [f"{one} IS NOT NULL", f"{one} IN ({', '.join(LITERALS[kind])})"]
        if kind == "str":
            forms += [f"{one} LIKE '%x%'", f"{one} NOT LIKE '_'"]
        elif kind == "bool":
            forms += [one, f"NOT {one}"]
        else:
            forms += [
                f"{one} < {other}",
                f"{one} >= {other}",
                f"{one} BETWEEN {other} AND {self.value(columns, kind, 0)}",
            ]
        return self.pick(*forms)

    def subquery(self, columns: Columns) -> str:
        """A condition that asks another relation."""
        kind = self.pick(*sorted({kind for _, kind in columns if kind in ("int", "str")} or {"int"}))
        mine = self.value(columns, kind, 0)
        inner, texts = self.items(1, 1)
        its = self.value(inner, kind, 0)
        where = self.condition(inner, 0)
        if self.coin():
            where += f" AND {its} {self.pick('=', '<', '<=>')} {mine}" if kind == "int" else f" AND {its} = {mine}"
            word = self.pick("EXISTS", "NOT EXISTS")
            return f"{word} (SELECT * FROM {texts} WHERE {where})"
        if self.coin() and kind == "int":
            fn = self.pick("max", "min", "count", "sum")
            more = f" AND {its} = {mine}" if self.coin() else ""
            return f"{mine} {self.pick('<', '>=', '=')} (SELECT {fn}({its}) FROM {texts} WHERE {where}{more})"
        return f"{mine} {self.pick('IN', 'NOT IN')} (SELECT {its} FROM {texts} WHERE {where})"

    # Relations

    def item(self, depth: int) -> tuple[str, Columns]:
        """A table or a relation, as it stands in FROM, and its columns."""
        name = self.name()
        if depth <= 0 or self.coin():
            table = self.pick(*TABLES)
            return f"{table} AS {name}", [(f"{name}.{column}", KIND[t]) for column, t in TABLES[table].items()]
        found = self.relation(depth - 1)
        return f"({found.text}) AS {name}", [(f"{name}.c{i}", kind) for i, kind in enumerate(found.kinds)]

    def items(self, depth: int, most: int = 3) -> tuple[Columns, str]:
        """What FROM joins."""
        text, columns = self.item(depth)
        for _ in range(self.draw(st.integers(0, most - 1))):
            more, its = self.item(depth - 1)
            kinds = sorted({k for _, k in columns} & {k for _, k in its} - {"dbl"})
            word = self.pick("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")
            if not kinds or self.coin(12):
                text, columns = f"{text} CROSS JOIN {more}", columns + its
                continue
            both = []
            for kind in self.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=2)):
                one, other = self.column(columns, kind), self.column(its, kind)
                both.append(f"{one} {self.pick('=', '=', '=', '<=>')} {other}")
            if self.coin(5):
                kind = self.pick(*kinds)
                theta = f"{self.column(columns, kind)} {self.pick('<', '<>', '>=')} {self.column(its, kind)}"
                both = [theta] if self.coin() else [*both, theta]
            if self.coin(5):
                both.append(self.condition(self.draw(st.sampled_from([columns, its])), 0))
            text += f" {word} {more} ON {' AND '.join(both)}"
            if "SEMI" not in word and "ANTI" not in word:
                columns = columns + its
        return columns, text

    def relation(self, depth: int, top: bool = False) -> Relation:
        if depth > 0 and self.coin(5):
            return self.set_operation(depth)
        if depth > 0 and self.coin(7):
            return self.first_rows(depth)
        if depth > 0 and self.coin(8):
            return self.twice(depth)
        if depth > 0 and self.coin(8):
            return self.nested(depth)
        if self.windows and self.coin(8):
            return self.windowed(depth)
        return self.grouping(depth, top) if self.coin() else self.block(depth)

    def where(self, columns: Columns) -> str:
        return f" WHERE {self.condition(columns, 1)}" if self.coin() else ""

    def block(self, depth: int) -> Relation:
        columns, text = self.items(depth)
        kinds = tuple(self.pick(*sorted({k for _, k in columns})) for _ in range(self.draw(st.integers(1, 4))))
        outs = [f"{self.value(columns, kind)} AS c{i}" for i, kind in enumerate(kinds)]
        distinct = "DISTINCT " if self.coin(4) and "dbl" not in kinds else ""
        return Relation(f"SELECT {distinct}{', '.join(outs)} FROM {text}{self.where(columns)}", kinds)

    def grouping(self, depth: int, top: bool = False) -> Relation:
        columns, text = self.items(depth)
        could = sorted({k for _, k in columns} - {"dbl"}) or ["int"]
        by = [(self.value(columns, kind), kind) for kind in self.draw(st.lists(st.sampled_from(could), max_size=2))]
        by = [(key, kind) for i, (key, kind) in enumerate(by) if key not in [k for k, _ in by[:i]]]
        by = [(key, kind) for key, kind in by if "." in key]
        aggregates = [self.aggregate(columns, could, top) for _ in range(self.draw(st.integers(1, 3)))]
        outs = [text for text, _ in (*by, *aggregates)]
        select = ", ".join(f"{text} AS c{i}" for i, text in enumerate(outs))
        group = ""
        if by:
            names = ", ".join(key for key, _ in by)
            form = self.pick("{}", "{}", "{}", "{}", "ROLLUP ({})", "CUBE ({})", "GROUPING SETS (({}), ())")
            group = f" GROUP BY {form.format(names)}"
        having = self.pick(
            "", "", "", f" HAVING count(*) {self.pick('>', '<')} 2", f" HAVING {aggregates[0][0]} IS NOT NULL"
        )
        kinds = tuple(kind for _, kind in (*by, *aggregates))
        return Relation(f"SELECT {select} FROM {text}{self.where(columns)}{group}{having}", kinds)

    def aggregate(self, columns: Columns, could: Sequence[str], top: bool) -> tuple[str, str]:
        number = self.column(columns, "dbl")
        if top and number and self.coin():
            return f"{self.pick('sum', 'avg', 'min', 'stddev_pop')}({number})", "dbl"
        kind = self.pick(*could)
        of = self.value(columns, kind)
        forms = [("count(*)", "int"), (f"count({of})", "int"), (f"count(DISTINCT {of})", "int")]
        forms += [(f"min({of})", kind), (f"max({of})", kind)]
        if kind == "int":
            forms += [
                (f"sum({of})", "int"),
                (f"sum(DISTINCT {of})", "int"),
                (f"CAST(avg({of}) AS DECIMAL(12,2))", "dec"),
            ]
            forms += [(f"sum({of}) FILTER (WHERE {self.condition(columns, 0)})", "int")]
        if kind == "dec":
            forms += [(f"CAST(sum({of}) AS DECIMAL(10,2))", "dec"), (f"CAST(avg({of}) AS DECIMAL(10,2))", "dec")]
        if kind == "bool":
            forms += [(f"bool_and({of})", "bool"), (f"bool_or({of})", "bool"), (f"count_if({of})", "int")]
        return self.draw(st.sampled_from(forms))

    def set_operation(self, depth: int) -> Relation:
        one, other = self.relation(depth - 1), self.relation(depth - 1)
        kinds = tuple(kind if kind != "dbl" else "dec" for kind in one.kinds)
        sides = []
        for side in (one, other):
            outs = []
            for i, kind in enumerate(kinds):
                there = [j for j, its in enumerate(side.kinds) if its == kind]
                value = f"c{there[i % len(there)]}" if there else "NULL"
                outs.append(f"CAST({value} AS {CAST[kind]}) AS c{i}")
            sides.append(f"SELECT {', '.join(outs)} FROM ({side.text})")
        word = self.pick("UNION", "UNION ALL", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL")
        return Relation(f"{sides[0]} {word} {sides[1]}", kinds)

    def first_rows(self, depth: int) -> Relation:
        below = self.relation(depth - 1)
        order = ", ".join(f"c{i}{self.pick('', ' DESC')}" for i in range(len(below.kinds)))
        name = self.name()
        outs = ", ".join(f"c{i}" for i in range(len(below.kinds)))
        limit = self.draw(st.integers(0, 4))
        return Relation(f"SELECT {outs} FROM ({below.text}) AS {name} ORDER BY {order} LIMIT {limit}", below.kinds)

    def twice(self, depth: int) -> Relation:
        """A common table expression that is joined with itself."""
        below = self.relation(depth - 1)
        exact = [i for i, kind in enumerate(below.kinds) if kind != "dbl"]
        if not exact:
            return below
        i, j, q = self.draw(st.sampled_from(exact)), self.draw(st.sampled_from(exact)), self.name()
        j = j if below.kinds[i] == below.kinds[j] else i
        word = self.pick("JOIN", "LEFT JOIN", "FULL JOIN", "LEFT ANTI JOIN")
        outs = [f"x.c{n}" for n in range(len(below.kinds))] + ([] if "ANTI" in word else [f"y.c{i}"])
        kinds = (*below.kinds, *(() if "ANTI" in word else (below.kinds[i],)))
        select = ", ".join(f"{out} AS c{n}" for n, out in enumerate(outs))
        return Relation(
            f"WITH {q} AS ({below.text}) SELECT {select} FROM {q} AS x {word} {q} AS y ON x.c{i} = y.c{j}", kinds
        )

    def nested(self, depth: int) -> Relation:
        """Two groupings of one relation, joined."""
        columns, text = self.items(depth - 1, 2)
        if not (key := self.column(columns, self.pick(*sorted({k for _, k in columns} & {"int", "str"}) or ["int"]))):
            return self.block(depth)
        kind = next(k for t, k in columns if t == key)
        could = sorted({k for _, k in columns} - {"dbl"})
        one, other = self.aggregate(columns, could, False), self.aggregate(columns, could, False)
        first = f"SELECT {key} AS k, {one[0]} AS n FROM {text} GROUP BY {key}"
        second = f"SELECT {key} AS k, {other[0]} AS n FROM {text} GROUP BY {key}"
        word = self.pick("JOIN", "LEFT JOIN", "FULL JOIN")
        joined = f"({first}) AS p {word} ({second}) AS q ON p.k {self.pick('=', '<=>')} q.k"
        return Relation(f"SELECT p.k AS c0, p.n AS c1, q.n AS c2 FROM {joined}", (kind, one[1], other[1]))

    def windowed(self, depth: int) -> Relation:
        """The first rows of each partition, or a value over one; ties are broken by all columns."""
        below = self.relation(max(depth - 1, 0))
        order = ", ".join(f"c{i}{self.pick('', ' DESC')}" for i in range(len(below.kinds)))
        by = f"PARTITION BY c{self.draw(st.integers(0, len(below.kinds) - 1))}"
        outs = ", ".join(f"c{i}" for i in range(len(below.kinds)))
        fn = self.pick("row_number()", "rank()", "dense_rank()", "count(*)")
        over = f"CAST({fn} OVER ({by} ORDER BY {order}) AS BIGINT) AS r"
        inner = f"SELECT {outs}, {over} FROM ({below.text}) AS {self.name()}"
        kinds = (*below.kinds, "int")
        where = f" WHERE r <= {self.draw(st.integers(1, 2))}" if self.coin() else ""
        return Relation(f"SELECT {outs}, r AS c{len(below.kinds)} FROM ({inner}) AS {self.name()}{where}", kinds)


@st.composite
def definitions(draw: st.DrawFn, depth: int = 2, windows: bool = False) -> str:
    """The query of a view."""
    return Writer(draw, windows=windows).relation(draw(st.integers(0, depth)), top=True).text


# Histories

_N = st.integers(0, 4)
_INT = st.one_of(st.just("NULL"), _N.map(str))
_G = st.sampled_from(["'x'", "'y'", "'xy'", "''", "NULL"])
_M = st.sampled_from(["0.50", "-2.00", "7.25", "NULL"])
_X = st.sampled_from(["0.1D", "0.2D", "-1.5D", "NULL"])
_DAY = st.sampled_from(["DATE '2024-02-29'", "DATE '2025-01-01'", "DATE '1999-12-31'", "NULL"])
_F = st.sampled_from(["TRUE", "FALSE", "NULL"])
ROW = {
    "a": st.tuples(_INT, _G, _INT, _M),
    "b": st.tuples(_N.map(str), _G, _INT, _X),
    "c": st.tuples(_G, _INT),
    "d": st.tuples(_N.map(str), _N.map(str), _DAY, _F),
}
VALUE = {"INT": _INT, "BIGINT": _INT, "STRING": _G, "DECIMAL(10,2)": _M, "DOUBLE": _X, "DATE": _DAY, "BOOLEAN": _F}


@st.composite
def values(draw: st.DrawFn, table: str, most: int = 5) -> str:
    count = len(KEYS.get(table, ()))
    unique = (lambda row: row[:count]) if count else None
    rows = draw(st.lists(ROW[table], min_size=1, max_size=most, unique_by=unique))
    return ", ".join(f"({', '.join(row)})" for row in rows)


@st.composite
def statements(draw: st.DrawFn) -> str:
    """One statement that changes a table."""
    table = draw(st.sampled_from([*TABLES]))
    kind = draw(st.sampled_from(["insert"] * 4 + ["update"] * 4 + ["delete"] * 2 + ["merge", "overwrite", "truncate"]))
    if kind == "truncate":
        return draw(st.sampled_from([f"TRUNCATE TABLE {table}", f"DELETE FROM {table}", f"OPTIMIZE {table}"]))
    columns = TABLES[table]
    name = draw(st.sampled_from([*columns]))
    where = f"{name} <=> {draw(VALUE[columns[name]])}"
    if columns[name] in ("INT", "BIGINT"):
        where = draw(st.sampled_from([where, f"{name} >= {draw(_N)}", f"{name} IS NULL OR {name} < 2"]))
    if kind == "delete":
        return f"DELETE FROM {table} WHERE {where}"
    if kind == "update":
        key = KEYS.get(table, [])
        if key and draw(st.integers(1, 4)) == 4:
            return f"UPDATE {table} SET {key[0]} = {key[0]} + {draw(st.sampled_from([1, 10]))} WHERE {where}"
        free = [c for c in columns if c not in key]
        names = draw(st.lists(st.sampled_from(free), min_size=1, max_size=2, unique=True))
        sets = []
        for column in names:
            forms = [draw(VALUE[columns[column]])]
            if columns[column] in ("INT", "BIGINT"):
                forms += [f"({column} + 1) % 5", f"coalesce({column}, 3)"]
            sets.append(f"{column} = {draw(st.sampled_from(forms))}")
        return f"UPDATE {table} SET {', '.join(sets)} WHERE {where}"
    rows = draw(values(table))
    if kind == "merge":
        into = draw(st.sampled_from([*KEYS]))
        rows, on = draw(values(into)), " AND ".join(f"{into}.{k} = s.{k}" for k in KEYS[into])
        names = ", ".join(TABLES[into])
        rest = "WHEN NOT MATCHED BY SOURCE AND g = 'x' THEN DELETE" if into == "b" and draw(st.booleans()) else ""
        return (
            f"MERGE INTO {into} USING (VALUES {rows} AS s({names})) AS s ON {on} "
            f"WHEN MATCHED AND s.{KEYS[into][-1]} > 2 THEN DELETE WHEN MATCHED THEN UPDATE SET * "
            f"WHEN NOT MATCHED THEN INSERT * {rest}"
        )
    word = "INSERT OVERWRITE" if kind == "overwrite" else "INSERT INTO"
    return f"{word} {table} VALUES {rows}"


STEP = st.one_of(
    statements(),
    statements(),
    statements(),
    st.lists(statements(), min_size=2, max_size=4).map(tuple),
    st.just("reopen"),
)
"""A statement, a batch of several, or closing the database and opening it again."""
