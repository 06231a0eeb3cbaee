"""What a ticket from somebody else may contain: lists of what is allowed, and refusal of all else by name.

A ticket of a query holds SQL, which is run again where it is resumed. Spark's own parser says what a statement is made
of, before anything is looked up or run; every node, function, source, option and setting must be one that can only
read and compute. The views in a ticket of a database are held to the same functions. docs/security.md says it in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from headrace.errors import StoreError
from headrace.move.java_aid import java_aid
from headrace.sql.functions import AGGREGATES, SCALARS
from headrace.sql.statements import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


STAYS = (
    "spark.sql.adaptive.",
    "spark.sql.artifact.",
    "spark.sql.broadcastTimeout",
    "spark.sql.catalog.",
    "spark.sql.catalogImplementation",
    "spark.sql.debug.",
    "spark.sql.execution.arrow.",
    "spark.sql.extensions",
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    "spark.sql.hive.",
    "spark.sql.queryExecutionListeners",
    "spark.sql.shuffle.partitions",
    "spark.sql.sources.parallelPartitionDiscovery.",
    "spark.sql.streaming.",
    "spark.sql.ui.",
    "spark.sql.warehouse.dir",
)
"""Settings of a cluster rather than of a query."""
_CATALYST = "org.apache.spark.sql.catalyst."
_PLANS = _words(
    """
    Aggregate Distinct Except Filter Generate GlobalLimit Intersect Join LateralJoin LocalLimit LocalRelation Offset
    OneRowRelation OptionList Pivot Project RepartitionByExpression Sample Sort SubqueryAlias Tail Union Unpivot
    UnresolvedHint UnresolvedWith WithWindowDefinition
    """
)
"""Of ``plans.logical``: operators of queries."""
_UNRESOLVED = _words(
    """
    MultiAlias RelationTimeTravel UnresolvedAlias UnresolvedAttribute UnresolvedExtractValue UnresolvedFunction
    UnresolvedGenerator UnresolvedHaving UnresolvedInlineTable UnresolvedOrdinal UnresolvedRegex UnresolvedRelation
    UnresolvedStar UnresolvedStarExceptOrReplace UnresolvedSubqueryColumnAliases UnresolvedTableValuedFunction
    UnresolvedTVFAliases
    """
)
"""Of ``analysis``: names. A name that is computed, IDENTIFIER(…), is not among them."""
_EXPRESSIONS = _words(
    """
    Add Alias And AttributeReference BaseGroupingSets BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast Coalesce
    Collate Concat CreateNamedStruct CreateStruct Cube CurrentDate CurrentRow$ CurrentTime CurrentTimestamp CurrentUser
    Divide EqualNullSafe EqualTo Exists FunctionTableSubqueryArgumentExpression GreaterThan GreaterThanOrEqual
    GroupingSets ILike In InSubquery IntegralDivide IsNotNull IsNull IsUnknown$$anon$1 IsNotUnknown$$anon$2
    LambdaFunction LateralSubquery LessThan LessThanOrEqual Like LikeAll LikeAny ListQuery Literal Lower Multiply
    NamePlaceholder$ NamedArgumentExpression Not NotLikeAll NotLikeAny Or Overlay PipeExpression PipeOperator RLike
    Remainder Rollup ScalarSubquery SemiStructuredExtract ShiftLeft ShiftRight ShiftRightUnsigned SortOrder
    SpecifiedWindowFrame StringLocate StringTrim StringTrimLeft StringTrimRight Substring Subtract TimestampAdd
    TimestampDiff UnaryMinus UnaryPositive UnboundedFollowing$ UnboundedPreceding$ UnresolvedCollation
    UnresolvedNamedLambdaVariable UnresolvedWindowExpression UnspecifiedFrame$ WindowExpression WindowSpecDefinition
    aggregate.AggregateExpression aggregate.Count aggregate.First aggregate.Last
    """
)
"""Of ``expressions``: what the parser makes itself, without a function's name."""
_VIEW = "org.apache.spark.sql.execution.command.CreateViewCommand"
_VIEW_OF_FILES = "org.apache.spark.sql.execution.datasources.CreateTempViewUsing"
_SET = "org.apache.spark.sql.execution.command.SetCommand"
FORMATS = frozenset({"csv", "json", "orc", "parquet", "text"})
"""Files a query may read by their path; others have classes of their own."""
_PLAIN_OPTION = re.compile(r"[A-Za-z_]+")
"""A reader's option; those of Hadoop, which may name classes, hosts and keys, have dots."""
_PLAIN_VALUE = re.compile(r"[A-Za-z][A-Za-z0-9_]*|-?[0-9]+(\.[0-9]+)?[A-Za-z]{0,2}")
"""The value of a setting: a switch, a number, a size, or one word. A class has dots, a path slashes."""
_ZONES = frozenset({"spark.sql.session.timeZone"})
_ZONE = re.compile(r"[A-Za-z0-9_+:/-]+")
FUNCTIONS = _words(
    """
    abs acos acosh add_months aes_decrypt aes_encrypt aggregate and any any_value approx_count_distinct
    approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine approx_top_k_estimate array
    array_agg array_append array_compact array_contains array_distinct array_except array_insert array_intersect
    array_join array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort
    array_union arrays_overlap arrays_zip ascii asin asinh assert_true atan atan2 atanh avg base64 between bigint
    bin binary bit_and bit_count bit_get bit_length bit_or bit_xor bitmap_and_agg bitmap_bit_position
    bitmap_bucket_number bitmap_construct_agg bitmap_count bitmap_or_agg bool_and bool_or boolean bround btrim
    cardinality case cast cbrt ceil ceiling char char_length character_length chr coalesce collate collation
    collations collect_list collect_set collect_union concat concat_ws contains conv convert_timezone corr cos cosh
    cot count count_if count_min_sketch counter_diff covar_pop covar_samp crc32 csc cume_dist curdate
    current_catalog current_database current_date current_path current_schema current_time current_timestamp
    current_timezone current_user date date_add date_diff date_format date_from_unix_date date_part date_sub
    date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear decimal decode degrees
    dense_rank div double e element_at elt encode endswith equal_null every exists exp explode explode_outer expm1
    extract factorial filter find_in_set first first_value flatten float floor forall format_number format_string
    from_base32 from_csv from_json from_unixtime from_utc_timestamp get get_json_object getbit greatest grouping
    grouping_id hash hex histogram_numeric hll_sketch_agg hll_sketch_estimate hll_union hll_union_agg hmac hour
    hypot if ifnull ilike in initcap inline inline_outer input_file_block_length input_file_block_start
    input_file_name instr int is_valid_utf8 is_valid_variant is_variant_null isnan isnotnull isnull
    jaro_winkler_similarity json_array_length json_object_keys json_tuple kll_merge_agg_bigint kll_merge_agg_double
    kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kll_sketch_get_n_bigint
    kll_sketch_get_n_double kll_sketch_get_n_float kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double
    kll_sketch_get_quantile_float kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float
    kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float kll_sketch_to_string_bigint
    kll_sketch_to_string_double kll_sketch_to_string_float kurtosis lag last last_day last_value lcase lead least
    left len length levenshtein like listagg ln localtime localtimestamp locate log log10 log1p log2 lower lpad
    ltrim luhn_check make_date make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz
    make_timestamp_ntz make_valid_utf8 make_ym_interval map map_concat map_contains_key map_entries map_filter
    map_from_arrays map_from_entries map_keys map_values map_zip_with mask max max_by md5 mean measure median min
    min_by minute mod mode monotonically_increasing_id month monthname months_between named_struct nanvl negative
    next_day not now nth_value ntile nullif nullifzero nvl nvl2 octet_length or overlay parse_json parse_url
    percent_rank percentile percentile_approx percentile_cont percentile_disc pi pmod posexplode posexplode_outer
    position positive pow power printf quarter quote radians raise_error rand randn random randstr range rank reduce
    regexp regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr
    regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy repeat replace
    reverse right rint rlike round row_number rpad rtrim schema_of_csv schema_of_json schema_of_variant
    schema_of_variant_agg sec second sentences sequence session_user session_window sha sha1 sha2 shiftleft
    shiftright shiftrightunsigned shuffle sign signum sin sinh size skewness slice smallint some sort_array soundex
    space spark_partition_id split split_part sql_keywords sqrt st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid
    st_srid stack startswith std stddev stddev_pop stddev_samp str_to_map string string_agg struct substr substring
    substring_index sum tan tanh theta_difference theta_intersection theta_intersection_agg theta_sketch_agg
    theta_sketch_estimate theta_union theta_union_agg time time_bucket time_diff time_from_micros time_from_millis
    time_from_seconds time_to_micros time_to_millis time_to_seconds time_trunc timestamp timestamp_micros
    timestamp_millis timestamp_nanos timestamp_seconds tinyint to_base32 to_binary to_char to_csv to_date to_json
    to_number to_time to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp to_varchar
    to_variant_object transform transform_keys transform_values translate trim trunc try_add try_aes_decrypt try_avg
    try_divide try_element_at try_make_interval try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz
    try_mod try_multiply try_parse_json try_parse_url try_subtract try_sum try_to_binary try_to_date try_to_number
    try_to_time try_to_timestamp try_url_decode try_validate_utf8 try_variant_array_append try_variant_get
    try_variant_insert try_variant_set tuple_difference_double tuple_difference_integer
    tuple_difference_theta_double tuple_difference_theta_integer tuple_intersection_agg_double
    tuple_intersection_agg_integer tuple_intersection_double tuple_intersection_integer
    tuple_intersection_theta_double tuple_intersection_theta_integer tuple_sketch_agg_double
    tuple_sketch_agg_integer tuple_sketch_estimate_double tuple_sketch_estimate_integer tuple_sketch_summary_double
    tuple_sketch_summary_integer tuple_sketch_theta_double tuple_sketch_theta_integer tuple_union_agg_double
    tuple_union_agg_integer tuple_union_double tuple_union_integer tuple_union_theta_double
    tuple_union_theta_integer typeof ucase unbase64 unhex uniform unix_date unix_micros unix_millis unix_nanos
    unix_seconds unix_timestamp upper url_decode url_encode user uuid validate_utf8 var_pop var_samp variance
    variant_array_append variant_delete variant_explode variant_explode_outer variant_get variant_insert variant_set
    variant_strip_nulls vector_avg vector_cosine_similarity vector_inner_product vector_l2_distance vector_norm
    vector_normalize vector_sum version weekday weekofyear when width_bucket window window_time xxhash64 year
    zeroifnull zip_with
    """
)
"""Functions of Spark that only compute."""
REFUSED_FUNCTIONS = _words(
    """
    from_avro from_protobuf from_xml java_method python_worker_logs reflect schema_of_avro schema_of_xml to_avro
    to_protobuf to_xml try_reflect xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number
    xpath_short xpath_string
    """
)
"""Functions of Spark that call any Java method, load a further module, parse XML with its links, or tell of others. The
list decides nothing: it says which functions were looked at."""
_BY_NAME = re.compile(r"\b(reflect|java_method|try_reflect)\b|\bidentifier\s*(?:\(|/\*|--)", re.IGNORECASE)
"""What runs Java by name, or anything by a name that is computed, however the rest of a text is read."""


def not_trusted(where: str, what: str) -> StoreError:
    return StoreError(
        "TICKET_NOT_TRUSTED",
        f"{where} {what}, which whoever opens a ticket must trust its writer to do",
        hint="if you do, say so: trust=True, or --trust on the command line",
    )


def require_settings(where: str, settings: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Refuse settings that do more than shape a plan or an answer; those that are set so here already are fine."""
    for key, value in settings.items():
        if here.get(key) != value and not _is_plain(key, value):
            raise not_trusted(where, f"sets {key} to {value[:80]!r}")


def _is_plain(key: str, value: str) -> bool:
    """Whether a setting can be given by anybody.

    >>> [_is_plain("spark.sql.ansi.enabled", "true"), _is_plain("spark.sql.session.timeZone", "Asia/Tokyo")]
    [True, True]
    >>> [_is_plain("spark.sql.sources.commitProtocolClass", "org.Evil"), _is_plain("fs.s3a.endpoint", "evil")]
    [False, False]
    """
    if not key.startswith("spark.sql.") or key.startswith(STAYS):
        return False
    return bool((_ZONE if key in _ZONES else _PLAIN_VALUE).fullmatch(value))


def require_statement(where: str, text: str, session: SparkSession) -> None:
    """Refuse a statement of a ticket that could do more than read and compute. ``session`` is the one to run it."""
    if "${" in text:
        raise not_trusted(where, "has ${…} in its SQL, which may be a variable of your environment")
    state: Any = session._jsparkSession.sessionState()
    found = str(java_aid(session).contents(state.sqlParser().parsePlan(text)))
    for line in found.split("\1")[:-1]:
        kind, *names = line.split("\0")
        what = _excess(kind, names, session)
        if what is not None:
            raise not_trusted(where, what)


def _excess(kind: str, names: list[str], session: SparkSession) -> str | None:
    """What a node of a parsed statement does that a ticket may not; nothing if it may."""
    if kind == "options":
        odd = [name for name in names if not _PLAIN_OPTION.fullmatch(name)]
        return f"has the option {odd[0]}" if odd else None
    if kind == _SET:
        plain = len(names) == 2 and _is_plain(*names)
        return None if plain else f"has SET {' = '.join(names)[:80]}"
    if kind == _VIEW:
        return None if names == ["LocalTempView"] else "makes a view that is not temporary"
    if kind == _VIEW_OF_FILES:
        return None if names[0].lower() in FORMATS else f"reads by the source {names[0]}"
    room, _, name = kind.removeprefix(_CATALYST).partition(".")
    if not kind.startswith(_CATALYST) or name.removeprefix("logical.") not in {
        "plans": _PLANS,
        "analysis": _UNRESOLVED,
        "expressions": _EXPRESSIONS,
    }.get(room, ()):
        return f"has {kind.rpartition('.')[2].removesuffix('$')}"
    if name in ("UnresolvedFunction", "UnresolvedGenerator", "UnresolvedTableValuedFunction"):
        called = names[-1].lower() if names else ""
        if called not in FUNCTIONS and called in _system_functions(session):
            return f"calls {called}()"
    if name == "UnresolvedRelation" and len(names) == 2:
        source = names[0]
        if source.lower() not in FORMATS and not session.catalog.databaseExists(f"`{source.replace('`', '``')}`"):
            return f"reads by the source {source}"
    return None


def _system_functions(session: SparkSession) -> frozenset[str]:
    """All functions that Spark brings along. Others are there because whoever resumes has made them."""
    return frozenset(str(row[0]).lower() for row in session.sql("SHOW SYSTEM FUNCTIONS").collect())


def require_definitions(where: str, texts: Iterable[str]) -> None:
    """Refuse views and samples of a database that call anything but functions that only compute."""
    known = FUNCTIONS | AGGREGATES.keys() | SCALARS.keys()
    for text in texts:
        found = _BY_NAME.search(text)
        if found is not None:
            raise not_trusted(where, f"has a view that says {' '.join(found[0].split())}")
        statement = parse(text)
        query = getattr(statement, "query", None)
        for call in query.find_all(exp.Anonymous) if query is not None else ():
            if call.name.lower() not in known:
                raise not_trusted(where, f"has a view that calls {call.name.lower()}()")
