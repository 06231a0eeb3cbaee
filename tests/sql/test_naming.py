"""Invented column names are Spark's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from binding import RealSpark, bind, create_view
from sqlglot import exp

import headrace
from headrace.engine.analyzer import SparkAnalyzer
from headrace.sql.expressions import OutsideAlgebra
from headrace.sql.fields import depth_of
from headrace.sql.grammar import parse_expression, parse_query
from headrace.sql.naming import output_name
from headrace.sql.source import text_of
from headrace.types import Type, from_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ITEMS = tuple(
    line.strip()
    for line in r"""
        c_int
        C_INT
        every_type.c_int
        `c_int`
        (c_int)
        cast(c_int as bigint)
        c_int::bigint
        cast(c_int + 1 as int)
        cast(c_int + 1 as decimal(10,2))
        cast('1' as int)
        cast(cast(c_int as bigint) as string)
        abs(cast(c_int as bigint))
        cast(1 as bigint)
        1::bigint
        try_cast(c_string as int)
        int(c_string)
        string(c_int + 1)
        c_int != c_bigint
        c_int == 1
        c_int <=> NULL
        c_int is distinct from 1
        c_int between 1 and 2
        c_int not between 1 and 2
        c_int in (1, 2)
        c_int not in (1, 2)
        c_string like 'a%'
        c_string not like 'a%'
        c_string like 'a' escape 'x'
        c_string ilike 'a'
        c_string rlike 'a'
        c_int is null
        c_int is not null
        isnull(c_int)
        not c_boolean
        !c_boolean
        c_boolean is not true
        c_boolean and c_int = 1 or c_int = 2
        c_boolean and (c_int = 1 or c_int = 2)
        case when c_int = 1 then 2 else 3 end
        case c_int when 1 then 'x' when 2 then 'it''s' end
        if(c_boolean, 1, 2)
        coalesce(c_int, c_bigint, 1)
        nullif(c_int, 1)
        c_string || 'x' || c_string
        -c_int
        -1
        -(1)
        +c_int
        - 9223372036854775808
        1.50
        -.5
        5.
        1e3
        1e7
        1e-5
        12345678901e0
        1.1F
        1L
        1e2BD
        99999999999999999999
        'a b'
        "dq"
        null
        TRUE
        X'abc'
        date '2020-1-1'
        time '1:2:3.50'
        cast(time '10:20' as string)
        cast(c_string as varchar(3))
        cast(c_string as timestamp_ntz(6))
        timestamp '2020-01-01 00:00:00.50'
        timestamp_ntz '2020-01-01 00:00:00'
        interval 1 day
        interval '1-2' year to month
        interval 1 day 2 hours
        interval 90 minutes
        interval 1.5 seconds
        interval -3 weeks
        c_date + interval 1 day
        c_date - interval '2' day
        c_date + interval 1 month
        c_date + interval 1 hour
        c_timestamp - interval 1 day
        interval 1 day + c_date
        c_date - c_date
        c_date + 1
        c_date - 1
        1 + c_date
        c_int / 2
        c_int div 2
        c_int % 2
        mod(c_int, 2)
        c_int + c_bigint * 2
        (c_int + c_bigint) * 2
        c_dec_15_2 * (1 - c_dec_15_2)
        round(c_double)
        round(c_double, 2)
        FLOOR(c_double)
        ceil(c_double)
        ceiling(c_double)
        sqrt(c_int)
        length(c_string)
        ucase(c_string)
        substring(c_string, 2)
        substr(c_string, 1, 2)
        substring(c_string from 1 for 2)
        trim(c_string)
        trim(both 'x' from c_string)
        trim(leading from c_string)
        ltrim('x', c_string)
        replace(c_string, 'a')
        extract(year from c_date)
        extract(SECOND from c_timestamp)
        date_part('year', c_date)
        date_trunc('DAY', c_timestamp)
        dateadd(c_date, 1)
        date_add(day, 1, c_date)
        datediff(day, c_date, c_date)
        to_date(c_string)
        window(c_timestamp, '10 minutes')
        window(c_timestamp, '10 minutes').start
        current_date
        array(c_int)[0]
        struct(c_int).c_int
        regexp_replace(c_string, 'a', 'b')
        log(c_double)
        power(c_double, 2)
        c_int & 3
        ~c_int
        position('a' in c_string)
    """.splitlines()
    if line.strip()
)
AGGREGATES = tuple(
    line.strip()
    for line in """
        count(*)
        COUNT(1)
        count(c_int, c_bigint)
        count(distinct c_int, c_bigint)
        count(distinct c_int) filter (where c_int > 1)
        sum(c_int + 1)
        sum(cast(c_int as bigint))
        sum(DISTINCT every_type.c_int) + 1
        Mean(c_int)
        std(c_int)
        stddev(c_int)
        every(c_boolean)
        any(c_boolean)
        max(c_int) - min(c_int)
        sum(c_int) / 2
        cast(count(*) as int)
        percentile(c_int, 0.5)
        first(c_int) ignore nulls
        collect_set(distinct c_int)
    """.splitlines()
    if line.strip()
)


LEFT_TO_SPARK = tuple(
    line.strip()
    for line in r"""
        sort_array(a)
        SORT_ARRAY(T.A, false)
        sort_array(s.l)[0]
        overlay(v PLACING 'x' FROM 1)
        overlay(v PLACING `odd name` FROM 1 FOR 2)
        length(overlay(v, 'x', i + 1)) + 1
        struct(i, s.x, i + 1 AS p, v)
        struct(i AS p).p
        (i, v)
        (i, v) = (1, 'a')
        from_json(v, 'a INT').a
        concat_ws(',', V, v)
        hash('{0} __hole0__ }', v)
        ts + make_interval(1)
        make_dt_interval(1) + ts
        d - (d - d)
        ts - make_dt_interval(1) - (ts - ts)
        -make_dt_interval(i)
        v COLLATE UNICODE
        v LIKE ANY (v, 'b')
        like(v, 'a', '/')
        regexp_like(v, 'a')
        datepart('week', d)
        session_user
        window_time(window(ts, '1 hour'))
        i + 1 AS x, hash(x, i), sort_array(array(x))
        cast(sort_array(a) AS array<string>)[0]
    """.splitlines()
    if line.strip()
)
AGGREGATES_OF_SPARK = tuple(
    line.strip()
    for line in """
        listagg(v)
        listagg(v, ',') WITHIN GROUP (ORDER BY v DESC)
        mode() WITHIN GROUP (ORDER BY i)
        first(i, true) IS NULL
        sort_array(collect_list(i + 1))
        array_join(sort_array(collect_list(v) FILTER (WHERE i > 1)), ',')
        count(DISTINCT sort_array(a))
        sum(i) + max_by(i, v)
    """.splitlines()
    if line.strip()
)


def type_of(node: exp.Expr) -> Type | None:
    try:
        return bind_node(node)
    except (Exception, OutsideAlgebra):
        return None


def bind_node(node: exp.Expr) -> Type:
    return bind(text_of(node)).type


@pytest.mark.spark
@pytest.mark.parametrize("items", [ITEMS, AGGREGATES], ids=["scalars", "aggregates"])
def test_differential_names(spark: SparkSession, items: tuple[str, ...]) -> None:
    create_view(spark)
    # EXTRACT and its kin aside, a name does not depend on its neighbours: one query serves all.
    theirs = spark.sql(f"SELECT {', '.join(items)} FROM every_type").columns
    analyzer = RealSpark(spark)

    def depth(node: exp.Expr) -> int:
        return depth_of(bind(text_of(node), analyzer))

    ours = [output_name(parse_expression(item), type_of, depth) for item in items]
    different = {item: (a, b) for item, a, b in zip(items, ours, theirs, strict=True) if a != b}
    assert different == {}


COLUMNS = (
    "a ARRAY<INT>, s STRUCT<x: INT, l: ARRAY<INT>>, v STRING, `odd name` STRING, i INT, d DATE, ts TIMESTAMP, b BOOLEAN"
)


@pytest.mark.spark
@pytest.mark.parametrize("items", [LEFT_TO_SPARK, AGGREGATES_OF_SPARK], ids=["scalars", "aggregates"])
def test_differential_names_of_what_is_left_to_spark(spark: SparkSession, items: tuple[str, ...]) -> None:
    with headrace.connect(None, spark=spark) as db:
        db.sql(f"CREATE TABLE t ({COLUMNS})")
        spark.createDataFrame([], COLUMNS).createOrReplaceTempView("t")
        different = {}
        for item in items:
            query = f"SELECT {item} FROM t"
            theirs, ours = spark.sql(query).columns, db.sql(query).arrow().column_names
            if ours != theirs:
                different[item] = (ours, theirs)
    spark.catalog.dropTempView("t")
    assert different == {}


@pytest.mark.spark
def test_a_reopened_view_has_the_names_spark_gave(spark: SparkSession, tmp_path: Path) -> None:
    view = (
        "CREATE VIEW v AS SELECT `sort_array(collect_list(k), true)` FROM (SELECT sort_array(collect_list(k)) FROM s)"
    )
    with headrace.connect(tmp_path / "new.hr", spark=spark) as db:
        db.sql("CREATE STREAM s (k INT)")
        db.sql(view)
    with headrace.connect(tmp_path / "new.hr") as db:  # without Spark
        assert [f.name for f in db.catalog.get("v").columns] == ["sort_array(collect_list(k), true)"]


def test_a_definition_stored_without_names_keeps_those_it_had() -> None:
    def no_spark() -> SparkSession:
        raise AssertionError("Spark was asked")

    before = SparkAnalyzer(no_spark, known={"type sort_array({0}) ['array<int>']": "array<int>"})
    assert before.scalar_name("sort_array({0})", (from_spark("array<int>"),)) is None


def test_an_alias_is_its_own_name() -> None:
    assert output_name(parse_query("SELECT a + 1 AS `b c`").expressions[0]) == "b c"


def test_a_name_depends_on_a_type_only_beside_dates() -> None:
    node = parse_expression("d + 1")
    assert output_name(node) == "(d + 1)"
    assert output_name(node, lambda part: bind("c_date" if part.name == "d" else "1").type) == "date_add(d, 1)"
