"""A database moves as a ticket: views, states, tables and attachments go on where they were."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import fs

import headrace
from headrace.errors import HeadraceError
from headrace.move import export
from headrace.move.listing import here, listed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def made(path: Path | None = None) -> headrace.Database:
    db = headrace.connect(path)
    db.sql("CREATE STREAM s (k INT, v INT)")
    db.sql("CREATE TABLE t (k INT, name STRING)")
    db.sql("INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    db.sql(
        "CREATE VIEW v AS SELECT t.name, sum(v) AS v, count(DISTINCT v) AS n FROM s JOIN t ON s.k = t.k GROUP BY name"
    )
    db.insert("s", [(1, 10), (2, 5), (1, 10)])
    return db


ANSWER = [("one", 20, 1), ("two", 5, 1)]


def refused(what: Callable[[], Any]) -> str:
    with pytest.raises(HeadraceError) as caught:
        what()
    assert caught.value.hint
    return caught.value.condition


def test_an_exported_database_goes_on_elsewhere_and_the_first_one_too(tmp_path: Path) -> None:
    with made(tmp_path / "a.hr") as db:
        ticket = db.export(tmp_path / "ticket")
        db.insert("s", [(2, 1)])
        with headrace.open(ticket, tmp_path / "b.hr") as other:
            assert sorted(other.sql("SELECT * FROM v").rows()) == ANSWER
            other.insert("s", [(1, 7)])
            other.sql("INSERT INTO t VALUES (3, 'three')")
            assert sorted(other.sql("SELECT * FROM v").rows()) == [("one", 27, 2), ("two", 5, 1)]
            assert len(other.sql("SELECT * FROM t")) == 3
        assert sorted(db.sql("SELECT * FROM v").rows()) == [("one", 20, 1), ("two", 6, 2)]
    ((_, state, size, done, _, query),) = listed(here(tmp_path)).rows()
    assert (state, done, query) == ("ready", None, "a database of 3 relations")
    assert size == ticket.bytes > (tmp_path / "ticket" / "database" / "headrace.duckdb").stat().st_size
    with headrace.open(ticket) as there:  # in place
        assert sorted(there.sql("SELECT * FROM v").rows()) == ANSWER
        assert refused(lambda: headrace.open(ticket)) == "TICKET_USED"


def test_a_kept_sample_moves_with_its_rows(tmp_path: Path) -> None:
    with made(tmp_path / "a.hr") as db:
        db.sql("CREATE SAMPLE r OF s SIZE 20 SEED 7")
        db.insert("s", [(1, i) for i in range(1_000)])
        ticket = db.export(tmp_path / "ticket")
        kept = sorted(db.sql("SELECT * FROM r").rows())
        more = [(2, i) for i in range(1_000)]
        db.insert("s", more)
        with headrace.open(ticket, tmp_path / "b.hr") as other:
            assert sorted(other.sql("SELECT * FROM r").rows()) == kept and len(kept) == 20
            seen = other.sql("SHOW SAMPLES").rows()
            other.insert("s", more)
            assert other.sql("SHOW SAMPLES").rows() == db.sql("SHOW SAMPLES").rows() != seen


def test_a_database_that_is_written_to_is_exported_as_of_one_epoch(tmp_path: Path) -> None:
    with made() as db:
        db.sql("CREATE VIEW w AS SELECT k, sum(v) AS v FROM s GROUP BY k")
        over = threading.Event()

        def feed() -> None:
            while not over.is_set():
                db.insert("s", [(3, 1)] * 10)

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            tickets = [db.export(tmp_path / str(i)) for i in range(3)]
        finally:
            over.set()
            feeder.join()
    for ticket in tickets:
        with headrace.open(ticket) as other:
            (found,) = other.sql("SELECT v FROM w WHERE k = 3").rows() or [(0,)]
            assert found[0] % 10 == 0
            assert sorted(other.sql("SELECT * FROM v").rows()) == ANSWER


def test_bad_tickets_of_databases(tmp_path: Path) -> None:
    with made() as db:
        ticket = db.export(tmp_path / "t")
        assert refused(lambda: db.export(tmp_path / "t")) == "TICKET_EXISTS"
        (tmp_path / "file").write_text("")
        assert refused(lambda: db.export(tmp_path / "file" / "t")) == "TICKET_NOT_WRITTEN"
    assert refused(lambda: headrace.open(tmp_path / "none")) == "NOT_A_TICKET"
    assert refused(lambda: headrace.open(tmp_path)) == "NOT_A_TICKET"
    assert refused(lambda: headrace.open(ticket, tmp_path)) == "DATABASE_EXISTS"
    assert refused(lambda: headrace.open("s3://bucket/ticket")) == "PATH_NEEDED"
    file = tmp_path / "t" / "database" / "headrace.duckdb"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"x")
    assert refused(lambda: headrace.open(ticket)) == "TICKET_DAMAGED"
    file.unlink()
    assert refused(lambda: headrace.open(ticket)) == "TICKET_DAMAGED"
    file.write_bytes(whole)
    (tmp_path / "t" / "ticket.json").unlink()
    assert refused(lambda: headrace.open(ticket)) == "NOT_A_TICKET"


def test_tickets_at_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through pyarrow's filesystems, of which the local one stands for all."""
    address = f"file://{tmp_path}/far"
    really = fs.copy_files

    def cut_short(source: Any, target: Any, **options: Any) -> None:
        really(source, target, **options)
        raise OSError(errno.ECONNRESET, "the line is down")

    with made() as db:
        with monkeypatch.context() as patched:
            patched.setattr(fs, "copy_files", cut_short)
            assert refused(lambda: db.export(address)) == "TICKET_NOT_WRITTEN"
        assert not list((tmp_path / "far").iterdir())
        ticket = db.export(address)
        manifest = (tmp_path / "far" / "ticket.json").read_bytes()
        db.insert("s", [(2, 1)])
        assert refused(lambda: db.export(address)) == "TICKET_EXISTS"
        assert (tmp_path / "far" / "ticket.json").read_bytes() == manifest
        (tmp_path / "file").touch()
        assert refused(lambda: db.export(f"file://{tmp_path}/file/t")) in ("PATH_NOT_USABLE", "TICKET_NOT_WRITTEN")
        assert refused(lambda: db.export("nosuch://a/b")) == "PATH_NOT_USABLE"
    with headrace.open(ticket, tmp_path / "b.hr") as other:
        assert sorted(other.sql("SELECT * FROM v").rows()) == ANSWER
    assert refused(lambda: headrace.open("nosuch://a/b", tmp_path / "c.hr")) == "PATH_NOT_USABLE"
    assert refused(lambda: headrace.open(f"file://{tmp_path}/none", tmp_path / "c.hr")) == "NOT_A_TICKET"
    assert refused(lambda: headrace.open(f"file://{tmp_path}", tmp_path / "c.hr")) == "NOT_A_TICKET"
    with monkeypatch.context() as patched:
        patched.setattr(fs, "copy_files", cut_short)
        assert refused(lambda: headrace.open(ticket, tmp_path / "c.hr")) == "PATH_NOT_USABLE"
    assert not (tmp_path / "c.hr").exists()


def test_a_database_that_cannot_be_opened_from_its_ticket_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made() as db:
        ticket = db.export(tmp_path / "t")
    target = tmp_path / "b.hr"
    really = export._copied
    full = 0

    def copied(given: Any, copy: Any, most: int) -> tuple[int, int]:
        nonlocal full
        if os.path.samestat(os.fstat(given.fileno()), os.stat(tmp_path / "t" / "database" / "headrace.duckdb")):
            full += 1
            shutil.copytree(target, tmp_path / "killed")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return really(given, copy, most)

    with monkeypatch.context() as patched:
        patched.setattr(export, "_copied", copied)
        with pytest.raises(HeadraceError, match="No space left") as caught:
            headrace.open(ticket, target)
    assert caught.value.condition == "STATE_NOT_WRITABLE" and full == 1
    assert not target.exists()
    assert refused(lambda: headrace.connect(tmp_path / "killed")) == "STATE_LOST"
    assert refused(lambda: headrace.open(ticket, target, time_zone="Nowhere/None"))
    assert not target.exists()
    with headrace.open(ticket, target) as other:
        assert sorted(other.sql("SELECT * FROM v").rows()) == ANSWER


@pytest.mark.spark
def test_an_attachment_goes_on_at_its_offsets(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()

    def write(name: str, k: int, v: int) -> None:
        (tmp_path / name).write_text(f'{{"k": {k}, "v": {v}}}\n')
        (tmp_path / name).rename(source / name)

    def attach(db: headrace.Database) -> None:
        frame = spark.readStream.schema("k INT, v INT").json(str(source))
        db.attach(frame, "s", name="files", trigger={"availableNow": True}).awaitTermination()

    write("1.json", 1, 100)
    with headrace.connect(tmp_path / "a.hr", spark=spark) as db:
        db.sql("CREATE STREAM s (k INT, v INT)")
        db.sql("CREATE VIEW v AS SELECT k, sum(v) AS v, count(*) AS n FROM s GROUP BY k")
        attach(db)
        ticket = db.export(tmp_path / "ticket")
    assert refused(lambda: headrace.resume(spark, str(ticket))) == "NOT_A_TICKET"
    write("2.json", 1, 1)
    with headrace.open(ticket, tmp_path / "b.hr", spark=spark) as db:
        attach(db)
        attach(db)
        assert db.sql("SELECT * FROM v").rows() == [(1, 101, 2)]


@pytest.mark.spark
def test_a_database_whose_attachment_is_live_is_exported_with_every_row_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    written = 0

    def write() -> None:
        nonlocal written
        (tmp_path / "next").write_text(f'{{"v": {written}}}\n')
        (tmp_path / "next").rename(source / f"{written}.json")
        written += 1

    def attach(db: headrace.Database, **trigger: Any) -> Any:
        frame = spark.readStream.schema("v INT").json(str(source))
        return db.attach(frame, "s", name="files", trigger=trigger)

    def counts(db: headrace.Database) -> dict[int, int]:
        return dict(db.sql("SELECT v, n FROM w").rows())

    write()
    over = threading.Event()

    def feed() -> None:
        while not over.wait(0.05):
            write()

    with headrace.connect(tmp_path / "a.hr", spark=spark) as db:
        db.sql("CREATE STREAM s (v INT)")
        db.sql("CREATE VIEW w AS SELECT v, count(*) AS n FROM s GROUP BY v")
        attached = attach(db, processingTime="0 seconds")
        really = db.runtime.store.commit

        def last_batch() -> int:
            return -1 if attached.lastProgress is None else int(attached.lastProgress.batchId)

        def commit(work: Any, *, label: str = "") -> Any:
            """Batches come between whatever an export does before its commit and the commit."""
            if label == "export":
                wanted, deadline = last_batch() + 2, time.monotonic() + 500
                while last_batch() < wanted:
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            return really(work, label=label)

        monkeypatch.setattr(db.runtime.store, "commit", commit)
        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            tickets = [db.export(tmp_path / f"ticket{i}") for i in range(2)]
        finally:
            over.set()
            feeder.join()
        attached.processAllAvailable()
        assert counts(db) == dict.fromkeys(range(written), 1)
    for i, ticket in enumerate(tickets):
        with headrace.open(ticket, tmp_path / f"{i}.hr", spark=spark) as other:
            attach(other, availableNow=True).awaitTermination()
            assert counts(other) == dict.fromkeys(range(written), 1)
