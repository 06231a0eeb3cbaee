"""CREATE SAMPLE: uniform over all rows that came, however they came; durable, exactly once, one epoch with all else."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statistics_of_samples import inclusions, is_uniform

import headrace
from headrace import Database, HeadraceError
from profiles import examples


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with headrace.connect(tmp_path / "db", compact_rows=20) as db:
        db.sql("CREATE STREAM posts (id INT, region STRING, score INT)")
        yield db


def posts(start: int, end: int) -> pa.Table:
    numbers = np.arange(start, end, dtype=np.int32)
    regions = pa.array(["eu", "us", None], pa.string()).take(pa.array(numbers % 3))
    return pa.table({"id": numbers, "region": regions, "score": pa.array(numbers % 5 - 1, pa.int32())})


def ids(db: Database, sample: str = "recent") -> list[int]:
    return sorted(row[0] for row in db.sql(f"SELECT id FROM {sample}"))


def one(db: Database, text: str) -> dict[str, Any]:
    [row] = db.sql(text).arrow().to_pylist()
    return dict(row)


def test_all_rows_until_it_is_full_then_always_so_many(db: Database) -> None:
    db.sql("CREATE SAMPLE recent OF posts SIZE 50")
    assert db.sql("SELECT * FROM recent").rows() == []
    db.insert("posts", posts(0, 30))
    assert ids(db) == list(range(30))
    for start in range(30, 3_000, 30):
        db.insert("posts", posts(start, start + 30))
    found = db.sql("SELECT * FROM recent").arrow()
    assert found.num_rows == len(set(ids(db))) == 50
    assert found.cast(posts(0, 1).schema).to_pylist() == [
        posts(0, 3_000).to_pylist()[i] for i in found["id"].to_pylist()
    ]
    assert one(db, "SELECT rows, rows_seen FROM headrace.samples") == {"rows": 50, "rows_seen": 3_000}
    assert ids(db) == ids(db), "nothing came, so it is the same"


@pytest.mark.parametrize("way", ["one insert", "merged in between"])
def test_every_row_is_kept_equally_often(tmp_path: Path, way: str) -> None:
    """Many samples of one stream are as many runs."""
    runs, rows, size = 50, 60, 12
    with headrace.connect(tmp_path / "db", compact_rows=8 if way == "merged in between" else 10**6) as db:
        db.sql("CREATE STREAM posts (id INT, region STRING, score INT)")
        for run in range(runs):
            db.sql(f"CREATE SAMPLE s{run} OF posts SIZE {size} SEED {run}")
        for start in range(0, rows, rows if way == "one insert" else 20):
            db.insert("posts", posts(start, min(rows, start + (rows if way == "one insert" else 20))))
        if way == "merged in between":
            assert all(db.keeper.get(f"s{run}").threshold < 1 for run in range(runs))
        found = inclusions(lambda run: np.array(ids(db, f"s{run}")), rows, runs)
        assert is_uniform(found, runs, size)


def test_every_row_is_kept_equally_often_in_each_group(tmp_path: Path) -> None:
    """The groups of one sample are as many runs."""
    runs, rows, size = 300, 30, 5
    with headrace.connect(tmp_path / "db", compact_rows=400) as db:
        db.sql("CREATE STREAM s (run INT, id INT)")
        db.sql(f"CREATE SAMPLE recent OF s SIZE {size} GROUP BY run SEED 5")
        for start in range(0, rows, 10):
            part = np.arange(start, start + 10, dtype=np.int32)
            every = np.arange(runs, dtype=np.int32)
            db.insert("s", pa.table({"run": np.repeat(every, 10), "id": np.tile(part, runs)}))
        found: dict[int, list[int]] = {}
        for run, number in db.sql("SELECT run, id FROM recent"):
            found.setdefault(run, []).append(number)
        assert is_uniform(inclusions(lambda run: np.array(found[run]), rows, runs), runs, size)


def test_conditions_and_groups(db: Database) -> None:
    db.sql("CREATE SAMPLE good OF posts SIZE 4 WHERE score > 0 AND (id < 900 OR id > 950) GROUP BY region")
    db.sql("CREATE SAMPLE two OF posts\n  SIZE 2\n  GROUP BY region, score SEED 3")
    for start in range(0, 1_200, 100):
        db.insert("posts", posts(start, start + 100))
    everything = posts(0, 1_200).to_pylist()
    passed = [r for r in everything if r["score"] > 0 and not 900 <= r["id"] <= 950]
    found = db.sql("SELECT * FROM good").arrow().to_pylist()
    assert {region: sum(r["region"] == region for r in found) for region in ("eu", "us", None)} == {
        "eu": 4, "us": 4, None: 4,
    }  # fmt: skip
    assert all(r in passed for r in found)
    assert one(db, "SELECT groups, rows, rows_seen FROM headrace.samples WHERE name = 'good'") == {
        "groups": 3, "rows": 12, "rows_seen": len(passed),
    }  # fmt: skip
    assert one(db, "SELECT groups, rows FROM headrace.samples WHERE name = 'two'") == {"groups": 15, "rows": 30}
    assert db.sql("SELECT count(*) FROM good g JOIN two t ON g.id = t.id").rows()[0][0] >= 0


def test_the_whole_state_survives_a_reopen_and_a_drop_leaves_nothing(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db", compact_rows=20) as db:
        db.sql("CREATE STREAM posts (id INT, region STRING, score INT)")
        db.sql("CREATE SAMPLE recent OF posts SIZE 10 WHERE score >= 0 SEED 7")
        db.insert("posts", posts(0, 500))
        before = ids(db)
    with headrace.connect(tmp_path / "db", compact_rows=20) as db:
        assert ids(db) == before
        db.insert("posts", posts(500, 600))
        assert db.keeper.get("recent").threshold < 0.2, "the sample's threshold is known again"
        assert one(db, "SELECT rows_seen FROM headrace.samples") == {"rows_seen": 480}
        db.sql("REFRESH SAMPLE recent RESTART")
        assert ids(db) == []
        db.insert("posts", posts(600, 605))
        assert ids(db) == [601, 602, 603, 604]
        assert "4 rows of 4" in str(db.sql("REFRESH recent"))
        with pytest.raises(HeadraceError, match=r"RELATION_IN_USE.*recent"):
            db.sql("DROP STREAM posts")
        db.sql("DROP SAMPLE recent")
        db.sql("CREATE SAMPLE recent OF posts SIZE 3")
        assert ids(db) == []
        db.sql("DROP STREAM posts CASCADE")
        assert db.sql("SHOW SAMPLES").rows() == []
    with headrace.connect(tmp_path / "db") as db:
        assert db.catalog.relations == {}


def test_a_failed_insert_leaves_no_row(db: Database) -> None:
    db.sql("CREATE SAMPLE recent OF posts SIZE 10")
    db.sql("CREATE VIEW broken AS SELECT sum(10 DIV score) AS s FROM posts")
    with pytest.raises(HeadraceError, match="DIVIDE_BY_ZERO"):
        db.insert("posts", posts(0, 20))
    assert ids(db) == []
    assert one(db, "SELECT rows_seen FROM headrace.samples") == {"rows_seen": 0}


def test_a_seed_draws_the_same_of_the_same_inserts(tmp_path: Path) -> None:
    """As long as they are cut alike: SEED starts the generator, and each insert draws from it."""
    found = []
    for folder in ("a", "b"):
        with headrace.connect(tmp_path / folder) as db:
            db.sql("CREATE STREAM posts (id INT, region STRING, score INT)")
            db.sql("CREATE SAMPLE recent OF posts SIZE 10 SEED 5")
            db.sql("CREATE SAMPLE other OF posts SIZE 10 SEED -6")
            for start in range(0, 400, 100):
                db.insert("posts", posts(start, start + 100))
            found.append(ids(db))
            assert ids(db) != ids(db, "other")
    assert found[0] == found[1]


def test_files_are_drawn_from_by_skips(db: Database, tmp_path: Path) -> None:
    db.sql("CREATE SAMPLE recent OF posts SIZE 10")
    db.sql("CREATE SAMPLE good OF posts SIZE 10 WHERE score > 2")
    pq.write_table(posts(0, 20_000), tmp_path / "a.parquet", row_group_size=300)
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(r) + "\n" for r in posts(20_000, 20_500).to_pylist()))
    (tmp_path / "c.csv").write_text("".join(f"{i},eu\n" for i in range(20_500, 21_000)))
    db.sql(f"COPY posts FROM '{tmp_path}/a.parquet'")
    db.sql(f"COPY posts FROM '{tmp_path}/b.jsonl'")
    db.sql(f"COPY posts (id, region) FROM '{tmp_path}/c.csv'")
    assert len(ids(db)) == len(set(ids(db))) == 10
    assert one(db, "SELECT rows_seen FROM headrace.samples WHERE name = 'recent'") == {"rows_seen": 21_000}
    assert one(db, "SELECT rows_seen FROM headrace.samples WHERE name = 'good'") == {"rows_seen": 4_100}
    everything = posts(0, 20_500).to_pylist() + [
        {"id": i, "region": "eu", "score": None} for i in range(20_500, 21_000)
    ]
    assert all(
        everything[r["id"]] == r for s in ("recent", "good") for r in db.sql(f"SELECT * FROM {s}").arrow().to_pylist()
    )


@settings(max_examples=examples(15))
@given(data=st.data())
def test_oracle_any_schedule_keeps_the_lowest_priorities(data: st.DataObject, tmp_path_factory: Any) -> None:
    """Inserts of any length, merges, reopenings: what is kept is what one merge of all that was drawn gives."""
    folder = tmp_path_factory.mktemp("oracle")
    compact = data.draw(st.sampled_from([1, 10, 10**6]))
    db = headrace.connect(folder / "db", compact_rows=compact, durability="none")
    try:
        db.sql("CREATE STREAM posts (id INT, region STRING, score INT)")
        db.sql("CREATE SAMPLE recent OF posts SIZE 7")
        db.sql("CREATE SAMPLE by_region OF posts SIZE 2 WHERE score >= 0 GROUP BY region")
        start = 0
        for _ in range(data.draw(st.integers(1, 6))):
            action = data.draw(st.sampled_from(["insert", "insert", "merge", "reopen"]))
            if action == "insert":
                count = data.draw(st.integers(0, 40))
                db.insert("posts", posts(start, start + count))
                start += count
            elif action == "merge":
                db.sql("REFRESH recent")
                db.sql("REFRESH by_region")
            else:
                db.close()
                db = headrace.connect(folder / "db", compact_rows=compact, durability="none")
        everything = [r for r in posts(0, start).to_pylist() if r["score"] >= 0]
        assert len(ids(db)) == len(set(ids(db))) == min(7, start)
        counts = {g: sum(r["region"] == g for r in everything) for g in ("eu", "us", None)}
        found = db.sql("SELECT region, id FROM by_region").rows()
        for region, count in counts.items():
            assert len({i for g, i in found if g == region}) == min(2, count)
        seen = dict(db.sql("SELECT name, rows_seen FROM headrace.samples").rows())
        assert seen == {"recent": start, "by_region": len(everything)}
    finally:
        db.close()


def test_readers_see_whole_epochs_while_inserts_come(db: Database) -> None:
    """A sample and a view of the same stream are of one epoch in one query."""
    db.sql("CREATE SAMPLE recent OF posts SIZE 25")
    db.sql("CREATE VIEW counted AS SELECT count(*) AS n, max(id) AS newest FROM posts")
    done = threading.Event()

    def feed() -> None:
        for start in range(0, 4_000, 50):
            db.insert("posts", posts(start, start + 50))
        done.set()

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        while not done.is_set():
            row = one(db, "SELECT c.n, c.newest, r.rows, r.last FROM counted c CROSS JOIN "
                          "(SELECT count(*) AS rows, max(id) AS last FROM recent) r")  # fmt: skip
            assert row["rows"] == min(25, row["n"]) and (row["n"] == 0 or row["last"] <= row["newest"] < row["n"])
    finally:
        feeder.join()
    assert len(ids(db)) == 25


def test_threads_that_insert_lose_and_repeat_nothing(db: Database) -> None:
    db.sql("CREATE SAMPLE every OF posts SIZE 3000")
    db.sql("CREATE SAMPLE recent OF posts SIZE 30 SEED 1")

    def feed(number: int) -> None:
        for start in range(number * 700, number * 700 + 700, 35):
            db.insert("posts", posts(start, start + 35))

    threads = [threading.Thread(target=feed, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids(db, "every") == list(range(2_800))
    assert len(set(ids(db))) == 30
    assert set(db.sql("SELECT rows_seen FROM headrace.samples").rows()) == {(2_800,)}


def test_it_says_what_it_is(db: Database) -> None:
    db.sql("CREATE SAMPLE IF NOT EXISTS recent OF posts SIZE 10 SEED 4")
    assert "exists already" in str(db.sql("CREATE SAMPLE IF NOT EXISTS Recent OF posts SIZE 10"))
    db.insert("posts", posts(0, 25))
    described = {row[0]: row[1:] for row in db.sql("DESCRIBE recent").rows()}
    assert described["# kind"][0] == "sample" and described["# size"] == ("10 rows", "seed 4")
    assert described["# rows"] == ("10", "of 25 seen") and described["# memory"][0].endswith("bytes")
    assert db.sql("SHOW SAMPLES").rows() == [("recent", "posts", 10, "", 10, 25)]
    assert one(db, "SELECT read_by FROM headrace.streams") == {"read_by": "recent"}
    assert "feeds recent" in str(db.sql("EXPLAIN INSERT INTO posts VALUES (1, 'a', 2)"))
    db.sql("CREATE VIEW mean AS SELECT avg(score) AS m FROM recent")
    assert one(db, "SELECT m FROM mean")["m"] is not None
    with pytest.raises(HeadraceError, match=r"RELATION_IN_USE.*mean"):
        db.sql("DROP SAMPLE recent")


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("CREATE SAMPLE z OF posts SIZE 0", "INVALID_SAMPLE_SIZE"),
        ("CREATE SAMPLE z OF posts SIZE -4", "INVALID_SAMPLE_SIZE"),
        ("CREATE SAMPLE z OF posts SIZE 99999999999", "SAMPLE_TOO_LARGE"),
        ("CREATE SAMPLE z OF posts", "PARSE_SYNTAX_ERROR"),
        ("CREATE SAMPLE z OF posts SIZE many", "PARSE_SYNTAX_ERROR"),
        ("CREATE SAMPLE z OF posts SIZE 3 SEED", "PARSE_SYNTAX_ERROR"),
        ("CREATE SAMPLE z OF nobody SIZE 3", "TABLE_OR_VIEW_NOT_FOUND"),
        ("CREATE SAMPLE z OF t SIZE 3", "WRONG_COMMAND_FOR_OBJECT_TYPE"),
        ("CREATE SAMPLE z OF recent SIZE 3", "WRONG_COMMAND_FOR_OBJECT_TYPE"),
        ("CREATE SAMPLE posts OF posts SIZE 3", "TABLE_OR_VIEW_ALREADY_EXISTS"),
        ("CREATE SAMPLE z OF posts SIZE 3 WHERE scored > 1", "UNRESOLVED_COLUMN"),
        ("CREATE SAMPLE z OF posts SIZE 3 WHERE score", "DATATYPE_MISMATCH"),
        ("CREATE SAMPLE z OF posts SIZE 3 WHERE id IN (SELECT id FROM t)", "SAMPLE_CONDITION_NOT_SUPPORTED"),
        ("CREATE SAMPLE z OF posts SIZE 3 WHERE rand() < 0.5", "NONDETERMINISTIC_VIEW"),
        ("CREATE SAMPLE z OF posts SIZE 3 GROUP BY country", "UNRESOLVED_COLUMN"),
        ("CREATE SAMPLE z OF posts SIZE 3 GROUP BY", "PARSE_SYNTAX_ERROR"),
        ("CREATE SAMPLE z OF odd SIZE 3", "SAMPLE_RESERVED_COLUMN"),
        ("INSERT INTO recent VALUES (1, 'a', 2)", "CANNOT_INSERT_INTO_SAMPLE"),
        ("DROP VIEW recent", "WRONG_COMMAND_FOR_OBJECT_TYPE"),
        (
            "CREATE VIEW v AS SELECT p.id, count(*) AS n FROM posts p JOIN recent r ON p.id = r.id GROUP BY p.id",
            "SAMPLE_IN_CONTINUOUS_VIEW",
        ),
    ],
)
def test_what_is_refused(db: Database, text: str, condition: str) -> None:
    db.sql("CREATE TABLE t (id INT)")
    db.sql("CREATE STREAM odd (id INT, `__Weight` INT)")
    db.sql("CREATE SAMPLE recent OF posts SIZE 5")
    with pytest.raises(HeadraceError) as raised:
        db.sql(text)
    assert raised.value.condition == condition
    assert sorted(db.catalog.relations) == ["odd", "posts", "recent", "t"]


def test_positions_are_where_the_user_wrote(db: Database) -> None:
    with pytest.raises(HeadraceError) as raised:
        db.sql("CREATE SAMPLE z\n  OF posts SIZE 3\n  WHERE score > 1\n    AND nothing = 2\n  SEED 9")
    assert str(raised.value.position) == "line 4, column 9"


def test_groups_that_explode_are_refused(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db", sample_groups=10, compact_rows=5) as db:
        db.sql("CREATE STREAM posts (id INT, region STRING, score INT)")
        db.sql("CREATE SAMPLE s OF posts SIZE 2 GROUP BY id")
        db.insert("posts", posts(0, 8))
        for _ in range(5):
            db.insert("posts", posts(3, 9))
        with pytest.raises(HeadraceError, match=r"SAMPLE_TOO_MANY_GROUPS.*11 groups"):
            db.insert("posts", posts(8, 11))
        with pytest.raises(HeadraceError, match=r"SAMPLE_TOO_MANY_GROUPS.*50 groups"):
            db.insert("posts", posts(0, 50))
        db.insert("posts", posts(9, 10))
        assert sorted({row[0] for row in db.sql("SELECT id FROM s")}) == list(range(10))


def test_groups_that_do_not_fit_in_memory_are_refused(tmp_path: Path) -> None:
    """SIZE bounds each group; all of them together are bounded by memory, here of 260 rows."""
    with headrace.connect(tmp_path / "db", state_memory=260 * 40) as db:
        db.sql("CREATE STREAM posts (id INT, region STRING, score INT)")
        db.sql("CREATE SAMPLE s OF posts SIZE 100 GROUP BY score")
        db.insert("posts", posts(0, 200))
        for _ in range(3):  # 160 rows of a group that keeps 100
            db.insert("posts", posts(0, 200).filter(pc.field("score") == 0))
        assert one(db, "SELECT rows FROM headrace.samples") == {"rows": 260}
        with pytest.raises(HeadraceError, match=r"SAMPLE_TOO_LARGE.*276 rows.*260 do") as raised:
            db.insert("posts", posts(0, 20))
        assert raised.value.hint
        db.insert("posts", posts(0, 200).filter(pc.field("score") == 0))
        assert one(db, "SELECT rows, rows_seen FROM headrace.samples") == {"rows": 260, "rows_seen": 360}


def test_nested_values_and_nulls_are_kept_whole(db: Database) -> None:
    db.sql("CREATE STREAM nested (id INT, a ARRAY<STRING>, s STRUCT<x: INT, y: ARRAY<DOUBLE>>, at TIMESTAMP)")
    db.sql("CREATE SAMPLE some OF nested SIZE 20")
    rows = [
        {"id": i, "a": None if i % 4 == 0 else [f"t{i}", None], "s": {"x": None, "y": [i / 2]} if i % 3 else None,
         "at": None} for i in range(200)
    ]  # fmt: skip
    db.insert("nested", rows[:150])
    db.insert("nested", rows[150:])
    found = db.sql("SELECT * FROM some").arrow().to_pylist()
    assert len(found) == 20 and all(rows[row["id"]] == row for row in found)


def test_of_files_only_what_is_drawn_is_read(db: Database, tmp_path: Path) -> None:
    """A sample of one row of very many: of a short file more, hardly ever any. Its values need not even be there."""
    db.sql("CREATE SAMPLE recent OF posts SIZE 1 SEED 3")
    db.insert("posts", posts(0, 200_000))
    db.sql("REFRESH recent")
    file = tmp_path / "a.parquet"
    pq.write_table(posts(0, 100), file, row_group_size=10)
    metadata, data = pq.read_metadata(file), bytearray(file.read_bytes())
    for group in range(10):
        for column in range(3):
            chunk = metadata.row_group(group).column(column)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    file.write_bytes(data)
    before = ids(db)
    db.sql(f"COPY posts FROM '{file}'")
    assert ids(db) == before
    assert one(db, "SELECT rows_seen FROM headrace.samples") == {"rows_seen": 200_100}


def test_another_process_knows_what_a_sample_is(tmp_path: Path) -> None:
    """A process that Spark started reads definitions by themselves, without the rest of Headrace."""
    with headrace.connect(tmp_path / "db") as db:
        db.sql("CREATE STREAM s (k INT)")
        db.sql("CREATE SAMPLE few OF s SIZE 3")
        program = "import sys; from headrace.spark.published import definition; from pathlib import Path; "
        program += "print(definition(Path(sys.argv[1]), 'few').relation.size)"
        ran = subprocess.run([sys.executable, "-c", program, str(db.path)], capture_output=True, text=True, timeout=500)
    assert ran.stdout.split() == ["3"], ran.stderr
