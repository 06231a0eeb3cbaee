"""What lies below a materialized view: other views, and tables whose columns change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace import Database
from headrace.errors import HeadraceError


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect(None, engine="native") as opened:
        define(opened)
        yield opened


def define(db: Database) -> None:
    db.sql("CREATE TABLE t (a INT, g STRING, d DOUBLE)")
    db.sql("INSERT INTO t VALUES (1, 'x', 0.1D), (2, 'x', 0.2D), (3, 'y', 0.5D)")
    db.sql("CREATE MATERIALIZED VIEW low AS SELECT g, sum(a) AS s, sum(d) AS d FROM t GROUP BY g")
    db.sql("CREATE VIEW between AS SELECT g, s FROM low WHERE s > 2")
    db.sql("CREATE MATERIALIZED VIEW top AS SELECT count(*) AS n, sum(s) AS s FROM between")


def refused(db: Database, statement: str) -> str:
    before = db.sql("SELECT * FROM top").rows()
    with pytest.raises(HeadraceError) as error:
        db.sql(statement)
    assert db.sql("SELECT * FROM top").rows() == before
    return error.value.condition


def test_a_view_over_views_shows_the_epoch_they_show(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db", engine="native") as db:
        define(db)
        assert db.sql("SELECT * FROM top").rows() == [(2, 6)]
        with db.batch():
            db.sql("INSERT INTO t VALUES (5, 'z', 1D)")
            assert db.sql("SELECT n, (SELECT count(*) FROM between) AS k FROM top").rows() == [(3, 3)]
            db.sql("DELETE FROM t WHERE a = 1")
        assert db.sql("SELECT * FROM top").rows() == [(2, 8)]
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("UPDATE t SET a = 9 WHERE g = 'x'")
        assert db.sql("SELECT * FROM top").rows() == [(3, 17)]
        assert sorted(db.sql("SELECT g, s FROM low").rows()) == [("x", 9), ("y", 3), ("z", 5)]


def test_what_is_read_stays_and_nothing_reads_itself(db: Database) -> None:
    assert refused(db, "DROP VIEW low") == "RELATION_IN_USE"
    assert refused(db, "DROP VIEW between") == "RELATION_IN_USE"
    assert refused(db, "DROP TABLE t") == "RELATION_IN_USE"
    assert refused(db, "CREATE OR REPLACE VIEW between AS SELECT 'g' AS g, s FROM top") == "RECURSIVE_VIEW"
    assert refused(db, "CREATE OR REPLACE MATERIALIZED VIEW low AS SELECT * FROM top") == "RECURSIVE_VIEW"
    db.sql("DROP TABLE t CASCADE")
    with pytest.raises(HeadraceError, match="TABLE_OR_VIEW_NOT_FOUND"):
        db.sql("SELECT * FROM top")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a, rand() AS r FROM t",
        "SELECT * FROM t WHERE a IN (SELECT a FROM t WHERE rand() > 0.5)",
        "WITH r AS (SELECT current_timestamp() AS now) SELECT t.a FROM t, r",
        "SELECT a FROM odd",
        "SELECT a FROM t WHERE EXISTS (SELECT * FROM odder)",
    ],
)
def test_what_gives_something_else_each_time_is_refused_wherever_it_stands(db: Database, query: str) -> None:
    db.sql("CREATE VIEW odd AS SELECT a, uuid() AS u FROM t")
    db.sql("CREATE VIEW odder AS SELECT a FROM odd WHERE a > 1")
    assert refused(db, f"CREATE MATERIALIZED VIEW v AS {query}") == "NONDETERMINISTIC_VIEW"


def test_columns_come_go_and_are_renamed_below_a_view(db: Database) -> None:
    db.sql("ALTER TABLE t ADD COLUMN more INT")
    db.sql("INSERT INTO t VALUES (6, 'q', 2D, 4)")
    db.sql("ALTER TABLE t RENAME COLUMN a TO b")
    db.sql("INSERT INTO t VALUES (7, 'q', 2D, 4)")
    assert db.sql("SELECT * FROM top").rows() == [(3, 19)]
    db.sql("ALTER TABLE t DROP COLUMN more")
    assert refused(db, "ALTER TABLE t DROP COLUMN g") == "RELATION_IN_USE"
    db.sql("ALTER TABLE t RENAME TO u")
    db.sql("UPDATE u SET b = b + 1")
    db.sql("DELETE FROM u WHERE g = 'y'")
    assert db.sql("SELECT * FROM top").rows() == [(2, 20)]
    assert sorted(db.sql("SELECT g, s FROM low").rows()) == [("q", 15), ("x", 5)]


@pytest.mark.spark
def test_what_a_sum_of_38_digits_refuses_it_names(spark: object) -> None:
    """A statement whose own rows are too much for a sum of a view changes nothing; without the view it is in."""
    most = "9" * 38
    with headrace.connect(None, spark=spark) as db:
        db.sql("CREATE TABLE w (n INT, d DECIMAL(38,0))")
        db.sql("CREATE MATERIALIZED VIEW sums AS SELECT n, sum(d) AS s FROM w GROUP BY n")
        db.sql(f"INSERT INTO w VALUES (1, {most})")
        db.sql(f"INSERT INTO w VALUES (1, {most})")
        with pytest.raises(HeadraceError, match="ARITHMETIC_OVERFLOW"):
            db.sql("SELECT * FROM sums")
        with pytest.raises(HeadraceError, match="materialized view sums") as error:
            db.sql("DELETE FROM w")
        assert error.value.condition == "ARITHMETIC_OVERFLOW"
        assert db.sql("SELECT count(*) FROM w").rows() == [(2,)]
        db.sql("DROP VIEW sums")
        db.sql("DELETE FROM w")
        assert db.sql("SELECT count(*) FROM w").rows() == [(0,)]


@pytest.mark.spark
def test_what_a_query_in_sparks_own_syntax_reads_is_known(spark: object) -> None:
    """Headrace does not read such a text itself, and yet nothing it names is dropped beneath it."""
    counting = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT t.id, r.n FROM t, r"
    with headrace.connect(None, spark=spark) as db:
        db.sql("CREATE TABLE t (id INT)")
        for kind in ("VIEW", "MATERIALIZED VIEW"):
            db.sql(f"CREATE {kind} counted AS {counting}")
            with pytest.raises(HeadraceError, match="counted"):
                db.sql("DROP TABLE t")
            db.sql("ALTER TABLE t RENAME TO u")
            db.sql("INSERT INTO u VALUES (1)")
            assert db.sql("SELECT count(*) AS n FROM counted").rows()[0][0] >= 3
            db.sql("ALTER TABLE u RENAME TO t")
            db.sql(f"DROP {kind} counted")
