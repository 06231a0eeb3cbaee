"""The command line: right answers on stdout, one clear line on stderr, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.errors import Position
from headrace.sql.script import split_statements

SCRIPT = """
-- a comment; with a semicolon
CREATE STREAM s (a INT, b STRING);
CREATE VIEW v AS SELECT b, sum(a) AS a FROM s GROUP BY b;
INSERT INTO s VALUES (1, 'x;y'), (2, 'größe');
SELECT * FROM v ORDER BY a
"""
ANSWER = ["b     | a", "------+--", "x;y   | 1", "größe | 2"]


def run(*args: str, stdin: str | None = None) -> tuple[int, str, str]:
    """In this process: exit status, stdout, stderr."""
    result = CliRunner().invoke(app, list(args), input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def process(*args: str, stdin: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """As a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "headrace", *args],
        input=stdin, capture_output=True, text=True, timeout=500, cwd=cwd, encoding="utf-8",
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip


def test_statements_as_argument_file_and_stdin_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "x.sql"
    file.write_text(SCRIPT, encoding="utf-8")
    outputs = [
        run("sql", SCRIPT),
        run("sql", "--file", str(file)),
        run("sql", "-f", str(file)),
        run("sql", stdin=SCRIPT),
    ]
    for status, out, err in outputs:
        assert (status, err) == (0, "")
        assert out.splitlines()[-4:] == ANSWER
        assert out.splitlines()[0] == "stream s created"


def test_a_defect_is_one_line_that_says_what_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("headrace.statement.read.QueryReader.known", broken)
    status, out, err = run("sql", "SELECT 1")
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    for told in ("error: [INTERNAL_ERROR] KeyError: 'lost'", "defect", headrace.__version__, "HEADRACE_DEBUG"):
        assert told in err
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    shown = CliRunner().invoke(app, ["sql", "SELECT 1"]).exception
    assert isinstance(shown, headrace.HeadraceError)
    assert isinstance(shown.__cause__, KeyError)


def test_a_large_script_is_cut_by_its_statements() -> None:
    script = "CREATE TABLE t (a INT, b STRING);" + "INSERT INTO t VALUES (1, 'a;b'), (2, 'q');" * 20_000
    found = split_statements(script)
    assert (len(found), found[-1].text) == (20_001, "INSERT INTO t VALUES (1, 'a;b'), (2, 'q')")
    with pytest.raises(headrace.HeadraceError) as error:
        split_statements("SELECT 1;\n  SELECT 'open; SELECT 2")
    assert (error.value.condition, str(error.value.position)) == ("PARSE_SYNTAX_ERROR", "line 2, column 10")
    assert [p.text for p in split_statements("/* a /* ; */ */ SELECT r'\\'; /* end */")] == ["SELECT r'\\'"]


def test_a_real_process(tmp_path: Path) -> None:
    done = process("sql", "--db", "plant.hr", "--create", stdin=SCRIPT, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-4:] == ANSWER
    again = process(
        "sql", "--db", "plant.hr", "INSERT INTO s VALUES (5, 'x;y'); SELECT a FROM v ORDER BY a", cwd=tmp_path
    )
    assert again.returncode == 0 and again.stdout.splitlines()[-2:] == ["2", "6"]
    with headrace.connect(tmp_path / "plant.hr"):
        refused = process("sql", "--db", "plant.hr", "SHOW VIEWS", cwd=tmp_path)
    assert refused.returncode == 1 and refused.stderr.startswith("error: [DATABASE_IN_USE]")
    assert "Traceback" not in refused.stderr and refused.stdout == ""


def test_it_stops_at_the_first_failure_and_keeps_what_was_done(tmp_path: Path) -> None:
    text = "CREATE TABLE t (a INT); INSERT INTO t VALUES (1); INSERT INTO t VALUES ('x'); INSERT INTO t VALUES (2)"
    status, out, err = run("sql", "--db", str(tmp_path / "d"), "--create", text)
    assert status == 1 and out.splitlines() == ["table t created", "1 row inserted into t"]
    assert err.startswith("error: [INCOMPATIBLE_DATA_FOR_TABLE]") and len(err.splitlines()) == 1
    assert run("sql", "--db", str(tmp_path / "d"), "SELECT * FROM t")[1].splitlines()[-1] == "1"


ERRORS = [
    (["sql", "SELEC"], "PARSE_SYNTAX_ERROR"),
    (["sql", "SELECT 'open"], "PARSE_SYNTAX_ERROR"),
    (["sql", "SELECT '"], "PARSE_SYNTAX_ERROR] a quote ' is not closed (line 1, column 8)"),
    (["sql", "SELECT"], "PARSE_SYNTAX_ERROR"),
    (["sql", "SELECT * FROM nowhere"], "TABLE_OR_VIEW_NOT_FOUND"),
    (["sql", "SELECT 1 / 0"], "DIVIDE_BY_ZERO"),
    (["sql", "SELECT 2147483647 + 1"], "ARITHMETIC_OVERFLOW"),
    (["sql", "SELECT CAST('x' AS INT)"], "CAST_INVALID_INPUT"),
    (["sql", "CREATE STREAM s (a INT); COPY s FROM 'no.csv'"], "PATH_NOT_FOUND"),
    (["sql", "CREATE STREAM s (a INT); CREATE VIEW v AS SELECT a FROM s"], "STREAM_NOT_GROUPED"),
    (["sql", "--file", "no.sql"], "PATH_NOT_FOUND"),
    (["sql", "--file", "."], "PATH_NOT_FOUND"),
    (["sql", "--file", "bytes.sql"], "INVALID_UTF8"),
    (["sql", "--file", "bytes.sql", "SELECT 1"], "USAGE"),
    (["sql", "--db", "bytes.sql", "SELECT 1"], "NOT_A_DATABASE"),
    (["sql", "--db", "other", "SELECT 1"], "NOT_A_DATABASE"),
    (["sql", "--db", "bytes.sql/below", "SELECT 1"], ""),
    (["sql", "--db", "/proc/none/d", "SELECT 1"], ""),
    (["sql", "script.sql"], "USAGE"),
    (["sql", "UPDATE t SET a = 1"], "TABLE_OR_VIEW_NOT_FOUND"),
    (["sql", "BEGIN"], "NOT_YET_SUPPORTED"),
    (["sql", "CREATE TABLE t (a INTEGR)"], "UNSUPPORTED_DATATYPE"),
    (["sql", "CREATE STREAM s (a VARIANT)"], "NOT_YET_SUPPORTED"),
    (["explain", "SELECT nothing"], "UNRESOLVED_COLUMN"),
    (["explain", "--db", "none.hr", "SELECT 1"], "PATH_NOT_FOUND"),
    (["explain", "DROP VIEW v"], "NOT_YET_SUPPORTED"),
    (["explain", ""], ""),
]


@pytest.mark.parametrize(("args", "condition"), ERRORS, ids=[" ".join(a)[:60] for a, _ in ERRORS])
def test_errors(args: list[str], condition: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bytes.sql").write_bytes(b"SELECT '\xff'")
    Path("script.sql").write_text("SELECT 1")
    Path("other").mkdir()
    Path("other/file").touch()
    status, out, err = run(*args)
    assert status == 1
    assert err.startswith(f"error: [{condition}") and "Traceback" not in out + err
    assert len(err.splitlines()) == 1, err
    assert not Path("none.hr").exists()


def test_errors_say_what_to_do_instead() -> None:
    for text in ("UPDATE t SET a = 1", "CREATE TABLE t (a INTEGR)", "CREATE STREAM s (a)", "BEGIN", "SELECT * FROM t"):
        assert "Hint: " in run("sql", text)[2], text
    assert "--db" in run("sql", "SELECT * FROM t")[2]
    assert "--db" not in run("sql", "CREATE TABLE t (a INT); SELECT * FROM u")[2]


def test_scripts_may_have_a_byte_order_mark_but_must_be_text(tmp_path: Path) -> None:
    script = tmp_path / "some.sql"
    script.write_bytes(b"\xef\xbb\xbfSELECT 1 AS a")
    assert run("sql", "--file", str(script))[1].splitlines()[-1] == "1"
    done = subprocess.run([sys.executable, "-m", "headrace", "sql"], input=b"SELECT '\xff'", capture_output=True)
    assert done.returncode == 1 and done.stderr.startswith(b"error: [INVALID_UTF8] stdin")


def test_a_full_disk_and_a_poor_terminal() -> None:
    command = [sys.executable, "-m", "headrace", "sql", "SELECT 'größe' AS a"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=500)
    assert done.returncode == 1 and done.stderr.startswith("error: [OUTPUT_NOT_WRITTEN]")
    assert len(done.stderr.splitlines()) == 1
    poor = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=poor)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.splitlines()[-1] == "gr\\xf6\\xdfe"


def test_errors_in_a_script_tell_where_in_the_script(tmp_path: Path) -> None:
    script = tmp_path / "some.sql"
    script.write_text("SELECT 1 AS a;\n\n-- a; comment\nSELECT 2 AS b; SELECT nope;\n")
    assert "(line 4, column 23)" in run("sql", "--file", str(script))[2]
    assert "(line 1, column 18)" in run("sql", "SELECT 1; SELECT nope")[2]
    assert "(line 3, column 3)" in run("sql", "SELECT 1;\n  SELECT\n  nope")[2]
    assert "(line 3, column 2)" in run("sql", "\n\n SELEC 1")[2]


def test_errors_of_explain_tell_where_in_its_statement() -> None:
    for words in ("", "explain ", "EXPLAIN\t"):
        assert f"(line 1, column {len(words) + 8})" in run("explain", f"{words}SELECT nope")[2]
    assert "(line 2, column 3)" in run("explain", "SELECT\n  nope")[2]
    assert "(line 1, column 1)" in run("explain", "SELEC 1")[2]
    assert "(line 1, column 1)" in run("explain", "")[2]


def test_a_long_script_is_read_in_one_pass() -> None:
    script = "SELECT 1;\n" * 20_000 + "SELECT nope"
    found = split_statements(script)
    assert len(found) == 20_001 and found[-1].at == Position(20_001, 1)
    assert sum(len(s.text) for s in found) < len(script), "a statement carries nothing of those before it"


def test_an_unforeseen_error_is_a_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the wheel came off")

    monkeypatch.setattr("headrace.database.Database.sql", broken)
    status, out, err = run("sql", "SELECT 1")
    assert status == 1 and "Traceback" not in out + err
    assert "RuntimeError" in err and "the wheel came off" in err and len(err.splitlines()) <= 2


def test_a_statement_too_deep_for_the_parser_is_an_error() -> None:
    status, out, err = run("sql", "SELECT " + "(" * 3_000 + "1" + ")" * 3_000)
    assert status == 1 and out == "" and err.startswith("error: [FAILED_TO_PARSE_TOO_COMPLEX]")


def test_nothing_to_do_is_no_error() -> None:
    assert run("sql", stdin="") == (0, "", "")
    assert run("sql", "/* only a comment */") == (0, "", "")
    assert run("sql", " ; ; ") == (0, "", "")


def test_rows_are_cut_where_asked() -> None:
    union = " UNION ALL ".join(f"SELECT {i} AS n" for i in range(30))
    assert run("sql", union)[1].splitlines()[-1] == "... 10 more rows"
    assert run("sql", "--rows", "29", union)[1].splitlines()[-1] == "... 1 more row"
    assert len(run("sql", "-n", "100", union)[1].splitlines()) == 32


def test_explain(tmp_path: Path) -> None:
    path = str(tmp_path / "d")
    run("sql", "--db", path, "--create", "CREATE STREAM s (a INT, b STRING)")
    status, out, err = run("explain", "--db", path, "CREATE VIEW v AS SELECT b, avg(a) FROM s GROUP BY b")
    assert (status, err) == (0, "")
    for text in ("Continuous view v", "Each insert into s", "native", "State s0", "Each query"):
        assert text in out
    assert run("sql", "--db", path, "SHOW VIEWS")[1].splitlines()[2:] == [], "EXPLAIN makes nothing"
    assert run("explain", "SELECT 1 AS one")[1].splitlines()[2].startswith("Query, by native")


def test_help_names_every_command() -> None:
    status, out, _ = run("--help")
    assert status == 0
    for command in ("sql", "explain", "demo", "version"):
        assert command in out
        status, text, _ = run(command, "--help")
        assert status == 0 and "Usage" in text
    assert "--db" in run("sql", "--help")[1] and "--file" in run("sql", "--help")[1]
    assert run("version")[1].strip() == headrace.__version__


@pytest.mark.parametrize(
    "args",
    [["nothing"], ["sql", "--nothing"], ["sql", "-n", "-3", "SELECT 1"], ["demo", "--events", "many"], ["explain"]],
)
def test_wrong_usage_is_status_2(args: list[str]) -> None:
    status, out, err = run(*args)
    assert status == 2 and "Traceback" not in out + err and err


def test_a_closed_pipe_is_quiet() -> None:
    query = "; ".join(f"SELECT {i} AS n" for i in range(200))
    shell = f'"{sys.executable}" -m headrace sql "{query}" | head -n 1'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=500)
    assert "Traceback" not in done.stderr and done.stdout.startswith("n")
