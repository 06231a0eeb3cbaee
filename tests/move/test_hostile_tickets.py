"""Tickets from people who mean harm: each is refused by name, and nothing is written, run or left behind."""

from __future__ import annotations

import base64
import json
import os
import pickle
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import headrace
from headrace.errors import HeadraceError
from headrace.move.contents import FUNCTIONS, REFUSED_FUNCTIONS, require_statement
from headrace.move.listing import here, listed
from headrace.move.ticket import new_folder, sealed
from headrace.sql.script import split_statements
from headrace.store.directory import checksum

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def refusal(what: Callable[[], Any]) -> str:
    with pytest.raises(HeadraceError) as caught:
        what()
    assert caught.value.hint
    return caught.value.condition


def tree(folder: Path) -> dict[str, bytes | None]:
    """All that is below a folder; the claim of a ticket is there for whoever opens it."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() and not p.is_symlink() else None
        for p in folder.rglob("*")
        if p.name != "claim"
    }


# Databases


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("exported")
    with headrace.connect(place / "a.hr") as db:
        db.sql("CREATE STREAM s (k INT)")
        db.sql("CREATE VIEW v AS SELECT k, count(*) AS n FROM s GROUP BY k")
        db.sql("CREATE TABLE t (k INT)")
        db.insert("t", [(i,) for i in range(140_000)])
        db.insert("s", [(1,)] * 3)
        db.export(place / "ticket")
    return place / "ticket"


@pytest.fixture
def ticket(exported: Path, tmp_path: Path) -> Path:
    shutil.copytree(exported, tmp_path / "ticket")
    return tmp_path / "ticket"


def manifest_of(ticket: Path) -> Any:
    return json.loads((ticket / "ticket.json").read_text())["ticket"]


def rewritten(ticket: Path, **changes: Any) -> None:
    """Seal a changed manifest, as anybody can."""
    (ticket / "ticket.json").write_text(sealed({**manifest_of(ticket), **changes}))


def refused_twice(ticket: Path, tmp_path: Path) -> set[str]:
    """How a ticket is refused in a new directory and in place. Nothing may have come of either."""
    before = tree(tmp_path)
    found = {refusal(lambda: headrace.open(ticket, tmp_path / "b.hr")), refusal(lambda: headrace.open(ticket))}
    assert tree(tmp_path) == before and not (tmp_path / "b.hr").exists()
    return found


def test_a_ticket_that_means_no_harm_is_opened(ticket: Path, tmp_path: Path) -> None:
    with headrace.open(ticket, tmp_path / "b.hr") as db:
        assert db.sql("SELECT * FROM v").rows() == [(1, 3)]
    with headrace.open(ticket) as db:
        assert db.sql("SELECT count(*) FROM t").rows() == [(140_000,)]


NAMES = [
    "../.bashrc",
    "/tmp/headrace-was-here",
    "segments/../../../x",
    "segments",
    "headrace.duckdb/../../x",
    "headrace.lock",
    "scratch/x",
    "catalog.json",
    "rings/s.json",
    "x",
    "",
    ".",
    "..",
    "segments/",
    "segments//x",
    "a\0b",
    "segments/\udcff",
    "segments/" + "x" * 300,
]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_elsewhere(ticket: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "evil").write_text("evil")
    for place in (ticket / "database", ticket / "database" / "segments"):
        if name and "\0" not in name and name.isascii() and len(name) < 200:
            target = os.path.normpath(place / name)
            if target.startswith(str(tmp_path)) and not os.path.exists(target):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy(tmp_path / "evil", target)
    files = manifest_of(ticket)["files"]
    rewritten(ticket, files=[*files, [name, *checksum(tmp_path / "evil")]])
    assert refused_twice(ticket, tmp_path) == {"UNSAFE_NAME"}
    assert not Path("/tmp/headrace-was-here").exists()


def linked(path: Path, to: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(to)


@pytest.mark.parametrize(
    "name",
    [
        *("ticket.json", "used.json", "used.json.part", "claim", "state", "new", "database", "database/segments"),
        *("database/headrace.duckdb", "database/headrace.marker", "database/headrace.lock"),
        *("database/inbox", "database/scratch"),
    ],
)
@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "pipe"])
def test_links_and_pipes(ticket: Path, tmp_path: Path, name: str, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "letter").write_text("dear")
    path = ticket / name
    if kind == "link":
        linked(path, outside if path.is_dir() else outside / "letter")
    elif kind == "dangling":
        linked(path, outside / "new")
    else:
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        os.mkfifo(path) if kind == "pipe" else os.link(outside / "letter", path)
    assert refused_twice(ticket, tmp_path) == {"UNSAFE_NAME"}
    assert tree(outside) == {"letter": b"dear"}


ODD = [
    b"",
    b"\xff\xfe",
    b"{",
    b"[]",
    b"7",
    b"null",
    b'{"ticket": 1, "checksum": 1}',
    b"[" * 300_000,
    b'{"a":' * 100_000,
]


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_manifests_that_are_none(ticket: Path, tmp_path: Path, text: bytes) -> None:
    (ticket / "ticket.json").write_bytes(text)
    assert refused_twice(ticket, tmp_path) == {"TICKET_DAMAGED"}


VALUES: list[Any] = [None, True, 7, -1, 1.5, "x", [], {}, [[]], [None], [["a"]], [["a", "b", "c"]], {"a": 1}, "\ud800"]


@pytest.mark.parametrize("key", ["format", "kind", "id", "made_at", "query", "states", "files", "progress"])
def test_manifests_with_odd_values(ticket: Path, tmp_path: Path, key: str) -> None:
    whole = manifest_of(ticket)
    (ticket / "ticket.json").write_text(sealed({k: v for k, v in whole.items() if k != key}))
    assert refused_twice(ticket, tmp_path) == {"TICKET_DAMAGED"}
    assert len(listed(here(tmp_path)).rows()) in (0, 1)
    for value in VALUES:
        changed = {**whole, key: value}
        (ticket / "ticket.json").write_text(sealed(changed))
        listed(here(tmp_path))
        if isinstance(value, type(whole[key])) and key in ("id", "states", "format"):
            continue  # any text is a name; no states is what a database has
        allowed = {"TICKET_DAMAGED"} | ({"NOT_A_DATABASE", "STATE_LOST"} if key == "files" else set())
        assert refused_twice(ticket, tmp_path) <= allowed, value


def test_a_manifest_nested_deeply_in_one_value(ticket: Path, tmp_path: Path) -> None:
    deep = "[" * 50_000 + "]" * 50_000
    text = (ticket / "ticket.json").read_text().replace('"states": []', f'"states": {deep}')
    (ticket / "ticket.json").write_text(text)
    assert refused_twice(ticket, tmp_path) == {"TICKET_DAMAGED"}


def test_a_ticket_larger_than_the_disk_is_refused_before_anything_is_copied(ticket: Path, tmp_path: Path) -> None:
    huge = ticket / "database" / "segments" / "huge.parquet"
    with huge.open("wb") as file:
        file.truncate(1 << 42)  # takes no room where it is
    files = manifest_of(ticket)["files"]
    rewritten(ticket, files=[*files, ["segments/huge.parquet", 1 << 42, 0]])
    assert refusal(lambda: headrace.open(ticket, tmp_path / "b.hr")) == "STATE_NOT_WRITABLE"
    assert not (tmp_path / "b.hr").exists()
    rewritten(ticket, files=[*files, ["segments/huge.parquet", 10, 0]])  # and one that is longer than it says
    assert refusal(lambda: headrace.open(ticket, tmp_path / "b.hr")) == "TICKET_DAMAGED"
    assert not (tmp_path / "b.hr").exists()


def test_a_file_too_long_to_be_a_manifest_is_not_read_to_its_end(ticket: Path, tmp_path: Path) -> None:
    with (ticket / "ticket.json").open("wb") as file:
        file.truncate(1 << 42)
    assert refusal(lambda: headrace.open(ticket, tmp_path / "b.hr")) == "TICKET_DAMAGED"


@pytest.mark.parametrize(
    "name",
    [
        *("catalog.json", "headrace.lock", "extra", "inbox/q/head.json", "inbox/evil.json", "changes/x"),
        *("segments/x.parquet", "../extra", "../more/extra", "../state/0/x.parquet"),
    ],
)
def test_files_that_a_ticket_does_not_name_are_refused(ticket: Path, tmp_path: Path, name: str) -> None:
    extra = ticket / "database" / name
    extra.parent.mkdir(parents=True, exist_ok=True)
    extra.write_text("{}")
    assert refused_twice(ticket, tmp_path) == {"TICKET_DAMAGED"}


@pytest.mark.parametrize("name", ["database/headrace.duckdb", "database/headrace.marker", "a segment"])
def test_folders_in_place_of_files(ticket: Path, tmp_path: Path, name: str) -> None:
    path = next((ticket / "database" / "segments").iterdir()) if name == "a segment" else ticket / name
    path.unlink()
    path.mkdir()
    assert refused_twice(ticket, tmp_path) == {"TICKET_DAMAGED"}


def test_a_file_in_place_of_a_folder(ticket: Path, tmp_path: Path) -> None:
    shutil.rmtree(ticket / "database" / "segments")
    (ticket / "database" / "segments").write_text("")
    assert refused_twice(ticket, tmp_path) == {"TICKET_DAMAGED"}
    shutil.rmtree(ticket / "database")
    (ticket / "database").write_text("")
    assert refused_twice(ticket, tmp_path) == {"TICKET_DAMAGED"}


@pytest.mark.parametrize("kind", ["link", "dangling"])
@pytest.mark.parametrize("name", ["catalog.json", "headrace.duckdb", "headrace.marker", "headrace.lock", "anything"])
def test_links_in_a_directory_that_is_no_ticket(ticket: Path, tmp_path: Path, name: str, kind: str) -> None:
    outside = tmp_path / "letter"
    outside.write_text("dear")
    path = ticket / "database" / name
    linked(path, outside if kind == "link" else tmp_path / "new")
    assert refusal(lambda: headrace.connect(ticket / "database")) == "UNSAFE_NAME"
    assert outside.read_text() == "dear" and not (tmp_path / "new").exists() and os.path.lexists(path)


def tampered(ticket: Path, sql: str) -> None:
    """Run SQL in a ticket's database file, and seal it as if nothing had happened."""
    file = ticket / "database" / "headrace.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute(sql)
        connection.execute("CHECKPOINT")
    files = [[f, *(checksum(file) if f == file.name else rest)] for f, *rest in manifest_of(ticket)["files"]]
    rewritten(ticket, files=[each for each in files if (ticket / "database" / each[0]).exists()])


@pytest.mark.parametrize(
    ("sql", "condition"),
    [
        ("UPDATE book.segments SET file = '../../../precious'", "UNSAFE_NAME"),
        ("ALTER TABLE book.meta RENAME TO m; CREATE VIEW book.meta AS SELECT * FROM book.m", "TICKET_DAMAGED"),
        ("CREATE MACRO main.max(x) AS 7", "TICKET_DAMAGED"),
        ("UPDATE book.definitions SET body = 'x'", "TICKET_DAMAGED"),
        ("UPDATE book.definitions SET body = replace(body, 'count(*)', 'reflect(''a'', ''b'')')", "TICKET_NOT_TRUSTED"),
        ("UPDATE book.definitions SET body = replace(body, 'count(*)', 'Java_Method(k)')", "TICKET_NOT_TRUSTED"),
        ("UPDATE book.definitions SET body = replace(body, 'count(*)', 'IDENTIFIER(''x'')(k)')", "TICKET_NOT_TRUSTED"),
        ("UPDATE book.definitions SET body = replace(body, 'count(*)', 'xpath(k, k)')", "TICKET_NOT_TRUSTED"),
        ("DROP TABLE book.definitions", "TICKET_DAMAGED"),
    ],
)
def test_database_files_that_were_tampered_with(ticket: Path, tmp_path: Path, sql: str, condition: str) -> None:
    (tmp_path / "precious").write_text("dear")
    tampered(ticket, sql)
    assert refusal(lambda: headrace.open(ticket, tmp_path / "b.hr")) == condition
    assert (tmp_path / "precious").read_text() == "dear" and not (tmp_path / "b.hr").exists()


def test_a_view_that_has_java_run_is_refused_as_nondeterministic(tmp_path: Path) -> None:
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (k STRING)")
        for call in ("reflect('a', 'b')", "java_method('a', 'b', k)", "TRY_REFLECT('a', 'b')"):
            condition = refusal(
                lambda call=call: db.sql(f"CREATE VIEW v AS SELECT {call} AS x, count(*) AS n FROM s GROUP BY 1")  # type: ignore[misc]
            )
            assert condition == "NONDETERMINISTIC_VIEW"


# Queries


@pytest.fixture
def asked(spark: SparkSession, numbers: str, tmp_path: Path) -> Path:
    """A ticket of a query that has done nothing yet."""
    text = f"SELECT n, count(*) FROM parquet.`{numbers}` GROUP BY n"
    running = headrace.run(spark, text, start=False)
    manifest = {
        "format": 1,
        "kind": "query",
        "id": "0",
        "made_at": "2026-01-01T00:00:00+00:00",
        "spark": str(spark.version),
        "query": {"kind": "query", "sql": text},
        "to": None,
        "plan": {"identity": running._planned.root.identity, "cached": []},
        "settings": {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"},
        "inputs": running._all_inputs().as_json(),
        "states": [],
        "progress": {"finished": 0, "total": 2, "seconds": 0.0},
    }
    (tmp_path / "ticket").mkdir()
    (tmp_path / "ticket" / "ticket.json").write_text(sealed(manifest))
    return tmp_path / "ticket"


def untouched(asked: Path, what: Callable[[], Any]) -> str:
    before = tree(asked.parent)
    found = refusal(what)
    assert tree(asked.parent) == before
    return found


@pytest.mark.spark
def test_a_query_that_only_reads_is_resumed_without_trust(spark: SparkSession, asked: Path) -> None:
    assert len(headrace.resume(spark, str(asked)).result().rows()) > 1
    assert (asked / "used.json").exists()


class Harm:
    """Makes a folder when it is unpickled."""

    def __init__(self, where: Path) -> None:
        self.where = str(where)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.where,)


@pytest.mark.spark
def test_what_runs_code_or_writes_needs_trust(spark: SparkSession, asked: Path) -> None:
    harm = asked.parent / "harm"
    function = {"kind": "function", "pickle": base64.b64encode(pickle.dumps(Harm(harm))).decode()}
    rewritten(asked, query=function)
    assert untouched(asked, lambda: headrace.resume(spark, str(asked))) == "TICKET_NOT_TRUSTED"
    rewritten(asked, query={"kind": "query", "sql": "SELECT 1"}, to=str(harm))
    assert untouched(asked, lambda: headrace.resume(spark, str(asked))) == "TICKET_NOT_TRUSTED"
    assert refusal(lambda: headrace.resume(spark, str(asked), trust=True)) in ("PLAN_DIFFERS", "INPUT_CHANGED")
    for key, value in (
        ("spark.sql.sources.commitProtocolClass", "org.evil.Protocol"),
        ("spark.sql.catalog.evil", "Evil"),
        ("spark.sql.extensions", "Evil"),
        ("spark.jars", "evil"),
        ("fs.s3a.endpoint", "evil"),
        ("spark.sql.warehouse.dir", "evil"),
        ("spark.sql.session.timeZone", "${env:HOME}"),
    ):
        rewritten(asked, query={"kind": "query", "sql": "SELECT 1"}, to=None, settings={key: value})
        assert untouched(asked, lambda: headrace.resume(spark, str(asked))) == "TICKET_NOT_TRUSTED", key


SCRIPTS = [
    "SELECT reflect('java.lang.System', 'setProperty', 'harm', 'done')",
    "SELECT * FROM range(1) WHERE java_method('java.lang.System', 'getenv', 'HOME') IS NOT NULL",
    "SELECT `Reflect`('java.lang.System', 'getenv')",
    "SELECT system.builtin.reflect('java.lang.System', 'getenv')",
    "SELECT (SELECT max(try_reflect('java.lang.System', 'getenv', 'HOME')))",
    "WITH a AS (SELECT reflect('java.lang.System', 'getenv') AS x) SELECT * FROM a",
    "SELECT transform(array(1), x -> reflect('java.lang.System', 'getenv'))",
    "SELECT sum(1) OVER (ORDER BY reflect('java.lang.System', 'getenv'))",
    "SELECT 1 ORDER BY reflect('java.lang.System', 'getenv') LIMIT 1",
    "SELECT * FROM VALUES (reflect('java.lang.System', 'getenv'))",
    "SELECT * FROM range(1) PIVOT (max(reflect('java.lang.System', 'getenv')) FOR id IN (1))",
    "SELECT * FROM range(1) LATERAL VIEW reflect('java.lang.System', 'getenv') x AS y",
    "SELECT * FROM range(1) JOIN LATERAL (SELECT reflect('java.lang.System', 'getenv'))",
    "FROM range(1) |> SELECT reflect('java.lang.System', 'getenv') AS x",
    "SELECT IDENTIFIER('ref' || 'lect')('java.lang.System', 'getenv')",
    "SELECT IDENTIFIER('reflect')('java.lang.System', 'getenv')",
    "SELECT * FROM IDENTIFIER('par' || 'quet.`/etc`')",
    "SELECT TRANSFORM(id) USING 'touch {harm}' AS (x) FROM range(1)",
    "CREATE TEMPORARY FUNCTION f AS 'Evil' USING JAR '{harm}.jar'; SELECT f(1)",
    "CREATE TEMPORARY FUNCTION f(x INT) RETURNS INT RETURN x; SELECT f(1)",
    "CREATE GLOBAL TEMPORARY VIEW v AS SELECT 1; SELECT 1",
    "CREATE TEMPORARY VIEW v USING jdbc OPTIONS (url 'jdbc:evil', driver 'Evil'); SELECT * FROM v",
    "CREATE TEMPORARY VIEW v USING `org.evil.Source`; SELECT * FROM v",
    "CREATE TEMPORARY VIEW v USING csv OPTIONS (path '/etc', 'fs.file.impl' 'Evil'); SELECT * FROM v",
    "CREATE TEMPORARY VIEW v AS SELECT reflect('java.lang.System', 'getenv'); SELECT * FROM v",
    "SELECT * FROM `org.evil.Source`.`/x`",
    "SELECT * FROM jdbc.`/x`",
    "SET spark.sql.catalog.evil = Evil; SELECT 1",
    "SET fs.file.impl = Evil; SELECT 1",
    "SET spark.sql.sources.commitProtocolClass = org.evil.X; SELECT 1",
    "SET; SELECT 1",
    "SELECT '${env:HOME}'",
    "SELECT xpath('<a/>', 'a')",
    "SELECT from_xml('<a/>', 'a INT')",
    "ADD JAR '{harm}.jar'; SELECT 1",
    "ADD FILE '/etc/passwd'; SELECT 1",
    "INSERT OVERWRITE DIRECTORY '{harm}' USING parquet SELECT 1",
    "CREATE TABLE harm USING parquet LOCATION '{harm}' AS SELECT 1",
    "DROP TABLE IF EXISTS harm; SELECT 1",
    "LOAD DATA INPATH '/etc' INTO TABLE harm",
    "CACHE TABLE harm AS SELECT 1",
    "EXECUTE IMMEDIATE 'DROP TABLE harm'",
    "CALL harm()",
]


@pytest.mark.spark
@pytest.mark.parametrize("script", SCRIPTS)
def test_sql_that_could_do_more_than_read(spark: SparkSession, asked: Path, script: str) -> None:
    harm = asked.parent / "harm"
    rewritten(asked, query={"kind": "query", "sql": script.replace("{harm}", str(harm))})
    for mismatch in ("error", "restart"):
        condition = untouched(asked, lambda: headrace.resume(spark, str(asked), on_mismatch=mismatch))  # type: ignore[arg-type]  # noqa: B023
        assert condition in ("TICKET_NOT_TRUSTED", "SETUP_REFUSED", "NOT_A_QUERY")
    jvm: Any = spark._jvm
    assert jvm.java.lang.System.getProperty("harm") is None and not harm.exists()
    assert not spark.catalog.tableExists("harm") and not spark.catalog.functionExists("f")


@pytest.mark.spark
def test_tickets_of_queries_with_odd_files_and_values(spark: SparkSession, asked: Path) -> None:
    whole = manifest_of(asked)
    outside = asked.parent / "outside"
    outside.write_text("dear")
    for name in ("used.json.part", "claim", "state", ".used.json.part.crc"):
        linked(asked / name, outside)
        assert untouched(asked, lambda: headrace.resume(spark, str(asked))) == "UNSAFE_NAME"
        (asked / name).unlink()
    state = {"identity": "x", "holding": "rows", "index": "", "operator": "", "types": ['"long"'], "rows": 1}
    udt = '{"type": "udt", "pyClass": "os.system", "sqlType": {"type": "udt"}}'
    for change in (
        *({"states": [{**state, "folder": folder, "files": []}]} for folder in ("../x", "/etc", 7, "")),
        *(
            {"states": [{**state, "folder": "state/0", "files": [], "types": t}]}
            for t in (["{"], [udt], [7], ["[" * 9_999])
        ),
        *({key: value} for key in ("spark", "plan", "settings", "inputs", "progress") for value in (None, 7, [], [7])),
        {"settings": {"a": 7}},
        {"query": {"kind": "query"}},
        {"query": {"kind": "query", "sql": 7}},
        {"query": {"kind": "function"}},
        {"query": {"kind": "odd", "sql": "SELECT 1"}},
        {"plan": {"identity": 7, "cached": []}},
        {"plan": {"identity": "", "cached": [["a"]]}},
        {"inputs": {"files": [["a"]], "versions": {}, "unchecked": []}},
    ):
        rewritten(asked, **{**whole, **change})
        assert untouched(asked, lambda: headrace.resume(spark, str(asked))) in ("TICKET_DAMAGED", "UNSAFE_NAME"), change
    assert outside.read_text() == "dear"


@pytest.mark.spark
def test_a_ticket_is_its_users_alone_unless_its_folder_was_there(spark: SparkSession, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    os.chmod(there, 0o775)
    before = os.umask(0)
    try:
        for name in ("there", "new", "deep/new"):
            new_folder(spark, str(tmp_path / name))
    finally:
        os.umask(before)
    found = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("there", "new", "deep/new")]
    assert found == [0o775, 0o700, 0o700]


@pytest.mark.spark
def test_every_query_we_know_is_allowed(spark: SparkSession) -> None:
    session = spark.newSession()
    for file in (HERE / "moved.sql", HERE.parent / "tpch.sql", HERE.parent / "tpcds.sql"):
        for statement in split_statements(file.read_text()):
            require_statement("a ticket", statement.text, session)


@pytest.mark.spark
def test_every_function_of_spark_was_looked_at(spark: SparkSession) -> None:
    """A new version of Spark brings new functions: they are refused until they are in one of the lists."""
    assert not FUNCTIONS & REFUSED_FUNCTIONS
    found = {str(row[0]).lower() for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    assert {name for name in found if name.replace("_", "").isalnum()} == FUNCTIONS | REFUSED_FUNCTIONS
