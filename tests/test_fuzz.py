"""Whatever is given, what comes back is an answer or an error with a name, and an error has changed nothing.

Statements and values are made from numbers (``odd.py``), so that a failure can be had again: it prints the number and
what was given. ``make test`` tries the first few hundred, ``make soak`` many thousands.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

import headrace
import odd
from headrace.database import Database
from headrace.engine.session import Session
from headrace.errors import HeadraceError, SqlError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
STATEMENTS = 20_000 if SOAK else 500
VALUES = 3_000 if SOAK else 500
WITH_SPARK = 1_000 if SOAK else 25
DEFECTS = {"INTERNAL_ERROR", "NATIVE_ENGINE_FAILED"}
"""Conditions that say something went wrong which nobody had thought of."""
NO_SPARK = SqlError("NO_SPARK_HERE", "this run has no Spark to ask")
_ANEW = 200
"""Statements after which the database has gathered enough of what worked."""


class Bench:
    """A database in which statements are tried, made anew when something of what they are about is gone."""

    def __init__(self, spark: SparkSession | None = None) -> None:
        self._spark = spark
        self._tried = 0
        self._made: Database | None = None
        self.failures: list[str] = []

    @property
    def db(self) -> Database:
        if self._made is None:
            self._made = headrace.connect(spark=self._spark)
            for text in odd.SETUP:
                self._made.sql(text)
        return self._made

    def close(self) -> None:
        if self._made is not None:
            self._made.close()
        self._made = None

    def state(self) -> tuple[Any, ...]:
        """What a failed statement may not change."""
        with self.db.runtime.store.read() as snapshot:
            rows = {name: snapshot.rows(name) for name in snapshot.relations()}
            segments = sorted(p.name for p in (self.db.path / "segments").iterdir())
            return snapshot.epoch, self.db.catalog, rows, segments

    def attempt(self, what: str, use: Callable[[Database], Any]) -> str | None:
        """Try something; returns the condition of its error, if it has one."""
        before, condition = self.state(), None
        try:
            use(self.db)
        except HeadraceError as error:
            condition = error.condition
            str(error).encode()
            if condition in DEFECTS:
                told = "".join(traceback.format_exception(error.__cause__ or error)[-3:])
                self.failures.append(f"{what}\n{error}\n{told}")
            elif self.state() != before:
                self.failures.append(f"{what}\n{error}\nit failed, and changed something")
        except Exception as error:
            condition = "RAW"
            told = "".join(traceback.format_exception(error)[-3:])
            self.failures.append(f"{what}\n{type(error).__name__} went by the public interface\n{told}")
        self._tried += 1
        missing = any(self.db.catalog.find(name) is None for name in ("s", "t", "e", "per_b", "plain", "few"))
        if missing or self._tried % _ANEW == 0:
            self.close()
        return condition


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "refusal", NO_SPARK)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("a,b\n1,x\n2,y\n")


@pytest.fixture
def bench(here: None) -> Iterator[Bench]:
    found = Bench()
    yield found
    found.close()


def shown(text: str, db: Database) -> None:
    """A statement, and its answer in every shape that needs no Spark."""
    result = db.sql(text)
    result.rows(), result._repr_html_(), result.arrow()
    str(result).encode()


def report(failures: list[str], tried: int, worked: int) -> None:
    assert not failures, f"{len(failures)} of {tried} failed:\n\n" + "\n\n".join(failures[:10])
    assert worked > tried // 50, "hardly anything works: what is tried is too odd to find anything"


def test_mutated_statements_have_answers_or_named_errors(bench: Bench) -> None:
    corpus = odd.corpus(ROOT)
    worked = 0
    for number in range(STATEMENTS):
        text = odd.statement(number, corpus)
        worked += bench.attempt(f"db.sql({text!r})  # statement {number}", partial(shown, text)) is None
    report(bench.failures, STATEMENTS, worked)


@pytest.mark.spark
def test_mutated_statements_that_ask_spark(spark: SparkSession, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = odd.corpus(ROOT)
    with_spark = Bench(spark)
    number = tried = worked = 0
    while tried < WITH_SPARK:
        number += 1
        text = odd.statement(-number, corpus)
        monkeypatch.setattr(Session, "refusal", NO_SPARK)
        if bench.attempt(f"db.sql({text!r})", partial(shown, text)) != NO_SPARK.condition:
            continue
        monkeypatch.setattr(Session, "refusal", None)
        tried += 1
        what = f"db.sql({text!r})  # statement {-number}, with Spark"
        worked += with_spark.attempt(what, partial(shown, text)) is None
    with_spark.close()
    report([*bench.failures, *with_spark.failures], tried, worked)


def test_odd_values_are_taken_or_refused_by_name(bench: Bench) -> None:
    worked = 0
    for number in range(VALUES):
        name, what, use = given(number, bench.db)
        if bench.attempt(f"{what}  # value {number}", use) is None:
            worked += 1
            for relation in {"s": ("s@OLDEST", "per_b", "few")}.get(name, (name,)):
                bench.attempt(f"{what}, then TABLE {relation}", partial(shown, f"TABLE {relation}"))
    report(bench.failures, VALUES, worked)


def given(number: int, db: Database) -> tuple[str, str, Callable[[Database], Any]]:
    """A relation, and a call with something odd: mostly an insert into it."""
    random = Random(number)
    name = random.choice(("s", "t", "e"))
    if number % 25:
        rows = odd.rows(number, [f.name for f in db.catalog.get(name).columns])
        return name, f"db.insert({name!r}, {told(rows)})", lambda db: db.insert(name, rows)
    value = odd.scalar(random)
    text = told(value)
    calls: tuple[tuple[str, Callable[[Database], Any]], ...] = (
        (f"db.sql({text})", lambda db: db.sql(value)),
        (f"db.insert({text}, [])", lambda db: db.insert(value, [])),
        (f"db.copy('s', {text})", lambda db: db.copy("s", value)),
        (f"db.copy('t', 'rows.csv', header={text})", lambda db: db.copy("t", "rows.csv", header=value)),
        (f"db.copy('t', 'rows.csv', delimiter={text})", lambda db: db.copy("t", "rows.csv", delimiter=value)),
        (f"connect(group_ms={text})", lambda db: headrace.connect(group_ms=value).close()),
        (f"connect({text})", lambda db: headrace.connect(value).close()),
        (f"ring(path, {text})", lambda db: headrace.ring(db.path, value)),
    )
    return (name, *random.choice(calls))


def told(value: Any) -> str:
    """What was given, as far as it can be shown."""
    if isinstance(value, pl.DataFrame | pl.LazyFrame | pl.Series):
        return f"a {type(value).__name__}"  # Polars panics over some
    try:
        return repr(value)[:300]
    except Exception:
        return f"a {type(value).__name__}"
