"""A kept relation that a program brings along lives as views and samples do: one folder, one kind, one statement."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peak
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import headrace
from headrace import Database
from headrace.catalog import KINDS
from headrace.errors import CatalogError
from headrace.keep.family import FAMILIES
from headrace.sql.statements import CREATES

ROWS = [("a", 3), ("b", 11), ("c", None), ("d", 7)]
FOLDER = Path(__file__).parent


@pytest.fixture(autouse=True)
def brought_along() -> Iterator[None]:
    registers: tuple[dict[str, Any], ...] = (KINDS, CREATES, FAMILIES)
    before = [dict(register) for register in registers]
    peak.bring_along()
    yield
    for register, known in zip(registers, before, strict=True):
        register.clear()
        register.update(known)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


def make(path: Path, **given: Any) -> Database:
    db = headrace.connect(path, **given)
    db.sql("CREATE STREAM s (k STRING, n INT)")
    db.sql("CREATE VIEW v AS SELECT count(*) AS c FROM s")
    assert db.sql("CREATE PEAK p OF s (n)").message == "peak p created"
    return db


def peak_of(db: Database) -> list[tuple[object, ...]]:
    return db.sql("SELECT * FROM p").rows()


def test_it_is_fed_beside_views_and_read_in_any_query(path: Path) -> None:
    with make(path) as db:
        assert peak_of(db) == []
        db.insert("s", ROWS)
        assert db.sql("SELECT peak + c AS x FROM p, v").rows() == [(15,)]
        db.sql("INSERT INTO s VALUES ('e', 20)")
        assert peak_of(db) == [(20,)]
        assert [row[0] for row in db.sql("DESCRIBE p").rows()] == ["peak", "# kind"]
        with pytest.raises(CatalogError, match=r"RELATION_IN_USE.*p"):
            db.sql("DROP STREAM s")
        with pytest.raises(CatalogError, match="CANNOT_INSERT_INTO_PEAK"):
            db.insert("p", [(1,)])


def test_its_rows_are_merged_as_they_pile_up(path: Path) -> None:
    with make(path, compact_rows=4) as db:
        for n in range(30):
            db.insert("s", [("a", n)])
        state = db.catalog.find("p").owns["peak"]
        with db.runtime.store.read() as snapshot:
            assert snapshot.rows(state) < 30
        assert peak_of(db) == [(29,)]


def test_it_is_reopened_restarted_and_dropped(path: Path) -> None:
    with make(path) as db:
        db.insert("s", ROWS)
    with headrace.connect(path) as db:
        assert peak_of(db) == [(11,)]
        db.insert("s", [("x", 12)])
        assert peak_of(db) == [(12,)]
        db.sql("REFRESH p RESTART")
        assert peak_of(db) == []
        db.insert("s", [("x", 2)])
        assert peak_of(db) == [(2,)]
    with headrace.connect(path) as db:
        assert peak_of(db) == [(2,)]
        owned = db.catalog.find("p").owns.values()
        assert db.sql("DROP PEAK p").message == "peak p dropped"
        with db.runtime.store.read() as snapshot:
            assert not {str(ref) for ref in owned} & set(snapshot.relations())
        db.insert("s", ROWS)
        assert db.sql("SELECT * FROM v").rows() == [(10,)]


def test_nothing_is_lost_when_its_process_is_killed(path: Path) -> None:
    make(path).close()
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(FOLDER)!r})
import peak, headrace
peak.bring_along()
db = headrace.connect({str(path)!r})
db.insert("s", [("a", 41)])
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=500).returncode == -9
    with headrace.connect(path) as db:
        assert (peak_of(db), db.sql("SELECT * FROM v").rows()) == ([(41,)], [(1,)])


def test_a_program_that_did_not_bring_it_is_told(path: Path) -> None:
    make(path).close()
    program = f"import headrace; headrace.connect({str(path)!r})"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=500)
    assert "RELATION_KIND_UNKNOWN" in ran.stderr and "p is a peak" in ran.stderr


def test_it_moves_with_its_database(path: Path, tmp_path: Path) -> None:
    with make(path) as db:
        db.insert("s", ROWS)
        ticket = db.export(tmp_path / "ticket")
    with headrace.open(ticket, tmp_path / "there") as there:
        assert peak_of(there) == [(11,)]
        there.insert("s", [("z", 99)])
        assert peak_of(there) == [(99,)]


@pytest.mark.spark
def test_tasks_and_spark_sql_leave_the_same(path: Path, tmp_path: Path, spark: SparkSession) -> None:
    cloudpickle.register_pickle_by_value(peak)  # Spark's workers have no such module
    try:
        lines = "\n".join(f"k{n},{n * 37 % 1001}" for n in range(5_000))
        (tmp_path / "rows.csv").write_text(f"k,n\n{lines}\n")
        for engine in ("native", "tasks", "spark"):
            with make(tmp_path / engine, engine=engine, spark=spark) as db:
                db.copy("s", tmp_path / "rows.csv", header=True)
                db.insert("s", spark.createDataFrame([("x", 500)], "k STRING, n INT"))
                assert peak_of(db) == [(1_000,)], engine
    finally:
        cloudpickle.unregister_pickle_by_value(peak)
