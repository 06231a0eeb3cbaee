"""Tickets that cannot be read or claimed, the claims themselves, and how inputs are known again."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from programs import LIMIT, TOTALS, refusal, taken

import headrace
from headrace.errors import StoreError
from headrace.move.claim import Lease, claim_local
from headrace.move.files import Folder
from headrace.move.inputs import Inputs, Stamp, stamps
from headrace.move.listing import here, listed
from headrace.move.ticket import load_local, sealed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_a_ticket_its_filesystem_calls_altered_is_damaged(spark: SparkSession, numbers: str, tmp_path: Path) -> None:
    """Beside each file Hadoop keeps checksums of its own: reading fails before anybody sees the text."""
    ticket = taken(spark, tmp_path / "t")
    file = tmp_path / "t" / "ticket.json"
    whole = file.read_bytes()
    assert (tmp_path / "t" / ".ticket.json.crc").exists()
    for other in (b"\xff" + whole[1:], whole[:-1], b""):
        file.write_bytes(other)
        assert refusal(lambda: headrace.resume(spark, ticket)) == "TICKET_DAMAGED"
    file.write_bytes(whole)
    (tmp_path / "t" / "claim").mkdir()  # as in a folder that may be read only
    assert refusal(lambda: headrace.resume(spark, ticket)) == "TICKET_NOT_WRITTEN"
    (tmp_path / "t" / "claim").rmdir()
    assert headrace.resume(spark, ticket).result().rows() == TOTALS


@pytest.mark.spark
def test_a_folder_that_cannot_be_reached_has_a_name(spark: SparkSession, tmp_path: Path) -> None:
    folder = Folder(spark, str(tmp_path))
    folder.address = "nosuch://a/b"  # Hadoop refuses it, as it would one it may not look into
    for look in (folder.exists, folder.names, folder.remove):
        assert refusal(look) == "PATH_NOT_USABLE"
    for ask in (folder.exists, folder.sizes, folder.modified, folder.read, folder.checksum):
        assert refusal(lambda ask=ask: ask("x")) == "PATH_NOT_USABLE"  # type: ignore[misc]


def test_one_bad_ticket_does_not_hide_the_others(tmp_path: Path) -> None:
    for name in ("altered", "bytes", "folder", "half", "good"):
        (tmp_path / name / "state").mkdir(parents=True)
    manifest: dict[str, Any] = {
        "format": 1,
        "kind": "query",
        "id": "0",
        "made_at": "2026-01-01T00:00:00+00:00",
        "spark": "",
        "query": {"kind": "query", "sql": "SELECT 1"},
        "to": None,
        "plan": {"identity": "", "cached": []},
        "settings": {},
        "inputs": {"files": [], "versions": {}, "unchecked": []},
        "states": [],
        "progress": {"finished": 1, "total": 2, "seconds": 1.0},
    }
    (tmp_path / "altered" / "ticket.json").write_text(sealed(manifest).replace("SELECT 1", "SELECT 2"))
    (tmp_path / "bytes" / "ticket.json").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "folder" / "ticket.json").mkdir()
    (tmp_path / "good" / "ticket.json").write_text(sealed(manifest))
    (tmp_path / "other").mkdir()
    (tmp_path / "file").touch()
    found = {Path(row[0]).name: row[1] for row in listed(here(tmp_path)).rows()}
    assert found == {
        "altered": "damaged",
        "bytes": "damaged",
        "folder": "not readable",
        "half": "not finished",
        "good": "ready",
    }
    assert refusal(lambda: headrace.open(tmp_path / "bytes")) == "TICKET_DAMAGED"
    assert refusal(lambda: load_local(tmp_path / "folder")) == "PATH_NOT_USABLE"
    (tmp_path / "good" / "claim").mkdir()
    assert refusal(lambda: claim_local(tmp_path / "good")) == "TICKET_NOT_WRITTEN"


@pytest.mark.spark
def test_a_process_killed_while_it_suspends_leaves_a_whole_ticket_or_none(
    spark: SparkSession, numbers: str, tmp_path: Path, elsewhere: Any
) -> None:
    half = tmp_path / "half"
    query = f"""CREATE TEMPORARY VIEW numbers USING parquet OPTIONS (path '{numbers}');
        SELECT a.n, count(*) FROM (SELECT n, count(*) FROM numbers GROUP BY n) a CROSS JOIN range(40000000)
        GROUP BY a.n"""
    elsewhere.tell("suspend slowly", query=query, path=str(half), finish=False)
    assert elsewhere.answer() == "begun"
    deadline = time.monotonic() + LIMIT
    while not (half / "state").exists():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    elsewhere.kill()  # as it writes rows
    try:
        headrace.resume(spark, str(half)).cancel()
    except StoreError as error:
        assert error.condition == "NOT_A_TICKET"


class Line:
    """A folder somewhere else, the way to which may fail or be slow."""

    address = "far://away"

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.writes = 0
        self.down = False
        self.slow = threading.Event()
        self.slow.set()

    def names(self) -> list[str]:
        return sorted(self.files)

    def exists(self, name: str) -> bool:
        return name in self.files

    def write(self, name: str, text: str, *, overwrite: bool = True) -> None:
        self.writes += 1
        self.slow.wait(LIMIT)
        if self.down or (name in self.files and not overwrite):
            raise StoreError("TICKET_NOT_WRITTEN", "the line is down", hint="wait")
        self.files[name] = text

    def remove(self, name: str) -> None:
        self.files.pop(name, None)

    def until_written(self, times: int) -> None:
        deadline, wanted = time.monotonic() + LIMIT, self.writes + times
        while self.writes < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.005)


def lease(line: Any) -> Lease:
    return Lease(line, 0.1)


def test_a_lease_is_written_again_after_a_failure() -> None:
    line = Line()
    held = lease(line)
    line.down = True
    line.until_written(2)
    line.down = False
    line.files.clear()
    line.until_written(2)
    assert list(line.files) == ["claim.1"]
    held.release()
    assert not line.files
    line.down = True
    assert refusal(lambda: lease(line)) == "TICKET_NOT_WRITTEN"


def test_a_lease_that_is_released_stays_so() -> None:
    line = Line()
    held = lease(line)
    line.slow.clear()
    line.until_written(1)  # a renewal is on its way
    releasing = threading.Thread(target=held.release)
    releasing.start()
    while not held._over.is_set():  # it has come to where it waits for the renewal
        time.sleep(0.001)
    line.slow.set()
    releasing.join()
    written = line.writes
    time.sleep(0.1)  # six renewals; should one be late, this sees nothing, and nothing fails
    assert not line.files and line.writes == written


_STORE = """
import org.apache.hadoop.fs.*;

public class Store extends RawLocalFileSystem {
  public static class Tagged extends FileStatus implements EtagSource {
    public Tagged(FileStatus file) throws java.io.IOException { super(file); }
    public String getEtag() { return "e-" + getPath().getName(); }
  }
  public java.net.URI getUri() { return java.net.URI.create("store:///"); }
  public boolean hasPathCapability(Path path, String what) { return what.equals("fs.capability.etags.available"); }
  public FileStatus[] listStatus(Path path) throws java.io.IOException {
    java.io.File[] files = new java.io.File(path.toUri().getPath()).listFiles();
    FileStatus[] found = new FileStatus[files.length];
    for (int i = 0; i < files.length; i++) {
      found[i] = new Tagged(new FileStatus(5, false, 1, 1, 6000, new Path(path, files[i].getName())));
    }
    return found;
  }
}"""


@pytest.mark.spark
def test_what_an_object_store_calls_a_content_is_known(spark: SparkSession, tmp_path: Path) -> None:
    """Also where Spark, which listed the files, did not keep it."""
    jvm: Any = spark._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_STORE)
    conf = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    before = conf.getClassLoader()
    (tmp_path / "b c").touch()

    def listing(*addresses: str) -> dict[str, Stamp]:
        files = jvm.java.util.ArrayList()
        for address in addresses:
            files.add(
                jvm.org.apache.hadoop.fs.FileStatus(5, False, 1, 1, 6_000, jvm.org.apache.hadoop.fs.Path(address))
            )
        return stamps(spark, jvm.scala.jdk.javaapi.CollectionConverters.asScala(files))

    conf.setClassLoader(compiler.getClassLoader())
    conf.set("fs.store.impl", "Store")
    try:
        found = listing(f"store://{tmp_path}/b c", f"file:{tmp_path}/b c")
    finally:
        conf.unset("fs.store.impl")
        conf.setClassLoader(before)
    assert found == {f"store:{tmp_path}/b c": Stamp(5, 6_000, "e-b c"), f"file:{tmp_path}/b c": Stamp(5, 6_000)}
    assert listing() == {}
    inputs = Inputs(found)
    assert Inputs.of_json(json.loads(json.dumps(inputs.as_json()))) == inputs
    overwritten = Inputs({path: stamp._replace(etag=stamp.etag and "e-2") for path, stamp in found.items()})
    assert refusal(lambda: inputs.check(overwritten)) == "INPUT_CHANGED"  # as long, and in the same second
