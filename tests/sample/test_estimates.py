"""estimate(): what a sample says of all rows, and how far off it may be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import headrace
from headrace import Database, HeadraceError


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with headrace.connect(tmp_path / "db", durability="none") as db:
        db.sql("CREATE STREAM s (run INT, g INT, x DOUBLE)")
        yield db


def test_intervals_hold_the_truth_about_as_often_as_they_say(db: Database) -> None:
    """The groups of one sample are as many runs over the same values."""
    runs, rows = 300, 200
    rng = np.random.default_rng(2)
    values = rng.gamma(4.0, 3.0, rows)
    db.sql("CREATE SAMPLE r OF s SIZE 40 GROUP BY run SEED 3")
    run = np.repeat(np.arange(runs, dtype=np.int32), rows)
    x = pa.array(np.tile(values, runs))
    db.insert("s", pa.table({"run": run, "g": run, "x": x}))
    asked = (
        "SELECT run, estimate(count(*)) AS n, estimate(sum(x)) AS total, estimate(avg(x)) AS mean FROM r{} GROUP BY run"
    )
    for where, passed in (("", values), (" WHERE x > 12", values[values > 12])):
        found = db.sql(asked.format(where)).pandas()
        truth = {"n": len(passed), "total": passed.sum(), "mean": passed.mean()}
        assert len(found) == runs
        for name, true in truth.items():
            inside = ((found[f"{name}_low"] - 1e-9 <= true) & (true <= found[f"{name}_high"] + 1e-9)).mean()
            assert inside > 0.88, (where, name)
            assert (found[f"{name}_high"] - found[f"{name}_low"]).mean() < true or not where
            assert found[name].mean() == pytest.approx(true, rel=0.04)
        if where:
            assert ((found["n_low"] <= truth["n"]) & (truth["n"] <= found["n_high"])).mean() < 0.995, "too wide"


def test_of_all_rows_it_is_exact(db: Database) -> None:
    db.sql("CREATE SAMPLE r OF s SIZE 40")
    db.insert("s", [(0, i % 2, float(i)) for i in range(30)])
    row = db.sql("SELECT estimate(count(*)), estimate(count(x)) AS c, estimate(sum(x)) AS t FROM r WHERE g = 1")
    assert row.columns[:3] == ["estimate(count(1))", "estimate(count(1))_low", "estimate(count(1))_high"]
    assert row.rows() == [pytest.approx((15, 15, 15, 15, 15, 15, 225, 225, 225))]
    assert db.sql("SELECT estimate(sum(x)) / estimate(count(*)) AS mean FROM r").rows() == [pytest.approx((14.5,))]
    assert db.sql("SELECT g FROM r GROUP BY g HAVING estimate(count(*)) > 3 ORDER BY estimate(sum(x)) DESC").rows() == [
        (1,),
        (0,),
    ]
    nothing = db.sql("SELECT estimate(count(*)) AS n, estimate(sum(x)) AS t FROM r WHERE x < 0").rows()
    assert nothing == [(0.0, 0.0, None, None, None, None)]
    db.sql("CREATE VIEW shown AS SELECT estimate(count(*)) AS n FROM r")
    assert db.sql("SELECT n FROM shown").rows() == [(30.0,)]


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("SELECT estimate(count(*)) FROM t", "SAMPLE_WITHOUT_CARDINALITY"),
        ("SELECT estimate(count(*)) FROM (SELECT * FROM r)", "SAMPLE_WITHOUT_CARDINALITY"),
        ("SELECT estimate(count(*)) FROM r JOIN t ON r.g = t.g", "SAMPLE_WITHOUT_CARDINALITY"),
        ("SELECT estimate(count(*)) FROM r TABLESAMPLE RESERVOIR (3 ROWS)", "SAMPLE_WITHOUT_CARDINALITY"),
        ("WITH r AS (SELECT * FROM t) SELECT estimate(count(*)) FROM r", "SAMPLE_WITHOUT_CARDINALITY"),
        ("SELECT estimate(count(*))", "SAMPLE_WITHOUT_CARDINALITY"),
        ("SELECT estimate(max(x)) FROM r", "INVALID_ESTIMATE"),
        ("SELECT estimate(count(DISTINCT x)) FROM r", "INVALID_ESTIMATE"),
        ("SELECT estimate(x) FROM r", "INVALID_ESTIMATE"),
        ("SELECT estimate() FROM r", "INVALID_ESTIMATE"),
        ("SELECT estimate(sum(nothing)) FROM r", "UNRESOLVED_COLUMN"),
        ("SELECT estimate(count(*)) FROM by_g", "ESTIMATE_NOT_GROUPED"),
        ("SELECT run, estimate(count(*)) FROM by_g GROUP BY run", "ESTIMATE_NOT_GROUPED"),
    ],
)
def test_what_is_refused(db: Database, text: str, condition: str) -> None:
    db.sql("CREATE TABLE t (g INT)")
    db.sql("CREATE SAMPLE r OF s SIZE 10")
    db.sql("CREATE SAMPLE by_g OF s SIZE 10 GROUP BY g")
    with pytest.raises(HeadraceError) as raised:
        db.sql(text)
    assert raised.value.condition == condition and raised.value.hint
