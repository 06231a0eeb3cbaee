"""What a moved query is made from, so that it can be planned again elsewhere: SQL, a function, or a DataFrame.

Planning happens in a copy of the user's session: same temporary views and functions, settings of its own. Settings
that shape plan or answer travel with the query; those that size its execution stay with the cluster it runs on.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace.engine.failures import from_spark
from headrace.errors import ExecutionError, HeadraceError, SqlError
from headrace.move.contents import STAYS, not_trusted, require_settings, require_statement
from headrace.sql.script import split_statements

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Builder = Callable[[SparkSession], DataFrame]

_OURS = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.forceApply": "true",
    "spark.sql.exchange.reuse": "true",
}
"""What moving needs: adaptive execution for every query, and its memory of stages."""
_ALWAYS = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
"""Settings whose default depends on where Spark runs."""


@dataclass(frozen=True)
class Program:
    """How to get the query's DataFrame in a session."""

    kind: str
    sql: str | None = None
    build: Builder | None = None
    frame: DataFrame | None = None
    untrusted: str | None = None
    """The ticket it came in, if only what anybody's ticket may contain is to be run."""

    def as_json(self) -> dict[str, Any]:
        """The program in a ticket; a DataFrame is only named, for Spark's plans cannot be written down.

        A function that cannot be written down is refused.
        """
        if self.build is not None:
            return {"kind": self.kind, "pickle": self._pickled}
        return {"kind": self.kind, "sql": self.sql}

    @cached_property
    def _pickled(self) -> str:
        from pyspark import cloudpickle

        try:
            found = cloudpickle.dumps(self.build)  # type: ignore[no-untyped-call]
            cloudpickle.loads(found)  # what is only a name here, as a broadcast variable is, is nothing elsewhere
        except Exception as error:
            raise refused(
                f"a function that cannot be pickled ({' '.join(str(error).split())[:200]})",
                "have it make all it uses of Spark from the session it is given",
            ) from None
        return base64.b64encode(found).decode()


def program_of(query: Any) -> Program:
    """The program behind what the user gave."""
    if isinstance(query, str):
        return Program("query", sql=query)
    if hasattr(query, "_jdf"):
        return Program("DataFrame", frame=query)
    if callable(query):
        return Program("function", build=query)
    raise HeadraceError(
        "USAGE", f"cannot run a {type(query).__name__}", hint="give SQL, a DataFrame, or a function of a Spark session"
    )


def of_json(found: Mapping[str, Any], given: DataFrame | Builder | None, untrusted: str | None = None) -> Program:
    """The program of a ticket. A DataFrame must be given again, made by the same code.

    To load a function is to run code, so one of an ``untrusted`` ticket is refused.

    >>> function = {"kind": "function", "pickle": base64.b64encode(b"cno_such_module\\nbuild\\n.").decode()}
    >>> for untrusted in (None, "a-ticket"):
    ...     try:
    ...         of_json(function, None, untrusted)
    ...     except HeadraceError as error:
    ...         print(error.condition, error.message)
    FUNCTION_NOT_LOADED the ticket's function cannot be loaded here: No module named 'no_such_module'
    TICKET_NOT_TRUSTED a-ticket runs a Python function, which whoever opens a ticket must trust its writer to do
    """
    if given is not None:
        return program_of(given)
    if found["kind"] == "DataFrame":
        raise HeadraceError(
            "DATAFRAME_NEEDED",
            "the ticket is of a DataFrame, and Spark cannot write a DataFrame's plan down",
            hint="make it again and give it: headrace.resume(spark, ticket, query=df); "
            "headrace.run(spark, function) needs no such help",
        )
    if "pickle" in found and untrusted is not None:
        raise not_trusted(untrusted, "runs a Python function")
    if "pickle" in found:
        from pyspark import cloudpickle

        try:
            return Program("function", build=cloudpickle.loads(base64.b64decode(found["pickle"])))
        except Exception as error:
            raise HeadraceError(
                "FUNCTION_NOT_LOADED",
                f"the ticket's function cannot be loaded here: {error}",
                hint="have the modules it imports here, or give it: headrace.resume(spark, ticket, query=function)",
            ) from None
    return Program("query", sql=found["sql"], untrusted=untrusted)


def classic(spark: Any) -> None:
    """Refuse a session without a JVM handle."""
    if not hasattr(spark, "_jsparkSession") or type(spark).__module__.startswith("pyspark.sql.connect"):
        raise ExecutionError(
            "NEEDS_CLASSIC_SESSION",
            "a query can be moved from a classic Spark session only, and this one is Spark Connect's",
            hint="run the program where Spark's driver runs: spark-submit, or SparkSession.builder.master(...)",
        )


def copy_of(spark: SparkSession) -> SparkSession:
    """A session with the same temporary views, functions and settings, which may become others."""
    from pyspark.sql import SparkSession

    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


def session_for(
    spark: SparkSession, settings: Mapping[str, str] | None = None, untrusted: str | None = None
) -> SparkSession:
    """A copy of the user's session; with ``settings``, set as the query's first session was."""
    classic(spark)
    copy = copy_of(spark)
    if settings is not None and untrusted is not None:
        require_settings(untrusted, settings, _explicit(copy))
    if settings is not None:
        for key in _explicit(copy):
            if key not in settings and _travels(copy, key):
                copy.conf.unset(key)
        for key, value in settings.items():
            copy.conf.set(key, value)
    for key, value in _OURS.items():
        copy.conf.set(key, value)
    return copy


def settings_of(session: SparkSession) -> dict[str, str]:
    """The settings that travel."""
    found = {key: value for key, value in _explicit(session).items() if _travels(session, key)}
    for key in _ALWAYS:
        found[key] = str(session.conf.get(key))
    return {key: value for key, value in found.items() if key not in _OURS}


def _explicit(session: SparkSession) -> dict[str, str]:
    found: Any = session._jsparkSession.sessionState().conf().getAllConfs()
    pairs = found.toList()
    return {str(pairs.apply(i)._1()): str(pairs.apply(i)._2()) for i in range(pairs.size())}


def _travels(session: SparkSession, key: str) -> bool:
    return key.startswith("spark.sql.") and not key.startswith(STAYS) and session.conf.isModifiable(key)


def frame_of(program: Program, session: SparkSession) -> DataFrame:
    """The query's DataFrame in ``session``; nothing runs yet, and what is no query is refused."""
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

    try:
        if program.sql is not None:
            made: Any = _of_script(program.sql, session, program.untrusted)
        else:
            made = program.frame if program.build is None else program.build(session)
        if not isinstance(made, DataFrame):
            raise HeadraceError("USAGE", f"the function returned a {type(made).__name__}", hint="return a DataFrame")
        if made.isStreaming:
            raise ExecutionError(
                "CANNOT_MOVE", "a streaming query cannot be moved", hint="attach it to a Headrace stream: db.attach"
            )
        if program.sql is not None:
            return made
        jvm: Any = session._jvm
        plan = made._jdf.queryExecution().analyzed()
        return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)
    except PySparkException as error:
        raise from_spark(error) from None


def _of_script(text: str, session: SparkSession, untrusted: str | None) -> DataFrame:
    """A script is a query, and before it whatever makes its temporary views and settings."""
    statements = split_statements(text)
    if not statements:
        raise SqlError("PARSE_SYNTAX_ERROR", "there is no query", hint="give a SELECT")
    for statement in statements[:-1]:
        if not _is_setup(statement.text):
            raise SqlError(
                "SETUP_REFUSED",
                f"only what makes temporary views or settings may stand before the query, not "
                f"{' '.join(statement.text.split()[:3])}",
                position=statement.at,
                hint="it would be done again when the query is resumed: CREATE TEMPORARY VIEW or SET, or do it before",
            )
        if untrusted is not None:
            require_statement(untrusted, statement.text, session)
        session.sql(statement.text)
    last = statements[-1]
    if untrusted is not None:
        require_statement(untrusted, last.text, session)
    if not _is_query(last.text, session):
        raise SqlError(
            "NOT_A_QUERY",
            f"{' '.join(last.text.split()[:2])} changes something: only queries can be moved",
            position=last.at,
            hint="run the SELECT and write its answer: headrace.run(spark, query).to_parquet(path)",
        )
    return session.sql(last.text)


def _is_setup(text: str) -> bool:
    """Whether a statement may be run again by whoever resumes.

    >>> [_is_setup(t) for t in ("SET a = 1", "create or replace temp view v AS SELECT 1", "CREATE TABLE t (a INT)")]
    [True, True, False]
    """
    words = text.upper().split()[:6]
    return words[:1] == ["SET"] or (words[:1] == ["CREATE"] and bool({"TEMP", "TEMPORARY"} & set(words)))


def _is_query(text: str, session: SparkSession) -> bool:
    jvm: Any = session._jvm
    plan: Any = session._jsparkSession.sessionState().sqlParser().parsePlan(text)
    changes = [
        jvm.java.lang.Class.forName(f"org.apache.spark.sql.catalyst.plans.logical.{name}")
        for name in ("Command", "ParsedStatement")
    ]
    while True:
        if any(kind.isInstance(plan) for kind in changes):
            return False
        if not str(plan.getClass().getSimpleName()).startswith("UnresolvedWith"):
            return True
        plan = plan.child()


def refused(what: str, hint: str) -> ExecutionError:
    """The refusal of a query that cannot be moved; it goes on as it is."""
    return ExecutionError("CANNOT_MOVE", f"{what} cannot be moved; the query goes on", hint=hint)
