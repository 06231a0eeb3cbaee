"""The documents run: every snippet of README.md, docs/sql.md and docs/cdc.md, in order, with the output it shows.

* A ``python`` block is a doctest; the blocks of a file share a namespace and a working directory.
* A ``sql`` block holds statements; the blocks of a file share a database. A ``text`` block right after it
  is what the last statement prints, or the error it raises; it may be cut short with `` …``.
* A ``console`` block holds ``$ headrace …`` lines, each followed by what it prints.

A block under the line ``<!-- needs Spark -->`` is left out of the run without Spark, in which starting
Spark is an error; the run with Spark runs every block.
"""

from __future__ import annotations

import doctest
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace
from headrace.engine.native_functions import FUNCTIONS
from headrace.engine.session import Session
from headrace.sql.functions import AGGREGATES, SCALARS
from headrace.sql.script import split_statements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
RUN = ("README.md", "docs/sql.md", "docs/cdc.md")
DOCUMENTS = (
    *RUN,
    "CONTRIBUTING.md",
    "docs/architecture.md",
    "docs/semantics.md",
    "docs/copy.md",
    "docs/spark.md",
    "docs/move.md",
    "docs/security.md",
)
WRITTEN_LATER = {"docs/benchmarks/continuous-views.md", "docs/benchmarks/samples.md"}
"""Files that ``make bench`` writes."""

_FENCE = re.compile(r"^```(\w*)[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_NEEDS_SPARK = "<!-- needs Spark -->"


@dataclass(frozen=True)
class Snippet:
    """A fenced block: its language, its text, the first line of the text, and the output block behind it."""

    language: str
    text: str
    line: int
    output: str | None
    needs_spark: bool


def snippets(markdown: str) -> Iterator[Snippet]:
    """The fenced blocks of a document, in order."""
    found = list(_FENCE.finditer(markdown))
    for index, match in enumerate(found):
        before = markdown[: match.start()].rstrip().rsplit("\n", 1)[-1]
        output = None
        if index + 1 < len(found) and found[index + 1][1] == "text":
            between = markdown[match.end() : found[index + 1].start()]
            output = found[index + 1][2] if not between.strip() else None
        line = markdown.count("\n", 0, match.start()) + 2
        yield Snippet(match[1], match[2], line, output, before == _NEEDS_SPARK)


def run_document(name: str, *, spark: SparkSession | None) -> int:
    """Run the snippets of a document in the working directory; returns how many ran."""
    names: dict[str, Any] = {}
    count = 0
    with headrace.connect(spark=spark) as database:
        for snippet in snippets((ROOT / name).read_text(encoding="utf-8")):
            if snippet.needs_spark and spark is None:
                continue
            where = f"{name}:{snippet.line}"
            if snippet.language == "python":
                run_python(snippet, names, where)
            elif snippet.language == "sql":
                run_sql(snippet, database, where)
            elif snippet.language == "console":
                run_console(snippet, where)
            else:
                continue
            count += 1
    return count


def run_python(snippet: Snippet, names: dict[str, Any], where: str) -> None:
    test = doctest.DocTestParser().get_doctest(snippet.text, {}, where, where, snippet.line - 1)
    assert test.examples, f"{where}: a python block without >>>"
    test.globs = names
    report = io.StringIO()
    doctest.DocTestRunner(verbose=False).run(test, out=report.write, clear_globs=False)
    assert not report.getvalue(), report.getvalue()


def run_sql(snippet: Snippet, database: headrace.Database, where: str) -> None:
    statements = split_statements(snippet.text)
    assert statements, f"{where}: an empty sql block"
    printed = ""
    for number, statement in enumerate(statements, 1):
        last = number == len(statements)
        try:
            with statement.errors_located():
                printed = str(database.sql(statement.text))
        except headrace.HeadraceError as error:
            printed = f"error: {error}"
            assert last and snippet.output is not None, f"{where}: {printed}"
    if snippet.output is not None:
        shown, cut, _ = snippet.output.rstrip("\n").partition(" …")
        assert printed.startswith(shown) if cut else printed == shown, f"{where} prints\n{printed}"


def run_console(snippet: Snippet, where: str) -> None:
    for part in re.split(r"^\$ ", snippet.text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        program, *arguments = shlex.split(command)
        assert program == "headrace", f"{where}: {program} is not run"
        done = subprocess.run(
            [sys.executable, "-m", "headrace", *arguments], capture_output=True, text=True, timeout=500
        )
        assert (done.stdout + done.stderr).rstrip() == expected.rstrip(), f"{where} prints\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("name", RUN)
def test_snippets_run_without_spark(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(session: Session) -> None:
        pytest.fail(f"a snippet of {name} starts Spark: put {_NEEDS_SPARK} above its block")

    monkeypatch.setattr(Session, "get", refuse)
    monkeypatch.chdir(tmp_path)
    assert run_document(name, spark=None) > 5


@pytest.mark.spark
@pytest.mark.parametrize("name", RUN)
def test_all_snippets_run(name: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_document(name, spark=spark) > 5


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    file = ROOT / name
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", file.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path = (file.parent / target).resolve()
        assert path.exists() or str(path.relative_to(ROOT)) in WRITTEN_LATER, f"{name} links to {target}"


@pytest.mark.parametrize("name", ("docs/architecture.md", "docs/semantics.md", "CONTRIBUTING.md"))
def test_modules_named_exist(name: str) -> None:
    """`engine/worker.py` in a document is a module of the package, or a file of the project."""
    for path in re.findall(r"`([\w./]+\.py)(?:::?[\w.]+)?`", (ROOT / name).read_text(encoding="utf-8")):
        assert (ROOT / "src/headrace" / path).exists() or (ROOT / path).exists(), f"{name} names {path}"


@pytest.mark.parametrize("name", ("docs/architecture.md", "CONTRIBUTING.md"))
def test_functions_named_exist(name: str) -> None:
    """`Loader.insert` of `statement/load.py` is written `statement/load.py:Loader.insert`, and is there."""
    found = re.findall(r"`([\w./]+\.py):([\w.]+)`", (ROOT / name).read_text(encoding="utf-8"))
    for path, dotted in found:
        file = ROOT / "src/headrace" / path
        source = (file if file.exists() else ROOT / path).read_text(encoding="utf-8")
        for part in dotted.split("."):
            defined = rf"^\s*(?:def|class) {part}\b|^\s*{part}\b\s*(?::|=)"
            assert re.search(defined, source, re.MULTILINE), f"{name}: {path} has no {part}"
    assert found


def test_the_dialect_names_every_function() -> None:
    """docs/sql.md lists the native list whole, and nothing as native that is not."""
    text = (ROOT / "docs/sql.md").read_text(encoding="utf-8")
    section = text.split("## Functions", 1)[1].split("\n## ", 1)[0]
    listed = set(re.findall(r"`([^`\s]+)`", section.replace("\\|", "|")))
    # not callable: what avg, window(), subqueries and s.a become
    own = {"avg_of_sum", "sum_of_digits", "window_start", "window_struct", "too_many_rows", "field"}
    spelled = {"isnull": "IS NULL", "isnotnull": "IS NOT NULL"}
    for name in (FUNCTIONS.keys() | SCALARS.keys() | AGGREGATES.keys()) - own - spelled.keys():
        assert name in listed or name.upper() in listed, f"docs/sql.md does not list {name}"


def test_the_dialect_names_every_refusal() -> None:
    text = (ROOT / "docs/sql.md").read_text(encoding="utf-8")
    for file in ("plan/split.py", "statement/define.py"):
        source = (ROOT / "src/headrace" / file).read_text(encoding="utf-8")
        for condition in re.findall(r'ViewRefused\(\s*"([A-Z_]+)"', source):
            assert f"`{condition}`" in text, f"docs/sql.md does not explain {condition}"


def test_blocks_are_told_apart() -> None:
    """The reader of documents itself: languages, outputs, marks."""
    text = "a\n```sql\nSELECT 1\n```\n```text\n1\n```\n<!-- needs Spark -->\n```python\n>>> 1\n1\n```\n```sh\nls\n```\n"
    kinds = [(s.language, s.line, s.output, s.needs_spark) for s in snippets(text)]
    assert kinds == [
        ("sql", 3, "1\n", False),
        ("text", 6, None, False),
        ("python", 10, None, True),
        ("sh", 14, None, False),
    ]
