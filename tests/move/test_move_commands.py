"""``headrace run``, ``suspend``, ``resume``, ``tickets``, ``vacate``: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import typer
from programs import LIMIT, refusal, taken
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.move import commands, runs
from headrace.move.commands import SUSPENDED
from headrace.move.listing import here, listed, there
from headrace.move.ticket import Ticket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERY = """CREATE TEMPORARY VIEW numbers AS SELECT id % 5 AS k, id AS n FROM range(1000);
SELECT a.k, count(*) AS c FROM (SELECT k, count(*) AS c FROM numbers GROUP BY k) a CROSS JOIN range({rows}) b
WHERE (a.k * b.id) % 1000003 = 7 GROUP BY a.k ORDER BY a.k"""
CONF = [
    "--conf",
    "spark.master=local[1]",
    "--conf",
    "spark.driver.memory=2g",
    "--conf",
    "spark.sql.shuffle.partitions=2",
]


def start(folder: Path, *args: str) -> subprocess.Popen[str]:
    source = str(Path(headrace.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", *args],
        cwd=folder,
        env={**os.environ, "HEADRACE_RUNS": str(folder / "runs"), "PYTHONPATH": source},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_vacate_suspends_a_query_of_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path / "runs"))
    (tmp_path / "query.sql").write_text(QUERY.format(rows=8_000_000_000_000))  # it never ends
    with start(tmp_path, "run", "-f", "query.sql", *CONF) as running:
        try:
            vacated(running, tmp_path)
        finally:
            running.kill()


def vacated(running: subprocess.Popen[str], tmp_path: Path) -> None:
    deadline = time.monotonic() + LIMIT
    while not (found := runs.living()):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (tmp_path / "tickets").rmdir()
    (tmp_path / "tickets").write_text("no folder")
    with pytest.raises(headrace.HeadraceError, match="tickets") as caught:
        found[0].suspend(runs.Order(finish=False))
    assert caught.value.condition == "NOT_SUSPENDED" and runs.living() == found  # it goes on
    (tmp_path / "tickets").unlink()
    (tmp_path / "gone").touch()
    done = start(tmp_path, "vacate", "--grace", "300s", "--notice", "gone")
    out, err = done.communicate(timeout=LIMIT)
    assert done.returncode == 0, err
    assert out.startswith(f"{found[0].id}: file:") and runs.living() == []
    _, said = running.communicate(timeout=LIMIT)
    assert running.returncode == SUSPENDED and f"headrace resume tickets/{found[0].id}" in said
    ((ticket, state, size, done_of, _, query),) = listed(here(tmp_path / "tickets")).rows()
    assert (ticket, state) == (str(tmp_path / "tickets" / found[0].id), "ready")
    assert size >= 0 and " of " in done_of and query.startswith("CREATE TEMPORARY VIEW numbers")


class Stub:
    """A query that runs until it is suspended, and a Spark that is not needed."""

    id, status, restarted = "stub", "running", None

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.graces: list[float] = []

    def suspend(self, path: str, *, finish: bool, grace: float) -> Ticket:
        self.graces.append(grace)
        if self.failures:
            os.kill(os.getpid(), signal.SIGTERM)  # asked once more
            raise self.failures.pop()
        return Ticket(path, {})

    def stop(self) -> None:
        self.status = "stopped"


@pytest.fixture
def attend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Have ``headrace run`` attend a stub that gets SIGTERM as it begins."""
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path / "runs"))

    def attended(stub: Any, grace: str) -> int:
        def begin(_: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            return stub

        monkeypatch.setattr(commands, "_spark", lambda conf: stub)
        monkeypatch.setattr(commands.Folder, "__init__", lambda *_: None)
        monkeypatch.setattr(commands.Folder, "require_writable", lambda _: None)
        with pytest.raises(typer.Exit) as left:
            commands._attend(begin, "SELECT 1", "tickets", grace, 1, None, lambda *_: None, lambda _: None)
        return int(left.value.exit_code)

    return attended


def test_stages_in_flight_have_the_grace_that_was_given(
    attend: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = Stub()
    assert attend(stub, "5m") == SUSPENDED and stub.graces == [300]
    monkeypatch.setattr(runs.Entry, "order", lambda _: runs.Order(grace=120))
    stub = Stub()
    assert attend(stub, "60s") == SUSPENDED and stub.graces == [120]


def test_a_query_goes_on_whatever_keeps_an_ordered_suspend_from_its_end(
    attend: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs.Entry, "order", lambda _: runs.Order(grace=1))
    stub = Stub(RuntimeError("nobody thought of it"), headrace.HeadraceError("TICKET_EXISTS", "not empty"))
    assert attend(stub, "60s") == SUSPENDED and stub.graces == [1, 1, 1]


@pytest.mark.spark
def test_where_tickets_cannot_go_is_known_before_the_query_begins(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(commands, "_spark", lambda conf: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr("headrace.move.run", lambda *_: pytest.fail("it began"))
    (tmp_path / "file").touch()
    for tickets, condition in ((tmp_path / "file" / "t", "TICKET_NOT_WRITTEN"), ("nosuch://a/b", "PATH_NOT_USABLE")):
        done = CliRunner().invoke(app, ["run", "SELECT 1", "--tickets", str(tickets)])
        assert done.exit_code == 1 and done.stderr.startswith(f"error: [{condition}]"), done.stderr
        assert str(tickets) in done.stderr
    commands.Folder(spark, str(tmp_path / "a" / "b")).require_writable()
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.spark
def test_tickets_are_listed_wherever_spark_can_read(
    spark: SparkSession, numbers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tickets"
    taken(spark, folder / "ready")
    headrace.resume(spark, taken(spark, folder / "used")).result()
    for name in ("damaged", "killed", "nothing"):
        (folder / name / ("" if name == "nothing" else "state")).mkdir(parents=True)
    (folder / "damaged" / "ticket.json").write_text("{}")
    (folder / "file").touch()

    def facts(found: list[tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        return {Path(ticket).name: (state, size, done, query) for ticket, state, size, done, _, query in found}

    found = facts(listed(here(folder)).rows())
    assert {name: row[0] for name, row in found.items()} == {
        "ready": "ready",
        "used": "used",
        "damaged": "damaged",
        "killed": "not finished",
    }
    assert facts(listed(there(spark, f"file://{folder}")).rows()) == found
    assert refusal(lambda: listed(there(spark, f"file:{folder}/file"))) == "PATH_NOT_FOUND"
    monkeypatch.setattr(commands, "_spark", lambda conf: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    for address in (f"file://{folder}", f"file:{folder}"):
        done = CliRunner().invoke(app, ["tickets", address])
        assert done.exit_code == 0 and "not finished" in done.stdout
    for address, condition in ((f"file://{folder}/none", "PATH_NOT_FOUND"), ("nosuch://a/b", "PATH_NOT_USABLE")):
        done = CliRunner().invoke(app, ["tickets", address])
        assert done.exit_code == 1 and done.stderr.startswith(f"error: [{condition}]"), done.stderr


class Answers(BaseHTTPRequestHandler):
    """What an address answers, one after the other; the last one again and again."""

    left: ClassVar[list[bytes]]

    def do_GET(self) -> None:
        self.wfile.write(self.left.pop(0) if len(self.left) > 1 else self.left[0])

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def answering(answers: list[bytes]) -> Iterator[str]:
    """The address of a server on this machine that gives these answers."""
    handler = type("Handler", (Answers,), {"left": answers})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/notice"
        server.shutdown()


NO = b"HTTP/1.0 404 Not Found\r\n\r\n"
YES = b"HTTP/1.0 200 OK\r\n\r\n{}"


def test_only_an_answer_of_success_is_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(commands, "_ANSWER_SECONDS", LIMIT)
    lost = b"HTTP/1.0 302 \r\nLocation: http://[::1\r\n\r\n"
    with answering([NO, b"no HTTP at all\r\n\r\n", b"", lost, YES]) as url:
        assert [commands._given(url) for _ in range(5)] == [False, False, False, False, True]
    assert not commands._given(url)  # nobody answers


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """The process that gets the signal for a query ``x``, which stands in the entries as long as it lives."""
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    process = subprocess.Popen(["sleep", "3600"])
    entry = runs.Entry("x", "SELECT 1")
    runs.RunSeen("x").put({**runs.RunSeen("x").read(), "pid": process.pid})

    def answer() -> None:
        process.wait()
        entry.close(ticket=f"file:/x after {entry.order()}")

    answering = threading.Thread(target=answer)
    answering.start()
    yield process
    process.kill()
    answering.join()


SUSPENDED_X = f"x: file:/x after {runs.Order(grace=300.0)}\n"


@pytest.mark.parametrize("kind", ["file", "address"])
def test_vacate_waits_for_a_notice(
    kind: str, asked: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_ASK_SECONDS", 0.1)
    file = tmp_path / "gone"
    left = [NO]
    given, looks, untouched = commands._given, 0, list[bool]()

    def look(notice: str) -> bool:
        nonlocal looks
        looks += 1
        if looks == 3:
            untouched.append(asked.poll() is None)
            file.touch()
            left[:] = [YES]
        return given(notice)

    monkeypatch.setattr(commands, "_given", look)
    with answering(left) as url:
        done = CliRunner().invoke(app, ["vacate", "--grace", "300s", "--notice", str(file) if kind == "file" else url])
    assert untouched == [True] and (done.exit_code, done.stdout) == (0, SUSPENDED_X), done.stderr
    assert asked.wait() == -signal.SIGTERM


def test_vacate_waits_for_sigterm(asked: subprocess.Popen[bytes], tmp_path: Path) -> None:
    vacating = start(tmp_path, "vacate", "--grace", "300s", "--wait")
    assert vacating.stderr is not None and vacating.stderr.readline() == "waiting for SIGTERM\n"
    time.sleep(0.2)  # what must not happen may be late: then this sees nothing, and nothing fails
    assert asked.poll() is None and vacating.poll() is None
    vacating.send_signal(signal.SIGTERM)
    assert vacating.communicate(timeout=LIMIT)[0] == SUSPENDED_X and vacating.returncode == 0
    assert asked.wait() == -signal.SIGTERM


@pytest.mark.parametrize(
    ("args", "condition"),
    [
        (["run"], "USAGE"),
        (["run", "-f", "nowhere.sql"], "PATH_NOT_FOUND"),
        (["run", "SELECT 1", "--grace", "soon"], "USAGE"),
        (["suspend", "nobody"], "RUN_NOT_FOUND"),
        (["tickets", "nowhere"], "PATH_NOT_FOUND"),
        (["vacate", "--grace", "-1"], "USAGE"),
        (["vacate", "--notice", "nosuch://host/notice"], "USAGE"),
        (["vacate", "--notice", "http://[::1/notice"], "USAGE"),
        (["vacate", "--notice", "http://host:port/notice"], "USAGE"),
    ],
)
def test_wrong_words_are_one_line(
    args: list[str], condition: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path))
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 1 and done.stderr.startswith(f"error: [{condition}]"), done.stderr


def test_a_query_that_died_is_no_longer_listed_and_its_number_may_be_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path))
    stranger = subprocess.Popen(["sleep", "3600"])

    def dead(**changes: object) -> runs.RunSeen:
        """What a query leaves that was killed: nobody holds its lock."""
        entry = runs.Entry("x", "SELECT 1")
        entry._lock.release()
        run = runs.RunSeen("x")
        run.put({**run.read(), "pid": stranger.pid, **changes})
        return run

    def suspended(run: runs.RunSeen) -> str:
        with pytest.raises(headrace.HeadraceError) as caught:
            run.suspend(runs.Order())
        return str(caught.value)

    try:
        assert "[NOT_SUSPENDED] the process of query x is gone" in suspended(dead())
        assert "[RUN_NOT_FOUND]" in suspended(runs.RunSeen("x"))
        dead()
        assert runs.living() == [] and list(tmp_path.iterdir()) == []
        dead()
        assert CliRunner().invoke(app, ["vacate"]).exit_code == 0
        for elsewhere in ({"host": "elsewhere"}, {"processes": "of another container"}):
            run = dead(**elsewhere)
            assert "runs on" in suspended(run)
            assert runs.living() == [] and run.read()["pid"] == stranger.pid  # it may well be alive there
        time.sleep(0.1)  # a signal may be late: then this sees nothing, and nothing fails
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
