"""A definition means what its names meant when it was made: a rename below it is followed, a new column is no news."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import headrace
from headrace import Database
from headrace.catalog import Catalog, Table
from headrace.types import STRING, Field


@pytest.fixture
def db(tmp_path: Path) -> Database:
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("CREATE STREAM s (k INT, n INT)")
        db.sql("CREATE TABLE t (k INT PRIMARY KEY, name STRING)")
        db.sql("INSERT INTO t VALUES (1, 'one'), (2, 'two')")
        db.sql("CREATE VIEW all_of_t AS SELECT * FROM t")
        db.sql("CREATE VIEW v AS SELECT k, sum(n) AS n FROM s GROUP BY k")
        db.sql(
            "CREATE VIEW named AS SELECT t.name, g.n FROM (SELECT k, sum(n) AS n FROM s GROUP BY k) g JOIN t USING (k)"
        )
        db.sql("CREATE SAMPLE few OF s SIZE 10 WHERE n > 1")
        db.insert("s", [(1, 5), (2, 7), (1, 1)])
        yield db


def altered(db: Database) -> None:
    """As a rename of two relations will leave it: their rows stay where they are."""
    catalog: Catalog = db.catalog.renamed("t", "people").renamed("s", "flow")
    db.runtime.catalog = catalog
    db.runtime.writer_version = catalog.version
    db.keeper._kept.clear()
    db.keeper._owners.clear()


def answers(db: Database) -> list[list[tuple[object, ...]]]:
    texts = ("SELECT * FROM all_of_t", "SELECT * FROM v", "SELECT * FROM named", "SELECT k, n FROM few")
    return [sorted(db.sql(text).rows()) for text in texts]


def test_what_reads_a_renamed_relation_goes_on_reading_it(db: Database) -> None:
    before = answers(db)
    altered(db)
    assert answers(db) == before
    assert db.sql("SELECT count(*) FROM people").rows() == [(2,)]
    with pytest.raises(headrace.HeadraceError, match="TABLE_OR_VIEW_NOT_FOUND"):
        db.sql("SELECT * FROM t")


def test_inserts_into_a_renamed_stream_reach_what_is_kept_of_it(db: Database) -> None:
    altered(db)
    db.insert("flow", [(2, 3)])
    assert sorted(db.sql("SELECT * FROM v").rows()) == [(1, 6), (2, 10)]
    assert sorted(db.sql("SELECT * FROM named").rows()) == [("one", 6), ("two", 10)]
    assert len(db.sql("SELECT * FROM few").rows()) == 3


def test_what_is_kept_goes_on_under_another_name(db: Database) -> None:
    db.sql("CREATE MATERIALIZED VIEW m AS SELECT name, count(*) AS n FROM t GROUP BY name")
    db.sql("CREATE VIEW above AS SELECT sum(n) AS n FROM v")
    for old, new in {"v": "sums", "m": "names", "above": "total"}.items():
        db.sql(f"ALTER VIEW {old} RENAME TO {new}")
    db.insert("s", [(2, 3)])
    db.sql("UPDATE t SET name = 'one'")
    assert sorted(db.sql("SELECT * FROM sums").rows()) == [(1, 6), (2, 10)]
    assert db.sql("SELECT * FROM names").rows() == [("one", 2)]
    assert db.sql("SELECT * FROM total").rows() == [(16,)]
    db.sql("DROP TABLE t CASCADE")
    db.sql("DROP STREAM s CASCADE")
    assert not db.catalog.relations


def test_dropping_asks_by_what_it_is_called_now(db: Database) -> None:
    altered(db)
    with pytest.raises(headrace.HeadraceError, match="RELATION_IN_USE"):
        db.sql("DROP TABLE people")


def test_a_renamed_column_is_read_under_its_old_name(db: Database) -> None:
    """Of a plan: its leaf reads the column as it is stored now, and puts it out as the text calls it."""
    people = db.catalog.find("t")
    assert isinstance(people, Table)
    columns = (people.columns[0], replace(people.columns[1], name="title"), Field("age", STRING, id=3))
    catalog = db.catalog.with_relation(replace(people, columns=columns))
    seen = catalog.as_read_by(catalog.get("all_of_t")).get("t")
    assert [c.name for c in seen.columns] == ["k", "name"] and seen.stored == ("k", "title")
    assert catalog.as_read_by(catalog.get("v")) is catalog, "what it reads is as it was"


def test_numbers_are_never_given_again(tmp_path: Path) -> None:
    numbers: list[int] = []
    for _ in range(3):
        with headrace.connect(tmp_path / "db") as db:
            db.sql("CREATE STREAM s (k INT)")
            db.sql("CREATE VIEW v AS SELECT count(*) AS n FROM s")
            numbers += [r.number for r in db.catalog.relations.values()]
            numbers += [ref for r in db.catalog.relations.values() for ref in r.owns.values()]
            db.sql("DROP STREAM s CASCADE")
    assert len(set(numbers)) == len(numbers) == 9
