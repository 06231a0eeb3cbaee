"""Ranges of a view's keys: found in order, and the same as filtering and sorting all of it."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace import Database
from headrace.keep import resident
from headrace.keep.resident import Resident
from profiles import examples

TYPES: dict[str, list[tuple[str, Any]]] = {
    "INT": [("0", 0), ("7", 7), ("-3", -3), ("8", 8)],
    "BIGINT": [("0L", 0), ("9223372036854775807L", 2**63 - 1), ("-9223372036854775808L", -(2**63))],
    "STRING": [
        ("''", ""),
        ("'a'", "a"),
        ("'ü'", "ü"),
        ("'z'", "z"),
        ("'\U0001f600'", "\U0001f600"),
        ("'\uffee'", "\uffee"),
    ],
    "BOOLEAN": [("true", True), ("false", False)],
    "DATE": [("DATE '2020-02-29'", dt.date(2020, 2, 29)), ("DATE '1969-12-31'", dt.date(1969, 12, 31))],
    "TIMESTAMP": [
        ("TIMESTAMP '2020-01-01 00:00:00Z'", dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        ("TIMESTAMP '1960-01-01 00:00:00Z'", dt.datetime(1960, 1, 1, tzinfo=dt.UTC)),
    ],
    "DECIMAL(5,2)": [("1.50", Decimal("1.50")), ("-0.01", Decimal("-0.01")), ("20.00", Decimal("20.00"))],
    "DOUBLE": [("1.5D", 1.5), ("0.0D", 0.0), ("-2.5D", -2.5), ("double('NaN')", math.nan), ("double('inf')", math.inf)],
    "BINARY": [("X''", b""), ("X'00FF'", b"\x00\xff"), ("X'01'", b"\x01")],
}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """How many rows each span found, small as states are here."""
    found: list[int | None] = []
    find = Resident.find_span

    def noted(self: Resident, span: Any) -> Any:
        self._asked.add(span.by)
        rows = find(self, span)
        found.append(None if rows is None else rows.num_rows)
        return rows

    monkeypatch.setattr(resident, "MANY", 1)
    monkeypatch.setattr(Resident, "find_span", noted)
    return found


def told(rows: list[tuple[Any, ...]]) -> list[str]:
    return sorted(map(repr, rows))


@pytest.mark.parametrize("type", TYPES)
def test_oracle_ranges_are_those_of_the_whole_view(type: str, spans: list[int | None]) -> None:
    texts, values = [text for text, _ in TYPES[type]], [value for _, value in TYPES[type]]
    conditions = st.one_of(
        st.tuples(st.sampled_from(["=", "<", "<=", ">", ">=", "<=>"]), st.sampled_from(texts)).map(
            lambda c: f"k {c[0]} {c[1]}"
        ),
        st.tuples(st.sampled_from(texts), st.sampled_from(texts)).map(lambda c: f"k BETWEEN {c[0]} AND {c[1]}"),
        st.integers(0, 3).map(lambda n: f"j = {n}"),
        st.integers(0, 3).map(lambda n: f"{n} < j"),
        st.sampled_from(["k IS NULL", "j IS NULL", "s > 2", "j + 1 = 2"]),
    )
    # All of the key, so that only one order is right.
    orders = st.sampled_from(
        ["k, j", "k DESC, j DESC", "j, k", "j DESC, k DESC", "k, j DESC", "s, k, j", "k NULLS LAST, j"]
    )
    with headrace.connect(engine="native") as db:
        db.sql(f"CREATE TABLE t (k {type}, j INT, v INT)")
        db.sql("CREATE MATERIALIZED VIEW v AS SELECT j, k, sum(v) AS s FROM t GROUP BY k, j")
        db.sql("CREATE MATERIALIZED VIEW w AS SELECT j, k, sum(v) AS s FROM t GROUP BY k, j HAVING sum(v) > 1")
        db.sql("CREATE VIEW plain AS SELECT j, k, sum(v) AS s FROM t GROUP BY k, j")
        numbers = iter(range(1_000_000))

        @settings(max_examples=examples(6))
        @given(
            st.lists(st.tuples(st.sampled_from([*values, None]), st.sampled_from([None, 0, 1, 2])), max_size=6),
            st.booleans(),
            st.lists(conditions, max_size=3),
            orders,
            st.sampled_from([0, 1, 2, 5]),
        )
        def hold(rows: list[Any], gone: bool, wheres: list[str], order: str, limit: int) -> None:
            if gone:
                db.sql("DELETE FROM t WHERE j = 1")
            db.insert("t", [(*row, next(numbers) % 5) for row in rows])
            where = f" WHERE {' AND '.join(wheres)}" if wheres else ""
            for view in ("v", "w"):
                having = where if view == "v" else f"{where} {'AND' if where else 'WHERE'} s > 1"
                text = f"SELECT * FROM {view}{where}"
                assert told(db.sql(text).rows()) == told(db.sql(f"SELECT * FROM plain{having}").rows()), text
                total = f"SELECT count(*), sum(s) FROM {view}{where}"
                assert db.sql(total).rows() == db.sql(f"SELECT count(*), sum(s) FROM plain{having}").rows(), total
                ended = f" ORDER BY {order}" + (f" LIMIT {limit}" if limit else "")
                found = db.sql(f"SELECT * FROM {view}{where}{ended}").rows()
                wanted = db.sql(f"SELECT * FROM plain{having}{ended}").rows()
                assert list(map(repr, found)) == list(map(repr, wanted)), (where, ended)

        hold()
    assert any(count is not None for count in spans)


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect(engine="native") as db:
        db.sql("CREATE TABLE t (id INT, k STRING, j INT, v INT)")
        db.insert("t", [(i, "abcdefgh"[i % 8], i // 8, i) for i in range(800)])
        db.sql("CREATE MATERIALIZED VIEW v AS SELECT k, j, sum(v) AS s FROM t GROUP BY k, j")
        db.sql("CREATE MATERIALIZED VIEW w AS SELECT j AS b, k AS a, sum(v) / 2 AS half FROM t GROUP BY k, j")
        yield db


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("SELECT * FROM v WHERE k = 'c'", 100),
        ("SELECT * FROM v WHERE k = 'c' AND j BETWEEN 10 AND 19", 10),
        ("SELECT s FROM v WHERE k = 'c' AND j > 10 AND j < 20 AND 15 <= j", 5),
        ("SELECT s FROM v WHERE j = 3", 8),
        ("SELECT s FROM v WHERE k >= 'h'", 100),
        ("SELECT * FROM w WHERE a = 'c' AND half > 3", 100),
        ("SELECT * FROM v ORDER BY k, j LIMIT 7", 7),
        ("SELECT * FROM v ORDER BY k DESC LIMIT 7 OFFSET 2", 9),
        ("SELECT j, s FROM v WHERE k = 'd' ORDER BY j DESC LIMIT 4", 4),
        ("SELECT b FROM w WHERE a = 'd' ORDER BY b LIMIT 4", 4),
        ("SELECT count(*) FROM v WHERE k = 'd' AND j < 5", 5),
    ],
)
def test_only_the_groups_of_the_range_are_read(db: Database, spans: list[int | None], text: str, count: int) -> None:
    first = db.sql(text).rows()
    assert spans == [count]
    assert db.sql(text).rows() == first


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM v WHERE s > 3",
        "SELECT * FROM v WHERE k = 'c' OR j = 3",
        "SELECT * FROM v ORDER BY s LIMIT 3",
        "SELECT * FROM v ORDER BY k, j DESC LIMIT 3",
        "SELECT * FROM (SELECT * FROM v ORDER BY s LIMIT 30) WHERE k = 'c'",
    ],
)
def test_what_is_no_range_is_read_whole(db: Database, spans: list[int | None], text: str) -> None:
    db.sql(text)
    assert not any(spans)


def test_an_order_follows_groups_that_come_and_go(db: Database, spans: list[int | None]) -> None:
    text = "SELECT j FROM v WHERE k = 'c' AND j >= 95 ORDER BY j"
    assert db.sql(text).rows() == [(95,), (96,), (97,), (98,), (99,)]
    db.sql("DELETE FROM t WHERE j IN (96, 98)")
    db.insert("t", [(0, "c", 400, 1), (0, "c", 300, 1), (0, "b", 300, 1)])
    assert db.sql(text).rows() == [(95,), (97,), (99,), (300,), (400,)]
    db.sql("DELETE FROM t WHERE j < 400")
    assert db.sql(text).rows() == [(400,)]
    assert db.sql("SELECT k, j FROM v ORDER BY k DESC LIMIT 2").rows() == [("c", 400)]
    assert spans[0] == 5
    assert spans[1] == 5
