"""Streams scanned by Spark tasks: here through shared memory, elsewhere through the owner."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace
from headrace.database import Database
from headrace.engine.ring_tasks import RingShare
from headrace.errors import HeadraceError
from headrace.rings import Scan
from headrace.rings.delivery import Address
from headrace.rings.flight import RingServer, remote_batches, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POSTS = "uid INT, name STRING, score INT"
QUERY = (
    "SELECT region, count(*), sum(score), max(name) FROM posts JOIN users ON uid = id GROUP BY region ORDER BY region"
)


def rows(start: int, count: int) -> list[tuple[Any, ...]]:
    return [(n % 4, f"a name that is long {n:06}", n) for n in range(start, start + count)]


def expected(count: int) -> list[tuple[Any, ...]]:
    of = {"DE": [r for r in rows(0, count) if r[0] in (1, 3)], "FR": [r for r in rows(0, count) if r[0] == 2]}
    return [(k, len(v), sum(r[2] for r in v), max(r[1] for r in v)) for k, v in of.items()]


def opened(spark: SparkSession, capacity: int = 2000, **settings: Any) -> Database:
    db = headrace.connect(spark=spark, engine="tasks", **settings)
    db.sql(f"CREATE STREAM posts ({POSTS}) WITH (capacity = {capacity}, timeout = '2 hours')")
    db.sql("CREATE TABLE users (id INT, region STRING)")
    db.insert("users", [(1, "DE"), (2, "FR"), (3, "DE")])
    return db


@pytest.mark.spark
@pytest.mark.parametrize("remote", [False, True])
def test_differential_tasks_pick_what_this_process_would(spark: SparkSession, remote: bool) -> None:
    """The answer is the same whether tasks map the ring or ask its owner for their share."""
    with opened(spark, capacity=20_000, remote_rings=remote) as db:
        running: Any = db.sql(QUERY)
        feeds = running._query._feeds
        for at in range(0, 5000, 1000):
            db.runtime.rings.open(db.catalog.get("posts")).write(_arrow(rows(at, 1000)))
        assert running.finish().rows() == expected(5000)
        assert feeds[0].by_task, "no task picked anything"


@pytest.mark.spark
def test_tasks_that_insert_are_not_starved_by_tasks_that_scan(spark: SparkSession, tmp_path: Path) -> None:
    """Both tasks of a COPY hold Spark's two slots and wait for room in the ring: somebody else reads on."""
    file = tmp_path / "posts.csv"
    file.write_text("".join(",".join(map(str, r)) + "\n" for r in rows(0, 20_000)))
    with opened(spark, capacity=1000) as db:
        running = [db.sql(QUERY) for _ in range(2)]
        db.copy("posts", file)
        for result in running:
            assert result.finish().rows() == expected(20_000)


@pytest.mark.spark
def test_scans_of_all_queries_leave_a_slot_to_tasks_that_insert(spark: SparkSession) -> None:
    with opened(spark) as db:
        running: list[Any] = [db.sql(QUERY) for _ in range(3)]
        while not all(query._query._feeds for query in running):
            time.sleep(0.01)
        assert sorted(query._query._feeds[0].tasks for query in running) == [0, 0, 1]
        db.insert("posts", rows(0, 1000))
        assert [query.finish().rows() for query in running] == [expected(1000)] * 3
        with db.runtime.session.spare_slots(9) as spare:
            assert spare == 1  # they have given it back


@pytest.mark.spark
def test_a_task_that_fails_ends_the_query_before_its_window(spark: SparkSession) -> None:
    with opened(spark, capacity=20_000) as db:
        running: Any = db.sql("SELECT sum(score div uid) FROM posts")
        began = time.monotonic()
        db.insert("posts", rows(0, 10))
        with pytest.raises(HeadraceError, match="DIVIDE_BY_ZERO"):
            running.rows()
        assert time.monotonic() - began < 3600  # of two hours


@pytest.mark.spark
def test_differential_rows_of_tasks_on_other_hosts_reach_queries(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of a COPY and of a DataFrame send their rows to the owner of the ring, text and all."""
    do_put, sent = RingServer.do_put, []

    def counted(server: RingServer, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        sent.append(descriptor)
        do_put(server, context, descriptor, reader, writer)

    monkeypatch.setattr(RingServer, "do_put", counted)
    file = tmp_path / "posts.csv"
    file.write_text("".join(",".join(map(str, r)) + "\n" for r in rows(0, 3000)))
    with opened(spark, capacity=20_000, remote_rings=True) as db:
        db.sql("CREATE VIEW v AS SELECT count(*) AS n FROM posts")  # without any, there is no work for tasks
        running = db.sql(QUERY)
        db.copy("posts", file)
        assert sent
        by_copy = len(sent)
        db.insert("posts", spark.createDataFrame(rows(3000, 2000), POSTS))
        assert len(sent) > by_copy
        assert running.finish().rows() == expected(5000)
        with pytest.raises(HeadraceError, match="STREAM_OWNER_UNREACHABLE"):
            send(
                Address("posts", tmp_path, "", db.runtime.rings.flights.on("127.0.0.1").location, "guess"),
                _arrow(rows(0, 1)),
            )


@pytest.mark.spark
def test_queries_fail_that_read_what_a_task_inserted_which_ran_again(
    spark: SparkSession, stopped: Callable[[DataFrame], DataFrame], tmp_path: Path
) -> None:
    """Views have its rows once; what its first attempt gave to queries nobody knows."""
    (tmp_path / "reached").touch()
    frame = stopped(spark.range(0, 80_000, 1, 2).selectExpr("int(id % 4) uid", "'n' name", "int(id) score"))
    with opened(spark, capacity=200_000) as db:
        db.sql("CREATE VIEW v AS SELECT count(*) AS n, sum(score) AS s FROM posts")
        running = db.sql("SELECT count(*) FROM posts")
        assert db.insert("posts", frame) == 80_000
        assert db.sql("SELECT * FROM v").rows() == [(80_000, sum(range(80_000)))]
        with pytest.raises(HeadraceError, match="STREAM_ROLLED_BACK"):
            running.finish().rows()


@pytest.mark.spark
def test_queries_have_all_rows_of_a_frame_with_a_value_for_spark(spark: SparkSession) -> None:
    """It is in the first of a task's chunks; the others are delivered all the same."""
    many = 300_000
    frame = spark.range(0, many, 1, 1).selectExpr("1 uid", "if(id = 0, 'straße', 'weg') name", "int(id) score")
    with opened(spark, capacity=1 << 19) as db:
        db.sql("CREATE VIEW v AS SELECT upper(name) AS up, count(*) AS n FROM posts GROUP BY upper(name)")
        running = db.sql("SELECT count(*), sum(score) FROM posts")
        assert db.insert("posts", frame) == many
        assert sorted(db.sql("SELECT * FROM v").rows()) == [("STRASSE", 1), ("WEG", many - 1)]
        assert running.finish().rows() == [(many, sum(range(many)))]


@pytest.mark.spark
def test_rows_a_task_cannot_treat_as_spark_does_are_handed_back(spark: SparkSession) -> None:
    with opened(spark, capacity=20_000) as db:
        running: Any = db.sql("SELECT upper(name) AS up, sum(score) FROM posts GROUP BY upper(name)")
        db.insert("posts", [(1, "straße", 3), (1, "weg", 4), (2, "weg", 5)])
        assert sorted(running.finish().rows()) == [("STRASSE", 3), ("WEG", 9)]


@pytest.mark.spark
def test_cancelled_scans_end_their_tasks(spark: SparkSession) -> None:
    with opened(spark) as db:
        running: Any = db.sql("SELECT count(*) FROM posts")
        db.insert("posts", rows(0, 10))
        running.cancel()
        with pytest.raises(HeadraceError, match="QUERY_CANCELLED"):
            running.rows()


def _arrow(values: list[tuple[Any, ...]]) -> Any:
    import pyarrow as pa

    uids, names, scores = zip(*values, strict=True)
    return pa.table({"uid": pa.array(uids, pa.int32()), "name": names, "score": pa.array(scores, pa.int32())})


def test_a_task_that_runs_again_fails_the_query() -> None:
    with headrace.connect() as db:
        db.sql(f"CREATE STREAM posts ({POSTS}) WITH (capacity = 100)")
        ring = db.runtime.rings.open(db.catalog.get("posts"))
        scan = Scan.start(ring, ["score"], timeout=500)
        share = RingShare("posts", ring.folder, scan.ticket, ("score",), "", "")
        ring.write(_arrow(rows(0, 10)))
        first = share.batches(0, attempt=0)
        assert next(first).num_rows == 10
        with pytest.raises(HeadraceError, match="STREAM_TASK_RETRIED"):
            next(share.batches(0, attempt=1))
        ring.write(_arrow(rows(0, 5)))
        assert next(share.batches(1, attempt=1)).num_rows == 5  # the first attempt of this one had read nothing
        scan.give_up()


def test_the_owner_serves_shares_of_a_reader_and_refuses_strangers() -> None:
    with headrace.connect() as db:
        db.sql(f"CREATE STREAM posts ({POSTS}) WITH (capacity = 100, overflow = 'overwrite')")
        ring = db.runtime.rings.open(db.catalog.get("posts"))
        server = db.runtime.rings.flights.on("127.0.0.1")
        scan = Scan.start(ring, ["name", "score"], timeout=500)
        ring.write(_arrow(rows(0, 10)))
        found = remote_batches(server.location, server.secret, "posts", scan.ticket, ["name", "score"], 1)
        batch = next(found)
        assert batch.to_pylist() == [{"name": r[1], "score": r[2]} for r in rows(0, 10)]
        threading.Timer(0.2, scan.finish).start()
        assert list(found) == []
        late = Scan.start(ring, ["score"], timeout=500)
        ring.write(_arrow(rows(0, 300)))
        with pytest.raises(HeadraceError, match="STREAM_OVERRUN"):
            list(remote_batches(server.location, server.secret, "posts", late.ticket, ["score"], 1))
        with pytest.raises(HeadraceError, match="STREAM_OWNER_UNREACHABLE"):
            list(remote_batches(server.location, "guess", "posts", late.ticket, ["score"], 1))
        for left in (scan, late):
            left.give_up()


@pytest.mark.spark
def test_a_stream_is_a_data_source(spark: SparkSession, tmp_path: Path) -> None:
    """Any Spark application of the host reads a stream's rows until it pauses."""
    headrace.register(spark)
    with headrace.connect(tmp_path / "d", spark=spark) as db:
        db.sql(f"CREATE STREAM posts ({POSTS}) WITH (capacity = 20000, timeout = '3 seconds')")
        db.insert("posts", rows(0, 4000))
        read = spark.read.format("headrace").option("path", str(db.path)).option("stream", "posts")
        frame = read.option("from", "oldest").load()
        found = frame.selectExpr("count(*)", "sum(score)", "max(name)").collect()
        assert tuple(found[0]) == (4000, sum(range(4000)), "a name that is long 003999")
        with pytest.raises(Exception, match="STREAM_NOT_BUFFERED"):
            read.option("stream", "nothing").load()
