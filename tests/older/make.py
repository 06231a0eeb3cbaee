"""Writes what this Headrace leaves behind, for later ones to open: ``python tests/older/make.py NAME``.

NAME.tar.xz holds a database that was closed, one whose process was killed, an exported one, a query's ticket, and
``answers.json``: what each relation held. ``test_older.py`` opens every archive there is. Make a new one before a
change of what is written, never over an old one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace

HERE = Path(__file__).parent
QUERY = "SELECT k % 7 AS g, count(*) AS n, sum(k) AS total FROM (SELECT id AS k FROM range(0, 5000, 1, 4)) GROUP BY ALL"

DEFINITIONS = [
    "CREATE STREAM sales (at TIMESTAMP, city STRING, part INT, price DECIMAL(12,2), weight DOUBLE, big BIGINT)",
    "CREATE STREAM `odd Names` (`a b` INT, `select` STRING, tags ARRAY<STRING>, place STRUCT<x: INT, y: STRING>)"
    " WITH (capacity = 4096, timeout = '1 second', overflow = 'overwrite')",
    "CREATE TABLE parts (id INT PRIMARY KEY, name STRING NOT NULL, price DECIMAL(10,2))",
    "CREATE TABLE plain (a INT, b STRING)",
    "CREATE TABLE large (id BIGINT, v DOUBLE)",
    "CREATE VIEW by_city AS SELECT city, count(*) AS n, sum(price) AS total, avg(price) AS mean, min(at) AS first,"
    " max(at) AS last, var_pop(weight) AS spread, avg(weight) AS heavy, bool_or(price > 90) AS dear"
    " FROM sales GROUP BY city",
    "CREATE VIEW whole AS SELECT count(*) AS n, sum(part) AS parts, sum(big) AS bigs, max(price) AS dearest FROM sales",
    "CREATE VIEW named WITH (tables = 'frozen') AS SELECT p.name, sum(s.price) AS total FROM sales s"
    " JOIN parts p ON s.part = p.id GROUP BY p.name",
    "CREATE VIEW above AS SELECT p.name, t.n FROM (SELECT part, count(*) AS n FROM sales GROUP BY part) t"
    " LEFT JOIN parts p ON p.id = t.part",
    "CREATE VIEW kinds AS SELECT city, count(DISTINCT part) AS parts, percentile(weight, 0.5) AS middle"
    " FROM sales GROUP BY city",
    "CREATE VIEW hours WITH (retain = '3 days') AS SELECT window(at, '1 hour').start AS hour, count(*) AS n"
    " FROM sales GROUP BY window(at, '1 hour')",
    "CREATE VIEW rolled AS SELECT city, part, sum(price) AS total FROM sales GROUP BY ROLLUP (city, part)",
    "CREATE VIEW joined AS SELECT c.city, c.n, w.n AS every FROM by_city c CROSS JOIN whole w",
    "CREATE VIEW both AS SELECT k, sum(n) AS n FROM (SELECT part AS k, 1 AS n FROM sales UNION ALL"
    " SELECT id, 100 FROM parts) GROUP BY k",
    "CREATE VIEW top AS SELECT city, sum(price) AS total FROM sales GROUP BY city ORDER BY total DESC LIMIT 2",
    "CREATE VIEW ordinary AS SELECT id, upper(name) AS name FROM parts",
    "CREATE VIEW `odd View` AS SELECT `select`, place.x AS x, count(*) AS `how many` FROM `odd Names`"
    " GROUP BY `select`, place.x",
    "CREATE SAMPLE few OF sales SIZE 20 SEED 7",
    "CREATE SAMPLE each OF sales SIZE 3 WHERE price > 10 GROUP BY city",
]

CHANGES = [
    "CREATE TABLE changed (id INT PRIMARY KEY, a INT DEFAULT 5, gone INT, CHECK (a >= 0))"
    " WITH (keep_changes = '36500 days')",
    "CREATE MATERIALIZED VIEW followed AS SELECT a % 4 AS g, count(*) AS n, sum(a) AS s, min(id) AS least"
    " FROM changed GROUP BY a % 4",
    "CREATE VIEW arriving AS SELECT p.name, count(*) AS n FROM sales s JOIN parts p ON s.part = p.id GROUP BY p.name",
    "INSERT INTO changed SELECT cast(id AS INT), cast(id % 1000 AS INT), 0 FROM large",
    "UPDATE changed SET a = a + 1 WHERE id % 100 = 7",
    "ALTER TABLE changed DROP COLUMN gone",
    "ALTER TABLE changed RENAME COLUMN a TO b",
    "ALTER TABLE changed ADD COLUMN late STRING DEFAULT 'x'",
    "DELETE FROM changed WHERE id % 100 = 8",
    "INSERT INTO changed (id) VALUES (-1), (-2)",
    "MERGE INTO changed USING (VALUES (-2), (-3)) AS s (k) ON id = k"
    " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, late) VALUES (k, 'merged')",
]
"""What format 6 added: tables that change, and what follows them."""
FOLLOWING = [
    "CREATE MATERIALIZED VIEW of_parts AS SELECT p.name, count(*) AS n, sum(c.b) AS s, min(c.id) AS least"
    " FROM changed c JOIN parts p ON c.b = p.id GROUP BY p.name",
    "CREATE MATERIALIZED VIEW placed WITH (strategy = 'IMB') AS"
    " SELECT id, row_number() OVER (PARTITION BY name ORDER BY id) AS place FROM parts",
    "UPDATE parts SET name = 'again' WHERE id IN (2, 3)",
    "DELETE FROM changed WHERE id % 100 = 9",
]
"""What format 7 added: views of any query, and views that take changes in later."""


def sales(first: int, count: int) -> pa.Table:
    """Rows with every value made of its number."""
    numbers = range(first, first + count)
    cities = ["Ulm", "Köln", None, "Aachen", "Bonn"]
    return pa.table(
        {
            "at": pa.array([1_700_000_000_000_000 + i * 61_000_000 for i in numbers], pa.timestamp("us", "UTC")),
            "city": [cities[i % 5] for i in numbers],
            "part": pa.array([i % 11 for i in numbers], pa.int32()),
            "price": pa.array([Decimal(i * 37 % 10_000) / 100 for i in numbers], pa.decimal128(12, 2)),
            "weight": [None if i % 13 == 0 else i % 97 / 8 for i in numbers],
            "big": [2_000_000_000_000_000 - i for i in numbers],
        }
    )


def odd_rows(first: int, count: int) -> list[tuple[Any, ...]]:
    return [(i, f"s{i % 3}", ["x", None] * (i % 2), {"x": i % 2, "y": "é"}) for i in range(first, first + count)]


def fill(db: headrace.Database) -> None:
    """All kinds of relations, with rows that are merged and rows that are not."""
    for text in DEFINITIONS[:5]:
        db.sql(text)
    db.insert("parts", [(i, f"part {i}", Decimal(i)) for i in range(9)])
    db.insert("plain", [(1, "x"), (None, None)])
    db.insert("large", pa.table({"id": range(70_000), "v": [i / 4 for i in range(70_000)]}))
    for text in DEFINITIONS[5:]:
        db.sql(text)
    for i in range(6):
        db.insert("sales", sales(i * 500, 500))
    db.insert("odd Names", odd_rows(0, 30))
    db.sql("SELECT * FROM by_city").arrow()
    db.insert("parts", [(9, "late part", None)])
    db.insert("sales", sales(3_000, 40))
    for text in CHANGES:
        db.sql(text)
    db.insert("sales", sales(3_040, 1))
    db.sql("UPDATE parts SET name = 'renamed' WHERE id = 4")
    db.insert("sales", sales(3_041, 11))
    for text in FOLLOWING:
        db.sql(text)


def answers(db: headrace.Database) -> dict[str, Any]:
    """What every relation of the database holds that can be asked without Spark."""
    asked = {
        name: f"SELECT * FROM {name}"
        for name in (
            *("by_city", "whole", "named", "above", "hours", "rolled", "joined", "both", "top", "ordinary"),
            *("`odd View`", "parts", "plain", "few", "each"),
        )
    }
    asked["large"] = "SELECT count(*) AS n, sum(id) AS ids, sum(v) AS vs FROM large"
    asked["kinds"] = "SELECT `group`, n FROM (SELECT city AS `group`, count(*) AS n FROM headrace.state('kinds', 's1')"
    asked["kinds"] += " GROUP BY city)"
    if db.catalog.find("changed") is not None:
        asked |= {name: f"SELECT * FROM {name}" for name in ("followed", "arriving")}
        sums = "SELECT count(*) AS n, sum(id) AS ids, sum(b) AS b, count(DISTINCT late) AS late FROM changed"
        asked |= {"changed": sums, "changed by key": "SELECT * FROM changed WHERE id IN (-3, -2, -1, 7, 8, 9)"}
        versions = [version for (version,) in db.sql("SELECT version FROM headrace.versions").rows()]
        asked |= {f"changed, version {version}": f"{sums} VERSION AS OF {version}" for version in versions}
        asked["versions"] = "SELECT version, statement, inserted, deleted FROM headrace.versions"
    if db.catalog.find("of_parts") is not None:
        asked |= {name: f"SELECT * FROM {name}" for name in ("of_parts", "placed")}
    found = {name: sorted(map(repr, db.sql(text).rows())) for name, text in asked.items()}
    columns = "name, kind, reads, states, retain, late_rows"
    found["headrace.views"] = sorted(map(repr, db.sql(f"SELECT {columns} FROM headrace.views").rows()))
    found["headrace.streams"] = sorted(
        map(repr, db.sql("SELECT name, schema, read_by, rows FROM headrace.streams").rows())
    )
    for name in ("sales", "parts", "hours", "each", "`odd Names`", "`odd View`"):
        described = db.sql(f"DESCRIBE {name}").rows()
        # Bytes in memory are not a promise.
        found[f"DESCRIBE {name}"] = [repr(row) for row in described if row[0] != "# memory"]
    return found


def _killed(path: Path) -> None:
    """Fill a database in a process that is killed once all is acknowledged."""
    code = "import sys, make, headrace; db = headrace.connect(sys.argv[1]); make.fill(db); print('done'); input()"
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=HERE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"done\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.communicate()


def _ticket(folder: Path) -> list[str]:
    """A query's ticket, taken when some of it was done; and the query's answer."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").config("spark.log.level", "OFF").getOrCreate()
    try:
        running = headrace.run(spark, QUERY)
        running.suspend(str(folder))
        return sorted(map(repr, headrace.resume(spark, str(folder), keep=True).result().rows()))
    finally:
        spark.stop()


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main(name: str) -> None:
    archive = HERE / f"{name}.tar.xz"
    if archive.exists():
        raise SystemExit(f"{archive} is there already: older fixtures stay as they are")
    work = Path(tempfile.mkdtemp())
    try:
        with headrace.connect(work / "closed.hr") as db:
            fill(db)
            found = answers(db)
            db.export(work / "export")
        _killed(work / "killed.hr")
        query = _ticket(work / "ticket")
        (work / "answers.json").write_text(
            json.dumps({"database": found, "query": query}, indent=1, ensure_ascii=False)
        )
        with tarfile.open(archive, "w:xz") as tar:
            for part in sorted(work.iterdir()):
                tar.add(part, part.name, filter=_nobodys)
        print(f"{archive.name}: {archive.stat().st_size:,} bytes")
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main(sys.argv[1])
