"""The binder's types are Spark's: every claimed function over every type, asked of the real analyzer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from binding import COLUMNS, OPERANDS, TYPES, LeftToSpark, RealSpark, bind, create_view

from headrace.errors import SqlError
from headrace.plan.exprs import Agg, Call, Cast, Column, Expr, SparkExpr
from headrace.sql.store_assignment import cast_for_store
from headrace.types import from_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# Refusals cannot share a query, so each costs one: they are asked over these alone.
KINDS = (
    "c_boolean",
    "c_int",
    "c_bigint",
    "c_double",
    "c_string",
    "c_binary",
    "c_date",
    "c_timestamp",
    "c_dec_5_2",
)
FEW_KINDS = ("c_boolean", "c_int", "c_string", "c_date", "c_binary")


@pytest.fixture(scope="module")
def real(spark: SparkSession) -> RealSpark:
    create_view(spark)
    return RealSpark(spark)


def outcomes(texts: Iterable[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Expressions by what the binder says without Spark: its type, a refusal, or left to Spark."""
    typed: dict[str, str] = {}
    refused: list[str] = []
    left: list[str] = []
    for text in texts:
        try:
            typed[text] = bind(text).type.sql
        except LeftToSpark:
            left.append(text)
        except SqlError as error:
            assert error.condition == "DATATYPE_MISMATCH", text
            refused.append(text)
    return typed, refused, left


def spark_types(spark: SparkSession, texts: list[str]) -> dict[str, str]:
    """Spark's type of each expression (``refused`` where it refuses), many to a query."""
    items = ", ".join(f"{text} AS x{i}" for i, text in enumerate(texts))
    try:
        schema = spark.sql(f"SELECT {items} FROM every_type").schema
    except Exception:
        if len(texts) == 1:
            return {texts[0]: "refused"}
        half = len(texts) // 2
        return spark_types(spark, texts[:half]) | spark_types(spark, texts[half:])
    return {text: from_spark(field.dataType.simpleString()).sql for text, field in zip(texts, schema, strict=True)}


def differences(spark: SparkSession, typed: dict[str, str]) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    texts = list(typed)
    for start in range(0, len(texts), 100):
        chunk = texts[start : start + 100]
        for text, theirs in spark_types(spark, chunk).items():
            if theirs != typed[text]:
                found[text] = (typed[text], theirs)
    return found


def accepted(spark: SparkSession, refused: Iterable[str]) -> dict[str, str]:
    """Those of our refusals that Spark does accept."""
    asked = {text: spark_types(spark, [text])[text] for text in refused}
    return {text: type_ for text, type_ in asked.items() if type_ != "refused"}


# One rule each, over every pair of types ...
EVERY_PAIR = (
    *("{0} = {1}", "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / {1}", "{0} % {1}", "{0} div {1}"),
    *("coalesce({0}, {1})", "{0} IN ({1}, {0})", "concat({0}, {1})", "date_add({0}, {1})"),
)
# ... and the forms that share one of those rules, or look at kinds of types only.
EVERY_PAIR_OF_KINDS = (
    *("{0} < {1}", "{0} <=> {1}", "{0} BETWEEN {1} AND {0}", "CASE {0} WHEN {1} THEN 1 END", "nullif({0}, {1})"),
    *("if(c_boolean, {0}, {1})", "CASE WHEN c_boolean THEN {0} ELSE {1} END", "{0} AND {1}", "{0} LIKE {1}"),
    *("datediff({0}, {1})", "substring({0}, {1})", "startswith({0}, {1})", "trim({0}, {1})", "date_trunc({0}, {1})"),
)
UNARY = (
    *("-({0})", "+({0})", "abs({0})", "round({0})", "round({0}, 1)", "round({0}, -2)", "floor({0})", "ceil({0})"),
    *("sqrt({0})", "length({0})", "upper({0})", "lower({0})", "trim({0})", "ltrim({0})", "rtrim({0})"),
    *("substring({0}, 2, 3)", "replace({0}, 'a')", "replace({0}, 'a', 'b')", "contains({0}, 'a')", "NOT {0}"),
    *("endswith({0}, 'a')", "year({0})", "month({0})", "day({0})", "hour({0})", "minute({0})", "second({0})"),
    *("dayofweek({0})", "date_trunc('DAY', {0})", "date_add({0}, 1)", "date_sub({0}, 1)", "datediff({0}, c_date)"),
    *("to_date({0})", "{0} IS NULL", "{0} IS NOT NULL", "isnull({0})", "{0} IS TRUE", "if({0}, 1, 2)"),
    *("{0} || 'a'", "extract(year FROM {0})", "extract(minute FROM {0})", "date_part('dow', {0})"),
    *("{0} + INTERVAL 1 DAY", "{0} - INTERVAL 1 MONTH", "{0} + INTERVAL 2 HOURS", "INTERVAL '1' YEAR + {0}"),
    *("{0} - INTERVAL 1 DAY 2 HOURS", "nvl({0}, NULL)", "CASE WHEN {0} THEN 1 END", "{0} LIKE 'a!_' ESCAPE '!'"),
    *("CASE WHEN c_boolean THEN {0} END", "nullif({0}, 1)", "nullif({0}, 'x')", "{0} > 1000", "{0} IN (1, 2.5)"),
)
AGGREGATES = tuple(
    f"{name}({distinct}{{0}})"
    for name in [
        "count",
        "sum",
        "avg",
        "mean",
        "min",
        "max",
        "stddev",
        "std",
        "stddev_pop",
        "variance",
        "var_pop",
        "bool_and",
        "every",
        "bool_or",
        "any",
    ]
    for distinct in ("", "DISTINCT ")
)


@pytest.mark.parametrize("template", EVERY_PAIR + EVERY_PAIR_OF_KINDS)
def test_differential_binary(spark: SparkSession, real: RealSpark, template: str) -> None:
    operands = OPERANDS if template in EVERY_PAIR else (*KINDS, "NULL", "1", "'7'")
    typed, refused, _ = outcomes(template.format(a, b) for a, b in product(operands, operands))
    assert differences(spark, typed) == {}
    kinds = KINDS if template in EVERY_PAIR else FEW_KINDS
    asked = {template.format(a, b) for a, b in product(kinds, kinds)}
    assert accepted(spark, (r for r in refused if r in asked)) == {}


@pytest.mark.parametrize("templates", [UNARY, AGGREGATES], ids=["unary", "aggregates"])
def test_differential_unary(spark: SparkSession, real: RealSpark, templates: tuple[str, ...]) -> None:
    typed, refused, _ = outcomes(t.format(a) for t, a in product(templates, OPERANDS))
    assert differences(spark, typed) == {}
    asked = {t.format(a) for t, a in product(templates, KINDS) if "DISTINCT" not in t}
    assert accepted(spark, (r for r in refused if r in asked)) == {}


def test_differential_casts(spark: SparkSession, real: RealSpark) -> None:
    targets = [t.sql for t in TYPES.values()]
    typed, refused, left = outcomes(f"CAST({a} AS {t})" for a, t in product(OPERANDS, targets))
    assert differences(spark, typed) == {}
    assert accepted(spark, refused) == {}
    assert left == []


def test_decimal_arithmetic_of_every_precision(spark: SparkSession, real: RealSpark) -> None:
    """Sums, products, quotients past 38 digits: the scale gives way exactly as Spark's does."""
    kinds = [
        f"CAST(NULL AS DECIMAL({p},{s}))" for p, s in ((1, 0), (38, 0), (38, 38), (20, 15), (30, 2), (7, 7), (18, 6))
    ]
    templates = ("{0} + {1}", "{0} * {1}", "{0} / {1}", "{0} % {1}", "coalesce({0}, {1})", "{0} - 12345", "9L / {1}")
    texts = {t.format(a, b) for t, a, b in product(templates, kinds, kinds)}
    texts |= {
        t.format(a)
        for t, a in product(("round({0}, 3)", "round({0}, -40)", "ceil({0})", "sum({0})", "avg({0})"), kinds)
    }
    typed, refused, left = outcomes(texts)
    assert (refused, left) == ([], [])
    assert differences(spark, typed) == {}


def test_differential_comparison_casts(spark: SparkSession, real: RealSpark) -> None:
    """Not only do both compare: they compare as the same type."""
    pairs = [f"{a} {op} {b}" for a, b in product(TYPES, TYPES) for op in ("=", "+")]
    typed, _, _ = outcomes(pairs)
    texts = [t for t in typed if ("date" not in t.lower() and "timestamp" not in t) or " = " in t]
    for start in range(0, len(texts), 20):
        chunk = texts[start : start + 20]
        items = ", ".join(f"{text} AS x{i}" for i, text in enumerate(chunk))
        plan = spark.sql(f"EXPLAIN EXTENDED SELECT {items} FROM every_type").collect()[0][0]
        analyzed = plan.split("== Analyzed Logical Plan ==")[1].split("Project [")[1].split("\n")[0]
        theirs = re.findall(
            r"(\([^,]*?(?:,\d+\))?[^,]*?(?:,\d+\))?[^,]*?(?:,\d+\))?[^,]*?\)) AS x\d+", re.sub(r"#\d+L?", "", analyzed)
        )
        assert len(theirs) == len(chunk), analyzed
        for text, shown in zip(chunk, theirs, strict=True):
            assert _collapsed(shown) == _shown(bind(text)), text


def _collapsed(shown: str) -> str:
    """Two casts in a row say what the last one says (the inner is a widening)."""
    return re.sub(r"cast\(cast\((\w+) as [\w(),]+\) as", r"cast(\1 as", shown)


def _shown(expr: Expr) -> str:
    if isinstance(expr, Column):
        return expr.name
    if isinstance(expr, Cast):
        return f"cast({_shown(expr.arg)} as {expr.type.sql})"
    assert isinstance(expr, Call)
    return f"({_shown(expr.args[0])} {expr.fn} {_shown(expr.args[1])})"


LEFT_TO_SPARK = (
    "c_int & 3",
    "regexp_replace(c_string, '(a){2}', 'it''s {0}')",
    "greatest(c_int, c_double, 1)",
    "c_date + NULL",
    "try_cast(c_string AS INT)",
    "extract(second FROM c_timestamp)",
    "date_add(DAY, 3, c_timestamp)",
    "timestampdiff(HOUR, c_timestamp, c_timestamp)",
    "to_date(c_string, 'yyyy')",
    "struct(c_int, c_string).c_int",
    "array(c_int, 2)[0]",
    "current_date()",
    "c_string RLIKE 'a+'",
    "c_string NOT LIKE ALL ('a%', 'b%')",
    "(c_int, 1) IN ((1, 1), (2, 2))",
    "INTERVAL 3 DAY * c_int",
    "sum(c_int) & 1",
    "percentile(c_int + 1, 0.5)",
    "collect_list(DISTINCT c_string)",
    "first(c_int) IGNORE NULLS",
    "percentile_cont(0.5) WITHIN GROUP (ORDER BY c_int)",
    "median(c_double) FILTER (WHERE c_boolean)",
    "log(2, max(c_int)) + 1",
    "sum(c_timestamp)",
    "window(c_timestamp_ntz, '1 hour')",
    "floor(c_double, 1)",
    "INTERVAL '3' DAY = INTERVAL '2' HOUR",
    "c_string ILIKE 'a'",
    "timestamp '2020-01-01 00:00:00 Europe/Berlin'",
)


@pytest.mark.parametrize("text", LEFT_TO_SPARK)
def test_what_is_left_to_spark_has_sparks_type(spark: SparkSession, real: RealSpark, text: str) -> None:
    bound = bind(text, real)
    assert bound.type.sql == spark_types(spark, [text])[text]
    parts = [e for e in _walk(bound) if isinstance(e, SparkExpr) or (isinstance(e, Agg) and e.template)]
    assert parts, "nothing was left to Spark"
    for part in parts:
        names = [f"{{{i}}}" for i in range(len(part.args))]
        assert all(n in (part.template or "") for n in names)


def _walk(expr: Expr) -> Iterable[Expr]:
    yield expr
    for child in expr.children:
        yield from _walk(child)


def test_refusals_of_spark_are_ours(real: RealSpark) -> None:
    for text in ("c_int & c_boolean", "greatest(c_int, c_date)", "c_date + NULL + 1.5", "percentile(c_boolean, 0.5)"):
        with pytest.raises(SqlError) as caught:
            bind(text, real)
        assert caught.value.position is not None
    with pytest.raises(SqlError) as caught:
        bind("1 + no_such_function(c_int)", real)
    assert caught.value.condition == "UNRESOLVED_ROUTINE"
    assert str(caught.value.position) == "line 1, column 5"


def test_string_literals_have_sparks_value(spark: SparkSession) -> None:
    spelled = (
        *(r"'a\nb'", r"'\101\x\u0041\Z\%\_\\%'", "r'a\\n'", r"'\0a'", r"'it\'s'", "'it''s'", '"a""b"', "'a\"\"b'"),
        *("'a' 'b'", r"'\u00e9\U0001F600'", r"'\08\1'", "'{0}'", "'é'", "''", r"'tab\tback\\slash'"),
    )
    row = spark.sql("SELECT " + ", ".join(spelled)).collect()[0]
    assert [bind(text).value for text in spelled] == list(row)  # type: ignore[attr-defined]


def test_number_literals_have_sparks_value(spark: SparkSession) -> None:
    spelled = (
        *("-2147483648", "2147483648", "-9223372036854775808", "9223372036854775808", "1.50", ".05", "5.", "0.00"),
        *("1e3", "1.5D", "0.1F", "-1S", "127Y", "12L", "1.5BD", "1e2BD", "-0.5", "1E-5", "99999999999999999999"),
    )
    frame = spark.sql("SELECT " + ", ".join(f"{t} AS x{i}" for i, t in enumerate(spelled)))
    for text, field, value in zip(spelled, frame.schema, frame.collect()[0], strict=True):
        bound = bind(text)
        assert (bound.type.sql, bound.value) == (field.dataType.simpleString(), value), text  # type: ignore[attr-defined]


def test_store_assignment_is_sparks(spark: SparkSession, real: RealSpark, tmp_path: Path) -> None:
    names = [
        n for n in TYPES if n not in ("c_tinyint", "c_smallint", "c_float", "c_dec_15_2", "c_dec_10_0", "c_dec_38_10")
    ]
    fields = ", ".join(f"{n} {TYPES[n].sql}" for n in names)
    spark.sql("DROP TABLE IF EXISTS store_target")
    spark.sql(f"CREATE TABLE store_target ({fields}) USING parquet LOCATION '{tmp_path}'")
    try:
        for source in names:
            ours = set()
            for target in names:
                try:
                    cast_for_store(COLUMNS[source], TYPES[target], target, None)
                    ours.add(target)
                except SqlError as error:
                    assert error.condition == "INCOMPATIBLE_DATA_FOR_TABLE"
            theirs = set()
            for target in names:
                query = f"EXPLAIN EXTENDED INSERT INTO store_target ({target}) SELECT {source} FROM every_type"
                if "INCOMPATIBLE_DATA_FOR_TABLE" not in spark.sql(query).collect()[0][0]:
                    theirs.add(target)
            assert ours == theirs, source
    finally:
        spark.sql("DROP TABLE store_target")
