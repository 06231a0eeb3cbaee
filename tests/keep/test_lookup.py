"""One group by its key: found in the state in memory, and the same as filtering the whole view."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from decimal import Decimal
from typing import Any

import pytest

import headrace
from headrace.keep.resident import Resident

KEYS: dict[str, list[tuple[str, Any]]] = {
    "INT": [("0", 0), ("7", 7), ("-3", -3)],
    "BIGINT": [("0", 0), ("9223372036854775807", 2**63 - 1), ("-9223372036854775808L", -(2**63))],
    "STRING": [("''", ""), ("'a'", "a"), ("'ü'", "ü"), ("'it''s'", "it's")],
    "BOOLEAN": [("true", True), ("false", False)],
    "DATE": [("DATE '2020-02-29'", dt.date(2020, 2, 29)), ("DATE '1969-12-31'", dt.date(1969, 12, 31))],
    "TIMESTAMP": [("TIMESTAMP '2020-01-01 00:00:00Z'", dt.datetime(2020, 1, 1, tzinfo=dt.UTC))],
    "DECIMAL(5,2)": [("1.50", Decimal("1.50")), ("-0.01", Decimal("-0.01"))],
    "DOUBLE": [("1.5D", 1.5), ("0.0D", -0.0), ("double('NaN')", math.nan)],
}
ROWS = "count(*) AS n, sum(x) AS t, min(x) AS low, max(x) AS high"


@pytest.fixture
def finds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each lookup found."""
    found: list[int] = []
    find = Resident.find

    def noted(self: Resident, key: Any) -> Any:
        row = find(self, key)
        found.append(row.num_rows)
        return row

    monkeypatch.setattr(Resident, "find", noted)
    return found


def same(rows: list[tuple[Any, ...]], others: list[tuple[Any, ...]]) -> bool:
    return sorted(map(repr, rows)) == sorted(map(repr, others))


@pytest.mark.parametrize("type", KEYS)
def test_a_lookup_is_the_filtered_view(type: str, finds: list[int]) -> None:
    values = [value for _, value in KEYS[type]]
    with headrace.connect(engine="native") as db:
        db.sql(f"CREATE STREAM s (k {type}, x INT)")
        db.sql(f"CREATE VIEW v AS SELECT k, {ROWS} FROM s GROUP BY k")
        db.insert("s", [(None, 5)])
        for value, x in itertools.product([*values, None], (1, None, 4)):
            db.insert("s", [(value, x)])
            for text, key in KEYS[type]:
                found = db.sql(f"SELECT * FROM v WHERE k = {text}").rows()
                whole = db.sql("SELECT * FROM v").rows()
                mine = [r for r in whole if r[0] is not None and (r[0] == key or (r[0] != r[0] and key != key))]
                assert same(found, mine), (text, found, mine)
        assert db.sql("SELECT t, t AS again, 1 + n AS m FROM v WHERE k IS NULL").rows() == [(10, 10, 5)]
    if type != "DOUBLE":  # NaN is an expression
        assert 1 in finds and (0 in finds or len(values) == 1)


def test_what_is_a_lookup_and_what_is_not(finds: list[int]) -> None:
    with headrace.connect(engine="native") as db:
        db.sql("CREATE STREAM s (a INT, b STRING, x INT)")
        db.sql(f"CREATE VIEW v AS SELECT a, b, {ROWS} FROM s GROUP BY a, b")
        db.sql("CREATE VIEW few AS SELECT a, count(*) AS n FROM s GROUP BY a HAVING count(*) > 1")
        db.insert("s", [(1, "x", 3), (1, "y", None), (2, "x", 5), (1, "x", 4)])

        def ask(where: str, columns: str = "*", view: str = "v") -> tuple[list[tuple[Any, ...]], bool]:
            before = len(finds)
            return db.sql(f"SELECT {columns} FROM {view} WHERE {where}").rows(), len(finds) > before

        assert ask("a = 1 AND b = 'x'") == ([(1, "x", 2, 7, 3, 4)], True)
        assert ask("'y' = b AND 1 = a", "high, n, n AS m") == ([(None, 1, 1)], True)
        assert ask("a = 1 AND b = 'nobody'") == ([], True)
        assert ask("a = 2") == ([(2, "x", 1, 5, 5, 5)], False)
        assert ask("a = 2 AND b = 'x' AND t > 5") == ([], False)
        assert ask("a = 1 AND b = 'x' AND a = 2") == ([], False)
        assert ask("a = 2 OR b = 'y'", "n") == ([(1,), (1,)], False)
        assert ask("a = 2 AND b = 'x'", "t / 2") == ([(2.5,)], False)
        assert ask("a = 2", view="few") == ([], False)
        assert ask("a = 1", view="few") == ([(1, 3)], False)
        db.insert("s", [(2, "x", 1)])
        assert ask("a = 2 AND b = 'x'") == ([(2, "x", 2, 6, 1, 5)], True)
        rows = db.sql("SELECT * FROM v WHERE a = 2 AND b = 'x'").arrow()
        db.insert("s", [(2, "x", 1)])
        db.sql("SELECT * FROM v").rows()
        assert rows.to_pylist()[0]["t"] == 6, "an answer is a copy"


def test_a_view_begun_again_is_empty(finds: list[int]) -> None:
    with headrace.connect(engine="native") as db:
        db.sql("CREATE STREAM s (a INT)")
        db.sql("CREATE VIEW v AS SELECT a, count(*) AS n FROM s GROUP BY a")
        db.insert("s", [(1,)])
        assert db.sql("SELECT n FROM v WHERE a = 1").rows() == [(1,)]
        db.sql("REFRESH VIEW v RESTART")
        assert db.sql("SELECT n FROM v WHERE a = 1").rows() == []
        db.insert("s", [(1,), (1,)])
        assert db.sql("SELECT n FROM v WHERE a = 1").rows() == [(2,)]
    assert finds == [1, 0, 1]


def test_a_text_that_differs_in_its_constant_is_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.statement.read import QueryReader

    planned: list[str] = []
    plan = QueryReader._plan_anew
    monkeypatch.setattr(
        QueryReader, "_plan_anew", lambda self, v, kept: (planned.append(kept.text), plan(self, v, kept))[1]
    )
    with headrace.connect(engine="native") as db:
        db.sql("CREATE STREAM s (a INT, b STRING)")
        db.sql("CREATE VIEW v AS SELECT a, count(*) AS n FROM s GROUP BY a")
        db.sql("CREATE VIEW w AS SELECT b, count(*) AS n, min(a) AS low FROM s GROUP BY b")
        db.insert("s", [(1, "x"), (1, "y z"), (-1, "x"), (123456789, "it's"), (2147483647, ""), (None, "5")])

        def ask(text: str) -> tuple[list[tuple[Any, ...]], bool]:
            before = len(planned)
            return db.sql(text).rows(), len(planned) > before

        assert ask("SELECT n FROM v WHERE a = 1") == ([(2,)], True)
        assert ask("SELECT n FROM v WHERE a = 2") == ([], False)
        assert ask("SELECT n FROM v WHERE a = 123456789") == ([(1,)], False)
        assert ask("SELECT n FROM v WHERE a = 2147483647") == ([(1,)], True)  # might have been a bigint
        assert ask("SELECT n FROM v WHERE a = -1") == ([(1,)], True)
        assert ask("SELECT n FROM v WHERE a = 1.0") == ([(2,)], True)
        assert ask("SELECT n FROM v WHERE a = '1'") == ([(2,)], True)
        assert ask("SELECT n FROM v WHERE a = 1 LIMIT 0") == ([], True)
        assert ask("SELECT n FROM v WHERE a = 7 -- 1") == ([], True)
        assert ask("SELECT low FROM w WHERE b = 'x'") == ([(-1,)], True)
        assert ask("SELECT low FROM w WHERE b = 'y z'") == ([(1,)], False)
        assert ask("SELECT low FROM w WHERE b = ''") == ([(2147483647,)], False)
        assert ask("SELECT low FROM w WHERE b = 'it''s'") == ([(123456789,)], True)
        assert ask("SELECT low FROM w WHERE b = '5'") == ([(None,)], False)
        with pytest.raises(headrace.HeadraceError):  # a text that is no number, compared with one
            ask("SELECT low FROM w WHERE b = 6")
        db.insert("s", [(2, "x")])
        assert ask("SELECT n FROM v WHERE a = 2") == ([(1,)], False)
        db.sql("DROP VIEW v")
        with pytest.raises(headrace.HeadraceError, match="NOT_FOUND"):
            ask("SELECT n FROM v WHERE a = 1")
        db.sql("CREATE VIEW v AS SELECT a, sum(a) AS n FROM s GROUP BY a")
        db.insert("s", [(3, "x"), (3, "x")])
        assert ask("SELECT n FROM v WHERE a = 3") == ([(6,)], True)
        assert ask("SELECT n FROM v WHERE a = 4") == ([], False)


def test_a_lookup_takes_a_snapshot_only_for_what_is_not_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.store import Store

    opened: list[int] = []
    read = Store.read
    monkeypatch.setattr(Store, "read", lambda self: (opened.append(1), read(self))[1])
    with headrace.connect(engine="native") as db:
        db.sql("CREATE STREAM s (a INT, x BIGINT)")
        db.sql("CREATE VIEW v AS SELECT a, count(*) AS n, sum(x) AS t FROM s GROUP BY a")
        db.insert("s", [(1, 10), (2, 20)])
        assert db.sql("SELECT n, t FROM v WHERE a = 1").rows() == [(1, 10)]
        opened.clear()
        db.insert("s", [(1, 5)])
        assert db.sql("SELECT n, t FROM v WHERE a = 2").rows() == [(1, 20)], "rows of another group came since"
        assert db.sql("SELECT n, t FROM v WHERE a = 1").rows() == [(2, 15)], "rows of this group came since"
        db.insert("s", [(1, 2**63 - 1)])
        with pytest.raises(headrace.HeadraceError, match=r"OVERFLOW|OUT_OF_RANGE"):
            db.sql("SELECT n, t FROM v WHERE a = 1").rows()
        assert len(opened) == 1, "only the error took a query"


def test_a_state_that_is_not_in_memory_finds_a_group_where_it_lies() -> None:
    """The highest of text is merged by the store; a group that overflows fails who asks for it, and nobody else."""
    with headrace.connect(engine="native") as db:
        db.sql("CREATE STREAM s (k STRING, d DECIMAL(38,0), t STRING)")
        db.sql("CREATE VIEW v AS SELECT k, sum(d) AS d, max(t) AS t, count(*) AS n FROM s GROUP BY k")
        db.insert("s", [("x", 1, "b"), ("y", 2, "c"), (None, 3, "z")])
        db.insert("s", [("x", 4, "d")])
        assert db.sql("SELECT * FROM v WHERE k = 'x'").rows() == [("x", 5, "d", 2)]
        assert db.sql("SELECT n, t FROM v WHERE k = 'y'").rows() == [(1, "c")]
        assert db.sql("SELECT * FROM v WHERE k = 'nobody'").rows() == []
        for _ in range(2):
            db.insert("s", [("x", 10**38 - 1, "a")])
        with pytest.raises(headrace.HeadraceError, match="ARITHMETIC_OVERFLOW"):
            db.sql("SELECT * FROM v WHERE k = 'x'")
        assert db.sql("SELECT * FROM v WHERE k = 'y'").rows() == [("y", 2, "c", 1)]


def test_a_whole_key_of_a_materialized_view_is_a_lookup(finds: list[int]) -> None:
    """Its sums are NULL where nothing is left to add up; keys may be renamed, computed and in another order."""
    with headrace.connect(engine="native") as db:
        db.sql("CREATE TABLE t (a INT, b STRING, x INT, m DECIMAL(10,2))")
        db.sql(
            "CREATE MATERIALIZED VIEW v AS SELECT b AS name, sum(m) AS m, a + 1 AS y, sum(x) AS s, count(x) AS n "
            "FROM t GROUP BY b, a + 1"
        )
        db.sql("INSERT INTO t VALUES (1, 'x', 3, 0.50), (1, 'x', 4, NULL), (1, 'y', NULL, NULL)")
        for text, wanted in (
            ("SELECT * FROM v WHERE name = 'x' AND y = 2", [("x", Decimal("0.50"), 2, 7, 2)]),
            ("SELECT s, m FROM v WHERE y = 2 AND name = 'y'", [(None, None)]),
            ("SELECT * FROM v WHERE name = 'z' AND y = 2", []),
        ):
            before = len(finds)
            assert db.sql(text).rows() == wanted
            assert len(finds) == before + 1
        db.sql("DELETE FROM t WHERE x = 3")
        assert db.sql("SELECT m, s FROM v WHERE y = 2 AND name = 'x'").rows() == [(None, 4)]
        db.sql("DELETE FROM t WHERE x = 4")
        assert db.sql("SELECT m, s FROM v WHERE y = 2 AND name = 'x'").rows() == []
