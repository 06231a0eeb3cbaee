"""Statements made at random: clauses in odd places, set operations in subqueries, aliases, ordinals, quoted names.

They are read over ``t1(c1, c2)``, ``t2(c1, c2)`` and ``odd(all, distinct, order, "a b")``, all of them INT.
"""

from __future__ import annotations

from random import Random

TABLES = {
    "t1": (("c1", "c2"), ((0, 1), (1, 2), (2, 2), (None, 4))),
    "t2": (("c1", "c2"), ((0, 2), (0, 3), (2, None))),
    "odd": (("all", "distinct", "order", "a b"), ((1, 2, 3, 4), (1, 0, 3, None))),
}
_COLUMNS = {"t1": ("c1", "c2"), "t2": ("c1", "c2"), "odd": ("`all`", "`distinct`", "`order`", "`a b`")}
_BINARY = ("+", "-", "*", "<", "<=", "=", "<>", "<=>", ">", "&", "|", "^", "AND", "OR", "||", "%", "==", "!=")
_LITERALS = ("0", "1", "-1", "2", "NULL", "1.5", "'1'", "true", "- 1", "3L", "0.5", "date '2024-01-01'")


class Made:
    """Makes statements; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def maybe(self, text: str, chance: float = 0.5) -> str:
        return text if self.random.random() < chance else ""

    def statement(self) -> str:
        return self.query(2)

    # Queries

    def query(self, depth: int) -> str:
        ctes = f"WITH x AS ({self.term(0)}) " if self.random.random() < 0.1 else ""
        return f"{ctes}{self.term(depth)}{self.ends()}"

    def ends(self) -> str:
        order = self.pick(" ORDER BY 1", " ORDER BY 1 DESC NULLS LAST", " ORDER BY ALL", " ORDER BY -1")
        limit = self.pick(" LIMIT 2", " LIMIT 1 + 1", " LIMIT 0", " LIMIT 1 OFFSET 1")
        return self.maybe(order, 0.3) + (self.maybe(limit, 0.4) if self.random.random() < 0.3 else "")

    def term(self, depth: int) -> str:
        kind = self.random.random()
        if depth > 0 and kind < 0.15:
            word = self.pick("UNION", "UNION ALL", "EXCEPT", "INTERSECT", "MINUS", "INTERSECT ALL", "EXCEPT ALL")
            return f"{self.term(depth - 1)} {word} {self.term(depth - 1)}"
        if depth > 0 and kind < 0.25:
            return f"({self.query(depth - 1)})"
        if kind < 0.32:
            return self.pick("VALUES (1, 2), (3, 4)", "VALUES (1), (2)", "VALUES 1, 2", "TABLE t1", "FROM t1")
        return self.select(depth)

    def select(self, depth: int) -> str:
        relation, columns = self.relation(depth)
        items = ", ".join(self.item(columns, depth) for _ in range(self.random.randint(1, 3)))
        where = f" WHERE {self.condition(columns, depth)}"
        grouped = self.random.random() < 0.35
        text = f"SELECT {self.pick('', '', '', 'DISTINCT ', 'ALL ')}"
        if not grouped:
            text += self.pick(items, items, "*", f"*, {items}", f"{self.pick('t1', 't2', 'nosuch')}.*")
            return f"{text} FROM {relation}{self.maybe(where)}"
        key = self.pick(*columns)
        other = self.pick(*columns)
        keys = self.pick(
            key, "1", "ALL", f"{key}, {other}", f"{key} + 1", f"ROLLUP({key}, {other})", f"CUBE({key})", "k",
            f"GROUPING SETS (({key}), ())", "GROUPING SETS (())", f"{key}, {other} WITH ROLLUP", f"{other} + {key}",
        )  # fmt: skip
        items = self.pick(
            f"{key}, count(*)", f"{key} AS k, sum({other}) AS s, s + 1", f"count(*), {key} + {other}", "count(1) n",
            f"{key}, max({other})", f"{key} + 1, min({key})", f"{key} k, count(DISTINCT {other})", "1, count(*)",
        )  # fmt: skip
        having = self.pick("count(*) > 1", "count(*)", "n > 0", f"{key} > 0", "k = 1", f"sum({other}) IS NOT NULL", "1")
        having = self.maybe(f" HAVING {having}", 0.3)
        return f"{text}{items} FROM {relation}{self.maybe(where, 0.3)} GROUP BY {keys}{having}"

    def relation(self, depth: int) -> tuple[str, tuple[str, ...]]:
        kind = self.random.random()
        if depth > 0 and kind < 0.15:
            return f"({self.query(depth - 1)}) AS q(a{self.maybe(', b', 0.7)})", ("a", "q.a")
        if kind < 0.22:
            return self.pick("VALUES (1, 2), (3, NULL) AS v(a, b)", "(VALUES (1, 2)) v(a, b)"), ("a", "v.b", "b")
        if kind < 0.5:
            on = self.pick(" ON t1.c1 = y.c1", " USING (c1)", " ON t1.c1 = y.c1 AND y.c2 > 1", "")
            word = self.pick(
                "JOIN", "LEFT JOIN", "FULL OUTER JOIN", "LEFT SEMI JOIN", "ANTI JOIN", "CROSS JOIN", "RIGHT JOIN"
            )
            natural = self.pick("t1 NATURAL JOIN t2 y", "t1, t2 y", f"(t1 {word} t2 y{on})", f"t1 {word} t2 y{on}")
            return natural, ("t1.c1", "c1", "t1.c2", "y.c2")
        name = self.pick("t1", "t2", "odd")
        return self.pick(name, f"{name}", f"({name})"), _COLUMNS[name]

    def item(self, columns: tuple[str, ...], depth: int) -> str:
        alias = self.pick("", "", " AS x", " y", " AS `z z`", " AS all", " limit", " order")
        return self.value(columns, 2 if depth else 1) + alias

    # Expressions

    def condition(self, columns: tuple[str, ...], depth: int) -> str:
        kind = self.random.random()
        if depth > 0 and kind < 0.3:
            correlated = self.maybe(f" WHERE u.c1 = {self.pick(*columns)}")
            selected = self.pick("c1", "count(*)", "max(c2)", "1")
            inner = self.pick(f"SELECT {selected} FROM t2 u{correlated}", self.query(0))
            tested = self.pick(*columns)
            return self.pick(
                f"EXISTS ({inner})", f"NOT EXISTS ({inner})", f"{tested} IN ({inner})", f"{tested} NOT IN ({inner})",
                f"{tested} = ({inner})", f"({tested} IN ({inner}) OR {tested} = 1)",
            )  # fmt: skip
        return self.value(columns, 2)

    def value(self, columns: tuple[str, ...], depth: int) -> str:
        kind = self.random.random()
        if depth == 0 or kind < 0.25:
            return self.pick(*columns, *_LITERALS)
        one, two = self.value(columns, depth - 1), self.value(columns, depth - 1)
        if kind < 0.6:
            return f"{one} {self.pick(*_BINARY)} {two}"
        if kind < 0.7:
            return f"{self.pick('NOT ', '- ', '+ ', '~ ')}{one}"
        return self.pick(
            f"({one})", f"{one} IS NULL", f"{one} IS NOT NULL", f"{one} BETWEEN {two} AND 3", f"{one} IN ({two}, 1)",
            f"{one}::string", f"CAST({one} AS {self.pick('INT', 'decimal(10, 0)', 'string', 'double')})",
            f"CASE WHEN {one} = {two} THEN 1 ELSE {two} END", f"CASE {one} WHEN {two} THEN 1 END",
            f"coalesce({one}, {two})",
            f"{one} IS DISTINCT FROM {two}", f"if({one} > 1, 1, 2)", f"{one} LIKE '1%'", f"{one} NOT IN ({two})",
            f"{one} IS NOT DISTINCT FROM {two}", f"nullif({one}, {two})", f"abs({one})", f"{one} IS TRUE",
        )  # fmt: skip
