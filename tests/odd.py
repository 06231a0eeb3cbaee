"""Statements and values nobody would write, made from those that people do; the same number makes the same one."""

from __future__ import annotations

import datetime
import re
import uuid
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from headrace.errors import SqlError
from headrace.sql.lexer import tokens
from headrace.sql.script import split_statements

SETUP = (
    "CREATE STREAM s (a INT, b STRING, d DATE, p DECIMAL(6,2), at TIMESTAMP) "
    "WITH (capacity = 64, timeout = '1 millisecond')",
    "CREATE TABLE t (k INT PRIMARY KEY, v STRING, w ARRAY<INT>, x STRUCT<a: INT, b: STRING>)",
    "CREATE TABLE e (o BOOLEAN, i1 TINYINT, i2 SMALLINT, i8 BIGINT, f4 FLOAT, f8 DOUBLE, bin BINARY, "
    "ntz TIMESTAMP_NTZ)",
    "CREATE VIEW per_b AS SELECT b, sum(a) AS a, max(d) AS d, count(*) AS n FROM s GROUP BY b",
    "CREATE VIEW plain AS SELECT k, v FROM t WHERE k > 0",
    "CREATE SAMPLE few OF s SIZE 3",
    "INSERT INTO s VALUES (1, 'x', DATE '2024-01-01', 1.5, TIMESTAMP '2024-01-01 10:00:00')",
    "INSERT INTO t (k, v) VALUES (1, 'one'), (2, NULL)",
    # those of docs/sql.md
    "CREATE STREAM orders (id BIGINT, customer INT, item STRING, price DECIMAL(10,2), at TIMESTAMP)",
    "CREATE TABLE customer (id INT PRIMARY KEY, name STRING NOT NULL, country STRING)",
    "CREATE STREAM posts (uid INT, score INT, content STRING) WITH (capacity = 64, timeout = '1 millisecond')",
    "CREATE STREAM votes (id INT, region STRING, score INT)",
    "CREATE SAMPLE recent OF votes SIZE 3",
    "CREATE VIEW revenue AS SELECT item, count(*) AS orders, sum(price) AS total FROM orders GROUP BY item",
)
"""What the statements below are about."""

STATEMENTS = (
    "SELECT k, v FROM t WHERE k > 1 ORDER BY v DESC NULLS LAST LIMIT 3 OFFSET 1",
    "SELECT b, n FROM per_b WHERE b = 'x'",
    "SELECT DISTINCT v FROM t",
    "SELECT count(*), sum(k), avg(k), max(v), min(k) FILTER (WHERE k > 1), count(DISTINCT v) FROM t",
    "SELECT v, count(*) AS n FROM t GROUP BY v HAVING count(*) > 0 ORDER BY n",
    "SELECT v, k, grouping_id() FROM t GROUP BY ROLLUP (v, k)",
    "SELECT x.a, w[0] FROM t",
    "SELECT t.k, p.v FROM t LEFT JOIN plain p ON t.k = p.k AND p.v <> 'z'",
    "SELECT * FROM t JOIN plain USING (k)",
    "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM plain p WHERE p.k = t.k)",
    "SELECT k FROM t WHERE k IN (SELECT k FROM plain) AND k NOT IN (5, 6)",
    "SELECT (SELECT max(k) FROM t) AS m, k FROM t",
    "SELECT k FROM t UNION ALL SELECT a FROM per_b EXCEPT SELECT 7",
    "WITH c AS (SELECT k + 1 AS q FROM t), d AS (SELECT * FROM c) SELECT q, -q FROM d WHERE q BETWEEN 1 AND 9",
    "SELECT CASE WHEN k = 1 THEN 'a' WHEN k IS NULL THEN NULL ELSE upper(v) END, coalesce(v, 'none') FROM t",
    "SELECT CAST(k AS DECIMAL(10, 2)) / 3, k::string || 'x', try_cast('q' AS INT), -k % 2 FROM t",
    "SELECT DATE '2024-02-29' + 1, TIMESTAMP '2024-01-01 00:00:00' - INTERVAL '1' DAY, INTERVAL '2' HOUR",
    "SELECT substring(v, 1, 2), trim(v), concat(v, 'x'), length(v), round(1.55, 1), abs(-k) FROM t",
    "SELECT year(at), date_trunc('DAY', at), to_date(at) FROM few",
    "SELECT * FROM (VALUES (1, 'a'), (2, NULL)) AS q(i, j) WHERE j LIKE 'a%' OR i IS NOT DISTINCT FROM 2",
    "VALUES (1, NULL), (2, 3.5)",
    "SELECT k FROM t TABLESAMPLE RESERVOIR (1 ROWS) REPEATABLE (7)",
    "SELECT estimate(count(*)), estimate(sum(a)) AS total FROM few",
    "SELECT a, b FROM s@OLDEST WHERE a > 0",
    "SELECT b, count(*) FROM s@OLDEST GROUP BY b",
    "SELECT s.a, t.v FROM s@OLDEST JOIN t ON s.a = t.k",
    "SELECT * FROM headrace.views",
    "SELECT name, rows FROM headrace.streams",
    "INSERT INTO t (k, v) VALUES (10, 'ten'), (11, 'eleven')",
    "INSERT INTO s (a, b) SELECT k, v FROM t",
    "INSERT INTO e VALUES (true, 1Y, 2S, 3L, 1.5F, 2.5D, X'ff', TIMESTAMP_NTZ '2024-01-01 00:00:00')",
    "INSERT INTO s VALUES (2, 'y', DATE '2024-01-02', 2.25, NULL)",
    "CREATE STREAM s2 (a INT NOT NULL, b STRUCT<c: ARRAY<STRING>>) WITH (capacity = 10, overflow = 'error')",
    "CREATE TABLE IF NOT EXISTS t2 (k INT, `a b` DECIMAL(38, 10), PRIMARY KEY (k))",
    "CREATE TABLE t3 AS SELECT k, v FROM t",
    "CREATE TABLE t4 AS TABLE t",
    "CREATE TABLE f (a INT, b STRING) USING csv OPTIONS (header = true) LOCATION 'rows.csv'",
    "CREATE VIEW v2 WITH (retain = '2 hours') AS SELECT window.start AS o, count(*) AS n FROM s "
    "GROUP BY window(at, '1 hour')",
    "CREATE VIEW v3 AS SELECT t.v, stddev(s.a) AS sd, count(DISTINCT s.b) AS m FROM s JOIN t ON s.a = t.k GROUP BY t.v",
    "CREATE VIEW v4 AS SELECT count(*) AS n FROM s CROSS JOIN t",
    "CREATE VIEW v5 (q, r) AS SELECT b, max(a) FROM s WHERE a IS NOT NULL GROUP BY b",
    "CREATE SAMPLE s3 OF s SIZE 5 WHERE a > 0 GROUP BY b SEED 3",
    "COPY s (a, b) FROM 'rows.csv' WITH (header = true, delimiter = ',')",
    "COPY t FROM 'none/*.parquet'",
    "EXPLAIN SELECT b, n FROM per_b",
    "EXPLAIN CREATE VIEW v6 AS SELECT b, count(*) AS n FROM s GROUP BY b",
    "SHOW STREAMS",
    "DESCRIBE per_b",
    "REFRESH VIEW per_b",
    "REFRESH SAMPLE few RESTART",
    "DROP VIEW IF EXISTS v2 CASCADE",
    "DROP STREAM s",
)  # fmt: skip

_WORDS = re.findall(r"\S+", """
    SELECT FROM WHERE GROUP BY HAVING ORDER LIMIT OFFSET UNION ALL INTERSECT EXCEPT DISTINCT AS ON USING JOIN LEFT FULL
    CROSS NATURAL SEMI ANTI LATERAL VIEW EXPLODE WITH RECURSIVE VALUES TABLE CASE WHEN THEN ELSE END AND OR NOT IN IS
    NULL LIKE RLIKE BETWEEN EXISTS CAST TRY_CAST OVER PARTITION ROWS RANGE WINDOW QUALIFY PIVOT UNPIVOT FOR TABLESAMPLE
    RESERVOIR REPEATABLE INSERT INTO CREATE DROP STREAM SAMPLE SIZE OF SEED COPY EXPLAIN SHOW DESCRIBE REFRESH RESTART
    IF PRIMARY KEY ARRAY STRUCT MAP INT STRING VOID DECIMAL DATE TIMESTAMP INTERVAL DAY TO SECOND TRUE FALSE ESCAPE
    FILTER ROLLUP CUBE GROUPING SETS current_date count(*) sum max estimate substring extract position trim overlay
    t s e k v a b t.k per_b few plain @OLDEST all distinct
""")  # fmt: skip
_LITERALS = (
    *("''", "``", "`a b`", "''''", "'\\0'", "'\0'", "'😀'", "'\u2028'", "NULL", "*", "t.*", "(SELECT 1)"),
    *("(SELECT NULL)", "'1'"),
    *("0", "-1", "+1", "1.", ".5", "1e400", "1E-400", "0.1BD", "9" * 45, "2147483648", "1L", "300Y", "1e2BD", "0x1F"),
    *("date '2024-02-30'", "date '5874897-12-31'", "date ''", "timestamp '10000-01-01 00:00:00'", "time '10:20:30'"),
    *("interval '-\t 1' day", "interval 1 month", "interval '1 day 1'", "X'ff'", "r'\\'", "current_date", "s" * 300),
    *("true", "array()", "struct()", "cast(NULL AS VOID)", "count(*)", "rand()", "row_number() OVER (ORDER BY 1)"),
)  # fmt: skip
_ODD = (
    *_LITERALS,
    *("'a", '"q"', "`", "'", '"', "'\\'", "'\ud800'", "X'f'", "interval", "--", "/*", "*/", ";", "(", ")", "()"),
    *("[", "]"),
    *("[0]", ".", "..", "::int", "::", "@", "?", ":p", "$1", "{", "}", "#", "\\", "\n", "\t", "\0", "\x1a", "\ufeff"),
    *("\xa0", "İ", "ß", "ſ", "é", "|>", "->", "=>", "<=>", "!", "~", "||", "<<", ">>", ">>>", "%", "div", "==", "<>"),
    *("!=", ",", ",,", "/*+ broadcast(t) */", "/* c */", "-- c\n", "(VALUES (1))", "CASE END"),
)  # fmt: skip


def corpus(root: Path) -> list[str]:
    """The statements of docs/sql.md, and those above."""
    found = list(STATEMENTS)
    for block in re.findall(r"^```sql\n(.*?)^```", (root / "docs/sql.md").read_text(), re.DOTALL | re.MULTILINE):
        found += [s.text for s in split_statements(block)]
    return found


_VALUE = re.compile(r"[a-z_][\w.]*|\d[\w.]*|'.*'", re.DOTALL)
_BEFORE_NAMES = {
    "FROM",
    "JOIN",
    "INTO",
    "TABLE",
    "VIEW",
    "STREAM",
    "SAMPLE",
    "OF",
    "AS",
    "COPY",
    "DESCRIBE",
    "REFRESH",
    ".",
}
_LIKE = (
    ("JOIN", "LEFT JOIN", "FULL JOIN", "CROSS JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN", "NATURAL JOIN", ","),
    ("UNION", "EXCEPT", "INTERSECT", "UNION ALL", "UNION BY NAME", "MINUS"),
    ("sum", "max", "min", "avg", "count", "stddev", "bool_or", "any_value", "estimate", "collect_list"),
    ("INT", "STRING", "DATE", "TIMESTAMP", "DECIMAL(38, 38)", "VOID", "ARRAY<INT>", "STRUCT<a: INT>", "BINARY"),
    ("ROLLUP", "CUBE", "GROUPING SETS"),
    ("AND", "OR", "=", "<=>", "<", "||", "+", "-", "*", "/", "%", "LIKE", "IN", "IS", "BETWEEN"),
    ("STREAM", "TABLE", "VIEW", "SAMPLE"),
    ("t", "s", "e", "per_b", "plain", "few", "s@OLDEST", "orders", "customer", "revenue", "(VALUES (1))"),
)  # fmt: skip
_AROUND = (
    *("({})", "-{}", "NOT {}", "max({})", "count(DISTINCT {})", "CAST({} AS STRING)", "CAST({} AS DATE)"),
    *("{}::decimal(3,1)", "{}[0]", "sum({}) OVER ()", "{}, {}"),
    *("(SELECT {})", "(SELECT max({}) FROM t)", "{} IN (SELECT k FROM t)", "EXISTS (SELECT {} FROM e)", "{}.a"),
    *("coalesce({}, NULL)", "CASE WHEN {} THEN 1 END", "{} AS `a b`", "{} AS ``", "upper({})", "abs({})"),
    *("{} IS NULL", "{} + INTERVAL 1 DAY", "concat({}, 'x')", "date_add({}, 5000000)", "round({}, -1)", "{} % 0"),
)  # fmt: skip


def statement(number: int, corpus: list[str]) -> str:
    """A mutated statement: now and then any word for any other, mostly one that may stand there."""
    random = Random(number)
    parts = _parts(random.choice(corpus))
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 5))):
        _mend(random, parts) if random.random() < 0.85 else _break(random, parts, corpus)
        parts = parts or [""]
    return "".join(parts)


def _mend(random: Random, parts: list[str]) -> None:
    """Put another name, literal, expression or keyword where one stands."""
    before = ["", *(part.strip().upper() for part in parts)]
    after = [*(part.strip() for part in parts[1:]), ""]
    values = [
        i
        for i, part in enumerate(parts)
        if _VALUE.fullmatch(part.strip()) and after[i][:1] != "(" and before[i] not in _BEFORE_NAMES
    ]
    words = [(i, like) for i, part in enumerate(parts) for like in _LIKE if part.strip() in like]
    if words and random.random() < 0.4:
        at, like = random.choice(words)
        parts[at] = random.choice(like) + " "
    elif values:
        at = random.choice(values)
        old = parts[at].strip()
        if random.random() < 0.5:
            parts[at] = random.choice(_AROUND).replace("{}", old) + " "
        else:
            parts[at] = random.choice((*_LITERALS, *(parts[i].strip() for i in values))) + " "


def _break(random: Random, parts: list[str], corpus: list[str]) -> None:
    at, other = random.randrange(len(parts)), random.randrange(len(parts))
    match random.randrange(7):
        case 0:
            parts[at : at + random.choice((1, 1, 2, 4))] = []
        case 1:
            parts[at:at] = parts[at : at + random.choice((1, 1, 2, 4))]
        case 2:
            parts[at], parts[other] = parts[other], parts[at]
        case 3:
            parts[at] = random.choice(_ODD) + " "
        case 4:
            parts[at] = random.choice(_WORDS) + " "
        case 5:
            parts[at:at] = [random.choice((*_ODD, *_WORDS)) + " "]
        case 6:
            tail = _parts(random.choice(corpus))
            parts[at:] = tail[random.randrange(len(tail)) :]


def _starts(text: str) -> list[int]:
    """Where a text's words begin; anywhere, if it cannot be cut into words."""
    try:
        return [token.start for token in tokens(text)] or [0]
    except SqlError:
        return list(range(0, len(text), 3)) or [0]


def _parts(text: str) -> list[str]:
    """The text's words and signs, each with the blanks after it."""
    starts = _starts(text)
    return [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]


class _Mute:
    def __repr__(self) -> str:
        raise LookupError("no words")


class _Strange:
    """Something that is none of what it says."""

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __iter__(self) -> Any:
        raise RuntimeError("no rows")


class _Text(str):
    """A kind of text."""


def _endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def scalar(random: Random) -> Any:
    return random.choice(
        (
            *(None, True, 0, 1, -1, 2**31, 2**63, 2**64, -(2**200), 1.5, float("nan"), float("inf"), 1e400, 5j),
            *("", "x", "\0", "\ud800", "😀", "12", "2024-01-01", "x" * 70_000, _Text("sub"), b"", b"\xff"),
            *(bytearray(b"a"), memoryview(b"m")),
            *(Decimal("1.5"), Decimal("1E+400"), Decimal("NaN"), Decimal("1." + "1" * 50)),
            *(datetime.date.min, datetime.date.max, datetime.datetime.max, datetime.time(1)),
            *(datetime.timedelta(days=1),),
            *(datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), datetime.datetime(2024, 3, 31, 2, 30)),
            *(np.int8(5), np.uint64(2**64 - 1), np.float32("nan"), np.str_("n"), np.bool_(True), np.datetime64("NaT")),
            *(np.datetime64("10000-01-01"), np.datetime64(2**62, "D"), np.timedelta64(1, "D"), np.array(5)),
            *(pd.NaT, pd.NA, pd.Timestamp("2024-01-01", tz="Europe/Berlin"), pa.scalar(1), pa.scalar("s")),
            *(uuid.UUID(int=7),),
            *([], [1], [None], [[1]], (1,), {}, {"a": 1}, {"a": 1, "b": "c"}, {1, 2}, range(2), _endless()),
            *(object, len),
            *(pd.Timestamp("2024-01-01 00:00:00.000000001"), np.array(None), np.array(["2024"], "datetime64[ns]")),
            *(_Mute(), [_Mute()], {_Mute(): _Mute()}),
            *(_Strange(), Ellipsis, NotImplemented, ValueError("v"), [object()], {"a": {"a": {}}}, [["x"], [1]]),
        )
    )  # fmt: skip


def _column(random: Random, n: int) -> Any:
    values = [scalar(random)] * n if random.random() < 0.6 else [scalar(random) for _ in range(n)]
    match random.randrange(12):
        case 0:
            return tuple(values)
        case 1:
            return np.array([random.choice((1, 2.5, "x", True, 2**70, None))] * n)
        case 2:
            return pd.Series(values, dtype=object)
        case 3:
            return pl.Series(["a"] * n, dtype=random.choice((pl.Categorical, pl.Enum(["a", "b"]), pl.String)))
        case 4:
            return arrow_column(random, n)
        case 5:
            return pa.chunked_array([arrow_column(random, n)])
        case 6:
            return np.array(
                [2 ** random.randrange(60)] * n, f"datetime64[{random.choice(('D', 'us', 'ns', 's', 'Y'))}]"
            )
        case 7:
            return scalar(random)
    return values


def _polars(random: Random, n: int) -> pl.Series:
    """A column Polars takes; it panics, or ends the process, over some of the values above."""
    values: Any
    values, kind = random.choice(
        (
            ("a", pl.Categorical),
            ("a", pl.Enum(["a", "b"])),
            ("x", pl.String),
            (b"x", pl.Binary),
            (2**31, pl.Int64),
            (300, pl.UInt64),
            (2**100, pl.Int128),
            (Decimal("1.5"), pl.Decimal(20, 2)),
            (float("nan"), pl.Float32),
            ([1, None], pl.List(pl.Int64)),
            ([1, 2], pl.Array(pl.Int64, 2)),
            ({"a": 1, "b": "c"}, pl.Struct({"a": pl.Int64, "b": pl.String})),
            ({"a\0": 1}, pl.Struct({"a\0": pl.Int64})),
            (datetime.date.max, pl.Date),
            (datetime.datetime(2024, 1, 1), pl.Datetime("ns")),
            (datetime.timedelta(days=1), pl.Duration("us")),
            (datetime.time(1), pl.Time),
            (None, pl.Null),
        )
    )
    return pl.Series([values] * n, dtype=kind)


_ARROW = (
    *(pa.null(), pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.decimal128(38, 10)),
    pa.decimal256(70, 2),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.binary(2), pa.date32(), pa.date64()),
    pa.time64("us"),
    *(pa.timestamp("s"), pa.timestamp("ns", "UTC"), pa.timestamp("us", "Europe/Berlin"), pa.duration("s")),
    *(pa.list_(pa.int32()), pa.large_list(pa.string()), pa.list_(pa.int32(), 2), pa.list_view(pa.int8())),
    *(pa.struct([("a", pa.int32()), ("b", pa.string())]), pa.struct([]), pa.map_(pa.string(), pa.int32())),
    *(pa.dictionary(pa.int8(), pa.string()), pa.month_day_nano_interval()),
)  # fmt: skip


def arrow_column(random: Random, n: int) -> pa.Array:
    """A column of some Arrow type: NULLs, or whatever its bits then mean."""
    kind = random.choice(_ARROW)
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind) and random.random() < 0.7:
        bits = kind.bit_width
        number = random.choice((0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), 2 ** (bits - 8)))
        return pa.array([number] * n, pa.int32() if bits == 32 else pa.int64()).view(kind)
    if kind == pa.string() and random.random() < 0.5:
        return pa.array([b"\xff"] * n, pa.binary()).view(pa.string())
    return pa.nulls(n, kind)


def rows(number: int, fields: list[str]) -> Any:
    """What ``db.insert`` may be given: mostly rows of these fields, with odd values."""
    random = Random(number)
    n = random.choice((0, 1, 1, 2, 3))
    names = list(fields)
    if random.random() < 0.2:
        names[random.randrange(len(names))] = random.choice(("", "\0", "\ud800", "K", "no", "a.b"))
    if random.random() < 0.1:
        random.shuffle(names)
    whole = {name: [None] * n for name in names}
    kind = random.randrange(9)
    if kind < 4:
        for name in random.sample(names, random.choice((1, 1, 2))):
            if name in whole:
                whole[name] = [scalar(random) for _ in range(n)]
        listed = [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]
        if kind == 0:
            return listed
        if kind == 1:
            return [tuple(row.values()) for row in listed]
        if kind == 2:
            return (row for row in listed)
        return whole
    given: dict[Any, Any] = {**whole, random.choice(names): _column(random, n)}
    if kind == 4:
        return given
    if kind == 5:
        arrays = {name: arrow_column(random, n) if random.random() < 0.5 else pa.nulls(n) for name in names}
        table = pa.table(list(arrays.values()), names=[name.replace("\ud800", "?") for name in arrays])
        return random.choice((table, table.to_batches(), table.to_reader(), table.to_struct_array()))
    if kind == 6:
        with suppress(Exception):  # what pandas refuses itself
            return pd.DataFrame(given)
    if kind == 7:
        columns = {**whole, random.choice(names): _polars(random, n)}
        frame = pl.DataFrame({name.replace("\ud800", "?"): column for name, column in columns.items()})
        return random.choice((frame, frame.lazy(), frame.to_series(0)))
    return random.choice((scalar(random), [scalar(random)], {names[0]: scalar(random)}, arrow_column(random, n), given))
