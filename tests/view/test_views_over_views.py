"""A continuous view may read other continuous views beside its own stream: one snapshot serves them all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.database import Database
from headrace.errors import CatalogError, ViewRefused


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect(engine="native") as opened:
        define(opened)
        yield opened


def define(db: Database) -> None:
    db.sql("CREATE STREAM used (part STRING, n INT)")
    db.sql("CREATE STREAM bought (part STRING, n INT)")
    db.sql("CREATE TABLE part (part STRING PRIMARY KEY, least INT)")
    db.sql("CREATE VIEW usage AS SELECT part, sum(n) AS n FROM used GROUP BY part")
    db.sql("CREATE VIEW seldom AS SELECT part, n FROM usage WHERE n < 10")
    db.sql(
        "CREATE VIEW stock AS SELECT b.part, b.n - coalesce(u.n, 0) AS left FROM "
        "(SELECT part, sum(n) AS n FROM bought GROUP BY part) b LEFT JOIN usage u ON u.part = b.part"
    )
    db.sql(
        "CREATE VIEW low AS SELECT s.part, s.left, u.k FROM stock s JOIN part p ON s.part = p.part "
        "JOIN (SELECT part, count(*) AS k FROM used GROUP BY part) u ON u.part = s.part WHERE s.left < p.least"
    )


def rows(db: Database, view: str) -> list[tuple[object, ...]]:
    return sorted(db.sql(f"SELECT * FROM {view}").rows())


def test_each_reads_the_other_as_of_the_same_commit(db: Database) -> None:
    db.insert("part", [("nut", 5), ("bolt", 100)])
    db.insert("bought", [("nut", 9), ("bolt", 9)])
    assert rows(db, "stock") == [("bolt", 9), ("nut", 9)] and rows(db, "low") == []
    db.insert("used", [("nut", 6), ("bolt", 1)])
    assert rows(db, "stock") == [("bolt", 8), ("nut", 3)]
    assert rows(db, "low") == [("bolt", 8, 1), ("nut", 3, 1)]
    assert rows(db, "seldom") == [("bolt", 1), ("nut", 6)]
    done = db.keeper.answers.evaluations
    assert rows(db, "low") == [("bolt", 8, 1), ("nut", 3, 1)] and db.keeper.answers.evaluations == done, (
        "nothing changed"
    )
    db.insert("bought", [("nut", 90)])
    assert rows(db, "low") == [("bolt", 8, 1)], "a change two views down shows"


def test_a_view_is_not_joined_to_rows_of_a_stream(db: Database) -> None:
    with pytest.raises(ViewRefused) as caught:
        db.sql("CREATE VIEW x AS SELECT count(*) FROM bought b JOIN usage u ON u.part = b.part")
    assert caught.value.condition == "STREAM_JOIN_NOT_GROUPED" and "usage" in caught.value.message


def test_dropped_from_the_top(db: Database) -> None:
    with pytest.raises(CatalogError, match="seldom, stock"):
        db.sql("DROP VIEW usage")
    for view in ("low", "stock", "seldom", "usage"):
        db.sql(f"DROP VIEW {view}")


def test_told_apart_by_explain_and_describe(db: Database) -> None:
    assert ("# read at each query", "stock", "at the same commit") in db.sql("DESCRIBE low").rows()
    query = "SELECT s.left FROM stock s, (SELECT max(n) AS m FROM used)"
    plan = [r[0] for r in db.sql(f"EXPLAIN CREATE VIEW x AS {query}").rows()]
    assert any(line.startswith("Each query (reads stock): merge the states") for line in plan)


def test_reopened(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db", engine="native") as db:
        define(db)
        db.insert("part", [("nut", 5)])
        db.insert("bought", [("nut", 9)])
        db.insert("used", [("nut", 6)])
    with headrace.connect(tmp_path / "db", engine="native") as db:
        assert rows(db, "low") == [("nut", 3, 1)]
        db.insert("used", [("nut", 1)])
        assert rows(db, "low") == [("nut", 2, 2)]
