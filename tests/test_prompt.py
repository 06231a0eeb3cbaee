"""The prompt on a terminal, and how processes end: real ones, a real pseudo-terminal, real keys."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import headrace

LIMIT = 300.0
"""Seconds until a test gives up waiting for what must come."""
ENDLESS = "SELECT sum(x.a * y.a + z.a) AS s FROM r x, r y, r z"


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *command: str, cwd: Path) -> None:
        self._screen, end = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=end, stdout=end, stderr=end, cwd=cwd, start_new_session=True, preexec_fn=_own_terminal
        )
        os.close(end)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def wait_for(self, text: str) -> str:
        """What is shown until this text comes; the text is not looked at again."""
        deadline = time.monotonic() + LIMIT
        while not (found := re.search(text, self.shown)):
            assert time.monotonic() < deadline, f"no {text!r} in {self.shown!r}"
            if select.select([self._screen], [], [], 0.2)[0]:
                try:
                    self.shown += os.read(self._screen, 65_536).decode(errors="replace")
                except OSError:  # the command has ended
                    assert re.search(text, self.shown), self.shown
        before, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return before

    def end(self) -> int:
        """Wait until the command has ended; its status."""
        while select.select([self._screen], [], [], 0)[0]:
            try:
                if not os.read(self._screen, 65_536):
                    break
            except OSError:
                break
        return self.process.wait(LIMIT)

    def children(self) -> set[int]:
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True)
        return {int(pid) for pid in found.stdout.split()} if self.process.poll() is None else set()


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def terminal(*command: str, cwd: Path) -> Iterator[Terminal]:
    opened = Terminal(*command, cwd=cwd)
    try:
        yield opened
    finally:
        if opened.process.poll() is None:
            opened.process.kill()
            opened.process.wait()
        os.close(opened._screen)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


HEADRACE = (sys.executable, "-m", "headrace")


@pytest.fixture
def prompt(tmp_path: Path) -> Iterator[Terminal]:
    with headrace.connect(tmp_path / "d.hr") as db:
        db.sql("CREATE TABLE r (a INT)")
        db.insert("r", {"a": np.arange(100_000, dtype="int32")})
    with terminal(*HEADRACE, "sql", "--db", "d.hr", cwd=tmp_path) as opened:
        opened.wait_for("headrace> ")
        yield opened


def test_ctrl_c_ends_the_statement_and_not_the_session(prompt: Terminal) -> None:
    # Python hears a Ctrl-C that comes just before it reads a line only with that line: hence the empty ones.
    for keys in ("\x03", "\x03\x03\x03"):
        prompt.type(f"\nSELECT 'beg' || 'un' AS it; {ENDLESS};\n")
        prompt.wait_for("\nbegun")
        prompt.type(keys)
        prompt.wait_for("interrupted")
        prompt.wait_for("headrace> ")
    prompt.type("\nCREATE STREAM s (a INT) WITH (timeout = '1000 seconds');\n")
    prompt.type("SELECT 'beg' || 'un' AS it; SELECT a FROM s;\n")
    prompt.wait_for("\nbegun")
    prompt.type("\x03")
    prompt.wait_for("interrupted")
    prompt.wait_for("headrace> ")
    prompt.type("\nSELECT begun of nothing\x03")  # and a line that is not finished
    prompt.type("\nSELECT 40 + 2 AS it;\n")
    prompt.wait_for("\n42")
    prompt.type("\x04")
    assert prompt.end() == 0


@pytest.mark.parametrize("leave", ["exit", "QUIT;", " quit ; "])
def test_help_and_leaving_need_no_semicolon(prompt: Terminal, leave: str) -> None:
    for word in ("help", "HELP;", "?"):
        prompt.type(f"{word}\n")
        assert "SHOW" in prompt.wait_for("exit")
        prompt.wait_for("headrace> ")
    prompt.type("SELECT 40 + 2 AS\nhelp\n;\n")  # a word of a statement is not asked for
    prompt.wait_for("\n  42")
    prompt.wait_for("headrace> ")
    prompt.type(f"{leave}\n")
    assert prompt.end() == 0


def test_ctrl_c_while_spark_starts_leaves_no_process(prompt: Terminal) -> None:
    prompt.type("SELECT percentile(a, 0.5) FROM r;\n")
    until(prompt.children)
    started = prompt.children()
    prompt.type("\x03")
    prompt.wait_for("interrupted")
    prompt.wait_for("headrace> ")
    until(lambda: not prompt.children() & started)
    prompt.type("SELECT percentile(a, 0.5) + 0.25 AS it FROM r WHERE a < 100;\n")  # and it starts again
    prompt.wait_for("\n49.75")
    prompt.type("\x04")
    assert prompt.end() == 0
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in started))


def test_a_command_interrupted_while_spark_starts_leaves_no_process(tmp_path: Path) -> None:
    with terminal(*HEADRACE, "sql", "SELECT percentile(a, 0.5) FROM VALUES (1) AS v(a)", cwd=tmp_path) as command:
        until(command.children)
        started = command.children()
        command.type("\x03")
        command.wait_for("interrupted")
        assert command.end() == 130
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in started))


OWN_JOBS = """
import signal, threading, time
import headrace
db = headrace.connect()
db.sql("CREATE TABLE t (a BIGINT)")
db.insert("t", {"a": list(range(100_000))})
spark = db.spark
spark.range(100_000).createTempView("many")
tracker = spark.sparkContext.statusTracker()

def say_when_it_runs(seen):
    while not set(tracker.getActiveJobsIds()) - seen:
        time.sleep(0.01)
    print("run" + "ning", flush=True)

def watched():
    threading.Thread(target=say_when_it_runs, args=(set(tracker.getActiveJobsIds()),)).start()

def cancelled():
    while tracker.getActiveJobsIds():
        time.sleep(0.01)
    print("then", tracker.getJobInfo(max(tracker.getJobIdsForGroup())).status, flush=True)

def sleeping(_):
    time.sleep(1_000_000)

def three(table):
    x, y, z = (table.alias(name) for name in "xyz")
    return x.crossJoin(y).crossJoin(z).selectExpr("sum(hash(x.a, y.a, z.a)) AS s")
"""
JOBS = {
    "SQL": "spark.sql('SELECT sum(hash(x.id, y.id, z.id)) FROM many x, many y, many z').collect()",
    "a table": "three(db.table('t')).collect()",
    "rows as Arrow": "three(db.table('t')).toArrow()",
    "an RDD": "spark.sparkContext.parallelize([0]).map(sleeping).collect()",
}


def test_ctrl_c_cancels_what_a_program_runs_in_spark_itself(tmp_path: Path) -> None:
    text = [OWN_JOBS]
    for job in JOBS.values():
        text.append(f"watched()\ntry:\n    {job}\nexcept KeyboardInterrupt:\n    cancelled()")
    # A statement of Headrace's is ended as ever, and a job of another thread is nobody's business.
    statement = "SELECT percentile(x.a * y.a + z.a, 0.5) FROM t x, t y, t z"
    text.append(
        f"watched()\ntry:\n    db.sql('{statement}')\nexcept KeyboardInterrupt as it:\n    print(it)\n    cancelled()"
    )
    text.append("""
def other():
    try:
        spark.sparkContext.parallelize([0]).map(sleeping).collect()
    except Exception as error:
        print("ended", "by hand" if asked else "too early", flush=True)
asked = False
thread = threading.Thread(target=other)
watched()
thread.start()
try:
    time.sleep(1_000_000)
except KeyboardInterrupt:
    print("goes on", len(tracker.getActiveJobsIds()))
asked = True
spark.sparkContext.cancelAllJobs()
thread.join()
db.close()
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
""")
    (tmp_path / "program.py").write_text("\n".join(text))
    program = subprocess.Popen(
        [sys.executable, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    watch = threading.Timer(LIMIT, program.kill)
    watch.start()
    said = []
    try:
        assert program.stdout is not None
        for line in program.stdout:
            if line == "running\n":
                program.send_signal(signal.SIGINT)
            else:
                said.append(line.strip())
        assert program.wait() == 0
    finally:
        watch.cancel()
        program.kill()
        program.wait()
    statement_ended = ["the statement changed nothing", "then FAILED"]
    assert said == ["then FAILED"] * len(JOBS) + statement_ended + ["goes on 1", "ended by hand", "True"]


def test_ctrl_c_at_pythons_prompt_cancels_a_job(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(OWN_JOBS)
    with terminal(sys.executable, "-q", cwd=tmp_path) as python:
        python.wait_for(">>> ")
        python.type("from jobs import *\n")
        python.wait_for(">>> ")
        for _ in range(2):
            python.type(f"watched(); {JOBS['SQL']}\n")
            python.wait_for("running")
            python.type("\x03")
            python.wait_for("\nKeyboardInterrupt\r\n>>> ")
            python.type("cancelled()\n")
            python.wait_for("then FAILED")
        python.type("db.sql('SELECT 40 + 2 AS it').rows()\n")
        python.wait_for("42")
        python.type("db.close(); exit()\n")
        assert python.end() == 0


OPENED = """
import headrace
db = headrace.connect("d.hr")
db.sql("CREATE STREAM s (a INT) WITH (timeout = '1000 seconds')")
db.sql("CREATE VIEW v AS SELECT count(*) AS n FROM s")
db.insert("s", [(1,)])
"""
PROGRAMS = {
    "a stream query that still waits": 'db.sql("SELECT sum(a) FROM s")',
    "a stream query that has rows to give": "b = db.sql('SELECT a FROM s').batches(); db.insert('s', [(1,)]); next(b)",
    "an error": "r = db.sql('SELECT a FROM s'); db.sql('SELECT nope FROM s')",
    "an interrupt": "import signal; r = db.sql('SELECT a FROM s'); signal.raise_signal(signal.SIGINT)",
    "nothing else": "pass",
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_that_closes_nothing_ends_quietly(program: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", OPENED + program], cwd=tmp_path, capture_output=True, text=True)
    assert "leaked" not in done.stderr and "ignored" not in done.stderr, done.stderr
    assert (done.stderr == "") == (done.returncode == 0), done.stderr


def test_the_end_of_a_forked_child_is_not_the_end_of_its_parents_database(tmp_path: Path) -> None:
    text = (
        "import os; pid = os.fork()\nif pid: os.waitpid(pid, 0); print(db.insert('s', [(2,)]), db.sql('FROM v').rows())"
    )
    done = subprocess.run([sys.executable, "-c", OPENED + text], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split("\n")[0] == "1 [(2,)]", done
