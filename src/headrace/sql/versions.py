"""``FROM t VERSION AS OF 17``, ``FROM t TIMESTAMP AS OF '2026-01-01'``: a table as it was, in Spark's words."""

from __future__ import annotations

from sqlglot import exp

from headrace.catalog import Relation, Table, View
from headrace.errors import CatalogError, Position, SqlError
from headrace.plan.exprs import Agg, Expr, columns, walk
from headrace.plan.nodes import Leaf
from headrace.plan.refs import VersionRef
from headrace.sql.coercion import can_cast, cast
from headrace.sql.expressions import Analyzer, bind_expr
from headrace.sql.nondeterminism import nondeterministic_call
from headrace.sql.scope import Scope
from headrace.sql.source import position_of, text_of
from headrace.sql.tree import OutsideAlgebra
from headrace.types import TIMESTAMP

_CHANGES_ALWAYS = ("rand", "randn", "random", "uuid")
_NEWEST = (1 << 63) - 1


def version_scan(relation: Relation, version: exp.Version, analyzer: Analyzer, *, in_view: bool) -> Leaf:
    """The scan of a relation with a version, which must keep its changes."""
    position = position_of(version)
    said = f"{relation.name} {text_of(version)}"
    if in_view:
        raise SqlError(
            "VERSION_IN_VIEW",
            f"{said} in a view: versions are let go after a while",
            position=position,
            hint="query it directly, or keep the rows: CREATE TABLE … AS SELECT",
        )
    if relation.keep_changes is None:
        raise no_history(relation, said, position)
    given = version.expression
    if version.this == "VERSION":
        ref = VersionRef(relation.name, relation.number, version=_number(given), position=position)
    else:
        assert version.this == "TIMESTAMP"
        ref = VersionRef(relation.name, relation.number, moment=_moment(given, analyzer), position=position)
    return Leaf.of(ref, relation.columns, relation.primary_key)


def no_history(relation: Relation, said: str, position: Position | None) -> CatalogError:
    """The refusal for a relation of which no earlier versions are kept."""
    hint = "CREATE TABLE … WITH (keep_changes = '1 day') keeps what a table was"
    what = "a table that keeps no changes" if relation.is_table else f"a {relation.kind}"
    if isinstance(relation, View) and relation.materialized:
        what = "a materialized view that keeps no changes"
        hint = "CREATE OR REPLACE MATERIALIZED VIEW … WITH (keep_changes = '1 day') keeps what a view was"
    if isinstance(relation, Table) and relation.files is not None:
        what = "a table over files, which others write"
    return CatalogError(
        "UNSUPPORTED_FEATURE.TIME_TRAVEL",
        f"{said}: {relation.name} is {what}",
        position=position,
        hint=hint,
    )


def _number(given: exp.Expr) -> int:
    if not given.name.isdecimal() or int(given.name) > _NEWEST:
        raise SqlError(
            "INVALID_VERSION",
            f"{text_of(given)} is no version",
            position=position_of(given),
            hint="versions are whole numbers: headrace.versions lists them",
        )
    return int(given.name)


def _moment(given: exp.Expr, analyzer: Analyzer) -> Expr:
    """The timestamp, a constant as Spark takes one."""
    for part in given.walk():
        if isinstance(part, exp.Query | exp.Exists):
            raise _invalid("UNEVALUABLE", given, "a subquery is no constant")
        if nondeterministic_call(part) in _CHANGES_ALWAYS:
            raise _invalid("NON_DETERMINISTIC", given, "it is another one each time")
    try:
        bound = bind_expr(given, Scope(), analyzer)
    except OutsideAlgebra as outside:
        raise _invalid("UNEVALUABLE", given, f"{outside.reason} is no constant") from None
    if any(True for _ in columns(bound)) or any(isinstance(part, Agg) for part in walk(bound)):
        raise _invalid("UNEVALUABLE", given, "it is no constant")
    if not can_cast(bound.type, TIMESTAMP):
        raise _invalid("INPUT", given, f"{bound.type.sql} is no timestamp")
    return cast(bound, TIMESTAMP)


def _invalid(kind: str, given: exp.Expr, why: str) -> SqlError:
    return SqlError(
        f"INVALID_TIME_TRAVEL_TIMESTAMP_EXPR.{kind}",
        f"{text_of(given)} cannot be a moment of a table: {why}",
        position=position_of(given),
        hint="write a constant, for example '2026-01-01 10:00:00'",
    )
