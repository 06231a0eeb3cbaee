"""What earlier versions wrote opens and answers as before, and goes on.

Each archive beside this file was written by ``make.py`` as it stood then.
"""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import make
import pytest

import headrace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
ARCHIVES = sorted(HERE.glob("*.tar.xz"))
DRAWN = ("each",)
"""Samples without a seed: two databases filled alike draw other rows."""


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def older(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path


def _answers(older: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((older / "answers.json").read_text())
    return found


def _check(db: headrace.Database, wanted: dict[str, Any], drawn: bool) -> None:
    found = make.answers(db)
    assert found.keys() == wanted.keys()
    for name, rows in wanted.items():
        if name in DRAWN and not drawn:
            assert len(found[name]) == len(rows), name
        else:
            assert _told(found[name]) == _told(rows), name


def _told(rows: list[str]) -> list[str]:
    """Rows as text, doubles to 12 digits: threads add them up in any order."""
    return [
        re.sub(r"(?<![\w'.])-?\d+\.\d+(?:e[+-]?\d+)?(?![\w'.])", lambda m: f"{float(m[0]):.12g}", row) for row in rows
    ]


def _goes_on(db: headrace.Database) -> None:
    """Rows come in as they would have, into old states and new ones."""
    [(before, parts)] = db.sql("SELECT n, parts FROM whole").rows()
    db.insert("sales", make.sales(10_000, 250))
    assert db.sql("SELECT n, parts FROM whole").rows() == [
        (before + 250, parts + sum(i % 11 for i in range(10_000, 10_250)))
    ]
    assert db.sql("SELECT sum(n) FROM by_city").rows() == [(before + 250,)]
    assert db.sql("SELECT sum(n) FROM both WHERE k < 9").rows()[0][0] > 0
    db.insert("odd Names", make.odd_rows(30, 3))
    assert db.sql("SELECT sum(`how many`) FROM `odd View`").rows() == [(33,)]
    if db.catalog.find("changed") is not None:
        db.sql("UPDATE changed SET b = 3 WHERE id = -1")
        db.sql("DELETE FROM changed WHERE id < 100")
        groups = "SELECT b % 4 AS g, count(*) AS n, sum(b) AS s, min(id) AS least FROM changed GROUP BY b % 4"
        assert sorted(db.sql("SELECT * FROM followed").rows()) == sorted(db.sql(groups).rows())
        last = db.sql("SELECT max(version) FROM headrace.versions").rows()[0][0]
        left = f"SELECT count(*) FROM changed VERSION AS OF {last - 1} WHERE id = -1 AND b = 3"
        assert db.sql(left).rows() == [(1,)]
        [(seen,)] = db.sql("SELECT sum(n) FROM arriving").rows()
        db.sql("DELETE FROM parts WHERE id = 0")
        db.insert("sales", make.sales(0, 11))
        assert db.sql("SELECT sum(n) FROM arriving").rows() == [(seen + 9,)]
        db.sql("INSERT INTO parts VALUES (0, 'part 0', 0)")
        before += 11
    if db.catalog.find("of_parts") is not None:
        joined = (
            "SELECT p.name, count(*) AS n, sum(c.b) AS s, min(c.id) AS least FROM changed c JOIN parts p ON c.b = p.id"
        )
        assert sorted(db.sql("SELECT * FROM of_parts").rows()) == sorted(db.sql(f"{joined} GROUP BY p.name").rows())
        placed = "SELECT id, row_number() OVER (PARTITION BY name ORDER BY id) AS place FROM parts"
        assert sorted(db.sql("SELECT * FROM placed").rows()) == sorted(db.sql(placed).rows())
    db.sql("CREATE VIEW later AS SELECT city, count(*) AS n FROM sales GROUP BY city")
    db.insert("sales", make.sales(20_000, 5))
    assert db.sql("SELECT sum(n) FROM later").rows() == [(5,)]
    assert db.sql("SELECT rows_seen FROM headrace.samples WHERE name = 'few'").rows() == [(before + 255,)]
    db.sql("DROP VIEW joined")
    db.sql("DROP STREAM `odd Names` CASCADE")
    before = db.sql("SELECT * FROM named").rows()
    assert ("late part",) not in db.sql("SELECT name FROM named").rows()
    assert any(what == "# read once" for what, *_ in db.sql("DESCRIBE named").rows()), "frozen, as it was made"
    db.insert("sales", make.sales(9, 11))
    after = db.sql("SELECT * FROM named").rows()
    assert before != after and ("late part",) not in db.sql("SELECT name FROM named").rows()
    db.sql("REFRESH VIEW named RESTART")
    db.insert("sales", make.sales(9, 11))
    assert ("late part",) in db.sql("SELECT name FROM named").rows()


@pytest.mark.parametrize("name", ["closed.hr", "killed.hr"])
def test_a_database_opens_answers_and_goes_on(older: Path, name: str) -> None:
    wanted = _answers(older)["database"]
    for _ in range(2):  # what the first opening brings up to date is there at the second
        with headrace.connect(older / name) as db:
            _check(db, wanted, drawn=name == "closed.hr")
    with headrace.connect(older / name) as db:
        _goes_on(db)
    with headrace.connect(older / name) as db:
        assert db.sql("SELECT sum(n) FROM later").rows() == [(27,)]


def test_an_exported_database_opens_and_goes_on(older: Path) -> None:
    with headrace.open(older / "export", older / "moved.hr") as db:
        _check(db, _answers(older)["database"], drawn=True)
        _goes_on(db)


@pytest.mark.spark
def test_a_ticket_of_a_query_is_resumed(spark: SparkSession, older: Path) -> None:
    written_by = json.loads((older / "ticket" / "ticket.json").read_text())["ticket"]["spark"]
    if written_by != spark.version:
        pytest.skip(f"the ticket is of Spark {written_by}, and this is {spark.version}: plans differ")
    resumed = headrace.resume(spark, str(older / "ticket"))
    assert sorted(map(repr, resumed.result().rows())) == _answers(older)["query"]


@pytest.mark.spark
def test_a_state_only_spark_can_finish_is_as_it_was(spark: SparkSession, older: Path) -> None:
    with headrace.connect(older / "closed.hr", spark=spark) as db:
        found = {city: (parts, middle) for city, parts, middle in db.sql("SELECT * FROM kinds").rows()}
        [(count,)] = db.sql("SELECT n FROM whole").rows()
    rows = make.sales(0, count).to_pylist()
    for city, (parts, middle) in found.items():
        mine = [row for row in rows if row["city"] == city]
        weights = sorted(row["weight"] for row in mine if row["weight"] is not None)
        half = (len(weights) - 1) / 2
        assert parts == len({row["part"] for row in mine})
        assert middle == (weights[int(half)] + weights[int(half + 0.5)]) / 2
    assert len(found) == 5
