"""headrace.reservoir: exactly n rows of any DataFrame, in one pass, by 2p + n messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import DataError, SqlError
from headrace.sample import on_spark
from headrace.sample.on_spark import drawn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def ids(rows: pa.Table | DataFrame) -> list[int]:
    table = rows if isinstance(rows, pa.Table) else rows.toArrow()
    return sorted(table.column(0).to_pylist())


@pytest.fixture
def collected(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[pa.Table]:
    """All that comes from the tasks to this process, as it comes."""
    came: list[pa.Table] = []
    kind = type(spark.range(1))
    to_arrow = kind.toArrow

    def counted(frame: DataFrame) -> pa.Table:
        came.append(to_arrow(frame))
        return came[-1]

    monkeypatch.setattr(kind, "toArrow", counted)
    return came


@pytest.mark.parametrize("rows", [0, 40_000])
def test_exactly_so_many_rows_of_any_split(spark: SparkSession, collected: list[pa.Table], rows: int) -> None:
    """Uneven and empty parts, more of them than tasks run at once; n less than, equal to and more than the rows.

    What comes is what the protocol allows: a row about each reservoir, and the sample.
    """
    frame = spark.range(rows).repartition(5).where("id % 3 <> 1 OR id > 20")
    every = set(ids(frame))
    for n in {1, max(1, len(every) - 1), len(every) + 3}:
        collected.clear()
        found, messages = drawn(frame, n)
        assert len(set(ids(found))) == found.num_rows == min(n, len(every))
        assert set(ids(found)) <= every
        about, chosen = collected
        assert about.num_rows == messages.cardinalities == messages.shares == messages.workers
        assert chosen.num_rows == messages.rows == found.num_rows
        assert messages.workers == (spark.sparkContext.defaultParallelism if rows else 0)
        assert messages.total == about.num_rows + messages.shares + chosen.num_rows <= 2 * messages.workers + n


@pytest.mark.parametrize("n", [19_000, 30_000, 39_999, 50_000])
def test_samples_about_as_large_as_the_parts(spark: SparkSession, n: int) -> None:
    """Parts long enough for rows to be left behind, and samples so large that none may be."""
    found, _ = drawn(spark.range(0, 40_000, 1, 2), n)
    assert len(set(ids(found))) == found.num_rows == min(n, 40_000)


def test_one_pass_and_one_result(spark: SparkSession, tmp_path: Path) -> None:
    """No part of the input is computed twice, and what is returned stays the same."""

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            (tmp_path / f"{batch.column(0)[0].as_py()}-{np.random.default_rng().integers(1 << 60)}").touch()
            yield batch

    frame = spark.range(0, 90_000, 1, 3).mapInArrow(counted, "id long")
    sample = headrace.reservoir(frame, 100)
    assert ids(sample) == ids(sample) and len(set(ids(sample))) == 100
    firsts = [file.name.split("-")[0] for file in tmp_path.iterdir()]
    assert len(firsts) == len(set(firsts)) >= 3


def test_rows_left_in_the_jvm_are_not_among_the_lowest(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    frame = spark.range(0, 300_000, 1, 2).toDF("c0")
    for n in (1, 60):
        thinned = on_spark._thinned(frame, on_spark._bound(n), 5).toArrow()
        assert thinned.num_rows < 60_000
        everything = on_spark._thinned(frame, float("inf"), 5)
        assert everything.count() == 300_000
        worker = f.spark_partition_id()
        for part in (0, 1):
            lowest = everything.where(worker == part).orderBy("priority").limit(n).toArrow()
            assert set(lowest.column("c0").to_pylist()) <= set(thinned.column("c0").to_pylist())


def test_a_sample_of_a_frame_is_spread_over_it(spark: SparkSession) -> None:
    """One large sample instead of many: its rows are uniform over the parts, and over each part's beginning and end."""
    found = np.array(ids(drawn(spark.range(0, 400_000, 1, 4), 4_000, seed=3)[0]))
    counts = np.bincount(found // 10_000, minlength=40)
    expected = 100 * (1 - 4_000 / 400_000)
    assert ((counts - 100) ** 2 / expected).sum() < 86  # chi-square, 39 degrees of freedom, 1 in 100,000


def test_rows_come_whole(spark: SparkSession) -> None:
    """NULLs, nested values, names that are twice there, times, decimals."""
    frame = spark.sql(
        "SELECT id, CASE WHEN id % 2 = 0 THEN concat('t', id) END AS t, array(id, NULL) AS a, "
        "named_struct('x', id, 'y', CAST(NULL AS STRING)) AS s, CAST(id AS DECIMAL(20, 3)) AS d, map('k', id) AS m, "
        "timestamp_seconds(id) AS at, encode(concat('b', id), 'utf-8') AS b, id + 1 AS id FROM range(200)"
    )
    sample = headrace.reservoir(frame, 30)
    assert [f.name for f in sample.schema] == [f.name for f in frame.schema]
    assert [f.dataType for f in sample.schema] == [f.dataType for f in frame.schema]
    everything = {row[0]: row for row in frame.collect()}
    found = sample.collect()
    assert len(found) == 30 and all(everything[row[0]] == row for row in found)


def test_sizes_that_cannot_be(spark: SparkSession) -> None:
    for wrong in (0, -1, 2.5, True, "3"):
        with pytest.raises(SqlError, match="INVALID_SAMPLE_SIZE"):
            headrace.reservoir(spark.range(3), wrong)  # type: ignore[arg-type]
    with pytest.raises(SqlError, match=r"SAMPLE_TOO_LARGE.*268,435,456 do"):
        headrace.reservoir(spark.range(3), 10**9)
    with pytest.raises(SqlError, match="INVALID_SEED"):
        headrace.reservoir(spark.range(3), 1, seed=2.5)  # type: ignore[arg-type]


# Parquet


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files, of many small row groups, one file empty."""
    for number, (start, end) in enumerate(((0, 5_000), (5_000, 5_000), (5_000, 9_000))):
        texts = pa.array([f"row {i}" for i in range(start, end)], pa.string())
        rows = pa.table({"id": np.arange(start, end), "t": texts})
        pq.write_table(rows, tmp_path / f"{number}.parquet", row_group_size=500)
    return tmp_path


def test_parquet_is_drawn_by_row_number(spark: SparkSession, folder: Path) -> None:
    frame = spark.read.parquet(str(folder))
    for n in (40, 3_000, 10_000):
        found, messages = drawn(frame, n, seed=2)
        assert messages.cardinalities == 0 and messages.shares <= 2, "the frame was not seen to be plain files"
        assert len(set(ids(found))) == found.num_rows == min(n, 9_000)
        assert all(row["t"] == f"row {row['id']}" for row in found.to_pylist())
        assert messages.total <= 2 * messages.workers + n
        if n == 3_000:
            counts = np.bincount(np.array(ids(found)) // 500, minlength=18)
            assert ((counts - n / 18) ** 2).sum() / (n / 18 * (1 - n / 9_000)) < 53  # 17 degrees, 1 in 100,000
    assert ids(drawn(frame, 40, seed=2)[0]) == ids(drawn(frame, 40, seed=2)[0]) != ids(drawn(frame, 40, seed=-3)[0])
    assert headrace.reservoir(frame, 3).schema == frame.schema


def test_what_is_not_plain_files_is_not_taken_for_them(spark: SparkSession, folder: Path) -> None:
    frame = spark.read.parquet(str(folder))
    few = frame.where("id < 30")
    assert set(ids(drawn(few, 1_000)[0])) == set(range(30))
    other = frame.selectExpr("id + 100000 AS id", "t")
    assert min(ids(drawn(other, 50)[0])) >= 100_000
    both = frame.union(frame)
    assert drawn(both, 20_000)[0].num_rows == 18_000
    assert drawn(frame.limit(10), 20)[0].num_rows == 10
    # A file whose types Spark and the native reader see differently is read by Spark.
    spark.sql("SELECT id, timestamp_seconds(id) AS at FROM range(100)").write.option("compression", "none").mode(
        "overwrite"
    ).parquet(str(folder / "more"))
    stamped = spark.read.schema("id INT, at TIMESTAMP").parquet(str(folder / "more"))
    assert on_spark._plain_files(stamped, pa.schema([("id", pa.int32()), ("at", pa.timestamp("us", "UTC"))])) is None


def test_row_groups_without_a_chosen_row_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "one.parquet"
    pq.write_table(pa.table({"id": np.arange(1_000), "t": ["x" * 50] * 1_000}), file, row_group_size=10)
    frame = spark.read.parquet(str(file))
    chosen = set(ids(drawn(frame, 5, seed=1)[0]))
    groups = {i // 10 for i in chosen}
    metadata = pq.read_metadata(file)
    data = bytearray(file.read_bytes())
    for group in set(range(100)) - groups:
        for column in range(2):
            chunk = metadata.row_group(group).column(column)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    file.write_bytes(data)
    assert set(ids(drawn(frame, 5, seed=1)[0])) == chosen
    with pytest.raises(DataError, match=r"PARQUET_UNREADABLE.*one\.parquet"):
        drawn(frame, 600)


def test_a_task_run_again_keeps_the_same_rows(spark: SparkSession) -> None:
    """So whichever of its attempts Spark takes, and if it has to make a part anew between the two steps."""
    thinned = on_spark._thinned(spark.range(0, 50_000, 1, 2).toDF("c0"), on_spark._bound(20), 9)
    local = thinned.mapInArrow(
        lambda batches: on_spark._keep_local(20, on_spark._bound(20), batches),
        on_spark._local_schema(spark.range(1).schema),
    )
    once, again = local.toArrow(), local.toArrow()
    assert once.num_rows == 42 and once == again


def test_a_task_stopped_half_way_gives_no_row_twice(
    spark: SparkSession,
    stopped: Callable[[DataFrame], DataFrame],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is stopped when its reservoir has rows."""
    keep_local, reached = on_spark._keep_local, tmp_path / "reached"

    def watched(n: int, bound: float, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        mine = context.partitionId() == 1

        def noted() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield batch
                if mine:
                    reached.touch()

        return keep_local(n, bound, noted())

    monkeypatch.setattr(on_spark, "_keep_local", watched)
    found = ids(drawn(stopped(spark.range(0, 80_000, 1, 2)), 30_000)[0])
    assert len(found) == len(set(found)) == 30_000


def test_a_task_stopped_half_way_feeds_a_kept_sample_once(
    spark: SparkSession, stopped: Callable[[DataFrame], DataFrame], tmp_path: Path
) -> None:
    (tmp_path / "reached").touch()
    with headrace.connect(tmp_path / "db", spark=spark) as db:
        db.sql("CREATE STREAM s (id BIGINT)")
        db.sql("CREATE SAMPLE every OF s SIZE 90000")
        db.insert("s", stopped(spark.range(0, 80_000, 1, 2)))
        assert sorted(db.sql("SELECT id FROM every").arrow()["id"].to_pylist()) == list(range(80_000))
        assert db.sql("SELECT rows_seen FROM headrace.samples").rows() == [(80_000,)]
