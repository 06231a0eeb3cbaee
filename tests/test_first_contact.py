"""What somebody meets who tries Headrace for the first time: each error says what to write, and that works."""

from __future__ import annotations

import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.engine import workers
from headrace.engine.failures import from_spark
from headrace.errors import DataError, HeadraceError, NotYetSupported, StoreError
from headrace.statement.running_result import RunningResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def refusal(act: Any, *args: Any, **named: Any) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        act(*args, **named)
    assert caught.value.hint, "it says what to do"
    return caught.value


# Where a database is


def test_a_path_is_taken_as_a_shell_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with headrace.connect("~/x.hr") as db:
        assert db.path == tmp_path / "x.hr"
    assert os.listdir(tmp_path) == ["x.hr"]


@pytest.mark.parametrize(
    ("path", "condition", "says"),
    [
        ("s3://bucket/x.hr", "NOT_A_LOCAL_PATH", "db.export"),
        ("hdfs://name/x.hr", "NOT_A_LOCAL_PATH", "db.export"),
        ("file:///tmp/x.hr", "NOT_A_LOCAL_PATH", ": /tmp/x.hr"),
        ("none/such/x.hr", "PATH_NOT_FOUND", "mkdir -p"),
        ("", "PATH_NOT_FOUND", "temporary"),
    ],
)
def test_a_path_that_cannot_be_one(
    path: str, condition: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refusal(headrace.connect, path)
    assert error.condition == condition and says in str(error)
    if path:
        for command in (["sql", "--db", path, "SELECT 1"], ["sql", "--create", "--db", path, "SELECT 1"]):
            done = CliRunner().invoke(app, command)
            assert done.exit_code == 1 and done.stderr.startswith(f"error: [{condition}]")
    assert os.listdir(tmp_path) == []


def test_a_slip_in_the_name_of_a_database_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, list(args))
        return done.exit_code, done.stderr

    status, said = run("sql", "--db", "plant.hr", "SELECT 1")
    assert status == 1 and said.startswith("error: [PATH_NOT_FOUND]") and "--create makes a new one" in said
    assert run("sql", "--create", "SELECT 1")[0] == 1
    assert run("sql", "--db", "plant.hr", "--create", "CREATE TABLE t (a INT)") == (0, "")
    assert run("sql", "--db", "plant.hr", "--create", "SELECT a FROM t") == (0, "")
    for command in ("sql", "explain"):
        status, said = run(command, "--db", "plnat.hr", "SELECT 1")
        assert status == 1 and "did you mean plant.hr?" in said
    Path("empty").mkdir()
    assert run("sql", "--db", "empty", "SELECT 1")[0] == 1
    assert sorted(os.listdir(tmp_path)) == ["empty", "plant.hr"] and not os.listdir("empty")


def test_who_has_a_database_open_and_how_to_read_it_meanwhile(tmp_path: Path) -> None:
    text = "import headrace, sys; db = headrace.connect('d.hr'); print('open', flush=True); sys.stdin.read()"
    script = tmp_path / "holder.py"
    script.write_text(text)
    with subprocess.Popen(
        [sys.executable, str(script)], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        error = refusal(headrace.connect, tmp_path / "d.hr")
        assert holder.stdin is not None
        holder.stdin.close()
    assert error.condition == "DATABASE_IN_USE" and f"process {holder.pid} (holder.py)" in error.message
    assert "format('headrace')" in str(error) and str(tmp_path / "d.hr") in str(error) and "headrace.ring" in str(error)


def test_the_version() -> None:
    for command in ("--version", "version"):
        done = CliRunner().invoke(app, [command])
        assert (done.exit_code, done.stdout) == (0, f"{headrace.__version__}\n")


# What has no session


@pytest.mark.parametrize(
    "call",
    [
        lambda: headrace.run("SELECT 1"),  # type: ignore[arg-type]
        lambda: headrace.resume("ticket"),  # type: ignore[arg-type]
        lambda: headrace.connect(spark="local"),  # type: ignore[arg-type]
        lambda: headrace.register("spark"),  # type: ignore[arg-type]
    ],
)
def test_what_needs_a_session_says_so(call: Any) -> None:
    error = refusal(call)
    assert error.condition == "NOT_A_SPARK_SESSION" and "SparkSession.builder.getOrCreate()" in str(error)


def test_a_sample_of_nothing() -> None:
    assert refusal(headrace.reservoir, "people", 3).condition == "NOT_A_DATAFRAME"


# Hints that can be followed


def test_the_hint_for_what_alters_a_table_works_word_by_word() -> None:
    with headrace.connect() as db:
        db.sql("CREATE TABLE t (a INT PRIMARY KEY, b STRING)")
        db.sql("INSERT INTO t VALUES (1, '5'), (2, '6')")
        db.sql("CREATE VIEW v AS SELECT b FROM t WHERE a > 1")
        error = refusal(db.sql, "ALTER TABLE t ALTER COLUMN b TYPE INT")
        assert isinstance(error, NotYetSupported)
        anew = "CREATE OR REPLACE TABLE t AS SELECT …, CAST(b AS …) AS b FROM t"
        assert anew in str(error) and "without its PRIMARY KEY" in str(error)
        anew = anew.replace("…", "a", 1).replace("…", "INT")
        assert "drop v first" in str(refusal(db.sql, anew))
        db.sql("DROP VIEW v")
        db.sql(anew)
        assert sorted(db.sql("SELECT * FROM t").rows()) == [(1, 5), (2, 6)]


def test_floats_for_a_decimal() -> None:
    with headrace.connect() as db:
        db.sql("CREATE TABLE t (a DECIMAL(10, 2))")
        error = refusal(db.insert, "t", [(1.5,)])
        assert isinstance(error, DataError)
        assert "decimal.Decimal(str(value))" in str(error) and "pa.decimal128(10, 2)" in str(error)
        db.insert("t", [(Decimal(str(1.5)),)])
        db.insert("t", pa.table({"a": pa.array([2.5]).cast(pa.decimal128(10, 2))}))
        assert db.sql("SELECT sum(a) FROM t").rows() == [(Decimal("4.00"),)]
        db.sql("CREATE TABLE u (a STRING)")
        assert "str(value)" in str(refusal(db.insert, "u", [(1,)]))


def test_a_query_of_a_stream_that_saw_nothing_says_so() -> None:
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (a INT) WITH (timeout = '1000 seconds')")

        def ended(text: str) -> RunningResult:
            running = db.sql(text)
            assert isinstance(running, RunningResult)
            return running.finish()

        nothing = ended("SELECT count(*) AS n FROM s")
        assert nothing.rows() == [(0,)]
        for shown in (nothing.text(), str(nothing), repr(nothing), nothing._repr_html_()):
            assert "no row came by s" in shown and "FROM s@OLDEST" in shown
        assert "no row is buffered of s" in str(ended("SELECT a FROM s@OLDEST"))
        db.insert("s", [(1,)])
        assert ended("SELECT a FROM s@OLDEST").text().splitlines()[-1].strip() == "1"


# Spark's workers


def test_what_a_worker_raised_is_kept() -> None:
    text = (
        "[PYTHON_EXCEPTION] An exception was thrown from the Python worker:\n"
        "Traceback (most recent call last):\n"
        '  File "worker.py", line 7, in main\n'
        "    import headrace\n"
        "ModuleNotFoundError: No module named 'headrace'\n\n"
        "\tat org.apache.spark.api.python.BasePythonRunner (PythonRunner.scala:1)\n"
    )
    error = from_spark(Exception(text))
    assert error.condition == "PYTHON_EXCEPTION" and "ModuleNotFoundError: No module named 'headrace'" in error.message
    assert "PYSPARK_PYTHON" in str(error) and "\n" not in str(error)
    raised = from_spark(Exception(text.replace("ModuleNotFoundError: No module named 'headrace'", "KeyError: 'k'")))
    assert raised.message.endswith("KeyError: 'k'") and raised.hint is None


def test_workers_of_another_python(tmp_path: Path) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)

    def session(python: str, master: str = "local[2]") -> Any:
        return SimpleNamespace(_sc=SimpleNamespace(master=master, pythonExec=python))

    error = refusal(workers.require_workers, session(str(bare)))
    assert error.condition == "WORKERS_WITHOUT_HEADRACE" and str(bare) in str(error)
    assert "ModuleNotFoundError" in str(error) and f"PYSPARK_PYTHON={os.path.abspath(sys.executable)}" in str(error)
    assert refusal(workers.require_workers, session(str(tmp_path / "none"))).condition == "WORKERS_WITHOUT_HEADRACE"
    workers.require_workers(session(sys.executable))
    workers.require_workers(session("python3", "spark://host:7077"))
    link = tmp_path / "same"
    link.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    link.chmod(0o755)
    workers.require_workers(session(str(link)))


@pytest.mark.spark
def test_workers_are_asked_when_a_database_is_opened_and_attached(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("CAST(value AS INT) AS a")
    with headrace.connect(tmp_path / "d.hr", spark=spark) as db:
        db.sql("CREATE STREAM s (a INT)")
        monkeypatch.setattr(spark.sparkContext, "pythonExec", str(tmp_path / "none"))
        assert refusal(db.attach, rows, "s").condition == "WORKERS_WITHOUT_HEADRACE"
        assert not db.attachments
    assert refusal(headrace.connect, tmp_path / "e.hr", spark=spark).condition == "WORKERS_WITHOUT_HEADRACE"
    assert not (tmp_path / "e.hr").exists()


@pytest.mark.spark
def test_a_temporary_view_of_sparks(spark: SparkSession) -> None:
    spark.range(3).selectExpr("CAST(id AS INT) AS a").createOrReplaceTempView("numbers")
    try:
        with headrace.connect(spark=spark) as db:
            error = refusal(db.sql, "SELECT * FROM numbers")
            assert 'db.insert("numbers", spark.table("numbers"))' in str(error)
            db.sql("CREATE TABLE numbers (a INT)")
            db.insert("numbers", spark.table("numbers"))
            assert db.sql("SELECT sum(a) FROM numbers").rows() == [(3,)]
    finally:
        spark.catalog.dropTempView("numbers")


# COPY's progress


@pytest.mark.parametrize("target", ["s", "t"])
@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_progress_in_this_process(target: str, format: str, tmp_path: Path) -> None:
    file = tmp_path / f"many.{format}"
    rows = 3_000_000 if format == "csv" else 600_000
    if format == "parquet":
        pq.write_table(pa.table({"a": pa.array(range(rows), pa.int32())}), file, row_group_size=50_000)
    else:
        file.write_text(("1\n" if format == "csv" else '{"a": 1}\n') * rows)
    told: list[tuple[int, int]] = []
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (a INT)")
        db.sql("CREATE VIEW v AS SELECT sum(a) AS a FROM s")
        db.sql("CREATE TABLE t (a INT)")
        db.copy(target, file, progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] and {total for _, total in told} == {told[-1][1]}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    if (target, format) != ("s", "parquet"):  # one statement of the native engine, which is over too soon here
        assert len({done for done, _ in told}) > 2


def test_progress_of_a_statement_of_the_native_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    import duckdb

    from headrace.engine import following

    monkeypatch.setattr(following, "_EVERY", 0.001)
    told: list[float] = []
    with duckdb.connect() as connection, following.followed(connection, 1, told.append):
        while not any(0 < share < 1 for share in told):
            connection.execute("CREATE OR REPLACE TABLE t AS SELECT range % 1000 AS a FROM range(20000000)")
    assert all(0 <= share <= 1 for share in told)


def test_no_database_is_left_open(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "d.hr") as db, pytest.raises(StoreError, match="this process"):
        headrace.connect(db.path)


def test_a_path_that_no_filesystem_has_is_refusal(tmp_path: Path) -> None:
    assert refusal(headrace.connect, tmp_path / ("x" * 300)).condition == "STATE_NOT_WRITABLE"
